//! Each mutant must be detected within a budget of seeds: a simulation that cannot find bugs proves
//! nothing by finding none. Mutants that are too rare for seeds are listed with the reason.
#![expect(clippy::print_stdout, reason = "the table of seeds is the output of the run")]

use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::run::run;
use crate::mutant::Mutant;

/// Maximum number of seeds until a mutant is detected.
const BUDGET: u64 = 3_000;

/// Mutants that must be detected.
const PLANTED: [Mutant; 28] = {
    use Mutant::*;
    [
        QuorumHalf,
        ValidityFromReply,
        NoDrift,
        NoGuard,
        NoLockDelay,
        CancelWhereGranted,
        NoCleanup,
        CleanupWithRequest,
        CancelByToken,
        ExtendCreates,
        ExtendUnclaimed,
        ExtendByMinority,
        ExtendReleases,
        RepairVotes,
        NoQuarantine,
        HalfQuarantine,
        RestartUnnoticed,
        ClockBackUnnoticed,
        NoSeed,
        NoWriteBack,
        CountersForgotten,
        NoTombstone,
        NoRecheck,
        StampFollowsWall,
        RetryKeepsStart,
        NoFingerprint,
        ReleaseBelievesAll,
        InitBlocked,
    ]
};

/// Each needs several faults in one order within milliseconds, once in tens of thousands of seeds; the
/// model of the protocol detects them, and `rare_mutants` searches for them by hand.
/// `RepairUnconfirmed`: an extend fails, its repair arrives where another lease has just ended, and a
/// later extend takes that for a vote. `SeedFromOne`: the one node that answers missed the latest
/// fence, and is half of the next quorum. `WriteBackUnheld`: the lease is granted to another client between
/// a round and its write-back. `FollowAtOnce`: the order of the quarantine is lost on two nodes, and no
/// other instance gives it. `QuarantineReplaced`: a node that has just forgotten is stepped back and returns, and one
/// instance sees neither (seed 543915). `OrderedByOneClock`: a node forgets while its clock is back, and is ordered into quarantine
/// by an instance with the right time (seed 737891). `FollowOneNode` and
/// `FutureByClock` cost votes while a node is stepped, or until its clock has caught up, and no promise.
const RARE: [Mutant; 8] = [
    Mutant::OrderedByOneClock,
    Mutant::QuarantineReplaced,
    Mutant::FutureByClock,
    Mutant::FollowAtOnce,
    Mutant::FollowOneNode,
    Mutant::RepairUnconfirmed,
    Mutant::SeedFromOne,
    Mutant::WriteBackUnheld,
];

#[derive(Debug)]
struct Found {
    mutant: Mutant,
    after: u64,
    text: Option<String>,
}

/// The mutant of that name.
pub(super) fn named(name: &str) -> Option<Mutant> {
    PLANTED.into_iter().chain(RARE).find(|mutant| format!("{mutant:?}") == name)
}

fn search(mutant: Mutant, budget: u64) -> Found {
    for seed in 0..budget {
        if let Some(text) = run(seed, Some(mutant), false).violation {
            return Found { mutant, after: seed + 1, text: Some(text) };
        }
    }
    Found { mutant, after: budget, text: None }
}

#[test]
fn every_mutant_is_detected() {
    assert_eq!(missed(&PLANTED, BUDGET), []);
}

/// By hand: `SIM_SEEDS=100000 cargo test --lib sim::mutants::rare -- --ignored --nocapture`, and with
/// `SIM_BUG=NoGuard` any single one.
#[test]
#[ignore = "takes long: run by hand"]
fn rare_mutants() {
    let budget = std::env::var("SIM_SEEDS").ok().and_then(|s| s.parse().ok()).unwrap_or(30_000);
    let one = std::env::var("SIM_BUG").ok().and_then(|name| named(&name));
    let planted = one.map_or(RARE.to_vec(), |mutant| vec![mutant]);
    println!("not found in {budget} seeds: {:?}", missed(&planted, budget));
}

/// Those that were not detected.
fn missed(planted: &[Mutant], budget: u64) -> Vec<Mutant> {
    let (next, found) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
    std::thread::scope(|scope| {
        for _ in 0..std::thread::available_parallelism().map_or(2, usize::from) {
            scope.spawn(|| {
                while let Some(mutant) = planted.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let one = search(*mutant, budget);
                    println!("{:?}: {} seeds: {:?}", one.mutant, one.after, one.text);
                    found.lock().expect("no panic").push(one);
                }
            });
        }
    });
    let found = found.into_inner().expect("no panic");
    found.iter().filter(|f| f.text.is_none()).map(|f| f.mutant).collect()
}
