//! Changes of the nodes by an operator: passed on to the node monitor.

use super::service::LockManager;
use super::types::NodeListState;
use crate::protocol::Terms;
use crate::redlock::clock::Clock;
use crate::redlock::monitor::{ForgetError, ListError, ReplaceError};
use crate::redlock::node::Node;
use crate::redlock::random::Entropy;
use crate::types::NodeId;

impl<N: Node, C: Clock, E: Entropy> LockManager<N, C, E> {
    /// The view of the nodes, and whether their list is being changed.
    pub fn node_list(&self) -> NodeListState {
        let view = Some(self.engine().view_number()).filter(|number| *number > 0);
        let (monitor, terms) = (&self.shared.monitor, self.terms());
        let own = self.engine().settings.params.terms();
        let template = terms.template.clone().filter(|template| own.template.as_ref() != Some(template));
        let other_terms = Some(Terms { template, ..terms.clone() }).filter(|_| terms != own);
        NodeListState { view, change: monitor.list_change(), other_terms, terms_change: monitor.terms_change() }
    }

    /// The terms in force.
    pub fn terms(&self) -> Terms {
        self.engine().terms()
    }

    /// Puts other terms in force: as [`crate::redlock::monitor::NodeMonitor::change_terms`].
    ///
    /// Errors and Cancel: the same.
    pub async fn change_terms(&self, terms: Terms) -> Result<(), ListError> {
        self.shared.monitor.change_terms(terms).await
    }

    /// Records an operator's report that a node has ended for good: as [`crate::redlock::monitor::NodeMonitor::forget`].
    ///
    /// Errors: [`ForgetError`].
    pub fn forget_node(&self, node: &NodeId) -> Result<(), ForgetError> {
        self.shared.monitor.forget(node)
    }

    /// Replaces a node by another server: as [`crate::redlock::monitor::NodeMonitor::replace`], and probes the nodes once more.
    ///
    /// Errors and Cancel: the same; during that probe the node is replaced already.
    pub async fn replace_node(&self, node: &NodeId, address: &str) -> Result<(), ReplaceError> {
        self.shared.monitor.replace(node, address).await?;
        self.shared.monitor.probe_all().await; // it is shown as it is now
        Ok(())
    }

    /// Adds a node to the list: as [`crate::redlock::monitor::NodeMonitor::add`].
    ///
    /// Errors and Cancel: the same.
    pub async fn add_node(&self, node: &NodeId, address: &str) -> Result<(), ListError> {
        self.shared.monitor.add(node, address).await
    }

    /// Removes a node from the list: as [`crate::redlock::monitor::NodeMonitor::remove`].
    ///
    /// Errors and Cancel: the same.
    pub async fn remove_node(&self, node: &NodeId) -> Result<(), ListError> {
        self.shared.monitor.remove(node).await
    }
}
