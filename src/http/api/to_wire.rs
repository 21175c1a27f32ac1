//! Domain values as wire types. Answers and problems both show holders, votes and nodes, and share these functions.

use axum::body::Body;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::Response;
use serde::Serialize;

use crate::api;
use crate::http::format::{ms, ms_up, time};
use crate::manager::gaps::Gap;
use crate::manager::types::{
    BlockingResource, HolderInfo, InstanceQueue, NodeSummary, QuorumCount, ResourceOnNode, WaiterInfo, mode_of,
    permits_free,
};
use crate::protocol::{NoVote, Terms};
use crate::redlock::quorum::{NodeOutcome, Verdict};
use crate::types::PermitLimit;

/// Capacity for the headers of an answer with a lease, and for its body.
const HEADERS: usize = 12;
const BODY_BYTES: usize = 512;

/// A JSON body, with a newline for terminals.
pub(super) fn json(status: StatusCode, body: &impl Serialize) -> Response {
    let mut text = Vec::with_capacity(BODY_BYTES);
    serde_json::to_writer(&mut text, body).expect("answers are plain data");
    text.push(b'\n');
    let mut response = Response::new(Body::from(text));
    *response.status_mut() = status;
    response.headers_mut().reserve(HEADERS);
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}

/// The count of votes.
pub(crate) fn quorum(count: QuorumCount) -> api::Quorum {
    api::Quorum { granted: count.granted, needed: count.needed, nodes: count.nodes }
}

/// The terms in milliseconds.
pub(crate) fn terms(terms: &Terms) -> api::NodeTerms {
    let Terms { guard, lock_delay, fence_ttl, ref template } = *terms;
    let key_template = template.as_ref().map(ToString::to_string);
    api::NodeTerms { guard_ms: ms(guard), lock_delay_ms: ms(lock_delay), fence_ttl_ms: ms(fence_ttl), key_template }
}

/// The former terms and the new ones.
pub(crate) fn terms_change((from, to): &(Terms, Terms)) -> api::NodeTermsChange {
    api::NodeTermsChange { from: terms(from), to: terms(to) }
}

/// A period of which events may be missing.
pub(crate) fn event_gap(gap: &Gap) -> api::EventGap {
    let from_ms = Some(gap.from_ms).filter(|from_ms| *from_ms > 0);
    let (from, to) = (from_ms.map(time), time(gap.to_ms));
    api::EventGap { from_ms, from, to_ms: gap.to_ms, to, reason: gap.reason.as_str().to_owned() }
}

/// A holder, without its token.
pub(crate) fn holder(view: &HolderInfo) -> api::Holder {
    api::Holder {
        token_id: view.token_id.to_string(),
        slot: view.mode.slot(),
        owner: view.labels.owner.clone(),
        note: view.labels.note.clone(),
        metadata: view.labels.metadata.clone(),
        fence: view.fence.0,
        acquired_at: time(view.labels.acquired_at_ms),
        valid_for_ms: Some(ms(view.valid_for)),
        kept_until: view.kept_for.map(|_| time(view.labels.kept_until_ms)),
        kept_for_ms: view.kept_for.map(ms),
        renewals: view.renewals,
    }
}

/// A lock that blocks the acquire of a set.
pub(crate) fn blocked_by(view: &BlockingResource) -> api::BlockedBy {
    let holder = view.holder.as_ref();
    api::BlockedBy {
        resource: view.resource.to_string(),
        owner: holder.map(|holder| holder.labels.owner.clone()),
        fence: holder.map(|holder| holder.fence.0),
    }
}

/// The state of the leases that the nodes still store: held while at least one lease is. `holders` is not empty.
pub(crate) fn held_state(holders: &[HolderInfo]) -> &'static str {
    let confirmed = || holders.iter().filter(|holder| holder.is_confirmed);
    match (confirmed().count(), confirmed().all(|holder| holder.valid_for.is_zero())) {
        (0, _) => "unknown",
        (_, true) => "lock-delay",
        (_, false) => "held",
    }
}

/// The number of permits, and the number of free ones.
pub(crate) fn permits(holders: &[HolderInfo]) -> (Option<u8>, Option<usize>) {
    (mode_of(holders).limit().map(PermitLimit::get), permits_free(holders))
}

/// A waiter as JSON shows it.
pub(crate) fn waiter(view: &WaiterInfo) -> api::Waiter {
    api::Waiter {
        instance: view.instance.to_string(),
        position: view.position,
        owner: view.owner.clone(),
        mode: view.mode.as_str().to_owned(),
        waiting_ms: ms(view.waiting),
        left_ms: view.left.map(ms),
        note: view.note.clone(),
        ticket: view.is_ticket,
    }
}

/// The waiters at one instance.
pub(crate) fn waiting_at(view: &InstanceQueue) -> api::WaitingAt {
    api::WaitingAt { instance: view.instance.to_string(), waiting: view.waiting, oldest_ms: ms(view.oldest) }
}

/// The state of a resource on one node.
pub(crate) fn node_hold(view: &ResourceOnNode) -> api::NodeHold {
    let several = view.holds.len() > 1;
    api::NodeHold {
        node: view.node.to_string(),
        holds: view.holds.first().map(ToString::to_string),
        holds_all: if several { view.holds.iter().map(ToString::to_string).collect() } else { Vec::new() },
        ttl_ms: view.ttl_ms,
        foreign: view.foreign,
        state: view.verdict.as_str().to_owned(),
    }
}

/// A node's vote, or why it has none.
pub(crate) fn node_outcome(outcome: &NodeOutcome) -> api::NodeVote {
    let (left_ms, holds) = match &outcome.verdict {
        Verdict::Held { left_ms, holder } => (*left_ms, holder.as_ref().map(|(hash, _)| hash.id().to_string())),
        _ => (None, None),
    };
    let seconds_left = match &outcome.verdict {
        Verdict::NoVote(NoVote::Quarantined { left_ms } | NoVote::Blocked { left_ms }) => Some(left_ms.div_ceil(1_000)),
        _ => None,
    };
    let (node, word) = (outcome.node.to_string(), outcome.verdict.as_str().to_owned());
    api::NodeVote { node, outcome: word, left_ms, holds, seconds_left }
}

/// A node's state and findings.
pub(crate) fn node_state(report: &NodeSummary) -> api::NodeState {
    let finding = |f: &crate::manager::types::NodeFinding| api::Finding {
        code: f.code.clone(),
        detail: f.detail.clone(),
        bars: f.bars,
    };
    api::NodeState {
        node: report.node.to_string(),
        state: report.state.clone(),
        votes: report.votes,
        state_for_ms: ms(report.since),
        votes_in_ms: report.votes_in.map(ms_up),
        why: report.why.clone(),
        waits_for: report.waits_for.all().map(ToString::to_string).collect(),
        latency_us: report.latency.map(|l| u64::try_from(l.as_micros()).unwrap_or(u64::MAX)),
        clock_offset_ms: report.clock_offset_ms,
        run_id: report.run_id.clone(),
        version: report.version.clone(),
        durable: report.is_durable,
        restarts: report.restarts,
        findings: report.findings.iter().map(finding).collect(),
        view: report.view,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::types::NodeId;

    #[test]
    fn a_quarantined_node_shows_the_seconds_left() {
        let node = NodeId::parse("n1").expect("valid");
        let verdict = Verdict::NoVote(NoVote::Quarantined { left_ms: 1_001 });
        let shown = node_outcome(&NodeOutcome { node, verdict });
        assert_eq!((shown.outcome.as_str(), shown.seconds_left), ("quarantined", Some(2)));
    }
}
