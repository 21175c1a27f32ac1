//! Authentication state of the service: the principals in force, the keys of issuers, rate limits, quotas and sessions. A
//! reload of the access file replaces the principals between two requests.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use parking_lot::{Mutex, RwLock};

use super::jwks::KeySet;
use super::jwt::{self, TokenError};
use super::oidc_issuer::KeySource;
use super::principal::{Principal, PrincipalLimits, PrincipalName};
use super::principals::{Credential, IdentifyError, PrincipalStore};
use super::quota::Quotas;
use super::rate_limit::{RateExceeded, RateLimits, RequestClass};
use super::session::Sessions;
use crate::redlock::clock::BootTime;

/// How long after its end a token may still renew and release the leases of its holder.
pub(crate) const LATE_HOLDER_MAX: Duration = Duration::from_hours(24);

/// Identifies callers and counts their use.
#[derive(Debug, Default)]
pub struct Authenticator {
    /// `None`: no authentication is configured, and every caller may do everything.
    store: Option<RwLock<Arc<PrincipalStore>>>,
    /// The limits of principals without their own.
    default_limits: PrincipalLimits,
    rate_limits: Mutex<HashMap<PrincipalName, Arc<RateLimits>>>,
    quotas: Quotas,
    sessions: Sessions,
    issuer_keys: RwLock<HashMap<KeySource, Arc<KeySet>>>,
    /// A token named an unknown key: the issuer may have new keys.
    lacks_key: AtomicBool,
}

impl Authenticator {
    /// Without authentication: every caller may do everything.
    pub fn open() -> Self {
        Self::default()
    }

    /// With authentication: a caller may do only what a rule of its principal allows.
    pub fn with_principals(store: PrincipalStore, default_limits: PrincipalLimits) -> Self {
        Self { store: Some(RwLock::new(Arc::new(store))), default_limits, ..Self::default() }
    }

    /// With sessions that every instance with this secret accepts.
    #[must_use]
    pub fn with_session_secret(self, secret: &[u8]) -> Self {
        Self { sessions: Sessions::with_secret(secret), ..self }
    }

    /// Whether no authentication is configured.
    pub fn is_open(&self) -> bool {
        self.store.is_none()
    }

    /// The principals in force; empty without authentication.
    pub fn store(&self) -> Arc<PrincipalStore> {
        match &self.store {
            Some(store) => Arc::clone(&store.read()),
            None => Arc::default(),
        }
    }

    /// Puts new principals in force, from the next request on. Without authentication it does nothing: that was configured on
    /// purpose.
    pub fn replace(&self, store: PrincipalStore) {
        let Some(current) = &self.store else { return };
        self.rate_limits.lock().retain(|name, _| store.find(name).is_some());
        self.issuer_keys.write().retain(|source, _| store.issuers().iter().any(|issuer| issuer.keys == *source));
        *current.write() = Arc::new(store);
    }

    /// Puts the keys of an issuer in force; `None` removes them.
    pub fn replace_keys(&self, source: &KeySource, keys: Option<KeySet>) {
        match keys {
            Some(keys) => drop(self.issuer_keys.write().insert(source.clone(), Arc::new(keys))),
            None => drop(self.issuer_keys.write().remove(source)),
        }
    }

    /// Whether keys of this source are in force.
    pub fn has_keys(&self, source: &KeySource) -> bool {
        self.issuer_keys.read().contains_key(source)
    }

    /// Whether a token named an unknown key since the last call.
    pub fn take_lacks_key(&self) -> bool {
        self.lacks_key.swap(false, Ordering::Relaxed)
    }

    /// The principal that this credential belongs to. Errors: [`IdentifyError`].
    pub fn identify(&self, credential: &Credential<'_>, wall_ms: u64) -> Result<Arc<Principal>, IdentifyError> {
        self.identify_late(credential, wall_ms, Duration::ZERO)
    }

    /// As [`Self::identify`], for a request that only renews or releases a lease whose secret it has. A token may have expired
    /// within [`LATE_HOLDER_MAX`], because pipelines' tokens live for minutes and their jobs for longer.
    ///
    /// Errors: [`IdentifyError`].
    pub fn identify_holder(&self, credential: &Credential<'_>, wall_ms: u64) -> Result<Arc<Principal>, IdentifyError> {
        self.identify_late(credential, wall_ms, LATE_HOLDER_MAX)
    }

    fn identify_late(
        &self,
        credential: &Credential<'_>,
        wall_ms: u64,
        late: Duration,
    ) -> Result<Arc<Principal>, IdentifyError> {
        match credential {
            Credential::Key(presented) if jwt::is_token(presented) => {
                self.identify_token(presented, wall_ms, late).map_err(IdentifyError::Token)
            }
            _ => self.store().identify(credential, wall_ms),
        }
    }

    fn identify_token(&self, presented: &[u8], wall_ms: u64, late: Duration) -> Result<Arc<Principal>, TokenError> {
        let store = self.store();
        let issuer = jwt::claimed_issuer(presented, store.issuers())?;
        let keys = self.issuer_keys.read().get(&issuer.keys).cloned().ok_or(TokenError::NoKeys)?;
        let verified = jwt::verify(presented, issuer, &keys, wall_ms, late);
        if verified == Err(TokenError::UnknownKey) {
            self.lacks_key.store(true, Ordering::Relaxed);
        }
        store.find_by_claims(issuer, &verified?).cloned().ok_or(TokenError::NoPrincipal)
    }

    /// The principal by the present definition; `None` if it was removed.
    pub fn current(&self, name: &PrincipalName) -> Option<Arc<Principal>> {
        self.store().find(name).cloned()
    }

    /// The limits of a principal, completed by those of the service.
    pub fn limits(&self, principal: &Principal) -> PrincipalLimits {
        principal.limits.or(self.default_limits)
    }

    /// Counts one request against the rate limit of its class. Errors: [`RateExceeded`].
    pub(crate) fn count_request(
        &self,
        principal: &Principal,
        class: RequestClass,
        now: BootTime,
    ) -> Result<(), RateExceeded> {
        let limits = self.limits(principal);
        let Some(per_second) = limits.requests_per_second else { return Ok(()) };
        let buckets = {
            let mut rate_limits = self.rate_limits.lock();
            Arc::clone(rate_limits.entry(principal.name.clone()).or_default())
        };
        buckets.count(class, per_second, limits.leases.unwrap_or(usize::MAX), now)
    }

    /// The principal of this session token; `None` if the session, its key or its principal is gone.
    pub fn session(&self, token: &str, wall_ms: u64) -> Option<Arc<Principal>> {
        self.sessions.find(token, &self.store(), wall_ms)
    }

    /// Sessions of the dashboard.
    pub fn sessions(&self) -> &Sessions {
        &self.sessions
    }

    /// Leases and waiters of all principals.
    pub fn quotas(&self) -> &Quotas {
        &self.quotas
    }
}

#[cfg(test)]
mod tests {
    use super::super::access_file::parse;
    use super::super::api_key::KeyHash;
    use super::*;

    fn store(key: &str, more: &str) -> PrincipalStore {
        let hash = KeyHash::of(key.as_bytes()).hex();
        parse(&format!("[[principal]]\nname = \"ci\"\nkeys = [{{ sha256 = \"{hash}\" }}]\n{more}")).expect("good")
    }

    fn is_accepted(auth: &Authenticator, key: &str) -> bool {
        auth.identify(&Credential::Key(key.as_bytes()), 0).is_ok()
    }

    #[test]
    fn new_principals_are_in_force_at_once_and_without_authentication_there_are_none() {
        let auth = Authenticator::with_principals(store("one", ""), PrincipalLimits::default());
        assert!(!auth.is_open() && is_accepted(&auth, "one") && !is_accepted(&auth, "two"));
        auth.replace(store("two", ""));
        assert!(!is_accepted(&auth, "one") && is_accepted(&auth, "two"));
        auth.replace(PrincipalStore::default());
        assert!(!auth.is_open() && !is_accepted(&auth, "two"));
        let open = Authenticator::open();
        open.replace(store("one", ""));
        assert!(open.is_open() && !is_accepted(&open, "one"));
    }

    #[test]
    fn requests_are_counted_for_each_principal_and_the_count_survives_a_reload() {
        let limits = PrincipalLimits { requests_per_second: Some(1), ..PrincipalLimits::default() };
        let auth = Authenticator::with_principals(store("one", ""), limits);
        let (ci, now) = (auth.store().principals()[0].clone(), BootTime::from_nanos(1));
        let count =
            |auth: &Authenticator, ci: &Principal, now| auth.count_request(ci, RequestClass::Other, now).is_ok();
        let passed = (0..10).filter(|_| count(&auth, &ci, now)).count();
        assert_eq!(passed, 2);
        auth.replace(store("two", ""));
        assert!(!count(&auth, &ci, now));
        auth.replace(store("two", "requests_per_second = 1000"));
        let ci = auth.current(&ci.name).expect("still defined");
        assert!(!count(&auth, &ci, now), "earlier requests still count");
        assert!(count(&auth, &ci, now.plus(Duration::from_secs(1))));
    }
}
