//! The transport against small servers on loopback with prepared answers.

use std::io::{Read, Write};
use std::net::TcpListener;
use std::thread;

use super::*;
use crate::error::ErrorClass;

/// A server that gives each of `answers` to one connection, in order, and then closes; what it was
/// sent comes back from the handle.
fn server(answers: Vec<String>) -> (BaseUrl, thread::JoinHandle<Vec<String>>) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let url = BaseUrl::parse(&format!("http://{}", listener.local_addr().expect("bound"))).expect("a URL");
    let handle = thread::spawn(move || {
        let answer_one = |answer: String| {
            let (mut stream, _) = listener.accept().expect("a caller");
            let mut received = Vec::new();
            let mut buffer = [0; 4096];
            while !received.windows(4).any(|w| w == b"\r\n\r\n") {
                let n = stream.read(&mut buffer).expect("readable");
                assert_ne!(n, 0, "the caller left");
                received.extend_from_slice(&buffer[..n]);
            }
            stream.write_all(answer.as_bytes()).expect("writable");
            String::from_utf8(received).expect("text")
        };
        answers.into_iter().map(answer_one).collect()
    });
    (url, handle)
}

fn response(status: &str, body: &str) -> String {
    format!("HTTP/1.1 {status}\r\nContent-Length: {}\r\nConnection: close\r\nRetry-After: 7\r\n\r\n{body}", body.len())
}

fn problem(status: u16, slug: &str) -> String {
    format!(r#"{{"type":"/problems/{slug}","title":"T","status":{status},"detail":"D","instance":"i"}}"#)
}

/// An address without a listener.
fn no_listener() -> BaseUrl {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    BaseUrl::parse(&format!("http://{}", listener.local_addr().expect("bound"))).expect("a URL")
}

fn client(urls: Vec<BaseUrl>) -> Client {
    Client::new(ClientSettings { urls, ..ClientSettings::default() }).expect("a client")
}

fn get() -> ApiRequest<'static> {
    ApiRequest { timeout: Duration::from_secs(20), ..ApiRequest::new(Method::GET, "/x") }
}

#[tokio::test]
async fn instances_are_tried_in_turn_and_the_one_that_answered_comes_first_from_then_on() {
    let draining = response("503 Service Unavailable", &problem(503, "draining"));
    let (passed_over, first) = server(vec![draining]);
    let (good, second) = server(vec![response("200 OK", "1"), response("200 OK", "2")]);
    let client = client(vec![no_listener(), passed_over, good.clone()]);
    for body in ["1", "2"] {
        let answer = client.send(&get()).await.expect("an answer");
        assert_eq!((answer.body.as_slice(), answer.url), (body.as_bytes(), good.to_string()));
    }
    assert_eq!((first.join().expect("served").len(), second.join().expect("served").len()), (1, 2));
}

/// An address that accepts connections and never answers.
fn hung() -> (BaseUrl, TcpListener) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    (BaseUrl::parse(&format!("http://{}", listener.local_addr().expect("bound"))).expect("a URL"), listener)
}

#[tokio::test]
async fn an_instance_that_hangs_costs_a_second() {
    let ((hung, _listener), (good, served)) = (hung(), server(vec![response("200 OK", "1")]));
    let begun = SystemClock.now();
    let answer = client(vec![hung.clone(), good.clone()]).send(&get()).await.expect("an answer");
    let took = SystemClock.now().since(begun);
    assert_eq!(answer.url, good.to_string());
    let (least, most) = (PROBE_AFTER + PROBE_TIMEOUT, Duration::from_secs(5));
    assert!(least <= took && took < most, "{took:?}");
    served.join().expect("served");
    // What is left of the wait, and not the whole.
    let (second, served) = server(vec![response("200 OK", "1"), response("200 OK", "1")]);
    for (method, body) in [(Method::GET, None), (Method::POST, Some(serde_json::json!({})))] {
        let wait_until = Some(SystemClock.now().plus(Duration::from_millis(3_900)));
        let waiting = ApiRequest { wait_until, body, ..ApiRequest::new(method, "/x") };
        client(vec![hung.clone(), second.clone()]).send(&waiting).await.expect("an answer");
    }
    let received = served.join().expect("served").concat();
    assert!(received.contains("wait=") && !received.contains("wait=3"), "{received}");
    // What must not be repeated is awaited, since it may have been received.
    let once = ApiRequest { repeatable: false, timeout: Duration::from_secs(2), ..get() };
    let error = client(vec![hung, good]).send(&once).await.expect_err("it hangs");
    assert!(error.to_string().contains("no answer within 2000 ms"), "{error}");
}

/// Long before the timeout of its request, and not before it had time to wake up.
#[tokio::test]
async fn the_only_instance_is_given_up_when_it_does_not_even_say_that_it_is_alive() {
    let (hung, _listener) = hung();
    let error = client(vec![hung]).send(&get()).await.expect_err("it hangs");
    assert!(error.to_string().contains("no answer within 3000 ms"), "{error}");
    // One that says anything while the request waits is awaited: a proxy may know no /health/live.
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let url = BaseUrl::parse(&format!("http://{}", listener.local_addr().expect("bound"))).expect("a URL");
    let served = thread::spawn(move || {
        let (mut waiting, _) = listener.accept().expect("the request");
        let _ = waiting.read(&mut [0; 4096]).expect("readable");
        let (mut probe, _) = listener.accept().expect("the probe");
        let _ = probe.read(&mut [0; 4096]).expect("readable");
        probe.write_all(response("404 Not Found", "").as_bytes()).expect("writable");
        // The request is still waited for.
        waiting.set_read_timeout(Some(PROBE_TIMEOUT)).expect("an option");
        let read = waiting.read(&mut [0; 1]);
        assert!(read.as_ref().is_err_and(|error| error.kind() == std::io::ErrorKind::WouldBlock), "{read:?}");
        waiting.write_all(response("200 OK", "1").as_bytes()).expect("writable");
    });
    assert_eq!(client(vec![url]).send(&get()).await.expect("an answer").body, b"1");
    served.join().expect("served");
}

/// A server that answers the first question whether it is alive, and freezes then; and the first line of each request.
fn freezes() -> (BaseUrl, std::sync::mpsc::Receiver<String>) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let url = BaseUrl::parse(&format!("http://{}", listener.local_addr().expect("bound"))).expect("a URL");
    let (sender, lines) = std::sync::mpsc::channel();
    thread::spawn(move || {
        let (mut open, mut is_asked) = (Vec::new(), false);
        while let Ok((mut stream, _)) = listener.accept() {
            let mut buffer = [0; 4096];
            let n = stream.read(&mut buffer).expect("readable");
            let line = String::from_utf8_lossy(&buffer[..n]).lines().next().unwrap_or_default().to_owned();
            if line.contains("/health/live") && !std::mem::replace(&mut is_asked, true) {
                stream.write_all(response("200 OK", "").as_bytes()).expect("writable");
            }
            open.push(stream);
            // Fails where the test is over.
            let _ = sender.send(line);
        }
    });
    (url, lines)
}

/// The only instance is asked once, and its request waits on.
#[tokio::test]
async fn an_instance_that_freezes_while_a_request_waits_is_left_if_there_is_another_one() {
    let ((frozen, asked), (good, served)) = (freezes(), server(vec![response("200 OK", "1")]));
    let (only, asked_only) = freezes();
    // Long enough for the probes of an instance that is left.
    let timeout = PROBE_AFTER + PROBE_AGAIN + PROBE_AFTER + 4 * PROBE_AGAIN_TIMEOUT;
    let (asks, waiting) = (get(), ApiRequest { timeout, ..get() });
    let (several, one) = (client(vec![frozen, good.clone()]), client(vec![only]));
    let (left, waited) = tokio::join!(several.send(&asks), one.send(&waiting));
    assert_eq!(left.expect("an answer").url, good.to_string());
    served.join().expect("served");
    let error = waited.expect_err("it froze").to_string();
    assert!(error.contains(&format!("no answer within {} ms", timeout.as_millis())), "{error}");
    for (asked, probes) in [(asked, 3), (asked_only, 1)] {
        let asked: Vec<String> = asked.try_iter().collect();
        assert_eq!((asked.len(), asked[0].as_str()), (1 + probes, "GET /x HTTP/1.1"), "{asked:?}");
    }
}

#[tokio::test]
async fn unreachable_instances_are_reported_with_each_url_and_nothing_was_sent() {
    let urls = [no_listener(), no_listener()];
    let error = client(urls.to_vec()).send(&get()).await.expect_err("no listener");
    assert_eq!((error.class(), error.maybe_done()), (ErrorClass::Unavailable, false));
    let text = error.to_string();
    assert!(urls.iter().all(|url| text.contains(&url.to_string())) && text.contains("refused"), "{text}");
}

#[tokio::test]
async fn another_protocol_is_named() {
    for (scheme, answer, word) in
        [("https", "HTTP/1.1 400 Bad Request\r\n\r\n", "TLS"), ("http", "-ERR unknown command\r\n", "HTTP")]
    {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let url = format!("{scheme}://{}", listener.local_addr().expect("bound"));
        let served = thread::spawn(move || {
            let (mut stream, _) = listener.accept().expect("a caller");
            let _ = stream.read(&mut [0; 4096]).expect("readable");
            stream.write_all(answer.as_bytes()).expect("writable");
        });
        let error = client(vec![BaseUrl::parse(&url).expect("a URL")]).send(&get()).await.expect_err("no answer");
        assert!(error.to_string().contains(&format!("it does not speak {word} ")), "{error}");
        served.join().expect("served");
    }
}

#[tokio::test]
async fn what_must_not_be_repeated_is_not_once_it_may_have_been_received() {
    let (broken, received) = server(vec![String::new()]);
    let (untouched, _) = server(vec![]);
    let ask = ApiRequest { repeatable: false, ..get() };
    let error = client(vec![broken, untouched]).send(&ask).await.expect_err("it broke");
    assert!(error.maybe_done() && error.to_string().contains("closed the connection without an answer"), "{error}");
    assert!(matches!(error, ClientError::Unreachable { tries, .. } if tries.len() == 1));
    received.join().expect("served");
}

#[tokio::test]
async fn refusals_carry_slug_detail_and_retry_after() {
    let (url, served) = server(vec![response("423 Locked", &problem(423, "locked"))]);
    let error = client(vec![url]).send(&get()).await.expect_err("refused");
    let refusal = error.refusal().expect("a refusal");
    assert_eq!((refusal.slug.as_str(), refusal.retry_after), ("locked", Some(Duration::from_secs(7))));
    assert_eq!((error.class(), error.to_string().as_str()), (ErrorClass::Held, "D"));
    served.join().expect("served");
}

#[tokio::test]
async fn answer_of_another_server_is_recognized() {
    for (status, class) in [("404 Not Found", None), ("502 Bad Gateway", Some(502)), ("302 Found", None)] {
        let (url, served) = server(vec![response(status, "<html>hunter2</html>")]);
        let error = client(vec![url]).send(&get()).await.expect_err("strange");
        assert_eq!(error.refusal().map(|r| r.status), class, "{status}");
        assert_eq!(error.class(), ErrorClass::Unavailable);
        assert!(!error.to_string().contains("hunter2"), "{error}");
        served.join().expect("served");
    }
    let (url, served) = server(vec![response("200 OK", "hunter2")]);
    let answer = client(vec![url]).send(&get()).await.expect("an answer");
    let error = answer.json::<api::Lease>().expect_err("no lease");
    assert!(error.to_string().contains("does not answer like redlockd") && !error.to_string().contains("hunter2"));
    served.join().expect("served");
}

#[tokio::test]
async fn token_key_and_tag_travel_in_headers_and_print_nowhere() {
    let (url, served) = server(vec![response("204 No Content", "")]);
    let mut file = tempfile::NamedTempFile::new().expect("a temporary file");
    file.write_all(b"sesame").expect("writable");
    let key = Some(crate::key::KeyFile::read(file.path()).expect("a key").key);
    let client = Client::new(ClientSettings { urls: vec![url], key, ca_pem: None }).expect("a client");
    let token = Token::parse("hunter2hunter2hunter2hunter2").expect("a token");
    let ask = ApiRequest {
        if_match: Some(17),
        wait_until: Some(SystemClock.now().plus(Duration::from_millis(9_900))),
        ..get()
    }
    .token(&token);
    assert!(!format!("{ask:?} {client:?} {:?}", client.headers(&ask)).contains("hunter2"));
    assert!(!format!("{client:?} {:?}", client.headers(&ask)).contains("sesame"));
    client.send(&ask).await.expect("answered");
    let received = served.join().expect("served").concat();
    for line in ["authorization: Bearer sesame", "lock-token: hunter2", "if-match: \"17\"", "prefer: wait=9"] {
        assert!(received.contains(line), "{received}");
    }
    assert!(received.starts_with("GET /x HTTP/1.1"), "{received}");
}
