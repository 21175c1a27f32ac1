//! `redlockd run --on-lost warn` when `run` is stopped or killed: its watchdog renews the lease until the command has ended.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::time::Duration;

use futures_util::future::join_all;
use redlockd::redlock::clock::{Clock, SystemClock};
use rustix::process::Signal;
use tempfile::TempDir;

use crate::support::daemon::{Daemon, Running, is_running, line_in};
use crate::support::poll;

/// TTL of the leases.
const TTL: Duration = Duration::from_secs(3);
const GOES_ON: &str = "; the command continues WITHOUT the lock (--on-lost=warn)";

/// A `run` whose command works until the file `go` is there, and ends with 5.
struct Warned {
    dir: TempDir,
    run: Running,
    pid: String,
}

impl Warned {
    /// Returns when the watchdog knows the command: only then does `run` forward signals.
    async fn start(daemon: &Daemon, how: &[&str]) -> Self {
        let dir = tempfile::tempdir().expect("a directory");
        let at = dir.path().display();
        let script = format!(
            "trap 'echo x > {at}/usr1' USR1; echo $$ > {at}/pid; while [ ! -e {at}/go ]; do sleep 0.02; done; exit 5"
        );
        let args = [&["run", "--ttl", "3s", "--on-lost", "warn"], how, &["--", "sh", "-c", &script]].concat();
        let mut command = daemon.command(&args);
        let said = File::create(dir.path().join("said")).expect("a file");
        let mut run = Running::spawn(command.stderr(said).env("XDG_RUNTIME_DIR", dir.path()));
        let pid = line_in(&dir.path().join("pid")).await;
        run.signal(Signal::USR1);
        line_in(&dir.path().join("usr1")).await;
        Self { dir, run, pid }
    }

    /// Its messages and its watchdog's, but not that a renewal was late, as on a busy machine.
    fn said(&self) -> String {
        said_in(self.dir.path())
    }

    async fn until_said(&self, what: &str) {
        poll::until_true(&format!("it is said: {what}"), || self.said().contains(what)).await;
    }

    fn end_command(&self) {
        File::create(self.dir.path().join("go")).expect("writable");
    }

    /// The command's end, and with it that of a watchdog whose `run` was killed.
    async fn until_gone(&self) {
        poll::until_true("the command has ended", || !is_running(&self.pid)).await;
        poll::until_true("its token file is gone", || token_files(self.dir.path()).is_empty()).await;
    }
}

fn said_in(dir: &Path) -> String {
    let said = std::fs::read_to_string(dir.join("said")).expect("written");
    said.lines().filter(|line| !line.ends_with(" s left, trying again")).map(|line| format!("{line}\n")).collect()
}

fn token_files(dir: &Path) -> Vec<PathBuf> {
    let files = std::fs::read_dir(dir).expect("readable").map(|entry| entry.expect("readable").path());
    files.filter(|path| path.to_string_lossy().contains("redlockd-token-")).collect()
}

fn renewals(daemon: &Daemon, name: &str) -> u64 {
    daemon.json(&["status", "--json", name])["holders"][0]["renewals"].as_u64().expect("held")
}

fn released(daemon: &Daemon, name: &str) -> usize {
    let events = daemon.json(&["events", "--json", "--kind", "released", "--prefix", name]);
    events["events"].as_array().expect("a list").len()
}

/// The lock is held for half as long again as this TTL from now, renewed, and refused to another one.
pub async fn stays_held(daemon: &Daemon, name: &str, ttl: Duration) {
    let (begun, before) = (SystemClock.now(), renewals(daemon, name));
    poll::until_true("more than a TTL is over", || {
        let other = daemon.ask(&["run", name, "--", "true"]);
        assert_eq!(other.code, Some(75), "{other:?}");
        SystemClock.now().since(begun) > ttl * 3 / 2
    })
    .await;
    assert!(renewals(daemon, name) > before);
}

async fn outlives_its_run(how: &[&str], names: &[&str], stays: bool) {
    let daemon = Daemon::start();
    let mut warned = Warned::start(&daemon, how).await;
    warned.run.signal(Signal::KILL);
    join_all(names.iter().map(|name| stays_held(&daemon, name, TTL))).await;
    assert!(is_running(&warned.pid), "{how:?}");
    assert_eq!(token_files(warned.dir.path()).len(), 1, "the command may still use it");
    warned.end_command();
    warned.until_gone().await;
    for name in names {
        // Released, and not left to its TTL.
        assert_eq!(released(&daemon, name), usize::from(!stays), "{how:?}");
        assert!(stays || daemon.ask(&["status", name]).code == Some(1), "{how:?}");
    }
    let said = "redlockd: run was killed: the lease is renewed until its command ends (--on-lost=warn)\n";
    assert_eq!(warned.said(), said, "{how:?}");
}

#[tokio::test]
async fn a_killed_run_leaves_its_lease_to_the_watchdog() {
    tokio::join!(
        outlives_its_run(&["x"], &["x"], false),
        outlives_its_run(&["db/b", "db/a"], &["db/a", "db/b"], false),
        outlives_its_run(&["--shared", "x"], &["x"], false),
        outlives_its_run(&["--permits", "2", "x"], &["x"], false),
        outlives_its_run(&["--at-least", "1m", "x"], &["x"], true),
    );
}

/// The service was asked whether the lease is held still: this process' own deadline had passed.
#[tokio::test]
async fn a_stopped_run_goes_on_with_the_lease_that_its_watchdog_renewed() {
    let daemon = Daemon::start();
    let mut warned = Warned::start(&daemon, &["x"]).await;
    for _ in 0..2 {
        warned.run.signal(Signal::STOP);
        stays_held(&daemon, "x", TTL).await;
        warned.run.signal(Signal::CONT);
        stays_held(&daemon, "x", TTL).await;
    }
    warned.end_command();
    let Warned { dir, run, .. } = warned;
    assert_eq!(run.end().await.code, Some(5));
    assert_eq!(said_in(dir.path()), "");
    assert_eq!(daemon.ask(&["status", "x"]).code, Some(1));
}

#[tokio::test]
async fn the_lock_of_a_stopped_run_is_free_when_its_command_has_ended() {
    let daemon = Daemon::start();
    let mut warned = Warned::start(&daemon, &["x"]).await;
    warned.run.signal(Signal::STOP);
    stays_held(&daemon, "x", TTL).await;
    warned.end_command();
    poll::until_true("it is released", || released(&daemon, "x") == 1).await;
    warned.run.signal(Signal::CONT);
    let Warned { dir, run, .. } = warned;
    assert_eq!(run.end().await.code, Some(5));
    assert_eq!(said_in(dir.path()), "");
}

/// Said once, and the lease of the one that took the lock is its own.
#[tokio::test]
async fn a_lease_that_ends_under_the_watchdog_is_not_renewed_and_that_is_said() {
    for signal in [Signal::KILL, Signal::STOP] {
        let daemon = Daemon::start();
        let mut warned = Warned::start(&daemon, &["x"]).await;
        warned.run.signal(signal);
        stays_held(&daemon, "x", TTL).await;
        daemon.get(&["force", "--now", "--reason", "test", "x"]);
        daemon.get(&["acquire", "--ttl", "1m", "--owner", "other", "x"]);
        warned.until_said(GOES_ON).await;
        let lines: Vec<String> = warned.said().lines().map(str::to_owned).collect();
        let last = lines.last().expect("a line");
        assert!(last.contains("an operator ended it") && last.ends_with(GOES_ON), "{lines:?}");
        assert_eq!(lines.len(), if signal == Signal::KILL { 2 } else { 1 }, "{lines:?}");
        assert!(is_running(&warned.pid));
        warned.end_command();
        warned.until_gone().await;
        assert_eq!(daemon.json(&["status", "--json", "x"])["holders"][0]["owner"], "other");
        assert_eq!(warned.said().matches(GOES_ON).count(), 1, "{}", warned.said());
    }
}

#[tokio::test]
async fn a_watchdog_whose_service_is_away_says_that_the_lease_is_over() {
    let mut daemon = Daemon::start();
    let mut warned = Warned::start(&daemon, &["x"]).await;
    warned.run.signal(Signal::KILL);
    warned.until_said("run was killed").await;
    daemon.kill();
    warned.until_said(&format!("redlockd: the lease on x could not be renewed in time{GOES_ON}")).await;
    assert!(is_running(&warned.pid));
    warned.end_command();
    warned.until_gone().await;
    assert_eq!(warned.said().matches(GOES_ON).count(), 1, "{}", warned.said());
}
