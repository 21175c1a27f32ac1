//! What goes wrong, and when: a schedule drawn from the seed before the run begins, so that the same
//! seed brings the same faults at the same times, whatever is tormented by them. Knows no client.

use std::fs::File;
use std::time::Duration;

use redlockd::redlock::clock::{BootTime, Clock, SystemClock};

use super::history::{Fault, Harm};
use super::rig::{INSTANCES, NODES, Rig};
use super::support::chaos_proxy::{FAIR, Flow, Weather};
use super::support::seeded::Seeded;
use redlockd::redlock::entropy::Entropy;

/// How much of a log a power loss may take: what was written since then, but not synced.
const UNSYNCED: Duration = Duration::from_secs(1);

/// One kind of fault, to one node, some or all.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum What {
    /// SIGKILL, restarted with its log.
    KillKeeping,
    /// SIGKILL, restarted with the log as it was a second ago.
    PowerLoss,
    /// SIGKILL, restarted empty.
    KillForgetting,
    /// Three of five at once, restarted empty.
    Rack,
    Flush,
    Freeze,
    /// One wall clock ahead or behind, and back.
    Clock(i64),
    /// Three of five wall clocks ahead at once, and back.
    Clocks(i64),
    /// One instance's requests and answers take this long.
    Delay(u64),
    /// One instance's answers are swallowed, its requests are not.
    DeafInstance,
    /// One instance's requests are held back, its connection reset, and the requests delivered then.
    LateDelivery,
    /// One instance cannot reach this node.
    Refusal,
    /// An instance is stopped.
    FreezeInstance,
}

/// When, where, and for how long.
#[derive(Debug, Clone)]
pub struct Planned {
    pub after: Duration,
    pub what: What,
    pub node: usize,
    pub instance: usize,
    pub lasts: Duration,
}

/// The faults of a seed, for so long.
pub fn plan(seed: u64, total: Duration) -> Vec<Planned> {
    let random = Seeded::new(seed, 1);
    let mut planned = Vec::new();
    let mut at = Duration::ZERO;
    while at < total {
        let clock = i64::try_from(random.between(800, 9_000)).expect("small");
        let clock = if random.percent(70) { clock } else { -clock };
        // Memory and clocks cost a node its vote for four seconds: most faults are of other kinds,
        // or nobody would be granted anything.
        let what = match random.below(100) {
            0..5 => What::KillKeeping,
            5..10 => What::PowerLoss,
            10..15 => What::KillForgetting,
            15..17 => What::Rack,
            17..21 => What::Flush,
            21..37 => What::Freeze,
            37..42 => What::Clock(clock),
            42..44 => What::Clocks(clock.abs()),
            44..58 => What::Delay(random.between(5, 400)),
            58..69 => What::DeafInstance,
            69..80 => What::LateDelivery,
            80..87 => What::Refusal,
            _ => What::FreezeInstance,
        };
        let (after, lasts) = (random.between(100, 900), random.between(100, 1_500));
        let node = usize::try_from(random.below(NODES as u64)).expect("small");
        let instance = usize::try_from(random.below(INSTANCES as u64)).expect("small");
        let planned_now =
            Planned { after: Duration::from_millis(after), what, node, instance, lasts: Duration::from_millis(lasts) };
        at += planned_now.after + planned_now.lasts;
        planned.push(planned_now);
    }
    planned
}

fn now_us() -> u64 {
    SystemClock.now().as_micros()
}

/// Lets the faults happen, in order and never two at a time, until `end`. What is broken is mended
/// before the next. Returns what happened when.
pub async fn run(rig: &mut Rig, plan: Vec<Planned>, end: BootTime) -> Vec<Fault> {
    let mut faults = Vec::new();
    for planned in plan {
        SystemClock.sleep_until(SystemClock.now().plus(planned.after).min(end)).await;
        if SystemClock.now() >= end {
            break;
        }
        let from = now_us();
        let (name, harm, everywhere) = happen(rig, &planned).await;
        let node = (!everywhere).then_some(planned.node);
        faults.push(Fault { name, harm, node, from, to: now_us() });
    }
    rig.heal();
    faults
}

async fn happen(rig: &mut Rig, planned: &Planned) -> (&'static str, Harm, bool) {
    let Planned { what, node, instance, lasts, .. } = planned;
    let pause = || SystemClock.sleep(*lasts);
    let three = || (0..3).map(|i| (node + i) % NODES);
    match what {
        What::KillKeeping | What::KillForgetting => {
            let keeps = *what == What::KillKeeping;
            let server = &mut rig.nodes[*node].server;
            server.kill();
            pause().await;
            if keeps {
                server.restart().await;
                return ("SIGKILL, log kept", Harm::Memory, false);
            }
            server.restart_empty().await;
            ("SIGKILL, all lost", Harm::Memory, false)
        }
        What::PowerLoss => {
            power_loss(rig, *node).await;
            ("SIGKILL, last second of the log lost", Harm::Memory, false)
        }
        What::Rack => {
            three().for_each(|n| rig.nodes[n].server.kill());
            for n in three() {
                rig.nodes[n].server.restart_empty().await;
            }
            ("SIGKILL of three nodes, all lost", Harm::Memory, true)
        }
        What::Flush => {
            let _: Result<(), _> = rig.nodes[*node].server.try_ask(&["FLUSHALL"]).await;
            ("FLUSHALL", Harm::Memory, false)
        }
        What::Freeze => {
            rig.nodes[*node].server.freeze();
            pause().await;
            rig.nodes[*node].server.thaw();
            ("SIGSTOP of a node", Harm::Late, false)
        }
        What::Clock(by) => {
            rig.nodes[*node].set_clock_ahead(*by);
            pause().await;
            rig.nodes[*node].set_clock_ahead(0);
            ("clock step and back", Harm::Clock, false)
        }
        What::Clocks(by) => {
            three().for_each(|n| rig.nodes[n].set_clock_ahead(*by));
            pause().await;
            three().for_each(|n| rig.nodes[n].set_clock_ahead(0));
            ("clock step of three nodes and back", Harm::Clock, true)
        }
        What::FreezeInstance => {
            if let Some(instance) = rig.instances.get(*instance) {
                instance.freeze();
                pause().await;
                instance.thaw();
            }
            ("SIGSTOP of an instance", Harm::Late, true)
        }
        weather => {
            let proxy = &rig.proxies[*instance][*node];
            let name = match weather {
                What::Delay(ms) => {
                    let slow = Flow::Delay(Duration::from_millis(*ms));
                    proxy.set(Weather { to_node: slow, to_client: slow, ..FAIR });
                    "delay"
                }
                What::DeafInstance => {
                    proxy.set(Weather { to_client: Flow::Silent, tells_close: false, ..FAIR });
                    "half-open connection"
                }
                What::LateDelivery => {
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
            if *weather == What::LateDelivery {
                proxy.reset();
            }
            proxy.set(FAIR);
            (name, Harm::Late, false)
        }
    }
}

/// The machine's page cache survives a SIGKILL, so a lost tail is cut off by hand.
async fn power_loss(rig: &mut Rig, node: usize) {
    let log = rig.nodes[node].log_file().await;
    let size = |log: &std::path::PathBuf| std::fs::metadata(log).map(|m| m.len()).ok();
    let synced = log.as_ref().and_then(size);
    SystemClock.sleep(UNSYNCED).await;
    rig.nodes[node].server.kill();
    if let (Some(log), Some(synced)) = (log, synced)
        && let Ok(file) = File::options().write(true).open(log)
    {
        file.set_len(synced).expect("our own file");
    }
    rig.nodes[node].server.restart().await;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_has_one_plan_and_a_long_one_has_every_fault() {
        let day = Duration::from_secs(3_600);
        let text = |seed| format!("{:?}", plan(seed, day));
        assert_eq!(text(7), text(7));
        assert_ne!(text(7), text(8));
        for word in ["KillKeeping", "PowerLoss", "Rack", "Flush", "Freeze,", "Clocks", "DeafInstance", "LateDelivery"] {
            assert!(text(7).contains(word), "{word}");
        }
    }
}
