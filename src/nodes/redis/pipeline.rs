//! Drives a connection: sends the queued requests, once per turn of the runtime, and answers them as the replies arrive, in the
//! order of the commands. One task per connection.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::io;
use std::sync::Arc;
use std::task::{Context, Poll};

use deadpool_redis::redis::{RedisError, Value};
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
pub(super) struct Driver {
    wire: Wire,
    queue: Arc<ConnectionQueue>,
    place: Place,
    /// The process to which the connection is bound; empty: not known, each script reads it.
    run: Arc<str>,
    generation: u64,
    in_flight: VecDeque<Sent>,
}

impl Driver {
    /// A driver for the process `run`; `generation`: as in [`ActiveConnection`](super::connections::ActiveConnection).
    pub(super) fn new(
        wire: Wire,
        queue: Arc<ConnectionQueue>,
        place: Place,
        (run, generation): (Arc<str>, u64),
    ) -> Self {
        Self { wire, queue, place, run, generation, in_flight: VecDeque::new() }
    }

    /// Runs until the connection breaks or is closed.
    pub(super) async fn run(mut self) {
        let Some(error) = poll_fn(|cx| self.poll(cx)).await else { return };
        // Closed before any caller is answered, so that a repeated request does not get this connection.
        self.place.connections.record_connect_error(errors::of_connecting(&error));
        self.close();
        let (answer, now) = (errors::of_call(&error), self.place.clock.now());
        for sent in std::mem::take(&mut self.in_flight) {
            if let Sent::Batch(batch, _) = sent {
                batch.into_iter().for_each(|pending| pending.answer(Err(answer.clone()), now));
            }
        }
    }

    /// Resolves once the connection is unusable; `None`: it was closed.
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Option<RedisError>> {
        loop {
            match self.wire.poll_reply(cx) {
                Poll::Ready(Ok(value)) => {
                    if let Err(error) = self.receive(value) {
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
        let Some((requests, commands)) = self.queue.drain(capacity, cx) else { return Poll::Ready(None) };
        for (packed, caller) in commands {
            self.wire.out().extend_from_slice(&packed);
            self.in_flight.push_back(Sent::Command(caller));
        }
        if !requests.is_empty() {
            let now = self.place.clock.now();
            let requests = sendable(&self.place.context.id, &self.run, requests, now);
            batches(requests, now).into_iter().for_each(|batch| self.send(batch, ScriptRef::Hash));
        }
        match self.wire.poll_flush(cx) {
            Poll::Ready(Err(error)) => Poll::Ready(Some(error.into())),
            _ => Poll::Pending,
        }
    }

    fn send(&mut self, mut batch: Vec<PendingRequest>, script_ref: ScriptRef) {
        batch.iter_mut().for_each(PendingRequest::sent);
        self.place.context.write_command(self.wire.out(), &self.run, &batch, script_ref);
        self.in_flight.push_back(Sent::Batch(batch, script_ref));
    }

    /// Takes the reply to the oldest command. Errors: no command is unanswered; the server's error if it sent one.
    ///
    /// A batch whose script the node did not know (after a `SCRIPT FLUSH`) is sent once more, with the script's text.
    /// That one repeat is safe: `NOSCRIPT` means that the first command did not run. Commands sent after the
    /// first may overtake it. An extend, a repair or an acquire that a release or a cancel overtook finds
    /// the tombstone and changes nothing; two extends may swap, and neither shortens.
    fn receive(&mut self, value: Value) -> Result<(), RedisError> {
        let (sent, outcome) = (self.in_flight.pop_front(), value.extract_error());
        match (sent, outcome) {
            (None, outcome) => {
                let unasked = io::Error::new(io::ErrorKind::InvalidData, "replies come that were not asked for");
                return Err(outcome.err().unwrap_or_else(|| unasked.into()));
            }
            // Fails if the caller has gone, which does not matter.
            (Some(Sent::Command(caller)), outcome) => drop(caller.send(outcome)),
            (Some(Sent::Batch(batch, ScriptRef::Hash)), Err(error)) if errors::is_no_script(&error) => {
                self.send(batch, ScriptRef::Body);
            }
            (Some(Sent::Batch(batch, _)), Ok(value)) => self.answer(batch, &value),
            (Some(Sent::Batch(batch, _)), Err(error)) => self.refuse(batch, &error),
        }
        Ok(())
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

impl Drop for Driver {
    fn drop(&mut self) {
        self.queue.end();
    }
}

/// Whether the server has become another run since the connection's hand-shake, as by a failover to a replica and back.
fn is_outdated(bound: &str, run: &str) -> bool {
    !bound.is_empty() && bound != run
}
