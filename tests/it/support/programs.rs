//! What a test does without a program that it calls: it says that it is skipped, or fails where `CI` is `true`.

use std::process::Command;

/// Whether this is a continuous build, in which nothing is skipped.
pub fn is_ci() -> bool {
    std::env::var_os("CI").is_some_and(|ci| ci == "true")
}

/// Says that a test, or a part of it, is skipped. Panics: where `CI` is `true`.
#[expect(clippy::print_stderr, reason = "a test that is skipped says so")]
pub fn skipped(why: &str) {
    assert!(!is_ci(), "{why}");
    eprintln!("skipped: {why}");
}

/// Whether the program is installed. Panics: as [`skipped`].
pub fn has(program: &str) -> bool {
    let found = Command::new(program).arg("--version").output().is_ok();
    if !found {
        skipped(&format!("{program} is missing: `make deps` installs it"));
    }
    found
}
