//! How many keys a redis-server reads for the requests of an exclusive lease: what the node's work grows with.

use redlockd::protocol::Reply;

use super::redis_server::RedisServer;
use super::subject::{Subject, extend, first, release};

/// The keys that the server has looked up to read them, of which it counts also those that it does not have.
fn reads(node: &mut RedisServer) -> u64 {
    let info: String = node.command(&[b"INFO", b"stats"]);
    let count = |field: &str| {
        let line = info.lines().find_map(|line| line.strip_prefix(field)).expect("counted");
        line.trim().parse::<u64>().expect("a number")
    };
    count("keyspace_hits:") + count("keyspace_misses:")
}

#[test]
fn an_exclusive_lease_reads_few_keys() {
    let mut node = super::declared(RedisServer::start());
    // The first one of a period also begins a generation of fences.
    assert!(matches!(node.ask(&first("first", 1, 1, 10_000)), Reply::Granted { .. }));
    let mut before = reads(&mut node);
    let read = [first("a", 1, 2, 10_000), extend("a", 1, Some(20_000), None), release("a", 1)].map(|request| {
        node.ask(&request);
        let now = reads(&mut node);
        now - std::mem::replace(&mut before, now)
    });
    assert_eq!(read, [5, 5, 4]);
}
