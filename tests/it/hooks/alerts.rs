//! The alerts of hooks and call-backs, fired by receivers that refuse.

use std::path::Path;

use super::receiver::{HooksFile, Receiver, hook, target};
use crate::support::poll;
use crate::support::prometheus::{Prometheus, tool};
use crate::support::service::Service;

fn config() -> std::path::PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("config")
}

#[tokio::test(flavor = "multi_thread")]
async fn a_hook_that_is_off_is_reported() {
    if tool("prometheus").is_none() {
        return;
    }
    let receiver = Receiver::start().await;
    let file = HooksFile::with(&(target("ops", &receiver, "") + &hook("all", &["lock.acquired"], "")));
    let service = Service::embedded(&["--set", &file.setting()]).await;
    let prometheus = Prometheus::start(&config(), &[service.address()]).await;
    service.client().acquired("a", &[]).await;
    receiver.until_kind("lock.acquired").await;
    assert!(!prometheus.has_fired("RedlockdHookOff").await);
    receiver.answer([410]);
    service.client().acquired("b", &[]).await;
    prometheus.until_fired(&["RedlockdHookOff"]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn call_backs_that_nobody_accepts_are_reported() {
    if tool("prometheus").is_none() {
        return;
    }
    let receiver = Receiver::start().await;
    let file = HooksFile::with(&target("t", &receiver, ""));
    let service = Service::embedded(&["--set", &file.setting()]).await;
    let client = service.client();
    let prometheus = Prometheus::start(&config(), &[service.address()]).await;
    let query = "redlockd_webhook_deliveries_total{kind=\"callback\",outcome=\"gave-up\"}";
    poll::until("it is scraped", || async {
        let answer = prometheus.query(query).await;
        answer["data"]["result"].as_array().is_some_and(|found| !found.is_empty()).then_some(())
    })
    .await;
    let fields = [("callback", "target:t"), ("keep", "1m"), ("accept", "5s")];
    receiver.answer([500]);
    let accepted = client.acquire("a", &fields).await.expect_status(202).json();
    let path = format!("/tickets/{}", accepted["ticket"].as_str().expect("an id"));
    poll::until("the second try is accepted", || async {
        (client.get(&path).await.json()["state"] == "accepted").then_some(())
    })
    .await;
    assert!(!prometheus.has_fired("RedlockdCallbacksFailing").await);
    receiver.answer([500; 8]);
    client.acquire("b", &fields).await.expect_status(202);
    prometheus.until_fired(&["RedlockdCallbacksFailing", "RedlockdTicketsUndelivered"]).await;
}
