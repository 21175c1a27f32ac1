//! Tickets: requests for a kept lease that wait without a connection. The program may end meanwhile: another program with the
//! ticket, and with the token or the same key, continues with it.

use std::time::Duration;

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use reqwest::Method;
use serde_json::json;

use super::acquire::UNAVAILABLE;
use super::answers::{LeaseAnswer, TimedLease};
use super::error::{ClientError, ErrorClass};
use super::requests::{LockRequest, acquire_path, body};
use super::transport::{ApiRequest, ApiResponse, Client};
use redlockd_common::api;
use redlockd_common::backoff::Backoff;
use redlockd_common::clock::{Clock, SystemClock};
use redlockd_common::duration::format_duration;
use redlockd_common::random::{Entropy, SystemEntropy};
use redlockd_common::types::Token;

/// Maximum duration of one request that waits: below the limits of proxies, and below the minute after which the service ends a
/// ticket that no request asks for.
const POLL_MAX: Duration = Duration::from_secs(45);
/// Minimum pause between two such requests: an instance that is stopping answers at once.
const POLL_PAUSE: Duration = Duration::from_millis(100);

/// How a ticket waits, and the receiver of its grant.
#[derive(Debug, Clone, Default)]
pub struct TicketOptions {
    /// How long the ticket waits; `None`: the service's default, an hour.
    pub wait: Option<Duration>,
    /// `target:NAME`, or a URL below that of a target, which may be a secret; `None`: the caller polls the ticket.
    pub callback: Option<CallbackAddress>,
    /// How long the grant is offered to the receiver; `None`: the service's default.
    pub accept: Option<Duration>,
}

/// The receiver of the messages about a ticket. Its `Debug` shows nothing of a URL.
#[derive(Clone)]
pub struct CallbackAddress(pub String);

impl std::fmt::Debug for CallbackAddress {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let shown = if self.0.starts_with("target:") { self.0.as_str() } else { "a URL" };
        write!(f, "Callback({shown})")
    }
}

/// The result of a request for a ticket.
#[derive(Debug, Clone)]
pub enum AskedTicket {
    /// The lock was free: the lease, which the service renews.
    Granted(Box<TimedLease>),
    /// A waiting ticket; if the same request was sent before, the ticket may be in a later state.
    Ticket(Box<api::TicketStatus>),
}

impl AskedTicket {
    fn read(response: &ApiResponse) -> Result<Self, ClientError> {
        let answer: serde_json::Value = response.json()?;
        if answer.get("ticket").is_some() {
            return Ok(Self::Ticket(Box::new(response.json()?)));
        }
        let lease = match answer.get("leases") {
            Some(_) => LeaseAnswer::Set(response.json()?),
            None => LeaseAnswer::One(response.json()?),
        };
        Ok(Self::Granted(Box::new(TimedLease::new(lease, response.started))))
    }
}

/// A token for one request. Everybody who has it may use the lease.
pub fn new_token() -> Token {
    SystemEntropy.token()
}

/// A text that is no ticket must not lead to another path; every ticket has an underscore.
const ESCAPED: &AsciiSet = &NON_ALPHANUMERIC.remove(b'_');

fn path(ticket: &str) -> String {
    format!("/tickets/{}", utf8_percent_encode(ticket, ESCAPED))
}

fn request<'a>(method: Method, ticket: &str, token: Option<&'a Token>) -> ApiRequest<'a> {
    ApiRequest { token, ..ApiRequest::new(method, path(ticket)) }
}

impl Client {
    /// `POST /locks/{resource}`, or `POST /locks` for several, with `async`: the lease if the lock is free and no call-back is
    /// wanted, else a ticket. It has the caller's own token, so that it may be repeated: a repeated request has the same ticket.
    /// `request` needs a `kept_for`.
    ///
    /// Errors: [`ClientError`]. Cancel: a ticket without a call-back that no request asks for ends after a minute.
    pub async fn ask_for_ticket(
        &self,
        request: &LockRequest,
        token: &Token,
        terms: &TicketOptions,
    ) -> Result<AskedTicket, ClientError> {
        let mut body = body(request);
        body["async"] = true.into();
        if let Some(wait) = terms.wait {
            body["wait"] = format_duration(wait).into();
        }
        if let Some(CallbackAddress(address)) = &terms.callback {
            body["callback"] = address.as_str().into();
        }
        if let Some(accept) = terms.accept {
            body["accept"] = format_duration(accept).into();
        }
        let http = ApiRequest { body: Some(body), ..ApiRequest::new(Method::POST, acquire_path(request)) };
        AskedTicket::read(&self.send(&http.token(token)).await?)
    }

    /// `GET /tickets/{ticket}`, which waits for at most `wait`. The first request that shows it granted accepts it, unless a
    /// receiver of call-backs has to. `token` is not needed with the key that made the ticket.
    ///
    /// Errors: [`ClientError`]. Cancel: the ticket stays as it is.
    pub async fn ticket(
        &self,
        ticket: &str,
        token: Option<&Token>,
        wait: Duration,
    ) -> Result<api::TicketStatus, ClientError> {
        let wait_until = Some(SystemClock.now().plus(wait));
        let http = ApiRequest { wait_until, ..request(Method::GET, ticket, token) };
        self.send(&http).await?.json()
    }

    /// Asks for a ticket until it no longer waits, at most for `wait`; returns its state then. `on_failure` is called for each
    /// failed request that is repeated.
    ///
    /// Errors: [`ClientError`] of the last request. Cancel: the ticket stays as it is, and ends after a minute without a request.
    pub async fn await_ticket(
        &self,
        ticket: &str,
        token: Option<&Token>,
        wait: Duration,
        mut on_failure: impl FnMut(&ClientError),
    ) -> Result<api::TicketStatus, ClientError> {
        let mut pauses = Backoff::new(UNAVAILABLE, SystemEntropy);
        let until = SystemClock.now().plus(wait);
        loop {
            let left = until.since(SystemClock.now());
            let shown = self.ticket(ticket, token, left.min(POLL_MAX)).await;
            let left = until.since(SystemClock.now());
            let pause = match shown {
                Ok(shown) if shown.state != "waiting" || left.is_zero() => return Ok(shown),
                Ok(_) => {
                    pauses.reset();
                    POLL_PAUSE
                }
                Err(error) if error.class() == ErrorClass::Unavailable && !left.is_zero() => {
                    on_failure(&error);
                    pauses.next_delay()
                }
                Err(error) => return Err(error),
            };
            SystemClock.sleep(pause.min(left)).await;
        }
    }

    /// `PATCH /tickets/{ticket}`: has the service renew the ticket's lease for this long from now.
    ///
    /// Errors: [`ClientError`]; of the class [`ErrorClass::Held`] while it waits. Cancel: it may or may not have taken effect.
    pub async fn keep_ticket(
        &self,
        ticket: &str,
        token: Option<&Token>,
        kept_for: Duration,
    ) -> Result<api::TicketStatus, ClientError> {
        let body = Some(json!({ "keep": format_duration(kept_for) }));
        self.send(&ApiRequest { body, ..request(Method::PATCH, ticket, token) }).await?.json()
    }

    /// `DELETE /tickets/{ticket}`: gives up a waiting ticket, else releases its lease.
    ///
    /// Errors: [`ClientError`]; of the class [`ErrorClass::Lost`] if it was over before. Cancel: it may or may not have ended.
    pub async fn end_ticket(&self, ticket: &str, token: Option<&Token>) -> Result<(), ClientError> {
        self.send(&request(Method::DELETE, ticket, token)).await.map(drop)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_ticket_is_no_other_path() {
        assert_eq!(path("tk_00ff"), "/tickets/tk_00ff");
        assert_eq!(path("../locks/x?y#z"), "/tickets/%2E%2E%2Flocks%2Fx%3Fy%23z");
    }

    #[test]
    fn an_address_is_not_printed() {
        let shown = |text: &str| format!("{:?}", CallbackAddress(text.to_owned()));
        assert_eq!(shown("https://n8n.example.com/webhook-waiting/17"), "Callback(a URL)");
        assert_eq!(shown("target:n8n"), "Callback(target:n8n)");
    }
}
