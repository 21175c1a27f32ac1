//! The channels on which nodes publish the ends of leases, and the queues' list of nodes. Both follow the nodes that
//! are added while the service runs.

use std::sync::{Arc, Weak};

use super::driver::{Shared, WaitDriver};
use super::event::WaitEvent;
use crate::redlock::clock::Clock;
use crate::redlock::engine::ListObserver;
use crate::redlock::node::Node;
use crate::redlock::notifications::{NotificationHandler, NotificationSource, Topic};
use crate::redlock::random::Entropy;
use crate::redlock::subscriptions::Subscriptions;

/// A reference to the queues that does not keep them alive.
pub(crate) struct WeakDriver<N, C, E>(Weak<Shared<N, C, E>>);

impl<N, C, E> WeakDriver<N, C, E> {
    /// The queues, if they are still there.
    pub(crate) fn upgrade(&self) -> Option<WaitDriver<N, C, E>> {
        self.0.upgrade().map(WaitDriver)
    }
}

impl<N: Node, C: Clock, E: Entropy> WaitDriver<N, C, E> {
    /// Sets an observer, which is called when nodes were added or the list has changed.
    pub(crate) fn observe_list(&self, observer: ListObserver) {
        self.0.engine.observe_list(observer);
    }

    /// A weak reference, for observers that the engine keeps.
    pub(crate) fn downgrade(&self) -> WeakDriver<N, C, E> {
        WeakDriver(Arc::downgrade(&self.0))
    }

    /// The channels of all nodes that have a channel.
    pub(crate) fn channels(&self) -> Vec<Arc<Subscriptions>> {
        self.0.channels.read().iter().flatten().cloned().collect()
    }
}

impl<N: Node, C: Clock, E: Entropy> Shared<N, C, E> {
    /// Receives the notices of nodes that were added, and reports to the queues which nodes vote.
    pub(super) fn follow_list(self: &Arc<Self>) {
        let handler = Arc::downgrade(self) as Weak<dyn NotificationHandler>;
        let mut state = self.state.lock();
        let known = self.channels.read().len();
        for (node, added) in self.engine.nodes.iter().enumerate().skip(known) {
            let channel = match added.notifications() {
                NotificationSource::Subscriptions(channel) => Some(Arc::clone(channel)),
                NotificationSource::PollOnly | NotificationSource::Local => None,
            };
            self.channels.write().push(channel.clone());
            let Some(channel) = channel else { continue };
            channel.add_handler(node, Weak::clone(&handler));
            if channel.is_connected() {
                self.handle_in(&mut state, WaitEvent::Connection { node, is_up: true });
            }
            for resource in state.queue.subscribed_to() {
                if channel.subscribe(&Topic::LeaseEnded(resource.clone())) {
                    self.handle_in(&mut state, WaitEvent::Subscribed(resource, node));
                }
            }
        }
        let members = self.engine.members();
        self.handle_in(&mut state, WaitEvent::List { members });
    }
}
