//! The figures of a run, as `docs/verification.md` has them.

use std::collections::BTreeMap;
use std::time::Duration;

use super::history::{History, Loss};

/// One run. `--nocapture` shows it.
#[expect(clippy::print_stdout, reason = "figures are its output")]
pub fn print(who: &str, seed: u64, ran: Duration, history: &History, violations: usize, recovery: Option<Duration>) {
    let mut faults: BTreeMap<&str, u32> = BTreeMap::new();
    for fault in &history.faults {
        *faults.entry(fault.name).or_default() += 1;
    }
    let mut refusals: BTreeMap<String, u32> = BTreeMap::new();
    for refusal in &history.refusals {
        *refusals.entry(format!("{} {}", refusal.no.status, refusal.no.reason)).or_default() += 1;
    }
    let extends: u32 = history.grants.iter().map(|g| g.extends).sum();
    println!("{who}: seed {seed}, {} s", ran.as_secs());
    println!("  faults {}: {faults:?}", history.faults.len());
    let shared = history.grants.iter().filter(|g| g.is_shared).count();
    println!(
        "  grants {}, of which {shared} shared, extends {extends}, refusals {}: {refusals:?}",
        history.grants.len(),
        history.refusals.len()
    );
    println!("  hang-ups {}, answers that never came {}", history.hang_ups, history.lost_answers);
    println!("  register: {} writes taken, {} late writes stopped", history.writes, history.late_writes_stopped);
    if let Some(recovery) = recovery {
        println!("  all resources granted on all instances {} ms after healing", recovery.as_millis());
    }
    println!("  violations {violations}");
}

/// A lease that was reported as lost, and the faults since it was requested.
#[expect(clippy::print_stdout, reason = "figures are its output")]
pub fn print_loss(loss: &Loss, history: &History) {
    println!("  reported as lost: {loss:?}");
    for fault in history.faults_before(loss.at, loss.at.saturating_sub(loss.grant.sent)) {
        println!("    {fault:?}");
    }
}
