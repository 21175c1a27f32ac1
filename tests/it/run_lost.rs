//! `redlockd run` when plugs are pulled: the service, the nodes, `run` itself. The command is dead
//! before its deadline, or the change went unnoticed; and never do two commands run at once.

use std::io::{BufRead, BufReader};
use std::path::Path;

use redlockd::redlock::clock::{Clock, SystemClock};
use rustix::process::Signal;

use crate::support::daemon::{Daemon, Ended, Running, cluster, is_running, line_in};
use crate::support::poll;

/// Rounds of the race for one lock, over two instances.
const RACERS: usize = 50;

/// A command that says who it is and until when it may work, ignores SIGTERM if told to, says when it
/// gets SIGUSR1, and writes the time down again and again.
fn worker(dir: &Path, ignore: bool) -> String {
    let trap = if ignore { "trap '' TERM; " } else { "" };
    let dir = dir.display();
    format!(
        "{trap}trap 'echo x > {dir}/usr1' USR1; echo $REDLOCKD_DEADLINE_MS > {dir}/deadline; echo $$ > {dir}/pid; \
         while :; do date +%s%3N >> {dir}/marks; sleep 0.02; done"
    )
}

/// Waits until the worker is guarded, the gap that `watchdog` tells of over: `run` passes signals on
/// only when it has told its watchdog of the group.
async fn guarded(run: &mut Running, dir: &Path) {
    line_in(&dir.join("marks")).await;
    run.signal(Signal::USR1);
    line_in(&dir.join("usr1")).await;
}

/// What the worker wrote: its deadline, and the last time at which it ran.
fn last_mark(dir: &Path) -> (u64, u64) {
    let number = |text: &str| text.trim().parse::<u64>().expect("a number");
    let deadline = std::fs::read_to_string(dir.join("deadline")).expect("written");
    let marks = std::fs::read_to_string(dir.join("marks")).expect("written");
    (number(&deadline), number(marks.lines().next_back().expect("a mark")))
}

/// The lease cannot be renewed any more: the worker was ended in time, whatever it did about it.
fn assert_ended_in_time(dir: &Path, done: &Ended) {
    assert_eq!(done.code, Some(76), "{done:?}");
    assert!(done.err.lines().next_back().is_some_and(|line| line.contains("could not be renewed in time")), "{done:?}");
    let (deadline, last) = last_mark(dir);
    assert!(last < deadline, "it worked until {last}, its deadline was {deadline}");
    assert!(SystemClock.wall_ms() >= last);
}

#[tokio::test]
async fn a_service_that_stops_answering_ends_the_command_before_the_deadline_also_if_it_ignores_sigterm() {
    for ignore in [false, true] {
        let daemon = Daemon::start();
        let dir = tempfile::tempdir().expect("a directory");
        let script = worker(dir.path(), ignore);
        let run = Running::spawn(&mut daemon.command(&["run", "--ttl", "3s", "x", "--", "sh", "-c", &script]));
        line_in(&dir.path().join("marks")).await;
        daemon.freeze();
        let done = run.end().await;
        assert_ended_in_time(dir.path(), &done);
        daemon.thaw();
    }
}

#[tokio::test]
async fn a_quorum_lost_ends_the_command_and_a_quorum_that_comes_back_does_not() {
    let mut nodes = cluster(3).await;
    let daemon = Daemon::over(&nodes, &["--set", "max_ttl=30s"]);
    let dir = tempfile::tempdir().expect("a directory");
    let script = worker(dir.path(), false);
    let run = Running::spawn(&mut daemon.command(&["run", "--ttl", "3s", "x", "--", "sh", "-c", &script]));
    line_in(&dir.path().join("marks")).await;
    nodes[0].freeze();
    nodes[1].freeze();
    let renewals = || daemon.ask(&["status", "--json", "x"]);
    poll::until_true("nobody knows any more", || renewals().code == Some(69)).await;
    nodes[0].thaw();
    nodes[1].thaw();
    poll::until_true("it is renewed again", || {
        let answer: serde_json::Value = serde_json::from_str(&renewals().out).unwrap_or_default();
        answer["holders"][0]["renewals"].as_u64() >= Some(2)
    })
    .await;
    // From here on for good. The deadline in the environment has been moved on by renewals, so only
    // the exit code and the worker's end are looked at.
    nodes[0].kill();
    nodes[1].kill();
    let done = run.end().await;
    assert_eq!(done.code, Some(76), "{done:?}");
    assert!(!is_running(&std::fs::read_to_string(dir.path().join("pid")).expect("written")));
}

#[tokio::test]
async fn a_service_that_restarts_or_fails_over_within_the_lease_goes_unnoticed() {
    let nodes = cluster(3).await;
    let (mut first, mut second) = (Daemon::over(&nodes, &[]), Daemon::over(&nodes, &[]));
    let dir = tempfile::tempdir().expect("a directory");
    let (started, go) = (dir.path().join("started"), dir.path().join("go"));
    assert!(std::process::Command::new("mkfifo").arg(&go).status().expect("mkfifo").success());
    let script = format!("echo x > {}; read line < {}; exit 3", started.display(), go.display());
    let urls = [first.url(), second.url()].join(",");
    let mut command = first.command(&["run", "--ttl", "3s", "x", "--", "sh", "-c", &script]);
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
async fn an_operator_ends_it() {
    let daemon = Daemon::start();
    let dir = tempfile::tempdir().expect("a directory");
    let script = worker(dir.path(), true);
    let run = Running::spawn(&mut daemon.command(&["run", "--ttl", "3s", "x", "--", "sh", "-c", &script]));
    line_in(&dir.path().join("marks")).await;
    daemon.get(&["force", "--now", "--reason", "test", "x"]);
    let done = run.end().await;
    assert_eq!((done.code, done.err.lines().count()), (Some(76), 1), "{done:?}");
    assert!(done.err.contains("an operator ended it"), "{done:?}");
    assert!(!is_running(&std::fs::read_to_string(dir.path().join("pid")).expect("written")));
}

#[tokio::test]
async fn on_lost_warn_lets_it_run_and_says_so() {
    let daemon = Daemon::start();
    let dir = tempfile::tempdir().expect("a directory");
    let (started, go) = (dir.path().join("started"), dir.path().join("go"));
    assert!(std::process::Command::new("mkfifo").arg(&go).status().expect("mkfifo").success());
    let script = format!("echo x > {}; read line < {}; exit 4", started.display(), go.display());
    let args = ["run", "--ttl", "1s", "--on-lost", "warn", "x", "--", "sh", "-c", &script];
    let mut run = Running::spawn(&mut daemon.command(&args));
    line_in(&started).await;
    daemon.get(&["force", "--now", "--reason", "test", "x"]);
    let mut said = String::new();
    let mut err = BufReader::new(run.child().stderr.take().expect("piped"));
    err.read_line(&mut said).expect("a line");
    assert!(said.contains("an operator ended it") && said.contains("runs on WITHOUT the lock"), "{said}");
    // Taken by somebody else while the command still runs: that is what was asked for.
    daemon.get(&["acquire", "x"]);
    std::fs::write(&go, "go\n").expect("the command reads");
    let done = run.end().await;
    assert_eq!(done.code, Some(4), "{done:?}");
}

/// Nobody renews while `run` is stopped: its watchdog ends the command in time, and `run` says so
/// when it is continued.
#[tokio::test]
async fn run_itself_stopped_past_its_deadline_the_command_is_dead_in_time() {
    for ignore in [false, true] {
        let daemon = Daemon::start();
        let dir = tempfile::tempdir().expect("a directory");
        let script = worker(dir.path(), ignore);
        let mut run = Running::spawn(&mut daemon.command(&["run", "--ttl", "3s", "x", "--", "sh", "-c", &script]));
        guarded(&mut run, dir.path()).await;
        run.signal(Signal::STOP);
        let pid = line_in(&dir.path().join("pid")).await;
        poll::until_true("the command is dead", || !is_running(&pid)).await;
        let (deadline, last) = last_mark(dir.path());
        assert!(last < deadline, "it worked until {last}, its deadline was {deadline}");
        poll::until_true("somebody else gets the lock", || daemon.ask(&["acquire", "x"]).code == Some(0)).await;
        run.signal(Signal::CONT);
        let done = run.end().await;
        assert_eq!(done.code, Some(76), "{done:?}");
        assert!(done.err.contains("is it stopped?"), "{done:?}");
    }
}

#[tokio::test]
async fn run_killed_takes_its_command_with_it() {
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
    // Nobody gave it back: the lease runs out by itself.
    assert_eq!(daemon.ask(&["status", "x"]).code, Some(0));
}

/// Fifty at once over two instances: the commands themselves write start and end into one file.
#[tokio::test]
async fn never_two_commands_at_once() {
    let nodes = cluster(3).await;
    let daemons = [Daemon::over(&nodes, &[]), Daemon::over(&nodes, &[])];
    let dir = tempfile::tempdir().expect("a directory");
    let marks = dir.path().join("marks");
    let script = format!("echo start $$ $REDLOCKD_FENCE >> {0}; echo end $$ $REDLOCKD_FENCE >> {0}", marks.display());
    let args = ["run", "--wait", "2m", "--ttl", "10s", "x", "--", "sh", "-c", &script];
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
