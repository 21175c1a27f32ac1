//! The events that hooks subscribe to, and the message about an event. The message's id derives from what happened,
//! so that a fact seen by two instances is one message to a receiver that remembers ids.

use data_encoding::HEXLOWER;
use serde_json::{Map, Value};
use sha2::{Digest, Sha256};

use crate::api::Event;
use crate::manager::events::EventKind;

/// Maximum length of the text of a message about an event, so that a body stays below what receivers accept. Bytes.
const DETAIL_MAX_BYTES: usize = 1_024;
/// Length of the random-looking part of an id: 128 bits.
const ID_BYTES: usize = 16;

/// An event that a hook can subscribe to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum HookEvent {
    /// A lease was granted.
    LockAcquired,
    /// The holder released the lease, or the time for which it was to be kept is over.
    LockReleased,
    /// The lease was lost before its holder was done.
    LockLost,
    /// An operator ended the lease, or forbade its renewal.
    LockForced,
    /// A waiter has waited for long.
    LockWaitingLong,
    /// The lease was not renewed before its end.
    LockExpired,
    /// A node does not answer.
    NodeDown,
    /// A node answers and has no vote.
    NodeQuarantined,
    /// A node votes again.
    NodeVotes,
    /// Fewer than a quorum of nodes vote.
    QuorumLost,
    /// A quorum votes again.
    QuorumBack,
    /// A test was requested.
    Test,
}

impl HookEvent {
    pub const ALL: [Self; 12] = [
        Self::LockAcquired,
        Self::LockReleased,
        Self::LockLost,
        Self::LockForced,
        Self::LockWaitingLong,
        Self::LockExpired,
        Self::NodeDown,
        Self::NodeQuarantined,
        Self::NodeVotes,
        Self::QuorumLost,
        Self::QuorumBack,
        Self::Test,
    ];

    /// The member `type` of the message.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::LockAcquired => "lock.acquired",
            Self::LockReleased => "lock.released",
            Self::LockLost => "lock.lost",
            Self::LockForced => "lock.forced",
            Self::LockWaitingLong => "lock.waiting_long",
            Self::LockExpired => "lock.expired",
            Self::NodeDown => "node.down",
            Self::NodeQuarantined => "node.quarantined",
            Self::NodeVotes => "node.votes",
            Self::QuorumLost => "quorum.lost",
            Self::QuorumBack => "quorum.back",
            Self::Test => "webhook.test",
        }
    }

    /// The event with this name.
    pub fn parse(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|event| event.as_str() == name)
    }

    /// The hooks' event for an event of the cluster; `None`: hooks do not receive it.
    pub fn of(kind: EventKind) -> Option<Self> {
        Some(match kind {
            EventKind::Acquired => Self::LockAcquired,
            EventKind::Released => Self::LockReleased,
            EventKind::Expired => Self::LockExpired,
            EventKind::Forced => Self::LockForced,
            EventKind::Lost => Self::LockLost,
            EventKind::NodeDown => Self::NodeDown,
            EventKind::Quarantined => Self::NodeQuarantined,
            EventKind::NodeUp => Self::NodeVotes,
            EventKind::QuorumLost => Self::QuorumLost,
            EventKind::QuorumBack => Self::QuorumBack,
            _ => return None,
        })
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct HookEvents(u16);

impl HookEvents {
    /// The set with this event added.
    #[must_use]
    pub fn with(self, event: HookEvent) -> Self {
        Self(self.0 | 1 << event as u16)
    }

    /// The events of both sets.
    #[must_use]
    pub fn or(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// Whether the set contains this event.
    pub fn has(self, event: HookEvent) -> bool {
        self.0 & 1 << event as u16 != 0
    }

    /// The set as a number, for an atomic.
    pub fn bits(self) -> u16 {
        self.0
    }

    /// The set from [`Self::bits`].
    pub fn from_bits(bits: u16) -> Self {
        Self(bits)
    }

    /// The names of the events, in the order of [`HookEvent::ALL`].
    pub fn names(self) -> impl Iterator<Item = &'static str> {
        HookEvent::ALL.into_iter().filter(move |event| self.has(*event)).map(HookEvent::as_str)
    }
}

/// A message to hooks.
#[derive(Debug, Clone, PartialEq)]
pub struct HookMessage {
    /// The header `webhook-id`.
    pub id: String,
    /// The kind of event; it decides which hooks receive it.
    pub event: HookEvent,
    /// When the event happened. Milliseconds since 1970.
    pub at_ms: u64,
    /// The member `data`.
    pub data: Map<String, Value>,
}

impl HookMessage {
    /// The message about an event. Where each instance observes the fact itself (nodes, quorum), it names the instance.
    pub fn new(kind: HookEvent, event: &Event, instance: &str) -> Self {
        let is_lease = event.resource.is_some();
        let fence = event.fence.map(|fence| fence.to_string());
        let at = event.at_ms.to_string();
        let lease = [&event.resource, &fence, &event.token_id, &event.reason];
        let own = [Some(instance.to_owned()), event.node.clone(), event.reason.clone(), Some(at)];
        let id = match is_lease {
            true => id(kind, lease.map(|part| part.as_deref().unwrap_or_default())),
            false => id(kind, own.each_ref().map(|part| part.as_deref().unwrap_or_default())),
        };
        Self { id, event: kind, at_ms: event.at_ms, data: data(event, instance) }
    }

    /// A message about a waiter that has waited for long: one for each time that a queue has such a waiter.
    pub fn waiting_long(wait: &LongWait, instance: &str, at_ms: u64) -> Self {
        let (since, event) = (at_ms.saturating_sub(wait.waiting_ms).to_string(), HookEvent::LockWaitingLong);
        let data = [
            ("resource", Value::from(wait.resource.clone())),
            ("owner", Value::from(wait.owner.clone())),
            ("waiting_ms", Value::from(wait.waiting_ms)),
            ("waiters", Value::from(wait.waiters)),
            ("instance", Value::from(instance)),
        ];
        let data = data.into_iter().map(|(name, value)| (name.to_owned(), value)).collect();
        Self { id: id(event, [wait.resource.as_str(), instance, since.as_str(), ""]), event, at_ms, data }
    }

    /// A test message. `unique` distinguishes it from other tests.
    pub fn test(name: &str, instance: &str, at_ms: u64, unique: u64) -> Self {
        let (event, number) = (HookEvent::Test, unique.to_string());
        let data = [("name", name), ("instance", instance)];
        let data = data.into_iter().map(|(name, value)| (name.to_owned(), Value::from(value))).collect();
        Self { id: id(event, [name, instance, number.as_str(), ""]), event, at_ms, data }
    }
}

/// The longest wait in one queue of this instance.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LongWait {
    /// The resource of the queue.
    pub resource: String,
    /// The owner of the waiter that has waited longest.
    pub owner: String,
    /// How long that waiter has waited. Milliseconds.
    pub waiting_ms: u64,
    /// How many waiters the queue has.
    pub waiters: usize,
}

/// The id of a message; it contains no dot, as the specification demands.
fn id(event: HookEvent, parts: [&str; 4]) -> String {
    let mut hash = Sha256::new();
    hash.update(event.as_str());
    for part in parts {
        hash.update(part.len().to_le_bytes());
        hash.update(part);
    }
    format!("evt_{}", HEXLOWER.encode(&hash.finalize()[..ID_BYTES]))
}

/// The known facts of an event, under the names of `GET /events`.
fn data(event: &Event, instance: &str) -> Map<String, Value> {
    let mut data = Map::new();
    let mut set = |name: &str, value: Option<Value>| {
        if let Some(value) = value {
            data.insert(name.to_owned(), value);
        }
    };
    let text = |text: &Option<String>| text.as_ref().map(|text| Value::from(cut(text)));
    set("resource", text(&event.resource));
    set("fence", event.fence.map(Value::from));
    set("token_id", text(&event.token_id));
    set("owner", text(&event.owner));
    set("valid_for_ms", event.valid_for_ms.map(Value::from));
    set("reason", text(&event.reason));
    set("detail", text(&event.detail));
    set("after_ms", event.after_ms.map(Value::from));
    set("left_ms", event.left_ms.map(Value::from));
    set("refused", event.refused.map(Value::from));
    set("principal", text(&event.principal));
    set("node", text(&event.node));
    set("instance", Some(Value::from(instance)));
    data
}

fn cut(text: &str) -> &str {
    &text[..text.floor_char_boundary(DETAIL_MAX_BYTES)]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lease(reason: &str) -> Event {
        Event {
            event: "forced".to_owned(),
            at_ms: 1_700_000_000_000,
            resource: Some("deploy/prod".to_owned()),
            fence: Some(7),
            token_id: Some("9c1f02ab".to_owned()),
            reason: Some(reason.to_owned()),
            name: Some("secret-run.1".to_owned()),
            ..Event::default()
        }
    }

    #[test]
    fn one_fact_seen_by_two_instances_is_one_message() {
        let at = |instance: &str, event: &Event| HookMessage::new(HookEvent::LockForced, event, instance).id;
        let later = Event { at_ms: 1_700_000_000_999, ..lease("revoke") };
        assert_eq!(at("a", &lease("revoke")), at("b", &later));
        assert_ne!(at("a", &lease("revoke")), at("a", &lease("now")), "revoked, then ended at once");
        let node = Event { node: Some("n1".to_owned()), at_ms: 5, ..Event::default() };
        let of = |instance: &str, event: &Event| HookMessage::new(HookEvent::NodeDown, event, instance).id;
        assert_ne!(of("a", &node), of("b", &node), "each instance observes the nodes itself");
        assert_ne!(of("a", &node), of("a", &Event { at_ms: 6, ..node.clone() }), "down again");
        assert!(at("a", &lease("now")).starts_with("evt_") && !at("a", &lease("now")).contains('.'));
    }

    #[test]
    fn a_message_has_what_the_stream_of_events_has_and_no_more_text_than_fits() {
        let long = Event { detail: Some("ä".repeat(2_000)), ..lease("now") };
        let message = HookMessage::new(HookEvent::LockForced, &long, "i1");
        assert_eq!(message.data["detail"].as_str().map(str::len), Some(DETAIL_MAX_BYTES));
        assert_eq!(message.data["fence"], 7);
        assert!(!message.data.contains_key("node") && !message.data.contains_key("name"));
    }

    #[test]
    fn names_are_read_back_and_every_kind_of_event_is_decided_about() {
        for event in HookEvent::ALL {
            assert_eq!(HookEvent::parse(event.as_str()), Some(event));
            let set = HookEvents::default().with(event);
            assert_eq!(set.names().collect::<Vec<_>>(), [event.as_str()]);
            assert_eq!(HookEvents::from_bits(set.bits()), set);
        }
        let mapped: Vec<_> = EventKind::ALL.into_iter().filter_map(HookEvent::of).collect();
        assert_eq!(mapped.len(), 10, "all but waiting_long and test: {mapped:?}");
    }
}
