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

/// Names a waiter. Numbers rise with the time since when waiters wait, over all queues of an instance.
pub type WaiterId = u64;

/// The queues that a request is in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Admission {
    /// At the end of the queue of each of its resources.
    Queued,
    /// Beside the queues: the request asks at once and does not wait. It is refused if there are waiters.
    Once,
    /// Beside the queues, ahead of all waiters: the request has the token of the current lease, and can only join that lease.
    Passing,
}

/// What a waiter wants.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct WaitRequest {
    /// The resources: distinct; all of them are granted, or none.
    pub resources: Arc<[ResourceName]>,
    /// How the leases may share the resources.
    pub mode: Mode,
    /// The party in the search for deadlocks; `None`: the waiter is not part of the search.
    pub party: Option<Party>,
    /// The client's own token.
    pub token: Option<TokenHash>,
    /// The last instant at which an attempt may start.
    pub until: BootTime,
    /// Whether and how the request waits.
    pub admission: Admission,
    /// Whether the waiter is refused when it is the newest in a deadlock; otherwise the deadlock is reported.
    pub refuses_deadlock: bool,
    /// The caller's note; for display only.
    pub note: Arc<str>,
    /// Whether a ticket waits, not a connection; for display only.
    pub is_ticket: bool,
}

/// What the queue reacts to.
#[derive(Debug, Clone)]
pub enum WaitEvent {
    /// A request arrived that waits since this time: before now, if it brings its place from another instance. Its
    /// number is above the numbers of all waiters that wait since earlier.
    Enqueue(WaiterId, WaitRequest, BootTime),
    /// A waiter has left, with or without its answer. Events about it are ignored from now on.
    Cancel(WaiterId),
    /// The caller of a waiter is absent, and the waiter's attempt has ended: it keeps its place, and others go first.
    Absent(WaiterId),
    /// The caller of a waiter has returned with a new request that waits until this time. The former request's attempt has ended.
    Returned(WaiterId, BootTime),
    /// The attempt of a waiter has ended.
    AttemptFinished(WaiterId, AttemptOutcome),
    /// A request beside the queues that did not enter was granted this lease, with this slot of a permit, whose keys are gone from the
    /// nodes at this time.
    GrantedBeside(WaitRequest, TokenHash, Option<u8>, BootTime),
    /// The nodes were asked about the leases of a cycle, see [`Action::CheckCycle`].
    CycleChecked {
        /// The waiter that asked.
        waiter: WaiterId,
        /// The cycle as the search found it.
        cycle: Vec<WaitEdge>,
        /// A quorum has each lease of the cycle.
        is_confirmed: bool,
        /// The caller may know of each lock in the cycle; otherwise its waiter is not refused.
        may_refuse: bool,
    },
    /// The time of [`Action::Arm`] has come.
    Timer(WaiterId),
    /// A release of this instance's lease is being sent: requests that are sent from now on arrive after the release.
    ReleaseSent {
        /// The resource that becomes free.
        resource: ResourceName,
        /// The lease that is released.
        lease: LeaseTag,
        /// Whether other instances have waiters, if that was asked: see [`HandoverPlan`].
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
    /// A lease of this mode, granted or extended here, holds this resource until this time (when its keys are gone),
    /// unless its end is reported.
    HeldUntil(ResourceName, BootTime, Mode),
}

/// The result of an attempt.
#[derive(Debug, Clone)]
pub enum AttemptOutcome {
    /// The waiter has all its resources.
    Granted {
        /// The lease's token.
        lease: TokenHash,
        /// The number of a permit, from 0.
        slot: Option<u8>,
        /// When the lease's keys are gone from the nodes, if it is not extended.
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
    /// There was no lease of the waiter's own token to join.
    NotJoined,
}

/// What blocked a waiter from a resource: one lease, or one of several that are held together.
#[derive(Debug, Clone)]
pub struct Blocker {
    pub resource: ResourceName,
    /// How the blocking lease shares the resource.
    pub mode: Mode,
    /// The lease; `None` for a foreign client's lock, and where nodes do not report it.
    pub lease: Option<TokenHash>,
    /// The holder, where it is known.
    pub party: Option<Party>,
    /// The number of a permit, from 0.
    pub slot: Option<u8>,
    /// For permits, the slots that are not free on any quorum of nodes.
    pub taken: SlotSet,
    /// A quorum of nodes has this lease.
    pub is_confirmed: bool,
    /// The blocker is the intent of another caller on a node.
    pub is_intent: bool,
    /// The earliest time after which a quorum can be free.
    pub free_in: Option<Duration>,
}

impl AttemptOutcome {
    /// The event for a refused attempt. `party_of` returns the holder that a record names.
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

/// What a waiter leaves on the nodes, so that it is served next.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Intent {
    /// The resources that the waiter waits for.
    pub resources: Arc<[ResourceName]>,
    /// How the leases may share the resources.
    pub mode: Mode,
    /// When the waiter began to wait.
    pub since: BootTime,
}

/// What the driver must do.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Action {
    /// Make an attempt for this waiter.
    Attempt {
        waiter: WaiterId,
        /// Whether the attempt only joins an existing lease of the waiter's own token, which another request was granted.
        joins: bool,
        /// Which permits the attempt may take.
        slots: SlotChoice,
    },
    /// For this waiter, the newest of the cycle: ask the nodes whether they have each lease of the cycle.
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
    /// Have the nodes admit, for a while, no caller to these resources who would block this waiter. With
    /// `is_withdrawn`, have them admit such callers again.
    Intent {
        waiter: WaiterId,
        /// The waiter's intent.
        intent: Intent,
        /// Whether to withdraw the intent, since the waiter has left.
        is_withdrawn: bool,
    },
    /// Send [`WaitEvent::Timer`] of this waiter at this time, instead of at the time set before.
    Arm(WaiterId, BootTime),
}

/// Why a waiter has no lease.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum RefuseReason {
    /// Its last attempt was refused.
    LastAttempt,
    /// Its wait deadline passed before it became the first. The nodes may be asked for the holder now.
    TimedOut {
        /// The waiter's position; 1 is the head.
        position: usize,
    },
    /// Its wait deadline passed before it could ask, since the maximum number of waiters were asking.
    NotAsked,
    /// It does not wait, and others do.
    OthersWait,
    /// The maximum number of waiters is reached.
    QueueFull(QueueFull),
    /// It is the newest in a deadlock that the nodes confirmed.
    Deadlock(Vec<WaitEdge>),
}

/// The limit of waiters that is reached.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct QueueFull {
    /// How many waiters the limit allows.
    pub limit: usize,
    /// Whether it is the limit of the resource, not of all resources together.
    pub per_resource: bool,
}

/// The limits of waiters.
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
    /// No waiter of this instance waits for the resource.
    NoWaiters,
    /// The first waiter may ask the nodes right after the release.
    WakeFirst,
    /// The first waiter may ask unless another instance has waiters: this one has had enough hand-overs in a row.
    AskForOthers,
}

/// A waiter as lists show it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WaiterEntry {
    /// The owner that the waiter names.
    pub owner: Arc<str>,
    /// How the lease may share the resource.
    pub mode: Mode,
    /// When the waiter began to wait.
    pub since: BootTime,
    /// When the waiter gives up.
    pub until: BootTime,
    pub note: Arc<str>,
    /// Whether a ticket waits, not a connection.
    pub is_ticket: bool,
}

/// Why a request has no lease.
pub(crate) enum WaitError {
    /// Its last attempt was refused.
    Refused(Refusal),
    /// It does not wait, and others do.
    OthersWait,
    /// The maximum number of waiters is reached.
    QueueFull(QueueFull),
    /// Its wait deadline passed before it became the first.
    TimedOut {
        /// The waiter's position; 1 is the head.
        position: usize,
        /// What the nodes then had for each resource of the request.
        inspected: Vec<InspectionResult>,
    },
    /// Its wait deadline passed before it could ask, since the maximum number of waiters were asking; with the last refusal.
    NotAsked(Option<Refusal>),
    /// It is the newest in this deadlock, which the nodes confirmed.
    Deadlock(Vec<WaitEdge>),
    /// Another request has taken its place.
    Replaced,
    /// The request names a place whose request differs in this field.
    Differs(&'static str),
}
