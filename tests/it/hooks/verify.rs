//! What arrives is verified by the packages `standardwebhooks` of PyPI and npm, by openssl, and by `redlockd hook verify`.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;

use redlockd::redlock::clock::SystemClock;
use redlockd::redlock::random::SystemEntropy;
use redlockd::webhooks::hooks::Webhooks;
use redlockd::webhooks::resolver::SystemLookup;
use redlockd::webhooks::transport::HttpTransport;

use super::receiver::{HooksFile, NEW_SECRET, Received, Receiver, SECRET, target};
use crate::support::daemon::redlockd;
use crate::support::programs::skipped;

/// Body on standard input; the secret and the three headers as arguments.
const PYTHON: &str = "
import sys
from standardwebhooks import Webhook
secret, *values = sys.argv[1:]
names = ['webhook-id', 'webhook-timestamp', 'webhook-signature']
Webhook(secret).verify(sys.stdin.buffer.read(), dict(zip(names, values)))
";

const NODE: &str = "
const { Webhook } = require('standardwebhooks');
const [secret, id, timestamp, signature] = process.argv.slice(1);
const headers = { 'webhook-id': id, 'webhook-timestamp': timestamp, 'webhook-signature': signature };
new Webhook(secret).verify(require('fs').readFileSync(0), headers);
";

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// `None` where the package is missing, which is an error where `CI` is `true`.
fn installed(what: &str, program: PathBuf, probe: &[&str]) -> Option<PathBuf> {
    let works =
        Command::new(&program).args(probe).current_dir(root().join("target/node")).stderr(Stdio::null()).status();
    if works.is_ok_and(|status| status.success()) {
        return Some(program);
    }
    let missing = format!("{what} is missing: `make test` installs it");
    skipped(&missing);
    None
}

/// Runs a program with the message on its standard input; whether it exits with 0.
fn passes(mut command: Command, body: &[u8]) -> bool {
    use std::io::Write;
    command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null());
    let mut child = command.spawn().expect("it runs");
    // It may end before it has read.
    let _ = child.stdin.take().expect("piped").write_all(body);
    child.wait().expect("it ends").success()
}

fn package(program: &Path, script: [&str; 2], secret: &str, message: &Received) -> Command {
    let mut command = Command::new(program);
    command.args(script).arg(secret).current_dir(root().join("target/node"));
    command.args(["webhook-id", "webhook-timestamp", "webhook-signature"].map(|name| message.header(name)));
    command
}

/// One message, signed with both secrets while one replaces the other.
async fn message() -> (HooksFile, Received) {
    let receiver = Receiver::start().await;
    let file = HooksFile::with(&target("t", &receiver, "").replace("[\"a.whsec\"]", "[\"b.whsec\", \"a.whsec\"]"));
    let parts = (SystemClock, SystemEntropy, HttpTransport);
    let _ = rustls::crypto::ring::default_provider().install_default();
    let tried = Webhooks::open(parts, Some(file.path()), Arc::new(SystemLookup), "i".into(), Box::new(|_, _, _| {}));
    let tested = tried.expect("a good file").test("target:t").await.expect("a target");
    assert!(tested.answer.is_accepted(), "{tested:?}");
    (file, receiver.received().remove(0))
}

#[tokio::test(flavor = "multi_thread")]
async fn other_implementations_verify_what_arrives_with_either_secret_and_nothing_else() {
    let (_, message) = message().await;
    let (python, node) = (root().join("target/venv/bin/python"), PathBuf::from("node"));
    let python = installed("standardwebhooks of PyPI", python, &["-c", "import standardwebhooks"]);
    let node = installed("standardwebhooks of npm", node, &["-e", "require('standardwebhooks')"]);
    let programs = [(python, ["-c", PYTHON]), (node, ["-e", NODE])];
    for (program, script) in programs.into_iter().filter_map(|(program, script)| Some((program?, script))) {
        let check =
            |secret: &str, message: &Received| passes(package(&program, script, secret, message), &message.body);
        assert!(check(SECRET, &message) && check(NEW_SECRET, &message), "{}", program.display());
        assert!(!check("whsec_AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA", &message), "{}", program.display());
        let changed = Received { body: [&message.body, &b" "[..]].concat().into(), ..message.clone() };
        assert!(!check(SECRET, &changed), "{}", program.display());
    }
}

/// For receivers that know nothing else: the HMAC of the body, keyed with the text of the first secret.
#[tokio::test(flavor = "multi_thread")]
async fn openssl_computes_the_older_header() {
    let (file, message) = message().await;
    file.write_other("body", std::str::from_utf8(&message.body).expect("text"));
    let args = ["dgst", "-sha256", "-hmac", NEW_SECRET, "body"];
    let output = Command::new("openssl").args(args).current_dir(file.0.path()).output().expect("openssl runs");
    let text = String::from_utf8(output.stdout).expect("text");
    let expected = text.trim().rsplit(' ').next().expect("a digest").to_owned();
    assert_eq!(message.header("x-hub-signature-256"), format!("sha256={expected}"));
}

#[tokio::test(flavor = "multi_thread")]
async fn the_command_line_verifies_a_message_in_a_shell() {
    let (file, message) = message().await;
    let secret = |name: &str| file.0.path().join(name).display().to_string();
    let headers = |prefix: &str| {
        ["ID", "TIMESTAMP", "SIGNATURE"].map(|name| {
            let header = message.header(&format!("webhook-{}", name.to_lowercase())).to_owned();
            (format!("{prefix}WEBHOOK_{name}"), header)
        })
    };
    let verify = |prefix: &str, files: &[&str], body: &[u8]| {
        let files: Vec<_> = files.iter().flat_map(|name| ["--secret-file".to_owned(), secret(name)]).collect();
        let args: Vec<&str> = ["hook", "verify"].into_iter().chain(files.iter().map(String::as_str)).collect();
        let mut command = redlockd(&args);
        command.envs(headers(prefix));
        passes(command, body)
    };
    assert!(verify("", &["a.whsec"], &message.body) && verify("HTTP_", &["b.whsec"], &message.body));
    file.write_other("c.whsec", "whsec_AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA\n");
    assert!(!verify("", &["c.whsec"], &message.body) && verify("", &["c.whsec", "a.whsec"], &message.body));
    assert!(!verify("X_", &["a.whsec"], &message.body), "without the headers");
    assert!(!verify("", &["a.whsec"], b"{}") && !verify("", &["headers"], &message.body));
    // A new secret, made and used by the same commands.
    let made = file.0.path().join("made.whsec").display().to_string();
    assert!(passes(redlockd(&["hook", "secret", "--to", &made]), b""));
    assert!(!passes(redlockd(&["hook", "secret", "--to", &made]), b""), "it does not replace a file");
    assert!(!verify("", &["made.whsec"], &message.body));
}
