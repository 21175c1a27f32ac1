//! The reference of `admin.lua`.

use crate::mutant::{self, Mutant};
use crate::protocol::reference::marker::{CallContext, MarkerKey, MarkerRecord};
use crate::protocol::{NoVote, NodeStatus, Reply, Vote};
use crate::types::Fence;

/// `init`: only on a node that has never voted since it was blank.
pub(in crate::protocol) fn init(marker: &mut MarkerKey, context: &CallContext<'_>, evicted: u64) -> Reply {
    if marker.0.as_ref().is_some_and(|m| m.active || m.why != "blank" || mutant::is(Mutant::InitBlocked)) {
        return status(marker, context, Vote::AlreadyInitialised);
    }
    if context.is_clock_off() {
        // Its fences would start at a wrong time.
        return status(marker, context, Vote::NoVote(NoVote::ClockOff { node_us: context.now_us }));
    }
    declare(marker, context, evicted, context.sent_at.0.max(marker.high_water()));
    status(marker, context, Vote::Active)
}

/// Writes a marker that votes from now on; every fence will be above `minimum`.
pub(in crate::protocol) fn declare(marker: &mut MarkerKey, context: &CallContext<'_>, evicted: u64, minimum: u64) {
    marker.0 = Some(MarkerRecord {
        run: context.run.into(),
        evicted: Some(evicted),
        active: true,
        recalls_fences: false,
        until_us: 0,
        owed_us: 0,
        seen_us: context.now_us,
        cluster: context.params.cluster.clone(),
        quarantine_ms: marker.longest_quarantine_ms(context),
        high_water: minimum,
        base: minimum,
        period: None,
        why: "init",
        since_us: context.now_us,
    });
}

/// `quarantine`: ordered by a node monitor that found this clock stepped. It takes the vote and nothing else: the monitor
/// may belong to another cluster, with another node list, to which this node's fences would be lost.
pub(in crate::protocol) fn order_quarantine(marker: &mut MarkerKey, context: &CallContext<'_>, evicted: u64) -> Reply {
    let left_ms = marker.quarantine(context, "ordered");
    if let Some(m) = &mut marker.0 {
        m.evicted = Some(evicted);
    }
    status(marker, context, Vote::NoVote(NoVote::Quarantined { left_ms }))
}

/// `probe`, and with a seed `activate`.
pub(in crate::protocol) fn probe(
    marker: &mut MarkerKey,
    context: &CallContext<'_>,
    evicted: u64,
    seed: Option<Fence>,
) -> Reply {
    let was_same_run = marker.0.as_ref().is_some_and(|m| &*m.run == context.run);
    let known = marker.0.as_ref().and_then(|m| m.evicted);
    let mut no_vote = marker.check_vote(context);
    if matches!(no_vote, None | Some(NoVote::Quarantined { .. } | NoVote::Unseeded { .. })) {
        if was_same_run && known.is_some_and(|n| n != evicted) {
            // Keys were evicted under memory pressure.
            let left_ms = marker.quarantine(context, "evicted");
            no_vote = Some(NoVote::Quarantined { left_ms });
        }
        if let Some(m) = &mut marker.0 {
            m.evicted = Some(evicted);
        }
    }
    if let (Some(seed), Some(NoVote::Unseeded { .. }), Some(m)) = (seed, &no_vote, &mut marker.0) {
        (m.active, m.owed_us) = (true, 0);
        let seed = if mutant::is(Mutant::NoSeed) { Fence(0) } else { seed };
        m.base = m.base.max(m.high_water).max(seed.0);
        m.high_water = m.high_water.max(seed.0);
        m.since_us = context.now_us;
        no_vote = None;
    }
    status(marker, context, no_vote.map_or(Vote::Active, Vote::NoVote))
}

fn status(marker: &MarkerKey, context: &CallContext<'_>, vote: Vote) -> Reply {
    let m = marker.0.as_ref();
    Reply::Status(NodeStatus {
        vote,
        now_us: context.now_us,
        high_water: Fence(marker.high_water()),
        run: context.run.to_owned(),
        why: m.map_or("", |m| m.why).to_owned(),
        since_us: m.map_or(0, |m| m.since_us),
        until_us: m.map_or(0, |m| m.until_us),
    })
}
