//! What is seen at the nodes: each request with its answer goes into the trace and its hash, hard
//! states are counted, and what must never happen on a node is noticed there. Changes nothing.

use super::links::Parcel;
use super::sometimes::Sometimes;
use super::world::World;
use crate::protocol::{
    AcquireArgs, CancelArgs, EndReason, NoVote, NodeResult, NodeStatus, ReleaseArgs, Reply, Request, RestoreArgs,
    UpdateArgs, Vote,
};

impl World {
    /// Notes what a node was asked and answered, and what must never happen there.
    pub(super) fn observe(&mut self, parcel: &Parcel, answer: &NodeResult) {
        let (node, request) = (parcel.node, &*parcel.request);
        let code = answer_code(answer);
        self.mix(&[node as u64, parcel.inst as u64, parcel.sent_at.0, code.0, code.1]);
        self.trace(|| {
            let late = if parcel.is_late { " LATE" } else { "" };
            format!("n{node} <- i{}{late} {} => {}", parcel.inst, brief(request), brief_answer(answer))
        });
        let no_vote = match answer {
            Ok(Reply::NoVote(no_vote) | Reply::Status(NodeStatus { vote: Vote::NoVote(no_vote), .. })) => Some(no_vote),
            _ => None,
        };
        if let Some(no_vote) = no_vote {
            let what = match no_vote {
                NoVote::Quarantined { .. } if matches!(request, Request::Update(_)) => {
                    Sometimes::ExtendedOverQuarantine
                }
                NoVote::Quarantined { .. } => Sometimes::Quarantined,
                NoVote::OtherCluster { .. } => Sometimes::OtherClusterBarred,
                NoVote::ClockOff { .. } if parcel.is_late => Sometimes::LateSetMetGuard,
                NoVote::ClockOff { .. } => Sometimes::ClockOff,
                NoVote::Unseeded { .. } => Sometimes::Unseeded,
            };
            self.seen.count(what);
            // What is refused as another cluster's is not held against the clock.
            let leaves_a_mark = !matches!(no_vote, NoVote::OtherCluster { .. });
            self.servers[node].noticed += u32::from(leaves_a_mark);
        }
        self.observe_by_kind(node, request, answer, parcel.is_late);
    }

    fn observe_by_kind(&mut self, node: usize, request: &Request, answer: &NodeResult, is_late: bool) {
        match (request, answer) {
            (Request::Acquire(AcquireArgs { resource, token, attempt, .. }), Ok(Reply::Granted { .. })) => {
                let server = &self.servers[node];
                // A request of any age may pass for a new one where the clocks went back by as much.
                let is_ghost = server.was_cancelled(resource, attempt) && !self.ledger.clocks_stepped;
                if is_ghost || server.ended.contains(&(resource.clone(), token.clone())) {
                    let why = if is_ghost { "its attempt was cancelled" } else { "its token was released" };
                    self.fail(format!("ghost: node {node} set {resource} for {token:?} although {why} there before"));
                }
            }
            (Request::Acquire(_), Ok(Reply::Ended { reason: EndReason::Cancelled })) if is_late => {
                self.seen.count(Sometimes::LateSetMetTombstone);
            }
            (Request::Acquire(_), Ok(Reply::Ended { .. })) => self.seen.count(Sometimes::DeadTokenRefused),
            (Request::Cancel(CancelArgs { resource, attempt, token }), Ok(_)) => {
                self.servers[node].cancelled.insert((resource.clone(), attempt.as_str().to_owned()));
                if self.lease_on(node, resource).is_some_and(|(record, _)| record.token == *token) {
                    self.seen.count(Sometimes::ClaimLeftStanding);
                }
            }
            (Request::Release(ReleaseArgs { resource, token, .. }), Ok(_)) => {
                self.servers[node].ended.insert((resource.clone(), token.clone()));
            }
            (Request::Update(UpdateArgs { fence: Some(_), renewal: false, .. }), Ok(Reply::Updated { .. })) => {
                self.seen.count(Sometimes::FenceWrittenBack);
            }
            (Request::Restore(_), Ok(Reply::Restored)) => self.seen.count(Sometimes::RepairPlanted),
            (Request::Quarantine, Ok(_)) => {
                self.seen.count(Sometimes::QuarantineOrdered);
                let now = self.now;
                self.servers[node].shake(now);
                self.unnoticed.remove(&node);
            }
            (Request::Activate { seed }, Ok(Reply::Status(status))) if status.vote == Vote::Active => {
                self.seen.count(Sometimes::QuarantineLeft);
                let by_clock = seed.0.abs_diff(status.now_us) < 400_000;
                self.seen.count(if by_clock { Sometimes::SeededByClock } else { Sometimes::SeededByQuorum });
            }
            (_, Ok(Reply::Status(status))) if status.why == "clock" => self.seen.count(Sometimes::ClockRanBack),
            _ => {}
        }
    }
}

/// Two words that tell one answer from another.
fn answer_code(answer: &NodeResult) -> (u64, u64) {
    match answer {
        Ok(Reply::Granted { fence, joined }) => (1 + u64::from(*joined), fence.0),
        Ok(Reply::Held { left_ms, .. }) => (3, left_ms.unwrap_or(0)),
        Ok(Reply::Updated { record, before_ms }) => (4, record.fence.0 ^ before_ms),
        Ok(Reply::Missing) => (5, 0),
        Ok(Reply::Other { .. }) => (6, 0),
        Ok(Reply::Ended { reason }) => (7, *reason as u64),
        Ok(Reply::Restored) => (8, 0),
        Ok(Reply::Released(released)) => (9, released.found as u64),
        Ok(Reply::NoVote(_)) => (10, 0),
        Ok(Reply::Status(status)) => (11, status.high_water.0),
        Ok(_) => (12, 0),
        Err(error) => (13, error.kind as u64),
    }
}

fn brief(request: &Request) -> String {
    match request {
        Request::Acquire(AcquireArgs { resource, token, attempt, ttl, .. }) => {
            format!("acquire {resource} {token:?} {attempt:?} {} ms", ttl.as_ms())
        }
        Request::Update(UpdateArgs { resource, token, fence, renewal, ttl, .. }) => {
            format!("hold {resource} {token:?} fence {fence:?} ttl {ttl:?} renewal {renewal}")
        }
        Request::Restore(RestoreArgs { resource, record, left_ms }) => {
            format!("plant {resource} {:?} {left_ms} ms", record.token)
        }
        Request::Cancel(CancelArgs { resource, token, attempt }) => format!("cancel {resource} {token:?} {attempt:?}"),
        Request::Release(ReleaseArgs { resource, token, .. }) => format!("release {resource} {token:?}"),
        other => format!("{other:?}"),
    }
}

fn brief_answer(answer: &NodeResult) -> String {
    match answer {
        Ok(Reply::Held { left_ms, record }) => format!("held {left_ms:?} {:?}", record.as_ref().map(|r| &r.token)),
        Ok(other) => format!("{other:?}"),
        Err(error) => format!("{error}"),
    }
}
