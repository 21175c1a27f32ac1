//! A load balancer as it is usual: each request goes to the next of the instances that were ready at the last check, once a
//! second, on a connection of its own. It never tries a second instance, so that every refusal is seen.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use redlockd::redlock::clock::{Clock, SystemClock};
use tokio::io::{AsyncReadExt, AsyncWriteExt, copy_bidirectional};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::{JoinHandle, JoinSet};

use super::client::{Client, try_send};

/// Between two checks of an instance.
const CHECK_INTERVAL: Duration = Duration::from_secs(1);
/// The longest head of a request.
const HEAD_MAX: usize = 16_384;

/// A running balancer; gone with all connections when dropped.
pub struct Balancer {
    address: SocketAddr,
    instances: Arc<Vec<Target>>,
    refused: Arc<AtomicUsize>,
    tasks: Vec<JoinHandle<()>>,
}

struct Target {
    address: SocketAddr,
    is_ready: AtomicBool,
}

impl Balancer {
    /// Starts one in front of these instances, which count as ready until the first check.
    pub async fn start(instances: &[SocketAddr]) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("loopback");
        let address = listener.local_addr().expect("bound");
        let target = |address: &SocketAddr| Target { address: *address, is_ready: AtomicBool::new(true) };
        let instances: Arc<Vec<Target>> = Arc::new(instances.iter().map(target).collect());
        let refused = Arc::new(AtomicUsize::new(0));
        let tasks = vec![
            tokio::spawn(serve(listener, Arc::clone(&instances), Arc::clone(&refused))),
            tokio::spawn(check(Arc::clone(&instances))),
        ];
        Self { address, instances, refused, tasks }
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// `http://…`, without a slash at the end.
    pub fn base(&self) -> String {
        format!("http://{}", self.address)
    }

    /// How many connections an instance refused that had been ready at its last check.
    pub fn refused(&self) -> usize {
        self.refused.load(Ordering::Relaxed)
    }

    /// Whether an instance was ready at the last check.
    pub fn is_ready(&self, instance: usize) -> bool {
        self.instances[instance].is_ready.load(Ordering::Relaxed)
    }
}

impl Drop for Balancer {
    fn drop(&mut self) {
        self.tasks.iter().for_each(JoinHandle::abort);
    }
}

async fn check(instances: Arc<Vec<Target>>) {
    let clients: Vec<Client> = instances.iter().map(|i| Client::new(&format!("http://{}", i.address))).collect();
    loop {
        for (target, client) in instances.iter().zip(&clients) {
            let answer = try_send(client.request("GET", "/health/ready?local=true").timeout(CHECK_INTERVAL)).await;
            target.is_ready.store(answer.is_ok_and(|answer| answer.status == 200), Ordering::Relaxed);
        }
        SystemClock.sleep(CHECK_INTERVAL).await;
    }
}

async fn serve(listener: TcpListener, instances: Arc<Vec<Target>>, refused: Arc<AtomicUsize>) {
    let (mut connections, mut turn) = (JoinSet::new(), 0);
    while let Ok((client, _)) = listener.accept().await {
        while connections.try_join_next().is_some() {}
        let ready: Vec<&Target> = instances.iter().filter(|i| i.is_ready.load(Ordering::Relaxed)).collect();
        turn += 1;
        let Some(target) = ready.get(turn % ready.len().max(1)) else {
            refused.fetch_add(1, Ordering::Relaxed);
            continue;
        };
        let (address, refused) = (target.address, Arc::clone(&refused));
        connections.spawn(async move {
            if pass(client, address).await.is_none() {
                refused.fetch_add(1, Ordering::Relaxed);
            }
        });
    }
}

/// Passes one request and its answer on; `None` where the instance could not be connected to.
async fn pass(mut client: TcpStream, instance: SocketAddr) -> Option<()> {
    let (mut head, mut chunk) = (Vec::new(), [0; 4_096]);
    while !head.windows(4).any(|end| end == b"\r\n\r\n") && head.len() < HEAD_MAX {
        match client.read(&mut chunk).await {
            Ok(read) if read > 0 => head.extend_from_slice(&chunk[..read]),
            // A client that opened a connection and sent nothing.
            _ => return Some(()),
        }
    }
    let mut server = TcpStream::connect(instance).await.ok()?;
    // The next request on a connection would stay with its instance.
    let end = head.windows(2).position(|line| line == b"\r\n").unwrap_or(head.len());
    let (first, rest) = head.split_at(end);
    let rest = String::from_utf8_lossy(rest).replace("onnection: keep-alive\r\n", "-connection: none\r\n");
    let head = [first, b"\r\nConnection: close", rest.as_bytes()].concat();
    if server.write_all(&head).await.is_ok() {
        let _ = copy_bidirectional(&mut client, &mut server).await;
    }
    Some(())
}
