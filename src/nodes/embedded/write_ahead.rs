//! How far ahead of the leases the state file is written, so that it is written rarely.

use std::time::Duration;

/// How far the written bound exceeds the required one. Under load the file is rewritten about twice per
/// this time; after a crash the node waits at most this much longer than its last lease.
pub(super) const WRITE_AHEAD: Duration = Duration::from_secs(10);
/// If less than this is left, the next bound is written in the background, so that steady load never waits for the disk.
const RENEW_BELOW: Duration = Duration::from_secs(5);

/// Upper bounds of the node's grants: those that a request requires, or those in the state file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct WriteBound {
    /// End of the last lease, on the boot clock, microseconds; 0: no lease.
    pub(super) until_boot_us: u64,
    /// The highest fence that may be given.
    pub(super) fence: u64,
}

impl WriteBound {
    /// Whether `required` is within these bounds.
    pub(super) fn covers(self, required: Self) -> bool {
        required.until_boot_us <= self.until_boot_us && required.fence <= self.fence
    }

    /// Whether `required` is so close to these bounds that the next ones should be written.
    pub(super) fn is_short_for(self, required: Self) -> bool {
        let soon = micros(RENEW_BELOW);
        let moves_leases = required.until_boot_us > 0;
        moves_leases
            && (required.until_boot_us.saturating_add(soon) > self.until_boot_us
                || required.fence.saturating_add(soon) > self.fence)
    }

    /// The bounds to write for `required`. Fences follow the clock in microseconds, so both are raised by the same step: once the
    /// quarantine after a crash is over, fences are not ahead of the clock.
    pub(super) fn extended_for(self, required: Self) -> Self {
        let ahead = if required.until_boot_us > 0 { micros(WRITE_AHEAD) } else { 0 };
        let until = if required.until_boot_us > 0 { required.until_boot_us.saturating_add(ahead) } else { 0 };
        Self {
            until_boot_us: self.until_boot_us.max(until),
            fence: self.fence.max(required.fence.saturating_add(ahead)),
        }
    }
}

fn micros(span: Duration) -> u64 {
    u64::try_from(span.as_micros()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bound_covers_later_requests_until_it_is_short() {
        let need = |us: u64| WriteBound { until_boot_us: 31_000_000 + us, fence: 500_000 + us };
        let written = WriteBound::default().extended_for(need(0));
        assert!(written.covers(need(10_000_000)) && !written.covers(need(10_000_001)));
        assert!(!written.is_short_for(need(5_000_000)) && written.is_short_for(need(5_000_001)));
        assert!(written.extended_for(WriteBound::default()) == written, "it never shrinks");
    }

    #[test]
    fn a_request_without_a_lease_raises_no_time_bound() {
        let seeded = WriteBound::default().extended_for(WriteBound { until_boot_us: 0, fence: 7 });
        assert_eq!(seeded, WriteBound { until_boot_us: 0, fence: 7 });
        assert!(!seeded.is_short_for(WriteBound { until_boot_us: 0, fence: 7 }));
    }
}
