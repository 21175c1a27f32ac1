//! The connections of one node, each with its queue of requests, and their shared state. The supervisor inserts connections,
//! callers enqueue requests, and the connection's driver takes them out.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use deadpool_redis::redis::{Cmd, RedisError, Value};
use parking_lot::Mutex;
use tokio::sync::{Notify, oneshot};
use tokio::task::JoinSet;

use super::disk_policy::DiskPolicy;
use super::errors;
use super::pipeline::Pipeline;
use super::request_queue::PendingRequest;
use super::server_checks::ServerInfo;
use crate::nodes::call_observer::NodeObserver;
use crate::protocol::{Unreachable, UnreachableKind};
use crate::redlock::answers::AnswerSlot;
use crate::redlock::clock::BootTime;
use crate::types::NodeId;

/// A connection that has passed its hand-shake.
#[derive(Debug, Clone)]
pub(super) struct ActiveConnection {
    pub pipeline: Arc<Pipeline>,
    pub(super) _driver: DriverTask,
}

impl ActiveConnection {
    /// Sends a command apart from the queued requests.
    ///
    /// Errors: the connection's and the server's. Cancel: the command may be sent.
    pub(super) async fn ask(&self, command: &Cmd) -> Result<Value, RedisError> {
        let (caller, answer) = oneshot::channel();
        self.pipeline.queue().push_command(command.get_packed_command(), caller);
        answer.await.unwrap_or_else(|_| Err(errors::lost()))
    }
}

/// The task that reads and writes for a connection. It ends when the last clone is dropped.
pub(super) type DriverTask = Arc<JoinSet<()>>;

/// The place of one connection.
#[derive(Debug, Default)]
pub(super) struct ConnectionSlot {
    active: Mutex<Option<ActiveConnection>>,
    closed: Notify,
}

impl ConnectionSlot {
    /// The active connection.
    pub(super) fn active(&self) -> Option<ActiveConnection> {
        self.active.lock().clone()
    }

    /// Whether there is an active connection.
    pub(super) fn is_active(&self) -> bool {
        self.active.lock().is_some()
    }

    /// Sends a request, see [`Pipeline::send`]. Errors: there is no connection; the request is returned.
    pub(super) fn send(&self, pending: PendingRequest) -> Result<(), PendingRequest> {
        // Not sent under the lock, which is also taken to close the connection.
        let pipeline = self.active.lock().as_ref().map(|active| Arc::clone(&active.pipeline));
        match pipeline {
            Some(pipeline) => pipeline.send(pending),
            None => Err(pending),
        }
    }

    /// Removes and returns the active connection, if it has this generation (`None`: any), and wakes the task that maintains it.
    fn close(&self, generation: Option<u64>) -> Option<ActiveConnection> {
        let closed =
            self.active.lock().take_if(|active| generation.is_none_or(|one| one == active.pipeline.generation()))?;
        self.closed.notify_one();
        Some(closed)
    }

    /// Resolves once the active connection was closed. For one waiting task. Cancel: the wake-up is kept for the next wait.
    pub(super) async fn closed(&self) {
        self.closed.notified().await;
    }
}

/// Who is notified of each call, and the node's name for it.
pub(super) type Observer = (NodeId, Arc<dyn NodeObserver>);

/// State that a node's callers and its supervisor share.
pub(super) struct NodeConnections {
    /// Those of each thread, one after the other.
    slots: Vec<ConnectionSlot>,
    per_thread: usize,
    generations: AtomicU64,
    is_unsuitable: AtomicBool,
    in_flight: AtomicUsize,
    /// How long callers wait for an answer. Microseconds.
    timeout_us: AtomicU64,
    observer: Option<Observer>,
    errors: [AtomicU64; UnreachableKind::ALL.len()],
    status: Mutex<ConnectionStatus>,
    reconnected: Notify,
}

/// The last known state of the server and of the connections to it.
#[derive(Debug, Clone)]
pub(super) struct ConnectionStatus {
    /// Time of the last change between all connected and not all connected.
    pub since: BootTime,
    /// Connections built beyond the first of each slot.
    pub reconnects: u64,
    /// As of the last `INFO`.
    pub server: ServerInfo,
    /// Why the last attempt to connect failed; `None` after a success.
    pub connect_error: Option<Unreachable>,
    /// Why this instance may not subscribe or publish on the node, if it may not.
    pub notices_error: Option<Unreachable>,
    /// Kind of the last error of a call or of an attempt to connect.
    pub last_error: Option<UnreachableKind>,
    /// Whether the server syncs each write, as read on a connection that is open.
    pub policy: Option<DiskPolicy>,
    built: u64,
    open: usize,
}

impl fmt::Debug for NodeConnections {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NodeConnections").field("slots", &self.slots).finish_non_exhaustive()
    }
}

impl NodeConnections {
    /// For so many threads, so many slots each without connections, as of `now`.
    pub(super) fn new((threads, per_thread): (usize, usize), observer: Option<Observer>, now: BootTime) -> Self {
        let (threads, per_thread) = (threads.max(1), per_thread.max(1));
        let status = ConnectionStatus {
            since: now,
            reconnects: 0,
            server: ServerInfo::default(),
            connect_error: None,
            notices_error: None,
            last_error: None,
            policy: None,
            built: 0,
            open: 0,
        };
        Self {
            slots: (0..threads * per_thread).map(|_| ConnectionSlot::default()).collect(),
            per_thread,
            generations: AtomicU64::new(0),
            is_unsuitable: AtomicBool::new(false),
            in_flight: AtomicUsize::new(0),
            timeout_us: AtomicU64::new(u64::MAX),
            observer,
            errors: Default::default(),
            status: Mutex::new(status),
            reconnected: Notify::new(),
        }
    }

    pub(super) fn slots(&self) -> &[ConnectionSlot] {
        &self.slots
    }

    /// The thread that uses the slot with this index.
    pub(super) fn thread_of(&self, slot: usize) -> usize {
        slot / self.per_thread
    }

    /// A number for the next connection.
    pub(super) fn next_generation(&self) -> u64 {
        self.generations.fetch_add(1, Ordering::Relaxed)
    }

    /// The slot of a thread that a key has: the same for all requests of the thread about one resource, which keeps their order.
    pub(super) fn slot_of(&self, key: &str, thread: usize) -> &ConnectionSlot {
        let first = thread * self.per_thread;
        let slots = self.slots.get(first..first + self.per_thread).unwrap_or(&self.slots);
        if let [only] = slots {
            return only;
        }
        // FNV-1a: fast and evenly distributed. It need not resist chosen keys.
        let hash =
            key.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |h, b| (h ^ u64::from(b)).wrapping_mul(0x0100_0000_01b3));
        let count = u64::try_from(slots.len()).unwrap_or(1);
        &slots[usize::try_from(hash % count).unwrap_or(0)]
    }

    /// Puts a connection into a slot that has none.
    pub(super) fn activate(&self, slot: &ConnectionSlot, active: ActiveConnection, now: BootTime) {
        // One lock for the slot and the count of open connections, so that they agree.
        let mut status = self.status.lock();
        status.built += 1;
        status.reconnects = status.built.saturating_sub(u64::try_from(self.slots.len()).unwrap_or(u64::MAX));
        status.connect_error = None;
        if slot.active.lock().replace(active).is_none() {
            status.open += 1;
            if status.open == self.slots.len() {
                status.since = now;
                self.reconnected.notify_one();
            }
        }
    }

    /// Resolves when all connections are open again after some were not. For one waiting task. Cancel: the wake-up is kept for
    /// the next wait.
    pub(super) async fn reconnected(&self) {
        self.reconnected.notified().await;
    }

    /// Closes a slot's connection if it has this generation (`None`: any).
    pub(super) fn close(&self, slot: &ConnectionSlot, generation: Option<u64>, now: BootTime) {
        let mut status = self.status.lock();
        let Some(closed) = slot.close(generation) else { return };
        if status.open == self.slots.len() {
            status.since = now;
        }
        status.open = status.open.saturating_sub(1);
        // The next process may have other settings.
        status.policy = None;
        drop(status);
        // Ended here, because the driver may have ended already; outside the lock, because the calls that end are counted.
        closed.pipeline.queue().end();
    }

    /// Closes all connections: the server is no master, or has changed, so its memory is uncertain. They are built again once a
    /// hand-shake finds a master.
    pub(super) fn close_all(&self, why: Unreachable, now: BootTime) {
        self.record_connect_error(why);
        self.slots.iter().for_each(|slot| self.close(slot, None, now));
    }

    /// Records why this instance gets no notices from the node; `None`: it gets them, or this is not known.
    pub(super) fn record_notices_error(&self, why: Option<Unreachable>) {
        self.status.lock().notices_error = why;
    }

    /// Records why a connection could not be built or kept.
    pub(super) fn record_connect_error(&self, error: Unreachable) {
        let mut status = self.status.lock();
        status.last_error = Some(error.kind);
        status.connect_error = Some(error);
    }

    /// Records what the server reports about itself.
    pub(super) fn record_server(&self, server: ServerInfo) {
        self.is_unsuitable.store(server.findings.iter().any(|f| f.removes_vote()), Ordering::Relaxed);
        self.status.lock().server = server;
    }

    /// Records what was read on the connection with this generation, if that is open.
    pub(super) fn record_policy(&self, generation: u64, policy: DiskPolicy) {
        let mut status = self.status.lock();
        let is_its =
            |slot: &ConnectionSlot| slot.active.lock().as_ref().is_some_and(|a| a.pipeline.generation() == generation);
        if self.slots.iter().any(is_its) {
            status.policy = Some(policy);
        }
    }

    /// What was read last.
    pub(super) fn policy(&self) -> Option<DiskPolicy> {
        self.status.lock().policy.clone()
    }

    /// Whether a finding about the server removes the node's vote.
    pub(super) fn is_unsuitable(&self) -> bool {
        self.is_unsuitable.load(Ordering::Relaxed)
    }

    /// A copy of the status, and whether every slot has a connection.
    pub(super) fn status(&self) -> (ConnectionStatus, bool) {
        let status = self.status.lock().clone();
        let is_connected = status.open == self.slots.len();
        (status, is_connected)
    }

    /// Counts an error of a call.
    pub(super) fn count_error(&self, kind: UnreachableKind) {
        if let Some(index) = UnreachableKind::ALL.iter().position(|k| *k == kind) {
            self.errors[index].fetch_add(1, Ordering::Relaxed);
        }
        self.status.lock().last_error = Some(kind);
    }

    /// Errors of calls so far.
    pub(super) fn errors(&self) -> [(UnreachableKind, u64); UnreachableKind::ALL.len()] {
        let mut counts = UnreachableKind::ALL.map(|kind| (kind, 0));
        for (count, error) in counts.iter_mut().zip(&self.errors) {
            count.1 = error.load(Ordering::Relaxed);
        }
        counts
    }

    /// Follows how long callers wait for an answer.
    pub(super) fn set_timeout(&self, timeout: Duration) {
        self.timeout_us.store(micros(timeout), Ordering::Relaxed);
    }

    /// Counts a call in flight, if there are fewer than `limit`. Requests that wait unsent, and whose answers nobody needs any more,
    /// give their places up.
    pub(super) fn begin_call(&self, limit: usize, now: BootTime) -> bool {
        let begin = || {
            let is_within = self.in_flight.fetch_add(1, Ordering::Relaxed) < limit;
            if !is_within {
                self.in_flight.fetch_sub(1, Ordering::Relaxed);
            }
            is_within
        };
        begin() || {
            self.slots
                .iter()
                .filter_map(ConnectionSlot::active)
                .for_each(|active| active.pipeline.queue().drop_abandoned(now));
            begin()
        }
    }

    /// Ends so many calls in flight.
    pub(super) fn end_calls(&self, calls: usize) {
        self.in_flight.fetch_sub(calls, Ordering::Relaxed);
    }

    /// The outcome of a call, as it counts, and how long it took. Without a caller it is a timeout if it took too long; otherwise the
    /// caller has gone, which is no error of the node: `None`.
    pub(super) fn outcome(
        &self,
        slot: &AnswerSlot,
        outcome: Result<(), UnreachableKind>,
        now: BootTime,
    ) -> Option<(Result<(), UnreachableKind>, Duration)> {
        let took = now.since(slot.sent_at());
        match slot.is_abandoned(now) {
            false => Some((outcome, took)),
            true if micros(took) >= self.timeout_us.load(Ordering::Relaxed) => {
                Some((Err(UnreachableKind::Timeout), took))
            }
            true => None,
        }
    }

    /// Counts a call, see [`Self::outcome`].
    pub(super) fn count(&self, slot: &AnswerSlot, outcome: Result<(), UnreachableKind>, now: BootTime) {
        if let Some((outcome, took)) = self.outcome(slot, outcome, now) {
            self.count_calls(slot.request().operation(), now, &[took], outcome);
        }
    }

    /// Counts calls of one operation that ended together, each with its duration.
    pub(super) fn count_calls(
        &self,
        operation: &'static str,
        now: BootTime,
        took: &[Duration],
        outcome: Result<(), UnreachableKind>,
    ) {
        if let Err(kind) = outcome {
            self.count_error(kind);
        }
        if let Some((id, observer)) = &self.observer {
            observer.calls_completed(id, operation, (now, took), outcome);
        }
    }
}

fn micros(span: Duration) -> u64 {
    u64::try_from(span.as_micros()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;
    use crate::nodes::redis::pipeline::tests::pipeline;
    use crate::nodes::redis::request_queue::tests::{answer, pending};
    use crate::protocol::{Request, RequestTime};

    #[test]
    fn each_key_has_one_connection_of_each_thread_and_keys_are_spread_over_all() {
        let connections = NodeConnections::new((2, 4), None, BootTime::default());
        let slot_of = |key: &str, thread| std::ptr::from_ref(connections.slot_of(key, thread)) as usize;
        assert_eq!(slot_of("deploy/prod", 1), slot_of("deploy/prod", 1));
        let used = |thread| -> HashSet<usize> { (0..100).map(|i| slot_of(&format!("job-{i}"), thread)).collect() };
        assert_eq!((used(0).len(), used(1).len(), used(0).union(&used(1)).count()), (4, 4, 8));
    }

    fn connections() -> Arc<NodeConnections> {
        Arc::new(NodeConnections::new((1, 1), None, BootTime::default()))
    }

    /// A closed connection takes no more requests, and its driver is notified.
    #[tokio::test]
    async fn what_waits_on_a_closed_connection_is_answered_as_never_sent() {
        let connections = connections();
        let (pipeline, _server) = pipeline(&connections, 7, 64);
        let slot = &connections.slots()[0];
        let probe = || pending(RequestTime(1).into(), Request::probe(), &connections);
        assert!(slot.send(probe().0).is_err(), "there is none");
        let active = ActiveConnection { pipeline: Arc::clone(&pipeline), _driver: Arc::new(JoinSet::new()) };
        connections.activate(slot, active.clone(), BootTime::default());
        let (waiting, answers) = probe();
        assert!(slot.send(waiting).is_ok());
        connections.close(slot, Some(6), BootTime::default());
        assert!(slot.is_active(), "it is of another generation");
        connections.close(slot, Some(7), BootTime::default());
        let kind = answer(&answers).expect("an answer").expect_err("not sent").kind;
        assert_eq!(kind, UnreachableKind::Disconnected);
        let cx = std::task::Context::from_waker(std::task::Waker::noop());
        assert!(pipeline.queue().drain(8, &cx).is_none());
        assert!(active.ask(&deadpool_redis::redis::cmd("PING")).await.is_err());
    }

    #[test]
    fn calls_in_flight_are_bounded_and_those_of_no_use_give_way() {
        let connections = connections();
        let (pipeline, _server) = pipeline(&connections, 7, 64);
        let active = ActiveConnection { pipeline, _driver: Arc::new(JoinSet::new()) };
        connections.activate(&connections.slots()[0], active, BootTime::default());
        let begin = || {
            connections.begin_call(2, BootTime::default()).then(|| {
                let (waiting, answers) = pending(RequestTime(1).into(), Request::probe(), &connections);
                assert!(connections.slots()[0].send(waiting).is_ok());
                answers
            })
        };
        let (first, _second) = (begin().expect("a place"), begin().expect("a place"));
        assert!(begin().is_none());
        drop(first);
        let third = begin().expect("the place of the first");
        assert!(begin().is_none());
        connections.close_all(Unreachable::new(UnreachableKind::Disconnected, "closed"), BootTime::default());
        assert!(answer(&third).is_some() && connections.begin_call(1, BootTime::default()));
    }

    #[test]
    fn a_call_without_a_caller_is_a_timeout_if_it_took_too_long() {
        let connections = connections();
        connections.set_timeout(Duration::from_millis(50));
        for (ms, timeouts) in [(49, 0), (50, 1)] {
            let (waiting, answers) = pending(RequestTime(1).into(), Request::probe(), &connections);
            drop(answers);
            waiting.answer(Ok(crate::protocol::Reply::Missing), BootTime::default().plus(Duration::from_millis(ms)));
            assert!(connections.errors().contains(&(UnreachableKind::Timeout, timeouts)), "{ms}");
        }
    }

    #[test]
    fn errors_are_counted_by_kind() {
        let connections = NodeConnections::new((1, 1), None, BootTime::default());
        connections.count_error(UnreachableKind::Full);
        connections.count_error(UnreachableKind::Full);
        assert!(connections.errors().contains(&(UnreachableKind::Full, 2)));
        assert_eq!(connections.errors().iter().map(|(_, n)| n).sum::<u64>(), 2);
        assert_eq!(connections.status().0.last_error, Some(UnreachableKind::Full));
    }
}
