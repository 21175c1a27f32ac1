//! Headers of a request as checked values: `Accept`, `Lock-Token`, `Prefer`, `If-Match` and `If-None-Match`. Independent of the
//! endpoint.

use std::time::Duration;

use axum::http::{HeaderMap, HeaderName, header};

use crate::http::negotiation::{self, ResponseFormat, StreamFormat, negotiate};
use crate::http::problem::Problem;
use crate::http::problem_kind::ProblemKind;
use crate::types::Token;

/// The header with a lease's token.
pub const LOCK_TOKEN: HeaderName = HeaderName::from_static("lock-token");
/// The header with preferences (RFC 7240).
pub const PREFER: HeaderName = HeaderName::from_static("prefer");
/// The maximum number of tags of an `If-Match` or `If-None-Match`.
pub const IF_MATCH_MAX: usize = 16;

/// The format of the answer. Errors: `not-acceptable`.
pub fn accepted(headers: &HeaderMap, offered: &[ResponseFormat]) -> Result<ResponseFormat, Problem> {
    negotiate(headers, offered).ok_or_else(|| {
        let names = offered.iter().map(|f| match f {
            ResponseFormat::Json => "application/json",
            ResponseFormat::Text => "text/plain",
        });
        let names = names.collect::<Vec<_>>().join(" or ");
        Problem::new(
            ProblemKind::NotAcceptable,
            format!("this path answers {names}, and the Accept header excludes it"),
        )
    })
}

/// The format of a stream. Errors: `not-acceptable`.
pub fn accepted_stream(headers: &HeaderMap) -> Result<StreamFormat, Problem> {
    negotiation::stream(headers).ok_or_else(|| {
        let detail = "this answer is application/x-ndjson, text/event-stream or text/plain, and the Accept header \
                      excludes all of them";
        Problem::new(ProblemKind::NotAcceptable, detail)
    })
}

/// The token in the `Lock-Token` header; `None` without one.
///
/// Errors: `invalid` for a malformed token and for more than one header. The detail never quotes it.
pub fn lock_token(headers: &HeaderMap) -> Result<Option<Token>, Problem> {
    let wrong = |detail: String| Problem::invalid_field("Lock-Token", detail);
    let mut values = headers.get_all(LOCK_TOKEN).iter();
    let Some(value) = values.next() else { return Ok(None) };
    if values.next().is_some() {
        return Err(wrong("is given twice".to_owned()));
    }
    let text = value.to_str().map_err(|_| wrong("a token is made of A-Z a-z 0-9 . _ ~ -".to_owned()))?;
    Token::parse(text.trim()).map(Some).map_err(|invalid| wrong(invalid.0))
}

/// As [`lock_token`]; a missing header is an error too. Errors: `invalid`, naming `Lock-Token`.
pub fn required_lock_token(headers: &HeaderMap) -> Result<Token, Problem> {
    lock_token(headers)?.ok_or_else(|| {
        Problem::invalid_field("Lock-Token", "this header is missing: it proves that the lease is yours")
    })
}

/// The `wait` of a `Prefer` header; malformed preferences are ignored, as the RFC requires. Source: RFC 7240,
/// section 4.3.
pub fn preferred_wait(headers: &HeaderMap) -> Option<Duration> {
    let values = headers.get_all(PREFER).iter().filter_map(|v| v.to_str().ok());
    values.flat_map(|v| v.split(',')).find_map(|preference| {
        let (name, value) = preference.split(';').next()?.split_once('=')?;
        let seconds = value.trim().trim_matches('"');
        let digits = !seconds.is_empty() && seconds.bytes().all(|b| b.is_ascii_digit());
        (name.trim().eq_ignore_ascii_case("wait") && digits)
            .then(|| Duration::from_secs(seconds.parse().unwrap_or(u64::MAX)))
    })
}

/// Whether a `Prefer` header asks for an answer at once (RFC 7240).
pub fn prefers_async(headers: &HeaderMap) -> bool {
    let values = headers.get_all(PREFER).iter().filter_map(|v| v.to_str().ok());
    let mut preferences = values.flat_map(|v| v.split(',')).filter_map(|p| p.split(';').next());
    preferences.any(|name| name.trim().eq_ignore_ascii_case("respond-async"))
}

/// The precondition of `If-Match`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum IfMatch {
    /// No header, or `*`: any holder matches. The existence of a holder is checked anyway.
    Any,
    /// One of these tags, without quotes. Weak tags never match and are left out, so the list may be empty.
    OneOf(Vec<String>),
}

/// The tags of a precondition, without quotes.
struct Tags {
    is_any: bool,
    strong: Vec<String>,
    weak: Vec<String>,
}

/// Reads `If-Match`. Errors: `invalid` if it is no list of tags.
/// Source: RFC 9110, section 13.1.1.
pub fn if_match(headers: &HeaderMap) -> Result<IfMatch, Problem> {
    Ok(match tags(headers, &header::IF_MATCH, "If-Match")? {
        Some(Tags { is_any: false, strong, .. }) => IfMatch::OneOf(strong),
        _ => IfMatch::Any,
    })
}

/// The precondition of `If-None-Match`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum IfNoneMatch {
    /// There is no such header.
    Absent,
    /// `*`: nobody holds the resource.
    Any,
    /// The holder has none of these tags, weak or not.
    OneOf(Vec<String>),
}

impl IfNoneMatch {
    /// Whether the precondition excludes the present tag, if there is one.
    pub fn excludes(&self, present: Option<&str>) -> bool {
        present.is_some_and(|present| match self {
            Self::Absent => false,
            Self::Any => true,
            Self::OneOf(tags) => tags.iter().any(|tag| tag == present),
        })
    }
}

/// Reads `If-None-Match`. Errors: `invalid` if it is no list of tags.
/// Source: RFC 9110, section 13.1.2.
pub fn if_none_match(headers: &HeaderMap) -> Result<IfNoneMatch, Problem> {
    Ok(match tags(headers, &header::IF_NONE_MATCH, "If-None-Match")? {
        None => IfNoneMatch::Absent,
        Some(Tags { is_any: true, .. }) => IfNoneMatch::Any,
        Some(Tags { strong, weak, .. }) => IfNoneMatch::OneOf([strong, weak].concat()),
    })
}

/// `None` without the header. Source: RFC 9110, section 8.8.3.
fn tags(headers: &HeaderMap, name: &HeaderName, shown: &str) -> Result<Option<Tags>, Problem> {
    if !headers.contains_key(name) {
        return Ok(None);
    }
    let wrong = |detail: &str| Problem::invalid_field(shown, detail);
    let (mut tags, mut seen) = (Tags { is_any: false, strong: Vec::new(), weak: Vec::new() }, 0);
    for value in headers.get_all(name) {
        let mut rest = value.to_str().map_err(|_| wrong("is not ASCII"))?.trim_start_matches([' ', '\t', ',']);
        while !rest.is_empty() {
            seen += 1;
            if seen > IF_MATCH_MAX {
                return Err(wrong("has too many tags"));
            }
            if let Some(after) = rest.strip_prefix('*') {
                tags.is_any = true;
                rest = after;
            } else {
                let (list, quoted) = match rest.strip_prefix("W/") {
                    Some(quoted) => (&mut tags.weak, quoted),
                    None => (&mut tags.strong, rest),
                };
                let inner = quoted.strip_prefix('"').and_then(|q| q.split_once('"'));
                let (tag, after) = inner.ok_or_else(|| wrong("a tag is written in double quotes, as the ETag was"))?;
                list.push(tag.to_owned());
                rest = after;
            }
            let next = rest.trim_start_matches([' ', '\t']);
            if !next.is_empty() && !next.starts_with(',') {
                return Err(wrong("tags are separated by commas"));
            }
            rest = next.trim_start_matches([' ', '\t', ',']);
        }
    }
    if seen == 0 { Err(wrong("is empty")) } else { Ok(Some(tags)) }
}

#[cfg(test)]
#[path = "request_headers_tests.rs"]
mod tests;
