//! The last fences of resources on a reference node, in two generations; the reference of `fences.lua`.

use std::collections::BTreeMap;

use super::memory::PURGE_PER_REQUEST;
use crate::types::{Fence, ResourceName};

/// The last fence of each resource that had one in this generation or the previous one.
#[derive(Debug, Clone, Default)]
pub(in crate::protocol) struct Fences {
    current: BTreeMap<ResourceName, Fence>,
    before: BTreeMap<ResourceName, Fence>,
    /// Forgotten generations, which are dropped in steps: no request waits until a whole one is dropped.
    forgotten: Vec<BTreeMap<ResourceName, Fence>>,
}

impl Fences {
    /// The last known fence of a resource; 0: none.
    pub(in crate::protocol) fn last(&self, resource: &ResourceName) -> u64 {
        let of = |fences: &BTreeMap<ResourceName, Fence>| fences.get(resource).map_or(0, |fence| fence.0);
        of(&self.current).max(of(&self.before))
    }

    /// Stores the last fence of a resource.
    pub(in crate::protocol) fn keep(&mut self, resource: ResourceName, fence: Fence) {
        self.current.insert(resource, fence);
    }

    /// Forgets the fences of one resource.
    pub(in crate::protocol) fn remove(&mut self, resource: &ResourceName) {
        self.current.remove(resource);
        self.before.remove(resource);
    }

    /// Begins a generation: forgets the older one, or both.
    pub(in crate::protocol) fn begin_generation(&mut self, is_next: bool) {
        let current = std::mem::take(&mut self.current);
        self.forgotten.push(std::mem::replace(&mut self.before, current));
        if !is_next {
            self.forgotten.push(std::mem::take(&mut self.before));
        }
    }

    /// Drops a part of the forgotten fences.
    pub(in crate::protocol) fn purge(&mut self) {
        for _ in 0..PURGE_PER_REQUEST {
            let Some(last) = self.forgotten.last_mut() else { return };
            if last.pop_first().is_none() {
                self.forgotten.pop();
            }
        }
    }

    /// The number of fences in memory.
    pub(in crate::protocol) fn len(&self) -> usize {
        self.current.len() + self.before.len() + self.forgotten.iter().map(BTreeMap::len).sum::<usize>()
    }
}
