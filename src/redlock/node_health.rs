//! What the node monitor knows of each node, and how long rounds wait because of it.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use super::clock::{BootTime, Clock};
use super::monitor::NodeMonitor;
use super::node::Node;
use super::random::Entropy;
use super::round_trip::RoundTrip;
use crate::protocol::{ClusterParams, NoVote, NodeStatus, UnreachableKind, Vote};
use crate::types::NodeId;

/// An older answer does not count as the node's present state.
pub const HEALTH_MAX_AGE: Duration = Duration::from_secs(5);

/// A node that votes in another view than the request's counts as voting for this long: the next probe asks in that view.
const VIEW_CHANGE_TAKES: Duration = Duration::from_secs(2);
/// A node is slow once this many of its last 8 probes took longer than rounds wait …
const SLOW_FROM: u32 = 5;
/// … and until fewer than this have.
const FAST_BELOW: u32 = 3;

/// What is known of one node.
#[derive(Debug, Clone)]
pub struct NodeHealth {
    /// The last answer to a probe.
    pub status: Option<NodeStatus>,
    /// The last probe's failure, if it failed.
    pub error: Option<UnreachableKind>,
    /// Time of the last answer.
    pub answered_at: Option<BootTime>,
    /// When the node entered its present state (answering or not, voting or not).
    pub since: BootTime,
    /// Round trip of the last answered probe.
    pub latency: Option<Duration>,
    /// Round trips of all probes that the present process of the node answered.
    pub round_trip: Option<RoundTrip>,
    /// The node's last probes, the latest in the lowest bit: whether each took longer than rounds wait.
    late: u8,
    /// Whether the node answers probes, but most of them later than rounds wait.
    pub is_slow: bool,
    /// The node's clock minus the cluster clock, microseconds.
    pub offset_us: Option<i64>,
    /// How often a probe was answered by a run other than the one before.
    pub restarts: u64,
    /// The run of another process that an instance saw alive under this name within the last seconds.
    pub rival: Option<Arc<str>>,
    /// Since when a rival has been seen. After a restart the rival is the former process, for as long as its reports count.
    pub(super) rival_since: Option<BootTime>,
    /// The last process under this name that was durable by this instance's own reading: its run, and its clock then.
    pub(super) followed: Option<Followed>,
    /// When an operator reported that the node's process has ended for good, if it has not answered since.
    pub(super) forgotten_at: Option<BootTime>,
    /// Whether the view has another process under this name: the name leads elsewhere, or that process must be filled.
    pub is_other_process: bool,
    /// Whether a rival has been seen for longer than a restart explains: the name leads to two servers.
    pub has_two_servers: bool,
    /// The node's memory losses, including losses after which it was filled before the next probe.
    pub losses: MemoryLosses,
}

/// The last answer of a process to a probe of this instance: its run, and its clock. Microseconds since 1970.
pub(crate) type Followed = (Arc<str>, u64);

/// What a node of another cluster shows of that cluster's list.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum OtherList {
    /// Nothing, or the node is not of another cluster.
    #[default]
    Unknown,
    /// A list that is not this instance's.
    Other(BTreeSet<NodeId>),
    /// This instance's list, with its terms: what differs is the cluster's name, which goes back to an earlier list.
    Own,
}

/// How often a node lost its memory since this process watches it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct MemoryLosses {
    /// Losses since this process watches it.
    pub count: u64,
    /// When the last loss was noticed.
    pub noticed_at: Option<BootTime>,
    /// The reason of the last loss, as in [`NodeStatus::why`]; empty if only the node's new admission was seen.
    pub why: String,
}

impl NodeHealth {
    pub(super) fn new(now: BootTime) -> Self {
        Self {
            status: None,
            error: None,
            answered_at: None,
            since: now,
            latency: None,
            round_trip: None,
            late: 0,
            is_slow: false,
            offset_us: None,
            restarts: 0,
            rival: None,
            rival_since: None,
            followed: None,
            forgotten_at: None,
            is_other_process: false,
            has_two_servers: false,
            losses: MemoryLosses::default(),
        }
    }

    /// Whether the node's process syncs each write before it replies, by its marker and by this instance's own reading.
    pub fn is_durable(&self) -> bool {
        self.followed.as_ref().is_some_and(|(run, _)| self.status.as_ref().is_some_and(|status| *status.run == **run))
    }

    /// What the node shows of the list of another cluster, for an instance with the list `own`. In a view without a list, the nodes of
    /// the view are the list if the cluster was declared with them; an instance that learned the cluster's name has another one.
    pub fn other_list(&self, own: &BTreeSet<NodeId>, params: &ClusterParams) -> OtherList {
        let Some(NodeStatus { vote, view, .. }) = self.status.as_ref().filter(|_| self.error.is_none()) else {
            return OtherList::Unknown;
        };
        let present = params.cluster.get();
        let theirs = match vote {
            Vote::NoVote(NoVote::OtherCluster { theirs }) => theirs.as_str(),
            Vote::NoVote(NoVote::OtherView { .. }) if view.list.is_none() && params.cluster.is_learned() => &present,
            _ => return OtherList::Unknown,
        };
        match &view.list {
            Some(list) if list.has_just(own) && params.cluster.is_accepted_in(view) => OtherList::Own,
            Some(list) if list.has_just(own) => OtherList::Unknown,
            Some(list) => OtherList::Other(list.names.clone()),
            None if params.declared_with(view.roster.keys()) == *theirs => {
                OtherList::Other(view.roster.keys().cloned().collect())
            }
            None => OtherList::Unknown,
        }
    }

    /// Records the last answer of a durable process. `syncs`: what the probe said of its settings.
    pub(super) fn follow(&mut self, status: &NodeStatus, syncs: Option<bool>) {
        if status.inherited.is_some() {
            return;
        }
        if !status.is_durable || syncs == Some(false) {
            self.followed = None;
        } else if syncs == Some(true) {
            let before = self.followed.as_ref().filter(|(run, _)| **run == *status.run).map_or(0, |(_, at_us)| *at_us);
            self.followed = Some((status.run.as_str().into(), status.now_us.max(before)));
        }
    }

    /// Must be called with each answer, before the answer is stored.
    pub(super) fn note_loss(&mut self, status: &NodeStatus, received: BootTime) {
        let waits = |vote: &Vote| matches!(vote, Vote::NoVote(NoVote::Quarantined { .. } | NoVote::Unseeded { .. }));
        // One that has the data of a durable process forgot nothing, unless it is filled all the same.
        let forgot = |status: &NodeStatus| waits(&status.vote) && status.inherited.is_none();
        let Some(old) = self.status.as_ref().filter(|old| !forgot(old)) else { return };
        // A node that voted is admitted again only if the others had to fill it.
        let why = match forgot(status) {
            true => status.why.clone(),
            false if status.admitted > old.admitted => String::new(),
            false => return,
        };
        self.losses = MemoryLosses { count: self.losses.count + 1, noticed_at: Some(received), why };
    }

    /// Determines after a probe whether the node is slow. Rounds wait for `timeout`.
    pub(super) fn check_speed(&mut self, timeout: Duration, now: BootTime) {
        if self.error.is_some() {
            (self.late, self.is_slow) = (0, false);
            return;
        }
        self.late = self.late << 1 | u8::from(self.latency.is_some_and(|took| took > timeout));
        let late = self.late.count_ones();
        let is_slow = late >= if self.is_slow { FAST_BELOW } else { SLOW_FROM };
        if std::mem::replace(&mut self.is_slow, is_slow) != is_slow {
            self.since = now;
        }
    }

    /// Whether the last probe was answered with a vote, within [`HEALTH_MAX_AGE`].
    pub fn votes(&self, now: BootTime) -> bool {
        let is_recent = self.answered_at.is_some_and(|at| now.since(at) <= HEALTH_MAX_AGE);
        // The node is about to be asked in its own view: a round that meets it now is repeated in that view.
        let changes = |vote: &Vote| {
            matches!(vote, Vote::NoVote(NoVote::OtherView { .. })) && now.since(self.since) <= VIEW_CHANGE_TAKES
        };
        let is_vote = |status: &NodeStatus| status.vote == Vote::Active || changes(&status.vote);
        let may_vote = self.error.is_none() && !self.is_other_process;
        is_recent && may_vote && self.status.as_ref().is_some_and(is_vote)
    }
}

/// Distinguishes the failures whose beginning [`NodeHealth::since`] records: an error that the node answered, or no answer.
pub(super) fn failure_kind(kind: UnreachableKind) -> UnreachableKind {
    match kind {
        UnreachableKind::Timeout | UnreachableKind::Broken | UnreachableKind::Overloaded => {
            UnreachableKind::Disconnected
        }
        other => other,
    }
}

/// Distinguishes the states whose beginning [`NodeHealth::since`] records.
pub(super) fn vote_kind(vote: &Vote) -> u8 {
    match vote {
        Vote::Active => 0,
        Vote::NoVote(NoVote::Quarantined { .. } | NoVote::Blocked { .. }) => 1,
        Vote::NoVote(NoVote::Unseeded { .. }) => 2,
        Vote::NoVote(NoVote::ClockOff { .. }) => 3,
        Vote::NoVote(NoVote::OtherCluster { .. }) => 4,
        Vote::AlreadyInitialised => 5,
        Vote::NoVote(NoVote::NewerProtocol { .. }) => 6,
        Vote::Witnessed => 7,
        Vote::NoVote(NoVote::OtherView { .. } | NoVote::OtherProcess { .. }) => 8,
    }
}

/// The run of another process under a node's name that an instance saw alive within the last seconds: the name leads
/// to two servers.
pub(super) fn rival(names: &[NodeId], states: &[Option<NodeStatus>], node: usize) -> Option<Arc<str>> {
    let (name, own) = (names.get(node)?, states.get(node)?.as_ref()?);
    let mut seen = states.iter().flatten().flat_map(|s| &s.alive);
    seen.find(|(of, run)| of == name && **run != *own.run).map(|(_, run)| Arc::clone(run))
}

impl<N: Node, C: Clock, E: Entropy> NodeMonitor<N, C, E> {
    /// Rounds wait as long as the nodes that can be part of a quorum need; a node that needs longer is slow. The others are asked
    /// first, if they vote.
    pub(super) fn adapt_timeout(&self) {
        let (engine, now, mut state) = (&self.engine, self.engine.clock.now(), self.state());
        engine.follow_terms();
        let members = engine.members();
        let answers = |(i, health): &(usize, &NodeHealth)| members >> i & 1 == 1 && health.error.is_none();
        let answered = state.nodes.iter().enumerate().filter(answers).map(|(_, health)| health);
        let measured: Vec<RoundTrip> = answered.filter_map(|health| health.round_trip).collect();
        engine.answers.follow(&measured, engine.quorum());
        let timeout = engine.answers.present();
        for (node, health) in engine.nodes.iter().zip(&mut state.nodes) {
            node.expect_answers_within(timeout);
            health.check_speed(timeout, now);
        }
        let is_ready = |(_, health): &(usize, &NodeHealth)| health.votes(now) && !health.is_slow;
        let ready = state.nodes.iter().enumerate().filter(is_ready).map(|(i, _)| 1 << i);
        engine.ready.set(ready.fold(0, std::ops::BitOr::bitor));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::{NodeList, RosterEntry, View, ViewId};
    use crate::types::Fence;

    fn status() -> NodeStatus {
        NodeStatus {
            vote: Vote::Active,
            now_us: 0,
            high_water: Fence(0),
            run: String::new(),
            why: String::new(),
            since_us: 0,
            until_us: 0,
            view: Arc::default(),
            promised: ViewId::NONE,
            admitted: ViewId::NONE,
            inherited: None,
            is_durable: false,
            alive: std::collections::BTreeSet::new(),
        }
    }

    #[test]
    fn a_node_that_is_about_to_be_asked_in_its_view_counts_as_voting_for_a_moment() {
        let at = |ms: u64| BootTime::from_nanos(ms * 1_000_000);
        let view = Arc::default();
        let vote = Vote::NoVote(NoVote::OtherView { view });
        let status = NodeStatus { vote, ..status() };
        let health = NodeHealth { status: Some(status), answered_at: Some(at(4_000)), ..NodeHealth::new(at(3_000)) };
        assert!(health.votes(at(5_000)) && !health.votes(at(5_001)));
        assert!(!NodeHealth { is_other_process: true, ..health }.votes(at(5_000)), "its vote is of another name");
    }

    /// Seeds 2407 and 7110: all were said to have "another node list or other settings".
    #[test]
    fn a_node_of_another_cluster_shows_which_list_that_has() {
        let own = crate::redlock::engine::RedlockSettings::of_tests().params;
        let names = |of: &[u8]| -> BTreeSet<NodeId> {
            of.iter().map(|n| NodeId::parse(&format!("n{n}")).expect("valid")).collect()
        };
        let shown = |params: &ClusterParams, theirs: Option<&str>, list: Option<(&[u8], &str)>, roster: &[u8]| {
            let list =
                list.map(|(of, terms)| NodeList { names: names(of), terms: terms.into(), ..NodeList::default() });
            let entry = |name| (name, RosterEntry { run: "run".into(), since: ViewId::NONE, address: None });
            let roster = names(roster).into_iter().map(entry).collect();
            let view = Arc::new(View { id: ViewId::NONE.above(1), roster, list: list.map(Arc::new) });
            let no_vote = match theirs {
                Some(theirs) => NoVote::OtherCluster { theirs: theirs.into() },
                None => NoVote::OtherView { view: Arc::clone(&view) },
            };
            let status = NodeStatus { vote: Vote::NoVote(no_vote), view, ..status() };
            let health = NodeHealth { status: Some(status), ..NodeHealth::new(BootTime::default()) };
            health.other_list(&names(&[1, 2, 3]), params)
        };
        let terms = own.cluster.terms();
        assert_eq!(shown(&own, Some("x"), Some((&[1, 2], terms)), &[]), OtherList::Other(names(&[1, 2])));
        assert_eq!(shown(&own, Some("x"), Some((&[1, 2, 3], terms)), &[]), OtherList::Own);
        assert_eq!(shown(&own, Some("x"), Some((&[1, 2, 3], "other")), &[]), OtherList::Unknown, "other terms");
        let declared = own.declared_with(&names(&[1, 4]));
        assert_eq!(shown(&own, Some(&declared), None, &[1, 4]), OtherList::Other(names(&[1, 4])));
        assert_eq!(shown(&own, Some(&declared), None, &[1]), OtherList::Unknown, "one has no vote yet");
        // It asks in the view of the cluster, whose name it has taken.
        assert_eq!(shown(&own, None, None, &[1, 4]), OtherList::Unknown, "it has yet to take the view");
        let learned = ClusterParams { cluster: "own".into(), ..ClusterParams::clone(&own) };
        learned.cluster.learn(&declared);
        assert_eq!(shown(&learned, None, None, &[1, 4]), OtherList::Other(names(&[1, 4])));
    }

    #[test]
    fn a_silent_node_that_answers_with_an_error_is_in_that_state_since_then() {
        let silent =
            [UnreachableKind::Timeout, UnreachableKind::Disconnected, UnreachableKind::Broken].map(failure_kind);
        assert!(silent.iter().all(|kind| *kind == silent[0]), "{silent:?}");
        let errors = [UnreachableKind::Auth, UnreachableKind::Busy, UnreachableKind::Full].map(failure_kind);
        assert!(!errors.contains(&silent[0]) && errors[0] != errors[1], "{errors:?}");
    }

    #[test]
    fn a_loss_of_memory_is_noticed_also_where_the_node_was_filled_before_the_next_probe() {
        let mut health = NodeHealth::new(BootTime::default());
        let views: Vec<ViewId> =
            std::iter::successors(Some(ViewId::NONE), |view| Some(view.above(0))).take(4).collect();
        let mut after = |vote: Vote, why: &str, admitted: usize| {
            let status = NodeStatus { vote, why: why.into(), admitted: views[admitted], ..status() };
            health.note_loss(&status, BootTime::default());
            health.status = Some(status);
            (health.losses.count, health.losses.why.clone())
        };
        let quarantined = || Vote::NoVote(NoVote::Quarantined { left_ms: 1 });
        assert_eq!(after(quarantined(), "blank", 0), (0, String::new()), "from before this process");
        assert_eq!(after(Vote::Active, "", 1), (0, String::new()));
        assert_eq!(after(quarantined(), "restart", 1), (1, "restart".into()));
        assert_eq!(after(Vote::NoVote(NoVote::Unseeded { high_water: Fence(0) }), "restart", 1), (1, "restart".into()));
        assert_eq!(after(Vote::Active, "", 2), (1, "restart".into()), "the end of the one that was seen");
        assert_eq!(after(Vote::Active, "", 3), (2, String::new()), "an admission without a quarantine that was seen");
    }

    #[test]
    fn a_node_is_slow_while_most_of_its_probes_are_late_and_one_stall_is_not_enough() {
        let ms = Duration::from_millis;
        let mut health = NodeHealth::new(BootTime::default());
        let mut after = |took: &[u64]| {
            for took in took {
                health.latency = Some(ms(*took));
                health.check_speed(ms(50), BootTime::default());
            }
            health.is_slow
        };
        assert!(!after(&[1, 1, 450, 1, 400, 1, 300, 1, 51]));
        assert!(after(&[60, 60]));
        assert!(after(&[1, 1, 1, 60, 60]), "it does not change with each probe");
        assert!(!after(&[1, 1, 1, 1, 1, 1]));
        assert!(after(&[51; 5]));
        health.error = Some(UnreachableKind::Timeout);
        health.check_speed(ms(50), BootTime::default());
        assert!(!health.is_slow, "it is down");
    }
}
