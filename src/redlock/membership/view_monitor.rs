//! The node monitor's part in views: adopts the highest view that nodes show, installs it on the others, and makes new views.

use std::sync::Arc;
use std::time::Duration;

use super::change::{Outcome, ViewPurpose};
use super::next_view::{Member, NodeAnswers, plausible};
use crate::protocol::{NodeStatus, View, ViewId};
use crate::redlock::backoff::uniform;
use crate::redlock::clock::Clock;
use crate::redlock::monitor::NodeMonitor;
use crate::redlock::node::Node;
use crate::redlock::node_health::Followed;
use crate::redlock::random::Entropy;
use crate::types::NodeId;

/// Maximum random pause before a change of the view: several instances notice that it is needed.
const CHANGE_PAUSE_MIN: Duration = Duration::from_millis(300);
/// Maximum of this pause after changes that failed: it doubles up to this value.
const CHANGE_PAUSE_MAX: Duration = Duration::from_secs(4);
/// The first view over nodes without a view is made of all that answer, or, after this time, of a quorum.
const FIRST_VIEW_WAITS: Duration = Duration::from_secs(5);

/// What is known of the nodes as of the last probe.
pub(super) struct Latest {
    pub(super) names: Vec<NodeId>,
    pub(super) members: Vec<Option<Member>>,
    pub(super) rivals: Vec<bool>,
    pub(super) ended: Vec<bool>,
    pub(super) followed: Vec<Option<Followed>>,
    pub(super) addresses: Vec<Option<Arc<str>>>,
    pub(super) configured: usize,
    pub(super) own: Arc<View>,
}

impl<N: Node, C: Clock, E: Entropy> NodeMonitor<N, C, E> {
    /// Changes the view when needed, for ever. Cancel: as for a change: the next change starts above it.
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

    /// Takes the highest view in which a node votes, and moves the others to it. Returns whether anything changed.
    pub(in crate::redlock) async fn follow_views(&self, asked_in: ViewId) -> bool {
        let latest = self.latest();
        let (base, named) = latest.known().base();
        let quorum = latest.known().quorum(&base);
        let is_forgotten = asked_in > base.id && named.len() >= quorum;
        if is_forgotten
            && self.engine.views.current().id == asked_in
            && self.engine.may_take(&base, &latest.who_show_list(&base))
        {
            self.engine.views.replace(&base);
        }
        let known = latest.known();
        let shown = known.shown().filter(|view| view.id > base.id && view.list.is_some());
        let highest = shown.unwrap_or(&base).clone();
        self.engine.take_view(&highest, &latest.who_show_list(&highest));
        let current = self.engine.views.current();
        // Also in a view: an instance whose own clock was off has taken it before any node compared its cluster.
        self.learn_cluster();
        // If nobody votes, the addresses that the processes remember: else instances reach two servers under a name, and no
        // process is admitted by the clock (seed 279 of the simulation).
        let last = latest.known().last_shown(current.id).filter(|_| base.id == ViewId::NONE).cloned();
        self.follow_addresses(last.as_ref().unwrap_or(&current));
        if current.id == ViewId::NONE {
            if base.list.is_some() {
                self.follow_list(&base, &latest, false);
            }
            // A view that this instance may not take does not justify making others leave it (seed 9000530 of the simulation).
            let is_first = base.id == ViewId::NONE && named.len() >= quorum;
            let is_everybody = named.len() == latest.configured || self.is_older_than(FIRST_VIEW_WAITS);
            return is_first && is_everybody && matches!(self.change().await, Outcome::Done(_));
        }
        self.follow_list(&current, &latest, named.len() >= quorum && base.id == current.id);
        // Nodes left of this instance's list may know a later list, whose nodes are unknown here (seed 3113 of the simulation).
        if base.list.is_some() && base.id != current.id && self.engine.may_take(&base, &latest.who_show_list(&base)) {
            self.follow_list(&base, &latest, false);
        }
        let laggards = latest.laggards(&current, false);
        if !laggards.is_empty() {
            self.engine.move_on(&laggards, &current).await;
        }
        let outside = latest.known().to_give_up();
        if !outside.is_empty() {
            self.engine.move_on(&outside, &base).await;
        }
        !laggards.is_empty() || !outside.is_empty() || current.id != asked_in
    }

    /// Whether a new view can give a node the vote, or a node has promised a view that never came.
    pub(in crate::redlock) fn needs_change(&self) -> bool {
        let (latest, current) = (self.latest(), self.engine.views.current());
        let known = latest.known();
        if self.engine.is_of_unknown_list(&known.base().0) {
            return false;
        }
        let is_left_half_done = self.is_left_half_done(&known);
        !known.to_heal().is_empty() && current.id != ViewId::NONE
            || known.is_cold()
            || is_left_half_done
            || known.has_stray()
            || known.is_unsettled()
            || known.has_resumed()
            || !latest.laggards(&current, true).is_empty()
    }

    /// The highest view that any node, or this instance, knows of.
    pub(super) fn highest_seen(&self) -> ViewId {
        self.latest().known().highest().max(self.engine.views.current().id)
    }

    async fn change(&self) -> Outcome {
        let (latest, above) = (self.latest(), self.highest_seen());
        let outcome =
            self.engine.change_view(above, &latest.rivals, &latest.ended, &latest.followed, ViewPurpose::Healing).await;
        if let Outcome::Done(admitted) = outcome {
            let view = self.engine.views.current().id.number();
            tracing::info!(view, admitted, "the view of the nodes was changed");
        }
        outcome
    }

    pub(super) fn latest(&self) -> Latest {
        let health = self.health();
        let names: Vec<NodeId> = self.engine.nodes.iter().take(health.len()).map(|node| node.id().clone()).collect();
        let status = |health: &crate::redlock::monitor::NodeHealth| -> Option<NodeStatus> {
            health.status.clone().filter(|_| health.error.is_none())
        };
        let members = health.iter().map(|health| status(health).as_ref().map(Member::from)).collect();
        let members = plausible(members, self.engine.views.current().id);
        let replacing = *self.engine.replacing.lock();
        let rivals =
            health.iter().enumerate().map(|(i, health)| health.rival.is_some() || replacing == Some(i)).collect();
        let ended = self.ended(&health);
        let (addresses, configured) = (self.engine.addresses(), self.engine.configured());
        let followed = health.iter().map(|health| health.followed.clone()).collect();
        let own = self.engine.views.current();
        let mut latest = Latest { names, members, rivals, ended, followed, addresses, configured, own };
        latest.members = latest.known().by_disk(&latest.followed);
        latest
    }
}

impl Latest {
    pub(super) fn known(&self) -> NodeAnswers<'_> {
        let Self { names, members, rivals, ended, addresses, configured, own, .. } = self;
        NodeAnswers { names, members, rivals, ended, addresses, configured: *configured, own }
    }

    /// The nodes that have installed a view with the same list and terms. Not necessarily this view: the view that settles a change of the
    /// list is installed only by the new list, so a node that left shows the view before (seed 3101 of the simulation).
    pub(super) fn who_show_list(&self, view: &View) -> Vec<usize> {
        let list = self.names_of(view);
        let shows = |(i, member): (usize, &Option<Member>)| {
            let shown = member.as_ref().map(|m| &m.view).filter(|shown| shown.id != ViewId::NONE)?;
            (self.names_of(shown) == list && shown.terms() == view.terms()).then_some(i)
        };
        self.members.iter().enumerate().filter_map(shows).collect()
    }

    /// Nodes that vote in a lower view and are named by this view: those that may take it, or those that promised a higher one.
    fn laggards(&self, view: &Arc<View>, has_promised_higher: bool) -> Vec<usize> {
        let is_laggard = |(i, member): (usize, &Option<Member>)| {
            let member = member.as_ref().filter(|m| m.is_sound && m.view.id < view.id)?;
            let entry = view.entry(&self.names[i])?;
            (member.is_entry(entry) && (member.promised > view.id) == has_promised_higher).then_some(i)
        };
        self.members.iter().enumerate().filter_map(is_laggard).collect()
    }
}
