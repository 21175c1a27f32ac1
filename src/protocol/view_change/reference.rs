//! The reference of `view_change.lua`.

use std::sync::Arc;

use crate::mutant::{self, Mutant};
use crate::protocol::params::{BY_CLOCK, BY_DISK};
use crate::protocol::reference::disk;
use crate::protocol::reference::marker::{CallContext, FillProgress, MarkerKey, MarkerRecord};
use crate::protocol::reference::memory::Memory;
use crate::protocol::{AdmitArgs, MemberStatus, NoVote, Reply, View, ViewId, Vote};
use crate::types::Fence;

/// `promise`: by a process that votes, or waits for a vote. A waiting process is then admitted in no lower view.
pub(in crate::protocol) fn promise(marker: &mut MarkerKey, context: &CallContext<'_>, view: ViewId) -> Reply {
    let no_vote = marker.check_vote(context);
    let (votes, waits) = (is_sound(no_vote.as_ref()), waits(no_vote.as_ref()));
    let found = marker.0.as_mut().filter(|m| (votes || waits) && view > m.view.id && view > m.promised);
    let binds = |m: &MarkerRecord| votes || m.fill.is_none() || !mutant::is(Mutant::FilledUnbound);
    let is_done = found.map(|m| m.promised = if binds(m) { view } else { m.promised }).is_some();
    status(marker, context, no_vote, is_done)
}

/// `install`: by a process that votes and that the view names, with its last admission; or that has the data and the last admission
/// of a durable one, in whose place the view names it. A process that a view above its own does not name loses its vote.
pub(in crate::protocol) fn install(memory: &mut Memory, context: &CallContext<'_>, view: &Arc<View>) -> Reply {
    let now = view.terms().and_then(|terms| terms.template.as_ref());
    let is_named_otherwise = memory.names.own.as_ref().is_some_and(|own| {
        view.old().is_none() && (own.moving.is_some() || now.is_some_and(|now| own.template != *now))
    });
    let reply = install_marker(&mut memory.marker, context, view, is_named_otherwise);
    let was = view.old().and_then(|old| old.terms.as_ref()?.template.as_ref());
    let is_pending = memory.marker.0.as_ref().is_some_and(|m| m.pending && m.view.id == view.id);
    if let Some(was) = was.filter(|was| is_pending && memory.names.own.is_none() && now.is_some_and(|now| now != *was))
    {
        memory.names.set(was.clone(), None);
    }
    reply
}

fn install_marker(
    marker: &mut MarkerKey,
    context: &CallContext<'_>,
    view: &Arc<View>,
    is_named_otherwise: bool,
) -> Reply {
    let no_vote = marker.check_vote(context);
    if waits(no_vote.as_ref()) && may_resume(marker, context, view) {
        resume(marker, context, view);
        return status(marker, context, None, true);
    }
    let Some(m) = marker.0.as_mut().filter(|_| is_sound(no_vote.as_ref())) else {
        return status(marker, context, no_vote, false);
    };
    let is_named = view.names(context.run, m.admitted) || view.names_before(context.run, m.admitted);
    let is_named = is_named || mutant::is(Mutant::RosterNotCompared);
    if view.id > m.view.id && (!is_named || is_named_otherwise) {
        let left_ms = marker.quarantine(context, "displaced");
        return status(marker, context, Some(NoVote::Quarantined { left_ms }), false);
    }
    if view.id > m.view.id && view.id >= m.promised {
        (m.view, m.promised) = (Arc::clone(view), view.id);
        // The list changes: a process votes in it only after it was filled for it.
        m.pending = view.old().is_some();
        m.fill = m.fill.filter(|_| !m.pending);
    }
    let is_done = m.view.id == view.id;
    status(marker, context, no_vote, is_done)
}

/// Whether this process may take the place of the durable one whose data it has, in this view.
fn may_resume(marker: &MarkerKey, context: &CallContext<'_>, view: &Arc<View>) -> bool {
    let m = marker.0.as_ref().filter(|m| disk::inherited(Some(m), context).is_some_and(|was| was.is_ready));
    let is_above = |m: &&MarkerRecord| view.id > m.view.id && view.id >= m.promised && view.old().is_none();
    m.filter(is_above).is_some_and(|m| view.names(context.run, m.admitted))
}

fn resume(marker: &mut MarkerKey, context: &CallContext<'_>, view: &Arc<View>) {
    let Some(m) = &mut marker.0 else { return };
    (m.view, m.promised) = (Arc::clone(view), view.id);
    (m.active, m.owed_us, m.fill, m.pending, m.was) = (true, 0, None, false, None);
    (m.why, m.since_us) = (BY_DISK, context.now_us);
}

/// `admit`: for a process that has the whole fill for this view.
pub(in crate::protocol) fn admit(marker: &mut MarkerKey, context: &CallContext<'_>, args: &AdmitArgs) -> Reply {
    let no_vote = marker.check_vote(context);
    let is_done = match &mut marker.0 {
        Some(m) if is_sound(no_vote.as_ref()) && m.is_pending() && m.view.id == args.view.id => {
            let is_done = may_be_admitted(m, context, args);
            if is_done {
                give_vote(m, context, args);
            }
            is_done
        }
        Some(m) if is_sound(no_vote.as_ref()) => m.admitted == args.view.id,
        Some(m) if waits(no_vote.as_ref()) && may_be_admitted(m, context, args) => {
            give_vote(m, context, args);
            return status(marker, context, None, true);
        }
        _ => false,
    };
    status(marker, context, no_vote, is_done)
}

fn may_be_admitted(m: &MarkerRecord, context: &CallContext<'_>, args: &AdmitArgs) -> bool {
    let id = args.view.id;
    let complete = FillProgress { view: id, nonce: args.nonce, pages: args.pages, done: args.pages };
    (id > m.view.id || m.is_pending())
        && id >= m.promised
        && args.view.names(context.run, id)
        && m.fill == Some(complete)
}

fn give_vote(m: &mut MarkerRecord, context: &CallContext<'_>, args: &AdmitArgs) {
    let seed = if mutant::is(Mutant::NoSeed) { Fence(0) } else { args.seed };
    (m.pending, m.was, m.trip) = (false, None, 0);
    (m.active, m.owed_us, m.fill, m.cluster) = (true, 0, None, context.params.cluster.get());
    (m.view, m.promised, m.admitted) = (Arc::clone(&args.view), args.view.id, args.view.id);
    m.base = m.base.max(m.high_water).max(seed.0);
    m.high_water = m.high_water.max(seed.0);
    m.since_us = context.now_us;
    if args.by_clock {
        m.why = BY_CLOCK;
    }
}

/// Whether the process votes, in whatever view.
fn is_sound(no_vote: Option<&NoVote>) -> bool {
    matches!(no_vote, None | Some(NoVote::OtherView { .. }))
}

/// Whether the process is in quarantine, or has served it.
fn waits(no_vote: Option<&NoVote>) -> bool {
    matches!(no_vote, Some(NoVote::Quarantined { .. } | NoVote::Unseeded { .. }))
}

fn status(marker: &MarkerKey, context: &CallContext<'_>, no_vote: Option<NoVote>, is_done: bool) -> Reply {
    let m = marker.0.as_ref();
    Reply::Member(Box::new(MemberStatus {
        is_done,
        vote: no_vote.filter(|no_vote| !is_sound(Some(no_vote))).map_or(Vote::Active, Vote::NoVote),
        high_water: Fence(marker.high_water()),
        run: context.run.into(),
        view: m.map(|m| Arc::clone(&m.view)).unwrap_or_default(),
        promised: m.map_or(ViewId::NONE, |m| m.promised),
        admitted: m.map_or(ViewId::NONE, |m| m.admitted),
        inherited: disk::inherited(m, context),
    }))
}
