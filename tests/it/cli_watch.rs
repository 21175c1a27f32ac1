//! `redlockd watch`: what it prints, over which breaks it goes on, and how it ends.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::Stdio;

use rustix::process::Signal;

use crate::support::daemon::{Daemon, Running, cluster};
use crate::support::poll;

/// Its lines, as they come, in a file.
fn watch(daemon: &Daemon, args: &[&str], dir: &Path) -> Running {
    let file = |name: &str| std::fs::File::create(dir.join(name)).expect("writable");
    let mut command = daemon.command(&[&["watch"], args].concat());
    Running::spawn(command.stdout(file("out")).stderr(file("err")))
}

fn read(dir: &Path, name: &str) -> String {
    std::fs::read_to_string(dir.join(name)).expect("written")
}

/// Takes and releases until the watcher, which may still be connecting, has seen it.
async fn until_it_sees(daemon: &Daemon, dir: &Path, resource: &str) {
    poll::until(&format!("{resource} is seen"), || async {
        daemon.get(&["run", resource, "--", "true"]);
        read(dir, "out").contains(resource).then_some(())
    })
    .await;
}

#[tokio::test]
async fn each_form_says_what_happened_and_no_token() {
    let daemon = Daemon::start();
    for (form, first) in [("--plain", "acquired\tdeploy/x\tme\t"), ("--json", r#""event":"acquired""#)] {
        let dir = tempfile::tempdir().expect("a directory");
        let watcher = watch(&daemon, &[form, "--prefix", "deploy/", "--count", "2"], dir.path());
        let mut tokens = Vec::new();
        poll::until("two events are seen", || {
            let file = dir.path().join(format!("token-{}", tokens.len()));
            let path = file.display().to_string();
            daemon.get(&["run", "other/x", "--", "true"]);
            daemon.get(&["acquire", "--owner", "me", "--token-file", &path, "deploy/x"]);
            tokens.push(std::fs::read_to_string(&file).expect("written").trim().to_owned());
            daemon.get(&["release", "--token-file", &path, "deploy/x"]);
            let seen = read(dir.path(), "out").lines().count();
            async move { (seen >= 2).then_some(()) }
        })
        .await;
        assert_eq!(watcher.end().await.code, Some(0));
        let (out, err) = (read(dir.path(), "out"), read(dir.path(), "err"));
        assert_eq!((out.lines().count(), err.as_str()), (2, ""), "{out}");
        assert!(out.contains(first) && !out.contains("other/"), "{out}");
        assert!(tokens.iter().all(|token| !out.contains(token.as_str())), "a token was printed: {out}");
        if form == "--json" {
            for line in out.lines() {
                let event: serde_json::Value = serde_json::from_str(line).expect("JSON");
                assert_eq!(event["resource"], "deploy/x");
            }
        }
    }
}

/// `redlockd events`: what has happened, oldest first.
#[tokio::test]
async fn past_events_are_printed_in_each_form_with_filters() {
    let (daemon, dir) = (Daemon::start(), tempfile::tempdir().expect("a directory"));
    for (i, name) in ["deploy/x", "deploy/y", "other/z"].into_iter().enumerate() {
        let file = dir.path().join(format!("token-{i}")).display().to_string();
        daemon.get(&["acquire", "--owner", "me", "--token-file", &file, name]);
        daemon.get(&["force", "--now", "--reason", "host is gone", name]);
    }
    let events = |args: &[&str]| daemon.get(&[&["events", "--kind", "forced"], args].concat());
    let plain = events(&["--plain"]);
    let lines: Vec<Vec<&str>> = plain.lines().map(|line| line.split('\t').collect()).collect();
    let columns =
        |line: &Vec<&str>| (line.len(), line[1].to_owned(), line[2].to_owned(), line[3].to_owned(), line[6].to_owned());
    let forced = |name: &str| (7, "forced".to_owned(), name.to_owned(), "me".to_owned(), "now".to_owned());
    let printed: Vec<_> = lines.iter().map(columns).collect();
    assert_eq!(printed, ["deploy/x", "deploy/y", "other/z"].map(forced), "{plain}");
    assert!(lines.windows(2).all(|pair| pair[0][0] <= pair[1][0]) && lines[0][0].ends_with('Z'), "{plain}");
    let some = events(&["--prefix", "deploy/", "--limit", "1"]);
    assert_eq!(
        some.lines().map(|line| line.split('\t').nth(2)).collect::<Vec<_>>(),
        [Some("deploy/y")],
        "the latest: {some}"
    );
    let json: serde_json::Value = serde_json::from_str(&events(&["--since", "1h", "--json"])).expect("JSON");
    let all = json["events"].as_array().expect("events");
    assert_eq!((all.len(), &all[0]["detail"], &all[0]["owner"]), (3, &"host is gone".into(), &"me".into()), "{json}");
    assert_eq!(events(&["--to", "1h"]), "", "nothing an hour ago");
    let wrong = daemon.ask(&["events", "--kind", "none"]);
    assert!(wrong.code == Some(64) && wrong.err.contains("kind"), "{wrong:?}");
}

#[tokio::test]
async fn it_goes_on_with_another_instance_and_says_what_may_be_missing() {
    let nodes = cluster(3).await;
    let (mut first, second) = (Daemon::over(&nodes, &[]), Daemon::over(&nodes, &[]));
    let dir = tempfile::tempdir().expect("a directory");
    let urls = [first.url(), second.url()];
    let mut watcher = watch(&second, &["--url", &urls[0], "--url", &urls[1]], dir.path());
    until_it_sees(&first, dir.path(), "before").await;
    first.kill();
    until_it_sees(&second, dir.path(), "after").await;
    let err = read(dir.path(), "err");
    assert!(err.starts_with(&format!("redlockd: {}: ", urls[0])) && err.contains("trying again"), "{err}");
    assert!(err.contains("events may be missing"), "the second instance does not know the first one's: {err}");
    watcher.signal(Signal::TERM);
    assert_eq!(watcher.end().await.code, Some(143));
}

#[tokio::test]
async fn an_instance_that_comes_back_is_followed_on() {
    let nodes = cluster(3).await;
    let mut daemon = Daemon::over(&nodes, &[]);
    let dir = tempfile::tempdir().expect("a directory");
    let mut watcher = watch(&daemon, &[], dir.path());
    until_it_sees(&daemon, dir.path(), "before").await;
    daemon.kill();
    poll::until_true("it is reported", || read(dir.path(), "err").contains("trying again")).await;
    daemon.restart();
    until_it_sees(&daemon, dir.path(), "after").await;
    watcher.signal(Signal::INT);
    assert_eq!(watcher.end().await.code, Some(130));
}

#[tokio::test]
async fn nobody_there_is_69_at_once_and_after_a_while_in_the_midst() {
    let mut daemon = Daemon::start();
    let dir = tempfile::tempdir().expect("a directory");
    let watcher = watch(&daemon, &["--give-up", "1s"], dir.path());
    until_it_sees(&daemon, dir.path(), "before").await;
    daemon.kill();
    assert_eq!(watcher.end().await.code, Some(69));
    let err = read(dir.path(), "err");
    assert!(err.lines().count() == 2 && err.contains("no instance of the service answers"), "{err}");
    let done = daemon.ask(&["watch"]);
    assert_eq!((done.code, done.err.lines().count()), (Some(69), 1), "{done:?}");
}

#[tokio::test]
async fn mistakes_refusals_and_time_end_it() {
    let daemon = Daemon::start();
    assert_eq!(daemon.ask(&["watch", "--count", "0"]).code, Some(64));
    let done = daemon.ask(&["watch", "--for", "300ms"]);
    assert_eq!((done.code, done.out.as_str(), done.err.as_str()), (Some(0), "", ""));
}

/// `redlockd watch | head -1`: no complaint, and no process left.
#[tokio::test]
async fn a_reader_that_left_is_an_end_like_any_other() {
    let daemon = Daemon::start();
    let mut watcher = Running::spawn(daemon.command(&["watch"]).stdout(Stdio::piped()));
    let mut out = BufReader::new(watcher.child().stdout.take().expect("piped"));
    let seen = tokio::task::spawn_blocking(move || {
        let mut line = String::new();
        out.read_line(&mut line).expect("a line");
        line
    });
    poll::until("a line is read", || async {
        daemon.get(&["run", "x", "--", "true"]);
        seen.is_finished().then_some(())
    })
    .await;
    assert!(seen.await.expect("no panic").contains("\tx\t"));
    poll::until("it notices", || {
        daemon.get(&["run", "x", "--", "true"]);
        let ended = watcher.child().try_wait().expect("our own child").is_some();
        async move { ended.then_some(()) }
    })
    .await;
    let done = watcher.end().await;
    assert_eq!((done.code, done.err.as_str()), (Some(0), ""));
}
