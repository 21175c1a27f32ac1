//! Limits the tries that are under way at a time: in all, to one target, and of these for one principal's call-backs,
//! so that receivers that answer slowly to one principal leave slots to the others.

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Maximum number of tries of one target at a time: a slow receiver must not use up the slots of all.
pub(super) const TRIES_PER_TARGET: usize = 32;
/// Maximum number of tries at a time, over all targets.
pub(super) const TRIES_TOTAL: usize = 256;
/// One principal's call-backs take at most one part in this many of the tries to a target, and of all tries.
pub(super) const PRINCIPAL_PART: usize = 2;

/// The tries that are counted together.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum Counted {
    Total,
    Target(String),
    PrincipalTotal(String),
    PrincipalTarget(String, String),
}

/// The semaphores, made when they are needed.
#[derive(Debug, Default)]
pub(super) struct TrySlots(Mutex<HashMap<Counted, Arc<Semaphore>>>);

/// Permits one try, until dropped.
#[derive(Debug)]
pub(super) struct TrySlot(#[expect(dead_code, reason = "its end is what counts")] Vec<OwnedSemaphorePermit>);

impl TrySlots {
    fn of(&self, counted: Counted) -> Arc<Semaphore> {
        let max = match &counted {
            Counted::Total => TRIES_TOTAL,
            Counted::Target(_) => TRIES_PER_TARGET,
            Counted::PrincipalTotal(_) => TRIES_TOTAL / PRINCIPAL_PART,
            Counted::PrincipalTarget(..) => TRIES_PER_TARGET / PRINCIPAL_PART,
        };
        let mut all = self.0.lock();
        // A semaphore that no try has or waits for is in its initial state, so it is dropped.
        all.retain(|_, slots| Arc::strong_count(slots) > 1);
        Arc::clone(all.entry(counted).or_insert_with(|| Arc::new(Semaphore::new(max))))
    }

    /// Resolves once a further try to this target may begin for this principal's tag (empty: no principal). Tries for
    /// the same target and principal begin in order.
    ///
    /// Cancel: the place of this try is given up.
    pub(super) async fn acquire(&self, target: &str, principal: &str) -> TrySlot {
        // A principal's own limits come first, so that tries that wait for them do not block others.
        let is_counted = !principal.is_empty();
        let wanted = [
            is_counted.then(|| Counted::PrincipalTarget(principal.to_owned(), target.to_owned())),
            is_counted.then(|| Counted::PrincipalTotal(principal.to_owned())),
            Some(Counted::Target(target.to_owned())),
            Some(Counted::Total),
        ];
        let mut permits = Vec::new();
        for counted in wanted.into_iter().flatten() {
            // No semaphore is ever closed.
            permits.extend(self.of(counted).acquire_owned().await.ok());
        }
        TrySlot(permits)
    }
}
