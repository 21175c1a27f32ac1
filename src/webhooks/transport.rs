//! One try: connects, sends the signed message, and reads the status. The address is checked when the connection is
//! made, no redirect is followed, no proxy is used, and only the status and `Retry-After` of the answer are kept.

use std::sync::Arc;
use std::time::Duration;

use reqwest::Url;
use reqwest::header::{CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue, RETRY_AFTER};

use super::connection::NoAnswer;
use super::message::Body;
use super::signing::{self, SignedContent};
use super::target::Target;

/// The longest pause that a receiver can ask for.
pub const PAUSE_ASKED_MAX: Duration = Duration::from_hours(1);

/// What a try sends.
#[derive(Clone)]
pub struct Outgoing {
    /// The URL to send to. Beyond the target's prefix it is secret.
    pub url: Url,
    /// The header `webhook-id`.
    pub id: String,
    /// `webhook-timestamp`: the time of this try. Milliseconds since 1970.
    pub at_ms: u64,
    pub body: Body,
}

/// The outcome of a try.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Answer {
    /// The receiver answered.
    Status {
        code: u16,
        /// The pause that the receiver asks for, at most [`PAUSE_ASKED_MAX`].
        retry_after: Option<Duration>,
    },
    /// A rule forbids the connection.
    Blocked(&'static str),
    /// There was no answer; the reason in a few words.
    Failed(&'static str),
}

impl Answer {
    /// The receiver answered 2xx.
    pub fn is_accepted(self) -> bool {
        matches!(self, Self::Status { code: 200..=299, .. })
    }

    /// The receiver answered 410: it wants no more messages.
    pub fn is_gone(self) -> bool {
        matches!(self, Self::Status { code: 410, .. })
    }

    /// The answer as text, for pages, logs and JSON.
    pub fn text(self) -> String {
        match self {
            Self::Status { code, .. } => format!("status {code}"),
            Self::Blocked(rule) => format!("not sent: {rule}"),
            Self::Failed(why) => why.to_owned(),
        }
    }
}

/// Makes tries. Tests have a transport without a network.
pub trait Transport: Send + Sync + 'static {
    /// Makes one try. The caller limits its time.
    ///
    /// Cancel: the message may have arrived.
    fn send(&self, target: Arc<Target>, message: Outgoing) -> impl Future<Output = Answer> + Send + 'static;
}

/// Sends over the network, by HTTP.
#[derive(Debug, Clone, Copy, Default)]
pub struct HttpTransport;

impl Transport for HttpTransport {
    fn send(&self, target: Arc<Target>, message: Outgoing) -> impl Future<Output = Answer> + Send + 'static {
        try_once(target, message)
    }
}

async fn try_once(target: Arc<Target>, message: Outgoing) -> Answer {
    let headers = match headers(&target, &message) {
        Ok(headers) => headers,
        Err(why) => return Answer::Failed(why),
    };
    let at_ms = message.at_ms;
    match target.connector.exchange(&message.url, target.method.clone(), headers, message.body.bytes).await {
        Ok(head) => Answer::Status { code: head.status().as_u16(), retry_after: retry_after(head.headers(), at_ms) },
        Err(NoAnswer::Blocked(rule)) => Answer::Blocked(rule),
        Err(NoAnswer::Failed(why)) => Answer::Failed(why),
    }
}

/// The headers of a message. Errors: a few words.
fn headers(target: &Target, message: &Outgoing) -> Result<HeaderMap, &'static str> {
    const INVALID: &str = "a header of the message is invalid";
    let mut headers = target.headers.clone();
    let (timestamp_s, body) = (message.at_ms / 1_000, &message.body.bytes[..]);
    let mut set = |name: &'static str, value: &str| {
        let value = HeaderValue::from_str(value).map_err(|_| INVALID)?;
        headers.insert(HeaderName::from_static(name), value);
        Ok::<_, &'static str>(())
    };
    set("webhook-id", &message.id)?;
    set("webhook-timestamp", &timestamp_s.to_string())?;
    if let Some(newest) = target.secrets.first() {
        let content = SignedContent { id: &message.id, timestamp_s, body };
        set("webhook-signature", &content.signature(&target.secrets))?;
        set("x-hub-signature-256", &signing::hub_signature(newest, body))?;
    }
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(message.body.media_type));
    Ok(headers)
}

/// The pause in `Retry-After`, which is in seconds or a date. `now_ms`: milliseconds since 1970.
fn retry_after(headers: &HeaderMap, now_ms: u64) -> Option<Duration> {
    let text = headers.get(RETRY_AFTER)?.to_str().ok()?.trim();
    let pause = match text.parse::<u64>() {
        Ok(seconds) => Duration::from_secs(seconds),
        Err(_) => {
            let at = jiff::fmt::rfc2822::parse(text).ok()?.timestamp().as_millisecond();
            Duration::from_millis(u64::try_from(at).ok()?.saturating_sub(now_ms))
        }
    };
    Some(pause.min(PAUSE_ASKED_MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn retry_after_is_seconds_or_a_date_and_bounded() {
        let of = |text: &str| {
            let headers = HeaderMap::from_iter([(RETRY_AFTER, HeaderValue::from_str(text).expect("valid"))]);
            retry_after(&headers, 784_111_770_000)
        };
        assert_eq!(of("7"), Some(Duration::from_secs(7)));
        assert_eq!(of("Sun, 06 Nov 1994 08:49:37 GMT"), Some(Duration::from_secs(7)));
        assert_eq!(of("Sun, 06 Nov 1994 08:49:00 GMT"), Some(Duration::ZERO));
        assert_eq!(of("99999999"), Some(PAUSE_ASKED_MAX));
        for nothing in ["", "-1", "soon", "1.5", "99999999999999999999999"] {
            assert_eq!(of(nothing), None, "{nothing}");
        }
    }
}
