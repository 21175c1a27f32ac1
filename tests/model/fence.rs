//! Fences over three counters, without any clock: a lease may be lost on a node at any moment, and
//! messages take any time. Claims: fences are never equal, and a client that asked after another was
//! answered gets a larger one. Nodes that forget their counters are seeded again; counters expire.

use std::array::from_fn;

use stateright::{Model, Property};

use super::{Expect, check, in_depth};

const NODES: usize = 3;
const ALL: u8 = (1 << NODES) - 1;
const QUORUM: u32 = 2;

/// How one fence is chosen from several.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Settle {
    /// The protocol: the highest, if a quorum said it; otherwise it is written back, and only nodes
    /// on which the token still holds the lease count.
    HeldWriteBack,
    /// The same, but nodes count whether or not the lease is still there.
    BlindWriteBack,
    /// The highest, as it is.
    HighestOnly,
}

/// What a node that forgot is seeded with before it votes again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Seed {
    /// The protocol: the highest of a quorum of others, read after its quarantine.
    Quorum,
    /// The same, read before.
    QuorumTooEarly,
    /// Another node's.
    OneOther,
    Nothing,
}

/// `C` clients acquire once each.
#[derive(Clone, Copy, Debug)]
struct Rules<const C: usize> {
    settle: Settle,
    seed: Seed,
    wipes: u8,
    /// Counters of resources that are not used for a while are deleted.
    expiries: u8,
    /// A node remembers the highest fence that it gave, beyond its counters' life.
    base: bool,
    /// How often a lease is lost on a node.
    losses: u8,
    /// Requests carry times of clocks that differ without bound.
    stamps: bool,
}

fn protocol<const C: usize>() -> Rules<C> {
    let (settle, seed, losses) = (Settle::HeldWriteBack, Seed::Quorum, in_depth(6, 3));
    Rules { settle, seed, wipes: 0, expiries: 0, base: true, losses, stamps: false }
}

#[derive(Clone, Copy, Debug, Hash, PartialEq, Eq, PartialOrd, Ord)]
struct Node {
    /// 0, or one more than the client's number.
    lock: u8,
    counter: u8,
    high_water: u8,
    votes: bool,
}

#[derive(Clone, Copy, Debug, Hash, PartialEq, Eq)]
enum Phase {
    Idle,
    Acquiring,
    WritingBack,
    Granted,
    GaveUp,
}

/// Sets of nodes are bits.
#[derive(Clone, Copy, Debug, Hash, PartialEq, Eq)]
struct Client {
    phase: Phase,
    /// The highest fence that was answered before this client asked.
    floor: u8,
    stamp: u8,
    fence: u8,
    under_way: u8,
    granted: u8,
    fences: [u8; NODES],
    confirmed: u8,
    /// Granted or confirmed by a node that has forgotten it since.
    forgotten: u8,
}

#[derive(Clone, Copy, Debug, Hash, PartialEq, Eq)]
struct State<const C: usize> {
    nodes: [Node; NODES],
    clients: [Client; C],
    best: u8,
    wipes: u8,
    expiries: u8,
    losses: u8,
    twice: bool,
    fell: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Act {
    Begin(usize, u8),
    Acquire(usize, usize),
    Settle(usize),
    WriteBack(usize, usize),
    Grant(usize),
    GiveUp(usize),
    LoseLease(usize),
    Wipe(usize),
    Activate(usize, u8),
    ExpireCounter(usize),
}

impl<const C: usize> Rules<C> {
    fn grant(&self, s: &mut State<C>, c: usize) {
        let fence = s.clients[c].fence;
        s.twice |= s.clients.iter().any(|other| other.phase == Phase::Granted && other.fence == fence);
        s.fell |= fence <= s.clients[c].floor;
        s.best = s.best.max(fence);
        s.clients[c].phase = Phase::Granted;
    }

    /// What a node without a vote may be seeded with now.
    fn seeds(&self, s: &State<C>, n: usize) -> Vec<u8> {
        let counts_it =
            |c: &Client| matches!(c.phase, Phase::Acquiring | Phase::WritingBack) && (c.forgotten >> n & 1 == 1);
        let served = !s.clients.iter().any(counts_it);
        let others = || s.nodes.iter().enumerate().filter(|(m, node)| *m != n && node.votes);
        let others: Vec<u8> = others().map(|(_, node)| node.high_water).collect();
        let quorum = others.len() as u32 >= QUORUM;
        match self.seed {
            Seed::Quorum if served && quorum => others.into_iter().max().into_iter().collect(),
            Seed::QuorumTooEarly if quorum => others.into_iter().max().into_iter().collect(),
            Seed::OneOther if served => others,
            Seed::Nothing if served => vec![0],
            _ => Vec::new(),
        }
    }

    /// Merges states that differ only in what can no longer matter, or in the naming of nodes.
    fn canonical(&self, s: &mut State<C>) {
        for client in &mut s.clients {
            if matches!(client.phase, Phase::Granted | Phase::GaveUp) {
                (client.granted, client.confirmed, client.forgotten) = (0, 0, 0);
                (client.fences, client.floor) = ([0; NODES], 0);
                if client.phase == Phase::GaveUp {
                    client.fence = 0;
                }
                if client.under_way == 0 {
                    client.stamp = 0;
                }
            }
            if client.phase == Phase::WritingBack {
                client.fences = [0; NODES];
                client.granted &= if self.wipes > 0 { ALL } else { 0 };
            }
        }
        let of = |c: &Client, n: usize| {
            let bit = |set: u8| set >> n & 1;
            [bit(c.under_way), bit(c.granted), c.fences[n], bit(c.confirmed), bit(c.forgotten)]
        };
        let mut order: [(Node, [[u8; 5]; C]); NODES] = from_fn(|n| (s.nodes[n], from_fn(|c| of(&s.clients[c], n))));
        order.sort();
        for client in &mut s.clients {
            (client.under_way, client.granted, client.confirmed, client.forgotten) = (0, 0, 0, 0);
        }
        for (n, (node, parts)) in order.into_iter().enumerate() {
            s.nodes[n] = node;
            for (client, [under_way, granted, fence, confirmed, forgotten]) in s.clients.iter_mut().zip(parts) {
                client.under_way |= under_way << n;
                client.granted |= granted << n;
                client.fences[n] = fence;
                client.confirmed |= confirmed << n;
                client.forgotten |= forgotten << n;
            }
        }
    }
}

impl<const C: usize> Model for Rules<C> {
    type State = State<C>;
    type Action = Act;

    fn init_states(&self) -> Vec<State<C>> {
        let node = Node { lock: 0, counter: 0, high_water: 0, votes: true };
        let client = Client {
            phase: Phase::Idle,
            floor: 0,
            stamp: 0,
            fence: 0,
            under_way: 0,
            granted: 0,
            fences: [0; NODES],
            confirmed: 0,
            forgotten: 0,
        };
        let (nodes, clients) = ([node; NODES], [client; C]);
        let (wipes, expiries, losses) = (self.wipes, self.expiries, self.losses);
        vec![State { nodes, clients, best: 0, wipes, expiries, losses, twice: false, fell: false }]
    }

    fn actions(&self, s: &State<C>, acts: &mut Vec<Act>) {
        for (c, client) in s.clients.iter().enumerate() {
            // The clients are alike: they begin in order.
            if client.phase == Phase::Idle && (c == 0 || s.clients[c - 1].phase != Phase::Idle) {
                acts.push(Act::Begin(c, 0));
                acts.extend(self.stamps.then_some(Act::Begin(c, 3)));
            }
            for n in (0..NODES).filter(|n| client.under_way >> n & 1 == 1) {
                let writing = client.phase == Phase::WritingBack;
                acts.push(if writing { Act::WriteBack(c, n) } else { Act::Acquire(c, n) });
            }
            match client.phase {
                Phase::Acquiring if client.granted.count_ones() >= QUORUM => acts.push(Act::Settle(c)),
                Phase::WritingBack if client.confirmed.count_ones() >= QUORUM => acts.push(Act::Grant(c)),
                _ => {}
            }
            if matches!(client.phase, Phase::Acquiring | Phase::WritingBack) {
                acts.push(Act::GiveUp(c));
            }
        }
        for (n, node) in s.nodes.iter().enumerate() {
            acts.extend((node.lock > 0 && s.losses > 0).then_some(Act::LoseLease(n)));
            acts.extend((s.wipes > 0 && node.votes).then_some(Act::Wipe(n)));
            acts.extend((s.expiries > 0 && node.counter > 0).then_some(Act::ExpireCounter(n)));
            if !node.votes {
                acts.extend(self.seeds(s, n).into_iter().map(|seed| Act::Activate(n, seed)));
            }
        }
    }

    fn next_state(&self, before: &State<C>, act: Act) -> Option<State<C>> {
        let mut s = *before;
        match act {
            Act::Begin(c, stamp) => {
                let client = &mut s.clients[c];
                (client.phase, client.floor) = (Phase::Acquiring, s.best);
                (client.stamp, client.under_way) = (stamp, ALL);
            }
            Act::Acquire(c, n) => {
                let (client, node) = (&mut s.clients[c], &mut s.nodes[n]);
                client.under_way &= !(1 << n);
                if node.votes && node.lock == 0 {
                    let base = if self.base { node.high_water } else { 0 };
                    node.lock = c as u8 + 1;
                    node.counter = client.stamp.max(node.counter + 1).max(if node.counter == 0 { base + 1 } else { 0 });
                    node.high_water = node.high_water.max(node.counter);
                    if client.phase == Phase::Acquiring {
                        client.granted |= 1 << n;
                        client.fences[n] = node.counter;
                    }
                }
            }
            Act::Settle(c) => {
                let client = &mut s.clients[c];
                let fences = (0..NODES).filter(|n| client.granted >> n & 1 == 1).map(|n| client.fences[n]);
                client.fence = fences.clone().max()?;
                let said_it = fences.filter(|f| *f == client.fence).count() as u32;
                if self.settle == Settle::HighestOnly || said_it >= QUORUM {
                    self.grant(&mut s, c);
                } else {
                    (client.phase, client.under_way, client.confirmed) = (Phase::WritingBack, ALL, 0);
                }
            }
            Act::WriteBack(c, n) => {
                let (client, node) = (&mut s.clients[c], &mut s.nodes[n]);
                client.under_way &= !(1 << n);
                if node.votes && (node.lock == c as u8 + 1 || self.settle == Settle::BlindWriteBack) {
                    node.counter = node.counter.max(client.fence);
                    node.high_water = node.high_water.max(client.fence);
                    client.confirmed |= 1 << n;
                }
            }
            Act::Grant(c) => self.grant(&mut s, c),
            Act::GiveUp(c) => s.clients[c].phase = Phase::GaveUp,
            Act::LoseLease(n) => {
                s.losses -= 1;
                s.nodes[n].lock = 0;
            }
            Act::Wipe(n) => {
                s.wipes -= 1;
                s.nodes[n] = Node { lock: 0, counter: 0, high_water: 0, votes: false };
                for client in &mut s.clients {
                    client.forgotten |= (client.granted | client.confirmed) & 1 << n;
                }
            }
            Act::Activate(n, seed) => {
                let node = &mut s.nodes[n];
                (node.votes, node.counter, node.high_water) = (true, seed, seed);
            }
            Act::ExpireCounter(n) => {
                s.expiries -= 1;
                s.nodes[n].counter = 0;
            }
        }
        self.canonical(&mut s);
        Some(s)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always("no fence is given twice", |_, s: &State<C>| !s.twice),
            Property::always("who asks later has a larger fence", |_, s: &State<C>| !s.fell),
        ]
    }
}

#[test]
fn fences_rise_without_a_clock() {
    let two = protocol::<2>();
    check(two, "fence: highest of a quorum, held write-back", Expect::Holds);
    check(Rules { stamps: true, ..two }, "fence: the same with stamps of any clock", Expect::Holds);
    check(
        Rules { expiries: in_depth(2, 1), ..two },
        "fence: counters expire, the high-water mark stays",
        Expect::Holds,
    );
    let three = protocol::<3>();
    check(Rules { settle: Settle::HighestOnly, ..three }, "fence: the highest without a write-back", Expect::Broken);
    check(Rules { expiries: 2, base: false, ..two }, "fence: counters expire, nothing stays", Expect::Broken);
}

#[test]
fn a_node_that_forgot_its_counters_learns_them_from_a_quorum() {
    let p = Rules { wipes: 1, losses: in_depth(6, 2), ..protocol::<2>() };
    check(p, "seed: of a quorum, after the quarantine", Expect::Holds);
    if in_depth(true, false) {
        check(Rules { wipes: 2, ..p }, "seed: two wipes", Expect::Holds);
        check(Rules { stamps: true, ..p }, "seed: one wipe, stamps of any clock", Expect::Holds);
    }
    check(Rules { seed: Seed::Nothing, ..p }, "seed: none", Expect::Broken);
    check(Rules { seed: Seed::QuorumTooEarly, ..p }, "seed: read before the quarantine is over", Expect::Broken);
    let three = Rules { wipes: 1, seed: Seed::OneOther, ..protocol::<3>() };
    check(three, "seed: of one other node", Expect::Broken);
    let stamped = Rules { stamps: true, seed: Seed::Nothing, ..p };
    check(stamped, "seed: none, stamps in its place", Expect::Broken);
}
