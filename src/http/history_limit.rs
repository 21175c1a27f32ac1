//! Answers about past events take milliseconds of the processor: one at a time for each principal, so that one who asks for
//! many does not keep the requests of others waiting.

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::auth::principal::Principal;

/// Who is answered now, by principal; without authentication all are one.
#[derive(Debug, Default)]
pub(crate) struct HistoryLimit(Mutex<HashMap<String, Arc<Semaphore>>>);

impl HistoryLimit {
    /// Resolves when no other answer about the past is made for this principal; until the permit is dropped none is.
    ///
    /// Cancel: the place is given up.
    pub(crate) async fn take(&self, principal: Option<&Principal>) -> Option<OwnedSemaphorePermit> {
        let whose = principal.map(|principal| principal.name.to_string()).unwrap_or_default();
        let semaphore = {
            let mut all = self.0.lock();
            all.retain(|_, semaphore| Arc::strong_count(semaphore) > 1);
            Arc::clone(all.entry(whose).or_insert_with(|| Arc::new(Semaphore::new(1))))
        };
        // It is never closed.
        let permit = semaphore.acquire_owned().await.ok();
        // Who waited for the one before is not the next of all.
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
