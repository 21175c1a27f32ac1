//! The names of all keys and channels on a node, and the template of a lock's key. Scripts, the reference and the
//! documentation use the same names.

use std::fmt;
use std::sync::Arc;

use crate::types::{AttemptId, Invalid, RESERVED_PREFIX, ResourceName, TokenHash};

/// Hash: the node's marker, with its state and the highest fence that it has given.
pub const META_KEY: &str = "redlockd:meta";
/// Sorted set: resources that may be held, scored by the end of their lease. Used for listing only.
pub const LEASES_KEY: &str = "redlockd:leases";
/// Sorted set: kept leases by the time of their next check, so that an instance renews the leases of another one that has ended.
pub const KEPT_KEY: &str = "redlockd:kept";
/// Sorted set: tickets by the time from which instances that do not serve them read them.
pub const TICKETS_KEY: &str = "redlockd:tickets";
/// The prefix of a ticket's key; its id follows.
pub const TICKET_PREFIX: &str = "redlockd:ticket:";
/// Sorted set: instances by the time at which they last published their waiters.
pub const WAITERS_KEY: &str = "redlockd:waiters";
/// The prefix of the key of an instance's published waiters; its name follows.
pub const WAITERS_PREFIX: &str = "redlockd:waiters:";
/// String with a TTL: exists while any resource may have a block, so that a node without blocks reads no other key.
pub const BLOCKS_KEY: &str = "redlockd:blocks";
/// String with a TTL: exists while any tombstone is a key: one of an attempt, of a revocation, or written by a fill.
pub const TOMBSTONES_KEY: &str = "redlockd:tombstones";
/// Hashes: the tombstones that releases wrote in the last minute, and in the one before, by the names of [`token_tombstone`].
pub const ENDED_KEYS: [&str; 2] = ["redlockd:ended", "redlockd:ended:old"];
/// String with a TTL: exists while any lease may be revoked, so that a release that finds its lease reads a tombstone only then.
pub const REVOKED_KEY: &str = "redlockd:revoked";
/// String with a TTL: exists while any instance listens for the ends of leases, so that notices are published only if some
/// instance receives them.
pub const NOTICES_KEY: &str = "redlockd:notices";
/// String without a TTL, from the first change of the key template on: the template by which this process names locks, then ` o`
/// while its leases leave these names, and ` i` while they receive them.
pub const NAMES_KEY: &str = "redlockd:names";
/// Hashes: the last fence of each resource that had one in this generation or the one before, alternately.
pub const FENCES_KEYS: [&str; 2] = ["redlockd:fences:0", "redlockd:fences:1"];
/// The prefix of the hash of a resource's shared leases or permits; the name follows.
const MEMBERS_PREFIX: &str = "redlockd:m:";
const INTENT_PREFIX: &str = "redlockd:i:";
const BLOCK_PREFIX: &str = "redlockd:block:";
const GONE_PREFIX: &str = "redlockd:gone:";
/// The prefix of the channels of all resources.
pub const FREED_PREFIX: &str = "redlockd:freed:";
/// The channel of cluster-wide events.
pub const EVENTS_CHANNEL: &str = "redlockd:events";
/// The channel of incidents, to which every instance subscribes: so few that the sender need not check for subscribers.
pub const INCIDENTS_CHANNEL: &str = "redlockd:incidents";
/// The field of a foreign client's lock among the tokens of a block.
pub const FOREIGN_FIELD: &str = "*";
const PLACEHOLDER: &str = "{resource}";
/// The maximum length of a template, in bytes: with the longest resource name a key stays below 400 bytes.
pub const TEMPLATE_MAX_BYTES: usize = 128;

/// How the key of a resource's lock is made from its name: `{resource}` with a fixed prefix and suffix, as in other Redlock
/// libraries. All other keys have fixed names.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct KeyTemplate {
    head: Arc<str>,
    tail: Arc<str>,
}

impl KeyTemplate {
    /// Checks a template.
    ///
    /// Errors: [`Invalid`], as a sentence for the configuration's message, if `{resource}` does not occur exactly once, if the
    /// template has a character that resource names may not have or is over 128 bytes, or if some resource's lock key would begin
    /// like the service's own keys.
    pub fn parse(raw: &str) -> Result<Self, Invalid> {
        let Some((head, tail)) = raw.split_once(PLACEHOLDER).filter(|(_, tail)| !tail.contains(PLACEHOLDER)) else {
            return Err(Invalid(format!("`{PLACEHOLDER}` must occur exactly once")));
        };
        let is_plain = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'_' | b'~' | b':' | b'@' | b'/' | b'-');
        if !head.bytes().chain(tail.bytes()).all(is_plain) || raw.len() > TEMPLATE_MAX_BYTES {
            return Err(Invalid(format!(
                "at most {TEMPLATE_MAX_BYTES} characters of A-Z a-z 0-9 . _ ~ : @ / - are allowed"
            )));
        }
        if reaches_reserved_names(head, tail) {
            return Err(Invalid(format!(
                "no resource's key may begin with `{RESERVED_PREFIX}`, as the service's own keys do"
            )));
        }
        Ok(Self { head: head.into(), tail: tail.into() })
    }

    /// The key of a resource's lock.
    pub fn lock(&self, resource: &ResourceName) -> String {
        self.lock_parts(resource).concat()
    }

    /// The parts of that key, for an encoder that joins them.
    pub(super) fn lock_parts<'a>(&'a self, resource: &'a ResourceName) -> [&'a str; 3] {
        [&self.head, resource.as_str(), &self.tail]
    }

    /// The part before the resource name.
    pub fn head(&self) -> &str {
        &self.head
    }

    /// The part after the resource name.
    pub fn tail(&self) -> &str {
        &self.tail
    }
}

impl Default for KeyTemplate {
    /// The resource name unchanged, as most Redlock libraries use it.
    fn default() -> Self {
        Self { head: "".into(), tail: "".into() }
    }
}

impl fmt::Display for KeyTemplate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{PLACEHOLDER}{}", self.head, self.tail)
    }
}

impl fmt::Debug for KeyTemplate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "\"{self}\"")
    }
}

/// Whether some resource's key would begin with the reserved prefix, although no resource name does. With `red{resource}` the key
/// of the resource `lockd:meta` would be the node's marker; with `{resource}:meta` that of `redlockd`.
fn reaches_reserved_names(head: &str, tail: &str) -> bool {
    if head.is_empty() {
        return (1..RESERVED_PREFIX.len()).any(|cut| tail.starts_with(&RESERVED_PREFIX[cut..]));
    }
    head.starts_with(RESERVED_PREFIX) || RESERVED_PREFIX.starts_with(head)
}

/// The tombstone of a token's lease of one resource, which was ended for good. Per resource, since a client may use one token for
/// several resources, and the release of one must not end the others.
pub fn token_tombstone(resource: &ResourceName, token: &TokenHash) -> String {
    token_tombstone_parts(resource, token).concat()
}

pub(super) fn token_tombstone_parts<'a>(resource: &'a ResourceName, token: &'a TokenHash) -> [&'a str; 4] {
    [GONE_PREFIX, token.as_str(), ":", resource.as_str()]
}

/// The tombstone of a cancelled attempt. No resource name contains `#`, so it differs from every tombstone of a token.
pub fn attempt_tombstone(resource: &ResourceName, token: &TokenHash, attempt: &AttemptId) -> String {
    attempt_tombstone_parts(resource, token, attempt).concat()
}

pub(super) fn attempt_tombstone_parts<'a>(
    resource: &'a ResourceName,
    token: &'a TokenHash,
    attempt: &'a AttemptId,
) -> [&'a str; 6] {
    [GONE_PREFIX, token.as_str(), ":", resource.as_str(), "#", attempt.as_str()]
}

/// The key of one ticket.
pub fn ticket(id: &str) -> String {
    [TICKET_PREFIX, id].concat()
}

/// The key of an instance's published waiters.
pub fn waiters(instance: &str) -> String {
    [WAITERS_PREFIX, instance].concat()
}

/// The block of a resource: a hash of token hash, or [`FOREIGN_FIELD`], to `end in ms|claims`.
pub fn block(resource: &ResourceName) -> String {
    [BLOCK_PREFIX, resource.as_str()].concat()
}

/// The shared leases or permits of a resource: a hash, see `members.lua`.
pub fn members(resource: &ResourceName) -> String {
    [MEMBERS_PREFIX, resource.as_str()].concat()
}

/// The intent of a caller that waits for a resource, see `intent.lua`.
pub fn intent(resource: &ResourceName) -> String {
    [INTENT_PREFIX, resource.as_str()].concat()
}

/// The name of a tombstone's key behind its prefix, as [`token_tombstone`] and [`attempt_tombstone`] make it.
pub fn parse_tombstone(name: &str) -> Option<(ResourceName, TokenHash, Option<AttemptId>)> {
    let (token, rest) = name.split_once(':')?;
    let (resource, attempt) = match rest.split_once('#') {
        Some((resource, attempt)) => (resource, Some(AttemptId::parse(attempt)?)),
        None => (rest, None),
    };
    Some((ResourceName::parse(resource).ok()?, TokenHash::parse(token)?, attempt))
}

/// The channel on which the end of a resource's lease is announced.
pub fn freed_channel(resource: &ResourceName) -> String {
    freed_channel_parts(resource).concat()
}

pub(super) fn freed_channel_parts(resource: &ResourceName) -> [&str; 2] {
    [FREED_PREFIX, resource.as_str()]
}

/// The resource's name in the name of such a channel.
pub fn freed_resource(channel: &str) -> Option<&str> {
    channel.strip_prefix(FREED_PREFIX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_tombstones_name_is_read_back() {
        let (resource, token) = (ResourceName::parse("a:b/c").expect("valid"), TokenHash::parse(&"0f".repeat(32)));
        let (token, attempt) = (token.expect("hex"), AttemptId::from_random(7));
        let behind = |key: &str| key.strip_prefix(GONE_PREFIX).expect("its prefix").to_owned();
        let of_token = (resource.clone(), token.clone(), None);
        assert_eq!(parse_tombstone(&behind(&token_tombstone(&resource, &token))), Some(of_token));
        let key = behind(&attempt_tombstone(&resource, &token, &attempt));
        assert_eq!(parse_tombstone(&key), Some((resource, token, Some(attempt))));
        for other in ["", "a:b", "0f:a", &format!("{key}0"), &key[1..], &key.replace(":a", ": ")] {
            assert_eq!(parse_tombstone(other), None, "{other}");
        }
    }

    #[test]
    fn templates_of_other_libraries_are_accepted() {
        for good in
            ["{resource}", "redlock:{resource}", "lock:{resource}", "{resource}.lock", "x{resource}", "a/{resource}/b"]
        {
            assert_eq!(KeyTemplate::parse(good).map(|t| t.to_string()).as_deref(), Ok(good));
        }
        let template = KeyTemplate::parse("lock:{resource}:x").expect("valid");
        assert_eq!(template.lock(&ResourceName::parse("a/b").expect("valid")), "lock:a/b:x");
    }

    #[test]
    fn templates_that_could_reach_the_services_own_keys_are_refused() {
        let long = format!("{}{{resource}}", "x".repeat(119));
        for (bad, why) in [
            ("", "exactly once"),
            ("lock", "exactly once"),
            ("{resource}{resource}", "exactly once"),
            ("{resource}\n", "at most 128"),
            ("a b{resource}", "at most 128"),
            ("*{resource}", "at most 128"),
            ("{x}{resource}", "at most 128"),
            (&long, "at most 128"),
            ("redlockd:{resource}", "`redlockd:`"),
            ("redlockd:x{resource}", "`redlockd:`"),
            ("redlock{resource}", "`redlockd:`"),
            ("r{resource}", "`redlockd:`"),
            ("r{resource}s", "`redlockd:`"),
            ("{resource}:meta", "`redlockd:`"),
            ("{resource}d:leases", "`redlockd:`"),
            ("{resource}:fence:x", "`redlockd:`"),
            ("{resource}edlockd:gone:x", "`redlockd:`"),
        ] {
            let refused = KeyTemplate::parse(bad).expect_err(bad).0;
            assert!(refused.contains(why), "{bad}: {refused}");
        }
    }

    proptest! {
        #[test]
        fn two_resources_have_two_keys_and_none_is_reserved(
            head in "|[redlock:]{0,10}", tail in "[a-z:]{0,3}|d?:meta|kd:x|x:meta",
            a in "redlockd?|[redlockd:meta/]{1,14}", b in "[redlockd:meta/]{1,14}",
        ) {
            let template = KeyTemplate::parse(&format!("{head}{PLACEHOLDER}{tail}"));
            let (Ok(template), Ok(a), Ok(b)) = (template, ResourceName::parse(&a), ResourceName::parse(&b))
            else { return Ok(()) };
            let (of_a, of_b) = (template.lock(&a), template.lock(&b));
            prop_assert!(!of_a.starts_with(RESERVED_PREFIX), "{}", of_a);
            prop_assert_eq!(of_a == of_b, a == b);
        }
    }
}
