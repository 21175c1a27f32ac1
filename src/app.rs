//! The composition root: makes the nodes, the engine, the manager and the door from a checked
//! configuration, starts them, and stops them in order. The only file that spawns long-lived tasks.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use sha2::{Digest, Sha256};
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::Notify;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::audit::{self, Audit};
use crate::auth::access_file::{self, AccessFileError};
use crate::auth::authenticator::Authenticator;
use crate::auth::principal::PrincipalLimits;
use crate::config::{Config, PasswordFileError};
use crate::http::middleware::host::AllowedHosts;
use crate::http::server::reload::{self, WatchedFiles};
use crate::http::server::tls::{Tls, TlsError, TlsFiles};
use crate::http::server::{self, ServeLimits};
use crate::http::server::{fd_limit, socket};
use crate::http::state::{AppState, HttpSettings, LockManager, UiState};
use crate::http::{self, routes};
use crate::manager::latency::NodeLatencies;
use crate::manager::queue::WaitLimits;
use crate::manager::types::Readiness;
use crate::metrics::Metrics;
use crate::nodes::any::AnyNode;
use crate::nodes::embedded::{EmbeddedConfig, EmbeddedNode, OpenError};
use crate::nodes::observer::NodeObserver;
use crate::nodes::redis::{NodeTls, NodeUrl, RedisNode, RedisNodeConfig};
use crate::protocol::{ClusterParams, quarantine_for};
use crate::redlock::backoff::BackoffRange;
use crate::redlock::clock::{Clock, SystemClock};
use crate::redlock::engine::{Redlock, RedlockSettings};
use crate::redlock::entropy::SystemEntropy;
use crate::redlock::monitor::{InitError, NodeMonitor, PROBE_INTERVAL};
use crate::redlock::node::Node;
use crate::types::{Invalid, NodeId, Ttl};

/// How long a start waits for a quorum of nodes before it serves without one.
const START_PATIENCE: Duration = Duration::from_secs(2);
/// How long `init` waits for all nodes.
const INIT_PATIENCE: Duration = Duration::from_secs(10);
/// Time between two looks while waiting for nodes at the start.
const START_LOOK: Duration = Duration::from_millis(20);
/// Longest time between two looks at a resource that another instance or a foreign client holds.
const POLL: Duration = Duration::from_secs(1);

/// The least time to write out the audit log at the end, also where requests are given none.
const AUDIT_FLUSH_MIN: Duration = Duration::from_secs(1);

type Engine = Redlock<AnyNode, SystemClock, SystemEntropy>;

/// Why the service could not start.
#[derive(Debug, thiserror::Error)]
pub enum AppError {
    /// The address is taken, or not ours.
    #[error("cannot listen on {address}")]
    Listen {
        /// As configured.
        address: SocketAddr,
        /// The operating system's word.
        #[source]
        source: std::io::Error,
    },
    /// The operating system gives no threads or timers.
    #[error("the runtime cannot be made: {0}")]
    Runtime(std::io::Error),
    /// A setting that only now turned out to be wrong.
    #[error("`{key}`: {why}")]
    Setting {
        /// Its key.
        key: &'static str,
        /// In one sentence.
        why: String,
    },
    /// A file that the configuration names cannot be read.
    #[error("`{key}`: {path} cannot be read")]
    File {
        /// The key that names it.
        key: &'static str,
        /// The file.
        path: PathBuf,
        /// The operating system's word.
        #[source]
        source: std::io::Error,
    },
    /// A node's password.
    #[error(transparent)]
    NodePassword(#[from] PasswordFileError),
    /// Who may do what cannot be read.
    #[error(transparent)]
    Access(#[from] AccessFileError),
    /// The door's certificate.
    #[error("`listen_tls_cert`: {0}")]
    Tls(#[from] TlsError),
    /// Nobody is to believe that there is an audit log where there is none.
    #[error("`audit_log`: {path} cannot be opened for appending")]
    AuditLog {
        /// As configured.
        path: PathBuf,
        /// The operating system's word.
        #[source]
        source: std::io::Error,
    },
    /// The state of an embedded node.
    #[error("embedded nodes: {0}")]
    Embedded(#[from] OpenError),
    /// Two names for one server.
    #[error("`nodes`: {0} and {1} are one and the same server: its one vote would count twice")]
    SameServer(NodeId, NodeId),
    /// A new cluster could not be declared.
    #[error("nothing was declared: {0}")]
    Init(#[from] InitError),
}

/// The service, listening but not yet serving.
pub struct App {
    listener: TcpListener,
    state: AppState,
    engine: Engine,
    warden: NodeMonitor<AnyNode, SystemClock, SystemEntropy>,
    embedded: Vec<Arc<EmbeddedNode<SystemClock>>>,
    tasks: TaskTracker,
    stop: CancellationToken,
    tls: Option<Arc<Tls>>,
    limits: ServeLimits,
    audit: Option<AuditTask>,
}

/// The writer of the audit log, and what tells it that nothing more will come.
struct AuditTask {
    stop: CancellationToken,
    writer: JoinHandle<()>,
}

impl App {
    /// Listens, opens the nodes, starts what keeps them, and waits for a quorum of them for at most
    /// two seconds.
    ///
    /// Errors: [`AppError`].
    pub async fn start(config: &Config) -> Result<Self, AppError> {
        let (audit, writer) = open_audit(config)?;
        let address = config.listen;
        let listen_error = |source| AppError::Listen { address, source };
        let listener = socket::listen(address).map_err(listen_error)?;
        let ids: Vec<NodeId> = node_ids(config)?;
        let metrics = Metrics::new(&ids, &routes::labels());
        let (tasks, stop) = (TaskTracker::new(), CancellationToken::new());
        let history = Arc::new(NodeLatencies::new(&ids));
        let (nodes, embedded) = open_nodes(config, &ids, &observer(&metrics, &history), &tasks, &stop)?;
        let engine = Engine::new(nodes, SystemClock, SystemEntropy, settings(config, &ids));
        let warden = NodeMonitor::new(engine.clone());
        let limits = WaitLimits {
            per_resource: config.waiters_per_resource,
            total: config.waiters_total,
            detects_deadlocks: config.deadlock_detection,
        };
        let manager = LockManager::new(engine.clone(), warden.clone(), limits, config.list_refresh);
        let ends = Arc::clone(&metrics);
        manager.observe_lease_ends(Box::new(move |end, held| ends.lease_ended(end, held)));
        let gate = Arc::new(gate(config)?);
        let (tls, limits) = (tls_listener(config)?.map(Arc::new), serve_limits(config));
        let state =
            AppState::new(manager.clone(), metrics, http_settings(config)?).with_authenticator(Arc::clone(&gate));
        let state = state.with_audit(audit).with_ui(ui(config, history));
        let audit = writer.map(|writer| {
            let stop = CancellationToken::new();
            let writer = tokio::spawn(writer.run(stop.clone()));
            AuditTask { stop, writer }
        });
        let app = Self { listener, state, engine, warden, embedded, tasks, stop, tls, limits, audit };
        app.reload_on_change(config, &gate)?;
        app.wait_for_nodes().await;
        if let Some((a, b)) = app.warden.same_server() {
            return Err(AppError::SameServer(a, b));
        }
        app.spawn(manager.clone().run_snapshot_refresh());
        app.spawn(manager.run_maintenance());
        Ok(app)
    }

    /// Where it listens: the port that was found, where port 0 was asked for.
    pub fn address(&self) -> std::io::Result<SocketAddr> {
        self.listener.local_addr()
    }

    /// What to tell the person who started it: the address, the nodes, and a line to paste.
    pub fn announcement(&self) -> String {
        let url = self.address().map_or_else(|_| "127.0.0.1:5625".to_owned(), |a| a.to_string());
        let url = format!("{}://{url}", if self.tls.is_some() { "https" } else { "http" });
        let count = self.engine.nodes.len();
        let nodes = match self.embedded.first() {
            Some(node) => {
                let s = if count == 1 { "" } else { "s" };
                let dir = node.path().parent().map(|p| p.display().to_string()).unwrap_or_default();
                format!("{count} embedded node{s} (no Redis configured), state in {dir}")
            }
            None => format!("{count} Redis nodes, {} of them must agree", self.engine.quorum()),
        };
        let state = match self.state.manager.readiness() {
            Readiness::NoQuorum { voting, ready_in } => {
                let soon = ready_in.map(|d| format!(", enough in {} s", d.as_secs().saturating_add(1)));
                let soon = soon.unwrap_or_default();
                let why = http::api::responses::no_vote_reasons(&self.state.manager.nodes());
                format!("\n  not ready: {voting} of {count} nodes vote{soon}; see {url}/nodes{why}")
            }
            _ => String::new(),
        };
        format!(
            "redlockd {} listens on {url}\n  nodes: {nodes}{state}\n  try:   curl -i -d ttl=30s {url}/locks/demo\n",
            env!("CARGO_PKG_VERSION")
        )
    }

    /// Serves until `shutdown` is cancelled, then stops in order: waiters are answered, requests
    /// finish, clean-ups are awaited for as long as the drain timeout allows, embedded nodes write
    /// down that they stopped cleanly.
    ///
    /// Errors: [`AppError::SameServer`], at once when two nodes turn out to be one server.
    /// Cancel: a stop without order; leases stay until their TTL.
    pub async fn run(self, shutdown: CancellationToken) -> Result<(), AppError> {
        let version = env!("CARGO_PKG_VERSION");
        let address = self.address().map(|a| a.to_string()).unwrap_or_default();
        tracing::info!(address, version, nodes = self.engine.nodes.len(), "serving");
        self.spawn(watch(self.warden.clone(), shutdown.clone()));
        let max_connections = fd_limit::connections_allowed(self.engine.nodes.len(), self.limits.max_connections);
        let (drain_timeout, limits) = (self.limits.drain_timeout, ServeLimits { max_connections, ..self.limits });
        let (manager, metrics) = (self.state.manager.clone(), Arc::clone(&self.state.metrics));
        metrics.connections_limit(max_connections);
        let router = http::router(self.state);
        server::serve(self.listener, self.tls, router, limits, metrics, shutdown, || manager.drain()).await;
        self.engine.tasks.close();
        let stragglers = tokio::time::timeout(drain_timeout, self.engine.tasks.wait());
        if stragglers.await.is_err() {
            tracing::warn!("clean-ups were still under way at the end; the TTL of their keys ends them");
        }
        close(self.embedded).await;
        if let Some(AuditTask { stop, writer }) = self.audit {
            stop.cancel();
            if tokio::time::timeout(self.limits.drain_timeout.max(AUDIT_FLUSH_MIN), writer).await.is_err() {
                tracing::error!("the audit log could not be written to its end: what was queued is lost");
            }
        }
        self.stop.cancel();
        self.tasks.close();
        self.tasks.wait().await;
        tracing::info!("stopped");
        match self.warden.same_server() {
            Some((a, b)) => Err(AppError::SameServer(a, b)),
            None => Ok(()),
        }
    }

    fn spawn(&self, work: impl Future<Output = ()> + Send + 'static) {
        spawn(&self.tasks, &self.stop, work);
    }

    /// Has files read again when they change or SIGHUP comes. Where there are none, that signal ends
    /// the process, as the operating system has it.
    fn reload_on_change(&self, config: &Config, gate: &Arc<Authenticator>) -> Result<(), AppError> {
        let metrics = || Arc::clone(&self.state.metrics);
        let access =
            config.access_file.iter().map(|path| WatchedFiles::access(path.clone(), Arc::clone(gate), metrics()));
        let watched: Vec<WatchedFiles> =
            access.chain(self.tls.iter().map(|tls| WatchedFiles::certificates(tls, metrics()))).collect();
        if watched.is_empty() {
            return Ok(());
        }
        let mut hangups = signal(SignalKind::hangup()).map_err(AppError::Runtime)?;
        let asked = Arc::new(Notify::new());
        self.spawn(reload::watch(watched, Arc::clone(&asked)));
        self.spawn(async move {
            while hangups.recv().await.is_some() {
                tracing::info!("asked to read files again");
                asked.notify_one();
            }
        });
        Ok(())
    }

    /// Looks until a quorum votes, every node has said why it does not, or [`START_PATIENCE`] ends.
    async fn wait_for_nodes(&self) {
        let until = SystemClock.now().plus(START_PATIENCE);
        loop {
            self.warden.probe_round().await;
            let all_heard = self.warden.health().iter().all(|node| node.status.is_some());
            let ready = self.state.manager.readiness() == Readiness::Ready;
            if ready || all_heard || SystemClock.now() >= until {
                return;
            }
            SystemClock.sleep(START_LOOK).await;
        }
    }
}

/// Who gets in. Errors: the access file.
fn gate(config: &Config) -> Result<Authenticator, AppError> {
    let Some(path) = &config.access_file else { return Ok(Authenticator::open()) };
    let limits = PrincipalLimits {
        requests_per_second: Some(config.requests_per_second),
        leases: Some(config.leases_per_principal),
        waiters: Some(config.waiters_per_principal),
    };
    Ok(Authenticator::with_principals(access_file::read(path)?, limits))
}

/// The audit log as configured; off by default.
fn open_audit(config: &Config) -> Result<(Audit, Option<audit::Writer>), AppError> {
    let Some(path) = &config.audit_log else { return Ok((Audit::default(), None)) };
    let unopened = |source| AppError::AuditLog { path: path.clone(), source };
    let (audit, writer) = Audit::open(path).map_err(unopened)?;
    Ok((audit, Some(writer)))
}

/// Embedded nodes write down that they stopped cleanly; the disk may take its time.
async fn close(embedded: Vec<Arc<EmbeddedNode<SystemClock>>>) {
    let closing = tokio::task::spawn_blocking(move || {
        for node in embedded {
            if let Err(error) = node.close() {
                tracing::error!(node = %node.id(), %error, "the clean stop could not be written down");
            }
        }
    });
    if closing.await.is_err() {
        tracing::error!("the clean stop could not be written down");
    }
}

/// Looks at the nodes again and again; stops the service where two of them are one server.
async fn watch(warden: NodeMonitor<AnyNode, SystemClock, SystemEntropy>, shutdown: CancellationToken) {
    loop {
        warden.probe_round().await;
        if let Some((a, b)) = warden.same_server() {
            tracing::error!(node = %a, also = %b, "two nodes are one and the same server: its vote would count twice");
            shutdown.cancel();
        }
        SystemClock.sleep(PROBE_INTERVAL).await;
    }
}

/// Spawns a long-lived task that ends with the service.
fn spawn(tasks: &TaskTracker, stop: &CancellationToken, work: impl Future<Output = ()> + Send + 'static) {
    let stop = stop.clone();
    tasks.spawn(async move {
        tokio::select! {
            biased;
            () = stop.cancelled() => {}
            () = work => {}
        }
    });
}

/// Declares a new cluster on the configured Redis nodes; what to tell the operator.
///
/// Errors: [`AppError`]; nothing was declared where a node is missing or part of a cluster already.
pub async fn init(config: &Config) -> Result<String, AppError> {
    if config.nodes.is_empty() {
        let why = "no Redis node is configured; embedded nodes declare themselves".to_owned();
        return Err(AppError::Setting { key: "nodes", why });
    }
    let ids = node_ids(config)?;
    let metrics = Metrics::new(&ids, &[]);
    let (tasks, stop) = (TaskTracker::new(), CancellationToken::new());
    let observer = observer(&metrics, &Arc::new(NodeLatencies::new(&ids)));
    let (nodes, _) = open_nodes(config, &ids, &observer, &tasks, &stop)?;
    let count = nodes.len();
    let engine = Engine::new(nodes, SystemClock, SystemEntropy, settings(config, &ids));
    let warden = NodeMonitor::new(engine.clone());
    let until = SystemClock.now().plus(INIT_PATIENCE);
    let outcome = loop {
        match warden.init().await {
            Err(InitError::Unreachable(..)) if SystemClock.now() < until => SystemClock.sleep(START_LOOK).await,
            outcome => break outcome,
        }
        if let Some((a, b)) = warden.same_server() {
            return Err(AppError::SameServer(a, b));
        }
    };
    stop.cancel();
    tasks.close();
    tasks.wait().await;
    outcome?;
    Ok(format!("declared a new cluster of {count} nodes; {} of them must agree", engine.quorum()))
}

type OpenedNodes = (Vec<Arc<AnyNode>>, Vec<Arc<EmbeddedNode<SystemClock>>>);

fn open_nodes(
    config: &Config,
    ids: &[NodeId],
    observer: &Arc<dyn NodeObserver>,
    tasks: &TaskTracker,
    stop: &CancellationToken,
) -> Result<OpenedNodes, AppError> {
    let params = Arc::new(cluster_params(config, ids));
    if config.nodes.is_empty() {
        let open = |id: &NodeId| {
            let (id, dir) = (id.clone(), config.data_dir.clone());
            EmbeddedNode::open(EmbeddedConfig { id, dir, params: (*params).clone(), clock: SystemClock })
        };
        let embedded = ids.iter().map(open).collect::<Result<Vec<_>, _>>()?;
        let node = |n: &Arc<_>| Arc::new(AnyNode::Embedded(Arc::clone(n), Arc::clone(observer)));
        return Ok((embedded.iter().map(node).collect(), embedded));
    }
    let tls = node_tls(config)?;
    let mut nodes = Vec::new();
    for (url, id) in config.node_urls()?.iter().zip(ids) {
        let invalid = |why: Invalid| AppError::Setting { key: "nodes", why: format!("{id}: {why}") };
        let url = NodeUrl::parse(url.reveal()).map_err(invalid)?;
        let node = RedisNodeConfig {
            tls: if url.is_tls() { tls.clone() } else { None },
            key_template: config.key_template.clone(),
            identity: config.identity,
            connect_timeout: config.connect_timeout,
            connections: config.connections_per_node,
            max_in_flight: config.max_in_flight,
            ..RedisNodeConfig::new(id.clone(), url, Arc::clone(&params), config.node_timeout)
        };
        let (node, supervisor) = RedisNode::new(node, SystemEntropy, Some(Arc::clone(observer))).map_err(invalid)?;
        spawn(tasks, stop, supervisor);
        nodes.push(Arc::new(AnyNode::Redis(node)));
    }
    Ok((nodes, Vec::new()))
}

/// Who is told of each call to a node: what is counted for ever, and what is kept of late.
fn observer(metrics: &Arc<Metrics>, history: &Arc<NodeLatencies>) -> Arc<dyn NodeObserver> {
    let (metrics, history) = (Arc::clone(metrics), Arc::clone(history));
    Arc::new(move |node: &NodeId, verb: &'static str, took: Duration, outcome: Result<(), _>| {
        metrics.node_call(node, verb, took, outcome);
        history.note(node, SystemClock.now(), took, outcome);
    })
}

/// What the pages need, where there are to be any.
fn ui(config: &Config, node_latencies: Arc<NodeLatencies>) -> Option<UiState> {
    config.ui.then_some(UiState { node_latencies, secure_cookies: config.listen_tls_cert.is_some() })
}

fn node_ids(config: &Config) -> Result<Vec<NodeId>, AppError> {
    if !config.nodes.is_empty() {
        return Ok(config.nodes.iter().map(|n| n.id().clone()).collect());
    }
    let name = |i: usize| NodeId::parse(&format!("embedded-{}", i + 1));
    let ids: Result<Vec<NodeId>, Invalid> = (0..config.embedded_nodes).map(name).collect();
    ids.map_err(|why| AppError::Setting { key: "embedded_nodes", why: why.0 })
}

/// What all instances must agree on is hashed into the cluster's fingerprint: the nodes' names in
/// order of the alphabet, the guard, the lock delay, the life of fence counters and the key template.
fn cluster_params(config: &Config, ids: &[NodeId]) -> ClusterParams {
    let mut names: Vec<&str> = ids.iter().map(NodeId::as_str).collect();
    names.sort_unstable();
    let text = format!(
        "{}\n{}\n{}\n{}\n{}",
        names.join("\n"),
        config.guard.as_millis(),
        config.lock_delay.as_millis(),
        config.fence_ttl.as_millis(),
        config.key_template
    );
    let digest = Sha256::digest(text.as_bytes());
    let fingerprint: String = digest.iter().take(8).map(|b| format!("{b:02x}")).collect();
    ClusterParams {
        cluster: fingerprint.into(),
        guard: config.guard,
        lock_delay: config.lock_delay,
        quarantine: quarantine_for(config.max_ttl, config.lock_delay, config.guard),
        fence_ttl: config.fence_ttl,
    }
}

fn settings(config: &Config, ids: &[NodeId]) -> RedlockSettings {
    RedlockSettings {
        params: Arc::new(cluster_params(config, ids)),
        node_timeout: config.node_timeout,
        drift_ppm: config.drift_ppm,
        drift_floor: config.drift_floor,
        min_validity_percent: u8::try_from(config.min_validity_percent).unwrap_or(100),
        retry: BackoffRange { first: config.retry_min, max: config.retry_max },
        poll: POLL,
        cleanup_limit: config.cleanup_limit,
    }
}

fn http_settings(config: &Config) -> Result<HttpSettings, AppError> {
    let ttl = |key: &'static str, period: Duration| {
        let ms = u64::try_from(period.as_millis()).unwrap_or(u64::MAX);
        Ttl::from_ms(ms).map_err(|why| AppError::Setting { key, why: why.0 })
    };
    Ok(HttpSettings {
        default_ttl: ttl("default_ttl", config.default_ttl)?,
        min_ttl: ttl("min_ttl", config.min_ttl)?,
        max_ttl: ttl("max_ttl", config.max_ttl)?,
        max_wait: config.max_wait,
        max_hold: config.max_hold,
        body_limit: config.body_limit,
        body_timeout: config.body_timeout,
        uri_limit: config.uri_limit,
        trusted_proxies: config.trusted_proxies.clone(),
        hosts: hosts(config),
        is_open_to_others: config.is_open_to_others(),
    })
}

/// Names under which the service may be asked. Where everybody who can connect may do everything, as
/// somebody insisted, and no name is listed, each is as good as another: in a network of containers
/// the service has the name that it was given there.
fn hosts(config: &Config) -> AllowedHosts {
    match config.is_open_to_others() && config.allowed_hosts.is_empty() {
        true => AllowedHosts::any(),
        false => AllowedHosts::of(config.allowed_hosts.clone()),
    }
}

fn serve_limits(config: &Config) -> ServeLimits {
    ServeLimits {
        max_connections: config.max_connections,
        header_timeout: config.header_timeout,
        idle_timeout: config.idle_timeout,
        head_limit: config.head_limit,
        drain_timeout: config.drain_timeout,
    }
}

/// The door's certificate. Errors: its files.
fn tls_listener(config: &Config) -> Result<Option<Tls>, TlsError> {
    let Some((cert, key)) = config.listen_tls_cert.clone().zip(config.listen_tls_key.clone()) else { return Ok(None) };
    Tls::read(TlsFiles { cert, key, client_ca: config.listen_tls_client_ca.clone() }).map(Some)
}

fn node_tls(config: &Config) -> Result<Option<NodeTls>, AppError> {
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
