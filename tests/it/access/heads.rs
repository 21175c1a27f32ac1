//! Heads of requests that are not what HTTP demands, and preconditions: each is refused with the status that the RFC
//! names, and with what every answer has. Named by the letters of a review.

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::support::client::{Answer, send};
use crate::support::poll;
use crate::support::service::Service;

/// The answer to raw bytes, until the service closes.
async fn raw(service: &Service, request: &str) -> String {
    let mut stream = TcpStream::connect(service.address()).await.expect("it listens");
    // The service may close before it has read all.
    let _ = stream.write_all(request.as_bytes()).await;
    let mut answer = Vec::new();
    let _ = stream.read_to_end(&mut answer).await;
    String::from_utf8_lossy(&answer).into_owned()
}

/// A refusal with all that a problem has; its document.
#[track_caller]
fn problem(answer: &str, status: u16, slug: &str, shown: &str) -> serde_json::Value {
    let (head, body) = answer.split_once("\r\n\r\n").unwrap_or_else(|| panic!("{shown}: no head in {answer:?}"));
    let head = head.to_ascii_lowercase();
    assert!(head.starts_with(&format!("http/1.1 {status} ")), "{shown}: {answer}");
    for line in ["content-type: application/problem+json", "cache-control: no-store", "x-content-type-options: nosniff"]
    {
        assert!(head.contains(line), "{shown}: {line}: {answer}");
    }
    let body: serde_json::Value =
        serde_json::from_str(body).unwrap_or_else(|error| panic!("{shown}: {error}: {answer}"));
    assert_eq!(body["type"], format!("/problems/{slug}"), "{shown}: {answer}");
    let id = body["instance"].as_str().unwrap_or_default();
    assert!(id.starts_with("req_") && head.contains(&format!("x-request-id: {id}")), "{shown}: {answer}");
    body
}

#[tokio::test]
async fn l1_a_host_that_is_missing_malformed_or_given_twice_is_400() {
    let service = Service::embedded(&[]).await;
    for (hosts, is_good) in [
        ("Host: localhost", true),
        ("Host: 127.0.0.1:5625", true),
        ("X-Other: 1", false),
        ("Host: 127.0.0.1\r\nHost: evil", false),
        ("Host: evil\r\nHost: 127.0.0.1", false),
        ("Host: a b/..", false),
        ("Host:", false),
    ] {
        let answer = raw(&service, &format!("GET /locks HTTP/1.1\r\n{hosts}\r\nConnection: close\r\n\r\n")).await;
        if is_good {
            assert!(answer.starts_with("HTTP/1.1 200 "), "{hosts}: {answer}");
        } else {
            assert_eq!(problem(&answer, 400, "invalid", hosts)["errors"][0]["field"], "Host");
        }
    }
    // Clients of HTTP/1.0 do not send it.
    let old = raw(&service, "GET /locks HTTP/1.0\r\n\r\n").await;
    assert!(old.starts_with("HTTP/1.0 200 "), "{old}");
}

#[tokio::test]
async fn each_request_of_a_connection_is_checked_for_its_own_host_and_origin() {
    let service = Service::embedded(&[]).await;
    let post = "POST /locks/x?ttl=1s HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 0\r\n";
    let get = "GET /locks HTTP/1.1\r\nHost: ";
    let sent = [
        (format!("{get}127.0.0.1\r\n"), "200"),
        (format!("{get}evil.example\r\n"), "421"),
        (format!("{post}Origin: http://evil.example\r\n"), "403"),
        (format!("{post}Sec-Fetch-Site: cross-site\r\n"), "403"),
        (post.to_owned(), "201"),
        (format!("{get}127.0.0.1\r\nConnection: close\r\n"), "200"),
    ];
    let requests: String = sent.iter().map(|(head, _)| format!("{head}\r\n")).collect();
    let answers = raw(&service, &requests).await;
    let statuses: Vec<&str> = answers.split("HTTP/1.1 ").skip(1).filter_map(|answer| answer.get(..3)).collect();
    assert_eq!(statuses, sent.each_ref().map(|(_, status)| *status), "{answers}");
}

#[tokio::test]
async fn l2_what_the_library_refuses_has_a_problem_and_an_id() {
    let service = Service::embedded(&[]).await;
    let long = "x".repeat(70_000);
    for (request, status, slug) in [
        ("POST /locks/x HTTP/1.1\r\nHost: localhost\r\nContent-Length: -1\r\n\r\n".to_owned(), 400, "invalid"),
        ("POST /locks/x HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: xchunked\r\n\r\n".to_owned(), 400, "invalid"),
        ("GET / HTTP/1.1\r\nHost: localhost\r\n folded\r\n\r\n".to_owned(), 400, "invalid"),
        ("GET / HTTP/1.1\r\nHost: localhost\r\nX-A: a\0b\r\n\r\n".to_owned(), 400, "invalid"),
        ("GET /\r\n\r\n".to_owned(), 400, "invalid"),
        ("nonsense nonsense nonsense\r\n\r\n".to_owned(), 400, "invalid"),
        (format!("GET / HTTP/1.1\r\nHost: localhost\r\n{}\r\n", "X-Many: 1\r\n".repeat(100)), 431, "head-too-large"),
        (format!("GET / HTTP/1.1\r\nHost: localhost\r\nX-Long: {long}\r\n\r\n"), 431, "head-too-large"),
    ] {
        let shown: String = request.chars().take(60).collect();
        let answer = raw(&service, &request).await;
        problem(&answer, status, slug, &shown);
    }
    // An answer before it on the same connection stays what it is.
    let both =
        "GET /health/live HTTP/1.1\r\nHost: localhost\r\n\r\nGET / HTTP/1.1\r\nHost: localhost\r\n folded\r\n\r\n";
    let answer = raw(&service, both).await;
    assert!(answer.starts_with("HTTP/1.1 200 ") && answer.matches("HTTP/1.1 400 ").count() == 1, "{answer}");
    problem(&answer[answer.find("HTTP/1.1 400 ").expect("it is there")..], 400, "invalid", "the second one");
}

#[tokio::test]
async fn l3_a_transfer_coding_that_is_not_understood_is_501() {
    let service = Service::embedded(&[]).await;
    let answer =
        raw(&service, "POST /locks/x HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n")
            .await;
    problem(&answer, 501, "not-implemented", "gzip");
    assert!(answer.to_ascii_lowercase().contains("connection: close"), "{answer}");
    service.client().inspect("x").await.expect_problem(404, "not-held");
}

#[tokio::test]
async fn l10_if_none_match_is_honoured() {
    let service = Service::embedded(&[]).await;
    let client = service.client();
    let (held, other) = (client.acquired("x", &[]).await, client.acquired("y", &[]).await);
    let tag = format!("\"{}\"", held.fence());
    let ask = |method: &str, tag: &str| {
        let request = client.request(method, "/locks/x").header("If-None-Match", tag);
        if method == "GET" { request } else { request.header("Lock-Token", held.token()) }
    };
    for same in [tag.as_str(), "*", &format!("\"1\", W/{tag}")] {
        let seen = send(ask("GET", same)).await.expect_status(304);
        assert_eq!((seen.header("etag"), seen.text.as_str()), (tag.as_str(), ""), "{same}");
        for method in ["PATCH", "DELETE"] {
            send(ask(method, same)).await.expect_problem(412, "changed");
        }
    }
    for different in ["\"1\"", &format!("\"{}\"", other.fence())] {
        send(ask("GET", different)).await.expect_status(200);
        send(ask("PATCH", different)).await.expect_status(200);
    }
    let body = send(ask("GET", "unquoted")).await.expect_problem(400, "invalid").json();
    assert_eq!(body["errors"][0]["field"], "If-None-Match");
    let forced = client.request("DELETE", "/locks/x?force=now&reason=test").header("If-None-Match", &tag);
    send(forced).await.expect_problem(412, "changed");
    send(client.request("GET", "/locks/free").header("If-None-Match", "*")).await.expect_problem(404, "not-held");
    send(ask("DELETE", "\"1\"")).await.expect_status(204);
}

#[tokio::test]
async fn l11_a_token_that_is_sent_again_under_another_owner_is_refused() {
    let service = Service::embedded(&[]).await;
    let client = service.client();
    let fields = [("token", "a-token-of-my-own-0123456789"), ("ttl", "60s"), ("owner", "ann")];
    let held = client.acquired("x", &fields).await;
    let again = client.acquire("x", &fields).await.expect_status(200);
    assert_eq!((again.fence(), &again.json()["owner"]), (held.fence(), &"ann".into()));
    let body =
        client.acquire("x", &[fields[0], fields[1], ("owner", "bob")]).await.expect_problem(400, "invalid").json();
    assert_eq!(body["errors"][0]["field"], "owner");
    // The lease is as before.
    let seen = client.inspect("x").await.expect_status(200).json();
    assert_eq!(seen["holders"][0]["owner"], "ann");
    client.release("x", &held.token()).await.expect_status(204);
}

/// The same request with another TTL joins its lease: the answer promises no more than the nodes hold, and a lease that has more time
/// left keeps it.
#[tokio::test]
async fn l11_a_request_that_is_sent_again_with_another_ttl_promises_what_the_nodes_hold() {
    let service = Service::embedded(&[]).await;
    let client = service.client();
    let token = ("token", "a-token-of-my-own-0123456789");
    let validity = |answer: &Answer| answer.json()["valid_for_ms"].as_u64().expect("a number");
    let held = client.acquired("x", &[token, ("ttl", "60s")]).await;
    for (ttl, least, most, least_left) in [("5s", 1, 5_000, 20_000), ("90s", 60_001, 90_000, 60_001)] {
        let again = client.acquire("x", &[token, ("ttl", ttl)]).await.expect_status(200);
        assert_eq!((again.fence(), again.token()), (held.fence(), held.token()));
        assert!((least..=most).contains(&validity(&again)), "{ttl}: {again:?}");
        let left = client.inspect("x").await.expect_status(200).json()["holders"][0]["valid_for_ms"].as_u64();
        assert!(left.is_some_and(|left| left >= least_left), "{ttl}: {left:?} left, {again:?}");
    }
    client.release("x", &held.token()).await.expect_status(204);
}

/// Also of a stream, which would release the other owner's lease at its end: at once, and after it has waited.
#[tokio::test]
async fn l11_a_stream_does_not_hold_the_lease_of_another_owner() {
    let service = Service::embedded(&[]).await;
    let client = service.client();
    let token = ("token", "a-token-of-my-own-0123456789");
    let (ann, bob) = ([token, ("ttl", "60s"), ("owner", "ann")], [token, ("ttl", "60s"), ("owner", "bob")]);
    let held = client.acquired("x", &ann).await;
    let stream = |fields: &[(&str, &str)]| client.request("POST", "/locks/x?hold=true").form(fields);
    let body = send(stream(&bob)).await.expect_problem(400, "invalid").json();
    assert_eq!(body["errors"][0]["field"], "owner");
    // One that is in the queue before the lease of its token is granted.
    client.release("x", &held.token()).await.expect_status(204);
    let token = ("token", "another-of-my-own-0123456789");
    let (ann, bob) = ([token, ("owner", "ann"), ("wait", "60s")], [token, ("owner", "bob"), ("wait", "60s")]);
    let before = client.acquired("x", &[("ttl", "60s")]).await;
    let first = tokio::spawn({
        let request = client.request("POST", "/locks/x").form(&ann);
        async move { send(request).await }
    });
    poll::until("it waits", || async { (client.waiting("x").await == 1).then_some(()) }).await;
    let mut second = stream(&bob).send().await.expect("a stream");
    let queued = second.chunk().await.expect("connected").expect("an event");
    assert!(queued.starts_with(b"{\"event\":\"queued\""), "{queued:?}");
    client.release("x", &before.token()).await.expect_status(204);
    let held = first.await.expect("no panic").expect_status(201);
    let refused = second.chunk().await.expect("connected").expect("an event");
    let refused: serde_json::Value = serde_json::from_slice(&refused).expect("an object");
    assert_eq!((&refused["event"], &refused["errors"][0]["field"]), (&"refused".into(), &"owner".into()), "{refused}");
    second.chunk().await.expect_err("the body breaks off");
    // The lease is as before.
    let seen = client.inspect("x").await.expect_status(200).json();
    assert_eq!((&seen["holders"][0]["owner"], &seen["holders"][0]["fence"]), (&"ann".into(), &held.fence().into()));
    client.release("x", &held.token()).await.expect_status(204);
}

#[tokio::test]
async fn l17_bodies_of_other_charsets_and_types_are_415() {
    let service = Service::embedded(&[]).await;
    let client = service.client();
    let (form, json) = ("application/x-www-form-urlencoded", "application/json");
    let latin = format!("{form}; charset=iso-8859-1");
    for kinds in [&[latin.as_str()][..], &[form, json], &[json, json]] {
        let mut request = client.request("PATCH", "/locks/x").body("note=a");
        for kind in kinds {
            request = request.header("Content-Type", *kind);
        }
        let refused = send(request).await.expect_problem(415, "unsupported-media-type");
        assert!(refused.header("accept-patch").contains("application/merge-patch+json"), "{refused:?}");
    }
    let utf8 = client.request("POST", "/locks/x").header("Content-Type", format!("{form}; Charset=\"UTF-8\""));
    send(utf8.body("owner=ann")).await.expect_status(201);
}
