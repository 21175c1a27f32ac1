//! Seeds of the ordinary suite, and the planted bugs that must be found.
#![expect(clippy::print_stdout, reason = "the seeds that find a bug are for whoever reads the run")]

use super::play::play;
use crate::mutant::FOUND_BY_WAITS;

const SEEDS: u64 = 200;
/// Seeds that a planted bug may take.
const BUDGET: u64 = 200;

/// What whoever replays or searches sets: `WAITS_SEED`, one seed; `WAITS_SEEDS`, how many.
fn set(key: &str) -> Option<u64> {
    std::env::var(key).ok().and_then(|s| s.parse().ok())
}

#[test]
fn nobody_sleeps_beside_a_free_lock_nobody_overtakes_and_nothing_is_left_of_who_hung_up() {
    let one = set("WAITS_SEED");
    let seeds = one.map_or(0..set("WAITS_SEEDS").unwrap_or(SEEDS), |seed| seed..seed + 1);
    let (mut grants, mut deadlocks) = (0, 0);
    for seed in seeds {
        let outcome = play(seed, None);
        assert_eq!(outcome.violation, None, "seed {seed}");
        (grants, deadlocks) = (grants + outcome.grants, deadlocks + outcome.deadlocks);
    }
    println!("{grants} grants, {deadlocks} deadlocks");
    assert!(one.is_some() || (grants > 3_000 && deadlocks > 20), "{grants} grants, {deadlocks} deadlocks");
}

#[test]
fn a_seed_gives_one_history() {
    // The second ten have lines that break while several resources are listened to.
    for seed in (0..10).chain(150..160) {
        assert_eq!(play(seed, None).history, play(seed, None).history, "seed {seed}");
    }
}

#[test]
fn every_planted_bug_is_found() {
    for &bug in FOUND_BY_WAITS {
        let found = (0..set("WAITS_SEEDS").unwrap_or(BUDGET))
            .find_map(|seed| play(seed, Some(bug)).violation.map(|why| (seed, why)));
        println!("{bug:?}: {found:?}");
        assert!(found.is_some(), "{bug:?} was not found in {BUDGET} seeds");
    }
}
