//! Prometheus of the distribution: its tools, for the tests that ask them. Where they are missing and
//! cannot be had, a test is skipped and says so.

use std::process::Command;

/// A program of Debian's package `prometheus`, to be given its arguments; `None` where it is not
/// there and there is no apt to get it with, which is said. Panics where `make deps` would have
/// installed it, and in a continuous build.
pub fn tool(name: &str) -> Option<Command> {
    let paths = std::env::var_os("PATH").unwrap_or_default();
    let has = |name: &str| std::env::split_paths(&paths).any(|dir| dir.join(name).is_file());
    if has(name) {
        return Some(Command::new(name));
    }
    let must = has("apt-get") || std::env::var_os("CI").is_some_and(|ci| ci == "true");
    assert!(!must, "{name} is missing: run `make deps`");
    #[expect(clippy::print_stderr, reason = "a test that is skipped says so")]
    {
        eprintln!("SKIPPED: {name} is not installed, and there is no apt to install it with");
    }
    None
}
