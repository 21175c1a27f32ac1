//! Resources that a principal may not read are hidden: in the list, its pages and its total, and in events.

use std::time::Duration;

use super::{Access, acquired, as_principal, key};
use crate::support::poll;

#[tokio::test]
async fn the_list_contains_readable_resources_only_in_full_pages() {
    let access = Access::of(&[("all", &["acquire:**"]), ("half", &["read:b/*"]), ("none", &["read:z/**"])]);
    let service = access.service(&["--set", "list_refresh=100ms"]).await;
    for i in 0..4 {
        acquired(&service, "all", &format!("a/{i}")).await;
        acquired(&service, "all", &format!("b/{i}")).await;
    }
    let page = |name: &'static str, query: String| {
        let request = service.client().request("GET", &format!("/locks{query}"));
        async move { as_principal(request, name).await.expect_status(200).json() }
    };
    let names = |body: &serde_json::Value| -> Vec<String> {
        let items = body["items"].as_array().expect("items");
        items.iter().map(|item| item["resource"].as_str().expect("a name").to_owned()).collect()
    };
    poll::until("the snapshot has all eight", || async {
        (page("all", String::new()).await["total"] == 8).then_some(())
    })
    .await;
    let half = page("half", "?limit=3".into()).await;
    assert_eq!((names(&half), &half["total"]), (vec!["b/0".into(), "b/1".into(), "b/2".into()], &4.into()));
    let cursor = half["next_cursor"].as_str().expect("a next page").to_owned();
    let rest = page("half", format!("?limit=3&cursor={cursor}")).await;
    assert_eq!((names(&rest), &rest["next_cursor"]), (vec!["b/3".to_owned()], &serde_json::Value::Null));
    // Filters do not bypass the rules.
    for query in ["?prefix=a/", "?cursor=a/0", "?owner=", "?state=held&prefix=a"] {
        let seen = names(&page("half", query.into()).await);
        assert!(seen.iter().all(|name| name.starts_with("b/")), "{query}: {seen:?}");
    }
    let none = page("none", String::new()).await;
    assert!(names(&none).is_empty() && none["total"] == 0, "{none}");
}

#[tokio::test]
async fn events_of_hidden_resources_are_left_out_and_the_stream_ends_with_the_access() {
    let access = Access::of(&[("all", &["acquire:**"]), ("half", &["events:b/*"])]);
    let service = access.service(&[]).await;
    let mut stream =
        service.client().request("GET", "/events").bearer_auth(key("half")).send().await.expect("a stream");
    assert_eq!(stream.status(), 200);
    let mut received = String::new();
    acquired(&service, "all", "a/1").await;
    acquired(&service, "all", "b/1").await;
    let more = async |received: &mut String, stream: &mut reqwest::Response, word: &str| {
        while !received.contains(word) {
            let chunk = tokio::time::timeout(Duration::from_secs(30), stream.chunk()).await.expect("in time");
            let Some(chunk) = chunk.expect("connected") else { return };
            received.push_str(&String::from_utf8_lossy(&chunk));
        }
    };
    more(&mut received, &mut stream, "b/1").await;
    assert!(!received.contains("a/1"), "{received}");
    // Also events that are replayed from the buffer.
    let id = received.lines().find_map(|l| l.strip_prefix("id: ")).expect("an id").to_owned();
    let before = id.rsplit_once('.').map(|(hub, _)| format!("{hub}.0")).expect("an id");
    let mut again = service.client().request("GET", "/events").bearer_auth(key("half"));
    again = again.header("Last-Event-ID", before);
    let (mut backlog, mut resumed) = (String::new(), again.send().await.expect("a stream"));
    more(&mut backlog, &mut resumed, "b/1").await;
    assert!(!backlog.contains("a/1"), "{backlog}");
    // When its access ends, the stream ends with the next event.
    access.write(&super::entry("all", &[&key("all")], &["acquire:**"], ""));
    poll::until("the new rules are in force", || async {
        let request = service.client().request("GET", "/locks");
        (as_principal(request, "half").await.status == 401).then_some(())
    })
    .await;
    acquired(&service, "all", "b/2").await;
    more(&mut received, &mut stream, "access has ended").await;
    assert!(received.contains("access has ended") && !received.contains("b/2"), "{received}");
}
