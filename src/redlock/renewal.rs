//! When a lease that is kept is renewed: one rule for leases held by a connection and for the client's.

use std::time::Duration;

/// A lease is renewed after one part in this many of its TTL: two of three renewals may fail.
const RENEWALS_PER_TTL: u32 = 3;

/// Time from a grant or a renewal to the next renewal.
pub(crate) fn renewal_interval(ttl: Duration) -> Duration {
    ttl / RENEWALS_PER_TTL
}
