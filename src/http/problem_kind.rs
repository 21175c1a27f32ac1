//! The catalogue of problems: slug, status, title and the page behind `/problems/{slug}`. Data only,
//! so that one overview shows every way in which a request can fail; which domain error becomes which
//! slug is [`super::problem`]'s business.

use axum::http::StatusCode;

/// A kind of problem. Its word is stable: scripts branch on it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ProblemKind {
    /// Held by somebody else, and the request did not want to wait.
    Locked,
    /// Held by somebody else until the wait ran out.
    WaitTimeout,
    /// Owners wait for each other.
    Deadlock,
    /// Too few nodes that may vote.
    QuorumUnavailable,
    /// Another token holds the resource.
    NotHolder,
    /// This token's lease is gone.
    LeaseExpired,
    /// The precondition does not hold any more.
    Changed,
    /// Nobody holds it.
    NotHeld,
    /// Bad input.
    Invalid,
    /// A secret in a place that is logged.
    TokenInUrl,
    /// No such path.
    NotFound,
    /// The path has no such method.
    MethodNotAllowed,
    /// None of the accepted media types is offered.
    NotAcceptable,
    /// A name under which the pages are not offered.
    HostNotAllowed,
    /// The body is over its bound.
    BodyTooLarge,
    /// Path and query are over their bound.
    UriTooLong,
    /// The body's media type is not read.
    UnsupportedMediaType,
    /// No or bad credentials.
    Unauthenticated,
    /// Not allowed.
    Forbidden,
    /// The queue is full.
    TooManyWaiters,
    /// Some other bound is met.
    QuotaExceeded,
    /// Shutting down.
    Draining,
    /// A defect of the service.
    Internal,
}

/// What is said of a [`ProblemKind`].
struct Entry {
    slug: ProblemKind,
    word: &'static str,
    status: StatusCode,
    title: &'static str,
    page: &'static str,
}

const fn entry(
    slug: ProblemKind,
    word: &'static str,
    status: StatusCode,
    title: &'static str,
    page: &'static str,
) -> Entry {
    Entry { slug, word, status, title, page }
}

/// In the order of [`ProblemKind`].
const CATALOGUE: [Entry; 23] = [
    entry(
        ProblemKind::Locked,
        "locked",
        StatusCode::LOCKED,
        "Locked",
        "Somebody else has the resource, and the request did not ask to wait (`wait=30s` would).\n\
         `reason` is `held`, `foreign` (another Redlock client has it) or `lock-delay` (the last lease has run out\n\
         and its safety margin is passing). `Retry-After` is the earliest instant at which it can be free.\n\
         curl --retry does not repeat a 423: queue again on purpose, or not at all.",
    ),
    entry(
        ProblemKind::WaitTimeout,
        "wait-timeout",
        StatusCode::LOCKED,
        "The wait ran out",
        "The resource stayed taken for as long as the request was willing to wait. Nothing is left of the request:\n\
         its place in the queue is gone, and asking again joins the end.",
    ),
    entry(
        ProblemKind::Deadlock,
        "deadlock",
        StatusCode::CONFLICT,
        "Deadlock",
        "The owners in `cycle` wait for each other: each holds what the one before it waits for. This request asked\n\
         last, so it is the one that is refused, at once and not at the end of its wait. Give back what you hold and\n\
         begin anew, in an order that everybody keeps (by name, say).\n\
         An `owner` is taken for one caller. Where unrelated callers share one, give them names of their own, or turn\n\
         this off (`deadlock_detection = false`).",
    ),
    entry(
        ProblemKind::QuorumUnavailable,
        "quorum-unavailable",
        StatusCode::SERVICE_UNAVAILABLE,
        "Too few nodes can vote",
        "A lock needs a quorum of the configured nodes, and fewer gave a usable vote. `nodes` says what each of them\n\
         said: unreachable, quarantined (with the seconds left), clock off, another node list, or votes split to the\n\
         end. Whatever had been taken is given back. After a failed PATCH the lease is untouched and runs until its\n\
         old deadline (`valid_for_ms`).",
    ),
    entry(
        ProblemKind::NotHolder,
        "not-holder",
        StatusCode::CONFLICT,
        "Another token holds it",
        "The Lock-Token in the request is not the one that holds the resource: somebody else has it by now.\n\
         Stop working on it.",
    ),
    entry(
        ProblemKind::LeaseExpired,
        "lease-expired",
        StatusCode::GONE,
        "The lease is gone",
        "The lease of this token has ended; `reason` says how: `expired`, `released`, `forced` (by an operator) or\n\
         `unknown` (the nodes no longer know). It cannot be revived. Stop working; take the lock again with a fresh\n\
         token if you still need it.",
    ),
    entry(
        ProblemKind::Changed,
        "changed",
        StatusCode::PRECONDITION_FAILED,
        "The holder has changed",
        "If-Match names a holder that no longer has the resource. The answer's ETag is that of the present one.\n\
         Nothing was done: look again before you end somebody's lease.",
    ),
    entry(
        ProblemKind::NotHeld,
        "not-held",
        StatusCode::NOT_FOUND,
        "Nobody holds it",
        "The resource is free as far as a quorum of the nodes knows.",
    ),
    entry(
        ProblemKind::Invalid,
        "invalid",
        StatusCode::BAD_REQUEST,
        "The request cannot be understood",
        "`errors` names each field, parameter or header that is wrong, and why. Durations carry a unit: 500ms, 30s,\n\
         5m, 1h. An unknown field is refused so that a misspelt one is not ignored. The Lock-Token header is needed\n\
         by PATCH, and by DELETE without `force`.",
    ),
    entry(
        ProblemKind::TokenInUrl,
        "token-in-url",
        StatusCode::BAD_REQUEST,
        "A token does not belong in a URL",
        "URLs end up in logs, histories and proxies; a token is a secret for as long as its lease lives. Send it in\n\
         the Lock-Token header, or, when acquiring with a token of your own, in the body. If the token that was in\n\
         the URL proves a running lease, release it.",
    ),
    entry(
        ProblemKind::NotFound,
        "not-found",
        StatusCode::NOT_FOUND,
        "No such path",
        "The service has nothing under this path. /openapi.yaml lists what there is.",
    ),
    entry(
        ProblemKind::MethodNotAllowed,
        "method-not-allowed",
        StatusCode::METHOD_NOT_ALLOWED,
        "No such method here",
        "The path exists, the method does not; the Allow header lists those that do.",
    ),
    entry(
        ProblemKind::NotAcceptable,
        "not-acceptable",
        StatusCode::NOT_ACCEPTABLE,
        "None of the accepted media types is offered",
        "The Accept header rules out everything that this path can answer. Nothing was done.\n\
         application/json is offered everywhere under /locks and /nodes, text/plain under /locks/{resource}.",
    ),
    entry(
        ProblemKind::HostNotAllowed,
        "host-not-allowed",
        StatusCode::MISDIRECTED_REQUEST,
        "The service is not offered under this name",
        "The dashboard, and without keys everything, is offered under an IP address, a loopback name, or a name in the\n\
         setting `allowed_hosts`: a name of somebody else's that leads to this address could otherwise read and end\n\
         leases. Nothing was done.\n\
         Add the name to `allowed_hosts`, use the address, or have the proxy pass on a name that is there.",
    ),
    entry(
        ProblemKind::BodyTooLarge,
        "body-too-large",
        StatusCode::PAYLOAD_TOO_LARGE,
        "The body is too large",
        "A request body has a bound (64 KiB unless configured otherwise). Nothing was done.",
    ),
    entry(
        ProblemKind::UriTooLong,
        "uri-too-long",
        StatusCode::URI_TOO_LONG,
        "The path or the query is too long",
        "Path and query have a bound together (4 KiB unless configured otherwise). Fields that are long belong in the\n\
         body. Nothing was done.",
    ),
    entry(
        ProblemKind::UnsupportedMediaType,
        "unsupported-media-type",
        StatusCode::UNSUPPORTED_MEDIA_TYPE,
        "The body's media type is not read",
        "A body is application/json or application/x-www-form-urlencoded (what `curl -d ttl=30s` sends); PATCH also\n\
         takes application/merge-patch+json. It is UTF-8 and not compressed.",
    ),
    entry(
        ProblemKind::Unauthenticated,
        "unauthenticated",
        StatusCode::UNAUTHORIZED,
        "No or bad credentials",
        "The service wants an API key: `Authorization: Bearer rlk_…`, or Basic with the key as password. `redlockd key new`\n\
         makes one; the access file of the service must hold its SHA-256. A key that has expired does not do.",
    ),
    entry(
        ProblemKind::Forbidden,
        "forbidden",
        StatusCode::FORBIDDEN,
        "Not allowed",
        "The credentials are good, and do not carry the right that this needs: `needed`, on `resource` where there is one.\n\
         Rights are given in the access file of the service.",
    ),
    entry(
        ProblemKind::TooManyWaiters,
        "too-many-waiters",
        StatusCode::TOO_MANY_REQUESTS,
        "The queue is full",
        "More requests wait than the service seats, for this resource or in all (`scope`). Come back later, and with\n\
         jitter.",
    ),
    entry(
        ProblemKind::QuotaExceeded,
        "quota-exceeded",
        StatusCode::TOO_MANY_REQUESTS,
        "A bound is met",
        "Too many requests, leases or waiting requests of one principal (`scope`, `limit`), too many listeners, or one\n\
         token that claims its lease over and over. Come back after `Retry-After`.",
    ),
    entry(
        ProblemKind::Draining,
        "draining",
        StatusCode::SERVICE_UNAVAILABLE,
        "Shutting down",
        "This instance is shutting down. Leases are not touched by that: they live on the nodes. Ask another instance,\n\
         or this one in a second.",
    ),
    entry(
        ProblemKind::Internal,
        "internal",
        StatusCode::INTERNAL_SERVER_ERROR,
        "A defect of the service",
        "Something went wrong that should not have. The log has it under the request id. What the request asked for\n\
         may or may not have been done.",
    ),
];

impl ProblemKind {
    /// Every slug, in the catalogue's order.
    pub fn all() -> impl Iterator<Item = Self> {
        CATALOGUE.iter().map(|e| e.slug)
    }

    /// The slug of a word.
    pub fn parse(word: &str) -> Option<Self> {
        CATALOGUE.iter().find(|e| e.word == word).map(|e| e.slug)
    }

    fn entry(self) -> &'static Entry {
        &CATALOGUE[self as usize]
    }

    /// The word in `type` and in text answers.
    pub fn as_str(self) -> &'static str {
        self.entry().word
    }

    /// The status code.
    pub fn status(self) -> StatusCode {
        self.entry().status
    }

    /// The title.
    pub fn title(self) -> &'static str {
        self.entry().title
    }

    /// The page behind `/problems/{slug}`, as plain text.
    pub fn page(self) -> String {
        let e = self.entry();
        format!("{} ({})\n\n{}\n\n{}\n", e.title, e.word, e.status, e.page)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn the_catalogue_is_in_the_order_of_the_enum_and_its_words_are_unique() {
        for (i, e) in CATALOGUE.iter().enumerate() {
            assert_eq!(e.slug as usize, i, "{}", e.word);
            assert_eq!(ProblemKind::parse(e.word), Some(e.slug));
            assert!(e.word.bytes().all(|b| b.is_ascii_lowercase() || b == b'-'));
        }
        assert_eq!(CATALOGUE.iter().map(|e| e.word).collect::<HashSet<_>>().len(), CATALOGUE.len());
        assert_eq!(ProblemKind::parse("no-such-word"), None);
    }

    /// Proxies mint 408 and 504, and `curl --retry` repeats them.
    #[test]
    fn codes_that_curl_would_repeat_are_429_and_503_only() {
        for slug in ProblemKind::all() {
            let repeated = matches!(slug.status().as_u16(), 408 | 429 | 500 | 502 | 503 | 504);
            let meant = matches!(slug.status().as_u16(), 429 | 503) || slug == ProblemKind::Internal;
            assert_eq!(repeated, meant, "{}", slug.as_str());
        }
    }
}
