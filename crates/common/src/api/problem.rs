//! Errors as problem documents (RFC 9457).

use serde::{Deserialize, Serialize};

use super::locks::{Holder, Quorum};
use super::sets::{BlockedBy, SetResult};

/// One node's vote in a round.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeVote {
    pub node: String,
    /// A stable identifier: `granted`, `held`, `timeout`, `quarantined`, …
    pub outcome: String,
    /// Remaining TTL of the key on the node. Milliseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub left_ms: Option<u64>,
    /// The `token_id` of the lease on the node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub holds: Option<String>,
    /// Time until the node's quarantine ends. Seconds, rounded up.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub seconds_left: Option<u64>,
}

/// One invalid field of the input.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FieldError {
    /// The field, parameter or header.
    pub field: String,
    /// What is wrong with it.
    pub detail: String,
}

/// An error (RFC 9457). The members after `instance` are extensions; `openapi.yaml` lists those of each problem.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, Default)]
pub struct ProblemDetails {
    /// `/problems/` and the slug.
    #[serde(rename = "type")]
    pub kind: String,
    /// The slug's title.
    pub title: String,
    pub status: u16,
    /// One sentence about this occurrence.
    pub detail: String,
    /// The request's id.
    pub instance: String,
    /// The other members.
    #[serde(flatten)]
    pub members: Members,
}

/// One owner of a deadlock waits for a lock that the next one holds.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeadlockEdge {
    /// The waiting owner.
    pub owner: String,
    /// The lock that it waits for.
    pub waits_for: String,
    /// The owner that holds it.
    pub held_by: String,
    /// The `token_id` of that lease.
    pub token_id: String,
}

/// A lock as Terraform and OpenTofu describe it, with their member names.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub struct LockInfo {
    /// The lock's id, which Terraform generates for each run.
    #[serde(rename = "ID")]
    pub id: String,
    /// The run's operation.
    pub operation: String,
    /// Terraform's free text about the operation.
    pub info: String,
    /// The user and the host of the run.
    pub who: String,
    /// The version of Terraform or OpenTofu.
    pub version: String,
    /// When Terraform asked for the lock, as RFC 3339.
    pub created: String,
    /// The path of the state.
    pub path: String,
}

/// Extension members of a [`ProblemDetails`]; absent if they do not apply.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, Default)]
#[serde(default)]
pub struct Members {
    /// The name of the lock.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub resource: Option<String>,
    /// `locked`: `held`, `foreign`, `lock-delay`. `lease-expired`: `expired`, `released`, `forced`, `unknown`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// The holders that the nodes named.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub holders: Option<Vec<Holder>>,
    /// `false` if there may be more holders than these: of many holders, a node names only some.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub holders_complete: Option<bool>,
    /// For a request for several locks: the locks that others hold.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub blocked_by: Option<Box<[BlockedBy]>>,
    /// For a request for several locks: the result of each.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub results: Option<Box<[SetResult]>>,
    /// Number of waiters at all instances.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub waiting: Option<usize>,
    /// Number of waiters at the answering instance.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub waiting_here: Option<usize>,
    /// How long the request waited. Milliseconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub waited_ms: Option<u64>,
    /// `draining`: the request's own id, for another instance, or for this one after its restart.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub wait_id: Option<String>,
    /// The request's last position in the queue; 1 is next.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub position: Option<usize>,
    /// Remaining validity of the lease. Milliseconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub valid_for_ms: Option<u64>,
    /// `keep-too-long`: how long the lease may still be kept. Milliseconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kept_for_ms: Option<u64>,
    /// `ticket-ended`: why it ended.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ended_by: Option<String>,
    /// `stale-fence`: the largest fence given.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub newest_fence: Option<u64>,
    /// `deadlock`: the cycle of owners, starting with this request's owner.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cycle: Option<Vec<DeadlockEdge>>,
    /// How many nodes granted, out of how many.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub quorum: Option<Quorum>,
    /// Each node's vote.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub nodes: Option<Vec<NodeVote>>,
    /// Time until the service is expected to be ready. Seconds, rounded up.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ready_in_seconds: Option<u64>,
    /// The limit that was reached; `limit-differs`: the present number of permits.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limit: Option<usize>,
    /// `mode-differs`: how the token's lease shares the lock.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mode: Option<String>,
    /// What the limit applies to: `resource` or `instance`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub scope: Option<String>,
    /// `forbidden`: the missing right.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub needed: Option<String>,
    /// The invalid fields.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub errors: Option<Vec<FieldError>>,
    /// Under `/terraform`: the lock that another run holds, in Terraform's members.
    #[serde(flatten, skip_serializing_if = "Option::is_none")]
    pub lock_info: Option<Box<LockInfo>>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn problem_reads_back_and_omits_absent_members() {
        let problem = ProblemDetails {
            kind: "/problems/lease-expired".into(),
            status: 410,
            members: Members { reason: Some("released".into()), ..Members::default() },
            ..ProblemDetails::default()
        };
        let json = serde_json::to_value(&problem).expect("plain data");
        assert_eq!(json.as_object().map(serde_json::Map::len), Some(6), "{json}");
        assert_eq!(serde_json::from_value::<ProblemDetails>(json).expect("reads back"), problem);
    }
}
