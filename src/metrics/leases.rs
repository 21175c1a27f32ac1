//! LeaseMetrics as metrics see them: how acquires, extends, releases and forced ends came out, how long
//! was waited, how good a grant was and how long it was held. Knows the manager's words, and no HTTP.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use prometheus::{Histogram, IntCounter, Registry};

use super::register::{counters, histogram, histograms};
use super::requests::{RequestMetrics, WaitingGuard};
use crate::manager::types::{
    AcquireError, ExtendError, ForceError, ForceMode, Forced, GoneReason, LeaseOutcome, LostReason, ReleaseError,
};
use crate::redlock::clock::{BootTime, Clock, SystemClock};

/// Of an acquire: how it can end. `abandoned`: the caller hung up.
pub const ACQUIRE_OUTCOMES: [&str; 11] = [
    "granted",
    "replayed",
    "locked",
    "wait-timeout",
    "deadlock",
    "quorum-unavailable",
    "lease-expired",
    "too-many-replays",
    "too-many-waiters",
    "draining",
    "abandoned",
];
/// Those that the nodes are asked for.
pub const ROUND_OUTCOMES: [&str; 4] = ["granted", "replayed", "locked", "quorum-unavailable"];
/// Of an extend. `expired`, `released`, `forced`, `unknown`: the lease is gone, and why.
pub const EXTEND_OUTCOMES: [&str; 9] =
    ["extended", "not-holder", "expired", "released", "forced", "unknown", "changed", "invalid", "quorum-unavailable"];
/// Of a release. `expired`, `forced`, `unknown`: its holder ran unprotected; `again`: it was
/// released before.
pub const RELEASE_OUTCOMES: [&str; 7] =
    ["released", "not-holder", "expired", "again", "forced", "unknown", "quorum-unavailable"];
/// Of a forced end.
pub const FORCE_OUTCOMES: [&str; 5] = ["forced", "not-held", "changed", "foreign", "quorum-unavailable"];
/// How an operator ends a lease.
pub const FORCE_MODES: [&str; 2] = ["revoke", "now"];

/// Seconds: a round, from a fraction of a millisecond to several node timeouts.
const ROUND_BUCKETS: [f64; 13] =
    [0.000_25, 0.000_5, 0.001, 0.002_5, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0];
/// Seconds, up to the longest wait by default.
const WAIT_BUCKETS: [f64; 12] = [0.001, 0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 15.0, 30.0, 60.0, 120.0, 300.0];
/// Seconds, up to a day: the longest hold by default.
const HELD_BUCKETS: [f64; 11] = [0.01, 0.1, 1.0, 5.0, 15.0, 60.0, 300.0, 900.0, 3_600.0, 14_400.0, 86_400.0];
/// Of the TTL.
const RATIO_BUCKETS: [f64; 8] = [0.25, 0.5, 0.7, 0.8, 0.9, 0.95, 0.98, 0.99];

type Counters = HashMap<&'static str, IntCounter>;
type Histograms = HashMap<&'static str, Histogram>;

/// All verbs.
pub struct LeaseMetrics {
    acquires: Counters,
    rounds: Histograms,
    waits: Histograms,
    ratios: Histogram,
    extends: Counters,
    releases: Counters,
    forces: HashMap<(&'static str, &'static str), IntCounter>,
    lost: Counters,
    held: Histograms,
}

impl LeaseMetrics {
    /// All series.
    pub fn new(r: &Registry) -> Self {
        let by_outcome = |of: &str, help: &str, outcomes: &[&'static str]| -> Counters {
            let family = counters(r, of, help, &["outcome"]);
            outcomes.iter().map(|outcome| (*outcome, family.with_label_values(&[outcome]))).collect()
        };
        let help = "Time at the nodes: of a grant the round that granted it, of a refusal that did not wait all of it.";
        let rounds = histograms(r, "lock_acquire_duration_seconds", help, &ROUND_BUCKETS, &["outcome"]);
        let help = "How long acquires that were willing to wait took in all, however they ended.";
        let waits = histograms(r, "lock_wait_duration_seconds", help, &WAIT_BUCKETS, &["outcome"]);
        let help = "Part of the TTL that was left when a lease was granted.";
        let ratios = histogram(r, "lock_valid_at_grant_ratio", help, &RATIO_BUCKETS);
        let help = "Forced ends by how and outcome.";
        let forces = counters(r, "lock_force_total", help, &["how", "outcome"]);
        let both = FORCE_MODES.iter().flat_map(|how| FORCE_OUTCOMES.iter().map(move |outcome| (*how, *outcome)));
        let help = "LeaseMetrics lost by the connection that held them.";
        let lost = counters(r, "lock_lost_total", help, &["reason"]);
        let help = "How long leases were held as far as this instance saw it, by how they ended.";
        let held = histograms(r, "lock_held_duration_seconds", help, &HELD_BUCKETS, &["end"]);
        Self {
            acquires: by_outcome("lock_acquire_total", "Acquires by outcome.", &ACQUIRE_OUTCOMES),
            rounds: ROUND_OUTCOMES.iter().map(|o| (*o, rounds.with_label_values(&[o]))).collect(),
            waits: ACQUIRE_OUTCOMES.iter().map(|o| (*o, waits.with_label_values(&[o]))).collect(),
            ratios,
            extends: by_outcome("lock_extend_total", "Extends by outcome, those of holds included.", &EXTEND_OUTCOMES),
            releases: by_outcome("lock_release_total", "Releases asked for, by outcome.", &RELEASE_OUTCOMES),
            forces: both.map(|(how, o)| ((how, o), forces.with_label_values(&[how, o]))).collect(),
            lost: LostReason::ALL.iter().map(|l| (l.as_str(), lost.with_label_values(&[l.as_str()]))).collect(),
            held: LeaseOutcome::ALL.iter().map(|e| (e.as_str(), held.with_label_values(&[e.as_str()]))).collect(),
        }
    }

    /// Counts an extend.
    pub fn extended<T>(&self, outcome: &Result<T, ExtendError>) {
        self.count_extend(match outcome {
            Ok(_) => "extended",
            Err(ExtendError::NotHolder) => "not-holder",
            Err(ExtendError::Gone(reason)) => reason.as_str(),
            Err(ExtendError::Changed { .. }) => "changed",
            Err(ExtendError::Invalid(..)) => "invalid",
            Err(ExtendError::NoQuorum { .. }) => "quorum-unavailable",
        });
    }

    /// Counts an extend by its outcome's word, one of [`EXTEND_OUTCOMES`].
    pub fn count_extend(&self, word: &str) {
        count(&self.extends, word);
    }

    /// Counts a release.
    pub fn released(&self, outcome: &Result<(), ReleaseError>) {
        let word = match outcome {
            Ok(()) => "released",
            Err(ReleaseError::NotHolder) => "not-holder",
            Err(ReleaseError::Gone(GoneReason::Released)) => "again",
            Err(ReleaseError::Gone(reason)) => reason.as_str(),
            Err(ReleaseError::NoQuorum(_)) => "quorum-unavailable",
        };
        count(&self.releases, word);
    }

    /// Counts a forced end.
    pub fn forced(&self, how: ForceMode, outcome: Result<&Forced, &ForceError>) {
        let how = if how == ForceMode::Now { "now" } else { "revoke" };
        let word = match outcome {
            Ok(_) => "forced",
            Err(ForceError::NotHeld) => "not-held",
            Err(ForceError::Changed { .. }) => "changed",
            Err(ForceError::ForeignRevoke) => "foreign",
            Err(ForceError::NoQuorum(_)) => "quorum-unavailable",
        };
        if let Some(counter) = self.forces.get(&(how, word)) {
            counter.inc();
        }
    }

    /// A connection lost the lease that it held.
    pub fn lost(&self, reason: LostReason) {
        count(&self.lost, reason.as_str());
    }

    /// A lease ended that was held for so long.
    pub fn ended(&self, end: LeaseOutcome, held: Duration) {
        observe(&self.held, end.as_str(), held);
    }
}

fn count(family: &Counters, word: &str) {
    if let Some(counter) = family.get(word) {
        counter.inc();
    }
}

fn observe(family: &Histograms, word: &str, took: Duration) {
    if let Some(histogram) = family.get(word) {
        histogram.observe(took.as_secs_f64());
    }
}

/// A grant as metrics see it.
#[derive(Debug, Clone, Copy)]
pub struct GrantMeasure {
    /// It repeats an earlier grant.
    pub is_replay: bool,
    /// From the first request of the round that granted it until now.
    pub round: Duration,
    /// What is left of the TTL.
    pub valid_for: Duration,
    /// The TTL.
    pub ttl: Duration,
}

/// One acquire under way. Dropped without an outcome it counts as `abandoned`.
pub struct AcquireWatch {
    leases: Arc<LeaseMetrics>,
    waits: bool,
    /// The request waits for it.
    waiting: Option<WaitingGuard>,
    began: BootTime,
    ended: bool,
}

impl AcquireWatch {
    /// Follows an acquire from now on. `waits`: it is willing to wait, so that its request counts as
    /// waiting meanwhile.
    pub fn begin(leases: &Arc<LeaseMetrics>, waits: bool, requests: &RequestMetrics) -> Self {
        let waiting = waits.then(|| WaitingGuard::begin(requests));
        Self { leases: Arc::clone(leases), waits, waiting, began: SystemClock.now(), ended: false }
    }

    /// The request no longer waits for it: a stream does.
    pub fn leave_to_stream(&mut self) {
        self.waiting = None;
    }

    /// It has ended. Returns how much of its time was waiting, which is all of it where it was
    /// willing to wait.
    pub fn ended(mut self, outcome: Result<GrantMeasure, &AcquireError>) -> Duration {
        self.ended = true;
        if let Ok(grant) = outcome
            && !grant.is_replay
        {
            self.leases.ratios.observe(grant.valid_for.as_secs_f64() / grant.ttl.as_secs_f64());
        }
        let round = outcome.as_ref().ok().map(|grant| grant.round);
        let word = match outcome {
            Ok(GrantMeasure { is_replay: false, .. }) => "granted",
            Ok(GrantMeasure { is_replay: true, .. }) => "replayed",
            Err(AcquireError::Held(_)) => "locked",
            Err(AcquireError::WaitTimeout { .. }) => "wait-timeout",
            Err(AcquireError::NoQuorum(_)) => "quorum-unavailable",
            Err(AcquireError::Ended(_)) => "lease-expired",
            Err(AcquireError::Deadlock { .. }) => "deadlock",
            Err(AcquireError::TooManyReplays) => "too-many-replays",
            Err(AcquireError::TooManyWaiters { .. }) => "too-many-waiters",
            Err(AcquireError::Draining) => "draining",
        };
        self.record(word, round)
    }

    fn record(&self, word: &str, round: Option<Duration>) -> Duration {
        let took = SystemClock.now().since(self.began);
        count(&self.leases.acquires, word);
        match (round, self.waits) {
            (Some(round), _) => observe(&self.leases.rounds, word, round.min(took)),
            (None, false) => observe(&self.leases.rounds, word, took),
            (None, true) => {}
        }
        if !self.waits {
            return Duration::ZERO;
        }
        observe(&self.leases.waits, word, took);
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
