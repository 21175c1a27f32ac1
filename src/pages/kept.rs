//! How pages say that the service keeps a lease: until when, and for whom.

use super::format;
use crate::manager::types::HolderInfo;

/// Until when the service renews a lease.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct KeptDetails {
    pub left: String,
    /// The same in milliseconds.
    pub left_ms: u64,
    /// The end, as RFC 3339.
    pub stamp: String,
    /// The end, as shown.
    pub moment: String,
    /// Who acquired it: at first what stands for the principal on the nodes, its name after [`Self::name`]. Empty without
    /// authentication.
    pub principal: String,
}

impl KeptDetails {
    /// Of this lease; `None` where it is not kept.
    pub(super) fn of(view: &HolderInfo) -> Option<Self> {
        view.kept_for.map(|left| Self {
            left: format::clock(left),
            left_ms: format::ms(left),
            stamp: format::stamp(view.labels.kept_until_ms),
            moment: format::moment(view.labels.kept_until_ms),
            principal: view.labels.principal.clone(),
        })
    }

    /// Puts the principal's name where a hash of it stood; its file may have been changed since.
    pub(super) fn name(&mut self, name_of: &impl Fn(&str) -> Option<String>) {
        if !self.principal.is_empty() {
            let unknown = || "a principal that is no longer in the access file".to_owned();
            self.principal =
                name_of(&self.principal).map_or_else(unknown, |name| format!("principal {}", format::visible(&name)));
        }
    }
}
