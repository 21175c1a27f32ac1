//! A number of concurrent workers, each running one cycle after the other: the load of every benchmark.

use std::cell::RefCell;
use std::rc::Rc;
use std::time::{Duration, Instant};

use tokio::task::LocalSet;

use crate::Failure;
use crate::stats::Run;

/// When the workers stop.
#[derive(Debug, Clone, Copy)]
pub enum Until {
    /// After this time; a cycle that has begun is finished.
    Passed(Duration),
    /// After this many cycles in all, the same number for each worker.
    Cycles(u64),
}

/// Runs `cycle(worker, number)` in each worker again and again; it returns whether it succeeded. The numbers of
/// two workers differ.
pub async fn repeat<W: 'static>(
    workers: Vec<W>,
    until: Until,
    cycle: impl AsyncFn(&mut W, u64) -> bool + 'static,
) -> Result<Run, Failure> {
    let local = LocalSet::new();
    local.run_until(repeat_here(workers, until, cycle)).await
}

/// The same within a `LocalSet` that is there.
pub async fn repeat_here<W: 'static>(
    workers: Vec<W>,
    until: Until,
    cycle: impl AsyncFn(&mut W, u64) -> bool + 'static,
) -> Result<Run, Failure> {
    let (connections, cycle) = (workers.len() as u64, Rc::new(cycle));
    let took = Rc::new(RefCell::new(Vec::with_capacity(1 << 18)));
    let begun = Instant::now();
    let goes_on = move |number: u64, now: Instant| match until {
        Until::Passed(length) => now - begun < length,
        Until::Cycles(all) => number < all,
    };
    let mut tasks = Vec::new();
    for (first, mut worker) in (0_u64..).zip(workers) {
        let (cycle, took) = (Rc::clone(&cycle), Rc::clone(&took));
        tasks.push(tokio::task::spawn_local(async move {
            let (mut number, mut errors, mut started) = (first, 0_u64, Instant::now());
            while goes_on(number, started) {
                let succeeded = cycle(&mut worker, number).await;
                let ended = Instant::now();
                match succeeded {
                    true => took.borrow_mut().push(ended - started),
                    false => errors += 1,
                }
                (number, started) = (number + connections, ended);
            }
            errors
        }));
    }
    let mut errors = 0;
    for task in tasks {
        errors += task.await?;
    }
    let lasted = begun.elapsed();
    let took = std::mem::take(&mut *took.borrow_mut());
    Ok(Run::new(took, lasted, errors))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn every_number_is_done_once() {
        for connections in [1, 3, 64] {
            let seen = Rc::new(RefCell::new(Vec::new()));
            let done = Rc::clone(&seen);
            let cycle = async move |(): &mut (), number| {
                done.borrow_mut().push(number);
                number != 7
            };
            let run = repeat(vec![(); connections], Until::Cycles(100), cycle).await.expect("a run");
            let mut seen = seen.take();
            seen.sort_unstable();
            assert_eq!(seen, (0..100).collect::<Vec<u64>>());
            assert_eq!((run.cycles(), run.errors), (99, 1));
        }
    }
}
