//! How far ahead of the leases the state file is written, so that it is written seldom. Stands apart
//! as the pure rule that `node.rs` follows. Knows no file and no clock.

use std::time::Duration;

/// A reservation goes this far beyond what is needed: under load the file is rewritten once in about
/// half of it, and after a crash the node waits at most this much longer than its last lease.
pub(super) const RESERVE_AHEAD: Duration = Duration::from_secs(10);
/// With less than this left a new reservation is made in the background, so that steady load never
/// waits for the disk.
const RENEW_BELOW: Duration = Duration::from_secs(5);

/// An end of leases and a bound of fences: what is needed, or what is written down.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Span {
    /// On the boot clock, microseconds; 0 for no lease at all.
    pub(super) until_boot_us: u64,
    /// No fence is above this.
    pub(super) fence: u64,
}

impl Span {
    /// All of `need` is written down.
    pub(super) fn covers(self, need: Self) -> bool {
        need.until_boot_us <= self.until_boot_us && need.fence <= self.fence
    }

    /// All of `need` is written down, but soon the next one may not be.
    pub(super) fn is_short_for(self, need: Self) -> bool {
        let soon = micros(RENEW_BELOW);
        let moves_leases = need.until_boot_us > 0;
        moves_leases
            && (need.until_boot_us.saturating_add(soon) > self.until_boot_us
                || need.fence.saturating_add(soon) > self.fence)
    }

    /// What to write down for `need`. Fences follow the clock in microseconds, so that one step
    /// serves both: once the quarantine after a crash is over, they are not ahead of the clock.
    pub(super) fn reserve(self, need: Self) -> Self {
        let ahead = if need.until_boot_us > 0 { micros(RESERVE_AHEAD) } else { 0 };
        let until = if need.until_boot_us > 0 { need.until_boot_us.saturating_add(ahead) } else { 0 };
        Self { until_boot_us: self.until_boot_us.max(until), fence: self.fence.max(need.fence.saturating_add(ahead)) }
    }
}

fn micros(span: Duration) -> u64 {
    u64::try_from(span.as_micros()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reservation_serves_needs_that_move_on_with_the_clock_until_it_is_short() {
        let need = |us: u64| Span { until_boot_us: 31_000_000 + us, fence: 500_000 + us };
        let reserved = Span::default().reserve(need(0));
        assert!(reserved.covers(need(10_000_000)) && !reserved.covers(need(10_000_001)));
        assert!(!reserved.is_short_for(need(5_000_000)) && reserved.is_short_for(need(5_000_001)));
        assert!(reserved.reserve(Span::default()) == reserved, "it never shrinks");
    }

    #[test]
    fn what_moves_no_lease_reserves_no_time() {
        let seeded = Span::default().reserve(Span { until_boot_us: 0, fence: 7 });
        assert_eq!(seeded, Span { until_boot_us: 0, fence: 7 });
        assert!(!seeded.is_short_for(Span { until_boot_us: 0, fence: 7 }));
    }
}
