//! Positions, counts and lists of the waiters, for lists, pages and limits. Changes nothing.

use std::sync::Arc;

use super::event::{WaitLimits, WaitRequest, WaiterEntry, WaiterId};
use super::queue_state::{Queue, QueuedWaiter, Resource};
use crate::redlock::clock::BootTime;
use crate::types::{ResourceName, TokenHash};

impl Queue {
    /// The waiter's position: 1 is the head; for several resources the largest position. 1 for a waiter that is in no queue.
    pub fn position(&self, id: WaiterId) -> usize {
        let resources = self.waiters.get(&id).into_iter().flat_map(|waiter| waiter.request.resources.iter());
        let index = |r: &ResourceName| self.resources.get(r)?.order.binary_search(&id).ok();
        resources.filter_map(index).max().unwrap_or(0) + 1
    }

    /// The position in the resource's queue of the waiter whose own token is this one.
    pub fn position_of(&self, resource: &ResourceName, token: &TokenHash) -> Option<usize> {
        let order = &self.resources.get(resource)?.order;
        let has_token = |id| self.waiters.get(id).is_some_and(|waiter| waiter.request.token.as_ref() == Some(token));
        order.iter().position(has_token).map(|index| index + 1)
    }

    /// Whether this waiter still waits for the resource.
    pub fn waits(&self, resource: &ResourceName, id: WaiterId) -> bool {
        self.resources.get(resource).is_some_and(|known| known.order.binary_search(&id).is_ok())
    }

    /// The number of waiters for this resource.
    pub fn waiter_count(&self, resource: &ResourceName) -> usize {
        self.resources.get(resource).map_or(0, |known| known.order.len())
    }

    pub fn limits(&self) -> WaitLimits {
        self.settings.limits
    }

    /// The number of all waiters.
    pub fn total_waiters(&self) -> usize {
        self.queued
    }

    /// When the oldest waiter began to wait.
    pub fn oldest_since(&self) -> Option<BootTime> {
        self.waiters.values().find(|waiter| waiter.waits()).map(|waiter| waiter.since)
    }

    /// When the oldest ticket (`is_ticket`), or else the oldest waiter that is not a ticket, began to wait here.
    pub fn oldest_since_of(&self, is_ticket: bool) -> Option<BootTime> {
        let is_it = |waiter: &QueuedWaiter| waiter.waits() && waiter.request.is_ticket == is_ticket;
        self.waiters.values().find(|waiter| is_it(waiter)).map(|waiter| waiter.since)
    }

    /// Every resource with waiters, the number of waiters, and when the head began to wait.
    pub fn waiter_counts(&self) -> Vec<(ResourceName, usize, BootTime)> {
        let head = |known: &Resource| Some(self.waiters.get(known.order.front()?)?.since);
        let known = self.resources.iter().filter_map(|(resource, known)| Some((resource, known, head(known)?)));
        known.map(|(resource, known, since)| (resource.clone(), known.order.len(), since)).collect()
    }

    /// The waiters for a resource, head first.
    pub fn waiters_of(&self, resource: &ResourceName) -> Vec<WaiterEntry> {
        let order = self.resources.get(resource).into_iter().flat_map(|known| &known.order);
        order.filter_map(|id| self.waiters.get(id)).map(|waiter| entry(waiter)).collect()
    }

    /// All waiters with resource and position (1 is the head), the oldest first.
    pub fn all_waiters(&self) -> Vec<(ResourceName, usize, WaiterEntry)> {
        let mut all = Vec::with_capacity(self.queued);
        for (resource, known) in &self.resources {
            let waiters = known.order.iter().enumerate().filter_map(|(i, id)| Some((i, self.waiters.get(id)?)));
            all.extend(waiters.map(|(i, waiter)| (resource.clone(), i + 1, entry(waiter))));
        }
        all.sort_by(|a, b| (a.2.since, a.1, &a.0).cmp(&(b.2.since, b.1, &b.0)));
        all
    }
}

fn entry(waiter: &QueuedWaiter) -> WaiterEntry {
    let owner = waiter.request.party.as_ref().map_or("", |party| party.owner());
    let WaitRequest { mode, until, note, is_ticket, .. } = &waiter.request;
    let (owner, since, note) = (Arc::from(owner), waiter.since, Arc::clone(note));
    WaiterEntry { owner, mode: *mode, since, until: *until, note, is_ticket: *is_ticket }
}
