//! The node monitor's part in views: adopts the highest that nodes show, installs it on the others, and makes new ones.

use std::sync::Arc;
use std::time::Duration;

use super::change::Outcome;
use super::next_view::{Known, Member, plausible};
use crate::protocol::{NodeStatus, View, ViewId};
use crate::redlock::backoff::uniform;
use crate::redlock::clock::Clock;
use crate::redlock::monitor::NodeMonitor;
use crate::redlock::node::Node;
use crate::redlock::random::Entropy;
use crate::types::NodeId;

/// Random time before a change of the view: several instances notice that it is needed.
const CHANGE_PAUSE_MIN: Duration = Duration::from_millis(300);
/// The same after changes that failed: it doubles up to this.
const CHANGE_PAUSE_MAX: Duration = Duration::from_secs(4);
/// The first view over nodes that are in none is made of all that answer, or, after this time, of a quorum.
const FIRST_VIEW_WAITS: Duration = Duration::from_secs(5);

/// What is known of the nodes as of the last probe.
pub(super) struct Latest {
    pub(super) names: Vec<NodeId>,
    pub(super) members: Vec<Option<Member>>,
    pub(super) rivals: Vec<bool>,
    pub(super) ended: Vec<bool>,
    pub(super) addresses: Vec<Option<Arc<str>>>,
}

impl<N: Node, C: Clock, E: Entropy> NodeMonitor<N, C, E> {
    /// Changes the view where that is needed, for ever. Cancel: as of a change: another one starts above it.
    pub async fn change_views(self) {
        let mut pause = CHANGE_PAUSE_MIN;
        loop {
            self.change_needed.notified().await;
            let before = self.highest_seen();
            self.engine.clock.sleep(uniform(&self.engine.entropy, pause)).await;
            self.probe_all().await;
            if self.highest_seen() > before {
                continue; // another instance is at it: two changes at a time displace each other
            }
            if !self.needs_change() {
                continue;
            }
            pause = match self.change().await {
                Outcome::Displaced => (pause * 2).min(CHANGE_PAUSE_MAX),
                Outcome::Done(_) | Outcome::Nothing => CHANGE_PAUSE_MIN,
            };
            self.probe_all().await;
        }
    }

    /// Takes the highest view that a node votes in, and moves the others on to it. Returns whether anything changed.
    pub(in crate::redlock) async fn follow_views(&self, asked_in: ViewId) -> bool {
        let latest = self.latest();
        let (base, named) = latest.known(self.engine.quorum()).base();
        let is_forgotten = asked_in > base.id && named.len() >= self.engine.quorum();
        if is_forgotten && self.engine.views.current().id == asked_in {
            self.engine.views.replace(&base);
        }
        self.engine.views.take(&base);
        let current = self.engine.views.current();
        if current.id == ViewId::NONE {
            let is_everybody = named.len() == latest.names.len() || self.is_older_than(FIRST_VIEW_WAITS);
            return named.len() >= self.engine.quorum()
                && is_everybody
                && matches!(self.change().await, Outcome::Done(_));
        }
        self.follow_addresses(&current);
        let laggards = latest.laggards(&current, false);
        if !laggards.is_empty() {
            self.engine.move_on(&laggards, &current).await;
        }
        let outside = latest.known(self.engine.quorum()).to_give_up();
        if !outside.is_empty() {
            self.engine.move_on(&outside, &base).await;
        }
        !laggards.is_empty() || !outside.is_empty() || current.id != asked_in
    }

    /// Whether a node can be given the vote by a new view, or has promised one that never came.
    pub(in crate::redlock) fn needs_change(&self) -> bool {
        let (latest, current) = (self.latest(), self.engine.views.current());
        let known = latest.known(self.engine.quorum());
        !known.to_heal().is_empty() && current.id != ViewId::NONE
            || known.is_cold()
            || known.has_stray()
            || !latest.laggards(&current, true).is_empty()
    }

    /// The highest view that any node, or this instance, knows of.
    pub(super) fn highest_seen(&self) -> ViewId {
        self.latest().known(self.engine.quorum()).highest().max(self.engine.views.current().id)
    }

    async fn change(&self) -> Outcome {
        let (latest, above) = (self.latest(), self.highest_seen());
        let outcome = self.engine.change_view(above, &latest.rivals, &latest.ended, None).await;
        if let Outcome::Done(admitted) = outcome {
            let view = self.engine.views.current().id.number();
            tracing::info!(view, admitted, "the view of the nodes was changed");
        }
        outcome
    }

    pub(super) fn latest(&self) -> Latest {
        let names: Vec<NodeId> = self.engine.nodes.iter().map(|node| node.id().clone()).collect();
        let health = self.health();
        let status = |health: &crate::redlock::monitor::NodeHealth| -> Option<NodeStatus> {
            health.status.clone().filter(|_| health.error.is_none())
        };
        let members = health.iter().map(|health| status(health).as_ref().map(Member::from)).collect();
        let members = plausible(members, self.engine.views.current().id);
        let rivals = health.iter().map(|health| health.rival.is_some()).collect();
        let ended = self.ended(&health);
        Latest { names, members, rivals, ended, addresses: self.engine.addresses() }
    }
}

impl Latest {
    pub(super) fn known(&self, quorum: usize) -> Known<'_> {
        let Self { names, members, rivals, ended, addresses } = self;
        Known { names, members, rivals, ended, addresses, quorum }
    }

    /// Nodes that vote in a lower view, and that this one names: those that may take it, or those that promised a higher one.
    fn laggards(&self, view: &Arc<View>, has_promised_higher: bool) -> Vec<usize> {
        let is_laggard = |(i, member): (usize, &Option<Member>)| {
            let member = member.as_ref().filter(|m| m.is_sound && m.view.id < view.id)?;
            let entry = view.entry(&self.names[i])?;
            let is_named = entry.run == member.run && entry.since == member.admitted;
            (is_named && (member.promised > view.id) == has_promised_higher).then_some(i)
        };
        self.members.iter().enumerate().filter_map(is_laggard).collect()
    }
}
