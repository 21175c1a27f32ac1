//! The system under test: five real redis-servers whose wall clocks can be stepped, a proxy for each
//! pair of instance and node, and two instances of the real binary.

use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

use super::support::chaos_proxy::{ChaosProxy, FAIR};
use super::support::redis_server::{Options, RedisServer};

/// Configured nodes.
pub const NODES: usize = 5;
/// Instances over them.
pub const INSTANCES: usize = 2;
/// Short, so that [`QUARANTINE`] is short.
pub const MAX_TTL: Duration = Duration::from_secs(2);
/// As in the defaults.
pub const GUARD: Duration = Duration::from_millis(500);
/// As in the defaults.
pub const LOCK_DELAY: Duration = Duration::from_secs(1);
/// ⌈1.01·(max_ttl + lock_delay)⌉ + 2·guard.
pub const QUARANTINE: Duration = Duration::from_millis(4_030);

const SETTINGS: [&str; 9] = [
    "listen=127.0.0.1:0",
    "max_ttl=2s",
    "default_ttl=1s",
    "min_ttl=300ms",
    "node_timeout=100ms",
    "guard=500ms",
    "lock_delay=1s",
    "log_level=error",
    "drain_timeout=0s",
];

/// A redis-server and its clock.
pub struct ShiftedNode {
    pub server: RedisServer,
    clock: PathBuf,
}

impl ShiftedNode {
    /// Sets its wall clock this far ahead of the machine's (or behind).
    pub fn set_clock_ahead(&self, ms: i64) {
        let file = fs::File::options().write(true).open(&self.clock).expect("made at the start");
        file.write_all_at(&ms.to_ne_bytes(), 0).expect("eight bytes");
    }

    /// The newest part of its append-only file.
    pub async fn log_file(&self) -> Option<PathBuf> {
        let dir: Vec<String> = self.server.try_ask(&["CONFIG", "GET", "dir"]).await.ok()?;
        let files = fs::read_dir(Path::new(dir.get(1)?).join("appendonlydir")).ok()?;
        let mut files: Vec<PathBuf> = files.filter_map(|f| f.ok().map(|f| f.path())).collect();
        files.retain(|f| f.to_string_lossy().ends_with(".incr.aof"));
        files.sort();
        files.pop()
    }
}

/// One running `redlockd serve`.
pub struct Instance {
    child: Child,
    pub url: String,
}

impl Instance {
    fn start(nodes: &[String]) -> Self {
        let mut child = redlockd("serve", nodes).stdout(Stdio::piped()).spawn().expect("the binary runs");
        let lines = BufReader::new(child.stdout.take().expect("piped")).lines();
        let url = lines
            .map_while(Result::ok)
            .find_map(|line| line.split_once("listens on ").map(|(_, url)| url.trim().to_owned()));
        Self { child, url: url.expect("the address that it announces") }
    }

    /// SIGSTOP.
    pub fn freeze(&self) {
        kill_process(Pid::from_child(&self.child), Signal::STOP).expect("our own child");
    }

    /// SIGCONT.
    pub fn thaw(&self) {
        kill_process(Pid::from_child(&self.child), Signal::CONT).expect("our own child");
    }
}

impl Drop for Instance {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn redlockd(operation: &str, nodes: &[String]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_redlockd"));
    command.arg(operation).env_clear().stdin(Stdio::null());
    for node in nodes {
        command.args(["--node", node]);
    }
    for setting in SETTINGS {
        command.args(["--set", setting]);
    }
    command
}

/// All processes, in the order in which they are stopped.
pub struct ChaosCluster {
    pub instances: Vec<Instance>,
    /// By instance, then node.
    pub proxies: Vec<Vec<ChaosProxy>>,
    pub nodes: Vec<ShiftedNode>,
    /// For a replica, or another server under a node's name.
    pub spare: RedisServer,
    _shim: TempDir,
}

impl ChaosCluster {
    /// Servers and proxies, but no instance.
    pub async fn start() -> Self {
        let shim = tempfile::tempdir().expect("a temporary directory");
        let library = compile_shim(shim.path());
        let mut nodes = Vec::new();
        for n in 0..NODES {
            let clock = shim.path().join(format!("clock-{n}"));
            fs::write(&clock, 0_i64.to_ne_bytes()).expect("a writable directory");
            let env = vec![("LD_PRELOAD", library.clone()), ("CLOCKSHIM", clock.clone())];
            let more =
                ["--appendfsync", "everysec", "--enable-protected-configs", "yes", "--repl-diskless-sync-delay", "0"];
            let more = more.map(str::to_owned).to_vec();
            let options = Options { appendonly: true, env, more, ..Options::default() };
            nodes.push(ShiftedNode { server: RedisServer::start_with(options).await, clock });
        }
        let mut proxies = Vec::new();
        for _ in 0..INSTANCES {
            let mut row = Vec::new();
            for node in &nodes {
                row.push(ChaosProxy::start(node.server.port()).await);
            }
            proxies.push(row);
        }
        let more = ["--repl-diskless-sync-delay", "0"].map(str::to_owned).to_vec();
        let spare = RedisServer::start_with(Options { more, ..Options::default() }).await;
        Self { instances: Vec::new(), proxies, nodes, spare, _shim: shim }
    }

    /// Initialises the cluster and starts the instances, each behind proxies of its own.
    pub fn serve(&mut self) {
        let names = |row: &[ChaosProxy]| -> Vec<String> {
            row.iter().enumerate().map(|(n, proxy)| format!("n{n}=redis://{}", proxy.address())).collect()
        };
        let urls: Vec<Vec<String>> = self.proxies.iter().map(|row| names(row)).collect();
        let initialised = redlockd("init", &urls[0]).output().expect("the binary runs");
        assert!(initialised.status.success(), "{initialised:?}");
        self.instances = urls.iter().map(|nodes| Instance::start(nodes)).collect();
    }

    /// Ends all faults: network, clocks, stopped processes.
    pub fn heal(&self) {
        self.proxies.iter().flatten().for_each(|proxy| proxy.set(FAIR));
        self.instances.iter().for_each(Instance::thaw);
        for node in &self.nodes {
            node.server.thaw();
            node.set_clock_ahead(0);
        }
    }
}

fn compile_shim(dir: &Path) -> PathBuf {
    let (library, source) = (dir.join("clockshim.so"), dir.join("clockshim.c"));
    fs::write(&source, include_str!("clockshim.c")).expect("a writable directory");
    let mut cc = Command::new("cc");
    cc.args(["-shared", "-fPIC", "-O2", "-Wall", "-Werror", "-o"]).arg(&library).arg(&source);
    let done = cc.output().unwrap_or_else(|e| panic!("a C compiler is missing ({e})"));
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    library
}
