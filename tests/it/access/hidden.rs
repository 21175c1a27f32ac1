//! Nothing in an answer, event or page names a resource, owner or lease that its client may not read: every endpoint and
//! page, asked by a principal that may read one name of fifty.

use std::time::Duration;

use redlockd::http::routes::{Operation, ROUTES, UiRoute};
use tokio::task::JoinHandle;

use super::{Access, as_principal, key};
use crate::hooks::receiver::{HooksFile, Receiver, SECRET, target};
use crate::support::client::{Answer, send};
use crate::support::poll;
use crate::support::service::Service;

const NAMES: usize = 50;
/// The name that the principal may read.
const OWN: usize = 7;

/// All that identifies a lock, its holder and its waiter.
struct Lock {
    resource: String,
    token: String,
    secrets: Vec<String>,
}

async fn held_and_waited_for(service: &Service, i: usize) -> (Lock, JoinHandle<Answer>) {
    let resource = format!("part/name-{i:02}");
    let text = |kind: &str| format!("{kind}-{i:02}");
    let post = |fields: &[(&str, String)]| {
        let request = service.client().request("POST", &format!("/locks/{resource}"));
        as_principal(request.form(fields), "all")
    };
    let metadata = format!("{{\"k\":\"{}\"}}", text("meta"));
    let fields = [("ttl", "4m".to_owned()), ("owner", text("holder")), ("note", text("note")), ("metadata", metadata)];
    let lease = post(&fields).await.expect_status(201);
    let token_id = lease.json()["token_id"].as_str().expect("an id").to_owned();
    let waiter = tokio::spawn(post(&[("wait", "4m".to_owned()), ("owner", text("waiter"))]));
    let mut secrets = ["holder", "note", "meta", "waiter"].map(text).to_vec();
    secrets.extend([resource.clone(), token_id, lease.fence().to_string(), lease.token()]);
    (Lock { resource, token: lease.token(), secrets }, waiter)
}

/// Everything else that identifies something: a ticket, a set and its waiter, a permit, a shared and a kept lease, a lock of
/// Terraform's; all of another principal's. And the task of the waiter.
async fn other_kinds(service: &Service, held: &str) -> (Vec<Lock>, JoinHandle<Answer>) {
    let client = service.client();
    let post = |path: &str, fields: &[(&str, &str)]| as_principal(client.request("POST", path).form(fields), "all");
    let secret = |resource: &str, texts: &[&str], answer: &Answer| {
        let mut secrets: Vec<String> = texts.iter().map(|text| (*text).to_owned()).collect();
        let body = answer.json();
        let ids = ["token_id", "ticket", "token"].map(|member| body[member].as_str().unwrap_or_default().to_owned());
        secrets.extend(ids.into_iter().chain([body["fence"].to_string(), resource.to_owned()]));
        secrets.retain(|text| !text.is_empty() && text != "null");
        Lock { resource: resource.to_owned(), token: answer.header("lock-token").to_owned(), secrets }
    };
    let mut locks = Vec::new();
    let kinds: [(&str, &[(&str, &str)]); 3] = [
        ("part/permit", &[("limit", "3"), ("ttl", "4m"), ("owner", "permit-owner")]),
        ("part/shared", &[("mode", "shared"), ("ttl", "4m"), ("owner", "shared-owner")]),
        ("part/kept", &[("keep", "4m"), ("owner", "kept-owner")]),
    ];
    for (resource, fields) in kinds {
        let lease = post(&format!("/locks/{resource}"), fields).await.expect_status(201);
        locks.push(secret(resource, &[fields[fields.len() - 1].1], &lease));
    }
    let fields = [("async", "true"), ("keep", "4m"), ("owner", "ticket-owner"), ("note", "ticket-note")];
    let ticket = post(&format!("/locks/{held}"), &fields).await.expect_status(202);
    locks.push(secret(held, &["ticket-owner", "ticket-note"], &ticket));
    let set = [("resource", "part/set-a"), ("resource", "part/set-b"), ("ttl", "4m"), ("owner", "set-owner")];
    let granted = post("/locks", &set).await.expect_status(201);
    locks.push(secret("part/set-a", &["part/set-b", "set-owner", granted.header("lock-token")], &granted));
    let waiting = [("resource", "part/set-b"), ("resource", "part/set-c"), ("wait", "4m"), ("owner", "set-waiter")];
    let request = client.request("POST", "/locks").form(&waiting).bearer_auth(key("all"));
    let waiter = tokio::spawn(async move { send(request).await });
    locks.push(Lock {
        resource: "part/set-c".to_owned(),
        token: String::new(),
        secrets: vec!["set-waiter".to_owned(), "part/set-c".to_owned()],
    });
    let info =
        r#"{"ID":"terraform-id","Operation":"OperationTypeApply","Who":"terraform-who","Path":"terraform-path"}"#;
    let lock = client.request("LOCK", "/terraform/part/tf").header("Content-Type", "application/json").body(info);
    as_principal(lock, "all").await.expect_status(200);
    let secrets = ["part/tf", "terraform-id", "terraform-who", "terraform-path"].map(str::to_owned).to_vec();
    locks.push(Lock { resource: "part/tf".to_owned(), token: String::new(), secrets });
    poll::until("they are held, and the set waits", || async {
        let seen = as_principal(client.request("GET", "/locks/part/set-b"), "all").await.json();
        (seen["waiting_here"] == 1).then_some(())
    })
    .await;
    (locks, waiter)
}

/// Panics where the text names what the principal may not read.
fn assert_hides(what: &str, text: &str, hidden: &[Lock]) {
    for secret in hidden.iter().flat_map(|lock| &lock.secrets) {
        assert!(!text.contains(secret), "{what} shows {secret}: {text}");
    }
}

/// The requests of every route, with the own name where the route has one. A release comes with a wrong tag.
fn requests(own: &str, ticket: &str) -> Vec<(&'static str, String)> {
    let is_endless = |operation| matches!(operation, Operation::Events | Operation::Ui(UiRoute::Stream));
    let routes = ROUTES.iter().filter(|route| !is_endless(route.operation));
    let path = |path: &str| path.replace("{resource}", own).replace("{slug}", "locked").replace("{ticket}", ticket);
    let path = move |of: &str| {
        path(of).replace("{name}", "hook-name").replace("{node}", "embedded-1").replace("{file}", "live.js")
    };
    let named = routes.map(move |route| (route.method, path(route.path)));
    let more = [
        "/locks?state=waited&limit=1",
        "/locks?state=held",
        "/locks?prefix=part/&limit=1000",
        "/locks?cursor=part/name",
        "/ui/?state=waited&sort=waiters&dir=desc",
        "/ui/?prefix=part/&sort=owner",
        "/ui/waiters?page=2",
        "/ui/owners?page=2",
        "/ui/events?kind=acquired",
        "/ui/events?prefix=part/",
        "/ui/events?since=1h",
        "/events?limit=1000",
        "/events?kind=acquired&since=1h",
        "/events?prefix=part/&to=1s",
        "/fences/part/name-07?fence=1",
    ];
    named.chain(more.map(|path| ("GET", path.to_owned()))).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn every_endpoint_and_page_hides_what_its_client_may_not_read() {
    let own = format!("part/name-{OWN:02}");
    let rules = ["acquire", "force", "events"].map(|right| format!("{right}:{own}"));
    let rules: Vec<&str> = rules.iter().map(String::as_str).chain(["metrics"]).collect();
    let access = Access::of(&[("all", &["acquire:**", "force:**"]), ("one", &rules)]);
    let receiver = Receiver::start().await;
    // Its hook follows the hidden names; what the file says is for administrators.
    let hooks = target("target-name", &receiver, "")
        + "[[hook]]\nname = \"hook-name\"\ntarget = \"target-name\"\nevents = [\"lock.acquired\"]\n";
    let file = HooksFile::with(&hooks);
    let service = access.service(&["--set", "list_refresh=100ms", "--set", &file.setting()]).await;
    let ask = |method: &str, path: &str| as_principal(service.client().request(method, path), "one");
    let open = |path: &str| service.client().request("GET", path).bearer_auth(key("one")).send();
    let mut streams = [open("/events?renewals=true").await.expect("a stream"), open("/ui/stream").await.expect("one")];
    let (mut locks, mut waiters) = (Vec::new(), Vec::new());
    for i in 0..NAMES {
        let (lock, waiter) = held_and_waited_for(&service, i).await;
        locks.push(lock);
        waiters.push(waiter);
    }
    poll::until("all of the principal's locks and waiters are listed", || async {
        let list = ask("GET", "/locks?state=waited").await.json();
        (list["items"][0]["waiting"] == 1 && list["items"][0]["state"] == "held").then_some(())
    })
    .await;
    let visible = locks.remove(OWN);
    let (others, waiter) = other_kinds(&service, &locks[0].resource).await;
    locks.extend(others);
    waiters.push(waiter);
    let of_hooks = ["SECRET-path", "SECRET-of-headers", SECRET, "target-name"].map(str::to_owned).to_vec();
    let hidden_hook = Lock { resource: "part/hooks".to_owned(), token: String::new(), secrets: of_hooks };
    locks.push(hidden_hook);
    // A ticket of its own; those of others are not there.
    let fields = [("async", "true"), ("keep", "4m")];
    let own_ticket = service.client().request("POST", &format!("/locks/{own}")).form(&fields);
    let own_ticket = as_principal(own_ticket, "one").await.expect_status(202).json();
    let own_ticket = own_ticket["ticket"].as_str().expect("an id");
    let foreign =
        locks.iter().flat_map(|lock| &lock.secrets).find(|secret| secret.starts_with("tk_")).expect("a ticket");
    for method in ["GET", "PATCH", "DELETE"] {
        let request =
            service.client().request(method, &format!("/tickets/{foreign}")).header("Lock-Token", "x".repeat(22));
        let body = if method == "PATCH" { request.form(&[("keep", "1m")]) } else { request };
        let answer = as_principal(body, "one").await.expect_status(404);
        assert!(!answer.text.contains("ticket-owner"), "{answer:?}");
    }
    let (mut shown, tried) = (0, requests(&visible.resource, own_ticket));
    for (method, path) in &tried {
        let request = service.client().request(method, path).header("If-Match", "\"1\"");
        let answer = as_principal(request.header("Lock-Token", "nobodys-token-0000000000"), "one").await;
        assert_hides(&format!("{method} {path}"), &format!("{:?} {}", answer.headers, answer.text), &locks);
        shown += usize::from(answer.text.contains("waiter-07"));
    }
    assert!(tried.len() > 60 && shown >= 6, "{shown} of {} answers show what may be read", tried.len());
    // The other names themselves are refused, and nothing of them is said but the name that was sent.
    for lock in &mut locks {
        lock.secrets.retain(|secret| *secret != lock.resource);
    }
    for lock in &locks {
        for path in ["/locks/NAME", "/ui/locks/NAME", "/ui/release/NAME", "/ui/revoke/NAME", "/fences/NAME?fence=1"] {
            let path = path.replace("NAME", &lock.resource);
            assert_hides(&path, &ask("GET", &path).await.expect_status(403).text, &locks);
        }
    }
    // The end of the own lease is the last event of both streams.
    let path = format!("/locks/{}", visible.resource);
    let release = service.client().request("DELETE", &path).header("Lock-Token", &visible.token);
    as_principal(release, "all").await.expect_status(204);
    for stream in &mut streams {
        let mut text = String::new();
        while !text.contains("\"released\"") && !text.contains("event: released") {
            let chunk = tokio::time::timeout(Duration::from_secs(30), stream.chunk()).await.expect("in time");
            text.push_str(&String::from_utf8_lossy(&chunk.expect("connected").expect("more")));
        }
        assert_hides("a stream", &text, &locks);
        assert!(text.contains("part/name-07"), "{text}");
    }
    waiters.iter().for_each(JoinHandle::abort);
}

/// Acquires in a task of its own, as this principal.
fn post(
    service: &Service,
    name: &'static str,
    resource: &str,
    fields: &[(&'static str, &'static str)],
) -> JoinHandle<Answer> {
    let request = service.client().request("POST", &format!("/locks/{resource}"));
    let fields = [&[("ttl", "4m")], fields].concat();
    tokio::spawn(async move { send(request.form(&fields).bearer_auth(key(name))).await })
}

async fn hold(service: &Service, name: &'static str, resource: &str, owner: &'static str) -> Answer {
    post(service, name, resource, &[("owner", owner)]).await.expect("no panic").expect_status(201)
}

async fn until_waiting(service: &Service, resource: &str) {
    poll::until("it waits", || async {
        let request = service.client().request("GET", &format!("/locks/{resource}"));
        (as_principal(request, "all").await.json()["waiting_here"] == 1).then_some(())
    })
    .await;
}

/// How many deadlocks were reported, and how many requests refused for one.
async fn deadlocks(service: &Service) -> [bool; 2] {
    let text = as_principal(service.client().request("GET", "/metrics"), "metrics").await.text;
    ["reported", "refused"].map(|outcome| {
        let series = format!("redlockd_lock_deadlocks_total{{outcome=\"{outcome}\"}} ");
        let value = text.lines().find_map(|line| line.strip_prefix(&series)).expect("the series");
        value.trim() != "0"
    })
}

const REFUSING: [(&str, &str); 2] = [("wait", "4m"), ("on_deadlock", "refuse")];

/// A cycle through a lock that its newest waiter may not read is reported to those who may; that waiter waits on, and
/// learns nothing.
#[tokio::test(flavor = "multi_thread")]
async fn a_deadlock_through_a_lock_that_its_client_may_not_read_does_not_refuse_it() {
    let two = ["acquire:mine/*", "events:mine/*"];
    let access = Access::of(&[("all", &["acquire:**"]), ("two", &two), ("metrics", &["metrics"])]);
    let service = access.service(&[]).await;
    let first = hold(&service, "all", "mine/a", "reader").await;
    hold(&service, "all", "secret/x", "writer").await;
    hold(&service, "two", "mine/b", "own").await;
    let reader = post(&service, "all", "secret/x", &[("owner", "reader"), ("wait", "4m")]);
    until_waiting(&service, "secret/x").await;
    let writer = post(&service, "all", "mine/b", &[("owner", "writer"), ("wait", "4m")]);
    until_waiting(&service, "mine/b").await;
    let own = post(&service, "two", "mine/a", &[&[("owner", "own")], &REFUSING[..]].concat());
    poll::until("it is reported", || async { deadlocks(&service).await[0].then_some(()) }).await;
    for path in ["/events?since=1h&kind=deadlock", "/ui/", "/ui/waiters", "/ui/events?kind=deadlock"] {
        let shown = as_principal(service.client().request("GET", path), "two").await.expect_status(200).text;
        assert!(shown.contains("mine/a") && !shown.contains("secret"), "{path}: {shown}");
    }
    let release = service.client().request("DELETE", "/locks/mine/a").header("lock-token", first.token());
    as_principal(release, "all").await.expect_status(204);
    own.await.expect("no panic").expect_status(201);
    assert_eq!(deadlocks(&service).await, [true, false]);
    [reader, writer].iter().for_each(JoinHandle::abort);
}

/// An owner is a label that anybody can write; a principal is proven. Who writes the owners of others into waits and
/// leases of its own closes no cycle with theirs.
#[tokio::test(flavor = "multi_thread")]
async fn owners_of_another_principal_close_no_cycle() {
    let access = Access::of(&[("all", &["acquire:**"]), ("forger", &["acquire:deploy/*"]), ("metrics", &["metrics"])]);
    let service = access.service(&[]).await;
    let held = hold(&service, "all", "secret/r", "holder").await;
    hold(&service, "forger", "deploy/k", "victim").await;
    let forged = post(&service, "forger", "deploy/k", &[("owner", "holder"), ("wait", "4m")]);
    until_waiting(&service, "deploy/k").await;
    let victim = post(&service, "all", "secret/r", &[&[("owner", "victim")], &REFUSING[..]].concat());
    until_waiting(&service, "secret/r").await;
    // The check is over when the same principal's own cycle, begun later, was found.
    hold(&service, "all", "own/x", "a").await;
    hold(&service, "all", "own/y", "b").await;
    let a = post(&service, "all", "own/y", &[("owner", "a"), ("wait", "4m")]);
    until_waiting(&service, "own/y").await;
    let b = post(&service, "all", "own/x", &[&[("owner", "b")], &REFUSING[..]].concat());
    b.await.expect("no panic").expect_problem(409, "deadlock");
    assert!(!victim.is_finished(), "it waits on");
    let release = service.client().request("DELETE", "/locks/secret/r").header("lock-token", held.token());
    as_principal(release, "all").await.expect_status(204);
    victim.await.expect("no panic").expect_status(201);
    assert_eq!(deadlocks(&service).await, [false, true]);
    [forged, a].iter().for_each(JoinHandle::abort);
}
