//! The floors: what the same nodes can do for a client in this process, without HTTP. Plain: `SET NX PX`
//! and compare-and-delete. Script: the service's own scripts, packed by its own code.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::{Duration, Instant};

use redlockd::nodes::keys::KeyTemplate;
use redlockd::nodes::scripts::{self, By, Told};
use redlockd::redlock::entropy::{Entropy, SystemEntropy};
use redlockd::redlock::node::{EndReason, Request, Stamp, Terms};
use redlockd::redlock::types::{ResourceName, Ttl};
use tokio::task::LocalSet;

use crate::Failure;
use crate::lane::Lanes;
use crate::servers::Nodes;
use crate::stats::Run;

/// TTL of every lease here.
const TTL_MS: u64 = 30_000;
const COMPARE_AND_DELETE: &str =
    "if redis.call('get',KEYS[1])==ARGV[1] then return redis.call('del',KEYS[1]) else return 0 end";

/// `cycle(number)` again and again by so many at once; it tells whether it succeeded.
pub async fn repeat<F: Future<Output = bool> + 'static>(
    crowd: usize,
    length: Duration,
    cycle: impl Fn(usize, u64) -> F + 'static,
) -> Result<Run, Failure> {
    let (cycle, took) = (Rc::new(cycle), Rc::new(RefCell::new(Vec::new())));
    let errors = Rc::new(Cell::new(0));
    let begun = Instant::now();
    let workers: Vec<_> = (0..crowd)
        .map(|who| {
            let (cycle, took, errors) = (Rc::clone(&cycle), Rc::clone(&took), Rc::clone(&errors));
            tokio::task::spawn_local(async move {
                let mut number = 0;
                while begun.elapsed() < length {
                    let started = Instant::now();
                    match cycle(who, number).await {
                        true => took.borrow_mut().push(started.elapsed()),
                        false => errors.set(errors.get() + 1),
                    }
                    number += 1;
                }
            })
        })
        .collect();
    for worker in workers {
        worker.await?;
    }
    let lasted = begun.elapsed();
    let took = std::mem::take(&mut *took.borrow_mut());
    Ok(Run::new(took, lasted, errors.get()))
}

/// `SET NX PX`, then compare-and-delete.
pub async fn plain(nodes: &Nodes, crowd: usize, length: Duration) -> Result<Run, Failure> {
    let sha = redis::Script::new(COMPARE_AND_DELETE).get_hash().to_owned();
    nodes.load(COMPARE_AND_DELETE).await?;
    let local = LocalSet::new();
    local
        .run_until(async {
            let lanes = Rc::new(Lanes::connect(&nodes.addresses).await?);
            repeat(crowd, length, move |who, number| {
                let (lanes, sha) = (Rc::clone(&lanes), sha.clone());
                async move {
                    let (key, value) = (format!("plain-{who}-{number}"), SystemEntropy.token());
                    let set = redis::cmd("SET")
                        .arg(&key)
                        .arg(value.reveal())
                        .arg("NX")
                        .arg("PX")
                        .arg(TTL_MS)
                        .get_packed_command();
                    if !lanes.ask(|_, queue| queue.extend_from_slice(&set)).await {
                        return false;
                    }
                    let delete =
                        redis::cmd("EVALSHA").arg(&sha).arg(1).arg(&key).arg(value.reveal()).get_packed_command();
                    lanes.ask(|_, queue| queue.extend_from_slice(&delete)).await
                }
            })
            .await
        })
        .await
}

/// What the script floor asks.
struct Script {
    terms: Terms,
    template: KeyTemplate,
}

impl Script {
    fn new() -> Self {
        let terms = Terms {
            cluster: String::new().into(), // stands in the pass
            guard: Duration::from_millis(500),
            lock_delay: Duration::from_secs(1),
            quarantine: Duration::ZERO, // stands in the pass
            fence_ttl: Duration::from_secs(3_600),
        };
        Self { terms, template: KeyTemplate::default() }
    }

    /// An acquire and its release.
    fn requests(name: &str) -> [Request; 2] {
        let resource = ResourceName::parse(name).expect("a name");
        let token = SystemEntropy.token().hash();
        let release =
            Request::Release { resource: resource.clone(), token: token.clone(), reason: EndReason::Released };
        let attempt = SystemEntropy.attempt();
        let ttl = Ttl::from_ms(TTL_MS).expect("in range");
        [Request::Acquire { resource, token, attempt, ttl, labels: "{}".into() }, release]
    }

    fn pack(&self, request: &Request, pass: &str) -> redis::Cmd {
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
        let stamp = Stamp(u64::try_from(now.as_micros()).unwrap_or(0));
        let told = Told { terms: &self.terms, template: &self.template, pass, stamp };
        scripts::command(&told, request, By::Sha)
    }
}

/// The service's acquire and release scripts, without anything around them.
pub async fn script(nodes: &Nodes, crowd: usize, length: Duration) -> Result<Run, Failure> {
    let (passes, script) = (Rc::new(nodes.passes().await?), Rc::new(Script::new()));
    let local = LocalSet::new();
    local
        .run_until(async {
            let lanes = Rc::new(Lanes::connect(&nodes.addresses).await?);
            repeat(crowd, length, move |who, number| {
                let (lanes, passes, script) = (Rc::clone(&lanes), Rc::clone(&passes), Rc::clone(&script));
                async move {
                    for request in Script::requests(&format!("script-{who}-{number}")) {
                        let pack = |at: usize, queue: &mut Vec<u8>| {
                            queue.extend_from_slice(&script.pack(&request, &passes[at]).get_packed_command());
                        };
                        if !lanes.ask(pack).await {
                            return false;
                        }
                    }
                    true
                }
            })
            .await
        })
        .await
}

/// So many calls of each kind, for one node: `SET NX PX`, compare-and-delete of it, acquire, release of it.
pub fn calls(pass: &str, count: usize) -> [(&'static str, Vec<redis::Cmd>); 4] {
    let script = Script::new();
    let sha = redis::Script::new(COMPARE_AND_DELETE).get_hash().to_owned();
    let (mut sets, mut deletes, mut acquires, mut releases) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    for number in 0..count {
        let (key, value) = (format!("cost-{number}"), SystemEntropy.token());
        let mut set = redis::cmd("SET");
        set.arg(&key).arg(value.reveal()).arg("NX").arg("PX").arg(TTL_MS);
        let mut delete = redis::cmd("EVALSHA");
        delete.arg(&sha).arg(1).arg(&key).arg(value.reveal());
        let [acquire, release] = Script::requests(&format!("cost/{number}"));
        sets.push(set);
        deletes.push(delete);
        acquires.push(script.pack(&acquire, pass));
        releases.push(script.pack(&release, pass));
    }
    [("SET NX PX", sets), ("compare-and-delete", deletes), ("acquire", acquires), ("release", releases)]
}
