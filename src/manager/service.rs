//! The lock manager itself: what it is made of, the acquire, and the grant that is undone when it is
//! dropped. What is done to a lease that is there stands in `change`, what is only told in `report`,
//! the queue at work in `turn`. Knows no HTTP.

use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;

use super::events::{EventHub, EventKind, set_lease};
use super::latency::LatencySeries;
use super::leases::{OwnLeases, Snapshots};
use super::queue::{CONCURRENT_ATTEMPTS_MAX, WaitLimits, WaitQueues};
use super::renewal::HeldLeases;
use super::subscriptions::Wakeups;
use super::types::*;
use crate::mutant::{self, Mutant};
use crate::redlock::acquire::{AcquireParams, Grant, Refusal, RefusalKind};
use crate::redlock::clock::{BootTime, Clock};
use crate::redlock::engine::Redlock;
use crate::redlock::entropy::Entropy;
use crate::redlock::inspect::ResourceState;
use crate::redlock::monitor::NodeMonitor;
use crate::redlock::node::Node;
use crate::types::{Labels, ResourceName, TokenHash};

/// Who queues, who holds, and the nodes behind it. Cheap to clone.
pub struct LockManager<N, C, E> {
    pub(super) shared: Arc<Shared<N, C, E>>,
}

impl<N, C, E> Clone for LockManager<N, C, E> {
    fn clone(&self) -> Self {
        Self { shared: Arc::clone(&self.shared) }
    }
}

/// What all clones of a manager share.
pub(super) struct Shared<N, C, E> {
    pub(super) engine: Redlock<N, C, E>,
    pub(super) warden: NodeMonitor<N, C, E>,
    pub(super) room: WaitQueues,
    /// Waiters that ask the nodes: see [`CONCURRENT_ATTEMPTS_MAX`].
    pub(super) asking: Semaphore,
    pub(super) wakeups: Wakeups,
    pub(super) holds: Arc<HeldLeases>,
    pub(super) events: Arc<EventHub>,
    pub(super) own: OwnLeases,
    pub(super) snapshots: Snapshots,
    pub(super) rounds: LatencySeries,
    pub(super) marks: Mutex<Marks>,
    pub(super) ends: OnceLock<EndObserver>,
    pub(super) draining: CancellationToken,
}

/// Told of the end of leases that this instance knew: how, and how long it was promised here. Called
/// on the path of releases and, for leases that lapse, under a lock: it must be cheap and never wait.
pub type EndObserver = Box<dyn Fn(LeaseOutcome, Duration) + Send + Sync>;

/// What house-keeping measures once a second, so that a scrape need not.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Marks {
    pub(super) longest_held_since: Option<BootTime>,
    pub(super) longest_wait_since: Option<BootTime>,
    pub(super) clock_jumps: Duration,
}

/// A grant that has not been answered yet. Dropped without [`PendingGrant::commit`], it is undone on all
/// nodes in the background: that is what happens when the caller hangs up.
pub struct PendingGrant<N: Node, C: Clock, E: Entropy> {
    /// Read it to prepare the answer.
    pub lease: GrantedLease,
    grant: Option<Grant<N, C, E>>,
    manager: LockManager<N, C, E>,
}

impl<N: Node, C: Clock, E: Entropy> Drop for PendingGrant<N, C, E> {
    fn drop(&mut self) {
        if let Some(grant) = self.grant.take() {
            if mutant::is(Mutant::GrantUnanswered) {
                let _ = grant.keep();
                return;
            }
            // First the undoing is sent on its way, then those who wait here hear of it.
            drop(grant);
            self.manager.shared.room.maybe_freed(&self.lease.resource);
        }
    }
}

impl<N: Node, C: Clock, E: Entropy> PendingGrant<N, C, E> {
    /// Takes responsibility for the lease: call it as the last thing before the answer is written.
    ///
    /// Errors: [`AcquireError::NoQuorum`] where less than the least validity is left; the lease is
    /// undone.
    pub fn commit(mut self) -> Result<GrantedLease, AcquireError> {
        let granted = self.lease.quorum.granted;
        match self.grant.take().map(Grant::keep) {
            Some(Ok(())) => {
                let (manager, lease) = (&self.manager, &self.lease);
                let hash = lease.token.hash();
                manager.note_own(&hash, &lease.resource, lease.deadline);
                if !lease.replay {
                    manager.shared.events.publish(EventKind::Acquired, manager.wall_ms(), |event| {
                        set_lease(event, &lease.resource, &hash);
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
    pub holding_connections: usize,
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
    pub fn new(
        engine: Redlock<N, C, E>,
        warden: NodeMonitor<N, C, E>,
        limits: WaitLimits,
        list_refresh: Duration,
    ) -> Self {
        let (room, holds) = (WaitQueues::new(limits), Arc::new(HeldLeases::default()));
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
            asking: Semaphore::new(CONCURRENT_ATTEMPTS_MAX),
            own: OwnLeases::default(),
            snapshots: Snapshots::new(list_refresh),
            rounds: LatencySeries::default(),
            marks: Mutex::default(),
            ends: OnceLock::new(),
            draining: CancellationToken::new(),
        };
        Self { shared: Arc::new(shared) }
    }

    /// Has somebody told of the ends of leases. Only the first call counts.
    pub fn observe_lease_ends(&self, observer: EndObserver) {
        let _ = self.shared.ends.set(observer);
    }

    /// A lease that was promised here since `since` has ended now.
    pub(super) fn tell_end_of(&self, since: Option<BootTime>, how: LeaseOutcome) {
        if let (Some(since), Some(observer)) = (since, self.shared.ends.get()) {
            observer(how, self.now().since(since));
        }
    }

    /// Acquires, queueing for at most `request.wait`.
    ///
    /// Cancel (drop): the place in the queue is given up at once; whatever was or may have been
    /// acquired is released in the background.
    pub async fn acquire(&self, request: AcquireRequest) -> Result<PendingGrant<N, C, E>, AcquireError> {
        let draining = self.shared.draining.clone();
        if draining.is_cancelled() {
            return Err(AcquireError::Draining);
        }
        let started = self.now();
        let until = started.plus(request.wait);
        let token = request.token.clone().unwrap_or_else(|| self.entropy().token());
        let mut labels = request.labels;
        labels.acquired_at_ms = self.wall_ms();
        let want = AcquireParams {
            resource: request.resource,
            token: token.hash(),
            ttl: request.ttl,
            labels: labels.encode(),
        };
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
        let lease = GrantedLease {
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
        Ok(PendingGrant { lease, grant: Some(grant), manager: self.clone() })
    }

    /// A promise was given here, and its end is to be told.
    pub(super) fn note_own(&self, token: &TokenHash, resource: &ResourceName, deadline: BootTime) {
        self.shared.own.note(token, deadline, self.now(), resource);
    }

    /// A quorum decided, one way or the other.
    pub(super) fn round_took(&self, begun: BootTime) {
        let now = self.now();
        self.shared.rounds.record_success(now, now.since(begun));
    }

    pub(super) fn acquire_error(
        &self,
        want: &AcquireParams,
        refusal: Refusal,
        waited: bool,
        started: BootTime,
    ) -> AcquireError {
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
                    true => AcquireError::WaitTimeout { held: locked, waited: self.now().since(started), position: 1 },
                    false => AcquireError::Held(locked),
                }
            }
        }
    }

    pub(super) async fn holds(&self, resource: &ResourceName, token: &TokenHash) -> bool {
        self.stored_labels(resource, token).await.is_some()
    }

    /// The labels of the lease, where it is this token's.
    pub(super) async fn stored_labels(&self, resource: &ResourceName, token: &TokenHash) -> Option<Labels> {
        match self.engine().inspect(resource).await.ok()?.state {
            ResourceState::Lease { record, .. } if record.token == *token => Some(record.labels()),
            _ => None,
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

    pub(super) fn clock(&self) -> &C {
        &self.engine().clock
    }

    pub(super) fn entropy(&self) -> &E {
        &self.engine().entropy
    }
}
