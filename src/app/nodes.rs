//! Builds the nodes and the engine's settings from the configuration.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use super::background::BackgroundTasks;
use super::error::AppError;
use crate::config::Config;
use crate::manager::latency::NodeLatencies;
use crate::metrics::Metrics;
use crate::nodes::any_node::AnyNode;
use crate::nodes::call_observer::NodeObserver;
use crate::nodes::embedded::{EmbeddedConfig, EmbeddedNode};
use crate::nodes::redis::{NodeTls, NodeUrl, RedisNode, RedisNodeConfig};
use crate::protocol::{ClusterName, ClusterParams, Terms, quarantine_for};
use crate::redlock::backoff::BackoffRange;
use crate::redlock::clock::SystemClock;
use crate::redlock::engine::{Opener, Redlock, RedlockSettings};
use crate::redlock::node::Node;
use crate::redlock::random::SystemEntropy;
use crate::types::{Invalid, NodeId};
use crate::waiting::wake::POLL_MAX;
use crate::worker_threads::WorkerThreads;

pub(super) type ConfiguredRedlock = Redlock<AnyNode, SystemClock, SystemEntropy>;

/// All nodes, and the embedded ones among them.
pub(super) type OpenedNodes = (Vec<Arc<AnyNode>>, Vec<Arc<EmbeddedNode<SystemClock>>>);

/// Opens the configured Redis nodes; without any, the embedded ones.
///
/// Errors: [`AppError`] for addresses, certificates and state files.
pub(super) fn open_nodes(
    config: &Config,
    ids: &[NodeId],
    params: &Arc<ClusterParams>,
    observer: &Arc<dyn NodeObserver>,
    (tasks, threads): (&BackgroundTasks, &WorkerThreads),
) -> Result<OpenedNodes, AppError> {
    if config.nodes.is_empty() {
        let open = |id: &NodeId| {
            let (id, dir) = (id.clone(), config.data_dir.clone());
            EmbeddedNode::open(EmbeddedConfig { id, dir, params: (**params).clone(), clock: SystemClock })
        };
        let embedded = ids.iter().map(open).collect::<Result<Vec<_>, _>>()?;
        let node = |n: &Arc<_>| Arc::new(AnyNode::Embedded(Arc::clone(n), Arc::clone(observer)));
        return Ok((embedded.iter().map(node).collect(), embedded));
    }
    let tls = node_tls(config)?;
    let mut nodes = Vec::new();
    for (url, id) in config.node_urls()?.into_iter().zip(ids) {
        let invalid = |why: Invalid| AppError::Setting { key: "nodes", why: format!("{id}: {why}") };
        let node = RedisNodeConfig { threads: threads.clone(), ..redis_node(config, id, url, tls.as_ref(), params) };
        let (node, supervisor) = RedisNode::new(node, SystemEntropy, Some(Arc::clone(observer))).map_err(invalid)?;
        tasks.spawn(supervisor);
        nodes.push(Arc::new(AnyNode::Redis(node)));
    }
    Ok((nodes, Vec::new()))
}

fn redis_node(
    config: &Config,
    id: &NodeId,
    url: NodeUrl,
    tls: Option<&NodeTls>,
    params: &Arc<ClusterParams>,
) -> RedisNodeConfig {
    RedisNodeConfig {
        tls: tls.filter(|_| url.is_tls()).cloned(),
        identity: config.identity,
        connect_timeout: config.connect_timeout,
        connections: config.connections_per_node,
        max_in_flight: config.max_in_flight,
        allow_replicas: config.allow_replicas,
        durable: config.durable_nodes,
        ..RedisNodeConfig::new(id.clone(), url, Arc::clone(params), config.node_timeout)
    }
}

/// Opens nodes that are added while the service runs, with user, password, database and certificates of the first configured one.
/// Embedded nodes have no opener: no node can be added to them.
///
/// Errors: as in [`open_nodes`].
pub(super) fn node_opener(
    config: &Config,
    params: &Arc<ClusterParams>,
    observer: &Arc<dyn NodeObserver>,
    latencies: &Arc<NodeLatencies>,
    (tasks, threads): (&BackgroundTasks, &WorkerThreads),
) -> Result<Opener<AnyNode>, AppError> {
    let (config, tls, first) = (config.clone(), node_tls(config)?, config.node_urls()?.into_iter().next());
    let (params, observer) = (Arc::clone(params), Arc::clone(observer));
    let (latencies, tasks, threads) = (Arc::clone(latencies), tasks.clone(), threads.clone());
    Ok(Box::new(move |name, address| {
        let node = redis_node(&config, name, first.clone()?, tls.as_ref(), &params);
        let node = RedisNodeConfig { threads: threads.clone(), ..node };
        let (node, supervisor) = RedisNode::new(node, SystemEntropy, Some(Arc::clone(&observer))).ok()?;
        if !node.move_to(address) {
            return None;
        }
        latencies.add(name);
        tasks.spawn(supervisor);
        Some(Arc::new(AnyNode::Redis(node)))
    }))
}

/// Passes the calls to the metrics and to the latency history of the pages.
pub(super) fn observer(metrics: &Arc<Metrics>, latencies: &Arc<NodeLatencies>) -> Arc<dyn NodeObserver> {
    let (metrics, latencies) = (Arc::clone(metrics), Arc::clone(latencies));
    Arc::new(move |node: &NodeId, operation: &'static str, (now, took): (_, &[Duration]), outcome: Result<(), _>| {
        metrics.node_calls(node, operation, took, outcome);
        latencies.record(node, now, took, outcome);
    })
}

/// The configured names, or those of the embedded nodes.
pub(super) fn node_ids(config: &Config) -> Result<Vec<NodeId>, AppError> {
    if !config.nodes.is_empty() {
        return Ok(config.nodes.iter().map(|n| n.id().clone()).collect());
    }
    let name = |i: usize| NodeId::parse(&format!("embedded-{}", i + 1));
    let ids: Result<Vec<NodeId>, Invalid> = (0..config.embedded_nodes).map(name).collect();
    ids.map_err(|why| AppError::Setting { key: "embedded_nodes", why: why.0 })
}

/// The cluster's configured parameters. Its fingerprint is a hash of the settings on which all instances must agree: the nodes'
/// names in alphabetical order, the guard, the lock delay and the key template.
pub(super) fn cluster_params(config: &Config, ids: &[NodeId]) -> ClusterParams {
    let names: Vec<&str> = ids.iter().map(NodeId::as_str).collect();
    let Config { guard, lock_delay, fence_ttl, .. } = *config;
    let terms = Terms { guard, lock_delay, fence_ttl, template: None };
    ClusterParams {
        cluster: ClusterName::declared(&names, &terms, &config.key_template.to_string()),
        guard,
        lock_delay,
        quarantine: quarantine_for(config.max_ttl, lock_delay, guard),
        fence_ttl,
        template: config.key_template.clone(),
    }
}

/// The name of the cluster for an instance with these settings, unless it learns another one from the nodes.
pub fn cluster_name(config: &Config) -> ClusterName {
    let ids: Vec<NodeId> = config.nodes.iter().map(|n| n.id().clone()).collect();
    cluster_params(config, &ids).cluster
}

/// The algorithm's settings.
pub(super) fn redlock_settings(config: &Config, params: &Arc<ClusterParams>) -> RedlockSettings {
    RedlockSettings {
        params: Arc::clone(params),
        node_timeout: config.node_timeout,
        drift_ppm: config.drift_ppm,
        drift_floor: config.drift_floor,
        min_validity_percent: u8::try_from(config.min_validity_percent).unwrap_or(100),
        retry: BackoffRange { first: config.retry_min, max: config.retry_max },
        poll: POLL_MAX,
        cleanup_limit: config.cleanup_limit,
        fan_out: config.fan_out,
    }
}

/// The certificates for `rediss://` nodes; `None` if none is configured.
///
/// Errors: [`AppError::File`].
pub fn node_tls(config: &Config) -> Result<Option<NodeTls>, AppError> {
    let read = |key: &'static str, path: &Option<PathBuf>| match path {
        None => Ok(None),
        Some(path) => {
            std::fs::read(path).map(Some).map_err(|source| AppError::File { key, path: path.clone(), source })
        }
    };
    let ca = read("tls_ca", &config.tls_ca)?;
    let client = read("tls_cert", &config.tls_cert)?.zip(read("tls_key", &config.tls_key)?);
    Ok((ca.is_some() || client.is_some()).then_some(NodeTls { ca, client }))
}
