//! Forms without a browser: what must be refused, and with which status.

use super::fixture;
use crate::support::client::{Answer, Client, send};

async fn post(client: &Client, path: &str, headers: &[(&str, &str)], fields: &[(&str, &str)]) -> Answer {
    let mut request = client.request("POST", path).form(fields);
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    send(request).await
}

#[tokio::test]
async fn a_form_of_another_site_is_refused_and_one_of_the_same_origin_accepted() {
    let service = fixture::service().await;
    let client = service.client();
    let lease = client.acquired("x", &[("ttl", "1m")]).await;
    let tag = lease.fence().to_string();
    let fields = [("tag", tag.as_str()), ("reason", "stuck"), ("name", "x")];
    for path in ["/ui/revoke/x", "/ui/release/x"] {
        for headers in [
            &[("sec-fetch-site", "cross-site")][..],
            &[("sec-fetch-site", "same-site")],
            &[("origin", "https://evil.example")],
            &[("origin", "null")],
        ] {
            post(client, path, headers, &fields).await.expect_problem(403, "forbidden");
        }
        post(client, path, &[("host", "evil.example")], &fields).await.expect_problem(421, "host-not-allowed");
    }
    // It is untouched: not even its renewal is refused.
    client.extend("x", &lease.token(), &[]).await.expect_status(200);
    let done = ("sec-fetch-site", "same-origin");
    let answer = post(client, "/ui/release/x", &[done], &fields).await;
    assert!(answer.text.contains("Released."), "{answer:?}");
    client.inspect("x").await.expect_status(404);
}

#[tokio::test]
async fn a_rejected_form_has_the_status_of_its_mistake() {
    let service = fixture::service().await;
    let client = service.client();
    let lease = client.acquired("x", &[("ttl", "1m")]).await;
    let tag = lease.fence().to_string();
    let long = "x".repeat(513);
    for (path, tag, reason, name, status, said) in [
        ("/ui/revoke/x", tag.as_str(), " ", "", 400, "A reason is required"),
        ("/ui/revoke/x", tag.as_str(), long.as_str(), "", 400, "too long"),
        ("/ui/revoke/x", "", "stuck", "", 400, "which lease is meant"),
        ("/ui/release/x", tag.as_str(), "stuck", "y", 400, "not the name of this lock"),
        ("/ui/revoke/x", "1", "stuck", "", 412, "The lock has another holder now"),
        ("/ui/release/x", "1", "stuck", "x", 412, "The lock has another holder now"),
        ("/ui/release/free", "1", "stuck", "free", 404, "The lock is no longer held"),
    ] {
        let fields = [("tag", tag), ("reason", reason), ("name", name)];
        let answer = post(client, path, &[], &fields).await.expect_status(status);
        assert!(answer.text.contains(said), "{path}: {}", answer.text);
    }
    let unknown = [("tag", tag.as_str()), ("reason", "stuck"), ("force", "now")];
    post(client, "/ui/revoke/x", &[], &unknown).await.expect_problem(400, "invalid");
    client.extend("x", &lease.token(), &[]).await.expect_status(200);
}

#[tokio::test]
async fn accepted_and_refused_forms_are_in_the_audit_log() {
    use crate::support::poll;
    use crate::support::service::{Service, path};
    let dir = tempfile::tempdir().expect("a directory");
    let file = dir.path().join("audit.log");
    let setting = format!("audit_log={}", path(&file));
    let service = Service::embedded(&["--set", &setting]).await;
    let client = service.client();
    let lease = client.acquired("x", &[("ttl", "1m")]).await;
    let tag = lease.fence().to_string();
    let form = |tag, reason| [("tag", tag), ("reason", reason), ("name", "x")];
    let cross_site = [("sec-fetch-site", "cross-site")];
    post(client, "/ui/revoke/x", &cross_site, &form(&tag, "forged")).await.expect_status(403);
    post(client, "/ui/revoke/x", &[], &form(&tag, "")).await.expect_status(400);
    post(client, "/ui/revoke/x", &[], &form("1", "stale")).await.expect_status(412);
    post(client, "/ui/revoke/x", &[], &form(&tag, "hangs")).await;
    post(client, "/ui/release/x", &[], &form(&tag, "is dead")).await;
    let written = poll::until("all five are in the audit log", || async {
        let text = std::fs::read_to_string(&file).unwrap_or_default();
        let lines = text.lines().filter_map(|line| serde_json::from_str::<serde_json::Value>(line).ok());
        let is_ours = |action: &str| matches!(action, "POST /ui/revoke/{resource}" | "revoke" | "force-now");
        let ours: Vec<_> = lines.filter(|line| is_ours(line["action"].as_str().unwrap_or_default())).collect();
        (ours.len() == 5).then_some(ours)
    })
    .await;
    let word = |line: &serde_json::Value, name: &str| line[name].as_str().unwrap_or("-").to_owned();
    let said: Vec<String> = written
        .iter()
        .map(|line| ["action", "resource", "outcome", "reason"].map(|name| word(line, name)).join("|"))
        .collect();
    assert_eq!(
        said,
        [
            "POST /ui/revoke/{resource}|-|forbidden|-",
            "revoke|x|invalid|",
            "revoke|x|changed|stale",
            "revoke|x|revoked|hangs",
            "force-now|x|forced|is dead"
        ]
    );
    assert!(written[4]["token_id"].is_string() && written[4]["fence"].is_number(), "{}", written[4]);
}

#[tokio::test]
async fn pages_can_be_disabled_and_never_show_a_token() {
    use crate::support::service::Service;
    let off = Service::embedded(&["--set", "ui=false"]).await;
    off.client().get("/ui/").await.expect_problem(404, "not-found");
    off.client().get("/locks").await.expect_status(200);
    let on = fixture::service().await;
    let lease = on.client().acquired("x", &[("ttl", "1m")]).await;
    for path in ["/ui/", "/ui/locks/x", "/ui/revoke/x", "/ui/release/x", "/ui/owners", "/ui/events"] {
        let page = on.client().get(path).await.expect_status(200);
        assert!(!page.text.contains(&lease.token()), "{path}");
        assert_eq!(page.header("cache-control"), "no-store");
    }
    let redirected = on.client().get("/").await.expect_status(200);
    assert!(redirected.text.contains("<title>Locks"), "the root leads to the pages");
}
