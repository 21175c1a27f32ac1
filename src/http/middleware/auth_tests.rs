//! The layer around handlers that do nothing: what each operation needs, how keys are presented,
//! and that no spelling of a name gets around a rule.

use axum::Router;
use axum::body::Body;
use axum::http::Method;
use axum::routing::{MethodFilter, on};
use proptest::prelude::*;
use tower::ServiceExt;

use super::*;
use crate::auth::access_file;
use crate::auth::key::KeyHash;
use crate::auth::principal::PrincipalLimits;
use crate::auth::principals::PrincipalStore;
use crate::http::middleware::host::AllowedHosts;

fn gate(rules: &[&str]) -> Arc<Authenticator> {
    let book = book("secret", rules);
    Arc::new(Authenticator::with_principals(book, PrincipalLimits::default()))
}

fn book(key: &str, rules: &[&str]) -> PrincipalStore {
    let hash = KeyHash::of(key.as_bytes()).hex();
    let rules = rules.iter().map(|r| format!("{r:?}")).collect::<Vec<_>>().join(", ");
    access_file::parse(&format!("[[principal]]\nname = \"ci\"\nkeys = [{{ sha256 = \"{hash}\" }}]\nallow = [{rules}]"))
        .expect("good")
}

/// Every route, each answering 200; and one that is in no table.
fn echo(gate: Arc<Authenticator>) -> Router {
    behind(AuthLayer { gate, settings: Arc::default() })
}

fn behind(guard: AuthLayer) -> Router {
    let mut router = Router::new().route("/unlisted", on(MethodFilter::GET, || async {}));
    for route in ROUTES.iter().filter(|r| r.method != "HEAD") {
        let method = Method::from_bytes(route.method.as_bytes()).expect("a method");
        router = router.route(route.pattern, on(MethodFilter::try_from(method).expect("usual"), || async {}));
    }
    router.route_layer(guarded(guard))
}

fn request(method: &str, path: &str, authorization: &[&str]) -> Request {
    let mut request = Request::builder().method(method).uri(path);
    for value in authorization {
        request = request.header("Authorization", *value);
    }
    request.body(Body::empty()).expect("a request")
}

async fn status(gate: &Arc<Authenticator>, method: &str, path: &str, authorization: &[&str]) -> u16 {
    let response = echo(Arc::clone(gate)).oneshot(request(method, path, authorization)).await.expect("infallible");
    if response.status() == 401 {
        assert_eq!(response.headers()[header::WWW_AUTHENTICATE], "Bearer");
    }
    response.status().as_u16()
}

/// The path of a route with a resource in it.
fn path_of(route: &crate::http::routes::Route) -> String {
    route.path.replace("{resource}", "deploy/prod").replace("{slug}", "locked")
}

#[tokio::test]
async fn every_route_with_every_right_is_as_the_table_says() {
    const KEY: &[&str] = &["Bearer secret"];
    for route in &ROUTES {
        let path = path_of(route);
        let needs = Requirement::of(route.operation);
        let open = if needs == Requirement::Nothing { 200 } else { 401 };
        let at = |rights: &'static [&'static str], key| {
            let path = path.clone();
            async move { status(&gate(rights), route.method, &path, key).await }
        };
        assert_eq!(at(&["admin"], &[]).await, open, "{route:?}");
        assert_eq!(at(&["admin"], &["Bearer wrong"]).await, open, "{route:?}");
        assert_eq!(at(&["admin"], KEY).await, 200, "{route:?}");
        let denied = if needs == Requirement::Nothing { 200 } else { 403 };
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
                Requirement::Nothing => true,
                Requirement::Release => matches!(right, Right::Acquire | Right::Force),
                Requirement::OnName(Right::Read) | Requirement::Somewhere(Right::Read) => reads,
                Requirement::OnName(needed) | Requirement::Somewhere(needed) => needed == right,
            };
            assert_eq!(at(rule, KEY).await, if does { 200 } else { 403 }, "{route:?} with {rule:?}");
        }
        // On another name the same right does nothing.
        if matches!(needs, Requirement::OnName(_) | Requirement::Release) {
            let other = ["acquire:other/*", "force:other/*", "events:deploy", "read:deploy/prod2"];
            assert_eq!(status(&gate(&other), route.method, &path, KEY).await, 403, "{route:?}");
        }
    }
}

#[tokio::test]
async fn without_keys_everything_is_open_and_unlisted_routes_are_the_admins() {
    let open = Arc::new(Authenticator::open());
    for (method, path) in [("POST", "/locks/a"), ("DELETE", "/locks/a"), ("GET", "/metrics"), ("GET", "/unlisted")] {
        assert_eq!(status(&open, method, path, &[]).await, 200, "{path}");
        assert_eq!(status(&open, method, path, &["Bearer whatever"]).await, 200, "{path}");
    }
    assert_eq!(status(&gate(&["acquire:**", "metrics"]), "GET", "/unlisted", &["Bearer secret"]).await, 403);
    assert_eq!(status(&gate(&["admin"]), "GET", "/unlisted", &["Bearer secret"]).await, 200);
    assert_eq!(status(&gate(&["admin"]), "GET", "/unlisted", &[]).await, 401);
    assert_eq!(status(&gate(&[]), "GET", "/nothing", &[]).await, 404, "what is not there is nobody's");
}

#[tokio::test]
async fn a_key_comes_as_bearer_or_as_the_password_of_basic_and_in_one_header() {
    let gate = gate(&["read:**"]);
    let basic = |text: &str| format!("Basic {}", STANDARD.encode(text));
    for good in ["Bearer secret", "bearer  secret ", &basic(":secret"), &basic("ci:secret"), &basic("x:secret")] {
        assert_eq!(status(&gate, "GET", "/locks", &[good]).await, 200, "{good}");
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
        assert_eq!(status(&gate, "GET", "/locks", &[bad]).await, 401, "{bad}");
    }
    assert_eq!(status(&gate, "GET", "/locks", &["Bearer secret", "Bearer secret"]).await, 401);
    // A password may hold a colon; the user name may not.
    let odd = Arc::new(Authenticator::with_principals(book("a:b", &["read:**"]), PrincipalLimits::default()));
    assert_eq!(status(&odd, "GET", "/locks", &[&basic("ci:a:b")]).await, 200);
}

#[tokio::test]
async fn a_certificate_does_where_there_is_no_key_and_a_wrong_key_is_not_helped_by_one() {
    let book = access_file::parse("[[principal]]\nname = \"ci\"\ncertificates = [\"dns:ci\"]\nallow = [\"read:**\"]")
        .expect("good");
    let gate = Arc::new(Authenticator::with_principals(book, PrincipalLimits::default()));
    let peer = Arc::new(PeerCertificate { dns: vec!["ci".into()], uris: vec![], fingerprint: KeyHash::of(b"c") });
    for (authorization, expected) in [(&[][..], 200), (&["Bearer wrong"], 401)] {
        let mut request = request("GET", "/locks", authorization);
        request.extensions_mut().insert(Arc::clone(&peer));
        let response = echo(Arc::clone(&gate)).oneshot(request).await.expect("infallible");
        assert_eq!(response.status(), expected);
    }
}

#[tokio::test]
async fn what_the_layer_did_not_see_may_do_nothing() {
    let access = Access::of(&request("GET", "/locks", &[]));
    assert!(RIGHTS.iter().all(|(right, _)| !access.may_somewhere(*right)) && access.renewed().is_none());
    assert!(!access.may_text(Right::Read, "x"));
}

use crate::auth::rule::RIGHTS;

#[tokio::test]
async fn a_page_of_another_site_changes_nothing_even_without_keys() {
    let gate = Arc::new(Authenticator::open());
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
        for (name, value) in headers {
            request.headers_mut().insert(*name, value.parse().expect("a header value"));
        }
        let response = echo(Arc::clone(&gate)).oneshot(request).await.expect("infallible");
        assert_eq!(response.status(), expected, "{method} {headers:?}");
    }
}

/// DNS rebinding: without keys the name under which the service is asked is all that tells a
/// stranger's page from a program of ours. With keys it needs no such thing.
#[tokio::test]
async fn without_keys_only_names_of_ours_are_answered() {
    let send = async |guard: &AuthLayer, method: &str, path: &str, host: &str| {
        let mut request = request(method, path, &[]);
        request.headers_mut().insert(header::HOST, host.parse().expect("a value"));
        let response = behind(guard.clone()).oneshot(request).await.expect("infallible");
        response.status().as_u16()
    };
    let hosts = |hosts| Arc::new(HttpSettings { hosts, ..HttpSettings::default() });
    let listed = || AllowedHosts::of(vec!["locks.example".to_owned()]);
    let open = AuthLayer { gate: Arc::new(Authenticator::open()), settings: hosts(listed()) };
    for route in &ROUTES {
        let path = path_of(route);
        let stranger = if Requirement::of(route.operation) == Requirement::Nothing { 200 } else { 421 };
        for (host, expected) in [
            ("127.0.0.1:5625", 200),
            ("[::1]:5625", 200),
            ("localhost", 200),
            ("Locks.Example:5625", 200),
            ("evil.example:5625", stranger),
            ("127.0.0.1.evil.example", stranger),
            ("redlockd:5625", stranger),
        ] {
            assert_eq!(send(&open, route.method, &path, host).await, expected, "{route:?} at {host}");
        }
    }
    assert_eq!(send(&open, "GET", "/unlisted", "evil.example").await, 421);
    let any = AuthLayer { settings: hosts(AllowedHosts::any()), ..open };
    assert_eq!(send(&any, "POST", "/locks/a", "redlockd:5625").await, 200);
    let closed = AuthLayer { gate: gate(&["read:**"]), settings: hosts(listed()) };
    assert_eq!(send(&closed, "GET", "/locks", "evil.example").await, 401, "a key is asked for, whatever the name");
}

/// What is told under every name is told as to a stranger.
#[tokio::test]
async fn a_strangers_name_without_keys_is_told_no_more_than_a_stranger() {
    let guard = AuthLayer { gate: Arc::new(Authenticator::open()), settings: Arc::default() };
    for (host, may) in [("127.0.0.1", true), ("evil.example", false)] {
        let mut request = request("GET", "/health/ready", &[]);
        request.headers_mut().insert(header::HOST, host.parse().expect("a value"));
        let tell = |request: Request| async move { Access::of(&request).may_somewhere(Right::Metrics).to_string() };
        let router = Router::new().route("/health/ready", axum::routing::get(tell));
        let router = router.route_layer(guarded(guard.clone()));
        let response = router.oneshot(request).await.expect("infallible");
        let body = axum::body::to_bytes(response.into_body(), 100).await.expect("a body");
        assert_eq!(body, may.to_string().as_bytes(), "{host}");
    }
}

/// Every way to write the bytes of a name into a path that a client may think of.
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
    /// With rights on some names and not on `secret/…`, a request gets through only where the name that the
    /// handler will read is not below `secret/`, or is no name at all, which the handler refuses.
    #[test]
    fn no_spelling_of_a_name_gets_around_a_rule(path in spellings(), method in 0_usize..4) {
        let Ok(uri) = path.parse::<axum::http::Uri>() else { return Ok(()) };
        let method = ["GET", "POST", "PATCH", "DELETE"][method];
        let gate = gate(&["acquire:a/**", "acquire:b", "acquire:b/*"]);
        let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
        let seen = runtime.block_on(status(&gate, method, &path, &["Bearer secret"]));
        let book = gate.store();
        let rules = &book.principals()[0].rules;
        let expected = match extract::resource(&uri) {
            Ok(name) if rules.allow(Right::Acquire, &name) => 200,
            Ok(_) => 403,
            // The handler's 400; or no such route.
            Err(_) => if seen == 404 { 404 } else { 200 },
        };
        prop_assert_eq!(seen, expected, "{}", path);
        let name = extract::resource(&uri).map(|n| n.to_string()).unwrap_or_default();
        prop_assert!(seen != 200 || !name.starts_with("secret"), "{}", path);
    }
}
