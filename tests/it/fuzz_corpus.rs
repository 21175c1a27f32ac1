//! Runs the seeds of the fuzz targets (`fuzz/corpus`) through the functions that are fuzzed. Each seed is
//! also truncated and mutated; the mutations are the same in every run.

#[path = "../../fuzz/bodies.rs"]
mod bodies;

use std::path::Path;

use redlockd::protocol::OPERATIONS;
use redlockd::redlock::random::Entropy;

use crate::support::seeded::Seeded;

/// A target's name, and the function that takes one input.
type Target = (&'static str, fn(&[u8]));

const TARGETS: [Target; 13] = [
    ("names", bodies::names),
    ("durations", bodies::durations),
    ("bodies", bodies::bodies),
    ("headers", bodies::headers),
    ("settings", bodies::settings),
    ("access_file", bodies::access_file),
    ("replies", bodies::replies),
    ("tokens", bodies::tokens),
    ("queries", bodies::queries),
    ("callers", bodies::callers),
    ("published", bodies::published),
    ("streams", bodies::streams),
    ("tickets", bodies::tickets),
];
/// Seeds of one target, at least. Each has a name that says what is in it.
const SEEDS: usize = 10;
/// Mutated copies of each seed.
const MUTATIONS: usize = 80;
/// Truncated copies of each seed, at most.
const CUTS: usize = 40;

#[test]
fn seeds_and_their_mutations_break_nothing() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz");
    for (stream, (name, target)) in (0..).zip(TARGETS) {
        let random = Seeded::new(1, stream);
        let entries = std::fs::read_dir(root.join("corpus").join(name)).expect(name);
        // In one order on every machine, so that the mutations are the same.
        let mut seeds: Vec<_> = entries.map(|entry| entry.expect("readable").path()).collect();
        seeds.sort();
        assert!(seeds.len() >= SEEDS, "{name}: {} seeds", seeds.len());
        for seed in seeds {
            let data = std::fs::read(&seed).expect("readable");
            target(&data);
            for cut in (0..data.len()).step_by(data.len() / CUTS + 1) {
                target(&data[..cut]);
            }
            for _ in 0..MUTATIONS {
                let mut mutated = data.clone();
                for _ in 0..=random.below(3) {
                    let length = u64::try_from(mutated.len().max(1)).expect("small");
                    let index = usize::try_from(random.below(length)).expect("small");
                    let byte = u8::try_from(random.below(256)).expect("a byte");
                    if let Some(old) = mutated.get_mut(index) {
                        *old = byte;
                    }
                }
                // The panic's message names the line; this one names the input.
                let outcome = std::panic::catch_unwind(|| target(&mutated));
                assert!(outcome.is_ok(), "{name}, {}: {:?}", seed.display(), String::from_utf8_lossy(&mutated));
            }
        }
    }
}

/// Each target of this list is one of the fuzz crate, and the other way round.
#[test]
fn the_targets_are_those_of_the_fuzz_crate() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz");
    let manifest = std::fs::read_to_string(root.join("Cargo.toml")).expect("readable");
    for (name, _) in TARGETS {
        assert!(manifest.contains(&format!("name = \"{name}\"")), "{name}");
        assert!(root.join("fuzz_targets").join(format!("{name}.rs")).exists(), "{name}");
    }
    assert_eq!(manifest.matches("[[bin]]").count(), TARGETS.len());
}

/// The replies to every kind of request are read.
#[test]
fn replies_are_parsed_for_every_kind_of_request() {
    let requests = bodies::requests();
    for operation in OPERATIONS {
        assert!(requests.iter().any(|request| request.operation() == operation), "{operation}");
    }
}
