//! The node monitor: probes every node once a second, measures its clock, and gives a node that lost its memory the
//! vote back when no lease can depend on what it forgot. The node itself refuses requests without a vote, atomically
//! with each request.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::{Mutex, MutexGuard};
use tokio::sync::Notify;

use super::clock::{BootTime, Clock};
use super::engine::Redlock;
pub use super::init_cluster::InitError;
use super::membership::member::Member;
pub use super::membership::relist::ListError;
pub use super::membership::replace_node::ReplaceError;
pub use super::membership::silent_nodes::{ForgetError, WaitedFor};
use super::node::Node;
pub use super::node_health::{HEALTH_MAX_AGE, MemoryLosses, NodeHealth, OtherList};
use super::node_health::{failure_kind, rival, vote_kind};
use super::quorum::Tally;
use super::random::Entropy;
use super::round::{Posed, Until};
use super::round_trip::RoundTrip;
use crate::protocol::{NodeResult, NodeStatus, ProbeArgs, Reply, Request, UnreachableKind, ViewId};
use crate::types::NodeId;

/// A restart explains two processes under one name for less than this time: a report of the former process counts for
/// 3 s on the nodes' clocks, and is read a probe later.
const RESTART_EXPLAINS: Duration = Duration::from_secs(5);
/// Time between two probe rounds.
pub const PROBE_INTERVAL: Duration = Duration::from_secs(1);
/// Time between two probe rounds after a node's state changed, so that a node that forgot is filled at once: each
/// instance's next probe replaces its report of the former process.
const QUICK_PROBE_INTERVAL: Duration = Duration::from_millis(200);
/// How long after the last change the quick interval applies.
const QUICK_FOR: Duration = Duration::from_secs(3);
/// An instance reports to the others that it sees a process until the last answer is this old, or another process answers.
const SEEN_FOR: Duration = Duration::from_secs(2);
/// Timeout of a probe: longer than the node timeout, since the state of a slow node is worth knowing.
pub const PROBE_TIMEOUT: Duration = Duration::from_millis(500);
/// An instance is a witness of the nodes' time when it has followed it for this long. An instance that began after the clocks
/// were stepped takes the new time as right; before it is a witness, those that noticed the step order the quarantines.
const WITNESS_AFTER: Duration = Duration::from_secs(5);
/// The node monitor of one instance. Cheap to clone.
pub struct NodeMonitor<N, C, E> {
    pub(super) engine: Redlock<N, C, E>,
    /// Notified when the view must be changed.
    pub(super) change_needed: Arc<Notify>,
    /// Names this process in its probes.
    pub(super) instance: Arc<str>,
    pub(super) state: Arc<Mutex<MonitorState>>,
}

impl<N, C, E> Clone for NodeMonitor<N, C, E> {
    fn clone(&self) -> Self {
        let (instance, state) = (Arc::clone(&self.instance), Arc::clone(&self.state));
        Self { engine: self.engine.clone(), change_needed: Arc::clone(&self.change_needed), instance, state }
    }
}

pub(super) struct MonitorState {
    pub(super) nodes: Vec<NodeHealth>,
    began: BootTime,
    /// Since when the cluster clock follows the nodes. Before that, a step of most nodes' clocks cannot be detected.
    pub(super) anchored: Option<BootTime>,
    /// Since when enough nodes refuse this instance's orders, and how far the nodes' clocks were ahead then. Microseconds.
    pub(super) refused: Option<(BootTime, i64)>,
    /// When the cluster clock followed a step by orders in an earlier view than the nodes'; `None` once the order was repeated.
    pub(super) order_due: Option<BootTime>,
    /// The processes that nodes wait for, as of the last report.
    pub(super) waits_reported: WaitedFor,
    /// As of the last probe.
    pub(super) waited_for: WaitedFor,
    /// The name that an operator is adding or removing.
    pub(super) listing: Option<NodeId>,
    /// The list or the terms are being changed by an operator at this instance.
    pub(super) is_listing: bool,
    /// A change of the list that is not complete, and when this instance first saw it.
    pub(super) half_done: Option<(ViewId, BootTime)>,
}

/// Answers of all nodes, with their times.
pub(super) struct ProbeAnswers {
    pub(super) tally: Tally,
    asked_in: ViewId,
    sent: BootTime,
    /// The time of each answer, by node index; `None` without an answer.
    received: Vec<Option<BootTime>>,
    /// By node index: what a probe said of the node's settings.
    syncs: Vec<Option<bool>>,
}

impl<N: Node, C: Clock, E: Entropy> NodeMonitor<N, C, E> {
    /// A monitor that has not probed yet.
    pub fn new(engine: Redlock<N, C, E>) -> Self {
        let now = engine.clock.now();
        let nodes = engine.nodes.iter().map(|_| NodeHealth::new(now)).collect();
        let instance = format!("{:016x}", engine.entropy.bits()).into();
        let state = MonitorState {
            nodes,
            began: now,
            anchored: None,
            refused: None,
            order_due: None,
            waits_reported: WaitedFor::default(),
            waited_for: WaitedFor::default(),
            listing: None,
            is_listing: false,
            half_done: None,
        };
        let state = Arc::new(Mutex::new(state));
        Self { engine, change_needed: Arc::default(), instance, state }
    }

    /// The health of each node, by its index.
    pub fn health(&self) -> Vec<NodeHealth> {
        self.state().nodes.clone()
    }

    /// The state, with an entry of each node, including nodes that were added.
    pub(super) fn state(&self) -> MutexGuard<'_, MonitorState> {
        let (mut state, now) = (self.state.lock(), self.engine.clock.now());
        state.nodes.resize_with(self.engine.nodes.len(), || NodeHealth::new(now));
        state
    }

    /// Two names that lead to the same server process: a mistake in the list of nodes.
    pub fn same_server(&self) -> Option<(NodeId, NodeId)> {
        self.two_of_one_run(|_, _| true)
    }

    /// Two names of the same server whose vote counts twice: the view has both names for it, or there is no view yet. Otherwise
    /// the name that the view has for another process has no vote, and a node that poses as another does not stop the others.
    pub fn votes_twice(&self) -> Option<(NodeId, NodeId)> {
        let view = self.engine.views.current();
        let is_named = |name: &NodeId, run: &str| view.entry(name).is_some_and(|entry| *entry.run == *run);
        self.two_of_one_run(|name, run| view.id == ViewId::NONE || is_named(name, run))
    }

    fn two_of_one_run(&self, counts: impl Fn(&NodeId, &str) -> bool) -> Option<(NodeId, NodeId)> {
        let mut runs: BTreeMap<String, NodeId> = BTreeMap::new();
        for (node, health) in self.engine.nodes.iter().zip(self.health()) {
            let run = health.status.map(|s| s.run).filter(|run| !run.is_empty() && health.error.is_none());
            let run = run.filter(|run| counts(node.id(), run));
            if let Some(other) = run.and_then(|run| runs.insert(run, node.id().clone())) {
                return Some((other, node.id().clone()));
            }
        }
        None
    }

    /// Probes, and changes the view when needed, for ever. Cancel: as for [`Self::change_views`].
    pub async fn watch(self) {
        let probes = async {
            loop {
                self.probe_round().await;
                self.until_next_probe().await;
            }
        };
        futures_util::future::join(probes, self.clone().change_views()).await;
    }

    /// Resolves when the next probe is due: earlier if the view was changed, since nodes may have to be moved to it,
    /// and if a node was connected to again, since it may be another process.
    /// Cancel: nothing is lost.
    pub async fn until_next_probe(&self) {
        let interval = if self.has_just_changed() { QUICK_PROBE_INTERVAL } else { PROBE_INTERVAL };
        let reconnected = self.engine.nodes.iter().map(|node| Box::pin(node.reconnected()));
        tokio::select! {
            biased;
            () = self.engine.views.changed() => {}
            _ = futures_util::future::select_all(reconnected) => {}
            () = self.engine.clock.sleep(interval) => {}
        }
    }

    /// Whether a node that does not vote entered its state only a moment ago.
    fn has_just_changed(&self) -> bool {
        let (now, state) = (self.engine.clock.now(), self.state.lock());
        state.nodes.iter().any(|health| !health.votes(now) && now.since(health.since) <= QUICK_FOR)
    }

    /// Probes all nodes, adjusts the cluster clock, follows the highest view, and requests a change of it if needed.
    pub async fn probe_round(&self) {
        let asked_in = self.probe_all().await;
        self.adjust_cluster_clock().await;
        if self.follow_views(asked_in).await {
            self.probe_all().await;
        }
        if self.needs_change() {
            self.change_needed.notify_one();
        }
    }

    /// Probes all nodes. Returns the view in which it asked. Cancel: the answers are not noted.
    pub async fn probe_all(&self) -> ViewId {
        let answers = self.send_to_all(self.probe()).await;
        self.record(&answers);
        self.adapt_timeout();
        self.report_rivals();
        self.report_waits();
        answers.asked_in
    }

    /// Whether this monitor has existed for this long.
    pub(super) fn is_older_than(&self, age: Duration) -> bool {
        self.engine.clock.now().since(self.state.lock().began) >= age
    }

    /// Whether the cluster clock follows the nodes.
    #[cfg(test)]
    pub(crate) fn has_time(&self) -> bool {
        self.state.lock().anchored.is_some()
    }

    /// A probe, with this instance's reports from the last round.
    pub(super) fn probe(&self) -> Request {
        let (state, now) = (self.state(), self.engine.clock.now());
        let named = self.engine.nodes.iter().zip(&state.nodes);
        let alive = named.filter_map(|(node, health)| {
            let is_seen = health.answered_at.is_some_and(|at| now.since(at) <= SEEN_FOR);
            let run = health.status.as_ref().map(|s| &s.run).filter(|run| is_seen && !run.is_empty())?;
            Some((node.id().clone(), run.as_str().into()))
        });
        let follows = state.anchored.is_some_and(|since| now.since(since) >= WITNESS_AFTER);
        let is_witness = follows && state.order_due.is_none();
        let instance = Arc::clone(&self.instance);
        Request::Probe(ProbeArgs { instance, is_witness, alive: alive.collect(), syncs: None })
    }

    pub(super) async fn send_to_all(&self, request: impl Into<Posed>) -> ProbeAnswers {
        let (everyone, posed) = (self.engine.nodes.opened(), request.into());
        let view = posed.view.unwrap_or_else(|| self.engine.views.current());
        let sent = self.engine.clock.now();
        let received = Mutex::new(vec![None; self.engine.nodes.len()]);
        let syncs: Vec<Option<bool>> = self.engine.nodes.iter().map(|node| node.syncs_each_write()).collect();
        let rounds = everyone.iter().map(|i| {
            let (engine, received, mut request) = (&self.engine, &received, posed.request.clone());
            if let Request::Probe(args) = &mut request {
                args.syncs = syncs.get(*i).copied().flatten();
            }
            let request = request.in_view(&view);
            async move {
                let (only, until) = ([*i], sent.plus(PROBE_TIMEOUT));
                let tally = engine.round(&only, request, sent, until, Until::All, Result::is_ok).await;
                let answer = tally.answers()[*i].clone();
                received.lock()[*i] = Some(engine.clock.now());
                (*i, answer)
            }
        });
        let answers = futures_util::future::join_all(rounds).await;
        let mut tally = Tally::new(self.engine.nodes.len());
        for (i, answer) in answers {
            if let Some(answer) = answer {
                let yes = answer.is_ok();
                tally.record(i, answer, yes);
            }
        }
        ProbeAnswers { tally, asked_in: view.id, sent, received: received.into_inner(), syncs }
    }

    pub(super) fn record(&self, ProbeAnswers { tally, sent, received, syncs, .. }: &ProbeAnswers) {
        let (mut state, view) = (self.state(), self.engine.views.current());
        let named = state.nodes.iter_mut().zip(self.engine.nodes.iter());
        let syncs = syncs.iter().copied().chain(std::iter::repeat(None));
        let answered = named.zip(tally.answers()).zip(received).zip(syncs).enumerate();
        for (i, ((((health, node), answer), received), syncs)) in answered {
            let received = received.unwrap_or(*sent);
            let kind = |of: &NodeHealth| (of.error.map(failure_kind), of.status.as_ref().map(|s| vote_kind(&s.vote)));
            let before = kind(health);
            match answer {
                Some(Ok(Reply::Status(status))) => {
                    let rtt = received.since(*sent);
                    let middle = self.engine.cluster_clock.request_time_at(sent.plus(rtt / 2));
                    // A slow answer, or a process that was stopped in between, shows too little of the clock.
                    let is_quick = rtt <= self.engine.terms().guard / 2;
                    health.offset_us = is_quick.then(|| difference(status.now_us, middle.0));
                    (health.latency, health.answered_at, health.error) = (Some(rtt), Some(received), None);
                    // An answer to a probe that was sent before the operator's report does not contradict that report.
                    health.forgotten_at = health.forgotten_at.filter(|said| said >= sent);
                    let is_new = health.status.as_ref().is_some_and(|old| old.run != status.run);
                    health.restarts += u64::from(is_new);
                    let known = health.round_trip.filter(|_| !is_new);
                    health.round_trip = Some(known.map_or(RoundTrip::first(rtt), |trip| trip.and(rtt)));
                    if Member::from(&**status).is_sound {
                        self.engine.seen_votes.note(i, &status.run, status.admitted, received);
                    }
                    health.note_loss(status, received);
                    health.follow(status, syncs);
                    health.is_other_process = view.entry(node.id()).is_some_and(|entry| *entry.run != *status.run);
                    health.status = Some(NodeStatus::clone(status));
                }
                Some(Err(error)) => health.error = Some(error.kind),
                _ => health.error = Some(UnreachableKind::Protocol),
            }
            if before != kind(health) {
                health.since = received;
            }
        }
    }

    /// Records the names that lead to two processes, and logs once each name that leads to two servers. Until a report of the
    /// former process expires, a restart cannot be distinguished from a second server: the name has no vote and is not logged.
    fn report_rivals(&self) {
        let names: Vec<NodeId> = self.engine.nodes.iter().map(|node| node.id().clone()).collect();
        let (now, mut state) = (self.engine.clock.now(), self.state());
        let answered = |health: &NodeHealth| health.status.clone().filter(|_| health.error.is_none());
        let states: Vec<Option<NodeStatus>> = state.nodes.iter().map(answered).collect();
        for (i, health) in state.nodes.iter_mut().enumerate() {
            let found = rival(&names, &states, i);
            health.rival_since = found.as_ref().and(health.rival_since.or(Some(now)));
            let is_confirmed = health.rival_since.is_some_and(|since| now.since(since) >= RESTART_EXPLAINS);
            if let Some(run) = found.as_deref().filter(|_| is_confirmed && !health.has_two_servers) {
                let own = health.status.as_ref().map_or("", |s| &s.run);
                tracing::error!(node = %names[i], %run, reached = own, "this node's name leads to two servers");
            }
            (health.rival, health.has_two_servers) = (found, is_confirmed);
        }
    }
}

pub(super) fn status_of(answer: &NodeResult) -> Option<&NodeStatus> {
    match answer {
        Ok(Reply::Status(status)) => Some(status),
        _ => None,
    }
}

fn difference(a: u64, b: u64) -> i64 {
    i64::try_from(i128::from(a) - i128::from(b)).unwrap_or(i64::MAX)
}
