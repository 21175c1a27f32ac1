//! The authentication layer around handlers that do nothing: what each operation needs, how keys are presented, and
//! that no spelling of a name evades a rule.

use axum::Router;
use axum::body::Body;
use axum::http::{Method, header};
use axum::routing::{MethodFilter, any, on};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use proptest::prelude::*;
use tower::ServiceExt;

use super::*;
use crate::auth::access_file;
use crate::auth::api_key::KeyHash;
use crate::auth::principal::PrincipalLimits;
use crate::auth::principals::PeerCertificate;
use crate::auth::principals::PrincipalStore;
use crate::http::allowed_hosts::AllowedHosts;
use crate::http::routes::{ROUTES, Route};
use crate::http::state::shipped_settings;
use crate::http::webdav_methods::ByMethod;

fn authenticator(rules: &[&str]) -> Arc<Authenticator> {
    let store = store("secret", rules);
    Arc::new(Authenticator::with_principals(store, PrincipalLimits::default()))
}

fn store(key: &str, rules: &[&str]) -> PrincipalStore {
    let hash = KeyHash::of(key.as_bytes()).hex();
    let rules = rules.iter().map(|r| format!("{r:?}")).collect::<Vec<_>>().join(", ");
    access_file::parse(&format!("[[principal]]\nname = \"ci\"\nkeys = [{{ sha256 = \"{hash}\" }}]\nallow = [{rules}]"))
        .expect("good")
}

/// Every route behind its layer, each answering 200.
fn echo(authenticator: &Arc<Authenticator>, settings: &Arc<HttpSettings>) -> Router {
    let mut router = Router::new();
    let layer = |route| AuthLayer::new(Arc::clone(authenticator), Arc::clone(settings), route);
    let (own, others): (Vec<&Route>, Vec<&Route>) =
        ROUTES.iter().filter(|r| r.method != "HEAD").partition(|route| route.path.starts_with(TERRAFORM_PREFIX));
    let by_method = own.iter().map(|route| (*route, any(async || {}).layer(layer(route)))).collect();
    router = router.route(own[0].pattern, any(ByMethod::new(by_method, any(async || {}))));
    for route in others {
        let filter = MethodFilter::try_from(route.method.parse::<Method>().expect("a method")).expect("usual");
        router = router.route(route.pattern, on(filter, async || {}).layer(layer(route)));
    }
    router
}

fn settings() -> Arc<HttpSettings> {
    Arc::new(shipped_settings())
}

fn request(method: &str, path: &str, authorization: &[&str]) -> Request {
    let mut request = Request::builder().method(method).uri(path).header("Host", "127.0.0.1:5625");
    for value in authorization {
        request = request.header("Authorization", *value);
    }
    request.body(Body::empty()).expect("a request")
}

async fn status(authenticator: &Arc<Authenticator>, method: &str, path: &str, authorization: &[&str]) -> u16 {
    let response =
        echo(authenticator, &settings()).oneshot(request(method, path, authorization)).await.expect("infallible");
    if response.status() == 401 {
        // L13: credentials that are refused are called that.
        let error = if authorization.is_empty() { "" } else { ", error=\"invalid_token\"" };
        assert_eq!(response.headers()[header::WWW_AUTHENTICATE], format!("Bearer realm=\"redlockd\"{error}"));
    }
    response.status().as_u16()
}

/// The path of a route with a resource in it.
fn path_of(route: &crate::http::routes::Route) -> String {
    route
        .path
        .replace("{resource}", "deploy/prod")
        .replace("{slug}", "locked")
        .replace("{node}", "n1")
        .replace("{ticket}", "tk_0")
}

#[tokio::test]
async fn every_route_needs_the_right_that_the_table_names() {
    const KEY: &[&str] = &["Bearer secret"];
    for route in &ROUTES {
        let path = path_of(route);
        let needs = Requirement::of(route.operation);
        let open = if needs == Requirement::Nothing { 200 } else { 401 };
        let at = |rights: &'static [&'static str], key| {
            let path = path.clone();
            async move { status(&authenticator(rights), route.method, &path, key).await }
        };
        assert_eq!(at(&["admin"], &[]).await, open, "{route:?}");
        assert_eq!(at(&["admin"], &["Bearer wrong"]).await, open, "{route:?}");
        assert_eq!(at(&["admin"], KEY).await, 200, "{route:?}");
        let needs_no_right = matches!(needs, Requirement::Nothing | Requirement::Credentials);
        let denied = if needs_no_right { 200 } else { 403 };
        assert_eq!(at(&[], KEY).await, denied, "{route:?}");
        for (rule, right) in [
            (&["read:deploy/*"][..], Right::Read),
            (&["acquire:deploy/*"], Right::Acquire),
            (&["force:deploy/*"], Right::Force),
            (&["events:deploy/*"], Right::Events),
            (&["metrics"], Right::Metrics),
        ] {
            let reads = !matches!(right, Right::Metrics);
            let does = match needs {
                Requirement::Nothing | Requirement::Credentials => true,
                Requirement::Release => matches!(right, Right::Acquire | Right::Force),
                Requirement::OnName(Right::Read) | Requirement::Somewhere(Right::Read) => reads,
                Requirement::OnName(needed) | Requirement::Somewhere(needed) => needed == right,
            };
            assert_eq!(at(rule, KEY).await, if does { 200 } else { 403 }, "{route:?} with {rule:?}");
        }
        // On another name the same right does nothing.
        if matches!(needs, Requirement::OnName(_) | Requirement::Release) {
            let other = ["acquire:other/*", "force:other/*", "events:deploy", "read:deploy/prod2"];
            assert_eq!(status(&authenticator(&other), route.method, &path, KEY).await, 403, "{route:?}");
        }
    }
}

#[tokio::test]
async fn without_authentication_everything_is_open() {
    let open = Arc::new(Authenticator::open());
    for (method, path) in [("POST", "/locks/a"), ("DELETE", "/locks/a"), ("GET", "/metrics")] {
        assert_eq!(status(&open, method, path, &[]).await, 200, "{path}");
        assert_eq!(status(&open, method, path, &["Bearer whatever"]).await, 200, "{path}");
    }
    assert_eq!(status(&authenticator(&[]), "GET", "/nothing", &[]).await, 404, "unknown paths need no key");
}

#[tokio::test]
async fn a_key_is_sent_as_bearer_or_as_the_password_of_basic_and_once() {
    let authenticator = authenticator(&["read:**"]);
    let basic = |text: &str| format!("Basic {}", STANDARD.encode(text));
    for good in ["Bearer secret", "bearer  secret ", &basic(":secret"), &basic("ci:secret"), &basic("x:secret")] {
        assert_eq!(status(&authenticator, "GET", "/locks", &[good]).await, 200, "{good}");
    }
    for bad in [
        "Bearer",
        "Bearer ",
        "Bearer wrong",
        "secret",
        "Bearersecret",
        "Digest secret",
        "Basic secret",
        "Basic !",
        &basic("secret"),
        &basic("secret:"),
        &basic(":secret:"),
        "Bearer secret secret",
    ] {
        assert_eq!(status(&authenticator, "GET", "/locks", &[bad]).await, 401, "{bad}");
    }
    assert_eq!(status(&authenticator, "GET", "/locks", &["Bearer secret", "Bearer secret"]).await, 401);
    // A password may hold a colon; the user name may not.
    let odd = Arc::new(Authenticator::with_principals(store("a:b", &["read:**"]), PrincipalLimits::default()));
    assert_eq!(status(&odd, "GET", "/locks", &[&basic("ci:a:b")]).await, 200);
}

#[tokio::test]
async fn a_certificate_authenticates_without_a_key_and_does_not_excuse_a_wrong_one() {
    let store = access_file::parse("[[principal]]\nname = \"ci\"\ncertificates = [\"dns:ci\"]\nallow = [\"read:**\"]")
        .expect("good");
    let authenticator = Arc::new(Authenticator::with_principals(store, PrincipalLimits::default()));
    let (dns, fingerprint) = (vec!["ci".into()], KeyHash::of(b"c"));
    let peer = Arc::new(PeerCertificate { dns, uris: vec![], fingerprint, not_after_s: i64::MAX });
    for (authorization, expected) in [(&[][..], 200), (&["Bearer wrong"], 401)] {
        let mut request = request("GET", "/locks", authorization);
        request.extensions_mut().insert(Arc::clone(&peer));
        let response = echo(&authenticator, &settings()).oneshot(request).await.expect("infallible");
        assert_eq!(response.status(), expected);
    }
}

#[tokio::test]
async fn a_request_that_the_layer_did_not_see_has_no_permissions() {
    let access = RequestContext::access(&request("GET", "/locks", &[]));
    assert!(RIGHTS.iter().all(|(right, _)| !access.may_somewhere(*right)) && access.renewed().is_none());
    assert!(!access.may_text(Right::Read, "x"));
}

use crate::auth::access_rule::RIGHTS;

#[tokio::test]
async fn a_cross_site_request_changes_nothing_even_without_authentication() {
    let authenticator = Arc::new(Authenticator::open());
    for (headers, method, expected) in [
        (&[("Sec-Fetch-Site", "cross-site")][..], "POST", 403),
        (&[("Sec-Fetch-Site", "same-site")], "DELETE", 403),
        (&[("Sec-Fetch-Site", "cross-site")], "GET", 200),
        (&[("Sec-Fetch-Site", "same-origin"), ("Origin", "http://other")], "POST", 200),
        (&[("Sec-Fetch-Site", "none")], "POST", 200),
        (&[("Origin", "http://evil.example"), ("Host", "127.0.0.1:5625")], "POST", 403),
        (&[("Origin", "null"), ("Host", "127.0.0.1:5625")], "PATCH", 403),
        (&[("Origin", "http://127.0.0.1:5625"), ("Host", "127.0.0.1:5625")], "POST", 200),
        (&[("Origin", "http://127.0.0.1:5625")], "POST", 403),
        (&[("Host", "127.0.0.1:5625")], "POST", 200),
    ] {
        let mut request = request(method, "/locks/a", &[]);
        request.headers_mut().remove(header::HOST);
        for (name, value) in headers {
            request.headers_mut().insert(*name, value.parse().expect("a header value"));
        }
        let response = echo(&authenticator, &settings()).oneshot(request).await.expect("infallible");
        assert_eq!(response.status(), expected, "{method} {headers:?}");
    }
}

/// DNS rebinding: without authentication only the host name distinguishes a foreign page from a local program.
#[tokio::test]
async fn foreign_host_names_are_refused_without_authentication_and_for_pages() {
    let send =
        async |(authenticator, hosts): (&Arc<Authenticator>, &AllowedHosts), method: &str, path: &str, host: &str| {
            let mut request = request(method, path, &[]);
            request.headers_mut().insert(header::HOST, host.parse().expect("a value"));
            let settings = Arc::new(HttpSettings { hosts: hosts.clone(), ..shipped_settings() });
            let response = echo(authenticator, &settings).oneshot(request).await.expect("infallible");
            response.status().as_u16()
        };
    let listed = AllowedHosts::of(vec!["locks.example".to_owned()]);
    let open = Arc::new(Authenticator::open());
    for route in &ROUTES {
        let path = path_of(route);
        let is_page = matches!(route.operation, Operation::Ui(_));
        let is_public = !is_page && Requirement::of(route.operation) == Requirement::Nothing;
        let foreign = if is_public { 200 } else { 421 };
        for (host, expected) in [
            ("127.0.0.1:5625", 200),
            ("[::1]:5625", 200),
            ("localhost", 200),
            ("Locks.Example:5625", 200),
            ("evil.example:5625", foreign),
            ("127.0.0.1.evil.example", foreign),
            ("redlockd:5625", foreign),
        ] {
            assert_eq!(send((&open, &listed), route.method, &path, host).await, expected, "{route:?} at {host}");
        }
    }
    assert_eq!(send((&open, &AllowedHosts::any()), "POST", "/locks/a", "redlockd:5625").await, 200);
    let closed = authenticator(&["read:**"]);
    assert_eq!(
        send((&closed, &listed), "GET", "/locks", "evil.example").await,
        401,
        "the API needs a key under any name"
    );
    assert_eq!(send((&closed, &listed), "GET", "/ui/login", "evil.example").await, 421, "pages always check the name");
    assert_eq!(send((&closed, &listed), "GET", "/ui/", "evil.example").await, 421);
}

/// A request without `Host` comes from no browser: the API answers it, pages do not.
#[tokio::test]
async fn without_a_host_there_is_an_api_and_no_page() {
    let open = Arc::new(Authenticator::open());
    for (path, expected) in [("/locks", 200), ("/ui/", 421)] {
        let mut request = request("GET", path, &[]);
        request.headers_mut().remove(header::HOST);
        let response = echo(&open, &settings()).oneshot(request).await.expect("infallible");
        assert_eq!(response.status(), expected, "{path}");
    }
}

/// Public operations answer under every name, but a foreign name gets no permissions.
#[tokio::test]
async fn under_a_foreign_name_public_operations_have_no_permissions() {
    let authenticator = Arc::new(Authenticator::open());
    let route = ROUTES.iter().find(|route| route.operation == Operation::Ready).expect("a route");
    for (host, may) in [("127.0.0.1", true), ("evil.example", false)] {
        let mut request = request("GET", "/health/ready", &[]);
        request.headers_mut().insert(header::HOST, host.parse().expect("a value"));
        let report = |request: Request| async move {
            RequestContext::access(&request).may_somewhere(Right::Metrics).to_string()
        };
        let auth = AuthLayer::new(Arc::clone(&authenticator), settings(), route);
        let router = Router::new().route("/health/ready", axum::routing::get(report).layer(auth));
        let response = router.oneshot(request).await.expect("infallible");
        let body = axum::body::to_bytes(response.into_body(), 100).await.expect("a body");
        assert_eq!(body, may.to_string().as_bytes(), "{host}");
    }
}

/// Spellings of a name in a path.
fn spellings() -> impl Strategy<Value = String> {
    let byte = prop_oneof![
        4 => "[a-z]".prop_map(|s| s),
        2 => Just("secret".to_owned()),
        2 => Just("/".to_owned()),
        1 => Just("%2F".to_owned()),
        1 => Just("%2f".to_owned()),
        1 => Just("%73ecret".to_owned()),
        1 => Just("%2e%2e".to_owned()),
        1 => Just("..".to_owned()),
        1 => Just(".".to_owned()),
        1 => Just("%00".to_owned()),
        1 => Just("%252F".to_owned()),
        1 => Just("SECRET".to_owned()),
        1 => Just(";".to_owned()),
        1 => Just("%c0%af".to_owned()),
        1 => Just("//".to_owned()),
    ];
    proptest::collection::vec(byte, 1..8).prop_map(|parts| format!("/locks/{}", parts.concat()))
}

proptest! {
    /// With rights on some names and not on `secret/…`, a request passes only if the name that the handler will parse is
    /// not below `secret/`, or is invalid, which the handler refuses.
    #[test]
    fn no_spelling_of_a_name_evades_a_rule(path in spellings(), method in 0_usize..4) {
        let Ok(uri) = path.parse::<axum::http::Uri>() else { return Ok(()) };
        let method = ["GET", "POST", "PATCH", "DELETE"][method];
        let authenticator = authenticator(&["acquire:a/**", "acquire:b", "acquire:b/*"]);
        let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
        let seen = runtime.block_on(status(&authenticator, method, &path, &["Bearer secret"]));
        let store = authenticator.store();
        let rules = &store.principals()[0].rules;
        let expected = match path::resource(&uri) {
            Ok(name) if rules.allow(Right::Acquire, &name) => 200,
            Ok(_) => 403,
            // The handler's 400; or no such route.
            Err(_) => if seen == 404 { 404 } else { 200 },
        };
        prop_assert_eq!(seen, expected, "{}", path);
        let name = path::resource(&uri).map(|n| n.to_string()).unwrap_or_default();
        prop_assert!(seen != 200 || !name.starts_with("secret"), "{}", path);
    }
}
