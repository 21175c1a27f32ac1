//! Two instances behind a balancer that sends each request to the other one: one log-in is enough, and both show the same.

use std::time::Duration;

use redlockd::auth::api_key::KeyHash;
use tokio::task::JoinHandle;

use super::driver::{Browser, Look};
use crate::support::balancer::Balancer;
use crate::support::client::{Client, send};
use crate::support::cluster::{Cluster, node_args};
use crate::support::poll;
use crate::support::service::{SHORT_TIMES, Service};

const KEY: &str = "key-of-ops";

#[tokio::test]
async fn two_instances_behind_a_balancer_look_like_one() {
    let cluster = Cluster::start(3).await;
    let dir = tempfile::tempdir().expect("a directory");
    let (access, secret) = (dir.path().join("access.toml"), dir.path().join("secret"));
    let sha256 = KeyHash::of(KEY.as_bytes()).hex();
    let rules = format!("[[principal]]\nname = \"ops\"\nkeys = [{{ sha256 = \"{sha256}\" }}]\nallow = [\"admin\"]\n");
    std::fs::write(&access, rules).expect("writable");
    std::fs::write(&secret, "0123456789abcdef0123456789abcdef\n").expect("writable");
    let files = [format!("access_file={}", access.display()), format!("session_secret_file={}", secret.display())];
    let mut args = node_args(cluster.servers.iter().map(|server| server.url()));
    args.extend(SHORT_TIMES.iter().map(ToString::to_string));
    args.extend(files.iter().flat_map(|file| ["--set".to_owned(), file.clone()]));
    let services = [Service::start(&args).await, Service::start(&args).await];
    for service in &services {
        service.until_ready().await;
    }
    let balancer = Balancer::start(&services.each_ref().map(Service::address)).await;
    let balancer_client = Client::new(&balancer.base());
    let ask = |service: &Service, fields: &[(&str, &str)]| {
        let request = service.client().request("POST", "/locks/deploy/prod").bearer_auth(KEY).form(fields);
        send(request.timeout(Duration::from_mins(5)))
    };
    ask(&services[0], &[("ttl", "5m"), ("owner", "ci-1")]).await.expect_status(201);
    let waiters = services.each_ref().map(|service| {
        let answer = ask(service, &[("wait", "5m"), ("owner", "ci-2")]);
        tokio::spawn(async move { panic!("a waiter was answered: {:?}", answer.await) })
    });
    for service in &services {
        poll::until("the instance has its waiter", || async {
            let inspect = service.client().request("GET", "/locks/deploy/prod").bearer_auth(KEY);
            (send(inspect).await.json()["waiting_here"] == 1).then_some(())
        })
        .await;
    }
    let Some(browser) = Browser::open(&balancer.base(), Look::Light).await else { return };
    // A deep link survives the log-in.
    browser.go("/ui/waiters").await;
    browser.write("#key", KEY).await;
    browser.click("button[type=submit]").await;
    browser.until_text(".viewer", "logged in", |t| t.contains("ops")).await;
    assert_eq!(browser.path().await, "/ui/waiters");
    let mut seen = std::collections::BTreeSet::new();
    for _ in 0..6 {
        browser.go("/ui/waiters").await;
        // A page and what it loads may be an even number of requests.
        balancer_client.get("/health/live").await.expect_status(200);
        seen.insert(browser.text("footer code").await);
        assert!(browser.text(".viewer").await.contains("ops"), "logged in at each of them");
        browser.until_text("caption", "the waiters of both", |t| t.contains("all 2")).await;
        assert!(browser.text("#list").await.contains("ci-2"));
    }
    assert_eq!(seen.len(), 2, "{seen:?}");
    browser.check_page("behind a balancer").await;
    browser.click(".viewer button").await;
    browser.go("/ui/").await;
    browser.until_text("h1", "the log-in", |t| t == "redlockd").await;
    browser.check_page("the log-in").await;
    browser.close().await;
    waiters.iter().for_each(JoinHandle::abort);
}
