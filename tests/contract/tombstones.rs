//! Tombstones of tokens: which acquires are refused after a release, though most do not read them; and the hashes in which a
//! redis-server has those of releases.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use redlockd::protocol::{
    EndReason, Found, LeaseRecord, ReadArgs, ReadEntry, Released, Reply, Request, RequestTime, RestoreArgs,
};
use redlockd::types::{Fence, Mode};

use super::redis_server::RedisServer;
use super::sets::set;
use super::subject::{GUARD, Subject, acquire, begin_generation, first, name, params, release, token, ttl};

const TTL_MS: u64 = 10_000;
const ENDED: Reply = Reply::Ended { reason: EndReason::Released };

fn found(node: &mut impl Subject, resource: &str, by: u64) -> Found {
    match node.ask(&release(resource, by)) {
        Reply::Released(Released { found, earlier: None }) => found,
        other => panic!("{other:?}"),
    }
}

pub fn a_first_acquire_that_arrives_after_its_release_is_refused(node: &mut impl Subject) {
    begin_generation(node);
    assert_eq!(found(node, "a", 1), Found::Nothing);
    assert_eq!(node.ask(&first("a", 1, 1, TTL_MS)), ENDED);
}

pub fn a_first_acquire_that_arrives_twice_is_refused_after_its_release(node: &mut impl Subject) {
    begin_generation(node);
    let (sent_at, request) = (RequestTime(node.now_us()), first("a", 1, 1, TTL_MS));
    let granted = node.ask_with(sent_at, &params(), &request);
    assert!(matches!(granted, Ok(Reply::Granted { joined: false, .. })), "{granted:?}");
    assert_eq!(found(node, "a", 1), Found::Match);
    assert_eq!(node.ask_with(sent_at, &params(), &request), Ok(ENDED));
}

/// `request`, which was sent earlier by a clock that is behind, makes the lease. It is released before the first acquire arrives.
fn is_refused_after(node: &mut impl Subject, request: &Request, sent_at: RequestTime) {
    begin_generation(node);
    node.ask_with(sent_at, &params(), request).expect("an answer");
    assert_eq!(found(node, "a", 1), Found::Match);
    assert_eq!(node.ask(&first("a", 1, 1, TTL_MS)), ENDED);
}

fn earlier(node: &mut impl Subject) -> RequestTime {
    RequestTime(node.now_us() - 100_000)
}

pub fn a_first_acquire_is_refused_after_the_release_of_another_acquires_lease(node: &mut impl Subject) {
    let sent_at = earlier(node);
    is_refused_after(node, &acquire("a", 1, 2, TTL_MS), sent_at);
}

/// It was sent by a clock that is ahead by almost a guard, and is accepted as long as it is not older than one.
pub fn a_first_acquire_is_refused_for_as_long_as_it_may_be_late(node: &mut impl Subject) {
    begin_generation(node);
    node.ask(&acquire("a", 1, 2, TTL_MS));
    assert_eq!(found(node, "a", 1), Found::Match);
    node.pass(2 * GUARD - Duration::from_millis(100));
    let late = RequestTime(node.now_us() - u64::try_from(GUARD.as_micros()).expect("short") + 200_000);
    assert_eq!(node.ask_with(late, &params(), &first("a", 1, 1, TTL_MS)), Ok(ENDED));
}

pub fn a_first_acquire_is_refused_after_the_release_of_a_sets_lease(node: &mut impl Subject) {
    let sent_at = earlier(node);
    is_refused_after(node, &set(&["a", "b"], 1, 2, TTL_MS), sent_at);
}

pub fn a_first_acquire_is_refused_after_the_release_of_a_restored_lease(node: &mut impl Subject) {
    let sent_at = earlier(node);
    let record = LeaseRecord {
        mode: Mode::Exclusive,
        token: token(1),
        renewals: 1,
        ttl: ttl(TTL_MS),
        fence: Fence(sent_at.0),
        claims: "p,".into(),
        labels: "{}".into(),
    };
    is_refused_after(node, &Request::Restore(RestoreArgs { resource: name("a"), record, left_ms: TTL_MS }), sent_at);
}

fn hash(node: &mut RedisServer, key: &str) -> BTreeMap<String, String> {
    node.command(&[b"HGETALL", key.as_bytes()])
}

/// A probe when the hash of new tombstones began at this time.
fn probe_begun_at(node: &mut RedisServer, turned_us: u64) {
    node.command::<i64>(&[b"HSET", b"redlockd:meta", b"turned", turned_us.to_string().as_bytes()]);
    node.ask(&Request::probe());
}

const MINUTE_US: u64 = 60_000_000;

#[test]
fn a_tombstone_counts_for_a_minute_and_is_dropped_after_the_next_one() {
    let mut node = super::declared(RedisServer::start());
    assert!(matches!(node.ask(&first("a", 1, 1, TTL_MS)), Reply::Granted { .. }));
    assert_eq!(found(&mut node, "a", 1), Found::Match);
    let now = node.now_us();
    probe_begun_at(&mut node, now - MINUTE_US + 20_000_000);
    assert_eq!(hash(&mut node, "redlockd:ended").len(), 1, "not yet");
    probe_begun_at(&mut node, now - MINUTE_US);
    assert!(hash(&mut node, "redlockd:ended").is_empty());
    let (tombstone, _) = hash(&mut node, "redlockd:ended:old").pop_first().expect("moved");
    assert_eq!(node.ask(&acquire("a", 1, 2, TTL_MS)), ENDED);
    let made = now - MINUTE_US - 1_000_000;
    let value = format!("released|{}|{}", made / 1_000_000, made % 1_000_000);
    node.command::<i64>(&[b"HSET", b"redlockd:ended:old", tombstone.as_bytes(), value.as_bytes()]);
    assert!(matches!(node.ask(&acquire("a", 1, 3, TTL_MS)), Reply::Granted { joined: false, .. }), "over");
    probe_begun_at(&mut node, now - MINUTE_US);
    assert!(hash(&mut node, "redlockd:ended:old").is_empty());
}

#[test]
fn a_clock_that_goes_back_drops_no_tombstone() {
    let mut node = super::declared(RedisServer::start());
    found(&mut node, "a", 1);
    let now = node.now_us();
    probe_begun_at(&mut node, now - MINUTE_US);
    probe_begun_at(&mut node, now + 10 * MINUTE_US);
    assert_eq!(hash(&mut node, "redlockd:ended:old").len(), 1);
    let turned: u64 = node.command(&[b"HGET", b"redlockd:meta", b"turned"]);
    assert!((now..now + MINUTE_US).contains(&turned), "for a minute from now on");
}

#[test]
fn a_read_shows_every_tombstone_though_a_probe_moves_them_meanwhile() {
    const RELEASES: u64 = 3_000;
    let mut node = super::declared(RedisServer::start());
    for i in 0..RELEASES {
        node.ask(&release(&format!("r/{i}"), i));
    }
    let (now, mut shown, mut cursor, mut pages) = (node.now_us(), BTreeSet::new(), 0, 0);
    loop {
        let Reply::Knowledge { next, entries, .. } = node.ask(&Request::Read(ReadArgs { cursor, count: 100 })) else {
            panic!("no page")
        };
        assert!(entries.len() < 500, "{}", entries.len());
        shown.extend(entries.into_iter().filter_map(|entry| match entry {
            ReadEntry::Tombstone(t) => Some(t.resource),
            _ => None,
        }));
        pages += 1;
        if pages == 10 {
            assert!((1..RELEASES as usize).contains(&shown.len()), "in the middle");
            probe_begun_at(&mut node, now - MINUTE_US);
        }
        match next {
            Some(next) => cursor = next,
            None => break,
        }
    }
    assert_eq!(shown.len() as u64, RELEASES);
}
