//! `fan_out = quorum` on real servers: what each of five nodes has to do for short leases, and that longer ones are on all of them.

use futures_util::future::join_all;

use crate::support::cluster::Cluster;
use crate::support::poll;

/// How often the nodes have deleted a key: once for each lease that was released there.
async fn deletions(cluster: &Cluster) -> Vec<u64> {
    let of = async |server: &crate::support::redis_server::RedisServer| {
        let statistics: String = server.ask(&["INFO", "commandstats"]).await;
        let calls = statistics.lines().find_map(|line| line.strip_prefix("cmdstat_del:calls="));
        calls.and_then(|calls| calls.split(',').next()?.parse().ok()).unwrap_or(0)
    };
    join_all(cluster.servers.iter().map(of)).await
}

#[tokio::test]
async fn short_leases_are_on_three_of_five_nodes_and_longer_ones_on_all() {
    const CYCLES: u64 = 40;
    let cluster = Cluster::start(5).await;
    let over = cluster.service_with(&["--set", "fan_out=quorum"]).await;
    let client = over.client();
    let cycles = async |round: usize| {
        let before = deletions(&cluster).await;
        for i in 0..CYCLES {
            let name = format!("short-{round}-{i}");
            let answer = client.acquire(&name, &[("ttl", "30s")]).await;
            assert_eq!(answer.status, 201, "{answer:?}");
            assert_eq!(client.release(&name, &answer.token()).await.status, 204);
        }
        let after = deletions(&cluster).await;
        after.iter().zip(before).map(|(after, before)| after - before).collect::<Vec<u64>>()
    };
    // A node that does not answer within 5 ms, on a busy machine, lets the others be asked.
    let round = std::cell::Cell::new(0);
    let deleted = poll::until("each lease of a round is on three nodes", || async {
        round.set(round.get() + 1);
        Some(cycles(round.get()).await).filter(|deleted| deleted.iter().sum::<u64>() == 3 * CYCLES)
    })
    .await;
    assert!(deleted.iter().all(|deleted| (CYCLES / 4..CYCLES).contains(deleted)), "{deleted:?}");

    let held = client.acquire("longer", &[("ttl", "30s")]).await;
    cluster.until_everywhere("longer").await;
    assert_eq!(client.extend("longer", &held.token(), &[]).await.status, 200);
    assert_eq!(client.release("longer", &held.token()).await.status, 204);
    cluster.until_nowhere("longer").await;
    let extended = client.acquire("extended", &[("ttl", "30s")]).await;
    assert_eq!(client.extend("extended", &extended.token(), &[]).await.status, 200);
    cluster.until_everywhere("extended").await;
    let metrics = client.get("/metrics").await.text;
    let lost = metrics.lines().find(|line| line.starts_with("redlockd_") && line.contains("under_replicated"));
    assert!(lost.is_some_and(|line| line.ends_with(" 0")), "none was missing on a node: {lost:?}");
}
