//! The kinds of events, with their names in streams, on pages and in metrics.

/// What can happen to a lease, a node, the quorum or an instance.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EventKind {
    /// A lease was granted.
    Acquired,
    /// The lease was renewed, or its labels were edited.
    Extended,
    /// The holder released the lease.
    Released,
    /// The lease expired. Best effort: reported by the instance that granted it, if that instance still runs.
    Expired,
    /// An operator ended the lease, or forbade its renewal.
    Forced,
    /// A connection that held the lease lost it.
    Lost,
    /// Owners wait for each other in a cycle.
    Deadlock,
    /// A node no longer answers.
    NodeDown,
    /// The node answers again.
    NodeUp,
    /// The node answers and has no vote.
    Quarantined,
    /// The node's name leads to two servers, or to one server again.
    TwoServers,
    /// Fewer than a quorum of nodes vote.
    QuorumLost,
    /// A quorum votes again.
    QuorumBack,
    /// An instance began to serve.
    Started,
    /// An instance is stopping.
    Stopping,
    /// A changed file was read again: the new content is in force, or was rejected.
    Reloaded,
}

impl EventKind {
    pub const ALL: [Self; 16] = [
        Self::Acquired,
        Self::Extended,
        Self::Released,
        Self::Expired,
        Self::Forced,
        Self::Lost,
        Self::Deadlock,
        Self::NodeDown,
        Self::NodeUp,
        Self::Quarantined,
        Self::TwoServers,
        Self::QuorumLost,
        Self::QuorumBack,
        Self::Started,
        Self::Stopping,
        Self::Reloaded,
    ];

    /// The name of the event.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Acquired => "acquired",
            Self::Extended => "extended",
            Self::Released => "released",
            Self::Expired => "expired",
            Self::Forced => "forced",
            Self::Lost => "lost",
            Self::Deadlock => "deadlock",
            Self::NodeDown => "node_down",
            Self::NodeUp => "node_up",
            Self::Quarantined => "quarantined",
            Self::TwoServers => "two_servers",
            Self::QuorumLost => "quorum_lost",
            Self::QuorumBack => "quorum_back",
            Self::Started => "started",
            Self::Stopping => "stopping",
            Self::Reloaded => "reloaded",
        }
    }

    /// Whether operators ask for the event afterwards: it is kept apart from the stream of locks, which would displace it.
    pub fn is_incident(self) -> bool {
        !matches!(self, Self::Acquired | Self::Extended | Self::Released | Self::Expired)
    }

    /// The kind with this name.
    pub(super) fn parse(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.as_str() == name)
    }
}
