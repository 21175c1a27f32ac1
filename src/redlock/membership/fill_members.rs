//! What is filled of leases that are held together. A node gives each fence once, so a fence counts only if a quorum shows it for
//! one lease (`docs/views.md`, *What is filled*).

use super::fill_plan::{FillPlan, Shown, ShownToken};
use crate::mutant::{self, Mutant};
use crate::protocol::{FillEntry, LeaseRecord};
use crate::types::{Fence, Mode, ResourceName, TokenHash};

impl FillPlan {
    /// Leases that are held together: a copy of each that a quorum of others shows alike, else a block. `false`: no copy.
    pub(super) fn fill_members(
        &self,
        resource: &ResourceName,
        shown: &Shown,
        live: &[(&TokenHash, &ShownToken, String)],
        entries: &mut Vec<FillEntry>,
    ) -> bool {
        let copies: Vec<Option<LeaseRecord>> = live
            .iter()
            .map(|(token, of, claims)| {
                let record = self.agreed_member(shown, of)?;
                let is_supported = self.is_supported(resource, shown, token, of);
                is_supported.then(|| LeaseRecord { claims: claims.as_str().into(), ..record.clone() })
            })
            .collect();
        let modes: Vec<Mode> = copies.iter().flatten().map(|record| record.mode).collect();
        let fits = (0..modes.len()).all(|a| (0..a).all(|b| modes[a].is_compatible(modes[b])));
        if modes.is_empty() || !fits {
            return false;
        }
        for ((token, of, claims), copy) in live.iter().zip(copies) {
            let left_ms = self.left_ms(of, mutant::is(Mutant::CopySmallestTtl));
            entries.push(match copy {
                Some(record) => FillEntry::Copy { resource: resource.clone(), record, left_ms },
                None => self.block(resource, token, of, claims),
            });
        }
        true
    }

    /// The latest record; of a member with the fence that a quorum shows, else with none (0): the process keeps its own. One node
    /// alone may have given the highest, and a quorum the same number to another lease (seed 735646).
    pub(super) fn record_to_keep(&self, shown: &Shown, of: &ShownToken) -> Option<LeaseRecord> {
        let latest = of.keys.values().max_by_key(|record| record.recency())?;
        if latest.mode == Mode::Exclusive || mutant::is(Mutant::KeptFenceOfOne) {
            return Some(latest.clone());
        }
        let agreed = self.agreed_member(shown, of).cloned();
        Some(agreed.unwrap_or_else(|| LeaseRecord { fence: Fence(0), ..latest.clone() }))
    }

    /// The record of a member that a quorum of others shows alike: its fence counts as one that this process has given.
    fn agreed_member<'a>(&self, shown: &Shown, of: &'a ShownToken) -> Option<&'a LeaseRecord> {
        let alike = |record: &LeaseRecord| {
            let is_alike = |(node, other): &(&usize, &LeaseRecord)| {
                let is_same = (other.mode, other.fence) == (record.mode, record.fence);
                (is_same || mutant::is(Mutant::MembersNotCompared)) && !shown.blocked.contains(node)
            };
            of.keys.iter().filter(is_alike).count()
        };
        let members = of.keys.values().filter(|record| record.mode != Mode::Exclusive);
        members.filter(|record| alike(record) >= self.quorum).max_by_key(|record| record.recency())
    }
}
