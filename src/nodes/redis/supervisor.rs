//! Keeps a node's connections open: connects with a bounded back-off, checks every second, replaces broken connections, and
//! re-reads the server checks. One future per node, spawned by the composition root.

use std::future::Future;
use std::sync::{Arc, Once};
use std::time::Duration;

use deadpool::managed::PoolError;
use futures_util::future::{join_all, join3};

use super::connect::{NodeConnector, Pool};
use super::connections::{ActiveConnection, NodeConnections};
use super::disk_policy;
use super::errors;
use super::retry::Retry;
use super::server_checks::ServerFinding;
use crate::protocol::{Unreachable, UnreachableKind};
use crate::redlock::clock::{Clock, SystemClock};
use crate::redlock::random::Entropy;
use crate::types::NodeId;

/// The interval of checks of each connection: the maximum time until the death of an idle node is noticed.
pub(super) const CHECK_INTERVAL: Duration = Duration::from_secs(1);
/// The interval of reading the server checks. `INFO` costs the server about 100 us.
const SERVER_CHECK_INTERVAL: Duration = Duration::from_secs(10);
/// Whether this process has already logged that nodes have no persistence.
static NO_PERSISTENCE: Once = Once::new();

/// Runs until dropped; `pools` has one per slot. `is_durable`: the node is to be durable. Cancel: all connections are closed, and
/// calls answer `Disconnected`.
pub(super) async fn supervise(
    id: NodeId,
    connections: Arc<NodeConnections>,
    (connector, pools): (NodeConnector, Vec<Pool>),
    is_durable: bool,
    clock: SystemClock,
    entropy: impl Entropy,
) {
    let _closing = CloseAll { connections: Arc::clone(&connections), clock };
    let of_slot = |(index, pool)| maintain(&id, &connections, (index, pool), &connector, clock, entropy.clone());
    let maintained = pools.iter().enumerate().map(of_slot);
    let watched = async {
        if is_durable {
            disk_policy::watch(&connections, clock).await;
        }
    };
    join3(join_all(maintained), watch_server(&id, &connections, &connector, clock), watched).await;
}

/// Closes the connections when the supervisor is dropped, since nothing would replace them.
struct CloseAll {
    connections: Arc<NodeConnections>,
    clock: SystemClock,
}

impl Drop for CloseAll {
    fn drop(&mut self) {
        for slot in self.connections.slots() {
            self.connections.close(slot, None, self.clock.now());
        }
    }
}

/// Keeps one connection open.
async fn maintain(
    id: &NodeId,
    connections: &NodeConnections,
    (index, pool): (usize, &Pool),
    connector: &NodeConnector,
    clock: SystemClock,
    entropy: impl Entropy,
) {
    let slot = &connections.slots()[index];
    let mut retry = Retry::new(entropy);
    let mut last = None;
    loop {
        // Hands out the connection after a PING on it, or a new one after its hand-shake.
        match pool.get().await {
            Ok(checked) => {
                let active = ActiveConnection::clone(&checked);
                // The connection returns to the pool at once: the slot has a clone.
                drop(checked);
                let generation = active.pipeline.generation();
                if last.replace(generation) == Some(generation) {
                    retry.succeeded();
                } else {
                    connections.activate(slot, active, clock.now());
                    let server = connections.status().0.server;
                    tracing::info!(node = %id, connection = index, version = server.version, "connected to the node");
                    log_findings(id, &[], &server.findings);
                }
            }
            Err(error) => {
                let error = match error {
                    PoolError::Backend(error) => error,
                    other => Unreachable::new(UnreachableKind::Disconnected, other.to_string()),
                };
                if retry.is_to_be_reported(error.kind, clock.now()) && !connector.is_closed() {
                    tracing::warn!(node = %id, connection = index, %error, "cannot connect to the node; retrying");
                }
                let delay = retry.next_delay(error.kind);
                connections.record_connect_error(error);
                connections.close(slot, None, clock.now());
                clock.sleep(delay).await;
                continue;
            }
        }
        if closed_within(slot.closed(), clock, CHECK_INTERVAL).await && slot.active().is_none() {
            // A call found the connection broken. The pool's own check might still succeed: this makes the pool build a new one.
            pool.retain(|_, _| false);
            tracing::warn!(node = %id, connection = index, "the connection to the node broke; reconnecting");
            // This was reported already.
            retry.is_to_be_reported(UnreachableKind::Disconnected, clock.now());
            clock.sleep(retry.next_delay(UnreachableKind::Disconnected)).await;
        }
    }
}

/// Whether the connection is closed before the next check is due.
async fn closed_within(closed: impl Future<Output = ()>, clock: SystemClock, period: Duration) -> bool {
    tokio::select! {
        biased;
        () = closed => true,
        () = clock.sleep(period) => false,
    }
}

/// Reads the server checks at intervals. Its own failures are ignored: `maintain` reports them.
async fn watch_server(id: &NodeId, connections: &NodeConnections, connector: &NodeConnector, clock: SystemClock) {
    loop {
        clock.sleep(SERVER_CHECK_INTERVAL).await;
        let Some(active) = connections.slots().iter().find_map(|slot| slot.active()) else { continue };
        if let Ok(server) = connector.read_server(&active).await {
            log_findings(id, &connections.status().0.server.findings, &server.findings);
            let refusal = (!server.is_master()).then(|| errors::of_call(&errors::not_master(&server.role)));
            connections.record_server(server);
            if let Some(refusal) = refusal {
                connections.close_all(refusal, clock.now());
            }
        }
    }
}

fn log_findings(id: &NodeId, known: &[ServerFinding], findings: &[ServerFinding]) {
    for finding in findings.iter().filter(|f| !known.contains(f)) {
        let (code, sentence) = (finding.code(), finding.sentence());
        match finding {
            // redlockd needs no persistence, so no action is required: it is logged once, and shown on the page of nodes.
            ServerFinding::NoPersistence => {
                NO_PERSISTENCE.call_once(|| tracing::info!(node = %id, finding = code, "{sentence}"));
            }
            _ => tracing::warn!(node = %id, finding = code, "{sentence}"),
        }
    }
}
