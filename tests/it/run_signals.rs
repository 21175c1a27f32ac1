//! `redlockd run` and signals: Ctrl-C at a terminal, SIGTERM from a supervisor, children of the command, and an
//! interrupted wait.

use std::io::Write;
use std::process::Stdio;
use std::time::Duration;

use rustix::process::Signal;

use crate::run_warn::stays_held;
use crate::support::daemon::{Daemon, Running, is_running, line_in};
use crate::support::poll;

#[tokio::test]
async fn signals_are_forwarded_and_the_commands_exit_code_counts() {
    let daemon = Daemon::start();
    for (signal, name, code) in [(Signal::TERM, "TERM", 143), (Signal::INT, "INT", 130), (Signal::HUP, "HUP", 129)] {
        let dir = tempfile::tempdir().expect("a directory");
        let started = dir.path().join("started");
        let script = format!("echo $$ > {}; exec sleep 600", started.display());
        let mut run = Running::spawn(&mut daemon.command(&["run", "x", "--", "sh", "-c", &script]));
        line_in(&started).await;
        run.signal(signal);
        let done = run.end().await;
        assert_eq!((done.code, done.err.as_str()), (Some(code), ""), "{name}");
        let ready = dir.path().join("ready");
        let script = format!("trap 'exit 5' {name}; echo $$ > {}; while :; do sleep 0.05; done", ready.display());
        let mut run = Running::spawn(&mut daemon.command(&["run", "x", "--", "sh", "-c", &script]));
        line_in(&ready).await;
        run.signal(signal);
        assert_eq!(run.end().await.code, Some(5), "{name}");
        assert_eq!(daemon.ask(&["status", "x"]).code, Some(1));
    }
}

#[tokio::test]
async fn signal_reaches_grandchildren_and_the_lock_is_held_until_they_end() {
    let daemon = Daemon::start();
    let dir = tempfile::tempdir().expect("a directory");
    let pids = dir.path().join("pids");
    let script = format!("sleep 600 & a=$!; (sleep 600 & echo $a $! > {}; wait); wait", pids.display());
    let mut run = Running::spawn(&mut daemon.command(&["run", "x", "--", "sh", "-c", &script]));
    let pids = line_in(&pids).await;
    run.signal(Signal::TERM);
    assert_eq!(run.end().await.code, Some(143));
    assert!(pids.split_whitespace().all(|pid| !is_running(pid)), "{pids}");
}

#[tokio::test]
async fn leftover_processes_end_before_the_lock_is_released() {
    let daemon = Daemon::start();
    let dir = tempfile::tempdir().expect("a directory");
    let (pid, last) = (dir.path().join("pid"), dir.path().join("last"));
    // The leftover process reads the lock's state on SIGTERM: it must still be held.
    let binary = env!("CARGO_BIN_EXE_redlockd");
    let stay = format!(
        "trap '{binary} status --plain x > {}; exit' TERM; echo $$ > {}; while :; do sleep 0.05; done",
        last.display(),
        pid.display()
    );
    let script = format!("sh -c \"{stay}\" & while [ ! -s {} ]; do sleep 0.02; done", pid.display());
    let script = script.replace("echo $$", "echo \\$\\$");
    let run = Running::spawn(&mut daemon.command(&["run", "x", "--", "sh", "-c", &script]));
    let done = run.end().await;
    // The shell that is ended may print a line, too.
    let lines: Vec<&str> = done.err.lines().filter(|line| line.starts_with("redlockd: ")).collect();
    assert_eq!((done.code, lines.len()), (Some(0), 1), "{done:?}");
    assert!(lines[0].contains("left behind"), "{}", done.err);
    assert!(!is_running(&std::fs::read_to_string(&pid).expect("written")));
    assert!(std::fs::read_to_string(&last).expect("written").contains("state=held"));
    assert_eq!(daemon.ask(&["status", "x"]).code, Some(1));
}

#[tokio::test]
async fn signal_ends_a_wait_and_removes_the_waiter() {
    let daemon = Daemon::start();
    daemon.get(&["acquire", "--ttl", "1m", "x"]);
    let mut run = Running::spawn(&mut daemon.command(&["run", "--wait", "5m", "x", "--", "true"]));
    let waiters = || daemon.json(&["status", "--json", "x"])["waiters"].as_array().map_or(0, Vec::len);
    poll::until_true("it queues", || waiters() == 1).await;
    run.signal(Signal::TERM);
    let done = run.end().await;
    assert_eq!((done.code, done.out.as_str()), (Some(143), ""), "{done:?}");
    poll::until_true("the waiter is removed", || waiters() == 0).await;
}

/// In a terminal made by script(1): keys go to the command, Ctrl-C is SIGINT for its group, and afterwards the shell has
/// its terminal back.
#[tokio::test]
async fn at_a_terminal_the_command_gets_the_keyboard_and_ctrl_c() {
    let daemon = Daemon::start();
    let dir = tempfile::tempdir().expect("a directory");
    let (got, ready, after) = (dir.path().join("got"), dir.path().join("ready"), dir.path().join("after"));
    let binary = env!("CARGO_BIN_EXE_redlockd");
    let inner = format!("read a; echo $a > {}; echo x > {}; exec sleep 600", got.display(), ready.display());
    let run = format!("{binary} run x -- bash -c '{inner}'");
    // Without the trap Ctrl-C ends the script, too.
    let outer = format!("trap : INT; {run}; echo code $?; read b; echo $b > {}", after.display());
    let mut command = std::process::Command::new("script");
    command.args(["-qec", &outer, "/dev/null"]).env("REDLOCKD_URL", daemon.url()).env("SHELL", "/bin/sh");
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut session = Running::spawn(&mut command);
    let mut keys = session.child().stdin.take().expect("piped");
    keys.write_all(b"hello\n").expect("the terminal reads");
    assert_eq!(line_in(&got).await, "hello\n");
    line_in(&ready).await;
    keys.write_all(b"\x03").expect("the terminal reads");
    poll::until_true("the lock is released", || daemon.ask(&["status", "x"]).code == Some(1)).await;
    keys.write_all(b"again\n").expect("the terminal reads");
    assert_eq!(line_in(&after).await, "again\n");
    let done = session.end().await;
    assert!(done.out.contains("code 130"), "{done:?}");
}

/// In a shell with job control: Ctrl-Z gives the shell its terminal back, `fg` continues the command.
#[tokio::test]
async fn ctrl_z_stops_both_and_fg_continues_both() {
    is_stopped_and_continued("", "is not renewed meanwhile, and the command is ended in").await;
}

/// The watchdog holds the lock meanwhile.
#[tokio::test]
async fn ctrl_z_with_on_lost_warn_keeps_the_lock() {
    is_stopped_and_continued("--ttl 3s --on-lost warn", "the lease on x is renewed meanwhile").await;
}

async fn is_stopped_and_continued(how: &str, said: &str) {
    let daemon = Daemon::start();
    let dir = tempfile::tempdir().expect("a directory");
    let file = |name: &str| dir.path().join(name);
    let (session, mut keys) = interactive_bash(&daemon, dir.path());
    let mut press = |text: &str| keys.write_all(text.as_bytes()).expect("the terminal reads");
    let binary = env!("CARGO_BIN_EXE_redlockd");
    press(&format!("{binary} run {how} x -- sh -c 'echo $$ > ready; read v; echo $v > got'; echo code $? > code\n"));
    let pid = line_in(&file("ready")).await;
    // Before that Ctrl-Z would stop `run` alone.
    poll::until_true("it has the terminal", || foreground_of(&pid).as_deref() == Some(pid.trim())).await;
    press("\x1a");
    // bash goes on with the rest of the line when its first part is stopped.
    assert_eq!(line_in(&file("code")).await, "code 148\n");
    press("echo mine > shell\n");
    line_in(&file("shell")).await;
    assert!(!file("got").exists());
    if how.contains("warn") {
        stays_held(&daemon, "x", Duration::from_secs(3)).await;
    }
    press("fg\nhello\n");
    assert_eq!(line_in(&file("got")).await, "hello\n");
    poll::until_true("the lock is released", || daemon.ask(&["status", "x"]).code == Some(1)).await;
    press("exit\n");
    let done = session.end().await;
    assert!(done.out.contains(said) && !done.out.contains("WITHOUT"), "{done:?}");
}

/// A command in state T gets an ending signal only when it is continued.
#[tokio::test]
async fn a_stopped_command_is_ended_by_a_signal() {
    let daemon = Daemon::start();
    for (signal, code) in [(Signal::TERM, 143), (Signal::HUP, 129)] {
        let dir = tempfile::tempdir().expect("a directory");
        let ready = dir.path().join("ready");
        let script = format!("echo $$ > {}; kill -STOP $$; exec sleep 600", ready.display());
        let mut run = Running::spawn(&mut daemon.command(&["run", "x", "--", "sh", "-c", &script]));
        let pid = line_in(&ready).await;
        poll::until_true("it is stopped", || state_of(&pid) == Some('T')).await;
        run.signal(signal);
        assert_eq!(run.end().await.code, Some(code));
        assert_eq!(daemon.ask(&["status", "x"]).code, Some(1));
    }
}

/// The process group in the foreground of its terminal.
fn foreground_of(pid: &str) -> Option<String> {
    let stat = std::fs::read_to_string(format!("/proc/{}/stat", pid.trim())).ok()?;
    stat.rsplit(')').next()?.split_whitespace().nth(5).map(str::to_owned)
}

/// The letter in /proc/PID/stat.
fn state_of(pid: &str) -> Option<char> {
    let stat = std::fs::read_to_string(format!("/proc/{}/stat", pid.trim())).ok()?;
    stat.rsplit(')').next()?.trim().chars().next()
}

/// A terminal of script(1) with an interactive bash in it, whose working directory is `dir`.
fn interactive_bash(daemon: &Daemon, dir: &std::path::Path) -> (Running, std::process::ChildStdin) {
    let mut command = std::process::Command::new("script");
    command.args(["-qec", "bash --norc --noprofile -i", "/dev/null"]).current_dir(dir);
    command.env("REDLOCKD_URL", daemon.url()).env("SHELL", "/bin/sh").env("HISTFILE", "/dev/null");
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut session = Running::spawn(&mut command);
    let keys = session.child().stdin.take().expect("piped");
    (session, keys)
}

/// In a pipeline the command asks /dev/tty for a password, as sudo, ssh and git do: it is stopped by SIGTTIN and gets the
/// terminal.
#[tokio::test]
async fn in_a_pipeline_the_command_can_ask_for_a_password() {
    let daemon = Daemon::start();
    let dir = tempfile::tempdir().expect("a directory");
    let (session, mut keys) = interactive_bash(&daemon, dir.path());
    let binary = env!("CARGO_BIN_EXE_redlockd");
    let line = format!(
        "{binary} run x -- sh -c 'echo ready > ready; read p </dev/tty; echo got $p' | tee log; echo over > over\n"
    );
    keys.write_all(line.as_bytes()).expect("the terminal reads");
    line_in(&dir.path().join("ready")).await;
    keys.write_all(b"secret\n").expect("the terminal reads");
    line_in(&dir.path().join("over")).await;
    assert_eq!(std::fs::read_to_string(dir.path().join("log")).expect("written"), "got secret\n");
    assert_eq!(daemon.ask(&["status", "x"]).code, Some(1));
    keys.write_all(b"exit\n").expect("the terminal reads");
    session.end().await;
}

/// In the background a command that reads the terminal stops, with `run`, until `fg`.
#[tokio::test]
async fn in_the_background_a_reading_command_stops_until_fg() {
    let daemon = Daemon::start();
    let dir = tempfile::tempdir().expect("a directory");
    let (session, mut keys) = interactive_bash(&daemon, dir.path());
    let binary = env!("CARGO_BIN_EXE_redlockd");
    let line = format!("{binary} run x -- sh -c 'echo $PPID > ready; read v; echo $v > got' &\n");
    keys.write_all(line.as_bytes()).expect("the terminal reads");
    let run = line_in(&dir.path().join("ready")).await;
    poll::until_true("run is stopped", || state_of(&run) == Some('T')).await;
    keys.write_all(b"fg\nhello\n").expect("the terminal reads");
    assert_eq!(line_in(&dir.path().join("got")).await, "hello\n");
    poll::until_true("the lock is released", || daemon.ask(&["status", "x"]).code == Some(1)).await;
    keys.write_all(b"exit\n").expect("the terminal reads");
    session.end().await;
}

/// The terminal is closed while the command has it, waits in a pipeline for a password, or is stopped in the background: the
/// command ends, and the lock is free long before the end of its TTL.
#[tokio::test]
async fn a_closed_terminal_ends_the_command_and_frees_the_lock() {
    let binary = env!("CARGO_BIN_EXE_redlockd");
    let job = "sh -c 'echo $PPID $$ > ready; read v < /dev/tty; sleep 600'";
    for (end, is_stopped) in [("", false), (" | cat", false), (" &", true)] {
        let daemon = Daemon::start();
        let dir = tempfile::tempdir().expect("a directory");
        let (mut session, mut keys) = interactive_bash(&daemon, dir.path());
        keys.write_all(format!("{binary} run --ttl 5m x -- {job}{end}\n").as_bytes()).expect("the terminal reads");
        let pids = line_in(&dir.path().join("ready")).await;
        let [run, command] = pids.split_whitespace().collect::<Vec<_>>()[..] else { panic!("{pids}") };
        if is_stopped {
            poll::until_true("run is stopped", || state_of(run) == Some('T')).await;
        }
        session.child().kill().expect("our own child");
        poll::until_true(&format!("all have ended{end}"), || !is_running(run) && !is_running(command)).await;
        assert_eq!(daemon.ask(&["status", "x"]).code, Some(1), "{end}");
    }
}

/// Ctrl-C while it waits for the lock stops the loop, too.
#[tokio::test]
async fn ctrl_c_while_it_waits_stops_the_loop_around_it() {
    let daemon = Daemon::start();
    daemon.get(&["acquire", "--ttl", "5m", "x"]);
    let dir = tempfile::tempdir().expect("a directory");
    let (session, mut keys) = interactive_bash(&daemon, dir.path());
    let binary = env!("CARGO_BIN_EXE_redlockd");
    let line = format!("for i in 1 2 3; do echo $i >> seen; {binary} run --wait 5m x -- true; done\n");
    keys.write_all(line.as_bytes()).expect("the terminal reads");
    let waiters = || daemon.json(&["status", "--json", "x"])["waiters"].as_array().map_or(0, Vec::len);
    poll::until_true("it queues", || waiters() == 1).await;
    keys.write_all(b"\x03").expect("the terminal reads");
    poll::until_true("it has left the queue", || waiters() == 0).await;
    keys.write_all(b"echo done > done\n").expect("the terminal reads");
    line_in(&dir.path().join("done")).await;
    assert_eq!(std::fs::read_to_string(dir.path().join("seen")).expect("written"), "1\n");
    keys.write_all(b"exit\n").expect("the terminal reads");
    session.end().await;
}

/// `run` dies of the SIGINT that ended its command, so a shell stops its loop, as with flock.
#[tokio::test]
async fn ctrl_c_stops_the_loop_around_it() {
    let daemon = Daemon::start();
    let dir = tempfile::tempdir().expect("a directory");
    let (session, mut keys) = interactive_bash(&daemon, dir.path());
    let binary = env!("CARGO_BIN_EXE_redlockd");
    // bash: dash loses a SIGINT that comes while it starts a process.
    let line = format!("for i in 1 2 3; do {binary} run x -- bash -c \"echo $i >> seen; exec sleep 600\"; done\n");
    keys.write_all(line.as_bytes()).expect("the terminal reads");
    assert_eq!(line_in(&dir.path().join("seen")).await, "1\n");
    keys.write_all(b"\x03").expect("the terminal reads");
    poll::until_true("the lock is released", || daemon.ask(&["status", "x"]).code == Some(1)).await;
    keys.write_all(b"echo done > done\n").expect("the terminal reads");
    line_in(&dir.path().join("done")).await;
    assert_eq!(std::fs::read_to_string(dir.path().join("seen")).expect("written"), "1\n");
    keys.write_all(b"exit\n").expect("the terminal reads");
    session.end().await;
}

/// A script that was started at a terminal: Ctrl-C goes to the command's group, which has the terminal, and `run` sends it on to
/// the script's, or the shell would run the second step.
#[tokio::test]
async fn ctrl_c_at_a_terminal_ends_the_script_around_it() {
    let daemon = Daemon::start();
    let binary = env!("CARGO_BIN_EXE_redlockd");
    for shell in ["bash", "dash"] {
        let dir = tempfile::tempdir().expect("a directory");
        let script = format!("{binary} run x -- bash -c 'echo ready > ready; exec sleep 600'\necho late > late\n");
        std::fs::write(dir.path().join("script"), script).expect("writable");
        let (session, mut keys) = interactive_bash(&daemon, dir.path());
        keys.write_all(format!("{shell} script\n").as_bytes()).expect("the terminal reads");
        line_in(&dir.path().join("ready")).await;
        poll::until_true("the command has the terminal", || {
            let pid = daemon.json(&["status", "--json", "x"])["holders"][0]["owner"].clone();
            pid.as_str().and_then(|owner| owner.rsplit(':').next()).is_some_and(has_lost_the_terminal)
        })
        .await;
        keys.write_all(b"\x03").expect("the terminal reads");
        poll::until_true("the lock is released", || daemon.ask(&["status", "x"]).code == Some(1)).await;
        keys.write_all(b"echo done > done\n").expect("the terminal reads");
        line_in(&dir.path().join("done")).await;
        assert!(!dir.path().join("late").exists(), "{shell}");
        keys.write_all(b"exit\n").expect("the terminal reads");
        session.end().await;
    }
}

/// Whether another process group than this process' is its terminal's foreground group.
fn has_lost_the_terminal(pid: &str) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{}/stat", pid.trim())).unwrap_or_default();
    // pid (name) state ppid pgrp session tty_nr tpgid …
    let fields: Vec<&str> = stat.rsplit(')').next().unwrap_or_default().split_whitespace().collect();
    fields.len() > 5 && fields[2] != fields[5]
}

/// The same in a script: the second step does not run.
#[tokio::test]
async fn an_interrupted_command_ends_the_script_around_it() {
    let daemon = Daemon::start();
    let dir = tempfile::tempdir().expect("a directory");
    let (ready, second) = (dir.path().join("ready"), dir.path().join("second"));
    let binary = env!("CARGO_BIN_EXE_redlockd");
    let script = format!(
        "{binary} run x -- sh -c 'echo $PPID > {}; exec sleep 600'; echo late > {}",
        ready.display(),
        second.display()
    );
    let mut command = std::process::Command::new("bash");
    command.args(["-c", &script]).env("REDLOCKD_URL", daemon.url());
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let session = Running::spawn(in_own_group(&mut command));
    let run = line_in(&ready).await;
    let run = rustix::process::Pid::from_raw(run.trim().parse().expect("a number")).expect("a process");
    let group = rustix::process::getpgid(Some(run)).expect("it lives");
    rustix::process::kill_process_group(group, Signal::INT).expect("our own group");
    assert_eq!(session.end().await.code, Some(130));
    assert!(!second.exists());
}

/// In a process group of its own, which a test may signal.
fn in_own_group(command: &mut std::process::Command) -> &mut std::process::Command {
    use std::os::unix::process::CommandExt;
    command.process_group(0)
}

/// Without `--`, and with options of the command's own.
#[test]
fn the_command_follows_the_resource_with_or_without_dashes() {
    let daemon = Daemon::start();
    for args in [
        &["run", "x", "echo", "-n", "a", "--ttl"][..],
        &["run", "x", "--", "echo", "-n", "a", "--ttl"],
        &["run", "--ttl", "5s", "x", "echo", "-n", "a", "--ttl"],
        &["run", "x", "--ttl", "5s", "--", "echo", "-n", "a", "--ttl"],
        &["run", "x", "sh", "-c", "echo -n \"$@\"", "--", "a", "--ttl"],
    ] {
        let done = daemon.ask(args);
        assert_eq!((done.code, done.out.as_str(), done.err.as_str()), (Some(0), "a --ttl", ""), "{args:?}");
    }
    let none = daemon.ask(&["run", "x"]);
    assert_eq!(none.code, Some(64));
    assert!(none.err.contains("<COMMAND>") && none.err.ends_with("(see redlockd run --help)\n"), "{}", none.err);
    assert!(!none.err.contains(":;"), "{}", none.err);
}
