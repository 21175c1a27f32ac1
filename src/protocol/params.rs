//! The parameters on which all instances over one set of nodes agree, values derived from them, and the time of a request.

use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::RwLock;

use super::encoding::RoundEncoding;
use super::keys::KeyTemplate;
use super::reply::{NoVote, NodeResult, Reply};
use super::request::Request;
use super::script::{EncodedRequest, ScriptContext};
use super::terms::Terms;
use super::view::{View, ViewId};
use crate::mutant::{self, Mutant};
use crate::types::NodeId;

/// How long a release is remembered, so that a late duplicate of its acquire cannot take the lease again.
pub const TOKEN_TOMBSTONE: Duration = Duration::from_secs(60);

/// The `why` of a node that votes with a seed from the clock, see [`AdmitArgs`](super::AdmitArgs).
pub(super) const BY_CLOCK: &str = "by-clock";
/// Why a process votes that took the place of a durable one.
pub(super) const BY_DISK: &str = "by-disk";

/// When a request was sent, by the instance's estimate of the nodes' time (`redlock::cluster_clock`): microseconds since 1970. It
/// is also the minimum of the fence that the request may be given.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct RequestTime(pub u64);

/// The data of every request: the same for all requests of a round, so that all votes of a round belong to one view.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RequestStamp {
    /// When the round was begun.
    pub sent_at: RequestTime,
    /// The view in which the votes count.
    pub view: Arc<View>,
    encoding: RoundEncoding,
}

impl RequestStamp {
    /// The stamp of a round.
    pub fn new(sent_at: RequestTime, view: Arc<View>) -> Self {
        Self { sent_at, view, encoding: RoundEncoding::default() }
    }

    /// A hash of what orders the round's request (`key`), computed once for all nodes.
    pub fn order<'a>(&self, request: &'a Arc<Request>, key: impl FnOnce(&'a Request) -> u64) -> u64 {
        self.encoding.order(request, key)
    }

    /// The round's request, encoded once for all nodes; `None` if it shares no commands.
    pub(super) fn encoded(
        &self,
        context: &ScriptContext<'_>,
        request: &Arc<Request>,
    ) -> Option<Cow<'_, EncodedRequest>> {
        self.encoding.encoded(context, self.sent_at, request)
    }

    /// Why a request is not sent to the process `run` under this name: the view names another process. An empty `run`: unknown.
    pub fn refusal(&self, name: &NodeId, run: &str, request: &Request) -> Option<NoVote> {
        let needs_it = request.takes() || matches!(request, Request::Read(_) | Request::Ticket(_));
        (needs_it && !self.names(name, run)).then(|| NoVote::OtherProcess { run: run.into() })
    }

    /// The answer as it counts: an update by a process that the view does not name is no vote.
    #[inline]
    pub fn counted(&self, name: &NodeId, run: &str, answer: NodeResult) -> NodeResult {
        if matches!(&answer, Ok(Reply::Updated { .. } | Reply::Missing)) && !self.names(name, run) {
            return Ok(Reply::NoVote(NoVote::OtherProcess { run: run.into() }));
        }
        answer
    }

    /// Whether the view names the process `run` under this name, as far as that is known.
    pub fn names(&self, name: &NodeId, run: &str) -> bool {
        let is_unknown = run.is_empty() || self.view.id == ViewId::NONE;
        is_unknown || self.view.run_of(name).is_some_and(|named| **named == *run)
    }
}

/// Without a view: for requests that need no vote.
impl From<RequestTime> for RequestStamp {
    fn from(sent_at: RequestTime) -> Self {
        Self::new(sent_at, Arc::default())
    }
}

/// The present name, and whether it was learned from the nodes.
type PresentName = (Arc<str>, bool);

/// Names a cluster: the fingerprint under which it was declared. An instance that is configured with a later list of the same
/// cluster learns the name from the nodes.
#[derive(Clone)]
pub struct ClusterName {
    /// Shared by all clones.
    present: Arc<RwLock<PresentName>>,
    configured: Arc<str>,
    terms: Arc<str>,
    template: Arc<str>,
}

impl ClusterName {
    /// From the fingerprint of these settings, and the fingerprint of all of them except the list of nodes: letters and digits.
    pub fn new(name: &str, terms: &str) -> Self {
        let configured: Arc<str> = name.into();
        let present = Arc::new(RwLock::new((Arc::clone(&configured), false)));
        Self { present, configured, terms: terms.into(), template: "".into() }
    }

    /// The name that an instance with these settings declares.
    pub fn declared(names: &[&str], terms: &Terms, template: &str) -> Self {
        let name = Self::new(&terms.cluster_name(names, template), &terms.hash(template));
        Self { template: template.into(), ..name }
    }

    /// The fingerprint of an instance that is configured with these terms, and else like this one: see [`Self::terms`].
    pub(crate) fn terms_with(&self, terms: &Terms) -> Arc<str> {
        terms.hash(&self.template)
    }

    /// The present name: it changes when the instance learns it from the nodes.
    pub fn get(&self) -> Arc<str> {
        Arc::clone(&self.present.read().0)
    }

    /// Adopts the nodes' name: it was declared with another list or other terms.
    pub(crate) fn learn(&self, name: &str) {
        *self.present.write() = (name.into(), true);
    }

    /// The name that this instance's own list and terms declare.
    pub(crate) fn configured(&self) -> &str {
        &self.configured
    }

    /// Adopts the configured name again.
    pub(crate) fn return_to_configured(&self) {
        *self.present.write() = (Arc::clone(&self.configured), false);
    }

    /// Whether the name was declared with another list or other terms than are configured. A view without a list has those.
    pub(crate) fn is_learned(&self) -> bool {
        self.present.read().1
    }

    /// Whether an instance that is configured like this one is of the cluster of this view. Nodes that lost a change of the terms
    /// show a view that does not accept what this instance was started with.
    pub(crate) fn is_accepted_in(&self, view: &View) -> bool {
        match &view.list {
            Some(list) => {
                let changed = list.changed.iter().flat_map(|changed| &changed.accepted);
                list.terms == self.terms || changed.into_iter().any(|terms| *terms == self.terms)
            }
            // Nobody votes without a view: an instance that starts asks so for the present one.
            None if view.id == ViewId::NONE => true,
            None => !self.is_learned(),
        }
    }

    /// The name that was configured.
    fn unlearned(&self) -> Self {
        let present = Arc::new(RwLock::new((Arc::clone(&self.configured), false)));
        Self { present, ..self.clone() }
    }

    /// The fingerprint that all instances of one cluster share whatever its list is.
    pub fn terms(&self) -> &Arc<str> {
        &self.terms
    }
}

impl<T: AsRef<str>> From<T> for ClusterName {
    fn from(name: T) -> Self {
        let terms: String = name.as_ref().chars().filter(char::is_ascii_alphanumeric).collect();
        Self::new(name.as_ref(), &terms)
    }
}

impl fmt::Debug for ClusterName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.get())
    }
}

impl PartialEq for ClusterName {
    fn eq(&self, other: &Self) -> bool {
        self.get() == other.get() && self.terms == other.terms
    }
}

impl Eq for ClusterName {}

/// The parameters on which all instances over one set of nodes must agree.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClusterParams {
    /// Fingerprint of node names, guard, lock delay, fence TTL and key template. A node with another fingerprint does not
    /// vote for this instance.
    pub cluster: ClusterName,
    /// The maximum clock offset, and the maximum age of a request, with which a node votes.
    pub guard: Duration,
    /// Added to each TTL on the nodes, but not to the validity that a holder is promised.
    pub lock_delay: Duration,
    /// How long a node that lost its memory has no vote. See [`quarantine_for`].
    pub quarantine: Duration,
    /// How long an unused resource's fence counter is kept.
    pub fence_ttl: Duration,
    /// The names of locks.
    pub template: KeyTemplate,
}

impl ClusterParams {
    /// The configured terms.
    pub fn terms(&self) -> Terms {
        let template = Some(self.template.clone());
        Terms { guard: self.guard, lock_delay: self.lock_delay, fence_ttl: self.fence_ttl, template }
    }

    /// The name of a cluster that was declared with these nodes and the configured terms.
    pub(crate) fn declared_with<'a>(&self, names: impl IntoIterator<Item = &'a NodeId>) -> String {
        self.terms().cluster_name(&names.into_iter().map(NodeId::as_str).collect::<Vec<_>>(), "")
    }

    /// The parameters in this view: with its terms, if these were changed. In a view without a key template the configured one
    /// counts, which is the cluster's only if the view accepts the configuration: otherwise with the configured name, for which
    /// no node of the cluster votes (seed 74268 of the simulation).
    pub fn in_view(&self, view: &View) -> Cow<'_, Self> {
        let is_named = view.terms().is_some_and(|terms| terms.template.is_some());
        if !is_named && !self.cluster.is_accepted_in(view) && !mutant::is(Mutant::TemplateUnaccepted) {
            return Cow::Owned(Self { cluster: self.cluster.unlearned(), ..self.clone() });
        }
        let is_own = |terms: &Terms| {
            let periods = (self.guard, self.lock_delay, self.fence_ttl);
            (terms.guard, terms.lock_delay, terms.fence_ttl) == periods
                && terms.template.as_ref().is_none_or(|template| *template == self.template)
        };
        match view.terms().filter(|terms| !is_own(terms) && !mutant::is(Mutant::ConfiguredTerms)) {
            None => Cow::Borrowed(self),
            Some(Terms { guard, lock_delay, fence_ttl, template }) => {
                // A millisecond more than it can be: the length of a quarantine was rounded.
                let max_ttl = self.longest_ttl().saturating_add(Duration::from_millis(1));
                let quarantine = quarantine_for(max_ttl, *lock_delay, *guard);
                let (guard, lock_delay, fence_ttl, cluster) = (*guard, *lock_delay, *fence_ttl, self.cluster.clone());
                let template = template.as_ref().unwrap_or(&self.template).clone();
                Cow::Owned(Self { cluster, guard, lock_delay, quarantine, fence_ttl, template })
            }
        }
    }

    /// How long the tombstone of an attempt is kept: longer than an acquire can be late and still be accepted (`guard`, on
    /// a clock that may be off by `guard`).
    pub fn attempt_tombstone(&self) -> Duration {
        self.guard.saturating_mul(2).saturating_add(Duration::from_secs(1))
    }

    /// The longest `max_ttl` for which the quarantine is long enough.
    pub fn longest_ttl(&self) -> Duration {
        let padded = self.quarantine.saturating_sub(self.guard.saturating_mul(2)).as_millis();
        let lease_ms = u64::try_from(padded.saturating_mul(100) / 101).unwrap_or(u64::MAX);
        Duration::from_millis(lease_ms).saturating_sub(self.lock_delay)
    }
}

/// ⌈1.01·(max_ttl + lock_delay)⌉ + 2·guard: by then every lease that a node may have voted for has ended, with clock
/// rates up to 1 % apart.
pub fn quarantine_for(max_ttl: Duration, lock_delay: Duration, guard: Duration) -> Duration {
    let lease_ms = u64::try_from(max_ttl.saturating_add(lock_delay).as_millis()).unwrap_or(u64::MAX);
    let padded_ms = lease_ms.saturating_add(lease_ms.div_ceil(100));
    Duration::from_millis(padded_ms).saturating_add(guard.saturating_mul(2))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_quarantine_outlasts_the_longest_lease_by_a_percent_and_two_guards() {
        let q = quarantine_for(Duration::from_mins(5), Duration::from_secs(1), Duration::from_millis(500));
        assert_eq!(q, Duration::from_millis(301_000 + 3_010 + 1_000));
        let params = ClusterParams {
            cluster: ClusterName::from("c"),
            guard: Duration::from_millis(500),
            lock_delay: Duration::from_secs(1),
            quarantine: q,
            fence_ttl: Duration::from_mins(1),
            template: Default::default(),
        };
        assert_eq!(params.longest_ttl(), Duration::from_mins(5));
        let saturated = quarantine_for(Duration::MAX, Duration::MAX, Duration::ZERO);
        assert_eq!(saturated, Duration::from_millis(u64::MAX));
    }
}
