//! The queue of a connection: requests that wait to be sent on it, each with the caller that waits for the answer.

use std::sync::Arc;
use std::task::Context;

use deadpool_redis::redis::{RedisError, Value};
use futures_util::task::AtomicWaker;
use parking_lot::Mutex;
use tokio::sync::oneshot;

use super::connections::NodeConnections;
use super::ended_calls::EndedCalls;
use crate::protocol::{NodeResult, Request, RequestStamp, Unreachable, UnreachableKind};
use crate::redlock::answers::AnswerSlot;
use crate::redlock::clock::{BootTime, Clock, SystemClock};

/// The requests and commands that wait to be sent on one connection.
#[derive(Debug, Default)]
pub(super) struct ConnectionQueue {
    waiting: Mutex<Waiting>,
    /// Wakes the driver of the connection.
    waker: AtomicWaker,
}

/// The content of a connection's queue.
#[derive(Debug, Default)]
struct Waiting {
    requests: Vec<PendingRequest>,
    commands: Vec<PackedCommand>,
    /// Nothing is sent any more.
    is_ended: bool,
}

/// A command of the supervisor, and the receiver of its reply. At most one check and one read of the server checks.
pub(super) type PackedCommand = (Vec<u8>, oneshot::Sender<Result<Value, RedisError>>);

impl ConnectionQueue {
    /// Enqueues a request for the next batch. Errors: the connection has ended; the request is returned.
    pub(super) fn push(&self, pending: PendingRequest) -> Result<(), PendingRequest> {
        let mut waiting = self.waiting.lock();
        if waiting.is_ended {
            return Err(pending);
        }
        waiting.requests.push(pending);
        let is_first = waiting.requests.len() == 1;
        drop(waiting);
        if is_first {
            self.waker.wake();
        }
        Ok(())
    }

    /// Whether nothing waits, and more may be sent.
    pub(super) fn is_clear(&self) -> bool {
        let waiting = self.waiting.lock();
        waiting.requests.is_empty() && waiting.commands.is_empty() && !waiting.is_ended
    }

    /// Drops the requests whose answers nobody needs any more.
    pub(super) fn drop_abandoned(&self, now: BootTime) {
        let mut waiting = self.waiting.lock();
        let (abandoned, requests) =
            std::mem::take(&mut waiting.requests).into_iter().partition::<Vec<_>, _>(|one| one.is_abandoned(now));
        waiting.requests = requests;
        drop(waiting);
        drop(abandoned);
    }

    /// Sends a command apart from the queued requests. `caller` is dropped if the connection has ended or ends.
    pub(super) fn push_command(&self, packed: Vec<u8>, caller: oneshot::Sender<Result<Value, RedisError>>) {
        let mut waiting = self.waiting.lock();
        if !waiting.is_ended {
            waiting.commands.push((packed, caller));
        }
        drop(waiting);
        self.waker.wake();
    }

    /// Takes at most `max` requests, the oldest first, and all commands; `None` once the connection was closed. The task is
    /// woken when there is more to take.
    pub(super) fn drain(&self, max: usize, cx: &Context<'_>) -> Option<(Vec<PendingRequest>, Vec<PackedCommand>)> {
        self.waker.register(cx.waker());
        let mut waiting = self.waiting.lock();
        let requests = match waiting.requests.len() {
            // The next ones are about as many.
            all if all <= max => std::mem::replace(&mut waiting.requests, Vec::with_capacity(all)),
            _ => waiting.requests.drain(..max).collect(),
        };
        (!waiting.is_ended).then(|| (requests, std::mem::take(&mut waiting.commands)))
    }

    /// Ends sending: waiting requests are answered as never sent.
    pub(super) fn end(&self) {
        let mut waiting = self.waiting.lock();
        waiting.is_ended = true;
        // Dropped outside the lock: callers may be woken.
        let dropped = (std::mem::take(&mut waiting.requests), std::mem::take(&mut waiting.commands));
        drop(waiting);
        drop(dropped);
        self.waker.wake();
    }
}

/// A request without an answer yet. If it is dropped, its caller learns that it was never sent or, once it was sent, that it may
/// have taken effect.
#[derive(Debug)]
pub(super) struct PendingRequest {
    /// `None` once it was answered.
    slot: Option<AnswerSlot>,
    connections: Arc<NodeConnections>,
    is_sent: bool,
}

impl PendingRequest {
    /// A request, which is counted as a call in flight on these connections.
    pub(super) fn new(slot: AnswerSlot, connections: Arc<NodeConnections>) -> Self {
        Self { slot: Some(slot), connections, is_sent: false }
    }

    fn slot(&self) -> &AnswerSlot {
        self.slot.as_ref().expect("not answered: answering takes the request")
    }

    /// When its round began, and in which view.
    pub(super) fn stamp(&self) -> &RequestStamp {
        self.slot().stamp()
    }

    pub(super) fn request(&self) -> &Arc<Request> {
        self.slot().request()
    }

    /// Nobody needs the answer any more.
    pub(super) fn is_abandoned(&self, now: BootTime) -> bool {
        self.slot().is_abandoned(now)
    }

    /// Marks the request as sent: from now on it may take effect.
    pub(super) fn sent(&mut self) {
        self.is_sent = true;
    }

    /// Answers the caller, if it still waits.
    pub(super) fn answer(self, answer: NodeResult, now: BootTime) {
        let connections = Arc::clone(&self.connections);
        self.answer_with(answer, &mut EndedCalls::new(&connections, now));
    }

    /// As [`Self::answer`], one of several that are answered at the same time.
    pub(super) fn answer_with(mut self, answer: NodeResult, ended: &mut EndedCalls<'_>) {
        self.end(answer, ended);
    }

    fn end(&mut self, answer: NodeResult, ended: &mut EndedCalls<'_>) {
        if let Some(slot) = self.slot.take() {
            ended.end(&slot, answer.as_ref().map(drop).map_err(|error| error.kind));
            slot.put(answer);
        }
    }
}

impl Drop for PendingRequest {
    fn drop(&mut self) {
        if self.slot.is_some() {
            let kind = if self.is_sent { UnreachableKind::Broken } else { UnreachableKind::Disconnected };
            let answer = Err(Unreachable::new(kind, "the connection to the node was closed"));
            let connections = Arc::clone(&self.connections);
            self.end(answer, &mut EndedCalls::new(&connections, SystemClock.now()));
        }
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::protocol::RequestTime;
    use crate::redlock::answers::Answers;

    /// A request on these connections, and its answer.
    pub(in crate::nodes::redis) fn pending(
        stamp: RequestStamp,
        request: Request,
        connections: &Arc<NodeConnections>,
    ) -> (PendingRequest, Answers) {
        let never = BootTime::from_nanos(u64::MAX);
        let (answers, mut slots) = (Answers::new(stamp, Arc::new(request), never, 1), Vec::new());
        assert!(answers.ask(0, BootTime::default(), |slot| {
            slots.push(slot);
            Ok(())
        }));
        (PendingRequest::new(slots.remove(0), Arc::clone(connections)), answers)
    }

    /// The answer that has arrived.
    pub(in crate::nodes::redis) fn answer(answers: &Answers) -> Option<NodeResult> {
        let mut arrived = std::collections::VecDeque::new();
        answers.poll_take(&Context::from_waker(std::task::Waker::noop()), 1, &mut arrived);
        arrived.pop_front().map(|(_, answer)| answer)
    }

    /// A cancel follows only where a request may have taken effect: it must never be said of a sent one that it did not.
    #[test]
    fn a_request_that_is_dropped_is_answered_by_whether_it_was_sent() {
        let connections = Arc::new(NodeConnections::new((1, 1), None, BootTime::default()));
        for (is_sent, expected) in [(false, UnreachableKind::Disconnected), (true, UnreachableKind::Broken)] {
            let (mut pending, answers) = pending(RequestTime(1).into(), Request::probe(), &connections);
            if is_sent {
                pending.sent();
            }
            drop(pending);
            assert_eq!(answer(&answers).expect("an answer").map_err(|error| error.kind), Err(expected));
        }
    }
}
