//! What a queue has heard of the ends of leases, and which of it wakes its head: once for each end, when
//! a quorum can be free, and again where the lease was met all the same. Knows no seat and no node.

use std::collections::VecDeque;
use std::time::Duration;

use crate::mutant::{self, Mutant};
use crate::redlock::notifications::{LeaseTag, Notice};

/// How long the head lets things settle when too few nodes have yet told of a lease's end for a
/// quorum to be free: a try before that costs two rounds and wins nothing.
pub const SETTLE: Duration = Duration::from_millis(5);
/// Leases whose ends are told apart at a time: those of the attempts of a few instances.
const NEWS_MAX: usize = 8;

/// The resource may be free: ask the nodes after this time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Ring(pub Duration);

/// At once.
pub const NOW: Ring = Ring(Duration::ZERO);

/// How many nodes must have told of an end before a quorum can be free.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Needed {
    /// Of a lease that was ended: those that are not heard of may well have told.
    pub ended: u32,
    /// Of an attempt that was withdrawn: a whole quorum, since with less it never held the lease.
    pub withdrawn: u32,
}

/// Of one queue.
#[derive(Debug, Default)]
pub struct News {
    /// The ends that were heard of last; news of several may come interleaved.
    ends: VecDeque<Ended>,
    /// The lease that the head met on a quorum of nodes when it tried last.
    standing: Option<LeaseTag>,
}

/// What is known of the end of one lease.
#[derive(Debug, Default)]
struct Ended {
    lease: Option<LeaseTag>,
    /// The nodes that told, a bit each.
    nodes: u64,
    rung: Rung,
    /// Told since the head began its try: of use if it met the lease still, on other nodes.
    is_fresh: bool,
}

/// Whether the head was woken for it.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
enum Rung {
    #[default]
    No,
    /// On a guess: it is woken again when the end is certain.
    Early,
    /// Once and for all.
    Full,
}

impl News {
    /// The oldest of too many is forgotten.
    fn of(&mut self, lease: Option<LeaseTag>) -> &mut Ended {
        let index = self.ends.iter().position(|e| e.lease == lease).unwrap_or_else(|| {
            if self.ends.len() >= NEWS_MAX {
                self.ends.pop_front();
            }
            self.ends.push_back(Ended { lease, ..Ended::default() });
            self.ends.len() - 1
        });
        &mut self.ends[index]
    }

    /// The head begins a try: what was told before is no news of what it will meet.
    pub fn asked(&mut self) {
        for ended in &mut self.ends {
            ended.is_fresh = false;
        }
    }

    /// The head is being woken for it: it is woken again when it is certain.
    pub fn guessed(&mut self, lease: LeaseTag) {
        let lease = Some(lease);
        *self.of(lease) = Ended { lease, rung: Rung::Early, ..Ended::default() };
    }

    /// Nobody is to be woken for it.
    pub fn waived(&mut self, lease: LeaseTag) {
        let lease = Some(lease);
        *self.of(lease) = Ended { lease, rung: Rung::Full, ..Ended::default() };
    }

    /// It has certainly ended.
    pub fn certain(&mut self, lease: Option<LeaseTag>) -> Option<Ring> {
        if lease.is_some() {
            let ended = self.of(lease);
            ended.is_fresh = true;
            if ended.rung == Rung::Full {
                return None;
            }
            ended.rung = Rung::Full;
        }
        Some(NOW)
    }

    /// A node told of it.
    pub fn notice(&mut self, node: usize, notice: Notice, needed: Needed) -> Option<Ring> {
        // An attempt that was withdrawn had no quorum mostly. Not the one that was met on a quorum: that is the end
        // of a lease, of which the nodes that are not heard may well have told.
        let is_standing = notice.lease.is_some() && notice.lease == self.standing;
        let withdrawn = notice.withdrawn && !is_standing;
        let ended = self.of(notice.lease);
        if ended.rung == Rung::Full && notice.lease.is_none() {
            // Foreigners cannot be told apart.
            *ended = Ended::default();
        }
        ended.is_fresh = true;
        if ended.rung == Rung::Full {
            return None;
        }
        ended.nodes |= 1_u64.checked_shl(u32::try_from(node).unwrap_or(u32::MAX)).unwrap_or(0);
        let needed = if withdrawn { needed.withdrawn } else { needed.ended };
        if ended.nodes.count_ones() >= needed {
            ended.rung = Rung::Full;
            return Some(NOW);
        }
        let is_first = !withdrawn && ended.rung == Rung::No;
        if is_first {
            ended.rung = Rung::Early;
        }
        is_first.then_some(Ring(SETTLE))
    }

    /// The lease was met, whatever was heard of its end: an attempt of its token may have been withdrawn
    /// and another have followed, and that one's end is news again. What was told while the head tried,
    /// and met it on other nodes still, counts now. `is_sure`: it was met on a quorum.
    pub fn stands(&mut self, lease: LeaseTag, is_sure: bool) -> Option<Ring> {
        self.standing = is_sure.then_some(lease);
        let known = self.ends.iter().position(|e| e.lease == Some(lease));
        let known = known.filter(|_| !mutant::is(Mutant::EndsCountOnce));
        let ended = known.and_then(|at| self.ends.remove(at));
        ended.is_some_and(|e| e.is_fresh).then_some(Ring(SETTLE))
    }

    /// The head was granted the resource: late news of what led to that are none.
    pub fn served(&mut self) {
        self.standing = None;
        for ended in &mut self.ends {
            (ended.rung, ended.is_fresh) = (Rung::Full, false);
        }
    }
}
