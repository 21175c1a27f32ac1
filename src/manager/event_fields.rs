//! The fields of events that several modules set, and which events of other instances are accepted.

use std::time::Duration;

use super::event_kind::EventKind;
use super::own_leases::OwnEnd;
use crate::api::Event;
use crate::types::{Fence, Mode, ResourceName, TokenHash, WantedMode};

/// Maximum length of an event's name, in bytes: an instance's name and a number take less.
const NAME_MAX: usize = 64;

/// The grant or the end of a lease of this instance. Most are made into an [`Event`] by nobody, since nobody looks at them.
#[derive(Debug, Clone)]
pub(crate) struct LeaseEvent {
    pub kind: EventKind,
    /// Milliseconds since 1970.
    pub at_ms: u64,
    pub resource: ResourceName,
    /// Hash of the lease's token.
    pub token: TokenHash,
    /// The owner's label; empty if there is none, or if it is not known.
    pub owner: Box<str>,
    /// How the lease shares its resource, if that is known.
    pub mode: Option<Mode>,
    /// The fence of a grant.
    pub fence: Option<Fence>,
    /// The validity of a grant.
    pub valid_for: Option<Duration>,
    /// For how long a lease that ended was held, if that is known.
    pub held: Option<Duration>,
    pub reason: Option<&'static str>,
}

impl LeaseEvent {
    /// Sets the fields of an event of this kind.
    pub(super) fn describe(&self, event: &mut Event) {
        let ms = |time: Option<Duration>| time.and_then(|time| u64::try_from(time.as_millis()).ok());
        set_lease(event, &self.resource, &self.token);
        event.owner = (!self.owner.is_empty()).then(|| self.owner.to_string());
        event.fence = self.fence.map(|fence| fence.0);
        self.mode.into_iter().for_each(|mode| set_mode(event, mode));
        (event.valid_for_ms, event.after_ms) = (ms(self.valid_for), ms(self.held));
        event.reason = self.reason.map(str::to_owned);
    }

    /// The event.
    pub(super) fn event(&self) -> Event {
        let mut event = Event { event: self.kind.as_str().to_owned(), at_ms: self.at_ms, ..Event::default() };
        self.describe(&mut event);
        event
    }
}

/// Whether the kind and the names of an event are ones that an instance may have published.
pub(super) fn is_valid(event: &Event) -> bool {
    let is_known = EventKind::parse(&event.event).is_some() && event.name.as_ref().is_none_or(|n| n.len() <= NAME_MAX);
    let edges = event.cycle.iter().flatten().map(|edge| edge.waits_for.as_str());
    is_known && event.resource.as_deref().into_iter().chain(edges).all(|name| ResourceName::parse(name).is_ok())
}

/// Whether this text is a message of `instance` to other instances, without parsing it: each node passes an
/// instance's own messages back to it. Events of locks and nodes are not such messages.
pub(super) fn is_message_of(text: &[u8], instance: &str) -> bool {
    let Some(rest) = text.strip_prefix(br#"{"event":""#) else { return false };
    let Some(kind) = rest.iter().position(|byte| *byte == b'"') else { return false };
    let behind =
        rest[kind..].strip_prefix(br#"","instance":""#).and_then(|rest| rest.strip_prefix(instance.as_bytes()));
    behind.is_some_and(|rest| rest.starts_with(b"\""))
}

/// Sets the owner of a lease that ended, how it shared its resource, and for how long it was held.
pub(crate) fn set_end(event: &mut Event, end: &OwnEnd, held: Duration) {
    event.owner = (!end.owner.is_empty()).then(|| end.owner.to_string());
    event.after_ms = u64::try_from(held.as_millis()).ok();
    if let Some(mode) = end.mode {
        set_mode(event, mode);
    }
}

/// Sets the resource and the lease (the id of its token) of an event.
pub(crate) fn set_lease(event: &mut Event, resource: &ResourceName, token: &TokenHash) {
    event.resource = Some(resource.as_str().to_owned());
    event.token_id = Some(token.id_text().to_owned());
}

/// Sets how the lease of an event shares its resource; nothing for an exclusive one.
pub(crate) fn set_mode(event: &mut Event, mode: Mode) {
    event.mode = Some(mode.wanted()).filter(|m| *m != WantedMode::Exclusive).map(|m| m.as_str().to_owned());
    event.slot = mode.slot();
}
