//! What happens to the nodes and to the quorum: since when, for how long, why, and how many requests were refused
//! meanwhile. Each beginning and each end is logged once, published as an event, and counted for metrics.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;

use super::cluster_state::{Situation, cause};
use super::events::{EventHub, EventKind};
use super::latency::LateShare;
use super::types::{NodeSummary, QuarantineCounts, QuorumLoss};
use crate::redlock::clock::BootTime;
use crate::types::NodeId;

/// The two clocks at one moment: durations are computed from the first, displayed times from the second.
#[derive(Debug, Clone, Copy)]
pub(super) struct Moment {
    pub now: BootTime,
    /// Milliseconds since 1970.
    pub wall_ms: u64,
}

/// The state of nodes and quorum since the start.
pub(super) struct IncidentTracker {
    /// When this instance started.
    start: Moment,
    /// Requests that failed for want of a quorum since the start.
    refused: AtomicU64,
    state: Mutex<IncidentState>,
}

#[derive(Default)]
struct IncidentState {
    nodes: BTreeMap<NodeId, NodeRecord>,
    /// `None` before the first observation.
    has_quorum: Option<bool>,
    loss: Option<Loss>,
    /// How many requests had failed at the last observation.
    refused: u64,
}

#[derive(Clone, Copy)]
struct Loss {
    since: Moment,
    /// How many requests had failed before the loss.
    refused: u64,
    /// Whether there was no quorum before it either.
    from_start: bool,
}

#[derive(Clone, Default)]
struct NodeRecord {
    state: String,
    votes: bool,
    /// Since when the node has no vote.
    lost: Option<BootTime>,
    quarantines: QuarantineCounts,
    /// How often the node had lost its memory at the last observation.
    losses: u64,
    /// Since when the node's name leads to two servers.
    doubled: Option<BootTime>,
}

/// The beginning or the end of an incident.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Incident {
    /// A node (its index) changed from this state to a state without a vote.
    NodeLost { node: usize, before: String },
    /// A node lost its memory and was filled by the others, both since the last observation.
    Forgot { node: usize },
    /// A node votes again after this time.
    NodeBack { node: usize, after: Option<Duration> },
    /// The name of a node leads to two servers.
    TwoServers { node: usize },
    /// The name of a node leads to one server again after this time.
    OneServer { node: usize, after: Duration },
    /// A quorum votes, for the first time.
    Quorum,
    /// Too few nodes vote for a quorum.
    QuorumLost,
    /// A quorum votes again after this time; this many requests failed.
    QuorumBack { after: Duration, refused: u64 },
}

impl IncidentTracker {
    /// A tracker of an instance that starts at this moment.
    pub(super) fn new(start: Moment) -> Self {
        Self { start, refused: AtomicU64::new(0), state: Mutex::default() }
    }

    /// Counts a request that failed for want of a quorum.
    pub(super) fn count_refusal(&self) {
        self.refused.fetch_add(1, Ordering::Relaxed);
    }

    /// The present loss of the quorum, if there is one; before the first observation there was no quorum.
    pub(super) fn quorum_loss(&self, now: BootTime) -> Option<QuorumLoss> {
        let state = self.state.lock();
        let unobserved = state.has_quorum.is_none().then_some(Loss { since: self.start, refused: 0, from_start: true });
        let loss = state.loss.or(unobserved)?;
        drop(state);
        let refused = self.refused.load(Ordering::Relaxed).saturating_sub(loss.refused);
        let (since_ms, lasts) = (loss.since.wall_ms, now.since(loss.since.now));
        Some(QuorumLoss { since_ms, lasts, refused, from_start: loss.from_start })
    }

    /// How often a node was seen to begin a quarantine, by reason.
    pub(super) fn quarantines(&self, node: &NodeId) -> QuarantineCounts {
        self.state.lock().nodes.get(node).map(|record| record.quarantines).unwrap_or_default()
    }

    /// How long the name of a node has led to two servers.
    pub(super) fn doubled_for(&self, node: &NodeId, now: BootTime) -> Option<Duration> {
        self.state.lock().nodes.get(node)?.doubled.map(|since| now.since(since))
    }

    /// Compares the nodes with the last call. `needed`: the quorum.
    pub(super) fn observe(&self, nodes: &[NodeSummary], needed: usize, at: Moment) -> Vec<Incident> {
        let mut state = self.state.lock();
        // A node that left the list is no incident, and a node that is added again is new.
        state.nodes.retain(|id, _| nodes.iter().any(|node| node.node == *id));
        let mut incidents = Vec::new();
        for (i, summary) in nodes.iter().enumerate() {
            let record = state.nodes.entry(summary.node.clone()).or_default();
            match (summary.has_two_servers, record.doubled) {
                (true, None) => {
                    record.doubled = Some(at.now);
                    incidents.push(Incident::TwoServers { node: i });
                }
                (false, Some(since)) => {
                    record.doubled = None;
                    incidents.push(Incident::OneServer { node: i, after: at.now.since(since) });
                }
                _ => {}
            }
            let before = std::mem::replace(&mut record.state, summary.state.clone());
            let had_vote = std::mem::replace(&mut record.votes, summary.votes);
            let losses = std::mem::replace(&mut record.losses, summary.losses.count);
            let is_unseen =
                losses < summary.losses.count && ![&before, &summary.state].contains(&&"quarantined".to_owned());
            if is_unseen && !before.is_empty() {
                record.quarantines.add(&summary.losses.why);
                incidents.push(Incident::Forgot { node: i });
                if had_vote && summary.votes {
                    let after = summary.lost_ago.map(|ago| ago.saturating_sub(summary.since));
                    incidents.push(Incident::NodeBack { node: i, after });
                }
            }
            if before == summary.state && had_vote == summary.votes || summary.state == "unknown" {
                continue;
            }
            if summary.votes {
                let after = record.lost.take().map(|lost| at.now.since(lost));
                // A node that votes when the instance starts is no incident.
                incidents.extend((!before.is_empty()).then_some(Incident::NodeBack { node: i, after }));
                continue;
            }
            record.lost.get_or_insert(at.now);
            if summary.state == "quarantined" && before != "quarantined" {
                record.quarantines.add(summary.quarantine.as_deref().unwrap_or_default());
            }
            incidents.push(Incident::NodeLost { node: i, before });
        }
        let has_quorum = nodes.iter().filter(|node| node.votes).count() >= needed;
        let had_quorum = state.has_quorum.replace(has_quorum);
        let refused = self.refused.load(Ordering::Relaxed);
        // Requests that failed since the last observation failed for a loss that is observed only now.
        let refused_before = std::mem::replace(&mut state.refused, refused);
        match (had_quorum, has_quorum) {
            (None | Some(true), false) => {
                let from_start = had_quorum.is_none();
                let since = if from_start { self.start } else { at };
                state.loss = Some(Loss { since, refused: refused_before, from_start });
                incidents.push(Incident::QuorumLost);
            }
            (None, true) => incidents.push(Incident::Quorum),
            (Some(false), true) => incidents.extend(state.loss.take().map(|loss| Incident::QuorumBack {
                after: at.now.since(loss.since.now),
                refused: refused.saturating_sub(loss.refused),
            })),
            (Some(true), true) | (Some(false), false) => {}
        }
        incidents
    }
}

/// The share of late calls of one node; `None` if it is not known.
pub(super) type LateShareOf<'a> = dyn Fn(&NodeId) -> Option<LateShare> + 'a;

/// What the next failure means, as part of a line in the log.
fn margin_text(voting: usize, needed: usize) -> &'static str {
    match voting.cmp(&needed) {
        std::cmp::Ordering::Greater => "locks are granted as before",
        std::cmp::Ordering::Equal => "the next failure is an outage",
        std::cmp::Ordering::Less => "no quorum is left",
    }
}

/// Writes the line of an incident, with the state of all nodes and what to do, as on the pages. `rounds_wait`: how
/// long rounds wait for a node; `late`: the share of its last calls that took longer.
pub(super) fn log(
    incident: &Incident,
    nodes: &[NodeSummary],
    needed: usize,
    of_all: &Situation,
    (rounds_wait, late): (Duration, &LateShareOf<'_>),
) {
    let voting = nodes.iter().filter(|node| node.votes).count();
    let (then, of) = (margin_text(voting, needed), nodes.len());
    let (situation, advice) = (&of_all.state, Some(of_all.advice.as_str()).filter(|advice| !advice.is_empty()));
    match incident {
        Incident::NodeLost { node, before } => {
            let NodeSummary { node, state, why, votes_in, latency, .. } = &nodes[*node];
            let (why, votes_in_s) = (why.as_deref().unwrap_or_default(), votes_in.map(|left| left.as_secs()));
            let slow = (state == "slow").then_some((rounds_wait, latency.unwrap_or_default()));
            let (rounds_wait_ms, latency_ms) = slow.map(|(wait, took)| (wait.as_millis(), took.as_millis())).unzip();
            let late = slow.and_then(|_| late(node));
            let (late_percent, late_of) = late.map(|late| (late.percent(), late.calls)).unzip();
            let late_in_s = late.map(|late| late.over.as_secs());
            tracing::warn!(
                %node, state, before, why, votes_in_s, latency_ms, rounds_wait_ms, late_percent, late_of, late_in_s, voting,
                needed, of, situation, advice, "the node has no vote: {then}"
            );
        }
        Incident::Forgot { node } => {
            let (node, why) = (&nodes[*node].node, forgot(&nodes[*node]));
            tracing::warn!(%node, voting, needed, of, situation, advice, "the node {why}: {then}");
        }
        Incident::NodeBack { node, after } => {
            let (node, after_s) = (&nodes[*node].node, after.map(|after| after.as_secs_f64()));
            tracing::info!(%node, after_s, voting, needed, of, situation, advice, "the node is up and votes");
        }
        // The node monitor logs the two runs; their effect on the votes is known only here.
        Incident::TwoServers { node } => {
            let NodeSummary { node, state, .. } = &nodes[*node];
            tracing::error!(%node, state, voting, needed, of, situation, advice, "two servers under one name: {then}");
        }
        Incident::OneServer { node, after } => {
            let (node, after_s) = (&nodes[*node].node, after.as_secs_f64());
            let text = "the node's name leads to one server again";
            tracing::info!(%node, after_s, voting, needed, of, situation, advice, "{text}");
        }
        Incident::Quorum => {
            tracing::info!(voting, needed, of, situation, advice, "a quorum of nodes votes: locks can be granted");
        }
        Incident::QuorumLost => {
            let why = reasons(nodes);
            let text = "no quorum of nodes votes: no lock can be granted or extended";
            tracing::error!(voting, needed, of, why, situation, advice, "{text}");
        }
        Incident::QuorumBack { after, refused } => {
            let after_s = after.as_secs_f64();
            let text = "a quorum of nodes votes again";
            tracing::info!(voting, needed, of, after_s, refused, situation, advice, "{text}");
        }
    }
}

/// What happened to a node that was filled at once.
fn forgot(node: &NodeSummary) -> String {
    format!("lost its memory ({}) and was filled by the others at once", cause(&node.losses.why))
}

/// Each node without a vote, with its state and the time that is left.
fn reasons(nodes: &[NodeSummary]) -> String {
    let reason = |node: &NodeSummary| match node.votes_in {
        Some(left) => format!("{} {} for {} s more", node.node, node.state, left.as_secs()),
        None => format!("{} {}", node.node, node.state),
    };
    nodes.iter().filter(|node| !node.votes).map(reason).collect::<Vec<_>>().join(", ")
}

/// Publishes an incident to all instances. Each observes the nodes itself, but an instance that was cut off from
/// them, or that sees less than another, would have a gap. The hub keeps two reports of the same incident once.
pub(super) fn publish(incident: &Incident, nodes: &[NodeSummary], hub: &EventHub, wall_ms: u64) {
    let ms = |after: &Duration| u64::try_from(after.as_millis()).ok();
    let kind = match incident {
        Incident::NodeLost { node, .. } if nodes[*node].state == "down" => EventKind::NodeDown,
        Incident::NodeLost { .. } | Incident::Forgot { .. } => EventKind::Quarantined,
        Incident::NodeBack { .. } => EventKind::NodeUp,
        Incident::TwoServers { .. } | Incident::OneServer { .. } => EventKind::TwoServers,
        Incident::QuorumLost => EventKind::QuorumLost,
        Incident::QuorumBack { .. } => EventKind::QuorumBack,
        Incident::Quorum => return,
    };
    let describe = |event: &mut crate::api::Event| match incident {
        Incident::NodeLost { node, .. } => {
            let node = &nodes[*node];
            (event.node, event.reason) = (Some(node.node.to_string()), Some(node.state.clone()));
            (event.detail, event.left_ms) = (node.why.clone(), node.votes_in.as_ref().and_then(ms));
        }
        Incident::Forgot { node } => {
            let node = &nodes[*node];
            (event.node, event.reason) = (Some(node.node.to_string()), Some("quarantined".to_owned()));
            event.detail = Some(forgot(node));
        }
        Incident::NodeBack { node, after } => {
            let node = &nodes[*node];
            (event.node, event.reason) = (Some(node.node.to_string()), Some(node.state.clone()));
            event.after_ms = after.as_ref().and_then(ms);
        }
        Incident::TwoServers { node } => {
            let node = &nodes[*node];
            (event.node, event.reason) = (Some(node.node.to_string()), Some("begun".to_owned()));
            event.detail = node.why.clone();
        }
        Incident::OneServer { node, after } => {
            (event.node, event.reason) = (Some(nodes[*node].node.to_string()), Some("over".to_owned()));
            event.after_ms = ms(after);
        }
        Incident::QuorumLost => event.detail = Some(reasons(nodes)),
        Incident::QuorumBack { after, refused } => (event.after_ms, event.refused) = (ms(after), Some(*refused)),
        Incident::Quorum => {}
    };
    hub.publish(kind, wall_ms, describe);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn nodes(states: &[&str]) -> Vec<NodeSummary> {
        let node = |(i, state): (usize, &&str)| NodeSummary {
            state: (*state).to_owned(),
            votes: *state == "up",
            quarantine: (*state == "quarantined").then(|| "restart".to_owned()),
            votes_in: (*state == "quarantined").then(|| Duration::from_secs(61)),
            ..NodeSummary::new(id(i))
        };
        states.iter().enumerate().map(node).collect()
    }

    fn id(node: usize) -> NodeId {
        NodeId::parse(&format!("n{node}")).expect("valid")
    }

    fn at(seconds: u64) -> Moment {
        Moment { now: BootTime::default().plus(Duration::from_secs(seconds)), wall_ms: seconds * 1_000 }
    }

    #[test]
    fn each_begin_and_each_end_is_reported_once_with_its_duration() {
        let incidents = IncidentTracker::new(at(0));
        let lost = |node, before: &str| Incident::NodeLost { node, before: before.into() };
        let observe = |states: &[&str], second| incidents.observe(&nodes(states), 2, at(second));
        assert_eq!(observe(&["up", "up", "unknown"], 1), [Incident::Quorum]);
        assert_eq!(observe(&["up", "up", "up"], 2), [Incident::NodeBack { node: 2, after: None }]);
        assert_eq!(observe(&["up", "up", "up"], 3), []);
        assert_eq!(observe(&["up", "up", "down"], 4), [lost(2, "up")]);
        incidents.count_refusal();
        assert_eq!(
            observe(&["up", "quarantined", "quarantined"], 6),
            [lost(1, "up"), lost(2, "down"), Incident::QuorumLost]
        );
        incidents.count_refusal();
        incidents.count_refusal();
        let loss = incidents.quorum_loss(at(16).now).expect("lost");
        assert_eq!((loss.since_ms, loss.lasts.as_secs(), loss.refused, loss.from_start), (6_000, 10, 3, false));
        let back = |node, s| Incident::NodeBack { node, after: Some(Duration::from_secs(s)) };
        assert_eq!(
            observe(&["up", "quarantined", "up"], 24),
            [back(2, 20), Incident::QuorumBack { after: Duration::from_secs(18), refused: 3 }]
        );
        assert_eq!(incidents.quorum_loss(at(30).now), None);
        assert_eq!(
            incidents.quarantines(&id(1)).by_reason().find(|(reason, _)| *reason == "restart"),
            Some(("restart", 1))
        );
        assert_eq!(incidents.quarantines(&id(0)), QuarantineCounts::default());
    }

    #[test]
    fn a_loss_of_memory_between_two_observations_is_an_incident() {
        let incidents = IncidentTracker::new(at(0));
        let observe = |lost: u64, second| {
            let mut seen = nodes(&["up", "up", "up"]);
            (seen[1].losses.count, seen[1].losses.why) = (lost, "blank".into());
            (seen[1].lost_ago, seen[1].since) = (Some(Duration::from_millis(900)), Duration::from_millis(200));
            incidents.observe(&seen, 2, at(second))
        };
        assert_eq!(observe(4, 1), [Incident::Quorum], "from before this instance");
        let back = Incident::NodeBack { node: 1, after: Some(Duration::from_millis(700)) };
        assert_eq!(observe(5, 2), [Incident::Forgot { node: 1 }, back]);
        assert_eq!(observe(5, 3), []);
        assert_eq!(
            incidents.quarantines(&id(1)).by_reason().find(|(reason, _)| *reason == "blank"),
            Some(("blank", 1))
        );
    }

    #[test]
    fn two_servers_under_one_name_are_an_incident_with_a_begin_and_an_end() {
        let incidents = IncidentTracker::new(at(0));
        let observe = |is_doubled, second| {
            let mut seen = nodes(&["up", "up", "up"]);
            seen[2].has_two_servers = is_doubled;
            incidents.observe(&seen, 2, at(second))
        };
        assert_eq!(observe(false, 1), [Incident::Quorum]);
        assert_eq!(observe(true, 2), [Incident::TwoServers { node: 2 }]);
        assert_eq!(observe(true, 3), []);
        assert_eq!(incidents.doubled_for(&id(2), at(9).now), Some(Duration::from_secs(7)));
        assert_eq!(observe(false, 12), [Incident::OneServer { node: 2, after: Duration::from_secs(10) }]);
        assert_eq!(incidents.doubled_for(&id(2), at(13).now), None);
    }

    #[test]
    fn a_start_without_a_quorum_names_the_nodes_and_their_reasons() {
        let incidents = IncidentTracker::new(at(0));
        let ill = nodes(&["other-cluster", "quarantined", "up"]);
        let since_start = |second| {
            let loss = incidents.quorum_loss(at(second).now).expect("no quorum");
            assert_eq!((loss.since_ms, loss.lasts.as_secs(), loss.from_start), (0, second, true), "at {second} s");
        };
        since_start(1);
        let seen = incidents.observe(&ill, 2, at(1));
        since_start(9);
        assert_eq!(seen.len(), 3, "{seen:?}");
        assert_eq!(seen[2], Incident::QuorumLost);
        assert_eq!(reasons(&ill), "n0 other-cluster, n1 quarantined for 61 s more");
    }
}
