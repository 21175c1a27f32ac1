//! Streams over the event buffer: resuming, gaps, lag, copies, and the bounds.

use futures_util::FutureExt;

use super::*;
use crate::types::{Fence, Mode, Token};

fn hub() -> Arc<EventHub> {
    Arc::new(EventHub::new(&InstanceName::from_random(7)))
}

fn acquired(hub: &EventHub, resource: &str) {
    hub.publish(EventKind::Acquired, 1, |e| e.resource = Some(resource.into()));
}

fn resources(events: &[NumberedEvent]) -> Vec<&str> {
    events.iter().filter_map(|e| e.event.resource.as_deref()).collect()
}

/// What the stream gets without waiting.
fn next(stream: &mut EventSubscription) -> Option<Result<NumberedEvent, EventsMissed>> {
    stream.next().now_or_never()
}

fn at(seconds: u64) -> BootTime {
    BootTime::default().plus(Duration::from_secs(seconds))
}

#[test]
fn without_listeners_renewals_are_not_made_and_the_recent_events_are_bounded() {
    let hub = hub();
    hub.publish(EventKind::Extended, 1, |_| panic!("nobody listens"));
    for i in 0..=EVENTS_MAX {
        hub.publish(EventKind::Released, 1, |e| e.resource = Some(i.to_string()));
    }
    hub.publish(EventKind::NodeDown, 2, |e| e.node = Some("n1".into()));
    assert!(!hub.has_listeners());
    let recent = hub.recent();
    assert_eq!((recent.len(), recent[0].event.as_str(), recent[1].at_ms), (EVENTS_MAX, "node_down", 1));
    assert_eq!(recent.last().and_then(|e| e.resource.as_deref()), Some("2"));
}

fn lease(kind: EventKind, resource: &str, held: Option<Duration>) -> LeaseEvent {
    LeaseEvent {
        kind,
        at_ms: 5,
        resource: ResourceName::parse(resource).expect("valid"),
        token: Token::from_random([7; 24]).hash(),
        owner: "ann".into(),
        mode: Some(Mode::Exclusive),
        fence: Some(Fence(3)),
        valid_for: None,
        held,
        reason: None,
    }
}

/// Wants, of the events of leases, the releases.
#[derive(Default)]
struct EndsObserver(Mutex<Vec<EventKind>>);

impl EventObserver for EndsObserver {
    fn wants(&self, kind: EventKind) -> bool {
        kind == EventKind::Released
    }

    fn receive(&self, kind: EventKind, _: &Event) {
        self.0.lock().push(kind);
    }
}

#[test]
fn the_event_of_a_lease_is_made_at_once_for_an_observer_that_wants_it() {
    let (hub, observer) = (hub(), Arc::new(EndsObserver::default()));
    hub.observe(Arc::clone(&observer) as _);
    hub.publish_lease(lease(EventKind::Released, "a", None));
    hub.publish_lease(lease(EventKind::Acquired, "a", None));
    assert_eq!(*observer.0.lock(), [EventKind::Released]);
    let is_made = |kept: &KeptEvent| matches!(kept, KeptEvent::Made(_));
    assert_eq!(hub.state.lock().buffer.recent().map(is_made).collect::<Vec<_>>(), [false, true], "newest first");
}

#[test]
fn the_event_of_a_lease_is_made_when_somebody_looks_at_it() {
    let (hub, token) = (hub(), Token::from_random([7; 24]).hash());
    hub.publish_lease(lease(EventKind::Acquired, "a", None));
    hub.publish_lease(lease(EventKind::Released, "a", Some(Duration::from_millis(4))));
    assert!(hub.state.lock().buffer.recent().all(|kept| matches!(kept, KeptEvent::Lease(_))));
    let expected = Event {
        event: "released".to_owned(),
        at_ms: 5,
        resource: Some("a".to_owned()),
        token_id: Some(token.id_text().to_owned()),
        owner: Some("ann".to_owned()),
        fence: Some(3),
        after_ms: Some(4),
        ..Event::default()
    };
    assert_eq!(hub.recent()[0].as_ref(), &expected);
    let hour = hub.hour(5);
    assert_eq!((hour.all.grants, hour.held[&("a".to_owned(), "ann".to_owned())]), (1, Duration::from_millis(4)));
    assert_eq!(hub.tenures(0, 5, |name| name == "a").names["a"].len(), 1);
    let mut stream = hub.subscribe(Some(&format!("{}.0", hub.name))).expect("below the limit");
    hub.publish_lease(lease(EventKind::Acquired, "b", None));
    assert_eq!(resources(&stream.take_backlog()), ["a", "b"], "with a listener it is made at once");
    assert!(hub.state.lock().buffer.recent().next().is_some_and(|kept| matches!(kept, KeptEvent::Made(_))));
}

#[test]
fn recent_events_outlive_the_streams_and_are_listed_once() {
    let (hub, other) = (hub(), EventHub::new(&InstanceName::from_random(9)));
    drop(hub.subscribe(None).expect("below the limit"));
    let event = other.named_event(EventKind::Acquired, 5, |e| e.resource = Some("a".into()));
    let text = serde_json::to_vec(&event).expect("plain data");
    hub.receive(&text);
    hub.receive(&text);
    hub.sweep(at(1));
    hub.sweep(at(62));
    assert!(!hub.follows_cluster());
    assert_eq!(hub.recent().len(), 1);
    hub.follow_cluster();
    assert!(hub.follows_cluster());
}

/// Each instance reports what it sees of the nodes: what two of them saw is listed once, and observed (for hooks) only where it
/// was seen.
#[test]
fn incidents_of_nodes_are_known_at_all_instances_and_joined() {
    let (hub, other) = (hub(), EventHub::new(&InstanceName::from_random(9)));
    let observer = Arc::new(EndsObserver::default());
    hub.observe(Arc::clone(&observer) as _);
    let down = |at: &EventHub, node: &str, wall_ms| {
        at.named_event(EventKind::NodeDown, wall_ms, |event| event.node = Some(node.into()))
    };
    let receive = |event: Event| hub.receive(&serde_json::to_vec(&event).expect("plain data"));
    let listed = || hub.past().iter().map(|event| event.at_ms).collect::<Vec<_>>();
    hub.publish(EventKind::NodeDown, 1_000, |event| event.node = Some("n1".into()));
    receive(down(&other, "n1", 4_000));
    assert_eq!(listed(), [1_000], "both saw the same");
    receive(down(&other, "n2", 5_000));
    receive(down(&other, "n2", 7_000));
    hub.publish(EventKind::NodeDown, 8_000, |event| event.node = Some("n2".into()));
    assert_eq!(listed(), [7_000, 5_000, 1_000], "what one of them saw twice happened twice");
    receive(down(&other, "n1", 20_000));
    assert_eq!(listed(), [20_000, 7_000, 5_000, 1_000], "seen by one alone");
    assert_eq!(*observer.0.lock(), [EventKind::NodeDown; 2], "the two that this one saw");
}

#[test]
fn a_resumed_stream_gets_what_it_missed_or_a_gap() {
    let hub = hub();
    let mut first = hub.subscribe(None).expect("below the limit");
    acquired(&hub, "a");
    acquired(&hub, "b");
    let seen = next(&mut first).expect("an event").expect("none missed");
    let mut again = hub.subscribe(Some(&hub.event_id(&seen))).expect("below the limit");
    assert_eq!((again.has_gap, resources(&again.take_backlog())), (false, vec!["b"]));
    assert!(next(&mut again).is_none(), "the backlog is not sent twice");
    for _ in 0..EVENTS_MAX {
        acquired(&hub, "c");
    }
    let mut late = hub.subscribe(Some(&hub.event_id(&seen))).expect("below the limit");
    assert!(late.has_gap && late.take_backlog().len() == EVENTS_MAX);
    for unknown in ["", "other.3", "0000000000000007.99999999", "0000000000000007.x"] {
        let mut foreign = hub.subscribe(Some(unknown)).expect("below the limit");
        assert!(foreign.has_gap && foreign.take_backlog().is_empty(), "{unknown}");
    }
}

#[test]
fn a_slow_stream_is_informed_of_how_much_it_missed() {
    let hub = hub();
    let mut slow = hub.subscribe(None).expect("below the limit");
    for _ in 0..EVENTS_MAX + 3 {
        acquired(&hub, "a");
    }
    assert_eq!(next(&mut slow).expect("an answer").err(), Some(EventsMissed(3)));
}

#[test]
fn a_stream_resumed_after_the_cluster_was_not_followed_has_a_gap() {
    let hub = hub();
    let mut stream = hub.subscribe(None).expect("below the limit");
    acquired(&hub, "a");
    let last = hub.event_id(&next(&mut stream).expect("an event").expect("none missed"));
    drop(stream);
    hub.sweep(at(1));
    hub.sweep(at(62));
    assert!(hub.subscribe(Some(&last)).expect("below the limit").has_gap);
}

#[test]
fn copies_from_several_nodes_count_once_and_malformed_texts_are_dropped() {
    let (hub, other) = (hub(), EventHub::new(&InstanceName::from_random(9)));
    let mut stream = hub.subscribe(None).expect("below the limit");
    let event = other.named_event(EventKind::Released, 5, |e| e.resource = Some("a/b".into()));
    let text = serde_json::to_vec(&event).expect("plain data");
    for _ in 0..5 {
        hub.receive(&text);
    }
    let event = next(&mut stream).expect("an event").expect("none missed").event;
    assert_eq!((event.event.as_str(), event.resource.as_deref(), &event.name), ("released", Some("a/b"), &None));
    let long = format!(r#"{{"event":"released","at_ms":1,"resource":"{}"}}"#, "x".repeat(TEXT_MAX));
    for malformed in
        ["", "{}", "[]", r#"{"event":"own3d","at_ms":1}"#, r#"{"event":"lost","at_ms":1,"resource":"a//b"}"#, &long]
    {
        hub.receive(malformed.as_bytes());
    }
    assert!(next(&mut stream).is_none());
}

#[test]
fn streams_are_bounded_and_closed_ones_are_not_counted() {
    let hub = hub();
    let streams: Vec<_> = (0..LISTENERS_MAX).map_while(|_| hub.subscribe(None)).collect();
    assert_eq!(streams.len(), LISTENERS_MAX);
    assert!(hub.subscribe(None).is_none());
    drop(streams);
    assert_eq!(hub.listeners(), 0);
    assert!(hub.subscribe(None).is_some());
}

#[test]
fn the_cluster_is_no_longer_followed_a_minute_after_the_last_stream() {
    let hub = hub();
    drop(hub.subscribe(None).expect("below the limit"));
    hub.sweep(at(1));
    hub.sweep(at(30));
    assert!(hub.follows_cluster());
    hub.sweep(at(62));
    assert!(!hub.follows_cluster());
}

#[test]
fn an_instance_knows_its_own_messages_without_parsing_them() {
    let hub = hub();
    hub.publish(EventKind::Acquired, 60_000, |e| e.resource = Some("a".into()));
    hub.publish(EventKind::Released, 61_000, |e| (e.resource, e.after_ms) = (Some("a".into()), Some(1_000)));
    let tenures = hub.tenures.due(&hub.name, 61_000, TEXT_MAX);
    let texts: Vec<String> = hub.activity.due(&hub.name, 61_000, TEXT_MAX).into_iter().chain(tenures).collect();
    assert_eq!(texts.len(), 2, "{texts:?}");
    let (shorter, other) = (&hub.name[..hub.name.len() - 1], "other");
    for text in &texts {
        let of = [hub.name.as_str(), shorter, other].map(|name| is_message_of(text.as_bytes(), name));
        assert_eq!(of, [true, false, false], "{text}");
    }
    let event = format!(r#"{{"event":"node_down","at_ms":1,"instance":"{}"}}"#, hub.name);
    assert!(!is_message_of(event.as_bytes(), &hub.name));
}

/// At first no node passes anything on.
#[test]
fn the_end_of_a_lease_is_published_again_while_the_nodes_remember_it() {
    let (hub, channel) = (hub(), Arc::new(Subscriptions::default()));
    hub.attach(&channel);
    let (name, token) = (ResourceName::parse("x").expect("valid"), Token::from_random([7; 24]).hash());
    hub.publish_end(&name, &token);
    channel.connected();
    let repeated = (1..=60_u64).filter(|second| {
        hub.publish_activity(second * 1_000);
        let published = channel.take_commands().publish;
        published.iter().any(|(topic, text)| *topic == Topic::Incidents && text.contains(distant_ends::MESSAGE))
    });
    assert_eq!(repeated.collect::<Vec<_>>(), [3, 10, 30]);
}
