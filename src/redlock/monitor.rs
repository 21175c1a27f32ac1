//! The warden: looks at every node once a second, learns its clock, and gives a node that lost its
//! memory the vote back when no lease can depend on what it forgot. The refusing itself happens
//! atomically on the node; the warden only teaches and reports.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::clock::{BootTime, Clock};
use super::engine::Redlock;
use super::entropy::Entropy;
use super::node::Node;
use super::quorum::Tally;
use super::round::Until;
use crate::mutant::{self, Mutant};
use crate::protocol::{NoVote, NodeResult, NodeStatus, Reply, Request, UnreachableKind, Vote};
use crate::types::{Fence, NodeId};

/// Time between two looks.
pub const PROBE_INTERVAL: Duration = Duration::from_secs(1);
/// How long a look waits for a node: longer than a round, since a slow node is still worth hearing.
pub const PROBE_TIMEOUT: Duration = Duration::from_millis(500);
/// Health older than this says nothing about now.
pub const HEALTH_MAX_AGE: Duration = Duration::from_secs(5);
/// How fast the stamp clock follows the nodes: 1 % of the time between two looks, the clock rates'
/// assumed spread.
const SLEW_US_PER_PASS: i64 = 10_000;

/// What is known of one node.
#[derive(Debug, Clone)]
pub struct NodeHealth {
    /// Its last answer.
    pub status: Option<NodeStatus>,
    /// The last probe's failure, if it failed.
    pub error: Option<UnreachableKind>,
    /// When the last probe was answered.
    pub answered_at: Option<BootTime>,
    /// In the present state (answering or not, voting or not) since.
    pub since: BootTime,
    /// Round trip of the last answered probe.
    pub latency: Option<Duration>,
    /// Its clock minus the stamp clock, microseconds.
    pub offset_us: Option<i64>,
    /// How often another run answered than before.
    pub restarts: u64,
}

impl NodeHealth {
    fn new(now: BootTime) -> Self {
        Self { status: None, error: None, answered_at: None, since: now, latency: None, offset_us: None, restarts: 0 }
    }

    /// Whether it voted when it was last looked at, and that was lately.
    pub fn votes(&self, now: BootTime) -> bool {
        let fresh = self.answered_at.is_some_and(|at| now.since(at) <= HEALTH_MAX_AGE);
        fresh && self.error.is_none() && self.status.as_ref().is_some_and(|s| s.vote == Vote::Active)
    }
}

/// Why a new cluster was not declared.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum InitError {
    /// A node did not answer.
    #[error("node {0} did not answer ({1}): all nodes must be reachable when a cluster is declared")]
    Unreachable(NodeId, UnreachableKind),
    /// A node is part of a cluster already.
    #[error("node {0} is part of a cluster already; declaring it new could forget leases that are still running")]
    AlreadyInitialised(NodeId),
    /// A node cannot be part of this cluster.
    #[error("node {0}: {1}")]
    Unsuitable(NodeId, String),
}

/// One per instance; see the module.
pub struct NodeMonitor<N, C, E> {
    engine: Redlock<N, C, E>,
    book: Arc<Mutex<Book>>,
}

impl<N, C, E> Clone for NodeMonitor<N, C, E> {
    fn clone(&self) -> Self {
        Self { engine: self.engine.clone(), book: Arc::clone(&self.book) }
    }
}

/// What the nodes' clocks say, against the stamp clock.
struct Clocks {
    median_us: i64,
    /// Nodes that are off by more than the guard, where the median is.
    stepped: Vec<usize>,
}

struct Book {
    nodes: Vec<NodeHealth>,
    anchored: bool,
}

impl<N: Node, C: Clock, E: Entropy> NodeMonitor<N, C, E> {
    /// Knows nothing yet.
    pub fn new(engine: Redlock<N, C, E>) -> Self {
        let now = engine.clock.now();
        let nodes = engine.nodes.iter().map(|_| NodeHealth::new(now)).collect();
        Self { engine, book: Arc::new(Mutex::new(Book { nodes, anchored: false })) }
    }

    /// What is known of each node, in configured order.
    pub fn health(&self) -> Vec<NodeHealth> {
        self.book().nodes.clone()
    }

    /// Two names under which one and the same server answered, if there are any: its one vote would
    /// count twice.
    pub fn same_server(&self) -> Option<(NodeId, NodeId)> {
        let mut runs: BTreeMap<String, NodeId> = BTreeMap::new();
        for (node, health) in self.engine.nodes.iter().zip(self.health()) {
            let run = health.status.map(|s| s.run).filter(|run| !run.is_empty() && health.error.is_none());
            if let Some(other) = run.and_then(|run| runs.insert(run, node.id().clone())) {
                return Some((other, node.id().clone()));
            }
        }
        None
    }

    /// Looks again and again. Never returns; dropping it stops it and leaves nothing behind.
    pub async fn watch(self) {
        loop {
            self.probe_round().await;
            self.engine.clock.sleep(PROBE_INTERVAL).await;
        }
    }

    /// One look at all nodes, with what follows from it.
    pub async fn probe_round(&self) {
        let (tally, sent, heard) = self.ask_all(Request::Probe).await;
        self.note(&tally, sent, heard);
        self.follow_clocks().await;
        let unseeded = |(i, a): (usize, &NodeResult)| is_unseeded(a).then_some(i);
        let served: Vec<usize> = tally.received().filter_map(unseeded).collect();
        if !served.is_empty() {
            self.seed(&served).await;
        }
    }

    /// Whether the instance has taken the time from its nodes: before that, a step of most of their clocks is one
    /// that it cannot see.
    #[cfg(test)]
    pub(crate) fn has_time(&self) -> bool {
        self.book().anchored
    }

    /// Declares a new cluster: the explicit act that tells blank nodes from wiped ones. All nodes
    /// must answer, and none may have been part of a cluster.
    ///
    /// Cancel: some nodes may have been declared, others not; calling it again finishes the work
    /// only if all are still blank, otherwise the quarantine does.
    pub async fn init(&self) -> Result<(), InitError> {
        let (tally, sent, heard) = self.ask_all(Request::Probe).await;
        self.note(&tally, sent, heard);
        self.follow_clocks().await;
        // Once more: the first look may have been refused for a stamp clock that was not anchored yet.
        let (tally, ..) = self.ask_all(Request::Probe).await;
        self.all_statuses(&tally, |status| match &status.vote {
            Vote::NoVote(NoVote::Quarantined { .. } | NoVote::Unseeded { .. }) => status.why == "blank",
            _ => false,
        })?;
        let (tally, ..) = self.ask_all(Request::Init).await;
        self.all_statuses(&tally, |status| status.vote == Vote::Active)
    }

    fn all_statuses(&self, tally: &Tally, is_fine: impl Fn(&NodeStatus) -> bool) -> Result<(), InitError> {
        for (node, answer) in self.engine.nodes.iter().zip(tally.answers()) {
            let id = node.id().clone();
            match answer {
                Some(Ok(Reply::Status(status))) if is_fine(status) => {}
                Some(Ok(Reply::Status(NodeStatus { vote: Vote::NoVote(NoVote::ClockOff { .. }), .. }))) => {
                    return Err(InitError::Unsuitable(
                        id,
                        "its clock differs from the others' by more than the guard, or it answers too slowly to tell"
                            .into(),
                    ));
                }
                Some(Ok(Reply::Status(_))) => return Err(InitError::AlreadyInitialised(id)),
                Some(Ok(_)) => return Err(InitError::Unreachable(id, UnreachableKind::Protocol)),
                Some(Err(error)) => return Err(InitError::Unreachable(id, error.kind)),
                None => return Err(InitError::Unreachable(id, UnreachableKind::Timeout)),
            }
        }
        Ok(())
    }

    async fn ask_all(&self, request: Request) -> (Tally, BootTime, Vec<Option<BootTime>>) {
        let everyone = self.engine.everyone();
        let sent = self.engine.clock.now();
        let heard = Mutex::new(vec![None; everyone.len()]);
        let rounds = everyone.iter().map(|i| {
            let (engine, request, heard) = (&self.engine, request.clone(), &heard);
            async move {
                let (only, until) = ([*i], sent.plus(PROBE_TIMEOUT));
                let tally = engine.round(&only, request, sent, until, Until::All, Result::is_ok).await;
                let answer = tally.answers()[*i].clone();
                lock(heard)[*i] = Some(engine.clock.now());
                (*i, answer)
            }
        });
        let answers = futures_util::future::join_all(rounds).await;
        let mut tally = Tally::new(everyone.len());
        for (i, answer) in answers {
            if let Some(answer) = answer {
                let yes = answer.is_ok();
                tally.record(i, answer, yes);
            }
        }
        (tally, sent, heard.into_inner().unwrap_or_else(PoisonError::into_inner))
    }

    fn note(&self, tally: &Tally, sent: BootTime, heard: Vec<Option<BootTime>>) {
        let mut book = self.book();
        for ((health, answer), heard) in book.nodes.iter_mut().zip(tally.answers()).zip(heard) {
            let before = (health.error.is_some(), health.status.as_ref().map(|s| word(&s.vote)));
            match answer {
                Some(Ok(Reply::Status(status))) => {
                    let heard = heard.unwrap_or(sent);
                    let rtt = heard.since(sent);
                    let middle = self.engine.cluster_clock.at(sent.plus(rtt / 2));
                    // A slow answer (or a process that was stopped in between) says little of the clock.
                    let quick = rtt <= self.engine.settings.params.guard / 4;
                    health.offset_us = quick.then(|| difference(status.now_us, middle.0));
                    (health.latency, health.answered_at, health.error) = (Some(rtt), Some(heard), None);
                    if health.status.as_ref().is_some_and(|old| old.run != status.run) {
                        health.restarts += 1;
                    }
                    health.status = Some(status.clone());
                }
                Some(Err(error)) => health.error = Some(error.kind),
                _ => health.error = Some(UnreachableKind::Protocol),
            }
            if before != (health.error.is_some(), health.status.as_ref().map(|s| word(&s.vote))) {
                health.since = heard.unwrap_or(sent);
            }
        }
    }

    /// Keeps the stamp clock at the median of the nodes' clocks. Where that median has jumped by
    /// more than the guard, and a second look confirms it, those nodes' clocks were stepped under
    /// running leases: the stamp clock follows only when a quorum of them has confirmed its
    /// quarantine, since with the new stamps the others would vote.
    async fn follow_clocks(&self) {
        let engine = &self.engine;
        let Some(clocks) = self.clocks() else { return };
        if !self.book().anchored {
            engine.cluster_clock.slew(clocks.median_us);
            self.book().anchored = true;
        } else if clocks.stepped.is_empty() {
            engine.cluster_clock.slew(clocks.median_us.clamp(-SLEW_US_PER_PASS, SLEW_US_PER_PASS));
        } else {
            let (tally, sent, heard) = self.ask_all(Request::Probe).await;
            self.note(&tally, sent, heard);
            let Some(Clocks { median_us, stepped }) = self.clocks() else { return };
            if stepped.is_empty() {
                return;
            }
            let now = engine.clock.now();
            let until = now.plus(PROBE_TIMEOUT);
            let tally = engine.round(&stepped, Request::Quarantine, now, until, Until::All, Result::is_ok).await;
            if tally.yes() >= engine.quorum() || mutant::is(Mutant::FollowAtOnce) {
                engine.cluster_clock.slew(median_us);
            }
        }
    }

    /// The nodes' clocks as the last look found them; `None` without a quorum of them that agree: one
    /// node's clock, stepped while others are silent, moves nothing.
    fn clocks(&self) -> Option<Clocks> {
        let book = self.book();
        let fresh = book.nodes.iter().enumerate().filter(|(_, h)| h.error.is_none());
        let mut offsets: Vec<(i64, usize)> = fresh.filter_map(|(i, h)| Some((h.offset_us?, i))).collect();
        if offsets.len() < self.engine.quorum() {
            return None;
        }
        offsets.sort_unstable();
        let median_us = offsets[(offsets.len() - 1) / 2].0;
        let guard_us = i64::try_from(self.engine.settings.params.guard.as_micros()).unwrap_or(i64::MAX);
        let agrees = |offset: i64| offset.saturating_sub(median_us).saturating_abs() <= guard_us;
        let agreeing = offsets.iter().filter(|(offset, _)| agrees(*offset)).count();
        if agreeing < self.engine.quorum() && !mutant::is(Mutant::FollowOneNode) {
            return None;
        }
        let is_off = |offset: i64| offset.saturating_abs() > guard_us;
        let stepped = offsets.into_iter().filter(|(o, _)| is_off(median_us) && is_off(*o)).map(|(_, i)| i).collect();
        Some(Clocks { median_us, stepped })
    }

    /// Gives nodes that had `served` their quarantine before this look the vote back. They learn the highest fence
    /// from a quorum of *other* nodes, read after their quarantine was seen to be over; where the
    /// whole cluster starts anew, every listed node must be there and waiting, and the stamp clock
    /// is the floor.
    async fn seed(&self, served: &[usize]) {
        let (tally, ..) = self.ask_all(Request::Probe).await;
        let mut votes: BTreeMap<usize, Fence> = BTreeMap::new();
        let mut unseeded: BTreeMap<usize, Fence> = BTreeMap::new();
        for (i, answer) in tally.received() {
            match answer {
                Ok(Reply::Status(NodeStatus { vote: Vote::Active, high_water, .. })) => {
                    votes.insert(i, *high_water);
                }
                Ok(Reply::Status(NodeStatus { vote: Vote::NoVote(NoVote::Unseeded { .. }), high_water, .. })) => {
                    unseeded.insert(i, *high_water);
                }
                _ => {}
            }
        }
        let enough = if mutant::is(Mutant::SeedFromOne) { 1 } else { self.engine.quorum() };
        let seed = if votes.len() >= enough {
            votes.values().copied().max()
        } else if votes.len() + unseeded.len() == self.engine.nodes.len() {
            let floor = Fence(self.engine.cluster_clock.request_time().0);
            votes.values().chain(unseeded.values()).copied().chain([floor]).max()
        } else {
            None
        };
        let Some(seed) = seed else { return };
        let targets: Vec<usize> = unseeded.into_keys().filter(|i| served.contains(i)).collect();
        let now = self.engine.clock.now();
        let request = Request::Activate { seed };
        let tally = self.engine.round(&targets, request, now, now.plus(PROBE_TIMEOUT), Until::All, Result::is_ok).await;
        let mut book = self.book();
        for (i, answer) in tally.received() {
            if let Ok(Reply::Status(status)) = answer {
                book.nodes[i].status = Some(status.clone());
                book.nodes[i].since = now;
            }
        }
    }

    fn book(&self) -> MutexGuard<'_, Book> {
        lock(&self.book)
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn is_unseeded(answer: &NodeResult) -> bool {
    matches!(answer, Ok(Reply::Status(NodeStatus { vote: Vote::NoVote(NoVote::Unseeded { .. }), .. })))
}

fn word(vote: &Vote) -> u8 {
    match vote {
        Vote::Active => 0,
        Vote::NoVote(NoVote::Quarantined { .. }) => 1,
        Vote::NoVote(NoVote::Unseeded { .. }) => 2,
        Vote::NoVote(NoVote::ClockOff { .. }) => 3,
        Vote::NoVote(NoVote::OtherCluster { .. }) => 4,
        Vote::AlreadyInitialised => 5,
    }
}

fn difference(a: u64, b: u64) -> i64 {
    i64::try_from(i128::from(a) - i128::from(b)).unwrap_or(i64::MAX)
}
