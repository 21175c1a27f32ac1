//! Sessions of the dashboard: which principal logged in, with which key, until when. Kept in this process
//! only, by the hash of a random token: a restart ends them, and another instance asks for a login again.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;

use super::key::{KEY_PREFIX, KeyHash, random_text};
use super::principal::{KeyEntry, Principal, PrincipalName};
use super::principals::PrincipalStore;
use crate::redlock::clock::BootTime;
use crate::redlock::entropy::Entropy;

/// How long a session lasts: a working day.
pub(crate) const SESSION_LIFE: Duration = Duration::from_hours(10);
/// Maximum number of sessions; beyond it the session that ends first is removed.
pub(crate) const SESSIONS_MAX: usize = 1_000;

/// The secret of a session, which the browser has in a cookie. `Debug` hides it.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct SessionToken(String);

impl SessionToken {
    /// The token itself, for the cookie.
    pub fn reveal(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for SessionToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SessionToken(…)")
    }
}

/// All sessions of this instance. Cheap to clone.
#[derive(Debug, Clone, Default)]
pub struct Sessions(Arc<Mutex<HashMap<String, Session>>>);

#[derive(Debug)]
struct Session {
    principal: PrincipalName,
    key: KeyHash,
    until: BootTime,
}

impl Sessions {
    /// Begins a session for a principal that has just logged in with this key.
    pub fn begin(&self, principal: &Principal, key: KeyHash, now: BootTime, entropy: &impl Entropy) -> SessionToken {
        let token = SessionToken(random_text(entropy));
        let mut sessions = self.0.lock();
        sessions.retain(|_, session| session.until > now);
        if sessions.len() >= SESSIONS_MAX
            && let Some(first) = sessions.iter().min_by_key(|(_, s)| s.until).map(|(id, _)| id.clone())
        {
            sessions.remove(&first);
        }
        let session = Session { principal: principal.name.clone(), key, until: now.plus(SESSION_LIFE) };
        sessions.insert(id(&token.0), session);
        token
    }

    /// The principal of a session, with its present rules. A session ends after [`SESSION_LIFE`], and when the
    /// key that began it expires or is removed.
    pub fn find(&self, token: &str, store: &PrincipalStore, now: BootTime, wall_ms: u64) -> Option<Arc<Principal>> {
        // An API key in place of the token is never a session.
        if token.starts_with(KEY_PREFIX) {
            return None;
        }
        let sessions = self.0.lock();
        let session = sessions.get(&id(token)).filter(|session| session.until > now)?;
        let principal = store.find(&session.principal)?;
        let is_live = |k: &KeyEntry| k.hash == session.key && !k.has_expired(wall_ms);
        principal.keys.iter().any(is_live).then(|| Arc::clone(principal))
    }

    /// Ends a session.
    pub fn end(&self, token: &str) {
        self.0.lock().remove(&id(token));
    }
}

/// The key of the map: with a hash, the time of a look-up reveals nothing of a token.
fn id(token: &str) -> String {
    KeyHash::of(token.as_bytes()).hex()
}

#[cfg(test)]
mod tests {
    use super::super::access_file::parse;
    use super::*;
    use crate::redlock::entropy::SystemEntropy;

    fn store(expires: &str) -> PrincipalStore {
        let hash = KeyHash::of(b"k").hex();
        parse(&format!("[[principal]]\nname = \"ann\"\nkeys = [{{ sha256 = \"{hash}\"{expires} }}]")).expect("good")
    }

    fn at(s: u64) -> BootTime {
        BootTime::from_nanos(s * 1_000_000_000)
    }

    #[test]
    fn a_session_ends_with_its_lifetime_its_key_its_principal_and_on_logout() {
        let (sessions, mut principals) = (Sessions::default(), store(""));
        let ann = principals.principals()[0].clone();
        let begin = || sessions.begin(&ann, KeyHash::of(b"k"), at(1), &SystemEntropy);
        let (token, other) = (begin(), begin());
        assert!(token != other && !format!("{token:?}").contains(token.reveal()));
        let found = |token: &SessionToken, s, principals: &PrincipalStore| {
            sessions.find(token.reveal(), principals, at(s), 1_000).is_some()
        };
        let life = SESSION_LIFE.as_secs();
        assert!(found(&token, 2, &principals) && found(&token, life, &principals));
        assert!(!found(&token, life + 1, &principals));
        sessions.end(token.reveal());
        assert!(!found(&token, 2, &principals) && found(&other, 2, &principals));
        for wrong in ["", "k", "rlk_x", &token.reveal()[1..], &KeyHash::of(other.reveal().as_bytes()).hex()] {
            assert!(sessions.find(wrong, &principals, at(2), 0).is_none(), "{wrong}");
        }
        principals = store(", expires = 1970-01-01T00:00:01Z");
        assert!(!found(&other, 2, &principals), "its key has expired");
        principals = store("");
        assert!(found(&other, 2, &principals));
        principals = parse("").expect("an empty file");
        assert!(!found(&other, 2, &principals), "its principal is gone");
    }

    #[test]
    fn the_session_that_ends_first_is_removed_beyond_the_maximum() {
        let (sessions, principals) = (Sessions::default(), store(""));
        let ann = principals.principals()[0].clone();
        let mut tokens = Vec::new();
        for s in 0..=u64::try_from(SESSIONS_MAX).expect("small") {
            tokens.push(sessions.begin(&ann, KeyHash::of(b"k"), at(s), &SystemEntropy));
        }
        assert_eq!(sessions.0.lock().len(), SESSIONS_MAX);
        let found = |token: &SessionToken| sessions.find(token.reveal(), &principals, at(2_000), 0).is_some();
        assert!(!found(&tokens[0]) && tokens[1..].iter().all(found));
    }
}
