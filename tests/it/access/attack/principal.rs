//! A principal with some rights: every endpoint and page with names, fields and headers of any kind, also of locks that it
//! may not use; requests and streams that it abandons; all that its quotas allow.

use std::time::Duration;

use redlockd::http::routes::ROUTES;
use redlockd::redlock::random::Entropy;
use reqwest::{RequestBuilder, Url};

use super::{Access, CALM_LOCK, Stage, assert_sound, key, mutated, principals};
use crate::support::client::try_send;
use crate::support::seeded::Seeded;

const NAMES: [&str; 12] = [
    "part/a",
    "part/b",
    "part/c",
    "part/d",
    "part/e%2Ff",
    "part/%C3%A4",
    "part//x",
    "part/../calm/held",
    "part/%00",
    "part/*",
    "part/%2e%2e/calm/held",
    CALM_LOCK,
];
const FIELDS: [(&str, &[&str]); 14] = [
    ("ttl", &["30s", "400ms", "1m", "0", "-1", "99999999999h", "١s", "5", ""]),
    ("wait", &["0s", "1ms", "50ms", "200ms", "-1s", "1e9s"]),
    ("hold", &["false", "true", "maybe"]),
    ("owner", &["ann", "calm-owner", "\u{202e}evil", "a\nb", ""]),
    ("note", &["n", "<script>alert(1)</script>", "\u{0}"]),
    ("metadata", &["{\"k\":\"v\"}", "{\"k\":1}", "[]", "{"]),
    ("token", &["own-token-0123456789-abcdef", "short", "own-token-0123456789-ghijkl"]),
    ("on_deadlock", &["refuse", "wait", "x"]),
    ("wait_id", &["0123456789abcdef", "x"]),
    ("force", &["now", "revoke", "x"]),
    ("reason", &["r", ""]),
    ("fence", &["1", "-1", "9007199254740993"]),
    ("prefix", &["part/", "calm/", "%"]),
    ("nonsense", &["x"]),
];
const HEADERS: [(&str, &[&str]); 8] = [
    ("Lock-Token", &["own-token-0123456789-abcdef", "own-token-0123456789-ghijkl", "x"]),
    ("If-Match", &["\"1\"", "*", "W/\"1\"", "x"]),
    ("If-None-Match", &["\"1\"", "*"]),
    ("Accept", &["text/plain", "application/json", "text/event-stream", "image/png", "*/*;q=0", ";;"]),
    ("Prefer", &["wait=0", "wait=1", "wait=x"]),
    ("Last-Event-ID", &["1", "x-1-1", "18446744073709551615"]),
    ("Content-Type", &["application/json", "text/plain", "application/x-www-form-urlencoded; charset=utf-7"]),
    ("X-Forwarded-For", &["1.2.3.4", "::1"]),
];
/// An attack ends this long after it began, whatever it has then: streams do not end by themselves.
const HANGS_UP_AFTER: Duration = Duration::from_millis(400);

/// Some of these, each with one of its values.
fn some<'a>(random: &Seeded, of: &[(&'a str, &[&'a str])], chance: u64) -> Vec<(&'a str, String)> {
    let taken = of.iter().filter(|_| random.percent(chance)).map(|(name, values)| (*name, *random.pick(values)));
    taken.map(|(name, value)| (name, value.to_owned())).collect()
}

fn body(random: &Seeded, request: RequestBuilder) -> RequestBuilder {
    let fields = some(random, &FIELDS, 25);
    match random.below(8) {
        0..4 => request.form(&fields),
        4 | 5 => {
            let members: serde_json::Map<_, _> = fields.into_iter().map(|(k, v)| (k.to_owned(), v.into())).collect();
            let json = serde_json::Value::Object(members).to_string();
            request.header("Content-Type", "application/json").body(mutated(random, json.as_bytes(), 2))
        }
        _ => request,
    }
}

fn request(random: &Seeded, stage: &Stage) -> (String, RequestBuilder) {
    let route = random.pick(&ROUTES);
    // Most of all what changes something.
    let route = if random.percent(50) { &ROUTES[usize::try_from(random.below(4)).expect("small")] } else { route };
    let method = if random.percent(95) { route.method } else { *random.pick(&["PUT", "OPTIONS", "TRACE", "HEAD"]) };
    let path = route.path.replace("{resource}", random.pick::<&str>(&NAMES)).replace("{slug}", "locked");
    let mut path = path.replace("{file}", "live.js").replace("{node}", "embedded-1");
    if random.percent(20) {
        let url = Url::parse_with_params("http://x/", some(random, &FIELDS, 20)).expect("a URL");
        path = format!("{path}?{}", url.query().unwrap_or_default());
    }
    let mut request = body(random, stage.client.request(method, &path)).bearer_auth(key("mallory"));
    for (name, value) in some(random, &HEADERS, 15) {
        request = request.header(name, value);
    }
    (format!("{method} {path}"), request)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_principal() {
    let rules = ["acquire:part/*", "force:part/*", "events:part/*", "metrics"];
    let service = Access::with(&principals(&rules)).service(&["--set", "min_ttl=400ms"]).await;
    let stage = Stage::of(service.client(), service.pid()).await;
    let stage = &stage;
    stage
        .play("principal", |random: Seeded| async move {
            let (what, request) = request(&random, stage);
            let hangs_up_after =
                if random.percent(10) { Duration::from_millis(random.below(5)) } else { HANGS_UP_AFTER };
            let Ok(answer) = tokio::time::timeout(hangs_up_after, try_send(request)).await else {
                return "hung up".to_owned();
            };
            // A stream that breaks off.
            let Ok(answer) = answer else { return "broken off".to_owned() };
            if what.contains(CALM_LOCK) {
                assert!(answer.status >= 400, "{what}: {answer:?}");
            }
            stage.check(&what, &answer)
        })
        .await;
    assert_sound("principal", &service);
}
