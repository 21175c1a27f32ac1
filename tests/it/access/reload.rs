//! Reloading the access file: key rotation under load without a failed request, invalid files, SIGHUP; and what is
//! refused at the start.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use rustix::process::{Signal, kill_process};

use super::{Access, as_principal, entry, key};
use crate::support::client::send;
use crate::support::daemon::{Daemon, ended, redlockd};
use crate::support::poll;
use crate::support::service::Service;

async fn status_of(service: &Service, key: &str) -> u16 {
    send(service.client().request("GET", "/locks").bearer_auth(key)).await.status
}

/// Waits until requests with a key have this status.
async fn until(service: &Service, key: &str, status: u16) {
    let what = format!("the key {key} is answered with {status}");
    poll::until(&what, || async { (status_of(service, key).await == status).then_some(()) }).await;
}

#[tokio::test]
async fn keys_rotate_under_load_without_a_failed_request() {
    let access = Access::with(&entry("ci", &["one"], &["acquire:**"], "requests_per_second = 1000000"));
    let service = Arc::new(access.service(&[]).await);
    let (stop, count) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
    let current: Arc<parking_lot::Mutex<&'static str>> = Arc::new(parking_lot::Mutex::new("one"));
    let mut workers = Vec::new();
    for worker in 0..4 {
        let (service, stop, count, current) = (service.clone(), stop.clone(), count.clone(), current.clone());
        workers.push(tokio::spawn(async move {
            while !stop.load(Ordering::Relaxed) {
                let key = *current.lock();
                let path = format!("/locks/w/{worker}");
                let request = service.client().request("POST", &path).bearer_auth(key);
                let token = send(request).await.expect_status(201).token();
                let request = service.client().request("DELETE", &path).bearer_auth(key).header("Lock-Token", token);
                send(request).await.expect_status(204);
                count.fetch_add(1, Ordering::Relaxed);
            }
        }));
    }
    // A waiter whose connection stays open.
    let held = send(service.client().request("POST", "/locks/held").bearer_auth("one")).await.expect_status(201);
    let waiting = service.client().request("POST", "/locks/held").form(&[("wait", "60s")]).bearer_auth("one");
    let waiter = tokio::spawn(send(waiting));
    for (old, new) in [("one", "two"), ("two", "three")] {
        let more = "requests_per_second = 1000000";
        access.write(&entry("ci", &[old, new], &["acquire:**"], more));
        until(&service, new, 200).await;
        *current.lock() = new;
        let (seen, passed) = (count.load(Ordering::Relaxed), &count);
        poll::until_true("every worker has sent requests", || passed.load(Ordering::Relaxed) > seen + 8).await;
        access.write(&entry("ci", &[new], &["acquire:**"], more));
        until(&service, old, 401).await;
    }
    stop.store(true, Ordering::Relaxed);
    for worker in workers {
        worker.await.expect("no request failed");
    }
    let request = service.client().request("DELETE", "/locks/held").header("Lock-Token", held.token());
    send(request.bearer_auth("three")).await.expect_status(204);
    waiter.await.expect("it goes on").expect_status(201);
}

#[tokio::test]
async fn an_invalid_file_is_reported_and_the_previous_rules_stay_in_force() {
    let access = Access::of(&[("ci", &["read:**"]), ("scraper", &["metrics"])]);
    let service = access.service(&[]).await;
    let is_good = async |good: u8| {
        let metrics =
            as_principal(service.client().request("GET", "/metrics"), "scraper").await.expect_status(200).text;
        let line = format!("redlockd_config_last_reload_successful{{kind=\"access_file\"}} {good}\n");
        assert!(metrics.contains(&line), "{metrics}");
    };
    is_good(1).await;
    for bad in
        ["[[principal]]\nname = \"ci\"\n", "not TOML", "[[principal]]\nname = \"x\"\nkeys = []\nallow = [\"all\"]"]
    {
        let errors = || service.output().iter().filter(|line| line.contains("stay in force")).count();
        let before = errors();
        access.write(bad);
        poll::until_true("the log says that it is not used", || errors() > before).await;
        assert_eq!(status_of(&service, &key("ci")).await, 200);
        is_good(0).await;
    }
    access.write(&(entry("ci", &["new"], &["read:**"], "") + &entry("scraper", &[&key("scraper")], &["metrics"], "")));
    until(&service, "new", 200).await;
    assert_eq!(status_of(&service, &key("ci")).await, 401);
    is_good(1).await;
}

#[tokio::test]
async fn sighup_reloads_the_file() {
    let access = Access::of(&[("ci", &["read:**"])]);
    let service = access.service(&[]).await;
    kill_process(service.pid(), Signal::HUP).expect("own child");
    poll::until_true("the log says that it was read", || {
        service.output().iter().any(|line| line.contains("was read again and is in force"))
    })
    .await;
    assert_eq!(status_of(&service, &key("ci")).await, 200);
}

#[tokio::test]
async fn expired_keys_are_rejected() {
    let text = entry("ci", &["old"], &["read:**"], "").replace("\" }", "\", expires = \"2026-01-01\" }");
    let text = text + &entry("cd", &["young"], &["read:**"], "").replace("\" }", "\", expires = \"2126-01-01\" }");
    let service = Access::with(&text).service(&[]).await;
    assert_eq!((status_of(&service, "old").await, status_of(&service, "young").await), (401, 200));
    let is_logged = |line: &String| line.contains("expired key") && line.contains("ci");
    poll::until_true("the expired key is logged", || service.output().iter().any(is_logged)).await;
}

#[test]
fn the_start_is_refused_without_authentication_and_with_an_invalid_file() {
    let refused = |args: &[&str], word: &str| {
        for command in [&["serve"][..], &["config", "check"]] {
            let done = ended(&mut redlockd(&[command, args].concat()));
            assert_eq!(done.code, Some(78), "{args:?}: {done:?}");
            assert!(done.err.contains(word) && done.err.lines().count() == 1, "{args:?}: {done:?}");
        }
    };
    for listen in ["0.0.0.0:0", "[::]:0", "10.0.0.1:0"] {
        refused(&["--listen", listen], "--insecure-no-auth");
    }
    refused(&["--set", "access_file=/nowhere/access.toml"], "/nowhere/access.toml");
    let wrong = Access::with("[[principal]]\nname = \"ci\"\nkeys = [{ sha256 = \"rlk_secret\" }]\n");
    refused(&["--set", &wrong.setting()], "a key itself");
    let good = Access::of(&[]);
    let done = ended(&mut redlockd(&["config", "check", "--listen", "0.0.0.0:0", "--set", &good.setting()]));
    assert_eq!(done.code, Some(0), "{done:?}");
    let done = ended(&mut redlockd(&["config", "check", "--listen", "0.0.0.0:0", "--insecure-no-auth"]));
    assert!(done.code == Some(0) && done.err.contains("NO AUTHENTICATION"), "{done:?}");
}

/// From `key new` to a job under a lock.
#[tokio::test]
async fn a_new_key_is_used_by_the_command_line() {
    let dir = tempfile::tempdir().expect("a directory");
    let (key_file, access_file) = (dir.path().join("ci.key"), dir.path().join("access.toml"));
    let (key_path, access_path) = (key_file.to_str().expect("text"), access_file.to_str().expect("text"));
    let made = ended(&mut redlockd(&["key", "new", "--name", "ci", "--allow", "acquire:deploy/*", "--to", key_path]));
    assert_eq!(made.code, Some(0), "{made:?}");
    std::fs::write(&access_file, &made.out).expect("writable");
    let daemon = Daemon::start_with(&["--set", &format!("access_file={access_path}")]);
    let with_key = |args: &[&str]| ended(daemon.command(args).env("REDLOCKD_KEY_FILE", key_path));
    assert_eq!(daemon.ask(&["run", "deploy/prod", "--", "true"]).code, Some(77), "no key");
    let done = with_key(&["run", "deploy/prod", "--", "sh", "-c", "echo $REDLOCKD_FENCE"]);
    assert!(done.code == Some(0) && done.out.trim().parse::<u64>().is_ok(), "{done:?}");
    assert_eq!(with_key(&["run", "other", "--", "true"]).code, Some(77), "no right");
    let flag = daemon.ask(&["acquire", "--key-file", key_path, "deploy/prod"]);
    assert_eq!(flag.code, Some(0), "{flag:?}");
    assert_eq!(with_key(&["status", "deploy/prod"]).code, Some(0));
    assert_eq!(with_key(&["list"]).code, Some(0));
    assert_eq!(with_key(&["nodes"]).code, Some(77));
    assert_eq!(with_key(&["force", "--now", "--reason", "x", "deploy/prod"]).code, Some(77));
    assert_eq!(daemon.ask(&["health"]).code, Some(0), "probes need no key");
    // In its usual place, with a warning if others can read it.
    let config = dir.path().join("redlockd");
    std::fs::create_dir(&config).expect("made");
    std::fs::copy(&key_file, config.join("key")).expect("copied");
    let home = ended(daemon.command(&["list"]).env("XDG_CONFIG_HOME", dir.path()));
    assert_eq!((home.code, home.err.as_str()), (Some(0), ""));
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o644);
    std::fs::set_permissions(config.join("key"), mode).expect("own file");
    let seen = ended(daemon.command(&["list"]).env("XDG_CONFIG_HOME", dir.path()));
    assert!(seen.code == Some(0) && seen.err.contains("chmod 600"), "{seen:?}");
    // Not in plain text to another host, unless it is forced.
    let away = ended(redlockd(&["list", "--url", "http://192.0.2.1:5625", "--key-file", key_path]).env("PATH", ""));
    assert!(away.code == Some(64) && away.err.contains("--insecure-key"), "{away:?}");
}

#[tokio::test]
async fn readiness_names_nodes_only_to_principals_that_may_see_them() {
    let access = Access::of(&[("ci", &["acquire:**"]), ("ops", &["metrics"])]);
    let setting = access.setting();
    let args = ["--set", setting.as_str(), "--node", "n1=redis://127.0.0.1:1", "--set", "node_timeout=50ms"];
    let service = Service::start(&args).await;
    let ready = || service.client().request("GET", "/health/ready");
    for (answer, named) in [
        (send(ready()).await, false),
        (as_principal(ready(), "ci").await, false),
        (as_principal(ready(), "ops").await, true),
    ] {
        let answer = answer.expect_problem(503, "quorum-unavailable");
        assert_eq!(answer.text.contains("n1"), named, "{answer:?}");
    }
}
