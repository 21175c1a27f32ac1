//! The view in which an instance asks for votes: the highest that it was shown.

use std::sync::Arc;

use parking_lot::RwLock;
use tokio::sync::Notify;

use crate::protocol::{NoVote, NodeInspection, NodeResult, NodeStatus, Reply, View, Vote};

/// The highest view that was seen.
#[derive(Debug, Default)]
pub(crate) struct CurrentView {
    view: RwLock<Arc<View>>,
    changed: Notify,
}

impl CurrentView {
    /// The view now; that with the id [`ViewId::NONE`](crate::protocol::ViewId::NONE) before any was seen.
    pub(crate) fn current(&self) -> Arc<View> {
        Arc::clone(&self.view.read())
    }

    /// Takes a view if it is a higher one. Returns whether it was.
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

    /// Takes a view whether or not it is a higher one. That is always safe, since each node votes in its own view alone; it is
    /// needed where every node that had a higher one forgot it.
    pub(crate) fn replace(&self, view: &Arc<View>) {
        *self.view.write() = Arc::clone(view);
    }

    /// Takes the view of a node that votes in a higher one.
    pub(crate) fn see(&self, answer: &NodeResult) {
        let Ok(reply) = answer else { return };
        if let Reply::NoVote(NoVote::OtherView { view })
        | Reply::Status(NodeStatus { vote: Vote::NoVote(NoVote::OtherView { view }), .. })
        | Reply::Inspected(NodeInspection { no_vote: Some(NoVote::OtherView { view }), .. }) = reply
        {
            self.take(view);
        }
    }

    /// Resolves once a higher view was taken. For one waiting task. Cancel: the wake-up is kept for the next wait.
    pub(crate) async fn changed(&self) {
        self.changed.notified().await;
    }
}
