//! `redlockd run` in ordinary times: exit codes, what the command sees, what is left behind, and
//! the ways in which there is no lock.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use redlockd::redlock::clock::{Clock, SystemClock};
use rustix::process::Signal;

use crate::support::daemon::{Daemon, Ended, Running, cluster, ended, line_in, redlockd};
use crate::support::poll;

/// Names in `dir` that begin like a token file.
fn token_files(dir: &Path) -> usize {
    let names = std::fs::read_dir(dir).expect("readable").map(|e| e.expect("readable").file_name());
    names.filter(|n| n.to_string_lossy().starts_with("redlockd-token-")).count()
}

fn is_free(daemon: &Daemon, resource: &str) -> bool {
    daemon.ask(&["status", resource]).code == Some(1)
}

#[test]
fn the_exit_code_is_the_commands_and_the_lock_is_given_back() {
    let daemon = Daemon::start();
    for (script, code) in [("exit 0", 0), ("exit 7", 7), ("kill -TERM $$", 143), ("kill -KILL $$", 137)] {
        let done = daemon.ask(&["run", "deploy/prod", "--", "sh", "-c", script]);
        assert_eq!((done.code, done.err.as_str()), (Some(code), ""), "{script}");
        assert!(is_free(&daemon, "deploy/prod"), "{script}");
    }
}

#[test]
fn the_command_sees_its_lease_and_its_standard_streams() {
    let daemon = Daemon::start();
    let dir = tempfile::tempdir().expect("a directory");
    let script = "echo $REDLOCKD_RESOURCE $REDLOCKD_FENCE $REDLOCKD_DEADLINE_MS; stat -c '%a %n' $REDLOCKD_TOKEN_FILE; \
                  redlockd status --json a/b; redlockd extend --note mine a/b; cat; echo oops >&2";
    let mut command = daemon.command(&["run", "--ttl", "20s", "--owner", "me", "a/b", "--", "sh", "-c", script]);
    let binary = Path::new(env!("CARGO_BIN_EXE_redlockd")).parent().expect("a directory").display().to_string();
    let path = format!("{binary}:{}", std::env::var("PATH").unwrap_or_default());
    let input = std::fs::File::open("/etc/hostname").expect("a small file");
    let hostname = std::fs::read_to_string("/etc/hostname").expect("a small file");
    let done = ended(command.env("PATH", path).env("XDG_RUNTIME_DIR", dir.path()).stdin(input));
    assert_eq!((done.code, done.err.as_str()), (Some(0), "oops\n"), "{done:?}");
    let lines: Vec<&str> = done.out.lines().collect();
    let words: Vec<&str> = lines[0].split(' ').collect();
    assert_eq!(words[0], "a/b");
    let file = format!("600 {}/redlockd-token-", dir.path().display());
    assert!(lines[1].starts_with(&file), "{}", lines[1]);
    let status: serde_json::Value = serde_json::from_str(lines[2]).expect("JSON");
    assert_eq!(status["holders"][0]["fence"].to_string(), words[1]);
    assert_eq!(status["holders"][0]["owner"], "me");
    // The token in the file proves the lease: `extend` took it.
    assert!(done.out.contains("note=mine\n"), "{}", done.out);
    assert!(done.out.ends_with(&hostname), "standard input is passed through: {}", done.out);
    assert_eq!(token_files(dir.path()), 0);
}

#[tokio::test]
async fn held_is_75_or_what_was_asked_for_and_one_sentence() {
    let daemon = Daemon::start();
    daemon.get(&["acquire", "--ttl", "1m", "--owner", "somebody", "--note", "why", "x"]);
    let dir = tempfile::tempdir().expect("a directory");
    let mark = dir.path().join("ran").display().to_string();
    for (more, code) in
        [(&[][..], 75), (&["-E", "1"], 1), (&["--conflict-exit-code", "9"], 9), (&["--wait", "50ms"], 75)]
    {
        let args = [&["run"], more, &["x", "--", "touch", &mark]].concat();
        let Ended { code: actual, err, .. } = daemon.ask(&args);
        assert_eq!((actual, err.lines().count()), (Some(code), 1), "{args:?}: {err}");
        assert!(err.contains("x is held by somebody (why)") && err.contains("nothing was run"), "{err}");
    }
    let skipped = daemon.ask(&["run", "--skip-if-held", "x", "--", "touch", &mark]);
    assert_eq!((skipped.code, skipped.out.as_str(), skipped.err.as_str()), (Some(0), "", ""));
    assert!(!Path::new(&mark).exists());
}

#[tokio::test]
async fn a_wait_ends_with_the_release() {
    let daemon = Daemon::start();
    let dir = tempfile::tempdir().expect("a directory");
    let (started, go) = (dir.path().join("started"), dir.path().join("go"));
    let script = format!("echo yes > {}; read line < {}", started.display(), go.display());
    assert!(std::process::Command::new("mkfifo").arg(&go).status().expect("mkfifo").success());
    let first = Running::spawn(&mut daemon.command(&["run", "x", "--", "sh", "-c", &script]));
    line_in(&started).await;
    let second =
        Running::spawn(&mut daemon.command(&["run", "--wait", "1m", "--owner", "second", "x", "--", "echo", "mine"]));
    poll::until_true("the second one queues", || {
        daemon.json(&["status", "--json", "x"])["waiters"][0]["owner"] == "second"
    })
    .await;
    std::fs::write(&go, "go\n").expect("the first one reads");
    assert_eq!(first.end().await.code, Some(0));
    let second = second.end().await;
    assert_eq!((second.code, second.out.as_str(), second.err.as_str()), (Some(0), "mine\n", ""));
    assert!(is_free(&daemon, "x"));
}

#[tokio::test]
async fn a_wait_longer_than_the_service_allows_is_a_loop() {
    let daemon = Daemon::start_with(&["--set", "max_wait=1s"]);
    daemon.get(&["acquire", "--ttl", "2s", "x"]);
    let done = daemon.ask(&["run", "--wait", "30s", "x", "--", "echo", "mine"]);
    assert_eq!((done.code, done.out.as_str()), (Some(0), "mine\n"));
    // Without a terminal: one line after a second, and another only when the holder changes.
    assert_eq!(done.err.lines().count(), 1, "{}", done.err);
    assert!(done.err.starts_with("redlockd: waiting for x, ") && done.err.contains("held by "), "{}", done.err);
}

#[test]
fn no_service_is_69_and_one_sentence() {
    let mut daemon = Daemon::start();
    daemon.kill();
    for more in [&[][..], &["--wait", "300ms", "--quiet"]] {
        let done = daemon.ask(&[&["run"], more, &["x", "--", "true"]].concat());
        assert_eq!((done.code, done.err.lines().count()), (Some(69), 1), "{done:?}");
        assert!(done.err.contains(&daemon.url()) && done.err.contains("refused"), "{}", done.err);
    }
}

#[test]
fn mistakes_are_64_before_anything_is_asked() {
    for (args, word) in [
        (&["run", "x"][..], "<COMMAND>"),
        (&["run", "a//b", "--", "true"], "empty segment"),
        (&["run", "--ttl", "30", "x", "--", "true"], "did you mean"),
        (&["run", "--ttl", "9s", "--grace", "4s", "x", "--", "true"], "at least 12s"),
        (&["run", "--wiat", "9s", "x", "--", "true"], "'--wait'"),
        (&["run", "--skip-if-held", "--wait", "1s", "x", "--", "true"], "cannot be used with"),
        (&["run", "--url", "ftp://localhost:1", "x", "--", "true"], "http://"),
        (&["run", "--url", "http://u:hunter2@h", "x", "--", "true"], "credentials"),
    ] {
        let done = ended(&mut redlockd(args));
        assert_eq!((done.code, done.err.lines().count()), (Some(64), 1), "{args:?}: {done:?}");
        assert!(done.err.contains(word) && !done.err.contains("hunter2"), "{args:?}: {}", done.err);
    }
}

#[test]
fn the_services_bounds_are_64_and_named() {
    let daemon = Daemon::start();
    let done = daemon.ask(&["run", "--ttl", "24h", "x", "--", "true"]);
    assert_eq!(done.code, Some(64), "{done:?}");
    assert!(done.err.contains("ttl") && done.err.contains("5m"), "{}", done.err);
}

#[test]
fn a_command_that_cannot_be_run_gives_the_lock_back() {
    let daemon = Daemon::start();
    let dir = tempfile::tempdir().expect("a directory");
    let plain = dir.path().join("plain");
    std::fs::write(&plain, "x").expect("writable");
    std::fs::set_permissions(&plain, std::fs::Permissions::from_mode(0o600)).expect("own file");
    for (program, code) in [("/nowhere/at/all", 127), (plain.to_str().expect("text"), 126)] {
        let done = daemon.ask(&["run", "x", "--", program]);
        assert_eq!((done.code, done.err.lines().count()), (Some(code), 1), "{done:?}");
        assert!(done.err.contains(program), "{}", done.err);
        assert!(is_free(&daemon, "x"));
    }
}

#[test]
fn a_line_for_a_shell_is_recognised() {
    let daemon = Daemon::start();
    let done = daemon.ask(&["run", "x", "--", "true && echo done"]);
    assert!(done.code == Some(127) && done.err.contains("sh -c"), "{done:?}");
}

/// A limit of no blocks for new files stands for a full disk: creating works, writing does not.
#[test]
fn no_space_for_the_token_is_reported_before_anything_is_taken_or_run() {
    let daemon = Daemon::start();
    let dir = tempfile::tempdir().expect("a directory");
    let binary = env!("CARGO_BIN_EXE_redlockd");
    let full = format!("trap '' XFSZ; ulimit -f 0; exec {binary} run x -- sh -c 'echo ran >&2'");
    let mut command = std::process::Command::new("sh");
    command.args(["-c", &full]).env("REDLOCKD_URL", daemon.url()).env("XDG_RUNTIME_DIR", dir.path());
    let done = ended(&mut command);
    assert_eq!((done.code, done.err.lines().count()), (Some(73), 1), "{done:?}");
    assert!(done.err.contains("redlockd-token-") && done.err.contains("nothing was run"), "{}", done.err);
    assert_eq!(token_files(dir.path()), 0);
    assert!(is_free(&daemon, "x"));
}

/// A service that is stopped keeps its connections and answers nothing.
#[test]
fn a_first_instance_that_hangs_costs_a_second() {
    let (hung, good) = (Daemon::start(), Daemon::start());
    hung.freeze();
    let begun = SystemClock.now();
    let urls = ["--url", &hung.url(), "--url", &good.url()];
    for args in [&["status", "x"][..], &["run", "--wait", "1m", "x", "--", "true"]] {
        let done = ended(&mut redlockd(&[&args[..1], &urls[..], &args[1..]].concat()));
        assert_eq!(done.code, Some(i32::from(args[0] == "status")), "{done:?}");
    }
    // Without the probe these take 10 s and 70 s.
    let took = SystemClock.now().since(begun);
    assert!(took < std::time::Duration::from_secs(10), "{took:?}");
    // Alone it is given more time, since nobody else can be asked.
    let alone = ended(&mut redlockd(&["status", "--url", &hung.url(), "x"]));
    assert!(alone.code == Some(69) && alone.err.contains("no answer within 3000 ms"), "{alone:?}");
    hung.thaw();
}

/// Too few nodes: the sentence names the node, the reason and the time.
#[test]
fn too_few_votes_are_explained() {
    let mut daemon = Daemon::start();
    daemon.get(&["acquire", "--ttl", "30s", "x"]);
    daemon.kill();
    daemon.restart();
    let done = daemon.ask(&["run", "x", "--", "true"]);
    assert_eq!((done.code, done.err.lines().count()), (Some(69), 1), "{done:?}");
    for part in
        ["0 of 1 nodes voted for it, 1 are needed; embedded-1: ", "restarted", "it votes in ", " s; nothing was run"]
    {
        assert!(done.err.contains(part), "{part}: {}", done.err);
    }
}

/// A7: nodes that stop under a waiter: it waits on, and the line says which nodes do not vote, and why.
#[tokio::test]
async fn a_wait_says_which_nodes_have_stopped() {
    let mut nodes = cluster(3).await;
    let daemon = Daemon::over(&nodes, &[]);
    poll::until_true("it is held", || daemon.ask(&["acquire", "--ttl", "5m", "x"]).code == Some(0)).await;
    let log = tempfile::NamedTempFile::new().expect("a file");
    let mut command = daemon.command(&["run", "--wait", "5m", "--owner", "waiter", "x", "--", "true"]);
    let mut waiter = Running::spawn(command.stderr(log.reopen().expect("the same file")));
    poll::until_true("it waits", || daemon.json(&["status", "--json", "x"])["waiting"] == 1).await;
    nodes[0].kill();
    nodes[2].kill();
    let lines = || std::fs::read_to_string(log.path()).expect("readable");
    let troubled = |line: &&str| line.starts_with("redlockd: waiting for x: ");
    let line = poll::until("the reason is said", || {
        let line = lines().lines().find(troubled).map(ToOwned::to_owned);
        async move { line }
    })
    .await;
    let why = line.split_once("1 of 3 nodes can say, 2 are needed; ").expect("the count, and why").1;
    assert!(why.contains("n0") && why.contains("n2") && why.contains("connect") && !why.contains("n1"), "{line}");
    waiter.signal(Signal::TERM);
    assert_eq!(waiter.end().await.code, Some(143));
}

/// The promise counts from the grant, not from the start of a request that queued for longer than the TTL.
#[test]
fn a_wait_longer_than_the_ttl_leaves_a_lease_that_is_all_there() {
    let daemon = Daemon::start();
    daemon.get(&["acquire", "--ttl", "3s", "x"]);
    let script = "echo $((REDLOCKD_DEADLINE_MS - $(date +%s%3N)))";
    let done = daemon.ask(&["run", "-q", "--wait", "30s", "--ttl", "2s", "x", "--", "sh", "-c", script]);
    assert_eq!((done.code, done.err.as_str()), (Some(0), ""), "{done:?}");
    let left_ms: i64 = done.out.trim().parse().expect("a number");
    assert!((1_000..=2_000).contains(&left_ms), "{left_ms}");
}
