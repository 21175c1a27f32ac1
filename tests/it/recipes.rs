//! What the documents tell a shell to do, done by real shells and a real curl: exit codes included.

use std::path::Path;
use std::process::Stdio;

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::Command;

use crate::support::cluster::Cluster;
use crate::support::daemon::{line_in, stop_ignoring_signals};
use crate::support::poll;
use crate::support::service::{Service, path};

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// The lines of the recipes in docs/http.md, which are those of the contract.
fn recipes() -> Vec<String> {
    let document = std::fs::read_to_string(root().join("docs/http.md")).expect("docs/http.md");
    let section = document.split("\n## In a shell\n").nth(1).expect("a section of recipes");
    let block = section.split("```sh\n").nth(1).and_then(|rest| rest.split("```").next()).expect("a block of shell");
    let lines: Vec<String> = block.lines().map(str::to_owned).collect();
    assert_eq!(lines.len(), 5, "{lines:#?}");
    lines
}

/// The shells that scripts meet, as far as they are installed.
fn shells() -> Vec<&'static [&'static str]> {
    let all: [&[&str]; 3] = [&["bash", "-u"], &["dash", "-u"], &["busybox", "sh", "-u"]];
    all.into_iter().filter(|shell| Path::new("/usr/bin").join(shell[0]).exists() || shell[0] == "bash").collect()
}

/// A script with `L` set, as cron would run it: without `USER` and `HOSTNAME`.
fn command(shell: &[&str], service: &Service, script: &str, dir: &Path) -> Command {
    let mut command = Command::new(shell[0]);
    command.args(&shell[1..]).args(["-c", script]).current_dir(dir).env("L", service.client().base());
    command.env_remove("USER").env_remove("HOSTNAME").stdin(Stdio::null());
    command
}

/// Runs a script; exit code and standard output.
async fn run_in(shell: &[&str], service: &Service, script: &str) -> (Option<i32>, String) {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let output = command(shell, service, script, dir.path()).output().await;
    let output = output.unwrap_or_else(|e| panic!("{shell:?} is missing ({e})"));
    (output.status.code(), String::from_utf8(output.stdout).expect("text"))
}

async fn bash(service: &Service, script: &str) -> (Option<i32>, String) {
    run_in(&["bash", "-u"], service, script).await
}

#[tokio::test]
async fn the_recipes_acquire_renew_ask_and_release() {
    for shell in shells() {
        acquire_renew_ask_and_release(shell).await;
    }
}

async fn acquire_renew_ask_and_release(shell: &[&str]) {
    let service = Service::embedded(&[]).await;
    let [acquire, release, renew, branch, look] = &recipes()[..] else { panic!("five recipes") };
    let script = format!(
        "{acquire}\n{release}\n{renew}\necho renewed=$?\n{look}\n{branch}\necho code=$code body=$(test -s r.json && echo yes)\nexit 7"
    );
    let (code, out) = run_in(shell, &service, &script).await;
    assert_eq!(code, Some(7), "the trap keeps the exit code: {out}");
    assert!(out.contains("renewed=0\nheld\ncode=201 body=yes\n"), "{out}");
    service.client().inspect("deploy/prod").await.expect_problem(404, "not-held");
    assert_eq!(service.client().inspect("x").await.expect_status(200).json()["holders"][0]["owner"], "");
}

/// The steps of docs/keeping.md, each in a shell of its own, as those of a workflow are.
#[tokio::test]
async fn a_workflow_keeps_its_lock_between_its_steps() {
    let document = std::fs::read_to_string(root().join("docs/keeping.md")).expect("docs/keeping.md");
    let block = document.split("```sh\n").nth(1).and_then(|rest| rest.split("```").next()).expect("a block of shell");
    let [_, first, renew, last] = &block.lines().collect::<Vec<_>>()[..] else { panic!("{block}") };
    for shell in shells() {
        let service = Service::embedded(&[]).await;
        let (code, token) = run_in(shell, &service, &format!("{first}\necho $T")).await;
        assert_eq!(code, Some(0), "{shell:?}");
        let holder = service.client().inspect("deploy/prod").await.json()["holders"][0].clone();
        assert_eq!(holder["owner"], "release-42");
        assert!(holder["kept_for_ms"].as_u64().is_some_and(|ms| ms > 7_000_000), "{holder}");
        for step in [renew, last] {
            let (code, out) = run_in(shell, &service, &format!("T={}\n{step}", token.trim())).await;
            assert_eq!(code, Some(0), "{shell:?}: {step}: {out}");
        }
        service.client().inspect("deploy/prod").await.expect_problem(404, "not-held");
    }
}

#[tokio::test]
async fn each_recipe_exits_as_it_says() {
    for shell in shells() {
        exits_as_it_says(shell).await;
    }
}

async fn exits_as_it_says(shell: &[&str]) {
    let service = Service::embedded(&[]).await;
    let client = service.client();
    let [acquire, release, renew, branch, look] = &recipes()[..] else { panic!("five recipes") };
    // Nobody holds it: a look fails, quietly.
    assert_eq!(run_in(shell, &service, look).await, (Some(22), String::new()));
    // Somebody else has it for longer than one waits.
    let other = client.acquired("deploy/prod", &[("ttl", "4m"), ("owner", "other")]).await;
    let impatient = acquire.replace("wait=1m", "wait=100ms");
    assert_ne!(&impatient, acquire);
    assert_eq!(run_in(shell, &service, &impatient).await, (Some(75), String::new()));
    assert_eq!(run_in(shell, &service, look).await, (Some(0), "held\n".to_owned()));
    // Not the holder: stop working.
    assert_eq!(run_in(shell, &service, &format!("T=my-own-token.0123456789\n{renew}")).await.0, Some(22));
    let (code, _) = run_in(shell, &service, &format!("T=my-own-token.0123456789\n{release}")).await;
    assert!(code.is_some_and(|c| c == 22 || c == 0), "{code:?}");
    client.extend("deploy/prod", &other.token(), &[]).await.expect_status(200);
    // A script branches on the status.
    client.acquired("x", &[]).await;
    assert_eq!(run_in(shell, &service, &format!("{branch}\necho $code")).await, (Some(0), "423\n".to_owned()));
    // The waiting script gets it, with owner and token, once it is released.
    let waiting = async { run_in(shell, &service, &format!("{acquire}\necho \"$T\"")).await };
    let releasing = async {
        poll::until("the script queues", || async { (client.waiting("deploy/prod").await == 1).then_some(()) }).await;
        client.release("deploy/prod", &other.token()).await.expect_status(204);
    };
    let ((code, token), ()) = tokio::join!(waiting, releasing);
    assert_eq!((code, token.trim().len()), (Some(0), 32), "{token:?}");
    let holder = client.inspect("deploy/prod").await.json()["holders"][0].clone();
    let owner = holder["owner"].as_str().expect("an owner");
    let parts: Vec<&str> = owner.split(['@', ':']).collect();
    assert!(parts.len() == 3 && parts.iter().all(|part| !part.is_empty()), "{owner}");
    client.extend("deploy/prod", token.trim(), &[]).await.expect_status(200);
}

/// A signal ends the script, and with it the lease: dash runs no `EXIT` trap by itself then.
#[tokio::test]
async fn a_script_that_is_ended_by_a_signal_releases_the_lock() {
    // A shell cannot trap a signal that it ignores from its start.
    stop_ignoring_signals();
    let [acquire, release, ..] = &recipes()[..] else { panic!("five recipes") };
    for shell in shells() {
        for (signal, code) in [(Signal::INT, 130), (Signal::TERM, 143)] {
            let (service, dir) = (Service::embedded(&[]).await, tempfile::tempdir().expect("a directory"));
            let script = format!("{acquire}\n{release}\nsleep 600 & echo $! > job\nwait");
            let mut running = command(shell, &service, &script, dir.path()).spawn().expect("it starts");
            let job = line_in(&dir.path().join("job")).await;
            let pid =
                Pid::from_raw(i32::try_from(running.id().expect("running")).expect("small")).expect("a process id");
            kill_process(pid, signal).expect("own child");
            assert_eq!(running.wait().await.expect("own child").code(), Some(code), "{shell:?}");
            let job = Pid::from_raw(job.trim().parse().expect("a number")).expect("a process id");
            kill_process(job, Signal::KILL).expect("our own grandchild");
            service.client().inspect("deploy/prod").await.expect_problem(404, "not-held");
        }
    }
}

/// The answers that the README shows have the members of real ones.
#[tokio::test]
async fn the_answers_in_the_readme_are_those_of_the_service() {
    let service = Service::embedded(&[]).await;
    let readme = std::fs::read_to_string(root().join("README.md")).expect("README.md");
    let shown = readme.split("```json\n").skip(1).map(|rest| rest.split("```").next().expect("an end of the block"));
    let shown: Vec<Value> = shown.map(|text| serde_json::from_str(text).expect(text)).collect();
    assert_eq!(shown.len(), 2, "a lease and a refusal");
    for expected in shown {
        let (_, answer) = bash(&service, "curl -s -d ttl=30s -d owner=ann $L/locks/deploy/prod").await;
        let answer: Value = serde_json::from_str(&answer).expect("an object");
        assert_eq!(outline(&answer), outline(&expected));
    }
}

/// Members of an answer with their types; the values of those that a reader of the README takes as given.
fn outline(value: &Value) -> Value {
    match value {
        Value::Object(members) => {
            let fixed = ["type", "title", "status", "resource", "mode", "owner", "reason", "outcome"];
            let outlined = |(name, member): (&String, &Value)| {
                let known = fixed.contains(&name.as_str());
                (name.clone(), if known { member.clone() } else { outline(member) })
            };
            Value::Object(members.iter().map(outlined).collect())
        }
        Value::Array(items) => items.iter().map(outline).collect(),
        Value::String(_) => "text".into(),
        Value::Number(_) => "number".into(),
        Value::Bool(_) | Value::Null => value.clone(),
    }
}

/// curl repeats what is worth repeating, and never silently queues for what was refused.
#[tokio::test]
async fn curl_repeats_503_and_not_423() {
    let mut cluster = Cluster::start(1).await;
    let over = cluster.service().await;
    let service = &over.service;
    over.client().acquired("x", &[]).await;
    let ask = "curl --retry 1 -o r.json -w '%{http_code} ' -d ttl=30s $L/locks/x 2>&1";
    let (_, out) = bash(service, ask).await;
    assert!(out.contains("423 ") && !out.contains("Will retry"), "{out}");
    cluster.servers[0].kill();
    let (_, out) = bash(service, ask).await;
    assert!(out.contains("503 ") && out.contains("Will retry in 1 second"), "{out}");
}

#[tokio::test]
async fn the_line_that_the_start_announces_works_when_pasted() {
    let service = Service::embedded(&[]).await;
    let output = service.output();
    let line = output.iter().find_map(|l| l.trim_start().strip_prefix("try:")).expect("a line to paste");
    let (code, out) = bash(&service, line).await;
    assert_eq!(code, Some(0), "{out}");
    assert!(out.starts_with("HTTP/1.1 201 Created\r\n") && out.to_lowercase().contains("\r\nlock-token: "), "{out}");
    assert!(output.iter().any(|l| l.contains("embedded node")), "{output:#?}");
}

/// The script that the README names: five nodes on one machine, initialised, served, stopped again.
#[tokio::test]
async fn the_script_with_five_nodes_serves_and_stops_all_that_it_started() {
    let data = tempfile::tempdir().expect("a temporary directory");
    let mut command = Command::new(root().join("examples/five-nodes.sh"));
    command.args(["--listen", "127.0.0.1:0"]).env("REDLOCKD", env!("CARGO_BIN_EXE_redlockd"));
    let log = tempfile::NamedTempFile::new().expect("a temporary file");
    let errors = log.reopen().expect("a second handle");
    command.env("TMPDIR", path(data.path())).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(errors);
    let mut script = command.kill_on_drop(true).spawn().expect("it runs");
    let pid = Pid::from_raw(i32::try_from(script.id().expect("running")).expect("small")).expect("a process id");
    let mut lines = BufReader::new(script.stdout.take().expect("piped")).lines();
    let mut base = None;
    while let Some(line) = lines.next_line().await.expect("text") {
        if let Some((_, address)) = line.split_once("listens on ") {
            base = Some(address.to_owned());
            break;
        }
    }
    let client = crate::support::client::Client::new(&base.unwrap_or_else(|| {
        panic!("it does not serve: {}", std::fs::read_to_string(log.path()).unwrap_or_default());
    }));
    let lease = client.acquired("deploy/prod", &[]).await.json();
    assert_eq!((&lease["quorum"]["needed"], &lease["quorum"]["nodes"]), (&3.into(), &5.into()), "{lease}");
    kill_process(pid, Signal::TERM).expect("own child");
    assert_eq!(script.wait().await.expect("own child").code(), Some(143));
    for port in 7101..=7105 {
        assert!(std::net::TcpStream::connect(("127.0.0.1", port)).is_err(), "port {port} is still served");
    }
    assert_eq!(std::fs::read_dir(data.path()).expect("readable").count(), 0, "files are left behind");
}
