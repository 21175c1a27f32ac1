//! Since when each node's process is known to vote. What a process answered before its admission does not count: it may have
//! forgotten a lease, and was filled after its answer.

use parking_lot::Mutex;

use super::clock::BootTime;
use crate::protocol::{RosterEntry, ViewId};

/// By node index.
#[derive(Debug, Default)]
pub(super) struct SeenVotes(Mutex<Vec<Option<SeenVote>>>);

/// A process, and since when it has been voting without a loss.
#[derive(Debug)]
struct SeenVote {
    run: Box<str>,
    /// Its last admission. A process that loses its vote is admitted again in a later view.
    admitted: ViewId,
    /// When its first answer with this vote arrived.
    since: BootTime,
}

impl SeenVotes {
    /// Notes that the node's process votes, which this run and admission name, by an answer that arrived at this time.
    pub(super) fn note(&self, node: usize, run: &str, admitted: ViewId, received: BootTime) {
        let mut nodes = self.0.lock();
        if nodes.len() <= node {
            nodes.resize_with(node + 1, || None);
        }
        let is_known = |seen: &SeenVote| *seen.run == *run && seen.admitted == admitted;
        if !nodes[node].as_ref().is_some_and(is_known) {
            nodes[node] = Some(SeenVote { run: run.into(), admitted, since: received });
        }
    }

    /// Whether the node's process is this one and was seen voting before `at`. If it votes now, it has voted since then.
    pub(super) fn before(&self, node: usize, entry: &RosterEntry, at: BootTime) -> bool {
        let nodes = self.0.lock();
        let seen = nodes.get(node).and_then(Option::as_ref);
        seen.is_some_and(|seen| *seen.run == *entry.run && seen.admitted == entry.since && seen.since <= at)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_counts_from_its_first_answer_after_its_last_admission() {
        let (seen, at) = (SeenVotes::default(), |ms: u64| BootTime::from_nanos(ms * 1_000_000));
        let [first, second] = [1, 2].map(|nonce| ViewId::NONE.above(nonce));
        let entry = |run: &str, since| RosterEntry { run: run.into(), since, address: None };
        seen.note(1, "a", first, at(2));
        seen.note(1, "a", first, at(4));
        assert_eq!([1, 2].map(|ms| seen.before(1, &entry("a", first), at(ms))), [false, true]);
        assert!(!seen.before(1, &entry("b", first), at(9)) && !seen.before(0, &entry("a", first), at(9)));
        seen.note(1, "a", second, at(6));
        assert!(!seen.before(1, &entry("a", first), at(9)), "it was admitted again");
        assert_eq!([5, 6].map(|ms| seen.before(1, &entry("a", second), at(ms))), [false, true]);
    }
}
