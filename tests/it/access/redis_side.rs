//! Connections to the nodes: the minimal access rules of `docs/redis-acl.md`, TLS with a private authority and client
//! certificates, and passwords from files.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::time::Duration;

use redlockd::redlock::clock::{Clock, SystemClock};

use crate::support::client::{Client, send};
use crate::support::cluster::node_args;
use crate::support::daemon::{ended, redlockd};
use crate::support::poll;
use crate::support::redis_server::{Options, RedisServer};
use crate::support::service::{SHORT_TIMES, Service};
use crate::terms::set;

/// The first line of the document's rules.
fn documented_rule() -> String {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/redis-acl.md");
    let text = std::fs::read_to_string(file).expect("readable");
    let (_, rest) = text.split_once("```acl\n").expect("a block");
    rest.lines().next().expect("a line").to_owned()
}

async fn servers(options: impl Fn() -> Options) -> Vec<RedisServer> {
    let mut servers = Vec::new();
    for _ in 0..3 {
        servers.push(RedisServer::start_with(options()).await);
    }
    servers
}

/// Initialises the nodes and starts a service.
async fn service(urls: &[String], more: &[&str]) -> Service {
    let mut args = node_args(urls.iter().cloned());
    args.extend(SHORT_TIMES.iter().chain(more).map(ToString::to_string));
    let init: Vec<&str> = std::iter::once("init").chain(args.iter().map(String::as_str)).collect();
    let done = ended(&mut redlockd(&init));
    assert_eq!(done.code, Some(0), "{done:?}");
    let service = Service::start(&args).await;
    poll::until("all nodes vote", || async {
        let quorum = service.client().get("/nodes").await.json()["quorum"].clone();
        (quorum["granted"] == 3).then_some(())
    })
    .await;
    service
}

/// F9: four pages of 250.
const LEASES: usize = 1_000;

/// Uses every command that the service sends to its nodes.
async fn does_everything(one: &Service, two: &Service, servers: &[RedisServer]) {
    let (client, other) = (one.client(), two.client());
    let lease = client.acquired("a/b", &[("ttl", "5s"), ("note", "n")]).await;
    client.extend("a/b", &lease.token(), &[("note", "m")]).await.expect_status(200);
    client.inspect("a/b").await.expect_status(200);
    // A waiter of the other instance, woken by a notice.
    let waiting = tokio::spawn({
        let other = other.clone();
        async move { other.acquire("a/b", &[("wait", "20s")]).await }
    });
    poll::until("it waits", || async { (other.waiting("a/b").await == 1).then_some(()) }).await;
    poll::until("the other instance shows it", || async {
        (client.inspect("a/b").await.json()["waiters"][0]["position"] == 1).then_some(())
    })
    .await;
    client.release("a/b", &lease.token()).await.expect_status(204);
    let lease = waiting.await.expect("no panic").expect_status(201);
    poll::until("the list has it", || async {
        let list = client.get("/locks").await.json();
        list["items"].as_array().is_some_and(|items| items.len() == 1).then_some(())
    })
    .await;
    let forced = client.request("DELETE", "/locks/a/b?force=revoke&reason=test");
    crate::support::client::send(forced).await.expect_status(202);
    other.extend("a/b", &lease.token(), &[]).await.expect_problem(410, "lease-expired");
    let forced = client.request("DELETE", "/locks/a/b?force=now&reason=test");
    crate::support::client::send(forced).await.expect_status(204);
    client.acquired("a/b", &[]).await;
    uses_every_mode(client).await;
    for server in servers {
        server.hold("many/", LEASES).await;
    }
    poll::until("the list has all of them", || async {
        let list = client.get("/locks?prefix=many/&limit=1000").await.json();
        let is_whole = list["complete"] == true && list["items"].as_array().is_some_and(|items| items.len() == LEASES);
        is_whole.then_some(())
    })
    .await;
    // The leases get other keys.
    set(client, &[("key_template", "lock:{resource}")]).await.expect_status(200);
    for server in servers {
        assert_eq!(server.ask::<u8>(&["EXISTS", "a/b", "many/1", "lock:a/b", "lock:many/1"]).await, 2);
    }
}

/// Shared leases, permits, sets, a downgrade, kept leases and tickets, each renewed and released.
async fn uses_every_mode(client: &Client) {
    for fields in [&[("mode", "shared")][..], &[("limit", "2")], &[("keep", "1m")]] {
        let lease = client.acquired("mode/a", fields).await;
        client.extend("mode/a", &lease.token(), &[("note", "m")]).await.expect_status(200);
        client.release("mode/a", &lease.token()).await.expect_status(204);
    }
    let lease = client.acquired("mode/b", &[]).await;
    client.extend("mode/b", &lease.token(), &[("mode", "shared")]).await.expect_status(200);
    client.release("mode/b", &lease.token()).await.expect_status(204);
    let with = |method, path: &str, token: &str| send(client.request(method, path).header("Lock-Token", token));
    for mode in ["exclusive", "shared"] {
        let body = serde_json::json!({ "resources": ["set/a", "set/b"], "mode": mode });
        let set = send(client.request("POST", "/locks").json(&body)).await.expect_status(201).token();
        let named = "/locks?resource=set/a&resource=set/b";
        with("PATCH", named, &set).await.expect_status(200);
        with("DELETE", named, &set).await.expect_status(200);
    }
    let held = client.acquired("mode/c", &[]).await;
    let ticket = client.acquire("mode/c", &[("async", "true"), ("keep", "1m")]).await.expect_status(202);
    let path = format!("/tickets/{}", ticket.json()["ticket"].as_str().expect("a ticket"));
    client.release("mode/c", &held.token()).await.expect_status(204);
    let granted = with("GET", &format!("{path}?wait=20s"), &ticket.token()).await.expect_status(200);
    assert_eq!(granted.json()["state"], "granted", "{}", granted.text);
    with("DELETE", &path, &ticket.token()).await.expect_status(204);
}

/// Every command of every script is in the rule: a branch that no test runs is not refused in production.
#[test]
fn the_rule_has_every_command_that_a_script_calls() {
    let (rule, mut commands, mut folders) =
        (documented_rule(), BTreeSet::new(), vec![concat!(env!("CARGO_MANIFEST_DIR"), "/src/protocol").into()]);
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir::<PathBuf>(folder).expect("a folder") {
            let path = entry.expect("an entry").path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|ext| ext == "lua") {
                let script = std::fs::read_to_string(&path).expect("text");
                let calls = script.split("call('").skip(1).filter_map(|rest| rest.split('\'').next());
                commands.extend(calls.map(str::to_lowercase));
            }
        }
    }
    assert!(commands.len() > 20, "{commands:?}");
    for command in commands {
        assert!(rule.split(' ').any(|right| right == format!("+{command}")), "{command} is not in the rule");
    }
}

#[tokio::test]
async fn the_documented_access_rule_is_sufficient_and_minimal() {
    let rule = documented_rule();
    assert!(rule.starts_with("user redlockd on >PASSWORD ") && rule.contains(" -@all "), "{rule}");
    let user: &'static str = rule.trim_start_matches("user ").replace("PASSWORD", "s3cret").leak();
    let servers = servers(|| Options { users: vec![user], ..Options::default() }).await;
    let urls: Vec<String> = servers.iter().map(|s| s.url().replace("redis://", "redis://redlockd:s3cret@")).collect();
    let (one, two) = (service(&urls, &[]).await, {
        let mut args = node_args(urls.iter().cloned());
        args.extend(SHORT_TIMES.iter().map(ToString::to_string));
        Service::start(&args).await
    });
    two.until_ready().await;
    does_everything(&one, &two, &servers).await;
    for service in [&one, &two] {
        let said = service.output();
        assert!(!said.iter().any(|l| l.contains("NOPERM") || l.contains("s3cret")), "{said:#?}");
        let nodes = service.client().get("/nodes").await.text;
        assert!(!nodes.contains("NOPERM"), "{nodes}");
    }
    // The nodes refused nothing but the one command that the page leaves out on purpose.
    for server in &servers {
        let log: Vec<deadpool_redis::redis::Value> = server.ask(&["ACL", "LOG"]).await;
        assert!(log.iter().all(|entry| format!("{entry:?}").contains("config|get")), "{log:?}");
    }
    for dangerous in ["FLUSHALL", "KEYS", "CONFIG", "DEBUG", "SHUTDOWN", "ACL"] {
        let args = ["ACL", "DRYRUN", "redlockd", dangerous];
        let said: Result<String, _> = servers[0].try_ask(&args).await;
        assert!(!said.is_ok_and(|said| said == "OK"), "{dangerous}");
    }
}

/// F14: without the right to the channels, another client's lock is deleted and reported as deleted.
#[tokio::test]
async fn a_foreign_lock_is_deleted_without_the_right_to_publish() {
    let rule = documented_rule().replace(" &redlockd:*", "");
    let user: &'static str = rule.trim_start_matches("user ").replace("PASSWORD", "s3cret").leak();
    let servers = servers(|| Options { users: vec![user], ..Options::default() }).await;
    let urls: Vec<String> = servers.iter().map(|s| s.url().replace("redis://", "redis://redlockd:s3cret@")).collect();
    let service = service(&urls, &[]).await;
    for server in &servers {
        let _: String = server.ask(&["SET", "a/b", "foreign", "PX", "60000"]).await;
    }
    service.client().inspect("a/b").await.expect_status(200);
    let forced = service.client().request("DELETE", "/locks/a/b?force=now&reason=test");
    crate::support::client::send(forced).await.expect_status(204);
    service.client().inspect("a/b").await.expect_problem(404, "not-held");
}

/// F12: a release whose notice is refused wakes a waiter of another instance within a second or two, and not when the
/// lease would have ended.
#[tokio::test]
async fn f12_waiters_poll_where_the_user_may_not_publish() {
    let servers = servers(|| Options { users: vec!["locker on >pw ~* &* +@all -publish"], ..Options::default() }).await;
    let urls: Vec<String> = servers.iter().map(|s| s.url().replace("redis://", "redis://locker:pw@")).collect();
    let one = service(&urls, &[]).await;
    let mut args = node_args(urls.iter().cloned());
    args.extend(SHORT_TIMES.iter().map(ToString::to_string));
    let two = Service::start(&args).await;
    two.until_ready().await;
    let lease = one.client().acquired("a/b", &[("ttl", "60s")]).await;
    let other = two.client().clone();
    let waiting = tokio::spawn(async move { other.acquire("a/b", &[("wait", "15s")]).await });
    poll::until("it waits", || async { (two.client().waiting("a/b").await == 1).then_some(()) }).await;
    one.client().release("a/b", &lease.token()).await.expect_status(204);
    waiting.await.expect("no panic").expect_status(201);
    let nodes = two.client().get("/nodes").await.text;
    assert!(nodes.contains("no-notices") && nodes.contains("publish"), "{nodes}");
}

/// M2: `init` says at once which right is missing, and `doctor` too.
#[tokio::test]
async fn m2_init_and_doctor_name_the_right_that_is_missing() {
    let users = vec!["locker on >pw ~* &* +@all -hmget"];
    let server = RedisServer::start_with(Options { users, ..Options::default() }).await;
    let node = format!("n1={}", server.url().replace("redis://", "redis://locker:pw@"));
    let begun = SystemClock.now();
    let done = ended(&mut redlockd(&[&["init", "--node", &node][..], &SHORT_TIMES].concat()));
    assert!(SystemClock.now().since(begun) < Duration::from_secs(8), "it retried for ten seconds");
    assert!(done.code != Some(0) && done.err.contains("n1 refuses this user"), "{done:?}");
    let done = ended(&mut redlockd(&[&["doctor", "--node", &node][..], &SHORT_TIMES].concat()));
    assert!(done.code != Some(0) && done.out.contains("hmget"), "{done:?}");
}

/// How often a server has refused this command.
async fn refusals(server: &RedisServer, command: &str) -> u64 {
    let statistics: String = server.ask(&["INFO", "commandstats"]).await;
    let line = statistics.lines().find_map(|line| line.strip_prefix(&format!("cmdstat_{command}:")));
    let refused = line.and_then(|line| line.split(',').find_map(|part| part.strip_prefix("rejected_calls=")));
    refused.and_then(|number| number.parse().ok()).unwrap_or(0)
}

/// M2: each try makes a connection, and the pauses between them grow; a minute has one line of the log.
#[tokio::test]
async fn m2_a_right_that_was_taken_away_causes_no_storm_of_connections() {
    const TRIES: u64 = 8;
    // These tries take 20 s on average. With the usual pauses, of at most a second, they take 1.6 s, and 3.3 s at most.
    const LEAST: Duration = Duration::from_millis(3_300);
    let server =
        RedisServer::start_with(Options { users: vec!["locker on >pw ~* &* +@all"], ..Options::default() }).await;
    let args = node_args(std::iter::once(server.url().replace("redis://", "redis://locker:pw@")));
    let init: Vec<&str> = std::iter::once("init").chain(args.iter().map(String::as_str)).chain(SHORT_TIMES).collect();
    assert_eq!(ended(&mut redlockd(&init)).code, Some(0));
    let service = Service::start(&[&args[..], &SHORT_TIMES.map(ToString::to_string)].concat()).await;
    service.until_ready().await;
    let _: String = server.ask(&["ACL", "SETUSER", "locker", "-pubsub|numsub"]).await;
    let end = SystemClock.now().plus(Duration::from_mins(3));
    let after = async |tries: u64| {
        poll::until_over(
            "it has tried",
            || SystemClock.now() >= end,
            || async { (refusals(&server, "pubsub|numsub").await >= tries).then_some(()) },
        )
        .await;
        SystemClock.now()
    };
    let (first, last) = (after(1).await, after(1 + TRIES).await);
    assert!(last.since(first) > LEAST, "{TRIES} tries within {:?}", last.since(first));
    let lines: Vec<String> =
        service.output().into_iter().filter(|line| line.contains("no notices from the node")).collect();
    let minutes = usize::try_from(last.since(first).as_secs() / 60).expect("small");
    assert!((1..=1 + minutes).contains(&lines.len()), "{lines:#?}");
    // It says so, and grants locks.
    assert!(service.client().get("/nodes").await.text.contains("no-notices"));
    service.client().acquired("x", &[]).await;
}

/// With these settings the nodes are initialised, and a lock is acquired and released.
async fn declared_and_served(settings: &[&str]) {
    let done = ended(&mut redlockd(&[&["init"][..], settings, &SHORT_TIMES].concat()));
    assert_eq!(done.code, Some(0), "{done:?}");
    let service = Service::start(&[settings, &SHORT_TIMES].concat()).await;
    service.until_ready().await;
    let lease = service.client().acquired("x", &[]).await;
    service.client().release("x", &lease.token()).await.expect_status(204);
}

#[tokio::test]
async fn nodes_are_reached_over_tls_with_a_private_authority() {
    let server = RedisServer::start_with(Options { tls: true, password: Some("s3cret"), ..Options::default() }).await;
    let dir = tempfile::tempdir().expect("a directory");
    let ca = dir.path().join("ca.pem");
    std::fs::write(&ca, server.ca_pem()).expect("writable");
    let setting = format!("tls_ca={}", ca.display());
    let args = ["--node", &format!("n1={}", server.url()), "--set", &setting];
    declared_and_served(&args).await;
    // Without that authority its certificate is rejected.
    let blind = ["--node", &format!("n1={}", server.url())];
    let blind = Service::start(&[&blind[..], &SHORT_TIMES].concat()).await;
    blind.client().get("/health/ready").await.expect_status(503);
    assert!(!blind.output().iter().any(|line| line.contains("s3cret")));
}

#[tokio::test]
async fn nodes_that_require_a_client_certificate_get_one() {
    let server = RedisServer::start_with(Options { tls: true, client_certificates: true, ..Options::default() }).await;
    let dir = tempfile::tempdir().expect("a directory");
    let (client, client_key) = server.client_pem();
    let file = |key: &str, text: &[u8]| {
        let path = dir.path().join(key);
        std::fs::write(&path, text).expect("writable");
        format!("{key}={}", path.display())
    };
    let settings = [file("tls_ca", &server.ca_pem()), file("tls_cert", &client), file("tls_key", &client_key)];
    let node = format!("n1={}", server.url());
    let bare = ["--node", node.as_str(), "--set", &settings[0]];
    let with = [&bare[..], &["--set", &settings[1], "--set", &settings[2]]].concat();
    declared_and_served(&with).await;
    let looked = ended(&mut redlockd(&[&["doctor"][..], &with, &SHORT_TIMES].concat()));
    assert!(looked.out.contains("n1") && !looked.out.contains("PROBLEM: n1"), "{looked:?}");
    // Without a certificate the node is unreachable, and says so.
    let bare = Service::start(&[&bare[..], &SHORT_TIMES].concat()).await;
    bare.client().get("/health/ready").await.expect_status(503);
    assert!(!bare.client().get("/nodes").await.text.contains("\"votes\":true"));
}

const FILE_PASSWORD: &str = "file-passw0rd-hunter3";
const USER_PASSWORD: &str = "user-passw0rd-hunter4";

/// The password of the default user for all nodes, and that of an ACL user for one of them.
#[tokio::test]
async fn passwords_are_read_from_files_and_never_shown() {
    let users = vec!["locker on >user-passw0rd-hunter4 ~* &* +@all"];
    let options = Options { password: Some(FILE_PASSWORD), users, ..Options::default() };
    let server = RedisServer::start_with(options).await;
    let dir = tempfile::tempdir().expect("a directory");
    let file = |name: &str, text: &str| {
        let path = dir.path().join(name);
        std::fs::write(&path, text).expect("writable");
        path.to_str().expect("ASCII").to_owned()
    };
    let common = file("common", &format!("{FILE_PASSWORD}\n"));
    let own = file("own", USER_PASSWORD);
    let at = format!("127.0.0.1:{}", server.port());
    let common = format!("node_password_file = \"{common}\"\n[[node]]\nname = \"n1\"\nurl = \"redis://{at}\"\n");
    let own = format!("[[node]]\nname = \"n1\"\nurl = \"redis://locker@{at}\"\npassword_file = \"{own}\"\n");
    let (common, own) = (file("common.toml", &common), file("own.toml", &own));
    let mut said = Vec::new();
    let done = ended(&mut redlockd(&[&["init", "--config", &common][..], &SHORT_TIMES].concat()));
    assert_eq!(done.code, Some(0), "{done:?}");
    said.push(format!("{done:?}"));
    for (config, user) in [(&common, "user=default"), (&own, "user=locker")] {
        for command in [&["doctor"][..], &["config", "check"], &["config", "show"]] {
            let done = ended(&mut redlockd(&[command, &["--config", config], &SHORT_TIMES].concat()));
            assert!(!format!("{done:?}").contains("wants a password"), "{done:?}");
            said.push(format!("{done:?}"));
        }
        let service = Service::start(&[&["--config", config, "--log-level", "trace"][..], &SHORT_TIMES].concat()).await;
        service.until_ready().await;
        let lease = service.client().acquired("x", &[]).await;
        service.client().release("x", &lease.token()).await.expect_status(204);
        for path in ["/nodes", "/metrics", "/ui/nodes"] {
            said.push(service.client().get(path).await.expect_status(200).text);
        }
        said.push(service.output().join("\n"));
        let clients: String = server.ask(&["CLIENT", "LIST", "TYPE", "NORMAL"]).await;
        assert!(clients.lines().any(|line| line.contains(" addr=127.0.0.1:") && line.contains(user)), "{clients}");
    }
    let said = said.join("\n");
    assert!(said.contains("node_password_file = ") && !said.contains(FILE_PASSWORD) && !said.contains(USER_PASSWORD));
    // A missing file is named, and the service does not start.
    std::fs::remove_file(dir.path().join("common")).expect("there");
    for command in [&["serve"][..], &["doctor"], &["config", "check"]] {
        let done = ended(&mut redlockd(&[command, &["--config", &common]].concat()));
        assert!(done.code == Some(78) && done.err.contains("`node_password_file`: "), "{done:?}");
    }
}
