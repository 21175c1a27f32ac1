//! Shared and exclusive leases, and permits, on three nodes: three callers, lost messages and answers, a node that forgets,
//! a downgrade, a waiting writer's intent, and a client of another Redlock library, which sees the plain key only.
//!
//! Time is abstract: a caller's promise is *over* at any moment, and what nodes keep for it ends at any moment after that.
//! Whatever arrives later is refused, as other models show (`late`, `lease`).

use stateright::{Model, Property};

use super::{Expect, check, in_depth};

const NODES: usize = 3;
const QUORUM: u32 = 2;
const ALL: u8 = (1 << NODES) - 1;

/// What a caller asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Want {
    Exclusive,
    /// Exclusive, and shared from a moment of its choice.
    Downgraded,
    Shared,
    Permit {
        slot: u8,
        limit: u8,
    },
    /// Of another library: `SET NX PX` on the plain key.
    Foreign,
}

/// The protocol, or what it would be without one of its rules.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Variant {
    Protocol,
    /// A node admits as many permits as the limit says, whatever their slots.
    CountPerNode,
    /// A node looks at slots only.
    LimitIgnored,
    /// The plain key ends with the first member, not with the last.
    KeyOfFirstMember,
    /// A member's end is a time of the instance's clock, which may be ahead of the node's.
    EndByInstance,
    SharedUnderIntent,
    /// Who asked for a downgrade counts as exclusive until a quorum has confirmed it.
    ExclusiveUntilConfirmed,
    /// A downgrade that a quorum confirmed counts as an extend, although nodes keep the end.
    DowngradeLengthens,
    /// A node that forgot votes at once.
    NoQuarantine,
}

/// A good state that should be reachable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Goal {
    TwoShared,
    TwoPermits,
    JoinedAfterDowngrade,
    WriterAfterIntent,
}

#[derive(Clone, Copy, Debug)]
struct Rules {
    wants: [Want; 3],
    variant: Variant,
    wipes: u8,
    /// The exclusive callers that wait leave an intent.
    intents: bool,
    goal: Option<Goal>,
}

const PROTOCOL: Rules =
    Rules { wants: [Want::Exclusive; 3], variant: Variant::Protocol, wipes: 0, intents: false, goal: None };

#[derive(Clone, Copy, Debug, Hash, PartialEq, Eq)]
enum Phase {
    Idle,
    Asking,
    Holding,
    Over,
}

/// Sets of nodes are bits: where a message is in flight, and which nodes answered yes.
#[derive(Clone, Copy, Debug, Hash, PartialEq, Eq)]
struct Caller {
    phase: Phase,
    asks: u8,
    yes: u8,
    downgrades: u8,
    downgraded: u8,
    is_shared: bool,
    /// The end that was promised at first is past, and a longer one is believed in.
    outlived: bool,
    /// It began when a quorum had another caller's intent.
    began_under_intent: bool,
}

/// Sets of callers are bits.
#[derive(Clone, Copy, Debug, Hash, PartialEq, Eq)]
struct Node {
    records: u8,
    shared: u8,
    key: bool,
    intents: u8,
    /// It forgot what it may have granted to these, and has no vote while the promise of one of them lasts.
    forgot: u8,
}

#[derive(Clone, Copy, Debug, Hash, PartialEq, Eq)]
struct State {
    callers: [Caller; 3],
    nodes: [Node; NODES],
    wipes: u8,
    overtaken: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Act {
    Begin(usize),
    Ask {
        caller: usize,
        node: usize,
        answered: bool,
    },
    Grant(usize),
    Downgrade(usize),
    DowngradeAt {
        caller: usize,
        node: usize,
        answered: bool,
    },
    Outlive(usize),
    Over(usize),
    /// By a release, or by its time.
    End {
        caller: usize,
        node: usize,
    },
    KeyEnds(usize),
    Intend {
        caller: usize,
        node: usize,
    },
    Wipe(usize),
}

fn nodes_in(set: u8) -> impl Iterator<Item = usize> {
    (0..NODES).filter(move |n| set >> n & 1 == 1)
}

impl Rules {
    fn is_exclusive(&self, caller: usize) -> bool {
        matches!(self.wants[caller], Want::Exclusive | Want::Downgraded)
    }

    /// The check of an acquire on a node that votes.
    fn admits(&self, node: &Node, caller: usize) -> bool {
        let others = || (0..3).filter(|o| node.records >> o & 1 == 1 && *o != caller);
        let is_shared = |o: usize| node.shared >> o & 1 == 1;
        match self.wants[caller] {
            Want::Foreign => !node.key,
            Want::Exclusive | Want::Downgraded => !node.key || node.records == 1 << caller,
            Want::Shared => {
                let bars = self.variant != Variant::SharedUnderIntent && node.intents != 0;
                !bars && others().all(is_shared)
            }
            Want::Permit { slot, limit } => {
                if self.variant == Variant::CountPerNode {
                    return others().count() < usize::from(limit);
                }
                others().all(|o| match self.wants[o] {
                    Want::Permit { slot: taken, limit: other } => {
                        slot != taken && (limit == other || self.variant == Variant::LimitIgnored)
                    }
                    _ => false,
                })
            }
        }
    }

    /// What a caller counts on: `None` without a promise.
    fn belief(&self, s: &State, caller: usize) -> Option<Want> {
        let c = &s.callers[caller];
        let shared_since = if self.variant == Variant::ExclusiveUntilConfirmed {
            c.downgraded.count_ones() >= QUORUM
        } else {
            c.is_shared
        };
        let want = match self.wants[caller] {
            Want::Downgraded if shared_since => Want::Shared,
            Want::Downgraded => Want::Exclusive,
            want => want,
        };
        (c.phase == Phase::Holding).then_some(want)
    }

    fn may_hold_together(a: Want, b: Want) -> bool {
        match (a, b) {
            (Want::Shared, Want::Shared) => true,
            (Want::Permit { slot, limit }, Want::Permit { slot: other, limit: theirs }) => {
                slot != other && limit == theirs
            }
            _ => false,
        }
    }

    fn beliefs(&self, s: &State) -> Vec<Want> {
        (0..3).filter_map(|c| self.belief(s, c)).collect()
    }

    fn exclusion_holds(&self, s: &State) -> bool {
        let held = self.beliefs(s);
        (0..held.len()).all(|a| (0..a).all(|b| Self::may_hold_together(held[a], held[b])))
    }

    fn reached(&self, s: &State, goal: Goal) -> bool {
        let held = self.beliefs(s);
        match goal {
            Goal::TwoShared => held.iter().filter(|w| **w == Want::Shared).count() == 2,
            Goal::TwoPermits => held.iter().filter(|w| matches!(w, Want::Permit { .. })).count() == 2,
            Goal::JoinedAfterDowngrade => held.len() == 2 && s.callers.iter().any(|c| c.is_shared),
            Goal::WriterAfterIntent => {
                let reader = (0..3).any(|c| self.wants[c] == Want::Shared && s.callers[c].began_under_intent);
                reader && (0..3).any(|c| self.belief(s, c) == Some(Want::Exclusive))
            }
        }
    }

    fn under_intent(s: &State, caller: usize) -> bool {
        let others = |node: &&Node| node.intents & !(1 << caller) != 0;
        u32::try_from(s.nodes.iter().filter(others).count()).expect("three") >= QUORUM
    }

    fn ask(&self, s: &mut State, (caller, n, answered): (usize, usize, bool)) {
        s.callers[caller].asks &= !(1 << n);
        let alive = |c: usize| matches!(s.callers[c].phase, Phase::Asking | Phase::Holding);
        let votes = self.wants[caller] == Want::Foreign || !(0..3).any(|c| s.nodes[n].forgot >> c & 1 == 1 && alive(c));
        let node = &mut s.nodes[n];
        if !votes || !self.admits(node, caller) {
            return;
        }
        node.records |= 1 << caller;
        node.key = true;
        if self.wants[caller] == Want::Shared {
            node.shared |= 1 << caller;
        }
        if answered && s.callers[caller].phase == Phase::Asking {
            s.callers[caller].yes |= 1 << n;
        }
    }

    fn downgrade_at(&self, s: &mut State, (caller, n, answered): (usize, usize, bool)) {
        s.callers[caller].downgrades &= !(1 << n);
        if s.nodes[n].records >> caller & 1 == 0 {
            return;
        }
        s.nodes[n].shared |= 1 << caller;
        if answered && s.callers[caller].phase == Phase::Holding {
            s.callers[caller].downgraded |= 1 << n;
        }
    }

    fn end(s: &mut State, caller: usize, n: usize) {
        let node = &mut s.nodes[n];
        node.records &= !(1 << caller);
        node.shared &= !(1 << caller);
        node.key &= node.records != 0;
    }

    /// Whether what a node keeps for a caller may end.
    fn may_end(&self, s: &State, caller: usize) -> bool {
        let c = &s.callers[caller];
        let early = self.variant == Variant::EndByInstance && !self.is_exclusive(caller) && c.phase == Phase::Holding;
        c.phase == Phase::Over || c.outlived || early
    }
}

impl Model for Rules {
    type State = State;
    type Action = Act;

    fn init_states(&self) -> Vec<State> {
        let caller = Caller {
            phase: Phase::Idle,
            asks: 0,
            yes: 0,
            downgrades: 0,
            downgraded: 0,
            is_shared: false,
            outlived: false,
            began_under_intent: false,
        };
        let node = Node { records: 0, shared: 0, key: false, intents: 0, forgot: 0 };
        vec![State { callers: [caller; 3], nodes: [node; NODES], wipes: 0, overtaken: false }]
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
            for node in nodes_in(c.asks) {
                acts.extend([true, false].map(|answered| Act::Ask { caller, node, answered }));
            }
            for node in nodes_in(c.downgrades) {
                acts.extend([true, false].map(|answered| Act::DowngradeAt { caller, node, answered }));
            }
            if self.wants[caller] == Want::Downgraded && c.phase == Phase::Holding && !c.is_shared {
                acts.push(Act::Downgrade(caller));
            }
            let lengthens = self.variant == Variant::DowngradeLengthens && c.downgraded.count_ones() >= QUORUM;
            if lengthens && c.phase == Phase::Holding && !c.outlived {
                acts.push(Act::Outlive(caller));
            }
            let waits = self.intents && self.is_exclusive(caller) && matches!(c.phase, Phase::Idle | Phase::Asking);
            for (node, n) in s.nodes.iter().enumerate() {
                if n.records >> caller & 1 == 1 && self.may_end(s, caller) {
                    acts.push(Act::End { caller, node });
                }
                if waits && n.intents >> caller & 1 == 0 {
                    acts.push(Act::Intend { caller, node });
                }
            }
        }
        for (n, node) in s.nodes.iter().enumerate() {
            let first_is_over = (0..3).any(|c| node.records >> c & 1 == 1 && s.callers[c].phase == Phase::Over);
            if self.variant == Variant::KeyOfFirstMember && node.key && first_is_over {
                acts.push(Act::KeyEnds(n));
            }
            if s.wipes < self.wipes {
                acts.push(Act::Wipe(n));
            }
        }
    }

    fn next_state(&self, before: &State, act: Act) -> Option<State> {
        let mut s = *before;
        match act {
            Act::Begin(c) => {
                s.callers[c].began_under_intent = Self::under_intent(&s, c);
                (s.callers[c].phase, s.callers[c].asks) = (Phase::Asking, ALL);
            }
            Act::Ask { caller, node, answered } => self.ask(&mut s, (caller, node, answered)),
            Act::Grant(c) => {
                let is_reader = self.wants[c] == Want::Shared;
                s.overtaken |= is_reader && s.callers[c].began_under_intent && Self::under_intent(&s, c);
                s.callers[c].phase = Phase::Holding;
                s.nodes.iter_mut().for_each(|n| n.intents &= !(1 << c));
            }
            Act::Downgrade(c) => (s.callers[c].is_shared, s.callers[c].downgrades) = (true, ALL),
            Act::DowngradeAt { caller, node, answered } => self.downgrade_at(&mut s, (caller, node, answered)),
            Act::Outlive(c) => s.callers[c].outlived = true,
            Act::Over(c) => {
                let caller = &mut s.callers[c];
                (caller.phase, caller.asks, caller.yes, caller.downgrades) = (Phase::Over, 0, 0, 0);
                (caller.downgraded, caller.outlived) = (0, false);
                s.nodes.iter_mut().for_each(|n| n.intents &= !(1 << c));
            }
            Act::End { caller, node } => Self::end(&mut s, caller, node),
            Act::KeyEnds(n) => s.nodes[n].key = false,
            Act::Intend { caller, node } => s.nodes[node].intents |= 1 << caller,
            Act::Wipe(n) => {
                let alive = |c: &usize| matches!(s.callers[*c].phase, Phase::Asking | Phase::Holding);
                let alive = (0..3).filter(alive).fold(0, |set, c| set | 1 << c);
                let forgot = if self.variant == Variant::NoQuarantine { 0 } else { alive };
                s.nodes[n] = Node { records: 0, shared: 0, key: false, intents: 0, forgot };
                s.wipes += 1;
            }
        }
        Some(s)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        let mut all = vec![
            Property::always("holders may hold together", |m: &Self, s: &State| m.exclusion_holds(s)),
            Property::always("no reader overtakes a waiting writer", |_, s: &State| !s.overtaken),
        ];
        if self.goal.is_some() {
            all.push(Property::always("the goal is not reached", |m: &Self, s: &State| {
                !m.goal.is_some_and(|goal| m.reached(s, goal))
            }));
        }
        all
    }
}

const P2: [Want; 2] = [Want::Permit { slot: 0, limit: 2 }, Want::Permit { slot: 1, limit: 2 }];

#[test]
fn shared_and_exclusive_leases_exclude_each_other() {
    use Want::{Downgraded, Exclusive, Foreign, Shared};
    let rules = |wants| Rules { wants, ..PROTOCOL };
    let broken = |wants, variant| Rules { wants, variant, ..PROTOCOL };
    let readers = [Exclusive, Shared, Shared];
    check(Rules { wipes: in_depth(2, 1), ..rules(readers) }, "modes: two readers, a writer, wipes", Expect::Holds);
    check(Rules { wipes: 1, ..broken(readers, Variant::NoQuarantine) }, "modes: no quarantine", Expect::Broken);
    check(broken(readers, Variant::EndByInstance), "modes: a member's end by the instance's clock", Expect::Broken);
    check(broken(readers, Variant::KeyOfFirstMember), "modes: the key ends with the first member", Expect::Broken);
    check(Rules { goal: Some(Goal::TwoShared), ..rules(readers) }, "modes: two readers at once", Expect::Reached);

    check(rules([Shared, Shared, Foreign]), "modes: readers beside another library", Expect::Holds);
    let foreign = broken([Shared, Shared, Foreign], Variant::KeyOfFirstMember);
    check(foreign, "modes: the same, the key ends with the first member", Expect::Broken);

    let downgrade = [Downgraded, Shared, Exclusive];
    check(rules(downgrade), "modes: a downgrade", Expect::Holds);
    let believed = broken(downgrade, Variant::ExclusiveUntilConfirmed);
    check(believed, "modes: exclusive until the downgrade is confirmed", Expect::Broken);
    check(broken(downgrade, Variant::DowngradeLengthens), "modes: a downgrade that lengthens", Expect::Broken);
    let joined = Rules { goal: Some(Goal::JoinedAfterDowngrade), ..rules(downgrade) };
    check(joined, "modes: a reader joins after a downgrade", Expect::Reached);
}

#[test]
fn a_waiting_writer_is_not_overtaken() {
    let rules = Rules { wants: [Want::Exclusive, Want::Shared, Want::Shared], intents: true, ..PROTOCOL };
    check(rules, "modes: a writer's intent", Expect::Holds);
    check(Rules { variant: Variant::SharedUnderIntent, ..rules }, "modes: shared under an intent", Expect::Broken);
    let goal = Some(Goal::WriterAfterIntent);
    check(Rules { goal, ..rules }, "modes: a writer goes before a reader that began later", Expect::Reached);
}

#[test]
fn permits_have_slots_of_their_own() {
    let rules = |third| Rules { wants: [P2[0], P2[1], third], ..PROTOCOL };
    let one_slot = rules(Want::Permit { slot: 0, limit: 2 });
    check(Rules { wipes: in_depth(2, 1), ..one_slot }, "permits: three callers, two permits, wipes", Expect::Holds);
    check(Rules { goal: Some(Goal::TwoPermits), ..one_slot }, "permits: both are held", Expect::Reached);
    check(Rules { variant: Variant::CountPerNode, ..one_slot }, "permits: counted per node", Expect::Broken);
    let two_limits = rules(Want::Permit { slot: 2, limit: 3 });
    check(two_limits, "permits: two limits", Expect::Holds);
    check(Rules { variant: Variant::LimitIgnored, ..two_limits }, "permits: the limit is not compared", Expect::Broken);
    for (third, name) in [
        (Want::Exclusive, "permits: beside an exclusive caller"),
        (Want::Shared, "permits: beside a shared caller"),
        (Want::Foreign, "permits: beside another library"),
    ] {
        check(rules(third), name, Expect::Holds);
    }
}
