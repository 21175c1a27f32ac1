//! One fan-out: the same request to some or all nodes in parallel, with one deadline for each of
//! them, ended as soon as the outcome is clear. Every request is handed to its node before any
//! answer is looked at, so that what the caller sends next travels behind it.

use std::collections::VecDeque;
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use super::clock::{BootTime, Clock};
use super::engine::Redlock;
use super::entropy::Entropy;
use super::node::Node;
use super::quorum::{Decision, Tally};
use crate::protocol::{NodeResult, Request, Unreachable, UnreachableKind};

/// When a round may end before all nodes have answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Until {
    /// As soon as the vote is won. Once it is lost, a little longer: twice what it took so far, plus
    /// [`GRACE`], so that the refusal can say what each node had to say.
    Decided,
    /// As soon as the vote is won; a lost one waits for what the others have to say.
    Won,
    /// As soon as the vote is won, and then a little longer, as above.
    WonAndGrace,
    /// When all have answered.
    All,
}

/// See [`Until`].
const GRACE: Duration = Duration::from_millis(2);

/// The calls of a round that are still under way.
struct Fanout<F> {
    calls: Vec<(usize, Pin<Box<F>>)>,
    ready: VecDeque<(usize, NodeResult)>,
}

impl<F: Future<Output = NodeResult>> Fanout<F> {
    fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Option<(usize, NodeResult)>> {
        let ready = &mut self.ready;
        self.calls.retain_mut(|(index, call)| match call.as_mut().poll(cx) {
            Poll::Ready(answer) => {
                ready.push_back((*index, answer));
                false
            }
            Poll::Pending => true,
        });
        match self.ready.pop_front() {
            Some(next) => Poll::Ready(Some(next)),
            None if self.calls.is_empty() => Poll::Ready(None),
            None => Poll::Pending,
        }
    }
}

impl<N: Node, C: Clock, E: Entropy> Redlock<N, C, E> {
    /// Asks `targets` (indexes; nodes outside of it count as not asked) and counts `is_yes`.
    /// Nodes that have not answered by `deadline` are recorded as timed out where the round lasted
    /// that long. Calls still under way at an early end are awaited in a tracked task until the
    /// deadline, so that their latency and errors are seen.
    ///
    /// Cancel: each request may have taken effect.
    pub(super) async fn round(
        &self,
        targets: &[usize],
        request: Request,
        started: BootTime,
        deadline: BootTime,
        until: Until,
        is_yes: impl Fn(&NodeResult) -> bool,
    ) -> Tally {
        let mut tally = Tally::new(self.nodes.len());
        let (sent_at, request) = (self.cluster_clock.at(started), Arc::new(request));
        let call = |i: &usize| (*i, Box::pin(Arc::clone(&self.nodes[*i]).call(sent_at, Arc::clone(&request))));
        let mut fanout = Fanout { calls: targets.iter().map(call).collect(), ready: VecDeque::new() };
        let mut ends = deadline;
        let mut timer = std::pin::pin!(self.clock.sleep_until(ends));
        loop {
            let next = tokio::select! {
                biased;
                next = poll_fn(|cx| fanout.poll_next(cx)) => next,
                () = &mut timer => break,
            };
            let Some((index, answer)) = next else { break };
            let yes = is_yes(&answer);
            tally.record(index, answer, yes);
            match (until, tally.decision()) {
                (Until::Decided | Until::Won, Decision::Reached) => break,
                (Until::Decided, Decision::Impossible) | (Until::WonAndGrace, Decision::Reached)
                    if ends == deadline =>
                {
                    let now = self.clock.now();
                    ends = deadline.min(now.plus(now.since(started).saturating_mul(2)).plus(GRACE));
                    timer.set(self.clock.sleep_until(ends));
                }
                _ => {}
            }
        }
        while let Some((index, answer)) = fanout.ready.pop_front() {
            let yes = is_yes(&answer);
            tally.record(index, answer, yes);
        }
        if self.clock.now() >= deadline {
            for (index, _) in &fanout.calls {
                let late = Unreachable::new(UnreachableKind::Timeout, "no answer within the node timeout");
                tally.record(*index, Err(late), false);
            }
        } else if !fanout.calls.is_empty() {
            let timer = self.clock.sleep_until(deadline);
            self.tasks.spawn(async move {
                let stragglers = async { while poll_fn(|cx| fanout.poll_next(cx)).await.is_some() {} };
                tokio::select! {
                    biased;
                    () = stragglers => {}
                    () = timer => {}
                }
            });
        }
        tally
    }

    /// Indexes of all nodes.
    pub(super) fn everyone(&self) -> Vec<usize> {
        (0..self.nodes.len()).collect()
    }
}
