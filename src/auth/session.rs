//! Sessions of the dashboard: the principal, its key, and the end. A session is a signed cookie, so that every instance with the
//! same secret accepts it and a restart does not end it. Only log-outs are stored here.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use parking_lot::Mutex;
use ring::hmac;

use super::api_key::{KeyHash, random_text};
use super::principal::{KeyEntry, Principal, PrincipalName};
use super::principals::PrincipalStore;
use crate::redlock::random::{Entropy, SystemEntropy};

/// How long a session lasts: a working day.
pub(crate) const SESSION_LIFE: Duration = Duration::from_hours(10);
/// Maximum number of logged-out sessions of one principal that are remembered individually until their end. Beyond it, all of the
/// principal's sessions so far are ended, since no ended cookie may be accepted again.
pub(crate) const ENDED_SESSIONS_MAX: usize = 100;

/// The secret of a session, in a cookie of the browser. `Debug` hides it.
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

/// Begins, finds and ends sessions. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Sessions {
    secret: hmac::Key,
    /// By principal; only principals with an ended session have an entry.
    ended: Arc<Mutex<HashMap<String, EndedSessions>>>,
}

/// The ended sessions of one principal. Units: milliseconds since 1970.
#[derive(Debug, Default)]
struct EndedSessions {
    /// All sessions whose time ends at this moment or earlier are ended.
    all_until_ms: u64,
    /// Tokens, each with the regular end of its session.
    tokens: HashMap<String, u64>,
}

impl EndedSessions {
    fn last_ms(&self) -> u64 {
        self.tokens.values().copied().fold(self.all_until_ms, u64::max)
    }
}

/// With a secret that only this process has.
impl Default for Sessions {
    fn default() -> Self {
        Self::with_secret(random_text(&SystemEntropy).as_bytes())
    }
}

impl Sessions {
    /// With the secret that all instances share.
    pub fn with_secret(secret: &[u8]) -> Self {
        Self { secret: hmac::Key::new(hmac::HMAC_SHA256, secret), ended: Arc::default() }
    }

    /// Begins a session for a principal that has just logged in with this key. Units of `wall_ms`: milliseconds since 1970.
    pub fn begin(&self, principal: &Principal, key: &KeyHash, wall_ms: u64, entropy: &impl Entropy) -> SessionToken {
        let life_ms = u64::try_from(SESSION_LIFE.as_millis()).unwrap_or(u64::MAX);
        let (until_ms, nonce) = (wall_ms.saturating_add(life_ms), random_text(entropy));
        // The hash of the key's hash: the cookie has nothing from the access file.
        let text = URL_SAFE_NO_PAD.encode(format!("{until_ms} {} {nonce} {}", id_of(key), principal.name.as_str()));
        let signature = URL_SAFE_NO_PAD.encode(hmac::sign(&self.secret, text.as_bytes()));
        SessionToken(format!("{text}.{signature}"))
    }

    /// The principal of a session, with its present rules. A session ends after [`SESSION_LIFE`], and when the
    /// key that began it expires or is removed.
    pub fn find(&self, token: &str, store: &PrincipalStore, wall_ms: u64) -> Option<Arc<Principal>> {
        let (text, until_ms) = self.verified(token).filter(|(_, until_ms)| *until_ms > wall_ms)?;
        let mut parts = text.splitn(4, ' ').skip(1);
        let (key, _nonce, principal) = (parts.next()?, parts.next()?, parts.next()?);
        if let Some(ended) = self.ended.lock().get(principal)
            && (until_ms <= ended.all_until_ms || ended.tokens.contains_key(token))
        {
            return None;
        }
        let principal = store.find(&PrincipalName::parse(principal).ok()?)?;
        let is_live = |k: &KeyEntry| id_of(&k.hash) == key && !k.has_expired(wall_ms);
        principal.keys.iter().any(is_live).then(|| Arc::clone(principal))
    }

    /// Ends a session at this instance; at other instances, its cookie is accepted until its time is over. Units of `wall_ms`:
    /// milliseconds since 1970.
    pub fn end(&self, token: &str, wall_ms: u64) {
        let Some((text, until_ms)) = self.verified(token).filter(|(_, until_ms)| *until_ms > wall_ms) else { return };
        let Some(principal) = text.splitn(4, ' ').nth(3) else { return };
        let mut ended = self.ended.lock();
        ended.retain(|_, sessions| sessions.last_ms() > wall_ms);
        let sessions = ended.entry(principal.to_owned()).or_default();
        sessions.tokens.retain(|_, until_ms| *until_ms > wall_ms);
        sessions.tokens.insert(token.to_owned(), until_ms);
        if sessions.tokens.len() > ENDED_SESSIONS_MAX {
            *sessions = EndedSessions { all_until_ms: sessions.last_ms(), tokens: HashMap::new() };
        }
    }

    /// The content of a token and its end, if this secret signed it.
    fn verified(&self, token: &str) -> Option<(String, u64)> {
        let (text, signature) = token.split_once('.')?;
        let signature = URL_SAFE_NO_PAD.decode(signature).ok()?;
        hmac::verify(&self.secret, text.as_bytes(), &signature).ok()?;
        let text = String::from_utf8(URL_SAFE_NO_PAD.decode(text).ok()?).ok()?;
        let until_ms = text.split_once(' ')?.0.parse().ok()?;
        Some((text, until_ms))
    }
}

fn id_of(key: &KeyHash) -> String {
    KeyHash::of(key.hex().as_bytes()).hex()
}

#[cfg(test)]
mod tests {
    use super::super::access_file::parse;
    use super::*;

    const HOUR_MS: u64 = 3_600_000;

    fn store(expires: &str) -> PrincipalStore {
        let hash = KeyHash::of(b"k").hex();
        parse(&format!("[[principal]]\nname = \"ann\"\nkeys = [{{ sha256 = \"{hash}\"{expires} }}]")).expect("good")
    }

    fn begin(sessions: &Sessions, principals: &PrincipalStore, wall_ms: u64) -> SessionToken {
        sessions.begin(&principals.principals()[0], &KeyHash::of(b"k"), wall_ms, &SystemEntropy)
    }

    #[test]
    fn a_session_ends_with_its_lifetime_its_key_its_principal_and_on_logout() {
        let (sessions, mut principals) = (Sessions::default(), store(""));
        let (token, other) = (begin(&sessions, &principals, 1), begin(&sessions, &principals, 1));
        assert!(token != other && !format!("{token:?}").contains(token.reveal()));
        let found = |token: &SessionToken, wall_ms, principals: &PrincipalStore| {
            sessions.find(token.reveal(), principals, wall_ms).is_some()
        };
        assert!(found(&token, 2, &principals) && found(&token, 10 * HOUR_MS, &principals));
        assert!(!found(&token, 10 * HOUR_MS + 1, &principals));
        sessions.end(token.reveal(), 2);
        assert!(!found(&token, 2, &principals) && found(&other, 2, &principals));
        principals = store(", expires = 1970-01-01T00:00:01Z");
        assert!(found(&other, 999, &principals) && !found(&other, 1_000, &principals), "its key has expired");
        principals = store("");
        assert!(found(&other, 2, &principals));
        principals = parse("").expect("an empty file");
        assert!(!found(&other, 2, &principals), "its principal is gone");
        let key = KeyHash::of(b"another").hex();
        principals = parse(&format!("[[principal]]\nname = \"ann\"\nkeys = [{{ sha256 = \"{key}\" }}]")).expect("good");
        assert!(!found(&other, 2, &principals), "its key was changed");
    }

    #[test]
    fn every_instance_with_the_secret_accepts_it_and_no_other() {
        let principals = store("");
        let [one, two, foreign] = [b"a", b"a", b"b"].map(|secret| Sessions::with_secret(secret));
        let token = begin(&one, &principals, 1);
        let accepts = |sessions: &Sessions, token: &str| sessions.find(token, &principals, 2).is_some();
        assert!(accepts(&two, token.reveal()) && !accepts(&foreign, token.reveal()));
        assert!(!accepts(&Sessions::default(), token.reveal()));
        // Changed at any place, it is none.
        for at in 0..token.reveal().len() {
            let mut changed = token.reveal().as_bytes().to_vec();
            changed[at] = if changed[at] == b'A' { b'B' } else { b'A' };
            let changed = String::from_utf8(changed).expect("ASCII");
            // The last digit of base64 has bits that mean nothing, which the decoder refuses.
            assert!(changed == token.reveal() || !accepts(&one, &changed), "{changed}");
        }
        for wrong in ["", ".", "k", "rlk_x", &token.reveal()[1..], &KeyHash::of(token.reveal().as_bytes()).hex()] {
            assert!(!accepts(&one, wrong), "{wrong}");
        }
    }

    #[test]
    fn no_ended_session_is_accepted_again_however_many_there_are() {
        let (sessions, principals) = (Sessions::default(), store(""));
        let tokens: Vec<_> = (1..=u64::try_from(ENDED_SESSIONS_MAX).expect("small") + 1)
            .map(|ms| begin(&sessions, &principals, ms))
            .inspect(|token| sessions.end(token.reveal(), 1))
            .collect();
        assert!(sessions.ended.lock()["ann"].tokens.is_empty(), "bounded");
        let later = begin(&sessions, &principals, 1_000);
        let is_live = |token: &SessionToken| sessions.find(token.reveal(), &principals, 1_000).is_some();
        assert!(!tokens.iter().any(is_live) && is_live(&later));
        sessions.end(later.reveal(), 1_000);
        assert!(!is_live(&later));
        let long_after = begin(&sessions, &principals, 100 * HOUR_MS);
        sessions.end(long_after.reveal(), 100 * HOUR_MS);
        assert_eq!(sessions.ended.lock()["ann"].tokens.len(), 1, "those that are over are forgotten");
    }
}
