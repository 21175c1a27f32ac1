//! What is modelled, within which bounds, and the mutants.

use super::{MONITORS, PROCESSES, ROUNDS};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    None,
    Acquire,
    /// The same token once more, before it was granted.
    AskAgain,
    Extend,
    WriteBack,
}

/// The protocol, or what is wrong with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bug {
    None,
    ReadBeforeEnter,
    OneLessThanQuorum,
    TargetCounts,
    ViewsMixed,
    CopiesOfAny,
    CopiesOfMinority,
    CopyBesideBlock,
    CopySmallestTtl,
    CopyOfPresentKey,
    CopyOfBackup,
    CopyOfFormerKey,
    RepairOfOlderView,
    RepairShortensBlock,
    BlocksNotListed,
    BlockSmallestTtl,
    PartOfPages,
    BlockedExtendCounts,
    FencesBeforeEnter,
    RunByHandshake,
    RosterNotCompared,
    NoSince,
    SameViewAgain,
    ClockAtAdmitIgnored,
    AnyFillAdmits,
    NewNotFilled,
    CommonNotFilled,
    PromiseOfMinority,
    BaseAsBelieved,
    SeveralNames,
    KeptOfMinority,
    BlockedExtendApplied,
    KeyOutlivesItsBlock,
    OldCopyCounted,
    ClockAtStartIgnored,
    FillUnpromised,
}

/// What is to be shown reachable: the property denies it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Deny {
    Nothing,
    /// A healed process takes part in a grant.
    HealedVote,
    /// A process that counted by its disk takes part in a grant.
    ResumedVote,
    /// A lease is extended after every process was wiped under it.
    ExtendAfterAll,
    /// All names of the last list vote under it.
    ListChanged,
}

/// What is modelled, and within which bounds.
#[derive(Clone, Copy, Debug)]
pub struct Rules {
    pub processes: usize,
    /// The name of each process, and groups of names that are alike (for these, process and name are one number).
    pub name_of: [u8; PROCESSES],
    pub alike: &'static [&'static [usize]],
    pub names: usize,
    pub list: u8,
    /// Processes that never voted.
    pub blank: u8,
    /// Sound processes that a monitor may put in the place of another.
    pub replace: u8,
    /// Lists that monitors change to; the present one: its terms are changed.
    pub lists: &'static [u8],
    pub wipes: u8,
    /// A wipe is a FLUSHALL: the process keeps its run.
    pub flushes: bool,
    /// Durable processes that restart with their data.
    pub restarts: u8,
    /// A node's clock runs ahead for a while.
    pub steps: u8,
    /// Changes that each monitor may start.
    pub changes: [u8; MONITORS],
    /// A change asks for promises first. Without: any view that is known may be its base, which allows more.
    pub promise: bool,
    /// A process that forgot promises and counts like a sound one, once no lease depends on its vote: it was seeded by
    /// the clock, without the conditions of `docs/views.md`.
    pub cold: bool,
    /// A monitor stops at a quorum, reads a process as it installs the view, and admits one as it fills it. Fewer
    /// orders are walked: those in which the least is read, where nothing ends or is released.
    pub coarse: bool,
    pub kinds: [[Kind; ROUNDS]; 2],
    pub releases: bool,
    /// Requests whose round is over are refused (a weak form of the bound on their age).
    pub aged: bool,
    pub fences: bool,
    /// A release leaves a tombstone, and takes its token out of blocks.
    pub tombstones: bool,
    pub copy: bool,
    /// Confirmed extends put keys back where they were missing; these may arrive after a release; they lift blocks.
    pub repairs: bool,
    pub late_repairs: bool,
    pub repairs_lift: bool,
    /// Clients give up attempts and extends; promises, and with them keys and blocks, end. Many counterexamples
    /// need neither, and the model is much smaller without.
    pub gives_up: bool,
    pub ends: bool,
    /// One client; each process is wiped once, when all vote.
    pub rolling: bool,
    /// At the start the first client's lease is over; only the first process has its key, by an extend that failed.
    pub lapsed: bool,
    /// Whether the invariant of admission is checked, and not exclusion alone.
    pub invariant: bool,
    pub deny: Deny,
    pub bug: Bug,
}

const ONE_ACQUIRE: [Kind; ROUNDS] = [Kind::Acquire, Kind::None, Kind::None, Kind::None];
const ONE_EXTEND: [Kind; ROUNDS] = [Kind::Acquire, Kind::Extend, Kind::None, Kind::None];
const WRITE_BACK: [Kind; ROUNDS] = [Kind::Acquire, Kind::WriteBack, Kind::None, Kind::None];
const ASK_AGAIN: [Kind; ROUNDS] = [Kind::Acquire, Kind::AskAgain, Kind::None, Kind::None];
const TWO_EXTENDS: [Kind; ROUNDS] = [Kind::Acquire, Kind::Extend, Kind::Extend, Kind::None];
const THREE_EXTENDS: [Kind; ROUNDS] = [Kind::Acquire, Kind::Extend, Kind::Extend, Kind::Extend];

/// Three names, one wipe, one monitor, two clients that acquire once each: blocks alone.
pub const PROTOCOL: Rules = Rules {
    processes: 3,
    name_of: [0, 1, 2, 3, 4],
    alike: &[&[0, 1, 2]],
    names: 3,
    list: 0b111,
    blank: 0,
    replace: 0,
    lists: &[],
    wipes: 1,
    flushes: false,
    restarts: 0,
    steps: 0,
    changes: [1, 0],
    promise: false,
    cold: false,
    coarse: false,
    kinds: [ONE_ACQUIRE; 2],
    releases: true,
    aged: false,
    fences: false,
    tombstones: false,
    copy: false,
    repairs: false,
    late_repairs: false,
    repairs_lift: false,
    gives_up: true,
    ends: true,
    rolling: false,
    lapsed: false,
    invariant: true,
    deny: Deny::Nothing,
    bug: Bug::None,
};

impl Rules {
    /// The first client extends.
    pub fn extends(self) -> Rules {
        Rules { kinds: [ONE_EXTEND, ONE_ACQUIRE], ..self }
    }

    /// The second client, which asks later, extends.
    pub fn other_extends(self) -> Rules {
        Rules { kinds: [ONE_ACQUIRE, ONE_EXTEND], ..self }
    }

    /// Nobody gives up, and no promise ends.
    pub fn calm(self) -> Rules {
        Rules { gives_up: false, ends: false, ..self }
    }

    pub fn in_coarse_steps(self) -> Rules {
        Rules { coarse: true, ..self }
    }

    pub fn with_fences(self) -> Rules {
        Rules { fences: true, kinds: [WRITE_BACK; 2], ..self }
    }

    pub fn asks_again(self) -> Rules {
        Rules { kinds: [ASK_AGAIN, ONE_ACQUIRE], ..self }
    }

    /// One client that extends three times; each process is wiped once.
    pub fn rolling_restart(self) -> Rules {
        let kinds = [THREE_EXTENDS, [Kind::None; ROUNDS]];
        let bounds =
            Rules { wipes: 3, changes: [3, 0], gives_up: false, ends: false, rolling: true, releases: false, ..self };
        Rules { kinds, deny: Deny::ExtendAfterAll, ..bounds }
    }

    /// The first client's lease was lost before, and it asks for an extend.
    pub fn of_a_lost_lease(self) -> Rules {
        Rules { kinds: [TWO_EXTENDS, ONE_ACQUIRE], lapsed: true, aged: true, ends: true, ..self }
    }

    /// The same after the other client's lease, and it asks again after an extend that failed.
    pub fn after_the_other(self) -> Rules {
        Rules { kinds: [THREE_EXTENDS, [Kind::None; ROUNDS]], gives_up: true, ..self.of_a_lost_lease() }
    }

    pub fn mutant(self, bug: Bug) -> Rules {
        Rules { bug, ..self }
    }

    /// Keys and blocks stay for good, so that a request refused once is refused for ever, and a client that can be
    /// granted may as well be granted at once.
    pub fn nothing_ends(&self) -> bool {
        self.coarse && !self.ends && !self.fences && !self.releases && !self.gives_up
    }

    pub fn is(&self, bug: Bug) -> bool {
        self.bug == bug
    }

    pub fn name(&self, p: usize) -> usize {
        self.name_of[p] as usize
    }
}
