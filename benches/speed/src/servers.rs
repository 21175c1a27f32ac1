//! The servers of a run: Redis masters, and the service over them or with embedded nodes. All are started
//! here, on free ports of loopback, with directories of their own, and end with this process.

use std::net::{SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use redis::Connection;

use crate::Failure;

/// How many Redis masters a cluster has here.
pub const NODES: usize = 5;
/// How long a server may take to answer its first request.
const STARTUP: Duration = Duration::from_secs(20);

/// A process that ends when this is dropped.
pub struct Server(pub Child);

impl Server {
    /// Its process id.
    pub fn pid(&self) -> u32 {
        self.0.id()
    }

    /// Ends it as an operator would, and waits until it has.
    ///
    /// Errors: where it does not end.
    pub async fn stop(&mut self) -> Result<(), Failure> {
        signal(self.pid(), "-TERM")?;
        until("the end of a server", || self.0.try_wait().ok().flatten()).await?;
        Ok(())
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A port that nobody listens on.
pub fn free_port() -> Result<u16, Failure> {
    Ok(TcpListener::bind("127.0.0.1:0")?.local_addr()?.port())
}

/// Waits until `try_it` gives something.
pub async fn until<T>(what: &str, mut try_it: impl FnMut() -> Option<T>) -> Result<T, Failure> {
    let begun = Instant::now();
    while begun.elapsed() < STARTUP {
        if let Some(there) = try_it() {
            return Ok(there);
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    Err(format!("{what} does not come").into())
}

/// A directory that goes away. On the disk, below `target/` or where `TMPDIR` says: what is written there
/// is to cost what writing costs.
pub struct Directory(pub PathBuf);

impl Directory {
    /// A new one.
    ///
    /// Errors: where it cannot be made.
    pub fn new() -> Result<Self, Failure> {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let base = std::env::var_os("TMPDIR").map_or_else(|| PathBuf::from("target"), PathBuf::from);
        let name = format!("bench-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let path = std::path::absolute(base.join(name))?;
        std::fs::create_dir_all(&path)?;
        Ok(Self(path))
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Redis masters that know nothing of each other.
pub struct Nodes {
    /// Where they listen.
    pub addresses: Vec<SocketAddr>,
    servers: Vec<Server>,
    _data: Directory,
}

impl Nodes {
    /// Starts them, without persistence.
    pub async fn start() -> Result<Self, Failure> {
        Self::start_with(&["--save", "", "--appendonly", "no"]).await
    }

    /// Starts them so that they answer a command only when it is on the disk.
    pub async fn start_durable() -> Result<Self, Failure> {
        Self::start_with(&["--save", "", "--appendonly", "yes", "--appendfsync", "always"]).await
    }

    async fn start_with(persistence: &[&str]) -> Result<Self, Failure> {
        let data = Directory::new()?;
        let (mut addresses, mut servers) = (Vec::new(), Vec::new());
        for at in 0..NODES {
            let (port, dir) = (free_port()?, data.0.join(at.to_string()));
            std::fs::create_dir(&dir)?;
            let mut command = Command::new("redis-server");
            command.args(["--port", &port.to_string(), "--bind", "127.0.0.1", "--dir"]).arg(dir).args(persistence);
            servers.push(Server(command.stdout(Stdio::null()).spawn()?));
            addresses.push(SocketAddr::from(([127, 0, 0, 1], port)));
        }
        let nodes = Self { addresses, servers, _data: data };
        for at in 0..NODES {
            until("redis-server", || nodes.connection(at).ok()).await?;
            let load = redis::cmd("SCRIPT").arg("LOAD").arg(crate::floor::COMPARE_AND_DELETE).to_owned();
            load.exec(&mut nodes.connection(at)?)?;
        }
        Ok(nodes)
    }

    /// As the service takes them.
    pub fn urls(&self) -> Vec<String> {
        self.addresses.iter().map(|address| format!("redis://{address}")).collect()
    }

    /// Their processes.
    pub fn pids(&self) -> Vec<u32> {
        self.servers.iter().map(Server::pid).collect()
    }

    /// A connection to one of them.
    pub fn connection(&self, at: usize) -> Result<Connection, Failure> {
        connection(self.addresses[at])
    }

    /// See [`fingerprints`].
    pub fn fingerprints(&self) -> Result<Vec<String>, Failure> {
        fingerprints(&self.addresses)
    }

    /// Stops one of them until the guard is dropped.
    pub fn freeze_one(&self) -> Result<Frozen, Failure> {
        let pid = self.servers[NODES - 1].pid();
        signal(pid, "-STOP")?;
        Ok(Frozen(pid))
    }
}

/// A connection to the node at this address.
pub fn connection(address: SocketAddr) -> Result<Connection, Failure> {
    Ok(redis::Client::open(format!("redis://{address}"))?.get_connection()?)
}

/// What the service's scripts compare with each node's marker: process, cluster and view, then the quarantine asked for.
pub fn fingerprints(nodes: &[SocketAddr]) -> Result<Vec<String>, Failure> {
    let fingerprint = |node: &SocketAddr| {
        let command = redis::cmd("HMGET").arg("redlockd:meta").arg("pass").arg("ask").to_owned();
        let (pass, ask): (String, String) = command.query(&mut connection(*node)?)?;
        Ok(format!("{pass}|{ask}"))
    };
    nodes.iter().map(fingerprint).collect()
}

/// A server that does not run.
pub struct Frozen(u32);

impl Drop for Frozen {
    fn drop(&mut self) {
        let _ = signal(self.0, "-CONT");
    }
}

fn signal(pid: u32, signal: &str) -> Result<(), Failure> {
    Command::new("kill").args([signal, &pid.to_string()]).status()?;
    Ok(())
}

/// A running redlockd.
pub struct Service {
    /// Where it listens.
    pub address: SocketAddr,
    /// Its process.
    pub server: Server,
    _data: Directory,
}

fn node_args(nodes: &Nodes) -> Vec<String> {
    nodes.urls().into_iter().flat_map(|url| ["--node".to_owned(), url]).collect()
}

/// How to start a redlockd.
pub struct Start<'a> {
    /// The program.
    pub binary: &'a Path,
    /// What it is run by, such as `strace`; empty: by itself.
    pub under: &'a [String],
    /// Further arguments.
    pub args: &'a [&'a str],
}

impl Start<'_> {
    /// Over these nodes, which it declares.
    ///
    /// Errors: where it does not.
    pub async fn over(&self, nodes: &Nodes) -> Result<Service, Failure> {
        let declared = Command::new(self.binary)
            .arg("init")
            .args(node_args(nodes))
            .args(self.args)
            .stdout(Stdio::null())
            .status()?;
        if !declared.success() {
            return Err("the new cluster was not declared".into());
        }
        self.beside(nodes).await
    }

    /// Over nodes that another one has declared.
    ///
    /// Errors: where it does not start.
    pub async fn beside(&self, nodes: &Nodes) -> Result<Service, Failure> {
        self.start(&node_args(nodes)).await
    }

    /// On embedded nodes.
    ///
    /// Errors: where it does not.
    pub async fn embedded(&self) -> Result<Service, Failure> {
        self.start(&[]).await
    }

    async fn start(&self, nodes: &[String]) -> Result<Service, Failure> {
        let (data, address) = (Directory::new()?, SocketAddr::from(([127, 0, 0, 1], free_port()?)));
        let mut words = self.under.iter().map(AsRef::as_ref).chain([self.binary.as_os_str()]);
        let mut command = Command::new(words.next().ok_or("no program")?);
        command.args(words).args(["serve", "--listen", &address.to_string(), "--log-level", "error"]);
        command.arg("--data-dir").arg(&data.0).args(nodes).args(self.args);
        let server = Server(command.stdout(Stdio::null()).stderr(Stdio::inherit()).spawn()?);
        until("redlockd", || crate::http::is_ready(address).then_some(())).await?;
        Ok(Service { address, server, _data: data })
    }
}
