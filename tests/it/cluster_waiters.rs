//! What one instance shows of the waiters of another: in answers, on pages and in metrics, while a quorum of nodes
//! answers, and until the other instance is gone.

use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use crate::support::client::{Client, lock};
use crate::support::cluster::{Cluster, REFUSING};
use crate::support::poll;
use crate::support::redis_server::RedisServer;

/// What an instance answers of a lock once `is_so`.
async fn until(what: &str, client: &Client, is_so: impl Fn(&Value) -> bool) -> Value {
    poll::until(what, || async { Some(client.inspect("a/b").await.json()).filter(&is_so) }).await
}

async fn metric(client: &Client, name: &str) -> f64 {
    let text = client.get("/metrics").await.expect_status(200).text;
    let line = text.lines().find_map(|line| line.strip_prefix(&format!("redlockd_{name} ")));
    line.unwrap_or_else(|| panic!("{name}")).parse().expect("a number")
}

/// All that the instances have published on a node.
async fn published(server: &RedisServer) -> Vec<String> {
    let names: Vec<String> = server.ask(&["ZRANGE", "redlockd:waiters", "0", "-1"]).await;
    let keys: Vec<String> = names.iter().map(|name| format!("redlockd:waiters:{name}")).collect();
    let mut values = Vec::new();
    for key in keys {
        values.extend(server.ask::<Option<String>>(&["GET", &key]).await);
    }
    values
}

#[tokio::test(flavor = "multi_thread")]
async fn an_instance_shows_the_waiters_of_another_until_that_one_is_gone() {
    let cluster = Cluster::start(3).await;
    let (here, mut there) = (cluster.service().await, cluster.service().await);
    let (client, other) = (here.client(), there.client().clone());
    let lease = client.acquired("a/b", &[("ttl", "4m")]).await;
    let token = "the-token-of-the-second-waiter";
    let wait = |fields: &[(&'static str, &'static str)]| {
        let (other, fields) = (other.clone(), [&[("wait", "4m")], fields].concat());
        let request = other.request("POST", &lock("a/b")).form(&fields);
        tokio::spawn(async move { request.send().await.map(|answer| answer.status().as_u16()) })
    };
    let first = wait(&[("owner", "patient"), ("note", "release <1.9>")]);
    poll::until("one waits", || async { (other.waiting("a/b").await == 1).then_some(()) }).await;
    let second = wait(&[("owner", "<late>"), ("token", token)]);
    let seen = until("both are shown", client, |lock| lock["waiters"].as_array().is_some_and(|w| w.len() == 2)).await;
    let answered_by = other.inspect("a/b").await.json()["answered_by"].clone();
    assert_ne!(seen["answered_by"], answered_by);
    assert_eq!((&seen["waiting"], &seen["waiting_here"], &seen["waiters_known"]), (&json!(2), &json!(0), &json!(true)));
    for (waiter, position, owner) in [(&seen["waiters"][0], 1, "patient"), (&seen["waiters"][1], 2, "<late>")] {
        let expected = (&answered_by, &json!(position), &json!(owner));
        assert_eq!((&waiter["instance"], &waiter["position"], &waiter["owner"]), expected);
        assert!(waiter["waiting_ms"].as_u64().is_some());
        assert!(
            (1..=240_000).contains(&waiter["left_ms"].as_u64().unwrap_or(0)),
            "it gives up in four minutes: {waiter}"
        );
    }
    assert_eq!((&seen["waiters"][0]["note"], &seen["waiters"][1]["note"]), (&json!("release <1.9>"), &json!("")));
    // A refusal counts them too.
    let refused = client.acquire("a/b", &[]).await.expect_problem(423, "locked").json();
    assert_eq!((&refused["waiting"], &refused["waiting_here"]), (&json!(2), &json!(0)));
    let list = client.get("/locks?state=waited").await.expect_status(200).json();
    let at = &list["items"][0]["waiting_at"][0];
    assert_eq!((&list["waiters_known"], &list["items"][0]["waiting"]), (&json!(true), &json!(2)));
    assert_eq!((&at["instance"], &at["waiting"]), (&answered_by, &json!(2)));
    let name = answered_by.as_str().expect("a name");
    for path in ["/ui/waiters", "/ui/locks/a/b"] {
        let page = client.get(path).await.expect_status(200).text;
        assert!(page.contains(name) && page.contains("patient") && page.contains("&#60;late&#62;"), "{page}");
        assert!(page.contains("release &#60;1.9&#62;") && page.contains("Gives up in"), "{page}");
        assert!(!page.contains("may be missing"), "{page}");
    }
    assert_eq!(metric(client, "cluster_lock_waiters").await, 2.0);
    assert_eq!(metric(client, "cluster_lock_waiters_known").await, 1.0);
    assert_eq!(metric(client, "lock_waiters").await, 0.0);
    // Nothing secret is on the nodes.
    let hash: String = Sha256::digest(token).iter().map(|byte| format!("{byte:02x}")).collect();
    let values = published(&cluster.servers[0]).await;
    assert!(values.iter().any(|value| value.contains("patient")), "{values:?}");
    assert!(!values.iter().any(|value| value.contains(token) || value.contains(&hash[..8])), "{values:?}");
    there.service.kill();
    let gone = until("they are gone", client, |lock| lock["waiting"] == 0).await;
    assert_eq!(gone["waiters"], json!([]));
    for waiter in [first, second] {
        waiter.await.expect("no panic").expect_err("its instance was killed");
    }
    client.release("a/b", &lease.token()).await.expect_status(204);
}

/// What the killed instance published stays on the nodes for ten seconds: its waiter that is back at another one is listed there.
#[tokio::test(flavor = "multi_thread")]
async fn a_waiter_that_comes_back_elsewhere_is_listed_once() {
    let cluster = Cluster::start(3).await;
    let (here, mut there, third) = (cluster.service().await, cluster.service().await, cluster.service().await);
    let lease = here.client().acquired("a/b", &[("ttl", "4m")]).await;
    let fields = [("wait", "4m"), ("owner", "moved"), ("wait_id", "0123456789abcdef")];
    let wait = |client: &Client| {
        let request = client.request("POST", &lock("a/b")).form(&fields);
        tokio::spawn(async move { request.send().await.map(|answer| answer.status().as_u16()) })
    };
    let first = wait(there.client());
    until("it waits there", here.client(), |lock| lock["waiting"] == 1 && lock["waiting_here"] == 0).await;
    until("the third knows it", third.client(), |lock| lock["waiting"] == 1).await;
    there.service.kill();
    first.await.expect("no panic").expect_err("its instance was killed");
    let again = wait(here.client());
    let keys = async || published(&cluster.servers[0]).await.iter().filter(|value| value.contains("moved")).count();
    let name = here.client().inspect("a/b").await.json()["answered_by"].clone();
    for over in [&here, &third] {
        until("it is listed once", over.client(), |lock| {
            let is_here = |waiter: &Value| (&waiter["owner"], &waiter["instance"]) == (&json!("moved"), &name);
            let is_once = lock["waiters"].as_array().is_some_and(|all| all.len() == 1 && is_here(&all[0]));
            is_once && lock["waiting"] == 1
        })
        .await;
    }
    assert_eq!(keys().await, 2, "while the nodes still have what the killed instance published");
    here.client().release("a/b", &lease.token()).await.expect_status(204);
    assert_eq!(again.await.expect("no panic").expect("answered"), 201);
}

#[tokio::test(flavor = "multi_thread")]
async fn without_a_quorum_the_waiters_of_others_are_said_to_be_unknown() {
    let cluster = Cluster::start(3).await;
    let here = cluster.service().await;
    let client = here.client();
    poll::until("they are known", || async {
        (client.get("/locks").await.json()["waiters_known"] == true).then_some(())
    })
    .await;
    for proxy in &here.proxies[..2] {
        proxy.set(REFUSING);
        proxy.reset();
    }
    poll::until("they are unknown", || async {
        (client.get("/locks").await.json()["waiters_known"] == false).then_some(())
    })
    .await;
    for path in ["/ui/", "/ui/waiters"] {
        let page = client.get(path).await.expect_status(200).text;
        assert!(page.contains("Waiters of other instances may be missing"), "{page}");
    }
    assert_eq!(metric(client, "cluster_lock_waiters_known").await, 0.0);
}
