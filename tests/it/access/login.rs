//! The dashboard with authentication: log-in and log-out, and what a session may see and do.

use reqwest::redirect;

use super::{Access, acquired, entry, key};
use crate::support::poll;
use crate::support::service::Service;

/// A browser, without script.
pub(super) struct Browser<'s> {
    service: &'s Service,
    http: reqwest::Client,
    cookies: Vec<(String, String)>,
}

/// The response of a page.
pub(super) struct Page {
    pub(super) status: u16,
    location: String,
    set_cookie: Vec<String>,
    pub(super) text: String,
}

impl<'s> Browser<'s> {
    pub(super) fn new(service: &'s Service) -> Self {
        let http = reqwest::Client::builder().redirect(redirect::Policy::none()).build().expect("a client");
        Self { service, http, cookies: Vec::new() }
    }

    async fn send(&mut self, request: reqwest::RequestBuilder) -> Page {
        let cookies: Vec<String> = self.cookies.iter().map(|(name, value)| format!("{name}={value}")).collect();
        let request = request.header("Accept", "text/html").header("Cookie", cookies.join("; "));
        let answer = request.send().await.expect("an answer");
        let texts = |name| answer.headers().get_all(name).iter().map(|v| v.to_str().expect("ASCII").to_owned());
        let set_cookie: Vec<String> = texts("set-cookie").collect();
        let location = texts("location").next().unwrap_or_default();
        for cookie in &set_cookie {
            let (name, rest) = cookie.split_once('=').expect("a pair");
            let value = rest.split(';').next().unwrap_or_default().to_owned();
            self.cookies.retain(|(known, _)| known != name);
            self.cookies.push((name.to_owned(), value));
        }
        Page { status: answer.status().as_u16(), location, set_cookie, text: answer.text().await.expect("a body") }
    }

    pub(super) async fn get(&mut self, path: &str) -> Page {
        let request = self.http.get(format!("{}{path}", self.service.client().base()));
        self.send(request).await
    }

    /// Sends a form of a page of this service.
    pub(super) async fn post(&mut self, path: &str, fields: &[(&str, &str)]) -> Page {
        let base = self.service.client().base();
        let request = self.http.post(format!("{base}{path}")).header("Sec-Fetch-Site", "same-origin").form(&fields);
        self.send(request).await
    }

    /// The token of its session.
    pub(super) fn session(&self) -> &str {
        let (_, word) = self.cookies.iter().find(|(name, _)| name == "redlockd_session").expect("logged in");
        word
    }

    pub(super) async fn log_in(&mut self, name: &str) -> Page {
        self.post("/ui/login", &[("key", &key(name))]).await
    }
}

#[tokio::test]
async fn a_session_has_the_rights_of_its_principal_on_pages_only() {
    let access = Access::of(&[("all", &["admin"]), ("half", &["read:b/*"])]);
    let service = access.service(&[]).await;
    acquired(&service, "all", "a/1").await;
    acquired(&service, "all", "b/1").await;
    let mut browser = Browser::new(&service);
    // Without a session every page asks for a log-in.
    for path in [
        "/ui/",
        "/ui/locks/a/1",
        "/ui/waiters",
        "/ui/owners",
        "/ui/nodes",
        "/ui/latency",
        "/ui/runbooks",
        "/ui/events",
        "/ui/release/a/1",
    ] {
        let page = browser.get(path).await;
        assert_eq!(page.status, 401, "{path}");
        let next = format!("name=\"next\" value=\"{path}\"");
        assert!(page.text.contains("action=\"/ui/login\"") && page.text.contains(&next), "{path}: {}", page.text);
    }
    // A wrong key is rejected, and not repeated.
    let wrong = browser.post("/ui/login", &[("key", "rlk_wrong")]).await;
    assert!(wrong.status == 403 && wrong.text.contains("unknown or has expired") && !wrong.text.contains("rlk_wrong"));
    let done = browser.log_in("half").await;
    assert_eq!((done.status, done.location.as_str()), (303, "/ui/"));
    // A link that needed the log-in leads on to its page, and to no other site.
    for (next, location) in
        [("/ui/locks/b/1?done=revoked", "/ui/locks/b/1?done=revoked"), ("//evil.example/ui/", "/ui/")]
    {
        let mut other = Browser::new(&service);
        assert_eq!(other.post("/ui/login", &[("key", &key("half")), ("next", next)]).await.location, location);
    }
    let cookie = done.set_cookie.iter().find(|c| c.starts_with("redlockd_session=")).expect("a session");
    for part in ["; HttpOnly", "; SameSite=Strict", "; Path=/ui/", "; Max-Age=36000"] {
        assert!(cookie.contains(part), "{cookie}");
    }
    assert!(!cookie.contains("Secure") && !cookie.contains(&key("half")), "{cookie}");
    assert_eq!(browser.get("/ui/locks/b/1").await.status, 200);
    let list = poll::until("the list has it", || {
        let mut other = Browser { service: &service, http: browser.http.clone(), cookies: browser.cookies.clone() };
        async move {
            let page = other.get("/ui/").await;
            page.text.contains("b/1").then_some(page)
        }
    })
    .await;
    assert!(list.status == 200 && !list.text.contains("a/1"), "{}", list.text);
    // Of two leases it may read one, and no figure says that this is all that is held.
    assert!(list.text.contains("data-live>1</p><p class=\"hint\" id=\"hint-held\""), "{}", list.text);
    for path in ["/ui/", "/ui/waiters", "/ui/owners"] {
        let page = browser.get(path).await.text;
        assert!(page.contains("that you may read") && !page.contains("whole cluster"), "{path}: {page}");
        assert!(!page.contains("at all instances") && !page.contains("of all instances"), "{path}: {page}");
    }
    let mut admin = Browser::new(&service);
    admin.log_in("all").await;
    for (path, whole) in [
        ("/ui/", "id=\"hint-held\" data-live>in the whole cluster<"),
        ("/ui/waiters", "Waiters at all instances;"),
        ("/ui/owners", "waiters in the whole cluster."),
        ("/ui/timeline", "What is held now is that in the whole cluster."),
    ] {
        let page = admin.get(path).await.text;
        assert!(page.contains(whole) && !page.contains("that you may read"), "{path}: {page}");
    }
    // Who is logged in, a way out, and nothing that would be refused.
    assert!(list.text.contains("<bdi>half</bdi>") && list.text.contains("action=\"/ui/logout\""), "{}", list.text);
    assert!(list.text.contains("href=\"/ui/owners\"") && !list.text.contains("href=\"/ui/latency\""), "{}", list.text);
    let lock = browser.get("/ui/locks/b/1").await.text;
    assert!(lock.contains("b/1") && !lock.contains("/ui/release/b/1") && !lock.contains("/ui/revoke/b/1"), "{lock}");
    for (path, status) in
        [("/ui/locks/a/1", 403), ("/ui/release/b/1", 403), ("/ui/nodes", 403), ("/ui/events", 403), ("/ui/owners", 200)]
    {
        let page = browser.get(path).await;
        assert!(page.status == status && !page.text.contains("a/1\""), "{path}: {} {}", page.status, page.text);
    }
    // The API does not accept the cookie.
    for path in ["/locks", "/locks/b/1", "/nodes", "/metrics", "/events"] {
        assert_eq!(browser.get(path).await.status, 401, "{path}");
    }
    // Logging out ends the session at the server too.
    let page = browser.get("/ui/login").await;
    assert!(page.text.contains("logged in as <strong>half</strong>"), "{}", page.text);
    let old = browser.cookies.clone();
    assert_eq!(browser.post("/ui/logout", &[]).await.status, 303);
    assert_eq!(browser.get("/ui/").await.status, 401);
    browser.cookies = old;
    assert_eq!(browser.get("/ui/").await.status, 401, "the session has ended");
}

#[tokio::test]
async fn a_session_is_accepted_by_every_instance_with_the_secret() {
    let access = Access::of(&[("all", &["admin"])]);
    let dir = tempfile::tempdir().expect("a temporary directory");
    let secret = dir.path().join("secret");
    std::fs::write(&secret, "0123456789abcdef0123456789abcdef\n").expect("written");
    let set = format!("session_secret_file={}", secret.display());
    let (one, two) = (access.service(&["--set", &set]).await, access.service(&["--set", &set]).await);
    let foreign = access.service(&[]).await;
    let mut browser = Browser::new(&one);
    browser.log_in("all").await;
    let status = async |service| {
        let mut other = Browser { service, http: browser.http.clone(), cookies: browser.cookies.clone() };
        other.get("/ui/").await.status
    };
    assert_eq!((status(&one).await, status(&two).await, status(&foreign).await), (200, 200, 401));
}

#[tokio::test]
async fn forms_need_the_right_the_same_origin_and_the_session() {
    let text = entry("ops", &[&key("ops")], &["force:**"], "") + &entry("ci", &[&key("ci")], &["acquire:**"], "");
    let access = Access::with(&text);
    let service = access.service(&[]).await;
    acquired(&service, "ci", "x").await;
    let (mut ops, mut ci) = (Browser::new(&service), Browser::new(&service));
    ops.log_in("ops").await;
    ci.log_in("ci").await;
    let ask = ops.get("/ui/release/x").await;
    assert_eq!(ask.status, 200, "{}", ask.text);
    let tag = ask.text.split_once("name=\"tag\" value=\"").expect("a tag").1.split('"').next().unwrap_or_default();
    let fields = [("tag", tag), ("reason", "stuck"), ("name", "x")];
    // Without the right, without the session, and from another site.
    assert_eq!(ci.get("/ui/release/x").await.status, 403);
    assert_eq!(ci.post("/ui/release/x", &fields).await.status, 403);
    assert_eq!(Browser::new(&service).post("/ui/release/x", &fields).await.status, 401);
    let base = service.client().base();
    let foreign = ops.http.post(format!("{base}/ui/release/x")).header("Sec-Fetch-Site", "cross-site").form(&fields);
    assert_eq!(ops.send(foreign).await.status, 403);
    let foreign_login = ops.http.post(format!("{base}/ui/login")).header("Origin", "https://evil.example");
    assert_eq!(ops.send(foreign_login.form(&[("key", key("ci"))])).await.status, 403, "no log-in by another site");
    service
        .client()
        .request("GET", "/locks/x")
        .bearer_auth(key("ci"))
        .send()
        .await
        .expect("an answer")
        .error_for_status()
        .expect("still held");
    let done = ops.post("/ui/release/x", &fields).await;
    assert_eq!(done.status, 303, "{}", done.text);
    // When its key is removed, its session ends.
    access.write(&entry("ci", &[&key("ci")], &["acquire:**"], ""));
    poll::until("the session has ended", || {
        let mut other = Browser { service: &service, http: ops.http.clone(), cookies: ops.cookies.clone() };
        async move { (other.get("/ui/").await.status == 401).then_some(()) }
    })
    .await;
    assert_eq!(ci.get("/ui/").await.status, 200);
}

/// L14: a proxy that ends TLS says so, and only one that is trusted is believed.
#[tokio::test]
async fn l14_cookies_are_secure_where_a_trusted_proxy_says_https() {
    let access = Access::of(&[("ci", &["admin"])]);
    let (behind, alone) = (access.service(&["--set", "trusted_proxies=127.0.0.1"]).await, access.service(&[]).await);
    for (service, protocol, is_secure) in [(&behind, "https", true), (&behind, "http", false), (&alone, "https", false)]
    {
        let http = reqwest::Client::builder().redirect(redirect::Policy::none()).build().expect("a client");
        let form = http.post(format!("{}/ui/login", service.client().base())).form(&[("key", key("ci"))]);
        let answer = form.header("X-Forwarded-Proto", protocol).send().await.expect("an answer");
        assert_eq!(answer.status(), 303);
        let cookie = answer.headers()["set-cookie"].to_str().expect("text").to_owned();
        assert_eq!(cookie.ends_with("; Secure"), is_secure, "{cookie}");
        assert_eq!(answer.headers().contains_key("strict-transport-security"), is_secure, "{protocol}");
    }
}
