//! The view in which an instance requests votes: the highest view that it has received.

use std::collections::BTreeMap;
use std::sync::Arc;

use parking_lot::{Mutex, RwLock};
use tokio::sync::Notify;

use crate::protocol::{NoVote, NodeInspection, NodeResult, Reply, View, Vote};

/// The highest view that was seen, by a probe or in the answers of a quorum.
#[derive(Debug, Default)]
pub(crate) struct CurrentView {
    view: RwLock<Arc<View>>,
    /// The higher view that each node last showed instead of a vote, by node index.
    shown: Mutex<BTreeMap<usize, Arc<View>>>,
    changed: Notify,
}

impl CurrentView {
    /// The view now; before any was seen, the view with the id [`ViewId::NONE`](crate::protocol::ViewId::NONE).
    pub(crate) fn current(&self) -> Arc<View> {
        Arc::clone(&self.view.read())
    }

    /// Takes a view if it is higher. Returns whether it was.
    pub(crate) fn take(&self, view: &Arc<View>) -> bool {
        if view.id <= self.view.read().id || view.roster.is_empty() {
            return false;
        }
        let mut present = self.view.write();
        let is_higher = view.id > present.id;
        if is_higher {
            *present = Arc::clone(view);
            self.changed.notify_one();
        }
        is_higher
    }

    /// Takes a view, even a lower one. That is always safe, since each node votes only in its own view; it is needed
    /// if every node that had a higher view forgot it.
    pub(crate) fn replace(&self, view: &Arc<View>) {
        *self.view.write() = Arc::clone(view);
    }

    /// Records the view of a node that votes in a higher view. The view is taken when a quorum shows it: a single
    /// node may have made it up, and the next probe asks the others. From a view with a list the next probe decides on one without.
    pub(crate) fn see(&self, node: usize, answer: &NodeResult, quorum: usize) {
        let Ok(reply) = answer else { return };
        let view = match reply {
            Reply::NoVote(NoVote::OtherView { view })
            | Reply::Inspected(NodeInspection { no_vote: Some(NoVote::OtherView { view }), .. }) => view,
            Reply::Status(status) => match &status.vote {
                Vote::NoVote(NoVote::OtherView { view }) => view,
                _ => return,
            },
            _ => return,
        };
        let present = self.current();
        if view.id <= present.id || view.list.is_none() && present.list.is_some() {
            return;
        }
        let mut shown = self.shown.lock();
        shown.insert(node, Arc::clone(view));
        if shown.values().filter(|other| *other == view).count() >= quorum {
            shown.clear();
            self.take(view);
        }
    }

    /// Resolves once a higher view was taken. For one waiting task. Cancel: the wake-up is kept for the next wait.
    pub(crate) async fn changed(&self) {
        self.changed.notified().await;
    }
}
