//! Leases that only a quorum of the nodes was asked for (`fan_out.rs`). The rest gets the same request, with the same attempt and
//! stamp, as if the network had been slow: before anything else is done with the lease, or after [`SPREAD_AFTER`]. A lease that
//! is released before never reaches them.

use std::collections::BTreeMap;
use std::future::{Future, poll_fn};
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::clock::{BootTime, Clock};
use super::engine::Redlock;
use super::fan_out::{FanOut, Order};
use super::node::Node;
use super::random::Entropy;
use super::round::{Posed, Until};
use crate::keyed_maps::KeyedMap;
use crate::mutant::{self, Mutant};
use crate::protocol::{Request, RequestStamp};
use crate::types::{ResourceName, TokenHash};

/// A lease that still stands this long after its attempt began is asked of the remaining nodes; with a short `guard`, after a
/// quarter of it, as nodes refuse requests that are older than the guard.
const SPREAD_AFTER: Duration = Duration::from_millis(100);
/// Maximum number of attempts and leases of which some nodes were not asked. Further attempts ask all nodes at once.
const SPREADS_MAX: usize = 8_192;

/// One token may have leases of several resources.
type Key = (ResourceName, TokenHash);
/// When a lease is due, and a number, since others may be due at the same time.
type Due = (BootTime, u64);

/// The nodes that were not asked, and what they would have been asked.
#[derive(Debug)]
pub(super) struct Unasked {
    pub(super) request: Arc<Request>,
    pub(super) stamp: RequestStamp,
    /// When the round began.
    pub(super) started: BootTime,
    /// The nodes that were asked: all of them granted.
    pub(super) order: Order,
    /// One of [`SPREADS_MAX`].
    pub(super) slot: Option<OwnedSemaphorePermit>,
}

/// The leases that are to be spread.
#[derive(Debug)]
pub(super) struct PendingSpreads {
    slots: Arc<Semaphore>,
    pending: Mutex<Pending>,
}

#[derive(Debug, Default)]
struct Pending {
    leases: KeyedMap<Key, (Due, Box<Unasked>)>,
    due: BTreeMap<Due, Key>,
    /// How many were added.
    added: u64,
    /// Whether a task waits for the next one that is due.
    is_awaited: bool,
}

impl Default for PendingSpreads {
    fn default() -> Self {
        Self { slots: Arc::new(Semaphore::new(SPREADS_MAX)), pending: Mutex::default() }
    }
}

impl PendingSpreads {
    /// Adds a lease. Returns whether a task must be started.
    fn add(&self, key: Key, at: BootTime, unasked: Box<Unasked>) -> bool {
        let mut pending = self.pending.lock();
        pending.added += 1;
        let due = (at, pending.added);
        if let Some((before, _)) = pending.leases.insert(key.clone(), (due, unasked)) {
            pending.due.remove(&before);
        }
        pending.due.insert(due, key);
        !std::mem::replace(&mut pending.is_awaited, true)
    }

    /// Removes a lease and returns what its remaining nodes were not asked.
    fn take(&self, key: &Key) -> Option<Box<Unasked>> {
        let mut pending = self.pending.lock();
        let (due, unasked) = pending.leases.remove(key)?;
        pending.due.remove(&due);
        Some(unasked)
    }

    /// When the next lease is due. `None`: there is none, and the task ends.
    fn next_due(&self) -> Option<BootTime> {
        let mut pending = self.pending.lock();
        let next = pending.due.keys().next().map(|(at, _)| *at);
        pending.is_awaited = next.is_some();
        next
    }

    /// Removes a lease that is due.
    fn take_due(&self, now: BootTime) -> Option<Box<Unasked>> {
        let mut pending = self.pending.lock();
        let (due, _) = pending.due.first_key_value()?;
        if due.0 > now {
            return None;
        }
        let (_, key) = pending.due.pop_first()?;
        pending.leases.remove(&key).map(|(_, unasked)| unasked)
    }
}

impl<N: Node, C: Clock, E: Entropy> Redlock<N, C, E> {
    /// How long a lease may stand on a quorum only.
    pub(super) fn spread_after(&self) -> Duration {
        SPREAD_AFTER.min(self.terms().guard / 4)
    }

    /// Reserves a place among the leases to be spread. `None`: there are too many.
    pub(super) fn spread_slot(&self) -> Option<OwnedSemaphorePermit> {
        self.spreads.slots.clone().try_acquire_owned().ok()
    }

    /// Asks the remaining nodes for the lease when it has stood for [`Self::spread_after`]. Without a runtime, the first extend
    /// restores it there.
    pub(super) fn spread_later(&self, resource: ResourceName, token: TokenHash, unasked: Box<Unasked>) {
        let Ok(runtime) = tokio::runtime::Handle::try_current() else { return };
        let due = unasked.started.plus(self.spread_after());
        if !self.spreads.add((resource, token), due, unasked) {
            return;
        }
        let engine = self.clone();
        let work = async move {
            while let Some(due) = engine.spreads.next_due() {
                engine.clock.sleep_until(due).await;
                while let Some(unasked) = engine.spreads.take_due(engine.clock.now()) {
                    engine.tasks.spawn(engine.clone().spread(unasked));
                }
            }
        };
        self.tasks.spawn_on(work, &runtime);
    }

    /// Asks the remaining nodes for the lease now, if they were not asked: requests that are sent from now on reach each node
    /// after this one.
    ///
    /// Cancel: as of [`Self::spread_now`].
    pub(super) async fn spread_first(&self, resource: &ResourceName, token: &TokenHash) {
        if self.settings.fan_out == FanOut::Quorum
            && let Some(unasked) = self.spreads.take(&(resource.clone(), token.clone()))
            && !mutant::is(Mutant::ExtendedUnspread)
        {
            self.spread_now(unasked).await;
        }
    }

    /// Hands the request to the remaining nodes; their answers are awaited in a tracked task.
    ///
    /// Cancel: not possible in between, since it never waits. The lease is on the remaining nodes that took the request.
    pub(super) async fn spread_now(&self, unasked: Box<Unasked>) {
        let mut spread = Box::pin(self.clone().spread(unasked));
        let first = poll_fn(|cx| Poll::Ready(spread.as_mut().poll(cx))).await;
        if first.is_pending() {
            self.tasks.spawn(spread);
        }
    }

    /// No answer counts: the lease has its quorum. A node that does not take it gets it with the first extend that a quorum
    /// confirms.
    ///
    /// Cancel: each of the remaining nodes may have the lease or not, until its TTL.
    async fn spread(self, unasked: Box<Unasked>) {
        let Unasked { request, stamp, order, slot, .. } = *unasked;
        let now = self.clock.now();
        let posed =
            Posed { request: Arc::unwrap_or_clone(request), view: Some(stamp.view), sent_at: Some(stamp.sent_at) };
        self.round(&order.rest, posed, now, now.plus(self.node_timeout()), Until::All, Result::is_ok).await;
        drop(slot);
    }

    /// The order in which a release goes to the nodes: first to those that were asked for the lease. The others cannot have it, and
    /// need no tombstone, since nothing is sent to them any more. Except if a node may have been filled meanwhile: to be filled
    /// it must have lost its vote, and others then vote in another view.
    pub(super) fn release_order(&self, resource: &ResourceName, token: &TokenHash) -> Order {
        let everyone = self.everyone();
        if self.settings.fan_out == FanOut::All {
            return Order::all(everyone);
        }
        let Some(unasked) = self.spreads.take(&(resource.clone(), token.clone())) else { return Order::all(everyone) };
        let order = unasked.order.clone();
        let is_same_view = unasked.stamp.view.id == self.views.current().id;
        if mutant::is(Mutant::SpreadAfterRelease) {
            self.spread_later(resource.clone(), token.clone(), unasked);
        }
        let is_calm = is_same_view && everyone.iter().all(|i| self.is_ready(*i));
        if is_calm { order } else { Order::all(everyone) }
    }
}
