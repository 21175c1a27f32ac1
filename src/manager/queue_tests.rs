//! The wait queues on their own: order, limits, and which notices wake which waiter.

use super::super::waiter::{HeadWake, NextStep, WaiterHandle};
use super::super::wake_timing::YIELD_PAUSE;
use super::*;
use futures_util::FutureExt;
use proptest::prelude::*;

const START: BootTime = BootTime::from_nanos(0);

fn name(text: &str) -> ResourceName {
    ResourceName::parse(text).expect("valid")
}

fn queues(per_resource: usize, total: usize) -> WaitQueues {
    WaitQueues::new(WaitLimits { per_resource, total, detects_deadlocks: true })
}

fn enqueue(queues: &WaitQueues, resource: &ResourceName) -> Result<WaiterHandle, QueueFull> {
    queues.enqueue(resource, "", None, START)
}

const SETTLED: WakeAfter = WakeAfter::SETTLED;
const NOW: WakeAfter = WakeAfter::NOW;

fn tag(n: u32) -> Option<LeaseTag> {
    Some(LeaseTag::of(&TokenHash::parse(&format!("{n:08x}").repeat(8)).expect("hex")))
}

fn woken(waiter: &WaiterHandle) -> Option<WakeAfter> {
    match waiter.woken().now_or_never()? {
        HeadWake::Attempt(after) => Some(after),
        HeadWake::CheckDeadlock => panic!("no waiter has an owner"),
    }
}

fn is_called(waiter: &WaiterHandle) -> bool {
    waiter.next_step().now_or_never().is_some()
}

#[test]
fn waiters_become_the_head_in_order() {
    let (queues, a) = (queues(10, 10), name("a"));
    let mut waiters: VecDeque<WaiterHandle> = (0..4).map(|_| enqueue(&queues, &a).expect("below the limit")).collect();
    while let Some(head) = waiters.pop_front() {
        assert!(is_called(&head));
        assert!(waiters.iter().all(|t| !is_called(t)));
        drop(head);
    }
    assert_eq!((queues.waiter_count(&a), queues.total_waiters()), (0, 0));
    assert!(queues.waiter_counts().is_empty());
}

#[test]
fn a_waiter_that_leaves_from_the_middle_wakes_nobody() {
    let (queues, a) = (queues(10, 10), name("a"));
    let waiters: Vec<WaiterHandle> = (0..3).map(|_| enqueue(&queues, &a).expect("below the limit")).collect();
    let [first, middle, last] = <[WaiterHandle; 3]>::try_from(waiters).ok().expect("three");
    drop(middle);
    assert!(!is_called(&last));
    assert_eq!(last.position(), 2);
    drop(first);
    assert!(is_called(&last));
}

#[test]
fn a_release_wakes_the_head_only_and_once() {
    let (queues, a) = (queues(10, 10), name("a"));
    let (head, next) = (enqueue(&queues, &a).expect("below the limit"), enqueue(&queues, &a).expect("queues"));
    queues.lease_ended(&a, tag(1));
    assert_eq!((woken(&head), woken(&next)), (Some(NOW), None));
    queues.lease_ended(&a, tag(1));
    assert_eq!(woken(&head), None, "the same lease ends once");
    queues.lease_ended(&a, tag(2));
    assert_eq!(woken(&head), Some(NOW));
}

#[test]
fn notices_from_a_quorum_wake_at_once_and_fewer_after_a_pause() {
    let (queues, a) = (queues(10, 10), name("a"));
    let head = enqueue(&queues, &a).expect("below the limit");
    let report = |node, lease, withdrawn| {
        queues.notice(&a, node, Notice { lease: tag(lease), withdrawn }, NeededNotices { ended: 3, withdrawn: 3 });
        woken(&head)
    };
    assert_eq!(report(0, 1, false), Some(SETTLED));
    assert_eq!(report(0, 1, false), None, "a node counts once");
    assert_eq!(report(1, 1, false), None);
    assert_eq!(report(4, 1, false), Some(NOW));
    assert_eq!(report(3, 1, false), None, "the rest of the same release wakes nobody");
    // A withdrawn attempt that had fewer than a quorum was nobody's lease.
    assert_eq!((report(0, 2, true), report(1, 2, true)), (None, None));
    assert_eq!(report(2, 2, true), Some(NOW));
}

#[test]
fn late_notices_about_the_previous_lease_do_not_wake_the_next_waiter() {
    let (queues, a) = (queues(10, 10), name("a"));
    let (head, next) = (enqueue(&queues, &a).expect("below the limit"), enqueue(&queues, &a).expect("queues"));
    head.set_subscription(Box::new(()));
    queues.on_handover(&a, tag(1).expect("some"), false);
    assert_eq!(woken(&head), Some(NOW));
    head.granted(BootTime::from_nanos(9));
    assert!(is_called(&next));
    assert_eq!(next.held_until(), Some(BootTime::from_nanos(9)));
    queues.lease_ended(&a, tag(1));
    for node in 0..5 {
        queues.notice(&a, node, Notice { lease: tag(1), withdrawn: false }, NeededNotices { ended: 3, withdrawn: 3 });
    }
    assert_eq!((woken(&next), next.held_until()), (None, Some(BootTime::from_nanos(9))));
}

#[test]
fn a_failed_handover_is_repeated_when_the_end_is_certain() {
    let (queues, a) = (queues(10, 10), name("a"));
    let head = enqueue(&queues, &a).expect("below the limit");
    queues.on_handover(&a, tag(1).expect("some"), false);
    assert_eq!(woken(&head), Some(NOW));
    queues.lease_ended(&a, tag(1));
    assert_eq!(woken(&head), Some(NOW));
    queues.lease_ended(&a, tag(1));
    assert_eq!(woken(&head), None);
}

#[test]
fn without_a_subscription_the_head_does_not_wait_for_the_end_of_a_lease() {
    let (queues, a) = (queues(10, 10), name("a"));
    let (head, next) = (enqueue(&queues, &a).expect("below the limit"), enqueue(&queues, &a).expect("queues"));
    head.granted(BootTime::from_nanos(9));
    assert_eq!(next.held_until(), None);
}

#[test]
fn a_waiter_that_leaves_during_an_attempt_wakes_the_next_again() {
    let (queues, a) = (queues(10, 10), name("a"));
    let (mut head, next) = (enqueue(&queues, &a).expect("below the limit"), enqueue(&queues, &a).expect("queues"));
    head.set_attempting(true);
    drop(head);
    assert!(is_called(&next));
    assert_eq!(woken(&next), Some(SETTLED));
}

/// A token's attempt was withdrawn and another one granted: the end of that is not a late notice about the
/// first.
#[test]
fn a_lease_that_was_granted_again_may_end_again() {
    let (queues, a) = (queues(10, 10), name("a"));
    let token = TokenHash::parse(&"0000000b".repeat(8)).expect("hex");
    let needed = NeededNotices { ended: 2, withdrawn: 2 };
    let report = |withdrawn| {
        for node in 0..2 {
            queues.notice(&a, node, Notice { lease: tag(11), withdrawn }, needed);
        }
    };
    let head = enqueue(&queues, &a).expect("below the limit");
    report(true);
    assert_eq!(woken(&head), Some(NOW));
    report(true);
    assert_eq!(woken(&head), None, "a late notice");
    queues.set_holder(&a, "", &token, true);
    report(false);
    assert_eq!(woken(&head), Some(NOW));
    // The same where the first end led to a grant here.
    let next = enqueue(&queues, &a).expect("below the limit");
    head.granted(START);
    report(false);
    assert_eq!(woken(&next), None, "a late notice");
    queues.set_holder(&a, "", &token, true);
    queues.lease_ended(&a, tag(11));
    assert_eq!(woken(&next), Some(NOW));
}

/// One of three nodes is dead, so the first notice wakes the head. Its attempt meets the lease on the other
/// node, whose notice comes before the refusal is read.
#[test]
fn notices_during_an_attempt_are_not_lost() {
    let (queues, a) = (queues(10, 10), name("a"));
    let token = TokenHash::parse(&"0000000b".repeat(8)).expect("hex");
    let report = |node| {
        let needed = NeededNotices { ended: 1, withdrawn: 2 };
        queues.notice(&a, node, Notice { lease: tag(11), withdrawn: false }, needed);
    };
    let head = enqueue(&queues, &a).expect("below the limit");
    report(0);
    assert_eq!(woken(&head), Some(NOW));
    report(1);
    assert_eq!(woken(&head), None, "its attempt is under way");
    queues.set_holder(&a, "", &token, true);
    assert_eq!(woken(&head), Some(SETTLED));
    // Without such a notice a refusal wakes nobody.
    queues.set_holder(&a, "", &token, true);
    assert_eq!(woken(&head), None);
}

/// One of three nodes is dead, and the lease was on both others when its holder disconnected: what is withdrawn
/// then is no failed attempt. The first notice comes during the head's attempt.
#[test]
fn a_lease_that_is_withdrawn_during_an_attempt_wakes_the_head() {
    let (queues, a) = (queues(10, 10), name("a"));
    let token = TokenHash::parse(&"0000000b".repeat(8)).expect("hex");
    let needed = NeededNotices { ended: 1, withdrawn: 2 };
    let report = |node| queues.notice(&a, node, Notice { lease: tag(11), withdrawn: true }, needed);
    let mut head = enqueue(&queues, &a).expect("below the limit");
    head.set_attempting(true);
    report(0);
    assert_eq!(woken(&head), None, "a failed attempt, as far as is known");
    queues.set_holder(&a, "", &token, true);
    assert_eq!(woken(&head), Some(SETTLED));
    // The next attempt still meets it on the other node, whose notice comes after the refusal.
    head.set_attempting(true);
    queues.set_holder(&a, "", &token, true);
    assert_eq!(woken(&head), None);
    report(1);
    assert_eq!(woken(&head), Some(NOW));
    // Where fewer than a quorum had it, it is a failed attempt.
    head.set_attempting(true);
    queues.set_holder(&a, "", &token, false);
    report(1);
    assert_eq!(woken(&head), None);
}

/// Two instances withdraw their attempts at the same time: a quorum of nodes reports each.
#[test]
fn notices_about_two_leases_may_be_interleaved() {
    let (queues, a) = (queues(10, 10), name("a"));
    let head = enqueue(&queues, &a).expect("below the limit");
    let report = |node, n| {
        let needed = NeededNotices { ended: 2, withdrawn: 2 };
        queues.notice(&a, node, Notice { lease: tag(n), withdrawn: true }, needed);
    };
    for n in [1, 2] {
        report(0, n);
    }
    assert_eq!(woken(&head), None, "one node each is no quorum");
    for n in [1, 2] {
        report(1, n);
        assert_eq!(woken(&head), Some(NOW), "{n}");
    }
}

#[test]
fn the_instance_yields_once_after_the_maximum_of_handovers() {
    let (queues, a) = (queues(10, 10), name("a"));
    assert_eq!(queues.plan_handover(&a), HandoverPlan::NoWaiters);
    let head = enqueue(&queues, &a).expect("below the limit");
    for i in 0..CONSECUTIVE_HANDOVERS_MAX {
        assert_eq!(queues.plan_handover(&a), HandoverPlan::WakeHead);
        queues.on_handover(&a, tag(i).expect("some"), false);
    }
    assert_eq!(queues.plan_handover(&a), HandoverPlan::CheckOtherInstances);
    let _ = woken(&head);
    queues.yield_to_others(&a, tag(99).expect("some"));
    assert_eq!(woken(&head), Some(WakeAfter(YIELD_PAUSE)));
    queues.lease_ended(&a, tag(99));
    assert_eq!((woken(&head), queues.plan_handover(&a)), (None, HandoverPlan::WakeHead));
}

#[test]
fn a_waiter_with_the_token_of_a_granted_request_joins_its_lease() {
    let (queues, a) = (queues(10, 10), name("a"));
    let own = |digit: &str| TokenHash::parse(&digit.repeat(64));
    let enter = |token| queues.enqueue(&a, "", token, START).expect("below the limit");
    let (head, other, same) = (enter(own("a")), enter(own("b")), enter(own("a")));
    let anonymous = enter(None);
    head.granted(START);
    assert_eq!(same.next_step().now_or_never(), Some(NextStep::JoinSameToken));
    assert_eq!(same.next_step().now_or_never(), None, "once");
    assert_eq!(other.next_step().now_or_never(), Some(NextStep::AttemptAsHead));
    assert_eq!(anonymous.next_step().now_or_never(), None);
}

#[test]
fn both_limits_refuse_at_once_and_are_named() {
    let (queues, a, b) = (queues(1, 2), name("a"), name("b"));
    let _first = enqueue(&queues, &a).expect("below the limit");
    assert_eq!(enqueue(&queues, &a).err(), Some(QueueFull { limit: 1, per_resource: true }));
    let _second = enqueue(&queues, &b).expect("below the limit");
    assert_eq!(enqueue(&queues, &name("c")).err(), Some(QueueFull { limit: 2, per_resource: false }));
}

proptest! {
    /// Whoever enters and leaves: exactly the oldest waiter of each queue is called, and the counts agree.
    #[test]
    fn exactly_the_oldest_is_called(steps in proptest::collection::vec((0u8..3, any::<bool>(), any::<prop::sample::Index>()), 1..60)) {
        let queues = queues(100, 100);
        let mut entered: HashMap<u8, Vec<WaiterHandle>> = HashMap::new();
        for (resource, comes, pick) in steps {
            let queue = entered.entry(resource).or_default();
            if comes || queue.is_empty() {
                queue.push(enqueue(&queues, &name(&resource.to_string())).expect("below the limit"));
            } else {
                drop(queue.remove(pick.index(queue.len())));
            }
            for (resource, queue) in &entered {
                prop_assert_eq!(queues.waiter_count(&name(&resource.to_string())), queue.len());
                for (i, waiter) in queue.iter().enumerate() {
                    prop_assert_eq!(waiter.position(), i + 1);
                    prop_assert_eq!(is_called(waiter), i == 0);
                }
            }
            prop_assert_eq!(queues.total_waiters(), entered.values().map(Vec::len).sum::<usize>());
        }
    }
}

/// A seeded simulation of one resource: releases, their notices in any order, waiters that enter and leave.
/// The rules of the queue are checked; bugs planted in the simulation must be found.
mod simulation {
    use super::*;
    use crate::redlock::notifications::Notice;

    #[derive(Clone, Copy, PartialEq, Debug)]
    enum Bug {
        None,
        /// Like a client that subscribes after its attempt.
        LosesNotices,
        /// Serves the newest waiter.
        Overtakes,
        /// Wakes on every notice.
        WakesOnEachNotice,
    }

    /// xorshift64*: the same for the same seed, everywhere.
    struct Random(u64);

    impl Random {
        fn below(&mut self, sides: u64) -> u64 {
            self.0 ^= self.0 >> 12;
            self.0 ^= self.0 << 25;
            self.0 ^= self.0 >> 27;
            (self.0.wrapping_mul(0x2545_F491_4F6C_DD1D) >> 33) % sides
        }
    }

    const NODES: usize = 5;
    const NEEDED: NeededNotices = NeededNotices { ended: 3, withdrawn: 3 };

    fn run(seed: u64, bug: Bug) -> Result<(), String> {
        let (mut random, queues, a) = (Random(seed * 2 + 1), queues(100, 100), name("a"));
        let mut queue: VecDeque<(u64, WaiterHandle)> = VecDeque::new();
        let (mut came, mut served, mut lease) = (0_u64, None, 1_u32);
        for _ in 0..60 {
            for _ in 0..=random.below(3) {
                queue.push_back((came, enqueue(&queues, &a).expect("below the limit")));
                came += 1;
            }
            queue[0].1.set_subscription(Box::new(()));
            // Another client holds it; some waiters leave.
            for _ in 0..random.below(2) {
                let at = usize::try_from(random.below(queue.len() as u64)).expect("small");
                drop(queue.remove(at));
            }
            let Some((_, head)) = queue.front() else { continue };
            head.next_step().now_or_never().ok_or("the oldest is not called")?;
            while woken(head).is_some() {}
            // It ends: through this instance, or through another with a notice from each node, in any order.
            let (mut wakes, local) = (0, random.below(3) == 0);
            if local {
                queues.on_handover(&a, tag(lease).expect("some"), false);
                wakes += usize::from(woken(head) == Some(NOW));
            }
            let mut nodes: Vec<usize> = (0..NODES).collect();
            while !nodes.is_empty() && (!local || wakes == 0) {
                let node = nodes.swap_remove(usize::try_from(random.below(nodes.len() as u64)).expect("small"));
                if bug == Bug::LosesNotices {
                    continue;
                }
                if bug == Bug::WakesOnEachNotice {
                    queues.lease_ended(&a, None);
                } else {
                    queues.notice(&a, node, Notice { lease: tag(lease), withdrawn: false }, NEEDED);
                }
                wakes += usize::from(woken(head) == Some(NOW));
            }
            if wakes != 1 {
                return Err(format!("the head was woken {wakes} times for one end"));
            }
            if queue.iter().skip(1).any(|(_, t)| woken(t).is_some()) {
                return Err("a waiter behind the head was woken".into());
            }
            let next = if bug == Bug::Overtakes { queue.pop_back() } else { queue.pop_front() };
            let (number, waiter) = next.expect("not empty");
            if served.is_some_and(|s| s > number) || queue.iter().any(|(n, _)| *n < number) {
                return Err("overtaken".into());
            }
            served = Some(number);
            waiter.granted(BootTime::from_nanos(u64::MAX));
            // The other notices come late, and wake nobody.
            for node in nodes {
                queues.notice(&a, node, Notice { lease: tag(lease), withdrawn: false }, NEEDED);
            }
            if local {
                queues.lease_ended(&a, tag(lease));
            }
            if queue.front().is_some_and(|(_, t)| woken(t).is_some()) {
                return Err("the next was woken for an end that was served".into());
            }
            lease += 1;
        }
        drop(queue);
        (queues.total_waiters() == 0).then_some(()).ok_or_else(|| "waiters are left over".into())
    }

    #[test]
    fn one_end_wakes_the_oldest_once_whatever_the_order_of_the_notices() {
        for seed in 0..300 {
            run(seed, Bug::None).unwrap_or_else(|why| panic!("seed {seed}: {why}"));
        }
    }

    #[test]
    fn planted_bugs_are_found() {
        for bug in [Bug::LosesNotices, Bug::Overtakes, Bug::WakesOnEachNotice] {
            assert!((0..300).any(|seed| run(seed, bug).is_err()), "{bug:?}");
        }
    }
}
