//! Which lock kept a request out, as the refusing nodes report it.

use std::time::Duration;

use super::quorum::Tally;
use crate::protocol::{LeaseRecord, Reply};

/// The lock that most refusing nodes report.
pub(super) struct Blocker {
    pub(super) record: Option<LeaseRecord>,
    is_shared: bool,
    pub(super) nodes: usize,
    pub(super) left: Option<Duration>,
}

impl Blocker {
    pub(super) fn most_common(tally: &Tally) -> Option<Self> {
        let mut groups: Vec<Self> = Vec::new();
        for (_, answer) in tally.received() {
            let (left_ms, record, is_shared) = match answer {
                Ok(Reply::Held { left_ms, record }) => (*left_ms, record.as_ref(), false),
                Ok(Reply::HeldByMembers(held)) => (Some(held.left_ms), held.members.first(), true),
                _ => continue,
            };
            let left = left_ms.map(Duration::from_millis);
            let same = |b: &&mut Self| {
                is_shared && b.is_shared
                    || is_shared == b.is_shared && b.record.as_ref().map(|r| &r.token) == record.map(|r| &r.token)
            };
            match groups.iter_mut().find(same) {
                Some(group) => {
                    group.nodes += 1;
                    group.left = group.left.max(left);
                    group.record = group.record.take().or(record.cloned());
                }
                None => groups.push(Self { record: record.cloned(), is_shared, nodes: 1, left }),
            }
        }
        groups.into_iter().max_by_key(|b| b.nodes)
    }
}
