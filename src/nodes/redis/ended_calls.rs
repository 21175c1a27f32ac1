//! The calls that one reply answers: their successes are counted together, which takes a fraction of the time.

use std::time::Duration;

use super::connections::NodeConnections;
use crate::protocol::UnreachableKind;
use crate::protocol::commands::BATCH_MAX;
use crate::redlock::answers::AnswerSlot;
use crate::redlock::clock::BootTime;

/// Calls that end at the same time. They are counted when it is dropped.
pub(super) struct EndedCalls<'a> {
    connections: &'a NodeConnections,
    now: BootTime,
    /// The calls that have ended.
    ended: usize,
    /// The operation of the successes that are not counted yet, and how long each took.
    operation: &'static str,
    took: [Duration; BATCH_MAX],
    successes: usize,
}

impl<'a> EndedCalls<'a> {
    /// None yet, of those that end now.
    pub(super) fn new(connections: &'a NodeConnections, now: BootTime) -> Self {
        Self { connections, now, ended: 0, operation: "", took: [Duration::ZERO; BATCH_MAX], successes: 0 }
    }

    /// Ends a call.
    pub(super) fn end(&mut self, slot: &AnswerSlot, outcome: Result<(), UnreachableKind>) {
        self.ended += 1;
        let Some((outcome, took)) = self.connections.outcome(slot, outcome, self.now) else { return };
        let operation = slot.request().operation();
        if outcome.is_err() {
            return self.connections.count_calls(operation, self.now, &[took], outcome);
        }
        // An operation's other text, if it had one, would be counted apart.
        if !std::ptr::eq(operation, self.operation) || self.successes == BATCH_MAX {
            self.count();
            self.operation = operation;
        }
        self.took[self.successes] = took;
        self.successes += 1;
    }

    fn count(&mut self) {
        let took = &self.took[..std::mem::take(&mut self.successes)];
        if !took.is_empty() {
            self.connections.count_calls(self.operation, self.now, took, Ok(()));
        }
    }
}

impl Drop for EndedCalls<'_> {
    fn drop(&mut self) {
        self.count();
        self.connections.end_calls(self.ended);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use parking_lot::Mutex;

    use super::*;
    use crate::nodes::redis::request_queue::tests::pending;
    use crate::protocol::{Reply, Request, RequestTime, Unreachable};
    use crate::types::NodeId;

    #[test]
    fn successes_of_one_operation_are_counted_together_and_all_calls_end() {
        let (seen, at) = (Arc::new(Mutex::new(Vec::new())), BootTime::default().plus(Duration::from_millis(3)));
        let counted = Arc::clone(&seen);
        let observer = move |_: &NodeId, operation, (now, took): (_, &[Duration]), outcome: Result<(), _>| {
            assert!(now == at && took.iter().all(|took| *took == Duration::from_millis(3)));
            counted.lock().push((operation, took.len(), outcome.is_ok()));
        };
        let observer = (NodeId::parse("n1").expect("valid"), Arc::new(observer) as _);
        let connections = Arc::new(NodeConnections::new((1, 1), Some(observer), BootTime::default()));
        let calls = BATCH_MAX + 4;
        (0..calls).for_each(|_| assert!(connections.begin_call(calls, at)));
        let mut ended = EndedCalls::new(&connections, at);
        let mut end = |is_probe, answer| {
            let request = if is_probe { Request::probe() } else { Request::Quarantine { by: "x".into() } };
            let (request, _answers) = pending(RequestTime(1).into(), request, &connections);
            request.answer_with(answer, &mut ended);
        };
        let failed = || Err(Unreachable::new(UnreachableKind::Full, "full"));
        (0..=BATCH_MAX).for_each(|_| end(true, Ok(Reply::Missing)));
        end(true, failed());
        end(true, Ok(Reply::Missing));
        end(false, Ok(Reply::Missing));
        assert!(!connections.begin_call(calls, at), "they end together");
        drop(ended);
        let expected = [("probe", BATCH_MAX, true), ("probe", 1, false), ("probe", 2, true), ("quarantine", 1, true)];
        assert_eq!(*seen.lock(), expected);
        assert!(connections.begin_call(1, at));
    }
}
