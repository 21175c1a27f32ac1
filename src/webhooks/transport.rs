//! One try: connects, sends the signed message, and reads the status. The address is checked as the connection is made, no
//! redirect is followed, no proxy used, and of an answer nothing is kept but its status and `Retry-After`.

use std::error::Error;
use std::sync::Arc;
use std::time::Duration;

use reqwest::header::{CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue, RETRY_AFTER};
use reqwest::{Certificate, Client, Url, redirect};

use super::address::{self, AddressPolicy};
use super::message::Body;
use super::resolver::{AddressRefused, CheckedResolver, Lookup};
use super::signing::{self, SignedContent};
use super::target::{Target, literal_address};

/// The longest pause that a receiver can ask for.
pub const PAUSE_ASKED_MAX: Duration = Duration::from_hours(1);

/// What a try sends.
#[derive(Clone)]
pub struct Outgoing {
    /// Where to. A secret beyond the target's prefix.
    pub url: Url,
    /// `webhook-id`.
    pub id: String,
    /// `webhook-timestamp`: of this try. Milliseconds since 1970.
    pub at_ms: u64,
    /// The message.
    pub body: Body,
}

/// What came of a try.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Answer {
    /// The receiver answered.
    Status {
        /// The status code.
        code: u16,
        /// The pause that it asks for, at most [`PAUSE_ASKED_MAX`].
        retry_after: Option<Duration>,
    },
    /// A rule forbids the connection.
    Blocked(&'static str),
    /// There was no answer: why, in a few words.
    Failed(&'static str),
}

impl Answer {
    /// 2xx.
    pub fn is_accepted(self) -> bool {
        matches!(self, Self::Status { code: 200..=299, .. })
    }

    /// 410.
    pub fn is_gone(self) -> bool {
        matches!(self, Self::Status { code: 410, .. })
    }

    /// For pages, logs and JSON.
    pub fn text(self) -> String {
        match self {
            Self::Status { code, .. } => format!("status {code}"),
            Self::Blocked(rule) => format!("not sent: {rule}"),
            Self::Failed(why) => why.to_owned(),
        }
    }
}

/// Makes tries. Tests have one without a network.
pub trait Transport: Send + Sync + 'static {
    /// Makes one. The caller limits its time.
    ///
    /// Cancel: the message may have arrived.
    fn send(&self, target: Arc<Target>, message: Outgoing) -> impl Future<Output = Answer> + Send + 'static;
}

/// Over HTTP.
#[derive(Debug, Clone, Copy, Default)]
pub struct HttpTransport;

impl Transport for HttpTransport {
    fn send(&self, target: Arc<Target>, message: Outgoing) -> impl Future<Output = Answer> + Send + 'static {
        try_once(target, message)
    }
}

async fn try_once(target: Arc<Target>, message: Outgoing) -> Answer {
    // A resolver is not asked about a literal address.
    if let Some(literal) = literal_address(&message.url)
        && let Err(refused) = address::check(literal, target.policy)
    {
        return Answer::Blocked(refused.0);
    }
    let headers = match headers(&target, &message) {
        Ok(headers) => headers,
        Err(why) => return Answer::Failed(why),
    };
    let request = target.client.request(target.method.clone(), message.url).headers(headers).body(message.body.bytes);
    match request.send().await {
        // Its body is dropped unread, and with it the connection.
        Ok(response) => Answer::Status {
            code: response.status().as_u16(),
            retry_after: retry_after(response.headers(), message.at_ms),
        },
        Err(error) => failure(&error),
    }
}

/// Errors: a few words.
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

/// In seconds or as a date. Units of `now_ms`: milliseconds since 1970.
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

/// Words of ours: the error's own may have the URL, or what the receiver wrote.
fn failure(error: &reqwest::Error) -> Answer {
    let mut cause: Option<&(dyn Error + 'static)> = Some(error);
    while let Some(inner) = cause {
        if let Some(AddressRefused(rule)) = inner.downcast_ref() {
            return Answer::Blocked(rule.0);
        }
        if inner.is::<rustls::Error>() {
            return Answer::Failed("its certificate is not accepted, or TLS failed");
        }
        if let Some(io) = inner.downcast_ref::<std::io::Error>() {
            if let Some(found) = io.get_ref().and_then(|inner| inner.downcast_ref::<AddressRefused>()) {
                return Answer::Blocked(found.0.0);
            }
            if io.get_ref().is_some_and(<dyn Error + Send + Sync>::is::<rustls::Error>) {
                return Answer::Failed("its certificate is not accepted, or TLS failed");
            }
            match io.kind() {
                std::io::ErrorKind::ConnectionRefused => return Answer::Failed("it refused the connection"),
                std::io::ErrorKind::ConnectionReset => return Answer::Failed("it closed the connection"),
                _ => {}
            }
        }
        cause = inner.source();
    }
    match error.is_connect() {
        true => Answer::Failed("no connection: its name is not known, or nobody answers there"),
        false => Answer::Failed("it closed the connection, or its answer is not HTTP"),
    }
}

/// A client that connects by this policy. `authorities`: PEM; without, those of the system.
///
/// Errors: one sentence.
pub fn client(policy: AddressPolicy, lookup: Arc<dyn Lookup>, authorities: Authorities<'_>) -> Result<Client, String> {
    let builder = Client::builder()
        .user_agent(concat!("redlockd/", env!("CARGO_PKG_VERSION")))
        .redirect(redirect::Policy::none())
        .no_proxy()
        .referer(false)
        .http1_only()
        // Each try connects anew: the address is checked for each.
        .pool_max_idle_per_host(0)
        .dns_resolver(CheckedResolver { lookup, policy });
    let builder = match authorities {
        Authorities::System => builder,
        Authorities::None => builder.tls_certs_only([]),
        Authorities::Pem(pem) => {
            let certificates = Certificate::from_pem_bundle(pem).unwrap_or_default();
            if certificates.is_empty() {
                return Err("has no certificate in PEM".to_owned());
            }
            builder.tls_certs_only(certificates)
        }
    };
    builder.build().map_err(|error| format!("cannot be used: {}", error.without_url()))
}

/// Who vouches for the certificates of receivers.
#[derive(Debug, Clone, Copy)]
pub enum Authorities<'a> {
    /// Those of the system.
    System,
    /// Nobody: for plain HTTP.
    None,
    /// These, and no others.
    Pem(&'a [u8]),
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
