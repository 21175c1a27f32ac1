//! Records what callers asked for and got, in order, and checks it: one holder at a time, no waiter overtaken,
//! no waiter left asleep while the lock is free, no deadlock reported that is none, and none unreported.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::time::Duration;

use super::clock::Paused;
use crate::manager::types::CycleEdge;
use crate::types::ResourceName;

/// A part of a reported deadlock may have ended this long ago: it was inspected at most that long before the
/// answer.
const INSPECTED_WITHIN: Duration = Duration::from_millis(400);

/// A request that waits, or did.
#[derive(Debug, Clone)]
pub(super) struct Call {
    pub(super) inst: usize,
    pub(super) resource: ResourceName,
    pub(super) owner: String,
    /// When its wait is over.
    until: Duration,
    ended: Option<Duration>,
}

/// A granted lease.
#[derive(Debug, Clone)]
struct Hold {
    resource: ResourceName,
    owner: String,
    until: Duration,
    ended: Option<Duration>,
}

/// The history of a run and its first violation.
pub(super) struct Checker {
    clock: Paused,
    calls: BTreeMap<u64, Call>,
    holds: BTreeMap<u64, Hold>,
    next: u64,
    /// `WAITS_TRACE=1`.
    tracing: bool,
    digest: RefCell<DefaultHasher>,
    /// The first violation.
    pub(super) violation: Option<String>,
    pub(super) grants: u64,
    pub(super) deadlocks: u64,
}

impl Checker {
    pub(super) fn new(clock: Paused) -> Self {
        let (calls, holds) = (BTreeMap::new(), BTreeMap::new());
        let tracing = std::env::var("WAITS_TRACE").is_ok();
        Self {
            clock,
            calls,
            holds,
            next: 0,
            tracing,
            digest: RefCell::default(),
            violation: None,
            grants: 0,
            deadlocks: 0,
        }
    }

    pub(super) fn fail(&mut self, text: String) {
        let at = self.clock.elapsed().as_millis();
        self.violation.get_or_insert_with(|| format!("at {at} ms: {text}"));
    }

    /// A line of the trace.
    #[expect(clippy::print_stdout, reason = "the trace is read when a seed is replayed")]
    pub(super) fn trace(&self, line: impl FnOnce() -> String) {
        let line = format!("{:>6} {}", self.clock.elapsed().as_millis(), line());
        line.hash(&mut *self.digest.borrow_mut());
        if self.tracing {
            println!("{line}");
        }
    }

    /// A digest of all lines so far.
    pub(super) fn history(&self) -> u64 {
        self.digest.borrow().finish()
    }

    /// A request is about to wait: the order of these calls is that of the queue.
    pub(super) fn call(&mut self, inst: usize, resource: &ResourceName, owner: &str, wait: Duration) -> u64 {
        self.next += 1;
        let until = self.clock.elapsed() + wait;
        let call = Call { inst, resource: resource.clone(), owner: owner.into(), until, ended: None };
        self.trace(|| format!("call {}: {call:?}", self.next));
        self.calls.insert(self.next, call);
        self.next
    }

    /// It no longer waits: refused, or disconnected.
    pub(super) fn over(&mut self, number: u64) {
        let now = self.clock.elapsed();
        self.trace(|| format!("call {number}: over"));
        if let Some(call) = self.calls.get_mut(&number) {
            call.ended = Some(now);
        }
    }

    /// It has the lease until `until`.
    pub(super) fn granted(&mut self, number: u64, left: Duration) {
        let now = self.clock.elapsed();
        self.over(number);
        self.grants += 1;
        self.trace(|| format!("call {number}: granted"));
        let call = self.calls[&number].clone();
        let waits = |c: &Call| c.ended.is_none() && c.until > now;
        let older =
            self.calls.range(..number).find(|(_, c)| waits(c) && c.inst == call.inst && c.resource == call.resource);
        if let Some((older, _)) = older.map(|(n, c)| (*n, c.clone())) {
            self.fail(format!("call {number} overtook call {older} for {} on i{}", call.resource, call.inst));
        }
        let other = self.holds.iter().find(|(_, h)| h.resource == call.resource && h.ended.is_none() && h.until > now);
        if let Some((other, _)) = other.map(|(n, h)| (*n, h.clone())) {
            self.fail(format!("calls {other} and {number} hold {} at once", call.resource));
        }
        let hold = Hold { resource: call.resource, owner: call.owner, until: now + left, ended: None };
        self.holds.insert(number, hold);
    }

    /// Its holder releases it.
    pub(super) fn released(&mut self, number: u64) {
        let now = self.clock.elapsed();
        self.trace(|| format!("call {number}: releases"));
        if let Some(hold) = self.holds.get_mut(&number) {
            hold.ended = Some(now);
        }
    }

    /// The oldest request that waits for this resource.
    pub(super) fn waiting(&self, resource: &ResourceName) -> Option<(u64, &Call)> {
        let now = self.clock.elapsed();
        // A request whose wait is about to end may already be asking for its last answer.
        let soon = now + Duration::from_millis(200);
        let calls = self.calls.iter().filter(|(_, c)| c.resource == *resource);
        calls.filter(|(_, c)| c.ended.is_none() && c.until > soon).map(|(n, c)| (*n, c)).next()
    }

    /// A refusal names a deadlock: there must have been a recent instant at which all of it existed.
    pub(super) fn deadlock_reported(&mut self, number: u64, cycle: &[CycleEdge]) {
        self.deadlocks += 1;
        let since = self.clock.elapsed().saturating_sub(INSPECTED_WITHIN);
        let recently = |ended: &Option<Duration>| ended.is_none_or(|at| at >= since);
        for edge in cycle {
            let waits = self.calls.iter().any(|(n, c)| {
                c.owner == edge.owner && c.resource == edge.waits_for && (recently(&c.ended) || *n == number)
            });
            let holds = self.holds.values().any(|h| {
                h.owner == edge.held_by && h.resource == edge.waits_for && recently(&h.ended) && h.until >= since
            });
            if !waits || !holds {
                self.fail(format!(
                    "call {number} was refused for a deadlock that is none: {edge:?} (waits: {waits}, holds: {holds})"
                ));
            }
        }
        let own = self.calls[&number].clone();
        let later = self.calls.range(number + 1..).find(|(_, c)| {
            c.inst == own.inst
                && c.ended.is_none()
                && cycle.iter().any(|e| e.owner == c.owner && e.waits_for == c.resource)
        });
        if let Some((later, _)) = later {
            self.fail(format!("call {number} was refused in a deadlock in which call {later} is newer"));
        }
    }

    /// A cycle among the callers of one instance, with all leases running for longer than `more`.
    pub(super) fn cycle(&self, more: Duration) -> Option<String> {
        let now = self.clock.elapsed();
        let waits = |owner: &str| {
            self.calls.values().find(|c| c.owner == owner && c.ended.is_none() && c.until > now + more).cloned()
        };
        let holder = |resource: &ResourceName| {
            self.holds.values().find(|h| h.resource == *resource && h.ended.is_none() && h.until > now + more)
        };
        for start in self.calls.values().filter(|c| c.ended.is_none() && !c.owner.is_empty()) {
            let (mut at, mut path) = (start.clone(), vec![start.owner.clone()]);
            while let Some(next) = holder(&at.resource) {
                if next.owner == start.owner && path.len() > 1 {
                    return Some(format!("{path:?}"));
                }
                if path.contains(&next.owner) {
                    break;
                }
                path.push(next.owner.clone());
                match waits(&next.owner) {
                    Some(call) if call.inst == start.inst => at = call,
                    _ => break,
                }
            }
        }
        None
    }
}
