//! `make bench-peers`: the service beside etcd's JSON gateway in the same run, with default durability, and with every
//! node syncing to disk before it answers, as etcd does.

use std::collections::BTreeMap;

use crate::etcd::{self, Etcd};
use crate::goals::Goals;
use crate::peers::Yardstick;
use crate::process::Parties;
use crate::servers::{Nodes, Service, Start};
use crate::stats::{Run, Spread, print_other_load};
use crate::workers::Until;
use crate::{Asked, Failure, http};

const CONNECTION_COUNTS: [usize; 3] = [1, 16, 64];

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Subject {
    Service,
    Least,
    Durable,
    EtcdTwo,
    EtcdThree,
}

const SUBJECTS: [Subject; 5] =
    [Subject::Service, Subject::Least, Subject::Durable, Subject::EtcdTwo, Subject::EtcdThree];

impl Subject {
    fn name(self) -> &'static str {
        match self {
            Self::Service => "redlockd, five nodes in memory",
            Self::Least => "the least service, five nodes in memory",
            Self::Durable => "redlockd, five nodes with appendfsync always",
            Self::EtcdTwo => "etcd, lock and unlock under one lease per connection",
            Self::EtcdThree => "etcd, lease, lock and unlock",
        }
    }
}

/// The servers of one round.
struct World {
    nodes: Nodes,
    service: Service,
    least: Yardstick,
    durable_nodes: Nodes,
    durable: Service,
    etcd: Etcd,
}

impl World {
    async fn start(asked: &Asked) -> Result<Self, Failure> {
        let start = Start { binary: &asked.binary, under: &[], args: &[] };
        let (nodes, durable_nodes) = (Nodes::start().await?, Nodes::start_durable().await?);
        let (service, durable) = (start.over(&nodes).await?, start.over(&durable_nodes).await?);
        let least = Yardstick::start_least(&std::env::current_exe()?, &nodes)?;
        Ok(Self { nodes, service, least, durable_nodes, durable, etcd: Etcd::start().await? })
    }

    async fn measure(&self, subject: Subject, connections: usize, until: Until) -> Result<Run, Failure> {
        let parties = |pid, nodes: Option<&Nodes>| {
            let nodes = nodes.map(Nodes::pids).unwrap_or_default();
            Parties { subject: Some(pid), nodes }
        };
        match subject {
            Subject::Service => {
                let run = http::drive(self.service.address, connections, until, http::cycle);
                parties(self.service.server.pid(), Some(&self.nodes)).watch(run).await
            }
            Subject::Least => {
                let run = http::drive(self.least.address, connections, until, http::cycle);
                parties(self.least.server.pid(), Some(&self.nodes)).watch(run).await
            }
            Subject::Durable => {
                let run = http::drive(self.durable.address, connections, until, http::cycle);
                parties(self.durable.server.pid(), Some(&self.durable_nodes)).watch(run).await
            }
            Subject::EtcdTwo => {
                let run = http::drive(self.etcd.address, connections, until, etcd::two_steps);
                parties(self.etcd.server.pid(), None).watch(run).await
            }
            Subject::EtcdThree => {
                let run = http::drive(self.etcd.address, connections, until, etcd::three_steps);
                parties(self.etcd.server.pid(), None).watch(run).await
            }
        }
    }
}

/// Everything, and the list of goals.
///
/// Errors: where a server does not start.
pub async fn run(asked: &Asked) -> Result<(), Failure> {
    let mut all: BTreeMap<(usize, Subject), Vec<Run>> = BTreeMap::new();
    for round in 1..=asked.rounds {
        let world = World::start(asked).await?;
        for subject in SUBJECTS {
            world.measure(subject, 16, Until::Passed(asked.length / 8)).await?;
        }
        for connections in CONNECTION_COUNTS {
            eprintln!("round {round} of {}, {connections} at once", asked.rounds);
            let mut order = SUBJECTS;
            if round % 2 == 0 {
                order.reverse();
            }
            for subject in order {
                let run = world.measure(subject, connections, Until::Passed(asked.length)).await?;
                all.entry((connections, subject)).or_default().push(run);
            }
        }
    }
    println!("Medians of the rounds, least to most in brackets. The disk is that of {}.\n", place());
    println!(
        "| what | at once | cycles/s | of etcd's with one lease per connection | of etcd's with a lease each | p50 µs | p99 µs | errors | CPU µs per cycle: own / nodes / load |"
    );
    println!("|---|---:|---:|---:|---:|---:|---:|---:|---:|");
    for ((connections, subject), runs) in &all {
        let of = |other| Spread::of(ratios(&all, *connections, *subject, other)).text(2);
        let median = |what: &dyn Fn(&Run) -> f64| Spread::of(runs.iter().map(what)).median;
        println!(
            "| {} | {connections} | {:.0} | {} | {} | {:.0} | {:.0} | {} | {:.1} / {:.1} / {:.1} |",
            subject.name(),
            median(&Run::rate),
            of(Subject::EtcdTwo),
            of(Subject::EtcdThree),
            median(&|run| run.percentile(0.5)),
            median(&|run| run.percentile(0.99)),
            runs.iter().map(|run| run.errors).sum::<u64>(),
            median(&|run| run.cpu.subject),
            median(&|run| run.cpu.nodes),
            median(&|run| run.cpu.load),
        );
    }
    print_other_load(all.values().flatten());
    let mut goals = Goals::default();
    for (other, name, bound, durable) in
        [(Subject::EtcdTwo, "one lease per connection", 4.0, 2.0), (Subject::EtcdThree, "a lease each", 6.0, 3.2)]
    {
        let rate = |subject| ratios(&all, 64, subject, other);
        goals.at_least(&format!("rate at 64 / etcd's, {name}"), bound, "", rate(Subject::Service));
        goals.at_least(
            &format!("the same at equal durability (appendfsync always, and etcd's fsync), {name}"),
            durable,
            "",
            rate(Subject::Durable),
        );
    }
    let errors: u64 = all.values().flatten().map(|run| run.errors).sum();
    goals.at_most("cycles that failed, of anybody", 0.0, "", vec![errors as f64]);
    goals.print();
    Ok(())
}

fn place() -> String {
    std::env::var("TMPDIR").unwrap_or_else(|_| "target/".to_owned())
}

fn ratios(all: &BTreeMap<(usize, Subject), Vec<Run>>, connections: usize, one: Subject, other: Subject) -> Vec<f64> {
    all[&(connections, one)].iter().zip(&all[&(connections, other)]).map(|(a, b)| a.rate() / b.rate()).collect()
}
