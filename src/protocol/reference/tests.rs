//! What the contract suite cannot see from outside: memory that is really given back, and the
//! reach that is written down before a request takes effect.

use std::time::Duration;

use super::*;
use crate::protocol::{AcquireArgs, CancelArgs, EndReason, NoVote, ReleaseArgs, Reply, UpdateArgs, Vote};
use crate::types::{AttemptId, Fence, Token};

const NOW_US: u64 = 1_700_000_000_000_000;

fn params() -> ClusterParams {
    ClusterParams {
        cluster: "c".into(),
        guard: Duration::from_millis(500),
        lock_delay: Duration::from_secs(1),
        quarantine: Duration::from_secs(305),
        fence_ttl: Duration::from_mins(10),
    }
}

fn name(i: u64) -> ResourceName {
    ResourceName::parse(&format!("r{i}")).expect("valid")
}

fn token(i: u64) -> TokenHash {
    Token::parse(&format!("token-{i:016}")).expect("valid").hash()
}

fn acquire(i: u64, ttl_ms: u64) -> Request {
    Request::Acquire(AcquireArgs {
        resource: name(i),
        token: token(i),
        attempt: AttemptId::from_random(i),
        ttl: Ttl::from_ms(ttl_ms).expect("valid"),
        labels: "{}".into(),
    })
}

fn active() -> ReferenceNode {
    let mut machine = ReferenceNode::new("run1");
    machine.apply(NOW_US, "", RequestTime(NOW_US), &params(), &Request::Init).expect("an answer");
    machine
}

fn ask(machine: &mut ReferenceNode, now_us: u64, request: &Request) -> Reply {
    machine.apply(now_us, "", RequestTime(now_us), &params(), request).expect("an answer")
}

#[test]
fn memory_is_given_back_by_other_requests_than_those_that_took_it() {
    let mut machine = active();
    for i in 0..1_000 {
        assert!(matches!(ask(&mut machine, NOW_US, &acquire(i, 100)), Reply::Granted { joined: false, .. }));
        let cancel = Request::Cancel(CancelArgs {
            resource: name(i),
            token: token(i),
            attempt: AttemptId::from_random(i + 5_000),
        });
        ask(&mut machine, NOW_US, &cancel);
    }
    assert_eq!(machine.sizes(), Sizes { locks: 1_000, index: 1_000, counters: 1_000, tombstones: 1_000 });
    let later = NOW_US + 1_000_000_000;
    let requests = 1_000 / memory::PURGE_PER_REQUEST + 1;
    for _ in 0..requests {
        ask(&mut machine, later, &Request::Probe);
    }
    assert_eq!(machine.sizes(), Sizes::default());
}

#[test]
fn a_resource_that_is_taken_and_let_go_over_and_over_leaves_one_counter() {
    let mut machine = active();
    for step in 0..2_000_u64 {
        let now = NOW_US + step * 100_000; // 200 s in all
        let (resource, token) = (name(1), token(step));
        let wish = Request::Acquire(AcquireArgs {
            resource: resource.clone(),
            token: token.clone(),
            attempt: AttemptId::from_random(step),
            ttl: Ttl::from_ms(30_000).expect("valid"),
            labels: "{}".into(),
        });
        assert!(matches!(ask(&mut machine, now, &wish), Reply::Granted { joined: false, .. }));
        ask(&mut machine, now, &Request::Release(ReleaseArgs { resource, token, reason: EndReason::Released }));
    }
    let sizes = machine.sizes();
    assert_eq!((sizes.locks, sizes.index, sizes.counters), (0, 0, 1));
    assert!(sizes.tombstones <= 602, "a minute of releases at ten a second, not {}", sizes.tombstones);
}

#[test]
fn nothing_goes_beyond_the_reach_that_was_told_before() {
    let mut machine = active();
    let mut now = NOW_US;
    for i in 0..200_u64 {
        now += 37_000;
        let (resource, token) = (name(i % 3), token(i % 3));
        let request = match i % 5 {
            0 | 1 => acquire(i % 3, 50 + i * 10),
            2 => Request::Update(UpdateArgs { resource, token, ttl: None, fence: None, renewal: true, labels: None }),
            3 => {
                let (ttl, fence) = (Ttl::from_ms(i * 7).ok(), Some(Fence(now + 400_000)));
                Request::Update(UpdateArgs { resource, token, ttl, fence, renewal: false, labels: None })
            }
            _ => Request::Cancel(CancelArgs { resource, token, attempt: AttemptId::from_random(i % 3) }),
        };
        let before = machine.last_lease_end_us();
        let reach = machine.effect_bound(now, RequestTime(now), &params(), &request);
        ask(&mut machine, now, &request);
        assert!(machine.last_lease_end_us() <= before.max(reach.end_us.unwrap_or(0)), "{request:?}");
        assert!(machine.highest_fence() <= reach.fence, "{request:?}: {} > {reach:?}", machine.highest_fence());
    }
}

#[test]
fn a_resumed_node_waits_and_then_votes_with_fences_above_all_it_gave() {
    let mut machine = ReferenceNode::new("run2");
    let (fence, until_us) = (NOW_US + 90_000_000, NOW_US + 5_000_000);
    machine.resume(NOW_US, &params(), Resumed { fence, until_us, why: "restart" });
    let refused = ask(&mut machine, NOW_US, &acquire(1, 100));
    assert_eq!(refused, Reply::NoVote(NoVote::Quarantined { left_ms: 5_000 }));
    let granted = ask(&mut machine, until_us, &acquire(1, 100));
    assert_eq!(granted, Reply::Granted { fence: Fence(fence + 1), joined: false });
    // An ordered quarantine is served like any other: it ends with a seed.
    ask(&mut machine, until_us, &Request::Quarantine);
    let served = until_us + 305_000_000;
    assert!(matches!(ask(&mut machine, served, &Request::Probe), Reply::Status(s) if s.vote != Vote::Active));
}

#[test]
fn a_quarantine_that_another_replaced_is_owed_where_its_clock_returns() {
    const Q_US: u64 = 305_000_000;
    let hour_ago = NOW_US - 3_600_000_000;
    let probe = |machine: &mut ReferenceNode, now_us| match ask(machine, now_us, &Request::Probe) {
        Reply::Status(status) => status.vote,
        reply => panic!("{reply:?}"),
    };
    let mut machine = ReferenceNode::new("run2");
    let blank = Vote::NoVote(NoVote::Quarantined { left_ms: Q_US / 1_000 });
    assert_eq!(probe(&mut machine, NOW_US), blank);
    ask(&mut machine, hour_ago, &Request::Quarantine);
    let returned = probe(&mut machine.clone(), NOW_US + 1_000_000);
    assert_eq!(returned, Vote::NoVote(NoVote::Quarantined { left_ms: Q_US / 1_000 - 1_000 }));
    let (served, both) = (probe(&mut machine.clone(), hour_ago + Q_US), probe(&mut machine, NOW_US + Q_US));
    for vote in [served, both] {
        assert!(matches!(vote, Vote::NoVote(NoVote::Unseeded { .. })), "{vote:?}");
    }
}

/// It forgot everything while its clock was back by an hour, and an instance of the right time put it into quarantine.
#[test]
fn a_quarantine_that_was_ordered_by_another_clock_is_served_by_that_one_too() {
    const Q_US: u64 = 305_000_000;
    let hour_ago = NOW_US - 3_600_000_000;
    let mut machine = ReferenceNode::new("run2");
    machine.apply(hour_ago, "run2", RequestTime(NOW_US), &params(), &Request::Quarantine).expect("an answer");
    let mut vote = |now_us| match ask(&mut machine, now_us, &Request::Probe) {
        Reply::Status(status) => status.vote,
        reply => panic!("{reply:?}"),
    };
    assert_eq!(vote(hour_ago), Vote::NoVote(NoVote::Quarantined { left_ms: Q_US / 1_000 }));
    assert_eq!(vote(NOW_US + 1_000_000), Vote::NoVote(NoVote::Quarantined { left_ms: Q_US / 1_000 - 1_000 }));
    assert!(matches!(vote(NOW_US + Q_US), Vote::NoVote(NoVote::Unseeded { .. })));
}
