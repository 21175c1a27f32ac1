//! The page on which a user acquires a lock for a limited time, without a process that holds it.

use askama::Template;

use super::layout::Layout;
use crate::types::{NOTE_MAX_BYTES, ResourceName};

/// The form as sent; empty at first.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct TakeForm {
    /// The duration, as typed.
    pub kept_for: String,
    /// The end, as typed; one of the two fields is empty.
    pub until: String,
    pub note: String,
    /// Why the form was rejected, in sentences.
    pub errors: Vec<String>,
}

#[derive(Debug, Template)]
#[template(path = "take.html")]
pub(crate) struct TakePage {
    layout: Layout,
    resource: String,
    /// The maximum duration.
    longest: String,
    form: TakeForm,
}

impl TakePage {
    /// The maximum length of a note; a form counts characters.
    const NOTE_MAX: usize = NOTE_MAX_BYTES;

    /// `longest`: the setting `max_keep`.
    pub(crate) fn new(layout: Layout, resource: &ResourceName, longest: &str, form: TakeForm) -> Self {
        Self { layout, resource: resource.to_string(), longest: longest.to_owned(), form }
    }
}
