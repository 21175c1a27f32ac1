//! An operator's browser on a foreign page: requests of every kind that such a page can cause, to a service with a session
//! and to one without an access file. None changes anything, and no answer can be read by the page.

use redlockd::redlock::random::Entropy;

use super::super::login::Browser;
use super::{Access, NO_ANSWER, Stage, assert_sound, principals};
use crate::support::client::try_send;
use crate::support::seeded::Seeded;
use crate::support::service::Service;

const PATHS: [&str; 9] = [
    "/locks/calm/held",
    "/locks/calm/held?force=now&reason=x",
    "/locks/new",
    "/ui/release/calm/held",
    "/ui/revoke/calm/held",
    "/ui/login",
    "/ui/logout",
    "/locks",
    "/ui/",
];
const FOREIGN_HOSTS: [&str; 5] = [
    "evil.example",
    "evil.example:5625",
    "127.0.0.1.evil.example",
    "localhost.evil.example:80",
    "127.0.0.1@evil.example",
];
const FOREIGN_ORIGINS: [&str; 5] = [
    "https://evil.example",
    "null",
    "http://localhost.evil.example",
    "http://127.0.0.1:1",
    "https://127.0.0.1.evil.example",
];
/// What forms and scripts can send without asking first.
const KINDS: [&str; 3] = ["application/x-www-form-urlencoded", "text/plain", "multipart/form-data; boundary=x"];

/// One request of a foreign page: cross-site by its origin, or under a name that the page made resolve here.
async fn attack(random: &Seeded, stage: &Stage, service: &Service, session: Option<&str>) -> String {
    let method = *random.pick(&["GET", "POST", "POST", "DELETE", "PATCH", "PUT", "OPTIONS", "HEAD"]);
    let path = *random.pick(&PATHS);
    let mut request = service.client().request(method, path);
    let rebinds = random.percent(50);
    if rebinds {
        let host = *random.pick(&FOREIGN_HOSTS);
        request = request
            .header("Host", host)
            .header("Origin", format!("http://{host}"))
            .header("Sec-Fetch-Site", "same-origin");
    } else {
        // A current browser sends both with what changes something; an old one, or a plugin, may send only one.
        let sends = random.below(3);
        if sends != 0 {
            request = request.header("Origin", *random.pick(&FOREIGN_ORIGINS));
        }
        if sends != 1 {
            request = request.header("Sec-Fetch-Site", *random.pick(&["cross-site", "same-site"]));
        }
    }
    if let Some(session) = session.filter(|_| random.percent(70)) {
        request = request.header("Cookie", format!("redlockd_session={session}"));
    }
    if method != "GET" && method != "HEAD" {
        let body =
            *random.pick(&["ttl=30s&owner=evil", "reason=x&name=calm%2Fheld&tag=*", "key=x", "{\"ttl\":\"30s\"}"]);
        request = request.header("Content-Type", *random.pick(&KINDS)).body(body);
    }
    let Ok(answer) = try_send(request).await else { return NO_ANSWER.to_owned() };
    let what = format!("{method} {path}, rebinding: {rebinds}");
    assert!(answer.status < 500, "{what}: {answer:?}");
    let cors = answer.headers.keys().find(|name| name.as_str().starts_with("access-control-"));
    assert!(cors.is_none(), "{what}: a foreign page may read it: {answer:?}");
    if rebinds {
        // The page is of the same origin for the browser, so it can read what it gets.
        stage.assert_hides(&what, &answer.text);
        assert!(answer.status >= 400, "{what}: {answer:?}");
    } else if !matches!(method, "GET" | "HEAD") {
        assert!(answer.status >= 400, "{what}: {answer:?}");
    }
    answer.status.to_string()
}

#[tokio::test(flavor = "multi_thread")]
async fn an_operators_browser_on_a_foreign_page() {
    let open = Service::embedded(&[]).await;
    let guarded = Access::with(&principals(&["admin"])).service(&[]).await;
    let mut browser = Browser::new(&guarded);
    browser.log_in("mallory").await;
    let session = browser.session().to_owned();
    let stages = [Stage::of(open.client(), open.pid()).await, Stage::of(guarded.client(), guarded.pid()).await];
    let (open_ref, guarded_ref, session) = (&open, &guarded, session.as_str());
    let [at_open, at_guarded] = &stages;
    tokio::join!(
        at_open.play("browser, no access file", |random: Seeded| async move {
            attack(&random, at_open, open_ref, None).await
        }),
        at_guarded.play("browser, with a session", |random: Seeded| async move {
            attack(&random, at_guarded, guarded_ref, Some(session)).await
        })
    );
    // It was a session, and still is.
    assert_eq!(browser.get("/ui/locks/calm/held").await.status, 200);
    assert!(open.client().get("/locks/new").await.status == 404, "nothing was acquired");
    assert_sound("browser, no access file", &open);
    assert_sound("browser, with a session", &guarded);
}
