//! Host names: without authentication a request under an unknown host name is refused (DNS rebinding), and a service
//! that listens on other addresses without authentication shows it on every page.

use std::sync::Arc;

use reqwest::RequestBuilder;

use super::{Access, as_principal, pages};
use crate::support::client::{Answer, send};
use crate::support::service::{SHORT_TIMES, Service, path};

const UNKNOWN_HOST: &str = "rebound.evil.example:5625";
const BANNER: &str = "No authentication.";

fn under(request: RequestBuilder, host: &str) -> RequestBuilder {
    request.header("Host", host)
}

async fn get_under(service: &Service, path: &str, host: &str) -> Answer {
    send(under(service.client().request("GET", path), host)).await
}

/// A service without authentication that other machines can reach.
async fn open_to_others(more: &[&str]) -> Service {
    reachable(&[&["--insecure-no-auth"], more].concat()).await
}

/// On all addresses.
async fn reachable(more: &[&str]) -> Service {
    let data = Arc::new(tempfile::tempdir().expect("a temporary directory"));
    Service::start_at("0.0.0.0:0", data, &[&SHORT_TIMES, more].concat()).await
}

#[tokio::test]
async fn unknown_host_names_are_refused_without_authentication() {
    let dir = tempfile::tempdir().expect("a directory");
    let audit = dir.path().join("audit.log");
    let setting = format!("audit_log={}", path(&audit));
    let service = Service::embedded(&["--set", "allowed_hosts=locks.test", "--set", &setting]).await;
    let client = service.client();
    let token = client.acquired("x", &[("owner", "me")]).await.token();
    for (method, path) in [
        ("POST", "/locks/y"),
        ("PATCH", "/locks/x"),
        ("DELETE", "/locks/x?force=now&reason=evil"),
        ("GET", "/locks/x"),
        ("GET", "/locks"),
        ("GET", "/nodes"),
        ("GET", "/events"),
        ("GET", "/metrics"),
        ("GET", "/ui/"),
        ("GET", "/ui/stream"),
    ] {
        let request = client.request(method, path).header("Lock-Token", &token);
        let answer = send(under(request, UNKNOWN_HOST)).await.expect_problem(421, "host-not-allowed");
        assert!(answer.text.contains("`allowed_hosts`") && !answer.text.contains("evil"), "{answer:?}");
    }
    // Health is public; the states of the nodes are not.
    for (path, host) in [("/health/live", UNKNOWN_HOST), ("/health/ready", UNKNOWN_HOST), ("/locks", "locks.test")] {
        get_under(&service, path, host).await.expect_status(200);
    }
    for host in ["localhost:1", "[::1]:5625", "192.0.2.7"] {
        get_under(&service, "/locks/x", host).await.expect_status(200);
    }
    client.inspect("y").await.expect_status(404);
    client.release("x", &token).await.expect_status(204);
    let metrics = client.get("/metrics").await.text;
    assert!(metrics.contains("redlockd_auth_failures_total{reason=\"host-not-allowed\"} 10"), "{metrics}");
    service.terminate();
    let mut service = service;
    assert_eq!(service.exit_code().await, Some(0));
    let written = std::fs::read_to_string(&audit).expect("readable");
    assert_eq!(written.matches("\"host-not-allowed\"").count(), 10, "{written}");
}

#[tokio::test]
async fn with_authentication_host_names_matter_for_pages_only() {
    let service = Access::of(&[("ci", &["admin"])]).service(&[]).await;
    let list = || under(service.client().request("GET", "/locks"), UNKNOWN_HOST);
    as_principal(list(), "ci").await.expect_status(200);
    send(list()).await.expect_problem(401, "unauthenticated");
    get_under(&service, "/ui/login", UNKNOWN_HOST).await.expect_problem(421, "host-not-allowed");
}

#[tokio::test]
async fn a_service_opened_on_purpose_accepts_any_host_name_until_names_are_configured() {
    let service = open_to_others(&[]).await;
    for path in ["/locks", "/metrics", "/ui/"] {
        get_under(&service, path, "redlockd:5625").await.expect_status(200);
    }
    // With configured names, others are refused.
    let service = open_to_others(&["--set", "allowed_hosts=redlockd"]).await;
    for path in ["/locks", "/metrics", "/ui/"] {
        get_under(&service, path, "redlockd:5625").await.expect_status(200);
        get_under(&service, path, UNKNOWN_HOST).await.expect_problem(421, "host-not-allowed");
    }
}

#[tokio::test]
async fn missing_authentication_is_shown_on_every_page_and_in_the_log() {
    let (open, private) = (open_to_others(&[]).await, Service::embedded(&["--insecure-no-auth"]).await);
    let access = Access::of(&[("ci", &["admin"])]);
    let closed = reachable(&["--set", &access.setting()]).await;
    assert!(pages().len() > 10);
    for (service, is_open) in [(&open, true), (&private, false), (&closed, false)] {
        let take = service.client().request("POST", "/locks/deploy/prod");
        as_principal(take, "ci").await.expect_status(201);
        for path in pages() {
            let page = service.client().request("GET", &path).header("Accept", "text/html");
            let page = as_principal(page, "ci").await;
            assert!(page.header("content-type").starts_with("text/html") && page.text.contains("<h1"), "{path}");
            assert_eq!(page.text.contains(BANNER), is_open, "{path}: {}", page.text);
        }
        assert_eq!(service.output().iter().any(|line| line.contains("NO AUTHENTICATION")), is_open);
    }
}
