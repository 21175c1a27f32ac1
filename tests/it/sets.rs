//! Several locks at once, over real Redis servers: all or none, in order, without deadlocks, and nothing left behind.
//!
//! The philosophers dine for some seconds; for a minute: `DINING_SECONDS=60 cargo test --test it -- sets::philosophers`.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use parking_lot::Mutex;
use redlockd::redlock::clock::{BootTime, Clock, SystemClock};
use reqwest::{RequestBuilder, Response};
use serde_json::{Value, json};
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;
use tokio::task::JoinHandle;

use crate::access::{Access, entry, key};
use crate::support::chaos_proxy::{ChaosProxy, FAIR, Flow};
use crate::support::client::send;
use crate::support::poll;
use crate::support::service::SHORT_TIMES;
use crate::waiting::{Cluster, Instance, config};

/// What was answered.
#[derive(Debug)]
struct Answer {
    status: u16,
    body: Value,
}

impl Answer {
    async fn of(response: Response) -> Self {
        let status = response.status().as_u16();
        Self { status, body: response.json().await.expect("JSON") }
    }

    fn token(&self) -> String {
        assert!(self.status == 200 || self.status == 201, "{self:?}");
        self.body["token"].as_str().expect("a token").to_owned()
    }

    /// Name and status of each result.
    fn results(&self) -> Vec<(&str, u64)> {
        let results = self.body["results"].as_array().unwrap_or_else(|| panic!("{self:?}"));
        let one = |of: &'_ Value| of["status"].as_u64().expect("a status");
        results.iter().map(|result| (result["resource"].as_str().expect("a name"), one(result))).collect()
    }

    /// The names of what keeps it out.
    fn blocked_by(&self) -> Vec<&str> {
        let blocked = self.body["blocked_by"].as_array().into_iter().flatten();
        blocked.map(|one| one["resource"].as_str().expect("a name")).collect()
    }
}

fn query(names: &[&str]) -> String {
    names.iter().map(|name| format!("resource={name}")).collect::<Vec<_>>().join("&")
}

fn ask(instance: &Instance, names: &[&str], more: &Value) -> RequestBuilder {
    let mut body = json!({ "resources": names, "ttl": "60s" });
    body.as_object_mut().expect("an object").extend(more.as_object().expect("an object").clone());
    instance.client.post(instance.url("/locks")).json(&body)
}

async fn acquire(instance: &Instance, names: &[&str], more: Value) -> Answer {
    Answer::of(ask(instance, names, &more).send().await.expect("an answer")).await
}

fn queue(instance: &Instance, names: &[&str], more: Value) -> JoinHandle<Answer> {
    let request = ask(instance, names, &more);
    tokio::spawn(async move { Answer::of(request.send().await.expect("an answer")).await })
}

async fn with_token(request: RequestBuilder, token: &str) -> Answer {
    Answer::of(request.header("lock-token", token).send().await.expect("an answer")).await
}

async fn release(instance: &Instance, names: &[&str], token: &str) -> Answer {
    with_token(instance.client.delete(instance.url(&format!("/locks?{}", query(names)))), token).await
}

/// On how many nodes each of these keys is.
async fn held_on(cluster: &Cluster, names: &[&str]) -> Vec<usize> {
    let mut counts = Vec::new();
    for name in names {
        counts.push(cluster.nodes_with(name).await);
    }
    counts
}

async fn until_nowhere(cluster: &Cluster, names: &[&str]) {
    poll::until("no node has any of them", || async {
        held_on(cluster, names).await.iter().all(|count| *count == 0).then_some(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_set_is_taken_whole_or_not_at_all() {
    let cluster = Cluster::of(3).await;
    let here = cluster.instance(&[]).await;
    let set = acquire(&here, &["a", "b/c", "d"], json!({ "owner": "ann" })).await;
    assert_eq!(set.status, 201, "{set:?}");
    let leases = set.body["leases"].as_array().expect("leases");
    let names: Vec<&str> = leases.iter().map(|lease| lease["resource"].as_str().expect("a name")).collect();
    assert_eq!(names, ["a", "b/c", "d"]);
    assert!(set.body["valid_for_ms"].as_u64().is_some_and(|ms| ms > 50_000), "{set:?}");
    poll::until("each node has all", || async {
        (held_on(&cluster, &["a", "b/c", "d"]).await == [3, 3, 3]).then_some(())
    })
    .await;
    for lease in leases {
        let shown = here.client.get(here.url(&format!("/locks/{}", lease["resource"].as_str().expect("a name"))));
        let shown = Answer::of(shown.send().await.expect("an answer")).await;
        let holder = &shown.body["holders"][0];
        assert_eq!((&holder["fence"], &holder["owner"]), (&lease["fence"], &json!("ann")), "{shown:?}");
    }
    let refused = acquire(&here, &["free/1", "d", "free/2", "a"], json!({})).await;
    assert_eq!((refused.status, refused.blocked_by()), (423, vec!["d", "a"]), "{refused:?}");
    assert_eq!(refused.body["blocked_by"][0]["owner"], "ann");
    assert_eq!(refused.body["blocked_by"][0]["fence"], leases[2]["fence"]);
    assert_eq!(held_on(&cluster, &["free/1", "free/2"]).await, [0, 0], "a node takes nothing of a set that it refuses");
    let token = set.token();
    let again = acquire(&here, &["a", "b/c", "d"], json!({ "owner": "ann", "token": token })).await;
    assert_eq!((again.status, &again.body["leases"][1]["fence"]), (200, &leases[1]["fence"]), "{again:?}");
    let other = acquire(&here, &["a", "free/1"], json!({ "owner": "bob", "token": token })).await;
    assert_eq!((other.status, &other.body["errors"][0]["field"]), (400, &json!("owner")), "{other:?}");
    until_nowhere(&cluster, &["free/1"]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_leases_of_a_set_are_extended_and_released_together_or_one_by_one() {
    let cluster = Cluster::of(3).await;
    let (here, there) = (cluster.instance(&[]).await, cluster.instance(&[]).await);
    let names = ["a", "b", "c"];
    let token = acquire(&here, &names, json!({})).await.token();
    let patch = |instance: &Instance, names: &[&str], form: &[(&str, &str)]| {
        instance.client.patch(instance.url(&format!("/locks?{}", query(names)))).form(form)
    };
    let extended = with_token(patch(&there, &names, &[("ttl", "2m"), ("note", "step 2")]), &token).await;
    assert_eq!((extended.status, extended.results()), (200, vec![("a", 200), ("b", 200), ("c", 200)]));
    assert!(extended.body["valid_for_ms"].as_u64().is_some_and(|ms| ms > 100_000), "{extended:?}");
    let shown = here.client.get(here.url("/locks/b")).send().await.expect("an answer");
    assert_eq!(Answer::of(shown).await.body["holders"][0]["note"], "step 2");
    let one = here.client.delete(here.url("/locks/b")).header("lock-token", &token).send().await.expect("an answer");
    assert_eq!(one.status(), 204);
    // What is left is not touched by what is gone, and a problem says what became of each.
    let extended = with_token(patch(&here, &names, &[]), &token).await;
    assert_eq!((extended.status, extended.results()), (410, vec![("a", 200), ("b", 410), ("c", 200)]), "{extended:?}");
    assert_eq!(
        (&extended.body["type"], &extended.body["results"][1]["reason"]),
        (&json!("/problems/lease-expired"), &json!("released"))
    );
    let released = release(&here, &names, &token).await;
    assert_eq!((released.status, released.results()), (410, vec![("a", 204), ("b", 410), ("c", 204)]), "{released:?}");
    until_nowhere(&cluster, &names).await;
    let other = acquire(&here, &["a"; 1], json!({})).await;
    assert_eq!((other.status, &other.body["errors"][0]["field"]), (400, &json!("resources")));
    let mine = acquire(&here, &names, json!({})).await.token();
    let stolen = release(&here, &["a", "b"], "8fJ2kQ0wYb7Lr5VxTn3cZg").await;
    assert_eq!((stolen.status, stolen.results()), (409, vec![("a", 409), ("b", 409)]), "{stolen:?}");
    let all = release(&there, &names, &mine).await;
    assert_eq!((all.status, all.results()), (200, vec![("a", 204), ("b", 204), ("c", 204)]));
}

/// Readers of several locks: beside each other, each lease for itself, and no part of it beside a writer.
#[tokio::test(flavor = "multi_thread")]
async fn a_shared_set_is_held_beside_others_and_beside_no_writer() {
    let cluster = Cluster::of(3).await;
    let (here, there) = (cluster.instance(&[]).await, cluster.instance(&[]).await);
    let shared = json!({ "mode": "shared", "owner": "ann" });
    let first = acquire(&here, &["a", "b"], shared.clone()).await;
    assert_eq!((first.status, &first.body["mode"]), (201, &json!("shared")), "{first:?}");
    let second = acquire(&there, &["c", "b"], shared.clone()).await;
    let fence = |set: &Answer, index: usize| set.body["leases"][index]["fence"].as_u64().expect("a fence");
    assert!(second.status == 201 && fence(&second, 1) > fence(&first, 1), "{second:?}");
    let single = there.acquire("b", &[("mode", "shared"), ("ttl", "60s")]).await;
    assert_eq!(single.status, 201, "{single:?}");
    // Who keeps a writer of several locks out, and nothing of it is taken.
    let writer = acquire(&there, &["free", "a"], json!({})).await;
    assert_eq!((writer.status, writer.blocked_by()), (423, vec!["a"]), "{writer:?}");
    let by = &writer.body["blocked_by"][0];
    assert_eq!((&by["owner"], &by["fence"]), (&json!("ann"), &json!(fence(&first, 0))), "{writer:?}");
    let held = here.acquire("d", &[("ttl", "60s")]).await;
    let refused = acquire(&here, &["d", "free"], shared.clone()).await;
    assert_eq!((refused.status, refused.blocked_by()), (423, vec!["d"]), "{refused:?}");
    until_nowhere(&cluster, &["free"]).await;
    let again = acquire(&there, &["a", "b"], json!({ "mode": "shared", "owner": "ann", "token": first.token() })).await;
    assert_eq!((again.status, fence(&again, 0)), (200, fence(&first, 0)), "{again:?}");
    let other = acquire(&there, &["a", "b"], json!({ "token": first.token() })).await;
    assert_eq!((other.status, &other.body["type"]), (409, &json!("/problems/mode-differs")), "{other:?}");
    assert_eq!(release(&here, &["a", "b"], &first.token()).await.status, 200);
    assert_eq!(release(&here, &["b", "c"], &second.token()).await.status, 200);
    assert_eq!(there.release("b", &single).await + here.release("d", &held).await, 408);
    until_nowhere(&cluster, &["a", "b", "c", "d"]).await;
}

/// A writer of several locks waits for readers of one of them: nobody reads before it, also not at another instance.
#[tokio::test(flavor = "multi_thread")]
async fn a_set_that_waits_for_readers_lets_no_later_ones_in() {
    let cluster = Cluster::of(3).await;
    let (here, there) = (cluster.instance(&[]).await, cluster.instance(&[]).await);
    let reads = [("mode", "shared"), ("ttl", "60s")];
    let reader = here.acquire("a", &reads).await;
    let writer = queue(&here, &["a", "b"], json!({ "wait": "60s" }));
    here.until_waiting(1).await;
    poll::until("its intents are on the nodes", || async {
        (held_on(&cluster, &["redlockd:i:a", "redlockd:i:b"]).await.iter().all(|count| *count >= 2)).then_some(())
    })
    .await;
    assert_eq!(there.acquire("a", &reads).await.status, 423);
    let later = acquire(&there, &["b", "c"], json!({ "mode": "shared" })).await;
    assert_eq!(later.status, 423, "{later:?}");
    let behind = there.queue("a", &[("mode", "shared"), ("ttl", "60s"), ("wait", "60s")]);
    there.until_waiting(1).await;
    assert_eq!(here.release("a", &reader).await, 204);
    let writer = writer.await.expect("no panic");
    assert_eq!(writer.status, 201, "{writer:?}");
    assert!(!behind.is_finished(), "it waits for the writer");
    assert_eq!(release(&here, &["a", "b"], &writer.token()).await.status, 200);
    assert_eq!(behind.await.expect("no panic").status, 201);
}

/// The service renews each lease of a kept set, whoever granted it, until its end; one token has several kept leases.
#[tokio::test(flavor = "multi_thread")]
async fn a_kept_set_is_renewed_lease_by_lease_until_its_end() {
    let cluster = Cluster::of(3).await;
    let (here, there) = (cluster.instance(&[]).await, cluster.instance(&[]).await);
    for mode in ["exclusive", "shared"] {
        let set = acquire(&here, &["a", "b"], json!({ "keep": "1h", "ttl": "5s", "mode": mode })).await;
        let kept_for = set.body["kept_for_ms"].as_u64();
        assert!(set.status == 201 && kept_for.is_some_and(|ms| (3_590_000..=3_600_000).contains(&ms)), "{set:?}");
        let holder = async |name: &str| {
            let shown = there.client.get(there.url(&format!("/locks/{name}"))).send().await.expect("an answer");
            Answer::of(shown).await.body["holders"][0].clone()
        };
        for name in ["a", "b"] {
            poll::until("it is renewed", || async {
                holder(name).await["renewals"].as_u64().is_some_and(|renewals| renewals > 0).then_some(())
            })
            .await;
        }
        let request = there.client.patch(there.url("/locks?resource=a&resource=b")).form(&[("keep", "10m")]);
        let sooner = with_token(request, &set.token()).await;
        assert_eq!((sooner.status, sooner.results()), (200, vec![("a", 200), ("b", 200)]), "{sooner:?}");
        for name in ["a", "b"] {
            let left = holder(name).await["kept_for_ms"].as_u64();
            assert!(left.is_some_and(|ms| ms <= 600_000), "{name}: {left:?}");
        }
        assert_eq!(release(&here, &["a", "b"], &set.token()).await.status, 200);
        until_nowhere(&cluster, &["a", "b"]).await;
    }
}

/// Somebody waits for a part of what a token holds, and for that token to end: it must not wait behind them for the rest.
#[tokio::test(flavor = "multi_thread")]
async fn a_token_that_holds_some_acquires_the_rest_past_those_who_wait_for_it() {
    let cluster = Cluster::of(3).await;
    let here = cluster.instance(&[]).await;
    let token = "a-token-of-my-own-0123456789";
    let first = here.acquire("a", &[("ttl", "60s"), ("token", token)]).await;
    let behind = here.queue("a", &[("ttl", "60s"), ("wait", "60s"), ("owner", "behind")]);
    here.until_waiting(1).await;
    let busy = here.acquire("b", &[("ttl", "60s")]).await;
    let refused = acquire(&here, &["a", "b"], json!({ "token": token })).await;
    assert_eq!((refused.status, refused.blocked_by()), (423, vec!["b"]), "{refused:?}");
    let both = queue(&here, &["a", "b"], json!({ "token": token, "wait": "60s" }));
    here.until_waiting(2).await;
    assert_eq!(here.release("b", &busy).await, 204);
    let both = both.await.expect("no panic");
    assert_eq!((both.status, &both.body["leases"][0]["fence"]), (201, &json!(first.fence)), "{both:?}");
    assert_eq!(both.body["leases"][0]["replay"], true);
    assert_eq!(release(&here, &["a", "b"], token).await.status, 200);
    assert_eq!(behind.await.expect("no panic").status, 201);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_large_set_is_not_overtaken_within_an_instance() {
    let cluster = Cluster::of(3).await;
    let here = cluster.instance(&[]).await;
    let held = here.acquire("n/0", &[("ttl", "60s")]).await;
    let names: Vec<String> = (0..16).map(|i| format!("n/{i}")).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let large = queue(&here, &names, json!({ "wait": "60s", "owner": "large" }));
    here.until_waiting(1).await;
    // All but one of its names are free: who comes later waits all the same, or is refused.
    let at_once = here.acquire("n/7", &[("ttl", "60s")]).await;
    assert_eq!(at_once.status, 423, "{at_once:?}");
    assert_eq!(at_once.body["detail"], "other requests for n/7 wait and come first");
    let pair = acquire(&here, &["n/7", "other"], json!({})).await;
    assert_eq!((pair.status, pair.blocked_by()), (423, vec![]), "{pair:?}");
    let small = here.queue("n/7", &[("ttl", "60s"), ("wait", "60s")]);
    here.until_waiting(2).await;
    assert_eq!(here.release("n/0", &held).await, 204);
    let large = large.await.expect("no panic");
    assert_eq!(large.status, 201, "{large:?}");
    assert!(!small.is_finished(), "it waits for the set that was before it");
    assert_eq!(release(&here, &names, &large.token()).await.status, 200);
    assert_eq!(small.await.expect("no panic").status, 201);
}

/// At another instance there is always somebody who holds one of its names, and somebody else who waits for it: of callers who
/// take one name each, and of others who take pairs. The intents of the large set let it be next, and those who wait behind it
/// are served after it.
#[tokio::test(flavor = "multi_thread")]
async fn a_large_set_is_not_overtaken_by_callers_of_another_instance() {
    let cluster = Cluster::of(3).await;
    let (here, there) = (Arc::new(cluster.instance(&[]).await), Arc::new(cluster.instance(&[]).await));
    let is_over = Arc::new(std::sync::atomic::AtomicBool::new(false));
    let names: Vec<String> = (0..6).map(|i| format!("n/{i}")).collect();
    let callers = (0..18).map(|i| {
        let (there, is_over) = (Arc::clone(&there), Arc::clone(&is_over));
        let first = names[i % 6].clone();
        let wanted = if i < 12 { vec![first] } else { vec![first, names[(i + 1) % 6].clone()] };
        tokio::spawn(async move {
            let wanted: Vec<&str> = wanted.iter().map(String::as_str).collect();
            let (mut served, mut longest) = (0, Duration::ZERO);
            while !is_over.load(std::sync::atomic::Ordering::Relaxed) {
                let begun = SystemClock.now();
                let token = if let [name] = wanted[..] {
                    let lease = there.acquire(name, &[("ttl", "20s"), ("wait", "60s")]).await;
                    assert_eq!(lease.status, 201, "{lease:?}");
                    lease.token
                } else {
                    acquire(&there, &wanted, json!({ "ttl": "20s", "wait": "60s" })).await.token()
                };
                longest = longest.max(SystemClock.now().since(begun));
                // Held until somebody else waits behind it.
                there.client.get(there.url(&format!("/locks/{}", wanted[0]))).send().await.expect("an answer");
                assert_eq!(release(&there, &wanted, &token).await.status, 200);
                served += 1;
            }
            (served, longest)
        })
    });
    let callers: Vec<_> = callers.collect();
    poll::until("others wait for all of its names", || async { (there.waiting().await >= 6).then_some(()) }).await;
    let all: Vec<&str> = names.iter().map(String::as_str).collect();
    let mut waits = Vec::new();
    for _ in 0..5 {
        let begun = SystemClock.now();
        let large = acquire(&here, &all, json!({ "ttl": "20s", "wait": "60s" })).await;
        waits.push(SystemClock.now().since(begun));
        assert_eq!(release(&here, &all, &large.token()).await.status, 200);
    }
    is_over.store(true, std::sync::atomic::Ordering::Relaxed);
    let mut others = Vec::new();
    for caller in callers {
        others.push(caller.await.expect("no panic"));
    }
    #[expect(clippy::print_stdout, reason = "what was measured, for --nocapture")]
    {
        println!(
            "the large set waited for {waits:?}; the others, how often they were served and their longest waits: {others:?}"
        );
    }
    assert!(others.iter().all(|(served, _)| *served > 0), "{others:?}");
    assert!(waits.iter().all(|wait| *wait < Duration::from_secs(15)), "{waits:?}");
    until_nowhere(&cluster, &all).await;
}

/// While a set waits for one of its locks, another instance refuses its free ones and says why; once the set has given up, it grants
/// them, within a second.
#[tokio::test(flavor = "multi_thread")]
async fn a_set_that_gives_up_is_noticed_at_other_instances_within_a_second() {
    let cluster = Cluster::of(3).await;
    let (here, there) = (cluster.instance(&[]).await, cluster.instance(&[]).await);
    let held = here.acquire("a", &[("ttl", "60s")]).await;
    let set = queue(&here, &["a", "free"], json!({ "wait": "60s" }));
    here.until_waiting(1).await;
    poll::until("its intents are on the nodes", || async {
        (held_on(&cluster, &["redlockd:i:free"]).await == [3]).then_some(())
    })
    .await;
    let refused = there.acquire("free", &[("ttl", "60s")]).await;
    assert_eq!((refused.status, &refused.body["reason"]), (423, &json!("held")), "{refused:?}");
    assert_eq!(refused.body["detail"], "other requests for free wait and come first");
    let behind = there.queue("free", &[("ttl", "60s"), ("wait", "60s")]);
    there.until_waiting(1).await;
    let begun = SystemClock.now();
    set.abort();
    let behind = behind.await.expect("no panic");
    let took = SystemClock.now().since(begun);
    assert_eq!(behind.status, 201, "{behind:?}");
    // An intent that is not withdrawn ends after two.
    assert!(took < Duration::from_millis(1_500), "{took:?}");
    assert_eq!(here.release("a", &held).await, 204);
}

/// An operator ends one lease of a set: that one is gone for its token, and the others are held as before.
#[tokio::test(flavor = "multi_thread")]
async fn one_lease_of_a_set_is_ended_by_force_and_the_others_stay() {
    let cluster = Cluster::of(3).await;
    let (here, there) = (cluster.instance(&[]).await, cluster.instance(&[]).await);
    let names = ["a", "b", "c"];
    for mode in ["exclusive", "shared"] {
        let set = acquire(&here, &names, json!({ "mode": mode })).await;
        let token = set.token();
        let other =
            if mode == "shared" { Some(there.acquire("b", &[("mode", mode), ("ttl", "60s")]).await) } else { None };
        let force = |how: &str, name: &str| {
            let id = set.body["token_id"].as_str().expect("an id");
            let url = there.url(&format!("/locks/{name}?force={how}&reason=test&token_id={id}"));
            there.client.delete(url).send()
        };
        assert_eq!(force("now", "b").await.expect("an answer").status(), 204);
        assert_eq!(force("revoke", "c").await.expect("an answer").status(), 202);
        let extend = here.client.patch(here.url(&format!("/locks?{}", query(&names))));
        let extended = with_token(extend, &token).await;
        assert_eq!(
            (extended.status, extended.results()),
            (410, vec![("a", 200), ("b", 410), ("c", 410)]),
            "{extended:?}"
        );
        assert_eq!(extended.body["results"][1]["reason"], "forced", "{extended:?}");
        // Beside other holders of the name only this one has ended; a revoked lease is held until its end.
        let lease = here.acquire("b", &[("ttl", "60s")]).await;
        assert_eq!(lease.status, if other.is_some() { 423 } else { 201 }, "{lease:?}");
        assert_eq!(there.acquire("c", &[("ttl", "60s")]).await.status, 423);
        let released = release(&here, &names, &token).await;
        assert_eq!(released.results(), [("a", 204), ("b", 410), ("c", 204)], "{released:?}");
        assert_eq!(here.release("b", other.as_ref().unwrap_or(&lease)).await, 204);
        until_nowhere(&cluster, &names).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_wait_for_a_set_that_ends_says_what_was_in_the_way() {
    let cluster = Cluster::of(3).await;
    let here = cluster.instance(&[]).await;
    let held = here.acquire("b", &[("ttl", "60s"), ("owner", "ann")]).await;
    let timed_out = acquire(&here, &["a", "b"], json!({ "wait": "100ms" })).await;
    assert_eq!((timed_out.status, &timed_out.body["type"]), (423, &json!("/problems/wait-timeout")), "{timed_out:?}");
    let by = json!([{ "resource": "b", "owner": "ann", "fence": held.fence }]);
    assert_eq!(timed_out.body["blocked_by"], by, "{timed_out:?}");
    assert!(timed_out.body["waited_ms"].as_u64().is_some_and(|ms| ms >= 100), "{timed_out:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_deadlock_through_a_set_is_found() {
    let cluster = Cluster::of(3).await;
    let here = cluster.instance(&[]).await;
    let held = here.acquire("a", &[("ttl", "60s"), ("owner", "x")]).await;
    let set = acquire(&here, &["b", "c"], json!({ "owner": "y" })).await;
    let x = queue(&here, &["d", "c"], json!({ "owner": "x", "wait": "60s" }));
    here.until_waiting(1).await;
    let y = acquire(&here, &["a", "e"], json!({ "owner": "y", "wait": "60s", "on_deadlock": "refuse" })).await;
    assert_eq!((y.status, &y.body["type"]), (409, &json!("/problems/deadlock")), "{y:?}");
    assert_eq!(y.body["cycle"].as_array().map(Vec::len), Some(2), "{y:?}");
    assert_eq!(release(&here, &["b", "c"], &set.token()).await.status, 200);
    assert_eq!(x.await.expect("no panic").status, 201);
    assert_eq!(here.release("a", &held).await, 204);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_caller_that_hangs_up_leaves_its_queues_and_nothing_on_the_nodes() {
    let cluster = Cluster::of(3).await;
    let mut proxies = Vec::new();
    for server in &cluster.servers {
        proxies.push(ChaosProxy::start(server.port()).await);
    }
    let nodes = proxies.iter().enumerate().map(|(i, p)| format!("n{i}=redis://{}", p.address())).collect();
    let here = Instance::start(&config(&[], nodes)).await;
    let caller = async |form: &str| {
        let mut stream = TcpStream::connect(here.address).await.expect("loopback");
        let head = format!(
            "POST /locks HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/x-www-form-urlencoded\r\n\
             Content-Length: {}\r\n\r\n{form}",
            form.len()
        );
        stream.write_all(head.as_bytes()).await.expect("sent");
        stream
    };
    let held = here.acquire("a", &[("ttl", "60s")]).await;
    let waiting = caller("resource=a&resource=b&ttl=60s&wait=60s").await;
    here.until_waiting(1).await;
    let behind = here.queue("b", &[("ttl", "60s"), ("wait", "60s")]);
    here.until_waiting(2).await;
    drop(waiting);
    let behind = behind.await.expect("no panic");
    assert_eq!(behind.status, 201, "who stood behind it goes on: {behind:?}");
    assert_eq!(here.release("b", &behind).await + here.release("a", &held).await, 408);
    let slow = crate::support::chaos_proxy::Weather { to_client: Flow::Delay(Duration::from_millis(60)), ..FAIR };
    for round in 0..4 {
        proxies.iter().for_each(|proxy| proxy.set(slow));
        let tries = here.calls("acquire_set").await;
        let gone =
            caller(&format!("resource=a&resource=b&ttl=60s{}", if round % 2 == 0 { "&wait=60s" } else { "" })).await;
        poll::until("the nodes have it", || async {
            let counts = held_on(&cluster, &["a", "b"]).await;
            (counts.iter().sum::<usize>() > 0 || here.calls("acquire_set").await > tries).then_some(())
        })
        .await;
        drop(gone);
        proxies.iter().for_each(|proxy| proxy.set(FAIR));
        let next = acquire(&here, &["b", "a"], json!({ "wait": "20s" })).await;
        assert_eq!(next.status, 201, "round {round}: {next:?}");
        assert_eq!(release(&here, &["a", "b"], &next.token()).await.status, 200);
        until_nowhere(&cluster, &["a", "b"]).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_killed_instance_had_in_hand_ends_with_its_ttl() {
    use crate::support::cluster::Cluster as Processes;
    let cluster = Processes::start(3).await;
    let (mut first, second) = (cluster.service().await, cluster.service().await);
    let body = |i: usize| json!({ "resources": [format!("k/{i}"), format!("k/{}", i + 1)], "ttl": "1s", "wait": "2s" });
    let callers: Vec<_> = (0..24)
        .map(|i| {
            let request = first.client().request("POST", "/locks").json(&body(i));
            tokio::spawn(async move { request.send().await.map(drop) })
        })
        .collect();
    poll::until("some are granted", || async {
        let text = first.client().get("/metrics").await.text;
        let granted = text
            .lines()
            .find(|line| line.starts_with("redlockd_lock_acquire_total{mode=\"exclusive\",outcome=\"granted\"}"));
        granted.is_some_and(|line| !line.ends_with(" 0")).then_some(())
    })
    .await;
    first.service.kill();
    for caller in callers {
        let _ = caller.await.expect("no panic");
    }
    // TTL and lock delay are below two seconds: whatever was granted, half-granted or in flight is gone then.
    let all: Vec<String> = (0..16).map(|i| format!("k/{i}")).collect();
    let next = send(second.client().request("POST", "/locks").json(&json!({ "resources": all, "wait": "20s" }))).await;
    assert_eq!(next.status, 201, "{next:?}");
    assert!(next.took < Duration::from_secs(15), "{:?}", next.took);
}

#[tokio::test]
async fn names_need_the_right_and_leases_count_each() {
    let rules = ["acquire:a/**", "read:**"];
    let access = Access::with(&entry("ci", &[&key("ci")], &rules, "leases = 3"));
    let audit = tempfile::tempdir().expect("a directory");
    let log = audit.path().join("audit.jsonl");
    let setting = format!("audit_log={}", log.display());
    let service = access.service(&["--set", &setting]).await;
    let ask = async |method: &str, path: &str, body: Value, token: &str| {
        let request = service.client().request(method, path).bearer_auth(key("ci")).json(&body);
        send(if token.is_empty() { request } else { request.header("lock-token", token) }).await
    };
    let other = ask("POST", "/locks", json!({ "resources": ["a/1", "b/1"] }), "").await;
    let other = other.expect_problem(403, "forbidden");
    assert_eq!((&other.json()["resource"], &other.json()["needed"]), (&json!("b/1"), &json!("acquire")));
    let many = ask("POST", "/locks", json!({ "resources": ["a/1", "a/2", "a/3", "a/4"] }), "").await;
    many.expect_problem(429, "quota-exceeded");
    let two = ask("POST", "/locks", json!({ "resources": ["a/1", "a/2"] }), "").await.expect_status(201);
    ask("POST", "/locks", json!({ "resources": ["a/3", "a/4"] }), "").await.expect_problem(429, "quota-exceeded");
    for (method, path) in [("PATCH", "/locks?resource=a/1&resource=b/1"), ("DELETE", "/locks?resource=b/1")] {
        ask(method, path, json!({}), &two.token()).await.expect_problem(403, "forbidden");
    }
    ask("DELETE", "/locks?resource=a/1&resource=a/2", json!({}), &two.token()).await.expect_status(200);
    ask("POST", "/locks", json!({ "resources": ["a/3", "a/4"] }), "").await.expect_status(201);
    let lines = poll::until("the audit log has the last of them", || async {
        let text = std::fs::read_to_string(&log).unwrap_or_default();
        text.contains("\"a/4\",\"token_id\"").then_some(text)
    })
    .await;
    let records: Vec<Value> = lines.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    let of = |action: &str, outcome: &str| {
        let is = |r: &&Value| r["action"] == action && r["outcome"] == outcome;
        let named = records.iter().filter(is).map(|r| r["resource"].as_str().expect("a name").to_owned());
        named.collect::<Vec<_>>()
    };
    assert_eq!(of("acquire", "granted"), ["a/1", "a/2", "a/3", "a/4"], "a record for each: {lines}");
    assert_eq!(of("release", "released"), ["a/1", "a/2"]);
    assert_eq!(of("acquire", "forbidden"), ["a/1", "b/1"]);
    assert!(records.iter().filter(|r| r["outcome"] == "granted").all(|r| r["fence"].is_u64()), "{lines}");
}

/// Who holds each fork, and until when, as its caller may rely on it.
#[derive(Default)]
struct Table {
    forks: [Mutex<Option<(u64, BootTime)>>; 5],
    wrong: Mutex<Vec<String>>,
}

impl Table {
    fn take(&self, fork: usize, fence: u64, until: BootTime) {
        let mut place = self.forks[fork].lock();
        if let Some((other, other_until)) = place.filter(|(_, until)| SystemClock.now() < *until) {
            self.wrong
                .lock()
                .push(format!("fork {fork}: {fence} beside {other}, which holds it until {other_until:?}"));
        }
        *place = Some((fence, until));
    }

    /// Before its release is sent.
    fn give_back(&self, fork: usize, fence: u64) {
        let mut place = self.forks[fork].lock();
        if place.is_some_and(|(held, _)| held == fence) {
            *place = None;
        }
    }
}

/// Takes these forks again and again; how often, and the longest wait.
async fn dine(instance: Arc<Instance>, forks: Vec<usize>, table: Arc<Table>, end: BootTime) -> (u64, Duration) {
    let names: Vec<String> = forks.iter().map(|fork| format!("fork/{fork}")).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let (mut meals, mut longest) = (0, Duration::ZERO);
    while SystemClock.now() < end {
        let begun = SystemClock.now();
        let (token, fences, valid_ms) = if let [name] = names[..] {
            let lease = instance.acquire(name, &[("ttl", "10s"), ("wait", "30s")]).await;
            assert_eq!(lease.status, 201, "{lease:?}");
            (lease.token.clone(), vec![lease.fence], lease.body["valid_for_ms"].as_u64())
        } else {
            let set = acquire(&instance, &names, json!({ "ttl": "10s", "wait": "30s" })).await;
            let fences = set.body["leases"].as_array().unwrap_or_else(|| panic!("{names:?}: {set:?}"));
            let fences = fences.iter().map(|lease| lease["fence"].as_u64().expect("a fence")).collect();
            (set.token(), fences, set.body["valid_for_ms"].as_u64())
        };
        longest = longest.max(SystemClock.now().since(begun));
        // Counted from before the request: less than what is promised by the time that it waited.
        let until = begun.plus(Duration::from_millis(valid_ms.expect("a validity")));
        forks.iter().zip(&fences).for_each(|(fork, fence)| table.take(*fork, *fence, until));
        meals += 1;
        tokio::task::yield_now().await;
        forks.iter().zip(&fences).for_each(|(fork, fence)| table.give_back(*fork, *fence));
        let released = release(&instance, &names, &token).await;
        assert_eq!(released.status, 200, "{released:?}");
    }
    (meals, longest)
}

/// Five philosophers, each of whom takes the forks on both sides at once, in the order that is worst for a deadlock, over
/// two instances, and beside them callers of single forks: everybody eats, and nobody waits for long.
#[tokio::test(flavor = "multi_thread")]
async fn philosophers_of_two_instances_all_dine() {
    let seconds = std::env::var("DINING_SECONDS").ok().and_then(|text| text.parse().ok()).unwrap_or(4);
    let cluster = Cluster::of(3).await;
    let instances = [Arc::new(cluster.instance(&[]).await), Arc::new(cluster.instance(&[]).await)];
    let (table, end) = (Arc::new(Table::default()), SystemClock.now().plus(Duration::from_secs(seconds)));
    let sets = (0..5).map(|i| (i, vec![i, (i + 1) % 5]));
    let singles = [0, 3].map(|fork| (fork + 1, vec![fork]));
    let all = [(0, vec![4, 2, 0])];
    let guests = sets.chain(singles).chain(all).map(|(at, forks)| {
        let (instance, table) = (Arc::clone(&instances[at % 2]), Arc::clone(&table));
        tokio::spawn(async move { (forks.clone(), dine(instance, forks, table, end).await) })
    });
    let mut waits = Vec::new();
    for guest in join_all(guests).await {
        let (forks, (meals, longest)) = guest.expect("no panic");
        waits.push(format!("{forks:?}: {meals} meals, at most {longest:?}"));
        assert!(meals > 0 && longest < Duration::from_secs(15), "{waits:#?}");
    }
    #[expect(clippy::print_stdout, reason = "what was measured, for --nocapture")]
    waits.iter().for_each(|line| println!("{line}"));
    assert_eq!(*table.wrong.lock(), Vec::<String>::new());
    until_nowhere(&cluster, &["fork/0", "fork/1", "fork/2", "fork/3", "fork/4"]).await;
}

#[tokio::test]
async fn hostile_requests_are_answered_naming_the_field() {
    let service = crate::support::service::Service::start(&SHORT_TIMES).await;
    let many: Vec<String> = (0..17).map(|i| format!("r{i}")).collect();
    let ask = async |body: Value| send(service.client().request("POST", "/locks").json(&body)).await;
    for (body, field) in [
        (json!({ "resources": many }), "resources"),
        (json!({ "resources": ["a", "a"] }), "resources"),
        (json!({ "resources": ["a", "../b"] }), "resources"),
        (json!({ "resources": ["a", "x".repeat(256)] }), "resources"),
        (json!({ "resources": ["a", null] }), "resources"),
        (json!({ "resources": { "a": "b" } }), "resources"),
        (json!({ "resources": ["a", "b"], "hold": true }), "hold"),
        (json!({ "resources": ["a", "b"], "limit": 3 }), "limit"),
        (json!({ "resources": ["a", "b"], "ttl": 30 }), "ttl"),
        (json!({}), "resource"),
    ] {
        let answer = ask(body.clone()).await.expect_problem(400, "invalid");
        assert_eq!(answer.json()["errors"][0]["field"], field, "{body}");
    }
    let in_url = service.client().request("DELETE", "/locks?resource=a&token=8fJ2kQ0wYb7Lr5VxTn3cZg");
    send(in_url).await.expect_problem(400, "token-in-url");
    let text = service.client().request("POST", "/locks").header("accept", "text/plain");
    let text = send(text.form(&[("resource", "a"), ("resource", "b"), ("ttl", "30s")])).await.expect_status(201);
    assert_eq!(text.text, format!("{}\n", text.token()));
    let lines = service.client().request("DELETE", "/locks?resource=a&resource=b").header("accept", "text/plain");
    assert_eq!(send(lines.header("lock-token", text.token())).await.text, "a\t204\nb\t204\n");
}

/// Runs a program that uses a client of this repository.
fn runs(program: &str, args: &[&str], url: &str) {
    let clients = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("clients");
    let output = std::process::Command::new(program)
        .args(args)
        .env("REDLOCKD_URL", url)
        .current_dir(clients)
        .output()
        .expect("it runs");
    let text = |bytes| String::from_utf8_lossy(bytes).into_owned();
    assert!(output.status.success(), "{program}: {}{}", text(&output.stdout), text(&output.stderr));
}

const PYTHON: &str = "
import sys; sys.path.insert(0, 'python')
import redlockd
with redlockd.lock(['c/1', 'c/2'], ttl=5) as lock:
    assert lock.fence is None and set(lock.fences) == {'c/1', 'c/2'}, lock.fences
    lock.extend()
    lock.check()
    holder = redlockd.Client().inspect('c/2')['holders'][0]
    assert holder['fence'] == lock.fences['c/2'], holder
    try:
        redlockd.lock(['c/2', 'c/3']).acquire()
    except redlockd.Held:
        pass
    else:
        raise AssertionError('it is held')
assert redlockd.Client().inspect('c/1') is None and redlockd.Client().inspect('c/3') is None
";

const NODE: &str = "
import { Client, Held } from './node/redlockd.mjs'
import assert from 'node:assert'
const client = new Client()
const lock = await client.lock(['c/1', 'c/2'], { ttl: '5s' })
assert.deepEqual([...lock.fences.keys()], ['c/1', 'c/2'])
await lock.extend()
lock.check()
assert.equal((await client.inspect('c/2')).holders[0].fence, lock.fences.get('c/2'))
await assert.rejects(client.lock(['c/2', 'c/3']), Held)
await lock.release()
assert.equal(await client.inspect('c/1'), null)
";

#[tokio::test(flavor = "multi_thread")]
async fn the_clients_take_several_locks() {
    let service = crate::support::service::Service::start(&[] as &[&str]).await;
    let url = service.client().base().to_owned();
    runs("python3", &["-c", PYTHON], &url);
    if crate::support::programs::has("node") {
        runs("node", &["--input-type=module", "-e", NODE], &url);
    }
}
