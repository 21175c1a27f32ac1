//! Findings of a review of the command line that no other file tests; docs/verification.md lists all of them by their letters.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use redlockd::redlock::clock::{Clock, SystemClock};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use tempfile::TempDir;
use tokio::io::AsyncBufReadExt;

use crate::support::daemon::{Daemon, Ended, Running, ended, line_in, redlockd};
use crate::support::poll;

fn json(done: &Ended) -> Value {
    serde_json::from_str(&done.out).unwrap_or_else(|e| panic!("{e}: {done:?}"))
}

/// A program that gives rights of its own to whoever calls it, as sudo does: a copy of setpriv that belongs to root.
struct SudoStandIn {
    dir: TempDir,
}

impl SudoStandIn {
    /// `None` without root's rights, or without setpriv.
    fn new() -> Option<Self> {
        const NOBODY: u32 = 65_534;
        let setpriv = Path::new(SETPRIV);
        if !rustix::process::geteuid().is_root() || !setpriv.exists() {
            return None;
        }
        let dir = tempfile::tempdir().expect("a directory");
        let mode =
            |path: &Path, mode| std::fs::set_permissions(path, PermissionsExt::from_mode(mode)).expect("own file");
        let (sudo, program, runtime) =
            (dir.path().join("sudo"), dir.path().join("redlockd"), dir.path().join("runtime"));
        std::fs::copy(setpriv, &sudo).expect("copied");
        std::fs::copy(env!("CARGO_BIN_EXE_redlockd"), &program).expect("copied");
        std::fs::create_dir(&runtime).expect("made");
        std::os::unix::fs::chown(&runtime, Some(NOBODY), Some(NOBODY)).expect("root may");
        mode(dir.path(), 0o755);
        mode(&program, 0o755);
        mode(&sudo, 0o4755);
        Some(Self { dir })
    }

    /// `redlockd run` by a user without rights, of a shell with root's; for a shell, whose `$1` is the script.
    fn run(&self, ttl: &str) -> String {
        let dir = self.dir.path().display();
        format!(
            "{SETPRIV} --reuid 65534 --regid 65534 --clear-groups env XDG_RUNTIME_DIR={dir}/runtime \
             {dir}/redlockd run --ttl {ttl} x -- {dir}/sudo --reuid 0 sh -c \"$1\""
        )
    }
}

const SETPRIV: &str = "/usr/bin/setpriv";

/// In a pipeline at a terminal, where sudo asks for the password: the command is stopped for reading, gets the terminal although
/// it runs as another user, and Ctrl-C at the prompt ends it.
#[tokio::test]
#[expect(clippy::print_stderr, reason = "a skipped test says so")]
async fn a_command_under_sudo_can_ask_for_a_password_and_be_interrupted() {
    let Some(sudo) = SudoStandIn::new() else { return eprintln!("needs root and setpriv: skipped") };
    let daemon = Daemon::start();
    for (keys, output) in [("secret\n", "got secret\n"), ("\x03", "")] {
        let dir = tempfile::tempdir().expect("a directory");
        let at = |name: &str| dir.path().join(name);
        std::fs::write(at("job"), format!("echo $$ > {}; read p </dev/tty; echo got $p", at("ready").display()))
            .expect("writable");
        let mut command = Command::new("script");
        command.args(["-qec", "bash --norc --noprofile -i", "/dev/null"]).current_dir(dir.path());
        command.env("REDLOCKD_URL", daemon.url()).env("SHELL", "/bin/sh").env("HISTFILE", "/dev/null");
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut session = Running::spawn(&mut command);
        let mut keyboard = session.child().stdin.take().expect("piped");
        let mut press = |text: &str| keyboard.write_all(text.as_bytes()).expect("the terminal reads");
        press(&format!("set -- \"$(cat job)\"; {} | tee log\n", sudo.run("1m")));
        let pid = line_in(&at("ready")).await;
        poll::until_true("it has the terminal", || has_terminal(&pid)).await;
        press(keys);
        poll::until_true("the lock is free", || daemon.ask(&["status", "x"]).code == Some(1)).await;
        press("echo over > over\n");
        line_in(&at("over")).await;
        assert_eq!(std::fs::read_to_string(at("log")).expect("written"), output, "{keys:?}");
        press("exit\n");
        session.end().await;
    }
}

/// Whether the process group of this process is the foreground group of its terminal.
fn has_terminal(pid: &str) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{}/stat", pid.trim())).unwrap_or_default();
    // pid (name) state ppid pgrp session tty_nr tpgid …
    let fields: Vec<&str> = stat.rsplit(')').next().unwrap_or_default().split_whitespace().collect();
    fields.len() > 5 && fields[2] == fields[5]
}

/// A4: a command with rights of its own, as under sudo, may not be signalled: that is said once, not fifty times a second, and the
/// watchdog that has done its work is not missed. The stand-in for sudo is a copy of setpriv that belongs to root.
#[tokio::test]
#[expect(clippy::print_stderr, reason = "a skipped test says so")]
async fn a4_a_command_that_may_not_be_signalled_is_reported_once() {
    let Some(sudo) = SudoStandIn::new() else { return eprintln!("needs root and setpriv: skipped") };
    let daemon = Daemon::start();
    let pid = sudo.dir.path().join("pid");
    let script = format!("echo $$ > {}; exec sleep 600", pid.display());
    let mut command = Command::new("sh");
    command.args(["-c", &format!("exec {}", sudo.run("3s")), "sh", &script]);
    command.env_clear().env("PATH", "/usr/bin:/bin").env("REDLOCKD_URL", daemon.url());
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut run = Running::spawn(&mut command);
    let pid = Pid::from_raw(line_in(&pid).await.trim().parse().expect("a number")).expect("a process");
    run.signal(Signal::TERM);
    daemon.freeze();
    let frozen = SystemClock.now();
    // The lease, SIGKILL's two seconds, and two more for what was fifty lines a second.
    poll::until_true("it has had time to report", || SystemClock.now().since(frozen) > Duration::from_secs(8)).await;
    kill_process(pid, Signal::KILL).expect("root may");
    let done = run.end().await;
    daemon.thaw();
    let count = |text: &str| done.err.matches(text).count();
    assert_eq!(done.code, Some(76), "{done:?}");
    assert_eq!((count("no right to signal the command"), count("the watchdog process has ended")), (1, 0), "{done:?}");
    assert!(count("does not end") <= 2 && done.err.lines().count() <= 8, "{done:?}");
}

/// B6, B8, B9, B10, C16: what is said, and where.
#[test]
fn messages_and_json_are_those_of_the_command_line() {
    let daemon = Daemon::start();
    // B6: a limit of the service in the words of the command line, once.
    let long = daemon.ask(&["run", "--ttl", "1h", "x", "--", "true"]);
    assert!(long.code == Some(64) && long.err.contains("`run` renews by itself"), "{long:?}");
    assert!(!long.err.contains("PATCH") && long.err.matches("must be from").count() == 1, "{long:?}");
    // B9: `-` is standard output, and no file of that name.
    let dir = tempfile::tempdir().expect("a directory");
    let token = ended(daemon.command(&["acquire", "--ttl", "1m", "--token-file", "-", "x"]).current_dir(dir.path()));
    assert_eq!((token.code, token.out.trim().len()), (Some(0), 32), "{token:?}");
    assert_eq!(std::fs::read_dir(dir.path()).expect("readable").count(), 0);
    // B10: without variables the name of the user, and the process that asked.
    let owner = json(&daemon.ask(&["acquire", "--json", "y"]))["owner"].clone();
    let user = ended(Command::new("id").arg("-un").stdout(Stdio::piped())).out;
    let (own, name) = (format!(":{}", std::process::id()), format!("{}@", user.trim()));
    assert!(owner.as_str().is_some_and(|o| o.starts_with(&name) && o.ends_with(&own)), "{owner}");
    // C16.
    let late = daemon.ask(&["run", "--wait", "50ms", "x", "--", "true"]);
    assert!(late.err.contains("not acquired within 50ms: x is held by "), "{late:?}");
    // B8: answers and refusals of the other commands.
    let file = dir.path().join("token");
    std::fs::write(&file, &token.out).expect("writable");
    std::fs::set_permissions(&file, PermissionsExt::from_mode(0o600)).expect("own file");
    let file = file.to_str().expect("text");
    let release = || daemon.ask(&["release", "--json", "--token-file", file, "x"]);
    assert_eq!(json(&release())["state"], "released");
    let again = release();
    assert_eq!(
        (again.code, &json(&again)["status"], again.err.lines().count()),
        (Some(76), &410.into(), 1),
        "{again:?}"
    );
    let nobody = daemon.ask(&["force", "--json", "--reason", "r", "x"]);
    assert_eq!((nobody.code, &json(&nobody)["status"]), (Some(1), &404.into()), "{nobody:?}");
    let revoked = daemon.ask(&["force", "--json", "--reason", "r", "y"]);
    assert!(revoked.code == Some(0) && json(&revoked)["frees_in_ms"].is_number(), "{revoked:?}");
    assert_eq!(json(&daemon.ask(&["force", "--json", "--now", "--reason", "r", "y"]))["state"], "free");
}

/// B6: where a key is needed, the option that names one is said, and not the header.
#[test]
fn b6_a_missing_key_is_said_in_the_words_of_the_command_line() {
    let dir = tempfile::tempdir().expect("a directory");
    let access = access_file(dir.path());
    let daemon = Daemon::start_with(&["--set", &access]);
    for command in [&["list"][..], &["run", "x", "--", "true"], &["acquire", "x"]] {
        let done = daemon.ask(command);
        assert_eq!((done.code, done.err.lines().count()), (Some(77), 1), "{done:?}");
        assert!(done.err.contains("--key-file") && !done.err.contains("Bearer"), "{done:?}");
    }
}

/// B7: each command asks a first instance that hangs once, then whether it is alive, and then the next one.
#[tokio::test(flavor = "multi_thread")]
async fn b7_an_instance_that_hangs_is_asked_whether_it_is_alive_and_skipped() {
    let good = Daemon::start();
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let hung = format!("http://{}", listener.local_addr().expect("bound"));
    let (sender, asked) = std::sync::mpsc::channel();
    let hangs = tokio::spawn(async move {
        let mut open = Vec::new();
        while let Ok((stream, _)) = listener.accept().await {
            let mut request = tokio::io::BufReader::new(stream).lines();
            sender.send(request.next_line().await.ok().flatten()).expect("the test reads them");
            open.push(request);
        }
    });
    let ask = |args: &[&str]| {
        let urls = ["--url", &hung, "--url", &good.url()];
        let begun = SystemClock.now();
        let done = tokio::task::block_in_place(|| ended(&mut redlockd(&[&args[..1], &urls[..], &args[1..]].concat())));
        (done, SystemClock.now().since(begun))
    };
    let status = (&["status", "x"][..], 1, "GET /locks/x HTTP/1.1");
    let run = (&["run", "-q", "--wait", "1m", "x", "--", "true"][..], 0, "POST /locks/x HTTP/1.1");
    let took = [run, status, status, status].map(|(args, code, first)| {
        let (done, took) = ask(args);
        assert_eq!(done.code, Some(code), "{done:?}");
        for line in [first, "GET /health/live HTTP/1.1"] {
            let next = asked.recv_timeout(poll::PATIENCE).expect("a request");
            assert_eq!(next.as_deref(), Some(line));
        }
        took
    });
    assert!(asked.try_recv().is_err());
    // The second that it costs is half a second for each of the two; a busy machine makes some of these slower, not all.
    let fastest = took.iter().min().expect("four");
    assert!(*fastest < Duration::from_secs(2), "{took:?}");
    hangs.abort();
}

/// B13: other systems get a sentence from the compiler, and the README says it before.
#[test]
fn b13_other_systems_are_refused_when_it_is_built() {
    for file in [include_str!("../../src/lib.rs"), include_str!("../../crates/common/src/lib.rs")] {
        let (_, rest) = file.split_once("#[cfg(not(target_os = \"linux\"))]\n").expect("a condition");
        assert!(rest.starts_with("compile_error!(\"redlockd supports Linux only"), "{rest:.80}");
    }
    let readme = include_str!("../../README.md");
    assert!(readme.contains("needs Linux") && readme.find("needs Linux") < readme.find("cargo run"));
}

/// B14: no command for people is missing from the synopsis or too many in the completions.
#[test]
fn b14_the_synopsis_has_both_forms_of_run_and_completions_have_no_watchdog() {
    let page = ended(&mut redlockd(&["man", "run"])).out.replace("\\fB", "").replace("\\fR", "").replace('\\', "");
    let synopsis = page.split(".SH SYNOPSIS\n").nth(1).and_then(|rest| rest.split(".SH ").next()).expect("a synopsis");
    let forms: Vec<&str> = synopsis.lines().filter(|line| *line != ".br").collect();
    assert_eq!(
        forms,
        ["redlockd run [OPTIONS] NAME [--] COMMAND...", "redlockd run [OPTIONS] NAME NAME... -- COMMAND..."]
    );
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let done = ended(&mut redlockd(&["completions", shell]));
        assert!(done.out.contains("skip-if-held") && !done.out.contains("watchdog"), "{shell}");
    }
}

/// C1: as people type it.
#[test]
fn c1_a_url_needs_no_scheme() {
    let daemon = Daemon::start();
    let done = ended(&mut redlockd(&["run", "--url", daemon.url().trim_start_matches("http://"), "x", "--", "true"]));
    assert_eq!((done.code, done.err.as_str()), (Some(0), ""), "{done:?}");
}

/// The instance that was asked for a change of the nodes ended before it answered: another one may have completed it.
#[test]
fn a_change_of_the_nodes_without_an_answer_may_have_been_made() {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let url = format!("http://{}", listener.local_addr().expect("bound"));
    let served = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().expect("a caller");
        let _ = stream.read(&mut [0; 4096]).expect("readable");
    });
    let other = Daemon::start();
    let done = ended(&mut redlockd(&["nodes", "remove", "--url", &url, "--url", &other.url(), "--reason", "x", "n1"]));
    served.join().expect("served");
    assert_eq!(done.code, Some(69), "{done:?}");
    assert!(done.err.contains("without an answer") && done.err.contains("may have been done"), "{done:?}");
    let refused = ended(&mut redlockd(&["nodes", "remove", "--url", &url, "--reason", "x", "n1"]));
    assert!(refused.code == Some(69) && !refused.err.contains("may have been done"), "{refused:?}");
}

/// C2, C3, C10: another protocol, a name that does not resolve, and what may be appended to the access file.
#[test]
fn mistakes_are_named() {
    let daemon = Daemon::start();
    let tls = daemon.ask(&["status", "--url", &daemon.url().replace("http:", "https:"), "x"]);
    assert!(tls.code == Some(69) && tls.err.contains("does not speak TLS"), "{tls:?}");
    let name = ended(&mut redlockd(&["doctor", "--node", "redis://nowhere.invalid"]));
    assert!(name.code == Some(1) && !name.out.contains("I/O error"), "{name:?}");
    assert!(name.out.contains("lookup address") || name.out.contains("resolve"), "{name:?}");
    let key = ended(&mut redlockd(&["key", "new", "--name", "ci", "--allow", "metrics"]));
    assert!(key.code == Some(0) && key.out.starts_with("[[principal]]") && !key.out.contains("rlk_"), "{key:?}");
    assert!(key.err.contains("rlk_"), "{key:?}");
    let past = ["key", "new", "--name", "ci", "--allow", "metrics", "--expires", "2020-01-01"];
    assert_eq!(ended(&mut redlockd(&past)).code, Some(64));
}

/// C7: at a terminal durations have units, and every answer is a table; `list` is in `people_get_tables`.
#[test]
fn c7_answers_at_a_terminal_are_for_people() {
    let daemon = Daemon::start();
    let dir = tempfile::tempdir().expect("a directory");
    let token = dir.path().join("token").display().to_string();
    for (line, label, heading) in [
        (format!("acquire --ttl 4m --token-file {token} x"), "valid for    ", ""),
        (format!("extend --ttl 4m --token-file {token} x"), "valid for    ", ""),
        ("status x".to_owned(), "valid for    ", "NODE        STATE"),
        ("keep --for 1h y".to_owned(), "valid for    ", ""),
        ("nodes".to_owned(), "", "NODE        STATE"),
    ] {
        let mut script = Command::new("script");
        let line = format!("{} {line}", env!("CARGO_BIN_EXE_redlockd"));
        script.args(["-qec", &line, "/dev/null"]).env("NO_COLOR", "1").env("SHELL", "/bin/sh");
        script.env("REDLOCKD_URL", daemon.url()).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let out = ended(&mut script).out;
        assert!(!out.contains("_ms") && !out.lines().any(|line| line.contains('=')), "{line}: {out}");
        assert!(out.lines().any(|line| line.starts_with(heading)), "{line}: {out}");
        let value = out.lines().find_map(|line| line.strip_prefix(label)).expect(label);
        let units: Vec<&str> = value.split_whitespace().skip(1).step_by(2).collect();
        let has_units = !units.is_empty() && units.iter().all(|unit| ["h", "m", "s"].contains(unit));
        assert!(label.is_empty() || has_units, "{line}: {out}");
    }
}

/// C8: no control sequences on a terminal that knows none, and none where nothing was waited for.
#[test]
fn c8_a_line_is_overwritten_only_where_it_was_shown() {
    let daemon = Daemon::start();
    daemon.get(&["acquire", "--ttl", "2s", "--owner", "a", "held"]);
    let binary = env!("CARGO_BIN_EXE_redlockd");
    let at = |term: &str, line: String| {
        let mut script = Command::new("script");
        script
            .args(["-qec", &line, "/dev/null"])
            .env("TERM", term)
            .env("SHELL", "/bin/sh")
            .env("REDLOCKD_URL", daemon.url());
        ended(script.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped())).out
    };
    let waited = at("dumb", format!("{binary} list; {binary} run --wait 1m held -- true"));
    assert!(waited.contains("waiting for held") && !waited.contains('\x1b'), "{waited:?}");
    let free = at("xterm", format!("{binary} run --wait 1m free -- echo done"));
    assert!(free.contains("done") && !free.contains('\x1b'), "{free:?}");
    assert!(
        at("xterm", format!("{binary} list --prefix h; {binary} nodes")).contains('\x1b'),
        "else this shows nothing"
    );
}

/// The setting that names an access file with one key.
fn access_file(dir: &Path) -> String {
    let access = dir.join("access.toml");
    let entry = ended(&mut redlockd(&["key", "new", "--name", "ci", "--allow", "admin"])).out;
    std::fs::write(&access, entry).expect("writable");
    std::fs::set_permissions(&access, PermissionsExt::from_mode(0o600)).expect("own file");
    format!("access_file={}", access.display())
}

/// C12: where a key is needed, the line that is announced has its place.
#[test]
fn c12_the_announced_line_has_a_key_where_one_is_needed() {
    let dir = tempfile::tempdir().expect("a directory");
    let access = access_file(dir.path());
    let mut command = redlockd(&["serve", "--listen", "0.0.0.0:0", "--set", &access, "--data-dir"]);
    let mut child = command.arg(dir.path()).spawn().expect("it starts");
    let lines = BufReader::new(child.stdout.take().expect("piped")).lines();
    let announced: Vec<String> = lines.take(3).map(|line| line.expect("text")).collect();
    child.kill().expect("own child");
    child.wait().expect("own child");
    let line = announced.iter().find(|line| line.contains("try:")).expect("it is announced");
    assert!(line.contains("-H 'Authorization: Bearer KEY' "), "{announced:?}");
}
