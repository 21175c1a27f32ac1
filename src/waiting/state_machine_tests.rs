//! The queue as lists of events: order, limits, which notices wake whom, waiters for several resources, shared ones,
//! deadlocks; and random events, with what must hold after each.

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use proptest::prelude::*;

use super::super::compatible_waiters::INTENT_RENEWED;
use super::super::deadlock::{Party, WaitEdge};
use super::super::event::{Admission, HandoverPlan, Mode, QueueFull, WaitLimits};
use super::super::lease_notices::CONSECUTIVE_HANDOVERS_MAX;
use super::super::wake::YIELD_PAUSE;
use super::*;
use crate::mutant;
use crate::redlock::backoff::BackoffRange;
use crate::redlock::notifications::{LeaseTag, Notice};
use crate::types::{PermitLimit, SlotSet, TokenHash};

const NODES: usize = 3;
const POLL: Duration = Duration::from_secs(1);
const LIMITS: WaitLimits = WaitLimits { per_resource: 200, total: 300, detects_deadlocks: true };

fn ms(number: u64) -> Duration {
    Duration::from_millis(number)
}

fn name(text: &str) -> ResourceName {
    ResourceName::parse(text).expect("valid")
}

fn token(number: u64) -> TokenHash {
    TokenHash::parse(&format!("{number:08x}").repeat(8)).expect("hex")
}

fn tag(number: u64) -> LeaseTag {
    LeaseTag::of(&token(number))
}

fn permit(limit: u64) -> Mode {
    Mode::Permit { limit: PermitLimit::new(limit).expect("in range") }
}

/// A queue with the times that its waiters sleep until, and what it asked for last.
struct Bench {
    queue: Queue,
    now: BootTime,
    next: WaiterId,
    armed: HashMap<WaiterId, BootTime>,
    last: Vec<Action>,
    /// All actions that [`World::note`] has not seen.
    unseen: Vec<Action>,
    /// Subscriptions less those given up.
    subscriptions: i64,
}

impl Bench {
    fn new(limits: WaitLimits) -> Self {
        let retry = BackoffRange { first: ms(2), max: ms(100) };
        let queue = Queue::new(QueueSettings { limits, nodes: NODES, local_nodes: 0, retry, poll: POLL });
        let (armed, now) = (HashMap::new(), BootTime::default().plus(ms(1)));
        let (last, unseen) = (Vec::new(), Vec::new());
        let mut bench = Self { queue, now, next: 0, armed, last, unseen, subscriptions: 0 };
        for node in 0..NODES {
            bench.on(WaitEvent::Connection { node, is_up: true });
        }
        bench
    }

    /// Handles an event. Returns the waiters that are to make an attempt now.
    fn on(&mut self, event: WaitEvent) -> Vec<WaiterId> {
        self.last = self.queue.handle(self.now, 7, event);
        let mut attempts = Vec::new();
        self.unseen.extend(self.last.iter().cloned());
        for action in &self.last {
            match action {
                Action::Attempt { waiter, .. } => attempts.push(*waiter),
                Action::Arm(waiter, at) => drop(self.armed.insert(*waiter, *at)),
                Action::Subscribe(_) => self.subscriptions += 1,
                Action::Unsubscribe(_) => self.subscriptions -= 1,
                _ => {}
            }
        }
        attempts
    }

    fn request(names: &[&str], mode: Mode) -> WaitRequest {
        WaitRequest {
            resources: names.iter().map(|text| name(text)).collect(),
            mode,
            party: None,
            token: None,
            until: BootTime::default().plus(ms(600_000)),
            admission: Admission::Queued,
            refuses_deadlock: false,
            note: "".into(),
            is_ticket: false,
        }
    }

    fn enqueue(&mut self, request: WaitRequest) -> (WaiterId, Vec<WaiterId>) {
        let waiter = self.next;
        self.next += 1;
        (waiter, self.on(WaitEvent::Enqueue(waiter, request, self.now)))
    }

    fn enter(&mut self, names: &[&str]) -> WaiterId {
        self.enqueue(Self::request(names, Mode::Exclusive)).0
    }

    fn enter_for_permit(&mut self, resource: &str, limit: u64) -> WaiterId {
        self.enqueue(Self::request(&[resource], permit(limit))).0
    }

    /// The attempt of a waiter finds that all permits are held, by these leases.
    fn refused_for_permit(&mut self, waiter: WaiterId, resource: &str, leases: &[u64]) -> Vec<WaiterId> {
        let mode = self.queue.waiters[&waiter].request.mode;
        let blocker = |lease: &u64| Blocker {
            resource: name(resource),
            mode,
            lease: Some(token(*lease)),
            party: None,
            slot: None,
            taken: SlotSet::default(),
            is_confirmed: true,
            is_intent: false,
            free_in: Some(ms(60_000)),
        };
        let blockers = leases.iter().map(blocker).collect();
        self.on(WaitEvent::AttemptFinished(waiter, AttemptOutcome::Held(blockers)))
    }

    fn enter_shared(&mut self, names: &[&str]) -> WaiterId {
        self.enqueue(Self::request(names, Mode::Shared)).0
    }

    /// The attempt of a waiter finds that a lease holds `resource`, on a quorum, for a minute.
    fn refused(&mut self, waiter: WaiterId, resource: &str, lease: u64) -> Vec<WaiterId> {
        self.refused_by(waiter, resource, lease, None, true)
    }

    fn refused_by(
        &mut self,
        waiter: WaiterId,
        resource: &str,
        lease: u64,
        owner: Option<&str>,
        is_confirmed: bool,
    ) -> Vec<WaiterId> {
        self.refused_as(waiter, resource, (lease, Mode::Exclusive), owner, is_confirmed)
    }

    fn refused_as(
        &mut self,
        waiter: WaiterId,
        resource: &str,
        (lease, mode): (u64, Mode),
        owner: Option<&str>,
        is_confirmed: bool,
    ) -> Vec<WaiterId> {
        let blocker = Blocker {
            resource: name(resource),
            mode,
            lease: Some(token(lease)),
            party: owner.and_then(|owner| Party::new("", owner)),
            slot: None,
            taken: SlotSet::default(),
            is_confirmed,
            is_intent: false,
            free_in: Some(ms(60_000)),
        };
        self.on(WaitEvent::AttemptFinished(waiter, AttemptOutcome::Held(vec![blocker])))
    }

    fn granted(&mut self, waiter: WaiterId, lease: u64) -> Vec<WaiterId> {
        let until = self.now.plus(ms(60_000));
        self.on(WaitEvent::AttemptFinished(waiter, AttemptOutcome::Granted { lease: token(lease), slot: None, until }))
    }

    fn subscribed(&mut self, resource: &str) -> Vec<WaiterId> {
        (0..NODES).flat_map(|node| self.on(WaitEvent::Subscribed(name(resource), node))).collect()
    }

    /// Refused, subscribed, refused again: it sleeps until the end of the lease.
    fn asleep(&mut self, resource: &str, lease: u64) -> WaiterId {
        let waiter = self.enter(&[resource]);
        self.refused(waiter, resource, lease);
        if self.subscribed(resource) == [waiter] {
            self.refused(waiter, resource, lease);
        }
        assert!(self.sleeps_until(waiter) >= self.now.plus(ms(59_000)), "it has nothing to ask for");
        waiter
    }

    fn sleeps_until(&self, waiter: WaiterId) -> BootTime {
        self.armed[&waiter]
    }

    fn notice(&mut self, resource: &str, node: usize, lease: u64, withdrawn: bool) -> Vec<WaiterId> {
        self.on(WaitEvent::Notice(name(resource), node, Notice { lease: Some(tag(lease)), withdrawn, slot: None }))
    }

    fn sent(&mut self, resource: &str, lease: u64, others_wait: Option<bool>) -> Vec<WaiterId> {
        self.on(WaitEvent::ReleaseSent { resource: name(resource), lease: tag(lease), others_wait })
    }

    fn ended(&mut self, resource: &str, lease: u64) -> Vec<WaiterId> {
        self.on(WaitEvent::LeaseEnded(name(resource), Some(tag(lease))))
    }

    /// Time passes until this waiter's timer.
    fn timer(&mut self, waiter: WaiterId) -> Vec<WaiterId> {
        self.now = self.now.max(self.armed[&waiter]);
        self.on(WaitEvent::Timer(waiter))
    }

    fn reason(&self) -> Option<&RefuseReason> {
        self.last.iter().find_map(|action| match action {
            Action::Refuse(_, reason) => Some(reason),
            _ => None,
        })
    }
}

const NOBODY: [WaiterId; 0] = [];

#[test]
fn waiters_ask_in_order_and_one_that_leaves_from_the_middle_wakes_nobody() {
    let mut bench = Bench::new(LIMITS);
    let (first, asked) = bench.enqueue(Bench::request(&["a"], Mode::Exclusive));
    assert_eq!(asked, [first]);
    let (second, third, fourth) = (bench.enter(&["a"]), bench.enter(&["a"]), bench.enter(&["a"]));
    assert_eq!(bench.on(WaitEvent::Cancel(third)), NOBODY);
    assert_eq!((bench.queue.position(second), bench.queue.position(fourth)), (2, 3));
    bench.refused(first, "a", 1);
    assert_eq!(bench.on(WaitEvent::Cancel(first)), [second]);
    assert_eq!(bench.granted(second, 2), [fourth], "without subscriptions nothing is known of the end");
    bench.on(WaitEvent::Cancel(fourth));
    assert_eq!((bench.queue.total_waiters(), bench.queue.asking, bench.subscriptions), (0, 0, 0));
    assert!(bench.queue.waiters.is_empty() && bench.queue.resources.is_empty());
}

#[test]
fn both_limits_refuse_at_once_and_are_named() {
    let mut bench = Bench::new(WaitLimits { per_resource: 1, total: 2, detects_deadlocks: false });
    for (resource, limit) in [("a", None), ("a", Some((1, true))), ("b", None), ("c", Some((2, false)))] {
        bench.enter(&[resource]);
        let full = limit.map(|(limit, per_resource)| RefuseReason::QueueFull(QueueFull { limit, per_resource }));
        assert_eq!(bench.reason(), full.as_ref());
    }
}

#[test]
fn a_request_that_does_not_wait_asks_beside_an_empty_queue_only_and_again_after_a_split_vote() {
    let mut bench = Bench::new(LIMITS);
    let once = || WaitRequest { admission: Admission::Once, ..Bench::request(&["a"], Mode::Exclusive) };
    let (waiter, asked) = bench.enqueue(once());
    assert_eq!(asked, [waiter]);
    for _ in 1..SPLIT_ATTEMPTS {
        assert_eq!(bench.on(WaitEvent::AttemptFinished(waiter, AttemptOutcome::Split)), NOBODY);
        assert!(bench.reason().is_none());
        assert_eq!(bench.timer(waiter), [waiter]);
    }
    bench.on(WaitEvent::AttemptFinished(waiter, AttemptOutcome::Split));
    assert_eq!(bench.reason(), Some(&RefuseReason::LastAttempt));
    bench.enter(&["a"]);
    assert_eq!((bench.enqueue(once()).1, bench.reason()), (vec![], Some(&RefuseReason::OthersWait)));
    let (passing, asked) = bench.enqueue(WaitRequest { admission: Admission::Passing, ..once() });
    assert_eq!(asked, [passing]);
    bench.refused(passing, "a", 1);
    assert_eq!(bench.reason(), Some(&RefuseReason::LastAttempt), "it does not wait");
}

/// Of the own token of another request, which joins the lease.
#[test]
fn a_grant_beside_the_queues_means_what_it_means_of_a_request_that_entered() {
    let own = Some(token(9));
    let request =
        WaitRequest { admission: Admission::Once, token: own.clone(), ..Bench::request(&["a"], Mode::Exclusive) };
    let after = |is_beside: bool| {
        let mut bench = Bench::new(LIMITS);
        let once = bench.next;
        match is_beside {
            true => bench.next += 1,
            false => assert_eq!(bench.enqueue(request.clone()), (once, vec![once])),
        }
        let waiter = bench.enqueue(WaitRequest { token: own.clone(), ..Bench::request(&["a"], Mode::Exclusive) }).0;
        bench.refused(waiter, "a", 5);
        let asked: Vec<_> = (0..NODES).flat_map(|node| bench.on(WaitEvent::Subscribed(name("a"), node))).collect();
        assert_eq!(asked, [waiter], "once more, now that it is subscribed");
        assert!(bench.refused(waiter, "a", 5).is_empty());
        let attempts = match is_beside {
            true => bench.on(WaitEvent::GrantedBeside(request.clone(), token(9), None, bench.now.plus(ms(60_000)))),
            false => bench.granted(once, 9),
        };
        assert_eq!(attempts, [waiter], "to join");
        (bench.queue.resources[&name("a")].clone(), bench.queue.waiters[&waiter].clone())
    };
    assert_eq!(after(true), after(false));
    assert!(after(true).0.held.is_some(), "nobody else asks before the lease's end");
}

/// Seeds 22028 and 24721: a holder that repeated its acquire without waiting got no answer before the end of its lease.
#[test]
fn a_request_that_does_not_wait_asks_at_once_although_a_lease_is_known_to_run_on() {
    let mut bench = Bench::new(LIMITS);
    bench.asleep("a", 1);
    bench.on(WaitEvent::HeldUntil(name("a"), bench.now.plus(ms(60_000)), Mode::Exclusive));
    let request = Bench::request(&["a"], Mode::Exclusive);
    let (passing, asked) = bench.enqueue(WaitRequest { admission: Admission::Passing, ..request });
    assert_eq!(asked, [passing]);
}

/// Changelog: what ended between an attempt and the subscription was not reported.
#[test]
fn a_waiter_asks_once_more_when_its_subscription_is_confirmed() {
    let mut bench = Bench::new(LIMITS);
    let waiter = bench.enter(&["a"]);
    bench.refused(waiter, "a", 1);
    assert!(bench.last.contains(&Action::Subscribe(name("a"))));
    assert!(bench.sleeps_until(waiter) <= bench.now.plus(POLL + WAKE_JITTER), "until then it polls");
    assert_eq!(bench.on(WaitEvent::Subscribed(name("a"), 0)), NOBODY);
    assert_eq!(bench.on(WaitEvent::Subscribed(name("a"), 1)), [waiter]);
    bench.refused(waiter, "a", 1);
    assert!(bench.sleeps_until(waiter) >= bench.now.plus(ms(60_000)));
}

#[test]
fn notices_from_a_quorum_wake_at_once_and_fewer_after_a_pause() {
    let mut bench = Bench::new(LIMITS);
    let waiter = bench.asleep("a", 1);
    // A withdrawn attempt that had fewer than a quorum was nobody's lease.
    assert_eq!((bench.notice("a", 0, 2, true), bench.notice("a", 0, 2, true)), (vec![], vec![]));
    assert_eq!(bench.notice("a", 0, 1, false), NOBODY);
    assert_eq!(bench.sleeps_until(waiter), bench.now.plus(SETTLE_PAUSE));
    assert_eq!(bench.notice("a", 0, 1, false), NOBODY, "a node counts once");
    assert_eq!(bench.notice("a", 2, 1, false), [waiter]);
    assert_eq!(bench.notice("a", 1, 1, false), NOBODY, "the rest of the same release wakes nobody");
    bench.granted(waiter, 3);
    assert_eq!(bench.queue.total_waiters(), 0);
}

/// Changelog: two instances withdraw their attempts at the same time, and a quorum of nodes reports each.
#[test]
fn notices_about_two_leases_may_be_interleaved() {
    let mut bench = Bench::new(LIMITS);
    let waiter = bench.asleep("a", 9);
    assert_eq!((bench.notice("a", 0, 1, true), bench.notice("a", 0, 2, true)), (vec![], vec![]));
    assert_eq!(bench.notice("a", 1, 1, true), [waiter]);
    assert_eq!(bench.notice("a", 1, 2, true), NOBODY, "its attempt is under way");
    assert_eq!(bench.refused(waiter, "a", 9), [waiter], "both ends count");
}

/// Changelog: the first notice wakes the waiter, whose attempt still meets the lease on the other node; that node's
/// notice comes during the attempt.
#[test]
fn a_notice_during_an_attempt_is_not_lost() {
    for withdrawn in [false, true] {
        let mut bench = Bench::new(LIMITS);
        let waiter = bench.asleep("a", 1);
        bench.on(WaitEvent::Connection { node: 2, is_up: false });
        let asked = bench.notice("a", 0, 1, withdrawn);
        assert_eq!(asked, [waiter], "one of two that are left: the lease was on a quorum");
        assert_eq!(bench.notice("a", 1, 1, withdrawn), NOBODY);
        bench.refused(waiter, "a", 1);
        assert_eq!(bench.sleeps_until(waiter), bench.now.plus(SETTLE_PAUSE));
        assert_eq!(bench.timer(waiter), [waiter]);
    }
}

/// Changelog: a token's attempt was withdrawn and another one granted; the end of that is no late notice about the
/// first.
#[test]
fn a_lease_that_was_seen_again_may_end_again() {
    let mut bench = Bench::new(LIMITS);
    let waiter = bench.asleep("a", 9);
    assert_eq!((bench.notice("a", 0, 1, true), bench.notice("a", 1, 1, true)), (vec![], vec![waiter]));
    bench.refused(waiter, "a", 1);
    bench.on(WaitEvent::Timer(waiter));
    if bench.queue.asking > 0 {
        bench.refused(waiter, "a", 1);
    }
    assert_eq!(bench.notice("a", 0, 1, false), NOBODY);
    assert_eq!(bench.notice("a", 1, 1, false), [waiter]);
}

/// Changelog: one node's word for a holder is not a quorum's; its end may never be reported.
#[test]
fn a_lease_that_too_few_nodes_confirm_is_asked_about_soon() {
    let mut bench = Bench::new(LIMITS);
    let waiter = bench.enter(&["a"]);
    bench.subscribed("a");
    for tries in 0..30 {
        bench.refused_by(waiter, "a", 1, None, false);
        bench.subscribed("a");
        if bench.queue.asking == 0 {
            assert!(bench.sleeps_until(waiter) <= bench.now.plus(POLL), "after {tries} tries");
            assert_eq!(bench.timer(waiter), [waiter]);
        }
    }
}

#[test]
fn the_loss_and_the_return_of_subscriptions_wake_within_a_poll() {
    let mut bench = Bench::new(LIMITS);
    let waiter = bench.asleep("a", 1);
    bench.on(WaitEvent::Connection { node: 0, is_up: false });
    assert!(bench.sleeps_until(waiter) > bench.now.plus(POLL), "two of three suffice");
    bench.on(WaitEvent::Connection { node: 1, is_up: false });
    assert!(bench.sleeps_until(waiter) <= bench.now.plus(POLL));
    assert_eq!(bench.timer(waiter), [waiter]);
    bench.refused(waiter, "a", 1);
    assert!(bench.sleeps_until(waiter) <= bench.now.plus(POLL + WAKE_JITTER), "it polls while notices may be lost");
}

/// Seed 139959 of the simulation: each of two nodes had reported the end while its connection was away, one after the other.
#[test]
fn each_return_of_a_node_that_may_have_reported_an_end_wakes_within_a_poll() {
    let mut bench = Bench::new(LIMITS);
    let waiter = bench.asleep("a", 1);
    bench.on(WaitEvent::Connection { node: 0, is_up: false });
    assert!(bench.sleeps_until(waiter) > bench.now.plus(POLL));
    bench.on(WaitEvent::Connection { node: 0, is_up: true });
    assert!(bench.sleeps_until(waiter) <= bench.now.plus(POLL));
}

#[test]
fn a_release_hands_over_and_what_is_reported_of_it_later_wakes_nobody() {
    let mut bench = Bench::new(LIMITS);
    let (first, second) = (bench.asleep("a", 1), bench.enter(&["a"]));
    assert_eq!(bench.sent("a", 1, None), [first]);
    assert_eq!(bench.granted(first, 2), NOBODY, "the next one knows the lease");
    let sleeps_until = bench.sleeps_until(second);
    assert!(sleeps_until >= bench.now.plus(ms(60_000)));
    assert_eq!(bench.ended("a", 1), NOBODY);
    for node in 0..NODES {
        assert_eq!(bench.notice("a", node, 1, false), NOBODY);
    }
    assert_eq!(bench.sleeps_until(second), sleeps_until);
    // Its holder extends it meanwhile: the waiter does not ask at the former end.
    bench.on(WaitEvent::HeldUntil(name("a"), bench.now.plus(ms(120_000)), Mode::Exclusive));
    assert_eq!(bench.timer(second), NOBODY);
    assert!(bench.sleeps_until(second) > sleeps_until.plus(ms(50_000)));
}

#[test]
fn a_hand_over_that_failed_is_repeated_when_the_end_is_certain() {
    let mut bench = Bench::new(LIMITS);
    let waiter = bench.asleep("a", 1);
    assert_eq!(bench.sent("a", 1, None), [waiter]);
    assert_eq!(bench.ended("a", 1), NOBODY, "its attempt is under way");
    assert_eq!(bench.refused(waiter, "a", 1), [waiter]);
    bench.refused(waiter, "a", 1);
    bench.on(WaitEvent::LeaseMayHaveEnded(name("a")));
    assert!(bench.sleeps_until(waiter) <= bench.now.plus(SETTLE_PAUSE));
}

#[test]
fn an_instance_yields_once_after_the_maximum_of_hand_overs() {
    let mut bench = Bench::new(LIMITS);
    assert_eq!(bench.queue.handover_plan(&name("a")), HandoverPlan::NoWaiters);
    let waiter = bench.asleep("a", 1);
    for lease in 1..=u64::from(CONSECUTIVE_HANDOVERS_MAX) {
        assert_eq!(bench.queue.handover_plan(&name("a")), HandoverPlan::WakeFirst);
        assert_eq!(bench.sent("a", lease, None), [waiter]);
        bench.refused(waiter, "a", lease + 1);
    }
    assert_eq!(bench.queue.handover_plan(&name("a")), HandoverPlan::AskForOthers);
    assert_eq!(bench.sent("a", 9, Some(true)), NOBODY);
    assert_eq!(bench.sleeps_until(waiter), bench.now.plus(YIELD_PAUSE));
    assert_eq!(bench.ended("a", 9), NOBODY, "only the pause wakes it");
    assert_eq!(bench.queue.handover_plan(&name("a")), HandoverPlan::WakeFirst);
    assert_eq!(bench.timer(waiter), [waiter]);
}

/// Changelog: a caller hangs up while its attempt is under way.
#[test]
fn the_next_waiter_asks_twice_after_one_that_left_during_its_attempt() {
    let mut bench = Bench::new(LIMITS);
    let (first, second) = (bench.enter(&["a"]), bench.enter(&["a"]));
    assert_eq!(bench.on(WaitEvent::Cancel(first)), [second]);
    bench.refused(second, "a", 1);
    assert!(bench.sleeps_until(second) <= bench.now.plus(SETTLE_PAUSE), "the clean-up may have been on its way");
}

#[test]
fn whose_caller_is_away_is_passed_and_comes_back_to_its_place() {
    let mut bench = Bench::new(LIMITS);
    let first = bench.asleep("a", 1);
    let (second, third) = (bench.enter(&["a"]), bench.enter(&["a"]));
    assert_eq!(bench.on(WaitEvent::Absent(first)), [second], "nothing is known of the lease but by asking");
    bench.refused(second, "a", 1);
    assert_eq!((bench.queue.position(first), bench.queue.total_waiters()), (1, 3), "it keeps its place");
    let until = bench.now.plus(ms(600_000));
    assert_eq!(bench.on(WaitEvent::Returned(first, until)), [first], "before those behind it");
    bench.refused(first, "a", 1);
    assert_eq!(bench.ended("a", 1), [first], "the second is no longer first");
    assert_eq!(bench.granted(first, 2), NOBODY);
    assert_eq!(bench.ended("a", 2), [second]);
    // Who is away during its attempt holds the lock for a moment at most.
    assert_eq!(bench.on(WaitEvent::Absent(second)), [third]);
    bench.refused(third, "a", 3);
    assert_eq!(bench.sleeps_until(third), bench.now.plus(SETTLE_PAUSE));
    // An attempt under way goes on when an older one is back; refused, it waits behind that one.
    assert_eq!(bench.timer(third), [third]);
    assert_eq!(bench.on(WaitEvent::Returned(second, until)), [second]);
    bench.refused(third, "a", 3);
    assert_eq!((bench.sleeps_until(third), bench.queue.asking), (until_of(&bench, third), 1));
    bench.on(WaitEvent::Cancel(second));
    bench.on(WaitEvent::Absent(third));
    let once = WaitRequest { admission: Admission::Once, ..Bench::request(&["a"], Mode::Exclusive) };
    assert_eq!(bench.enqueue(once).1.len(), 1, "nobody is there whom it would pass");
    bench.on(WaitEvent::Cancel(third));
    assert!(bench.queue.resources.is_empty() && bench.queue.waiters.len() == 1);
}

#[test]
fn who_comes_from_another_instance_waits_since_it_came_there() {
    let mut bench = Bench::new(LIMITS);
    bench.next = 10;
    let first = bench.asleep("a", 1);
    bench.next = 20;
    let third = bench.enter(&["a", "b"]);
    let mut arrive = |id, names: &[&str]| {
        let request = Bench::request(names, Mode::Exclusive);
        bench.on(WaitEvent::Enqueue(id, request, BootTime::default()))
    };
    assert_eq!(arrive(15, &["b", "a"]), NOBODY, "behind the first");
    assert_eq!(arrive(5, &["a"]), [5], "nothing is known of the lease but by asking");
    bench.refused(5, "a", 1);
    assert_eq!([5, first, 15, third].map(|waiter| bench.queue.position(waiter)), [1, 2, 3, 4]);
    assert_eq!(bench.queue.waiters_of(&name("a"))[0].since, BootTime::default());
    for (waiter, lease) in [(5, 1), (first, 2), (15, 3), (third, 4)] {
        assert_eq!(bench.ended("a", lease), [waiter], "the ones behind it are no longer first");
        assert_eq!(bench.granted(waiter, lease + 1), NOBODY);
    }
}

fn until_of(bench: &Bench, waiter: WaiterId) -> BootTime {
    bench.queue.waiters[&waiter].request.until
}

#[test]
fn a_place_that_another_connection_takes_over_asks_anew() {
    let mut bench = Bench::new(LIMITS);
    let first = bench.enter(&["a"]);
    let second = bench.enter(&["a"]);
    let until = bench.now.plus(ms(600_000));
    assert_eq!(
        bench.on(WaitEvent::Returned(first, until)),
        [first],
        "what the former connection asked for has no answer"
    );
    assert_eq!(bench.queue.asking, 1);
    assert_eq!(bench.granted(first, 1), [second]);
}

#[test]
fn waiters_with_the_token_of_a_granted_request_join_its_lease() {
    let mut bench = Bench::new(LIMITS);
    let with = |number| WaitRequest { token: Some(token(number)), ..Bench::request(&["a"], Mode::Exclusive) };
    let [first, other, same] = [1, 2, 1].map(|number| bench.enqueue(with(number)).0);
    let anonymous = bench.enter(&["a"]);
    for waiter in [other, same] {
        // The present lease may have been its token's; it is not.
        assert_eq!(bench.on(WaitEvent::AttemptFinished(waiter, AttemptOutcome::NotJoined)), NOBODY);
    }
    bench.subscribed("a");
    bench.granted(first, 1);
    assert!(bench.last.contains(&Action::Attempt { waiter: same, joins: true, slots: SlotChoice::default() }));
    let attempts = bench.last.iter().filter(|action| matches!(action, Action::Attempt { .. })).count();
    assert_eq!(attempts, 1, "{other} and {anonymous} do not ask");
    bench.on(WaitEvent::AttemptFinished(same, AttemptOutcome::NotJoined));
    assert_eq!(bench.queue.position(same), 2, "its place is kept");
}

#[test]
fn only_so_many_ask_at_a_time_and_the_others_follow_in_order() {
    let mut bench = Bench::new(LIMITS);
    let waiters: Vec<_> = (0..CONCURRENT_ATTEMPTS_MAX + 3).map(|i| bench.enter(&[&format!("r{i}")])).collect();
    assert_eq!(bench.queue.asking, CONCURRENT_ATTEMPTS_MAX);
    assert_eq!(bench.refused(waiters[0], "r0", 1), [waiters[CONCURRENT_ATTEMPTS_MAX]]);
    assert_eq!(bench.on(WaitEvent::Cancel(waiters[1])), [waiters[CONCURRENT_ATTEMPTS_MAX + 1]]);
    let last = waiters[CONCURRENT_ATTEMPTS_MAX + 2];
    bench.now = BootTime::default().plus(ms(600_000)).plus(POLL);
    bench.on(WaitEvent::Timer(last));
    assert_eq!(bench.reason(), Some(&RefuseReason::NotAsked), "its time is over, and the others still ask");
}

#[test]
fn a_wait_that_ends_behind_others_keeps_its_permit_until_it_is_answered() {
    let mut bench = Bench::new(LIMITS);
    let (first, second) = (bench.asleep("a", 1), bench.enter(&["a"]));
    bench.now = BootTime::default().plus(ms(600_000));
    bench.on(WaitEvent::Timer(second));
    assert_eq!(bench.reason(), Some(&RefuseReason::TimedOut { position: 2 }));
    assert_eq!((bench.queue.asking, bench.queue.waiter_count(&name("a"))), (1, 1));
    bench.on(WaitEvent::Cancel(second));
    assert_eq!(bench.queue.asking, 0);
    assert_eq!(bench.on(WaitEvent::Timer(first)), [first], "the first asks once more");
    bench.refused(first, "a", 1);
    assert_eq!(bench.reason(), Some(&RefuseReason::LastAttempt));
}

#[test]
fn a_waiter_for_several_resources_asks_when_it_is_first_for_all_and_none_blocks_the_other() {
    let mut bench = Bench::new(LIMITS);
    let a = bench.enter(&["a"]);
    let (ab, asked) = bench.enqueue(Bench::request(&["a", "b"], Mode::Exclusive));
    assert_eq!(asked, NOBODY, "it is second for a");
    let (ba, asked) = bench.enqueue(Bench::request(&["b", "a"], Mode::Exclusive));
    assert_eq!((asked, bench.queue.position(ba)), (vec![], 3));
    assert_eq!(bench.granted(a, 1), [ab]);
    assert_eq!(bench.granted(ab, 2), [ba]);
    assert_eq!(bench.granted(ba, 3), NOBODY);
    assert!(bench.queue.resources.is_empty());
}

#[test]
fn a_run_of_shared_waiters_is_served_together_and_an_exclusive_one_waits_for_one_phase() {
    let mut bench = Bench::new(LIMITS);
    let holder = bench.asleep("a", 1);
    let (r1, r2) = (bench.enter_shared(&["a"]), bench.enter_shared(&["a"]));
    let (writer, late) = (bench.enter(&["a"]), bench.enter_shared(&["a"]));
    bench.sent("a", 1, None);
    bench.granted(holder, 2);
    assert_eq!(bench.sent("a", 2, None), [r1, r2]);
    assert_eq!(bench.granted(r1, 3), NOBODY);
    let (r3, asked) = bench.enqueue(Bench::request(&["a"], Mode::Shared));
    assert_eq!(asked, NOBODY, "the writer is before it");
    assert_eq!(bench.granted(r2, 4), NOBODY, "the writer knows that shared leases stand");
    assert!(bench.sleeps_until(writer) >= bench.now.plus(ms(60_000)));
    assert_eq!(bench.ended("a", 4), [writer]);
    bench.granted(writer, 5);
    assert_eq!(bench.ended("a", 5), [late, r3]);
}

#[test]
fn as_many_ask_as_there_are_permits_and_the_end_of_one_wakes_one() {
    let mut bench = Bench::new(LIMITS);
    let waiters: Vec<_> = (0..4).map(|_| bench.enter_for_permit("a", 2)).collect();
    assert_eq!(bench.queue.asking, 2, "the third is not among the first");
    bench.granted(waiters[0], 1);
    assert_eq!(bench.queue.asking, 2, "the next one does not know whether one is free");
    bench.granted(waiters[1], 2);
    bench.subscribed("a");
    for _ in 0..2 {
        bench.refused_for_permit(waiters[2], "a", &[1, 2]);
        bench.refused_for_permit(waiters[3], "a", &[1, 2]);
    }
    assert_eq!(bench.queue.asking, 0);
    assert!(waiters[2..].iter().all(|waiter| bench.sleeps_until(*waiter) > bench.now.plus(ms(59_000))));
    let late = bench.enter_for_permit("a", 2);
    assert_eq!((bench.notice("a", 0, 1, false), bench.notice("a", 1, 1, false)), (vec![], vec![waiters[2]]));
    assert_eq!(
        bench.granted(waiters[2], 3),
        NOBODY,
        "one was free; the one that is first now sleeps as the other does"
    );
    assert_eq!(bench.sleeps_until(late), bench.sleeps_until(waiters[3]).plus(SETTLE_PAUSE));
    assert_eq!(bench.ended("a", 2), [waiters[3]]);
    // It leaves with the wake: the next one asks instead.
    assert_eq!(bench.on(WaitEvent::Cancel(waiters[3])), NOBODY);
    assert_eq!(bench.sleeps_until(late), bench.now.plus(SETTLE_PAUSE), "the clean-up may be on its way");
}

/// Two waiters of an instance, two permits of others. A notice says which is free: one waiter asks for that one; whoever is
/// woken without a free one asks nobody.
#[test]
fn a_waiter_asks_for_the_slot_that_was_freed_and_for_none_that_another_asks_for() {
    let mut bench = Bench::new(LIMITS);
    let (first, second) = (bench.enter_for_permit("a", 2), bench.enter_for_permit("a", 2));
    bench.subscribed("a");
    let full = |leases: [u64; 2]| {
        let taken: SlotSet = [0, 1].into_iter().collect();
        let blocker = |(slot, lease): (u8, u64)| Blocker {
            resource: name("a"),
            mode: permit(2),
            lease: Some(token(lease)),
            party: None,
            slot: Some(slot),
            taken,
            is_confirmed: true,
            is_intent: false,
            free_in: Some(ms(60_000)),
        };
        AttemptOutcome::Held((0..2).zip(leases).map(blocker).collect())
    };
    for waiter in [first, second, first, second] {
        bench.on(WaitEvent::AttemptFinished(waiter, full([1, 2])));
    }
    assert_eq!(bench.queue.asking, 0);
    let choice = |bench: &Bench| {
        bench.last.iter().find_map(|action| match action {
            Action::Attempt { slots, .. } => Some((slots.slot, slots.avoid.iter().collect::<Vec<_>>())),
            _ => None,
        })
    };
    let freed = |bench: &mut Bench, lease, slot| {
        let notice = Notice { lease: Some(tag(lease)), withdrawn: false, slot: Some(slot) };
        (0..2).flat_map(|node| bench.on(WaitEvent::Notice(name("a"), node, notice))).collect::<Vec<_>>()
    };
    assert_eq!(freed(&mut bench, 2, 1), [first]);
    assert_eq!(choice(&bench), Some((Some(1), vec![])));
    // Another permit ends meanwhile: the other one asks for it, and for no other.
    assert_eq!(freed(&mut bench, 1, 0), [second]);
    assert_eq!(choice(&bench), Some((Some(0), vec![1])));
    // Others were faster. What wakes without a free permit makes nobody ask.
    bench.on(WaitEvent::AttemptFinished(first, full([3, 4])));
    bench.on(WaitEvent::AttemptFinished(second, full([3, 4])));
    assert_eq!(bench.timer(first), [first], "a permit may have run out");
    assert_eq!(choice(&bench), Some((None, vec![])), "any: none is known to be free");
    let (at, until) = (bench.now, bench.now.plus(ms(60_000)));
    let granted = AttemptOutcome::Granted { lease: token(5), slot: Some(0), until };
    assert_eq!(bench.on(WaitEvent::AttemptFinished(first, granted)), NOBODY, "the other one has no free permit");
    assert_eq!(bench.sleeps_until(second), at.plus(POLL), "in case that a notice was lost");
    // Where it is not known which one has ended, it asks for any.
    bench.on(WaitEvent::LeaseMayHaveEnded(name("a")));
    assert_eq!(bench.timer(second), [second]);
}

/// Whose intents the last event left, or withdrew.
fn intents(bench: &Bench) -> Vec<(WaiterId, bool)> {
    let intent = |action: &Action| match action {
        Action::Intent { waiter, is_withdrawn, .. } => Some((*waiter, *is_withdrawn)),
        _ => None,
    };
    bench.last.iter().filter_map(intent).collect()
}

#[test]
fn a_writer_that_waits_for_readers_leaves_its_intent_and_takes_it_back() {
    let mut bench = Bench::new(LIMITS);
    let writer = bench.enter(&["a"]);
    bench.subscribed("a");
    for _ in 0..2 {
        bench.refused_as(writer, "a", (1, Mode::Shared), None, true);
    }
    assert_eq!((intents(&bench), bench.sleeps_until(writer)), (vec![(writer, false)], bench.now.plus(INTENT_RENEWED)));
    assert_eq!(bench.timer(writer), NOBODY, "it only leaves it again");
    assert_eq!(intents(&bench), [(writer, false)]);
    assert_eq!(bench.ended("a", 1), [writer]);
    bench.granted(writer, 2);
    assert_eq!(intents(&bench), [(writer, true)]);
    // Nobody else leaves one: readers let each other in, and permits end one by one.
    for mode in [Mode::Shared, permit(2)] {
        let other = bench.enqueue(Bench::request(&["b"], mode)).0;
        bench.refused_as(other, "b", (3, if mode == Mode::Shared { permit(2) } else { Mode::Shared }), None, true);
        assert_eq!(intents(&bench), []);
        bench.on(WaitEvent::Cancel(other));
    }
    let held = bench.enter(&["c"]);
    bench.refused(held, "c", 4);
    assert_eq!(intents(&bench), [], "one exclusive lease lets nobody in");
}

#[test]
fn a_set_leaves_its_intent_whatever_holds_what_it_wants() {
    for mode in [Mode::Exclusive, Mode::Shared] {
        let mut bench = Bench::new(LIMITS);
        let set = bench.enqueue(Bench::request(&["a", "b"], mode)).0;
        bench.subscribed("a");
        bench.refused(set, "a", 1);
        assert_eq!(intents(&bench), [(set, false)], "{mode:?}: callers elsewhere could take one after the other");
        let intent = bench.last.iter().find_map(|action| match action {
            Action::Intent { intent, .. } => Some((intent.resources.len(), intent.mode, intent.since)),
            _ => None,
        });
        assert_eq!(intent, Some((2, mode, bench.queue.waiters[&set].since)));
        bench.on(WaitEvent::Cancel(set));
        assert_eq!(intents(&bench), [(set, true)], "{mode:?}");
    }
    // Of several that could be held together the oldest does it for all.
    let mut bench = Bench::new(LIMITS);
    let (_, second) = (bench.enter_shared(&["a", "b"]), bench.enter_shared(&["a", "b"]));
    bench.refused(second, "a", 1);
    assert_eq!(intents(&bench), []);
}

#[test]
fn who_meets_an_intent_leaves_its_own_and_asks_once_again_at_once() {
    for mode in [Mode::Exclusive, Mode::Shared] {
        let mut bench = Bench::new(LIMITS);
        let waiter = bench.enqueue(Bench::request(&["a"], mode)).0;
        let meets = |bench: &mut Bench| {
            let blocker = Blocker {
                resource: name("a"),
                mode: Mode::Exclusive,
                lease: None,
                party: None,
                slot: None,
                taken: SlotSet::default(),
                is_confirmed: true,
                is_intent: true,
                free_in: Some(ms(2_000)),
            };
            bench.on(WaitEvent::AttemptFinished(waiter, AttemptOutcome::Held(vec![blocker])))
        };
        bench.subscribed("a");
        assert_eq!(meets(&mut bench), [waiter], "it was not subscribed when it asked");
        meets(&mut bench);
        assert_eq!(intents(&bench), [(waiter, false)], "{mode:?}");
        assert_eq!(bench.sleeps_until(waiter), bench.now.plus(SETTLE_PAUSE), "its intent may be in place of the other");
        assert_eq!(bench.timer(waiter), [waiter]);
        meets(&mut bench);
        assert!(bench.sleeps_until(waiter) > bench.now.plus(SETTLE_PAUSE), "{mode:?}: the other has waited longer");
        assert_eq!(bench.timer(waiter), NOBODY);
        assert_eq!(intents(&bench), [(waiter, false)], "{mode:?}: left again");
    }
}

#[test]
fn what_ends_before_permits_wakes_all_who_want_one() {
    let mut bench = Bench::new(LIMITS);
    let (first, second) = (bench.enter_for_permit("a", 2), bench.enter_for_permit("a", 2));
    bench.subscribed("a");
    bench.refused(first, "a", 9);
    bench.refused(second, "a", 9);
    for waiter in [first, second] {
        if bench.sleeps_until(waiter) <= bench.now {
            bench.timer(waiter);
        }
    }
    while bench.queue.asking > 0 {
        bench.refused(first, "a", 9);
        bench.refused(second, "a", 9);
    }
    assert_eq!(bench.ended("a", 9), [first, second], "both can be granted");
    // Who wants another number of them is answered, though they are held.
    bench.granted(first, 1);
    bench.granted(second, 2);
    let (other, asked) = bench.enqueue(Bench::request(&["a"], permit(3)));
    assert_eq!(asked, [other]);
    bench.on(WaitEvent::AttemptFinished(other, AttemptOutcome::Final));
    assert_eq!(bench.reason(), Some(&RefuseReason::LastAttempt));
}

#[test]
fn a_shared_request_that_does_not_wait_goes_with_shared_waiters_and_past_nobody_else() {
    let mut bench = Bench::new(LIMITS);
    let once = |mode| WaitRequest { admission: Admission::Once, ..Bench::request(&["a"], mode) };
    bench.enter_shared(&["a"]);
    assert_eq!(bench.enqueue(once(Mode::Shared)).1.len(), 1);
    for other in [Mode::Exclusive, permit(2)] {
        bench.enqueue(once(other));
        assert_eq!(bench.reason(), Some(&RefuseReason::OthersWait));
    }
    bench.enter(&["a"]);
    bench.enqueue(once(Mode::Shared));
    assert_eq!(bench.reason(), Some(&RefuseReason::OthersWait), "a writer waits");
}

/// `ann` and `bob` read a, `cat` has b; `cat` wants to write a and `bob` wants b.
#[test]
fn a_deadlock_through_one_of_several_readers_is_found_and_one_through_permits_is_none() {
    for mode in [Mode::Shared, permit(2)] {
        let mut bench = Bench::new(LIMITS);
        let wanted = if mode == Mode::Shared { Mode::Exclusive } else { mode };
        let cat = bench.enqueue(WaitRequest { mode: wanted, ..with_owner("a", "cat", true) }).0;
        let reader = |lease, owner| Blocker {
            resource: name("a"),
            mode,
            lease: Some(token(lease)),
            party: Party::new("", owner),
            slot: None,
            taken: SlotSet::default(),
            is_confirmed: true,
            is_intent: false,
            free_in: Some(ms(60_000)),
        };
        let readers = vec![reader(1, "ann"), reader(2, "bob")];
        bench.on(WaitEvent::AttemptFinished(cat, AttemptOutcome::Held(readers)));
        let bob = bench.enqueue(with_owner("b", "bob", true)).0;
        bench.refused_by(bob, "b", 3, Some("cat"), true);
        let is_checked =
            bench.last.iter().any(|action| matches!(action, Action::CheckCycle(waiter, _) if *waiter == bob));
        assert_eq!(is_checked, mode == Mode::Shared, "{mode:?}: any permit that ends will do");
    }
}

#[test]
fn the_oldest_ticket_and_the_oldest_request_are_known() {
    let mut bench = Bench::new(LIMITS);
    bench.enqueue(WaitRequest { is_ticket: true, ..Bench::request(&["a"], Mode::Exclusive) });
    let ticket = bench.queue.oldest_since_of(true);
    assert_eq!((ticket, bench.queue.oldest_since_of(false)), (bench.queue.oldest_since(), None));
    bench.now = bench.now.plus(ms(5));
    bench.enqueue(Bench::request(&["a"], Mode::Exclusive));
    assert_eq!((bench.queue.oldest_since_of(true), bench.queue.oldest_since_of(false)), (ticket, Some(bench.now)));
    assert_eq!(bench.queue.all_waiters().iter().map(|(_, _, one)| one.is_ticket).collect::<Vec<_>>(), [true, false]);
}

fn with_owner(resource: &str, owner: &str, refuses_deadlock: bool) -> WaitRequest {
    let party = Party::new("", owner);
    WaitRequest { party, refuses_deadlock, ..Bench::request(&[resource], Mode::Exclusive) }
}

/// `ann` has a and waits for b, `bob` has b and waits for a.
fn deadlock(refuses: bool) -> (Bench, WaiterId, Vec<WaitEdge>) {
    let mut bench = Bench::new(LIMITS);
    let ann = bench.enqueue(with_owner("b", "ann", refuses)).0;
    bench.refused_by(ann, "b", 2, Some("bob"), true);
    let bob = bench.enqueue(with_owner("a", "bob", refuses)).0;
    bench.refused_by(bob, "a", 1, Some("ann"), true);
    let cycle = bench.last.iter().find_map(|action| match action {
        Action::CheckCycle(waiter, cycle) if *waiter == bob => Some(cycle.clone()),
        _ => None,
    });
    (bench, bob, cycle.expect("the newest of the cycle checks"))
}

#[test]
fn the_newest_of_a_confirmed_deadlock_is_refused_if_it_wants_to_and_reported_otherwise() {
    let (mut bench, bob, cycle) = deadlock(true);
    bench.on(WaitEvent::CycleChecked { waiter: bob, cycle: cycle.clone(), is_confirmed: true, may_refuse: true });
    assert_eq!(bench.reason(), Some(&RefuseReason::Deadlock(cycle)));
    let (mut bench, bob, cycle) = deadlock(false);
    for is_first in [true, false] {
        bench.on(WaitEvent::CycleChecked { waiter: bob, cycle: cycle.clone(), is_confirmed: true, may_refuse: true });
        assert_eq!(bench.last.contains(&Action::ReportDeadlock(cycle.clone())), is_first, "once");
        assert!(bench.reason().is_none() && bench.queue.total_waiters() == 2);
    }
}

/// Changelog: a deadlock that too few nodes confirmed in time was never checked again.
#[test]
fn a_cycle_that_is_not_confirmed_is_checked_again_while_it_is_suspected() {
    let (mut bench, bob, cycle) = deadlock(true);
    bench.on(WaitEvent::CycleChecked { waiter: bob, cycle: cycle.clone(), is_confirmed: false, may_refuse: true });
    assert!(bench.reason().is_none() && bench.sleeps_until(bob) <= bench.now.plus(POLL));
    bench.timer(bob);
    if bench.queue.asking > 0 {
        bench.refused_by(bob, "a", 1, Some("ann"), true);
        bench.timer(bob);
    }
    assert!(bench.last.iter().any(|action| matches!(action, Action::CheckCycle(_, _))));
    // A waiter of the cycle leaves while the nodes are asked.
    bench.on(WaitEvent::Cancel(0));
    bench.on(WaitEvent::CycleChecked { waiter: bob, cycle, is_confirmed: true, may_refuse: true });
    assert!(bench.reason().is_none());
}

/// Changelog: notices that arrived while the waiter checked a deadlock were lost.
#[test]
fn a_notice_during_the_check_of_a_deadlock_is_not_lost() {
    let (mut bench, bob, cycle) = deadlock(true);
    assert_eq!((bench.notice("a", 0, 1, false), bench.notice("a", 1, 1, false)), (vec![], vec![]));
    assert_eq!(bench.on(WaitEvent::CycleChecked { waiter: bob, cycle, is_confirmed: false, may_refuse: true }), [bob]);
}

/// An owner is a label: only waiters and leases of one principal are taken for one caller.
#[test]
fn owners_of_different_principals_are_different_parties() {
    let [ann, dep] = ["ann", "dep"].map(|principal| Party::new(principal, "ci").expect("an owner"));
    assert_ne!(ann, dep);
    assert_eq!((ann.owner(), Party::new("ann", "")), ("ci", None));
}

/// What happens at random, and the world that it happens in: who holds what.
struct World {
    bench: Bench,
    /// By resource: the leases, each with its mode.
    held: HashMap<&'static str, Vec<(u64, Mode)>>,
    asking: Vec<WaiterId>,
    wants: HashMap<WaiterId, WaitRequest>,
    /// Whose callers are away.
    absent: HashSet<WaiterId>,
    leases: u64,
}

/// No wait ends before.
const END: BootTime = BootTime::from_nanos(u64::MAX / 2);

const NAMES: [&str; 3] = ["a", "b", "c"];

impl World {
    fn is_free_for(&self, request: &WaitRequest) -> Option<&'static str> {
        NAMES.into_iter().filter(|r| request.resources.contains(&name(r))).find(|r| {
            let held = self.held.get(r).map(Vec::as_slice).unwrap_or_default();
            let limit = request.mode.limit().map_or(usize::MAX, |limit| limit.get().into());
            held.iter().any(|(_, mode)| !mode.is_compatible(request.mode)) || held.len() >= limit
        })
    }

    fn event(&mut self, kind: u8, pick: prop::sample::Index) {
        let waiting: Vec<WaiterId> = {
            let mut all: Vec<_> = self.wants.keys().copied().collect();
            all.sort_unstable();
            all
        };
        let resource = NAMES[pick.index(3)];
        match kind {
            0..4 => {
                let names = [&["a"][..], &["b"], &["c"], &["a", "b"], &["b", "c"], &["a", "b", "c"]][pick.index(6)];
                let mode = match pick.index(9) {
                    0..3 => Mode::Shared,
                    3..5 if names.len() == 1 => permit(2),
                    _ => Mode::Exclusive,
                };
                let request = WaitRequest { until: END, ..Bench::request(names, mode) };
                let (waiter, _) = self.bench.enqueue(request.clone());
                self.wants.insert(waiter, request);
            }
            4 if pick.index(3) > 0 && !waiting.is_empty() => {
                let waiter = waiting[pick.index(waiting.len())];
                if self.absent.remove(&waiter) {
                    self.bench.on(WaitEvent::Returned(waiter, END));
                } else {
                    self.asking.retain(|other| *other != waiter);
                    self.absent.insert(waiter);
                    self.bench.on(WaitEvent::Absent(waiter));
                }
            }
            4 if !waiting.is_empty() => {
                let waiter = waiting[pick.index(waiting.len())];
                self.wants.remove(&waiter);
                self.absent.remove(&waiter);
                self.asking.retain(|other| *other != waiter);
                self.bench.on(WaitEvent::Cancel(waiter));
            }
            5..8 if !self.asking.is_empty() => {
                let waiter = self.asking.remove(pick.index(self.asking.len()));
                let request = self.wants[&waiter].clone();
                if let Some(blocked) = self.is_free_for(&request) {
                    let lease = self.held[blocked][0];
                    self.bench.refused_as(waiter, blocked, lease, None, true);
                } else {
                    self.leases += 1;
                    for r in NAMES.into_iter().filter(|r| request.resources.contains(&name(r))) {
                        self.held.entry(r).or_default().push((self.leases, request.mode));
                    }
                    self.wants.remove(&waiter);
                    let lease = self.leases;
                    self.bench.granted(waiter, lease);
                    assert!(self.bench.last.contains(&Action::Grant(waiter)));
                }
            }
            8..10 => {
                let Some((lease, _)) = self.held.get_mut(resource).and_then(Vec::pop) else { return };
                let here = pick.index(2) == 0;
                if here {
                    self.bench.sent(resource, lease, None);
                    self.note();
                    self.bench.ended(resource, lease);
                }
                for node in 0..NODES {
                    self.note();
                    self.bench.notice(resource, node, lease, false);
                }
            }
            10 => drop(self.bench.subscribed(resource)),
            11 => drop(self.bench.on(WaitEvent::Connection { node: pick.index(NODES), is_up: pick.index(5) < 4 })),
            _ if !waiting.is_empty() => {
                let waiter = waiting[pick.index(waiting.len())];
                if !self.asking.contains(&waiter) && !self.absent.contains(&waiter) && self.bench.armed[&waiter] < END {
                    self.bench.timer(waiter);
                }
            }
            _ => {}
        }
    }

    /// Takes over who asks now, and checks that nobody is overtaken.
    fn note(&mut self) {
        for action in std::mem::take(&mut self.bench.unseen) {
            let Action::Attempt { waiter, joins: false, .. } = action else { continue };
            assert!(!self.asking.contains(&waiter), "{waiter} asks twice at once");
            let own = self.wants[&waiter].clone();
            assert!(!self.absent.contains(&waiter), "{waiter} asks for a caller who is away");
            let blocks = |(id, other): (&WaiterId, &WaitRequest)| {
                *id < waiter
                    && !self.absent.contains(id)
                    && !own.mode.is_compatible(other.mode)
                    && other.resources.iter().any(|r| own.resources.contains(r))
            };
            assert!(!self.wants.iter().any(blocks), "{waiter} overtakes");
            self.asking.push(waiter);
        }
    }

    fn check(&self) {
        let queue = &self.bench.queue;
        assert_eq!(queue.asking, self.asking.len());
        assert_eq!((queue.queued, queue.waiters.len()), (self.wants.len(), self.wants.len()));
        for (resource, known) in &queue.resources {
            assert!(known.order.iter().zip(known.order.iter().skip(1)).all(|(a, b)| a < b) && !known.order.is_empty());
            assert!(known.order.iter().all(|id| self.wants[id].resources.contains(resource)));
        }
        assert_eq!(
            usize::try_from(self.bench.subscriptions),
            Ok(queue.resources.values().filter(|known| known.wants_subscription).count())
        );
        for (id, waiter) in &queue.waiters {
            let is_asking = matches!(waiter.activity, WaiterActivity::Asking { .. });
            assert_eq!(is_asking, self.asking.contains(id));
            assert_eq!(waiter.is_absent, self.absent.contains(id));
            if waiter.is_absent {
                continue;
            }
            assert!(is_asking || self.bench.armed[id] <= waiter.request.until.plus(POLL), "{id} sleeps for ever");
            // Nobody sleeps beside free resources: every end was reported by all nodes, and to be late is to poll.
            let is_free = self.is_free_for(&waiter.request).is_none();
            let soon = self.bench.now.plus(POLL + WAKE_JITTER + SETTLE_PAUSE);
            assert!(
                !is_free || !waiter.is_first || is_asking || self.bench.armed[id] <= soon,
                "{id} sleeps: {waiter:?}"
            );
        }
    }
}

proptest! {
    #[test]
    fn whatever_happens_the_order_is_kept_and_nobody_is_forgotten(
        events in proptest::collection::vec((0u8..14, any::<prop::sample::Index>()), 1..120)
    ) {
        let (held, asking, wants, absent) = (HashMap::new(), Vec::new(), HashMap::new(), HashSet::new());
        let mut world = World { bench: Bench::new(LIMITS), held, asking, wants, absent, leases: 0 };
        for (kind, pick) in events {
            world.event(kind, pick);
            world.note();
            world.check();
        }
        for waiter in world.wants.keys().copied().collect::<Vec<_>>() {
            world.bench.on(WaitEvent::Cancel(waiter));
        }
        let queue = &world.bench.queue;
        prop_assert!(queue.waiters.is_empty() && queue.resources.is_empty() && queue.due.is_empty());
        prop_assert_eq!((queue.asking, queue.queued, world.bench.subscriptions), (0, 0, 0));
    }
}

/// Each planted bug of the queue fails one of the lists above.
#[test]
fn planted_bugs_are_found_by_lists_of_events() {
    use Mutant::*;
    const LISTS: &[(Mutant, fn())] = &[
        (LeaverStays, waiters_ask_in_order_and_one_that_leaves_from_the_middle_wakes_nobody),
        (LeaverCallsNobody, waiters_ask_in_order_and_one_that_leaves_from_the_middle_wakes_nobody),
        (GrantCallsNobody, waiters_ask_in_order_and_one_that_leaves_from_the_middle_wakes_nobody),
        (NewestFirst, waiters_ask_in_order_and_one_that_leaves_from_the_middle_wakes_nobody),
        (EveryoneContends, waiters_ask_in_order_and_one_that_leaves_from_the_middle_wakes_nobody),
        (TimerIgnored, a_request_that_does_not_wait_asks_beside_an_empty_queue_only_and_again_after_a_split_vote),
        (ListensTooLate, a_waiter_asks_once_more_when_its_subscription_is_confirmed),
        (SubscribedByOne, a_waiter_asks_once_more_when_its_subscription_is_confirmed),
        (NoticesIgnored, notices_from_a_quorum_wake_at_once_and_fewer_after_a_pause),
        (WakeWhileAskingLost, the_next_waiter_asks_twice_after_one_that_left_during_its_attempt),
        (EndsCountOnce, a_lease_that_was_seen_again_may_end_again),
        (HolderUnconfirmed, a_lease_that_too_few_nodes_confirm_is_asked_about_soon),
        (SetLeavesNoIntent, a_set_leaves_its_intent_whatever_holds_what_it_wants),
        (SubscriptionLossUnnoticed, the_loss_and_the_return_of_subscriptions_wake_within_a_poll),
        (EndWakesNobody, a_release_hands_over_and_what_is_reported_of_it_later_wakes_nobody),
        (AbsentForgotten, whose_caller_is_away_is_passed_and_comes_back_to_its_place),
        (AbsentAsks, whose_caller_is_away_is_passed_and_comes_back_to_its_place),
        (ReturnedIsSecond, whose_caller_is_away_is_passed_and_comes_back_to_its_place),
        (MovedIsLast, who_comes_from_another_instance_waits_since_it_came_there),
        (DeadlockUnnoticed, the_newest_of_a_confirmed_deadlock_is_refused_if_it_wants_to_and_reported_otherwise),
        (DeadlockForgotten, a_cycle_that_is_not_confirmed_is_checked_again_while_it_is_suspected),
    ];
    // The other two are the manager's and the driver's: `src/manager/waiting_tests.rs`.
    let is_listed = |bug: &Mutant| LISTS.iter().any(|(listed, _)| listed == bug);
    let elsewhere = |bug: &&Mutant| matches!(bug, GrantUnanswered | DeadlockUnverified);
    let all = mutant::FOUND_BY_LISTS.iter().chain(mutant::FOUND_IN_QUEUES);
    assert_eq!(all.filter(|bug| !is_listed(bug)).filter(|bug| !elsewhere(bug)).count(), 0);
    for (bug, list) in LISTS {
        let before = mutant::plant(Some(*bug), false);
        let found = std::panic::catch_unwind(list).is_err();
        mutant::restore(before);
        assert!(found, "{bug:?} is not found");
    }
}
