//! The permissions of a request's client. The authentication layer leaves them in the request's context; handlers ask them for
//! permissions and quotas. The rules themselves are in [`crate::auth`].

use std::sync::Arc;
use std::time::Duration;

use crate::api::{DeadlockEdge, Event};
use crate::auth::access_rule::Right;
use crate::auth::authenticator::Authenticator;
use crate::auth::principal::Principal;
use crate::auth::quota::{QuotaExceeded, QuotaPermit, Quotas, STREAMS_PER_PRINCIPAL, StreamPermit};
use crate::http::problem::Problem;
use crate::http::problem_kind::ProblemKind;
use crate::redlock::clock::{Clock, SystemClock};
use crate::types::{ResourceName, Token};

/// The permissions of a request's client.
#[derive(Debug, Clone)]
pub(crate) struct Access(Permissions);

#[derive(Debug, Clone)]
enum Permissions {
    /// Authentication is off: everything.
    Everything,
    /// The permissions by the principal's rules; with an expired token, only those of a holder.
    Principal { authenticator: Arc<Authenticator>, principal: Arc<Principal>, is_late: bool },
    /// Only operations that need no permission.
    Nothing,
}

impl Access {
    /// All permissions: authentication is off.
    pub(crate) fn everything() -> Self {
        Self(Permissions::Everything)
    }

    /// No permissions.
    pub(crate) fn nothing() -> Self {
        Self(Permissions::Nothing)
    }

    /// The permissions of this principal.
    pub(crate) fn of_principal(authenticator: &Arc<Authenticator>, principal: Arc<Principal>) -> Self {
        Self(Permissions::Principal { authenticator: Arc::clone(authenticator), principal, is_late: false })
    }

    /// With an expired token, the principal may only renew and release leases whose secret it shows.
    pub(crate) fn of_late_holder(authenticator: &Arc<Authenticator>, principal: Arc<Principal>) -> Self {
        Self(Permissions::Principal { authenticator: Arc::clone(authenticator), principal, is_late: true })
    }

    /// The principal; `None` without authentication or permissions.
    pub(crate) fn principal(&self) -> Option<&Principal> {
        match &self.0 {
            Permissions::Principal { principal, .. } => Some(principal),
            _ => None,
        }
    }

    /// The authenticator; `None` without authentication.
    pub(crate) fn authenticator(&self) -> Option<&Arc<Authenticator>> {
        match &self.0 {
            Permissions::Principal { authenticator, .. } => Some(authenticator),
            _ => None,
        }
    }

    /// The principal, if it may use what it owns without the secret: `None` if its token has expired.
    pub(crate) fn owner(&self) -> Option<&Principal> {
        match &self.0 {
            Permissions::Principal { principal, is_late: false, .. } => Some(principal),
            _ => None,
        }
    }

    /// As [`Self::principal`], shared.
    pub(crate) fn shared_principal(&self) -> Option<Arc<Principal>> {
        match &self.0 {
            Permissions::Principal { principal, .. } => Some(Arc::clone(principal)),
            _ => None,
        }
    }

    /// Whether the right covers this name.
    pub(crate) fn may(&self, right: Right, name: &ResourceName) -> bool {
        match &self.0 {
            Permissions::Everything => true,
            Permissions::Principal { is_late: true, .. } if right != Right::Acquire => false,
            Permissions::Principal { principal, .. } => principal.rules.allow(right, name),
            Permissions::Nothing => false,
        }
    }

    /// As [`Self::may`], for a name that a node reported; text that is no resource name needs unrestricted access.
    pub(crate) fn may_text(&self, right: Right, name: &str) -> bool {
        matches!(self.0, Permissions::Everything) || ResourceName::parse(name).is_ok_and(|name| self.may(right, &name))
    }

    /// Whether everything is allowed.
    pub(crate) fn may_all(&self) -> bool {
        self.may_somewhere(Right::Admin)
    }

    /// Whether the right covers some name, or the service if the right has no names.
    pub(crate) fn may_somewhere(&self, right: Right) -> bool {
        match &self.0 {
            Permissions::Everything => true,
            Permissions::Principal { is_late: true, .. } if right != Right::Acquire => false,
            Permissions::Principal { principal, .. } => principal.rules.allow_somewhere(right),
            Permissions::Nothing => false,
        }
    }

    /// The event as the client may see it: by its resource, or as an event of the nodes; a deadlock without the locks that the
    /// client may not read. `None`: the client may not see the event.
    pub(crate) fn visible(&self, event: &Arc<Event>) -> Option<Arc<Event>> {
        let is_visible = match event.resource.as_deref() {
            Some(name) => self.may_text(Right::Events, name),
            None => self.may_somewhere(Right::Metrics),
        };
        let may_read = |edge: &&DeadlockEdge| self.may_text(Right::Events, &edge.waits_for);
        match &event.cycle {
            _ if !is_visible => None,
            Some(cycle) if !cycle.iter().all(|edge| may_read(&edge)) => {
                let cycle = Some(cycle.iter().filter(may_read).cloned().collect());
                Some(Arc::new(Event { cycle, ..(**event).clone() }))
            }
            _ => Some(Arc::clone(event)),
        }
    }

    /// Errors: `forbidden`.
    pub(crate) fn need(&self, right: Right, name: &ResourceName) -> Result<(), Problem> {
        if self.may(right, name) { Ok(()) } else { Err(forbidden(right, Some(name))) }
    }

    /// Errors: `forbidden`.
    pub(crate) fn need_somewhere(&self, right: Right) -> Result<(), Problem> {
        if self.may_somewhere(right) { Ok(()) } else { Err(forbidden(right, None)) }
    }

    /// The same client by the current rules; `None` if the principal no longer exists. For streams, which outlive changes of the
    /// access file.
    pub(crate) fn renewed(&self) -> Option<Self> {
        match &self.0 {
            Permissions::Principal { authenticator, principal, .. } => {
                authenticator.current(&principal.name).map(|current| Self::of_principal(authenticator, current))
            }
            Permissions::Everything => Some(self.clone()),
            Permissions::Nothing => None,
        }
    }

    /// Reserves an acquire of these resources in the principal's quota; `None` without authentication. Resources that the token
    /// already holds are counted already: a repeated request is answered even at the limit.
    ///
    /// Errors: `quota-exceeded`.
    pub(crate) fn reserve(
        &self,
        resources: &[ResourceName],
        token: Option<&Token>,
        waits: bool,
    ) -> Result<Option<QuotaPermit>, Problem> {
        let Permissions::Principal { authenticator, principal, .. } = &self.0 else { return Ok(None) };
        let limits = authenticator.limits(principal);
        let (leases, waiters) = (limits.leases.unwrap_or(usize::MAX), limits.waiters.unwrap_or(usize::MAX));
        let quotas = authenticator.quotas();
        let counted = token.map_or(0, |token| quotas.already_counted(&principal.name, resources, &token.hash().id()));
        let count = resources.len().saturating_sub(counted);
        let permit = quotas.reserve(&principal.name, (count, waits), leases, waiters, SystemClock.now());
        permit.map(Some).map_err(|exceeded| {
            let (limit, counted) = match exceeded {
                QuotaExceeded::Leases(limit) => (limit, "leases"),
                QuotaExceeded::Waiters(limit) => (limit, "waiting requests"),
            };
            let detail = format!("{} already has {limit} {counted}, the maximum for a principal", principal.name);
            quota_exceeded(detail, limit).retry_after(Duration::from_secs(1))
        })
    }

    /// Counts an event stream of the principal; `None` without authentication.
    ///
    /// Errors: `quota-exceeded`.
    pub(crate) fn reserve_stream(&self) -> Result<Option<StreamPermit>, Problem> {
        let Permissions::Principal { authenticator, principal, .. } = &self.0 else { return Ok(None) };
        let permit = authenticator.quotas().open_stream(&principal.name);
        permit.map(Some).ok_or_else(|| {
            let limit = STREAMS_PER_PRINCIPAL;
            let detail = format!("{} already reads {limit} event streams, the maximum for a principal", principal.name);
            quota_exceeded(detail, limit).retry_after(Duration::from_secs(30))
        })
    }

    /// Counts a request that waits for a change of a ticket; the limit is that of waiters. `None` without authentication.
    ///
    /// Errors: `quota-exceeded`.
    pub(crate) fn reserve_poll(&self) -> Result<Option<StreamPermit>, Problem> {
        let Permissions::Principal { authenticator, principal, .. } = &self.0 else { return Ok(None) };
        let limit = authenticator.limits(principal).waiters.unwrap_or(usize::MAX);
        authenticator.quotas().open_poll(&principal.name, limit).map(Some).ok_or_else(|| {
            let detail =
                format!("{} already waits for changes of {limit} tickets, the maximum for a principal", principal.name);
            quota_exceeded(detail, limit).retry_after(Duration::from_secs(1))
        })
    }

    /// Updates the principal's quota; does nothing without authentication.
    pub(crate) fn update_quota(&self, update: impl FnOnce(&Quotas)) {
        if let Permissions::Principal { authenticator, .. } = &self.0 {
            update(authenticator.quotas());
        }
    }
}

/// A limit of one principal is reached.
pub(crate) fn quota_exceeded(detail: String, limit: usize) -> Problem {
    Problem::new(ProblemKind::QuotaExceeded, detail).with(|m| {
        m.limit = Some(limit);
        m.scope = Some("principal".to_owned());
    })
}

fn forbidden(right: Right, name: Option<&ResourceName>) -> Problem {
    let on = name.map(|name| format!(" on {name}")).unwrap_or_default();
    Problem::new(ProblemKind::Forbidden, format!("this needs the right `{right}`{on}")).with(|m| {
        m.needed = Some(right.as_str().to_owned());
        m.resource = name.map(ToString::to_string);
    })
}
