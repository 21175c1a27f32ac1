//! Durable nodes: after a power cut of all of them they vote again within seconds, with every lease. If the data may not be the
//! latest, or a clock was wrong, they wait as without the setting.

use crate::support::client::Client;
use crate::support::clock_shim::ClockShim;
use crate::support::cluster::node_args;
use crate::support::daemon::{ended, redlockd};
use crate::support::poll;
use crate::support::redis_server::{Options, RedisServer};
use crate::support::service::{SHORT_TIMES, Service};

const DURABLE: [&str; 2] = ["--set", "durable_nodes=true"];
/// With [`SHORT_TIMES`]: a quarantine of 5.3 s, longer than it takes to vote by the disk.
const QUARANTINE: [&str; 4] = ["--set", "max_ttl=4s", "--set", "default_ttl=2s"];
/// A machine that runs other tests beside this one answers late.
const PATIENT: [&str; 4] = ["--set", "node_timeout=200ms", "--set", "min_ttl=400ms"];

/// Three servers with an append-only file that is synced always, a cluster of them, and two instances.
async fn cluster(more: &[&str], shim: Option<&ClockShim>) -> (Vec<RedisServer>, [Service; 2]) {
    let mut servers = Vec::new();
    for n in 0..3 {
        let env = shim.filter(|_| n < 2).map(ClockShim::env).unwrap_or_default();
        servers.push(RedisServer::start_with(Options { appendonly: true, env, ..Options::default() }).await);
    }
    let more = more.iter().map(ToString::to_string);
    let args: Vec<String> = node_args(servers.iter().map(RedisServer::url)).into_iter().chain(more).collect();
    let words: Vec<&str> = std::iter::once("init").chain(args.iter().map(String::as_str)).collect();
    let done = ended(&mut redlockd(&words));
    assert_eq!(done.code, Some(0), "{done:?}");
    let services = [Service::start(&args).await, Service::start(&args).await];
    for service in &services {
        until_votes(service.client()).await;
    }
    (servers, services)
}

async fn until_votes(client: &Client) {
    poll::until("all nodes vote", || async {
        (client.get("/nodes").await.json()["quorum"]["granted"] == 3).then_some(())
    })
    .await;
}

async fn meta(server: &RedisServer, field: &str) -> Option<String> {
    server.ask(&["HGET", "redlockd:meta", field]).await
}

async fn until_durable(servers: &[RedisServer]) {
    for server in servers {
        poll::until("the node is durable", || async { meta(server, "durable").await }).await;
    }
}

/// What the service shows of each node, once all are durable or none is.
async fn shows(client: &Client, durable: bool) {
    poll::until("the service shows which nodes are durable", || async {
        let nodes = client.get("/nodes").await.json();
        nodes["nodes"].as_array()?.iter().all(|node| node["durable"] == durable).then_some(())
    })
    .await;
    let metrics = client.get("/metrics").await.text;
    let line = format!("redlockd_node_durable{{node=\"n1\"}} {}", u8::from(durable));
    assert!(metrics.lines().any(|found| found == line), "{line}");
    assert_eq!(client.get("/ui/nodes").await.text.matches(", durable").count(), if durable { 3 } else { 0 });
}

async fn power_cut(servers: &mut [RedisServer], before_start: impl Fn(usize, &RedisServer)) {
    servers.iter_mut().for_each(RedisServer::kill);
    for (n, server) in servers.iter_mut().enumerate() {
        before_start(n, server);
        server.restart().await;
    }
}

/// Waits until all vote, which they do by their quarantine alone.
async fn until_they_have_waited(servers: &[RedisServer], client: &Client) {
    for server in servers {
        let run =
            |info: String| info.lines().find_map(|line| line.strip_prefix("run_id:").map(|run| run.trim().to_owned()));
        let run = run(server.ask(&["INFO", "server"]).await).expect("a run");
        poll::until("the new process votes", || async {
            (meta(server, "run").await?.starts_with(&run) && meta(server, "st").await? == "a").then_some(())
        })
        .await;
        assert_ne!(meta(server, "why").await.as_deref(), Some("by-disk"));
    }
    until_votes(client).await;
}

/// The quarantine is 305 s: longer than is waited here.
#[tokio::test]
async fn after_a_power_cut_durable_nodes_vote_within_seconds_with_all_leases() {
    let (mut servers, services) = cluster(&[&PATIENT[..], &DURABLE].concat(), None).await;
    until_durable(&servers).await;
    let [one, two] = &services;
    shows(one.client(), true).await;
    let left_alone = one.client().acquired("left-alone", &[("ttl", "4m")]).await;
    let renewed = two.client().acquired("renewed", &[("ttl", "4m")]).await;
    let mut fence = renewed.fence();
    for _ in 0..2 {
        power_cut(&mut servers, |_, _| {}).await;
        // One that is started later than the others may be filled by them.
        let mut by_disk = 0;
        for server in &servers {
            let info: String = server.ask(&["INFO", "server"]).await;
            poll::until("this process votes", || async {
                let (run, state) = (meta(server, "run").await?, meta(server, "st").await?);
                (state == "a" && info.contains(&run[..40])).then_some(())
            })
            .await;
            by_disk += usize::from(meta(server, "why").await.as_deref() == Some("by-disk"));
        }
        assert!(by_disk > servers.len() / 2, "{by_disk} vote by their disks");
        for service in &services {
            until_votes(service.client()).await;
            service.client().acquire("left-alone", &[("ttl", "1s")]).await.expect_status(423);
            service.client().acquire("renewed", &[("ttl", "1s")]).await.expect_status(423);
            let free = service.client().acquired("free", &[("ttl", "1s")]).await;
            assert!(free.fence() > fence, "{} after {fence}", free.fence());
            fence = free.fence();
            service.client().release("free", &free.token()).await.expect_status(204);
        }
        two.client().extend("renewed", &renewed.token(), &[]).await.expect_status(200);
        until_durable(&servers).await;
    }
    two.client().release("left-alone", &left_alone.token()).await.expect_status(204);
    one.client().acquired("left-alone", &[("ttl", "1s")]).await;
}

#[tokio::test]
async fn nodes_that_are_not_said_to_be_durable_wait() {
    let (mut servers, [one, _two]) = cluster(&[&SHORT_TIMES[..], &QUARANTINE].concat(), None).await;
    assert_eq!(meta(&servers[0], "durable").await, None);
    shows(one.client(), false).await;
    power_cut(&mut servers, |_, _| {}).await;
    until_they_have_waited(&servers, one.client()).await;
    assert_eq!(servers[0].ask::<Vec<String>>(&["KEYS", "redlockd:trip:*"]).await, [""; 0]);
}

#[tokio::test]
async fn an_old_copy_of_the_log_is_not_the_latest() {
    let (mut servers, [one, _two]) = cluster(&[&SHORT_TIMES[..], &QUARANTINE, &DURABLE].concat(), None).await;
    until_durable(&servers).await;
    for server in &servers[..2] {
        server.copy();
        let beat = meta(server, "beat").await;
        poll::until("it was probed since", || async { (meta(server, "beat").await > beat).then_some(()) }).await;
    }
    // An answer to that probe has arrived with the next one.
    one.client().acquired("job", &[("ttl", "2s")]).await;
    for server in &servers {
        let beat = meta(server, "beat").await;
        poll::until("it was probed once more", || async { (meta(server, "beat").await > beat).then_some(()) }).await;
    }
    power_cut(&mut servers, |n, server| {
        if n < 2 {
            server.restore()
        }
    })
    .await;
    until_they_have_waited(&servers[..2], one.client()).await;
}

#[tokio::test]
async fn a_policy_that_is_changed_ends_it() {
    let (mut servers, [one, _two]) = cluster(&[&SHORT_TIMES[..], &QUARANTINE, &DURABLE].concat(), None).await;
    until_durable(&servers).await;
    for server in &servers[..2] {
        server.ask::<()>(&["CONFIG", "SET", "appendfsync", "everysec"]).await;
        poll::until("it is not durable", || async { meta(server, "durable").await.is_none().then_some(()) }).await;
    }
    poll::until("that is said", || async {
        let nodes = one.client().get("/nodes").await.text;
        (nodes.matches("appendfsync is everysec, and must be always").count() == 2).then_some(())
    })
    .await;
    let nodes = node_args(servers.iter().map(RedisServer::url));
    let words: Vec<&str> = std::iter::once("doctor").chain(nodes.iter().map(String::as_str)).chain(DURABLE).collect();
    let said = ended(&mut redlockd(&words));
    assert!(said.out.matches("appendfsync is everysec").count() == 2, "{said:?}");
    power_cut(&mut servers, |_, _| {}).await;
    until_they_have_waited(&servers[..2], one.client()).await;
}

#[tokio::test]
async fn a_clock_ahead_at_the_start_is_noticed() {
    let shim = ClockShim::of_libc();
    let (mut servers, [one, _two]) = cluster(&[&SHORT_TIMES[..], &QUARANTINE, &DURABLE].concat(), Some(&shim)).await;
    until_durable(&servers).await;
    assert_ne!(servers[0].ask::<Vec<String>>(&["KEYS", "redlockd:trip:*"]).await, [""; 0]);
    servers.iter_mut().for_each(RedisServer::kill);
    shim.step(3_600_000);
    for server in &mut servers {
        server.restart().await;
    }
    for server in &servers[..2] {
        poll::until("its keys have ended", || async {
            let info: String = server.ask(&["INFO", "keyspace"]).await;
            info.contains("expires=0").then_some(())
        })
        .await;
    }
    shim.step(0);
    until_they_have_waited(&servers[..2], one.client()).await;
}
