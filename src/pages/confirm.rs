//! The page that asks for confirmation before an operator ends a lease. Its form contains the tag of the lease that the operator
//! sees, so that no other lease is ended.

use askama::Template;

use super::format;
use super::layout::Layout;
use super::lock::{self, HolderDetails};
use crate::manager::types::{ForceMode, HolderInfo, Inspection, LockState};
use crate::types::TokenId;

/// Why a submitted form was rejected.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum FormError {
    /// The reason is empty.
    NoReason,
    /// The reason is longer than this maximum. Units: bytes.
    ReasonTooLong(usize),
    /// The typed name is not that of the lock.
    WrongName,
    /// The form has no tag of a lease.
    NoTag,
    /// Another lease is active now.
    Changed,
    /// There is no lease any more.
    NotHeld,
}

impl FormError {
    /// The message for the operator.
    pub(crate) fn message(self) -> String {
        match self {
            Self::NoReason => "A reason is required: it is recorded in the audit log.".to_owned(),
            Self::ReasonTooLong(maximum) => format!("The reason is too long: at most {maximum} bytes are allowed."),
            Self::WrongName => "The name that you typed is not the name of this lock.".to_owned(),
            Self::NoTag => "The form does not say which lease is meant: load the page again.".to_owned(),
            Self::Changed => {
                "The lock has another holder now. Nothing was done: check the present holder first.".to_owned()
            }
            Self::NotHeld => "The lock is no longer held. Nothing was done.".to_owned(),
        }
    }
}

/// The operator's last form, if it was rejected.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct RejectedForm {
    /// The lease that the page is about, if there are several.
    pub lease: Option<TokenId>,
    /// Tag of the lease that the operator saw.
    pub tag: String,
    /// The reason as typed.
    pub reason: String,
    /// Empty if no form was rejected.
    pub errors: Vec<FormError>,
}

#[derive(Debug, Template)]
#[template(path = "confirm.html")]
pub(crate) struct ConfirmPage {
    layout: Layout,
    resource: String,
    is_now: bool,
    holder: Option<HolderDetails>,
    /// Further leases on the same lock.
    others: usize,
    is_foreign: bool,
    foreign_left: String,
    tag: String,
    waiting: usize,
    rejected: RejectedForm,
}

impl ConfirmPage {
    /// `inspection`: the present state of the lock.
    pub(crate) fn new(layout: Layout, mode: ForceMode, inspection: &Inspection, rejected: RejectedForm) -> Self {
        let foreign = match &inspection.state {
            LockState::Foreign { left, .. } => Some(left.map(format::time)),
            LockState::Held(_) | LockState::Free => None,
        };
        let holders = inspection.holders();
        let is_meant = |holder: &&HolderInfo| match &rejected.lease {
            Some(lease) => holder.token_id == *lease,
            None => holders.len() == 1 || holder.fence.to_string() == rejected.tag,
        };
        let meant = holders.iter().find(is_meant);
        let tag = match foreign {
            Some(_) => inspection.etag(),
            None => meant.map(|holder| holder.fence.to_string()),
        };
        Self {
            layout,
            resource: inspection.resource.to_string(),
            is_now: mode == ForceMode::Now,
            holder: meant.map(|view| lock::holder(view, 0)),
            others: holders.len() - usize::from(meant.is_some()),
            is_foreign: foreign.is_some(),
            foreign_left: foreign.flatten().unwrap_or_default(),
            tag: tag.unwrap_or_default(),
            waiting: inspection.waiting,
            rejected,
        }
    }

    /// Adds the name of the principal for which the lease is kept.
    #[must_use]
    pub(crate) fn naming_principals(mut self, name_of: impl Fn(&str) -> Option<String>) -> Self {
        self.holder.iter_mut().filter_map(|holder| holder.kept.as_mut()).for_each(|kept| kept.name(&name_of));
        self
    }

    /// Whether there is a lease to end, and the operator saw the same lease.
    fn can_confirm(&self) -> bool {
        let is_same = self.rejected.tag.is_empty() || self.rejected.tag == self.tag;
        !self.tag.is_empty() && is_same && (self.is_now || !self.is_foreign)
    }
}
