//! The node's own affairs: the twin of `node.lua`. Stands apart because these verbs act on the
//! marker alone. Knows no lock.

use super::marker::{Mark, Marker, Visit};
use crate::mutant::{self, Mutant};
use crate::protocol::{NoVote, NodeStatus, Reply, Vote};
use crate::types::Fence;

/// `init`: the explicit act, only on a node that has never voted since it was blank.
pub(super) fn init(mark: &mut Mark, visit: &Visit<'_>, evicted: u64) -> Reply {
    if mark.0.as_ref().is_some_and(|m| m.active || m.why != "blank" || mutant::is(Mutant::InitBlocked)) {
        return status(mark, visit, Vote::AlreadyInitialised);
    }
    if visit.is_clock_off() {
        // Its fences would begin at a wrong clock.
        return status(mark, visit, Vote::NoVote(NoVote::ClockOff { node_us: visit.now_us }));
    }
    declare(mark, visit, evicted, visit.sent_at.0.max(mark.high_water()));
    status(mark, visit, Vote::Active)
}

/// A marker that votes from now on, whose fences all lie above `floor`.
pub(super) fn declare(mark: &mut Mark, visit: &Visit<'_>, evicted: u64, floor: u64) {
    mark.0 = Some(Marker {
        run: visit.run.into(),
        evicted: Some(evicted),
        active: true,
        recalls_fences: false,
        until_us: 0,
        owed_us: 0,
        seen_us: visit.now_us,
        cluster: visit.params.cluster.clone(),
        quarantine_ms: mark.longest_quarantine_ms(visit),
        high_water: floor,
        base: floor,
        period: None,
        why: "init",
        since_us: visit.now_us,
    });
}

/// `quarantine`: the act of a warden that saw this clock stepped. It takes the vote and nothing else: the warden
/// may be a stranger's, with another node list, to which the node's fences would be lost.
pub(super) fn order_quarantine(mark: &mut Mark, visit: &Visit<'_>, evicted: u64) -> Reply {
    let left_ms = mark.quarantine(visit, "ordered");
    if let Some(m) = &mut mark.0 {
        m.evicted = Some(evicted);
    }
    status(mark, visit, Vote::NoVote(NoVote::Quarantined { left_ms }))
}

/// `probe`, and with a seed `activate`.
pub(super) fn probe(mark: &mut Mark, visit: &Visit<'_>, evicted: u64, seed: Option<Fence>) -> Reply {
    let was_same_run = mark.0.as_ref().is_some_and(|m| &*m.run == visit.run);
    let noticed = mark.0.as_ref().and_then(|m| m.evicted);
    let mut no_vote = mark.admit(visit);
    if matches!(no_vote, None | Some(NoVote::Quarantined { .. } | NoVote::Unseeded { .. })) {
        if was_same_run && noticed.is_some_and(|n| n != evicted) {
            // It forgot something under memory pressure.
            let left_ms = mark.quarantine(visit, "evicted");
            no_vote = Some(NoVote::Quarantined { left_ms });
        }
        if let Some(m) = &mut mark.0 {
            m.evicted = Some(evicted);
        }
    }
    if let (Some(seed), Some(NoVote::Unseeded { .. }), Some(m)) = (seed, &no_vote, &mut mark.0) {
        (m.active, m.owed_us) = (true, 0);
        let seed = if mutant::is(Mutant::NoSeed) { Fence(0) } else { seed };
        m.base = m.base.max(m.high_water).max(seed.0);
        m.high_water = m.high_water.max(seed.0);
        m.since_us = visit.now_us;
        no_vote = None;
    }
    status(mark, visit, no_vote.map_or(Vote::Active, Vote::NoVote))
}

fn status(mark: &Mark, visit: &Visit<'_>, vote: Vote) -> Reply {
    let m = mark.0.as_ref();
    Reply::Status(NodeStatus {
        vote,
        now_us: visit.now_us,
        high_water: Fence(mark.high_water()),
        run: visit.run.to_owned(),
        why: m.map_or("", |m| m.why).to_owned(),
        since_us: m.map_or(0, |m| m.since_us),
        until_us: m.map_or(0, |m| m.until_us),
    })
}
