//! What the scripts cost a node by its own count (`INFO commandstats`), beside the commands of plain Redlock. Every
//! reply is checked: a script that refuses is cheap.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use crate::Failure;
use crate::floor::{Calls, Kind};
use crate::goals::Goals;
use crate::servers::Nodes;
use crate::stats::Spread;

/// Calls of which the cost is the mean.
const CALLS: usize = 5_000;
/// Calls that are sent at once.
const AT_ONCE: usize = 50;
const KINDS: [(Kind, &str); 4] = [
    (Kind::Set, "SET NX PX"),
    (Kind::Delete, "compare-and-delete"),
    (Kind::Acquire, "acquire"),
    (Kind::Release, "release"),
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

/// Microseconds per call on a node, of each kind, and of each step, and round.
#[derive(Debug, Default)]
pub struct OnNode([Vec<f64>; 4], [Vec<f64>; 3]);

impl OnNode {
    /// One round.
    ///
    /// Errors: where the node refuses a call, or does not count.
    pub fn measure(&mut self, nodes: &Nodes) -> Result<(), Failure> {
        let mut control = nodes.connection(0)?;
        let mut stream = TcpStream::connect(nodes.addresses[0])?;
        stream.set_read_timeout(Some(Duration::from_secs(10)))?;
        let mut calls = Calls::new(nodes.fingerprints()?.swap_remove(0));
        for (costs, (kind, name)) in self.0.iter_mut().zip(KINDS) {
            redis::cmd("CONFIG").arg("RESETSTAT").exec(&mut control)?;
            let mut packed = Vec::new();
            for first in (0..CALLS).step_by(AT_ONCE) {
                packed.clear();
                (first..first + AT_ONCE).for_each(|number| calls.pack(&mut packed, kind, number));
                stream.write_all(&packed)?;
                expect(&mut stream, kind, name)?;
            }
            costs.push(per_call(&mut control, if kind == Kind::Set { "cmdstat_set:" } else { "cmdstat_evalsha:" })?);
        }
        for (costs, (name, text)) in self.1.iter_mut().zip(STEPS) {
            let hash: String = redis::cmd("SCRIPT").arg("LOAD").arg(text).query(&mut control)?;
            redis::cmd("CONFIG").arg("RESETSTAT").exec(&mut control)?;
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
            costs.push(per_call(&mut control, "cmdstat_evalsha:")?);
        }
        Ok(())
    }

    /// Prints what was measured.
    pub fn print(&self) {
        println!("\nOn one node, by its own accounts, mean of {CALLS} calls:\n\n| command | µs |\n|---|---:|");
        for (costs, (_, name)) in self.0.iter().zip(KINDS) {
            println!("| {name} | {} |", Spread::of(costs.iter().copied()).text(2));
        }
        for (costs, (name, _)) in self.1.iter().zip(STEPS) {
            println!("| {name} | {} |", Spread::of(costs.iter().copied()).text(2));
        }
    }

    /// Adds its goals.
    pub fn judge(&self, goals: &mut Goals) {
        let [sets, deletes, acquires, releases] = &self.0;
        let ratios = |ours: &[f64], theirs: &[f64]| ours.iter().zip(theirs).map(|(a, b)| a / b).collect();
        goals.at_most("acquire script / SET NX PX, on the node", 3.0, "", ratios(acquires, sets));
        goals.at_most("release script / compare-and-delete, on the node", 2.0, "", ratios(releases, deletes));
    }
}

/// What a call of a command took since the node's accounts were reset. Microseconds.
fn per_call(control: &mut redis::Connection, stat: &str) -> Result<f64, Failure> {
    let info: String = redis::cmd("INFO").arg("commandstats").query(control)?;
    let cost = info
        .lines()
        .find_map(|line| line.strip_prefix(stat))
        .and_then(|line| line.split(',').find_map(|field| field.strip_prefix("usec_per_call=")?.parse::<f64>().ok()));
    Ok(cost.ok_or("no statistics of the command")?)
}

/// Reads the replies to so many calls.
fn expect(stream: &mut TcpStream, kind: Kind, name: &str) -> Result<(), Failure> {
    let (mut bytes, mut done) = (Vec::new(), 0);
    while done < AT_ONCE {
        let mut chunk = [0; 16_384];
        let read = stream.read(&mut chunk)?;
        bytes.extend_from_slice(&chunk[..read]);
        let mut begin = 0;
        while let Some((length, is_yes)) = crate::pipelined_client::reply(&bytes[begin..]) {
            if !is_yes {
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
