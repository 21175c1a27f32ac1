//! Every example of the help texts and of docs/command-line.md is run as it stands, in a directory
//! of its own with a service of its own. Only addresses are replaced, since they are examples.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

use crate::support::cluster::Cluster;
use crate::support::daemon::{Daemon, Ended, Running, ended, redlockd};
use crate::support::poll;
use crate::support::redis_server::RedisServer;

/// Commands whose examples ask a running service.
const ASKING: [&str; 13] = [
    "run", "acquire", "keep", "extend", "release", "status", "fence", "list", "watch", "events", "nodes", "force",
    "health",
];

/// The examples of a help text: two blanks before them, six before what explains them.
fn examples(help: &str) -> Vec<String> {
    let part = help.split("Examples:\n").nth(1).unwrap_or_default();
    let part = part.split("\n\n").next().unwrap_or_default();
    part.lines().filter(|l| l.starts_with("  ") && !l.starts_with("   ")).map(|l| l.trim().to_owned()).collect()
}

fn help_of(command: &[&str]) -> Vec<String> {
    let done = ended(&mut redlockd(&[command, &["--help"]].concat()));
    assert_eq!(done.code, Some(0), "{done:?}");
    let found = examples(&done.out);
    assert!(!found.is_empty(), "{command:?} has no examples: {}", done.out);
    found
}

/// A directory with what the examples name.
fn directory() -> TempDir {
    let dir = tempfile::tempdir().expect("a directory");
    for script in ["deploy.sh", "nightly.sh", "job.sh", "scheduler.sh", "migrate.sh"] {
        let path = dir.path().join(script);
        // What a leader runs goes on until it is ended.
        let does = if script == "scheduler.sh" { "exec sleep 600" } else { "exit 0" };
        std::fs::write(&path, format!("#!/bin/sh\n{does}\n")).expect("writable");
        let made = Command::new("chmod").arg("+x").arg(&path).status().expect("chmod runs");
        assert!(made.success());
    }
    let defaults = ended(&mut redlockd(&["config", "default"]));
    std::fs::write(dir.path().join("redlockd.toml"), defaults.out).expect("writable");
    dir
}

fn shell(line: &str, dir: &Path) -> Command {
    let binary = PathBuf::from(env!("CARGO_BIN_EXE_redlockd"));
    let path =
        format!("{}:{}", binary.parent().expect("a directory").display(), std::env::var("PATH").unwrap_or_default());
    let mut command = Command::new("sh");
    command.args(["-c", line]).current_dir(dir).env_clear().env("PATH", path);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

/// Runs one example against a service where `deploy/prod` and `deploy/staging` are held if it needs that.
fn run_asking(line: &str, daemon: &Daemon, dir: &Path) -> Ended {
    let url = daemon.url();
    let needs_lease =
        ["extend", "release", "status", "fence", "force"].iter().any(|verb| line.contains(&format!("redlockd {verb}")));
    let mut line = line.replace("http://b:5625", &url).replace("http://127.0.0.1:5625", &url);
    // Nobody listens on port 1.
    line = line.replace("http://a:5625", "http://127.0.0.1:1");
    let mut token = String::new();
    if needs_lease && !dir.join("lease.token").exists() {
        let file = dir.join("lease.token").display().to_string();
        let lease = daemon.json(&["acquire", "--json", "--token-file", &file, "deploy/prod"]);
        token = daemon.get(&["acquire", "deploy/staging"]).trim().to_owned();
        line = line.replace("1763660823123456", &lease["fence"].to_string());
    }
    ended(shell(&line, dir).env("REDLOCKD_URL", url).env("T", token))
}

#[test]
fn the_examples_of_the_commands_that_ask_a_service() {
    for command in ASKING {
        for line in help_of(&[command]) {
            let (daemon, dir) = (Daemon::start(), directory());
            let done = run_asking(&line, &daemon, dir.path());
            assert_eq!(done.code, Some(0), "{line}: {done:?}");
        }
    }
}

/// It campaigns for ever: it leads, and ends by a signal.
#[tokio::test]
async fn the_examples_of_elect() {
    for line in help_of(&["elect"]) {
        let (daemon, dir) = (Daemon::start(), directory());
        let line = format!("exec {}", line.replace(":4040", ":0"));
        let mut elect = Running::spawn(shell(&line, dir.path()).env("REDLOCKD_URL", daemon.url()));
        poll::until_true(&line, || daemon.ask(&["status", "scheduler/leader"]).code == Some(0)).await;
        elect.signal(Signal::TERM);
        assert_eq!(elect.end().await.code, Some(143), "{line}");
    }
}

/// Of a ticket that waits, or has its lease, whose token is in `lease.token`.
#[test]
fn the_examples_of_tickets() {
    for command in ["show", "wait", "cancel"] {
        for line in help_of(&["ticket", command]) {
            let (daemon, dir) = (Daemon::start(), directory());
            let (held, file) = (dir.path().join("held"), dir.path().join("lease.token"));
            let (held, file) = (held.display().to_string(), file.display().to_string());
            daemon.get(&["acquire", "--token-file", &held, "x"]);
            let ticket = ["acquire", "--async", "--keep", "1m", "--json", "--token-file", &file, "x"];
            let ticket = daemon.json(&ticket)["ticket"].as_str().expect("a ticket").to_owned();
            if command == "wait" {
                daemon.get(&["release", "--token-file", &held, "x"]);
            }
            let done = run_asking(&line.replace("tk_4f0c6b1d2e3a59687f8e9dacbb0a1c2d", &ticket), &daemon, dir.path());
            assert_eq!(done.code, Some(0), "{line}: {done:?}");
        }
    }
}

#[test]
fn the_examples_of_the_page_on_the_command_line() {
    let text = include_str!("../../docs/command-line.md");
    assert!(!text.contains("```text"), "a block that no test runs");
    let mut ran = 0;
    for block in text.split("```sh\n").skip(1).map(|rest| rest.split("```").next().unwrap_or_default()) {
        if SCRIPTS.iter().any(|start| block.starts_with(start)) {
            continue;
        }
        let (daemon, dir) = (Daemon::start(), directory());
        for line in block.lines() {
            let done = run_asking(line, &daemon, dir.path());
            assert_eq!(done.code, Some(0), "{line}: {done:?}");
            ran += 1;
        }
    }
    assert!(ran >= 15, "{ran}");
}

/// Blocks of docs/command-line.md that are one script each.
const SCRIPTS: [&str; 2] = ["redlockd acquire --async", "for n in n1 n2 n3; do"];

fn script(start: &str) -> String {
    let text = include_str!("../../docs/command-line.md");
    let block = text.split("```sh\n").find(|block| block.starts_with(start)).expect(start);
    block.split("```").next().expect("an end of the block").to_owned()
}

/// A ticket is waited for where the lock is held, and there is none where it is free.
#[tokio::test]
async fn the_script_with_a_ticket_on_the_page_on_the_command_line() {
    for is_held in [false, true] {
        let (daemon, dir) = (Daemon::start(), directory());
        if is_held {
            daemon.get(&["acquire", "--ttl", "2s", "--owner", "other", "deploy/prod"]);
        }
        let done = ended(shell(&script(SCRIPTS[0]), dir.path()).env("REDLOCKD_URL", daemon.url()));
        assert_eq!(done.code, Some(0), "{done:?}");
        let lease = std::fs::read_to_string(dir.path().join("lease.txt")).expect("written");
        assert_eq!(lease.contains("ticket=tk_"), is_held, "{lease}");
        let token = dir.path().join("lease.token").display().to_string();
        daemon.get(&["extend", "--token-file", &token, "deploy/prod"]);
    }
}

/// Three real nodes; `ssh` is a stand-in.
#[tokio::test(flavor = "multi_thread")]
async fn the_script_that_restarts_nodes_on_the_page_on_the_command_line() {
    let cluster = Cluster::start(3).await;
    let over = cluster.service().await;
    let dir = directory();
    let ssh = "#!/bin/sh\necho \"$@\" >> restarted\n";
    std::fs::write(dir.path().join("ssh"), ssh).expect("writable");
    std::fs::set_permissions(dir.path().join("ssh"), std::fs::Permissions::from_mode(0o755)).expect("own file");
    let line = format!("PATH=.:$PATH\n{}", script(SCRIPTS[1]));
    let mut command = shell(&line, dir.path());
    command.env("REDLOCKD_URL", over.client().base());
    let done = tokio::task::block_in_place(|| ended(&mut command));
    assert_eq!(done.code, Some(0), "{done:?}");
    let restarted = std::fs::read_to_string(dir.path().join("restarted")).expect("written");
    let expected: String = (1..=3).map(|n| format!("n{n} systemctl restart redis\n")).collect();
    assert_eq!(restarted, expected, "{done:?}");
}

/// The shell blocks of the README and of the documents for users and operators.
#[test]
fn the_examples_of_the_documents() {
    const DOCUMENTS: [&str; 4] = [
        include_str!("../../README.md"),
        include_str!("../../docs/http.md"),
        include_str!("../../docs/operating.md"),
        include_str!("../../docs/waiting.md"),
    ];
    // Blocks that are run elsewhere: the build; the answers of the README, the script with five nodes and the recipes
    // (`recipes`); a lease that a connection holds (`waiting::holding`), by a script (`rolling`); the first key
    // (`a_new_key_is_used_by_the_command_line`).
    const ELSEWHERE: [&str; 7] = [
        "cargo run --release",
        "curl -d ttl=30s -d owner=ann",
        "examples/five-nodes.sh",
        "T=$(curl -sSf",
        "curl -sNf",
        "  #!/bin/sh\n  # hold.sh",
        "redlockd key new",
    ];
    let of_help: Vec<String> = [&["init"][..], &["serve"]].iter().flat_map(|c| help_of(c)).collect();
    let (mut ran, mut elsewhere) = (0, 0);
    let blocks = DOCUMENTS.iter().flat_map(|document| document.split("```sh\n").skip(1));
    for block in blocks.map(|rest| rest.split("```").next().unwrap_or_default()) {
        if ELSEWHERE.iter().any(|start| block.starts_with(start)) {
            elsewhere += 1;
            continue;
        }
        let (daemon, dir) = (Daemon::start(), directory());
        for line in block.lines() {
            let line = line.split(" #").next().unwrap_or_default().split_whitespace().collect::<Vec<_>>().join(" ");
            // The options of the tests' own servers (`support::redis_server`).
            if line.starts_with("redis-server ") {
                continue;
            }
            if line.starts_with("redlockd init") || line.starts_with("redlockd serve") {
                assert!(of_help.contains(&line), "{line} is not among the examples of the help texts, which are run");
                continue;
            }
            let done = run_asking(&line, &daemon, dir.path());
            assert_eq!(done.code, Some(0), "{line}: {done:?}");
            ran += 1;
        }
    }
    assert!(ran >= 1 && elsewhere == ELSEWHERE.len(), "{ran} were run, {elsewhere} are run elsewhere");
}

#[test]
fn the_examples_that_ask_nobody() {
    for command in [&["config", "check"][..], &["config", "show"], &["completions"], &["man"]] {
        for line in help_of(command) {
            let dir = directory();
            let done = ended(&mut shell(&line, dir.path()));
            assert_eq!(done.code, Some(0), "{line}: {done:?}");
        }
    }
}

/// With the examples' addresses replaced by those of real nodes.
fn with_nodes(line: &str, nodes: &[RedisServer]) -> String {
    nodes
        .iter()
        .enumerate()
        .fold(line.to_owned(), |line, (i, node)| line.replace(&format!("redis://10.0.0.{}", i + 1), &node.url()))
}

#[tokio::test]
async fn the_examples_that_start_a_service() {
    for line in help_of(&["serve"]) {
        let nodes = [RedisServer::start().await, RedisServer::start().await, RedisServer::start().await];
        let dir = directory();
        let line = format!("exec env {}", with_nodes(&line, &nodes));
        let out = dir.path().join("out");
        let mut command = shell(&line, dir.path());
        command.env("REDLOCKD_LISTEN", "127.0.0.1:0").env("REDLOCKD_DATA_DIR", dir.path());
        command.stdout(std::fs::File::create(&out).expect("writable")).stderr(Stdio::null());
        let mut service = Running::spawn(&mut command);
        let listens = || std::fs::read_to_string(&out).is_ok_and(|text| text.contains("try:"));
        poll::until_true(&line, listens).await;
        kill_process(Pid::from_child(service.child()), Signal::TERM).expect("our own child");
        assert_eq!(service.end().await.code, Some(0), "{line}");
    }
}

#[tokio::test]
async fn the_examples_that_ask_nodes() {
    let lines = help_of(&["init"]).into_iter().chain(help_of(&["doctor"]));
    for line in lines {
        let nodes = [RedisServer::start().await, RedisServer::start().await, RedisServer::start().await];
        let dir = directory();
        let list: Vec<String> = nodes.iter().map(|n| format!("\"{}\"", n.url())).collect();
        let file = format!("nodes = [{}]\n", list.join(", "));
        std::fs::write(dir.path().join("redlockd.toml"), file).expect("writable");
        if line.contains("doctor") {
            assert_eq!(ended(&mut shell("redlockd init --config redlockd.toml", dir.path())).code, Some(0));
        }
        let done = ended(&mut shell(&with_nodes(&line, &nodes), dir.path()));
        assert_eq!(done.code, Some(0), "{line}: {done:?}");
    }
}
