//! What another user of the host can do to the service by its data directory: the findings U3 and U4 of docs/threat-model.md.

use std::os::unix::fs::{PermissionsExt, symlink};
use std::process::Command;
use std::sync::Arc;

use crate::support::daemon::ended;
use crate::support::poll;
use crate::support::service::{Service, path};
use crate::support::temp_dir;

/// Lines of the log with this text.
fn logged(service: &Service, text: &str) -> Vec<String> {
    service.output().into_iter().filter(|line| line.contains(text)).collect()
}

/// What stands where the node writes its next state, as a full file system would: root may write everywhere else.
fn in_the_way(service: &Service) -> std::path::PathBuf {
    service.data().path().join("node-embedded-1.tmp")
}

#[tokio::test(flavor = "multi_thread")]
async fn u3_a_directory_that_everybody_may_write_to_is_warned_of_and_no_link_in_it_is_followed() {
    let data = Arc::new(temp_dir::in_memory());
    std::fs::set_permissions(data.path(), std::fs::Permissions::from_mode(0o777)).expect("own directory");
    let service = Service::start_in::<&str>(Arc::clone(&data), &[]).await;
    let warned = logged(&service, "another user of this machine can replace or read what `data_dir` names");
    assert_eq!(warned.len(), 1, "{:#?}", service.output());
    assert!(warned[0].contains(path(data.path())) && warned[0].contains("all users may write there"), "{warned:?}");

    let neighbours = temp_dir::in_memory();
    let (dir, target) = (neighbours.path().join("data"), neighbours.path().join("target"));
    std::fs::create_dir(&dir).expect("made");
    std::fs::write(&target, "as before").expect("written");
    symlink(&target, dir.join("node-embedded-1.tmp")).expect("a link");
    // Bounded, since it serves if it follows the link.
    let mut serve = Command::new("timeout");
    serve.args(["10", env!("CARGO_BIN_EXE_redlockd"), "serve", "--listen", "127.0.0.1:0", "--data-dir", path(&dir)]);
    let failed = tokio::task::spawn_blocking(move || ended(&mut serve)).await.expect("no panic");
    assert!(failed.err.contains("node-embedded-1.state cannot be written"), "{failed:?}");
    assert_eq!(std::fs::read(&target).expect("readable"), b"as before");
}

#[tokio::test(flavor = "multi_thread")]
async fn u4_a_node_that_cannot_write_says_why_in_log_health_and_nodes_and_recovers_by_itself() {
    let service = Service::embedded(&[]).await;
    let client = service.client();
    let obstacle = in_the_way(&service);
    std::fs::create_dir(&obstacle).expect("made");
    let refused = client.acquire("a", &[("ttl", "4m")]).await.expect_problem(503, "quorum-unavailable");
    assert!(refused.text.contains("its memory or its disk is full"), "{refused:?}");

    let ready = || async { Some(client.get("/health/ready").await).filter(|answer| answer.status == 503) };
    let not_ready = poll::until("it is not ready", ready).await;
    let detail = not_ready.json()["detail"].as_str().unwrap_or_default().to_owned();
    let sentence = "what it has to store: its memory or its disk is full";
    assert!(detail.contains("Node embedded-1 has refused since") && detail.contains(sentence), "{detail}");
    let node = client.get("/nodes").await.json()["nodes"][0].clone();
    assert_eq!((&node["votes"], &node["findings"][0]["code"]), (&false.into(), &"cannot-save".into()), "{node}");
    assert!(node["findings"][0]["detail"].as_str().is_some_and(|detail| detail.contains("Is a directory")), "{node}");
    let failures = logged(&service, "the state file cannot be written");
    assert!(failures[0].contains("node-embedded-1.state") && failures[0].contains("Is a directory"), "{failures:?}");
    assert_eq!(failures.len(), 1, "one line a minute: {failures:?}");

    // Nothing but probes asks the node: a balancer sends nobody to an instance that is not ready.
    std::fs::remove_dir(&obstacle).expect("removed");
    poll::until("it is ready again", || async {
        Some(client.get("/health/ready").await).filter(|answer| answer.status == 200)
    })
    .await;
    assert_eq!(logged(&service, "the state file was written again").len(), 1, "{:#?}", service.output());
    client.acquire("a", &[("ttl", "4m")]).await.expect_status(201);
}
