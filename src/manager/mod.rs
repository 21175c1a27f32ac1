//! The lock manager: what the doors call. It draws tokens, seats waiters, asks the algorithm, and
//! says in domain words what came of it. Knows no HTTP.

pub mod events;
pub mod holds;
mod house;
pub mod leases;
pub mod outcome;
mod report;
mod turn;
pub mod waiters;
mod wakeups;

use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use tokio_util::sync::CancellationToken;

use crate::redlock::acquire::{Grant, Refusal, RefusalKind, Want};
use crate::redlock::clock::{BootTime, Clock};
use crate::redlock::engine::Redlock;
use crate::redlock::entropy::Entropy;
use crate::redlock::extend::{ExtendRefusal, Extension};
use crate::redlock::feed::LeaseTag;
use crate::redlock::inspect::ViewedLock;
use crate::redlock::node::{EndReason, Node};
use crate::redlock::quarantine::Warden;
use crate::redlock::release::ReleaseOutcome;
use crate::redlock::types::{Labels, ResourceName, Token, TokenHash};
use events::{EventHub, EventKind, of_lease};
use holds::Holds;
use leases::{OwnLeases, Snapshots};
use outcome::*;
use waiters::{WaitLimits, WaitingRoom};
use wakeups::Wakeups;

/// Who queues, who holds, and the nodes behind it. Cheap to clone.
pub struct LockManager<N, C, E> {
    shared: Arc<Shared<N, C, E>>,
}

impl<N, C, E> Clone for LockManager<N, C, E> {
    fn clone(&self) -> Self {
        Self { shared: Arc::clone(&self.shared) }
    }
}

struct Shared<N, C, E> {
    engine: Redlock<N, C, E>,
    warden: Warden<N, C, E>,
    room: WaitingRoom,
    wakeups: Wakeups,
    holds: Arc<Holds>,
    events: Arc<EventHub>,
    own: OwnLeases,
    snapshots: Snapshots,
    marks: Mutex<Marks>,
    ends: OnceLock<EndObserver>,
    draining: CancellationToken,
}

/// Told of the end of leases that this instance knew: how, and how long it was promised here. Called
/// on the path of releases and, for leases that lapse, under a lock: it must be cheap and never wait.
pub type EndObserver = Box<dyn Fn(LeaseEnd, Duration) + Send + Sync>;

/// What house-keeping measures once a second, so that a scrape need not.
#[derive(Debug, Clone, Copy, Default)]
struct Marks {
    longest_held_since: Option<BootTime>,
    longest_wait_since: Option<BootTime>,
    clock_jumps: Duration,
}

/// A grant that has not been answered yet. Dropped without [`Granted::keep`], it is undone on all
/// nodes in the background: that is what happens when the caller hangs up.
pub struct Granted<N: Node, C: Clock, E: Entropy> {
    /// Read it to prepare the answer.
    pub lease: Lease,
    grant: Option<Grant<N, C, E>>,
    manager: LockManager<N, C, E>,
}

impl<N: Node, C: Clock, E: Entropy> Drop for Granted<N, C, E> {
    fn drop(&mut self) {
        if let Some(grant) = self.grant.take() {
            // First the undoing is sent on its way, then those who wait here hear of it.
            drop(grant);
            self.manager.shared.room.maybe_freed(&self.lease.resource);
        }
    }
}

impl<N: Node, C: Clock, E: Entropy> Granted<N, C, E> {
    /// Takes responsibility for the lease: call it as the last thing before the answer is written.
    ///
    /// Errors: [`AcquireError::NoQuorum`] where less than the least validity is left; the lease is
    /// undone.
    pub fn keep(mut self) -> Result<Lease, AcquireError> {
        let granted = self.lease.quorum.granted;
        match self.grant.take().map(Grant::keep) {
            Some(Ok(())) => {
                let (manager, lease) = (&self.manager, &self.lease);
                let hash = lease.token.hash();
                manager.note_own(&hash, &lease.resource, lease.deadline);
                if !lease.replay {
                    manager.shared.events.tell(EventKind::Acquired, manager.wall_ms(), |event| {
                        of_lease(event, &lease.resource, &hash);
                        event.owner = Some(lease.labels.owner.clone()).filter(|o| !o.is_empty());
                        event.fence = Some(lease.fence.0);
                        event.valid_for_ms = u64::try_from(lease.deadline.since(manager.now()).as_millis()).ok();
                    });
                }
                Ok(lease.clone())
            }
            _ => {
                self.manager.shared.room.maybe_freed(&self.lease.resource);
                Err(AcquireError::NoQuorum(self.manager.no_quorum(granted, Vec::new())))
            }
        }
    }
}

/// Numbers of this instance, for metrics.
#[derive(Debug, Clone, Copy, Default)]
pub struct Gauges {
    /// Leases granted or extended here that are still running, to the second.
    pub leases_held: usize,
    /// Connections that hold a lease here.
    pub holds: usize,
    /// Listeners to events.
    pub listeners: usize,
    /// Bound of `listeners`.
    pub listeners_limit: usize,
    /// How long the oldest of these leases has been promised here, to the second.
    pub longest_held: Duration,
    /// How long the oldest waiter waits, to the second.
    pub longest_wait: Duration,
    /// By how much this machine's wall clock has jumped against its monotonic one, in all.
    pub clock_jumps: Duration,
    /// Requests that queue here.
    pub waiters: usize,
    /// Bound of `waiters`.
    pub waiters_limit: usize,
    /// Clean-ups and repairs under way.
    pub cleanups: usize,
    /// Clean-ups left to the TTL because too many were under way.
    pub skipped_cleanups: u64,
    /// Nodes found without a lease that an extend had just confirmed.
    pub under_replicated: u64,
    /// Leases put back on such nodes.
    pub repaired: u64,
}

impl<N: Node, C: Clock, E: Entropy> LockManager<N, C, E> {
    /// A manager over an engine and its warden.
    pub fn new(engine: Redlock<N, C, E>, warden: Warden<N, C, E>, limits: WaitLimits, list_refresh: Duration) -> Self {
        let (room, holds) = (WaitingRoom::new(limits), Arc::new(Holds::default()));
        let events = Arc::new(EventHub::new(engine.entropy.bits()));
        let wakeups = Wakeups::new(&engine.nodes, room.clone(), Arc::clone(&holds), Arc::clone(&events));
        events.attach(wakeups.feeds().cloned().collect());
        let shared = Shared {
            wakeups,
            holds,
            events,
            engine,
            warden,
            room,
            own: OwnLeases::default(),
            snapshots: Snapshots::new(list_refresh),
            marks: Mutex::default(),
            ends: OnceLock::new(),
            draining: CancellationToken::new(),
        };
        Self { shared: Arc::new(shared) }
    }

    /// Has somebody told of the ends of leases. Only the first call counts.
    pub fn observe_ends(&self, observer: EndObserver) {
        let _ = self.shared.ends.set(observer);
    }

    /// A lease that was promised here since `since` has ended now.
    fn tell_end_of(&self, since: Option<BootTime>, how: LeaseEnd) {
        if let (Some(since), Some(observer)) = (since, self.shared.ends.get()) {
            observer(how, self.now().since(since));
        }
    }

    /// Acquires, queueing for at most `request.wait`.
    ///
    /// Cancel (drop): the place in the queue is given up at once; whatever was or may have been
    /// acquired is released in the background.
    pub async fn acquire(&self, request: AcquireRequest) -> Result<Granted<N, C, E>, AcquireError> {
        let draining = self.shared.draining.clone();
        if draining.is_cancelled() {
            return Err(AcquireError::Draining);
        }
        let started = self.now();
        let until = started.plus(request.wait);
        let token = request.token.clone().unwrap_or_else(|| self.entropy().token());
        let mut labels = request.labels;
        labels.acquired_at_ms = self.wall_ms();
        let want = Want { resource: request.resource, token: token.hash(), ttl: request.ttl, labels: labels.encode() };
        let replay = request.token.is_some();
        let outcome = tokio::select! {
            biased;
            () = draining.cancelled() => Err(AcquireError::Draining),
            outcome = self.acquire_in_turn(&want, &labels.owner, replay, started, until) => outcome,
        };
        let grant = outcome?;
        if grant.joined
            && let Some(stored) = self.stored_labels(&want.resource, &want.token).await
        {
            labels = stored;
        }
        let lease = Lease {
            resource: want.resource,
            token,
            fence: grant.fence,
            labels,
            ttl: want.ttl,
            deadline: grant.deadline,
            replay: grant.joined,
            waited: self.now().since(started),
            quorum: self.count(grant.granted),
        };
        Ok(Granted { lease, grant: Some(grant), manager: self.clone() })
    }

    /// A promise was given here. Where somebody listens, its end is to be told.
    fn note_own(&self, token: &TokenHash, resource: &ResourceName, deadline: BootTime) {
        let named = self.shared.events.is_heard().then_some(resource);
        self.shared.own.note(token, deadline, self.now(), named);
    }

    fn acquire_error(&self, want: &Want, refusal: Refusal, waited: bool, started: BootTime) -> AcquireError {
        match refusal.kind {
            RefusalKind::Ended(reason) => AcquireError::Ended(reason),
            RefusalKind::TooManyClaims => AcquireError::TooManyReplays,
            RefusalKind::Split | RefusalKind::NoQuorum | RefusalKind::TooSlow => {
                AcquireError::NoQuorum(self.no_quorum(refusal.granted, refusal.nodes))
            }
            RefusalKind::Held => {
                let mut locked = self.locked(&want.resource, refusal);
                // It still has its seat, but does not wait any more.
                locked.waiting = locked.waiting.saturating_sub(usize::from(waited));
                match waited {
                    true => AcquireError::WaitTimeout { locked, waited: self.now().since(started), position: 1 },
                    false => AcquireError::Locked(locked),
                }
            }
        }
    }

    async fn holds(&self, resource: &ResourceName, token: &TokenHash) -> bool {
        self.stored_labels(resource, token).await.is_some()
    }

    /// The labels of the lease, where it is this token's.
    async fn stored_labels(&self, resource: &ResourceName, token: &TokenHash) -> Option<Labels> {
        match self.engine().inspect(resource).await.ok()?.lock {
            ViewedLock::Lease { record, .. } if record.token == *token => Some(record.labels()),
            _ => None,
        }
    }

    /// More time, or other labels, for a lease that is still there.
    ///
    /// Cancel (drop): it may or may not have taken effect; the old deadline stands.
    pub async fn extend(&self, request: ExtendRequest) -> Result<Extended, ExtendError> {
        let hash = request.token.hash();
        let labels = match request.note.is_some() || !request.metadata.is_empty() {
            true => Some(self.edited_labels(&request, &hash).await?),
            false => None,
        };
        let extension = Extension {
            resource: request.resource.clone(),
            token: hash.clone(),
            ttl: request.ttl,
            fence: request.fence,
            labels: labels.as_ref().map(Labels::encode),
        };
        let extended = match self.engine().extend(&extension).await {
            Ok(extended) => extended,
            Err(refusal) => return Err(self.extend_error(&hash, refusal)),
        };
        self.note_own(&hash, &request.resource, extended.deadline);
        let keys_gone = extended.deadline.plus(self.engine().settings.terms.lock_delay);
        self.shared.room.taken(&request.resource, keys_gone);
        self.shared.events.tell(EventKind::Extended, self.wall_ms(), |event| {
            of_lease(event, &request.resource, &hash);
            event.fence = Some(extended.record.fence.0);
            event.valid_for_ms = u64::try_from(extended.deadline.since(self.now()).as_millis()).ok();
        });
        let lease = Lease {
            resource: request.resource,
            token: request.token,
            fence: extended.record.fence,
            labels: extended.record.labels(),
            ttl: extended.ttl,
            deadline: extended.deadline,
            replay: false,
            waited: Duration::ZERO,
            quorum: self.count(extended.granted),
        };
        Ok(Extended { lease, renewals: extended.record.renewals })
    }

    /// The labels that a quorum has, with the request's changes.
    async fn edited_labels(&self, request: &ExtendRequest, hash: &TokenHash) -> Result<Labels, ExtendError> {
        let view = self.engine().inspect(&request.resource).await.map_err(|answers| ExtendError::NoQuorum {
            no_quorum: self.no_quorum(0, self.outcomes(&answers)),
            valid_for: self.shared.own.valid_for(hash, self.now()),
        })?;
        let mut labels = match view.lock {
            ViewedLock::Lease { record, .. } if record.token == *hash => record.labels(),
            ViewedLock::Free => return Err(ExtendError::Gone(GoneReason::Unknown)),
            _ => return Err(ExtendError::NotHolder),
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
        labels.check().map_err(|(field, invalid)| ExtendError::Invalid(field, invalid.0))?;
        Ok(labels)
    }

    fn extend_error(&self, hash: &TokenHash, refusal: ExtendRefusal) -> ExtendError {
        match refusal {
            ExtendRefusal::NotHolder => ExtendError::NotHolder,
            ExtendRefusal::Changed(current) => ExtendError::Changed { current },
            ExtendRefusal::Gone(reason) => {
                let (since, reason) = (self.shared.own.forget(hash), gone(reason));
                self.tell_end_of(since, ended_by(reason));
                ExtendError::Gone(reason)
            }
            ExtendRefusal::Unknown { granted, nodes } => ExtendError::NoQuorum {
                no_quorum: self.no_quorum(granted, nodes),
                valid_for: self.shared.own.valid_for(hash, self.now()),
            },
        }
    }

    /// Gives a lease back.
    ///
    /// Cancel (drop): the release goes on in the background.
    pub async fn release(&self, resource: &ResourceName, token: &Token) -> Result<(), ReleaseError> {
        let hash = token.hash();
        match self.release_in_turn(resource, &hash, LeaseEnd::Released).await {
            ReleaseOutcome::Released => Ok(()),
            ReleaseOutcome::NotHolder => Err(ReleaseError::NotHolder),
            ReleaseOutcome::Gone(reason) => Err(ReleaseError::Gone(gone(reason))),
            ReleaseOutcome::Unknown { released, nodes } => Err(ReleaseError::NoQuorum(self.no_quorum(released, nodes))),
        }
    }

    /// Ends somebody else's lease: the one that a quorum has now, if it is the one that was meant.
    ///
    /// Cancel (drop): a forced release goes on in the background.
    pub async fn force(&self, request: ForceRequest) -> Result<Forced, ForceError> {
        let no_quorum = |answers: Vec<_>| ForceError::NoQuorum(self.no_quorum(0, self.outcomes(&answers)));
        let view = self.engine().inspect(&request.resource).await.map_err(no_quorum)?;
        let inspection = self.inspection(&request.resource, view.clone());
        let etag = inspection.etag().ok_or(ForceError::NotHeld)?;
        if request.if_match.is_some_and(|wanted| wanted != etag) {
            return Err(ForceError::Changed { current: etag });
        }
        let (ended, ended_id) = match &view.lock {
            ViewedLock::Lease { record, .. } => {
                (Some(LeaseTag::of(&record.token)), Some(record.token.id().to_string()))
            }
            _ => (None, None),
        };
        let (outcome, left) = match (view.lock, request.mode) {
            (ViewedLock::Free, _) => return Err(ForceError::NotHeld),
            (ViewedLock::Foreign { .. }, ForceMode::Revoke) => return Err(ForceError::ForeignRevoke),
            (ViewedLock::Foreign { fingerprint, .. }, ForceMode::Now) => {
                (self.engine().evict(&request.resource, fingerprint.into()).await, None)
            }
            (ViewedLock::Lease { record, .. }, ForceMode::Now) => {
                let since = self.shared.own.forget(&record.token);
                self.tell_end_of(since, LeaseEnd::Forced);
                (self.engine().release(&request.resource, &record.token, EndReason::Forced).await, None)
            }
            (ViewedLock::Lease { record, .. }, ForceMode::Revoke) => {
                match self.engine().revoke(&request.resource, &record.token).await {
                    Ok(left_ms) => (ReleaseOutcome::Released, Some(Duration::from_millis(left_ms))),
                    Err(outcome) => (outcome, None),
                }
            }
        };
        if matches!(outcome, ReleaseOutcome::Released) {
            self.shared.events.tell(EventKind::Forced, self.wall_ms(), |event| {
                event.resource = Some(request.resource.to_string());
                event.token_id = ended_id;
                event.reason = Some(if request.mode == ForceMode::Now { "now" } else { "revoke" }.to_owned());
            });
        }
        match (outcome, request.mode, left) {
            (ReleaseOutcome::Released, ForceMode::Now, _) => {
                self.shared.room.freed(&request.resource, ended);
                if let Some(lease) = ended {
                    self.shared.holds.stir(lease);
                }
                Ok(Forced::Freed)
            }
            (ReleaseOutcome::Released, ForceMode::Revoke, Some(left)) => Ok(Forced::FreesIn(left)),
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

    /// What happens, for those who listen.
    pub fn events(&self) -> &Arc<EventHub> {
        &self.shared.events
    }

    /// Cancelled when the drain begins.
    pub fn draining(&self) -> CancellationToken {
        self.shared.draining.clone()
    }

    /// From now on waiters and new acquires get [`AcquireError::Draining`].
    pub fn drain(&self) {
        self.shared.draining.cancel();
    }

    /// The boot clock.
    pub fn now(&self) -> BootTime {
        self.clock().now()
    }

    /// The wall clock, for display. Milliseconds since 1970.
    pub fn wall_ms(&self) -> u64 {
        self.clock().wall_ms()
    }

    /// The algorithm underneath.
    pub fn engine(&self) -> &Redlock<N, C, E> {
        &self.shared.engine
    }

    fn clock(&self) -> &C {
        &self.engine().clock
    }

    fn entropy(&self) -> &E {
        &self.engine().entropy
    }
}

fn ended_by(reason: GoneReason) -> LeaseEnd {
    match reason {
        GoneReason::Released => LeaseEnd::Released,
        GoneReason::Forced => LeaseEnd::Forced,
        GoneReason::Expired | GoneReason::Unknown => LeaseEnd::Lapsed,
    }
}

fn gone(reason: Option<EndReason>) -> GoneReason {
    match reason {
        None | Some(EndReason::Cancelled) => GoneReason::Expired,
        Some(EndReason::Released) => GoneReason::Released,
        Some(EndReason::Forced | EndReason::Revoked) => GoneReason::Forced,
    }
}
