//! Nodes that are far away need no setting: rounds wait for as long as the nodes of a quorum take. A node that is slower than
//! that is not waited for, and does not count as voting.

use std::time::Duration;

use serde_json::Value;

use crate::support::chaos_proxy::{FAIR, Flow, Weather};
use crate::support::cluster::{Cluster, REFUSING, ServiceOver, heal};
use crate::support::poll;

/// The round trips of three regions. The default node timeout is 50 ms.
const REGIONS_MS: [u64; 3] = [30, 80, 150];
/// What is needed for answers on a machine that has other work.
const SLACK: Duration = Duration::from_millis(250);

fn far(round_trip_ms: u64) -> Weather {
    let one_way = Flow::Delay(Duration::from_micros(round_trip_ms * 500));
    Weather { to_node: one_way, to_client: one_way, ..FAIR }
}

async fn timeout_ms(over: &ServiceOver) -> u64 {
    over.client().get("/nodes").await.json()["node_timeout_ms"].as_u64().expect("it is shown")
}

async fn node(over: &ServiceOver, name: &str) -> Value {
    let nodes = over.client().get("/nodes").await.json();
    nodes["nodes"].as_array().expect("a list").iter().find(|node| node["node"] == name).expect("it is listed").clone()
}

/// Acquires, extends, is excluded, and releases.
async fn cycle(over: &ServiceOver, resource: &str) {
    let held = over.client().acquired(resource, &[("ttl", "5s")]).await;
    over.client().extend(resource, &held.token(), &[]).await.expect_status(200);
    over.client().acquire(resource, &[("ttl", "5s")]).await.expect_status(423);
    over.client().release(resource, &held.token()).await.expect_status(204);
}

#[tokio::test]
async fn nodes_in_three_regions_work_without_a_setting() {
    let cluster = Cluster::blank(3).await;
    cluster.declare(&[]);
    let over = cluster.service_with_defaults().await;
    over.until_all_vote().await;
    for (proxy, round_trip) in over.proxies.iter().zip(REGIONS_MS) {
        proxy.set(far(round_trip));
    }
    poll::until("the time-out follows", || async { (timeout_ms(&over).await >= 150).then_some(()) }).await;
    for round in 0..5 {
        cycle(&over, &format!("job-{round}")).await;
    }
    // Without the nearest one, the other two are needed, also for connections that are made over such a distance.
    over.proxies[0].set(REFUSING);
    over.proxies[0].reset();
    over.proxies[2].reset();
    poll::until("two nodes vote", || async {
        let (a, c) = (node(&over, "n1").await, node(&over, "n3").await);
        (a["state"] == "down" && c["votes"] == true).then_some(())
    })
    .await;
    cycle(&over, "without-the-nearest").await;
    let metrics = over.client().get("/metrics").await.text;
    let shown = metrics.lines().find_map(|line| line.strip_prefix("redlockd_node_timeout_seconds "));
    assert!(shown.and_then(|text| text.parse::<f64>().ok()).is_some_and(|seconds| seconds >= 0.15), "{shown:?}");
}

#[tokio::test]
async fn one_slow_node_is_not_waited_for_and_does_not_count_as_voting() {
    let cluster = Cluster::start(3).await;
    let over = cluster.service().await;
    let before = timeout_ms(&over).await;
    over.proxies[2].set(far(300));
    let slow = poll::until("it counts as slow", || async {
        let node = node(&over, "n3").await;
        (node["state"] == "slow").then_some(node)
    })
    .await;
    assert_eq!((slow["votes"].as_bool(), timeout_ms(&over).await), (Some(false), before), "{slow}");
    assert!(slow["why"].as_str().is_some_and(|why| why.contains("later than rounds wait")), "{slow}");
    assert_eq!(over.client().get("/nodes").await.json()["quorum"]["granted"], 2);
    poll::until("the log has it", || async {
        let has = |line: &String| {
            let measured = |field: &str| {
                let (_, rest) = line.split_once(field)?;
                rest.split(' ').next()?.parse::<u64>().ok()
            };
            let (took, waits) = (measured("latency_ms="), measured("rounds_wait_ms="));
            line.contains("state=\"slow\"") && took > waits && waits > Some(0) && line.contains("advice=\"Find out")
        };
        over.service.output().iter().any(has).then_some(())
    })
    .await;
    over.client().get("/health/ready").await.expect_status(200);
    let took = over.client().acquire("job", &[("ttl", "5s")]).await.expect_status(201).took;
    assert!(took < SLACK, "{took:?}");
    heal(&over.proxies[2]);
    poll::until("it votes again", || async { (node(&over, "n3").await["votes"] == true).then_some(()) }).await;
}
