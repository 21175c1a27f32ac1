//! Kept leases for the manager: events, lists and quotas. [`crate::redlock::kept_lease_renewal`] decides when they
//! are renewed and how they end.

use std::time::Duration;

use super::acquire::{principal_tag, tag_of};
use super::events::{EventKind, set_lease};
use super::lease_snapshot::LeaseChange;
use super::service::LockManager;
use super::types::{ExtendError, LeaseOutcome, ReleaseError};
use crate::auth::principal::{Principal, PrincipalName};
use crate::protocol::{EndReason, LeaseRecord, TicketEnd};
use crate::redlock::clock::{BootTime, Clock};
use crate::redlock::kept_lease::{KeptBy, KeptEnd, KeptObserver, KeptView};
use crate::redlock::node::Node;
use crate::redlock::random::Entropy;
use crate::redlock::release::ReleaseOutcome;
use crate::types::{Fence, Labels, Mode, ResourceName, TokenHash};

/// The limits of kept leases.
#[derive(Debug, Clone, Copy)]
pub struct KeepLimits {
    /// Maximum time from the grant to the end of a kept lease.
    pub max: Duration,
    /// Maximum number of kept leases of this instance up to which new ones are accepted.
    pub total: usize,
}

/// An event of a kept lease of this instance, for metrics and quotas.
#[derive(Debug, Clone, Copy)]
pub enum KeptLeaseEvent<'a> {
    /// A renewal was confirmed.
    Renewed {
        /// The leased resource.
        resource: &'a ResourceName,
        /// Hash of the lease's token.
        token: &'a TokenHash,
        /// How the lease shares the resource.
        mode: Mode,
        /// The principal that acquired the lease, see [`Labels::principal`].
        principal: &'a str,
        /// Until when the lease is promised.
        deadline: BootTime,
        /// Whether the instance that granted the lease renewed it, or another one.
        by: KeptBy,
    },
    /// A renewal was not confirmed.
    NotRenewed(KeptBy),
    /// The lease is no longer kept.
    Ended {
        resource: &'a ResourceName,
        /// Hash of the lease's token.
        token: &'a TokenHash,
        end: KeptEnd,
    },
}

/// Called with each [`KeptLeaseEvent`]. It must be cheap and never wait.
pub type KeptListener = Box<dyn Fn(KeptLeaseEvent<'_>) + Send + Sync>;

impl KeptEnd {
    /// The word in events and metrics.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::KeptOut => "kept-out",
            // The caller of a withdrawn acquire releases its lease.
            Self::Ended(EndReason::Cancelled) => EndReason::Released.as_str(),
            Self::Ended(reason) => reason.as_str(),
            Self::Lost => "lost",
        }
    }
}

impl<N: Node, C: Clock, E: Entropy> LockManager<N, C, E> {
    /// Sets the limits of kept leases, and the function that is called with [`KeptLeaseEvent`]. Only the first call counts.
    pub fn set_keeping(&self, limits: KeepLimits, listener: KeptListener) {
        let _ = self.shared.keeping.set((limits, listener));
    }

    /// The limits of kept leases; no lease may be kept before [`Self::set_keeping`].
    pub fn keep_limits(&self) -> KeepLimits {
        self.shared.keeping.get().map_or(KeepLimits { max: Duration::ZERO, total: 0 }, |(limits, _)| *limits)
    }

    /// Renews kept leases, for ever. Cancel: as [`crate::redlock::kept_lease_renewal::Keeper::run`].
    pub async fn run_keeper(self) {
        self.shared.keeper.run(&self).await;
    }

    /// How many leases this instance keeps.
    pub fn kept_count(&self) -> usize {
        self.shared.keeper.count()
    }

    /// For how long a lease with these labels is kept from now on; `None` if it is not kept.
    pub(super) fn kept_for(&self, labels: &Labels) -> Option<Duration> {
        let left_ms = labels.kept_until_ms.saturating_sub(self.shared.keeper.now_ms());
        (labels.kept_until_ms > 0).then(|| Duration::from_millis(left_ms))
    }

    /// When a lease that is kept for this time from now on ends. Milliseconds since 1970, on the cluster clock.
    pub(super) fn kept_until(&self, kept_for: Duration) -> u64 {
        let ms = u64::try_from(kept_for.as_millis()).unwrap_or(u64::MAX);
        self.shared.keeper.now_ms().saturating_add(ms)
    }

    /// Checks whether this many more leases may be kept. Errors: this instance keeps the maximum already; their number.
    pub(super) fn check_kept_total(&self, more: usize) -> Result<(), usize> {
        let total = self.keep_limits().total;
        if self.kept_count().saturating_add(more) > total { Err(total) } else { Ok(()) }
    }

    /// Keeps a lease that was just granted. Returns whether a quorum knows it.
    ///
    /// Cancel: some nodes may know it.
    pub(super) async fn begin_keeping(
        &self,
        (resource, token): (&ResourceName, &TokenHash),
        fence: Fence,
        labels: &mut Labels,
        kept_for: Duration,
    ) -> bool {
        labels.kept_until_ms = self.kept_until(kept_for);
        self.shared.keeper.begin(resource, token, fence, labels).await
    }

    pub(super) fn report_kept(&self, event: KeptLeaseEvent<'_>) {
        if let Some((_, listener)) = self.shared.keeping.get() {
            listener(event);
        }
    }

    /// Gives a lease another end, from now on.
    ///
    /// Errors: the lease would be kept for longer than the maximum since its grant, or too many are kept here.
    pub(super) fn set_kept_until(&self, labels: &mut Labels, kept_for: Duration) -> Result<(), ExtendError> {
        let max = self.keep_limits().max;
        let held = Duration::from_millis(self.shared.keeper.now_ms().saturating_sub(labels.acquired_at_ms));
        let left = max.saturating_sub(held);
        if kept_for > left {
            return Err(ExtendError::KeepTooLong { max, left });
        }
        if labels.kept_until_ms == 0 {
            self.check_kept_total(1).map_err(ExtendError::TooManyKept)?;
        }
        labels.kept_until_ms = self.kept_until(kept_for);
        Ok(())
    }

    /// Whether this principal acquired the lease with these labels, which the service keeps. Always true without
    /// authentication.
    pub fn has_taken(&self, labels: &Labels, principal: Option<&Principal>) -> bool {
        let own = principal_tag(&self.engine().settings.params.cluster.get(), principal);
        labels.kept_until_ms > 0 && labels.principal == own
    }

    /// Whether the principal in a lease's record is this one.
    pub fn is_for(&self, labels_principal: &str, name: &PrincipalName) -> bool {
        tag_of(&self.engine().settings.params.cluster.get(), name) == labels_principal
    }

    /// Ends a kept lease for the principal that acquired it. Returns for how long it was held, as far as this
    /// instance knows.
    ///
    /// Cancel: the release continues in the background.
    pub async fn give_back(
        &self,
        resource: &ResourceName,
        principal: Option<&Principal>,
    ) -> Result<Option<Duration>, ReleaseError> {
        let found = self.engine().inspect(resource).await;
        let found =
            found.map_err(|answers| ReleaseError::NoQuorum(self.no_quorum(0, self.engine().outcomes(&answers))))?;
        // One node alone may show this principal, or a different one.
        let quorum = self.engine().quorum();
        let is_open = |record: &LeaseRecord| found.agreement(&record.token, quorum).is_none_or(|of| !of.has_principal);
        let taken = found
            .state
            .holders()
            .into_iter()
            .find(|(record, _)| !is_open(record) && self.has_taken(&record.labels(), principal));
        match taken.map(|(record, _)| record.token.clone()) {
            Some(token) => self.release_by_hash(resource, &token).await,
            None if found.state.holders().iter().any(|(record, _)| is_open(record)) => {
                Err(ReleaseError::NoQuorum(self.no_quorum(0, self.engine().outcomes(&found.answers))))
            }
            None => Err(ReleaseError::NotHolder),
        }
    }

    /// Records that a request to this instance has ended the lease, or its renewals. Returns whether it was kept here.
    pub(super) fn stop_keeping(&self, resource: &ResourceName, token: &TokenHash, reason: EndReason) -> bool {
        let was_kept = self.shared.keeper.forget(resource, token);
        if was_kept {
            self.report_kept(KeptLeaseEvent::Ended { resource, token, end: KeptEnd::Ended(reason) });
        }
        was_kept
    }

    /// Records that the service could not keep the lease. Reported by the keeper, or by the lease's ticket, which
    /// leaves a tombstone that the keeper would mistake for a release.
    pub(super) fn kept_lease_is_lost(
        &self,
        (resource, token): (&ResourceName, &TokenHash),
        fence: Option<Fence>,
        labels: &Labels,
    ) {
        self.shared.keeper.forget(resource, token);
        self.report_kept(KeptLeaseEvent::Ended { resource, token, end: KeptEnd::Lost });
        self.record_change(self.now(), resource, |_| LeaseChange::Ended(token.clone()));
        let own = self.shared.own_leases.remove(resource, token);
        let held = self.report_lease_end(own.as_ref(), LeaseOutcome::Lapsed, self.now());
        let held_ms = held.and_then(|held| u64::try_from(held.as_millis()).ok());
        self.shared.events.publish(EventKind::Lost, self.wall_ms(), |event| {
            set_lease(event, resource, token);
            event.reason = Some(KeptEnd::Lost.as_str().to_owned());
            event.owner = Some(labels.owner.clone()).filter(|owner| !owner.is_empty());
            event.fence = fence.map(|fence| fence.0);
            event.after_ms = match labels.acquired_at_ms {
                0 => held_ms,
                at_ms => Some(self.wall_ms().saturating_sub(at_ms)),
            };
        });
    }
}

/// How a ticket ends with its lease.
pub(super) fn ticket_end(end: KeptEnd) -> TicketEnd {
    match end {
        KeptEnd::KeptOut => TicketEnd::KeptOut,
        KeptEnd::Lost => TicketEnd::Lost,
        KeptEnd::Ended(EndReason::Released | EndReason::Cancelled) => TicketEnd::Released,
        KeptEnd::Ended(EndReason::Forced | EndReason::Revoked) => TicketEnd::Forced,
    }
}

impl<N: Node, C: Clock, E: Entropy> KeptObserver for LockManager<N, C, E> {
    fn renewed(&self, lease: KeptView<'_>, by: KeptBy, deadline: BootTime) {
        let KeptView { resource, token, record } = lease;
        let labels = record.labels();
        self.record_own_lease(token, (resource, &labels, record.mode), deadline, self.moment());
        self.record_change(self.now(), resource, |until| LeaseChange::Extended(record.clone(), until(deadline)));
        self.shared.waiting.extended(resource, deadline, record.mode.wanted());
        let (mode, principal) = (record.mode, &*labels.principal);
        self.report_kept(KeptLeaseEvent::Renewed { resource, token, mode, principal, deadline, by });
    }

    fn not_renewed(&self, by: KeptBy) {
        self.report_kept(KeptLeaseEvent::NotRenewed(by));
    }

    fn ended(&self, lease: KeptView<'_>, end: KeptEnd) {
        let KeptView { resource, token, record } = lease;
        self.ticket_lease_ended(resource, token, ticket_end(end));
        if end == KeptEnd::Lost {
            return self.kept_lease_is_lost((resource, token), Some(record.fence), &record.labels());
        }
        self.report_kept(KeptLeaseEvent::Ended { resource, token, end });
        if end == KeptEnd::KeptOut {
            // The release was published.
            return;
        }
        self.record_change(self.now(), resource, |_| LeaseChange::Ended(token.clone()));
        let own = self.shared.own_leases.remove(resource, token);
        // The instance that ended the lease published the event.
        self.report_lease_end(own.as_ref(), LeaseOutcome::Forced, self.now());
    }

    async fn release(&self, resource: &ResourceName, token: &TokenHash) -> bool {
        let (outcome, _) = self.end_lease(resource, token, LeaseOutcome::KeptOut).await;
        !matches!(outcome, ReleaseOutcome::Unknown { .. })
    }
}
