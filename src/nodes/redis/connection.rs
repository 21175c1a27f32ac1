//! A lane: one multiplexed connection that carries everything for its share of the resources in order,
//! the queue in front of it, and what all lanes of a node share. Knows no pool: the supervisor puts
//! connections in, callers leave requests, and the lane's carrier takes both out.

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use deadpool_redis::redis::aio::MultiplexedConnection;
use tokio::sync::{Notify, oneshot};

use super::server_checks::ServerInfo;
use crate::protocol::{NodeResult, Request, RequestTime, Unreachable, UnreachableKind};
use crate::redlock::clock::BootTime;

/// A connection that has passed its hand-shake.
#[derive(Debug, Clone)]
pub struct Bound {
    /// Shared with the pool, which checks and replaces it.
    pub connection: MultiplexedConnection,
    /// What the node's marker is compared with, see [`crate::protocol::commands::marker_fingerprint`].
    pub marker_fingerprint: Arc<str>,
    /// Tells one connection of a lane from the next.
    pub generation: u64,
}

/// A request that was asked for and is not yet answered.
#[derive(Debug)]
pub struct Pending {
    /// When its round began.
    pub sent_at: RequestTime,
    /// What is asked.
    pub request: Arc<Request>,
    caller: oneshot::Sender<NodeResult>,
}

impl Pending {
    /// The request, and where its answer comes out.
    pub fn new(sent_at: RequestTime, request: Arc<Request>) -> (Self, oneshot::Receiver<NodeResult>) {
        let (caller, waiting) = oneshot::channel();
        (Self { sent_at, request, caller }, waiting)
    }

    /// Nobody waits for the answer any more.
    pub fn is_given_up(&self) -> bool {
        self.caller.is_closed()
    }

    /// Gives the answer, where somebody still waits.
    pub fn answer(self, answer: NodeResult) {
        let _ = self.caller.send(answer);
    }
}

/// Why a request was not taken into a lane's queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Refused {
    /// The lane has no connection.
    Closed,
    /// Its queue is full.
    Full,
}

/// One lane.
#[derive(Debug, Default)]
pub struct Lane {
    bound: Mutex<Option<Bound>>,
    fresh: Mutex<Option<Bound>>,
    broken: Notify,
    queue: Mutex<Vec<Pending>>,
    filled: Notify,
}

impl Lane {
    /// The connection, if there is one.
    pub fn bound(&self) -> Option<Bound> {
        lock(&self.bound).clone()
    }

    /// Leaves a request to be sent in the next turn. At most `limit` wait at a time; for one more, those
    /// whose callers are gone are dropped. The answer comes out of what is returned, which is closed
    /// without one where the lane is closed before the request is sent.
    ///
    /// Errors: [`Refused`]; then nothing is sent.
    pub fn leave(
        &self,
        sent_at: RequestTime,
        request: Arc<Request>,
        limit: usize,
    ) -> Result<oneshot::Receiver<NodeResult>, Refused> {
        // Held throughout, so that whoever closes the lane finds the request in the queue, or is found.
        let bound = lock(&self.bound);
        if bound.is_none() {
            return Err(Refused::Closed);
        }
        let mut queue = lock(&self.queue);
        if queue.len() >= limit {
            queue.retain(|pending| !pending.is_given_up());
        }
        if queue.len() >= limit {
            return Err(Refused::Full);
        }
        let (pending, waiting) = Pending::new(sent_at, request);
        queue.push(pending);
        if queue.len() == 1 {
            self.filled.notify_one();
        }
        Ok(waiting)
    }

    /// Resolves once there are requests in the queue. One carrier waits. Cancel: the wake-up stays for
    /// the next wait.
    pub async fn filled(&self) {
        self.filled.notified().await;
    }

    /// At most `most` of the waiting requests, the oldest first, and the connection to send them on.
    /// Where there is none, they are given back unsent. More that wait are told of at once.
    pub fn take_turn(&self, most: usize) -> Option<(Bound, Vec<Pending>)> {
        let bound = self.bound();
        let mut queue = lock(&self.queue);
        let turn = match queue.len() {
            all if all <= most => std::mem::take(&mut *queue),
            _ => {
                self.filled.notify_one();
                queue.drain(..most).collect()
            }
        };
        drop(queue);
        bound.map(|bound| (bound, turn))
    }

    /// Keeps a connection that has passed its hand-shake until the pool hands it out.
    pub fn prepare(&self, bound: Bound) {
        *lock(&self.fresh) = Some(bound);
    }

    /// Opens the lane with the connection prepared last, in the place of the one it has.
    fn open(&self) -> Opened {
        let Some(fresh) = lock(&self.fresh).take() else { return Opened::Nothing };
        match lock(&self.bound).replace(fresh) {
            Some(_) => Opened::Replaced,
            None => Opened::New,
        }
    }

    /// Closes the lane, if it still has the connection of that generation (`None`: whichever), and
    /// wakes its keeper. Returns whether it was open.
    fn close(&self, generation: Option<u64>) -> bool {
        if generation.is_none() {
            // Also one that was prepared and never opened, because its keeper was dropped in between.
            *lock(&self.fresh) = None;
        }
        let mut bound = lock(&self.bound);
        let closes = bound.as_ref().is_some_and(|b| generation.is_none_or(|g| g == b.generation));
        if closes {
            *bound = None;
            self.broken.notify_one();
            // Given back unsent, also where there is no carrier any more.
            lock(&self.queue).clear();
        }
        closes
    }

    /// Resolves once the lane was closed. One keeper waits. Cancel: the wake-up stays for the next wait.
    pub async fn closed(&self) {
        self.broken.notified().await;
    }
}

/// What opening a lane did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Opened {
    /// No connection was prepared: it is as it was.
    Nothing,
    /// It was closed before.
    New,
    /// It was open with another connection.
    Replaced,
}

/// What a node's callers and its supervisor share.
#[derive(Debug)]
pub struct Lanes {
    lanes: Vec<Lane>,
    generations: AtomicU64,
    unfit: AtomicBool,
    in_flight: AtomicUsize,
    errors: [AtomicU64; UnreachableKind::ALL.len()],
    health: Mutex<Health>,
}

/// What is known of the server and of the connections to it.
#[derive(Debug, Clone)]
pub struct Health {
    /// Since when the node has been connected, or has not been.
    pub since: BootTime,
    /// Connections built beyond the first of each lane.
    pub reconnects: u64,
    /// The last reading of its `INFO`.
    pub server: ServerInfo,
    /// Why the last attempt to connect failed; `None` since it succeeded.
    pub refusal: Option<Unreachable>,
    /// Kind of the last error of a call or of an attempt to connect.
    pub last_error: Option<UnreachableKind>,
    built: u64,
    open: usize,
}

impl Lanes {
    /// All lanes closed, as of `now`.
    pub fn new(count: usize, now: BootTime) -> Self {
        let health = Health {
            since: now,
            reconnects: 0,
            server: ServerInfo::default(),
            refusal: None,
            last_error: None,
            built: 0,
            open: 0,
        };
        Self {
            lanes: (0..count.max(1)).map(|_| Lane::default()).collect(),
            generations: AtomicU64::new(0),
            unfit: AtomicBool::new(false),
            in_flight: AtomicUsize::new(0),
            errors: Default::default(),
            health: Mutex::new(health),
        }
    }

    /// All of them.
    pub fn all(&self) -> &[Lane] {
        &self.lanes
    }

    /// A number for the next connection.
    pub fn next_generation(&self) -> u64 {
        self.generations.fetch_add(1, Ordering::Relaxed)
    }

    /// The lane of a key: the same for everything about one resource.
    pub fn of_key(&self, key: &str) -> &Lane {
        // FNV-1a: spreads, is the same everywhere, and guards nothing.
        let hash =
            key.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |h, b| (h ^ u64::from(b)).wrapping_mul(0x0100_0000_01b3));
        let count = u64::try_from(self.lanes.len()).unwrap_or(1);
        &self.lanes[usize::try_from(hash % count).unwrap_or(0)]
    }

    /// Opens a lane with its prepared connection; nothing where none is prepared.
    pub fn open(&self, lane: &Lane, now: BootTime) -> Opened {
        // The count changes with the lane, under one lock, so that it cannot drift from the truth.
        let mut health = lock(&self.health);
        let opened = lane.open();
        if opened != Opened::Nothing {
            health.built += 1;
            health.reconnects = health.built.saturating_sub(u64::try_from(self.lanes.len()).unwrap_or(u64::MAX));
            health.refusal = None;
        }
        if opened == Opened::New {
            health.open += 1;
            if health.open == self.lanes.len() {
                health.since = now;
            }
        }
        opened
    }

    /// Closes a lane, see [`Lane::close`].
    pub fn close(&self, lane: &Lane, generation: Option<u64>, now: BootTime) {
        let mut health = lock(&self.health);
        if lane.close(generation) {
            if health.open == self.lanes.len() {
                health.since = now;
            }
            health.open = health.open.saturating_sub(1);
        }
    }

    /// Notes why a connection could not be built or kept.
    pub fn refuse(&self, error: Unreachable) {
        let mut health = lock(&self.health);
        health.last_error = Some(error.kind);
        health.refusal = Some(error);
    }

    /// Notes what the server says of itself.
    pub fn learn(&self, server: ServerInfo) {
        self.unfit.store(server.findings.iter().any(|f| f.removes_vote()), Ordering::Relaxed);
        lock(&self.health).server = server;
    }

    /// Whether a finding takes the vote away.
    pub fn is_unfit(&self) -> bool {
        self.unfit.load(Ordering::Relaxed)
    }

    /// A copy of what is known, and whether every lane is open.
    pub fn health(&self) -> (Health, bool) {
        let health = lock(&self.health).clone();
        let connected = health.open == self.lanes.len();
        (health, connected)
    }

    /// Counts an error of a call.
    pub fn count(&self, kind: UnreachableKind) {
        if let Some(at) = UnreachableKind::ALL.iter().position(|k| *k == kind) {
            self.errors[at].fetch_add(1, Ordering::Relaxed);
        }
        lock(&self.health).last_error = Some(kind);
    }

    /// Errors of calls so far.
    pub fn errors(&self) -> [(UnreachableKind, u64); UnreachableKind::ALL.len()] {
        let mut counts = UnreachableKind::ALL.map(|kind| (kind, 0));
        for (count, error) in counts.iter_mut().zip(&self.errors) {
            count.1 = error.load(Ordering::Relaxed);
        }
        counts
    }

    /// A place among the `limit` calls that may be under way; `None` where all are taken.
    pub fn enter(&self, limit: usize) -> Option<InFlight<'_>> {
        let before = self.in_flight.fetch_add(1, Ordering::Relaxed);
        let place = InFlight(&self.in_flight);
        (before < limit).then_some(place)
    }
}

/// One call under way; left on drop.
#[derive(Debug)]
pub struct InFlight<'a>(&'a AtomicUsize);

impl Drop for InFlight<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// No holder of these locks can leave half a change behind, so a poisoned one is as good as any.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn everything_about_a_key_takes_one_lane_and_keys_spread() {
        let lanes = Lanes::new(4, BootTime::default());
        let lane_of = |key: &str| std::ptr::from_ref(lanes.of_key(key)) as usize;
        assert_eq!(lane_of("deploy/prod"), lane_of("deploy/prod"));
        let used: std::collections::HashSet<usize> = (0..100).map(|i| lane_of(&format!("job-{i}"))).collect();
        assert_eq!(used.len(), 4);
    }

    #[test]
    fn a_closed_lane_takes_no_request() {
        let lane = Lane::default();
        assert_eq!(lane.leave(RequestTime(1), Arc::new(Request::Probe), 8).err(), Some(Refused::Closed));
        assert!(lane.take_turn(8).is_none());
    }

    #[test]
    fn places_are_bounded_and_come_back() {
        let lanes = Lanes::new(1, BootTime::default());
        let held: Vec<_> = (0..3).map_while(|_| lanes.enter(2)).collect();
        assert_eq!(held.len(), 2);
        drop(held);
        assert!(lanes.enter(2).is_some());
    }

    #[test]
    fn errors_are_counted_by_kind() {
        let lanes = Lanes::new(1, BootTime::default());
        lanes.count(UnreachableKind::Full);
        lanes.count(UnreachableKind::Full);
        assert!(lanes.errors().contains(&(UnreachableKind::Full, 2)));
        assert_eq!(lanes.errors().iter().map(|(_, n)| n).sum::<u64>(), 2);
        assert_eq!(lanes.health().0.last_error, Some(UnreachableKind::Full));
    }
}
