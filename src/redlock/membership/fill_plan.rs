//! What is filled into a process that forgot: a pure function of what the others show (`docs/views.md`, *What is
//! filled*). A copy counts like a vote, so a lease is copied only if a quorum of others shows it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use super::fill_pages::pages;
use crate::mutant::{self, Mutant};
use crate::protocol::{EndReason, FillEntry, LeaseRecord, ReadEntry, TOKEN_TOMBSTONE, Tombstone};
use crate::redlock::quorum::{more_than_a_minority, quorum_of};
use crate::types::{AttemptId, Fence, Mode, ResourceName, TokenHash};

/// Allowance for clock rates: a node may count slower by one part in this many, and by the milliseconds below.
const DRIFT_PART: u64 = 100;
const DRIFT_FLOOR_MS: u64 = 2;
/// Maximum lifetime left, whatever a node reports: the largest `max_ttl` and `lock_delay` possible, and the allowance.
const LEFT_MAX_MS: u64 = 50 * 60 * 60 * 1_000;
/// By how much a lease's fence, which is at least the time of its request, must lie before a tombstone for the
/// tombstone to be that lease's: more than the clocks of voting nodes differ, and more than a minute's difference of
/// rates. A token may be used again when its tombstones are over, and they do not end everywhere at once.
const TOMBSTONE_MARGIN: Duration = Duration::from_secs(3);

/// What was read so far. Nodes are numbered as in the list.
#[derive(Debug)]
pub(crate) struct FillPlan {
    pub(super) quorum: usize,
    /// How many others must be read completely.
    least: usize,
    /// Set for a change of the list, see [`Self::for_change`].
    change: Option<bool>,
    /// By how much each lease becomes longer, see [`Self::lengthened`]. Milliseconds.
    longer_ms: u64,
    /// How many nodes must show a tombstone before it removes anything: more than a minority, which may lie.
    witnesses: usize,
    target: usize,
    without_ttl_ms: u64,
    seed: Fence,
    complete: BTreeSet<usize>,
    /// Tombstones, each with the node that shows it.
    ended: BTreeMap<(ResourceName, TokenHash), Vec<(usize, Ended)>>,
    /// The nodes that show a cancelled attempt, and the longest remaining lifetime.
    cancelled: BTreeMap<(ResourceName, TokenHash, AttemptId), (BTreeSet<usize>, u64)>,
    resources: BTreeMap<ResourceName, Shown>,
}

/// The tombstone of a token.
#[derive(Debug, Clone, Copy)]
struct Ended {
    reason: EndReason,
    left_ms: u64,
    /// When the tombstone was made, by the clock of its node. Microseconds since 1970.
    made_us: u64,
}

/// Everything that is written into the process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Fill {
    /// Every later fence of the process must be above this one: the highest that was read.
    pub(crate) seed: Fence,
    /// The entries, in at least one page.
    pub(crate) pages: Vec<Vec<FillEntry>>,
}

/// What the nodes show for one resource.
#[derive(Debug, Default)]
pub(super) struct Shown {
    tokens: BTreeMap<TokenHash, ShownToken>,
    /// Nodes that have a block.
    pub(super) blocked: BTreeSet<usize>,
    foreign: Option<(Option<Arc<[u8]>>, u64)>,
}

/// What the nodes show for one token. Lifetimes in milliseconds, by the clock of the node that was read.
#[derive(Debug, Default)]
pub(super) struct ShownToken {
    /// The lock's value, by node.
    pub(super) keys: BTreeMap<usize, LeaseRecord>,
    /// Claims in blocks.
    claims: Vec<Arc<str>>,
    /// All lifetimes of keys and blocks.
    lefts_ms: Vec<u64>,
}

impl FillPlan {
    /// A plan to fill the node `target` of `nodes` from a quorum of others. A key without a TTL counts as if it
    /// lasted for `without_ttl`.
    pub(crate) fn new(nodes: usize, target: usize, without_ttl: Duration) -> Self {
        let quorum = quorum_of(nodes);
        Self {
            quorum,
            least: quorum,
            change: None,
            longer_ms: 0,
            witnesses: if mutant::is(Mutant::TombstoneOfOneNode) { 1 } else { more_than_a_minority(nodes) },
            target,
            without_ttl_ms: u64::try_from(without_ttl.as_millis()).unwrap_or(u64::MAX),
            seed: Fence(0),
            complete: BTreeSet::new(),
            ended: BTreeMap::new(),
            cancelled: BTreeMap::new(),
            resources: BTreeMap::new(),
        }
    }

    /// If fewer than a quorum vote, only these few need to be read. A copy still needs a quorum.
    pub(crate) fn of_at_least(mut self, least: usize) -> Self {
        self.least = least;
        self
    }

    /// During a change of the list nothing is copied: a process of both lists (`keeps`: the target is one) keeps the keys of
    /// tokens that a quorum of the old list shows, and gets blocks for everything else.
    pub(crate) fn for_change(mut self, keeps: bool) -> Self {
        self.change = Some(keeps);
        self
    }

    /// The lock delay becomes larger by this: every lease gets it, also those that only the target knows. A larger guard
    /// allows that clocks differ by more than the former delay covers.
    pub(crate) fn lengthened(mut self, by: Duration) -> Self {
        let by_ms = u64::try_from(by.as_millis()).unwrap_or(u64::MAX);
        self.longer_ms = if mutant::is(Mutant::DelayNotLengthened) { 0 } else { by_ms };
        self
    }

    /// Adds a page that `node` answered after it installed the view, with its highest fence and its clock
    /// (microseconds since 1970). What the target shows counts only if it keeps its keys. Two pages may show one key.
    pub(crate) fn add(&mut self, node: usize, high_water: Fence, now_us: u64, page: Vec<ReadEntry>) {
        let keeps = self.change == Some(true) && !mutant::is(Mutant::OwnNotRead);
        if node == self.target && !keeps && !mutant::is(Mutant::TargetCounts) {
            return;
        }
        self.seed = self.seed.max(high_water);
        for entry in page {
            self.add_entry(node, now_us, entry);
        }
    }

    fn add_entry(&mut self, node: usize, now_us: u64, entry: ReadEntry) {
        match entry {
            ReadEntry::Lease { resource, record, left_ms } => {
                let token = self.resources.entry(resource).or_default().tokens.entry(record.token.clone()).or_default();
                token.lefts_ms.push(left_ms.unwrap_or(self.without_ttl_ms).min(LEFT_MAX_MS));
                token.keys.insert(node, record);
            }
            ReadEntry::Foreign { resource, value, left_ms } => {
                let left_ms = left_ms.unwrap_or(self.without_ttl_ms).min(LEFT_MAX_MS);
                self.resources.entry(resource).or_default().add_foreign(value, left_ms);
            }
            ReadEntry::Block { .. } if mutant::is(Mutant::BlocksNotListed) => {}
            ReadEntry::Block { resource, token, claims, left_ms } => {
                let left_ms = left_ms.min(LEFT_MAX_MS);
                let shown = self.resources.entry(resource).or_default();
                shown.blocked.insert(node);
                match token {
                    None => shown.add_foreign(None, left_ms),
                    Some(token) => {
                        let token = shown.tokens.entry(token).or_default();
                        token.lefts_ms.push(left_ms);
                        token.claims.push(claims);
                    }
                }
            }
            ReadEntry::Tombstone(Tombstone { resource, token, attempt, reason, left_ms }) => {
                let lasts_ms = u64::try_from(TOKEN_TOMBSTONE.as_millis()).unwrap_or(u64::MAX);
                let left_ms = left_ms.min(lasts_ms);
                if let Some(attempt) = attempt {
                    let (nodes, longest_ms) = self.cancelled.entry((resource, token, attempt)).or_default();
                    nodes.insert(node);
                    *longest_ms = left_ms.max(*longest_ms);
                    return;
                }
                let made_us = now_us.saturating_sub((lasts_ms - left_ms).saturating_mul(1_000));
                let (known, new) =
                    (self.ended.entry((resource, token)).or_default(), Ended { reason, left_ms, made_us });
                // One counts for each node, which may show several: a release replaces a revocation, and an earlier release.
                let rank = |of: &Ended| (of.reason != EndReason::Revoked, of.made_us);
                match known.iter_mut().find(|(by, _)| *by == node) {
                    Some((_, had)) if rank(had) > rank(&new) => {}
                    Some((_, had)) => *had = new,
                    None => known.push((node, new)),
                }
            }
        }
    }

    /// Records that every page of `node` was added.
    pub(crate) fn complete(&mut self, node: usize) {
        self.complete.insert(node);
    }

    /// The fill; `None` if too few others were read completely.
    pub(crate) fn finish(self) -> Option<Fill> {
        let (keeps, is_read) = (self.change == Some(true), self.complete.contains(&self.target));
        let others = self.complete.len() - usize::from(is_read);
        if others + usize::from(keeps) < self.least || keeps && !is_read {
            return None;
        }
        let mut entries: Vec<FillEntry> = Vec::new();
        for (resource, shown) in &self.resources {
            self.fill_resource(resource, shown, &mut entries);
        }
        // Tombstones come before the entries that they may end: the process checks each entry against its own tombstones.
        let place = if mutant::is(Mutant::TombstonesLast) { entries.len() } else { 0 };
        entries.splice(place..place, self.tombstones());
        Some(Fill { seed: self.seed, pages: pages(entries) })
    }

    fn tombstones(&self) -> Vec<FillEntry> {
        let ended = self.ended.iter().filter_map(|((resource, token), of)| {
            let shown = self.resources.get(resource).and_then(|shown| shown.tokens.get(token));
            let reasons = || of.iter().map(|(_, of)| of.reason);
            let is_over = shown.is_none_or(|shown| self.is_ended(resource, token, shown));
            let is_revoked = reasons().filter(|reason| *reason == EndReason::Revoked).count() >= self.witnesses;
            let reason = match is_over {
                // A token that one node reports as revoked, and another as released, is released.
                true => reasons().find(|reason| *reason != EndReason::Revoked).or(reasons().next())?,
                // If something remains for the token, the process would refuse that, too: only its renewals are refused.
                false if is_revoked => EndReason::Revoked,
                false => return None,
            };
            let left_ms = of.iter().map(|(_, of)| of.left_ms).max()?;
            let (resource, token) = (resource.clone(), token.clone());
            Some(Tombstone { resource, token, attempt: None, reason, left_ms })
        });
        // Not copied if a claim of the attempt remains, which the process would leave out.
        let is_copied = |((resource, token, attempt), (nodes, _)): &(
            &(ResourceName, TokenHash, AttemptId),
            &(BTreeSet<usize>, u64),
        )| {
            let shown = self.resources.get(resource).and_then(|shown| shown.tokens.get(token));
            nodes.len() >= self.witnesses || shown.is_none_or(|shown| !shown.has_claim(attempt))
        };
        let cancelled = self.cancelled.iter().filter(is_copied).map(|((resource, token, attempt), (_, left_ms))| {
            let (resource, token, attempt) = (resource.clone(), token.clone(), Some(attempt.clone()));
            Tombstone { resource, token, attempt, reason: EndReason::Cancelled, left_ms: *left_ms }
        });
        ended.chain(cancelled).map(FillEntry::Tombstone).collect()
    }

    fn fill_resource(&self, resource: &ResourceName, shown: &Shown, entries: &mut Vec<FillEntry>) {
        let standing = |token: &TokenHash, of: &ShownToken| {
            let claims = of.keys.values().map(|record| &record.claims).chain(&of.claims);
            let claims = self.standing_claims(resource, token, claims);
            (!claims.is_empty() && !self.is_ended(resource, token, of)).then_some(claims)
        };
        let live: Vec<_> =
            shown.tokens.iter().filter_map(|(token, of)| Some((token, of, standing(token, of)?))).collect();
        if self.fill_members(resource, shown, &live, entries) {
            return;
        }
        let is_exclusive = |of: &ShownToken| of.keys.values().all(|record| record.mode == Mode::Exclusive);
        let mut supported =
            live.iter().filter(|(token, of, _)| is_exclusive(of) && self.is_supported(resource, shown, token, of));
        // Two tokens are never supported at one moment, but pages are read at many moments.
        if let (Some((_, of, claims)), None) = (supported.next(), supported.next()) {
            let smallest = mutant::is(Mutant::CopySmallestTtl);
            if let Some(record) = of.keys.values().max_by_key(|record| record.recency()) {
                let record = LeaseRecord { claims: claims.as_str().into(), ..record.clone() };
                entries.push(FillEntry::Copy {
                    resource: resource.clone(),
                    record,
                    left_ms: self.left_ms(of, smallest),
                });
                return;
            }
        }
        for (token, of, claims) in &live {
            let is_kept = self.change == Some(true) && self.is_shown_by_quorum(resource, shown, token, of);
            entries.push(match self.record_to_keep(shown, of).filter(|_| is_kept) {
                Some(record) => FillEntry::Keep {
                    resource: resource.clone(),
                    record: LeaseRecord { claims: claims.as_str().into(), ..record },
                    left_ms: self.left_ms(of, mutant::is(Mutant::BlockSmallestTtl)),
                },
                None => self.block(resource, token, of, claims),
            });
        }
        // Other Redlock clients know no lists: a process that keeps its keys still has what they set on it.
        if let Some((value, left_ms)) = shown.foreign.as_ref().filter(|_| self.change != Some(true)) {
            let (value, left_ms) = (value.clone(), padded(*left_ms));
            entries.push(FillEntry::Foreign { resource: resource.clone(), value, left_ms });
        }
    }

    /// Whether at least a quorum of others, without a block for the resource, show the key with this token, and no
    /// node shows a tombstone: a revoked lease is held until its end, and gets no further votes.
    pub(super) fn is_supported(
        &self,
        resource: &ResourceName,
        shown: &Shown,
        token: &TokenHash,
        of: &ShownToken,
    ) -> bool {
        let has_tombstone = self.ended.contains_key(&(resource.clone(), token.clone()));
        self.change.is_none() && self.is_shown_by_quorum(resource, shown, token, of) && !has_tombstone
    }

    /// Whether at least a quorum, of nodes without a block for the resource, show the key with this token: only such a key may
    /// vote in another list, where fewer nodes may be a quorum.
    fn is_shown_by_quorum(&self, resource: &ResourceName, shown: &Shown, token: &TokenHash, of: &ShownToken) -> bool {
        let shows = |(node, record): &(&usize, &LeaseRecord)| {
            let counts = !shown.blocked.contains(node) || mutant::is(Mutant::CopyBesideBlock);
            counts && !self.standing_claims(resource, token, [&record.claims]).is_empty()
        };
        let least = match self.change {
            None => self.quorum - usize::from(mutant::is(Mutant::CopiesOfMinority)),
            Some(_) if mutant::is(Mutant::KeptOfMinority) => 0,
            Some(_) => self.quorum,
        };
        of.keys.iter().filter(shows).count() >= least
    }

    /// Whether everything shown for the token was ended for good, as more than a minority reports: otherwise one
    /// lying node could have a lease forgotten. Does not include revoked leases, which are held until their end;
    /// leases that the token got after its tombstone; or leases behind blocks, which do not show when they began.
    fn is_ended(&self, resource: &ResourceName, token: &TokenHash, of: &ShownToken) -> bool {
        let margin_us = u64::try_from(TOMBSTONE_MARGIN.as_micros()).unwrap_or(u64::MAX);
        let is_of = |ended: &Ended| {
            let is_before = |record: &LeaseRecord| record.fence.0.saturating_add(margin_us) < ended.made_us;
            mutant::is(Mutant::NextLeaseLeftOut) || (of.claims.is_empty() && of.keys.values().all(is_before))
        };
        let counts = |(_, ended): &&(usize, Ended)| match ended.reason {
            EndReason::Revoked => mutant::is(Mutant::RevokedLeftOut),
            _ => is_of(ended) && !mutant::is(Mutant::ReleasedFilled),
        };
        let tombstones = self.ended.get(&(resource.clone(), token.clone()));
        tombstones.is_some_and(|all| all.iter().filter(counts).count() >= self.witnesses)
    }

    /// An entry that blocks the resource for the sake of this token: the process has no opinion on it.
    pub(super) fn block(&self, resource: &ResourceName, token: &TokenHash, of: &ShownToken, claims: &str) -> FillEntry {
        let left_ms = self.left_ms(of, mutant::is(Mutant::BlockSmallestTtl));
        FillEntry::Block { resource: resource.clone(), token: token.clone(), claims: claims.into(), left_ms }
    }

    /// The lifetime that the target gives to a lease.
    pub(super) fn left_ms(&self, of: &ShownToken, smallest: bool) -> u64 {
        of.left_ms(smallest).saturating_add(self.longer_ms)
    }

    /// All these claims, each once, without claims of attempts that were cancelled.
    fn standing_claims<'a>(
        &self,
        resource: &ResourceName,
        token: &TokenHash,
        claims: impl IntoIterator<Item = &'a Arc<str>>,
    ) -> String {
        let mut all = String::new();
        for claim in claims.into_iter().flat_map(|claims| claims.split_inclusive(',')) {
            let attempt = AttemptId::parse(claim.trim_end_matches(','));
            let witnesses = attempt
                .and_then(|attempt| self.cancelled.get(&(resource.clone(), token.clone(), attempt)))
                .map_or(0, |(nodes, _)| nodes.len());
            let is_cancelled = witnesses >= self.witnesses && !mutant::is(Mutant::CancelledClaims);
            if !is_cancelled && !all.contains(claim) {
                all.push_str(claim);
            }
        }
        all
    }
}

impl Shown {
    fn add_foreign(&mut self, value: Option<Arc<[u8]>>, left_ms: u64) {
        let (known, longest_ms) = self.foreign.get_or_insert((None, 0));
        *known = known.take().or(value);
        *longest_ms = left_ms.max(*longest_ms);
    }
}

impl ShownToken {
    /// Whether a key or a block has a claim of this attempt.
    fn has_claim(&self, attempt: &AttemptId) -> bool {
        let mut all = self.keys.values().map(|record| &record.claims).chain(&self.claims);
        all.any(|claims| claims.split(',').any(|claim| claim == attempt.as_str()))
    }

    /// The largest lifetime that a node shows, padded for another clock.
    fn left_ms(&self, smallest: bool) -> u64 {
        let lefts = self.lefts_ms.iter().copied();
        padded(if smallest { lefts.min() } else { lefts.max() }.unwrap_or(0))
    }
}

/// left · 1.01, rounded up, + 2 ms: at least `left_ms` by any clock whose rate differs by less than 1 %.
fn padded(left_ms: u64) -> u64 {
    if mutant::is(Mutant::FillWithoutDrift) {
        return left_ms;
    }
    left_ms.saturating_add(left_ms.div_ceil(DRIFT_PART)).saturating_add(DRIFT_FLOOR_MS)
}

#[cfg(test)]
#[path = "fill_plan_tests.rs"]
mod tests;
