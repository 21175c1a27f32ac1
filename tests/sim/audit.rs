//! The end of each history: when all has healed and every quarantine must be over, each resource is
//! taken, waited for, handed over and given back, within bounds. Stands apart from the clients
//! because here every refusal is a failure. Knows the answers of an instance only.

use super::clients::{Asker, Resp, Verb, token_of};
use super::profile::{LOCK_DELAY_MS, Odd};
use super::world::{Event, MS, SEC, Us, World};
use crate::types::TokenHash;

/// After the calm and a whole quarantine: a clock that is off until somebody has seen it, noticing (a
/// probe and its time-out), a second quarantine's order, seeding in two looks.
const RECOVERY: Us = 8 * SEC;
/// How long the first acquire may take where nobody is in the way.
const ACQUIRE_BOUND_MS: u64 = 3_000;
/// How long after a release a waiter elsewhere gets its turn: a poll, its jitter, a round.
const HANDOVER_BOUND: Us = 1_500 * MS;
/// How long the lease is held before it is handed over.
const HELD: Us = 600 * MS;

/// Where the audit of one resource stands.
#[derive(Debug, Default)]
pub(super) struct Auditor {
    step: u32,
    req: u64,
    first: Option<TokenHash>,
    second: Option<TokenHash>,
    released: Us,
    pub(super) passed: bool,
}

impl World {
    /// When clients ask for nothing more. Where all clocks went back, a quarantine that another one replaced may be
    /// owed once more.
    pub(super) fn closing_time(&self) -> Us {
        let quarantines = if self.ledger.clocks_went_back { 2 } else { 1 };
        (self.profile.calm_ms + quarantines * self.quarantine_ms()) * MS + RECOVERY
    }

    /// After the calm: searches for what should be gone, then the audits.
    pub(super) fn plan_audit(&mut self) {
        let longest = self.insts.iter().map(|i| i.max_ttl_ms).max().unwrap_or_default();
        let opens = self.closing_time() + (longest + longest / 50 + LOCK_DELAY_MS) * MS + 4 * SEC;
        for resource in 0..self.resources.len() {
            self.at(opens, Event::Audit { resource });
        }
        for i in 1..=8 {
            self.at(self.now + i * 700 * MS, Event::Scan);
        }
    }

    fn auditor_asks(&mut self, resource: usize, inst: usize, token: &TokenHash, verb: Verb) {
        let ttl = self.profile.max_ttl_ms;
        let req = self.ask(Asker::Auditor(resource), inst, (resource, token.clone()), verb, ttl);
        self.auditors[resource].req = req;
    }

    /// Instances that share a node list.
    fn good_insts(&self) -> usize {
        self.insts.len() - usize::from(self.profile.odd == Odd::OtherCluster)
    }

    /// The next step of a resource's audit.
    pub(super) fn audit(&mut self, resource: usize) {
        if self.profile.odd == Odd::OtherCluster {
            // It may have claimed a wiped node first: that is refused and named, and waits for an operator.
            self.done = true;
            return;
        }
        let good = self.good_insts();
        let (a, b) = (resource % good, (resource + 1) % good);
        let ttl_ms = self.profile.max_ttl_ms;
        match self.auditors[resource].step {
            0 => {
                let (first, second) = (token_of(self.id()), token_of(self.id()));
                self.auditors[resource].first = Some(first.clone());
                self.auditors[resource].second = Some(second);
                self.auditors[resource].step = 1;
                self.auditor_asks(resource, a, &first, Verb::Acquire { ttl_ms, wait_ms: ACQUIRE_BOUND_MS });
                self.at(self.now + 12 * SEC, Event::Audit { resource });
            }
            // Granted: now another one waits for it.
            2 => {
                let second = self.auditors[resource].second.clone().expect("begun");
                self.auditors[resource].step = 3;
                self.auditor_asks(resource, b, &second, Verb::Acquire { ttl_ms, wait_ms: 6_000 });
                self.at(self.now + HELD.min(ttl_ms * MS / 2), Event::Audit { resource });
            }
            3 => {
                let first = self.auditors[resource].first.clone().expect("begun");
                let waiting = self.auditors[resource].req;
                self.note_release(&first);
                self.auditor_asks(resource, a, &first, Verb::Release);
                let auditor = &mut self.auditors[resource];
                (auditor.req, auditor.step, auditor.released) = (waiting, 4, self.now);
            }
            5 => {
                let second = self.auditors[resource].second.clone().expect("begun");
                self.note_release(&second);
                self.auditors[resource].step = 6;
                self.auditor_asks(resource, b, &second, Verb::Release);
            }
            7 => {}
            step => self.fail(format!("liveness: the audit of resource {resource} is stuck in step {step}")),
        }
    }

    /// An answer reaches an auditor.
    pub(super) fn audited(&mut self, resource: usize, req: u64, resp: &Resp) {
        if self.auditors[resource].req != req {
            return; // of the first release
        }
        let is_good = matches!(resp, Resp::Good { .. });
        let (now, released) = (self.now, self.auditors[resource].released);
        match self.auditors[resource].step {
            1 if is_good => self.auditors[resource].step = 2,
            4 if is_good && now <= released + HANDOVER_BOUND => self.auditors[resource].step = 5,
            4 if is_good => {
                let late = (now - released) / MS;
                return self.fail(format!("liveness: resource {resource} was handed over {late} ms after its release"));
            }
            6 => {
                (self.auditors[resource].step, self.auditors[resource].passed) = (7, true);
                if self.auditors.iter().all(|a| a.passed) {
                    self.done = true;
                }
                return;
            }
            step => return self.fail(format!("liveness: resource {resource} is refused in step {step}")),
        }
        self.at(now, Event::Audit { resource });
    }
}
