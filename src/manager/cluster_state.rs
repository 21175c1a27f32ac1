//! The state of nodes and quorum in one or two sentences: what has failed, since when, until when, why, and what to
//! do. The text is the same on every page, in each line of the log about nodes and quorum, and in `/health/ready`.

use std::cmp::Ordering;
use std::collections::BTreeSet;
use std::time::Duration;

use super::types::{NodeFinding, NodeSummary, QuorumLoss};
use crate::protocol::UnreachableKind;
use crate::redlock::monitor::OtherList;
use crate::redlock::quorum::NotAsked;
use crate::types::NodeId;

const DAY_MS: u64 = 86_400_000;

/// The state in words.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Situation {
    /// The state, since when, until when and why.
    pub state: String,
    /// What an operator should do, or must not do; empty if nothing.
    pub advice: String,
    /// Since when there has been no quorum, with a leading space; empty while there is a quorum.
    pub no_quorum_since: String,
}

impl Situation {
    /// The situation of these nodes. `needed`: the quorum; `ready_in`: when enough nodes vote again, where that is
    /// known. Units of `wall_ms`: milliseconds since 1970.
    pub fn of(
        nodes: &[NodeSummary],
        needed: usize,
        loss: Option<&QuorumLoss>,
        ready_in: Option<Duration>,
        wall_ms: u64,
    ) -> Self {
        let base = Self::of_votes(nodes, needed, loss, ready_in, wall_ms);
        let doubled: Vec<&NodeSummary> = nodes.iter().filter(|node| node.votes && node.has_two_servers).collect();
        let since = doubled.iter().filter_map(|node| node.doubled_for).max();
        let since = since.map(|ago| time_of_day(wall_ms.saturating_sub(ms(ago))));
        let doubled: Vec<&str> = doubled.iter().map(|node| node.node.as_str()).collect();
        if doubled.is_empty() {
            return base;
        }
        let (names, what) = (listed(&doubled, "and"), if doubled.len() == 1 { "name" } else { "names" });
        let verb = match (since, doubled.len()) {
            (None, 1) => "leads to two servers".to_owned(),
            (None, _) => "lead to two servers".to_owned(),
            (Some(since), 1) => format!("has led to two servers since {since}"),
            (Some(since), _) => format!("have led to two servers since {since}"),
        };
        let state = format!("The {what} {names} {verb}; one of them votes. {}", base.state);
        let advice = format!(
            "{} Turn off the wrong server, or correct its address in the instances that reach it; until then it gets no vote.",
            base.advice
        );
        Self { state, advice: advice.trim_start().to_owned(), no_quorum_since: base.no_quorum_since }
    }

    /// The situation by votes, without facts about nodes that vote.
    fn of_votes(
        nodes: &[NodeSummary],
        needed: usize,
        loss: Option<&QuorumLoss>,
        ready_in: Option<Duration>,
        wall_ms: u64,
    ) -> Self {
        let voting = nodes.iter().filter(|node| node.votes).count();
        let ill: Vec<&NodeSummary> = nodes.iter().filter(|node| !node.votes).collect();
        if ill.is_empty() {
            return Self { state: healthy(nodes, needed), ..Self::default() };
        }
        let reasons = reasons(&ill, wall_ms);
        match voting.cmp(&needed) {
            Ordering::Less => {
                let since = loss.map(no_quorum_since).unwrap_or_default();
                let refused = match loss.map_or(0, |loss| loss.refused) {
                    0 => String::new(),
                    1 => " 1 request failed here.".to_owned(),
                    some => format!(" {some} requests failed here."),
                };
                Self {
                    state: format!(
                        "No lock can be granted or extended{since}: {voting} of {} nodes vote, {needed} are needed. {reasons}{refused}",
                        nodes.len(),
                    ),
                    advice: outage_advice(&ill, (nodes.len(), needed - voting), ready_in, wall_ms),
                    no_quorum_since: since,
                }
            }
            Ordering::Equal => Self {
                state: format!("{reasons} The next failure is an outage."),
                advice: degraded_advice(&ill, wall_ms),
                ..Self::default()
            },
            Ordering::Greater => Self {
                state: format!("{reasons} {} more may fail.", voting - needed),
                advice: degraded_advice(&ill, wall_ms),
                ..Self::default()
            },
        }
    }

    /// The state, then the advice.
    pub fn text(&self) -> String {
        format!("{} {}", self.state, self.advice).trim_end().to_owned()
    }
}

/// Since when there has been no quorum, with a leading space.
fn no_quorum_since(loss: &QuorumLoss) -> String {
    let at = time_of_day(loss.since_ms);
    if loss.from_start { format!(" since this instance started at {at}") } else { format!(" since {at}") }
}

fn healthy(nodes: &[NodeSummary], needed: usize) -> String {
    match nodes {
        [only] => format!("The node {} votes: its failure is an outage.", only.node),
        _ => format!("All {} nodes vote: {} may fail.", nodes.len(), nodes.len() - needed.min(nodes.len())),
    }
}

/// Why these nodes have no vote: one sentence for all with the same reason since the same second.
fn reasons(ill: &[&NodeSummary], wall_ms: u64) -> String {
    let sentences = grouped(ill, |node| reason(node, wall_ms)).into_iter().map(|(reason, nodes)| {
        let (subject, verb) = match nodes.len() {
            1 => (format!("Node {}", nodes[0]), reason.one),
            _ => (format!("Nodes {}", listed(&nodes, "and")), reason.several),
        };
        format!("{subject} {verb} {}.", reason.rest)
    });
    sentences.collect::<Vec<_>>().join(" ")
}

/// `a`, `a and b`, `a, b and c`.
fn listed(names: &[&str], last: &str) -> String {
    match names {
        [] => String::new(),
        [only] => (*only).to_owned(),
        [others @ .., end] => format!("{} {last} {end}", others.join(", ")),
    }
}

/// The names of these nodes, grouped by `of`, in order of each group's first node.
fn grouped<'a, K: PartialEq>(nodes: &[&'a NodeSummary], of: impl Fn(&NodeSummary) -> K) -> Vec<(K, Vec<&'a str>)> {
    let mut groups: Vec<(K, Vec<&str>)> = Vec::new();
    for node in nodes {
        let (key, name) = (of(node), node.node.as_str());
        match groups.iter_mut().find(|(known, _)| *known == key) {
            Some((_, names)) => names.push(name),
            None => groups.push((key, vec![name])),
        }
    }
    groups
}

/// What a node lacks: the verb for one node and for several, and the rest of the sentence.
#[derive(PartialEq)]
struct Reason {
    one: &'static str,
    several: &'static str,
    rest: String,
}

/// Why a node is in quarantine, by the word for it.
pub(super) fn cause(word: &str) -> &'static str {
    match word {
        "restart" => "restarted or replaced",
        "blank" => "wiped, or new",
        "failover" => "a replica meanwhile, or its first one attached",
        "evicted" => "evicted keys",
        "clock" => "the clock ran ahead and came back",
        _ => "leases may be forgotten",
    }
}

/// The state of a node: what, since when, until when.
fn reason(node: &NodeSummary, wall_ms: u64) -> Reason {
    let since = time_of_day(wall_ms.saturating_sub(ms(node.since)));
    let has = |rest| Reason { one: "has", several: "have", rest };
    match (node.state.as_str(), node.votes_in) {
        _ if node.has_two_servers => has(format!("two servers under one name, seen since {since}")),
        _ if is_unsuitable(node) => {
            let codes = NodeFinding::codes_that_bar(&node.findings).join(", ");
            has(format!("a server that is unsuitable as a node ({codes})"))
        }
        ("quarantined", Some(left)) => {
            let cause = cause(node.quarantine.as_deref().unwrap_or_default());
            has(format!("been in quarantine since {since}, until {} ({cause})", end(wall_ms, left)))
        }
        ("quarantined", None) => {
            has(format!("been in quarantine since {since} ({})", cause(node.quarantine.as_deref().unwrap_or_default())))
        }
        ("down", _) => has(match node.error {
            Some(UnreachableKind::Full) => {
                format!("refused since {since} what it has to store: its memory or its disk is full")
            }
            Some(UnreachableKind::Auth) => {
                format!("refused since {since} the service's password, or a right of its user")
            }
            Some(UnreachableKind::ReadOnly) => format!("been a replica since {since}"),
            Some(UnreachableKind::Busy) => {
                format!("loaded its data, or run a slow script, since {since}, or takes no more connections")
            }
            Some(UnreachableKind::Protocol) => format!("not answered as a node does since {since}"),
            _ => format!("not answered since {since}"),
        }),
        ("unknown", _) => has("not answered yet".to_owned()),
        ("slow", _) => has(format!("answered too late for most rounds since {since}")),
        ("awaiting-seed", _) => has(format!("waited for the fences of the other nodes since {since}")),
        ("clock-off", _) => has(format!("had a wrong clock since {since}")),
        ("other-cluster" | "other-view", _) if node.other_list != OtherList::Unknown => match &node.other_list {
            OtherList::Other(names) => {
                has(format!("another node list ({})", listed(&Vec::from_iter(names.iter().map(NodeId::as_str)), "and")))
            }
            _ => Reason {
                one: "shows",
                several: "show",
                rest: "the cluster's name, which this instance takes when the other nodes answer".to_owned(),
            },
        },
        ("other-cluster", _) => has("another node list or other settings".to_owned()),
        ("newer-protocol", _) => {
            Reason { one: "is", several: "are", rest: "used by instances of a later release".to_owned() }
        }
        _ if node.not_asked == Some(NotAsked::NoQuorum) => Reason {
            one: "answers, and is",
            several: "answer, and are",
            rest: "asked for votes once a quorum of the nodes answers".to_owned(),
        },
        _ if node.not_asked == Some(NotAsked::OrderDue) => Reason {
            one: "is",
            several: "are",
            rest: "quarantined before this instance asks for votes again, since the nodes' clocks were stepped"
                .to_owned(),
        },
        ("up", _) => has("not answered for some seconds".to_owned()),
        ("other-process", _) => Reason {
            one: "leads",
            several: "lead",
            rest: format!("to a server other than the one that votes under the name, since {since}"),
        },
        (state, _) => has(format!("had no vote since {since} ({state})")),
    }
}

/// Whether it answers, and a finding about its server removes its vote.
fn is_unsuitable(node: &NodeSummary) -> bool {
    node.state != "down" && !NodeFinding::codes_that_bar(&node.findings).is_empty()
}

/// What ends an outage of `nodes` nodes: `missing` more votes.
fn outage_advice(
    ill: &[&NodeSummary],
    (nodes, missing): (usize, usize),
    ready_in: Option<Duration>,
    wall_ms: u64,
) -> String {
    // Last, since it requires no action.
    let keep = "Leases stay valid to their deadline.";
    if let Some(left) = ready_in {
        let until = end(wall_ms, left);
        let is_new = ill.len() == nodes && ill.iter().all(|node| node.quarantine.as_deref() == Some("blank"));
        let declare = if is_new { " If all nodes are new, declare them with `redlockd init`." } else { "" };
        return format!("Do not restart anything: it ends by itself at {until}.{declare} {keep}");
    }
    let votes_with_others = |node: &&&NodeSummary| node.not_asked.is_some() || node.other_list == OtherList::Own;
    let needed = missing.saturating_sub(ill.iter().filter(votes_with_others).count());
    let enough = match (needy(ill).len(), needed) {
        (0, _) => return format!("Do not restart anything: it ends by itself. {keep}"),
        (needy, needed) if needy <= needed => String::new(),
        (_, 0) => String::new(),
        (_, 1) => " One of them is enough.".to_owned(),
        (_, some) => format!(" {some} of them are enough."),
    };
    format!("{}{enough} Do not restart the other nodes. {keep}", repairs(ill))
}

/// What to do about nodes without a vote while a quorum votes.
fn degraded_advice(ill: &[&NodeSummary], wall_ms: u64) -> String {
    let last = ill.iter().filter_map(|node| node.votes_in).max();
    match (repairs(ill), last) {
        (repairs, Some(left)) if repairs.is_empty() => {
            format!("Do not restart another node before {}.", end(wall_ms, left))
        }
        (repairs, _) => {
            let they = if ill.len() == 1 { "it votes" } else { "they vote" };
            format!("{repairs} Do not restart another node until {they}.")
        }
    }
}

/// The nodes whose state does not end by itself. If a node has another node list, quarantined nodes wait for its correction; a node
/// with the same list waits for the others.
fn needy<'a>(ill: &[&'a NodeSummary]) -> Vec<&'a NodeSummary> {
    let shows_name = |node: &NodeSummary| node.other_list == OtherList::Own;
    let is_other = ill.iter().any(|node| node.state == "other-cluster" && !shows_name(node));
    let waits_for_others = !ill.iter().all(|node| shows_name(node));
    let waits_for_it = |node: &NodeSummary| is_other && node.state == "quarantined";
    let ends = |node: &NodeSummary| {
        node.votes_in.is_some()
            || node.not_asked.is_some()
            || waits_for_it(node)
            || waits_for_others && shows_name(node)
    };
    let is_needy = |node: &&NodeSummary| !ends(node) || node.has_two_servers;
    ill.iter().copied().filter(is_needy).collect()
}

/// What to do about these nodes: one sentence for all that need the same.
fn repairs(ill: &[&NodeSummary]) -> String {
    let unlisted: BTreeSet<&str> = ill.iter().flat_map(|node| &node.waits_for.unlisted).map(NodeId::as_str).collect();
    let unlisted: Vec<&str> = unlisted.into_iter().collect();
    let start = || format!("Start the instances with {} in their list.", listed(&unlisted, "and"));
    let waits = |node: &&NodeSummary| matches!(node.state.as_str(), "awaiting-seed" | "other-view");
    let needy: Vec<_> = needy(ill).into_iter().filter(|node| unlisted.is_empty() || !waits(node)).collect();
    let sentences = grouped(&needy, repair)
        .into_iter()
        .map(|((before, after), nodes)| format!("{before}{}{after}.", listed(&nodes, "and")));
    (!unlisted.is_empty()).then(start).into_iter().chain(sentences).collect::<Vec<_>>().join(" ")
}

/// The text before and after the names of the nodes.
fn repair(node: &NodeSummary) -> (&'static str, &'static str) {
    match node.state.as_str() {
        _ if node.has_two_servers => ("Turn off the wrong server of ", ", or correct its address here"),
        _ if is_unsuitable(node) => ("See the findings of ", ""),
        "down" => match node.error {
            Some(UnreachableKind::Full) => ("Give memory or disk to ", ""),
            Some(UnreachableKind::Auth) => ("Correct the service's password or rights on ", ""),
            Some(UnreachableKind::ReadOnly) => ("Make the server of ", " a master again, or correct the address"),
            Some(UnreachableKind::Busy) => ("Wait for ", ", or end the script there"),
            Some(UnreachableKind::Protocol) => ("Find out which server answers as ", ""),
            _ => ("Bring back ", ""),
        },
        "unknown" => ("Wait for ", ""),
        "slow" => ("Find out what slows down ", " (processor, memory, disk, network)"),
        "quarantined" => ("Wait for the end of the quarantine of ", ""),
        "awaiting-seed" => ("Wait until other nodes answer, then these vote: ", ""),
        "clock-off" => ("Repair the NTP of ", ""),
        "other-cluster" | "other-view" if matches!(node.other_list, OtherList::Other(_)) => {
            ("Start this instance with the node list of ", ", or correct the addresses if that is another cluster's")
        }
        "other-cluster" => ("Compare `redlockd config show` on all instances (", ")"),
        "other-process" => ("Correct the address of ", " here"),
        "other-view" => ("Wait some seconds, then see why this instance does not follow the view of ", ""),
        "newer-protocol" => ("Upgrade this instance (", ")"),
        _ => ("See the findings of ", ""),
    }
}

fn ms(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

/// The time, rounded up, at which something ends that has `left` left.
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
    use crate::redlock::monitor::WaitedFor;

    /// 10:47:00 on the first of January 1970.
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
        let lasts = Duration::from_secs(57);
        let loss = QuorumLoss { since_ms: NOW_MS - 57_000, lasts, refused: 3, from_start: false };
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
            "Node c has been in quarantine since 10:46:02, until 10:51:07 (restarted or replaced). The next failure is an outage. \
             Do not restart another node before 10:51:07."
        );
        assert_eq!(
            said(&[up("a"), up("b"), up("c"), up("d"), node("e", "down", None)], None),
            "Node e has not answered since 10:46:02. 1 more may fail. Bring back e. Do not restart another node until it votes."
        );
        let quarantined = ["a", "b"].map(|name| node(name, "quarantined", Some(248)));
        let [a, b] = quarantined;
        let outage = said(&[a, b, up("c")], Some(248));
        assert!(
            outage.starts_with("No lock can be granted or extended since 10:46:03: 1 of 3 nodes vote, 2 are needed.")
        );
        assert!(outage.contains("3 requests failed here."), "{outage}");
        let advice = "Do not restart anything: it ends by itself at 10:51:08. Leases stay valid to their deadline.";
        assert!(outage.ends_with(advice), "{outage}");
        let never =
            QuorumLoss { since_ms: NOW_MS - 9_000, lasts: Duration::from_secs(9), refused: 0, from_start: true };
        let down = ["a", "b", "c"].map(|name| node(name, "down", None));
        let never = Situation::of(&down, 2, Some(&never), None, NOW_MS);
        let since = " since this instance started at 10:46:51";
        assert!(never.state.starts_with(&format!("No lock can be granted or extended{since}: 0 of 3")), "{never:?}");
        assert_eq!(never.no_quorum_since, since);
        let blank = ["a", "b", "c"]
            .map(|name| NodeSummary { quarantine: Some("blank".to_owned()), ..node(name, "quarantined", Some(248)) });
        let undeclared = said(&blank, Some(248));
        assert!(undeclared.contains("If all nodes are new, declare them with `redlockd init`."), "{undeclared}");
    }

    #[test]
    fn a_name_with_two_servers_is_said_whether_the_one_that_is_reached_votes_or_not() {
        let doubled = |state, votes_in| NodeSummary {
            has_two_servers: true,
            doubled_for: Some(Duration::from_secs(10)),
            ..node("e", state, votes_in)
        };
        let all = [node("a", "up", None), node("b", "up", None), doubled("up", None)];
        assert_eq!(
            said(&all, None),
            "The name e has led to two servers since 10:46:50; one of them votes. All 3 nodes vote: 1 may fail. Turn off the \
             wrong server, or correct its address in the instances that reach it; until then it gets no vote."
        );
        let [a, b, _] = all;
        let text = said(&[a, b, doubled("quarantined", Some(60))], None);
        assert!(text.starts_with("Node e has two servers under one name, seen since 10:46:02."), "{text}");
        assert!(text.contains("Turn off the wrong server of e, or correct its address here."), "{text}");
    }

    /// U4 of the neighbour.
    #[test]
    fn u4_a_full_node_is_not_said_to_be_silent() {
        let full = NodeSummary { error: Some(UnreachableKind::Full), ..node("a", "down", None) };
        assert_eq!(
            said(&[full], None),
            "No lock can be granted or extended since 10:46:03: 0 of 1 nodes vote, 1 are needed. Node a has refused since 10:46:02 \
             what it has to store: its memory or its disk is full. 3 requests failed here. Give memory or disk to a. Do not restart \
             the other nodes. Leases stay valid to their deadline."
        );
    }

    /// They were all said not to answer.
    #[test]
    fn a_node_that_answers_with_an_error_is_not_said_to_be_silent() {
        for (error, state, advice) in [
            (
                UnreachableKind::Auth,
                "refused since 10:46:02 the service's password",
                "the service's password or rights on a.",
            ),
            (
                UnreachableKind::ReadOnly,
                "been a replica since 10:46:02.",
                "Make the server of a a master again, or correct",
            ),
            (
                UnreachableKind::Busy,
                "loaded its data, or run a slow script, since 10:46:02, or takes no more connections.",
                "Wait for a, or end the script",
            ),
            (
                UnreachableKind::Protocol,
                "not answered as a node does since 10:46:02.",
                "Find out which server answers as a.",
            ),
            (UnreachableKind::Broken, "not answered since 10:46:02.", "Bring back a."),
        ] {
            let text = said(&[NodeSummary { error: Some(error), ..node("a", "down", None) }], None);
            assert!(text.contains(&format!("Node a has {state}")) && text.contains(advice), "{text}");
        }
    }

    #[test]
    fn a_node_on_an_unsuitable_server_is_named_with_the_finding() {
        let finding = |code: &str, bars| NodeFinding { code: code.into(), detail: String::new(), bars };
        let findings = vec![finding("no-persistence", false), finding("evicts", true)];
        let unsuitable =
            |name, state| NodeSummary { votes: false, findings: findings.clone(), ..node(name, state, None) };
        let text = said(&[node("a", "up", None), node("b", "up", None), unsuitable("c", "up")], None);
        assert!(text.starts_with("Node c has a server that is unsuitable as a node (evicts)."), "{text}");
        let text = said(&[node("a", "up", None), unsuitable("b", "down"), unsuitable("c", "quarantined")], None);
        for part in
            ["Node b has not answered", "Node c has a server that", "Bring back b. See the findings of c. One of"]
        {
            assert!(text.contains(part), "{part}: {text}");
        }
    }

    #[test]
    fn an_outage_that_does_not_end_by_itself_names_the_repairs() {
        let ill = ["down", "clock-off", "other-cluster"].map(|state| node(&state[..2], state, None));
        let text = said(&ill, None);
        for part in ["Bring back do", "Repair the NTP of cl", "redlockd config show", "2 of them are enough"] {
            assert!(text.contains(part), "{part}: {text}");
        }
        let waits = NodeSummary { quarantine: Some("blank".to_owned()), ..node("c", "quarantined", None) };
        let text = said(&[node("a", "other-cluster", None), node("b", "other-cluster", None), waits], None);
        let advice = "Compare `redlockd config show` on all instances (a and b). Do not restart the other nodes.";
        assert!(text.contains(advice), "{text}");
        let names = ["a", "d"].map(|name| NodeId::parse(name).expect("valid"));
        let shows = |name, other_list| NodeSummary { other_list, ..node(name, "other-cluster", None) };
        let other = OtherList::Other(names.into());
        let text = said(&[shows("a", other), node("b", "other-cluster", None), node("c", "up", None)], None);
        for part in [
            "Node a has another node list (a and d). Node b has another",
            "Start this instance with the node list of a, or",
        ] {
            assert!(text.contains(part), "{part}: {text}");
        }
        let text = said(&[shows("a", OtherList::Own), node("b", "down", None), node("c", "down", None)], None);
        for part in ["Node a shows the cluster's name, which", " Bring back b and c. One of them is enough. Do not"] {
            assert!(text.contains(part), "{part}: {text}");
        }
        let text = said(&["a", "b", "c"].map(|name| node(name, "down", None)), None);
        for part in
            ["Nodes a, b and c have not answered since 10:46:02. 3", "Bring back a, b and c. 2 of them are enough."]
        {
            assert!(text.contains(part), "{part}: {text}");
        }
        let text = said(&[node("a", "awaiting-seed", None), node("b", "down", None), node("c", "up", None)], None);
        assert!(
            text.contains(
                "Wait until other nodes answer, then these vote: a. Bring back b. One of them is enough. Do not"
            ),
            "{text}"
        );
        let text =
            said(&[node("a", "other-process", None), node("b", "other-process", None), node("c", "up", None)], None);
        for part in ["Nodes a and b lead to a server other", "Correct the address of a and b here. One of them is"] {
            assert!(text.contains(part), "{part}: {text}");
        }
        let unlisted = WaitedFor { unlisted: vec![NodeId::parse("d").expect("valid")], ..WaitedFor::default() };
        let lacks = |name, state| NodeSummary { waits_for: unlisted.clone(), ..node(name, state, None) };
        let text = said(&[lacks("a", "awaiting-seed"), node("b", "down", None), lacks("c", "other-view")], None);
        assert!(text.contains(" Start the instances with d in their list. Bring back b. "), "{text}");
        assert!(!text.contains("Wait until") && !text.contains("findings"), "{text}");
    }

    /// After a start below a quorum, a node that answers was said not to answer, and two others were asked for.
    #[test]
    fn a_node_that_is_not_asked_yet_is_none_to_be_repaired() {
        let asked_later = |name, reason| NodeSummary { not_asked: Some(reason), ..node(name, "not-asked", None) };
        let text =
            said(&[asked_later("a", NotAsked::NoQuorum), node("b", "down", None), node("c", "down", None)], None);
        for part in [
            "Node a answers, and is asked for votes once a quorum of the nodes answers. Nodes b and c have not answered",
            "requests failed here. Bring back b and c. One of them is enough. Do not restart the other nodes.",
        ] {
            assert!(text.contains(part), "{part}: {text}");
        }
        let text = said(&["a", "b", "c"].map(|name| asked_later(name, NotAsked::OrderDue)), None);
        for part in [
            "Nodes a, b and c are quarantined before this instance asks for votes again, since",
            "here. Do not restart anything: it ends by itself. Leases stay valid",
        ] {
            assert!(text.contains(part), "{part}: {text}");
        }
    }
}
