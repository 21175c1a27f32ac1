//! The protocol between an instance and a node: requests and replies, and one module per operation with its arguments, its
//! script for Redis and the script's reference implementation in Rust.

pub mod commands;
pub mod keys;
pub mod reference;

mod acquire;
mod acquire_set;
mod acquire_shared;
mod admin;
mod delete_foreign;
mod downgrade;
mod encoding;
mod fill;
mod index;
mod inspect;
mod intent;
mod kept;
mod list;
mod params;
mod read_all;
mod record;
mod release;
mod rename;
mod reply;
mod reply_reader;
mod request;
mod restore;
mod revoke;
mod script;
mod terms;
mod ticket;
mod ticket_exchange;
mod update;
mod view;
mod view_change;
mod waiters;

pub use acquire::{AcquireArgs, TokenUse};
pub use acquire_set::{AcquireSetArgs, SET_MAX};
pub use acquire_shared::AcquireSharedArgs;
pub use admin::ProbeArgs;
pub use delete_foreign::DeleteForeignArgs;
pub use downgrade::DowngradeArgs;
pub use fill::{FillArgs, FillEntry};
pub use index::{INDEX_MAX, IndexArgs};
pub use intent::{INTENT_TTL, IntentArgs};
pub use kept::{KEPT_PAGE_MAX, KEPT_PAUSE, KeptArgs, KeptPage};
pub use list::ListArgs;
pub use params::{ClusterName, ClusterParams, RequestStamp, RequestTime, TOKEN_TOMBSTONE, quarantine_for};
pub use read_all::{ReadArgs, ReadEntry, Tombstone};
pub use record::{LeaseRecord, MAX_CLAIMS, MAX_RENEWALS, MEMBERS_MAX, MEMBERS_SHOWN};
pub use release::{CancelArgs, ReleaseArgs};
pub use rename::RenameArgs;
pub use reply::*;
pub use request::{OPERATIONS, Request};
pub use restore::RestoreArgs;
pub use revoke::RevokeArgs;
pub use terms::{ChangedTerms, Terms};
pub(crate) use ticket::ticket_bytes;
pub use ticket::{
    StoredTicket, TICKET_MAX_BYTES, Ticket, TicketArgs, TicketBody, TicketCallback, TicketEnd, TicketHead, TicketId,
    TicketOrder, TicketPhase, TicketTerms,
};
pub use ticket_exchange::{
    NamedTicket, TICKET_PAUSE, TICKET_SERVED, TICKETS_DUE_MAX, TICKETS_PAGE_MAX, TicketsArgs, TicketsPage,
};
pub use update::{UpdateArgs, UpdateKind};
pub use view::{NodeList, OldList, RosterEntry, View, ViewId};
pub use view_change::AdmitArgs;
pub use waiters::{
    FIRST_WAITERS_MAX, InstanceName, ListedEntry, PublishedPlace, PublishedResource, PublishedWaiter,
    PublishedWaitersPage, WAITER_NOTE_MAX_BYTES, WAITERS_ENTRY_MAX_BYTES, WAITERS_TTL, WaitersArgs, WaitersEntry,
};
pub(crate) use waiters::{PLACE_TAG_BYTES, PLACES_MAX};
