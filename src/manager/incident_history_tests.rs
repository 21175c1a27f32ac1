//! Two histories that exchange what one of them missed, by their messages.

use super::*;
use crate::protocol::InstanceName;

const MAX: usize = 16_384;
/// When the second one starts.
const START_MS: u64 = 100_000_000;

/// An instance, and the clock.
struct Instance {
    name: String,
    history: IncidentHistory,
}

impl Instance {
    fn new(number: u64) -> Self {
        Self { name: InstanceName::from_random(number).to_string(), history: IncidentHistory::default() }
    }

    /// One that has run since this second, as far as anybody knows.
    fn since(number: u64, second_ms: u64) -> Self {
        let mut this = Self::new(number);
        for pass in 0..4 {
            this.history.tick(&this.name.clone(), true, second_ms + pass * 1_000);
        }
        this
    }

    fn down(&mut self, node: &str, at_ms: u64) {
        let event = Event { event: "node_down".into(), node: Some(node.into()), at_ms, ..Event::default() };
        self.history.add(Arc::new(Event { instance: Some(self.name.clone()), ..event }));
    }

    fn nodes(&self) -> Vec<&str> {
        self.history.incidents.iter().filter_map(|event| event.node.as_deref()).collect()
    }

    fn gaps(&self, now_ms: u64) -> Vec<(u64, u64)> {
        self.history.gaps(now_ms).iter().map(|gap| (gap.from_ms, gap.to_ms)).collect()
    }
}

/// A second of all: each message of one reaches the others, twice.
fn second(all: &mut [Instance], now_ms: u64) {
    let tick = |one: &mut Instance| one.history.tick(&one.name, true, now_ms);
    let requests: Vec<String> = all.iter_mut().filter_map(tick).collect();
    let mut answers = Vec::new();
    for request in requests.iter().chain(&requests) {
        let answer = |one: &mut Instance| one.history.answer(request.as_bytes(), &one.name, MAX);
        answers.extend(all.iter_mut().filter_map(answer));
    }
    for answer in answers.iter().chain(&answers) {
        assert!(answer.len() <= MAX, "{}", answer.len());
        all.iter_mut()
            .for_each(|one| one.history.receive(answer.as_bytes(), &one.name, |event| event.event != "forged"));
    }
}

fn seconds(all: &mut [Instance], count: u64) {
    (0..count).for_each(|pass| second(all, START_MS + pass * 1_000));
}

#[test]
fn what_happened_before_the_start_is_learnt_from_an_instance_that_ran() {
    let mut old = Instance::since(1, START_MS - 3_000_000);
    // More than one message has, with one that the new instance saw, too.
    (0..300_u64).for_each(|i| old.down(&format!("n{i:03}"), START_MS - 2_000_000 + i * 1_000));
    old.history.known_ms = START_MS - 1;
    old.history.tick_ms = START_MS - 1;
    let mut all = [old, Instance::new(2)];
    all[1].down("n299", START_MS - 1_699_000);
    assert_eq!(all[1].gaps(START_MS), [(0, START_MS)], "it knows nothing before its start");
    seconds(&mut all, 20);
    let [old, new] = &all;
    assert_eq!(new.nodes(), old.nodes());
    let known_from_ms = START_MS - 3_000_000 + 2_000;
    assert_eq!(new.gaps(START_MS + 20_000), [(0, known_from_ms)], "nobody knows what was before both");
    assert_eq!(new.history.gaps_of_run(START_MS + 20_000).len(), 1, "of leases it knows nothing before its start");
}

#[test]
fn what_nobody_knows_stays_a_gap_and_is_no_quiet_time() {
    let mut all = [Instance::since(1, START_MS - 50_000), Instance::since(2, START_MS - 50_000)];
    all.iter_mut().for_each(|one| one.down("n1", START_MS - 50_000));
    // Both stand still.
    seconds(&mut all, 30);
    for one in &all {
        let gaps = one.gaps(START_MS + 30_000);
        assert_eq!(gaps.len(), 2, "{gaps:?}");
        assert_eq!(gaps[1], (START_MS - 47_000, START_MS + 2_000));
    }
}

#[test]
fn without_a_node_that_passes_messages_on_it_is_cut_off() {
    let mut one = Instance::since(1, START_MS - 3_000);
    let listens = |one: &mut Instance, is_listening, second: u64| {
        one.history.tick(&one.name.clone(), is_listening, START_MS + second * 1_000);
    };
    for second in 0..10 {
        listens(&mut one, second < 2, second);
    }
    let open = one.history.gaps(START_MS + 9_000);
    let gap = Gap { from_ms: START_MS + 1_000, to_ms: START_MS + 9_000, reason: GapReason::CutOff };
    assert_eq!(open[1..], [gap], "while it lasts");
    (10..14).for_each(|second| listens(&mut one, true, second));
    assert_eq!(one.history.gaps(START_MS + 13_000)[1..], [Gap { to_ms: START_MS + 12_000, ..gap }]);
    assert_eq!(one.history.gaps(START_MS + 13_500).len(), 2, "and no further one");
}

/// Anybody who can publish on a node can send both messages.
#[test]
fn n7_made_up_messages_fill_nothing_and_are_answered_a_few_times_a_second() {
    let mut old = Instance::since(1, START_MS - 3_000);
    let request = |number: u64| {
        let (of, own) = (InstanceName::from_random(1), InstanceName::from_random(9));
        format!(
            r#"{{"event":"history_request","instance":"{own}","number":{number},"of":"{of}","from_ms":0,"to_ms":9}}"#
        )
    };
    old.history.tick(&old.name.clone(), true, START_MS);
    let answers = (0..100).filter(|number| old.history.answer(request(*number).as_bytes(), &old.name, MAX).is_some());
    assert_eq!(answers.count(), 4);
    let gaps = old.gaps(START_MS);
    let (of, own) = (&old.name, InstanceName::from_random(9));
    let down = r#"{"event":"node_down","at_ms":5,"node":"n1"}"#;
    let made_up = format!(
        r#"{{"event":"history","instance":"{own}","of":"{of}","number":1,"from_ms":0,"to_ms":{START_MS},"events":[{down}]}}"#
    );
    old.history.receive(made_up.as_bytes(), &old.name.clone(), |_| true);
    assert_eq!((old.nodes().len(), old.gaps(START_MS)), (0, gaps), "it had not asked");
}
