//! One node of five that does not answer: what it costs in throughput and latency. Measured with and without it in
//! turns, in each round; and once with rslock.

use std::time::Duration;

use crate::goals::Goals;
use crate::peers::LockManager;
use crate::stats::{Run, Spread};
use crate::throughput::World;
use crate::workers::Until;
use crate::{Failure, http, peers};

const CONNECTIONS: usize = 16;
/// The service's default.
const NODE_TIMEOUT: Duration = Duration::from_millis(50);
/// When the node freezes in the run that sees it happen.
const INTO: Duration = Duration::from_millis(200);
/// How long a node that runs again has for what was left to it.
const RECOVERY: Duration = Duration::from_secs(2);

/// What was measured so far.
#[derive(Default)]
pub struct Rounds {
    healthy: Vec<Run>,
    frozen: Vec<Run>,
    freezing: Vec<Run>,
    rslock: Option<[Run; 2]>,
}

impl Rounds {
    /// One round. The world is over afterwards, so that nobody meets what the frozen node left undone.
    ///
    /// Errors: where nothing can be measured.
    pub async fn measure(&mut self, world: World, round: usize, length: Duration) -> Result<(), Failure> {
        eprintln!("round {round}, one frozen node");
        if round % 2 == 1 {
            self.healthy.push(world.drive(CONNECTIONS, length).await?);
        }
        if round == 1 {
            // On connections that were made while all was well: a first one to a frozen node takes it longer yet.
            let (manager, until) = (LockManager::new(world.nodes.urls()), Until::Passed(Duration::from_secs(1)));
            let healthy = peers::rslock(&manager, CONNECTIONS, until).await?;
            let _frozen = world.nodes.freeze_one()?;
            self.rslock = Some([healthy, peers::rslock(&manager, CONNECTIONS, until).await?]);
        }
        tokio::time::sleep(RECOVERY).await;
        let freeze = async {
            tokio::time::sleep(INTO).await;
            world.nodes.freeze_one()
        };
        let (freezing, frozen) = tokio::join!(world.drive(CONNECTIONS, INTO * 3), freeze);
        let frozen = frozen?;
        self.freezing.push(freezing?);
        self.frozen.push(world.drive(CONNECTIONS, length).await?);
        drop(frozen);
        if round % 2 == 0 {
            tokio::time::sleep(RECOVERY).await;
            crate::servers::until("the service", || http::is_ready(world.service.address).then_some(())).await?;
            self.healthy.push(world.drive(CONNECTIONS, length).await?);
        }
        Ok(())
    }

    fn ratios(&self) -> Vec<f64> {
        self.frozen.iter().zip(&self.healthy).map(|(frozen, healthy)| frozen.rate() / healthy.rate()).collect()
    }

    fn longest_ms(&self) -> Vec<f64> {
        let of = |(frozen, freezing): (&Run, &Run)| frozen.longest.max(freezing.longest).as_secs_f64() * 1_000.0;
        self.frozen.iter().zip(&self.freezing).map(of).collect()
    }

    /// Prints what was measured.
    pub fn print(&self) {
        println!("\nOne node of five frozen, {CONNECTIONS} at once:\n");
        println!("| what | cycles/s | p50 µs | p99 µs | longest request ms | errors |\n|---|---:|---:|---:|---:|---:|");
        let [rslock, rslock_frozen] = match &self.rslock {
            Some([healthy, frozen]) => [vec![healthy.clone()], vec![frozen.clone()]],
            None => Default::default(),
        };
        for (what, runs) in [
            ("redlockd, five healthy", &self.healthy),
            ("redlockd, while one freezes", &self.freezing),
            ("redlockd, one frozen", &self.frozen),
            ("rslock, five healthy", &rslock),
            ("rslock, one frozen", &rslock_frozen),
        ] {
            let median = |what: &dyn Fn(&Run) -> f64| Spread::of(runs.iter().map(what)).median;
            println!(
                "| {what} | {:.0} | {:.0} | {:.0} | {:.1} | {} |",
                median(&Run::rate),
                median(&|run| run.percentile(0.5)),
                median(&|run| run.percentile(0.99)),
                runs.iter().map(|r| r.longest).max().unwrap_or_default().as_secs_f64() * 1_000.0,
                runs.iter().map(|r| r.errors).sum::<u64>(),
            );
        }
    }

    /// Adds its goals.
    pub fn add_goals(&self, goals: &mut Goals) {
        goals.at_least("one node of five frozen: rate / that of five healthy, at 16", 0.95, "", self.ratios());
        let most = self.longest_ms().into_iter().fold(0.0, f64::max);
        let timeout = NODE_TIMEOUT.as_secs_f64() * 1_000.0;
        goals.at_most("the same: the longest request of all rounds", timeout, " ms", vec![most]);
        let errors: u64 = self.frozen.iter().chain(&self.freezing).map(|run| run.errors).sum();
        goals.at_most("the same: cycles that failed", 0.0, "", vec![errors as f64]);
    }
}
