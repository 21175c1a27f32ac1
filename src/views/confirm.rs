//! The page that asks before a lease is ended: whose, what it means, and why. Its form carries the
//! tag of the holder that the operator sees, so that nobody else's lease is ended. Knows no request.

use askama::Template;

use super::format;
use super::layout::Layout;
use super::lock::{self, HolderDetails};
use crate::manager::types::{ForceMode, Inspection, LockState};

/// What was wrong with an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FormError {
    /// No reason was given.
    NoReason,
    /// It is longer than this. Bytes.
    LongReason(usize),
    /// The name that was typed is another one.
    OtherName,
    /// The form names no holder.
    NoTag,
    /// Somebody else has it by now.
    Changed,
    /// Nobody has it any more.
    NotHeld,
}

impl FormError {
    /// What to tell the operator.
    pub fn message(self) -> String {
        match self {
            Self::NoReason => "Say why: the reason goes into the record.".to_owned(),
            Self::LongReason(most) => format!("The reason is too long: at most {most} bytes are kept."),
            Self::OtherName => "The name that you typed is not the name of this lock.".to_owned(),
            Self::NoTag => "The form does not say whose lease is meant: load the page again.".to_owned(),
            Self::Changed => {
                "Somebody else holds it by now. Nothing was done: look at the present holder first.".to_owned()
            }
            Self::NotHeld => "Nobody holds it any more. Nothing was done.".to_owned(),
        }
    }
}

/// The operator's last answer, where it was refused.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RejectedForm {
    /// Of the holder that was seen then.
    pub tag: String,
    /// What was written as a reason.
    pub reason: String,
    /// What was wrong.
    pub errors: Vec<FormError>,
}

/// The page.
#[derive(Debug, Template)]
#[template(path = "confirm.html")]
pub struct ConfirmPage {
    layout: Layout,
    resource: String,
    is_now: bool,
    holder: Option<HolderDetails>,
    is_foreign: bool,
    foreign_left: String,
    tag: String,
    token: String,
    waiting: usize,
    rejected: RejectedForm,
}

impl ConfirmPage {
    /// About the holder that there is now. `token`: for the form.
    pub fn new(layout: Layout, mode: ForceMode, seen: &Inspection, token: String, rejected: RejectedForm) -> Self {
        let (held, foreign) = match &seen.state {
            LockState::Held(view) => (Some(lock::holder(view, 0)), None),
            LockState::Foreign { left, .. } => (None, Some(left.map(format::time))),
            LockState::Free => (None, None),
        };
        Self {
            layout,
            resource: seen.resource.to_string(),
            is_now: mode == ForceMode::Now,
            holder: held,
            is_foreign: foreign.is_some(),
            foreign_left: foreign.flatten().unwrap_or_default(),
            tag: seen.etag().unwrap_or_default(),
            token,
            waiting: seen.waiters.len(),
            rejected,
        }
    }

    /// Whether there is somebody to end, and the operator has seen who.
    fn can_go_on(&self) -> bool {
        let is_same = self.rejected.tag.is_empty() || self.rejected.tag == self.tag;
        !self.tag.is_empty() && is_same && (self.is_now || !self.is_foreign)
    }
}
