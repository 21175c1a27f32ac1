//! Mutual exclusion of a lease on three nodes, and what a successful extend guarantees: two clients, whole
//! ticks of time, messages that are late or never arrive, nodes that forget everything or the last
//! second, clocks that step. Fences and waiting have models of their own.
//!
//! One tick stands for the guard. The times keep the order that the service's have (a request is
//! refused when it is late, the lock delay covers a tolerated clock step, the quarantine covers a
//! lease), and are as short as that allows.

use stateright::{Model, Property};

use super::{Expect, check, in_depth};

const NODES: usize = 3;
const ALL: u8 = (1 << NODES) - 1;
const TTL: u8 = 2;

/// A fault of a node, once or twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fault {
    None,
    /// A restart without data, or FLUSHALL.
    Wipe,
    /// A restart with what was synced to disk by then.
    LoseTail,
    /// The wall clock steps ahead by so much, and stays.
    Step(u8),
    /// It steps ahead by two, and back before it is detected.
    StepAndBack,
    /// Redis evicts the lock's key.
    Evict,
}

/// How a node detects that it forgot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Memory {
    /// It does not: plain Redlock.
    Unchecked,
    /// By a marker that is gone.
    Marker,
    /// By a marker that names the run.
    Run,
}

/// What an extend does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Extend {
    /// There are no extends.
    Off,
    /// The protocol: lengthens where the lease is, and only after a quorum has confirmed that it
    /// plants the lease where it was missing.
    PlantAfterConfirm,
    /// Sets the key where it is missing, and counts that.
    Creates,
    /// Sets the key where it is missing, and does not count it yet.
    RestoresAtOnce,
    /// One node is enough.
    Minority,
}

#[derive(Clone, Copy, Debug)]
struct Rules {
    quorum: u32,
    validity_from_reply: bool,
    memory: Memory,
    quarantine: u8,
    guard: u8,
    /// `None`: a request's age is not checked.
    staleness: Option<u8>,
    lock_delay: u8,
    extend: Extend,
    extends: u8,
    fault: Fault,
    faults: u8,
    horizon: u8,
}

/// The protocol, without faults and extends.
const PROTOCOL: Rules = Rules {
    quorum: 2,
    validity_from_reply: false,
    memory: Memory::Run,
    quarantine: TTL,
    guard: 1,
    staleness: Some(0),
    lock_delay: 0,
    extend: Extend::Off,
    extends: 0,
    fault: Fault::None,
    faults: 0,
    horizon: 4,
};

/// What a restart may lose.
#[derive(Clone, Copy, Debug, Hash, PartialEq, Eq, PartialOrd, Ord)]
struct Data {
    /// Client and end on this node's clock.
    lock: Option<(u8, u8)>,
    marker: Option<u8>,
    quarantined_until: u8,
    /// Tombstones, by client.
    ended: u8,
}

#[derive(Clone, Copy, Debug, Hash, PartialEq, Eq, PartialOrd, Ord)]
struct Node {
    now: Data,
    synced: Data,
    run: u8,
    ahead: u8,
}

#[derive(Clone, Copy, Debug, Hash, PartialEq, Eq)]
enum Phase {
    Idle,
    Acquiring,
    Holding,
    Extending,
    Done,
}

/// Sets of nodes are bits: where a message is in flight, and which nodes answered what.
#[derive(Clone, Copy, Debug, Hash, PartialEq, Eq)]
struct Client {
    phase: Phase,
    started: u8,
    until: u8,
    extends: u8,
    acquires: u8,
    acquires_sent: u8,
    holds: u8,
    plants: u8,
    plants_sent: u8,
    plants_end: u8,
    releases: u8,
    yes: u8,
    missing: u8,
}

const CLIENT: Client = Client {
    phase: Phase::Idle,
    started: 0,
    until: 0,
    extends: 0,
    acquires: 0,
    acquires_sent: 0,
    holds: 0,
    plants: 0,
    plants_sent: 0,
    plants_end: 0,
    releases: 0,
    yes: 0,
    missing: 0,
};

impl Client {
    fn node_sets(&mut self) -> [&mut u8; 6] {
        [&mut self.acquires, &mut self.holds, &mut self.plants, &mut self.releases, &mut self.yes, &mut self.missing]
    }

    fn believes(&self, now: u8) -> bool {
        matches!(self.phase, Phase::Holding | Phase::Extending) && now < self.until
    }

    fn end(&mut self) {
        (self.phase, self.releases, self.yes, self.missing, self.extends) = (Phase::Done, ALL, 0, 0, 0);
    }
}

#[derive(Clone, Copy, Debug, Hash, PartialEq, Eq)]
struct State {
    now: u8,
    nodes: [Node; NODES],
    clients: [Client; 2],
    faults: u8,
    /// The client that was granted last.
    last: u8,
    /// An extend succeeded although another client had been granted since.
    revived: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Act {
    Tick,
    Begin(usize),
    Acquire(usize, usize),
    Grant(usize),
    GiveUp(usize),
    Extend(usize),
    Hold(usize, usize),
    Confirm(usize),
    FailExtend(usize),
    Plant(usize, usize),
    Release(usize, usize),
    Forget(usize),
    Sync(usize),
    StepClock(usize),
    StepBack(usize),
    ExpireAhead(usize),
    Evict(usize),
    Probe(usize),
}

impl Rules {
    fn fresh(&self, now: u8, sent: u8) -> bool {
        self.staleness.is_none_or(|bound| now <= sent + bound)
    }

    /// The holder on this node, by the node's clock.
    fn holder(node: &Node, now: u8) -> Option<u8> {
        node.now.lock.filter(|(_, end)| *end > now + node.ahead).map(|(client, _)| client)
    }

    /// The check at the start of each script: whether this node has a vote. Records lost memory.
    fn votes(&self, node: &mut Node, now: u8) -> bool {
        if node.ahead > self.guard {
            return false;
        }
        let clock = now + node.ahead;
        let lost = match self.memory {
            Memory::Unchecked => false,
            Memory::Marker => node.now.marker.is_none(),
            Memory::Run => node.now.marker != Some(node.run),
        };
        if lost {
            node.now.marker = Some(node.run);
            node.now.quarantined_until = clock + self.quarantine;
        }
        clock >= node.now.quarantined_until
    }

    fn key_end(&self, node: &Node, now: u8) -> u8 {
        now + node.ahead + TTL + self.lock_delay
    }

    fn on_acquire(&self, s: &mut State, c: usize, n: usize) {
        let (client, node) = (&mut s.clients[c], &mut s.nodes[n]);
        client.acquires &= !(1 << n);
        if !self.fresh(s.now, client.acquires_sent) || !self.votes(node, s.now) || node.now.ended >> c & 1 == 1 {
            return;
        }
        if Self::holder(node, s.now).is_none_or(|h| h == c as u8) {
            node.now.lock = Some((c as u8, self.key_end(node, s.now)));
            if client.phase == Phase::Acquiring {
                client.yes |= 1 << n;
            }
        }
    }

    fn on_update(&self, s: &mut State, c: usize, n: usize) {
        let (client, node) = (&mut s.clients[c], &mut s.nodes[n]);
        client.holds &= !(1 << n);
        if !self.fresh(s.now, client.started) || node.now.ended >> c & 1 == 1 {
            return;
        }
        let (vote, asked) = (self.votes(node, s.now), client.phase == Phase::Extending);
        let end = self.key_end(node, s.now);
        match Self::holder(node, s.now) {
            Some(h) if h == c as u8 => {
                node.now.lock = Some((c as u8, end)); // a quarantined node extends, too
                client.yes |= u8::from(vote && asked) << n;
            }
            Some(_) => {}
            None => match self.extend {
                Extend::Creates if vote => {
                    node.now.lock = Some((c as u8, end));
                    client.yes |= u8::from(asked) << n;
                }
                Extend::RestoresAtOnce if vote => node.now.lock = Some((c as u8, end)),
                _ => client.missing |= u8::from(asked) << n,
            },
        }
    }

    fn on_restore(&self, s: &mut State, c: usize, n: usize) {
        let (client, node) = (&mut s.clients[c], &mut s.nodes[n]);
        client.plants &= !(1 << n);
        if !self.fresh(s.now, client.plants_sent) || node.now.ended >> c & 1 == 1 {
            return;
        }
        self.votes(node, s.now);
        if Self::holder(node, s.now).is_none() {
            let left = client.plants_end.saturating_sub(client.plants_sent);
            node.now.lock = Some((c as u8, s.now + node.ahead + left));
        }
    }

    fn confirm(&self, s: &mut State, c: usize) -> bool {
        let (client, now) = (&mut s.clients[c], s.now);
        let need = if self.extend == Extend::Minority { 1 } else { self.quorum };
        if client.yes.count_ones() < need || now >= client.started + TTL {
            return false;
        }
        (client.phase, client.until) = (Phase::Holding, client.started + TTL);
        s.revived |= s.last != c as u8;
        if self.extend == Extend::PlantAfterConfirm {
            (client.plants, client.plants_sent) = (client.missing, now);
            client.plants_end = client.started + TTL + self.lock_delay;
        }
        true
    }

    /// Merges states that differ only in what can no longer matter, or in the naming of nodes.
    fn canonical(&self, s: &mut State) {
        for node in &mut s.nodes {
            if self.fault != Fault::StepAndBack {
                let clock = s.now + node.ahead;
                for data in [&mut node.now, &mut node.synced] {
                    data.lock = data.lock.filter(|(_, end)| *end > clock);
                    if data.quarantined_until <= clock {
                        data.quarantined_until = 0;
                    }
                }
            }
            if s.faults == 0 || self.fault != Fault::LoseTail {
                node.synced = node.now;
            }
        }
        for c in 0..2 {
            let client = &mut s.clients[c];
            if !self.fresh(s.now, client.acquires_sent) {
                client.acquires = 0;
            }
            if !self.fresh(s.now, client.plants_sent) {
                client.plants = 0;
            }
            if !matches!(client.phase, Phase::Extending) || !self.fresh(s.now, client.started) {
                client.holds = 0;
            }
            if client.acquires == 0 {
                client.acquires_sent = 0;
            }
            if client.plants == 0 {
                (client.plants_sent, client.plants_end) = (0, 0);
            }
            match client.phase {
                Phase::Done => (client.until, client.started) = (0, 0),
                Phase::Holding => (client.yes, client.missing, client.started) = (0, 0, 0),
                _ => {}
            }
            let quiet = client.phase == Phase::Done && client.acquires | client.plants | client.releases == 0;
            for node in s.nodes.iter_mut().filter(|_| quiet) {
                node.now.ended &= !(1 << c);
                node.synced.ended &= !(1 << c);
            }
        }
        let bits = s.clients.map(|mut client| client.node_sets().map(|set| *set));
        let of = |n: usize| (s.nodes[n], bits.map(|sets| sets.map(|set| set >> n & 1)));
        let mut order = [of(0), of(1), of(2)];
        order.sort_unstable();
        for (c, client) in s.clients.iter_mut().enumerate() {
            for (kind, set) in client.node_sets().into_iter().enumerate() {
                *set = 0;
                for (n, (_, bits)) in order.iter().enumerate() {
                    *set |= bits[c][kind] << n;
                }
            }
        }
        s.nodes = order.map(|(node, _)| node);
    }
}

impl Model for Rules {
    type State = State;
    type Action = Act;

    fn init_states(&self) -> Vec<State> {
        let data = Data { lock: None, marker: Some(0), quarantined_until: 0, ended: 0 };
        let node = Node { now: data, synced: data, run: 0, ahead: 0 };
        let (nodes, clients) = ([node; NODES], [CLIENT; 2]);
        vec![State { now: 0, nodes, clients, faults: self.faults, last: u8::MAX, revived: false }]
    }

    fn actions(&self, s: &State, acts: &mut Vec<Act>) {
        if s.now < self.horizon {
            acts.push(Act::Tick);
        }
        for (c, client) in s.clients.iter().enumerate() {
            for n in 0..NODES {
                let mut on = |set: u8, act| acts.extend((set >> n & 1 == 1).then_some(act));
                on(client.acquires, Act::Acquire(c, n));
                on(client.holds, Act::Hold(c, n));
                on(client.plants, Act::Plant(c, n));
                on(client.releases, Act::Release(c, n));
            }
            match client.phase {
                // The clients are alike: the first goes first.
                Phase::Idle if c == 0 || s.clients[0].phase != Phase::Idle => acts.push(Act::Begin(c)),
                Phase::Acquiring => acts.extend([Act::Grant(c), Act::GiveUp(c)]),
                Phase::Holding => {
                    acts.push(Act::GiveUp(c));
                    acts.extend((client.extends < self.extends).then_some(Act::Extend(c)));
                }
                Phase::Extending => acts.extend([Act::Confirm(c), Act::FailExtend(c)]),
                _ => {}
            }
        }
        for (n, node) in s.nodes.iter().enumerate() {
            match self.fault {
                Fault::Wipe | Fault::LoseTail if s.faults > 0 => acts.push(Act::Forget(n)),
                Fault::Step(_) | Fault::StepAndBack if s.faults > 0 && node.ahead == 0 => acts.push(Act::StepClock(n)),
                Fault::Evict if s.faults > 0 && node.now.lock.is_some() => acts.push(Act::Evict(n)),
                _ => {}
            }
            if self.fault == Fault::LoseTail && node.synced != node.now {
                acts.push(Act::Sync(n));
            }
            if self.fault == Fault::StepAndBack && node.ahead > 0 {
                acts.extend([Act::StepBack(n), Act::ExpireAhead(n)]);
            }
            if self.memory != Memory::Unchecked && node.now.marker != Some(node.run) {
                acts.push(Act::Probe(n));
            }
        }
    }

    fn next_state(&self, before: &State, act: Act) -> Option<State> {
        let mut s = *before;
        match act {
            Act::Tick => s.now += 1,
            Act::Begin(c) => {
                let client = &mut s.clients[c];
                (client.phase, client.acquires) = (Phase::Acquiring, ALL);
                (client.started, client.acquires_sent) = (s.now, s.now);
            }
            Act::Acquire(c, n) => self.on_acquire(&mut s, c, n),
            Act::Grant(c) => {
                let client = &mut s.clients[c];
                if client.yes.count_ones() < self.quorum || s.now >= client.started + TTL {
                    return None;
                }
                let from = if self.validity_from_reply { s.now } else { client.started };
                (client.phase, client.until) = (Phase::Holding, from + TTL);
                s.last = c as u8;
            }
            Act::GiveUp(c) => s.clients[c].end(),
            Act::Extend(c) => {
                let client = &mut s.clients[c];
                (client.phase, client.started, client.holds) = (Phase::Extending, s.now, ALL);
                (client.yes, client.missing, client.extends) = (0, 0, client.extends + 1);
            }
            Act::Hold(c, n) => self.on_update(&mut s, c, n),
            Act::Confirm(c) => return self.confirm(&mut s, c).then(|| self.settled(s)),
            Act::FailExtend(c) => s.clients[c].phase = Phase::Holding,
            Act::Plant(c, n) => self.on_restore(&mut s, c, n),
            Act::Release(c, n) => {
                s.clients[c].releases &= !(1 << n);
                let data = &mut s.nodes[n].now;
                data.lock = data.lock.filter(|(client, _)| *client != c as u8);
                data.ended |= 1 << c;
            }
            Act::Forget(n) => {
                s.faults -= 1;
                let node = &mut s.nodes[n];
                node.run += 1;
                let nothing = Data { lock: None, marker: None, quarantined_until: 0, ended: 0 };
                node.now = if self.fault == Fault::Wipe { nothing } else { node.synced };
                node.synced = node.now;
            }
            Act::Sync(n) => s.nodes[n].synced = s.nodes[n].now,
            Act::StepClock(n) => {
                s.faults -= 1;
                s.nodes[n].ahead = if let Fault::Step(by) = self.fault { by } else { 2 };
            }
            Act::StepBack(n) => s.nodes[n].ahead = 0,
            Act::ExpireAhead(n) => {
                if Self::holder(&s.nodes[n], s.now).is_some() || s.nodes[n].now.lock.take().is_none() {
                    return None;
                }
            }
            Act::Evict(n) => {
                s.faults -= 1;
                s.nodes[n].now.lock = None;
            }
            Act::Probe(n) => {
                self.votes(&mut s.nodes[n], s.now);
            }
        }
        Some(self.settled(s))
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always("at most one client may believe that it holds the lease", |_, s: &State| {
                !s.clients.iter().all(|c| c.believes(s.now))
            }),
            Property::always("an extend succeeds only where the lease was never lost", |_, s: &State| !s.revived),
        ]
    }
}

impl Rules {
    fn settled(&self, mut s: State) -> State {
        self.canonical(&mut s);
        s
    }
}

#[test]
fn leases_exclude_each_other() {
    let p = PROTOCOL;
    let late = Rules { staleness: None, horizon: in_depth(4, 2), ..p };
    check(p, "lease: late and lost messages", Expect::Holds);
    check(late, "lease: messages late without a bound, nobody extends", Expect::Holds);
    check(Rules { quorum: 1, ..p }, "lease: one node is enough", Expect::Broken);
    check(Rules { validity_from_reply: true, ..p }, "lease: validity counted from the answer", Expect::Broken);
}

#[test]
fn a_node_that_forgot_has_no_vote_while_a_lease_depends_on_it() {
    let p = Rules { horizon: in_depth(3, 2), ..PROTOCOL };
    let wipe = Rules { fault: Fault::Wipe, faults: 1, ..p };
    let tail = Rules { fault: Fault::LoseTail, faults: 1, horizon: in_depth(3, 1), ..p };
    check(wipe, "memory: one wipe, quarantine", Expect::Holds);
    if in_depth(true, false) {
        check(Rules { faults: 2, ..wipe }, "memory: two wipes, quarantine", Expect::Holds);
        check(tail, "memory: a lost tail of the log, marker with run", Expect::Holds);
    }
    check(Rules { memory: Memory::Unchecked, ..wipe }, "memory: no quarantine (plain Redlock)", Expect::Broken);
    check(Rules { quarantine: TTL - 1, ..wipe }, "memory: quarantine shorter than a lease", Expect::Broken);
    check(Rules { memory: Memory::Marker, ..tail }, "memory: a marker without the run", Expect::Broken);
    let evict = Rules { fault: Fault::Evict, faults: 1, ..p };
    check(evict, "memory: a key evicted, unseen before the next vote", Expect::Limit);
}

#[test]
fn clock_steps_cost_a_vote_and_not_a_lease() {
    let horizon = in_depth(4, 3);
    let p = Rules { lock_delay: 1, fault: Fault::Step(2), faults: 1, horizon, ..PROTOCOL };
    let small = Rules { fault: Fault::Step(1), ..p };
    check(p, "clock: a step beyond the guard", Expect::Holds);
    check(small, "clock: a step within the guard, lock delay", Expect::Holds);
    check(Rules { guard: 9, ..p }, "clock: no guard", Expect::Broken);
    check(Rules { lock_delay: 0, ..small }, "clock: no lock delay", Expect::Broken);
    let unseen = Rules { fault: Fault::StepAndBack, lock_delay: 0, ..p };
    check(unseen, "clock: ahead and back, unseen in between", Expect::Limit);
}

#[test]
fn an_extend_that_succeeds_was_never_lost() {
    let p = Rules { extend: Extend::PlantAfterConfirm, extends: 2, horizon: in_depth(4, 2), ..PROTOCOL };
    check(p, "extend: lengthens what is there, plants after the quorum", Expect::Holds);
    if in_depth(true, false) {
        let wiped = Rules { extends: 1, fault: Fault::Wipe, faults: 1, horizon: 3, ..p };
        check(wiped, "extend: the same with a wipe", Expect::Holds);
    }
    check(Rules { extend: Extend::Creates, ..p }, "extend: creates", Expect::Broken);
    check(Rules { extend: Extend::RestoresAtOnce, ..p }, "extend: plants before the quorum", Expect::Broken);
    check(Rules { extend: Extend::Minority, ..p }, "extend: a minority is enough", Expect::Broken);
    check(Rules { staleness: None, extends: 1, horizon: 2, ..p }, "extend: late acquires are accepted", Expect::Broken);
}
