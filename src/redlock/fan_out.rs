//! Which nodes are asked first (`fan_out = quorum`, docs/performance.md, *Thrifty rounds*): a quorum of those that vote and are not
//! slow, in an order that follows from the resource's name, so that all instances ask the same nodes and the load is even.

use std::collections::HashSet;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;

use super::acquire::AcquireParams;
use super::clock::Clock;
use super::engine::Redlock;
use super::node::Node;
use super::quorum::{Tally, quorum_of};
use super::random::Entropy;
use crate::mutant::{self, Mutant};
use crate::protocol::{NodeResult, Reply};
use crate::types::{ResourceName, WantedMode};

/// The rest of the nodes is asked if the first ones have not decided within this time: some round trips to nodes nearby.
pub(super) const REST_AFTER: Duration = Duration::from_millis(5);
/// Maximum number of names of which is remembered that another Redlock client had a lock; beyond it, this counts for all names.
const FOREIGN_NAMES_MAX: usize = 16_384;

/// How many nodes an acquire asks at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum FanOut {
    /// All of them.
    #[default]
    All,
    /// A quorum, and the rest where that does not suffice, or when the lease has stood for a while.
    Quorum,
}

/// In which order nodes get a request.
#[derive(Debug, Clone)]
pub(super) struct Order {
    /// They get it at once.
    pub(super) first: Vec<usize>,
    /// They get it after [`REST_AFTER`], or when one of the first has not agreed.
    pub(super) rest: Vec<usize>,
}

impl Order {
    /// All at once.
    pub(super) fn all(nodes: Vec<usize>) -> Self {
        Self { first: nodes, rest: Vec::new() }
    }
}

/// The nodes that voted when they were last probed, and were not slow; one bit each. None before the first probe.
#[derive(Debug, Default)]
pub(super) struct ReadyNodes(AtomicU64);

impl ReadyNodes {
    /// Sets them, after a probe.
    pub(super) fn set(&self, nodes: u64) {
        self.0.store(nodes, Ordering::Relaxed);
    }
}

/// The names for which locks of other Redlock clients were seen. These clients count the vote of a node that forgot, so their
/// exclusion needs redlockd's leases on as many nodes as possible, at once.
#[derive(Debug, Default)]
pub(super) struct ForeignNames {
    any: AtomicBool,
    /// Hashes of the names: two names with one hash only cost requests.
    names: Mutex<HashSet<u64>>,
}

impl ForeignNames {
    /// Records that another client has, or had, a lock of this name.
    pub(super) fn add(&self, resource: &ResourceName) {
        let mut names = self.names.lock();
        if names.len() < FOREIGN_NAMES_MAX {
            names.insert(hash(resource.as_str()));
        }
        self.any.store(true, Ordering::Relaxed);
    }

    fn may_have(&self, resource: &ResourceName) -> bool {
        if !self.any.load(Ordering::Relaxed) {
            return false;
        }
        let names = self.names.lock();
        names.len() >= FOREIGN_NAMES_MAX || names.contains(&hash(resource.as_str()))
    }
}

impl<N: Node, C: Clock, E: Entropy> Redlock<N, C, E> {
    /// The order for an attempt's first round, which waits for answers for `timeout`. `None`: all at once. Only single exclusive
    /// leases are asked for in an order: shared leases, permits and sets agree on slots, fences and free names by what all nodes show.
    pub(super) fn acquire_order(&self, params: &AcquireParams, timeout: Duration) -> Option<Order> {
        let [resource] = &*params.resources else { return None };
        if self.settings.fan_out == FanOut::All || params.mode != WantedMode::Exclusive {
            return None;
        }
        let is_short = params.ttl.as_duration() < 3 * self.spread_after();
        if is_short
            || timeout < 2 * REST_AFTER
            || (self.foreign.may_have(resource) && !mutant::is(Mutant::ForeignIgnored))
        {
            return None;
        }
        let view = self.views.current();
        let quorum = quorum_of(self.size_in(&view));
        if !self.can_ask_in(&view) {
            return None;
        }
        let members = self.everyone();
        let mut first: Vec<usize> = members.iter().copied().filter(|i| self.is_ready(*i)).collect();
        if mutant::is(Mutant::HealthIgnored) {
            first.clone_from(&members);
        }
        if first.len() < quorum || members.len() == quorum {
            return None;
        }
        let name = hash(resource.as_str());
        first.sort_by_cached_key(|i| spread_bits(name ^ hash(self.nodes[*i].id().as_str())));
        first.truncate(quorum);
        let rest = members.into_iter().filter(|i| !first.contains(i)).collect();
        Some(Order { first, rest })
    }

    /// Remembers the name if another Redlock client has a lock on one of the nodes.
    pub(super) fn note_foreign(&self, params: &AcquireParams, tally: &Tally) {
        let is_foreign = |(_, a): (usize, &NodeResult)| matches!(a, Ok(Reply::Held { record: None, .. }));
        if let [resource] = &*params.resources
            && self.settings.fan_out == FanOut::Quorum
            && tally.received().any(is_foreign)
        {
            self.foreign.add(resource);
        }
    }

    /// Whether a node voted when it was last probed, was not slow, and is connected.
    pub(super) fn is_ready(&self, node: usize) -> bool {
        self.ready.0.load(Ordering::Relaxed) >> node & 1 == 1 && self.nodes[node].is_connected()
    }
}

/// FNV-1a: the same on all instances.
fn hash(text: &str) -> u64 {
    text.bytes().fold(0xcbf2_9ce4_8422_2325, |h, b| (h ^ u64::from(b)).wrapping_mul(0x0100_0000_01b3))
}

/// The finish of SplitMix64: each bit of the result depends on all of `bits`.
fn spread_bits(bits: u64) -> u64 {
    let bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    bits ^ (bits >> 31)
}

#[cfg(test)]
#[path = "fan_out_tests.rs"]
mod tests;
