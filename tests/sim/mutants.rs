//! Each mutant must be detected within a budget of seeds: a simulation that cannot find bugs proves
//! nothing by finding none. Mutants that are too rare for seeds are searched for by hand (`rare_mutants`).
#![expect(clippy::print_stdout, reason = "the table of seeds is the output of the run")]

use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::profile::Profile;
use super::run::run;
use crate::mutant::{FOUND_BY_CHANGED_LISTS, FOUND_BY_REFERENCE, FOUND_BY_SIM, FOUND_IN_QUEUES, Mutant, RARE};

/// Maximum number of seeds until a mutant is detected.
const BUDGET: u64 = 3_000;

/// Seeds that detect mutants which few seeds do: tried first. If one does not detect its mutant any more, the search takes longer.
const DETECTING: [(Mutant, u64); 8] = [
    (Mutant::OldCopyCounted, 1707),
    (Mutant::HalfQuarantine, 1010),
    (Mutant::ExtendUnclaimed, 303),
    (Mutant::ClockBackUnnoticed, 258),
    (Mutant::ClockAtStartIgnored, 236),
    (Mutant::PartOfNames, 224),
    (Mutant::NoLockDelay, 176),
    (Mutant::ExtendCreates, 114),
];

#[derive(Debug)]
struct Found {
    mutant: Mutant,
    after: u64,
    text: Option<String>,
}

/// The mutant of that name.
pub(super) fn named(name: &str) -> Option<Mutant> {
    [FOUND_BY_SIM, FOUND_IN_QUEUES, FOUND_BY_REFERENCE, FOUND_BY_CHANGED_LISTS, RARE]
        .concat()
        .into_iter()
        .find(|mutant| format!("{mutant:?}") == name)
}

fn search(mutant: Mutant, budget: u64) -> Found {
    let is_planted_in = |seed: &u64| std::env::var("SIM_DURABLE").is_err() || Profile::of(*seed).durable;
    let first = DETECTING.iter().filter(|(detected, _)| *detected == mutant).map(|(_, seed)| *seed);
    for seed in first.chain(0..budget).filter(is_planted_in) {
        if let Some(text) = run(seed, Some(mutant), false).violation {
            return Found { mutant, after: seed + 1, text: Some(text) };
        }
    }
    Found { mutant, after: budget, text: None }
}

#[test]
fn every_mutant_is_detected() {
    assert_eq!(missed(FOUND_BY_SIM, BUDGET), []);
}

#[test]
fn every_mutant_of_the_queue_is_detected() {
    assert_eq!(missed(FOUND_IN_QUEUES, BUDGET), []);
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
