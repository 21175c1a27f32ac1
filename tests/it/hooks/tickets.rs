//! Call-backs of tickets: a workflow that is nowhere while it waits is called when it has its lock, whoever is killed meanwhile,
//! and its address stands nowhere.

use std::collections::HashMap;
use std::time::Duration;

use futures_util::StreamExt;
use redlockd::redlock::clock::{Clock, SystemClock};
use serde_json::{Value, json};

use super::receiver::{HooksFile, Received, Receiver, SEALING, target};
use crate::support::client::{Client, lock, send};
use crate::support::cluster::Cluster;
use crate::support::poll;
use crate::support::service::Service;

/// Below the target's prefix: a secret.
const RESUME: &str = "resume-of-workflow-17?signature=5eC2e7";

struct Called {
    receiver: Receiver,
    file: HooksFile,
    service: Service,
}

async fn called() -> Called {
    let receiver = Receiver::start().await;
    let file = HooksFile::with(&(SEALING.to_owned() + &target("n8n", &receiver, "")));
    let service = Service::embedded(&["--set", &file.setting()]).await;
    Called { receiver, file, service }
}

fn resume_url(receiver: &Receiver) -> String {
    format!("http://{}/in/SECRET-path/{RESUME}", receiver.address)
}

async fn ticket(client: &Client, resource: &str, callback: &str, fields: &[(&str, &str)]) -> Value {
    let fields = [&[("callback", callback), ("keep", "1m")], fields].concat();
    client.acquire(resource, &fields).await.expect_status(202).json()
}

async fn state(client: &Client, ticket: &Value) -> Value {
    client.get(&format!("/tickets/{}", ticket["ticket"].as_str().expect("an id"))).await.expect_status(200).json()
}

async fn until_state(client: &Client, ticket: &Value, wanted: &str) -> Value {
    poll::until(&format!("the ticket is {wanted}"), || async {
        let shown = state(client, ticket).await;
        (shown["state"] == wanted).then_some(shown)
    })
    .await
}

fn kinds(received: &[Received]) -> Vec<String> {
    received.iter().map(Received::kind).collect()
}

/// n8n answers 409 until its Wait node has stored its state, then once 200, then 409.
#[tokio::test(flavor = "multi_thread")]
async fn a_workflow_is_called_until_it_waits_and_works_under_its_lock() {
    let Called { receiver, service, file: _file } = called().await;
    let client = service.client();
    let held = client.acquired("x", &[("keep", "1m")]).await;
    receiver.answer([409, 409, 200, 409]);
    let fields = [("owner", "release-17"), ("metadata", "{\"run\":\"17\"}")];
    let mine = ticket(client, "x", &resume_url(&receiver), &fields).await;
    assert_eq!((&mine["state"], &mine["position"]), (&json!("waiting"), &json!(1)), "{mine}");
    client.release("x", &held.token()).await.expect_status(204);
    let now = until_state(client, &mine, "accepted").await;
    let received = receiver.received();
    assert_eq!(kinds(&received), ["lock.granted"; 3]);
    let first = received[0].json();
    for one in &received {
        assert_eq!(
            (one.path.as_str(), one.header("webhook-id")),
            (
                format!("/in/SECRET-path/{RESUME}").as_str(),
                format!("{}_granted", mine["ticket"].as_str().expect("an id")).as_str()
            )
        );
        assert_eq!(one.json(), first);
    }
    let data = &first["data"];
    assert_eq!(
        (&data["resource"], &data["owner"], &data["metadata"]["run"], &data["fence"], &data["token_id"]),
        (&json!("x"), &json!("release-17"), &json!("17"), &now["fence"], &mine["token_id"]),
        "{data}"
    );
    assert_eq!(
        (&data["ticket"], &data["ticket_url"]),
        (&mine["ticket"], &json!(format!("/tickets/{}", mine["ticket"].as_str().expect("an id"))))
    );
    assert!(data["accept_by"].is_string() && data["kept_until"].is_string(), "{data}");
    // Its token was in the first answer only.
    let token = mine["token"].as_str().expect("a token");
    assert!(received.iter().all(|one| !String::from_utf8_lossy(&one.body).contains(token)));
    client.extend("x", token, &[]).await.expect_status(200);
    client.release("x", token).await.expect_status(204);
    assert_eq!(until_state(client, &mine, "ended").await["ended_by"], "released");
    assert_eq!(receiver.received().len(), 3, "whoever releases knows it");
    let metrics = client.get("/metrics").await.text;
    assert!(
        metrics.contains("redlockd_webhook_deliveries_total{kind=\"callback\",outcome=\"accepted\"} 1"),
        "{metrics}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn only_its_receiver_accepts_a_grant_and_410_gives_it_back() {
    let Called { receiver, service, file: _file } = called().await;
    let client = service.client();
    receiver.answer([500, 410]);
    // Nobody holds it, and the receiver is called all the same.
    let mine = ticket(client, "x", "target:n8n", &[]).await;
    receiver.until_kind("lock.granted").await;
    assert_eq!(state(client, &mine).await["state"], "granted", "whoever looks at it accepts nothing");
    assert_eq!(receiver.received()[0].path, "/in/SECRET-path/");
    let ended = until_state(client, &mine, "ended").await;
    assert_eq!(ended["ended_by"], "cancelled", "{ended}");
    poll::until("the lock is free", || async { (client.inspect("x").await.status == 404).then_some(()) }).await;
}

/// A receiver that can be called only once was called by an instance that ended before it had stored the answer.
#[tokio::test(flavor = "multi_thread")]
async fn a_workflow_that_keeps_its_lease_accepts_it() {
    let Called { receiver, service, file: _file } = called().await;
    let client = service.client();
    receiver.answer([409; 100]);
    let mine = ticket(client, "x", "target:n8n", &[("accept", "15s")]).await;
    receiver.until_kind("lock.granted").await;
    let id = mine["ticket"].as_str().expect("an id");
    let path = format!("/tickets/{id}");
    let waits = ticket(client, "x", "target:n8n", &[]).await["ticket"].as_str().expect("an id").to_owned();
    let page = client.get("/ui/waiters").await.text;
    for shown in [format!("{id}</span>, offered to n8n until "), format!("ticket {waits}, calls n8n")] {
        assert!(page.contains(&shown), "{shown}: {page}");
    }
    let metrics = client.get("/metrics").await.text;
    assert!(metrics.contains("redlockd_webhook_queue 1\n"), "the call-back that is under way: {metrics}");
    poll::until("it is shown when it is tried next", || async {
        let hooks = client.get("/hooks").await.json();
        let is_paused = hooks["targets"][0]["callbacks"] == 1 && hooks["targets"][0]["next_try_in_ms"].is_number();
        (is_paused && client.get("/ui/hooks").await.text.contains("next try in")).then_some(())
    })
    .await;
    send(client.request("DELETE", &format!("/tickets/{waits}"))).await.expect_status(204);
    let kept = send(client.request("PATCH", &path).form(&[("keep", "3m")])).await.expect_status(200).json();
    assert_eq!(kept["state"], "accepted", "{kept}");
    let tries = receiver.received().len();
    let next = ticket(client, "x", "target:n8n", &[("accept", "5s"), ("wait", "17s")]).await;
    assert_eq!(
        until_state(client, &next, "ended").await["ended_by"],
        "wait-timeout",
        "the time to accept is over by then"
    );
    assert_eq!(state(client, &mine).await["state"], "accepted");
    let later = receiver.received().split_off(tries);
    assert!(later.iter().all(|one| one.kind() == "lock.refused"), "it is not offered any more: {:?}", kinds(&later));
    send(client.request("DELETE", &path)).await.expect_status(204);
    send(client.request("PATCH", &path).form(&[("keep", "3m")])).await.expect_problem(410, "ticket-ended");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_grant_that_nobody_accepts_goes_to_the_next() {
    let Called { receiver, service, file: _file } = called().await;
    let client = service.client();
    receiver.answer([503; 8]);
    let begun = SystemClock.now();
    let mine = ticket(client, "x", "target:n8n", &[("accept", "5s")]).await;
    receiver.until_kind("lock.granted").await;
    let next = client.acquire("x", &[("wait", "30s")]).await.expect_status(201);
    assert!(SystemClock.now().since(begun) >= Duration::from_secs(5), "it was offered for so long");
    assert_eq!(until_state(client, &mine, "ended").await["ended_by"], "undelivered");
    client.release("x", &next.token()).await.expect_status(204);
}

#[tokio::test(flavor = "multi_thread")]
async fn every_end_that_the_receiver_does_not_know_is_reported() {
    let Called { receiver, service, file: _file } = called().await;
    let client = service.client();
    let held = client.acquired("x", &[("keep", "1m")]).await;
    let brief = ticket(client, "x", "target:n8n", &[("wait", "1s")]).await;
    let refused = receiver.until_kind("lock.refused").await.json();
    assert_eq!((&refused["data"]["ticket"], &refused["data"]["ended_by"]), (&brief["ticket"], &json!("wait-timeout")));
    client.release("x", &held.token()).await.expect_status(204);
    let mine = ticket(client, "x", "target:n8n", &[]).await;
    until_state(client, &mine, "accepted").await;
    let path = format!("{}?force=now&reason=over", lock("x"));
    send(client.request("DELETE", &path)).await.expect_status(204);
    let lost = receiver.until_kind("lock.lost").await.json();
    assert_eq!((&lost["data"]["ticket"], &lost["data"]["ended_by"]), (&mine["ticket"], &json!("forced")), "{lost}");
    let (slot, limit) = (&lost["data"]["slot"], &lost["data"]["limit"]);
    assert_eq!((&lost["data"]["mode"], slot, limit), (&json!("exclusive"), &Value::Null, &Value::Null), "{lost}");
    let fields = [("callback", "target:n8n"), ("keep", "6s")];
    let short = client.acquire("y", &fields).await.expect_status(202).json();
    let ending = receiver.until_kind("lock.ending").await.json();
    assert_eq!(ending["data"]["ticket"], short["ticket"], "{ending}");
    assert_eq!(until_state(client, &short, "ended").await["ended_by"], "kept-out");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_deadlock_and_a_loss_are_reported() {
    let receiver = Receiver::start().await;
    let file = HooksFile::with(&target("n8n", &receiver, ""));
    let (cluster, setting) = (Cluster::blank(3).await, file.setting());
    cluster.declare(&SETTINGS);
    let over = cluster.service_with(&[&SETTINGS[..], &["--set", &setting]].concat()).await;
    let client = over.client();
    client.acquired("x", &[("keep", "1m"), ("owner", "ann")]).await;
    client.acquired("y", &[("keep", "1m"), ("owner", "bob")]).await;
    ticket(client, "y", "target:n8n", &[("owner", "ann")]).await;
    let newest = ticket(client, "x", "target:n8n", &[("owner", "bob"), ("on_deadlock", "refuse")]).await;
    let refused = receiver.until_kind("lock.refused").await.json();
    assert_eq!((&refused["data"]["ticket"], &refused["data"]["ended_by"]), (&newest["ticket"], &json!("deadlock")));
    let permit = ticket(client, "p", "target:n8n", &[("limit", "3"), ("ttl", "5s")]).await;
    let granted = receiver.until_kind("lock.granted").await.json();
    let data = &granted["data"];
    let holder = client.inspect("p").await.json()["holders"][0].clone();
    assert_eq!(
        (&data["mode"], &data["limit"], &data["slot"]),
        (&json!("permit"), &json!(3), &holder["slot"]),
        "{data}"
    );
    until_state(client, &permit, "accepted").await;
    // All nodes forget it.
    for server in &cluster.servers {
        for key in
            server.ask::<Vec<String>>(&["KEYS", "*"]).await.iter().filter(|key| *key == "p" || key.ends_with(":p"))
        {
            server.ask::<()>(&["DEL", key]).await;
        }
    }
    let lost = receiver.until_kind("lock.lost").await.json();
    assert_eq!((&lost["data"]["ticket"], &lost["data"]["ended_by"]), (&permit["ticket"], &json!("lost")), "{lost}");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_no_place_for_call_backs_is_refused_and_not_repeated() {
    let Called { receiver, file, service } = called().await;
    let client = service.client();
    let long = format!("{}{}", resume_url(&receiver), "x".repeat(2_048));
    for (fields, field) in [
        (vec![("callback", "https://u:p@example.com/SECRET")], "callback"),
        (vec![("callback", "https://example.com/SECRET#x")], "callback"),
        (vec![("callback", "ftp://example.com/SECRET")], "callback"),
        (vec![("callback", long.as_str())], "callback"),
        (vec![("accept", "5s"), ("async", "true")], "accept"),
        (vec![("callback", "target:n8n"), ("accept", "4s")], "accept"),
        (vec![("callback", "target:n8n"), ("accept", "11m")], "accept"),
    ] {
        let fields = [&fields[..], &[("keep", "1m")]].concat();
        let refused = client.acquire("x", &fields).await.expect_problem(400, "invalid");
        assert_eq!(refused.json()["errors"][0]["field"], field, "{}", refused.text);
        assert!(!refused.text.contains("SECRET"), "{}", refused.text);
    }
    for elsewhere in ["target:none", "https://example.com/SECRET", "http://169.254.169.254/SECRET"] {
        let refused = client.acquire("x", &[("callback", elsewhere), ("keep", "1m")]).await;
        let refused = refused.expect_problem(403, "callback-not-allowed");
        assert!(!refused.text.contains("SECRET"), "{}", refused.text);
    }
    let in_url = format!("{}?callback=target:n8n&keep=1m", lock("x"));
    send(client.request("POST", &in_url)).await.expect_problem(400, "invalid");
    // Where nothing seals addresses, targets are all that can be named.
    file.write(&target("n8n", &receiver, ""));
    poll::until("the file is read anew", || async {
        let answer = client.acquire("x", &[("callback", resume_url(&receiver).as_str()), ("keep", "1m")]).await;
        (answer.status == 403).then(|| assert!(answer.text.contains("sealing_secret_files"), "{}", answer.text))
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_receiver_learns_of_several_locks_and_gives_them_back() {
    let Called { receiver, service, file: _file } = called().await;
    let client = service.client();
    let fields = [("resource", "y"), ("resource", "x"), ("callback", "target:n8n"), ("keep", "1m")];
    let asked = send(client.request("POST", "/locks").form(&fields)).await.expect_status(202).json();
    let data = receiver.until_kind("lock.granted").await.json()["data"].clone();
    assert_eq!((&data["resources"], data.get("resource")), (&json!(["y", "x"]), None), "{data}");
    for lease in data["leases"].as_array().expect("a list") {
        let shown = client.inspect(lease["resource"].as_str().expect("a name")).await.json();
        assert_eq!(shown["holders"][0]["fence"], lease["fence"], "{data}");
    }
    until_state(client, &asked, "accepted").await;
    let token = asked["token"].as_str().expect("a token");
    let give = client.request("DELETE", data["lock_url"].as_str().expect("a path")).header("lock-token", token);
    send(give).await.expect_status(200);
    assert_eq!(until_state(client, &asked, "ended").await["ended_by"], "released");
}

/// Leases that are long enough for another instance to take over, on a busy machine.
const SETTINGS: [&str; 10] = [
    "--set",
    "max_ttl=40s",
    "--set",
    "node_timeout=2s",
    "--set",
    "min_ttl=4s",
    "--set",
    "guard=3s",
    "--set",
    "lock_delay=6s",
];

#[tokio::test(flavor = "multi_thread")]
async fn another_instance_calls_when_the_first_one_was_killed_and_no_address_stands_anywhere() {
    let receiver = Receiver::start().await;
    let file = HooksFile::with(&(SEALING.to_owned() + &target("n8n", &receiver, "")));
    let cluster = Cluster::blank(3).await;
    cluster.declare(&SETTINGS);
    let (setting, audit) = (file.setting(), tempfile::tempdir().expect("a directory"));
    let log = audit.path().join("audit.log");
    let logged = format!("audit_log={}", log.display());
    let settings = [&SETTINGS[..], &["--set", &setting, "--set", &logged]].concat();
    let (mut here, there) = (cluster.service_with(&settings).await, cluster.service_with(&settings).await);
    let held = there.client().acquired("x", &[("keep", "1m")]).await;
    receiver.answer([409; 4]);
    let mine = ticket(here.client(), "x", &resume_url(&receiver), &[("accept", "10m")]).await;
    there.client().release("x", &held.token()).await.expect_status(204);
    receiver.until_kind("lock.granted").await;
    let mut places = here.service.output();
    for page in
        ["/ui/", "/ui/waiters", "/ui/locks/x", "/ui/events", "/ui/hooks", "/metrics", "/events?since=1h", "/locks/x"]
    {
        places.push(here.client().get(page).await.text);
    }
    here.service.kill();
    let taken_over =
        |received: &[Received]| received.last().is_some_and(|last| last.header("webhook-id").ends_with("_granted"));
    let begun = SystemClock.now();
    let accepted = poll::until_over(
        "the other instance has called",
        || SystemClock.now().since(begun) > Duration::from_secs(60),
        || async {
            let shown = state(there.client(), &mine).await;
            (shown["state"] == "accepted").then_some(shown)
        },
    )
    .await;
    assert!(taken_over(&receiver.received()) && receiver.received().len() >= 5, "after all answers of 409");
    assert_eq!(receiver.received()[0].json()["data"]["fence"], accepted["fence"], "the same lease");
    places.extend(there.service.output());
    places.push(state(there.client(), &mine).await.to_string());
    for page in ["/ui/", "/ui/locks/x", "/ui/hooks", "/metrics", "/events?since=1h"] {
        places.push(there.client().get(page).await.text);
    }
    places.push(std::fs::read_to_string(&log).expect("an audit log"));
    let mut on_nodes = Vec::new();
    for server in &cluster.servers {
        on_nodes.extend(server.everything().await);
    }
    assert!(on_nodes.iter().any(|text| text.contains("\"b\":{\"t\":\"n8n\"")), "the search finds what is there");
    places.extend(on_nodes);
    let token = mine["token"].as_str().expect("a token");
    for secret in [token, "resume-of-workflow", "5eC2e7", "SECRET-path", super::receiver::SECRET] {
        let shown = places.iter().find(|text| text.contains(secret));
        assert!(shown.is_none(), "{secret} stands in {shown:?}");
    }
    there.client().release("x", token).await.expect_status(204);
}

/// Tickets on names over two instances, one of which is killed: each is granted once, and of two tickets of one name that the
/// surviving instance made the earlier one first. Nobody asks for a ticket: its receiver is called, and gives its lease back.
#[tokio::test(flavor = "multi_thread")]
#[expect(clippy::print_stderr, reason = "figures for docs/verification.md")]
async fn many_tickets_with_call_backs_outlive_their_instance() {
    let number = |name: &str, usual: usize| std::env::var(name).ok().and_then(|n| n.parse().ok()).unwrap_or(usual);
    let (tickets, names) = (number("REDLOCKD_TICKETS", 60), number("REDLOCKD_TICKET_NAMES", 6));
    let receiver = Receiver::start().await;
    let file = HooksFile::with(&target("n8n", &receiver, ""));
    let cluster = Cluster::blank(3).await;
    cluster.declare(&SETTINGS);
    let setting = file.setting();
    let more = ["--set", &setting, "--set", "waiters_total=20000", "--set", "tickets_total=20000"];
    let settings = [&SETTINGS[..], &more].concat();
    let (mut here, there) = (cluster.service_with(&settings).await, cluster.service_with(&settings).await);
    let begun = SystemClock.now();
    let (of_here, of_there) = (here.client(), there.client());
    let each = (0..names).map(|n| async move {
        let name = format!("many/{n}");
        let held = of_there.acquired(&name, &[("keep", "2h")]).await.token();
        let mut made = Vec::new();
        for at in (n..tickets).step_by(names) {
            let client = if (at / names).is_multiple_of(2) { of_here } else { of_there };
            let fields = [("wait", "2h"), ("accept", "10m")];
            made.push(ticket(client, &name, "target:n8n", &fields).await["ticket"].as_str().expect("an id").to_owned());
        }
        (name, held, made)
    });
    let each: Vec<_> = futures_util::stream::iter(each).buffered(16).collect().await;
    let made_ms = SystemClock.now().since(begun).as_millis();
    here.service.kill();
    let (killed, client) = (SystemClock.now(), there.client());
    let freed = each.iter().map(|(name, held, _)| async move {
        client.release(name, held).await.expect_status(204);
    });
    futures_util::stream::iter(freed).buffer_unordered(16).collect::<Vec<()>>().await;
    // By ticket: its place among those of its name, and whether the surviving instance made it.
    let places: HashMap<&str, (usize, usize, bool)> = each
        .iter()
        .enumerate()
        .flat_map(|(n, (_, _, made))| {
            made.iter().enumerate().map(move |(place, id)| (id.as_str(), (n, place, !place.is_multiple_of(2))))
        })
        .collect();
    assert_eq!(places.len(), tickets);
    let (mut fences, mut last_own, mut granted, mut seen) = (vec![0; names], vec![0; names], HashMap::new(), 0);
    let mut again = 0;
    while granted.len() < tickets {
        let begun = SystemClock.now();
        let new = poll::until_over(
            "a further grant",
            || SystemClock.now().since(begun) > Duration::from_mins(2),
            || async {
                let new = receiver.received_from(seen);
                (!new.is_empty()).then_some(new)
            },
        )
        .await;
        seen += new.len();
        let mut ended = Vec::new();
        for message in new {
            assert_eq!(message.kind(), "lock.granted");
            let data = message.json()["data"].clone();
            let (id, fence) =
                (data["ticket"].as_str().expect("an id").to_owned(), data["fence"].as_u64().expect("a fence"));
            let (n, place, is_own) = places[id.as_str()];
            if let Some(before) = granted.insert(id.clone(), fence) {
                assert_eq!(before, fence, "a ticket has one lease");
                again += 1;
                continue;
            }
            assert!(fence > fences[n], "each has a lease of its own");
            fences[n] = fence;
            if is_own {
                assert!(last_own[n] <= place, "in order within an instance: {place} after {}", last_own[n]);
                last_own[n] = place;
            }
            ended.push(id);
        }
        let ends = ended.into_iter().map(|id| async move {
            let path = format!("/tickets/{id}");
            poll::until("it is given back", || async {
                let status = send(client.request("DELETE", &path)).await.status;
                matches!(status, 204 | 410).then_some(())
            })
            .await;
        });
        futures_util::stream::iter(ends).buffer_unordered(32).collect::<Vec<()>>().await;
    }
    poll::until("nothing is left", || async {
        let metrics = client.get("/metrics").await.text;
        let is_none = |state: &&str| metrics.contains(&format!("redlockd_tickets{{state=\"{state}\"}} 0"));
        let is_served = !["waiting", "granted", "accepted", "ending"].iter().all(is_none);
        let listed = client.get("/locks?prefix=many/").await.json()["items"].clone();
        (!is_served && listed == json!([])).then_some(())
    })
    .await;
    let served_ms = SystemClock.now().since(killed).as_millis();
    eprintln!(
        "{tickets} tickets on {names} names: made in {made_ms} ms, served in {served_ms} ms, {again} call-backs repeated"
    );
}

/// The recipe of docs/workflows.md: no runner waits, and the second workflow has the ticket's name only.
#[tokio::test(flavor = "multi_thread")]
async fn github_actions_without_a_waiting_runner() {
    let receiver = Receiver::start().await;
    let dispatch = "form = \"github-dispatch\"\nheaders_file = \"headers\"";
    let file = HooksFile::with(&target("github", &receiver, dispatch).replace("secret_files = [\"a.whsec\"]\n", ""));
    let service = Service::embedded(&["--set", &file.setting()]).await;
    let client = service.client();
    let held = client.acquired("deploy/prod", &[("keep", "1m")]).await;
    let fields = [("metadata", "{\"run\":\"17\",\"sha\":\"5eC2e7\"}"), ("wait", "6h"), ("owner", "run-17")];
    ticket(client, "deploy/prod", "target:github", &fields).await;
    client.release("deploy/prod", &held.token()).await.expect_status(204);
    let dispatched = receiver.until("a dispatch", |received| !received.body.is_empty()).await;
    assert_eq!(dispatched.header("authorization"), "Bearer SECRET-of-headers");
    let event = dispatched.json();
    assert_eq!(event["event_type"], "lock.granted", "{event}");
    let data = &event["client_payload"]["data"];
    assert_eq!((&data["metadata"]["sha"], &data["owner"]), (&json!("5eC2e7"), &json!("run-17")), "{event}");
    let mine = json!({ "ticket": data["ticket"] });
    until_state(client, &mine, "accepted").await;
    // Its last step: by the principal that made the ticket, without its token.
    let path = data["ticket_url"].as_str().expect("a path");
    send(client.request("DELETE", path)).await.expect_status(204);
    assert_eq!(until_state(client, &mine, "ended").await["ended_by"], "released");
    client.acquired("deploy/prod", &[]).await;
}

const N8N: &str = include_str!("../../../examples/n8n/deploy-under-a-lock.json");

/// The HTTP steps of the n8n workflow under `examples/`, with the values that n8n would put into its expressions.
#[tokio::test(flavor = "multi_thread")]
async fn the_http_steps_of_the_n8n_workflow() {
    let Called { receiver, service, file: _file } = called().await;
    let client = service.client();
    let workflow: Value = serde_json::from_str(N8N).expect("JSON");
    let node = |name: &str| {
        let nodes = workflow["nodes"].as_array().expect("a list");
        nodes.iter().find(|node| node["name"] == name).unwrap_or_else(|| panic!("no node {name}"))["parameters"].clone()
    };
    let mut asked = Value::Null;
    let filled = |value: &Value, asked: &Value| {
        let text = value.as_str().expect("text").trim_start_matches('=');
        text.replace("{{ $vars.REDLOCKD_URL }}", "")
            .replace("{{ $execution.resumeUrl }}", &resume_url(&receiver))
            .replace("{{ $execution.id }}", "17")
            .replace("{{ $('Ask for the lock').item.json.ticket }}", asked["ticket"].as_str().unwrap_or_default())
    };
    // Executes one; `wait`: in place of six hours.
    let execute = async |name: &str, asked: &Value, wait: &str| {
        let http = node(name);
        let given = http["bodyParameters"]["parameters"].as_array().cloned().unwrap_or_default();
        let fields: Vec<(String, String)> = given
            .iter()
            .map(|one| (filled(&one["name"], asked), filled(&one["value"], asked).replace("6h", wait)))
            .collect();
        let path = filled(&http["url"], asked);
        assert!(!path.contains("{{"), "an expression that n8n would have to fill in: {path}");
        assert_eq!(http["genericAuthType"], "httpHeaderAuth", "{name}");
        let request = client.request(http["method"].as_str().expect("text"), &path);
        send(if fields.is_empty() { request } else { request.form(&fields) }).await
    };
    // What each node is followed by: where it succeeds, and where it fails.
    let next = |name: &str| {
        let outputs = workflow["connections"][name]["main"].as_array().cloned().unwrap_or_default();
        [0, 1].map(|output| outputs.get(output).map_or(Value::Null, |next| next[0]["node"].clone()))
    };
    assert_eq!(next("Wait until it is granted"), [json!("Was it granted?"), Value::Null]);
    assert_eq!(next("Was it granted?"), [json!("Keep it"), Value::Null]);
    for name in ["Keep it", "Deploy"] {
        assert_eq!(next(name)[1], "Give it back after a failure", "{name}");
    }
    assert_eq!((next("Keep it")[0].clone(), next("Deploy")[0].clone()), (json!("Deploy"), json!("Give it back")));
    assert_eq!(next("Give it back after a failure")[0], "Failed");
    let waits = node("Wait until it is granted");
    assert_eq!(
        (&waits["limitWaitTime"], &waits["resumeAmount"], &waits["resumeUnit"]),
        (&json!(true), &json!(7), &json!("hours"))
    );
    // Refused: the message resumes the workflow, and neither its type nor the service lets it work.
    let held = client.acquired("deploy/prod", &[("keep", "1m")]).await;
    let refused = execute("Ask for the lock", &asked, "1s").await.expect_status(202).json();
    let kind = receiver.until_kind("lock.refused").await.kind();
    assert_ne!(node("Was it granted?")["conditions"]["conditions"][0]["rightValue"], kind);
    execute("Keep it", &refused, "").await.expect_problem(410, "ticket-ended");
    client.release("deploy/prod", &held.token()).await.expect_status(204);
    // The Wait node has not stored its state yet when the lock is granted.
    receiver.answer([409, 200, 409]);
    asked = execute("Ask for the lock", &asked, "6h").await.expect_status(202).json();
    until_state(client, &asked, "accepted").await;
    let resumed = receiver.received().pop().expect("a message");
    let condition = &node("Was it granted?")["conditions"]["conditions"][0];
    assert_eq!(
        (condition["leftValue"].as_str(), condition["rightValue"].as_str()),
        (Some("={{ $json.body?.type ?? 'none' }}"), Some(resumed.kind().as_str()))
    );
    assert_eq!(client.inspect("deploy/prod").await.json()["holders"][0]["owner"], "n8n-17");
    execute("Keep it", &asked, "").await.expect_status(200);
    execute("Give it back", &asked, "").await.expect_status(204);
    execute("Give it back after a failure", &asked, "").await.expect_problem(410, "ticket-ended");
    assert_eq!(until_state(client, &asked, "ended").await["ended_by"], "released");
}
