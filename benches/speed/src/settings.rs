//! `make bench-settings`: services over the same five nodes, one with the defaults and others with one setting that differs, in
//! turns within each round, every second round in reverse order.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::goals::Goals;
use crate::process::Parties;
use crate::servers::{Nodes, Service, Start};
use crate::stats::{Run, Spread, print_other_load};
use crate::workers::Until;
use crate::{Asked, Failure, http};

const CONNECTION_COUNTS: [usize; 3] = [1, 16, 64];
/// The first ones are the defaults.
const SETTINGS: [&str; 3] = ["fan_out=all", "fan_out=quorum", "worker_threads=2"];
/// What each service does before a round is measured: it has probed its nodes by then, and may ask a quorum first.
const WARM_UP: Duration = Duration::from_secs(2);
/// The goal of issue 16: cycles per second at 64 connections on two cores.
const RATE_GOAL: f64 = 20_000.0;

async fn drive(service: &Service, nodes: &Nodes, connections: usize, length: Duration) -> Result<Run, Failure> {
    let run = http::drive(service.address, connections, Until::Passed(length), http::cycle);
    Parties { subject: Some(service.server.pid()), nodes: nodes.pids() }.watch(run).await
}

/// All of them, and the ratios to the defaults.
///
/// Errors: where a server does not start.
pub async fn run(asked: &Asked) -> Result<(), Failure> {
    let mut all: BTreeMap<(usize, usize), Vec<Run>> = BTreeMap::new();
    for round in 1..=asked.rounds {
        let nodes = Nodes::start().await?;
        let mut services = Vec::new();
        for setting in SETTINGS {
            let start = Start { binary: &asked.binary, under: &[], args: &["--set", setting] };
            services.push(if services.is_empty() { start.over(&nodes).await? } else { start.beside(&nodes).await? });
        }
        for service in &services {
            drive(service, &nodes, 16, WARM_UP).await?;
        }
        for connections in CONNECTION_COUNTS {
            eprintln!("round {round} of {}, {connections} at once", asked.rounds);
            let mut order = [0, 1, 2];
            if round % 2 == 0 {
                order.reverse();
            }
            for which in order {
                let run = drive(&services[which], &nodes, connections, asked.length).await?;
                all.entry((connections, which)).or_default().push(run);
            }
        }
    }
    println!("| setting | at once | cycles/s | of the default | p50 µs | p99 µs | errors | CPU µs per cycle: own / nodes / load |");
    println!("|---|---:|---:|---:|---:|---:|---:|---:|");
    let ratios = |connections, which, what: &dyn Fn(&Run) -> f64| -> Vec<f64> {
        all[&(connections, which)].iter().zip(&all[&(connections, 0)]).map(|(one, other)| what(one) / what(other)).collect()
    };
    for ((connections, which), runs) in &all {
        let median = |what: &dyn Fn(&Run) -> f64| Spread::of(runs.iter().map(what)).median;
        let of_all = match which {
            0 => "1".to_owned(),
            _ => Spread::of(ratios(*connections, *which, &Run::rate)).text(2),
        };
        println!(
            "| {} | {connections} | {} | {of_all} | {:.0} | {:.0} | {} | {:.1} / {:.1} / {:.1} |",
            SETTINGS[*which],
            Spread::of(runs.iter().map(Run::rate)).text(0),
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
    goals.at_least("rate at 64, a quorum first", RATE_GOAL, "/s", all[&(64, 1)].iter().map(Run::rate).collect());
    goals.at_most("the nodes' CPU per cycle at 64, of that with all", 0.7, "", ratios(64, 1, &|run| run.cpu.nodes));
    goals.at_most("worker_threads=2: own CPU per cycle at 64, of that with 1", 1.15, "", ratios(64, 2, &|run| run.cpu.subject));
    let errors: u64 = all.values().flatten().map(|run| run.errors).sum();
    goals.at_most("cycles that failed", 0.0, "", vec![errors as f64]);
    goals.print();
    Ok(())
}
