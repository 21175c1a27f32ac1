//! Translates an acquire into a request to the wait queues, and their answer into an answer for the caller.

use std::sync::Arc;
use std::time::Duration;

use data_encoding::HEXLOWER;
use sha2::{Digest, Sha256};

use super::activity::AcquireSeen;
use super::latency::Round;
use super::service::LockManager;
use super::types::{AcquireError, CycleEdge, Inspection};
use crate::auth::access_rule::Right;
use crate::auth::principal::{Principal, PrincipalName};
use crate::auth::quota::QuotaPermit;
use crate::redlock::acquire::{AcquireParams, Grant, Refusal, RefusalKind};
use crate::redlock::clock::{BootTime, Clock};
use crate::redlock::inspect::InspectionResult;
use crate::redlock::node::Node;
use crate::redlock::random::Entropy;
use crate::types::{Labels, ResourceName, TokenHash, WaitId};
use crate::waiting::deadlock::{Party, WaitEdge};
use crate::waiting::event::{Admission, WaitError, WaitRequest};
use crate::waiting::kept_places::{PlaceKey, PlaceRequest};

/// Bytes of the hash. The administrator chooses the names, so nobody can search for two names with the same hash.
const PRINCIPAL_TAG_BYTES: usize = 8;

/// The parameters of an acquire for the queues, besides those for the nodes.
pub(super) struct Wanted {
    /// The party in the search for deadlocks.
    pub(super) party: Option<Party>,
    /// Whether the token is the client's own.
    pub(super) has_own_token: bool,
    /// As in [`super::types::AcquireRequest`].
    pub(super) refuses_deadlock: bool,
    pub(super) principal: Option<Arc<Principal>>,
    /// The place to keep, for a request that waits.
    pub(super) keep: Option<Box<PlaceRequest>>,
    /// Whether the request waits for a ticket.
    pub(super) is_ticket: bool,
}

/// Names the place of a request with this `wait_id`.
pub(super) fn place_key(resources: &[ResourceName], principal: Option<&Principal>, wait_id: &WaitId) -> PlaceKey {
    let principal = principal.map_or_else(|| "".into(), |principal| principal.name.as_str().into());
    let mut resources = resources.to_vec();
    resources.sort_unstable();
    PlaceKey { resources: resources.into(), principal, wait_id: wait_id.clone() }
}

/// Stands for a principal in the value of a lock, by which instances compare holders. Its length is the same for each
/// name, and readers of the nodes see no list of names. It need not keep a name secret that a reader guesses. Empty
/// without authentication.
pub(super) fn principal_tag(cluster: &str, principal: Option<&Principal>) -> String {
    principal.map_or_else(String::new, |principal| tag_of(cluster, &principal.name))
}

/// As `principal_tag`, from the name.
pub(crate) fn tag_of(cluster: &str, principal: &PrincipalName) -> String {
    let digest = Sha256::digest(format!("{cluster}\0{principal}"));
    HEXLOWER.encode(&digest[..PRINCIPAL_TAG_BYTES])
}

impl<N: Node, C: Clock, E: Entropy> LockManager<N, C, E> {
    /// Acquires, and waits until `until`. If a queue exists, the request enters it: no caller of this instance
    /// overtakes another. Only a client with the token of the present lease passes, since it wants only what it has;
    /// and a waiter joins the lease that another request with its token was granted.
    pub(super) async fn acquire_or_wait(
        &self,
        params: &AcquireParams,
        wanted: Wanted,
        started: BootTime,
        until: BootTime,
    ) -> Result<Grant<N, C, E>, AcquireError> {
        let (resources, waiting) = (&params.resources, &self.shared.waiting);
        let Wanted { party, has_own_token, refuses_deadlock, principal, keep, is_ticket } = wanted;
        let admission = if until > started {
            Admission::Queued
        } else if has_own_token
            && resources.iter().any(|resource| self.waiter_count(resource) > 0)
            && Box::pin(waiting.holds_all(resources, &params.token)).await
        {
            Admission::Passing
        } else {
            Admission::Once
        };
        let on_round = |begun: BootTime, outcome: &Result<Grant<N, C, E>, Refusal>| {
            // Rounds without a decision have no latency: they took as long as the time-outs.
            match outcome {
                Ok(_) => self.record_decided_round(Round::Granted, begun, self.now()),
                Err(Refusal { kind: RefusalKind::Held, .. }) => {
                    self.record_decided_round(Round::Refused, begun, self.now());
                }
                Err(_) => {}
            }
        };
        let request = WaitRequest {
            resources: match has_own_token && resources.len() > 1 {
                true => Box::pin(self.to_queue_for(params)).await,
                false => Arc::clone(resources),
            },
            mode: params.mode,
            party,
            token: has_own_token.then(|| params.token.clone()),
            until,
            admission,
            refuses_deadlock,
            note: if params.labels.note.is_empty() { Arc::default() } else { params.labels.note.as_str().into() },
            is_ticket,
        };
        let may_read = |name: &ResourceName| principal.as_ref().is_none_or(|p| p.rules.allow(Right::Read, name));
        let keep = keep.filter(|_| admission == Admission::Queued);
        let outcome = waiting.acquire(params, request, keep, may_read, on_round).await;
        match outcome {
            Ok(grant) => Ok(grant),
            Err(WaitError::OthersWait) => {
                let inspected = Box::pin(self.engine().inspect_all(resources)).await;
                Err(self.held_or_no_quorum(params, inspected, None, started))
            }
            Err(error) => {
                let held = match &error {
                    // When shared leases or permits refuse an exclusive acquire, the nodes report only that the
                    // resource is held, not the holders.
                    WaitError::Refused(refusal) | WaitError::NotAsked(Some(refusal)) if is_unnamed(refusal) => {
                        let inspected = Box::pin(self.engine().inspect(&refusal.resource)).await.ok();
                        inspected.map(|inspected| self.inspection(&refusal.resource, inspected))
                    }
                    _ => None,
                };
                let error = self.acquire_error(params, error, admission == Admission::Queued, started);
                Err(self.with_holders(params, error, held))
            }
        }
    }

    /// The resources in whose queues a request for several waits: all its resources, except those where others wait for what its token
    /// holds already. They wait for the end of that lease, and would block its holder from the other resources.
    async fn to_queue_for(&self, params: &AcquireParams) -> Arc<[ResourceName]> {
        let (resources, waiting) = (&params.resources, &self.shared.waiting);
        let mut queues = Vec::with_capacity(resources.len());
        for resource in resources.iter() {
            if self.waiter_count(resource) == 0 || !waiting.holds(resource, &params.token).await {
                queues.push(resource.clone());
            }
        }
        if queues.is_empty() { Arc::clone(resources) } else { queues.into() }
    }

    /// Counts an acquire for the pages. An acquire that took longer than a round can was refused first, or queued.
    pub(super) fn record_acquire(
        &self,
        (resource, owner): (&ResourceName, &str),
        outcome: &Result<Grant<N, C, E>, AcquireError>,
        is_ready_to_wait: bool,
        took: Duration,
    ) {
        use AcquireError::{Deadlock, Held, TooManyWaiters, WaitTimeout};
        let (is_over, is_contended) = match outcome {
            Ok(_) => (true, took > self.node_timeout()),
            Err(WaitTimeout { .. } | Deadlock { .. }) => (true, true),
            Err(Held(_) | TooManyWaiters { .. }) => (false, true),
            Err(_) => return,
        };
        let waited = (is_over && is_ready_to_wait).then_some(took);
        if waited.is_none() && !is_contended {
            return;
        }
        let seen = AcquireSeen { waited, is_contended, is_granted: outcome.is_ok() };
        self.shared.events.record_acquire(resource, owner, seen, self.wall_ms());
    }

    fn acquire_error(&self, params: &AcquireParams, error: WaitError, waited: bool, started: BootTime) -> AcquireError {
        let refusal = match error {
            WaitError::Refused(refusal) | WaitError::NotAsked(Some(refusal)) => refusal,
            WaitError::NotAsked(None) => return AcquireError::NoQuorum(self.no_quorum(0, Vec::new())),
            WaitError::QueueFull(full) => {
                return AcquireError::TooManyWaiters { limit: full.limit, per_resource: full.per_resource };
            }
            WaitError::Deadlock(cycle) => {
                let cycle = cycle.into_iter().map(cycle_edge).collect();
                return AcquireError::Deadlock { cycle, waited: self.now().since(started) };
            }
            WaitError::TimedOut { position, inspected } => {
                return self.held_or_no_quorum(params, inspected, Some(position), started);
            }
            WaitError::Replaced => return AcquireError::Replaced,
            WaitError::Differs(field) => return AcquireError::OtherPlace(field),
            // The caller inspects.
            WaitError::OthersWait => return AcquireError::NoQuorum(self.no_quorum(0, Vec::new())),
        };
        match refusal.kind {
            RefusalKind::Ended(reason) => AcquireError::Ended(reason),
            RefusalKind::TooManyClaims => AcquireError::TooManyReplays,
            RefusalKind::LimitDiffers(limit) => AcquireError::LimitDiffers(limit),
            RefusalKind::ModeDiffers(mode) => AcquireError::ModeDiffers(mode),
            RefusalKind::Split | RefusalKind::NoQuorum | RefusalKind::TooSlow => {
                AcquireError::NoQuorum(self.no_quorum(refusal.granted, refusal.nodes))
            }
            RefusalKind::Held => {
                let held = self.held_refusal(params, refusal);
                match waited {
                    true => AcquireError::WaitTimeout { held, waited: self.now().since(started), position: 1 },
                    false => AcquireError::Held(held),
                }
            }
        }
    }

    /// The error of a request that did not ask for the lease, since others of this instance are before it; with the
    /// position at which its wait ended, if it waited.
    fn held_or_no_quorum(
        &self,
        params: &AcquireParams,
        inspected: Vec<InspectionResult>,
        position: Option<usize>,
        started: BootTime,
    ) -> AcquireError {
        let mut known = Vec::with_capacity(inspected.len());
        for (resource, inspected) in params.resources.iter().zip(inspected) {
            match inspected {
                Ok(inspected) => known.push(self.inspection(resource, inspected)),
                Err(answers) => return AcquireError::NoQuorum(self.no_quorum(0, self.engine().outcomes(&answers))),
            }
        }
        let Some(held) = self.held_by_others(params, known) else {
            return AcquireError::NoQuorum(self.no_quorum(0, Vec::new()));
        };
        match position {
            Some(position) => AcquireError::WaitTimeout { held, waited: self.now().since(started), position },
            None => AcquireError::Held(held),
        }
    }

    /// The error with the holders that an inspection showed. It keeps the earliest time of a free quorum.
    fn with_holders(
        &self,
        params: &AcquireParams,
        mut error: AcquireError,
        inspection: Option<Inspection>,
    ) -> AcquireError {
        let (AcquireError::Held(held) | AcquireError::WaitTimeout { held, .. }) = &mut error else { return error };
        let now = inspection.and_then(|inspection| self.held_by_others(params, vec![inspection]));
        if let Some(now) = now.filter(|now| !now.holders.is_empty()) {
            (held.reason, held.holders) = (now.reason, now.holders);
            (held.about.all_named, held.about.ends_known) = (now.about.all_named, now.about.ends_known);
        }
        error
    }

    /// The permit that counts the waiter whose place this request may take, if there is one.
    pub fn kept_permit(
        &self,
        resources: &[ResourceName],
        principal: Option<&Principal>,
        wait_id: &WaitId,
    ) -> Option<Arc<QuotaPermit>> {
        let permit = self.shared.waiting.permit(&place_key(resources, principal, wait_id))?;
        permit.downcast().ok()
    }

    /// The labels of this token's lease, if a quorum has it.
    pub(super) async fn stored_labels(&self, resource: &ResourceName, token: &TokenHash) -> Option<Labels> {
        let inspected = self.engine().inspect(resource).await.ok()?;
        inspected.state.lease_of(token).map(|(record, _)| record.labels())
    }
}

/// Whether the nodes named no holder: another client's lock, or leases that are held together.
fn is_unnamed(refusal: &Refusal) -> bool {
    refusal.kind == RefusalKind::Held && refusal.holder.is_none() && refusal.members.is_empty()
}

/// A link of a deadlock, as pages and answers show it.
pub(super) fn cycle_edge(edge: WaitEdge) -> CycleEdge {
    CycleEdge {
        owner: edge.party.owner().to_owned(),
        waits_for: edge.resource,
        held_by: edge.holder.party.owner().to_owned(),
        token_id: edge.holder.token.id(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::auth::access_rule::AccessRules;
    use crate::auth::principal::{PrincipalLimits, PrincipalName};

    #[test]
    fn a_principal_has_one_tag_in_a_cluster_and_another_elsewhere() {
        let principal = |name: &str| Principal {
            name: PrincipalName::parse(name).expect("valid"),
            keys: Vec::new(),
            certificates: Vec::new(),
            tokens: Vec::new(),
            rules: AccessRules::default(),
            limits: PrincipalLimits::default(),
        };
        let tag = |cluster, name| principal_tag(cluster, Some(&principal(name)));
        assert_eq!(tag("main", "ci"), tag("main", "ci"));
        assert_eq!(tag("main", "ci").len(), 2 * PRINCIPAL_TAG_BYTES);
        assert!(tag("main", "ci") != tag("main", "ann") && tag("main", "ci") != tag("other", "ci"));
        assert_eq!(principal_tag("main", None), "");
    }
}
