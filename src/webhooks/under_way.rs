//! The call-backs that are not accepted yet: how many go to each target, and when the next try of one is due.

use std::collections::HashMap;

use parking_lot::Mutex;

use crate::redlock::clock::BootTime;

/// The call-backs that are not accepted yet.
#[derive(Debug, Default)]
pub(super) struct UnderWay(Mutex<Entries>);

#[derive(Debug, Default)]
struct Entries {
    last_key: u64,
    /// The target's name, and when the next try is due; `None`: a try is under way, or waits for a slot.
    all: HashMap<u64, (String, Option<BootTime>)>,
}

/// Counts one call-back, until dropped.
pub(super) struct Counted<'a> {
    under_way: &'a UnderWay,
    key: u64,
}

impl UnderWay {
    pub(super) fn begin(&self, target: &str) -> Counted<'_> {
        let mut entries = self.0.lock();
        entries.last_key += 1;
        let key = entries.last_key;
        entries.all.insert(key, (target.to_owned(), None));
        Counted { under_way: self, key }
    }

    pub(super) fn len(&self) -> usize {
        self.0.lock().all.len()
    }

    /// How many call-backs go to this target, and when the first of those that pause is tried next.
    pub(super) fn of(&self, target: &str) -> (usize, Option<BootTime>) {
        let entries = self.0.lock();
        let its = || entries.all.values().filter(|(name, _)| name == target);
        (its().count(), its().filter_map(|(_, next)| *next).min())
    }
}

impl Counted<'_> {
    /// Sets when the call-back is tried next; `None`: it is tried now.
    pub(super) fn next_try(&self, at: Option<BootTime>) {
        if let Some((_, next)) = self.under_way.0.lock().all.get_mut(&self.key) {
            *next = at;
        }
    }
}

impl Drop for Counted<'_> {
    fn drop(&mut self) {
        self.under_way.0.lock().all.remove(&self.key);
    }
}
