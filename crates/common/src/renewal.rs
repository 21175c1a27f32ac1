//! When a lease is renewed: one rule for leases held by a connection and for those of the client.

use std::time::Duration;

use super::backoff::uniform;
use super::random::Entropy;

/// A lease is renewed after one part in this many of its TTL: two of three renewals may fail.
const RENEWALS_PER_TTL: u32 = 3;

/// Time from a grant or a renewal to the next renewal.
pub fn renewal_interval(ttl: Duration) -> Duration {
    ttl / RENEWALS_PER_TTL
}

/// A failed renewal is tried again within one part in this many of the TTL, so that several tries fit before the lease's end …
const RETRIES_PER_TTL: u32 = 12;
/// … and within this time.
const RETRY_MAX: Duration = Duration::from_secs(1);
/// Shortest pause before that try.
const RETRY_MIN: Duration = Duration::from_millis(10);

/// Random time from a failed renewal to the next try: at least half of the maximum, so that tries are spread.
pub fn renewal_retry<E: Entropy>(ttl: Duration, entropy: &E) -> Duration {
    let half = (ttl / RETRIES_PER_TTL).min(RETRY_MAX) / 2;
    (half + uniform(entropy, half)).max(RETRY_MIN)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::SystemEntropy;

    #[test]
    fn several_tries_fit_between_a_due_renewal_and_the_end() {
        for ttl in [300, 3_000, 30_000, 300_000].map(Duration::from_millis) {
            let longest = (0..100).map(|_| renewal_retry(ttl, &SystemEntropy)).max().expect("some");
            assert!(longest <= RETRY_MAX && (ttl - renewal_interval(ttl)) / 6 >= longest, "{ttl:?}: {longest:?}");
        }
        assert_eq!(renewal_retry(Duration::ZERO, &SystemEntropy), RETRY_MIN);
    }
}
