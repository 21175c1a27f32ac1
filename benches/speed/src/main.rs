//! How fast the service is, as ratios against yardsticks that are measured beside it, in turns, in the
//! same run: figures of different runs say nothing, ratios within one do. Owns the order of the runs and
//! the table; knows no protocol.
//!
//!     make bench            # in the project's root
//!     redlockd-speed REDLOCKD_BINARY [ROUNDS] [SECONDS]
#![expect(clippy::print_stdout, reason = "figures are what it is for")]

mod floor;
mod http;
mod lane;
mod peers;
mod servers;
mod stats;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use stats::{Run, median};

/// Anything that went wrong: a benchmark ends there.
pub type Failure = Box<dyn std::error::Error + Send + Sync>;

/// Connections, or callers at once.
const CROWDS: [usize; 3] = [1, 16, 64];

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Failure> {
    let mut args = std::env::args().skip(1);
    let first = args.next().ok_or("usage: redlockd-speed REDLOCKD_BINARY [ROUNDS] [SECONDS]")?;
    if first == "bare" {
        return peers::serve_bare().await;
    }
    let binary = PathBuf::from(first);
    let rounds: usize = args.next().map_or(Ok(5), |n| n.parse())?;
    let length = Duration::from_secs(args.next().map_or(Ok(2), |n| n.parse())?);

    let nodes = servers::Nodes::start().await?;
    let service = servers::Service::over(&binary, &nodes).await?;
    let embedded = servers::Service::embedded(&binary).await?;
    let bare = peers::Bare::start(&std::env::current_exe()?)?;
    let mut all: BTreeMap<(&str, usize), Vec<Run>> = BTreeMap::new();
    for round in 1..=rounds {
        for crowd in CROWDS {
            eprintln!("round {round} of {rounds}, {crowd} at once");
            let mut note = |what, run| all.entry((what, crowd)).or_default().push(run);
            note("plain floor", floor::plain(&nodes, crowd, length).await?);
            note("script floor", floor::script(&nodes, crowd, length).await?);
            note("redlockd", service.watched(http::drive(service.address, crowd, length)).await?);
            note("rslock", peers::rslock(&nodes, crowd, length).await?);
            note("bare axum", http::drive(bare.address, crowd, length).await?);
            note("redlockd, embedded", embedded.watched(http::drive(embedded.address, crowd, length)).await?);
        }
    }
    report(&all);
    servers::cost_of_scripts(&nodes).await?.iter().for_each(|line| println!("{line}"));

    let frozen = nodes.freeze_one()?;
    let run = http::drive(service.address, 16, length).await?;
    drop(frozen);
    let healthy: Vec<f64> = all[&("redlockd", 16)].iter().map(Run::rate).collect();
    println!(
        "\none node of five frozen, 16 at once: {:.2} of the rate with all five; {}",
        run.rate() / median(healthy),
        run
    );
    Ok(())
}

/// The median over the rounds, and the ratio to the plain floor of the same round.
fn report(all: &BTreeMap<(&str, usize), Vec<Run>>) {
    println!(
        "| what | at once | cycles/s | of the plain floor (least to most) | p50 | p99 | p99.9 | errors | own CPU per cycle |"
    );
    println!("|---|---:|---:|---:|---:|---:|---:|---:|---:|");
    for crowd in CROWDS {
        for ((what, _), runs) in all.iter().filter(|((_, at), _)| *at == crowd) {
            let floors = &all[&("plain floor", crowd)];
            let ratios: Vec<f64> = runs.iter().zip(floors).map(|(run, floor)| run.rate() / floor.rate()).collect();
            let least = ratios.iter().copied().fold(f64::MAX, f64::min);
            let most = ratios.iter().copied().fold(0.0, f64::max);
            let of = |part: f64| median(runs.iter().map(|r| r.percentile(part)).collect());
            let cpu = median(runs.iter().map(|r| r.cpu_us).collect());
            let errors: u64 = runs.iter().map(|r| r.errors).sum();
            println!(
                "| {what} | {crowd} | {:.0} | {:.2} ({least:.2} to {most:.2}) | {:.0} µs | {:.0} µs | {:.0} µs | {errors} | {} |",
                median(runs.iter().map(Run::rate).collect()),
                median(ratios.clone()),
                of(0.50),
                of(0.99),
                of(0.999),
                if cpu > 0.0 { format!("{cpu:.1} µs") } else { String::new() },
            );
        }
    }
}
