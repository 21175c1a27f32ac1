//! The leases that this instance granted or extended: to answer the time left after a failed extend, and to report
//! expiry.

use std::collections::VecDeque;
use std::time::Duration;

use parking_lot::Mutex;

use crate::keyed_maps::{HASHING, KeyedMap};
use crate::redlock::clock::BootTime;
use crate::types::{Mode, ResourceName, TokenHash};

/// Maximum number of own leases that are remembered; for further leases a failed extend cannot answer the time left.
const OWN_LEASES_MAX: usize = 1_000_000;
/// Maximum number of these that are remembered with resource and token, so that their expiry can be published: some
/// megabytes.
const NAMED_MAX: usize = 20_000;
/// How long expired leases are remembered, so that a holder whose late extend cannot be decided is answered that its
/// deadline has passed.
const LAPSED_KEPT: Duration = Duration::from_mins(10);
/// Maximum number of these: some hundred KiB.
const LAPSED_MAX: usize = 16_384;

/// Leases granted or extended by this instance that are still running.
#[derive(Default)]
pub(crate) struct OwnLeases {
    state: Mutex<OwnState>,
}

#[derive(Default)]
struct OwnState {
    leases: KeyedMap<Key, OwnLease>,
    named: usize,
    /// Deadlines of expired leases, the oldest first.
    lapsed: VecDeque<(Key, BootTime)>,
}

struct OwnLease {
    deadline: BootTime,
    /// When the lease was granted.
    since: BootTime,
    /// Present only if the lease's end must be published.
    named: Option<Box<NamedLease>>,
}

#[derive(Debug, PartialEq, Eq)]
struct NamedLease {
    resource: ResourceName,
    token: TokenHash,
    owner: Box<str>,
    mode: Mode,
}

/// The known facts of a lease of this instance that has ended.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct OwnEnd {
    /// When the lease was granted.
    pub since: BootTime,
    /// The lease's owner label; empty if it is not known.
    pub owner: Box<str>,
    /// How the lease shared its resource, if that is known.
    pub mode: Option<Mode>,
}

/// A lease of this instance that expired.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct ExpiredLease {
    pub resource: ResourceName,
    /// Hash of the lease's token.
    pub token: TokenHash,
    /// The last deadline that this instance knows.
    pub deadline: BootTime,
    /// As in [`OwnEnd`].
    pub end: OwnEnd,
}

impl OwnState {
    fn put(&mut self, key: Key, own: OwnLease) {
        self.named += usize::from(own.named.is_some());
        if let Some(old) = self.leases.insert(key, own) {
            self.named -= usize::from(old.named.is_some());
        }
    }
}

/// Half of a token's hash, 128 bits, which is enough to distinguish tokens, and a hash of the resource: one token may
/// have several leases.
type Key = ([u64; 2], u64);

fn key(resource: &ResourceName, token: &TokenHash) -> Key {
    let (digits, _) = token.as_str().as_bytes().as_chunks::<8>();
    let word = |at: usize| values(u64::from_le_bytes(digits[at]));
    // Every digit has half a byte, but not in the order of the digits.
    ([word(0) << 4 | word(1), word(2) << 4 | word(3)], HASHING.hash_one(resource))
}

/// The values of eight digits `0` to `9` or `a` to `f`, in a byte each.
fn values(digits: u64) -> u64 {
    const EACH: u64 = 0x0101_0101_0101_0101;
    (digits & (0xf * EACH)) + 9 * (digits >> 6 & EACH)
}

impl OwnLeases {
    /// Records that a lease was granted, at `since`, or extended. [`Self::sweep`] returns it when it has expired,
    /// unless `NAMED_MAX` others are named already.
    pub(crate) fn record(
        &self,
        token: &TokenHash,
        deadline: BootTime,
        since: BootTime,
        (resource, owner, mode): (&ResourceName, &str, Mode),
    ) {
        let (mut state, key) = (self.state.lock(), key(resource, token));
        let known = state.leases.get(&key).map(|own| (own.since, own.named.is_some()));
        if known.is_some() || state.leases.len() < OWN_LEASES_MAX {
            let has_name = known.is_some_and(|(_, is_named)| is_named) || state.named < NAMED_MAX;
            let named = || NamedLease { resource: resource.clone(), token: token.clone(), owner: owner.into(), mode };
            let named = has_name.then(|| Box::new(named()));
            state.put(key, OwnLease { deadline, since: known.map_or(since, |(since, _)| since), named });
        }
    }

    /// Removes a lease that is over. Returns what is known of it, if it was granted or extended here.
    pub(crate) fn remove(&self, resource: &ResourceName, token: &TokenHash) -> Option<OwnEnd> {
        let mut state = self.state.lock();
        let own = state.leases.remove(&key(resource, token))?;
        state.named -= usize::from(own.named.is_some());
        let (owner, mode) = own.named.map(|named| (named.owner, named.mode)).unzip();
        Some(OwnEnd { since: own.since, owner: owner.unwrap_or_default(), mode })
    }

    /// Time left until its deadline, if this instance granted or extended it: zero for some minutes after the deadline.
    pub(crate) fn valid_for(&self, resource: &ResourceName, token: &TokenHash, now: BootTime) -> Option<Duration> {
        let (state, key) = (self.state.lock(), key(resource, token));
        let deadline = state.leases.get(&key).map(|own| own.deadline);
        let lapsed = || state.lapsed.iter().rev().find(|(lapsed, _)| *lapsed == key).map(|(_, deadline)| *deadline);
        deadline.or_else(lapsed).map(|deadline| deadline.since(now))
    }

    /// Whether this instance granted or extended the lease.
    pub(crate) fn has(&self, resource: &ResourceName, token: &TokenHash) -> bool {
        self.state.lock().leases.contains_key(&key(resource, token))
    }

    /// Removes expired leases; returns those that are remembered with their names.
    pub(crate) fn sweep(&self, now: BootTime) -> Vec<ExpiredLease> {
        let (mut state, mut expired) = (self.state.lock(), Vec::new());
        let OwnState { leases, lapsed, named } = &mut *state;
        leases.retain(|key, own| {
            let runs = own.deadline > now;
            if !runs {
                lapsed.push_back((*key, own.deadline));
                let (deadline, since) = (own.deadline, own.since);
                expired.extend(own.named.take().map(|named| {
                    let NamedLease { resource, token, owner, mode } = *named;
                    ExpiredLease { resource, token, deadline, end: OwnEnd { since, owner, mode: Some(mode) } }
                }));
            }
            runs
        });
        if leases.capacity() > 1_024 && leases.len() < leases.capacity() / 4 {
            leases.shrink_to_fit();
        }
        *named -= expired.len();
        let too_many = lapsed.len().saturating_sub(LAPSED_MAX);
        lapsed.drain(..too_many);
        while lapsed.front().is_some_and(|(_, deadline)| now.since(*deadline) > LAPSED_KEPT) {
            lapsed.pop_front();
        }
        expired
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn digits_have_their_values() {
        let digits = |text: &[u8; 8]| values(u64::from_le_bytes(*text)).to_le_bytes();
        assert_eq!(digits(b"01234567"), [0, 1, 2, 3, 4, 5, 6, 7]);
        assert_eq!(digits(b"89abcdef"), [8, 9, 10, 11, 12, 13, 14, 15]);
    }

    fn token(digit: &str) -> TokenHash {
        TokenHash::parse(&digit.repeat(64)).expect("hex")
    }

    #[test]
    fn own_leases_are_known_until_they_run_out() {
        let (own, at) = (OwnLeases::default(), |s| BootTime::default().plus(Duration::from_secs(s)));
        let name = ResourceName::parse("x").expect("valid");
        own.record(&token("a"), at(9), at(1), (&name, "me", Mode::Exclusive));
        own.record(&token("a"), at(10), at(3), (&name, "me", Mode::Shared));
        own.record(&token("b"), at(20), at(2), (&name, "", Mode::Exclusive));
        assert_eq!(own.valid_for(&name, &token("a"), at(4)), Some(Duration::from_secs(6)));
        assert_eq!(own.valid_for(&name, &token("c"), at(4)), None);
        let end = OwnEnd { since: at(1), owner: "me".into(), mode: Some(Mode::Shared) };
        let lease = ExpiredLease { resource: name.clone(), token: token("a"), deadline: at(10), end };
        assert_eq!(own.sweep(at(10)), [lease], "from the first grant to the last deadline");
        assert!(own.has(&name, &token("b")) && !own.has(&name, &token("a")));
        assert_eq!(own.valid_for(&name, &token("a"), at(11)), Some(Duration::ZERO), "it is known to have passed");
        own.sweep(at(11).plus(LAPSED_KEPT));
        assert_eq!(own.valid_for(&name, &token("a"), at(11)), None);
        own.record(&token("b"), at(9_000), at(2), (&name, "b", Mode::Exclusive));
        assert_eq!(
            (own.remove(&name, &token("b")).map(|end| end.since), own.remove(&name, &token("b"))),
            (Some(at(2)), None)
        );
        let state = own.state.lock();
        assert_eq!((state.leases.len(), state.named), (0, 0));
    }

    #[test]
    fn keys_tell_tokens_and_resources_apart() {
        let (a, b) = ("a", "b");
        let name = |text: &str| ResourceName::parse(text).expect("valid");
        let token = TokenHash::parse(&"0f".repeat(32)).expect("hex");
        assert_eq!(key(&name(a), &token).0, [0xff00_ff00_ff00_ff00; 2]);
        // Each of the 32 digits counts.
        let of = |at: usize| TokenHash::parse(&format!("{:0<64}", format!("{:0>1$}", "1", at + 1))).expect("hex");
        let keys: std::collections::BTreeSet<_> = (0..32).map(|at| key(&name(a), &of(at)).0).collect();
        assert_eq!(keys.len(), 32);
        assert!(key(&name(a), &token) != key(&name(b), &token) && key(&name(a), &token) == key(&name(a), &token));
    }
}
