//! A node with invalid replies: it counts as unreachable, the service continues with the other nodes in bounded
//! memory, and uses the node again once its replies are valid.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::{JoinHandle, JoinSet};

use crate::support::cluster::{Cluster, node_args};
use crate::support::poll;
use crate::support::redis_server::RedisServer;
use crate::support::service::{SHORT_TIMES, Service};

/// Changes the replies of a node, or the requests to it.
type Twist = Arc<dyn Fn(&[u8]) -> Vec<u8> + Send + Sync>;

/// A proxy on loopback that changes the replies of a node, and the requests to it.
pub(super) struct Liar {
    port: u16,
    twist: watch::Sender<Twist>,
    requests: watch::Sender<Twist>,
    task: JoinHandle<()>,
}

impl Drop for Liar {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Liar {
    pub(super) async fn before(node: u16) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("loopback");
        let port = listener.local_addr().expect("bound").port();
        let honest: Twist = Arc::new(<[u8]>::to_vec);
        let (twist, seen) = watch::channel(honest.clone());
        let (requests, seen_requests) = watch::channel(honest);
        let task = tokio::spawn(async move {
            let mut connections = JoinSet::new();
            while let Ok((client, _)) = listener.accept().await {
                let Ok(node) = TcpStream::connect(("127.0.0.1", node)).await else { continue };
                connections.spawn(forward(client, node, seen.clone(), seen_requests.clone()));
            }
        });
        Self { port, twist, requests, task }
    }

    pub(super) fn port(&self) -> u16 {
        self.port
    }

    pub(super) fn set(&self, twist: impl Fn(&[u8]) -> Vec<u8> + Send + Sync + 'static) {
        self.twist.send_replace(Arc::new(twist));
    }

    pub(super) fn set_requests(&self, twist: impl Fn(&[u8]) -> Vec<u8> + Send + Sync + 'static) {
        self.requests.send_replace(Arc::new(twist));
    }
}

/// One direction.
async fn forward_one(mut from: OwnedReadHalf, mut to: OwnedWriteHalf, seen: watch::Receiver<Twist>) {
    let mut buffer = vec![0; 64 * 1024];
    while let Ok(count @ 1..) = from.read(&mut buffer).await {
        let twist = seen.borrow().clone();
        if to.write_all(&twist(&buffer[..count])).await.is_err() {
            return;
        }
    }
}

async fn forward(
    client: TcpStream,
    node: TcpStream,
    replies: watch::Receiver<Twist>,
    requests: watch::Receiver<Twist>,
) {
    let ((from_client, to_client), (from_node, to_node)) = (client.into_split(), node.into_split());
    // Either end closes both.
    tokio::select! {
        () = forward_one(from_client, to_node, requests) => {}
        () = forward_one(from_node, to_client, replies) => {}
    }
}

/// Replaces every integer of a reply, also those in bulk strings.
pub(super) fn with_numbers(bytes: &[u8], number: &str) -> Vec<u8> {
    let text = String::from_utf8_lossy(bytes);
    let mut lines: Vec<String> = text.split("\r\n").map(str::to_owned).collect();
    for i in 0..lines.len() {
        if lines[i].starts_with(':') {
            lines[i] = format!(":{number}");
        } else if i > 0 && lines[i - 1].starts_with('$') && lines[i].parse::<i64>().is_ok() {
            lines[i - 1] = format!("${}", number.len());
            lines[i] = number.to_owned();
        }
    }
    lines.join("\r\n").into_bytes()
}

/// Replaces every view's record in a reply.
pub(super) fn with_views(bytes: &[u8], change: impl Fn(&str) -> String) -> Vec<u8> {
    let text = String::from_utf8_lossy(bytes);
    let lines: Vec<&str> = text.split("\r\n").collect();
    let is_view = |line: &str| line.len() > 33 && line.as_bytes()[32] == b'\n' && line.is_ascii();
    let mut out: Vec<String> = Vec::new();
    for line in lines {
        match out.last_mut() {
            Some(length) if length.starts_with('$') && is_view(line) => {
                let changed = change(line);
                *length = format!("${}", changed.len());
                out.push(changed);
            }
            _ => out.push(line.to_owned()),
        }
    }
    out.join("\r\n").into_bytes()
}

/// Resident memory of a process, MiB: now (`VmRSS`), or the maximum so far (`VmHWM`).
pub(super) fn memory_mib(pid: rustix::process::Pid, what: &str) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{}/status", pid.as_raw_nonzero())).expect("a process");
    let line = status.lines().find_map(|l| l.strip_prefix(what)?.strip_prefix(':')).expect("a line");
    line.trim().trim_end_matches(" kB").trim().parse::<u64>().expect("a number") / 1024
}

pub(super) async fn votes(service: &Service, node: &str) -> bool {
    let nodes = service.client().get("/nodes").await.json();
    let nodes = nodes["nodes"].as_array().cloned().expect("nodes");
    nodes.iter().any(|n| n["node"] == node && n["votes"] == true)
}

/// A service over three nodes, of which the last one can be made to lie.
pub(super) async fn with_liar() -> (Cluster, Liar, Service) {
    let cluster = Cluster::start(3).await;
    let liar = Liar::before(cluster.servers[2].port()).await;
    let urls = [cluster.servers[0].url(), cluster.servers[1].url(), format!("redis://127.0.0.1:{}", liar.port)];
    let mut args = node_args(urls.into_iter());
    args.extend(SHORT_TIMES.iter().map(ToString::to_string));
    let service = Service::start(&args).await;
    (cluster, liar, service)
}

/// Acquires, extends, inspects and releases with the two other nodes.
pub(super) async fn works(service: &Service, name: &str) {
    let client = service.client();
    let lease = client.acquired(name, &[("ttl", "10s")]).await;
    assert!(lease.fence() < 1 << 53, "{lease:?}");
    client.extend(name, &lease.token(), &[]).await.expect_status(200);
    let seen = client.inspect(name).await.expect_status(200).json();
    assert_eq!(seen["holders"][0]["fence"], lease.fence(), "{seen}");
    client.release(name, &lease.token()).await.expect_status(204);
}

#[tokio::test]
async fn a_node_with_invalid_replies_counts_as_unreachable() {
    let (_cluster, liar, service) = with_liar().await;
    poll::until("all vote", || async { votes(&service, "n3").await.then_some(()) }).await;
    works(&service, "before").await;
    let constant = |text: &'static [u8]| -> Twist { Arc::new(move |_: &[u8]| text.to_vec()) };
    let twists: Vec<(&str, Twist)> = vec![
        ("a status for a list", constant(b"+OK\r\n")),
        ("a number for a list", constant(b":7\r\n")),
        ("nothing for a list", constant(b"$-1\r\n")),
        ("an empty list", constant(b"*0\r\n")),
        ("a list of nothing", constant(b"*3\r\n$-1\r\n$-1\r\n$-1\r\n")),
        ("an error", constant(b"-ERR nonsense\r\n")),
        ("an unknown code", constant(b"*2\r\n$1\r\nZ\r\n:1\r\n")),
        ("an absurd list", constant(b"*2147483647\r\n")),
        ("a more absurd list", constant(b"*9223372036854775807\r\n")),
        ("an absurd text", constant(b"$9223372036854775807\r\n")),
        ("a large text that does not come", constant(b"$536870912\r\nx")),
        ("negative lengths", constant(b"*-7\r\n$-9\r\n")),
        ("a number that is none", constant(b":99999999999999999999999999\r\n")),
        ("no RESP", constant(b"HTTP/1.1 200 OK\r\n\r\n<html>")),
        ("bytes", constant(b"\0\xff\xfe\x80")),
        ("deep lists", Arc::new(|_: &[u8]| b"*1\r\n".repeat(100_000))),
        ("a line without an end", Arc::new(|_: &[u8]| b":1".repeat(100_000))),
        ("half of each answer", Arc::new(|bytes: &[u8]| bytes[..bytes.len() / 2].to_vec())),
        ("all but the last byte", Arc::new(|bytes: &[u8]| bytes[..bytes.len() - 1].to_vec())),
        ("everything twice", Arc::new(|bytes: &[u8]| bytes.repeat(2))),
        ("silence", constant(b"")),
        ("negative numbers", Arc::new(|bytes: &[u8]| with_numbers(bytes, "-1"))),
        ("numbers beyond all bounds", Arc::new(|bytes: &[u8]| with_numbers(bytes, "9223372036854775807"))),
        ("numbers that are none", Arc::new(|bytes: &[u8]| with_numbers(bytes, "nan"))),
    ];
    for (i, (what, twist)) in twists.into_iter().enumerate() {
        let honest = twist.clone();
        liar.set(move |bytes| honest(bytes));
        // Several rounds, with probes, reconnections and requests.
        for round in 0..3 {
            works(&service, &format!("r/{i}/{round}")).await;
        }
        if what != "everything twice" {
            poll::until(&format!("{what}: it has no vote"), || async { (!votes(&service, "n3").await).then_some(()) })
                .await;
        }
        works(&service, &format!("r/{i}/after")).await;
        assert!(votes(&service, "n1").await && votes(&service, "n2").await, "{what}");
        service.client().get("/health/ready").await.expect_status(200);
        let peak_mib = memory_mib(service.pid(), "VmHWM");
        assert!(peak_mib < MEMORY_MAX_MIB, "{what}: {peak_mib} MiB");
    }
    let said = service.output();
    assert!(!said.iter().any(|line| line.contains("panicked")), "{said:#?}");
    // Its replies are valid again.
    liar.set(<[u8]>::to_vec);
    poll::until("it votes again", || async { votes(&service, "n3").await.then_some(()) }).await;
    works(&service, "after").await;
    tokio::time::timeout(Duration::from_secs(60), service.until_ready()).await.expect("ready");
}

/// Bytes in one reply of a flood: more than the service may keep.
const FLOOD_BYTES: usize = 96 << 20;
/// The service under test takes some 25 MiB, and at the peak of a flood some 61 as a debug build; what it must not keep is 96.
const MEMORY_MAX_MIB: u64 = 80;

/// M1: however much a node sends, the service keeps little of it, and its memory returns.
#[tokio::test]
async fn m1_floods_of_a_node_do_not_fill_the_memory() {
    let (_cluster, liar, service) = with_liar().await;
    let flood = |head: &str, part: &str| -> Arc<[u8]> {
        let mut bytes = head.as_bytes().to_vec();
        bytes.extend(part.as_bytes().repeat(FLOOD_BYTES / part.len()));
        bytes.into()
    };
    let text = format!("$1000000\r\n{}\r\n", "x".repeat(1_000_000));
    let floods = [
        ("a large text", flood("$536870912\r\n", "x")),
        ("a text of almost any size", flood("$9223372036854775807\r\n", "x")),
        ("a line without an end", flood("+", "y")),
        ("a long list of small values", flood("*100000000\r\n", "$-1\r\n")),
        ("lists in lists", flood("", "*1\r\n")),
        ("a list of large texts", flood("*16000\r\n", &text)),
        ("replies that nobody asked for", flood("", "+OK\r\n")),
    ];
    for (what, bytes) in floods {
        poll::until("all vote", || async { votes(&service, "n3").await.then_some(()) }).await;
        let sent = Arc::new(AtomicUsize::new(0));
        let counted = Arc::clone(&sent);
        liar.set(move |_| {
            counted.fetch_add(1, Ordering::SeqCst);
            bytes.to_vec()
        });
        poll::until_true(&format!("{what}: several connections are flooded"), || sent.load(Ordering::SeqCst) > 5).await;
        works(&service, "during").await;
        let peak_mib = memory_mib(service.pid(), "VmHWM");
        assert!(peak_mib < MEMORY_MAX_MIB, "{what}: {peak_mib} MiB");
        liar.set(<[u8]>::to_vec);
    }
    let said = service.output();
    assert!(!said.iter().any(|line| line.contains("panicked")), "{said:#?}");
}

/// N7: whoever can publish on one node can send as many events as he likes: they displace older ones, and no memory grows.
#[tokio::test]
async fn n7_events_that_a_node_makes_up_do_not_fill_the_memory() {
    let cluster = Cluster::start(3).await;
    let mut args = node_args(cluster.servers.iter().map(RedisServer::url));
    args.extend(SHORT_TIMES.iter().map(ToString::to_string));
    let service = Service::start(&args).await;
    service.until_ready().await;
    let publish = async |text: &str| -> u64 { cluster.servers[2].ask(&["PUBLISH", "redlockd:incidents", text]).await };
    poll::until("it listens", || async { (publish("").await == 1).then_some(()) }).await;
    let long = "x".repeat(16_000);
    for i in 0..3_000 {
        publish(&format!(r#"{{"event":"lost","at_ms":1,"name":"{i}{long}"}}"#)).await;
        publish(&format!(r#"{{"event":"lost","at_ms":1,"name":"made-up.{i}","detail":"{i}{long}"}}"#)).await;
    }
    // The server cuts off who reads too slowly: what comes after that arrives again.
    poll::until("later ones are received", || async {
        publish(r#"{"event":"lost","at_ms":1,"detail":"last"}"#).await;
        let past = service.client().get("/events?kind=lost&limit=1").await.expect_status(200).json();
        (past["events"][0]["detail"] == "last").then_some(())
    })
    .await;
    // Without the limits it is 130 MiB and more; what the server still holds back takes some.
    let peak_mib = memory_mib(service.pid(), "VmHWM");
    assert!(peak_mib < MEMORY_MAX_MIB * 3 / 2, "{peak_mib} MiB");
    works(&service, "after").await;
}

/// What a node says of the others counts only with the word of more nodes: nobody is sent to its servers, and nobody loses a vote.
#[tokio::test]
async fn n1_views_that_one_node_makes_up_move_and_displace_nobody() {
    let (cluster, liar, service) = with_liar().await;
    poll::until("all vote", || async { votes(&service, "n3").await.then_some(()) }).await;
    let elsewhere = TcpListener::bind("127.0.0.1:0").await.expect("loopback");
    let address = elsewhere.local_addr().expect("bound").to_string();
    // With the next number, and other lines for the names.
    let made_up = |view: &str, line: &dyn Fn(&str) -> String| {
        let number = u64::from_str_radix(&view[..16], 16).expect("a number") + 1;
        let lines = view[32..].split('\n').map(line);
        format!("{number:016x}{}{}", &view[16..32], lines.collect::<Vec<_>>().join("\n"))
    };
    let is_other = |line: &str| line.starts_with("n1 ") || line.starts_with("n2 ");
    type Change = Box<dyn Fn(&str) -> String + Send + Sync>;
    let to_elsewhere = move |line: &str| if is_other(line) { format!("{line} {address}") } else { line.to_owned() };
    let to_others = move |line: &str| if is_other(line) { line.replacen(' ', " 0", 1) } else { line.to_owned() };
    let views: [(&str, Change); 3] = [
        ("other addresses", Box::new(move |view| made_up(view, &to_elsewhere))),
        ("other processes", Box::new(move |view| made_up(view, &to_others))),
        ("the last number", Box::new(|view| format!("{}{}", "f".repeat(32), &view[32..]))),
    ];
    for (what, change) in views {
        let sent = Arc::new(AtomicUsize::new(0));
        let counted = Arc::clone(&sent);
        liar.set(move |bytes| {
            let changed = with_views(bytes, &change);
            counted.fetch_add(usize::from(changed != bytes), Ordering::SeqCst);
            changed
        });
        poll::until_true(&format!("{what}: it is shown in several probes"), || sent.load(Ordering::SeqCst) > 4).await;
        works(&service, "during").await;
        assert!(votes(&service, "n1").await && votes(&service, "n2").await, "{what}");
        for server in &cluster.servers[..2] {
            let roster = server.ask::<String>(&["HGET", "redlockd:meta", "roster"]).await;
            assert!(!roster.contains("127.0.0.1:") && !roster.starts_with("ffff"), "{what}: {roster}");
        }
    }
    let connected = tokio::time::timeout(Duration::from_millis(1), elsewhere.accept()).await;
    assert!(connected.is_err(), "it was sent elsewhere: {connected:?}");
    liar.set(<[u8]>::to_vec);
    poll::until("it votes again", || async { votes(&service, "n3").await.then_some(()) }).await;
    works(&service, "after").await;
}
