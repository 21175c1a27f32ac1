//! The state of a node as text, from the node monitor: the state, until when it lasts, and why the node does not vote.

use std::time::Duration;

use super::types::NodeFinding;
use crate::protocol::{NoVote, NodeStatus, UnreachableKind, Vote};
use crate::redlock::clock::BootTime;
use crate::redlock::monitor::{NodeHealth, OtherList, WaitedFor};
use crate::redlock::quorum::{NotAsked, Verdict};
use crate::types::NodeId;

/// Why the vote of a node whose answers are late does not count.
const SLOW: &str = "most of its answers come later than rounds wait for them, so that its vote seldom counts";

/// The state of a node that would vote, but is not asked.
pub(super) const NOT_ASKED: &str = "not-asked";

const OTHER_PROCESS: &str = "its name leads to another process than the one that votes under it: correct the address";

const OTHER_NAME: &str = "its list was changed since its cluster was declared: this instance, which has that list, takes the cluster's name \
                          once a quorum of the nodes shows it, or all others answer that they forgot";

/// A node's state as text.
pub(super) struct NodeState {
    pub state: String,
    /// Time until the node votes again, where that is known.
    pub votes_in: Option<Duration>,
    /// Why it does not vote.
    pub why: Option<String>,
    /// The nodes that it waits for.
    pub waits_for: WaitedFor,
}

impl NodeState {
    fn new(state: &str, why: Option<String>) -> Self {
        Self { state: state.to_owned(), votes_in: None, why, waits_for: WaitedFor::default() }
    }

    /// The state of a node that answers, and whose server is unsuitable: it does not vote, whatever else ends.
    pub(super) fn with_findings(mut self, findings: &[NodeFinding]) -> Self {
        let codes = NodeFinding::codes_that_bar(findings);
        if self.state != "down" && !codes.is_empty() {
            let unsuitable = format!("its server is unsuitable as a node: {}", codes.join(", "));
            self.why = Some(self.why.map_or_else(|| unsuitable.clone(), |why| format!("{why}; {unsuitable}")));
            self.votes_in = None;
        }
        self
    }
}

/// The state of a node. `missing`: the nodes that all nodes which forgot wait for; `ended_in`: time until the node counts as ended,
/// if an operator reported that; `not_asked`: why this instance asks no node for a vote; `other_list`: what the node shows of the list
/// of another cluster.
pub(super) fn describe(
    health: &NodeHealth,
    now: BootTime,
    missing: &WaitedFor,
    ended_in: Option<Duration>,
    not_asked: Option<NotAsked>,
    other_list: &OtherList,
) -> NodeState {
    if let Some(kind) = health.error {
        let ended = ended_in.map(|left| match left.as_secs() {
            0 => "; an operator said that it has ended, and nobody waits for it".to_owned(),
            seconds => format!("; an operator said that it has ended: nobody waits for it after {} s", seconds + 1),
        });
        return NodeState::new("down", Some(format!("{}{}", failed_probe(kind), ended.unwrap_or_default())));
    }
    let Some(NodeStatus { vote, why, .. }) = &health.status else {
        return NodeState::new("unknown", Some("it has not answered a probe yet".into()));
    };
    if health.is_slow && health.votes(now) {
        return NodeState::new("slow", Some(SLOW.into()));
    }
    if let Some(reason) = not_asked.filter(|_| health.votes(now)) {
        return NodeState::new(NOT_ASKED, Some(not_asked_sentence(reason).into()));
    }
    let passed = health.answered_at.map_or(Duration::ZERO, |at| now.since(at));
    match vote {
        Vote::Active | Vote::AlreadyInitialised | Vote::Witnessed => {
            let run = health.status.as_ref().map(|status| status.run.as_str()).filter(|_| health.is_other_process);
            if let Some(run) = run {
                let why = two_servers(health).unwrap_or_else(|| OTHER_PROCESS.into());
                return NodeState::new(Verdict::NoVote(NoVote::OtherProcess { run: run.into() }).as_str(), Some(why));
            }
            let late = || {
                format!("its last answer is {} s old: it, the network or this process stood still", passed.as_secs())
            };
            NodeState::new("up", two_servers(health).or_else(|| (!health.votes(now)).then(late)))
        }
        Vote::NoVote(NoVote::OtherView { .. }) if health.votes(now) => NodeState::new("up", None),
        Vote::NoVote(no_vote) => {
            let waits_for = match no_vote {
                NoVote::Quarantined { .. } | NoVote::Unseeded { .. } => missing.clone(),
                NoVote::OtherView { .. } => WaitedFor { unlisted: missing.unlisted.clone(), ..WaitedFor::default() },
                _ => WaitedFor::default(),
            };
            let (votes_in, mut sentence) = no_vote_sentence(no_vote, why, passed, &waits_for);
            match other_list {
                OtherList::Unknown => {}
                OtherList::Other(names) => {
                    sentence = format!("it belongs to instances with another node list: {}", NodeId::list(names));
                }
                OtherList::Own => sentence = OTHER_NAME.into(),
            }
            let state = Verdict::NoVote(no_vote.clone()).as_str();
            NodeState { votes_in, waits_for, ..NodeState::new(state, Some(two_servers(health).unwrap_or(sentence))) }
        }
    }
}

fn failed_probe(kind: UnreachableKind) -> String {
    match failure_words(kind) {
        word if word == kind.as_str() => format!("the last probe failed: {kind}"),
        words => format!("the last probe failed: {kind} ({words})"),
    }
}

/// What a failed request says of the node, or where that is to be seen, or the word for it.
pub(super) fn failure_words(kind: UnreachableKind) -> &'static str {
    match kind {
        UnreachableKind::Auth => "the service's user lacks a right there, or its password is wrong",
        UnreachableKind::ReadOnly => "it is a replica",
        UnreachableKind::Full => "its memory or its disk is full",
        UnreachableKind::Busy => "it loads its data, runs a slow script, or takes no more connections",
        UnreachableKind::Protocol => "its reply is not that of a node",
        UnreachableKind::Disconnected => "this instance's log says why",
        other => other.as_str(),
    }
}

/// Time until the node votes, if only time decides, and why it does not vote. `passed`: time since it answered.
fn no_vote_sentence(
    no_vote: &NoVote,
    why: &str,
    passed: Duration,
    waits_for: &WaitedFor,
) -> (Option<Duration>, String) {
    let (names, remedy) = (waits_for.names(), waits_for.remedy());
    let sentence = match no_vote {
        NoVote::Quarantined { left_ms } => {
            let left = Duration::from_millis(*left_ms).saturating_sub(passed);
            if waits_for.is_empty() {
                return (Some(left), quarantine_sentence(why));
            }
            format!("{}; after it, it waits for {names} ({remedy})", quarantine_sentence(why))
        }
        // This reason concerns one resource, so it is never a node's state.
        NoVote::Blocked { .. } => String::new(),
        NoVote::Unseeded { .. } if waits_for.is_empty() => {
            "its quarantine is over; it votes again when it has read the fences of a quorum of the other nodes"
                .to_owned()
        }
        NoVote::Unseeded { .. } => {
            format!("its quarantine is over; too few other nodes vote, and it waits for {names} ({remedy})")
        }
        NoVote::ClockOff { .. } => "its clock differs from the other nodes' by more than the guard".to_owned(),
        NoVote::OtherCluster { .. } => {
            "it belongs to instances with another node list, guard, lock delay or key template".to_owned()
        }
        NoVote::OtherView { .. } if !waits_for.unlisted.is_empty() => {
            format!("this instance cannot follow the nodes' view ({remedy})")
        }
        NoVote::OtherView { .. } | NoVote::OtherProcess { .. } => {
            "the instances and the nodes are about to agree on another view".to_owned()
        }
        NoVote::NewerProtocol { theirs } => {
            format!("it belongs to instances of a later release (protocol {theirs}): upgrade this one")
        }
    };
    (None, sentence)
}

fn not_asked_sentence(reason: NotAsked) -> &'static str {
    match reason {
        NotAsked::NoQuorum => "it answers; this instance asks for votes once a quorum of the nodes answers",
        NotAsked::OrderDue => {
            "it answers; the nodes' clocks were stepped before this instance had followed a change of the nodes: it asks for votes \
             once it has quarantined them"
        }
    }
}

/// Why the node is in quarantine, in one word; `None` if it is not.
pub(super) fn quarantine_reason(health: &NodeHealth) -> Option<String> {
    let status =
        health.status.as_ref().filter(|status| matches!(status.vote, Vote::NoVote(NoVote::Quarantined { .. })))?;
    Some(status.why.clone())
}

fn two_servers(health: &NodeHealth) -> Option<String> {
    let rival = health.rival.as_ref().filter(|_| health.has_two_servers)?;
    let rival: String = rival.chars().take(8).collect();
    Some(format!(
        "its name leads to two servers: an instance reaches another one (run {rival}); until one of them is gone, the new one \
         gets no vote"
    ))
}

fn quarantine_sentence(why: &str) -> String {
    let cause = match why {
        "blank" => {
            "it carried no marker: it was wiped, or is new (where all nodes are new, declare them with `redlockd init`)"
        }
        "failover" => "its server was a replica meanwhile, and may have lost leases, or got its first replica",
        "restart" => "it was restarted or replaced, and leases from before may still be in use",
        "clock" => "its clock ran ahead and came back: leases may have ended early",
        "evicted" => "it evicted keys under memory pressure and may have forgotten leases",
        "replaced" => "another process took its place, and it is to get the knowledge of the others first",
        "displaced" => "the nodes' view names another process, or another life of this one",
        "ordered" => "its clock was stepped, or an operator ordered it",
        _ => "it may have forgotten leases",
    };
    format!("in quarantine: {cause}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::types::Fence;

    /// A node with a replica, or an eviction policy, was shown as up, without a vote and without a reason.
    #[test]
    fn an_unsuitable_server_is_the_reason_and_no_time_ends_it() {
        let finding = |code: &str, bars| NodeFinding { code: code.into(), detail: String::new(), bars };
        let findings = [finding("no-persistence", false), finding("has-replicas", true)];
        let up = NodeState::new("up", None).with_findings(&findings);
        assert_eq!(up.why.as_deref(), Some("its server is unsuitable as a node: has-replicas"));
        let waits =
            || NodeState { votes_in: Some(Duration::from_secs(9)), ..NodeState::new("quarantined", Some("x".into())) };
        let quarantined = waits().with_findings(&findings);
        let why = quarantined.why.as_deref();
        assert_eq!((quarantined.votes_in, why), (None, Some("x; its server is unsuitable as a node: has-replicas")));
        let suitable = waits().with_findings(&findings[..1]);
        assert_eq!((suitable.votes_in, suitable.why.as_deref()), (Some(Duration::from_secs(9)), Some("x")));
        assert_eq!(NodeState::new("down", None).with_findings(&findings).why, None, "these are findings of before");
    }

    /// Seed 431322: too few nodes voted, and what was missing was a node that this instance did not have in its list.
    #[test]
    fn a_node_says_for_which_nodes_it_waits_and_what_ends_that() {
        let names = |names: &[&str]| names.iter().map(|name| NodeId::parse(name).expect("valid")).collect();
        let said_if = |nodes, answer, unlisted| {
            let waits_for = WaitedFor { nodes: names(nodes), answer, unlisted: names(unlisted) };
            no_vote_sentence(&NoVote::Unseeded { high_water: Fence(0) }, "restart", Duration::ZERO, &waits_for).1
        };
        let said = |nodes, unlisted| said_if(nodes, false, unlisted);
        let (forget, start) =
            ("if that has ended for good, say so with `redlockd nodes forget`", "start the instances with");
        assert!(said(&[], &[]).contains("when it has read the fences"));
        let known = said(&["n1"], &[]);
        assert!(known.contains("waits for n1 (") && known.contains(forget) && !known.contains(start), "{known}");
        let answers = said_if(&["n1"], true, &[]);
        assert!(answers.contains("waits for n1 (see why that has no vote)") && !answers.contains(forget), "{answers}");
        let unlisted = said(&[], &["n3", "n4"]);
        assert!(unlisted.contains("waits for n3, n4 (") && unlisted.contains(start), "{unlisted}");
        assert!(!unlisted.contains(forget), "{unlisted}");
        let both = said(&["n1"], &["n3"]);
        assert!(both.contains("waits for n1, n3 (") && both.contains(start) && both.contains(forget), "{both}");
        let follows = |unlisted| {
            let waits_for = WaitedFor { unlisted: names(unlisted), ..WaitedFor::default() };
            no_vote_sentence(&NoVote::OtherView { view: Default::default() }, "init", Duration::ZERO, &waits_for).1
        };
        assert!(follows(&["n3"]).contains(start) && follows(&[]).contains("about to agree"));
    }

    #[test]
    fn a_failed_probe_says_what_failed_where_its_word_does_not() {
        assert_eq!(
            failed_probe(UnreachableKind::Disconnected),
            "the last probe failed: disconnected (this instance's log says why)"
        );
        assert_eq!(
            failed_probe(UnreachableKind::Auth),
            "the last probe failed: auth (the service's user lacks a right there, or its password is wrong)"
        );
    }

    #[test]
    fn c14_a_restart_is_said_in_words_that_also_fit_a_clean_stop_of_an_embedded_node() {
        let sentence = quarantine_sentence("restart");
        assert!(
            sentence.contains("leases from before may still be in use") && !sentence.contains("server"),
            "{sentence}"
        );
    }
}
