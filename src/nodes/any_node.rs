//! One node type for both kinds, so that the layers above need no type parameter.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::Either;

use super::call_observer::NodeObserver;
use super::embedded::EmbeddedNode;
use super::redis::RedisNode;
use crate::protocol::{NodeResult, Request, RequestStamp};
use crate::redlock::answers::AnswerSlot;
use crate::redlock::clock::{Clock, SystemClock};
use crate::redlock::node::{Node, NodeDetails, OperatorFinding};
use crate::redlock::notifications::NotificationSource;
use crate::types::NodeId;

/// A node of either kind.
pub enum AnyNode {
    /// A Redis master. It notifies its observer itself.
    Redis(Arc<RedisNode>),
    /// A node in this process, and the observer of its calls.
    Embedded(Arc<EmbeddedNode<SystemClock>>, Arc<dyn NodeObserver>),
}

impl Node for AnyNode {
    fn id(&self) -> &NodeId {
        match self {
            Self::Redis(node) => node.id(),
            Self::Embedded(node, _) => node.id(),
        }
    }

    fn details(&self) -> NodeDetails {
        match self {
            Self::Redis(node) => {
                let report = node.report();
                let finding = |f: &super::redis::ServerFinding| OperatorFinding {
                    code: f.code(),
                    detail: f.sentence(),
                    removes_vote: f.removes_vote(),
                };
                let version = (!report.version.is_empty()).then_some(report.version);
                NodeDetails { version, findings: report.findings.iter().map(finding).collect() }
            }
            Self::Embedded(node, _) => NodeDetails {
                version: Some(concat!("embedded ", env!("CARGO_PKG_VERSION")).into()),
                findings: node.report().failure.map(|why| cannot_save(&why)).into_iter().collect(),
            },
        }
    }

    fn is_connected(&self) -> bool {
        match self {
            Self::Redis(node) => node.is_connected(),
            Self::Embedded(node, _) => node.is_connected(),
        }
    }

    fn reconnected(&self) -> impl Future<Output = ()> + Send {
        match self {
            Self::Redis(node) => Either::Left(node.reconnected()),
            Self::Embedded(node, _) => Either::Right(node.reconnected()),
        }
    }

    fn expect_answers_within(&self, timeout: Duration) {
        if let Self::Redis(node) = self {
            node.expect_answers_within(timeout);
        }
    }

    fn address(&self) -> Option<Arc<str>> {
        match self {
            Self::Redis(node) => node.address(),
            Self::Embedded(..) => None,
        }
    }

    fn syncs_each_write(&self) -> Option<bool> {
        match self {
            Self::Redis(node) => node.syncs_each_write(),
            Self::Embedded(..) => None,
        }
    }

    fn moved_to(&self) -> Option<Arc<str>> {
        match self {
            Self::Redis(node) => node.moved_to(),
            Self::Embedded(..) => None,
        }
    }

    fn move_to(&self, address: &str) -> bool {
        match self {
            Self::Redis(node) => node.move_to(address),
            Self::Embedded(..) => false,
        }
    }

    fn set_open(&self, is_open: bool) {
        if let Self::Redis(node) = self {
            node.set_open(is_open);
        }
    }

    fn notifications(&self) -> NotificationSource<'_> {
        match self {
            Self::Redis(node) => node.notifications(),
            Self::Embedded(node, _) => node.notifications(),
        }
    }

    fn call(
        self: Arc<Self>,
        stamp: RequestStamp,
        request: Arc<Request>,
    ) -> impl Future<Output = NodeResult> + Send + 'static {
        match self.as_ref() {
            Self::Redis(node) => Either::Left(Arc::clone(node).call(stamp, request)),
            Self::Embedded(node, observer) => {
                Either::Right(observed(Arc::clone(node), Arc::clone(observer), stamp, request))
            }
        }
    }

    fn hand_over(self: &Arc<Self>, slot: AnswerSlot) -> Result<(), AnswerSlot> {
        match self.as_ref() {
            Self::Redis(node) => node.hand_over(slot),
            Self::Embedded(..) => Err(slot),
        }
    }
}

/// The finding of an embedded node whose state file cannot be written. Its probes fail, so the finding need not remove its vote.
fn cannot_save(why: &str) -> OperatorFinding {
    let detail = format!(
        "The state file cannot be written ({why}), so the node grants and extends nothing: free the file system of data_dir, \
         or make it writable. It tries again each second."
    );
    OperatorFinding { code: "cannot-save", detail, removes_vote: false }
}

/// Calls the node and notifies the observer.
async fn observed(
    node: Arc<EmbeddedNode<SystemClock>>,
    observer: Arc<dyn NodeObserver>,
    stamp: RequestStamp,
    request: Arc<Request>,
) -> NodeResult {
    let (started, operation) = (SystemClock.now(), request.operation());
    let answer = Arc::clone(&node).call(stamp, request).await;
    let outcome = answer.as_ref().map(drop).map_err(|e| e.kind);
    let now = SystemClock.now();
    observer.calls_completed(node.id(), operation, (now, &[now.since(started)]), outcome);
    answer
}
