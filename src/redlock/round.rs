//! One round: the same request to some or all nodes in parallel, with one deadline, ended as soon as the outcome is
//! certain. Every request is handed to its node before any answer is processed, so that the caller's next request
//! arrives after it.

use std::collections::VecDeque;
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use super::clock::{BootTime, Clock};
use super::engine::Redlock;
use super::node::Node;
use super::quorum::{Decision, Tally};
use super::random::Entropy;
use crate::protocol::{
    NodeInspection, NodeResult, Reply, Request, RequestStamp, Unreachable, UnreachableKind, View, ViewId,
};

/// When a round may end before all nodes have answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Until {
    /// As soon as a quorum is reached. Once a quorum is impossible, the round continues for twice the time that it
    /// took so far, plus [`GRACE`], so that the refusal can report more nodes' answers.
    Decided,
    /// As soon as a quorum is reached; otherwise when all have answered.
    Won,
    /// As [`Self::Decided`], with the extra time also after a quorum was reached.
    WonAndGrace,
    /// When all have answered.
    All,
}

/// How often a round that straddled a change of the view is repeated.
pub(super) const VIEW_REPEATS: usize = 3;
/// Minimum extra time after a decision, see [`Until`].
const GRACE: Duration = Duration::from_millis(2);

/// The calls of a round that were in flight when it ended: resolves, at the latest at the round's deadline,
/// to the nodes that failed or did not answer.
pub(super) type LateCalls = Pin<Box<dyn Future<Output = Vec<usize>> + Send>>;

/// A request, and the view in which its answers count; `None`: the instance's present view.
pub(in crate::redlock) struct Posed {
    pub(super) request: Request,
    pub(super) view: Option<Arc<View>>,
}

impl From<Request> for Posed {
    fn from(request: Request) -> Self {
        Self { request, view: None }
    }
}

impl Request {
    /// The request, to be answered in this view.
    pub(in crate::redlock) fn in_view(self, view: &Arc<View>) -> Posed {
        Posed { request: self, view: Some(Arc::clone(view)) }
    }
}

/// The request that was sent to a node.
#[derive(Clone, Copy)]
enum Sent {
    Request,
    /// Instead of the request, the question why it has no vote: the view for a vote, or the nodes' time, is not known.
    Question,
    /// The same question, where the request is an inspection itself.
    Inspection,
}

/// The meaning of a node's answer for the request of the round.
fn answer_to(sent: Sent, answer: NodeResult) -> NodeResult {
    match (answer?, sent) {
        (reply, Sent::Request) => Ok(reply),
        (Reply::Inspected(found), Sent::Inspection) if found.no_vote.is_some() => Ok(Reply::Inspected(found)),
        (Reply::Inspected(NodeInspection { no_vote: Some(why), .. }), Sent::Question) => Ok(Reply::NoVote(why)),
        _ => Err(Unreachable::new(UnreachableKind::Disconnected, "the nodes' view and time are not known yet")),
    }
}

/// The calls of a round that are still in flight.
struct Fanout<F> {
    sent: Sent,
    calls: Vec<(usize, Pin<Box<F>>)>,
    ready: VecDeque<(usize, NodeResult)>,
}

impl<F: Future<Output = NodeResult>> Fanout<F> {
    fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Option<(usize, NodeResult)>> {
        let (sent, ready) = (self.sent, &mut self.ready);
        self.calls.retain_mut(|(index, call)| match call.as_mut().poll(cx) {
            Poll::Ready(answer) => {
                ready.push_back((*index, answer_to(sent, answer)));
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
    /// Sends `request` to `targets` (node indexes) and counts the answers that satisfy `is_yes`. All answers count in one view.
    /// Nodes without an answer at `deadline` are recorded as timed out. Calls still in flight at an earlier end are awaited in
    /// a tracked task until the deadline, so that their latency and errors are counted.
    ///
    /// Cancel: each request may have taken effect.
    pub(super) async fn round(
        &self,
        targets: &[usize],
        request: impl Into<Posed>,
        started: BootTime,
        deadline: BootTime,
        until: Until,
        is_yes: impl Fn(&NodeResult) -> bool,
    ) -> Tally {
        let (tally, late) = self.round_and_late_calls(targets, request, started, deadline, until, is_yes).await;
        if let Some(late) = late {
            self.tasks.spawn(late);
        }
        tally
    }

    /// Whether requests for votes are sent: a view and the nodes' time are known.
    pub(crate) fn can_ask(&self) -> bool {
        self.can_ask_in(&self.views.current())
    }

    fn can_ask_in(&self, view: &View) -> bool {
        view.id != ViewId::NONE && self.cluster_clock.is_anchored()
    }

    /// As [`Self::round`], but the calls still in flight are left to the caller.
    pub(super) async fn round_and_late_calls(
        &self,
        targets: &[usize],
        request: impl Into<Posed>,
        started: BootTime,
        deadline: BootTime,
        until: Until,
        is_yes: impl Fn(&NodeResult) -> bool,
    ) -> (Tally, Option<LateCalls>) {
        let Posed { request, view } = request.into();
        let view = view.unwrap_or_else(|| self.views.current());
        let mut tally = Tally::of_list(self.nodes.len(), self.size_in(&view));
        // A node outside the view's list has no vote in the view.
        let members = if request.is_of_membership() { u64::MAX } else { self.members_in(&view) };
        let targets = targets.iter().filter(|i| members >> **i & 1 == 1);
        let request = Arc::new(request);
        let (sent, request) = match request.resource() {
            _ if self.can_ask_in(&view) || !request.needs_vote() => (Sent::Request, request),
            Some(_) if matches!(*request, Request::Inspect { .. }) => (Sent::Inspection, request),
            Some(resource) => (Sent::Question, Arc::new(Request::Inspect { resource: resource.clone() })),
            None => (Sent::Question, request),
        };
        let stamp = RequestStamp { sent_at: self.cluster_clock.request_time_at(started), view };
        tally.set_view(&stamp.view);
        let call = |i: &usize| {
            let call = Arc::clone(&self.nodes[*i]).call(stamp.clone(), Arc::clone(&request));
            (*i, Box::pin(call))
        };
        let mut fanout = Fanout { sent, calls: targets.map(call).collect(), ready: VecDeque::new() };
        let mut ends = deadline;
        let mut timer = std::pin::pin!(self.clock.sleep_until(ends));
        loop {
            let next = tokio::select! {
                biased;
                next = poll_fn(|cx| fanout.poll_next(cx)) => next,
                () = &mut timer => break,
            };
            let Some((index, answer)) = next else { break };
            self.views.see(index, &answer, self.quorum());
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
            self.views.see(index, &answer, self.quorum());
            let yes = is_yes(&answer);
            tally.record(index, answer, yes);
        }
        if self.clock.now() >= deadline {
            for (index, _) in &fanout.calls {
                let late = Unreachable::new(UnreachableKind::Timeout, "no answer within the node timeout");
                tally.record(*index, Err(late), false);
            }
            return (tally, None);
        }
        let timer = self.clock.sleep_until(deadline);
        let late = (!fanout.calls.is_empty()).then(|| Box::pin(await_late(fanout, timer)) as LateCalls);
        (tally, late)
    }

    /// Whether a view above this round's was seen: the round may be repeated in it.
    pub(super) fn has_moved_on(&self, tally: &Tally) -> bool {
        self.views.current().id > tally.view().id
    }

    /// Indexes of all nodes of the present view's list.
    pub(crate) fn everyone(&self) -> Vec<usize> {
        let members = self.members();
        (0..self.nodes.len()).filter(|i| members >> i & 1 == 1).collect()
    }
}

/// See [`LateCalls`].
async fn await_late<F: Future<Output = NodeResult>>(
    mut fanout: Fanout<F>,
    timer: impl Future<Output = ()>,
) -> Vec<usize> {
    let (mut timer, mut failed) = (std::pin::pin!(timer), Vec::new());
    loop {
        tokio::select! {
            biased;
            next = poll_fn(|cx| fanout.poll_next(cx)) => match next {
                Some((index, answer)) => failed.extend(answer.is_err().then_some(index)),
                None => return failed,
            },
            () = &mut timer => {
                failed.extend(fanout.calls.iter().map(|(index, _)| *index));
                return failed;
            }
        }
    }
}
