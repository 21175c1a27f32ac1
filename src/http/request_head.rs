//! Checks of a request's head that HTTP requires but the HTTP library does not make: exactly one valid host, no unknown transfer
//! coding, and a bounded number of headers on HTTP/2.

use axum::extract::Request;
use axum::http::uri::Authority;
use axum::http::{HeaderMap, Version, header};

use super::problem::Problem;
use super::problem_kind::ProblemKind;
use super::request_context::RequestContext;

/// The maximum number of headers of a request.
pub(crate) const MAX_HEADERS: usize = 64;

/// Checks a head that was received on a connection.
///
/// Errors: `head-too-large` for too many headers, which HTTP/1 refuses as it parses them; `not-implemented`; `invalid`,
/// naming `Host`.
pub fn check(request: &Request) -> Result<(), Problem> {
    let headers = request.headers();
    if headers.len() > MAX_HEADERS {
        let detail = format!("the request has {} headers; the maximum is {MAX_HEADERS}", headers.len());
        return Err(Problem::new(ProblemKind::HeadTooLarge, detail));
    }
    if !RequestContext::has_common_headers(request) {
        check_transfer_coding(headers)?;
    }
    if RequestContext::has_accepted_host(request) { Ok(()) } else { check_host(request) }
}

/// If the coding of a body is not understood, its length is unknown, so the connection ends with the answer. Source: RFC 9112,
/// section 6.1.
fn check_transfer_coding(headers: &HeaderMap) -> Result<(), Problem> {
    let mut codings = headers.get_all(header::TRANSFER_ENCODING).iter();
    let Some(coding) = codings.next() else { return Ok(()) };
    if coding.as_bytes().trim_ascii().eq_ignore_ascii_case(b"chunked") && codings.next().is_none() {
        return Ok(());
    }
    let detail = "the only transfer coding here is chunked: send the body without another Transfer-Encoding";
    Err(Problem::new(ProblemKind::NotImplemented, detail).closing())
}

/// Source: RFC 9112, section 3.2; RFC 9113, section 8.3.1.
fn check_host(request: &Request) -> Result<(), Problem> {
    let wrong = |detail: &str| Err(Problem::invalid_field("Host", detail));
    let mut hosts = request.headers().get_all(header::HOST).iter();
    let (host, more) = (hosts.next().map(|host| host.to_str().unwrap_or_default()), hosts.next());
    let target = request.uri().authority().map(Authority::as_str);
    if more.is_some() {
        return wrong("is given twice");
    }
    if [host, target].into_iter().flatten().any(|text| !is_host(text)) {
        return wrong("must be a host name or an address, with or without a port");
    }
    match (request.version(), host, target) {
        (Version::HTTP_2, Some(host), Some(target)) if !host.eq_ignore_ascii_case(target) => {
            wrong("differs from :authority")
        }
        (Version::HTTP_2, None, None) | (Version::HTTP_11, None, _) => {
            wrong("is missing: every version of HTTP since 1.1 requires it")
        }
        _ => Ok(()),
    }
}

/// `name` or `name:port`, without user information.
fn is_host(text: &str) -> bool {
    // Most names need no parser.
    let (name, port) = text.split_once(':').unwrap_or((text, ""));
    let is_plain = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'-');
    if !name.is_empty() && name.bytes().all(is_plain) && port.bytes().all(|b| b.is_ascii_digit()) {
        return port.is_empty() || port.parse::<u16>().is_ok();
    }
    let Ok(authority) = text.parse::<Authority>() else { return false };
    let Some(port) = text.strip_prefix(authority.host()) else { return false };
    let is_port = port.is_empty() || port.strip_prefix(':').is_some_and(|p| p.is_empty() || p.parse::<u16>().is_ok());
    !authority.host().is_empty() && is_port
}

/// Errors: `uri-too-long` if path and query have more than `limit` bytes.
pub(crate) fn check_uri(request: &Request, limit: usize) -> Result<(), Problem> {
    let bytes = request.uri().path_and_query().map_or(0, |pq| pq.as_str().len());
    if bytes <= limit {
        return Ok(());
    }
    let detail = format!("path and query have {bytes} bytes; the maximum is {limit}");
    Err(Problem::new(ProblemKind::UriTooLong, detail))
}

#[cfg(test)]
mod tests {
    use axum::body::Body;

    use super::*;

    fn request(version: Version, uri: &str, headers: &[(&str, &str)]) -> Request {
        let mut builder = Request::builder().version(version).uri(uri);
        for (name, value) in headers {
            builder = builder.header(*name, *value);
        }
        builder.body(Body::empty()).expect("a request")
    }

    /// The slug of the refusal; empty where there is none.
    fn refusal(version: Version, uri: &str, headers: &[(&str, &str)]) -> &'static str {
        check(&request(version, uri, headers)).err().map_or("", |problem| problem.kind().as_str())
    }

    #[test]
    fn l1_a_host_is_there_once_and_is_one() {
        for (version, uri, hosts, expected) in [
            (Version::HTTP_11, "/x", &["localhost:5625"][..], ""),
            (Version::HTTP_11, "/x", &["[::1]:5625"], ""),
            (Version::HTTP_11, "/x", &["redlockd_1"], ""),
            (Version::HTTP_11, "http://localhost/x", &["localhost"], ""),
            (Version::HTTP_10, "/x", &[], ""),
            (Version::HTTP_11, "/x", &[], "invalid"),
            (Version::HTTP_11, "http://localhost/x", &[], "invalid"),
            (Version::HTTP_11, "/x", &["127.0.0.1", "evil"], "invalid"),
            (Version::HTTP_11, "/x", &["127.0.0.1", "127.0.0.1"], "invalid"),
            (Version::HTTP_11, "/x", &[""], "invalid"),
            (Version::HTTP_11, "/x", &["a b"], "invalid"),
            (Version::HTTP_11, "/x", &["a/.."], "invalid"),
            (Version::HTTP_11, "/x", &["user@localhost"], "invalid"),
            (Version::HTTP_11, "/x", &["localhost:port"], "invalid"),
            (Version::HTTP_11, "/x", &["localhost:99999"], "invalid"),
            (Version::HTTP_11, "/x", &["[::1]evil.example"], "invalid"),
            (Version::HTTP_11, "http://user@localhost/x", &["localhost"], "invalid"),
            (Version::HTTP_2, "https://localhost/x", &[], ""),
            (Version::HTTP_2, "https://localhost/x", &["LOCALHOST"], ""),
            (Version::HTTP_2, "/x", &["localhost"], ""),
            (Version::HTTP_2, "/x", &[], "invalid"),
            (Version::HTTP_2, "https://localhost/x", &["evil.example"], "invalid"),
        ] {
            let headers: Vec<_> = hosts.iter().map(|host| ("host", *host)).collect();
            assert_eq!(refusal(version, uri, &headers), expected, "{version:?} {uri} {hosts:?}");
        }
    }

    #[test]
    fn l3_only_the_chunked_coding_is_understood() {
        for (codings, expected) in [
            (&["chunked"][..], ""),
            (&[" Chunked "], ""),
            (&["gzip, chunked"], "not-implemented"),
            (&["gzip", "chunked"], "not-implemented"),
            (&["chunked, chunked"], "not-implemented"),
        ] {
            let mut headers = vec![("host", "localhost")];
            headers.extend(codings.iter().map(|coding| ("transfer-encoding", *coding)));
            assert_eq!(refusal(Version::HTTP_11, "/x", &headers), expected, "{codings:?}");
        }
    }

    #[test]
    fn l4_headers_are_counted_whatever_their_names() {
        let with = |count: usize| {
            let mut headers = vec![("x-one", "1"); count - 1];
            headers.push(("host", "localhost"));
            refusal(Version::HTTP_2, "/x", &headers)
        };
        assert_eq!((with(MAX_HEADERS), with(MAX_HEADERS + 1)), ("", "head-too-large"));
    }
}
