//! Domain values as wire types: pure functions without a clock. Apart from the answers and the
//! problems because both show holders, votes and nodes, and must show them alike.

use std::time::Duration;

use crate::api;
use crate::manager::types::{CycleEdge, HolderInfo, NodeSummary, QuorumCount, ResourceOnNode, WaiterInfo};
use crate::protocol::NoVote;
use crate::redlock::quorum::{NodeOutcome, Verdict};

/// Whole milliseconds, rounded down: an answer never promises more than is left.
pub fn ms(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

/// Whole milliseconds, rounded up.
pub fn ms_up(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos().div_ceil(1_000_000)).unwrap_or(u64::MAX)
}

/// Whole seconds, rounded up.
pub fn seconds_up(duration: Duration) -> u64 {
    duration.as_secs().saturating_add(u64::from(duration.subsec_nanos() > 0))
}

/// RFC 3339 in UTC with milliseconds; empty where the time lies beyond the calendar.
/// Units: milliseconds since 1970.
pub fn time(wall_ms: u64) -> String {
    let ms = i64::try_from(wall_ms).unwrap_or(i64::MAX);
    jiff::Timestamp::from_millisecond(ms).map(|t| format!("{t:.3}")).unwrap_or_default()
}

/// A vote.
pub fn quorum(count: QuorumCount) -> api::Quorum {
    api::Quorum { granted: count.granted, needed: count.needed, nodes: count.nodes }
}

/// A holder.
pub fn holder(view: &HolderInfo) -> api::Holder {
    api::Holder {
        token_id: view.token_id.to_string(),
        owner: view.labels.owner.clone(),
        note: view.labels.note.clone(),
        metadata: view.labels.metadata.clone(),
        fence: view.fence.0,
        acquired_at: time(view.labels.acquired_at_ms),
        valid_for_ms: ms(view.valid_for),
        renewals: view.renewals,
    }
}

/// The word for a lease that the nodes still have.
pub fn held_state(view: &HolderInfo) -> &'static str {
    if view.valid_for.is_zero() { "lock-delay" } else { "held" }
}

/// A waiter.
pub fn waiter(view: &WaiterInfo) -> api::Waiter {
    api::Waiter {
        position: view.position,
        owner: view.owner.clone(),
        mode: api::MODE_EXCLUSIVE.to_owned(),
        waiting_ms: ms(view.waiting),
    }
}

/// A node's word on a resource.
pub fn node_hold(view: &ResourceOnNode) -> api::NodeHold {
    api::NodeHold {
        node: view.node.to_string(),
        holds: view.holds.as_ref().map(ToString::to_string),
        ttl_ms: view.ttl_ms,
        foreign: view.foreign,
        state: view.verdict.as_str().to_owned(),
    }
}

/// One step of a deadlock.
pub fn deadlock_edge(edge: &CycleEdge) -> api::DeadlockEdge {
    api::DeadlockEdge {
        owner: edge.owner.clone(),
        waits_for: edge.waits_for.to_string(),
        held_by: edge.held_by.clone(),
        token_id: edge.token_id.to_string(),
    }
}

/// A node's part in an outcome.
pub fn node_outcome(outcome: &NodeOutcome) -> api::NodeOutcome {
    let (left_ms, holds) = match &outcome.verdict {
        Verdict::Held { left_ms, holder } => (*left_ms, holder.as_ref().map(|(hash, _)| hash.id().to_string())),
        _ => (None, None),
    };
    let seconds_left = match &outcome.verdict {
        Verdict::NoVote(NoVote::Quarantined { left_ms }) => Some(left_ms.div_ceil(1_000)),
        _ => None,
    };
    let (node, word) = (outcome.node.to_string(), outcome.verdict.as_str().to_owned());
    api::NodeOutcome { node, outcome: word, left_ms, holds, seconds_left }
}

/// A node's own affairs.
pub fn node_state(report: &NodeSummary) -> api::NodeState {
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
        latency_us: report.latency.map(|l| u64::try_from(l.as_micros()).unwrap_or(u64::MAX)),
        clock_offset_ms: report.clock_offset_ms,
        run_id: report.run_id.clone(),
        version: report.version.clone(),
        restarts: report.restarts,
        findings: report.findings.iter().map(finding).collect(),
    }
}

/// Text that stays on its line: backslashes, control characters and Unicode's line separators are
/// escaped, so that a label cannot forge a second line.
pub fn one_line(text: &str) -> String {
    let mut line = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '\\' => line.push_str("\\\\"),
            '\n' => line.push_str("\\n"),
            '\r' => line.push_str("\\r"),
            '\t' => line.push_str("\\t"),
            c if c.is_control() || matches!(c, '\u{2028}' | '\u{2029}') => line.extend(c.escape_unicode()),
            c => line.push(c),
        }
    }
    line
}

/// `key=value` lines; keys are ours, values are kept on their line.
pub fn lines<'a>(pairs: impl IntoIterator<Item = (&'a str, String)>) -> String {
    let mut text = String::new();
    for (key, value) in pairs {
        text.push_str(key);
        text.push('=');
        text.push_str(&one_line(&value));
        text.push('\n');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::types::NodeId;
    use proptest::prelude::*;

    #[test]
    fn times_are_utc_with_milliseconds() {
        assert_eq!(time(1_795_198_023_120), "2026-11-20T18:07:03.120Z");
        assert_eq!(time(0), "1970-01-01T00:00:00.000Z");
        assert_eq!(time(u64::MAX), "");
    }

    #[test]
    fn promises_round_down_and_warnings_up() {
        assert_eq!(ms(Duration::from_micros(1_999)), 1);
        assert_eq!(ms_up(Duration::from_micros(1_001)), 2);
        assert_eq!(seconds_up(Duration::from_millis(1)), 1);
        assert_eq!(seconds_up(Duration::from_secs(2)), 2);
        assert_eq!(
            (ms(Duration::MAX), ms_up(Duration::MAX), seconds_up(Duration::MAX)),
            (u64::MAX, u64::MAX, u64::MAX)
        );
    }

    #[test]
    fn a_quarantined_node_says_how_long() {
        let node = NodeId::parse("n1").expect("valid");
        let verdict = Verdict::NoVote(NoVote::Quarantined { left_ms: 1_001 });
        let shown = node_outcome(&NodeOutcome { node, verdict });
        assert_eq!((shown.outcome.as_str(), shown.seconds_left), ("quarantined", Some(2)));
    }

    proptest! {
        #[test]
        fn no_value_leaves_its_line(value: String) {
            let text = lines([("owner", value)]);
            prop_assert_eq!(text.lines().count(), 1);
            prop_assert!(text.ends_with('\n'));
            let breaks = |c: char| c.is_control() || ['\u{2028}', '\u{2029}'].contains(&c);
            prop_assert_eq!(text.chars().filter(|c| breaks(*c)).count(), 1);
        }
    }
}
