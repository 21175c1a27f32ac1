//! What the node monitor knows of each node.

use std::sync::Arc;
use std::time::Duration;

use super::clock::BootTime;
use crate::protocol::{NoVote, NodeStatus, UnreachableKind, Vote};
use crate::types::NodeId;

/// An older answer does not count as the node's present state.
pub const HEALTH_MAX_AGE: Duration = Duration::from_secs(5);

/// What is known of one node.
#[derive(Debug, Clone)]
pub struct NodeHealth {
    /// The last answer to a probe.
    pub status: Option<NodeStatus>,
    /// The last probe's failure, if it failed.
    pub error: Option<UnreachableKind>,
    /// Time of the last answer.
    pub answered_at: Option<BootTime>,
    /// Since when it is in the present state (answering or not, voting or not).
    pub since: BootTime,
    /// Round trip of the last answered probe.
    pub latency: Option<Duration>,
    /// Its clock minus the cluster clock, microseconds.
    pub offset_us: Option<i64>,
    /// How often a probe was answered by another run than the one before.
    pub restarts: u64,
    /// The run of another process that an instance saw alive under this name within the last seconds.
    pub rival: Option<Arc<str>>,
    /// Since when there has been one. After a restart that is the former process, for as long as its notes count.
    pub(super) rival_since: Option<BootTime>,
    /// When an operator said that its process has ended for good, if it has not answered since.
    pub(super) forgotten_at: Option<BootTime>,
    /// There has been one for longer than a restart explains: the name leads to two servers.
    pub has_two_servers: bool,
}

impl NodeHealth {
    pub(super) fn new(now: BootTime) -> Self {
        Self {
            status: None,
            error: None,
            answered_at: None,
            since: now,
            latency: None,
            offset_us: None,
            restarts: 0,
            rival: None,
            rival_since: None,
            forgotten_at: None,
            has_two_servers: false,
        }
    }

    /// Whether the last probe was answered with a vote, within [`HEALTH_MAX_AGE`].
    pub fn votes(&self, now: BootTime) -> bool {
        let is_recent = self.answered_at.is_some_and(|at| now.since(at) <= HEALTH_MAX_AGE);
        is_recent && self.error.is_none() && self.status.as_ref().is_some_and(|s| s.vote == Vote::Active)
    }
}

/// Distinguishes the states of which [`NodeHealth::since`] is the begin.
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

/// The run of another process under a node's name, which an instance saw alive within the last seconds: the name leads to two
/// servers.
pub(super) fn rival(names: &[NodeId], states: &[Option<NodeStatus>], node: usize) -> Option<Arc<str>> {
    let (name, own) = (names.get(node)?, states.get(node)?.as_ref()?);
    let mut seen = states.iter().flatten().filter_map(|s| s.alive.get(name));
    seen.find(|run| ***run != *own.run).cloned()
}
