//! Quotas: how many leases each principal holds and how many of its requests wait. Counted per instance,
//! since instances share no state. A lease counts for the principal that acquired it, no matter who releases it.

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::Mutex;

use super::principal::PrincipalName;
use crate::redlock::clock::BootTime;
use crate::types::{ResourceName, TokenId};

/// Event streams of one principal, of those that an instance has for all.
pub(crate) const STREAMS_PER_PRINCIPAL: usize = 64;

/// Leases, waiters and event streams of all principals. Cheap to clone.
#[derive(Debug, Clone, Default)]
pub struct Quotas(Arc<Mutex<Accounts>>);

/// Names a counted lease: an exclusive one by its resource, of which a later one replaces it; one of several that may be held
/// together also by its token.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct CountedName(ResourceName, Option<TokenId>);

impl From<&ResourceName> for CountedName {
    fn from(resource: &ResourceName) -> Self {
        Self(resource.clone(), None)
    }
}

impl From<(&ResourceName, TokenId)> for CountedName {
    fn from((resource, token): (&ResourceName, TokenId)) -> Self {
        Self(resource.clone(), Some(token))
    }
}

#[derive(Debug, Default)]
struct Accounts {
    leases: HashMap<CountedName, CountedLease>,
    totals: HashMap<PrincipalName, Totals>,
    /// The id of the last counted lease.
    last_id: u64,
}

#[derive(Debug)]
struct CountedLease {
    id: u64,
    principal: PrincipalName,
    /// The lease counts until then; `None` while a connection renews it.
    until: Option<BootTime>,
}

#[derive(Debug, Default, Clone, Copy)]
struct Totals {
    leases: usize,
    /// Acquires in progress: each may become a lease.
    pending: usize,
    /// Of these, the ones that may wait.
    waiting: usize,
    /// Open event streams.
    streams: usize,
    /// When expired leases were last removed.
    swept: BootTime,
}

/// Permits one acquire, and the requests that take its place in the queue again; returned to the quota when dropped.
#[derive(Debug)]
pub struct QuotaPermit {
    quotas: Quotas,
    principal: PrincipalName,
    may_wait: bool,
    /// How many leases the acquire may become.
    count: usize,
}

/// Which quota is used up, with its limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum QuotaExceeded {
    /// Leases held or being acquired.
    Leases(usize),
    /// Waiting requests.
    Waiters(usize),
}

impl Quotas {
    /// Reserves one acquire of `count` leases for a principal.
    ///
    /// Errors: [`QuotaExceeded`] if a limit is reached.
    pub fn reserve(
        &self,
        principal: &PrincipalName,
        (count, may_wait): (usize, bool),
        leases_max: usize,
        waiters_max: usize,
        now: BootTime,
    ) -> Result<QuotaPermit, QuotaExceeded> {
        let mut accounts = self.0.lock();
        let mut totals = accounts.totals.get(principal).copied().unwrap_or_default();
        if may_wait && totals.waiting >= waiters_max {
            return Err(QuotaExceeded::Waiters(waiters_max));
        }
        let is_over = |totals: &Totals| totals.leases + totals.pending + count > leases_max;
        if is_over(&totals) {
            totals = accounts.remove_expired(principal, now);
        }
        if is_over(&totals) {
            return Err(QuotaExceeded::Leases(leases_max));
        }
        let totals = accounts.totals.entry(principal.clone()).or_default();
        totals.pending += count;
        totals.waiting += usize::from(may_wait);
        Ok(QuotaPermit { quotas: self.clone(), principal: principal.clone(), may_wait, count })
    }

    /// Counts an event stream until the permit is dropped; `None` where the principal has [`STREAMS_PER_PRINCIPAL`].
    pub fn open_stream(&self, principal: &PrincipalName) -> Option<StreamPermit> {
        let mut accounts = self.0.lock();
        let totals = accounts.totals.entry(principal.clone()).or_default();
        if totals.streams >= STREAMS_PER_PRINCIPAL {
            return None;
        }
        totals.streams += 1;
        Some(StreamPermit { quotas: self.clone(), principal: principal.clone() })
    }

    /// A lease was extended. Leases that are not counted here are ignored.
    pub fn extended(&self, lease: impl Into<CountedName>, until: BootTime) {
        self.0.lock().extended(lease.into(), until);
    }

    /// A lease was renewed by the service. One that is not counted here, as another instance granted it, counts from now on
    /// for the principal that `acquired_by` finds.
    pub fn kept(
        &self,
        lease: impl Into<CountedName>,
        until: BootTime,
        acquired_by: impl FnOnce() -> Option<PrincipalName>,
    ) {
        let (mut accounts, name) = (self.0.lock(), lease.into());
        if accounts.leases.contains_key(&accounts.known(name.clone())) {
            accounts.extended(name, until);
        } else if let Some(principal) = acquired_by() {
            accounts.count_lease(name, &principal, Some(until));
        }
    }

    /// The lease has ended.
    pub fn ended(&self, lease: impl Into<CountedName>) {
        let mut accounts = self.0.lock();
        let name = accounts.known(lease.into());
        accounts.remove(&name);
    }

    /// A principal's counted leases and waiting acquires. Leases that expired may still be included.
    pub fn totals(&self, principal: &PrincipalName) -> (usize, usize) {
        let accounts = self.0.lock();
        accounts.totals.get(principal).map_or((0, 0), |t| (t.leases, t.waiting))
    }
}

/// Permits one event stream, until dropped.
#[derive(Debug)]
pub struct StreamPermit {
    quotas: Quotas,
    principal: PrincipalName,
}

impl Drop for StreamPermit {
    fn drop(&mut self) {
        let mut accounts = self.quotas.0.lock();
        if let Some(totals) = accounts.totals.get_mut(&self.principal) {
            totals.streams = totals.streams.saturating_sub(1);
        }
    }
}

/// Counts a lease that a connection renews, until dropped.
#[derive(Debug)]
pub struct HeldQuota {
    quotas: Quotas,
    name: CountedName,
    id: u64,
}

impl Drop for HeldQuota {
    fn drop(&mut self) {
        let mut accounts = self.quotas.0.lock();
        if accounts.leases.get(&self.name).is_some_and(|entry| entry.id == self.id) {
            accounts.remove(&self.name);
        }
    }
}

impl QuotaPermit {
    /// The acquire was granted; the lease counts until `until`.
    pub fn granted(&self, lease: impl Into<CountedName>, until: BootTime) {
        self.quotas.0.lock().count_lease(lease.into(), &self.principal, Some(until));
    }

    /// The acquire was granted to a connection that renews the lease.
    pub fn held(&self, lease: impl Into<CountedName>) -> HeldQuota {
        let name = lease.into();
        let id = self.quotas.0.lock().count_lease(name.clone(), &self.principal, None);
        HeldQuota { quotas: self.quotas.clone(), name, id }
    }
}

impl Drop for QuotaPermit {
    fn drop(&mut self) {
        let mut accounts = self.quotas.0.lock();
        let Some(totals) = accounts.totals.get_mut(&self.principal) else { return };
        totals.pending = totals.pending.saturating_sub(self.count);
        totals.waiting = totals.waiting.saturating_sub(usize::from(self.may_wait));
    }
}

impl Accounts {
    /// Returns the id of the entry.
    fn count_lease(&mut self, name: CountedName, principal: &PrincipalName, until: Option<BootTime>) -> u64 {
        // There is a new lease of this name, so an earlier one has ended.
        self.remove(&name);
        self.last_id += 1;
        self.leases.insert(name, CountedLease { id: self.last_id, principal: principal.clone(), until });
        self.totals.entry(principal.clone()).or_default().leases += 1;
        self.last_id
    }

    fn extended(&mut self, name: CountedName, until: BootTime) {
        let name = self.known(name);
        if let Some(entry) = self.leases.get_mut(&name).filter(|entry| entry.until.is_some()) {
            entry.until = Some(until);
        }
    }

    /// The name under which the lease is counted: a shared one may have been exclusive before.
    fn known(&self, name: CountedName) -> CountedName {
        if self.leases.contains_key(&name) { name } else { CountedName(name.0, None) }
    }

    fn remove(&mut self, name: &CountedName) {
        let Some(lease) = self.leases.remove(name) else { return };
        if let Some(totals) = self.totals.get_mut(&lease.principal) {
            totals.leases = totals.leases.saturating_sub(1);
        }
    }

    /// Stops counting expired leases of a principal, at most once a second: a principal at its limit retries often.
    fn remove_expired(&mut self, principal: &PrincipalName, now: BootTime) -> Totals {
        const EVERY: std::time::Duration = std::time::Duration::from_secs(1);
        let totals = self.totals.entry(principal.clone()).or_default();
        if now.since(totals.swept) < EVERY {
            return *totals;
        }
        let is_over =
            |lease: &CountedLease| lease.principal == *principal && lease.until.is_some_and(|until| until <= now);
        let before = self.leases.len();
        self.leases.retain(|_, lease| !is_over(lease));
        totals.leases = totals.leases.saturating_sub(before - self.leases.len());
        totals.swept = now;
        *totals
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn at(s: u64) -> BootTime {
        BootTime::from_nanos(s * 1_000_000_000)
    }

    fn principal(text: &str) -> PrincipalName {
        PrincipalName::parse(text).expect("valid")
    }

    fn resource(text: &str) -> ResourceName {
        ResourceName::parse(text).expect("valid")
    }

    #[test]
    fn leases_count_until_they_end_expire_or_are_replaced() {
        let quotas = Quotas::default();
        let reserve = |now| quotas.reserve(&principal("ci"), (1, false), 2, 9, at(now));
        reserve(10).expect("below the limit").granted(&resource("a"), at(40));
        reserve(10).expect("below the limit").granted(&resource("b"), at(40));
        assert_eq!(reserve(10).expect_err("at the limit"), QuotaExceeded::Leases(2));
        assert!(quotas.reserve(&principal("ann"), (1, false), 2, 9, at(10)).is_ok());
        quotas.ended(&resource("a"));
        let permit = reserve(11).expect("one lease has ended");
        assert_eq!(reserve(11).expect_err("one acquire is in progress"), QuotaExceeded::Leases(2));
        drop(permit);
        reserve(12).expect("the permit was returned").granted(&resource("b"), at(50));
        assert_eq!(quotas.totals(&principal("ci")), (1, 0));
        let held = reserve(13).expect("below the limit").held(&resource("c"));
        quotas.extended(&resource("b"), at(60));
        assert!(reserve(55).is_err(), "extended");
        assert!(reserve(61).is_ok(), "expired");
        quotas.extended(&resource("c"), at(0));
        assert_eq!(
            quotas.totals(&principal("ci")),
            (1, 0),
            "a lease that a connection renews counts as long as the connection"
        );
        quotas
            .reserve(&principal("ann"), (1, false), 2, 9, at(62))
            .expect("below the limit")
            .granted(&resource("c"), at(90));
        drop(held);
        assert_eq!(
            (quotas.totals(&principal("ci")), quotas.totals(&principal("ann"))),
            ((0, 0), (1, 0)),
            "the resource has a new lease"
        );
    }

    #[test]
    fn an_acquire_of_several_leases_counts_each() {
        let quotas = Quotas::default();
        let reserve = |count| quotas.reserve(&principal("ci"), (count, true), 3, 9, at(1));
        assert_eq!(reserve(4).expect_err("more than the limit"), QuotaExceeded::Leases(3));
        let permit = reserve(2).expect("below the limit");
        assert!(reserve(2).is_err() && reserve(1).is_ok(), "two may be granted");
        permit.granted(&resource("a"), at(40));
        permit.granted(&resource("b"), at(40));
        drop(permit);
        assert_eq!(quotas.totals(&principal("ci")), (2, 0));
        assert!(reserve(2).is_err() && reserve(1).is_ok());
    }

    #[test]
    fn a_lease_that_the_service_keeps_takes_no_place_of_an_acquire_in_progress() {
        let quotas = Quotas::default();
        let reserve = || quotas.reserve(&principal("ci"), (1, false), 2, 9, at(1));
        let _permit = reserve().expect("below the limit");
        quotas.kept(&resource("a"), at(40), || Some(principal("ci")));
        assert_eq!(reserve().expect_err("one lease, one acquire"), QuotaExceeded::Leases(2));
        quotas.kept(&resource("a"), at(50), || panic!("it is counted"));
        assert_eq!(quotas.totals(&principal("ci")), (1, 0));
    }

    #[test]
    fn leases_that_are_held_together_count_each() {
        let (quotas, x) = (Quotas::default(), resource("x"));
        let reserve = || quotas.reserve(&principal("ci"), (1, false), 9, 9, at(1)).expect("below the limit");
        let token = |digit: &str| TokenId::parse(&digit.repeat(8)).expect("digits");
        reserve().granted((&x, token("a")), at(40));
        let held = reserve().held((&x, token("b")));
        assert_eq!(quotas.totals(&principal("ci")), (2, 0));
        quotas.ended((&x, token("a")));
        assert_eq!(quotas.totals(&principal("ci")), (1, 0));
        drop(held);
        assert_eq!(quotas.totals(&principal("ci")), (0, 0));
        // One that was exclusive when it was granted.
        reserve().granted(&x, at(40));
        quotas.extended((&x, token("c")), at(50));
        quotas.ended((&x, token("c")));
        assert_eq!(quotas.totals(&principal("ci")), (0, 0));
    }

    #[test]
    fn waiters_count_while_they_wait() {
        let quotas = Quotas::default();
        let permit = quotas.reserve(&principal("ci"), (1, true), 9, 1, at(1)).expect("below the limit");
        assert_eq!(
            quotas.reserve(&principal("ci"), (1, true), 9, 1, at(1)).expect_err("at the limit"),
            QuotaExceeded::Waiters(1)
        );
        assert!(
            quotas.reserve(&principal("ci"), (1, false), 9, 1, at(1)).is_ok(),
            "a request that does not wait is not counted"
        );
        drop(permit);
        assert!(quotas.reserve(&principal("ci"), (1, true), 9, 1, at(1)).is_ok());
    }

    proptest! {
        /// In every sequence of events the totals equal the number of counted leases.
        #[test]
        fn totals_equal_the_counted_leases(steps in proptest::collection::vec((0_u8..4, 0_u8..3, 0_u8..4), 0..60)) {
            let quotas = Quotas::default();
            let (people, things) = (["a", "b", "c"], ["w", "x", "y", "z"]);
            for (now, (step, person, thing)) in steps.into_iter().enumerate() {
                let now = u64::try_from(now).expect("small");
                let (person, thing) = (principal(people[usize::from(person)]), resource(things[usize::from(thing)]));
                match step {
                    0 | 1 => if let Ok(permit) = quotas.reserve(&person, (1, step == 1), 2, 2, at(now)) {
                        if step == 0 { permit.granted(&thing, at(now + 3)) } else { drop(permit.held(&thing)) }
                    },
                    2 => quotas.ended(&thing),
                    _ => quotas.extended(&thing, at(now + 5)),
                }
                let accounts = quotas.0.lock();
                for person in people.map(principal) {
                    let totals = accounts.totals.get(&person).copied().unwrap_or_default();
                    let entries = accounts.leases.values().filter(|e| e.principal == person).count();
                    prop_assert_eq!((totals.leases, totals.pending, totals.waiting), (entries, 0, 0));
                    prop_assert!(entries <= 2);
                }
            }
        }
    }
}
