//! `redlockd elect`: one candidate leads, the next one takes over, and a leader says so only while its lease stands; and
//! `run --at-least`.

use std::path::Path;

use redlockd::redlock::clock::{Clock, SystemClock};
use rustix::process::Signal;

use crate::support::client::{Answer, Client};
use crate::support::daemon::{Daemon, Running, cluster, is_running, line_in};
use crate::support::poll;

/// A free port for `--listen`.
fn free_port() -> u16 {
    std::net::TcpListener::bind("127.0.0.1:0").and_then(|l| l.local_addr()).expect("a free port").port()
}

/// A candidate with a page; its command, if any, follows.
fn candidate(daemon: &Daemon, owner: &str, more: &[&str]) -> (Running, Client) {
    let port = free_port();
    let listen = format!("127.0.0.1:{port}");
    let mut args = vec!["elect", "--ttl", "3s", "--owner", owner, "--listen", &listen, "a/leader"];
    args.extend(more);
    (Running::spawn(&mut daemon.command(&args)), Client::new(&format!("http://{listen}")))
}

/// Once the page answers and has this status.
async fn until_leader_is(client: &Client, status: u16) -> Answer {
    poll::until(&format!("/leader is {status}"), || async {
        let answer = crate::support::client::try_send(client.request("GET", "/leader")).await.ok()?;
        (answer.status == status).then_some(answer)
    })
    .await
}

/// Writes its process id and fence as a line, and works until it is ended.
fn worker(dir: &Path, name: &str) -> String {
    format!("echo $$ $REDLOCKD_FENCE >> {}; exec sleep 600", dir.join(name).display())
}

#[tokio::test]
async fn one_leads_and_the_next_takes_over() {
    let daemon = Daemon::start();
    let dir = tempfile::tempdir().expect("a directory");
    let (mut first, first_page) = candidate(&daemon, "one", &["--", "sh", "-c", &worker(dir.path(), "one")]);
    let started = line_in(&dir.path().join("one")).await;
    until_leader_is(&first_page, 200).await;
    let (second, second_page) = candidate(&daemon, "two", &["--", "sh", "-c", &worker(dir.path(), "two")]);
    until_leader_is(&second_page, 503).await;
    let (of_first, of_second) = (first_page.get("/").await.json(), second_page.get("/").await.json());
    let (pid, fence) = started.trim().split_once(' ').expect("two words");
    assert_eq!((&of_first["is_leader"], &of_first["leader"]), (&true.into(), &"one".into()), "{of_first}");
    assert_eq!(of_first["fence"].to_string(), fence);
    assert!(of_first["valid_for_ms"].as_u64().is_some_and(|ms| ms <= 3_000), "{of_first}");
    assert_eq!((&of_second["is_leader"], &of_second["leader"]), (&false.into(), &"one".into()), "{of_second}");
    assert!(of_second["fence"].is_null() && of_second["owner"] == "two", "{of_second}");
    first_page.get("/other").await.expect_status(404);
    first.signal(Signal::TERM);
    let done = first.end().await;
    assert_eq!(done.code, Some(143), "{done:?}");
    assert!(!is_running(pid), "the command ends with its candidate");
    until_leader_is(&second_page, 200).await;
    let next = line_in(&dir.path().join("two")).await;
    let next: u64 = next.split_whitespace().nth(1).and_then(|n| n.parse().ok()).expect("a fence");
    assert!(next > fence.parse().expect("a number"));
    drop(second);
}

/// The service goes away for longer than the TTL: the command is ended in time, nobody says that it leads, and when the
/// service is back the same candidate leads again, with a new fence.
#[tokio::test]
async fn a_lost_lease_ends_the_command_and_a_new_term_follows() {
    let mut daemon = Daemon::start();
    let dir = tempfile::tempdir().expect("a directory");
    let (mut elect, page) = candidate(&daemon, "one", &["--", "sh", "-c", &worker(dir.path(), "terms")]);
    let first = line_in(&dir.path().join("terms")).await;
    daemon.kill();
    until_leader_is(&page, 503).await;
    let pid = first.split_whitespace().next().expect("a process");
    assert!(!is_running(pid), "it works without a lease");
    daemon.restart();
    let terms = || std::fs::read_to_string(dir.path().join("terms")).expect("written");
    poll::until_true("a second term", || terms().lines().count() == 2).await;
    until_leader_is(&page, 200).await;
    elect.signal(Signal::INT);
    let done = elect.end().await;
    assert_eq!(done.code, Some(130), "{done:?}");
    for part in ["leads a/leader, with the fence ", "could not be renewed in time", "leads a/leader no more"] {
        assert!(done.err.contains(part), "{part}: {}", done.err);
    }
}

#[tokio::test]
async fn a_command_that_ends_is_a_term_and_one_that_cannot_be_run_ends_all() {
    let daemon = Daemon::start();
    let dir = tempfile::tempdir().expect("a directory");
    let script = format!("echo term >> {}", dir.path().join("terms").display());
    let mut elect = Running::spawn(&mut daemon.command(&["elect", "-q", "a/leader", "--", "sh", "-c", &script]));
    let begun = SystemClock.now();
    let terms = || std::fs::read_to_string(dir.path().join("terms")).unwrap_or_default().lines().count();
    poll::until_true("two terms", || terms() >= 2).await;
    // Not without a pause: a command that fails at once would keep the nodes busy.
    assert!(SystemClock.now().since(begun) >= std::time::Duration::from_millis(500));
    elect.signal(Signal::TERM);
    let done = elect.end().await;
    // 0: the command had just ended by itself when the signal reached it.
    assert!(matches!(done.code, Some(143 | 0)) && done.err.is_empty(), "{done:?}");
    let missing = daemon.ask(&["elect", "a/leader", "--", "/nowhere/at/all"]);
    assert_eq!(missing.code, Some(127), "{missing:?}");
    assert_eq!(daemon.ask(&["status", "a/leader"]).code, Some(1));
}

/// A7: a candidate says nothing about the leader, and which nodes do not vote, and why.
#[tokio::test]
async fn a_candidate_says_which_nodes_have_stopped() {
    let mut nodes = cluster(3).await;
    let daemon = Daemon::over(&nodes, &[]);
    poll::until_true("another one leads", || daemon.ask(&["acquire", "--ttl", "5m", "x"]).code == Some(0)).await;
    let log = tempfile::NamedTempFile::new().expect("a file");
    let mut command = daemon.command(&["elect", "x"]);
    let mut candidate = Running::spawn(command.stderr(log.reopen().expect("the same file")));
    poll::until_true("it waits", || daemon.json(&["status", "--json", "x"])["waiting"] == 1).await;
    nodes[0].kill();
    nodes[2].kill();
    let said = || std::fs::read_to_string(log.path()).expect("readable");
    poll::until_true("the reason is said", || said().ends_with('\n')).await;
    let said = said();
    let why = said.split_once("1 of 3 nodes can say, 2 are needed; ").expect("the count, and why");
    assert!(why.0.starts_with("redlockd: waiting for x: "), "{said}");
    assert!(
        why.1.contains("n0") && why.1.contains("n2") && why.1.contains("connect") && !why.1.contains("n1"),
        "{said}"
    );
    candidate.signal(Signal::TERM);
    assert_eq!(candidate.end().await.code, Some(143));
}

#[tokio::test]
async fn without_a_command_it_only_leads() {
    let daemon = Daemon::start();
    let (mut elect, page) = candidate(&daemon, "one", &[]);
    until_leader_is(&page, 200).await;
    // Longer than the TTL: it renews.
    let renewals = || daemon.json(&["status", "--json", "a/leader"])["holders"][0]["renewals"].as_u64();
    poll::until_true("it renews", || renewals() >= Some(4)).await;
    assert_eq!(page.get("/leader").await.status, 200);
    elect.signal(Signal::TERM);
    assert_eq!(elect.end().await.code, Some(143));
    assert_eq!(daemon.ask(&["status", "a/leader"]).code, Some(1));
}

#[test]
fn what_will_not_change_ends_the_campaign() {
    let daemon = Daemon::start();
    let busy = std::net::TcpListener::bind("127.0.0.1:0").expect("a free port");
    let address = busy.local_addr().expect("bound").to_string();
    let refused = daemon.ask(&["elect", "--listen", &address, "x"]);
    assert!(refused.code == Some(69) && refused.err.contains("cannot listen on"), "{refused:?}");
    let invalid = daemon.ask(&["elect", "--ttl", "24h", "x"]);
    assert!(invalid.code == Some(64) && invalid.err.contains("5m"), "{invalid:?}");
}

fn left_ms(daemon: &Daemon, resource: &str) -> Option<u64> {
    let held = daemon.ask(&["status", "--json", resource]);
    let status: serde_json::Value = serde_json::from_str(&held.out).expect("JSON");
    status["holders"][0]["valid_for_ms"].as_u64()
}

/// A service that is away for a moment must not make every host skip the job.
#[tokio::test]
async fn skip_if_held_tries_on_while_nobody_can_grant() {
    let mut daemon = Daemon::start();
    daemon.kill();
    let run = Running::spawn(&mut daemon.command(&["run", "--skip-if-held", "x", "--", "echo", "ran"]));
    daemon.restart();
    let done = run.end().await;
    assert_eq!((done.code, done.out.as_str()), (Some(0), "ran\n"), "{done:?}");
    daemon.kill();
    let gone = daemon.ask(&["run", "--skip-if-held", "x", "--", "echo", "never"]);
    assert_eq!((gone.code, gone.out.as_str(), gone.err.lines().count()), (Some(69), "", 2), "{gone:?}");
}

/// It returns at once where one TTL covers the rest, and renews until then where it does not.
#[test]
fn at_least_is_exact_or_longer_whatever_the_ttl() {
    let daemon = Daemon::start();
    let begun = SystemClock.now();
    let done = daemon.ask(&["run", "--at-least", "40s", "a", "--", "sh", "-c", "exit 3"]);
    assert_eq!((done.code, done.err.as_str()), (Some(3), ""), "{done:?}");
    assert!(SystemClock.now().since(begun).as_secs() < 20, "it does not stay");
    assert!(left_ms(&daemon, "a").is_some_and(|ms| ms > 15_000 && ms <= 40_000));
    let again = daemon.ask(&["run", "--skip-if-held", "--at-least", "40s", "a", "--", "echo", "never"]);
    assert_eq!((again.code, again.out.as_str()), (Some(0), ""), "{again:?}");
    let begun = SystemClock.now();
    let stayed = daemon.ask(&["run", "--ttl", "2s", "--at-least", "5s", "b", "--", "true"]);
    assert_eq!((stayed.code, stayed.err.as_str()), (Some(0), ""), "{stayed:?}");
    // The remainder of at most one TTL is left on the nodes.
    assert!(SystemClock.now().since(begun).as_millis() >= 2_900, "it renews until one TTL covers the rest");
    assert!(left_ms(&daemon, "b").is_some(), "held until the end");
    // A longer job releases at its end.
    let long = daemon.ask(&["run", "--at-least", "1s", "c", "--", "sleep", "1.2"]);
    assert_eq!(long.code, Some(0));
    assert_eq!(daemon.ask(&["status", "c"]).code, Some(1));
}

/// The watchdog of a killed `run` does not release what is to stay held.
#[tokio::test]
async fn at_least_survives_the_end_of_run() {
    let daemon = Daemon::start();
    let dir = tempfile::tempdir().expect("a directory");
    let (pid, guarded) = (dir.path().join("pid"), dir.path().join("guarded"));
    let script = format!(
        "trap 'echo yes > {}' USR1; echo $$ > {}; while :; do sleep 0.05; done",
        guarded.display(),
        pid.display()
    );
    let mut run = Running::spawn(&mut daemon.command(&["run", "--at-least", "1m", "x", "--", "sh", "-c", &script]));
    let pid = line_in(&pid).await;
    // Signals are forwarded once the watchdog knows the command's group.
    run.signal(Signal::USR1);
    line_in(&guarded).await;
    run.signal(Signal::KILL);
    poll::until_true("the command is ended", || !is_running(&pid)).await;
    assert_eq!(run.end().await.code, Some(137));
    assert!(left_ms(&daemon, "x").is_some_and(|ms| ms > 20_000));
}
