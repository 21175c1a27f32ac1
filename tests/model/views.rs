//! Views, as one model: processes under names, the views that say which process of a name may vote, two clients
//! and two monitors. `healing.rs` and `membership.rs` check it within their bounds; `docs/views.md` is the protocol.
//!
//! Time is abstract, so nothing depends on how late a message is. A client's round (its acquire, its extends) is
//! *over* when its promise has ended, at any moment after it was sent. A key knows the rounds whose TTL it carries, a
//! block those of the keys that it stands for; each may vanish once all of these are over, and may stay for longer.
//! Messages are delivered at any time, in any order, or never. Sets of names, processes and rounds are bits.

#[path = "views/canonical.rs"]
mod canonical;
#[path = "views/changes.rs"]
mod changes;
#[path = "views/leases.rs"]
mod leases;
#[path = "views/rules.rs"]
mod rules;
#[path = "views/steps.rs"]
mod steps;

pub use rules::{Bug, Deny, Kind, PROTOCOL, Rules};

/// Processes at most, names at most, rounds of a client, views at a time, monitors.
pub const PROCESSES: usize = 5;
pub const NAMES: usize = 5;
pub const ROUNDS: usize = 4;
pub const VIEWS: usize = 6;
pub const MONITORS: usize = 2;
const ALL_ROUNDS: u8 = (1 << ROUNDS) - 1;
/// The number of the first view. A view's number is eight times its count, plus a tag of who made it.
const FIRST: u8 = 8;

/// A server process. Its name is fixed; several may bear one name.
#[derive(Clone, Copy, Debug, Hash, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct Process {
    pub run: u8,
    /// It knows every vote of this run, and its clock was right since its last admission.
    pub sound: bool,
    pub clock_off: bool,
    /// The view that it has installed.
    pub view: u8,
    /// The view of its last admission; of a process that lost its vote, the highest view that it was in.
    pub since: u8,
    /// It installs no view below this one.
    pub promised: u8,
    /// The view for which it was filled.
    pub filled: u8,
    /// Who has the key: 0, or one more than the client's number.
    pub key: u8,
    pub key_rounds: u8,
    pub block: u8,
    /// Clients whose token has a tombstone here.
    pub ended: u8,
    pub fence: u8,
    pub high_water: u8,
    /// What an old backup, or its former self, holds (mutants only).
    pub backup: (u8, u8),
    /// It has loaded the data of a durable process and has no vote: one more than that one's run; 0: it has not.
    pub was: u8,
}

/// Which process a view names: its run, and the view of its last admission (0: none).
#[derive(Clone, Copy, Debug, Hash, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct Entry {
    pub run: u8,
    pub since: u8,
}

#[derive(Clone, Copy, Debug, Hash, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct View {
    pub number: u8,
    /// Names whose processes vote.
    pub list: u8,
    /// The list before, of which a quorum installs this view and is read; the same where the list does not change.
    pub old: u8,
    /// The terms change: all processes are filled, as for another list.
    pub other_terms: bool,
    pub roster: [Entry; NAMES],
    /// The roster of `old`; kept only while lists or terms differ.
    pub before: [Entry; NAMES],
}

#[derive(Clone, Copy, Debug, Hash, PartialEq, Eq, PartialOrd, Ord, Default)]
pub enum Phase {
    #[default]
    Idle,
    Acquiring,
    WritingBack,
    Held,
    Extending,
    Done,
}

#[derive(Clone, Copy, Debug, Hash, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct Round {
    pub view: u8,
    pub pending: u8,
    pub votes: u8,
}

#[derive(Clone, Copy, Debug, Hash, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct Client {
    pub phase: Phase,
    pub round: u8,
    /// Rounds that a quorum confirmed, and rounds whose promise has ended.
    pub confirmed: u8,
    pub over: u8,
    pub releases: u8,
    pub repairs: u8,
    pub repair_round: u8,
    pub repair_view: u8,
    pub rounds: [Round; ROUNDS],
    /// The highest fence answered before this client asked.
    pub floor: u8,
    pub fence: u8,
    pub fences: [u8; NAMES],
}

#[derive(Clone, Copy, Debug, Hash, PartialEq, Eq, PartialOrd, Ord, Default)]
pub enum Stage {
    #[default]
    Idle,
    Promising,
    Installing,
    Reading,
    Filled,
}

/// What a process answers to a promise: its entry as it knows it, and the view that it has installed (0: no answer).
#[derive(Clone, Copy, Debug, Hash, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct Report {
    pub entry: Entry,
    pub view: u8,
    /// As in [`Process`].
    pub was: u8,
}

#[derive(Clone, Copy, Debug, Hash, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct Monitor {
    pub stage: Stage,
    pub view: u8,
    /// Processes to be filled and admitted; the run of the only one.
    pub targets: u8,
    pub target_run: u8,
    /// The list to change to (0: it stays).
    pub list: u8,
    pub reports: [Report; NAMES],
    pub installed: u8,
    pub read: u8,
    /// What was read: rounds of keys and blocks, the highest fence, tombstones.
    pub block: u8,
    pub high_water: u8,
    pub ended: u8,
    /// Which names show each client's key and no block; the rounds of these keys, all and common; their fences.
    pub shows: [u8; 2],
    pub copy_rounds: u8,
    pub copy_least: u8,
    pub copy_fence: [u8; 2],
    /// Changes that it may still start.
    pub left: u8,
}

#[derive(Clone, Copy, Debug, Hash, PartialEq, Eq)]
pub struct State {
    pub processes: [Process; PROCESSES],
    pub clients: [Client; 2],
    pub monitors: [Monitor; MONITORS],
    pub views: [View; VIEWS],
    pub wipes: u8,
    pub restarts: u8,
    pub steps: u8,
    /// The highest fence answered, and who was granted last.
    pub best: u8,
    pub last: u8,
    pub fence_fell: bool,
    pub revived: bool,
}

fn quorum(list: u8) -> u32 {
    list.count_ones() / 2 + 1
}

fn has(set: u8, n: usize) -> bool {
    set >> n & 1 == 1
}

/// A set of rounds of a client, among the rounds of both.
fn of(client: usize, rounds: u8) -> u8 {
    rounds << (client * ROUNDS)
}

fn names() -> impl Iterator<Item = usize> {
    0..NAMES
}

impl State {
    pub fn view(&self, number: u8) -> Option<&View> {
        self.views.iter().find(|v| v.number == number && number > 0)
    }

    fn over(&self) -> u8 {
        of(0, self.clients[0].over) | of(1, self.clients[1].over)
    }

    /// Whether this client may believe that it holds the lease.
    pub fn holds(&self, c: usize) -> bool {
        let client = &self.clients[c];
        matches!(client.phase, Phase::Held | Phase::Extending) && client.confirmed & !client.over != 0
    }
}

impl View {
    /// The list or the terms change: nobody votes in this view who was not filled for it.
    fn changes(&self) -> bool {
        self.list != self.old || self.other_terms
    }
}

impl Entry {
    /// The same process, admitted then or later.
    fn follows(self, before: Entry) -> bool {
        before.since > 0 && self.run == before.run && self.since >= before.since
    }
}

impl Process {
    /// Whether it votes, or would count by its disk.
    fn counts(&self) -> bool {
        self.sound || self.was > 0
    }

    fn entry(&self) -> Entry {
        Entry { run: self.run, since: self.since }
    }

    /// The rounds that its key and its block cover.
    fn covers(&self, blocks_too: bool) -> u8 {
        let key = if self.key > 0 { of(self.key as usize - 1, self.key_rounds) } else { 0 };
        if blocks_too { key | self.block } else { key }
    }
}
