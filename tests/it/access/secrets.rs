//! A whole run with secrets that the test knows, and then a search for them in everything that the
//! run wrote: the log at its finest, the audit log, answers, pages, metrics, events, settings, state files.

use std::path::Path;

use super::login::Browser;
use super::{Access, acquired, as_principal, entry, key, pages};
use crate::support::client::send;
use crate::support::daemon::{ended, redlockd};
use crate::support::poll;
use crate::support::redis_server::{Options, RedisServer};
use crate::support::service::{SHORT_TIMES, Service, path};

const REDIS_PASSWORD: &str = "redis-passw0rd-hunter2";
const OWN_TOKEN: &str = "own-token-hunter2-0123456789";
const WRONG_KEY: &str = "rlk_wrong-key-hunter2";
const FORM_KEY: &str = "rlk_form-key-hunter2";
const BASIC_KEY: &str = "basic-key-hunter2";

fn read_below(dir: &Path, into: &mut Vec<(String, Vec<u8>)>) {
    for entry in std::fs::read_dir(dir).expect("readable") {
        let path = entry.expect("readable").path();
        if path.is_dir() {
            read_below(&path, into);
        } else if let Ok(bytes) = std::fs::read(&path) {
            into.push((path.display().to_string(), bytes));
        }
    }
}

#[tokio::test]
async fn nothing_that_is_written_has_a_secret_in_it() {
    let redis = RedisServer::start_with(Options { password: Some(REDIS_PASSWORD), ..Options::default() }).await;
    let text = entry("ci", &[&key("ci"), BASIC_KEY], &["admin"], "requests_per_second = 1000")
        + &entry("eve", &[&key("eve")], &[], "");
    let access = Access::with(&text);
    let (node, setting) = (format!("n1={}", redis.url()), access.setting());
    let args = ["--node", node.as_str(), "--set", setting.as_str()];
    let mut outputs: Vec<(String, Vec<u8>)> = Vec::new();
    let init = ended(&mut redlockd(&[&["init"][..], &args, &SHORT_TIMES].concat()));
    assert_eq!(init.code, Some(0), "{init:?}");
    outputs.push(("init".into(), format!("{init:?}").into_bytes()));
    for command in [&["config", "show"][..], &["config", "check"], &["doctor"]] {
        let done = ended(&mut redlockd(&[command, &args, &SHORT_TIMES].concat()));
        outputs.push((command.join(" "), format!("{done:?}").into_bytes()));
    }
    // The finest log of our own; what the libraries below say is not ours to promise, but what they
    // say by default and one level finer is.
    let logs = tempfile::tempdir().expect("a directory");
    let audit = format!("audit_log={}", path(&logs.path().join("audit")));
    let loud = ["--log-level", "trace", "--log-format", "json", "--set", &audit];
    let service = Service::start(&[&args[..], &loud, &SHORT_TIMES].concat()).await;
    poll::until("it is ready", || async { (service.client().get("/health/ready").await.status == 200).then_some(()) })
        .await;
    let client = service.client();
    let mut tokens = vec![OWN_TOKEN.to_owned()];
    let mut answers = Vec::new();
    let mut events =
        client.request("GET", "/events?renewals=true").bearer_auth(key("ci")).send().await.expect("a stream");
    // Grants, a replay, extends, refusals, mistakes with secrets in the wrong place, ends of each kind.
    tokens.push(acquired(&service, "ci", "a").await);
    let own = || client.request("POST", "/locks/own").form(&[("token", OWN_TOKEN), ("owner", "me")]);
    as_principal(own(), "ci").await.expect_status(201);
    as_principal(own(), "ci").await.expect_status(200);
    let with = |method: &str, path: &str, token: &str| client.request(method, path).header("Lock-Token", token);
    answers.push(as_principal(with("PATCH", "/locks/a", &tokens[1]).form(&[("note", "n")]), "ci").await);
    answers.push(as_principal(client.request("POST", "/locks/a"), "ci").await.expect_status(423));
    answers.push(as_principal(with("PATCH", "/locks/a", OWN_TOKEN), "ci").await.expect_status(409));
    answers.push(
        as_principal(client.request("POST", &format!("/locks/x?token={OWN_TOKEN}")), "ci").await.expect_status(400),
    );
    answers.push(as_principal(with("PATCH", "/locks/a", &format!("{OWN_TOKEN}!")), "ci").await.expect_status(400));
    let body = format!("{{\"token\":\"{OWN_TOKEN}\",\"ttl\":");
    let broken = client.request("POST", "/locks/x").header("Content-Type", "application/json").body(body);
    answers.push(as_principal(broken, "ci").await.expect_status(400));
    let body = format!("{{\"{OWN_TOKEN}\":\"x\",\"token\":\"{OWN_TOKEN} \"}}");
    let odd = client.request("POST", "/locks/x").header("Content-Type", "application/json").body(body);
    let odd = as_principal(odd, "ci").await.expect_status(400);
    // Whoever makes a token the name of a field gets it back in the answer, and nobody else does.
    assert!(odd.text.contains("unknown"), "{odd:?}");
    answers.push(send(client.request("GET", "/locks/a").bearer_auth(WRONG_KEY)).await.expect_status(401));
    answers.push(send(client.request("GET", "/locks/a").basic_auth("u", Some(WRONG_KEY))).await.expect_status(401));
    answers.push(send(client.request("GET", "/locks/a").basic_auth("u", Some(BASIC_KEY))).await.expect_status(200));
    answers.push(as_principal(client.request("GET", "/locks/a"), "eve").await.expect_status(403));
    for path in ["/locks/a", "/locks", "/nodes", "/metrics", "/health/ready", "/openapi.yaml", "/problems/locked"] {
        answers.push(as_principal(client.request("GET", path), "ci").await.expect_status(200));
    }
    // The pages, with what a browser brings, while locks are held; and a log-in with a key that does not do.
    let mut browser = Browser::new(&service);
    let failed = browser.post("/ui/login", &[("key", FORM_KEY)]).await;
    assert_eq!((failed.status, browser.log_in("ci").await.status), (403, 303));
    outputs.push(("a failed log-in".into(), failed.text.into_bytes()));
    for path in pages().into_iter().chain(["/ui/locks/a", "/ui/locks/own", "/ui/revoke/a"].map(str::to_owned)) {
        outputs.push((path.clone(), browser.get(&path).await.text.into_bytes()));
    }
    let fields = [("reason", "stuck"), ("name", "own"), ("fence", "0"), ("token", OWN_TOKEN)];
    outputs.push(("a form".into(), browser.post("/ui/release/own", &fields).await.text.into_bytes()));
    let hold = as_principal(client.request("POST", "/locks/held?hold=true&ttl=1s"), "ci");
    let hold = tokio::spawn(hold);
    poll::until("it is held", || async {
        let seen = as_principal(client.request("GET", "/locks/held"), "ci").await;
        (seen.status == 200).then_some(())
    })
    .await;
    answers
        .push(as_principal(client.request("DELETE", "/locks/held?force=now&reason=r"), "ci").await.expect_status(204));
    hold.abort();
    answers.push(as_principal(with("DELETE", "/locks/a", &tokens[1]), "ci").await.expect_status(204));
    answers.push(as_principal(with("DELETE", "/locks/a", &tokens[1]), "ci").await.expect_status(410));
    // A node that goes and comes again, so that its troubles are logged too.
    redis.freeze();
    answers.push(as_principal(client.request("POST", "/locks/b"), "ci").await.expect_status(503));
    redis.thaw();
    access.write(&(text + "\n"));
    poll::until_true("the file was read again", || {
        service.output().iter().any(|line| line.contains("was read again and is in force"))
    })
    .await;
    let mut heard = String::new();
    while !heard.contains("event: released") {
        let chunk = events.chunk().await.expect("connected").expect("more");
        heard.push_str(&String::from_utf8_lossy(&chunk));
    }
    service.terminate();
    outputs.push(("log".into(), service.output().join("\n").into_bytes()));
    outputs.push(("events".into(), heard.into_bytes()));
    // A token is answered once, to whoever acquires: that answer is not among these.
    outputs
        .extend(answers.iter().map(|a| ("an answer".to_owned(), format!("{:?} {}", a.headers, a.text).into_bytes())));
    read_below(service.data().path(), &mut outputs);
    read_below(logs.path(), &mut outputs);
    for written in ["acquire", "unauthenticated", "forbidden", "POST /ui/login"] {
        let (_, bytes) = outputs.last().expect("the audit log");
        assert!(String::from_utf8_lossy(bytes).contains(written), "{written} is not in the audit log");
    }
    // What the nodes keep: whoever can read them cannot release.
    let keys: Vec<String> = redis.ask(&["KEYS", "*"]).await;
    for name in keys {
        let dump: Result<Vec<u8>, _> = redis.try_ask(&["GET", &name]).await;
        outputs.push((format!("redis {name}"), dump.unwrap_or_default()));
    }
    let secrets = [key("ci"), key("eve"), REDIS_PASSWORD.into(), WRONG_KEY.into(), BASIC_KEY.into(), FORM_KEY.into()];
    tokens.push(browser.session().to_owned());
    let mut searched = 0;
    for (place, bytes) in &outputs {
        let text = String::from_utf8_lossy(bytes);
        for secret in secrets.iter().chain(&tokens) {
            assert!(!text.contains(secret.as_str()), "{secret} is in {place}: {text}");
        }
        searched += bytes.len();
    }
    assert!(searched > 100_000, "only {searched} bytes were searched");
}
