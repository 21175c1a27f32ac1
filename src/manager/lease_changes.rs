//! Changes to an existing lease: more time, other labels, its end by its holder or by an operator.

use std::time::Duration;

use futures_util::future::{Either, join, ready};

use super::distant_ends::SHORT;
use super::events::{EventKind, LeaseEvent, set_lease, set_mode};
use super::granted_lease::granted_at;
use super::latency::Round;
use super::lease_snapshot::LeaseChange;
use super::own_leases::OwnEnd;
use super::service::LockManager;
use super::types::*;
use crate::protocol::{EndReason, LeaseRecord, TicketEnd};
use crate::redlock::clock::Clock;
use crate::redlock::downgrade::DowngradeRefusal;
use crate::redlock::extend::{ExtendParams, ExtendRefusal};
use crate::redlock::inspect::ResourceState;
use crate::redlock::node::Node;
use crate::redlock::notifications::LeaseTag;
use crate::redlock::random::Entropy;
use crate::redlock::release::ReleaseOutcome;
use crate::types::{Labels, ResourceName, Token, TokenHash, Ttl};

impl<N: Node, C: Clock, E: Entropy> LockManager<N, C, E> {
    /// Extends a lease that still exists, or edits its labels.
    ///
    /// Cancel (drop): the extend may have taken effect; the old deadline is still valid.
    pub async fn extend(&self, request: ExtendRequest) -> Result<ExtendedLease, ExtendError> {
        let hash = request.token.hash();
        if request.downgrade {
            self.downgrade(&request.resource, &hash).await?;
        }
        let labels = match request.note.is_some() || !request.metadata.is_empty() || request.kept_for.is_some() {
            true => Some(self.edited_labels(&request, &hash).await?),
            false => None,
        };
        let (labels, stored_ttl) = labels.map_or((None, None), |(labels, ttl)| (Some(labels), Some(ttl)));
        let extension = ExtendParams {
            resource: request.resource.clone(),
            token: hash.clone(),
            ttl: request.ttl.or(stored_ttl),
            until_ms: labels.as_ref().map_or(0, |labels| labels.kept_until_ms),
            fence: request.fence,
            labels: labels.as_ref().map(Labels::encode),
        };
        if request.kept_for.is_some() && !self.shared.keeper.index(&request.resource).await {
            return Err(self.extend_error(
                &request.resource,
                &hash,
                ExtendRefusal::Unknown { granted: 0, nodes: Vec::new() },
            ));
        }
        let begun = self.now();
        let extended = match self.engine().extend(&extension).await {
            Ok(extended) => {
                self.record_decided_round(Round::Extended, begun, self.now());
                extended
            }
            Err(refusal) => return Err(self.extend_error(&request.resource, &hash, refusal)),
        };
        let labels = extended.record.labels();
        let at = self.moment();
        self.record_own_lease(&hash, (&request.resource, &labels, extended.record.mode), extended.deadline, at);
        if request.kept_for.is_some() {
            self.shared.keeper.keep(&request.resource, &extended.record, extended.deadline);
        }
        self.record_change(at.now, &request.resource, |until| {
            LeaseChange::Extended(extended.record.clone(), until(extended.deadline))
        });
        self.shared.waiting.extended(&request.resource, extended.deadline, extended.record.mode.wanted());
        self.shared.events.publish(EventKind::Extended, self.wall_ms(), |event| {
            set_lease(event, &request.resource, &hash);
            event.owner = Some(labels.owner.clone()).filter(|owner| !owner.is_empty());
            event.fence = Some(extended.record.fence.0);
            set_mode(event, extended.record.mode);
            event.valid_for_ms = u64::try_from(extended.deadline.since(self.now()).as_millis()).ok();
        });
        let lease = GrantedLease {
            resource: request.resource,
            token: request.token,
            fence: extended.record.fence,
            kept_for: self.kept_for(&labels),
            labels,
            mode: extended.record.mode,
            ttl: extended.ttl,
            deadline: extended.deadline,
            replay: false,
            waited: Duration::ZERO,
            quorum: self.count(extended.granted),
        };
        Ok(ExtendedLease { lease, renewals: extended.record.renewals })
    }

    /// Makes an exclusive lease a shared one, and wakes the waiters that can then be granted.
    ///
    /// Cancel: some nodes may have downgraded it; it counts as shared.
    async fn downgrade(&self, resource: &ResourceName, hash: &TokenHash) -> Result<(), ExtendError> {
        let outcome = self.engine().downgrade(resource, hash).await;
        // Whatever the answer, nodes may admit others now.
        self.shared.waiting.lease_may_have_ended(resource);
        match outcome {
            Ok(_) => Ok(()),
            Err(DowngradeRefusal::Lease(refusal)) => Err(self.extend_error(resource, hash, refusal)),
            Err(DowngradeRefusal::Permit) => {
                let detail = "a permit cannot become a shared lease: release it and acquire";
                Err(ExtendError::Invalid("mode", detail.to_owned()))
            }
        }
    }

    /// The labels that a quorum has, with the request's changes, and the TTL.
    async fn edited_labels(&self, request: &ExtendRequest, hash: &TokenHash) -> Result<(Labels, Ttl), ExtendError> {
        let not_known = |answers: &[_]| ExtendError::NoQuorum {
            no_quorum: self.no_quorum(0, self.engine().outcomes(answers)),
            valid_for: self.shared.own_leases.valid_for(&request.resource, hash, self.now()),
        };
        let view = self.engine().inspect(&request.resource).await.map_err(|answers| not_known(&answers))?;
        // All nodes will have these labels, so the labels of a single node are not used.
        let agreement = view.agreement(hash, self.engine().quorum());
        if agreement.is_some_and(|agreement| !agreement.may_be_written()) {
            return Err(not_known(&view.answers));
        }
        let (mut labels, ttl) = match (view.state.lease_of(hash), &view.state) {
            (Some((record, _)), _) => (record.labels(), self.possible_ttl(record.ttl)),
            (None, ResourceState::Free) => return Err(ExtendError::Gone(GoneReason::Unknown)),
            (None, _) => return Err(ExtendError::NotHolder),
        };
        if let Some(note) = &request.note {
            labels.note.clone_from(note);
        }
        for (name, value) in &request.metadata {
            match value {
                Some(value) => labels.metadata.insert(name.clone(), value.clone()),
                None => labels.metadata.remove(name),
            };
        }
        if let Some(kept_for) = request.kept_for {
            self.set_kept_until(&mut labels, kept_for)?;
        }
        labels.check().map_err(|(field, invalid)| ExtendError::Invalid(field, invalid.0))?;
        Ok((labels, ttl))
    }

    /// The TTL that nodes show, or less if no lease of this cluster can have such a long TTL.
    fn possible_ttl(&self, shown: Ttl) -> Ttl {
        let longest = u64::try_from(self.engine().params().longest_ttl().as_millis()).ok();
        longest.and_then(|ms| Ttl::from_ms(ms).ok()).map_or(shown, |longest| shown.min(longest))
    }

    fn extend_error(&self, resource: &ResourceName, hash: &TokenHash, refusal: ExtendRefusal) -> ExtendError {
        match refusal {
            ExtendRefusal::NotHolder => ExtendError::NotHolder,
            ExtendRefusal::Changed(current) => ExtendError::Changed { current },
            ExtendRefusal::Gone(reason) => {
                let (end, reason) = (self.shared.own_leases.remove(resource, hash), gone(reason));
                self.report_lease_end(end.as_ref(), outcome_of(reason), self.now());
                ExtendError::Gone(reason)
            }
            ExtendRefusal::Unknown { granted, nodes } => ExtendError::NoQuorum {
                no_quorum: self.no_quorum(granted, nodes),
                valid_for: self.shared.own_leases.valid_for(resource, hash, self.now()),
            },
        }
    }

    /// Releases a lease. Returns for how long it was held, as far as this instance knows.
    ///
    /// Cancel (drop): the release continues in the background.
    pub async fn release(&self, resource: &ResourceName, token: &Token) -> Result<Option<Duration>, ReleaseError> {
        self.release_by_hash(resource, &token.hash()).await
    }

    /// Releases a lease by the token's hash. Otherwise as `release`.
    pub(super) async fn release_by_hash(
        &self,
        resource: &ResourceName,
        hash: &TokenHash,
    ) -> Result<Option<Duration>, ReleaseError> {
        match self.end_lease(resource, hash, LeaseOutcome::Released).await {
            (ReleaseOutcome::Released, held) => Ok(held),
            (ReleaseOutcome::NotHolder, _) => Err(ReleaseError::NotHolder),
            (ReleaseOutcome::Gone(reason), _) => Err(ReleaseError::Gone(gone(reason))),
            (ReleaseOutcome::Unknown { released, nodes }, _) => {
                Err(ReleaseError::NoQuorum(self.no_quorum(released, nodes)))
            }
        }
    }

    /// Releases a lease and hands over to the next waiter here. Returns also for how long it was held, where that is known.
    ///
    /// Cancel: the release continues in the background.
    pub(super) async fn end_lease(
        &self,
        resource: &ResourceName,
        token: &TokenHash,
        reason: LeaseOutcome,
    ) -> (ReleaseOutcome, Option<Duration>) {
        let begun = self.now();
        // Only for a lease that this instance granted: a made-up token must not wake waiters.
        let is_ours = self.shared.own_leases.has(resource, token);
        // For a lease that another instance granted, a node is first asked for the owner, for events and metrics.
        let stored = match is_ours {
            true => Either::Left(ready(None)),
            false => Either::Right(Box::pin(self.engine().inspect_on_one(resource, token))),
        };
        let release = self.shared.waiting.release(resource, token, is_ours);
        let (stored, outcome) = join(stored, Box::pin(release)).await;
        let was_kept = stored.as_ref().is_some_and(|record| record.labels().kept_until_ms > 0);
        // No other instance knows a plain lease that was granted here, unless it has extended the lease.
        let is_long = stored.as_ref().is_some_and(|record| record.ttl.as_duration() > SHORT);
        let end = self.shared.own_leases.remove(resource, token).or_else(|| Some(self.end_of(&stored?)));
        let is_forced = reason == LeaseOutcome::Forced;
        let by = if is_forced { EndReason::Forced } else { EndReason::Released };
        let is_kept = reason != LeaseOutcome::KeptOut && self.stop_keeping(resource, token, by) || was_kept;
        if !matches!(outcome, ReleaseOutcome::Released) {
            return (outcome, None);
        }
        let at = self.moment();
        self.record_decided_round(Round::Released, begun, at.now);
        if reason != LeaseOutcome::KeptOut {
            if is_kept || is_long {
                self.shared.events.publish_end(resource, token);
            }
            self.ticket_lease_ended(resource, token, if is_forced { TicketEnd::Forced } else { TicketEnd::Released });
        }
        self.record_change(at.now, resource, |_| LeaseChange::Ended(token.clone()));
        let held = self.report_lease_end(end.as_ref(), reason, at.now);
        self.shared.held_leases.lease_ended(LeaseTag::of(token));
        let (kind, why) = match reason {
            LeaseOutcome::Forced => (EventKind::Forced, Some(forced_reason(ForceMode::Now, is_kept))),
            LeaseOutcome::KeptOut => (EventKind::Released, Some(reason.as_str())),
            _ => (EventKind::Released, is_kept.then_some(by.as_str())),
        };
        let (owner, mode) = end.map_or_else(Default::default, |end| (end.owner, end.mode));
        let ended = LeaseEvent {
            kind,
            at_ms: at.wall_ms,
            resource: resource.clone(),
            token: token.clone(),
            owner,
            mode,
            fence: None,
            valid_for: None,
            held,
            reason: why,
        };
        match kind {
            EventKind::Forced => self.shared.events.publish(kind, ended.at_ms, |event| {
                ended.describe(event);
                event.detail = Some("ended by force through its ticket".to_owned());
            }),
            _ => self.shared.events.publish_lease(ended),
        }
        (outcome, held)
    }

    /// Ends another caller's lease: the lease that a quorum has now, if it has the ETag that was given. Returns the
    /// lease that was ended; `None` if it was another Redlock client's lock.
    ///
    /// Cancel (drop): a forced release continues in the background.
    pub async fn force(&self, request: ForceRequest) -> Result<(Forced, Option<EndedLease>), ForceError> {
        let no_quorum = |answers: Vec<_>| ForceError::NoQuorum(self.no_quorum(0, self.engine().outcomes(&answers)));
        let view = self.engine().inspect(&request.resource).await.map_err(no_quorum)?;
        let inspection = self.inspection(&request.resource, view.clone());
        let etag = inspection.etag().ok_or(ForceError::NotHeld)?;
        let held = chosen_holder(&view.state, &request)?;
        let is_seen =
            |tag: &String| *tag == etag || held.as_ref().is_some_and(|record| record.fence.to_string() == *tag);
        if !request.if_match.as_ref().is_none_or(is_seen) {
            return Err(ForceError::Changed { current: etag });
        }
        let named = held.as_ref().map(|record| self.named(record));
        let is_kept = held.as_ref().is_some_and(|record| record.labels().kept_until_ms > 0);
        let is_long = held.as_ref().is_some_and(|record| record.ttl.as_duration() > SHORT);
        let token = held.map(|record| record.token);
        let (outcome, left) = match (view.state, request.mode, &token) {
            (ResourceState::Foreign { .. }, ForceMode::Revoke, _) => return Err(ForceError::ForeignRevoke),
            (ResourceState::Foreign { fingerprint, .. }, ForceMode::Now, _) => {
                (self.engine().delete_foreign(&request.resource, fingerprint.into()).await, None)
            }
            (_, _, None) => return Err(ForceError::NotHeld),
            (_, ForceMode::Now, Some(token)) => {
                let end = self.shared.own_leases.remove(&request.resource, token);
                self.report_lease_end(end.as_ref(), LeaseOutcome::Forced, self.now());
                (self.engine().release(&request.resource, token, EndReason::Forced).await, None)
            }
            (_, ForceMode::Revoke, Some(token)) => match self.engine().revoke(&request.resource, token).await {
                // One node alone may show any time.
                Ok(left_ms) => (ReleaseOutcome::Released, Some(self.possible_left(Duration::from_millis(left_ms)))),
                Err(outcome) => (outcome, None),
            },
        };
        if matches!(outcome, ReleaseOutcome::Released) {
            if let Some(token) = &token {
                let is_now = request.mode == ForceMode::Now;
                let by = if is_now { EndReason::Forced } else { EndReason::Revoked };
                self.stop_keeping(&request.resource, token, by);
                if is_now {
                    self.ticket_lease_ended(&request.resource, token, TicketEnd::Forced);
                    if is_kept || is_long {
                        self.shared.events.publish_end(&request.resource, token);
                    }
                }
            }
            self.publish_forced_end(&request, named.as_ref(), forced_reason(request.mode, is_kept));
        }
        match (outcome, request.mode, left) {
            (ReleaseOutcome::Released, ForceMode::Now, _) => {
                self.shared.waiting.lease_ended(&request.resource, token.as_ref().map(LeaseTag::of));
                if let Some(token) = token {
                    self.shared.held_leases.lease_ended(LeaseTag::of(&token));
                    self.record_change(self.now(), &request.resource, |_| LeaseChange::Ended(token));
                }
                Ok((Forced::Freed, named))
            }
            (ReleaseOutcome::Released, ForceMode::Revoke, Some(left)) => Ok((Forced::FreesIn(left), named)),
            (ReleaseOutcome::Unknown { released, nodes }, ..) => {
                Err(ForceError::NoQuorum(self.no_quorum(released, nodes)))
            }
            (ReleaseOutcome::NotHolder, ..) => {
                let now = self.engine().inspect(&request.resource).await.map_err(no_quorum)?;
                match self.inspection(&request.resource, now).etag() {
                    Some(current) => Err(ForceError::Changed { current }),
                    None => Err(ForceError::NotHeld),
                }
            }
            _ => Err(ForceError::NotHeld),
        }
    }

    /// The time left of a lease that nodes show, or less, as [`Self::possible_ttl`].
    fn possible_left(&self, shown: Duration) -> Duration {
        let params = self.engine().params();
        let longest = params.longest_ttl().saturating_add(params.lock_delay);
        if longest.is_zero() { shown } else { shown.min(longest) }
    }

    fn end_of(&self, record: &LeaseRecord) -> OwnEnd {
        let labels = record.labels();
        OwnEnd { since: granted_at(&labels, self.moment()), owner: labels.owner.into(), mode: Some(record.mode) }
    }

    fn named(&self, record: &LeaseRecord) -> EndedLease {
        let labels = record.labels();
        let held = Duration::from_millis(self.wall_ms().saturating_sub(labels.acquired_at_ms));
        let held = Some(held).filter(|_| labels.acquired_at_ms > 0);
        EndedLease { token_id: record.token.id(), mode: record.mode, fence: record.fence, owner: labels.owner, held }
    }

    /// Publishes which principal ended which lease, how and why.
    fn publish_forced_end(&self, request: &ForceRequest, ended: Option<&EndedLease>, reason: &str) {
        self.shared.events.publish(EventKind::Forced, self.wall_ms(), |event| {
            event.resource = Some(request.resource.to_string());
            event.reason = Some(reason.to_owned());
            event.detail = Some(request.reason.clone()).filter(|reason| !reason.is_empty());
            event.principal.clone_from(&request.principal);
            if let Some(lease) = ended {
                event.token_id = Some(lease.token_id.to_string());
                event.owner = Some(lease.owner.clone()).filter(|owner| !owner.is_empty());
                event.fence = Some(lease.fence.0);
                set_mode(event, lease.mode);
                event.after_ms = lease.held.and_then(|held| u64::try_from(held.as_millis()).ok());
            }
        });
    }
}

/// The reason in events: for a kept lease as in metrics, for others as it was requested.
fn forced_reason(mode: ForceMode, is_kept: bool) -> &'static str {
    match (mode, is_kept) {
        (ForceMode::Now, true) => EndReason::Forced.as_str(),
        (ForceMode::Revoke, true) => EndReason::Revoked.as_str(),
        (ForceMode::Now, false) => "now",
        (ForceMode::Revoke, false) => "revoke",
    }
}

/// The lease that the request means; `None` for another client's lock.
///
/// Errors: no lease holds the resource, or not the given one; or several do, and the request names none.
fn chosen_holder(state: &ResourceState, request: &ForceRequest) -> Result<Option<LeaseRecord>, ForceError> {
    let holders = state.holders();
    let tagged = |record: &LeaseRecord| request.if_match.as_ref().is_some_and(|tag| *tag == record.fence.to_string());
    let chosen = match (&request.holder, holders.as_slice()) {
        (Some(named), _) => holders.iter().find(|(record, _)| record.token.id() == *named),
        (None, []) => None,
        (None, [only]) => Some(only),
        (None, several) => {
            let count = several.len();
            Some(several.iter().find(|(record, _)| tagged(record)).ok_or(ForceError::SeveralHolders(count))?)
        }
    };
    match chosen {
        Some((record, _)) => Ok(Some(LeaseRecord::clone(record))),
        None if matches!(state, ResourceState::Foreign { .. }) && request.holder.is_none() => Ok(None),
        None => Err(ForceError::NotHeld),
    }
}

fn outcome_of(reason: GoneReason) -> LeaseOutcome {
    match reason {
        GoneReason::Released => LeaseOutcome::Released,
        GoneReason::Forced => LeaseOutcome::Forced,
        GoneReason::Expired | GoneReason::Unknown => LeaseOutcome::Lapsed,
    }
}

fn gone(reason: Option<EndReason>) -> GoneReason {
    match reason {
        None | Some(EndReason::Cancelled) => GoneReason::Expired,
        Some(EndReason::Released) => GoneReason::Released,
        Some(EndReason::Forced | EndReason::Revoked) => GoneReason::Forced,
    }
}
