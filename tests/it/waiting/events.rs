//! `GET /events` over two instances, as curl and other clients see it.

use std::time::Duration;

use reqwest::Response;
use serde_json::{Value, json};

use super::{Cluster, Instance};
use crate::support::poll;

/// A reader of one stream.
struct Reader {
    response: Response,
    text: String,
}

#[derive(Debug)]
struct Seen {
    id: String,
    name: String,
    data: Value,
}

impl Reader {
    async fn open(instance: &Instance, query: &str, last: Option<&str>) -> Self {
        let mut request = instance.client.get(instance.url(&format!("/events{query}")));
        if let Some(last) = last {
            request = request.header("last-event-id", last);
        }
        let response = request.send().await.expect("an answer");
        assert_eq!(response.status().as_u16(), 200);
        assert_eq!(response.headers()["content-type"], "text/event-stream");
        Self { response, text: String::new() }
    }

    /// The next event; comments and the like are passed over.
    async fn next(&mut self) -> Seen {
        loop {
            if let Some((block, rest)) = self.text.split_once("\n\n") {
                let field = |name: &str| {
                    let line = block.lines().find_map(|l| l.strip_prefix(name)?.strip_prefix(": "));
                    line.unwrap_or_default().to_owned()
                };
                let seen = Seen {
                    id: field("id"),
                    name: field("event"),
                    data: serde_json::from_str(&field("data")).unwrap_or_default(),
                };
                self.text = rest.to_owned();
                if !seen.name.is_empty() {
                    return seen;
                }
                continue;
            }
            let chunk = tokio::time::timeout(poll::PATIENCE, self.response.chunk()).await.expect("an event in time");
            let chunk = chunk.expect("bytes").expect("no end");
            self.text.push_str(std::str::from_utf8(&chunk).expect("text"));
        }
    }

    async fn named(&mut self, name: &str) -> Seen {
        loop {
            let seen = tokio::time::timeout(poll::PATIENCE, self.next()).await.expect("an event in time");
            if seen.name == name {
                return seen;
            }
        }
    }
}

/// Acquires and releases until an event arrives: an instance learns within a second that another one has a stream.
async fn until_received(acting: &Instance, reader: &mut Reader) {
    let acts = poll::until::<(), _>("an event is received", || async {
        let lease = acting.acquire("warm-up", &[("ttl", "60s")]).await;
        acting.release("warm-up", &lease).await;
        None
    });
    tokio::select! {
        _ = reader.named("acquired") => {}
        () = acts => {}
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn events_of_one_instance_reach_the_other_once_and_without_a_token() {
    let cluster = Cluster::of(3).await;
    let (here, there) = (cluster.instance(&[]).await, cluster.instance(&[]).await);
    let mut reader = Reader::open(&there, "?prefix=team/", None).await;
    let mut all = Reader::open(&there, "", None).await;
    until_received(&here, &mut all).await;
    let lease = here.acquire("team/x", &[("ttl", "60s"), ("owner", "me")]).await;
    let extend = here.client.patch(here.url("/locks/team/x")).header("lock-token", &lease.token);
    assert_eq!(extend.send().await.expect("an answer").status().as_u16(), 200);
    assert_eq!(here.release("team/x", &lease).await, 204);
    let acquired = reader.next().await;
    assert_eq!((acquired.name.as_str(), &acquired.data["resource"]), ("acquired", &"team/x".into()));
    assert_eq!((&acquired.data["owner"], &acquired.data["fence"]), (&"me".into(), &lease.fence.into()));
    assert_eq!(acquired.data["token_id"], lease.body["token_id"]);
    let released = reader.next().await;
    assert_eq!((released.name.as_str(), &released.data["token_id"]), ("released", &lease.body["token_id"]));
    for seen in [&acquired, &released] {
        assert!(!format!("{seen:?}").contains(&lease.token), "{seen:?}");
    }
    // From where it was: the same one, and nothing else of that name twice.
    let mut again = Reader::open(&there, "?prefix=team/", Some(&acquired.id)).await;
    let next = again.next().await;
    assert_eq!((next.id, next.name), (released.id, "released".to_owned()));
    let mut foreign = Reader::open(&here, "", Some(&acquired.id)).await;
    assert_eq!(foreign.next().await.name, "gap");
}

#[tokio::test(flavor = "multi_thread")]
async fn renewals_forced_ends_and_expiries_are_published() {
    let cluster = Cluster::of(3).await;
    let here = cluster.instance(&[]).await;
    let mut reader = Reader::open(&here, "?renewals=true", None).await;
    let lease = here.acquire("x", &[("ttl", "60s")]).await;
    let extend = here.client.patch(here.url("/locks/x")).header("lock-token", &lease.token);
    assert_eq!(extend.send().await.expect("an answer").status().as_u16(), 200);
    assert!(reader.named("extended").await.data["valid_for_ms"].as_u64().expect("a number") > 50_000);
    let force = here.client.delete(here.url("/locks/x?force=now&reason=test"));
    assert_eq!(force.send().await.expect("an answer").status().as_u16(), 204);
    assert_eq!(reader.named("forced").await.data["reason"], "now");
    let short = here.acquire("y", &[("ttl", "1s")]).await;
    assert_eq!(reader.named("expired").await.data["token_id"], short.body["token_id"]);
}

/// From the grant to the end, whoever ends it; an exclusive lease has neither.
#[tokio::test(flavor = "multi_thread")]
async fn events_of_shared_leases_and_permits_have_their_mode_and_slot() {
    let cluster = Cluster::of(3).await;
    let (here, there) = (cluster.instance(&[]).await, cluster.instance(&[]).await);
    let mut reader = Reader::open(&here, "?renewals=true", None).await;
    until_received(&there, &mut reader).await;
    let permit = [("limit", "3"), ("ttl", "60s")];
    let shared = [("mode", "shared"), ("ttl", "60s")];
    let extend = |name: &str, lease: &super::Lease, form: &[(&str, &str)]| {
        here.client.patch(here.url(&format!("/locks/{name}"))).header("lock-token", &lease.token).form(form).send()
    };
    let mut named = async |name: &str, resource: &str| loop {
        let seen = reader.named(name).await.data;
        if seen["resource"] == resource {
            return (seen["mode"].clone(), seen["slot"].clone());
        }
    };
    let one = here.acquire("gpu", &permit).await;
    let of_permit = (json!("permit"), one.body["slot"].clone());
    assert!(of_permit.1.is_u64(), "{one:?}");
    assert_eq!(named("acquired", "gpu").await, of_permit);
    assert_eq!(extend("gpu", &one, &[]).await.expect("an answer").status(), 200);
    assert_eq!(named("extended", "gpu").await, of_permit);
    assert_eq!(here.release("gpu", &one).await, 204);
    assert_eq!(named("released", "gpu").await, of_permit);
    // Released where it was not granted, ended by force, run out.
    let other = here.acquire("gpu", &permit).await;
    assert_eq!(there.release("gpu", &other).await, 204);
    assert_eq!(named("released", "gpu").await, (json!("permit"), other.body["slot"].clone()));
    let forced = here.acquire("doc", &shared).await;
    assert_eq!(forced.status, 201, "{forced:?}");
    let force = here.client.delete(here.url("/locks/doc?force=now&reason=test")).send().await.expect("an answer");
    assert_eq!(force.status(), 204);
    assert_eq!(named("forced", "doc").await, (json!("shared"), Value::Null));
    let writer = here.acquire("doc", &[("ttl", "1s")]).await;
    assert_eq!(named("acquired", "doc").await, (Value::Null, Value::Null));
    assert_eq!(extend("doc", &writer, &[("mode", "shared")]).await.expect("an answer").status(), 200);
    assert_eq!(named("extended", "doc").await, (json!("shared"), Value::Null));
    assert_eq!(named("expired", "doc").await, (json!("shared"), Value::Null), "as it ended, not as it began");
}

#[tokio::test(flavor = "multi_thread")]
async fn nodes_that_change_state_are_published() {
    let mut cluster = Cluster::of(3).await;
    let here = cluster.instance(&[]).await;
    let mut reader = Reader::open(&here, "?prefix=anything", None).await;
    here.until_probes(2, 3).await;
    cluster.servers[2].kill();
    assert_eq!(reader.named("node_down").await.data["node"], "n2");
    cluster.servers[2].restart_empty().await;
    // Filled within a second: that it was in quarantine may not be seen.
    assert_eq!(reader.named("node_up").await.data["node"], "n2");
    // A majority that forgot waits.
    for server in &mut cluster.servers[1..] {
        server.kill();
        server.restart_empty().await;
    }
    let node = reader.named("quarantined").await.data["node"].clone();
    assert!(node == "n1" || node == "n2", "{node}");
}

#[tokio::test(flavor = "multi_thread")]
async fn invalid_requests_are_refused_and_shutdown_is_announced() {
    let cluster = Cluster::of(1).await;
    let here = cluster.instance(&[]).await;
    let refused = here.client.get(here.url("/events?tail=5")).send().await.expect("an answer");
    assert_eq!(refused.status().as_u16(), 400);
    let refused = here.client.get(here.url("/events")).header("accept", "application/json").send().await;
    assert_eq!(refused.expect("an answer").status().as_u16(), 406);
    let reader = Reader::open(&here, "", None).await;
    here.shutdown.cancel();
    let (took, text) = super::timed(reader.response.text()).await;
    assert!(text.expect("a good end").ends_with(": this instance is shutting down\n\n"));
    assert!(took < Duration::from_secs(5), "{took:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_slow_stream_is_ended_with_the_number_of_missed_events() {
    let cluster = Cluster::of(1).await;
    let here = cluster.instance(&[]).await;
    let reader = Reader::open(&here, "", None).await;
    poll::until("it subscribes to the node", || async {
        let (_, count): (String, usize) = cluster.servers[0].ask(&["PUBSUB", "NUMSUB", "redlockd:events"]).await;
        (count == 1).then_some(())
    })
    .await;
    // More than the sockets between the two take in.
    let flood = "for i = 1, 100 do redis.call('PUBLISH', 'redlockd:events', '{\"event\":\"released\",\"at_ms\":1,\
                 \"name\":\"t.' .. ARGV[1] .. '.' .. i .. '\",\"owner\":\"' .. string.rep('x', 3800) .. '\"}') end";
    for round in 0..50 {
        cluster.servers[0].ask::<()>(&["EVAL", flood, "0", &round.to_string()]).await;
    }
    here.until_probes(1, 1).await;
    let text = tokio::time::timeout(poll::PATIENCE, reader.response.text()).await.expect("an end").expect("text");
    let last = text.trim_end().rsplit("\n\n").next().unwrap_or_default();
    assert!(last.starts_with("event: dropped\ndata: {\"missed\":"), "{last}");
}
