//! One round: the same request to some or all nodes in parallel, with one deadline, ended as soon as the outcome is
//! certain. Every request is handed to its node before any answer is processed, so that the caller's next request
//! arrives after it.

use std::collections::VecDeque;
use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use futures_util::future::OptionFuture;

use super::acquire_set::joined;
use super::answers::Answers;
use super::clock::{BootTime, Clock};
use super::engine::Redlock;
use super::fan_out::{Order, REST_AFTER};
use super::known_nodes::{KnownNodes, NODES_KNOWN_MAX};
use super::node::Node;
use super::quorum::{Decision, NotAsked, Tally};
use super::random::Entropy;
use crate::mutant::{self, Mutant};
use crate::protocol::{
    AcquireArgs, NodeInspection, NodeResult, Reply, Request, RequestStamp, RequestTime, Unreachable, UnreachableKind,
    View, ViewId,
};
use crate::types::AttemptId;

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

/// What was in flight when a round ended.
pub(super) enum Late {
    /// Resolves, at the latest at the round's deadline, to the nodes that failed or did not answer.
    Calls(Pin<Box<dyn Future<Output = Vec<usize>> + Send>>),
    /// The same for nodes that answer also while nobody waits.
    Answers(Answers),
}

/// A request, and the view in which its answers count; `None`: the instance's present view.
pub(in crate::redlock) struct Posed {
    pub(super) request: Request,
    pub(super) view: Option<Arc<View>>,
    /// The stamp of a request that other nodes got before; `None`: when the round was begun.
    pub(super) sent_at: Option<RequestTime>,
}

impl From<Request> for Posed {
    fn from(request: Request) -> Self {
        Self { request, view: None, sent_at: None }
    }
}

impl Request {
    /// The request, to be answered in this view.
    pub(in crate::redlock) fn in_view(self, view: &Arc<View>) -> Posed {
        Posed { request: self, view: Some(Arc::clone(view)), sent_at: None }
    }
}

/// The request that was sent to a node.
#[derive(Clone, Copy)]
enum Sent {
    Request,
    /// Instead of the request, the question why it has no vote: the view for a vote, or the nodes' time, is not known, or a
    /// quarantine must be ordered first.
    Question,
    /// The same question, where the request is an inspection itself.
    Inspection,
}

/// The meaning of a node's answer for the request of the round.
fn answer_to(sent: Sent, answer: NodeResult) -> NodeResult {
    if matches!(sent, Sent::Request) {
        return answer;
    }
    match (answer?, sent) {
        (Reply::Inspected(found), Sent::Inspection) if found.no_vote.is_some() => Ok(Reply::Inspected(found)),
        (Reply::Inspected(NodeInspection { no_vote: Some(why), .. }), Sent::Question) => Ok(Reply::NoVote(why)),
        _ => Err(Unreachable::new(UnreachableKind::NotAsked, "this instance may not ask for votes yet")),
    }
}

/// A request as it is sent to each node.
struct Prepared {
    sent: Sent,
    request: Arc<Request>,
    stamp: RequestStamp,
    /// The nodes that may get it, one bit each.
    members: u64,
}

/// What came of a round.
pub(super) struct Round {
    pub(super) tally: Tally,
    /// The calls that were in flight when it ended.
    pub(super) late: Option<Late>,
    /// The nodes that got no request.
    pub(super) rest: Vec<usize>,
    pub(super) request: Arc<Request>,
    pub(super) stamp: RequestStamp,
}

/// The request that the rest of the nodes gets: the same as the first ones, with the same attempt, so that a cancel ends both.
fn for_the_rest(request: &Arc<Request>) -> Arc<Request> {
    match &**request {
        Request::Acquire(args) if mutant::is(Mutant::RestByAnotherAttempt) => {
            Arc::new(Request::Acquire(AcquireArgs { attempt: AttemptId::from_random(0), ..args.clone() }))
        }
        _ => Arc::clone(request),
    }
}

/// The calls of a round that are still in flight.
struct Fanout<F> {
    sent: Sent,
    /// Of nodes that take no slots.
    calls: Vec<(usize, Pin<Box<F>>)>,
    answers: Answers,
    ready: VecDeque<(usize, NodeResult)>,
}

impl<F: Future<Output = NodeResult>> Fanout<F> {
    fn new(sent: Sent, answers: Answers) -> Self {
        Self { sent, calls: Vec::new(), answers, ready: VecDeque::new() }
    }

    /// Hands requests that were not sent before to their nodes, and collects answers.
    fn poll_calls(&mut self, cx: &mut Context<'_>) {
        let ready = &mut self.ready;
        self.calls.retain_mut(|(index, call)| match call.as_mut().poll(cx) {
            Poll::Ready(answer) => {
                ready.push_back((*index, answer));
                false
            }
            Poll::Pending => true,
        });
    }

    /// Sends the request to these nodes now.
    fn ask<N: Node>(
        &mut self,
        nodes: &KnownNodes<N>,
        targets: impl Iterator<Item = usize>,
        now: BootTime,
        call: impl Fn(usize) -> F,
    ) {
        for index in targets {
            if !self.answers.ask(index, now, |slot| nodes[index].hand_over(slot)) {
                self.calls.push((index, Box::pin(call(index))));
            }
        }
    }

    /// As [`Self::ask`], while answers of other nodes are awaited.
    async fn ask_too<N: Node>(
        &mut self,
        nodes: &KnownNodes<N>,
        targets: Vec<usize>,
        now: BootTime,
        call: impl Fn(usize) -> F,
    ) {
        self.ask(nodes, targets.into_iter(), now, call);
        // Calls hand their requests over when they are polled.
        poll_fn(|cx| {
            self.poll_calls(cx);
            Poll::Ready(())
        })
        .await;
    }

    /// The next answer; without one, the task is woken once `enough` nodes have answered, or all.
    fn poll_next(&mut self, cx: &mut Context<'_>, enough: usize) -> Poll<Option<(usize, NodeResult)>> {
        if let Some(next) = self.take() {
            return Poll::Ready(Some(next));
        }
        self.poll_calls(cx);
        let missing = self.answers.poll_take(cx, enough, &mut self.ready);
        match self.take() {
            Some(next) => Poll::Ready(Some(next)),
            None if self.calls.is_empty() && missing == 0 => Poll::Ready(None),
            None => Poll::Pending,
        }
    }

    /// An answer that was read.
    fn take(&mut self) -> Option<(usize, NodeResult)> {
        let (index, answer) = self.ready.pop_front()?;
        Some((index, answer_to(self.sent, answer)))
    }

    /// The nodes that have not answered; all other answers are returned by [`Self::take`] from now on.
    fn missing(&mut self) -> Vec<usize> {
        let bits = self.answers.take(&mut self.ready);
        let slots = (0..NODES_KNOWN_MAX).filter(|index| bits >> index & 1 == 1);
        self.calls.iter().map(|(index, _)| *index).chain(slots).collect()
    }
}

/// How many more answers may decide the round: of fewer its task is not notified.
fn enough(until: Until, tally: &Tally, is_ending: bool) -> usize {
    match until {
        Until::Decided | Until::Won | Until::WonAndGrace if !is_ending => tally.least_to_decide(),
        _ => usize::MAX,
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
        let order = Order::all(targets.to_vec());
        let round = self.round_in_order(order, request, started, deadline, until, is_yes).await;
        self.leave(round.late);
        round.tally
    }

    /// Lets calls that were in flight at the end of a round end by themselves.
    pub(super) fn leave(&self, late: Option<Late>) {
        match late {
            Some(Late::Calls(calls)) => drop(self.tasks.spawn(calls)),
            Some(Late::Answers(answers)) => answers.leave(),
            None => {}
        }
    }

    /// Waits for calls that were in flight at the end of a round, at most until its deadline. Returns the nodes that failed or did
    /// not answer. Cancel: as of a round.
    pub(super) async fn failures(&self, late: Late, deadline: BootTime) -> Vec<usize> {
        match late {
            Late::Calls(calls) => calls.await,
            Late::Answers(answers) => {
                let fanout = Fanout::<std::future::Ready<NodeResult>>::new(Sent::Request, answers);
                await_late(fanout, self.clock.sleep_until(deadline)).await
            }
        }
    }

    /// Why no lease can be taken yet, whatever the nodes would answer.
    pub(crate) fn not_asked(&self) -> Option<NotAsked> {
        match self.can_ask_in(&self.views.current()) {
            false => Some(NotAsked::NoQuorum),
            true => self.cluster_clock.is_order_due().then_some(NotAsked::OrderDue),
        }
    }

    /// Whether requests for votes are sent: a view and the nodes' time are known.
    pub(super) fn can_ask_in(&self, view: &View) -> bool {
        view.id != ViewId::NONE && self.cluster_clock.is_anchored()
    }

    /// The request as it is sent in the view where its answers count.
    fn prepare(&self, Posed { request, view, sent_at }: Posed, started: BootTime) -> Prepared {
        let view = view.unwrap_or_else(|| self.views.current());
        // A node outside the view's list has no vote in the view.
        let members = if request.is_of_membership() { u64::MAX } else { self.members_in(&view) };
        let request = Arc::new(request);
        // In this order: the time is measured before it is known, and an order is due before the time follows a step.
        let can_ask = self.can_ask_in(&view);
        let sent_at = sent_at.unwrap_or_else(|| self.cluster_clock.request_time_at(started));
        let is_withheld = request.takes() && self.cluster_clock.is_order_due();
        let (sent, request) = match request.resource() {
            _ if can_ask && !is_withheld || !request.needs_vote() => (Sent::Request, request),
            Some(_) if matches!(*request, Request::Inspect { .. }) => (Sent::Inspection, request),
            Some(resource) => (Sent::Question, Arc::new(Request::Inspect { resource: resource.clone() })),
            None => (Sent::Question, request),
        };
        Prepared { sent, request, stamp: RequestStamp::new(sent_at, view), members }
    }

    /// As [`Self::round`], but in an order, and what is left of it is the caller's: nodes that got no request, and calls still
    /// in flight.
    pub(super) async fn round_in_order(
        &self,
        order: Order,
        request: impl Into<Posed>,
        started: BootTime,
        deadline: BootTime,
        until: Until,
        is_yes: impl Fn(&NodeResult) -> bool,
    ) -> Round {
        let Prepared { sent, request, stamp, members } = self.prepare(request.into(), started);
        let mut tally = Tally::in_view((self.nodes.len(), self.size_in(&stamp.view)), Arc::clone(&stamp.view));
        let call = |i: usize| Arc::clone(&self.nodes[i]).call(stamp.clone(), Arc::clone(&request));
        let to_rest = |i: usize| Arc::clone(&self.nodes[i]).call(stamp.clone(), for_the_rest(&request));
        let is_member = |i: &usize| members >> *i & 1 == 1;
        let mut rest: Vec<usize> = order.rest.into_iter().filter(is_member).collect();
        let answers = Answers::new(stamp.clone(), Arc::clone(&request), deadline, self.nodes.len());
        let mut fanout = Fanout::new(sent, answers);
        fanout.ask(&self.nodes, order.first.into_iter().filter(is_member), self.clock.now(), call);
        let mut ends = deadline;
        let mut timer = pin!(self.clock.sleep_until(ends));
        let mut patience = pin!(OptionFuture::from((!rest.is_empty()).then(|| self.clock.sleep(REST_AFTER))));
        loop {
            let enough = if rest.is_empty() { enough(until, &tally, ends < deadline) } else { 1 };
            let next = tokio::select! {
                biased;
                next = poll_fn(|cx| fanout.poll_next(cx, enough)) => next,
                () = &mut timer => break,
                _ = &mut patience, if !rest.is_empty() => None,
            };
            let Some((index, answer)) = next else {
                if rest.is_empty() || mutant::is(Mutant::RestUnasked) {
                    break;
                }
                fanout.ask_too(&self.nodes, std::mem::take(&mut rest), self.clock.now(), to_rest).await;
                continue;
            };
            self.views.see(index, &answer, self.quorum());
            let yes = is_yes(&answer);
            // A request that joins a lease does not know which nodes have it.
            if !rest.is_empty() && (!yes || joined(&answer, 0)) && !mutant::is(Mutant::RestUnasked) {
                fanout.ask_too(&self.nodes, std::mem::take(&mut rest), self.clock.now(), to_rest).await;
            }
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
        let missing = self.record_rest(&mut fanout, &mut tally, deadline, is_yes);
        let late = match (missing.is_empty(), fanout.calls.is_empty()) {
            (true, _) => None,
            (false, true) => Some(Late::Answers(fanout.answers)),
            (false, false) => Some(Late::Calls(Box::pin(await_late(fanout, self.clock.sleep_until(deadline))))),
        };
        Round { tally, late, rest, request, stamp }
    }

    /// Records the answers that have arrived and, at the deadline, that the others have not. Returns the nodes whose answers are still
    /// in time.
    fn record_rest<F: Future<Output = NodeResult>>(
        &self,
        fanout: &mut Fanout<F>,
        tally: &mut Tally,
        deadline: BootTime,
        is_yes: impl Fn(&NodeResult) -> bool,
    ) -> Vec<usize> {
        let missing = fanout.missing();
        while let Some((index, answer)) = fanout.take() {
            self.views.see(index, &answer, self.quorum());
            let yes = is_yes(&answer);
            tally.record(index, answer, yes);
        }
        if self.clock.now() < deadline {
            return missing;
        }
        for index in missing {
            let late = Unreachable::new(UnreachableKind::Timeout, "no answer within the node timeout");
            tally.record(index, Err(late), false);
        }
        Vec::new()
    }

    /// Whether a view above this round's was seen: the round may be repeated in it.
    pub(super) fn has_moved_on(&self, tally: &Tally) -> bool {
        self.views.current().id > tally.view().id
    }

    /// Indexes of all nodes of the present view's list.
    pub(crate) fn everyone(&self) -> Vec<usize> {
        self.everyone_in(&self.views.current())
    }

    /// Indexes of all nodes of another view's list.
    pub(super) fn everyone_in(&self, view: &View) -> Vec<usize> {
        let (members, mut all) = (self.members_in(view), Vec::with_capacity(self.nodes.len()));
        all.extend((0..self.nodes.len()).filter(|i| members >> i & 1 == 1));
        all
    }
}

/// See [`Late`].
async fn await_late<F: Future<Output = NodeResult>>(
    mut fanout: Fanout<F>,
    timer: impl Future<Output = ()>,
) -> Vec<usize> {
    let (mut timer, mut failed) = (pin!(timer), Vec::new());
    loop {
        tokio::select! {
            biased;
            next = poll_fn(|cx| fanout.poll_next(cx, usize::MAX)) => match next {
                Some((index, answer)) => failed.extend(answer.is_err().then_some(index)),
                None => return failed,
            },
            () = &mut timer => {
                failed.extend(fanout.missing());
                while let Some((index, answer)) = fanout.take() {
                    failed.extend(answer.is_err().then_some(index));
                }
                return failed;
            }
        }
    }
}
