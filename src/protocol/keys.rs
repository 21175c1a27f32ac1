//! The names of all keys and channels on a node. Stands apart because nodes of each kind, scripts and
//! documentation must agree on them. Knows no connection and no script.

use std::fmt;

use crate::types::{AttemptId, Invalid, RESERVED_PREFIX, ResourceName, TokenHash};

/// Hash: the node's marker, state and high-water mark.
pub const META_KEY: &str = "redlockd:meta";
/// Sorted set: resources that may be held, scored by the end of their lease. An aid for listing.
pub const LEASES_KEY: &str = "redlockd:leases";
const FENCE_PREFIX: &str = "redlockd:fence:";
const GONE_PREFIX: &str = "redlockd:gone:";
const FREED_PREFIX: &str = "redlockd:freed:";
/// The channel of what happens in the whole cluster.
pub const EVENTS_CHANNEL: &str = "redlockd:events";
const PLACEHOLDER: &str = "{resource}";
/// A longer template would make keys that no tool shows on one line.
const TEMPLATE_MAX_BYTES: usize = 128;

/// How a resource's lock key is made from its name: `{resource}` with what other libraries put before
/// or behind it. Only the lock's own key follows it.
#[derive(Clone, PartialEq, Eq)]
pub struct KeyTemplate {
    head: String,
    tail: String,
}

impl KeyTemplate {
    /// Checks a template.
    ///
    /// Errors: [`Invalid`] where `{resource}` does not stand in it exactly once, where it is over 128
    /// bytes or has control characters, or where some resource's lock key would be one of the service's
    /// own keys.
    pub fn parse(raw: &str) -> Result<Self, Invalid> {
        let Some((head, tail)) = raw.split_once(PLACEHOLDER) else {
            return Err(Invalid(format!("the key template has no `{PLACEHOLDER}` in it")));
        };
        if tail.contains(PLACEHOLDER) {
            return Err(Invalid(format!("the key template has `{PLACEHOLDER}` in it more than once")));
        }
        if raw.len() > TEMPLATE_MAX_BYTES {
            return Err(Invalid(format!("the key template is over {TEMPLATE_MAX_BYTES} bytes")));
        }
        if raw.chars().any(char::is_control) {
            return Err(Invalid("the key template has control characters in it".into()));
        }
        if meets_own_keys(head, tail) {
            return Err(Invalid(format!(
                "with this key template a lock could fall on the service's own keys, which begin with `{RESERVED_PREFIX}`"
            )));
        }
        Ok(Self { head: head.into(), tail: tail.into() })
    }

    /// The key of a resource's lock.
    pub fn lock(&self, resource: &ResourceName) -> String {
        [&self.head, resource.as_str(), &self.tail].concat()
    }

    /// What stands before the resource.
    pub fn head(&self) -> &str {
        &self.head
    }

    /// What stands behind it.
    pub fn tail(&self) -> &str {
        &self.tail
    }
}

impl Default for KeyTemplate {
    /// The resource name byte for byte, as most Redlock libraries have it.
    fn default() -> Self {
        Self { head: String::new(), tail: String::new() }
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

/// Whether some resource (which never begins with the reserved prefix itself) makes one of our keys.
fn meets_own_keys(head: &str, tail: &str) -> bool {
    if !head.is_empty() {
        return head.starts_with(RESERVED_PREFIX) || RESERVED_PREFIX.starts_with(head);
    }
    // The resource could be `redlockd`, or less of it, and the tail the rest of one of our keys.
    (1..RESERVED_PREFIX.len()).any(|cut| {
        let key = [&RESERVED_PREFIX[..cut], tail].concat();
        key == META_KEY || key == LEASES_KEY || key.starts_with(FENCE_PREFIX) || key.starts_with(GONE_PREFIX)
    })
}

/// The counter of a resource's fences.
pub fn fence(resource: &ResourceName) -> String {
    [FENCE_PREFIX, resource.as_str()].concat()
}

/// The tombstone of a token's lease of a resource: it was ended for good. Of this resource only: a
/// client may use one token of its own for several, and releasing one must not end the others.
pub fn token_tombstone(resource: &ResourceName, token: &TokenHash) -> String {
    [GONE_PREFIX, token.as_str(), ":", resource.as_str()].concat()
}

/// The tombstone of an attempt: it was given up. `#` is in no resource name, so it cannot be the
/// tombstone of a token.
pub fn attempt_tombstone(resource: &ResourceName, token: &TokenHash, attempt: &AttemptId) -> String {
    [GONE_PREFIX, token.as_str(), ":", resource.as_str(), "#", attempt.as_str()].concat()
}

/// The channel on which the end of a resource's lease is announced.
pub fn freed_channel(resource: &ResourceName) -> String {
    [FREED_PREFIX, resource.as_str()].concat()
}

/// The resource's name in such a channel.
pub fn freed_resource(channel: &str) -> Option<&str> {
    channel.strip_prefix(FREED_PREFIX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn templates_of_other_libraries_pass() {
        for good in
            ["{resource}", "redlock:{resource}", "lock:{resource}", "{resource}:lock", "{x}:{resource}", "r{resource}s"]
        {
            match (good, KeyTemplate::parse(good)) {
                // `r` + `edlockd:meta` would be our own marker.
                ("r{resource}s", parsed) => assert!(parsed.is_err()),
                (_, parsed) => assert_eq!(parsed.map(|t| t.to_string()).as_deref(), Ok(good)),
            }
        }
        let template = KeyTemplate::parse("lock:{resource}:x").expect("valid");
        assert_eq!(template.lock(&ResourceName::parse("a/b").expect("valid")), "lock:a/b:x");
    }

    #[test]
    fn templates_that_could_meet_our_own_keys_are_refused() {
        for bad in [
            "",
            "lock",
            "{resource}{resource}",
            "redlockd:{resource}",
            "redlock{resource}",
            "redlockd:x{resource}",
            "{resource}:meta",
            "{resource}d:leases",
            "{resource}:fence:x",
            "{resource}edlockd:gone:x",
            "{resource}\n",
        ] {
            assert!(KeyTemplate::parse(bad).is_err(), "{bad}");
        }
        assert!(KeyTemplate::parse(&format!("{}{{resource}}", "x".repeat(128))).is_err());
    }

    proptest! {
        #[test]
        fn no_accepted_template_and_resource_make_one_of_our_keys(
            head in "(|r|redlockd|redlockd:|lock:|[a-z:]{1,4})", tail in "(|:meta|:leases|:fence:a|d:gone:b|[a-z:]{1,4})",
            resource in "(r|redlockd|redlock|edlockd:meta|a|lockd:leases)",
        ) {
            if let (Ok(template), Ok(resource)) =
                (KeyTemplate::parse(&format!("{head}{{resource}}{tail}")), ResourceName::parse(&resource))
            {
                let key = template.lock(&resource);
                prop_assert!(key != META_KEY && key != LEASES_KEY, "{}", key);
                prop_assert!(!key.starts_with(FENCE_PREFIX) && !key.starts_with(GONE_PREFIX), "{}", key);
            }
        }
    }
}
