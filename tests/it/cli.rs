//! The thin commands against a real service: forms of output, exit codes, tokens and keys.

use std::io::{BufRead, BufReader, Write};
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;
use std::process::{Command, Stdio};

use crate::support::cluster::{Cluster, node_args};
use crate::support::daemon::{Daemon, Ended, Running, cluster, ended, redlockd};
use crate::support::poll;
use crate::support::redis_server::RedisServer;
use crate::support::service::SHORT_TIMES;

/// Runs it with `input` on standard input.
fn fed(daemon: &Daemon, args: &[&str], input: &str) -> Ended {
    let mut child = daemon.command(args).stdin(Stdio::piped()).spawn().expect("it runs");
    child.stdin.take().expect("piped").write_all(input.as_bytes()).expect("it reads");
    let output = child.wait_with_output().expect("our own child");
    let text = |bytes| String::from_utf8(bytes).expect("text");
    Ended { code: output.status.code(), out: text(output.stdout), err: text(output.stderr) }
}

#[test]
fn a_lease_from_acquire_to_release() {
    let daemon = Daemon::start();
    let token = daemon.get(&["acquire", "--ttl", "1m", "--owner", "me", "--meta", "build=17", "a/b"]);
    assert_eq!((token.lines().count(), token.trim().len()), (1, 32), "the bare token");
    let held = daemon.ask(&["acquire", "a/b"]);
    assert_eq!((held.code, held.out.as_str()), (Some(75), ""));
    assert!(held.err.contains("a/b is held by me"), "{}", held.err);
    let status = daemon.json(&["status", "--json", "a/b"]);
    assert_eq!(status["holders"][0]["metadata"]["build"], "17");
    let plain = daemon.get(&["status", "a/b"]);
    assert!(plain.contains("state=held\n") && plain.contains("owner=me\n"), "{plain}");
    assert!(plain.contains("meta=build=17\n"), "{plain}");
    let list = daemon.get(&["list", "--prefix", "a/"]);
    let cells: Vec<&str> = list.trim_end_matches('\n').split('\t').collect();
    assert_eq!((cells[0], cells[1], cells[2], cells.len()), ("a/b", "held", "me", 8));
    assert!(cells[7].parse::<u64>().is_ok_and(|age_ms| age_ms < 60_000), "its age: {list}");
    assert_eq!(daemon.get(&["list", "--prefix", "z"]), "");
    let extended = fed(&daemon, &["extend", "--token-file", "-", "--note", "two", "--json", "a/b"], &token);
    let lease: serde_json::Value = serde_json::from_str(&extended.out).expect("JSON");
    assert_eq!((extended.code, &lease["note"], lease.get("token")), (Some(0), &"two".into(), None));
    assert_eq!(fed(&daemon, &["release", "--token-file", "-", "a/b"], &token).code, Some(0));
    let again = fed(&daemon, &["release", "--token-file", "-", "a/b"], &token);
    assert_eq!((again.code, again.err.lines().count()), (Some(76), 1), "{again:?}");
    assert_eq!(fed(&daemon, &["extend", "--token-file", "-", "a/b"], &token).code, Some(76));
    let free = daemon.ask(&["status", "a/b"]);
    assert_eq!((free.code, free.err.as_str()), (Some(1), "redlockd: a/b is free\n"));
}

#[test]
fn a_token_goes_into_a_file_of_its_own_or_nothing_is_acquired() {
    let daemon = Daemon::start();
    let dir = tempfile::tempdir().expect("a directory");
    let file = dir.path().join("lease.token");
    let path = file.to_str().expect("text");
    let out = daemon.get(&["acquire", "--token-file", path, "--json", "x"]);
    let token = std::fs::read_to_string(&file).expect("written");
    assert!(!out.contains(token.trim()), "it is in the file alone");
    assert_eq!(std::fs::metadata(&file).expect("there").permissions().mode() & 0o777, 0o600);
    let refused = daemon.ask(&["acquire", "--token-file", path, "y"]);
    assert_eq!(refused.code, Some(73), "{refused:?}");
    assert_eq!(daemon.ask(&["status", "y"]).code, Some(1));
    assert_eq!(std::fs::read_to_string(&file).expect("untouched"), token);
    let other = dir.path().join("other");
    assert_eq!(daemon.ask(&["acquire", "--token-file", other.to_str().expect("text"), "x"]).code, Some(75));
    assert!(!other.exists(), "a token that proves nothing is not left behind");
    let released = ended(daemon.command(&["release", "x"]).env("REDLOCKD_TOKEN_FILE", &file));
    assert_eq!(released.code, Some(0), "{released:?}");
}

#[test]
fn a_token_that_others_can_read_is_warned_of() {
    let daemon = Daemon::start();
    let dir = tempfile::tempdir().expect("a directory");
    let file = dir.path().join("token");
    let file = file.to_str().expect("text");
    daemon.get(&["acquire", "--token-file", file, "x"]);
    let quiet = daemon.ask(&["extend", "--token-file", file, "x"]);
    assert_eq!((quiet.code, quiet.err.as_str()), (Some(0), ""));
    std::fs::set_permissions(file, std::os::unix::fs::PermissionsExt::from_mode(0o644)).expect("own file");
    let warned = daemon.ask(&["release", "--token-file", file, "x"]);
    assert!(warned.code == Some(0) && warned.err.contains("other users can read the token file"), "{warned:?}");
}

#[test]
fn tokens_that_are_none_are_64_and_not_repeated() {
    let daemon = Daemon::start();
    let done = daemon.ask(&["release", "x"]);
    assert!(done.code == Some(64) && done.err.contains("--token-file"), "{done:?}");
    for input in ["", "hunter2 hunter2 hunter2 hunter2", &"hunter2".repeat(100)] {
        let done = fed(&daemon, &["release", "--token-file", "-", "x"], input);
        assert!(done.code == Some(64) && !done.err.contains("hunter2"), "{done:?}");
    }
}

#[test]
fn force_ends_the_holder_that_was_seen() {
    let daemon = Daemon::start();
    assert_eq!(daemon.ask(&["force", "--reason", "r", "x"]).code, Some(1));
    let lease = daemon.json(&["acquire", "--json", "--ttl", "5s", "x"]);
    let fence = lease["fence"].as_u64().expect("a fence");
    let changed = daemon.ask(&["force", "--now", "--if-fence", &(fence - 1).to_string(), "--reason", "r", "x"]);
    assert_eq!(changed.code, Some(75), "{changed:?}");
    let revoked = daemon.ask(&["force", "--reason", "r", "x"]);
    assert!(revoked.code == Some(0) && revoked.err.contains("not renewed any more"), "{revoked:?}");
    let token = lease["token"].as_str().expect("a token");
    assert_eq!(fed(&daemon, &["extend", "--token-file", "-", "x"], token).code, Some(76));
    let now = daemon.ask(&["force", "--now", "--if-fence", &fence.to_string(), "--reason", "r", "x"]);
    assert!(now.code == Some(0) && now.err.contains("may still be working"), "{now:?}");
    assert_eq!(daemon.ask(&["status", "x"]).code, Some(1));
    assert_eq!(daemon.ask(&["force", "x"]).code, Some(64), "a reason is needed");
}

#[test]
fn fence_is_0_for_the_lease_that_stands_and_76_for_others() {
    let daemon = Daemon::start();
    let fence_of = |lease: &serde_json::Value| lease["fence"].as_u64().expect("a fence").to_string();
    let first = daemon.json(&["acquire", "--json", "x"]);
    let current = daemon.ask(&["fence", "x", &fence_of(&first)]);
    assert_eq!((current.code, current.out.as_str(), current.err.as_str()), (Some(0), "", ""));
    assert_eq!(daemon.json(&["fence", "--json", "x", &fence_of(&first)])["token_id"], first["token_id"]);
    let token = first["token"].as_str().expect("a token");
    assert_eq!(fed(&daemon, &["release", "--token-file", "-", "x"], token).code, Some(0));
    let over = daemon.ask(&["fence", "x", &fence_of(&first)]);
    assert!(over.code == Some(76) && over.err.contains("is over"), "{over:?}");
    let second = daemon.json(&["acquire", "--json", "x"]);
    let stale = daemon.ask(&["fence", "--json", "x", &fence_of(&first)]);
    assert!(stale.code == Some(76) && stale.err.contains(&fence_of(&second)), "{stale:?}");
    assert!(stale.out.contains("\"newest_fence\":"), "{stale:?}");
    for wrong in ["0", "9007199254740991", "x"] {
        assert_eq!(daemon.ask(&["fence", "x", wrong]).code, Some(64), "{wrong}");
    }
}

#[test]
fn nodes_and_health_say_yes_and_no() {
    let mut daemon = Daemon::start();
    let nodes = daemon.get(&["nodes"]);
    assert!(nodes.starts_with("embedded-1\tup\tyes\t"), "{nodes}");
    assert_eq!(daemon.json(&["nodes", "--json"])["quorum"]["granted"], 1);
    assert_eq!(daemon.get(&["health"]), "ready\n");
    assert_eq!(daemon.get(&["health", "--live"]), "live\n");
    daemon.kill();
    let dead = daemon.ask(&["health", "--timeout", "1s"]);
    assert_eq!((dead.code, dead.out.as_str(), dead.err.lines().count()), (Some(1), "", 1), "{dead:?}");
    for args in [&["nodes"][..], &["list"], &["status", "x"], &["acquire", "x"]] {
        assert_eq!(daemon.ask(args).code, Some(69), "{args:?}");
    }
}

/// A7: a list that may be incomplete says which nodes do not vote, and why.
#[tokio::test]
async fn an_incomplete_list_says_why() {
    let mut nodes = cluster(3).await;
    let daemon = Daemon::over(&nodes, &[]);
    poll::until_true("all vote", || daemon.ask(&["list"]).code == Some(0)).await;
    nodes[0].kill();
    nodes[2].kill();
    let beginning = "redlockd: the list may be incomplete: too few nodes vote: n0: ";
    // The probes notice one node after the other.
    poll::until_true("it says why", || {
        let list = daemon.ask(&["list"]);
        assert!(!list.err.contains("n1"), "{list:?}");
        list.code == Some(69) && list.err.starts_with(beginning) && list.err.contains("; n2: ")
    })
    .await;
}

/// The first line of a request's head that begins with `name`, from a server that answers 401.
fn header_sent(key_args: &[&str], url_args: &[&str], name: &str) -> (Option<String>, Ended) {
    use std::io::Read;
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let url = format!("http://{}", listener.local_addr().expect("bound"));
    let server = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().expect("a caller");
        let mut received = Vec::new();
        let mut buffer = [0; 1024];
        while !received.windows(4).any(|w| w == b"\r\n\r\n") {
            let n = stream.read(&mut buffer).expect("readable");
            received.extend_from_slice(&buffer[..n]);
        }
        stream
            .write_all(b"HTTP/1.1 401 Unauthorized\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
            .expect("writable");
        String::from_utf8(received).expect("text")
    });
    let done = ended(redlockd(&[&["list"], key_args, url_args].concat()).env("REDLOCKD_URL", &url));
    let received = server.join().expect("served");
    (received.lines().find(|line| line.starts_with(name)).map(ToOwned::to_owned), done)
}

#[test]
fn a_key_is_sent_and_a_careless_file_is_reported() {
    let dir = tempfile::tempdir().expect("a directory");
    let file = dir.path().join("key");
    std::fs::write(&file, "sesame\n").expect("writable");
    let path = file.to_str().expect("text");
    for (mode, lines) in [(0o600, 1), (0o644, 2)] {
        std::fs::set_permissions(&file, std::fs::Permissions::from_mode(mode)).expect("own file");
        let (header, done) = header_sent(&["--key-file", path], &[], "authorization:");
        assert_eq!(header.as_deref(), Some("authorization: Bearer sesame"));
        assert_eq!((done.code, done.err.lines().count()), (Some(77), lines), "{done:?}");
        assert_eq!(done.err.contains("chmod 600"), lines == 2, "{done:?}");
        assert!(!done.err.contains("sesame"));
    }
}

#[test]
fn a_key_does_not_travel_openly_to_another_host() {
    let dir = tempfile::tempdir().expect("a directory");
    let home = dir.path().join(".config/redlockd");
    std::fs::create_dir_all(&home).expect("writable");
    std::fs::write(home.join("key"), "sesame\n").expect("writable");
    std::fs::set_permissions(home.join("key"), std::fs::Permissions::from_mode(0o600)).expect("own file");
    let ask = |args: &[&str]| ended(redlockd(args).env("HOME", dir.path()));
    // Nothing is sent to this name, which does not exist: the refusal comes before.
    let refused = ask(&["list", "--url", "http://locks.invalid"]);
    assert_eq!((refused.code, refused.err.lines().count()), (Some(64), 1), "{refused:?}");
    assert!(refused.err.contains("https") && !refused.err.contains("sesame"), "{refused:?}");
    let sent = ask(&["list", "--url", "http://127.0.0.1:1"]);
    assert_eq!(sent.code, Some(69), "{sent:?}");
    let missing = ask(&["list", "--key-file", "/nowhere/key"]);
    assert!(missing.code == Some(64) && missing.err.contains("/nowhere/key"), "{missing:?}");
}

/// At a terminal (by script(1)): a table, in colour unless NO_COLOR says otherwise.
#[test]
fn people_get_tables() {
    let daemon = Daemon::start();
    daemon.get(&["acquire", "--owner", "me", "x"]);
    let binary = env!("CARGO_BIN_EXE_redlockd");
    let at_terminal = |no_colour: &str| {
        let mut command = std::process::Command::new("script");
        command.args(["-qec", &format!("{binary} list"), "/dev/null"]).env("REDLOCKD_URL", daemon.url());
        command.env("NO_COLOR", no_colour).env("SHELL", "/bin/sh").stdin(Stdio::null());
        ended(command.stdout(Stdio::piped()).stderr(Stdio::piped())).out
    };
    let (coloured, plain) = (at_terminal(""), at_terminal("1"));
    assert!(coloured.contains("\x1b[1mRESOURCE") && coloured.contains("me"), "{coloured}");
    assert!(plain.contains("RESOURCE  STATE") && !plain.contains('\x1b'), "{plain}");
}

#[test]
fn settings_are_shown_with_their_origins_and_without_secrets() {
    let mut command =
        redlockd(&["config", "show", "--set", "connections_per_node=2", "--node", "a=redis://:hunter2@h"]);
    let shown = ended(command.env("REDLOCKD_LISTEN", "127.0.0.1:9"));
    assert_eq!(shown.code, Some(0), "{shown:?}");
    let line = |key: &str| shown.out.lines().find(|l| l.starts_with(key)).unwrap_or_default();
    assert!(line("connections_per_node = 2").ends_with("# on the command line"), "{}", shown.out);
    assert!(line("listen = \"127.0.0.1:9\"").ends_with("# in the environment"), "{}", shown.out);
    assert!(line("guard = \"500ms\"").ends_with("# in the defaults"), "{}", shown.out);
    assert!(line("nodes = ").contains("a=redis://…@h") && !shown.out.contains("hunter2"), "{}", shown.out);
}

#[test]
fn a_password_file_of_one_node_is_shown_as_a_path_and_the_output_is_a_configuration_file() {
    let dir = tempfile::tempdir().expect("a directory");
    let (secret, file) = (dir.path().join("b.password"), dir.path().join("redlockd.toml"));
    std::fs::write(&secret, "hunter2\n").expect("written");
    let secret = secret.display().to_string();
    let nodes = format!(
        "[[node]]\nname = \"a\"\nurl = \"redis://u:hunter3@h\"\n\
         [[node]]\nname = \"b\"\nurl = \"redis://u@i\"\npassword_file = \"{secret}\"\n\
         [[node]]\nurl = \"unix:///j?pass=hunter4\"\n"
    );
    std::fs::write(&file, nodes).expect("written");
    let show = |from: &std::path::Path| ended(redlockd(&["config", "show", "--config"]).arg(from));
    let shown = show(&file);
    assert_eq!(shown.code, Some(0), "{shown:?}");
    let is_about_nodes = |line: &&str| line.starts_with("node = ") || line.starts_with("nodes = ");
    let lines: Vec<&str> = shown.out.lines().filter(is_about_nodes).collect();
    let node = format!(
        "node = [{{ name = \"a\", url = \"redis://…@h\" }}, \
         {{ name = \"b\", password_file = \"{secret}\", url = \"redis://…@i\" }}, \
         {{ name = \"/j\", url = \"unix:///j?…\" }}]  # in the configuration file"
    );
    assert_eq!(lines, [node.as_str()], "{}", shown.out);
    assert!(!shown.out.contains("hunter"), "{}", shown.out);
    // What was printed is read back as the same.
    let again = dir.path().join("again.toml");
    std::fs::write(&again, &shown.out).expect("written");
    let read = show(&again);
    assert_eq!(read.out.lines().find(|line| line.starts_with("node = ")), Some(node.as_str()), "{read:?}");
}

#[test]
fn the_documented_exit_codes_are_the_programs() {
    let text = include_str!("../../docs/command-line.md");
    let table = text.split("## Exit codes").nth(1).and_then(|t| t.split("\n## ").next()).expect("a table");
    let codes: Vec<u8> = table.lines().filter_map(|l| l.strip_prefix("| ")?.split(' ').next()?.parse().ok()).collect();
    assert_eq!(codes, redlockd::cli::exit::TABLE);
}

#[test]
fn a_slip_gets_a_suggestion() {
    for (args, word) in [(&["stauts", "x"][..], "'status'"), (&["list", "--prefx", "a"], "'--prefix'")] {
        let done = ended(&mut redlockd(args));
        assert!(done.code == Some(64) && done.err.contains(word), "{done:?}");
    }
}

/// Whoever asks for JSON gets it for a refusal, too; the sentence stays on standard error, and says each thing once.
#[test]
fn a_refusal_is_json_where_json_was_asked_for() {
    let daemon = Daemon::start();
    let json = |done: &Ended| -> serde_json::Value {
        serde_json::from_str(&done.out).unwrap_or_else(|e| panic!("{e}: {done:?}"))
    };
    let free = daemon.ask(&["status", "--json", "x"]);
    assert_eq!((free.code, json(&free)["state"].as_str()), (Some(1), Some("free")));
    daemon.get(&["acquire", "--ttl", "1m", "--owner", "a", "x"]);
    let held = daemon.ask(&["acquire", "--json", "x"]);
    assert_eq!((held.code, json(&held)["status"].as_u64()), (Some(75), Some(423)));
    assert!(held.err.starts_with("redlockd: ") && held.err.lines().count() == 1, "{}", held.err);
    let wrong = daemon.ask(&["acquire", "--json", "--ttl", "2h", "y"]);
    assert_eq!((wrong.code, json(&wrong)["errors"][0]["field"].as_str()), (Some(64), Some("ttl")));
    assert_eq!(wrong.err.matches("must be").count(), 1, "{}", wrong.err);
    // Also where nobody answers.
    let mut daemon = daemon;
    daemon.kill();
    for command in
        [&["status", "--json", "x"][..], &["acquire", "--json", "x"], &["watch", "--json", "--give-up", "1ms"]]
    {
        let unanswered = daemon.ask(command);
        assert_eq!(
            (unanswered.code, json(&unanswered)["type"].as_str()),
            (Some(69), Some("about:blank")),
            "{command:?}"
        );
    }
}

/// C9: a script that provisions nodes runs it again.
#[tokio::test]
async fn c9_init_of_an_initialised_cluster_has_a_code_of_its_own() {
    let (cluster, new) = (Cluster::start(2).await, Cluster::blank(1).await);
    let init = |servers: &[&RedisServer]| {
        let args = node_args(servers.iter().map(|server| server.url()));
        let args: Vec<&str> = ["init"].into_iter().chain(args.iter().map(String::as_str)).chain(SHORT_TIMES).collect();
        ended(&mut redlockd(&args))
    };
    let [one, two] = &cluster.servers[..] else { panic!("two nodes") };
    let again = init(&[one, two]);
    assert!(again.code == Some(1) && again.err.contains("all 2 nodes are part of this cluster already"), "{again:?}");
    // With a new node, and as another cluster, it is a failure.
    assert_eq!(init(&[one, two, &new.servers[0]]).code, Some(69));
    assert_eq!(init(&[one]).code, Some(69));
    for command in ["init", "doctor"] {
        let help = ended(&mut redlockd(&[command, "--help"])).out;
        assert!(help.contains("--node") && !help.contains("--listen") && !help.contains("--log-level"), "{help}");
    }
}

/// C13: what the machine's limit allows is no warning.
#[tokio::test]
async fn c13_a_low_limit_of_open_files_is_said_and_no_warning() {
    let data = tempfile::tempdir().expect("a directory");
    let mut command = Command::new("sh");
    let script = "ulimit -n 500; exec \"$0\" serve --listen 127.0.0.1:0 --data-dir \"$1\"";
    command.args(["-c", script, env!("CARGO_BIN_EXE_redlockd")]).arg(data.path()).env_clear();
    let mut service = Running::spawn(command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped()));
    let log = BufReader::new(service.child().stderr.take().expect("piped")).lines().map_while(Result::ok);
    let line = log.into_iter().find(|line| line.contains("the limit of open files")).expect("it is said");
    assert!(line.contains(" INFO ") && line.contains("connections=400"), "{line}");
}
