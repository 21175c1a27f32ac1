//! The network between instances and nodes: ordered connections that are bound to the node's
//! process at connect, cuts, breaks with loss or late delivery, and the node's side of it, where
//! requests meet the real machine. Knows no engine and no client.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use super::beings::{Call, run_id};
use super::world::{Event, MS, SEC, Shared, Todo, Us, World, lock};
use crate::protocol::{ClusterParams, NodeResult, Request, RequestTime, Unreachable, UnreachableKind};
use crate::redlock::node::Node;
use crate::types::NodeId;

/// One connection of an instance to a node, and those before it.
#[derive(Debug, Default)]
pub(super) struct Link {
    pub(super) up: bool,
    /// Counts its connections.
    generation: u32,
    /// The process at the other end, by number and by name.
    epoch: u32,
    run: Arc<str>,
    last_out: Us,
    last_in: Us,
    /// Nothing reaches the node before.
    pub(super) cut_out: Us,
    /// Nothing reaches the instance before.
    pub(super) cut_in: Us,
    /// Connections that broke, with how much later what was under way arrives; `None`: never.
    buried: Vec<(u32, Option<Us>)>,
}

/// A request under way.
#[derive(Debug)]
pub(super) struct Parcel {
    pub(super) inst: usize,
    life: u32,
    pub(super) node: usize,
    lane: usize,
    generation: u32,
    epoch: u32,
    call: u64,
    pub(super) sent_at: RequestTime,
    pub(super) request: Arc<Request>,
    params: Arc<ClusterParams>,
    run: Arc<str>,
    pub(super) is_late: bool,
}

/// A node as one instance sees it.
pub(super) struct SimNode {
    world: Shared,
    inst: usize,
    node: usize,
    id: NodeId,
}

impl SimNode {
    /// The node with this index.
    pub(super) fn new(world: &Shared, inst: usize, node: usize) -> Self {
        let id = NodeId::parse(&format!("n{node}")).expect("valid");
        Self { world: Arc::clone(world), inst, node, id }
    }
}

impl Node for SimNode {
    fn id(&self) -> &NodeId {
        &self.id
    }

    fn call(
        self: Arc<Self>,
        sent_at: RequestTime,
        request: Arc<Request>,
    ) -> impl Future<Output = NodeResult> + Send + 'static {
        Asking { node: self, sent_at, request, call: None }
    }
}

struct Asking {
    node: Arc<SimNode>,
    sent_at: RequestTime,
    request: Arc<Request>,
    call: Option<u64>,
}

impl Future for Asking {
    type Output = NodeResult;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<NodeResult> {
        let (node, inst) = (Arc::clone(&self.node), self.node.inst);
        let mut world = lock(&node.world);
        let Some(id) = self.call else {
            return match world.send(inst, node.node, self.sent_at, &self.request, cx.waker()) {
                Ok(id) => {
                    self.call = Some(id);
                    Poll::Pending
                }
                Err(kind) => Poll::Ready(Err(Unreachable::new(kind, "simulated"))),
            };
        };
        let Some(call) = world.insts[inst].calls.get_mut(&id) else { return Poll::Pending };
        match call.answer.take() {
            Some(answer) => Poll::Ready(answer),
            None => {
                call.waker.clone_from(cx.waker());
                Poll::Pending
            }
        }
    }
}

impl Drop for Asking {
    fn drop(&mut self) {
        if let Some(id) = self.call {
            let call = lock(&self.node.world).insts[self.node.inst].calls.remove(&id);
            drop(call); // outside of the lock: its waker may be the last one of its task
        }
    }
}

impl World {
    fn latency(&mut self, node: usize) -> Us {
        let usual = self.profile.latency_us;
        let mut lat = self.net.range(usual / 4 + 20, usual);
        if self.net.chance(self.profile.spikes) {
            lat += self.net.below(80 * MS);
        }
        if self.servers[node].slow_until > self.now {
            lat += self.net.range(10, 300) * MS;
        }
        lat
    }

    /// Hands a request to the connection.
    fn send(
        &mut self,
        inst: usize,
        node: usize,
        sent_at: RequestTime,
        request: &Arc<Request>,
        waker: &Waker,
    ) -> Result<u64, UnreachableKind> {
        self.stall(inst);
        let lane = self.lane_of(request);
        if !self.insts[inst].alive || !self.insts[inst].links[node][lane].up {
            return Err(UnreachableKind::Disconnected);
        }
        let (sent, call) = (self.local(inst), self.id());
        let lat = self.latency(node);
        let identity_script = self.profile.identity_script;
        let i = &mut self.insts[inst];
        let link = &mut i.links[node][lane];
        let arrives = (sent + lat).max(link.last_out + 1);
        link.last_out = arrives;
        let parcel = Parcel {
            inst,
            life: i.life,
            node,
            lane,
            generation: link.generation,
            epoch: link.epoch,
            call,
            sent_at,
            request: Arc::clone(request),
            params: Arc::clone(&i.params),
            run: if identity_script { "".into() } else { Arc::clone(&link.run) },
            is_late: false,
        };
        i.calls.insert(call, Call { node, lane, waker: waker.clone(), answer: None });
        self.at(arrives, Event::Parcel(Box::new(parcel)));
        self.ledger.was_sent(request, sent_at, sent);
        Ok(call)
    }

    fn lane_of(&self, request: &Request) -> usize {
        let name = request.resource().map_or("", |resource| resource.as_str());
        name.len() % self.profile.lanes
    }

    /// A request arrives, if it does.
    pub(super) fn deliver(&mut self, mut parcel: Box<Parcel>) {
        let (now, node, inst, lane) = (self.now, parcel.node, parcel.inst, parcel.lane);
        let server = &self.servers[node];
        if !server.up || server.epoch != parcel.epoch {
            return; // its process is gone, and the connection with it
        }
        if server.frozen_until > now {
            let thaw = server.frozen_until;
            return self.hold_back(parcel, thaw);
        }
        let link = &self.insts[inst].links[node][lane];
        let is_current = link.generation == parcel.generation;
        if is_current && link.cut_out > now {
            let heals = link.cut_out;
            return self.hold_back(parcel, heals);
        }
        if !is_current && !parcel.is_late {
            if let Some((_, Some(later))) = link.buried.iter().find(|(g, _)| *g == parcel.generation) {
                let at = now + later;
                parcel.is_late = true;
                self.at(at, Event::Parcel(parcel));
            }
            return;
        }
        let clock = self.node_clock(node);
        let server = &mut self.servers[node];
        let answer = server.machine.apply(clock, &parcel.run, parcel.sent_at, &parcel.params, &parcel.request);
        self.observe(&parcel, &answer);
        let lat = self.latency(node);
        if is_current && self.insts[inst].life == parcel.life {
            let link = &mut self.insts[inst].links[node][lane];
            let at = (now + lat).max(link.last_in + 1);
            link.last_in = at;
            let (life, generation, call) = (parcel.life, parcel.generation, parcel.call);
            self.at(at, Event::Reply { inst, life, node, lane, generation, call, answer: Box::new(answer) });
        }
    }

    fn hold_back(&mut self, parcel: Box<Parcel>, until: Us) {
        let link = &mut self.insts[parcel.inst].links[parcel.node][parcel.lane];
        link.last_out = link.last_out.max(until);
        self.at(until, Event::Parcel(parcel));
    }

    /// An answer arrives, if it does.
    pub(super) fn receive(&mut self, event: Event) {
        let Event::Reply { inst, life, node, lane, generation, call, .. } = &event else { return };
        let (inst, life, call, now) = (*inst, *life, *call, self.now);
        let link = &self.insts[inst].links[*node][*lane];
        if self.insts[inst].life != life || link.generation != *generation {
            return;
        }
        let ready = link.cut_in.max(self.insts[inst].local);
        if ready > now {
            return self.at(ready, event);
        }
        let Event::Reply { answer, .. } = event else { return };
        self.resolve(inst, call, *answer);
    }

    /// A call finds its connection broken.
    pub(super) fn fail_call(&mut self, inst: usize, life: u32, call: u64, kind: UnreachableKind) {
        let local = self.insts[inst].local;
        if local > self.now {
            return self.at(local, Event::Fail { inst, life, call, kind });
        }
        if self.insts[inst].life == life {
            self.resolve(inst, call, Err(Unreachable::new(kind, "simulated")));
        }
    }

    fn resolve(&mut self, inst: usize, call: u64, answer: NodeResult) {
        if let Some(call) = self.insts[inst].calls.get_mut(&call)
            && call.answer.is_none()
        {
            call.answer = Some(answer);
            self.wakes.push(call.waker.clone());
            self.todo.push(Todo::Run(inst));
        }
    }

    /// Breaks a connection. What was under way is lost, or arrives later, in order among itself.
    /// Callers see the break at once, or only their own time-outs.
    pub(super) fn break_link(&mut self, inst: usize, node: usize, lane: usize, back_after: Us) {
        let longest = self.net.pick(&[300 * MS, 3 * SEC]);
        let late = if self.net.chance(60) { Some(self.net.below(longest)) } else { None };
        let is_noisy = self.net.chance(60);
        let now = self.now;
        let i = &mut self.insts[inst];
        let (life, link) = (i.life, &mut i.links[node][lane]);
        if !link.up {
            return;
        }
        link.buried.push((link.generation, late));
        link.generation += 1;
        link.up = false;
        (link.last_out, link.last_in) = (0, 0);
        let generation = link.generation;
        let waiting = i.calls.iter().filter(|(_, c)| c.node == node && c.lane == lane && c.answer.is_none());
        let waiting: Vec<u64> = waiting.map(|(id, _)| *id).collect();
        if is_noisy {
            for call in waiting {
                self.at(now + MS, Event::Fail { inst, life, call, kind: UnreachableKind::Broken });
            }
        }
        self.at(now + back_after, Event::Connect { inst, life, node, lane, generation });
    }

    /// Connects, hand-shake included, or tries again a little later.
    pub(super) fn connect(&mut self, inst: usize, life: u32, node: usize, lane: usize, generation: u32) {
        let now = self.now;
        let again = now + self.net.range(20, 250) * MS;
        let (server, i) = (&self.servers[node], &mut self.insts[inst]);
        let link = &mut i.links[node][lane];
        if i.life != life || link.generation != generation || link.up {
            return;
        }
        let is_reachable = server.up && server.frozen_until <= now && link.cut_out <= now && link.cut_in <= now;
        if !is_reachable || i.local > now {
            return self.at(again, Event::Connect { inst, life, node, lane, generation });
        }
        link.up = true;
        link.epoch = server.epoch;
        link.run = run_id(node, server.epoch).into();
    }

    /// An instance's process begins: all its connections are to be made.
    pub(super) fn connect_all(&mut self, inst: usize) {
        let (life, now) = (self.insts[inst].life, self.now);
        for node in self.profile.list_of(inst) {
            for lane in 0..self.profile.lanes {
                let generation = self.insts[inst].links[node][lane].generation;
                let at = now + self.net.range(1, 10) * MS;
                self.at(at, Event::Connect { inst, life, node, lane, generation });
            }
        }
    }
}
