//! Who is asking, and whether they may: the layer in front of every route, and what handlers ask it
//! for. Each operation says here what it needs, so that none can be added without; whatever is
//! missing denies. Knows headers and responses; who may do what is [`crate::auth`]'s.

use std::convert::Infallible;
use std::future::{Ready, ready};
use std::sync::Arc;
use std::task::{Context, Poll};

use axum::extract::{MatchedPath, Request};
use axum::http::{HeaderMap, HeaderValue, header};
use axum::response::{IntoResponse, Response};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use futures_util::future::Either;
use tower::layer::layer_fn;
use tower::{Layer, Service};

use super::audit::AuditScope;
use super::client_address;
use super::host;
use crate::auth::authenticator::Authenticator;
use crate::auth::principal::Principal;
use crate::auth::principals::{Credential, IdentifyError, PeerCertificate};
use crate::auth::quota::{QuotaExceeded, QuotaPermit};
use crate::auth::rule::Right;
use crate::http::api::extract;
use crate::http::api::problem::Problem;
use crate::http::api::problem_kind::ProblemKind;
use crate::http::routes::{Operation, ROUTES, UiRoute};
use crate::http::state::HttpSettings;
use crate::http::ui::{guard, login};
use crate::redlock::clock::{Clock, SystemClock};
use crate::types::ResourceName;

/// How a client learns what to send.
const CHALLENGE: HeaderValue = HeaderValue::from_static("Bearer");

/// What an operation needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Requirement {
    /// Nothing: it tells nobody anything.
    Nothing,
    /// This right on the name in the path.
    OnName(Right),
    /// `acquire` or `force` on the name in the path; the handler knows which, once it has read the body.
    Release,
    /// This right on any name; the handler shows only what may be seen.
    Somewhere(Right),
}

impl Requirement {
    /// Of an operation.
    pub fn of(operation: Operation) -> Self {
        match operation {
            Operation::Acquire | Operation::Extend => Self::OnName(Right::Acquire),
            Operation::Release => Self::Release,
            Operation::Inspect => Self::OnName(Right::Read),
            Operation::List => Self::Somewhere(Right::Read),
            Operation::Events => Self::Somewhere(Right::Events),
            Operation::Nodes | Operation::Metrics => Self::Somewhere(Right::Metrics),
            Operation::Ui(page) => Self::of_page(page),
            Operation::Live | Operation::Ready | Operation::OpenApi | Operation::ProblemPage | Operation::Root => {
                Self::Nothing
            }
        }
    }

    /// Of a page: the same as of what it shows.
    fn of_page(page: UiRoute) -> Self {
        match page {
            UiRoute::Home | UiRoute::Asset | UiRoute::Login | UiRoute::LogIn | UiRoute::LogOut => Self::Nothing,
            UiRoute::Locks | UiRoute::Waiters | UiRoute::Owners => Self::Somewhere(Right::Read),
            UiRoute::Lock => Self::OnName(Right::Read),
            UiRoute::AskRevoke | UiRoute::Revoke | UiRoute::AskRelease | UiRoute::Release => Self::OnName(Right::Force),
            UiRoute::Nodes | UiRoute::Latency => Self::Somewhere(Right::Metrics),
            UiRoute::Events | UiRoute::Stream => Self::Somewhere(Right::Events),
        }
    }
}

/// The name in the path of a route that has one, read as its handler reads it.
fn name_in(request: &Request, pattern: &str) -> Option<ResourceName> {
    let prefix = pattern.split('{').next().unwrap_or_default();
    extract::resource_behind(request.uri(), prefix).ok()
}

/// What the caller of a request may do. Left in the request's extensions by [`AuthLayer`].
#[derive(Debug, Clone)]
pub struct Access(CallerIdentity);

#[derive(Debug, Clone)]
enum CallerIdentity {
    /// There are no keys: everything.
    Anybody,
    /// What its rules say.
    Known { gate: Arc<Authenticator>, principal: Arc<Principal> },
    /// Nothing.
    Nobody,
}

impl Access {
    /// Of a request; nothing where the layer did not see it.
    pub fn of(request: &Request) -> Self {
        request.extensions().get::<Self>().cloned().unwrap_or(Self(CallerIdentity::Nobody))
    }

    /// Of this principal.
    pub fn known(gate: &Arc<Authenticator>, principal: Arc<Principal>) -> Self {
        Self(CallerIdentity::Known { gate: Arc::clone(gate), principal })
    }

    /// Of whoever there is: everything where there are no keys, else nothing.
    pub fn anonymous(gate: &Authenticator) -> Self {
        Self(if gate.is_open() { CallerIdentity::Anybody } else { CallerIdentity::Nobody })
    }

    /// What the caller is called, where there are keys: for the log.
    pub fn principal(&self) -> Option<&str> {
        match &self.0 {
            CallerIdentity::Known { principal, .. } => Some(principal.name.as_str()),
            _ => None,
        }
    }

    /// Whether this may be done to this name.
    pub fn may(&self, right: Right, name: &ResourceName) -> bool {
        match &self.0 {
            CallerIdentity::Anybody => true,
            CallerIdentity::Known { principal, .. } => principal.rules.allow(right, name),
            CallerIdentity::Nobody => false,
        }
    }

    /// The same of a name that came as text, say from a node; what is no name is nobody's.
    pub fn may_text(&self, right: Right, name: &str) -> bool {
        matches!(self.0, CallerIdentity::Anybody) || ResourceName::parse(name).is_ok_and(|name| self.may(right, &name))
    }

    /// Whether there is nothing that may not be done.
    pub fn may_all(&self) -> bool {
        self.may_somewhere(Right::Admin)
    }

    /// Whether it may be done to some name, or to the service where the right has no names.
    pub fn may_somewhere(&self, right: Right) -> bool {
        match &self.0 {
            CallerIdentity::Anybody => true,
            CallerIdentity::Known { principal, .. } => principal.rules.allow_somewhere(right),
            CallerIdentity::Nobody => false,
        }
    }

    /// Errors: `forbidden`.
    pub fn need(&self, right: Right, name: &ResourceName) -> Result<(), Problem> {
        if self.may(right, name) { Ok(()) } else { Err(forbidden(right, Some(name))) }
    }

    /// Errors: `forbidden`.
    pub fn need_somewhere(&self, right: Right) -> Result<(), Problem> {
        if self.may_somewhere(right) { Ok(()) } else { Err(forbidden(right, None)) }
    }

    /// The same caller by the rules of now; `None` where it is not known any more. For answers that
    /// take longer than a book is in force.
    pub fn renewed(&self) -> Option<Self> {
        match &self.0 {
            CallerIdentity::Known { gate, principal } => {
                gate.current(&principal.name).map(|now| Self::known(gate, now))
            }
            CallerIdentity::Anybody => Some(self.clone()),
            CallerIdentity::Nobody => None,
        }
    }

    /// Makes room for an acquire among what the caller may have out; `None` where that is not counted.
    ///
    /// Errors: `quota-exceeded`.
    pub fn enter(&self, waits: bool) -> Result<Option<QuotaPermit>, Problem> {
        let CallerIdentity::Known { gate, principal } = &self.0 else { return Ok(None) };
        let limits = gate.limits(principal);
        let (leases, waiters) = (limits.leases.unwrap_or(usize::MAX), limits.waiters.unwrap_or(usize::MAX));
        let place = gate.quotas().reserve(&principal.name, waits, leases, waiters, SystemClock.now());
        place.map(Some).map_err(|full| {
            let (limit, what) = match full {
                QuotaExceeded::Leases(limit) => (limit, "leases out"),
                QuotaExceeded::Waiters(limit) => (limit, "requests waiting"),
            };
            let detail = format!("{} has {limit} {what} already, the most that it may have here", principal.name);
            over_quota(detail, limit).retry_after(std::time::Duration::from_secs(1))
        })
    }

    /// Tells what became of a lease, where that is counted.
    pub fn tell(&self, told: impl FnOnce(&crate::auth::quota::Quotas)) {
        if let CallerIdentity::Known { gate, .. } = &self.0 {
            told(gate.quotas());
        }
    }
}

fn over_quota(detail: String, limit: usize) -> Problem {
    Problem::new(ProblemKind::QuotaExceeded, detail).with(|m| {
        m.limit = Some(limit);
        m.scope = Some("principal".to_owned());
    })
}

/// Good credentials that do not do. Says what would.
fn forbidden(right: Right, name: Option<&ResourceName>) -> Problem {
    let on = name.map(|name| format!(" on {name}")).unwrap_or_default();
    Problem::new(ProblemKind::Forbidden, format!("this needs the right `{right}`{on}")).with(|m| {
        m.needed = Some(right.as_str().to_owned());
        m.resource = name.map(ToString::to_string);
    })
}

fn unauthenticated(detail: &str) -> Problem {
    Problem::new(ProblemKind::Unauthenticated, detail).header(header::WWW_AUTHENTICATE, CHALLENGE)
}

/// What stands in front of every matched route. Cheap to clone.
#[derive(Debug, Clone)]
pub struct AuthLayer {
    /// Who gets in.
    pub gate: Arc<Authenticator>,
    /// Under which names, where there are no keys; how long a request's line may be; whom to believe about
    /// where it comes from.
    pub settings: Arc<HttpSettings>,
}

impl AuthLayer {
    /// Finds out who is asking, notes it on the request, and denies what they may not.
    ///
    /// Errors: `uri-too-long`, and what [`allowed`] refuses.
    fn admit(&self, request: &mut Request) -> Result<(), Problem> {
        let (limit, trusted) = (self.settings.uri_limit, &self.settings.trusted_proxies);
        // Behind trusted proxies the audit log gets the address that they speak for.
        if !trusted.is_empty()
            && let Some(address) = client_address::of(request, trusted)
        {
            AuditScope::of(request).note(|record| record.peer = Some(address.to_string()));
        }
        let bytes = request.uri().path_and_query().map_or(0, |pq| pq.as_str().len());
        if bytes > limit {
            let detail = format!("path and query have {bytes} bytes; at most {limit} are allowed");
            return Err(Problem::new(ProblemKind::UriTooLong, detail));
        }
        let access = allowed(self, request).inspect_err(|problem| {
            // Strangers are not to fill the log.
            tracing::debug!(problem = problem.slug().as_str(), "a request was denied");
        })?;
        request.extensions_mut().insert(access);
        Ok(())
    }
}

/// The layer that has each request pass a [`AuthLayer`]; for matched routes only.
pub fn guarded<S>(guard: AuthLayer) -> impl Layer<S, Service = AuthService<S>> + Clone {
    let guard = Arc::new(guard);
    layer_fn(move |inner| AuthService { guard: Arc::clone(&guard), inner })
}

/// A service behind a [`AuthLayer`]. A service of its own, and no function between two: that would copy and box
/// each request once more.
#[derive(Debug, Clone)]
pub struct AuthService<S> {
    guard: Arc<AuthLayer>,
    inner: S,
}

impl<S: Service<Request, Response = Response, Error = Infallible>> Service<Request> for AuthService<S> {
    type Response = Response;
    type Error = Infallible;
    type Future = Either<S::Future, Ready<Result<Response, Infallible>>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, mut request: Request) -> Self::Future {
        match self.guard.admit(&mut request) {
            Ok(()) => Either::Left(self.inner.call(request)),
            Err(problem) => Either::Right(ready(Ok(problem.into_response()))),
        }
    }
}

/// Whether a page of another site may have made a browser send this. Without keys, whoever gets a
/// person on this machine to look at a page could take locks with a form.
fn comes_from_elsewhere(request: &Request) -> bool {
    let is_safe = matches!(request.method().as_str(), "GET" | "HEAD" | "OPTIONS");
    !is_safe && !guard::is_same_origin(request.headers(), request.uri())
}

/// Errors: `unauthenticated`, `forbidden`, `quota-exceeded`, `host-not-allowed`.
fn allowed(guard: &AuthLayer, request: &Request) -> Result<Access, Problem> {
    let gate = &guard.gate;
    if comes_from_elsewhere(request) {
        let detail = "a browser sent this for a page of another site, which may not change anything here";
        return Err(Problem::new(ProblemKind::Forbidden, detail));
    }
    // Without keys a name that leads here from a stranger's page would be all that it takes.
    let is_ours = || guard.settings.hosts.permit_request(request.headers(), request.uri(), true);
    if gate.is_open() && is_ours() {
        return Ok(Access(CallerIdentity::Anybody));
    }
    let pattern = request.extensions().get::<MatchedPath>().map(MatchedPath::as_str).unwrap_or_default();
    let method = if request.method() == "HEAD" { "GET" } else { request.method().as_str() };
    let route = ROUTES.iter().find(|route| route.pattern == pattern && route.method == method);
    // A route that is not in the table is for those who may do everything.
    let needs = route.map_or(Requirement::Somewhere(Right::Admin), |route| Requirement::of(route.operation));
    if gate.is_open() {
        // What tells nobody anything, such as whether the service lives, it tells under every name.
        return if needs == Requirement::Nothing { Ok(Access(CallerIdentity::Nobody)) } else { Err(host::refused()) };
    }
    let is_page = route.is_some_and(|route| matches!(route.operation, Operation::Ui(_)));
    let found = if is_page { identify_person(gate, request) } else { identify(gate, request) };
    if needs == Requirement::Nothing {
        return Ok(found.unwrap_or(Access(CallerIdentity::Nobody)));
    }
    let access = found?;
    if let Some(name) = access.principal() {
        AuditScope::of(request).name(name);
    }
    if let CallerIdentity::Known { principal, .. } = &access.0
        && !is_page
    {
        gate.count_request(principal, SystemClock.now()).map_err(|wait| {
            let limit = gate.limits(principal).requests_per_second.unwrap_or(u32::MAX);
            let detail = format!("{} sends more than {limit} requests per second", principal.name);
            over_quota(detail, usize::try_from(limit).unwrap_or(usize::MAX)).retry_after(wait)
        })?;
    }
    match needs {
        Requirement::Nothing => {}
        Requirement::Somewhere(right) => access.need_somewhere(right)?,
        // A name that is none is the handler's to refuse: it reads the same path with the same function.
        Requirement::OnName(right) => {
            if let Some(name) = name_in(request, pattern) {
                access.need(right, &name)?;
            }
        }
        Requirement::Release => {
            if let Some(name) = name_in(request, pattern)
                && !access.may(Right::Force, &name)
            {
                let query = request.uri().query().unwrap_or_default();
                let forces = query.split('&').any(|field| field.starts_with("force="));
                access.need(if forces { Right::Force } else { Right::Acquire }, &name)?;
            }
        }
    }
    Ok(access)
}

/// Who looks at a page: by a session, which the API knows nothing of, or as everywhere else.
///
/// Errors: `unauthenticated`.
fn identify_person(gate: &Arc<Authenticator>, request: &Request) -> Result<Access, Problem> {
    let headers = request.headers();
    let word = login::session_word(headers).filter(|_| !headers.contains_key(header::AUTHORIZATION));
    let find = |word| gate.session(word, SystemClock.now(), SystemClock.wall_ms());
    match word.and_then(find) {
        Some(principal) => Ok(Access::known(gate, principal)),
        None => identify(gate, request),
    }
}

/// Errors: `unauthenticated`.
fn identify(gate: &Arc<Authenticator>, request: &Request) -> Result<Access, Problem> {
    let certificate = request.extensions().get::<Arc<PeerCertificate>>();
    let key = presented_key(request.headers())?;
    let credential = match (&key, certificate) {
        (Some(key), _) => Credential::Key(key),
        (None, Some(certificate)) => Credential::Certificate(certificate),
        (None, None) => return Err(unauthenticated("send an API key: `Authorization: Bearer rlk_…`")),
    };
    match gate.identify(&credential, SystemClock.wall_ms()) {
        Ok(principal) => Ok(Access::known(gate, principal)),
        Err(unknown) => {
            // The log says which; the caller learns only that it does not do.
            if let IdentifyError::Expired(name) = &unknown {
                tracing::info!(principal = name.as_str(), "an expired key was presented");
            }
            Err(unauthenticated("these credentials are not known here, or not any more"))
        }
    }
}

/// The key in the `Authorization` header: `Bearer KEY`, or the password of `Basic`.
///
/// Errors: `unauthenticated` for another scheme, for what is none of them, and for more than one header.
fn presented_key(headers: &HeaderMap) -> Result<Option<Vec<u8>>, Problem> {
    let mut values = headers.get_all(header::AUTHORIZATION).iter();
    let Some(value) = values.next() else { return Ok(None) };
    let unreadable =
        || unauthenticated("the Authorization header must be `Bearer KEY`, or `Basic` with the key as password");
    if values.next().is_some() {
        return Err(unauthenticated("the Authorization header is given twice"));
    }
    let (scheme, rest) = value.to_str().ok().and_then(|text| text.trim().split_once(' ')).ok_or_else(unreadable)?;
    let rest = rest.trim();
    if scheme.eq_ignore_ascii_case("bearer") {
        return Ok(Some(rest.as_bytes().to_vec()));
    }
    if scheme.eq_ignore_ascii_case("basic") {
        let pair = STANDARD.decode(rest).map_err(|_| unreadable())?;
        let colon = pair.iter().position(|b| *b == b':').ok_or_else(unreadable)?;
        return Ok(Some(pair[colon + 1..].to_vec()));
    }
    Err(unreadable())
}

#[cfg(test)]
#[path = "auth_tests.rs"]
mod tests;
