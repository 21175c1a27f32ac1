//! The declaration of every setting: name, type, default, allowed values, what it is and why it has its default.
//! The struct [`Config`], the table [`SETTINGS`], the parser, `config show`, `config/redlockd.toml` and
//! `docs/settings.md` follow from it (`make docs` writes the two files).

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use ipnet::IpNet;

use super::error::{ConfigError, Origin};
use super::nodes::{MAX_NODES, NodeSpec, node_list};
use super::raw::RawValue;
use super::setting_macro::settings;
use super::terms::{FENCE_TTL, GUARD, LOCK_DELAY};
use super::value_types::{
    LogFormat, LogLevel, address, directory, flag, host_names, integer, networks, odd_integer, one_of, owner_url, path,
    period, template,
};
use crate::nodes::redis::Identity;
use crate::protocol::keys::KeyTemplate;
use crate::redlock::fan_out::FanOut;

/// Periods are declared in milliseconds.
const SECOND: u64 = 1_000;
const MINUTE: u64 = 60 * SECOND;
const HOUR: u64 = 60 * MINUTE;

settings! {
    "HTTP" {
        /// Address and port to listen on.
        /// Range: port 0 takes a free one
        /// Why: loopback only, until an access_file says who may do what. 5625 spells LOCK on a telephone keypad.
        listen: SocketAddr = "127.0.0.1:5625" in address();

        /// File with the principals, the hashes of their keys and their rights; its format is in docs/security.md.
        /// Range: "" is none: everybody who can connect may do everything
        /// Why: a separate file, because it is reloaded on SIGHUP and when it changes, without a restart.
        access_file: Option<PathBuf> = "" in path();

        /// File with the secret, in one line of at least 32 characters, that signs the sessions of the dashboard.
        /// Range: "" is none: each process draws one, so that its sessions end with it
        /// Why: instances behind a balancer need the same secret, or a log-in at one is unknown to the next. Read at start.
        session_secret_file: Option<PathBuf> = "" in path();

        /// Serve on an address that other machines can reach without an access_file.
        /// Why: refused by default, because everybody who can connect could acquire and force every lock.
        insecure_no_auth: bool = false in flag();

        /// Requests per second of one principal, on average; bursts of twice as many are allowed. A principal's entry in the
        /// access file may override it.
        /// Why: stops a script in a tight loop before other clients notice; well above any regular use.
        requests_per_second: u32 = 1000 in integer(1..=1_000_000);

        /// Maximum number of leases that one principal has at a time, granted by this instance. Its entry may override it.
        /// Why: each costs some hundred bytes on every node until its TTL ends.
        leases_per_principal: usize = 10000 in integer(1..=1_000_000);

        /// Maximum number of waiting requests of one principal on this instance. Its entry may override it.
        /// Why: a quarter of waiters_total, so that one principal cannot use all of it.
        waiters_per_principal: usize = 5000 in integer(1..=1_000_000);

        /// File with the server certificate chain (PEM). Setting it turns TLS on.
        /// Range: "" is none: plain HTTP; requires listen_tls_key
        /// Why: keys and tokens are sent in requests. Reloaded on SIGHUP and when it changes.
        listen_tls_cert: Option<PathBuf> = "" in path();

        /// File with that certificate's private key (PEM).
        /// Range: "" is none; requires listen_tls_cert
        /// Why: may be the same file.
        listen_tls_key: Option<PathBuf> = "" in path();

        /// File with the certificate authorities (PEM) for client certificates, which then identify principals.
        /// Range: "" is none: no client certificate is requested
        /// Why: a client without a certificate may still send a key. access_file maps certificates to principals.
        listen_tls_client_ca: Option<PathBuf> = "" in path();

        /// Proxies whose headers X-Forwarded-For and X-Forwarded-Proto are trusted.
        /// Why: none, because every client can send that header, and the audit log must name the real address.
        trusted_proxies: Vec<IpNet> = [] in networks();

        /// Maximum number of connections; further ones wait in the kernel's queue.
        /// Why: each waiter has one: waiters_total and a quarter more. The limit of open files applies as well.
        max_connections: usize = 25000 in integer(16..=1_000_000);

        /// How long a connection may be without a request. A request that waits or holds counts as a request.
        /// Why: clients that return within a minute save a handshake; other connections are closed.
        idle_timeout: Duration = "1m" in period(SECOND..=HOUR);

        /// How long the head of a request may take from its first byte; also a TLS handshake.
        /// Range: at most idle_timeout
        /// Why: a head is one packet. Sending it slowly is a way to exhaust connections.
        header_timeout: Duration = "10s" in period(100..=5 * MINUTE);

        /// Maximum size of a request's head (request line and headers), in bytes.
        /// Why: the longest resource, a query and a dozen headers fit several times. Beyond it: 431.
        head_limit: usize = 16384 in integer(8192..=1 << 20);

        /// Maximum length of a request's path and query, in bytes.
        /// Range: less than head_limit
        /// Why: the longest resource, percent-encoded, and every field at its maximum length. Beyond it: 414.
        uri_limit: usize = 4096 in integer(1024..=65_535);

        /// How long a body may take to arrive after its head.
        /// Why: a body is small (body_limit); a slow sender must not keep a connection. Beyond it: 400.
        body_timeout: Duration = "10s" in period(100..=5 * MINUTE);

        /// Maximum size of a request body, in bytes.
        /// Why: labels are at most 2 KiB; a larger body is an error or an attack. Beyond it: 413.
        body_limit: usize = 65536 in integer(1024..=1 << 20);

        /// Longest wait in the queue that a request may ask for.
        /// Why: a waiter uses a connection; a client that wants to wait longer asks again.
        max_wait: Duration = "5m" in period(0..=HOUR);

        /// Longest time for which a lease is renewed while a connection holds it (hold=true).
        /// Why: a frozen client keeps its connection, and with it its lock; this limits for how long.
        max_hold: Duration = "24h" in period(SECOND..=720 * HOUR);

        /// Longest time, counted from the grant, for which the service itself renews a lease (keep=2h).
        /// Why: nobody is asked meanwhile whether the lease is still needed.
        max_keep: Duration = "24h" in period(SECOND..=720 * HOUR);

        /// How long the service keeps a lock of Terraform whose address has no `keep`; never longer than max_keep.
        /// Why: a run that was killed keeps its lock so long, unless it is unlocked; a longer run loses it.
        terraform_keep: Duration = "2h" in period(SECOND..=720 * HOUR);

        /// Number of kept leases at which this instance refuses further ones (429).
        /// Why: each costs a renewal on every node three times per TTL. Those of another instance that ended are kept in any case.
        kept_total: usize = 10000 in integer(1..=1_000_000);

        /// Longest wait that a ticket (async=true) may ask for.
        /// Why: a ticket that waits costs memory here and on every node; whoever wants to wait longer asks again.
        max_ticket_wait: Duration = "24h" in period(SECOND..=720 * HOUR);

        /// Number of tickets at which this instance refuses further ones (429).
        /// Why: each waits in a queue here. Those of another instance that ended are served in any case.
        tickets_total: usize = 10000 in integer(1..=100_000);

        /// File with the targets of call-backs and the hooks; its format is in docs/workflows.md.
        /// Range: "" is none: no call-back is allowed
        /// Why: the service sends only to where its administrator allows. Reloaded on SIGHUP and when it, or a file that it names,
        /// changes.
        webhooks_file: Option<PathBuf> = "" in path();

        /// Maximum number of waiters for one resource on this instance.
        /// Range: at most waiters_total
        /// Why: the thousandth in a queue will not be served in time, so it is refused at once (429).
        waiters_per_resource: usize = 1000 in integer(1..=100_000);

        /// Maximum number of waiters for all resources together on this instance.
        /// Why: each costs a connection and 16 to 19 KiB of memory (docs/waiting.md).
        waiters_total: usize = 20000 in integer(1..=1_000_000);

        /// Search for cycles of owners that wait for each other: they are reported, and with `on_deadlock=refuse` refused (409).
        /// Why: each of them would wait until its timeout. Set it to false where unrelated clients use the same `owner`.
        deadlock_detection: bool = true in flag();

        /// After SIGTERM: how long running requests may take to finish.
        /// Why: waiters are answered at once and a round takes milliseconds; supervisors kill after 30 s or later.
        drain_timeout: Duration = "10s" in period(0..=10 * MINUTE);

        /// After SIGTERM: how long requests are still accepted while `/health/ready` answers 503.
        /// Why: a balancer sends requests until its next check. The shipped unit sets 5 s; at a terminal nobody wants to wait.
        drain_delay: Duration = "0s" in period(0..=10 * MINUTE);

        /// Serve the dashboard under /ui/.
        /// Why: which client holds which lock is an operator's first question.
        ui: bool = true in flag();

        /// Host names under which the dashboard may be requested (without access_file: the API too), besides loopback names
        /// and IP addresses, which are always allowed.
        /// Why: none, so that a foreign page whose name resolves to this address (DNS rebinding) cannot read or end leases.
        /// Set it to the name that your users type. With insecure_no_auth on an address that other machines can reach, an
        /// empty list allows every name.
        allowed_hosts: Vec<String> = [] in host_names();

        /// Address of what an owner is, with `{owner}` in it: the pages link owners to it, for example to their jobs.
        /// Range: "" is none
        /// Why: who sees a lock that is held too long wants to see the job that holds it. The owner is percent-encoded.
        owner_url: String = "" in owner_url();
    }

    "Nodes" {
        /// Independent Redis masters, 3 or 5 of them. With none, the nodes are embedded in the process.
        /// Why: an odd number; an even one tolerates no more failures than one node less.
        /// Cluster: all instances must use the same node names. A node without a name is called by its address (host:port).
        /// Write NAME=URL here and in REDLOCKD_NODES, or a `[[node]]` table for each node (see the top of this file).
        nodes: Vec<NodeSpec> = [] in node_list();

        /// File with the password, in one line, of the nodes whose URL has none. The URL may name the user: redis://USER@HOST.
        /// Range: "" is none
        /// Why: more people see settings and environments than files. Read at start; a new password requires a restart.
        node_password_file: Option<PathBuf> = "" in path();

        /// How many nodes are embedded in the process if no Redis node is configured.
        /// Why: they fail together, so more than one is only useful in tests.
        embedded_nodes: usize = 1 in odd_integer(1..=MAX_NODES);

        /// Directory of the embedded nodes' state file, which records until when leases may be running.
        /// Range: "" is $STATE_DIRECTORY (set by systemd), else $XDG_STATE_HOME/redlockd, else ~/.local/state/redlockd, else
        /// /var/lib/redlockd
        /// Why: after a crash, a start without the state file could grant a lease that is still running. With Redis nodes,
        /// incidents are kept there if it exists.
        data_dir: PathBuf = "" in directory();

        /// The key of a resource's lock on the nodes.
        /// Why: the bare name excludes redlock-py, node-redlock, redsync and rslock; `redlock:{resource}` excludes
        /// RedLock.net and pottery.
        /// Cluster.
        key_template: KeyTemplate = "{resource}" in template();

        /// How a node's restart is detected: when a connection is made (handshake), or in every script (script).
        /// Why: a restart breaks connections, so the handshake detects it. A TCP proxy can hide it: then use `script`, which
        /// costs an INFO in each command.
        identity: Identity = "handshake" in one_of::<Identity>();

        /// How long a round waits at least for a node's answer. Where the nodes of a quorum are farther away, it waits as long as
        /// they take by measurement, up to half of guard and a quarter of the TTL.
        /// Range: at most half of min_ttl
        /// Why: many times the round trip of nodes nearby; a slow node must cost a small part of a lease, not the lease.
        node_timeout: Duration = "50ms" in period(1..=10 * SECOND);

        /// How many nodes an acquire of one exclusive lease asks at once: all, or a quorum of those that vote and are not slow (quorum).
        /// The others are asked after 5 ms without a decision, at a refusal, before the lease is changed, or when it is 100 ms old.
        /// Why: until all nodes were asked, a lease is on no more nodes than a quorum. `quorum` saves two fifths of the work of five
        /// nodes for leases that are released before (docs/performance.md, Thrifty rounds). Instances may differ.
        fan_out: FanOut = "all" in one_of::<FanOut>();

        /// How long connecting to a node may take, handshake and TLS included.
        /// Why: connecting runs beside requests; a node without a connection counts as unreachable at once.
        connect_timeout: Duration = "1s" in period(10..=30 * SECOND);

        /// Connections per node and thread (`worker_threads`) for lock commands.
        /// Why: one carries tens of thousands of commands a second. All commands of a thread for one resource use the same one, in
        /// order.
        connections_per_node: usize = 1 in integer(1..=16);

        /// Maximum number of commands in flight to one node.
        /// Why: a node that stopped answering must not fill the memory; beyond the limit it counts as unreachable.
        max_in_flight: usize = 4096 in integer(16..=1_000_000);

        /// Let a node vote while replicas follow it.
        /// Why: a replica may not have the latest leases, so a failover to it and back grants them twice. Set it to true only
        /// where nothing ever fails over, such as for replicas that only take backups.
        allow_replicas: bool = false in flag();

        /// Let a node that restarts with its data take its own place, if too few others vote. Redis must sync each write before it
        /// replies: appendonly yes, appendfsync always, no-appendfsync-on-rewrite no.
        /// Why: after a power cut of most nodes they vote again within seconds, not after the longest lease. Each write then costs
        /// a sync of the disk, and no disk may be put back from a copy (docs/operating.md).
        durable_nodes: bool = false in flag();

        /// Maximum number of concurrent cleanups of failed attempts and of repairs.
        /// Why: each has its own deadline; beyond the limit the TTL ends what is left.
        cleanup_limit: usize = 4096 in integer(16..=1_000_000);

        /// Age from which a request has the list of held leases read from the nodes again.
        /// Why: reading it for every request would load the nodes. Where reading takes over 200 ms, requests get the last list meanwhile, with its age.
        list_refresh: Duration = "2s" in period(100..=5 * MINUTE);

        /// File with the certificate authorities (PEM) of the nodes' certificates, for rediss://.
        /// Range: "" is the system's
        /// Why: private nodes usually have a private authority.
        tls_ca: Option<PathBuf> = "" in path();

        /// File with the client certificate (PEM) for the nodes.
        /// Range: "" is none; requires tls_key
        /// Why: Redis requests one by default if TLS is on (tls-auth-clients).
        tls_cert: Option<PathBuf> = "" in path();

        /// File with that certificate's private key (PEM).
        /// Range: "" is none; requires tls_cert
        /// Why: see tls_cert.
        tls_key: Option<PathBuf> = "" in path();
    }

    "Leases" {
        /// TTL of a request that names none.
        /// Range: from min_ttl to max_ttl
        /// Why: long enough for a script that acquires and renews with curl, short enough to wait for after a crash.
        default_ttl: Duration = "30s" in period(10..=24 * HOUR);

        /// Minimum TTL of a request.
        /// Why: a lease must be much longer than node_timeout.
        min_ttl: Duration = "100ms" in period(10..=HOUR);

        /// Maximum TTL of a request; longer work extends its lease.
        /// Why: a node that lost its memory has no vote for a little longer than this (quarantine). The largest value among
        /// the instances counts.
        max_ttl: Duration = "5m" in period(SECOND..=24 * HOUR);

        /// Allowance for clocks that run at different rates, in parts per million of the TTL.
        /// Why: 1 % is far above the error of crystals and time daemons (500 ppm).
        drift_ppm: u32 = 10000 in integer(1_000..=200_000);

        /// Constant part of that allowance.
        /// Why: Redis keeps time in milliseconds: one for the rounding of the TTL, one for that of the clock.
        drift_floor: Duration = "2ms" in period(1..=SECOND);

        /// Maximum clock offset, and maximum age of a request, at which a node votes.
        /// Range: more than node_timeout
        /// Why: NTP keeps clocks within some ten milliseconds.
        /// Cluster.
        guard: Duration = "500ms" in period(GUARD);

        /// Added to each TTL on the nodes and never promised to the client.
        /// Range: at least twice guard
        /// Why: covers clocks that differ by up to guard. It delays the next holder after a crash, not after a release.
        /// Cluster.
        lock_delay: Duration = "1s" in period(LOCK_DELAY);

        /// Minimum part of the TTL, in percent, that must be left when the grant is answered.
        /// Why: a lease that is nearly over when it is granted is useless; the round counts as failed.
        min_validity_percent: u32 = 10 in integer(1..=90);

        /// Maximum of the first pause before a failed round is repeated. It doubles with each round, and the pause is random
        /// below it.
        /// Why: about one round trip, so that two instances that split the votes do not collide again.
        retry_min: Duration = "2ms" in period(1..=10 * SECOND);

        /// Upper limit of that doubling.
        /// Range: at least retry_min
        /// Why: limits how late a waiter notices that nodes are back.
        retry_max: Duration = "250ms" in period(1..=MINUTE);

        /// How long the nodes know the last fence of a resource, at least; at most twice as long. The same on all instances.
        /// Why: unused names must leave nothing. A floor on each node keeps fences rising afterwards; `GET /fences` calls them
        /// forgotten then.
        fence_ttl: Duration = "1m" in period(FENCE_TTL);
    }

    "Operation" {
        /// Format of the log, which goes to standard error.
        /// Why: text for a terminal, json for a log collector.
        log_format: LogFormat = "text" in one_of::<LogFormat>();

        /// Lowest level that is logged. The variable RUST_LOG, with its finer filters, overrides it.
        /// Why: info has what an operator needs: start, stop, and changes of nodes.
        log_level: LogLevel = "info" in one_of::<LogLevel>();

        /// File of the audit log: one line of JSON for each requested change and for each refusal because of a missing right.
        /// Range: "stdout" is standard output, "" is none
        /// Why: off, because you decide who may read it. Rename the file to rotate it; docs/logs.md has the fields.
        audit_log: Option<PathBuf> = "" in path();

        /// Threads that serve requests, each with its own connections to the nodes.
        /// Range: 0 is one per CPU
        /// Why: one thread serves thousands of requests a second, and its requests share commands (docs/performance.md). More
        /// threads help on machines with idle cores, most of all with TLS.
        worker_threads: usize = 1 in integer(0..=256);
    }
}

impl Config {
    /// Maximum error of clock rates over a lease of `ttl`: `ttl * drift_ppm / 10^6`, rounded up to whole microseconds,
    /// plus `drift_floor`.
    pub(super) fn drift(&self, ttl: Duration) -> Duration {
        let us = ttl.as_micros().saturating_mul(u128::from(self.drift_ppm)).div_ceil(1_000_000);
        Duration::from_micros(u64::try_from(us).unwrap_or(u64::MAX)).saturating_add(self.drift_floor)
    }
}
