//! The requests to a node: one request is one atomic script there.

use std::sync::Arc;

use super::acquire::AcquireArgs;
use super::acquire_set::AcquireSetArgs;
use super::acquire_shared::AcquireSharedArgs;
use super::admin::ProbeArgs;
use super::delete_foreign::DeleteForeignArgs;
use super::downgrade::DowngradeArgs;
use super::fill::FillArgs;
use super::index::IndexArgs;
use super::intent::IntentArgs;
use super::kept::KeptArgs;
use super::list::ListArgs;
use super::read_all::ReadArgs;
use super::release::{CancelArgs, ReleaseArgs};
use super::rename::RenameArgs;
#[cfg(doc)]
use super::reply::Reply;
use super::restore::RestoreArgs;
use super::revoke::RevokeArgs;
use super::ticket::TicketArgs;
use super::ticket_exchange::TicketsArgs;
use super::update::UpdateArgs;
use super::view::{View, ViewId};
use super::view_change::AdmitArgs;
use super::waiters::WaitersArgs;
use crate::types::ResourceName;

/// A request to a node. Each is one atomic script there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Request {
    /// Take the resource if it is free, or join the lease that this token already has.
    /// Replies: [`Reply::Granted`], [`Reply::Held`], [`Reply::HeldByMembers`], [`Reply::ModeDiffers`], [`Reply::Ended`],
    /// [`Reply::TooManyClaims`], [`Reply::NoVote`].
    Acquire(AcquireArgs),
    /// Take a shared lease, or the permit with one slot, or join the one that this token already has.
    /// Replies: [`Reply::Admitted`], [`Reply::Held`], [`Reply::HeldByMembers`], [`Reply::ModeDiffers`], [`Reply::Ended`],
    /// [`Reply::TooManyClaims`], [`Reply::FenceTooFarAhead`], [`Reply::NoVote`].
    AcquireShared(AcquireSharedArgs),
    /// Make an exclusive lease a shared one. Replies: [`Reply::Downgraded`], [`Reply::Missing`], [`Reply::Other`],
    /// [`Reply::ModeDiffers`], [`Reply::Ended`], [`Reply::NoVote`].
    Downgrade(DowngradeArgs),
    /// Leave the intent of a caller that waits, or withdraw it. Replies: [`Reply::Intent`].
    Intent(IntentArgs),
    /// Take several resources with one token, or join the leases that it already has: all of them, or none.
    /// Replies: [`Reply::SetGranted`], [`Reply::SetRefused`], [`Reply::NoVote`].
    AcquireSet(AcquireSetArgs),
    /// Extend the lease of this token, edit its labels, or write its fence back. Never creates a lease, never revives
    /// one, never shortens what the node holds.
    /// Replies: [`Reply::Updated`], [`Reply::Missing`], [`Reply::Other`], [`Reply::Ended`], [`Reply::FenceTooFarAhead`],
    /// [`Reply::NoVote`] (a quarantined node has still extended the lease, but does not vote).
    Update(UpdateArgs),
    /// Repair: put a lease back where it is missing. Only after an extend that a quorum confirmed.
    /// Replies: [`Reply::Restored`], [`Reply::Other`], [`Reply::Ended`], [`Reply::FenceTooFarAhead`], [`Reply::NoVote`].
    Restore(RestoreArgs),
    /// Withdraw one attempt's claim; the lease ends with its last claim. Replies: [`Reply::Released`].
    Cancel(CancelArgs),
    /// End the lease of this token for good. Idempotent. Replies: [`Reply::Released`].
    Release(ReleaseArgs),
    /// Refuse further renewals. Replies: [`Reply::Revoked`], [`Reply::Missing`], [`Reply::Other`].
    Revoke(RevokeArgs),
    /// Delete a foreign client's lock if it still has this fingerprint. Replies: [`Reply::Released`].
    DeleteForeign(DeleteForeignArgs),
    /// Read what the node holds for one resource. Replies: [`Reply::Inspected`].
    Inspect { resource: ResourceName },
    /// Read a page of the held leases. Replies: [`Reply::Page`]. A lease may be on two pages; one that is held
    /// throughout is on at least one.
    List(ListArgs),
    /// Put leases into the index of held leases, which [`Self::List`] reads. Replies: [`Reply::Indexed`].
    Index(IndexArgs),
    /// Index leases that are to be kept, and read which of the kept leases are due. Replies: [`Reply::Kept`].
    Kept(KeptArgs),
    /// Publish the waiters of this instance, and read those of the others. Replies: [`Reply::Waiters`].
    Waiters(WaitersArgs),
    /// Read a ticket, or raise its state. Replies: [`Reply::Ticket`], [`Reply::NoVote`].
    Ticket(TicketArgs),
    /// Report which tickets this instance serves, and read those that no instance serves. Replies: [`Reply::Tickets`].
    Tickets(TicketsArgs),
    /// Read a page of all that a voting node knows: leases, foreign locks, blocks, tombstones. Replies:
    /// [`Reply::Knowledge`], [`Reply::NoVote`]. An entry that exists throughout is on at least one page.
    Read(ReadArgs),
    /// Fill a node without a vote with a page of other nodes' data. Replies: [`Reply::Filled`],
    /// [`Reply::FillOutOfOrder`], [`Reply::FillNotNeeded`], [`Reply::NoVote`].
    Fill(FillArgs),
    /// Give a page of a process's leases the names of the view's key template. Accepted by a process that has installed this view and
    /// is to be filled for it. Replies: [`Reply::Renaming`], [`Reply::Renamed`], [`Reply::NoVote`].
    Rename(RenameArgs),
    /// Read the state of the node itself, and leave notes for other instances. Fails on a node that cannot write.
    /// Replies: [`Reply::Status`].
    Probe(ProbeArgs),
    /// Declare a node that has never voted since it was blank part of a new cluster with this first view. Replies:
    /// [`Reply::Status`].
    Init { view: Arc<View> },
    /// Take the node's vote until every lease that it may have voted for has ended. Changes nothing else: a node keeps its
    /// cluster, since the order may come from an instance of another cluster. Refused if an instance other than `by` (see
    /// [`ProbeArgs`]) has witnessed within 2.5 s that the node's clock is right. Replies: [`Reply::Status`].
    Quarantine { by: Arc<str> },
    /// From now on, install no view below this one, nor be admitted in one. Accepted by a process that votes, in whatever view,
    /// or waits for a vote. Votes continue in the installed view. Replies: [`Reply::Member`].
    Promise { view: ViewId },
    /// Vote in this view from now on, and in no lower one. Accepted by a process that votes and that the view names, with its
    /// last admission. A process that votes in a lower view and is not named in this one loses its vote, as by
    /// [`Self::Quarantine`]. Replies: [`Reply::Member`].
    Install { view: Arc<View> },
    /// Give the vote in this view to a process that was filled for it. Replies: [`Reply::Member`].
    Admit(AdmitArgs),
}

impl Request {
    /// A probe that leaves no notes of an instance.
    pub fn probe() -> Self {
        Self::Probe(ProbeArgs::default())
    }

    /// An `Init` that names no process: for a node alone, without a view.
    pub fn init() -> Self {
        Self::Init { view: Arc::default() }
    }

    /// Whether the answer is, or stands for, a vote of the process that the request's view names.
    pub fn needs_vote(&self) -> bool {
        self.takes()
            || matches!(
                self,
                Self::Update(_) | Self::Restore(_) | Self::Inspect { .. } | Self::Read(_) | Self::Ticket(_)
            )
    }

    /// Whether the request changes who may hold a resource, so that it is sent only to the process that the view names.
    pub(crate) fn takes(&self) -> bool {
        matches!(self, Self::Acquire(_) | Self::AcquireSet(_) | Self::AcquireShared(_) | Self::Downgrade(_))
    }

    /// Whether the request is about process and list; it also goes to processes not yet, or no longer, in a list.
    pub fn is_of_membership(&self) -> bool {
        matches!(
            self,
            Self::Probe(_)
                | Self::Init { .. }
                | Self::Quarantine { .. }
                | Self::Promise { .. }
                | Self::Install { .. }
                | Self::Admit(_)
                | Self::Read(_)
                | Self::Fill(_)
                | Self::Rename(_)
        )
    }

    /// The operation's name in metrics and logs.
    pub fn operation(&self) -> &'static str {
        match self {
            Self::Acquire(_) => "acquire",
            Self::AcquireShared(_) => "acquire_shared",
            Self::Downgrade(_) => "downgrade",
            Self::Intent(_) => "intent",
            Self::AcquireSet(_) => "acquire_set",
            Self::Update(_) => "update",
            Self::Restore(_) => "restore",
            Self::Cancel(_) => "cancel",
            Self::Release(_) => "release",
            Self::Revoke(_) => "revoke",
            Self::DeleteForeign(_) => "delete_foreign",
            Self::Inspect { .. } => "inspect",
            Self::List(_) => "list",
            Self::Index(_) => "index",
            Self::Kept(_) => "kept",
            Self::Waiters(_) => "waiters",
            Self::Ticket(_) => "ticket",
            Self::Tickets(_) => "tickets",
            Self::Read(_) => "read",
            Self::Fill(_) => "fill",
            Self::Rename(_) => "rename",
            Self::Probe(_) => "probe",
            Self::Init { .. } => "init",
            Self::Quarantine { .. } => "quarantine",
            Self::Promise { .. } => "promise",
            Self::Install { .. } => "install",
            Self::Admit(_) => "admit",
        }
    }

    /// The resource that the request is about, the first one of several; `None` if it is about the node.
    pub fn resource(&self) -> Option<&ResourceName> {
        match self {
            Self::Acquire(AcquireArgs { resource, .. })
            | Self::AcquireShared(AcquireSharedArgs { resource, .. })
            | Self::Downgrade(DowngradeArgs { resource, .. })
            | Self::Intent(IntentArgs { resource, .. })
            | Self::Update(UpdateArgs { resource, .. })
            | Self::Restore(RestoreArgs { resource, .. })
            | Self::Cancel(CancelArgs { resource, .. })
            | Self::Release(ReleaseArgs { resource, .. })
            | Self::Revoke(RevokeArgs { resource, .. })
            | Self::DeleteForeign(DeleteForeignArgs { resource, .. })
            | Self::Inspect { resource } => Some(resource),
            Self::AcquireSet(AcquireSetArgs { resources, .. }) => resources.first(),
            Self::List(_)
            | Self::Index(_)
            | Self::Kept(_)
            | Self::Waiters(_)
            | Self::Ticket(_)
            | Self::Tickets(_)
            | Self::Read(_)
            | Self::Fill(_)
            | Self::Rename(_)
            | Self::Probe(_)
            | Self::Init { .. }
            | Self::Quarantine { .. }
            | Self::Promise { .. }
            | Self::Install { .. }
            | Self::Admit(_) => None,
        }
    }
}

/// Every name that [`Request::operation`] returns.
pub const OPERATIONS: [&str; 27] = [
    "acquire",
    "acquire_set",
    "acquire_shared",
    "downgrade",
    "intent",
    "update",
    "restore",
    "cancel",
    "release",
    "revoke",
    "delete_foreign",
    "inspect",
    "list",
    "index",
    "kept",
    "waiters",
    "ticket",
    "tickets",
    "read",
    "fill",
    "rename",
    "probe",
    "init",
    "quarantine",
    "promise",
    "install",
    "admit",
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_operation_is_listed_once() {
        let mut operations = OPERATIONS.to_vec();
        operations.sort_unstable();
        operations.dedup();
        assert_eq!(operations.len(), OPERATIONS.len());
        assert!(OPERATIONS.contains(&Request::probe().operation()));
    }
}
