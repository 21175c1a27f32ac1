//! Tickets: a lease for callers who do not wait on the line. Whoever dies in between, each ticket has one lease.

use std::time::Duration;

use redlockd::redlock::clock::{Clock, SystemClock};
use serde_json::{Value, json};

use crate::access::{Access, as_principal};
use crate::support::client::{Answer, Client, lock, send};
use crate::support::cluster::{Cluster, ServiceOver};
use crate::support::poll;
use crate::support::service::Service;

/// Leases that are long enough for another instance to take over, and nodes that may be slow, on a busy machine.
pub const SETTINGS: [&str; 12] = [
    "--set",
    "max_ttl=40s",
    "--set",
    "default_ttl=5s",
    "--set",
    "node_timeout=2s",
    "--set",
    "min_ttl=4s",
    "--set",
    "guard=3s",
    "--set",
    "lock_delay=6s",
];

async fn cluster() -> Cluster {
    let cluster = Cluster::blank(3).await;
    cluster.declare(&SETTINGS);
    cluster
}
/// What is promised for a take-over, and what a busy machine needs beyond that.
const TAKEN_OVER: Duration = Duration::from_secs(15 + 20);

async fn ask(client: &Client, resource: &str, fields: &[(&str, &str)]) -> Answer {
    let fields = [&[("async", "true"), ("keep", "1m")], fields].concat();
    client.acquire(resource, &fields).await
}

/// A ticket that waits.
async fn ticket(client: &Client, resource: &str, fields: &[(&str, &str)]) -> Value {
    let answer = ask(client, resource, fields).await.expect_status(202);
    let body = answer.json();
    assert_eq!(answer.header("location"), format!("/tickets/{}", body["ticket"].as_str().expect("an id")));
    assert_eq!(answer.header("lock-token"), body["token"].as_str().expect("a token"));
    body
}

fn id(ticket: &Value) -> String {
    format!("/tickets/{}", ticket["ticket"].as_str().expect("an id"))
}

async fn state(client: &Client, ticket: &Value) -> Value {
    client.get(&id(ticket)).await.expect_status(200).json()
}

/// Waits for the ticket, as a client does whose requests end before proxies lose patience.
async fn granted(client: &Client, ticket: &Value) -> Value {
    let begun = SystemClock.now();
    loop {
        let shown = client.get(&format!("{}?wait=5s", id(ticket))).await;
        if shown.status == 200 {
            let shown = shown.json();
            if shown["state"] != "waiting" {
                return shown;
            }
        }
        assert!(SystemClock.now().since(begun) < TAKEN_OVER + Duration::from_secs(30), "it waits still");
    }
}

#[tokio::test]
async fn a_ticket_waits_by_itself_and_its_first_answer_accepts_it() {
    let cluster = cluster().await;
    let over = cluster.service_with(&SETTINGS).await;
    let client = over.client();
    let free = ask(client, "free", &[]).await.expect_status(201).json();
    assert!(free["kept_until"].is_string(), "granted in the first round: {free}");
    let held = client.acquired("x", &[("keep", "1m")]).await;
    let first = ticket(client, "x", &[("owner", "a"), ("metadata", "{\"run\":\"17\"}")]).await;
    let second = ticket(client, "x", &[("owner", "b"), ("wait", "3h")]).await;
    assert_eq!((&first["state"], &first["position"]), (&json!("waiting"), &json!(1)), "{first}");
    assert_eq!((&second["position"], &second["owner"]), (&json!(2), &json!("b")), "{second}");
    assert_eq!(state(client, &first).await["metadata"]["run"], "17");
    assert_eq!(client.inspect("x").await.json()["waiters"][0]["owner"], "a");
    // An operator who looks for requests that wait for long is not shown those that may wait for hours.
    poll::until("its time is measured", || async {
        let metrics = client.get("/metrics").await.text;
        let is_counted = !metrics.contains("\nredlockd_ticket_oldest_wait_seconds 0\n");
        is_counted.then(|| assert!(metrics.contains("\nredlockd_lock_oldest_wait_seconds 0\n"), "{metrics}"))
    })
    .await;
    // It has no lease.
    let token = first["token"].as_str().expect("a token");
    client.extend("x", token, &[]).await.expect_status(409);
    client.release("x", &held.token()).await.expect_status(204);
    let now = granted(client, &first).await;
    assert_eq!((&now["state"], &now["owner"]), (&json!("granted"), &json!("a")), "{now}");
    assert!(now["fence"].as_u64() > Some(held.fence()), "{now}");
    assert!(now["kept_for_ms"].as_u64().is_some_and(|ms| ms > 20_000), "{now}");
    assert_eq!(state(client, &first).await["state"], "accepted");
    client.extend("x", token, &[]).await.expect_status(200);
    assert_eq!(state(client, &second).await["position"], 1);
    client.release("x", token).await.expect_status(204);
    assert_eq!(granted(client, &second).await["state"], "granted");
    let ended = state(client, &first).await;
    assert_eq!((&ended["state"], &ended["ended_by"]), (&json!("ended"), &json!("released")), "{ended}");
    let metrics = client.get("/metrics").await.text;
    assert!(metrics.contains("redlockd_tickets_granted_total 2"), "{metrics}");
}

#[tokio::test]
async fn the_same_token_has_the_same_ticket_anywhere() {
    let cluster = cluster().await;
    let (here, there) = (cluster.service_with(&SETTINGS).await, cluster.service_with(&SETTINGS).await);
    let held = here.client().acquired("x", &[("keep", "1m")]).await;
    let own = [("token", "my-own-token-0123456789"), ("owner", "ci")];
    let first = ticket(here.client(), "x", &own).await;
    assert_eq!(ticket(there.client(), "x", &own).await["ticket"], first["ticket"]);
    assert_eq!(ticket(here.client(), "x", &own).await["ticket"], first["ticket"]);
    assert_eq!(here.client().waiting("x").await, 1, "it stands in one queue");
    let path = format!("{}?wait=30s", id(&first));
    let waiting = there.client().get(&path);
    let release = async { here.client().release("x", &held.token()).await.expect_status(204) };
    let (shown, _) = tokio::join!(waiting, release);
    assert_eq!(shown.json()["state"], "granted", "another instance shows it: {}", shown.text);
    let again = ask(there.client(), "x", &own).await.expect_status(200).json();
    assert_eq!((&again["ticket"], &again["state"]), (&first["ticket"], &json!("accepted")), "{again}");
    // Of another name, the token has another one.
    here.client().acquired("y", &[("keep", "1m")]).await;
    assert_ne!(ticket(here.client(), "y", &own).await["ticket"], first["ticket"]);
}

#[tokio::test]
async fn a_ticket_is_ended_and_kept_without_its_token() {
    let cluster = cluster().await;
    let (here, there) = (cluster.service_with(&SETTINGS).await, cluster.service_with(&SETTINGS).await);
    let held = here.client().acquired("x", &[("keep", "1m")]).await;
    let (first, second) = (ticket(here.client(), "x", &[]).await, ticket(here.client(), "x", &[]).await);
    let delete = |client: &Client, ticket: &Value| send(client.request("DELETE", &id(ticket)));
    let keep = |client: &Client, ticket: &Value, fields: &'static [(&'static str, &'static str)]| {
        send(client.request("PATCH", &id(ticket)).form(fields))
    };
    keep(here.client(), &first, &[("keep", "2m")]).await.expect_problem(409, "ticket-waiting");
    delete(there.client(), &first).await.expect_status(204);
    let again = delete(here.client(), &first).await.expect_problem(410, "ticket-ended").json();
    assert_eq!(again["ended_by"], "cancelled", "{again}");
    poll::until("the other instance knows", || async { (here.client().waiting("x").await == 1).then_some(()) }).await;
    here.client().release("x", &held.token()).await.expect_status(204);
    granted(there.client(), &second).await;
    keep(there.client(), &second, &[]).await.expect_problem(400, "invalid");
    keep(there.client(), &second, &[("keep", "25h")]).await.expect_problem(400, "keep-too-long");
    let longer = keep(there.client(), &second, &[("keep", "10m")]).await.expect_status(200).json();
    assert!(longer["kept_for_ms"].as_u64().is_some_and(|ms| ms > 500_000), "{longer}");
    delete(there.client(), &second).await.expect_status(204);
    here.client().acquired("x", &[]).await;
    assert_eq!(state(here.client(), &second).await["ended_by"], "released");
}

#[tokio::test]
async fn every_end_of_a_lease_ends_its_ticket() {
    let cluster = cluster().await;
    let over = cluster.service_with(&SETTINGS).await;
    let client = over.client();
    for (how, said) in [("release", "released"), ("now", "forced"), ("keep", "kept-out")] {
        let held = client.acquired(how, &[("keep", "1m")]).await;
        let mine = match how {
            "keep" => {
                let fields = [("async", "true"), ("keep", "4s")];
                client.acquire(how, &fields).await.expect_status(202).json()
            }
            _ => ticket(client, how, &[]).await,
        };
        client.release(how, &held.token()).await.expect_status(204);
        assert_eq!(granted(client, &mine).await["state"], "granted", "{how}");
        match how {
            "release" => drop(client.release(how, mine["token"].as_str().expect("a token")).await.expect_status(204)),
            "now" => {
                let path = format!("{}?force=now&reason=over", lock(how));
                send(client.request("DELETE", &path)).await.expect_status(204);
            }
            _ => {}
        }
        let ended = poll::until("it is over", || async {
            let shown = state(client, &mine).await;
            (shown["state"] == "ended").then_some(shown)
        })
        .await;
        assert_eq!(ended["ended_by"], said, "{ended}");
    }
    let held = client.acquired("wait", &[("keep", "1m")]).await;
    let brief = ticket(client, "wait", &[("wait", "1s")]).await;
    let ended = granted(client, &brief).await;
    assert_eq!((&ended["state"], &ended["ended_by"]), (&json!("ended"), &json!("wait-timeout")), "{ended}");
    client.release("wait", &held.token()).await.expect_status(204);
    client.acquired("wait", &[]).await;
}

#[tokio::test]
async fn the_newest_of_a_deadlock_ends_if_it_asked_for_that() {
    let cluster = cluster().await;
    let over = cluster.service_with(&SETTINGS).await;
    let client = over.client();
    client.acquired("x", &[("keep", "1m"), ("owner", "ann")]).await;
    client.acquired("y", &[("keep", "1m"), ("owner", "bob")]).await;
    let first = ticket(client, "y", &[("owner", "ann")]).await;
    let newest = ticket(client, "x", &[("owner", "bob"), ("on_deadlock", "refuse")]).await;
    let ended = granted(client, &newest).await;
    assert_eq!((&ended["state"], &ended["ended_by"]), (&json!("ended"), &json!("deadlock")), "{ended}");
    assert_eq!(state(client, &first).await["state"], "waiting");
    poll::until("it is counted", || async {
        let metrics = client.get("/metrics").await.text;
        metrics.contains("redlockd_ticket_ends_total{reason=\"deadlock\"} 1").then_some(())
    })
    .await;
}

/// Nobody ends its lease: the nodes have lost it, and its keeper notices. Nobody asks for the ticket before.
#[tokio::test]
async fn a_ticket_whose_lease_is_lost_says_so() {
    let cluster = cluster().await;
    let over = cluster.service_with(&SETTINGS).await;
    let client = over.client();
    let held = client.acquired("x", &[("keep", "1m")]).await;
    let mine = ticket(client, "x", &[("ttl", "5s"), ("owner", "ann")]).await;
    client.release("x", &held.token()).await.expect_status(204);
    assert_eq!(granted(client, &mine).await["state"], "granted");
    for server in &cluster.servers {
        server.ask::<()>(&["DEL", "x"]).await;
    }
    let lost = poll::until("the loss is reported", || async {
        client.get("/events?kind=lost&since=1m").await.json()["events"].as_array()?.first().cloned()
    })
    .await;
    assert_eq!((&lost["reason"], &lost["owner"]), (&json!("lost"), &json!("ann")), "{lost}");
    let ended = poll::until("it is over", || async {
        let shown = state(client, &mine).await;
        (shown["state"] == "ended").then_some(shown)
    })
    .await;
    assert_eq!(ended["ended_by"], "lost", "{ended}");
    let text = client.get("/metrics").await.text;
    assert!(!text.contains("redlockd_lock_kept_ends_total{reason=\"lost\"} 0"), "{text}");
    client.acquired("x", &[]).await;
}

/// The instance that takes a ticket over counts it for the principal that made it.
#[tokio::test]
async fn a_ticket_that_is_taken_over_counts_for_its_principal() {
    let access = Access::of(&[("ann", &["acquire:**"])]);
    let (cluster, setting) = (cluster().await, access.setting());
    let settings = [&SETTINGS[..], &["--set", &setting, "--set", "waiters_per_principal=1"]].concat();
    let (mut here, there) = (cluster.service_with(&settings).await, cluster.service_with(&settings).await);
    let post =
        |client: &Client, fields: &[(&str, &str)]| as_principal(client.request("POST", &lock("x")).form(fields), "ann");
    post(there.client(), &[("keep", "5m")]).await.expect_status(201);
    let fields = [("async", "true"), ("keep", "1m")];
    let made = post(here.client(), &fields).await.expect_status(202).json();
    here.service.kill();
    let begun = SystemClock.now();
    let get = || as_principal(there.client().request("GET", &format!("{}?wait=1s", id(&made))), "ann");
    poll::until_over(
        "it is taken over",
        || SystemClock.now().since(begun) > TAKEN_OVER,
        || async { (get().await.json()["position"] == 1).then_some(()) },
    )
    .await;
    post(there.client(), &fields).await.expect_problem(429, "quota-exceeded");
    as_principal(there.client().request("DELETE", &id(&made)), "ann").await.expect_status(204);
    poll::until("it counts no more", || async { (post(there.client(), &fields).await.status == 202).then_some(()) })
        .await;
}

#[tokio::test]
async fn tickets_are_for_shared_leases_and_permits_too() {
    let service = Service::embedded(&[]).await;
    let client = service.client();
    let held = client.acquired("x", &[("keep", "1m")]).await;
    let readers = [ticket(client, "x", &[("mode", "shared")]).await, ticket(client, "x", &[("mode", "shared")]).await];
    client.release("x", &held.token()).await.expect_status(204);
    for reader in &readers {
        assert_eq!(granted(client, reader).await["state"], "granted");
    }
    let shown = client.inspect("x").await.expect_status(200).json();
    assert_eq!((&shown["mode"], shown["holders"].as_array().map(Vec::len)), (&json!("shared"), Some(2)), "{shown}");
    for reader in &readers {
        assert_eq!(state(client, reader).await["state"], "accepted");
        client.release("x", reader["token"].as_str().expect("a token")).await.expect_status(204);
        assert_eq!(granted(client, reader).await["ended_by"], "released");
    }
    let two = [("limit", "2"), ("keep", "1m")];
    let holders = [client.acquired("p", &two).await, client.acquired("p", &two).await];
    let third = ticket(client, "p", &[("limit", "2")]).await;
    client.release("p", &holders[1].token()).await.expect_status(204);
    assert_eq!(granted(client, &third).await["state"], "granted");
    let shown = client.inspect("p").await.expect_status(200).json();
    let own = shown["holders"].as_array().and_then(|all| all.iter().find(|one| one["token_id"] == third["token_id"]));
    assert_eq!(own.map(|one| &one["slot"]), Some(&holders[1].json()["slot"]), "{shown}");
    let said = state(client, &third).await;
    assert_eq!(
        [&third["mode"], &third["limit"], &third["slot"], &said["mode"], &said["limit"], &said["slot"]],
        [&json!("permit"), &json!(2), &Value::Null, &json!("permit"), &json!(2), &holders[1].json()["slot"]],
        "{said}"
    );
    let text = send(client.request("GET", &id(&third)).header("accept", "text/plain")).await.text;
    assert!(text.contains("mode=permit\nlimit=2\nslot="), "{text}");
    ask(client, "p", &[("limit", "3")]).await.expect_problem(409, "limit-differs");
}

#[tokio::test]
async fn tickets_are_seen_and_ended_by_those_who_may() {
    let access = Access::of(&[
        ("ann", &["acquire:**"]),
        ("bob", &["read:**"]),
        ("carl", &["acquire:other/**"]),
        ("dora", &["force:**"]),
    ]);
    let service = access.service(&[]).await;
    let client = service.client();
    let post = |name: &'static str, fields: &[(&str, &str)]| {
        as_principal(client.request("POST", &lock("x")).form(fields), name)
    };
    post("ann", &[("keep", "1m")]).await.expect_status(201);
    let fields = [("keep", "1m"), ("async", "true"), ("owner", "secretive"), ("token", "anns-own-token-0123456789")];
    let made = post("ann", &fields).await.expect_status(202).json();
    let get = |name: &'static str| as_principal(client.request("GET", &id(&made)), name);
    assert_eq!(get("ann").await.json()["owner"], "secretive", "whoever made it");
    let reduced = get("bob").await.expect_status(200).json();
    assert_eq!((reduced.get("owner"), reduced.get("metadata"), reduced.get("note")), (None, None, None), "{reduced}");
    get("carl").await.expect_problem(404, "not-found");
    let with_token = client.request("GET", &id(&made)).header("lock-token", made["token"].as_str().expect("text"));
    assert_eq!(as_principal(with_token, "carl").await.json()["owner"], "secretive", "whoever has its token");
    let with_token = client.request("DELETE", &id(&made)).header("lock-token", made["token"].as_str().expect("text"));
    as_principal(with_token, "carl").await.expect_problem(403, "forbidden");
    client.get(&id(&made)).await.expect_status(401);
    let delete = |name: &'static str| as_principal(client.request("DELETE", &id(&made)), name);
    let refused = delete("bob").await.expect_problem(403, "forbidden").json();
    assert_eq!(refused["needed"], "force", "{refused}");
    delete("carl").await.expect_problem(404, "not-found");
    delete("dora").await.expect_status(204);
    delete("ann").await.expect_problem(410, "ticket-ended");
    for other in ["/tickets/x", "/tickets/tk_00000000000000000000000000000000", "/tickets/", "/tickets/a%2Fb"] {
        as_principal(client.request("GET", other), "ann").await.expect_problem(404, "not-found");
    }
}

#[tokio::test]
async fn what_is_not_possible_is_refused_by_name() {
    let more = ["--set", "tickets_total=1", "--set", "max_ticket_wait=2h"];
    let service = Service::embedded(&more).await;
    let client = service.client();
    for (fields, field) in [
        (&[("async", "true")][..], "keep"),
        (&[("async", "perhaps"), ("keep", "1m")], "async"),
        (&[("async", "true"), ("keep", "1m"), ("hold", "true")], "hold"),
        (&[("async", "true"), ("keep", "1m"), ("wait", "3h")], "wait"),
        (&[("async", "true"), ("keep", "1m"), ("wait", "0s")], "wait"),
        (&[("async", "true"), ("keep", "1m"), ("wait_id", "0123456789abcdef")], "wait_id"),
    ] {
        let refused = client.acquire("x", fields).await.expect_problem(400, "invalid").json();
        let errors = refused["errors"].as_array().expect("a list");
        assert!(errors.iter().any(|e| e["field"] == field), "{refused}");
    }
    client.acquired("x", &[("keep", "1m")]).await;
    let preferred =
        client.request("POST", &lock("x")).header("prefer", "respond-async, wait=5").form(&[("keep", "1m")]);
    let made = send(preferred).await.expect_status(202).json();
    let many = ask(client, "x", &[]).await.expect_problem(429, "too-many-waiters").json();
    assert_eq!((&many["limit"], &many["scope"]), (&json!(1), &json!("instance")), "{many}");
    client.get(&format!("{}?wait=6m", id(&made))).await.expect_problem(400, "invalid");
    client.get(&format!("{}?x=1", id(&made))).await.expect_problem(400, "invalid");
    let text = send(client.request("GET", &id(&made)).header("accept", "text/plain")).await.text;
    assert!(text.contains("state=waiting\n") && text.contains("position=1\n"), "{text}");
}

/// Kills the instance that serves a ticket after a while, which differs by point; another one serves it then.
async fn survives_a_kill(point: u32) {
    let cluster = cluster().await;
    let (mut here, there) = (cluster.service_with(&SETTINGS).await, cluster.service_with(&SETTINGS).await);
    let name = "x";
    let held = there.client().acquired(name, &[("keep", "1m")]).await;
    let mine = ticket(here.client(), name, &[("owner", "mine")]).await;
    let other = ticket(there.client(), name, &[("owner", "other"), ("wait", "5m")]).await;
    // The grant follows the release by some milliseconds: the kill comes before, during or after it.
    let kill_after = Duration::from_micros(u64::from(point) * 1_500);
    let token = held.token();
    let release = there.client().release(name, &token);
    let kill = async {
        SystemClock.sleep(kill_after).await;
        here.service.kill();
    };
    let (released, ()) = tokio::join!(release, kill);
    released.expect_status(204);
    // Whichever of the two comes first; each gets one lease, one after the other.
    let (mut open, mut fences) = (vec![mine, other], Vec::new());
    let (begun, mut last) = (SystemClock.now(), String::new());
    while !open.is_empty() {
        assert!(SystemClock.now().since(begun) < 2 * TAKEN_OVER, "point {point}: {last}");
        let mut next = Vec::new();
        for ticket in open {
            let shown = there.client().get(&format!("{}?wait=1s", id(&ticket))).await;
            last.clone_from(&shown.text);
            let shown = if shown.status == 200 { shown.json() } else { json!({"state": "waiting"}) };
            match shown["state"].as_str() {
                Some("waiting") => next.push(ticket),
                Some("granted" | "accepted") => {
                    let now = there.client().inspect(name).await.expect_status(200).json();
                    assert_eq!(now["holders"][0]["token_id"], ticket["token_id"], "point {point}: {now}");
                    assert!(now["holders"][0]["kept_until"].is_string(), "point {point}: {now}");
                    fences.push(shown["fence"].as_u64().expect("a fence"));
                    let token = ticket["token"].as_str().expect("a token");
                    there.client().release(name, token).await.expect_status(204);
                    let over = state(there.client(), &ticket).await;
                    assert_eq!(over["ended_by"], "released", "point {point}: {over}");
                }
                other => panic!("point {point}: {other:?} {shown}"),
            }
        }
        open = next;
    }
    assert!(fences.len() == 2 && fences[0] < fences[1], "point {point}: {fences:?}");
    there.client().acquired(name, &[]).await;
    poll::until("no ticket is left to be served", || async {
        let metrics = there.client().get("/metrics").await.text;
        ["waiting", "granted", "accepted", "ending"]
            .iter()
            .all(|state| metrics.contains(&format!("redlockd_tickets{{state=\"{state}\"}} 0")))
            .then_some(())
    })
    .await;
}

/// By the time, with another ticket in the way; `hooks::kills` has the points that are shown.
#[tokio::test]
async fn a_kill_beside_another_ticket_leaves_one_lease_for_each() {
    for point in [0, 4, 8, 12] {
        survives_a_kill(point).await;
    }
}

/// Tickets on names over two instances, one of which is killed: each is granted once, and of two tickets of one name that
/// the surviving instance made the earlier one first.
async fn many_survive(tickets: usize, names: usize) {
    let cluster = cluster().await;
    let more = [&SETTINGS[..], &["--set", "waiters_total=20000", "--set", "tickets_total=20000"]].concat();
    let (mut here, there) = (cluster.service_with(&more).await, cluster.service_with(&more).await);
    let name = |n: usize| format!("many/{}", n % names);
    let mut holders = Vec::new();
    for n in 0..names {
        holders.push(there.client().acquired(&name(n), &[("keep", "10m")]).await.token());
    }
    let mut made = Vec::new();
    for n in 0..tickets {
        let client = if n % 2 == 0 { here.client() } else { there.client() };
        made.push((n, ticket(client, &name(n), &[("wait", "1h")]).await));
    }
    here.service.kill();
    for (n, token) in holders.iter().enumerate() {
        there.client().release(&name(n), token).await.expect_status(204);
    }
    let each = (0..names).map(|of| serve_all(&there, made.iter().filter(move |(n, _)| n % names == of)));
    let served: usize = futures_util::future::join_all(each).await.into_iter().sum();
    assert_eq!(served, tickets);
}

/// Takes each ticket of one name as it is granted. How many.
async fn serve_all<'a>(over: &ServiceOver, made: impl Iterator<Item = &'a (usize, Value)>) -> usize {
    let (client, mut open) = (over.client(), made.collect::<Vec<_>>());
    let (mut count, mut last_fence, mut last_own) = (0, 0, 0);
    while !open.is_empty() {
        let begun = SystemClock.now();
        let is_over = || SystemClock.now().since(begun) > 2 * TAKEN_OVER;
        let at = poll::until_over("one of them is granted", is_over, || async {
            let holder = client.inspect(&lock_of(open[0])).await;
            let holder = (holder.status == 200).then(|| holder.json()["holders"][0]["token_id"].clone())?;
            open.iter().position(|(_, ticket)| ticket["token_id"] == holder)
        })
        .await;
        let (n, ticket) = open.remove(at);
        let shown = granted(client, ticket).await;
        assert!(matches!(shown["state"].as_str(), Some("granted" | "accepted")), "{shown}");
        let fence = shown["fence"].as_u64().expect("a fence");
        assert!(fence > last_fence, "each has a lease of its own");
        last_fence = fence;
        if n % 2 == 1 {
            assert!(last_own <= *n, "in order within an instance: {n} after {last_own}");
            last_own = *n;
        }
        client
            .release(&lock_of(&(*n, ticket.clone())), ticket["token"].as_str().expect("a token"))
            .await
            .expect_status(204);
        count += 1;
    }
    count
}

fn lock_of((_, ticket): &(usize, Value)) -> String {
    ticket["resource"].as_str().expect("a name").to_owned()
}

#[tokio::test]
async fn many_tickets_outlive_their_instance() {
    many_survive(60, 6).await;
}

#[tokio::test]
async fn no_token_stands_on_the_nodes_or_in_logs_pages_and_metrics() {
    let cluster = cluster().await;
    let over = cluster.service_with(&SETTINGS).await;
    let client = over.client();
    let held = client.acquired("x", &[("keep", "1m")]).await;
    let made = ticket(client, "x", &[("owner", "ci")]).await;
    let token = made["token"].as_str().expect("a token").to_owned();
    let mut places = over.service.output();
    for page in
        ["/ui/", "/ui/waiters", "/ui/locks/x", "/ui/events", "/metrics", "/events?since=1h", "/locks", "/locks/x"]
    {
        places.push(client.get(page).await.text);
    }
    places.push(state(client, &made).await.to_string());
    for server in &cluster.servers {
        places.extend(server.everything().await);
    }
    let hash = redlockd::types::Token::parse(&token).expect("a token").hash();
    assert!(places.iter().any(|text| text.contains(hash.as_str())), "the search finds what is there");
    for secret in [token, held.token()] {
        assert!(!places.iter().any(|text| text.contains(&secret)), "a token is shown");
    }
}

#[tokio::test]
async fn a_ticket_needs_a_majority() {
    let cluster = cluster().await;
    let over = cluster.service_with(&SETTINGS).await;
    let client = over.client();
    let held = client.acquired("x", &[("keep", "1m")]).await;
    let mine = ticket(client, "x", &[]).await;
    // What a minority shows is no ticket.
    let key = format!("redlockd:ticket:{}", mine["ticket"].as_str().expect("an id"));
    for server in &cluster.servers[..2] {
        server.ask::<()>(&["DEL", &key]).await;
    }
    client.get(&id(&mine)).await.expect_problem(404, "not-found");
    poll::until("it stands in no queue", || async { (client.waiting("x").await == 0).then_some(()) }).await;
    client.release("x", &held.token()).await.expect_status(204);
    client.acquired("x", &[]).await;
    // One node that forgot gets it again.
    let second = ticket(client, "x", &[]).await;
    let key = format!("redlockd:ticket:{}", second["ticket"].as_str().expect("an id"));
    cluster.servers[0].ask::<()>(&["DEL", &key]).await;
    assert_eq!(state(client, &second).await["state"], "waiting");
    let exists = || async { (cluster.servers[0].ask::<i64>(&["EXISTS", &key]).await == 1).then_some(()) };
    poll::until("it is stored there again", exists).await;
}

/// A ticket for several locks, with a token of its own.
#[tokio::test]
async fn one_node_ends_no_ticket_and_no_lease() {
    let cluster = cluster().await;
    let over = cluster.service_with(&SETTINGS).await;
    let client = over.client();
    let held = client.acquired("x", &[("keep", "1m")]).await;
    let mine = ticket(client, "x", &[]).await;
    let key = format!("redlockd:ticket:{}", mine["ticket"].as_str().expect("an id"));
    let value = cluster.servers[0].ask::<String>(&["GET", &key]).await;
    let done = ["4", value.get(1..).expect("a head")].concat();
    cluster.servers[0].ask::<()>(&["SET", &key, &done, "KEEPTTL"]).await;
    assert_eq!(state(client, &mine).await["state"], "waiting");
    client.release("x", &held.token()).await.expect_status(204);
    assert_eq!(granted(client, &mine).await["state"], "granted");
    assert_eq!(state(client, &mine).await["state"], "accepted");
    client.acquire("x", &[]).await.expect_status(423);
    send(client.request("DELETE", &id(&mine))).await.expect_status(204);
    assert_eq!(state(client, &mine).await["ended_by"], "released");
}

async fn set_ticket(client: &Client, names: [&str; 2], token: &str) -> Answer {
    let fields = [("async", "true"), ("keep", "1m"), ("owner", "set"), ("token", token)];
    let names = names.map(|name| ("resource", name));
    send(client.request("POST", "/locks").form(&[&names[..], &fields].concat())).await
}

const OWN: &str = "token-of-a-set-0123456789";

#[tokio::test]
async fn a_ticket_for_several_locks_has_all_of_them_or_none() {
    let cluster = cluster().await;
    let (here, there) = (cluster.service_with(&SETTINGS).await, cluster.service_with(&SETTINGS).await);
    let client = here.client();
    let free = set_ticket(client, ["x", "y"], "another-token-0123456789").await.expect_status(201).json();
    assert_eq!(free["leases"].as_array().map(Vec::len), Some(2), "nobody is in the way: {free}");
    let path = "/locks?resource=x&resource=y";
    let held = |token: &str| client.request("DELETE", path).header("lock-token", token);
    send(held("another-token-0123456789")).await.expect_status(200);
    let held_x = client.acquired("x", &[("keep", "1m")]).await;
    let mine = set_ticket(client, ["x", "y"], OWN).await.expect_status(202).json();
    assert_eq!((&mine["resources"], mine.get("resource")), (&json!(["x", "y"]), None), "{mine}");
    let other_way = set_ticket(there.client(), ["y", "x"], OWN).await.expect_status(202).json();
    assert_eq!(other_way["ticket"], mine["ticket"], "the order does not matter, nor the instance");
    let refused = set_ticket(client, ["x", "z"], OWN).await.expect_problem(400, "invalid").json();
    assert_eq!(refused["errors"][0]["field"], "token", "{refused}");
    client.inspect("y").await.expect_status(404);
    client.release("x", &held_x.token()).await.expect_status(204);
    let now = granted(there.client(), &mine).await;
    assert_eq!(now["state"], "granted", "{now}");
    let shown = ["x", "y"].map(|name| client.inspect(name));
    for (at, shown) in futures_util::future::join_all(shown).await.iter().enumerate() {
        let holder = &shown.json()["holders"][0];
        assert_eq!((&holder["token_id"], &holder["fence"]), (&mine["token_id"], &now["leases"][at]["fence"]), "{now}");
        assert!(holder["kept_until"].is_string(), "{holder}");
    }
    let keep = send(client.request("PATCH", &id(&mine)).form(&[("keep", "10m")])).await.expect_status(200).json();
    assert!(keep["kept_for_ms"].as_u64().is_some_and(|ms| ms > 500_000), "{keep}");
    for name in ["x", "y"] {
        let kept_ms = client.inspect(name).await.json()["holders"][0]["kept_for_ms"].as_u64();
        assert!(kept_ms.is_some_and(|ms| ms > 500_000), "{name}: {kept_ms:?}");
    }
    // The end of one is the end of all.
    client.release("y", OWN).await.expect_status(204);
    poll::until("it is over", || async { (state(client, &mine).await["state"] == "ended").then_some(()) }).await;
    assert_eq!(state(client, &mine).await["ended_by"], "released");
    client.acquired("x", &[]).await;
}

#[tokio::test]
async fn a_ticket_for_several_locks_outlives_its_instance() {
    let cluster = cluster().await;
    let (mut here, there) = (cluster.service_with(&SETTINGS).await, cluster.service_with(&SETTINGS).await);
    let client = there.client();
    let held = client.acquired("y", &[("keep", "1m")]).await;
    let mine = set_ticket(here.client(), ["x", "y"], OWN).await.expect_status(202).json();
    here.service.kill();
    client.release("y", &held.token()).await.expect_status(204);
    let now = granted(client, &mine).await;
    assert_eq!((&now["state"], now["leases"].as_array().map(Vec::len)), (&json!("granted"), Some(2)), "{now}");
    let path = format!("{}?force=now&reason=over", lock("x"));
    send(client.request("DELETE", &path)).await.expect_status(204);
    poll::until("it is over", || async { (state(client, &mine).await["state"] == "ended").then_some(()) }).await;
    assert_eq!(state(client, &mine).await["ended_by"], "forced");
    poll::until("the other is free", || async { (client.inspect("y").await.status == 404).then_some(()) }).await;
    // Given up while it waits, it leaves both queues.
    let held = client.acquired("x", &[]).await;
    let second = set_ticket(client, ["y", "x"], "second-token-0123456789").await.expect_status(202).json();
    assert_eq!(client.waiting("y").await, 1);
    send(client.request("DELETE", &id(&second))).await.expect_status(204);
    poll::until("it has left", || async { (client.waiting("y").await == 0).then_some(()) }).await;
    client.release("x", &held.token()).await.expect_status(204);
}
