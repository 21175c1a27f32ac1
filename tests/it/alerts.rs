//! Each alert is fired by a real failure: of nodes, of clocks, of callers, of the process. Waiting times are shortened by
//! settings and by the harness (`support/prometheus.rs`); promtool tests the shipped ones. Those about keys, certificates and
//! files are in `access/alerts.rs`, those about call-backs and hooks in `hooks/alerts.rs`, those about nodes that fail one after another in `prometheus.rs`.

use std::path::{Path, PathBuf};
use std::time::Duration;

use futures_util::future::join_all;
use redlockd::redlock::clock::{Clock, SystemClock};
use rustix::process::{Resource, Rlimit, prlimit};
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;
use tokio::task::JoinSet;

use crate::support::client::{Client, try_send};
use crate::support::clock_shim::ClockShim;
use crate::support::cluster::{Cluster, MUTE, heal, node_args, slow_to_answer};
use crate::support::poll;
use crate::support::prometheus::{Prometheus, tool};
use crate::support::redis_server::{Options, RedisServer};
use crate::support::service::{SHORT_MEMORY, Service};

fn config() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("config")
}

/// The value of a series without labels in a scrape.
async fn metric(client: &Client, name: &str) -> f64 {
    let text = client.get("/metrics").await.text;
    let value = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' ')?.parse().ok());
    value.unwrap_or_else(|| panic!("{name} is missing"))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_wrong_clock_a_second_server_and_a_node_that_answers_without_a_vote_are_reported() {
    if tool("prometheus").is_none() {
        return;
    }
    let clock = ClockShim::of_libc();
    let shimmed = Options { env: clock.env(), ..Options::default() };
    let cluster = Cluster::blank_with(vec![Options::default(), shimmed, Options::default()]).await;
    let times =
        ["node_timeout=200ms", "min_ttl=400ms", "guard=800ms", "lock_delay=1600ms", "max_ttl=2s", "default_ttl=2s"];
    let times: Vec<&str> = times.iter().flat_map(|setting| ["--set", setting]).collect();
    cluster.declare(&times);
    let urls = || cluster.servers.iter().map(RedisServer::url);
    let args = |urls: Vec<String>| -> Vec<String> {
        node_args(urls.into_iter()).into_iter().chain(times.iter().map(ToString::to_string)).collect()
    };
    let here = Service::start(&args(urls().collect())).await;
    here.until_ready().await;
    // The name n3 leads the second instance to another server.
    let other = RedisServer::start().await;
    let elsewhere: Vec<String> = urls().take(2).chain([other.url()]).collect();
    let there = Service::start(&args(elsewhere)).await;
    let prometheus = Prometheus::start(&config(), &[here.address(), there.address()]).await;
    prometheus.until_fired(&["RedlockdOneNameTwoServers", "RedlockdNodeDoesNotVote"]).await;
    assert!(!prometheus.has_fired("RedlockdNodeClockOff").await);
    clock.step(500);
    prometheus.until_fired(&["RedlockdNodeClockOff"]).await;
    // Within the guard it votes: locks are granted meanwhile.
    here.client().acquired("x", &[]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn nodes_that_take_long_and_leases_that_begin_late_are_reported() {
    if tool("prometheus").is_none() {
        return;
    }
    let times = ["node_timeout=1s", "min_ttl=2s", "guard=1200ms", "lock_delay=2400ms", "default_ttl=2s"];
    let times: Vec<&str> = times.iter().flat_map(|setting| ["--set", setting]).collect();
    let cluster = Cluster::blank(3).await;
    cluster.declare(&times);
    let over = cluster.service_with_only(&times).await;
    let prometheus = Prometheus::start(&config(), &[over.service.address()]).await;
    let (mut work, client) = (JoinSet::new(), over.client().clone());
    // One caller: the proxies pass one answer of a connection after the other.
    work.spawn(async move {
        loop {
            let lease = client.acquire("slow", &[("ttl", "2s")]).await;
            if lease.status == 201 {
                client.release("slow", &lease.token()).await;
            }
            SystemClock.sleep(Duration::from_millis(500)).await;
        }
    });
    for alert in ["RedlockdAcquireSlow", "RedlockdValidityShrinking"] {
        assert!(!prometheus.has_fired(alert).await, "{alert}");
    }
    for proxy in &over.proxies {
        proxy.set(slow_to_answer(Duration::from_millis(550)));
    }
    prometheus.until_fired(&["RedlockdAcquireSlow", "RedlockdValidityShrinking"]).await;
    drop(work);
}

/// Requests that wait, until it is dropped.
fn waiting(client: &Client, waits: &[(&str, &str)]) -> JoinSet<()> {
    let mut requests = JoinSet::new();
    for (resource, owner) in waits {
        let fields = [("wait", "2m"), ("owner", owner)];
        let request =
            client.request("POST", &format!("/locks/{resource}")).timeout(Duration::from_mins(3)).form(&fields);
        requests.spawn(async move { _ = try_send(request).await });
    }
    requests
}

#[tokio::test(flavor = "multi_thread")]
async fn waiters_holders_and_leases_that_are_lost_are_reported() {
    if tool("prometheus").is_none() {
        return;
    }
    let cluster = Cluster::start(3).await;
    let limits = ["waiters_total=5", "waiters_per_resource=5", "cleanup_limit=16"];
    let limits: Vec<&str> = limits.iter().flat_map(|setting| ["--set", setting]).collect();
    let over = cluster.service_with(&[&SHORT_MEMORY[..], &limits].concat()).await;
    let client = over.client();
    let prometheus = Prometheus::start(&config(), &[over.service.address()]).await;
    for (resource, owner) in [("x", "ann"), ("y", "bob"), ("kept", "sam")] {
        client.acquired(resource, &[("keep", "10m"), ("owner", owner)]).await;
    }
    poll::until("the kept ones are old, and nobody extends another one", || async {
        let unkept = metric(client, "redlockd_cluster_lock_longest_unkept_seconds").await;
        let is_old = metric(client, "redlockd_cluster_lock_longest_held_seconds").await > 2.0;
        (is_old && unkept == 0.0).then_some(())
    })
    .await;
    let mut long = TcpStream::connect(over.service.address()).await.expect("it listens");
    let head = "POST /locks/long?hold=true&ttl=1s&owner=eve HTTP/1.1\r\nHost: localhost\r\nContent-Length: 0\r\n\r\n";
    long.write_all(head.as_bytes()).await.expect("open");
    poll::until("it is held", || async { (client.inspect("long").await.status == 200).then_some(()) }).await;
    let deadlock = waiting(client, &[("y", "ann"), ("x", "bob")]);
    prometheus.until_fired(&["RedlockdDeadlock"]).await;
    drop(deadlock);
    poll::until("they have left", || async { (metric(client, "redlockd_lock_waiters").await == 0.0).then_some(()) })
        .await;
    // Nobody asks for it.
    let fields = [("async", "true"), ("keep", "10m"), ("owner", "zoe")];
    assert_eq!(client.acquire("x", &fields).await.status, 202);
    let queue = waiting(client, &[("long", "a"), ("long", "b"), ("long", "c"), ("long", "d"), ("long", "e")]);
    prometheus.until_fired(&["RedlockdWaitersSaturated", "RedlockdOldestWait", "RedlockdLockStuck"]).await;
    drop((queue, long));
    assert!(!prometheus.has_fired("RedlockdKeptLeaseLost").await);
    // All nodes forget one lease.
    for server in &cluster.servers {
        server.ask::<()>(&["DEL", "kept"]).await;
    }
    prometheus.until_fired(&["RedlockdKeptLeaseLost"]).await;
    assert!(
        !prometheus.has_fired("RedlockdLeasesLost").await && !prometheus.has_fired("RedlockdCleanupsSkipped").await
    );
    prometheus.until_fired(&["RedlockdTicketsUndelivered"]).await;
    let mut stream = TcpStream::connect(over.service.address()).await.expect("it listens");
    let head = "POST /locks/held?hold=true&ttl=1s HTTP/1.1\r\nHost: localhost\r\nContent-Length: 0\r\n\r\n";
    stream.write_all(head.as_bytes()).await.expect("open");
    poll::until("it is held", || async { (client.inspect("held").await.status == 200).then_some(()) }).await;
    // Two of three nodes answer nothing more: the lease cannot be renewed, and what failed attempts left there is owed.
    over.proxies[..2].iter().for_each(|proxy| proxy.set(MUTE));
    let names: Vec<String> = (0..60).map(|i| format!("failed/{i}")).collect();
    join_all(names.iter().map(|name| client.acquire(name, &[]))).await;
    prometheus.until_fired(&["RedlockdLeasesLost", "RedlockdCleanupsSkipped"]).await;
    over.proxies.iter().for_each(heal);
    drop(stream);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_instance_that_is_gone_lost_audit_records_and_too_many_open_files_are_reported() {
    if tool("prometheus").is_none() {
        return;
    }
    let service = Service::embedded(&["--set", "audit_log=/dev/full"]).await;
    let mut other = Service::embedded(&[]).await;
    let client = service.client();
    let prometheus = Prometheus::start(&config(), &[service.address(), other.address()]).await;
    for alert in ["RedlockdAuditLogFailing", "RedlockdFilesNearLimit"] {
        assert!(!prometheus.has_fired(alert).await, "{alert}");
    }
    client.acquired("x", &[]).await;
    prometheus.until_fired(&["RedlockdAuditLogFailing"]).await;
    let open = metric(client, "process_open_fds").await as u64;
    let limit = Rlimit { current: Some(open + 40), maximum: Some(open + 40) };
    prlimit(Some(service.pid()), Resource::Nofile, limit).expect("our own child");
    let address = service.address();
    let idle = join_all((0..32).map(|_| TcpStream::connect(address))).await;
    prometheus.until_fired(&["RedlockdFilesNearLimit"]).await;
    drop(idle);
    // Before the first scrape there was none: what fired then is over.
    let is_firing = async || {
        let firing = prometheus.query("ALERTS{alertname=\"RedlockdInstanceDown\", alertstate=\"firing\"}").await;
        !firing["data"]["result"].as_array().expect("a result").is_empty()
    };
    poll::until("both are scraped", || async { (!is_firing().await).then_some(()) }).await;
    other.kill();
    poll::until("the instance that is gone is reported", || async { is_firing().await.then_some(()) }).await;
    prometheus.until_fired(&["RedlockdInstanceDown"]).await;
}

/// The alerts that a test waits for, by its source.
fn fired(source: &str) -> impl Iterator<Item = &str> {
    let lists = source.split("until_fired(&[").skip(1).filter_map(|rest| rest.split_once(']'));
    lists.flat_map(|(list, _)| list.split('"')).filter(|name| name.starts_with("Redlockd"))
}

#[test]
fn every_alert_is_fired_by_a_test_with_a_real_failure() {
    let sources = [
        include_str!("alerts.rs"),
        include_str!("access/alerts.rs"),
        include_str!("hooks/alerts.rs"),
        include_str!("prometheus.rs"),
    ];
    let fired: Vec<&str> = sources.iter().flat_map(|source| fired(source)).collect();
    let rules = std::fs::read_to_string(config().join("alerts.yml")).expect("readable");
    let alerts: Vec<&str> = rules.lines().filter_map(|line| line.trim().strip_prefix("- alert: ")).collect();
    assert!(alerts.len() >= 30, "{alerts:?}");
    for alert in &alerts {
        assert!(fired.contains(alert), "{alert} is fired by no test");
    }
    for name in fired {
        assert!(alerts.contains(&name), "{name} is no alert");
    }
}
