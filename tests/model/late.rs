//! Requests that arrive after they were abandoned: one node, one caller that retries with the same token
//! through another instance, whose clock is behind, then releases. A ghost is a key that remains although its
//! caller is done and no message is in flight.

use stateright::{Model, Property};

use super::{Expect, check};

const HORIZON: u8 = 7;

/// What the clean-up of the first attempt does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Cancel {
    /// The protocol: withdraws the attempt's claim and leaves a tombstone for the attempt.
    Attempt,
    /// Deletes the token's key.
    Token,
    /// Deletes the token's key and leaves a tombstone for the token.
    TokenForGood,
}

#[derive(Clone, Copy, Debug)]
struct Rules {
    cancel: Cancel,
    /// Lifetime of a tombstone.
    tombstone: u8,
    /// Maximum age of an acquire.
    staleness: Option<u8>,
    /// Connections break, so that a cancel may overtake its acquire; instances die before they cancel.
    faults: bool,
    /// Each retry draws a token of its own.
    fresh_token: bool,
    /// When the node reads the token's tombstone.
    reading: Reading,
}

/// The protocol reads it unless the acquire is the first one with its token, was sent after all fences that were given,
/// and nothing says that such an acquire may be late.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Reading {
    Protocol,
    /// A release that finds nothing says nothing.
    LateUnread,
    /// A lease that the first acquire did not make says nothing.
    OthersUnread,
    /// Whenever the first acquire was sent.
    OldUnread,
    /// Every acquire counts as the first one.
    AgainAsFirst,
}

const PROTOCOL: Rules = Rules {
    cancel: Cancel::Attempt,
    tombstone: 3,
    staleness: Some(1),
    faults: true,
    fresh_token: false,
    reading: Reading::Protocol,
};

#[derive(Clone, Copy, Debug, Hash, PartialEq, Eq, PartialOrd, Ord)]
enum Verb {
    Acquire,
    Cancel,
    Release,
}

#[derive(Clone, Copy, Debug, Hash, PartialEq, Eq, PartialOrd, Ord)]
struct Message {
    connection: u8,
    number: u8,
    verb: Verb,
    sent: u8,
    token: u8,
    attempt: u8,
}

#[derive(Clone, Copy, Debug, Hash, PartialEq, Eq)]
enum Caller {
    Idle,
    FirstTry,
    GaveUp,
    SecondTry,
    Answered,
    Done,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq)]
struct State {
    now: u8,
    /// Token and the attempts that claim it.
    lock: Option<(u8, u8)>,
    token_ended_until: [u8; 2],
    attempt_ended_until: [u8; 2],
    /// Until when acquires read the tombstones of tokens, and the highest fence that was given.
    read_until: u8,
    given: Option<u8>,
    /// The first acquire was delivered and is in flight once more.
    is_doubled: bool,
    network: Vec<Message>,
    caller: Caller,
    sent: u8,
    granted: bool,
    refused_as_dead: bool,
    refused_as_held: bool,
    undone: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Act {
    Tick,
    Start,
    GiveUp { reconnected: bool },
    InstanceDies,
    Retry,
    Finish,
    Deliver(Message),
    DeliverTwice(Message),
    Lose(Message),
}

impl State {
    fn send(&mut self, connection: u8, verb: Verb, token: u8, attempt: u8) {
        self.sent += 1;
        // The second instance's clock is behind.
        let sent = self.now.saturating_sub(u8::from(attempt == 1));
        self.network.push(Message { connection, number: self.sent, verb, sent, token, attempt });
        self.network.sort();
    }
}

impl Rules {
    fn on_acquire(&self, s: &mut State, m: Message) {
        let late = self.staleness.is_some_and(|bound| s.now > m.sent + bound);
        let by_attempt = self.cancel == Cancel::Attempt && s.attempt_ended_until[m.attempt as usize] > s.now;
        let first = m.attempt == 0 || self.fresh_token || self.reading == Reading::AgainAsFirst;
        let new = self.reading == Reading::OldUnread || s.given.is_none_or(|given| m.sent > given);
        let reads = !first || s.read_until > s.now || !new;
        let dead = reads && s.token_ended_until[m.token as usize] > s.now || by_attempt;
        let free = s.lock.is_none_or(|(token, _)| token == m.token);
        if !late && !dead && free {
            if s.lock.is_none() && !first && self.reading != Reading::OthersUnread {
                s.read_until = s.read_until.max(s.now + self.tombstone);
            }
            s.given = s.given.max(Some(m.sent));
            let claims = s.lock.map_or(0, |(_, claims)| claims) | 1 << m.attempt;
            s.lock = Some((m.token, claims));
        }
        if m.attempt == 1 && !late {
            s.granted |= !dead && free;
            s.refused_as_dead |= dead && s.caller != Caller::Done;
            s.refused_as_held |= !dead && !free;
        }
        if m.attempt == 1 && s.caller == Caller::SecondTry {
            s.caller = Caller::Answered;
        }
    }

    fn on_cancel(&self, s: &mut State, m: Message) {
        if let Some((token, claims)) = s.lock.filter(|(token, _)| *token == m.token) {
            let left = if self.cancel == Cancel::Attempt { claims & !(1 << m.attempt) } else { 0 };
            s.lock = (left != 0).then_some((token, left));
        }
        let until = s.now + self.tombstone;
        match self.cancel {
            Cancel::Attempt => s.attempt_ended_until[m.attempt as usize] = until,
            Cancel::TokenForGood => s.token_ended_until[m.token as usize] = until,
            Cancel::Token => {}
        }
        s.undone |= s.granted && s.caller == Caller::Answered && s.lock.is_none();
    }

    fn on_release(&self, s: &mut State, m: Message) {
        if s.lock.is_none_or(|(token, _)| token != m.token) && self.reading != Reading::LateUnread {
            s.read_until = s.read_until.max(s.now + self.tombstone);
        }
        s.lock = s.lock.filter(|(token, _)| *token != m.token);
        if self.cancel != Cancel::Token {
            s.token_ended_until[m.token as usize] = s.now + self.tombstone;
        }
    }
}

impl Model for Rules {
    type State = State;
    type Action = Act;

    fn init_states(&self) -> Vec<State> {
        vec![State {
            now: 0,
            lock: None,
            token_ended_until: [0; 2],
            attempt_ended_until: [0; 2],
            read_until: 0,
            given: None,
            is_doubled: false,
            network: Vec::new(),
            caller: Caller::Idle,
            sent: 0,
            granted: false,
            refused_as_dead: false,
            refused_as_held: false,
            undone: false,
        }]
    }

    fn actions(&self, s: &State, acts: &mut Vec<Act>) {
        if s.now < HORIZON {
            acts.push(Act::Tick);
        }
        match s.caller {
            Caller::Idle => acts.push(Act::Start),
            Caller::FirstTry => {
                acts.push(Act::GiveUp { reconnected: false });
                if self.faults {
                    acts.extend([Act::GiveUp { reconnected: true }, Act::InstanceDies]);
                }
            }
            Caller::GaveUp => acts.extend([Act::Retry, Act::Finish]),
            Caller::SecondTry | Caller::Answered => acts.push(Act::Finish),
            _ => {}
        }
        for m in &s.network {
            let first = !s.network.iter().any(|o| o.connection == m.connection && o.number < m.number);
            if first {
                acts.push(Act::Deliver(*m));
            }
            if first && m.attempt == 0 && m.verb == Verb::Acquire {
                acts.push(Act::Lose(*m));
                if self.faults && !s.is_doubled {
                    acts.push(Act::DeliverTwice(*m));
                }
            }
        }
    }

    fn next_state(&self, before: &State, act: Act) -> Option<State> {
        let mut s = before.clone();
        let second = u8::from(self.fresh_token);
        match act {
            Act::Tick => s.now += 1,
            Act::Start => {
                s.send(0, Verb::Acquire, 0, 0);
                s.caller = Caller::FirstTry;
            }
            Act::GiveUp { reconnected } => {
                s.send(u8::from(reconnected), Verb::Cancel, 0, 0);
                s.caller = Caller::GaveUp;
            }
            Act::InstanceDies => s.caller = Caller::GaveUp,
            Act::Retry => {
                s.send(2, Verb::Acquire, second, 1);
                s.caller = Caller::SecondTry;
            }
            Act::Finish => {
                s.send(3, Verb::Release, second, 1);
                if self.fresh_token {
                    s.send(3, Verb::Release, 0, 0);
                }
                s.caller = Caller::Done;
            }
            Act::DeliverTwice(m) => {
                s.is_doubled = true;
                self.on_acquire(&mut s, m);
            }
            Act::Lose(m) => s.network.retain(|other| *other != m),
            Act::Deliver(m) => {
                s.network.retain(|other| *other != m);
                match m.verb {
                    Verb::Acquire => self.on_acquire(&mut s, m),
                    Verb::Cancel => self.on_cancel(&mut s, m),
                    Verb::Release => self.on_release(&mut s, m),
                }
            }
        }
        Some(s)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always("no ghost", |_, s: &State| {
                !(s.caller == Caller::Done && s.network.is_empty() && s.lock.is_some())
            }),
            Property::always("a retry is not dead because its first attempt is", |_, s: &State| !s.refused_as_dead),
            Property::always("a retry is not blocked by its first attempt", |_, s: &State| !s.refused_as_held),
            Property::always("a granted retry is not undone by the first one's cancel", |_, s: &State| !s.undone),
        ]
    }
}

#[test]
fn a_late_request_leaves_no_ghost() {
    let p = PROTOCOL;
    check(p, "late: claims and tombstones per attempt, bounded age", Expect::Holds);
    check(Rules { staleness: None, ..p }, "late: any age is accepted", Expect::Broken);
    let short = Rules { tombstone: 1, staleness: Some(2), ..p };
    check(short, "late: a tombstone that ends before a request is too old", Expect::Broken);
    check(Rules { cancel: Cancel::TokenForGood, ..p }, "late: a cancel ends the token", Expect::Broken);
    check(Rules { fresh_token: true, ..p }, "late: a fresh token for each retry", Expect::Broken);
    let by_token = Rules { cancel: Cancel::Token, staleness: None, ..p };
    check(by_token, "late: a cancel deletes by token", Expect::Broken);
    check(Rules { faults: false, ..by_token }, "late: the same on connections that never break", Expect::Broken);
    for reading in [Reading::LateUnread, Reading::OthersUnread, Reading::OldUnread, Reading::AgainAsFirst] {
        check(Rules { reading, ..p }, &format!("late: tombstones by {reading:?}"), Expect::Broken);
    }
}
