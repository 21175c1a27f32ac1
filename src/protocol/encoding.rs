//! What the nodes of a round would each compute of its request: the first one leaves it to the others.

use std::borrow::Cow;
use std::fmt;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use super::commands;
use super::keys::KeyTemplate;
use super::params::RequestTime;
use super::request::Request;
use super::script::{EncodedRequest, ScriptContext};

/// Shared by all clones of a round's stamp.
#[derive(Clone, Default)]
pub(super) struct RoundEncoding(Arc<OnceLock<OfRequest>>);

struct OfRequest {
    /// Kept, so that no other request gets its address.
    request: Arc<Request>,
    order: OnceLock<u64>,
    encoded: OnceLock<(Basis, EncodedRequest)>,
}

/// What the encoding depends on besides the request.
#[derive(PartialEq, Eq)]
struct Basis {
    sent_at: RequestTime,
    lock_delay: Duration,
    attempt_tombstone: Duration,
    template: KeyTemplate,
}

impl Basis {
    fn is(&self, context: &ScriptContext<'_>, sent_at: RequestTime) -> bool {
        self.sent_at == sent_at
            && self.lock_delay == context.params.lock_delay
            && self.attempt_tombstone == context.params.attempt_tombstone()
            && self.template == *context.template
    }
}

impl RoundEncoding {
    /// `None`: another request used the same stamp before.
    fn of(&self, request: &Arc<Request>) -> Option<&OfRequest> {
        let new = || OfRequest { request: Arc::clone(request), order: OnceLock::new(), encoded: OnceLock::new() };
        Some(self.0.get_or_init(new)).filter(|of| Arc::ptr_eq(&of.request, request))
    }

    /// `key` of the request.
    pub(super) fn order<'a>(&self, request: &'a Arc<Request>, key: impl FnOnce(&'a Request) -> u64) -> u64 {
        match self.of(request) {
            Some(of) => *of.order.get_or_init(|| key(request)),
            None => key(request),
        }
    }

    /// The request, encoded for nodes with these parameters; `None` if it shares no commands.
    pub(super) fn encoded(
        &self,
        context: &ScriptContext<'_>,
        sent_at: RequestTime,
        request: &Arc<Request>,
    ) -> Option<Cow<'_, EncodedRequest>> {
        let encode = || commands::encode(context, sent_at, request);
        let Some(of) = self.of(request) else { return encode().map(Cow::Owned) };
        if let Some((basis, encoded)) = of.encoded.get() {
            return if basis.is(context, sent_at) { Some(Cow::Borrowed(encoded)) } else { encode().map(Cow::Owned) };
        }
        let (first, attempt_tombstone) = (encode()?, context.params.attempt_tombstone());
        let (lock_delay, template) = (context.params.lock_delay, context.template.clone());
        let basis = Basis { sent_at, lock_delay, attempt_tombstone, template };
        // Another node of the round was faster, perhaps with other parameters: its encoding is not this node's.
        if let Err((_, own)) = of.encoded.set((basis, first)) {
            return Some(Cow::Owned(own));
        }
        of.encoded.get().map(|(_, encoded)| Cow::Borrowed(encoded))
    }
}

impl fmt::Debug for RoundEncoding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("RoundEncoding")
    }
}

/// It follows from the request.
impl PartialEq for RoundEncoding {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

impl Eq for RoundEncoding {}
