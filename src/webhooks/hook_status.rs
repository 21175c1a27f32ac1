//! The state of each target and hook, as pages, JSON and metrics show it.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use super::deliveries::LastTry;
use super::file::Hook;
use super::hook_queue::{HookCounts, SwitchedOff};
use super::hooks::Webhooks;
use super::target::Target;
use super::transport::Transport;
use crate::redlock::clock::Clock;
use crate::redlock::random::Entropy;

/// The state of a target.
#[derive(Debug, Clone)]
pub struct TargetStatus {
    /// The target as the file describes it.
    pub target: Arc<Target>,
    pub last: Option<LastTry>,
    /// Call-backs to this target that are not accepted yet.
    pub callbacks: usize,
    /// Time until the next try of one of these call-backs; `None`: none pauses.
    pub next_try_in: Option<Duration>,
}

/// The state of a hook.
#[derive(Debug, Clone)]
pub struct HookStatus {
    /// The hook as the file describes it.
    pub hook: Arc<Hook>,
    /// Why the hook is off; `None`: it is on.
    pub off: Option<SwitchedOff>,
    /// Whether its last try was not accepted.
    pub is_failing: bool,
    /// Messages that wait or are under way.
    pub queued: usize,
    /// Messages that a replay sends again.
    pub replayable: usize,
    /// Time until the next try.
    pub next_try_in: Option<Duration>,
    pub last: Option<LastTry>,
    /// Messages since the start of this instance.
    pub counts: HookCounts,
}

/// Sums over all hooks, for metrics.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct HookTotals {
    /// Messages that wait or are under way, including call-backs.
    pub queued: usize,
    /// Hooks that are off.
    pub off: usize,
    /// Messages dropped since the start, including those of hooks that a former file had.
    pub dropped: u64,
}

impl<C: Clock, E: Entropy, T: Transport> Webhooks<C, E, T> {
    /// Every target and hook, in the order of the file.
    pub fn status(&self) -> (Vec<TargetStatus>, Vec<HookStatus>) {
        let (file, now) = (self.deliveries.file(), self.deliveries.clock.now());
        let target = |target: &Arc<Target>| {
            let (callbacks, next) = self.deliveries.under_way.of(&target.name);
            let (last, next_try_in) = (self.deliveries.last_try(&target.name), next.map(|next| next.since(now)));
            TargetStatus { target: Arc::clone(target), last, callbacks, next_try_in }
        };
        let targets = file.targets.iter().map(target).collect();
        let queues = self.queues.lock();
        let status = |hook: &Arc<Hook>| {
            let queue = queues.get(&hook.name)?;
            Some(HookStatus {
                hook: Arc::clone(hook),
                off: queue.off,
                is_failing: queue.is_failing(),
                queued: queue.waiting() + queue.under_way,
                replayable: queue.replayable(),
                next_try_in: queue.next_due().map(|due| due.since(now)),
                last: queue.last.clone(),
                counts: queue.counts,
            })
        };
        (targets, file.hooks.iter().filter_map(status).collect())
    }

    /// The sums over all hooks.
    pub fn totals(&self) -> HookTotals {
        let queues = self.queues.lock();
        let (queued, dropped) = (self.deliveries.under_way.len(), self.dropped_before.load(Ordering::Relaxed));
        let before = HookTotals { queued, dropped, ..HookTotals::default() };
        queues.values().fold(before, |sum, queue| HookTotals {
            queued: sum.queued + queue.waiting() + queue.under_way,
            off: sum.off + usize::from(queue.off.is_some()),
            dropped: sum.dropped + queue.counts.dropped,
        })
    }
}
