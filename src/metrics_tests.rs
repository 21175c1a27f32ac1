//! What a scrape shows, from the first one on.

use super::*;

const ROUTES: [RouteLabels; 1] = [RouteLabels { route: "/locks/{resource}", method: "POST", codes: &[201, 423] }];

fn node(name: &str) -> NodeId {
    NodeId::parse(name).expect("valid")
}

fn metrics() -> Arc<Metrics> {
    Metrics::new(&["n1", "n2", "n3"].map(node), &ROUTES)
}

fn report(name: &str, state: &str, votes: bool) -> NodeReport {
    NodeReport {
        node: node(name),
        state: state.to_owned(),
        votes,
        since: Duration::ZERO,
        votes_in: None,
        why: None,
        latency: None,
        clock_offset_ms: None,
        run_id: None,
        version: None,
        restarts: 0,
        findings: Vec::new(),
    }
}

fn text(metrics: &Metrics, nodes: &[NodeReport]) -> String {
    let gauges = Gauges { leases_held: 7, waiters: 2, waiters_limit: 20_000, cleanups: 1, ..Gauges::default() };
    metrics.scrape(&Scrape { gauges, nodes, draining: false }).expect("encodes")
}

fn has(text: &str, line: &str) {
    assert!(text.lines().any(|l| l == line), "{line} is missing in\n{text}");
}

#[test]
fn every_series_is_there_from_the_start() {
    let text = text(&metrics(), &[]);
    for outcome in ACQUIRE_OUTCOMES {
        has(&text, &format!("redlockd_lock_acquire_total{{outcome=\"{outcome}\"}} 0"));
    }
    for kind in UnreachableKind::ALL {
        has(&text, &format!("redlockd_node_errors_total{{kind=\"{}\",node=\"n2\"}} 0", kind.as_str()));
    }
    for verb in VERBS {
        has(&text, &format!("redlockd_node_request_duration_seconds_count{{node=\"n3\",op=\"{verb}\"}} 0"));
    }
    has(&text, "redlockd_http_requests_total{code=\"423\",method=\"POST\",route=\"/locks/{resource}\"} 0");
    has(&text, &format!("redlockd_build_info{{version=\"{}\"}} 1", env!("CARGO_PKG_VERSION")));
    assert!(text.contains("\nprocess_resident_memory_bytes "), "{text}");
}

#[test]
fn a_scrape_shows_quorum_and_margin() {
    let metrics = metrics();
    let nodes = [report("n1", "up", true), report("n2", "quarantined", false), report("n3", "down", false)];
    let shown = text(&metrics, &nodes);
    for line in [
        "redlockd_redis_node_up{node=\"n1\"} 1",
        "redlockd_redis_node_up{node=\"n2\"} 1",
        "redlockd_redis_node_up{node=\"n3\"} 0",
        "redlockd_node_votes{node=\"n1\"} 1",
        "redlockd_node_votes{node=\"n2\"} 0",
        "redlockd_quorum_available 0",
        "redlockd_quorum_margin -1",
        "redlockd_locks_held 7",
        "redlockd_lock_waiters 2",
        "redlockd_lock_waiters_limit 20000",
        "redlockd_cleanups_in_flight 1",
        "redlockd_draining 0",
    ] {
        has(&shown, line);
    }
    let nodes = [report("n1", "up", true), report("n2", "up", true), report("n3", "up", true)];
    has(&text(&metrics, &nodes), "redlockd_quorum_margin 1");
}

#[test]
fn what_is_dropped_is_abandoned_and_no_longer_in_flight() {
    let metrics = metrics();
    let request = metrics.watch_request("/locks/{resource}", "POST");
    let acquire = metrics.watch_acquire(true);
    has(&text(&metrics, &[]), "redlockd_http_requests_in_flight 1");
    drop(acquire);
    drop(request);
    let shown = text(&metrics, &[]);
    has(&shown, "redlockd_http_requests_in_flight 0");
    has(&shown, "redlockd_lock_acquire_total{outcome=\"abandoned\"} 1");
    has(&shown, "redlockd_lock_wait_duration_seconds_count 1");
    let line = "redlockd_http_requests_total{code=\"abandoned\",method=\"POST\",route=\"/locks/{resource}\"} 1";
    has(&shown, line);
}

#[test]
fn what_has_ended_is_counted_once_and_without_its_wait() {
    let metrics = metrics();
    let request = metrics.watch_request("/locks/{resource}", "POST");
    assert_eq!(metrics.watch_acquire(false).ended(Ok(false)), Duration::ZERO);
    metrics.watch_acquire(true).ended(Err(&AcquireError::Draining));
    request.answered(201, Duration::from_secs(3_600));
    let shown = text(&metrics, &[]);
    has(&shown, "redlockd_lock_acquire_total{outcome=\"granted\"} 1");
    has(&shown, "redlockd_lock_acquire_total{outcome=\"draining\"} 1");
    has(&shown, "redlockd_lock_acquire_total{outcome=\"abandoned\"} 0");
    has(&shown, "redlockd_lock_wait_duration_seconds_count 1");
    let labels = "{code=\"201\",method=\"POST\",route=\"/locks/{resource}\"}";
    has(&shown, &format!("redlockd_http_requests_total{labels} 1"));
    has(&shown, &format!("redlockd_http_request_duration_seconds_sum{labels} 0"));
}

#[test]
fn node_calls_are_counted_by_node_and_kind() {
    let metrics = metrics();
    metrics.node_call(&node("n1"), "acquire", Duration::from_millis(1), Ok(()));
    metrics.node_call(&node("n1"), "acquire", Duration::from_millis(50), Err(UnreachableKind::Timeout));
    metrics.node_call(&node("n9"), "acquire", Duration::ZERO, Ok(()));
    let shown = text(&metrics, &[]);
    has(&shown, "redlockd_node_request_duration_seconds_count{node=\"n1\",op=\"acquire\"} 2");
    has(&shown, "redlockd_node_errors_total{kind=\"timeout\",node=\"n1\"} 1");
    assert!(!shown.contains("n9"));
}
