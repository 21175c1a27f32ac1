//! Shared leases and permits on real Redis: who may hold beside whom, each holder for itself, order, and other clients.

use std::collections::BTreeSet;
use std::time::Duration;

use redlockd::redlock::clock::{Clock, SystemClock};
use serde_json::{Value, json};

use crate::support::client::{Answer, Client, lock, send};
use crate::support::cluster::Cluster;
use crate::support::daemon::Daemon;
use crate::support::poll;
use crate::waiting::{self, Instance};

const SHARED: (&str, &str) = ("mode", "shared");
const OF_THREE: (&str, &str) = ("limit", "3");

/// Ends one of several by force.
async fn force(client: &Client, resource: &str, fields: &[(&str, &str)]) -> Answer {
    let fields: Vec<_> = [("force", "now"), ("reason", "a test")].into_iter().chain(fields.iter().copied()).collect();
    send(client.request("DELETE", &lock(resource)).form(&fields)).await
}

fn holders(lock: &Value) -> Vec<String> {
    let all = lock["holders"].as_array().expect("holders");
    all.iter().map(|holder| holder["token_id"].as_str().expect("an id").to_owned()).collect()
}

fn token_id(answer: &Answer) -> String {
    answer.json()["token_id"].as_str().expect("an id").to_owned()
}

#[tokio::test]
async fn readers_hold_together_each_for_itself_and_nobody_else_beside_them() {
    let cluster = Cluster::start(3).await;
    let over = cluster.service().await;
    over.until_all_vote().await;
    let client = over.client();
    let first = client.acquired("x", &[SHARED, ("owner", "ann"), ("ttl", "60s")]).await;
    let second = client.acquired("x", &[SHARED, ("owner", "bob"), ("ttl", "60s")]).await;
    assert_eq!((&first.json()["mode"], first.json().get("slot")), (&json!("shared"), None));
    assert!(second.fence() > first.fence(), "each has a fence of its own, the later one the larger");
    let seen = client.inspect("x").await.expect_status(200);
    assert_eq!((&seen.json()["mode"], holders(&seen.json()).len()), (&json!("shared"), 2), "{seen:?}");
    let refused = client.acquire("x", &[]).await.expect_problem(423, "locked").json();
    assert_eq!((&refused["reason"], holders(&refused).len()), (&json!("held"), 2), "{refused}");
    client.acquire("x", &[OF_THREE]).await.expect_problem(423, "locked");
    let again = client.acquire("x", &[SHARED, ("owner", "ann"), ("token", &first.token())]).await.expect_status(200);
    assert_eq!(again.fence(), first.fence(), "a replay");
    let other = client.acquire("x", &[("token", &first.token())]).await.expect_problem(409, "mode-differs").json();
    assert_eq!(other["mode"], "shared");
    // Each by its own token.
    client.extend("x", &first.token(), &[("note", "reads")]).await.expect_status(200);
    client.extend("x", "another-token-0123456789", &[]).await.expect_problem(409, "not-holder");
    client.release("x", &first.token()).await.expect_status(204);
    client.release("x", &first.token()).await.expect_problem(410, "lease-expired");
    client.extend("x", &second.token(), &[]).await.expect_status(200);
    let left = client.inspect("x").await.expect_status(200);
    assert_eq!(holders(&left.json()), [token_id(&second)]);
    assert_ne!(left.header("etag"), seen.header("etag"), "it changes with the set of holders");
    client.get(&format!("/fences/x?fence={}", second.fence())).await.expect_status(200);
    client.release("x", &second.token()).await.expect_status(204);
    client.inspect("x").await.expect_problem(404, "not-held");
    client.acquired("x", &[]).await;
    client.acquire("x", &[SHARED]).await.expect_problem(423, "locked");
    let metrics = client.get("/metrics").await.text;
    let granted = "redlockd_lock_acquire_total{mode=\"shared\",outcome=\"granted\"} 2";
    assert!(metrics.lines().any(|line| line == granted), "{metrics}");
}

#[tokio::test]
async fn permits_have_numbers_and_all_who_share_them_the_same_limit() {
    let cluster = Cluster::start(3).await;
    let over = cluster.service().await;
    over.until_all_vote().await;
    let client = over.client();
    let mut held = Vec::new();
    for _ in 0..3 {
        held.push(client.acquired("pool", &[OF_THREE, ("ttl", "60s")]).await);
    }
    let slots: BTreeSet<u64> = held.iter().map(|answer| answer.json()["slot"].as_u64().expect("a number")).collect();
    assert_eq!(slots, BTreeSet::from([0, 1, 2]));
    let full = client.acquire("pool", &[OF_THREE]).await.expect_problem(423, "locked").json();
    assert_eq!(full["detail"], "all 3 permits of pool are held");
    let seen = client.inspect("pool").await.json();
    assert_eq!((&seen["mode"], &seen["limit"], &seen["free"]), (&json!("permit"), &json!(3), &json!(0)), "{seen}");
    for how in [[("limit", "2")], [("limit", "4")]] {
        let other = client.acquire("pool", &how).await.expect_problem(409, "limit-differs").json();
        assert_eq!(other["limit"], 3);
    }
    client.acquire("pool", &[("limit", "5"), ("wait", "20s")]).await.expect_problem(409, "limit-differs");
    client.acquire("pool", &[SHARED]).await.expect_problem(423, "locked");
    client.acquire("pool", &[]).await.expect_problem(423, "locked");
    let one = held.swap_remove(1);
    client.extend("pool", &one.token(), &[SHARED]).await.expect_problem(400, "invalid");
    client.release("pool", &one.token()).await.expect_status(204);
    let next = client.acquired("pool", &[OF_THREE]).await.json();
    assert_eq!(next["slot"], one.json()["slot"], "the only one that is free");
    let list = client.get("/locks?prefix=pool").await.json();
    assert_eq!((&list["items"][0]["free"], holders(&list["items"][0]).len()), (&json!(0), 3), "{list}");
    // A token is for one lease: also where another limit would be refused anyway, its own answer is the one that helps.
    let own = [("limit", "5"), ("token", &held[0].token())];
    let other = client.acquire("pool", &own).await.expect_problem(409, "mode-differs").json();
    assert_eq!((&other["mode"], &other["limit"]), (&json!("permit"), &json!(3)), "{other}");
    let metrics = client.get("/metrics").await.text;
    for (outcome, count) in [("granted", 4), ("locked", 1), ("limit-differs", 3), ("mode-differs", 1)] {
        let line = format!("redlockd_lock_acquire_total{{mode=\"permit\",outcome=\"{outcome}\"}} {count}");
        assert!(metrics.lines().any(|seen| seen == line), "{line}: {metrics}");
    }
}

/// Holders that share end each by itself, and a node names some of many, and no ends: a refusal says no more than that.
#[tokio::test]
async fn a_refusal_says_of_each_holder_only_what_the_nodes_said() {
    let cluster = Cluster::start(3).await;
    let over = cluster.service().await;
    over.until_all_vote().await;
    let client = over.client();
    let refused = async || client.acquire("x", &[]).await.expect_problem(423, "locked").json();
    let ends = |body: &Value| {
        let all = body["holders"].as_array().expect("holders");
        all.iter().map(|holder| holder.get("valid_for_ms").and_then(Value::as_u64)).collect::<Vec<_>>()
    };
    client.acquired("x", &[SHARED, ("ttl", "10s")]).await;
    let one = refused().await;
    assert!(matches!(ends(&one)[..], [Some(ms)] if (5_000..=10_000).contains(&ms)), "{one}");
    client.acquired("x", &[SHARED, ("ttl", "60s")]).await;
    let two = refused().await;
    assert_eq!(ends(&two), [None, None], "not the end of the last one for each: {two}");
    assert_eq!((&two["reason"], two.get("holders_complete")), (&json!("held"), None), "{two}");
    assert_eq!(two["detail"], "x is held by 2 shared leases");
    for _ in 0..10 {
        client.acquired("x", &[SHARED, ("ttl", "60s")]).await;
    }
    let many = refused().await;
    assert_eq!(many["holders_complete"], false, "{many}");
    assert!(many["detail"].as_str().is_some_and(|text| text.starts_with("x is held by at least ")), "{many}");
    // Of full permits all are named, and the first end of any of them is not that of each.
    for _ in 0..3 {
        client.acquired("pool", &[OF_THREE, ("ttl", "60s")]).await;
    }
    let full = client.acquire("pool", &[OF_THREE]).await.expect_problem(423, "locked").json();
    assert_eq!((ends(&full), full.get("holders_complete")), (vec![None; 3], None), "{full}");
    assert_eq!(full["reason"], "held", "{full}");
}

/// Members that are over leave the nodes with later changes: a release, or one acquire of 32.
#[tokio::test]
async fn members_that_are_over_leave_the_nodes_with_later_changes() {
    let cluster = Cluster::start(3).await;
    let over = cluster.service().await;
    over.until_all_vote().await;
    let client = over.client();
    let members = async |name: &str| {
        let mut counts = Vec::new();
        for server in &cluster.servers {
            counts.push(server.ask::<usize>(&["HLEN", &format!("redlockd:m:{name}")]).await);
        }
        counts
    };
    let names = ["released", "acquired"];
    let mut long = Vec::new();
    for name in names {
        client.acquired(name, &[SHARED, ("ttl", "2s")]).await;
        long.push(client.acquired(name, &[SHARED, ("ttl", "60s")]).await);
        long.push(client.acquired(name, &[SHARED, ("ttl", "60s")]).await);
        poll::until("the first one is over", || async {
            (holders(&client.inspect(name).await.json()).len() == 2).then_some(())
        })
        .await;
        assert_eq!(members(name).await, [3; 3], "nothing has changed since");
    }
    client.release("released", &long[0].token()).await.expect_status(204);
    poll::until("each node has one left", || async { (members("released").await == [1; 3]).then_some(()) }).await;
    for _ in 0..32 {
        client.acquired("acquired", &[SHARED, ("ttl", "60s")]).await;
    }
    poll::until("each node has removed the one", || async { (members("acquired").await == [34; 3]).then_some(()) })
        .await;
}

/// What an exclusive lease asks of the nodes: an acquire and a release on each, as without modes.
#[tokio::test(flavor = "multi_thread")]
async fn an_exclusive_lease_takes_the_same_requests_as_without_modes_and_the_others_one_round() {
    let cluster = waiting::Cluster::of(3).await;
    let here = cluster.instance(&[]).await;
    let verbs = ["acquire", "release", "acquire_shared", "acquire_set", "update", "downgrade", "intent", "cancel"];
    let calls = async || {
        let mut all = Vec::new();
        for verb in verbs {
            all.push(here.calls(verb).await);
        }
        all
    };
    let before = calls().await;
    for _ in 0..5 {
        let lease = here.acquire("x", &[]).await;
        assert_eq!(here.release("x", &lease).await, 204);
    }
    poll::until("all are counted", || async { (here.calls("release").await - before[1] >= 15).then_some(()) }).await;
    let after = calls().await;
    let each: Vec<usize> = after.iter().zip(&before).map(|(after, before)| after - before).collect();
    assert_eq!(each, [15, 15, 0, 0, 0, 0, 0, 0], "{verbs:?}");
    // Nobody else is granted one at the time: one round each.
    for how in [SHARED, ("limit", "3")] {
        let lease = here.acquire("y", &[how]).await;
        assert_eq!(here.release("y", &lease).await, 204);
    }
    poll::until("all are counted", || async { (here.calls("release").await - after[1] >= 6).then_some(()) }).await;
    let each: Vec<usize> = calls().await.iter().zip(&after).map(|(now, after)| now - after).collect();
    assert_eq!(each, [0, 6, 6, 0, 0, 0, 0, 0], "{verbs:?}");
}

#[tokio::test]
async fn a_writer_goes_on_as_a_reader_with_its_token_and_fence_and_never_back() {
    let cluster = Cluster::start(3).await;
    let over = cluster.service().await;
    over.until_all_vote().await;
    let client = over.client();
    let writer = client.acquired("x", &[("ttl", "60s")]).await;
    client.acquire("x", &[SHARED]).await.expect_problem(423, "locked");
    let reader = client.extend("x", &writer.token(), &[SHARED]).await.expect_status(200);
    assert_eq!((&reader.json()["mode"], reader.fence()), (&json!("shared"), writer.fence()));
    client.extend("x", &writer.token(), &[SHARED]).await.expect_status(200);
    client.acquired("x", &[SHARED]).await;
    client.acquire("x", &[]).await.expect_problem(423, "locked");
    let back =
        client.extend("x", &writer.token(), &[("mode", "exclusive")]).await.expect_problem(400, "invalid").json();
    assert!(back["errors"][0]["detail"].as_str().expect("text").contains("release and acquire"), "{back}");
    client.release("x", &writer.token()).await.expect_status(204);
}

#[tokio::test]
async fn one_of_several_is_ended_by_its_name_and_the_others_stay() {
    let cluster = Cluster::start(3).await;
    let over = cluster.service().await;
    over.until_all_vote().await;
    let client = over.client();
    let (first, second) = (client.acquired("x", &[SHARED]).await, client.acquired("x", &[SHARED]).await);
    let unnamed = force(client, "x", &[]).await.expect_problem(400, "invalid").json();
    assert_eq!(unnamed["errors"][0]["field"], "token_id");
    force(client, "x", &[("token_id", "00000000")]).await.expect_problem(404, "not-held");
    force(client, "x", &[("token_id", &token_id(&first))]).await.expect_status(204);
    let ended = client.extend("x", &first.token(), &[]).await.expect_problem(410, "lease-expired").json();
    assert_eq!(ended["reason"], "forced");
    client.extend("x", &second.token(), &[]).await.expect_status(200);
    // With several again, the fence of one says which.
    client.acquired("x", &[SHARED]).await;
    let by_fence = client.request("DELETE", &format!("{}?force=revoke&reason=test", lock("x")));
    send(by_fence.header("If-Match", format!("\"{}\"", second.fence()))).await.expect_status(202);
    client.extend("x", &second.token(), &[]).await.expect_problem(410, "lease-expired");
}

#[tokio::test]
async fn kept_and_held_leases_are_shared_like_any_other() {
    let cluster = Cluster::start(3).await;
    let over = cluster.service().await;
    over.until_all_vote().await;
    let client = over.client();
    let kept = client.acquired("x", &[SHARED, ("keep", "60s"), ("ttl", "10s")]).await;
    assert_eq!((&kept.json()["mode"], kept.json()["kept_for_ms"].is_u64()), (&json!("shared"), true));
    let mut stream =
        client.request("POST", &lock("x")).form(&[SHARED, ("hold", "true")]).send().await.expect("a stream");
    let line = stream.chunk().await.expect("a line").expect("not the end");
    let acquired: Value = serde_json::from_slice(&line).expect("JSON");
    assert_eq!((&acquired["event"], &acquired["mode"]), (&json!("acquired"), &json!("shared")));
    assert_eq!(holders(&client.inspect("x").await.json()).len(), 2);
    drop(stream);
    poll::until("the hold is given back", || async {
        (holders(&client.inspect("x").await.json()) == [token_id(&kept)]).then_some(())
    })
    .await;
    client.release("x", &kept.token()).await.expect_status(204);
    client.inspect("x").await.expect_problem(404, "not-held");
}

/// How many readers there are; `REDLOCKD_READERS` says otherwise.
fn readers() -> usize {
    std::env::var("REDLOCKD_READERS").ok().and_then(|text| text.parse().ok()).unwrap_or(500)
}

/// So many begin to wait before the next ones do: all at once would take longer than anything may on a busy machine.
const ARRIVE_TOGETHER: usize = 50;

/// Readers of two instances wait behind a writer of one of them, which waits for the readers that hold: it is served after
/// those, and all others at once after it.
#[tokio::test(flavor = "multi_thread")]
async fn readers_and_a_writer_over_two_instances() {
    let each = readers() / 2;
    let cluster = waiting::Cluster::of(3).await;
    let (here, there) = (cluster.instance(&[]).await, cluster.instance(&[]).await);
    let held = [here.acquire("x", &[SHARED]).await, there.acquire("x", &[SHARED]).await];
    assert!(held.iter().all(|lease| lease.status == 201), "{held:?}");
    // Until all have arrived, and what they are compared with was measured.
    let wait = ("wait", "5m");
    let writer = here.queue("x", &[wait, ("ttl", "5m"), ("owner", "writer")]);
    here.until_waiting(1).await;
    poll::until("its intent is on the nodes", || async {
        let mut found = 0;
        for server in &cluster.servers {
            found += server.ask::<usize>(&["EXISTS", "redlockd:i:x"]).await;
        }
        (found >= 2).then_some(())
    })
    .await;
    // Also one that does not wait is not let in past it, at either instance.
    assert_eq!(here.acquire("x", &[SHARED]).await.status, 423);
    let behind = there.acquire("x", &[SHARED]).await;
    assert_eq!((behind.status, &behind.body["reason"]), (423, &json!("held")), "nothing is over: {behind:?}");
    assert_eq!(
        behind.body["detail"], "x is held by 2 shared leases, and other requests wait and come first",
        "{behind:?}"
    );
    let mut readers = Vec::new();
    while readers.len() < 2 * each {
        for _ in 0..ARRIVE_TOGETHER.min(each - readers.len() / 2) {
            readers.extend([&here, &there].map(|instance| instance.queue("x", &[SHARED, wait])));
        }
        here.until_waiting(readers.len() / 2 + 1).await;
        there.until_waiting(readers.len() / 2).await;
    }
    for (lease, instance) in held.iter().zip([&here, &there]) {
        assert_eq!(instance.release("x", lease).await, 204);
    }
    let writer = writer.await.expect("no panic");
    assert_eq!(writer.status, 201, "{writer:?}");
    assert_eq!(there.waiting().await, each, "it was one phase only");
    let (cycle, answers) = (uncontended_cycle(&here).await, time_of_answers([&here, &there], 2 * each).await);
    let requests = async || {
        let mut all = [0; 3];
        for (count, verb) in all.iter_mut().zip(["acquire_shared", "update", "cancel"]) {
            *count = here.calls(verb).await + there.calls(verb).await;
        }
        all
    };
    let before = requests().await;
    let begun = SystemClock.now();
    assert_eq!(here.release("x", &writer).await, 204);
    let mut fences = BTreeSet::new();
    for reader in readers {
        let reader = reader.await.expect("no panic");
        assert_eq!(reader.status, 201, "{reader:?}");
        assert!(reader.fence > writer.fence, "it was granted after the writer");
        fences.insert(reader.fence);
    }
    let took = SystemClock.now().since(begun);
    assert_eq!(fences.len(), 2 * each, "each has its own");
    let after = requests().await;
    let [acquires, updates, cancels] = std::array::from_fn(|i| after[i] - before[i]);
    #[expect(clippy::print_stdout, reason = "what was measured, for --nocapture")]
    {
        println!("{} readers in {took:?}; a cycle takes {cycle:?}, as many answers {answers:?}", 2 * each);
        println!("requests to nodes: {acquires} acquires, {updates} updates, {cancels} cancels");
    }
    assert!(took < 2 * cycle + answers, "{took:?}: {cycle:?}, {answers:?}");
}

/// An acquire and a release of a free name, when many others wait for something else: the median.
async fn uncontended_cycle(instance: &Instance) -> Duration {
    let mut took = Vec::new();
    for _ in 0..11 {
        let begun = SystemClock.now();
        let lease = instance.acquire("free", &[SHARED]).await;
        assert_eq!(instance.release("free", &lease).await, 204);
        took.push(SystemClock.now().since(begun));
    }
    took.sort();
    took[took.len() / 2]
}

/// How long so many readers at a time take for a name that nobody writes.
async fn time_of_answers(instances: [&Instance; 2], readers: usize) -> Duration {
    let begun = SystemClock.now();
    let readers: Vec<_> = (0..readers).map(|i| instances[i % 2].queue("other", &[SHARED, ("wait", "60s")])).collect();
    for reader in readers {
        assert_eq!(reader.await.expect("no panic").status, 201);
    }
    SystemClock.now().since(begun)
}

/// A hundred contenders for three permits over two instances: each is served once, never two with one number, without a storm of
/// rounds.
#[tokio::test(flavor = "multi_thread")]
async fn a_hundred_contenders_for_three_permits_settle() {
    const CONTENDERS: usize = 100;
    /// On average, and in the median: the one that is granted, and one at the other instance, which the end of a permit wakes too.
    const ROUNDS_PER_GRANT: usize = 3;
    let cluster = waiting::Cluster::of(3).await;
    let (here, there) = (cluster.instance(&[]).await, cluster.instance(&[]).await);
    let calls = async || here.calls("acquire_shared").await + there.calls("acquire_shared").await;
    let (before, held) = (calls().await, std::sync::Mutex::new(BTreeSet::new()));
    let counts = std::sync::Mutex::new(vec![before]);
    let turn = async |i: usize| {
        let instance = if i.is_multiple_of(2) { &here } else { &there };
        let lease = instance.acquire("pool", &[OF_THREE, ("wait", "60s")]).await;
        assert_eq!(lease.status, 201, "{lease:?}");
        let slot = lease.body["slot"].as_u64().expect("a number");
        assert!(slot < 3 && held.lock().expect("no panic").insert(slot), "no two have the same: {slot}");
        let count = calls().await;
        counts.lock().expect("no panic").push(count);
        // Others are granted and refused while it is held.
        let now = instance.client.get(instance.url("/locks/pool")).send().await.expect("an answer");
        assert_eq!(now.status(), 200);
        assert!(held.lock().expect("no panic").remove(&slot));
        assert_eq!(instance.release("pool", &lease).await, 204);
    };
    futures_util::future::join_all((0..CONTENDERS).map(turn)).await;
    let rounds = (calls().await - before) / cluster.servers.len();
    assert!(rounds <= ROUNDS_PER_GRANT * CONTENDERS, "{rounds} rounds for {CONTENDERS} grants");
    let mut counts = counts.into_inner().expect("no panic");
    counts.sort_unstable();
    // Between one grant and the next, beginning with all that ask at first.
    let mut calls: Vec<usize> = counts.windows(2).map(|pair| pair[1] - pair[0]).collect();
    calls.sort_unstable();
    #[expect(clippy::print_stdout, reason = "what was measured, for --nocapture")]
    {
        println!("{rounds} rounds; requests to nodes between two grants: {calls:?}");
    }
    let median = calls[calls.len() / 2];
    assert!(median <= ROUNDS_PER_GRANT * cluster.servers.len(), "{median} requests per grant in the median: {calls:?}");
    assert_eq!(here.waiting().await + there.waiting().await, 0);
}

/// What other libraries send: `SET key value NX PX ttl`, on each node.
#[tokio::test]
async fn other_clients_exclude_shared_holders_and_are_excluded() {
    let cluster = Cluster::start(3).await;
    let over = cluster.service().await;
    over.until_all_vote().await;
    let client = over.client();
    let (first, second) = (client.acquired("x", &[SHARED]).await, client.acquired("x", &[SHARED]).await);
    for server in &cluster.servers {
        let taken: Option<String> = server.ask(&["SET", "x", "foreign", "NX", "PX", "60000"]).await;
        assert_eq!(taken, None, "the key is there for as long as anybody holds");
    }
    client.release("x", &first.token()).await.expect_status(204);
    let taken: Option<String> = cluster.servers[0].ask(&["SET", "x", "foreign", "NX", "PX", "60000"]).await;
    assert_eq!(taken, None);
    client.release("x", &second.token()).await.expect_status(204);
    cluster.until_nowhere("x").await;
    cluster.take_as_foreigner(&[0, 1, 2], "x", 60_000).await;
    for how in [SHARED, OF_THREE] {
        let refused = client.acquire("x", &[how]).await.expect_problem(423, "locked").json();
        assert_eq!(refused["reason"], "foreign");
    }
}

#[test]
fn a_command_runs_beside_others_and_sees_the_number_of_its_permit() {
    let daemon = Daemon::start();
    let done = daemon.ask(&["run", "--permits", "3", "gpu", "--", "sh", "-c", "echo $REDLOCKD_SLOT"]);
    assert_eq!(done.code, Some(0), "{done:?}");
    assert!(["0", "1", "2"].contains(&done.out.trim()), "{done:?}");
    let dir = tempfile::tempdir().expect("a directory");
    let file = |name: &str| dir.path().join(name).display().to_string();
    daemon.get(&["acquire", "--shared", "--token-file", &file("a"), "db"]);
    let done = daemon.ask(&["run", "--shared", "db", "--", "sh", "-c", "echo \"<$REDLOCKD_SLOT>\""]);
    assert_eq!((done.code, done.out.trim()), (Some(0), "<>"), "{done:?}");
    assert_eq!(daemon.ask(&["run", "db", "--", "true"]).code, Some(75), "a writer is kept out");
    daemon.get(&["acquire", "--token-file", &file("w"), "doc"]);
    daemon.get(&["extend", "--shared", "--token-file", &file("w"), "doc"]);
    assert_eq!(daemon.ask(&["run", "--shared", "doc", "--", "true"]).code, Some(0));
    let status = daemon.get(&["status", "--plain", "doc"]);
    assert!(status.lines().any(|line| line == "mode=shared"), "{status}");
    for bad in [["--permits", "1"], ["--permits", "101"], ["--permits", "x"]] {
        assert_eq!(daemon.ask(&["run", bad[0], bad[1], "x", "--", "true"]).code, Some(64), "{bad:?}");
    }
    daemon.get(&["keep", "--for", "1m", "--shared", "freeze"]);
    assert_eq!(daemon.ask(&["run", "--shared", "freeze", "--", "true"]).code, Some(0));
}
