//! Leases that a connection holds (`hold=true`): the service renews them, releases them when the connection ends, and
//! watches for an end by others.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::Notify;

use super::events::{EventKind, set_lease, set_mode};
use super::service::LockManager;
use super::types::{ExtendError, ExtendRequest, GoneReason, GrantedLease, HeldLeaseEvent, LeaseOutcome, LostReason};
use crate::keyed_maps::KeyedMap;
use crate::redlock::clock::{BootTime, Clock};
use crate::redlock::node::Node;
use crate::redlock::notifications::{LeaseTag, Notice, NotificationHandler};
use crate::redlock::random::Entropy;
use crate::redlock::renewal::{renewal_interval, renewal_retry};
use crate::redlock::subscriptions::SubscriptionGuard;
use crate::types::ResourceName;

/// The held leases of this instance, which are notified of their ends. Bounded by the connections.
#[derive(Default)]
pub(crate) struct HeldLeases {
    by_lease: Mutex<KeyedMap<LeaseTag, Vec<Arc<Notify>>>>,
    count: AtomicUsize,
}

impl HeldLeases {
    /// A lease may have ended: the connections that hold it check.
    pub(crate) fn lease_ended(&self, lease: LeaseTag) {
        for ended in self.by_lease.lock().get(&lease).into_iter().flatten() {
            ended.notify_one();
        }
    }

    /// How many leases are held.
    pub(crate) fn count(&self) -> usize {
        self.count.load(Ordering::Relaxed)
    }

    fn add(&self, lease: LeaseTag) -> Arc<Notify> {
        let ended = Arc::new(Notify::new());
        self.by_lease.lock().entry(lease).or_default().push(Arc::clone(&ended));
        self.count.fetch_add(1, Ordering::Relaxed);
        ended
    }

    fn remove(&self, lease: LeaseTag, ended: &Arc<Notify>) {
        self.count.fetch_sub(1, Ordering::Relaxed);
        let mut by_lease = self.by_lease.lock();
        if let Some(list) = by_lease.get_mut(&lease) {
            list.retain(|other| !Arc::ptr_eq(other, ended));
            if list.is_empty() {
                by_lease.remove(&lease);
            }
        }
    }
}

impl NotificationHandler for HeldLeases {
    fn on_lease_ended(&self, _node: usize, _resource: &ResourceName, notice: Notice) {
        if let Some(lease) = notice.lease {
            self.lease_ended(lease);
        }
    }
}

/// A lease that is renewed for as long as this is polled. When dropped, it is released in the background, unless it
/// has ended or moved.
pub struct HeldLease<N: Node, C: Clock, E: Entropy> {
    manager: LockManager<N, C, E>,
    lease: GrantedLease,
    tag: LeaseTag,
    ended: Arc<Notify>,
    renew_at: BootTime,
    hold_until: BootTime,
    is_at_risk: bool,
    is_over: bool,
    /// Reports an end by others before the next renewal would.
    _subscription: SubscriptionGuard,
}

impl<N: Node, C: Clock, E: Entropy> LockManager<N, C, E> {
    /// Holds a lease that was just granted, for at most `max_hold`.
    pub fn hold(&self, lease: GrantedLease, max_hold: Duration) -> HeldLease<N, C, E> {
        let now = self.now();
        let tag = LeaseTag::of(&lease.token.hash());
        HeldLease {
            manager: self.clone(),
            tag,
            ended: self.shared.held_leases.add(tag),
            renew_at: now.plus(renewal_interval(lease.ttl.as_duration())),
            hold_until: now.plus(max_hold),
            is_at_risk: false,
            is_over: false,
            _subscription: self.shared.waiting.subscribe(&lease.resource),
            lease,
        }
    }
}

impl<N: Node, C: Clock, E: Entropy> HeldLease<N, C, E> {
    /// The lease as it was granted; its deadline moves with the renewals.
    pub fn lease(&self) -> &GrantedLease {
        &self.lease
    }

    /// Keeps the lease until something happens to it. After [`HeldLeaseEvent::Lost`], [`HeldLeaseEvent::Released`] and
    /// [`HeldLeaseEvent::Moved`] nothing follows.
    ///
    /// Cancel: a renewal under way may or may not take effect; call it again.
    pub async fn next(&mut self) -> HeldLeaseEvent {
        let event = self.renew_until_event().await;
        if let HeldLeaseEvent::Lost(reason) = event {
            let (events, lease) = (&self.manager.shared.events, &self.lease);
            events.publish(EventKind::Lost, self.manager.wall_ms(), |event| {
                set_lease(event, &lease.resource, &lease.token.hash());
                set_mode(event, lease.mode);
                event.reason = Some(reason.as_str().to_owned());
                event.owner = Some(lease.labels.owner.clone()).filter(|owner| !owner.is_empty());
                event.after_ms = Some(self.manager.wall_ms().saturating_sub(lease.labels.acquired_at_ms));
            });
        }
        event
    }

    async fn renew_until_event(&mut self) -> HeldLeaseEvent {
        let draining = self.manager.shared.draining.clone();
        loop {
            let now = self.manager.now();
            if self.is_at_risk && now >= self.lease.deadline {
                return HeldLeaseEvent::Lost(LostReason::Quorum);
            }
            if now >= self.hold_until {
                return self.release_at_max_hold().await;
            }
            let mut wake_at = self.renew_at.min(self.hold_until);
            if self.is_at_risk {
                wake_at = wake_at.min(self.lease.deadline);
            }
            tokio::select! {
                biased;
                () = draining.cancelled() => {
                    self.is_over = true;
                    return HeldLeaseEvent::Moved;
                }
                () = self.ended.notified() => {}
                () = self.manager.clock().sleep_until(wake_at) => {
                    let now = self.manager.now();
                    if now < self.renew_at || now >= self.hold_until {
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
            kept_for: None,
            downgrade: false,
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
                self.renew_at = now.plus(renewal_interval(ttl));
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
            Err(
                ExtendError::NoQuorum { .. }
                | ExtendError::Invalid(..)
                | ExtendError::KeepTooLong { .. }
                | ExtendError::TooManyKept(_),
            ) => {
                self.is_at_risk = true;
                self.renew_at = now.plus(renewal_retry(ttl, self.manager.entropy()));
                if now >= self.lease.deadline {
                    return HeldLeaseEvent::Lost(LostReason::Quorum);
                }
                HeldLeaseEvent::AtRisk
            }
        }
    }

    /// Releases the lease before its loss is reported, so that the next waiter need not wait.
    async fn release_at_max_hold(&mut self) -> HeldLeaseEvent {
        self.is_over = true;
        self.manager.end_lease(&self.lease.resource, &self.lease.token.hash(), LeaseOutcome::GivenBack).await;
        HeldLeaseEvent::Lost(LostReason::MaxHold)
    }
}

impl<N: Node, C: Clock, E: Entropy> Drop for HeldLease<N, C, E> {
    fn drop(&mut self) {
        self.manager.shared.held_leases.remove(self.tag, &self.ended);
        if self.is_over {
            return;
        }
        // Without a runtime the process is ending, and the TTL ends the lease.
        let Ok(runtime) = tokio::runtime::Handle::try_current() else { return };
        let (manager, resource, hash) = (self.manager.clone(), self.lease.resource.clone(), self.lease.token.hash());
        let work = async move {
            manager.end_lease(&resource, &hash, LeaseOutcome::Disconnected).await;
        };
        self.manager.engine().tasks.spawn_on(work, &runtime);
    }
}
