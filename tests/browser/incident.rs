//! Half an hour of failures as one script, compressed to minutes by short settings: five nodes with two instances, three nodes
//! of which two restart at once, nodes that nobody declared, an access file that is broken. At each step the pages, the events,
//! the metrics, the alerts and the log must say what is ill; what they said is printed as a timetable (`make incident`).

use std::path::Path;
use std::time::Duration;

use futures_util::future::join_all;
use redlockd::auth::api_key::KeyHash;
use redlockd::redlock::clock::{BootTime, Clock, SystemClock};
use serde_json::Value;
use tokio::task::JoinSet;

use super::driver::{Browser, Look};
use crate::support::client::{Answer, Client, send};
use crate::support::cluster::{Cluster, ServiceOver, heal, node_args, slow_to_answer};
use crate::support::daemon::{ended, redlockd};
use crate::support::poll;
use crate::support::prometheus::{Prometheus, tool};
use crate::support::redis_server::RedisServer;
use crate::support::service::{SHORT_TIMES, Service};
use crate::support::temp_dir;

/// Long enough to look at an outage by two restarts, short enough to wait for its end.
const MEMORY: [&str; 6] = ["--set", "max_ttl=10s", "--set", "default_ttl=5s", "--set", "list_refresh=500ms"];
/// An outage that lasts for all that is asked and shown in it.
const LONG_MEMORY: [&str; 6] = ["--set", "max_ttl=28s", "--set", "default_ttl=5s", "--set", "list_refresh=500ms"];
const LOOKS: [Look; 4] = [Look::Light, Look::Dark, Look::Phone, Look::PhoneDark];

/// What must be said at a step. All parts of one line of the log, of an event, or of the sentence on the home page.
#[derive(Default)]
struct Expected<'a> {
    page: &'a [&'a str],
    events: &'a [&'a [&'a str]],
    metrics: &'a [&'a str],
    /// They begin to fire.
    alerts: &'a [&'a str],
    /// They do not fire, or not any more.
    quiet: &'a [&'a str],
    log: &'a [&'a str],
}

/// One instance that is watched.
struct Watch<'a> {
    service: &'a Service,
    prometheus: Option<&'a Prometheus>,
    browsers: &'a [Browser],
    begun: BootTime,
    /// Where the present step begins in the log and on the wall clock.
    line: usize,
    from_ms: u64,
}

/// The sentence at the top of the home page: the alarm, or that all is well; and the deadlocks.
async fn sentence(client: &Client) -> String {
    let html = client.get("/ui/").await.text;
    let part = |id: &str, end: &str| {
        let rest = html.split_once(&format!("<div id=\"{id}\" data-live>"))?.1;
        let mut text = String::new();
        for piece in rest.split_once(end)?.0.split('<') {
            text.push_str(piece.split_once('>').map_or(piece, |(_, after)| after));
        }
        Some(text.split_whitespace().collect::<Vec<_>>().join(" ")).filter(|text| !text.is_empty())
    };
    let state = part("alarm", "<div class=\"wide\">").or_else(|| part("situation", "<div id=\"deadlocks\""));
    [state, part("deadlocks", "<section")].into_iter().flatten().collect::<Vec<_>>().join(" ")
}

fn has_all(text: &str, parts: &[&str]) -> bool {
    parts.iter().all(|part| text.contains(part))
}

impl<'a> Watch<'a> {
    fn of(service: &'a Service, prometheus: Option<&'a Prometheus>, browsers: &'a [Browser], begun: BootTime) -> Self {
        Self { service, prometheus, browsers, begun, line: 0, from_ms: SystemClock.wall_ms() }
    }

    /// Waits until all of it is said, and takes pictures of what lasts.
    async fn step(&mut self, name: &str, what: &str, expected: Expected<'_>) {
        self.said(what, expected).await;
        self.pictures(name).await;
    }

    /// Waits until all of it is said, and prints what was said.
    #[expect(clippy::print_stdout, reason = "the timetable is its output")]
    async fn said(&mut self, what: &str, expected: Expected<'_>) {
        let (client, at) = (self.service.client(), SystemClock.now().since(self.begun).as_secs_f64());
        println!("\n{at:6.1} s  {what}");
        let page = poll::until(&format!("{what}: the home page says {:?}", expected.page), || async {
            Some(sentence(client).await).filter(|text| has_all(text, expected.page))
        })
        .await;
        println!("    page     {page}");
        for parts in expected.events {
            let event = poll::until(&format!("{what}: an event with {parts:?}"), || async {
                let past = client.get("/events?since=10m&limit=1000").await.json();
                let events = past["events"].as_array().cloned().unwrap_or_default();
                let is_new = |event: &&Value| event["at_ms"].as_u64() >= Some(self.from_ms);
                events.iter().filter(is_new).map(Value::to_string).find(|text| has_all(text, parts))
            })
            .await;
            println!("    event    {event}");
        }
        for line in expected.metrics {
            poll::until(&format!("{what}: {line}"), || async {
                client.get("/metrics").await.text.lines().any(|l| l == *line).then_some(())
            })
            .await;
            println!("    metric   {line}");
        }
        for part in expected.log {
            let line = poll::until(&format!("{what}: the log says {part}"), || {
                let found = self.service.output().into_iter().skip(self.line).find(|line| line.contains(part));
                async move { found }
            })
            .await;
            println!("    log      {}", line.split_once("Z ").map_or(line.as_str(), |(_, text)| text.trim_start()));
        }
        if let Some(prometheus) = self.prometheus {
            prometheus.until_fired_since(expected.alerts, self.from_ms).await;
            expected.alerts.iter().for_each(|alert| println!("    alert    {alert}"));
            prometheus.until_quiet(expected.quiet).await;
            expected.quiet.iter().for_each(|alert| println!("    no alert {alert}"));
        }
        (self.line, self.from_ms) = (self.service.output().len(), SystemClock.wall_ms());
    }

    /// The home page and the nodes as each browser shows them: they take seconds, and show what lasts.
    async fn pictures(&self, name: &str) {
        for browser in self.browsers {
            for (path, title) in [("/ui/", "home"), ("/ui/nodes", "nodes")] {
                browser.go_to(self.service.client().base(), path).await;
                browser.screenshot(&format!("incident-{name}-{title}")).await;
            }
            // A page that is open refreshes itself: four of them would be the load that is measured.
            browser.go_to("about:", "blank").await;
        }
    }

    /// Nothing is ill any more.
    async fn calm(&mut self, name: &str, what: &str, expected: Expected<'_>) {
        self.step(name, what, Expected { page: &["All ", " nodes vote"], ..expected }).await;
    }
}

/// Callers that keep the nodes busy until it is dropped.
fn load(clients: &[&Client]) -> JoinSet<()> {
    let mut work = JoinSet::new();
    for (n, client) in clients.iter().cycle().take(6).enumerate() {
        let (client, name) = ((*client).clone(), format!("work/{}", n % 4));
        work.spawn(async move {
            loop {
                let fields = [("ttl", "5s"), ("wait", "3s"), ("owner", ["ci-1", "ci-2", "backup"][n % 3])];
                let lease = client.acquire(&name, &fields).await;
                SystemClock.sleep(Duration::from_millis(60)).await;
                if lease.status == 201 {
                    client.release(&name, &lease.token()).await;
                }
            }
        });
    }
    work
}

async fn browsers() -> Vec<Browser> {
    let mut open = Vec::new();
    if std::env::var_os("REDLOCKD_SCREENSHOTS").is_some() {
        for look in LOOKS {
            open.extend(Browser::open("", look).await);
        }
    }
    open
}

/// Five nodes and two instances, one failure after another: locks are granted all the time.
async fn five_nodes(browsers: &[Browser], begun: BootTime) {
    let from_ms = SystemClock.wall_ms();
    let mut cluster = Cluster::start(5).await;
    let (here, there) = (cluster.service_with(&MEMORY).await, cluster.service_with(&MEMORY).await);
    let config = Path::new(env!("CARGO_MANIFEST_DIR")).join("config");
    let targets = [here.service.address(), there.service.address()];
    let prometheus = match tool("prometheus") {
        Some(_) => Some(Prometheus::start(&config, &targets).await),
        None => None,
    };
    let work = load(&[here.client(), there.client()]);
    let mut watch = Watch::of(&here.service, prometheus.as_ref(), browsers, begun);
    watch.from_ms = from_ms;
    let calm = Expected {
        events: &[&["started"]],
        metrics: &["redlockd_quorum_available 1", "redlockd_quorum_margin 2"],
        quiet: &["RedlockdQuorumLost", "RedlockdQuorumNoMargin", "RedlockdNodeDown"],
        log: &["a quorum of nodes votes: locks can be granted"],
        ..Expected::default()
    };
    watch.calm("calm", "five nodes vote, two instances serve", calm).await;

    for over in [&here, &there] {
        over.proxies[4].set(slow_to_answer(Duration::from_millis(300)));
    }
    let slow = Expected {
        page: &["Node n5 has answered too late", "1 more may fail"],
        events: &[&["quarantined", "n5", "slow"]],
        metrics: &["redlockd_quorum_margin 1", "redlockd_node_votes{node=\"n5\"} 0"],
        alerts: &["RedlockdNodeErrors", "RedlockdNodeSlow"],
        quiet: &["RedlockdQuorumNoMargin"],
        log: &["late_percent="],
    };
    watch.step("slow", "n5 answers after 300 ms, later than rounds wait", slow).await;
    [&here, &there].iter().for_each(|over| heal(&over.proxies[4]));
    let in_time = Expected {
        events: &[&["node_up", "n5", "after_ms"]],
        metrics: &["redlockd_quorum_margin 2", "redlockd_node_votes{node=\"n5\"} 1"],
        quiet: &["RedlockdQuorumNoMargin"],
        log: &["the node is up and votes node=n5"],
        ..Expected::default()
    };
    watch.calm("slow-over", "n5 answers in time again", in_time).await;

    cluster.servers[1].freeze();
    let frozen = Expected {
        page: &["Node n2 has not answered since", "1 more may fail", "Bring back n2", "Do not restart another node"],
        events: &[&["node_down", "n2"]],
        metrics: &["redlockd_quorum_margin 1", "redlockd_node_up{node=\"n2\"} 0"],
        alerts: &["RedlockdNodeDown"],
        quiet: &["RedlockdQuorumNoMargin"],
        log: &["node=n2 state=\"down\""],
    };
    watch.step("frozen", "n2 is frozen", frozen).await;
    cluster.servers[2].kill();
    let no_margin = Expected {
        page: &["n2", "n3", "not answered since", "The next failure is an outage."],
        events: &[&["node_down", "n3"]],
        metrics: &["redlockd_quorum_margin 0"],
        alerts: &["RedlockdQuorumNoMargin"],
        quiet: &["RedlockdQuorumLost"],
        log: &["the next failure is an outage"],
    };
    watch.step("no-margin", "n3 is killed as well", no_margin).await;
    cluster.servers[1].thaw();
    cluster.servers[2].restart_empty().await;
    let blank: [&[&str]; 3] = [&["quarantined", "n3"], &["node_up", "n3", "after_ms"], &["node_up", "n2", "after_ms"]];
    let filled = Expected {
        events: &blank,
        metrics: &["redlockd_quorum_margin 2", "redlockd_node_up{node=\"n2\"} 1", "redlockd_node_votes{node=\"n3\"} 1"],
        quiet: &["RedlockdQuorumNoMargin", "RedlockdNodeDown"],
        log: &["the node is up and votes node=n2", "the node is up and votes node=n3"],
        ..Expected::default()
    };
    watch.calm("filled", "n2 runs again, n3 is back without its memory and is filled by the others", filled).await;
    cluster.servers[3].ask::<String>(&["FLUSHALL"]).await;
    let wiped: [&[&str]; 2] = [&["quarantined", "n4", "wiped"], &["node_up", "n4", "after_ms"]];
    // It voted again before anybody had to look: no alert.
    let wiped = Expected {
        events: &wiped,
        metrics: &["redlockd_quorum_margin 2", "redlockd_node_quarantines_total{node=\"n4\",reason=\"blank\"} 1"],
        quiet: &["RedlockdQuorumNoMargin", "RedlockdNodeDown", "RedlockdNodeQuarantined"],
        log: &["wiped, or"],
        ..Expected::default()
    };
    watch.calm("wiped", "n4 is wiped by FLUSHALL and is filled", wiped).await;
    two_servers(&mut watch, &here, &there).await;
    people(&mut watch, &here).await;
    drop(work);
    drop(cluster);
}

/// The name n5 leads the second instance to another server: nothing is granted to two.
async fn two_servers(watch: &mut Watch<'_>, here: &ServiceOver, there: &ServiceOver) {
    let new = RedisServer::start().await;
    there.proxies[4].lead_to(new.port());
    let expected = Expected {
        page: &["The name n5 has led to two servers since ", "one of them votes", "Turn off the wrong server"],
        events: &[&["two_servers", "n5", "begun"]],
        metrics: &["redlockd_node_two_servers{node=\"n5\"} 1"],
        alerts: &["RedlockdOneNameTwoServers"],
        quiet: &["RedlockdQuorumLost"],
        log: &["name leads to two servers"],
    };
    watch.step("two-servers", "n5 leads the second instance to another, empty server", expected).await;
    let page = poll::until("the second instance says it", || async {
        Some(sentence(there.client()).await).filter(|text| has_all(text, &["Node n5 has two servers under one name"]))
    })
    .await;
    assert!(page.contains("1 more may fail"), "{page}");
    let both = join_all((0..40).map(|i| async move {
        let name = format!("pair/{i}");
        let [a, b] = [here.client().acquire(&name, &[]), there.client().acquire(&name, &[])];
        let (a, b) = futures_util::future::join(a, b).await;
        usize::from(a.status == 201 && b.status == 201)
    }));
    assert_eq!(both.await.iter().sum::<usize>(), 0, "a lease that two have");
}

/// What people do: a deadlock, and an operator who ends a lease.
#[expect(clippy::print_stdout, reason = "the timetable is its output")]
async fn people(watch: &mut Watch<'_>, here: &ServiceOver) {
    let client = here.client();
    let of_ann = client.acquired("x", &[("ttl", "10s"), ("owner", "ann")]).await.token();
    client.acquired("y", &[("ttl", "10s"), ("owner", "bob")]).await;
    let mut waits = JoinSet::new();
    for (resource, owner) in [("y", "ann"), ("x", "bob")] {
        let client = client.clone();
        waits.spawn(async move { client.acquire(resource, &[("wait", "20s"), ("owner", owner)]).await });
    }
    let expected = Expected {
        page: &["Deadlock.", "ann waits for y, held by bob", "Known since ", "revoke one of these leases"],
        events: &[&["deadlock", "ann", "bob"]],
        metrics: &["redlockd_lock_deadlocks_total{outcome=\"reported\"} 1"],
        alerts: &["RedlockdDeadlock"],
        quiet: &["RedlockdForcedRelease"],
        log: &["owners wait for each other in a cycle"],
    };
    watch.step("deadlock", "ann and bob wait for each other", expected).await;
    let path = "/locks/x?force=now&reason=host%20is%20gone";
    send(client.request("DELETE", path)).await.expect_status(204);
    let expected = Expected {
        events: &[&["forced", "host is gone", "ann", "after_ms"]],
        metrics: &["redlockd_lock_force_total{how=\"now\",outcome=\"forced\"} 1"],
        alerts: &["RedlockdForcedRelease"],
        log: &["a lease was ended by force"],
        ..Expected::default()
    };
    watch.step("forced", "an operator ends ann's lease", expected).await;
    let page = client.get("/ui/events?kind=forced").await.text;
    assert!(has_all(&page, &["released by an operator", "host is gone", "ann"]), "{page}");
    println!("    page     /ui/events: released by an operator, host is gone");
    client.extend("x", &of_ann, &[]).await.expect_status(410);
}

/// Three nodes, one instance: two restart at once without their memory. Nobody gets a lock for a quarantine.
async fn outage(browsers: &[Browser], begun: BootTime) {
    let mut cluster = Cluster::start(3).await;
    let over = cluster.service_with(&LONG_MEMORY).await;
    let (client, mut watch) = (over.client(), Watch::of(&over.service, None, browsers, begun));
    let config = Path::new(env!("CARGO_MANIFEST_DIR")).join("config");
    let prometheus = match tool("prometheus") {
        Some(_) => Some(Prometheus::start(&config, &[over.service.address()]).await),
        None => None,
    };
    watch.prometheus = prometheus.as_ref();
    let held = client.acquired("long/holder", &[("ttl", "3s"), ("owner", "ann")]).await;
    for node in 0..2 {
        cluster.servers[node].kill();
    }
    for node in 0..2 {
        cluster.servers[node].restart_empty().await;
    }
    // Its holder goes on renewing, which keeps the lease on the only node that is left.
    let mut renewals = JoinSet::new();
    let (holder, token) = (client.clone(), held.token());
    renewals.spawn(async move {
        loop {
            holder.extend("long/holder", &token, &[("ttl", "3s")]).await;
            SystemClock.sleep(Duration::from_millis(300)).await;
        }
    });
    let expected = Expected {
        page: &[
            "No lock can be granted or extended since ",
            "1 of 3 nodes vote, 2 are needed",
            "Nodes n1 and n2 have been in quarantine since ",
            "(wiped, or new)",
            "Do not restart anything: it ends by itself at ",
            "Leases stay valid to their deadline.",
        ],
        events: &[&["quorum_lost", "n1", "n2"]],
        metrics: &["redlockd_quorum_available 0", "redlockd_quorum_margin -1"],
        log: &["no quorum of nodes votes: no lock can be granted or extended"],
        alerts: &["RedlockdQuorumLost", "RedlockdAcquireErrorsHigh"],
        quiet: &["RedlockdQuorumNoMargin"],
    };
    let mut refused = JoinSet::new();
    let caller = client.clone();
    refused.spawn(async move {
        loop {
            caller.acquire("other", &[]).await;
            SystemClock.sleep(Duration::from_millis(200)).await;
        }
    });
    watch.said("n1 and n2 restart at once without their memory", expected).await;
    drop(refused);
    in_the_outage(client, &held).await;
    drop(renewals);
    watch.pictures("outage").await;
    // Longer than any other wait: a whole quarantine.
    for half in ["first", "second"] {
        poll::until(&format!("the {half} half of the quarantine is over"), || async {
            let left = client.get("/health/ready").await.json()["ready_in_seconds"].as_u64();
            left.is_none_or(|left| half == "first" && left < 12).then_some(())
        })
        .await;
    }
    let over_again = Expected {
        events: &[&["quorum_back", "after_ms", "refused"]],
        metrics: &["redlockd_quorum_available 1", "redlockd_quorum_margin 1"],
        quiet: &["RedlockdQuorumLost", "RedlockdQuorumNoMargin"],
        log: &["a quorum of nodes votes again"],
        ..Expected::default()
    };
    watch.calm("outage-over", "the quarantine is over", over_again).await;
    client.acquired("other", &[]).await;
    other_node_list(&cluster, &over, browsers, begun).await;
}

/// What callers are answered while no quorum votes.
#[expect(clippy::print_stdout, reason = "the timetable is its output")]
async fn in_the_outage(client: &Client, held: &Answer) {
    let refused = client.acquire("other", &[]).await.expect_status(503);
    assert!(refused.header("retry-after").parse::<u64>().is_ok_and(|s| s <= 30), "{refused:?}");
    let ready = client.get("/health/ready").await.expect_status(503).json();
    assert!(ready["ready_in_seconds"].is_u64() && ready.to_string().contains("ends by itself at"), "{ready}");
    client.get("/health/ready?local=true").await.expect_status(200);
    let unknown = poll::until("the deadline has passed", || async {
        let seen = client.inspect("long/holder").await.json();
        (seen["state"] == "unknown" && seen["holders"][0]["valid_for_ms"] == 0).then_some(seen)
    })
    .await;
    assert_eq!(unknown["holders"][0]["owner"], "ann", "{unknown}");
    println!("    holder   {}", unknown["state"]);
    let late = poll::until("the refusal says that the deadline has passed", || async {
        let late = client.extend("long/holder", &held.token(), &[]).await.expect_status(503);
        late.text.contains("has passed").then_some(late)
    })
    .await;
    println!("    extend   {}", late.text);
    let html = client.get("/ui/locks/long/holder").await.text;
    assert!(
        html.contains("unknown") && html.contains("may not rely on it") && !html.contains(">held</span>"),
        "{html}"
    );
}

/// A second instance with another node list gets no vote, and its log, its page and `doctor` say why.
#[expect(clippy::print_stdout, reason = "the timetable is its output")]
async fn other_node_list(cluster: &Cluster, over: &ServiceOver, browsers: &[Browser], begun: BootTime) {
    let other = RedisServer::start().await;
    let urls = [cluster.servers[0].url(), cluster.servers[1].url(), other.url()];
    let mut args = node_args(urls.into_iter());
    args[5] = args[5].replace("n3=", "n9=");
    args.extend(SHORT_TIMES.iter().chain(&LONG_MEMORY).map(ToString::to_string));
    let from_ms = SystemClock.wall_ms();
    let second = Service::start(&args).await;
    let prometheus = prometheus_of(&second).await;
    let mut watch = Watch::of(&second, prometheus.as_ref(), browsers, begun);
    watch.from_ms = from_ms;
    let expected = Expected {
        page: &["another node list (n1, n2 and n3)", "Start this instance with the node list of n1 and n2"],
        events: &[&["quorum_lost", "other-cluster"]],
        metrics: &["redlockd_quorum_available 0"],
        alerts: &["RedlockdQuorumLost"],
        log: &["state=\"other-cluster\""],
        ..Expected::default()
    };
    watch.step("other-list", "a second instance has another node list", expected).await;
    let words: Vec<&str> = std::iter::once("doctor").chain(args.iter().map(String::as_str)).collect();
    let doctor = ended(&mut redlockd(&words));
    println!("    doctor   exit code {:?}", doctor.code);
    assert_eq!(doctor.code, Some(1), "{doctor:?}");
    over.client().acquired("unharmed", &[]).await;
}

/// `redlockd init` was forgotten.
async fn not_declared(browsers: &[Browser], begun: BootTime) {
    let cluster = Cluster::blank(3).await;
    let from_ms = SystemClock.wall_ms();
    let over = cluster.service_at_once(&LONG_MEMORY).await;
    let prometheus = prometheus_of(&over.service).await;
    let mut watch = Watch::of(&over.service, prometheus.as_ref(), browsers, begun);
    watch.from_ms = from_ms;
    let expected = Expected {
        page: &["No lock can be granted", "wiped, or new", "redlockd init"],
        events: &[&["quorum_lost", "n1", "n2", "n3"]],
        metrics: &["redlockd_quorum_available 0", "redlockd_quorum_margin -2"],
        alerts: &["RedlockdQuorumLost"],
        log: &["redlockd init", "state=\"quarantined\""],
        ..Expected::default()
    };
    watch.step("not-declared", "nodes that nobody declared", expected).await;
}

/// One that scrapes this instance alone.
async fn prometheus_of(service: &Service) -> Option<Prometheus> {
    tool("prometheus")?;
    let config = Path::new(env!("CARGO_MANIFEST_DIR")).join("config");
    Some(Prometheus::start(&config, &[service.address()]).await)
}

/// An access file that is broken keeps the rules that were in force.
#[expect(clippy::print_stdout, reason = "the timetable is its output")]
async fn broken_access_file(browsers: &[Browser]) {
    let dir = tempfile::tempdir().expect("a directory");
    let (file, key) = (dir.path().join("access.toml"), "key-of-ops");
    let good = format!(
        "[[principal]]\nname = \"ops\"\nkeys = [{{ sha256 = \"{}\" }}]\nallow = [\"admin\", \"acquire:**\", \"metrics\", \"events:**\"]\n",
        KeyHash::of(key.as_bytes()).hex()
    );
    std::fs::write(&file, &good).expect("writable");
    let access = format!("access_file={}", file.display());
    let service = Service::start_in(
        std::sync::Arc::new(temp_dir::in_memory()),
        &[&SHORT_TIMES[..], &["--set", &access]].concat(),
    )
    .await;
    let prometheus = match tool("prometheus") {
        Some(_) => {
            let config = Path::new(env!("CARGO_MANIFEST_DIR")).join("config");
            Some(Prometheus::start_with(&config, &[service.address()], "http", key).await)
        }
        None => None,
    };
    let from_ms = SystemClock.wall_ms();
    let get = async |path: &str| send(service.client().request("GET", path).bearer_auth(key)).await.text;
    let until_reload = async |value: u8| {
        let line = format!("redlockd_config_last_reload_successful{{kind=\"access_file\"}} {value}");
        poll::until(&line, || async { get("/metrics").await.lines().any(|l| l == line).then_some(()) }).await;
    };
    std::fs::write(&file, format!("{good}allow = 7\n")).expect("writable");
    until_reload(0).await;
    let log = service.output();
    println!(
        "\n           the access file is broken\n    log      {}",
        log.iter().find(|l| l.contains("ERROR")).expect("an error")
    );
    let events = get("/events?since=5m&kind=reloaded").await;
    assert!(events.contains("\"reloaded\""), "{events}");
    let said = "rules before it stay in force, and keys that were removed still work";
    let home = get("/ui/").await;
    assert!(home.contains("The access file was rejected at ") && home.contains(said), "{home}");
    println!("    page     The access file was rejected at ...: the {said}.");
    println!("    metric   redlockd_config_last_reload_successful{{kind=\"access_file\"}} 0\n    event    {events}");
    if let Some(prometheus) = &prometheus {
        prometheus.until_fired_since(&["RedlockdReloadFailed"], from_ms).await;
        println!("    alert    RedlockdReloadFailed");
    }
    for browser in browsers {
        browser.go_to(service.client().base(), "/ui/login").await;
        browser.write("#key", key).await;
        browser.click("button[type=submit]").await;
        browser.until_text("#alarm", "what is in force", |text| text.contains(said)).await;
        browser.screenshot("incident-access-file-home").await;
        browser.go_to("about:", "blank").await;
    }
    std::fs::write(&file, &good).expect("writable");
    until_reload(1).await;
    let home = get("/ui/").await;
    assert!(!home.contains("was rejected at"), "{home}");
    let events = get("/events?since=5m&kind=reloaded").await;
    assert!(events.contains("\"reason\":\"in force\""), "{events}");
    if let Some(prometheus) = &prometheus {
        prometheus.until_quiet(&["RedlockdReloadFailed"]).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "minutes: make incident"]
async fn half_an_hour_of_failures_explains_itself() {
    let (browsers, begun) = (browsers().await, SystemClock.now());
    five_nodes(&browsers, begun).await;
    outage(&browsers, begun).await;
    not_declared(&browsers, begun).await;
    broken_access_file(&browsers).await;
    for browser in browsers {
        browser.close().await;
    }
}
