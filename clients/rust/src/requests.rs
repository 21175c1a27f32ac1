//! Each endpoint as a function with checked input and typed output. [`super::acquire`] and [`super::renewal`] repeat requests.

use std::collections::BTreeMap;
use std::time::Duration;

use reqwest::Method;
use serde_json::{Value, json};

use super::answers::{ExtendAnswer, Extended, LeaseAnswer, TimedLease};
use super::error::ClientError;
use super::names::LockNames;
use super::transport::{ApiRequest, Client, EVENTS};
use redlockd_common::api;
use redlockd_common::clock::{Clock, SystemClock};
use redlockd_common::duration::format_duration;
use redlockd_common::types::{NodeId, ResourceName, Token, WantedMode};

/// Maximum number of pages of a list that are read: a million entries.
const PAGES_MAX: usize = 1_000;

/// The path of the list, and of requests about several locks.
const LOCKS: &str = "/locks";

/// The locks to acquire, with the terms and labels of the lease.
#[derive(Debug, Clone)]
pub struct LockRequest {
    /// The lock, or the locks that are acquired all or none.
    pub names: LockNames,
    /// How the lease shares the lock.
    pub mode: WantedMode,
    /// TTL of the lease; `None`: the service's default.
    pub ttl: Option<Duration>,
    /// The owner's label.
    pub owner: String,
    /// The purpose, for people.
    pub note: String,
    /// The caller's own labels, shown to people: at most 16 pairs of together 1,024 bytes.
    pub metadata: BTreeMap<String, String>,
    /// How long the service renews the lease; `None`: it does not.
    pub kept_for: Option<Duration>,
    /// Whether the request is refused if it is the newest one in a deadlock.
    pub refuses_deadlock: bool,
}

impl LockRequest {
    /// A request for this lock, or these, with the service's defaults.
    pub fn of(names: impl Into<LockNames>) -> Self {
        Self {
            names: names.into(),
            mode: WantedMode::Exclusive,
            ttl: None,
            owner: String::new(),
            note: String::new(),
            metadata: BTreeMap::new(),
            kept_for: None,
            refuses_deadlock: false,
        }
    }
}

/// How an operator ends a lease.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ForcedRelease {
    /// Refuse renewals: the lease ends with its validity.
    Revoke,
    /// End it at once, even if its holder is still working.
    Now,
}

fn hook_path(name: &str, action: &str) -> String {
    let name = percent_encoding::utf8_percent_encode(name, percent_encoding::NON_ALPHANUMERIC);
    format!("/hooks/{name}/{action}")
}

fn lock_path(resource: &ResourceName) -> String {
    format!("/locks/{resource}")
}

/// The path of an acquire.
pub(super) fn acquire_path(request: &LockRequest) -> String {
    request.names.single().map_or_else(|| LOCKS.to_owned(), lock_path)
}

/// The fields of an acquire that do not concern its wait.
pub(super) fn body(request: &LockRequest) -> serde_json::Value {
    let mut body = json!({ "owner": request.owner, "note": request.note, "metadata": request.metadata });
    match request.mode {
        WantedMode::Exclusive => {}
        WantedMode::Shared => body["mode"] = "shared".into(),
        WantedMode::Permit { limit } => body["limit"] = limit.get().into(),
    }
    if request.refuses_deadlock {
        body["on_deadlock"] = "refuse".into();
    }
    if let Some(kept_for) = request.kept_for {
        body["keep"] = format_duration(kept_for).into();
    }
    if let Some(ttl) = request.ttl {
        body["ttl"] = format_duration(ttl).into();
    }
    if request.names.single().is_none() {
        body["resources"] = request.names.iter().map(ResourceName::as_str).collect();
    }
    body
}

/// The names, repeated in a query.
fn in_query(names: &LockNames) -> Vec<(&'static str, String)> {
    names.iter().map(|name| ("resource", name.to_string())).collect()
}

impl Client {
    /// `POST /locks/{resource}`, or `POST /locks` for several, once, with the caller's own token, so that it may be repeated.
    /// Waits for at most `wait`; the service may limit whole seconds of it to its own maximum wait.
    ///
    /// Errors: [`ClientError`]. Cancel: the service removes the waiter; the caller has to release a lease that was granted at
    /// the same moment.
    pub async fn acquire_once(
        &self,
        request: &LockRequest,
        token: &Token,
        wait: Duration,
    ) -> Result<TimedLease, ClientError> {
        let mut body = body(request);
        if !wait.is_zero() {
            // A repeated request takes its place in the queue again. The id is as secret as the hash that nodes store.
            body["wait_id"] = token.hash().as_str().into();
        }
        let wait_until = Some(SystemClock.now().plus(wait));
        let path = acquire_path(request);
        let http = ApiRequest { body: Some(body), wait_until, ..ApiRequest::new(Method::POST, path) };
        let response = self.send(&http.token(token)).await?;
        let answer = match request.names.single() {
            Some(_) => LeaseAnswer::One(response.json()?),
            None => LeaseAnswer::Set(response.json()?),
        };
        Ok(TimedLease::new(answer, response.started))
    }

    /// `PATCH /locks/{resource}`, or `PATCH /locks` for several: renews, and edits the fields in `changes` (`ttl`, `keep`,
    /// `note`, `metadata`); `mode` = `shared` makes an exclusive lease a shared one. `timeout` is for each instance.
    ///
    /// Errors: [`ClientError`]; of several locks some may have been extended ([`ClientError::is_lost`]). Cancel: the lease may or
    /// may not have been extended.
    pub async fn extend(
        &self,
        names: &LockNames,
        token: &Token,
        changes: serde_json::Map<String, serde_json::Value>,
        timeout: Duration,
    ) -> Result<Extended, ClientError> {
        let (path, query) =
            names.single().map_or((LOCKS.to_owned(), in_query(names)), |name| (lock_path(name), vec![]));
        let body = Some(changes.into());
        let request = ApiRequest { body, query, timeout, ..ApiRequest::new(Method::PATCH, path) };
        let response = self.send(&request.token(token)).await?;
        let answer = match names.single() {
            Some(_) => ExtendAnswer::One(response.json()?),
            None => ExtendAnswer::Set(response.json()?),
        };
        Ok(Extended::new(answer, response.started))
    }

    /// `DELETE /locks/{resource}`, or `DELETE /locks` for several, by the holder.
    ///
    /// Errors: [`ClientError`]; of several locks all others are released. Cancel: it may or may not have been released.
    pub async fn release(&self, names: &LockNames, token: &Token, timeout: Duration) -> Result<(), ClientError> {
        let (path, query) =
            names.single().map_or((LOCKS.to_owned(), in_query(names)), |name| (lock_path(name), vec![]));
        let request = ApiRequest { query, timeout, ..ApiRequest::new(Method::DELETE, path) };
        self.send(&request.token(token)).await.map(drop)
    }

    /// `DELETE /locks/{resource}?force=…`; with `fence`, only the lease with this fence, which also selects one of several. Not
    /// repeated at another instance if one may have received it.
    ///
    /// Errors: [`ClientError`]. Cancel: it may or may not have been ended.
    pub async fn force(
        &self,
        resource: &ResourceName,
        mode: ForcedRelease,
        reason: &str,
        fence: Option<u64>,
    ) -> Result<Option<api::Revoked>, ClientError> {
        let word = match mode {
            ForcedRelease::Revoke => "revoke",
            ForcedRelease::Now => "now",
        };
        let query = vec![("force", word.to_owned()), ("reason", reason.to_owned())];
        let repeatable = mode == ForcedRelease::Revoke;
        let request =
            ApiRequest { query, if_match: fence, repeatable, ..ApiRequest::new(Method::DELETE, lock_path(resource)) };
        let response = self.send(&request).await?;
        if response.body.is_empty() { Ok(None) } else { response.json().map(Some) }
    }

    /// `GET /locks/{resource}`; `None` if the lock is free.
    ///
    /// Errors: [`ClientError`]. Cancel: nothing is left behind.
    pub async fn inspect(&self, resource: &ResourceName) -> Result<Option<api::LockDetails>, ClientError> {
        match self.send(&ApiRequest::new(Method::GET, lock_path(resource))).await {
            Ok(response) => response.json().map(Some),
            Err(ClientError::Refused(refusal)) if refusal.slug == "not-held" => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// `GET /fences/{resource}`: whether `fence` is that of the current lease.
    ///
    /// Errors: [`ClientError`], of the class [`super::error::ErrorClass::Lost`] if it is not. Cancel: nothing is left behind.
    pub async fn check_fence(&self, resource: &ResourceName, fence: u64) -> Result<api::FenceCheck, ClientError> {
        let query = vec![("fence", fence.to_string())];
        let request = ApiRequest { query, ..ApiRequest::new(Method::GET, format!("/fences/{resource}")) };
        self.send(&request).await?.json()
    }

    /// `GET /events` for the past. `filter` has at least a `limit`.
    ///
    /// Errors: [`ClientError`]. Cancel: nothing is left behind.
    pub async fn past_events(&self, filter: Vec<(&'static str, String)>) -> Result<api::PastEvents, ClientError> {
        self.send(&ApiRequest { query: filter, ..ApiRequest::new(Method::GET, EVENTS) }).await?.json()
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
            let page: api::List =
                self.send(&ApiRequest { query, ..ApiRequest::new(Method::GET, LOCKS) }).await?.json()?;
            items.extend(page.items.iter().cloned());
            cursor.clone_from(&page.next_cursor);
            if cursor.is_none() {
                return Ok(api::List { items, ..page });
            }
        }
        Err(ClientError::Unexpected { url: self.urls_shown(), detail: "its list does not end".to_owned() })
    }

    /// `GET /nodes`. Errors: [`ClientError`]. Cancel: nothing is left behind.
    pub async fn nodes(&self) -> Result<api::Nodes, ClientError> {
        self.send(&ApiRequest::new(Method::GET, "/nodes")).await?.json()
    }

    /// `POST /nodes/{node}`: reports that a node has ended for good. The answering instance notes it.
    ///
    /// Errors: [`ClientError`]. Cancel: it may or may not have been noted.
    pub async fn forget_node(&self, node: &NodeId, reason: &str) -> Result<api::Nodes, ClientError> {
        let body = Some(json!({ "action": "forget", "reason": reason }));
        self.send(&ApiRequest { body, ..ApiRequest::new(Method::POST, format!("/nodes/{node}")) }).await?.json()
    }

    /// `POST /nodes/{node}`: gives the name to the server at this URL. `timeout`: for the answer.
    ///
    /// Errors: [`ClientError`]. Cancel: it may or may not be replaced.
    pub async fn replace_node(
        &self,
        node: &NodeId,
        url: &str,
        reason: &str,
        timeout: Duration,
    ) -> Result<api::Nodes, ClientError> {
        let body = json!({ "action": "replace", "url": url, "reason": reason });
        self.change_nodes(format!("/nodes/{node}"), body, timeout).await
    }

    /// `GET /hooks`. Errors: [`ClientError`].
    pub async fn hooks(&self) -> Result<api::Hooks, ClientError> {
        self.send(&ApiRequest::new(Method::GET, "/hooks".to_owned())).await?.json()
    }

    /// `POST /hooks/{name}/test`. `timeout`: for the answer.
    ///
    /// Errors: [`ClientError`]. Cancel: the test may have been sent.
    pub async fn test_hook(&self, name: &str, timeout: Duration) -> Result<api::HookTry, ClientError> {
        let request = ApiRequest::new(Method::POST, hook_path(name, "test"));
        self.send(&ApiRequest { timeout, ..request }).await?.json()
    }

    /// `POST /hooks/{name}/replay`.
    ///
    /// Errors: [`ClientError`]. Cancel: messages may be sent again.
    pub async fn replay_hook(&self, name: &str) -> Result<api::HookReplay, ClientError> {
        self.send(&ApiRequest::new(Method::POST, hook_path(name, "replay"))).await?.json()
    }

    /// `POST /nodes/{node}`: adds a name with the server at this URL, or removes it (`None`). `timeout`: for the answer.
    ///
    /// Errors: [`ClientError`]. Cancel: the list may or may not be changed.
    pub async fn list_node(
        &self,
        node: &NodeId,
        url: Option<&str>,
        reason: &str,
        timeout: Duration,
    ) -> Result<api::Nodes, ClientError> {
        let body = match url {
            Some(url) => json!({ "action": "add", "url": url, "reason": reason }),
            None => json!({ "action": "remove", "reason": reason }),
        };
        self.change_nodes(format!("/nodes/{node}"), body, timeout).await
    }

    /// `POST /nodes`: changes these terms (`guard`, `lock_delay`, `fence_ttl`). `timeout`: for the answer.
    ///
    /// Errors: [`ClientError`]. Cancel: the terms may or may not be changed.
    pub async fn change_terms(
        &self,
        terms: &[(&str, String)],
        reason: &str,
        timeout: Duration,
    ) -> Result<api::Nodes, ClientError> {
        let mut body = json!({ "reason": reason });
        for (name, to) in terms {
            body[*name] = json!(to);
        }
        self.change_nodes("/nodes".to_owned(), body, timeout).await
    }

    /// A change of the nodes. It is not repeated at another instance once one may have received it: that one would refuse what was
    /// done.
    async fn change_nodes(&self, path: String, body: Value, timeout: Duration) -> Result<api::Nodes, ClientError> {
        let request = ApiRequest::new(Method::POST, path);
        self.send(&ApiRequest { body: Some(body), timeout, repeatable: false, ..request }).await?.json()
    }

    /// `GET /health/live` or `/health/ready`.
    ///
    /// Errors: [`ClientError`]; a service that is not ready is a refusal. Cancel: nothing is left behind.
    pub async fn health(&self, ready: bool, timeout: Duration) -> Result<api::Health, ClientError> {
        let path = if ready { "/health/ready" } else { "/health/live" };
        self.send(&ApiRequest { timeout, ..ApiRequest::new(Method::GET, path) }).await?.json()
    }
}
