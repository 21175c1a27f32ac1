//! What was promised, and whether it was kept: every answer is held against all earlier ones on the
//! world's own time, which no inhabitant can read. Knows the promises of `docs/safety.md`, and no
//! fault but by its traces.

use std::cell::Cell;
use std::collections::BTreeMap;

use super::clients::{Ask, Verb};
use super::profile::Odd;
use super::sometimes::Sometimes;
use super::world::{MS, SEC, Us, World};
use crate::protocol::{AcquireArgs, LeaseRecord, Request, RequestTime};
use crate::types::{Fence, ResourceName, TokenHash};

/// After everything healed and the instance runs again, what is left of given-up attempts is gone within this: the
/// longest pause between two tries of a clean-up, its time-out, the longest reconnect and some latency.
const CLEANUP_BOUND: Us = 4 * SEC;

/// A promise: nobody else holds the resource from `from` to `to`.
#[derive(Debug, Clone)]
struct Hold {
    resource: ResourceName,
    token: TokenHash,
    fence: Fence,
    from: Us,
    to: Us,
    extended: bool,
}

/// A grant that was answered.
#[derive(Debug, Clone)]
struct Win {
    resource: ResourceName,
    token: TokenHash,
    fence: Fence,
    answered: Us,
}

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Ledger {
    holds: Vec<Hold>,
    wins: Vec<Win>,
    /// When each token's release was first sent.
    released: BTreeMap<TokenHash, Us>,
    /// Until when the lease was promised that was let go.
    let_go: BTreeMap<TokenHash, Us>,
    /// When each token's release was answered as done.
    ended: BTreeMap<TokenHash, Us>,
    /// The last round of each client's request.
    sent: BTreeMap<u64, Round>,
    /// Attempts that an instance gave up.
    given_up: BTreeMap<String, GivenUp>,
    /// The request that last tried for each token.
    last_try: BTreeMap<TokenHash, u64>,
    /// Nodes that came back without the last of what they did: a cancel may be part of it.
    pub(super) lost_tail: std::collections::BTreeSet<usize>,
    /// The highest fence that each guarded store has seen.
    stores: BTreeMap<usize, Fence>,
    /// Clocks of nodes were stepped by more than the guard.
    pub(super) clocks_stepped: bool,
    /// All clocks were set back at once, for good.
    pub(super) clocks_went_back: bool,
    pub(super) grants: u64,
    pub(super) extends: u64,
}

/// An attempt that an instance gave up.
#[derive(Debug)]
struct GivenUp {
    inst: usize,
    life: u32,
    at: Us,
    /// Whose it was.
    req: u64,
}

/// One round of a request: an attempt, or an extension.
#[derive(Debug)]
struct Round {
    /// When the first of its requests left.
    at: Us,
    sent_at: RequestTime,
    attempt: Option<String>,
    given_up: Vec<String>,
}

thread_local! {
    /// The client's request that the running task serves; 0 where it serves none.
    static SERVED: Cell<u64> = const { Cell::new(0) };
}

/// Names the client's request that is served from now on, and returns the one before.
pub(super) fn now_serving(req: u64) -> u64 {
    SERVED.replace(req)
}

/// What an instance promised in an answer.
#[derive(Debug, Clone)]
pub(super) struct Promise {
    pub(super) fence: Fence,
    /// When it was written.
    pub(super) at: Us,
    /// Until when it is good.
    pub(super) until: Us,
    /// Until when the caller takes it for good, by its own clock.
    pub(super) trusted: Us,
    pub(super) joined: bool,
}

impl Ledger {
    /// A request left an instance.
    pub(super) fn was_sent(&mut self, request: &Request, sent_at: RequestTime, at: Us) {
        let attempt = match request {
            Request::Acquire(AcquireArgs { attempt, token, .. }) => {
                self.last_try.insert(token.clone(), SERVED.get());
                Some(attempt.as_str())
            }
            Request::Update(_) => None,
            _ => return,
        };
        let req = SERVED.get();
        match self.sent.get_mut(&req) {
            None => {
                let attempt = attempt.map(str::to_owned);
                self.sent.insert(req, Round { at, sent_at, attempt, given_up: Vec::new() });
            }
            // A write-back belongs to the round of its attempt.
            Some(round) if round.attempt.is_some() && attempt.is_none() => {}
            Some(round) if round.sent_at == sent_at && round.attempt.as_deref() == attempt => {}
            Some(round) => {
                round.given_up.extend(round.attempt.take());
                (round.at, round.sent_at, round.attempt) = (at, sent_at, attempt.map(str::to_owned));
            }
        }
    }
}

impl World {
    /// The lease that stands on a node.
    pub(super) fn lease_on(&self, node: usize, resource: &ResourceName) -> Option<(&LeaseRecord, u64)> {
        self.servers[node].machine.lease_of(self.node_clock(node), resource)
    }

    /// An instance answered that it granted.
    pub(super) fn check_grant(&mut self, ask: &Ask, promise: &Promise) {
        let (resource, token) = (ask.resource.clone(), ask.token.clone());
        self.ledger.grants += 1;
        self.seen.count(Sometimes::Granted);
        if promise.joined {
            self.seen.count(Sometimes::ReplayJoined);
        }
        if self.calm {
            self.seen.count(Sometimes::GrantedAfterCalm);
        }
        self.check_promise(ask, promise, "grant");
        if self.ledger.released.contains_key(&token) {
            return self.check_dead(&token, ask.sent);
        }
        let newest = self.ledger.wins.iter().filter(|w| w.resource == resource).max_by_key(|w| w.fence);
        if newest.is_some_and(|w| w.fence > promise.fence && self.may_fall(w.answered)) {
            self.ledger.stores.clear();
        }
        for win in self.ledger.wins.iter().filter(|w| w.resource == resource && w.token != token) {
            let text = if win.fence == promise.fence && !self.may_fall(win.answered) {
                format!("fence {} was given to {:?} and to {token:?}", win.fence, win.token)
            } else if win.answered < ask.sent && win.fence > promise.fence && !self.may_fall(win.answered) {
                let first = format!("{:?} had fence {} at {} ms", win.token, win.fence, win.answered / MS);
                format!("fences fell: {first}, then {token:?} asked at {} ms and got {}", ask.sent / MS, promise.fence)
            } else {
                continue;
            };
            return self.fail(text);
        }
        let answered = promise.at;
        self.ledger.wins.push(Win { resource, token, fence: promise.fence, answered });
        self.check_overlap(ask, promise);
    }

    /// Where a majority forgets, fences go on from the clock: only then may a stepped clock lower or repeat
    /// them. A node that forgot before may not have been told the fences since: where there are instances
    /// with another node list, it may be theirs now.
    fn may_fall(&self, since: Us) -> bool {
        let is_untold = |at: Us| at >= since || self.profile.odd == Odd::OtherCluster;
        let forgot = self.servers.iter().filter(|s| s.forgot.is_some_and(is_untold)).count();
        self.ledger.clocks_stepped && forgot > self.profile.nodes / 2
    }

    /// The token was released before: it must not come back while its tombstones stand.
    fn check_dead(&mut self, token: &TokenHash, sent: Us) {
        let Some(ended) = self.ledger.ended.get(token).copied() else { return };
        let shaken = self.servers.iter().any(|s| s.shaken.is_some_and(|at| at >= ended.saturating_sub(SEC)));
        if !shaken && sent > ended {
            self.fail(format!("{token:?} was granted again although its release was answered at {} ms", ended / MS));
        }
    }

    /// An instance answered that it extended.
    pub(super) fn check_extend(&mut self, ask: &Ask, promise: &Promise) {
        self.ledger.extends += 1;
        self.seen.count(Sometimes::Extended);
        self.check_promise(ask, promise, "extend");
        if self.ledger.released.contains_key(&ask.token) {
            return;
        }
        // Its present lease: a delayed duplicate of its acquire may have begun another, with another fence.
        let is_own = |w: &&Win| w.token == ask.token && w.resource == ask.resource && w.fence == promise.fence;
        let own = self.ledger.wins.iter().filter(is_own);
        if let Some(since) = own.map(|w| w.answered).min() {
            // An instance that was stopped may answer late for a token that was released meanwhile.
            let counts = |w: &Win| self.ledger.released.get(&w.token).is_none_or(|at| *at > w.answered);
            let other =
                |w: &&Win| w.resource == ask.resource && w.token != ask.token && w.answered > since && counts(w);
            if let Some(win) = self.ledger.wins.iter().find(other).filter(|w| w.answered < promise.at) {
                let text = format!("{:?} was extended although {:?} was granted at", ask.token, win.token);
                let at = win.answered / MS;
                return self.fail(format!("{text} {at} ms, after its own grant at {} ms", since / MS));
            }
        }
        self.check_overlap(ask, promise);
    }

    /// Nobody else's promise meets this one.
    fn check_overlap(&mut self, ask: &Ask, promise: &Promise) {
        let to = promise.until.max(promise.trusted);
        if to <= promise.at {
            return;
        }
        let now = self.now;
        self.ledger.holds.retain(|h| h.to + 10 * SEC > now);
        let clash = self
            .ledger
            .holds
            .iter()
            .find(|h| h.resource == ask.resource && h.token != ask.token && h.from < to && promise.at < h.to);
        if let Some(other) = clash {
            let kind = if other.extended { "extended" } else { "granted" };
            let first = format!("{:?} {kind} {} to {} ms", other.token, other.from / MS, other.to / MS);
            let second = format!("{:?} {} to {} ms", ask.token, promise.at / MS, to / MS);
            let text = format!(
                "two holders of {}: {first} (fence {}), {second} ({})",
                ask.resource, other.fence, promise.fence
            );
            return self.fail(text);
        }
        let extended = matches!(ask.verb, Verb::Extend { .. });
        self.ledger.holds.push(Hold {
            resource: ask.resource.clone(),
            token: ask.token.clone(),
            fence: promise.fence,
            from: promise.at,
            to,
            extended,
        });
    }

    /// The promise is within the TTL from the first request of its round, and a quorum of nodes
    /// holds the lease for at least as long, or has forgotten it since.
    fn check_promise(&mut self, ask: &Ask, promise: &Promise, what: &str) {
        let Some(sent) = self.ledger.sent.get(&ask.req).map(|round| round.at) else {
            return self.fail(format!("{what} without a request"));
        };
        let ttl = match ask.verb {
            Verb::Acquire { ttl_ms, .. } => ttl_ms,
            Verb::Extend { ttl_ms, .. } => ttl_ms.unwrap_or(ask.lease_ttl_ms),
            Verb::Release => return,
        };
        if promise.until > sent + ttl * MS {
            let over = (promise.until - sent - ttl * MS) / MS;
            let text = format!("{what} of {:?} promises {over} ms more than its TTL of {ttl} ms", ask.token);
            return self.fail(text);
        }
        if self.ledger.released.contains_key(&ask.token) {
            return;
        }
        let left_ms = promise.until.saturating_sub(promise.at.max(self.now)) / MS;
        let holds = |node: &usize| {
            let has = self.lease_on(*node, &ask.resource);
            let has = has.is_some_and(|(record, left)| record.token == ask.token && left >= left_ms);
            has || self.servers[*node].shaken.is_some_and(|at| at + 10 * MS >= sent) || !self.servers[*node].up
        };
        let holding = self.profile.list_of(ask.inst).filter(holds).count();
        if holding <= self.profile.nodes / 2 && promise.at == self.now {
            let text = format!("{what} of {:?} promises {left_ms} ms, but only {holding} nodes hold it", ask.token);
            self.fail(text);
        }
    }

    /// A client lets go.
    pub(super) fn note_release(&mut self, token: &TokenHash) {
        let now = self.now;
        self.ledger.released.entry(token.clone()).or_insert(now);
        for hold in self.ledger.holds.iter_mut().filter(|h| h.token == *token && h.to > now) {
            let until = self.ledger.let_go.entry(token.clone()).or_insert(hold.to);
            *until = hold.to.max(*until);
            hold.to = now;
        }
    }

    /// An instance said that a lease was lost when it was to be released.
    pub(super) fn check_lost(&mut self, ask: &Ask, at: Us) {
        self.seen.count(Sometimes::ReleaseLost);
        if let Some(until) = self.ledger.let_go.get(&ask.token).filter(|until| at < **until) {
            let text = format!("the release of {:?} was told at {} ms that it was lost", ask.token, at / MS);
            self.fail(format!("{text}, which was promised until {} ms", until / MS));
        }
    }

    /// An instance said that the release is done.
    pub(super) fn note_released(&mut self, token: &TokenHash, at: Us) {
        self.seen.count(Sometimes::Released);
        self.ledger.ended.entry(token.clone()).or_insert(at);
    }

    /// What a request's attempts came to: all but the last were given up, that too unless it was kept.
    pub(super) fn note_attempts(&mut self, inst: usize, req: u64, is_kept: bool) {
        let (life, at) = (self.insts[inst].life, self.local(inst));
        let Some(round) = self.ledger.sent.remove(&req) else { return };
        let last = round.attempt.filter(|_| !is_kept);
        for attempt in round.given_up.into_iter().chain(last) {
            self.ledger.given_up.insert(attempt, GivenUp { inst, life, at, req });
        }
    }

    /// A write to a guarded store, which rejects smaller fences than it has seen. A holder's is never
    /// rejected.
    pub(super) fn store(&mut self, resource: usize, token: &TokenHash, fence: Fence) {
        let now = self.now;
        let name = &self.resources[resource];
        let is_held = |h: &Hold| h.token == *token && h.resource == *name && (h.from..h.to).contains(&now);
        let newest = self.ledger.stores.get(&resource).copied().unwrap_or(Fence(0));
        if fence >= newest {
            self.ledger.stores.insert(resource, fence);
        } else if self.ledger.holds.iter().any(is_held) {
            self.fail(format!("the store of {name} rejects fence {fence} of its holder {token:?}: it has {newest}"));
        } else {
            self.seen.count(Sometimes::ZombieRejected);
        }
    }

    /// In calm, no node may keep a claim of an attempt that its instance gave up long enough ago. Another
    /// request with the same token may join such a claim and prolong its key beyond the time for which
    /// the clean-up goes on: then the TTL bounds it, from the last try of that token.
    pub(super) fn scan(&mut self) {
        let now = self.now;
        if self.ledger.clocks_stepped {
            return; // a clock that was stepped back lengthens what a clean-up leaves to the TTL
        }
        for node in (0..self.servers.len()).filter(|n| !self.ledger.lost_tail.contains(n)).collect::<Vec<_>>() {
            for resource in self.resources.clone() {
                let Some((record, left)) = self.lease_on(node, &resource) else { continue };
                let last = self.ledger.last_try.get(&record.token).copied();
                let ghost = record.claims.split(',').find(|claim| {
                    let given_up = self.ledger.given_up.get(*claim).filter(|one| last.is_none_or(|req| req == one.req));
                    given_up.is_some_and(|one| {
                        let inst = &self.insts[one.inst];
                        let healed = one.at.max(self.profile.calm_ms * MS).max(inst.local);
                        inst.life == one.life && now >= healed + CLEANUP_BOUND
                    })
                });
                if let Some(claim) = ghost {
                    let text = format!("node {node} still holds {resource} for {:?}, claim {claim}", record.token);
                    return self.fail(format!("{text}, which was given up long ago ({left} ms left)"));
                }
            }
        }
    }
}
