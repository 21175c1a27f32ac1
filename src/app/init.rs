//! `redlockd init`: initialises a new cluster on the configured Redis nodes.

use std::sync::Arc;
use std::time::Duration;

use super::background::BackgroundTasks;
use super::error::AppError;
use super::nodes::{ConfiguredRedlock, cluster_params, node_ids, observer, open_nodes, redlock_settings};
use crate::config::Config;
use crate::manager::latency::NodeLatencies;
use crate::metrics::Metrics;
use crate::protocol::{NoVote, Request, UnreachableKind, Vote};
use crate::redlock::clock::{Clock, SystemClock};
use crate::redlock::monitor::{InitError, NodeHealth, NodeMonitor};
use crate::redlock::node::Node;
use crate::redlock::random::SystemEntropy;
use crate::types::NodeId;
use crate::worker_threads::WorkerThreads;

/// How long to wait for all nodes.
const NODES_TIMEOUT: Duration = Duration::from_secs(10);
/// Time between two attempts while nodes do not answer.
const RETRY_INTERVAL: Duration = Duration::from_millis(20);

/// Initialises a new cluster; returns the message for the operator.
///
/// Errors: [`AppError`]; nothing was initialised if a node is missing or already part of a cluster.
/// Cancel: as [`NodeMonitor::init`].
pub async fn init(config: &Config) -> Result<String, AppError> {
    if config.nodes.is_empty() {
        let why = "no Redis node is configured; embedded nodes are initialised on their first start".to_owned();
        return Err(AppError::Setting { key: "nodes", why });
    }
    let ids = node_ids(config)?;
    let metrics = Metrics::new(&ids, &[]);
    let tasks = BackgroundTasks::default();
    let params = Arc::new(cluster_params(config, &ids));
    let observer = observer(&metrics, &Arc::new(NodeLatencies::new(&ids)));
    let (nodes, _) = open_nodes(config, &ids, &params, &observer, (&tasks, &WorkerThreads::default()))?;
    let count = nodes.len();
    let engine = ConfiguredRedlock::new(nodes, SystemClock, SystemEntropy, redlock_settings(config, &params));
    let monitor = NodeMonitor::new(engine.clone());
    let until = SystemClock.now().plus(NODES_TIMEOUT);
    let outcome = loop {
        match monitor.init().await {
            // Trying again does not help.
            Err(InitError::Unreachable(node, UnreachableKind::Auth)) => {
                let why = refusal(&engine, &node).await;
                return Err(AppError::Refused { node, why });
            }
            Err(InitError::Unreachable(..)) if SystemClock.now() < until => SystemClock.sleep(RETRY_INTERVAL).await,
            outcome => break outcome,
        }
        if let Some((a, b)) = monitor.same_server() {
            return Err(AppError::SameServer(a, b));
        }
    };
    if let Err(InitError::AlreadyInitialised(_)) = outcome {
        // One node reported this; all must.
        while monitor.health().iter().any(|node| node.status.is_none()) && SystemClock.now() < until {
            monitor.probe_round().await;
            SystemClock.sleep(RETRY_INTERVAL).await;
        }
        if monitor.health().iter().all(is_of_this_cluster) {
            return Err(AppError::AlreadyInitialised(count));
        }
    }
    tasks.stop().await;
    outcome?;
    Ok(format!("initialised a new cluster of {count} nodes; {} of them must agree", engine.quorum()))
}

/// Whether the node was initialised before, with these settings. It may be in quarantine.
fn is_of_this_cluster(health: &NodeHealth) -> bool {
    health.status.as_ref().is_some_and(|status| match &status.vote {
        Vote::NoVote(NoVote::OtherCluster { .. } | NoVote::NewerProtocol { .. }) => false,
        Vote::NoVote(NoVote::Quarantined { .. } | NoVote::Unseeded { .. }) => status.why != "blank",
        _ => true,
    })
}

/// The missing right, as the node reports it to a probe.
async fn refusal(engine: &ConfiguredRedlock, id: &NodeId) -> String {
    let Some(node) = engine.nodes.iter().find(|node| node.id() == id) else { return String::new() };
    let probe = Arc::clone(node).call(engine.cluster_clock.request_time().into(), Arc::new(Request::probe()));
    match tokio::time::timeout(NODES_TIMEOUT, probe).await {
        Ok(Err(error)) => error.detail.to_string(),
        _ => UnreachableKind::Auth.to_string(),
    }
}
