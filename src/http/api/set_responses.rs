//! Answers about several locks at once.

use axum::http::StatusCode;
use axum::response::Response;

use super::lock_responses::{json, lease_body, lease_with_token, put_token, text};
use crate::api;
use crate::http::format;
use crate::http::negotiation::ResponseFormat;
use crate::http::state::AnswerTime;
use crate::manager::types::{ExtendedLease, GrantedLease};

/// 201 for a set, or 200 if its token already held all of it: the token, and the fence of each lease.
pub(crate) fn acquired(leases: &[GrantedLease], time: AnswerTime, format: ResponseFormat) -> Response {
    let first = leases.iter().min_by_key(|lease| lease.replay).expect("a set has a lease of each resource");
    let status = if first.replay { StatusCode::OK } else { StatusCode::CREATED };
    let mut response = match format {
        ResponseFormat::Text => text(status, format!("{}\n", first.token.reveal())),
        ResponseFormat::Json => {
            let common = lease_with_token(first, time);
            let each = leases.iter().map(|lease| api::LeaseOfSet {
                resource: lease.resource.to_string(),
                fence: lease.fence.0,
                is_replay: lease.replay,
            });
            let body = api::LeaseSet {
                leases: each.collect(),
                mode: common.mode,
                token: common.token,
                token_id: common.token_id,
                owner: common.owner,
                note: common.note,
                metadata: common.metadata,
                acquired_at: common.acquired_at,
                expires_at: common.expires_at,
                ttl_ms: common.ttl_ms,
                valid_for_ms: common.valid_for_ms,
                kept_until: common.kept_until,
                kept_for_ms: common.kept_for_ms,
                waited_ms: common.waited_ms,
                quorum: common.quorum,
            };
            json(status, &body)
        }
    };
    put_token(&mut response, &first.token);
    response
}

/// One extended lease of several.
pub(crate) fn extended(extended: &ExtendedLease, time: AnswerTime) -> api::SetResult {
    let lease = lease_body(&extended.lease, time);
    api::SetResult {
        fence: Some(lease.fence),
        expires_at: Some(lease.expires_at),
        valid_for_ms: Some(lease.valid_for_ms),
        ..api::SetResult::of(&lease.resource, StatusCode::OK.as_u16())
    }
}

/// 200 if all succeeded.
pub(crate) fn results(results: Vec<api::SetResult>, format: ResponseFormat) -> Response {
    match format {
        ResponseFormat::Json => {
            let valid_for_ms = results.iter().filter_map(|result| result.valid_for_ms).min();
            json(StatusCode::OK, &api::SetResults { results, valid_for_ms })
        }
        ResponseFormat::Text => {
            let row = |result: &api::SetResult| format::tabs(&[&result.resource, &result.status.to_string()]);
            text(StatusCode::OK, results.iter().map(row).collect::<String>())
        }
    }
}
