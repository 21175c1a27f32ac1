//! The liveness check at the end of each run: when all faults have healed and every quarantine must be
//! over, each resource is acquired, waited for, handed over and released, within bounds. Here every
//! refusal is a failure.

use super::clients::{Answer, Operation, Requester, token_of};
use super::profile::{LOCK_DELAY_MS, LONGER_MS, Variant};
use super::world::{Event, MS, SEC, Us, World};
use crate::redlock::quorum::quorum_of;
use crate::types::TokenHash;

/// After the faults end and a whole quarantine: detecting a wrong clock (a probe and its timeout, and the time for which a
/// witness's note counts), ordering a second quarantine, and seeding in two probe rounds.
const RECOVERY: Us = 11 * SEC;
/// Maximum duration of the first acquire, of a free resource.
const ACQUIRE_BOUND_MS: u64 = 3_000;
/// Maximum time from a release to the grant to a waiter of another instance: a poll, its jitter, a round.
const HANDOVER_BOUND: Us = 1_500 * MS;
/// How long the lease is held before it is handed over.
const HELD: Us = 600 * MS;

/// State of the check of one resource.
#[derive(Debug, Default)]
pub(super) struct LivenessCheck {
    step: u32,
    req: u64,
    first: Option<TokenHash>,
    second: Option<TokenHash>,
    released: Us,
    /// The operator's word on two clusters was waited for.
    waited: bool,
    pub(super) passed: bool,
}

impl World {
    /// When clients request for nothing more. Where all clocks went back, a quarantine that another one replaced may be
    /// owed once more; where a node has ended, the others wait for one from the operator's word on.
    pub(super) fn closing_time(&self) -> Us {
        let quarantines = 1
            + u64::from(self.checker.clocks_back_us > 0)
            + u64::from(self.profile.one_ends)
            + u64::from(self.profile.relists || self.profile.reterms || self.profile.replaces);
        (self.profile.calm_ms + quarantines * self.quarantine_ms()) * MS + RECOVERY
    }

    /// When what clients acquired is over, unless clocks went back.
    pub(super) fn opens(&self) -> Us {
        let longest = self.insts.iter().map(|i| i.max_ttl_ms).max().unwrap_or_default();
        let longer_ms = if self.profile.reterms { LONGER_MS } else { 0 };
        self.closing_time() + (longest + longest / 50 + LOCK_DELAY_MS + longer_ms) * MS + 4 * SEC
    }

    /// After the faults: scans for leases that should be gone, then the liveness checks.
    pub(super) fn plan_liveness_checks(&mut self) {
        let opens = self.opens();
        for resource in 0..self.resources.len() {
            self.at(opens, Event::CheckLiveness { resource });
        }
        for i in 1..=8 {
            self.at(self.now + i * 700 * MS, Event::Scan);
        }
    }

    fn send_check(&mut self, resource: usize, inst: usize, token: &TokenHash, operation: Operation) {
        let ttl = self.profile.max_ttl_ms;
        let req = self.ask(Requester::LivenessCheck(resource), inst, (resource, token.clone()), operation, ttl);
        self.liveness[resource].req = req;
    }

    /// Instances of the cluster.
    pub(super) fn good_insts(&self) -> usize {
        self.insts.len() - usize::from(self.profile.variant == Variant::OtherCluster)
    }

    /// Whether a lease lasts longer because all clocks went back: an end is a time of the nodes' clocks, and so is that of a kept
    /// lease. By no more than they went back in all. The same if leases prevent a quorum, and clocks went back that instances had
    /// followed: that of an only node, or of a majority.
    fn lasts_by_a_clock_that_went_back(&self, resource: usize) -> bool {
        let (name, all) = (&self.resources[resource], self.servers.len());
        let stands = (0..all).filter(|node| !self.leases_on(*node, name).is_empty()).count();
        let by_followed_us = if all - stands < quorum_of(all) { self.checker.followed_back_us } else { 0 };
        stands > 0 && self.now < self.opens() + self.checker.clocks_back_us.max(by_followed_us)
    }

    /// The next step of a resource's check.
    pub(super) fn check_liveness(&mut self, resource: usize) {
        if !self.checker.taken_by_other.is_empty()
            && self.liveness[resource].step == 0
            && !self.liveness[resource].waited
        {
            if !self.profile.other_is_stopped {
                self.part_clusters();
            }
            self.liveness[resource].waited = true;
            let longest = self.opens() - self.closing_time();
            let at = self.now + RECOVERY + self.quarantine_ms() * MS + longest;
            return self.at(at, Event::CheckLiveness { resource });
        }
        let good = self.good_insts();
        let (a, b) = (resource % good, (resource + 1) % good);
        let ttl_ms = self.profile.max_ttl_ms;
        match self.liveness[resource].step {
            0 if self.lasts_by_a_clock_that_went_back(resource) => {
                self.at(self.now + SEC, Event::CheckLiveness { resource });
            }
            0 => {
                let (first, second) = (token_of(self.id()), token_of(self.id()));
                self.liveness[resource].first = Some(first.clone());
                self.liveness[resource].second = Some(second);
                self.liveness[resource].step = 1;
                self.send_check(resource, a, &first, Operation::Acquire { ttl_ms, wait_ms: ACQUIRE_BOUND_MS });
                self.at(self.now + 12 * SEC, Event::CheckLiveness { resource });
            }
            // Granted: now another client waits for it.
            2 => {
                let second = self.liveness[resource].second.clone().expect("begun");
                self.liveness[resource].step = 3;
                self.send_check(resource, b, &second, Operation::Acquire { ttl_ms, wait_ms: 6_000 });
                self.at(self.now + HELD.min(ttl_ms * MS / 2), Event::CheckLiveness { resource });
            }
            3 => {
                let first = self.liveness[resource].first.clone().expect("begun");
                let waiting = self.liveness[resource].req;
                self.note_release(&first);
                self.send_check(resource, a, &first, Operation::Release);
                let check = &mut self.liveness[resource];
                (check.req, check.step, check.released) = (waiting, 4, self.now);
            }
            5 => {
                let second = self.liveness[resource].second.clone().expect("begun");
                self.note_release(&second);
                self.liveness[resource].step = 6;
                self.send_check(resource, b, &second, Operation::Release);
            }
            7 => {}
            step => self.fail(format!("liveness: the liveness check of resource {resource} is stuck in step {step}")),
        }
    }

    /// An answer reaches an check.
    pub(super) fn check_answered(&mut self, resource: usize, req: u64, answer: &Answer) {
        if self.liveness[resource].req != req {
            return; // of the first release
        }
        let is_good = matches!(answer, Answer::Good { .. });
        let (now, released) = (self.now, self.liveness[resource].released);
        match self.liveness[resource].step {
            1 if is_good => self.liveness[resource].step = 2,
            4 if is_good && now <= released + HANDOVER_BOUND => self.liveness[resource].step = 5,
            4 if is_good => {
                let late = (now - released) / MS;
                return self.fail(format!("liveness: resource {resource} was handed over {late} ms after its release"));
            }
            6 => {
                (self.liveness[resource].step, self.liveness[resource].passed) = (7, true);
                if self.liveness.iter().all(|a| a.passed) {
                    for resource in 0..self.resources.len() {
                        self.at(now, Event::CheckQueue { resource });
                    }
                }
                return;
            }
            step => return self.fail(format!("liveness: resource {resource} is refused in step {step}")),
        }
        self.at(now, Event::CheckLiveness { resource });
    }
}
