//! The answers to one request: each node puts its answer into a slot, and the round takes them out. The round's task is woken when
//! the answers may decide it, not at each of them.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use parking_lot::Mutex;

use super::clock::BootTime;
use super::known_nodes::NODES_KNOWN_MAX;
use crate::protocol::{NodeResult, Request, RequestStamp, Unreachable, UnreachableKind};

/// A request that is sent to several nodes, and their answers.
#[derive(Debug)]
struct Asked {
    stamp: RequestStamp,
    request: Arc<Request>,
    /// When the answers are no longer of use.
    until: BootTime,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    arrived: VecDeque<(usize, NodeResult)>,
    /// The nodes that have not answered, one bit each.
    missing: u64,
    /// The task is woken once this many answers have arrived, or all.
    enough: usize,
    waker: Option<Waker>,
    reader: Reader,
}

/// Whether answers are read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
enum Reader {
    #[default]
    Reads,
    /// No more, but the request is still to be sent.
    Left,
    /// The caller has gone.
    Gone,
}

impl State {
    fn move_arrived(&mut self, into: &mut VecDeque<(usize, NodeResult)>) {
        match into.is_empty() {
            true => std::mem::swap(into, &mut self.arrived),
            false => into.append(&mut self.arrived),
        }
    }
}

/// The place for the answer of one node. Whoever has it must put an answer in.
#[derive(Debug)]
pub struct AnswerSlot {
    asked: Arc<Asked>,
    node: usize,
    sent_at: BootTime,
}

impl AnswerSlot {
    /// The stamp of the request.
    pub fn stamp(&self) -> &RequestStamp {
        &self.asked.stamp
    }

    /// The request.
    pub fn request(&self) -> &Arc<Request> {
        &self.asked.request
    }

    /// When the request was handed to the node.
    pub fn sent_at(&self) -> BootTime {
        self.sent_at
    }

    /// Whether nobody needs the answer any more: it is too late, or the caller has gone. An unsent request need not be sent then.
    pub fn is_abandoned(&self, now: BootTime) -> bool {
        now >= self.asked.until || self.asked.state.lock().reader == Reader::Gone
    }

    /// Answers.
    pub fn put(self, answer: NodeResult) {
        let mut state = self.asked.state.lock();
        if state.reader != Reader::Reads {
            return;
        }
        state.missing &= !(1 << self.node);
        state.arrived.push_back((self.node, answer));
        let is_enough = state.missing == 0 || state.arrived.len() >= state.enough;
        let waker = state.waker.take_if(|_| is_enough);
        drop(state);
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}

/// The round's side: sends a request, and takes the answers out. If dropped, the answers are not needed, except after [`Self::leave`].
#[derive(Debug)]
pub struct Answers(Option<Arc<Asked>>);

impl Answers {
    /// For a request that is handed to at most `nodes` nodes. `until`: when their answers are no longer of use.
    pub fn new(stamp: RequestStamp, request: Arc<Request>, until: BootTime, nodes: usize) -> Self {
        let state = State { arrived: VecDeque::with_capacity(nodes), ..State::default() };
        Self(Some(Arc::new(Asked { stamp, request, until, state: Mutex::new(state) })))
    }

    /// Hands the request to a node now, at `sent_at`. Returns whether the node takes it this way; its answer then comes through
    /// [`Self::poll_take`]. `node`: an index below [`NODES_KNOWN_MAX`].
    pub fn ask(
        &self,
        node: usize,
        sent_at: BootTime,
        hand_over: impl FnOnce(AnswerSlot) -> Result<(), AnswerSlot>,
    ) -> bool {
        let Some(asked) = self.0.as_ref().filter(|_| node < NODES_KNOWN_MAX) else { return false };
        asked.state.lock().missing |= 1 << node;
        let is_taken = hand_over(AnswerSlot { asked: Arc::clone(asked), node, sent_at }).is_ok();
        if !is_taken {
            asked.state.lock().missing &= !(1 << node);
        }
        is_taken
    }

    /// Moves the answers that have arrived to `into`. Returns the nodes that have not answered, one bit each.
    pub fn take(&self, into: &mut VecDeque<(usize, NodeResult)>) -> u64 {
        let Some(asked) = &self.0 else { return 0 };
        let mut state = asked.state.lock();
        state.move_arrived(into);
        state.missing
    }

    /// As [`Self::take`]. If there are no answers and some are missing, the task is woken once `enough` have arrived, or all.
    pub fn poll_take(&self, cx: &Context<'_>, enough: usize, into: &mut VecDeque<(usize, NodeResult)>) -> u64 {
        let Some(asked) = &self.0 else { return 0 };
        let mut state = asked.state.lock();
        state.move_arrived(into);
        if into.is_empty() && state.missing > 0 {
            state.enough = enough;
            match &mut state.waker {
                Some(waker) => waker.clone_from(cx.waker()),
                none => *none = Some(cx.waker().clone()),
            }
        }
        state.missing
    }

    /// Ends reading. Nodes that have not sent the request yet still send it.
    pub fn leave(mut self) {
        self.end(Reader::Left);
    }

    fn end(&mut self, reader: Reader) {
        let Some(asked) = self.0.take() else { return };
        let mut state = asked.state.lock();
        state.reader = reader;
        // Dropped outside the lock, as the waker may own a task.
        let left = (state.waker.take(), std::mem::take(&mut state.arrived));
        drop(state);
        drop(left);
    }
}

impl Drop for Answers {
    fn drop(&mut self) {
        self.end(Reader::Gone);
    }
}

/// The answer of one node that takes requests by a slot. Sent at the first poll. Cancel: as [`Node::call`](super::node::Node::call).
pub async fn answer_of(
    stamp: RequestStamp,
    request: Arc<Request>,
    sent_at: impl FnOnce() -> BootTime,
    hand_over: impl FnOnce(AnswerSlot) -> Result<(), AnswerSlot>,
) -> NodeResult {
    let answers = Answers::new(stamp, request, BootTime::from_nanos(u64::MAX), 1);
    if !answers.ask(0, sent_at(), hand_over) {
        return Err(Unreachable::new(UnreachableKind::Disconnected, "the node takes no requests"));
    }
    let mut arrived = VecDeque::new();
    poll_fn(|cx| {
        answers.poll_take(cx, 1, &mut arrived);
        arrived.pop_front().map_or(Poll::Pending, |(_, answer)| Poll::Ready(answer))
    })
    .await
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::task::Wake;
    use std::time::Duration;

    use super::*;
    use crate::protocol::{Reply, RequestTime};

    #[derive(Default)]
    struct Wakes(AtomicUsize);

    impl Wake for Wakes {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn at(ms: u64) -> BootTime {
        BootTime::default().plus(Duration::from_millis(ms))
    }

    /// Answers of these nodes, and their slots.
    fn asked(nodes: usize) -> (Answers, Vec<AnswerSlot>) {
        let answers = Answers::new(RequestTime(1).into(), Arc::new(Request::probe()), at(50), nodes);
        let mut slots = Vec::new();
        for node in 0..nodes {
            assert!(answers.ask(node, at(0), |slot| {
                slots.push(slot);
                Ok(())
            }));
        }
        (answers, slots)
    }

    fn taken(answers: &Answers, wakes: &Arc<Wakes>, enough: usize) -> Vec<usize> {
        let waker = Waker::from(Arc::clone(wakes));
        let mut arrived = VecDeque::new();
        answers.poll_take(&Context::from_waker(&waker), enough, &mut arrived);
        arrived.into_iter().map(|(node, _)| node).collect()
    }

    #[test]
    fn the_task_is_woken_once_there_are_enough_answers_or_all() {
        let (answers, mut slots) = asked(5);
        let wakes = Arc::new(Wakes::default());
        let count = || wakes.0.load(Ordering::Relaxed);
        assert!(taken(&answers, &wakes, 3).is_empty());
        let mut put = |node: usize| {
            let at = slots.iter().position(|slot| slot.node == node).expect("not put yet");
            slots.remove(at).put(Ok(Reply::Missing));
        };
        put(4);
        put(1);
        assert_eq!(count(), 0);
        put(0);
        assert_eq!((count(), taken(&answers, &wakes, 9)), (1, vec![4, 1, 0]));
        assert_eq!((taken(&answers, &wakes, 9), answers.take(&mut VecDeque::new())), (vec![], 0b1100));
        put(2);
        assert_eq!(count(), 1);
        put(3);
        assert_eq!((count(), taken(&answers, &wakes, 9)), (2, vec![2, 3]));
    }

    #[test]
    fn an_unsent_request_is_of_no_use_after_its_time_or_when_its_caller_has_gone() {
        let is_abandoned = |slot: &AnswerSlot, ms| slot.is_abandoned(at(ms));
        let (answers, slots) = asked(2);
        assert!(!is_abandoned(&slots[0], 49) && is_abandoned(&slots[0], 50));
        answers.leave();
        assert!(!is_abandoned(&slots[1], 49), "a quorum has decided: the others still get it");
        let (answers, slots) = asked(1);
        drop(answers);
        assert!(is_abandoned(&slots[0], 0));
    }

    #[test]
    fn a_node_that_takes_no_slot_is_not_missing() {
        let answers = Answers::new(RequestTime(1).into(), Arc::new(Request::probe()), at(50), 1);
        assert!(!answers.ask(0, at(0), Err) && answers.take(&mut VecDeque::new()) == 0);
    }
}
