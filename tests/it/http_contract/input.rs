//! Input: names, fields, types, sizes, headers; and the headers of every answer.

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::support::client::send;
use crate::support::service::Service;

const OWN_TOKEN: &str = "my-own-token.0123456789";

/// The answer to raw bytes, until the service closes.
async fn raw(service: &Service, request: &str) -> String {
    let mut stream = TcpStream::connect(service.address()).await.expect("it listens");
    stream.write_all(request.as_bytes()).await.expect("connected");
    let mut answer = Vec::new();
    // The service may reset the connection behind its answer where it left a body unread.
    let _ = stream.read_to_end(&mut answer).await;
    String::from_utf8_lossy(&answer).into_owned()
}

#[tokio::test]
async fn each_wrong_field_is_named() {
    let service = Service::embedded(&[]).await;
    let client = service.client();
    let long = "x".repeat(129);
    for (fields, field, hint) in [
        (&[("ttl", "30")][..], "ttl", "30s"),
        (&[("wait", "5")], "wait", "5s"),
        (&[("ttl", "10ms")], "ttl", "400ms to 5m"),
        (&[("ttl", "6m")], "ttl", "PATCH"),
        (&[("ttl", "-1s")], "ttl", ""),
        (&[("ttl", "99999999999999999999h")], "ttl", ""),
        (&[("wait", "6m")], "wait", "at most 5m"),
        (&[("tll", "30s")], "tll", "unknown"),
        (&[("ttl", "1s"), ("ttl", "2s")], "ttl", "twice"),
        (&[("owner", &long)], "owner", "128"),
        (&[("metadata", "17")], "metadata", "object"),
        (&[("token", "short")], "token", "22"),
        (&[("hold", "maybe")], "hold", ""),
    ] {
        let body = client.acquire("x", fields).await.expect_problem(400, "invalid").json();
        let error = &body["errors"][0];
        assert_eq!(error["field"], field, "{body}");
        assert!(error["detail"].as_str().is_some_and(|d| d.contains(hint)), "{body}");
    }
    for body in ["{", "[]", "\"ttl\"", r#"{"ttl":30}"#, r#"{"ttl":"1s","ttl":"2s"}"#, r#"{"metadata":{"a":1}}"#] {
        let request = client.request("POST", "/locks/x").header("Content-Type", "application/json").body(body);
        send(request).await.expect_problem(400, "invalid");
    }
    // All that is wrong is said at once.
    let both = client.acquire("x", &[("ttl", "30"), ("wiat", "5s")]).await.expect_problem(400, "invalid").json();
    assert_eq!(both["errors"].as_array().map(Vec::len), Some(2), "{both}");
    // The same value twice is no contradiction.
    let twice = client.request("POST", "/locks/x?ttl=20s").form(&[("ttl", "20s")]);
    send(twice).await.expect_status(201);
}

#[tokio::test]
async fn names_are_decoded_once_and_checked() {
    let service = Service::embedded(&[]).await;
    for bad in ["a//b", "a/", "/a", "%00", "a%20b", "a%252Fb", "..%2Fa", "%2e%2e/a", "redlockd:meta", "%ff", "a%2F%2Fb"]
    {
        let answer =
            raw(&service, &format!("POST /locks/{bad} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")).await;
        assert!(answer.starts_with("HTTP/1.1 400 ") && answer.contains("/problems/invalid"), "{bad}: {answer}");
    }
    let long = "x".repeat(255);
    for good in ["a", "A-Z.a_z~0:9@x/y", "a%2Fb", long.as_str(), "..."] {
        let answer =
            raw(&service, &format!("POST /locks/{good} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"))
                .await;
        assert!(answer.starts_with("HTTP/1.1 201 "), "{good}: {answer}");
    }
    service.client().acquire("a/b", &[]).await.expect_problem(423, "locked");
    service.client().acquire(&"x".repeat(256), &[]).await.expect_problem(400, "invalid");
}

#[tokio::test]
async fn a_token_in_a_url_is_refused_and_never_logged() {
    let service = Service::embedded(&["--log-level", "debug"]).await;
    let client = service.client();
    for (method, path) in [
        ("POST", "/locks/x?token="),
        ("PATCH", "/locks/x?token="),
        ("DELETE", "/locks/x?token="),
        ("GET", "/locks/x?token="),
        ("GET", "/locks?token="),
        ("POST", "/locks/x?Lock-Token="),
    ] {
        let answer = send(client.request(method, &format!("{path}{OWN_TOKEN}"))).await;
        let answer = answer.expect_problem(400, "token-in-url");
        assert!(!answer.text.contains(OWN_TOKEN), "{answer:?}");
    }
    client.acquired("x", &[("token", OWN_TOKEN)]).await;
    client.extend("x", OWN_TOKEN, &[]).await.expect_status(200);
    client.release("x", OWN_TOKEN).await.expect_status(204);
    let metrics = client.get("/metrics").await.expect_status(200).text;
    let output = service.output().join("\n");
    assert!(!output.contains(OWN_TOKEN) && !metrics.contains(OWN_TOKEN), "{output}");
}

#[tokio::test]
async fn a_lock_token_is_required_and_checked() {
    let service = Service::embedded(&[]).await;
    let client = service.client();
    for method in ["PATCH", "DELETE"] {
        let body = send(client.request(method, "/locks/x")).await.expect_problem(400, "invalid").json();
        assert_eq!(body["errors"][0]["field"], "Lock-Token");
        let odd = client.request(method, "/locks/x").header("Lock-Token", "not a token, surely!!!");
        let answer = send(odd).await.expect_problem(400, "invalid");
        assert!(!answer.text.contains("surely"), "{answer:?}");
    }
}

#[tokio::test]
async fn methods_types_and_sizes_have_their_status_codes() {
    let service = Service::embedded(&[]).await;
    let client = service.client();
    let put = send(client.request("PUT", "/locks/x")).await.expect_problem(405, "method-not-allowed");
    for method in ["POST", "PATCH", "DELETE", "GET", "HEAD"] {
        assert!(put.header("allow").contains(method), "{put:?}");
    }
    send(client.request("POST", "/health/live")).await.expect_problem(405, "method-not-allowed");
    client.get("/nowhere").await.expect_problem(404, "not-found");
    let picky = client.request("POST", "/locks/x").header("Accept", "image/png");
    send(picky).await.expect_problem(406, "not-acceptable");
    let xml = client.request("POST", "/locks/x").header("Content-Type", "text/xml").body("<ttl/>");
    send(xml).await.expect_problem(415, "unsupported-media-type");
    let packed = client.request("POST", "/locks/x").header("Content-Encoding", "gzip");
    send(packed.header("Content-Type", "application/json").body("{}"))
        .await
        .expect_problem(415, "unsupported-media-type");
    // Up to the bound it is read, beyond it is not: neither when announced nor when it just comes.
    let note = |bytes: usize| format!("note={}", "x".repeat(bytes - 5));
    let form = "Content-Type: application/x-www-form-urlencoded\r\nConnection: close";
    let announced = |bytes: usize, body: &str| {
        format!("POST /locks/x HTTP/1.1\r\nHost: localhost\r\n{form}\r\nContent-Length: {bytes}\r\n\r\n{body}")
    };
    let at_bound = raw(&service, &announced(65_536, &note(65_536))).await;
    assert!(at_bound.starts_with("HTTP/1.1 400 ") && at_bound.contains("at most 512"), "{at_bound}");
    let beyond = raw(&service, &announced(65_537, "")).await;
    assert!(beyond.starts_with("HTTP/1.1 413 ") && beyond.contains("/problems/body-too-large"), "{beyond}");
    let chunks = format!("8000\r\n{0}\r\n8000\r\n{0}\r\n1\r\nx\r\n0\r\n\r\n", "x".repeat(0x8000));
    let head = format!("POST /locks/x HTTP/1.1\r\nHost: localhost\r\n{form}\r\nTransfer-Encoding: chunked\r\n\r\n");
    let unannounced = raw(&service, &(head + &chunks)).await;
    assert!(unannounced.starts_with("HTTP/1.1 413 "), "{unannounced}");
    client.inspect("x").await.expect_problem(404, "not-held");
}

#[tokio::test]
async fn every_answer_has_a_request_id_and_is_not_cached() {
    let service = Service::embedded(&[]).await;
    let client = service.client();
    client.acquired("x", &[]).await;
    for (method, path, status) in [
        ("POST", "/locks/x", 423),
        ("POST", "/locks/y", 201),
        ("GET", "/locks/x", 200),
        ("HEAD", "/locks/x", 200),
        ("GET", "/locks/free", 404),
        ("GET", "/locks", 200),
        ("GET", "/nodes", 200),
        ("GET", "/health/live", 200),
        ("GET", "/health/ready", 200),
        ("GET", "/metrics", 200),
        ("GET", "/openapi.yaml", 200),
        ("GET", "/problems/locked", 200),
        ("GET", "/problems/nonsense", 404),
        ("PUT", "/locks/x", 405),
        ("GET", "/nowhere", 404),
        ("POST", "/locks/a//b", 400),
    ] {
        let own = send(client.request(method, path).header("X-Request-Id", "build/17:3")).await.expect_status(status);
        assert_eq!(own.header("x-request-id"), "build/17:3", "{method} {path}");
        assert_eq!((own.header("cache-control"), own.header("x-content-type-options")), ("no-store", "nosniff"));
    }
    let long = "x".repeat(129);
    for odd in ["", "a b", "<script>", long.as_str()] {
        let answer = send(client.request("GET", "/health/live").header("X-Request-Id", odd)).await;
        let drawn = answer.header("x-request-id");
        assert!(drawn.starts_with("req_") && drawn.len() == 20, "{odd:?}: {drawn}");
    }
    let root = raw(&service, "GET / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n").await;
    assert!(root.starts_with("HTTP/1.1 307 ") && root.to_lowercase().contains("location: /ui/\r\n"), "{root}");
}

/// Each `type` of a problem is a page of the service.
#[tokio::test]
async fn problems_are_pages() {
    let service = Service::embedded(&[]).await;
    let client = service.client();
    client.acquired("x", &[]).await;
    let problem = client.acquire("x", &[]).await.expect_problem(423, "locked").json();
    let page = client.get(problem["type"].as_str().expect("a path")).await.expect_status(200);
    assert!(page.text.contains("wait=30s"), "{page:?}");
}
