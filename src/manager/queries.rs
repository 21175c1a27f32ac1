//! Answers that change nothing: one resource, the list, the nodes, the gauges.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use super::cluster_state::Situation;
use super::events::LISTENERS_MAX;
use super::lease_snapshot::SnapshotLease;
use super::no_vote_reasons;
use super::node_state::{NOT_ASKED, NodeState, describe, quarantine_reason};
use super::service::{Gauges, LockManager};
use super::types::*;
use crate::protocol::{LeaseRecord, NoVote, NodeResult, Reply, StoredLock};
use crate::redlock::clock::{BootTime, Clock};
use crate::redlock::inspect::{ClusterInspection, HeldMember, ResourceState};
use crate::redlock::monitor::NodeHealth;
use crate::redlock::node::Node;
use crate::redlock::quorum::{NodeOutcome, Verdict};
use crate::redlock::random::Entropy;
use crate::types::{NodeId, ResourceName};
use crate::waiting::state_machine::Queue;

/// Whether a caller may see a resource.
pub(super) type NameFilter<'a> = &'a (dyn Fn(&ResourceName) -> bool + Sync);

/// When to ask again if no node reports a time.
const RETRY_AFTER: Duration = Duration::from_secs(1);

impl<N: Node, C: Clock, E: Entropy> LockManager<N, C, E> {
    /// The state of one resource on a quorum, with its waiters.
    ///
    /// Errors: [`NoQuorum`] if too few nodes answered.
    pub async fn inspect(&self, resource: &ResourceName) -> Result<Inspection, NoQuorum> {
        let inspected = self.engine().inspect(resource).await;
        let inspected = inspected.map_err(|answers| self.no_quorum(0, self.engine().outcomes(&answers)))?;
        Ok(self.inspection(resource, inspected))
    }

    pub(super) fn inspection(&self, resource: &ResourceName, inspected: ClusterInspection) -> Inspection {
        let (waiters, waiting_elsewhere) = self.waiters_for(resource);
        let is_confirmed = inspected.agreeing >= self.engine().quorum();
        let waiting_here = waiters.iter().filter(|waiter| waiter.instance == self.shared.instance).count();
        let others = &self.shared.cluster_waiters;
        let state = match inspected.state {
            ResourceState::Free => LockState::Free,
            ResourceState::Lease { record, left } => LockState::Held(vec![self.holder(&record, left, is_confirmed)]),
            ResourceState::Members(members) => {
                let quorum = self.engine().quorum();
                let holder = |m: &HeldMember| self.holder(&m.record, m.left, m.agreeing >= quorum);
                let mut holders: Vec<HolderInfo> = members.iter().map(holder).collect();
                holders.sort_by_key(|holder| (holder.mode.slot(), holder.fence));
                LockState::Held(holders)
            }
            ResourceState::Foreign { fingerprint, left } => LockState::Foreign { left, fingerprint },
        };
        let members = self.engine().members();
        let answers = self.engine().nodes.iter().zip(&inspected.answers).enumerate();
        let listed = answers.filter(|(i, _)| members >> i & 1 == 1);
        let nodes = listed.map(|(_, (node, answer))| resource_on_node(node.as_ref(), answer)).collect();
        Inspection {
            resource: resource.clone(),
            state,
            instance: self.shared.instance.clone(),
            waiters,
            waiting_here,
            waiting: waiting_here + waiting_elsewhere,
            waiters_known: others.knows_of(resource, self.now()),
            nodes,
            quorum: self.count(inspected.agreeing),
        }
    }

    /// A page of the held leases and the waiters of the whole cluster. The leases are from a snapshot, which is taken
    /// again if the last one is too old.
    ///
    /// Cancel: nothing is left behind.
    pub async fn list(&self, query: ListQuery) -> ListPage {
        self.list_visible(query, None).await
    }

    /// As `list`, for the names that `is_visible` accepts; pages are full nevertheless.
    ///
    /// Cancel: nothing is left behind.
    pub async fn list_visible(&self, query: ListQuery, is_visible: Option<NameFilter<'_>>) -> ListPage {
        let snapshot = self.shared.snapshots.get(self.engine(), || self.nodes_without_vote()).await;
        let age = self.now().since(snapshot.taken);
        let lock_delay = self.engine().terms().lock_delay;
        let mut waiting = self.waiting_by_resource();
        waiting.retain(|resource, _| resource.as_str().starts_with(&query.prefix));
        let after = query.after.as_deref().unwrap_or("");
        let from = after.max(query.prefix.as_str());
        let held = snapshot.leases.range::<str, _>((std::ops::Bound::Included(from), std::ops::Bound::Unbounded));
        let held = held.take_while(|(resource, _)| resource.as_str().starts_with(&query.prefix));
        let mut items: Vec<ListItem> = Vec::new();
        let limit = query.limit.clamp(1, LIST_LIMIT_MAX);
        let mut queued = waiting.iter().peekable();
        let mut held = held.filter(|(_, lease)| lease.all().any(|one| one.left > age)).peekable();
        let mut next = None;
        loop {
            let item = match (held.peek(), queued.peek()) {
                (None, None) => break,
                (Some((h, _)), Some((q, _))) if h <= q => self.held_item(held.next(), &waiting, age),
                (Some(_), None) => self.held_item(held.next(), &waiting, age),
                _ => queued.next().map(|(r, n)| {
                    let (resource, waiting) = (r.clone(), n.clone());
                    ListItem { resource, holders: Vec::new(), waiting }
                }),
            };
            let Some(item) = item else { break };
            if queued.peek().is_some_and(|(q, _)| **q == item.resource) {
                queued.next();
            }
            if item.resource.as_str() <= after
                || !matches(&query, &item, lock_delay)
                || is_visible.is_some_and(|is_visible| !is_visible(&item.resource))
            {
                continue;
            }
            if items.len() == limit {
                next = items.last().map(|last| last.resource.to_string());
                break;
            }
            items.push(item);
        }
        let total = match is_visible {
            Some(is_visible) => snapshot.leases.keys().filter(|resource| is_visible(resource)).count(),
            None => snapshot.leases.len(),
        };
        ListPage {
            items,
            next,
            incomplete: (!snapshot.complete).then(|| no_vote_reasons::of_probes(&self.nodes())),
            age,
            total,
            instance: self.shared.instance.clone(),
            waiters_known: self.shared.cluster_waiters.summary(self.now()).all_named(),
        }
    }

    fn held_item(
        &self,
        entry: Option<(&ResourceName, &SnapshotLease)>,
        waiting: &BTreeMap<ResourceName, Vec<InstanceQueue>>,
        age: Duration,
    ) -> Option<ListItem> {
        let (resource, lease) = entry?;
        let standing = lease.all().filter(|lease| lease.left > age);
        let holder = |one: &SnapshotLease| self.holder(&one.record, one.left.saturating_sub(age), one.is_confirmed);
        Some(ListItem {
            resource: resource.clone(),
            holders: standing.map(holder).collect(),
            waiting: waiting.get(resource).cloned().unwrap_or_default(),
        })
    }

    /// All nodes of the list, in configured order.
    pub fn nodes(&self) -> Vec<NodeSummary> {
        let now = self.now();
        let health = self.shared.monitor.health();
        let (missing, not_asked) = (self.shared.monitor.waits_for(), self.engine().not_asked());
        let members = self.engine().members();
        let listed = self.engine().nodes.iter().zip(health).enumerate().filter(|(i, _)| members >> i & 1 == 1);
        let listed = Vec::from_iter(listed.map(|(_, of)| of));
        let own_list: BTreeSet<NodeId> = listed.iter().map(|(node, _)| node.id().clone()).collect();
        let params = self.engine().params();
        let report = |(node, health): (&std::sync::Arc<N>, NodeHealth)| {
            let (details, is_durable) = (node.details(), health.is_durable());
            let ended_in = self.shared.monitor.counts_as_ended_in(&health);
            let findings = details.findings.into_iter().map(|f| NodeFinding {
                code: f.code.to_owned(),
                detail: f.detail,
                bars: f.removes_vote,
            });
            let findings: Vec<NodeFinding> = findings.collect();
            let is_suitable = NodeFinding::codes_that_bar(&findings).is_empty();
            let not_asked = not_asked.filter(|_| is_suitable);
            let other_list = health.other_list(&own_list, &params);
            let described = describe(&health, now, &missing, ended_in, not_asked, &other_list).with_findings(&findings);
            let NodeState { state, votes_in, why, waits_for } = described;
            NodeSummary {
                node: node.id().clone(),
                votes: not_asked.is_none() && health.votes(now) && !health.is_slow && is_suitable,
                not_asked: not_asked.filter(|_| state == NOT_ASKED),
                state,
                since: now.since(health.since),
                votes_in,
                why,
                quarantine: quarantine_reason(&health),
                quarantines: self.shared.incidents.quarantines(node.id()),
                lost_ago: health.losses.noticed_at.map(|at| now.since(at)),
                losses: health.losses,
                error: health.error,
                has_two_servers: health.has_two_servers,
                is_durable,
                doubled_for: self.shared.incidents.doubled_for(node.id(), now),
                waits_for,
                other_list,
                latency: health.latency,
                clock_offset_ms: health.offset_us.map(|us| us / 1_000),
                run_id: health.status.as_ref().map(|s| s.run_id().to_owned()),
                version: details.version,
                restarts: health.restarts,
                findings,
                view: health.status.as_ref().map(|s| s.view.id.number()).filter(|number| *number > 0),
            }
        };
        listed.into_iter().map(report).collect()
    }

    /// How long rounds wait for a node's answer now.
    pub fn node_timeout(&self) -> Duration {
        self.engine().node_timeout()
    }

    /// The nodes that have no vote, one bit each: they may have forgotten leases.
    pub(super) fn nodes_without_vote(&self) -> u64 {
        let forgot: Vec<NodeSummary> =
            self.nodes().into_iter().filter(|node| !node.votes && node.state != "slow").collect();
        let nodes = self.engine().nodes.iter().enumerate();
        let is_one = |node: &NodeId| forgot.iter().any(|one| one.node == *node);
        nodes.filter(|(_, node)| is_one(node.id())).fold(0, |mask, (i, _)| mask | 1 << i)
    }

    /// How many wait for a resource in this instance.
    pub fn waiter_count(&self, resource: &ResourceName) -> usize {
        self.shared.waiting.queue(|queue| queue.waiter_count(resource))
    }

    /// Whether requests can be served: not draining, and a quorum of nodes answered lately and votes.
    pub fn readiness(&self) -> Readiness {
        if self.is_stopping() {
            return Readiness::Draining;
        }
        let reports = self.nodes();
        let voting = reports.iter().filter(|r| r.votes).count();
        if voting >= self.engine().quorum() {
            return Readiness::Ready;
        }
        Readiness::NoQuorum { voting, ready_in: self.ready_in(&reports) }
    }

    /// Time until enough of these nodes vote, where that is known.
    fn ready_in(&self, reports: &[NodeSummary]) -> Option<Duration> {
        let missing = self.engine().quorum().checked_sub(reports.iter().filter(|r| r.votes).count())?;
        let mut soon: Vec<Duration> = reports.iter().filter(|r| !r.votes).filter_map(|r| r.votes_in).collect();
        soon.sort_unstable();
        soon.get(missing.checked_sub(1)?).copied()
    }

    /// The state of these nodes as text, with the advice.
    pub fn situation(&self, nodes: &[NodeSummary]) -> Situation {
        let loss = self.shared.incidents.quorum_loss(self.now());
        Situation::of(nodes, self.engine().quorum(), loss.as_ref(), self.ready_in(nodes), self.wall_ms())
    }

    /// The gauges for metrics. The cost does not depend on the number of leases.
    pub fn gauges(&self) -> Gauges {
        let (engine, now) = (self.engine(), self.now());
        let samples = *self.shared.samples.lock();
        let since = |start: Option<BootTime>| start.map(|at| now.since(at)).unwrap_or_default();
        let (waiters, others) =
            (self.shared.waiting.queue(Queue::total_waiters), self.shared.cluster_waiters.summary(now));
        let (deadlocks_reported, deadlocks_refused) = self.shared.deadlocks.counts();
        Gauges {
            node_timeout: engine.node_timeout(),
            cluster_leases: self.shared.snapshots.count(now, self.wall_ms()),
            kept: self.kept_count(),
            tickets: self.ticket_counts(),
            holding_connections: self.shared.held_leases.count(),
            listeners: self.shared.events.listeners(),
            listeners_limit: LISTENERS_MAX,
            longest_wait: since(samples.longest_wait_since),
            longest_ticket_wait: since(samples.longest_ticket_since),
            clock_jumps: samples.clock_jumps,
            waiters,
            waiters_limit: self.shared.waiting.queue(|queue| queue.limits().total),
            deadlocks_reported,
            deadlocks_refused,
            cluster_waiters: waiters.saturating_add(others.waiting),
            cluster_longest_wait: since(samples.longest_wait_since)
                .max(since(samples.longest_ticket_since))
                .max(others.oldest.unwrap_or_default()),
            cluster_waiters_known: others.is_known,
            cleanups: engine.cleanups_in_flight(),
            skipped_cleanups: engine.skipped_cleanups(),
            under_replicated: engine.under_replicated(),
            repaired: engine.repaired(),
        }
    }

    /// `left` is the TTL of the key: the lease ends a lock delay earlier. A lease that no quorum confirms has no validity.
    pub(super) fn holder(&self, record: &LeaseRecord, left: Duration, is_confirmed: bool) -> HolderInfo {
        let valid_for = left.saturating_sub(self.engine().terms().lock_delay);
        let labels = record.labels();
        HolderInfo {
            token_id: record.token.id(),
            mode: record.mode,
            fence: record.fence,
            kept_for: self.kept_for(&labels),
            labels,
            valid_for: if is_confirmed { valid_for } else { Duration::ZERO },
            is_confirmed,
            renewals: record.renewals,
        }
    }

    pub(super) fn count(&self, granted: usize) -> QuorumCount {
        QuorumCount { granted, needed: self.engine().quorum(), nodes: self.engine().size() }
    }

    pub(super) fn no_quorum(&self, granted: usize, nodes: Vec<NodeOutcome>) -> NoQuorum {
        self.shared.incidents.count_refusal();
        self.shared.round_latency.record_undecided(self.now());
        let left = |n: &NodeOutcome| match n.verdict {
            Verdict::NoVote(NoVote::Quarantined { left_ms } | NoVote::Blocked { left_ms }) => {
                Some(Duration::from_millis(left_ms))
            }
            _ => None,
        };
        let retry_after = nodes.iter().filter_map(left).min().unwrap_or(RETRY_AFTER).max(RETRY_AFTER);
        let reasons = no_vote_reasons::reasons(&nodes, &self.nodes());
        NoQuorum { quorum: self.count(granted), nodes, reasons, retry_after }
    }
}

fn matches(query: &ListQuery, item: &ListItem, lock_delay: Duration) -> bool {
    let has_owner = |wanted: &str| item.holders.iter().any(|holder| holder.labels.owner == wanted);
    if query.owner.as_deref().is_some_and(|wanted| !has_owner(wanted)) {
        return false;
    }
    let running = item.holders.iter().any(|holder| !holder.valid_for.is_zero());
    let is_unknown = !item.holders.is_empty() && item.holders.iter().all(|holder| !holder.is_confirmed);
    match query.state {
        None => true,
        Some(ListState::Held) => running,
        Some(ListState::Waited) => !item.waiting.is_empty(),
        Some(ListState::LockDelay) => !item.holders.is_empty() && !running && !is_unknown && !lock_delay.is_zero(),
        Some(ListState::Unknown) => is_unknown,
    }
}

fn resource_on_node<N: Node>(node: &N, answer: &Option<NodeResult>) -> ResourceOnNode {
    let mut on_node = ResourceOnNode {
        node: node.id().clone(),
        holds: Vec::new(),
        foreign: false,
        ttl_ms: None,
        verdict: Verdict::of(answer.as_ref()),
    };
    if let Some(Ok(Reply::Inspected(inspection))) = answer {
        match &inspection.lock {
            StoredLock::Free => {}
            StoredLock::Lease { record, left_ms } => {
                (on_node.holds, on_node.ttl_ms) = (vec![record.token.id()], Some(*left_ms));
            }
            StoredLock::Members(members) => {
                on_node.holds = members.iter().map(|(record, _)| record.token.id()).collect();
                on_node.ttl_ms = members.iter().map(|(_, left_ms)| *left_ms).max();
            }
            StoredLock::Foreign { left_ms, .. } => (on_node.foreign, on_node.ttl_ms) = (true, *left_ms),
        }
    }
    on_node
}
