//! `make bench-parts`: instructions of each part of the service alone, beside those of the whole. HTTP server and HTTP layer are
//! counted as servers of their own; the other parts are done by this very program, without HTTP:
//!
//! - `load`: the workers of all others, with cycles that do nothing; subtracted.
//! - `turns`: the same, where a cycle gives up its turn, as those of the manager do; subtracted from these.
//! - `manager`: manager and rounds, over five nodes in this process that grant at once.
//! - `nodes`: the connections to five Redis nodes with the service's metrics of them: a request to all, and a quorum of answers.
//! - `floor`: the same requests by the fastest client of these nodes that we know.
//! - `locks`: manager, rounds and connections together, without HTTP.
//! - `embedded`: manager and rounds over one embedded node.
//!
//! An HTTP layer and a manager of the usual crates are counted too ([`crate::usual_service`], [`crate::usual_manager`]).

use std::collections::VecDeque;
use std::future::{Future, poll_fn};
use std::net::SocketAddr;
use std::process::Command;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::task::Poll;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use redlockd::metrics::Metrics;
use redlockd::nodes::call_observer::NodeObserver;
use redlockd::nodes::embedded::EmbeddedNode;
use redlockd::nodes::redis::{NodeUrl, RedisNode, RedisNodeConfig};
use redlockd::protocol::{Found, NodeResult, Released, Reply, Request, RequestStamp, RequestTime, View};
use redlockd::redlock::answers::{AnswerSlot, Answers};
use redlockd::redlock::clock::{Clock, SystemClock};
use redlockd::redlock::node::Node;
use redlockd::redlock::random::SystemEntropy;
use redlockd::types::{Fence, NodeId, TokenHash};

use crate::floor::{self, Script};
use crate::in_process::{Patience, Within, embedded};
use crate::servers::{Directory, NODES, Nodes, Server, fingerprints};
use crate::service_cost::{
    CONNECTION_COUNTS, COUNTS, LONG, SHORT, Subject, cycle_by_valgrind, idle_by_valgrind, per_cycle, total_of,
};
use crate::workers::{Until, repeat};
use crate::{Asked, Failure, usual_manager};

const PATIENCE: Patience = Patience::UNDER_VALGRIND;
const QUORUM: usize = NODES / 2 + 1;
/// How long the nodes may take until they are connected.
const CONNECT: Duration = Duration::from_secs(60);

/// Counts everything.
///
/// Errors: where a server does not start, `valgrind` is missing or a cycle fails.
pub async fn run(asked: &Asked) -> Result<(), Failure> {
    let this = std::env::current_exe()?;
    let (service, on_embedded) = (Subject::Service(&asked.binary), Subject::Embedded(&asked.binary));
    let (idle, idle_embedded) = (idle_by_valgrind(service).await?, idle_by_valgrind(on_embedded).await?);
    for connections in CONNECTION_COUNTS {
        let whole = cycle_by_valgrind(service, connections, idle).await?;
        let bare = cycle_by_valgrind(Subject::Bare(&this), connections, 0.0).await?;
        let usual = cycle_by_valgrind(Subject::Usual(&this), connections, 0.0).await?;
        let (load, turns) = (part("load", connections).await?, part("turns", connections).await?);
        let within = part("embedded", connections).await? - turns;
        let http = cycle_by_valgrind(on_embedded, connections, idle_embedded).await? - within - bare;
        let (manager, nodes) = (part("manager", connections).await? - turns, part("nodes", connections).await? - load);
        let locks = part("locks", connections).await? - turns;
        let floor = part("floor", connections).await? - load;
        let usual_manager = part("usual-manager", connections).await? - turns;
        let named = bare + http + manager + nodes;
        println!("\n| instructions per cycle, alone | at {connections} | of the whole |\n|---|---:|---:|");
        for (what, count) in [
            ("the service over five Redis nodes", whole),
            ("a bare HTTP endpoint", bare),
            (
                "what HTTP takes beyond it (the service on an embedded node, without its manager and the bare endpoint)",
                http,
            ),
            ("manager and rounds, over five nodes that grant at once", manager),
            ("connections to five Redis nodes", nodes),
            ("the sum of the four parts", named),
            ("an endpoint with the same answers and duties of usual crates, instead of the first two", usual),
            (
                "a manager of usual crates, over five nodes that grant at once, instead of manager and rounds",
                usual_manager,
            ),
            ("manager, rounds and connections together", locks),
            ("the fastest client of five Redis nodes, instead of the connections", floor),
        ] {
            println!("| {what} | {count:.0} | {:.1} % |", 100.0 * count / whole);
        }
    }
    Ok(())
}

/// Instructions per cycle of a part that this program does.
async fn part(name: &str, connections: usize) -> Result<f64, Failure> {
    let mut totals = [0.0; 2];
    for (total, cycles) in totals.iter_mut().zip([SHORT, LONG]) {
        let (data, nodes) = (Directory::new()?, Nodes::start().await?);
        let file = data.0.join("counts");
        let words = COUNTS.map(|word| word.replace("FILE", &file.display().to_string()));
        let mut command = Command::new(&words[0]);
        command.args(&words[1..]).arg(std::env::current_exe()?).args(["part", name]);
        command
            .args([connections.to_string(), cycles.to_string()])
            .args(nodes.addresses.iter().map(ToString::to_string));
        let mut server = Server(command.spawn()?);
        let status = loop {
            match server.0.try_wait()? {
                Some(status) => break status,
                None => tokio::time::sleep(Duration::from_millis(50)).await,
            }
        };
        if !status.success() {
            return Err(format!("{name} failed").into());
        }
        *total = total_of(&std::fs::read_to_string(&file)?).ok_or_else(|| format!("{name} was not counted"))?;
    }
    Ok(per_cycle(totals[0], totals[1]))
}

/// Does so many cycles of a part: `redlockd-speed part NAME CONNECTIONS CYCLES [NODE]…`.
///
/// Errors: an unknown part, and cycles that fail.
pub async fn do_part(args: &[String]) -> Result<(), Failure> {
    let [part, connections, cycles, addresses @ ..] = args else {
        return Err("part NAME CONNECTIONS CYCLES [NODE]…".into());
    };
    let (connections, until) = (connections.parse()?, Until::Cycles(cycles.parse()?));
    let run = match part.as_str() {
        "load" => repeat(vec![(); connections], until, async |(), _| true).await?,
        "turns" => {
            let cycle = async |(): &mut (), _| {
                tokio::task::yield_now().await;
                true
            };
            repeat(vec![(); connections], until, cycle).await?
        }
        "manager" => {
            let data = Directory::new()?;
            let node = |number| {
                Ok(Arc::new(GrantsAtOnce { probed: embedded(number, PATIENCE, &data)?, fence: AtomicU64::new(0) }))
            };
            let nodes = (1..=NODES).map(node).collect::<Result<_, Failure>>()?;
            Within::over(nodes, PATIENCE, data, false).await?.cycles(connections, until).await?
        }
        "usual-manager" => usual_manager::cycles(connections, until).await?,
        "embedded" => Within::start(PATIENCE).await?.cycles(connections, until).await?,
        "locks" => {
            let (nodes, _) = watched(addresses).await?;
            Within::over(nodes, PATIENCE, Directory::new()?, true).await?.cycles(connections, until).await?
        }
        "nodes" => {
            let (nodes, view) = watched(addresses).await?;
            let locks = Within::over(nodes.clone(), PATIENCE, Directory::new()?, true).await?;
            locks.cycles(1, Until::Cycles(1)).await?;
            let view = Arc::clone(view.get().ok_or("no request was sent to a node")?);
            let cycle = async move |(): &mut (), number| {
                for request in requests(number) {
                    if !ask(&nodes, &view, request).await {
                        return false;
                    }
                }
                true
            };
            repeat(vec![(); connections], until, cycle).await?
        }
        "floor" => {
            let (nodes, _) = watched(addresses).await?;
            let _voting = Within::over(nodes, PATIENCE, Directory::new()?, true).await?;
            let addresses = addresses.iter().map(|address| address.parse()).collect::<Result<Vec<_>, _>>()?;
            floor::script(&addresses, fingerprints(&addresses)?, connections, until, requests).await?
        }
        _ => return Err(format!("no part is called {part}").into()),
    };
    match run.errors {
        0 => Ok(()),
        errors => Err(format!("{part}: {errors} cycles failed").into()),
    }
}

/// The requests of a cycle. Tokens are not drawn or hashed: that is the manager's part.
fn requests(number: u64) -> [Request; 2] {
    let name = format!("nodes-{number}");
    let mut digits = "0".repeat(64);
    digits.replace_range(64 - (name.len() - 6).., &name[6..]);
    Script::requests_with(&name, TokenHash::parse(&digits).expect("64 digits"))
}

/// Hands a request to all nodes. Returns whether a quorum granted or released.
async fn ask(nodes: &[Arc<Watched>], view: &Arc<View>, request: Request) -> bool {
    let (now, wall) = (SystemClock.now(), SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default());
    let sent_at = RequestTime(u64::try_from(wall.as_micros()).unwrap_or(0));
    let stamp = RequestStamp::new(sent_at, Arc::clone(view));
    let answers = Answers::new(stamp, Arc::new(request), now.plus(PATIENCE.node_timeout), nodes.len());
    for (index, node) in nodes.iter().enumerate() {
        answers.ask(index, now, |slot| node.hand_over(slot));
    }
    let (mut arrived, mut yes, mut missing) = (VecDeque::new(), 0, u64::MAX);
    while yes < QUORUM && missing > 0 {
        missing = poll_fn(|cx| match answers.poll_take(cx, QUORUM - yes, &mut arrived) {
            missing if arrived.is_empty() && missing > 0 => Poll::Pending,
            missing => Poll::Ready(missing),
        })
        .await;
        let is_yes = |answer: &NodeResult| matches!(answer, Ok(Reply::Granted { .. } | Reply::Released(_)));
        yes += arrived.drain(..).filter(|(_, answer)| is_yes(answer)).count();
    }
    answers.leave();
    yes >= QUORUM
}

/// A node in this process that grants and releases whatever it is asked to, at once.
struct GrantsAtOnce {
    /// Answers everything else.
    probed: Arc<EmbeddedNode>,
    fence: AtomicU64,
}

impl Node for GrantsAtOnce {
    fn id(&self) -> &NodeId {
        self.probed.id()
    }

    fn call(
        self: Arc<Self>,
        stamp: RequestStamp,
        request: Arc<Request>,
    ) -> impl Future<Output = NodeResult> + Send + 'static {
        Arc::clone(&self.probed).call(stamp, request)
    }

    fn hand_over(self: &Arc<Self>, slot: AnswerSlot) -> Result<(), AnswerSlot> {
        let reply = match **slot.request() {
            Request::Acquire(_) => {
                Reply::Granted { fence: Fence(self.fence.fetch_add(1, Ordering::Relaxed) + 1), joined: false }
            }
            Request::Release(_) => Reply::Released(Released { found: Found::Match, earlier: None }),
            _ => return Err(slot),
        };
        slot.put(Ok(reply));
        Ok(())
    }
}

/// A Redis node, and the view of the first request that it was handed.
struct Watched {
    node: Arc<RedisNode>,
    view: Arc<OnceLock<Arc<View>>>,
}

impl Node for Watched {
    fn id(&self) -> &NodeId {
        self.node.id()
    }

    fn is_connected(&self) -> bool {
        self.node.is_connected()
    }

    fn call(
        self: Arc<Self>,
        stamp: RequestStamp,
        request: Arc<Request>,
    ) -> impl Future<Output = NodeResult> + Send + 'static {
        Arc::clone(&self.node).call(stamp, request)
    }

    fn hand_over(self: &Arc<Self>, slot: AnswerSlot) -> Result<(), AnswerSlot> {
        if matches!(**slot.request(), Request::Acquire(_)) {
            let _ = self.view.set(Arc::clone(&slot.stamp().view));
        }
        self.node.hand_over(slot)
    }
}

/// Connected nodes at these addresses, and the view that they are asked in.
async fn watched(addresses: &[String]) -> Result<(Vec<Arc<Watched>>, Arc<OnceLock<Arc<View>>>), Failure> {
    let (view, params) = (Arc::default(), Arc::new(PATIENCE.params()));
    let id = |number| NodeId::parse(&format!("node-{number}")).map_err(|invalid| invalid.to_string());
    let ids = (1..=addresses.len()).map(id).collect::<Result<Vec<_>, _>>()?;
    let metrics = Metrics::new(&ids, &[]);
    let observer: Arc<dyn NodeObserver> =
        Arc::new(move |node: &NodeId, operation: &'static str, (_, took): (_, &[Duration]), outcome| {
            metrics.node_calls(node, operation, took, outcome);
        });
    let mut nodes = Vec::new();
    for (id, address) in ids.into_iter().zip(addresses) {
        let address: SocketAddr = address.parse()?;
        let url = NodeUrl::parse(&format!("redis://{address}")).map_err(|invalid| invalid.to_string())?;
        let config = RedisNodeConfig::new(id, url, Arc::clone(&params), PATIENCE.node_timeout);
        let (node, supervisor) = RedisNode::new(config, SystemEntropy, Some(Arc::clone(&observer)))?;
        tokio::spawn(supervisor);
        let connected = async {
            while !node.is_connected() {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        tokio::time::timeout(CONNECT, connected).await?;
        nodes.push(Arc::new(Watched { node, view: Arc::clone(&view) }));
    }
    Ok((nodes, view))
}
