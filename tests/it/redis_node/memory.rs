//! What cycles of fresh names leave on a node.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use redlockd::protocol::{ClusterParams, Reply, Request};

use super::{Holder, TestNode, config, params};
use crate::support::poll;
use crate::support::redis_server::RedisServer;

const CYCLES: usize = 6_000;
const AT_ONCE: usize = 100;

async fn cycles(node: &TestNode, round: usize) {
    for first in (0..CYCLES).step_by(AT_ONCE) {
        let holders: Vec<Holder> = (first..first + AT_ONCE).map(|i| Holder::of(&format!("job/{round}/{i}"))).collect();
        let acquired = join_all(holders.iter().map(|who| node.reply(who.acquire(10_000)))).await;
        assert!(acquired.iter().all(|reply| matches!(reply, Reply::Granted { .. })), "{acquired:?}");
        join_all(holders.iter().map(|who| node.reply(who.release()))).await;
    }
}

/// Two generations of fences and of tombstones later, and when all keys have ended that have an end.
async fn used_memory_later(server: &RedisServer, node: &TestNode) -> u64 {
    poll::until("fences and tombstones are forgotten", || async {
        // As if a minute had passed since the last time.
        server.ask::<i64>(&["HSET", "redlockd:meta", "turned", "1"]).await;
        node.reply(Request::probe()).await;
        let tombstones: i64 = server.ask(&["EXISTS", "redlockd:ended", "redlockd:ended:old"]).await;
        let a: i64 = server.ask(&["HLEN", "redlockd:fences:0"]).await;
        let b: i64 = server.ask(&["HLEN", "redlockd:fences:1"]).await;
        (tombstones == 0 && a <= 1 && b <= 1).then_some(()) // but for the field that makes it a table
    })
    .await;
    let end_all = "
        local cursor = '0'
        repeat
            local page = redis.call('SCAN', cursor, 'COUNT', 1000)
            cursor = page[1]
            for _, key in ipairs(page[2]) do
                local left = redis.call('PTTL', key)
                if left > 60000 or left < 0 and key ~= 'redlockd:meta' and not string.find(key, '^redlockd:fences:[01]$') then return key .. ' ' .. left end
                if left >= 0 then redis.call('DEL', key) end
            end
        until cursor == '0'
        return ''";
    assert_eq!(server.ask::<String>(&["EVAL", end_all, "0"]).await, "", "stays for more than a minute");
    assert!(server.ask::<i64>(&["DBSIZE"]).await <= 3, "the marker, and two generations of fences");
    let memory: String = server.ask(&["INFO", "memory"]).await;
    let used = memory.lines().find_map(|line| line.strip_prefix("used_memory:")).expect("it says so");
    used.trim().parse().expect("a number")
}

/// F7: a cycle of a fresh name leaves nothing after two minutes.
#[tokio::test(flavor = "multi_thread")]
async fn f7_cycles_of_fresh_names_leave_nothing() {
    let server = RedisServer::start().await;
    let mut config = config(&server.url());
    // Generations of a fiftieth of a second instead of a minute.
    config.params = Arc::new(ClusterParams { fence_ttl: Duration::from_millis(20), ..params() });
    let node = TestNode::connected(config).await;
    node.reply(Request::init()).await;
    // The first round makes the server's tables as large as they get.
    cycles(&node, 1).await;
    let before = used_memory_later(&server, &node).await;
    cycles(&node, 2).await;
    let most = before + 4 * CYCLES as u64;
    poll::until("memory is as before", || async { (used_memory_later(&server, &node).await <= most).then_some(()) })
        .await;
}
