//! Sessions of the dashboard: who logged in with which key, until when. Kept in this process only, by
//! the hash of a random word that the browser has: a restart ends them, and another instance asks
//! again. Time comes in; knows no cookie.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use super::key::{KEY_PREFIX, KeyHash, draw_text};
use super::principal::{KeyEntry, Principal, PrincipalName};
use super::principals::PrincipalStore;
use crate::redlock::clock::BootTime;
use crate::redlock::entropy::Entropy;

/// How long a session lasts: a working day; then the key is asked for again.
pub const SESSION_LIFE: Duration = Duration::from_hours(10);
/// The most sessions at a time; beyond it the one that ends first goes.
pub const SESSIONS_MAX: usize = 1_000;

/// What a browser brings. `Debug` hides it.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct SessionToken(String);

impl SessionToken {
    /// For the cookie.
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
    /// Begins one for whoever has just shown this key.
    pub fn begin(&self, principal: &Principal, key: KeyHash, now: BootTime, entropy: &impl Entropy) -> SessionToken {
        let word = SessionToken(draw_text(entropy));
        let mut sessions = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        sessions.retain(|_, session| session.until > now);
        if sessions.len() >= SESSIONS_MAX
            && let Some(first) = sessions.iter().min_by_key(|(_, s)| s.until).map(|(id, _)| id.clone())
        {
            sessions.remove(&first);
        }
        let session = Session { principal: principal.name.clone(), key, until: now.plus(SESSION_LIFE) };
        sessions.insert(id(&word.0), session);
        word
    }

    /// Whose it is, by the rules of now: a session ends with its time, and with the key that began it.
    pub fn find(&self, token: &str, store: &PrincipalStore, now: BootTime, wall_ms: u64) -> Option<Arc<Principal>> {
        // An API key in the cookie's place is never one.
        if token.starts_with(KEY_PREFIX) {
            return None;
        }
        let sessions = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let session = sessions.get(&id(token)).filter(|session| session.until > now)?;
        let principal = store.find(&session.principal)?;
        let is_live = |k: &KeyEntry| k.hash == session.key && !k.has_expired(wall_ms);
        principal.keys.iter().any(is_live).then(|| Arc::clone(principal))
    }

    /// Ends it.
    pub fn end(&self, word: &str) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).remove(&id(word));
    }
}

/// What a session is kept by: finding it tells nothing of words that are nearly right.
fn id(word: &str) -> String {
    KeyHash::of(word.as_bytes()).hex()
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
    fn a_session_ends_with_its_time_its_key_and_on_request() {
        let (sessions, mut principals) = (Sessions::default(), store(""));
        let ann = principals.principals()[0].clone();
        let begin = || sessions.begin(&ann, KeyHash::of(b"k"), at(1), &SystemEntropy);
        let (word, other) = (begin(), begin());
        assert!(word != other && !format!("{word:?}").contains(word.reveal()));
        let found = |word: &SessionToken, s, principals: &PrincipalStore| {
            sessions.find(word.reveal(), principals, at(s), 1_000).is_some()
        };
        let life = SESSION_LIFE.as_secs();
        assert!(found(&word, 2, &principals) && found(&word, life, &principals));
        assert!(!found(&word, life + 1, &principals));
        sessions.end(word.reveal());
        assert!(!found(&word, 2, &principals) && found(&other, 2, &principals));
        for wrong in ["", "k", "rlk_x", &word.reveal()[1..], &KeyHash::of(other.reveal().as_bytes()).hex()] {
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
    fn there_are_never_more_than_the_bound() {
        let (sessions, principals) = (Sessions::default(), store(""));
        let ann = principals.principals()[0].clone();
        let mut words = Vec::new();
        for s in 0..=u64::try_from(SESSIONS_MAX).expect("small") {
            words.push(sessions.begin(&ann, KeyHash::of(b"k"), at(s), &SystemEntropy));
        }
        assert_eq!(sessions.0.lock().expect("not poisoned").len(), SESSIONS_MAX);
        let found = |word: &SessionToken| sessions.find(word.reveal(), &principals, at(2_000), 0).is_some();
        assert!(!found(&words[0]) && words[1..].iter().all(found));
    }
}
