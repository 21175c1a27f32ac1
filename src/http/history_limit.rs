//! Answers about past events take milliseconds of the processor. Each principal gets one at a time, so that many requests of one
//! principal do not delay the requests of others.

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::auth::principal::Principal;

/// The answers that are made now, by principal; without authentication, all clients count as one.
#[derive(Debug, Default)]
pub(crate) struct HistoryLimit(Mutex<HashMap<String, Arc<Semaphore>>>);

impl HistoryLimit {
    /// Resolves when this principal has no other answer about the past in progress; until the permit is dropped, no other begins.
    ///
    /// Cancel: the place is given up.
    pub(crate) async fn take(&self, principal: Option<&Principal>) -> Option<OwnedSemaphorePermit> {
        let whose = principal.map(|principal| principal.name.to_string()).unwrap_or_default();
        let semaphore = {
            let mut all = self.0.lock();
            all.retain(|_, semaphore| Arc::strong_count(semaphore) > 1);
            Arc::clone(all.entry(whose).or_insert_with(|| Arc::new(Semaphore::new(1))))
        };
        // The semaphore is never closed.
        let permit = semaphore.acquire_owned().await.ok();
        // So that a request that waited here does not precede the requests of others.
        tokio::task::yield_now().await;
        permit
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;

    use super::*;

    #[tokio::test]
    async fn one_answer_at_a_time() {
        let limit = HistoryLimit::default();
        let first = limit.take(None).await;
        let mut second = Box::pin(limit.take(None));
        assert!(second.as_mut().now_or_never().is_none() && first.is_some());
        drop(first);
        assert!(second.await.is_some());
    }
}
