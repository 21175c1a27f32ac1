//! Waiting on one instance: which waiter is woken when the resource is released here, through another
//! instance, or expires. The model is stuck if the resource is free while the head of the queue sleeps
//! and nothing will wake it.

use std::mem::take;

use stateright::{Model, Property};

use super::{Expect, check};

const WAITERS: usize = 3;

#[derive(Clone, Copy, Debug)]
struct Rules {
    /// A wake-up of a waiter that does not sleep yet is kept until it does.
    permits: bool,
    /// The head retries after a time by itself.
    timer: bool,
    /// A waiter that leaves from the head wakes the next.
    leaver_calls: bool,
    /// Others release through another instance, of which this one is not notified.
    elsewhere: bool,
}

const PROTOCOL: Rules = Rules { permits: true, timer: true, leaver_calls: true, elsewhere: true };

#[derive(Clone, Copy, Debug, Hash, PartialEq, Eq)]
enum Waiter {
    /// In the queue, behind others as far as it knows.
    Parked,
    /// Has been refused and is about to sleep.
    Refused,
    Asleep,
    /// At the head and about to ask.
    Awake,
    Holding,
    Gone,
}

#[derive(Clone, Copy, Debug, Hash, PartialEq, Eq)]
struct State {
    held: bool,
    waiters: [Waiter; WAITERS],
    called: [bool; WAITERS],
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Act {
    ReleaseHere,
    ReleaseElsewhere,
    Ask(usize),
    FallAsleep(usize),
    Wake(usize),
    Timer(usize),
    HangUp(usize),
    Done(usize),
}

impl State {
    fn head(&self) -> Option<usize> {
        self.waiters.iter().position(|w| !matches!(w, Waiter::Holding | Waiter::Gone))
    }
}

impl Rules {
    fn call_head(&self, s: &mut State) {
        let Some(head) = s.head() else { return };
        let sleeps = matches!(s.waiters[head], Waiter::Asleep | Waiter::Parked);
        s.called[head] |= self.permits || sleeps;
    }

    /// Leaves the queue: granted or hung up.
    fn leave(&self, s: &mut State, i: usize, to: Waiter) {
        let was_head = s.head() == Some(i);
        (s.waiters[i], s.called[i]) = (to, false);
        if was_head && self.leaver_calls {
            self.call_head(s);
        }
    }
}

impl Model for Rules {
    type State = State;
    type Action = Act;

    fn init_states(&self) -> Vec<State> {
        let mut called = [false; WAITERS];
        called[0] = true;
        vec![State { held: true, waiters: [Waiter::Parked; WAITERS], called }]
    }

    fn actions(&self, s: &State, acts: &mut Vec<Act>) {
        if s.held && !s.waiters.contains(&Waiter::Holding) {
            acts.push(Act::ReleaseHere);
            acts.extend(self.elsewhere.then_some(Act::ReleaseElsewhere));
        }
        for (i, waiter) in s.waiters.iter().enumerate() {
            match waiter {
                Waiter::Parked | Waiter::Asleep => {
                    acts.push(Act::HangUp(i));
                    acts.extend(s.called[i].then_some(Act::Wake(i)));
                    acts.extend((self.timer && *waiter == Waiter::Asleep).then_some(Act::Timer(i)));
                }
                Waiter::Awake => acts.extend([Act::Ask(i), Act::HangUp(i)]),
                Waiter::Refused => acts.extend([Act::FallAsleep(i), Act::HangUp(i)]),
                Waiter::Holding => acts.push(Act::Done(i)),
                Waiter::Gone => {}
            }
        }
    }

    fn next_state(&self, before: &State, act: Act) -> Option<State> {
        let mut s = *before;
        match act {
            Act::ReleaseHere => {
                s.held = false;
                self.call_head(&mut s);
            }
            Act::ReleaseElsewhere => s.held = false,
            Act::Ask(i) if s.held => s.waiters[i] = Waiter::Refused,
            Act::Ask(i) => {
                s.held = true;
                self.leave(&mut s, i, Waiter::Holding);
            }
            Act::FallAsleep(i) => s.waiters[i] = Waiter::Asleep,
            Act::Wake(i) => {
                take(&mut s.called[i]);
                let awake = s.head() == Some(i);
                s.waiters[i] = if awake { Waiter::Awake } else { Waiter::Parked };
            }
            Act::Timer(i) => s.waiters[i] = Waiter::Awake,
            Act::HangUp(i) => self.leave(&mut s, i, Waiter::Gone),
            Act::Done(i) => {
                (s.held, s.waiters[i]) = (false, Waiter::Gone);
                self.call_head(&mut s);
            }
        }
        Some(s)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![Property::always("nobody sleeps for good while the resource is free", |rules: &Rules, s: &State| {
            let stuck = |i: usize| match s.waiters[i] {
                Waiter::Parked => !s.called[i],
                Waiter::Asleep => !s.called[i] && !rules.timer,
                _ => false,
            };
            s.held || !s.head().is_some_and(stuck)
        })]
    }
}

#[test]
fn nobody_is_forgotten_in_the_queue() {
    let p = PROTOCOL;
    check(p, "wake: calls are kept, the head looks again by itself", Expect::Holds);
    check(Rules { timer: false, elsewhere: false, ..p }, "wake: no timer, every release is received", Expect::Holds);
    check(Rules { timer: false, ..p }, "wake: no timer, releases elsewhere", Expect::Broken);
    check(Rules { leaver_calls: false, ..p }, "wake: the head leaves without a word", Expect::Broken);
    let forgetful = Rules { permits: false, timer: false, elsewhere: false, ..p };
    check(forgetful, "wake: a call to one who is not asleep yet is lost", Expect::Broken);
}
