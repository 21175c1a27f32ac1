//! Notices that leases ended on a node, and the handler that receives them. A notice is a hint: a waiter that it
//! wakes still asks the nodes, so a lost or needless notice costs only time.

use std::sync::Arc;

use super::subscriptions::Subscriptions;
use crate::types::{ResourceName, TokenHash};

/// How this instance receives the ends of leases on a node.
#[derive(Debug, Clone, Copy)]
pub enum NotificationSource<'a> {
    /// It receives none: waiters poll.
    PollOnly,
    /// Only this process ends leases there, so it needs no notices.
    Local,
    /// The node publishes notices.
    Subscriptions(&'a Arc<Subscriptions>),
}

/// What can be subscribed to on a node.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Topic {
    /// The ends of leases of one resource.
    LeaseEnded(ResourceName),
    /// Events that instances publish to each other.
    Events,
    /// The few events that every instance keeps.
    Incidents,
}

/// A lease as notices name it: the first eight hex digits of its token's hash.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct LeaseTag(u32);

impl LeaseTag {
    /// The tag of this token's lease.
    pub fn of(token: &TokenHash) -> Self {
        Self(u32::from_str_radix(token.id_text(), 16).unwrap_or(0))
    }
}

/// One node's report that a lease ended there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Notice {
    /// The lease; `None` for a foreign client's lock.
    pub lease: Option<LeaseTag>,
    /// Whether an attempt was cancelled, not a lease released. Most cancelled attempts never had a quorum.
    pub withdrawn: bool,
    /// For a permit: its slot.
    pub slot: Option<u8>,
}

impl Notice {
    /// Parses what the scripts publish: nothing, `r` and the tag of a lease that was ended, or `c` and the tag of a
    /// lease whose last claim was withdrawn; for a permit also its slot. `None` for anything else.
    pub fn parse(text: &[u8]) -> Option<Self> {
        let Some((kind, tag)) = text.split_first() else {
            return Some(Self { lease: None, withdrawn: false, slot: None });
        };
        let (digits, slot) = std::str::from_utf8(tag).ok()?.split_at_checked(8)?;
        let slot = match slot.strip_prefix(':') {
            Some(slot) => Some(slot.parse().ok()?),
            None if slot.is_empty() => None,
            None => return None,
        };
        let lease = Some(LeaseTag(u32::from_str_radix(digits, 16).ok()?));
        match kind {
            b'r' => Some(Self { lease, withdrawn: false, slot }),
            b'c' => Some(Self { lease, withdrawn: true, slot }),
            _ => None,
        }
    }
}

/// Receives what the nodes publish. It is called from the task that reads the connection, so every method must return
/// at once. `node` is the node's index.
pub trait NotificationHandler: Send + Sync + 'static {
    /// A lease of this resource ended on this node.
    fn on_lease_ended(&self, _node: usize, _resource: &ResourceName, _notice: Notice) {}
    /// An instance published an event.
    fn on_event(&self, _node: usize, _text: &[u8]) {}
    /// The node confirmed the subscription to a topic.
    fn on_subscribed(&self, _node: usize, _topic: &Topic) {}
    /// The subscriber connection was opened, with all wanted topics subscribed, or was lost.
    fn on_connection_changed(&self, _node: usize, _is_connected: bool) {}
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_well_formed_notices_are_parsed() {
        let tag = Some(LeaseTag(0x0a1b_2c3d));
        assert_eq!(Notice::parse(b""), Some(Notice { lease: None, withdrawn: false, slot: None }));
        let notice = |withdrawn, slot| Some(Notice { lease: tag, withdrawn, slot });
        assert_eq!(Notice::parse(b"r0a1b2c3d"), notice(false, None));
        assert_eq!(Notice::parse(b"c0a1b2c3d"), notice(true, None));
        assert_eq!(Notice::parse(b"r0a1b2c3d:17"), notice(false, Some(17)));
        let bad: [&[u8]; 9] = [
            b"0a1b2c3d",
            b"r",
            b"rxxxxxxxx",
            b"r0a1b2c3d4",
            b"r0a1b2c3d:",
            b"r0a1b2c3d:256",
            b"r0a1b2c3d:x",
            b"x0a1b2c3d",
            &[b'r', 0xff],
        ];
        for other in bad {
            assert_eq!(Notice::parse(other), None, "{other:?}");
        }
        let token = TokenHash::parse(&"0a1b2c3d".repeat(8)).expect("hex");
        assert_eq!(Some(LeaseTag::of(&token)), tag);
    }
}
