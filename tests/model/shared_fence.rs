//! Fences of leases that are held at the same time, on three nodes: each is unique for the resource, and above every fence that
//! was answered before its caller asked. An exclusive lease needs no such rule: of two that ask at one time, one is granted.

use stateright::{Model, Property};

use super::{Expect, check};

const NODES: usize = 3;
const QUORUM: usize = 2;
const CALLERS: usize = 2;
/// Bounds the rounds: who was given a higher number asks no more.
const HIGHEST: u8 = 4;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Variant {
    /// A fence counts once a quorum of nodes has given it to this very lease; a node gives each number once.
    Protocol,
    /// The highest number of a quorum counts, written back to a quorum whoever has it there: the rule for exclusive leases.
    WrittenBack,
    /// The highest number of a quorum counts.
    HighestAnswer,
}

#[derive(Clone, Copy, Debug, Hash, PartialEq, Eq)]
enum Phase {
    Idle,
    Asking,
    Done(u8),
}

/// By node: the number that it answered, 0 without one; whether a question is on the way, with the number that it proposes.
#[derive(Clone, Copy, Debug, Hash, PartialEq, Eq)]
struct Caller {
    phase: Phase,
    answers: [u8; NODES],
    questions: [Option<u8>; NODES],
    /// The highest fence that was answered when it asked.
    floor: u8,
}

#[derive(Clone, Copy, Debug, Hash, PartialEq, Eq)]
struct State {
    callers: [Caller; CALLERS],
    /// The highest number that each node has given.
    counters: [u8; NODES],
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Act {
    Begin(usize),
    Answer { caller: usize, node: usize, arrives: bool },
    Decide(usize),
}

#[derive(Clone, Copy, Debug)]
struct Rules {
    variant: Variant,
}

impl Rules {
    fn answer(&self, s: &mut State, (caller, node, arrives): (usize, usize, bool)) {
        let c = &mut s.callers[caller];
        let Some(proposed) = c.questions[node].take() else { return };
        let counter = &mut s.counters[node];
        let is_write_back = self.variant == Variant::WrittenBack && proposed > 0;
        let given = if proposed > *counter || is_write_back { proposed } else { *counter + 1 };
        *counter = given.max(*counter);
        if arrives && c.phase == Phase::Asking {
            c.answers[node] = given;
        }
    }

    fn decide(&self, c: &mut Caller) {
        let highest = c.answers.iter().copied().max().unwrap_or(0);
        let agreed = c.answers.iter().filter(|given| **given == highest).count() >= QUORUM;
        let done = match self.variant {
            Variant::Protocol | Variant::WrittenBack => agreed,
            Variant::HighestAnswer => true,
        };
        if done {
            (c.phase, c.questions) = (Phase::Done(highest), [None; NODES]);
        } else {
            for node in (0..NODES).filter(|n| c.answers[*n] != highest).collect::<Vec<_>>() {
                c.questions[node] = Some(highest);
            }
        }
    }
}

impl Model for Rules {
    type State = State;
    type Action = Act;

    fn init_states(&self) -> Vec<State> {
        let caller = Caller { phase: Phase::Idle, answers: [0; NODES], questions: [None; NODES], floor: 0 };
        vec![State { callers: [caller; CALLERS], counters: [0; NODES] }]
    }

    fn actions(&self, s: &State, acts: &mut Vec<Act>) {
        for (caller, c) in s.callers.iter().enumerate() {
            if c.phase == Phase::Idle {
                acts.push(Act::Begin(caller));
            }
            for (node, question) in c.questions.iter().enumerate().filter_map(|(n, q)| q.map(|q| (n, q))) {
                acts.push(Act::Answer { caller, node, arrives: true });
                if question == 0 {
                    acts.push(Act::Answer { caller, node, arrives: false });
                }
            }
            let answered = c.answers.iter().filter(|given| **given > 0).count();
            let may_repeat = c.answers.iter().all(|given| *given < HIGHEST);
            if c.phase == Phase::Asking && answered >= QUORUM && may_repeat {
                acts.push(Act::Decide(caller));
            }
        }
    }

    fn next_state(&self, before: &State, act: Act) -> Option<State> {
        let mut s = *before;
        match act {
            Act::Begin(caller) => {
                let answered = |c: &Caller| if let Phase::Done(fence) = c.phase { fence } else { 0 };
                let floor = s.callers.iter().map(answered).max().unwrap_or(0);
                let c = &mut s.callers[caller];
                (c.phase, c.questions, c.floor) = (Phase::Asking, [Some(0); NODES], floor);
            }
            Act::Answer { caller, node, arrives } => self.answer(&mut s, (caller, node, arrives)),
            Act::Decide(caller) => {
                let waits = s.callers[caller].questions;
                self.decide(&mut s.callers[caller]);
                if s.callers[caller].questions == waits && s.callers[caller].phase == Phase::Asking {
                    return None;
                }
            }
        }
        Some(s)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always("no two leases have one fence", |_, s: &State| {
                let fences: Vec<u8> = s
                    .callers
                    .iter()
                    .filter_map(|c| if let Phase::Done(f) = c.phase { Some(f) } else { None })
                    .collect();
                (0..fences.len()).all(|a| (0..a).all(|b| fences[a] != fences[b]))
            }),
            Property::always("a fence is above those answered before", |_, s: &State| {
                s.callers.iter().all(|c| if let Phase::Done(fence) = c.phase { fence > c.floor } else { true })
            }),
        ]
    }
}

#[test]
fn fences_of_leases_held_together_are_unique() {
    let rules = |variant| Rules { variant };
    check(rules(Variant::Protocol), "shared fences: given by a quorum to this lease", Expect::Holds);
    check(rules(Variant::WrittenBack), "shared fences: written back, whoever has it", Expect::Broken);
    check(rules(Variant::HighestAnswer), "shared fences: the highest answer", Expect::Broken);
}
