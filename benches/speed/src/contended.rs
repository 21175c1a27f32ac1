//! Contention: many clients wait for one name, acquire it and release it at once. Measures grants per second and the
//! hand-over gap: the time from the call of a release to the next holder's answer.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::io::Write;
use std::rc::Rc;
use std::time::{Duration, Instant};

use crate::Failure;
use crate::goals::Goals;
use crate::http::{self, Connection};
use crate::stats::{Run, Spread, percentile};
use crate::throughput::World;
use crate::workers::Until;

/// How many want it at once.
const CONNECTION_COUNTS: [usize; 3] = [2, 16, 64];

/// What one round measured with one connections.
struct Round {
    run: Run,
    /// Sorted, microseconds.
    gaps: Vec<f64>,
    /// An uncontended cycle just before, microseconds.
    alone: f64,
}

/// What was measured so far.
#[derive(Default)]
pub struct Rounds(BTreeMap<usize, Vec<Round>>);

impl Rounds {
    /// One round.
    ///
    /// Errors: where nothing can be measured.
    pub async fn measure(&mut self, world: &World, length: Duration) -> Result<(), Failure> {
        for connections in CONNECTION_COUNTS {
            eprintln!("one name, {connections} at once");
            let alone = world.drive(1, length / 4).await?.percentile(0.5);
            let released = Rc::new(Cell::new(None::<Instant>));
            let gaps = Rc::new(RefCell::new(Vec::new()));
            let received = Rc::clone(&gaps);
            let turn = async move |connection: &mut Connection, _| {
                connection.begin();
                write!(
                    connection.out,
                    "POST /locks/one?ttl=30s&wait=1m HTTP/1.1\r\nhost: localhost\r\ncontent-length: 0\r\n\r\n"
                )?;
                let answer = connection.ask().await?;
                if let Some(released) = released.take() {
                    received.borrow_mut().push(released.elapsed().as_secs_f64() * 1e6);
                }
                connection.keep_token(&answer);
                connection.begin();
                write!(connection.out, "DELETE /locks/one HTTP/1.1\r\nhost: localhost\r\nlock-token: ")?;
                connection.put_token();
                connection.out.extend_from_slice(b"\r\n\r\n");
                released.set(Some(Instant::now()));
                Ok(answer.status == 201 && connection.ask().await?.status == 204)
            };
            let run = http::drive(world.service.address, connections, Until::Passed(length), turn).await?;
            let mut gaps = gaps.take();
            gaps.sort_by(f64::total_cmp);
            self.0.entry(connections).or_default().push(Round { run, gaps, alone });
        }
        Ok(())
    }

    /// Adds its goals.
    pub fn add_goals(&self, goals: &mut Goals) {
        for (connections, rounds) in &self.0 {
            let handover = rounds.iter().map(|r| percentile(&r.gaps, 0.5) / r.alone).collect();
            goals.at_most(&format!("hand-over to the next of {connections}, in cycles"), 1.5, "", handover);
        }
    }

    /// Prints what was measured.
    pub fn print(&self) {
        println!(
            "\nOne name that all wait for, released at once; the gap is from a release to the next holder's answer:\n"
        );
        println!(
            "| at once | turns/s | gap p50 µs | gap p99 µs | gap p50 / an uncontended cycle's p50 | errors |\n|---:|---:|---:|---:|---:|---:|"
        );
        for (connections, rounds) in &self.0 {
            let spread = |what: &dyn Fn(&Round) -> f64| Spread::of(rounds.iter().map(what));
            println!(
                "| {connections} | {:.0} | {:.0} | {:.0} | {} | {} |",
                spread(&|r| r.run.rate()).median,
                spread(&|r| percentile(&r.gaps, 0.5)).median,
                spread(&|r| percentile(&r.gaps, 0.99)).median,
                spread(&|r| percentile(&r.gaps, 0.5) / r.alone).text(2),
                rounds.iter().map(|r| r.run.errors).sum::<u64>(),
            );
        }
    }
}
