//! `hold=true` with the real curl: events, exit codes, and what becomes of the lease.

use std::process::Stdio;

use serde_json::Value;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, BufReader, Lines};
use tokio::process::{Child, ChildStdout, Command};

use super::{Cluster, Instance};
use crate::support::poll;

/// A curl that holds; killed when dropped.
struct Curl {
    child: Child,
    lines: Lines<BufReader<ChildStdout>>,
}

impl Curl {
    fn hold(instance: &Instance, resource: &str, args: &[&str]) -> Self {
        let mut command = Command::new("curl");
        command.args(["-sN"]).args(args).arg(instance.url(&format!("/locks/{resource}?hold=true")));
        command.stdin(Stdio::null()).stdout(Stdio::piped()).kill_on_drop(true);
        let mut child = command.spawn().expect("curl is installed");
        let lines = BufReader::new(child.stdout.take().expect("piped")).lines();
        Self { child, lines }
    }

    async fn line(&mut self) -> Option<String> {
        tokio::time::timeout(poll::PATIENCE, self.lines.next_line()).await.expect("a line in time").expect("text")
    }

    /// The next event of this name; others before it may be renewals only.
    async fn event(&mut self, name: &str) -> Value {
        loop {
            let line = self.line().await.unwrap_or_else(|| panic!("the stream ended before {name:?}"));
            let event: Value = serde_json::from_str(&line).expect("one object per line");
            if event["event"] == name {
                return event;
            }
            assert_eq!(event["event"], "renewed", "before {name:?}: {event}");
        }
    }

    async fn exit_code(mut self) -> Option<i32> {
        while self.line().await.is_some() {}
        tokio::time::timeout(poll::PATIENCE, self.child.wait()).await.expect("an end").expect("own child").code()
    }
}

async fn is_free(instance: &Instance, resource: &str) -> bool {
    let url = instance.url(&format!("/locks/{resource}"));
    instance.client.get(url).send().await.expect("an answer").status().as_u16() == 404
}

async fn delete(instance: &Instance, resource: &str, token: &Value) -> u16 {
    let request = instance.client.delete(instance.url(&format!("/locks/{resource}")));
    request.header("lock-token", token.as_str().expect("a token")).send().await.expect("an answer").status().as_u16()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_held_lease_ends_with_its_curl() {
    let cluster = Cluster::of(3).await;
    let here = cluster.instance(&[]).await;
    let mut curl = Curl::hold(&here, "deploy/prod", &["-d", "ttl=1s"]);
    let lease = curl.event("acquired").await;
    assert!(lease["token"].is_string() && lease["resource"] == "deploy/prod", "{lease}");
    // Six renewals are two TTLs.
    for _ in 0..6 {
        assert!(curl.event("renewed").await["valid_for_ms"].as_u64().expect("a number") > 300);
    }
    assert!(!is_free(&here, "deploy/prod").await);
    let next = here.queue("deploy/prod", &[("wait", "60s")]);
    here.until_waiting(1).await;
    curl.child.start_kill().expect("own child");
    let next = next.await.expect("no panic");
    assert_eq!(next.status, 201);
    assert!(next.fence > lease["fence"].as_u64().expect("a number"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_release_with_the_token_ends_it_with_success_from_either_instance() {
    let cluster = Cluster::of(3).await;
    let (here, there) = (cluster.instance(&[]).await, cluster.instance(&[]).await);
    for (resource, ends) in [("a", &here), ("b", &there)] {
        let mut curl = Curl::hold(&here, resource, &["-d", "ttl=30s"]);
        let lease = curl.event("acquired").await;
        assert_eq!(delete(ends, resource, &lease["token"]).await, 204);
        assert_eq!(curl.exit_code().await, Some(0), "{resource}");
        assert!(is_free(&here, resource).await);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_waiter_gets_its_position_and_then_the_lease() {
    let cluster = Cluster::of(3).await;
    let here = cluster.instance(&[]).await;
    let held = here.acquire("x", &[("ttl", "60s")]).await;
    let other = here.queue("x", &[("wait", "60s"), ("ttl", "60s")]);
    here.until_waiting(1).await;
    let mut curl = Curl::hold(&here, "x", &["-d", "wait=60s"]);
    assert_eq!(curl.event("queued").await["position"], 2);
    assert_eq!(here.release("x", &held).await, 204);
    let other = other.await.expect("no panic");
    assert_eq!(here.release("x", &other).await, 204);
    assert!(curl.event("acquired").await["fence"].as_u64().expect("a number") > other.fence);
    // One who goes while it queues leaves its place.
    let queued = Curl::hold(&here, "x", &["-d", "wait=60s"]);
    here.until_waiting(1).await;
    drop(queued);
    here.until_waiting(0).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn t29_a_loss_is_reported_and_aborts_the_body() {
    let mut cluster = Cluster::of(3).await;
    let here = cluster.instance(&[("max_hold", "1s")]).await;
    let there = cluster.instance(&[]).await;
    let mut long = Curl::hold(&here, "long", &["-d", "ttl=30s"]);
    long.event("acquired").await;
    assert_eq!(long.event("lost").await["reason"], "max_hold");
    assert_eq!(long.exit_code().await, Some(18));
    assert!(is_free(&here, "long").await);

    let mut forced = Curl::hold(&there, "forced", &["-d", "ttl=30s"]);
    forced.event("acquired").await;
    let force = here.client.delete(here.url("/locks/forced?force=now&reason=test"));
    assert_eq!(force.send().await.expect("an answer").status().as_u16(), 204);
    assert_eq!(forced.event("lost").await["reason"], "forced");
    assert_eq!(forced.exit_code().await, Some(18));

    let mut lonely = Curl::hold(&there, "lonely", &["-d", "ttl=3s"]);
    lonely.event("acquired").await;
    for server in &mut cluster.servers[1..] {
        server.kill();
    }
    let risk = lonely.event("at_risk").await;
    assert!(risk["valid_for_ms"].as_u64().expect("a number") > 0, "{risk}");
    let mut last = risk;
    while last["event"] == "at_risk" {
        last = serde_json::from_str(&lonely.line().await.expect("more")).expect("an object");
    }
    assert_eq!((&last["event"], &last["reason"]), (&"lost".into(), &"quorum".into()));
    assert_eq!(lonely.exit_code().await, Some(18));
}

#[tokio::test(flavor = "multi_thread")]
async fn at_shutdown_a_held_lease_moves_to_another_instance() {
    let cluster = Cluster::of(3).await;
    let (here, there) = (cluster.instance(&[]).await, cluster.instance(&[]).await);
    let mut curl = Curl::hold(&here, "x", &["-d", "ttl=60s"]);
    let lease = curl.event("acquired").await;
    // A node that the waiter reached first would give the moved hold a larger fence.
    for server in &cluster.servers {
        poll::until("the node has the lease", || async { server.ask::<bool>(&["EXISTS", "x"]).await.then_some(()) })
            .await;
    }
    let next = there.queue("x", &[("wait", "60s")]);
    there.until_waiting(1).await;
    here.shutdown.cancel();
    let left = curl.event("moved").await["valid_for_ms"].as_u64().expect("a number");
    assert!((30_000..60_000).contains(&left), "{left}");
    assert_eq!(curl.exit_code().await, Some(18));
    // Nobody gets it meanwhile: the waiter is still there when the hold continues.
    let token = format!("Lock-Token: {}", lease["token"].as_str().expect("a token"));
    let mut curl = Curl::hold(&there, "x", &["-H", &token, "-d", "ttl=60s"]);
    let moved = curl.event("acquired").await;
    assert_eq!((&moved["fence"], &moved["acquired_at"]), (&lease["fence"], &lease["acquired_at"]));
    there.until_waiting(1).await;
    // The end of this stream releases it.
    drop(curl);
    let (_, next) = super::timed(next).await;
    assert_eq!(next.expect("no panic").status, 201);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_refusal_is_a_problem_before_the_stream_and_an_event_in_it() {
    let cluster = Cluster::of(3).await;
    let here = cluster.instance(&[]).await;
    let _held = here.acquire("x", &[("ttl", "60s")]).await;
    assert_eq!(Curl::hold(&here, "x", &["-f", "-d", "ttl=30s"]).exit_code().await, Some(22));
    assert_eq!(Curl::hold(&here, "x", &["-f", "-d", "hold=maybe"]).exit_code().await, Some(22));
    let mut curl = Curl::hold(&here, "x", &["-d", "wait=1s"]);
    curl.event("queued").await;
    let refused = curl.event("refused").await;
    assert_eq!((&refused["status"], &refused["type"]), (&423.into(), &"/problems/wait-timeout".into()), "{refused}");
    assert_eq!(curl.exit_code().await, Some(18));
}

#[tokio::test(flavor = "multi_thread")]
async fn server_sent_events_are_sent_where_preferred() {
    let cluster = Cluster::of(3).await;
    let here = cluster.instance(&[]).await;
    let mut curl = Curl::hold(&here, "x", &["-H", "Accept: text/event-stream", "-d", "ttl=30s"]);
    assert_eq!(curl.line().await.as_deref(), Some("event: acquired"));
    let data = curl.line().await.expect("data");
    let lease: Value = serde_json::from_str(data.strip_prefix("data: ").expect("data")).expect("an object");
    assert_eq!(lease["resource"], "x");
    assert_eq!(curl.line().await.as_deref(), Some(""));
    assert_eq!(delete(&here, "x", &lease["token"]).await, 204);
    assert_eq!(curl.exit_code().await, Some(0));
}

#[tokio::test(flavor = "multi_thread")]
async fn the_shell_recipe_runs_its_work_only_while_it_holds() {
    let cluster = Cluster::of(3).await;
    let here = cluster.instance(&[]).await;
    let held = here.acquire("job", &[("ttl", "60s")]).await;
    let recipe = format!(
        "curl -sNf -d ttl=5s -d wait=60s '{}?hold=true' | while read -r line; do\n\
         case $line in *'\"event\":\"acquired\"'*) echo working; break;; esac; done",
        here.url("/locks/job")
    );
    let mut shell = Command::new("bash");
    shell.args(["-c", &recipe]).stdout(Stdio::piped()).kill_on_drop(true);
    let mut shell = shell.spawn().expect("bash");
    here.until_waiting(1).await;
    assert_eq!(here.release("job", &held).await, 204);
    let mut said = String::new();
    shell.stdout.take().expect("piped").read_to_string(&mut said).await.expect("text");
    assert_eq!(said, "working\n");
    // The shell stopped reading: curl meets the closed pipe with the next line, and the lease goes.
    shell.wait().await.expect("own child");
    poll::until("it is free", || async { is_free(&here, "job").await.then_some(()) }).await;
}
