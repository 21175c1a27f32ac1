//! `redlockd run a b -- command`, and the other commands for several locks: all or none, renewed together, lost together, and
//! released together, whatever ends `run`.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::time::Duration;

use redlockd::redlock::clock::{Clock, SystemClock};
use rustix::process::Signal;

use crate::support::daemon::{Daemon, Running, ended, is_running, line_in, redlockd};
use crate::support::poll;

/// A command that says that it runs, and its process, until it is ended.
fn worker(dir: &Path) -> String {
    let dir = dir.display();
    format!("trap 'echo x > {dir}/usr1' USR1; echo $$ > {dir}/pid; while :; do sleep 0.02; done")
}

fn is_free(daemon: &Daemon, name: &str) -> bool {
    daemon.ask(&["status", name]).code == Some(1)
}

fn fence(daemon: &Daemon, name: &str) -> String {
    daemon.json(&["status", "--json", name])["holders"][0]["fence"].to_string()
}

#[test]
fn the_command_sees_all_names_and_fences_and_all_are_released() {
    let daemon = Daemon::start();
    let binary = env!("CARGO_BIN_EXE_redlockd");
    let script = format!(
        "echo $REDLOCKD_RESOURCE; echo $REDLOCKD_FENCE; for name in $REDLOCKD_RESOURCE; do {binary} status --json $name; done; \
         {binary} extend --note mine $REDLOCKD_RESOURCE | grep -c ^fence="
    );
    let done = daemon.ask(&["run", "db/b", "db/a", "c", "--", "sh", "-c", &script]);
    assert_eq!((done.code, done.err.as_str()), (Some(0), ""), "{done:?}");
    let lines: Vec<&str> = done.out.lines().collect();
    assert_eq!((lines[0], lines[5]), ("db/b db/a c", "3"), "{done:?}");
    let held = |line: &str| {
        let status: serde_json::Value = serde_json::from_str(line).expect("JSON");
        status["holders"][0]["fence"].to_string()
    };
    assert_eq!(
        lines[1].split(' ').map(str::to_owned).collect::<Vec<_>>(),
        lines[2..5].iter().map(|l| held(l)).collect::<Vec<_>>()
    );
    assert!(["db/a", "db/b", "c"].iter().all(|name| is_free(&daemon, name)));
}

#[test]
fn all_or_none_with_the_code_of_a_held_lock() {
    let daemon = Daemon::start();
    daemon.get(&["acquire", "--ttl", "1m", "--owner", "somebody", "b"]);
    for (more, code) in [(&[][..], 75), (&["-E", "1"], 1), (&["--wait", "50ms"], 75), (&["--skip-if-held"], 0)] {
        let done = daemon.ask(&[&["run"], more, &["a", "b", "--", "echo", "ran"]].concat());
        assert_eq!((done.code, done.out.as_str()), (Some(code), ""), "{done:?}");
        if code != 0 {
            assert!(done.err.contains("b is held by somebody") && done.err.lines().count() == 1, "{done:?}");
        }
        assert!(is_free(&daemon, "a"));
    }
    for (args, why) in [
        (&["run", "a", "a", "--", "true"][..], "a is named twice"),
        (&["release", "--token-file", "/dev/null", "a", "a"], "a is named twice"),
        (&["run", "a", "b", "--"], "the command is missing"),
    ] {
        let done = ended(&mut redlockd(args));
        assert_eq!((done.code, done.err.lines().count()), (Some(64), 1), "{args:?}: {done:?}");
        assert!(done.err.contains(why), "{args:?}: {done:?}");
    }
    let unknown = daemon.ask(&["run", "git", "checkout", "--", "file-that-is-no-command"]);
    assert!(unknown.code == Some(127) && unknown.err.contains("are names of locks"), "{unknown:?}");
}

/// Readers of several locks run beside each other, and no writer of any of them beside them.
#[test]
fn shared_locks_are_read_by_several_at_a_time() {
    let daemon = Daemon::start();
    let dir = tempfile::tempdir().expect("a directory");
    let file = dir.path().join("token");
    let file = file.to_str().expect("text");
    daemon.get(&["acquire", "--shared", "--ttl", "1m", "--token-file", file, "b", "c"]);
    let binary = env!("CARGO_BIN_EXE_redlockd");
    let script = format!(
        "{binary} status --json b; {binary} run --shared a c -- echo beside; {binary} run a free -- echo writes; echo $?"
    );
    let done = daemon.ask(&["run", "--shared", "a", "b", "--", "sh", "-c", &script]);
    let lines: Vec<&str> = done.out.lines().collect();
    assert_eq!((done.code, lines.len()), (Some(0), 3), "{done:?}");
    let status: serde_json::Value = serde_json::from_str(lines[0]).expect("JSON");
    assert_eq!((&status["mode"], status["holders"].as_array().map(Vec::len)), (&"shared".into(), Some(2)), "{status}");
    assert_eq!(lines[1..], ["beside", "75"]);
    assert!(is_free(&daemon, "a") && is_free(&daemon, "free"), "what it held is released");
    assert_eq!(daemon.ask(&["run", "b", "d", "--", "true"]).code, Some(75), "b is still read");
    daemon.get(&["release", "--token-file", file, "b", "c"]);
    assert_eq!(daemon.ask(&["run", "b", "d", "--", "true"]).code, Some(0));
    let permits = daemon.ask(&["run", "--permits", "3", "a", "b", "--", "true"]);
    assert!(permits.code == Some(64) && permits.err.contains("is for one lock"), "{permits:?}");
}

#[tokio::test]
async fn a_wait_shows_what_is_in_the_way_and_ends_with_its_release() {
    let daemon = Daemon::start();
    let held = daemon.get(&["acquire", "--ttl", "1m", "--owner", "somebody", "b"]);
    let mut run =
        Running::spawn(&mut daemon.command(&["run", "--wait", "1m", "--owner", "me", "a", "b", "--", "echo", "mine"]));
    poll::until_true("it waits", || daemon.json(&["status", "--json", "b"])["waiters"][0]["owner"] == "me").await;
    let mut shown = String::new();
    BufReader::new(run.child().stderr.take().expect("piped")).read_line(&mut shown).expect("a line");
    assert!(shown.contains("waiting for a, b, b, position 1 of 1, held by somebody"), "{shown}");
    let token = tempfile::NamedTempFile::new().expect("a file");
    std::fs::write(token.path(), held).expect("writable");
    daemon.get(&["release", "--token-file", token.path().to_str().expect("text"), "b"]);
    let done = run.end().await;
    assert_eq!((done.code, done.out.as_str()), (Some(0), "mine\n"), "{done:?}");
}

/// Longer than the TTL, against a contender for one of the locks.
#[tokio::test]
async fn all_are_renewed() {
    let daemon = Daemon::start();
    let dir = tempfile::tempdir().expect("a directory");
    let args = ["run", "--ttl", "1500ms", "a", "b", "--", "sh", "-c", &worker(dir.path())];
    let mut run = Running::spawn(&mut daemon.command(&args));
    line_in(&dir.path().join("pid")).await;
    let first = ["a", "b"].map(|name| fence(&daemon, name));
    poll::until_true("each is renewed four times", || {
        let renewals = |name| daemon.json(&["status", "--json", name])["holders"][0]["renewals"].as_u64();
        assert_eq!(daemon.ask(&["acquire", "b"]).code, Some(75));
        ["a", "b"].into_iter().all(|name| renewals(name) >= Some(4))
    })
    .await;
    assert_eq!(["a", "b"].map(|name| fence(&daemon, name)), first);
    run.signal(Signal::TERM);
    assert_eq!(run.end().await.code, Some(143));
    assert!(is_free(&daemon, "a") && is_free(&daemon, "b"));
}

/// The loss of one ends the command; the others are free at once, not when their TTL is over.
#[tokio::test]
async fn the_loss_of_one_is_the_loss_of_all() {
    let daemon = Daemon::start();
    let dir = tempfile::tempdir().expect("a directory");
    let args = ["run", "--ttl", "3s", "a", "b", "c", "--", "sh", "-c", &worker(dir.path())];
    let run = Running::spawn(&mut daemon.command(&args));
    let pid = line_in(&dir.path().join("pid")).await;
    daemon.get(&["force", "--now", "--reason", "test", "b"]);
    let done = run.end().await;
    assert_eq!((done.code, is_running(&pid)), (Some(76), false), "{done:?}");
    assert!(done.err.contains("an operator ended it"), "{done:?}");
    assert!(["a", "b", "c"].iter().all(|name| is_free(&daemon, name)));
}

#[tokio::test]
async fn a_killed_run_frees_all() {
    let daemon = Daemon::start();
    let dir = tempfile::tempdir().expect("a directory");
    let args = ["run", "--ttl", "1m", "a", "b", "--", "sh", "-c", &worker(dir.path())];
    let mut run = Running::spawn(daemon.command(&args).env("XDG_RUNTIME_DIR", dir.path()));
    let pid = line_in(&dir.path().join("pid")).await;
    // The watchdog knows the command's group when `run` forwards signals.
    run.signal(Signal::USR1);
    line_in(&dir.path().join("usr1")).await;
    run.signal(Signal::KILL);
    poll::until_true("the command is dead", || !is_running(&pid)).await;
    poll::until_true("both are free", || is_free(&daemon, "a") && is_free(&daemon, "b")).await;
}

/// Both are held for four seconds, which is longer than the TTL: `run` stays and renews.
#[tokio::test]
async fn at_least_keeps_all() {
    let daemon = Daemon::start();
    let begun = SystemClock.now();
    let run = Running::spawn(&mut daemon.command(&["run", "--ttl", "1s", "--at-least", "4s", "a", "b", "--", "true"]));
    let done = run.end().await;
    assert_eq!((done.code, done.err.as_str()), (Some(0), ""), "{done:?}");
    poll::until_true("both are free", || is_free(&daemon, "a") && is_free(&daemon, "b")).await;
    let held = SystemClock.now().since(begun);
    assert!(held >= Duration::from_secs(4), "{held:?}");
}

#[test]
fn several_from_acquire_to_release() {
    let daemon = Daemon::start();
    let dir = tempfile::tempdir().expect("a directory");
    let file = dir.path().join("token");
    let file = file.to_str().expect("text");
    assert_eq!(daemon.get(&["acquire", "--ttl", "1m", "--token-file", file, "a", "b"]), "");
    let extended = daemon.json(&["extend", "--json", "--token-file", file, "a", "b"]);
    assert_eq!(extended["results"][1]["resource"], "b");
    assert_eq!(extended["results"][1]["fence"].to_string(), fence(&daemon, "b"));
    // Each is an ordinary lease.
    daemon.get(&["release", "--token-file", file, "a"]);
    let lost = daemon.ask(&["extend", "--token-file", file, "a", "b"]);
    assert_eq!((lost.code, lost.err.lines().count()), (Some(76), 1), "{lost:?}");
    assert!(!is_free(&daemon, "b"), "an extend releases nothing");
    let partly = daemon.ask(&["release", "--token-file", file, "a", "b"]);
    assert_eq!(partly.code, Some(76), "{partly:?}");
    assert!(is_free(&daemon, "b"), "what it held is released");
    let shown = daemon.json(&["acquire", "--json", "--ttl", "1m", "c", "d"]);
    assert_eq!((&shown["leases"][0]["resource"], shown["token"].is_string()), (&"c".into(), true));
    let refused = daemon.ask(&["acquire", "--json", "d", "e"]);
    let problem: serde_json::Value = serde_json::from_str(&refused.out).expect("JSON");
    assert_eq!((refused.code, &problem["blocked_by"][0]["resource"]), (Some(75), &"d".into()));
}
