//! A rolling restart of two instances and five nodes under load through a balancer (A2): no request is refused, nobody who
//! holds a lock loses it, no leader changes, and no lease is granted to two.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use redlockd::redlock::clock::{BootTime, Clock, SystemClock};
use serde_json::Value;
use tokio::task::JoinSet;

use crate::support::balancer::Balancer;
use crate::support::client::{Client, lock, send};
use crate::support::cluster::Cluster;
use crate::support::daemon::{Running, redlockd};
use crate::support::plain_http::{PlainAnswer, exchange};
use crate::support::poll;
use crate::support::service::Service;

/// Requests per second that two busy cores serve, unless `REDLOCKD_ROLLING_RATE` says another number: `make incident` asks for
/// 300.
const RATE: u64 = 30;
/// Callers that share the rate.
const CALLERS: u64 = 24;
/// Names that several callers want.
const CONTENDED: u64 = 4;
/// Locks that `redlockd run` holds all the time, and that streams hold.
const HELD: usize = 3;
/// What two candidates campaign for, and what the script of docs/waiting.md holds.
const ELECTED: &str = "elected/leader";
const BY_SCRIPT: &str = "script/holder";
const SETTINGS: [&str; 8] =
    ["--set", "node_timeout=400ms", "--set", "min_ttl=1s", "--set", "drain_delay=3s", "--set", "list_refresh=1s"];

/// What the callers saw.
#[derive(Default)]
struct Seen {
    /// Requests by status, and 0 for those without an answer.
    statuses: Mutex<BTreeMap<u16, usize>>,
    /// Texts of the first failures.
    failures: Mutex<Vec<String>>,
    /// Answers that are errors of the service, by what was being restarted and what each node had answered.
    errors: Mutex<BTreeMap<String, usize>>,
    /// What is being restarted.
    phase: Mutex<String>,
    /// Grants of a name while another caller had it.
    double: AtomicUsize,
    /// Streams that were lost, or went on with another lease.
    lost: Mutex<Vec<String>>,
    /// Holds that moved to another instance.
    moved: AtomicUsize,
    ended: AtomicBool,
}

impl Seen {
    fn failed(&self, what: String) {
        let mut failures = self.failures.lock();
        if failures.len() < 10 {
            failures.push(what);
        }
    }

    /// Sends a form; `None` where there is no answer.
    async fn send(
        &self,
        at: SocketAddr,
        method: &str,
        path: &str,
        headers: &[(&str, &str)],
        form: &str,
    ) -> Option<PlainAnswer> {
        let answer = exchange(at, method, path, headers, form).await;
        *self.statuses.lock().entry(answer.as_ref().map_or(0, |answer| answer.status)).or_default() += 1;
        match &answer {
            Ok(PlainAnswer { status: 500.., body }) => {
                let nodes = body["nodes"].as_array().into_iter().flatten();
                let outcomes: BTreeSet<&str> = nodes.filter_map(|node| node["outcome"].as_str()).collect();
                let kind = body["type"].as_str().unwrap_or_default();
                let what = format!("{}: {method} {kind}, nodes {outcomes:?}", self.phase.lock());
                *self.errors.lock().entry(what).or_default() += 1;
            }
            Ok(_) => {}
            Err(error) => self.failed(format!("{}: {error:?}", self.phase.lock())),
        }
        answer.ok()
    }

    fn begins(&self, phase: String) {
        *self.phase.lock() = phase;
    }

    fn is_over(&self) -> bool {
        self.ended.load(Ordering::Relaxed)
    }
}

/// A client whose every request goes to the next instance.
fn client(balancer: &Balancer) -> Client {
    let http = reqwest::Client::builder().pool_max_idle_per_host(0).timeout(Duration::from_secs(30));
    Client::with(&balancer.base(), http.build().expect("a client"))
}

/// Who has each contended name: 0 is nobody. A lease lasts far longer than any caller keeps it.
type Holders = Arc<Vec<AtomicU64>>;

/// Acquires and releases at its share of the rate, until it is over; half of the callers want the same few names.
async fn call(at: SocketAddr, seen: Arc<Seen>, holders: Holders, caller: u64, pause: Duration) {
    let contended = caller.is_multiple_of(2).then_some(caller / 2 % CONTENDED);
    let name = contended.map_or_else(|| format!("own/{caller}"), |name| format!("hot/{name}"));
    let holder = contended.and_then(|name| holders.get(usize::try_from(name).expect("small")));
    let (path, form) = (lock(&name), format!("ttl=30s&owner=caller-{caller}"));
    let (mut next, mut fence) = (SystemClock.now(), 0);
    while !seen.is_over() {
        pace(&mut next, pause).await;
        let answer = seen.send(at, "POST", &path, &[], &form).await;
        let Some(PlainAnswer { body, .. }) = answer.filter(|answer| answer.status == 201) else { continue };
        let granted = body["fence"].as_u64().expect("a fence");
        let is_rising = granted > std::mem::replace(&mut fence, granted);
        let had = holder.map_or(0, |holder| holder.swap(caller + 1, Ordering::SeqCst));
        if had != 0 || !is_rising {
            seen.double.fetch_add(1, Ordering::Relaxed);
            seen.failed(format!("{name} was granted to {caller} while {had} had it, or with an old fence: {body}"));
        }
        pace(&mut next, pause).await;
        if let Some(holder) = holder {
            holder.store(0, Ordering::SeqCst);
        }
        // Until it is known: what is not released blocks the name for its TTL.
        let token = [("Lock-Token", body["token"].as_str().expect("a token"))];
        while seen.send(at, "DELETE", &path, &token, "").await.is_none_or(|released| released.status >= 500) {
            pace(&mut next, pause).await;
        }
    }
}

/// Waits for the next turn; a turn that was missed is not made up for.
async fn pace(next: &mut BootTime, pause: Duration) {
    let now = SystemClock.now();
    SystemClock.sleep(next.since(now)).await;
    *next = (*next).max(now).plus(pause);
}

/// Holds a lock by a stream; where that moves, with the same token at another instance.
async fn hold(client: Client, seen: Arc<Seen>, name: String) {
    let mut lease: Option<(String, Value)> = None;
    while !seen.is_over() {
        let request =
            client.request("POST", &format!("/locks/{name}?hold=true")).form(&[("ttl", "20s"), ("wait", "5s")]);
        let request = match &lease {
            Some((token, _)) => request.header("Lock-Token", token),
            None => request,
        };
        let Ok(mut answer) = request.timeout(Duration::from_mins(10)).send().await else {
            seen.lost.lock().push(format!("{name}: no answer"));
            return;
        };
        let mut text = Vec::new();
        while let Ok(Some(chunk)) = answer.chunk().await {
            text.extend_from_slice(&chunk);
            while let Some(end) = text.iter().position(|byte| *byte == b'\n') {
                let line: Vec<u8> = text.drain(..=end).collect();
                event(&seen, &name, &mut lease, &line);
            }
        }
    }
}

/// An event of a stream that holds; `lease`: its token and fence.
fn event(seen: &Seen, name: &str, lease: &mut Option<(String, Value)>, line: &[u8]) {
    let event: Value = serde_json::from_slice(line).unwrap_or_default();
    match event["event"].as_str() {
        Some("acquired") => {
            let (token, fence) = (event["token"].as_str().expect("a token").to_owned(), event["fence"].clone());
            if lease.as_ref().is_some_and(|(_, before)| *before != fence) {
                seen.lost.lock().push(format!("{name}: another lease: {event}"));
            }
            *lease = Some((token, fence));
        }
        Some("moved") => _ = seen.moved.fetch_add(1, Ordering::Relaxed),
        Some("queued" | "renewed" | "at_risk") => {}
        _ => seen.lost.lock().push(format!("{name}: {}", String::from_utf8_lossy(line))),
    }
}

/// The script of docs/waiting.md, under dash.
fn holding_script(url: &str) -> Running {
    let document = include_str!("../../docs/waiting.md");
    let block = document.split("  ```sh\n").nth(1).and_then(|rest| rest.split("  ```").next()).expect("a script");
    assert!(block.starts_with("  #!/bin/sh"), "{block}");
    let mut command = Command::new("dash");
    command.args(["-uc", block, "hold.sh", BY_SCRIPT]).env("REDLOCKD_URL", url).stdout(Stdio::piped());
    Running::spawn(&mut command)
}

async fn votes(client: &Client) -> Value {
    client.get("/nodes").await.json()["quorum"]["granted"].clone()
}

#[tokio::test(flavor = "multi_thread")]
#[expect(clippy::print_stdout, reason = "what was measured is its output")]
async fn instances_and_nodes_are_restarted_in_turn_under_load_and_nobody_notices() {
    let rate = std::env::var("REDLOCKD_ROLLING_RATE").ok().and_then(|rate| rate.parse().ok()).unwrap_or(RATE);
    let mut cluster = Cluster::blank(5).await;
    cluster.declare(&SETTINGS);
    let urls = crate::support::cluster::node_args(cluster.servers.iter().map(|server| server.url()));
    let args: Vec<&str> = urls.iter().map(String::as_str).chain(SETTINGS).collect();
    let mut services = vec![Service::start(&args).await, Service::start(&args).await];
    for service in &services {
        poll::until("all nodes vote", || async { (votes(service.client()).await == 5).then_some(()) }).await;
    }
    let addresses: Vec<_> = services.iter().map(Service::address).collect();
    let balancer = Balancer::start(&addresses).await;
    let through = client(&balancer);
    let (seen, holders): (Arc<Seen>, Holders) =
        (Arc::default(), Arc::new((0..CONTENDED).map(|_| AtomicU64::new(0)).collect()));
    let mut running: Vec<Running> = (0..HELD)
        .map(|i| {
            let (name, base) = (format!("job/{i}"), balancer.base());
            let mut command = redlockd(&["run", "--ttl", "20s", &name, "--", "sleep", "600"]);
            Running::spawn(command.env("REDLOCKD_URL", base))
        })
        .collect();
    // The candidate that does not lead waits: it would have the lease as soon as the leader lets go of it.
    for owner in ["one", "two"] {
        let mut command = redlockd(&["elect", "--ttl", "20s", "--owner", owner, ELECTED]);
        running.push(Running::spawn(command.env("REDLOCKD_URL", balancer.base())));
    }
    let mut script = holding_script(&balancer.base());
    let mut work = JoinSet::new();
    for i in 0..HELD {
        work.spawn(hold(through.clone(), Arc::clone(&seen), format!("leader/{i}")));
    }
    let mut held: Vec<String> =
        ["job", "leader"].iter().flat_map(|kind| (0..HELD).map(move |i| format!("{kind}/{i}"))).collect();
    held.extend([ELECTED, BY_SCRIPT].map(str::to_owned));
    let fences = async |over: &Client| {
        let mut fences = Vec::new();
        for name in &held {
            let holders = over.inspect(name).await.json();
            fences.push(holders["holders"][0]["fence"].as_u64().or(holders["fence"].as_u64()));
        }
        fences
    };
    let before = poll::until("all of them are held", || async {
        let fences = fences(services[0].client()).await;
        fences.iter().all(Option::is_some).then_some(fences)
    })
    .await;
    poll::until("the other candidate waits", || async {
        let there = services[1].client().waiting(ELECTED).await;
        (services[0].client().waiting(ELECTED).await + there == 1).then_some(())
    })
    .await;
    let begun = SystemClock.now();
    for caller in 0..CALLERS {
        let pause = Duration::from_secs(CALLERS) / u32::try_from(rate).expect("a rate");
        work.spawn(call(balancer.address(), Arc::clone(&seen), Arc::clone(&holders), caller, pause));
    }
    for i in 0..2 {
        seen.begins(format!("instance {}", i + 1));
        let data = services[i].data();
        services[i].terminate();
        assert_eq!(services[i].exit_code().await, Some(0));
        services[i] = Service::start_at(&addresses[i].to_string(), data, &args).await;
        services[i].until_ready().await;
        poll::until_true("the balancer knows", || balancer.is_ready(i)).await;
    }
    for (i, server) in cluster.servers.iter_mut().enumerate() {
        seen.begins(format!("node {}", i + 1));
        server.kill();
        server.restart_empty().await;
        poll::until("it has lost its vote", || async { (votes(services[0].client()).await != 5).then_some(()) }).await;
        for service in &services {
            poll::until("all nodes vote", || async { (votes(service.client()).await == 5).then_some(()) }).await;
        }
    }
    let took = SystemClock.now().since(begun);
    let after = fences(services[1].client()).await;
    seen.ended.store(true, Ordering::Relaxed);
    let statuses = seen.statuses.lock().clone();
    let requests: usize = statuses.values().sum();
    let per_second = requests as f64 / took.as_secs_f64();
    println!(
        "{requests} requests in {took:.1?}: {per_second:.0} a second of {rate}; by status {statuses:?}; {} holds moved; {} connections refused",
        seen.moved.load(Ordering::Relaxed),
        balancer.refused()
    );
    let failures = seen.failures.lock().clone();
    println!("errors: {:#?}; the first failures: {failures:#?}", seen.errors.lock());
    assert_eq!((balancer.refused(), statuses.get(&0)), (0, None), "refused: {failures:#?}");
    assert_eq!(seen.double.load(Ordering::Relaxed), 0, "{failures:#?}");
    assert_eq!(*seen.lost.lock(), Vec::<String>::new());
    assert_eq!(before, after, "each of {held:?} is held by the lease that it was held by");
    for child in running.iter_mut().chain([&mut script]) {
        assert!(child.child().try_wait().expect("our own child").is_none(), "a command was ended");
    }
    assert!(seen.moved.load(Ordering::Relaxed) >= HELD, "each stream was at one of the instances");
    // The script went on with its token at the other instance, and says so when it loses the lock.
    let force = services[1].client().request("DELETE", &format!("/locks/{BY_SCRIPT}?force=now&reason=test"));
    send(force).await.expect_status(204);
    let said = script.end().await.out;
    assert!(said.starts_with("held\nheld\n") && said.ends_with("\nlost\n"), "{said}");
    let known = [201, 204, 423];
    let others: usize = statuses.iter().filter(|(status, _)| !known.contains(status)).map(|(_, n)| n).sum();
    // A node that is killed takes with it what was on the way, and a round that meets a change of the view may find too few
    // nodes in its own: those end without a decision, and the caller tries again. On a machine with other work they are 1 in 100.
    assert!(others * 20 <= requests, "{others} of {requests}: {failures:#?}");
}
