//! Hours and days of failures, without a clock.

use serde_json::Map;

use super::super::event::HookEvent;
use super::*;

const MINUTE: u64 = 60;
const HOUR: u64 = 60 * MINUTE;

fn at(seconds: u64) -> BootTime {
    BootTime::from_nanos(1_000_000_000).plus(Duration::from_secs(seconds))
}

fn message(number: u64) -> HookMessage {
    HookMessage { id: format!("evt_{number}"), event: HookEvent::LockLost, at_ms: number, data: Map::new() }
}

const fn status(code: u16) -> Answer {
    Answer::Status { code, retry_after: None }
}

fn finish(queue: &mut HookQueue, tried: Waiting, answer: Answer, second: u64) -> HookChange {
    let last = LastTry { at_ms: second * 1_000, answer, took: Duration::ZERO };
    queue.finished(tried, last, at(second), |pause| pause)
}

/// Tries everything that is due until `end`, each try answered at once. Returns the changes, with their seconds.
fn play(queue: &mut HookQueue, from: u64, end: u64, answer: impl Fn(u64) -> Answer) -> Vec<(u64, HookChange)> {
    let mut changes = Vec::new();
    let mut now = at(from);
    while let Some(due) = queue.next_due().filter(|due| *due <= at(end)) {
        now = now.max(due);
        let second = now.since(at(0)).as_secs();
        let tried = queue.take_due(now).expect("due");
        match finish(queue, tried, answer(second), second) {
            HookChange::Nothing => {}
            change => changes.push((second, change)),
        }
    }
    changes
}

#[test]
fn a_message_is_tried_for_about_an_hour_and_then_kept_for_a_replay() {
    let mut queue = HookQueue::default();
    assert!(queue.push(message(1), at(0)));
    let changes = play(&mut queue, 0, 2 * HOUR, |_| status(500));
    let hour: u64 = HOOK_PAUSES_S.iter().sum();
    assert!(hour.abs_diff(HOUR) < 5 * MINUTE, "{hour}");
    assert_eq!(changes, [(0, HookChange::Fails), (hour, HookChange::GaveUp)]);
    assert_eq!((queue.waiting(), queue.replayable(), queue.counts.gave_up), (0, 1, 1));
    assert_eq!(queue.replay(at(hour + 1)), 1);
    let changes = play(&mut queue, hour + 1, 2 * HOUR, |_| status(204));
    assert_eq!((changes, queue.counts.accepted, queue.replayable()), (vec![], 1, 0));
}

#[test]
fn a_success_ends_a_failure_and_the_pause_that_a_receiver_asks_for_counts() {
    let mut queue = HookQueue::default();
    queue.push(message(1), at(0));
    let busy = Answer::Status { code: 429, retry_after: Some(Duration::from_secs(100)) };
    let changes = play(&mut queue, 0, HOUR, |second| if second < 50 { busy } else { status(200) });
    assert_eq!(changes, [(0, HookChange::Fails), (100, HookChange::Works)]);
    assert!(!queue.is_failing());
}

#[test]
fn what_does_not_fit_is_dropped_and_counted() {
    let mut queue = HookQueue::default();
    let taken = (0..HOOK_QUEUE_MAX as u64 + 250).filter(|number| queue.push(message(*number), at(0))).count();
    assert_eq!((taken, queue.counts.dropped, queue.waiting()), (HOOK_QUEUE_MAX, 250, HOOK_QUEUE_MAX));
    assert_eq!(queue.replayable(), REPLAY_MAX);
}

#[test]
fn a_receiver_that_fails_gets_one_try_at_a_time() {
    let mut queue = HookQueue::default();
    (0..10).for_each(|number| _ = queue.push(message(number), at(0)));
    let first: Vec<_> = std::iter::from_fn(|| queue.take_due(at(0))).collect();
    assert_eq!(first.len(), HOOK_TRIES);
    assert_eq!(first[0].message.id, "evt_0", "in the order of their arrival");
    assert_eq!(queue.next_due(), None, "a try must end before");
    for tried in first {
        finish(&mut queue, tried, status(500), 0);
    }
    assert!(queue.take_due(at(0)).is_some() && queue.take_due(at(0)).is_none());
}

#[test]
fn a_day_of_failures_switches_a_hook_off_and_an_operator_switches_it_on() {
    let mut queue = HookQueue::default();
    let mut changes = Vec::new();
    for hour in 0..26 {
        queue.push(message(hour), at(hour * HOUR));
        changes.extend(play(&mut queue, hour * HOUR, (hour + 1) * HOUR, |_| status(404)));
    }
    let offs: Vec<_> = changes.iter().filter(|(_, change)| matches!(change, HookChange::Off(_))).collect();
    assert_eq!(offs, [&(24 * HOUR, HookChange::Off("no message was accepted for 24 h"))]);
    assert_eq!(queue.off.map(|off| off.at_ms), Some(24 * HOUR * 1_000));
    assert_eq!((queue.counts.dropped, queue.next_due()), (1, None), "that of the 25th hour");
    assert!(queue.switch_on() && !queue.switch_on() && !queue.is_failing());
    assert!(queue.push(message(99), at(27 * HOUR)) && queue.take_due(at(27 * HOUR)).is_some());
}

#[test]
fn a_receiver_that_is_gone_gets_nothing_more() {
    let mut queue = HookQueue::default();
    (0..3).for_each(|number| _ = queue.push(message(number), at(0)));
    let changes = play(&mut queue, 0, HOUR, |_| status(410));
    assert!(matches!(changes[..], [(0, HookChange::Off(why))] if why.contains("410")), "{changes:?}");
    assert_eq!((queue.waiting(), queue.replayable(), queue.counts.dropped), (0, 3, 2));
    assert!(!queue.push(message(4), at(1)), "off");
    assert_eq!(queue.replay(at(2)), 4, "a replay switches it on");
}

#[test]
fn a_stop_keeps_what_was_not_tried() {
    let mut queue = HookQueue::default();
    (0..3).for_each(|number| _ = queue.push(message(number), at(0)));
    let tried = queue.take_due(at(0)).expect("due");
    finish(&mut queue, tried, status(500), 0);
    assert_eq!((queue.drop_retries(), queue.waiting()), (1, 2));
}
