//! The catalogue of problems: slug, status, title and the text of `/problems/{slug}`, so that one file shows every way in which a
//! request can fail. [`super::api::refusals`] maps domain errors to slugs.

use axum::http::StatusCode;

/// A kind of problem. Its slug is stable: clients branch on it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ProblemKind {
    /// Held by another client, and the request has no wait.
    Locked,
    /// Held by another client until the wait ended.
    WaitTimeout,
    /// The owners wait for each other in a cycle.
    Deadlock,
    /// Another request has the waiter's place.
    WaitReplaced,
    /// The resource is held by permits of another limit.
    LimitDiffers,
    /// The token holds the resource in another mode.
    ModeDiffers,
    /// Fewer than a quorum of nodes voted.
    QuorumUnavailable,
    /// Another token holds the resource.
    NotHolder,
    /// The token's lease has ended.
    LeaseExpired,
    /// A newer lease has a larger fence.
    StaleFence,
    /// `If-Match` names a former holder.
    Changed,
    /// Nobody holds the resource.
    NotHeld,
    /// A field, a header or the body is wrong.
    Invalid,
    /// A lease would be kept for too long.
    KeepTooLong,
    /// A waiting ticket has no lease to keep.
    TicketWaiting,
    /// A ticket has ended.
    TicketEnded,
    /// A token in the URL, which is logged.
    TokenInUrl,
    /// No route has this path.
    NotFound,
    /// The path has no such method.
    MethodNotAllowed,
    /// The transfer coding is not understood.
    NotImplemented,
    /// None of the accepted media types is offered.
    NotAcceptable,
    /// The host name is not allowed.
    HostNotAllowed,
    /// The body exceeds its limit.
    BodyTooLarge,
    /// Path and query exceed their limit.
    UriTooLong,
    /// Request line and headers exceed their limit.
    HeadTooLarge,
    /// The body's media type is not supported.
    UnsupportedMediaType,
    /// Missing or invalid credentials.
    Unauthenticated,
    /// The required permission is missing.
    Forbidden,
    /// Call-backs to this address are not allowed.
    CallbackNotAllowed,
    /// The wait queue is full.
    TooManyWaiters,
    /// Another limit is reached.
    QuotaExceeded,
    /// The service is shutting down.
    Draining,
    /// An internal error.
    Internal,
}

/// The texts of a [`ProblemKind`].
struct Entry {
    kind: ProblemKind,
    word: &'static str,
    status: StatusCode,
    title: &'static str,
    page: &'static str,
}

const fn entry(
    kind: ProblemKind,
    word: &'static str,
    status: StatusCode,
    title: &'static str,
    page: &'static str,
) -> Entry {
    Entry { kind, word, status, title, page }
}

/// In the order of [`ProblemKind`].
const CATALOGUE: [Entry; 33] = [
    entry(
        ProblemKind::Locked,
        "locked",
        StatusCode::LOCKED,
        "Locked",
        "Another client holds the resource, and the request did not ask to wait (`wait=30s` would).\n\
         `reason` is `held`, `foreign` (held by another Redlock client) or `lock-delay` (the last lease has expired and\n\
         its safety margin has not). `Retry-After` is the earliest time at which the resource can be free.\n\
         `curl --retry` does not repeat a 423.",
    ),
    entry(
        ProblemKind::WaitTimeout,
        "wait-timeout",
        StatusCode::LOCKED,
        "The wait timed out",
        "The resource was held for as long as the request was willing to wait. The request has left the queue; a new\n\
         one joins at the end.",
    ),
    entry(
        ProblemKind::Deadlock,
        "deadlock",
        StatusCode::CONFLICT,
        "Deadlock",
        "The owners in `cycle` wait for each other: each holds what the one before it waits for. This request came last,\n\
         so it is refused, at once and not at the end of its wait. Release what you hold and start again, and acquire\n\
         locks in one fixed order (by name, for example).\n\
         Requests of one principal with the same `owner` count as one client. Give unrelated clients different owners, or turn this off\n\
         (`deadlock_detection = false`).",
    ),
    entry(
        ProblemKind::WaitReplaced,
        "wait-replaced",
        StatusCode::CONFLICT,
        "Another request has this place in the queue",
        "A later request of the same principal, with the same `wait_id` for the same resource, has taken this request's place:\n\
         mostly the same client, whose connection was cut. This request has left the queue and holds nothing.",
    ),
    entry(
        ProblemKind::LimitDiffers,
        "limit-differs",
        StatusCode::CONFLICT,
        "Another number of permits is in force",
        "Permits of this resource are held that were asked for with another `limit`; the problem's `limit` is the one in force. All\n\
         who use a resource have to ask for the same number of permits. To change it, wait until all permits are released.",
    ),
    entry(
        ProblemKind::ModeDiffers,
        "mode-differs",
        StatusCode::CONFLICT,
        "The token holds the lock in another mode",
        "The token of the request holds the resource already, but in another mode (`mode`) or with another `limit`. A repeated\n\
         request has to be the same one. An exclusive lease becomes a shared one by PATCH with `mode=shared`; a shared one never\n\
         becomes exclusive: two readers that want to would wait for each other. Release and acquire.",
    ),
    entry(
        ProblemKind::QuorumUnavailable,
        "quorum-unavailable",
        StatusCode::SERVICE_UNAVAILABLE,
        "Too few nodes can vote",
        "A lock needs a quorum of the configured nodes, and fewer than that voted for it. `nodes` has the reason of each:\n\
         unreachable, quarantined (with the seconds left), clock off, another node list, or held by competing requests.\n\
         Votes that were granted are cancelled. After a failed PATCH the lease is unchanged and valid until its old\n\
         deadline (`valid_for_ms`).",
    ),
    entry(
        ProblemKind::NotHolder,
        "not-holder",
        StatusCode::CONFLICT,
        "Another token holds the lock",
        "The resource is held with another token than the Lock-Token of the request: another client has acquired it.\n\
         Stop working on it.",
    ),
    entry(
        ProblemKind::LeaseExpired,
        "lease-expired",
        StatusCode::GONE,
        "The lease has ended",
        "The lease of this token or fence has ended; `reason` is `expired`, `released`, `forced` (by an operator) or `unknown`\n\
         (the nodes have no record of it). It cannot be extended again. Stop working; acquire the lock with a new token\n\
         if you still need it.",
    ),
    entry(
        ProblemKind::StaleFence,
        "stale-fence",
        StatusCode::PRECONDITION_FAILED,
        "The fence is stale",
        "A larger fence (`newest_fence`) has been given since: another client has, or had, a lease after this one. Refuse\n\
         the work. A fence is safe only where the store compares it within its own write: after this answer another\n\
         lease may begin at any moment. With `deny=403` the status is 403, for proxies that know no other refusal.",
    ),
    entry(
        ProblemKind::Changed,
        "changed",
        StatusCode::PRECONDITION_FAILED,
        "The holder has changed",
        "If-Match names a former holder, or If-None-Match the present one. The answer's ETag names the present one. Nothing\n\
         was done: check who holds the lock before you end another client's lease.",
    ),
    entry(
        ProblemKind::NotHeld,
        "not-held",
        StatusCode::NOT_FOUND,
        "The lock is not held",
        "According to a quorum of the nodes, nobody holds the resource.",
    ),
    entry(
        ProblemKind::Invalid,
        "invalid",
        StatusCode::BAD_REQUEST,
        "The request is invalid",
        "`errors` names each field, parameter or header that is wrong, and why. Durations carry a unit: 500ms, 30s,\n\
         5m, 1h. Unknown fields are refused, so that a misspelt one is not ignored. PATCH requires the Lock-Token header,\n\
         and so does DELETE without `force`.",
    ),
    entry(
        ProblemKind::KeepTooLong,
        "keep-too-long",
        StatusCode::BAD_REQUEST,
        "The lease would be kept for too long",
        "The service renews a lease for at most `max_keep` after its grant. `kept_for_ms` is what is left of that. Ask for\n\
         less, or acquire the lock anew.",
    ),
    entry(
        ProblemKind::TicketWaiting,
        "ticket-waiting",
        StatusCode::CONFLICT,
        "The ticket is still waiting",
        "It has no lease yet that could be kept for another time. `GET` the ticket with `wait` to wait until it has one.",
    ),
    entry(
        ProblemKind::TicketEnded,
        "ticket-ended",
        StatusCode::GONE,
        "The ticket is over",
        "`ended_by` says why: `released`, `kept-out`, `lost`, `forced`, `wait-timeout`, `cancelled`, `undelivered` (nobody\n\
         asked for it in time) or `deadlock`. A script learns here that it had lost the lock.",
    ),
    entry(
        ProblemKind::TokenInUrl,
        "token-in-url",
        StatusCode::BAD_REQUEST,
        "A token does not belong in a URL",
        "URLs are logged by servers, proxies and shells, and a token is secret as long as its lease is valid. Send it in\n\
         the Lock-Token header or, to acquire with a token of your own, in the body. If the token in the URL belongs to\n\
         a valid lease, release it.",
    ),
    entry(
        ProblemKind::NotFound,
        "not-found",
        StatusCode::NOT_FOUND,
        "No such path",
        "This path does not exist. /openapi.yaml lists all paths.",
    ),
    entry(
        ProblemKind::MethodNotAllowed,
        "method-not-allowed",
        StatusCode::METHOD_NOT_ALLOWED,
        "Method not allowed",
        "The path does not support this method; the Allow header lists those that it does.",
    ),
    entry(
        ProblemKind::NotImplemented,
        "not-implemented",
        StatusCode::NOT_IMPLEMENTED,
        "The transfer coding is not supported",
        "A body may be sent in chunks (`Transfer-Encoding: chunked`), and in no other coding. Nothing was done, and the\n\
         connection is closed.",
    ),
    entry(
        ProblemKind::NotAcceptable,
        "not-acceptable",
        StatusCode::NOT_ACCEPTABLE,
        "None of the accepted media types is offered",
        "The Accept header excludes every media type of this path. Nothing was done.\n\
         application/json is offered everywhere under /locks and /nodes, text/plain under /locks/{resource}.",
    ),
    entry(
        ProblemKind::HostNotAllowed,
        "host-not-allowed",
        StatusCode::MISDIRECTED_REQUEST,
        "The host name is not allowed",
        "The dashboard, and without authentication everything, is only served under an IP address, a loopback name, or a\n\
         name in the setting `allowed_hosts`. Otherwise a page of another site whose name resolves to this address could\n\
         read and end leases (DNS rebinding). Nothing was done.\n\
         Add the name to `allowed_hosts`, use the address, or have the proxy send an allowed name.",
    ),
    entry(
        ProblemKind::BodyTooLarge,
        "body-too-large",
        StatusCode::PAYLOAD_TOO_LARGE,
        "The body is too large",
        "The maximum size of a request body is 64 KiB, unless configured otherwise. Nothing was done.",
    ),
    entry(
        ProblemKind::UriTooLong,
        "uri-too-long",
        StatusCode::URI_TOO_LONG,
        "The path or the query is too long",
        "The maximum length of path and query together is 4 KiB, unless configured otherwise. Send long fields in the\n\
         body. Nothing was done.",
    ),
    entry(
        ProblemKind::HeadTooLarge,
        "head-too-large",
        StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE,
        "The head of the request is too large",
        "Request line and headers together have at most 16 KiB, unless configured otherwise, and there are at most 64\n\
         headers. Nothing was done.",
    ),
    entry(
        ProblemKind::UnsupportedMediaType,
        "unsupported-media-type",
        StatusCode::UNSUPPORTED_MEDIA_TYPE,
        "The body's media type is not supported",
        "A body must be application/json or application/x-www-form-urlencoded (what `curl -d ttl=30s` sends); PATCH also\n\
         accepts application/merge-patch+json. It must be UTF-8 and not compressed.",
    ),
    entry(
        ProblemKind::Unauthenticated,
        "unauthenticated",
        StatusCode::UNAUTHORIZED,
        "Missing or invalid credentials",
        "The service requires an API key: `Authorization: Bearer rlk_…`, or Basic with the key as password. `redlockd key new`\n\
         creates one; the access file of the service must contain its SHA-256. Expired keys are refused.",
    ),
    entry(
        ProblemKind::Forbidden,
        "forbidden",
        StatusCode::FORBIDDEN,
        "Forbidden",
        "Authenticated, but the required permission is missing: the right `needed`, on `resource` if it is about one.\n\
         Rights are granted in the access file of the service. Without `needed`: a browser sent the request for a page\n\
         of another site.",
    ),
    entry(
        ProblemKind::CallbackNotAllowed,
        "callback-not-allowed",
        StatusCode::FORBIDDEN,
        "Call-backs may not go there",
        "The service sends call-backs only to targets that its administrator has written into `webhooks_file`: `callback`\n\
         must be `target:NAME`, or a URL below that of a target, and the target must be open to the principal.",
    ),
    entry(
        ProblemKind::TooManyWaiters,
        "too-many-waiters",
        StatusCode::TOO_MANY_REQUESTS,
        "The wait queue is full",
        "The maximum number of requests (`limit`) already waits for this resource or on this instance (`scope`). Retry\n\
         later, with jitter.",
    ),
    entry(
        ProblemKind::QuotaExceeded,
        "quota-exceeded",
        StatusCode::TOO_MANY_REQUESTS,
        "A limit is reached",
        "Too many requests, leases or waiting requests of one principal (`scope`, `limit`), too many readers of the\n\
         event stream, or one token that was acquired again too often. Retry after `Retry-After`.",
    ),
    entry(
        ProblemKind::Draining,
        "draining",
        StatusCode::SERVICE_UNAVAILABLE,
        "Shutting down",
        "This instance is shutting down. Leases are stored on the nodes and stay valid. Retry with another instance, or\n\
         with this one in a second.",
    ),
    entry(
        ProblemKind::Internal,
        "internal",
        StatusCode::INTERNAL_SERVER_ERROR,
        "Internal error",
        "The service failed unexpectedly. Its log has the details under the request's id. The request may or may not\n\
         have taken effect.",
    ),
];

impl ProblemKind {
    /// Every kind, in the catalogue's order.
    pub fn all() -> impl Iterator<Item = Self> {
        CATALOGUE.iter().map(|e| e.kind)
    }

    /// The kind with this slug.
    pub fn parse(word: &str) -> Option<Self> {
        CATALOGUE.iter().find(|e| e.word == word).map(|e| e.kind)
    }

    fn entry(self) -> &'static Entry {
        &CATALOGUE[self as usize]
    }

    /// The slug, as in `type` and in text answers.
    pub fn as_str(self) -> &'static str {
        self.entry().word
    }

    pub fn status(self) -> StatusCode {
        self.entry().status
    }

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
    fn the_catalogue_is_in_the_order_of_the_enum_and_slugs_are_unique() {
        for (i, e) in CATALOGUE.iter().enumerate() {
            assert_eq!(e.kind as usize, i, "{}", e.word);
            assert_eq!(ProblemKind::parse(e.word), Some(e.kind));
            assert!(e.word.bytes().all(|b| b.is_ascii_lowercase() || b == b'-'));
        }
        assert_eq!(CATALOGUE.iter().map(|e| e.word).collect::<HashSet<_>>().len(), CATALOGUE.len());
        assert_eq!(ProblemKind::parse("no-such-word"), None);
    }

    /// Proxies generate 408 and 504, and `curl --retry` repeats them.
    #[test]
    fn codes_that_curl_would_repeat_are_429_and_503_only() {
        for kind in ProblemKind::all() {
            let repeated = matches!(kind.status().as_u16(), 408 | 429 | 500 | 502 | 503 | 504);
            let meant = matches!(kind.status().as_u16(), 429 | 503) || kind == ProblemKind::Internal;
            assert_eq!(repeated, meant, "{}", kind.as_str());
        }
    }
}
