//! Metrics of leases: outcomes of acquires, extends, releases and forced ends, waiting times, validity at the
//! grant, and how long leases were held.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use prometheus::{Histogram, IntCounter, IntCounterVec, Registry};

use super::register::{LazyHistograms, counters, histogram, histograms};
use super::requests::{RequestMetrics, WaitingGuard};
use crate::manager::kept_leases::KeptLeaseEvent;
use crate::manager::types::{
    AcquireError, ExtendError, ForceError, ForceMode, Forced, GoneReason, LeaseOutcome, LostReason, ReleaseError,
};
use crate::redlock::clock::{BootTime, Clock, SystemClock};
use crate::redlock::kept_lease::KeptBy;
use crate::types::WantedMode;

/// Outcomes of an acquire. `abandoned`: the caller disconnected.
pub(crate) const ACQUIRE_OUTCOMES: [&str; 15] = [
    "granted",
    "replayed",
    "locked",
    "wait-timeout",
    "deadlock",
    "quorum-unavailable",
    "lease-expired",
    "too-many-replays",
    "too-many-waiters",
    "too-many-kept",
    "draining",
    "wait-id",
    "limit-differs",
    "mode-differs",
    "abandoned",
];
/// The mode whose series exist from the start; those of other modes appear with their first event.
const EXCLUSIVE: &str = "exclusive";
/// The outcomes for which requests were sent to the nodes.
pub(crate) const ROUND_OUTCOMES: [&str; 4] = ["granted", "replayed", "locked", "quorum-unavailable"];
/// Outcomes of an extend. `expired`, `released`, `forced`, `unknown`: why the lease had ended.
pub(crate) const EXTEND_OUTCOMES: [&str; 10] = [
    "extended",
    "not-holder",
    "expired",
    "released",
    "forced",
    "unknown",
    "changed",
    "invalid",
    "too-many-kept",
    "quorum-unavailable",
];
/// Outcomes of a release. `expired`, `forced`, `unknown`: why the lease had ended, so that its holder had been unprotected;
/// `again`: it had been released before.
pub(crate) const RELEASE_OUTCOMES: [&str; 7] =
    ["released", "not-holder", "expired", "again", "forced", "unknown", "quorum-unavailable"];
/// Outcomes of a forced end.
pub(crate) const FORCE_OUTCOMES: [&str; 6] =
    ["forced", "not-held", "changed", "foreign", "several-holders", "quorum-unavailable"];
/// How kept leases end.
const KEPT_ENDS: [&str; 5] = ["kept-out", "released", "forced", "revoked", "lost"];
/// Modes of a forced end.
pub(crate) const FORCE_MODES: [&str; 2] = ["revoke", "now"];

/// Seconds: a round takes a fraction of a millisecond to several node timeouts.
const ROUND_BUCKETS: [f64; 14] =
    [0.000_1, 0.000_2, 0.000_4, 0.000_8, 0.001_6, 0.003_2, 0.006_4, 0.012_5, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0];
/// Seconds, up to the default maximum of a wait.
const WAIT_BUCKETS: [f64; 12] = [0.001, 0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 15.0, 30.0, 60.0, 120.0, 300.0];
/// Seconds, up to a day, the default maximum of a hold.
const HELD_BUCKETS: [f64; 8] = [0.1, 1.0, 15.0, 60.0, 300.0, 900.0, 3_600.0, 86_400.0];
/// Fractions of the TTL.
const RATIO_BUCKETS: [f64; 8] = [0.25, 0.5, 0.7, 0.8, 0.9, 0.95, 0.98, 0.99];

/// So few that each is found by a search.
type Counters = Vec<(&'static str, IntCounter)>;

pub struct LeaseMetrics {
    /// Counters of exclusive leases.
    acquires: Counters,
    /// Counters of all modes, with the mode as a label.
    acquires_by_mode: IntCounterVec,
    rounds: LazyHistograms,
    waits: LazyHistograms,
    ratios: Histogram,
    extends: Counters,
    releases: Counters,
    forces: HashMap<(&'static str, &'static str), IntCounter>,
    lost: Counters,
    held: LazyHistograms,
    kept_renewals: IntCounterVec,
    kept_ends: Counters,
}

impl LeaseMetrics {
    /// Registers all series.
    pub fn new(r: &Registry) -> Self {
        let by_outcome = |name: &str, help: &str, outcomes: &[&'static str]| -> Counters {
            let family = counters(r, name, help, &["outcome"]);
            outcomes.iter().map(|outcome| (*outcome, family.with_label_values(&[outcome]))).collect()
        };
        let help = "Time at the nodes, by outcome.";
        let rounds = histograms(r, "lock_acquire_duration_seconds", help, &ROUND_BUCKETS, &["outcome"]);
        let help = "Total duration of acquires with a wait deadline, by outcome.";
        let waits = histograms(r, "lock_wait_duration_seconds", help, &WAIT_BUCKETS, &["outcome"]);
        let acquires = counters(r, "lock_acquire_total", "Acquires by outcome and mode.", &["outcome", "mode"]);
        let of_exclusive = |outcome: &&'static str| (*outcome, acquires.with_label_values(&[*outcome, EXCLUSIVE]));
        let exclusive = ACQUIRE_OUTCOMES.iter().map(of_exclusive).collect();
        let help = "Fraction of the TTL that was left when a lease was granted.";
        let ratios = histogram(r, "lock_valid_at_grant_ratio", help, &RATIO_BUCKETS);
        let help = "Forced ends by mode and outcome.";
        let forces = counters(r, "lock_force_total", help, &["how", "outcome"]);
        let both = FORCE_MODES.iter().flat_map(|mode| FORCE_OUTCOMES.iter().map(move |outcome| (*mode, *outcome)));
        let help = "Leases lost by the connection that held them.";
        let lost = counters(r, "lock_lost_total", help, &["reason"]);
        let help = "How long leases were held, by how they ended.";
        let held = histograms(r, "lock_held_duration_seconds", help, &HELD_BUCKETS, &["end"]);
        let help = "Renewals of kept leases, by the granter or an adopter.";
        let renewals = counters(r, "lock_kept_renewals_total", help, &["by", "outcome"]);
        let help = "Ends of kept leases, by reason.";
        let kept_ends = counters(r, "lock_kept_ends_total", help, &["reason"]);
        Self {
            kept_renewals: {
                // Other series appear with their first event.
                renewals.with_label_values(&["granter", "renewed"]);
                renewals
            },
            kept_ends: KEPT_ENDS.iter().map(|end| (*end, kept_ends.with_label_values(&[end]))).collect(),
            acquires: exclusive,
            acquires_by_mode: acquires,
            rounds: LazyHistograms::new(rounds, &ROUND_OUTCOMES),
            waits: LazyHistograms::new(waits, &ACQUIRE_OUTCOMES),
            ratios,
            extends: by_outcome(
                "lock_extend_total",
                "Extends by outcome, including renewals by holding connections.",
                &EXTEND_OUTCOMES,
            ),
            releases: by_outcome("lock_release_total", "Releases by outcome.", &RELEASE_OUTCOMES),
            forces: both.map(|(mode, o)| ((mode, o), forces.with_label_values(&[mode, o]))).collect(),
            lost: LostReason::ALL.iter().map(|l| (l.as_str(), lost.with_label_values(&[l.as_str()]))).collect(),
            held: LazyHistograms::new(held, &LeaseOutcome::ALL.map(LeaseOutcome::as_str)),
        }
    }

    /// Counts an extend.
    pub fn extended<T>(&self, outcome: &Result<T, ExtendError>) {
        self.count_extend(match outcome {
            Ok(_) => "extended",
            Err(ExtendError::NotHolder) => "not-holder",
            Err(ExtendError::Gone(reason)) => reason.as_str(),
            Err(ExtendError::Changed { .. }) => "changed",
            Err(ExtendError::Invalid(..) | ExtendError::KeepTooLong { .. }) => "invalid",
            Err(ExtendError::TooManyKept(_)) => "too-many-kept",
            Err(ExtendError::NoQuorum { .. }) => "quorum-unavailable",
        });
    }

    /// Counts an extend by its outcome, one of [`EXTEND_OUTCOMES`].
    pub fn count_extend(&self, outcome: &str) {
        count(&self.extends, outcome);
    }

    /// Counts a release.
    pub fn released<T>(&self, outcome: &Result<T, ReleaseError>) {
        let label = match outcome {
            Ok(_) => "released",
            Err(ReleaseError::NotHolder) => "not-holder",
            Err(ReleaseError::Gone(GoneReason::Released)) => "again",
            Err(ReleaseError::Gone(reason)) => reason.as_str(),
            Err(ReleaseError::NoQuorum(_)) => "quorum-unavailable",
        };
        count(&self.releases, label);
    }

    /// Counts a forced end.
    pub fn forced(&self, mode: ForceMode, outcome: Result<&Forced, &ForceError>) {
        let mode = if mode == ForceMode::Now { "now" } else { "revoke" };
        let label = match outcome {
            Ok(_) => "forced",
            Err(ForceError::NotHeld) => "not-held",
            Err(ForceError::Changed { .. }) => "changed",
            Err(ForceError::ForeignRevoke) => "foreign",
            Err(ForceError::SeveralHolders(_)) => "several-holders",
            Err(ForceError::NoQuorum(_)) => "quorum-unavailable",
        };
        if let Some(counter) = self.forces.get(&(mode, label)) {
            counter.inc();
        }
    }

    /// Counts a lease that was lost by the connection that held it.
    pub fn lost(&self, reason: LostReason) {
        count(&self.lost, reason.as_str());
    }

    /// Counts an event of a kept lease.
    pub fn kept(&self, event: KeptLeaseEvent<'_>) {
        let by_word = |by| if by == KeptBy::Granter { "granter" } else { "adopter" };
        let renewal = match event {
            KeptLeaseEvent::Renewed { by, .. } => (by_word(by), "renewed"),
            KeptLeaseEvent::NotRenewed(by) => (by_word(by), "failed"),
            KeptLeaseEvent::Ended { end, .. } => {
                return count(&self.kept_ends, end.as_str());
            }
        };
        self.kept_renewals.with_label_values(&[renewal.0, renewal.1]).inc();
    }

    /// Counts the end of a lease that was held for `held`.
    pub fn ended(&self, end: LeaseOutcome, held: Duration) {
        self.held.observe(end.as_str(), held);
    }
}

fn count(family: &Counters, label: &str) {
    if let Some((_, counter)) = family.iter().find(|(known, _)| *known == label) {
        counter.inc();
    }
}

/// The measured values of a grant.
#[derive(Debug, Clone, Copy)]
pub struct GrantMeasure {
    /// Whether this repeats an earlier grant to the same token.
    pub is_replay: bool,
    /// From the first request of the granting round until now.
    pub round: Duration,
    /// Validity at the grant.
    pub valid_for: Duration,
    /// The requested TTL.
    pub ttl: Duration,
}

/// An acquire in progress. Dropped without an outcome it counts as `abandoned`.
pub struct AcquireWatch {
    leases: Arc<LeaseMetrics>,
    mode: WantedMode,
    may_wait: bool,
    /// `None` if the request does not wait.
    waiting: Option<WaitingGuard>,
    began: BootTime,
    ended: bool,
}

impl AcquireWatch {
    /// Starts measuring. `may_wait`: the acquire has a wait deadline, and its request counts as waiting.
    pub fn begin(leases: &Arc<LeaseMetrics>, mode: WantedMode, may_wait: bool, requests: &RequestMetrics) -> Self {
        let waiting = may_wait.then(|| WaitingGuard::begin(requests));
        Self { leases: Arc::clone(leases), mode, may_wait, waiting, began: SystemClock.now(), ended: false }
    }

    /// Ends the wait of the request, since a stream waits in its place.
    pub fn leave_to_stream(&mut self) {
        self.waiting = None;
    }

    /// Records the outcome. Returns the time spent waiting: the whole duration if the acquire had a wait deadline.
    pub fn ended(mut self, outcome: Result<GrantMeasure, &AcquireError>) -> Duration {
        self.ended = true;
        if let Ok(grant) = outcome
            && !grant.is_replay
        {
            self.leases.ratios.observe(grant.valid_for.as_secs_f64() / grant.ttl.as_secs_f64());
        }
        let round = outcome.as_ref().ok().map(|grant| grant.round);
        let label = match outcome {
            Ok(GrantMeasure { is_replay: false, .. }) => "granted",
            Ok(GrantMeasure { is_replay: true, .. }) => "replayed",
            Err(AcquireError::Held(_)) => "locked",
            Err(AcquireError::WaitTimeout { .. }) => "wait-timeout",
            Err(AcquireError::NoQuorum(_)) => "quorum-unavailable",
            Err(AcquireError::Ended(_)) => "lease-expired",
            Err(AcquireError::Deadlock { .. }) => "deadlock",
            Err(AcquireError::TooManyReplays) => "too-many-replays",
            Err(AcquireError::LimitDiffers(_)) => "limit-differs",
            Err(AcquireError::ModeDiffers(_)) => "mode-differs",
            Err(AcquireError::TooManyWaiters { .. }) => "too-many-waiters",
            Err(AcquireError::TooManyKept(_)) => "too-many-kept",
            Err(AcquireError::Draining { .. }) => "draining",
            Err(AcquireError::Replaced | AcquireError::OtherPlace(_)) => "wait-id",
        };
        self.record(label, round)
    }

    fn record(&self, label: &str, round: Option<Duration>) -> Duration {
        let took = SystemClock.now().since(self.began);
        match self.mode {
            WantedMode::Exclusive => count(&self.leases.acquires, label),
            mode => self.leases.acquires_by_mode.with_label_values(&[label, mode.as_str()]).inc(),
        }
        match (round, self.may_wait) {
            (Some(round), _) => self.leases.rounds.observe(label, round.min(took)),
            (None, false) => self.leases.rounds.observe(label, took),
            (None, true) => {}
        }
        if !self.may_wait {
            return Duration::ZERO;
        }
        self.leases.waits.observe(label, took);
        took
    }
}

impl Drop for AcquireWatch {
    fn drop(&mut self) {
        if !self.ended {
            self.record("abandoned", None);
        }
    }
}
