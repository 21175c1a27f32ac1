//! A ticket as nodes store it: a head that only rises, the time of the caller's last request, the serving instance, and a body
//! that never changes.

use data_encoding::HEXLOWER;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::protocol::{InstanceName, SET_MAX};
use crate::types::{Fence, Labels, PermitLimit, ResourceName, TokenHash, Ttl, WantedMode};

/// The maximum length of a ticket's value: labels and a call-back's sealed URL take about half, sixteen names a quarter. Bytes.
pub const TICKET_MAX_BYTES: usize = 16 * 1024;
/// Digits of a time in milliseconds.
pub(in crate::protocol) const TIME_DIGITS: usize = 14;
const FENCE_DIGITS: usize = 16;
/// All fences are below this.
const FENCES_END: u64 = 1 << 53;
/// The length of a head.
pub(in crate::protocol) const HEAD_BYTES: usize = 1 + FENCE_DIGITS + 2 * TIME_DIGITS + 2 + TIME_DIGITS;
/// The length of an instance's name in a ticket.
pub(in crate::protocol) const SERVER_BYTES: usize = 16;
/// The length of the separator between head and body.
pub(in crate::protocol) const STAMP_BYTES: usize = TIME_DIGITS + SERVER_BYTES;
/// An instance's name in a ticket, padded to a fixed length.
pub(in crate::protocol) fn padded(server: &InstanceName) -> String {
    format!("{:-<s$.s$}", server.as_str(), s = SERVER_BYTES)
}

const ID_PREFIX: &str = "tk_";
const ID_DIGITS: usize = 32;

/// Names a ticket. Not secret.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct TicketId(std::sync::Arc<str>);

impl TicketId {
    /// The id for the request with this token for this resource: a repeated request has the same ticket.
    pub fn of(cluster: &str, resource: &ResourceName, token: &TokenHash) -> Self {
        let digest = Sha256::digest(format!("ticket\0{cluster}\0{resource}\0{}", token.as_str()));
        Self([ID_PREFIX, &HEXLOWER.encode(&digest[..ID_DIGITS / 2])].concat().into())
    }

    /// Reads an id; `None` for any other text.
    pub fn parse(text: &str) -> Option<Self> {
        let digits = text.strip_prefix(ID_PREFIX)?;
        let is_hex = |b: u8| b.is_ascii_digit() || (b'a'..=b'f').contains(&b);
        (digits.len() == ID_DIGITS && digits.bytes().all(is_hex)).then(|| Self(text.into()))
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl std::fmt::Display for TicketId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

/// The progress of a ticket. It never goes back.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum TicketPhase {
    /// The ticket waits for its lease.
    Waiting,
    /// The ticket has a lease, which its caller may not know yet. From now on no instance acquires for it.
    Granted,
    /// The caller knows of the lease.
    Accepted,
    /// The ticket is over; its lease may still have to be released, or its caller informed.
    Ended,
    /// Nothing remains to be done.
    Done,
}

impl TicketPhase {
    const ALL: [Self; 5] = [Self::Waiting, Self::Granted, Self::Accepted, Self::Ended, Self::Done];
}

/// Why a ticket is over. If two instances end a ticket for different reasons, the later one in this list counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum TicketEnd {
    /// The lease expired before the end of the time for which it was to be kept.
    Lost,
    /// The time for which the lease was to be kept has passed.
    KeptOut,
    /// The ticket's wait has ended.
    WaitTimeout,
    /// The ticket was the newest in a deadlock.
    Deadlock,
    /// The grant was not accepted in time.
    Undelivered,
    /// An operator ended the lease.
    Forced,
    /// The caller gave the ticket up while it waited.
    Cancelled,
    /// The caller released the lease.
    Released,
}

impl TicketEnd {
    /// All reasons, in order.
    pub const ALL: [Self; 8] = [
        Self::Lost,
        Self::KeptOut,
        Self::WaitTimeout,
        Self::Deadlock,
        Self::Undelivered,
        Self::Forced,
        Self::Cancelled,
        Self::Released,
    ];

    /// The word in answers, metrics and events.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Lost => "lost",
            Self::KeptOut => "kept-out",
            Self::WaitTimeout => "wait-timeout",
            Self::Deadlock => "deadlock",
            Self::Undelivered => "undelivered",
            Self::Forced => "forced",
            Self::Cancelled => "cancelled",
            Self::Released => "released",
        }
    }
}

/// The state of a ticket. Of two heads the larger one, in the order of the fields, is the later.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct TicketHead {
    pub phase: TicketPhase,
    /// The lease's fence, once it is granted; 0 before.
    pub fence: Fence,
    /// Until when the lease was to be kept at its grant, on the cluster clock. Milliseconds since 1970.
    pub kept_until_ms: u64,
    /// Until when the grant may be accepted, on the cluster clock. Milliseconds since 1970.
    pub accept_by_ms: u64,
    /// Why the ticket is over, if it is.
    pub end: Option<TicketEnd>,
    /// When the ticket entered this state, on the cluster clock. Milliseconds since 1970.
    pub since_ms: u64,
}

impl TicketHead {
    /// The head of a new ticket.
    pub fn waiting(since_ms: u64) -> Self {
        Self { phase: TicketPhase::Waiting, fence: Fence(0), kept_until_ms: 0, accept_by_ms: 0, end: None, since_ms }
    }

    /// This state with another phase, from this time on.
    #[must_use]
    pub fn at(self, phase: TicketPhase, since_ms: u64) -> Self {
        Self { phase, since_ms, ..self }
    }

    /// The ended state with this reason, unless there was another reason before.
    #[must_use]
    pub fn ended(self, phase: TicketPhase, end: TicketEnd, since_ms: u64) -> Self {
        Self { phase, end: self.end.or(Some(end)), since_ms, ..self }
    }

    /// As stored: with fixed numbers of digits, so that the order of texts is that of heads.
    pub fn encode(&self) -> String {
        let phase = self.phase as usize;
        let end = self.end.map_or(0, |end| end as usize + 1);
        let time = |ms: u64| ms.min(10_u64.pow(14) - 1);
        format!(
            "{phase}{:0f$}{:0t$}{:0t$}{end:02}{:0t$}",
            self.fence.0,
            time(self.kept_until_ms),
            time(self.accept_by_ms),
            time(self.since_ms),
            f = FENCE_DIGITS,
            t = TIME_DIGITS
        )
    }

    /// Reads a head; `None` for any other text.
    pub fn parse(text: &str) -> Option<Self> {
        if text.len() != HEAD_BYTES || !text.bytes().all(|b| b.is_ascii_digit()) {
            return None;
        }
        let mut at = 0;
        let mut number = |digits: usize| {
            let part = text.get(at..at + digits)?;
            at += digits;
            part.parse::<u64>().ok()
        };
        let phase = *TicketPhase::ALL.get(usize::try_from(number(1)?).ok()?)?;
        let fence = Fence(number(FENCE_DIGITS).filter(|fence| *fence < FENCES_END)?);
        let kept_until_ms = number(TIME_DIGITS)?;
        let accept_by_ms = number(TIME_DIGITS)?;
        let end = match usize::try_from(number(2)?).ok()? {
            0 => None,
            place => Some(*TicketEnd::ALL.get(place - 1)?),
        };
        Some(Self { phase, fence, kept_until_ms, accept_by_ms, end, since_ms: number(TIME_DIGITS)? })
    }
}

/// The receiver of the messages about a ticket.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TicketCallback {
    /// Name of the target.
    #[serde(rename = "t")]
    pub target: String,
    /// The address below the target, sealed; `None`: the target's own.
    #[serde(rename = "s", default, skip_serializing_if = "Option::is_none")]
    pub sealed: Option<String>,
    /// How long the grant is offered. Milliseconds.
    #[serde(rename = "a")]
    pub accept_ms: u64,
}

/// Omits the address.
impl std::fmt::Debug for TicketCallback {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "TicketCallback(target {})", self.target)
    }
}

/// The request of a ticket.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TicketBody {
    #[serde(rename = "r")]
    resource: String,
    #[serde(rename = "o", default, skip_serializing_if = "Vec::is_empty")]
    others: Vec<String>,
    #[serde(rename = "h")]
    token: String,
    /// Labels of the lease, including the principal that made the ticket.
    #[serde(rename = "l")]
    pub labels: Labels,
    #[serde(rename = "t")]
    ttl_ms: u64,
    /// How long after the grant the lease is kept. Milliseconds.
    #[serde(rename = "k")]
    pub keep_ms: u64,
    /// When the ticket was made, on the cluster clock. Milliseconds since 1970.
    #[serde(rename = "c")]
    pub made_ms: u64,
    /// Until when the ticket waits, on the cluster clock. Milliseconds since 1970.
    #[serde(rename = "w")]
    pub wait_until_ms: u64,
    /// The ticket ends if it is the newest in a deadlock.
    #[serde(rename = "d", default, skip_serializing_if = "std::ops::Not::not")]
    pub refuses_deadlock: bool,
    /// 0: exclusive, 1: shared, else one of this many permits.
    #[serde(rename = "m", default, skip_serializing_if = "is_exclusive")]
    mode: u8,
    /// The receiver of messages; `None`: the caller polls.
    #[serde(rename = "b", default, skip_serializing_if = "Option::is_none")]
    pub callback: Option<TicketCallback>,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde's signature")]
fn is_exclusive(mode: &u8) -> bool {
    *mode == 0
}

fn mode_number(mode: WantedMode) -> u8 {
    match mode {
        WantedMode::Exclusive => 0,
        WantedMode::Shared => 1,
        WantedMode::Permit { limit } => limit.get(),
    }
}

fn mode_of(number: u8) -> Option<WantedMode> {
    match number {
        0 => Some(WantedMode::Exclusive),
        1 => Some(WantedMode::Shared),
        limit => PermitLimit::new(limit.into()).map(|limit| WantedMode::Permit { limit }),
    }
}

/// Omits the labels, which may be long.
impl std::fmt::Debug for TicketBody {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("TicketBody").field("resource", &self.resource).finish_non_exhaustive()
    }
}

/// A body with checked names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ticket {
    /// The requested resource; of several the first.
    pub resource: ResourceName,
    /// The other resources; all are granted together or none.
    pub others: Vec<ResourceName>,
    /// Hash of the token of the future lease.
    pub token: TokenHash,
    /// TTL of the lease.
    pub ttl: Ttl,
    /// How the lease shares the resource.
    pub mode: WantedMode,
    /// The stored body, with the fields above.
    pub body: TicketBody,
}

/// The terms of a ticket's request, besides the names. Durations in milliseconds, times on the cluster clock since 1970.
#[derive(Debug, Clone)]
pub struct TicketTerms {
    /// Labels of the future lease.
    pub labels: Labels,
    /// How long after the grant the lease is kept.
    pub keep_ms: u64,
    /// When the ticket was made.
    pub made_ms: u64,
    /// Until when the ticket waits.
    pub wait_until_ms: u64,
    /// The ticket ends if it is the newest in a deadlock.
    pub refuses_deadlock: bool,
    /// How the lease shares the resource.
    pub mode: WantedMode,
    /// The receiver of messages; `None`: the caller polls.
    pub callback: Option<TicketCallback>,
}

impl Ticket {
    /// A ticket for one resource.
    pub fn new(resource: ResourceName, token: TokenHash, ttl: Ttl, terms: TicketTerms) -> Self {
        let TicketTerms { labels, keep_ms, made_ms, wait_until_ms, refuses_deadlock, mode, callback } = terms;
        let (name, hash, ttl_ms) = (resource.to_string(), token.as_str().to_owned(), ttl.as_ms());
        let body = TicketBody {
            resource: name,
            others: Vec::new(),
            token: hash,
            labels,
            ttl_ms,
            keep_ms,
            made_ms,
            wait_until_ms,
            refuses_deadlock,
            mode: mode_number(mode),
            callback,
        };
        Self { resource, others: Vec::new(), token, ttl, mode, body }
    }

    /// Adds these resources, which differ from the first one and from each other.
    #[must_use]
    pub fn with_others(mut self, others: Vec<ResourceName>) -> Self {
        self.body.others = others.iter().map(ToString::to_string).collect();
        Self { others, ..self }
    }

    /// All resources, in the order of the request.
    pub fn resources(&self) -> impl Iterator<Item = &ResourceName> + Clone {
        std::iter::once(&self.resource).chain(&self.others)
    }

    /// As stored.
    ///
    /// Errors: those of JSON, which cannot happen for texts and numbers.
    pub fn encode(&self) -> Result<String, serde_json::Error> {
        serde_json::to_string(&self.body)
    }

    /// Reads a body; `None` for a text that no instance writes.
    pub fn parse(text: &str) -> Option<Self> {
        let body: TicketBody = serde_json::from_str(text).ok()?;
        let resource = ResourceName::parse(&body.resource).ok()?;
        let (token, ttl) = (TokenHash::parse(&body.token)?, Ttl::from_ms(body.ttl_ms).ok()?);
        let mode = mode_of(body.mode)?;
        let others = body.others.iter().map(|name| ResourceName::parse(name).ok()).collect::<Option<Vec<_>>>()?;
        let is_valid = others.len() < SET_MAX && body.labels.check().is_ok();
        is_valid.then_some(Self { resource, others, token, ttl, mode, body })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn head() -> impl Strategy<Value = TicketHead> {
        let end = proptest::option::of(proptest::sample::select(TicketEnd::ALL.to_vec()));
        let phase = proptest::sample::select(TicketPhase::ALL.to_vec());
        let ms = || 0..10_u64.pow(14);
        (phase, 0..1_u64 << 53, ms(), ms(), end, ms()).prop_map(
            |(phase, fence, kept_until_ms, accept_by_ms, end, since_ms)| TicketHead {
                phase,
                fence: Fence(fence),
                kept_until_ms,
                accept_by_ms,
                end,
                since_ms,
            },
        )
    }

    proptest! {
        #[test]
        fn the_order_of_texts_is_that_of_heads(a in head(), b in head()) {
            prop_assert_eq!(TicketHead::parse(&a.encode()), Some(a));
            prop_assert_eq!(a.encode().cmp(&b.encode()), a.cmp(&b));
        }

        #[test]
        fn parsing_any_text_never_panics(text in ".{0,80}", digits in "[0-9]{61}") {
            let _ = (TicketHead::parse(&text), Ticket::parse(&text), TicketId::parse(&text));
            let _ = TicketHead::parse(&digits);
        }
    }

    #[test]
    fn a_ticket_is_read_back_and_named_by_its_request() {
        let (resource, token) = (ResourceName::parse("a/b").expect("valid"), TokenHash::parse(&"0f".repeat(32)));
        let (token, ttl) = (token.expect("hex"), Ttl::from_ms(30_000).expect("valid"));
        let labels = Labels { owner: "\u{e9}|".into(), ..Labels::default() };
        let limit = PermitLimit::new(3).expect("valid");
        for mode in [WantedMode::Exclusive, WantedMode::Shared, WantedMode::Permit { limit }] {
            let callback = TicketCallback { target: "t".into(), sealed: Some("SEALED".into()), accept_ms: 3 };
            assert_eq!(format!("{callback:?}"), "TicketCallback(target t)");
            let (labels, callback) = (labels.clone(), (mode == WantedMode::Shared).then_some(callback));
            let (keep_ms, made_ms, wait_until_ms, refuses_deadlock) = (7, 8, 9, true);
            let terms = TicketTerms { labels, keep_ms, made_ms, wait_until_ms, refuses_deadlock, mode, callback };
            let ticket = Ticket::new(resource.clone(), token.clone(), ttl, terms);
            assert_eq!(Ticket::parse(&ticket.encode().expect("text")), Some(ticket.clone()));
            let names =
                |count: usize| (0..count).map(|n| ResourceName::parse(&format!("n{n}")).expect("valid")).collect();
            let set = ticket.clone().with_others(names(SET_MAX - 1));
            assert_eq!(set.resources().count(), SET_MAX);
            assert_eq!(Ticket::parse(&set.encode().expect("text")), Some(set));
            assert_eq!(Ticket::parse(&ticket.with_others(names(SET_MAX)).encode().expect("text")), None, "too many");
        }
        assert_eq!(Ticket::parse("{}"), None);
        let id = TicketId::of("one", &resource, &token);
        assert_eq!(TicketId::parse(id.as_str()), Some(id.clone()));
        assert!(id != TicketId::of("two", &resource, &token), "of another cluster");
        for bad in ["", "tk_", "tk_0", &id.as_str().to_uppercase(), &format!("{id}0"), &id.as_str()[1..]] {
            assert_eq!(TicketId::parse(bad), None, "{bad}");
        }
    }
}
