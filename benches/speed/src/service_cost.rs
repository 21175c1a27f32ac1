//! `make bench-cost`: costs of the service that a noisy machine does not change: instructions per cycle and writes per
//! command. Instructions by `perf` where the machine counts them, else by `valgrind`; writes by `strace`, and without it
//! by the nodes' count of their reads.

use std::collections::{BTreeMap, HashSet};
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use crate::peers::Yardstick;
use crate::servers::{Directory, NODES, Nodes, Server, Start};
use crate::stats::Run;
use crate::workers::Until;
use crate::{Asked, Failure, http};

/// At how many connections costs are counted.
pub const CONNECTION_COUNTS: [usize; 2] = [1, 64];
/// Commands of one cycle: an acquire and a release on each node.
const COMMANDS: f64 = 2.0 * NODES as f64;
/// Cycles before anything is counted: caches, buffers and tables grow to their size.
const WARM_UP: u64 = 2_000;
/// Cycles that are counted where the service runs at its own speed.
const CYCLES: u64 = 20_000;
/// Cycles of a shorter and of a longer run under a tool; what they differ by is counted.
pub const SHORT: u64 = 1_024;
/// The longer one.
pub const LONG: u64 = 6_144;
/// How long a service is watched without cycles: what time alone causes is no cycle's.
const IDLE: Duration = Duration::from_secs(20);
/// Under `valgrind` everything takes fifty times as long: no node is to be given up for that.
const PATIENT: [&str; 8] =
    ["--set", "min_ttl=25s", "--set", "node_timeout=10s", "--set", "guard=11s", "--set", "lock_delay=22s"];
const TRACED: &str = "trace=connect,accept4,write,writev,sendto,sendmsg";
/// How instructions are counted, into `FILE`.
pub const COUNTS: [&str; 4] = ["valgrind", "--quiet", "--tool=callgrind", "--callgrind-out-file=FILE"];

/// A server whose cycles are counted.
#[derive(Debug, Clone, Copy)]
pub enum Subject<'a> {
    /// The service over Redis nodes.
    Service(&'a Path),
    /// The service over an embedded node.
    Embedded(&'a Path),
    /// The bare endpoint, by this program.
    Bare(&'a Path),
    /// The same with the duties of the service's HTTP layer, of usual crates.
    Usual(&'a Path),
}

/// Everything.
///
/// Errors: where a server does not start, a tool is missing or a cycle fails.
pub async fn run(asked: &Asked) -> Result<(), Failure> {
    println!("| the service, per cycle of acquire and release | connections | |\n|---|---:|---:|");
    for connections in CONNECTION_COUNTS {
        let reads = reads(&asked.binary, connections).await?;
        println!("| reads of all nodes, of {COMMANDS} commands (their own counters) | {connections} | {reads:.2} |");
        println!("| commands per read (the same) | {connections} | {:.1} |", COMMANDS / reads);
    }
    for connections in CONNECTION_COUNTS {
        let [nodes, others] = writes(&asked.binary, connections).await?;
        println!(
            "| writes to all nodes, of {COMMANDS} commands (strace of writes alone) | {connections} | {nodes:.2} |"
        );
        println!("| commands per write (the same) | {connections} | {:.1} |", COMMANDS / nodes);
        println!("| writes to callers and elsewhere, of 2 answers (the same) | {connections} | {others:.2} |");
    }
    for connections in CONNECTION_COUNTS {
        for (call, count) in calls(&asked.binary, connections).await? {
            println!("| {call} (strace -c, which slows the service down) | {connections} | {count:.2} |");
        }
    }
    let perf = perf_counts();
    let idle = if perf { 0.0 } else { idle_by_valgrind(Subject::Service(&asked.binary)).await? };
    for connections in CONNECTION_COUNTS {
        let (count, by) = match perf {
            true => (by_perf(&asked.binary, connections).await?, "perf"),
            false => {
                let count = cycle_by_valgrind(Subject::Service(&asked.binary), connections, idle).await?;
                (count, "valgrind, without those of an idle service")
            }
        };
        println!("| instructions in user space ({by}) | {connections} | {count:.0} |");
    }
    if !perf {
        println!("| instructions in user space per second of an idle service (valgrind) | 0 | {idle:.0} |");
    }
    Ok(())
}

async fn cycles(address: SocketAddr, connections: usize, count: u64) -> Result<Run, Failure> {
    let run = http::drive(address, connections, Until::Cycles(count), http::cycle).await?;
    if run.errors > 0 {
        return Err(format!("{} cycles failed", run.errors).into());
    }
    Ok(run)
}

/// Instructions per second of a server without load.
///
/// Errors: as of [`run`].
pub async fn idle_by_valgrind(subject: Subject<'_>) -> Result<f64, Failure> {
    let (short, long) = (by_valgrind(subject, 1, 1, Duration::ZERO).await?, by_valgrind(subject, 1, 1, IDLE).await?);
    Ok((long.0 - short.0) / (long.1 - short.1))
}

/// Instructions per cycle. `idle`: those of an idle server per second, for under `valgrind` a cycle takes so long that they would
/// be a tenth of it, or more where the machine is busy.
///
/// Errors: as of [`run`].
pub async fn cycle_by_valgrind(subject: Subject<'_>, connections: usize, idle: f64) -> Result<f64, Failure> {
    let short = by_valgrind(subject, connections, SHORT, Duration::ZERO).await?;
    let long = by_valgrind(subject, connections, LONG, Duration::ZERO).await?;
    Ok(per_cycle(short.0, long.0 - idle * (long.1 - short.1)))
}

/// What each cycle adds to a count.
pub fn per_cycle(short: f64, long: f64) -> f64 {
    (long - short) / (LONG - SHORT) as f64
}

/// Whether `perf` is there and the machine counts instructions for it.
fn perf_counts() -> bool {
    let perf = Command::new("perf").args(["stat", "-x,", "-e", "instructions:u", "true"]).output();
    perf.is_ok_and(|perf| count_of(&String::from_utf8_lossy(&perf.stderr)).is_some())
}

fn count_of(text: &str) -> Option<f64> {
    text.lines().find(|line| line.contains("instructions"))?.split(',').next()?.parse().ok()
}

async fn by_perf(binary: &Path, connections: usize) -> Result<f64, Failure> {
    let nodes = Nodes::start().await?;
    let service = Start { binary, under: &[], args: &[] }.over(&nodes).await?;
    cycles(service.address, connections, WARM_UP).await?;
    let pid = service.server.pid().to_string();
    let mut perf = Command::new("perf");
    perf.args(["stat", "-x,", "-e", "instructions:u", "-p", &pid]).stderr(Stdio::piped());
    let mut perf = Server(perf.spawn()?);
    // perf says nowhere that it has begun.
    tokio::time::sleep(Duration::from_millis(500)).await;
    let run = cycles(service.address, connections, CYCLES).await?;
    Command::new("kill").args(["-INT", &perf.pid().to_string()]).status()?;
    let mut said = String::new();
    let mut output = perf.0.stderr.take().ok_or("no output")?;
    std::io::Read::read_to_string(&mut output, &mut said)?;
    Ok(count_of(&said).ok_or("perf counted nothing")? / run.cycles() as f64)
}

/// All instructions of a server that does so many cycles and is then idle, from its start to its end, and how many seconds cycles
/// and idle time took.
async fn by_valgrind(
    subject: Subject<'_>,
    connections: usize,
    count: u64,
    idle: Duration,
) -> Result<(f64, f64), Failure> {
    let Traced { text, took, .. } = under_tool(subject, &COUNTS, connections, count, idle).await?;
    Ok((total_of(&text).ok_or("valgrind counted nothing")?, took.as_secs_f64()))
}

/// All instructions in callgrind's output.
pub fn total_of(text: &str) -> Option<f64> {
    let total = text.lines().find_map(|line| line.strip_prefix("totals: ").or(line.strip_prefix("summary: ")))?;
    total.trim().parse().ok()
}

/// What a tool wrote.
struct Traced {
    text: String,
    /// The ports of the nodes.
    ports: Vec<u16>,
    /// How long cycles and idle time took.
    took: Duration,
}

/// A server under a tool that writes into `FILE`, from its start to its end, with so many cycles between, and then `idle`.
async fn under_tool(
    subject: Subject<'_>,
    tool: &[&str],
    connections: usize,
    count: u64,
    idle: Duration,
) -> Result<Traced, Failure> {
    let (data, nodes) = (Directory::new()?, Nodes::start().await?);
    let file = data.0.join("tool");
    let under: Vec<String> = tool.iter().map(|word| word.replace("FILE", &file.display().to_string())).collect();
    let start = |binary| Start { binary, under: &under, args: &PATIENT };
    let (mut service, mut bare);
    let (address, server) = match subject {
        Subject::Service(binary) => {
            service = start(binary).over(&nodes).await?;
            (service.address, &mut service.server)
        }
        Subject::Embedded(binary) => {
            service = start(binary).embedded().await?;
            (service.address, &mut service.server)
        }
        Subject::Bare(program) => {
            bare = Yardstick::start_under(&under, program, &["bare".to_owned()])?;
            (bare.address, &mut bare.server)
        }
        Subject::Usual(program) => {
            bare = Yardstick::start_under(&under, program, &["usual".to_owned()])?;
            (bare.address, &mut bare.server)
        }
    };
    let begun = Instant::now();
    cycles(address, connections, count).await?;
    tokio::time::sleep(idle).await;
    let took = begun.elapsed();
    server.stop().await?;
    // A tool that watches from beside it ends after it.
    let (mut text, mut length) = (String::new(), usize::MAX);
    while text.len() != length {
        length = text.len();
        tokio::time::sleep(Duration::from_millis(300)).await;
        text = std::fs::read_to_string(&file)?;
    }
    Ok(Traced { text, ports: nodes.addresses.iter().map(|address| address.port()).collect(), took })
}

/// Writes per cycle: to the nodes, and all others.
async fn writes(binary: &Path, connections: usize) -> Result<[f64; 2], Failure> {
    let under = ["strace", "-D", "-f", "-q", "--seccomp-bpf", "-s", "0", "-o", "FILE", "-e", TRACED];
    let mut counts = Vec::new();
    for count in [SHORT, LONG] {
        let Traced { text, ports, .. } =
            under_tool(Subject::Service(binary), &under, connections, count, Duration::ZERO).await?;
        counts.push(count_writes(&text, &ports));
    }
    Ok([0, 1].map(|to| per_cycle(counts[0][to], counts[1][to])))
}

/// Of a trace: writes to what was connected to one of these ports, and all others.
fn count_writes(trace: &str, ports: &[u16]) -> [f64; 2] {
    let mut nodes: HashSet<&str> = HashSet::new();
    let mut counts = [0.0; 2];
    for line in trace.lines() {
        // 1234  connect(11, {sa_family=AF_INET, sin_port=htons(6379), …}, 16) = …
        let Some((call, rest)) = line.split_whitespace().nth(1).and_then(|call| call.split_once('(')) else { continue };
        let socket = rest.trim_end_matches(',');
        if call == "connect" {
            let port = line.split_once("htons(").and_then(|(_, rest)| rest.split_once(')')?.0.parse().ok());
            match port.is_some_and(|port| ports.contains(&port)) {
                true => nodes.insert(socket),
                false => nodes.remove(socket),
            };
        } else if call == "accept4" {
            // The number of a closed connection comes back.
            if let Some(accepted) = line.rsplit_once("= ") {
                nodes.remove(accepted.1.trim());
            }
        } else {
            counts[usize::from(!nodes.contains(socket))] += 1.0;
        }
    }
    counts
}

/// System calls per cycle, the most frequent first.
async fn calls(binary: &Path, connections: usize) -> Result<Vec<(String, f64)>, Failure> {
    let under = ["strace", "-D", "-f", "-q", "-c", "-o", "FILE"];
    let short =
        count_calls(&under_tool(Subject::Service(binary), &under, connections, SHORT, Duration::ZERO).await?.text);
    let long =
        count_calls(&under_tool(Subject::Service(binary), &under, connections, LONG, Duration::ZERO).await?.text);
    let of = |(call, count): (&String, &f64)| (call.clone(), per_cycle(*short.get(call).unwrap_or(&0.0), *count));
    let mut calls: Vec<_> = long.iter().map(of).filter(|(_, count)| *count >= 0.05).collect();
    calls.sort_by(|(_, a), (_, b)| b.total_cmp(a));
    Ok(calls)
}

/// Of a summary: `% time, seconds, usecs/call, calls, [errors,] name`.
fn count_calls(summary: &str) -> BTreeMap<String, f64> {
    let of = |line: &str| {
        let words: Vec<&str> = line.split_whitespace().collect();
        let count = words.get(3)?.parse().ok()?;
        Some((words.last()?.to_string(), count))
    };
    summary.lines().filter_map(of).collect()
}

/// How often the nodes read from their connections, per cycle: as often as the service wrote, or less
/// where two writes arrived as one.
async fn reads(binary: &Path, connections: usize) -> Result<f64, Failure> {
    let nodes = Nodes::start().await?;
    let service = Start { binary, under: &[], args: &[] }.over(&nodes).await?;
    cycles(service.address, connections, WARM_UP).await?;
    let all = || -> Result<f64, Failure> {
        let mut sum = 0.0;
        for at in 0..NODES {
            let info: String = redis::cmd("INFO").arg("stats").query(&mut nodes.connection(at)?)?;
            let reads: Option<f64> =
                info.lines().find_map(|line| line.strip_prefix("total_reads_processed:")?.trim().parse().ok());
            sum += reads.ok_or("the node does not count its reads")?;
        }
        Ok(sum)
    };
    let before = all()?;
    let run = cycles(service.address, connections, CYCLES).await?;
    Ok((all()? - before) / run.cycles() as f64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn writes_are_distinguished_by_destination() {
        let trace = "1  connect(11, {sa_family=AF_INET, sin_port=htons(7001), sin_addr=x}, 16) = -1 EINPROGRESS\n\
            1  sendto(11, \"\"..., 40, MSG_NOSIGNAL, NULL, 0) = 40\n\
            1  accept4(9, {sa_family=AF_INET, sin_port=htons(50000)}, [16], 0) = 12\n\
            2  writev(12, [{...}], 2) = 40\n1  write(5, \"\"..., 8) = 8\n1  +++ exited with 0 +++\n";
        assert_eq!(count_writes(trace, &[7001]), [1.0, 2.0]);
        assert_eq!(
            count_writes(&format!("{trace}1  accept4(9, NULL, NULL, 0) = 11\n1  write(11, 8) = 8\n"), &[7001]),
            [1.0, 3.0]
        );
    }

    #[test]
    fn summaries_are_read() {
        let summary = "% time     seconds  usecs/call     calls    errors syscall\n------ --- --- --- --- ---\n \
            56.1    0.01      3     400         2 recvfrom\n 20.0    0.01      3     300           sendto\n100.0 0.1 9 700 2 total\n";
        let calls = count_calls(summary);
        assert_eq!((calls["recvfrom"], calls["sendto"], calls["total"]), (400.0, 300.0, 700.0));
        assert_eq!(calls.len(), 3);
    }

    #[test]
    fn counts_of_perf_are_read() {
        assert_eq!(count_of("123456,,instructions:u,1000,100.00,,\n"), Some(123_456.0));
        assert_eq!(count_of("<not supported>,,instructions:u,0,100.00,,\n"), None);
    }
}
