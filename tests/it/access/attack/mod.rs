//! The roles of docs/threat-model.md, played by script: each attacks a service at random, from a seed, for a bounded
//! time, beside another caller that must be served. `make attack SECONDS=3600 SEED=1` plays each for an hour;
//! `REDLOCKD_ATTACK_FROM=N` begins with the attack of that number.

mod browser;
mod caller;
mod neighbour;
mod network;
mod node;
mod principal;

use std::collections::BTreeMap;
use std::future::Future;
use std::time::Duration;

use futures_util::future::join_all;
use redlockd::redlock::clock::{Clock, SystemClock};
use redlockd::redlock::random::Entropy;

use reqwest::RequestBuilder;
use rustix::process::{Pid, getpid};

use super::hostile_redis::memory_mib;
use super::{Access, entry, key};
use crate::support::client::{Answer, Client, try_send};
use crate::support::poll;
use crate::support::seeded::Seeded;
use crate::support::service::Service;

/// How long each role is played in the ordinary run; `REDLOCKD_ATTACK_SECONDS` has another number.
const SECONDS: u64 = 2;
/// Attacks at a time.
const AT_ONCE: u64 = 8;
/// Longer than another caller may wait for an answer, beside the time in which the service or this process was ready to run and the
/// machine ran something else.
const SERVED_WITHIN: Duration = Duration::from_secs(60);
/// After this time an attack has [`NO_ANSWER`].
const ATTACK_WITHIN: Duration = Duration::from_secs(60);
/// How often a long run says how far it is.
const REPORT_INTERVAL: Duration = Duration::from_mins(5);
/// The service under test takes some 25 MiB.
const MEMORY_MAX_MIB: u64 = 96;

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok().and_then(|number| number.parse().ok())
}

/// What an attack came to that got no answer: the machine ran something else, or the connection was closed. [`Stage::play`] bounds
/// how many do.
const NO_ANSWER: &str = "no answer";

/// The other caller, and its lock, of which no attacker may learn anything.
pub(super) const CALM: &str = "calm";
const CALM_LOCK: &str = "calm/held";
const CALM_OWNER: &str = "calm-owner-label";

/// The principals `calm` and `mallory`.
fn principals(rules_of_mallory: &[&str]) -> String {
    entry(CALM, &[&key(CALM)], &["acquire:calm/*"], "")
        + &entry(
            "mallory",
            &[&key("mallory")],
            rules_of_mallory,
            "requests_per_second = 1000000\nleases = 40\nwaiters = 20",
        )
}

/// A service under attack, and the caller beside it.
struct Stage {
    client: Client,
    service: Pid,
    /// Of the caller's long lease.
    token: String,
    secrets: Vec<String>,
}

impl Stage {
    /// Acquires the caller's long lease.
    async fn of(client: &Client, service: Pid) -> Self {
        let fields = [("ttl", "5m"), ("owner", CALM_OWNER)];
        let request = || client.request("POST", &format!("/locks/{CALM_LOCK}")).form(&fields);
        let held = answered(service, request).await.expect_status(201);
        let id = held.json()["token_id"].as_str().expect("an id").to_owned();
        let secrets = vec![held.token(), id, held.fence().to_string(), CALM_OWNER.to_owned(), key(CALM)];
        Self { client: client.clone(), service, token: held.token(), secrets }
    }

    /// Renews the long lease, and acquires and releases another lock; how long that took.
    async fn serve_other_caller(&self) -> Duration {
        let began = SystemClock.now();
        let path = format!("/locks/{CALM_LOCK}");
        let renewal = || self.client.request("PATCH", &path).header("Lock-Token", &self.token);
        answered(self.service, renewal).await.expect_status(200);
        let acquire = || self.client.request("POST", "/locks/calm/other");
        let token = answered(self.service, acquire).await.expect_status(201).token();
        let release = || self.client.request("DELETE", "/locks/calm/other").header("Lock-Token", &token);
        let released = answered(self.service, release).await;
        // Where the first answer was 503, the second one is that it was released.
        assert!(matches!(released.status, 204 | 410), "{released:?}");
        SystemClock.now().since(began)
    }

    /// Panics where this text has something of the other caller's.
    fn assert_hides(&self, what: &str, text: &str) {
        for secret in &self.secrets {
            assert!(!text.contains(secret.as_str()), "{what} shows {secret}: {text}");
        }
    }

    /// Panics for an answer that no attack may cause: an error of the service, or something of the other caller's.
    /// Returns what [`play`] counts.
    fn check(&self, what: &str, answer: &Answer) -> String {
        self.assert_hides(what, &format!("{:?} {}", answer.headers, answer.text));
        let is_late = answer.status == 503 && answer.slug() == "quorum-unavailable";
        assert!(answer.status < 500 || answer.status == 501 || is_late, "{what}: {answer:?}");
        answer.status.to_string()
    }

    /// Attacks [`AT_ONCE`] at a time until the time is over, with the other caller beside each batch. `attack` returns a
    /// word for what came of it, which is counted.
    #[expect(clippy::print_stdout, reason = "figures of a run by hand")]
    async fn play<F: Future<Output = String>>(&self, role: &str, attack: impl Fn(Seeded) -> F) {
        let (seconds, seed) = (number("REDLOCKD_ATTACK_SECONDS"), number("REDLOCKD_ATTACK_SEED").unwrap_or(1));
        let end = SystemClock.now().plus(Duration::from_secs(seconds.unwrap_or(SECONDS)));
        let mut attacks = number("REDLOCKD_ATTACK_FROM").unwrap_or(0);
        let (mut words, mut took) = (BTreeMap::<String, u64>::new(), Vec::new());
        let mut report_at = SystemClock.now().plus(REPORT_INTERVAL);
        while SystemClock.now() < end {
            let batch = (attacks..attacks + AT_ONCE).map(|stream| {
                let attack = tokio::time::timeout(ATTACK_WITHIN, attack(Seeded::new(seed, stream)));
                async move { attack.await.unwrap_or_else(|_| NO_ANSWER.to_owned()) }
            });
            let (came, served) = tokio::join!(join_all(batch), self.serve_other_caller());
            attacks += AT_ONCE;
            if SystemClock.now() >= report_at {
                println!("{role}: {attacks} attacks so far");
                report_at = report_at.plus(REPORT_INTERVAL);
            }
            came.into_iter().for_each(|word| *words.entry(word).or_default() += 1);
            took.push(served);
        }
        took.sort_unstable();
        let (median, most) = (took[took.len() / 2], took[took.len() - 1]);
        if seconds.is_some() {
            println!("{role}: {attacks} attacks, {words:?}; another caller took {median:?}, at most {most:?}");
        }
        let unanswered = words.get(NO_ANSWER).copied().unwrap_or_default();
        assert!(unanswered <= 1 + attacks / 100, "{role}: {unanswered} of {attacks} attacks got no answer");
        assert!(words.len() > 1, "{role}: every attack had the same end: {words:?}");
    }
}

/// Whether a lock is refused for what a node holds that has not received a release: another node is out of reach, and cannot say more.
fn is_left_on_a_node(refused: &Answer) -> bool {
    let outcomes = refused.json()["nodes"].as_array().cloned().unwrap_or_default();
    outcomes.iter().any(|node| !["held", "granted"].contains(&node["outcome"].as_str().unwrap_or_default()))
}

/// The other caller's answer. A node may be late on a machine that is busy otherwise, and a connection that was idle for long may
/// be closed just as it is used again: who is refused for that, or for what an acquire without an answer left behind, asks again.
async fn answered(service: Pid, request: impl Fn() -> RequestBuilder) -> Answer {
    // A machine that runs something else delays both ends; a service that hangs is not ready to run.
    let delay = || run_delay(service) + run_delay(getpid());
    let (began, delayed) = (SystemClock.now(), delay());
    let is_over = || SystemClock.now().since(began) > SERVED_WITHIN + delay().saturating_sub(delayed);
    poll::until_over("another caller is served", is_over, || async {
        let answer = try_send(request().timeout(SERVED_WITHIN).bearer_auth(key(CALM))).await.ok()?;
        let is_left_over =
            answer.status == 423 && (answer.json()["reason"] == "lock-delay" || is_left_on_a_node(&answer));
        (answer.status != 503 && !is_left_over).then_some(answer)
    })
    .await
}

/// For how long threads of a process were ready to run and did not.
/// Source: `schedstat` in proc(5) and the kernel's Documentation/scheduler/sched-stats.rst: nanoseconds.
fn run_delay(process: Pid) -> Duration {
    let tasks = std::fs::read_dir(format!("/proc/{}/task", process.as_raw_nonzero()));
    let statistics = tasks
        .into_iter()
        .flatten()
        .filter_map(|task| std::fs::read_to_string(task.ok()?.path().join("schedstat")).ok());
    let delays = statistics.filter_map(|text| text.split(' ').nth(1)?.parse::<u64>().ok());
    Duration::from_nanos(delays.sum())
}

/// Panics where the service has panicked or grown.
#[expect(clippy::print_stdout, reason = "figures of a run by hand")]
fn assert_sound(role: &str, service: &Service) {
    let output = service.output();
    assert!(!output.iter().any(|line| line.contains("panicked")), "{role}: {output:#?}");
    let most = memory_mib(service.pid(), "VmHWM");
    assert!(most < MEMORY_MAX_MIB, "{role}: {most} MiB");
    if number("REDLOCKD_ATTACK_SECONDS").is_some() {
        println!("{role}: at most {most} MiB");
    }
}

/// Up to so many random changes of bytes: another one, one more, one less, a part twice, the end missing.
fn mutated(random: &Seeded, bytes: &[u8], changes: u64) -> Vec<u8> {
    let mut bytes = bytes.to_vec();
    for _ in 0..random.below(changes + 1) {
        let at = usize::try_from(random.below(bytes.len().max(1) as u64)).expect("an index");
        match random.below(5) {
            _ if bytes.is_empty() => bytes.push(0),
            0 => bytes[at] = random.bits().to_le_bytes()[0],
            1 => bytes.insert(at, *random.pick(b"\r\n \t:;,%/\0\xff\"{}[]0a")),
            2 => drop(bytes.remove(at)),
            3 => {
                let part = bytes[at..bytes.len().min(at + 64)].to_vec();
                bytes.splice(at..at, part);
            }
            _ => bytes.truncate(at),
        }
    }
    bytes
}
