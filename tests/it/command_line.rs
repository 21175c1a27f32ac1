//! The real binary: exit codes, where messages go, and how it stops. What the messages say in
//! detail is tested beside the code that writes them.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::{Child, Command, Output, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};

/// How long the binary may take for anything here; only a hang takes this long.
const PATIENCE: Duration = Duration::from_secs(60);

fn redlockd(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_redlockd"));
    command.args(args).env_clear().stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

fn output(args: &[&str]) -> (Option<i32>, String, String) {
    let Output { status, stdout, stderr } = redlockd(args).output().expect("the binary runs");
    let text = |bytes| String::from_utf8(bytes).expect("text");
    (status.code(), text(stdout), text(stderr))
}

/// A running service; killed when dropped.
struct Service {
    child: Child,
    lines: mpsc::Receiver<String>,
    _data: tempfile::TempDir,
}

impl Service {
    /// Its standard output and standard error come as one stream of lines.
    fn start(args: &[&str]) -> Self {
        let data = tempfile::tempdir().expect("a temporary directory");
        let mut child = redlockd(args).env("REDLOCKD_DATA_DIR", data.path()).spawn().expect("the binary runs");
        let (sender, lines) = mpsc::channel();
        forward(child.stdout.take().expect("piped"), sender.clone());
        forward(child.stderr.take().expect("piped"), sender);
        Self { child, lines, _data: data }
    }

    /// The first line that contains `word`.
    fn line_with(&self, word: &str) -> String {
        let mut seen = Vec::new();
        loop {
            match self.lines.recv_timeout(PATIENCE) {
                Ok(line) if line.contains(word) => return line,
                Ok(line) => seen.push(line),
                Err(error) => panic!("no line with {word:?} ({error}) in {seen:#?}"),
            }
        }
    }

    /// The address that it says it listens on.
    fn address(&self) -> SocketAddr {
        loop {
            let line = self.line_with("127.0.0.1:");
            let words = line.split(|c: char| !(c.is_ascii_digit() || c == '.' || c == ':'));
            if let Some(address) = words.filter_map(|w| w.parse::<SocketAddr>().ok()).find(|a| a.port() != 0) {
                return address;
            }
        }
    }

    fn signal(&self, signal: Signal) {
        let pid = i32::try_from(self.child.id()).ok().and_then(Pid::from_raw).expect("a process id");
        kill_process(pid, signal).expect("own child");
    }

    /// The exit code, once the child has ended (its output is closed then).
    fn exit_code(&mut self) -> Option<i32> {
        loop {
            match self.lines.recv_timeout(PATIENCE) {
                Ok(_) => {}
                Err(mpsc::RecvTimeoutError::Disconnected) => return self.child.wait().expect("own child").code(),
                Err(mpsc::RecvTimeoutError::Timeout) => panic!("it does not stop"),
            }
        }
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        // Fails where it has ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn forward(from: impl Read + Send + 'static, to: mpsc::Sender<String>) {
    thread::spawn(move || {
        for line in BufReader::new(from).lines().map_while(Result::ok) {
            if to.send(line).is_err() {
                return;
            }
        }
    });
}

#[test]
fn answers_go_to_standard_output() {
    let (code, out, err) = output(&["--version"]);
    assert_eq!((code, err.as_str()), (Some(0), ""));
    assert_eq!(out.trim(), concat!("redlockd ", env!("CARGO_PKG_VERSION")));
    let (code, out, err) = output(&["config", "check"]);
    assert_eq!((code, err.as_str()), (Some(0), ""));
    assert!(out.starts_with("the configuration is good: "), "{out}");
}

#[test]
fn wrong_usage_exits_64_and_a_wrong_configuration_78_with_one_sentence_on_standard_error() {
    for (args, code, word) in [
        (&["--frobnicate"][..], 64, "--frobnicate"),
        (
            &["serve", "--set", "connections_per_node=0"],
            78,
            "`connections_per_node` on the command line is \"0\", but must be",
        ),
        (&["serve", "--node", "redis://:hunter2@h:0"], 78, "`nodes` on the command line is wrong: node 1"),
        (&["--set", "node_timeout=80ms"], 78, "`node_timeout` is 80ms, but must be at most half of min_ttl"),
    ] {
        let (actual, out, err) = output(args);
        assert_eq!((actual, out.as_str(), err.lines().count()), (Some(code), "", 1), "{err}");
        assert!(err.contains(word) && !err.contains("hunter2"), "{err}");
    }
}

#[test]
fn the_real_environment_and_a_real_file_are_read() {
    let mut file = tempfile::NamedTempFile::new().expect("a temporary file");
    file.write_all(b"listen = \"127.0.0.1:1\"\nnodes = [\"a=redis://h\"]\n").expect("writable");
    let mut command = redlockd(&["config", "check"]);
    command.env("REDLOCKD_CONFIG", file.path()).env("REDLOCKD_LISTEN", "127.0.0.1:2");
    let Output { status, stdout, stderr } = command.output().expect("the binary runs");
    assert_eq!(status.code(), Some(0));
    let out = String::from_utf8(stdout).expect("text");
    assert_eq!(out, "the configuration is good: listen on 127.0.0.1:2, nodes: 1 (a)\n");
    assert!(String::from_utf8(stderr).expect("text").contains("`nodes` names one node"));
}

#[test]
fn a_taken_address_exits_69_and_names_it() {
    let taken = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let address = taken.local_addr().expect("bound").to_string();
    let mut service = Service::start(&["--listen", &address]);
    assert!(service.line_with(&address).contains("in use"));
    assert_eq!(service.exit_code(), Some(69));
}

#[test]
fn each_signal_ends_an_idle_service_in_good_order() {
    for signal in [Signal::TERM, Signal::INT] {
        let mut service = Service::start(&["serve", "--listen", "127.0.0.1:0", "--set", "worker_threads=1"]);
        drop(TcpStream::connect(service.address()).expect("it listens once it says so"));
        service.signal(signal);
        assert_eq!(service.exit_code(), Some(0));
    }
}

#[test]
fn the_log_goes_to_standard_error_as_json_where_asked_and_carries_the_warnings() {
    let mut command = redlockd(&["--listen", "127.0.0.1:0", "--log-format", "json"]);
    let data = tempfile::tempdir().expect("a temporary directory");
    command.env("REDLOCKD_DATA_DIR", data.path()).env("REDLOCKD_LANE", "1");
    let mut child = command.spawn().expect("the binary runs");
    let mut lines = BufReader::new(child.stderr.take().expect("piped")).lines();
    let first = lines.next().expect("a line").expect("readable");
    let pid = i32::try_from(child.id()).ok().and_then(Pid::from_raw).expect("a process id");
    kill_process(pid, Signal::KILL).expect("own child");
    child.wait().expect("own child");
    let event: serde_json::Value = serde_json::from_str(&first).expect("JSON");
    assert_eq!(event["level"], "WARN");
    assert!(event["message"].as_str().is_some_and(|m| m.contains("REDLOCKD_LANE")), "{first}");
    let mut out = String::new();
    child.stdout.take().expect("piped").read_to_string(&mut out).expect("readable");
    assert!(!out.contains("REDLOCKD_LANE"), "{out}");
}
