//! Limits of requests and connections: each is exceeded, while other clients are served.

use std::time::Duration;

use redlockd::redlock::clock::{Clock, SystemClock};
use rustix::process::{Signal, kill_process};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::{Access, acquired, as_principal, entry, key};
use crate::support::client::{Client, send};
use crate::support::poll;
use crate::support::service::Service;

/// Longer than anything but a hang.
const SOON: Duration = Duration::from_secs(60);
/// Idle connections of a test; `REDLOCKD_IDLE_CONNECTIONS` has another number.
const IDLE_CONNECTIONS: usize = 500;
/// Simultaneous connections: several times 128, a common length of a listen queue.
const CONNECTIONS: usize = 500;
/// These fit into the listen queue.
const CONNECTS_AT_ONCE: usize = 250;

async fn connect(service: &Service) -> TcpStream {
    TcpStream::connect(service.address()).await.expect("it listens")
}

/// Everything that is received until the service closes the connection.
async fn until_closed(stream: &mut TcpStream) -> String {
    let mut answer = Vec::new();
    // A reset after the answer is an end too.
    let _ = tokio::time::timeout(SOON, stream.read_to_end(&mut answer)).await.expect("it is closed");
    String::from_utf8_lossy(&answer).into_owned()
}

async fn raw(service: &Service, request: &[u8]) -> String {
    let mut stream = connect(service).await;
    // The service may close before it has read all.
    let _ = stream.write_all(request).await;
    until_closed(&mut stream).await
}

/// Another client can acquire and release a lock.
async fn check_other_client(service: &Service) {
    // On a new connection: an idle one may just be closed by the service.
    let client = Client::new(service.client().base());
    let lease = client.acquired("somebody/else", &[]).await;
    client.release("somebody/else", &lease.token()).await.expect_status(204);
}

#[tokio::test]
async fn heads_request_lines_and_bodies_are_limited() {
    let more = ["--set", "head_limit=8192", "--set", "uri_limit=2048", "--set", "body_limit=4096"];
    let service = Service::embedded(&more).await;
    let long = |bytes: usize| "x".repeat(bytes);
    let get = |path: &str, headers: &str| {
        format!("GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n{headers}\r\n")
    };
    for (request, status, word) in [
        (get(&format!("/locks?owner={}", long(3_000)), ""), "414", "uri-too-long"),
        (get(&format!("/locks/{}", long(3_000)), ""), "414", "uri-too-long"),
        (get(&format!("/locks?owner={}", long(20_000)), ""), "4", ""),
        (get("/locks", &format!("X-Long: {}\r\n", long(10_000))), "431", ""),
        (get("/locks", &"X-Many: 1\r\n".repeat(100)), "431", ""),
        (get("/locks", &format!("{}: 1\r\n", long(10_000))), "431", ""),
        (
            format!(
                "POST /locks/x HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 5000\r\n\r\n{}",
                long(5_000)
            ),
            "413",
            "body-too-large",
        ),
        (format!("{} / HTTP/1.1\r\nHost: localhost\r\n\r\n", long(9_000)), "4", ""),
        ("GET / HTTP/9.9\r\n\r\n".to_owned(), "", ""),
        ("\0\u{1}\u{2}nonsense\r\n\r\n".to_owned(), "4", ""),
    ] {
        let answer = raw(&service, request.as_bytes()).await;
        let line = answer.lines().next().unwrap_or_default();
        let shown: String = request.chars().take(40).collect();
        assert!(!line.contains(" 2") && !line.contains(" 5"), "{shown}: {line}");
        if !status.is_empty() {
            assert!(line.starts_with(&format!("HTTP/1.1 {status}")), "{shown}: {answer}");
        }
        assert!(answer.contains(word), "{shown}: {answer}");
    }
    check_other_client(&service).await;
}

#[tokio::test]
async fn a_body_without_an_end_is_rejected() {
    let service = Service::embedded(&["--set", "body_limit=4096", "--set", "body_timeout=500ms"]).await;
    let head = "POST /locks/x HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n";
    let mut endless = connect(&service).await;
    endless.write_all(head.as_bytes()).await.expect("connected");
    let chunk = format!("400\r\n{}\r\n", " ".repeat(0x400));
    // Rejected after the fourth chunk; sending fails at the latest when the connection is closed.
    for _ in 0..10_000 {
        if endless.write_all(chunk.as_bytes()).await.is_err() {
            break;
        }
    }
    let answer = until_closed(&mut endless).await;
    assert!(answer.is_empty() || answer.starts_with("HTTP/1.1 413"), "{answer}");
    // A body that never arrives.
    let mut silent = connect(&service).await;
    silent.write_all(head.as_bytes()).await.expect("connected");
    let answer = until_closed(&mut silent).await;
    assert!(answer.starts_with("HTTP/1.1 400") && answer.contains("did not arrive"), "{answer}");
    check_other_client(&service).await;
}

#[tokio::test]
async fn slow_heads_and_idle_connections_are_closed_and_waiters_are_not() {
    let more = ["--set", "header_timeout=400ms", "--set", "idle_timeout=2s"];
    let service = Service::embedded(&more).await;
    let held = service.client().acquired("x", &[("ttl", "60s")]).await;
    // A waiter and a holding connection, both for longer than these timeouts.
    let mut waiter = connect(&service).await;
    waiter.write_all(b"POST /locks/x?wait=50s HTTP/1.1\r\nHost: localhost\r\n\r\n").await.expect("connected");
    let mut holder = connect(&service).await;
    holder.write_all(b"POST /locks/y?hold=true&ttl=60s HTTP/1.1\r\nHost: localhost\r\n\r\n").await.expect("connected");
    poll::until("the waiter waits", || async { (service.client().waiting("x").await == 1).then_some(()) }).await;
    // One sends its head byte by byte, one sends nothing, one is idle after a request.
    let (mut slow, mut silent, mut idle) = (connect(&service).await, connect(&service).await, connect(&service).await);
    idle.write_all(b"GET /health/live HTTP/1.1\r\nHost: localhost\r\n\r\n").await.expect("connected");
    let drip = async {
        let mut sent = 0;
        while slow.write_all(b"G").await.is_ok() {
            sent += 1;
            let mut byte = [0];
            // Closed, or nothing yet: then the next byte.
            if let Ok(Ok(0) | Err(_)) = tokio::time::timeout(Duration::from_millis(50), slow.read(&mut byte)).await {
                break;
            }
        }
        sent
    };
    let sent = tokio::time::timeout(SOON, drip).await.expect("a slow head is given up");
    assert!(sent < 600, "{sent} bytes were waited for");
    assert_eq!(until_closed(&mut silent).await, "");
    assert!(until_closed(&mut idle).await.starts_with("HTTP/1.1 200"));
    check_other_client(&service).await;
    // Both are still there.
    let client = Client::new(service.client().base());
    client.release("x", &held.token()).await.expect_status(204);
    let mut answer = [0; 12];
    tokio::time::timeout(SOON, waiter.read_exact(&mut answer)).await.expect("in time").expect("an answer");
    assert_eq!(&answer, b"HTTP/1.1 201");
    client.inspect("y").await.expect_status(200);
    drop(holder);
}

/// Connections beyond the listen queue would not be established while the process is stopped: the kernel drops their
/// first packet.
#[tokio::test]
async fn the_listen_queue_takes_many_connections() {
    let service = Service::embedded(&[]).await;
    let process = service.pid();
    // While it is stopped it accepts no connection, so all of them must fit into the queue.
    kill_process(process, Signal::STOP).expect("own child");
    let connections = (0..CONNECTIONS).map(|_| TcpStream::connect(service.address()));
    let connections = tokio::time::timeout(SOON, futures_util::future::join_all(connections)).await;
    kill_process(process, Signal::CONT).expect("own child");
    assert!(connections.expect("all are established").iter().all(Result::is_ok));
}

/// Every other connection has begun a request that it does not end. `REDLOCKD_IDLE_CONNECTIONS=10000` sets their number
/// and prints their cost.
#[tokio::test]
#[expect(clippy::print_stdout, reason = "figures of a run by hand")]
async fn many_idle_connections_do_not_block_other_clients() {
    let wanted: Option<usize> = std::env::var("REDLOCKD_IDLE_CONNECTIONS").ok().and_then(|n| n.parse().ok());
    // Long enough that none is closed before the last one is opened.
    let service = Service::embedded(&["--set", "header_timeout=5m", "--set", "idle_timeout=5m"]).await;
    let number = async |name: &str| {
        let metrics = service.client().get("/metrics").await.expect_status(200).text;
        let value = metrics.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' ').map(str::to_owned));
        value.and_then(|value| value.parse::<f64>().ok()).unwrap_or_else(|| panic!("{name}: {metrics}"))
    };
    check_other_client(&service).await;
    let before = number("process_resident_memory_bytes").await;
    let count = wanted.unwrap_or(IDLE_CONNECTIONS);
    let (mut idle, mut left) = (Vec::new(), count);
    while left > 0 {
        let batch = left.min(CONNECTS_AT_ONCE);
        let opened = (0..batch).map(async |i| {
            let mut stream = connect(&service).await;
            if i % 2 == 0 {
                stream.write_all(b"POST /locks/x HTTP/1.1\r\nHost").await.expect("connected");
            }
            stream
        });
        idle.extend(futures_util::future::join_all(opened).await);
        left -= batch;
    }
    let least = f64::from(u32::try_from(count).expect("some thousands"));
    poll::until("all are accepted", || async { (number("redlockd_http_connections").await >= least).then_some(()) })
        .await;
    let began = SystemClock.now();
    check_other_client(&service).await;
    let took = SystemClock.now().since(began);
    assert!(number("redlockd_http_connections").await >= least);
    if wanted.is_some() {
        let bytes = (number("process_resident_memory_bytes").await - before) / least;
        println!("{count} idle connections: {bytes:.0} bytes each; an acquire and a release meanwhile: {took:?}");
    }
}

#[tokio::test]
async fn a_principal_above_its_rate_limit_gets_429_and_others_are_served() {
    let text = entry("wild", &[&key("wild")], &["acquire:**"], "requests_per_second = 5")
        + &entry("calm", &[&key("calm")], &["acquire:**"], "");
    let service = Access::with(&text).service(&[]).await;
    let list = || service.client().request("GET", "/locks");
    let mut refused = None;
    for _ in 0..200 {
        let answer = as_principal(list(), "wild").await;
        if answer.status != 200 {
            refused = Some(answer);
            break;
        }
    }
    let answer = refused.expect("it is refused").expect_problem(429, "quota-exceeded");
    let body = answer.json();
    assert_eq!((&body["scope"], &body["limit"]), (&"principal".into(), &5.into()), "{body}");
    let after: u64 = answer.header("retry-after").parse().expect("seconds");
    assert!((1..=30).contains(&after), "{answer:?}");
    as_principal(list(), "calm").await.expect_status(200);
    // It is served again after the pause in Retry-After.
    poll::until("it may ask again", || async { (as_principal(list(), "wild").await.status == 200).then_some(()) })
        .await;
}

/// P4: pages ask the nodes as the API does, so they count as much.
#[tokio::test]
async fn p4_pages_count_against_the_rate_of_a_principal() {
    let text = entry("slow", &[&key("slow")], &["acquire:**"], "requests_per_second = 1");
    let service = Access::with(&text).service(&[]).await;
    let mut refused = 0;
    for _ in 0..20 {
        let page = service.client().request("GET", "/ui/locks/a").header("Accept", "text/html");
        refused += usize::from(as_principal(page, "slow").await.status == 429);
    }
    assert!(refused > 10, "{refused}");
}

/// M3: a loop of reads with the key of a holder costs it neither a renewal nor its release.
#[tokio::test]
async fn m3_a_principal_above_its_rate_limit_renews_and_releases_its_leases() {
    let text = entry("slow", &[&key("slow")], &["acquire:**"], "requests_per_second = 1\nleases = 3");
    let service = Access::with(&text).service(&[]).await;
    let client = service.client();
    let token = acquired(&service, "slow", "rl").await;
    let mut refused = 0;
    for _ in 0..20 {
        refused += usize::from(as_principal(client.request("GET", "/locks"), "slow").await.status == 429);
    }
    assert!(refused > 0);
    let holder = |method: &str| client.request(method, "/locks/rl").header("Lock-Token", &token);
    for _ in 0..20 {
        as_principal(holder("PATCH"), "slow").await.expect_status(200);
    }
    as_principal(holder("DELETE"), "slow").await.expect_status(204);
}

#[tokio::test]
async fn leases_and_waiters_of_a_principal_are_limited() {
    let text = entry("ci", &[&key("ci")], &["acquire:**"], "leases = 3\nwaiters = 1")
        + &entry("cd", &[&key("cd")], &["acquire:**", "force:**"], "");
    let service = Access::with(&text).service(&[]).await;
    let client = service.client();
    let post = |name: &str, fields: &[(&str, &str)]| client.request("POST", &format!("/locks/{name}")).form(fields);
    let mut tokens = Vec::new();
    for name in ["a", "b"] {
        tokens.push(acquired(&service, "ci", name).await);
    }
    // A holding stream counts until it ends.
    let hold = post("c", &[("hold", "true")]).bearer_auth(key("ci")).send().await.expect("a stream");
    assert_eq!(hold.status(), 200);
    let full = as_principal(post("d", &[]), "ci").await.expect_problem(429, "quota-exceeded");
    assert_eq!(full.json()["limit"], 3);
    acquired(&service, "cd", "d").await;
    drop(hold);
    poll::until("the held lease is released", || async {
        (as_principal(post("e", &[("ttl", "1s")]), "ci").await.status == 201).then_some(())
    })
    .await;
    // One lease expires, one is released by another principal, one is forced.
    poll::until("the short lease has expired", || async {
        (as_principal(post("f", &[("ttl", "60s")]), "ci").await.status == 201).then_some(())
    })
    .await;
    let release = client.request("DELETE", "/locks/a").header("Lock-Token", &tokens[0]);
    as_principal(release, "cd").await.expect_status(204);
    acquired(&service, "ci", "g").await;
    as_principal(client.request("DELETE", "/locks/b?force=now&reason=test"), "cd").await.expect_status(204);
    // Two leases are left: one request may wait, a second one may not.
    let place = [("wait", "30s"), ("wait_id", "0123456789abcdef")];
    let waiting = tokio::spawn(send(post("d", &place).bearer_auth(key("ci"))));
    poll::until("it waits", || async {
        let seen = as_principal(client.request("GET", "/locks/d"), "cd").await.json();
        seen["waiters"].as_array().is_some_and(|w| w.len() == 1).then_some(())
    })
    .await;
    let second = as_principal(post("d", &[("wait", "30s")]), "ci").await.expect_problem(429, "quota-exceeded");
    assert_eq!(second.json()["limit"], 1);
    // A place that is kept without a connection counts; who takes it again is no further waiter.
    waiting.abort();
    as_principal(post("d", &[("wait", "30s")]), "ci").await.expect_problem(429, "quota-exceeded");
    let again = [("wait", "1s"), ("wait_id", "0123456789abcdef")];
    as_principal(post("d", &again), "ci").await.expect_problem(423, "wait-timeout");
    as_principal(post("d", &[("wait", "1ms")]), "ci").await.expect_problem(423, "wait-timeout");
}

/// The end of another request for the same name leaves a held lease counted, and what is counted already is granted again at
/// the limit.
#[tokio::test]
async fn a_lease_counts_until_its_own_end() {
    let text = entry("ci", &[&key("ci")], &["acquire:**"], "leases = 3");
    let service = Access::with(&text).service(&[]).await;
    let client = service.client();
    let post = |name: &str, fields: &[(&str, &str)]| {
        as_principal(client.request("POST", &format!("/locks/{name}")).form(fields), "ci")
    };
    let token = acquired(&service, "ci", "a").await;
    let ticket = post("a", &[("async", "true"), ("keep", "1h")]).await.expect_status(202).header("location").to_owned();
    as_principal(client.request("DELETE", &ticket), "ci").await.expect_status(204);
    let other = acquired(&service, "ci", "b").await;
    let asynchronous = [("async", "true"), ("keep", "1h"), ("token", "tick-token-0123456789abcdefghijkl")];
    post("c", &asynchronous).await.expect_status(201);
    let full = post("d", &[]).await.expect_problem(429, "quota-exceeded");
    assert_eq!(full.json()["limit"], 3);
    for (name, token) in [("a", token.as_str()), ("b", other.as_str())] {
        post(name, &[("token", token)]).await.expect_status(200);
    }
    post("c", &asynchronous).await.expect_status(200);
    let set = [("resource", "a"), ("resource", "d"), ("token", token.as_str())];
    let set = as_principal(client.request("POST", "/locks").form(&set), "ci").await;
    assert_eq!(set.expect_problem(429, "quota-exceeded").json()["limit"], 3, "one more than it holds");
}

/// Each permit and each shared lease counts until its own end, also of several of one name.
#[tokio::test]
async fn permits_and_shared_leases_of_one_name_count_each() {
    let text = entry("ci", &[&key("ci")], &["acquire:**", "force:**"], "leases = 3\nwaiters = 1");
    let service = Access::with(&text).service(&[]).await;
    let client = service.client();
    let post = |name: &str, fields: &[(&str, &str)]| {
        as_principal(client.request("POST", &format!("/locks/{name}")).form(fields), "ci")
    };
    let permit = [("limit", "5"), ("ttl", "60s")];
    let shared = [("mode", "shared"), ("ttl", "60s")];
    let (first, second) =
        (post("gpu", &permit).await.expect_status(201), post("gpu", &permit).await.expect_status(201));
    let reader = post("doc", &shared).await.expect_status(201);
    for (name, how) in [("gpu", &permit), ("doc", &shared)] {
        let full = post(name, how).await.expect_problem(429, "quota-exceeded");
        assert_eq!(full.json()["limit"], 3);
    }
    // A repeated request is the same lease.
    post("gpu", &[("limit", "5"), ("token", &first.token())]).await.expect_status(200);
    let release = client.request("DELETE", "/locks/gpu").header("Lock-Token", first.token());
    as_principal(release, "ci").await.expect_status(204);
    let third = post("gpu", &permit).await.expect_status(201);
    post("doc", &shared).await.expect_problem(429, "quota-exceeded");
    // One of several is ended by force, and counts no more; the others do.
    let id = third.json()["token_id"].as_str().expect("an id").to_owned();
    let force = client.request("DELETE", &format!("/locks/gpu?force=now&reason=test&token_id={id}"));
    as_principal(force, "ci").await.expect_status(204);
    post("doc", &shared).await.expect_status(201);
    post("gpu", &permit).await.expect_problem(429, "quota-exceeded");
    for (name, lease) in [("gpu", &second), ("doc", &reader)] {
        let release = client.request("DELETE", &format!("/locks/{name}")).header("Lock-Token", lease.token());
        as_principal(release, "ci").await.expect_status(204);
    }
    // One lease is left, so two more fit, whether or not permits are free.
    let two = [("limit", "2"), ("ttl", "60s")];
    let of_two = (post("two", &two).await.expect_status(201), post("two", &two).await.expect_status(201));
    let full = post("two", &two).await.expect_problem(429, "quota-exceeded");
    assert_eq!(full.json()["limit"], 3);
    let release = client.request("DELETE", "/locks/two").header("Lock-Token", of_two.0.token());
    as_principal(release, "ci").await.expect_status(204);
    post("two", &two).await.expect_status(201);
}

#[tokio::test]
async fn connections_beyond_the_maximum_wait_until_others_are_closed() {
    let service =
        Service::embedded(&["--set", "max_connections=16", "--set", "idle_timeout=3s", "--set", "header_timeout=1s"])
            .await;
    let mut connections = Vec::new();
    for _ in 0..40 {
        connections.push(connect(&service).await);
    }
    // Idle ones are closed, so that others are accepted.
    check_other_client(&service).await;
    drop(connections);
}
