//! Every recipe of docs/fencing.md against the real store: writes with the fences 7, 9, 7 and 9, of which the third must be
//! refused and change nothing. Stores that are not installed are skipped; tests/install-deps.sh names them.

use std::net::TcpListener;
use std::os::unix::fs::chown;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use tempfile::TempDir;

use crate::support::client::{Client, send, try_send};
use crate::support::daemon::{Ended, ended};
use crate::support::poll;
use crate::support::programs::skipped;
use crate::support::redis_server::RedisServer;
use crate::support::service::Service;

const DOCUMENT: &str = include_str!("../../docs/fencing.md");
/// PostgreSQL refuses to run as root: it runs as nobody then.
const NOBODY: u32 = 65_534;

/// The first block of this language below this heading.
fn block(heading: &str, language: &str) -> String {
    let section = DOCUMENT.split("\n## ").find(|s| s.starts_with(heading)).unwrap_or_else(|| panic!("no {heading}"));
    let block = section.split(&format!("```{language}\n")).nth(1).and_then(|rest| rest.split("```").next());
    block.unwrap_or_else(|| panic!("no {language} below {heading}")).to_owned()
}

fn find(program: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let found = std::env::split_paths(&path).chain(["/usr/sbin".into()]).map(|dir| dir.join(program));
    let found = found.into_iter().find(|file| file.is_file());
    if found.is_none() {
        skipped(&format!("{program} is missing: `make deps` installs it"));
    }
    found
}

/// A server of a test's own; killed when dropped.
struct Server(Child);

impl Drop for Server {
    fn drop(&mut self) {
        // Fails where it has ended already.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn start(command: &mut Command) -> Server {
    Server(command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("it starts"))
}

fn succeeds(command: &mut Command) {
    let done = ended(command.stdin(Stdio::null()));
    assert_eq!(done.code, Some(0), "{command:?}: {done:?}");
}

/// Runs a shell recipe in `dir`.
fn shell(shell: &[&str], recipe: &str, dir: &Path, env: &[(&str, &str)]) -> Ended {
    let mut command = Command::new(shell[0]);
    command.args(&shell[1..]).args(["-c", recipe]).current_dir(dir).envs(env.iter().copied());
    ended(command.stdin(Stdio::null()))
}

/// The four writes; `read` is the store's content.
fn is_fenced(write: impl Fn(&str, &str) -> Ended, read: impl Fn() -> String) {
    for (fence, value, accepted, then) in [
        ("7", "first", true, "first"),
        ("9", "next", true, "next"),
        ("7", "late", false, "next"),
        ("9", "last", true, "last"),
    ] {
        let done = write(fence, value);
        assert_eq!(done.code == Some(0), accepted, "{fence} {value}: {done:?}");
        assert_eq!(read().trim(), then, "after {fence} {value}: {done:?}");
        let refusal = format!("{}{}", done.out, done.err);
        assert!(accepted || refusal.contains("was here"), "the refusal has a reason: {done:?}");
    }
}

/// [`is_fenced`] for a recipe for the shell.
fn recipe_is_fenced(recipe: &str, dir: &Path, env: &[(&str, &str)], read: impl Fn() -> String) {
    is_fenced(
        |fence, value| shell(&["sh"], recipe, dir, &[env, &[("REDLOCKD_FENCE", fence), ("VALUE", value)]].concat()),
        read,
    );
}

#[test]
fn postgresql() {
    let installed = std::fs::read_dir("/usr/lib/postgresql").into_iter().flatten().flatten();
    let newest = installed.map(|version| version.path().join("bin")).filter(|bin| bin.join("initdb").is_file()).max();
    let Some(bin) = newest.or_else(|| find("initdb")?.parent().map(Path::to_owned)) else { return };
    let dir = tempfile::tempdir().expect("a directory");
    let as_owner = |program: &str| {
        let mut command = Command::new(bin.join(program));
        command.current_dir(dir.path()).env("LC_ALL", "C.UTF-8");
        if rustix::process::geteuid().is_root() {
            command.uid(NOBODY).gid(NOBODY);
        }
        command
    };
    if rustix::process::geteuid().is_root() {
        chown(dir.path(), Some(NOBODY), Some(NOBODY)).expect("root may");
    }
    succeeds(as_owner("initdb").args(["-N", "-A", "trust", "-U", "postgres", "-D", "data"]));
    let socket = dir.path().to_str().expect("text");
    let _server = start(as_owner("postgres").args(["-D", "data", "-F", "-k", socket, "-c", "listen_addresses="]));
    let env = [("PGHOST", socket), ("PGUSER", "postgres")];
    let ask = |sql: &str| {
        shell(&["sh"], "psql -qAt -v ON_ERROR_STOP=1 -c \"$SQL\"", dir.path(), &[&env[..], &[("SQL", sql)]].concat())
    };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    runtime.block_on(poll::until_true("PostgreSQL answers", || ask("select 1").code == Some(0)));
    let made = ask(&block("PostgreSQL", "sql"));
    assert_eq!(made.code, Some(0), "{made:?}");
    recipe_is_fenced(&block("PostgreSQL", "sh"), dir.path(), &env, || ask("select body from reports").out);
    let Some(python) = venv("psycopg") else { return };
    let service = runtime.block_on(Service::embedded(&[]));
    let mut worker = Command::new(python);
    worker.args(["-c", &block("PostgreSQL", "python")]).envs(env).env("REDLOCKD_URL", service.client().base());
    let done =
        ended(worker.env("PYTHONPATH", concat!(env!("CARGO_MANIFEST_DIR"), "/clients/python")).stdin(Stdio::null()));
    assert_eq!((done.code, done.err.as_str()), (Some(0), ""), "{done:?}");
    assert_eq!(ask("select body from reports").out, "a long computation\n");
    // A fence that an operator or another service stored refuses it, and nothing of the transaction stays.
    assert_eq!(ask(&format!("update guards set fence = {}; delete from reports", 1_u64 << 53)).code, Some(0));
    let refused = ended(&mut worker);
    assert!(refused.code == Some(1) && refused.err.contains("was here"), "{refused:?}");
    assert_eq!(ask("select body from reports").out, "");
    runtime.block_on(service.client().inspect("reports")).expect_problem(404, "not-held");
}

/// The interpreter of the virtual environment that `make test` prepares, if it has this module.
fn venv(module: &str) -> Option<PathBuf> {
    let python = Path::new(env!("CARGO_MANIFEST_DIR")).join("target/venv/bin/python");
    let import = Command::new(&python).args(["-c", &format!("import {module}")]).stderr(Stdio::null()).status();
    if import.is_ok_and(|status| status.success()) {
        return Some(python);
    }
    let missing = format!("{module} is missing in target/venv: `make test` installs it");
    skipped(&missing);
    None
}

#[test]
fn mariadb() {
    let (Some(server), Some(install)) = (find("mariadbd"), find("mariadb-install-db")) else { return };
    let dir = tempfile::tempdir().expect("a directory");
    let path = |name: &str| dir.path().join(name).to_str().expect("text").to_owned();
    let data = format!("--datadir={}", path("data"));
    let as_root = rustix::process::geteuid().is_root().then_some("--user=root");
    succeeds(
        Command::new(install)
            .args(["--no-defaults", &data, "--auth-root-authentication-method=normal", "--skip-test-db"])
            .args(as_root),
    );
    let _server = start(
        Command::new(server)
            .args(["--no-defaults", &data, "--skip-networking", "--innodb-flush-log-at-trx-commit=0"])
            .args([format!("--socket={}", path("socket")), format!("--pid-file={}", path("pid"))])
            .args(as_root),
    );
    let client = |database: &str| format!("[client]\nsocket={}\nuser=root\n{database}\n", path("socket"));
    std::fs::write(path(".my.cnf"), client("")).expect("writable");
    let home = dir.path().to_str().expect("text");
    let env = [("HOME", home)];
    let ask = |sql: &str| {
        shell(&["sh"], "printf %s \"$SQL\" | mariadb -N", dir.path(), &[&env[..], &[("SQL", sql)]].concat())
    };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    runtime.block_on(poll::until_true("MariaDB answers", || ask("create database reports").code == Some(0)));
    std::fs::write(path(".my.cnf"), client("[mysql]\ndatabase=reports")).expect("writable");
    let made = ask(&block("MariaDB", "sql"));
    assert_eq!(made.code, Some(0), "{made:?}");
    recipe_is_fenced(&block("MariaDB", "sh"), dir.path(), &env, || ask("select body from reports").out);
}

#[test]
fn sqlite() {
    if find("sqlite3").is_none() {
        return;
    }
    let dir = tempfile::tempdir().expect("a directory");
    let ask = |sql: &str| shell(&["sh"], "sqlite3 reports.db \"$SQL\"", dir.path(), &[("SQL", sql)]);
    let made = ask(&block("SQLite", "sql"));
    assert_eq!(made.code, Some(0), "{made:?}");
    recipe_is_fenced(&block("SQLite", "sh"), dir.path(), &[], || ask("select body from reports").out);
}

#[tokio::test]
async fn redis() {
    let server = RedisServer::start().await;
    let dir = tempfile::tempdir().expect("a directory");
    let cli = format!("redis-cli -p {}", server.port());
    let recipe = block("Redis", "sh").replace("redis-cli", &cli);
    let read = || shell(&["sh"], &format!("{cli} get reports:weekly"), dir.path(), &[]).out;
    recipe_is_fenced(&recipe, dir.path(), &[], read);
}

#[test]
fn files() {
    let recipe = block("Files", "sh");
    for with in [&["dash"][..], &["bash"], &["busybox", "sh"]] {
        if find(with[0]).is_none() {
            continue;
        }
        let dir = tempfile::tempdir().expect("a directory");
        is_fenced(
            |fence, value| shell(with, &recipe, dir.path(), &[("REDLOCKD_FENCE", fence), ("VALUE", value)]),
            || std::fs::read_to_string(dir.path().join("weekly")).unwrap_or_default(),
        );
    }
}

/// Runs a recipe in Python under moto, in one process, since its store lives there.
const UNDER_MOTO: &str = r#"
import os, sys
import boto3
from moto import mock_aws
recipe, read = sys.argv[1], sys.argv[2]
with mock_aws():
    boto3.client("s3").create_bucket(Bucket="reports")
    boto3.client("dynamodb").create_table(
        TableName="reports", BillingMode="PAY_PER_REQUEST", KeySchema=[{"AttributeName": "id", "KeyType": "HASH"}],
        AttributeDefinitions=[{"AttributeName": "id", "AttributeType": "S"}])
    for fence, value, accepted, then in [(7, "first", True, "first"), (9, "next", True, "next"),
                                         (7, "late", False, "next"), (9, "last", True, "last")]:
        os.environ["REDLOCKD_FENCE"], os.environ["VALUE"] = str(fence), value
        try:
            exec(recipe, {})
            done = True
        except SystemExit as refusal:
            done = not refusal.code
        now = eval(read)
        assert (done, now) == (accepted, then), (fence, value, done, now)
    if "IfMatch" in recipe:  # another writer between the two requests is noticed
        boto3.client("s3").put_object(Bucket="reports", Key="weekly", Body=b"x", Metadata={"fence": "9"})
        between = 's3.put_object(Bucket="reports", Key="weekly", Body=b"theirs", Metadata={"fence": "99"})\ns3.put_object(**where'
        try:
            exec(recipe.replace("s3.put_object(**where", between), {})
            raise AssertionError("the second write was not conditional")
        except Exception as error:
            assert "PreconditionFailed" in str(error), error
print("fenced")
"#;

fn fenced_under_moto(recipe: &str, read: &str) {
    let Some(python) = venv("moto") else { return };
    let mut command = Command::new(python);
    command.args(["-c", UNDER_MOTO, recipe, read]).stdin(Stdio::null());
    command.envs([("AWS_ACCESS_KEY_ID", "x"), ("AWS_SECRET_ACCESS_KEY", "x"), ("AWS_DEFAULT_REGION", "us-east-1")]);
    let done = ended(&mut command);
    assert_eq!((done.code, done.out.as_str()), (Some(0), "fenced\n"), "{done:?}");
}

#[test]
fn s3() {
    let read = "boto3.client('s3').get_object(Bucket='reports', Key='weekly')['Body'].read().decode()";
    fenced_under_moto(&block("S3", "python"), read);
}

#[test]
fn dynamodb() {
    let read = "boto3.resource('dynamodb').Table('reports').get_item(Key={'id': 'weekly'})['Item']['body']";
    fenced_under_moto(&block("DynamoDB", "python"), read);
}

fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").and_then(|l| l.local_addr()).expect("a free port").port()
}

/// What the proxy lets through: the fence of the lease that stands. Its upstream is the service itself.
async fn only_the_newest_fence_passes(service: &Service, port: u16, refused: u16) {
    let (client, proxy) = (service.client(), Client::new(&format!("http://127.0.0.1:{port}")));
    let first = client.acquired("reports", &[]).await;
    let send_with = async |fence: u64| {
        send(proxy.request("GET", "/health/live").header("Fencing-Token", fence).header("Accept", "text/plain")).await
    };
    poll::until("the proxy answers", || async { try_send(proxy.request("GET", "/")).await.ok() }).await;
    assert_eq!(send_with(first.fence()).await.expect_status(200).text, "live\n");
    client.release("reports", &first.token()).await.expect_status(204);
    let next = client.acquired("reports", &[]).await;
    send_with(first.fence()).await.expect_status(refused);
    assert_eq!(send_with(next.fence()).await.expect_status(200).text, "live\n");
}

/// The block with the addresses of this test.
fn configuration(language: &str, service: &Service, port: u16) -> String {
    let upstream = service.address().to_string();
    let block = block("A store that cannot compare", language);
    block
        .replace("127.0.0.1:5625", &upstream)
        .replace("127.0.0.1:8081", &upstream)
        .replace(":8080", &format!(":{port}"))
}

fn directory_with(name: &str, text: &str) -> TempDir {
    let dir = tempfile::tempdir().expect("a directory");
    std::fs::write(dir.path().join(name), text).expect("writable");
    dir
}

#[tokio::test]
async fn nginx() {
    let Some(nginx) = find("nginx") else { return };
    let (service, port) = (Service::embedded(&[]).await, free_port());
    let block = configuration("nginx", &service, port);
    let paths = ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"].map(|kind| format!("{kind}_temp_path {kind};"));
    let text = format!(
        "daemon off; master_process off; pid pid; error_log errors; events {{}}\nhttp {{ access_log off; {}\n\
         server {{ listen 127.0.0.1:{port};\n{block}}} }}\n",
        paths.concat()
    );
    let dir = directory_with("nginx.conf", &text);
    let prefix = dir.path().to_str().expect("text");
    let _server = start(Command::new(nginx).args(["-p", prefix, "-c", "nginx.conf", "-e", "errors"]));
    only_the_newest_fence_passes(&service, port, 403).await;
}

#[tokio::test]
async fn caddy() {
    let Some(caddy) = find("caddy") else { return };
    let (service, port) = (Service::embedded(&[]).await, free_port());
    let text = format!("{{\n    admin off\n}}\n{}", configuration("caddyfile", &service, port));
    let dir = directory_with("Caddyfile", &text);
    let config = dir.path().join("Caddyfile");
    let mut command = Command::new(caddy);
    command.args(["run", "--adapter", "caddyfile", "--config"]).arg(config).env("HOME", dir.path());
    let _server = start(&mut command);
    only_the_newest_fence_passes(&service, port, 412).await;
}
