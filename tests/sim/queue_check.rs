//! The check of the queues at the end of each run, when all faults have healed: at every instance some clients wait for
//! one resource, which is handed over from one to the next. Subscriber connections break and callers hang up
//! meanwhile. Everybody who stays must be served, each soon after the one before.

use super::clients::{Answer, Operation, Requester, token_of};
use super::coverage::HardState;
use super::world::{Event, MS, SEC, Us, World};
use crate::types::TokenHash;

/// Waiters at each instance.
const WAITERS: usize = 2;
/// How long each is willing to wait.
const PATIENCE_MS: u64 = 30_000;
/// Maximum time from the end of one lease to the next grant: some rounds that are split, with their pauses, or the
/// poll of a waiter whose subscriptions broke.
const HANDOVER_MAX: Us = 2_000 * MS;

/// State of the check of one resource.
#[derive(Debug, Default)]
pub(super) struct QueueCheck {
    /// Requests that wait, with their tokens.
    waiting: Vec<(u64, TokenHash)>,
    /// Who holds it, and through which instance it releases.
    holding: Option<(u64, TokenHash)>,
    /// When the resource was last free for the next one.
    free_since: Us,
    /// A lease may be left to its TTL, as after a lost answer.
    pub(super) is_blocked: bool,
    pub(super) has_begun: bool,
    pub(super) passed: bool,
}

impl World {
    /// Begins the check of a resource, or goes on with it.
    pub(super) fn check_queue(&mut self, resource: usize) {
        if !self.queue_checks[resource].has_begun {
            return self.begin_queue_check(resource);
        }
        let check = &self.queue_checks[resource];
        if let Some((_, token)) = check.holding.clone() {
            let inst = self.client_rng.index(self.good_insts());
            self.note_release(&token);
            let (ttl, now) = (self.profile.max_ttl_ms, self.now);
            self.ask(Requester::QueueCheck(resource), inst, (resource, token), Operation::Release, ttl);
            let check = &mut self.queue_checks[resource];
            (check.holding, check.free_since) = (None, now);
            self.passes_if_done(resource);
        }
    }

    fn begin_queue_check(&mut self, resource: usize) {
        self.queue_checks[resource].has_begun = true;
        let (ttl_ms, wait_ms) = (self.profile.max_ttl_ms, PATIENCE_MS);
        for i in 0..WAITERS * self.good_insts() {
            let (inst, token) = (i % self.good_insts(), token_of(self.id()));
            let operation = Operation::Acquire { ttl_ms, wait_ms };
            let req = self.ask(Requester::QueueCheck(resource), inst, (resource, token.clone()), operation, ttl_ms);
            self.queue_checks[resource].waiting.push((req, token));
            if self.client_rng.chance(15) {
                let at = self.now + self.client_rng.range(1, 400) * MS;
                self.at(at, Event::Gone { req });
            }
            if self.client_rng.chance(25) {
                let node = self.client_rng.index(self.profile.nodes);
                let at = self.now + self.client_rng.range(1, 400) * MS;
                self.at(at, Event::BreakFeed { inst, node });
            }
        }
        let now = self.now;
        self.queue_checks[resource].free_since = now;
        self.at(now + 50 * MS, Event::WatchQueue { resource });
    }

    /// Somebody waits, nobody holds, and it lasts too long.
    pub(super) fn watch_queue(&mut self, resource: usize) {
        let check = &mut self.queue_checks[resource];
        check.waiting.retain(|(req, _)| self.requests.contains_key(req));
        if check.passed {
            return;
        }
        let limit = HANDOVER_MAX + if check.is_blocked { (self.profile.max_ttl_ms + 1_100) * MS } else { 0 };
        let sleeps = check.holding.is_none() && !check.waiting.is_empty() && self.now > check.free_since + limit;
        if sleeps {
            let (late, left) = ((self.now - check.free_since) / MS, check.waiting.len());
            return self.fail(format!("waiting: {left} sleep beside r{resource}, which has been free for {late} ms"));
        }
        self.at(self.now + 50 * MS, Event::WatchQueue { resource });
        self.passes_if_done(resource);
    }

    /// A caller of the check hung up: what it was granted may be undone, or is left to its TTL.
    pub(super) fn queue_check_hung_up(&mut self, resource: usize, is_kept: bool) {
        let now = self.now;
        let check = &mut self.queue_checks[resource];
        check.is_blocked |= is_kept;
        check.free_since = check.free_since.max(now);
    }

    /// An answer reaches the check.
    pub(super) fn queue_check_answered(&mut self, resource: usize, req: u64, answer: &Answer) {
        let check = &mut self.queue_checks[resource];
        let Some(index) = check.waiting.iter().position(|(other, _)| *other == req) else { return };
        let own = check.waiting.remove(index);
        if !matches!(answer, Answer::Good { .. }) {
            return self.fail(format!("waiting: request {req} for r{resource} was refused although all was well"));
        }
        if check.holding.is_some() {
            return self.fail(format!("waiting: request {req} was granted r{resource}, which another holds"));
        }
        check.holding = Some(own);
        self.coverage.count(HardState::QueueServed);
        let at = self.now + self.client_rng.range(0, 60) * MS;
        self.at(at, Event::CheckQueue { resource });
    }

    fn passes_if_done(&mut self, resource: usize) {
        let check = &mut self.queue_checks[resource];
        check.passed |= check.waiting.is_empty() && check.holding.is_none();
        if self.queue_checks.iter().all(|check| check.passed) {
            self.at(self.now + SEC, Event::Done);
        }
    }
}
