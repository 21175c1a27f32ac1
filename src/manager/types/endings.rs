//! How leases end, and what happens to leases that a connection holds.

/// Why the lease of a token that a client still uses has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GoneReason {
    /// The lease was not extended before its end.
    Expired,
    /// The holder released the lease.
    Released,
    /// An operator ended the lease, or forbade its renewal.
    Forced,
    /// The nodes no longer know the reason.
    Unknown,
}

impl GoneReason {
    pub const ALL: [Self; 4] = [Self::Expired, Self::Released, Self::Forced, Self::Unknown];

    /// The reason in HTTP answers.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Expired => "expired",
            Self::Released => "released",
            Self::Forced => "forced",
            Self::Unknown => "unknown",
        }
    }
}

/// What happens to a lease that a connection holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HeldLeaseEvent {
    /// The lease has its whole TTL again.
    Renewed,
    /// A renewal failed; the old deadline remains, and the next try follows soon.
    AtRisk,
    /// The instance stops and no longer renews the lease, which stays on the nodes to its deadline, for a hold elsewhere.
    Moved,
    /// The lease may no longer be relied on.
    Lost(LostReason),
    /// The lease was released with its token.
    Released,
}

/// Why a lease that a connection held is lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LostReason {
    /// The lease expired, or the nodes no longer have it.
    Expired,
    /// An operator ended the lease, or forbade its renewal.
    Forced,
    /// Too few nodes answered until the lease's deadline.
    Quorum,
    /// The lease was held for `max_hold`, and the service released it.
    MaxHold,
}

impl LostReason {
    pub const ALL: [Self; 4] = [Self::Expired, Self::Forced, Self::Quorum, Self::MaxHold];

    /// The reason in events.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Expired => "expired",
            Self::Forced => "forced",
            Self::Quorum => "quorum",
            Self::MaxHold => "max_hold",
        }
    }
}

/// How a lease ended, as far as this instance knows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum LeaseOutcome {
    /// The holder released the lease.
    Released,
    /// The connection that held the lease ended.
    Disconnected,
    /// The service released the lease for a connection, at shutdown or after `max_hold`.
    GivenBack,
    /// The time for which the lease was to be kept was over.
    KeptOut,
    /// An operator ended the lease.
    Forced,
    /// The last deadline that this instance promised has passed: the lease expired, unless another
    /// instance extended or released it, which is not reported here.
    Lapsed,
}

impl LeaseOutcome {
    pub const ALL: [Self; 6] =
        [Self::Released, Self::Disconnected, Self::GivenBack, Self::KeptOut, Self::Forced, Self::Lapsed];

    /// The label's value in metrics.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Released => "released",
            Self::Disconnected => "disconnected",
            Self::GivenBack => "given-back",
            Self::KeptOut => "kept-out",
            Self::Forced => "forced",
            Self::Lapsed => "lapsed",
        }
    }
}
