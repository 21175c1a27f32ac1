//! Leases that are kept for as long as somebody holds on to them: renewed at a third of their TTL,
//! given back when dropped, and told of their end. Knows no connection.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;

use super::events::{EventKind, set_lease};
use super::queue::SubscriptionGuard;
use super::service::LockManager;
use super::types::{ExtendError, ExtendRequest, GoneReason, GrantedLease, HeldLeaseEvent, LeaseOutcome, LostReason};
use crate::redlock::clock::{BootTime, Clock};
use crate::redlock::entropy::Entropy;
use crate::redlock::node::Node;
use crate::redlock::notifications::LeaseTag;

/// A lease is renewed when one part in this many of its TTL has passed: two renewals may fail before
/// it is in danger.
const RENEWALS_PER_TTL: u32 = 3;
/// After a renewal that failed, the next is tried after one part in this many of the TTL.
const RETRIES_PER_TTL: u32 = 12;
/// The least pause before that.
const RETRY_MIN: Duration = Duration::from_millis(10);

/// Who is to hear of which lease's end. Bounded by the connections that hold.
#[derive(Default)]
pub struct HeldLeases {
    ends: Mutex<HashMap<LeaseTag, Vec<Arc<Notify>>>>,
    count: AtomicUsize,
}

impl HeldLeases {
    /// A lease may have ended: whoever holds it looks.
    pub fn stir(&self, lease: LeaseTag) {
        for end in self.lock().get(&lease).into_iter().flatten() {
            end.notify_one();
        }
    }

    /// How many hold.
    pub fn count(&self) -> usize {
        self.count.load(Ordering::Relaxed)
    }

    fn enter(&self, lease: LeaseTag) -> Arc<Notify> {
        let end = Arc::new(Notify::new());
        self.lock().entry(lease).or_default().push(Arc::clone(&end));
        self.count.fetch_add(1, Ordering::Relaxed);
        end
    }

    fn leave(&self, lease: LeaseTag, end: &Arc<Notify>) {
        self.count.fetch_sub(1, Ordering::Relaxed);
        let mut ends = self.lock();
        if let Some(list) = ends.get_mut(&lease) {
            list.retain(|e| !Arc::ptr_eq(e, end));
            if list.is_empty() {
                ends.remove(&lease);
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<LeaseTag, Vec<Arc<Notify>>>> {
        self.ends.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A lease that is held on to. Dropped, it is released in the background, unless it has ended.
pub struct HeldLease<N: Node, C: Clock, E: Entropy> {
    manager: LockManager<N, C, E>,
    lease: GrantedLease,
    tag: LeaseTag,
    end: Arc<Notify>,
    renew_at: BootTime,
    end_at: BootTime,
    is_at_risk: bool,
    is_over: bool,
    /// Hears of an end by others' doing before the next renewal would.
    _notices: SubscriptionGuard,
}

impl<N: Node, C: Clock, E: Entropy> LockManager<N, C, E> {
    /// HeldLeases on to a lease that was just granted, for at most `max_hold`.
    pub fn hold(&self, lease: GrantedLease, max_hold: Duration) -> HeldLease<N, C, E> {
        let now = self.now();
        let tag = LeaseTag::of(&lease.token.hash());
        HeldLease {
            manager: self.clone(),
            tag,
            end: self.shared.holds.enter(tag),
            renew_at: now.plus(lease.ttl.as_duration() / RENEWALS_PER_TTL),
            end_at: now.plus(max_hold),
            is_at_risk: false,
            is_over: false,
            _notices: self.shared.wakeups.watch(&lease.resource),
            lease,
        }
    }
}

impl<N: Node, C: Clock, E: Entropy> HeldLease<N, C, E> {
    /// What holds it on to, as it was granted; its deadline moves with the renewals.
    pub fn lease(&self) -> &GrantedLease {
        &self.lease
    }

    /// Keeps the lease until there is something to tell. After [`HeldLeaseEvent::Lost`] and
    /// [`HeldLeaseEvent::Released`] nothing follows.
    ///
    /// Cancel: a renewal under way may or may not take effect; call it again.
    pub async fn next(&mut self) -> HeldLeaseEvent {
        let event = self.keep_on().await;
        if let HeldLeaseEvent::Lost(reason) = event {
            let (events, lease) = (&self.manager.shared.events, &self.lease);
            events.publish(EventKind::Lost, self.manager.wall_ms(), |event| {
                set_lease(event, &lease.resource, &lease.token.hash());
                event.reason = Some(reason.as_str().to_owned());
            });
        }
        event
    }

    async fn keep_on(&mut self) -> HeldLeaseEvent {
        let draining = self.manager.shared.draining.clone();
        loop {
            let now = self.manager.now();
            if self.is_at_risk && now >= self.lease.deadline {
                return HeldLeaseEvent::Lost(LostReason::Quorum);
            }
            if now >= self.end_at {
                return self.give_back(LostReason::MaxHold).await;
            }
            let mut at = self.renew_at.min(self.end_at);
            if self.is_at_risk {
                at = at.min(self.lease.deadline);
            }
            tokio::select! {
                biased;
                () = draining.cancelled() => return self.give_back(LostReason::Draining).await,
                () = self.end.notified() => {}
                () = self.manager.clock().sleep_until(at) => {
                    let now = self.manager.now();
                    if now < self.renew_at || now >= self.end_at {
                        continue;
                    }
                }
            }
            return self.renew().await;
        }
    }

    async fn renew(&mut self) -> HeldLeaseEvent {
        let request = ExtendRequest {
            resource: self.lease.resource.clone(),
            token: self.lease.token.clone(),
            ttl: None,
            fence: None,
            note: None,
            metadata: Vec::new(),
        };
        let ttl = self.lease.ttl.as_duration();
        let outcome = self.manager.extend(request).await;
        let now = self.manager.now();
        match outcome {
            Ok(extended) => {
                self.is_at_risk = false;
                self.lease.deadline = self.lease.deadline.max(extended.lease.deadline);
                self.renew_at = now.plus(ttl / RENEWALS_PER_TTL);
                HeldLeaseEvent::Renewed
            }
            Err(ExtendError::Gone(GoneReason::Released)) => {
                self.is_over = true;
                HeldLeaseEvent::Released
            }
            Err(ExtendError::Gone(GoneReason::Forced)) => HeldLeaseEvent::Lost(LostReason::Forced),
            Err(ExtendError::Gone(_) | ExtendError::NotHolder | ExtendError::Changed { .. }) => {
                self.is_over = true;
                HeldLeaseEvent::Lost(LostReason::Expired)
            }
            Err(ExtendError::NoQuorum { .. } | ExtendError::Invalid(..)) => {
                self.is_at_risk = true;
                self.renew_at = now.plus((ttl / RETRIES_PER_TTL).max(RETRY_MIN));
                if now >= self.lease.deadline {
                    return HeldLeaseEvent::Lost(LostReason::Quorum);
                }
                HeldLeaseEvent::AtRisk
            }
        }
    }

    /// Ends the lease before it is said to be lost, so that the next need not wait.
    async fn give_back(&mut self, reason: LostReason) -> HeldLeaseEvent {
        self.is_over = true;
        self.manager.release_in_turn(&self.lease.resource, &self.lease.token.hash(), LeaseOutcome::GivenBack).await;
        HeldLeaseEvent::Lost(reason)
    }
}

impl<N: Node, C: Clock, E: Entropy> Drop for HeldLease<N, C, E> {
    fn drop(&mut self) {
        self.manager.shared.holds.leave(self.tag, &self.end);
        if self.is_over {
            return;
        }
        // Without a runtime the process is ending, and the TTL ends the lease.
        let Ok(runtime) = tokio::runtime::Handle::try_current() else { return };
        let (manager, resource, hash) = (self.manager.clone(), self.lease.resource.clone(), self.lease.token.hash());
        let work = async move {
            manager.release_in_turn(&resource, &hash, LeaseOutcome::Disconnected).await;
        };
        self.manager.engine().tasks.spawn_on(work, &runtime);
    }
}
