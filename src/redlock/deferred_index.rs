//! Adds leases to the nodes' index of held leases, later than the acquire, since most leases end soon: leases that are still held
//! after [`LATE`] are indexed together. Only lists need the index; operations that need every lease scan the nodes' keys.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;

use super::clock::Clock;
use super::engine::Redlock;
use super::node::Node;
use super::random::Entropy;
use super::round::Until;
use crate::protocol::{INDEX_MAX, IndexArgs, Request};
use crate::types::{ResourceName, TokenHash};

/// This time after the first of them, all waiting leases are indexed; a lease that ended before is never indexed.
const LATE: Duration = Duration::from_millis(250);
/// How long a node may take to index leases.
const PATIENCE: Duration = Duration::from_secs(1);
/// Maximum number of leases that wait; if there are more, they are indexed at once.
const LATE_MAX: usize = 8_192;

/// Leases that no node has in its index yet.
#[derive(Debug, Default)]
pub(super) struct DeferredIndex(Mutex<Late>);

#[derive(Debug, Default)]
struct Late {
    /// The newest lease of each resource, by name, so that a simulation's seed determines the requests.
    leases: BTreeMap<ResourceName, TokenHash>,
    /// Whether a task will take these leases.
    is_awaited: bool,
}

impl DeferredIndex {
    /// Adds a lease. Returns whether a task must be started for it.
    fn add(&self, resource: ResourceName, token: TokenHash) -> bool {
        let mut late = self.0.lock();
        late.leases.insert(resource, token);
        let starts = !late.is_awaited || late.leases.len() == LATE_MAX;
        late.is_awaited = true;
        starts
    }

    /// Removes a lease that has ended: no node needs to check it.
    pub(super) fn remove(&self, resource: &ResourceName, token: &TokenHash) {
        let mut late = self.0.lock();
        if late.leases.get(resource) == Some(token) {
            late.leases.remove(resource);
        }
    }

    /// Removes and returns all leases, as requests.
    fn take(&self) -> Vec<Request> {
        let leases = {
            let mut late = self.0.lock();
            late.is_awaited = false;
            std::mem::take(&mut late.leases)
        };
        requests(leases.into_iter().collect())
    }

    /// All leases, as requests. They remain for the task, so they are indexed twice.
    fn peek(&self) -> Vec<Request> {
        let late = self.0.lock();
        requests(late.leases.iter().map(|(resource, token)| (resource.clone(), token.clone())).collect())
    }

    fn len(&self) -> usize {
        self.0.lock().leases.len()
    }
}

fn requests(leases: Vec<(ResourceName, TokenHash)>) -> Vec<Request> {
    leases.chunks(INDEX_MAX).map(|leases| Request::Index(IndexArgs { leases: Arc::from(leases) })).collect()
}

impl<N: Node, C: Clock, E: Entropy> Redlock<N, C, E> {
    /// Lets the nodes index the lease, if it is still held after [`LATE`]. Without a runtime the lease is not listed
    /// before it is extended.
    pub(super) fn index_late(&self, resource: &ResourceName, token: &TokenHash) {
        let Ok(runtime) = tokio::runtime::Handle::try_current() else { return };
        if !self.late.add(resource.clone(), token.clone()) {
            return;
        }
        let engine = self.clone();
        let work = async move {
            if engine.late.len() < LATE_MAX {
                engine.clock.sleep(LATE).await;
            }
            for request in engine.late.take() {
                engine.index(request, PATIENCE).await;
            }
        };
        self.tasks.spawn_on(work, &runtime);
    }

    /// Lets the nodes index the waiting leases now, for a list that must show what this instance just granted.
    /// Returns when all nodes have answered or timed out.
    ///
    /// Cancel: the leases are indexed late, as without this call.
    pub async fn index_now(&self) {
        for request in self.late.peek() {
            self.index(request, self.node_timeout()).await;
        }
    }

    /// Sends one index request. It is not repeated if a node fails: a list needs only a quorum of the nodes.
    async fn index(&self, request: Request, patience: Duration) {
        let now = self.clock.now();
        self.round(&self.everyone(), request, now, now.plus(patience), Until::All, Result::is_ok).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::{NodeResult, Reply, RequestStamp};
    use crate::redlock::clock::PausedClock;
    use crate::redlock::engine::RedlockSettings;
    use crate::redlock::random::SystemEntropy;
    use crate::types::NodeId;

    /// A node that notes how many leases it is to index.
    struct Noting(NodeId, Mutex<Vec<Vec<String>>>);

    impl Node for Noting {
        fn id(&self) -> &NodeId {
            &self.0
        }

        async fn call(self: Arc<Self>, _: RequestStamp, request: Arc<Request>) -> NodeResult {
            if let Request::Index(IndexArgs { leases }) = &*request {
                self.1.lock().push(leases.iter().map(|(resource, _)| resource.to_string()).collect());
            }
            Ok(Reply::Indexed)
        }
    }

    fn engine() -> (Arc<Noting>, Redlock<Noting, PausedClock, SystemEntropy>) {
        let node = Arc::new(Noting(NodeId::parse("n1").expect("valid"), Mutex::default()));
        let engine =
            Redlock::new(vec![Arc::clone(&node)], PausedClock::start(), SystemEntropy, RedlockSettings::of_tests());
        (node, engine)
    }

    fn name(text: &str) -> ResourceName {
        ResourceName::parse(text).expect("valid")
    }

    fn token(digit: &str) -> TokenHash {
        TokenHash::parse(&digit.repeat(64)).expect("valid")
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_held_for_a_quarter_of_a_second_is_indexed_once_and_what_ended_is_not() {
        let (node, engine) = engine();
        for (resource, by) in [("a", "1"), ("b", "1"), ("c", "1"), ("c", "2")] {
            engine.index_late(&name(resource), &token(by));
        }
        engine.late.remove(&name("b"), &token("1"));
        engine.late.remove(&name("c"), &token("1")); // the lease before
        tokio::time::sleep(LATE - Duration::from_millis(1)).await;
        assert!(node.1.lock().is_empty());
        tokio::time::sleep(LATE * 4).await;
        assert_eq!(*node.1.lock(), [["a", "c"]]);
        engine.index_late(&name("d"), &token("1"));
        tokio::time::sleep(LATE * 2).await;
        assert_eq!(node.1.lock()[1..], [["d"]], "the next ones wait for their own time");
    }

    #[tokio::test(start_paused = true)]
    async fn a_list_has_them_indexed_at_once_and_many_do_not_wait() {
        let (node, engine) = engine();
        engine.index_late(&name("a"), &token("1"));
        engine.index_now().await;
        assert_eq!(*node.1.lock(), [["a"]]);
        for i in 1..LATE_MAX {
            engine.index_late(&name(&format!("many/{i}")), &token("1"));
        }
        tokio::time::sleep(Duration::from_millis(1)).await;
        let asked = node.1.lock().clone();
        assert_eq!(asked.iter().skip(1).map(Vec::len).sum::<usize>(), LATE_MAX);
        assert!(asked.iter().all(|leases| leases.len() <= INDEX_MAX));
    }
}
