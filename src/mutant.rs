//! Planted bugs, for the simulation to find (`tests/sim/`): each is one deviation from the protocol
//! that looks harmless. Stands apart so that the places where they are planted read as plain
//! conditions; outside of the library's own tests every one of them is `false` at compile time.

/// A deviation that must be found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Mutant {
    /// A quorum is half of the nodes.
    QuorumHalf,
    /// Validity counts from the answers, not from the requests.
    ValidityFromReply,
    /// No allowance for clock rates.
    NoDrift,
    /// Nodes take requests of any age, from any clock.
    NoGuard,
    /// Keys get the bare TTL.
    NoLockDelay,
    /// A failed attempt is cancelled only where it was granted.
    CancelWhereGranted,
    /// A failed attempt is not cancelled.
    NoCleanup,
    /// The clean-up ends with the request of a caller who hangs up.
    CleanupWithRequest,
    /// A cancel takes the whole lease, not its attempt's claim.
    CancelByToken,
    /// An extend sets the key where it is missing.
    ExtendCreates,
    /// An extend is no claim: the cancel of its attempt takes the lease with it.
    ExtendUnclaimed,
    /// One node's yes extends.
    ExtendByMinority,
    /// A failed extend releases.
    ExtendReleases,
    /// A node without a vote counts in an extend.
    RepairVotes,
    /// The repair does not wait for the quorum.
    RepairUnconfirmed,
    /// A node that lost its memory votes.
    NoQuarantine,
    /// Half of the quarantine.
    HalfQuarantine,
    /// A quarantine that is ordered from a node whose clock was stepped back ends when that clock returns.
    OrderedByOneClock,
    /// A quarantine by a clock that was stepped back replaces one by a clock that returns.
    QuarantineReplaced,
    /// Only a missing marker counts as lost memory.
    RestartUnnoticed,
    /// A clock that ran ahead and came back is not noticed.
    ClockBackUnnoticed,
    /// The quarantine ends without the others' fences.
    NoSeed,
    /// One node's fences are enough.
    SeedFromOne,
    /// The highest fence counts although a minority has it.
    NoWriteBack,
    /// A fence is written back whoever holds.
    WriteBackUnheld,
    /// Counters expire without a trace.
    CountersForgotten,
    /// Nothing is remembered of what was cancelled or released.
    NoTombstone,
    /// The grant is not looked at again before the answer.
    NoRecheck,
    /// Requests are stamped by the host's wall clock.
    StampFollowsWall,
    /// A retry counts from the first attempt's start.
    RetryKeepsStart,
    /// A node that was looked at before is refused as part of a new cluster.
    InitBlocked,
    /// A fence ahead of a clock that was stepped back is refused.
    FutureByClock,
    /// The stamp clock follows stepped nodes before they are quarantined.
    FollowAtOnce,
    /// The stamp clock follows one stepped node while others are silent.
    FollowOneNode,
    /// A release takes the word of nodes without a vote.
    ReleaseBelievesAll,
    /// Instances over other nodes get votes.
    NoFingerprint,
    /// Who leaves from the head of a queue does not call the next.
    LeaverCallsNobody,
    /// What nodes tell of leases' ends wakes nobody.
    NoticesIgnored,
    /// Who was refused before it listened does not ask again.
    ListensTooLate,
    /// That nodes are not heard any more wakes nobody.
    DeafnessUnnoticed,
    /// Everybody in a queue asks the nodes.
    EveryoneContends,
    /// A grant that is not answered stays.
    GrantUnanswered,
    /// A lease whose end was heard of cannot be there again.
    EndsCountOnce,
    /// One node's word for a holder is taken for a quorum's.
    HolderUnconfirmed,
    /// A deadlock is told on hearsay.
    DeadlockUnverified,
    /// Nobody is called when a lease closes a circle.
    DeadlockUntold,
    /// A circle that the nodes did not confirm at once is not looked into again.
    DeadlockForgotten,
}

#[cfg(test)]
pub(crate) use planted::{during_hang_up, ignores_stamps, is, is_hanging_up, plant, restore};

/// Never, outside of tests.
#[cfg(not(test))]
pub(crate) const fn is(_: Mutant) -> bool {
    false
}

/// Never, outside of tests.
#[cfg(not(test))]
pub(crate) const fn is_hanging_up() -> bool {
    false
}

/// Never, outside of tests.
#[cfg(not(test))]
pub(crate) const fn ignores_stamps() -> bool {
    false
}

#[cfg(test)]
mod planted {
    use std::cell::Cell;

    use super::Mutant;

    thread_local! {
        static PLANTED: Cell<(Option<Mutant>, bool)> = const { Cell::new((None, false)) };
        static HANG_UP: Cell<bool> = const { Cell::new(false) };
    }

    /// Whether this bug is planted in this thread.
    pub(crate) fn is(mutant: Mutant) -> bool {
        PLANTED.get().0 == Some(mutant)
    }

    /// Whether a caller is hanging up just now.
    pub(crate) fn is_hanging_up() -> bool {
        HANG_UP.get()
    }

    /// Whether fences come from the counters alone. Not a bug: what the fences promise must hold
    /// without clocks too, and the stamps would hide it.
    pub(crate) fn ignores_stamps() -> bool {
        PLANTED.get().1
    }

    /// Plants a bug in this thread; returns what was planted before.
    pub(crate) fn plant(mutant: Option<Mutant>, counters_only: bool) -> (Option<Mutant>, bool) {
        PLANTED.replace((mutant, counters_only))
    }

    /// Undoes [`plant`].
    pub(crate) fn restore(before: (Option<Mutant>, bool)) {
        PLANTED.set(before);
    }

    /// Tells [`is_hanging_up`]; returns what it was.
    pub(crate) fn during_hang_up(yes: bool) -> bool {
        HANG_UP.replace(yes)
    }
}
