//! How many tries are under way at a time: in all, to one target, and of these for one principal's call-backs, so that
//! receivers that answer slowly to one principal leave slots to the others.

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Tries of one target at a time: a slow receiver must not use up those of all.
pub(super) const TRIES_PER_TARGET: usize = 32;
/// Tries at a time, over all targets.
pub(super) const TRIES_TOTAL: usize = 256;
/// Of the tries to a target, and of those in all, one principal's call-backs take at most one part in this many.
pub(super) const PRINCIPAL_PART: usize = 2;

/// What is counted together.
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
        // One that neither a try nor a waiting one has is as new.
        all.retain(|_, slots| Arc::strong_count(slots) > 1);
        Arc::clone(all.entry(counted).or_insert_with(|| Arc::new(Semaphore::new(max))))
    }

    /// Resolves once a further try to this target may begin, for this principal's tag: empty where it is nobody's. Those that
    /// want the same follow each other in order.
    ///
    /// Cancel: its place is given up.
    pub(super) async fn acquire(&self, target: &str, principal: &str) -> TrySlot {
        // A principal's own limits come first, so that what waits for them is not in the way of others.
        let is_counted = !principal.is_empty();
        let wanted = [
            is_counted.then(|| Counted::PrincipalTarget(principal.to_owned(), target.to_owned())),
            is_counted.then(|| Counted::PrincipalTotal(principal.to_owned())),
            Some(Counted::Target(target.to_owned())),
            Some(Counted::Total),
        ];
        let mut permits = Vec::new();
        for counted in wanted.into_iter().flatten() {
            // None is ever closed.
            permits.extend(self.of(counted).acquire_owned().await.ok());
        }
        TrySlot(permits)
    }
}
