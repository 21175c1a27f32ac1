//! The data that an instance publishes of its waiters: counts, ages and owners; never a token or its hash. Bounded on write and
//! checked on read, since any client of a node may write there.

use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::types::{OWNER_MAX_BYTES, PermitLimit, ResourceName, WantedMode};

/// How long a node keeps an entry: the waiters of an instance that died stay visible for this long.
pub const WAITERS_TTL: Duration = Duration::from_secs(10);
/// Maximum number of entries in one reply, which is half a megabyte long with the largest ones.
pub(crate) const PAGE_ENTRIES: usize = 8;
/// The maximum length of an entry, in bytes: some hundred resources with their first waiters. Further ones are only counted.
pub const WAITERS_ENTRY_MAX_BYTES: usize = 64 * 1_024;
/// Maximum number of waiters that are listed for each resource, from the head of its queue on. Further ones are only counted.
pub const FIRST_WAITERS_MAX: usize = 8;
/// Maximum length of the published part of a note, in bytes: other instances show its beginning.
pub const WAITER_NOTE_MAX_BYTES: usize = 96;
/// Maximum number of listed places, those that have waited longest: [`PublishedPlace`].
pub(crate) const PLACES_MAX: usize = 256;
/// The length of a place's tag: hexadecimal digits.
pub(crate) const PLACE_TAG_BYTES: usize = 32;
/// The maximum length of an instance's name, in bytes.
const INSTANCE_MAX_BYTES: usize = 32;
/// The maximum length of the members around the list of resources.
const FRAME_MAX_BYTES: usize = 256;

/// Names one run of one instance.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct InstanceName(Arc<str>);

impl InstanceName {
    /// Checks a name: 1 to 32 letters, digits, `.`, `_` or `-`.
    pub fn parse(text: &str) -> Option<Self> {
        let is_plain = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'_' | b'-');
        let is_valid = (1..=INSTANCE_MAX_BYTES).contains(&text.len()) && text.bytes().all(is_plain);
        is_valid.then(|| Self(text.into()))
    }

    /// The name of an instance that drew these random bits at its start.
    pub fn from_random(bits: u64) -> Self {
        Self(format!("{bits:016x}").into())
    }

    /// The name as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl std::fmt::Display for InstanceName {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

/// The waiters of one instance.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct WaitersEntry {
    /// Rises with each entry of an instance, so that the newest of several nodes' entries is known.
    #[serde(rename = "v")]
    pub stamp: u64,
    /// Number of all waiters of the instance.
    #[serde(rename = "n")]
    pub waiting: usize,
    /// How long the oldest of them had waited when the entry was written. Milliseconds.
    #[serde(rename = "t")]
    pub oldest_ms: u64,
    /// The waiters by resource; if not all fit, those that have waited longest.
    #[serde(rename = "r")]
    pub resources: Vec<PublishedResource>,
    /// Places that another instance may take over; earlier releases write none.
    #[serde(rename = "p", default)]
    pub places: Vec<PublishedPlace>,
}

/// The place of a request with a `wait_id`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PublishedPlace {
    /// A digest of names, principal and `wait_id`, [`PLACE_TAG_BYTES`] long.
    #[serde(rename = "p")]
    pub tag: Arc<str>,
    /// How long the request had waited when the entry was written. Milliseconds.
    #[serde(rename = "t")]
    pub waiting_ms: u64,
}

/// The waiters for one resource at one instance.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PublishedResource {
    /// The resource's name, checked by [`WaitersEntry::parse`].
    #[serde(rename = "r")]
    pub resource: Arc<str>,
    /// Number of waiters for the resource at the instance.
    #[serde(rename = "n")]
    pub waiting: usize,
    /// The first of them in order, at least one, at most [`FIRST_WAITERS_MAX`].
    #[serde(rename = "w")]
    pub first: Vec<PublishedWaiter>,
}

/// A waiter as other instances see it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PublishedWaiter {
    /// The waiter's owner label.
    #[serde(rename = "o", default, skip_serializing_if = "str::is_empty")]
    pub owner: Arc<str>,
    /// How long it had waited when the entry was written. Milliseconds.
    #[serde(rename = "t")]
    pub waiting_ms: u64,
    /// How the waiter shares the resource: 1 with shared leases; more: as one of this many permits; 0: not at all.
    #[serde(rename = "m", default, skip_serializing_if = "is_exclusive")]
    pub shares: u8,
    /// The waiter's maximum further wait when the entry was written, in milliseconds; earlier releases do not write it.
    #[serde(rename = "u", default, skip_serializing_if = "Option::is_none")]
    pub left_ms: Option<u64>,
    /// The beginning of the waiter's note, see [`Self::note_of`].
    #[serde(rename = "c", default, skip_serializing_if = "str::is_empty")]
    pub note: Arc<str>,
    /// A ticket waits instead of a connection; earlier releases do not write this.
    #[serde(rename = "k", default, skip_serializing_if = "std::ops::Not::not")]
    pub is_ticket: bool,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde's signature")]
fn is_exclusive(shares: &u8) -> bool {
    *shares == 0
}

impl PublishedWaiter {
    /// The mode that the waiter waits for.
    pub fn mode(&self) -> WantedMode {
        match (self.shares, PermitLimit::new(self.shares.into())) {
            (1, _) => WantedMode::Shared,
            (_, Some(limit)) => WantedMode::Permit { limit },
            _ => WantedMode::Exclusive,
        }
    }

    /// A note, or its beginning with an ellipsis: at most [`WAITER_NOTE_MAX_BYTES`].
    pub fn note_of(note: &Arc<str>) -> Arc<str> {
        if note.len() <= WAITER_NOTE_MAX_BYTES {
            return Arc::clone(note);
        }
        const ELLIPSIS: char = '…';
        let end = note.floor_char_boundary(WAITER_NOTE_MAX_BYTES - ELLIPSIS.len_utf8());
        format!("{}{ELLIPSIS}", &note[..end]).into()
    }

    /// [`Self::shares`] of a waiter.
    pub fn shares_of(mode: WantedMode) -> u8 {
        match mode {
            WantedMode::Exclusive => 0,
            WantedMode::Shared => 1,
            WantedMode::Permit { limit } => limit.get(),
        }
    }
}

impl WaitersEntry {
    /// As stored on the nodes, at most [`WAITERS_ENTRY_MAX_BYTES`] long. Resources beyond that are left out, from the end;
    /// `waiting` and `oldest_ms` still count them. At most [`PLACES_MAX`] places are written.
    pub fn encode(&self) -> String {
        let places = self.places.get(..PLACES_MAX).unwrap_or(&self.places);
        let places = serde_json::to_string(places).unwrap_or_else(|_| "[]".to_owned());
        let mut resources = String::new();
        for resource in &self.resources {
            let Ok(text) = serde_json::to_string(resource) else { continue };
            if places.len() + resources.len() + text.len() + FRAME_MAX_BYTES > WAITERS_ENTRY_MAX_BYTES {
                break;
            }
            if !resources.is_empty() {
                resources.push(',');
            }
            resources.push_str(&text);
        }
        let Self { stamp, waiting, oldest_ms, .. } = self;
        format!(r#"{{"v":{stamp},"n":{waiting},"t":{oldest_ms},"p":{places},"r":[{resources}]}}"#)
    }

    /// Reads a stored entry; `None` for data that no instance writes.
    pub fn parse(bytes: &[u8]) -> Option<Self> {
        let entry: Self = serde_json::from_slice(bytes).ok()?;
        let is_valid = |r: &PublishedResource| {
            ResourceName::parse(&r.resource).is_ok()
                && (1..=FIRST_WAITERS_MAX).contains(&r.first.len())
                && r.first.len() <= r.waiting
                && r.first.iter().all(|w| w.owner.len() <= OWNER_MAX_BYTES && w.note.len() <= WAITER_NOTE_MAX_BYTES)
        };
        let named = entry.resources.iter().try_fold(0_usize, |sum, r| sum.checked_add(r.waiting));
        let has_places =
            entry.places.len() <= PLACES_MAX && entry.places.iter().all(|place| place.tag.len() == PLACE_TAG_BYTES);
        let has_all = named.is_some_and(|named| named <= entry.waiting) && entry.resources.iter().all(is_valid);
        (has_places && has_all).then_some(entry)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn resource(name: &str, waiting: usize, owner: &str) -> PublishedResource {
        let note = PublishedWaiter::note_of(&"é".repeat(99).into());
        assert_eq!((note.len(), note.chars().last()), (95, Some('…')));
        let (owner, is_ticket) = (owner.into(), owner.is_empty());
        let first = vec![PublishedWaiter { owner, waiting_ms: 7, shares: 3, left_ms: Some(8), note, is_ticket }];
        PublishedResource { resource: name.into(), waiting, first }
    }

    #[test]
    fn an_entry_is_read_back() {
        let resources = vec![resource("a/b", 3, "ci \"7\"|\u{202e}"), resource("c", 1, "")];
        let places = vec![PublishedPlace { tag: "0".repeat(PLACE_TAG_BYTES).into(), waiting_ms: 9 }];
        let entry = WaitersEntry { stamp: 4, waiting: 5, oldest_ms: 9, resources, places };
        assert_eq!(WaitersEntry::parse(entry.encode().as_bytes()), Some(entry));
        let nothing = WaitersEntry { stamp: 5, ..WaitersEntry::default() };
        assert_eq!(WaitersEntry::parse(nothing.encode().as_bytes()), Some(nothing));
    }

    #[test]
    fn an_entry_has_a_maximum_size_and_counts_what_it_leaves_out() {
        let owner = "\u{1}".repeat(OWNER_MAX_BYTES);
        let resources: Vec<_> = (0..5_000).map(|i| resource(&format!("name/{i}"), 2, &owner)).collect();
        let place = PublishedPlace { tag: "f".repeat(PLACE_TAG_BYTES).into(), waiting_ms: u64::MAX };
        let places = vec![place; PLACES_MAX + 1];
        let entry = WaitersEntry { stamp: u64::MAX, waiting: 10_000, oldest_ms: u64::MAX, resources, places };
        let text = entry.encode();
        let read = WaitersEntry::parse(text.as_bytes()).expect("valid");
        assert!(text.len() <= WAITERS_ENTRY_MAX_BYTES && text.len() > WAITERS_ENTRY_MAX_BYTES / 2, "{}", text.len());
        assert_eq!((read.waiting, &read.resources[..]), (10_000, &entry.resources[..read.resources.len()]));
        assert!(!read.resources.is_empty() && read.places == entry.places[..PLACES_MAX]);
    }

    #[test]
    fn what_no_instance_writes_is_refused() {
        let text = |r: &str| format!(r#"{{"v":1,"n":2,"t":3,"r":[{r}]}}"#);
        assert!(WaitersEntry::parse(text(r#"{"r":"x","n":2,"w":[{"t":1}]}"#).as_bytes()).is_some());
        for bad in [
            r#"{"r":"a b","n":1,"w":[{"t":1}]}"#,
            r#"{"r":"redlockd:meta","n":1,"w":[{"t":1}]}"#,
            r#"{"r":"x","n":3,"w":[{"t":1}]}"#,
            r#"{"r":"x","n":1,"w":[]}"#,
            r#"{"r":"x","n":1,"w":[{"t":1},{"t":1}]}"#,
            r#"{"r":"x","n":1,"w":[{"t":-1}]}"#,
            &format!(r#"{{"r":"x","n":1,"w":[{{"t":1,"c":"{}"}}]}}"#, "x".repeat(WAITER_NOTE_MAX_BYTES + 1)),
            r#"{"r":"x","n":18446744073709551615,"w":[{"t":1}]},{"r":"y","n":2,"w":[{"t":1}]}"#,
        ] {
            assert_eq!(WaitersEntry::parse(text(bad).as_bytes()), None, "{bad}");
        }
        let place = r#"{"p":"00000000000000000000000000000000","t":1}"#;
        let with =
            |places: &str| WaitersEntry::parse(format!(r#"{{"v":1,"n":0,"t":0,"p":[{places}],"r":[]}}"#).as_bytes());
        assert!(with(place).is_some() && with(r#"{"p":"short","t":1}"#).is_none());
        assert_eq!(with(&vec![place; PLACES_MAX + 1].join(",")), None, "more than an instance writes");
        assert_eq!(WaitersEntry::parse(b"\xff"), None);
    }

    #[test]
    fn names_of_instances_are_short_and_plain() {
        for good in ["0123456789abcdef", "host-1.example_2"] {
            assert_eq!(InstanceName::parse(good).map(|n| n.to_string()).as_deref(), Some(good));
        }
        for bad in ["", "a b", "a:b", "\u{e9}", &"x".repeat(33)] {
            assert_eq!(InstanceName::parse(bad), None, "{bad}");
        }
    }
}
