//! Sends the requests that are queued for a connection, once per turn of the runtime, in as few
//! commands as the protocol allows. One task per connection.
//!
//! Requests about one resource are sent in the order in which they were enqueued. Requests that may
//! share a command ([`commands::batch_kind`]) do so with others of the same turn, unless that would
//! change this order.

use std::collections::HashMap;
use std::future::{Future, poll_fn};
use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use std::task::Poll;

use deadpool_redis::redis::{RedisError, Value};
use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use parking_lot::Mutex;
use tokio::sync::oneshot;

use super::connection::{ActiveConnection, ConnectionSlot, NodeConnections, PendingRequest};
use super::errors;
use crate::protocol::commands::{self, BATCH_MAX, BatchKind, ScriptContext, ScriptRef};
use crate::protocol::keys::{KeyTemplate, LEASES_KEY, META_KEY};
use crate::protocol::{ClusterParams, NodeResult, Reply, Request, RequestTime, Unreachable, UnreachableKind, ViewId};
use crate::redlock::clock::{Clock, SystemClock};
use crate::types::NodeId;

/// Maximum number of commands on a connection that are not yet answered. Beyond it requests stay in the
/// queue, so that a node that does not answer is not sent what nobody will wait for. The driver's own
/// queue has the same size, so handing it a command never waits.
pub(super) const COMMANDS_MAX: usize = 1_024;

/// What commands are built with, besides the requests.
#[derive(Debug, Clone)]
pub(super) struct CommandContext {
    /// What all instances agree on.
    pub params: Arc<ClusterParams>,
    /// Names of lock keys.
    pub template: KeyTemplate,
    /// The node's name.
    id: NodeId,
    /// The last fingerprint: a connection has one until the view changes.
    fingerprint: Arc<Mutex<Option<Fingerprint>>>,
}

/// What scripts compare with the marker, of a process in a view.
#[derive(Debug)]
struct Fingerprint {
    run: Arc<str>,
    view: ViewId,
    text: Arc<str>,
}

impl CommandContext {
    /// For the commands to one node.
    pub(super) fn new(id: NodeId, params: Arc<ClusterParams>, template: KeyTemplate) -> Self {
        Self { params, template, id, fingerprint: Arc::default() }
    }

    fn fingerprint(&self, run: &Arc<str>, view: ViewId) -> Arc<str> {
        let mut last = self.fingerprint.lock();
        if let Some(known) = last.as_ref().filter(|known| known.view == view && known.run == *run) {
            return Arc::clone(&known.text);
        }
        let text: Arc<str> = commands::marker_fingerprint(&self.params, run, view).into();
        *last = Some(Fingerprint { run: Arc::clone(run), view, text: Arc::clone(&text) });
        text
    }
}

/// Sends the requests of one connection until dropped. Cancel: what was sent may take effect; its
/// answer is discarded.
pub(super) async fn run_batcher(
    context: CommandContext,
    connections: Arc<NodeConnections>,
    slot_index: usize,
    clock: SystemClock,
) {
    let Some(slot) = connections.slots().get(slot_index) else { return };
    let context = Arc::new(context);
    let hashing = RandomState::new();
    let mut in_flight = FuturesUnordered::new();
    loop {
        let capacity = COMMANDS_MAX.saturating_sub(in_flight.len());
        tokio::select! {
            biased;
            Some(done) = in_flight.next(), if !in_flight.is_empty() => complete(&connections, slot, done, clock),
            () = slot.enqueued(), if capacity > 0 => {
                let Some((active, requests)) = slot.drain_batch(capacity) else { continue };
                let requests = sendable(&context.id, &active.run, requests);
                for batch in batches(requests, &hashing) {
                    let mut sending = Box::pin(send_batch(Arc::clone(&context), active.clone(), batch));
                    // The first poll hands the command to the driver: here, so that commands keep their order.
                    match poll_fn(|cx| Poll::Ready(sending.as_mut().poll(cx))).await {
                        Poll::Ready(done) => complete(&connections, slot, done, clock),
                        Poll::Pending => in_flight.push(sending),
                    }
                }
            }
        }
    }
}

/// A command that was answered, or failed.
struct CompletedBatch {
    generation: u64,
    run: Arc<str>,
    id: NodeId,
    batch: Vec<PendingRequest>,
    outcome: Result<Value, RedisError>,
}

/// Sends a batch by its script's hash, and once more with the script's text where the node did not know
/// it (after a `SCRIPT FLUSH`).
///
/// That one repeat is safe: `NOSCRIPT` means that the first command did not run. Commands sent after the
/// first may overtake it. An extend, a repair or an acquire that a release or a cancel overtook finds
/// the tombstone and changes nothing; two extends may swap, and neither shortens.
///
/// Cancel: as [`run_batcher`]; between the two commands, nothing more is sent.
async fn send_batch(
    context: Arc<CommandContext>,
    mut active: ActiveConnection,
    batch: Vec<PendingRequest>,
) -> CompletedBatch {
    let view = batch.first().map_or(ViewId::NONE, |p| p.stamp.view.id);
    let marker_fingerprint = context.fingerprint(&active.run, view);
    let command = |script_ref: ScriptRef| {
        let requests: Vec<(RequestTime, &_)> = batch.iter().map(|p| (p.stamp.sent_at, &*p.request)).collect();
        let (params, template) = (&*context.params, &context.template);
        let context = ScriptContext { params, template, marker_fingerprint: &marker_fingerprint };
        commands::build_batch(&context, &requests, script_ref)
    };
    let by_hash = command(ScriptRef::Hash);
    let outcome = match by_hash.query_async::<Value>(&mut active.connection).await {
        Err(error) if errors::is_no_script(&error) => {
            let by_body = command(ScriptRef::Body);
            by_body.query_async(&mut active.connection).await
        }
        outcome => outcome,
    };
    let ActiveConnection { generation, run, .. } = active;
    CompletedBatch { generation, run, id: context.id.clone(), batch, outcome }
}

fn complete(connections: &NodeConnections, slot: &ConnectionSlot, done: CompletedBatch, clock: SystemClock) {
    let CompletedBatch { generation, run, id, batch, outcome } = done;
    let count = batch.len();
    match outcome {
        Ok(value) => {
            for (index, pending) in batch.into_iter().enumerate() {
                let answer = commands::parse_in_batch(count, index, &pending.request, &value);
                if matches!(&answer, Ok(Reply::Status(status)) if is_outdated(&run, &status.run)) {
                    connections.close(slot, Some(generation), clock.now());
                }
                let answer = pending.stamp.counted(&id, &run, answer);
                pending.answer(answer);
            }
        }
        Err(error) => {
            if errors::breaks_connection(&error) {
                connections.close(slot, Some(generation), clock.now());
            }
            let answer = errors::of_call(&error);
            if answer.kind == UnreachableKind::ReadOnly {
                connections.close_all(answer.clone(), clock.now());
            }
            for pending in batch {
                pending.answer(Err(answer.clone()));
            }
        }
    }
}

/// Whether the server became another run since the connection's hand-shake, as by a failover to a replica and back.
fn is_outdated(bound: &str, run: &str) -> bool {
    !bound.is_empty() && bound != run
}

/// Answers the requests that the process at the other end may not get: their view names another one.
fn sendable(id: &NodeId, run: &str, requests: Vec<PendingRequest>) -> Vec<PendingRequest> {
    let refused = |pending: &PendingRequest| pending.stamp.refusal(id, run, &pending.request);
    let mut sent = Vec::with_capacity(requests.len());
    for pending in requests {
        match refused(&pending) {
            Some(no_vote) => pending.answer(Ok(Reply::NoVote(no_vote))),
            None => sent.push(pending),
        }
    }
    sent
}

/// Groups requests into commands, in the order in which these are to be sent.
fn batches(requests: Vec<PendingRequest>, hashing: &RandomState) -> Vec<Vec<PendingRequest>> {
    let mut batches: Vec<Vec<PendingRequest>> = Vec::new();
    // By kind, the last batch that may take more; by resource, the last batch that has a request about it.
    let (mut open, mut last): ([Option<usize>; 2], HashMap<u64, usize>) = Default::default();
    for pending in requests {
        if pending.is_abandoned() {
            continue;
        }
        let key = hashing.hash_one(ordering_key(&pending.request));
        let kind = commands::batch_kind(&pending.request).map(|kind| match kind {
            BatchKind::Acquire => 0,
            BatchKind::Release => 1,
        });
        let is_of_view =
            |batch: &[PendingRequest]| batch.first().is_some_and(|p| p.stamp.view.id == pending.stamp.view.id);
        let fits = |index: &usize| {
            let batch = &batches[*index];
            last.get(&key).is_none_or(|last| last < index) && batch.len() < BATCH_MAX && is_of_view(batch)
        };
        let index = match kind.and_then(|kind| open[kind]).filter(fits) {
            Some(index) => index,
            None => {
                batches.push(Vec::new());
                batches.len() - 1
            }
        };
        if let Some(kind) = kind {
            open[kind] = Some(index);
        }
        last.insert(key, index);
        batches[index].push(pending);
    }
    batches
}

/// Requests with the same key keep their order: the resource, or the node's own key that is requested.
pub(super) fn ordering_key(request: &Request) -> &str {
    if let Some(resource) = request.resource() {
        return resource.as_str();
    }
    match request {
        Request::List(_) => LEASES_KEY,
        _ => META_KEY,
    }
}

/// Waits for the answer to an enqueued request. Cancel: the request is not sent if it has not been yet,
/// otherwise it may take effect.
pub(super) async fn answer_of(answer: oneshot::Receiver<NodeResult>) -> NodeResult {
    answer.await.unwrap_or_else(|_| {
        Err(Unreachable::new(UnreachableKind::Disconnected, "the connection to the node was closed"))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::{AcquireArgs, CancelArgs, EndReason, ReleaseArgs};
    use crate::types::{AttemptId, ResourceName, Token, Ttl};

    fn resource(name: &str) -> ResourceName {
        ResourceName::parse(name).expect("valid")
    }

    /// `a`: acquire, `r`: release, `c`: cancel, `i`: inspect; then the resource.
    fn request(abbreviation: &str) -> Request {
        let (kind, name) = abbreviation.split_at(1);
        let (resource, token) = (resource(name), Token::parse("abcdefghijklmnopqrstuv").expect("valid").hash());
        let attempt = AttemptId::from_random(1);
        match kind {
            "a" => Request::Acquire(AcquireArgs {
                resource,
                token,
                attempt,
                ttl: Ttl::from_ms(1_000).expect("valid"),
                labels: "{}".into(),
            }),
            "r" => Request::Release(ReleaseArgs { resource, token, reason: EndReason::Released }),
            "c" => Request::Cancel(CancelArgs { resource, token, attempt }),
            _ => Request::Inspect { resource },
        }
    }

    fn abbreviated(request: &Request) -> String {
        let kind = match request {
            Request::Acquire(_) => "a",
            Request::Release(_) => "r",
            Request::Cancel(_) => "c",
            _ => "i",
        };
        format!("{kind}{}", ordering_key(request))
    }

    /// The commands that requests become, abbreviated; `!` before a request: its caller is gone.
    fn commands(requests: &[&str]) -> Vec<String> {
        let mut callers = Vec::new();
        let mut pending = Vec::new();
        for entry in requests {
            let (gone, entry) = (entry.starts_with('!'), entry.trim_start_matches('!'));
            let (one, caller) = PendingRequest::new(RequestTime(1).into(), Arc::new(request(entry)));
            pending.push(one);
            if !gone {
                callers.push(caller);
            }
        }
        let batches = batches(pending, &RandomState::new());
        batches.iter().map(|b| b.iter().map(|p| abbreviated(&p.request)).collect::<Vec<_>>().join(" ")).collect()
    }

    #[test]
    fn requests_of_one_kind_share_a_command() {
        assert_eq!(commands(&["a1", "r2", "a3", "c4", "a5"]), ["a1 a3 a5", "r2 c4"]);
        assert_eq!(commands(&["i1", "i2"]), ["i1", "i2"]);
        assert_eq!(commands(&[]), Vec::<String>::new());
    }

    #[test]
    fn requests_about_one_resource_keep_their_order() {
        assert_eq!(commands(&["a1", "a1"]), ["a1", "a1"], "and never share a command");
        assert_eq!(commands(&["a1", "r1", "a1"]), ["a1", "r1", "a1"]);
        assert_eq!(commands(&["r1", "a1", "r2", "a2"]), ["r1 r2", "a1 a2"]);
        // The release of 2 may not join the first command: its acquire was enqueued before it.
        assert_eq!(commands(&["r1", "a1", "a2", "r2"]), ["r1", "a1 a2", "r2"]);
        assert_eq!(commands(&["a1", "i2", "a2", "a3"]), ["a1", "i2", "a2 a3"]);
    }

    #[test]
    fn abandoned_requests_are_not_sent() {
        assert_eq!(commands(&["!a1", "a2", "!r3"]), ["a2"]);
    }

    #[test]
    fn a_command_has_a_maximum_number_of_requests() {
        let names: Vec<String> = (0..BATCH_MAX + 1).map(|n| format!("a{n}")).collect();
        let found = commands(&names.iter().map(String::as_str).collect::<Vec<_>>());
        assert_eq!(found.iter().map(|g| g.split(' ').count()).collect::<Vec<_>>(), [BATCH_MAX, 1]);
    }
}
