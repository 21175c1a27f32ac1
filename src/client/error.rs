//! How a request can fail, as values: nobody answered, somebody refused, or somebody else answered.
//! Knows the contract's slugs as far as a caller branches on them.

use std::fmt;
use std::time::Duration;

use crate::api;

/// An answer that is a problem document.
#[derive(Debug, Clone)]
pub struct Refusal {
    /// Which instance answered.
    pub url: String,
    /// The status code.
    pub status: u16,
    /// The last segment of the problem's type; empty where the answer was no problem document.
    pub slug: String,
    /// The rest.
    pub problem: Box<api::Problem>,
    /// `Retry-After`.
    pub retry_after: Option<Duration>,
}

/// Why there is no result.
#[derive(Debug, Clone)]
pub enum ClientError {
    /// No instance answered. For each that was tried, why.
    Unreachable {
        /// `(URL, reason)`, in the order of trying.
        tries: Vec<(String, String)>,
        /// A request may have arrived all the same.
        maybe_sent: bool,
    },
    /// An instance refused.
    Refused(Refusal),
    /// Something answered that does not speak the contract.
    Strange {
        /// Who.
        url: String,
        /// How it differed. Never repeats a body.
        detail: String,
    },
}

/// What a caller does about an error.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ErrorClass {
    /// Somebody else has it: try later, or not at all.
    Held,
    /// Its holder waits for us in turn: waiting is no use.
    Deadlock,
    /// The service cannot, for now: try again.
    Unavailable,
    /// The lease of this token is over: stop working.
    Lost,
    /// Not allowed.
    Forbidden,
    /// Nobody holds it.
    NotHeld,
    /// The holder is another one than was named.
    Changed,
    /// The request is wrong, and will be the next time.
    Wrong,
}

impl ClientError {
    /// What to do about it.
    pub fn class(&self) -> ErrorClass {
        let Self::Refused(refusal) = self else { return ErrorClass::Unavailable };
        match refusal.status {
            423 => ErrorClass::Held,
            409 if refusal.slug == "deadlock" => ErrorClass::Deadlock,
            409 | 410 => ErrorClass::Lost,
            401 | 403 => ErrorClass::Forbidden,
            404 if refusal.slug == "not-held" => ErrorClass::NotHeld,
            412 => ErrorClass::Changed,
            429 | 500..=599 => ErrorClass::Unavailable,
            _ => ErrorClass::Wrong,
        }
    }

    /// The refusal, where there is one.
    pub fn refusal(&self) -> Option<&Refusal> {
        match self {
            Self::Refused(refusal) => Some(refusal),
            _ => None,
        }
    }

    /// Whether something that was asked for may have been done although there was no answer.
    pub fn maybe_done(&self) -> bool {
        match self {
            Self::Unreachable { maybe_sent, .. } => *maybe_sent,
            Self::Strange { .. } => true,
            Self::Refused(refusal) => refusal.status >= 500,
        }
    }
}

/// One sentence.
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
                for error in problem.members.errors.iter().flatten() {
                    write!(f, "; {} {}", one_line(&error.field), one_line(&error.detail))?;
                }
                Ok(())
            }
            Self::Strange { url, detail } => write!(f, "{url} does not answer like redlockd: {detail}"),
        }
    }
}

impl std::error::Error for ClientError {}

/// Text from elsewhere, as a message or a table may repeat it: without control characters.
pub fn one_line(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { c.escape_debug().to_string() } else { c.to_string() }).collect()
}
