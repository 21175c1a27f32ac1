//! Compares requests in one command with the same requests sent one after the other, on two redis-servers: the same
//! replies, and the same keys afterwards. Seeded and bounded. Only remaining TTLs and clock readings may differ.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use proptest::prelude::*;
use proptest::test_runner::TestCaseError;
use redlockd::protocol::{EndReason, ReleaseArgs, Request, RequestTime};
use redlockd::types::Fence;

use super::comparison::{agree, kind_of};
use super::redis_server::RedisServer;
use super::steps::seeded_runner;
use super::subject::{Server, Subject, acquire, cancel, extend, name, params, token};

const SEQUENCES: u32 = 60;
const SEED: [u8; 32] = *b"redlockd contract together one 1";
/// Two servers, asked one after the other on a busy machine.
const SLACK_US: u64 = 5_000_000;
/// No lease ends while the test runs.
const TTL_MS: u64 = 600_000;
/// Kinds of replies that the commands must have produced.
const EXPECTED_KINDS: [&str; 11] = [
    "acquire NoVote ClockOff",
    "acquire Ended Cancelled",
    "acquire Ended Released",
    "acquire Granted false",
    "acquire Granted true",
    "acquire Held false false",
    "acquire Held true false",
    "acquire Held true true",
    "cancel Match",
    "release Match",
    "release Nothing",
];

/// One command's requests, of one kind and about different resources, or an event before it.
#[derive(Debug, Clone)]
enum Step {
    /// Resource, token, attempt, and whether the time of sending is far off.
    Acquire(Vec<(u8, u64, u64, bool)>),
    /// Resource, token, and the attempt that is cancelled; `None`: released.
    End(Vec<(u8, u64, Option<u64>)>),
    /// A foreign client's string, or a key of another type.
    Foreign(u8, bool),
    /// The lease's TTL is removed, or its value is damaged.
    Damage(u8, bool),
    /// An extend, which claims the lease.
    Extend(u8, u64),
}

fn step() -> impl Strategy<Value = Step> {
    let distinct = |picked: &mut BTreeSet<u8>, resource: u8| picked.insert(resource);
    prop_oneof![
        4 => prop::collection::vec((0..8_u8, 0..3_u64, 0..3_u64, prop::bool::weighted(0.05)), 1..9).prop_map(
            move |mut asks| {
                let mut picked = BTreeSet::new();
                asks.retain(|ask| distinct(&mut picked, ask.0));
                Step::Acquire(asks)
            }
        ),
        3 => prop::collection::vec((0..8_u8, 0..3_u64, prop::option::of(0..3_u64)), 1..9).prop_map(move |mut ends| {
            let mut picked = BTreeSet::new();
            ends.retain(|end| distinct(&mut picked, end.0));
            Step::End(ends)
        }),
        1 => (0..8_u8, any::<bool>()).prop_map(|(resource, is_list)| Step::Foreign(resource, is_list)),
        1 => (0..8_u8, any::<bool>()).prop_map(|(resource, is_value)| Step::Damage(resource, is_value)),
        1 => (0..8_u8, 0..3_u64).prop_map(|(resource, by)| Step::Extend(resource, by)),
    ]
}

fn resource(of: u8) -> String {
    format!("r{of}")
}

/// Every key with its value, without values that depend on the time.
fn keys(server: &mut RedisServer) -> BTreeMap<String, String> {
    let names: Vec<String> = server.command(&[b"KEYS", b"*"]);
    let text = |server: &mut RedisServer, key: &str| -> String {
        let kind: String = server.command(&[b"TYPE", key.as_bytes()]);
        match kind.as_str() {
            "string" => server.command(&[b"GET", key.as_bytes()]),
            // Sorted by time on the server, which is not the same on both.
            "zset" => server
                .command::<BTreeSet<String>>(&[b"ZRANGE", key.as_bytes(), b"0", b"-1"])
                .into_iter()
                .collect::<Vec<_>>()
                .join(" "),
            // Tombstones, each with its reason and time.
            "hash" if key == "redlockd:ended" => {
                let all = server.command::<BTreeMap<String, String>>(&[b"HGETALL", key.as_bytes()]);
                format!("{:?}", all.iter().map(|(of, v)| (of, v.split('|').next())).collect::<Vec<_>>())
            }
            "hash" if key.starts_with("redlockd:fences:") => {
                format!("{:?}", server.command::<BTreeMap<String, String>>(&[b"HGETALL", key.as_bytes()]))
            }
            "hash" => server.command::<Vec<String>>(&[b"HMGET", key.as_bytes(), b"hw", b"base", b"st"]).join(" "),
            kind => kind.to_owned(),
        }
    };
    names.into_iter().map(|key| (key.clone(), text(server, &key))).collect()
}

/// Both servers, the last time of sending (the same for both), and how often each kind of reply came.
struct Both {
    apart: RedisServer,
    together: RedisServer,
    sent_at: u64,
    met: BTreeMap<String, u32>,
}

impl Both {
    fn start(&mut self) {
        for server in [&mut self.apart, &mut self.together] {
            server.flush_all();
        }
        self.sent_at = self.sent_at.max(self.apart.now_us());
        let sent_at = RequestTime(self.sent_at);
        for server in [&mut self.apart, &mut self.together] {
            server.ask_with(sent_at, &params(), &Request::init()).expect("an answer");
        }
    }

    fn next_time(&mut self, is_off: bool) -> RequestTime {
        self.sent_at = (self.sent_at + 1).max(self.apart.now_us());
        RequestTime(if is_off { self.sent_at - Duration::from_hours(1).as_micros() as u64 } else { self.sent_at })
    }

    fn ask(&mut self, asked: Vec<(RequestTime, Request)>) -> Result<(), TestCaseError> {
        if asked.is_empty() {
            return Ok(());
        }
        let alone: Vec<_> =
            asked.iter().map(|(sent_at, request)| self.apart.ask_with(*sent_at, &params(), request)).collect();
        let answers = self.together.ask_batch(&params(), &asked);
        for ((one, other), (_, request)) in alone.iter().zip(&answers).zip(&asked) {
            prop_assert!(agree(one, other, SLACK_US), "{request:?}\n  apart: {one:?}\n  together: {other:?}");
            *self.met.entry(format!("{} {}", request.operation(), kind_of(one))).or_default() += 1;
        }
        Ok(())
    }

    fn step(&mut self, step: &Step) -> Result<(), TestCaseError> {
        match step {
            Step::Acquire(asks) => {
                let asked = asks
                    .iter()
                    .map(|(of, by, at, is_off)| (self.next_time(*is_off), acquire(&resource(*of), *by, *at, TTL_MS)))
                    .collect();
                self.ask(asked)
            }
            Step::End(ends) => {
                let end = |(of, by, at): &(u8, u64, Option<u64>)| match at {
                    Some(at) => cancel(&resource(*of), *by, *at),
                    None => Request::Release(ReleaseArgs {
                        resource: name(&resource(*of)),
                        token: token(*by),
                        // Those of a batch have one reason, or several.
                        reason: if of % 4 == 3 { EndReason::Forced } else { EndReason::Released },
                    }),
                };
                let asked = ends.iter().map(|e| (self.next_time(false), end(e))).collect();
                self.ask(asked)
            }
            Step::Extend(of, by) => {
                let sent_at = self.next_time(false);
                self.ask(vec![(sent_at, extend(&resource(*of), *by, None, None::<Fence>))])
            }
            Step::Foreign(of, is_list) => {
                for server in [&mut self.apart, &mut self.together] {
                    match is_list {
                        true => server.foreign_list(&name(&resource(*of)), None),
                        false => server.foreign_set(&name(&resource(*of)), b"theirs", Some(TTL_MS)),
                    }
                }
                Ok(())
            }
            Step::Damage(of, is_value) => {
                for server in [&mut self.apart, &mut self.together] {
                    let key = resource(*of);
                    let kind: String = server.command(&[b"TYPE", key.as_bytes()]);
                    if kind == "string" && *is_value {
                        server.command::<()>(&[b"SETRANGE", key.as_bytes(), b"66", b"?"]);
                    } else {
                        server.command::<()>(&[b"PERSIST", key.as_bytes()]);
                    }
                }
                Ok(())
            }
        }
    }
}

#[test]
fn a_batch_gives_the_same_replies_and_keys_as_its_requests_alone() {
    let both = Both { apart: RedisServer::start(), together: RedisServer::start(), sent_at: 0, met: BTreeMap::new() };
    let both = RefCell::new(both);
    let outcome = seeded_runner(SEQUENCES, &SEED).run(&prop::collection::vec(step(), 1..40), |steps| {
        let mut both = both.borrow_mut();
        both.start();
        for step in &steps {
            both.step(step)?;
        }
        let (apart, together) = (keys(&mut both.apart), keys(&mut both.together));
        prop_assert_eq!(apart, together);
        Ok(())
    });
    if let Err(failure) = outcome {
        panic!("{failure}");
    }
    let met = both.into_inner().met;
    for kind in EXPECTED_KINDS {
        assert!(met.contains_key(kind), "no such reply, so not tested: {kind}; received: {met:#?}");
    }
}
