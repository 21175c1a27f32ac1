//! `redlockd run` when the service, nodes or `run` itself fail: the command is ended before its deadline, or the failure
//! has no effect; and two commands never run at once.

use std::io::{BufRead, BufReader};
use std::path::Path;

use redlockd::redlock::clock::{Clock, SystemClock};
use rustix::process::Signal;

use crate::support::daemon::{Daemon, Running, cluster, is_running, line_in};
use crate::support::poll;

/// TTL of the leases that cannot be renewed.
const TTL_MS: u64 = 3_000;
/// Commands that compete for one lock, over two instances.
const RACERS: usize = 50;

/// A command that writes its process id, a file on SIGUSR1, and the time every 20 ms; `ignore`: ignores SIGTERM.
fn worker(dir: &Path, ignore: bool) -> String {
    let trap = if ignore { "trap '' TERM; " } else { "" };
    let dir = dir.display();
    format!(
        "{trap}trap 'echo x > {dir}/usr1' USR1; echo $$ > {dir}/pid; while :; do date +%s%3N >> {dir}/marks; sleep 0.02; done"
    )
}

/// Waits until the watchdog knows the worker's process group: only then does `run` forward signals.
async fn guarded(run: &mut Running, dir: &Path) {
    line_in(&dir.join("marks")).await;
    run.signal(Signal::USR1);
    line_in(&dir.join("usr1")).await;
}

/// The worker did not run beyond its deadline. No renewal was sent after `failed_at_ms`, so the deadline is less than a
/// TTL later, however slow the machine was until then.
fn assert_ended_in_time(dir: &Path, failed_at_ms: u64) {
    let marks = std::fs::read_to_string(dir.join("marks")).expect("written");
    let last: u64 = marks.lines().next_back().and_then(|mark| mark.parse().ok()).expect("a mark");
    let deadline = failed_at_ms + TTL_MS;
    assert!(last < deadline, "it worked until {last}, its deadline was before {deadline}");
    assert!(SystemClock.wall_ms() >= last);
}

#[tokio::test]
async fn frozen_service_ends_the_command_before_the_deadline_even_if_it_ignores_sigterm() {
    for ignore in [false, true] {
        let daemon = Daemon::start();
        let dir = tempfile::tempdir().expect("a directory");
        let script = worker(dir.path(), ignore);
        let run = Running::spawn(&mut daemon.command(&["run", "--ttl", "3s", "x", "--", "sh", "-c", &script]));
        line_in(&dir.path().join("marks")).await;
        daemon.freeze();
        let frozen_at_ms = SystemClock.wall_ms();
        let done = run.end().await;
        assert_eq!(done.code, Some(76), "{done:?}");
        // On a busy machine the watchdog may be the faster one; then it says so, too.
        assert!(done.err.lines().any(|line| line.contains("could not be renewed in time")), "{done:?}");
        assert_ended_in_time(dir.path(), frozen_at_ms);
        daemon.thaw();
    }
}

#[tokio::test]
async fn lost_quorum_ends_the_command_unless_it_returns_in_time() {
    let mut nodes = cluster(3).await;
    let daemon = Daemon::over(&nodes, &["--set", "max_ttl=30s"]);
    let dir = tempfile::tempdir().expect("a directory");
    let script = worker(dir.path(), false);
    let run = Running::spawn(&mut daemon.command(&["run", "--ttl", "3s", "x", "--", "sh", "-c", &script]));
    line_in(&dir.path().join("marks")).await;
    nodes[0].freeze();
    nodes[1].freeze();
    let renewals = || daemon.ask(&["status", "--json", "x"]);
    poll::until_true("no quorum answers", || renewals().code == Some(69)).await;
    nodes[0].thaw();
    nodes[1].thaw();
    poll::until_true("it is renewed again", || {
        let answer: serde_json::Value = serde_json::from_str(&renewals().out).unwrap_or_default();
        answer["holders"][0]["renewals"].as_u64() >= Some(2)
    })
    .await;
    // Now for good. Renewals have extended the deadline, so only the exit code and the worker's end are checked.
    nodes[0].kill();
    nodes[1].kill();
    let done = run.end().await;
    assert_eq!(done.code, Some(76), "{done:?}");
    assert!(!is_running(&std::fs::read_to_string(dir.path().join("pid")).expect("written")));
}

#[tokio::test]
async fn restart_or_failover_within_the_lease_has_no_effect() {
    let nodes = cluster(3).await;
    let (mut first, mut second) = (Daemon::over(&nodes, &[]), Daemon::over(&nodes, &[]));
    let dir = tempfile::tempdir().expect("a directory");
    let (started, go) = (dir.path().join("started"), dir.path().join("go"));
    assert!(std::process::Command::new("mkfifo").arg(&go).status().expect("mkfifo").success());
    let script = format!("echo x > {}; read line < {}; exit 3", started.display(), go.display());
    let urls = [first.url(), second.url()].join(",");
    let mut command = first.command(&["run", "--ttl", "9s", "x", "--", "sh", "-c", &script]);
    let run = Running::spawn(command.env("REDLOCKD_URL", urls));
    line_in(&started).await;
    let renewals = |of: &Daemon| of.json(&["status", "--json", "x"])["holders"][0]["renewals"].as_u64().unwrap_or(0);
    first.kill();
    let before = renewals(&second);
    poll::until_true("it is renewed by the second instance", || renewals(&second) > before).await;
    second.kill();
    first.restart();
    let before = renewals(&first);
    poll::until_true("it is renewed by the restarted instance", || renewals(&first) > before).await;
    std::fs::write(&go, "go\n").expect("the command reads");
    let done = run.end().await;
    assert_eq!((done.code, done.err.as_str()), (Some(3), ""));
    assert_eq!(first.ask(&["status", "x"]).code, Some(1));
}

#[tokio::test]
async fn forced_release_ends_the_command() {
    let daemon = Daemon::start();
    let dir = tempfile::tempdir().expect("a directory");
    let script = worker(dir.path(), true);
    let run = Running::spawn(&mut daemon.command(&["run", "--ttl", "3s", "x", "--", "sh", "-c", &script]));
    line_in(&dir.path().join("marks")).await;
    daemon.get(&["force", "--now", "--reason", "test", "x"]);
    let done = run.end().await;
    assert_eq!(done.code, Some(76), "{done:?}");
    let of_watchdog = |line: &&str| line.contains("did not renew the lease in time");
    let lines: Vec<&str> = done.err.lines().filter(|line| !of_watchdog(line)).collect();
    assert!(lines.len() == 1 && lines[0].contains("an operator ended it"), "{done:?}");
    assert!(!is_running(&std::fs::read_to_string(dir.path().join("pid")).expect("written")));
}

#[tokio::test]
async fn on_lost_warn_lets_the_command_run_and_prints_a_warning() {
    let daemon = Daemon::start();
    let dir = tempfile::tempdir().expect("a directory");
    let (started, go) = (dir.path().join("started"), dir.path().join("go"));
    assert!(std::process::Command::new("mkfifo").arg(&go).status().expect("mkfifo").success());
    let script = format!("echo x > {}; read line < {}; exit 4", started.display(), go.display());
    let args = ["run", "--ttl", "5s", "--on-lost", "warn", "x", "--", "sh", "-c", &script];
    let mut run = Running::spawn(&mut daemon.command(&args));
    line_in(&started).await;
    daemon.get(&["force", "--now", "--reason", "test", "x"]);
    let mut line = String::new();
    let mut err = BufReader::new(run.child().stderr.take().expect("piped"));
    err.read_line(&mut line).expect("a line");
    assert!(line.contains("an operator ended it") && line.contains("continues WITHOUT the lock"), "{line}");
    // Acquired by another client while the command still runs, as requested.
    poll::until_true("another client gets the lock", || daemon.ask(&["acquire", "x"]).code == Some(0)).await;
    std::fs::write(&go, "go\n").expect("the command reads");
    let done = run.end().await;
    assert_eq!(done.code, Some(4), "{done:?}");
}

/// While `run` is stopped nothing is renewed: its watchdog ends the command in time, and `run` reports it when it is
/// continued.
#[tokio::test]
async fn watchdog_ends_the_command_in_time_if_run_is_stopped() {
    for ignore in [false, true] {
        let daemon = Daemon::start();
        let dir = tempfile::tempdir().expect("a directory");
        let script = worker(dir.path(), ignore);
        let mut run = Running::spawn(&mut daemon.command(&["run", "--ttl", "3s", "x", "--", "sh", "-c", &script]));
        guarded(&mut run, dir.path()).await;
        run.signal(Signal::STOP);
        let stopped_at_ms = SystemClock.wall_ms();
        let pid = line_in(&dir.path().join("pid")).await;
        poll::until_true("the command is dead", || !is_running(&pid)).await;
        assert_ended_in_time(dir.path(), stopped_at_ms);
        poll::until_true("another client gets the lock", || daemon.ask(&["acquire", "x"]).code == Some(0)).await;
        run.signal(Signal::CONT);
        let done = run.end().await;
        assert_eq!(done.code, Some(76), "{done:?}");
        assert!(done.err.contains("is it stopped?"), "{done:?}");
    }
}

#[tokio::test]
async fn watchdog_ends_the_command_if_run_is_killed() {
    let daemon = Daemon::start();
    let dir = tempfile::tempdir().expect("a directory");
    let script = worker(dir.path(), false);
    let mut command = daemon.command(&["run", "--ttl", "30s", "x", "--", "sh", "-c", &script]);
    let mut run = Running::spawn(command.env("XDG_RUNTIME_DIR", dir.path()));
    let pid = line_in(&dir.path().join("pid")).await;
    guarded(&mut run, dir.path()).await;
    run.signal(Signal::KILL);
    poll::until_true("the command is dead", || !is_running(&pid)).await;
    let token_file_left = || {
        let mut names = std::fs::read_dir(dir.path()).expect("readable").map(|e| e.expect("readable").file_name());
        names.any(|n| n.to_string_lossy().starts_with("redlockd-token-"))
    };
    poll::until_true("its token file is gone", || !token_file_left()).await;
    // The watchdog released it, long before the end of its TTL.
    assert_eq!(daemon.ask(&["status", "x"]).code, Some(1));
}

/// Fifty at once over two instances: each command writes its start and its end to one file.
#[tokio::test]
async fn two_commands_never_run_at_once() {
    let nodes = cluster(3).await;
    let daemons = [Daemon::over(&nodes, &[]), Daemon::over(&nodes, &[])];
    let dir = tempfile::tempdir().expect("a directory");
    let marks = dir.path().join("marks");
    let script = format!("echo start $$ $REDLOCKD_FENCE >> {0}; echo end $$ $REDLOCKD_FENCE >> {0}", marks.display());
    let args = ["run", "-q", "--wait", "2m", "--ttl", "10s", "x", "--", "sh", "-c", &script];
    let runs: Vec<Running> = (0..RACERS).map(|i| Running::spawn(&mut daemons[i % 2].command(&args))).collect();
    for run in runs {
        let done = run.end().await;
        assert_eq!((done.code, done.err.as_str()), (Some(0), ""));
    }
    let text = std::fs::read_to_string(&marks).expect("written");
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(lines.len(), 2 * RACERS);
    let mut fence = 0;
    for pair in lines.chunks(2) {
        assert_eq!(pair[0].strip_prefix("start "), pair[1].strip_prefix("end "), "{pair:?} in {text}");
        let this: u64 = pair[0].rsplit(' ').next().and_then(|f| f.parse().ok()).expect("a fence");
        assert!(this > fence, "fences rise: {text}");
        fence = this;
    }
}
