//! An independent node as the algorithm sees it: ordered requests and typed answers. Redis, embedded
//! and simulated nodes implement [`Node`]; the answers mean the same on each (`tests/contract.rs`).

use std::future::Future;
use std::sync::Arc;

use super::notifications::NotificationSource;
use crate::protocol::{NodeResult, Request, RequestTime};
use crate::types::NodeId;

/// What is known of the server behind a node, beside its votes.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct NodeDetails {
    /// The server's version.
    pub version: Option<String>,
    /// What makes it unfit, or worth a look.
    pub findings: Vec<OperatorFinding>,
}

/// Something about a node that an operator should know.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OperatorFinding {
    /// Stable word.
    pub code: &'static str,
    /// One sentence, with what to do.
    pub detail: String,
    /// It costs the node its vote.
    pub removes_vote: bool,
}

/// An independent master.
///
/// Ordering: requests for one resource take effect on the node in the order in which their futures
/// were first polled, for as long as the connection lives.
pub trait Node: Send + Sync + 'static {
    /// Its configured name.
    fn id(&self) -> &NodeId;

    /// What is known of the server behind it, for operators. Costs no round trip.
    fn details(&self) -> NodeDetails {
        NodeDetails::default()
    }

    /// How this instance hears of leases that end there. Without notices waiters look now and then.
    fn notifications(&self) -> NotificationSource<'_> {
        NotificationSource::PollOnly
    }

    /// Asks once; nothing is ever repeated in hiding. The future is first polled by the caller; from
    /// then on the request may take effect, whatever becomes of the future.
    ///
    /// Errors: [`Unreachable`]; at once where there is no connection. The per-node deadline is the
    /// caller's.
    /// Cancel: the request may have taken effect or may do so later; undo it with
    /// [`Request::Cancel`] or [`Request::Release`], which travel behind it.
    fn call(
        self: Arc<Self>,
        sent_at: RequestTime,
        request: Arc<Request>,
    ) -> impl Future<Output = NodeResult> + Send + 'static;
}
