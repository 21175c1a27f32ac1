//! What is asked of a node: one request is one atomic script there.

use std::sync::Arc;
use std::time::Duration;

use super::record::LeaseRecord;
use crate::types::{AttemptId, Fence, ResourceName, TokenHash, Ttl};

/// The most attempts that may claim one lease: replays of one `POST`. More are refused.
pub const MAX_CLAIMS: usize = 16;
/// How long a release is remembered, so that a late duplicate of its acquire cannot come back.
pub const TOKEN_TOMBSTONE: Duration = Duration::from_secs(60);

/// When a request was sent, on the instance's stamp clock (see [`super::cluster_clock`]): microseconds
/// since 1970. Also the floor of the fences that the request may be given.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct RequestTime(pub u64);

/// Why a lease was ended for good; kept on the nodes for [`TOKEN_TOMBSTONE`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum EndReason {
    /// By its holder.
    Released,
    /// At once, by an operator.
    Forced,
    /// By an operator, when it ends: it may not be renewed any more.
    Revoked,
    /// One attempt, given up before it was granted.
    Cancelled,
}

impl EndReason {
    /// The word on the nodes.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Released => "released",
            Self::Forced => "forced",
            Self::Revoked => "revoked",
            Self::Cancelled => "cancelled",
        }
    }

    /// Reads the word from a node.
    pub fn parse(word: &str) -> Option<Self> {
        [Self::Released, Self::Forced, Self::Revoked, Self::Cancelled].into_iter().find(|r| r.as_str() == word)
    }
}

/// What is asked of a node. One request is one atomic script there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Request {
    /// Take the resource if it is free, or join the lease that this token already has.
    /// Answers: [`Reply::Granted`], [`Reply::Held`], [`Reply::Ended`], [`Reply::TooManyClaims`], [`Reply::NoVote`].
    Acquire { resource: ResourceName, token: TokenHash, attempt: AttemptId, ttl: Ttl, labels: Arc<str> },
    /// Extend, edit the labels, or write a fence back, where this token holds it. Never creates,
    /// never revives, never shortens what the node holds.
    /// Answers: [`Reply::Updated`], [`Reply::Missing`], [`Reply::Other`], [`Reply::Ended`], [`Reply::FenceTooFarAhead`],
    /// [`Reply::NoVote`] (a quarantined node has extended all the same, but does not vote).
    Update {
        resource: ResourceName,
        token: TokenHash,
        /// `None`: the lease's own TTL.
        ttl: Option<Ttl>,
        /// `None`: whichever the node has. Otherwise nodes below it are lifted to it.
        fence: Option<Fence>,
        /// Counts as a renewal (for people).
        renewal: bool,
        /// New labels, encoded.
        labels: Option<Arc<str>>,
    },
    /// Repair: put a lease back where it is missing. Only after an extend that has its quorum.
    /// Answers: [`Reply::Restored`], [`Reply::Other`], [`Reply::Ended`], [`Reply::FenceTooFarAhead`], [`Reply::NoVote`].
    Restore { resource: ResourceName, record: LeaseRecord, left_ms: u64 },
    /// Withdraw one attempt's claim; the lease goes when no claim is left.
    /// Answers: [`Reply::Released`].
    Cancel { resource: ResourceName, token: TokenHash, attempt: AttemptId },
    /// End the lease of this token for good. Idempotent. Answers: [`Reply::Released`].
    Release { resource: ResourceName, token: TokenHash, reason: EndReason },
    /// No further renewals. Answers: [`Reply::Revoked`], [`Reply::Missing`], [`Reply::Other`].
    Revoke { resource: ResourceName, token: TokenHash },
    /// Delete a foreigner's lock if it still has this fingerprint. Answers: [`Reply::Released`].
    DeleteForeign { resource: ResourceName, fingerprint: Arc<str> },
    /// Look. Answers: [`Reply::Inspected`].
    Inspect { resource: ResourceName },
    /// A page of the held leases. Answers: [`Reply::Page`]. A lease may be on two pages; one that is
    /// held throughout is on one at least.
    List { cursor: u64, count: u32 },
    /// State of the node itself. Answers: [`Reply::Status`].
    Probe,
    /// Declare a node that has never voted since it was blank part of a new cluster. Answers: [`Reply::Status`].
    Init,
    /// Take the node's vote until every lease it may have voted for is over; also hands the node to
    /// this instance's cluster fingerprint. Answers: [`Reply::Status`].
    Quarantine,
    /// Give the vote back to a node that has served its quarantine; `seed` is the highest fence of
    /// the others. Answers: [`Reply::Status`].
    Activate { seed: Fence },
}

impl Request {
    /// The verb, for metrics and logs.
    pub fn operation(&self) -> &'static str {
        match self {
            Self::Acquire { .. } => "acquire",
            Self::Update { .. } => "update",
            Self::Restore { .. } => "restore",
            Self::Cancel { .. } => "cancel",
            Self::Release { .. } => "release",
            Self::Revoke { .. } => "revoke",
            Self::DeleteForeign { .. } => "delete_foreign",
            Self::Inspect { .. } => "inspect",
            Self::List { .. } => "list",
            Self::Probe => "probe",
            Self::Init => "init",
            Self::Quarantine => "quarantine",
            Self::Activate { .. } => "activate",
        }
    }
}

/// Every verb that [`Request::operation`] can give.
pub const OPERATIONS: [&str; 13] = [
    "acquire",
    "update",
    "restore",
    "cancel",
    "release",
    "revoke",
    "delete_foreign",
    "inspect",
    "list",
    "probe",
    "init",
    "quarantine",
    "activate",
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_verb_is_listed_once() {
        let mut verbs = OPERATIONS.to_vec();
        verbs.sort_unstable();
        verbs.dedup();
        assert_eq!(verbs.len(), OPERATIONS.len());
        assert!(OPERATIONS.contains(&Request::Probe.operation()));
    }
}
