//! The servers of a run: five Redis masters and the service over them, and the service with embedded
//! nodes. All are started here, on free ports of loopback, and end with this process.

use std::net::{SocketAddr, TcpListener};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use redis::Connection;

use crate::Failure;
use crate::stats::Run;

const NODES: usize = 5;
/// How long a server may take to answer its first request.
const STARTUP: Duration = Duration::from_secs(20);
/// Calls of which the cost of a script is the mean.
const CALLS: usize = 20_000;

/// A process that ends when this is dropped.
pub struct Server(pub Child);

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
    Err(format!("{what} does not answer").into())
}

/// Five Redis masters.
pub struct Nodes {
    /// Where they listen.
    pub addresses: Vec<SocketAddr>,
    servers: Vec<Server>,
}

impl Nodes {
    /// Starts them.
    pub async fn start() -> Result<Self, Failure> {
        let (mut addresses, mut servers) = (Vec::new(), Vec::new());
        for _ in 0..NODES {
            let port = free_port()?;
            let args = ["--port", &port.to_string(), "--bind", "127.0.0.1", "--save", "", "--appendonly", "no"];
            servers.push(Server(Command::new("redis-server").args(args).stdout(Stdio::null()).spawn()?));
            addresses.push(SocketAddr::from(([127, 0, 0, 1], port)));
        }
        let nodes = Self { addresses, servers };
        for at in 0..NODES {
            until("redis-server", || nodes.connection(at).ok()).await?;
        }
        Ok(nodes)
    }

    /// As the service takes them.
    pub fn urls(&self) -> impl Iterator<Item = String> {
        self.addresses.iter().map(|address| format!("redis://{address}"))
    }

    fn connection(&self, at: usize) -> Result<Connection, Failure> {
        Ok(redis::Client::open(format!("redis://{}", self.addresses[at]))?.get_connection()?)
    }

    /// Makes a script known to all.
    pub async fn load(&self, source: &str) -> Result<(), Failure> {
        for at in 0..NODES {
            redis::cmd("SCRIPT").arg("LOAD").arg(source).exec(&mut self.connection(at)?)?;
        }
        Ok(())
    }

    /// What each node's marker says while it votes.
    pub async fn passes(&self) -> Result<Vec<String>, Failure> {
        let pass = |at| Ok(redis::cmd("HGET").arg("redlockd:meta").arg("pass").query(&mut self.connection(at)?)?);
        (0..NODES).map(pass).collect()
    }

    /// Stops one of them until the guard is dropped.
    pub fn freeze_one(&self) -> Result<Frozen, Failure> {
        let pid = self.servers[NODES - 1].0.id();
        signal(pid, "-STOP")?;
        Ok(Frozen(pid))
    }
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
    server: Server,
    _data: Option<tempdir::Dir>,
}

impl Service {
    /// Over these nodes, which it declares.
    pub async fn over(binary: &Path, nodes: &Nodes) -> Result<Self, Failure> {
        let nodes: Vec<String> = nodes.urls().flat_map(|url| ["--node".to_owned(), url]).collect();
        let declared = Command::new(binary).arg("init").args(&nodes).stdout(Stdio::null()).status()?;
        if !declared.success() {
            return Err("the new cluster was not declared".into());
        }
        Self::start(binary, &nodes, None).await
    }

    /// On embedded nodes.
    pub async fn embedded(binary: &Path) -> Result<Self, Failure> {
        let data = tempdir::Dir::new()?;
        let args = ["--data-dir".to_owned(), data.0.display().to_string()];
        Self::start(binary, &args, Some(data)).await
    }

    async fn start(binary: &Path, args: &[String], data: Option<tempdir::Dir>) -> Result<Self, Failure> {
        let address = SocketAddr::from(([127, 0, 0, 1], free_port()?));
        let mut command = Command::new(binary);
        command.args(["serve", "--listen", &address.to_string(), "--log-level", "error"]).args(args);
        let server = Server(command.stdout(Stdio::null()).stderr(Stdio::inherit()).spawn()?);
        until("redlockd", || crate::http::is_ready(address).then_some(())).await?;
        Ok(Self { address, server, _data: data })
    }

    /// The same run, with the CPU time that the service took for each cycle.
    pub async fn watched(&self, run: impl Future<Output = Result<Run, Failure>>) -> Result<Run, Failure> {
        let before = cpu_us(self.server.0.id())?;
        let mut run = run.await?;
        run.cpu_us = (cpu_us(self.server.0.id())? - before) / run.cycles().max(1) as f64;
        Ok(run)
    }
}

/// CPU time of a process so far, microseconds: the kernel counts it in hundredths of a second.
fn cpu_us(pid: u32) -> Result<f64, Failure> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat"))?;
    let after_name = stat.rsplit_once(") ").ok_or("no such process")?.1;
    let ticks: Vec<f64> = after_name.split(' ').skip(11).take(2).filter_map(|n| n.parse().ok()).collect();
    Ok(ticks.iter().sum::<f64>() * 10_000.0)
}

/// What each command costs on a node, in its own accounts (`INFO commandstats`).
pub async fn cost_of_scripts(nodes: &Nodes) -> Result<Vec<String>, Failure> {
    let mut connection = nodes.connection(0)?;
    let calls = crate::floor::calls(&nodes.passes().await?[0], CALLS);
    let (mut lines, mut costs) = (vec![String::new()], Vec::new());
    for (name, commands) in calls {
        redis::cmd("CONFIG").arg("RESETSTAT").exec(&mut connection)?;
        for chunk in commands.chunks(100) {
            let mut pipe = redis::pipe();
            chunk.iter().for_each(|command| {
                pipe.add_command(command.clone()).ignore();
            });
            pipe.exec(&mut connection)?;
        }
        let info: String = redis::cmd("INFO").arg("commandstats").query(&mut connection)?;
        let stat = if name.starts_with("SET") { "cmdstat_set:" } else { "cmdstat_evalsha:" };
        let cost = info.lines().find_map(|line| line.strip_prefix(stat)).and_then(|line| {
            line.split(',').find_map(|field| field.strip_prefix("usec_per_call=")?.parse::<f64>().ok())
        });
        costs.push(cost.ok_or("no statistics of the command")?);
        lines.push(format!("{name}: {:.2} µs on the node, mean of {CALLS}", costs[costs.len() - 1]));
    }
    lines.push(format!(
        "acquire / SET: {:.1}; release / compare-and-delete: {:.1}",
        costs[2] / costs[0],
        costs[3] / costs[1]
    ));
    Ok(lines)
}

/// A directory that goes away.
mod tempdir {
    use std::path::PathBuf;

    pub struct Dir(pub PathBuf);

    impl Dir {
        pub fn new() -> std::io::Result<Self> {
            let path = std::env::temp_dir().join(format!("redlockd-speed-{}", std::process::id()));
            std::fs::create_dir_all(&path)?;
            Ok(Self(path))
        }
    }

    impl Drop for Dir {
        fn drop(&mut self) {
            let _ = std::fs::remove_dir_all(&self.0);
        }
    }
}
