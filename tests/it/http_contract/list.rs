//! `GET /locks` and `GET /nodes`: the whole cluster, and how complete the answer is.

use serde_json::{Value, json};

use crate::support::client::send;
use crate::support::cluster::{Cluster, REFUSING};
use crate::support::poll;
use crate::support::service::Service;

/// Reads the list until the condition holds.
const FRESH: [&str; 2] = ["--set", "list_refresh=100ms"];

fn names(list: &Value) -> Vec<&str> {
    list["items"].as_array().expect("items").iter().map(|i| i["resource"].as_str().expect("a name")).collect()
}

#[tokio::test]
async fn the_list_has_what_all_instances_granted_in_pages_and_filtered() {
    let cluster = Cluster::start(3).await;
    let (one, two) = (cluster.service_with(&FRESH).await, cluster.service_with(&FRESH).await);
    for i in 0..5 {
        one.client().acquired(&format!("build/{i}"), &[("owner", "ci")]).await;
        two.client().acquired(&format!("deploy/{i}"), &[("owner", "ops")]).await;
    }
    let all = poll::until("the list has all", || async {
        let list = one.client().get("/locks").await.expect_status(200).json();
        (list["total"] == 10).then_some(list)
    })
    .await;
    assert_eq!((&all["complete"], &all["next_cursor"]), (&json!(true), &Value::Null));
    assert!(all["age_ms"].as_u64().is_some());
    let text = send(one.client().request("GET", "/locks").header("Accept", "text/plain")).await.expect_status(200);
    let said =
        text.text.lines().last().and_then(|line| line.strip_prefix("# read from the nodes ")?.strip_suffix(" ms ago"));
    assert_eq!(said, Some(text.header("list-age-ms")), "{text:?}");
    for answer in [one.client().get("/locks").await, text] {
        assert!(answer.header("list-age-ms").parse::<u64>().is_ok_and(|age| age < 60_000), "{answer:?}");
    }
    assert_eq!(names(&all).len(), 10);
    assert!(names(&all).is_sorted());
    let item = &all["items"][0];
    assert_eq!((&item["resource"], &item["state"], &item["waiting"]), (&json!("build/0"), &json!("held"), &json!(0)));
    assert_eq!((&item["holders"][0]["owner"], &item["mode"]), (&json!("ci"), &json!("exclusive")));
    let client = one.client();
    for (query, expected) in [("?prefix=deploy/", 5), ("?owner=ci", 5), ("?owner=nobody", 0), ("?state=waited", 0)] {
        let list = client.get(&format!("/locks{query}")).await.expect_status(200).json();
        assert_eq!(names(&list).len(), expected, "{query}: {list}");
    }
    let (mut paged, mut cursor) = (Vec::new(), String::new());
    for _ in 0..4 {
        let page = client.get(&format!("/locks?limit=3{cursor}")).await.expect_status(200).json();
        paged.extend(names(&page).into_iter().map(str::to_owned));
        match page["next_cursor"].as_str() {
            Some(next) => cursor = format!("&cursor={}", next.replace('/', "%2F")),
            None => break,
        }
    }
    assert_eq!(paged, names(&all));
    for query in ["limit=0", "limit=1001", "limit=x", "cursor=%2F%2F", "state=x", "prefixx=a"] {
        client.get(&format!("/locks?{query}")).await.expect_problem(400, "invalid");
    }
}

#[tokio::test]
async fn waiters_are_listed_and_filtered() {
    let cluster = Cluster::start(3).await;
    let over = cluster.service_with(&FRESH).await;
    let client = over.client();
    let lease = client.acquired("x", &[]).await;
    client.acquired("y", &[]).await;
    let waiting = client.acquire("x", &[("wait", "50s"), ("owner", "patient")]);
    let looking = async {
        poll::until("the list shows the waiter", || async {
            let list = client.get("/locks?state=waited").await.expect_status(200).json();
            (names(&list) == ["x"] && list["items"][0]["waiting"] == 1).then_some(())
        })
        .await;
        let seen = client.inspect("x").await.json();
        let waiter = &seen["waiters"][0];
        assert_eq!((&waiter["position"], &waiter["owner"]), (&json!(1), &json!("patient")));
        assert!(waiter["waiting_ms"].as_u64().is_some());
        client.release("x", &lease.token()).await.expect_status(204);
    };
    let (granted, ()) = tokio::join!(waiting, looking);
    granted.expect_status(201);
}

#[tokio::test]
async fn a_list_shows_whether_a_quorum_answered_and_nodes_why_they_have_no_vote() {
    let cluster = Cluster::start(3).await;
    let over = cluster.service_with(&FRESH).await;
    let client = over.client();
    client.acquired("x", &[("ttl", "4m")]).await;
    cluster.until_everywhere("x").await;
    let nodes = client.get("/nodes").await.expect_status(200).json();
    assert_eq!(nodes["quorum"], json!({"granted": 3, "needed": 2, "nodes": 3}));
    for (i, node) in nodes["nodes"].as_array().expect("nodes").iter().enumerate() {
        assert_eq!((&node["node"], &node["state"]), (&json!(format!("n{}", i + 1)), &json!("up")));
        assert_eq!((&node["votes"], &node["version"]), (&json!(true), &json!("7.0.15")));
        assert!(node["latency_us"].as_u64().is_some() && node["run_id"].as_str().is_some(), "{node}");
    }
    for (down, complete) in [(1, true), (2, false)] {
        over.proxies[down - 1].set(REFUSING);
        over.proxies[down - 1].reset();
        let list = poll::until("the list knows", || async {
            let list = client.get("/locks").await.expect_status(200).json();
            (list["complete"] == complete).then_some(list)
        });
        assert_eq!(names(&list.await), ["x"], "{down} down");
        let nodes = poll::until("the nodes are known to be down", || async {
            let nodes = client.get("/nodes").await.expect_status(200).json();
            (nodes["quorum"]["granted"] == 3 - down).then_some(nodes)
        })
        .await;
        let node = &nodes["nodes"][down - 1];
        assert_eq!((&node["state"], &node["votes"]), (&json!("down"), &json!(false)));
        assert!(node["why"].as_str().is_some_and(|w| !w.is_empty()), "{node}");
    }
}

/// C5, C6: lists and streams for shells, which have no JSON.
#[tokio::test]
async fn c5_c6_lists_nodes_and_streams_are_text_where_that_is_accepted() {
    let service = Service::embedded(&[]).await;
    let client = service.client();
    let plain = |method: &str, path: &str| client.request(method, path).header("Accept", "text/plain");
    let mut held =
        plain("POST", "/locks/a/b").form(&[("hold", "true"), ("owner", "ann\tx")]).send().await.expect("a stream");
    assert_eq!(held.headers()["content-type"], "text/plain; charset=utf-8");
    let line = held.chunk().await.expect("connected").expect("a line");
    let line = String::from_utf8_lossy(&line).into_owned();
    let token = line.strip_prefix("acquired ").and_then(|rest| rest.strip_suffix('\n')).expect("the token").to_owned();
    let list = send(plain("GET", "/locks")).await.expect_status(200).text;
    let cells: Vec<&str> = list.trim_end_matches('\n').split('\t').collect();
    assert_eq!((cells.len(), cells[..3].join(" ")), (7, "a/b held ann\\tx".to_owned()), "{list}");
    let nodes = send(plain("GET", "/nodes")).await.expect_status(200).text;
    assert!(nodes.starts_with("embedded-1\tup\tyes\t") && nodes.lines().count() == 1, "{nodes}");
    client.release("a/b", &token).await.expect_status(204);
    assert_eq!(held.chunk().await.expect("a regular end"), None);
}
