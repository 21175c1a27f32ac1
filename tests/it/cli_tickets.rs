//! `redlockd acquire --async` and `redlockd ticket`: a ticket from the request to its end, and what a script sees of it.

use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::process::Stdio;

use serde_json::Value;

use crate::support::daemon::{Daemon, Ended, Running};

/// A ticket for `x` whose token is in this file.
fn ticket(daemon: &Daemon, file: &str) -> Value {
    daemon.json(&["acquire", "--async", "--keep", "1m", "--owner", "me", "--token-file", file, "--json", "x"])
}

fn id(ticket: &Value) -> &str {
    ticket["ticket"].as_str().expect("an id")
}

#[tokio::test]
async fn a_ticket_from_acquire_to_its_end() {
    let (daemon, dir) = (Daemon::start(), tempfile::tempdir().expect("a directory"));
    let file = |name: &str| dir.path().join(name).display().to_string();
    let (held, mine) = (file("held"), file("mine"));
    daemon.get(&["acquire", "--ttl", "1m", "--token-file", &held, "x"]);
    let made = ticket(&daemon, &mine);
    assert_eq!((&made["state"], &made["position"], made.get("token")), (&"waiting".into(), &1.into(), None), "{made}");
    assert_eq!(std::fs::metadata(&mine).expect("written").permissions().mode() & 0o777, 0o600);
    let again = daemon.ask(&["acquire", "--async", "--keep", "1m", "--token-file", &mine, "x"]);
    assert_eq!(again.code, Some(73), "a token is not overwritten: {again:?}");
    let shown = daemon.get(&["ticket", "show", id(&made)]);
    for line in [&format!("ticket={}", id(&made)), "state=waiting", "resource=x", "position=1", "owner=me"] {
        assert!(shown.lines().any(|shown| shown == line), "{line}: {shown}");
    }
    let early = daemon.ask(&["ticket", "wait", "--timeout", "50ms", id(&made)]);
    assert_eq!((early.code, early.err.as_str()), (Some(75), "redlockd: the ticket waits still\n"), "{early:?}");
    // The wait is answered by the grant.
    let waiting = Running::spawn(&mut daemon.command(&["ticket", "wait", "--json", id(&made)]));
    daemon.get(&["release", "--token-file", &held, "x"]);
    let granted = waiting.end().await;
    let lease: Value = serde_json::from_str(&granted.out).unwrap_or_else(|error| panic!("{error}: {granted:?}"));
    assert_eq!((granted.code, &lease["state"]), (Some(0), &"granted".into()), "{granted:?}");
    let status = daemon.json(&["status", "--json", "x"]);
    assert_eq!(status["holders"][0]["fence"], lease["fence"], "{status}");
    assert!(daemon.get(&["ticket", "show", id(&made)]).contains("state=accepted\n"), "the first answer accepted it");
    daemon.get(&["release", "--token-file", &mine, "x"]);
    let over = daemon.ask(&["ticket", "wait", id(&made)]);
    assert_eq!((over.code, over.err.as_str()), (Some(76), "redlockd: the ticket is over: released\n"), "{over:?}");
    assert_eq!(daemon.ask(&["ticket", "cancel", id(&made)]).code, Some(76));
    let none = daemon.ask(&["ticket", "show", "--json", "tk_00000000000000000000000000000000"]);
    assert_eq!(none.code, Some(1), "{none:?}");
    assert!(none.out.contains("/problems/not-found"), "{}", none.out);
}

#[test]
fn a_lock_that_is_free_is_granted_without_a_ticket() {
    let daemon = Daemon::start();
    let lease = daemon.get(&["acquire", "--async", "--keep", "1m", "x"]);
    for key in ["resource=x", "token=", "fence=", "kept_until="] {
        assert!(lease.lines().any(|line| line.starts_with(key)), "{key}: {lease}");
    }
    assert!(!lease.contains("ticket="), "{lease}");
    // Held now: the token is printed where no file is named.
    let made = daemon.get(&["acquire", "--async", "--keep", "1m", "--wait", "6h", "x"]);
    let value = |key: &str| made.lines().find_map(|line| line.strip_prefix(key)).unwrap_or_else(|| panic!("{made}"));
    assert_eq!(value("token=").len(), 32);
    daemon.get(&["ticket", "cancel", value("ticket=")]);
    let over = daemon.ask(&["ticket", "wait", value("ticket=")]);
    assert_eq!((over.code, over.err.as_str()), (Some(76), "redlockd: the ticket is over: cancelled\n"), "{over:?}");
    let brief = daemon.json(&["acquire", "--async", "--keep", "1m", "--wait", "1s", "--json", "x"]);
    let over = daemon.ask(&["ticket", "wait", id(&brief)]);
    assert_eq!((over.code, over.err.as_str()), (Some(75), "redlockd: the ticket is over: wait-timeout\n"), "{over:?}");
    // Without --async the same option keeps the lease.
    let kept = daemon.json(&["acquire", "--keep", "1m", "--json", "y"]);
    assert!(kept["kept_until"].is_string(), "{kept}");
}

#[test]
fn the_address_of_a_call_back_is_no_argument_and_is_not_repeated() {
    const URL: &str = "https://n8n.example.com/webhook-waiting/secret-17";
    let (daemon, dir) = (Daemon::start(), tempfile::tempdir().expect("a directory"));
    let mine = dir.path().join("mine");
    let base = ["acquire", "--keep", "1m", "--token-file", mine.to_str().expect("text"), "x"];
    let with = |more: &[&str], input: &str| {
        let args = [&base[..], more].concat();
        let mut child = daemon.command(&args).stdin(Stdio::piped()).spawn().expect("it runs");
        child.stdin.take().expect("piped").write_all(input.as_bytes()).expect("it reads, or not");
        let output = child.wait_with_output().expect("our own child");
        let text = |bytes| String::from_utf8(bytes).expect("text");
        Ended { code: output.status.code(), out: text(output.stdout), err: text(output.stderr) }
    };
    for (more, input, code) in [
        (&["--callback", URL][..], "", 64),
        (&["--callback-file", "-"], URL, 77),
        (&["--callback", "target:nobody"], "", 77),
        (&["--callback-file", "/nowhere"], "", 64),
    ] {
        let done = with(more, input);
        assert_eq!((done.code, done.err.lines().count()), (Some(code), 1), "{more:?}: {done:?}");
        assert!(!done.err.contains("secret-17") && !done.out.contains("secret-17"), "{more:?}: {done:?}");
        assert!(!mine.exists(), "{more:?}: a token that proves nothing is not left behind");
    }
}
