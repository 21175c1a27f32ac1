//! Why nodes did not vote, as a sentence for the caller: each reason once, with the names of its nodes, and no address.

use std::collections::BTreeMap;

use super::node_state::failure_words;
use super::types::NodeSummary;
use crate::protocol::{NoVote, UnreachableKind};
use crate::redlock::quorum::{NodeOutcome, Verdict};

/// `n1, n2: reason; n3: reason`; empty if every node voted. `summaries` have what the probes know of the nodes, which
/// is all that is known without outcomes.
pub(super) fn reasons(outcomes: &[NodeOutcome], summaries: &[NodeSummary]) -> String {
    if outcomes.is_empty() {
        return of_probes(summaries);
    }
    let mut nodes: BTreeMap<String, Vec<&str>> = BTreeMap::new();
    for outcome in outcomes {
        let summary = summaries.iter().find(|summary| summary.node == outcome.node);
        if let Some(reason) = reason(&outcome.verdict, summary) {
            nodes.entry(reason).or_default().push(outcome.node.as_str());
        }
    }
    let parts: Vec<String> = nodes.iter().map(|(reason, nodes)| format!("{}: {reason}", nodes.join(", "))).collect();
    parts.join("; ")
}

/// The reasons of the nodes that do not vote, as far as the probes know, if the nodes of a request are not known.
pub(super) fn of_probes(summaries: &[NodeSummary]) -> String {
    let sentence = |summary: &NodeSummary| {
        let why = summary.why.clone().unwrap_or_else(|| summary.state.clone());
        let votes_in = summary.votes_in.map(|left| format!("; it votes in {} s", left.as_millis().div_ceil(1_000)));
        format!("{}: {why}{}", summary.node, votes_in.unwrap_or_default())
    };
    summaries.iter().filter(|summary| !summary.votes).map(sentence).collect::<Vec<_>>().join("; ")
}

/// `None`: the node voted, or its answer was not awaited.
fn reason(verdict: &Verdict, summary: Option<&NodeSummary>) -> Option<String> {
    let known = summary.and_then(|summary| summary.why.clone());
    Some(match verdict {
        Verdict::Granted | Verdict::NotAwaited => return None,
        Verdict::NoVote(NoVote::Quarantined { left_ms }) => {
            let why = known.unwrap_or_else(|| "in quarantine".to_owned());
            format!("{why}; it votes in {} s", left_ms.div_ceil(1_000))
        }
        Verdict::NoVote(no_vote) => known.unwrap_or_else(|| Verdict::NoVote(no_vote.clone()).as_str().to_owned()),
        Verdict::Held { .. } => "held by another request or client".to_owned(),
        Verdict::Missing => "does not have the lease".to_owned(),
        Verdict::Other => "has another lease".to_owned(),
        Verdict::Ended(_) => "the lease was ended there".to_owned(),
        Verdict::Refused => "refused".to_owned(),
        Verdict::Unreachable(kind) => match kind {
            UnreachableKind::Timeout => "no answer in time".to_owned(),
            UnreachableKind::Disconnected => "not connected".to_owned(),
            UnreachableKind::NotAsked => known.unwrap_or_else(|| "not asked yet".to_owned()),
            UnreachableKind::Broken => "the connection broke".to_owned(),
            UnreachableKind::Unsuitable => known.unwrap_or_else(|| "unsuitable".to_owned()),
            other => failure_words(*other).to_owned(),
        },
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::types::NodeId;

    fn outcome(name: &str, verdict: Verdict) -> NodeOutcome {
        NodeOutcome { node: NodeId::parse(name).expect("valid"), verdict }
    }

    #[test]
    fn probes_name_nodes_reasons_and_times() {
        let node = |name: &str| NodeSummary::new(NodeId::parse(name).expect("valid"));
        let forgot = NodeSummary {
            why: Some("it was restarted".into()),
            votes_in: Some(std::time::Duration::from_millis(1_001)),
            ..node("b")
        };
        let summaries =
            [NodeSummary { votes: true, ..node("a") }, forgot, NodeSummary { state: "down".into(), ..node("c") }];
        assert_eq!(of_probes(&summaries), "b: it was restarted; it votes in 2 s; c: down");
    }

    #[test]
    fn each_reason_is_given_once_with_its_nodes() {
        let quarantined = || Verdict::NoVote(NoVote::Quarantined { left_ms: 1_001 });
        let outcomes = [
            outcome("a", Verdict::Unreachable(UnreachableKind::Timeout)),
            outcome("b", quarantined()),
            outcome("c", Verdict::Unreachable(UnreachableKind::Timeout)),
            outcome("d", Verdict::Granted),
            outcome("e", Verdict::NotAwaited),
        ];
        assert_eq!(reasons(&outcomes, &[]), "b: in quarantine; it votes in 2 s; a, c: no answer in time");
        assert_eq!(reasons(&outcomes[3..], &[]), "");
    }

    #[test]
    fn what_the_probes_know_is_said() {
        let summary = NodeSummary {
            state: "quarantined".to_owned(),
            why: Some("it was restarted".to_owned()),
            ..NodeSummary::new(NodeId::parse("b").expect("valid"))
        };
        let outcomes = [outcome("b", Verdict::NoVote(NoVote::Quarantined { left_ms: 308_000 }))];
        assert_eq!(reasons(&outcomes, &[summary]), "b: it was restarted; it votes in 308 s");
    }
}
