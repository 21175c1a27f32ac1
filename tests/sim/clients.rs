//! The simulated clients: they acquire, extend, release, hang up, repeat requests at other instances,
//! work beyond their deadline, and write to guarded stores.

use super::actors::Waiting;
use super::coverage::HardState;
use super::invariants::Promise;
use super::profile::Sharing;
use super::rng::Rng;
use super::world::{Event, MS, SEC, Todo, Us, World};
use crate::redlock::clock::BootTime;
use crate::types::{Fence, ResourceName, TOKEN_RANDOM_BYTES, Token, TokenHash, WantedMode};

/// A client's operation.
#[derive(Debug, Clone)]
pub(super) enum Operation {
    Acquire {
        ttl_ms: u64,
        wait_ms: u64,
    },
    /// Of these resources too, all or none.
    AcquireSet {
        others: Vec<ResourceName>,
        ttl_ms: u64,
        wait_ms: u64,
    },
    Extend {
        ttl_ms: Option<u64>,
        fence: Option<Fence>,
    },
    Release,
    /// Makes an exclusive lease a shared one.
    Downgrade,
}

/// Who requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Requester {
    Client(usize),
    /// The liveness check of this resource.
    LivenessCheck(usize),
    /// The check of this resource's queues.
    QueueCheck(usize),
    /// A client of sets.
    Set(usize),
}

/// One request.
#[derive(Debug, Clone)]
pub(super) struct ClientRequest {
    pub(super) req: u64,
    pub(super) by: Requester,
    pub(super) inst: usize,
    pub(super) resource: ResourceName,
    pub(super) token: TokenHash,
    pub(super) operation: Operation,
    pub(super) sent: Us,
    /// The TTL that the lease was acquired with.
    pub(super) lease_ttl_ms: u64,
}

impl ClientRequest {
    /// Whether it should have been answered by now: its wait is over, and time for some rounds.
    pub(super) fn is_overdue(&self, now: Us) -> bool {
        let wait_ms = match self.operation {
            Operation::Acquire { wait_ms, .. } | Operation::AcquireSet { wait_ms, .. } => wait_ms,
            _ => 0,
        };
        now > self.sent + wait_ms * MS + 2 * SEC
    }
}

/// One answer, as the client reads it.
#[derive(Debug, Clone)]
pub(super) enum Answer {
    /// Granted or extended: validity from the time the request was sent, and how much of it was waited.
    Good { fence: Fence, valid_us: Us, waited_us: Us },
    /// Anything else.
    No,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Thinking,
    Acquiring,
    Holding,
    Extending,
    Releasing,
}

/// One client.
#[derive(Debug)]
pub(super) struct Client {
    state: State,
    generation: u64,
    req: u64,
    token: u64,
    hash: Option<TokenHash>,
    resource: usize,
    ttl_ms: u64,
    wait_ms: u64,
    fence: Fence,
    deadline: Us,
    inst: usize,
    retries: u32,
    /// Its clock's rate error.
    ppm: i64,
    /// It writes to the store after its lease has ended.
    is_zombie: bool,
}

impl Client {
    /// An idle client.
    pub(super) fn new(r: &mut Rng) -> Self {
        Self {
            state: State::Thinking,
            generation: 0,
            req: 0,
            token: 0,
            hash: None,
            resource: 0,
            ttl_ms: 0,
            wait_ms: 0,
            fence: Fence(0),
            deadline: 0,
            inst: 0,
            retries: 0,
            ppm: r.either_way(4_500),
            is_zombie: r.chance(60),
        }
    }
}

/// The token with this number.
pub(super) fn token_of(number: u64) -> TokenHash {
    let mut bytes = [0; TOKEN_RANDOM_BYTES];
    bytes[..8].copy_from_slice(&number.to_le_bytes());
    Token::from_random(bytes).hash()
}

/// Whether the requests with this token keep their places when their callers hang up: half of them do.
pub(super) fn keeps_place(token: &TokenHash) -> bool {
    token.as_str() < "8"
}

/// For how long the service is to keep the lease of this token: some are kept for three times their TTL, unless the clients
/// are about to end.
pub(super) fn kept_for_ms(world: &World, token: &TokenHash, ttl_ms: u64) -> Option<u64> {
    let is_kept = matches!(token.as_str().as_bytes()[1], b'0'..=b'2') && world.profile.keeps;
    let end = world.now + 3 * ttl_ms * MS;
    (is_kept && end < world.closing_time() + world.profile.max_ttl_ms * MS).then_some(3 * ttl_ms)
}

impl World {
    /// Its lease is exclusive, in a world where others are shared.
    fn may_downgrade(&self, token: &TokenHash) -> bool {
        matches!(self.profile.sharing, Sharing::Readers | Sharing::Mixed)
            && self.profile.mode_of(token) == WantedMode::Exclusive
            && !self.checker.is_downgraded(token)
    }

    /// A client, or an check, sends a request.
    pub(super) fn ask(
        &mut self,
        by: Requester,
        inst: usize,
        about: (usize, TokenHash),
        operation: Operation,
        lease_ttl_ms: u64,
    ) -> u64 {
        let (req, sent, resource) = (self.id(), self.now, self.resources[about.0].clone());
        self.mix(&[req, inst as u64]);
        self.trace(|| format!("{by:?} -> i{inst} {operation:?} {resource} {:?} (request {req})", about.1));
        let request = ClientRequest { req, by, inst, resource, token: about.1, operation, sent, lease_ttl_ms };
        self.requests.insert(req, request);
        let at = self.now + self.client_rng.range(80, 2_000);
        self.at(at, Event::Arrive { req });
        req
    }

    /// A request reaches its instance.
    pub(super) fn arrive(&mut self, req: u64) {
        let Some(request) = self.requests.get(&req) else { return };
        let (inst, now) = (request.inst, self.now);
        if !self.insts[inst].alive {
            return self.reply(req, Answer::No);
        }
        let local = self.insts[inst].local;
        if local > now {
            return self.at(local, Event::Arrive { req });
        }
        self.insts[inst].serving.insert(req);
        self.todo.push(Todo::Spawn(inst, req));
    }

    fn reply(&mut self, req: u64, answer: Answer) {
        let at = self.now + self.client_rng.range(80, 2_000);
        self.at(at, Event::Answered { req, answer });
    }

    /// An instance has written its answer: a promise, or another.
    pub(super) fn answer(&mut self, inst: usize, req: u64, promise: Option<Promise>, waited_us: Us) {
        let Some(request) = self.requests.get(&req).cloned() else {
            // Its caller hung up in the same instant: whatever was kept is left to its TTL, as an answer that is lost.
            self.queue_checks.iter_mut().for_each(|check| check.is_blocked |= promise.is_some());
            return self.note_attempts(inst, req, promise.is_some());
        };
        self.insts[inst].serving.remove(&req);
        let at = self.local(inst);
        let mut answer = Answer::No;
        if let Some(mut promise) = promise {
            self.mix(&[req, promise.fence.0, promise.until]);
            self.trace(|| format!("i{inst} answers request {req}: {promise:?} for {:?}", request.token));
            let valid_us = promise.until.saturating_sub(promise.at);
            answer = Answer::Good { fence: promise.fence, valid_us, waited_us };
            if let Requester::Client(client) = request.by {
                // The end that the caller derives on its own clock counts as promised too.
                promise.trusted = self.trusts_until(client, &request, valid_us, waited_us);
            }
            match request.operation {
                Operation::Extend { .. } | Operation::Downgrade => self.check_extend(&request, &promise),
                _ => self.check_grant(&request, &promise),
            }
            self.note_attempts(inst, req, true);
        } else {
            self.note_attempts(inst, req, false);
        }
        let arrives = at + self.client_rng.range(80, 2_000);
        self.at(arrives, Event::Answered { req, answer });
    }

    /// `valid_for_ms` counts from before the request was sent, on the client's clock.
    fn trusts_until(&self, client: usize, request: &ClientRequest, valid_us: Us, waited_us: Us) -> Us {
        let own = i128::from(valid_us + waited_us) * 1_000_000 / i128::from(1_000_000 + self.clients[client].ppm);
        request.sent + u64::try_from(own).expect("positive")
    }

    /// A client acts.
    pub(super) fn client_acts(&mut self, client: usize, generation: u64) {
        if self.clients[client].generation != generation {
            return;
        }
        match self.clients[client].state {
            State::Thinking => self.client_begins(client),
            State::Acquiring => self.client_times_out(client),
            State::Holding => self.client_holds(client),
            State::Extending => {
                self.clients[client].state = State::Holding;
                self.clients[client].req = 0;
                let pause = self.client_rng.range(1, 100) * MS;
                self.wake_client(client, pause);
            }
            State::Releasing => self.client_thinks(client),
        }
    }

    fn wake_client(&mut self, client: usize, after: Us) {
        self.clients[client].generation += 1;
        let generation = self.clients[client].generation;
        self.at(self.now + after, Event::Client { client, generation });
    }

    fn client_thinks(&mut self, client: usize) {
        self.clients[client].state = State::Thinking;
        self.clients[client].req = 0;
        let pause = self.client_rng.range(2, 300) * MS;
        self.wake_client(client, pause);
    }

    fn client_begins(&mut self, client: usize) {
        if self.now >= self.closing_time() {
            return;
        }
        let (token, inst) = (self.id(), self.client_rng.index(self.insts.len()));
        let resource = self.client_rng.index(self.resources.len());
        let waits = self.client_rng.chance(self.profile.waits);
        let wait_ms = if waits { self.client_rng.range(200, 3_000) } else { 0 };
        let most = self.insts[inst].max_ttl_ms;
        let ttl_ms = if self.client_rng.chance(40) { most } else { self.client_rng.range(200, most) };
        let c = &mut self.clients[client];
        (c.token, c.hash, c.resource, c.inst) = (token, Some(token_of(token)), resource, inst);
        (c.ttl_ms, c.wait_ms, c.retries, c.fence, c.deadline) = (ttl_ms, wait_ms, 0, Fence(0), 0);
        self.client_acquires(client);
    }

    fn client_acquires(&mut self, client: usize) {
        let c = &mut self.clients[client];
        c.state = State::Acquiring;
        let (inst, about) = (c.inst, (c.resource, c.hash.clone().expect("begun")));
        let (ttl_ms, wait_ms) = (c.ttl_ms, c.wait_ms);
        self.clients[client].req =
            self.ask(Requester::Client(client), inst, about, Operation::Acquire { ttl_ms, wait_ms }, ttl_ms);
        // Some hang up early, most wait for longer than the request may take.
        let timeout = if self.client_rng.chance(25) {
            self.client_rng.range(1, 60) * MS
        } else {
            (wait_ms + self.client_rng.range(200, 1_500)) * MS
        };
        self.wake_client(client, timeout);
    }

    fn client_times_out(&mut self, client: usize) {
        let req = self.clients[client].req;
        if self.client_rng.chance(85) {
            let at = self.now + self.client_rng.range(80, 2_000);
            self.at(at, Event::Gone { req });
        }
        let is_open = self.now < self.closing_time();
        if is_open && self.clients[client].retries < 2 && self.client_rng.chance(65) {
            // The same request again, as a proxy or a retrying client sends it: here or elsewhere.
            let other = self.client_rng.index(self.insts.len());
            let c = &mut self.clients[client];
            c.retries += 1;
            // An instance refuses what is above its own longest TTL, before anything is asked of a node.
            if c.ttl_ms <= self.insts[other].max_ttl_ms {
                c.inst = other;
            }
            self.client_acquires(client);
        } else if is_open && self.client_rng.chance(20) {
            // It does not know whether it has the lease, and wants more time for it.
            let c = &mut self.clients[client];
            c.state = State::Extending;
            let (about, inst, ttl_ms) = ((c.resource, c.hash.clone().expect("begun")), c.inst, c.ttl_ms);
            let operation = Operation::Extend { ttl_ms: None, fence: None };
            self.clients[client].req = self.ask(Requester::Client(client), inst, about, operation, ttl_ms);
            self.wake_client(client, 600 * MS);
        } else {
            self.client_thinks(client);
        }
    }

    fn client_holds(&mut self, client: usize) {
        let is_over = self.now >= self.clients[client].deadline;
        if (is_over && !self.client_rng.chance(30)) || self.now >= self.closing_time() {
            return self.client_thinks(client);
        }
        let c = &self.clients[client];
        let (about, fence, lease_ttl_ms) = ((c.resource, c.hash.clone().expect("begun")), c.fence, c.ttl_ms);
        if self.client_rng.chance(30) {
            self.clients[client].inst = self.client_rng.index(self.insts.len());
        }
        let (by, inst) = (Requester::Client(client), self.clients[client].inst);
        match self.client_rng.below(100) {
            0..15 if self.may_downgrade(&about.1) => {
                self.note_downgrade(&about.1);
                self.clients[client].state = State::Extending;
                self.clients[client].req = self.ask(by, inst, about, Operation::Downgrade, lease_ttl_ms);
                self.wake_client(client, 600 * MS);
            }
            0..55 => {
                let fence = self.client_rng.chance(50).then_some(fence);
                let most = self.insts[inst].max_ttl_ms;
                let ttl_ms = self.client_rng.chance(60).then(|| self.client_rng.range(200, most));
                self.clients[client].state = State::Extending;
                self.clients[client].req = self.ask(by, inst, about, Operation::Extend { ttl_ms, fence }, lease_ttl_ms);
                self.wake_client(client, 600 * MS);
            }
            55..88 => {
                self.note_release(&about.1);
                self.clients[client].state = State::Releasing;
                self.clients[client].req = self.ask(by, inst, about.clone(), Operation::Release, lease_ttl_ms);
                if self.client_rng.chance(15) {
                    // A duplicate of its acquire comes late, through another instance.
                    let other = match self.client_rng.index(self.insts.len()) {
                        other if lease_ttl_ms <= self.insts[other].max_ttl_ms => other,
                        _ => inst,
                    };
                    self.ask(by, other, about, Operation::Acquire { ttl_ms: lease_ttl_ms, wait_ms: 0 }, lease_ttl_ms);
                }
                self.wake_client(client, 600 * MS);
            }
            _ => self.client_thinks(client), // it dies holding
        }
    }

    /// An answer reaches a client.
    pub(super) fn answered(&mut self, req: u64, answer: Answer) {
        let Some(request) = self.requests.remove(&req) else { return };
        let client = match request.by {
            Requester::Client(client) => client,
            Requester::LivenessCheck(resource) => return self.check_answered(resource, req, &answer),
            Requester::QueueCheck(resource) => return self.queue_check_answered(resource, req, &answer),
            Requester::Set(client) => return self.set_client_answered(client, req, &answer),
        };
        if self.clients[client].req != req {
            return;
        }
        match (self.clients[client].state, answer) {
            (State::Acquiring | State::Extending, Answer::Good { fence, valid_us, waited_us }) => {
                let until = self.trusts_until(client, &request, valid_us, waited_us);
                let c = &mut self.clients[client];
                (c.state, c.fence, c.deadline) = (State::Holding, fence, c.deadline.max(until));
                if waited_us > 100 * MS {
                    self.coverage.count(HardState::WaiterServed);
                }
                self.client_works(client);
            }
            (State::Extending, Answer::No) => {
                self.clients[client].state = State::Holding;
                let pause = self.client_rng.range(1, 100) * MS;
                self.wake_client(client, pause);
            }
            _ => self.client_thinks(client),
        }
    }

    fn client_works(&mut self, client: usize) {
        let (deadline, now) = (self.clients[client].deadline, self.now);
        let left = deadline.saturating_sub(now).max(MS);
        let next = if self.client_rng.chance(15) {
            left + self.client_rng.range(0, 1_500) * MS
        } else {
            self.client_rng.below(left)
        };
        let extra = if self.clients[client].is_zombie { 2 * SEC } else { 0 };
        let token = self.clients[client].token;
        let write = now + self.client_rng.below(left + extra);
        self.at(write, Event::Write { client, token });
        self.wake_client(client, next.max(MS));
    }

    /// A write to the guarded store, possibly after the lease has ended.
    pub(super) fn client_writes(&mut self, client: usize, token: u64) {
        let c = &self.clients[client];
        if c.token != token || c.fence == Fence(0) {
            return;
        }
        let (resource, hash, fence) = (c.resource, c.hash.clone().expect("begun"), c.fence);
        self.store(resource, &hash, fence);
    }

    /// Whether no acquire with this token has reached an instance.
    pub(super) fn is_unused(&self, token: &TokenHash) -> bool {
        !self.asked_with.contains(token)
    }

    /// A request enters the queue of its instance, if it waits: at the end, or at the place that was kept.
    pub(super) fn begins_to_wait(&mut self, inst: usize, request: &ClientRequest, wait_ms: u64, entered: BootTime) {
        let is_replay = !self.asked_with.insert(request.token.clone());
        if wait_ms == 0 {
            return;
        }
        let (new, now) = (self.id(), self.local(inst));
        let until = now + wait_ms * MS;
        let (req, resource, token) = (request.req, request.resource.clone(), request.token.clone());
        let i = &mut self.insts[inst];
        // Whose time is over may have left the queue, or is about to, as after a pause of the instance.
        let is_former = |w: &Waiting| w.token == token && w.until > now && keeps_place(&token);
        let former = i.waiting.iter().find(|(_, w)| is_former(w)).map(|(place, _)| *place);
        let place = if let Some(place) = former {
            self.coverage.count(HardState::PlaceTakenOver);
            place
        } else if let Some(place) = i.kept.remove(&token) {
            self.coverage.count(HardState::PlaceTakenAgain);
            place
        } else {
            new
        };
        let others = match &request.operation {
            Operation::AcquireSet { others, .. } => others.clone(),
            _ => Vec::new(),
        };
        let waiting = Waiting { req, resource, others, token, entered, until, is_replay };
        self.insts[inst].waiting.insert(place, waiting);
    }

    /// A caller that waits hangs up: its place is kept, if it asked for that and its wait is not about to end.
    fn leaves_its_place(&mut self, inst: usize, req: u64) {
        let soon = self.local(inst) + SEC;
        let i = &mut self.insts[inst];
        let Some(place) = i.waiting.iter().find(|(_, waiting)| waiting.req == req).map(|(place, _)| *place) else {
            return;
        };
        if let Some(left) = i
            .waiting
            .remove(&place)
            .filter(|left| left.until > soon && left.others.is_empty() && keeps_place(&left.token))
        {
            i.kept.insert(left.token, place);
        }
    }

    /// It was answered. `granted`: when the attempt began that was granted. First come, first served: nobody who waited
    /// then, and still does, has a place before it.
    pub(super) fn ends_to_wait(&mut self, inst: usize, req: u64, granted: Option<BootTime>) {
        // Whose wait is about to end may be asking for the last time.
        let soon = self.local(inst) + SEC;
        let i = &mut self.insts[inst];
        let Some(place) = i.waiting.iter().find(|(_, waiting)| waiting.req == req).map(|(place, _)| *place) else {
            return;
        };
        let Some(own) = i.waiting.remove(&place) else { return };
        let i = &self.insts[inst];
        // Who may hold it together may be served in any order.
        let mode = |token: &TokenHash| self.profile.mode_of(token);
        let waits = |w: &Waiting| {
            let is_before = w.until > soon && i.serving.contains(&w.req);
            w.meets(&own) && is_before && !mode(&w.token).is_compatible(mode(&own.token))
        };
        let is_behind = i.waiting.values().any(waits);
        let Some(began) = granted else { return };
        let older = i.waiting.range(..place).map(|(_, w)| w).find(|w| waits(w) && w.entered < began).map(|w| w.req);
        // A later request with its token, at another instance, may have been granted what this one joins.
        let may_join =
            own.is_replay || self.checker.tried_by.get(&own.token).is_some_and(|requests| requests.len() > 1);
        if let Some(older) = older.filter(|_| !may_join) {
            self.fail(format!("order: request {req} overtook request {older} for {} at i{inst}", own.resource));
        } else if is_behind {
            self.coverage.count(HardState::WaiterBehindOthers);
            if !own.others.is_empty() {
                self.coverage.count(HardState::SetWaited);
            }
        }
    }

    /// A client hangs up: its request is aborted.
    pub(super) fn hang_up(&mut self, req: u64) {
        let Some(request) = self.requests.get(&req).cloned() else { return };
        let local = self.insts[request.inst].local;
        if local > self.now {
            return self.at(local, Event::Gone { req });
        }
        let was_served = self.insts[request.inst].serving.remove(&req);
        if let Requester::QueueCheck(resource) = request.by {
            self.queue_check_hung_up(resource, !was_served);
        }
        if was_served {
            self.coverage.count(HardState::HungUpMidway);
            self.todo.push(Todo::Abort(request.inst, req));
            self.leaves_its_place(request.inst, req);
        }
        self.requests.remove(&req);
    }
}
