//! Seeds of the ordinary suite, and the planted bugs that must be found.
#![expect(clippy::print_stdout, reason = "the seeds that find a bug are for whoever reads the run")]

use super::play::play;
use crate::redlock::mutant::Mutant;

const SEEDS: u64 = 200;
/// Seeds that a planted bug may take.
const BUDGET: u64 = 200;

/// Bugs of the waiting room.
const PLANTED: [Mutant; 10] = [
    Mutant::LeaverCallsNobody,
    Mutant::NoticesIgnored,
    Mutant::ListensTooLate,
    Mutant::DeafnessUnnoticed,
    Mutant::EveryoneContends,
    Mutant::GrantUnanswered,
    Mutant::EndsCountOnce,
    Mutant::HolderUnconfirmed,
    Mutant::DeadlockUnverified,
    Mutant::DeadlockUntold,
];

#[test]
fn nobody_sleeps_beside_a_free_lock_nobody_overtakes_and_nothing_is_left_of_who_hung_up() {
    let one = std::env::var("WAITS_SEED").ok().and_then(|s| s.parse::<u64>().ok());
    let seeds = one.map_or(0..SEEDS, |seed| seed..seed + 1);
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
    for seed in 0..10 {
        let (first, second) = (play(seed, None), play(seed, None));
        assert_eq!((first.grants, first.deadlocks), (second.grants, second.deadlocks), "seed {seed}");
    }
}

#[test]
fn every_planted_bug_is_found() {
    for bug in PLANTED {
        let found = (0..BUDGET).find_map(|seed| play(seed, Some(bug)).violation.map(|why| (seed, why)));
        println!("{bug:?}: {found:?}");
        assert!(found.is_some(), "{bug:?} was not found in {BUDGET} seeds");
    }
}
