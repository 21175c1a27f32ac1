//! A TCP proxy on loopback in front of one node, whose weather a test changes while it runs: slow,
//! silent, held back, half open, refusing, reset; or silent from a certain request on.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU16, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use redlockd::redlock::clock::{BootTime, Clock, SystemClock};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{mpsc, watch};
use tokio::task::{JoinHandle, JoinSet};

/// Chunks on their way in one direction: more make the sender wait.
const CHUNKS: usize = 1_024;
const CHUNK_BYTES: usize = 16 * 1_024;

/// What becomes of bytes in one direction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Flow {
    /// They pass.
    Pass,
    /// They pass this much later.
    Delay(Duration),
    /// They are swallowed.
    Silent,
    /// They are kept, in order, and delivered once this ends, even where their sender is gone by then.
    Hold,
}

/// The network between the two.
#[derive(Debug, Clone, Copy)]
pub struct Weather {
    /// From the client to the node.
    pub to_node: Flow,
    /// From the node to the client.
    pub to_client: Flow,
    /// Whether new connections are taken.
    pub accepts: bool,
    /// Whether one end is closed when the other closes.
    pub passes_close: bool,
    /// The resets so far: [`ChaosProxy::set`] keeps its own count.
    pub resets: u64,
}

/// Fair weather.
pub const FAIR: Weather =
    Weather { to_node: Flow::Pass, to_client: Flow::Pass, accepts: true, passes_close: true, resets: 0 };

/// Whether it is this command.
type IsIt = Box<dyn Fn(&[u8]) -> bool + Send>;

/// The last request that matters, see [`ChaosProxy::stop_at`].
#[derive(Default)]
struct Stop {
    is_it: Option<IsIt>,
    arrives: bool,
    is_reached: bool,
}

impl Stop {
    /// How many of these bytes arrive. What the client sent before the last request may be in one chunk with it.
    fn arriving(&mut self, chunk: &[u8]) -> usize {
        if self.is_reached {
            return 0;
        }
        let Some(is_it) = &self.is_it else { return chunk.len() };
        let mut begin = 0;
        for end in command_ends(chunk) {
            if is_it(&chunk[begin..end]) {
                self.is_reached = true;
                return if self.arrives { end } else { begin };
            }
            begin = end;
        }
        chunk.len()
    }
}

/// Where each command in these bytes ends, the first of which may have begun before.
fn command_ends(chunk: &[u8]) -> impl Iterator<Item = usize> {
    let begins = chunk.windows(3).enumerate().filter(|(_, bytes)| bytes == b"\r\n*").map(|(at, _)| at + 2);
    begins.chain([chunk.len()])
}

/// A running proxy; gone with all connections when dropped.
pub struct ChaosProxy {
    address: SocketAddr,
    weather: watch::Sender<Weather>,
    stop: Arc<Mutex<Stop>>,
    node_port: Arc<AtomicU16>,
    task: JoinHandle<()>,
}

impl ChaosProxy {
    /// Starts one in front of a port on 127.0.0.1.
    pub async fn start(node_port: u16) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("loopback");
        let address = listener.local_addr().expect("bound");
        let (weather, seen) = watch::channel(FAIR);
        let node_port = Arc::new(AtomicU16::new(node_port));
        let stop = Arc::<Mutex<Stop>>::default();
        let task = tokio::spawn(serve(listener, (address, Arc::clone(&node_port)), seen, Arc::clone(&stop)));
        Self { address, weather, stop, node_port, task }
    }

    /// From the first command that is this, and may still arrive, the node is silent in both directions.
    pub fn stop_at(&self, is_it: impl Fn(&[u8]) -> bool + Send + 'static, arrives: bool) {
        *self.stop.lock() = Stop { is_it: Some(Box::new(is_it)), arrives, is_reached: false };
    }

    /// Whether it came.
    pub fn is_stopped(&self) -> bool {
        self.stop.lock().is_reached
    }

    /// Where clients connect.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Changes the weather, for connections that are there and those to come.
    pub fn set(&self, weather: Weather) {
        self.weather.send_modify(|now| *now = Weather { resets: now.resets, ..weather });
    }

    /// Leads to another port on 127.0.0.1 from now on, as a name that was moved; connections are reset.
    pub fn lead_to(&self, node_port: u16) {
        self.node_port.store(node_port, Ordering::SeqCst);
        self.reset();
    }

    /// Resets all connections on the client's side. What is held for the node is still delivered.
    pub fn reset(&self) {
        self.weather.send_modify(|now| now.resets += 1);
    }
}

impl Drop for ChaosProxy {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn serve(
    listener: TcpListener,
    (address, node_port): (SocketAddr, Arc<AtomicU16>),
    mut seen: watch::Receiver<Weather>,
    stop: Arc<Mutex<Stop>>,
) {
    let mut connections = JoinSet::new();
    let mut open = Some(listener);
    loop {
        let accepts = seen.borrow_and_update().accepts;
        match (accepts, &open) {
            (false, Some(_)) => open = None,
            (true, None) => open = Some(TcpListener::bind(address).await.expect("our own port")),
            _ => {}
        }
        tokio::select! {
            biased;
            changed = seen.changed() => if changed.is_err() { return },
            client = accept(open.as_ref()) => {
                let node = SocketAddr::from(([127, 0, 0, 1], node_port.load(Ordering::SeqCst)));
                if let (Some(client), Ok(node)) = (client, TcpStream::connect(node).await) {
                    connections.spawn(carry(client, node, seen.clone(), Arc::clone(&stop)));
                }
            }
        }
    }
}

async fn accept(listener: Option<&TcpListener>) -> Option<TcpStream> {
    match listener {
        Some(listener) => listener.accept().await.ok().map(|(stream, _)| stream),
        None => std::future::pending().await,
    }
}

async fn carry(client: TcpStream, node: TcpStream, seen: watch::Receiver<Weather>, stop: Arc<Mutex<Stop>>) {
    let (from_client, to_client) = client.into_split();
    let (from_node, to_node) = node.into_split();
    let (up, held_up) = mpsc::channel(CHUNKS);
    let (down, held_down) = mpsc::channel(CHUNKS);
    let gone = seen.clone();
    let answers = async {
        tokio::join!(
            read(from_node, down, seen.clone(), &stop),
            write(to_client, held_down, seen.clone(), |w| w.to_client)
        )
    };
    let requests = async {
        tokio::join!(
            read_until_reset(from_client, up, seen.clone(), &stop),
            write(to_node, held_up, seen.clone(), |w| w.to_node)
        )
    };
    let answers = async {
        tokio::select! { biased; () = reset(gone) => {}, _ = answers => {} }
    };
    tokio::join!(requests, answers);
}

async fn read_until_reset(
    from: OwnedReadHalf,
    into: mpsc::Sender<(BootTime, Vec<u8>)>,
    seen: watch::Receiver<Weather>,
    stop: &Mutex<Stop>,
) {
    let from = &mut { from };
    let arriving = |chunk: &[u8]| stop.lock().arriving(chunk);
    tokio::select! {
        biased;
        () = reset(seen.clone()) => { let _ = from.as_ref().set_zero_linger(); }
        () = read_from(from, &into, seen, |w| w.to_node, arriving) => {}
    }
}

/// Resolves at the next reset.
async fn reset(mut seen: watch::Receiver<Weather>) {
    let before = seen.borrow().resets;
    let _ = seen.wait_for(|w| w.resets > before).await;
}

async fn read(
    mut from: OwnedReadHalf,
    into: mpsc::Sender<(BootTime, Vec<u8>)>,
    seen: watch::Receiver<Weather>,
    stop: &Mutex<Stop>,
) {
    let arriving = |chunk: &[u8]| if stop.lock().is_reached { 0 } else { chunk.len() };
    read_from(&mut from, &into, seen, |w| w.to_client, arriving).await;
}

async fn read_from(
    from: &mut OwnedReadHalf,
    into: &mpsc::Sender<(BootTime, Vec<u8>)>,
    mut seen: watch::Receiver<Weather>,
    flow: fn(&Weather) -> Flow,
    arriving: impl Fn(&[u8]) -> usize,
) {
    let mut buffer = vec![0; CHUNK_BYTES];
    while let Ok(count @ 1..) = from.read(&mut buffer).await {
        let (arriving, now) = (&buffer[..arriving(&buffer[..count])], flow(&seen.borrow()));
        let delay = if let Flow::Delay(delay) = now { delay } else { Duration::ZERO };
        let is_swallowed = arriving.is_empty() || now == Flow::Silent;
        if !is_swallowed && into.send((SystemClock.now().plus(delay), arriving.to_vec())).await.is_err() {
            return;
        }
    }
    let _ = seen.wait_for(|w| w.passes_close).await;
}

async fn write(
    mut to: OwnedWriteHalf,
    mut from: mpsc::Receiver<(BootTime, Vec<u8>)>,
    mut seen: watch::Receiver<Weather>,
    flow: fn(&Weather) -> Flow,
) {
    while let Some((due, chunk)) = from.recv().await {
        SystemClock.sleep_until(due).await;
        if seen.wait_for(|w| flow(w) != Flow::Hold).await.is_err() || to.write_all(&chunk).await.is_err() {
            return;
        }
    }
    let _ = to.shutdown().await;
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A node that sends back what it gets.
    async fn echo() -> (u16, JoinHandle<()>) {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("loopback");
        let port = listener.local_addr().expect("bound").port();
        let task = tokio::spawn(async move {
            let mut connections = JoinSet::new();
            while let Ok((stream, _)) = listener.accept().await {
                connections.spawn(async move {
                    let (mut from, mut to) = stream.into_split();
                    let _ = tokio::io::copy(&mut from, &mut to).await;
                });
            }
        });
        (port, task)
    }

    async fn round_trip(stream: &mut TcpStream, word: &[u8; 4]) -> Duration {
        let begun = SystemClock.now();
        stream.write_all(word).await.expect("open");
        let mut back = [0; 4];
        stream.read_exact(&mut back).await.expect("open");
        assert_eq!(&back, word);
        SystemClock.now().since(begun)
    }

    #[tokio::test]
    async fn it_passes_delays_holds_and_swallows() {
        let (port, _echo) = echo().await;
        let proxy = ChaosProxy::start(port).await;
        let mut stream = TcpStream::connect(proxy.address()).await.expect("accepts");
        round_trip(&mut stream, b"pass").await;
        let delay = Duration::from_millis(30);
        proxy.set(Weather { to_node: Flow::Delay(delay), to_client: Flow::Delay(delay), ..FAIR });
        assert!(round_trip(&mut stream, b"slow").await >= delay * 2);
        proxy.set(Weather { to_node: Flow::Hold, ..FAIR });
        stream.write_all(b"held").await.expect("open");
        let mut back = [0; 4];
        let early = tokio::time::timeout(Duration::from_millis(30), stream.read_exact(&mut back)).await;
        assert!(early.is_err(), "held bytes came through");
        proxy.set(FAIR);
        stream.read_exact(&mut back).await.expect("open");
        assert_eq!(&back, b"held");
        proxy.set(Weather { to_client: Flow::Silent, ..FAIR });
        stream.write_all(b"lost").await.expect("open");
        let early = tokio::time::timeout(Duration::from_millis(30), stream.read_exact(&mut back)).await;
        assert!(early.is_err(), "swallowed bytes came through");
    }

    #[test]
    fn it_stops_at_a_command_wherever_it_is_in_what_was_sent() {
        let (first, last, next) = ("*1\r\n$1\r\na\r\n", "*1\r\n$1\r\nb\r\n", "*1\r\n$1\r\nc\r\n");
        let sent = [first, last, next].concat();
        for (arrives, expected) in [(false, first.len()), (true, first.len() + last.len())] {
            let mut stop = Stop { is_it: Some(Box::new(|bytes| bytes.contains(&b'b'))), arrives, is_reached: false };
            assert_eq!((stop.arriving(first.as_bytes()), stop.is_reached), (first.len(), false));
            assert_eq!((stop.arriving(sent.as_bytes()), stop.is_reached), (expected, true));
            assert_eq!(stop.arriving(next.as_bytes()), 0);
        }
    }

    #[tokio::test]
    async fn it_leads_elsewhere() {
        let (here, there) = (TcpListener::bind("127.0.0.1:0").await, TcpListener::bind("127.0.0.1:0").await);
        let (here, there) = (here.expect("loopback"), there.expect("loopback"));
        let proxy = ChaosProxy::start(here.local_addr().expect("bound").port()).await;
        let mut stream = TcpStream::connect(proxy.address()).await.expect("accepts");
        let (mut node, _) = here.accept().await.expect("connected");
        round_trip_to(&mut stream, &mut node, b"hello").await;
        proxy.lead_to(there.local_addr().expect("bound").port());
        assert!(matches!(stream.read(&mut [0]).await, Ok(0) | Err(_)), "it was reset");
        let _stream = TcpStream::connect(proxy.address()).await.expect("accepts");
        there.accept().await.expect("connected");
    }

    #[tokio::test]
    async fn it_refuses_and_accepts_again() {
        let (port, _echo) = echo().await;
        let proxy = ChaosProxy::start(port).await;
        proxy.set(Weather { accepts: false, ..FAIR });
        super::super::poll::until("connections are refused", || async {
            TcpStream::connect(proxy.address()).await.err()
        })
        .await;
        proxy.set(FAIR);
        let mut stream = super::super::poll::until("connections are taken", || async {
            TcpStream::connect(proxy.address()).await.ok()
        })
        .await;
        round_trip(&mut stream, b"back").await;
    }

    #[tokio::test]
    async fn what_was_held_arrives_after_its_sender_was_reset() {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("loopback");
        let proxy = ChaosProxy::start(listener.local_addr().expect("bound").port()).await;
        let mut stream = TcpStream::connect(proxy.address()).await.expect("accepts");
        let (mut node, _) = listener.accept().await.expect("connected");
        round_trip_to(&mut stream, &mut node, b"hello").await;
        proxy.set(Weather { to_node: Flow::Hold, ..FAIR });
        stream.write_all(b"late!").await.expect("open");
        // The bytes are in the proxy once it has read them, which a reset must not overtake.
        tokio::time::timeout(Duration::from_millis(50), node.read_u8()).await.expect_err("held");
        proxy.reset();
        let mut byte = [0];
        assert!(matches!(stream.read(&mut byte).await, Ok(0) | Err(_)), "the client sees the end");
        proxy.set(FAIR);
        let mut late = Vec::new();
        node.read_to_end(&mut late).await.expect("closed by the proxy");
        assert_eq!(late, b"late!");
    }

    async fn round_trip_to(stream: &mut TcpStream, node: &mut TcpStream, word: &[u8; 5]) {
        stream.write_all(word).await.expect("open");
        let mut got = [0; 5];
        node.read_exact(&mut got).await.expect("open");
        assert_eq!(&got, word);
    }
}
