//! The names of locks on a reference node: the template by which it names its leases, and the lock keys under other names.

use std::collections::BTreeMap;

use super::locks::{LockKeys, TakenLock};
use super::memory::Memory;
use crate::protocol::keys::KeyTemplate;
use crate::types::ResourceName;

/// `redlockd:names`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::protocol) struct OwnNames {
    pub(in crate::protocol) template: KeyTemplate,
    /// Leases leave these names (`false`), or receive them.
    pub(in crate::protocol) moving: Option<bool>,
}

/// What the names of locks depend on.
#[derive(Debug, Clone, Default)]
pub(in crate::protocol) struct Names {
    /// `None` until the template is changed: as the sender of a request names locks.
    pub(in crate::protocol) own: Option<OwnNames>,
    /// `redlockd:moved:*`: leases between two names.
    pub(in crate::protocol) moved: LockKeys,
    /// The template of [`Memory::locks`].
    shown: Option<KeyTemplate>,
    others: BTreeMap<KeyTemplate, LockKeys>,
    /// See [`Self::forget`].
    has_former: bool,
}

impl Names {
    pub(in crate::protocol) fn set(&mut self, template: KeyTemplate, moving: Option<bool>) {
        self.own = Some(OwnNames { template, moving });
    }

    /// A process that is filled gets the template of its new view. Leases of its former life stay at their former names until their
    /// TTL, and count for nothing.
    pub(in crate::protocol) fn forget(&mut self, template: KeyTemplate) {
        self.has_former |= self.own.as_ref().is_none_or(|own| own.template != template);
        self.set(template, None);
    }

    /// Whether leases may be at names of a former life, or at names from before a change that this process does not know.
    #[cfg(test)]
    pub(super) fn has_former(&self) -> bool {
        self.has_former || self.own.is_none()
    }

    /// Whether leases have the names of this template, all of them.
    pub(in crate::protocol) fn are_of(&self, template: &KeyTemplate) -> bool {
        self.own.as_ref().is_none_or(|own| own.template == *template && own.moving.is_none())
    }

    /// Drops up to `limit` expired keys.
    pub(super) fn purge(&mut self, now_ms: u64, limit: usize) {
        self.moved.purge(now_ms, limit);
        self.others.values_mut().for_each(|keys| keys.purge(now_ms, limit));
        self.others.retain(|_, keys| keys.len() > 0);
    }

    /// The template of [`Memory::locks`] between requests.
    pub(super) fn resting(&self) -> Option<KeyTemplate> {
        self.own.as_ref().map(|own| own.template.clone()).or_else(|| self.shown.clone())
    }

    /// The lock keys that are not in [`Memory::locks`].
    #[cfg(test)]
    pub(super) fn elsewhere(&self) -> impl Iterator<Item = &LockKeys> {
        self.others.values().chain([&self.moved])
    }
}

impl Memory {
    /// Makes [`Self::locks`] the keys with the names of this template.
    pub(in crate::protocol) fn show(&mut self, template: &KeyTemplate) {
        let shown = self.names.shown.get_or_insert_with(|| template.clone());
        if shown != template {
            let hidden = std::mem::replace(shown, template.clone());
            let keys = self.names.others.remove(template).unwrap_or_default();
            self.names.others.insert(hidden, std::mem::replace(&mut self.locks, keys));
        }
    }

    /// Shows leases that are between two names among the others, as a request finds them that uses the process's own names.
    pub(super) fn lay_over(&mut self) -> Vec<(ResourceName, Option<TakenLock>)> {
        let mut names: Vec<ResourceName> = self.names.moved.iter(0).map(|(resource, ..)| resource.clone()).collect();
        names.sort_unstable();
        let lay = |resource: ResourceName| {
            let below = self.locks.take(&resource);
            if let Some(lock) = self.names.moved.take(&resource) {
                self.locks.give_back(&resource, lock);
            }
            (resource, below)
        };
        names.into_iter().map(lay).collect()
    }

    /// Undoes [`Self::lay_over`].
    pub(super) fn lift(&mut self, laid: Vec<(ResourceName, Option<TakenLock>)>) {
        for (resource, below) in laid {
            if let Some(lock) = self.locks.take(&resource) {
                self.names.moved.give_back(&resource, lock);
            }
            if let Some(lock) = below {
                self.locks.give_back(&resource, lock);
            }
        }
    }
}
