//! What the scripts cost a node: processor time of its process per request, beside the commands of plain Redlock. Every
//! reply is checked: a script that refuses is cheap.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use crate::floor::{Calls, Kind};
use crate::goals::Goals;
use crate::process::cpu_us;
use crate::servers::{Nodes, Start};
use crate::stats::Spread;
use crate::{Asked, Failure};

/// Requests of which the cost is the mean.
const CALLS: usize = 4_800;
/// Requests that are sent at once.
const AT_ONCE: usize = 48;
/// Requests that share a command, as some 64 callers bring them about.
const BATCH: usize = 16;
/// What is measured, how many of them share a command, and the first of their numbers: each acquire is of a fresh name.
const KINDS: [(Kind, usize, usize, &str); 6] = [
    (Kind::Set, 1, 0, "SET NX PX"),
    (Kind::Delete, 1, 0, "compare-and-delete"),
    (Kind::Acquire, 1, 0, "acquire"),
    (Kind::Release, 1, 0, "release"),
    (Kind::Acquire, BATCH, CALLS, "acquire, 16 in a batch"),
    (Kind::Release, BATCH, CALLS, "release, 16 in a batch"),
];

/// What an acquire cannot do without, step by step: below this no script that looks at its node gets.
const STEPS: [(&str, &str); 3] = [
    ("a script that does nothing", "return 1"),
    (
        "a script that reads the clock and the marker",
        "redis.call('TIME') redis.call('HMGET', KEYS[1], 'pass', 'seen', 'hw', 'base', 'per') return 1",
    ),
    (
        "the same, and SET NX PX",
        "redis.call('TIME') redis.call('HMGET', KEYS[1], 'pass', 'seen', 'hw', 'base', 'per')
         redis.call('SET', KEYS[2], ARGV[1], 'NX', 'PX', 30000) return 1",
    ),
];

/// Microseconds per request on a node, of each kind, and of each step, and round.
#[derive(Debug, Default)]
pub struct OnNode([Vec<f64>; 6], [Vec<f64>; 3]);

/// Only this (`redlockd-speed scripts`).
///
/// Errors: where a server does not start.
pub async fn run(asked: &Asked) -> Result<(), Failure> {
    let mut costs = OnNode::default();
    for _ in 0..asked.rounds {
        let nodes = Nodes::start().await?;
        // It declares the nodes.
        let mut service = Start { binary: &asked.binary, under: &[], args: &[] }.over(&nodes).await?;
        let measured = costs.measure(&nodes);
        service.server.stop().await?;
        measured?;
    }
    costs.print();
    let mut goals = Goals::default();
    costs.add_goals(&mut goals);
    goals.print();
    Ok(())
}

impl OnNode {
    /// One round.
    ///
    /// Errors: where the node refuses a call.
    pub fn measure(&mut self, nodes: &Nodes) -> Result<(), Failure> {
        let mut control = nodes.connection(0)?;
        let mut stream = TcpStream::connect(nodes.addresses[0])?;
        stream.set_read_timeout(Some(Duration::from_secs(10)))?;
        for script in redlockd::protocol::commands::all_scripts() {
            script.load().exec(&mut control)?;
        }
        let node = nodes.pids().swap_remove(0);
        let mut calls = Calls::new(nodes.fingerprints()?.swap_remove(0));
        for (costs, (kind, batch, number, name)) in self.0.iter_mut().zip(KINDS) {
            let (mut packed, before) = (Vec::new(), cpu_us(node)?);
            for first in (number..number + CALLS).step_by(AT_ONCE) {
                packed.clear();
                for first in (first..first + AT_ONCE).step_by(batch) {
                    calls.pack(&mut packed, kind, first..first + batch);
                }
                stream.write_all(&packed)?;
                expect(&mut stream, kind, AT_ONCE / batch, name)?;
            }
            costs.push((cpu_us(node)? - before) / CALLS as f64);
        }
        for (costs, (name, text)) in self.1.iter_mut().zip(STEPS) {
            let hash: String = redis::cmd("SCRIPT").arg("LOAD").arg(text).query(&mut control)?;
            let before = cpu_us(node)?;
            for first in (0..CALLS).step_by(AT_ONCE) {
                let mut pipe = redis::pipe();
                for number in first..first + AT_ONCE {
                    let key = format!("step:{name}:{number}");
                    pipe.cmd("EVALSHA").arg(&hash).arg(2).arg("redlockd:meta").arg(key).arg("a".repeat(64));
                }
                let done: Vec<i64> = pipe.query(&mut control)?;
                if done != [1; AT_ONCE] {
                    return Err(format!("{name}: the node says {done:?}").into());
                }
            }
            costs.push((cpu_us(node)? - before) / CALLS as f64);
        }
        Ok(())
    }

    /// Prints what was measured.
    pub fn print(&self) {
        println!(
            "\nProcessor time of one node per request, mean of {CALLS}, {AT_ONCE} sent at once:\n\n| request | µs |\n|---|---:|"
        );
        for (costs, (_, _, _, name)) in self.0.iter().zip(KINDS) {
            println!("| {name} | {} |", Spread::of(costs.iter().copied()).text(2));
        }
        for (costs, (name, _)) in self.1.iter().zip(STEPS) {
            println!("| {name} | {} |", Spread::of(costs.iter().copied()).text(2));
        }
    }

    /// Adds its goals: processor time of a request, where that of `SET NX PX` in the same round is 1.
    pub fn add_goals(&self, goals: &mut Goals) {
        let [sets, _, acquires, releases, acquires_batched, releases_batched] = &self.0;
        for (what, bound, ours) in [
            ("acquire on the node / SET NX PX", 9.0, acquires),
            ("the same, 16 in a batch", 5.0, acquires_batched),
            ("release on the node / SET NX PX", 6.5, releases),
            ("the same, 16 in a batch", 4.2, releases_batched),
        ] {
            goals.at_most(what, bound, "", ours.iter().zip(sets).map(|(a, b)| a / b).collect());
        }
    }
}

/// Reads so many replies. A list that is not only of numbers has a refusal in it.
fn expect(stream: &mut TcpStream, kind: Kind, count: usize, name: &str) -> Result<(), Failure> {
    let (mut bytes, mut done) = (Vec::new(), 0);
    while done < count {
        let mut chunk = [0; 16_384];
        let read = stream.read(&mut chunk)?;
        bytes.extend_from_slice(&chunk[..read]);
        let mut begin = 0;
        while let Some((length, is_yes)) = crate::pipelined_client::reply(&bytes[begin..]) {
            let is_list = bytes[begin] == b'*';
            if !is_yes
                || is_list && !bytes[begin..begin + length].iter().all(|byte| b"*:$\r\n0123456789".contains(byte))
            {
                let said = String::from_utf8_lossy(&bytes[begin..begin + length]).into_owned();
                return Err(format!("{name} ({kind:?}): the node says {said:?}").into());
            }
            (begin, done) = (begin + length, done + 1);
        }
        bytes.drain(..begin);
        if read == 0 {
            return Err("the node hung up".into());
        }
    }
    Ok(())
}
