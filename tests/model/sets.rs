//! Several resources in one request, on three nodes: two callers that want both of two resources, and one that wants one of
//! them. Lost messages and answers. Time is abstract, as in `modes`.

use stateright::{Model, Property};

use super::{Expect, check};

const NODES: usize = 3;
const QUORUM: u32 = 2;
const ALL: u8 = (1 << NODES) - 1;
/// The resources that each caller wants, as bits.
const WANTS: [u8; 3] = [0b11, 0b11, 0b01];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Variant {
    Protocol,
    /// A node gives what is free of a set, and refuses the rest.
    HalfKept,
    /// A caller holds when a quorum gave it one of its resources.
    OneIsEnough,
    /// A failed attempt is cancelled only where it was granted.
    CancelWhereGranted,
}

#[derive(Clone, Copy, Debug, Hash, PartialEq, Eq)]
enum Phase {
    Idle,
    Asking,
    Holding,
    Over,
}

#[derive(Clone, Copy, Debug, Hash, PartialEq, Eq)]
struct Caller {
    phase: Phase,
    asks: u8,
    yes: u8,
    cancels: u8,
}

/// By resource: its holder.
type Node = [Option<u8>; 2];

#[derive(Clone, Copy, Debug, Hash, PartialEq, Eq)]
struct State {
    callers: [Caller; 3],
    nodes: [Node; NODES],
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Act {
    Begin(usize),
    Ask { caller: usize, node: usize, answered: bool },
    Grant(usize),
    Over(usize),
    Cancel { caller: usize, node: usize },
}

#[derive(Clone, Copy, Debug)]
struct Rules {
    variant: Variant,
    /// Whether "both callers of a set get it in turn" is denied.
    goal: bool,
}

fn resources_in(set: u8) -> impl Iterator<Item = usize> {
    (0..2).filter(move |r| set >> r & 1 == 1)
}

impl Rules {
    /// Whether the node gives the caller what it wants.
    fn give(&self, node: &mut Node, caller: usize) -> bool {
        let me = u8::try_from(caller).expect("small");
        let is_free = |node: &Node, r: usize| node[r].is_none_or(|holder| holder == me);
        let all = resources_in(WANTS[caller]).all(|r| is_free(node, r));
        if all || self.variant == Variant::HalfKept || self.variant == Variant::OneIsEnough {
            for r in resources_in(WANTS[caller]).filter(|r| is_free(node, *r)).collect::<Vec<_>>() {
                node[r] = Some(me);
            }
        }
        all || (self.variant == Variant::OneIsEnough && node.contains(&Some(me)))
    }
}

impl Model for Rules {
    type State = State;
    type Action = Act;

    fn init_states(&self) -> Vec<State> {
        let caller = Caller { phase: Phase::Idle, asks: 0, yes: 0, cancels: 0 };
        vec![State { callers: [caller; 3], nodes: [[None; 2]; NODES] }]
    }

    fn actions(&self, s: &State, acts: &mut Vec<Act>) {
        for (caller, c) in s.callers.iter().enumerate() {
            match c.phase {
                Phase::Idle => acts.push(Act::Begin(caller)),
                Phase::Asking | Phase::Holding => acts.push(Act::Over(caller)),
                Phase::Over => {}
            }
            if c.phase == Phase::Asking && c.yes.count_ones() >= QUORUM {
                acts.push(Act::Grant(caller));
            }
            for node in 0..NODES {
                if c.asks >> node & 1 == 1 {
                    acts.extend([true, false].map(|answered| Act::Ask { caller, node, answered }));
                }
                if c.cancels >> node & 1 == 1 {
                    acts.push(Act::Cancel { caller, node });
                }
            }
        }
    }

    fn next_state(&self, before: &State, act: Act) -> Option<State> {
        let mut s = *before;
        match act {
            Act::Begin(c) => (s.callers[c].phase, s.callers[c].asks) = (Phase::Asking, ALL),
            Act::Ask { caller, node, answered } => {
                s.callers[caller].asks &= !(1 << node);
                let given = self.give(&mut s.nodes[node], caller);
                if given && answered && s.callers[caller].phase == Phase::Asking {
                    s.callers[caller].yes |= 1 << node;
                }
            }
            Act::Grant(c) => s.callers[c].phase = Phase::Holding,
            Act::Over(c) => {
                let caller = &mut s.callers[c];
                caller.cancels = if self.variant == Variant::CancelWhereGranted { caller.yes } else { ALL };
                (caller.phase, caller.asks, caller.yes) = (Phase::Over, 0, 0);
            }
            Act::Cancel { caller, node } => {
                s.callers[caller].cancels &= !(1 << node);
                let me = u8::try_from(caller).expect("small");
                s.nodes[node].iter_mut().filter(|holder| **holder == Some(me)).for_each(|holder| *holder = None);
            }
        }
        Some(s)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        let mut all = vec![
            Property::always("no resource has two holders", |_, s: &State| {
                let held = s.callers.iter().zip(WANTS).filter(|(c, _)| c.phase == Phase::Holding);
                let counts = held.fold([0, 0], |[a, b], (_, wants)| [a + (wants & 1), b + (wants >> 1)]);
                counts.iter().all(|count| *count <= 1)
            }),
            Property::always("a node keeps all of a set or nothing", |_, s: &State| {
                s.nodes.iter().all(|[first, second]| first.filter(|holder| *holder != 2) == *second)
            }),
            Property::always("a caller that is done leaves nothing", |_, s: &State| {
                let done =
                    |c: u8| s.callers[usize::from(c)].phase == Phase::Over && s.callers[usize::from(c)].cancels == 0;
                !s.nodes.iter().flatten().flatten().any(|holder| done(*holder))
            }),
        ];
        if self.goal {
            all.push(Property::always("the second caller never gets the set after the first", |_, s: &State| {
                !(s.callers[0].phase == Phase::Over && s.callers[1].phase == Phase::Holding)
            }));
        }
        all
    }
}

#[test]
fn a_set_is_taken_whole_or_not_at_all() {
    let rules = Rules { variant: Variant::Protocol, goal: false };
    check(rules, "sets: two callers of both resources, one of one", Expect::Holds);
    check(Rules { goal: true, ..rules }, "sets: granted in turn", Expect::Reached);
    check(Rules { variant: Variant::HalfKept, ..rules }, "sets: half of a set is kept", Expect::Broken);
    check(Rules { variant: Variant::OneIsEnough, ..rules }, "sets: one of a set is enough", Expect::Broken);
    check(
        Rules { variant: Variant::CancelWhereGranted, ..rules },
        "sets: cancelled where it was granted",
        Expect::Broken,
    );
}
