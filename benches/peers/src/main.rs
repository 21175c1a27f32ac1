//! How long a released lock lies idle with rslock: `peers WORKERS TURNS URL...`. Prints the median and
//! the 99th percentile of the gap between the call of a release and the next holder having the lock, and
//! the median of an uncontended lock-and-unlock, all in microseconds. Retries are unbounded, with the
//! library's own pause; everything else is its default.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use rslock::LockManager;

const TTL: Duration = Duration::from_secs(30);
const HOLD: Duration = Duration::from_millis(2);
/// The library's own pause between tries, at most.
const PAUSE: Duration = Duration::from_millis(200);
const UNCONTENDED: usize = 200;

fn at(sorted: &[u64], percent: usize) -> u64 {
    sorted.get(sorted.len() * percent / 100).or(sorted.last()).copied().unwrap_or(0)
}

#[tokio::main]
async fn main() {
    let mut args = std::env::args().skip(1);
    let mut number = || args.next().and_then(|n| n.parse::<usize>().ok()).expect("a number");
    let (workers, turns) = (number(), number());
    let urls: Vec<String> = args.collect();
    let manager = |_| {
        let mut manager = LockManager::new(urls.clone());
        manager.set_retry(u32::MAX, PAUSE);
        manager
    };
    let alone = manager(0);
    let mut cycles = Vec::new();
    for i in 0..UNCONTENDED {
        let name = format!("rslock-free-{}", i % 10);
        let began = Instant::now();
        let lock = alone.lock(name.as_bytes(), TTL).await.expect("free");
        alone.unlock(&lock).await;
        cycles.push(began.elapsed().as_micros() as u64);
    }
    cycles.sort_unstable();
    let origin = Instant::now();
    let (done, released) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicU64::new(0)));
    let gaps = Arc::new(Mutex::new(Vec::new()));
    let mut tasks = Vec::new();
    for worker in 0..workers {
        let (rl, done, released, gaps) = (manager(worker), done.clone(), released.clone(), gaps.clone());
        tasks.push(tokio::spawn(async move {
            while done.load(Ordering::Relaxed) < turns {
                let Ok(lock) = rl.lock("rslock-busy".as_bytes(), TTL).await else { continue };
                let now = origin.elapsed().as_micros() as u64;
                let before = released.swap(0, Ordering::Relaxed);
                if before > 0 {
                    gaps.lock().unwrap().push(now.saturating_sub(before));
                }
                tokio::time::sleep(HOLD).await;
                done.fetch_add(1, Ordering::Relaxed);
                released.store(origin.elapsed().as_micros() as u64, Ordering::Relaxed);
                rl.unlock(&lock).await;
            }
        }));
    }
    for task in tasks {
        task.await.expect("no panic");
    }
    let mut gaps = gaps.lock().unwrap().clone();
    gaps.sort_unstable();
    println!("{} {} {} {}", at(&gaps, 50), at(&gaps, 99), gaps.len(), at(&cycles, 50));
}
