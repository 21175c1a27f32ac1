//! Long-lived tasks of the service, and how they are stopped.

use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

/// The service's long-lived tasks. Cheap to clone.
#[derive(Debug, Clone, Default)]
pub(super) struct BackgroundTasks {
    tracker: TaskTracker,
    stop: CancellationToken,
}

impl BackgroundTasks {
    /// Spawns a task that is dropped at [`Self::stop`].
    pub(super) fn spawn(&self, work: impl Future<Output = ()> + Send + 'static) {
        let stop = self.stop.clone();
        self.tracker.spawn(async move {
            tokio::select! {
                biased;
                () = stop.cancelled() => {}
                () = work => {}
            }
        });
    }

    /// Stops all tasks and waits until they have ended.
    ///
    /// Cancel: the tasks end, but are not awaited.
    pub(super) async fn stop(&self) {
        self.stop.cancel();
        self.tracker.close();
        self.tracker.wait().await;
    }
}
