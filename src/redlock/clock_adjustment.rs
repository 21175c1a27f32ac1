//! The adjustment of the cluster clock: it follows the nodes' clocks, slowly. If most of them were stepped, keys may have ended
//! early, so the nodes are quarantined before this instance asks with the new time.

use std::sync::Arc;
use std::time::Duration;

use super::clock::{BootTime, Clock};
use super::monitor::{NodeMonitor, PROBE_TIMEOUT, status_of};
use super::node::Node;
use super::node_health::NodeHealth;
use super::random::Entropy;
use super::round::Until;
use crate::mutant::{self, Mutant};
use crate::protocol::{NodeStatus, Request, View, Vote};
use crate::types::NodeId;

/// Maximum change of the cluster clock per probe round: 1 % of [`super::monitor::PROBE_INTERVAL`], the assumed maximum
/// difference of clock rates.
const SLEW_US_PER_ROUND: i64 = 10_000;
/// If an instance's orders are refused for this long, its clock differs from all others. Longer than a witness's
/// report counts on a node (2.5 s), since after a step of the nodes' clocks an earlier report refuses the order, too.
const ALONE_AFTER: Duration = Duration::from_secs(3);

/// The nodes' clocks, relative to the cluster clock.
struct Clocks {
    median_us: i64,
    /// If the median is off by more than the guard: the nodes that are off.
    stepped: Vec<usize>,
}

/// How many nodes obeyed and refused an order of quarantine.
#[derive(Default)]
struct OrderAnswers {
    /// So many that every quorum, of the view in which the order was given, has one of them: half of an even number is enough
    /// (seed 768150), where only one half is off by more than the guard.
    enough: usize,
    obeyed: usize,
    /// Since a witness agrees with the node's clock.
    refused: usize,
    /// Of these, the processes that the order's view names and that show no later view.
    obeyed_in_view: usize,
    refused_in_view: usize,
}

impl<N: Node, C: Clock, E: Entropy> NodeMonitor<N, C, E> {
    /// Keeps the cluster clock at the median of the nodes' clocks.
    pub(super) async fn adjust_cluster_clock(&self) {
        let Some(clocks) = self.clocks() else { return };
        let anchored = self.state.lock().anchored;
        if anchored.is_none() {
            self.anchor(clocks.median_us);
        } else if clocks.stepped.is_empty() {
            self.state.lock().refused = None;
            self.engine.cluster_clock.slew(clocks.median_us.clamp(-SLEW_US_PER_ROUND, SLEW_US_PER_ROUND));
            self.repeat_order().await;
        } else {
            let answers = self.send_to_all(self.probe()).await;
            self.record(&answers);
            if let Some(clocks) = self.clocks().filter(|clocks| !clocks.stepped.is_empty()) {
                self.follow_stepped(clocks).await;
            }
        }
    }

    /// If the median has jumped by more than the guard, the nodes' clocks were stepped while leases were held: the cluster clock
    /// follows only once so many have confirmed a quarantine that there is no quorum without them, because requests with the new
    /// time would make the stepped nodes vote again. If its view may not be the nodes' latest, the order is to be repeated.
    ///
    /// Cancel: each node may have obeyed; the cluster clock has not followed.
    async fn follow_stepped(&self, Clocks { median_us, stepped }: Clocks) {
        let now = self.engine.clock.now();
        let answers = self.order_quarantine(&stepped).await;
        let alone_since = self.alone_since(&answers, median_us, now);
        if answers.obeyed >= answers.enough || mutant::is(Mutant::FollowAtOnce) {
            let is_due = answers.obeyed_in_view < answers.enough;
            let is_repeated = !mutant::is(Mutant::FollowInOldView) && !mutant::is(Mutant::FollowAtOnce);
            self.set_order_due((is_due && is_repeated).then_some(now));
            self.state.lock().refused = None;
            self.engine.cluster_clock.slew(median_us);
        } else if alone_since.is_some_and(|since| now.since(since) >= ALONE_AFTER) {
            // The time of the other instances is right: this process was stopped, and its clock with it.
            self.anchor(median_us);
            let seconds = Duration::from_micros(median_us.unsigned_abs()).as_secs_f64();
            let text = if median_us > 0 { "stood still" } else { "ran ahead" };
            tracing::warn!(seconds, "this process {text} for {seconds:.1} s; it follows the nodes' time again");
        }
    }

    /// Orders the quarantine again that a step made necessary, if too few of those that obeyed the first order were named by this
    /// instance's view and showed no later one: in a later view another process may vote, which got no order. Until enough of
    /// the present view have confirmed the order, this instance takes no lease (seed 337442). A node that refuses since a witness
    /// agrees with its clock shows that another instance has given the order, once reports from before the step have expired.
    ///
    /// Cancel: each node may have obeyed; the order stays due.
    async fn repeat_order(&self) {
        let (now, due) = (self.engine.clock.now(), self.state.lock().order_due);
        if due.is_none_or(|since| now.since(since) < ALONE_AFTER) {
            return;
        }
        let view = self.engine.views.current();
        let is_latest = |(i, health): &(usize, NodeHealth)| {
            let status = health.status.as_ref().filter(|_| health.error.is_none());
            status.is_some_and(|status| is_latest_of(&view, self.engine.nodes[*i].id(), status))
        };
        let targets: Vec<usize> = self.health().into_iter().enumerate().filter(is_latest).map(|(i, _)| i).collect();
        if targets.len() < self.engine.more_than_a_minority(&view) {
            return;
        }
        let answers = self.order_quarantine(&targets).await;
        if answers.obeyed_in_view + answers.refused_in_view >= answers.enough {
            self.set_order_due(None);
        }
    }

    /// Orders the quarantine of these nodes because of their clocks. Cancel: each node may have obeyed.
    async fn order_quarantine(&self, nodes: &[usize]) -> OrderAnswers {
        let (engine, now) = (&self.engine, self.engine.clock.now());
        let order = Request::Quarantine { by: Arc::clone(&self.instance) };
        let tally = engine.round(nodes, order, now, now.plus(PROBE_TIMEOUT), Until::All, Result::is_ok).await;
        let mut answers = OrderAnswers { enough: engine.more_than_a_minority(tally.view()), ..OrderAnswers::default() };
        for (i, answer) in tally.received() {
            let Some(status) = status_of(answer) else { continue };
            let in_view = usize::from(is_latest_of(tally.view(), engine.nodes[i].id(), status));
            let (all, those_in_view) = match status.vote == Vote::Witnessed {
                true => (&mut answers.refused, &mut answers.refused_in_view),
                false => (&mut answers.obeyed, &mut answers.obeyed_in_view),
            };
            (*all, *those_in_view) = (*all + 1, *those_in_view + in_view);
        }
        answers
    }

    fn set_order_due(&self, since: Option<BootTime>) {
        let before = std::mem::replace(&mut self.state.lock().order_due, since);
        self.engine.cluster_clock.set_order_due(since.is_some());
        match (before, since) {
            (None, Some(_)) => tracing::warn!(
                "the nodes' clocks were stepped before this instance had followed a change of the nodes; it acquires nothing until it \
                 has, and they are quarantined"
            ),
            (Some(_), None) => {
                tracing::info!("the nodes of the present view are quarantined; this instance acquires again")
            }
            _ => {}
        }
    }

    /// Since when enough nodes refuse this instance's orders without a step of the nodes' clocks. After a step, a report
    /// from before may refuse the order, so counting begins anew (seed 65841).
    fn alone_since(
        &self,
        OrderAnswers { refused, enough, .. }: &OrderAnswers,
        median_us: i64,
        now: BootTime,
    ) -> Option<BootTime> {
        let guard = self.engine.terms().guard.as_micros();
        let is_same = |(_, before): &(BootTime, i64)| u128::from(median_us.abs_diff(*before)) <= guard;
        let mut state = self.state.lock();
        let before = state.refused.filter(|before| is_same(before) || mutant::is(Mutant::StepWhileAlone));
        state.refused = (refused >= enough).then(|| before.unwrap_or((now, median_us)));
        state.refused.map(|(since, _)| since)
    }

    /// Takes the nodes' time as right, as at the start.
    fn anchor(&self, median_us: i64) {
        self.engine.cluster_clock.anchor(median_us);
        let mut state = self.state.lock();
        (state.anchored, state.refused) = (Some(self.engine.clock.now()), None);
    }

    /// The nodes' clocks as of the last probe round; `None` unless a quorum of them agrees, so that one
    /// node's stepped clock has no effect while other nodes do not answer.
    fn clocks(&self) -> Option<Clocks> {
        let state = self.state.lock();
        let members = self.engine.members();
        let answered = state.nodes.iter().enumerate().filter(|(i, h)| members >> i & 1 == 1 && h.error.is_none());
        let mut offsets: Vec<(i64, usize)> = answered.filter_map(|(i, h)| Some((h.offset_us?, i))).collect();
        if offsets.len() < self.engine.quorum() {
            return None;
        }
        offsets.sort_unstable();
        let median_us = offsets[(offsets.len() - 1) / 2].0;
        let guard_us = i64::try_from(self.engine.terms().guard.as_micros()).unwrap_or(i64::MAX);
        let agrees = |offset: i64| offset.saturating_sub(median_us).saturating_abs() <= guard_us;
        let agreeing = offsets.iter().filter(|(offset, _)| agrees(*offset)).count();
        if agreeing < self.engine.quorum() && !mutant::is(Mutant::FollowOneNode) {
            return None;
        }
        let is_off = |offset: i64| offset.saturating_abs() > guard_us;
        let stepped = offsets.into_iter().filter(|(o, _)| is_off(median_us) && is_off(*o)).map(|(_, i)| i).collect();
        Some(Clocks { median_us, stepped })
    }
}

/// Whether the view names this process, and the process shows no later view.
fn is_latest_of(view: &View, name: &NodeId, status: &NodeStatus) -> bool {
    status.view.id <= view.id && view.entry(name).is_some_and(|entry| *entry.run == *status.run)
}
