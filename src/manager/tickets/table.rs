//! The tickets that this instance serves.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::auth::quota::QuotaPermit;
use crate::keyed_maps::KeyedMap;
use crate::manager::callbacks::CallbackSender;
use crate::protocol::{Ticket, TicketEnd, TicketHead, TicketId, TicketPhase};
use crate::redlock::clock::BootTime;
use crate::types::{Fence, Mode, ResourceName, TokenHash};

/// Maximum number of tickets that an instance serves, including tickets of instances that ended.
pub(super) const SERVED_MAX: usize = 100_000;

/// The limits of tickets.
#[derive(Debug, Clone, Copy, Default)]
pub struct TicketLimits {
    /// Maximum time that a ticket may wait.
    pub max_wait: Duration,
    /// Maximum time that a lease is kept, see [`crate::manager::kept_leases::KeepLimits`].
    pub max_keep: Duration,
    /// Maximum number of tickets of this instance up to which new ones are accepted.
    pub total: usize,
}

/// An event of this instance's tickets, for metrics.
#[derive(Debug, Clone, Copy)]
pub enum TicketEvent {
    /// A ticket was made here.
    Made,
    /// This instance serves a ticket of another instance that ended.
    Adopted,
    /// A ticket got its lease here.
    Granted,
    /// A ticket is over; reported by the instance that served it.
    Ended(TicketEnd),
}

/// Called with each [`TicketEvent`]. It must be cheap and never wait.
pub type TicketListener = Box<dyn Fn(TicketEvent) + Send + Sync>;

/// Sends call-backs.
pub type TicketSender = Arc<dyn CallbackSender>;

/// Counts a ticket of this many leases in the quota of the principal for which this text stands; `None` if it is unknown.
pub type TicketQuota = Box<dyn Fn(&str, usize) -> Option<QuotaPermit> + Send + Sync>;

/// A ticket that this instance serves.
pub(in crate::manager) struct Served {
    pub(super) id: TicketId,
    pub(super) ticket: Ticket,
    /// The ticket's state, as far as this instance knows.
    head: watch::Sender<TicketHead>,
    /// State that can change between two exchanges.
    pub(super) seen: Mutex<Seen>,
    /// The time in which only this instance serves the ticket.
    alone: watch::Sender<Alone>,
    /// Whether the ticket is in its queue, or has asked once.
    pub(super) began: watch::Sender<bool>,
    /// How the ticket's lease ended, as a request to this instance or the keeper reports.
    lease_end: watch::Sender<Option<TicketEnd>>,
    /// Cancelled when this instance no longer serves the ticket.
    pub(super) stop: CancellationToken,
    /// Counts the ticket in the principal's quota while it waits.
    pub(super) permit: Mutex<Option<Arc<QuotaPermit>>>,
    /// Whether another instance served the ticket before.
    pub(super) is_adopted: bool,
    /// The end of the lease whose approach the receiver was informed of. Milliseconds since 1970.
    announced_ms: AtomicU64,
    /// Whether the receiver has accepted the grant, which the nodes may not have stored yet.
    is_taken: AtomicBool,
    /// Fence and mode of the ticket's leases, in the order of the resources; empty until they were seen.
    leases: Mutex<Box<[(Fence, Mode)]>>,
}

/// The time in which no other instance acquires for a ticket, see `while_alone` in `exchange.rs`.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Alone {
    /// When that time began.
    pub(super) since: BootTime,
    /// When that time ends, unless it is prolonged before.
    pub(super) until: BootTime,
}

/// The fields of [`Served`] that change.
#[derive(Debug, Clone, Copy)]
pub(super) struct Seen {
    /// When the ticket's caller last asked for it, on the cluster clock. Milliseconds since 1970.
    pub(super) asked_ms: u64,
    /// When the nodes were last informed that this instance serves the ticket.
    pub(super) exchanged: BootTime,
    /// When a majority of nodes was last asked that had no later state than this instance knows.
    pub(super) checked: BootTime,
    /// When the ticket was last read because a node lacked it.
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

    /// Sets the ticket's state, if this one is later.
    pub(super) fn set(&self, head: TicketHead) {
        self.head.send_if_modified(|known| {
            let is_later = head > *known;
            if is_later {
                *known = head;
            }
            is_later
        });
    }

    /// Resolves when the ticket's state differs from this one. Cancel: nothing is left behind.
    pub(super) async fn changed_from(&self, head: TicketHead) {
        let mut states = self.head.subscribe();
        let _ = states.wait_for(|state| *state != head).await;
    }

    /// Records that a majority of the nodes, asked at `begun`, takes this instance for the ticket's server, and will for `lasts`.
    pub(super) fn is_alone_for(&self, begun: BootTime, lasts: Duration) {
        self.alone.send_modify(|alone| {
            if begun >= alone.until {
                alone.since = begun;
            }
            alone.until = alone.until.max(begun.plus(lasts));
        });
    }

    /// Records that another instance has raised the ticket's state.
    pub(super) fn is_not_alone(&self, now: BootTime) {
        self.alone.send_modify(|alone| alone.until = alone.until.min(now));
    }

    pub(super) fn alone(&self) -> Alone {
        *self.alone.borrow()
    }

    /// Resolves when no other instance serves the ticket. Cancel: nothing is left behind.
    pub(super) async fn alone_at(&self, now: impl Fn() -> BootTime) {
        let _ = self.alone.subscribe().wait_for(|alone| now() < alone.until).await;
    }

    /// Records that the ticket's lease, or the first of several, has ended. Returns whether that was not known.
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

    /// Resolves when the ticket's lease has ended, as far as this instance knows. Cancel: nothing is left behind.
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
    served: Mutex<KeyedMap<TicketId, Arc<Served>>>,
    /// The tickets that have, or will have, these leases.
    of_leases: Mutex<KeyedMap<(ResourceName, TokenHash), TicketId>>,
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

    /// A permit that counts a ticket which another instance admitted.
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

    /// The ticket that has this lease.
    pub(super) fn with_lease(&self, resource: &ResourceName, token: &TokenHash) -> Option<Arc<Served>> {
        let id = self.of_leases.lock().get(&(resource.clone(), token.clone())).cloned()?;
        self.get(&id)
    }

    pub(super) fn len(&self) -> usize {
        self.served.lock().len()
    }

    /// Adds a ticket. Returns whether it is served now; not if it was served before, or if too many are.
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

    /// How many tickets are in each state, in the order of [`TicketPhase`].
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
