//! The running service: start, serve, and stop in order.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::Notify;
use tokio::task::JoinHandle;
use tokio_util::sync::{CancellationToken, DropGuard};

use super::background::BackgroundTasks;
use super::error::AppError;
use super::nodes::{ConfiguredRedlock, cluster_params, node_ids, node_opener, observer, open_nodes, redlock_settings};
use super::settings::{authenticator, http_settings, open_audit, server_tls, ui_state};
use super::settings::{warn_of_readable_keys, warn_of_replaceable_files};
use super::webhooks::{self, HooksTask};
use crate::audit;
use crate::auth::authenticator::Authenticator;
use crate::auth::principal::PrincipalName;
use crate::auth::quota::CountedName;
use crate::config::Config;
use crate::http::server::issuer_keys;
use crate::http::server::reload::{self, WatchedFiles};
use crate::http::server::serve::{self, ServeLimits, ServedListener};
use crate::http::server::tls::Tls;
use crate::http::server::{fd_limit, socket};
use crate::http::state::{AppState, ServiceManager};
use crate::http::{self, routes};
use crate::manager::events::EventKind;
use crate::manager::incident_file::HistoryFile;
use crate::manager::kept_leases::{KeepLimits, KeptLeaseEvent};
use crate::manager::latency::NodeLatencies;
use crate::manager::tag_of;
use crate::manager::tickets::TicketLimits;
use crate::manager::types::Readiness;
use crate::metrics::Metrics;
use crate::metrics::connections::ReloadedFile;
use crate::nodes::any_node::AnyNode;
use crate::nodes::embedded::EmbeddedNode;
use crate::redlock::clock::{Clock, SystemClock};
use crate::redlock::monitor::NodeMonitor;
use crate::redlock::node::Node;
use crate::redlock::random::SystemEntropy;
use crate::waiting::event::WaitLimits;
use crate::worker_threads::WorkerThreads;

/// Maximum time that a start waits for a quorum of nodes before it serves without one.
const START_TIMEOUT: Duration = Duration::from_secs(2);
/// Time between two probe rounds while a start waits.
const START_PROBE_INTERVAL: Duration = Duration::from_millis(20);
/// Minimum time to write out the audit log at the end, whatever the drain timeout is.
const AUDIT_FLUSH_MIN: Duration = Duration::from_secs(1);

type Monitor = NodeMonitor<AnyNode, SystemClock, SystemEntropy>;

/// The service. [`App::start`] binds the address; [`App::run`] accepts connections.
pub struct App {
    listener: TcpListener,
    state: AppState,
    engine: ConfiguredRedlock,
    monitor: Monitor,
    embedded: Vec<Arc<EmbeddedNode<SystemClock>>>,
    tasks: BackgroundTasks,
    tls: Option<Arc<Tls>>,
    limits: ServeLimits,
    audit: Option<AuditTask>,
    hooks: HooksTask,
    drain_delay: Duration,
    threads: WorkerThreads,
    /// Ends the threads, at last.
    threads_end: DropGuard,
}

/// The writer of the audit log. It ends when `stop` is cancelled and its queue is written.
struct AuditTask {
    stop: CancellationToken,
    writer: JoinHandle<()>,
}

impl AuditTask {
    fn spawn(writer: audit::Writer) -> Self {
        let stop = CancellationToken::new();
        let writer = tokio::spawn(writer.run(stop.clone()));
        Self { stop, writer }
    }

    async fn finish(self, limit: Duration) {
        self.stop.cancel();
        if tokio::time::timeout(limit, self.writer).await.is_err() {
            tracing::error!("the audit log was not written completely: queued records are lost");
        }
    }
}

/// The principal of the access file whose hash this is.
fn name_of(authenticator: &Authenticator, cluster: &str, principal: &str) -> Option<PrincipalName> {
    let store = authenticator.store();
    let mut names = store.principals().iter().map(|known| &known.name);
    names.find(|name| tag_of(cluster, name) == principal).cloned()
}

/// Lets metrics and quotas follow kept leases.
fn keep_leases(config: &Config, manager: &ServiceManager, metrics: &Arc<Metrics>, authenticator: &Arc<Authenticator>) {
    let limits = KeepLimits { max: config.max_keep, total: config.kept_total };
    let (metrics, authenticator) = (Arc::clone(metrics), Arc::clone(authenticator));
    let cluster = Arc::clone(&manager.engine().settings.params);
    manager.set_keeping(
        limits,
        Box::new(move |event| {
            metrics.kept(event);
            match event {
                KeptLeaseEvent::Renewed { resource, token, mode, principal, deadline, .. } => {
                    let lease = CountedName::of(resource, token.id(), mode);
                    let acquired_by = || name_of(&authenticator, &cluster.cluster.get(), principal);
                    authenticator.quotas().kept(lease, deadline, acquired_by);
                }
                KeptLeaseEvent::Ended { resource, token, .. } => authenticator.quotas().ended((resource, token.id())),
                KeptLeaseEvent::NotRenewed(_) => {}
            }
        }),
    );
}

/// Lets metrics and quotas follow tickets.
fn serve_tickets(
    config: &Config,
    manager: &ServiceManager,
    metrics: &Arc<Metrics>,
    authenticator: &Arc<Authenticator>,
) {
    let Config { max_ticket_wait: max_wait, max_keep, tickets_total: total, .. } = *config;
    let metrics = Arc::clone(metrics);
    let limits = TicketLimits { max_wait, max_keep, total };
    manager.set_tickets(limits, Box::new(move |event| metrics.ticket(event)));
    let (authenticator, params) = (Arc::clone(authenticator), Arc::clone(&manager.engine().settings.params));
    manager.set_ticket_quota(Box::new(move |principal, count| {
        let name = name_of(&authenticator, &params.cluster.get(), principal)?;
        Some(authenticator.quotas().taken_over(&name, count))
    }));
}

impl App {
    /// Binds the listen address, opens the nodes, starts the background tasks, and waits up to two
    /// seconds for a quorum of nodes.
    ///
    /// Errors: [`AppError`].
    pub async fn start(config: &Config) -> Result<Self, AppError> {
        warn_of_readable_keys(config);
        warn_of_replaceable_files(config);
        let (audit, audit_writer) = open_audit(config)?;
        let address = config.listen;
        let listen_error = |source| AppError::Listen { address, source };
        let listener = socket::listen(address).map_err(listen_error)?;
        let ids = node_ids(config)?;
        let metrics = Metrics::new(&ids, &routes::labels());
        let tasks = BackgroundTasks::default();
        let (threads, threads_end) = WorkerThreads::start(config.worker_threads).map_err(AppError::Runtime)?;
        let latencies = Arc::new(NodeLatencies::new(&ids));
        let (params, observer) = (Arc::new(cluster_params(config, &ids)), observer(&metrics, &latencies));
        let (nodes, embedded) = open_nodes(config, &ids, &params, &observer, (&tasks, &threads))?;
        let engine = ConfiguredRedlock::new(nodes, SystemClock, SystemEntropy, redlock_settings(config, &params));
        engine.set_opener(node_opener(config, &params, &observer, &latencies, (&tasks, &threads))?);
        let monitor = NodeMonitor::new(engine.clone());
        let limits = WaitLimits {
            per_resource: config.waiters_per_resource,
            total: config.waiters_total,
            detects_deadlocks: config.deadlock_detection,
        };
        let manager = ServiceManager::new(engine.clone(), monitor.clone(), limits, config.list_refresh);
        let ends = Arc::clone(&metrics);
        manager.observe_lease_ends(Box::new(move |end, held| ends.lease_ended(end, held)));
        manager.count_calls_in(&latencies);
        let authenticator = Arc::new(authenticator(config)?);
        keep_leases(config, &manager, &metrics, &authenticator);
        serve_tickets(config, &manager, &metrics, &authenticator);
        let (tls, limits) = (server_tls(config)?.map(Arc::new), ServeLimits::from_config(config));
        let webhooks = webhooks::open(config, &manager, &metrics)?;
        let state = AppState::new(manager.clone(), metrics, http_settings(config)?)
            .with_authenticator(Arc::clone(&authenticator))
            .with_webhooks(Arc::clone(&webhooks))
            .with_audit(audit)
            .with_ui(ui_state(config, latencies));
        let audit = audit_writer.map(AuditTask::spawn);
        let drain_delay = config.drain_delay;
        let hooks = HooksTask::spawn(&webhooks, manager.clone());
        let app = Self {
            listener,
            state,
            engine,
            monitor,
            embedded,
            tasks,
            tls,
            limits,
            audit,
            hooks,
            drain_delay,
            threads,
            threads_end,
        };
        app.reload_on_change(config, &authenticator)?;
        app.wait_for_nodes().await;
        if let Some((a, b)) = app.monitor.same_server() {
            return Err(AppError::SameServer(a, b));
        }
        app.keep_history(config);
        app.tasks.spawn(manager.clone().run_snapshot_refresh());
        app.tasks.spawn(manager.clone().run_waiter_exchange());
        app.tasks.spawn(manager.clone().run_keeper());
        app.tasks.spawn(manager.clone().run_tickets());
        app.tasks.spawn(manager.run_maintenance());
        Ok(app)
    }

    /// The listen address, with the assigned port if port 0 was configured.
    pub fn address(&self) -> std::io::Result<SocketAddr> {
        self.listener.local_addr()
    }

    /// The message for the person who started the service: the address, the nodes, and a first command.
    pub fn announcement(&self) -> String {
        let url = self.address().map_or_else(|_| "127.0.0.1:5625".to_owned(), |a| a.to_string());
        let url = format!("{}://{url}", if self.tls.is_some() { "https" } else { "http" });
        let count = self.engine.size();
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
                let why = http::api::lock_responses::no_vote_reasons(&self.state.manager.nodes());
                format!("\n  not ready: {voting} of {count} nodes vote{soon}; see {url}/nodes{why}")
            }
            _ => String::new(),
        };
        let key = if self.state.authenticator.is_open() { "" } else { "-H 'Authorization: Bearer KEY' " };
        format!(
            "redlockd {} listens on {url}\n  nodes: {nodes}{state}\n  try:   curl -i {key}-d ttl=30s {url}/locks/demo\n",
            env!("CARGO_PKG_VERSION")
        )
    }

    /// Serves until `shutdown` is cancelled, then stops in order: waiters are answered, requests
    /// finish, clean-ups are awaited for up to the drain timeout, embedded nodes record a clean stop.
    ///
    /// Errors: [`AppError::SameServer`], at once when two nodes turn out to be one server.
    /// Cancel: an unclean stop; leases remain until their TTL.
    pub async fn run(self, shutdown: CancellationToken) -> Result<(), AppError> {
        let version = env!("CARGO_PKG_VERSION");
        let address = self.address().map(|a| a.to_string()).unwrap_or_default();
        let instance = self.state.manager.instance().as_str();
        tracing::info!(address, version, instance, nodes = self.engine.nodes.len(), "serving");
        self.report(EventKind::Started, format!("redlockd {version} on {address}"));
        self.tasks.spawn(monitor_nodes(self.monitor.clone(), shutdown.clone()));
        // Each thread has connections of its own to each node.
        let nodes = self.engine.nodes.len() * self.threads.count();
        let max_connections = fd_limit::connections_allowed(nodes, self.limits.max_connections);
        let (drain_timeout, limits) = (self.limits.drain_timeout, ServeLimits { max_connections, ..self.limits });
        let (manager, metrics) = (self.state.manager.clone(), Arc::clone(&self.state.metrics));
        metrics.connections_limit(max_connections);
        let close = CancellationToken::new();
        self.tasks.spawn(leave(manager.clone(), self.drain_delay, shutdown, close.clone()));
        let routes = http::lock_routes::routes(self.state);
        let listener = ServedListener { listener: self.listener, tls: self.tls, threads: self.threads };
        serve::serve(listener, routes, limits, metrics, close, || manager.drain()).await;
        self.engine.tasks.close();
        if tokio::time::timeout(drain_timeout, self.engine.tasks.wait()).await.is_err() {
            tracing::warn!("clean-ups did not finish before the stop; the TTL of their keys ends them");
        }
        close_embedded(self.embedded).await;
        self.hooks.finish(drain_timeout).await;
        if let Some(audit) = self.audit {
            audit.finish(drain_timeout.max(AUDIT_FLUSH_MIN)).await;
        }
        self.tasks.stop().await;
        drop(self.threads_end);
        tracing::info!("stopped");
        match self.monitor.votes_twice() {
            Some((a, b)) => Err(AppError::SameServer(a, b)),
            None => Ok(()),
        }
    }

    /// Reloads the access file and certificates when they change or on SIGHUP. If none is configured, SIGHUP keeps its default
    /// effect, which ends the process.
    fn reload_on_change(&self, config: &Config, authenticator: &Arc<Authenticator>) -> Result<(), AppError> {
        let report = || {
            let (metrics, manager) = (Arc::clone(&self.state.metrics), self.state.manager.clone());
            move |file: ReloadedFile, is_in_force| {
                metrics.reloaded(file, is_in_force);
                manager.events().publish(EventKind::Reloaded, manager.wall_ms(), |event| {
                    event.reason = Some(if is_in_force { "in force" } else { "rejected" }.to_owned());
                    event.detail = Some(file.as_str().to_owned());
                });
            }
        };
        let access = config
            .access_file
            .iter()
            .map(|path| WatchedFiles::access(path.clone(), Arc::clone(authenticator), report()));
        let webhooks =
            (config.webhooks_file.iter()).map(|_| WatchedFiles::webhooks(Arc::clone(&self.state.webhooks), report()));
        let watched: Vec<WatchedFiles> = access
            .chain(webhooks)
            .chain(
                self.tls.iter().map(|tls| WatchedFiles::certificates(tls, report(), Arc::clone(&self.state.metrics))),
            )
            .collect();
        if watched.is_empty() {
            return Ok(());
        }
        if !authenticator.is_open() {
            self.tasks.spawn(issuer_keys::keep(Arc::clone(authenticator), Arc::clone(&self.state.metrics)));
        }
        let mut hangups = signal(SignalKind::hangup()).map_err(AppError::Runtime)?;
        let requested = Arc::new(Notify::new());
        self.tasks.spawn(reload::watch(watched, Arc::clone(&requested)));
        self.tasks.spawn(async move {
            while hangups.recv().await.is_some() {
                tracing::info!("SIGHUP: reloading files");
                requested.notify_one();
            }
        });
        Ok(())
    }

    fn report(&self, kind: EventKind, detail: String) {
        let manager = &self.state.manager;
        manager.events().publish(kind, manager.wall_ms(), |event| event.detail = Some(detail));
    }

    /// Keeps incidents in the data directory, if there is one. Nothing depends on it, so an error is only logged.
    fn keep_history(&self, config: &Config) {
        match HistoryFile::open(&config.data_dir) {
            Ok(Some(file)) => self.tasks.spawn(Arc::clone(self.state.manager.events()).run_history(file)),
            Ok(None) => {}
            Err(error) => {
                let dir = config.data_dir.display();
                tracing::warn!(%error, %dir, "incidents of former runs are not known, and those of this one not kept");
            }
        }
    }

    /// Probes until a quorum votes, every node has answered, or [`START_TIMEOUT`] has passed.
    async fn wait_for_nodes(&self) {
        let until = SystemClock.now().plus(START_TIMEOUT);
        loop {
            self.monitor.probe_round().await;
            let all_answered = self.monitor.health().iter().all(|node| node.status.is_some());
            let is_ready = self.state.manager.readiness() == Readiness::Ready;
            if is_ready || all_answered || SystemClock.now() >= until {
                return;
            }
            SystemClock.sleep(START_PROBE_INTERVAL).await;
        }
    }
}

/// At `shutdown` the instance is no longer ready; after `delay`, when balancers have noticed, `close` is cancelled.
async fn leave(manager: ServiceManager, delay: Duration, shutdown: CancellationToken, close: CancellationToken) {
    shutdown.cancelled().await;
    manager.leave();
    manager.events().publish(EventKind::Stopping, manager.wall_ms(), |_| {});
    if !delay.is_zero() {
        tracing::info!(drain_delay = ?delay, "stopping: not ready any more; requests are still accepted");
        SystemClock.sleep(delay).await;
    }
    close.cancel();
}

/// Records a clean stop of the embedded nodes, on a thread that may block on the disk.
async fn close_embedded(embedded: Vec<Arc<EmbeddedNode<SystemClock>>>) {
    let closing = tokio::task::spawn_blocking(move || {
        for node in embedded {
            if let Err(error) = node.close() {
                tracing::error!(node = %node.id(), %error, "the clean stop could not be recorded");
            }
        }
    });
    if closing.await.is_err() {
        tracing::error!("the clean stop could not be recorded");
    }
}

/// Probes the nodes for ever; shuts the service down if two of them are one server.
async fn monitor_nodes(monitor: Monitor, shutdown: CancellationToken) {
    let probes = probe_nodes(monitor.clone(), shutdown);
    futures_util::future::join(probes, monitor.change_views()).await;
}

async fn probe_nodes(monitor: Monitor, shutdown: CancellationToken) {
    let mut reported = None;
    loop {
        monitor.probe_round().await;
        let same = monitor.same_server();
        if same != reported
            && let Some((a, b)) = &same
        {
            tracing::error!(node = %a, also = %b, "two names lead to one server: the one that had another server has no vote");
        }
        reported = same;
        if let Some((a, b)) = monitor.votes_twice() {
            tracing::error!(node = %a, also = %b, "two nodes are one and the same server: its vote would count twice");
            shutdown.cancel();
        }
        monitor.until_next_probe().await;
    }
}
