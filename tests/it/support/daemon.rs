//! The real binary, as a service of a test's own and as a command that talks to it. Services listen
//! on a free port which they keep over a restart, and are ended by their own process id.

use std::fs::File;
use std::io::{BufRead, BufReader};
use std::net::TcpListener;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};

use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;
use tokio::signal::unix::{SignalKind, signal};

use super::poll;
use super::redis_server::RedisServer;
use super::temp_dir;

/// Another process may take a free port before it is bound.
const PORT_TRIES: usize = 5;

/// What ended, and what it said.
#[derive(Debug)]
pub struct Ended {
    pub code: Option<i32>,
    pub out: String,
    pub err: String,
}

/// The binary with an empty environment but for a path, and its output piped.
pub fn redlockd(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_redlockd"));
    command.args(args).env_clear().env("PATH", std::env::var_os("PATH").unwrap_or_default());
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

/// Runs a command to its end.
pub fn ended(command: &mut Command) -> Ended {
    let output = command.output().expect("it runs");
    let text = |bytes| String::from_utf8(bytes).expect("text");
    Ended { code: shell_code(output.status), out: text(output.stdout), err: text(output.stderr) }
}

/// An exit code as shells report it: 128+n for signal n.
fn shell_code(status: ExitStatus) -> Option<i32> {
    status.code().or(status.signal().map(|signal| 128 + signal))
}

/// A running service.
pub struct Daemon {
    args: Vec<String>,
    port: u16,
    dir: TempDir,
    child: Child,
}

impl Daemon {
    /// With one embedded node.
    pub fn start() -> Self {
        Self::start_with(&[])
    }

    /// With these arguments.
    pub fn start_with(args: &[&str]) -> Self {
        let dir = temp_dir::in_memory();
        let args: Vec<String> = args.iter().map(ToString::to_string).collect();
        for _ in 0..PORT_TRIES {
            let port = TcpListener::bind("127.0.0.1:0").and_then(|l| l.local_addr()).expect("a free port").port();
            if let Some(child) = launch(&args, port, dir.path()) {
                return Self { args, port, dir, child };
            }
        }
        panic!("the service does not start: {}", log(dir.path()));
    }

    /// Over these Redis nodes.
    pub fn over(nodes: &[RedisServer], more: &[&str]) -> Self {
        let mut args = node_args(nodes);
        args.extend(more.iter().map(ToString::to_string));
        Self::start_with(&args.iter().map(String::as_str).collect::<Vec<_>>())
    }

    pub fn url(&self) -> String {
        format!("http://127.0.0.1:{}", self.port)
    }

    /// A client command that asks this service.
    pub fn command(&self, args: &[&str]) -> Command {
        let mut command = redlockd(args);
        command.env("REDLOCKD_URL", self.url());
        command
    }

    /// The same, to its end.
    pub fn ask(&self, args: &[&str]) -> Ended {
        ended(&mut self.command(args))
    }

    /// The same where it must succeed; its standard output.
    pub fn get(&self, args: &[&str]) -> String {
        let Ended { code, out, err } = self.ask(args);
        assert_eq!(code, Some(0), "{args:?}: {out}{err}");
        out
    }

    /// The JSON answer to a command that must succeed.
    pub fn json(&self, args: &[&str]) -> serde_json::Value {
        serde_json::from_str(&self.get(args)).expect("JSON")
    }

    /// SIGKILL, and gone.
    pub fn kill(&mut self) {
        self.child.kill().expect("our own child");
        self.child.wait().expect("our own child");
    }

    /// SIGSTOP: connections stay open, nothing is answered.
    pub fn freeze(&self) {
        kill_process(Pid::from_child(&self.child), Signal::STOP).expect("our own child");
    }

    /// SIGCONT.
    pub fn thaw(&self) {
        kill_process(Pid::from_child(&self.child), Signal::CONT).expect("our own child");
    }

    /// On the same port, after [`Self::kill`].
    pub fn restart(&mut self) {
        self.child = launch(&self.args, self.port, self.dir.path()).expect("its port is free again");
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        // Fails where it has ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Starts a service and waits until it says that it listens; `None` where it ended before.
fn launch(args: &[String], port: u16, dir: &Path) -> Option<Child> {
    let listen = format!("127.0.0.1:{port}");
    let mut command = redlockd(&["serve", "--listen", &listen, "--data-dir"]);
    // The tests share few cores and one disk: 50 ms for a node's answer are not enough then.
    command.env("REDLOCKD_NODE_TIMEOUT", "400ms").env("REDLOCKD_MIN_TTL", "1s");
    let log = File::create(dir.join("log")).expect("a log file");
    let mut child = command.arg(dir).args(args).stderr(log).spawn().expect("the binary runs");
    let mut lines = BufReader::new(child.stdout.take().expect("piped")).lines();
    if lines.next().is_some_and(|line| line.is_ok_and(|line| line.contains("listens on"))) {
        // It says some more; a closed pipe is no matter to it.
        return Some(child);
    }
    child.wait().expect("our own child");
    None
}

fn log(dir: &Path) -> String {
    std::fs::read_to_string(dir.join("log")).unwrap_or_default()
}

fn node_args(nodes: &[RedisServer]) -> Vec<String> {
    nodes.iter().enumerate().flat_map(|(i, node)| ["--node".to_owned(), format!("n{i}={}", node.url())]).collect()
}

/// Redis servers that were declared a new cluster.
pub async fn cluster(count: usize) -> Vec<RedisServer> {
    let nodes = futures_util::future::join_all((0..count).map(|_| RedisServer::start())).await;
    let args = node_args(&nodes);
    let args: Vec<&str> = std::iter::once("init").chain(args.iter().map(String::as_str)).collect();
    let declared = ended(&mut redlockd(&args));
    assert_eq!(declared.code, Some(0), "{declared:?}");
    nodes
}

/// A child of a test; killed when dropped.
pub struct Running(Option<Child>);

impl Running {
    /// Must be called within a tokio runtime.
    pub fn spawn(command: &mut Command) -> Self {
        stop_ignoring_signals();
        Self(Some(command.spawn().expect("it runs")))
    }

    pub fn child(&mut self) -> &mut Child {
        self.0.as_mut().expect("not waited for yet")
    }

    pub fn signal(&mut self, signal: Signal) {
        kill_process(Pid::from_child(self.child()), signal).expect("our own child");
    }

    /// Its end, which must come.
    pub async fn end(mut self) -> Ended {
        let child = self.child();
        poll::until_true("the child ends", || child.try_wait().expect("our own child").is_some()).await;
        let child = self.0.take().expect("not waited for yet");
        // In a thread: a process that it left behind may hold its output open.
        let (done, output) = std::sync::mpsc::channel();
        std::thread::spawn(move || done.send(child.wait_with_output()));
        let output = output.recv_timeout(poll::PATIENCE).expect("nobody else holds its output open");
        let output = output.expect("our own child");
        let text = |bytes| String::from_utf8(bytes).expect("text");
        Ended { code: shell_code(output.status), out: text(output.stdout), err: text(output.stderr) }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if let Some(mut child) = self.0.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// Children inherit the signals that this process ignores, as in the background of a script or under `nohup`; shells and
/// `redlockd run` then leave them ignored. Handling such a signal here gives children its default action, because exec
/// resets handlers but not "ignore". A signal that is not ignored keeps its action, so Ctrl-C still ends the tests.
pub fn stop_ignoring_signals() {
    let status = std::fs::read_to_string("/proc/self/status").expect("Linux");
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:")).expect("Linux");
    let ignored = u64::from_str_radix(mask.trim(), 16).expect("a number");
    for which in [SignalKind::interrupt(), SignalKind::hangup(), SignalKind::quit(), SignalKind::terminate()] {
        if ignored & (1 << (which.as_raw_value() - 1)) != 0 {
            // The handler stays when the stream is dropped.
            drop(signal(which).expect("these signals can be handled"));
        }
    }
}

/// Whether a process runs: it exists and is no zombie.
pub fn is_running(pid: &str) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{}/stat", pid.trim())).unwrap_or_default();
    let state = stat.rsplit(')').next().and_then(|rest| rest.split_whitespace().next());
    !matches!(state, None | Some("Z" | "X"))
}

/// The text of a file that is about to appear, once it ends with a newline.
pub async fn line_in(path: &Path) -> String {
    poll::until(&format!("a line in {}", path.display()), || {
        let text = std::fs::read_to_string(path).ok().filter(|text| text.ends_with('\n'));
        async move { text }
    })
    .await
}
