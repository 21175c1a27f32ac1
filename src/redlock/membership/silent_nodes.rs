//! Nodes that do not answer while others wait for them, and an operator's report that one of them has ended
//! (`docs/views.md`, *Quarantine*, the cold view).

use std::time::Duration;

use crate::protocol::{NoVote, NodeStatus, Vote};
use crate::redlock::clock::Clock;
use crate::redlock::monitor::{NodeHealth, NodeMonitor};
use crate::redlock::node::Node;
use crate::redlock::random::Entropy;
use crate::types::NodeId;

/// Why a node does not count as ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum ForgetError {
    /// No node of the list has this name.
    #[error("no node of this cluster has this name")]
    Unknown,
    /// The node answered the last probe.
    #[error("it answers: only a node that has ended for good can be forgotten")]
    Answers,
    /// Another instance reached a process under this name within the last seconds.
    #[error("another instance reaches it: only a node that has ended for good can be forgotten")]
    AnswersOthers,
}

/// The names that the nodes which forgot wait for.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub struct WaitedFor {
    /// Nodes that this instance knows.
    pub nodes: Vec<NodeId>,
    /// Whether these nodes answer, so that none of them counts as ended.
    pub answer: bool,
    /// Names of the nodes' view that this instance does not know and may not follow, since too few nodes show them: it must be
    /// started with these nodes in its list.
    pub unlisted: Vec<NodeId>,
}

impl WaitedFor {
    /// Whether the nodes wait for none.
    pub fn is_empty(&self) -> bool {
        self.nodes.is_empty() && self.unlisted.is_empty()
    }

    /// All names.
    pub fn all(&self) -> impl Iterator<Item = &NodeId> {
        self.nodes.iter().chain(&self.unlisted)
    }

    /// All names, separated by commas.
    pub fn names(&self) -> String {
        NodeId::list(self.all())
    }

    /// What ends the waiting.
    pub fn remedy(&self) -> String {
        let unlisted = NodeId::list(&self.unlisted);
        let start =
            format!("a node's list has {unlisted}, and this instance's has not: start the instances with {unlisted}");
        let forget = match self.answer {
            true => "see why that has no vote",
            false => "if that has ended for good, say so with `redlockd nodes forget`",
        };
        match (self.nodes.is_empty(), self.unlisted.is_empty()) {
            (_, true) => forget.to_owned(),
            (true, false) => start,
            (false, false) => format!("{start}; {forget}"),
        }
    }
}

impl<N: Node, C: Clock, E: Entropy> NodeMonitor<N, C, E> {
    /// Records an operator's report that the process under this name has ended for good. If too few vote, the others
    /// then wait for it at most one more quarantine, in which every lease ends that it may have voted for. The report
    /// is void when a process answers under the name, or when this instance ends.
    ///
    /// Errors: [`ForgetError`].
    pub fn forget(&self, name: &NodeId) -> Result<(), ForgetError> {
        let index = self.engine.member(name).ok_or(ForgetError::Unknown)?;
        let now = self.engine.clock.now();
        let mut state = self.state();
        let nodes = &mut state.nodes;
        if nodes[index].error.is_none() {
            return Err(ForgetError::Answers);
        }
        if is_alive_elsewhere(nodes, name) {
            return Err(ForgetError::AnswersOthers);
        }
        nodes[index].forgotten_at.get_or_insert(now);
        Ok(())
    }

    /// The names that the nodes which forgot wait for, until these vote, answer that they have waited, or count as
    /// ended. None if a quorum votes, or if time alone ends the waiting.
    pub fn waits_for(&self) -> WaitedFor {
        let latest = self.latest();
        let known = latest.known();
        // After a restart, reports of the former process end by themselves.
        let health = self.health();
        let restarted = |i: &usize| latest.rivals[*i] && latest.members[*i].is_some() && !health[*i].has_two_servers;
        let missing: Vec<usize> = known.waited_for().into_iter().filter(|i| !restarted(i)).collect();
        let answer = !missing.is_empty() && missing.iter().all(|i| latest.members[*i].is_some());
        let nodes = missing.into_iter().map(|i| latest.names[i].clone()).collect();
        let (base, _) = known.base();
        let may_take = self.engine.may_take(&base, &latest.who_show_list(&base));
        let is_followed = |name: &NodeId| may_take && known.is_confirmed(&base, name, None);
        let unlisted = known.unlisted().into_iter().filter(|name| !is_followed(name)).collect();
        WaitedFor { nodes, answer, unlisted }
    }

    /// Time until a node that an operator reported as ended counts as ended; zero if it does. `None`: it was not reported.
    pub fn counts_as_ended_in(&self, health: &NodeHealth) -> Option<Duration> {
        let at = health.forgotten_at?;
        Some(self.quarantine(&self.health()).saturating_sub(self.engine.clock.now().since(at)))
    }

    /// By node index: whether it counts as ended.
    pub(super) fn ended(&self, nodes: &[NodeHealth]) -> Vec<bool> {
        let (now, wait) = (self.engine.clock.now(), self.quarantine(nodes));
        let named = self.engine.nodes.iter().zip(nodes);
        let is_ended = |(node, health): (&std::sync::Arc<N>, &NodeHealth)| {
            health.forgotten_at.is_some_and(|at| now.since(at) >= wait) && !is_alive_elsewhere(nodes, node.id())
        };
        named.map(is_ended).collect()
    }

    /// The longest quarantine that any instance asks for, as far as it is known.
    fn quarantine(&self, nodes: &[NodeHealth]) -> Duration {
        let served = nodes.iter().filter_map(|health| health.status.as_ref()).filter(|status| is_waiting(status));
        let longest = served.map(|status| Duration::from_micros(status.until_us.saturating_sub(status.since_us))).max();
        longest.unwrap_or_default().max(self.engine.params().quarantine)
    }

    /// Logs once the nodes that others wait for after their quarantine, if two probes in turn find the same: only that node, or an
    /// operator, ends the waiting.
    pub(in crate::redlock) fn report_waits(&self) {
        let missing = self.waits_for();
        let mut state = self.state.lock();
        let is_served = |health: &NodeHealth| {
            health.status.as_ref().is_some_and(|s| matches!(s.vote, Vote::NoVote(NoVote::Unseeded { .. })))
        };
        let before = std::mem::replace(&mut state.waited_for, missing.clone());
        let is_reported = state.waits_reported == missing || before != missing;
        if is_reported || !missing.is_empty() && !state.nodes.iter().any(is_served) {
            return;
        }
        if !missing.is_empty() {
            let (names, remedy) = (missing.names(), missing.remedy());
            tracing::error!(waits_for = names, "too few nodes vote, and those that forgot wait for {names} ({remedy})");
        }
        state.waits_reported = missing;
    }
}

fn is_waiting(status: &NodeStatus) -> bool {
    matches!(status.vote, Vote::NoVote(NoVote::Quarantined { .. } | NoVote::Unseeded { .. }))
}

/// Whether an instance reported to some node that it reached a process under this name within the last seconds.
fn is_alive_elsewhere(nodes: &[NodeHealth], name: &NodeId) -> bool {
    let answered = nodes.iter().filter(|health| health.error.is_none()).filter_map(|health| health.status.as_ref());
    answered.into_iter().flat_map(|status| &status.alive).any(|(of, _)| of == name)
}
