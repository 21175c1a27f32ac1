//! `GET /metrics`: it agrees with `docs/metrics.md`, promtool has no complaints, no label contains a text of a caller,
//! only series of codes and durations appear later, a scrape is small, and its cost does not depend on the number of leases.

use std::collections::{BTreeMap, BTreeSet};
use std::io::Write;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt;
use redlockd::http::routes;
use redlockd::http::state::ServiceManager;
use redlockd::manager::PendingGrant;
use redlockd::manager::types::{AcquireRequest, LeaseOutcome, ListQuery, NodeSummary};
use redlockd::metrics::{Metrics, Scrape};
use redlockd::nodes::any_node::AnyNode;
use redlockd::nodes::embedded::{EmbeddedConfig, EmbeddedNode};
use redlockd::protocol::{ClusterParams, quarantine_for};
use redlockd::redlock::backoff::BackoffRange;
use redlockd::redlock::clock::SystemClock;
use redlockd::redlock::engine::{Redlock, RedlockSettings};
use redlockd::redlock::monitor::NodeMonitor;
use redlockd::redlock::random::SystemEntropy;
use redlockd::types::{Labels, NodeId, ResourceName, Ttl};
use redlockd::waiting::event::WaitLimits;

use crate::hooks::receiver::HooksFile;
use crate::support::client::{Client, send};
use crate::support::poll;
use crate::support::prometheus::tool;
use crate::support::service::Service;

/// All labels; none has values that callers choose.
const LABELS: [&str; 16] = [
    "route", "method", "code", "class", "kind", "outcome", "reason", "how", "end", "node", "op", "version", "le", "by",
    "state", "mode",
];

/// Series by family: type, and the names of the labels.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Family {
    kind: String,
    labels: BTreeSet<String>,
}

fn family_of<'a>(name: &'a str, kinds: &BTreeMap<&str, &str>) -> &'a str {
    let parts = ["_bucket", "_sum", "_count"].into_iter().filter_map(|part| name.strip_suffix(part));
    parts.into_iter().find(|base| kinds.get(base) == Some(&"histogram")).unwrap_or(name)
}

fn families(text: &str) -> BTreeMap<String, Family> {
    let kinds: BTreeMap<&str, &str> =
        text.lines().filter_map(|l| l.strip_prefix("# TYPE ")).filter_map(|l| l.split_once(' ')).collect();
    let mut families = BTreeMap::new();
    for line in text.lines().filter(|l| !l.starts_with('#')) {
        let name = line.split(['{', ' ']).next().expect("a split has a part");
        let base = family_of(name, &kinds);
        let kind = kinds.get(base).unwrap_or_else(|| panic!("{base} has no type")).to_string();
        let labels = label_names(line).into_iter().filter(|l| l != "le").collect();
        families.entry(base.to_owned()).or_insert(Family { kind, labels });
    }
    families
}

fn label_names(line: &str) -> Vec<String> {
    let Some((labels, _)) = line.split_once('{').and_then(|(_, rest)| rest.rsplit_once('}')) else { return Vec::new() };
    labels.split("\",").filter_map(|pair| Some(pair.split_once('=')?.0.to_owned())).collect()
}

fn series(text: &str) -> BTreeSet<String> {
    let lines = text.lines().filter(|l| !l.starts_with('#'));
    lines.filter_map(|l| l.rsplit_once(' ')).map(|(series, _)| series.to_owned()).collect()
}

async fn scraped(client: &Client) -> String {
    let answer = client.get("/metrics").await.expect_status(200);
    assert!(answer.header("content-type").starts_with("text/plain; version=0.0.4"), "{answer:?}");
    answer.text
}

/// Rows of the tables in docs/metrics.md: name, type, labels.
fn documented() -> BTreeMap<String, Family> {
    let rows = include_str!("../../docs/metrics.md").lines().filter(|l| l.starts_with("| `"));
    let row = |line: &str| {
        let cells: Vec<&str> = line.trim_matches('|').split('|').map(str::trim).collect();
        let ticked = |cell: &str| cell.split('`').skip(1).step_by(2).map(str::to_owned).collect::<Vec<_>>();
        let name = ticked(cells[0]).remove(0);
        (name, Family { kind: cells[1].to_owned(), labels: ticked(cells[2]).into_iter().collect() })
    };
    rows.map(row).collect()
}

#[tokio::test]
async fn exposed_and_documented_metrics_are_the_same() {
    let hooks = HooksFile::with("");
    let service = Service::embedded(&["--set", &hooks.setting()]).await;
    let (exposed, documented) = (families(&scraped(service.client()).await), documented());
    for (name, family) in &exposed {
        assert_eq!(documented.get(name), Some(family), "{name} in docs/metrics.md");
        assert!(name.starts_with("redlockd_") || name.starts_with("process_"), "{name}");
    }
    // With TLS, and with a key that expires: see `access::tls`.
    let elsewhere = ["redlockd_certificate_expires_timestamp_seconds", "redlockd_last_key_expires_timestamp_seconds"];
    for name in documented.keys().filter(|name| !elsewhere.contains(&name.as_str())) {
        assert!(exposed.contains_key(name), "{name} is documented and not exposed");
    }
}

#[tokio::test]
async fn a_scrape_is_compressed_for_a_client_that_asks_for_it() {
    let service = Service::embedded(&[]).await;
    let plain = send(service.client().request("GET", "/metrics")).await.expect_status(200);
    assert_eq!((plain.header("content-encoding"), plain.header("vary")), ("", "accept-encoding"));
    let asks = service.client().request("GET", "/metrics").header("accept-encoding", "gzip;q=1.0,identity;q=0.5");
    let answer = asks.send().await.expect("an answer");
    assert_eq!(answer.headers()["content-encoding"], "gzip");
    let compressed = answer.bytes().await.expect("a body");
    assert!(compressed.len() * 5 < plain.text.len(), "{} of {} bytes", compressed.len(), plain.text.len());
    let mut gunzip = Command::new("gunzip").stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("gunzip runs");
    gunzip.stdin.take().expect("piped").write_all(&compressed).expect("gunzip reads");
    let output = gunzip.wait_with_output().expect("gunzip ends");
    let text = String::from_utf8(output.stdout).expect("text");
    assert_eq!(families(&text), families(&plain.text));
}

#[tokio::test]
async fn promtool_accepts_the_metrics() {
    let Some(mut promtool) = tool("promtool") else { return };
    let hooks = HooksFile::with("");
    let service = Service::embedded(&["--set", &hooks.setting()]).await;
    let text = scraped(service.client()).await;
    let mut child = promtool
        .args(["check", "metrics"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("promtool runs");
    child.stdin.take().expect("piped").write_all(text.as_bytes()).expect("promtool reads");
    let output = child.wait_with_output().expect("promtool ends");
    let printed = [output.stdout, output.stderr].concat();
    assert!(output.status.success() && printed.is_empty(), "{}", String::from_utf8_lossy(&printed));
}

/// After every kind of request no text of a caller appears, and no series but those of codes and durations.
#[tokio::test]
async fn requests_add_no_texts_of_callers() {
    let service = Service::embedded(&[]).await;
    let client = service.client();
    let before = series(&scraped(client).await);
    let token = "own-token-0123456789abcdef";
    let fields = [("token", token), ("owner", "someowner"), ("note", "somenote"), ("metadata", "somekey=somevalue")];
    client.acquired("some/resource", &fields[..3]).await;
    client.acquire("some/resource", &fields).await;
    client.acquire("some/resource", &fields[1..3]).await.expect_status(423);
    client.acquire("some/resource", &[("wait", "100ms"), ("owner", "someowner")]).await.expect_status(423);
    client.extend("some/resource", token, &[]).await.expect_status(200);
    client.extend("some/resource", "another-token-0123456789", &[]).await.expect_status(409);
    client.release("some/resource", "another-token-0123456789").await.expect_status(409);
    client.get("/locks/some/resource").await.expect_status(200);
    client.get("/locks?prefix=some").await.expect_status(200);
    client.get("/some/where/else").await.expect_status(404);
    send(client.request("BREW", "/locks/some/resource")).await.expect_status(405);
    send(client.request("HEAD", "/nodes")).await.expect_status(200);
    send(client.request("DELETE", "/locks/some/resource?force=now&reason=somereason")).await.expect_status(204);
    client.release("some/resource", token).await.expect_status(410);
    let text = scraped(client).await;
    for word in ["some", token, &redlockd_token_id(token)] {
        assert!(!text.contains(word), "{word} is in\n{text}");
    }
    for name in text.lines().filter(|l| !l.starts_with('#')).flat_map(label_names) {
        assert!(LABELS.contains(&name.as_str()), "{name} is not one of the labels");
    }
    let after = series(&text);
    let is_lazy = |name: &str| {
        ["_duration_seconds", "_http_requests_total", "_node_requests_total"].iter().any(|part| name.contains(part))
    };
    let late: Vec<_> = after.difference(&before).filter(|name| !is_lazy(name)).collect();
    assert!(late.is_empty(), "new series: {late:#?}");
    assert!(text.contains("redlockd_lock_acquire_total{mode=\"exclusive\",outcome=\"granted\"} 1"), "{text}");
    let stray = text.lines().filter(|l| l.contains("code=\"other\"") && !l.ends_with(" 0"));
    assert_eq!(stray.count(), 0, "a status code that its route does not declare:\n{text}");
}

/// Item 6 of what a scrape must do: with five nodes, and everything in use that is used every day.
#[test]
fn a_scrape_of_five_nodes_is_at_most_60_kb() {
    let nodes = ["n1", "n2", "n3", "n4", "n5"].map(|name| NodeId::parse(name).expect("valid"));
    let metrics = Metrics::new(&nodes, &routes::labels());
    for (node, op) in nodes.iter().flat_map(|node| {
        ["acquire", "update", "cancel", "release", "inspect", "list", "waiters", "probe"].map(|op| (node, op))
    }) {
        metrics.node_calls(node, op, &[Duration::from_millis(1)], Ok(()));
    }
    let (lock, ms) = ("/locks/{resource}", Duration::from_millis(1));
    for (route, method, code) in [
        (lock, "POST", 201),
        (lock, "POST", 423),
        (lock, "PATCH", 200),
        (lock, "DELETE", 204),
        (lock, "GET", 200),
        ("/locks", "GET", 200),
        ("/metrics", "GET", 200),
        ("/health/ready", "GET", 200),
        ("/ui/", "GET", 200),
    ] {
        metrics.watch_request(route, method).answered(code, ms);
    }
    drop(metrics.watch_acquire(true));
    for end in [LeaseOutcome::Released, LeaseOutcome::Disconnected, LeaseOutcome::Lapsed] {
        metrics.lease_ended(end, ms);
    }
    let summaries = nodes.map(NodeSummary::new);
    let text = metrics.scrape(&Scrape { nodes: &summaries, ..Scrape::default() }).expect("encodes");
    assert!(text.len() <= 60_000, "{} bytes:\n{text}", text.len());
}

/// Processor time of this thread: unlike real time it does not depend on the load of the machine.
#[expect(clippy::disallowed_methods, reason = "measures cost, and decides nothing about leases")]
fn cpu_time() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec.try_into().expect("positive"), time.tv_nsec.try_into().expect("below a second"))
}

fn redlockd_token_id(token: &str) -> String {
    redlockd::types::Token::parse(token).expect("a token").hash().id().to_string()
}

/// A scrape reads counters that are kept up to date, and does not iterate over the leases.
#[tokio::test(flavor = "multi_thread")]
async fn the_cost_of_a_scrape_does_not_depend_on_the_number_of_leases() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let id = NodeId::parse("embedded-1").expect("valid");
    let metrics = Metrics::new(std::slice::from_ref(&id), &routes::labels());
    let (guard, lock_delay) = (Duration::from_millis(500), Duration::from_secs(1));
    let params = ClusterParams {
        cluster: "test".into(),
        guard,
        lock_delay,
        quarantine: quarantine_for(Duration::from_mins(5), lock_delay, guard),
        fence_ttl: Duration::from_hours(1),
        template: Default::default(),
    };
    let config = EmbeddedConfig { id, dir: dir.path().to_owned(), params: params.clone(), clock: SystemClock };
    let node = EmbeddedNode::open(config).expect("opens");
    let observer = {
        let metrics = Arc::clone(&metrics);
        move |node: &NodeId, verb: &'static str, (_, took): (_, &[Duration]), outcome: Result<(), _>| {
            metrics.node_calls(node, verb, took, outcome);
        }
    };
    let nodes = vec![Arc::new(AnyNode::Embedded(node, Arc::new(observer)))];
    let settings = RedlockSettings {
        params: Arc::new(params),
        node_timeout: Duration::from_secs(5),
        drift_ppm: 10_000,
        drift_floor: Duration::from_millis(2),
        min_validity_percent: 10,
        retry: BackoffRange { first: Duration::from_millis(2), max: Duration::from_millis(250) },
        poll: Duration::from_secs(1),
        cleanup_limit: 4_096,
        fan_out: redlockd::redlock::fan_out::FanOut::All,
    };
    let engine = Redlock::new(nodes, SystemClock, SystemEntropy, settings);
    let monitor = NodeMonitor::new(engine.clone());
    monitor.probe_round().await;
    let limits = WaitLimits { per_resource: 1_000, total: 20_000, detects_deadlocks: true };
    let manager = ServiceManager::new(engine, monitor, limits, Duration::from_secs(2));
    let hold = async |from: u32, to: u32| {
        let one = |n: u32| {
            let resource = ResourceName::parse(&format!("held/{n}")).expect("valid");
            let (ttl, labels) = (Ttl::from_ms(300_000).expect("valid"), Labels::default());
            let request = AcquireRequest {
                resource,
                mode: redlockd::types::WantedMode::Exclusive,
                ttl,
                wait: Duration::ZERO,
                kept_for: None,
                labels,
                token: None,
                refuses_deadlock: false,
                principal: None,
                keep: None,
            };
            let manager = manager.clone();
            async move { manager.acquire(request).await.and_then(PendingGrant::commit).expect("granted") }
        };
        futures_util::stream::iter(from..to).map(one).buffer_unordered(64).for_each(|_| async {}).await;
    };
    // What is read for a scrape: its text has the same lines whatever was read.
    let cost = || {
        let mut least = Duration::MAX;
        let mut text = String::new();
        for _ in 0..30 {
            let begun = cpu_time();
            let scrape = Scrape { gauges: manager.gauges(), nodes: &manager.nodes(), ..Scrape::default() };
            least = least.min(cpu_time() - begun);
            text = metrics.scrape(&scrape).expect("encodes");
        }
        (least, text)
    };
    hold(0, 10).await;
    // They are counted when the nodes are read, never by a scrape.
    poll::until("the leases are counted", || async {
        manager.list(ListQuery::default()).await;
        manager.gauges().cluster_leases.filter(|count| count.held == Some(10)).map(|_| ())
    })
    .await;
    let (few, text) = cost();
    assert!(text.contains("redlockd_cluster_locks_held 10\n"), "{text}");
    let lines = text.lines().count();
    hold(10, 100_000).await;
    let (many, text) = cost();
    assert_eq!(text.lines().count(), lines);
    // Iterating over the leases would take a millisecond of processor time. The minimum of thirty excludes effects of
    // other load on the caches.
    assert!(many < few * 3 + Duration::from_micros(300), "{few:?} at 10 leases, {many:?} at 100,000");
}

#[test]
fn the_tests_of_this_file_can_fail() {
    let text = "# TYPE a_seconds histogram\na_seconds_bucket{x=\"1,y=2\",le=\"1\"} 3\na_seconds_sum{x=\"1\"} 2\n\
                # TYPE b_count gauge\nb_count 1\n";
    let found = families(text);
    assert_eq!(found.keys().collect::<Vec<_>>(), ["a_seconds", "b_count"]);
    assert_eq!(found["a_seconds"].labels, BTreeSet::from(["x".to_owned()]));
}
