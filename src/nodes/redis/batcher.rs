//! A lane's carrier: takes what callers have left in the lane's queue and sends it, once per turn of the
//! runtime, in as few commands as the protocol allows. One task per lane; the supervisor owns them.
//! Stands apart from the lane, which knows no request's meaning, and from the supervisor, which never
//! touches a request.
//!
//! Requests about one resource leave in the order in which they were asked for. Requests that may share
//! a command ([`commands::batch_kind`]) do so with others of the same turn, unless that would change this
//! order.

use std::collections::HashMap;
use std::future::{Future, poll_fn};
use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use std::task::Poll;

use deadpool_redis::redis::{RedisError, Value};
use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use tokio::sync::oneshot;

use super::connection::{Bound, Lane, Lanes, Pending};
use super::errors;
use crate::protocol::commands::{self, BATCH_MAX, BatchKind, ScriptContext, ScriptRef};
use crate::protocol::keys::KeyTemplate;
use crate::protocol::replies;
use crate::protocol::{ClusterParams, NodeResult, RequestTime, Unreachable, UnreachableKind};
use crate::redlock::clock::{Clock, SystemClock};

/// Commands that were sent on a connection and not yet answered. Beyond it requests stay in the lane's
/// queue: a node that does not answer gets no more of what nobody will wait for. As many as the driver's
/// own queue takes, so that handing it a command never waits.
pub const COMMANDS_MAX: usize = 1_024;

/// What requests become commands with.
#[derive(Debug, Clone)]
pub struct Manner {
    /// What all instances agree on.
    pub params: Arc<ClusterParams>,
    /// Names of lock keys.
    pub template: KeyTemplate,
}

/// Carries for one lane until it is dropped. Cancel: what was sent may take effect; nobody hears of it.
pub async fn carry(manner: Manner, lanes: Arc<Lanes>, at: usize, clock: SystemClock) {
    let Some(lane) = lanes.all().get(at) else { return };
    let manner = Arc::new(manner);
    let hashing = RandomState::new();
    let mut under_way = FuturesUnordered::new();
    loop {
        let room = COMMANDS_MAX.saturating_sub(under_way.len());
        tokio::select! {
            biased;
            Some(done) = under_way.next(), if !under_way.is_empty() => conclude(&lanes, lane, done, clock),
            () = lane.filled(), if room > 0 => {
                let Some((bound, turn)) = lane.take_turn(room) else { continue };
                for group in grouped(turn, &hashing) {
                    let mut flight = Box::pin(fly(Arc::clone(&manner), bound.clone(), group));
                    // The first poll hands the command to the driver: here, so that commands keep their order.
                    match poll_fn(|cx| Poll::Ready(flight.as_mut().poll(cx))).await {
                        Poll::Ready(done) => conclude(&lanes, lane, done, clock),
                        Poll::Pending => under_way.push(flight),
                    }
                }
            }
        }
    }
}

/// A command that was answered.
struct Flown {
    generation: u64,
    group: Vec<Pending>,
    outcome: Result<Value, RedisError>,
}

/// Sends the requests by their script's hash, and once more with the script's text where the node did
/// not know it (after a `SCRIPT FLUSH`).
///
/// That one repeat is safe: `NOSCRIPT` means that the first did not run. It may be overtaken by what
/// was sent behind the first. An extend, a repair or an acquire that a release or a cancel overtook
/// finds the tombstone and changes nothing; two extends may change places, and none shortens.
///
/// Cancel: as [`carry`]; between the two, nothing more is sent.
async fn fly(manner: Arc<Manner>, mut bound: Bound, group: Vec<Pending>) -> Flown {
    let command = |script_ref: ScriptRef| {
        let asked: Vec<(RequestTime, &_)> = group.iter().map(|pending| (pending.sent_at, &*pending.request)).collect();
        let context = ScriptContext {
            params: &manner.params,
            template: &manner.template,
            marker_fingerprint: &bound.marker_fingerprint,
        };
        commands::build_batch(&context, &asked, script_ref)
    };
    let first = command(ScriptRef::Hash);
    let outcome = match first.query_async::<Value>(&mut bound.connection).await {
        Err(error) if errors::is_no_script(&error) => {
            let again = command(ScriptRef::Body);
            again.query_async(&mut bound.connection).await
        }
        outcome => outcome,
    };
    Flown { generation: bound.generation, group, outcome }
}

fn conclude(lanes: &Lanes, lane: &Lane, done: Flown, clock: SystemClock) {
    let Flown { generation, group, outcome } = done;
    let count = group.len();
    match outcome {
        Ok(value) => {
            for (index, pending) in group.into_iter().enumerate() {
                let answer = replies::parse_one_of(count, index, &pending.request, &value);
                pending.answer(answer);
            }
        }
        Err(error) => {
            if errors::breaks_connection(&error) {
                lanes.close(lane, Some(generation), clock.now());
            }
            let answer = errors::of_call(&error);
            for pending in group {
                pending.answer(Err(answer.clone()));
            }
        }
    }
}

/// A turn's requests as commands, in the order in which they are to be sent.
fn grouped(turn: Vec<Pending>, hashing: &RandomState) -> Vec<Vec<Pending>> {
    let mut groups: Vec<Vec<Pending>> = Vec::new();
    // Where the last command of each kind is that takes more, and the last one about each resource.
    let (mut open, mut last): ([Option<usize>; 2], HashMap<u64, usize>) = Default::default();
    for pending in turn {
        // Nobody waits for it any more: as if it had been given up a little earlier.
        if pending.is_given_up() {
            continue;
        }
        let about = hashing.hash_one(super::lane_key(&pending.request));
        let slot = commands::batch_kind(&pending.request).map(|kind| match kind {
            BatchKind::Acquire => 0,
            BatchKind::Release => 1,
        });
        let takes = |at: &usize| last.get(&about).is_none_or(|before| before < at) && groups[*at].len() < BATCH_MAX;
        let at = match slot.and_then(|slot| open[slot]).filter(takes) {
            Some(at) => at,
            None => {
                groups.push(Vec::new());
                groups.len() - 1
            }
        };
        if let Some(slot) = slot {
            open[slot] = Some(at);
        }
        last.insert(about, at);
        groups[at].push(pending);
    }
    groups
}

/// Waits for the answer to a request that was left in a lane's queue. Cancel: the request is not sent if
/// it has not been, else it may take effect.
pub async fn answer_of(waiting: oneshot::Receiver<NodeResult>) -> NodeResult {
    waiting.await.unwrap_or_else(|_| {
        Err(Unreachable::new(UnreachableKind::Disconnected, "the connections to the node were given up"))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::{AcquireArgs, CancelArgs, EndReason, ReleaseArgs, Request};
    use crate::types::{AttemptId, ResourceName, Token, Ttl};

    fn resource(name: &str) -> ResourceName {
        ResourceName::parse(name).expect("valid")
    }

    /// `a`: acquire, `r`: release, `c`: cancel, `i`: inspect; then the resource.
    fn request(word: &str) -> Request {
        let (kind, name) = word.split_at(1);
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

    fn word(request: &Request) -> String {
        let kind = match request {
            Request::Acquire(_) => "a",
            Request::Release(_) => "r",
            Request::Cancel(_) => "c",
            _ => "i",
        };
        format!("{kind}{}", super::super::lane_key(request))
    }

    /// The commands of a turn, each as its words; `!` before a word: its caller is gone.
    fn commands(turn: &[&str]) -> Vec<String> {
        let mut callers = Vec::new();
        let mut pending = Vec::new();
        for entry in turn {
            let (gone, entry) = (entry.starts_with('!'), entry.trim_start_matches('!'));
            let (one, caller) = Pending::new(RequestTime(1), Arc::new(request(entry)));
            pending.push(one);
            if !gone {
                callers.push(caller);
            }
        }
        let groups = grouped(pending, &RandomState::new());
        groups.iter().map(|g| g.iter().map(|p| word(&p.request)).collect::<Vec<_>>().join(" ")).collect()
    }

    #[test]
    fn requests_of_a_kind_share_a_command() {
        assert_eq!(commands(&["a1", "r2", "a3", "c4", "a5"]), ["a1 a3 a5", "r2 c4"]);
        assert_eq!(commands(&["i1", "i2"]), ["i1", "i2"]);
        assert_eq!(commands(&[]), Vec::<String>::new());
    }

    #[test]
    fn requests_about_one_resource_keep_their_order() {
        assert_eq!(commands(&["a1", "a1"]), ["a1", "a1"], "and never share a command");
        assert_eq!(commands(&["a1", "r1", "a1"]), ["a1", "r1", "a1"]);
        assert_eq!(commands(&["r1", "a1", "r2", "a2"]), ["r1 r2", "a1 a2"]);
        // The release of 2 may not go up into the first command: its acquire comes before it.
        assert_eq!(commands(&["r1", "a1", "a2", "r2"]), ["r1", "a1 a2", "r2"]);
        assert_eq!(commands(&["a1", "i2", "a2", "a3"]), ["a1", "i2", "a2 a3"]);
    }

    #[test]
    fn what_nobody_waits_for_is_not_sent() {
        assert_eq!(commands(&["!a1", "a2", "!r3"]), ["a2"]);
    }

    #[test]
    fn a_command_takes_so_many_requests_and_no_more() {
        let names: Vec<String> = (0..BATCH_MAX + 1).map(|n| format!("a{n}")).collect();
        let found = commands(&names.iter().map(String::as_str).collect::<Vec<_>>());
        assert_eq!(found.iter().map(|g| g.split(' ').count()).collect::<Vec<_>>(), [BATCH_MAX, 1]);
    }
}
