//! What has to reach every node although the request is over: cancels of attempts that failed or
//! were dropped, and the rest of a release. Runs in tasks of its own with a deadline of its own,
//! bounded in number; what cannot be delivered is left to the keys' TTL.

use std::time::Duration;

use super::backoff::{Backoff, BackoffRange};
use super::clock::{BootTime, Clock};
use super::engine::Redlock;
use super::entropy::Entropy;
use super::node::Node;
use super::round::Until;
use crate::mutant::{self, Mutant};
use crate::protocol::Request;

/// The longest that a clean-up is tried for: beyond it a node has been away for so long that the
/// TTL of most leases has done the work.
pub const CLEANUP_MAX: Duration = Duration::from_secs(30);
/// How long one try waits for a node: longer than a round would, since nobody waits for it.
const TRY_TIMEOUT: Duration = Duration::from_secs(1);
/// Delays between tries.
const TRY_AGAIN: BackoffRange = BackoffRange { first: Duration::from_millis(20), max: Duration::from_secs(1) };

impl<N: Node, C: Clock, E: Entropy> Redlock<N, C, E> {
    /// Delivers `request` to `targets` in a tracked task, until each has answered or `until` has
    /// passed, at most [`CLEANUP_MAX`]. Where too many clean-ups are under way, or no runtime is
    /// left, it is skipped (and counted): the TTL ends what it would have ended.
    pub(super) fn deliver(&self, request: Request, targets: Vec<usize>, until: BootTime) {
        let permit = self.cleanups.clone().try_acquire_owned();
        let (Ok(permit), Ok(runtime)) = (permit, tokio::runtime::Handle::try_current()) else {
            self.count_skipped_cleanup();
            return;
        };
        let engine = self.clone();
        let until = until.min(self.clock.now().plus(CLEANUP_MAX));
        let work = async move {
            engine.deliver_now(request, targets, until).await;
            drop(permit);
        };
        self.tasks.spawn_on(work, &runtime);
    }

    /// As [`Self::deliver`], within the caller's task.
    pub(super) async fn deliver_now(&self, request: Request, mut targets: Vec<usize>, until: BootTime) {
        let mut backoff = Backoff::new(TRY_AGAIN, self.entropy.clone());
        loop {
            let now = self.clock.now();
            let tally =
                self.round(&targets, request.clone(), now, now.plus(TRY_TIMEOUT), Until::All, Result::is_ok).await;
            targets.retain(|i| !matches!(tally.answers()[*i], Some(Ok(_))));
            let now = self.clock.now();
            if targets.is_empty() || now >= until {
                return;
            }
            self.clock.sleep_until(now.plus(backoff.next_delay()).min(until)).await;
        }
    }
}

/// Undoes an attempt when dropped, unless it is disarmed: on ALL nodes, also those that refused,
/// failed or did not answer.
pub(super) struct Undo<N: Node, C: Clock, E: Entropy> {
    armed: Option<(Redlock<N, C, E>, Request)>,
    until: BootTime,
    targets: Vec<usize>,
}

impl<N: Node, C: Clock, E: Entropy> Undo<N, C, E> {
    /// `until`: when the keys that the attempt may have set are gone by themselves.
    pub(super) fn new(engine: Redlock<N, C, E>, request: Request, until: BootTime) -> Self {
        let targets = engine.everyone();
        Self { armed: Some((engine, request)), until, targets }
    }

    /// Nothing is undone elsewhere: a planted bug.
    pub(super) fn narrow(&mut self, to: Vec<usize>) {
        self.targets = to;
    }

    /// There is nothing to undo, or what there is is wanted.
    pub(super) fn disarm(&mut self) {
        self.armed = None;
    }
}

impl<N: Node, C: Clock, E: Entropy> Drop for Undo<N, C, E> {
    fn drop(&mut self) {
        if let Some((engine, request)) = self.armed.take() {
            let is_forgotten = mutant::is(Mutant::CleanupWithRequest) && mutant::is_hanging_up();
            if is_forgotten || mutant::is(Mutant::NoCleanup) {
                return;
            }
            engine.deliver(request, std::mem::take(&mut self.targets), self.until);
        }
    }
}
