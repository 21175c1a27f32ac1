//! Many waiting curl processes at two instances: they send nothing to the nodes while they wait, each instance serves
//! its own in order, and killed clients, nodes and instances do not stop the others. `tests/acceptance.py` does the
//! same with 300 processes.

use std::path::Path;
use std::process::{Command, Stdio};

use crate::support::daemon::{Daemon, Running, cluster};
use crate::support::monitor::{Monitor, is_script_call};
use crate::support::poll;

const CLIENTS: usize = 16;
/// Rounds of probes, one per second from each instance, during which nothing may be sent about the lock.
const QUIET_ROUNDS: usize = 3;

/// Acquires the lock, records it and releases it; through the other instance if its own was killed, which may have released it
/// without an answer.
const SCRIPT: &str = r#"
T=$(curl -sf -H 'Accept: text/plain' -d ttl=60s -d wait=60s "$L/locks/contended") || exit 75
echo "start $ME" >> "$MARKS"; echo "end $ME" >> "$MARKS"
curl -sf -X DELETE -H "Lock-Token: $T" "$L/locks/contended" && exit
CODE=$(curl -s -o "$MARKS.$ME" -w '%{http_code}' -X DELETE -H "Lock-Token: $T" "$OTHER/locks/contended")
[ "$CODE" = 204 ] || [ "$CODE" = 410 ] || { cat "$MARKS.$ME"; exit 22; }
"#;

/// Number of waiters at an instance.
fn waiting(daemon: &Daemon) -> usize {
    let status = daemon.ask(&["status", "--json", "contended"]);
    let lock: serde_json::Value = serde_json::from_str(&status.out).unwrap_or_default();
    lock["waiting_here"].as_u64().map_or(0, |n| usize::try_from(n).expect("small"))
}

/// Starts clients alternately at both instances; their numbers are their order in the queues.
async fn start_waiters(daemons: [&Daemon; 2], marks: &Path) -> Vec<Running> {
    let mut clients = Vec::new();
    for i in 0..CLIENTS {
        let (here, there) = (daemons[i % 2], daemons[1 - i % 2]);
        let mut command = Command::new("sh");
        command.args(["-c", SCRIPT]).env("ME", format!("{}-{i}", i % 2)).env("MARKS", marks);
        command.env("L", here.url()).env("OTHER", there.url()).stdout(Stdio::piped()).stderr(Stdio::piped());
        clients.push(Running::spawn(command.stdin(Stdio::null())));
        poll::until_true("it waits", || waiting(here) > i / 2).await;
    }
    clients
}

/// The clients in the order in which they held the lock. Fails if two held it at once.
fn served(marks: &Path) -> Vec<String> {
    let text = std::fs::read_to_string(marks).unwrap_or_default();
    let lines: Vec<&str> = text.lines().collect();
    let whole = lines.chunks_exact(2).map(|pair| {
        let who = pair[0].strip_prefix("start ");
        assert_eq!(who, pair[1].strip_prefix("end "), "two at once: {text}");
        who.expect("a start").to_owned()
    });
    whole.collect()
}

fn assert_in_order(served: &[String]) {
    for at in ["0-", "1-"] {
        let numbers = served.iter().filter_map(|who| who.strip_prefix(at)?.parse().ok());
        let numbers: Vec<usize> = numbers.collect();
        assert!(numbers.is_sorted(), "instance {at}: {served:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn waiters_send_nothing_to_the_nodes_and_are_served_in_order() {
    let nodes = cluster(3).await;
    let (here, there) = (Daemon::over(&nodes, &[]), Daemon::over(&nodes, &[]));
    let dir = tempfile::tempdir().expect("a directory");
    let (marks, token) = (dir.path().join("marks"), dir.path().join("token").display().to_string());
    here.get(&["acquire", "--ttl", "2m", "--token-file", &token, "contended"]);
    // The lease is put into the index later than it is granted.
    let indexed = || async { nodes[0].ask::<Option<f64>>(&["ZSCORE", "redlockd:leases", "contended"]).await };
    poll::until("it is in the index", indexed).await;
    let clients = start_waiters([&here, &there], &marks).await;
    let monitor = Monitor::of(&nodes[0]).await;
    let probes = |lines: &[String]| lines.iter().filter(|line| is_script_call(line)).count();
    poll::until_true("the instances have probed", || probes(&monitor.commands()) >= 2 * QUIET_ROUNDS).await;
    let lines = monitor.commands();
    // What the instances publish of their waiters, and of the last hour, is for display.
    let is_display = |line: &str| line.contains("redlockd:waiters") || line.contains("redlockd:incidents");
    let is_about = |line: &&String| line.contains("contended") && !is_display(line);
    let about: Vec<&String> = lines.iter().filter(is_about).collect();
    assert!(about.is_empty(), "a request about the lock: {about:#?}");
    here.get(&["release", "--token-file", &token, "contended"]);
    for one in clients {
        let done = one.end().await;
        assert_eq!(done.code, Some(0), "{done:?}");
    }
    let served = served(&marks);
    assert_eq!(served.len(), CLIENTS, "{served:?}");
    assert_in_order(&served);
}

#[tokio::test(flavor = "multi_thread")]
async fn killed_clients_nodes_and_instances_do_not_stop_the_others() {
    let mut nodes = cluster(3).await;
    let (here, mut there) = (Daemon::over(&nodes, &[]), Daemon::over(&nodes, &[]));
    let dir = tempfile::tempdir().expect("a directory");
    let (marks, token) = (dir.path().join("marks"), dir.path().join("token").display().to_string());
    here.get(&["acquire", "--ttl", "2m", "--token-file", &token, "contended"]);
    let mut clients: Vec<Option<Running>> =
        start_waiters([&here, &there], &marks).await.into_iter().map(Some).collect();
    // Kills one client in the middle of each queue. Its curl is killed, since a killed shell would leave it waiting.
    for i in [4, 5] {
        let script = clients[i].as_mut().expect("running").child().id();
        let children = std::fs::read_to_string(format!("/proc/{script}/task/{script}/children")).expect("its curl");
        let killed = Command::new("kill").arg("-9").args(children.split_whitespace()).status();
        assert!(killed.expect("kill runs").success());
        let done = clients[i].take().expect("running").end().await;
        assert_eq!(done.code, Some(75), "{done:?}");
    }
    poll::until_true("they are no longer queued", || waiting(&here) + waiting(&there) == CLIENTS - 2).await;
    nodes[1].kill();
    here.get(&["release", "--token-file", &token, "contended"]);
    poll::until_true("some are served", || served(&marks).len() >= 3).await;
    there.kill();
    for (i, one) in clients.into_iter().enumerate() {
        let Some(one) = one else { continue };
        let done = one.end().await;
        // Clients of the killed instance fail, unless they were served before.
        assert!(done.code == Some(0) || (i % 2 == 1 && done.code == Some(75)), "{i}: {done:?}");
    }
    let served = served(&marks);
    let of_here = served.iter().filter(|who| who.starts_with("0-")).count();
    assert_eq!(of_here, CLIENTS / 2 - 1, "{served:?}");
    assert_in_order(&served);
}
