//! The handler of `GET /fences/{resource}`: whether a fence is that of the current lease. Only for stores that cannot compare
//! fences themselves; docs/fencing.md has the limits of this check.

use axum::extract::{Request, State};
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::Response;

use super::lock_requests::BOTH;
use super::lock_responses::{self, FENCING_TOKEN};
use super::request_fields::Fields;
use super::{refusals, request_headers};
use crate::api;
use crate::http::format;
use crate::http::negotiation::ResponseFormat;
use crate::http::path::{self, FENCES_PREFIX};
use crate::http::problem::{Problem, etag};
use crate::http::problem_kind::ProblemKind;
use crate::http::state::AppState;
use crate::manager::fence_check::FenceState;
use crate::types::{Fence, Invalid, ResourceName};

/// A parsed `GET /fences/{resource}`.
#[derive(Debug)]
pub struct FenceFields {
    resource: ResourceName,
    fence: Fence,
    /// The status of a refusal, if it differs from the problem's own.
    denied: Option<StatusCode>,
    format: ResponseFormat,
}

/// Cancel: nothing is left behind.
pub(crate) async fn check(State(state): State<AppState>, request: Request) -> Result<Response, Problem> {
    let FenceFields { resource, fence, denied, format } = parse(&request)?;
    drop(request);
    let checked = Box::pin(state.manager.check_fence(&resource, fence)).await;
    let checked = checked.map_err(|error| refusals::unknown("the fence cannot be checked", &error))?;
    answer(&resource, fence, checked, format).map_err(|problem| match (denied, problem.kind()) {
        (Some(status), ProblemKind::StaleFence | ProblemKind::LeaseExpired) => problem.with_status(status),
        _ => problem,
    })
}

/// Parses `GET /fences/{resource}`. Errors: `invalid`, `token-in-url`, `not-acceptable`.
pub fn parse(request: &Request) -> Result<FenceFields, Problem> {
    let resource = path::resource_after(request.uri(), FENCES_PREFIX)?;
    let format = request_headers::accepted(request.headers(), &BOTH)?;
    let mut fields = Fields::of_query(request.uri())?;
    let in_query = fields.text("fence").and_then(|text| fields.check("fence", number(&text)));
    let denied = match fields.text("deny").as_deref() {
        None => None,
        Some("403") => Some(StatusCode::FORBIDDEN),
        Some(_) => {
            fields.wrong("deny", "must be 403: the status for a stale fence and for a lease that is over");
            None
        }
    };
    fields.finish(&["fence", "deny"])?;
    let fence = match (in_header(request.headers())?, in_query) {
        (Some(a), Some(b)) if a != b => {
            return Err(Problem::invalid_field("fence", "differs from the Fencing-Token header"));
        }
        (a, b) => a.or(b).ok_or_else(|| {
            Problem::invalid_field("Fencing-Token", "this header is missing: the fence to check (or ?fence=N)")
        })?,
    };
    Ok(FenceFields { resource, fence, denied, format })
}

fn in_header(headers: &HeaderMap) -> Result<Option<Fence>, Problem> {
    let mut values = headers.get_all(FENCING_TOKEN).iter();
    let Some(value) = values.next() else { return Ok(None) };
    let text = value.to_str().ok().filter(|_| values.next().is_none());
    let fence = text.ok_or_else(|| Invalid("must be one number".to_owned())).and_then(|text| number(text.trim()));
    fence.map(Some).map_err(|invalid| Problem::invalid_field("Fencing-Token", invalid.0))
}

fn number(text: &str) -> Result<Fence, Invalid> {
    let fence = text.parse().ok().filter(|fence| (1..1 << 53).contains(fence));
    fence.map(Fence).ok_or_else(|| Invalid("must be a fence: an integer from 1, below 2^53".to_owned()))
}

/// Errors: `stale-fence`, `lease-expired`, `invalid`.
fn answer(
    resource: &ResourceName,
    fence: Fence,
    state: FenceState,
    format: ResponseFormat,
) -> Result<Response, Problem> {
    let over = |why: String| {
        Err(Problem::new(ProblemKind::LeaseExpired, why).with(|m| {
            m.resource = Some(resource.to_string());
            m.reason = Some("unknown".to_owned());
        }))
    };
    match state {
        FenceState::Current { token_id, valid_for } => {
            let (token_id, valid_for_ms) = (token_id.to_string(), format::ms(valid_for));
            let body = api::FenceCheck { resource: resource.to_string(), fence: fence.0, token_id, valid_for_ms };
            let mut response = lock_responses::fence_checked(&body, format);
            response.headers_mut().insert(FENCING_TOKEN, fence.0.into());
            Ok(response)
        }
        FenceState::Stale { newest } => {
            let detail = format!("{fence} is not the newest fence of {resource}: {newest} was given since");
            let problem = Problem::new(ProblemKind::StaleFence, detail).header(FENCING_TOKEN, newest.0.into());
            let tag = etag(&newest.to_string()).unwrap_or_else(|| HeaderValue::from_static("\"\""));
            Err(problem.header(header::ETAG, tag).with(|m| {
                m.resource = Some(resource.to_string());
                m.newest_fence = Some(newest.0);
            }))
        }
        FenceState::Over => over(format!("the lease of {resource} with the fence {fence} is over")),
        FenceState::Forgotten => over(format!("the nodes remember no lease of {resource}")),
        FenceState::NeverGiven { newest } => {
            let detail =
                format!("{fence} was never given for {resource}: the largest fence that the nodes know is {newest}");
            Err(Problem::invalid_field("Fencing-Token", detail))
        }
    }
}

#[cfg(test)]
mod tests {
    use axum::body::Body;

    use super::*;

    fn parsed(uri: &str, header: &[&str]) -> Result<FenceFields, Problem> {
        let request = header.iter().fold(Request::builder().uri(uri), |r, value| r.header("fencing-token", *value));
        parse(&request.body(Body::empty()).expect("a request"))
    }

    #[test]
    fn a_fence_is_in_the_header_or_in_the_query() {
        for (uri, header) in
            [("/fences/a/b", &["17"][..]), ("/fences/a%2Fb?fence=17", &[]), ("/fences/a/b?fence=17", &[" 17 "])]
        {
            let FenceFields { resource, fence, denied, .. } = parsed(uri, header).expect(uri);
            assert_eq!((resource.as_str(), fence, denied), ("a/b", Fence(17), None));
        }
        assert_eq!(parsed("/fences/a?fence=1&deny=403", &[]).expect("valid").denied, Some(StatusCode::FORBIDDEN));
    }

    #[test]
    fn what_is_wrong_is_named() {
        for (uri, header, field) in [
            ("/fences/a", &[][..], "Fencing-Token"),
            ("/fences/a", &["x"], "Fencing-Token"),
            ("/fences/a", &["1", "1"], "Fencing-Token"),
            ("/fences/a", &["9007199254740992"], "Fencing-Token"),
            ("/fences/a?fence=0", &[], "fence"),
            ("/fences/a?fence=-1", &[], "fence"),
            ("/fences/a?fence=1", &["2"], "fence"),
            ("/fences/a?fence=1&deny=404", &[], "deny"),
            ("/fences/a?fence=1&ttl=3s", &[], "ttl"),
            ("/fences/a//b?fence=1", &[], "resource"),
        ] {
            let errors = parsed(uri, header).expect_err(uri).body("r").members.errors.expect("fields are named");
            assert_eq!(errors[0].field, field, "{uri}");
        }
    }

    #[test]
    fn each_state_has_its_answer() {
        let name = ResourceName::parse("a/b").expect("valid");
        let refused = |state| answer(&name, Fence(7), state, ResponseFormat::Json).expect_err("refused").body("r");
        let stale = refused(FenceState::Stale { newest: Fence(9) });
        assert_eq!((stale.status, stale.members.newest_fence), (412, Some(9)));
        assert_eq!(stale.detail, "7 is not the newest fence of a/b: 9 was given since");
        assert_eq!(refused(FenceState::Over).status, 410);
        assert_eq!(refused(FenceState::Forgotten).status, 410);
        assert_eq!(refused(FenceState::NeverGiven { newest: Fence(6) }).status, 400);
    }
}
