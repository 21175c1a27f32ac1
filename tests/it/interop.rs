//! Other Redlock clients on the same nodes: they and redlockd exclude each other, and neither changes the locks of the
//! other. redlock-py and node-redlock run themselves; others are represented by the
//! commands that they send.

use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::json;

use crate::support::client::{Client, lock, send};
use crate::support::cluster::Cluster;
use crate::support::programs::skipped;

const OWN_TOKEN: &str = "my-own-token.0123456789";

/// redlock-py over all servers: `lock NAME MS` prints the value that it wrote, or `False`;
/// `unlock NAME VALUE` gives it back.
const REDLOCK_PY: &str = r#"
import sys
from redlock import Lock, Redlock
ports, verb, name, word = sys.argv[1].split(","), sys.argv[2], sys.argv[3], sys.argv[4]
client = Redlock([{"host": "127.0.0.1", "port": int(p)} for p in ports], retry_count=1)
if verb == "lock":
    lock = client.lock(name, int(word))
    print(lock and lock.key.decode() if lock and isinstance(lock.key, bytes) else lock and lock.key)
else:
    client.unlock(Lock(0, name, word))
    print("done")
"#;

/// The interpreter of the virtual environment that `make test` prepares.
///
/// Panics: where it is missing and `CI` is `true`; otherwise says so, for a test that then ends.
fn python() -> Option<PathBuf> {
    let python = Path::new(env!("CARGO_MANIFEST_DIR")).join("target/venv/bin/python");
    let works = Command::new(&python).args(["-c", "import redlock"]).status().is_ok_and(|status| status.success());
    if works {
        return Some(python);
    }
    let missing = "redlock-py is missing in target/venv: `make test` installs it";
    skipped(missing);
    None
}

async fn redlock_py(python: &Path, cluster: &Cluster, words: [&str; 3]) -> String {
    let ports: Vec<String> = cluster.servers.iter().map(|s| s.port().to_string()).collect();
    let mut command = tokio::process::Command::new(python);
    command.args(["-c", REDLOCK_PY, &ports.join(",")]).args(words);
    let output = command.output().await.expect("it runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).expect("text").trim().to_owned()
}

#[tokio::test]
async fn redlock_py_and_this_service_exclude_each_other() {
    let Some(python) = python() else { return };
    let cluster = Cluster::start(3).await;
    let over = cluster.service().await;
    let client = over.client();

    let value = redlock_py(&python, &cluster, ["lock", "theirs", "60000"]).await;
    assert_eq!(value.len(), 22, "{value}");
    let refused = client.acquire("theirs", &[]).await.expect_problem(423, "locked");
    assert_eq!(refused.json()["reason"], "foreign");
    client.release("theirs", OWN_TOKEN).await.expect_problem(409, "not-holder");
    redlock_py(&python, &cluster, ["unlock", "theirs", &value]).await;
    client.acquired("theirs", &[]).await;

    let ours = client.acquired("ours", &[("ttl", "60s")]).await;
    assert_eq!(redlock_py(&python, &cluster, ["lock", "ours", "60000"]).await, "False");
    redlock_py(&python, &cluster, ["unlock", "ours", "whatever"]).await;
    client.extend("ours", &ours.token(), &[]).await.expect_status(200);
    client.release("ours", &ours.token()).await.expect_status(204);
    assert_ne!(redlock_py(&python, &cluster, ["lock", "ours", "60000"]).await, "False");
}

/// node-redlock over all servers, with the same words and answers as [`REDLOCK_PY`].
const NODE_REDLOCK: &str = r#"
const Redis = require('ioredis'), Redlock = require('redlock')
const [ports, verb, name, word] = process.argv.slice(-4)
const clients = ports.split(',').map(port => new Redis(Number(port), '127.0.0.1'))
const redlock = new Redlock(clients, { retryCount: 0 })
const lock = { resource: [name], value: word, expiration: Date.now() + 60000 }
const done = verb === 'lock' ? redlock.lock(name, Number(word)).then(lock => lock.value) : redlock.unlock(lock).then(() => 'done')
done.catch(error => error.name === 'LockError' ? 'False' : String(error)).then(text => {
  console.log(text)
  clients.forEach(client => client.disconnect())
})
"#;

/// Whether Node.js and the packages that `make test` prepares are there. Panics, and says so, as [`python`].
fn has_node_redlock() -> bool {
    let mut probe = Command::new("node");
    probe.args(["-e", "require('ioredis'); require('redlock')"]).current_dir(node_packages());
    if probe.stderr(std::process::Stdio::null()).status().is_ok_and(|status| status.success()) {
        return true;
    }
    let missing = "Node.js or node-redlock is missing in target/node: `make test` installs it";
    skipped(missing);
    false
}

fn node_packages() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("target/node")
}

async fn node_redlock(cluster: &Cluster, words: [&str; 3]) -> String {
    let ports: Vec<String> = cluster.servers.iter().map(|s| s.port().to_string()).collect();
    let mut command = tokio::process::Command::new("node");
    command.args(["-e", NODE_REDLOCK, "--", &ports.join(",")]).args(words).current_dir(node_packages());
    let output = command.output().await.expect("it runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).expect("text").trim().to_owned()
}

/// Shared leases and permits beside another library, both directions. `theirs`: its `lock NAME MS` and `unlock NAME VALUE`.
async fn check_beside_members(cluster: &Cluster, client: &Client, theirs: impl AsyncFn([&str; 3]) -> String) {
    for mode in [("mode", "shared"), ("limit", "3")] {
        let (name, more) = (mode.1, ("ttl", "60s"));
        let (first, second) = (client.acquired(name, &[mode, more]).await, client.acquired(name, &[mode, more]).await);
        assert_eq!(theirs(["lock", name, "60000"]).await, "False");
        theirs(["unlock", name, "whatever"]).await;
        client.release(name, &first.token()).await.expect_status(204);
        assert_eq!(theirs(["lock", name, "60000"]).await, "False", "one of them still holds");
        client.extend(name, &second.token(), &[]).await.expect_status(200);
        client.release(name, &second.token()).await.expect_status(204);
        cluster.until_nowhere(name).await;
        let value = theirs(["lock", name, "60000"]).await;
        assert!(value.len() > 16, "{value}");
        let refused = client.acquire(name, &[mode]).await.expect_problem(423, "locked");
        assert_eq!(refused.json()["reason"], "foreign");
        theirs(["unlock", name, &value]).await;
        let next = client.acquired(name, &[mode]).await;
        client.release(name, &next.token()).await.expect_status(204);
        cluster.until_nowhere(name).await;
    }
}

#[tokio::test]
async fn redlock_py_excludes_shared_holders_and_is_excluded_by_them() {
    let Some(python) = python() else { return };
    let cluster = Cluster::start(3).await;
    let over = cluster.service().await;
    check_beside_members(&cluster, over.client(), async |words: [&str; 3]| redlock_py(&python, &cluster, words).await)
        .await;
}

#[tokio::test]
async fn node_redlock_excludes_shared_holders_and_is_excluded_by_them() {
    if !has_node_redlock() {
        return;
    }
    let cluster = Cluster::start(3).await;
    let over = cluster.service().await;
    check_beside_members(&cluster, over.client(), async |words: [&str; 3]| node_redlock(&cluster, words).await).await;
}

/// All requests on a resource that a foreign client holds: none may cause an internal error or change its lock.
async fn check_all_requests(client: &Client, resource: &str) {
    let refused = client.acquire(resource, &[]).await.expect_problem(423, "locked").json();
    assert_eq!((&refused["reason"], &refused["holders"]), (&json!("foreign"), &json!([])));
    client.acquire(resource, &[("wait", "50ms")]).await.expect_problem(423, "wait-timeout");
    client.acquire(resource, &[("token", OWN_TOKEN)]).await.expect_problem(423, "locked");
    let seen = client.inspect(resource).await.expect_status(200).json();
    assert_eq!((&seen["state"], &seen["foreign"], &seen["holders"]), (&json!("held"), &json!(true), &json!([])));
    send(client.request("HEAD", &lock(resource))).await.expect_status(200);
    let text = send(client.request("GET", &lock(resource)).header("Accept", "text/plain")).await;
    assert!(text.expect_status(200).text.contains("foreign=true\n"));
    client.extend(resource, OWN_TOKEN, &[]).await.expect_problem(409, "not-holder");
    client.extend(resource, OWN_TOKEN, &[("note", "mine")]).await.expect_problem(409, "not-holder");
    client.release(resource, OWN_TOKEN).await.expect_problem(409, "not-holder");
    let revoke = client.request("DELETE", &format!("{}?force=revoke&reason=test", lock(resource)));
    send(revoke).await.expect_problem(400, "invalid");
    let stale = client.request("DELETE", &format!("{}?force=now&reason=test", lock(resource)));
    send(stale.header("If-Match", "\"another\"")).await.expect_problem(412, "changed");
    client.get("/locks").await.expect_status(200);
}

/// What other libraries write, command by command; the key's name is put in for `K`.
fn foreign_forms() -> Vec<(&'static str, Vec<&'static str>)> {
    let raw = "return redis.call('SET', KEYS[1], '\\0\\255\\128|\\10\\13\\200\\1\\2\\3\\4\\5\\6\\7\\8\\9\\11\\12\\14\\15', 'NX', 'PX', 60000)";
    let v5 = "if redis.call('exists', KEYS[1]) == 1 then return 0 end redis.call('set', KEYS[1], ARGV[1], 'PX', ARGV[2]) return 1";
    // 64 hex digits and a bar: it looks like the beginning of a value of ours.
    let like_ours = "9c1f02ab9c1f02ab9c1f02ab9c1f02ab9c1f02ab9c1f02ab9c1f02ab9c1f02ab|1";
    vec![
        ("redsync", vec!["SET", "K", "b2ZmaWNpYWxseSByYW5kb20=", "EX", "60", "NX"]),
        ("node-redlock", vec!["EVAL", v5, "1", "K", "0123456789abcdef0123456789abcdef", "60000"]),
        ("rslock", vec!["EVAL", raw, "1", "K"]),
        ("no-ttl", vec!["SET", "K", "forever"]),
        ("empty", vec!["SET", "K", "", "PX", "60000"]),
        ("like-ours", vec!["SET", "K", like_ours, "PX", "60000"]),
        ("redisson", vec!["HSET", "K", "8743c9c0-0795-4907-87fd-6c719a6b4586:1", "1"]),
        ("list", vec!["RPUSH", "K", "a"]),
        ("stream", vec!["XADD", "K", "*", "a", "b"]),
    ]
}

#[tokio::test]
async fn t35_keys_of_another_type_or_without_a_ttl_count_as_foreign_locks() {
    let cluster = Cluster::start(3).await;
    let over = cluster.service().await;
    for (key, words) in foreign_forms() {
        let words: Vec<&str> = words.into_iter().map(|word| if word == "K" { key } else { word }).collect();
        let mut before = Vec::new();
        for server in &cluster.servers {
            server.ask::<deadpool_redis::redis::Value>(&words).await;
            before.push(state_of(server, key).await);
        }
        check_all_requests(over.client(), key).await;
        for (server, (dump, left)) in cluster.servers.iter().zip(before) {
            let (dump_now, left_now) = state_of(server, key).await;
            assert!(dump_now == dump, "{key}: its value was changed");
            assert!((left_now < 0) == (left < 0) && left_now <= left, "{key}: its TTL was changed");
        }
        // Only an operator can end it.
        let now = over.client().request("DELETE", &format!("{}?force=now&reason=gone+for+good", lock(key)));
        send(now).await.expect_status(204);
        cluster.until_nowhere(key).await;
        over.client().acquired(key, &[]).await;
    }
}

async fn state_of(server: &crate::support::redis_server::RedisServer, key: &str) -> (Vec<u8>, i64) {
    (server.ask(&["DUMP", key]).await, server.ask(&["PTTL", key]).await)
}

/// The commands that other clients send, on a key of redlockd.
#[tokio::test]
async fn other_clients_cannot_take_release_or_extend_a_lease() {
    let cluster = Cluster::start(3).await;
    let over = cluster.service().await;
    let lease = over.client().acquired("x", &[("ttl", "60s")]).await;
    cluster.until_everywhere("x").await;
    let delete = "if redis.call('get', KEYS[1]) == ARGV[1] then return redis.call('del', KEYS[1]) else return 0 end";
    let extend = "if redis.call('get', KEYS[1]) == ARGV[1] then return redis.call('pexpire', KEYS[1], ARGV[2]) else return 0 end";
    for server in &cluster.servers {
        for value in [lease.token().as_str(), "foreign"] {
            assert_eq!(server.ask::<Option<String>>(&["SET", "x", value, "NX", "PX", "60000"]).await, None);
            // Not even with the token: the value has its hash.
            assert_eq!(server.ask::<i64>(&["EVAL", delete, "1", "x", value]).await, 0);
            assert_eq!(server.ask::<i64>(&["EVAL", extend, "1", "x", value, "1"]).await, 0);
        }
    }
    over.client().extend("x", &lease.token(), &[]).await.expect_status(200);
}
