//! Renews a lease at a third of its TTL while it is polled, and reports in time when it can no longer be renewed. The deadline is
//! local: start of the last successful request plus the validity, on a clock that counts suspend.

use std::time::Duration;

use tokio::sync::watch;

use super::answers::TimedLease;
use super::error::ClientError;
use super::names::LockNames;
use super::transport::Client;
use redlockd_common::clock::{BootTime, Clock, SystemClock};
use redlockd_common::random::SystemEntropy;
use redlockd_common::renewal::{renewal_interval, renewal_retry};
use redlockd_common::types::Token;

/// Maximum duration of one try, as a part of the TTL, so that several fit before the end …
const TRIES_PER_TTL: u32 = 12;
/// … and at most this: another instance may be faster.
const TRY_MAX: Duration = Duration::from_secs(2);
/// Longest single sleep: timers stop while the machine is suspended, leases do not, so the clock is read this often.
const CLOCK_CHECK: Duration = Duration::from_millis(500);

/// Why a lease is no longer renewed.
#[derive(Debug, Clone)]
pub enum RenewalEnd {
    /// The service reported the lease's end; of a set, the end of at least one lease.
    Ended(ClientError),
    /// No renewal succeeded in time.
    NotRenewed,
}

/// Renews one lease, or those of a set, which end together: the loss of one is the loss of all.
#[derive(Debug)]
pub struct LeaseRenewer {
    client: Client,
    names: LockNames,
    token: Token,
    ttl: Duration,
    due: BootTime,
    deadline: watch::Sender<BootTime>,
}

impl LeaseRenewer {
    /// Renews a lease that was just granted; also returns its deadline, which every renewal updates.
    pub fn new(client: Client, names: LockNames, token: Token, from: &TimedLease) -> (Self, watch::Receiver<BootTime>) {
        let ttl = from.ttl();
        let due = from.granted.plus(renewal_interval(ttl));
        let (deadline, watched) = watch::channel(from.deadline);
        (Self { client, names, token, ttl, due, deadline }, watched)
    }

    /// Renews until renewal is no longer possible; returns at least `notice` before the deadline unless the service ended the
    /// lease. `on_failure` is called for each failed try. Cancel: the deadline remains; call it again to continue.
    pub async fn run(&mut self, notice: Duration, mut on_failure: impl FnMut(&ClientError)) -> RenewalEnd {
        loop {
            let end = self.deadline.borrow().minus(notice);
            let due = self.due;
            if due >= end {
                sleep_until(end).await;
                return RenewalEnd::NotRenewed;
            }
            sleep_until(due).await;
            let left = end.since(SystemClock.now());
            if left.is_zero() {
                return RenewalEnd::NotRenewed;
            }
            let timeout = (self.ttl / TRIES_PER_TTL).min(TRY_MAX).max(Duration::from_millis(1));
            // Trying several instances may take longer than the time left.
            let outcome = tokio::select! {
                biased;
                outcome = self.renew(timeout) => outcome,
                () = sleep_until(end) => continue,
            };
            match outcome {
                Ok(()) => {}
                Err(error) if error.is_lost() => return RenewalEnd::Ended(error),
                Err(error) => {
                    on_failure(&error);
                    self.due = SystemClock.now().plus(renewal_retry(self.ttl, &SystemEntropy));
                }
            }
        }
    }

    /// Renews once, even after the deadline: if another process has renewed the lease, it is still held, and [`Self::run`] can
    /// continue.
    ///
    /// Errors: [`ClientError`]; the deadline stays as it was. Cancel: the lease may have been renewed.
    pub async fn renew(&mut self, timeout: Duration) -> Result<(), ClientError> {
        let renewed = self.client.extend(&self.names, &self.token, serde_json::Map::new(), timeout).await?;
        self.due = renewed.granted.plus(renewal_interval(self.ttl));
        // An extend never shortens the promised validity.
        self.deadline.send_if_modified(|deadline| {
            let later = renewed.deadline > *deadline;
            *deadline = renewed.deadline.max(*deadline);
            later
        });
        Ok(())
    }
}

/// Resolves at `at`; if the machine was suspended in between, at most half a second late. Cancel: nothing is left behind.
pub async fn sleep_until(at: BootTime) {
    loop {
        let left = at.since(SystemClock.now());
        if left.is_zero() {
            return;
        }
        SystemClock.sleep(left.min(CLOCK_CHECK)).await;
    }
}
