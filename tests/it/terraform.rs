//! `/terraform/{resource}`: what Terraform's HTTP back end is promised, by requests as it sends them and with the real one.

use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};

use rustix::process::{Pid, Signal, kill_process_group};
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::access::{Access, acquired, as_principal, key};
use crate::support::client::{Answer, Client, send};
use crate::support::daemon::{Ended, Running, ended, line_in};
use crate::support::poll;
use crate::support::service::Service;
use crate::support::terraform::{StateStore, install};

const ID: &str = "1f0c4b8e-6f6f-8a3c-3d8e-5a1f6f0b7c11";
const OTHER_ID: &str = "2a9d7c01-0000-8a3c-3d8e-5a1f6f0b7c22";

fn lock_info(id: &str) -> Value {
    json!({ "ID": id, "Operation": "OperationTypeApply", "Info": "", "Who": "ann@pc", "Version": "1.13.2",
        "Created": "2026-11-23T15:46:03.123456789Z", "Path": "net/terraform.tfstate" })
}

fn request(client: &Client, method: &str, path: &str, body: Option<&Value>) -> reqwest::RequestBuilder {
    let request = client.request(method, &format!("/terraform/{path}"));
    match body {
        Some(body) => request.header("Content-Type", "application/json").body(body.to_string()),
        None => request,
    }
}

async fn ask(client: &Client, method: &str, path: &str, id: &str) -> Answer {
    send(request(client, method, path, Some(&lock_info(id)))).await
}

/// 200 and nothing else is a success for Terraform.
fn done(answer: Answer) {
    assert_eq!((answer.status, answer.text.as_str()), (200, ""), "{answer:?}");
}

#[tokio::test]
async fn a_lock_is_a_kept_lease_with_what_the_run_said_of_itself() {
    let service = Service::embedded(&["--set", "terraform_keep=3h"]).await;
    let client = service.client();
    for (lock, unlock, path) in [("LOCK", "UNLOCK", "tf/net"), ("POST", "DELETE", "tf/net/lock")] {
        let (id, other) = (format!("{ID}-{lock}"), format!("{OTHER_ID}-{lock}"));
        let locked = ask(client, lock, path, &id).await;
        assert!(locked.header("fencing-token").parse::<u64>().is_ok_and(|fence| fence > 0), "{locked:?}");
        done(locked);
        let holder = client.inspect("tf/net").await.expect_status(200).json()["holders"][0].clone();
        assert_eq!((&holder["owner"], &holder["note"]), (&json!("ann@pc"), &json!("OperationTypeApply")));
        let metadata = json!({ "tf.ID": id, "tf.Created": "2026-11-23T15:46:03.123456789Z", "tf.Version": "1.13.2",
            "tf.Path": "net/terraform.tfstate" });
        assert_eq!(holder["metadata"], metadata);
        let kept_ms = holder["kept_for_ms"].as_u64().expect("kept");
        assert!((10_000_000..=10_800_000).contains(&kept_ms), "{holder}");
        // A request whose answer was lost is sent again.
        done(ask(client, lock, path, &id).await);
        let refused = ask(client, lock, path, &other).await;
        let body = refused.clone().expect_problem(423, "locked").json();
        for (member, value) in lock_info(&id).as_object().expect("an object") {
            assert_eq!(&body[member], value, "{member}: {body}");
        }
        assert_eq!(body["holders"][0]["owner"], "ann@pc");
        ask(client, unlock, path, &other).await.expect_problem(409, "not-holder");
        done(ask(client, unlock, path, &id).await);
        ask(client, unlock, path, &id).await.expect_problem(410, "lease-expired");
        client.inspect("tf/net").await.expect_status(404);
        // What has ended does not come back: each run draws an ID of its own.
        ask(client, lock, path, &id).await.expect_problem(410, "lease-expired");
        client.inspect("tf/net").await.expect_status(404);
        done(ask(client, lock, path, &other).await);
        // The address of LOCK may be used as it is.
        done(ask(client, unlock, &format!("{path}?wait=5m&keep=1h"), &other).await);
    }
}

/// The addresses of docs/terraform.md are accepted by a service with its default limits.
#[tokio::test]
async fn the_documented_back_end_locks_and_unlocks() {
    let service = Service::embedded(&[]).await;
    let document = include_str!("../../docs/terraform.md");
    for (setting, method) in [("lock_address   = ", "LOCK"), ("unlock_address = ", "UNLOCK")] {
        let address = document.split(setting).nth(1).and_then(|rest| rest.split('"').nth(1)).expect("an address");
        let path = address.split("/terraform/").nth(1).expect("a path");
        done(ask(service.client(), method, path, ID).await);
    }
}

#[tokio::test]
async fn the_time_of_keeping_is_bounded() {
    let service = Service::embedded(&["--set", "max_keep=1m"]).await;
    let client = service.client();
    let kept_ms = async || {
        let lock = client.inspect("tf").await.expect_status(200).json();
        lock["holders"][0]["kept_for_ms"].as_u64().expect("kept")
    };
    done(ask(client, "LOCK", "tf", ID).await);
    assert!(kept_ms().await <= 60_000, "the setting is 2 h, and max_keep is less");
    done(ask(client, "UNLOCK", "tf", ID).await);
    done(ask(client, "LOCK", "tf?keep=30s", OTHER_ID).await);
    assert!(kept_ms().await <= 30_000);
    ask(client, "LOCK", "x?keep=2m", ID).await.expect_problem(400, "keep-too-long");
}

#[tokio::test]
async fn a_run_waits_in_the_queue_and_leaves_it_when_it_is_killed() {
    let service = Service::embedded(&[]).await;
    let client = service.client();
    done(ask(client, "LOCK", "tf", ID).await);
    ask(client, "LOCK", "tf?wait=10ms", OTHER_ID).await.expect_problem(423, "wait-timeout");
    let waiting = tokio::spawn(request(client, "LOCK", "tf?wait=1m", Some(&lock_info("killed"))).send());
    poll::until("it waits", || async { (client.waiting("tf").await == 1).then_some(()) }).await;
    waiting.abort();
    poll::until("it has left", || async { (client.waiting("tf").await == 0).then_some(()) }).await;
    let next = tokio::spawn(request(client, "LOCK", "tf?wait=1m", Some(&lock_info("next"))).send());
    poll::until("it waits", || async { (client.waiting("tf").await == 1).then_some(()) }).await;
    done(ask(client, "UNLOCK", "tf", ID).await);
    assert_eq!(next.await.expect("it ran").expect("an answer").status(), 200);
    ask(client, "UNLOCK", "tf", OTHER_ID).await.expect_problem(409, "not-holder");
    done(ask(client, "UNLOCK", "tf", "next").await);
}

/// Others are shown the ID, and cannot end the lock with it.
#[tokio::test]
async fn only_its_principal_unlocks_without_the_right_to_force() {
    let both = &["acquire:tf/*"][..];
    let access = Access::of(&[("ci", both), ("cd", both), ("ops", &["force:tf/*"]), ("eve", &["read:tf/*"])]);
    let service = access.service(&[]).await;
    let client = service.client();
    let as_who = async |who: &str, method: &str, id: Option<&str>| {
        as_principal(request(client, method, "tf/net", id.map(lock_info).as_ref()), who).await
    };
    as_who("eve", "LOCK", Some(ID)).await.expect_problem(403, "forbidden");
    as_who("ops", "LOCK", Some(ID)).await.expect_problem(403, "forbidden");
    send(request(client, "LOCK", "tf/net", Some(&lock_info(ID)))).await.expect_problem(401, "unauthenticated");
    done(as_who("ci", "LOCK", Some(ID)).await);
    as_who("cd", "LOCK", Some(ID)).await.expect_problem(423, "locked");
    for (who, id, needed) in
        [("cd", Some(ID), "force"), ("cd", None, "force"), ("ci", None, "force"), ("eve", Some(ID), "acquire")]
    {
        let refused = as_who(who, "UNLOCK", id).await.expect_problem(403, "forbidden");
        assert_eq!(refused.json()["needed"], needed, "{who} {id:?}");
    }
    for token in [ID, "terraform::1f0c4b8e-6f6f-8a3c-3d8e-5a1f6f0b7c11"] {
        for method in ["PATCH", "DELETE"] {
            let guess = client.request(method, "/locks/tf/net").header("Lock-Token", token);
            let refused = as_principal(guess, "cd").await;
            assert!(matches!(refused.status, 400 | 409), "{refused:?}");
        }
    }
    assert_eq!(as_who("ops", "UNLOCK", Some(OTHER_ID)).await.status, 409);
    done(as_who("ci", "UNLOCK", Some(ID)).await);
    for (id, by_ops) in [("by-force", None), ("by-id", Some("by-id"))] {
        done(as_who("ci", "LOCK", Some(id)).await);
        done(as_who("ops", "UNLOCK", by_ops).await);
        as_who("ci", "UNLOCK", Some(id)).await.expect_problem(410, "lease-expired");
    }
    // A lease of another kind is not ended, whatever it says of itself.
    let made_up = client.request("POST", "/locks/tf/net").form(&[("metadata", format!("{{\"tf.ID\":\"{ID}\"}}"))]);
    as_principal(made_up, "ci").await.expect_status(201);
    for (who, id) in [("ops", None), ("ops", Some(ID)), ("ci", Some(ID))] {
        as_who(who, "UNLOCK", id).await.expect_problem(409, "not-holder");
    }
    assert_eq!(as_who("cd", "LOCK", Some(OTHER_ID)).await.expect_problem(423, "locked").json()["ID"], ID);
    // Nor is one without any metadata; its ID is that of its token.
    acquired(&service, "ci", "tf/plain").await;
    let refused = as_principal(request(client, "LOCK", "tf/plain", Some(&lock_info(ID))), "cd").await.json();
    assert_eq!(refused["ID"], refused["holders"][0]["token_id"], "{refused}");
}

#[tokio::test]
async fn what_is_wrong_is_named() {
    let service = Service::embedded(&[]).await;
    let client = service.client();
    let field = async |method: &str, path: &str, body: Value| {
        let refused = send(request(client, method, path, Some(&body))).await.expect_problem(400, "invalid");
        refused.json()["errors"][0]["field"].as_str().expect("a field").to_owned()
    };
    for (method, path, body, expected) in [
        ("LOCK", "tf", json!({}), "ID"),
        ("LOCK", "tf", json!([]), "body"),
        ("LOCK", "tf", json!({ "ID": 7 }), "body"),
        ("UNLOCK", "tf", json!({ "ID": "" }), "ID"),
        ("LOCK", "tf/lock", lock_info(ID), "resource"),
        ("POST", "tf", lock_info(ID), "resource"),
        ("DELETE", "tf", lock_info(ID), "resource"),
        ("LOCK", "tf?ttl=5s", lock_info(ID), "ttl"),
        ("LOCK", "tf?wait=5", lock_info(ID), "wait"),
        ("UNLOCK", "tf?force=now", lock_info(ID), "force"),
    ] {
        assert_eq!(field(method, path, body.clone()).await, expected, "{method} {path} {body}");
    }
    send(request(client, "LOCK", "tf", None)).await.expect_problem(400, "invalid");
    let form = client.request("LOCK", "/terraform/tf").form(&[("ID", ID)]);
    send(form).await.expect_problem(415, "unsupported-media-type");
    for (path, allowed) in [("tf", "LOCK,UNLOCK"), ("tf/lock", "POST,DELETE")] {
        let other = send(request(client, "PUT", path, None)).await.expect_problem(405, "method-not-allowed");
        assert_eq!(other.header("allow"), allowed);
    }
    assert_eq!(client.get("/locks").await.json()["items"], json!([]));
}

const CONFIGURATION: &str = r#"terraform {
  backend "http" {}
}
resource "terraform_data" "one" {
  triggers_replace = timestamp()
  provisioner "local-exec" { command = "./work.sh" }
}
"#;

/// A directory with a configuration whose apply runs this script.
fn project(script: &str) -> Option<TempDir> {
    let dir = tempfile::tempdir().expect("a directory");
    if !install(dir.path()) {
        return None;
    }
    std::fs::write(dir.path().join("main.tf"), CONFIGURATION).expect("writable");
    write_script(dir.path(), script);
    Some(dir)
}

fn write_script(dir: &Path, script: &str) {
    use std::os::unix::fs::PermissionsExt;
    let path = dir.join("work.sh");
    std::fs::write(&path, format!("#!/bin/sh\n{script}\n")).expect("writable");
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).expect("own file");
}

/// Terraform over a store that cannot lock, with the service's lock. In a process group of its own.
struct Terraform<'a> {
    dir: &'a Path,
    store: &'a StateStore,
    lock: String,
    who: &'a str,
}

impl Terraform<'_> {
    fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(self.dir.join("terraform"));
        command.current_dir(self.dir).args(args).env("HOME", self.dir).env("CHECKPOINT_DISABLE", "1");
        command.env("TF_IN_AUTOMATION", "1").env("TF_CLI_CONFIG_FILE", "/dev/null");
        command
            .env("TF_HTTP_ADDRESS", &self.store.url)
            .env("TF_HTTP_USERNAME", "any")
            .env("TF_HTTP_PASSWORD", key(self.who));
        command.env("TF_HTTP_LOCK_ADDRESS", &self.lock).env("TF_HTTP_UNLOCK_ADDRESS", &self.lock);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).process_group(0);
        command
    }

    fn run(&self, args: &[&str]) -> Ended {
        tokio::task::block_in_place(|| ended(&mut self.command(args)))
    }

    fn init(&self) {
        let begun = self.run(&["init", "-input=false", "-no-color"]);
        assert_eq!(begun.code, Some(0), "{begun:?}");
    }
}

const APPLY: [&str; 4] = ["apply", "-auto-approve", "-input=false", "-no-color"];
const ONE_AT_A_TIME: &str = "echo begin >> log; sleep 0.2; echo end >> log";

/// Apply against apply: the second one asks again (`-lock-timeout`), or waits in the service's queue.
#[tokio::test(flavor = "multi_thread")]
async fn applies_take_turns() {
    let Some(dir) = project(ONE_AT_A_TIME) else { return };
    let (service, store) = (Service::embedded(&[]).await, StateStore::start().await);
    for (query, more) in [("", &["-lock-timeout=60s"][..]), ("?wait=1m", &[])] {
        let lock = format!("{}/terraform/tf/net{query}", service.client().base());
        let terraform = Terraform { dir: dir.path(), store: &store, lock, who: "ci" };
        terraform.init();
        let args = [&APPLY[..], more].concat();
        let both: Vec<Running> = (0..2).map(|_| Running::spawn(&mut terraform.command(&args))).collect();
        for apply in both {
            let done = apply.end().await;
            assert_eq!(done.code, Some(0), "{done:?}");
        }
        let log = std::fs::read_to_string(dir.path().join("log")).expect("written");
        assert_eq!(log, "begin\nend\nbegin\nend\n", "{query} {more:?}");
        std::fs::remove_file(dir.path().join("log")).expect("written");
        service.client().inspect("tf/net").await.expect_status(404);
    }
    // What another client holds is shown.
    service.client().acquired("tf/net", &[("owner", "ann@pc"), ("note", "by hand"), ("ttl", "1m")]).await;
    let lock = format!("{}/terraform/tf/net", service.client().base());
    let refused = Terraform { dir: dir.path(), store: &store, lock, who: "ci" }.run(&APPLY);
    assert!(refused.code == Some(1) && refused.err.contains("Error acquiring the state lock"), "{refused:?}");
}

/// A run that is killed leaves its lock, until who may force unlocks it.
#[tokio::test(flavor = "multi_thread")]
async fn a_killed_run_keeps_its_lock_until_it_is_unlocked_by_force() {
    let Some(dir) = project("echo begun > begun; exec sleep 600") else { return };
    let access = Access::of(&[("ci", &["acquire:tf/*"]), ("ops", &["acquire:tf/*", "force:tf/*"])]);
    let (service, store) = (access.service(&[]).await, StateStore::start().await);
    let lock = format!("{}/terraform/tf/net/lock", service.client().base());
    // The methods of GitLab's back end.
    let terraform = |who| {
        let terraform = Terraform { dir: dir.path(), store: &store, lock: lock.clone(), who };
        move |args: &[&str]| {
            let mut command = terraform.command(args);
            command.env("TF_HTTP_LOCK_METHOD", "POST").env("TF_HTTP_UNLOCK_METHOD", "DELETE");
            command
        }
    };
    let run = |who, args: &[&str]| tokio::task::block_in_place(|| ended(&mut terraform(who)(args)));
    let begun = run("ci", &["init", "-input=false", "-no-color"]);
    assert_eq!(begun.code, Some(0), "{begun:?}");
    let mut apply = Running::spawn(&mut terraform("ci")(&APPLY));
    line_in(&dir.path().join("begun")).await;
    kill_process_group(Pid::from_child(apply.child()), Signal::KILL).expect("our own child");
    apply.end().await;
    let holder = || async {
        let lock = service.client().request("GET", "/locks/tf/net");
        as_principal(lock, "ci").await.expect_status(200).json()["holders"][0].clone()
    };
    let id = holder().await["metadata"]["tf.ID"].as_str().expect("an ID").to_owned();
    let refused = run("ci", &APPLY);
    assert!(refused.code == Some(1) && refused.err.contains(&id), "{refused:?}");
    let denied = run("ci", &["force-unlock", "-force", &id]);
    assert_eq!(denied.code, Some(1), "{denied:?}");
    assert_eq!(holder().await["metadata"]["tf.ID"], id.as_str());
    let unlocked = run("ops", &["force-unlock", "-force", &id]);
    assert_eq!(unlocked.code, Some(0), "{unlocked:?}");
    write_script(dir.path(), ONE_AT_A_TIME);
    let applied = run("ci", &APPLY);
    assert_eq!(applied.code, Some(0), "{applied:?}");
    let lock = service.client().request("GET", "/locks/tf/net");
    as_principal(lock, "ci").await.expect_status(404);
}
