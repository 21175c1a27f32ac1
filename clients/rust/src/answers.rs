//! Answers about leases, with their validity on this machine's clock.

use std::time::Duration;

use redlockd_common::api;
use redlockd_common::clock::BootTime;
use serde::Serialize;

/// The service's answer to an acquire.
#[derive(Debug, Clone, Serialize)]
#[serde(untagged)]
pub enum LeaseAnswer {
    One(Box<api::Lease>),
    Set(Box<api::LeaseSet>),
}

impl LeaseAnswer {
    /// The answer with this token, or without one.
    #[must_use]
    pub fn with_token(self, token: Option<&str>) -> Self {
        let token = token.map(|token| api::TokenText(token.to_owned()));
        match self {
            Self::One(lease) => Self::One(Box::new(api::Lease { token, ..*lease })),
            Self::Set(set) => Self::Set(Box::new(api::LeaseSet { token, ..*set })),
        }
    }
}

/// A lease, or the leases of a set, with their validity on this machine's clock.
#[derive(Debug, Clone)]
pub struct TimedLease {
    /// The service's answer.
    pub answer: LeaseAnswer,
    /// The earliest instant at which the lease can have been granted: when the request was sent, plus the reported wait
    /// less 1 %, because clock rates differ.
    pub granted: BootTime,
    /// `granted` plus the validity: do not rely on the lease beyond it.
    pub deadline: BootTime,
}

impl TimedLease {
    /// From the answer to a request that was sent at `started`.
    pub(super) fn new(answer: LeaseAnswer, started: BootTime) -> Self {
        let (waited_ms, valid_for_ms) = match &answer {
            LeaseAnswer::One(lease) => (lease.waited_ms, lease.valid_for_ms),
            LeaseAnswer::Set(set) => (set.waited_ms, set.valid_for_ms),
        };
        let waited = Duration::from_millis(waited_ms.unwrap_or(0));
        let discount = Duration::from_millis(waited_ms.unwrap_or(0).div_ceil(100));
        let granted = started.plus(waited.saturating_sub(discount));
        Self { answer, granted, deadline: granted.plus(Duration::from_millis(valid_for_ms)) }
    }

    pub fn ttl(&self) -> Duration {
        Duration::from_millis(match &self.answer {
            LeaseAnswer::One(lease) => lease.ttl_ms,
            LeaseAnswer::Set(set) => set.ttl_ms,
        })
    }

    /// How long the request waited, according to the service.
    pub fn waited(&self) -> Duration {
        let ms = match &self.answer {
            LeaseAnswer::One(lease) => lease.waited_ms,
            LeaseAnswer::Set(set) => set.waited_ms,
        };
        Duration::from_millis(ms.unwrap_or(0))
    }

    /// The fence of each lock, in the order in which they were named; never empty.
    pub fn fences(&self) -> Vec<u64> {
        match &self.answer {
            LeaseAnswer::One(lease) => vec![lease.fence],
            LeaseAnswer::Set(set) => set.leases.iter().map(|lease| lease.fence).collect(),
        }
    }

    /// The number of a permit.
    pub fn slot(&self) -> Option<u8> {
        match &self.answer {
            LeaseAnswer::One(lease) => lease.slot,
            LeaseAnswer::Set(_) => None,
        }
    }
}

/// The service's answer to an extend.
#[derive(Debug, Clone, Serialize)]
#[serde(untagged)]
pub enum ExtendAnswer {
    One(Box<api::Lease>),
    Set(api::SetResults),
}

/// A lease, or the leases of a set, after an extend.
#[derive(Debug, Clone)]
pub struct Extended {
    /// The service's answer.
    pub answer: ExtendAnswer,
    /// When the request was sent.
    pub granted: BootTime,
    /// `granted` plus the validity of all leases: do not rely on them beyond it.
    pub deadline: BootTime,
}

impl Extended {
    /// From the answer to a request that was sent at `started`.
    pub(super) fn new(answer: ExtendAnswer, started: BootTime) -> Self {
        let valid_for_ms = match &answer {
            ExtendAnswer::One(lease) => lease.valid_for_ms,
            // Without a validity nothing is promised.
            ExtendAnswer::Set(set) => set.valid_for_ms.unwrap_or(0),
        };
        Self { answer, granted: started, deadline: started.plus(Duration::from_millis(valid_for_ms)) }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    fn timed(waited_ms: Option<u64>, valid_for_ms: u64, started: BootTime) -> [TimedLease; 2] {
        let common = json!({
            "mode": "exclusive", "token_id": "0", "owner": "", "note": "", "metadata": {}, "acquired_at": "",
            "expires_at": "", "ttl_ms": 30_000, "valid_for_ms": valid_for_ms, "waited_ms": waited_ms,
            "quorum": { "granted": 1, "needed": 1, "nodes": 1 },
        });
        let with = |more: serde_json::Value| {
            let mut all = common.clone();
            all.as_object_mut().expect("an object").extend(more.as_object().expect("an object").clone());
            all
        };
        let one = with(json!({ "resource": "x", "fence": 7 }));
        let set = with(json!({ "leases": [{ "resource": "x", "fence": 7 }, { "resource": "y", "fence": 3 }] }));
        let one = LeaseAnswer::One(serde_json::from_value(one).expect("a lease"));
        let set = LeaseAnswer::Set(serde_json::from_value(set).expect("a set"));
        [one, set].map(|answer| TimedLease::new(answer, started))
    }

    /// The service promised `valid_for_ms` at an instant at least `waited_ms` after the request was sent, by a clock that
    /// is up to 1 % fast.
    #[test]
    fn reported_wait_is_discounted_for_clock_rates() {
        let started = BootTime::from_nanos(1_000_000_000);
        for (waited, left_ms) in [(None, 29_000), (Some(0), 29_000), (Some(60_000), 88_400), (Some(5), 29_004)] {
            for lease in timed(waited, 29_000, started) {
                assert_eq!(lease.deadline.since(started).as_millis(), left_ms);
                assert_eq!(lease.waited().as_millis(), u128::from(waited.unwrap_or(0)));
            }
        }
        let [one, set] = timed(None, 1, started);
        assert_eq!((one.fences(), set.fences(), set.ttl().as_secs(), set.slot()), (vec![7], vec![7, 3], 30, None));
    }

    #[test]
    fn an_extend_of_a_set_promises_what_all_its_leases_do() {
        let started = BootTime::from_nanos(1);
        let deadline = |valid_for_ms| {
            let answer = ExtendAnswer::Set(api::SetResults { results: Vec::new(), valid_for_ms });
            Extended::new(answer, started).deadline
        };
        assert_eq!(deadline(Some(5)), started.plus(Duration::from_millis(5)));
        assert_eq!(deadline(None), started);
    }

    proptest! {
        #[test]
        fn deadline_is_never_later_than_wait_plus_validity(waited: u32, valid: u32) {
            let started = BootTime::from_nanos(1);
            for lease in timed(Some(waited.into()), valid.into(), started) {
                let left = lease.deadline.since(started).as_millis();
                prop_assert!(left <= u128::from(waited) * 99 / 100 + u128::from(valid));
            }
        }
    }
}
