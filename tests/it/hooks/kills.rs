//! kill -9 of the instance that serves a ticket, at sixteen points. The proxies before the nodes let its requests through up to one that
//! still reaches so many nodes, and hold back everything from then on; what nodes and receiver show after the kill is the point.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use redlockd::protocol::commands::all_scripts;
use redlockd::redlock::clock::{Clock, SystemClock};
use redlockd::types::Token;
use serde_json::json;

use super::receiver::{HooksFile, Receiver, target};
use crate::support::client::{lock, send, try_send};
use crate::support::cluster::{Cluster, ServiceOver};
use crate::support::poll;
use crate::tickets::SETTINGS;

const OWN: &str = "token-of-a-ticket-0123456789";
/// What is promised for a take-over, and what a busy machine needs beyond that.
const TAKEN_OVER: Duration = Duration::from_secs(60);

/// A request to a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Sent {
    Put,
    Acquire,
    /// A state of the ticket: 1 granted, 2 accepted, 3 ended, 4 done.
    Raise(u8),
    /// The lease has an end from then on.
    Keep,
}

impl Sent {
    fn is_in(self, bytes: &[u8]) -> bool {
        let (text, scripts) = (String::from_utf8_lossy(bytes), all_scripts());
        match self {
            Self::Put => text.contains("\r\nput\r\n$35\r\ntk_"),
            // Of all scripts, the first acquires an exclusive lease, and the sixth updates it.
            Self::Acquire => text.contains(scripts[0].sha()),
            Self::Keep => text.contains(scripts[5].sha()) && text.contains("\"k\":"),
            Self::Raise(state) => {
                let raised = text.split("\r\nraise\r\n$35\r\ntk_").nth(1);
                raised
                    .and_then(|text| text.split("\r\n").nth(2))
                    .is_some_and(|head| head.starts_with(&state.to_string()))
            }
        }
    }
}

/// What can be seen from outside.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Shown {
    /// The state of the ticket on each node; `-` where it has none.
    heads: String,
    /// On how many nodes its lease stands, and on how many of them it is kept.
    leases: usize,
    kept: usize,
    /// How often the receiver was called, and how often it answered.
    called: usize,
    answered: usize,
}

/// What the instance sent last, to how many of three nodes, and what is shown then.
#[derive(Debug, Clone, Copy)]
struct Point(Option<(Sent, usize)>, &'static str, [usize; 4]);

impl Point {
    fn shown(self) -> Shown {
        let Self(_, heads, [leases, kept, called, answered]) = self;
        Shown { heads: heads.to_owned(), leases, kept, called, answered }
    }

    /// The ticket is answered by 202.
    fn is_made(self) -> bool {
        !matches!(self.0, Some((Sent::Put, _)))
    }

    /// The lock is given back before the kill, at the instance that ends.
    fn is_given_back(self) -> bool {
        matches!(self.0, Some((Sent::Raise(3 | 4), _)))
    }

    /// The lock was free before the kill.
    fn is_free(self) -> bool {
        self.is_made() && self.1 != WAITING.1 || self.2[0] > 0
    }

    fn is_silent(self) -> bool {
        self.2[2] > self.2[3]
    }
}

const WAITING: Point = Point(None, "000", [0, 0, 0, 0]);

const POINTS: [Point; 16] = [
    Point(Some((Sent::Put, 1)), "0--", [0, 0, 0, 0]),
    Point(Some((Sent::Put, 2)), "00-", [0, 0, 0, 0]),
    WAITING,
    Point(Some((Sent::Acquire, 1)), "000", [1, 0, 0, 0]),
    Point(Some((Sent::Acquire, 3)), "000", [3, 0, 0, 0]),
    Point(Some((Sent::Raise(1), 1)), "100", [3, 0, 0, 0]),
    Point(Some((Sent::Raise(1), 2)), "110", [3, 0, 0, 0]),
    Point(Some((Sent::Keep, 0)), "111", [3, 0, 0, 0]),
    Point(Some((Sent::Keep, 2)), "111", [3, 2, 0, 0]),
    Point(None, "111", [3, 3, 1, 0]),
    Point(Some((Sent::Raise(2), 0)), "111", [3, 3, 1, 1]),
    Point(Some((Sent::Raise(2), 1)), "211", [3, 3, 1, 1]),
    Point(Some((Sent::Raise(2), 2)), "221", [3, 3, 1, 1]),
    Point(Some((Sent::Raise(3), 2)), "332", [3, 3, 1, 1]),
    Point(Some((Sent::Raise(4), 0)), "333", [0, 0, 1, 1]),
    Point(Some((Sent::Raise(4), 1)), "433", [0, 0, 1, 1]),
];

#[test]
fn no_two_points_show_the_same() {
    assert_eq!(POINTS.iter().map(|point| point.shown()).collect::<HashSet<_>>().len(), POINTS.len());
}

/// The one ticket that a node has.
async fn id_of(cluster: &Cluster) -> String {
    poll::until("a node has the ticket", || async {
        for server in &cluster.servers {
            let keys: Vec<String> = server.ask(&["KEYS", "redlockd:ticket:tk_*"]).await;
            if let [key] = keys.as_slice() {
                return Some(key.trim_start_matches("redlockd:ticket:").to_owned());
            }
        }
        None
    })
    .await
}

async fn shown(cluster: &Cluster, receiver: &Receiver, id: &str) -> Shown {
    let hash = Token::parse(OWN).expect("a token").hash();
    let (called, answered) = (receiver.received().len(), receiver.answered());
    let mut shown = Shown { heads: String::new(), leases: 0, kept: 0, called, answered };
    for server in &cluster.servers {
        let head: Option<String> = server.ask(&["GET", &format!("redlockd:ticket:{id}")]).await;
        shown.heads.push(head.and_then(|head| head.chars().next()).unwrap_or('-'));
        let lease: Option<String> = server.ask(&["GET", "x"]).await;
        let own = lease.filter(|lease| lease.starts_with(hash.as_str()));
        shown.leases += usize::from(own.is_some());
        shown.kept += usize::from(own.is_some_and(|lease| lease.contains("\"k\":")));
    }
    shown
}

/// Has the proxies stop there. How often the instance has tried to acquire; and what is to be set before it may be stopped.
fn stop_at(over: &ServiceOver, point: Point) -> (Arc<AtomicUsize>, Arc<AtomicBool>) {
    let (attempts, is_armed) = (Arc::<AtomicUsize>::default(), Arc::<AtomicBool>::default());
    for (index, proxy) in over.proxies.iter().enumerate() {
        let (attempts, is_armed) = (Arc::clone(&attempts), Arc::clone(&is_armed));
        let is_it = move |bytes: &[u8]| {
            attempts.fetch_add(usize::from(Sent::Acquire.is_in(bytes)), Ordering::Relaxed);
            point.0.is_some_and(|(sent, _)| sent.is_in(bytes)) && (!point.is_made() || is_armed.load(Ordering::Relaxed))
        };
        proxy.stop_at(is_it, point.0.is_some_and(|(_, nodes)| index < nodes));
    }
    (attempts, is_armed)
}

async fn survives(point: Point) {
    let receiver = Receiver::start().await;
    receiver.set_silent(point.is_silent());
    let file = HooksFile::with(&target("n8n", &receiver, ""));
    let (cluster, setting) = (Cluster::blank(3).await, file.setting());
    cluster.declare(&SETTINGS);
    let settings = [&SETTINGS[..], &["--set", &setting]].concat();
    let (mut here, there) = (cluster.service_with(&settings).await, cluster.service_with(&settings).await);
    // No attempt is due because this one might have ended.
    let held = there.client().acquired("x", &[("ttl", "40s")]).await.token();
    let (attempts, is_armed) = stop_at(&here, point);
    let fields = [("token", OWN), ("callback", "target:n8n"), ("keep", "1m"), ("wait", "5m"), ("accept", "10m")];
    let asked = tokio::spawn(try_send(here.client().request("POST", &lock("x")).form(&fields)));
    let id = id_of(&cluster).await;
    let path = format!("/tickets/{id}");
    if point.is_made() {
        let made = asked.await.expect("no panic").expect("an answer").expect_status(202).json();
        assert_eq!(made["ticket"], json!(id), "{made}");
        // Once at first, and once more when it is informed of releases.
        poll::until_true("it waits", || attempts.load(Ordering::Relaxed) >= 6).await;
        is_armed.store(true, Ordering::Relaxed);
    }
    if point.is_free() {
        there.client().release("x", &held).await.expect_status(204);
    }
    let mut giving_back = None;
    if point.is_given_back() {
        poll::until("it is accepted", || async {
            (here.client().get(&path).await.json()["state"] == "accepted").then_some(())
        })
        .await;
        giving_back = Some(tokio::spawn(try_send(here.client().request("DELETE", &path))));
    }
    poll::until(&format!("{point:?} is reached"), || async {
        let is_stopped = point.0.is_none() || here.proxies.iter().all(|proxy| proxy.is_stopped());
        (is_stopped && shown(&cluster, &receiver, &id).await == point.shown()).then_some(())
    })
    .await;
    here.service.kill();
    assert_eq!(shown(&cluster, &receiver, &id).await, point.shown(), "it fell there");
    if let Some(giving_back) = giving_back {
        let answer = giving_back.await.expect("no panic");
        assert!(!answer.is_ok_and(|answer| answer.status == 204), "{point:?}: it was answered");
    }
    receiver.set_silent(false);
    if !point.is_free() {
        there.client().release("x", &held).await.expect_status(204);
    }
    if point.1 == "0--" {
        // A minority has it: that is no ticket, and the same request makes it.
        there.client().get(&path).await.expect_problem(404, "not-found");
        send(there.client().request("POST", &lock("x")).form(&fields)).await.expect_status(202);
    }
    is_served_once(&there, &receiver, &id, point).await;
}

/// The other instance completes what was begun; nothing is left in the end.
async fn is_served_once(there: &ServiceOver, receiver: &Receiver, id: &str, point: Point) {
    let (client, path, begun) = (there.client(), format!("/tickets/{id}"), SystemClock.now());
    let wanted = if point.is_given_back() { "ended" } else { "accepted" };
    let now = poll::until_over(
        &format!("{point:?}: the ticket is {wanted}"),
        || SystemClock.now().since(begun) > TAKEN_OVER,
        || async {
            let shown = client.get(&path).await;
            (shown.status == 200).then(|| shown.json()).filter(|shown| shown["state"] == wanted)
        },
    )
    .await;
    let calls = receiver.received();
    assert!(!calls.is_empty(), "{point:?}: at least one call-back");
    let fence = calls[0].json()["data"]["fence"].clone();
    for call in &calls {
        let (kind, shown) = (call.kind(), call.json()["data"]["fence"].clone());
        assert_eq!((kind.as_str(), &shown), ("lock.granted", &fence), "{point:?}: one lease");
        assert_eq!(call.header("webhook-id"), format!("{id}_granted"), "{point:?}");
    }
    if point.is_given_back() {
        assert_eq!(now["ended_by"], "released", "{point:?}: {now}");
    } else {
        let shown = client.inspect("x").await.expect_status(200).json();
        let holder = &shown["holders"][0];
        assert_eq!((&holder["token_id"], &holder["fence"]), (&now["token_id"], &fence), "{point:?}: {shown}");
        assert!(holder["kept_until"].is_string(), "{point:?}: {shown}");
        send(client.request("DELETE", &path)).await.expect_status(204);
    }
    let next = poll::until_over(
        &format!("{point:?}: the lock is free"),
        || SystemClock.now().since(begun) > TAKEN_OVER,
        || async {
            let next = client.acquire("x", &[]).await;
            (next.status == 201).then(|| next.json()["fence"].as_u64())
        },
    )
    .await;
    assert!(next > fence.as_u64(), "{point:?}: {fence}");
    poll::until("no ticket is left to be served", || async {
        let metrics = client.get("/metrics").await.text;
        let is_none = |state: &&str| metrics.contains(&format!("redlockd_tickets{{state=\"{state}\"}} 0"));
        ["waiting", "granted", "accepted", "ending"].iter().all(is_none).then_some(())
    })
    .await;
}

macro_rules! kills {
    ($($name:ident $from:literal;)*) => {
        $(#[tokio::test(flavor = "multi_thread")]
        async fn $name() {
            for point in &POINTS[$from..$from + 4] {
                survives(*point).await;
            }
        })*
    };
}

// Four at a time, so that they run beside each other.
kills! {
    a_kill_before_the_grant_leaves_one_lease 0;
    a_kill_about_the_grant_leaves_one_lease 4;
    a_kill_about_the_call_back_leaves_one_lease 8;
    a_kill_as_it_is_given_back_leaves_nothing 12;
}
