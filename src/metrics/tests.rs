//! The content of a scrape.

use super::leases::*;
use super::*;
use crate::manager::ClusterLeases;
use crate::manager::types::{AcquireError, GoneReason, QuarantineCounts};

const ROUTES: [RouteLabels; 1] = [RouteLabels { route: "/locks/{resource}", method: "POST", codes: &[201, 423] }];

fn node(name: &str) -> NodeId {
    NodeId::parse(name).expect("valid")
}

fn metrics() -> Arc<Metrics> {
    Metrics::new(&["n1", "n2", "n3"].map(node), &ROUTES)
}

fn report(name: &str, state: &str, votes: bool) -> NodeSummary {
    NodeSummary { state: state.to_owned(), votes, ..NodeSummary::new(node(name)) }
}

fn text(metrics: &Metrics, nodes: &[NodeSummary]) -> String {
    let (held, longest_held, age) = (Some(7), Duration::from_secs(90), Duration::from_secs(3));
    let cluster_leases = Some(ClusterLeases { held, longest_held, longest_unkept: Duration::from_secs(60), age });
    let gauges = Gauges { cluster_leases, waiters: 2, waiters_limit: 20_000, cleanups: 1, ..Gauges::default() };
    metrics.scrape(&Scrape { gauges, nodes, ..Scrape::default() }).expect("encodes")
}

const GRANT: GrantMeasure = GrantMeasure {
    is_replay: false,
    round: Duration::ZERO,
    valid_for: Duration::from_secs(3),
    ttl: Duration::from_secs(4),
};

fn has(text: &str, line: &str) {
    assert!(text.lines().any(|l| l == line), "{line} is missing in\n{text}");
}

#[test]
fn every_count_of_leases_and_errors_exists_from_the_start() {
    let text = text(&metrics(), &[]);
    for outcome in ACQUIRE_OUTCOMES {
        has(&text, &format!("redlockd_lock_acquire_total{{mode=\"exclusive\",outcome=\"{outcome}\"}} 0"));
    }
    for (how, outcome) in FORCE_MODES.iter().flat_map(|how| FORCE_OUTCOMES.map(|o| (how, o))) {
        has(&text, &format!("redlockd_lock_force_total{{how=\"{how}\",outcome=\"{outcome}\"}} 0"));
    }
    for kind in RequestKind::ALL {
        has(&text, &format!("redlockd_http_requests_in_flight{{kind=\"{}\"}} 0", kind.as_str()));
    }
    for kind in UnreachableKind::ALL {
        has(&text, &format!("redlockd_node_errors_total{{kind=\"{}\",node=\"n2\"}} 0", kind.as_str()));
    }
    for operation in ["acquire", "release", "probe"] {
        has(&text, &format!("redlockd_node_requests_total{{node=\"n3\",op=\"{operation}\"}} 0"));
    }
    for group in ["acquire", "release", "other"] {
        has(&text, &format!("redlockd_node_request_duration_seconds_count{{node=\"n3\",op=\"{group}\"}} 0"));
    }
    has(&text, &format!("redlockd_build_info{{version=\"{}\"}} 1", env!("CARGO_PKG_VERSION")));
    assert!(text.contains("\nprocess_resident_memory_bytes "), "{text}");
}

#[test]
fn a_scrape_shows_quorum_and_margin() {
    let metrics = metrics();
    let nodes = [report("n1", "up", true), report("n2", "quarantined", false), report("n3", "down", false)];
    let shown = text(&metrics, &nodes);
    for line in [
        "redlockd_node_up{node=\"n1\"} 1",
        "redlockd_node_up{node=\"n2\"} 1",
        "redlockd_node_up{node=\"n3\"} 0",
        "redlockd_node_votes{node=\"n1\"} 1",
        "redlockd_node_votes{node=\"n2\"} 0",
        "redlockd_quorum_available 0",
        "redlockd_quorum_margin -1",
        "redlockd_cluster_locks_held 7",
        "redlockd_cluster_lock_longest_held_seconds 90",
        "redlockd_cluster_lock_longest_unkept_seconds 60",
        "redlockd_cluster_locks_age_seconds 3",
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
fn leases_that_were_not_counted_are_not_zero() {
    let metrics = metrics();
    let scrape = |cluster_leases| {
        let gauges = Gauges { cluster_leases, ..Gauges::default() };
        metrics.scrape(&Scrape { gauges, ..Scrape::default() }).expect("encodes")
    };
    has(&scrape(None), "redlockd_cluster_locks_held NaN");
    let age = Duration::from_secs(3);
    let (longest_held, longest_unkept) = (Duration::ZERO, Duration::ZERO);
    let without_quorum = scrape(Some(ClusterLeases { held: None, longest_held, longest_unkept, age }));
    has(&without_quorum, "redlockd_cluster_locks_held NaN");
    has(&without_quorum, "redlockd_cluster_lock_longest_held_seconds NaN");
    has(&without_quorum, "redlockd_cluster_lock_longest_unkept_seconds NaN");
    has(&without_quorum, "redlockd_cluster_locks_age_seconds 3");
}

#[test]
fn a_dropped_request_counts_as_abandoned_and_no_longer_as_in_flight() {
    let metrics = metrics();
    let assert_in_flight = |normal: i64, wait: i64| {
        let shown = text(&metrics, &[]);
        has(&shown, &format!("redlockd_http_requests_in_flight{{kind=\"normal\"}} {normal}"));
        has(&shown, &format!("redlockd_http_requests_in_flight{{kind=\"wait\"}} {wait}"));
    };
    let request = metrics.watch_request("/locks/{resource}", "POST");
    assert_in_flight(1, 0);
    let acquire = metrics.watch_acquire(true);
    assert_in_flight(0, 1);
    drop(acquire);
    assert_in_flight(1, 0);
    drop(request);
    assert_in_flight(0, 0);
    let shown = text(&metrics, &[]);
    has(&shown, "redlockd_lock_acquire_total{mode=\"exclusive\",outcome=\"abandoned\"} 1");
    has(&shown, "redlockd_lock_wait_duration_seconds_count{outcome=\"abandoned\"} 1");
    let line = "redlockd_http_requests_total{code=\"abandoned\",method=\"POST\",route=\"/locks/{resource}\"} 1";
    has(&shown, line);
}

#[test]
fn an_ended_request_is_counted_once_and_without_its_waiting_time() {
    let metrics = metrics();
    let request = metrics.watch_request("/locks/{resource}", "POST");
    assert_eq!(metrics.watch_acquire(false).ended(Ok(GRANT)), Duration::ZERO);
    metrics.watch_acquire(true).ended(Err(&AcquireError::Draining { wait_id: None }));
    request.answered(201, Duration::from_secs(3_600));
    let shown = text(&metrics, &[]);
    has(&shown, "redlockd_lock_acquire_total{mode=\"exclusive\",outcome=\"granted\"} 1");
    has(&shown, "redlockd_lock_acquire_total{mode=\"exclusive\",outcome=\"draining\"} 1");
    has(&shown, "redlockd_lock_acquire_total{mode=\"exclusive\",outcome=\"abandoned\"} 0");
    has(&shown, "redlockd_lock_wait_duration_seconds_count{outcome=\"draining\"} 1");
    has(&shown, "redlockd_lock_acquire_duration_seconds_count{outcome=\"granted\"} 1");
    has(&shown, "redlockd_lock_valid_at_grant_ratio_sum 0.75");
    has(&shown, "redlockd_http_requests_total{code=\"201\",method=\"POST\",route=\"/locks/{resource}\"} 1");
    let labels = "{class=\"2xx\",method=\"POST\",route=\"/locks/{resource}\"}";
    has(&shown, &format!("redlockd_http_request_duration_seconds_sum{labels} 0"));
}

#[test]
fn node_calls_are_counted_by_node_and_kind() {
    let metrics = metrics();
    let n1 = node("n1");
    for (operation, micros) in [("acquire", 150), ("acquire_shared", 300), ("acquire", 60_000), ("cancel", 700)] {
        metrics.node_calls(&n1, operation, &[Duration::from_micros(micros)], Ok(()));
    }
    metrics.node_calls(&n1, "acquire", &[Duration::from_millis(50)], Err(UnreachableKind::Timeout));
    metrics.node_calls(&node("n9"), "acquire", &[Duration::ZERO], Ok(()));
    let shown = text(&metrics, &[]);
    for (operation, calls) in [("acquire", 2), ("acquire_shared", 1), ("cancel", 1), ("release", 0)] {
        has(&shown, &format!("redlockd_node_requests_total{{node=\"n1\",op=\"{operation}\"}} {calls}"));
    }
    // Operations of one group together, and times from 0.1 to 100 ms apart.
    for (group, le, calls) in [
        ("acquire", "0.0001", 0),
        ("acquire", "0.0002", 1),
        ("acquire", "0.0004", 2),
        ("acquire", "0.05", 2),
        ("acquire", "0.1", 3),
        ("release", "0.0004", 0),
        ("release", "0.0008", 1),
    ] {
        let series = format!("redlockd_node_request_duration_seconds_bucket{{node=\"n1\",op=\"{group}\",le=\"{le}\"}}");
        has(&shown, &format!("{series} {calls}"));
    }
    has(&shown, "redlockd_node_errors_total{kind=\"timeout\",node=\"n1\"} 1");
    assert!(!shown.contains("n9"));
}

#[test]
fn a_replay_is_not_counted_as_a_grant() {
    let metrics = metrics();
    metrics.watch_acquire(false).ended(Ok(GrantMeasure { is_replay: true, ..GRANT }));
    let shown = text(&metrics, &[]);
    has(&shown, "redlockd_lock_acquire_total{mode=\"exclusive\",outcome=\"replayed\"} 1");
    has(&shown, "redlockd_lock_valid_at_grant_ratio_count 0");
}

/// A rate would miss the first increment of a series that is created later: only codes and durations are.
#[test]
fn requests_create_series_of_codes_and_durations_alone() {
    let metrics = metrics();
    let names = |text: &str| -> Vec<String> {
        text.lines().filter_map(|l| l.rsplit_once(' ').map(|(name, _)| name.to_owned())).collect()
    };
    let before = names(&text(&metrics, &[]));
    for (route, method, code) in [
        ("/locks/{resource}", "POST", 201),
        ("/locks/{resource}", "POST", 418),
        ("/locks/{resource}", "POST", 500),
        ("/locks/{resource}", "BREW", 405),
        ("/elsewhere", "HEAD", 404),
        ("unmatched", "GET", 200),
    ] {
        metrics.watch_request(route, method).answered(code, Duration::ZERO);
    }
    metrics.released::<()>(&Err(ReleaseError::Gone(GoneReason::Released)));
    metrics.forced(ForceMode::Now, Err(&ForceError::NotHeld));
    metrics.lease_ended(LeaseOutcome::Lapsed, Duration::from_secs(2));
    metrics.lost(LostReason::MaxHold);
    metrics.hold_renewed("extended");
    metrics.hold_renewed("no such outcome");
    let shown = text(&metrics, &[]);
    let is_lazy = |name: &&String| name.contains("_duration_seconds") || name.contains("_http_requests_total");
    let lasting = |names: &[String]| names.iter().filter(|name| !is_lazy(name)).cloned().collect::<Vec<_>>();
    assert_eq!(lasting(&names(&shown)), lasting(&before));
    let post = "method=\"POST\",route=\"/locks/{resource}\"";
    for line in [
        format!("redlockd_http_requests_total{{code=\"other\",{post}}} 1"),
        format!("redlockd_http_requests_total{{code=\"500\",{post}}} 1"),
        "redlockd_http_requests_total{code=\"404\",method=\"other\",route=\"unmatched\"} 1".to_owned(),
        "redlockd_lock_release_total{outcome=\"again\"} 1".to_owned(),
        "redlockd_lock_force_total{how=\"now\",outcome=\"not-held\"} 1".to_owned(),
        "redlockd_lock_held_duration_seconds_sum{end=\"lapsed\"} 2".to_owned(),
        "redlockd_lock_lost_total{reason=\"max_hold\"} 1".to_owned(),
        "redlockd_lock_extend_total{outcome=\"extended\"} 1".to_owned(),
    ] {
        has(&shown, &line);
    }
}

#[test]
fn denials_are_counted_by_reason() {
    let metrics = metrics();
    for code in [401, 403, 403, 404, 421] {
        metrics.watch_request("unmatched", "GET").answered(code, Duration::ZERO);
    }
    let shown = text(&metrics, &[]);
    has(&shown, "redlockd_auth_failures_total{reason=\"unauthenticated\"} 1");
    has(&shown, "redlockd_auth_failures_total{reason=\"forbidden\"} 2");
    has(&shown, "redlockd_auth_failures_total{reason=\"host-not-allowed\"} 1");
}

#[test]
fn open_connections_and_failed_reloads_are_shown() {
    use super::connections::ReloadedFile;
    let metrics = metrics();
    metrics.connections_limit(9);
    let (one, two) = (metrics.connected(), metrics.connected());
    drop(one);
    metrics.reloaded(ReloadedFile::Certificate, false);
    let shown = text(&metrics, &[]);
    has(&shown, "redlockd_http_connections 1");
    has(&shown, "redlockd_http_connections_limit 9");
    has(&shown, "redlockd_config_last_reload_successful{kind=\"access_file\"} 1");
    has(&shown, "redlockd_config_last_reload_successful{kind=\"certificate\"} 0");
    metrics.reloaded(ReloadedFile::Certificate, true);
    drop(two);
    let shown = text(&metrics, &[]);
    has(&shown, "redlockd_http_connections 0");
    has(&shown, "redlockd_config_last_reload_successful{kind=\"certificate\"} 1");
}

#[test]
fn totals_kept_elsewhere_only_rise() {
    let metrics = metrics();
    let scrape = |skipped: u64, jumps: u64| {
        let gauges = Gauges { skipped_cleanups: skipped, clock_jumps: Duration::from_secs(jumps), ..Gauges::default() };
        let audit = AuditTotals { written: skipped, dropped: 1, ..AuditTotals::default() };
        let (mut quarantines, has_two_servers) = (QuarantineCounts::default(), true);
        (0..skipped).for_each(|_| quarantines.add("blank"));
        let node = NodeSummary {
            quarantines,
            has_two_servers,
            restarts: skipped,
            clock_offset_ms: Some(-1_500),
            is_durable: true,
            ..report("n1", "up", true)
        };
        metrics.scrape(&Scrape { gauges, nodes: &[node], audit, ..Scrape::default() }).expect("encodes")
    };
    scrape(3, 2);
    let shown = scrape(5, 4);
    has(&shown, "redlockd_cleanups_skipped_total 5");
    has(&shown, "redlockd_clock_jump_seconds_total 4");
    has(&shown, "redlockd_audit_records_total{outcome=\"written\"} 5");
    has(&shown, "redlockd_audit_records_total{outcome=\"dropped\"} 1");
    has(&shown, "redlockd_node_restarts_total{node=\"n1\"} 5");
    has(&shown, "redlockd_node_quarantines_total{node=\"n1\",reason=\"blank\"} 5");
    has(&shown, "redlockd_node_quarantines_total{node=\"n1\",reason=\"restart\"} 0");
    has(&shown, "redlockd_node_two_servers{node=\"n1\"} 1");
    has(&shown, "redlockd_node_durable{node=\"n1\"} 1");
    has(&shown, "redlockd_node_clock_offset_seconds{node=\"n1\"} -1.5");
}
