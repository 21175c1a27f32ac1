//! What one node claims of the others, or of leases, does not stop the service, nor is it promised: findings N4, N6 and N8 of
//! docs/security.md, and N9 to N11.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use redlockd::redlock::clock::{Clock, SystemClock};

use super::hostile_redis::{Liar, votes, with_liar, works};
use crate::support::chaos_proxy::ChaosProxy;
use crate::support::cluster::{Cluster, node_args, slow_to_answer};
use crate::support::poll;
use crate::support::redis_server::RedisServer;
use crate::support::service::Service;

/// A field of `INFO`.
async fn info(server: &RedisServer, section: &str, field: &str) -> String {
    let text: String = server.ask(&["INFO", section]).await;
    let line = text.lines().find_map(|line| line.strip_prefix(field)?.strip_prefix(':'));
    line.expect("a field").trim().to_owned()
}

/// A process's run as probes and hand-shakes show it: two texts of one length each.
async fn run_of(server: &RedisServer) -> [String; 2] {
    [info(server, "server", "run_id").await, info(server, "replication", "master_replid").await]
}

/// N4: a node that claims another one's run loses its own vote, and the service goes on.
#[tokio::test]
async fn n4_a_node_that_claims_the_run_of_another_one_stops_nobody() {
    let (cluster, liar, service) = with_liar().await;
    poll::until("all vote", || async { votes(&service, "n3").await.then_some(()) }).await;
    let (honest, claimed) = (run_of(&cluster.servers[2]).await, run_of(&cluster.servers[0]).await);
    let sent = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&sent);
    liar.set(move |bytes| {
        let mut text = bytes.to_vec();
        for (own, other) in honest.iter().zip(&claimed) {
            let found: Vec<usize> = (0..text.len()).filter(|at| text[*at..].starts_with(own.as_bytes())).collect();
            counted.fetch_add(found.len(), Ordering::SeqCst);
            found.into_iter().for_each(|at| text[at..at + own.len()].copy_from_slice(other.as_bytes()));
        }
        text
    });
    poll::until_true("several probes show it", || sent.load(Ordering::SeqCst) > 10).await;
    poll::until("it has no vote", || async { (!votes(&service, "n3").await).then_some(()) }).await;
    works(&service, "during").await;
    assert!(votes(&service, "n1").await && votes(&service, "n2").await);
    poll::until_true("the log says so", || service.output().iter().any(|line| line.contains("one server"))).await;
    liar.set(<[u8]>::to_vec);
    poll::until("it votes again", || async { votes(&service, "n3").await.then_some(()) }).await;
}

/// Another value of this field in the records of leases, of the same length.
fn with_field(bytes: &[u8], field: usize, value: &str) -> Vec<u8> {
    let text = String::from_utf8_lossy(bytes);
    let lines = text.split("\r\n").map(|line| {
        let mut fields: Vec<&str> = line.splitn(6, '|').collect();
        if fields.len() == 6 && fields[0].len() == 64 && fields[field].len() == value.len() {
            fields[field] = value;
        }
        fields.join("|")
    });
    lines.collect::<Vec<_>>().join("\r\n").into_bytes()
}

/// N6: a node that answers an extend before the others, with a fence far ahead, does not make it fail.
#[tokio::test]
async fn n6_a_fence_far_ahead_of_one_node_does_not_make_an_extend_fail() {
    let cluster = Cluster::start(3).await;
    let (slow, liar) =
        (ChaosProxy::start(cluster.servers[1].port()).await, Liar::before(cluster.servers[2].port()).await);
    let ports = [cluster.servers[0].port(), slow.address().port(), liar.port()];
    let mut args = node_args(ports.iter().map(|port| format!("redis://127.0.0.1:{port}")));
    // The longest time-out below the guard, for a machine that is busy otherwise.
    let times = ["guard=300ms", "lock_delay=600ms", "node_timeout=290ms", "min_ttl=600ms"];
    args.extend(times.iter().flat_map(|time| ["--set".to_owned(), (*time).to_owned()]));
    let service = Service::start(&args).await;
    poll::until("all vote", || async { votes(&service, "n3").await.then_some(()) }).await;
    service.until_ready().await;
    let client = service.client();
    let lease = client.acquired("far", &[("ttl", "1m")]).await;
    // The acquire did not need the second node: on a busy machine it may have come there too late. An extend repairs that.
    poll::until("all nodes have the lease", || async {
        client.extend("far", &lease.token(), &[]).await.expect_status(200);
        cluster.servers[1].ask::<bool>(&["EXISTS", "far"]).await.then_some(())
    })
    .await;
    // The answers of the first and of the hostile node come before that of the second one.
    slow.set(slow_to_answer(Duration::from_millis(30)));
    let ahead = Duration::from_hours(1);
    let fence = (u128::from(SystemClock.wall_ms()) * 1_000 + ahead.as_micros()).to_string();
    liar.set(move |bytes| with_field(bytes, 3, &fence));
    for _ in 0..5 {
        let extended = client.extend("far", &lease.token(), &[]).await.expect_status(200);
        assert_eq!(extended.json()["fence"], lease.fence(), "{extended:?}");
    }
    client.release("far", &lease.token()).await.expect_status(204);
}

/// N8: nothing is promised for the TTL that one node claims.
#[tokio::test]
async fn n8_an_extend_promises_no_longer_ttl_than_the_honest_nodes_have() {
    let (_cluster, liar, service) = with_liar().await;
    poll::until("all vote", || async { votes(&service, "n3").await.then_some(()) }).await;
    let client = service.client();
    let lease = client.acquired("long", &[("ttl", "60s")]).await;
    let lies = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&lies);
    liar.set(move |bytes| {
        let text = with_field(&with_field(bytes, 2, "99000"), 1, "999999");
        counted.fetch_add(usize::from(text != bytes), Ordering::SeqCst);
        text
    });
    // Whichever two answer first.
    poll::until("the hostile node has answered", || async {
        let extended = client.extend("long", &lease.token(), &[]).await.expect_status(200).json();
        let valid_for = extended["valid_for_ms"].as_u64().expect("a number");
        assert!(valid_for <= 60_000, "{extended}");
        assert!(extended["renewals"].as_u64() < Some(900_000), "{extended}");
        (lies.load(Ordering::SeqCst) > 20).then_some(())
    })
    .await;
}

/// Replaces every record of an exclusive lease in a reply.
fn with_records(bytes: &[u8], change: impl Fn([&str; 6]) -> String) -> Vec<u8> {
    let text = String::from_utf8_lossy(bytes);
    let mut out: Vec<String> = Vec::new();
    for line in text.split("\r\n") {
        let fields: Result<[&str; 6], _> = line.splitn(6, '|').collect::<Vec<_>>().try_into();
        match (out.last_mut(), fields) {
            (Some(length), Ok(fields)) if length.starts_with('$') && fields[0].len() == 64 => {
                let changed = change(fields);
                *length = format!("${}", changed.len());
                out.push(changed);
            }
            _ => out.push(line.to_owned()),
        }
    }
    out.join("\r\n").into_bytes()
}

/// As [`with_liar`], but both honest nodes have time to answer on a machine that is busy otherwise: no quorum is without them.
async fn patient() -> (Cluster, Liar, Service) {
    let times = ["--set", "guard=2s", "--set", "lock_delay=4s", "--set", "node_timeout=1900ms", "--set", "min_ttl=4s"];
    let cluster = Cluster::blank(3).await;
    cluster.declare(&times);
    let liar = Liar::before(cluster.servers[2].port()).await;
    let ports = [cluster.servers[0].port(), cluster.servers[1].port(), liar.port()];
    let mut args = node_args(ports.iter().map(|port| format!("redis://127.0.0.1:{port}")));
    args.extend(times.iter().map(ToString::to_string));
    let service = Service::start(&args).await;
    poll::until("all vote", || async { votes(&service, "n3").await.then_some(()) }).await;
    (cluster, liar, service)
}

/// N9: what one node shows of a lease is neither written to the others nor shown.
#[tokio::test]
async fn n9_an_edit_writes_nothing_that_one_node_made_up() {
    let (cluster, liar, service) = patient().await;
    let client = service.client();
    let lease = client.acquired("noted", &[("ttl", "60s"), ("owner", "ann")]).await;
    liar.set(|bytes| {
        with_records(bytes, |[token, _, _, fence, claims, labels]| {
            let labels = labels.replace("\"ann\"", "\"mallory\"");
            format!("{token}|999999|86400000|{fence}|{claims}|{labels}")
        })
    });
    for note in ["a", "b", "c", "d", "e"] {
        let edited = client.extend("noted", &lease.token(), &[("note", note)]).await.expect_status(200).json();
        assert!(edited["valid_for_ms"].as_u64() <= Some(60_000), "{edited}");
        let seen = client.inspect("noted").await.expect_status(200).json();
        assert_eq!(seen["holders"][0]["owner"], "ann", "{seen}");
    }
    for server in &cluster.servers[..2] {
        let stored: String = server.ask(&["GET", "noted"]).await;
        assert!(stored.contains("\"ann\"") && !stored.contains("mallory"), "{stored}");
        let left_ms: i64 = server.ask(&["PTTL", "noted"]).await;
        assert!(left_ms < 120_000, "{left_ms}");
    }
}

/// N10: a node that shows an exclusive lease as a permit, with a TTL of a millisecond, stops no renewal.
#[tokio::test]
async fn n10_another_mode_and_ttl_of_one_node_stop_no_renewal() {
    let (_cluster, liar, service) = patient().await;
    let client = service.client();
    let lease = client.acquired("mode", &[("ttl", "60s")]).await;
    liar.set(|bytes| {
        with_records(bytes, |[token, renewals, _, fence, claims, labels]| {
            format!("Mp1/9|{token}|{renewals}|1|{fence}|{claims}|{labels}")
        })
    });
    for _ in 0..10 {
        let extended = client.extend("mode", &lease.token(), &[]).await.expect_status(200).json();
        assert!(extended["valid_for_ms"].as_u64() > Some(30_000), "{extended}");
        let seen = client.inspect("mode").await.expect_status(200).json();
        assert_eq!(seen["holders"][0]["fence"], lease.fence(), "{seen}");
    }
    client.extend("mode", &lease.token(), &[("mode", "shared")]).await.expect_status(200);
    client.release("mode", &lease.token()).await.expect_status(204);
}

/// N11: a node that says that every token has ended refuses nobody.
#[tokio::test]
async fn n11_an_end_that_one_node_reports_ends_no_request() {
    let (cluster, _liar, service) = patient().await;
    let client = service.client();
    let lease = client.acquired("gone", &[("ttl", "60s")]).await;
    let token = "a-token-of-22-characters";
    let hash = redlockd::types::Token::parse(token).expect("valid").hash();
    let key = format!("redlockd:gone:{}:gone", hash.as_str());
    let _: String = cluster.servers[2].ask(&["SET", &key, "forced", "PX", "60000"]).await;
    let request = [("token", token), ("ttl", "10s")];
    client.acquire("gone", &request).await.expect_status(423);
    client.release("gone", &lease.token()).await.expect_status(204);
    client.acquire("gone", &request).await.expect_status(201);
}
