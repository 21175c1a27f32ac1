//! How pages show that the service keeps a lease: the end, and the principal.

use super::format;
use crate::manager::types::HolderInfo;

/// The end up to which the service renews a lease.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct KeptDetails {
    pub left: String,
    /// `left` in milliseconds.
    pub left_ms: u64,
    /// The end, as RFC 3339.
    pub stamp: String,
    /// The end, as shown.
    pub moment: String,
    /// The principal that acquired the lease: first its hash, as on the nodes; after [`Self::name`] its name. Empty without
    /// authentication.
    pub principal: String,
}

impl KeptDetails {
    /// The details of this lease; `None` if it is not kept.
    pub(super) fn of(view: &HolderInfo) -> Option<Self> {
        view.kept_for.map(|left| Self {
            left: format::clock(left),
            left_ms: format::ms(left),
            stamp: format::stamp(view.labels.kept_until_ms),
            moment: format::moment(view.labels.kept_until_ms),
            principal: view.labels.principal.clone(),
        })
    }

    /// Replaces the hash by the principal's name; the access file may have changed since.
    pub(super) fn name(&mut self, name_of: &impl Fn(&str) -> Option<String>) {
        if !self.principal.is_empty() {
            let unknown = || "a principal that is no longer in the access file".to_owned();
            self.principal =
                name_of(&self.principal).map_or_else(unknown, |name| format!("principal {}", format::visible(&name)));
        }
    }
}
