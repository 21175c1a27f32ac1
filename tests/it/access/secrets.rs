//! Runs the service with known secrets and then searches everything that it wrote: the log at its finest level, the
//! audit log, answers, pages, metrics, events, settings, state files and keys of the nodes.

use std::path::Path;

use tempfile::TempDir;

use super::login::Browser;
use super::{Access, acquired, as_principal, entry, key, pages};
use crate::support::client::{Answer, Client, send};
use crate::support::daemon::{ended, redlockd};
use crate::support::poll;
use crate::support::redis_server::{Options, RedisServer};
use crate::support::service::{SHORT_TIMES, Service, path};

const REDIS_PASSWORD: &str = "redis-passw0rd-hunter2";
const OWN_TOKEN: &str = "own-token-hunter2-0123456789";
const WRONG_KEY: &str = "rlk_wrong-key-hunter2";
const FORM_KEY: &str = "rlk_form-key-hunter2";
const BASIC_KEY: &str = "basic-key-hunter2";
const PRINCIPAL_LIMITS: &str = "requests_per_second = 1000";

/// What was written, by its place.
#[derive(Default)]
struct Outputs(Vec<(String, Vec<u8>)>);

impl Outputs {
    fn add(&mut self, place: impl Into<String>, bytes: impl Into<Vec<u8>>) {
        self.0.push((place.into(), bytes.into()));
    }

    fn add_answer(&mut self, answer: &Answer) {
        self.add("an answer", format!("{:?} {}", answer.headers, answer.text));
    }

    fn add_files(&mut self, dir: &Path) {
        for entry in std::fs::read_dir(dir).expect("readable") {
            let path = entry.expect("readable").path();
            if path.is_dir() {
                self.add_files(&path);
            } else if let Ok(bytes) = std::fs::read(&path) {
                self.add(path.display().to_string(), bytes);
            }
        }
    }

    fn assert_without(&self, secrets: &[String]) {
        for (place, bytes) in &self.0 {
            let text = String::from_utf8_lossy(bytes);
            for secret in secrets {
                assert!(!text.contains(secret.as_str()), "{secret} is in {place}: {text}");
            }
        }
        let searched: usize = self.0.iter().map(|(_, bytes)| bytes.len()).sum();
        assert!(searched > 100_000, "only {searched} bytes were searched");
    }
}

/// A service with one Redis node that has a password.
struct Run {
    redis: RedisServer,
    access: Access,
    access_text: String,
    logs: TempDir,
    service: Service,
    outputs: Outputs,
}

impl Run {
    /// Initialises the node, runs the commands that print settings, and starts the service.
    async fn start() -> Self {
        let redis = RedisServer::start_with(Options { password: Some(REDIS_PASSWORD), ..Options::default() }).await;
        let access_text = entry("ci", &[&key("ci"), BASIC_KEY], &["admin"], PRINCIPAL_LIMITS)
            + &entry("eve", &[&key("eve")], &[], "");
        let access = Access::with(&access_text);
        let (node, setting) = (format!("n1={}", redis.url()), access.setting());
        let args = ["--node", node.as_str(), "--set", setting.as_str()];
        let mut outputs = Outputs::default();
        for command in [&["init"][..], &["config", "show"], &["config", "check"], &["doctor"]] {
            let done = ended(&mut redlockd(&[command, &args, &SHORT_TIMES].concat()));
            assert!(command != ["init"] || done.code == Some(0), "{done:?}");
            outputs.add(command.join(" "), format!("{done:?}"));
        }
        let logs = tempfile::tempdir().expect("a directory");
        let audit = format!("audit_log={}", path(&logs.path().join("audit")));
        let verbose = ["--log-level", "trace", "--log-format", "json", "--set", &audit];
        let service = Service::start(&[&args[..], &verbose, &SHORT_TIMES].concat()).await;
        service.until_ready().await;
        Self { redis, access, access_text, logs, service, outputs }
    }

    fn client(&self) -> &Client {
        self.service.client()
    }

    fn request(&self, method: &str, path: &str) -> reqwest::RequestBuilder {
        self.client().request(method, path)
    }

    fn with_token(&self, method: &str, path: &str, token: &str) -> reqwest::RequestBuilder {
        self.request(method, path).header("Lock-Token", token)
    }

    /// Sends a request as `ci`; its answer is searched.
    async fn send(&mut self, request: reqwest::RequestBuilder, status: u16) {
        let answer = as_principal(request, "ci").await.expect_status(status);
        self.outputs.add_answer(&answer);
    }

    /// Grants, a replay, extends and refusals. Returns the token of the lease on `a`. The answers of grants contain
    /// the token, and are not searched.
    async fn acquire_and_extend(&mut self) -> String {
        let token = acquired(&self.service, "ci", "a").await;
        for status in [201, 200] {
            let own = self.request("POST", "/locks/own").form(&[("token", OWN_TOKEN), ("owner", "me")]);
            as_principal(own, "ci").await.expect_status(status);
        }
        self.send(self.with_token("PATCH", "/locks/a", &token).form(&[("note", "n")]), 200).await;
        self.send(self.request("POST", "/locks/a"), 423).await;
        self.send(self.with_token("PATCH", "/locks/a", OWN_TOKEN), 409).await;
        token
    }

    /// Invalid requests with secrets in the wrong place.
    async fn misplace_tokens(&mut self) {
        self.send(self.request("POST", &format!("/locks/x?token={OWN_TOKEN}")), 400).await;
        self.send(self.with_token("PATCH", "/locks/a", &format!("{OWN_TOKEN}!")), 400).await;
        let json = |run: &Self, body: String| {
            run.request("POST", "/locks/x").header("Content-Type", "application/json").body(body)
        };
        self.send(json(self, format!("{{\"token\":\"{OWN_TOKEN}\",\"ttl\":")), 400).await;
        // The answer to a token as the name of a field contains it, so this one is not searched.
        let field = json(self, format!("{{\"{OWN_TOKEN}\":\"x\",\"token\":\"{OWN_TOKEN} \"}}"));
        let answer = as_principal(field, "ci").await.expect_status(400);
        assert!(answer.text.contains("unknown"), "{answer:?}");
    }

    /// Credentials, valid and invalid, in each form.
    async fn authenticate(&mut self) {
        let get = || self.request("GET", "/locks/a");
        let answers = [
            send(get().bearer_auth(WRONG_KEY)).await.expect_status(401),
            send(get().basic_auth("u", Some(WRONG_KEY))).await.expect_status(401),
            send(get().basic_auth("u", Some(BASIC_KEY))).await.expect_status(200),
            as_principal(get(), "eve").await.expect_status(403),
        ];
        answers.iter().for_each(|answer| self.outputs.add_answer(answer));
    }

    async fn read(&mut self) {
        for path in ["/locks/a", "/locks", "/nodes", "/metrics", "/health/ready", "/openapi.yaml", "/problems/locked"] {
            self.send(self.request("GET", path), 200).await;
        }
    }

    /// All pages with a session, a rejected log-in and a form. Returns the token of the session.
    async fn browse(&mut self) -> String {
        let mut browser = Browser::new(&self.service);
        let failed = browser.post("/ui/login", &[("key", FORM_KEY)]).await;
        assert_eq!((failed.status, browser.log_in("ci").await.status), (403, 303));
        self.outputs.add("a failed log-in", failed.text);
        for path in pages().into_iter().chain(["/ui/locks/a", "/ui/locks/own", "/ui/revoke/a"].map(str::to_owned)) {
            let page = browser.get(&path).await.text;
            self.outputs.add(path, page);
        }
        let fields = [("reason", "stuck"), ("name", "own"), ("fence", "0"), ("token", OWN_TOKEN)];
        let answer = browser.post("/ui/release/own", &fields).await.text;
        self.outputs.add("a form", answer);
        browser.session().to_owned()
    }

    /// Ends of each kind: forced, released, and released again.
    async fn end_leases(&mut self, token: &str) {
        let hold = tokio::spawn(as_principal(self.request("POST", "/locks/held?hold=true&ttl=1s"), "ci"));
        poll::until("it is held", || async {
            let seen = as_principal(self.request("GET", "/locks/held"), "ci").await;
            (seen.status == 200).then_some(())
        })
        .await;
        self.send(self.request("DELETE", "/locks/held?force=now&reason=r"), 204).await;
        hold.abort();
        self.send(self.with_token("DELETE", "/locks/a", token), 204).await;
        self.send(self.with_token("DELETE", "/locks/a", token), 410).await;
    }

    /// Errors of a node and a reload of the access file, which are logged.
    async fn fail_and_reload(&mut self) {
        self.redis.freeze();
        self.send(self.request("POST", "/locks/b"), 503).await;
        self.redis.thaw();
        self.access.write(&format!("{}\n", self.access_text));
        poll::until_true("the file was read again", || {
            self.service.output().iter().any(|line| line.contains("was read again and is in force"))
        })
        .await;
    }

    /// Stops the service, and collects logs, state files and keys of the node.
    async fn stop(mut self) -> Outputs {
        self.service.terminate();
        self.outputs.add("log", self.service.output().join("\n"));
        self.outputs.add_files(self.service.data().path());
        self.outputs.add_files(self.logs.path());
        for action in ["acquire", "unauthenticated", "forbidden", "POST /ui/login"] {
            let (_, bytes) = self.outputs.0.last().expect("the audit log");
            assert!(String::from_utf8_lossy(bytes).contains(action), "{action} is not in the audit log");
        }
        for name in self.redis.ask::<Vec<String>>(&["KEYS", "*"]).await {
            let value: Result<Vec<u8>, _> = self.redis.try_ask(&["GET", &name]).await;
            self.outputs.add(format!("redis {name}"), value.unwrap_or_default());
        }
        self.outputs
    }
}

#[tokio::test]
async fn no_output_contains_a_secret() {
    let mut run = Run::start().await;
    let events = run.request("GET", "/events?renewals=true").bearer_auth(key("ci"));
    let mut events = events.send().await.expect("a stream");
    let token = run.acquire_and_extend().await;
    run.misplace_tokens().await;
    run.authenticate().await;
    run.read().await;
    let session = run.browse().await;
    run.end_leases(&token).await;
    run.fail_and_reload().await;
    let mut received = String::new();
    while !received.contains("event: released") {
        let chunk = events.chunk().await.expect("connected").expect("more");
        received.push_str(&String::from_utf8_lossy(&chunk));
    }
    run.outputs.add("events", received);
    let outputs = run.stop().await;
    let fixed = [OWN_TOKEN, REDIS_PASSWORD, WRONG_KEY, BASIC_KEY, FORM_KEY].map(str::to_owned);
    outputs.assert_without(&[&fixed[..], &[key("ci"), key("eve"), token, session]].concat());
}
