//! Quotas: how many leases each principal holds and how many of its requests wait. Counted per instance, since instances share no
//! state. A lease counts for the principal that acquired it, whoever releases it.

use std::sync::Arc;

use parking_lot::Mutex;

use super::principal::PrincipalName;
use crate::keyed_maps::KeyedMap;
use crate::redlock::clock::BootTime;
use crate::types::{Mode, ResourceName, TokenId};

/// Maximum number of event streams of one principal, out of those that an instance has for all.
pub(crate) const STREAMS_PER_PRINCIPAL: usize = 64;

/// Leases, waiters and event streams of all principals. Cheap to clone.
#[derive(Debug, Clone, Default)]
pub struct Quotas(Arc<Mutex<Accounts>>);

/// Names a counted lease by its resource and its token. A later exclusive lease replaces the one before, whose end this instance
/// may not have seen.
#[derive(Debug, Clone)]
pub struct CountedName {
    resource: ResourceName,
    /// `None`: the exclusive lease, with any token.
    token: Option<TokenId>,
    is_exclusive: bool,
}

/// The key of a counted lease: for an exclusive one, only its resource.
type Entry = (ResourceName, Option<TokenId>);

impl CountedName {
    /// The name of a lease with this mode.
    pub fn of(resource: &ResourceName, token: TokenId, mode: Mode) -> Self {
        Self { resource: resource.clone(), token: Some(token), is_exclusive: mode == Mode::Exclusive }
    }

    fn entry(&self) -> Entry {
        (self.resource.clone(), if self.is_exclusive { None } else { self.token.clone() })
    }
}

/// The exclusive lease, with any token.
impl From<&ResourceName> for CountedName {
    fn from(resource: &ResourceName) -> Self {
        Self { resource: resource.clone(), token: None, is_exclusive: true }
    }
}

/// The lease of this token, however it shares the resource.
impl From<(&ResourceName, TokenId)> for CountedName {
    fn from((resource, token): (&ResourceName, TokenId)) -> Self {
        Self { resource: resource.clone(), token: Some(token), is_exclusive: false }
    }
}

#[derive(Debug, Default)]
struct Accounts {
    leases: KeyedMap<Entry, CountedLease>,
    totals: KeyedMap<PrincipalName, Totals>,
    /// The id of the last counted lease.
    last_id: u64,
}

#[derive(Debug)]
struct CountedLease {
    id: u64,
    principal: PrincipalName,
    token: Option<TokenId>,
    /// The lease counts until this time; `None` while a connection renews it.
    until: Option<BootTime>,
}

#[derive(Debug, Default, Clone, Copy)]
struct Totals {
    leases: usize,
    /// Acquires in progress, each of which may become a lease.
    pending: usize,
    /// The acquires in progress that may wait.
    waiting: usize,
    /// Open event streams.
    streams: usize,
    /// Requests that wait for a change of a ticket.
    polls: usize,
    /// When expired leases were last removed.
    swept: BootTime,
}

/// Permits one acquire, and the requests that take its place in the queue again. When dropped, it returns to the quota.
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

    /// Counts a ticket of `count` leases that another instance had admitted, even beyond the principal's limit here.
    pub fn taken_over(&self, principal: &PrincipalName, count: usize) -> QuotaPermit {
        let mut accounts = self.0.lock();
        let totals = accounts.totals.entry(principal.clone()).or_default();
        totals.pending += count;
        totals.waiting += 1;
        QuotaPermit { quotas: self.clone(), principal: principal.clone(), may_wait: true, count }
    }

    /// Counts an event stream until the permit is dropped; `None` if the principal has [`STREAMS_PER_PRINCIPAL`].
    pub fn open_stream(&self, principal: &PrincipalName) -> Option<StreamPermit> {
        self.open(principal, StreamKind::Events, STREAMS_PER_PRINCIPAL)
    }

    /// Counts a request that waits for a change of a ticket, until the permit is dropped; `None` if the principal has `max`.
    pub fn open_poll(&self, principal: &PrincipalName, max: usize) -> Option<StreamPermit> {
        self.open(principal, StreamKind::TicketPoll, max)
    }

    fn open(&self, principal: &PrincipalName, kind: StreamKind, max: usize) -> Option<StreamPermit> {
        let mut accounts = self.0.lock();
        let count = kind.count(accounts.totals.entry(principal.clone()).or_default());
        if *count >= max {
            return None;
        }
        *count += 1;
        Some(StreamPermit { quotas: self.clone(), principal: principal.clone(), kind })
    }

    /// Records the extension of a lease. Leases that are not counted here are ignored.
    pub fn extended(&self, lease: impl Into<CountedName>, until: BootTime) {
        self.0.lock().extended(&lease.into(), until);
    }

    /// Records that the service renewed a lease. If another instance granted it, so that it is not counted here, it counts from
    /// now on for the principal that `acquired_by` finds.
    pub fn kept(
        &self,
        lease: impl Into<CountedName>,
        until: BootTime,
        acquired_by: impl FnOnce() -> Option<PrincipalName>,
    ) {
        let (mut accounts, name) = (self.0.lock(), lease.into());
        if accounts.known(&name).is_some() {
            accounts.extended(&name, until);
        } else if let Some(principal) = acquired_by() {
            accounts.count_lease(&name, &principal, Some(until));
        }
    }

    /// Records the end of the lease.
    pub fn ended(&self, lease: impl Into<CountedName>) {
        let mut accounts = self.0.lock();
        if let Some(entry) = accounts.known(&lease.into()) {
            accounts.remove(&entry);
        }
    }

    /// How many of these resources the principal's counted leases with this token already cover: a repeated request needs no
    /// further leases.
    pub fn already_counted(&self, principal: &PrincipalName, resources: &[ResourceName], token: &TokenId) -> usize {
        let accounts = self.0.lock();
        let is_counted = |resource: &&ResourceName| {
            let entry = accounts.known(&CountedName::from((*resource, token.clone())));
            entry.and_then(|entry| accounts.leases.get(&entry)).is_some_and(|lease| lease.principal == *principal)
        };
        resources.iter().filter(is_counted).count()
    }

    /// A principal's counted leases and waiting acquires. Leases that expired may still be included.
    pub fn totals(&self, principal: &PrincipalName) -> (usize, usize) {
        let accounts = self.0.lock();
        accounts.totals.get(principal).map_or((0, 0), |t| (t.leases, t.waiting))
    }
}

#[derive(Debug, Clone, Copy)]
enum StreamKind {
    Events,
    TicketPoll,
}

impl StreamKind {
    fn count(self, totals: &mut Totals) -> &mut usize {
        match self {
            Self::Events => &mut totals.streams,
            Self::TicketPoll => &mut totals.polls,
        }
    }
}

/// Permits one long answer, until dropped.
#[derive(Debug)]
pub struct StreamPermit {
    quotas: Quotas,
    principal: PrincipalName,
    kind: StreamKind,
}

impl Drop for StreamPermit {
    fn drop(&mut self) {
        let mut accounts = self.quotas.0.lock();
        if let Some(totals) = accounts.totals.get_mut(&self.principal) {
            let count = self.kind.count(totals);
            *count = count.saturating_sub(1);
        }
    }
}

/// Counts a lease that a connection renews, until dropped.
#[derive(Debug)]
pub struct HeldQuota {
    quotas: Quotas,
    entry: Entry,
    id: u64,
}

impl Drop for HeldQuota {
    fn drop(&mut self) {
        let mut accounts = self.quotas.0.lock();
        if accounts.leases.get(&self.entry).is_some_and(|lease| lease.id == self.id) {
            accounts.remove(&self.entry);
        }
    }
}

impl QuotaPermit {
    /// Records that the acquire was granted; the lease counts until `until`.
    pub fn granted(&self, lease: impl Into<CountedName>, until: BootTime) {
        self.quotas.0.lock().count_lease(&lease.into(), &self.principal, Some(until));
    }

    /// Records that the acquire was granted to a connection that renews the lease.
    pub fn held(&self, lease: impl Into<CountedName>) -> HeldQuota {
        let name = lease.into();
        let id = self.quotas.0.lock().count_lease(&name, &self.principal, None);
        HeldQuota { quotas: self.quotas.clone(), entry: name.entry(), id }
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
    fn count_lease(&mut self, name: &CountedName, principal: &PrincipalName, until: Option<BootTime>) -> u64 {
        let entry = name.entry();
        if let Some(present) = self.leases.get(&entry)
            && present.until.is_none()
            && until.is_some()
            && present.token.is_some()
            && present.token == name.token
        {
            // The grant was repeated for another request: the connection still renews the lease.
            return present.id;
        }
        // A new lease has this name, so an earlier one has ended.
        self.remove(&entry);
        self.last_id += 1;
        let (principal, token) = (principal.clone(), name.token.clone());
        self.totals.entry(principal.clone()).or_default().leases += 1;
        self.leases.insert(entry, CountedLease { id: self.last_id, principal, token, until });
        self.last_id
    }

    fn extended(&mut self, name: &CountedName, until: BootTime) {
        let entry = self.known(name).and_then(|entry| self.leases.get_mut(&entry));
        if let Some(lease) = entry.filter(|lease| lease.until.is_some()) {
            lease.until = Some(until);
        }
    }

    /// The key under which this lease counts: a shared lease may have been exclusive before. Other tokens do not match.
    fn known(&self, name: &CountedName) -> Option<Entry> {
        if self.leases.contains_key(&name.entry()) && !name.is_exclusive {
            return Some(name.entry());
        }
        let exclusive = (name.resource.clone(), None);
        let present = self.leases.get(&exclusive)?;
        let is_same = name.token.is_none() || present.token.is_none() || present.token == name.token;
        is_same.then_some(exclusive)
    }

    fn remove(&mut self, entry: &Entry) {
        let Some(lease) = self.leases.remove(entry) else { return };
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
    fn a_ticket_that_is_taken_over_counts_also_where_that_is_too_much() {
        let quotas = Quotas::default();
        let (own, reserve) = (principal("ci"), || quotas.reserve(&principal("ci"), (1, true), 9, 1, at(10)));
        let first = reserve().expect("below the limit");
        let taken_over = quotas.taken_over(&own, 2);
        drop(first);
        assert_eq!(reserve().expect_err("it counts"), QuotaExceeded::Waiters(1));
        drop(taken_over);
        drop(reserve().expect("it counts no more"));
        assert_eq!(quotas.totals(&own), (0, 0));
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
    fn another_tokens_end_and_a_repeated_grant_leave_a_lease_counted() {
        let (quotas, x) = (Quotas::default(), resource("x"));
        let reserve = || quotas.reserve(&principal("ci"), (1, false), 9, 9, at(1)).expect("below the limit");
        let token = |digit: &str| TokenId::parse(&digit.repeat(8)).expect("digits");
        let count = || quotas.totals(&principal("ci")).0;
        let exclusive = |digit: &str| CountedName::of(&x, token(digit), Mode::Exclusive);
        reserve().granted(exclusive("a"), at(40));
        // Such as that of a ticket that waited for the same name.
        quotas.ended((&x, token("b")));
        assert_eq!(count(), 1);
        assert_eq!(quotas.already_counted(&principal("ci"), &[x.clone(), resource("y")], &token("a")), 1);
        assert_eq!(quotas.already_counted(&principal("ci"), std::slice::from_ref(&x), &token("b")), 0);
        assert_eq!(quotas.already_counted(&principal("ann"), std::slice::from_ref(&x), &token("a")), 0);
        quotas.ended((&x, token("a")));
        assert_eq!(count(), 0);
        for mode in [Mode::Exclusive, Mode::Shared] {
            let name = || CountedName::of(&x, token("c"), mode);
            let held = reserve().held(name());
            reserve().granted(name(), at(2));
            assert_eq!(
                quotas.reserve(&principal("ci"), (1, false), 1, 9, at(50)).err(),
                Some(QuotaExceeded::Leases(1))
            );
            drop(held);
            assert_eq!(count(), 0);
        }
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
