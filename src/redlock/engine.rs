//! What the operations (acquire, extend, release, inspect, list) share: the nodes, the clocks, the settings, and the
//! tasks that outlive a request.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::Semaphore;
use tokio_util::task::TaskTracker;

use super::backoff::BackoffRange;
use super::clock::{BootTime, Clock};
use super::cluster_clock::ClusterClock;
use super::deferred_index::DeferredIndex;
use super::fan_out::{FanOut, ForeignNames, ReadyNodes};
use super::known_nodes::{self, KnownNodes};
use super::member_fences::FenceBlocks;
use super::membership::current_view::CurrentView;
use super::node::Node;
use super::quorum::{self, NodeOutcome, Verdict, quorum_of};
use super::random::Entropy;
use super::round_trip::AnswerTimeout;
use super::seen_votes::SeenVotes;
use super::spread::PendingSpreads;
use super::validity;
use crate::mutant::{self, Mutant};
use crate::protocol::{ClusterParams, NodeResult, Terms, View, ViewId};
use crate::types::{NodeId, Ttl};

/// Settings of the algorithm. The configuration checks them against each other.
#[derive(Debug, Clone)]
pub struct RedlockSettings {
    /// The configured parameters on which all instances agree. Those in force: [`Engine::terms`].
    pub params: Arc<ClusterParams>,
    /// Minimum time for a node's answer, counted from the start of the round. If nodes are farther away, the timeout
    /// follows their round trips, up to half of the guard.
    pub node_timeout: Duration,
    /// Clock-rate allowance, parts per million of the TTL.
    pub drift_ppm: u32,
    /// Clock-rate allowance, fixed part.
    pub drift_floor: Duration,
    /// Minimum validity, in percent of the TTL. A grant that leaves less is refused.
    pub min_validity_percent: u8,
    /// Delays between attempts after a split vote or without a quorum.
    pub retry: BackoffRange,
    /// Maximum time between two attempts of a waiter, in case the notice of a release is lost (or is
    /// never published, by foreign clients).
    pub poll: Duration,
    /// Maximum number of concurrent clean-ups and repairs; more are left to the TTL.
    pub cleanup_limit: usize,
    /// How many nodes an acquire asks at once.
    pub fan_out: FanOut,
}

#[cfg(test)]
impl RedlockSettings {
    /// For unit tests.
    pub(crate) fn of_tests() -> Self {
        let ms = Duration::from_millis;
        let params = ClusterParams {
            cluster: "test".into(),
            guard: ms(500),
            lock_delay: ms(1_000),
            quarantine: ms(10_000),
            fence_ttl: ms(10_000),
            template: Default::default(),
        };
        Self {
            params: Arc::new(params),
            node_timeout: ms(50),
            drift_ppm: 10_000,
            drift_floor: ms(2),
            min_validity_percent: 10,
            retry: BackoffRange { first: ms(1), max: ms(2) },
            poll: ms(1_000),
            cleanup_limit: 64,
            fan_out: FanOut::All,
        }
    }
}

/// The engine of one instance. Cheap to clone.
pub struct Redlock<N, C, E>(Arc<Engine<N, C, E>>);

impl<N, C, E> Clone for Redlock<N, C, E> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<N, C, E> std::ops::Deref for Redlock<N, C, E> {
    type Target = Engine<N, C, E>;

    fn deref(&self) -> &Self::Target {
        &self.0
    }
}

/// The shared state behind [`Redlock`].
pub struct Engine<N, C, E> {
    /// The configured nodes, in order, then the nodes that were added since.
    pub nodes: KnownNodes<N>,
    /// How many nodes are configured.
    configured: usize,
    opener: OnceLock<Opener<N>>,
    list_observers: Mutex<Vec<ListObserver>>,
    /// The clock of all decisions.
    pub clock: C,
    /// Source of tokens, attempt ids and jitter.
    pub entropy: E,
    /// The time that requests carry.
    pub cluster_clock: ClusterClock<C>,
    /// Settings of the algorithm.
    pub settings: RedlockSettings,
    /// Clean-ups, repairs and late calls: awaited at shutdown.
    pub tasks: TaskTracker,
    pub(super) cleanups: Arc<Semaphore>,
    /// Leases that no node has in its index yet.
    pub(super) late: DeferredIndex,
    /// Leases that some nodes were not asked for yet.
    pub(super) spreads: PendingSpreads,
    pub(super) ready: ReadyNodes,
    pub(super) seen_votes: SeenVotes,
    pub(super) foreign: ForeignNames,
    pub(super) fence_blocks: FenceBlocks,
    /// Which processes vote.
    pub(super) views: CurrentView,
    pub(super) answers: AnswerTimeout,
    /// The terms that were logged last.
    followed: Mutex<Terms>,
    /// The node that an operator is moving to another server. The process that answers there knows only through a
    /// fill what the former process knew.
    pub(super) replacing: Mutex<Option<usize>>,
    counts: Counts,
}

/// Opens a node that is not configured: `None` if the text is not an address, or such nodes cannot be opened.
pub(crate) type Opener<N> = Box<dyn Fn(&NodeId, &str) -> Option<Arc<N>> + Send + Sync>;

/// Called when nodes were added, or the list of voting nodes has changed.
pub(crate) type ListObserver = Box<dyn Fn() + Send + Sync>;

/// Counters of background work.
#[derive(Debug, Default)]
struct Counts {
    skipped_cleanups: AtomicU64,
    under_replicated: AtomicU64,
    repaired: AtomicU64,
}

impl<N: Node, C: Clock, E: Entropy> Redlock<N, C, E> {
    /// An engine over these nodes. The quorum counts all of them, reachable or not.
    pub fn new(nodes: Vec<Arc<N>>, clock: C, entropy: E, settings: RedlockSettings) -> Self {
        let cluster_clock = ClusterClock::new(clock.clone());
        let cleanups = Arc::new(Semaphore::new(settings.cleanup_limit));
        let (tasks, counts) = (TaskTracker::new(), Counts::default());
        let (late, views, answers) = (
            DeferredIndex::default(),
            CurrentView::default(),
            AnswerTimeout::new(settings.node_timeout, settings.params.guard),
        );
        let (configured, nodes) = (nodes.len(), KnownNodes::from(nodes));
        let (opener, list_observers) = (OnceLock::new(), Mutex::default());
        let followed = Mutex::new(settings.params.terms());
        Self(Arc::new(Engine {
            nodes,
            configured,
            opener,
            list_observers,
            clock,
            entropy,
            cluster_clock,
            settings,
            tasks,
            cleanups,
            late,
            spreads: PendingSpreads::default(),
            ready: ReadyNodes::default(),
            seen_votes: SeenVotes::default(),
            foreign: ForeignNames::default(),
            fence_blocks: FenceBlocks::default(),
            views,
            answers,
            followed,
            replacing: Mutex::default(),
            counts,
        }))
    }
}

impl<N: Node, C: Clock, E: Entropy> Engine<N, C, E> {
    /// Number of nodes that must agree, in the present view.
    pub fn quorum(&self) -> usize {
        quorum_of(self.size())
    }

    /// So many nodes of another view's list that every quorum has one of them.
    pub(super) fn more_than_a_minority(&self, view: &View) -> usize {
        quorum::more_than_a_minority(self.size_in(view))
    }

    /// How many nodes are configured. These nodes vote until the list is changed.
    pub(super) fn configured(&self) -> usize {
        self.configured
    }

    /// The number of the present view; 0 before the first.
    pub fn view_number(&self) -> u64 {
        self.views.current().id.number()
    }

    /// Number of nodes of the present view's list, whether or not they can be reached.
    pub fn size(&self) -> usize {
        self.size_in(&self.views.current())
    }

    /// The number of nodes of another view's list.
    pub(super) fn size_in(&self, view: &View) -> usize {
        view.list.as_ref().map_or(self.configured, |list| list.names.len())
    }

    /// The nodes of the present view's list, one bit each.
    pub fn members(&self) -> u64 {
        self.members_in(&self.views.current())
    }

    /// The nodes of another view's list, one bit each.
    pub(super) fn members_in(&self, view: &View) -> u64 {
        let Some(list) = &view.list else { return known_nodes::first(self.configured) };
        let bit = |(i, node): (usize, &Arc<N>)| if list.names.contains(node.id()) { 1 << i } else { 0 };
        self.nodes.iter().enumerate().map(bit).fold(0, std::ops::BitOr::bitor)
    }

    /// Takes a view if it is higher and [`Self::may_take`] allows it. `shown_by`: nodes that installed a view with its list and
    /// terms.
    pub(super) fn take_view(&self, view: &Arc<View>, shown_by: &[usize]) {
        if self.may_take(view, shown_by) && self.views.take(view) {
            self.list_changed();
        }
    }

    /// The terms in the present view.
    pub fn terms(&self) -> Terms {
        self.settings.params.in_view(&self.views.current()).terms()
    }

    /// The parameters in the present view.
    pub fn params(&self) -> ClusterParams {
        self.settings.params.in_view(&self.views.current()).into_owned()
    }

    /// Adapts timeouts to the terms in force, and logs once when they have changed.
    pub(super) fn follow_terms(&self) {
        let terms = self.terms();
        if std::mem::replace(&mut *self.followed.lock(), terms.clone()) == terms {
            return;
        }
        let Terms { guard, lock_delay, fence_ttl, template } = terms;
        self.answers.limit(guard);
        let [guard_ms, lock_delay_ms, fence_ttl_ms] = [guard, lock_delay, fence_ttl].map(|period| period.as_millis());
        let key_template = template.map_or_else(String::new, |template| template.to_string());
        tracing::warn!(
            guard_ms,
            lock_delay_ms,
            fence_ttl_ms,
            key_template,
            "other terms of the cluster are in force now"
        );
        if guard <= self.settings.node_timeout {
            let timeout_ms = self.settings.node_timeout.as_millis();
            tracing::error!(
                guard_ms,
                timeout_ms,
                "node_timeout is not below the guard in force: slow answers look like wrong clocks"
            );
        }
    }

    /// Whether the view has the list under which the cluster was declared, where this instance has another one, and took the
    /// cluster's name from the nodes: it does not know the names of that list.
    pub(super) fn is_of_unknown_list(&self, view: &View) -> bool {
        view.list.is_none() && view.id != ViewId::NONE && self.settings.params.cluster.is_learned()
    }

    /// A view whose list or terms differ from the present view's counts only if more than a minority of that list shows it:
    /// one node could name itself alone.
    pub(super) fn may_take(&self, view: &View, shown_by: &[usize]) -> bool {
        if self.is_of_unknown_list(view) {
            return false;
        }
        let current = self.views.current();
        let (members, size) = (self.members_in(&current), self.size_in(&current));
        let enough = self.more_than_a_minority(&current);
        let is_same = self.members_in(view) == members
            && self.size_in(view) == size
            && self.settings.params.in_view(view).terms() == self.terms();
        let witnesses = shown_by.iter().filter(|i| members >> **i & 1 == 1).count();
        is_same || witnesses >= enough || mutant::is(Mutant::ListOfOneNode)
    }

    /// The node of the present view's list that has this name.
    pub(super) fn member(&self, name: &NodeId) -> Option<usize> {
        let members = self.members();
        self.nodes.iter().enumerate().find(|(i, node)| members >> i & 1 == 1 && node.id() == name).map(|(i, _)| i)
    }

    /// Whether a node, by index, is in the present view's list.
    pub fn is_member(&self, node: usize) -> bool {
        self.members() >> node & 1 == 1
    }

    /// Sets how nodes that are not configured are opened. Only the first call counts.
    pub(crate) fn set_opener(&self, opener: Opener<N>) {
        let _ = self.opener.set(opener);
    }

    /// Sets an observer, which is called when nodes were added or the list has changed.
    pub(crate) fn observe_list(&self, observer: ListObserver) {
        self.list_observers.lock().push(observer);
    }

    pub(super) fn list_changed(&self) {
        self.list_observers.lock().iter().for_each(|observer| observer());
    }

    /// Connects to a node from now on, or closes its connections.
    pub(super) fn set_open(&self, node: usize, is_open: bool) {
        self.nodes.set_open(node, is_open);
        self.nodes[node].set_open(is_open);
    }

    /// Connects to the node with this name and returns its index. `None` if it cannot be opened.
    pub(super) fn open(&self, name: &NodeId, address: &str) -> Option<usize> {
        if let Some(index) = self.nodes.iter().position(|node| node.id() == name) {
            let node = &self.nodes[index];
            if node.address().is_none_or(|own| *own != *address) && !node.move_to(address) {
                return None;
            }
            self.set_open(index, true);
            return Some(index);
        }
        let node = self.opener.get()?(name, address)?;
        let index = self.nodes.push(node)?;
        self.list_changed();
        Some(index)
    }

    /// End of the validity: `started` + TTL - drift.
    pub fn deadline(&self, started: BootTime, ttl: Ttl) -> BootTime {
        let started = if mutant::is(Mutant::ValidityFromReply) { self.clock.now() } else { started };
        let drift = validity::drift(ttl, self.settings.drift_ppm, self.settings.drift_floor);
        started.plus(validity::validity(ttl, Duration::ZERO, drift))
    }

    /// How long a round waits for a node's answer now, if its request has no TTL.
    pub fn node_timeout(&self) -> Duration {
        self.answers.present()
    }

    /// The timeout for a request that may have a TTL: at most a quarter of it, or the setting if that is longer.
    pub(crate) fn node_timeout_for(&self, ttl: Option<Ttl>) -> Duration {
        self.answers.for_ttl(ttl)
    }

    /// Minimum validity of a lease that is granted, at least 1 ms.
    pub fn min_validity(&self, ttl: Ttl) -> Duration {
        let share_ms = u128::from(ttl.as_ms()) * u128::from(self.settings.min_validity_percent) / 100;
        Duration::from_millis(u64::try_from(share_ms).unwrap_or(u64::MAX)).max(Duration::from_millis(1))
    }

    /// The address of each node that is a server which can be moved.
    pub(super) fn addresses(&self) -> Vec<Option<Arc<str>>> {
        self.nodes.iter().map(|node| node.address()).collect()
    }

    /// Number of clean-ups and repairs that run now.
    pub fn cleanups_in_flight(&self) -> usize {
        self.settings.cleanup_limit.saturating_sub(self.cleanups.available_permits())
    }

    /// Number of clean-ups that were left to the TTL because too many ran.
    pub fn skipped_cleanups(&self) -> u64 {
        self.counts.skipped_cleanups.load(Ordering::Relaxed)
    }

    /// Number of nodes found without a lease that an extend had just confirmed on a quorum.
    pub fn under_replicated(&self) -> u64 {
        self.counts.under_replicated.load(Ordering::Relaxed)
    }

    /// Number of leases restored on such nodes.
    pub fn repaired(&self) -> u64 {
        self.counts.repaired.load(Ordering::Relaxed)
    }

    pub(super) fn count_skipped_cleanup(&self) {
        self.counts.skipped_cleanups.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn count_under_replicated(&self, nodes: usize) {
        self.counts.under_replicated.fetch_add(nodes as u64, Ordering::Relaxed);
    }

    pub(super) fn count_repaired(&self) {
        self.counts.repaired.fetch_add(1, Ordering::Relaxed);
    }

    /// Each node's outcome, from its answer.
    pub(crate) fn outcomes(&self, answers: &[Option<NodeResult>]) -> Vec<NodeOutcome> {
        let members = self.members();
        let verdicts = answers.iter().map(|a| Verdict::of(a.as_ref()));
        let listed = self.nodes.iter().zip(verdicts).enumerate().filter(|(i, _)| members >> i & 1 == 1);
        listed.map(|(_, (n, verdict))| NodeOutcome { node: n.id().clone(), verdict }).collect()
    }
}
