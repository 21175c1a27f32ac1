//! The waiting room: a bounded queue per resource, first come first served within this instance.
//! Only the head of a queue contends with the nodes; the others are parked and cost a seat each.
//! Here is also decided which news of a lease's end wakes the head, and that it wakes nobody else.
//! Knows no node and no lease.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;

use crate::redlock::clock::BootTime;
use crate::redlock::feed::{LeaseTag, Notice};
use crate::redlock::types::{ResourceName, TokenHash};

/// How long the head lets things settle when too few nodes have yet told of a lease's end for a
/// quorum to be free: a try before that costs two rounds and wins nothing.
pub const SETTLE: Duration = Duration::from_millis(5);
/// Hand-overs in a row within this instance while another one has waiters too: beyond it they stand
/// back once, so that nobody elsewhere starves.
pub const HAND_OVERS_IN_A_ROW: u32 = 8;
/// How long they stand back: several round trips, so that a waiter who was told by a notice wins.
pub const STAND_BACK: Duration = Duration::from_millis(5);

/// How many may wait.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WaitLimits {
    /// For one resource.
    pub per_resource: usize,
    /// In all.
    pub total: usize,
}

/// The room is full.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Full {
    /// The bound that was met.
    pub limit: usize,
    /// It is that of the resource.
    pub per_resource: bool,
}

/// All queues of one instance. Cheap to clone.
#[derive(Clone)]
pub struct WaitingRoom {
    state: Arc<Mutex<State>>,
    limits: WaitLimits,
}

#[derive(Default)]
struct State {
    queues: HashMap<ResourceName, Queue>,
    seated: usize,
    next_seat: u64,
}

#[derive(Default)]
struct Queue {
    seats: VecDeque<Seat>,
    /// A lease that was granted here runs until then, unless its end is heard of.
    taken_until: Option<BootTime>,
    /// The end that was heard of last.
    ended: Ended,
    /// The end that led to the last grant here: late news of it are none.
    over: Option<LeaseTag>,
    /// Hand-overs in a row.
    streak: u32,
    /// Lives as long as the queue: its subscriptions.
    keepsake: Option<Keepsake>,
}

/// What a queue holds on to for as long as somebody waits in it.
pub type Keepsake = Box<dyn Send>;

/// What is known of the end of one lease.
#[derive(Default)]
struct Ended {
    lease: Option<LeaseTag>,
    /// The nodes that told, a bit each.
    nodes: u64,
    rung: Rung,
}

/// Whether the head was woken for it.
#[derive(Default, Clone, Copy, PartialEq, Eq)]
enum Rung {
    #[default]
    No,
    /// On a guess: it is woken again when the end is certain.
    Early,
    /// Once and for all.
    Full,
}

struct Seat {
    number: u64,
    owner: Arc<str>,
    since: BootTime,
    call: Arc<Notify>,
    ring: Option<Ring>,
    /// The client's own token.
    token: Option<TokenHash>,
    /// A request with the same token was granted.
    is_twin: bool,
}

impl Seat {
    fn ring(&mut self, ring: Ring) {
        // A sooner one prevails.
        self.ring = Some(self.ring.map_or(ring, |old| old.min(ring)));
        self.call.notify_one();
    }
}

/// The resource may be free: ask the nodes after this time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Ring(pub Duration);

/// At once.
const NOW: Ring = Ring(Duration::ZERO);

/// Why a waiter may ask the nodes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Turn {
    /// It is the oldest.
    Head,
    /// Another request with its token was granted: it joins that lease.
    Twin,
}

/// How many nodes must have told of an end before a quorum can be free.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Needed {
    /// Of a lease that was ended: those that are not heard of may well have told.
    pub ended: u32,
    /// Of an attempt that was withdrawn: a whole quorum, since with less it never held the lease.
    pub withdrawn: u32,
}

/// What a release here means for those who wait here.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HandOver {
    /// Nobody waits.
    Nobody,
    /// The head may ask right behind the release.
    Next,
    /// It may, unless somebody waits elsewhere: it was this instance's turn often enough.
    AskOthers,
}

/// A seat as others may see it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Seated {
    /// Whose, as it says itself.
    pub owner: Arc<str>,
    /// Since when.
    pub since: BootTime,
}

impl WaitingRoom {
    /// An empty room.
    pub fn new(limits: WaitLimits) -> Self {
        Self { state: Arc::default(), limits }
    }

    /// Takes the last place in the queue. `token`: the client's own.
    ///
    /// Errors: [`Full`], at once.
    pub fn enter(
        &self,
        resource: &ResourceName,
        owner: &str,
        token: Option<TokenHash>,
        now: BootTime,
    ) -> Result<Ticket, Full> {
        let mut state = self.lock();
        if state.seated >= self.limits.total {
            return Err(Full { limit: self.limits.total, per_resource: false });
        }
        let queued = state.queues.get(resource).map_or(0, |q| q.seats.len());
        if queued >= self.limits.per_resource {
            return Err(Full { limit: self.limits.per_resource, per_resource: true });
        }
        let number = state.next_seat;
        state.next_seat += 1;
        state.seated += 1;
        let call = Arc::new(Notify::new());
        let queue = state.queues.entry(resource.clone()).or_default();
        queue.seats.push_back(Seat {
            number,
            owner: owner.into(),
            since: now,
            call: Arc::clone(&call),
            ring: None,
            token,
            is_twin: false,
        });
        Ok(Ticket { room: self.clone(), resource: resource.clone(), number, call, is_trying: false })
    }

    /// A lease of this resource has certainly ended: its oldest waiter, and no other, is woken, once
    /// for each lease.
    pub fn freed(&self, resource: &ResourceName, lease: Option<LeaseTag>) {
        self.with(resource, |queue| queue.certain(lease));
    }

    /// A node told of an end. The head is woken once as many have told as are needed; after
    /// [`SETTLE`] where fewer do.
    pub fn notice(&self, resource: &ResourceName, node: usize, notice: Notice, needed: Needed) {
        self.with(resource, |queue| queue.notice(node, notice, needed));
    }

    /// It may have ended, and no node will say so.
    pub fn maybe_freed(&self, resource: &ResourceName) {
        self.with(resource, |queue| queue.ring(Ring(SETTLE)));
    }

    /// What a release that is about to be sent means here.
    pub fn hand_over(&self, resource: &ResourceName) -> HandOver {
        match self.lock().queues.get(resource) {
            None => HandOver::Nobody,
            Some(queue) if queue.streak < HAND_OVERS_IN_A_ROW => HandOver::Next,
            Some(_) => HandOver::AskOthers,
        }
    }

    /// The release of this lease is on its way to every node: what the head sends now arrives behind
    /// it. `afresh`: nobody waits elsewhere.
    pub fn handing_over(&self, resource: &ResourceName, lease: LeaseTag, afresh: bool) {
        self.with(resource, |queue| {
            queue.streak = if afresh { 1 } else { queue.streak.saturating_add(1) };
            queue.ended = Ended { lease: Some(lease), nodes: 0, rung: Rung::Early };
            queue.ring(NOW);
        });
    }

    /// The release of this lease is about to be sent, and others elsewhere go first: no news of it
    /// wakes anybody here but [`STAND_BACK`].
    pub fn stand_back(&self, resource: &ResourceName, lease: LeaseTag) {
        self.with(resource, |queue| {
            queue.streak = 0;
            queue.ended = Ended { lease: Some(lease), nodes: 0, rung: Rung::Full };
            queue.ring(Ring(STAND_BACK));
        });
    }

    /// A lease of this resource was granted or extended here to somebody who did not queue: the head
    /// need not ask before `until` or its end.
    pub fn taken(&self, resource: &ResourceName, until: BootTime) {
        self.with(resource, |queue| queue.taken(until));
    }

    /// How many wait for this resource.
    pub fn waiting(&self, resource: &ResourceName) -> usize {
        self.lock().queues.get(resource).map_or(0, |q| q.seats.len())
    }

    /// How many wait in all.
    pub fn waiting_in_all(&self) -> usize {
        self.lock().seated
    }

    /// Since when the oldest waiter of all waits. Looks at every queue.
    pub fn oldest(&self) -> Option<BootTime> {
        self.lock().queues.values().filter_map(|q| q.seats.front().map(|s| s.since)).min()
    }

    /// The bounds.
    pub fn limits(&self) -> WaitLimits {
        self.limits
    }

    /// The queue of a resource, head first.
    pub fn queue(&self, resource: &ResourceName) -> Vec<Seated> {
        let state = self.lock();
        let seats = state.queues.get(resource).map(|q| q.seats.iter());
        seats.into_iter().flatten().map(|s| Seated { owner: Arc::clone(&s.owner), since: s.since }).collect()
    }

    /// Every resource that is waited for, with the number of its waiters.
    pub fn queues(&self) -> Vec<(ResourceName, usize)> {
        self.lock().queues.iter().map(|(resource, q)| (resource.clone(), q.seats.len())).collect()
    }

    /// Everybody, with resource and position (1 is next), the oldest first.
    pub fn everybody(&self) -> Vec<(ResourceName, usize, Seated)> {
        let state = self.lock();
        let mut all = Vec::with_capacity(state.seated);
        for (resource, queue) in &state.queues {
            let seats = queue.seats.iter().enumerate();
            all.extend(
                seats.map(|(i, s)| (resource.clone(), i + 1, Seated { owner: Arc::clone(&s.owner), since: s.since })),
            );
        }
        drop(state);
        all.sort_by(|a, b| (a.2.since, a.1, &a.0).cmp(&(b.2.since, b.1, &b.0)));
        all
    }

    fn with(&self, resource: &ResourceName, change: impl FnOnce(&mut Queue)) {
        if let Some(queue) = self.lock().queues.get_mut(resource) {
            change(queue);
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Queue {
    fn ring(&mut self, ring: Ring) {
        self.taken_until = None;
        if let Some(head) = self.seats.front_mut() {
            head.ring(ring);
        }
    }

    fn certain(&mut self, lease: Option<LeaseTag>) {
        if lease.is_some() {
            if self.over == lease || (self.ended.lease == lease && self.ended.rung == Rung::Full) {
                return;
            }
            self.ended = Ended { lease, nodes: self.ended.nodes, rung: Rung::Full };
        }
        self.ring(NOW);
    }

    fn notice(&mut self, node: usize, notice: Notice, needed: Needed) {
        if notice.lease.is_some() && self.over == notice.lease {
            return;
        }
        if self.ended.lease != notice.lease || (notice.lease.is_none() && self.ended.rung == Rung::Full) {
            self.ended = Ended { lease: notice.lease, ..Ended::default() };
        }
        if self.ended.rung == Rung::Full {
            return;
        }
        self.ended.nodes |= 1_u64.checked_shl(u32::try_from(node).unwrap_or(u32::MAX)).unwrap_or(0);
        let needed = if notice.withdrawn { needed.withdrawn } else { needed.ended };
        if self.ended.nodes.count_ones() >= needed {
            self.ended.rung = Rung::Full;
            self.ring(NOW);
        } else if !notice.withdrawn && self.ended.rung == Rung::No {
            self.ended.rung = Rung::Early;
            self.ring(Ring(SETTLE));
        }
    }

    fn taken(&mut self, until: BootTime) {
        // Without a subscription its end could pass unheard.
        self.taken_until = self.keepsake.is_some().then_some(until);
    }
}

/// A place in a queue. Dropping it gives the place up at once and calls the next.
pub struct Ticket {
    room: WaitingRoom,
    resource: ResourceName,
    number: u64,
    call: Arc<Notify>,
    is_trying: bool,
}

impl Ticket {
    /// Resolves when this is the oldest waiter, or may join a lease of its own token. Cancel: the
    /// place is kept until the ticket is dropped.
    pub async fn turn(&self) -> Turn {
        loop {
            let turn = self.seat(|index, seat| match (index, std::mem::take(&mut seat.is_twin)) {
                (_, true) => Some(Turn::Twin),
                (0, false) => Some(Turn::Head),
                _ => None,
            });
            match turn.flatten() {
                Some(turn) => return turn,
                None => self.call.notified().await,
            }
        }
    }

    /// 1 is the head.
    pub fn position(&self) -> usize {
        self.seat(|index, _| index + 1).unwrap_or(1)
    }

    /// Resolves when the resource may be free, for the head. Cancel: no ring is lost.
    pub async fn rung(&self) -> Ring {
        loop {
            match self.seat(|_, seat| seat.ring.take()).flatten() {
                Some(ring) => return ring,
                None => self.call.notified().await,
            }
        }
    }

    /// From here on, what is under way for this ticket may hold the resource for a moment after it
    /// was dropped: the next is then called once more.
    pub fn trying(&mut self, is_trying: bool) {
        self.is_trying = is_trying;
    }

    /// Until when a lease that was granted here runs, as far as is known.
    pub fn taken_until(&self) -> Option<BootTime> {
        self.room.lock().queues.get(&self.resource).and_then(|q| q.taken_until)
    }

    /// Whether the queue has its subscriptions.
    pub fn has_keepsake(&self) -> bool {
        self.room.lock().queues.get(&self.resource).is_some_and(|q| q.keepsake.is_some())
    }

    /// Leaves something with the queue for as long as it lives.
    pub fn keep(&self, keepsake: Keepsake) {
        self.room.with(&self.resource, |queue| queue.keepsake = Some(keepsake));
    }

    /// Leaves the queue with a lease that runs until `until`: the next need not ask before its end.
    /// Others who wait with the same token are called, since they want the same lease.
    pub fn granted(mut self, until: BootTime) {
        self.is_trying = false;
        let own = self.seat(|_, seat| seat.token.clone()).flatten();
        self.room.with(&self.resource, |queue| {
            queue.taken(until);
            if queue.ended.lease.is_some() {
                queue.over = queue.ended.lease.take();
            }
            if let Some(head) = queue.seats.front_mut() {
                head.ring = None;
            }
            for seat in queue.seats.iter_mut().filter(|s| own.is_some() && s.token == own) {
                seat.is_twin = true;
                seat.call.notify_one();
            }
        });
    }

    fn seat<T>(&self, see: impl FnOnce(usize, &mut Seat) -> T) -> Option<T> {
        let mut state = self.room.lock();
        let queue = state.queues.get_mut(&self.resource)?;
        // Seats are in the order of their numbers.
        let index = queue.seats.binary_search_by_key(&self.number, |s| s.number).ok()?;
        queue.seats.get_mut(index).map(|seat| see(index, seat))
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        let mut state = self.room.lock();
        let Some(queue) = state.queues.get_mut(&self.resource) else { return };
        let Ok(index) = queue.seats.binary_search_by_key(&self.number, |s| s.number) else { return };
        queue.seats.remove(index);
        match queue.seats.front_mut() {
            Some(head) if self.is_trying => head.ring(Ring(SETTLE)),
            Some(head) if index == 0 => head.call.notify_one(),
            Some(_) => {}
            None => {}
        }
        let emptied = queue.seats.is_empty().then(|| state.queues.remove(&self.resource));
        state.seated -= 1;
        drop(state);
        // Its subscriptions are given up without the room's lock.
        drop(emptied);
    }
}

#[cfg(test)]
#[path = "waiters_tests.rs"]
mod tests;
