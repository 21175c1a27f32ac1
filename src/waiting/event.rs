//! Input and output of the queue: a waiter's request, events, actions.

use std::sync::Arc;
use std::time::Duration;

use super::deadlock::{KnownHolder, Party, WaitEdge};
use crate::protocol::LeaseRecord;
use crate::redlock::acquire::{Refusal, RefusalKind};
use crate::redlock::clock::BootTime;
use crate::redlock::inspect::InspectionResult;
use crate::redlock::notifications::{LeaseTag, Notice};
use crate::types::{ResourceName, SlotSet, TokenHash};

pub use crate::types::{SlotChoice, WantedMode as Mode};

/// Names a waiter. Rises with the time since when it waits, over all queues of an instance.
pub type WaiterId = u64;

/// The queues that a request is in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Admission {
    /// At the end of the queue of each of its resources.
    Queued,
    /// Beside the queues: it asks at once and does not wait. Refused if there are waiters.
    Once,
    /// Beside the queues, ahead of all waiters: it has the token of the current lease, and can only join that.
    Passing,
}

/// What a waiter wants.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct WaitRequest {
    /// Distinct; all of them or none.
    pub resources: Arc<[ResourceName]>,
    /// How the leases are to share the resources.
    pub mode: Mode,
    /// The party in the search for deadlocks; `None`: not part of it.
    pub party: Option<Party>,
    /// The client's own token.
    pub token: Option<TokenHash>,
    /// No attempt starts later, except one at this instant.
    pub until: BootTime,
    /// Whether it waits.
    pub admission: Admission,
    /// It is refused when it is the newest in a deadlock; otherwise the deadlock is reported.
    pub refuses_deadlock: bool,
    /// Its note; for display only.
    pub note: Arc<str>,
    /// A ticket waits, and no connection; for display only.
    pub is_ticket: bool,
}

/// What the queue reacts to.
#[derive(Debug, Clone)]
pub enum WaitEvent {
    /// A request arrived that waits since then: before now, if it brings its place from another instance. Its number is above
    /// those of all that wait since earlier.
    Enqueue(WaiterId, WaitRequest, BootTime),
    /// A waiter has left, with or without its answer. Events about it are ignored from now on.
    Cancel(WaiterId),
    /// The caller of a waiter is absent, and its attempt has ended: it keeps its place, and others go first.
    Absent(WaiterId),
    /// Its caller has returned with a new request that waits until then. The former request's attempt has ended.
    Returned(WaiterId, BootTime),
    /// The attempt of a waiter has ended.
    AttemptFinished(WaiterId, AttemptOutcome),
    /// The nodes were asked about the leases of a cycle, see [`Action::CheckCycle`].
    CycleChecked {
        /// The waiter that asked.
        waiter: WaiterId,
        /// As the search had found it.
        cycle: Vec<WaitEdge>,
        /// A quorum has each of its leases.
        is_confirmed: bool,
        /// The caller may know of each lock in it; otherwise it is not refused.
        may_refuse: bool,
    },
    /// The time of [`Action::Arm`] has come.
    Timer(WaiterId),
    /// A lease of this instance is being released: what is sent from now on arrives after the release.
    ReleaseSent {
        /// The resource that becomes free.
        resource: ResourceName,
        /// The lease that is released.
        lease: LeaseTag,
        /// Whether other instances have waiters, where that was asked: see [`HandoverPlan`].
        others_wait: Option<bool>,
    },
    /// A lease of this resource has certainly ended. `None`: a lock of another client.
    LeaseEnded(ResourceName, Option<LeaseTag>),
    /// A lease of this resource may have ended, and no notice will follow.
    LeaseMayHaveEnded(ResourceName),
    /// The node with this index reported the end of a lease of this resource.
    Notice(ResourceName, usize, Notice),
    /// The node with this index confirmed the subscription to this resource.
    Subscribed(ResourceName, usize),
    /// These nodes vote, one bit each.
    List {
        /// Bit `i` stands for the node with index `i`.
        members: u64,
    },
    /// The connection for notices of a node was opened, with all its subscriptions, or lost.
    Connection {
        /// The node's index.
        node: usize,
        /// Whether it is open.
        is_up: bool,
    },
    /// A lease of this mode that was granted or extended here holds this resource until then (when its keys are gone),
    /// unless its end is reported.
    HeldUntil(ResourceName, BootTime, Mode),
}

/// The result of an attempt.
#[derive(Debug, Clone)]
pub enum AttemptOutcome {
    /// All resources are the waiter's.
    Granted {
        /// The lease's token.
        lease: TokenHash,
        /// The number of a permit, from 0.
        slot: Option<u8>,
        /// When its keys are gone from the nodes, if it is not extended.
        until: BootTime,
    },
    /// Others hold these resources, as far as the nodes answered.
    Held(Vec<Blocker>),
    /// Votes were split.
    Split,
    /// Too few nodes voted, or too slowly.
    NoQuorum,
    /// Every further attempt must fail too.
    Final,
    /// There was no lease of its own token to join.
    NotJoined,
}

/// What kept a waiter from a resource: one lease, or one of several that are held together.
#[derive(Debug, Clone)]
pub struct Blocker {
    pub resource: ResourceName,
    /// How it is shared by what holds it.
    pub mode: Mode,
    /// The lease; `None` for a foreign client's lock, and where nodes do not say.
    pub lease: Option<TokenHash>,
    /// Who holds it, where that is known.
    pub party: Option<Party>,
    /// The number of a permit, from 0.
    pub slot: Option<u8>,
    /// Of permits, the slots that no quorum of nodes has free.
    pub taken: SlotSet,
    /// A quorum of nodes has it.
    pub is_confirmed: bool,
    /// On a node it is the intent of another caller.
    pub is_intent: bool,
    /// The earliest time after which a quorum can be free.
    pub free_in: Option<Duration>,
}

impl AttemptOutcome {
    /// The event for a refused attempt. `party_of`: the holder, from its record.
    pub(super) fn of_refusal(
        refusal: &Refusal,
        quorum: usize,
        party_of: impl Fn(&LeaseRecord) -> Option<Party>,
    ) -> Self {
        let blockers = |refusal: &Refusal| {
            let blocker = |mode, record: Option<&LeaseRecord>| Blocker {
                resource: refusal.resource.clone(),
                mode,
                lease: record.map(|record| record.token.clone()),
                party: record.and_then(&party_of),
                slot: record.and_then(|record| record.mode.slot()),
                taken: refusal.taken,
                is_confirmed: refusal.holder_nodes >= quorum,
                is_intent: refusal.is_intent,
                free_in: refusal.free_in,
            };
            let members = refusal.members.iter().map(|record| blocker(record.mode.wanted(), Some(record)));
            let members: Vec<Blocker> = members.collect();
            match members.is_empty() {
                true => vec![blocker(Mode::Exclusive, refusal.holder.as_ref())],
                false => members,
            }
        };
        match refusal.kind {
            kind if kind.is_final() => Self::Final,
            RefusalKind::Held => {
                Self::Held(std::iter::once(refusal).chain(&refusal.others).flat_map(blockers).collect())
            }
            RefusalKind::Split => Self::Split,
            _ => Self::NoQuorum,
        }
    }
}

impl Blocker {
    /// The holder as the search for deadlocks knows it.
    pub(super) fn holder(&self) -> Option<KnownHolder> {
        Some(KnownHolder { party: self.party.clone()?, token: self.lease.clone()? })
    }
}

/// What a waiter leaves on the nodes, so that it is next.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Intent {
    /// What it waits for.
    pub resources: Arc<[ResourceName]>,
    /// How the leases are to share them.
    pub mode: Mode,
    /// When it began to wait.
    pub since: BootTime,
}

/// What the driver must do.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Action {
    /// Make an attempt for this waiter.
    Attempt {
        waiter: WaiterId,
        /// Only if the lease of its own token exists, which another request was granted.
        joins: bool,
        /// Which permits it may take.
        slots: SlotChoice,
    },
    /// For this waiter, the newest of the cycle: ask the nodes whether they have each of its leases.
    CheckCycle(WaiterId, Vec<WaitEdge>),
    /// The attempt of this waiter succeeded: answer.
    Grant(WaiterId),
    /// Answer this waiter that there is no lease.
    Refuse(WaiterId, RefuseReason),
    /// The nodes confirmed a deadlock whose newest waiter does not want to be refused.
    ReportDeadlock(Vec<WaitEdge>),
    /// Subscribe to the ends of this resource's leases on every node.
    Subscribe(ResourceName),
    /// End the subscriptions.
    Unsubscribe(ResourceName),
    /// Have the nodes admit nobody to these resources who would keep this waiter out, for a while; or again, where
    /// `is_withdrawn`.
    Intent {
        waiter: WaiterId,
        /// What it waits for.
        intent: Intent,
        /// The waiter has left: withdraw the intent.
        is_withdrawn: bool,
    },
    /// Send [`WaitEvent::Timer`] of this waiter then, instead of at the time before.
    Arm(WaiterId, BootTime),
}

/// Why a waiter has no lease.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum RefuseReason {
    /// Who refused its last attempt.
    LastAttempt,
    /// Its time was over before it was the first. The nodes may be asked for the holder now.
    TimedOut {
        /// Where it stood; 1 is the head.
        position: usize,
    },
    /// Its time was over before it could ask, since the maximum number of waiters were asking.
    NotAsked,
    /// It does not wait, and others do.
    OthersWait,
    /// So many wait already.
    QueueFull(QueueFull),
    /// It is the newest in a deadlock that the nodes confirmed.
    Deadlock(Vec<WaitEdge>),
}

/// A limit of waiters is reached.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct QueueFull {
    /// How many may wait.
    pub limit: usize,
    /// It is that of the resource, not the total.
    pub per_resource: bool,
}

/// How many may wait.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct WaitLimits {
    /// For one resource.
    pub per_resource: usize,
    /// For all resources together.
    pub total: usize,
    /// Whether deadlocks are searched for.
    pub detects_deadlocks: bool,
}

/// What a release that is about to be sent means for the waiters of this instance.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HandoverPlan {
    /// Nobody waits here.
    NoWaiters,
    /// The first may ask the nodes right after the release.
    WakeFirst,
    /// It may ask unless another instance has waiters: this one has had enough hand-overs in a row.
    AskForOthers,
}

/// A waiter as lists show it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WaiterEntry {
    /// The owner that it names.
    pub owner: Arc<str>,
    /// What it waits for.
    pub mode: Mode,
    /// When it began to wait.
    pub since: BootTime,
    /// When it gives up.
    pub until: BootTime,
    pub note: Arc<str>,
    /// A ticket waits, and no connection.
    pub is_ticket: bool,
}

/// Why a request has no lease.
pub(crate) enum WaitError {
    /// Its last attempt was refused.
    Refused(Refusal),
    /// It does not wait, and others do.
    OthersWait,
    /// So many wait already.
    QueueFull(QueueFull),
    /// Its time was over before it was the first.
    TimedOut {
        /// Where it stood; 1 is the head.
        position: usize,
        /// What the nodes then had of each resource of the request.
        inspected: Vec<InspectionResult>,
    },
    /// Its time was over before it could ask, since the maximum number of waiters were asking; who refused it before.
    NotAsked(Option<Refusal>),
    /// It is the newest in this deadlock, which the nodes confirmed.
    Deadlock(Vec<WaitEdge>),
    /// Another request has taken its place.
    Replaced,
    /// The place that it names is that of a request which differs in this field.
    Differs(&'static str),
}
