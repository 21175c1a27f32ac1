//! Keeps a node's lanes open: connects with bounded back-off, checks each second, replaces what broke,
//! and reads the server's fitness. One future per node, spawned by the composition root; dropping it
//! closes every connection. Never touches a request.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use deadpool_redis::Pool;
use futures_util::future::{join, join_all};
use tokio::time::timeout;

use super::connect;
use super::connection::{Lanes, Opened};
use super::errors;
use super::server_checks::ServerFinding;
use crate::redlock::clock::{Clock, SystemClock};
use crate::redlock::entropy::Entropy;
use crate::types::NodeId;

/// How often each lane's connection is checked: a node that died while idle is noticed within it.
pub const CHECK_EVERY: Duration = Duration::from_secs(1);
/// How often the server's fitness is read. `INFO` costs it about 100 us.
pub const FITNESS_EVERY: Duration = Duration::from_secs(10);
/// First bound of the back-off; doubles with each failure.
const BACKOFF_BASE: Duration = Duration::from_millis(20);
/// Last bound of the back-off: a node that comes back waits no longer than this for us.
const BACKOFF_CAP: Duration = Duration::from_secs(1);

/// Runs until dropped. Cancel: all connections are closed, and calls answer `Disconnected`.
pub async fn supervise(
    id: NodeId,
    lanes: Arc<Lanes>,
    pools: Vec<Pool>,
    read_limit: Duration,
    clock: SystemClock,
    entropy: impl Entropy,
) {
    let _closing = CloseAll { lanes: Arc::clone(&lanes), clock };
    let keepers = pools.iter().enumerate().map(|(at, pool)| keep(&id, &lanes, at, pool, clock, entropy.clone()));
    join(join_all(keepers), watch_fitness(&id, &lanes, read_limit, clock)).await;
}

/// Closes the lanes when the supervisor is dropped: nobody would replace them any more.
struct CloseAll {
    lanes: Arc<Lanes>,
    clock: SystemClock,
}

impl Drop for CloseAll {
    fn drop(&mut self) {
        for lane in self.lanes.all() {
            self.lanes.close(lane, None, self.clock.now());
        }
    }
}

/// Keeps one lane.
async fn keep(id: &NodeId, lanes: &Lanes, at: usize, pool: &Pool, clock: SystemClock, entropy: impl Entropy) {
    let lane = &lanes.all()[at];
    let mut failures = 0_u32;
    loop {
        // Hands out the connection after a PING on it, or a new one after its hand-shake.
        match pool.get().await {
            Ok(checked) => {
                // Back to the pool at once: the lane uses a clone.
                drop(checked);
                match lanes.open(lane, clock.now()) {
                    Opened::Nothing => failures = 0,
                    Opened::New | Opened::Replaced => {
                        let server = lanes.health().0.server;
                        tracing::info!(node = %id, lane = at, version = server.version, "connected to the node");
                        report_findings(id, &[], &server.findings);
                    }
                }
            }
            Err(error) => {
                let error = errors::of_connecting(&error);
                if failures == 0 {
                    tracing::warn!(node = %id, lane = at, %error, "no connection to the node; trying again until there is one");
                }
                lanes.refuse(error);
                lanes.close(lane, None, clock.now());
                failures = failures.saturating_add(1);
                clock.sleep(backoff(failures, &entropy)).await;
                continue;
            }
        }
        if closed_within(lane.closed(), clock, CHECK_EVERY).await && lane.bound().is_none() {
            // A call found it broken. The pool's own check might still find it well: build anew.
            tracing::warn!(node = %id, lane = at, "the connection to the node broke; connecting anew");
            pool.retain(|_, _| false);
            failures = failures.saturating_add(1);
            clock.sleep(backoff(failures, &entropy)).await;
        }
    }
}

/// Whether the lane was closed before the next check is due.
async fn closed_within(closed: impl Future<Output = ()>, clock: SystemClock, period: Duration) -> bool {
    tokio::select! {
        biased;
        () = closed => true,
        () = clock.sleep(period) => false,
    }
}

/// Full jitter below a bound that doubles, so that many instances do not come back in step.
pub fn backoff(failures: u32, entropy: &impl Entropy) -> Duration {
    let bound = BACKOFF_BASE.saturating_mul(2_u32.saturating_pow(failures.saturating_sub(1))).min(BACKOFF_CAP);
    Duration::from_micros(entropy.below(u64::try_from(bound.as_micros()).unwrap_or(u64::MAX)))
}

/// Reads the server's fitness now and then. A failure here says nothing that the checks do not say.
async fn watch_fitness(id: &NodeId, lanes: &Lanes, limit: Duration, clock: SystemClock) {
    loop {
        clock.sleep(FITNESS_EVERY).await;
        let Some(mut bound) = lanes.all().iter().find_map(|lane| lane.bound()) else { continue };
        if let Ok(Ok(server)) = timeout(limit, connect::ask_server(&mut bound.connection)).await {
            report_findings(id, &lanes.health().0.server.findings, &server.findings);
            lanes.learn(server);
        }
    }
}

fn report_findings(id: &NodeId, before: &[ServerFinding], now: &[ServerFinding]) {
    for finding in now.iter().filter(|f| !before.contains(f)) {
        tracing::warn!(node = %id, finding = finding.code(), "{}", finding.sentence());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::redlock::entropy::SystemEntropy;

    #[test]
    fn the_backoff_grows_to_its_cap_and_no_further() {
        for failures in [1, 2, 6, 7, 100, u32::MAX] {
            let most = (0..200).map(|_| backoff(failures, &SystemEntropy)).max().expect("200 draws");
            let bound = BACKOFF_BASE.saturating_mul(1 << (failures - 1).min(6)).min(BACKOFF_CAP);
            assert!(most < bound && most > bound / 4, "{failures}: {most:?} of {bound:?}");
        }
    }
}
