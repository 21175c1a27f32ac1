//! Hooks of a running service: events of locks, nodes and the quorum; the file that is read anew; rights; what is shown, and
//! what is shown nowhere.

use std::os::unix::fs::PermissionsExt;
use std::sync::Arc;

use redlockd::webhooks::signing::{SignedContent, SigningSecret};

use super::receiver::{HooksFile, NEW_SECRET, Received, Receiver, SECRET, hook, target};
use crate::access::{Access, as_principal, entry, key};
use crate::support::client::send;
use crate::support::clock_shim::ClockShim;
use crate::support::cluster::{Cluster, SILENT, heal};
use crate::support::daemon::{ended, redlockd};
use crate::support::poll;
use crate::support::service::{SHORT_MEMORY, SHORT_TIMES, Service, path};
use crate::support::temp_dir;

fn is_signed(message: &Received, secret: &str) -> bool {
    let timestamp_s = message.header("webhook-timestamp").parse().expect("seconds");
    let content = SignedContent { id: message.header("webhook-id"), timestamp_s, body: &message.body };
    let secret = SigningSecret::parse(secret).expect("a secret");
    content.verify(message.header("webhook-signature"), &[secret], timestamp_s).is_ok()
}

async fn started(file: &HooksFile) -> Service {
    Service::embedded(&["--set", &file.setting()]).await
}

#[tokio::test(flavor = "multi_thread")]
async fn what_happens_to_a_lock_is_reported_with_its_fence_and_signed() {
    let receiver = Receiver::start().await;
    let events = ["lock.acquired", "lock.released", "lock.forced"];
    let file = HooksFile::with(&(target("ops", &receiver, "") + &hook("deploys", &events, "names = \"deploy/**\"")));
    let service = started(&file).await;
    let client = service.client();
    client.acquired("other", &[]).await;
    let lease = client.acquired("deploy/prod", &[("owner", "ann"), ("ttl", "30s")]).await;
    client.release("deploy/prod", &lease.token()).await.expect_status(204);
    client.acquired("deploy/prod", &[]).await;
    let forced = client.request("DELETE", "/locks/deploy/prod?force=now&reason=test");
    send(forced).await.expect_status(204);
    // In any order.
    let all = || async { Some(receiver.received()).filter(|received| received.len() >= 4) };
    let received = poll::until("all messages", all).await;
    let mut kinds: Vec<_> = received.iter().map(Received::kind).collect();
    kinds.sort();
    assert_eq!(kinds, ["lock.acquired", "lock.acquired", "lock.forced", "lock.released"]);
    assert!(
        received.iter().all(|message| is_signed(message, SECRET)
            && message.path == "/in/SECRET-path/"
            && message.method == "POST")
    );
    let released = received.iter().find(|message| message.kind() == "lock.released").expect("there").json();
    assert_eq!(released["data"]["resource"], "deploy/prod");
    assert_eq!(released["data"]["owner"], "ann");
    let is_ours = |m: &&Received| m.kind() == "lock.acquired" && m.json()["data"]["owner"] == "ann";
    let acquired = received.iter().find(is_ours).expect("there").json();
    assert_eq!(acquired["data"]["fence"], lease.fence());
    let texts: Vec<_> = received.iter().map(|m| String::from_utf8_lossy(&m.body).into_owned()).collect();
    assert!(!texts.concat().contains(&lease.token()), "no message has a token");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_long_wait_is_reported_while_somebody_waits() {
    let receiver = Receiver::start().await;
    let file = HooksFile::with(
        &(target("ops", &receiver, "") + &hook("waits", &["lock.waiting_long"], "waiting_longer = \"500ms\"")),
    );
    let service = started(&file).await;
    let held = service.client().acquired("a", &[("ttl", "60s")]).await;
    let client = service.client().clone();
    let waiter =
        tokio::spawn(async move { client.acquire("a", &[("wait", "60s"), ("owner", "bob")]).await.expect_status(201) });
    let message = receiver.until_kind("lock.waiting_long").await.json();
    assert_eq!((&message["data"]["resource"], &message["data"]["owner"]), (&"a".into(), &"bob".into()));
    assert!(message["data"]["waiting_ms"].as_u64().is_some_and(|ms| ms >= 500), "{message}");
    service.client().release("a", &held.token()).await.expect_status(204);
    waiter.await.expect("it is granted");
}

#[tokio::test(flavor = "multi_thread")]
async fn nodes_and_the_quorum_are_reported_as_they_go_and_come() {
    let receiver = Receiver::start().await;
    let events = ["node.down", "node.votes", "node.quarantined", "quorum.lost", "quorum.back"];
    // A pattern of names does not concern what has no name.
    let file = HooksFile::with(&(target("ops", &receiver, "") + &hook("nodes", &events, "names = \"deploy/**\"")));
    let cluster = Cluster::start(3).await;
    let over = cluster.service_with(&["--set", &file.setting()]).await;
    over.proxies[0].set(SILENT);
    let down = receiver.until_kind("node.down").await.json();
    assert_eq!(down["data"]["node"], "n1");
    over.proxies[1].set(SILENT);
    let lost = receiver.until_kind("quorum.lost").await.json();
    assert!(lost["data"]["detail"].as_str().is_some_and(|detail| detail.contains("n1")), "{lost}");
    heal(&over.proxies[0]);
    heal(&over.proxies[1]);
    receiver.until_kind("quorum.back").await;
    receiver.until("n1 votes again", |m| m.kind() == "node.votes" && m.json()["data"]["node"] == "n1").await;
    // One that forgot has no vote until two others have filled it.
    over.proxies[1].set(SILENT);
    cluster.servers[2].ask::<String>(&["FLUSHALL"]).await;
    receiver.until("n3 has no vote", |m| m.kind() == "node.quarantined" && m.json()["data"]["node"] == "n3").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn each_end_of_a_lease_is_one_message_with_its_reason() {
    let receiver = Receiver::start().await;
    let events = ["lock.released", "lock.lost", "lock.forced", "lock.expired"];
    let file = HooksFile::with(&(target("ops", &receiver, "") + &hook("ends", &events, "")));
    let (cluster, setting) = (Cluster::start(3).await, file.setting());
    let over = cluster.service_with(&[&SHORT_MEMORY[..], &["--set", &setting]].concat()).await;
    let client = over.client();
    let lease = client.acquired("released", &[("keep", "1m")]).await;
    client.release("released", &lease.token()).await.expect_status(204);
    for (how, name, status) in [("now", "forced", 204), ("revoke", "revoked", 202)] {
        client.acquired(name, &[("keep", "1m")]).await;
        let path = format!("/locks/{name}?force={how}&reason=over");
        send(client.request("DELETE", &path)).await.expect_status(status);
    }
    client.acquired("lost", &[("keep", "1m")]).await;
    for server in &cluster.servers {
        server.ask::<()>(&["DEL", "lost"]).await;
    }
    client.acquired("kept-out", &[("keep", "3s")]).await;
    client.acquired("expired", &[("ttl", "1s")]).await;
    let all = || async { Some(receiver.received()).filter(|received| received.len() >= 6) };
    poll::until("an end of each", all).await;
    // What has run out is checked in the order of the deadlines: nothing is to come of the others then.
    client.acquired("marker", &[("ttl", "2s")]).await;
    receiver.until("the marker has expired", |m| m.json()["data"]["resource"] == "marker").await;
    let text = |value: &serde_json::Value| value.as_str().unwrap_or_default().to_owned();
    let end = |m: &Received| (m.kind(), text(&m.json()["data"]["resource"]), text(&m.json()["data"]["reason"]));
    let mut ends: Vec<_> = receiver.received().iter().map(end).collect();
    ends.sort();
    let expected = [
        ("lock.expired", "expired", ""),
        ("lock.expired", "marker", ""),
        ("lock.forced", "forced", "forced"),
        ("lock.forced", "revoked", "revoked"),
        ("lock.lost", "lost", "lost"),
        ("lock.released", "kept-out", "kept-out"),
        ("lock.released", "released", "released"),
    ];
    assert_eq!(ends, expected.map(|(kind, name, reason)| (kind.to_owned(), name.to_owned(), reason.to_owned())));
}

/// The receiver is down for a moment: nothing is lost, and the page says so meanwhile.
#[tokio::test(flavor = "multi_thread")]
async fn a_message_that_was_not_accepted_is_tried_again_by_a_replay_or_by_itself() {
    let receiver = Receiver::start().await;
    let file = HooksFile::with(&(target("ops", &receiver, "") + &hook("all", &["lock.acquired"], "")));
    let service = started(&file).await;
    receiver.answer([500]);
    service.client().acquired("a", &[]).await;
    let hook = |answer: serde_json::Value| answer["hooks"][0].clone();
    let failing = poll::until("the hook fails", || async {
        let hook = hook(service.client().get("/hooks").await.json());
        (hook["state"] == "failing").then_some(hook)
    });
    let failing = failing.await;
    assert_eq!((&failing["queued"], &failing["last"]["answer"]), (&1.into(), &"status 500".into()));
    assert!(failing["next_try_in_ms"].as_u64().is_some_and(|ms| ms <= 6_000), "{failing}");
    let page = service.client().get("/ui/hooks").await.expect_status(200).text;
    assert!(page.contains("failing") && page.contains("status 500") && page.contains("next try in"), "{page}");
    // Five seconds later, more or less.
    poll::until("it is on again", || async {
        (hook(service.client().get("/hooks").await.json())["accepted"] == 1).then_some(())
    })
    .await;
    let received = receiver.received();
    assert_eq!(received[0].header("webhook-id"), received[1].header("webhook-id"));
    // A receiver that is gone switches it off; a test and a replay switch it on.
    receiver.answer([410]);
    service.client().acquired("b", &[]).await;
    poll::until("it is off", || async {
        (hook(service.client().get("/hooks").await.json())["state"] == "off").then_some(())
    })
    .await;
    let banner = service.client().get("/ui/").await.text;
    assert!(banner.contains("switched off"), "{banner}");
    let metrics = service.client().get("/metrics").await.text;
    assert!(metrics.contains("redlockd_webhook_hooks_off 1\n"), "{metrics}");
    assert!(metrics.contains("redlockd_webhook_deliveries_total{kind=\"hook\",outcome=\"gone\"} 1\n"), "{metrics}");
    poll::until("the log has it", || async {
        service.output().iter().any(|line| line.contains("switched off")).then_some(())
    })
    .await;
    let replayed = send(service.client().request("POST", "/hooks/all/replay")).await.expect_status(200);
    assert_eq!(replayed.json()["queued"], 1);
    receiver.until("the message of b", |m| m.json()["data"]["resource"] == "b").await;
    poll::until("it is on again", || async {
        (hook(service.client().get("/hooks").await.json())["state"] == "on").then_some(())
    })
    .await;
}

/// The day passes as in a suspend of the machine, after which this process says that it stood still.
#[tokio::test(flavor = "multi_thread")]
async fn a_hook_of_which_nobody_accepted_anything_for_a_day_is_off_in_log_metrics_and_on_every_page() {
    const DAY_MS: i64 = 24 * 3_600_000;
    let receiver = Receiver::start().await;
    let file = HooksFile::with(&(target("ops", &receiver, "") + &hook("all", &["lock.acquired"], "")));
    let clock = ClockShim::of_suspend();
    let env = clock.env();
    let env: Vec<(&str, &str)> = env.iter().map(|(name, value)| (*name, path(value))).collect();
    let setting = file.setting();
    let args = [&SHORT_TIMES[..], &["--set", &setting]].concat();
    let service = Service::start_with_env(&env, "127.0.0.1:0", Arc::new(temp_dir::in_memory()), &args).await;
    let client = service.client();
    let hook = async || client.get("/hooks").await.json()["hooks"][0].clone();
    receiver.answer([500; 100]);
    for name in ["a", "b", "c"] {
        client.acquired(name, &[]).await;
    }
    poll::until("each was tried", || async { (receiver.answered() >= 3).then_some(()) }).await;
    let failing = hook().await;
    assert_eq!((&failing["state"], &failing["queued"], &failing["dropped"]), (&"failing".into(), &3.into(), &0.into()));
    let is_off = |line: &String| line.contains("ERROR") && line.contains("no message was accepted for 24 h");
    let page = client.get("/ui/").await.text;
    assert!(!service.output().iter().any(is_off) && !page.contains("switched off") && !page.contains("stood still"));
    clock.step(DAY_MS);
    let off = poll::until("it is off", || async { Some(hook().await).filter(|hook| hook["state"] == "off") }).await;
    // What was tried last is kept for a replay; the two others are dropped, and kept as well.
    assert_eq!((&off["dropped"], &off["replayable"], &off["queued"]), (&2.into(), &3.into(), &0.into()));
    assert_eq!(off["why"], "no message was accepted for 24 h");
    poll::until_true("the log has it as an error", || service.output().iter().any(is_off)).await;
    let metrics = client.get("/metrics").await.text;
    for line in ["redlockd_webhook_hooks_off 1\n", "redlockd_webhook_dropped_total 2\n"] {
        assert!(metrics.contains(line), "{line}{metrics}");
    }
    let page = client.get("/ui/hooks").await.text;
    for part in [
        "A hook is switched off:</strong> nobody gets",
        "no message was accepted for 24 h, since 20",
        "<td data-label=\"Dropped, given up\" class=\"num\">2, 0</td>",
        "Replay 3<",
    ] {
        assert!(page.contains(part), "{part}: {page}");
    }
    let page = poll::until("the home page names the standstill", || async {
        Some(client.get("/ui/").await.text).filter(|page| page.contains("this instance stood still"))
    });
    let page = page.await;
    assert!(page.contains("for 1 d 0 h, to ") && page.contains("A hook is switched off:"), "{page}");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_file_is_read_anew_with_its_secrets_and_a_bad_one_changes_nothing() {
    let receiver = Receiver::start().await;
    let text = target("ops", &receiver, "") + &hook("all", &["lock.acquired"], "");
    let file = HooksFile::with(&text);
    let service = started(&file).await;
    let is_good = async |good: u8| {
        let line = format!("redlockd_config_last_reload_successful{{kind=\"webhooks_file\"}} {good}\n");
        poll::until(&line, || async { service.client().get("/metrics").await.text.contains(&line).then_some(()) })
            .await;
    };
    is_good(1).await;
    // A secret alone was changed.
    file.write_other("a.whsec", &format!("{NEW_SECRET}\n"));
    poll::until_true("the log says so", || service.output().iter().any(|line| line.contains("was read again"))).await;
    service.client().acquired("a", &[]).await;
    let message = receiver.until_kind("lock.acquired").await;
    assert!(is_signed(&message, NEW_SECRET) && !is_signed(&message, SECRET));
    file.write(&text.replace("a.whsec", "missing.whsec"));
    is_good(0).await;
    assert_eq!(service.client().get("/hooks").await.json()["hooks"][0]["name"], "all");
    // The missing file is all that was wrong.
    file.write_other("missing.whsec", &format!("{SECRET}\n"));
    is_good(1).await;
    file.write(&text.replace("name = \"all\"", "name = \"other\""));
    poll::until("the new hook is in force", || async {
        (service.client().get("/hooks").await.json()["hooks"][0]["name"] == "other").then_some(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn hooks_are_for_administrators_and_the_command_line_shows_them() {
    let receiver = Receiver::start().await;
    let file = HooksFile::with(&(target("ops", &receiver, "principals = [\"ci\"]") + &hook("all", &["lock.lost"], "")));
    let rights: [(&str, &[&str]); 2] = [("ci", &["acquire:**", "metrics", "events:**"]), ("root", &["admin"])];
    let access = Access::of(&rights);
    let service = access.service(&["--set", &file.setting()]).await;
    let request = |method: &str, path: &str| service.client().request(method, path);
    for (method, path) in [("GET", "/hooks"), ("POST", "/hooks/all/test"), ("POST", "/hooks/all/replay")] {
        as_principal(request(method, path), "ci").await.expect_problem(403, "forbidden");
        as_principal(request(method, path), "root").await.expect_status(200);
        send(request(method, path)).await.expect_problem(401, "unauthenticated");
    }
    as_principal(request("POST", "/hooks/none/test"), "root").await.expect_problem(404, "not-found");
    as_principal(request("POST", "/hooks/all/test?name=x"), "root").await.expect_problem(400, "invalid");
    let key_file = file.0.path().join("key");
    std::fs::write(&key_file, key("root")).expect("writable");
    std::fs::set_permissions(&key_file, std::fs::Permissions::from_mode(0o600)).expect("own file");
    let (url, key_file) = (service.client().base().to_owned(), key_file.display().to_string());
    let hook = |args: &[&str]| {
        let service = ["--url", url.as_str(), "--key-file", key_file.as_str()];
        ended(&mut redlockd(&[&["hook"], args, &service[..]].concat()))
    };
    let listed = tokio::task::block_in_place(|| hook(&["list"]));
    assert_eq!((listed.code, listed.err.as_str()), (Some(0), ""));
    assert!(listed.out.starts_with(&format!("target\tops\thttp://{}\t", receiver.address)), "{}", listed.out);
    let tested = tokio::task::block_in_place(|| hook(&["test", "target:ops"]));
    assert!(tested.code == Some(0) && tested.out.starts_with("accepted: status 204 after "), "{tested:?}");
    receiver.answer([503]);
    let refused = tokio::task::block_in_place(|| hook(&["test", "all"]));
    assert!(refused.code == Some(1) && refused.out.starts_with("not accepted: status 503"), "{refused:?}");
    let unknown = tokio::task::block_in_place(|| hook(&["test", "none"]));
    assert!(unknown.code != Some(0) && unknown.err.contains("no hook has this name"), "{unknown:?}");
    let replayed = tokio::task::block_in_place(|| hook(&["replay", "all", "--json"]));
    assert_eq!((replayed.code, replayed.out.trim()), (Some(0), "{\"queued\":0}"));
}

/// Secrets, the headers' values and the path of a URL are in the request to the receiver and nowhere else.
#[tokio::test(flavor = "multi_thread")]
async fn no_secret_is_shown_anywhere() {
    let receiver = Receiver::start().await;
    let file = HooksFile::with(
        &(target("ops", &receiver, "headers_file = \"headers\"")
            + &hook("all", &["lock.acquired", "lock.released"], "")),
    );
    let audit = file.0.path().join("audit.log");
    let access = Access::with(&entry("root", &[&key("root")], &["admin"], ""));
    let audit_setting = format!("audit_log={}", audit.display());
    let settings = ["--set", &file.setting(), "--set", &audit_setting, "--log-level", "trace"];
    let service = access.service(&settings).await;
    let request = |method: &str, path: &str| as_principal(service.client().request(method, path), "root");
    receiver.answer([500, 404, 302]);
    request("POST", "/locks/a").await.expect_status(201);
    request("POST", "/hooks/all/test").await.expect_status(200);
    // One that nobody answers, and one with a mistake beside a secret.
    file.write(&(std::fs::read_to_string(file.path()).expect("readable") + "[[target]]\nname = \"x\"\nSECRET = 1\n"));
    poll::until_true("it is refused", || service.output().iter().any(|line| line.contains("is not used"))).await;
    let message = receiver.until_kind("lock.acquired").await;
    assert_eq!(message.header("authorization"), "Bearer SECRET-of-headers");
    let mut shown = vec![service.output().join("\n")];
    for path in ["/hooks", "/ui/hooks", "/metrics", "/ui/", "/ui/events", "/events?since=1h"] {
        shown.push(request("GET", path).await.expect_status(200).text);
    }
    poll::until("the audit log has the test", || {
        let text = std::fs::read_to_string(&audit).unwrap_or_default();
        async move { text.contains("test-hook").then_some(()) }
    })
    .await;
    shown.push(std::fs::read_to_string(&audit).expect("readable"));
    for secret in ["SECRET", "MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"] {
        for text in &shown {
            let line = text.lines().find(|line| line.contains(secret));
            assert_eq!(line, None, "{secret} is shown");
        }
    }
}

/// What happens just before a stop is still sent.
#[tokio::test(flavor = "multi_thread")]
async fn a_stop_sends_what_was_not_tried() {
    let receiver = Receiver::start().await;
    let file = HooksFile::with(&(target("ops", &receiver, "") + &hook("all", &["lock.acquired"], "")));
    let mut service = started(&file).await;
    for number in 0..20 {
        service.client().acquired(&format!("a{number}"), &[]).await;
    }
    service.terminate();
    assert_eq!(service.exit_code().await, Some(0));
    assert_eq!(receiver.received().len(), 20);
}

/// A wrong file is an error of the configuration, at the start and in `config check`.
#[tokio::test]
async fn a_wrong_file_is_reported_at_the_start() {
    let file = HooksFile::with("[[target]]\nname = \"t\"\nurl = \"ftp://example.com/\"\n");
    for command in [&["config", "check"][..], &["serve", "--listen", "127.0.0.1:0"]] {
        let setting = file.setting();
        let done = ended(&mut redlockd(&[command, &["--set", setting.as_str()]].concat()));
        assert_eq!(done.code, Some(78), "{done:?}");
        assert!(done.err.contains("must begin with https:// or http://"), "{done:?}");
    }
}
