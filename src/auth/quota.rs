//! How much each principal has out: leases that it was granted by this instance and that are still
//! running, and requests that wait. Counts per instance, since instances share nothing. A lease
//! counts for whoever acquired it, whoever releases it.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use super::principal::PrincipalName;
use crate::redlock::clock::BootTime;
use crate::types::ResourceName;

/// What all principals have out. Cheap to clone.
#[derive(Debug, Clone, Default)]
pub struct Quotas(Arc<Mutex<Accounts>>);

#[derive(Debug, Default)]
struct Accounts {
    leases: HashMap<ResourceName, Entry>,
    totals: HashMap<PrincipalName, Totals>,
    /// How many entries there ever were.
    drawn: u64,
}

#[derive(Debug)]
struct Entry {
    id: u64,
    whose: PrincipalName,
    /// It does not count after this; `None` while a connection renews it.
    until: Option<BootTime>,
}

#[derive(Debug, Default, Clone, Copy)]
struct Totals {
    leases: usize,
    /// Acquires under way: each may become a lease.
    asking: usize,
    /// Those of them that may wait.
    waiting: usize,
    /// When leases that ran out were last looked for.
    swept: BootTime,
}

/// A place for one acquire that is under way; given back when dropped.
#[derive(Debug)]
pub struct QuotaPermit {
    ledger: Quotas,
    whose: PrincipalName,
    waits: bool,
}

/// Why there is no place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum QuotaExceeded {
    /// So many leases are out, or being asked for.
    Leases(usize),
    /// So many requests wait.
    Waiters(usize),
}

impl Quotas {
    /// Makes room for one acquire of `whose`.
    ///
    /// Errors: [`QuotaExceeded`] where it would be one too many.
    pub fn reserve(
        &self,
        whose: &PrincipalName,
        waits: bool,
        leases_max: usize,
        waiters_max: usize,
        now: BootTime,
    ) -> Result<QuotaPermit, QuotaExceeded> {
        let mut accounts = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let mut totals = accounts.totals.get(whose).copied().unwrap_or_default();
        if waits && totals.waiting >= waiters_max {
            return Err(QuotaExceeded::Waiters(waiters_max));
        }
        if totals.leases + totals.asking >= leases_max {
            totals = accounts.sweep(whose, now);
        }
        if totals.leases + totals.asking >= leases_max {
            return Err(QuotaExceeded::Leases(leases_max));
        }
        let totals = accounts.totals.entry(whose.clone()).or_default();
        totals.asking += 1;
        totals.waiting += usize::from(waits);
        Ok(QuotaPermit { ledger: self.clone(), whose: whose.clone(), waits })
    }

    /// More time for a lease that is known here.
    pub fn extended(&self, resource: &ResourceName, until: BootTime) {
        let mut accounts = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(entry) = accounts.leases.get_mut(resource).filter(|entry| entry.until.is_some()) {
            entry.until = Some(until);
        }
    }

    /// Its lease is over.
    pub fn ended(&self, resource: &ResourceName) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).remove(resource);
    }

    /// Leases of one principal that were not heard to end, and acquires of it that wait.
    pub fn totals(&self, whose: &PrincipalName) -> (usize, usize) {
        let accounts = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        accounts.totals.get(whose).map_or((0, 0), |t| (t.leases, t.waiting))
    }
}

/// A lease that a connection renews; it counts until this is dropped.
#[derive(Debug)]
pub struct HeldQuota {
    ledger: Quotas,
    resource: ResourceName,
    id: u64,
}

impl Drop for HeldQuota {
    fn drop(&mut self) {
        let mut accounts = self.ledger.0.lock().unwrap_or_else(PoisonError::into_inner);
        if accounts.leases.get(&self.resource).is_some_and(|entry| entry.id == self.id) {
            accounts.remove(&self.resource);
        }
    }
}

impl QuotaPermit {
    /// It became a lease that runs until then.
    pub fn granted(self, resource: &ResourceName, until: BootTime) {
        self.enter(resource, Some(until));
    }

    /// It became a lease that a connection renews.
    pub fn held(self, resource: &ResourceName) -> HeldQuota {
        let id = self.enter(resource, None);
        HeldQuota { ledger: self.ledger.clone(), resource: resource.clone(), id }
    }

    fn enter(&self, resource: &ResourceName, until: Option<BootTime>) -> u64 {
        let mut accounts = self.ledger.0.lock().unwrap_or_else(PoisonError::into_inner);
        // A new lease of the resource: whatever was there before is over.
        accounts.remove(resource);
        accounts.drawn += 1;
        let id = accounts.drawn;
        accounts.leases.insert(resource.clone(), Entry { id, whose: self.whose.clone(), until });
        accounts.totals.entry(self.whose.clone()).or_default().leases += 1;
        id
    }
}

impl Drop for QuotaPermit {
    fn drop(&mut self) {
        let mut accounts = self.ledger.0.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(totals) = accounts.totals.get_mut(&self.whose) else { return };
        totals.asking = totals.asking.saturating_sub(1);
        totals.waiting = totals.waiting.saturating_sub(usize::from(self.waits));
    }
}

impl Accounts {
    fn remove(&mut self, resource: &ResourceName) {
        let Some(entry) = self.leases.remove(resource) else { return };
        if let Some(totals) = self.totals.get_mut(&entry.whose) {
            totals.leases = totals.leases.saturating_sub(1);
        }
    }

    /// Forgets leases that ran out, at most once a second: whoever is at its limit asks again and again.
    fn sweep(&mut self, whose: &PrincipalName, now: BootTime) -> Totals {
        const EVERY: std::time::Duration = std::time::Duration::from_secs(1);
        let totals = self.totals.entry(whose.clone()).or_default();
        if now.since(totals.swept) < EVERY {
            return *totals;
        }
        let over = |entry: &Entry| entry.whose == *whose && entry.until.is_some_and(|until| until <= now);
        let before = self.leases.len();
        self.leases.retain(|_, entry| !over(entry));
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

    fn who(text: &str) -> PrincipalName {
        PrincipalName::parse(text).expect("valid")
    }

    fn what(text: &str) -> ResourceName {
        ResourceName::parse(text).expect("valid")
    }

    #[test]
    fn leases_count_until_they_end_run_out_or_are_replaced() {
        let ledger = Quotas::default();
        let enter = |now| ledger.reserve(&who("ci"), false, 2, 9, at(now));
        enter(10).expect("room").granted(&what("a"), at(40));
        enter(10).expect("room").granted(&what("b"), at(40));
        assert_eq!(enter(10).expect_err("full"), QuotaExceeded::Leases(2));
        assert!(ledger.reserve(&who("ann"), false, 2, 9, at(10)).is_ok());
        ledger.ended(&what("a"));
        let place = enter(11).expect("room again");
        assert_eq!(enter(11).expect_err("one is being asked for"), QuotaExceeded::Leases(2));
        drop(place);
        enter(12).expect("it was refused").granted(&what("b"), at(50));
        assert_eq!(ledger.totals(&who("ci")), (1, 0));
        let held = enter(13).expect("room").held(&what("c"));
        ledger.extended(&what("b"), at(60));
        assert!(enter(55).is_err(), "extended");
        assert!(enter(61).is_ok(), "ran out");
        ledger.extended(&what("c"), at(0));
        assert_eq!(ledger.totals(&who("ci")), (1, 0), "a held lease lives as long as its connection");
        ledger.reserve(&who("ann"), false, 2, 9, at(62)).expect("room").granted(&what("c"), at(90));
        drop(held);
        assert_eq!((ledger.totals(&who("ci")), ledger.totals(&who("ann"))), ((0, 0), (1, 0)), "it was replaced");
    }

    #[test]
    fn waiters_count_while_they_wait() {
        let ledger = Quotas::default();
        let place = ledger.reserve(&who("ci"), true, 9, 1, at(1)).expect("room");
        assert_eq!(ledger.reserve(&who("ci"), true, 9, 1, at(1)).expect_err("full"), QuotaExceeded::Waiters(1));
        assert!(ledger.reserve(&who("ci"), false, 9, 1, at(1)).is_ok(), "who does not wait is none");
        drop(place);
        assert!(ledger.reserve(&who("ci"), true, 9, 1, at(1)).is_ok());
    }

    proptest! {
        /// Whatever happens in whatever order, the totals are those of the entries.
        #[test]
        fn totals_are_true(steps in proptest::collection::vec((0_u8..4, 0_u8..3, 0_u8..4), 0..60)) {
            let ledger = Quotas::default();
            let (people, things) = (["a", "b", "c"], ["w", "x", "y", "z"]);
            for (now, (step, person, thing)) in steps.into_iter().enumerate() {
                let now = u64::try_from(now).expect("small");
                let (person, thing) = (who(people[usize::from(person)]), what(things[usize::from(thing)]));
                match step {
                    0 | 1 => if let Ok(place) = ledger.reserve(&person, step == 1, 2, 2, at(now)) {
                        if step == 0 { place.granted(&thing, at(now + 3)) } else { drop(place.held(&thing)) }
                    },
                    2 => ledger.ended(&thing),
                    _ => ledger.extended(&thing, at(now + 5)),
                }
                let accounts = ledger.0.lock().expect("not poisoned");
                for person in people.map(who) {
                    let totals = accounts.totals.get(&person).copied().unwrap_or_default();
                    let entries = accounts.leases.values().filter(|e| e.whose == person).count();
                    prop_assert_eq!((totals.leases, totals.asking, totals.waiting), (entries, 0, 0));
                    prop_assert!(entries <= 2);
                }
            }
        }
    }
}
