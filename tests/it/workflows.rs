//! The steps of `docs/workflows.md` and of the action under `examples/`, run against the service.

use std::process::Stdio;

use tempfile::TempDir;
use tokio::process::Command;

use crate::support::client::Client;
use crate::support::poll;
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
