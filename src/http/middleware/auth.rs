//! The layer inside the request layer, around every handler: checks the length of the URI, the origin and the host,
//! identifies the client, and checks that it may do the route's operation. [`Requirement::of`] lists what each
//! operation needs, so that none can be added without a decision.

use std::convert::Infallible;
use std::future::{Ready, ready};
use std::sync::Arc;
use std::task::{Context, Poll};

use axum::extract::Request;
use axum::response::{IntoResponse, Response};
use futures_util::future::Either;
use tower::{Layer, Service};

use super::audit::AuditScope;
use super::{client_address, credentials, host_and_origin};
use crate::auth::access_rule::Right;
use crate::auth::authenticator::Authenticator;
use crate::auth::rate_limit::RequestClass;
use crate::http::access::{self, Access};
use crate::http::path::{self, TERRAFORM_PREFIX};
use crate::http::problem::Problem;
use crate::http::request_context::RequestContext;
use crate::http::request_head;
use crate::http::routes::{Operation, Route, UiRoute};
use crate::http::state::HttpSettings;
use crate::redlock::clock::{Clock, SystemClock};
use crate::types::ResourceName;

/// The permission that an operation needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Requirement {
    /// None: the answer reveals nothing.
    Nothing,
    /// Credentials, and no right: the handler checks the right once it has read the request.
    Credentials,
    /// This right on the name in the path.
    OnName(Right),
    /// `acquire` or `force` on the name in the path; the handler checks which one once it has read the body.
    Release,
    /// This right on any name; the handler shows only what the client may see.
    Somewhere(Right),
}

impl Requirement {
    /// The requirement of an operation.
    pub(crate) fn of(operation: Operation) -> Self {
        match operation {
            Operation::Acquire | Operation::Extend | Operation::TerraformLock => Self::OnName(Right::Acquire),
            Operation::Release | Operation::TerraformUnlock => Self::Release,
            Operation::Inspect | Operation::CheckFence => Self::OnName(Right::Read),
            Operation::ShowTicket | Operation::KeepTicket | Operation::EndTicket => Self::Credentials,
            // The names are in query or body: the handler checks each name.
            Operation::AcquireSet | Operation::ExtendSet | Operation::ReleaseSet => Self::Somewhere(Right::Acquire),
            Operation::List => Self::Somewhere(Right::Read),
            Operation::Events => Self::Somewhere(Right::Events),
            Operation::ChangeNode
            | Operation::ChangeTerms
            | Operation::Hooks
            | Operation::TestHook
            | Operation::ReplayHook => Self::Somewhere(Right::Admin),
            Operation::Nodes | Operation::Metrics => Self::Somewhere(Right::Metrics),
            Operation::Ui(page) => Self::of_page(page),
            Operation::Live | Operation::Ready | Operation::OpenApi | Operation::ProblemPage | Operation::Root => {
                Self::Nothing
            }
        }
    }

    /// The requirement of a page: that of the data that it shows.
    fn of_page(page: UiRoute) -> Self {
        match page {
            UiRoute::Home | UiRoute::Asset | UiRoute::Login | UiRoute::LogIn | UiRoute::LogOut => Self::Nothing,
            UiRoute::Locks | UiRoute::Waiters | UiRoute::Owners | UiRoute::Timeline => Self::Somewhere(Right::Read),
            UiRoute::Lock => Self::OnName(Right::Read),
            UiRoute::AskRevoke | UiRoute::Revoke | UiRoute::AskRelease | UiRoute::Release => Self::OnName(Right::Force),
            UiRoute::AskTake | UiRoute::Take | UiRoute::GiveBack => Self::OnName(Right::Acquire),
            UiRoute::Nodes | UiRoute::Latency | UiRoute::Runbooks => Self::Somewhere(Right::Metrics),
            UiRoute::Hooks | UiRoute::TestHook | UiRoute::ReplayHook => Self::Somewhere(Right::Admin),
            UiRoute::Events | UiRoute::Stream => Self::Somewhere(Right::Events),
        }
    }
}

/// The layer of one route. Cheap to clone.
#[derive(Debug, Clone)]
pub(crate) struct AuthLayer(Arc<RouteAuth>);

#[derive(Debug)]
struct RouteAuth {
    authenticator: Arc<Authenticator>,
    settings: Arc<HttpSettings>,
    requirement: Requirement,
    /// The part of the path before the resource name.
    prefix: &'static str,
    /// Pages accept session cookies and always check the host.
    is_page: bool,
    /// The route is an event stream without an end.
    is_stream: bool,
}

impl AuthLayer {
    pub(crate) fn new(authenticator: Arc<Authenticator>, settings: Arc<HttpSettings>, route: &Route) -> Self {
        let requirement = Requirement::of(route.operation);
        let prefix = route.pattern.split('{').next().unwrap_or_default();
        let is_page = matches!(route.operation, Operation::Ui(_));
        let is_stream = matches!(route.operation, Operation::Events | Operation::Ui(UiRoute::Stream));
        Self(Arc::new(RouteAuth { authenticator, settings, requirement, prefix, is_page, is_stream }))
    }
}

impl<S> Layer<S> for AuthLayer {
    type Service = AuthService<S>;

    fn layer(&self, inner: S) -> AuthService<S> {
        AuthService { route: Arc::clone(&self.0), inner }
    }
}

/// A handler behind an [`AuthLayer`]. A service type of its own: `from_fn` would clone and box each request's service a second
/// time.
#[derive(Debug, Clone)]
pub(crate) struct AuthService<S> {
    route: Arc<RouteAuth>,
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
        match self.route.admit(&mut request) {
            Ok(()) => Either::Left(self.inner.call(request)),
            Err(problem) => {
                // Below `info`: unauthenticated clients must not be able to fill the log.
                tracing::debug!(problem = problem.kind().as_str(), "a request was denied");
                Either::Right(ready(Ok(problem.into_response())))
            }
        }
    }
}

impl RouteAuth {
    /// Checks a request and leaves its [`Access`] in the extensions.
    ///
    /// Errors: `uri-too-long`, `forbidden`, `host-not-allowed`, `unauthenticated`, `quota-exceeded`.
    fn admit(&self, request: &mut Request) -> Result<(), Problem> {
        let trusted = &self.settings.trusted_proxies;
        if !trusted.is_empty()
            && let Some(address) = client_address::of(request, trusted)
        {
            AuditScope::of(request).note(|record| record.peer = Some(address.to_string()));
        }
        request_head::check_uri(request, self.settings.uri_limit)?;
        if !RequestContext::has_common_headers(request) {
            host_and_origin::check_origin(request, self.is_stream, || client_address::is_https(request, trusted))?;
        }
        let access = self.authorize(request)?;
        request.extensions_mut().get_or_insert_default::<RequestContext>().access = Some(access);
        Ok(())
    }

    fn authorize(&self, request: &Request) -> Result<Access, Problem> {
        let is_open = self.authenticator.is_open();
        // Pages always check the host. Without authentication every operation does: only the host name then distinguishes a
        // foreign page (DNS rebinding) from a program of this machine.
        if self.is_page || is_open {
            let is_public = !self.is_page && self.requirement == Requirement::Nothing;
            match host_and_origin::check_host(&self.settings.hosts, request, !self.is_page) {
                Ok(()) if is_open => return Ok(Access::everything()),
                Ok(()) => {}
                Err(_) if is_public => return Ok(Access::nothing()),
                Err(problem) => return Err(problem),
            }
        }
        let identified = if self.is_page {
            credentials::identify_page_user(&self.authenticator, request)
        } else {
            credentials::identify(&self.authenticator, request)
        };
        if self.requirement == Requirement::Nothing {
            return Ok(identified.unwrap_or_else(|_| Access::nothing()));
        }
        let access = identified?;
        self.count(&access, request)?;
        self.check_requirement(&access, request)?;
        Ok(access)
    }

    /// Notes the principal for the audit log and counts the request in its rate.
    fn count(&self, access: &Access, request: &Request) -> Result<(), Problem> {
        let Some(principal) = access.principal() else { return Ok(()) };
        AuditScope::of(request).name(principal.name.as_str());
        let is_holder = matches!(request.method().as_str(), "PATCH" | "DELETE" | "UNLOCK") && !forces(request);
        let class = if is_holder { RequestClass::Holder } else { RequestClass::Other };
        self.authenticator.count_request(principal, class, SystemClock.now()).map_err(|exceeded| {
            let limit = exceeded.per_second;
            let detail = format!("{} sends more than {limit} requests per second", principal.name);
            access::quota_exceeded(detail, usize::try_from(limit).unwrap_or(usize::MAX)).retry_after(exceeded.wait)
        })
    }

    /// An invalid name passes: the handler refuses it, with the same function.
    fn check_requirement(&self, access: &Access, request: &Request) -> Result<(), Problem> {
        match self.requirement {
            Requirement::Nothing | Requirement::Credentials => Ok(()),
            Requirement::Somewhere(right) => access.need_somewhere(right),
            Requirement::OnName(right) => match self.name(request) {
                Some(name) => access.need(right, &name),
                None => Ok(()),
            },
            Requirement::Release => match self.name(request) {
                Some(name) if !access.may(Right::Force, &name) => {
                    access.need(if forces(request) { Right::Force } else { Right::Acquire }, &name)
                }
                _ => Ok(()),
            },
        }
    }

    fn name(&self, request: &Request) -> Option<ResourceName> {
        match self.prefix {
            TERRAFORM_PREFIX => path::terraform_resource(request.method(), request.uri()).ok(),
            prefix => path::resource_after(request.uri(), prefix).ok(),
        }
    }
}

/// Whether the query asks for a forced release.
fn forces(request: &Request) -> bool {
    request.uri().query().unwrap_or_default().split('&').any(|field| field.starts_with("force="))
}

#[cfg(test)]
#[path = "auth_tests.rs"]
mod tests;
