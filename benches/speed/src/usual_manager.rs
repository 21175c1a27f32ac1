//! What a lock manager takes if it is built of the usual crates: a channel and a future for the answer of each node, a time-out, a
//! map of leases, a broadcast of events, a histogram. Its five nodes grant at once. It has no queue, cleans up nothing that failed,
//! and asks in no view.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant, SystemTime};

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use prometheus::{HistogramOpts, HistogramVec};
use sha2::{Digest, Sha256};
use tokio::sync::{broadcast, oneshot};

use crate::Failure;
use crate::servers::NODES;
use crate::stats::Run;
use crate::workers::{Until, repeat};

const QUORUM: usize = NODES / 2 + 1;
const TTL: Duration = Duration::from_secs(30);
const NODE_TIMEOUT: Duration = Duration::from_secs(10);
const NAME_MAX: usize = 200;

#[derive(Clone, Copy)]
#[expect(dead_code, reason = "a node would read them")]
enum Operation {
    Acquire { attempt: u64, ttl: Duration },
    Release,
}

#[expect(dead_code, reason = "a node would read them")]
struct Request {
    resource: String,
    token: String,
    sent_at: SystemTime,
    operation: Operation,
}

enum Reply {
    Granted { fence: u64 },
    Released,
}

#[expect(dead_code, reason = "a page would show them")]
struct Lease {
    token: String,
    owner: String,
    fence: u64,
    granted_at: SystemTime,
    expires_at: Instant,
}

#[derive(Clone)]
#[expect(dead_code, reason = "a page would show them")]
struct Event {
    kind: &'static str,
    resource: String,
    owner: String,
    fence: u64,
    at: SystemTime,
}

/// A node that grants and releases whatever it is asked to, at once.
#[derive(Default)]
struct GrantsAtOnce {
    fence: AtomicU64,
}

impl GrantsAtOnce {
    fn hand_over(&self, request: &Arc<Request>, answer: oneshot::Sender<Reply>) {
        let reply = match request.operation {
            Operation::Acquire { .. } => Reply::Granted { fence: self.fence.fetch_add(1, Ordering::Relaxed) + 1 },
            Operation::Release => Reply::Released,
        };
        // Fails if nobody waits any more.
        let _ = answer.send(reply);
    }
}

struct Manager {
    nodes: [GrantsAtOnce; NODES],
    leases: Mutex<HashMap<String, Lease>>,
    events: broadcast::Sender<Event>,
    times: HistogramVec,
}

/// Acquires and releases, each of a name of its own.
///
/// Errors: none but those of the workers; cycles that fail are counted.
pub async fn cycles(connections: usize, until: Until) -> Result<Run, Failure> {
    let times = HistogramOpts::new("seconds", "Operations").buckets(prometheus::exponential_buckets(0.0001, 2.0, 18)?);
    let times = HistogramVec::new(times, &["operation", "result"])?;
    let (events, nodes, leases) = (broadcast::Sender::new(1_024), Default::default(), Mutex::default());
    let manager = Arc::new(Manager { nodes, leases, events, times });
    let run: u64 = rand::random();
    let cycle = async move |manager: &mut Arc<Manager>, number| {
        let resource = format!("within-{run:x}-{number}");
        let done = match manager.acquire(&resource, "").await {
            Some(token) => manager.release(&resource, &token).await,
            None => false,
        };
        tokio::task::yield_now().await;
        done
    };
    repeat(vec![manager; connections], until, cycle).await
}

impl Manager {
    /// The token of the lease.
    async fn acquire(&self, resource: &str, owner: &str) -> Option<String> {
        let (begun, granted_at) = (Instant::now(), SystemTime::now());
        let token = URL_SAFE_NO_PAD.encode(rand::random::<[u8; 24]>());
        let operation = Operation::Acquire { attempt: rand::random(), ttl: TTL };
        let fence = self.ask(resource, &token, operation).await?;
        let (drift, took) = (TTL / 100 + Duration::from_millis(2), begun.elapsed());
        let expires_at = begun + TTL.checked_sub(took + drift)?;
        let lease = Lease { token: token.clone(), owner: owner.to_owned(), fence, granted_at, expires_at };
        self.leases.lock().expect("no panic").insert(resource.to_owned(), lease);
        self.done(("acquire", "granted"), resource, (owner, fence), begun);
        Some(token)
    }

    async fn release(&self, resource: &str, token: &str) -> bool {
        let begun = Instant::now();
        let is_released = self.ask(resource, token, Operation::Release).await.is_some();
        let lease = self.leases.lock().expect("no panic").remove(resource);
        let Some(lease) = lease.filter(|lease| lease.token == token) else { return false };
        self.done(("release", "released"), resource, (&lease.owner, lease.fence), begun);
        is_released
    }

    /// Asks all nodes; the highest fence once a quorum has said yes.
    async fn ask(&self, resource: &str, token: &str, operation: Operation) -> Option<u64> {
        let is_name = resource.len() <= NAME_MAX && resource.bytes().all(|b| b.is_ascii_graphic());
        let token = hex::encode(Sha256::digest(token));
        let resource = Some(resource.to_owned()).filter(|_| is_name)?;
        let request = Arc::new(Request { resource, token, sent_at: SystemTime::now(), operation });
        let mut calls = FuturesUnordered::new();
        for node in &self.nodes {
            let (answer, call) = oneshot::channel();
            node.hand_over(&request, answer);
            calls.push(call);
        }
        let (mut yes, mut fence) = (0, 0);
        let count = async {
            while let Some(answer) = calls.next().await {
                match answer {
                    Ok(Reply::Granted { fence: given }) => (yes, fence) = (yes + 1, given.max(fence)),
                    Ok(Reply::Released) => yes += 1,
                    Err(_) => {}
                }
                if yes >= QUORUM {
                    return Some(fence);
                }
            }
            None
        };
        tokio::time::timeout(NODE_TIMEOUT, count).await.ok().flatten()
    }

    fn done(&self, labels: (&'static str, &'static str), resource: &str, (owner, fence): (&str, u64), begun: Instant) {
        let (resource, owner) = (resource.to_owned(), owner.to_owned());
        // Fails if nobody looks.
        let _ = self.events.send(Event { kind: labels.1, resource, owner, fence, at: SystemTime::now() });
        self.times.with_label_values(&[labels.0, labels.1]).observe(begun.elapsed().as_secs_f64());
    }
}
