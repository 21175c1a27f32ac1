//! The fields of events that several modules set, and which events of other instances are accepted.

use std::time::Duration;

use super::event_kind::EventKind;
use super::own_leases::OwnEnd;
use crate::api::Event;
use crate::types::{Mode, ResourceName, TokenHash, WantedMode};

/// Maximum length of an event's name, in bytes: an instance's name and a number take less.
const NAME_MAX: usize = 64;

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
