//! Notices of ended leases: the subscriber connection of each instance to each node, which breaks with the others,
//! and what is published on it, late or lost.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tokio::sync::Notify;

use super::clock::SimClock;
use super::network::Packet;
use super::world::{Event, MS, Todo, World, lock};
use crate::protocol::{CancelArgs, LeaseRecord, ReleaseArgs, Request};
use crate::redlock::clock::Clock;
use crate::redlock::notifications::{LeaseTag, Notice, Topic};
use crate::redlock::subscriptions::Subscriptions;
use crate::types::{Mode, ResourceName};

/// The subscriber connection of an instance to a node.
#[derive(Debug)]
pub(super) struct Feed {
    channel: Arc<Subscriptions>,
    is_up: bool,
    /// Number of its connections so far.
    generation: u32,
    /// What the node publishes on it.
    topics: BTreeSet<Topic>,
    broken: Arc<Notify>,
}

impl Feed {
    pub(super) fn new(channel: &Arc<Subscriptions>) -> Self {
        let (channel, topics, broken) = (Arc::clone(channel), BTreeSet::new(), Arc::default());
        Self { channel, is_up: false, generation: 0, topics, broken }
    }
}

/// The lease that a request may end, and whether that would be a withdrawn attempt.
pub(super) fn ends(request: &Request) -> Option<(&ResourceName, Notice)> {
    let (resource, token, withdrawn) = match request {
        Request::Release(ReleaseArgs { resource, token, .. }) => (resource, token, false),
        Request::Cancel(CancelArgs { resource, token, .. }) => (resource, token, true),
        _ => return None,
    };
    Some((resource, Notice { lease: Some(LeaseTag::of(token)), withdrawn, slot: None }))
}

impl World {
    /// The lease that this request may end, if it is on its node.
    pub(super) fn may_end(&self, packet: &Packet) -> Option<Mode> {
        let (resource, notice) = ends(&packet.request)?;
        let leases = self.leases_on(packet.node, resource);
        let its = leases.iter().find(|(record, _)| Some(LeaseTag::of(&record.token)) == notice.lease);
        its.map(|(record, _)| record.mode)
    }

    /// As the scripts do where they delete a lock.
    pub(super) fn publish_end(&mut self, packet: &Packet, mode: Mode) {
        let Some((resource, notice)) = ends(&packet.request) else { return };
        let notice = Notice { slot: mode.slot(), ..notice };
        // The end of one of several shared leases lets nobody in.
        let keeps_out = |(record, _): &(&LeaseRecord, u64)| {
            record.mode.slot().is_none() || Some(LeaseTag::of(&record.token)) == notice.lease
        };
        if self.leases_on(packet.node, resource).iter().any(keeps_out) {
            return;
        }
        let topic = Topic::LeaseEnded(resource.clone());
        for inst in 0..self.insts.len() {
            let feed = self.insts[inst].feeds.get(&packet.node).filter(|f| f.is_up && f.topics.contains(&topic));
            let Some(generation) = feed.map(|feed| feed.generation) else { continue };
            if !self.calm && self.net_rng.chance(self.profile.lost_notices) {
                continue;
            }
            let at = self.now + self.latency(packet.node);
            let (life, node, resource) = (self.insts[inst].life, packet.node, resource.clone());
            self.at(at, Event::Notice { inst, life, node, generation, resource, notice });
        }
    }

    /// A notice arrives, unless its connection broke.
    pub(super) fn receive_notice(&mut self, event: Event) {
        let Event::Notice { inst, life, node, generation, .. } = &event else { return };
        let (inst, node, i) = (*inst, *node, &self.insts[*inst]);
        let is_current = i.feeds.get(&node).is_some_and(|feed| feed.is_up && feed.generation == *generation);
        if i.life != *life || !is_current {
            return;
        }
        let ready = i.links[node][0].cut_in.max(i.local);
        if ready > self.now {
            return self.at(ready, event);
        }
        let (Event::Notice { resource, notice, .. }, Some(feed)) = (event, self.insts[inst].feeds.get(&node)) else {
            return;
        };
        let channel = Arc::clone(&feed.channel);
        self.trace(|| format!("i{inst} <- n{node} {notice:?} of {resource}"));
        self.todo.push(Todo::Notice(inst, channel, resource, notice));
    }

    /// The subscriber connection breaks with the others; what is in flight is lost.
    pub(super) fn break_feed(&mut self, inst: usize, node: usize) {
        if let Some(feed) = self.insts[inst].feeds.get_mut(&node).filter(|feed| feed.is_up) {
            feed.is_up = false;
            feed.generation += 1;
            feed.topics.clear();
            feed.broken.notify_one();
            self.todo.push(Todo::Run(inst));
        }
    }

    /// Connects with these topics. Returns what notifies of the end of the connection.
    fn connect_feed(&mut self, inst: usize, node: usize, topics: &[Topic]) -> Option<Arc<Notify>> {
        let (now, server, i) = (self.now, &self.servers[node], &mut self.insts[inst]);
        let link = &i.links[node][0];
        let is_reachable = server.up && server.frozen_until <= now && link.cut_out <= now && link.cut_in <= now;
        let feed = i.feeds.get_mut(&node).filter(|_| is_reachable)?;
        feed.is_up = true;
        feed.broken = Arc::default();
        feed.topics = topics.iter().cloned().collect();
        Some(Arc::clone(&feed.broken))
    }

    /// Adds topics to the connection, if it is up.
    fn add_topics(&mut self, inst: usize, node: usize, topics: &[Topic]) -> bool {
        let feed = self.insts[inst].feeds.get_mut(&node).filter(|feed| feed.is_up);
        feed.map(|feed| feed.topics.extend(topics.iter().cloned())).is_some()
    }

    fn subscribers(&self, node: usize, topic: &Topic) -> usize {
        let feeds = self.insts.iter().filter(|i| i.alive).filter_map(|i| i.feeds.get(&node));
        feeds.filter(|feed| feed.is_up && feed.topics.contains(topic)).count()
    }

    fn way(&mut self, node: usize) -> Duration {
        Duration::from_micros(self.latency(node))
    }
}

/// What a node's subscriber does in an instance: connects, subscribes, and again when the connection broke.
pub(super) async fn subscribe(clock: SimClock, server: Arc<AtomicUsize>, channel: Arc<Subscriptions>) {
    let (world, inst) = (Arc::clone(&clock.world), clock.inst);
    loop {
        let pause = lock(&world).net_rng.range(1, 60) * MS;
        clock.sleep(Duration::from_micros(pause)).await;
        let (topics, node) = (channel.reconnect(), server.load(Ordering::Relaxed));
        let Some(broken) = lock(&world).connect_feed(inst, node, &topics) else { continue };
        channel.confirm(&topics);
        channel.connected();
        loop {
            tokio::select! {
                biased;
                () = broken.notified() => break,
                () = channel.changed() => {}
            }
            let commands = channel.take_commands();
            let there = lock(&world).way(node);
            clock.sleep(there).await;
            let (is_up, back) = {
                let mut world = lock(&world);
                (world.add_topics(inst, node, &commands.subscribe), world.way(node))
            };
            clock.sleep(back).await;
            if is_up {
                channel.confirm(&commands.subscribe);
            }
            for (topic, answer) in commands.count {
                let _ = answer.send(lock(&world).subscribers(node, &topic));
            }
        }
        channel.disconnected();
    }
}
