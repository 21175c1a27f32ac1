//! Schemathesis against the running service and its own openapi.yaml: all checks, stateful links
//! included. What it is not to look at, and why, stands in tests/schemathesis/schemathesis.toml.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::access::{Access, entry, key};
use crate::support::programs::skipped;

/// Examples per operation and phase: more than four thousand cases in all, within a minute or two.
const EXAMPLES: &str = "600";
/// The least number of cases that this makes.
const CASES_MIN: usize = 3_000;

/// The program in the virtual environment that `make test` prepares.
///
/// Panics: where it is missing and `CI` is `true`; otherwise says so, for a test that then ends.
fn schemathesis() -> Option<PathBuf> {
    let program = Path::new(env!("CARGO_MANIFEST_DIR")).join("target/venv/bin/st");
    let works = Command::new(&program).arg("--version").output().is_ok_and(|output| output.status.success());
    if works {
        return Some(program);
    }
    let missing = "schemathesis is missing in target/venv: `make test` installs it";
    skipped(missing);
    None
}

#[tokio::test(flavor = "multi_thread")]
async fn the_service_keeps_its_contract_whatever_is_sent() {
    let Some(program) = schemathesis() else { return };
    let more = "requests_per_second = 1000000\nleases = 1000000";
    let access = Access::with(&entry("st", &[&key("st")], &["admin"], more));
    let service = access.service(&[]).await;
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    // One worker: with two, the library that draws the examples may trip over itself.
    let mut command = tokio::process::Command::new(program);
    command.current_dir(root).args(["--config-file", "tests/schemathesis/schemathesis.toml", "run", "openapi.yaml"]);
    command.args(["--url", service.client().base(), "--checks", "all", "-n", EXAMPLES, "--workers", "1", "--no-color"]);
    // The same cases each time; another seed looks for others.
    let seed = std::env::var("REDLOCKD_SCHEMATHESIS_SEED").unwrap_or_else(|_| "1".to_owned());
    command.args([
        "--seed",
        &seed,
        "--generation-database",
        "none",
        "-H",
        &format!("Authorization: Bearer {}", key("st")),
    ]);
    let output = command.output().await.expect("it runs");
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{said}{}", String::from_utf8_lossy(&output.stderr));
    let cases = said.lines().find_map(|line| line.trim().split_once(" generated, ")?.0.parse::<usize>().ok());
    let cases = cases.expect("a number of cases");
    assert!(cases >= CASES_MIN, "only {cases} cases: {said}");
    // It is still in its right mind.
    service.client().get("/health/ready").await.expect_status(200);
    assert!(!service.output().iter().any(|line| line.contains("panicked")));
}
