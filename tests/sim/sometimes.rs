//! What a good run of the simulator must have met: hard states, counted over seeds. A suite that
//! never met one of them proves nothing about it. Knows no world.

/// A state that is hard to reach.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Sometimes {
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
    SeededByQuorum,
    SeededByClock,
    ClockRanBack,
    LateSetMetTombstone,
    LateSetMetGuard,
    DeadTokenRefused,
    SplitVote,
    RepairPlanted,
    TooSlowRefused,
    TooLateToAnswer,
    ReplayJoined,
    ClaimLeftStanding,
    OtherClusterBarred,
    WaiterServed,
    WaiterGaveUp,
    HungUpMidway,
    StalledMidway,
    ExtendUnknown,
    ExtendLost,
    ExtendedOverQuarantine,
    ZombieRejected,
    WholeClusterForgot,
    GrantedAfterCalm,
}

/// All of them.
pub(super) const ALL: [Sometimes; 33] = {
    use Sometimes::*;
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
        SeededByQuorum,
        SeededByClock,
        ClockRanBack,
        LateSetMetTombstone,
        LateSetMetGuard,
        DeadTokenRefused,
        SplitVote,
        RepairPlanted,
        TooSlowRefused,
        TooLateToAnswer,
        ReplayJoined,
        ClaimLeftStanding,
        OtherClusterBarred,
        WaiterServed,
        WaiterGaveUp,
        HungUpMidway,
        StalledMidway,
        ExtendUnknown,
        ExtendLost,
        ExtendedOverQuarantine,
        ZombieRejected,
        WholeClusterForgot,
        GrantedAfterCalm,
    ]
};

/// How often each was met.
#[derive(Debug, Clone, Copy)]
pub(super) struct Tally([u64; ALL.len()]);

impl Default for Tally {
    fn default() -> Self {
        Self([0; ALL.len()])
    }
}

impl Tally {
    /// Once more.
    pub(super) fn count(&mut self, what: Sometimes) {
        self.0[what as usize] += 1;
    }

    /// How often.
    pub(super) fn of(&self, what: Sometimes) -> u64 {
        self.0[what as usize]
    }

    /// Adds another run's.
    pub(super) fn add(&mut self, other: &Self) {
        for (mine, theirs) in self.0.iter_mut().zip(other.0) {
            *mine += theirs;
        }
    }
}
