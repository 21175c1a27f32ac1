//! The nodes that an instance knows, by an index that never changes: nodes that are added later get the next indexes,
//! and a node that left the list keeps its index.

use std::ops::Index;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

/// Maximum number of names that one process knows over its life. Sets of nodes are 64 bits.
pub const NODES_KNOWN_MAX: usize = 64;

/// The nodes by index.
#[derive(Debug)]
pub struct KnownNodes<N> {
    slots: Box<[OnceLock<Arc<N>>]>,
    len: AtomicUsize,
    /// The nodes that are connected to, one bit each.
    open: AtomicU64,
}

impl<N> KnownNodes<N> {
    /// The number of nodes.
    pub fn len(&self) -> usize {
        self.len.load(Ordering::Acquire)
    }

    /// Whether there are no nodes.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// All nodes by index, including nodes that left the list.
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = &Arc<N>> + ExactSizeIterator {
        (0..self.len()).map(|i| &self[i])
    }

    /// Adds a node; returns its index, or `None` if there are [`NODES_KNOWN_MAX`]. Has one caller at a time: the node monitor.
    pub(super) fn push(&self, node: Arc<N>) -> Option<usize> {
        let index = self.len();
        self.slots.get(index)?.set(node).ok()?;
        self.len.store(index + 1, Ordering::Release);
        self.set_open(index, true);
        Some(index)
    }

    /// The indexes of the nodes that are connected to.
    pub fn opened(&self) -> Vec<usize> {
        let open = self.open.load(Ordering::Acquire);
        (0..self.len()).filter(|i| open >> i & 1 == 1).collect()
    }

    /// Records whether a node is connected to.
    pub(super) fn set_open(&self, index: usize, is_open: bool) {
        let bit = 1 << index;
        match is_open {
            true => self.open.fetch_or(bit, Ordering::AcqRel),
            false => self.open.fetch_and(!bit, Ordering::AcqRel),
        };
    }
}

/// The set of the first `nodes` nodes.
pub(crate) fn first(nodes: usize) -> u64 {
    (0..nodes.min(NODES_KNOWN_MAX)).fold(0, |set, i| set | 1 << i)
}

impl<N> Index<usize> for KnownNodes<N> {
    type Output = Arc<N>;

    /// Panics beyond [`KnownNodes::len`].
    fn index(&self, index: usize) -> &Arc<N> {
        self.slots[index].get().expect("every slot below the length is set")
    }
}

impl<N> From<Vec<Arc<N>>> for KnownNodes<N> {
    fn from(nodes: Vec<Arc<N>>) -> Self {
        let len = AtomicUsize::new(nodes.len().min(NODES_KNOWN_MAX));
        let mut slots: Vec<OnceLock<Arc<N>>> = nodes.into_iter().map(OnceLock::from).collect();
        slots.resize_with(NODES_KNOWN_MAX, OnceLock::new);
        let open = first(len.load(Ordering::Relaxed)).into();
        Self { slots: slots.into(), len, open }
    }
}
