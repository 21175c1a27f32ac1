//! The queue of a connection: requests that wait to be sent on it, each with the caller that waits for the answer.

use std::sync::Arc;
use std::task::Context;

use deadpool_redis::redis::{RedisError, Value};
use futures_util::task::AtomicWaker;
use parking_lot::Mutex;
use tokio::sync::oneshot;

use crate::protocol::{NodeResult, Request, RequestStamp, Unreachable, UnreachableKind};

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
    /// Enqueues a request for the next batch, see [`ConnectionSlot::enqueue`](super::connections::ConnectionSlot::enqueue).
    pub(super) fn push(
        &self,
        stamp: RequestStamp,
        request: Arc<Request>,
        limit: usize,
    ) -> Result<oneshot::Receiver<NodeResult>, EnqueueError> {
        let mut waiting = self.waiting.lock();
        if waiting.is_ended {
            return Err(EnqueueError::NotConnected);
        }
        if waiting.requests.len() >= limit {
            waiting.requests.retain(|pending| !pending.is_abandoned());
        }
        if waiting.requests.len() >= limit {
            return Err(EnqueueError::QueueFull);
        }
        let (pending, answer) = PendingRequest::new(stamp, request);
        waiting.requests.push(pending);
        let is_first = waiting.requests.len() == 1;
        drop(waiting);
        if is_first {
            self.waker.wake();
        }
        Ok(answer)
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
            all if all <= max => std::mem::take(&mut waiting.requests),
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
    /// When its round began, and in which view.
    pub stamp: RequestStamp,
    pub request: Arc<Request>,
    caller: Option<oneshot::Sender<NodeResult>>,
    is_sent: bool,
}

impl PendingRequest {
    /// The request, and the receiver of its answer.
    pub(super) fn new(stamp: RequestStamp, request: Arc<Request>) -> (Self, oneshot::Receiver<NodeResult>) {
        let (caller, answer) = oneshot::channel();
        (Self { stamp, request, caller: Some(caller), is_sent: false }, answer)
    }

    /// The caller no longer waits for the answer.
    pub(super) fn is_abandoned(&self) -> bool {
        self.caller.as_ref().is_none_or(oneshot::Sender::is_closed)
    }

    /// Marks the request as sent: from now on it may take effect.
    pub(super) fn sent(&mut self) {
        self.is_sent = true;
    }

    /// Sends the answer to the caller, if it still waits.
    pub(super) fn answer(mut self, answer: NodeResult) {
        if let Some(caller) = self.caller.take() {
            let _ = caller.send(answer);
        }
    }
}

impl Drop for PendingRequest {
    fn drop(&mut self) {
        let Some(caller) = self.caller.take() else { return };
        let kind = if self.is_sent { UnreachableKind::Broken } else { UnreachableKind::Disconnected };
        let _ = caller.send(Err(Unreachable::new(kind, "the connection to the node was closed")));
    }
}

/// Why a request was not enqueued.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum EnqueueError {
    /// There is no connection.
    NotConnected,
    /// The queue is full.
    QueueFull,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::RequestTime;

    /// A cancel follows only where a request may have taken effect: it must never be said of a sent one that it did not.
    #[test]
    fn a_request_that_is_dropped_is_answered_by_whether_it_was_sent() {
        for (is_sent, expected) in [(false, UnreachableKind::Disconnected), (true, UnreachableKind::Broken)] {
            let (mut pending, mut answer) = PendingRequest::new(RequestTime(1).into(), Arc::new(Request::probe()));
            if is_sent {
                pending.sent();
            }
            drop(pending);
            assert_eq!(answer.try_recv().expect("an answer").map_err(|error| error.kind), Err(expected));
        }
    }
}
