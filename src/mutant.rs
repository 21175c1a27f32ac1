//! Mutants: deviations from the protocol that look harmless, planted for the simulation to find (`tests/sim`), and those of the
//! queue also for the model of the queue and for lists of events. Outside of the library's own tests every one is `false` at
//! compile time.

/// Declares the mutants and, for each group, the list of its members.
macro_rules! mutants {
    ($($(#[$about:meta])* $group:ident { $($(#[$doc:meta])* $mutant:ident,)* })*) => {
        /// A deviation that must be found.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub(crate) enum Mutant { $($($(#[$doc])* $mutant,)*)* }

        $($(#[$about])* #[cfg(test)] pub(crate) const $group: &[Mutant] = &[$(Mutant::$mutant),*];)*
    };
}

mutants! {
    /// `tests/sim` finds each within its budget of seeds.
    FOUND_BY_SIM {
        /// A process is read and filled for a view with another key template before its leases have their new names.
        ReadBeforeRename,
        /// Only the first page of leases leaves the former names.
        PartOfNames,
        /// A quorum is half of the nodes.
        QuorumHalf,
        /// Validity counts from the replies, not from the requests.
        ValidityFromReply,
        /// No allowance for clock rates.
        NoDrift,
        /// Nodes accept requests of any age, from any clock.
        NoGuard,
        /// Keys get the TTL without the lock delay.
        NoLockDelay,
        /// A failed attempt is cancelled only on the nodes that granted it.
        CancelWhereGranted,
        /// A failed attempt is not cancelled.
        NoCleanup,
        /// The clean-up ends with the request of a caller that disconnects.
        CleanupWithRequest,
        /// A cancel ends the whole lease, not only its attempt's claim.
        CancelByToken,
        /// An extend creates a missing key.
        ExtendCreates,
        /// An extend adds no claim: the cancel of the lease's attempt ends the lease.
        ExtendUnclaimed,
        /// One node's vote extends.
        ExtendByMinority,
        /// A failed extend releases.
        ExtendReleases,
        /// A node without a vote counts in an extend.
        RepairVotes,
        /// A node that lost its memory votes.
        NoQuarantine,
        /// Half of the quarantine.
        HalfQuarantine,
        /// Only a missing marker counts as lost memory.
        RestartUnnoticed,
        /// A clock that was ahead and went back is not noticed.
        ClockBackUnnoticed,
        /// The quarantine ends without the other nodes' fences.
        NoSeed,
        /// The highest fence is returned although only a minority has it.
        NoWriteBack,
        /// A kept lease is renewed past its end.
        KeptPastEnd,
        /// A wiped node joins the cluster of the first request.
        FirstLookClaims,
        /// A node is quarantined at the word of an instance that is alone in its opinion of the time.
        NoWitness,
        /// Fences are forgotten without being covered by `base`.
        CountersForgotten,
        /// Releases and cancels leave no tombstone.
        NoTombstone,
        /// Every acquire counts as the first one with its token.
        AgainAsFirst,
        /// The validity is not checked again before the response.
        NoRecheck,
        /// Requests carry the time of the host's wall clock.
        RequestTimeFollowsWall,
        /// A retry counts from the start of the first attempt.
        RetryKeepsStart,
        /// A release counts replies of nodes without a vote.
        ReleaseBelievesAll,
        /// A node that was probed before is refused as part of a new cluster.
        InitBlocked,
        /// A node admits as many permits as the limit says, whatever their slots.
        CountPerNode,
        /// The key of shared leases lasts as long as the one that came last, not as the longest.
        KeyOfLastMember,
        /// A downgrade that a quorum confirmed counts as an extend, although nodes keep the end.
        DowngradeLengthens,
        /// A node that refuses a set keeps those of its resources that were free.
        HalfSetKept,
        /// A process with an old copy of a durable one's data counts as that one.
        OldCopyCounted,
        /// A process with a durable one's data counts at once, although keys may have ended early by a clock that was ahead.
        ClockAtStartIgnored,
    }
    /// Bugs of the wait queue. `tests/sim` finds each within its budget of seeds.
    FOUND_IN_QUEUES {
        /// A wake-up during an attempt is forgotten.
        WakeWhileAskingLost,
        /// A request whose caller disconnected stays in its queue.
        LeaverStays,
        /// A waiter that is granted does not let the next one become the head.
        GrantCallsNobody,
        /// The time at which a waiter meant to ask passes without an attempt.
        TimerIgnored,
        /// The end of a lease wakes no waiter.
        EndWakesNobody,
        /// Who enters the queue is served before all others.
        NewestFirst,
        /// Whose caller is away leaves the queue.
        AbsentForgotten,
        /// A waiter whose caller is away is served as if it were there.
        AbsentAsks,
    }
    /// The tests of `redlock::membership::heal` find each.
    FOUND_BY_HEALING {
        /// A process is filled with a part of what the others know.
        PartOfPages,
    }
    /// The tests of `redlock::tickets` find each.
    FOUND_BY_TICKETS {
        /// A ticket counts where one node shows it.
        TicketByMinority,
        /// A ticket is stored without checking whether it exists.
        TicketPutUnread,
        /// The state of a ticket may be lowered.
        TicketGoesBack,
    }
    /// The tests of `manager::tickets` with killed instances find each.
    FOUND_BY_CRASHES {
        /// Who serves a ticket that is granted acquires for it.
        TicketAcquiresAgain,
        /// A grant is kept although the ticket has gone on without it: by an instance that asks as with `TicketServedUnchecked`, without
        /// which there is no such grant in these runs.
        TicketKeptOvertaken,
        /// The grant is reported although no majority is known to have it.
        CallbackBeforeGranted,
        /// An instance that has not seen for long that a ticket waits goes on acquiring for it.
        TicketServedUnchecked,
        /// A message whose time is over when an instance takes its ticket over is not tried.
        MessageUntried,
        /// A change of its end does not accept a grant.
        KeepAcceptsNothing,
        /// Who takes a ticket over takes a lease that has an end for one that is renewed.
        KeptUnindexed,
    }
    /// The tests of `manager::tickets` with the tombstone of a lease that nobody ended find each.
    FOUND_BY_TOMBSTONES {
        /// It is released before the nodes have the end of its ticket.
        LostReleasedFirst,
        /// Who finds it does not read the ticket's state again.
        TombstoneBelieved,
    }
    /// The tests of `redlock::tickets` with five nodes find each: of three, two that show a state are a majority.
    FOUND_WITH_FIVE_NODES {
        /// What a minority shows counts without being written to a majority.
        TicketUnsettled,
    }
    /// The tests of `manager::tickets` with a node that shows what nobody wrote find each.
    FOUND_WITH_A_LYING_NODE {
        /// The highest state of a ticket that any one node shows counts.
        TicketHeadOfOne,
    }
    /// The tests of `manager::tickets` in which two instances serve one ticket find each.
    FOUND_WITH_TWO_SERVERS {
        /// An instance acquires for a ticket while another one may do so.
        TicketServedTwice,
        /// Of two instances that each serve a ticket on a minority, none gives it up.
        TicketNeverYielded,
    }
    /// The tests of the reference node find each.
    FOUND_BY_REFERENCE {
        /// A release that does not find its lease lets the first acquire with its token arrive unchecked.
        LateUnread,
        /// A lease that is not made by the first acquire with its token does so, too.
        OthersUnread,
        /// The first acquire with a token is not checked, whenever it was sent.
        OldUnread,
        /// A process takes a view that does not name it.
        RosterNotCompared,
        /// A process of both lists of a change votes in the new one before it was filled.
        CommonNotFilled,
        /// A process of both lists of a change that forgot is filled as if it had kept its keys.
        KeptUnchecked,
        /// A process that was filled is not bound by a later promise: it votes in a view that a higher one does not know of.
        FilledUnbound,
        /// A process is filled for a view that it did not promise, since it has forgotten once more (seed 70400).
        FillUnpromised,
        /// A process is filled for a view in which it has voted.
        SameViewAgain,
        /// A repair of an extend that was confirmed before the fill takes the place of a block.
        RepairOfOlderView,
        /// An extend on a node with a block for the resource counts.
        BlockedExtendCounts,
        /// An extend lengthens a key behind the block of its own lease.
        BlockedExtendApplied,
        /// A process that is filled with a block keeps a key of the same lease that ends later.
        KeyOutlivesItsBlock,
        /// A repair takes the place of a block that ends later.
        RepairShortensBlock,
        /// A member's end is a time of the instance's clock.
        EndByInstance,
        /// A node admits shared leases beside another caller's intent.
        SharedUnderIntent,
        /// A vote has the terms that are configured, not those of its view.
        ConfiguredTerms,
        /// In a view without a key template, whoever once was of its cluster uses the configured one.
        TemplateUnaccepted,
        /// A node gives a fence that is proposed whether or not it gave it before.
        FenceGivenTwice,
        /// A process leaves its data to the next one although Redis does not sync each write.
        PolicyUnnoticed,
    }
    /// The tests of `redlock::cleanup` find it.
    FOUND_BY_CLEANUP {
        /// A failed attempt of a set is cancelled for its first resource only.
        HalfSetCancelled,
    }
    /// The tests of `redlock::fan_out` find each.
    FOUND_BY_FAN_OUT {
        /// The rest of the nodes gets a request of another attempt.
        RestByAnotherAttempt,
        /// The rest of the nodes is not asked when one of the first refuses.
        RestUnasked,
        /// Nodes that do not vote, or are slow, are asked first.
        HealthIgnored,
        /// A quorum is asked first also where another Redlock client had a lock.
        ForeignIgnored,
        /// A lease is extended before all nodes were asked for it.
        ExtendedUnspread,
        /// A lease that was released is spread all the same.
        SpreadAfterRelease,
    }
    /// Each needs several faults in one order within milliseconds, once in tens of thousands of seeds. The model of the
    /// protocol has them; `sim::mutants::rare_mutants` searches for them when run by hand.
    RARE {
        /// Where everybody forgot, the list of nodes is the configured one again.
        ListForgotten,
        /// Who takes its place again is served together with the one that was first meanwhile.
        ReturnedIsSecond,
        /// An instance that was alone in its opinion of the time before all nodes' clocks were stepped takes the new time for the
        /// right one at once (seed 65841).
        StepWhileAlone,
        /// An instance that followed stepped clocks by orders in an earlier view does not repeat them in the nodes' view (seed 337442).
        FollowInOldView,
        /// A quarantine ordered from a node with a stepped clock ends when that clock returns. Found when a node loses its
        /// memory while its clock is behind, and an instance with the right time orders the quarantine (seed 737891).
        OrderedByOneClock,
        /// A quarantine by a stepped clock replaces one by a clock that returns. Found when a node that has just lost its
        /// memory is stepped back and returns, and one instance notices neither (seed 543915).
        QuarantineReplaced,
        /// A fence ahead of a clock that was stepped back is refused. Costs votes until that clock has caught up, but
        /// breaks no guarantee.
        FutureByClock,
        /// The cluster clock follows stepped nodes before they are quarantined. Found when the order of the quarantine is
        /// lost on two nodes, and no other instance gives it.
        FollowAtOnce,
        /// The cluster clock follows one stepped node while others do not reply. Costs votes while the node is stepped, but
        /// breaks no guarantee.
        FollowOneNode,
        /// The repair does not wait for the quorum. Found when an extend fails, its restore reaches a node where another
        /// lease has just ended, and a later extend counts that as a vote.
        RepairUnconfirmed,
        /// A process that was a replica and is a master again counts as one that forgot nothing. Would be found when the second
        /// that it lost has the vote of a lease that stands on a bare quorum.
        FailoverUnnoticed,
        /// Instances of another cluster get votes. Since a process that a higher view does not name gives up its vote, views keep
        /// two clusters apart as well: no seed of 3,000 finds it (151 before). `tests/it/redis_node/marker.rs` tests the rule.
        NoFingerprint,
        /// A node answers requests of any view. Found when a lease has a vote of a process that another one replaced meanwhile.
        ViewsMixed,
        /// A process is filled with what the others knew before they installed the view. Found when a lease gets its second vote
        /// in between, and that of the process that forgot was its first.
        ReadBeforeInstall,
        /// One less than a quorum of others is enough to fill a process. Found when the one that is not read has the lease.
        OneReaderLess,
        /// A release is not repeated at the nodes that had not answered when a quorum confirmed it. Would be found when a node
        /// is cut off until its connection is replaced, just before the faults end.
        ReleaseStopsAtQuorum,
        /// A fence is written back regardless of the holder. Found when the lease changes hands between a round and its
        /// write-back.
        WriteBackUnheld,
    }
    /// The tests of `redlock::membership::fill_plan` find each.
    FOUND_BY_FILL_PLAN {
        /// A copy of what one less than a quorum of others shows.
        CopiesOfMinority,
        /// A node that has a block for the resource counts among those that show a lease.
        CopyBesideBlock,
        /// What the process that is filled shows itself counts as what another shows.
        TargetCounts,
        /// A copy with the smallest TTL of the nodes that show the lease.
        CopySmallestTtl,
        /// A block with the smallest TTL.
        BlockSmallestTtl,
        /// Blocks of the nodes that were read are left out.
        BlocksNotListed,
        /// A revoked lease, which is held until its end, is left out like a released one.
        RevokedLeftOut,
        /// A tombstone covers leases that the token got after it.
        NextLeaseLeftOut,
        /// A released token is copied or blocked all the same.
        ReleasedFilled,
        /// One node's tombstone takes away what another node shows.
        TombstoneOfOneNode,
        /// What is left of a lease is given by rates that do not differ.
        FillWithoutDrift,
        /// A cancelled attempt's claim stays.
        CancelledClaims,
        /// Tombstones come after what they may end.
        TombstonesLast,
    }
    /// The tests of `redlock::membership::fill_plan` with leases that are held together find each.
    FOUND_BY_MEMBER_FILLS {
        /// A member is copied whatever slot and fence others show for it.
        MembersNotCompared,
    }
    /// The tests of `redlock::membership::fill_plan` with another list find each.
    FOUND_BY_CHANGED_LISTS {
        /// A member that is kept gets the fence of the latest record, which one node alone may have given.
        KeptFenceOfOne,
        /// A process of both lists keeps keys as votes that fewer than a quorum of the old list show.
        KeptOfMinority,
        /// What a process of both lists shows itself does not count.
        OwnNotRead,
        /// Leases that were granted with the smaller lock delay stay as long as they were.
        DelayNotLengthened,
    }
    /// The tests of `redlock::membership::derive` find each.
    FOUND_BY_DERIVE {
        /// One node's word is enough for the address of another one.
        AddressOfOneNode,
        /// One node that names itself alone is a quorum.
        ListOfOneNode,
        /// A process that has installed a higher view counts for a lower one that names it alike.
        HigherViewCounts,
        /// A process with a durable one's data counts for views that name another admission of that one.
        SinceNotKept,
        /// Without a quorum of votes, a process that a later list left out says which list counts.
        LeftOutCounts,
        /// A later list counts against it only if those that show that list have not restarted since.
        RestartedNotShown,
    }
    /// Lists of events find each (`src/waiting/state_machine_tests.rs`, `src/manager/waiting_tests.rs`), and the model of the queue
    /// those that concern it (`tests/model/queue.rs`).
    FOUND_BY_LISTS {
        /// Who comes from another instance joins the end of the queue.
        MovedIsLast,
        /// One node's subscription is taken for a quorum's.
        SubscribedByOne,
        /// A waiter that leaves the head of a queue does not wake the next one.
        LeaverCallsNobody,
        /// Notices of leases' ends wake no waiter.
        NoticesIgnored,
        /// A waiter that was refused before its subscription was confirmed does not try again.
        ListensTooLate,
        /// The loss of subscriptions wakes no waiter.
        SubscriptionLossUnnoticed,
        /// Every waiter of a queue asks the nodes, not only its head.
        EveryoneContends,
        /// A grant whose caller disconnected is kept.
        GrantUnanswered,
        /// A lease whose end was reported once is taken for ended for ever.
        EndsCountOnce,
        /// One node's report of a holder is taken for a quorum's.
        HolderUnconfirmed,
        /// A set that waits leaves no intent.
        SetLeavesNoIntent,
        /// A deadlock is reported without asking the nodes.
        DeadlockUnverified,
        /// No waiter is woken when a lease closes a cycle.
        DeadlockUnnoticed,
        /// A cycle that the nodes did not confirm at once is not checked again.
        DeadlockForgotten,
    }
}

pub(crate) use planted::*;

#[cfg(not(test))]
mod planted {
    use super::Mutant;

    pub(crate) const fn is(_: Mutant) -> bool {
        false
    }

    pub(crate) const fn is_hanging_up() -> bool {
        false
    }

    pub(crate) const fn ignores_request_times() -> bool {
        false
    }
}

#[cfg(test)]
mod planted {
    use std::cell::Cell;

    use super::Mutant;

    thread_local! {
        static PLANTED: Cell<(Option<Mutant>, bool)> = const { Cell::new((None, false)) };
        static HANG_UP: Cell<bool> = const { Cell::new(false) };
    }

    /// Whether this mutant is planted in this thread.
    pub(crate) fn is(mutant: Mutant) -> bool {
        PLANTED.get().0 == Some(mutant)
    }

    /// Whether a caller is disconnecting just now.
    pub(crate) fn is_hanging_up() -> bool {
        HANG_UP.get()
    }

    /// Whether fences come from the counters alone. Not a mutant: fences must rise without clocks too, and the times of
    /// sending would hide it if they did not.
    pub(crate) fn ignores_request_times() -> bool {
        PLANTED.get().1
    }

    /// Plants a mutant in this thread; returns what was planted before.
    pub(crate) fn plant(mutant: Option<Mutant>, counters_only: bool) -> (Option<Mutant>, bool) {
        PLANTED.replace((mutant, counters_only))
    }

    /// Undoes [`plant`].
    pub(crate) fn restore(before: (Option<Mutant>, bool)) {
        PLANTED.set(before);
    }

    /// Sets [`is_hanging_up`]; returns the former value.
    pub(crate) fn during_hang_up(yes: bool) -> bool {
        HANG_UP.replace(yes)
    }
}
