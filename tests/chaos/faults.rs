//! The faults: a schedule drawn from the seed before the run begins, so that a seed has the same faults at
//! the same times whatever is tested.

use std::fs::File;
use std::time::Duration;

use redlockd::redlock::clock::{BootTime, Clock, SystemClock};

use super::cluster::{ChaosCluster, INSTANCES, NODES};
use super::history::{Effect, Fault};
use super::support::chaos_proxy::{FAIR, Flow, Weather};
use super::support::seeded::Seeded;
use super::views;
use redlockd::redlock::random::Entropy;

/// Maximum age of log entries that a power loss removes, because they were not synced.
const UNSYNCED: Duration = Duration::from_secs(1);

/// One kind of fault, to one node, some or all.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FaultKind {
    /// SIGKILL, restarted with its log.
    KillKeeping,
    /// SIGKILL, restarted with the log as it was a second ago.
    PowerLoss,
    /// SIGKILL, restarted empty.
    KillForgetting,
    /// Three of five at once, restarted empty.
    KillMajority,
    Flush,
    Freeze,
    /// One wall clock ahead or behind, and back.
    Clock(i64),
    /// Three of five wall clocks ahead at once, and back.
    Clocks(i64),
    /// One instance's requests and answers take this long.
    Delay(u64),
    /// One instance's answers are dropped, its requests are not.
    LostAnswers,
    /// One instance's requests are held back, its connection reset, and the requests delivered then.
    LateDelivery,
    /// One instance cannot reach this node.
    Refusal,
    /// An instance is stopped.
    FreezeInstance,
    /// All nodes in turn are killed and restarted empty, each once the one before votes again.
    RestartInTurn,
    /// A replica takes over, and the former master again.
    FailOver,
    /// A name leads one instance to an empty server.
    MovedName,
    /// SIGKILL, restarted with an old copy of its log.
    OldLog,
    /// The server refuses writes after a failed snapshot.
    CannotSave,
    /// The server's memory is full.
    Full,
}

/// A fault, with its time, place and duration.
#[derive(Debug, Clone)]
pub struct PlannedFault {
    pub after: Duration,
    pub what: FaultKind,
    pub node: usize,
    pub instance: usize,
    pub lasts: Duration,
}

/// The faults of a seed, for a run of `total`.
pub fn plan(seed: u64, total: Duration) -> Vec<PlannedFault> {
    let random = Seeded::new(seed, 1);
    let mut planned = Vec::new();
    let mut at = Duration::ZERO;
    while at < total {
        let clock = i64::try_from(random.between(800, 9_000)).expect("small");
        let clock = if random.percent(70) { clock } else { -clock };
        // Memory and clocks cost a node its vote for four seconds: most faults are of other kinds,
        // or nothing would be granted.
        let what = match random.below(100) {
            0..5 => FaultKind::KillKeeping,
            5..9 => FaultKind::PowerLoss,
            9..13 => FaultKind::KillForgetting,
            13..15 => FaultKind::KillMajority,
            15..19 => FaultKind::Flush,
            19..31 => FaultKind::Freeze,
            31..36 => FaultKind::Clock(clock),
            36..38 => FaultKind::Clocks(clock.abs()),
            38..49 => FaultKind::Delay(random.between(5, 400)),
            49..58 => FaultKind::LostAnswers,
            58..67 => FaultKind::LateDelivery,
            67..73 => FaultKind::Refusal,
            73..75 => FaultKind::RestartInTurn,
            75..79 => FaultKind::FailOver,
            79..82 => FaultKind::MovedName,
            82..86 => FaultKind::OldLog,
            86..89 => FaultKind::CannotSave,
            89..92 => FaultKind::Full,
            _ => FaultKind::FreezeInstance,
        };
        let (after, lasts) = (random.between(100, 900), random.between(100, 1_500));
        let node = usize::try_from(random.below(NODES as u64)).expect("small");
        let instance = usize::try_from(random.below(INSTANCES as u64)).expect("small");
        let planned_now = PlannedFault {
            after: Duration::from_millis(after),
            what,
            node,
            instance,
            lasts: Duration::from_millis(lasts),
        };
        at += planned_now.after + planned_now.lasts;
        planned.push(planned_now);
    }
    planned
}

fn now_us() -> u64 {
    SystemClock.now().as_micros()
}

/// Injects the faults, in order and one at a time, until `end`. Each is healed before the next. Returns
/// what happened when.
pub async fn run(cluster: &mut ChaosCluster, plan: Vec<PlannedFault>, end: BootTime) -> Vec<Fault> {
    let mut faults = Vec::new();
    for planned in plan {
        SystemClock.sleep_until(SystemClock.now().plus(planned.after).min(end)).await;
        if SystemClock.now() >= end {
            break;
        }
        let from = now_us();
        let (name, effect, everywhere) = inject(cluster, &planned).await;
        let node = (!everywhere).then_some(planned.node);
        faults.push(Fault { name, effect, node, from, to: now_us() });
    }
    cluster.heal();
    faults
}

async fn inject(cluster: &mut ChaosCluster, planned: &PlannedFault) -> (&'static str, Effect, bool) {
    let PlannedFault { what, node, instance, lasts, .. } = planned;
    let pause = || SystemClock.sleep(*lasts);
    let three = || (0..3).map(|i| (node + i) % NODES);
    match what {
        FaultKind::KillKeeping | FaultKind::KillForgetting => {
            let keeps = *what == FaultKind::KillKeeping;
            let server = &mut cluster.nodes[*node].server;
            server.kill();
            pause().await;
            if keeps {
                server.restart().await;
                return ("SIGKILL, log kept", Effect::Memory, false);
            }
            server.restart_empty().await;
            ("SIGKILL, all lost", Effect::Memory, false)
        }
        FaultKind::PowerLoss => {
            power_loss(cluster, *node).await;
            ("SIGKILL, last second of the log lost", Effect::Memory, false)
        }
        FaultKind::KillMajority => {
            three().for_each(|n| cluster.nodes[n].server.kill());
            for n in three() {
                cluster.nodes[n].server.restart_empty().await;
            }
            ("SIGKILL of three nodes, all lost", Effect::Memory, true)
        }
        FaultKind::Flush => {
            let _: Result<(), _> = cluster.nodes[*node].server.try_ask(&["FLUSHALL"]).await;
            ("FLUSHALL", Effect::Memory, false)
        }
        FaultKind::Freeze => {
            cluster.nodes[*node].server.freeze();
            pause().await;
            cluster.nodes[*node].server.thaw();
            ("SIGSTOP of a node", Effect::Late, false)
        }
        FaultKind::Clock(by) => {
            cluster.nodes[*node].set_clock_ahead(*by);
            pause().await;
            cluster.nodes[*node].set_clock_ahead(0);
            ("clock step and back", Effect::Clock, false)
        }
        FaultKind::Clocks(by) => {
            three().for_each(|n| cluster.nodes[n].set_clock_ahead(*by));
            pause().await;
            three().for_each(|n| cluster.nodes[n].set_clock_ahead(0));
            ("clock step of three nodes and back", Effect::Clock, true)
        }
        FaultKind::FreezeInstance => {
            if let Some(instance) = cluster.instances.get(*instance) {
                instance.freeze();
                pause().await;
                instance.thaw();
            }
            ("SIGSTOP of an instance", Effect::Late, true)
        }
        FaultKind::RestartInTurn => {
            views::restart_in_turn(cluster).await;
            ("restart of all nodes in turn, all lost", Effect::Memory, true)
        }
        FaultKind::FailOver => {
            views::fail_over_and_back(cluster, *node, *lasts).await;
            ("failover to a replica and back", Effect::Memory, false)
        }
        FaultKind::MovedName => {
            views::move_name(cluster, *instance, *node, *lasts).await;
            ("a name leads one instance elsewhere", Effect::Memory, false)
        }
        FaultKind::OldLog => {
            views::restore_old_log(cluster, *node, *lasts).await;
            ("SIGKILL, old log restored", Effect::Memory, false)
        }
        FaultKind::CannotSave => {
            views::refuse_writes(&cluster.nodes[*node].server, *lasts).await;
            ("failed snapshot", Effect::Late, false)
        }
        FaultKind::Full => {
            views::fill_memory(&cluster.nodes[*node].server, *lasts).await;
            ("memory full", Effect::Late, false)
        }
        weather => {
            let proxy = &cluster.proxies[*instance][*node];
            let name = match weather {
                FaultKind::Delay(ms) => {
                    let slow = Flow::Delay(Duration::from_millis(*ms));
                    proxy.set(Weather { to_node: slow, to_client: slow, ..FAIR });
                    "delay"
                }
                FaultKind::LostAnswers => {
                    proxy.set(Weather { to_client: Flow::Silent, passes_close: false, ..FAIR });
                    "half-open connection"
                }
                FaultKind::LateDelivery => {
                    proxy.set(Weather { to_node: Flow::Hold, ..FAIR });
                    "requests delivered after a reset"
                }
                _ => {
                    proxy.set(Weather { accepts: false, ..FAIR });
                    proxy.reset();
                    "connections refused"
                }
            };
            pause().await;
            if *weather == FaultKind::LateDelivery {
                proxy.reset();
            }
            proxy.set(FAIR);
            (name, Effect::Late, false)
        }
    }
}

/// The page cache survives a SIGKILL, so the log is truncated explicitly.
async fn power_loss(cluster: &mut ChaosCluster, node: usize) {
    let log = cluster.nodes[node].log_file().await;
    let size = |log: &std::path::PathBuf| std::fs::metadata(log).map(|m| m.len()).ok();
    let synced = log.as_ref().and_then(size);
    SystemClock.sleep(UNSYNCED).await;
    cluster.nodes[node].server.kill();
    if let (Some(log), Some(synced)) = (log, synced)
        && let Ok(file) = File::options().write(true).open(log)
    {
        file.set_len(synced).expect("our own file");
    }
    cluster.nodes[node].server.restart().await;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_has_one_plan_and_a_long_plan_has_every_fault() {
        let day = Duration::from_secs(3_600);
        let text = |seed| format!("{:?}", plan(seed, day));
        assert_eq!(text(7), text(7));
        assert_ne!(text(7), text(8));
        for word in
            ["KillKeeping", "PowerLoss", "KillMajority", "Flush", "Freeze,", "Clocks", "LostAnswers", "LateDelivery"]
                .into_iter()
                .chain(["RestartInTurn", "FailOver", "MovedName", "OldLog", "CannotSave", "Full"])
        {
            assert!(text(7).contains(word), "{word}");
        }
    }
}
