//! A granted lease as the body of an answer, with owned texts or, in the answer that most acquires get, with borrowed ones.

use std::collections::BTreeMap;

use super::to_wire;
use crate::api;
use crate::http::format;
use crate::http::state::AnswerTime;
use crate::manager::types::GrantedLease;
use crate::types::{PermitLimit, TokenHash};

/// The lease without its token. If the time of grant is unknown, the labels were not read from the nodes; they are left out
/// rather than shown as empty.
pub(super) fn lease_body(lease: &GrantedLease, time: AnswerTime) -> api::Lease {
    LeaseTexts::of(lease, time).lease(lease, BTreeMap::clone)
}

/// The texts of a lease's answer that the lease itself does not have.
pub(super) struct LeaseTexts {
    hash: TokenHash,
    valid_for_ms: u64,
    acquired_at: String,
    expires_at: String,
    kept_until: Option<String>,
}

impl LeaseTexts {
    pub(super) fn of(lease: &GrantedLease, time: AnswerTime) -> Self {
        let valid_for_ms = format::ms(lease.deadline.since(time.now));
        Self {
            hash: lease.token.hash(),
            valid_for_ms,
            acquired_at: format::time(lease.labels.acquired_at_ms),
            expires_at: format::time(time.wall_ms.saturating_add(valid_for_ms)),
            kept_until: lease.kept_for.map(|_| format::time(lease.labels.kept_until_ms)),
        }
    }

    /// The lease with owned or borrowed texts.
    fn lease<'a, S: From<&'a str>, M>(
        &'a self,
        lease: &'a GrantedLease,
        metadata: impl FnOnce(&'a BTreeMap<String, String>) -> M,
    ) -> api::Lease<S, M> {
        let labels = Some(&lease.labels).filter(|l| l.acquired_at_ms > 0);
        api::Lease {
            resource: lease.resource.as_str().into(),
            mode: lease.mode.wanted().as_str().into(),
            slot: lease.mode.slot(),
            limit: lease.mode.wanted().limit().map(PermitLimit::get),
            token: None,
            token_id: self.hash.id_text().into(),
            fence: lease.fence.0,
            owner: labels.map(|l| l.owner.as_str().into()),
            note: labels.map(|l| l.note.as_str().into()),
            metadata: labels.map(|l| metadata(&l.metadata)),
            acquired_at: labels.map(|_| self.acquired_at.as_str().into()),
            expires_at: self.expires_at.as_str().into(),
            ttl_ms: lease.ttl.as_ms(),
            valid_for_ms: self.valid_for_ms,
            kept_until: self.kept_until.as_ref().map(|until| until.as_str().into()),
            kept_for_ms: lease.kept_for.map(format::ms),
            waited_ms: None,
            renewals: None,
            quorum: to_wire::quorum(lease.quorum),
        }
    }

    /// As [`lease_with_token`], of borrowed texts.
    pub(super) fn with_token<'a>(
        &'a self,
        lease: &'a GrantedLease,
    ) -> api::Lease<&'a str, &'a BTreeMap<String, String>> {
        let (token, waited_ms) = (Some(api::TokenText(lease.token.reveal())), Some(format::ms(lease.waited)));
        api::Lease { token, waited_ms, ..self.lease(lease, |metadata| metadata) }
    }
}

/// The lease with its token, for a stream that holds it.
pub(crate) fn lease_with_token(lease: &GrantedLease, time: AnswerTime) -> api::Lease {
    let token = Some(api::TokenText(lease.token.reveal().to_owned()));
    api::Lease { token, waited_ms: Some(format::ms(lease.waited)), ..lease_body(lease, time) }
}
