//! `make bench-settings`: services over the same five nodes, one with the defaults and others with one setting that differs, and
//! the plain floor, in turns within each round, every second round in reverse order.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::goals::Goals;
use crate::process::Parties;
use crate::servers::{Nodes, Service, Start};
use crate::stats::{Run, Spread, print_other_load};
use crate::workers::Until;
use crate::{Asked, Failure, floor, http};

const CONNECTION_COUNTS: [usize; 3] = [1, 16, 64];
/// The first ones are the defaults.
const SETTINGS: [&str; 3] = ["fan_out=all", "fan_out=quorum", "worker_threads=2"];
/// What each service does before a round is measured: it has probed its nodes by then, and may ask a quorum first.
const WARM_UP: Duration = Duration::from_secs(2);
/// Cycles per second at 64 connections on two cores.
const RATE_GOAL: f64 = 20_000.0;
/// The same on any machine: of the plain floor's, which was 103,000 where that goal was set.
const OF_PLAIN_GOAL: f64 = 0.194;
/// Beside the services.
const PLAIN_FLOOR: usize = SETTINGS.len();

/// `None`: the plain floor.
async fn drive(service: Option<&Service>, nodes: &Nodes, connections: usize, length: Duration) -> Result<Run, Failure> {
    let (subject, until) = (service.map(|service| service.server.pid()), Until::Passed(length));
    let parties = Parties { subject, nodes: nodes.pids() };
    match service {
        Some(service) => parties.watch(http::drive(service.address, connections, until, http::cycle)).await,
        None => parties.watch(floor::plain(&nodes.addresses, connections, until)).await,
    }
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
            drive(Some(service), &nodes, 16, WARM_UP).await?;
        }
        for connections in CONNECTION_COUNTS {
            eprintln!("round {round} of {}, {connections} at once", asked.rounds);
            let mut order = [0, 1, 2, PLAIN_FLOOR];
            if round % 2 == 0 {
                order.reverse();
            }
            for which in order {
                let run = drive(services.get(which), &nodes, connections, asked.length).await?;
                all.entry((connections, which)).or_default().push(run);
            }
        }
    }
    println!(
        "| setting | at once | cycles/s | of the default | p50 µs | p99 µs | errors | CPU µs per cycle: own / nodes / load |"
    );
    println!("|---|---:|---:|---:|---:|---:|---:|---:|");
    let between = |connections, [one, other]: [usize; 2], what: &dyn Fn(&Run) -> f64| -> Vec<f64> {
        all[&(connections, one)].iter().zip(&all[&(connections, other)]).map(|(a, b)| what(a) / what(b)).collect()
    };
    let ratios = |connections, which, what: &dyn Fn(&Run) -> f64| between(connections, [which, 0], what);
    for ((connections, which), runs) in &all {
        let median = |what: &dyn Fn(&Run) -> f64| Spread::of(runs.iter().map(what)).median;
        let of_all = match which {
            0 => "1".to_owned(),
            _ => Spread::of(ratios(*connections, *which, &Run::rate)).text(2),
        };
        println!(
            "| {} | {connections} | {} | {of_all} | {:.0} | {:.0} | {} | {:.1} / {:.1} / {:.1} |",
            SETTINGS.get(*which).unwrap_or(&"plain floor"),
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
    let of_plain = between(64, [1, PLAIN_FLOOR], &Run::rate);
    goals.at_least("the same, of the plain floor's", OF_PLAIN_GOAL, "", of_plain);
    goals.at_most("the nodes' CPU per cycle at 64, of that with all", 0.7, "", ratios(64, 1, &|run| run.cpu.nodes));
    goals.at_most(
        "worker_threads=2: own CPU per cycle at 64, of that with 1",
        1.15,
        "",
        ratios(64, 2, &|run| run.cpu.subject),
    );
    let errors: u64 = all.values().flatten().map(|run| run.errors).sum();
    goals.at_most("cycles that failed", 0.0, "", vec![errors as f64]);
    goals.print();
    Ok(())
}
