//! Every right on every endpoint, and requests without credentials.

use std::sync::atomic::{AtomicUsize, Ordering};

use super::{Access, acquired, as_principal, key};
use crate::support::client::{Answer, send};
use crate::support::service::Service;

/// A request, and the rights of which one is sufficient; none: public.
struct Ask {
    method: &'static str,
    path: &'static str,
    enough: &'static [&'static str],
    /// Status if it is allowed: `deploy/prod` has another holder, `deploy/free` is free.
    status: u16,
}

const fn ask(method: &'static str, path: &'static str, enough: &'static [&'static str], status: u16) -> Ask {
    Ask { method, path, enough, status }
}

/// Of the next token that nobody has.
static NEXT: AtomicUsize = AtomicUsize::new(0);
const READS: &[&str] = &["read", "acquire", "force", "events", "admin"];
const ASKS: &[Ask] = &[
    ask("POST", "/locks/deploy/prod", &["acquire", "admin"], 423),
    ask("POST", "/locks/deploy/prod?hold=true", &["acquire", "admin"], 423),
    ask("PATCH", "/locks/deploy/prod", &["acquire", "admin"], 409),
    ask("DELETE", "/locks/deploy/prod", &["acquire", "admin"], 409),
    // The wrong tag, so that nothing is ended.
    ask("DELETE", "/locks/deploy/prod?force=revoke&reason=test", &["force", "admin"], 412),
    ask("DELETE", "/locks/deploy/prod?force=now&reason=test", &["force", "admin"], 412),
    ask("GET", "/locks/deploy/prod", READS, 200),
    ask("HEAD", "/locks/deploy/prod", READS, 200),
    ask("GET", "/locks/deploy/free", READS, 404),
    ask("GET", "/fences/deploy/prod?fence=1", READS, 412),
    // Without a body.
    ask("LOCK", "/terraform/deploy/prod", &["acquire", "admin"], 400),
    ask("POST", "/terraform/deploy/prod/lock", &["acquire", "admin"], 400),
    ask("GET", "/locks", READS, 200),
    ask("GET", "/nodes", &["metrics", "admin"], 200),
    // Nobody's name, so that nothing is changed.
    ask("POST", "/nodes/none?action=forget&reason=test", &["admin"], 404),
    ask("POST", "/nodes?reason=test", &["admin"], 400),
    ask("GET", "/metrics", &["metrics", "admin"], 200),
    ask("GET", "/events", &["events", "admin"], 200),
    ask("GET", "/health/live", &[], 200),
    ask("GET", "/health/ready", &[], 200),
    ask("GET", "/openapi.yaml", &[], 200),
    ask("GET", "/problems/forbidden", &[], 200),
];
const RIGHTS: [&str; 6] = ["read", "acquire", "force", "events", "metrics", "admin"];

/// Asks with a token of nobody's and a tag that is not the holder's. Endless answers are not read.
async fn answer(service: &Service, ask: &Ask, authorization: Option<String>) -> (u16, Answer) {
    let mut request = service.client().request(ask.method, ask.path);
    if matches!(ask.method, "PATCH" | "DELETE") {
        // Another one each time: one that was refused is remembered as given back.
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        request = request.header("Lock-Token", format!("nobodys-token-{number:016}"));
    }
    if ask.path.contains("force=") {
        request = request.header("If-Match", "\"1\"");
    }
    if let Some(value) = authorization {
        request = request.header("Authorization", value);
    }
    let response = request.send().await.expect("an answer");
    let (status, headers) = (response.status().as_u16(), response.headers().clone());
    let endless = ask.path == "/events" && status == 200;
    let text = if endless { String::new() } else { response.text().await.expect("a body") };
    (status, Answer { status, headers, text, took: std::time::Duration::ZERO })
}

#[tokio::test]
async fn every_endpoint_requires_its_right() {
    let rule = |right: &str, names: &str| match right {
        "metrics" | "admin" => right.to_owned(),
        _ => format!("{right}:{names}"),
    };
    let allowed: Vec<String> = RIGHTS.iter().map(|right| rule(right, "deploy/*")).collect();
    let elsewhere: Vec<String> = RIGHTS[..4].iter().map(|right| rule(right, "other/**")).collect();
    let (allowed, elsewhere): (Vec<&str>, Vec<&str>) =
        (allowed.iter().map(String::as_str).collect(), elsewhere.iter().map(String::as_str).collect());
    let mut principals: Vec<(&str, &[&str])> = RIGHTS.iter().enumerate().map(|(i, r)| (*r, &allowed[i..=i])).collect();
    principals.extend([("elsewhere", &elsewhere[..]), ("nothing", &[]), ("holder", &["acquire:**"])]);
    let access = Access::of(&principals);
    let service = access.service(&["--set", "requests_per_second=1000000"]).await;
    acquired(&service, "holder", "deploy/prod").await;
    for ask in ASKS {
        let at = format!("{} {}", ask.method, ask.path);
        let open = ask.enough.is_empty();
        for right in RIGHTS {
            let (status, answer) = answer(&service, ask, Some(format!("Bearer {}", key(right)))).await;
            if open || ask.enough.contains(&right) {
                assert_eq!(status, ask.status, "{at} with {right}: {answer:?}");
            } else {
                assert_eq!(status, 403, "{at} with {right}: {answer:?}");
            }
            if status == 403 && ask.method != "HEAD" {
                let body = answer.clone().expect_problem(403, "forbidden").json();
                assert!(ask.enough.contains(&body["needed"].as_str().expect("a right")), "{at}: {body}");
                let on_name = ["/locks/", "/fences/", "/terraform/"].iter().any(|prefix| ask.path.starts_with(prefix));
                assert_eq!(body["resource"].is_string(), on_name, "{at}: {body}");
            }
        }
        for (who, authorization) in [
            ("nobody", None),
            ("an unknown key", Some("Bearer rlk_wrong".to_owned())),
            ("a hash", Some(format!("Bearer {}", redlockd::auth::api_key::KeyHash::of(key("admin").as_bytes()).hex()))),
            ("a cookie", Some(String::new())),
        ] {
            let (status, answer) = answer(&service, ask, authorization).await;
            assert_eq!(status, if open { ask.status } else { 401 }, "{at} as {who}: {answer:?}");
            if !open {
                assert!(answer.header("www-authenticate").starts_with("Bearer realm=\"redlockd\""), "{at}");
                if ask.method != "HEAD" {
                    answer.expect_problem(401, "unauthenticated");
                }
            }
        }
        // Rights on other names are none on these; the list, the stream and what is open answer.
        let (status, answer) = answer(&service, ask, Some(format!("Bearer {}", key("elsewhere")))).await;
        let nameless = open || matches!(ask.path, "/locks" | "/events");
        assert_eq!(status, if nameless { ask.status } else { 403 }, "{at} with rights elsewhere: {answer:?}");
    }
    // Nothing that was denied has had any effect.
    let seen = as_principal(service.client().request("GET", "/locks/deploy/prod"), "read").await.expect_status(200);
    assert_eq!(seen.json()["holders"][0]["renewals"], 0);
}

#[tokio::test]
async fn a_body_cannot_turn_a_release_into_a_forced_end() {
    let access = Access::of(&[("ci", &["acquire:**"]), ("ops", &["force:**"])]);
    let service = access.service(&[]).await;
    let token = acquired(&service, "ci", "x").await;
    for form in ["force=now&reason=mine", "force=revoke&reason=mine"] {
        let request = service.client().request("DELETE", "/locks/x").header("Lock-Token", &token);
        let request = request.header("Content-Type", "application/x-www-form-urlencoded").body(form);
        as_principal(request, "ci").await.expect_problem(403, "forbidden");
    }
    let json = r#"{"force":"now","reason":"mine"}"#;
    let request = service.client().request("DELETE", "/locks/x").header("Content-Type", "application/json").body(json);
    as_principal(request, "ci").await.expect_problem(403, "forbidden");
    // The right to force does not allow a release with a token.
    let request = service.client().request("DELETE", "/locks/x").header("Lock-Token", &token);
    let denied = as_principal(request, "ops").await.expect_problem(403, "forbidden");
    assert_eq!(denied.json()["needed"], "acquire");
    let request = service.client().request("DELETE", "/locks/x?force=now&reason=stuck");
    as_principal(request, "ops").await.expect_status(204);
}

/// The token is required and not sufficient: the right to acquire is needed too.
#[tokio::test]
async fn a_token_can_be_used_by_every_principal_that_may_acquire_the_name() {
    let access =
        Access::of(&[("ci", &["acquire:deploy/*"]), ("cd", &["acquire:**"]), ("eve", &["acquire:other", "read:**"])]);
    let service = access.service(&[]).await;
    let token = acquired(&service, "ci", "deploy/prod").await;
    let with_token = |method: &str| service.client().request(method, "/locks/deploy/prod").header("Lock-Token", &token);
    send(with_token("DELETE")).await.expect_problem(401, "unauthenticated");
    send(with_token("PATCH")).await.expect_problem(401, "unauthenticated");
    as_principal(with_token("DELETE"), "eve").await.expect_problem(403, "forbidden");
    as_principal(with_token("PATCH"), "eve").await.expect_problem(403, "forbidden");
    as_principal(with_token("PATCH"), "cd").await.expect_status(200);
    as_principal(with_token("DELETE"), "cd").await.expect_status(204);
}

#[tokio::test]
async fn a_key_is_accepted_as_the_password_of_basic_authentication() {
    let access = Access::of(&[("ci", &["acquire:**"])]);
    let service = access.service(&[]).await;
    let request = || service.client().request("POST", "/locks/x");
    send(request().basic_auth("anything", Some(key("ci")))).await.expect_status(201);
    send(request().basic_auth(key("ci"), None::<&str>)).await.expect_problem(401, "unauthenticated");
    send(request().basic_auth("ci", Some("wrong"))).await.expect_problem(401, "unauthenticated");
    send(service.client().request("POST", &format!("/locks/x?key={}", key("ci")))).await.expect_status(401);
}
