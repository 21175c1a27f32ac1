//! Where it is decided who gets in: the book in force, the limits, and what everybody has out. The
//! one thing here that changes: a new book replaces the old one between two requests. Knows no HTTP.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::Duration;

use super::principal::{Principal, PrincipalLimits, PrincipalName};
use super::principals::{Credential, IdentifyError, PrincipalStore};
use super::quota::Quotas;
use super::rate_limit::TokenBucket;
use super::session::Sessions;
use crate::redlock::clock::BootTime;

/// Who gets in.
#[derive(Debug, Default)]
pub struct Authenticator {
    /// `None`: there are no keys, and everybody may do everything.
    store: Option<RwLock<Arc<PrincipalStore>>>,
    /// For those whose own entry says nothing.
    limits: PrincipalLimits,
    buckets: Mutex<HashMap<PrincipalName, Arc<TokenBucket>>>,
    quotas: Quotas,
    sessions: Sessions,
}

impl Authenticator {
    /// Without keys: everybody may do everything.
    pub fn open() -> Self {
        Self::default()
    }

    /// With keys: nobody may do anything that the book does not allow.
    pub fn with_principals(store: PrincipalStore, limits: PrincipalLimits) -> Self {
        Self { store: Some(RwLock::new(Arc::new(store))), limits, ..Self::default() }
    }

    /// Whether there are no keys.
    pub fn is_open(&self) -> bool {
        self.store.is_none()
    }

    /// The book in force; empty where the gate is open.
    pub fn store(&self) -> Arc<PrincipalStore> {
        match &self.store {
            Some(store) => Arc::clone(&store.read().unwrap_or_else(PoisonError::into_inner)),
            None => Arc::default(),
        }
    }

    /// From the next request on this book is in force. An open gate stays open: it was made so on purpose.
    pub fn replace(&self, store: PrincipalStore) {
        let Some(current) = &self.store else { return };
        self.buckets.lock().unwrap_or_else(PoisonError::into_inner).retain(|name, _| store.find(name).is_some());
        *current.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(store);
    }

    /// Who presents this. Errors: [`IdentifyError`].
    pub fn identify(&self, credential: &Credential<'_>, wall_ms: u64) -> Result<Arc<Principal>, IdentifyError> {
        self.store().identify(credential, wall_ms)
    }

    /// The principal as it is written down now; `None` where it is not any more.
    pub fn current(&self, name: &PrincipalName) -> Option<Arc<Principal>> {
        self.store().find(name).cloned()
    }

    /// Its limits, with those of the service where it has none of its own.
    pub fn limits(&self, principal: &Principal) -> PrincipalLimits {
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

    /// The principal that this session token belongs to; `None` where the session, its key or its principal is gone.
    pub fn session(&self, token: &str, now: BootTime, wall_ms: u64) -> Option<Arc<Principal>> {
        self.sessions.find(token, &self.store(), now, wall_ms)
    }

    /// Who is logged in to the pages.
    pub fn sessions(&self) -> &Sessions {
        &self.sessions
    }

    /// What everybody has out.
    pub fn quotas(&self) -> &Quotas {
        &self.quotas
    }
}

#[cfg(test)]
mod tests {
    use super::super::access_file::parse;
    use super::super::key::KeyHash;
    use super::*;

    fn store(key: &str, more: &str) -> PrincipalStore {
        let hash = KeyHash::of(key.as_bytes()).hex();
        parse(&format!("[[principal]]\nname = \"ci\"\nkeys = [{{ sha256 = \"{hash}\" }}]\n{more}")).expect("good")
    }

    fn gets_in(gate: &Authenticator, key: &str) -> bool {
        gate.identify(&Credential::Key(key.as_bytes()), 0).is_ok()
    }

    #[test]
    fn a_new_book_is_in_force_at_once_and_an_open_gate_has_none() {
        let gate = Authenticator::with_principals(store("one", ""), PrincipalLimits::default());
        assert!(!gate.is_open() && gets_in(&gate, "one") && !gets_in(&gate, "two"));
        gate.replace(store("two", ""));
        assert!(!gets_in(&gate, "one") && gets_in(&gate, "two"));
        gate.replace(PrincipalStore::default());
        assert!(!gate.is_open() && !gets_in(&gate, "two"));
        let open = Authenticator::open();
        open.replace(store("one", ""));
        assert!(open.is_open() && !gets_in(&open, "one"));
    }

    #[test]
    fn requests_are_counted_for_each_principal_and_the_count_outlives_a_reload() {
        let limits = PrincipalLimits { requests_per_second: Some(1), ..PrincipalLimits::default() };
        let gate = Authenticator::with_principals(store("one", ""), limits);
        let (ci, now) = (gate.store().principals()[0].clone(), BootTime::from_nanos(1));
        let passed = (0..10).filter(|_| gate.count_request(&ci, now).is_ok()).count();
        assert_eq!(passed, 2);
        gate.replace(store("two", ""));
        assert!(gate.count_request(&ci, now).is_err());
        gate.replace(store("two", "requests_per_second = 1000"));
        let ci = gate.current(&ci.name).expect("still there");
        assert!(gate.count_request(&ci, now).is_err(), "the debt is paid first");
        assert!(gate.count_request(&ci, now.plus(Duration::from_secs(1))).is_ok());
    }
}
