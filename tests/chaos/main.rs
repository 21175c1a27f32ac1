//! Chaos: five real redis-servers and two instances of the real binary, under faults of processes,
//! memory, clocks and network; a checker reads the history afterwards. Apart from the simulation,
//! which has far more runs but its own nodes and time: here are the real ones.
//!
//! `make chaos SECONDS=600 SEED=1` runs longer, and puts plain Redlock through the same faults.

mod faults;
mod history;
mod locks;
mod report;
mod rig;
#[path = "../it/support/mod.rs"]
#[allow(dead_code, reason = "shared with the integration tests, which use the rest")]
mod support;
mod workload;

use std::time::Duration;

use futures_util::future::join_all;
use redlockd::redlock::clock::{Clock, SystemClock};

use history::{History, Reach};
use locks::Locks;
use rig::{INSTANCES, NODES, QUARANTINE, Rig};
use support::{poll, seeded::Seeded};
use workload::{CLIENTS, Floor, RESOURCES, client};

/// How long faults happen within the ordinary suite.
const SECONDS: &str = "15";
/// Effects of a lost memory: the quarantine, then the seeding, which wants other nodes that vote.
const MEMORY_REACH: Duration = Duration::from_secs(25);
/// Effects of late requests: a client's longest patience and the longest freeze.
const LATE_REACH: Duration = Duration::from_secs(6);

fn setting(name: &str, default: &str) -> u64 {
    let text = std::env::var(name).unwrap_or_else(|_| default.to_owned());
    text.parse().unwrap_or_else(|_| panic!("{name} is not a number: {text}"))
}

fn seconds() -> Duration {
    Duration::from_secs(setting("REDLOCKD_CHAOS_SECONDS", SECONDS))
}

fn seed() -> u64 {
    setting("REDLOCKD_CHAOS_SEED", "1")
}

/// Faults and clients together; what happened.
async fn torment(rig: &mut Rig, locks: Locks) -> (History, Locks) {
    let end = SystemClock.now().plus(seconds());
    let floor = Floor::new(locks, end);
    let clients = (0..CLIENTS).map(|c| client(&floor, Seeded::new(seed(), 100 + c)));
    let (faults, _) = tokio::join!(faults::run(rig, faults::plan(seed(), seconds()), end), join_all(clients));
    let (mut history, locks) = floor.into_parts();
    history.faults = faults;
    (history, locks)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_service_keeps_its_promises() {
    let mut rig = Rig::start().await;
    rig.serve();
    let locks = Locks::service(&rig);
    everybody_gets_in(&locks).await;
    let (history, locks) = torment(&mut rig, locks).await;
    let healed = SystemClock.now();
    everybody_gets_in(&locks).await;
    let recovery = SystemClock.now().since(healed);
    nothing_is_left(&rig).await;
    let reach = Reach { memory: micros(MEMORY_REACH), late: micros(LATE_REACH) };
    let wrong = history.check(&reach);
    report::print("redlockd", seed(), seconds(), &history, wrong.len(), Some(recovery));
    history.losses.iter().for_each(|loss| report::print_loss(loss, &history));
    assert!(wrong.is_empty(), "seed {}: {} violations: {wrong:#?}", seed(), wrong.len());
    assert!(!history.grants.is_empty(), "nobody was granted anything: the run shows nothing");
}

/// Every resource can be had, through every instance: at the latest when the last quarantine is over.
async fn everybody_gets_in(locks: &Locks) {
    for at in 0..INSTANCES {
        for name in RESOURCES {
            poll::until("the resource is granted after healing", async || {
                let (token, ttl) = (locks.token(), Duration::from_secs(1));
                locks.acquire(at, name, &token, ttl, Duration::ZERO).await.ok()?;
                locks.release(at, name, &token).await.ok()
            })
            .await;
        }
    }
}

/// Locks end with their TTL and the lock delay; what else the service keeps has an end of its own,
/// save the marker and the index.
async fn nothing_is_left(rig: &Rig) {
    for (n, node) in rig.nodes.iter().enumerate() {
        poll::until(&format!("no lock is left on node {n}"), async || {
            let mut exists = vec!["EXISTS"];
            exists.extend(RESOURCES);
            (node.server.ask::<usize>(&exists).await == 0).then_some(())
        })
        .await;
        for key in node.server.ask::<Vec<String>>(&["KEYS", "redlockd:*"]).await {
            let left: i64 = node.server.ask(&["PTTL", &key]).await;
            assert!(left != -1 || ["redlockd:meta", "redlockd:leases"].contains(&&*key), "{key} stays for ever");
        }
        poll::until(&format!("the index of node {n} is swept"), async || {
            (node.server.ask::<usize>(&["ZCARD", "redlockd:leases"]).await == 0).then_some(())
        })
        .await;
    }
}

fn micros(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).expect("short")
}

/// The simplest harm of all, without any race: a quorum forgets a lease while its holder works.
/// Plain Redlock grants it again; the service refuses until no lease can depend on what was lost.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_quorum_that_forgets_breaks_plain_redlock_and_not_the_service() {
    let mut rig = Rig::start().await;
    rig.serve();
    let (plain, service) = (Locks::plain(&rig), Locks::service(&rig));
    everybody_gets_in(&service).await;
    let (ttl, now) = (rig::MAX_TTL, Duration::ZERO);
    let ours = service.acquire(0, "a", &service.token(), ttl, now).await.expect("free");
    plain.acquire(0, "b", "first", Duration::from_secs(60), now).await.expect("free");
    for node in &mut rig.nodes[..NODES / 2 + 1] {
        node.server.kill();
        node.server.restart_empty().await;
    }
    let second =
        poll::until("plain Redlock grants it twice", async || plain.acquire(1, "b", "second", ttl, now).await.ok());
    second.await;
    let next = poll::until("the service grants it again", async || {
        let token = service.token();
        let granted = service.acquire(1, "a", &token, ttl, now).await.ok()?;
        Some((SystemClock.now(), granted))
    });
    let (at, next) = next.await;
    assert!(at >= ours.deadline, "granted while the first lease was running");
    assert!(next.fence > ours.fence, "{next:?} after {ours:?}");
    assert!(QUARANTINE > ttl);
}

/// The same faults, with nothing asserted about exclusion: it says whether they are hard enough.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "a measurement for docs/verification.md: `make chaos` runs it"]
async fn plain_redlock_under_the_same_faults() {
    let mut rig = Rig::start().await;
    let locks = Locks::plain(&rig);
    let (history, _) = torment(&mut rig, locks).await;
    let overlaps = history.check(&Reach { memory: u64::MAX / 4, late: u64::MAX / 4 });
    let overlaps = overlaps.iter().filter(|wrong| wrong.starts_with("two leases"));
    report::print("plain Redlock", seed(), seconds(), &history, overlaps.count(), None);
    assert!(!history.grants.is_empty(), "nobody was granted anything: the run shows nothing");
}
