//! Coverage of the simulation: states that are hard to reach, counted over seeds. A suite that never
//! reaches one of them proves nothing about it.

/// A state that is hard to reach.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum HardState {
    Granted,
    Extended,
    Released,
    ReleaseLost,
    FenceWrittenBack,
    Quarantined,
    Unseeded,
    ClockOff,
    QuarantineLeft,
    QuarantineOrdered,
    Healed,
    SeededByClock,
    SeededWithoutEnded,
    ViewStraddled,
    ChangeDisplaced,
    ClockRanBack,
    LateAcquireMetTombstone,
    LateAcquireMetGuard,
    EndedTokenRefused,
    SplitVote,
    LeaseRestored,
    TooSlowRefused,
    TooLateToAnswer,
    ReplayJoined,
    ClaimLeftStanding,
    OtherClusterRefused,
    KeptRenewed,
    KeptAdopted,
    KeptOut,
    WaiterServed,
    WaiterGaveUp,
    TimedOutBehindOthers,
    RefusedByQueue,
    WaiterBehindOthers,
    HungUpMidway,
    StalledMidway,
    ExtendUnknown,
    ExtendLost,
    ExtendedOverQuarantine,
    ZombieRejected,
    WholeClusterForgot,
    BootClockStopped,
    OrderRefused,
    FailedOver,
    GrantedAfterCalm,
    QueueServed,
    PlaceTakenAgain,
    PlaceTakenOver,
    NodeAdded,
    NodeRemoved,
    /// An operator changed the terms.
    TermsChanged,
    /// An instance was started with the changed terms.
    StartedWithNewTerms,
    /// An instance was started with the list that a change had left.
    StartedWithNewList,
    ChangeCompleted,
    SharedTogether,
    PermitsTogether,
    Downgraded,
    FenceProposed,
    MemberFilled,
    SetGranted,
    /// A shared set was granted.
    SharedSetGranted,
    SetRefused,
    SetWaited,
    /// A process counted by its disk.
    ResumedByDisk,
    /// A process was started while its clock was ahead.
    StartedAhead,
    /// A lease was evicted.
    LeaseEvicted,
    NodeReplaced,
    /// The rest of the nodes was asked for a lease.
    LeaseSpread,
}

/// All of them.
pub(super) const ALL: [HardState; 68] = {
    use HardState::*;
    [
        Granted,
        Extended,
        Released,
        ReleaseLost,
        FenceWrittenBack,
        Quarantined,
        Unseeded,
        ClockOff,
        QuarantineLeft,
        QuarantineOrdered,
        Healed,
        SeededByClock,
        SeededWithoutEnded,
        ViewStraddled,
        ChangeDisplaced,
        ClockRanBack,
        LateAcquireMetTombstone,
        LateAcquireMetGuard,
        EndedTokenRefused,
        SplitVote,
        LeaseRestored,
        TooSlowRefused,
        TooLateToAnswer,
        ReplayJoined,
        ClaimLeftStanding,
        OtherClusterRefused,
        KeptRenewed,
        KeptAdopted,
        KeptOut,
        WaiterServed,
        WaiterGaveUp,
        TimedOutBehindOthers,
        RefusedByQueue,
        WaiterBehindOthers,
        HungUpMidway,
        StalledMidway,
        ExtendUnknown,
        ExtendLost,
        ExtendedOverQuarantine,
        ZombieRejected,
        WholeClusterForgot,
        BootClockStopped,
        OrderRefused,
        FailedOver,
        GrantedAfterCalm,
        QueueServed,
        PlaceTakenAgain,
        PlaceTakenOver,
        NodeAdded,
        NodeRemoved,
        TermsChanged,
        StartedWithNewTerms,
        StartedWithNewList,
        ChangeCompleted,
        SharedTogether,
        PermitsTogether,
        Downgraded,
        FenceProposed,
        MemberFilled,
        SetGranted,
        SharedSetGranted,
        SetRefused,
        SetWaited,
        ResumedByDisk,
        StartedAhead,
        LeaseEvicted,
        NodeReplaced,
        LeaseSpread,
    ]
};

/// How often each state was reached.
#[derive(Debug, Clone, Copy)]
pub(super) struct CoverageCounts([u64; ALL.len()]);

impl Default for CoverageCounts {
    fn default() -> Self {
        Self([0; ALL.len()])
    }
}

impl CoverageCounts {
    /// Once more.
    pub(super) fn count(&mut self, what: HardState) {
        self.0[what as usize] += 1;
    }

    /// How often.
    pub(super) fn of(&self, what: HardState) -> u64 {
        self.0[what as usize]
    }

    /// Adds another run's.
    pub(super) fn add(&mut self, other: &Self) {
        for (mine, theirs) in self.0.iter_mut().zip(other.0) {
            *mine += theirs;
        }
    }
}
