//! The files for Prometheus and Grafana: the rules pass promtool and their tests, all metrics that they use exist, the
//! dashboard is well-formed, and with a Prometheus server that scraped a run with contention, holds, forced ends and
//! failing nodes every panel shows the figure that it must (`board.rs`) and no rule fails.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use futures_util::future::join_all;
use redlockd::http::routes::ROUTES;
use redlockd::redlock::clock::{Clock, SystemClock};
use serde_json::Value;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::task::JoinSet;

use crate::access::{Access, as_principal, key};
use crate::board::FIGURES;
use crate::hooks::receiver::{HooksFile, Receiver, hook, target};
use crate::support::client::{Client, send, try_send};
use crate::support::clock_shim::ClockShim;
use crate::support::cluster::{Cluster, MUTE, ServiceOver, heal, slow_to_answer, slow_to_arrive};
use crate::support::poll;
use crate::support::prometheus::{Prometheus, tool};
use crate::support::service::{SHORT_MEMORY, path};

/// Rows of the dashboard, in order.
const ROWS: [&str; 6] =
    ["Quorum and leases", "Rate, errors, duration", "Contention", "Lease health", "Nodes", "Process"];
const GRID_COLUMNS: u64 = 24;
/// For a figure: some are read from the nodes twice a minute.
const PATIENCE: Duration = Duration::from_secs(90);

fn config(file: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("config").join(file)
}

fn read(file: &str) -> String {
    std::fs::read_to_string(config(file)).unwrap_or_else(|e| panic!("{file}: {e}"))
}

fn yaml(file: &str) -> serde_yaml_ng::Value {
    serde_yaml_ng::from_str(&read(file)).unwrap_or_else(|e| panic!("{file}: {e}"))
}

fn dashboard() -> Value {
    serde_json::from_str(&read("grafana-dashboard.json")).expect("JSON")
}

fn list<'a>(value: &'a Value, name: &str) -> &'a [Value] {
    value[name].as_array().map(Vec::as_slice).unwrap_or_default()
}

fn text<'a>(value: &'a Value, name: &str) -> &'a str {
    value[name].as_str().unwrap_or_default()
}

/// All panels but the rows.
fn panels(dashboard: &Value) -> Vec<&Value> {
    list(dashboard, "panels").iter().filter(|p| text(p, "type") != "row").collect()
}

fn run(command: &mut Command) -> String {
    let output = command.output().expect("promtool runs");
    let printed = [output.stdout, output.stderr].concat();
    let printed = String::from_utf8_lossy(&printed).into_owned();
    assert!(output.status.success(), "{printed}");
    printed
}

#[test]
fn the_rules_pass_promtool_and_their_tests() {
    for args in [&["check", "config", "prometheus.yml"][..], &["test", "rules", "alerts_test.yml"]] {
        let Some(mut promtool) = tool("promtool") else { return };
        let printed = run(promtool.args(args).current_dir(config("")));
        assert!(!printed.contains("FAILED"), "{printed}");
    }
    let Some(mut promtool) = tool("promtool") else { return };
    let shipped = Path::new(env!("CARGO_MANIFEST_DIR")).join("packaging/container");
    // The paths of its rules exist only in the container, so only the syntax can be checked here.
    run(promtool.args(["check", "config", "--syntax-only", "prometheus.yml"]).current_dir(shipped));
}

#[test]
fn every_alert_has_a_severity_texts_and_tests_in_both_directions() {
    let runbooks = include_str!("../../docs/runbooks.md");
    let (rules, tests) = (yaml("alerts.yml"), yaml("alerts_test.yml"));
    let rules = rules["groups"][0]["rules"].as_sequence().expect("rules");
    assert!(rules.len() >= 15, "{}", rules.len());
    let expected: Vec<(&str, bool)> = tests["tests"]
        .as_sequence()
        .expect("tests")
        .iter()
        .filter_map(|test| test["alert_rule_test"].as_sequence())
        .flatten()
        .map(|t| (t["alertname"].as_str().expect("a name"), !t["exp_alerts"].as_sequence().expect("alerts").is_empty()))
        .collect();
    for rule in rules {
        let name = rule["alert"].as_str().expect("a name");
        let severity = rule["labels"]["severity"].as_str().unwrap_or_default();
        assert!(["page", "warn", "info"].contains(&severity), "{name}: {severity:?}");
        for annotation in ["summary", "description"] {
            assert!(rule["annotations"][annotation].as_str().is_some_and(|t| t.len() > 20), "{name}: {annotation}");
        }
        let runbook = rule["annotations"]["runbook_url"].as_str().unwrap_or_default();
        assert_eq!(runbook, format!("http://127.0.0.1:5625/ui/runbooks#{}", name.to_lowercase()), "{name}");
        assert!(runbooks.contains(&format!("\n## {name}\n")), "{name} has no section in docs/runbooks.md");
        for fires in [true, false] {
            assert!(expected.contains(&(name, fires)), "{name} has no test with fires = {fires}");
        }
    }
}

/// A misspelt name would inhibit nothing, and nobody would notice.
#[test]
fn the_inhibition_rules_name_existing_alerts_and_never_the_one_that_they_follow() {
    let rules = read("alerts.yml");
    let inhibitions = yaml("alertmanager.yml");
    let inhibitions = inhibitions["inhibit_rules"].as_sequence().expect("rules");
    assert!(inhibitions.len() >= 4, "{}", inhibitions.len());
    for inhibition in inhibitions {
        let named = |side: &str| -> Vec<String> {
            let matchers = inhibition[side].as_sequence().expect("matchers").iter().filter_map(|m| m.as_str());
            let words = matchers.flat_map(|m| m.split(|c: char| !c.is_ascii_alphanumeric()));
            words.filter(|word| word.starts_with("Redlockd")).map(str::to_owned).collect()
        };
        let (sources, targets) = (named("source_matchers"), named("target_matchers"));
        assert!(!sources.is_empty() && !targets.is_empty(), "{inhibition:?}");
        for name in sources.iter().chain(&targets) {
            assert!(rules.contains(&format!("- alert: {name}\n")), "{name} is no alert");
        }
        assert!(sources.iter().all(|source| !targets.contains(source)), "{inhibition:?}");
    }
}

/// Names of metrics and recording rules in a query.
fn names(query: &str) -> BTreeSet<String> {
    let words = query.split(|c: char| !(c.is_ascii_alphanumeric() || c == '_' || c == ':'));
    let is_ours = |w: &&str| w.starts_with("redlockd_") || w.starts_with("process_") || w.contains(":redlockd_");
    words.filter(is_ours).map(str::to_owned).collect()
}

#[test]
fn rules_and_panels_use_existing_metrics_only() {
    let documented = include_str!("../../docs/metrics.md");
    let recorded = read("recording.yml");
    let dashboard = dashboard();
    let mut used: BTreeSet<String> = ["alerts.yml", "recording.yml"].iter().flat_map(|f| names(&read(f))).collect();
    used.extend(panels(&dashboard).iter().flat_map(|p| list(p, "targets")).flat_map(|t| names(text(t, "expr"))));
    used.extend(list(&dashboard["annotations"], "list").iter().flat_map(|a| names(text(a, "expr"))));
    assert!(used.len() > 30, "{used:?}");
    for name in used.iter().filter(|n| *n != "redlockd_rates") {
        let base = ["_bucket", "_sum", "_count"].iter().find_map(|part| name.strip_suffix(part)).unwrap_or(name);
        let is_metric = [base, name.as_str()].iter().any(|n| documented.contains(&format!("| `{n}` |")));
        assert!(is_metric || recorded.contains(&format!("record: {name}\n")), "{name} does not exist");
    }
}

#[test]
fn the_dashboard_is_well_formed() {
    let dashboard = dashboard();
    assert!(dashboard["schemaVersion"].as_u64().is_some_and(|v| v >= 39));
    assert!(dashboard["id"].is_null(), "the importing Grafana assigns the id");
    let variables: BTreeSet<&str> = list(&dashboard["templating"], "list").iter().map(|v| text(v, "name")).collect();
    assert_eq!(variables, BTreeSet::from(["datasource", "instance", "job", "node", "pages"]));
    let rows: Vec<&str> =
        list(&dashboard, "panels").iter().filter(|p| text(p, "type") == "row").map(|p| text(p, "title")).collect();
    assert_eq!(rows, ROWS);
    let all = list(&dashboard, "panels");
    let ids: BTreeSet<u64> = all.iter().map(|p| p["id"].as_u64().expect("an id")).collect();
    assert_eq!(ids.len(), all.len(), "ids are unique");
    let mut taken = BTreeSet::new();
    for panel in all {
        let title = text(panel, "title");
        let [x, y, w, h] = ["x", "y", "w", "h"].map(|n| panel["gridPos"][n].as_u64().expect("a place"));
        assert!(w > 0 && h > 0 && x + w <= GRID_COLUMNS, "{title} is off the grid");
        for cell in (x..x + w).flat_map(|column| (y..y + h).map(move |line| (column, line))) {
            assert!(taken.insert(cell), "{title} lies over another panel at {cell:?}");
        }
    }
    for panel in panels(&dashboard) {
        let title = text(panel, "title");
        assert!(!title.is_empty() && !text(&panel["fieldConfig"]["defaults"], "unit").is_empty(), "{title}: no unit");
        assert_eq!(panel["datasource"]["uid"], "${datasource}", "{title}");
        assert!(text(panel, "description").len() > 10, "{title} has no description");
        let targets = list(panel, "targets");
        assert!(!targets.is_empty(), "{title} has no query");
        let refs: BTreeSet<&str> = targets.iter().map(|t| text(t, "refId")).collect();
        assert_eq!(refs.len(), targets.len(), "{title}: refIds are unique");
        for target in targets {
            assert_eq!(target["datasource"]["uid"], "${datasource}", "{title}");
            assert!(text(target, "expr").contains("job=\"$job\""), "{title} mixes clusters");
            for variable in text(target, "expr")
                .split('$')
                .skip(1)
                .map(|rest| rest.split(|c: char| !(c.is_ascii_alphanumeric() || c == '_')).next().unwrap_or_default())
            {
                assert!(variables.contains(variable) || variable == "__rate_interval", "{title}: ${variable}");
            }
        }
    }
}

#[test]
fn the_dashboard_marks_incidents_and_leads_to_pages_that_exist() {
    let dashboard = dashboard();
    let marks: Vec<&str> = list(&dashboard["annotations"], "list").iter().map(|mark| text(mark, "name")).collect();
    for name in ["No quorum", "Node without a vote", "Node restarts", "Leases lost", "Forced releases"] {
        assert!(marks.contains(&name), "{marks:?}");
    }
    let of_panels = panels(&dashboard).into_iter().flat_map(|panel| list(panel, "links"));
    let links: Vec<&str> = list(&dashboard, "links").iter().chain(of_panels).map(|link| text(link, "url")).collect();
    assert!(links.len() > 15, "{links:?}");
    for link in links {
        let path = link.strip_prefix("${pages}").and_then(|path| path.split('?').next());
        assert!(ROUTES.iter().any(|route| route.method == "GET" && Some(route.path) == path), "{link}");
    }
}

/// A query with the dashboard's variables filled in, as Grafana would.
fn filled(query: &str) -> String {
    let query = query.replace("$__rate_interval", "5s").replace("$job", "redlockd");
    query.replace("$instance", ".*").replace("$node", ".*")
}

/// A connection that holds a lock; dropping it hangs up. It asks again where no quorum answers in time, as [`Client::acquired`] does,
/// and until the lease of a connection that hung up before is released.
async fn hold(over: &ServiceOver, resource: &str) -> TcpStream {
    let head =
        format!("POST /locks/{resource}?hold=true&ttl=2s HTTP/1.1\r\nHost: localhost\r\nContent-Length: 0\r\n\r\n");
    poll::until("it is held", || async {
        let mut stream = TcpStream::connect(over.service.address()).await.expect("it listens");
        stream.write_all(head.as_bytes()).await.expect("open");
        let mut status = [0; "HTTP/1.1 200".len()];
        stream.read_exact(&mut status).await.expect("an answer");
        let asks_again = [b" 503", b" 423"].iter().any(|again| status.ends_with(*again));
        assert!(asks_again || status.ends_with(b" 200"), "{resource}: {}", String::from_utf8_lossy(&status));
        (!asks_again).then_some(stream)
    })
    .await
}

/// Constant load until it is dropped.
fn constant_load(clients: &[Client]) -> JoinSet<()> {
    let mut work = JoinSet::new();
    for (n, client) in clients.iter().cloned().enumerate() {
        work.spawn(async move {
            loop {
                let lease = client.acquire(&format!("steady/{n}"), &[("ttl", "1s"), ("owner", "steady")]).await;
                if lease.status == 201 {
                    client.extend(&format!("steady/{n}"), &lease.token(), &[]).await;
                    client.release(&format!("steady/{n}"), &lease.token()).await;
                }
                SystemClock.sleep(Duration::from_millis(20)).await;
            }
        });
    }
    // One lease that stands: the nodes are counted twice a minute, and then it is there.
    let client = clients[0].clone();
    work.spawn(async move {
        loop {
            let lease = client.acquire("standing", &[("ttl", "2s")]).await;
            while lease.status == 201 && client.extend("standing", &lease.token(), &[]).await.status == 200 {
                SystemClock.sleep(Duration::from_millis(200)).await;
            }
            SystemClock.sleep(Duration::from_millis(50)).await;
        }
    });
    for client in clients.iter().cycle().take(6) {
        let client = client.clone();
        work.spawn(async move {
            loop {
                let lease = client.acquire("hot", &[("ttl", "1s"), ("wait", "2s")]).await;
                if lease.status == 201 {
                    SystemClock.sleep(Duration::from_millis(15)).await;
                    client.release("hot", &lease.token()).await;
                } else {
                    SystemClock.sleep(Duration::from_millis(50)).await;
                }
            }
        });
    }
    work
}

async fn until_metric(client: &Client, what: &str, is_so: impl Fn(&str) -> bool) {
    poll::until(what, || async { client.get("/metrics").await.text.lines().any(&is_so).then_some(()) }).await;
}

/// A lease that the service keeps, and a ticket that waits for it and is called. Returns its path: a DELETE gives the lease back.
async fn keep_and_wait(client: &Client, prometheus: &Prometheus, begun: u64) -> String {
    let kept = client.acquired("kept", &[("keep", "1m")]).await.token();
    let fields = [("callback", "target:ops"), ("keep", "1m"), ("wait", "1m")];
    let ticket = poll::until("a quorum stores the ticket", || async {
        let made = client.acquire("kept", &fields).await;
        (made.status != 503).then(|| made.expect_status(202).json())
    })
    .await;
    // At one of the times for which the panels are asked: a state of less than a second can lie between two of them.
    poll::until("both are on the board", || async {
        let both = "sum(redlockd_lock_kept) > 0 and sum(redlockd_tickets{state=\"waiting\"}) > 0";
        (numbers(&prometheus.range(both, begun, SystemClock.wall_ms()).await) > 0).then_some(())
    })
    .await;
    client.release("kept", &kept).await.expect_status(204);
    // The answer to the call-back accepts the grant.
    until_shown(prometheus, begun, "sum(redlockd_tickets{state=\"accepted\"})").await;
    format!("/tickets/{}", ticket["ticket"].as_str().expect("an id"))
}

/// Causes one more event of a histogram: its series begins with the first, so that a rate shows only what comes once Prometheus has
/// that one.
async fn again(prometheus: &Prometheus, begun: u64, series: &str, cause: impl AsyncFnOnce()) {
    until_shown(prometheus, begun, &format!("sum({series})")).await;
    cause().await;
}

/// Waits that nobody grants, while a connection has the lease.
async fn time_out(over: &ServiceOver, prometheus: &Prometheus, begun: u64) {
    let wait = async || _ = over.client().acquire("plain", &[("wait", "100ms")]).await.expect_status(423);
    let held = hold(over, "plain").await;
    wait().await;
    again(prometheus, begun, "redlockd_lock_wait_duration_seconds_count{outcome=\"wait-timeout\"}", wait).await;
    drop(held);
}

/// Causes every end of leases that the panels show.
async fn end_leases(over: &ServiceOver, prometheus: &Prometheus, begun: u64) {
    let client = over.client();
    let force = async |resource: &str, how: &str, status: u16| {
        let path = format!("/locks/{resource}?force={how}&reason=trying%20it%20out");
        send(client.request("DELETE", &path)).await.expect_status(status);
    };
    // A lease that a connection holds does not expire, even on a slow machine.
    let held = hold(over, "plain").await;
    client.acquire("plain", &[]).await.expect_status(423);
    client.extend("plain", "a-strange-token-0123456789", &[]).await.expect_status(409);
    client.get("/nowhere").await.expect_status(404);
    drop(held);
    let token = client.acquired("lapses", &[("ttl", "400ms")]).await.token();
    poll::until("it has expired", || async { (client.inspect("lapses").await.status == 404).then_some(()) }).await;
    client.release("lapses", &token).await.expect_status(410);
    let (lost, revoked) = (hold(over, "lost").await, hold(over, "revoked").await);
    force("lost", "now", 204).await;
    force("revoked", "revoke", 202).await;
    until_metric(client, "lost leases are counted", |l| l == "redlockd_lock_lost_total{reason=\"forced\"} 2").await;
    drop((lost, revoked));
    let ends = |end: &str| format!("redlockd_lock_held_duration_seconds_count{{end=\"{end}\"}}");
    again(prometheus, begun, &ends("disconnected"), async || drop(hold(over, "plain").await)).await;
    let lost = hold(over, "lost").await;
    again(prometheus, begun, &ends("forced"), async || force("lost", "now", 204).await).await;
    drop(lost);
}

/// Causes everything that the panels show, once.
async fn cause_all_events(cluster: &mut Cluster, over: &ServiceOver, prometheus: &Prometheus, begun: u64) {
    let client = over.client();
    // A node forgets a lease that is renewed again and again: the next renewal puts it back.
    poll::until("it is put back", || async {
        cluster.servers[0].ask::<u8>(&["DEL", "standing"]).await;
        let text = client.get("/metrics").await.text;
        text.lines().any(|l| l.starts_with("redlockd_leases_repaired_total ") && !l.ends_with(" 0")).then_some(())
    })
    .await;
    end_leases(over, prometheus, begun).await;
    // One node that does not answer, then two, then a third that restarts empty.
    over.proxies[0].set(MUTE);
    until_metric(client, "timeouts are counted", |l| {
        l.starts_with("redlockd_node_errors_total{kind=\"timeout\",node=\"n1\"}") && !l.ends_with(" 0")
    })
    .await;
    prometheus.until_fired(&["RedlockdNodeDown", "RedlockdQuorumNoMargin"]).await;
    let unrenewed = hold(over, "unrenewed").await;
    over.proxies[1].set(MUTE);
    client.acquire("nobody", &[]).await.expect_status(503);
    until_metric(client, "a lease is lost for want of a quorum", |l| {
        let is_lost = ["expired", "quorum"].map(|reason| format!("redlockd_lock_lost_total{{reason=\"{reason}\"}}"));
        is_lost.iter().any(|series| l.starts_with(series.as_str())) && !l.ends_with(" 0")
    })
    .await;
    drop(unrenewed);
    prometheus.until_fired(&["RedlockdQuorumLost", "RedlockdAcquireErrorsHigh"]).await;
    // It still fires, and began before now: the harness does not take it for one of something new.
    let from_ms = SystemClock.wall_ms();
    poll::until("it still fires", || async {
        let since_ms = SystemClock.wall_ms().saturating_sub(from_ms).max(1);
        let firing =
            format!("max_over_time(ALERTS{{alertname=\"RedlockdQuorumLost\", alertstate=\"firing\"}}[{since_ms}ms])");
        (numbers(&prometheus.query(&firing).await) > 0).then_some(())
    })
    .await;
    assert!(!prometheus.has_fired_since("RedlockdQuorumLost", from_ms).await);
    over.proxies.iter().for_each(heal);
    over.until_all_vote().await;
    prometheus.until_quiet(&["RedlockdQuorumLost"]).await;
    // Within the time of a probe, and beyond that of every request.
    over.proxies[0].set(slow_to_answer(Duration::from_millis(300)));
    prometheus.until_fired(&["RedlockdNodeErrors", "RedlockdNodeSlow"]).await;
    heal(&over.proxies[0]);
    over.until_all_vote().await;
    // Both wait for the whole quarantine, as fewer than a quorum of the nodes remember.
    for server in &mut cluster.servers[1..] {
        server.kill();
        server.restart_empty().await;
    }
    until_shown(prometheus, begun, "max(redlockd_node_votes_in_seconds{node=\"n3\"})").await;
    prometheus.until_fired(&["RedlockdNodeQuarantined"]).await;
    over.until_all_vote().await;
    until_metric(client, "a restart is counted", |l| {
        l.starts_with("redlockd_node_restarts_total{node=\"n3\"}") && !l.ends_with(" 0")
    })
    .await;
}

/// Waits until a query is more than 0 at one of the times for which the panels are asked.
async fn until_shown(prometheus: &Prometheus, begun: u64, query: &str) {
    poll::until(&format!("the board shows {query}"), || async {
        let shown = prometheus.range(&format!("{query} > 0"), begun, SystemClock.wall_ms()).await;
        (numbers(&shown) > 0).then_some(())
    })
    .await;
}

/// What a third instance shows that the others must not: a node's clock that looks wrong, one of its own that jumps, refused callers,
/// hooks that nobody accepts, a lease that is held for too long, clean-ups that are skipped, and that it is stopping. Its audit log
/// is on a full disk.
async fn refuse_drop_and_drain(
    (edge, clock): (&ServiceOver, &ClockShim),
    receiver: &Receiver,
    prometheus: &Prometheus,
    begun: u64,
) {
    let ask = |method: &str, resource: &str, key_of: &'static str| {
        let request = edge.client().request(method, &format!("/locks/{resource}?wait=0s"));
        as_principal(request, key_of)
    };
    edge.until_all_vote().await;
    edge.proxies[2].set(slow_to_arrive(Duration::from_millis(60)));
    until_shown(prometheus, begun, "max(redlockd_node_clock_offset_seconds)").await;
    heal(&edge.proxies[2]);
    clock.step(2_000);
    until_shown(prometheus, begun, "sum(redlockd_clock_jump_seconds_total)").await;
    ask("POST", "edge/x", "nobody").await.expect_status(401);
    ask("POST", "elsewhere", "ops").await.expect_status(403);
    for series in ["reason=\"unauthenticated\"", "reason=\"forbidden\""] {
        until_shown(prometheus, begun, &format!("sum(redlockd_auth_failures_total{{{series}}})")).await;
    }
    // The first message switches the hook off; the next one is dropped. The other hook has a receiver that does not answer.
    receiver.answer([410]);
    ask("POST", "edge/off", "ops").await.expect_status(201);
    until_shown(prometheus, begun, "sum(redlockd_webhook_hooks_off)").await;
    ask("POST", "edge/dropped", "ops").await.expect_status(201);
    until_shown(prometheus, begun, "sum(redlockd_webhook_dropped_total)").await;
    receiver.set_silent(true);
    let path = "/locks/edge/dropped?force=now&reason=trying%20it%20out";
    as_principal(edge.client().request("DELETE", path), "ops").await.expect_status(204);
    until_shown(prometheus, begun, "sum(redlockd_webhook_queue)").await;
    receiver.set_silent(false);
    // The answer ends when the lease is lost, as a body that is cut off.
    let held = edge.client().request("POST", "/locks/edge/held?hold=true").bearer_auth(key("ops"));
    assert!(try_send(held).await.is_err_and(|error| error.is_decode() || error.is_body()));
    until_shown(prometheus, begun, "sum(redlockd_lock_lost_total{reason=\"max_hold\"})").await;
    // Each failed attempt has to be withdrawn on the nodes that do not answer.
    edge.proxies[..2].iter().for_each(|proxy| proxy.set(MUTE));
    let names: Vec<String> = (0..100).map(|i| format!("edge/{i}")).collect();
    join_all(names.iter().map(|name| ask("POST", name, "ops"))).await;
    until_shown(prometheus, begun, "sum(redlockd_cleanups_skipped_total)").await;
    edge.proxies.iter().for_each(heal);
    edge.service.terminate();
    until_shown(prometheus, begun, "sum(redlockd_draining)").await;
}

/// Number of points that are finite numbers.
fn numbers(answer: &Value) -> usize {
    let points = list(&answer["data"], "result").iter().flat_map(|series| {
        list(series, "values").iter().chain(series.get("value")).filter_map(|point| point[1].as_str())
    });
    points.filter(|value| value.parse::<f64>().is_ok_and(f64::is_finite)).count()
}

#[test]
fn every_query_of_the_board_has_a_figure() {
    let dashboard = dashboard();
    for panel in panels(&dashboard) {
        for target in list(panel, "targets") {
            let (title, query) = (text(panel, "title"), text(target, "refId"));
            assert!(FIGURES.iter().any(|f| (f.panel, f.query) == (title, query)), "{title} {query}");
        }
    }
    for figure in &FIGURES {
        assert!(!figure.target(&panels(&dashboard)).is_null(), "{figure:?} is of no panel");
        // n1 never loses its memory: these two show that a node's figures are its own.
        let is_of_another_node = (figure.panel, figure.series()) == ("Restarts and quarantine", "node=n1");
        assert!(!figure.can_be_nothing() || is_of_another_node, "{figure:?} holds where nothing happened");
    }
}

#[tokio::test(flavor = "multi_thread")]
#[expect(clippy::print_stdout, reason = "what the board shows is its output")]
async fn every_panel_shows_the_figure_of_a_real_run_and_no_rule_fails() {
    if tool("prometheus").is_none() {
        return;
    }
    let mut cluster = Cluster::start(3).await;
    let dir = tempfile::tempdir().expect("a directory");
    let audit = format!("audit_log={}", path(&dir.path().join("audit.log")));
    let receiver = Receiver::start().await;
    let hooks = HooksFile::with(&(target("ops", &receiver, "") + &hook("forced", &["lock.forced"], "")));
    let hooks_setting = hooks.setting();
    let more = ["--set", &audit, "--set", &hooks_setting];
    let more: Vec<&str> = SHORT_MEMORY.iter().copied().chain(more).collect();
    let (here, there) = (cluster.service_with(&more).await, cluster.service_with(&SHORT_MEMORY).await);
    let access = Access::of(&[("ops", &["metrics", "read:**", "acquire:edge/**", "force:**"])]);
    let (rules, refuses) = (access.setting(), Receiver::start().await);
    let more_hooks = hook("off", &["lock.acquired"], "") + &hook("silent", &["lock.forced"], "");
    let more_hooks = HooksFile::with(&(target("ops", &refuses, "") + &more_hooks));
    let more_hooks_setting = more_hooks.setting();
    let limits = ["cleanup_limit=16", "drain_delay=8s", "max_hold=1s", "audit_log=/dev/full"];
    let more = [rules.as_str(), &more_hooks_setting].into_iter().chain(limits).flat_map(|setting| ["--set", setting]);
    let more: Vec<&str> = SHORT_MEMORY.iter().copied().chain(more).collect();
    let clock = ClockShim::of_system_calls();
    let env = clock.env();
    let env: Vec<(&str, &str)> = env.iter().map(|(name, value)| (*name, path(value))).collect();
    let edge = cluster.service_with_env(&env, &more).await;
    edge.service.until_ready().await;
    let targets = [here.service.address(), there.service.address(), edge.service.address()];
    let prometheus = Prometheus::start_with(&config(""), &targets, "http", &key("ops")).await;
    let begun = SystemClock.wall_ms();
    // Before the load, whose waiters are counted.
    time_out(&here, &prometheus, begun).await;
    let ticket = keep_and_wait(here.client(), &prometheus, begun).await;
    let work = constant_load(&[here.client().clone(), there.client().clone()]);
    // One lease alone would be the median of all, in a bucket that ends at 15 s.
    until_shown(&prometheus, begun, "sum(rate(redlockd_lock_held_duration_seconds_count[5s]))").await;
    send(here.client().request("DELETE", &ticket)).await.expect_status(204);
    let listener = here.client().request("GET", "/events").send().await.expect("a stream");
    cause_all_events(&mut cluster, &here, &prometheus, begun).await;
    refuse_drop_and_drain((&edge, &clock), &refuses, &prometheus, begun).await;

    let dashboard = dashboard();
    let panels = panels(&dashboard);
    let checked = FIGURES.iter().map(|figure| {
        let (panels, prometheus) = (&panels, &prometheus);
        async move {
            let target = figure.target(panels);
            let query = filled(text(target, "expr"));
            let mut last = None;
            let end = SystemClock.now().plus(PATIENCE);
            while SystemClock.now() < end {
                let answer = match target["instant"].as_bool() {
                    Some(true) => prometheus.query(&query).await,
                    _ => prometheus.range(&query, begun, SystemClock.wall_ms()).await,
                };
                assert_eq!(answer["status"], "success", "{figure:?}: {query}: {answer}");
                last = figure.of(&answer);
                if last.is_some_and(|value| figure.holds(value)) {
                    return format!("{}: {last:?}", figure.panel);
                }
                SystemClock.sleep(Duration::from_millis(200)).await;
            }
            panic!("{figure:?}, and the board shows {last:?}: {query}");
        }
    });
    println!("{:#?}", join_all(checked).await);
    for annotation in list(&dashboard["annotations"], "list").iter().filter(|a| !text(a, "expr").is_empty()) {
        let query = filled(text(annotation, "expr"));
        let what = format!("the annotation shows something: {query}");
        poll::until(&what, || async {
            let answer = prometheus.range(&query, begun, SystemClock.wall_ms()).await;
            (numbers(&answer) > 0).then_some(())
        })
        .await;
    }
    prometheus.until_fired(&["RedlockdForcedRelease", "RedlockdRanUnprotected"]).await;
    poll::until("the rules are healthy", || async {
        let answer = prometheus.get("/api/v1/rules").await;
        let rules: Vec<&Value> =
            list(&answer["data"], "groups").iter().flat_map(|group| list(group, "rules")).collect();
        let ill = rules.iter().filter(|r| !["ok", "unknown"].contains(&text(r, "health")));
        let ill: Vec<_> = ill.map(|r| format!("{}: {}", r["name"], r["lastError"])).collect();
        assert!(ill.is_empty(), "{ill:#?}");
        (rules.len() > 20 && rules.iter().all(|r| text(r, "health") == "ok")).then_some(())
    })
    .await;
    drop((listener, work));
}

#[test]
fn the_tests_of_this_file_can_fail() {
    let empty = serde_json::json!({"status": "success", "data": {"result": []}});
    let nan = serde_json::json!({"data": {"result": [{"values": [[1, "NaN"], [2, "+Inf"]]}]}});
    let some = serde_json::json!({"data": {"result": [{"value": [1, "0"]}, {"values": [[1, "NaN"], [2, "0.5"]]}]}});
    assert_eq!([&empty, &nan, &some].map(numbers), [0, 0, 2]);
    let found = names("sum(rate(redlockd_a_total{x=\"$y\"}[5m])) / job:redlockd_b:rate5m > process_c");
    assert_eq!(
        found.iter().map(String::as_str).collect::<Vec<_>>(),
        ["job:redlockd_b:rate5m", "process_c", "redlockd_a_total"]
    );
}
