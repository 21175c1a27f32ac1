//! What the service is compared with besides the floors: rslock, the best-known Redlock library for Rust, in this
//! process; and a bare axum service that answers the same requests with JSON and does nothing else.

use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use axum::extract::Json;
use axum::http::{HeaderName, StatusCode};
use axum::routing::post;
use serde_json::{Value, json};

use crate::Failure;
use crate::servers::{Nodes, Server};
use crate::stats::Run;
use crate::workers::{Until, repeat};

/// Its manager, which connects when it is first used; clones share its connections.
pub use rslock::LockManager;

/// Lock and unlock, as its documentation has it.
pub async fn rslock(manager: &LockManager, connections: usize, until: Until) -> Result<Run, Failure> {
    let managers = vec![manager.clone(); connections];
    let cycle = async |manager: &mut LockManager, number| {
        let name = format!("rslock-{number}");
        let Ok(lock) = manager.lock(name.as_str(), Duration::from_secs(30)).await else { return false };
        manager.unlock(&lock).await;
        true
    };
    repeat(managers, until, cycle).await
}

/// A service of this program that redlockd is compared with, in a process of its own.
pub struct Yardstick {
    /// Where it listens.
    pub address: SocketAddr,
    /// Its process.
    pub server: Server,
}

impl Yardstick {
    /// Starts this very program as the bare service.
    ///
    /// Errors: where it does not start.
    pub fn start(program: &Path) -> Result<Self, Failure> {
        Self::start_under(&[], program, &["bare".to_owned()])
    }

    /// Starts this very program as the least service over these nodes ([`crate::least_service`]).
    ///
    /// Errors: as of [`Self::start`].
    pub fn start_least(program: &Path, nodes: &Nodes) -> Result<Self, Failure> {
        let nodes = nodes.addresses.iter().map(ToString::to_string);
        Self::start_under(&[], program, &["least".to_owned()].into_iter().chain(nodes).collect::<Vec<_>>())
    }

    /// Starts this very program as such a service, run by another program; empty: by itself. `service`: its arguments.
    ///
    /// Errors: as of [`Self::start`].
    pub fn start_under(under: &[String], program: &Path, service: &[String]) -> Result<Self, Failure> {
        let mut words = under.iter().map(AsRef::as_ref).chain([program.as_os_str()]);
        let mut command = Command::new(words.next().ok_or("no program")?);
        let mut child = command.args(words).args(service).stdout(Stdio::piped()).spawn()?;
        let out = child.stdout.take().ok_or("no output")?;
        let server = Server(child);
        let mut line = String::new();
        BufReader::new(out).read_line(&mut line)?;
        Ok(Self { address: line.trim().parse()?, server })
    }
}

/// Serves until the process is ended. Prints its address.
pub async fn serve_bare() -> Result<(), Failure> {
    let acquire = |Json(asked): Json<Value>| async move {
        let body = json!({ "ttl": asked["ttl"], "token": "0123456789abcdef0123456789abcdef", "fence": 1 });
        let token = (HeaderName::from_static("lock-token"), "0123456789abcdef0123456789abcdef");
        (StatusCode::CREATED, [token], Json(body))
    };
    let release = || async { StatusCode::NO_CONTENT };
    let app = axum::Router::new().route("/locks/{*resource}", post(acquire).delete(release));
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await?;
    println!("{}", listener.local_addr()?);
    axum::serve(listener, app).await?;
    Ok(())
}
