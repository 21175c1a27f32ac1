//! What a grant to one waiter, or to a request beside the queues, means for the waiters for the same resources.

use std::collections::VecDeque;

use super::deadlock::KnownHolder;
use super::event::{Action, Admission, Mode, WaitRequest, WaiterId};
use super::queue_state::{NEVER, Queue, QueuedWaiter, WaiterActivity};
use crate::mutant::{Mutant, is};
use crate::redlock::clock::BootTime;
use crate::types::TokenHash;

impl Queue {
    /// Removes a waiter that has a lease: the next waiter need not ask before the lease's end.
    pub(super) fn granted(&mut self, id: WaiterId, (lease, slot): (&TokenHash, Option<u8>), until: BootTime) {
        let Some(waiter) = self.remove(id) else { return };
        self.actions.push(Action::Grant(id));
        self.note_grant(&waiter, (lease, slot), until);
    }

    /// Informs the waiters for the same resources of a grant to a waiter that is not in the queues any more.
    pub(super) fn note_grant(
        &mut self,
        waiter: &QueuedWaiter,
        (lease, slot): (&TokenHash, Option<u8>),
        until: BootTime,
    ) {
        let WaitRequest { resources, mode, party, token, .. } = waiter.request.clone();
        for resource in resources.iter() {
            self.set_held(resource, until, mode);
            let Some(known) = self.resources.get_mut(resource) else { continue };
            let joins = token.as_ref().is_some_and(|token| self.tokens.contains_key(token));
            let order = if joins { known.order.clone() } else { VecDeque::new() };
            if waiter.request.admission == Admission::Queued && mode == Mode::Exclusive {
                known.filter.on_granted();
                // The waiters that are asking now were woken by the end that led to this grant.
                for id in self.head(resource) {
                    self.update(id, |other| {
                        if matches!(other.activity, WaiterActivity::Asking { .. }) {
                            (other.attempt_at, other.is_woken) = (NEVER, false);
                        }
                    });
                }
            }
            let holder = party.clone().map(|party| KnownHolder { party, token: lease.clone() });
            self.holder_granted(resource, (lease, slot), holder, mode);
            self.lead(resource, waiter);
            for id in order {
                let wants_it = |other: &QueuedWaiter| other.request.token == token;
                if self.waiters.get(&id).is_some_and(|other| wants_it(other)) {
                    self.update(id, |other| other.may_join = true);
                    self.proceed(id);
                }
            }
        }
        if !is(Mutant::GrantCallsNobody) {
            self.find_first(&resources);
        }
    }
}
