//! How fast the service is, as ratios against yardsticks that are measured beside it, in turns, in the
//! same run: figures of different runs say nothing, ratios within one do. Owns the command line.
//!
//! ```text
//! redlockd-speed bench REDLOCKD [ROUNDS] [SECONDS]     # make bench: floors, rslock, bare axum, one frozen node
//! redlockd-speed peers REDLOCKD [ROUNDS] [SECONDS]     # make bench-peers: etcd, also at equal durability
//! redlockd-speed growth REDLOCKD [ROUNDS] [SECONDS]    # make bench-growth: 100,000 held leases
//! redlockd-speed cost REDLOCKD                         # make bench-cost: instructions and writes per cycle
//! ```
#![expect(clippy::print_stdout, reason = "figures are what it is for")]

mod beside_etcd;
mod contended;
mod cost;
mod crew;
mod etcd;
mod floor;
mod frozen;
mod goals;
mod growth;
mod http;
mod lane;
mod own_cost;
mod peers;
mod process;
mod rates;
mod servers;
mod stats;
mod within;

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
    const USAGE: &str = "usage: redlockd-speed bench|peers|growth|cost REDLOCKD [ROUNDS] [SECONDS]";
    let mut args = std::env::args().skip(1);
    let what = args.next().ok_or(USAGE)?;
    if what == "bare" {
        return peers::serve_bare().await;
    }
    let binary = PathBuf::from(args.next().ok_or(USAGE)?);
    let rounds = args.next().map_or(Ok(5), |n| n.parse())?;
    let length = Duration::from_secs_f64(args.next().map_or(Ok(2.0), |n| n.parse())?);
    let asked = Asked { binary, rounds, length };
    let measured = async {
        match what.as_str() {
            "bench" => rates::run(&asked).await,
            "peers" => beside_etcd::run(&asked).await,
            "growth" => growth::run(&asked).await,
            "cost" => own_cost::run(&asked).await,
            _ => Err(USAGE.into()),
        }
    };
    // Whoever ends this ends its servers with it: they are dropped with the measurement.
    let mut ended = signal(SignalKind::terminate())?;
    tokio::select! {
        biased;
        _ = tokio::signal::ctrl_c() => Err("interrupted".into()),
        _ = ended.recv() => Err("terminated".into()),
        done = measured => done,
    }
}
