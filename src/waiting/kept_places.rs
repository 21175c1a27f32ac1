//! Places in the queues that outlive their callers' connections: when the connection of a request with a `wait_id` breaks,
//! its place is kept for a while, and the next request with the same `wait_id` takes it again. Until then later waiters go
//! first: no lease is acquired for an absent caller.

use std::any::Any;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use super::event::WaiterId;
use super::queue_state::{NEVER, Queue, WaiterActivity};
use crate::mutant::{Mutant, is};
use crate::redlock::clock::BootTime;
use crate::types::{Labels, ResourceName, TokenHash, Ttl, WaitId, WantedMode};

/// How long a place is kept while its caller is absent: long enough to reconnect after a proxy closed the connection.
pub(crate) const PLACE_KEPT: Duration = Duration::from_secs(30);

/// Maximum number of places that are kept for absent callers; further places are given up at once.
pub(crate) const ABSENT_MAX: usize = 1_000;

/// The same for one principal, so that it leaves some to the others. Without authentication callers are not distinguished.
pub(crate) const ABSENT_OF_ONE_MAX: usize = 500;

/// The key of a place.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct PlaceKey {
    /// The resources that are waited for, in the order of their names.
    pub resources: Arc<[ResourceName]>,
    /// The principal that waits; empty without authentication.
    pub principal: Arc<str>,
    /// The client's own name for its place.
    pub wait_id: WaitId,
}

/// What a request asked for. A request that takes its place again must ask for the same.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Terms {
    /// How the lease may share the resource.
    pub mode: WantedMode,
    /// The lifetime asked for.
    pub ttl: Ttl,
    /// The labels of the lease; `acquired_at_ms` may differ.
    pub labels: Labels,
    /// The client's own token.
    pub token: Option<TokenHash>,
    /// See [`super::event::WaitRequest`].
    pub refuses_deadlock: bool,
    /// For how long the service is to renew the lease.
    pub kept_for: Option<Duration>,
}

impl Terms {
    /// The first field, as requests name it, in which `other` differs.
    fn difference(&self, other: &Self) -> Option<&'static str> {
        let (own, others) = (&self.labels, &other.labels);
        let fields = [
            ("limit", self.mode.limit() == other.mode.limit()),
            ("mode", self.mode == other.mode),
            ("ttl", self.ttl == other.ttl),
            ("owner", own.owner == others.owner),
            ("note", own.note == others.note),
            ("metadata", own.metadata == others.metadata),
            ("token", self.token == other.token),
            ("keep", self.kept_for == other.kept_for),
            ("on_deadlock", self.refuses_deadlock == other.refuses_deadlock),
        ];
        fields.into_iter().find(|(_, is_same)| !is_same).map(|(field, _)| field)
    }
}

/// Counts a waiter in the quotas of its principal until it is dropped.
pub(crate) type Permit = Arc<dyn Any + Send + Sync>;

/// A request that keeps its place.
#[derive(Clone)]
pub(crate) struct PlaceRequest {
    /// The key of the place.
    pub key: PlaceKey,
    /// What the request asks for.
    pub terms: Terms,
    /// Counts the waiter as long as its place exists.
    pub permit: Option<Permit>,
    /// How long the caller has waited for it at another instance.
    pub waited: Duration,
}

struct KeptPlace {
    waiter: WaiterId,
    terms: Terms,
    permit: Option<Permit>,
    absent_since: Option<BootTime>,
}

/// The places of present and absent callers.
#[derive(Default)]
pub(crate) struct Places {
    kept: HashMap<PlaceKey, KeptPlace>,
    absent: usize,
}

impl Places {
    /// Adds a place, in place of a former one with this key.
    pub(super) fn add(&mut self, keep: PlaceRequest, waiter: WaiterId) {
        let PlaceRequest { key, terms, permit, .. } = keep;
        self.kept.insert(key, KeptPlace { waiter, terms, permit, absent_since: None });
    }

    /// Returns the waiter that has this place, if any, and records its caller as present.
    ///
    /// Errors: the field in which the request differs from the one that has the place.
    pub(super) fn take(
        &mut self,
        keep: &PlaceRequest,
        is_queued: impl Fn(WaiterId) -> bool,
    ) -> Result<Option<WaiterId>, &'static str> {
        let Some(place) = self.kept.get_mut(&keep.key).filter(|place| is_queued(place.waiter)) else { return Ok(None) };
        if let Some(field) = place.terms.difference(&keep.terms) {
            return Err(field);
        }
        self.absent -= usize::from(place.absent_since.take().is_some());
        Ok(Some(place.waiter))
    }

    /// Records that the caller of this waiter is absent. True if its place is kept; otherwise the place is forgotten.
    pub(super) fn leave(&mut self, key: &PlaceKey, waiter: WaiterId, is_queued: bool, now: BootTime) -> bool {
        let has_its_part = self.has_its_part(&key.principal);
        let Some(place) = self.kept.get_mut(key).filter(|place| place.waiter == waiter) else { return false };
        if !is_queued || self.absent >= ABSENT_MAX || has_its_part {
            self.kept.remove(key);
            return false;
        }
        place.absent_since = Some(now);
        self.absent += 1;
        true
    }

    /// Whether as many callers of this principal are absent as may be.
    fn has_its_part(&self, principal: &str) -> bool {
        let is_own = |key: &PlaceKey, place: &KeptPlace| place.absent_since.is_some() && *key.principal == *principal;
        let own = || self.kept.iter().filter(|(key, place)| is_own(key, place)).count();
        !principal.is_empty() && self.absent >= ABSENT_OF_ONE_MAX && own() >= ABSENT_OF_ONE_MAX
    }

    /// Forgets the places whose callers have been absent for too long; returns their waiters.
    pub(crate) fn expire(&mut self, now: BootTime) -> Vec<WaiterId> {
        let mut expired = Vec::new();
        if self.absent > 0 {
            self.kept.retain(|_, place| {
                let is_over = place.absent_since.is_some_and(|since| now.since(since) >= PLACE_KEPT);
                expired.extend(is_over.then_some(place.waiter));
                !is_over
            });
            self.absent -= expired.len();
        }
        expired
    }

    /// Forgets the places of requests whose own token is this one. Returns the waiters with absent callers; the
    /// others leave with their connections.
    pub(super) fn forget(&mut self, resource: &ResourceName, token: &TokenHash) -> Vec<WaiterId> {
        let mut forgotten = Vec::new();
        self.kept.retain(|key, place| {
            let is_named = key.resources.contains(resource) && place.terms.token.as_ref() == Some(token);
            forgotten.extend((is_named && place.absent_since.is_some()).then_some(place.waiter));
            !is_named
        });
        self.absent -= forgotten.len();
        forgotten
    }

    /// The places of waiters in the queues, with the time at which each began to wait: at most `max`, the oldest first.
    pub(crate) fn oldest(&self, queue: &Queue, max: usize) -> Vec<(&PlaceKey, BootTime)> {
        let is_queued = |place: &&KeptPlace| queue.is_queued(place.waiter);
        let since = |place: &KeptPlace| Some((place.waiter, queue.waiters.get(&place.waiter)?.since));
        let queued = self.kept.iter().filter(|(_, place)| is_queued(place));
        let mut all: Vec<_> = queued.filter_map(|(key, place)| Some((since(place)?, key))).collect();
        all.sort_unstable_by_key(|((waiter, _), _)| *waiter);
        all.into_iter().take(max).map(|((_, since), key)| (key, since)).collect()
    }

    /// The permit that counts the waiter of this place.
    pub(super) fn permit(&self, key: &PlaceKey) -> Option<Permit> {
        self.kept.get(key)?.permit.clone()
    }
}

/// Waiters with absent callers.
impl Queue {
    /// Whether this waiter is in its queues, that is, its wait deadline has not passed.
    pub fn is_queued(&self, id: WaiterId) -> bool {
        let first = self.waiters.get(&id).and_then(|waiter| waiter.request.resources.first());
        first.is_some_and(|resource| self.waits(resource, id))
    }

    /// Number of absent callers.
    #[cfg(test)]
    pub fn absent_waiters(&self) -> usize {
        self.waiters.values().filter(|waiter| waiter.is_absent).count()
    }

    /// Records that the caller of this waiter is absent: others go first.
    pub(super) fn absent(&mut self, id: WaiterId) {
        if !self.is_queued(id) || is(Mutant::AbsentForgotten) {
            return self.cancel(id);
        }
        let was_woken = self.takes_wake_along(id);
        self.withdraw_intent(id);
        let asked = self.stop(id);
        let mut resources = None;
        self.update(id, |waiter| {
            waiter.is_absent = !is(Mutant::AbsentAsks);
            (waiter.is_first, waiter.attempt_at, waiter.is_woken) = (false, NEVER, false);
            (waiter.recheck_at, waiter.awaits_subscription) = (NEVER, false);
            resources = Some(waiter.request.resources.clone());
        });
        let resources = resources.unwrap_or_default();
        self.left(&resources, asked);
        self.pass_wake_on(&resources, was_woken);
    }

    /// The caller of this waiter has returned and waits until this time: the waiter goes before those behind it. If
    /// one of these is asking and is granted the resource, that grant remains.
    pub(super) fn returned(&mut self, id: WaiterId, until: BootTime) {
        self.stop(id);
        let mut resources = None;
        self.update(id, |waiter| {
            (waiter.is_absent, waiter.is_first) = (false, false);
            waiter.request.until = until;
            waiter.may_join = waiter.request.token.is_some();
            waiter.is_suspect = true;
            resources = Some(waiter.request.resources.clone());
        });
        let Some(resources) = resources else { return };
        self.step_back(&resources);
        self.find_first(&resources);
        self.proceed(id);
    }

    /// Waiters that are no longer first do not ask again until they are first.
    pub(super) fn step_back(&mut self, resources: &[ResourceName]) {
        resources.iter().filter(|_| !is(Mutant::ReturnedIsSecond)).for_each(|resource| self.step_back_in(resource));
    }

    fn step_back_in(&mut self, resource: &ResourceName) {
        let head = self.head(resource);
        let order = self.resources.get(resource).into_iter().flat_map(|known| &known.order);
        let is_first = |id: &WaiterId| self.waiters.get(id).is_some_and(|waiter| waiter.is_first);
        let behind: Vec<WaiterId> = order.copied().filter(|id| is_first(id) && !head.contains(id)).collect();
        let was_woken = behind.iter().any(|id| self.takes_wake_along(*id));
        for id in behind {
            if self.waiters.get(&id).is_some_and(|waiter| matches!(waiter.activity, WaiterActivity::Due { .. })) {
                self.stop(id);
            }
            self.withdraw_intent(id);
            self.update(id, |waiter| {
                (waiter.is_first, waiter.attempt_at, waiter.is_woken) = (false, NEVER, false);
            });
            self.proceed(id);
        }
        self.pass_wake_on(std::slice::from_ref(resource), was_woken);
    }
}

#[cfg(test)]
#[path = "kept_places_tests.rs"]
mod tests;
