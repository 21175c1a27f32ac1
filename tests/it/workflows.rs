//! The steps of `docs/workflows.md` and of the action under `examples/`, run against the service.

use std::collections::BTreeMap;
use std::net::TcpListener;
use std::path::Path;
use std::process::Stdio;

use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::process::Command;

use crate::access::{Access, as_principal, key};
use crate::hooks::receiver::{HooksFile, Received, Receiver, SEALING, SECRET, target};
use crate::support::chaos_proxy::{ChaosProxy, FAIR};
use crate::support::client::{Answer, Client, lock, send};
use crate::support::cluster::{Cluster, MUTE};
use crate::support::poll;
use crate::support::programs::skipped;
use crate::support::service::Service;
use crate::support::temp_dir::in_memory;
use crate::tickets::SETTINGS;

const DOCUMENT: &str = include_str!("../../docs/workflows.md");
const ACTION: &str = include_str!("../../examples/github-action/action.yml");

/// The script of the document that begins with this comment.
fn script(name: &str) -> &'static str {
    let blocks = DOCUMENT.split("```sh\n").skip(1).filter_map(|rest| rest.split("```").next());
    let mut named = blocks.filter(|block| block.starts_with(&format!("# {name}")));
    named.next().unwrap_or_else(|| panic!("no script {name}"))
}

fn action() -> Value {
    serde_yaml_ng::from_str(ACTION).expect("YAML")
}

/// The only step of the action.
fn step() -> String {
    action()["runs"]["steps"][0]["run"].as_str().expect("a script").to_owned()
}

fn shell(dir: &TempDir, script: &str, env: &[(&str, &str)]) -> Command {
    let mut command = Command::new("bash");
    command.arg("-c").arg(script).current_dir(dir.path()).env_clear().stdin(Stdio::null());
    command.env("PATH", std::env::var("PATH").unwrap_or_default()).envs(env.iter().copied()).kill_on_drop(true);
    command
}

async fn code(mut command: Command) -> Option<i32> {
    command.status().await.expect("bash is there").code()
}

async fn owner(client: &Client, name: &str) -> String {
    let shown = client.inspect(name).await;
    if shown.status == 404 {
        String::new()
    } else {
        shown.json()["holders"][0]["owner"].as_str().unwrap_or("").to_owned()
    }
}

#[tokio::test]
async fn the_steps_of_plain_curl() {
    let (service, first, second) = (Service::embedded(&[]).await, in_memory(), in_memory());
    let client = service.client();
    let env = [("L", client.base())];
    assert_eq!(code(shell(&first, script("take.sh"), &env)).await, Some(0), "free: granted at once");
    assert_eq!(owner(client, "deploy/prod").await, "release-42");
    let held = client.inspect("deploy/prod").await.json()["holders"][0]["token_id"].clone();
    let waiting = tokio::spawn(code(shell(&second, script("take.sh"), &env)));
    poll::until("the second one waits", || async { (client.waiting("deploy/prod").await == 1).then_some(()) }).await;
    assert_eq!(code(shell(&first, script("give.sh"), &env)).await, Some(0));
    assert_eq!(waiting.await.expect("it ends"), Some(0), "and gets the lock");
    assert_ne!(client.inspect("deploy/prod").await.json()["holders"][0]["token_id"], held);
    assert_eq!(code(shell(&second, script("give.sh"), &env)).await, Some(0));
    assert_eq!(code(shell(&second, script("give.sh"), &env)).await, Some(22), "it is over");
    assert_eq!(owner(client, "deploy/prod").await, "");
}

#[tokio::test]
async fn the_step_of_the_github_action() {
    let (service, dir) = (Service::embedded(&[]).await, in_memory());
    let client = service.client();
    let held = client.acquired("deploy/prod", &[("keep", "10m")]).await;
    let variables = dir.path().join("env");
    let env = |wait: &'static str| {
        let inputs = [("L", client.base()), ("KEY", ""), ("NAME", "deploy/prod"), ("KEEP", "10m"), ("WAIT", wait)];
        [&inputs[..], &[("GITHUB_ENV", variables.to_str().expect("UTF-8")), ("GITHUB_RUN_ID", "17")]].concat()
    };
    let refused = shell(&dir, &step(), &env("1s")).output().await.expect("bash is there");
    assert_eq!(refused.status.code(), Some(75), "{refused:?}");
    assert!(String::from_utf8_lossy(&refused.stdout).contains("not locked: wait-timeout"), "{refused:?}");
    let waiting = tokio::spawn(code(shell(&dir, &step(), &env("10m"))));
    poll::until("it waits", || async { (client.waiting("deploy/prod").await == 1).then_some(()) }).await;
    client.release("deploy/prod", &held.token()).await.expect_status(204);
    assert_eq!(waiting.await.expect("it ends"), Some(0));
    assert_eq!(owner(client, "deploy/prod").await, "local 17");
    let text = std::fs::read_to_string(&variables).expect("written");
    let token = text.trim().strip_prefix("LOCK_TOKEN=").expect("a token");
    client.release("deploy/prod", token).await.expect_status(204);
}

/// kill -9 of the instance while the script asks for its ticket, which it has made by a request whose answer was lost.
#[tokio::test(flavor = "multi_thread")]
async fn the_steps_outlive_the_instance_that_they_ask() {
    let cluster = Cluster::blank(3).await;
    cluster.declare(&SETTINGS);
    let there = cluster.service_with(&SETTINGS).await;
    for script in [script("take.sh").to_owned(), step()] {
        let (mut here, dir) = (cluster.service_with(&SETTINGS).await, in_memory());
        let proxy = ChaosProxy::start(here.service.address().port()).await;
        let held = there.client().acquired("deploy/prod", &[("keep", "10m")]).await;
        proxy.set(MUTE);
        let (base, variables) = (format!("http://{}", proxy.address()), dir.path().join("env"));
        let env = [("L", base.as_str()), ("KEY", ""), ("NAME", "deploy/prod"), ("KEEP", "10m"), ("WAIT", "10m")];
        let env = [&env[..], &[("GITHUB_ENV", variables.to_str().expect("UTF-8"))]].concat();
        let taking = tokio::spawn(code(shell(&dir, &script, &env)));
        poll::until("it waits", || async { (here.client().waiting("deploy/prod").await == 1).then_some(()) }).await;
        proxy.reset();
        proxy.set(FAIR);
        let polls = "redlockd_http_requests_in_flight{kind=\"normal\"} 2";
        poll::until("it has its ticket, and polls", || async {
            let has_ticket = std::fs::metadata(dir.path().join("lock.json")).is_ok_and(|file| file.len() > 0);
            let metrics = here.client().get("/metrics").await.text;
            (has_ticket && metrics.contains(polls)).then_some(())
        })
        .await;
        assert_eq!(here.client().waiting("deploy/prod").await, 1, "its second request has found its ticket");
        here.service.kill();
        proxy.lead_to(there.service.address().port());
        there.client().release("deploy/prod", &held.token()).await.expect_status(204);
        assert_eq!(taking.await.expect("it ends"), Some(0));
        let shown = there.client().inspect("deploy/prod").await.json();
        assert_eq!(shown["holders"].as_array().map(Vec::len), Some(1), "{shown}");
        let written = [dir.path().join("lock.token"), variables].map(|path| std::fs::read_to_string(path).ok());
        let token = written.into_iter().flatten().next().expect("a token");
        let token = token.trim().trim_start_matches("LOCK_TOKEN=").to_owned();
        there.client().release("deploy/prod", &token).await.expect_status(204);
    }
}

/// The block of this language that begins with, or has, this text.
fn block(language: &str, with: &str) -> &'static str {
    let start = format!("```{language}\n");
    let blocks = DOCUMENT.split(&start).skip(1).filter_map(|rest| rest.split("```").next());
    let mut found = blocks.filter(|block| block.contains(with));
    found.next().unwrap_or_else(|| panic!("no block with {with}"))
}

fn executable(dir: &Path, name: &str, text: &str) {
    use std::os::unix::fs::PermissionsExt;
    std::fs::write(dir.join(name), text).expect("writable");
    std::fs::set_permissions(dir.join(name), PermissionsExt::from_mode(0o755)).expect("own file");
}

async fn until_free(client: &Client, name: &str) {
    poll::until("the lock is free", || async { (client.inspect(name).await.status == 404).then_some(()) }).await;
}

/// What a runner puts into the expressions of a text.
fn filled(text: &Value, values: &BTreeMap<String, String>) -> String {
    let text = values.iter().fold(text.as_str().expect("text").to_owned(), |text, (name, value)| {
        text.replace(&format!("${{{{ {name} }}}}"), value)
    });
    assert!(!text.contains("${{"), "an expression that is not filled in: {text}");
    text
}

/// The variables of a workflow, a step or the inputs of an action.
fn variables(of: &Value, values: &BTreeMap<String, String>) -> BTreeMap<String, String> {
    of.as_object().into_iter().flatten().map(|(name, value)| (name.clone(), filled(value, values))).collect()
}

/// A runner of GitHub Actions: the steps in their order, after one that failed only those with `always()`. Whether all succeeded.
async fn run_steps(
    dir: &TempDir,
    steps: &Value,
    env: &BTreeMap<String, String>,
    values: &BTreeMap<String, String>,
) -> bool {
    let (mut env, mut is_well) = (env.clone(), true);
    for step in steps.as_array().expect("a list") {
        let condition = step["if"].as_str().unwrap_or_default();
        let is_locked = !condition.contains("env.LOCK_TOKEN != ''") || env.contains_key("LOCK_TOKEN");
        if !(is_well || condition.contains("always()")) || !is_locked {
            continue;
        }
        let mut values = values.clone();
        values.extend(env.iter().map(|(name, value)| (format!("env.{name}"), value.clone())));
        let (mut of_step, mut run) = (variables(&step["env"], &values), step["run"].clone());
        if step["uses"] == "./examples/github-action" {
            let action = action();
            let defaults = action["inputs"].as_object().expect("inputs").iter();
            let defaults =
                defaults.map(|(name, input)| (name.clone(), input["default"].as_str().unwrap_or("").to_owned()));
            let inputs = defaults
                .chain(variables(&step["with"], &values))
                .map(|(name, value)| (format!("inputs.{name}"), value));
            of_step = variables(&action["runs"]["steps"][0]["env"], &inputs.collect());
            run = action["runs"]["steps"][0]["run"].clone();
        }
        if run.is_null() {
            continue;
        }
        let file = dir.path().join("env");
        let all = env.iter().chain(&of_step).map(|(name, value)| (name.as_str(), value.as_str()));
        let all: Vec<_> = all.chain([("GITHUB_ENV", file.to_str().expect("UTF-8"))]).collect();
        is_well &= code(shell(dir, &format!("set -e\n{}", filled(&run, &values)), &all)).await == Some(0);
        let written = std::fs::read_to_string(&file).unwrap_or_default();
        env.extend(
            written.lines().filter_map(|line| line.split_once('=')).map(|(name, value)| (name.into(), value.into())),
        );
    }
    is_well
}

/// How many of the steps succeeded, of which none is run after one that failed.
async fn run_until_one_fails(dir: &TempDir, steps: &[impl AsRef<str>], env: &[(&str, &str)]) -> usize {
    for (done, step) in steps.iter().enumerate() {
        if code(shell(dir, step.as_ref(), env)).await != Some(0) {
            return done;
        }
    }
    steps.len()
}

fn deployed(dir: &TempDir) -> usize {
    std::fs::read_to_string(dir.path().join("log")).map_or(0, |log| log.lines().count())
}

fn yaml(with: &str) -> Value {
    serde_yaml_ng::from_str(block("yaml", with)).expect("YAML")
}

fn texts<const N: usize>(pairs: [(&str, &str); N]) -> BTreeMap<String, String> {
    pairs.map(|(name, value)| (name.to_owned(), value.to_owned())).into()
}

#[tokio::test(flavor = "multi_thread")]
async fn github_with_a_waiting_runner_and_without_one() {
    let receiver = Receiver::start().await;
    let form = "form = \"github-dispatch\"\nheaders_file = \"headers\"";
    let file = HooksFile::with(&target("github", &receiver, form).replace("secret_files = [\"a.whsec\"]\n", ""));
    let access = Access::of(&[("ci", &["acquire:**", "read:**"])]);
    let service = access.service(&["--set", &file.setting()]).await;
    let (client, dir, key) = (service.client(), in_memory(), key("ci"));
    let free = async || as_principal(client.request("GET", &lock("deploy/prod")), "ci").await.status == 404;
    executable(dir.path(), "deploy.sh", "#!/bin/sh\necho deployed >>log\n");
    let mut values = texts([("vars.REDLOCKD_URL", client.base()), ("secrets.REDLOCKD_KEY", &key)]);
    let waits = yaml("# A runner that waits.");
    let env = variables(&waits["env"], &values);
    assert!(run_steps(&dir, &waits["jobs"]["deploy"]["steps"], &env, &values).await);
    assert!(deployed(&dir) == 1 && free().await);
    std::fs::remove_file(dir.path().join("env")).expect("the action has written it");

    let (ask, second) = (yaml("# The last step of the first workflow."), yaml("# The second workflow."));
    let run = texts([("GITHUB_RUN_ID", "17"), ("GITHUB_SHA", "5eC2e7")]);
    let held = client.request("POST", &lock("deploy/prod")).form(&[("keep", "1m")]);
    let held = as_principal(held, "ci").await.expect_status(201);
    let mut ask_briefly = ask.clone();
    ask_briefly[0]["run"] = ask[0]["run"].as_str().expect("a script").replace("wait=6h", "wait=1s").into();
    assert!(run_steps(&dir, &ask_briefly, &run, &values).await);
    let refused = receiver.until("a dispatch", |received| !received.body.is_empty()).await.json();
    let starts =
        |event: &Value| second["on"]["repository_dispatch"]["types"].as_array().expect("a list").contains(event);
    assert!(refused["event_type"] == "lock.refused" && !starts(&refused["event_type"]), "{refused}");
    assert!(run_steps(&dir, &ask, &run, &values).await);
    let release = client.request("DELETE", &lock("deploy/prod")).header("lock-token", held.token());
    as_principal(release, "ci").await.expect_status(204);
    let is_grant = |received: &Received| received.json()["event_type"] == "lock.granted";
    let granted = receiver.until("a grant", is_grant).await.json();
    assert!(starts(&granted["event_type"]), "{granted}");
    // The refused ticket's would have been the workflow without its condition; the grant's may be started twice.
    for (event, is_locked) in [(&refused, false), (&granted, true), (&granted, false)] {
        let data = &event["client_payload"]["data"];
        for name in ["ticket", "ticket_url"] {
            let value = data[name].as_str().expect("text").to_owned();
            values.insert(format!("github.event.client_payload.data.{name}"), value);
        }
        let sha = data["metadata"]["sha"].as_str().expect("text").to_owned();
        assert_eq!(
            second["jobs"]["deploy"]["steps"][0]["with"]["ref"],
            "${{ github.event.client_payload.data.metadata.sha }}"
        );
        assert_eq!(sha, "5eC2e7");
        filled(&second["concurrency"]["group"], &values);
        let env = variables(&second["env"], &values);
        assert_eq!(run_steps(&dir, &second["jobs"]["deploy"]["steps"], &env, &values).await, is_locked, "{event}");
        assert_eq!(deployed(&dir), if event == &refused { 1 } else { 2 }, "{event}");
    }
    assert!(free().await);
}

/// The scripts of a waiting runner are those of plain curl; here the pipeline is triggered, by a key and without a token.
#[tokio::test(flavor = "multi_thread")]
async fn gitlab_without_a_waiting_runner() {
    let receiver = Receiver::start().await;
    let form = "form = \"gitlab-trigger\"\ntoken_file = \"trigger.token\"\nref = \"main\"";
    let file = HooksFile::with("");
    file.write_other("trigger.token", "glptt-1\n");
    file.write(&target("gitlab", &receiver, form).replace("secret_files = [\"a.whsec\"]\n", ""));
    let access = Access::of(&[("ci", &["acquire:**", "read:**"])]);
    let service = access.service(&["--set", &file.setting()]).await;
    let (client, dir) = (service.client(), in_memory());
    let held = client.request("POST", &lock("deploy/prod")).form(&[("keep", "1m")]);
    let held = as_principal(held, "ci").await.expect_status(201);
    let ask = yaml("callback=target:gitlab")["ask"]["script"][0].as_str().expect("a line").to_owned();
    let key = key("ci");
    let env = [("L", client.base()), ("KEY", &key), ("CI_PIPELINE_ID", "17")];
    assert_eq!(code(shell(&dir, &ask, &env)).await, Some(0));
    let release = client.request("DELETE", &lock("deploy/prod")).header("lock-token", held.token());
    as_principal(release, "ci").await.expect_status(204);
    let triggered = receiver.until("a trigger", |received| !received.body.is_empty()).await;
    let form = format!("http://x/?{}", String::from_utf8_lossy(&triggered.body));
    let fields: BTreeMap<String, String> =
        reqwest::Url::parse(&form).expect("a form").query_pairs().into_owned().collect();
    assert_eq!((fields["token"].as_str(), fields["ref"].as_str()), ("glptt-1", "main"));
    let variables: Vec<(&str, &str)> = fields
        .iter()
        .filter_map(|(name, value)| Some((name.strip_prefix("variables[")?.strip_suffix(']')?, value.as_str())))
        .collect();
    let deploy = yaml("after_script")["deploy"].clone();
    assert_eq!(deploy["rules"][0]["if"], "$REDLOCKD_TYPE == \"lock.granted\"");
    assert!(variables.contains(&("REDLOCKD_TYPE", "lock.granted")), "{variables:?}");
    assert!(variables.contains(&("REDLOCKD_OWNER", "pipeline-17")), "{variables:?}");
    executable(dir.path(), "deploy.sh", "#!/bin/sh\necho deployed >>log\n");
    let lines = |member: &str| -> Vec<String> {
        let lines = deploy[member].as_array().expect("a list").iter();
        lines.map(|line| line.as_str().expect("a line").to_owned()).collect()
    };
    let (script, give) = (lines("script"), lines("after_script"));
    let env = [&env[..], &variables].concat();
    assert_eq!(run_until_one_fails(&dir, &script, &env).await, 2);
    assert_eq!(run_until_one_fails(&dir, &give, &env).await, 1);
    // Started once more for the same grant.
    assert_eq!((run_until_one_fails(&dir, &script, &env).await, deployed(&dir)), (0, 1));
    let free = async || as_principal(client.request("GET", &lock("deploy/prod")), "ci").await.status == 404;
    poll::until("the lock is free", || async { free().await.then_some(()) }).await;
}

/// The shell steps of the pipeline, in their order; the URL of the plugin is made up.
#[tokio::test(flavor = "multi_thread")]
async fn jenkins_without_a_waiting_executor() {
    let receiver = Receiver::start().await;
    let file = HooksFile::with(&(SEALING.to_owned() + &target("jenkins", &receiver, "")));
    let service = Service::embedded(&["--set", &file.setting()]).await;
    let (client, dir) = (service.client(), in_memory());
    let steps: Vec<&str> =
        block("groovy", "registerWebhook").split(" sh '").skip(1).filter_map(|rest| rest.split('\'').next()).collect();
    assert_eq!(steps.len(), 4, "{steps:?}");
    let held = client.acquired("deploy/prod", &[("keep", "1m")]).await;
    std::fs::write(dir.path().join("url"), format!("http://{}/in/SECRET-path/5eC2e7", receiver.address))
        .expect("written");
    executable(dir.path(), "deploy.sh", "#!/bin/sh\necho deployed >>log\n");
    let env = [("L", client.base()), ("BUILD_TAG", "jenkins-17")];
    assert_eq!(code(shell(&dir, steps[0], &env)).await, Some(0));
    client.release("deploy/prod", &held.token()).await.expect_status(204);
    let resumed = receiver.until_kind("lock.granted").await;
    assert_eq!(resumed.path, "/in/SECRET-path/5eC2e7");
    assert_eq!(owner(client, "deploy/prod").await, "jenkins-17");
    assert_eq!(run_until_one_fails(&dir, &steps[1..], &env).await, 3);
    assert_eq!(deployed(&dir), 1);
    until_free(client, "deploy/prod").await;
    // The wait is over without the lock: a message comes to the same URL, and the steps in the `try` end before the work.
    let held = client.acquired("deploy/prod", &[("keep", "1m")]).await;
    assert_eq!(code(shell(&dir, &steps[0].replace("wait=6h", "wait=1s"), &env)).await, Some(0));
    assert_eq!(receiver.until_kind("lock.refused").await.path, resumed.path);
    assert_eq!((run_until_one_fails(&dir, &steps[1..3], &env).await, deployed(&dir)), (0, 1));
    assert_eq!(code(shell(&dir, steps[3], &env)).await, Some(22), "and there is nothing to give back");
    client.release("deploy/prod", &held.token()).await.expect_status(204);
}

/// The HTTP templates, with the values that Argo would put into their expressions; it refuses to resume what does not wait yet.
#[tokio::test(flavor = "multi_thread")]
async fn argo_resumes_a_suspended_workflow_which_works_only_under_its_lock() {
    let receiver = Receiver::start().await;
    let origin = format!("http://{}", receiver.address);
    let here = |text: &str| text.replace("https://argo.example.com", &origin);
    let file = HooksFile::with("");
    file.write_other("argo.whsec", &format!("{SECRET}\n"));
    file.write_other("argo.header", "Authorization: Bearer SECRET-of-argo\n");
    file.write(&(SEALING.to_owned() + &here(block("toml", "name = \"argo\"")) + "private = true\n"));
    let service = Service::embedded(&["--set", &file.setting()]).await;
    let client = service.client();
    let held = client.acquired("deploy/prod", &[("keep", "1m")]).await;
    let templates = yaml("# Templates of the workflow.");
    let template = |name: &str| {
        let mut all = templates.as_array().expect("a list").iter();
        all.find(|one| one["name"] == name).unwrap_or_else(|| panic!("no template {name}"))["http"].clone()
    };
    // Executes one: its answer, and whether its condition is met.
    let execute = async |name: &str, ticket: &str, wait: &str| {
        let http = template(name);
        let url = http["url"].as_str().expect("text").replace("https://locks.example.com", "");
        let method = http["method"].as_str().expect("text");
        let mut request = client.request(method, &url.replace("{{inputs.parameters.ticket}}", ticket));
        for header in http["headers"].as_array().into_iter().flatten() {
            request = request.header(header["name"].as_str().expect("text"), header["value"].as_str().expect("text"));
        }
        if let Some(body) = http["body"].as_str() {
            let body = here(body).replace("{{workflow.namespace}}", "ci").replace("{{workflow.name}}", "deploy-17");
            request = request.body(body.replace("6h", wait));
        }
        let answer = send(request).await;
        let is_met = http["successCondition"] == format!("response.statusCode == {}", answer.status);
        (answer, is_met)
    };
    let ticket_of = |asked: &(Answer, bool)| {
        assert!(asked.1, "{}", asked.0.text);
        asked.0.json()["ticket"].as_str().expect("an id").to_owned()
    };
    let steps: Vec<&Value> = templates[0]["steps"].as_array().expect("a list").iter().map(|step| &step[0]).collect();
    let names: Vec<&Value> = steps.iter().map(|step| &step["name"]).collect();
    assert_eq!(names, ["ask", "wait", "keep", "deploy", "give"]);
    assert!(
        steps[2]["continueOn"].is_null() && !steps[3]["continueOn"].is_null(),
        "a failure of `keep` ends the workflow"
    );
    for step in [steps[2], steps[4]] {
        let given = &step["arguments"]["parameters"][0]["value"];
        assert_eq!(given, "{{=jsonpath(steps.ask.outputs.result, '$.ticket')}}");
    }
    let refused = ticket_of(&execute("ask", "", "1s").await);
    receiver.until_kind("lock.refused").await;
    assert!(!execute("keep", &refused, "").await.1, "it was resumed, and does not deploy");
    let before = receiver.received().len();
    receiver.answer([400, 200]);
    let ticket = ticket_of(&execute("ask", "", "6h").await);
    client.release("deploy/prod", &held.token()).await.expect_status(204);
    poll::until("it is resumed", || async { (receiver.received().len() == before + 2).then_some(()) }).await;
    for resumed in receiver.received() {
        let seen = (resumed.method.as_str(), resumed.path.as_str(), resumed.header("authorization"));
        assert_eq!(seen, ("PUT", "/api/v1/workflows/ci/deploy-17/resume", "Bearer SECRET-of-argo"));
    }
    for name in ["keep", "give"] {
        let (answer, is_met) = execute(name, &ticket, "").await;
        assert!(is_met, "{name}: {}", answer.text);
    }
    until_free(client, "deploy/prod").await;
}

/// Debian's `webhook` verifies the grant, runs the script of the document, and the script gives the lock back.
#[tokio::test(flavor = "multi_thread")]
async fn the_program_webhook_runs_a_script_on_a_grant() {
    if !Path::new("/usr/bin/webhook").exists() {
        return skipped("/usr/bin/webhook is missing: `make deps` installs it");
    }
    let (receiver, dir) = (Receiver::start().await, in_memory());
    let port = TcpListener::bind("127.0.0.1:0").and_then(|l| l.local_addr()).expect("a free port").port();
    let home = dir.path().to_str().expect("UTF-8");
    let hooks = block("json", "execute-command").replace("/opt/deploy", home).replace("whsec_…", SECRET);
    std::fs::write(dir.path().join("hooks.json"), hooks).expect("written");
    let script = DOCUMENT.split("```sh\n").find(|block| block.contains("# deploy-under-a-lock.sh")).expect("a script");
    executable(dir.path(), "deploy-under-a-lock.sh", script.split("```").next().expect("its end"));
    executable(dir.path(), "deploy.sh", "#!/bin/sh\ncurl -sf \"$L/locks/deploy/prod\" >held.json\n");
    let url = format!("http://127.0.0.1:{port}/hooks/deploy");
    let text = target("webhook", &receiver, "").replace(&format!("http://{}/in/SECRET-path/", receiver.address), &url);
    let file = HooksFile::with(&text);
    let service = Service::embedded(&["--set", &file.setting()]).await;
    let client = service.client();
    let mut started = Command::new("/usr/bin/webhook");
    started.args(["-hooks", "hooks.json", "-ip", "127.0.0.1", "-port", &port.to_string()]).current_dir(dir.path());
    started.env("L", client.base()).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).kill_on_drop(true);
    let _webhook = started.spawn().expect("it runs");
    let held = client.acquired("deploy/prod", &[("keep", "1m")]).await;
    let fields = [("callback", "target:webhook"), ("keep", "10m"), ("owner", "hook")];
    client.acquire("deploy/prod", &fields).await.expect_status(202);
    client.release("deploy/prod", &held.token()).await.expect_status(204);
    poll::until("the script has run", || async { dir.path().join("held.json").exists().then_some(()) }).await;
    until_free(client, "deploy/prod").await;
    let seen = std::fs::read_to_string(dir.path().join("held.json")).expect("written");
    let seen: Value = serde_json::from_str(&seen).expect("JSON");
    assert_eq!(seen["holders"][0]["owner"], json!("hook"), "it ran under the lock: {seen}");
}
