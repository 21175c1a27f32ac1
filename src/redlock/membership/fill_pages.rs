//! The pages in which a process is filled.

use crate::protocol::FillEntry;

/// Maximum number of entries of one page: a page occupies the process that is filled for at most two milliseconds.
pub(super) const PAGE_ENTRIES_MAX: usize = 250;
/// Bytes of values in one page after which the next page begins.
pub(super) const PAGE_BYTES_MAX: usize = 128 * 1024;

/// The entries in pages of bounded size, in this order.
pub(super) fn pages(entries: Vec<FillEntry>) -> Vec<Vec<FillEntry>> {
    let mut pages: Vec<Vec<FillEntry>> = vec![Vec::new()];
    let mut bytes = 0;
    for entry in entries {
        let size = match &entry {
            FillEntry::Copy { record, .. } | FillEntry::Keep { record, .. } => {
                record.labels.len() + record.claims.len()
            }
            FillEntry::Block { claims, .. } => claims.len(),
            FillEntry::Foreign { value, .. } => value.as_ref().map_or(0, |value| value.len()),
            FillEntry::Tombstone(_) => 0,
        };
        if pages.last().is_some_and(|page| page.len() >= PAGE_ENTRIES_MAX) || bytes + size > PAGE_BYTES_MAX {
            pages.push(Vec::new());
            bytes = 0;
        }
        bytes += size;
        if let Some(page) = pages.last_mut() {
            page.push(entry);
        }
    }
    pages
}
