//! The tickets that this instance serves.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::auth::quota::QuotaPermit;
use crate::manager::callbacks::CallbackSender;
use crate::protocol::{Ticket, TicketEnd, TicketHead, TicketId, TicketPhase};
use crate::redlock::clock::BootTime;
use crate::types::{Fence, Mode, ResourceName, TokenHash};

/// Maximum number of tickets that an instance serves, those of others that ended included.
pub(super) const SERVED_MAX: usize = 100_000;

/// How long, and how many.
#[derive(Debug, Clone, Copy, Default)]
pub struct TicketLimits {
    /// Maximum time that a ticket may wait.
    pub max_wait: Duration,
    /// Maximum time that a lease is kept, see [`crate::manager::kept_leases::KeepLimits`].
    pub max_keep: Duration,
    /// Maximum number of tickets of this instance that new ones may add to.
    pub total: usize,
}

/// What happens to tickets of this instance, for metrics.
#[derive(Debug, Clone, Copy)]
pub enum TicketEvent {
    /// One was made here.
    Made,
    /// This instance serves one of another instance that ended.
    Adopted,
    /// One got its lease here.
    Granted,
    /// One is over; reported by the instance that served it.
    Ended(TicketEnd),
}

/// Is called with [`TicketEvent`]. It must be cheap and never wait.
pub type TicketListener = Box<dyn Fn(TicketEvent) + Send + Sync>;

/// Sends call-backs.
pub type TicketSender = Arc<dyn CallbackSender>;

/// Counts a ticket of so many leases in the quota of the principal for which this text stands; `None` where it is unknown.
pub type TicketQuota = Box<dyn Fn(&str, usize) -> Option<QuotaPermit> + Send + Sync>;

/// A ticket that this instance serves.
pub(in crate::manager) struct Served {
    pub(super) id: TicketId,
    pub(super) ticket: Ticket,
    /// Its state, as far as this instance knows.
    head: watch::Sender<TicketHead>,
    /// What can change between two exchanges.
    pub(super) seen: Mutex<Seen>,
    /// When only this instance serves it.
    alone: watch::Sender<Alone>,
    /// It is in its queue, or has asked once.
    pub(super) began: watch::Sender<bool>,
    /// How its lease ended, as a request to this instance or the keeper says.
    lease_end: watch::Sender<Option<TicketEnd>>,
    /// This instance serves it no more.
    pub(super) stop: CancellationToken,
    /// Counts it in the principal's quota while it waits.
    pub(super) permit: Mutex<Option<Arc<QuotaPermit>>>,
    /// Another instance served it before.
    pub(super) is_adopted: bool,
    /// The end of the lease of which the receiver was informed that it is near. Milliseconds since 1970.
    announced_ms: AtomicU64,
    /// Its receiver has accepted the grant, which the nodes may not have stored yet.
    is_taken: AtomicBool,
    /// Of its leases, in the order of the resources; empty until they were seen.
    leases: Mutex<Box<[(Fence, Mode)]>>,
}

/// The time in which no other instance acquires for a ticket, see `while_alone` in `exchange.rs`.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Alone {
    /// It has lasted since then.
    pub(super) since: BootTime,
    /// Its end, unless it is prolonged before.
    pub(super) until: BootTime,
}

/// The fields of [`Served`] that change.
#[derive(Debug, Clone, Copy)]
pub(super) struct Seen {
    /// When its caller asked for it last, on the cluster clock. Milliseconds since 1970.
    pub(super) asked_ms: u64,
    /// When the nodes were informed last that this instance serves it.
    pub(super) exchanged: BootTime,
    /// When a majority of the nodes was asked last that had no later state than this instance knows.
    pub(super) checked: BootTime,
    /// When it was read last from the nodes since one lacked it.
    pub(super) put_back: BootTime,
    /// The latest state that this instance wrote to some nodes, and perhaps not to a majority.
    pub(super) unsettled: Option<TicketHead>,
}

impl Served {
    pub(super) fn new(id: TicketId, ticket: Ticket, head: TicketHead, seen: Seen, is_adopted: bool) -> Self {
        Self {
            id,
            ticket,
            head: watch::Sender::new(head),
            seen: Mutex::new(seen),
            alone: watch::Sender::default(),
            began: watch::Sender::new(false),
            lease_end: watch::Sender::new(None),
            stop: CancellationToken::new(),
            permit: Mutex::new(None),
            is_adopted,
            announced_ms: AtomicU64::new(0),
            is_taken: AtomicBool::new(false),
            leases: Mutex::default(),
        }
    }

    pub(super) fn head(&self) -> TicketHead {
        *self.head.borrow()
    }

    /// Its state is this one, if that is a later one.
    pub(super) fn set(&self, head: TicketHead) {
        self.head.send_if_modified(|known| {
            let is_later = head > *known;
            if is_later {
                *known = head;
            }
            is_later
        });
    }

    /// Resolves when its state is another one. Cancel: nothing is left behind.
    pub(super) async fn changed_from(&self, head: TicketHead) {
        let mut states = self.head.subscribe();
        let _ = states.wait_for(|state| *state != head).await;
    }

    /// A majority of the nodes, asked at `begun`, takes this instance for its server, and will for `lasts`.
    pub(super) fn is_alone_for(&self, begun: BootTime, lasts: Duration) {
        self.alone.send_modify(|alone| {
            if begun >= alone.until {
                alone.since = begun;
            }
            alone.until = alone.until.max(begun.plus(lasts));
        });
    }

    /// Another instance has raised its state.
    pub(super) fn is_not_alone(&self, now: BootTime) {
        self.alone.send_modify(|alone| alone.until = alone.until.min(now));
    }

    pub(super) fn alone(&self) -> Alone {
        *self.alone.borrow()
    }

    /// Resolves when no other instance serves it. Cancel: nothing is left behind.
    pub(super) async fn alone_at(&self, now: impl Fn() -> BootTime) {
        let _ = self.alone.subscribe().wait_for(|alone| now() < alone.until).await;
    }

    /// Its lease has ended, or the first of several. Whether that was not known.
    pub(super) fn lease_ended(&self, end: TicketEnd) -> bool {
        self.lease_end.send_if_modified(|known| {
            let is_first = known.is_none();
            known.get_or_insert(end);
            is_first
        })
    }

    pub(super) fn lease_end(&self) -> Option<TicketEnd> {
        *self.lease_end.borrow()
    }

    /// Resolves when its lease has ended, as far as this instance knows. Cancel: nothing is left behind.
    pub(super) async fn lease_has_ended(&self) {
        let _ = self.lease_end.subscribe().wait_for(Option::is_some).await;
    }

    pub(super) fn set_leases(&self, leases: impl Iterator<Item = (Fence, Mode)>) {
        *self.leases.lock() = leases.collect();
    }

    pub(super) fn leases(&self) -> Box<[(Fence, Mode)]> {
        self.leases.lock().clone()
    }

    pub(super) fn announced(&self) -> u64 {
        self.announced_ms.load(Ordering::Relaxed)
    }

    pub(super) fn set_announced(&self, kept_until_ms: u64) {
        self.announced_ms.store(kept_until_ms, Ordering::Relaxed);
    }

    pub(super) fn is_taken(&self) -> bool {
        self.is_taken.load(Ordering::Relaxed)
    }

    pub(super) fn set_taken(&self) {
        self.is_taken.store(true, Ordering::Relaxed);
    }

    pub(super) fn asked(&self, at_ms: u64) {
        let mut seen = self.seen.lock();
        seen.asked_ms = seen.asked_ms.max(at_ms);
    }
}

/// All tickets that this instance serves.
#[derive(Default)]
pub(in crate::manager) struct TicketTable {
    served: Mutex<HashMap<TicketId, Arc<Served>>>,
    /// The tickets that have, or will have, these leases.
    of_leases: Mutex<HashMap<(ResourceName, TokenHash), TicketId>>,
    settings: OnceLock<(TicketLimits, TicketListener)>,
    sender: OnceLock<TicketSender>,
    quota: OnceLock<TicketQuota>,
}

impl TicketTable {
    pub(super) fn set(&self, limits: TicketLimits, listener: TicketListener) {
        let _ = self.settings.set((limits, listener));
    }

    pub(super) fn set_sender(&self, sender: TicketSender) {
        let _ = self.sender.set(sender);
    }

    pub(super) fn set_quota(&self, quota: TicketQuota) {
        let _ = self.quota.set(quota);
    }

    /// Counts one that another instance admitted.
    pub(super) fn permit_of(&self, ticket: &Ticket) -> Option<Arc<QuotaPermit>> {
        self.quota.get()?(&ticket.body.labels.principal, ticket.resources().count()).map(Arc::new)
    }

    pub(super) fn sender(&self) -> Option<&TicketSender> {
        self.sender.get()
    }

    pub(super) fn limits(&self) -> TicketLimits {
        self.settings.get().map_or_else(TicketLimits::default, |(limits, _)| *limits)
    }

    pub(super) fn report(&self, event: TicketEvent) {
        if let Some((_, listener)) = self.settings.get() {
            listener(event);
        }
    }

    pub(super) fn get(&self, id: &TicketId) -> Option<Arc<Served>> {
        self.served.lock().get(id).cloned()
    }

    /// The one that has this lease.
    pub(super) fn with_lease(&self, resource: &ResourceName, token: &TokenHash) -> Option<Arc<Served>> {
        let id = self.of_leases.lock().get(&(resource.clone(), token.clone())).cloned()?;
        self.get(&id)
    }

    pub(super) fn len(&self) -> usize {
        self.served.lock().len()
    }

    /// Whether it is served now; not where it was before, or too many are.
    pub(super) fn add(&self, served: &Arc<Served>) -> bool {
        let mut all = self.served.lock();
        if all.len() >= SERVED_MAX || all.contains_key(&served.id) {
            return false;
        }
        all.insert(served.id.clone(), Arc::clone(served));
        let mut of_leases = self.of_leases.lock();
        for resource in served.ticket.resources() {
            of_leases.insert((resource.clone(), served.ticket.token.clone()), served.id.clone());
        }
        true
    }

    pub(super) fn remove(&self, served: &Arc<Served>) {
        let mut all = self.served.lock();
        if all.get(&served.id).is_some_and(|present| Arc::ptr_eq(present, served)) {
            all.remove(&served.id);
            let mut of_leases = self.of_leases.lock();
            for resource in served.ticket.resources() {
                let lease = (resource.clone(), served.ticket.token.clone());
                if of_leases.get(&lease).is_some_and(|id| *id == served.id) {
                    of_leases.remove(&lease);
                }
            }
        }
    }

    pub(super) fn all(&self) -> Vec<Arc<Served>> {
        self.served.lock().values().cloned().collect()
    }

    /// How many are in each state, in the order of [`TicketPhase`].
    pub(super) fn counts(&self) -> [usize; 5] {
        let mut counts = [0; 5];
        for served in self.served.lock().values() {
            if let Some(count) = counts.get_mut(served.head().phase as usize) {
                *count += 1;
            }
        }
        counts
    }
}

/// The words of [`TicketPhase`] in answers.
pub(in crate::manager) fn phase_word(phase: TicketPhase) -> &'static str {
    match phase {
        TicketPhase::Waiting => "waiting",
        TicketPhase::Granted => "granted",
        TicketPhase::Accepted => "accepted",
        TicketPhase::Ended | TicketPhase::Done => "ended",
    }
}
