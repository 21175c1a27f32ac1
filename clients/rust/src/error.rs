//! The reasons why a request fails: no instance answered, an instance refused, or the answer was not redlockd's. The slugs of the
//! contract appear only where a caller branches on them.

use std::fmt;
use std::time::Duration;

use super::transport::CONNECT_TIMEOUT;
use redlockd_common::api;
use redlockd_common::types::is_hidden;

/// A refusal by an instance.
#[derive(Debug, Clone)]
pub struct ApiRefusal {
    /// The instance's URL.
    pub url: String,
    pub status: u16,
    /// The last segment of the problem's type; empty if the answer was no problem document.
    pub slug: String,
    /// The problem document; empty if there was none.
    pub problem: Box<api::ProblemDetails>,
    /// The header `Retry-After`.
    pub retry_after: Option<Duration>,
}

/// Why a request has no result.
#[derive(Debug, Clone)]
pub enum ClientError {
    /// No instance answered.
    Unreachable {
        /// `(URL, reason)` of each tried instance, in that order.
        tries: Vec<(String, String)>,
        /// A request may still have been received and executed.
        maybe_sent: bool,
    },
    /// An instance refused.
    Refused(ApiRefusal),
    /// The answer was not redlockd's, or could not be read.
    Unexpected {
        /// Where the answer came from.
        url: String,
        /// What is wrong with the answer. Never repeats a body.
        detail: String,
    },
}

/// What a caller should do about an error.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ErrorClass {
    /// The lock is held: try later, or give up.
    Held,
    /// Waiting would be a deadlock: release what is held and start over.
    Deadlock,
    /// The service is not available now: try again.
    Unavailable,
    /// The lease of this token has ended: stop working.
    Lost,
    /// The key is missing, wrong, or lacks the right.
    Forbidden,
    /// The lock is free.
    NotHeld,
    /// The holder's fence is not the one in the request.
    Changed,
    /// The request is invalid: do not repeat it.
    Wrong,
}

impl ClientError {
    /// What a caller should do.
    pub fn class(&self) -> ErrorClass {
        let Self::Refused(refusal) = self else { return ErrorClass::Unavailable };
        match refusal.status {
            423 => ErrorClass::Held,
            409 if refusal.slug == "ticket-waiting" => ErrorClass::Held,
            409 if refusal.slug == "deadlock" => ErrorClass::Deadlock,
            409 | 410 => ErrorClass::Lost,
            412 if refusal.slug == "stale-fence" => ErrorClass::Lost,
            401 | 403 => ErrorClass::Forbidden,
            404 if refusal.slug == "not-held" => ErrorClass::NotHeld,
            412 => ErrorClass::Changed,
            429 | 500..=599 => ErrorClass::Unavailable,
            _ => ErrorClass::Wrong,
        }
    }

    /// Whether the lease has ended: the class `Lost`; of several leases, whether one of them has, whatever the others' state is.
    pub fn is_lost(&self) -> bool {
        let results = self.refusal().and_then(|refusal| refusal.problem.members.results.as_deref());
        self.class() == ErrorClass::Lost
            || results.unwrap_or_default().iter().any(|one| matches!(one.status, 409 | 410))
    }

    /// The refusal, if an instance refused.
    pub fn refusal(&self) -> Option<&ApiRefusal> {
        match self {
            Self::Refused(refusal) => Some(refusal),
            _ => None,
        }
    }

    /// The problem document of a refusal; if no instance sent one, a document with the sentence of this error.
    pub fn problem(&self) -> serde_json::Value {
        match self.refusal().filter(|refusal| !refusal.problem.kind.is_empty()) {
            Some(refusal) => serde_json::to_value(&refusal.problem).unwrap_or_default(),
            None => serde_json::json!({
                "type": "about:blank", "title": "No answer of redlockd", "detail": self.to_string(),
            }),
        }
    }

    /// Whether the request may have been executed although it failed.
    pub fn maybe_done(&self) -> bool {
        match self {
            Self::Unreachable { maybe_sent, .. } => *maybe_sent,
            Self::Unexpected { .. } => true,
            Self::Refused(refusal) => refusal.status >= 500,
        }
    }
}

/// In one sentence, for people.
impl fmt::Display for ClientError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unreachable { tries, .. } => {
                f.write_str("no instance of the service answers")?;
                for (i, (url, why)) in tries.iter().enumerate() {
                    write!(f, "{} {url}: {why}", if i == 0 { ":" } else { ";" })?;
                }
                Ok(())
            }
            Self::Refused(refusal) => {
                let problem = &refusal.problem;
                match problem.detail.is_empty() {
                    true => write!(f, "{} answered with status {}", refusal.url, refusal.status)?,
                    false => f.write_str(&one_line(&problem.detail))?,
                }
                // If only one field is wrong, the service's sentence names it.
                let errors = problem.members.errors.iter().flatten();
                for error in errors.filter(|error| !problem.detail.contains(&error.detail)) {
                    write!(f, "; {} {}", one_line(&error.field), one_line(&error.detail))?;
                }
                Ok(())
            }
            Self::Unexpected { url, detail } => write!(f, "{url} does not answer like redlockd: {detail}"),
        }
    }
}

impl std::error::Error for ClientError {}

/// External text for a message or a table: escapes control characters, and characters that are invisible or change the direction
/// of text.
pub fn one_line(text: &str) -> String {
    let shown = |c: char| match c {
        c if c.is_control() => c.escape_debug().to_string(),
        c if is_hidden(c) => c.escape_unicode().to_string(),
        c => c.to_string(),
    };
    text.chars().map(shown).collect()
}
/// Why a try failed.
pub(super) fn reason(error: &reqwest::Error, timeout: Duration) -> String {
    if error.is_timeout() {
        let limit = if error.is_connect() { timeout.min(CONNECT_TIMEOUT) } else { timeout };
        return format!("no answer within {} ms", limit.as_millis());
    }
    let cause = causes(error);
    // The answer of a server with another protocol, as the HTTP and TLS libraries report it.
    match cause.as_str() {
        text if text.contains("InvalidContentType") => "it does not speak TLS (is the URL http://?)".to_owned(),
        text if text.contains("invalid HTTP version") => {
            format!("it does not speak HTTP (is it another service's port, or the URL https://?): {cause}")
        }
        text if text.contains("connection closed before message") => {
            "it closed the connection without an answer (did it end, or is the URL https://?)".to_owned()
        }
        _ => cause,
    }
}

/// The innermost cause; the outer ones repeat the URL.
pub(super) fn causes(error: &dyn std::error::Error) -> String {
    let mut innermost = error;
    while let Some(source) = innermost.source() {
        innermost = source;
    }
    innermost.to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The status of the whole is the largest: 503 hides a lease that has ended.
    #[test]
    fn one_lease_that_ended_is_a_loss() {
        let with = |statuses: &[u16]| {
            let results = statuses.iter().map(|status| api::SetResult::of("x", *status)).collect();
            let members = api::Members { results: Some(results), ..api::Members::default() };
            let problem = Box::new(api::ProblemDetails { members, ..api::ProblemDetails::default() });
            let status = statuses.iter().copied().max().unwrap_or_default();
            let (url, slug) = (String::new(), String::new());
            ClientError::Refused(ApiRefusal { url, status, slug, problem, retry_after: None })
        };
        let unsure = with(&[200, 503]);
        assert_eq!((unsure.class(), unsure.is_lost()), (ErrorClass::Unavailable, false));
        let lost = with(&[410, 200, 503]);
        assert_eq!((lost.class(), lost.is_lost()), (ErrorClass::Unavailable, true));
        assert!(with(&[200, 409]).is_lost());
    }
}
