//! "In place of flock": the same scripts with `flock` and with `redlockd run` print the same and end the same. What differs
//! is listed here with both results, and in docs/comparison.md.

use std::path::Path;
use std::process::{Command, Stdio};

use crate::support::daemon::{Daemon, ended};

/// `TRY` takes the lock or fails with 1, `WAIT` waits for it, `WAIT1` waits for a second; `HELD` is a holder in the background,
/// which ends when the file `go` is written; `TRYS`, `WAITS` and `HELDS` do so beside others of their kind. `QUEUED`: whether one
/// waits.
const SAME: [&str; 38] = [
    "TRY true",
    "TRY false",
    "TRY sh -c 'exit 7'",
    "TRY echo hello",
    "TRY printf '%s|' 'a b' '' '*' '$HOME' \"it's\"",
    "echo in | TRY cat",
    "TRY echo a | tr a b",
    "A=b TRY sh -c 'echo $A'",
    "cd / && TRY pwd",
    "TRY head -c 1000000 /dev/zero | wc -c",
    "TRY sh -c 'echo out; echo err >&2' 2>&1",
    "TRY sh -c 'echo out; echo err >&2' 2>/dev/null",
    "TRY sh -c 'echo x >&3' 3>&1",
    "TRY echo 1; TRY echo 2",
    "TRY sh -c 'exit 4' & wait $!",
    "for i in 1 2 3; do TRY echo $i || break; done",
    "if TRY false; then echo yes; else echo no; fi",
    "TRY false || echo recovered; TRY true && echo on",
    "set -e; TRY echo first; TRY false; echo never",
    "x=$(TRY echo hi); echo \"<$x>\"",
    "trap 'echo bye' EXIT; TRY true",
    "TRY sh -c 'kill -TERM $$'; echo $?",
    "TRY sh -c 'kill -KILL $$'; echo $?",
    "umask 027; TRY sh -c umask",
    "nice -n 5 TRY nice",
    "(ulimit -n 64; TRY sh -c 'ulimit -n')",
    "printf 'a\\nb\\nc\\n' | xargs -n1 WAIT echo",
    "echo 0 > n; for i in 1 2 3 4 5 6 7 8 9 10; do WAIT sh -c 'read n < n; echo $((n + 1)) > n' & done; wait; cat n",
    "HELD; TRY echo never",
    "HELD; WAIT1 echo never",
    "HELD; (sleep 0.3; echo 1<> go) & WAIT echo mine",
    "TRYS sh -c 'exit 7'",
    "TRYS TRYS echo both",
    "HELDS; TRYS echo beside",
    "HELDS; TRY echo never",
    "HELD; TRYS echo never",
    "HELD; (until QUEUED; do sleep 0.05; done; echo 1<> go) & WAITS echo mine",
    "HELDS; (until QUEUED; do sleep 0.05; done; echo 1<> go) & WAIT echo mine",
];

/// With the exit code under flock and under run.
const DIFFERENT: [(&str, i32, i32); 3] = [
    // flock has one code for all of its own errors, run has those of shells.
    ("TRY /nowhere/at/all 2>/dev/null", 69, 127),
    // A child that is left keeps flock's lock; run ends it.
    (
        "TRY sh -c 'sleep 600 & echo $! > left' 2>/dev/null; TRY true; code=$?; kill $(cat left) 2>/dev/null; exit $code",
        1,
        0,
    ),
    // With flock, shared locks that overlap keep an exclusive one waiting.
    ("HELDS; WAIT true & until QUEUED; do sleep 0.05; done; TRYS true", 0, 1),
];

/// What stands for a word: under flock, and under run. A word that begins with another one comes before it.
fn words() -> [(&'static str, String, String); 8] {
    let queued = "grep -q -- \"-> FLOCK .*:$(stat -c %i DIR/f) \" /proc/locks";
    let of = |word, flock: &str, run: &str| (word, flock.to_owned(), run.to_owned());
    [
        of("WAIT1", "flock -w 1 DIR/f", "redlockd run -q -E 1 --wait 1s x --"),
        of("WAITS", "flock -s DIR/f", "redlockd run -q --wait 1m --shared x --"),
        of("WAIT", "flock DIR/f", "redlockd run -q --wait 1m x --"),
        of("TRYS", "flock -s -n DIR/f", "redlockd run -q -E 1 --shared x --"),
        of("TRY", "flock -n DIR/f", "redlockd run -q -E 1 x --"),
        of("HELDS", &holder("flock -s -n DIR/f"), &holder("redlockd run --shared x --")),
        of("HELD", &holder("flock -n DIR/f"), &holder("redlockd run x --")),
        of("QUEUED", queued, "redlockd status --plain x | grep -q '^waiting=1$'"),
    ]
}

/// A holder that has the lock before the next command, and ends when it reads from `go`.
fn holder(lock: &str) -> String {
    let job = "sh -c 'echo > has; read x < go' > /dev/null 2>&1";
    // Opened for both directions, a pipe without a reader does not block.
    format!("mkfifo go has; {lock} {job} & trap 'echo 1<> go' EXIT; read x < has")
}

/// The script with one kind of lock; exit code and standard output.
fn outcome(script: &str, words: &[(&str, String)], daemon: &Daemon) -> (Option<i32>, String) {
    let dir = tempfile::tempdir().expect("a directory");
    let script = words.iter().fold(script.to_owned(), |script, (word, text)| script.replace(word, text));
    let script = script.replace("DIR", &dir.path().display().to_string());
    let binary = Path::new(env!("CARGO_BIN_EXE_redlockd")).parent().expect("a directory");
    let path = format!("{}:{}", binary.display(), std::env::var("PATH").unwrap_or_default());
    let mut command = Command::new("bash");
    command.args(["-c", &script]).current_dir(dir.path()).env("PATH", path).env("REDLOCKD_URL", daemon.url());
    command.env("XDG_RUNTIME_DIR", dir.path()).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let done = ended(&mut command);
    (done.code, done.out)
}

fn both(script: &str) -> [(Option<i32>, String); 2] {
    let daemon = Daemon::start();
    let (flock, run): (Vec<_>, Vec<_>) =
        words().into_iter().map(|(word, flock, run)| ((word, flock), (word, run))).unzip();
    [outcome(script, &flock, &daemon), outcome(script, &run, &daemon)]
}

#[test]
fn the_same_scripts_have_the_same_outcome() {
    for script in SAME {
        let [flock, run] = both(script);
        assert_eq!(flock, run, "flock, run: {script}");
    }
}

#[test]
fn the_differences_are_the_documented_ones() {
    for (script, with_flock, with_run) in DIFFERENT {
        let [flock, run] = both(script);
        assert_eq!((flock.0, run.0), (Some(with_flock), Some(with_run)), "{script}: {flock:?} {run:?}");
    }
    let document = include_str!("../../docs/comparison.md");
    for word in ["a child that", "127", "an exclusive one that waits"] {
        assert!(document.contains(word), "docs/comparison.md does not say: {word}");
    }
}
