//! The waiting room: a bounded queue per resource, first come first served within this instance.
//! Only the head of a queue contends with the nodes; the others are parked and cost a seat each.
//! Which news of a lease's end wake the head is `news`' business; here, that they wake nobody else.
//! Knows no node and no lease.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;

use super::deadlock::{Edge, Holder, Place, Waits};
use super::wake_filter::News;
pub use super::wake_filter::{NOW, Needed, Ring, SETTLE};
use crate::mutant::{self, Mutant};
use crate::redlock::clock::BootTime;
use crate::redlock::notifications::{LeaseTag, Notice};
use crate::types::{ResourceName, TokenHash};

/// Hand-overs in a row within this instance while another one has waiters too: beyond it they stand
/// back once, so that nobody elsewhere starves.
pub const HAND_OVERS_IN_A_ROW: u32 = 8;
/// How long they stand back: many round trips, so that a waiter who was told by a notice wins on a busy
/// machine too. It idles only where nobody is there to win; who wins ends it with its own release.
pub const STAND_BACK: Duration = Duration::from_millis(20);

/// Waiters that may ask the nodes at a time, each for another resource; the others have their turn in order.
/// Thousands that come at once, or whose leases end at once, would otherwise fill the queues to the nodes, and
/// nobody could acquire, extend or release until all of them had tried. 64 keep the nodes busy.
pub const CONCURRENT_ATTEMPTS_MAX: usize = 64;

/// How many may wait.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WaitLimits {
    /// For one resource.
    pub per_resource: usize,
    /// In all.
    pub total: usize,
    /// Whether owners that wait for each other are looked for.
    pub detects_deadlocks: bool,
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
pub struct WaitQueues {
    state: Arc<Mutex<State>>,
    limits: WaitLimits,
}

#[derive(Default)]
struct State {
    queues: HashMap<ResourceName, Queue>,
    seated: usize,
    next_seat: u64,
    /// Empty where deadlocks are not looked for.
    waits: Waits,
}

#[derive(Default)]
struct Queue {
    seats: VecDeque<Seat>,
    /// A lease that was granted here runs until then, unless its end is heard of.
    taken_until: Option<BootTime>,
    news: News,
    /// Who has it, where that one has a name and deadlocks are looked for.
    holder: Option<Holder>,
    /// Hand-overs in a row.
    streak: u32,
    /// Lives as long as the queue: its subscriptions.
    keepsake: Option<SubscriptionGuard>,
}

/// What a queue holds on to for as long as somebody waits in it.
pub type SubscriptionGuard = Box<dyn Send>;

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
    /// It may be the last of a circle of owners that wait for each other.
    is_suspect: bool,
}

impl Seat {
    fn ring(&mut self, ring: Ring) {
        // A sooner one prevails.
        self.ring = Some(self.ring.map_or(ring, |old| old.min(ring)));
        self.call.notify_one();
    }
}

/// Why a waiter may ask the nodes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Turn {
    /// It is the oldest.
    Head,
    /// Another request with its token was granted: it joins that lease.
    SameToken,
    /// It does not: it may be in a deadlock, see [`Ticket::circle`].
    Suspect,
}

/// What the head is called for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Call {
    /// To ask the nodes.
    Ring(Ring),
    /// It may be in a deadlock, see [`Ticket::circle`].
    Suspect,
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

impl WaitQueues {
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
        let (call, owner) = (Arc::new(Notify::new()), Arc::<str>::from(owner));
        let mut is_suspect = false;
        if self.limits.detects_deadlocks && !owner.is_empty() {
            let place = Place { seat: number, resource: resource.clone() };
            state.waits.seat(&owner, place.clone());
            is_suspect = state.waits.circle_through(&owner, &place, |r| state.holder_of(r)).is_some();
        }
        let queue = state.queues.entry(resource.clone()).or_default();
        queue.seats.push_back(Seat {
            number,
            owner,
            since: now,
            call: Arc::clone(&call),
            ring: None,
            token,
            is_twin: false,
            is_suspect,
        });
        Ok(Ticket { room: self.clone(), resource: resource.clone(), number, call, is_trying: false, doubted_at: None })
    }

    /// A lease of this resource has certainly ended: its oldest waiter, and no other, is woken, once
    /// for each lease.
    pub fn freed(&self, resource: &ResourceName, lease: Option<LeaseTag>) {
        self.with(resource, |queue| {
            let ring = queue.news.certain(lease);
            queue.ring(ring);
        });
    }

    /// A node told of an end. The head is woken once as many have told as are needed; after
    /// [`SETTLE`] where fewer do.
    pub fn notice(&self, resource: &ResourceName, node: usize, notice: Notice, needed: Needed) {
        self.with(resource, |queue| {
            let ring = queue.news.notice(node, notice, needed);
            queue.ring(ring);
        });
    }

    /// It may have ended, and no node will say so.
    pub fn maybe_freed(&self, resource: &ResourceName) {
        self.with(resource, |queue| queue.ring(Some(Ring(SETTLE))));
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
            queue.news.guessed(lease);
            queue.ring(Some(NOW));
        });
    }

    /// The release of this lease is about to be sent, and others elsewhere go first: no news of it
    /// wakes anybody here but [`STAND_BACK`].
    pub fn stand_back(&self, resource: &ResourceName, lease: LeaseTag) {
        self.with(resource, |queue| {
            queue.streak = 0;
            queue.news.waived(lease);
            queue.ring(Some(Ring(STAND_BACK)));
        });
    }

    /// A lease of this resource was granted or extended here to somebody who did not queue: the head
    /// need not ask before `until` or its end.
    pub fn taken(&self, resource: &ResourceName, until: BootTime) {
        self.with(resource, |queue| queue.taken(until));
    }

    /// This lease was seen to stand, whatever was heard of its end before: an attempt of its token may
    /// have been withdrawn and another have followed, and that one's end is news again. Where its
    /// owner closes a circle of owners who wait for each other, the newest of them is called to look
    /// into it. `is_sure`: it was seen on a quorum of nodes.
    pub fn held_by(&self, resource: &ResourceName, owner: &str, token: &TokenHash, is_sure: bool) {
        let mut guard = self.lock();
        let state = &mut *guard;
        let Some(queue) = state.queues.get_mut(resource) else { return };
        let ring = queue.news.stands(LeaseTag::of(token), is_sure);
        queue.ring(ring);
        if !self.limits.detects_deadlocks {
            return;
        }
        if queue.holder.as_ref().is_some_and(|h| h.token == *token) {
            return;
        }
        queue.holder = (!owner.is_empty()).then(|| Holder { owner: owner.into(), token: token.clone() });
        let Some(owner) = queue.holder.as_ref().map(|h| Arc::clone(&h.owner)) else { return };
        if !state.waits.waits(&owner) {
            return;
        }
        let circle = state.waits.circle_of(&owner, |r| state.holder_of(r));
        let Some(newest) = circle.into_iter().flatten().max_by_key(|edge| edge.place.seat) else { return };
        let seat = state.queues.get_mut(&newest.place.resource).and_then(|q| q.seat_mut(newest.place.seat));
        if let Some(seat) = seat.filter(|_| !mutant::is(Mutant::DeadlockUnnoticed)) {
            seat.is_suspect = true;
            seat.call.notify_one();
        }
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

impl State {
    fn holder_of(&self, resource: &ResourceName) -> Option<&Holder> {
        self.queues.get(resource).and_then(|queue| queue.holder.as_ref())
    }
}

impl Queue {
    fn seat_mut(&mut self, number: u64) -> Option<&mut Seat> {
        // Seats are in the order of their numbers.
        let index = self.seats.binary_search_by_key(&number, |s| s.number).ok()?;
        self.seats.get_mut(index)
    }

    fn ring(&mut self, ring: Option<Ring>) {
        let Some(ring) = ring else { return };
        self.taken_until = None;
        if let Some(head) = self.seats.front_mut() {
            head.ring(ring);
        }
    }

    fn taken(&mut self, until: BootTime) {
        // Without a subscription its end could pass unheard.
        self.taken_until = self.keepsake.is_some().then_some(until);
    }
}

/// A place in a queue. Dropping it gives the place up at once and calls the next.
pub struct Ticket {
    room: WaitQueues,
    resource: ResourceName,
    number: u64,
    call: Arc<Notify>,
    is_trying: bool,
    doubted_at: Option<BootTime>,
}

impl Ticket {
    /// Resolves when this is the oldest waiter, or may join a lease of its own token. Cancel: the
    /// place is kept until the ticket is dropped.
    pub async fn turn(&self) -> Turn {
        loop {
            let turn = self.seat(|index, seat| match (index, std::mem::take(&mut seat.is_twin)) {
                (_, true) => Some(Turn::SameToken),
                _ if std::mem::take(&mut seat.is_suspect) => Some(Turn::Suspect),
                (0, false) => Some(Turn::Head),
                _ if mutant::is(Mutant::EveryoneContends) => Some(Turn::Head),
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

    /// Resolves when there is something to do for the head: the resource may be free. Cancel: no call
    /// is lost.
    pub async fn called(&self) -> Call {
        loop {
            let call = self.seat(|_, seat| match seat.ring.take() {
                Some(ring) => Some(Call::Ring(ring)),
                None => std::mem::take(&mut seat.is_suspect).then_some(Call::Suspect),
            });
            match call.flatten() {
                Some(call) => return call,
                None => self.call.notified().await,
            }
        }
    }

    /// The circle of owners who wait for each other that this seat closes, as far as is known here:
    /// nobody in it sat down later. Who holds what is hearsay; ask the nodes.
    pub fn circle(&self) -> Option<Vec<Edge>> {
        let state = self.room.lock();
        let queue = state.queues.get(&self.resource)?;
        let index = queue.seats.binary_search_by_key(&self.number, |s| s.number).ok()?;
        let owner = Arc::clone(&queue.seats.get(index)?.owner);
        let place = Place { seat: self.number, resource: self.resource.clone() };
        state.waits.circle_through(&owner, &place, |r| state.holder_of(r))
    }

    /// When a circle through this seat is to be looked into again, since the nodes have not said yet that it
    /// stands.
    pub fn doubted_at(&self) -> Option<BootTime> {
        self.doubted_at
    }

    /// See [`Self::doubted_at`].
    pub fn doubt(&mut self, at: Option<BootTime>) {
        self.doubted_at = at;
    }

    /// Whether everybody in the circle still sits there.
    pub fn all_seated(&self, circle: &[Edge]) -> bool {
        let mut state = self.room.lock();
        circle.iter().all(|edge| {
            let queue = state.queues.get_mut(&edge.place.resource);
            queue.is_some_and(|q| q.seat_mut(edge.place.seat).is_some())
        })
    }

    /// From here on, what is under way for this ticket may hold the resource for a moment after it
    /// was dropped: the next is then called once more.
    pub fn trying(&mut self, is_trying: bool) {
        self.is_trying = is_trying;
        if is_trying {
            self.room.with(&self.resource, |queue| queue.news.asked());
        }
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
    pub fn keep(&self, keepsake: SubscriptionGuard) {
        self.room.with(&self.resource, |queue| queue.keepsake = Some(keepsake));
    }

    /// Leaves the queue with a lease that runs until `until`: the next need not ask before its end.
    /// Others who wait with the same token are called, since they want the same lease.
    pub fn granted(mut self, until: BootTime) {
        self.is_trying = false;
        let own = self.seat(|_, seat| seat.token.clone()).flatten();
        self.room.with(&self.resource, |queue| {
            queue.taken(until);
            queue.news.served();
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
        let index = queue.seats.binary_search_by_key(&self.number, |s| s.number).ok()?;
        queue.seats.get_mut(index).map(|seat| see(index, seat))
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        let mut guard = self.room.lock();
        let state = &mut *guard;
        let Some(queue) = state.queues.get_mut(&self.resource) else { return };
        let Ok(index) = queue.seats.binary_search_by_key(&self.number, |s| s.number) else { return };
        if let Some(seat) = queue.seats.remove(index) {
            state.waits.leave(&seat.owner, self.number);
        }
        match queue.seats.front_mut() {
            Some(head) if self.is_trying => head.ring(Ring(SETTLE)),
            Some(head) if index == 0 && !mutant::is(Mutant::LeaverCallsNobody) => head.call.notify_one(),
            Some(_) => {}
            None => {}
        }
        let emptied = queue.seats.is_empty().then(|| state.queues.remove(&self.resource));
        state.seated -= 1;
        drop(guard);
        // Its subscriptions are given up without the room's lock.
        drop(emptied);
    }
}

#[cfg(test)]
#[path = "queue_tests.rs"]
mod tests;
