//! What the algorithm requires of a node: ordered requests and typed answers. Redis, embedded and
//! simulated nodes implement [`Node`] with the same meaning (`tests/contract.rs`).

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use super::notifications::NotificationSource;
#[cfg(doc)]
use crate::protocol::NoVote;
use crate::protocol::{NodeResult, Request, RequestStamp};
use crate::types::NodeId;

/// What is known of a node's server.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct NodeDetails {
    /// The server's version.
    pub version: Option<String>,
    /// What makes it unsuitable, or needs attention.
    pub findings: Vec<OperatorFinding>,
}

/// Something about a node that an operator should know.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OperatorFinding {
    /// A stable word, for scripts.
    pub code: &'static str,
    /// One sentence, with what to do.
    pub detail: String,
    /// It removes the node's vote.
    pub removes_vote: bool,
}

/// An independent master.
///
/// Ordering: requests for one resource take effect on the node in the order in which their futures
/// were first polled, for as long as the connection lives.
pub trait Node: Send + Sync + 'static {
    /// Its configured name.
    fn id(&self) -> &NodeId;

    /// What is known of its server, for operators. Costs no round trip.
    fn details(&self) -> NodeDetails {
        NodeDetails::default()
    }

    /// Whether a request can be sent now; else it fails at once. Costs no round trip.
    fn is_connected(&self) -> bool {
        true
    }

    /// Resolves when it was connected to after a time without a connection. For one waiting task. Cancel: the wake-up is kept for
    /// the next wait.
    fn reconnected(&self) -> impl Future<Output = ()> + Send {
        std::future::pending()
    }

    /// How long rounds wait for its answers now. A call that is dropped later counts as an error of the node.
    fn expect_answers_within(&self, _timeout: Duration) {}

    /// Where it connects to: `host:port`, or the path of a socket. `None`: that cannot be changed.
    fn address(&self) -> Option<Arc<str>> {
        None
    }

    /// The same, if it was moved since this instance was started.
    fn moved_to(&self) -> Option<Arc<str>> {
        None
    }

    /// Connects to this address from now on, with the configured user, password and certificates; what was open is closed.
    /// Returns whether it is an address.
    fn move_to(&self, _address: &str) -> bool {
        false
    }

    /// Whether it is to be connected to. One that left the list is not: what was open is closed.
    fn set_open(&self, _is_open: bool) {}

    /// How this instance receives the ends of leases there.
    fn notifications(&self) -> NotificationSource<'_> {
        NotificationSource::PollOnly
    }

    /// Sends the request once, without retries. A request that needs a vote is answered at once, unsent, where the process that
    /// answers under this name is not the one that the stamp's view names ([`NoVote::OtherProcess`]). From the first poll on
    /// the request may take effect, even if the future is dropped.
    ///
    /// Errors: [`Unreachable`](crate::protocol::Unreachable); at once where there is no connection. The per-node deadline is the
    /// caller's.
    /// Cancel: the request may have taken effect or may do so later; undo it with
    /// [`Request::Cancel`] or [`Request::Release`], which travel behind it.
    fn call(
        self: Arc<Self>,
        stamp: RequestStamp,
        request: Arc<Request>,
    ) -> impl Future<Output = NodeResult> + Send + 'static;
}
