//! Drives a connection: sends the queued requests, once per turn of the runtime, and answers them as the replies arrive, in the
//! order of the commands. One task per connection; where requests come one at a time, their callers write them.

use std::collections::VecDeque;
use std::fmt;
use std::future::poll_fn;
use std::io;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use deadpool_redis::redis::{RedisError, Value};
use parking_lot::Mutex;
use tokio::sync::oneshot;

use super::batcher::{CommandContext, batches, sendable};
use super::connections::NodeConnections;
use super::ended_calls::EndedCalls;
use super::errors;
use super::request_queue::{ConnectionQueue, PendingRequest};
use super::resp_connection::Wire;
use crate::protocol::commands::{self, ScriptRef};
use crate::protocol::{Reply, UnreachableKind};
use crate::redlock::clock::{Clock, SystemClock};

/// Maximum number of unanswered commands on a connection. Beyond it requests stay in the queue, so that a node that does not
/// answer is not sent requests whose callers will have given up.
const COMMANDS_MAX: usize = 1_024;
/// Maximum number of unwritten bytes, for the same reason.
const UNWRITTEN_BYTES_MAX: usize = 256 << 10;
/// Maximum number of unanswered commands beside which a caller writes its request: a node may still have to answer the acquire of
/// what is released.
const COMMANDS_BESIDE_MAX: usize = 1;

/// A command whose reply has not arrived.
enum Sent {
    Batch(Vec<PendingRequest>, ScriptRef),
    Command(oneshot::Sender<Result<Value, RedisError>>),
}

/// Where a connection belongs.
#[derive(Debug, Clone)]
pub(super) struct Place {
    pub context: Arc<CommandContext>,
    pub connections: Arc<NodeConnections>,
    /// Index of its slot.
    pub slot: usize,
    pub clock: SystemClock,
}

/// A connection after its hand-shake. Dropping it closes the connection; each caller's answer then depends on whether its request
/// was sent.
pub(super) struct Pipeline {
    queue: ConnectionQueue,
    place: Place,
    /// The process to which the connection is bound; empty: not known, each script reads it.
    run: Arc<str>,
    /// Distinguishes the successive connections of a slot.
    generation: u64,
    /// `None` once the connection has ended. The queue is locked after it.
    wired: Mutex<Option<Wired>>,
}

/// The socket, and what was sent on it.
struct Wired {
    wire: Wire,
    in_flight: VecDeque<Sent>,
    /// The last command was for one request alone.
    last_was_alone: bool,
    /// Wakes the connection's task. `None` before it first ran.
    waker: Option<Waker>,
}

impl fmt::Debug for Pipeline {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pipeline").field("generation", &self.generation).finish_non_exhaustive()
    }
}

impl Pipeline {
    /// The connection to the process `run`.
    pub(super) fn new(wire: Wire, place: Place, (run, generation): (Arc<str>, u64)) -> Arc<Self> {
        let (in_flight, queue) = (VecDeque::new(), ConnectionQueue::default());
        let wired = Wired { wire, in_flight, last_was_alone: true, waker: None };
        Arc::new(Self { queue, place, run, generation, wired: Mutex::new(Some(wired)) })
    }

    pub(super) fn queue(&self) -> &ConnectionQueue {
        &self.queue
    }

    pub(super) fn generation(&self) -> u64 {
        self.generation
    }

    /// Sends a request: at once where requests come one at a time, else with the next batch. Errors: the connection has ended; the
    /// request is returned.
    pub(super) fn send(&self, pending: PendingRequest) -> Result<(), PendingRequest> {
        // If it is locked, its task is at work, which sends what is queued.
        if let Some(mut wired) = self.wired.try_lock()
            && let Some(wired) = wired.as_mut().filter(|wired| wired.takes_callers())
            && pending.stamp().names(&self.place.context.id, &self.run)
            && self.queue.is_clear()
        {
            wired.send_now(self, pending);
            return Ok(());
        }
        self.queue.push(pending)
    }

    /// Runs until the connection breaks or is closed. Cancel: the connection is closed.
    pub(super) async fn run(self: Arc<Self>) {
        let _ending = Ending(&self);
        let poll = |cx: &mut Context<'_>| match self.wired.lock().as_mut() {
            Some(wired) => wired.poll(&self, cx),
            None => Poll::Ready(None),
        };
        let Some(error) = poll_fn(poll).await else { return };
        // Closed before any caller is answered, so that a repeated request does not get this connection.
        self.place.connections.record_connect_error(errors::of_connecting(&error));
        self.close();
        let (answer, now) = (errors::of_call(&error), self.place.clock.now());
        let sent = self.wired.lock().take().map(|wired| wired.in_flight).unwrap_or_default();
        for sent in sent {
            if let Sent::Batch(batch, _) = sent {
                batch.into_iter().for_each(|pending| pending.answer(Err(answer.clone()), now));
            }
        }
    }

    fn answer(&self, batch: Vec<PendingRequest>, value: &Value) {
        let (id, count, connections) = (&self.place.context.id, batch.len(), &self.place.connections);
        let mut ended = EndedCalls::new(connections, self.place.clock.now());
        for (index, pending) in batch.into_iter().enumerate() {
            let answer = commands::parse_in_batch(count, index, pending.request(), value);
            if matches!(&answer, Ok(Reply::Status(status)) if is_outdated(&self.run, &status.run)) {
                self.close();
            }
            let answer = pending.stamp().counted(id, &self.run, answer);
            pending.answer_with(answer, &mut ended);
        }
    }

    fn refuse(&self, batch: Vec<PendingRequest>, error: &RedisError) {
        if errors::breaks_connection(error) {
            self.close();
        }
        let (answer, now) = (errors::of_call(error), self.place.clock.now());
        if answer.kind == UnreachableKind::ReadOnly {
            self.place.connections.close_all(answer.clone(), now);
        }
        batch.into_iter().for_each(|pending| pending.answer(Err(answer.clone()), now));
    }

    fn close(&self) {
        let Place { connections, slot, clock, .. } = &self.place;
        if let Some(slot) = connections.slots().get(*slot) {
            connections.close(slot, Some(self.generation), clock.now());
        }
    }
}

/// Ends the connection when its task ends.
struct Ending<'a>(&'a Pipeline);

impl Drop for Ending<'_> {
    fn drop(&mut self) {
        self.0.queue.end();
        // Dropped outside the lock: callers may be woken.
        let wired = self.0.wired.lock().take();
        drop(wired);
    }
}

impl Wired {
    /// Whether a caller may write by itself: others that come in the same turn of the runtime would share its command otherwise.
    fn takes_callers(&self) -> bool {
        self.last_was_alone
            && self.waker.is_some()
            && self.wire.unwritten() == 0
            && self.in_flight.len() <= COMMANDS_BESIDE_MAX
    }

    fn send_now(&mut self, of: &Pipeline, pending: PendingRequest) {
        self.send(of, vec![pending], ScriptRef::Hash);
        let Some(waker) = &self.waker else { return };
        // The task goes on writing what the socket does not take, and meets an error again.
        if let Poll::Ready(Err(_)) = self.wire.poll_flush(&mut Context::from_waker(waker)) {
            waker.wake_by_ref();
        }
    }

    /// Resolves once the connection is unusable; `None`: it was closed.
    fn poll(&mut self, of: &Pipeline, cx: &mut Context<'_>) -> Poll<Option<RedisError>> {
        match &mut self.waker {
            Some(waker) => waker.clone_from(cx.waker()),
            none => *none = Some(cx.waker().clone()),
        }
        loop {
            match self.wire.poll_reply(cx) {
                Poll::Ready(Ok(value)) => {
                    if let Err(error) = self.receive(of, value) {
                        return Poll::Ready(Some(error));
                    }
                }
                Poll::Ready(Err(error)) => return Poll::Ready(Some(error)),
                Poll::Pending => break,
            }
        }
        if let Poll::Ready(Err(error)) = self.wire.poll_flush(cx) {
            return Poll::Ready(Some(error.into()));
        }
        let is_behind = self.wire.unwritten() > UNWRITTEN_BYTES_MAX;
        let capacity = if is_behind { 0 } else { COMMANDS_MAX.saturating_sub(self.in_flight.len()) };
        let Some((requests, commands)) = of.queue.drain(capacity, cx) else { return Poll::Ready(None) };
        for (packed, caller) in commands {
            self.wire.out().extend_from_slice(&packed);
            self.in_flight.push_back(Sent::Command(caller));
        }
        if !requests.is_empty() {
            let now = of.place.clock.now();
            let requests = sendable(&of.place.context.id, &of.run, requests, now);
            batches(requests, now).into_iter().for_each(|batch| self.send(of, batch, ScriptRef::Hash));
        }
        match self.wire.poll_flush(cx) {
            Poll::Ready(Err(error)) => Poll::Ready(Some(error.into())),
            _ => Poll::Pending,
        }
    }

    fn send(&mut self, of: &Pipeline, mut batch: Vec<PendingRequest>, script_ref: ScriptRef) {
        batch.iter_mut().for_each(PendingRequest::sent);
        of.place.context.write_command(self.wire.out(), &of.run, &batch, script_ref);
        self.last_was_alone = batch.len() == 1;
        self.in_flight.push_back(Sent::Batch(batch, script_ref));
    }

    /// Takes the reply to the oldest command. Errors: no command is unanswered; the server's error if it sent one.
    ///
    /// A batch whose script the node did not know (after a `SCRIPT FLUSH`) is sent once more, with the script's text.
    /// That one repeat is safe: `NOSCRIPT` means that the first command did not run. Commands sent after the
    /// first may overtake it. An extend, a repair or an acquire that a release or a cancel overtook finds
    /// the tombstone and changes nothing; two extends may swap, and neither shortens.
    fn receive(&mut self, of: &Pipeline, value: Value) -> Result<(), RedisError> {
        let (sent, outcome) = (self.in_flight.pop_front(), value.extract_error());
        match (sent, outcome) {
            (None, outcome) => {
                let unasked = io::Error::new(io::ErrorKind::InvalidData, "replies come that were not asked for");
                return Err(outcome.err().unwrap_or_else(|| unasked.into()));
            }
            // Fails if the caller has gone, which does not matter.
            (Some(Sent::Command(caller)), outcome) => drop(caller.send(outcome)),
            (Some(Sent::Batch(batch, ScriptRef::Hash)), Err(error)) if errors::is_no_script(&error) => {
                self.send(of, batch, ScriptRef::Body);
            }
            (Some(Sent::Batch(batch, _)), Ok(value)) => of.answer(batch, &value),
            (Some(Sent::Batch(batch, _)), Err(error)) => of.refuse(batch, &error),
        }
        Ok(())
    }
}

/// Whether the server has become another run since the connection's hand-shake, as by a failover to a replica and back.
fn is_outdated(bound: &str, run: &str) -> bool {
    !bound.is_empty() && bound != run
}

#[cfg(test)]
pub(super) mod tests {
    use std::io::Cursor;
    use std::time::Duration;

    use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream, duplex};

    use super::*;
    use crate::nodes::redis::batcher::tests::context;
    use crate::nodes::redis::request_queue::tests::{answer, pending};
    use crate::nodes::redis::socket::Socket;
    use crate::protocol::{Request, RequestTime};
    use crate::redlock::answers::Answers;
    use crate::redlock::clock::BootTime;

    /// A connection of the first slot, and the server's end of its socket, which takes so many bytes.
    pub(in crate::nodes::redis) fn pipeline(
        connections: &Arc<NodeConnections>,
        generation: u64,
        bytes: usize,
    ) -> (Arc<Pipeline>, DuplexStream) {
        let (client, server) = duplex(bytes);
        (pipeline_on(Box::new(client), connections, generation), server)
    }

    fn pipeline_on(socket: Box<dyn Socket>, connections: &Arc<NodeConnections>, generation: u64) -> Arc<Pipeline> {
        let (context, connections) = (Arc::new(context()), Arc::clone(connections));
        let place = Place { context, connections, slot: 0, clock: SystemClock };
        Pipeline::new(Wire::new(socket), place, ("".into(), generation))
    }

    /// A running connection whose task waits for replies, and the server's end.
    async fn running(bytes: usize) -> (Arc<NodeConnections>, Arc<Pipeline>, DuplexStream) {
        let connections = Arc::new(NodeConnections::new((1, 1), None, BootTime::default()));
        let (pipeline, server) = pipeline(&connections, 1, bytes);
        tokio::spawn(Arc::clone(&pipeline).run());
        tokio::task::yield_now().await;
        (connections, pipeline, server)
    }

    fn send(pipeline: &Pipeline, connections: &Arc<NodeConnections>) -> Answers {
        let (request, answers) = pending(RequestTime(1).into(), Request::probe(), connections);
        assert!(pipeline.send(request).is_ok());
        answers
    }

    /// How many commands have arrived.
    fn arrived(server: &mut DuplexStream) -> usize {
        let (mut bytes, mut cx) = (Vec::with_capacity(1 << 16), Context::from_waker(Waker::noop()));
        let mut read = std::pin::pin!(server.read_buf(&mut bytes));
        let _ = read.as_mut().poll(&mut cx);
        String::from_utf8_lossy(&bytes).matches("EVALSHA").count()
    }

    #[tokio::test]
    async fn requests_that_come_one_at_a_time_are_written_by_their_callers() {
        let (connections, pipeline, mut server) = running(1 << 16).await;
        let first = send(&pipeline, &connections);
        assert_eq!(arrived(&mut server), 1, "the task has not run");
        let _second = send(&pipeline, &connections);
        assert_eq!(arrived(&mut server), 1, "one is unanswered");
        let _others = [send(&pipeline, &connections), send(&pipeline, &connections)];
        assert_eq!(arrived(&mut server), 0, "two are unanswered: these may share a turn with others");
        tokio::task::yield_now().await;
        assert_eq!(arrived(&mut server), 2);
        server.write_all(b":1\r\n:1\r\n").await.expect("space");
        tokio::task::yield_now().await;
        assert!(answer(&first).is_some());
    }

    #[tokio::test]
    async fn a_request_is_sent_after_what_is_queued() {
        let (connections, pipeline, mut server) = running(1 << 16).await;
        pipeline.queue().push_command(b"PING EVALSHA ".to_vec(), oneshot::channel().0);
        let _answers = send(&pipeline, &connections);
        assert_eq!(arrived(&mut server), 0, "the task has not run");
        tokio::task::yield_now().await;
        assert_eq!(arrived(&mut server), 2);
    }

    #[tokio::test(start_paused = true)]
    async fn what_the_socket_does_not_take_is_written_by_the_task() {
        let (connections, pipeline, mut server) = running(64).await;
        let answers = send(&pipeline, &connections);
        let written = async {
            let mut command = Vec::new();
            while !String::from_utf8_lossy(&command).contains("EVALSHA") || !command.ends_with(b"\r\n") {
                server.read_buf(&mut command).await.expect("open");
            }
        };
        tokio::time::timeout(Duration::from_secs(1), written).await.expect("the task goes on writing");
        server.write_all(b":1\r\n").await.expect("space");
        tokio::task::yield_now().await;
        assert!(answer(&answers).is_some());
    }

    #[tokio::test]
    async fn a_caller_whose_write_fails_learns_that_the_request_may_have_been_sent() {
        // Reading goes on: only the write says that the connection is lost.
        let connections = Arc::new(NodeConnections::new((1, 1), None, BootTime::default()));
        let ((client, _server), full) = (duplex(64), Cursor::new(Box::<[u8]>::default()));
        let pipeline = pipeline_on(Box::new(tokio::io::join(client, full)), &connections, 1);
        tokio::spawn(Arc::clone(&pipeline).run());
        tokio::task::yield_now().await;
        let answers = send(&pipeline, &connections);
        tokio::task::yield_now().await;
        let answer = answer(&answers).expect("an answer").map_err(|error| error.kind);
        assert_eq!(answer, Err(UnreachableKind::Broken));
        let (request, _) = pending(RequestTime(1).into(), Request::probe(), &connections);
        assert!(pipeline.send(request).is_err(), "the connection has ended");
    }
}
