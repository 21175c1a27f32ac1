//! An attempt for several resources: one request for all of them. Its answers are evaluated for each resource as if
//! that resource had been requested alone.

use std::sync::Arc;

use super::acquire::{AcquireParams, Refusal, RefusalKind};
use super::cleanup::Withdrawal;
use super::clock::Clock;
use super::engine::Redlock;
use super::node::Node;
use super::quorum::Tally;
use super::random::Entropy;
use crate::protocol::{
    AcquireArgs, AcquireSetArgs, AcquireSharedArgs, NodeGrant, NodeResult, Reply, Request, TokenUse,
};
use crate::types::{AttemptId, Mode, WantedMode};

/// One resource is requested as usual, several by a separate kind of request. `mode`: of each lease, with a permit's slot.
pub(super) fn request_for(
    params: &AcquireParams,
    mode: Mode,
    attempt: AttemptId,
    labels: Arc<str>,
    token_use: TokenUse,
) -> Request {
    let (token, ttl) = (params.token.clone(), params.ttl);
    match &*params.resources {
        [resource] if mode != Mode::Exclusive => {
            let resource = resource.clone();
            Request::AcquireShared(AcquireSharedArgs { resource, token, mode, attempt, ttl, labels, proposed: None })
        }
        [resource] => {
            let resource = resource.clone();
            Request::Acquire(AcquireArgs { resource, token, attempt, ttl, labels, token_use })
        }
        _ => {
            let resources = Arc::clone(&params.resources);
            let is_shared = params.mode == WantedMode::Shared;
            Request::AcquireSet(AcquireSetArgs { resources, token, attempt, ttl, labels, is_shared })
        }
    }
}

/// The cancel of everything that an attempt took.
pub(super) fn withdrawal_of(params: &AcquireParams, attempt: &AttemptId) -> Withdrawal {
    let (resources, token) = (Arc::clone(&params.resources), params.token.clone());
    Withdrawal { resources, token, attempt: attempt.clone() }
}

/// The grant of the resource with this index in a node's answer.
pub(super) fn granted(answer: &NodeResult, index: usize) -> Option<NodeGrant> {
    match answer {
        Ok(Reply::Granted { fence, joined } | Reply::Admitted { fence, joined }) => {
            Some(NodeGrant { fence: *fence, joined: *joined })
        }
        Ok(Reply::SetGranted { leases }) => leases.get(index).copied(),
        _ => None,
    }
}

/// Whether the token held the resource with this index already.
pub(super) fn joined(answer: &NodeResult, index: usize) -> bool {
    granted(answer, index).is_some_and(|lease| lease.joined)
}

/// A node's answer to a set, as an answer for the resource with this index. `Missing`: it is free there, and was not taken.
fn answer_for(answer: &NodeResult, index: usize) -> NodeResult {
    match answer {
        Ok(Reply::SetRefused { refused }) => {
            let why = refused.iter().find(|(refused, _)| *refused == index).map(|(_, why)| why.clone());
            Ok(why.unwrap_or(Reply::Missing))
        }
        Ok(Reply::SetGranted { leases }) => match leases.get(index) {
            Some(NodeGrant { fence, joined }) => Ok(Reply::Granted { fence: *fence, joined: *joined }),
            None => answer.clone(),
        },
        other => other.clone(),
    }
}

/// The rank of a refusal: the lowest rank explains the most.
fn rank(kind: RefusalKind) -> u8 {
    match kind {
        kind if kind.is_final() => 0,
        RefusalKind::NoQuorum => 1,
        RefusalKind::Held => 2,
        _ => 3,
    }
}

impl<N: Node, C: Clock, E: Entropy> Redlock<N, C, E> {
    /// The refusal of a set: the first of the lowest rank, with the others that are held.
    pub(super) fn refusal(&self, params: &AcquireParams, tally: &Tally) -> Refusal {
        if let [resource] = &*params.resources {
            return self.refusal_of((resource, params.mode), tally, tally);
        }
        let each = params.resources.iter().enumerate();
        let each =
            each.map(|(index, name)| self.refusal_of((name, params.mode), &tally.map(|a| answer_for(a, index)), tally));
        let first = each.reduce(|mut first, mut next| {
            if rank(next.kind) < rank(first.kind) {
                std::mem::swap(&mut first, &mut next);
                first.others = std::mem::take(&mut next.others);
            }
            first.others.push(next);
            first
        });
        let mut first = first.expect("an acquire names at least one resource");
        first.others.retain(|other| other.kind == RefusalKind::Held);
        first
    }
}
