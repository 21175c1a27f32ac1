//! Benchmarks of the service, as ratios to yardsticks that are measured in turns in the same run: only ratios within
//! one run can be compared. This file reads the command line.
//!
//! ```text
//! redlockd-speed bench REDLOCKD [ROUNDS] [SECONDS]     # make bench: floors, rslock, bare axum, one frozen node
//! redlockd-speed peers REDLOCKD [ROUNDS] [SECONDS]     # make bench-peers: etcd, also at equal durability
//! redlockd-speed growth REDLOCKD [ROUNDS] [SECONDS]    # make bench-growth: 100,000 held leases
//! redlockd-speed embedded REDLOCKD                     # make bench-growth: a million tombstones on an embedded node
//! redlockd-speed settings REDLOCKD [ROUNDS] [SECONDS]  # make bench-settings: one setting that differs from the default
//! redlockd-speed cost REDLOCKD                         # make bench-cost: instructions and writes per cycle
//! redlockd-speed parts REDLOCKD                        # make bench-parts: instructions of each part of the service alone
//! redlockd-speed scripts REDLOCKD [ROUNDS]             # make bench-scripts: what the scripts cost a node
//! ```
#![expect(clippy::print_stdout, reason = "figures are what it is for")]

mod contended;
mod etcd;
mod etcd_comparison;
mod floor;
mod frozen;
mod goals;
mod growth;
mod http;
mod in_process;
mod least_service;
mod node_cost;
mod parts;
mod peers;
mod pipelined_client;
mod process;
mod servers;
mod service_cost;
mod settings;
mod stats;
mod throughput;
mod usual_manager;
mod usual_service;
mod workers;

use mimalloc as _;
use std::path::PathBuf;
use std::time::Duration;

use tokio::signal::unix::{SignalKind, signal};

/// Anything that went wrong: a benchmark ends there.
pub type Failure = Box<dyn std::error::Error + Send + Sync>;

/// What the command line says.
pub struct Asked {
    /// The release binary of the service.
    pub binary: PathBuf,
    /// How often everything is measured, in turns.
    pub rounds: usize,
    /// How long each measurement lasts.
    pub length: Duration,
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Failure> {
    const USAGE: &str =
        "usage: redlockd-speed bench|peers|growth|embedded|settings|cost|parts|scripts REDLOCKD [ROUNDS] [SECONDS]";
    let mut args = std::env::args().skip(1);
    let what = args.next().ok_or(USAGE)?;
    if what == "bare" {
        return peers::serve_bare().await;
    }
    if what == "usual" {
        return usual_service::serve().await;
    }
    if what == "least" {
        return least_service::serve(&args.collect::<Vec<_>>()).await;
    }
    if what == "part" {
        return parts::do_part(&args.collect::<Vec<_>>()).await;
    }
    let binary = PathBuf::from(args.next().ok_or(USAGE)?);
    let rounds = args.next().map_or(Ok(5), |n| n.parse())?;
    let length = Duration::from_secs_f64(args.next().map_or(Ok(2.0), |n| n.parse())?);
    let asked = Asked { binary, rounds, length };
    let measured = async {
        match what.as_str() {
            "bench" => throughput::run(&asked).await,
            "peers" => etcd_comparison::run(&asked).await,
            "growth" => growth::run(&asked).await,
            "embedded" => growth::run_embedded().await,
            "settings" => settings::run(&asked).await,
            "cost" => service_cost::run(&asked).await,
            "parts" => parts::run(&asked).await,
            "scripts" => node_cost::run(&asked).await,
            _ => Err(USAGE.into()),
        }
    };
    // Ending this process ends its servers: they are dropped with the measurement.
    let mut ended = signal(SignalKind::terminate())?;
    tokio::select! {
        biased;
        _ = tokio::signal::ctrl_c() => Err("interrupted".into()),
        _ = ended.recv() => Err("terminated".into()),
        done = measured => done,
    }
}
