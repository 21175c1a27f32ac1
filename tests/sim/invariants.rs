//! Checks the guarantees of `docs/safety.md`: every answer is compared with all earlier ones, on the
//! world's true time, which no simulated process can read.

use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet};

use super::clients::{ClientRequest, Operation, Requester};
use super::coverage::HardState;
use super::profile::{GUARD_MS, Variant};
use super::world::{EPOCH_US, MS, SEC, Us, World};
use crate::protocol::{AcquireArgs, AcquireSetArgs, AcquireSharedArgs, LeaseRecord, Request, RequestTime, View};
use crate::redlock::quorum::quorum_of;
use crate::types::{Fence, Mode, ResourceName, TokenHash};

/// Maximum time, after all faults healed and the instance runs again, until released leases and those of abandoned
/// attempts are gone: the longest pause between two tries of a clean-up, its timeout, the longest reconnect and some latency.
const CLEANUP_BOUND: Us = 4 * SEC;
/// The same for released leases: no attempt is in progress, so one try and one pause fewer.
const RELEASE_BOUND: Us = 3 * SEC;

/// No other lease may hold the resource from `from` to `to`.
#[derive(Debug, Clone)]
struct Hold {
    resource: ResourceName,
    token: TokenHash,
    fence: Fence,
    mode: Mode,
    from: Us,
    to: Us,
    extended: bool,
}

/// A grant that was answered.
#[derive(Debug, Clone)]
struct AnsweredGrant {
    resource: ResourceName,
    token: TokenHash,
    fence: Fence,
    mode: Mode,
    answered: Us,
}

/// Everything that was answered so far.
#[derive(Debug, Default)]
pub(super) struct InvariantChecker {
    holds: Vec<Hold>,
    wins: Vec<AnsweredGrant>,
    /// When each token's release was first sent.
    released: BTreeMap<TokenHash, Us>,
    /// Tokens whose downgrade was sent: they count as shared from then on.
    downgraded: BTreeSet<TokenHash>,
    /// Until when the lease was promised that was let go.
    let_go: BTreeMap<TokenHash, Us>,
    /// Each token's release that was first answered as done.
    ended: BTreeMap<TokenHash, WonRelease>,
    /// When each token was first tried.
    first_tried: BTreeMap<TokenHash, Us>,
    /// When each token was last tried.
    tried: BTreeMap<TokenHash, Us>,
    /// The last round of each client's request.
    sent: BTreeMap<u64, Round>,
    /// Attempts that an instance gave up.
    given_up: BTreeMap<String, GivenUp>,
    /// Attempts whose grants were answered.
    kept: BTreeSet<String>,
    /// The requests that tried for each token.
    pub(super) tried_by: BTreeMap<TokenHash, BTreeSet<u64>>,
    /// Nodes that came back without the last of what they did: a cancel may be part of it.
    pub(super) lost_tail: BTreeSet<usize>,
    /// Nodes that the instance with another node list gave a vote.
    pub(super) taken_by_other: BTreeSet<usize>,
    /// The highest fence that each guarded store has seen.
    stores: BTreeMap<usize, Fence>,
    /// Clocks of nodes were stepped by more than the guard.
    pub(super) clocks_stepped: bool,
    /// By how much all clocks were set back at once, for good, in all.
    pub(super) clocks_back_us: Us,
    /// By how much clocks went back that instances had taken for the nodes' time, in all.
    pub(super) followed_back_us: Us,
    pub(super) grants: u64,
    pub(super) extends: u64,
}

/// An attempt that an instance gave up.
#[derive(Debug)]
struct GivenUp {
    inst: usize,
    life: u32,
    /// When its first request left.
    sent: Us,
    at: Us,
    /// Whose it was.
    req: u64,
}

/// A release that was answered as done.
#[derive(Debug)]
struct WonRelease {
    inst: usize,
    life: u32,
    at: Us,
}

/// One round of a request: an attempt, or an extension.
#[derive(Debug)]
struct Round {
    /// When the first of its requests left.
    at: Us,
    sent_at: RequestTime,
    attempt: Option<String>,
    /// With when each left.
    given_up: Vec<(String, Us)>,
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
    pub(super) mode: Mode,
    /// When it was written.
    pub(super) at: Us,
    /// Until when it is good.
    pub(super) until: Us,
    /// Until when the caller takes it for good, by its own clock.
    pub(super) trusted: Us,
    pub(super) joined: bool,
}

impl InvariantChecker {
    /// Its downgrade was sent.
    pub(super) fn is_downgraded(&self, token: &TokenHash) -> bool {
        self.downgraded.contains(token)
    }

    /// Not in the order of time: an instance that is stopped midway sends later than others that act after it.
    fn note_try(&mut self, token: &TokenHash, at: Us) {
        self.tried_by.entry(token.clone()).or_default().insert(SERVED.get());
        let last = self.tried.entry(token.clone()).or_insert(at);
        *last = at.max(*last);
        let first = self.first_tried.entry(token.clone()).or_insert(at);
        *first = at.min(*first);
    }

    /// A request left an instance. Returns whether it is that of an attempt whose grant was answered: the rest of the nodes is
    /// sent it, and nobody tries again.
    pub(super) fn was_sent(&mut self, request: &Request, sent_at: RequestTime, at: Us) -> bool {
        if matches!(request, Request::Acquire(args) if self.kept.contains(args.attempt.as_str())) {
            return true;
        }
        let attempt = match request {
            Request::Acquire(AcquireArgs { attempt, token, .. })
            | Request::AcquireShared(AcquireSharedArgs { attempt, token, .. }) => {
                self.note_try(token, at);
                Some(attempt.as_str())
            }
            Request::AcquireSet(AcquireSetArgs { attempt, token, .. }) => {
                self.note_try(token, at);
                Some(attempt.as_str())
            }
            Request::Update(_) | Request::Downgrade(_) => None,
            _ => return false,
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
            // Repeated in another view.
            Some(round) if attempt.is_some() && round.attempt.as_deref() == attempt => {}
            Some(round) => {
                round.given_up.extend(round.attempt.take().map(|attempt| (attempt, round.at)));
                (round.at, round.sent_at, round.attempt) = (at, sent_at, attempt.map(str::to_owned));
            }
        }
        false
    }
}

impl World {
    /// The leases that stand on a node.
    pub(super) fn leases_on(&self, node: usize, resource: &ResourceName) -> Vec<(&LeaseRecord, u64)> {
        self.servers[node].machine.leases_of(self.node_clock(node), resource)
    }

    /// This token's lease on a node.
    pub(super) fn lease_on(
        &self,
        node: usize,
        resource: &ResourceName,
        token: &TokenHash,
    ) -> Option<(&LeaseRecord, u64)> {
        self.leases_on(node, resource).into_iter().find(|(record, _)| record.token == *token)
    }

    /// An instance answered that it granted.
    pub(super) fn check_grant(&mut self, request: &ClientRequest, promise: &Promise) {
        let (resource, token) = (request.resource.clone(), request.token.clone());
        self.checker.grants += 1;
        self.coverage.count(HardState::Granted);
        if promise.joined {
            self.coverage.count(HardState::ReplayJoined);
        }
        if self.calm {
            self.coverage.count(HardState::GrantedAfterCalm);
        }
        self.check_promise(request, promise, "grant");
        if self.checker.released.contains_key(&token) {
            return self.check_dead(&token, request.sent);
        }
        let newest = self.checker.wins.iter().filter(|w| w.resource == resource).max_by_key(|w| w.fence);
        if newest.is_some_and(|w| w.fence > promise.fence && self.may_fall(w.answered)) {
            self.checker.stores.clear();
        }
        // A replay joins its lease with the fence that it got, and others may have been granted beside it since.
        let first = self.checker.first_tried.get(&token).copied().filter(|_| promise.mode != Mode::Exclusive);
        let asked = first.map_or(request.sent, |first| first.min(request.sent));
        for win in self.checker.wins.iter().filter(|w| w.resource == resource && w.token != token) {
            let text = if win.fence == promise.fence && !self.may_fall(win.answered) {
                format!("fence {} was given to {:?} and to {token:?}", win.fence, win.token)
            } else if win.answered < asked && win.fence > promise.fence && !self.may_fall(win.answered) {
                let first = format!("{:?} had fence {} at {} ms", win.token, win.fence, win.answered / MS);
                format!(
                    "fences fell: {first}, then {token:?} asked at {} ms and got {}",
                    request.sent / MS,
                    promise.fence
                )
            } else {
                continue;
            };
            return self.fail(text);
        }
        let answered = promise.at;
        let mode = promise.mode;
        self.checker.wins.push(AnsweredGrant { resource, token, fence: promise.fence, mode, answered });
        self.check_overlap(request, promise);
    }

    /// Where a majority forgets, fences go on from the clock: only then may a stepped clock lower or repeat
    /// them. A node that forgot before may not have received the fences since: where there are instances
    /// with another node list, it may be theirs now.
    fn may_fall(&self, since: Us) -> bool {
        let is_untold = |at: Us| at >= since || self.profile.variant == Variant::OtherCluster;
        let forgot = self.servers.iter().filter(|s| s.forgot.is_some_and(is_untold)).count();
        let shortest = self.profile.shortest_list();
        self.checker.clocks_stepped && forgot + quorum_of(shortest) > shortest
    }

    /// The token was released before: it must not come back while its tombstones stand.
    fn check_dead(&mut self, token: &TokenHash, sent: Us) {
        let Some(ended) = self.checker.ended.get(token).map(|release| release.at) else { return };
        let disturbed = self.servers.iter().any(|s| s.disturbed.is_some_and(|at| at >= ended.saturating_sub(SEC)));
        if !disturbed && sent > ended {
            self.fail(format!("{token:?} was granted again although its release was answered at {} ms", ended / MS));
        }
    }

    /// An instance answered that it extended.
    pub(super) fn check_extend(&mut self, request: &ClientRequest, promise: &Promise) {
        self.checker.extends += 1;
        self.coverage.count(HardState::Extended);
        self.check_promise(request, promise, "extend");
        self.check_extended(request, promise);
    }

    /// A keeper renewed this lease until `until`.
    pub(super) fn check_kept(
        &mut self,
        inst: usize,
        (resource, token): (&ResourceName, &TokenHash),
        record: &LeaseRecord,
        until: Us,
    ) {
        let at = self.local(inst);
        // A later request with the token moved the end, and the node that answered first may have missed that (seed 69903).
        let nodes = (0..self.servers.len()).flat_map(|node| self.leases_on(node, resource));
        let shown = nodes.filter(|(shown, _)| shown.token == *token).map(|(shown, _)| shown);
        let ends = shown.chain([record]).map(|record| record.labels().kept_until_ms);
        let kept_until = ends.max().unwrap_or_default() * MS;
        // The clocks of nodes and instances differ by up to the guard, and those of the nodes from the true time.
        // Those that answered may have missed the end.
        if kept_until > 0 && !self.checker.clocks_stepped && EPOCH_US + until > kept_until + 2 * GUARD_MS * MS {
            let over = (EPOCH_US + until - kept_until) / MS;
            return self.fail(format!("the kept lease of {token:?} was renewed to {over} ms after its end"));
        }
        let (sent, fence, mode) = (at, record.fence, record.mode);
        let operation = Operation::Extend { ttl_ms: None, fence: None };
        let (resource, token, lease_ttl_ms) = (resource.clone(), token.clone(), record.ttl.as_ms());
        let by = Requester::Client(0);
        let request = ClientRequest { req: 0, by, inst, resource, token, operation, sent, lease_ttl_ms };
        if until > at {
            self.check_extended(&request, &Promise { fence, mode, at, until, trusted: until, joined: false });
        }
    }

    fn check_extended(&mut self, request: &ClientRequest, promise: &Promise) {
        if self.checker.released.contains_key(&request.token) {
            return;
        }
        // Its present lease: a delayed duplicate of its acquire may have begun another, with another fence.
        let is_own =
            |w: &&AnsweredGrant| w.token == request.token && w.resource == request.resource && w.fence == promise.fence;
        let own = self.checker.wins.iter().filter(is_own);
        if let Some(since) = own.map(|w| w.answered).min() {
            // An instance that was stopped may answer late for a token that was released meanwhile.
            let counts = |w: &AnsweredGrant| self.checker.released.get(&w.token).is_none_or(|at| *at > w.answered);
            let other = |w: &&AnsweredGrant| {
                let excludes = !w.mode.is_compatible(self.mode_now(&request.token, promise.mode));
                w.resource == request.resource
                    && w.token != request.token
                    && w.answered > since
                    && counts(w)
                    && excludes
            };
            if let Some(win) = self.checker.wins.iter().find(other).filter(|w| w.answered < promise.at) {
                let text = format!("{:?} was extended although {:?} was granted at", request.token, win.token);
                let at = win.answered / MS;
                return self.fail(format!("{text} {at} ms, after its own grant at {} ms", since / MS));
            }
        }
        self.check_overlap(request, promise);
    }

    /// Nobody else's promise meets this one.
    fn check_overlap(&mut self, request: &ClientRequest, promise: &Promise) {
        let to = promise.until.max(promise.trusted);
        if to <= promise.at {
            return;
        }
        let now = self.now;
        self.checker.holds.retain(|h| h.to + 10 * SEC > now);
        let mode = self.mode_now(&request.token, promise.mode);
        let meets =
            |h: &&Hold| h.resource == request.resource && h.token != request.token && h.from < to && promise.at < h.to;
        if let Some(beside) = self.checker.holds.iter().filter(meets).find(|h| h.mode.is_compatible(mode)) {
            let together =
                if beside.mode == Mode::Shared { HardState::SharedTogether } else { HardState::PermitsTogether };
            self.coverage.count(together);
        }
        let clash = self.checker.holds.iter().filter(meets).find(|h| !h.mode.is_compatible(mode));
        if let Some(other) = clash {
            let kind = if other.extended { "extended" } else { "granted" };
            let first = format!("{:?} {kind} {} to {} ms", other.token, other.from / MS, other.to / MS);
            let second = format!("{:?} {} to {} ms", request.token, promise.at / MS, to / MS);
            let text = format!(
                "two holders of {}: {first} (fence {}), {second} ({})",
                request.resource, other.fence, promise.fence
            );
            return self.fail(text);
        }
        let extended = matches!(request.operation, Operation::Extend { .. });
        self.checker.holds.push(Hold {
            resource: request.resource.clone(),
            token: request.token.clone(),
            fence: promise.fence,
            mode,
            from: promise.at,
            to,
            extended,
        });
    }

    /// The promise is within the TTL from the first request of its round, and a quorum of nodes
    /// holds the lease for at least as long, or has forgotten it since.
    fn check_promise(&mut self, request: &ClientRequest, promise: &Promise, what: &str) {
        let Some(sent) = self.checker.sent.get(&request.req).map(|round| round.at) else {
            return self.fail(format!("{what} without a request"));
        };
        let ttl = match request.operation {
            Operation::Acquire { ttl_ms, .. } | Operation::AcquireSet { ttl_ms, .. } => ttl_ms,
            Operation::Extend { ttl_ms, .. } => ttl_ms.unwrap_or(request.lease_ttl_ms),
            Operation::Downgrade => self.insts.iter().map(|inst| inst.max_ttl_ms).max().unwrap_or(0),
            Operation::Release => return,
        };
        if promise.until > sent + ttl * MS {
            let over = (promise.until - sent - ttl * MS) / MS;
            let text = format!("{what} of {:?} promises {over} ms more than its TTL of {ttl} ms", request.token);
            return self.fail(text);
        }
        if self.checker.released.contains_key(&request.token) {
            return;
        }
        let left_ms = promise.until.saturating_sub(promise.at.max(self.now)) / MS;
        let holds = |node: &usize| {
            let has = self.lease_on(*node, &request.resource, &request.token);
            let has = has.is_some_and(|(record, left)| {
                // A node that missed a downgrade keeps more callers out.
                let is_its =
                    record.mode == promise.mode || record.mode == Mode::Exclusive || promise.mode == Mode::Exclusive;
                is_its && left >= left_ms
            });
            has || self.servers[*node].disturbed.is_some_and(|at| at + 10 * MS >= sent) || !self.servers[*node].up
        };
        let holding = self.profile.reach_of(request.inst).iter().filter(|node| holds(node)).count();
        if holding < quorum_of(self.profile.shortest_list()) && promise.at == self.now {
            let text = format!("{what} of {:?} promises {left_ms} ms, but only {holding} nodes hold it", request.token);
            self.fail(text);
        }
    }

    /// A client sends a downgrade: its lease counts as shared from now on, whatever the answer is.
    pub(super) fn note_downgrade(&mut self, token: &TokenHash) {
        let now = self.now;
        self.checker.downgraded.insert(token.clone());
        let mut shared = Vec::new();
        for hold in self.checker.holds.iter_mut().filter(|h| h.token == *token && h.to > now) {
            shared.push(Hold { mode: Mode::Shared, from: hold.from.max(now), ..hold.clone() });
            hold.to = hold.from.max(now);
        }
        self.checker.holds.extend(shared);
        // An answer of an instance that was stopped midway may begin after the downgrade: nothing is left of it.
        self.checker.holds.retain(|h| h.from < h.to);
        let its = self.checker.wins.iter_mut().filter(|win| win.token == *token);
        its.for_each(|win| win.mode = Mode::Shared);
    }

    /// As its holder counts on it.
    fn mode_now(&self, token: &TokenHash, mode: Mode) -> Mode {
        if self.checker.downgraded.contains(token) { Mode::Shared } else { mode }
    }

    /// A client lets go.
    pub(super) fn note_release(&mut self, token: &TokenHash) {
        let now = self.now;
        self.checker.released.entry(token.clone()).or_insert(now);
        for hold in self.checker.holds.iter_mut().filter(|h| h.token == *token && h.to > now) {
            let until = self.checker.let_go.entry(token.clone()).or_insert(hold.to);
            *until = hold.to.max(*until);
            hold.to = now;
        }
    }

    /// An instance said that a lease was lost when it was to be released.
    pub(super) fn check_lost(&mut self, request: &ClientRequest, at: Us) {
        self.coverage.count(HardState::ReleaseLost);
        if let Some(until) = self.checker.let_go.get(&request.token).filter(|until| at < **until) {
            let text = format!("the release of {:?} was answered at {} ms that it was lost", request.token, at / MS);
            self.fail(format!("{text}, which was promised until {} ms", until / MS));
        }
    }

    /// An instance said that the release is done.
    pub(super) fn note_released(&mut self, inst: usize, token: &TokenHash, at: Us) {
        self.coverage.count(HardState::Released);
        let life = self.insts[inst].life;
        self.checker.ended.entry(token.clone()).or_insert(WonRelease { inst, life, at });
    }

    /// Whether a node should not have this token's lease any more: its release was answered as done long ago, by
    /// an instance that can deliver it there still, the node has not forgotten it, and nobody tried the token again.
    fn is_overdue(&self, node: usize, token: &TokenHash) -> bool {
        let checker = &self.checker;
        let Some(release) = checker.ended.get(token) else { return false };
        let Some(sent) = checker.released.get(token) else { return false };
        let inst = &self.insts[release.inst];
        inst.life == release.life
            && self.profile.list_of(release.inst).contains(&node)
            && self.servers[node].disturbed.is_none_or(|at| at < *sent)
            && checker.tried.get(token).is_none_or(|at| at < sent)
            && self.now >= release.at.max(self.reachable_since(release.inst, node)) + RELEASE_BOUND
    }

    /// When the faults were over for what this instance sends to this node.
    fn reachable_since(&self, inst: usize, node: usize) -> Us {
        let i = &self.insts[inst];
        let held_back = i.links[node].iter().map(|link| link.held_back).max().unwrap_or(0);
        (self.profile.calm_ms * MS).max(i.local).max(held_back)
    }

    /// What a request's attempts came to: all but the last were given up, that too unless it was kept.
    pub(super) fn note_attempts(&mut self, inst: usize, req: u64, is_kept: bool) {
        let (life, at) = (self.insts[inst].life, self.local(inst));
        let Some(round) = self.checker.sent.remove(&req) else { return };
        self.checker.kept.extend(round.attempt.clone().filter(|_| is_kept));
        let last = round.attempt.filter(|_| !is_kept).map(|attempt| (attempt, round.at));
        for (attempt, sent) in round.given_up.into_iter().chain(last) {
            self.checker.given_up.insert(attempt, GivenUp { inst, life, sent, at, req });
        }
    }

    /// A write to a guarded store, which rejects smaller fences than it has seen. A holder's is never
    /// rejected.
    pub(super) fn store(&mut self, resource: usize, token: &TokenHash, fence: Fence) {
        let now = self.now;
        let name = &self.resources[resource];
        // Of those that hold it together, the store takes the fences in order only.
        let is_alone = |h: &Hold| h.mode == Mode::Exclusive;
        let is_held =
            |h: &Hold| h.token == *token && h.resource == *name && (h.from..h.to).contains(&now) && is_alone(h);
        let newest = self.checker.stores.get(&resource).copied().unwrap_or(Fence(0));
        if fence >= newest {
            self.checker.stores.insert(resource, fence);
        } else if self.checker.holds.iter().any(is_held) {
            self.fail(format!("the store of {name} rejects fence {fence} of its holder {token:?}: it has {newest}"));
        } else {
            self.coverage.count(HardState::ZombieRejected);
        }
    }

    /// In calm, no node may keep a lease that was released, or a claim of an attempt that its instance gave up,
    /// long enough ago. Another
    /// request with the same token may join such a claim and prolong its key beyond the time for which
    /// the clean-up goes on: then the TTL bounds it, from the last try of that token.
    pub(super) fn scan(&mut self) {
        if self.checker.clocks_stepped {
            return; // a clock that was stepped back lengthens what a clean-up leaves to the TTL
        }
        // A process that was filled for another key template keeps what it had at its former names until the TTL (seed 25141).
        let template = |view: &View| view.terms().is_some_and(|terms| terms.template.is_some());
        let is_changed = self.servers.iter().any(|server| template(&server.machine.view()));
        let has_former = |n: usize| is_changed && self.servers[n].machine.has_former_names();
        let is_left = |n: &usize| self.checker.lost_tail.contains(n) || has_former(*n);
        for node in (0..self.servers.len()).filter(|n| !is_left(n)).collect::<Vec<_>>() {
            for resource in self.resources.iter().cloned().chain(self.sets.own_name()).collect::<Vec<_>>() {
                if let Some(text) = self.overdue_lease(node, &resource) {
                    return self.fail(text);
                }
            }
        }
    }

    /// A lease on a node that should not be there any more.
    fn overdue_lease(&self, node: usize, resource: &ResourceName) -> Option<String> {
        let now = self.now;
        for (record, left) in self.leases_on(node, resource) {
            if self.is_overdue(node, &record.token) {
                let text = format!("node {node} still holds {resource} for {:?}, released", record.token);
                return Some(format!("{text} long ago ({left} ms left)"));
            }
            // An instance that could not reach the nodes may have given it up, while another one kept it.
            if record.labels().kept_until_ms > 0 && record.claims.contains("p,") {
                continue;
            }
            let joined = self.checker.tried_by.get(&record.token);
            let is_alone = |one: &&GivenUp| joined.is_none_or(|requests| requests.iter().all(|req| *req == one.req));
            let ghost = record.claims.split(',').find(|claim| {
                self.checker.given_up.get(*claim).filter(is_alone).is_some_and(|one| {
                    let healed = one.at.max(self.reachable_since(one.inst, node));
                    // A new process may be filled from nodes that had not had the cancel yet, which it forgot, or whose tombstone had ended
                    // (seeds 49172, 109589).
                    let server = &self.servers[node];
                    let is_new = server.disturbed.max(server.doubted).is_some_and(|at| at >= one.sent);
                    self.insts[one.inst].life == one.life && !is_new && now >= healed + CLEANUP_BOUND
                })
            });
            if let Some(claim) = ghost {
                let text = format!("node {node} still holds {resource} for {:?}, claim {claim}", record.token);
                return Some(format!("{text}, which was given up long ago ({left} ms left)"));
            }
        }
        None
    }
}
