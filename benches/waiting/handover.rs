//! How long a released lock stays free: the time from the call of a release to the next holder's lease, as
//! multiples of an uncontended acquire and release of the same run. Everything over HTTP on loopback, over five
//! Redis servers that this starts and stops, with one instance and with two.
//!
//!     cargo run --release --example handover [TURNS] [PASSES]
//!
//! Compared over the same servers in the same run, where they have been built: rslock
//! (`cargo build --release --manifest-path benches/peers/Cargo.toml --target-dir target/peers`) and
//! redlock-py (`make test` installs it into target/venv).
#![expect(clippy::print_stdout, reason = "a benchmark prints its figures")]

use std::net::TcpListener;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use redlockd::app::{self, App};
use redlockd::config::{Config, Inputs, ProcessEnvironment};
use redlockd::redlock::clock::{BootTime, Clock, SystemClock};
use reqwest::Client;
use tokio_util::sync::CancellationToken;

type Failure = Box<dyn std::error::Error + Send + Sync>;

const NODES: usize = 5;
/// How long each holder works.
const HOLD: Duration = Duration::from_millis(2);
const WAITERS: [usize; 5] = [2, 5, 10, 100, 1_000];
const UNCONTENDED: usize = 500;
/// Workers of the other libraries: each polls, so a thousand would only be a load test of Redis.
const PEERS: [usize; 2] = [2, 10];
const PEER_TURNS: usize = 100;

/// Servers that end with this process.
struct Servers(Vec<Child>);

impl Drop for Servers {
    fn drop(&mut self) {
        for child in &mut self.0 {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

#[tokio::main]
async fn main() -> Result<(), Failure> {
    let _ = rustls::crypto::ring::default_provider().install_default();
    let number = |at: usize| std::env::args().nth(at).and_then(|n| n.parse::<usize>().ok());
    let (turns, passes) = (number(1).unwrap_or(400), number(2).unwrap_or(1));
    let (_servers, urls) = start_servers()?;
    let plain: Vec<String> = urls.iter().filter_map(|url| Some(url.split_once('=')?.1.to_owned())).collect();
    let config = config(urls)?;
    while app::init(&config).await.is_err() {
        SystemClock.sleep(Duration::from_millis(50)).await;
    }
    let stop = CancellationToken::new();
    let (first, second) = (start(&config, &stop).await?, start(&config, &stop).await?);
    for pass in 1..=passes {
        let cycle = uncontended(&first).await?;
        println!("pass {pass}; uncontended acquire and release: {cycle:?} (median of {UNCONTENDED})");
        println!("{:>8} {:>10}  {:>22}  {:>22}", "waiters", "instances", "median (cycles)", "p99 (cycles)");
        for waiters in WAITERS {
            let (gaps, _) = contended(waiters, turns, &[&first], pass).await?;
            report(waiters, "one", cycle, gaps);
            let (_, changes) = contended(waiters, turns, &[&first, &second], pass).await?;
            report(waiters, "across two", cycle, changes);
        }
        for workers in PEERS {
            peer("rslock", "target/peers/release/peers", &[], workers, &plain);
            peer("redlock-py", "target/venv/bin/python3", &["benches/peers/redlock_py.py"], workers, &plain);
        }
    }
    stop.cancel();
    Ok(())
}

/// Another library under the same load, as multiples of its own uncontended cycle.
fn peer(name: &str, program: &str, script: &[&str], workers: usize, urls: &[String]) {
    let (count, turns) = (workers.to_string(), PEER_TURNS.to_string());
    let output = Command::new(program).args(script).args([count, turns]).args(urls).output();
    let output = match output {
        Ok(output) if output.status.success() => output,
        _ => return println!("{name}: not installed"),
    };
    let text = String::from_utf8_lossy(&output.stdout);
    let us: Vec<u64> = text.split_whitespace().filter_map(|word| word.parse().ok()).collect();
    let [median, p99, count, cycle] = us[..] else { return println!("{name}: {text}") };
    let shown = |us: u64| format!("{:.2?} ({:.1})", Duration::from_micros(us), us as f64 / cycle as f64);
    println!("{workers:>8} {name:>10}  {:>22}  {:>22}  n={count}", shown(median), shown(p99));
}

fn start_servers() -> Result<(Servers, Vec<String>), Failure> {
    let (mut servers, mut urls) = (Servers(Vec::new()), Vec::new());
    for i in 0..NODES {
        let port = TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
        let args = ["--port", &port.to_string(), "--bind", "127.0.0.1", "--save", "", "--appendonly", "no"];
        servers.0.push(Command::new("redis-server").args(args).stdout(Stdio::null()).spawn()?);
        urls.push(format!("n{i}=redis://127.0.0.1:{port}"));
    }
    Ok((servers, urls))
}

fn config(nodes: Vec<String>) -> Result<Config, Failure> {
    let flag = |key: &str, value: &str| (key.to_owned(), value.to_owned());
    let flags = vec![flag("listen", "127.0.0.1:0"), flag("waiters_per_resource", "2000")];
    let loaded = Inputs { flags, nodes, ..Inputs::default() }.load(&ProcessEnvironment);
    Ok(loaded.map_err(|errors| format!("{errors:?}"))?.config)
}

async fn start(config: &Config, stop: &CancellationToken) -> Result<String, Failure> {
    let app = App::start(config).await?;
    let url = format!("http://{}/locks/", app.address()?);
    let stop = stop.clone();
    tokio::spawn(async move { app.run(stop).await });
    Ok(url)
}

async fn acquire(client: &Client, url: &str) -> Result<String, Failure> {
    let form = [("ttl", "30s"), ("wait", "5m")];
    let answer = client.post(url).form(&form).header("accept", "text/plain").send().await?.error_for_status()?;
    Ok(answer.text().await?.trim().to_owned())
}

async fn release(client: &Client, url: &str, token: &str) -> Result<(), Failure> {
    client.delete(url).header("lock-token", token).send().await?.error_for_status()?;
    Ok(())
}

async fn uncontended(base: &str) -> Result<Duration, Failure> {
    let (client, mut took) = (Client::new(), Vec::new());
    for i in 0..UNCONTENDED {
        let url = format!("{base}free-{}", i % 10);
        let started = SystemClock.now();
        let token = acquire(&client, &url).await?;
        release(&client, &url, &token).await?;
        took.push(SystemClock.now().since(started));
    }
    took.sort_unstable();
    Ok(took[took.len() / 2])
}

/// Shared by the workers.
#[derive(Default)]
struct Race {
    turns: AtomicUsize,
    released_ns: AtomicU64,
    /// The instance of the last holder.
    by: AtomicUsize,
    gaps: Mutex<(Vec<Duration>, Vec<Duration>)>,
}

/// All gaps, and those in which the lock went to another instance.
async fn contended(
    waiters: usize,
    turns: usize,
    bases: &[&String],
    pass: usize,
) -> Result<(Vec<Duration>, Vec<Duration>), Failure> {
    let race = Arc::new(Race::default());
    let turns = turns.max(waiters * 2);
    let origin = SystemClock.now();
    let mut workers = Vec::new();
    for i in 0..waiters {
        let (at, race, client) = (i % bases.len(), Arc::clone(&race), Client::new());
        let url = format!("{}busy-{waiters}-{}-{pass}", bases[at], bases.len());
        workers.push(tokio::spawn(work(race, client, url, at, turns, origin)));
    }
    for worker in workers {
        worker.await??;
    }
    let mut gaps = race.gaps.lock();
    // The first quarter is left out: workers are still starting.
    let settled = |list: &mut Vec<Duration>| list.split_off(list.len() / 4);
    Ok((settled(&mut gaps.0), settled(&mut gaps.1)))
}

async fn work(
    race: Arc<Race>,
    client: Client,
    url: String,
    at: usize,
    turns: usize,
    origin: BootTime,
) -> Result<(), Failure> {
    while race.turns.load(Ordering::Relaxed) < turns {
        let token = acquire(&client, &url).await?;
        let now = SystemClock.now().since(origin);
        let released = race.released_ns.swap(0, Ordering::Relaxed);
        if released > 0 {
            let gap = now.saturating_sub(Duration::from_nanos(released));
            let mut gaps = race.gaps.lock();
            gaps.0.push(gap);
            if race.by.load(Ordering::Relaxed) != at {
                gaps.1.push(gap);
            }
        }
        SystemClock.sleep(HOLD).await;
        race.turns.fetch_add(1, Ordering::Relaxed);
        race.by.store(at, Ordering::Relaxed);
        let now = SystemClock.now().since(origin).as_nanos();
        race.released_ns.store(u64::try_from(now).unwrap_or(u64::MAX), Ordering::Relaxed);
        release(&client, &url, &token).await?;
    }
    Ok(())
}

fn report(waiters: usize, instances: &str, cycle: Duration, mut gaps: Vec<Duration>) {
    gaps.sort_unstable();
    let Some(last) = gaps.len().checked_sub(1) else { return };
    let shown = |at: usize| {
        let gap = gaps[at.min(last)];
        format!("{gap:.2?} ({:.2})", gap.as_secs_f64() / cycle.as_secs_f64())
    };
    println!("{waiters:>8} {instances:>10}  {:>22}  {:>22}  n={}", shown(last / 2), shown(last * 99 / 100), gaps.len());
}
