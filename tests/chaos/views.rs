//! Faults that change which process is behind a node's name, or what it knows: restarts in turn, a failover to a replica and
//! back, a name that leads one instance to another server, an old copy of the log; and nodes that cannot write.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use redlockd::redlock::clock::{Clock, SystemClock};

use super::cluster::ChaosCluster;
use super::support::poll;
use super::support::redis_server::RedisServer;

/// For so long a former master is a replica: each instance's probe sees it (what happens between two probes is limit 4 of
/// `docs/safety.md`).
const DEMOTED: Duration = Duration::from_millis(2_500);
/// For so long a name leads to another server, beside the fault's own length: longer than a quarantine.
const MOVED: Duration = Duration::from_secs(5);
/// The answer of an instance that is asked for its nodes.
const ANSWER: Duration = Duration::from_secs(2);

/// Each node in turn is killed and started empty, as soon as the one before votes again.
pub async fn restart_in_turn(cluster: &mut ChaosCluster) {
    for node in 0..cluster.nodes.len() {
        cluster.nodes[node].server.kill();
        cluster.nodes[node].server.restart_empty().await;
        let Some(instance) = cluster.instances.first() else { continue };
        let url = format!("{}/nodes", instance.url);
        let run = run_id(&cluster.nodes[node].server).await;
        poll::until("the node that was restarted votes", async || {
            let client = reqwest::Client::builder().timeout(ANSWER).build().ok()?;
            let nodes: serde_json::Value = client.get(&url).send().await.ok()?.json().await.ok()?;
            let seen = nodes["nodes"].get(node)?;
            (seen["votes"] == true && seen["run_id"] == run.as_str()).then_some(())
        })
        .await;
    }
}

async fn run_id(server: &RedisServer) -> String {
    let info: String = server.ask(&["INFO", "server"]).await;
    info.lines().find_map(|line| line.strip_prefix("run_id:")).expect("it is there").trim().to_owned()
}

/// A replica that missed the last writes is promoted, the former master follows it, and is promoted again.
pub async fn fail_over_and_back(cluster: &ChaosCluster, node: usize, apart: Duration) {
    let (master, replica) = (&cluster.nodes[node].server, &cluster.spare);
    follow(replica, master).await;
    replica.ask::<()>(&["REPLICAOF", "NO", "ONE"]).await;
    SystemClock.sleep(apart).await;
    follow(master, replica).await;
    SystemClock.sleep(DEMOTED).await;
    master.ask::<()>(&["REPLICAOF", "NO", "ONE"]).await;
    replica.ask::<()>(&["FLUSHALL"]).await;
}

async fn follow(server: &RedisServer, master: &RedisServer) {
    server.ask::<()>(&["REPLICAOF", "127.0.0.1", &master.port().to_string()]).await;
    poll::until("the replica has its master's data", async || {
        server.ask::<String>(&["INFO", "replication"]).await.contains("master_link_status:up").then_some(())
    })
    .await;
}

/// One instance reaches an empty server under the node's name, the other one the node.
pub async fn move_name(cluster: &ChaosCluster, instance: usize, node: usize, lasts: Duration) {
    cluster.spare.ask::<()>(&["FLUSHALL"]).await;
    let proxy = &cluster.proxies[instance][node];
    proxy.lead_to(cluster.spare.port());
    SystemClock.sleep(MOVED + lasts).await;
    proxy.lead_to(cluster.nodes[node].server.port());
}

/// The node is killed, and started with a copy of its log that was made `age` before.
pub async fn restore_old_log(cluster: &mut ChaosCluster, node: usize, age: Duration) {
    let server = &mut cluster.nodes[node].server;
    let dir: Vec<String> = server.try_ask(&["CONFIG", "GET", "dir"]).await.unwrap_or_default();
    let log = dir.get(1).map(|dir| Path::new(dir).join("appendonlydir"));
    let copy = log.as_deref().and_then(copied);
    SystemClock.sleep(age).await;
    server.kill();
    if let (Some(log), Some(copy)) = (log, copy) {
        fs::remove_dir_all(&log).expect("our own directory");
        fs::rename(copy, log).expect("our own directory");
    }
    server.restart().await;
}

/// A copy beside a directory; `None` where a file vanished meanwhile, as when the log is rewritten.
fn copied(dir: &Path) -> Option<PathBuf> {
    let copy = dir.with_extension("copy");
    let _ = fs::remove_dir_all(&copy);
    fs::create_dir(&copy).ok()?;
    for file in fs::read_dir(dir).ok()? {
        let file = file.ok()?;
        fs::copy(file.path(), copy.join(file.file_name())).ok()?;
    }
    Some(copy)
}

/// A snapshot fails, after which the server refuses writes (`stop-writes-on-bgsave-error`).
pub async fn refuse_writes(server: &RedisServer, lasts: Duration) {
    let set = async |name: &str, value: &str| {
        let _: Result<(), _> = server.try_ask(&["CONFIG", "SET", name, value]).await;
    };
    set("save", "3600 1").await;
    // A directory cannot be replaced by a file.
    set("dbfilename", "appendonlydir").await;
    let _: Result<String, _> = server.try_ask(&["BGSAVE"]).await;
    SystemClock.sleep(lasts).await;
    set("save", "").await;
    set("dbfilename", "dump.rdb").await;
}

/// The memory is full, and nothing is evicted.
pub async fn fill_memory(server: &RedisServer, lasts: Duration) {
    let _: Result<(), _> = server.try_ask(&["CONFIG", "SET", "maxmemory", "1"]).await;
    SystemClock.sleep(lasts).await;
    let _: Result<(), _> = server.try_ask(&["CONFIG", "SET", "maxmemory", "0"]).await;
}
