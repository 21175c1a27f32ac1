//! Clients that acquire several resources at once: the real driver and core, and what holds for sets beside what holds for
//! each of their leases. Their leases end by a release of each, or with their TTL.

use std::collections::BTreeSet;
use std::time::Duration;

use super::clients::{Answer, ClientRequest, Operation, Requester, token_of};
use super::coverage::HardState;
use super::host::{Engine, Waiting};
use super::invariants::Promise;
use super::rng::Rng;
use super::world::{Event, MS, Us, World, lock};
use crate::protocol::{AcquireSetArgs, NodeResult, Reply, Request, TokenUse};
use crate::redlock::acquire::{AcquireParams, RefusalKind};
use crate::redlock::clock::{BootTime, Clock};
use crate::types::{Labels, Mode, ResourceName, TokenHash, Ttl, WantedMode};
use crate::waiting::event::{Admission, WaitError, WaitRequest};

/// Clients of sets, where a profile has them.
const CLIENTS: usize = 2;

/// One client.
#[derive(Debug)]
pub(super) struct SetClient {
    step: Step,
    generation: u64,
    req: u64,
    token: Option<TokenHash>,
    names: Vec<ResourceName>,
    inst: usize,
    deadline: Us,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Step {
    Thinking,
    Acquiring,
    Holding,
}

/// All that the world keeps of sets.
#[derive(Debug, Default)]
pub(super) struct Sets {
    clients: Vec<SetClient>,
    /// What sets are made of: the resources of all, and one more.
    names: Vec<ResourceName>,
    /// Of the request that a node is about to be given: the resources that its attempt claims there already, since an earlier
    /// request took them, or since other nodes, or an extend, brought the lease there.
    claimed_before: BTreeSet<ResourceName>,
}

impl Sets {
    /// Of a world with these resources; empty where its profile has no sets.
    pub(super) fn new(has_sets: bool, resources: &[ResourceName]) -> Self {
        if !has_sets {
            return Self::default();
        }
        let client = || SetClient {
            step: Step::Thinking,
            generation: 0,
            req: 0,
            token: None,
            names: Vec::new(),
            inst: 0,
            deadline: 0,
        };
        let own = ResourceName::parse("s0").expect("valid");
        Self {
            clients: (0..CLIENTS).map(|_| client()).collect(),
            names: resources.iter().cloned().chain([own]).collect(),
            claimed_before: BTreeSet::new(),
        }
    }

    /// The name that only sets have.
    pub(super) fn own_name(&self) -> Option<ResourceName> {
        self.names.last().cloned()
    }
}

impl World {
    /// The clients of sets begin at about this time.
    pub(super) fn begin_sets(&mut self, opens_ms: u64) {
        for client in 0..self.sets.clients.len() {
            let at = (opens_ms + self.set_rng.below(300)) * MS;
            self.at(at, Event::SetClient { client, generation: 0 });
        }
    }

    fn wake_set_client(&mut self, client: usize, after: Us) {
        let c = &mut self.sets.clients[client];
        c.generation += 1;
        let generation = c.generation;
        self.at(self.now + after.max(MS), Event::SetClient { client, generation });
    }

    /// A client of sets acts.
    pub(super) fn set_client_acts(&mut self, client: usize, generation: u64) {
        if self.sets.clients[client].generation != generation {
            return;
        }
        match self.sets.clients[client].step {
            Step::Thinking if self.now < self.closing_time() => self.acquires_set(client),
            Step::Thinking => {}
            Step::Acquiring => {
                // It hangs up, or goes away without a word.
                if self.set_rng.chance(85) {
                    let (req, at) = (self.sets.clients[client].req, self.now + self.set_rng.range(80, 2_000));
                    self.at(at, Event::Gone { req });
                }
                self.set_client_thinks(client);
            }
            Step::Holding => {
                if self.set_rng.chance(85) {
                    self.releases_set(client);
                }
                self.set_client_thinks(client);
            }
        }
    }

    fn set_client_thinks(&mut self, client: usize) {
        let c = &mut self.sets.clients[client];
        (c.step, c.req) = (Step::Thinking, 0);
        let pause = self.set_rng.range(2, 400) * MS;
        self.wake_set_client(client, pause);
    }

    fn acquires_set(&mut self, client: usize) {
        let names = self.drawn_names();
        let (inst, token) = (self.set_rng.index(self.insts.len()), token_of(self.id()));
        let wait_ms = if self.set_rng.chance(self.profile.waits) { self.set_rng.range(200, 3_000) } else { 0 };
        let ttl_ms = self.set_rng.range(200, self.insts[inst].max_ttl_ms);
        let operation = Operation::AcquireSet { others: names[1..].to_vec(), ttl_ms, wait_ms };
        let (req, sent, resource) = (self.id(), self.now, names[0].clone());
        self.mix(&[req, inst as u64]);
        self.trace(|| format!("set client {client} -> i{inst} {names:?} {token:?} (request {req})"));
        let by = Requester::Set(client);
        let request =
            ClientRequest { req, by, inst, resource, token: token.clone(), operation, sent, lease_ttl_ms: ttl_ms };
        self.requests.insert(req, request);
        let c = &mut self.sets.clients[client];
        (c.step, c.req, c.inst, c.token, c.names) = (Step::Acquiring, req, inst, Some(token), names);
        let at = self.now + self.set_rng.range(80, 2_000);
        self.at(at, Event::Arrive { req });
        let patience = if self.set_rng.chance(20) { 1 } else { wait_ms + 200 };
        let timeout = self.set_rng.range(patience, patience + 1_300) * MS;
        self.wake_set_client(client, timeout);
    }

    /// Two or more names, in any order.
    fn drawn_names(&mut self) -> Vec<ResourceName> {
        let mut names = self.sets.names.clone();
        for i in (1..names.len()).rev() {
            let other = self.set_rng.index(i + 1);
            names.swap(i, other);
        }
        let count = 2 + self.set_rng.index(names.len() - 1);
        names.truncate(count);
        names
    }

    /// Lets go of all of it at once; each release is a request of its own, and may be lost.
    fn releases_set(&mut self, client: usize) {
        let c = &self.sets.clients[client];
        let (names, token, inst) = (c.names.clone(), c.token.clone().expect("begun"), c.inst);
        self.note_release(&token);
        for resource in names {
            let (req, sent) = (self.id(), self.now);
            let operation = Operation::Release;
            let by = Requester::Set(client);
            let request =
                ClientRequest { req, by, inst, resource, token: token.clone(), operation, sent, lease_ttl_ms: 0 };
            self.requests.insert(req, request);
            let at = self.now + self.set_rng.range(80, 2_000);
            self.at(at, Event::Arrive { req });
        }
    }

    /// An answer reaches a client of sets.
    pub(super) fn set_client_answered(&mut self, client: usize, req: u64, answer: &Answer) {
        if self.sets.clients[client].req != req {
            return;
        }
        let Answer::Good { valid_us, .. } = answer else { return self.set_client_thinks(client) };
        self.coverage.count(HardState::SetGranted);
        let c = &mut self.sets.clients[client];
        (c.step, c.deadline) = (Step::Holding, self.now + valid_us);
        let held = self.set_rng.below((*valid_us).max(MS));
        self.wake_set_client(client, held);
    }

    /// An instance has answered a request for a set: a promise for each resource, or nothing.
    pub(super) fn answer_set(&mut self, inst: usize, request: &ClientRequest, promises: Option<Vec<Promise>>) {
        let req = request.req;
        if !self.requests.contains_key(&req) {
            // Its caller hung up in the same instant: what was kept is left to its TTL.
            self.queue_checks.iter_mut().for_each(|check| check.is_blocked |= promises.is_some());
            return self.note_attempts(inst, req, promises.is_some());
        }
        self.insts[inst].serving.remove(&req);
        let (at, mut answer) = (self.local(inst), Answer::No);
        let Operation::AcquireSet { others, ttl_ms, wait_ms } = request.operation.clone() else { return };
        let is_kept = promises.is_some();
        let names = std::iter::once(&request.resource).chain(&others);
        for (resource, promise) in names.zip(promises.into_iter().flatten()) {
            let operation = Operation::Acquire { ttl_ms, wait_ms };
            let one = ClientRequest { resource: resource.clone(), operation, ..request.clone() };
            self.mix(&[req, promise.fence.0, promise.until]);
            self.check_grant(&one, &promise);
            if promise.mode == Mode::Shared {
                self.coverage.count(HardState::SharedSetGranted);
            }
            let valid_us = promise.until.saturating_sub(promise.at);
            answer = Answer::Good { fence: promise.fence, valid_us, waited_us: 0 };
        }
        self.note_attempts(inst, req, is_kept);
        let arrives = at + self.set_rng.range(80, 2_000);
        self.at(arrives, Event::Answered { req, answer });
    }

    /// Notes what the attempt of a set claims on a node before its request arrives there.
    pub(super) fn before_set(&mut self, node: usize, request: &Request) {
        if let Request::AcquireSet(args) = request {
            let claimed = args.resources.iter().filter(|resource| self.is_claimed(node, args, resource));
            self.sets.claimed_before = claimed.cloned().collect();
        }
    }

    fn is_claimed(&self, node: usize, args: &AcquireSetArgs, resource: &ResourceName) -> bool {
        let claim = format!("{},", args.attempt.as_str());
        self.lease_on(node, resource, &args.token).is_some_and(|(record, _)| record.claims.contains(&claim))
    }

    /// A node takes all of a set or none of it.
    pub(super) fn observe_set(&mut self, node: usize, args: &AcquireSetArgs, answer: &NodeResult) {
        match answer {
            Ok(Reply::SetGranted { .. }) => {
                for resource in args.resources.iter() {
                    let has = self.lease_on(node, resource, &args.token).is_some();
                    if !has {
                        self.fail(format!("node {node} granted a set without {resource}"));
                    }
                    self.check_not_ended(node, resource, &args.token, &args.attempt);
                }
            }
            Ok(Reply::SetRefused { .. }) => {
                self.coverage.count(HardState::SetRefused);
                let is_new = |resource: &&ResourceName| {
                    !self.sets.claimed_before.contains(*resource) && self.is_claimed(node, args, resource)
                };
                if let Some(resource) = args.resources.iter().find(is_new) {
                    self.fail(format!("half a set: node {node} refused {:?} and kept {resource}", args.resources));
                }
            }
            _ => {}
        }
    }
}

/// Serves a request for a set, as the manager does.
pub(super) async fn serve(engine: &Engine, waiting: &Waiting, request: &ClientRequest, started: BootTime) {
    let Operation::AcquireSet { others, ttl_ms, wait_ms } = &request.operation else { return };
    let (world, inst) = (&engine.clock.world, engine.clock.inst);
    let resources: std::sync::Arc<[ResourceName]> = std::iter::once(&request.resource).chain(others).cloned().collect();
    let drawn = lock(world).profile.mode_of(&request.token);
    let mode = if lock(world).profile.shares_sets { drawn } else { WantedMode::Exclusive };
    let params = AcquireParams {
        resources: resources.clone(),
        token: request.token.clone(),
        ttl: Ttl::from_ms(*ttl_ms).expect("in range"),
        mode,
        labels: Labels::default(),
        token_use: TokenUse::Again,
    };
    let wanted = WaitRequest {
        resources,
        mode,
        party: None,
        token: Some(request.token.clone()),
        until: started.plus(Duration::from_millis(*wait_ms)),
        admission: if *wait_ms > 0 { Admission::Queued } else { Admission::Once },
        refuses_deadlock: false,
        note: "".into(),
        is_ticket: false,
    };
    let now = engine.clock.now();
    lock(world).begins_to_wait(inst, request, *wait_ms, now);
    let began = std::sync::Mutex::new(None);
    let note = |begun, _: &Result<_, _>| *began.lock().expect("no panic here") = Some(begun);
    let outcome = waiting.acquire(&params, wanted, None, |_| true, note).await;
    let began = began.into_inner().expect("no panic here").filter(|_| outcome.is_ok());
    lock(world).ends_to_wait(inst, request.req, began);
    let mut granted = None;
    match outcome {
        Ok(grant) => {
            let (leases, deadline, mode) = (grant.leases.clone(), grant.deadline, grant.mode);
            lock(world).stall_before_answer(inst);
            granted = grant.keep().is_ok().then_some((leases, deadline, mode));
        }
        Err(WaitError::Refused(refusal)) if refusal.kind == RefusalKind::Split => {
            lock(world).coverage.count(HardState::SplitVote);
        }
        Err(_) => {}
    }
    let mut world = lock(world);
    let at = world.local(inst);
    let promises = granted.map(|(leases, deadline, mode)| {
        let until = world.when(inst, deadline).max(at);
        let promise = |joined, fence| Promise { fence, mode, at, until, trusted: until, joined };
        leases.iter().map(|lease| promise(lease.joined, lease.fence)).collect()
    });
    world.answer_set(inst, request, promises);
}

/// What draws for sets, so that seeds without them stay as they are.
pub(super) fn rng(seed: u64) -> Rng {
    Rng::new(seed, 7)
}
