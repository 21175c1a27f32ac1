//! What the algorithm requires of a node: ordered requests and typed answers. Redis, embedded and
//! simulated nodes implement [`Node`] with the same meaning (`tests/contract.rs`).

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use super::answers::AnswerSlot;
use super::notifications::NotificationSource;
#[cfg(doc)]
use crate::protocol::NoVote;
use crate::protocol::{NodeResult, Request, RequestStamp};
use crate::types::NodeId;

/// Facts about a node's server.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct NodeDetails {
    /// The server's version.
    pub version: Option<String>,
    /// Findings that make the server unsuitable, or need attention.
    pub findings: Vec<OperatorFinding>,
}

/// A fact about a node that an operator should know.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OperatorFinding {
    /// A stable word, for scripts.
    pub code: &'static str,
    /// One sentence, with what to do.
    pub detail: String,
    /// Whether it removes the node's vote.
    pub removes_vote: bool,
}

/// An independent master.
///
/// Ordering: requests for one resource take effect on the node in the order in which their futures
/// were first polled, for as long as the connection lives.
pub trait Node: Send + Sync + 'static {
    /// The configured name of the node.
    fn id(&self) -> &NodeId;

    /// Facts about the node's server, for operators. Costs no round trip.
    fn details(&self) -> NodeDetails {
        NodeDetails::default()
    }

    /// Whether a request can be sent now; otherwise it fails at once. Costs no round trip.
    fn is_connected(&self) -> bool {
        true
    }

    /// Resolves when the node was connected to after a time without a connection. For one waiting task. Cancel: the
    /// wake-up is kept for the next wait.
    fn reconnected(&self) -> impl Future<Output = ()> + Send {
        std::future::pending()
    }

    /// Whether the node's server syncs each write before it replies, as was read just now; `None`: not known.
    fn syncs_each_write(&self) -> Option<bool> {
        None
    }

    /// How long rounds now wait for the node's answers. A call that is dropped later counts as an error of the node.
    fn expect_answers_within(&self, _timeout: Duration) {}

    /// The node's address: `host:port`, or the path of a socket. `None`: the address cannot be changed.
    fn address(&self) -> Option<Arc<str>> {
        None
    }

    /// The address, if the node was moved since this instance was started.
    fn moved_to(&self) -> Option<Arc<str>> {
        None
    }

    /// Connects to this address from now on, with the configured user, password and certificates; open connections
    /// are closed. Returns whether the text is an address.
    fn move_to(&self, _address: &str) -> bool {
        false
    }

    /// Whether to connect to the node. Connections to a node that left the list are closed.
    fn set_open(&self, _is_open: bool) {}

    /// How this instance receives the ends of leases on the node.
    fn notifications(&self) -> NotificationSource<'_> {
        NotificationSource::PollOnly
    }

    /// Sends the request once, without retries. A request that needs a vote is answered at once, unsent, if the
    /// process under this name is not the process that the stamp's view names ([`NoVote::OtherProcess`]). From the
    /// first poll on the request may take effect, even if the future is dropped.
    ///
    /// Errors: [`Unreachable`](crate::protocol::Unreachable); at once if there is no connection. The caller enforces
    /// the per-node deadline.
    /// Cancel: the request may have taken effect or may do so later; undo it with [`Request::Cancel`] or
    /// [`Request::Release`], which arrive after it.
    fn call(
        self: Arc<Self>,
        stamp: RequestStamp,
        request: Arc<Request>,
    ) -> impl Future<Output = NodeResult> + Send + 'static;

    /// Sends the slot's request once, as [`Self::call`] at its first poll, and puts the answer into the slot. A node that does not
    /// take requests this way returns the slot, and is called.
    fn hand_over(self: &Arc<Self>, slot: AnswerSlot) -> Result<(), AnswerSlot> {
        Err(slot)
    }
}
