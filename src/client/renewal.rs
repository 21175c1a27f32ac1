//! A lease that is kept: renewed at a third of its TTL for as long as somebody polls, and the news,
//! in time, that it cannot be kept any longer. The deadline is local: start of the last successful
//! request plus what it promised, on a clock that counts suspend. Decides nothing about what the
//! lease protects.

use std::time::Duration;

use tokio::sync::watch;

use super::acquire::jittered;
use super::error::{ClientError, ErrorClass};
use super::requests::Answered;
use super::transport::Client;
use crate::redlock::clock::{BootTime, Clock, SystemClock};
use crate::types::{ResourceName, Token};

/// A third of the TTL passes between renewals: two of three may fail.
const RENEWALS_PER_TTL: u32 = 3;
/// Each try of a renewal may take a twelfth of the TTL at most, so that several fit before the end …
const TRIES_PER_TTL: u32 = 12;
/// … and never longer than this: an instance that takes longer is not the one to wait for.
const TRY_MOST: Duration = Duration::from_secs(2);
/// Pause between tries that failed, as a part of the TTL, and at most.
const PAUSES_PER_TTL: u32 = 30;
const PAUSE_MOST: Duration = Duration::from_secs(1);
/// Longest single sleep: timers stand still while the machine is suspended, leases do not, so look
/// at the clock that often.
const LOOK: Duration = Duration::from_millis(500);
/// Why a lease is not kept any longer.
#[derive(Debug, Clone)]
pub enum Lost {
    /// The service says that it is over, or another's.
    Ended(ClientError),
    /// No renewal succeeded in time.
    Unrenewed,
}

/// A lease and what it takes to renew it.
#[derive(Debug)]
pub struct Keeper {
    client: Client,
    resource: ResourceName,
    token: Token,
    ttl: Duration,
    due: BootTime,
    deadline: watch::Sender<BootTime>,
}

impl Keeper {
    /// Takes over a lease as it was answered, and hands out where its deadline can be watched.
    pub fn new(
        client: Client,
        resource: ResourceName,
        token: Token,
        from: &Answered,
    ) -> (Self, watch::Receiver<BootTime>) {
        let ttl = Duration::from_millis(from.lease.ttl_ms);
        let due = from.granted.plus(ttl / RENEWALS_PER_TTL);
        let (deadline, watched) = watch::channel(from.deadline);
        (Self { client, resource, token, ttl, due, deadline }, watched)
    }

    /// Renews until it cannot be kept any longer, which is told at least `notice` before the
    /// deadline unless the service ended it. `on_trouble` hears of each try that failed.
    /// Cancel: the deadline stands; call it again to go on.
    pub async fn run(&mut self, notice: Duration, mut on_trouble: impl FnMut(&ClientError)) -> Lost {
        loop {
            let end = self.deadline.borrow().minus(notice);
            let due = self.due;
            if due >= end {
                look_until(end).await;
                return Lost::Unrenewed;
            }
            look_until(due).await;
            let left = end.since(SystemClock.now());
            if left.is_zero() {
                return Lost::Unrenewed;
            }
            let timeout = (self.ttl / TRIES_PER_TTL).min(TRY_MOST).max(Duration::from_millis(1));
            let nothing = serde_json::Map::new();
            let extend = self.client.extend(&self.resource, &self.token, nothing, timeout);
            // Several instances in turn may take longer than what is left.
            let outcome = tokio::select! {
                biased;
                outcome = extend => outcome,
                () = look_until(end) => continue,
            };
            match outcome {
                Ok(renewed) => {
                    self.due = renewed.granted.plus(self.ttl / RENEWALS_PER_TTL);
                    // An extend never shortens what was promised.
                    self.deadline.send_if_modified(|deadline| {
                        let later = renewed.deadline > *deadline;
                        *deadline = renewed.deadline.max(*deadline);
                        later
                    });
                }
                Err(error) if error.class() == ErrorClass::Lost => return Lost::Ended(error),
                Err(error) => {
                    on_trouble(&error);
                    let pause = jittered((self.ttl / PAUSES_PER_TTL).min(PAUSE_MOST));
                    self.due = SystemClock.now().plus(pause);
                }
            }
        }
    }
}

/// Resolves at `at` also where the machine was suspended in between, at most `LOOK` late then.
/// Cancel: nothing is left behind.
pub async fn look_until(at: BootTime) {
    loop {
        let left = at.since(SystemClock.now());
        if left.is_zero() {
            return;
        }
        SystemClock.sleep(left.min(LOOK)).await;
    }
}
