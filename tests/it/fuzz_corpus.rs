//! The corpus of the fuzz targets, through the same functions, in every run of the tests; and each of
//! its entries cut short and changed in places, since a corpus alone finds nothing new.

#[path = "../../fuzz/bodies.rs"]
mod bodies;

use std::path::Path;

use redlockd::redlock::entropy::{Entropy, SystemEntropy};

/// A name, and what is done with one input.
type Target = (&'static str, fn(&[u8]));

const TARGETS: [Target; 7] = [
    ("names", bodies::names),
    ("durations", bodies::durations),
    ("bodies", bodies::bodies),
    ("headers", bodies::headers),
    ("settings", bodies::settings),
    ("access_file", bodies::access_file),
    ("replies", bodies::replies),
];
/// Changed copies of each entry.
const CHANGED: usize = 20;
/// Copies of each entry that are cut short.
const CUTS: usize = 40;

#[test]
fn the_corpus_and_what_is_near_it_break_nothing() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz");
    for (name, target) in TARGETS {
        let mut entries = 0;
        for entry in std::fs::read_dir(root.join("corpus").join(name)).expect(name) {
            let data = std::fs::read(entry.expect("readable").path()).expect("readable");
            target(&data);
            for cut in (0..data.len()).step_by(data.len() / CUTS + 1) {
                target(&data[..cut]);
            }
            for _ in 0..CHANGED {
                let mut changed = data.clone();
                for _ in 0..=SystemEntropy.below(3) {
                    let length = u64::try_from(changed.len().max(1)).expect("small");
                    let at = usize::try_from(SystemEntropy.below(length)).expect("small");
                    let byte = u8::try_from(SystemEntropy.below(256)).expect("a byte");
                    if let Some(old) = changed.get_mut(at) {
                        *old = byte;
                    }
                }
                // A panic names the place; this names the input.
                let seen = std::panic::catch_unwind(|| target(&changed));
                assert!(seen.is_ok(), "{name}: {:?}", String::from_utf8_lossy(&changed));
            }
            entries += 1;
        }
        assert!(entries >= 20, "{name} has no corpus");
    }
}

/// Each target is built by `make fuzz` and has its corpus.
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
