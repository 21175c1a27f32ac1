//! Call-backs and hooks: opens them, passes them the events of the instance, and stops them.

use std::sync::Arc;
use std::time::Duration;

use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use super::error::AppError;
use crate::config::Config;
use crate::http::format::ms;
use crate::http::state::ServiceManager;
use crate::metrics::Metrics;
use crate::redlock::clock::SystemClock;
use crate::redlock::random::SystemEntropy;
use crate::webhooks::ServiceWebhooks;
use crate::webhooks::deliveries::CallbackDeliveries;
use crate::webhooks::event::LongWait;
use crate::webhooks::resolver::{Lookup, SystemLookup};
use crate::webhooks::transport::HttpTransport;

/// Reads the file of targets and hooks, and subscribes the hooks to this instance's events.
///
/// Errors: [`AppError::Webhooks`].
pub(super) fn open(
    config: &Config,
    manager: &ServiceManager,
    metrics: &Arc<Metrics>,
) -> Result<Arc<ServiceWebhooks>, AppError> {
    let (path, metrics) = (config.webhooks_file.clone(), Arc::clone(metrics));
    if path.is_some() {
        metrics.add_webhooks();
    }
    let (parts, instance) = ((SystemClock, SystemEntropy, HttpTransport), manager.instance().to_string());
    let lookup: Arc<dyn Lookup> = Arc::new(SystemLookup);
    let webhooks = ServiceWebhooks::open(
        parts,
        path,
        lookup,
        instance,
        Box::new(move |kind, outcome, took| metrics.webhook_tried(kind.as_str(), outcome.as_str(), took)),
    );
    let webhooks = Arc::new(webhooks.map_err(AppError::Webhooks)?);
    manager.events().observe(Arc::clone(&webhooks) as _);
    manager.set_callbacks(Arc::new(CallbackDeliveries(Arc::clone(&webhooks.deliveries))));
    Ok(webhooks)
}

/// The sender of hooks. It ends when `stop` is cancelled and each message has had a try.
pub(super) struct HooksTask {
    stop: CancellationToken,
    sender: JoinHandle<()>,
}

impl HooksTask {
    pub(super) fn spawn(webhooks: &Arc<ServiceWebhooks>, manager: ServiceManager) -> Self {
        let (webhooks, stop) = (Arc::clone(webhooks), CancellationToken::new());
        let sender = tokio::spawn(webhooks.run(move || long_waits(&manager), stop.clone()));
        Self { stop, sender }
    }

    pub(super) async fn finish(self, limit: Duration) {
        self.stop.cancel();
        let abort = self.sender.abort_handle();
        if tokio::time::timeout(limit, self.sender).await.is_err() {
            abort.abort();
            tracing::warn!("messages of hooks were not sent before the stop: they are lost");
        }
    }
}

/// The longest wait of each queue of this instance.
fn long_waits(manager: &ServiceManager) -> Vec<LongWait> {
    let wait = |(longest, waiters): (crate::manager::overview::ListedWaiter, usize)| LongWait {
        resource: longest.resource.to_string(),
        owner: longest.owner.to_string(),
        waiting_ms: ms(longest.waiting),
        waiters,
    };
    manager.longest_waits().into_iter().map(wait).collect()
}
