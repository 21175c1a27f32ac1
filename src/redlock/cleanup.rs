//! Delivery to every node after the caller's request is over: cancels of failed and dropped attempts, and releases
//! that some nodes missed. It runs in tasks with their own deadline, whose number is bounded. What cannot be
//! delivered is left to the keys' TTL.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;

use super::backoff::{Backoff, BackoffRange};
use super::clock::{BootTime, Clock};
use super::engine::Redlock;
use super::node::Node;
use super::random::Entropy;
use super::round::{Posed, Until};
use crate::mutant::{self, Mutant};
use crate::protocol::{CancelArgs, Request, View};
use crate::types::{AttemptId, ResourceName, TokenHash};

/// Maximum duration of a clean-up. By then most leases have expired on the nodes that missed the request.
pub(super) const CLEANUP_MAX: Duration = Duration::from_secs(30);
/// Timeout of one try per node: longer than the node timeout, since no caller waits for it.
const TRY_TIMEOUT: Duration = Duration::from_secs(1);
/// Delays between tries.
const RETRY_DELAYS: BackoffRange = BackoffRange { first: Duration::from_millis(20), max: Duration::from_secs(1) };

impl<N: Node, C: Clock, E: Entropy> Redlock<N, C, E> {
    /// Sends `request` to `targets` in a tracked task, until each has answered or `until` has passed, at most for
    /// [`CLEANUP_MAX`]. Skipped, and counted, if too many clean-ups run or there is no runtime: the TTL then ends the
    /// leases.
    pub(super) fn deliver(&self, request: Request, targets: Vec<usize>, until: BootTime) {
        self.deliver_all(vec![request], targets, until, None);
    }

    /// As `deliver`, with several requests in one task. `sent_in`: the view in which an attempt that they cancel was begun.
    fn deliver_all(&self, requests: Vec<Request>, targets: Vec<usize>, until: BootTime, sent_in: Option<Arc<View>>) {
        let permit = self.cleanups.clone().try_acquire_owned();
        let (Ok(permit), Ok(runtime)) = (permit, tokio::runtime::Handle::try_current()) else {
            self.count_skipped_cleanup();
            return;
        };
        let engine = self.clone();
        let until = until.min(self.clock.now().plus(CLEANUP_MAX));
        let work = async move {
            let deliver = |request| engine.deliver_now(request, targets.clone(), until, sent_in.as_ref());
            let each = requests.into_iter().map(deliver);
            join_all(each).await;
            drop(permit);
        };
        self.tasks.spawn_on(work, &runtime);
    }

    /// As [`Self::deliver`], but skipped if fewer than half of the clean-ups are free. Cancels come first: a failed
    /// attempt blocks a resource without a holder on as many nodes, and releases to a silent node under load would
    /// use up all clean-ups.
    pub(super) fn deliver_release(&self, request: Request, targets: Vec<usize>, until: BootTime) {
        if self.cleanups.available_permits() < self.settings.cleanup_limit.div_ceil(2) {
            self.count_skipped_cleanup();
            return;
        }
        self.deliver(request, targets, until);
    }

    /// As [`Self::deliver`], within the caller's task. If the key template was changed since `sent_in`, a node that has not followed
    /// the change does not know the new names of leases: it is asked by both (seed 402604). Cancel: what was not delivered is left to
    /// the keys' TTL.
    async fn deliver_now(
        &self,
        request: Request,
        mut targets: Vec<usize>,
        until: BootTime,
        sent_in: Option<&Arc<View>>,
    ) {
        let mut backoff = Backoff::new(RETRY_DELAYS, self.entropy.clone());
        loop {
            let mut missed = self.try_once(request.clone(), &targets).await;
            if let Some(view) = sent_in.filter(|view| self.named_otherwise(view)) {
                let members = self.members_in(view);
                let former: Vec<usize> = targets.iter().copied().filter(|i| members >> i & 1 == 1).collect();
                missed.extend(self.try_once(request.clone().in_view(view), &former).await);
            }
            targets.retain(|i| missed.contains(i));
            let now = self.clock.now();
            if targets.is_empty() || now >= until {
                return;
            }
            self.clock.sleep_until(now.plus(backoff.next_delay()).min(until)).await;
        }
    }

    /// Sends the request once to these nodes; returns those that did not answer. A node that is down gets no request: its pending
    /// requests cost nothing until it is back.
    async fn try_once(&self, request: impl Into<Posed>, targets: &[usize]) -> Vec<usize> {
        let reachable: Vec<usize> = targets.iter().copied().filter(|i| self.nodes[*i].is_connected()).collect();
        if reachable.is_empty() {
            return targets.to_vec();
        }
        let now = self.clock.now();
        let tally = self.round(&reachable, request, now, now.plus(TRY_TIMEOUT), Until::All, Result::is_ok).await;
        let has_answered = |i: &usize| tally.received().any(|(of, answer)| of == *i && answer.is_ok());
        targets.iter().copied().filter(|i| !has_answered(i)).collect()
    }

    /// Whether locks had other names in this view than they have now.
    fn named_otherwise(&self, view: &View) -> bool {
        let params = &self.settings.params;
        params.in_view(view).template != params.in_view(&self.views.current()).template
    }
}

/// The arguments of an attempt's cancel. Most attempts are never cancelled, so the requests are made only when needed.
#[derive(Debug, Clone)]
pub(super) struct Withdrawal {
    /// The resources of the attempt's request.
    pub(super) resources: Arc<[ResourceName]>,
    /// Hash of the leases' token.
    pub(super) token: TokenHash,
    pub(super) attempt: AttemptId,
}

impl Withdrawal {
    /// A cancel for each resource.
    pub(super) fn requests(&self) -> Vec<Request> {
        let cancelled = if mutant::is(Mutant::HalfSetCancelled) { 1 } else { self.resources.len() };
        let cancel = |resource: &ResourceName| {
            let (resource, token, attempt) = (resource.clone(), self.token.clone(), self.attempt.clone());
            Request::Cancel(CancelArgs { resource, token, attempt })
        };
        self.resources.iter().take(cancelled).map(cancel).collect()
    }
}

/// Cancels an attempt when dropped, unless disarmed: on all nodes, also those that refused, failed or
/// did not answer.
pub(super) struct Undo<N: Node, C: Clock, E: Entropy> {
    armed: Option<(Redlock<N, C, E>, Withdrawal)>,
    until: BootTime,
    targets: Vec<usize>,
    /// The view in which the attempt is begun.
    view: Arc<View>,
}

impl<N: Node, C: Clock, E: Entropy> Undo<N, C, E> {
    /// `until`: when the keys that the attempt may have set have expired.
    pub(super) fn new(engine: Redlock<N, C, E>, attempt: Withdrawal, until: BootTime) -> Self {
        let view = engine.views.current();
        let targets = engine.everyone_in(&view);
        Self { armed: Some((engine, attempt)), until, targets, view }
    }

    /// Cancels on these nodes only: for a mutant.
    pub(super) fn restrict_to(&mut self, targets: Vec<usize>) {
        self.targets = targets;
    }

    /// Records that the attempt needs no cancel: it is kept, or it set no key.
    pub(super) fn disarm(&mut self) {
        self.armed = None;
    }
}

impl<N: Node, C: Clock, E: Entropy> Drop for Undo<N, C, E> {
    fn drop(&mut self) {
        if let Some((engine, attempt)) = self.armed.take() {
            let is_lost = mutant::is(Mutant::CleanupWithRequest) && mutant::is_hanging_up();
            if is_lost || mutant::is(Mutant::NoCleanup) {
                return;
            }
            let (targets, view) = (std::mem::take(&mut self.targets), Arc::clone(&self.view));
            engine.deliver_all(attempt.requests(), targets, self.until, Some(view));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::future::Future;
    use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

    use parking_lot::Mutex;

    use super::*;
    use crate::mutant::{FOUND_BY_CLEANUP, plant, restore};
    use crate::protocol::keys::KeyTemplate;
    use crate::protocol::{ChangedTerms, EndReason, Found, NodeList, NodeResult, ReleaseArgs, Released};
    use crate::protocol::{Reply, RequestStamp, RosterEntry, Terms, ViewId};
    use crate::redlock::clock::PausedClock;
    use crate::redlock::engine::RedlockSettings;
    use crate::redlock::random::SystemEntropy;
    use crate::types::NodeId;

    /// A node that counts what it is asked.
    struct Counting {
        id: NodeId,
        connected: AtomicBool,
        calls: AtomicUsize,
        /// What was cancelled there.
        cancelled: Mutex<Vec<ResourceName>>,
        /// For each cancel, the number of its view.
        stamped: Mutex<Vec<u64>>,
    }

    impl Node for Counting {
        fn id(&self) -> &NodeId {
            &self.id
        }

        fn is_connected(&self) -> bool {
            self.connected.load(Ordering::Relaxed)
        }

        fn call(
            self: Arc<Self>,
            stamp: RequestStamp,
            request: Arc<Request>,
        ) -> impl Future<Output = NodeResult> + Send + 'static {
            self.calls.fetch_add(1, Ordering::Relaxed);
            if let Request::Cancel(args) = &*request {
                self.cancelled.lock().push(args.resource.clone());
                self.stamped.lock().push(stamp.view.id.number());
            }
            std::future::ready(Ok(Reply::Released(Released { found: Found::Nothing, earlier: None })))
        }
    }

    fn name(text: &str) -> ResourceName {
        ResourceName::parse(text).expect("valid")
    }

    fn token() -> TokenHash {
        TokenHash::parse(&"0".repeat(64)).expect("valid")
    }

    fn engine(connected: bool) -> (Arc<Counting>, Redlock<Counting, PausedClock, SystemEntropy>) {
        let id = NodeId::parse("n1").expect("valid");
        let connected = AtomicBool::new(connected);
        let (cancelled, stamped) = (Mutex::default(), Mutex::default());
        let node = Arc::new(Counting { id, connected, calls: AtomicUsize::new(0), cancelled, stamped });
        let settings = RedlockSettings { retry: RETRY_DELAYS, cleanup_limit: 8, ..RedlockSettings::of_tests() };
        let engine = Redlock::new(vec![Arc::clone(&node)], PausedClock::start(), SystemEntropy, settings);
        (node, engine)
    }

    /// The part of a failed attempt for several resources that a node must cancel.
    async fn cancelled() -> Vec<ResourceName> {
        let (node, engine) = engine(true);
        let resources = [name("a"), name("b"), name("c")].into();
        let attempt = Withdrawal { resources, token: token(), attempt: AttemptId::from_random(1) };
        drop(Undo::new(engine.clone(), attempt, engine.clock.now().plus(CLEANUP_MAX)));
        tokio::time::sleep(CLEANUP_MAX).await;
        let mut cancelled = node.cancelled.lock().clone();
        cancelled.sort();
        cancelled
    }

    #[tokio::test(start_paused = true)]
    async fn a_failed_attempt_is_cancelled_for_each_resource_of_its_set() {
        let all = vec![name("a"), name("b"), name("c")];
        assert_eq!(cancelled().await, all);
        for mutant in FOUND_BY_CLEANUP {
            let before = plant(Some(*mutant), false);
            let with_mutant = cancelled().await;
            restore(before);
            assert_ne!(with_mutant, all, "{mutant:?} is not found");
        }
    }

    /// Seed 402604: a node that had not followed the change was asked by the new names alone.
    #[tokio::test(start_paused = true)]
    async fn an_attempt_of_before_a_change_of_the_key_template_is_cancelled_by_both_names() {
        let first = ViewId::NONE.above(0);
        let view = |id, template: Option<&str>| {
            let n1 = NodeId::parse("n1").expect("valid");
            let terms = |text| Terms { template: Some(KeyTemplate::parse(text).expect("valid")), ..Terms::default() };
            let changed = template.map(|text| ChangedTerms { now: terms(text), accepted: Vec::new() });
            let list = NodeList { names: [n1.clone()].into(), terms: "t".into(), changed, old: None };
            let entry = RosterEntry { run: "run".into(), since: id, address: None };
            Arc::new(View { id, list: Some(Arc::new(list)), roster: [(n1, entry)].into_iter().collect() })
        };
        for (template, calls) in [(None, 1), (Some("lock:{resource}"), 2)] {
            let (node, engine) = engine(true);
            engine.views.take(&view(first, None));
            let attempt =
                Withdrawal { resources: [name("a")].into(), token: token(), attempt: AttemptId::from_random(1) };
            let undo = Undo::new(engine.clone(), attempt, engine.clock.now().plus(CLEANUP_MAX));
            engine.views.take(&view(first.above(0), template));
            drop(undo);
            tokio::time::sleep(CLEANUP_MAX).await;
            assert_eq!(*node.stamped.lock(), [2, 1][..calls], "the numbers of the views");
        }
    }

    /// A6: a node that is down costs no calls, and gets what it is owed when it is back.
    #[tokio::test(start_paused = true)]
    async fn a6_a_node_that_is_down_is_tried_when_it_is_back() {
        let (node, engine) = engine(false);
        let release = ReleaseArgs { resource: name("job"), token: token(), reason: EndReason::Released };
        let request = Request::Release(release);
        engine.deliver(request, vec![0], engine.clock.now().plus(CLEANUP_MAX));
        tokio::time::sleep(CLEANUP_MAX / 2).await;
        assert_eq!(node.calls.load(Ordering::Relaxed), 0);
        node.connected.store(true, Ordering::Relaxed);
        tokio::time::sleep(RETRY_DELAYS.max).await;
        assert_eq!(node.calls.load(Ordering::Relaxed), 1);
    }
}
