//! A crowd of real curls over two real instances: nothing of them is seen on a node while they wait, all
//! are served in order within each instance, and whatever is killed stops nobody else. The same with 300
//! of them: `tests/acceptance.py`.

use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex};

use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::net::TcpStream;

use crate::support::daemon::{Daemon, Running, cluster};
use crate::support::poll;
use crate::support::redis_server::RedisServer;

const CROWD: usize = 16;
/// Rounds of probes, one a second from each instance, through which nobody asks for the lock.
const QUIET_ROUNDS: usize = 3;

/// Takes the lock, notes it, gives it back: through the other instance where its own is gone.
const SCRIPT: &str = r#"
T=$(curl -sf -H 'Accept: text/plain' -d ttl=60s -d wait=60s "$L/locks/crowd") || exit 75
echo "start $ME" >> "$MARKS"; echo "end $ME" >> "$MARKS"
curl -sf -X DELETE -H "Lock-Token: $T" "$L/locks/crowd" || curl -sf -X DELETE -H "Lock-Token: $T" "$OTHER/locks/crowd"
"#;

/// How many wait there.
fn waiting(daemon: &Daemon) -> usize {
    let status = daemon.ask(&["status", "--json", "crowd"]);
    let lock: serde_json::Value = serde_json::from_str(&status.out).unwrap_or_default();
    lock["waiters"].as_array().map_or(0, Vec::len)
}

/// One after the other, in turn at each instance: their numbers are the order of their seats.
async fn queue(daemons: [&Daemon; 2], marks: &Path) -> Vec<Running> {
    let mut crowd = Vec::new();
    for i in 0..CROWD {
        let (here, there) = (daemons[i % 2], daemons[1 - i % 2]);
        let mut command = Command::new("sh");
        command.args(["-c", SCRIPT]).env("ME", format!("{}-{i}", i % 2)).env("MARKS", marks);
        command.env("L", here.url()).env("OTHER", there.url()).stdout(Stdio::piped()).stderr(Stdio::piped());
        crowd.push(Running::spawn(command.stdin(Stdio::null())));
        poll::until_true("it sits", || waiting(here) > i / 2).await;
    }
    crowd
}

/// Who had it, in order. Two at once fail the test.
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

/// What `redis-cli MONITOR` shows of a node.
async fn monitor(node: &RedisServer) -> Arc<Mutex<Vec<String>>> {
    let mut stream = TcpStream::connect(("127.0.0.1", node.port())).await.expect("a node");
    stream.write_all(b"MONITOR\r\n").await.expect("sent");
    let seen = Arc::new(Mutex::new(Vec::new()));
    let (into, mut lines) = (Arc::clone(&seen), BufReader::new(stream).lines());
    tokio::spawn(async move {
        while let Ok(Some(line)) = lines.next_line().await {
            into.lock().expect("no panic").push(line);
        }
    });
    seen
}

#[tokio::test(flavor = "multi_thread")]
async fn a_crowd_waits_in_silence_and_is_served_in_order() {
    let nodes = cluster(3).await;
    let (here, there) = (Daemon::over(&nodes, &[]), Daemon::over(&nodes, &[]));
    let dir = tempfile::tempdir().expect("a directory");
    let (marks, token) = (dir.path().join("marks"), dir.path().join("token").display().to_string());
    here.get(&["acquire", "--ttl", "2m", "--token-file", &token, "crowd"]);
    let crowd = queue([&here, &there], &marks).await;
    let seen = monitor(&nodes[0]).await;
    let lines = || seen.lock().expect("no panic").clone();
    // A probe is a script and what it calls; the lines of the calls say `lua`.
    let probes = |lines: &[String]| {
        lines.iter().filter(|l| l.to_ascii_lowercase().contains("\"evalsha\"") && !l.contains(" lua]")).count()
    };
    poll::until_true("probes pass", || probes(&lines()) >= 2 * QUIET_ROUNDS).await;
    let lines = lines();
    let about: Vec<&String> = lines.iter().filter(|line| line.contains("crowd")).collect();
    assert!(about.is_empty(), "somebody asked for it: {about:#?}");
    here.get(&["release", "--token-file", &token, "crowd"]);
    for one in crowd {
        let done = one.end().await;
        assert_eq!(done.code, Some(0), "{done:?}");
    }
    let served = served(&marks);
    assert_eq!(served.len(), CROWD, "{served:?}");
    assert_in_order(&served);
}

#[tokio::test(flavor = "multi_thread")]
async fn whatever_is_killed_stops_nobody_else() {
    let mut nodes = cluster(3).await;
    let (here, mut there) = (Daemon::over(&nodes, &[]), Daemon::over(&nodes, &[]));
    let dir = tempfile::tempdir().expect("a directory");
    let (marks, token) = (dir.path().join("marks"), dir.path().join("token").display().to_string());
    here.get(&["acquire", "--ttl", "2m", "--token-file", &token, "crowd"]);
    let mut crowd: Vec<Option<Running>> = queue([&here, &there], &marks).await.into_iter().map(Some).collect();
    // Two of the crowd, in the midst of a queue each: the script goes, and its curl meets a closed pipe
    // once it is served, so that curl is what is killed.
    for i in [4, 5] {
        let script = crowd[i].as_mut().expect("running").child().id();
        let children = std::fs::read_to_string(format!("/proc/{script}/task/{script}/children")).expect("its curl");
        let killed = Command::new("kill").arg("-9").args(children.split_whitespace()).status();
        assert!(killed.expect("kill runs").success());
        let done = crowd[i].take().expect("running").end().await;
        assert_eq!(done.code, Some(75), "{done:?}");
    }
    poll::until_true("they left their seats", || waiting(&here) + waiting(&there) == CROWD - 2).await;
    nodes[1].kill();
    here.get(&["release", "--token-file", &token, "crowd"]);
    poll::until_true("some are served", || served(&marks).len() >= 3).await;
    there.kill();
    for (i, one) in crowd.into_iter().enumerate() {
        let Some(one) = one else { continue };
        let done = one.end().await;
        // Those of the instance that was killed are told by their curl, unless they were served before.
        assert!(done.code == Some(0) || (i % 2 == 1 && done.code == Some(75)), "{i}: {done:?}");
    }
    let served = served(&marks);
    let of_here = served.iter().filter(|who| who.starts_with("0-")).count();
    assert_eq!(of_here, CROWD / 2 - 1, "{served:?}");
    assert_in_order(&served);
}
