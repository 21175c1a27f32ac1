//! A principal with some rights: every endpoint and page with names, fields and headers of any kind, also of locks and tickets
//! that it may not use; requests and streams that it abandons; all that its quotas allow.

use std::collections::VecDeque;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use redlockd::http::routes::{Operation, ROUTES, Route};
use redlockd::redlock::random::Entropy;
use reqwest::{RequestBuilder, Url};

use super::{Access, CALM, CALM_LOCK, CALM_OWNER, Stage, assert_sound, key, mutated, principals};
use crate::access::as_principal;
use crate::hooks::receiver::{HooksFile, Receiver, SEALING, target};
use crate::support::client::{Answer, try_send};
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
const FIELDS: [(&str, &[&str]); 22] = [
    ("ttl", &["30s", "400ms", "1m", "0", "-1", "99999999999h", "١s", "5", ""]),
    ("wait", &["0s", "1ms", "50ms", "200ms", "-1s", "1e9s"]),
    ("hold", &["false", "true", "maybe"]),
    ("owner", &["ann", "calm-owner", "\u{202e}evil", "a\nb", ""]),
    ("note", &["n", "<script>alert(1)</script>", "\u{0}"]),
    ("metadata", &["{\"k\":\"v\"}", "{\"k\":1}", "[]", "{"]),
    ("token", &["own-token-0123456789-abcdef", "short", "own-token-0123456789-ghijkl"]),
    ("on_deadlock", &["refuse", "wait", "x"]),
    ("keep", &["1m", "30s", "30m", "0", "-1s", "x"]),
    ("mode", &["shared", "exclusive", "x"]),
    ("limit", &["3", "1", "64", "0", "-1", "99999999999999999999"]),
    ("async", &["true", "false", "maybe"]),
    (
        "callback",
        &["target:t", "target:none", "http://127.0.0.1:1/x", "https://calm.example/x", "file:///etc/passwd", ""],
    ),
    ("accept", &["5s", "1m", "0", "x"]),
    ("wait_id", &["0123456789abcdef", "x"]),
    ("force", &["now", "revoke", "x"]),
    ("reason", &["r", ""]),
    ("token_id", &["0123456789abcdef", "x"]),
    ("fence", &["1", "-1", "9007199254740993"]),
    ("prefix", &["part/", "calm/", "%"]),
    ("id", &["own-terraform-lock", "calm"]),
    ("nonsense", &["x"]),
];
/// What valid acquires have; [`LABELS`] may stand beside each.
const ACQUIRES: [&[(&str, &str)]; 9] = [
    &[("ttl", "30s")],
    &[("ttl", "1s"), ("wait", "200ms"), ("on_deadlock", "refuse")],
    &[("keep", "1m")],
    &[("async", "true"), ("keep", "1m")],
    &[("async", "true"), ("keep", "30s"), ("wait", "2s")],
    &[("callback", "target:t"), ("keep", "1m"), ("accept", "5s")],
    &[("mode", "shared"), ("ttl", "2s")],
    &[("limit", "3"), ("keep", "30s")],
    &[("hold", "true")],
];
const LABELS: [(&str, &[&str]); 3] = [("owner", &["ann", "bob"]), ("note", &["n"]), ("metadata", &["{\"k\":\"v\"}"])];
/// What Terraform sends.
const TERRAFORM_FIELDS: [(&str, &[&str]); 6] = [
    ("ID", &["6f1d3c1e-0c62-4c1b-9d3a-9b0f3a1e5a55", "x", "", "../calm"]),
    ("Operation", &["OperationTypeApply", ""]),
    ("Who", &["ann@host", "calm-owner", "\u{202e}"]),
    ("Info", &["", "<b>"]),
    ("Created", &["2026-11-27T08:00:00Z", "never"]),
    ("Path", &["", "calm/held"]),
];
const HEADERS: [(&str, &[&str]); 8] = [
    ("Lock-Token", &["own-token-0123456789-abcdef", "own-token-0123456789-ghijkl", "x"]),
    ("If-Match", &["\"1\"", "*", "W/\"1\"", "x"]),
    ("If-None-Match", &["\"1\"", "*"]),
    ("Accept", &["text/plain", "application/json", "text/event-stream", "image/png", "*/*;q=0", ";;"]),
    ("Prefer", &["wait=0", "wait=1", "wait=x", "respond-async"]),
    ("Last-Event-ID", &["1", "x-1-1", "18446744073709551615"]),
    ("Content-Type", &["application/json", "text/plain", "application/x-www-form-urlencoded; charset=utf-7"]),
    ("X-Forwarded-For", &["1.2.3.4", "::1"]),
];
/// What the receiver of call-backs answers.
const ANSWERS: [u16; 6] = [200, 204, 302, 409, 410, 500];
/// An attack ends this long after it began, whatever it has then: streams do not end by themselves.
const HANGS_UP_AFTER: Duration = Duration::from_millis(400);
/// What the principal was granted or promised: these many of the latest are used again.
const OWN_KEPT: usize = 32;

/// The paths of the principal's leases and tickets, each with its token, as the answers had them; and a ticket of the other caller's.
struct Own {
    leases: Mutex<VecDeque<(String, String)>>,
    tickets: Mutex<VecDeque<(String, String)>>,
    foreign_ticket: String,
}

impl Own {
    fn learn(&self, path: &str, answer: &Answer) {
        let token = answer.header("lock-token").to_owned();
        let (list, path) = match answer.header("location").strip_prefix("/tickets/") {
            Some(_) => (&self.tickets, answer.header("location")),
            None => (&self.leases, path),
        };
        if token.is_empty() || !path.starts_with("/locks/") && !path.starts_with("/tickets/") {
            return;
        }
        let mut list = list.lock().unwrap_or_else(PoisonError::into_inner);
        list.push_back((path.to_owned(), token));
        if list.len() > OWN_KEPT {
            list.pop_front();
        }
    }

    /// One of these with its token, sometimes the other caller's or one that is none.
    fn one(random: &Seeded, list: &Mutex<VecDeque<(String, String)>>, foreign: &str) -> (String, String) {
        let list = list.lock().unwrap_or_else(PoisonError::into_inner);
        let token = || "own-token-0123456789-abcdef".to_owned();
        match random.below(10) {
            0 => (foreign.to_owned(), token()),
            1 => ("/tickets/no%2Fticket".to_owned(), token()),
            _ if list.is_empty() => (format!("/tickets/{}", "0".repeat(24)), token()),
            _ => list[usize::try_from(random.below(list.len() as u64)).expect("an index")].clone(),
        }
    }
}

/// Some of these, each with one of its values.
fn some<'a>(random: &Seeded, of: &[(&'a str, &[&'a str])], chance: u64) -> Vec<(&'a str, String)> {
    let taken = of.iter().filter(|_| random.percent(chance)).map(|(name, values)| (*name, *random.pick(values)));
    taken.map(|(name, value)| (name, value.to_owned())).collect()
}

/// Some of [`FIELDS`], or those of a valid acquire, sometimes with others.
fn fields(random: &Seeded) -> Vec<(&'static str, String)> {
    if random.percent(40) {
        return some(random, &FIELDS, 20);
    }
    let valid = random.pick(&ACQUIRES).iter().map(|(name, value)| (*name, (*value).to_owned()));
    let more = if random.percent(20) { some(random, &FIELDS, 5) } else { Vec::new() };
    valid.chain(some(random, &LABELS, 30)).chain(more).collect()
}

/// The names of a request for several locks, as they are given repeatedly.
fn set_of(random: &Seeded) -> Vec<(&'static str, String)> {
    let name = || random.pick::<&str>(&NAMES[..if random.percent(95) { 4 } else { NAMES.len() }]).replace("%2F", "/");
    (0..random.below(5)).map(|_| ("resource", name())).collect()
}

fn body(random: &Seeded, path: &str, request: RequestBuilder) -> RequestBuilder {
    let of_terraform = path.starts_with("/terraform");
    let mut fields = if of_terraform { some(random, &FIELDS, 5) } else { fields(random) };
    let names = if path == "/locks" { set_of(random) } else { Vec::new() };
    let is_json = random.percent(if of_terraform { 90 } else { 25 });
    if !is_json {
        fields.extend(names);
        return if random.percent(75) { request.form(&fields) } else { request };
    }
    if of_terraform {
        fields.extend(some(random, &TERRAFORM_FIELDS, 80));
    }
    // Numbers, booleans and objects as such, or as texts.
    let is_text = random.percent(30);
    let value = |text: String| match serde_json::from_str(&text) {
        Ok(value) if !is_text => value,
        _ => serde_json::Value::from(text),
    };
    let mut members: serde_json::Map<_, _> = fields.into_iter().map(|(k, v)| (k.to_owned(), value(v))).collect();
    if !names.is_empty() {
        members.insert("resources".to_owned(), names.into_iter().map(|(_, name)| name).collect());
    }
    let json = serde_json::Value::Object(members).to_string();
    let changes = if random.percent(30) { 2 } else { 0 };
    request.header("Content-Type", "application/json").body(mutated(random, json.as_bytes(), changes))
}

/// Of the routes, those that come first change locks, tickets and Terraform's locks.
fn first_routes() -> usize {
    ROUTES.iter().rposition(|route| route.path.starts_with("/terraform")).expect("Terraform's locks") + 1
}

/// A route, most of all one that changes something.
fn route(random: &Seeded) -> &'static Route {
    let acquires = [Operation::Acquire, Operation::AcquireSet, Operation::TerraformLock];
    match random.below(10) {
        0..3 => {
            let wanted = *random.pick(&acquires);
            ROUTES.iter().find(|route| route.operation == wanted).expect("acquires")
        }
        3..7 => random.pick(&ROUTES[..first_routes()]),
        _ => random.pick(&ROUTES),
    }
}

/// Method, path and target of a request, and the request.
fn request(random: &Seeded, stage: &Stage, own: &Own) -> (String, String, RequestBuilder) {
    let route = route(random);
    let method = if random.percent(95) { route.method } else { *random.pick(&["PUT", "OPTIONS", "TRACE", "HEAD"]) };
    let name = match random.below(10) {
        0..6 => format!("part/n{}", random.below(30)),
        6 => (*random.pick(&NAMES[..4])).to_owned(),
        _ => (*random.pick(&NAMES)).to_owned(),
    };
    let path = route.path.replace("{resource}", &name).replace("{slug}", "locked");
    let path = path.replace("{name}", random.pick::<&str>(&["h", "none"]));
    let mut path = path.replace("{file}", "live.js").replace("{node}", "embedded-1");
    let mut token = None;
    let known = match route.operation {
        Operation::ShowTicket | Operation::KeepTicket | Operation::EndTicket => Some((&own.tickets, 100)),
        Operation::Extend | Operation::Release => Some((&own.leases, 60)),
        _ => None,
    };
    if let Some((list, chance)) = known
        && random.percent(chance)
    {
        let (known, its_token) = Own::one(random, list, &own.foreign_ticket);
        (path, token) = (known, random.percent(80).then_some(its_token));
    }
    assert!(!path.contains('{'), "{path}");
    let mut target = path.clone();
    if random.percent(20) {
        let names = if path == "/locks" { set_of(random) } else { Vec::new() };
        let url = Url::parse_with_params("http://x/", fields(random).into_iter().chain(names)).expect("a URL");
        target = format!("{path}?{}", url.query().unwrap_or_default());
    }
    let mut request = body(random, &path, stage.client.request(method, &target)).bearer_auth(key("mallory"));
    for (name, value) in some(random, &HEADERS, if random.percent(30) { 20 } else { 0 }) {
        request = request.header(name, value);
    }
    if let Some(token) = token {
        request = request.header("Lock-Token", token);
    }
    (format!("{method} {target}"), path, request)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_principal() {
    let rules = ["acquire:part/*", "force:part/*", "events:part/*", "metrics"];
    let receiver = Receiver::start().await;
    let file = HooksFile::with(&(SEALING.to_owned() + &target("t", &receiver, "")));
    let settings = ["--set", "min_ttl=400ms", "--set", &file.setting()];
    let service = Access::with(&principals(&rules)).service(&settings).await;
    let mut stage = Stage::of(service.client(), service.pid()).await;
    // A ticket of the other caller's, which waits for its own lease.
    let fields = [("async", "true"), ("keep", "1m"), ("wait", "2h"), ("owner", CALM_OWNER)];
    let wait = service.client().request("POST", &format!("/locks/{CALM_LOCK}")).form(&fields);
    let waiting = as_principal(wait, CALM).await.expect_status(202).json();
    let text = |member: &str| waiting[member].as_str().expect("a text").to_owned();
    stage.secrets.push(text("token"));
    let foreign_ticket = format!("/tickets/{}", text("ticket"));
    let own = &Own { leases: Mutex::default(), tickets: Mutex::default(), foreign_ticket };
    let (stage, receiver) = (&stage, &receiver);
    stage
        .play("principal", |random: Seeded| async move {
            if random.percent(3) {
                receiver.answer([*random.pick(&ANSWERS)]);
            }
            let (what, path, request) = request(&random, stage, own);
            let hangs_up_after =
                if random.percent(10) { Duration::from_millis(random.below(5)) } else { HANGS_UP_AFTER };
            let Ok(answer) = tokio::time::timeout(hangs_up_after, try_send(request)).await else {
                return "hung up".to_owned();
            };
            // A stream that breaks off.
            let Ok(answer) = answer else { return "broken off".to_owned() };
            if path.contains(CALM_LOCK) || path == own.foreign_ticket {
                assert!(answer.status >= 400, "{what}: {answer:?}");
            }
            own.learn(&path, &answer);
            stage.check(&what, &answer)
        })
        .await;
    // A run of seconds may have had no luck.
    let is_long = super::number("REDLOCKD_ATTACK_SECONDS").is_some();
    for (what, list) in [("lease", &own.leases), ("ticket", &own.tickets)] {
        let is_none = list.lock().unwrap_or_else(PoisonError::into_inner).is_empty();
        assert!(!(is_long && is_none), "it never got a {what}");
    }
    for message in receiver.received() {
        stage.assert_hides("a message", &format!("{message:?}"));
    }
    assert_sound("principal", &service);
}
