//! Event streams of principals: how many one of them may read, and that they end with the credentials that began them.

use std::time::Duration;

use super::login::Browser;
use super::{Access, acquired, as_principal, entry, key};
use crate::support::poll;
use crate::support::service::Service;

/// Streams of one principal; see docs/limits.md.
const PER_PRINCIPAL: usize = 64;
/// Only a stream that does not end takes this long.
const PATIENCE: Duration = Duration::from_secs(30);

async fn stream(service: &Service, key: &str) -> reqwest::Response {
    service.client().request("GET", "/events").bearer_auth(key).send().await.expect("an answer")
}

/// P1: one principal does not take the streams of all.
#[tokio::test]
async fn p1_one_principal_does_not_use_up_the_streams_of_the_others() {
    let service = Access::of(&[("greedy", &["events:a/*"]), ("other", &["events:b/*"])]).service(&[]).await;
    let mut open = Vec::new();
    for _ in 0..PER_PRINCIPAL {
        let answer = stream(&service, &key("greedy")).await;
        assert_eq!(answer.status(), 200);
        open.push(answer);
    }
    let request = || service.client().request("GET", "/events");
    let refused = as_principal(request(), "greedy").await.expect_problem(429, "quota-exceeded").json();
    assert_eq!((&refused["limit"], &refused["scope"]), (&PER_PRINCIPAL.into(), &"principal".into()), "{refused}");
    assert_eq!(stream(&service, &key("other")).await.status(), 200);
    drop(open.pop());
    poll::until("a stream that ended is not counted", || async {
        (stream(&service, &key("greedy")).await.status() == 200).then_some(())
    })
    .await;
}

/// Reads the stream while events are made, until it ends; the end of what it sent.
async fn until_it_ends(service: &Service, mut stream: reqwest::Response) -> String {
    let mut received = String::new();
    let events = async {
        for number in 0.. {
            acquired(service, "all", &format!("b/{number}")).await;
        }
    };
    let read = async {
        while let Some(chunk) = stream.chunk().await.expect("connected") {
            received.push_str(&String::from_utf8_lossy(&chunk));
        }
    };
    let ended = async {
        tokio::select! { biased; () = read => {}, () = events => {} }
    };
    tokio::time::timeout(PATIENCE, ended).await.expect("it ends");
    received
}

/// P2: a key that leaked is removed, and its principal stays: who reads a stream by it reads no further.
#[tokio::test]
async fn p2_a_stream_ends_with_the_key_that_began_it() {
    let of =
        |keys: &[&str]| entry("all", &[&key("all")], &["acquire:**"], "") + &entry("ev", keys, &["events:b/*"], "");
    let access = Access::with(&of(&["leaked", "new"]));
    let service = access.service(&[]).await;
    let (leaked, kept) = (stream(&service, "leaked").await, stream(&service, "new").await);
    access.write(&of(&["new"]));
    poll::until("the new rules are in force", || async {
        (stream(&service, "leaked").await.status() == 401).then_some(())
    })
    .await;
    let received = until_it_ends(&service, leaked).await;
    assert!(received.ends_with(": your access has ended\n\n"), "{received}");
    // The other one goes on.
    let mut kept = kept;
    acquired(&service, "all", "b/last").await;
    let mut received = String::new();
    while !received.contains("b/last") {
        let chunk = tokio::time::timeout(PATIENCE, kept.chunk()).await.expect("in time").expect("connected");
        received.push_str(&String::from_utf8_lossy(&chunk.expect("it goes on")));
    }
}

/// P2: the same for the stream of a page and its session.
#[tokio::test]
async fn p2_the_stream_of_a_page_ends_with_the_log_out() {
    let service = Access::of(&[("all", &["acquire:**"]), ("ev", &["events:b/*"])]).service(&[]).await;
    let mut browser = Browser::new(&service);
    browser.log_in("ev").await;
    let cookie = format!("redlockd_session={}", browser.session());
    let request = service.client().request("GET", "/ui/stream").header("Cookie", cookie);
    let stream = request.send().await.expect("an answer");
    assert_eq!(stream.status(), 200);
    browser.post("/ui/logout", &[]).await;
    let received = until_it_ends(&service, stream).await;
    assert!(received.ends_with(": your access has ended\n\n"), "{received}");
}
