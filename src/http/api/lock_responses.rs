//! Results of the manager as answers: pure functions, so that every header and member can be tested without a manager. Refusals
//! are in [`super::refusals`].

use std::collections::BTreeMap;
use std::time::Duration;

use axum::body::Body;
use axum::http::{HeaderName, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde::Serialize;

use super::lease_body::LeaseTexts;
pub(super) use super::lease_body::lease_body;
pub(crate) use super::lease_body::lease_with_token;
use super::request_headers::LOCK_TOKEN;
pub(super) use super::to_wire::json;
use super::{refusals, to_wire};
use crate::api;
use crate::http::format;
use crate::http::negotiation::ResponseFormat;
use crate::http::path::LOCKS_PREFIX;
use crate::http::problem::{Problem, etag};
use crate::http::problem_kind::ProblemKind;
use crate::http::state::AnswerTime;
use crate::manager::cluster_state::Situation;
use crate::manager::types::{
    ExtendedLease, Forced, GrantedLease, Inspection, ListPage, LockState, NodeListState, NodeSummary, QuorumCount,
    Readiness, mode_of,
};
use crate::redlock::quorum::quorum_of;
use crate::types::{NodeId, ResourceName, Token, WantedMode};

/// The header that repeats the fencing token for clients that do not parse bodies.
pub(crate) const FENCING_TOKEN: HeaderName = HeaderName::from_static("fencing-token");
/// The header with the age of a list, in both formats. Units: milliseconds.
pub(crate) const LIST_AGE: HeaderName = HeaderName::from_static("list-age-ms");
/// The header that confirms a `Prefer` header (RFC 7240).
pub(crate) const PREFERENCE_APPLIED: HeaderName = HeaderName::from_static("preference-applied");
/// The warning of an unsafe end.
const FORCED_NOW_WARNING: &str = "199 redlockd \"the holder was not notified and may still be working\"";

/// 200 with a JSON body.
pub(crate) fn ok(body: &impl Serialize) -> Response {
    json(StatusCode::OK, body)
}

pub(crate) fn text(status: StatusCode, body: impl Into<Body>) -> Response {
    (status, [(header::CONTENT_TYPE, "text/plain; charset=utf-8")], body.into()).into_response()
}

fn put(response: &mut Response, name: HeaderName, value: Option<HeaderValue>) {
    if let Some(value) = value {
        response.headers_mut().insert(name, value);
    }
}

/// Sets the fence and the ETag of the lease: the ETag of the lock differs if the lease has other holders beside it.
fn put_fence(response: &mut Response, fence: u64) {
    put(response, FENCING_TOKEN, Some(fence.into()));
    put(response, header::ETAG, etag(itoa::Buffer::new().format(fence)));
}

/// 201, or 200 for a replay. The only answer with the token besides a stream's first event.
pub(crate) fn acquired(lease: &GrantedLease, time: AnswerTime, format: ResponseFormat) -> Response {
    let status = if lease.replay { StatusCode::OK } else { StatusCode::CREATED };
    let mut response = match format {
        ResponseFormat::Text => text(status, format!("{}\n", lease.token.reveal())),
        ResponseFormat::Json => json(status, &LeaseTexts::of(lease, time).with_token(lease)),
    };
    put_fence(&mut response, lease.fence.0);
    put(&mut response, header::LOCATION, HeaderValue::try_from([LOCKS_PREFIX, lease.resource.as_str()].concat()).ok());
    put_token(&mut response, &lease.token);
    response
}

/// Sets the header with the token, marked so that it is not printed.
pub(super) fn put_token(response: &mut Response, token: &Token) {
    let secret = HeaderValue::from_str(token.reveal()).ok().map(|mut value| {
        value.set_sensitive(true);
        value
    });
    put(response, LOCK_TOKEN, secret);
}

/// Confirms in an answer, granted or not, that `Prefer: wait` was applied. Units: seconds.
pub(crate) fn put_preference(response: &mut Response, applied: Option<u32>) {
    let applied = applied.and_then(|s| HeaderValue::try_from(format!("wait={s}")).ok());
    put(response, PREFERENCE_APPLIED, applied);
}

/// 200 for an extend: the lease without its token.
pub(crate) fn extended(extended: &ExtendedLease, time: AnswerTime, format: ResponseFormat) -> Response {
    let renewals = Some(extended.renewals).filter(|n| *n > 0);
    let body = api::Lease { renewals, ..lease_body(&extended.lease, time) };
    let mut response = match format {
        ResponseFormat::Json => json(StatusCode::OK, &body),
        ResponseFormat::Text => {
            let pairs = [
                ("resource", Some(body.resource.clone())),
                ("mode", Some(body.mode.clone())),
                ("slot", body.slot.map(|n| n.to_string())),
                ("limit", body.limit.map(|n| n.to_string())),
                ("token_id", Some(body.token_id.clone())),
                ("fence", Some(body.fence.to_string())),
                ("owner", body.owner.clone()),
                ("note", body.note.clone()),
                ("acquired_at", body.acquired_at.clone()),
                ("ttl_ms", Some(body.ttl_ms.to_string())),
                ("valid_for_ms", Some(body.valid_for_ms.to_string())),
                ("kept_until", body.kept_until.clone()),
                ("expires_at", Some(body.expires_at.clone())),
                ("renewals", body.renewals.map(|n| n.to_string())),
            ];
            let known = pairs.into_iter().filter_map(|(key, value)| Some((key, value?)));
            text(StatusCode::OK, format::lines(known))
        }
    };
    put_fence(&mut response, body.fence);
    response
}

/// 204 for a release.
pub(crate) fn released() -> Response {
    StatusCode::NO_CONTENT.into_response()
}

/// 204 with a warning if the lock was freed at once; 202 if it is freed when the lease ends.
pub(crate) fn forced(resource: &ResourceName, forced: &Forced, wall_ms: u64) -> Response {
    match forced {
        Forced::Freed => (StatusCode::NO_CONTENT, [(header::WARNING, FORCED_NOW_WARNING)]).into_response(),
        Forced::FreesIn(left) => {
            let frees_in_ms = format::ms_up(*left);
            let frees_at = format::time(wall_ms.saturating_add(frees_in_ms));
            json(StatusCode::ACCEPTED, &api::Revoked { resource: resource.to_string(), frees_at, frees_in_ms })
        }
    }
}

/// 200 with holder, waiters and votes. Errors: `not-held`.
pub(crate) fn inspected(inspection: &Inspection, wall_ms: u64, format: ResponseFormat) -> Result<Response, Problem> {
    let (state, foreign) = match &inspection.state {
        LockState::Free => {
            return Err(refusals::not_held(&inspection.resource).with(|m| {
                m.waiting = Some(inspection.waiting);
                m.waiting_here = Some(inspection.waiting_here);
            }));
        }
        LockState::Held(holders) => (to_wire::held_state(holders), false),
        LockState::Foreign { .. } if inspection.is_confirmed() => ("held", true),
        LockState::Foreign { .. } => ("unknown", true),
    };
    let holders = inspection.holders();
    let (limit, free) = to_wire::permits(holders);
    let body = api::LockDetails {
        resource: inspection.resource.to_string(),
        state: state.to_owned(),
        mode: inspection.mode().as_str().to_owned(),
        limit,
        free,
        foreign,
        holders: holders.iter().map(to_wire::holder).collect(),
        waiters: inspection.waiters.iter().map(to_wire::waiter).collect(),
        waiting: inspection.waiting,
        waiting_here: inspection.waiting_here,
        waiters_known: inspection.waiters_known,
        answered_by: inspection.instance.to_string(),
        nodes: inspection.nodes.iter().map(to_wire::node_hold).collect(),
        quorum: to_wire::quorum(inspection.quorum),
        observed_at: format::time(wall_ms),
    };
    let mut response = match format {
        ResponseFormat::Json => json(StatusCode::OK, &body),
        ResponseFormat::Text => text(StatusCode::OK, lock_lines(&body)),
    };
    if let [only] = holders {
        put(&mut response, FENCING_TOKEN, Some(only.fence.0.into()));
    }
    put(&mut response, header::ETAG, inspection.etag().as_deref().and_then(etag));
    Ok(response)
}

/// The lines of a lock; of several holders, the first one and the count.
fn lock_lines(body: &api::LockDetails) -> String {
    let count = body.quorum;
    let mut pairs = vec![
        ("resource", body.resource.clone()),
        ("state", body.state.clone()),
        ("mode", body.mode.clone()),
        ("foreign", body.foreign.to_string()),
    ];
    pairs.extend(body.limit.map(|limit| ("limit", limit.to_string())));
    pairs.extend(body.free.map(|free| ("free", free.to_string())));
    if body.mode != WantedMode::Exclusive.as_str() {
        pairs.push(("holders", body.holders.len().to_string()));
    }
    if let Some(shown) = body.holders.first() {
        pairs.extend([
            ("token_id", shown.token_id.clone()),
            ("owner", shown.owner.clone()),
            ("note", shown.note.clone()),
        ]);
        pairs.extend([
            ("fence", shown.fence.to_string()),
            ("acquired_at", shown.acquired_at.clone()),
            ("valid_for_ms", shown.valid_for_ms.unwrap_or_default().to_string()),
            ("renewals", shown.renewals.to_string()),
        ]);
        pairs.extend(shown.kept_until.clone().map(|until| ("kept_until", until)));
    }
    pairs.extend([
        ("waiters", body.waiting.to_string()),
        ("waiters_known", body.waiters_known.to_string()),
        ("quorum", format!("{}/{}/{}", count.granted, count.needed, count.nodes)),
        ("observed_at", body.observed_at.clone()),
    ]);
    format::lines(pairs)
}

/// 200 for the fence of the current lease.
pub(crate) fn fence_checked(body: &api::FenceCheck, format: ResponseFormat) -> Response {
    match format {
        ResponseFormat::Json => json(StatusCode::OK, body),
        ResponseFormat::Text => {
            let pairs = [
                ("resource", body.resource.clone()),
                ("fence", body.fence.to_string()),
                ("token_id", body.token_id.clone()),
                ("valid_for_ms", body.valid_for_ms.to_string()),
            ];
            text(StatusCode::OK, format::lines(pairs))
        }
    }
}

/// 304: the client already has this lease.
pub(crate) fn not_modified(tag: &str) -> Response {
    let mut response = StatusCode::NOT_MODIFIED.into_response();
    put(&mut response, header::ETAG, etag(tag));
    response
}

/// 200 with a page of leases.
pub(crate) fn listed(page: &ListPage, format: ResponseFormat) -> Response {
    let items = page.items.iter().map(|item| {
        let holders = &item.holders;
        let (limit, free) = to_wire::permits(holders);
        api::ListEntry {
            resource: item.resource.to_string(),
            state: if holders.is_empty() { "waited" } else { to_wire::held_state(holders) }.to_owned(),
            mode: mode_of(holders).as_str().to_owned(),
            limit,
            free,
            holders: holders.iter().map(to_wire::holder).collect(),
            waiting: item.waiting.iter().map(|at| at.waiting).sum(),
            waiting_at: item.waiting.iter().map(to_wire::waiting_at).collect(),
        }
    });
    let body = api::List {
        items: items.collect(),
        next_cursor: page.next.clone(),
        complete: page.incomplete.is_none(),
        incomplete: page.incomplete.clone(),
        age_ms: format::ms_up(page.age),
        total: page.total,
        waiters_known: page.waiters_known,
        answered_by: page.instance.to_string(),
    };
    let mut response = match format {
        ResponseFormat::Json => json(StatusCode::OK, &body),
        ResponseFormat::Text => text(StatusCode::OK, list_lines(&body)),
    };
    put(&mut response, LIST_AGE, Some(body.age_ms.into()));
    response
}

/// One line per lock, with tabs between its cells, as `redlockd list --plain` prints it; then, as comments, what is missing.
fn list_lines(list: &api::List) -> String {
    let mut rows = String::new();
    for item in &list.items {
        let of = |read: fn(&api::Holder) -> String| item.holders.first().map(read).unwrap_or_default();
        let (left, fence) =
            (of(|holder| holder.valid_for_ms.unwrap_or_default().to_string()), of(|holder| holder.fence.to_string()));
        let (owner, note, waiting) = (of(|h| h.owner.clone()), of(|h| h.note.clone()), item.waiting.to_string());
        rows.push_str(&format::tabs(&[&item.resource, &item.state, &owner, &left, &fence, &waiting, &note]));
    }
    if let Some(why) = &list.incomplete {
        rows.push_str(&format!("# incomplete: too few nodes vote: {why}\n"));
    }
    if let Some(cursor) = &list.next_cursor {
        rows.push_str(&format!("# there are more: cursor={cursor}\n"));
    }
    rows + &format!("# read from the nodes {} ms ago\n", list.age_ms)
}

fn voting(reports: &[NodeSummary]) -> QuorumCount {
    let granted = reports.iter().filter(|r| r.votes).count();
    QuorumCount { granted, needed: quorum_of(reports.len()), nodes: reports.len() }
}

/// 200 with past events.
pub(crate) fn past_events(past: &api::PastEvents) -> Response {
    json(StatusCode::OK, past)
}

/// 200 with all nodes. `node_timeout`: how long rounds wait for their answers.
pub(crate) fn nodes(
    reports: &[NodeSummary],
    list: &NodeListState,
    node_timeout: Duration,
    format: ResponseFormat,
) -> Response {
    let nodes: Vec<api::NodeState> = reports.iter().map(to_wire::node_state).collect();
    let row = |node: &api::NodeState| {
        let number = |value: Option<String>| value.unwrap_or_default();
        let (latency, clock) = (node.latency_us.map(|n| n.to_string()), node.clock_offset_ms.map(|n| n.to_string()));
        let (votes, why) = (if node.votes { "yes" } else { "no" }, node.why.as_deref().unwrap_or_default());
        format::tabs(&[&node.node, &node.state, votes, &number(latency), &number(clock), why])
    };
    match format {
        ResponseFormat::Text => text(StatusCode::OK, nodes.iter().map(row).collect::<String>()),
        ResponseFormat::Json => {
            let node_timeout_ms = u64::try_from(node_timeout.as_millis()).ok();
            let names = |names: &[NodeId]| names.iter().map(ToString::to_string).collect();
            let change = list.change.as_ref();
            let change = change.map(|(from, to)| api::NodeListChange { from: names(from), to: names(to) });
            let quorum = to_wire::quorum(voting(reports));
            let terms_change = list.terms_change.as_ref().map(to_wire::terms_change);
            let (view, terms) = (list.view, list.other_terms.as_ref().map(to_wire::terms));
            json(StatusCode::OK, &api::Nodes { nodes, quorum, node_timeout_ms, view, change, terms, terms_change })
        }
    }
}

/// 200 with a status, and with the situation if it requires action.
pub(crate) fn health(status: &'static str, format: ResponseFormat, situation: Option<&Situation>) -> Response {
    let situation = situation.filter(|situation| !situation.advice.is_empty());
    match format {
        ResponseFormat::Text => {
            let more = situation.map(|situation| situation.text() + "\n").unwrap_or_default();
            text(StatusCode::OK, format!("{status}\n{more}"))
        }
        ResponseFormat::Json => {
            let (state, advice) = situation.map(|of| (of.state.clone(), of.advice.clone())).unzip();
            json(StatusCode::OK, &api::Health { status: status.to_owned(), situation: state, advice })
        }
    }
}

/// `; n1, n2: reason` for each reason why nodes have no vote. A reason says what an operator can do.
pub(crate) fn no_vote_reasons(reports: &[NodeSummary]) -> String {
    let mut nodes: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for report in reports.iter().filter(|r| !r.votes) {
        if let Some(why) = &report.why {
            nodes.entry(why).or_default().push(report.node.as_str());
        }
    }
    nodes.iter().map(|(why, nodes)| format!("; {}: {why}", nodes.join(", "))).collect()
}

/// 200 if locks can be granted. Errors: `draining`, `quorum-unavailable`. With `in_full`, the answer says which node has no vote,
/// since when, until when, why, and what to do, as pages do.
pub(crate) fn ready(
    readiness: Readiness,
    reports: &[NodeSummary],
    format: ResponseFormat,
    in_full: Option<&Situation>,
) -> Result<Response, Problem> {
    match readiness {
        Readiness::Ready => Ok(health("ready", format, in_full)),
        Readiness::Draining => Err(refusals::draining()),
        Readiness::NoQuorum { voting: votes, ready_in } => {
            let count = QuorumCount { granted: votes, ..voting(reports) };
            let silent = reports.iter().filter(|r| !r.votes).map(|r| api::NodeVote {
                node: r.node.to_string(),
                outcome: r.state.clone(),
                left_ms: None,
                holds: None,
                seconds_left: r.votes_in.map(format::seconds_up),
            });
            let nodes: Vec<_> = silent.collect();
            let detail = match in_full {
                Some(situation) => {
                    format!("{}{}", situation.text(), no_vote_reasons(reports).replacen("; ", " Nodes: ", 1))
                }
                None => format!("{votes} of {} nodes can vote, {} are needed", count.nodes, count.needed),
            };
            let problem = Problem::new(ProblemKind::QuorumUnavailable, detail).with(|m| {
                m.quorum = Some(to_wire::quorum(count));
                m.nodes = Some(nodes).filter(|_| in_full.is_some());
                m.ready_in_seconds = ready_in.map(format::seconds_up);
            });
            Err(problem.retry_after(ready_in.unwrap_or(Duration::ZERO)))
        }
    }
}

#[cfg(test)]
#[path = "lock_responses_tests.rs"]
mod tests;
