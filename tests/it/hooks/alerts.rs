//! The alerts of hooks and call-backs, fired by receivers that refuse.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::State;
use axum::routing::get;
use redlockd::manager::callbacks::{CallbackEvent, CallbackKind, CallbackSender, DeliveryOutcome};
use redlockd::metrics::{Metrics, Scrape};
use redlockd::redlock::clock::{Clock, SystemClock};
use redlockd::redlock::entropy::SystemEntropy;
use redlockd::webhooks::deliveries::{CallbackDeliveries, TryObserver};
use redlockd::webhooks::hooks::Webhooks;
use redlockd::webhooks::resolver::SystemLookup;
use redlockd::webhooks::transport::HttpTransport;
use serde_json::Map;
use tokio_util::sync::CancellationToken;

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

async fn scrape(State(metrics): State<Arc<Metrics>>) -> String {
    metrics.scrape(&Scrape::default()).expect("it encodes")
}

/// The sender of call-backs with its metrics, without the rest of a service.
#[tokio::test(flavor = "multi_thread")]
async fn call_backs_that_nobody_accepts_are_reported() {
    if tool("prometheus").is_none() {
        return;
    }
    let _ = rustls::crypto::ring::default_provider().install_default();
    let (receiver, metrics) = (Receiver::start().await, Metrics::new(&[], &[]));
    metrics.add_webhooks();
    let file = HooksFile::with(&target("t", &receiver, ""));
    let (parts, counted) = ((SystemClock, SystemEntropy, HttpTransport), Arc::clone(&metrics));
    let observer: TryObserver =
        Box::new(move |kind, outcome, took| counted.webhook_tried(kind.as_str(), outcome.as_str(), took));
    let tried = Webhooks::open(parts, Some(file.path()), Arc::new(SystemLookup), "i".into(), observer).expect("good");
    let router = Router::new().route("/metrics", get(scrape)).with_state(metrics);
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let address = listener.local_addr().expect("bound");
    let server = tokio::spawn(async move { axum::serve(listener, router).await.expect("it serves") });
    let prometheus = Prometheus::start(&config(), &[address]).await;
    let query = "redlockd_webhook_deliveries_total{kind=\"callback\",outcome=\"gave-up\"}";
    poll::until("it is scraped", || async {
        let answer = prometheus.query(query).await;
        answer["data"]["result"].as_array().is_some_and(|found| !found.is_empty()).then_some(())
    })
    .await;
    let sender = CallbackDeliveries(Arc::clone(&tried.deliveries));
    let callback = sender.resolve("target:t", None).expect("a target");
    let event =
        CallbackEvent { id: "tk_1_granted".to_owned(), kind: CallbackKind::Granted, at_ms: 1, data: Map::new() };
    let deliver = async |statuses: &[u16]| {
        receiver.answer(statuses.iter().copied());
        let until = SystemClock.now().plus(Duration::from_secs(3));
        sender.deliver(callback.clone(), event.clone(), until, CancellationToken::new()).await
    };
    assert_eq!(deliver(&[500]).await, DeliveryOutcome::Accepted, "the second try");
    assert!(!prometheus.has_fired("RedlockdCallbacksFailing").await);
    assert_eq!(deliver(&[500; 8]).await, DeliveryOutcome::Undelivered);
    prometheus.until_fired(&["RedlockdCallbacksFailing"]).await;
    server.abort();
}
