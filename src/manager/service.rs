//! The lock manager: its parts, the acquire, and the grant that is undone when it is dropped. Changes to leases: `lease_changes`.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

use parking_lot::Mutex;
use tokio_util::sync::CancellationToken;

use super::acquire::{Wanted, cycle_edge, place_key, tag_of};
use super::cluster_waiters::ClusterWaiters;
use super::deadlock_reports::Deadlocks;
use super::events::EventHub;
use super::granted_lease::Asked;
use super::hold_renewal::HeldLeases;
use super::incidents::{IncidentTracker, Moment};
use super::kept_leases::{KeepLimits, KeptListener};
use super::latency::{NodeLatencies, RoundLatencies};
use super::own_leases::{OwnEnd, OwnLeases};
use super::snapshot_cache::{ClusterLeases, Snapshots};
use super::standstills::Standstills;
use super::tickets::table::TicketTable;
use super::types::*;
use crate::mutant::{self, Mutant};
use crate::protocol::{InstanceName, LeaseRecord, TokenUse};
use crate::redlock::acquire::{AcquireParams, Grant};
use crate::redlock::clock::{BootTime, Clock};
use crate::redlock::engine::Redlock;
use crate::redlock::kept_lease_renewal::Keeper;
use crate::redlock::monitor::NodeMonitor;
use crate::redlock::node::Node;
use crate::redlock::notifications::NotificationHandler;
use crate::redlock::random::Entropy;
use crate::types::ResourceName;
use crate::waiting::deadlock::Party;
use crate::waiting::driver::WaitDriver;
use crate::waiting::event::WaitLimits;
use crate::waiting::kept_places;

/// The waiters, the leases and the nodes of one instance. Cheap to clone.
pub struct LockManager<N, C, E> {
    pub(super) shared: Arc<ManagerState<N, C, E>>,
}

impl<N, C, E> Clone for LockManager<N, C, E> {
    fn clone(&self) -> Self {
        Self { shared: Arc::clone(&self.shared) }
    }
}

/// What all clones of a manager share.
pub(super) struct ManagerState<N, C, E> {
    pub(super) engine: Redlock<N, C, E>,
    pub(super) monitor: NodeMonitor<N, C, E>,
    pub(super) waiting: WaitDriver<N, C, E>,
    /// The name of this run of the instance.
    pub(super) instance: InstanceName,
    pub(super) cluster_waiters: ClusterWaiters,
    pub(super) deadlocks: Arc<Deadlocks>,
    pub(super) held_leases: Arc<HeldLeases>,
    pub(super) keeper: Keeper<N, C, E>,
    pub(super) keeping: OnceLock<(KeepLimits, KeptListener)>,
    pub(super) tickets: TicketTable,
    pub(super) events: Arc<EventHub>,
    pub(super) own_leases: OwnLeases,
    pub(super) snapshots: Snapshots,
    pub(super) round_latency: RoundLatencies,
    pub(super) node_latencies: OnceLock<Arc<NodeLatencies>>,
    pub(super) incidents: IncidentTracker,
    pub(super) samples: Mutex<GaugeSamples>,
    pub(super) standstills: Standstills,
    pub(super) end_observer: OnceLock<LeaseEndObserver>,
    pub(super) draining: CancellationToken,
    /// Whether a stop has begun: the instance is not ready, but still serves.
    pub(super) is_leaving: AtomicBool,
}

/// Called when a lease of this instance ends, with how it ended and for how long this instance promised it. Called
/// during releases and, for leases that lapse, under a lock: it must be cheap and never wait.
pub type LeaseEndObserver = Box<dyn Fn(LeaseOutcome, Duration) + Send + Sync>;

/// Values that maintenance measures once a second, so that a scrape only reads them.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct GaugeSamples {
    pub(super) longest_wait_since: Option<BootTime>,
    /// When the oldest waiter that is a ticket began to wait.
    pub(super) longest_ticket_since: Option<BootTime>,
    pub(super) clock_jumps: Duration,
}

/// A grant whose answer has not been written yet. When dropped without [`PendingGrant::commit`], for example because
/// the client disconnects, it is undone on all nodes in the background.
pub struct PendingGrant<N: Node, C: Clock, E: Entropy> {
    /// The lease, to prepare the answer.
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
            // The cancel is sent first, so that requests of a waiter here arrive after it.
            drop(grant);
            self.manager.shared.waiting.lease_may_have_ended(&self.lease.resource);
        }
    }
}

impl<N: Node, C: Clock, E: Entropy> PendingGrant<N, C, E> {
    /// Keeps the lease. Must be the last call before the answer is written.
    ///
    /// Errors: [`AcquireError::NoQuorum`] if less than the minimum validity is left; the lease is undone.
    pub fn commit(mut self) -> Result<GrantedLease, AcquireError> {
        let granted = self.lease.quorum.granted;
        match self.grant.take().map(Grant::keep) {
            Some(Ok(())) => {
                self.manager.record_grant(&self.lease);
                Ok(self.lease.clone())
            }
            _ => {
                self.manager.shared.waiting.lease_may_have_ended(&self.lease.resource);
                Err(AcquireError::NoQuorum(self.manager.no_quorum(granted, Vec::new())))
            }
        }
    }
}

/// Counts of this instance, for metrics.
#[derive(Debug, Clone, Copy, Default)]
pub struct Gauges {
    /// How long rounds wait for a node's answer.
    pub node_timeout: Duration,
    /// The leases of the whole cluster as of the last reading; `None` before the first.
    pub cluster_leases: Option<ClusterLeases>,
    /// Leases that this instance keeps.
    pub kept: usize,
    /// Tickets that this instance serves, by state.
    pub tickets: [usize; 5],
    /// Connections that hold a lease here.
    pub holding_connections: usize,
    /// Event streams that are open here.
    pub listeners: usize,
    /// Maximum of `listeners`.
    pub listeners_limit: usize,
    /// How long the oldest request that is not a ticket has waited, to the second.
    pub longest_wait: Duration,
    /// How long the oldest ticket has waited here, to the second.
    pub longest_ticket_wait: Duration,
    /// Sum of the jumps of this machine's wall clock against its monotonic clock.
    pub clock_jumps: Duration,
    /// Requests that wait here.
    pub waiters: usize,
    /// Maximum of `waiters`.
    pub waiters_limit: usize,
    /// Requests that wait at any instance, as far as this instance knows.
    pub cluster_waiters: usize,
    /// How long the oldest of these has waited, to the second.
    pub cluster_longest_wait: Duration,
    /// Whether the waiters of all other instances are known.
    pub cluster_waiters_known: bool,
    /// Deadlocks whose newest request continues to wait.
    pub deadlocks_reported: u64,
    /// Deadlocks whose newest request was refused.
    pub deadlocks_refused: u64,
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
    /// A manager over an engine and its node monitor. `list_refresh`: minimum age at which the snapshot of all leases
    /// is taken again.
    pub fn new(
        engine: Redlock<N, C, E>,
        monitor: NodeMonitor<N, C, E>,
        limits: WaitLimits,
        list_refresh: Duration,
    ) -> Self {
        let start = Moment { now: engine.clock.now(), wall_ms: engine.clock.wall_ms() };
        let held_leases = Arc::new(HeldLeases::default());
        let instance = InstanceName::from_random(engine.entropy.bits());
        let events = Arc::new(EventHub::new(&instance));
        let party_of = Box::new(|record: &LeaseRecord| {
            let labels = record.labels();
            Party::new(&labels.principal, &labels.owner)
        });
        let waiting = WaitDriver::new(engine.clone(), limits, party_of);
        follow_channels(&waiting, &held_leases, &events);
        let deadlocks = Arc::new(Deadlocks::default());
        let (found, reports, clock) = (Arc::clone(&deadlocks), Arc::clone(&events), engine.clock.clone());
        waiting.observe_deadlocks(Box::new(move |cycle| {
            let waiters = cycle.iter().map(|edge| edge.waiter).collect();
            let cycle = cycle.iter().cloned().map(cycle_edge).collect();
            found.report(cycle, waiters, clock.now(), clock.wall_ms(), &reports);
        }));
        let shared = ManagerState {
            waiting,
            held_leases,
            keeper: Keeper::new(engine.clone()),
            keeping: OnceLock::new(),
            tickets: TicketTable::default(),
            events,
            engine,
            monitor,
            instance,
            cluster_waiters: ClusterWaiters::default(),
            deadlocks,
            own_leases: OwnLeases::default(),
            snapshots: Snapshots::new(list_refresh),
            round_latency: RoundLatencies::default(),
            node_latencies: OnceLock::new(),
            incidents: IncidentTracker::new(start),
            samples: Mutex::default(),
            standstills: Standstills::default(),
            end_observer: OnceLock::new(),
            draining: CancellationToken::new(),
            is_leaving: AtomicBool::new(false),
        };
        Self { shared: Arc::new(shared) }
    }

    /// Sets the function that is called when leases end. Only the first call counts.
    pub fn observe_lease_ends(&self, observer: LeaseEndObserver) {
        let _ = self.shared.end_observer.set(observer);
    }

    /// Sets the series in which the calls to the nodes are counted. Only the first call counts.
    pub fn count_calls_in(&self, latencies: &Arc<NodeLatencies>) {
        let _ = self.shared.node_latencies.set(Arc::clone(latencies));
    }

    /// Reports that a lease of this instance has ended now. Returns for how long it was held, if it was one of this instance.
    pub(super) fn report_lease_end(
        &self,
        end: Option<&OwnEnd>,
        outcome: LeaseOutcome,
        now: BootTime,
    ) -> Option<Duration> {
        let held = now.since(end?.since);
        if let Some(observer) = self.shared.end_observer.get() {
            observer(outcome, held);
        }
        Some(held)
    }

    /// Acquires, waiting for at most `request.wait`.
    ///
    /// Cancel (drop): the request leaves the queue at once, unless it keeps its place; leases that were or may have
    /// been acquired are released in the background.
    pub async fn acquire(&self, request: AcquireRequest) -> Result<PendingGrant<N, C, E>, AcquireError> {
        let kept_for = request.kept_for;
        let mut asked = self.ask([request.resource.clone()].into(), request).await?;
        let mut labels = self.labels_of(&asked, 0).await;
        if kept_for.is_some() {
            asked.grant.spread().await;
        }
        let Asked { params, grant, .. } = &asked;
        if let Some(kept_for) = kept_for.filter(|_| labels.kept_until_ms == 0)
            && !Box::pin(self.begin_keeping(
                (&params.resources[0], &params.token),
                grant.fence(),
                &mut labels,
                kept_for,
            ))
            .await
        {
            return Err(AcquireError::NoQuorum(self.no_quorum(grant.granted, Vec::new())));
        }
        let lease = self.granted_lease(&asked, 0, labels);
        Ok(PendingGrant { lease, grant: Some(asked.grant), manager: self.clone() })
    }

    /// Asks for the leases of these resources, waiting for at most `request.wait`; `request.resource` is one of them.
    ///
    /// Cancel: as [`Self::acquire`].
    pub(super) async fn ask(
        &self,
        resources: Arc<[ResourceName]>,
        request: AcquireRequest,
    ) -> Result<Asked<N, C, E>, AcquireError> {
        let draining = &self.shared.draining;
        if draining.is_cancelled() {
            return Err(AcquireError::Draining { wait_id: request.keep.map(|keep| keep.wait_id) });
        }
        let started = self.now();
        let (until, is_ready_to_wait) = (started.plus(request.wait), !request.wait.is_zero());
        let token = request.token.clone().unwrap_or_else(|| self.entropy().token());
        let mut labels = request.labels;
        if let Some(principal) = &request.principal {
            labels.principal = tag_of(&self.engine().settings.params.cluster.get(), &principal.name);
        }
        if request.kept_for.is_some() {
            self.check_kept_total(resources.len()).map_err(AcquireError::TooManyKept)?;
        }
        let (mode, ttl, kept_for) = (request.mode, request.ttl, request.kept_for);
        let token_use = if request.token.is_some() { TokenUse::Again } else { TokenUse::First };
        let params = AcquireParams { resources, token: token.hash(), ttl, mode, labels, token_use };
        let wait_id = request.keep.as_ref().map(|keep| keep.wait_id.clone());
        let keep = request.keep.map(|keep| {
            let key = place_key(&params.resources, request.principal.as_deref(), &keep.wait_id);
            Box::new(kept_places::PlaceRequest {
                waited: self.shared.cluster_waiters.waited_for(&key, started),
                key,
                terms: kept_places::Terms {
                    mode: params.mode,
                    ttl: params.ttl,
                    labels: params.labels.clone(),
                    token: request.token.as_ref().map(|_| params.token.clone()),
                    refuses_deadlock: request.refuses_deadlock,
                    kept_for,
                },
                permit: keep.permit.map(|permit| permit as kept_places::Permit),
            })
        });
        let party = Party::new(&params.labels.principal, &params.labels.owner);
        let (has_own_token, refuses_deadlock) = (request.token.is_some(), request.refuses_deadlock);
        let (principal, is_ticket) = (request.principal, false);
        let wanted = Wanted { keep, party, has_own_token, refuses_deadlock, principal, is_ticket };
        let acquired = self.acquire_or_wait(&params, wanted, started, until);
        let outcome = match is_ready_to_wait {
            // One round: it may finish although the drain has begun.
            false => acquired.await,
            true => tokio::select! {
                biased;
                () = draining.cancelled() => Err(AcquireError::Draining { wait_id }),
                outcome = acquired => outcome,
            },
        };
        let waited = self.now().since(started);
        for resource in params.resources.iter() {
            self.record_acquire((resource, params.labels.owner.as_str()), &outcome, is_ready_to_wait, waited);
        }
        if let Err(AcquireError::Deadlock { cycle, .. }) = &outcome {
            self.shared.deadlocks.refuse(cycle, self.wall_ms(), &self.shared.events);
        }
        Ok(Asked { params, token, grant: outcome?, waited })
    }

    /// The events of the cluster.
    pub fn events(&self) -> &Arc<EventHub> {
        &self.shared.events
    }

    /// Cancelled when the drain begins.
    pub fn draining(&self) -> CancellationToken {
        self.shared.draining.clone()
    }

    /// Makes the instance not ready, so that balancers stop sending requests; it still serves requests that come.
    pub fn leave(&self) {
        self.shared.is_leaving.store(true, Ordering::Relaxed);
    }

    /// Whether a stop has begun.
    pub fn is_stopping(&self) -> bool {
        self.shared.is_leaving.load(Ordering::Relaxed) || self.shared.draining.is_cancelled()
    }

    /// From now on waiters and new acquires are answered with [`AcquireError::Draining`].
    pub fn drain(&self) {
        self.shared.draining.cancel();
    }

    /// Both clocks, read now.
    pub(super) fn moment(&self) -> Moment {
        Moment { now: self.now(), wall_ms: self.wall_ms() }
    }

    /// The time on the boot clock.
    pub fn now(&self) -> BootTime {
        self.clock().now()
    }

    /// The wall clock, for display. Milliseconds since 1970.
    pub fn wall_ms(&self) -> u64 {
        self.clock().wall_ms()
    }

    /// The Redlock core.
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

#[cfg(test)]
#[path = "waiting_tests.rs"]
mod waiting_tests;

/// Receives notices and events of all nodes, including nodes that are added later.
fn follow_channels<N: Node, C: Clock, E: Entropy>(
    waiting: &WaitDriver<N, C, E>,
    held_leases: &Arc<HeldLeases>,
    events: &Arc<EventHub>,
) {
    let (driver, leases, hub) = (waiting.downgrade(), Arc::downgrade(held_leases), Arc::downgrade(events));
    let known = Mutex::new(0);
    let follow = move || {
        let (Some(driver), Some(hub)) = (driver.upgrade(), hub.upgrade()) else { return };
        let (channels, mut known) = (driver.channels(), known.lock());
        for (node, channel) in channels.iter().enumerate().skip(*known) {
            channel.add_handler(node, Weak::clone(&leases) as Weak<dyn NotificationHandler>);
            channel.add_handler(node, Arc::downgrade(&hub) as Weak<dyn NotificationHandler>);
            hub.attach(channel);
        }
        *known = channels.len();
    };
    follow();
    waiting.observe_list(Box::new(follow));
}
