//! The waiting room on its own: order, bounds, and which news wakes whom.

use super::*;
use futures_util::FutureExt;
use proptest::prelude::*;

const NOW: BootTime = BootTime::from_nanos(0);

fn name(text: &str) -> ResourceName {
    ResourceName::parse(text).expect("valid")
}

fn room(per_resource: usize, total: usize) -> WaitQueues {
    WaitQueues::new(WaitLimits { per_resource, total, detects_deadlocks: true })
}

fn enter(room: &WaitQueues, resource: &ResourceName) -> Result<Ticket, Full> {
    room.enter(resource, "", None, NOW)
}

const NOW_RING: Ring = super::NOW;

fn tag(n: u32) -> Option<LeaseTag> {
    Some(LeaseTag::of(&TokenHash::parse(&format!("{n:08x}").repeat(8)).expect("hex")))
}

fn rung(ticket: &Ticket) -> Option<Ring> {
    match ticket.called().now_or_never()? {
        Call::Ring(ring) => Some(ring),
        Call::Suspect => panic!("nobody has a name"),
    }
}

fn has_turn(ticket: &Ticket) -> bool {
    ticket.turn().now_or_never().is_some()
}

#[test]
fn the_head_has_its_turn_and_the_others_follow_in_order() {
    let (room, a) = (room(10, 10), name("a"));
    let mut tickets: VecDeque<Ticket> = (0..4).map(|_| enter(&room, &a).expect("room")).collect();
    while let Some(head) = tickets.pop_front() {
        assert!(has_turn(&head));
        assert!(tickets.iter().all(|t| !has_turn(t)));
        drop(head);
    }
    assert_eq!((room.waiting(&a), room.waiting_in_all()), (0, 0));
    assert!(room.queues().is_empty());
}

#[test]
fn one_who_leaves_from_the_middle_wakes_nobody() {
    let (room, a) = (room(10, 10), name("a"));
    let tickets: Vec<Ticket> = (0..3).map(|_| enter(&room, &a).expect("room")).collect();
    let [first, middle, last] = <[Ticket; 3]>::try_from(tickets).ok().expect("three");
    drop(middle);
    assert!(!has_turn(&last));
    assert_eq!(last.position(), 2);
    drop(first);
    assert!(has_turn(&last));
}

#[test]
fn a_release_wakes_the_head_only_and_once() {
    let (room, a) = (room(10, 10), name("a"));
    let (head, next) = (enter(&room, &a).expect("room"), enter(&room, &a).expect("room"));
    room.freed(&a, tag(1));
    assert_eq!((rung(&head), rung(&next)), (Some(NOW_RING), None));
    room.freed(&a, tag(1));
    assert_eq!(rung(&head), None, "the same lease ends once");
    room.freed(&a, tag(2));
    assert_eq!(rung(&head), Some(NOW_RING));
}

#[test]
fn notices_of_a_quorum_wake_at_once_and_fewer_after_a_pause() {
    let (room, a) = (room(10, 10), name("a"));
    let head = enter(&room, &a).expect("room");
    let tell = |node, lease, withdrawn| {
        room.notice(&a, node, Notice { lease: tag(lease), withdrawn }, Needed { ended: 3, withdrawn: 3 });
        rung(&head)
    };
    assert_eq!(tell(0, 1, false), Some(Ring(SETTLE)));
    assert_eq!(tell(0, 1, false), None, "one node is one voice");
    assert_eq!(tell(1, 1, false), None);
    assert_eq!(tell(4, 1, false), Some(NOW_RING));
    assert_eq!(tell(3, 1, false), None, "the rest of the same release wakes nobody");
    // A withdrawn attempt that had fewer than a quorum was nobody's lease.
    assert_eq!((tell(0, 2, true), tell(1, 2, true)), (None, None));
    assert_eq!(tell(2, 2, true), Some(NOW_RING));
}

#[test]
fn late_news_of_the_lease_before_do_not_wake_the_next_in_line() {
    let (room, a) = (room(10, 10), name("a"));
    let (head, next) = (enter(&room, &a).expect("room"), enter(&room, &a).expect("room"));
    head.keep(Box::new(()));
    room.handing_over(&a, tag(1).expect("some"), false);
    assert_eq!(rung(&head), Some(NOW_RING));
    head.granted(BootTime::from_nanos(9));
    assert!(has_turn(&next));
    assert_eq!(next.taken_until(), Some(BootTime::from_nanos(9)));
    room.freed(&a, tag(1));
    for node in 0..5 {
        room.notice(&a, node, Notice { lease: tag(1), withdrawn: false }, Needed { ended: 3, withdrawn: 3 });
    }
    assert_eq!((rung(&next), next.taken_until()), (None, Some(BootTime::from_nanos(9))));
}

#[test]
fn a_hand_over_that_failed_is_repeated_when_the_end_is_certain() {
    let (room, a) = (room(10, 10), name("a"));
    let head = enter(&room, &a).expect("room");
    room.handing_over(&a, tag(1).expect("some"), false);
    assert_eq!(rung(&head), Some(NOW_RING));
    room.freed(&a, tag(1));
    assert_eq!(rung(&head), Some(NOW_RING));
    room.freed(&a, tag(1));
    assert_eq!(rung(&head), None);
}

#[test]
fn without_a_subscription_no_lease_is_waited_out_unseen() {
    let (room, a) = (room(10, 10), name("a"));
    let (head, next) = (enter(&room, &a).expect("room"), enter(&room, &a).expect("room"));
    head.granted(BootTime::from_nanos(9));
    assert_eq!(next.taken_until(), None);
}

#[test]
fn one_who_leaves_in_the_middle_of_a_try_has_the_next_called_again() {
    let (room, a) = (room(10, 10), name("a"));
    let (mut head, next) = (enter(&room, &a).expect("room"), enter(&room, &a).expect("room"));
    head.trying(true);
    drop(head);
    assert!(has_turn(&next));
    assert_eq!(rung(&next), Some(Ring(SETTLE)));
}

/// A token's attempt was withdrawn, and another attempt of it was granted: the end of that is no late
/// news of the first.
#[test]
fn a_lease_that_is_there_again_may_end_again() {
    let (room, a) = (room(10, 10), name("a"));
    let token = TokenHash::parse(&"0000000b".repeat(8)).expect("hex");
    let needed = Needed { ended: 2, withdrawn: 2 };
    let tell = |withdrawn| {
        for node in 0..2 {
            room.notice(&a, node, Notice { lease: tag(11), withdrawn }, needed);
        }
    };
    let head = enter(&room, &a).expect("room");
    tell(true);
    assert_eq!(rung(&head), Some(NOW_RING));
    tell(true);
    assert_eq!(rung(&head), None, "late news");
    room.held_by(&a, "", &token, true);
    tell(false);
    assert_eq!(rung(&head), Some(NOW_RING));
    // The same where the first end led to a grant here.
    let next = enter(&room, &a).expect("room");
    head.granted(NOW);
    tell(false);
    assert_eq!(rung(&next), None, "late news");
    room.held_by(&a, "", &token, true);
    room.freed(&a, tag(11));
    assert_eq!(rung(&next), Some(NOW_RING));
}

/// One of three nodes is dead, so that the first notice wakes the head. Its try meets the lease on the
/// node that is late, and that one's notice comes before the refusal is read.
#[test]
fn news_that_come_while_the_head_tries_are_not_lost() {
    let (room, a) = (room(10, 10), name("a"));
    let token = TokenHash::parse(&"0000000b".repeat(8)).expect("hex");
    let tell = |node| {
        let needed = Needed { ended: 1, withdrawn: 2 };
        room.notice(&a, node, Notice { lease: tag(11), withdrawn: false }, needed);
    };
    let head = enter(&room, &a).expect("room");
    tell(0);
    assert_eq!(rung(&head), Some(NOW_RING));
    tell(1);
    assert_eq!(rung(&head), None, "it tries already");
    room.held_by(&a, "", &token, true);
    assert_eq!(rung(&head), Some(Ring(SETTLE)));
    // Without such news a refusal wakes nobody.
    room.held_by(&a, "", &token, true);
    assert_eq!(rung(&head), None);
}

/// One of three nodes is dead, and the lease stood on both others when its holder hung up: what is withdrawn then is
/// no failed attempt. The first notice comes while the head tries.
#[test]
fn a_lease_that_is_withdrawn_while_the_head_tries_wakes_it() {
    let (room, a) = (room(10, 10), name("a"));
    let token = TokenHash::parse(&"0000000b".repeat(8)).expect("hex");
    let needed = Needed { ended: 1, withdrawn: 2 };
    let tell = |node| room.notice(&a, node, Notice { lease: tag(11), withdrawn: true }, needed);
    let mut head = enter(&room, &a).expect("room");
    head.trying(true);
    tell(0);
    assert_eq!(rung(&head), None, "a failed attempt, as far as is known");
    room.held_by(&a, "", &token, true);
    assert_eq!(rung(&head), Some(Ring(SETTLE)));
    // The next try meets it on the other node still, whose notice comes behind the refusal.
    head.trying(true);
    room.held_by(&a, "", &token, true);
    assert_eq!(rung(&head), None);
    tell(1);
    assert_eq!(rung(&head), Some(NOW_RING));
    // Where it was met on fewer than a quorum it is a failed attempt.
    head.trying(true);
    room.held_by(&a, "", &token, false);
    tell(1);
    assert_eq!(rung(&head), None);
}

/// Two instances withdraw their attempts at the same time: a quorum of nodes tells of each.
#[test]
fn news_of_two_leases_may_come_interleaved() {
    let (room, a) = (room(10, 10), name("a"));
    let head = enter(&room, &a).expect("room");
    let tell = |node, n| {
        let needed = Needed { ended: 2, withdrawn: 2 };
        room.notice(&a, node, Notice { lease: tag(n), withdrawn: true }, needed);
    };
    for n in [1, 2] {
        tell(0, n);
    }
    assert_eq!(rung(&head), None, "one node each is no quorum");
    for n in [1, 2] {
        tell(1, n);
        assert_eq!(rung(&head), Some(NOW_RING), "{n}");
    }
}

#[test]
fn others_stand_back_once_after_so_many_hand_overs() {
    let (room, a) = (room(10, 10), name("a"));
    assert_eq!(room.hand_over(&a), HandOver::Nobody);
    let head = enter(&room, &a).expect("room");
    for i in 0..HAND_OVERS_IN_A_ROW {
        assert_eq!(room.hand_over(&a), HandOver::Next);
        room.handing_over(&a, tag(i).expect("some"), false);
    }
    assert_eq!(room.hand_over(&a), HandOver::AskOthers);
    let _ = rung(&head);
    room.stand_back(&a, tag(99).expect("some"));
    assert_eq!(rung(&head), Some(Ring(STAND_BACK)));
    room.freed(&a, tag(99));
    assert_eq!((rung(&head), room.hand_over(&a)), (None, HandOver::Next));
}

#[test]
fn whoever_brings_the_token_of_a_granted_request_joins_it_out_of_turn() {
    let (room, a) = (room(10, 10), name("a"));
    let own = |digit: &str| TokenHash::parse(&digit.repeat(64));
    let seat = |token| room.enter(&a, "", token, NOW).expect("room");
    let (head, other, twin) = (seat(own("a")), seat(own("b")), seat(own("a")));
    let anonymous = seat(None);
    head.granted(NOW);
    assert_eq!(twin.turn().now_or_never(), Some(Turn::SameToken));
    assert_eq!(twin.turn().now_or_never(), None, "once");
    assert_eq!(other.turn().now_or_never(), Some(Turn::Head));
    assert_eq!(anonymous.turn().now_or_never(), None);
}

#[test]
fn both_bounds_refuse_at_once_and_name_themselves() {
    let (room, a, b) = (room(1, 2), name("a"), name("b"));
    let _first = enter(&room, &a).expect("room");
    assert_eq!(enter(&room, &a).err(), Some(Full { limit: 1, per_resource: true }));
    let _second = enter(&room, &b).expect("room");
    assert_eq!(enter(&room, &name("c")).err(), Some(Full { limit: 2, per_resource: false }));
}

proptest! {
    /// Whatever comes and goes: exactly the oldest of each queue has its turn, and the counts agree.
    #[test]
    fn exactly_the_oldest_has_its_turn(steps in proptest::collection::vec((0u8..3, any::<bool>(), any::<prop::sample::Index>()), 1..60)) {
        let room = room(100, 100);
        let mut held: HashMap<u8, Vec<Ticket>> = HashMap::new();
        for (resource, comes, pick) in steps {
            let queue = held.entry(resource).or_default();
            if comes || queue.is_empty() {
                queue.push(enter(&room, &name(&resource.to_string())).expect("room"));
            } else {
                drop(queue.remove(pick.index(queue.len())));
            }
            for (resource, queue) in &held {
                prop_assert_eq!(room.waiting(&name(&resource.to_string())), queue.len());
                for (i, ticket) in queue.iter().enumerate() {
                    prop_assert_eq!(ticket.position(), i + 1);
                    prop_assert_eq!(has_turn(ticket), i == 0);
                }
            }
            prop_assert_eq!(room.waiting_in_all(), held.values().map(Vec::len).sum::<usize>());
        }
    }
}

/// A seeded world of one resource: releases, their notices in any order, callers that come and go.
/// The rules of the room are held against it; bugs planted in the world must be found.
mod world {
    use super::*;
    use crate::redlock::notifications::Notice;

    #[derive(Clone, Copy, PartialEq, Debug)]
    enum Bug {
        None,
        /// As one who tries first and subscribes then.
        LosesNotices,
        /// Serves whoever came last.
        Overtakes,
        /// Wakes on every notice.
        WakesOnEachNotice,
    }

    /// xorshift64*: the same for the same seed, everywhere.
    struct Dice(u64);

    impl Dice {
        fn below(&mut self, sides: u64) -> u64 {
            self.0 ^= self.0 >> 12;
            self.0 ^= self.0 << 25;
            self.0 ^= self.0 >> 27;
            (self.0.wrapping_mul(0x2545_F491_4F6C_DD1D) >> 33) % sides
        }
    }

    const NODES: usize = 5;
    const NEEDED: Needed = Needed { ended: 3, withdrawn: 3 };

    fn play(seed: u64, bug: Bug) -> Result<(), String> {
        let (mut dice, room, a) = (Dice(seed * 2 + 1), room(100, 100), name("a"));
        let mut queue: VecDeque<(u64, Ticket)> = VecDeque::new();
        let (mut came, mut served, mut lease) = (0_u64, None, 1_u32);
        for _ in 0..60 {
            for _ in 0..=dice.below(3) {
                queue.push_back((came, enter(&room, &a).expect("room")));
                came += 1;
            }
            queue[0].1.keep(Box::new(()));
            // Somebody else holds it; some hang up while they wait.
            for _ in 0..dice.below(2) {
                let at = usize::try_from(dice.below(queue.len() as u64)).expect("small");
                drop(queue.remove(at));
            }
            let Some((_, head)) = queue.front() else { continue };
            head.turn().now_or_never().ok_or("the oldest has no turn")?;
            while rung(head).is_some() {}
            // It ends: here, or elsewhere with a notice from each node, in any order.
            let (mut rings, local) = (0, dice.below(3) == 0);
            if local {
                room.handing_over(&a, tag(lease).expect("some"), false);
                rings += usize::from(rung(head) == Some(NOW_RING));
            }
            let mut nodes: Vec<usize> = (0..NODES).collect();
            while !nodes.is_empty() && (!local || rings == 0) {
                let node = nodes.swap_remove(usize::try_from(dice.below(nodes.len() as u64)).expect("small"));
                if bug == Bug::LosesNotices {
                    continue;
                }
                if bug == Bug::WakesOnEachNotice {
                    room.freed(&a, None);
                } else {
                    room.notice(&a, node, Notice { lease: tag(lease), withdrawn: false }, NEEDED);
                }
                rings += usize::from(rung(head) == Some(NOW_RING));
            }
            if rings != 1 {
                return Err(format!("the head was rung {rings} times for one end"));
            }
            if queue.iter().skip(1).any(|(_, t)| rung(t).is_some()) {
                return Err("somebody behind the head was rung".into());
            }
            let next = if bug == Bug::Overtakes { queue.pop_back() } else { queue.pop_front() };
            let (number, ticket) = next.expect("not empty");
            if served.is_some_and(|s| s > number) || queue.iter().any(|(n, _)| *n < number) {
                return Err("overtaken".into());
            }
            served = Some(number);
            ticket.granted(BootTime::from_nanos(u64::MAX));
            // The rest of the news comes late, and is none.
            for node in nodes {
                room.notice(&a, node, Notice { lease: tag(lease), withdrawn: false }, NEEDED);
            }
            if local {
                room.freed(&a, tag(lease));
            }
            if queue.front().is_some_and(|(_, t)| rung(t).is_some()) {
                return Err("the next was woken for an end that was served".into());
            }
            lease += 1;
        }
        drop(queue);
        (room.waiting_in_all() == 0).then_some(()).ok_or_else(|| "seats are left over".into())
    }

    #[test]
    fn one_end_wakes_the_oldest_once_whatever_the_order_of_the_news() {
        for seed in 0..300 {
            play(seed, Bug::None).unwrap_or_else(|why| panic!("seed {seed}: {why}"));
        }
    }

    #[test]
    fn planted_bugs_are_found() {
        for bug in [Bug::LosesNotices, Bug::Overtakes, Bug::WakesOnEachNotice] {
            assert!((0..300).any(|seed| play(seed, bug).is_err()), "{bug:?}");
        }
    }
}
