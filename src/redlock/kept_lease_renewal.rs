//! Kept leases: the service renews them until the end in their record. The instance that granted a lease renews it
//! after a third of its TTL. If it has not, any other instance does after half of the TTL: the nodes have an index of
//! kept leases, which each instance reads, and a lease that a quorum shows is renewed. There is no election: a
//! renewal is idempotent, so two instances that renew the same lease cost only time.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::future::join_all;
use parking_lot::Mutex;

use super::clock::{BootTime, Clock};
use super::engine::Redlock;
use super::extend::{ConfirmedExtension, ExtendParams, ExtendRefusal};
use super::kept_lease::{KeptBy, KeptEnd, KeptObserver, KeptTimes, KeptView};
use super::node::Node;
use super::random::Entropy;
use super::renewal::{renewal_interval, renewal_retry};
use super::round::Until;
use crate::keyed_maps::KeyedMap;
use crate::mutant::{self, Mutant};
use crate::protocol::{
    KEPT_PAGE_MAX, KeptArgs, KeptPage, LeaseRecord, ListedLease, NodeInspection, NodeResult, Reply, Request,
    UpdateArgs, UpdateKind,
};
use crate::types::{Fence, Labels, ResourceName, TokenHash};

/// Time between two passes over the leases that are due.
const TICK: Duration = Duration::from_millis(500);
/// An instance indexes each of its kept leases again after this time, for nodes that forgot them.
const INDEX_REFRESH: Duration = Duration::from_mins(1);
/// Maximum number of kept leases that one pass renews or ends; the next pass continues.
const STEPS_MAX: usize = 4_096;
/// Maximum number of these at a time.
const CONCURRENT_STEPS: usize = 32;
/// Maximum number of pages that one pass reads from each node.
const PAGES_MAX: usize = 16;
/// Timeout of one page.
const PAGE_TIMEOUT: Duration = Duration::from_millis(500);
/// Maximum number of kept leases that one instance renews, including leases of instances that have ended.
pub(crate) const KEPT_MAX: usize = 1_000_000;

/// The key of a lease: one token may have leases of several resources.
type Key = (ResourceName, TokenHash);

/// The leases that this instance keeps. Cheap to clone.
pub(crate) struct Keeper<N, C, E> {
    engine: Redlock<N, C, E>,
    leases: Arc<Mutex<KeyedMap<Key, KeptLease>>>,
}

impl<N, C, E> Clone for Keeper<N, C, E> {
    fn clone(&self) -> Self {
        Self { engine: self.engine.clone(), leases: Arc::clone(&self.leases) }
    }
}

#[derive(Debug, Clone)]
struct KeptLease {
    resource: ResourceName,
    record: LeaseRecord,
    /// Until when the lease is kept, on the cluster clock.
    until_ms: u64,
    by: KeptBy,
    /// Whether this instance granted the lease, or has renewed it.
    is_known: bool,
    /// Until when the lease is promised, as far as this instance knows.
    deadline: BootTime,
    renew_at: BootTime,
    /// When this instance last indexed the lease.
    indexed: BootTime,
}

impl KeptLease {
    fn key(&self) -> Key {
        (self.resource.clone(), self.record.token.clone())
    }
}

/// The step that a lease needs now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Step {
    Renew,
    /// The time for which the lease is kept is over, as far as this instance knows.
    End,
}

/// What a quorum shows for a resource.
enum Confirmed {
    /// The lease of the token in question, and until when it is kept.
    Lease(LeaseRecord, KeptTimes),
    /// Something else, or nothing.
    Other,
    Unknown,
}

impl<N: Node, C: Clock, E: Entropy> Keeper<N, C, E> {
    /// A keeper without leases.
    pub(crate) fn new(engine: Redlock<N, C, E>) -> Self {
        Self { engine, leases: Arc::default() }
    }

    /// How many leases this instance keeps.
    pub(crate) fn count(&self) -> usize {
        self.leases.lock().len()
    }

    /// The time on the cluster clock, to which ends of kept leases refer. Milliseconds since 1970.
    pub(crate) fn now_ms(&self) -> u64 {
        self.engine.cluster_clock.request_time().0 / 1_000
    }

    /// Writes these labels, with an end, to a quorum, and indexes the lease there, so that any instance will renew
    /// it. Must be called between the grant and the answer. Returns whether a quorum has both: not if the lease has another end.
    ///
    /// Not part of the acquire: if the instance ended before it answered, the lease would be kept although no caller
    /// knows it.
    ///
    /// Cancel: some nodes may have the labels. No renewal is confirmed, so the cancel of the attempt still ends the lease.
    pub(crate) async fn begin(
        &self,
        resource: &ResourceName,
        token: &TokenHash,
        fence: Fence,
        labels: &Labels,
    ) -> bool {
        let engine = &self.engine;
        engine.spread_first(resource, token).await;
        let kept_until_ms = labels.kept_until_ms;
        let (resource, token, labels) = (resource.clone(), token.clone(), Some(labels.encode()));
        let (fence, ttl) = (Some(fence), None);
        let index = self.index(&resource);
        let started = engine.clock.now();
        let deadline = started.plus(engine.node_timeout());
        let (resource, kind) = (resource.clone(), UpdateKind::FirstEnd);
        let update = UpdateArgs { resource, token, ttl, fence, kind, labels };
        let is_yes = |a: &NodeResult| match a {
            Ok(Reply::Updated { record, .. }) => {
                Some(record.fence) == fence && record.labels().kept_until_ms == kept_until_ms
            }
            _ => false,
        };
        let everyone = engine.everyone();
        let marked = engine.round(&everyone, Request::Update(update), started, deadline, Until::Won, is_yes);
        let (marked, is_indexed) = futures_util::future::join(marked, index).await;
        marked.yes() >= marked.quorum() && is_indexed
    }

    /// Indexes a lease on a quorum. Returns whether a quorum has it.
    ///
    /// Cancel: some nodes may have it, for as long as the lease exists.
    pub(crate) async fn index(&self, resource: &ResourceName) -> bool {
        let engine = &self.engine;
        let started = engine.clock.now();
        let request = Request::Kept(KeptArgs { add: vec![resource.clone()] });
        let deadline = started.plus(engine.node_timeout());
        let is_yes = |answer: &NodeResult| matches!(answer, Ok(Reply::Kept(KeptPage { is_indexed: true, .. })));
        let tally = engine.round(&engine.everyone(), request, started, deadline, Until::Won, is_yes).await;
        tally.yes() >= tally.quorum()
    }

    /// Renews this lease from now on, as its granter. `record`: the nodes' record, with its end. A record without an
    /// end, which then only a lying node shows, is not renewed any more.
    pub(crate) fn keep(&self, resource: &ResourceName, record: &LeaseRecord, deadline: BootTime) {
        let (now, key) = (self.engine.clock.now(), (resource.clone(), record.token.clone()));
        match record.labels().kept_until_ms {
            0 => drop(self.leases.lock().remove(&key)),
            until_ms => self.put(
                key,
                KeptLease {
                    resource: resource.clone(),
                    record: record.clone(),
                    until_ms,
                    by: KeptBy::Granter,
                    is_known: true,
                    deadline,
                    renew_at: now.plus(renewal_interval(record.ttl.as_duration())),
                    indexed: now,
                },
            ),
        }
    }

    fn put(&self, key: Key, lease: KeptLease) {
        let mut leases = self.leases.lock();
        if leases.len() < KEPT_MAX || leases.contains_key(&key) {
            leases.insert(key, lease);
        }
    }

    /// Records that this instance has ended the lease. Returns whether it was kept here.
    pub(crate) fn forget(&self, resource: &ResourceName, token: &TokenHash) -> bool {
        self.leases.lock().remove(&(resource.clone(), token.clone())).is_some()
    }

    /// Renews and ends the leases that are due, for ever.
    ///
    /// Cancel: leases that no other instance keeps end with their TTL.
    pub(crate) async fn run(&self, observer: &impl KeptObserver) {
        loop {
            self.engine.clock.sleep(TICK).await;
            self.look(observer).await;
        }
    }

    /// One pass over the kept leases that are due.
    async fn look(&self, observer: &impl KeptObserver) {
        let due = self.exchange().await;
        let adopted = due.into_iter().filter(|lease| self.is_to_be_adopted(lease)).take(STEPS_MAX);
        let adoptions = adopted.map(|lease| self.adopt(lease, observer));
        futures_util::stream::iter(adoptions).for_each_concurrent(CONCURRENT_STEPS, |adoption| adoption).await;
        let steps = self.due_steps().into_iter().map(|(key, step)| self.take_step(key, step, observer));
        futures_util::stream::iter(steps).for_each_concurrent(CONCURRENT_STEPS, |step| step).await;
    }

    /// Indexes the leases that must be indexed again, and reads from each node the leases that are due there.
    async fn exchange(&self) -> Vec<ListedLease> {
        let now = self.engine.clock.now();
        let add: Vec<ResourceName> = {
            let mut leases = self.leases.lock();
            let stale = leases.values_mut().filter(|lease| now.since(lease.indexed) >= INDEX_REFRESH);
            let refresh = |lease: &mut KeptLease| {
                lease.indexed = now;
                lease.resource.clone()
            };
            stale.take(KEPT_PAGE_MAX).map(refresh).collect()
        };
        let nodes = self.engine.everyone().into_iter().map(|node| self.exchange_with(node, add.clone()));
        let mut due = BTreeMap::new();
        for listed in join_all(nodes).await.into_iter().flatten() {
            due.entry((listed.resource.clone(), listed.record.token.clone())).or_insert(listed);
        }
        due.into_values().collect()
    }

    async fn exchange_with(&self, node: usize, mut add: Vec<ResourceName>) -> Vec<ListedLease> {
        let (engine, mut due) = (&self.engine, Vec::new());
        for _ in 0..PAGES_MAX {
            let (now, request) = (engine.clock.now(), Request::Kept(KeptArgs { add: std::mem::take(&mut add) }));
            let deadline = now.plus(PAGE_TIMEOUT);
            let mut tally = engine.round(&[node], request, now, deadline, Until::All, Result::is_ok).await;
            let Some(Ok(Reply::Kept(page))) = tally.take(node) else { break };
            due.extend(page.due);
            if !page.has_more {
                break;
            }
        }
        due
    }

    /// Whether no instance renews it. A granter renews its own leases on its own schedule, even if that fails for a while.
    fn is_to_be_adopted(&self, listed: &ListedLease) -> bool {
        let leases = self.leases.lock();
        let key = (listed.resource.clone(), listed.record.token.clone());
        let is_granter = leases.get(&key).is_some_and(|lease| lease.by == KeptBy::Granter);
        !is_granter && listed.record.labels().kept_until_ms > 0
    }

    /// Renews a lease that one node reports, if a quorum has it.
    async fn adopt(&self, listed: ListedLease, observer: &impl KeptObserver) {
        let ListedLease { resource, record, .. } = listed;
        let Confirmed::Lease(record, times) = self.confirmed(&resource, &record.token).await else { return };
        let (now, until_ms) = (self.engine.clock.now(), times.agreed_ms);
        let key = (resource.clone(), record.token.clone());
        if until_ms > 0 {
            let (by, indexed) = (KeptBy::Adopter, now.minus(INDEX_REFRESH));
            let known = self.leases.lock().get(&key).map(|own| (own.is_known, own.deadline));
            let (is_known, deadline) = known.unwrap_or((false, now));
            self.put(
                key.clone(),
                KeptLease { resource, record, until_ms, by, is_known, deadline, renew_at: now, indexed },
            );
            let step = if self.now_ms() < until_ms { Step::Renew } else { Step::End };
            self.take_step(key, step, observer).await;
        }
    }

    /// What a quorum shows for this token.
    async fn confirmed(&self, resource: &ResourceName, token: &TokenHash) -> Confirmed {
        let Ok(found) = self.engine.inspect(resource).await else { return Confirmed::Unknown };
        let Some((record, _)) = found.state.lease_of(token) else { return Confirmed::Other };
        let (record, mut ends) = (record.clone(), Vec::new());
        for answer in found.answers.iter().flatten() {
            if let Ok(Reply::Inspected(NodeInspection { lock, .. })) = answer
                && let Some((shown, _)) = lock.lease_of(token)
            {
                ends.push(shown.labels().kept_until_ms);
            }
        }
        if ends.len() < self.engine.quorum() {
            return Confirmed::Unknown;
        }
        Confirmed::Lease(record, KeptTimes::of(ends, self.engine.size()))
    }

    /// The steps that are due in this instance's own list, ordered by deadline, the earliest first.
    fn due_steps(&self) -> Vec<(Key, Step)> {
        let (now, now_ms) = (self.engine.clock.now(), self.now_ms());
        let mut due: Vec<(BootTime, Key, Step)> = Vec::new();
        for (key, lease) in self.leases.lock().iter() {
            let is_over = now_ms >= lease.until_ms && !mutant::is(Mutant::KeptPastEnd);
            if is_over || now >= lease.renew_at {
                due.push((lease.deadline, key.clone(), if is_over { Step::End } else { Step::Renew }));
            }
        }
        due.sort_unstable_by(|a, b| (a.0, &a.1).cmp(&(b.0, &b.1)));
        due.truncate(STEPS_MAX);
        due.into_iter().map(|(_, key, step)| (key, step)).collect()
    }

    async fn take_step(&self, key: Key, step: Step, observer: &impl KeptObserver) {
        let Some(lease) = self.leases.lock().get(&key).cloned() else { return };
        match step {
            Step::Renew => self.renew(lease, observer).await,
            Step::End => self.end(lease, observer).await,
        }
    }

    async fn renew(&self, lease: KeptLease, observer: &impl KeptObserver) {
        let KeptLease { resource, record, until_ms, by, .. } = &lease;
        let (ttl, until_ms) = (Some(record.ttl), *until_ms);
        let (resource, token) = (resource.clone(), record.token.clone());
        let extension = ExtendParams { resource, token, ttl, until_ms, fence: None, labels: None };
        match self.engine.extend(&extension).await {
            Ok(extended) => self.renewed(&lease, extended, observer).await,
            Err(ExtendRefusal::Unknown { .. }) => {
                observer.not_renewed(*by);
                let retry_at =
                    self.engine.clock.now().plus(renewal_retry(record.ttl.as_duration(), &self.engine.entropy));
                if let Some(lease) = self.leases.lock().get_mut(&lease.key()) {
                    lease.renew_at = retry_at;
                }
            }
            Err(refusal) => {
                let end = match refusal {
                    ExtendRefusal::Gone(Some(reason)) => KeptEnd::Ended(reason),
                    _ => KeptEnd::Lost,
                };
                self.over(&lease, end, observer);
            }
        }
    }

    /// Handles a confirmed renewal. Another instance may have set another end meanwhile.
    async fn renewed(&self, lease: &KeptLease, extended: ConfirmedExtension, observer: &impl KeptObserver) {
        let (now, token) = (self.engine.clock.now(), &lease.record.token);
        let mut until_ms = lease.until_ms;
        if extended.record.labels().kept_until_ms != until_ms
            && let Confirmed::Lease(_, KeptTimes { agreed_ms: agreed @ 1.., .. }) =
                self.confirmed(&lease.resource, token).await
        {
            until_ms = agreed;
        }
        let record = LeaseRecord { ttl: lease.record.ttl, ..extended.record };
        let view = KeptView { resource: &lease.resource, token, record: &record };
        observer.renewed(view, lease.by, extended.deadline);
        if let Some(own) = self.leases.lock().get_mut(&lease.key()) {
            // For an adopter, the nodes report when the lease is due again: another instance may renew it in between.
            let pause = match own.by {
                KeptBy::Granter => renewal_interval(own.record.ttl.as_duration()),
                KeptBy::Adopter => extended.deadline.since(now),
            };
            own.is_known = true;
            let deadline = own.deadline.max(extended.deadline);
            (own.record, own.until_ms, own.deadline, own.renew_at) = (record, until_ms, deadline, now.plus(pause));
        }
    }

    /// Ends a lease whose time is over, unless another instance has set another end.
    async fn end(&self, lease: KeptLease, observer: &impl KeptObserver) {
        let (token, now_ms) = (&lease.record.token, self.now_ms());
        match self.confirmed(&lease.resource, token).await {
            Confirmed::Lease(_, times) if times.agreed_ms > now_ms => {
                if let Some(own) = self.leases.lock().get_mut(&lease.key()) {
                    own.until_ms = times.agreed_ms;
                }
            }
            // One node shows a later end: the lease is not renewed, and ends with its TTL.
            Confirmed::Lease(_, times) if times.latest_ms > now_ms => drop(self.leases.lock().remove(&lease.key())),
            Confirmed::Lease(..) => {
                if observer.release(&lease.resource, token).await {
                    self.over(&lease, KeptEnd::KeptOut, observer);
                }
            }
            // Another instance has ended the lease, and has published the event.
            Confirmed::Other => drop(self.leases.lock().remove(&lease.key())),
            Confirmed::Unknown => {
                if self.engine.clock.now() >= lease.deadline {
                    self.over(&lease, KeptEnd::KeptOut, observer);
                }
            }
        }
    }

    fn over(&self, lease: &KeptLease, end: KeptEnd, observer: &impl KeptObserver) {
        let token = &lease.record.token;
        let is_ours = lease.is_known || end == KeptEnd::KeptOut;
        if self.leases.lock().remove(&lease.key()).is_some() && is_ours {
            observer.ended(KeptView { resource: &lease.resource, token, record: &lease.record }, end);
        }
    }
}
