//! Nodes that restart without their memory are filled with what the others know, and vote again within seconds (F4).

use crate::support::client::Client;
use crate::support::cluster::node_args;
use crate::support::daemon::{ended, redlockd};
use crate::support::poll;
use crate::support::redis_server::RedisServer;
use crate::support::service::Service;

/// Starts that many servers, declares them a cluster, and starts two instances with the shipped settings.
async fn cluster(nodes: usize) -> (Vec<RedisServer>, Service, Service) {
    let mut servers = Vec::new();
    for _ in 0..nodes {
        servers.push(RedisServer::start().await);
    }
    // A machine that runs other tests beside this one answers late.
    let more = ["--set", "node_timeout=200ms", "--set", "min_ttl=400ms"].map(ToString::to_string);
    let args: Vec<String> = node_args(servers.iter().map(RedisServer::url)).into_iter().chain(more).collect();
    let words: Vec<&str> = std::iter::once("init").chain(args.iter().map(String::as_str)).collect();
    let done = ended(&mut redlockd(&words));
    assert_eq!(done.code, Some(0), "{done:?}");
    let (one, two) = (Service::start(&args).await, Service::start(&args).await);
    for service in [&one, &two] {
        poll::until("all nodes vote", || async { votes(service.client(), nodes).await.then_some(()) }).await;
    }
    (servers, one, two)
}

async fn votes(client: &Client, nodes: usize) -> bool {
    client.get("/nodes").await.json()["quorum"]["granted"] == nodes
}

/// Each of five nodes forgets everything in turn. A lease that nobody renews, and one that is renewed all the time, keep
/// everybody else out; nothing is refused that is free; fences rise.
#[tokio::test]
async fn f4_five_nodes_are_restarted_in_turn_and_no_lease_is_lost() {
    let (mut servers, one, two) = cluster(5).await;
    let left_alone = one.client().acquired("left-alone", &[("ttl", "4m")]).await;
    let renewed = two.client().acquired("renewed", &[("ttl", "10s")]).await;
    let mut fence = 0;
    for server in &mut servers {
        server.kill();
        server.restart_empty().await;
        // Not before an instance has noticed.
        poll::until("the node has lost its vote", || async { (!votes(one.client(), 5).await).then_some(()) }).await;
        // Its quarantine is 305 s: longer than is waited here.
        poll::until("all nodes vote for both", || async {
            one.client().extend("renewed", &renewed.token(), &[]).await.expect_status(200);
            (votes(one.client(), 5).await && votes(two.client(), 5).await).then_some(())
        })
        .await;
        for service in [&one, &two] {
            service.client().acquire("left-alone", &[("ttl", "1s")]).await.expect_status(423);
            service.client().acquire("renewed", &[("ttl", "1s")]).await.expect_status(423);
            let free = service.client().acquired("free", &[("ttl", "1s")]).await;
            assert!(free.fence() > fence, "{} after {fence}", free.fence());
            fence = free.fence();
            service.client().release("free", &free.token()).await.expect_status(204);
        }
    }
    two.client().release("left-alone", &left_alone.token()).await.expect_status(204);
    one.client().acquired("left-alone", &[("ttl", "1s")]).await;
}
