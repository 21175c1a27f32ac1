//! Prometheus of the distribution: its tools, and a server of a test's own with the shipped
//! configuration. Where they are missing and cannot be had, a test is skipped and says so.

use std::net::{SocketAddr, TcpListener};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use redlockd::redlock::clock::{Clock, SystemClock};
use serde_json::Value;
use tempfile::TempDir;

use super::client::{Client, send};
use super::poll;
use super::programs::is_ci;

/// Another process may take a free port before it is bound.
const PORT_TRIES: usize = 5;
/// Between scrapes and between evaluations: short, so that a test need not wait.
const INTERVAL: &str = "500ms";

/// Thresholds that no test can wait for, and those in their place.
const LONG: [(&str, &str); 2] =
    [("oldest_wait_seconds) > 240\n", "oldest_wait_seconds) > 2\n"), ("> 4 * 3600\n", "> 2\n")];
/// How long an alert may take on a machine with other work; some figures are counted twice a minute.
const PATIENCE: Duration = Duration::from_mins(2);

fn how(scheme: &str, key: &str) -> String {
    format!(
        "    scheme: {scheme}\n    tls_config: {{ insecure_skip_verify: true }}\n    authorization: {{ credentials: {key} }}\n"
    )
}

/// A program of Debian's package `prometheus`, to be given its arguments; `None` where it is not
/// there and there is no apt to get it with, which is said. Panics where `make deps` would have
/// installed it, and in a continuous build.
pub fn tool(name: &str) -> Option<Command> {
    let paths = std::env::var_os("PATH").unwrap_or_default();
    let has = |name: &str| std::env::split_paths(&paths).any(|dir| dir.join(name).is_file());
    if has(name) {
        return Some(Command::new(name));
    }
    let must = has("apt-get") || is_ci();
    assert!(!must, "{name} is missing: run `make deps`");
    #[expect(clippy::print_stderr, reason = "a test that is skipped says so")]
    {
        eprintln!("SKIPPED: {name} is not installed, and there is no apt to install it with");
    }
    None
}

/// A running server; killed when dropped.
pub struct Prometheus {
    child: Child,
    client: Client,
    _dir: TempDir,
}

impl Prometheus {
    /// Starts one with the configuration and the rules of a directory, with other targets and in a
    /// hurry.
    pub async fn start(config: &Path, targets: &[SocketAddr]) -> Self {
        Self::start_with(config, targets, "http", "none").await
    }

    /// The same, with the scheme and the key that scrapes need.
    pub async fn start_with(config: &Path, targets: &[SocketAddr], scheme: &str, key: &str) -> Self {
        let dir = tempfile::tempdir().expect("a temporary directory");
        std::fs::copy(config.join("recording.yml"), dir.path().join("recording.yml")).expect("recording.yml");
        // What an alert waits for is tested by promtool; here, that its condition holds during a real failure.
        let rules = std::fs::read_to_string(config.join("alerts.yml")).expect("alerts.yml");
        let hurry =
            |line: &str| if line.starts_with("        for: ") { "        for: 1s".to_owned() } else { line.to_owned() };
        let mut rules = rules.lines().map(hurry).collect::<Vec<_>>().join("\n") + "\n";
        for (long, short) in LONG {
            assert!(rules.contains(long), "{long}");
            rules = rules.replace(long, short);
        }
        std::fs::write(dir.path().join("alerts.yml"), rules).expect("writable");
        let shipped = std::fs::read_to_string(config.join("prometheus.yml")).expect("prometheus.yml");
        let list = targets.iter().map(|t| format!("\"{t}\"")).collect::<Vec<_>>().join(", ");
        let hurried = shipped
            .replace("[\"127.0.0.1:5625\"]", &format!("[{list}]"))
            .replace("interval: 15s", &format!("interval: {INTERVAL}"))
            .replace("  - job_name: redlockd\n", &format!("  - job_name: redlockd\n{}", how(scheme, key)));
        assert!(hurried.contains(&list) && hurried.matches(INTERVAL).count() == 2, "{hurried}");
        std::fs::write(dir.path().join("prometheus.yml"), hurried).expect("writable");
        for _ in 0..PORT_TRIES {
            let port = TcpListener::bind("127.0.0.1:0").and_then(|l| l.local_addr()).expect("a free port").port();
            let mut child = launch(dir.path(), port);
            let client = Client::new(&format!("http://127.0.0.1:{port}"));
            let is_up = poll::until("prometheus is ready, or ends", || {
                let has_ended = child.try_wait().expect("own child").is_some();
                let ready = super::client::try_send(client.request("GET", "/-/ready"));
                async move { (ready.await.is_ok_and(|a| a.status == 200) || has_ended).then_some(!has_ended) }
            });
            if is_up.await {
                let this = Self { child, client, _dir: dir };
                // It looks for targets some seconds after its start.
                poll::until("every target is scraped", || async {
                    let up = this.query("sum(up)").await;
                    (up["data"]["result"][0]["value"][1].as_str() == Some(&*targets.len().to_string())).then_some(())
                })
                .await;
                return this;
            }
        }
        let log = std::fs::read_to_string(dir.path().join("log")).unwrap_or_default();
        panic!("prometheus does not start: {log}");
    }

    /// `GET` of its interface.
    pub async fn get(&self, path: &str) -> Value {
        self.client.get(path).await.json()
    }

    /// What a query says now.
    pub async fn query(&self, query: &str) -> Value {
        send(self.client.request("POST", "/api/v1/query").form(&[("query", query)])).await.json()
    }

    /// Waits until each of these alerts fires or has fired in the last ten minutes.
    pub async fn until_fired(&self, alerts: &[&str]) {
        self.until_fired_since(alerts, SystemClock.wall_ms().saturating_sub(600_000)).await;
    }

    /// Waits until each of them fires, or has fired, for something that began since then (milliseconds since 1970).
    pub async fn until_fired_since(&self, alerts: &[&str], from_ms: u64) {
        for alert in alerts {
            let end = SystemClock.now().plus(PATIENCE);
            poll::until_over(
                &format!("{alert} fires"),
                || SystemClock.now() >= end,
                || async { self.has_fired_since(alert, from_ms).await.then_some(()) },
            )
            .await;
        }
    }

    /// Whether it fires, or has fired, for something that began since then. Prometheus knows the begin in whole seconds.
    pub async fn has_fired_since(&self, alert: &str, from_ms: u64) -> bool {
        let (since_ms, from_s) = (SystemClock.wall_ms().saturating_sub(from_ms).max(1), from_ms / 1_000);
        let firing = format!("max_over_time(ALERTS{{alertname=\"{alert}\", alertstate=\"firing\"}}[{since_ms}ms])");
        let begun = format!("max_over_time(ALERTS_FOR_STATE{{alertname=\"{alert}\"}}[{since_ms}ms]) >= {from_s}");
        let answer = self.query(&format!("{firing} and ignoring(alertstate) ({begun})")).await;
        !answer["data"]["result"].as_array().expect("a result").is_empty()
    }

    /// Waits until none of these fires.
    pub async fn until_quiet(&self, alerts: &[&str]) {
        for alert in alerts {
            let end = SystemClock.now().plus(PATIENCE);
            let firing = format!("ALERTS{{alertname=\"{alert}\", alertstate=\"firing\"}}");
            poll::until_over(
                &format!("{alert} does not fire"),
                || SystemClock.now() >= end,
                || async {
                    let answer = self.query(&firing).await;
                    answer["data"]["result"].as_array().expect("a result").is_empty().then_some(())
                },
            )
            .await;
        }
    }

    /// Whether this alert fires or has fired in the last ten minutes.
    pub async fn has_fired(&self, alert: &str) -> bool {
        let query = format!("max_over_time(ALERTS{{alertname=\"{alert}\", alertstate=\"firing\"}}[10m])");
        !self.query(&query).await["data"]["result"].as_array().expect("a result").is_empty()
    }

    /// What a query says for each second between two times. Units: milliseconds since 1970.
    pub async fn range(&self, query: &str, from_ms: u64, to_ms: u64) -> Value {
        let seconds = |ms: u64| format!("{}.{:03}", ms / 1_000, ms % 1_000);
        let (start, end) = (seconds(from_ms), seconds(to_ms));
        let fields = [("query", query), ("start", &start), ("end", &end), ("step", "1s")];
        send(self.client.request("POST", "/api/v1/query_range").form(&fields)).await.json()
    }
}

impl Drop for Prometheus {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn launch(dir: &Path, port: u16) -> Child {
    let log = std::fs::File::create(dir.join("log")).expect("a writable directory");
    let mut command = Command::new("prometheus");
    command.arg(format!("--config.file={}", dir.join("prometheus.yml").display()));
    command.arg(format!("--storage.tsdb.path={}", dir.join("data").display()));
    command.arg(format!("--web.listen-address=127.0.0.1:{port}")).arg("--log.level=warn");
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log);
    command.spawn().expect("prometheus runs")
}
