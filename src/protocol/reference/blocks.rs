//! The blocks of a reference node: the resources on which the voting node has no vote, for which tokens, and until when.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::store::Expiring;
use crate::types::{AttemptId, ResourceName, TokenHash};

/// One token of a block; `None` as a key: a foreign client's lock.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::protocol) struct BlockedToken {
    /// Until when the token's lease may be held, by the node's clock.
    pub(in crate::protocol) end_ms: u64,
    /// The attempts that claimed the lease, as in a lock's value. Empty for a foreign client's lock.
    pub(in crate::protocol) claims: Arc<str>,
}

type Tokens = BTreeMap<Option<TokenHash>, BlockedToken>;

/// All blocks of a node. A block lasts until the latest end of its tokens.
#[derive(Debug, Clone, Default)]
pub(in crate::protocol) struct Blocks(Expiring<ResourceName, Tokens>);

impl Blocks {
    /// The remaining milliseconds of this resource's block.
    pub(in crate::protocol) fn left_ms(&self, resource: &ResourceName, now_ms: u64) -> Option<u64> {
        self.0.left_ms(resource, now_ms).flatten()
    }

    /// As [`Self::left_ms`]. No lease lasts longer than `longest_ms`: a longer block is cut, except for a foreign lock in it.
    pub(in crate::protocol) fn cut(&mut self, resource: &ResourceName, longest_ms: u64, now_ms: u64) -> Option<u64> {
        let left_ms = self.left_ms(resource, now_ms)?;
        let foreign_end_ms =
            self.0.get(resource, now_ms).and_then(|tokens| tokens.get(&None)).map_or(0, |of| of.end_ms);
        let cut_ms = left_ms.min(longest_ms.max(foreign_end_ms.saturating_sub(now_ms)));
        if cut_ms < left_ms {
            self.0.set_end(resource, Some(now_ms + cut_ms));
        }
        Some(cut_ms)
    }

    /// Whether this resource's block names the token.
    pub(in crate::protocol) fn names(&self, resource: &ResourceName, token: &TokenHash, now_ms: u64) -> bool {
        self.0.get(resource, now_ms).is_some_and(|tokens| tokens.contains_key(&Some(token.clone())))
    }

    /// Adds a token for this long, or extends it: neither the token nor the block ends earlier than before, except for the time
    /// that a lease of the token had left beyond `longest_ms`.
    pub(in crate::protocol) fn add(
        &mut self,
        resource: &ResourceName,
        token: Option<TokenHash>,
        claims: &str,
        left_ms: u64,
        longest_ms: u64,
        now_ms: u64,
    ) {
        let longest_ms = if token.is_some() { longest_ms } else { u64::MAX };
        let mut tokens = self.0.get(resource, now_ms).cloned().unwrap_or_default();
        let known = tokens.entry(token).or_insert_with(|| BlockedToken { end_ms: 0, claims: "".into() });
        known.end_ms = known.end_ms.min(now_ms.saturating_add(longest_ms)).max(now_ms.saturating_add(left_ms));
        known.claims = union(&known.claims, claims);
        let end_ms = known.end_ms.max(self.left_ms(resource, now_ms).map_or(0, |left_ms| now_ms + left_ms));
        self.0.put(resource.clone(), tokens, Some(end_ms));
    }

    /// Removes a token, or (with an attempt) one of its claims. The last claim removes the token; the last token removes the
    /// block. `None`: the block does not name the token. Otherwise whether the block has ended.
    pub(in crate::protocol) fn take_out(
        &mut self,
        resource: &ResourceName,
        token: Option<&TokenHash>,
        attempt: Option<&AttemptId>,
        now_ms: u64,
    ) -> Option<bool> {
        let tokens = self.0.get_mut(resource, now_ms)?;
        let named = tokens.get_mut(&token.cloned())?;
        if let Some(attempt) = attempt {
            let rest = named.claims.replacen(&format!("{},", attempt.as_str()), "", 1);
            if rest.len() == named.claims.len() {
                return None;
            }
            named.claims = rest.into();
            if !named.claims.is_empty() {
                return Some(false);
            }
        }
        tokens.remove(&token.cloned());
        let longest_ms = tokens.values().map(|of| of.end_ms).max().filter(|end_ms| *end_ms > now_ms);
        match longest_ms {
            Some(end_ms) => self.0.set_end(resource, Some(end_ms)),
            None => self.remove(resource),
        }
        Some(longest_ms.is_none())
    }

    /// Ends this resource's block.
    pub(in crate::protocol) fn remove(&mut self, resource: &ResourceName) {
        self.0.remove(resource);
    }

    /// Drops up to `limit` expired blocks.
    pub(in crate::protocol) fn purge(&mut self, now_ms: u64, limit: usize) {
        self.0.purge(now_ms, limit, |_, _| {});
    }

    /// Every block with its tokens.
    pub(in crate::protocol) fn iter(&self, now_ms: u64) -> impl Iterator<Item = (&ResourceName, &Tokens)> {
        self.0.iter(now_ms).map(|(resource, tokens, _)| (resource, tokens))
    }

    /// The latest end of a block.
    pub(in crate::protocol) fn latest_end_ms(&self) -> Option<u64> {
        self.0.latest_end_ms()
    }

    /// The earliest end of a token from `from_ms` on.
    pub(in crate::protocol) fn next_end_ms(&self, from_ms: u64) -> Option<u64> {
        let ends = self.iter(from_ms).flat_map(|(_, tokens)| tokens.values().map(|of| of.end_ms));
        ends.chain(self.0.next_end_ms(from_ms)).filter(|end_ms| *end_ms >= from_ms).min()
    }

    /// The number of blocks in memory.
    pub(in crate::protocol) fn len(&self) -> usize {
        self.0.len()
    }
}

/// The claims of both, each once, in the order of the first.
pub(in crate::protocol) fn union(claims: &str, more: &str) -> Arc<str> {
    let mut all = claims.to_owned();
    for claim in more.split_inclusive(',') {
        if !all.contains(claim) {
            all.push_str(claim);
        }
    }
    all.into()
}
