//! B7: the commands on a lock's page do what they say when they are pasted into a shell, with an access file and without.

use std::path::Path;

use super::{Access, as_principal, key};
use crate::support::client::send;
use crate::support::daemon::{Ended, ended};
use crate::support::service::Service;

/// The command with this label on the page.
fn command(page: &str, label: &str) -> String {
    let (_, rest) = page.split_once(&format!("aria-label=\"Command: {label}\"><code>")).expect(label);
    let text = rest.split_once("</code>").expect("its end").0.replace("&#34;", "\"").replace("&#39;", "'");
    assert!(!text.contains("&#"), "as a person copies it: {text}");
    text
}

/// Runs it as a person with the key in `$KEY` and in the file of the client.
async fn shell(script: String, key_file: &Path) -> Ended {
    let binary = Path::new(env!("CARGO_BIN_EXE_redlockd")).parent().expect("a directory");
    let path = format!("{}:{}", binary.display(), std::env::var("PATH").unwrap_or_default());
    let key_file = key_file.to_owned();
    let run = move || {
        let mut bash = std::process::Command::new("bash");
        let environment = [("PATH", path.as_str()), ("KEY", &key("ann")), ("USER", "ann"), ("HOSTNAME", "desk")];
        bash.args(["-c", &script]).env_clear().envs(environment).env("REDLOCKD_KEY_FILE", key_file);
        ended(
            bash.stdin(std::process::Stdio::null())
                .stdout(std::process::Stdio::piped())
                .stderr(std::process::Stdio::piped()),
        )
    };
    tokio::task::spawn_blocking(run).await.expect("no panic")
}

async fn every_command_works(service: &Service, is_keyed: bool, key_file: &Path) {
    let page = async || {
        let request = service.client().request("GET", "/ui/locks/deploy/prod");
        let page = if is_keyed { as_principal(request, "ann").await } else { send(request).await };
        page.expect_status(200).text
    };
    let free = page().await;
    let run = shell(command(&free, "run").replace("COMMAND", "echo done"), key_file).await;
    assert_eq!((run.code, run.out.as_str()), (Some(0), "done\n"), "{run:?}");
    let acquire = command(&free, "acquire");
    let [inspect, renew, release] = ["inspect", "renew", "release"].map(|label| command(&free, label));
    let held = shell(format!("set -e; {acquire}; {inspect}; echo; {renew}; echo \"$T\""), key_file).await;
    assert_eq!(held.code, Some(0), "{held:?}");
    assert!(held.out.contains("\"state\":\"held\"") && held.out.contains("ann@desk"), "{held:?}");
    assert!(held.out.contains("\"renewals\":1"), "renewed: {held:?}");
    let revoked = shell(command(&page().await, "revoke"), key_file).await;
    assert!(revoked.code == Some(0) && revoked.out.starts_with("HTTP/1.1 20"), "{revoked:?}");
    let token = held.out.lines().last().expect("the token").to_owned();
    let refused = shell(format!("T={token}; {renew}"), key_file).await;
    assert_ne!(refused.code, Some(0), "it cannot be renewed any more: {refused:?}");
    let released = shell(format!("T={token}; {release}; {inspect}"), key_file).await;
    assert!(released.out.contains("not-held"), "{released:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_commands_of_a_locks_page_work_with_a_key_and_without() {
    let access = Access::of(&[("ann", &["acquire:deploy/*", "force:deploy/*"])]);
    let (keyed, open) = (access.service(&[]).await, Service::embedded(&[]).await);
    let file = tempfile::NamedTempFile::new().expect("a file");
    std::fs::write(file.path(), key("ann")).expect("writable");
    every_command_works(&keyed, true, file.path()).await;
    every_command_works(&open, false, file.path()).await;
}
