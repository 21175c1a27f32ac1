//! Where it is decided who gets in: the book in force, the limits, and what everybody has out. The
//! one thing here that changes: a new book replaces the old one between two requests. Knows no HTTP.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::Duration;

use super::principal::{Limits, Principal, PrincipalName};
use super::principals::{Credential, PrincipalStore, Unknown};
use super::quota::Quotas;
use super::rate_limit::Bucket;
use super::session::Sessions;
use crate::redlock::clock::BootTime;

/// Who gets in.
#[derive(Debug, Default)]
pub struct Authenticator {
    /// `None`: there are no keys, and everybody may do everything.
    book: Option<RwLock<Arc<PrincipalStore>>>,
    /// For those whose own entry says nothing.
    limits: Limits,
    buckets: Mutex<HashMap<PrincipalName, Arc<Bucket>>>,
    ledger: Quotas,
    sessions: Sessions,
}

impl Authenticator {
    /// Without keys: everybody may do everything.
    pub fn open() -> Self {
        Self::default()
    }

    /// With keys: nobody may do anything that the book does not allow.
    pub fn closed(book: PrincipalStore, limits: Limits) -> Self {
        Self { book: Some(RwLock::new(Arc::new(book))), limits, ..Self::default() }
    }

    /// Whether there are no keys.
    pub fn is_open(&self) -> bool {
        self.book.is_none()
    }

    /// The book in force; empty where the gate is open.
    pub fn book(&self) -> Arc<PrincipalStore> {
        match &self.book {
            Some(book) => Arc::clone(&book.read().unwrap_or_else(PoisonError::into_inner)),
            None => Arc::default(),
        }
    }

    /// From the next request on this book is in force. An open gate stays open: it was made so on purpose.
    pub fn replace(&self, book: PrincipalStore) {
        let Some(current) = &self.book else { return };
        self.buckets.lock().unwrap_or_else(PoisonError::into_inner).retain(|name, _| book.find(name).is_some());
        *current.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(book);
    }

    /// Who presents this. Errors: [`Unknown`].
    pub fn identify(&self, credential: &Credential<'_>, wall_ms: u64) -> Result<Arc<Principal>, Unknown> {
        self.book().identify(credential, wall_ms)
    }

    /// The principal as it is written down now; `None` where it is not any more.
    pub fn current(&self, name: &PrincipalName) -> Option<Arc<Principal>> {
        self.book().find(name).cloned()
    }

    /// Its limits, with those of the service where it has none of its own.
    pub fn limits(&self, principal: &Principal) -> Limits {
        principal.limits.or(self.limits)
    }

    /// Counts one request. Errors: how long until there may be another.
    pub fn count_request(&self, principal: &Principal, now: BootTime) -> Result<(), Duration> {
        let Some(per_second) = self.limits(principal).requests_per_second else { return Ok(()) };
        let bucket = {
            let mut buckets = self.buckets.lock().unwrap_or_else(PoisonError::into_inner);
            Arc::clone(buckets.entry(principal.name.clone()).or_default())
        };
        bucket.take(per_second, now)
    }

    /// Who is logged in to the pages.
    pub fn sessions(&self) -> &Sessions {
        &self.sessions
    }

    /// What everybody has out.
    pub fn ledger(&self) -> &Quotas {
        &self.ledger
    }
}

#[cfg(test)]
mod tests {
    use super::super::access_file::parse;
    use super::super::key::KeyHash;
    use super::*;

    fn book(key: &str, more: &str) -> PrincipalStore {
        let hash = KeyHash::of(key.as_bytes()).hex();
        parse(&format!("[[principal]]\nname = \"ci\"\nkeys = [{{ sha256 = \"{hash}\" }}]\n{more}")).expect("good")
    }

    fn gets_in(gate: &Authenticator, key: &str) -> bool {
        gate.identify(&Credential::Key(key.as_bytes()), 0).is_ok()
    }

    #[test]
    fn a_new_book_is_in_force_at_once_and_an_open_gate_has_none() {
        let gate = Authenticator::closed(book("one", ""), Limits::default());
        assert!(!gate.is_open() && gets_in(&gate, "one") && !gets_in(&gate, "two"));
        gate.replace(book("two", ""));
        assert!(!gets_in(&gate, "one") && gets_in(&gate, "two"));
        gate.replace(PrincipalStore::default());
        assert!(!gate.is_open() && !gets_in(&gate, "two"));
        let open = Authenticator::open();
        open.replace(book("one", ""));
        assert!(open.is_open() && !gets_in(&open, "one"));
    }

    #[test]
    fn requests_are_counted_for_each_principal_and_the_count_outlives_a_reload() {
        let limits = Limits { requests_per_second: Some(1), ..Limits::default() };
        let gate = Authenticator::closed(book("one", ""), limits);
        let (ci, now) = (gate.book().principals()[0].clone(), BootTime::from_nanos(1));
        let passed = (0..10).filter(|_| gate.count_request(&ci, now).is_ok()).count();
        assert_eq!(passed, 2);
        gate.replace(book("two", ""));
        assert!(gate.count_request(&ci, now).is_err());
        gate.replace(book("two", "requests_per_second = 1000"));
        let ci = gate.current(&ci.name).expect("still there");
        assert!(gate.count_request(&ci, now).is_err(), "the debt is paid first");
        assert!(gate.count_request(&ci, now.plus(Duration::from_secs(1))).is_ok());
    }
}
