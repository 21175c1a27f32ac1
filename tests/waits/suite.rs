//! Seeds of the ordinary suite, and the planted bugs that must be found.
#![expect(clippy::print_stdout, reason = "the seeds that find a bug are part of the test's output")]

use super::scenario::run_seed;
use crate::mutant::FOUND_BY_WAITS;

const SEEDS: u64 = 200;
/// Seeds that a planted bug may take.
const BUDGET: u64 = 800;

/// `WAITS_SEED`: one seed to replay; `WAITS_SEEDS`: how many to run.
fn setting(key: &str) -> Option<u64> {
    std::env::var(key).ok().and_then(|s| s.parse().ok())
}

#[test]
fn waiters_are_woken_in_order_and_leave_nothing_behind() {
    let one = setting("WAITS_SEED");
    let seeds = one.map_or(0..setting("WAITS_SEEDS").unwrap_or(SEEDS), |seed| seed..seed + 1);
    let (mut grants, mut deadlocks) = (0, 0);
    for seed in seeds {
        let outcome = run_seed(seed, None);
        assert_eq!(outcome.violation, None, "seed {seed}");
        (grants, deadlocks) = (grants + outcome.grants, deadlocks + outcome.deadlocks);
    }
    println!("{grants} grants, {deadlocks} deadlocks");
    assert!(one.is_some() || (grants > 3_000 && deadlocks > 20), "{grants} grants, {deadlocks} deadlocks");
}

#[test]
fn a_seed_has_one_history() {
    // The second ten have connections that break while several resources are subscribed to.
    for seed in (0..10).chain(150..160) {
        assert_eq!(run_seed(seed, None).history, run_seed(seed, None).history, "seed {seed}");
    }
}

#[test]
fn every_planted_bug_is_found() {
    for &bug in FOUND_BY_WAITS {
        let found = (0..setting("WAITS_SEEDS").unwrap_or(BUDGET))
            .find_map(|seed| run_seed(seed, Some(bug)).violation.map(|why| (seed, why)));
        println!("{bug:?}: {found:?}");
        assert!(found.is_some(), "{bug:?} was not found in {BUDGET} seeds");
    }
}
