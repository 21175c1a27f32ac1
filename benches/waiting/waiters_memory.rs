//! What waiters cost: memory of each in the queues alone, of each with its connection, and processor time while
//! all of them wait; on one name and on as many names as waiters. The service is the release binary as a
//! process of its own, over three Redis servers that this starts and stops.
//!
//!     cargo build --release && cargo run --release --example waiters_memory [WAITERS]
#![expect(clippy::print_stdout, reason = "a benchmark prints its figures")]

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use redlockd::redlock::backoff::BackoffRange;
use redlockd::redlock::clock::{Clock, SystemClock};
use redlockd::types::ResourceName;
use redlockd::waiting::deadlock::Party;
use redlockd::waiting::event::{Admission, Mode, WaitEvent, WaitLimits, WaitRequest};
use redlockd::waiting::state_machine::{Queue, QueueSettings};

type Failure = Box<dyn std::error::Error + Send + Sync>;

const NODES: usize = 3;
/// Maximum memory of a waiter with its connection. KiB.
const GOAL_KIB: f64 = 20.0;
/// Maximum share of one processor for all of them: what the idle service takes, and the resolution of the
/// counter, a hundredth of a second.
const GOAL_BUSY: f64 = 0.01;
/// How long processor time is measured while all wait.
const QUIET: Duration = Duration::from_secs(10);
/// Ticks of the processor's time in a second (`getconf CLK_TCK`).
const TICKS: f64 = 100.0;

/// Processes that end with this one.
struct Children(Vec<Child>);

impl Drop for Children {
    fn drop(&mut self) {
        for child in &mut self.0 {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

fn main() -> Result<(), Failure> {
    let waiters: usize = std::env::args().nth(1).and_then(|n| n.parse().ok()).unwrap_or(10_000);
    println!("the queues alone, {waiters} waiters:");
    for names in [1, waiters] {
        println!("  on {names:>6} names: {:>6.0} bytes each", queue_memory(waiters, names)?);
    }
    let (mut children, mut nodes) = (Children(Vec::new()), Vec::new());
    for i in 0..NODES {
        let port = TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
        let args = ["--port", &port.to_string(), "--bind", "127.0.0.1", "--save", "", "--appendonly", "no"];
        children.0.push(Command::new("redis-server").args(args).stdout(Stdio::null()).spawn()?);
        nodes.extend(["--node".to_owned(), format!("n{i}=redis://127.0.0.1:{port}")]);
    }
    let program = std::env::current_exe()?.parent().and_then(|p| p.parent()).map(|p| p.join("redlockd"));
    let program = program.ok_or("no directory")?;
    while !Command::new(&program).arg("init").args(&nodes).stderr(Stdio::null()).status()?.success() {
        std::thread::sleep(Duration::from_millis(100));
    }
    println!("the whole service, {waiters} waiters with a connection and an owner each:");
    for names in [1, waiters] {
        let most = waiters.max(1).to_string();
        let limits = [format!("waiters_per_resource={most}"), format!("waiters_total={most}")];
        let mut service = Command::new(&program)
            .args(["serve", "--listen", "127.0.0.1:0", "--log-level", "error"])
            .args(limits.iter().flat_map(|l| ["--set", l]))
            .args(&nodes)
            .stdout(Stdio::piped())
            .spawn()?;
        let mut lines = BufReader::new(service.stdout.take().ok_or("no output")?).lines();
        let line = lines.next().ok_or("it did not start")??;
        let address =
            line.split("http://").nth(1).and_then(|rest| rest.split_whitespace().next()).ok_or(line.clone())?;
        let (pid, address) = (service.id(), address.trim_end_matches('/').to_owned());
        children.0.push(service);
        measure(pid, &address, waiters, names)?;
        // Dropped here, the sockets are gone; the service ends with them.
        if let Some(mut service) = children.0.pop() {
            service.kill()?;
            service.wait()?;
        }
    }
    Ok(())
}

/// Resident bytes per waiter in the queue alone.
fn queue_memory(waiters: usize, names: usize) -> Result<f64, Failure> {
    let limits = WaitLimits { per_resource: waiters, total: waiters, detects_deadlocks: true };
    let (poll, retry) = (Duration::from_secs(1), BackoffRange { first: Duration::ZERO, max: Duration::ZERO });
    let mut queue = Queue::new(QueueSettings { limits, nodes: NODES, local_nodes: 0, retry, poll });
    let name =
        |i: usize| ResourceName::parse(&format!("deploy/waiters/{:06}", i % names)).map_err(|why| why.to_string());
    let before = resident(std::process::id())?;
    for i in 0..waiters {
        let request = WaitRequest {
            resources: [name(i)?].into(),
            mode: Mode::Exclusive,
            party: Party::new("", &format!("somebody@host-{i}:4711")),
            note: "".into(),
            token: None,
            until: SystemClock.now().plus(Duration::from_secs(300)),
            admission: Admission::Queued,
            refuses_deadlock: false,
            is_ticket: false,
        };
        let waiter = u64::try_from(i)?;
        let now = SystemClock.now();
        drop(queue.handle(now, waiter, WaitEvent::Enqueue(waiter, request, now)));
    }
    let after = resident(std::process::id())?;
    drop(queue);
    Ok((after.saturating_sub(before)) as f64 / waiters as f64)
}

/// Prints memory and processor time of a service with `waiters` waiters.
fn measure(pid: u32, address: &str, waiters: usize, names: usize) -> Result<(), Failure> {
    let name = |i: usize| format!("deploy/waiters/{names}-{:06}", i % names);
    for i in 0..names {
        let answer = ask(address, &format!("POST /locks/{}?ttl=5m", name(i)))?;
        if !answer.starts_with("HTTP/1.1 201") {
            return Err(answer.into());
        }
    }
    wait_until_idle(pid)?;
    let before = resident(pid)?;
    let mut sockets = Vec::with_capacity(waiters);
    for i in 0..waiters {
        let mut socket = TcpStream::connect(address)?;
        let line = format!("POST /locks/{}?ttl=1m&wait=5m&owner=somebody%40host-{i}:4711", name(i));
        write!(
            socket,
            "{line} HTTP/1.1\r\nHost: localhost\r\nUser-Agent: curl/8.5.0\r\nAccept: */*\r\nContent-Length: 0\r\n\r\n"
        )?;
        sockets.push(socket);
    }
    while waiting(address)? < waiters {
        std::thread::sleep(Duration::from_millis(100));
    }
    wait_until_idle(pid)?;
    let (after, busy) = (resident(pid)?, ticks(pid)?);
    std::thread::sleep(QUIET);
    let used = (ticks(pid)? - busy) as f64 / TICKS;
    let (weight, part) = (after.saturating_sub(before) as f64 / 1024.0 / waiters as f64, used / QUIET.as_secs_f64());
    let met = |is_met: bool| if is_met { "met" } else { "not met" };
    println!(
        "  on {names:>6} names: {weight:>6.1} KiB each (at most {GOAL_KIB}: {}); {used:.2} s of processor time in {QUIET:?}, {:.1} % (at most {} %: {})",
        met(weight <= GOAL_KIB),
        part * 100.0,
        GOAL_BUSY * 100.0,
        met(part <= GOAL_BUSY),
    );
    Ok(())
}

/// Waits for a second in which the process does next to nothing.
fn wait_until_idle(pid: u32) -> Result<(), Failure> {
    for _ in 0..60 {
        let before = ticks(pid)?;
        std::thread::sleep(Duration::from_secs(1));
        if ticks(pid)? - before <= 5 {
            return Ok(());
        }
    }
    Err("the service does not become idle".into())
}

fn ask(address: &str, line: &str) -> Result<String, Failure> {
    let mut socket = TcpStream::connect(address)?;
    write!(socket, "{line} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Length: 0\r\n\r\n")?;
    let mut answer = String::new();
    socket.read_to_string(&mut answer)?;
    Ok(answer)
}

fn waiting(address: &str) -> Result<usize, Failure> {
    let text = ask(address, "GET /metrics")?;
    let line = text.lines().find_map(|line| line.strip_prefix("redlockd_lock_waiters "));
    Ok(line.ok_or("no such metric")?.trim().parse()?)
}

/// Resident memory. Bytes.
fn resident(pid: u32) -> Result<usize, Failure> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status"))?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).ok_or("no VmRSS")?;
    Ok(line.trim().trim_end_matches(" kB").trim().parse::<usize>()? * 1024)
}

/// Processor time of a process so far, in ticks.
fn ticks(pid: u32) -> Result<u64, Failure> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat"))?;
    let rest = stat.rsplit(')').next().ok_or("no stat")?;
    let fields: Vec<&str> = rest.split_whitespace().collect();
    let field = |at: usize| fields.get(at).and_then(|f| f.parse::<u64>().ok()).ok_or("no time");
    Ok(field(11)? + field(12)?)
}
