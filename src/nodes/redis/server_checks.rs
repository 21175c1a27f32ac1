//! Whether a server is suitable as a node, by its `INFO`: each finding with its reason, and whether it removes the node's vote.

use std::collections::HashMap;

/// The oldest Redis whose commands the scripts need: `SET … KEEPTTL` and users with permissions came
/// with 6.0 (the scripts' own effects replication is on by default since 5.0).
pub(super) const OLDEST_VERSION: (u32, u32) = (6, 0);

/// A finding about a server, for its operator.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ServerFinding {
    /// The server is not a master.
    NotMaster { role: String },
    /// The server deletes keys when memory is short.
    Evicts { policy: String },
    /// The server is older than [`OLDEST_VERSION`].
    TooOld { version: String },
    /// The server is part of a Redis Cluster, which fails over and shards.
    Cluster,
    /// Replicas are attached: a failover to one of them would lose leases.
    HasReplicas {
        count: u64,
        /// The setting `allow_replicas`.
        allowed: bool,
    },
    /// The server has evicted keys since it started.
    HasEvicted { keys: u64 },
    /// The server has neither an append-only file nor snapshots.
    NoPersistence,
    /// The server's memory is full.
    Full { bytes: u64 },
    /// The server could not write its snapshot or its append-only file.
    CannotSave,
    /// The node is to be durable, and is not.
    NotDurable { why: String },
    /// This instance may not subscribe, count subscribers or publish on the server.
    NoNotices { why: String },
}

impl ServerFinding {
    /// Stable code for answers and metrics.
    pub fn code(&self) -> &'static str {
        match self {
            Self::NotMaster { .. } => "not-master",
            Self::Evicts { .. } => "evicts",
            Self::TooOld { .. } => "too-old",
            Self::Cluster => "cluster",
            Self::HasReplicas { .. } => "has-replicas",
            Self::HasEvicted { .. } => "has-evicted",
            Self::NoPersistence => "no-persistence",
            Self::Full { .. } => "full",
            Self::CannotSave => "cannot-save",
            Self::NotDurable { .. } => "not-durable",
            Self::NoNotices { .. } => "no-notices",
        }
    }

    /// The meaning and the advice, for the operator.
    pub fn sentence(&self) -> String {
        match self {
            Self::NotMaster { role } => {
                format!("The server's role is {role}: a lock needs independent masters, so point the node at its own master.")
            }
            Self::Evicts { policy } => format!(
                "maxmemory is set and maxmemory-policy is {policy}, which deletes leases when memory is short: set it to noeviction."
            ),
            Self::TooOld { version } => {
                format!("Redis {version} is older than {}.{}, which the scripts need.", OLDEST_VERSION.0, OLDEST_VERSION.1)
            }
            Self::Cluster => {
                "The server runs in cluster mode, where slots move and replicas take over: use an independent master.".into()
            }
            Self::HasReplicas { count, .. } => format!(
                "{count} replica(s) follow this server: a failover to one of them loses leases. Detach them, or set allow_replicas where nothing ever fails over to them."
            ),
            Self::HasEvicted { keys } => format!(
                "The server has evicted {keys} key(s) since it started; each time that happens the node loses its vote for a while."
            ),
            Self::NoPersistence => {
                "Neither appendonly nor snapshots are on: after a restart the node knows nothing until a majority of the others fills it. If a majority restarts at once, nobody gets a lock for a quarantine.".into()
            }
            Self::Full { bytes } => format!(
                "The server uses all of its maxmemory ({bytes} bytes) and refuses every acquire: raise it, or remove what else is stored there."
            ),
            Self::CannotSave => {
                "The server's last snapshot or write to its append-only file failed; with stop-writes-on-bgsave-error it refuses acquires, extends and releases: free its disk, or set that to no.".into()
            }
            Self::NotDurable { why } => format!(
                "durable_nodes is true, and this node is not durable: {why}. After a restart of a majority it waits."
            ),
            Self::NoNotices { why } => format!(
                "This instance gets no notices from there, so its waiters ask once a second ({why}): compare the user's rights with docs/redis-acl.md."
            ),
        }
    }

    /// Whether the finding stops acquires from being sent to the server.
    pub fn removes_vote(&self) -> bool {
        matches!(
            self,
            Self::NotMaster { .. }
                | Self::Evicts { .. }
                | Self::TooOld { .. }
                | Self::Cluster
                | Self::HasReplicas { allowed: false, .. }
        )
    }
}

/// The values of a server's `INFO`.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ServerInfo {
    /// `run_id` and `master_replid` in one text: the process, and its state after its last failover. Empty if `INFO` has no
    /// `run_id`.
    pub run_id: String,
    /// `redis_version` of `INFO`.
    pub version: String,
    /// `role` of `INFO`: `master` or `slave`.
    pub role: String,
    /// The findings for the server's operator.
    pub findings: Vec<ServerFinding>,
}

impl ServerInfo {
    /// Whether the server is a master, or does not report its role.
    pub fn is_master(&self) -> bool {
        matches!(self.role.as_str(), "" | "master")
    }
}

/// Parses an `INFO` of the default sections. `saves` is the setting `save`, if it could be read. A missing field gives no
/// finding: a server that hides it may still be suitable.
pub fn read(info: &str, saves: Option<&str>, allow_replicas: bool) -> ServerInfo {
    let fields: HashMap<&str, &str> = info.lines().filter_map(|line| line.split_once(':')).collect();
    let field = |name: &str| fields.get(name).map(|value| value.trim());
    let number = |name: &str| field(name).and_then(|value| value.parse::<u64>().ok()).unwrap_or(0);
    let (version, role) = (field("redis_version").unwrap_or(""), field("role").unwrap_or(""));
    let mut findings = Vec::new();
    if !role.is_empty() && role != "master" {
        findings.push(ServerFinding::NotMaster { role: role.into() });
    }
    let policy = field("maxmemory_policy").unwrap_or("noeviction");
    if number("maxmemory") > 0 && policy != "noeviction" {
        findings.push(ServerFinding::Evicts { policy: policy.into() });
    }
    if major_minor(version).is_some_and(|v| v < OLDEST_VERSION) {
        findings.push(ServerFinding::TooOld { version: version.into() });
    }
    if field("redis_mode") == Some("cluster") || number("cluster_enabled") == 1 {
        findings.push(ServerFinding::Cluster);
    }
    if role == "master" && number("connected_slaves") > 0 {
        findings.push(ServerFinding::HasReplicas { count: number("connected_slaves"), allowed: allow_replicas });
    }
    if number("evicted_keys") > 0 {
        findings.push(ServerFinding::HasEvicted { keys: number("evicted_keys") });
    }
    if field("aof_enabled") == Some("0") && saves.is_some_and(|s| s.trim().is_empty()) {
        findings.push(ServerFinding::NoPersistence);
    }
    if number("maxmemory") > 0 && number("used_memory") >= number("maxmemory") {
        findings.push(ServerFinding::Full { bytes: number("maxmemory") });
    }
    let has_failed = |name: &str| field(name).is_some_and(|status| status != "ok");
    let saves_snapshots = saves.is_none_or(|s| !s.trim().is_empty());
    if (has_failed("rdb_last_bgsave_status") && saves_snapshots) || has_failed("aof_last_write_status") {
        findings.push(ServerFinding::CannotSave);
    }
    let replication = field("master_replid").filter(|_| field("run_id").is_some()).unwrap_or("");
    let run_id = [field("run_id").unwrap_or(""), replication].concat();
    ServerInfo { run_id, version: version.into(), role: role.into(), findings }
}

fn major_minor(version: &str) -> Option<(u32, u32)> {
    let mut parts = version.split('.');
    Some((parts.next()?.parse().ok()?, parts.next()?.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const GOOD: &str = "# ServerInfo\r\nredis_version:7.0.15\r\nredis_mode:standalone\r\nrun_id:abc\r\n# Memory\r\nmaxmemory:0\r\n\
                        maxmemory_policy:noeviction\r\naof_enabled:0\r\nrole:master\r\nconnected_slaves:0\r\nevicted_keys:0\r\ncluster_enabled:0\r\n";

    fn codes(info: &str, saves: Option<&str>) -> Vec<(&'static str, bool)> {
        read(info, saves, false).findings.iter().map(|f| (f.code(), f.removes_vote())).collect()
    }

    #[test]
    fn a_plain_master_has_no_findings() {
        let server = read(GOOD, Some("3600 1"), false);
        assert_eq!(
            (server.run_id.as_str(), server.version.as_str(), server.role.as_str()),
            ("abc", "7.0.15", "master")
        );
        assert_eq!(server.findings, []);
        assert_eq!(codes(GOOD, None), []);
    }

    #[test]
    fn each_finding_is_recognised_on_its_own() {
        for (from, to, code, removes_vote) in [
            ("role:master", "role:slave", "not-master", true),
            ("redis_version:7.0.15", "redis_version:5.0.14", "too-old", true),
            ("redis_mode:standalone", "redis_mode:cluster", "cluster", true),
            ("cluster_enabled:0", "cluster_enabled:1", "cluster", true),
            ("connected_slaves:0", "connected_slaves:2", "has-replicas", true),
            ("evicted_keys:0", "rdb_last_bgsave_status:err", "cannot-save", false),
            ("evicted_keys:0", "aof_last_write_status:err", "cannot-save", false),
            ("maxmemory:0", "maxmemory:9\r\nused_memory:9", "full", false),
            ("evicted_keys:0", "evicted_keys:3", "has-evicted", false),
        ] {
            assert_eq!(codes(&GOOD.replace(from, to), None), [(code, removes_vote)], "{to}");
        }
        let evicting = GOOD.replace("maxmemory_policy:noeviction", "maxmemory_policy:allkeys-lru");
        assert_eq!(codes(&evicting, None), [], "without maxmemory nothing is evicted");
        assert_eq!(codes(&evicting.replace("maxmemory:0", "maxmemory:9"), None), [("evicts", true)]);
        assert_eq!(codes(GOOD, Some("")), [("no-persistence", false)]);
        assert_eq!(codes(&GOOD.replace("aof_enabled:0", "aof_enabled:1"), Some("")), []);
        let replica = read(&GOOD.replace("role:master", "role:slave"), None, false);
        assert!(!replica.is_master() && replica.findings[0].sentence().contains("slave"));
        let allowed = read(&GOOD.replace("connected_slaves:0", "connected_slaves:1"), None, true);
        assert!(allowed.is_master() && !allowed.findings[0].removes_vote());
        let unsaved = GOOD.replace("evicted_keys:0", "rdb_last_bgsave_status:err");
        assert_eq!(codes(&unsaved, Some("")), [("no-persistence", false)], "no snapshot is wanted");
    }

    proptest! {
        #[test]
        fn parsing_never_panics(info in "(?s).{0,200}") {
            let _ = read(&info, None, false);
        }
    }
}
