//! `make bench-growth`: what 100,000 held leases change for callers, for the memory of the service and of the nodes, and
//! for readers of metrics and lists. Two clusters, one with few leases and one with many, are asked in turns.

use std::cell::{Cell, RefCell};
use std::io::{self, Write};
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::{Duration, Instant};

use crate::goals::Goals;
use crate::http::{self, Connection, Received};
use crate::in_process::{Patience, Within};
use crate::process::{Parties, cpu_us, resident};
use crate::servers::{NODES, Nodes, Service, Start};
use crate::stats::{Run, Spread, percentile, print_other_load};
use crate::workers::Until;
use crate::{Asked, Failure};

/// Held leases, to compare acquires.
const FEW: u64 = 10;
/// Held leases, to compare pages: a full one.
const PAGE: u64 = 100;
const MANY: u64 = 100_000;
/// How many acquire at once.
const CONNECTIONS: usize = 64;
/// Cycles on an embedded node within a minute: so many tombstones are there at once.
const TOMBSTONES: u64 = 1_000_000;
/// The longest TTL by default: more than a round takes.
const TTL: &str = "5m";
/// Turns of both clusters in a round.
const TURNS: usize = 3;
/// Looks at each page in a round.
const LOOKS: u32 = 40;
/// Between two looks, as somebody who keeps an eye on it: what is kept fresh for them is part of the cost.
const PAUSE: Duration = Duration::from_millis(100);
/// Names of the cycles beside the held leases begin here.
const BESIDE: u64 = 1_000_000_000;
const PAGES: [(&str, &str); 2] = [("/metrics", "/metrics"), ("/locks?limit=100", "a page of 100 of /locks")];

/// A cluster with leases that nobody gives back.
struct Cluster {
    nodes: Nodes,
    service: Service,
    held: u64,
}

impl Cluster {
    async fn start(asked: &Asked) -> Result<Self, Failure> {
        let nodes = Nodes::start().await?;
        let start = Start { binary: &asked.binary, under: &[], args: &[] };
        let service = start.over(&nodes).await?;
        let cluster = Self { nodes, service, held: 0 };
        // What the service needs to run at full speed is not what leases cost.
        cluster.beside(Duration::from_secs(1)).await?;
        Ok(cluster)
    }

    fn address(&self) -> SocketAddr {
        self.service.address
    }

    /// Acquires until so many leases are held, and keeps them. The run is of the acquires.
    async fn hold(&mut self, until: u64, connections: usize) -> Result<Run, Failure> {
        let (first, more) = (self.held, until - self.held);
        let acquire =
            async move |connection: &mut Connection, number| http::acquire(connection, first + number, TTL).await;
        let run = http::drive(self.address(), connections, Until::Cycles(more), acquire).await?;
        // A lease or two more or less change no figure.
        if run.errors * 1_000 > more {
            return Err(format!("{} of {more} leases were refused", run.errors).into());
        }
        self.held = until;
        Ok(run)
    }

    /// Cycles of other names: the run, and the median of the acquires alone, microseconds.
    async fn beside(&self, length: Duration) -> Result<(Run, f64), Failure> {
        thread_local! { static NEXT: Cell<u64> = const { Cell::new(BESIDE) } }
        let first = NEXT.get();
        NEXT.set(first + BESIDE);
        let acquires = Rc::new(RefCell::new(Vec::new()));
        let received = Rc::clone(&acquires);
        let cycle = async move |connection: &mut Connection, number| {
            let asked = Instant::now();
            let acquired = http::acquire(connection, first + number, "30s").await?;
            received.borrow_mut().push(asked.elapsed().as_secs_f64() * 1e6);
            Ok(acquired && http::release(connection, first + number).await?)
        };
        let run = http::drive(self.address(), CONNECTIONS, Until::Passed(length), cycle);
        let parties = Parties { subject: Some(self.service.server.pid()), nodes: self.nodes.pids() };
        let run = parties.watch(run).await?;
        let mut acquires = acquires.take();
        acquires.sort_by(f64::total_cmp);
        Ok((run, percentile(&acquires, 0.5)))
    }

    fn memory(&self) -> Result<Memory, Failure> {
        let mut nodes = 0.0;
        for at in 0..NODES {
            let info: String = redis::cmd("INFO").arg("memory").query(&mut self.nodes.connection(at)?)?;
            let used = info.lines().find_map(|line| line.strip_prefix("used_memory:")?.trim().parse::<f64>().ok());
            nodes += used.ok_or("no used_memory")?;
        }
        Ok(Memory { service: resident(self.service.server.pid())?, node: nodes / NODES as f64 })
    }

    /// One look at a page: microseconds, and its bytes.
    async fn look(&self, connection: &mut Connection, path: &str) -> Result<(f64, usize), Failure> {
        connection.begin();
        write!(connection.out, "GET {path} HTTP/1.1\r\nhost: localhost\r\n\r\n")?;
        let asked = Instant::now();
        let answer = connection.ask().await?;
        match answer.status {
            200 => Ok((asked.elapsed().as_secs_f64() * 1e6, answer.body.len())),
            status => Err(format!("{path} answers {status}").into()),
        }
    }

    fn cpu(&self) -> Result<f64, Failure> {
        let nodes: Result<Vec<f64>, Failure> = self.nodes.pids().into_iter().map(cpu_us).collect();
        Ok(cpu_us(self.service.server.pid())? + nodes?.iter().sum::<f64>())
    }
}

/// Bytes.
struct Memory {
    service: f64,
    /// `used_memory` of one node, the mean of all.
    node: f64,
}

/// Medians of one round: `[few, many]`.
#[derive(Default)]
struct Round {
    runs: Vec<Run>,
    rate: Vec<[f64; 2]>,
    acquire_us: Vec<[f64; 2]>,
    service_bytes: f64,
    node_bytes: f64,
    /// First and last tenth of the acquires that built the many, p50.
    tenths: [f64; 2],
    pages: Vec<Look>,
}

struct Look {
    /// The first look, for which everything may have to be read.
    first_us: [f64; 2],
    /// The median of all others.
    us: [f64; 2],
    /// Service and nodes, per look, beyond what they take when nobody looks.
    cpu_us: [f64; 2],
    bytes: [usize; 2],
}

/// Everything, and the list of goals.
///
/// Errors: where a server does not start, or leases are refused.
pub async fn run(asked: &Asked) -> Result<(), Failure> {
    let mut rounds = Vec::new();
    for number in 1..=asked.rounds {
        eprintln!("round {number} of {}", asked.rounds);
        rounds.push(round(asked).await?);
    }
    print(&rounds);
    print_other_load(rounds.iter().flat_map(|round| &round.runs));
    let mut goals = Goals::default();
    let of = |what: &dyn Fn(&Round) -> Vec<f64>| rounds.iter().flat_map(what).collect::<Vec<f64>>();
    let growth = |pairs: &[[f64; 2]]| pairs.iter().map(|[few, many]| many / few).collect::<Vec<f64>>();
    goals.at_least("rate of cycles at 100,000 held leases / at 10", 0.9, "", of(&|r| growth(&r.rate)));
    goals.at_most("p50 of an acquire at 100,000 held leases / at 10", 1.1, "", of(&|r| growth(&r.acquire_us)));
    goals.at_most("resident memory of the service per held lease", 1_024.0, " B", of(&|r| vec![r.service_bytes]));
    goals.at_most("used_memory per held lease and node", 600.0, " B", of(&|r| vec![r.node_bytes]));
    for (at, (_, name)) in PAGES.iter().enumerate() {
        let firsts = of(&|r| growth(&[r.pages[at].first_us]));
        goals.at_most(&format!("{name} at 100,000 leases / at 100, first look"), 2.0, "", firsts);
        let first = of(&|r| vec![r.pages[at].first_us[1] / 1_000.0]);
        goals.at_most(&format!("the same in milliseconds, {name}"), 300.0, " ms", first);
        let times = of(&|r| growth(&[r.pages[at].us]));
        goals.at_most(&format!("{name} at 100,000 leases / at 100, p50 of further looks"), 2.0, "", times);
        let costs = of(&|r| growth(&[r.pages[at].cpu_us]));
        goals.at_most(&format!("{name}, CPU of service and nodes"), 2.0, "", costs);
    }
    goals.print();
    Ok(())
}

/// How long a cycle on an embedded node takes at most while a million tombstones gather. In a process of its own, which has not used
/// its memory for something else before.
///
/// Errors: a cycle that fails.
pub async fn run_embedded() -> Result<(), Failure> {
    let longest = Within::start(Patience::DEFAULT).await?.longest_cycle_ms(TOMBSTONES).await?;
    let mut goals = Goals::default();
    goals.at_most("embedded node: the longest of a million cycles, processor time", 10.0, " ms", vec![longest]);
    goals.print();
    Ok(())
}

async fn round(asked: &Asked) -> Result<Round, Failure> {
    let (mut few, mut many) = (Cluster::start(asked).await?, Cluster::start(asked).await?);
    let mut round = Round::default();
    few.hold(FEW, 1).await?;
    let before = many.memory()?;
    let tenth = MANY / 10;
    round.tenths[0] = many.hold(tenth, CONNECTIONS).await?.percentile(0.5);
    many.hold(MANY - tenth, CONNECTIONS).await?;
    round.tenths[1] = many.hold(MANY, CONNECTIONS).await?.percentile(0.5);
    let after = many.memory()?;
    round.service_bytes = (after.service - before.service) / MANY as f64;
    round.node_bytes = (after.node - before.node) / MANY as f64;
    for _ in 0..TURNS {
        let (with_few, with_many) = (few.beside(asked.length).await?, many.beside(asked.length).await?);
        round.rate.push([with_few.0.rate(), with_many.0.rate()]);
        round.acquire_us.push([with_few.1, with_many.1]);
        round.runs.extend([with_few.0, with_many.0]);
    }
    few.hold(PAGE, 1).await?;
    let received = Rc::new(Received::default());
    let open = async |cluster: &Cluster| -> io::Result<Connection> {
        Connection::open(cluster.address(), Rc::clone(&received)).await
    };
    let mut connections = [open(&few).await?, open(&many).await?];
    let clusters = [&few, &many];
    let idle = spent_in(&clusters, async || Ok(tokio::time::sleep(PAUSE * LOOKS).await)).await?;
    for (path, _) in PAGES {
        let (mut first_us, mut times, mut bytes) = ([0.0; 2], [vec![], vec![]], [0; 2]);
        let all = async || -> Result<(), Failure> {
            for look in 0..LOOKS {
                for (at, cluster) in clusters.into_iter().enumerate() {
                    let (us, length) = cluster.look(&mut connections[at], path).await?;
                    bytes[at] = length;
                    match look {
                        0 => first_us[at] = us,
                        _ => times[at].push(us),
                    }
                }
                tokio::time::sleep(PAUSE).await;
            }
            Ok(())
        };
        let spent = spent_in(&clusters, all).await?;
        let cpu_us = [0, 1].map(|at| (spent[at] - idle[at]).max(1.0) / f64::from(LOOKS));
        round.pages.push(Look { first_us, us: times.map(|times| Spread::of(times).median), cpu_us, bytes });
    }
    Ok(round)
}

/// Processor's time of each cluster while that is done, microseconds.
async fn spent_in(
    clusters: &[&Cluster; 2],
    what: impl AsyncFnOnce() -> Result<(), Failure>,
) -> Result<[f64; 2], Failure> {
    let before = [clusters[0].cpu()?, clusters[1].cpu()?];
    what().await?;
    Ok([clusters[0].cpu()? - before[0], clusters[1].cpu()? - before[1]])
}

fn print(rounds: &[Round]) {
    let median = |what: &dyn Fn(&Round) -> f64| Spread::of(rounds.iter().map(what)).median;
    let middle = |pairs: &[[f64; 2]], at: usize| Spread::of(pairs.iter().map(|pair| pair[at])).median;
    println!("Medians of the rounds.\n\n| what | few leases | {MANY} leases |\n|---|---:|---:|");
    let row = |what: &str, few: f64, many: f64| println!("| {what} | {few:.0} | {many:.0} |");
    let both = |what: &dyn Fn(&Round, usize) -> f64| (median(&|r| what(r, 0)), median(&|r| what(r, 1)));
    let (few, many) = both(&|r, at| middle(&r.rate, at));
    row(&format!("cycles/s of other names, {CONNECTIONS} at once ({FEW} leases)"), few, many);
    let (few, many) = both(&|r, at| middle(&r.acquire_us, at));
    row("p50 of their acquires, µs", few, many);
    let (few, many) = both(&|r, at| r.tenths[at]);
    row("p50 of the acquires of the first and of the last tenth of the many, µs", few, many);
    for (page, (_, name)) in PAGES.iter().enumerate() {
        let (few, many) = both(&|r, at| r.pages[page].first_us[at]);
        row(&format!("{name}, first look µs ({PAGE} leases)"), few, many);
        let (few, many) = both(&|r, at| r.pages[page].us[at]);
        row(&format!("{name}, p50 µs of further looks"), few, many);
        let (few, many) = both(&|r, at| r.pages[page].cpu_us[at]);
        row(&format!("{name}, CPU µs of service and nodes per look"), few, many);
        let (few, many) = both(&|r, at| r.pages[page].bytes[at] as f64);
        row(&format!("{name}, bytes"), few, many);
    }
}
