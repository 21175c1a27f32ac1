//! How often a node was in quarantine, by reason.

/// How often quarantines began, by reason.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct QuarantineCounts([u64; Self::REASONS.len()]);

impl QuarantineCounts {
    /// The words that nodes store with a quarantine; `other` for words of later releases.
    pub const REASONS: [&'static str; 7] = ["blank", "failover", "restart", "clock", "evicted", "ordered", "other"];

    /// Counts a quarantine; an unknown reason counts as `other`.
    pub fn add(&mut self, reason: &str) {
        self.0[Self::REASONS.iter().position(|known| *known == reason).unwrap_or(Self::REASONS.len() - 1)] += 1;
    }

    /// Each reason with its count.
    pub fn by_reason(self) -> impl Iterator<Item = (&'static str, u64)> {
        Self::REASONS.into_iter().zip(self.0)
    }
}
