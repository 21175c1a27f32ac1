//! The clients, of which some share their lease as readers: they acquire, work, extend, release, hang up, retry with the same token, and go on writing
//! after their deadline to a register that checks fences.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use redlockd::redlock::clock::{BootTime, Clock, SystemClock};

use super::cluster::{GUARD, INSTANCES, LOCK_DELAY, MAX_TTL};
use super::history::{Claim, Grant, History, Loss, Refusal};
use super::locks::{Granted, Locks, Refused};
use super::support::seeded::Seeded;
use redlockd::redlock::random::Entropy;

/// Resources that all clients use.
pub const RESOURCES: [&str; 4] = ["jobs/1", "jobs/2", "jobs/3", "jobs/4"];
/// Clients at the same time.
pub const CLIENTS: u64 = 10;
/// Of a hundred clients of the service so many want to share.
const READERS: u64 = 40;
/// After a lease's end its keys remain for the lock delay; clocks may differ by the guard.
const IN_THE_WAY: Duration = Duration::from_millis(3_000);

/// A store that accepts no fence below the highest that it has seen.
#[derive(Default)]
struct Register(Mutex<[u64; RESOURCES.len()]>);

impl Register {
    fn write(&self, resource: usize, fence: u64) -> bool {
        let mut highest = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let fits = fence >= highest[resource];
        highest[resource] = highest[resource].max(fence);
        fits
    }
}

/// Shared by all clients of a run.
pub struct Workload {
    pub locks: Locks,
    register: Register,
    history: Mutex<History>,
    end: BootTime,
}

impl Workload {
    /// Clients stop at `end`.
    pub fn new(locks: Locks, end: BootTime) -> Self {
        Self { locks, register: Register::default(), history: Mutex::default(), end }
    }

    /// The history, and the locks.
    pub fn into_parts(self) -> (History, Locks) {
        (self.history.into_inner().unwrap_or_else(PoisonError::into_inner), self.locks)
    }

    fn note(&self, note: impl FnOnce(&mut History)) {
        note(&mut self.history.lock().unwrap_or_else(PoisonError::into_inner));
    }
}

fn us(at: BootTime) -> u64 {
    at.as_micros()
}

/// One client, until the end.
pub async fn client(workload: &Workload, random: Seeded) {
    while SystemClock.now() < workload.end {
        let resource = *random.pick(&[0, 0, 0, 1, 1, 2, 2, 3]);
        let ttl = Duration::from_millis(random.between(300, 1_500)).min(MAX_TTL);
        let wait = if random.percent(40) { random.between(100, 1_500) } else { 0 };
        let (token, at) = (workload.locks.token(), place(&random));
        let is_shared = workload.locks.shares() && random.percent(READERS);
        let mut ask = Ask { resource, token, ttl, wait: Duration::from_millis(wait), is_shared, replays: false };
        if let Some(grant) = acquire(workload, &random, &mut ask, at).await {
            hold(workload, &random, &ask, grant).await;
        }
        SystemClock.sleep(Duration::from_millis(random.between(5, 60))).await;
    }
}

struct Ask {
    resource: usize,
    token: String,
    ttl: Duration,
    wait: Duration,
    is_shared: bool,
    /// The same token is requested twice: by a client that hung up and retried elsewhere.
    replays: bool,
}

fn place(random: &Seeded) -> usize {
    usize::try_from(random.below(INSTANCES as u64)).expect("small")
}

/// Some clients hang up, and some of these retry elsewhere with the same token.
async fn acquire(workload: &Workload, random: &Seeded, ask: &mut Ask, at: usize) -> Option<Grant> {
    let sent = SystemClock.now();
    let name = RESOURCES[ask.resource];
    let patience = if random.percent(10) { Duration::from_millis(random.between(1, 60)) } else { Duration::MAX };
    let request = workload.locks.acquire(at, name, &ask.token, ask.ttl, (ask.wait, ask.is_shared));
    let outcome = tokio::select! {
        biased;
        outcome = request => Some(outcome),
        () = SystemClock.sleep(patience) => None,
    };
    let answered = SystemClock.now();
    let gone = us(answered.plus(ask.ttl).plus(LOCK_DELAY).plus(GUARD).plus(IN_THE_WAY));
    workload.note(|h| h.claims.push(Claim { resource: ask.resource, token: ask.token.clone(), sent: us(sent), gone }));
    match outcome {
        None => {
            workload.note(|h| h.hang_ups += 1);
            if at > 0 || random.percent(50) {
                return None;
            }
            ask.replays = true;
            Box::pin(acquire(workload, random, ask, at + 1)).await
        }
        Some(Err(no)) => {
            let (token, lost) = (ask.token.clone(), no.status == 0);
            let refusal = Refusal { resource: ask.resource, token, sent: us(sent), answered: us(answered), no };
            workload.note(|h| h.lost_answers += u64::from(lost));
            workload.note(|h| h.refusals.push(refusal));
            None
        }
        Some(Ok(Granted { fence, deadline })) => Some(Grant {
            resource: ask.resource,
            token: ask.token.clone(),
            fence,
            is_shared: ask.is_shared,
            sent: us(sent),
            answered: us(answered),
            deadline: us(deadline),
            end: us(deadline),
            extends: 0,
        }),
    }
}

/// Works under the lease: writes, extends, and at the end releases, leaves without release, or writes on.
async fn hold(workload: &Workload, random: &Seeded, ask: &Ask, mut grant: Grant) {
    write(workload, &grant);
    let name = RESOURCES[ask.resource];
    loop {
        let now = us(SystemClock.now());
        let left = grant.deadline.saturating_sub(now);
        // Some extends come late, within the lock delay.
        let nap = if random.percent(15) { left / 1_000 + random.below(300) } else { random.between(5, 150) };
        SystemClock.sleep(Duration::from_millis(nap)).await;
        write(workload, &grant);
        if random.percent(50) || SystemClock.now() >= workload.end || !extend(workload, random, ask, &mut grant).await {
            break;
        }
    }
    let stopped = us(SystemClock.now());
    grant.end = grant.deadline.min(stopped);
    let gone = grant.deadline + micros(LOCK_DELAY + GUARD + IN_THE_WAY);
    workload.note(|h| {
        h.claims.push(Claim { resource: grant.resource, token: grant.token.clone(), sent: grant.sent, gone });
        h.grants.push(grant.clone());
    });
    match random.below(100) {
        0..82 => {
            if let Err(no) = workload.locks.release(place(random), name, &ask.token).await {
                lost_early(workload, &grant, "release", &no, us(SystemClock.now()));
            }
        }
        82..93 => zombie(workload, random, &grant).await,
        _ => {}
    }
}

fn micros(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX)
}

async fn extend(workload: &Workload, random: &Seeded, ask: &Ask, grant: &mut Grant) -> bool {
    match workload.locks.extend(place(random), RESOURCES[ask.resource], &ask.token, ask.ttl).await {
        Ok(yes) if yes.fence == grant.fence => {
            grant.deadline = grant.deadline.max(us(yes.deadline));
            grant.extends += 1;
            true
        }
        // The request that was hung up may have been granted after this one: not known whether the lease was lost
        // in between, so the client stops.
        Ok(yes) if ask.replays && yes.fence > grant.fence => false,
        // A node outside of the grant's quorum had a counter that was ahead. The lease is the same, and confirmed;
        // from now on it has the larger fence.
        Ok(yes) if yes.fence > grant.fence => {
            (grant.fence, grant.deadline) = (yes.fence, grant.deadline.max(us(yes.deadline)));
            grant.extends += 1;
            true
        }
        Ok(yes) => {
            workload
                .note(|h| h.violations.push(format!("an extend answers another fence, {:?}: {grant:?}", yes.fence)));
            false
        }
        Err(no) => {
            lost_early(workload, grant, "extend", &no, us(SystemClock.now()));
            // Unknown: the old deadline remains, and the client may retry.
            no.status == 503 || no.status == 0
        }
    }
}

/// 409 and 410 report a lost lease: before its deadline that requires a cause.
fn lost_early(workload: &Workload, grant: &Grant, operation: &'static str, no: &Refused, at: u64) {
    if matches!(no.status, 409 | 410) && at < grant.deadline {
        workload.note(|h| h.losses.push(Loss { grant: grant.clone(), operation, at, no: no.clone() }));
    }
    if !matches!(no.status, 0 | 409 | 410 | 423 | 503) {
        workload.note(|h| h.violations.push(format!("{operation} at {at} answers {no:?}: {grant:?}")));
    }
}

/// A write under the lease: until the deadline the register must accept it.
fn write(workload: &Workload, grant: &Grant) {
    // A reader may have a larger fence than a writer before it.
    let Some(fence) = grant.fence.filter(|_| !grant.is_shared) else { return };
    let taken = workload.register.write(grant.resource, fence);
    let in_time = us(SystemClock.now()) < grant.deadline;
    workload.note(|h| {
        h.writes += u64::from(taken);
        h.late_writes_stopped += u64::from(!taken && !in_time);
        if !taken && in_time {
            h.violations.push(format!("the register has seen a larger fence than the holder's: {grant:?}"));
        }
    });
}

/// Writes on after its deadline, as a process that was stopped and does not know it.
async fn zombie(workload: &Workload, random: &Seeded, grant: &Grant) {
    for _ in 0..random.between(2, 8) {
        SystemClock.sleep(Duration::from_millis(random.between(50, 500))).await;
        write(workload, grant);
    }
}
