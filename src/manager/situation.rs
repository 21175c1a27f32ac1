//! The state of nodes and quorum in one or two sentences: what is ill, since when, until when, why, and what to do. The same
//! on every page, in the log and in `/health/ready`.

use std::cmp::Ordering;
use std::time::Duration;

use super::types::{NodeSummary, QuorumLoss};

const DAY_MS: u64 = 86_400_000;

/// The state in words.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Situation {
    /// What is so, since when, until when and why.
    pub state: String,
    /// What an operator does about it, or must not do; empty if nothing.
    pub advice: String,
}

impl Situation {
    /// Of these nodes. `needed`: the quorum; `ready_in`: when enough nodes vote again, where that is known. Units of
    /// `wall_ms`: milliseconds since 1970.
    pub fn of(
        nodes: &[NodeSummary],
        needed: usize,
        loss: Option<&QuorumLoss>,
        ready_in: Option<Duration>,
        wall_ms: u64,
    ) -> Self {
        let voting = nodes.iter().filter(|node| node.votes).count();
        let ill: Vec<&NodeSummary> = nodes.iter().filter(|node| !node.votes).collect();
        let reasons = || ill.iter().map(|node| reason(node, wall_ms)).collect::<Vec<_>>().join("; ");
        if ill.is_empty() {
            return Self { state: healthy(nodes, needed), advice: String::new() };
        }
        match voting.cmp(&needed) {
            Ordering::Less => {
                let since = loss.map(|loss| format!(" since {}", time_of_day(loss.since_ms))).unwrap_or_default();
                let refused = loss.filter(|loss| loss.refused > 0);
                let refused =
                    refused.map(|loss| format!(" {} requests failed here.", loss.refused)).unwrap_or_default();
                Self {
                    state: format!(
                        "No lock can be granted or extended{since}: {voting} of {} nodes vote, {needed} are needed. {}.{refused}",
                        nodes.len(),
                        reasons()
                    ),
                    advice: outage_advice(&ill, needed - voting, ready_in, wall_ms),
                }
            }
            Ordering::Equal => Self {
                state: format!("{}. The next failure is an outage.", reasons()),
                advice: degraded_advice(&ill, wall_ms),
            },
            Ordering::Greater => Self {
                state: format!("{}. {} more may fail.", reasons(), voting - needed),
                advice: degraded_advice(&ill, wall_ms),
            },
        }
    }

    /// Both sentences.
    pub fn text(&self) -> String {
        format!("{} {}", self.state, self.advice).trim_end().to_owned()
    }
}

fn healthy(nodes: &[NodeSummary], needed: usize) -> String {
    match nodes {
        [only] => format!("The node {} votes: its failure is an outage.", only.node),
        _ => format!("All {} nodes vote: {} may fail.", nodes.len(), nodes.len() - needed.min(nodes.len())),
    }
}

/// One node without a vote: what, since when, until when.
fn reason(node: &NodeSummary, wall_ms: u64) -> String {
    let since = time_of_day(wall_ms.saturating_sub(ms(node.since)));
    let name = &node.node;
    match (node.state.as_str(), node.votes_in) {
        ("quarantined", Some(left)) => {
            let cause = match node.quarantine.as_deref() {
                Some("restart") => "its server was restarted or replaced",
                Some("blank") => "it was wiped, or is new",
                Some("failover") => "its server was a replica",
                Some("evicted") => "it evicted keys",
                Some("clock") => "its clock ran ahead and came back",
                _ => "it may have forgotten leases",
            };
            format!("Node {name} is in quarantine since {since} until {} ({cause})", end(wall_ms, left))
        }
        ("down", _) => format!("Node {name} does not answer since {since}"),
        ("unknown", _) => format!("Node {name} has not answered yet"),
        ("awaiting-seed", _) => format!("Node {name} waits for the fences of the other nodes since {since}"),
        ("clock-off", _) => format!("The clock of node {name} is off since {since}"),
        ("other-cluster", _) => format!("Node {name} is set up with another node list or other settings"),
        ("newer-protocol", _) => format!("Node {name} is used by instances of a later release"),
        _ if node.has_two_servers => format!("The name {name} leads to two servers"),
        (state, _) => format!("Node {name} has no vote since {since} ({state})"),
    }
}

/// What ends an outage: `missing` more votes.
fn outage_advice(ill: &[&NodeSummary], missing: usize, ready_in: Option<Duration>, wall_ms: u64) -> String {
    let keep = "Leases stay valid to their deadline.";
    if let Some(left) = ready_in {
        let until = end(wall_ms, left);
        return format!("{keep} Do not restart anything: it ends by itself at {until}.");
    }
    let needs_repair: Vec<String> =
        ill.iter().filter(|node| node.votes_in.is_none()).map(|node| repair(node)).collect();
    let enough = match missing {
        _ if needs_repair.len() <= missing => String::new(),
        1 => " One of these is enough.".to_owned(),
        some => format!(" {some} of these are enough."),
    };
    format!("{keep} {}.{enough} Do not restart the other nodes.", needs_repair.join("; "))
}

/// What to do about nodes without a vote while a quorum votes.
fn degraded_advice(ill: &[&NodeSummary], wall_ms: u64) -> String {
    let repairs: Vec<String> = ill.iter().filter(|node| node.votes_in.is_none()).map(|node| repair(node)).collect();
    let last = ill.iter().filter_map(|node| node.votes_in).max();
    match (repairs.is_empty(), last) {
        (true, Some(left)) => format!("Do not restart another node before {}.", end(wall_ms, left)),
        _ => format!("{}. Do not restart another node meanwhile.", repairs.join("; ")),
    }
}

fn repair(node: &NodeSummary) -> String {
    let name = &node.node;
    match node.state.as_str() {
        "down" => format!("Bring back {name}"),
        "unknown" => format!("Wait for {name}"),
        "awaiting-seed" => format!("{name} votes when the other nodes answer"),
        "clock-off" => format!("Repair the NTP of {name}"),
        "other-cluster" => format!("Compare `redlockd config show` on all instances ({name})"),
        "newer-protocol" => "Upgrade this instance".to_owned(),
        _ if node.has_two_servers => format!("Turn off the wrong server of {name}"),
        _ => format!("See the findings of {name}"),
    }
}

fn ms(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

/// When something ends that takes so long from now, rounded up.
fn end(wall_ms: u64, left: Duration) -> String {
    time_of_day(wall_ms.saturating_add(ms(left)).saturating_add(999))
}

/// `10:46:02` in UTC.
fn time_of_day(wall_ms: u64) -> String {
    let s = wall_ms % DAY_MS / 1_000;
    format!("{:02}:{:02}:{:02}", s / 3_600, s % 3_600 / 60, s % 60)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::types::NodeId;

    /// 10:47:00.
    const NOW_MS: u64 = (10 * 60 + 47) * 60_000;

    fn node(name: &str, state: &str, votes_in_s: Option<u64>) -> NodeSummary {
        NodeSummary {
            state: state.to_owned(),
            votes: state == "up",
            since: Duration::from_secs(58),
            votes_in: votes_in_s.map(Duration::from_secs),
            quarantine: votes_in_s.map(|_| "restart".to_owned()),
            ..NodeSummary::new(NodeId::parse(name).expect("valid"))
        }
    }

    fn said(nodes: &[NodeSummary], ready_in: Option<u64>) -> String {
        let loss = QuorumLoss { since_ms: NOW_MS - 57_000, lasts: Duration::from_secs(57), refused: 3 };
        let needed = nodes.len() / 2 + 1;
        Situation::of(nodes, needed, Some(&loss), ready_in.map(Duration::from_secs), NOW_MS).text()
    }

    #[test]
    fn each_incident_says_what_since_when_until_when_and_what_to_do() {
        let up = |name| node(name, "up", None);
        assert_eq!(said(&[up("a"), up("b"), up("c")], None), "All 3 nodes vote: 1 may fail.");
        assert_eq!(said(&[up("a")], None), "The node a votes: its failure is an outage.");
        assert_eq!(
            said(&[up("a"), up("b"), node("c", "quarantined", Some(247))], None),
            "Node c is in quarantine since 10:46:02 until 10:51:07 (its server was restarted or replaced). The next failure \
             is an outage. Do not restart another node before 10:51:07."
        );
        assert_eq!(
            said(&[up("a"), up("b"), up("c"), up("d"), node("e", "down", None)], None),
            "Node e does not answer since 10:46:02. 1 more may fail. Bring back e. Do not restart another node meanwhile."
        );
        let quarantined = ["a", "b"].map(|name| node(name, "quarantined", Some(248)));
        let [a, b] = quarantined;
        let outage = said(&[a, b, up("c")], Some(248));
        assert!(
            outage.starts_with("No lock can be granted or extended since 10:46:03: 1 of 3 nodes vote, 2 are needed.")
        );
        assert!(outage.contains("3 requests failed here."), "{outage}");
        assert!(outage.ends_with("Do not restart anything: it ends by itself at 10:51:08."), "{outage}");
    }

    #[test]
    fn an_outage_that_does_not_end_by_itself_names_the_repairs() {
        let ill = ["down", "clock-off", "other-cluster"].map(|state| node(&state[..2], state, None));
        let text = said(&ill, None);
        for part in ["Bring back do", "Repair the NTP of cl", "redlockd config show", "2 of these are enough"] {
            assert!(text.contains(part), "{part}: {text}");
        }
        let text = said(&[node("a", "awaiting-seed", None), node("b", "down", None), node("c", "up", None)], None);
        assert!(
            text.contains("a votes when the other nodes answer; Bring back b. One of these is enough. Do not"),
            "{text}"
        );
    }
}
