//! The program's log: both formats, request id and trace id in every line about a request, the lines that operators
//! need, and no token in any output.

use serde_json::Value;
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;

use crate::support::client::{Answer, send};
use crate::support::cluster::{Cluster, MUTE, ServiceOver, heal};
use crate::support::poll;
use crate::support::service::{Service, path};

const TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";
const PARENT: &str = "00f067aa0ba902b7";

async fn traced(service: &Service, method: &str, path: &str) -> Answer {
    let request = service.client().request(method, path).header("X-Request-Id", "build/17");
    send(request.header("traceparent", format!("00-{TRACE}-{PARENT}-01"))).await
}

async fn line_with(service: &Service, word: &str) -> String {
    let what = format!("the log says {word:?}");
    poll::until(&what, || async { service.output().into_iter().find(|l| l.contains(word)) }).await
}

#[tokio::test]
async fn text_lines_contain_the_request_and_trace_ids() {
    let service = Service::embedded(&["--log-level", "debug"]).await;
    traced(&service, "POST", "/locks/a/b?ttl=30s").await.expect_status(201);
    let line = line_with(&service, "a request was answered").await;
    for part in [
        "request_id=\"build/17\"",
        "method=POST",
        "path=\"/locks/a/b\"",
        &format!("trace_id=\"{TRACE}\""),
        &format!("parent_id=\"{PARENT}\""),
        "status=201",
        "route=\"/locks/{resource}\"",
    ] {
        assert!(line.contains(part), "{part} is not in {line}");
    }
    assert!(!line.contains("ttl"), "a query may carry what is secret: {line}");
}

#[tokio::test]
async fn json_lines_contain_the_request_and_trace_ids() {
    let service = Service::embedded(&["--log-level", "debug", "--log-format", "json"]).await;
    traced(&service, "POST", "/locks/a/b").await.expect_status(201);
    send(service.client().request("GET", "/locks/a/b")).await.expect_status(200);
    let of = |status: u16| {
        let service = &service;
        async move {
            poll::until("the answer is logged", || async {
                let lines = service.output().into_iter().filter(|l| l.starts_with('{'));
                let mut lines = lines.map(|l| serde_json::from_str::<Value>(&l).expect("JSON"));
                lines.find(|l| l["message"] == "a request was answered" && l["status"] == status)
            })
            .await
        }
    };
    let line = of(201).await;
    let span = &line["span"];
    assert_eq!((&line["level"], &line["route"]), (&Value::from("DEBUG"), &Value::from("/locks/{resource}")));
    assert_eq!((&span["request_id"], &span["method"]), (&Value::from("build/17"), &Value::from("POST")));
    assert_eq!((&span["trace_id"], &span["parent_id"]), (&Value::from(TRACE), &Value::from(PARENT)));
    assert!(line.get("spans").is_none(), "said once: {line}");
    let untraced = of(200).await;
    assert!(untraced["span"]["request_id"].as_str().is_some_and(|id| id.starts_with("req_")), "{untraced}");
    assert!(untraced["span"].get("trace_id").is_none(), "{untraced}");
    // All that it says on standard error is JSON; the announcement is on standard output.
    let others: Vec<_> = service.output().into_iter().filter(|l| !l.starts_with('{')).collect();
    assert_eq!(others.len(), 3, "{others:#?}");
}

/// Also at a log level that hides the lines of the request itself.
#[tokio::test]
async fn warnings_contain_the_request_id_at_the_level_warn() {
    let service = Service::embedded(&["--log-level", "warn"]).await;
    service.client().acquired("x", &[]).await;
    traced(&service, "DELETE", "/locks/x?force=now&reason=fire").await.expect_status(204);
    let line = line_with(&service, "a lease was ended by force").await;
    assert!(line.contains("WARN") && line.contains("request_id=\"build/17\"") && line.contains(TRACE), "{line}");
    // A stream goes on after its request's head was answered.
    let mut stream = TcpStream::connect(service.address()).await.expect("it listens");
    let head =
        "POST /locks/y?hold=true HTTP/1.1\r\nHost: localhost\r\nX-Request-Id: stream-1\r\nContent-Length: 0\r\n\r\n";
    stream.write_all(head.as_bytes()).await.expect("open");
    poll::until("it is held", || async { (service.client().inspect("y").await.status == 200).then_some(()) }).await;
    traced(&service, "DELETE", "/locks/y?force=now&reason=fire").await.expect_status(204);
    let line = line_with(&service, "a stream lost the lease that it held").await;
    assert!(line.contains("request_id=\"stream-1\"") && line.contains("reason=\"forced\""), "{line}");
}

async fn until_logged(over: &ServiceOver, words: &[&str]) {
    let what = format!("one line has {words:?}");
    poll::until(&what, || async {
        over.service.output().iter().any(|line| words.iter().all(|word| line.contains(word))).then_some(())
    })
    .await;
}

#[tokio::test]
async fn start_node_changes_quorum_changes_and_stop_are_logged() {
    let cluster = Cluster::start(3).await;
    let mut over = cluster.service().await;
    until_logged(&over, &["INFO", "serving", "nodes=3"]).await;
    until_logged(&over, &["INFO", "a quorum of nodes votes: locks can be granted"]).await;
    over.proxies[0].set(MUTE);
    let next_fails = "the next failure is an outage";
    until_logged(&over, &["WARN", "the node has no vote", next_fails, "node=n1", "state=\"down\"", "voting=2"]).await;
    // The sentence of the pages, in the log and where the service is ready.
    let (state, advice) =
        ("Node n1 has not answered since ", "Bring back n1. Do not restart another node until it votes.");
    until_logged(&over, &["the node has no vote", &format!("situation=\"{state}"), &format!("advice=\"{advice}\"")])
        .await;
    let ready = over.client().get("/health/ready").await.expect_status(200).json();
    assert!(ready["situation"].as_str().is_some_and(|text| text.starts_with(state)), "{ready}");
    assert_eq!(ready["advice"], advice);
    over.proxies[1].set(MUTE);
    until_logged(&over, &["ERROR", "no quorum of nodes votes", "voting=1", "needed=2", "n1 down, n2 down"]).await;
    let none = "No lock can be granted or extended since ";
    until_logged(&over, &["no quorum of nodes votes", &format!("situation=\"{none}"), "advice=\"Bring back n1"]).await;
    let unready = over.client().get("/health/ready").await.expect_status(503).json();
    assert!(unready["detail"].as_str().is_some_and(|text| text.starts_with(none)), "{unready}");
    over.client().acquire("x", &[]).await.expect_status(503);
    over.proxies.iter().for_each(heal);
    until_logged(&over, &["INFO", "a quorum of nodes votes again", "after_s=", "refused=1"]).await;
    until_logged(&over, &["INFO", "the node is up", "node=n2", "after_s=", "situation=\"All 3 nodes vote"]).await;
    let lines = over.service.output();
    let losses = lines.iter().filter(|line| line.contains("the node has no vote") && line.contains("node=n1"));
    assert_eq!(losses.count(), 1, "one line for one incident: {lines:#?}");
    over.service.terminate();
    assert_eq!(over.service.exit_code().await, Some(0));
    until_logged(&over, &["INFO", "draining"]).await;
    until_logged(&over, &["INFO", "stopped"]).await;
}

#[tokio::test]
async fn a_start_over_blank_nodes_or_with_other_settings_names_them() {
    let blank = Cluster::blank(3).await;
    let over = blank.service_at_once(&[]).await;
    until_logged(&over, &["WARN", "the node has no vote", "node=n1", "redlockd init", "votes_in_s="]).await;
    until_logged(&over, &["ERROR", "no quorum of nodes votes", "n3 quarantined for", "it ends by itself at"]).await;
    let cluster = Cluster::start(3).await;
    let over = cluster.service_at_once(&["--set", "key_template=redlock:{resource}"]).await;
    until_logged(&over, &["WARN", "the node has no vote", "node=n2", "another node list"]).await;
    until_logged(&over, &["ERROR", "no quorum of nodes votes", "n1 other-cluster, n2 other-cluster"]).await;
}

/// A9: redlockd needs no persistence, so that it is off is information, which the log has once and not for each node.
#[tokio::test]
async fn that_persistence_is_off_is_said_once_and_is_no_warning() {
    let cluster = Cluster::start(3).await;
    let over = cluster.service().await;
    poll::until("every node was looked at", || async {
        let nodes = over.client().get("/nodes").await.text;
        (nodes.matches("\"no-persistence\"").count() == 3).then_some(())
    })
    .await;
    let lines: Vec<String> = over.service.output().into_iter().filter(|line| line.contains("no-persistence")).collect();
    assert!(lines.len() == 1 && lines[0].contains(" INFO "), "{lines:?}");
}

/// All operations, at the finest log level.
#[tokio::test]
async fn no_output_contains_a_token() {
    let cluster = Cluster::start(3).await;
    let dir = tempfile::tempdir().expect("a directory");
    let audit = dir.path().join("audit.log");
    let setting = format!("audit_log={}", path(&audit));
    for format in ["text", "json"] {
        let more = ["--log-level", "trace", "--log-format", format, "--set", &setting];
        let mut over = cluster.service_with(&more).await;
        let client = over.client().clone();
        let own = format!("{format}-own-token-0123456789");
        let mut tokens = vec![own.clone(), format!("{format}-strange-token-0123456789")];
        let drawn = client.acquired("drawn", &[("owner", "ci"), ("note", "n")]).await.token();
        client.acquired("own", &[("token", &own)]).await;
        client.acquire("own", &[("token", &own)]).await.expect_status(200);
        client.acquire("own", &[]).await.expect_status(423);
        client.extend("own", &own, &[("note", "new")]).await.expect_status(200);
        client.extend("own", &tokens[1], &[]).await.expect_status(409);
        client.release("own", &tokens[1]).await.expect_status(409);
        client.extend("drawn", &drawn, &[]).await.expect_status(200);
        send(client.request("DELETE", &format!("/locks/own?token={own}"))).await.expect_status(400);
        send(client.request("POST", &format!("/locks/own?token={own}"))).await.expect_status(400);
        send(client.request("DELETE", "/locks/own").header("Lock-Token", format!("<{own}>"))).await.expect_status(204);
        client.release("own", &own).await.expect_status(410);
        let mut held = send_hold(&over, &own).await;
        poll::until("it is held", || async { (client.inspect("held").await.status == 200).then_some(()) }).await;
        over.proxies[0].set(MUTE);
        client.acquired(&format!("two-of-three/{format}"), &[]).await;
        heal(&over.proxies[0]);
        client.release("held", &own).await.expect_status(204);
        held.shutdown().await.ok();
        let metrics = client.get("/metrics").await.text;
        send(client.request("DELETE", "/locks/drawn?force=now&reason=fire")).await.expect_status(204);
        over.service.terminate();
        assert_eq!(over.service.exit_code().await, Some(0));
        tokens.push(drawn);
        let log = over.service.output().join("\n");
        assert!(log.contains("TRACE") || log.contains("DEBUG"), "{log}");
        let lines = std::fs::read_to_string(&audit).expect("readable");
        assert!(lines.contains("\"force-now\"") && lines.contains("\"hold\""), "{lines}");
        for token in &tokens {
            for (name, text) in [("log", &log), ("audit log", &lines), ("metrics", &metrics)] {
                assert!(!text.contains(token.as_str()), "{token} is in the {name}:\n{text}");
            }
        }
    }
}

async fn send_hold(over: &ServiceOver, token: &str) -> TcpStream {
    let mut stream = TcpStream::connect(over.service.address()).await.expect("it listens");
    let body = format!("token={token}");
    let kind = "application/x-www-form-urlencoded";
    let head = format!(
        "POST /locks/held?hold=true HTTP/1.1\r\nHost: localhost\r\nContent-Type: {kind}\r\nContent-Length: {}\r\n\r\n{body}",
        body.len()
    );
    stream.write_all(head.as_bytes()).await.expect("open");
    stream
}
