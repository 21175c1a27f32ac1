//! One concrete type for whichever nodes are configured, so that nothing above carries a type
//! parameter for them.

use std::future::Future;
use std::sync::Arc;

use futures_util::future::Either;

use super::embedded::EmbeddedNode;
use super::redis::{NodeObserver, RedisNode};
use crate::protocol::{NodeResult, Request, RequestTime};
use crate::redlock::clock::{Clock, SystemClock};
use crate::redlock::node::{Node, NodeDetails, OperatorFinding};
use crate::redlock::notifications::NotificationSource;
use crate::types::NodeId;

/// A node of either kind.
pub enum AnyNode {
    /// A Redis master, which tells its observer itself.
    Redis(Arc<RedisNode>),
    /// In this process, with whom to tell of its answers.
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
            Self::Embedded(..) => {
                NodeDetails { version: Some(concat!("embedded ", env!("CARGO_PKG_VERSION")).into()), findings: vec![] }
            }
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
        sent_at: RequestTime,
        request: Arc<Request>,
    ) -> impl Future<Output = NodeResult> + Send + 'static {
        match self.as_ref() {
            Self::Redis(node) => Either::Left(Arc::clone(node).call(sent_at, request)),
            Self::Embedded(node, observer) => {
                Either::Right(observed(Arc::clone(node), Arc::clone(observer), sent_at, request))
            }
        }
    }
}

/// Tells the observer of a call that was completed.
async fn observed(
    node: Arc<EmbeddedNode<SystemClock>>,
    observer: Arc<dyn NodeObserver>,
    sent_at: RequestTime,
    request: Arc<Request>,
) -> NodeResult {
    let (begun, verb) = (SystemClock.now(), request.operation());
    let answer = Arc::clone(&node).call(sent_at, request).await;
    observer.call_completed(
        node.id(),
        verb,
        SystemClock.now().since(begun),
        answer.as_ref().map(drop).map_err(|e| e.kind),
    );
    answer
}
