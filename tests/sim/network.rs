//! The network between instances and nodes: ordered connections that are bound to the node's process at
//! connect, cuts, breaks with loss or late delivery, and the node's side, where requests are executed
//! by the reference implementation.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::task::{Context, Poll, Waker};

use super::actors::Call;
use super::coverage::HardState;
use super::notices::Feed;
use super::world::{Event, MS, SEC, Shared, Todo, Us, World, lock};
use crate::protocol::{ClusterParams, NodeResult, Reply, Request, RequestStamp, Unreachable, UnreachableKind};
use crate::redlock::node::Node;
use crate::redlock::notifications::NotificationSource;
use crate::redlock::subscriptions::Subscriptions;
use crate::types::NodeId;

/// One connection of an instance to a node, and those before it.
#[derive(Debug, Default)]
pub(super) struct Link {
    pub(super) up: bool,
    /// Number of its connections so far.
    generation: u32,
    /// The process at the other end, by number and by name.
    epoch: u32,
    run: Arc<str>,
    last_out: Us,
    /// Until when requests were held back by a cut, which may outlast the faults.
    pub(super) held_back: Us,
    last_in: Us,
    /// Nothing reaches the node before this time.
    pub(super) cut_out: Us,
    /// Nothing reaches the instance before this time.
    pub(super) cut_in: Us,
    /// Broken connections, with the delay of what was in flight; `None`: it is lost.
    broken: Vec<(u32, Option<Us>)>,
}

/// A request in flight.
#[derive(Debug)]
pub(super) struct Packet {
    pub(super) inst: usize,
    life: u32,
    pub(super) node: usize,
    connection: usize,
    generation: u32,
    epoch: u32,
    call: u64,
    pub(super) stamp: RequestStamp,
    pub(super) request: Arc<Request>,
    params: Arc<ClusterParams>,
    run: Arc<str>,
    pub(super) is_late: bool,
}

/// A node as one instance sees it.
pub(super) struct SimNode {
    world: Shared,
    inst: usize,
    /// The server that it connects to.
    server: Arc<AtomicUsize>,
    is_moved: AtomicBool,
    id: NodeId,
    subscriptions: Arc<Subscriptions>,
}

impl SimNode {
    /// The node with this index.
    pub(super) fn new(world: &Shared, inst: usize, node: usize) -> Self {
        let subscriptions = Arc::new(Subscriptions::default());
        let mut w = lock(world);
        let id = w.profile.name_of(node);
        w.insts[inst].feeds.insert(node, Feed::new(&subscriptions));
        w.uses(inst, node);
        drop(w);
        Self {
            world: Arc::clone(world),
            inst,
            server: Arc::new(node.into()),
            is_moved: false.into(),
            id,
            subscriptions,
        }
    }

    /// The server's index, and the channel of its notices.
    pub(super) fn feed(&self) -> (Arc<AtomicUsize>, Arc<Subscriptions>) {
        (Arc::clone(&self.server), Arc::clone(&self.subscriptions))
    }

    fn server(&self) -> usize {
        self.server.load(Ordering::Relaxed)
    }
}

impl Node for SimNode {
    fn id(&self) -> &NodeId {
        &self.id
    }

    fn syncs_each_write(&self) -> Option<bool> {
        let world = lock(&self.world);
        world.profile.durable.then(|| world.servers[self.server()].syncs)
    }

    fn address(&self) -> Option<Arc<str>> {
        Some(address_of(self.server()))
    }

    fn moved_to(&self) -> Option<Arc<str>> {
        self.is_moved.load(Ordering::Relaxed).then(|| address_of(self.server()))
    }

    fn move_to(&self, address: &str) -> bool {
        let (mut world, before) = (lock(&self.world), self.server());
        let Some(to) = (0..world.servers.len()).find(|server| *address == *address_of(*server)) else { return false };
        if to != before && world.profile.name_of(to) == self.id {
            world.insts[self.inst].feeds.insert(to, Feed::new(&self.subscriptions));
            world.connect_to(self.inst, to);
            world.uses(self.inst, to);
            self.server.store(to, Ordering::Relaxed);
            world.break_feed(self.inst, before);
        }
        let has_moved = self.server() == to;
        self.is_moved.fetch_or(has_moved, Ordering::Relaxed);
        has_moved
    }

    fn notifications(&self) -> NotificationSource<'_> {
        NotificationSource::Subscriptions(&self.subscriptions)
    }

    fn call(
        self: Arc<Self>,
        stamp: RequestStamp,
        request: Arc<Request>,
    ) -> impl Future<Output = NodeResult> + Send + 'static {
        PendingCall { node: self, stamp, request, call: None }
    }
}

/// A server's address.
pub(super) fn address_of(server: usize) -> Arc<str> {
    format!("server:{server}").into()
}

struct PendingCall {
    node: Arc<SimNode>,
    stamp: RequestStamp,
    request: Arc<Request>,
    call: Option<u64>,
}

impl Future for PendingCall {
    type Output = NodeResult;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<NodeResult> {
        let (node, inst) = (Arc::clone(&self.node), self.node.inst);
        let mut world = lock(&node.world);
        let Some(id) = self.call else {
            return match world.send(&node, &self.stamp, &self.request, cx.waker()) {
                Ok(id) => {
                    self.call = Some(id);
                    Poll::Pending
                }
                Err(answer) => Poll::Ready(*answer),
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

impl Drop for PendingCall {
    fn drop(&mut self) {
        if let Some(id) = self.call {
            let call = lock(&self.node.world).insts[self.node.inst].calls.remove(&id);
            drop(call); // outside of the lock: its waker may be the last one of its task
        }
    }
}

impl World {
    pub(super) fn latency(&mut self, node: usize) -> Us {
        let usual = self.profile.latency_us;
        let mut lat = self.net_rng.range(usual / 4 + 20, usual);
        if self.net_rng.chance(self.profile.spikes) {
            lat += self.net_rng.below(80 * MS);
        }
        if self.servers[node].slow_until > self.now {
            lat += self.net_rng.range(10, 300) * MS;
        }
        lat
    }

    /// Hands a request to the connection.
    fn send(
        &mut self,
        to: &SimNode,
        stamp: &RequestStamp,
        request: &Arc<Request>,
        waker: &Waker,
    ) -> Result<u64, Box<NodeResult>> {
        let (inst, node) = (to.inst, to.server());
        self.stall(inst);
        let connection = self.connection_of(request);
        if !self.insts[inst].alive || !self.insts[inst].links[node][connection].up {
            return Err(Box::new(Err(Unreachable::new(UnreachableKind::Disconnected, "simulated"))));
        }
        let (sent, call) = (self.local(inst), self.id());
        let lat = self.latency(node);
        let identity_script = self.profile.identity_script;
        let run = if identity_script { "".into() } else { Arc::clone(&self.insts[inst].links[node][connection].run) };
        if let Some(no_vote) = stamp.refusal(&to.id, &run, request) {
            return Err(Box::new(Ok(Reply::NoVote(no_vote))));
        }
        let i = &mut self.insts[inst];
        let link = &mut i.links[node][connection];
        let arrives = (sent + lat).max(link.last_out + 1);
        link.last_out = arrives;
        let packet = Packet {
            inst,
            life: i.life,
            node,
            connection,
            generation: link.generation,
            epoch: link.epoch,
            call,
            stamp: stamp.clone(),
            request: Arc::clone(request),
            params: Arc::clone(&i.params),
            run,
            is_late: false,
        };
        i.calls.insert(call, Call { node, connection, waker: waker.clone(), answer: None });
        self.at(arrives, Event::Packet(Box::new(packet)));
        self.insts[inst].reckoned_us = Some(stamp.sent_at.0.cast_signed() - self.now.cast_signed());
        self.insts[inst].asks_in = Arc::clone(&stamp.view);
        self.insts[inst].asked |= 1 << node;
        if self.checker.was_sent(request, stamp.sent_at, sent) {
            self.coverage.count(HardState::LeaseSpread);
        }
        Ok(call)
    }

    fn connection_of(&self, request: &Request) -> usize {
        let name = request.resource().map_or("", |resource| resource.as_str());
        name.len() % self.profile.connections
    }

    /// A request arrives, unless it is lost.
    pub(super) fn deliver(&mut self, mut packet: Box<Packet>) {
        let (now, node, inst, connection) = (self.now, packet.node, packet.inst, packet.connection);
        let server = &self.servers[node];
        if !server.up || server.epoch != packet.epoch {
            return; // its process is gone, and the connection with it
        }
        if server.frozen_until > now {
            let thaw = server.frozen_until;
            return self.hold_back(packet, thaw);
        }
        let link = &self.insts[inst].links[node][connection];
        let is_current = link.generation == packet.generation;
        if is_current && link.cut_out > now {
            let heals = link.cut_out;
            return self.hold_back(packet, heals);
        }
        if !is_current && !packet.is_late {
            if let Some((_, Some(later))) = link.broken.iter().find(|(g, _)| *g == packet.generation) {
                let at = now + later;
                packet.is_late = true;
                self.at(at, Event::Packet(packet));
            }
            return;
        }
        // It would take the vote of a process that was healed since its failover, and then too few others may be left.
        let is_of_former = !packet.run.is_empty() && *packet.run != *server.machine.run();
        if self.profile.heals_only && packet.is_late && is_of_former {
            return;
        }
        let clock = self.node_clock(node);
        let may_end = self.may_end(&packet);
        self.before_set(node, &packet.request);
        let server = &mut self.servers[node];
        let answer = server.machine.apply(clock, &packet.run, packet.stamp.clone(), &packet.params, &packet.request);
        self.observe(&packet, &answer);
        let answer = packet.stamp.counted(&self.profile.name_of(node), &packet.run, answer);
        if let Some(mode) = may_end {
            self.publish_end(&packet, mode);
        }
        let lat = self.latency(node);
        if is_current && self.insts[inst].life == packet.life {
            let link = &mut self.insts[inst].links[node][connection];
            let at = (now + lat).max(link.last_in + 1);
            link.last_in = at;
            let (life, generation, call) = (packet.life, packet.generation, packet.call);
            self.at(at, Event::Reply { inst, life, node, connection, generation, call, answer: Box::new(answer) });
        }
    }

    fn hold_back(&mut self, packet: Box<Packet>, until: Us) {
        let link = &mut self.insts[packet.inst].links[packet.node][packet.connection];
        link.last_out = link.last_out.max(until);
        link.held_back = link.held_back.max(until);
        self.at(until, Event::Packet(packet));
    }

    /// An answer arrives, unless it is lost.
    pub(super) fn receive(&mut self, event: Event) {
        let Event::Reply { inst, life, node, connection, generation, call, .. } = &event else { return };
        let (inst, life, call, now) = (*inst, *life, *call, self.now);
        let link = &self.insts[inst].links[*node][*connection];
        if self.insts[inst].life != life || link.generation != *generation {
            return;
        }
        let ready = link.cut_in.max(self.insts[inst].local);
        if ready > now {
            return self.at(ready, event);
        }
        let Event::Reply { answer, node, .. } = event else { return };
        if let Ok(Reply::Status(status)) = &*answer
            && self.insts[inst].calls.contains_key(&call)
        {
            self.servers[node].received.insert((inst, life), status.now_us);
        }
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

    /// Breaks a connection. What was in flight is lost, or arrives later in the same order. Callers get
    /// an error at once, or time out.
    pub(super) fn break_link(&mut self, inst: usize, node: usize, connection: usize, back_after: Us) {
        let longest = self.net_rng.pick(&[300 * MS, 3 * SEC]);
        let late = if self.net_rng.chance(60) { Some(self.net_rng.below(longest)) } else { None };
        let is_noisy = self.net_rng.chance(60);
        let now = self.now;
        let i = &mut self.insts[inst];
        let (life, link) = (i.life, &mut i.links[node][connection]);
        if !link.up {
            return;
        }
        link.broken.push((link.generation, late));
        link.generation += 1;
        link.up = false;
        (link.last_out, link.last_in) = (0, 0);
        let generation = link.generation;
        let waiting =
            i.calls.iter().filter(|(_, c)| c.node == node && c.connection == connection && c.answer.is_none());
        let waiting: Vec<u64> = waiting.map(|(id, _)| *id).collect();
        if is_noisy {
            for call in waiting {
                self.at(now + MS, Event::Fail { inst, life, call, kind: UnreachableKind::Broken });
            }
        }
        if connection == 0 {
            self.break_feed(inst, node);
        }
        self.at(now + back_after, Event::Connect { inst, life, node, connection, generation });
    }

    /// Connects, hand-shake included, or tries again a little later.
    pub(super) fn connect(&mut self, inst: usize, life: u32, node: usize, connection: usize, generation: u32) {
        let now = self.now;
        let again = now + self.net_rng.range(20, 250) * MS;
        let (server, i) = (&self.servers[node], &mut self.insts[inst]);
        let link = &mut i.links[node][connection];
        if i.life != life || link.generation != generation || link.up {
            return;
        }
        let is_reachable = server.up && server.frozen_until <= now && link.cut_out <= now && link.cut_in <= now;
        if !is_reachable || i.local > now {
            return self.at(again, Event::Connect { inst, life, node, connection, generation });
        }
        link.up = true;
        link.epoch = server.epoch;
        link.run = server.machine.run().into();
    }

    /// An instance's process starts: all its connections are opened.
    pub(super) fn connect_all(&mut self, inst: usize) {
        self.profile.list_of(inst).into_iter().for_each(|node| self.connect_to(inst, node));
    }

    /// Notes which of the two servers of the first name it uses.
    fn uses(&mut self, inst: usize, server: usize) {
        if self.profile.name_of(server) == self.profile.name_of(0) {
            self.insts[inst].first_server = server;
        }
    }

    /// An instance uses a node from now on.
    pub(super) fn connect_to(&mut self, inst: usize, node: usize) {
        let (life, now) = (self.insts[inst].life, self.now);
        for connection in 0..self.profile.connections {
            let generation = self.insts[inst].links[node][connection].generation;
            let at = now + self.net_rng.range(1, 10) * MS;
            self.at(at, Event::Connect { inst, life, node, connection, generation });
        }
    }
}
