//! The steps of `docs/workflows.md` and of the action under `examples/`, run against the service.

use std::collections::BTreeMap;
use std::net::TcpListener;
use std::path::Path;
use std::process::Stdio;

use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::process::Command;

use crate::access::{Access, as_principal, key};
use crate::hooks::receiver::{HooksFile, Receiver, SEALING, SECRET, target};
use crate::support::client::{Client, lock, send};
use crate::support::poll;
use crate::support::programs::skipped;
use crate::support::service::Service;
use crate::support::temp_dir::in_memory;

const DOCUMENT: &str = include_str!("../../docs/workflows.md");
const ACTION: &str = include_str!("../../examples/github-action/action.yml");

/// The script of the document that begins with this comment.
fn script(name: &str) -> &'static str {
    let blocks = DOCUMENT.split("```sh\n").skip(1).filter_map(|rest| rest.split("```").next());
    let mut named = blocks.filter(|block| block.starts_with(&format!("# {name}")));
    named.next().unwrap_or_else(|| panic!("no script {name}"))
}

/// The only step of the action.
fn step() -> String {
    let action: serde_yaml_ng::Value = serde_yaml_ng::from_str(ACTION).expect("YAML");
    action["runs"]["steps"][0]["run"].as_str().expect("a script").to_owned()
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
    let yaml = |with| serde_yaml_ng::from_str::<serde_yaml_ng::Value>(block("yaml", with)).expect("YAML");
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
    let give = deploy["after_script"][0].as_str().expect("a line");
    assert_eq!(code(shell(&dir, give, &[&env[..], &variables].concat())).await, Some(0));
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
    assert_eq!(steps.len(), 3, "{steps:?}");
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
    for step in &steps[1..] {
        assert_eq!(code(shell(&dir, step, &env)).await, Some(0), "{step}");
    }
    assert_eq!(std::fs::read_to_string(dir.path().join("log")).expect("written"), "deployed\n");
    until_free(client, "deploy/prod").await;
}

/// The HTTP templates, with the values that Argo would put into their expressions; it refuses to resume what does not wait yet.
#[tokio::test(flavor = "multi_thread")]
async fn argo_resumes_a_suspended_workflow() {
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
    let templates: Value = serde_yaml_ng::from_str(block("yaml", "# Templates of the workflow.")).expect("YAML");
    let template = |name: &str| {
        let mut all = templates.as_array().expect("a list").iter();
        all.find(|one| one["name"] == name).unwrap_or_else(|| panic!("no template {name}"))["http"].clone()
    };
    let path = |http: &Value| http["url"].as_str().expect("text").replace("https://locks.example.com", "");
    receiver.answer([400, 200]);
    let ask = template("ask");
    let body = here(ask["body"].as_str().expect("text"))
        .replace("{{workflow.namespace}}", "ci")
        .replace("{{workflow.name}}", "deploy-17");
    let header = &ask["headers"][0];
    let asking = client
        .request(ask["method"].as_str().expect("text"), &path(&ask))
        .header(header["name"].as_str().expect("text"), header["value"].as_str().expect("text"));
    let asked = send(asking.body(body)).await;
    assert_eq!(ask["successCondition"], format!("response.statusCode == {}", asked.status), "{}", asked.text);
    client.release("deploy/prod", &held.token()).await.expect_status(204);
    poll::until("it is resumed", || async { (receiver.received().len() == 2).then_some(()) }).await;
    for resumed in receiver.received() {
        let seen = (resumed.method.as_str(), resumed.path.as_str(), resumed.header("authorization"));
        assert_eq!(seen, ("PUT", "/api/v1/workflows/ci/deploy-17/resume", "Bearer SECRET-of-argo"));
    }
    let given = &templates[0]["steps"][3][0]["arguments"]["parameters"][0]["value"];
    assert_eq!(given, "{{=jsonpath(steps.ask.outputs.result, '$.ticket')}}");
    let ticket = asked.json()["ticket"].as_str().expect("an id").to_owned();
    let give = template("give");
    let path = path(&give).replace("{{inputs.parameters.ticket}}", &ticket);
    let gave = send(client.request(give["method"].as_str().expect("text"), &path)).await;
    assert_eq!(give["successCondition"], format!("response.statusCode == {}", gave.status), "{}", gave.text);
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
