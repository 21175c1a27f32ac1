//! Each endpoint as a function with checked input and typed output. Knows the contract; when to ask
//! again, and what to make of a lost lease, are [`super::acquire`]'s and [`super::renewal`]'s business.

use std::collections::BTreeMap;
use std::time::Duration;

use reqwest::Method;
use serde_json::json;

use super::error::ClientError;
use super::transport::{ANSWER_TIMEOUT, Ask, Client};
use crate::api;
use crate::duration::format_duration;
use crate::redlock::clock::BootTime;
use crate::types::{ResourceName, Token};

/// Most pages of a list that are read: a million entries.
const PAGES_MAX: usize = 1_000;

/// What is to be held, by whom.
#[derive(Debug, Clone)]
pub struct Want {
    /// What.
    pub resource: ResourceName,
    /// For how long, unless it is extended; `None`: the service's default.
    pub ttl: Option<Duration>,
    /// Who.
    pub owner: String,
    /// What for.
    pub note: String,
    /// More of the same.
    pub metadata: BTreeMap<String, String>,
}

/// An answered lease and until when it can be relied on, on this machine's clock.
#[derive(Debug, Clone)]
pub struct Answered {
    /// As it was answered.
    pub lease: api::Lease,
    /// From when on the promise counts, at the earliest: when the request was sent, plus what the
    /// service says it waited, less 1 % of that, as clock rates differ.
    pub granted: BootTime,
    /// That plus what was promised.
    pub deadline: BootTime,
}

/// How a lease is ended by force.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Force {
    /// With its lease: no further renewals.
    Revoke,
    /// At once, whatever its holder does.
    Now,
}

fn lock_path(resource: &ResourceName) -> String {
    format!("/locks/{resource}")
}

fn answered(lease: api::Lease, started: BootTime) -> Answered {
    let waited = Duration::from_millis(lease.waited_ms.unwrap_or(0));
    let discount = Duration::from_millis(lease.waited_ms.unwrap_or(0).div_ceil(100));
    let granted = started.plus(waited.saturating_sub(discount));
    Answered { granted, deadline: granted.plus(Duration::from_millis(lease.valid_for_ms)), lease }
}

impl Client {
    /// `POST /locks/{resource}` once, with the caller's own token, so that it may be repeated.
    /// Waits for at most `wait`; the service may cut whole seconds of it to its own longest wait.
    ///
    /// Errors: [`ClientError`]. Cancel: the service gives up the place in its queue; whatever was
    /// granted at that very moment is the caller's to release.
    pub async fn acquire_once(&self, want: &Want, token: &Token, wait: Duration) -> Result<Answered, ClientError> {
        let mut body = json!({ "owner": want.owner, "note": want.note, "metadata": want.metadata });
        if let Some(ttl) = want.ttl {
            body["ttl"] = format_duration(ttl).into();
        }
        // A preference is cut to the service's bound, a field over it would be refused.
        let whole = wait.as_secs();
        if whole == 0 {
            body["wait"] = format_duration(wait).into();
        }
        let timeout = ANSWER_TIMEOUT.saturating_add(wait);
        let prefer_wait = (whole > 0).then_some(whole);
        let ask = Ask { body: Some(body), prefer_wait, timeout, ..Ask::new(Method::POST, lock_path(&want.resource)) };
        let answer = self.send(&ask.token(token)).await?;
        Ok(answered(answer.json()?, answer.started))
    }

    /// `PATCH /locks/{resource}`: renews, and edits what `changes` names (`ttl`, `note`, `metadata`).
    /// `timeout` is for each instance.
    ///
    /// Errors: [`ClientError`]. Cancel: it may or may not have been extended.
    pub async fn extend(
        &self,
        resource: &ResourceName,
        token: &Token,
        changes: serde_json::Map<String, serde_json::Value>,
        timeout: Duration,
    ) -> Result<Answered, ClientError> {
        let ask = Ask { body: Some(changes.into()), timeout, ..Ask::new(Method::PATCH, lock_path(resource)) };
        let answer = self.send(&ask.token(token)).await?;
        Ok(answered(answer.json()?, answer.started))
    }

    /// `DELETE /locks/{resource}` by its holder.
    ///
    /// Errors: [`ClientError`]. Cancel: it may or may not have been released.
    pub async fn release(&self, resource: &ResourceName, token: &Token, timeout: Duration) -> Result<(), ClientError> {
        let ask = Ask { timeout, ..Ask::new(Method::DELETE, lock_path(resource)) };
        self.send(&ask.token(token)).await.map(drop)
    }

    /// `DELETE /locks/{resource}?force=…`; with `fence`, only while the lease with this fence holds
    /// it. Not repeated with another instance once one may have heard it.
    ///
    /// Errors: [`ClientError`]. Cancel: it may or may not have been ended.
    pub async fn force(
        &self,
        resource: &ResourceName,
        how: Force,
        reason: &str,
        fence: Option<u64>,
    ) -> Result<Option<api::Revoked>, ClientError> {
        let word = match how {
            Force::Revoke => "revoke",
            Force::Now => "now",
        };
        let query = vec![("force", word.to_owned()), ("reason", reason.to_owned())];
        let repeatable = how == Force::Revoke;
        let ask = Ask { query, if_match: fence, repeatable, ..Ask::new(Method::DELETE, lock_path(resource)) };
        let answer = self.send(&ask).await?;
        if answer.body.is_empty() { Ok(None) } else { answer.json().map(Some) }
    }

    /// `GET /locks/{resource}`; `None` where nobody holds it.
    ///
    /// Errors: [`ClientError`]. Cancel: nothing is left behind.
    pub async fn inspect(&self, resource: &ResourceName) -> Result<Option<api::Lock>, ClientError> {
        match self.send(&Ask::new(Method::GET, lock_path(resource))).await {
            Ok(answer) => answer.json().map(Some),
            Err(ClientError::Refused(refusal)) if refusal.slug == "not-held" => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// `GET /locks`, all pages of it. The summary is that of the last page.
    ///
    /// Errors: [`ClientError`]. Cancel: nothing is left behind.
    pub async fn list(&self, filter: &[(&'static str, String)]) -> Result<api::List, ClientError> {
        let mut items = Vec::new();
        let mut cursor: Option<String> = None;
        for _ in 0..PAGES_MAX {
            let cursor_field = cursor.iter().map(|c| ("cursor", c.clone()));
            let query = filter.iter().cloned().chain(cursor_field).collect();
            let page: api::List = self.send(&Ask { query, ..Ask::new(Method::GET, "/locks") }).await?.json()?;
            items.extend(page.items.iter().cloned());
            cursor.clone_from(&page.next_cursor);
            if cursor.is_none() {
                return Ok(api::List { items, ..page });
            }
        }
        Err(ClientError::Strange { url: self.urls_shown(), detail: "its list does not end".to_owned() })
    }

    /// `GET /nodes`. Errors: [`ClientError`]. Cancel: nothing is left behind.
    pub async fn nodes(&self) -> Result<api::Nodes, ClientError> {
        self.send(&Ask::new(Method::GET, "/nodes")).await?.json()
    }

    /// `GET /health/live` or `/health/ready`.
    ///
    /// Errors: [`ClientError`]; a service that is not ready is a refusal. Cancel: nothing is left behind.
    pub async fn health(&self, ready: bool, timeout: Duration) -> Result<api::Health, ClientError> {
        let path = if ready { "/health/ready" } else { "/health/live" };
        self.send(&Ask { timeout, ..Ask::new(Method::GET, path) }).await?.json()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn lease(waited_ms: Option<u64>, valid_for_ms: u64) -> api::Lease {
        serde_json::from_value(json!({
            "resource": "x", "mode": "exclusive", "token_id": "0", "fence": 1, "owner": "", "note": "", "metadata": {},
            "acquired_at": "", "expires_at": "", "ttl_ms": 30_000, "valid_for_ms": valid_for_ms, "waited_ms": waited_ms,
            "quorum": { "granted": 1, "needed": 1, "nodes": 1 },
        }))
        .expect("a lease")
    }

    /// The service promised `valid_for_ms` at an instant that lies `waited_ms` or more after the
    /// request was sent, by a clock that is up to 1 % fast.
    #[test]
    fn a_wait_counts_before_the_promise_and_is_not_taken_at_its_full_word() {
        let started = BootTime::from_nanos(1_000_000_000);
        let left = |waited, valid| answered(lease(waited, valid), started).deadline.since(started).as_millis();
        assert_eq!(left(None, 29_000), 29_000);
        assert_eq!(left(Some(0), 29_000), 29_000);
        assert_eq!(left(Some(60_000), 29_000), 88_400);
        assert_eq!(left(Some(5), 29_000), 29_004);
    }

    proptest! {
        #[test]
        fn no_answer_moves_the_deadline_past_what_was_promised(waited: u32, valid: u32) {
            let started = BootTime::from_nanos(1);
            let left = answered(lease(Some(waited.into()), valid.into()), started).deadline.since(started).as_millis();
            prop_assert!(left <= u128::from(waited) * 99 / 100 + u128::from(valid));
        }
    }
}
