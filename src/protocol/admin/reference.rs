//! The reference of `admin.lua`.

use std::collections::BTreeSet;
use std::sync::Arc;

use crate::mutant::{self, Mutant};
use crate::protocol::reference::disk;
use crate::protocol::reference::marker::Notes;
use crate::protocol::reference::marker::{CallContext, MarkerKey, MarkerRecord};
use crate::protocol::{NoVote, NodeStatus, ProbeArgs, Reply, View, ViewId, Vote};
use crate::types::{Fence, NodeId};

/// As in `admin.lua`. Microseconds.
const ALIVE_US: u64 = 3_000_000;
const WITNESS_US: u64 = 2_500_000;
const FORGET_US: u64 = 60_000_000;

/// `init`: only on a node that has never voted since it was blank.
pub(in crate::protocol) fn init(
    marker: &mut MarkerKey,
    context: &CallContext<'_>,
    evicted: u64,
    view: &Arc<View>,
) -> Reply {
    if marker.0.as_ref().is_some_and(|m| m.active || m.why != "blank" || mutant::is(Mutant::InitBlocked)) {
        return status(marker, context, Vote::AlreadyInitialised, "");
    }
    if context.is_clock_off() {
        // Its fences would start at a wrong time.
        return status(marker, context, Vote::NoVote(NoVote::ClockOff { node_us: context.now_us }), "");
    }
    declare(marker, context, evicted, context.sent_at.0.max(marker.high_water()));
    if let Some(m) = &mut marker.0 {
        // The stamp's view is the first view.
        let id = context.view;
        (m.view, m.promised, m.admitted) = (Arc::new(View { id, ..(**view).clone() }), id, id);
    }
    status(marker, context, Vote::Active, "")
}

/// Writes a marker with which the node votes from now on; every fence will be above `minimum`.
pub(in crate::protocol) fn declare(marker: &mut MarkerKey, context: &CallContext<'_>, evicted: u64, minimum: u64) {
    let longest_ms = marker.longest_quarantine_ms(context);
    let asked_ms = marker.0.as_ref().map_or(0, |m| m.asked_ms).max(context.quarantine_ms());
    marker.0 = Some(MarkerRecord {
        run: context.run.into(),
        evicted: Some(evicted),
        active: true,
        recalls_fences: false,
        until_us: 0,
        owed_us: 0,
        seen_us: context.now_us,
        cluster: context.params.cluster.get(),
        asked_ms,
        quarantine_ms: longest_ms,
        period_ends_us: context.in_ms(longest_ms),
        high_water: minimum,
        base: minimum,
        generation: None,
        before_generation: 0,
        view: Arc::default(),
        promised: ViewId::NONE,
        admitted: ViewId::NONE,
        filled: ViewId::NONE,
        pending: false,
        fill: None,
        durable: None,
        beat_us: 0,
        trip: 0,
        was: None,
        why: "init",
        since_us: context.now_us,
    });
}

/// `quarantine`: ordered by a node monitor that found this clock stepped. It takes the vote and nothing else: the monitor may
/// belong to another cluster with another node list, and this node's fences would be lost to that cluster. Refused if another
/// instance's time agreed with this clock just now: a clock that differs from all others is wrong.
pub(in crate::protocol) fn order_quarantine(
    marker: &mut MarkerKey,
    context: &CallContext<'_>,
    evicted: u64,
    by: &str,
) -> Reply {
    let is_fresh = |at_us: u64| at_us <= context.now_us && context.now_us - at_us <= WITNESS_US;
    let is_witness = |(instance, at_us): (&Arc<str>, &u64)| &**instance != by && is_fresh(*at_us);
    if marker.1.fits.iter().any(is_witness) && !mutant::is(Mutant::NoWitness) {
        return status(marker, context, Vote::Witnessed, by);
    }
    let left_ms = marker.quarantine(context, "ordered");
    if let Some(m) = &mut marker.0 {
        m.evicted = Some(evicted);
    }
    status(marker, context, Vote::NoVote(NoVote::Quarantined { left_ms }), by)
}

/// `probe`: answers with the node's state, and stores the instance's notes.
pub(in crate::protocol) fn probe(
    marker: &mut MarkerKey,
    context: &CallContext<'_>,
    evicted: u64,
    args: &ProbeArgs,
) -> Reply {
    let alive = alive(&marker.1, context, &args.instance);
    let no_vote = check(marker, context, evicted);
    if !matches!(no_vote, Some(NoVote::OtherCluster { .. } | NoVote::ClockOff { .. })) {
        leave_notes(&mut marker.1, context, args);
        if let Some(m) = &mut marker.0 {
            m.beat_us = context.now_us;
        }
        disk::watch(marker, context, args.syncs, matches!(no_vote, None | Some(NoVote::OtherView { .. })));
    }
    match status(marker, context, no_vote.map_or(Vote::Active, Vote::NoVote), &args.instance) {
        Reply::Status(status) => Reply::Status(Box::new(NodeStatus { alive, ..*status })),
        other => other,
    }
}

fn leave_notes(notes: &mut Notes, context: &CallContext<'_>, args: &ProbeArgs) {
    let now_us = context.now_us;
    notes.sees.retain(|_, (at, _)| now_us.abs_diff(*at) <= FORGET_US);
    notes.fits.retain(|_, at| now_us.abs_diff(*at) <= FORGET_US);
    if args.instance.is_empty() {
        return;
    }
    // Replaces the instance's last note: it does not vouch for runs that it does not see any more.
    notes.sees.insert(Arc::clone(&args.instance), (now_us, args.alive.clone()));
    if args.is_witness {
        notes.fits.insert(Arc::clone(&args.instance), now_us);
    }
}

/// The processes that instances other than `by` saw alive just now.
fn alive(notes: &Notes, context: &CallContext<'_>, by: &str) -> BTreeSet<(NodeId, Arc<str>)> {
    let is_fresh = |at: u64| context.now_us.abs_diff(at) <= ALIVE_US;
    let fresh = notes.sees.iter().filter(|(instance, (at, _))| &***instance != by && is_fresh(*at));
    fresh.flat_map(|(_, (_, seen))| seen.iter().cloned()).collect()
}

/// Why the node has no vote, with the checks that only a probe makes.
fn check(marker: &mut MarkerKey, context: &CallContext<'_>, evicted: u64) -> Option<NoVote> {
    let was_same_run = marker.0.as_ref().is_some_and(|m| &*m.run == context.run);
    let known = marker.0.as_ref().and_then(|m| m.evicted);
    let mut no_vote = marker.check_vote(context);
    let is_sound = |no_vote: &Option<NoVote>| matches!(no_vote, None | Some(NoVote::OtherView { .. }));
    if is_sound(&no_vote) || matches!(no_vote, Some(NoVote::Quarantined { .. } | NoVote::Unseeded { .. })) {
        if was_same_run && known.is_some_and(|n| n < evicted) {
            // Keys were evicted under memory pressure. A lower count than before: the statistics were reset.
            let left_ms = marker.quarantine(context, "evicted");
            no_vote = Some(NoVote::Quarantined { left_ms });
        }
        if let Some(m) = &mut marker.0 {
            m.evicted = Some(evicted);
        }
    }
    if is_sound(&no_vote) {
        marker.end_period(context);
    }
    no_vote
}

/// The status as the instance `by` receives it.
fn status(marker: &MarkerKey, context: &CallContext<'_>, vote: Vote, by: &str) -> Reply {
    let m = marker.0.as_ref();
    Reply::Status(Box::new(NodeStatus {
        vote,
        now_us: context.now_us,
        high_water: Fence(marker.high_water()),
        run: context.run.to_owned(),
        why: m.map_or("", |m| m.why).to_owned(),
        since_us: m.map_or(0, |m| m.since_us),
        until_us: m.map_or(0, |m| m.until_us),
        view: m.map(|m| Arc::clone(&m.view)).unwrap_or_default(),
        promised: m.map_or(ViewId::NONE, |m| m.promised),
        admitted: m.map_or(ViewId::NONE, |m| m.admitted),
        inherited: disk::inherited(m, context),
        is_durable: m.is_some_and(|m| disk::is_durable(m, context)),
        alive: alive(&marker.1, context, by),
    }))
}
