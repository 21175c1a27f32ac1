//! Which domain error becomes which problem: the one place that maps the manager's errors to kinds, details and
//! extension members.

use std::time::Duration;

use axum::http::header;

use super::to_wire;
use crate::api;
use crate::auth::access_rule::Right;
use crate::duration::format_duration;
use crate::http::access::Access;
use crate::http::format::{ms, seconds_up};
use crate::http::problem::{Problem, RETRY_AFTER_MAX, etag};
use crate::http::problem_kind::ProblemKind;
use crate::manager::types::{
    AcquireError, AcquireRequest, CycleEdge, ExtendError, ForceError, GoneReason, GrantedLease, HeldReason,
    HeldRefusal, HeldResources, HolderInfo, NoQuorum, ReleaseError, mode_of, permits_free,
};
use crate::protocol::EndReason;
use crate::redlock::quorum::Verdict;
use crate::types::{Mode, ResourceName};

fn locked_members(kind: ProblemKind, locked: &HeldRefusal, detail: String) -> Problem {
    let resource = &locked.about.resource;
    let reason = match locked.reason {
        HeldReason::Lease => "held",
        HeldReason::Foreign => "foreign",
        HeldReason::LockDelay => "lock-delay",
    };
    Problem::new(kind, detail)
        .with(|m| {
            m.resource = Some(resource.to_string());
            m.reason = Some(reason.to_owned());
            m.holders = Some(locked.holders.iter().map(|holder| refusing_holder(holder, &locked.about)).collect());
            m.holders_complete = (!locked.about.all_named).then_some(false);
            m.waiting = Some(locked.waiting.saturating_add(locked.waiting_elsewhere));
            m.waiting_here = Some(locked.waiting);
            m.nodes = Some(locked.nodes.iter().map(to_wire::node_outcome).collect());
            let blocked_by = locked.about.blocked_by.iter().map(to_wire::blocked_by).collect::<Box<[_]>>();
            m.blocked_by = Some(blocked_by).filter(|blocked_by| !blocked_by.is_empty());
        })
        .retry_after(locked.free_in.unwrap_or(Duration::from_secs(RETRY_AFTER_MAX)))
}

/// The holder, with what the refusal knows about it.
fn refusing_holder(holder: &HolderInfo, about: &HeldResources) -> api::Holder {
    let mut holder = to_wire::holder(holder);
    holder.valid_for_ms = holder.valid_for_ms.filter(|_| about.ends_known);
    holder
}

/// The holder, as a sentence.
fn held_by(locked: &HeldRefusal) -> String {
    let resource = &locked.about.resource;
    match (locked.reason, locked.holders.first()) {
        (HeldReason::Lease, Some(holder)) if holder.mode != Mode::Exclusive => held_together(resource, locked),
        (HeldReason::Foreign, _) => format!("{resource} is held by another Redlock client"),
        (HeldReason::LockDelay, _) => {
            format!("the last lease of {resource} has expired, its safety margin has not")
        }
        (HeldReason::Lease, Some(holder)) => {
            let owner = Some(holder.labels.owner.as_str())
                .filter(|o| !o.is_empty())
                .unwrap_or("a holder without an owner label");
            match holder.is_confirmed {
                true => format!("{resource} is held by {owner} for {} s more", seconds_up(holder.valid_for)),
                false => format!("{resource} may be held by {owner}: fewer than a quorum of nodes confirm the lease"),
            }
        }
        // The lock may be free: another waiting request comes first.
        (HeldReason::Lease, None) => format!("other requests for {resource} wait and come first"),
    }
}

/// The leases that share the resource, as a sentence.
fn held_together(resource: &ResourceName, locked: &HeldRefusal) -> String {
    let (count, mode) = (locked.holders.len(), mode_of(&locked.holders));
    let at_least = if locked.about.all_named { "" } else { "at least " };
    let held = match (mode.limit(), permits_free(&locked.holders)) {
        (Some(limit), Some(0)) => format!("all {limit} permits of {resource} are held"),
        (Some(limit), _) => format!("permits of {resource} are held, {at_least}{count} of {limit}"),
        _ if count == 1 => format!("{resource} is held by a shared lease"),
        _ => format!("{resource} is held by {at_least}{count} shared leases"),
    };
    if locked.about.is_behind { format!("{held}, and other requests wait and come first") } else { held }
}

/// The detail of [`no_quorum`] if the holder cannot be read.
pub(crate) const HOLDER_UNKNOWN: &str = "the holder cannot be determined";

/// Too few votes. `consequence` begins the sentence.
pub(crate) fn no_quorum(consequence: &str, error: &NoQuorum) -> Problem {
    let count = error.quorum;
    too_few(format!("{consequence}: {} of {} nodes voted for it", count.granted, count.nodes), error)
}

/// Too few answers to a query. `consequence` begins the sentence.
pub(crate) fn unknown(consequence: &str, error: &NoQuorum) -> Problem {
    let answered = error.nodes.iter().filter(|node| matches!(node.verdict, Verdict::Granted)).count();
    too_few(format!("{consequence}: {answered} of {} nodes can say", error.quorum.nodes), error)
}

/// Too few answers to a query, if it is not known which nodes answered.
pub(crate) fn unanswered(consequence: &str, error: &NoQuorum) -> Problem {
    too_few(format!("{consequence}: too few of {} nodes could say", error.quorum.nodes), error)
}

fn too_few(sentence: String, error: &NoQuorum) -> Problem {
    let (count, reasons) = (error.quorum, &error.reasons);
    let and_why = if reasons.is_empty() { String::new() } else { format!("; {reasons}") };
    Problem::new(ProblemKind::QuorumUnavailable, format!("{sentence}, {} are needed{and_why}", count.needed))
        .with(|m| {
            m.quorum = Some(to_wire::quorum(count));
            m.nodes = Some(error.nodes.iter().map(to_wire::node_outcome).collect());
        })
        .retry_after(error.retry_after)
}

/// The instance is shutting down.
pub(crate) fn draining() -> Problem {
    Problem::new(
        ProblemKind::Draining,
        "this instance is shutting down: retry with another one, or with this one in a second",
    )
    .retry_after(Duration::ZERO)
    .closing()
}

/// The waiters of a deadlock, with the names that the client may read: a deadlock may pass through locks of others.
fn deadlock(resource: &ResourceName, cycle: &[CycleEdge], waited: Duration, access: &Access) -> Problem {
    let visible = || cycle.iter().filter(|edge| access.may(Right::Read, &edge.waits_for));
    let chain = visible().map(|edge| format!("{} waits for {}, held by {}", edge.owner, edge.waits_for, edge.held_by));
    let mut chain = chain.collect::<Vec<_>>();
    match cycle.len() - chain.len() {
        0 => {}
        hidden => chain.push(format!("and {hidden} more that you may not read")),
    }
    let detail = format!("this request would close a cycle of waiters: {}", chain.join("; "));
    Problem::new(ProblemKind::Deadlock, detail).with(|m| {
        m.resource = Some(resource.to_string());
        m.waited_ms = Some(ms(waited));
        m.cycle = Some(visible().map(Into::into).collect());
    })
}

/// A refused acquire. The answer shows only what `access` may read.
pub(crate) fn acquire(resource: &ResourceName, error: AcquireError, access: &Access) -> Problem {
    match error {
        AcquireError::Held(locked) => {
            let detail = held_by(&locked);
            locked_members(ProblemKind::Locked, &locked, detail)
        }
        AcquireError::WaitTimeout { held: locked, waited, position } => {
            let detail = format!("the wait timed out after {} ms: {}", ms(waited), held_by(&locked));
            locked_members(ProblemKind::WaitTimeout, &locked, detail).with(|m| {
                m.waited_ms = Some(ms(waited));
                m.position = Some(position);
            })
        }
        AcquireError::Deadlock { cycle, waited } => deadlock(resource, &cycle, waited, access),
        AcquireError::NoQuorum(error) => {
            no_quorum("the lock was not granted", &error).with(|m| m.resource = Some(resource.to_string()))
        }
        AcquireError::Ended(reason) => {
            let reason = match reason {
                EndReason::Released => GoneReason::Released,
                EndReason::Forced | EndReason::Revoked => GoneReason::Forced,
                EndReason::Cancelled => GoneReason::Unknown,
            };
            gone(resource, reason)
        }
        AcquireError::TooManyReplays => Problem::new(
            ProblemKind::QuotaExceeded,
            "this token was acquired again too often: use a new one for each acquire",
        )
        .retry_after(Duration::from_secs(RETRY_AFTER_MAX)),
        AcquireError::LimitDiffers(limit) => {
            let detail = format!("permits of {resource} are held with a limit of {limit}: ask for that, or later");
            Problem::new(ProblemKind::LimitDiffers, detail).with(|m| {
                m.resource = Some(resource.to_string());
                m.limit = Some(limit.get().into());
            })
        }
        AcquireError::ModeDiffers(mode) => mode_differs(resource, mode),
        AcquireError::TooManyWaiters { limit, per_resource } => {
            let scope = if per_resource { "resource" } else { "instance" };
            Problem::new(ProblemKind::TooManyWaiters, format!("{limit} requests already wait, the maximum per {scope}"))
                .with(|m| {
                    m.limit = Some(limit);
                    m.scope = Some(scope.to_owned());
                })
                .retry_after(Duration::ZERO)
        }
        AcquireError::TooManyKept(limit) => too_many_kept(limit),
        AcquireError::Draining { wait_id } => {
            draining().with(|m| m.wait_id = wait_id.map(|wait_id| wait_id.as_str().to_owned()))
        }
        AcquireError::Replaced => Problem::new(
            ProblemKind::WaitReplaced,
            "a later request with this wait_id has taken the place of this one in the queue",
        )
        .with(|m| m.resource = Some(resource.to_string())),
        AcquireError::OtherPlace(field) => Problem::invalid_field(
            field,
            "differs from the request whose place this wait_id names: repeat it, or choose another wait_id",
        ),
    }
}

fn mode_differs(resource: &ResourceName, mode: Mode) -> Problem {
    let held = match mode {
        Mode::Exclusive => "an exclusive lease".to_owned(),
        Mode::Shared => "a shared lease".to_owned(),
        Mode::Permit { limit, .. } => format!("one of {limit} permits"),
    };
    let detail = format!(
        "this token has {held} of {resource}: a repeated request must be the same one, and a new acquire \
                          needs a new token"
    );
    Problem::new(ProblemKind::ModeDiffers, detail).with(|m| {
        m.resource = Some(resource.to_string());
        m.mode = Some(mode.wanted().as_str().to_owned());
        m.limit = mode.wanted().limit().map(|limit| limit.get().into());
    })
}

/// `left`: for how long the lease may still be kept.
pub(crate) fn keep_too_long(max: Duration, left: Duration) -> Problem {
    let detail = match left < max {
        true => format!(
            "a lease is kept for at most {} after its grant: {} s are left",
            format_duration(max),
            left.as_secs()
        ),
        false => format!("a lease is kept for at most {}", format_duration(max)),
    };
    Problem::new(ProblemKind::KeepTooLong, detail).with(|m| m.kept_for_ms = Some(ms(left)))
}

fn too_many_kept(limit: usize) -> Problem {
    Problem::new(ProblemKind::QuotaExceeded, format!("this instance keeps {limit} leases already, its maximum"))
        .with(|m| {
            m.limit = Some(limit);
            m.scope = Some("instance".to_owned());
        })
        .retry_after(Duration::from_secs(RETRY_AFTER_MAX))
}

fn gone(resource: &ResourceName, reason: GoneReason) -> Problem {
    let cause = match reason {
        GoneReason::Expired => "it expired",
        GoneReason::Released => "it was released",
        GoneReason::Forced => "an operator ended it",
        GoneReason::Unknown => "the nodes have no record of it",
    };
    Problem::new(ProblemKind::LeaseExpired, format!("this token has no lease on {resource}: {cause}")).with(|m| {
        m.resource = Some(resource.to_string());
        m.reason = Some(reason.as_str().to_owned());
    })
}

fn not_holder(resource: &ResourceName) -> Problem {
    Problem::new(ProblemKind::NotHolder, format!("another token holds {resource}"))
        .with(|m| m.resource = Some(resource.to_string()))
}

/// The precondition names another holder than `current`, which is a tag.
pub(crate) fn changed(resource: &ResourceName, current: &str) -> Problem {
    let problem = Problem::new(ProblemKind::Changed, format!("{resource} has another holder now; nothing was done"))
        .with(|m| m.resource = Some(resource.to_string()));
    match etag(current) {
        Some(value) => problem.header(header::ETAG, value),
        None => problem,
    }
}

/// `If-None-Match` excludes the present lease.
pub(crate) fn excluded(resource: &ResourceName, current: &str) -> Problem {
    let detail = format!("{resource} is held by a lease that If-None-Match excludes; nothing was done");
    let problem = Problem::new(ProblemKind::Changed, detail).with(|m| m.resource = Some(resource.to_string()));
    match etag(current) {
        Some(value) => problem.header(header::ETAG, value),
        None => problem,
    }
}

/// The requested owner, if the client sent its own token: only such a token can be sent again.
pub(crate) fn asked_owner(request: &AcquireRequest) -> Option<Box<str>> {
    let owner = Some(request.labels.owner.as_str()).filter(|owner| request.token.is_some() && !owner.is_empty());
    owner.map(Box::from)
}

/// A token that was sent again under an owner other than the lease's; `None` for any other grant. The lease stays as it is.
pub(crate) fn other_owner(lease: &GrantedLease, asked: Option<&str>) -> Option<Problem> {
    let is_other =
        lease.replay && lease.labels.acquired_at_ms > 0 && asked.is_some_and(|owner| owner != lease.labels.owner);
    let detail = "is not the one that this token's lease was acquired with: a repeated request must be the same one, and a \
                  new acquire needs a new token";
    is_other.then(|| Problem::invalid_field("owner", detail))
}

/// Nobody holds the resource.
pub(crate) fn not_held(resource: &ResourceName) -> Problem {
    Problem::new(ProblemKind::NotHeld, format!("nobody holds {resource}"))
        .with(|m| m.resource = Some(resource.to_string()))
}

/// A lease whose end was not moved.
pub(crate) fn keep(error: ExtendError) -> Problem {
    match error {
        ExtendError::KeepTooLong { max, left } => keep_too_long(max, left),
        ExtendError::TooManyKept(limit) => too_many_kept(limit),
        _ => Problem::invalid_field("keep", "is not possible for this lease"),
    }
}

/// A refused extend.
pub(crate) fn extend(resource: &ResourceName, error: ExtendError) -> Problem {
    match error {
        ExtendError::NotHolder => not_holder(resource),
        ExtendError::Gone(reason) => gone(resource, reason),
        ExtendError::Changed { current } => changed(resource, &current.to_string()),
        ExtendError::Invalid(field, detail) => Problem::invalid_field(field, detail),
        ExtendError::KeepTooLong { max, left } => {
            keep_too_long(max, left).with(|m| m.resource = Some(resource.to_string()))
        }
        ExtendError::TooManyKept(limit) => too_many_kept(limit),
        ExtendError::NoQuorum { no_quorum: error, valid_for } => {
            let unknown = "it is unknown whether the lease was extended";
            let consequence = match valid_for {
                // Rounded as in `valid_for_ms`.
                Some(left) if ms(left) == 0 => {
                    format!("{unknown}, and its deadline has passed: stop what relies on it")
                }
                Some(left) if left.as_secs() == 0 => {
                    format!("{unknown}; its old deadline is valid for {} ms more", ms(left))
                }
                Some(left) => format!("{unknown}; its old deadline is valid for {} s more", left.as_secs()),
                None => format!("{unknown}; its old deadline is valid until it passes"),
            };
            no_quorum(&consequence, &error).with(|m| {
                m.resource = Some(resource.to_string());
                m.valid_for_ms = valid_for.map(ms);
            })
        }
    }
}

/// A refused release.
pub(crate) fn release(resource: &ResourceName, error: ReleaseError) -> Problem {
    match error {
        ReleaseError::NotHolder => not_holder(resource),
        ReleaseError::Gone(reason) => gone(resource, reason),
        ReleaseError::NoQuorum(error) => no_quorum(
            "released on the nodes that answered, retried on the others, and expired after its TTL at the latest",
            &error,
        )
        .with(|m| m.resource = Some(resource.to_string())),
    }
}

/// A refused forced end.
pub(crate) fn force(resource: &ResourceName, error: ForceError) -> Problem {
    match error {
        ForceError::NotHeld => not_held(resource),
        ForceError::Changed { current } => changed(resource, &current),
        ForceError::ForeignRevoke => {
            let detail = "another Redlock client's lock cannot be revoked: it renews without asking this service. \
                          `now` ends it, unsafely";
            Problem::invalid_field("force", detail)
        }
        ForceError::SeveralHolders(count) => {
            let detail = format!("is required: {count} leases hold {resource}, see its `holders`");
            Problem::invalid_field("token_id", detail)
        }
        ForceError::NoQuorum(error) => {
            no_quorum("the lock was not ended", &error).with(|m| m.resource = Some(resource.to_string()))
        }
    }
}

#[cfg(test)]
#[path = "refusals_tests.rs"]
mod tests;
