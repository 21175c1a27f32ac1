//! Call-backs as the manager uses them: address, message, and result. `webhooks` delivers them: it is a layer above,
//! so the manager and the simulation use only this trait.

use std::fmt;
use std::sync::Arc;

use futures_util::future::BoxFuture;
use serde_json::{Map, Value};
use tokio_util::sync::CancellationToken;

use crate::auth::principal::PrincipalName;
use crate::redlock::clock::BootTime;
use crate::types::Invalid;

/// Maximum length of a call-back's address in a request.
pub const CALLBACK_MAX_BYTES: usize = 2_048;

/// The address of call-backs: `target:NAME`, or a URL below that target's. The URL is a secret beyond the target's
/// prefix, and `Debug` shows only the target's name.
#[derive(Clone, PartialEq, Eq)]
pub struct Callback {
    target: Arc<str>,
    address: Arc<str>,
}

impl Callback {
    /// An address that was resolved, here or at another instance.
    pub fn new(target: &str, address: &str) -> Self {
        Self { target: target.into(), address: address.into() }
    }

    /// The target's name: for pages and logs.
    pub fn target(&self) -> &str {
        &self.target
    }

    /// The address as in the request. A secret: only to be stored sealed, and to be sent to.
    pub fn reveal(&self) -> &str {
        &self.address
    }
}

impl fmt::Debug for Callback {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Callback(target {})", self.target)
    }
}

/// The fact that a call-back reports.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum CallbackKind {
    /// The ticket has its lease.
    Granted,
    /// The ticket will not get a lease.
    Refused,
    /// The ticket's lease ends soon.
    Ending,
    /// The ticket's lease was lost.
    Lost,
}

impl CallbackKind {
    pub const ALL: [Self; 4] = [Self::Granted, Self::Refused, Self::Ending, Self::Lost];

    /// The member `type` of the message.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Granted => "lock.granted",
            Self::Refused => "lock.refused",
            Self::Ending => "lock.ending",
            Self::Lost => "lock.lost",
        }
    }
}

/// One message of a ticket. It contains no secret.
#[derive(Debug, Clone, PartialEq)]
pub struct CallbackEvent {
    /// The header `webhook-id`: the same over all tries and all instances, without a dot, such as `tk_…_granted`.
    pub id: String,
    pub kind: CallbackKind,
    /// When the fact happened. Milliseconds since 1970.
    pub at_ms: u64,
    /// The member `data` of the message.
    pub data: Map<String, Value>,
    /// Stands for the principal of the ticket, and is not sent: one principal's messages use only a part of the tries
    /// at a time. Empty without authentication.
    pub principal: String,
}

/// The outcome of a call-back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DeliveryOutcome {
    /// The receiver answered with 2xx.
    Accepted,
    /// The receiver answered with 410: it wants nothing more of this ticket.
    Gone,
    /// No try was accepted until the deadline.
    Undelivered,
    /// The caller cancelled the call-back before an answer. It may have arrived.
    Cancelled,
}

/// Why an address for call-backs is not accepted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CallbackRefused {
    /// The address is malformed, too long, or has parts that no such address may have.
    Invalid(Invalid),
    /// No target with this name or above this URL is open to the principal. The sentence names only targets that the
    /// caller named itself.
    NotAllowed(String),
}

/// Delivers call-backs.
pub trait CallbackSender: Send + Sync + 'static {
    /// Checks the address of a request: `target:NAME`, or a URL below a target. `principal`: `None` without
    /// authentication, where every caller may do everything.
    ///
    /// Errors: [`CallbackRefused`].
    fn resolve(&self, address: &str, principal: Option<&PrincipalName>) -> Result<Callback, CallbackRefused>;

    /// The address in the form that may be stored on the nodes; `None`: the target's own address, which the target's
    /// name stands for. `context`: as for [`Self::open`].
    ///
    /// Errors: [`CallbackRefused`] if no key can seal it.
    fn seal(&self, callback: &Callback, context: &str) -> Result<Option<String>, CallbackRefused>;

    /// The address that some instance has stored. If no key of this instance opens it, messages to it fail.
    fn open(&self, target: &str, sealed: Option<&str>, context: &str) -> Callback;

    /// Makes all tries of one message until an answer of 2xx or 410, at the latest until `until`, even if no slot was free. A try
    /// under way then is awaited (at most 10 s), and counts. Each try looks up its target: a rotated secret is used at once.
    ///
    /// Cancel: the try under way is dropped; it may have arrived.
    fn deliver(
        &self,
        callback: Callback,
        event: CallbackEvent,
        until: BootTime,
        cancel: CancellationToken,
    ) -> BoxFuture<'static, DeliveryOutcome>;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_never_printed() {
        let callback = Callback::new("n8n", "https://n8n.example.com/webhook-waiting/17?signature=5e");
        assert_eq!(format!("{callback:?}"), "Callback(target n8n)");
    }
}
