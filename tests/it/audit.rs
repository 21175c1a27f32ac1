//! The audit log: a line for every requested change and every outcome, including streams; none for reads; never a
//! token. It is rotated without a signal, complete after a shutdown, and never delays a request.

use std::path::{Path, PathBuf};
use std::time::Duration;

use futures_util::future::join_all;
use redlockd::types::Token;
use serde_json::Value;
use tempfile::TempDir;
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;

use crate::support::client::{Answer, Client, send};
use crate::support::poll;
use crate::support::service::{Service, path};

/// A service with its audit log.
struct Audited {
    service: Service,
    dir: TempDir,
}

impl Audited {
    async fn start(more: &[&str]) -> Self {
        let dir = tempfile::tempdir().expect("a directory");
        let setting = format!("audit_log={}", path(&dir.path().join("audit.log")));
        let service = Service::embedded(&[&["--set", &setting], more].concat()).await;
        Self { service, dir }
    }

    fn client(&self) -> &Client {
        self.service.client()
    }

    fn file(&self) -> PathBuf {
        self.dir.path().join("audit.log")
    }

    /// The lines of the request with this id, once there are so many.
    async fn lines_of(&self, id: &str, count: usize) -> Vec<Value> {
        let what = format!("{count} lines of {id}");
        let found = poll::until(&what, || async {
            let lines: Vec<Value> = lines(&self.file()).into_iter().filter(|l| l["request_id"] == id).collect();
            (lines.len() >= count).then_some(lines)
        });
        let found = found.await;
        assert_eq!(found.len(), count, "{found:#?}");
        found
    }

    /// The one line of the request that this answers, checked for what every line has.
    async fn line(&self, answer: &Answer) -> Value {
        let line = self.lines_of(answer.header("x-request-id"), 1).await.remove(0);
        assert_eq!(line["status"], answer.status, "{line}");
        assert!(line["peer"].as_str().is_some_and(|p| p.starts_with("127.0.0.1:")), "{line}");
        assert!(line["time"].as_str().is_some_and(|t| t.ends_with('Z') && t.len() == 24), "{line}");
        line
    }
}

fn lines(file: &Path) -> Vec<Value> {
    let text = std::fs::read_to_string(file).unwrap_or_default();
    // A batch that is being written may end within a line.
    let whole = text.rsplit_once('\n').map(|(whole, _)| whole).unwrap_or_default();
    whole.lines().map(|line| serde_json::from_str(line).unwrap_or_else(|e| panic!("{line}: {e}"))).collect()
}

fn id_of(token: &str) -> String {
    Token::parse(token).expect("a token").hash().id().to_string()
}

/// Action, resource, outcome and reason of a line; `-` for what is missing.
fn summary(line: &Value) -> String {
    let word = |name: &str| line[name].as_str().unwrap_or("-").to_owned();
    ["action", "resource", "outcome", "reason"].map(word).join(" ")
}

#[tokio::test]
async fn every_change_has_a_line_with_its_caller_and_outcome() {
    let audited = Audited::start(&[]).await;
    let client = audited.client();
    let granted = client.acquired("a/b", &[("owner", "ci-1"), ("ttl", "30s")]).await;
    let (token, fence) = (granted.token(), granted.fence());
    let line = audited.line(&granted).await;
    assert_eq!(summary(&line), "acquire a/b granted -");
    assert_eq!((&line["owner"], line["fence"].as_u64()), (&Value::from("ci-1"), Some(fence)));
    assert_eq!(line["token_id"], id_of(&token));
    assert!(line.get("principal").is_none(), "there is no authentication: {line}");

    let refused = client.acquire("a/b", &[("owner", "ci-2")]).await.expect_status(423);
    assert_eq!(summary(&audited.line(&refused).await), "acquire a/b locked held");
    let replayed = client.acquire("a/b", &[("token", &token)]).await.expect_status(200);
    assert_eq!(summary(&audited.line(&replayed).await), "acquire a/b replayed -");
    let waited = client.acquire("a/b", &[("wait", "50ms")]).await.expect_status(423);
    assert_eq!(summary(&audited.line(&waited).await), "acquire a/b wait-timeout held");

    let extended = client.extend("a/b", &token, &[]).await.expect_status(200);
    let line = audited.line(&extended).await;
    assert_eq!((summary(&line), line["fence"].as_u64()), ("extend a/b extended -".to_owned(), Some(fence)));
    let other = "another-token-0123456789";
    let not_holder = client.extend("a/b", other, &[]).await.expect_status(409);
    let line = audited.line(&not_holder).await;
    assert_eq!((summary(&line), &line["token_id"]), ("extend a/b not-holder -".to_owned(), &Value::from(id_of(other))));
    let not_holder = client.release("a/b", other).await.expect_status(409);
    assert_eq!(summary(&audited.line(&not_holder).await), "release a/b not-holder -");
    let released = client.release("a/b", &token).await.expect_status(204);
    let line = audited.line(&released).await;
    assert_eq!(summary(&line), "release a/b released -");
    assert!(line["held_ms"].as_u64().is_some_and(|held| held < 60_000), "{line}");
    let again = client.release("a/b", &token).await.expect_status(410);
    assert_eq!(summary(&audited.line(&again).await), "release a/b lease-expired released");
    let late = client.extend("a/b", &token, &[]).await.expect_status(410);
    assert_eq!(summary(&audited.line(&late).await), "extend a/b lease-expired released");

    let odd = send(client.request("POST", "/locks/a//b")).await.expect_status(400);
    let line = audited.line(&odd).await;
    assert_eq!(summary(&line), "acquire - invalid -");
    let odd = send(client.request("POST", "/locks/a/b?tll=30s")).await.expect_status(400);
    assert_eq!(summary(&audited.line(&odd).await), "acquire a/b invalid -");
}

#[tokio::test]
async fn a_line_says_how_the_lease_shares_its_lock() {
    let audited = Audited::start(&[]).await;
    let client = audited.client();
    let mode = async |answer: &Answer| audited.line(answer).await["mode"].as_str().unwrap_or("-").to_owned();
    let writer = client.acquired("x", &[]).await;
    assert_eq!(mode(&writer).await, "-");
    assert_eq!(mode(&client.extend("x", &writer.token(), &[]).await.expect_status(200)).await, "-");
    // A downgrade is an extend, and no longer that of an exclusive lease.
    let reader = client.extend("x", &writer.token(), &[("mode", "shared")]).await.expect_status(200);
    assert_eq!(
        (summary(&audited.line(&reader).await), mode(&reader).await.as_str()),
        ("extend x extended -".to_owned(), "shared")
    );
    assert_eq!(mode(&client.acquired("x", &[("mode", "shared")]).await).await, "shared");
    let permit = client.acquired("pool", &[("limit", "3")]).await;
    assert_eq!(mode(&permit).await, "permit");
    assert_eq!(mode(&client.extend("pool", &permit.token(), &[]).await.expect_status(200)).await, "permit");
    // Each lease of a set has its own.
    let set = client.request("POST", "/locks").form(&[("resource", "a"), ("resource", "b")]);
    let token = send(set).await.expect_status(201).token();
    client.extend("a", &token, &[("mode", "shared")]).await.expect_status(200);
    let both = client.request("PATCH", "/locks?resource=a&resource=b").header("Lock-Token", &token);
    let both = send(both).await.expect_status(200);
    let lines = audited.lines_of(both.header("x-request-id"), 2).await;
    let modes: Vec<_> = lines.iter().map(|line| (line["resource"].as_str(), line["mode"].as_str())).collect();
    assert_eq!(modes, [(Some("a"), Some("shared")), (Some("b"), None)]);
}

#[tokio::test]
async fn forced_ends_and_refused_ones_have_the_lease_and_the_reason() {
    let audited = Audited::start(&[]).await;
    let client = audited.client();
    let force = async |query: &str| send(client.request("DELETE", &format!("/locks/x?{query}"))).await;
    let none = force("force=now&reason=fire").await.expect_status(404);
    assert_eq!(summary(&audited.line(&none).await), "force-now x not-held fire");
    let granted = client.acquired("x", &[("owner", "ann")]).await;
    let line = audited.line(&granted).await;
    assert!(line["waited_ms"].is_u64() && line.get("held_ms").is_none(), "{line}");
    let revoked = force("force=revoke&reason=tidying%20up").await.expect_status(202);
    let line = audited.line(&revoked).await;
    assert_eq!(summary(&line), "revoke x revoked tidying up");
    assert_eq!((&line["ended_owner"], line["held_ms"].is_u64()), (&Value::from("ann"), true), "{line}");
    assert_eq!(
        (line["token_id"].as_str(), line["fence"].as_u64()),
        (Some(&*id_of(&granted.token())), Some(granted.fence()))
    );
    let stale = client.request("DELETE", "/locks/x?force=now&reason=fire").header("If-Match", "\"1\"");
    let stale = send(stale).await.expect_status(412);
    assert_eq!(summary(&audited.line(&stale).await), "force-now x changed fire");
    let forced = force("force=now&reason=fire").await.expect_status(204);
    let line = audited.line(&forced).await;
    assert_eq!(summary(&line), "force-now x forced fire");
    assert_eq!(line["token_id"], id_of(&granted.token()));
    let late = client.extend("x", &granted.token(), &[]).await.expect_status(410);
    assert_eq!(summary(&audited.line(&late).await), "extend x lease-expired forced");
    // A form of the dashboard that a page of another site sends.
    let form = client.request("POST", "/ui/release/x").header("Sec-Fetch-Site", "cross-site");
    let form = form.form(&[("tag", "1"), ("reason", "fire"), ("name", "x")]);
    let forged = send(form).await.expect_status(403);
    assert_eq!(audited.line(&forged).await["outcome"], "forbidden");
    let without = force("force=now").await.expect_status(400);
    assert_eq!(summary(&audited.line(&without).await), "release x invalid -");
}

#[tokio::test]
async fn reads_have_no_line() {
    let audited = Audited::start(&[]).await;
    let client = audited.client();
    for path in ["/locks/x", "/locks", "/nodes", "/metrics", "/health/ready", "/none", "/openapi.yaml"] {
        client.get(path).await;
    }
    send(client.request("BREW", "/none")).await.expect_status(404);
    let last = client.acquired("x", &[]).await;
    audited.line(&last).await;
    assert_eq!(lines(&audited.file()).len(), 1);
}

/// Sends the head of a request by hand; dropping it hangs up.
async fn call(audited: &Audited, head: &str) -> TcpStream {
    let mut stream = TcpStream::connect(audited.service.address()).await.expect("it listens");
    let text = format!("{head}\r\nHost: localhost\r\nContent-Length: 0\r\n\r\n");
    stream.write_all(text.as_bytes()).await.expect("open");
    stream
}

#[tokio::test]
async fn a_waiter_that_hangs_up_is_recorded_as_abandoned() {
    let audited = Audited::start(&[]).await;
    let holder = audited.client().acquired("x", &[("ttl", "60s")]).await;
    let waiter = call(&audited, "POST /locks/x?wait=60s&owner=late HTTP/1.1\r\nX-Request-Id: late-1").await;
    poll::until("it waits", || async { (audited.client().waiting("x").await == 1).then_some(()) }).await;
    drop(waiter);
    let line = audited.lines_of("late-1", 1).await.remove(0);
    assert_eq!(summary(&line), "acquire x abandoned -");
    assert_eq!((&line["owner"], line.get("status")), (&Value::from("late"), None));
    audited.client().release("x", &holder.token()).await.expect_status(204);
}

#[tokio::test]
async fn a_holding_stream_has_a_line_for_every_change() {
    let audited = Audited::start(&[]).await;
    let client = audited.client();
    let hold = async |id: &str, query: &str| {
        call(&audited, &format!("POST /locks/x?hold=true&ttl=600ms&{query} HTTP/1.1\r\nX-Request-Id: {id}")).await
    };
    let lives =
        async |id: &str, count: usize| audited.lines_of(id, count).await.iter().map(summary).collect::<Vec<_>>();

    // Granted at once; ends with the connection.
    let first = hold("first", "").await;
    assert_eq!(lives("first", 1).await, ["hold x granted -"]);
    // Refused while the first one holds.
    let refused = send(client.request("POST", "/locks/x?hold=true")).await.expect_status(423);
    assert_eq!(summary(&audited.line(&refused).await), "hold x locked held");
    // Queued, and abandoned.
    let second = hold("second", "wait=60s").await;
    poll::until("it waits", || async { (client.waiting("x").await == 1).then_some(()) }).await;
    assert_eq!(lives("second", 1).await, ["hold x queued -"]);
    drop(second);
    assert_eq!(lives("second", 2).await, ["hold x queued -", "hold x abandoned -"]);
    // Queued, granted when the first hangs up, lost to an operator.
    let third = hold("third", "wait=60s").await;
    // The first one still holds: otherwise this one would be granted without being queued.
    assert_eq!(lives("third", 1).await, ["hold x queued -"]);
    drop(first);
    assert_eq!(lives("first", 2).await, ["hold x granted -", "hold x disconnected -"]);
    assert!(audited.lines_of("first", 2).await[1]["held_ms"].is_u64(), "for how long it was held");
    lives("third", 2).await;
    send(client.request("DELETE", "/locks/x?force=now&reason=fire")).await.expect_status(204);
    assert_eq!(lives("third", 3).await, ["hold x queued -", "hold x granted -", "hold x lost forced"]);
    drop(third);
    // Released with a token that the caller chose.
    let token = "a-token-of-its-own-0123456789";
    let body = format!(
        "POST /locks/x?hold=true HTTP/1.1\r\nX-Request-Id: fourth\r\nHost: localhost\r\nContent-Type: application/x-www-form-urlencoded\r\nContent-Length: {}\r\n\r\ntoken={token}",
        token.len() + 6
    );
    let mut fourth = TcpStream::connect(audited.service.address()).await.expect("it listens");
    fourth.write_all(body.as_bytes()).await.expect("open");
    let granted = audited.lines_of("fourth", 1).await.remove(0);
    assert_eq!((summary(&granted), &granted["token_id"]), ("hold x granted -".to_owned(), &Value::from(id_of(token))));
    client.release("x", token).await.expect_status(204);
    assert_eq!(lives("fourth", 2).await, ["hold x granted -", "hold x released -"]);
    let text = std::fs::read_to_string(audited.file()).expect("readable");
    assert!(!text.contains(token), "{text}");
}

#[tokio::test]
async fn the_file_is_rotated_by_renaming_it() {
    let audited = Audited::start(&[]).await;
    let client = audited.client();
    let old = audited.dir.path().join("audit.log.1");
    audited.line(&client.acquired("before", &[]).await).await;
    std::fs::rename(audited.file(), &old).expect("renames");
    audited.line(&client.acquired("after", &[]).await).await;
    let resources = |file: &Path| lines(file).iter().map(|l| l["resource"].clone()).collect::<Vec<_>>();
    assert_eq!((resources(&old), resources(&audited.file())), (vec!["before".into()], vec!["after".into()]));
}

#[tokio::test]
async fn all_records_are_written_before_the_process_ends() {
    let mut audited = Audited::start(&[]).await;
    let client = audited.client().clone();
    let requests = (0..200).map(|n| {
        let client = client.clone();
        async move { client.acquired(&format!("r/{n}"), &[]).await }
    });
    let holder = client.acquired("x", &[]).await;
    let waiter = {
        let client = client.clone();
        tokio::spawn(async move { client.acquire("x", &[("wait", "60s")]).await })
    };
    poll::until("it waits", || async { (client.waiting("x").await == 1).then_some(()) }).await;
    join_all(requests).await;
    audited.service.terminate();
    let waiter = waiter.await.expect("no panic").expect_status(503);
    assert_eq!(audited.service.exit_code().await, Some(0));
    let lines = lines(&audited.file());
    assert_eq!(lines.iter().filter(|l| l["outcome"] == "granted").count(), 201);
    let drained: Vec<_> = lines.iter().filter(|l| l["request_id"] == waiter.header("x-request-id")).collect();
    assert_eq!(drained.len(), 1);
    assert_eq!(summary(drained[0]), "acquire x draining -");
    assert!(lines.iter().all(|l| l["token_id"] != holder.token()));
}

#[tokio::test]
async fn a_full_disk_delays_no_request_and_is_reported() {
    let service = Service::embedded(&["--set", "audit_log=/dev/full"]).await;
    let client = service.client();
    let token = client.acquired("x", &[]).await.token();
    client.release("x", &token).await.expect_status(204);
    poll::until("two records are counted as lost", || async {
        let text = client.get("/metrics").await.text;
        text.contains("redlockd_audit_records_total{outcome=\"failed\"} 2\n").then_some(())
    })
    .await;
    let reported = service.output().iter().filter(|l| l.contains("the audit log cannot be written")).count();
    assert_eq!(reported, 1, "{:#?}", service.output());
}

#[tokio::test]
async fn the_audit_log_can_go_to_standard_output() {
    let service = Service::embedded(&["--set", "audit_log=stdout"]).await;
    let granted = service.client().acquired("x", &[]).await;
    let line = poll::until("the line is there", || async {
        service.output().into_iter().find(|l| l.starts_with('{') && l.contains("\"granted\""))
    })
    .await;
    let line: Value = serde_json::from_str(&line).expect("JSON");
    assert_eq!(line["request_id"], granted.header("x-request-id"));
}

#[test]
fn a_file_that_cannot_be_opened_is_an_error_at_the_start() {
    let args = ["serve", "--listen", "127.0.0.1:0", "--set", "audit_log=/no/such/directory/audit.log"];
    let dir = tempfile::tempdir().expect("a directory");
    let output =
        crate::support::service::redlockd(&args).args(["--data-dir"]).arg(dir.path()).output().expect("it runs");
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(69), "{said}");
    assert!(said.contains("`audit_log`: /no/such/directory/audit.log cannot be opened for appending"), "{said}");
}

/// A reader of standard output that stops reading causes lost records, and no delay.
#[tokio::test(flavor = "multi_thread")]
async fn a_reader_that_stops_reading_delays_no_request() {
    let dir = tempfile::tempdir().expect("a directory");
    let (reader, writer) = std::io::pipe().expect("a pipe");
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("loopback");
    let address = listener.local_addr().expect("bound");
    drop(listener);
    let mut child = std::process::Command::new(env!("CARGO_BIN_EXE_redlockd"))
        .args(["serve", "--listen", &address.to_string(), "--data-dir", path(dir.path())])
        .args(["--set", "audit_log=stdout", "--set", "drain_timeout=1s"])
        .env_clear()
        .stdout(writer)
        .stderr(std::process::Stdio::null())
        .spawn()
        .expect("the binary runs");
    let client = Client::new(&format!("http://{address}"));
    poll::until("it listens", || async { TcpStream::connect(address).await.ok() }).await;
    // A pipe holds 64 KiB, some three hundred lines.
    let all = (0..2_000).map(|n| {
        let client = client.clone();
        async move { client.acquired(&format!("r/{n}"), &[("ttl", "2m")]).await.took }
    });
    let slowest = futures_util::StreamExt::collect::<Vec<_>>(futures_util::StreamExt::buffer_unordered(
        futures_util::stream::iter(all),
        16,
    ))
    .await;
    assert_eq!(slowest.len(), 2_000);
    let queued = client.get("/metrics").await.text;
    let queued =
        queued.lines().find_map(|l| l.strip_prefix("redlockd_audit_queue_length ")).expect("a gauge").to_owned();
    assert!(queued.parse::<u32>().expect("a number") > 500, "{queued} wait: the writer was not held up");
    // And at the end it does not wait for that reader for ever.
    let pid = rustix::process::Pid::from_child(&child);
    rustix::process::kill_process(pid, rustix::process::Signal::TERM).expect("own child");
    let status = poll::until("it ends", || {
        let status = child.try_wait().expect("own child");
        async move { status }
    });
    let ended = tokio::time::timeout(Duration::from_secs(15), status).await;
    if ended.is_err() {
        child.kill().expect("own child");
    }
    assert_eq!(ended.expect("an end").code(), Some(0));
    drop(reader);
}
