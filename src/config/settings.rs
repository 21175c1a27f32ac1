//! The configuration as the rest of the program sees it: checked and typed. Knows no file, no
//! environment and no key's spelling but where it says where a value came from.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use ipnet::IpNet;

use super::error::Origin;
use super::layers::Values;
use super::nodes::NodeSpec;

/// How a restart of a node is noticed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Identity {
    /// When a connection is made.
    Handshake,
    /// By an `INFO` in every script.
    Script,
}

/// The form of the log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LogFormat {
    /// For a terminal.
    Text,
    /// For a collector.
    Json,
}

/// The least level that is logged.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LogLevel {
    /// Somebody must act.
    Error,
    /// Somebody should look.
    Warn,
    /// Start, stop, nodes that come and go.
    Info,
    /// Requests.
    Debug,
    /// Everything.
    Trace,
}

impl LogLevel {
    /// The word, as in the file.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Error => "error",
            Self::Warn => "warn",
            Self::Info => "info",
            Self::Debug => "debug",
            Self::Trace => "trace",
        }
    }
}

/// Every setting. `config/redlockd.toml` says what each is for, its range and why it has its
/// default; [`super::Inputs::load`] makes one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Config {
    /// Where to listen; port 0 takes a free one.
    pub listen: SocketAddr,
    /// TOML file with the principals, their keys' hashes and their rules.
    pub access_file: Option<PathBuf>,
    /// Whether others may reach the service although there are no keys.
    pub insecure_no_auth: bool,
    /// Requests of one principal per second, on average.
    pub requests_per_second: u32,
    /// Leases that one principal may have at a time, of this instance.
    pub leases_per_principal: usize,
    /// Requests of one principal that may wait at a time, on this instance.
    pub waiters_per_principal: usize,
    /// PEM file of the certificate that callers are shown; with it the door speaks TLS.
    pub listen_tls_cert: Option<PathBuf>,
    /// PEM file of its private key.
    pub listen_tls_key: Option<PathBuf>,
    /// PEM file of the authorities for callers' certificates.
    pub listen_tls_client_ca: Option<PathBuf>,
    /// Proxies whose word on where a request comes from is taken.
    pub trusted_proxies: Vec<IpNet>,
    /// Most connections at a time.
    pub max_connections: usize,
    /// How long a connection may be without a request.
    pub idle_timeout: Duration,
    /// How long the head of a request may take, and a TLS handshake.
    pub header_timeout: Duration,
    /// Largest head of a request, bytes.
    pub head_limit: usize,
    /// Longest path and query, bytes.
    pub uri_limit: usize,
    /// How long a body may take to arrive.
    pub body_timeout: Duration,
    /// Largest request body, bytes.
    pub body_limit: usize,
    /// Longest wait that a caller may ask for.
    pub max_wait: Duration,
    /// Longest that a lease is renewed for a connection that holds it.
    pub max_hold: Duration,
    /// Most waiters for one resource.
    pub waiters_per_resource: usize,
    /// Most waiters for all resources.
    pub waiters_total: usize,
    /// Whether owners that wait for each other are looked for.
    pub deadlock_detection: bool,
    /// How long requests under way may take to finish after SIGTERM.
    pub drain_timeout: Duration,
    /// Whether there are pages under `/ui/`.
    pub ui: bool,
    /// Names of hosts, besides addresses and loopback names, under which the service may be asked.
    pub allowed_hosts: Vec<String>,
    /// The Redis nodes; empty: embedded ones.
    pub nodes: Vec<NodeSpec>,
    /// File with the password of those nodes whose URL has none.
    pub node_password_file: Option<PathBuf>,
    /// How many embedded nodes; odd.
    pub embedded_nodes: usize,
    /// Where embedded nodes keep their state file; not created here.
    pub data_dir: PathBuf,
    /// `{resource}` once, and what stands around it in a key.
    pub key_template: String,
    /// How a restart of a node is noticed.
    pub identity: Identity,
    /// How long one node may take to answer.
    pub node_timeout: Duration,
    /// How long connecting may take, handshake and TLS included.
    pub connect_timeout: Duration,
    /// Connections per node for lock commands.
    pub lanes: usize,
    /// Most commands under way on one node.
    pub max_in_flight: usize,
    /// Most clean-ups and repairs that run at once.
    pub cleanup_limit: usize,
    /// How old the list of held leases may get.
    pub list_refresh: Duration,
    /// PEM file of the authorities that sign the nodes' certificates; `None`: the system's.
    pub tls_ca: Option<PathBuf>,
    /// PEM file of our certificate; there is a key where there is one.
    pub tls_cert: Option<PathBuf>,
    /// PEM file of its private key.
    pub tls_key: Option<PathBuf>,
    /// TTL of a request that names none.
    pub default_ttl: Duration,
    /// Least TTL.
    pub min_ttl: Duration,
    /// Largest TTL.
    pub max_ttl: Duration,
    /// Allowance for clock rates, parts per million of the TTL.
    pub drift_ppm: u32,
    /// Constant part of that allowance.
    pub drift_floor: Duration,
    /// Clock offset, or age of a request, beyond which a node does not vote.
    pub guard: Duration,
    /// Added to each TTL on the nodes, never promised.
    pub lock_delay: Duration,
    /// Least part of the TTL that a grant must have left, percent.
    pub min_validity_percent: u32,
    /// Upper end of the first pause before a round is repeated.
    pub retry_min: Duration,
    /// Upper end of all such pauses.
    pub retry_max: Duration,
    /// How long an unused fence counter is kept.
    pub fence_ttl: Duration,
    /// The form of the log.
    pub log_format: LogFormat,
    /// The least level that is logged.
    pub log_level: LogLevel,
    /// Where the audit log goes; `stdout` is standard output.
    pub audit_log: Option<PathBuf>,
    /// Threads of the runtime; 0: one per CPU.
    pub worker_threads: usize,
    pub(super) origins: BTreeMap<&'static str, Origin>,
}

impl Config {
    /// Where the value of a key came from; `None` if there is no such key.
    pub fn origin_of(&self, key: &str) -> Option<Origin> {
        self.origins.get(key).copied()
    }

    /// The most that clock rates may cost of a lease of `ttl`: `ttl * drift_ppm / 10^6`, rounded up
    /// to whole microseconds, plus `drift_floor`.
    pub(super) fn drift(&self, ttl: Duration) -> Duration {
        let us = ttl.as_micros().saturating_mul(u128::from(self.drift_ppm)).div_ceil(1_000_000);
        Duration::from_micros(u64::try_from(us).unwrap_or(u64::MAX)).saturating_add(self.drift_floor)
    }

    /// From values for every key; `data_dir` where the settings name none.
    pub(super) fn from_values(values: &Values, data_dir: PathBuf) -> Self {
        Self {
            listen: values.address("listen"),
            access_file: values.path("access_file"),
            insecure_no_auth: values.flag("insecure_no_auth"),
            requests_per_second: values.integer("requests_per_second"),
            leases_per_principal: values.integer("leases_per_principal"),
            waiters_per_principal: values.integer("waiters_per_principal"),
            listen_tls_cert: values.path("listen_tls_cert"),
            listen_tls_key: values.path("listen_tls_key"),
            listen_tls_client_ca: values.path("listen_tls_client_ca"),
            trusted_proxies: values.networks("trusted_proxies"),
            max_connections: values.integer("max_connections"),
            idle_timeout: values.duration("idle_timeout"),
            header_timeout: values.duration("header_timeout"),
            head_limit: values.integer("head_limit"),
            uri_limit: values.integer("uri_limit"),
            body_timeout: values.duration("body_timeout"),
            body_limit: values.integer("body_limit"),
            max_wait: values.duration("max_wait"),
            max_hold: values.duration("max_hold"),
            waiters_per_resource: values.integer("waiters_per_resource"),
            waiters_total: values.integer("waiters_total"),
            deadlock_detection: values.text("deadlock_detection") == "on",
            drain_timeout: values.duration("drain_timeout"),
            ui: values.text("ui") == "on",
            allowed_hosts: values.list("allowed_hosts"),
            nodes: values.nodes("nodes"),
            node_password_file: values.path("node_password_file"),
            embedded_nodes: values.integer("embedded_nodes"),
            data_dir: values.path("data_dir").unwrap_or(data_dir),
            key_template: values.text("key_template").to_owned(),
            identity: match values.text("identity") {
                "script" => Identity::Script,
                _ => Identity::Handshake,
            },
            node_timeout: values.duration("node_timeout"),
            connect_timeout: values.duration("connect_timeout"),
            lanes: values.integer("lanes"),
            max_in_flight: values.integer("max_in_flight"),
            cleanup_limit: values.integer("cleanup_limit"),
            list_refresh: values.duration("list_refresh"),
            tls_ca: values.path("tls_ca"),
            tls_cert: values.path("tls_cert"),
            tls_key: values.path("tls_key"),
            default_ttl: values.duration("default_ttl"),
            min_ttl: values.duration("min_ttl"),
            max_ttl: values.duration("max_ttl"),
            drift_ppm: values.integer("drift_ppm"),
            drift_floor: values.duration("drift_floor"),
            guard: values.duration("guard"),
            lock_delay: values.duration("lock_delay"),
            min_validity_percent: values.integer("min_validity_percent"),
            retry_min: values.duration("retry_min"),
            retry_max: values.duration("retry_max"),
            fence_ttl: values.duration("fence_ttl"),
            log_format: match values.text("log_format") {
                "json" => LogFormat::Json,
                _ => LogFormat::Text,
            },
            log_level: match values.text("log_level") {
                "error" => LogLevel::Error,
                "warn" => LogLevel::Warn,
                "debug" => LogLevel::Debug,
                "trace" => LogLevel::Trace,
                _ => LogLevel::Info,
            },
            audit_log: values.path("audit_log"),
            worker_threads: values.integer("worker_threads"),
            origins: values.origins(),
        }
    }
}
