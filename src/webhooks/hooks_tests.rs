//! What becomes a message, when it is sent, and what operators do, with paused time.

use std::fs;

use super::super::resolver::SystemLookup;
use super::super::target::tests::target;
use super::super::transport::{Answer, Outgoing};
use super::*;
use crate::auth::access_rule::Pattern;
use crate::redlock::clock::PausedClock;
use crate::redlock::random::SystemEntropy;

/// Notes what was sent and answers with a status.
#[derive(Clone, Default)]
struct Sent {
    /// The type and resource of each message.
    messages: Arc<Mutex<Vec<(String, String)>>>,
    status: Arc<AtomicU16>,
    arrived: Arc<Notify>,
}

impl Transport for Sent {
    fn send(&self, _target: Arc<Target>, message: Outgoing) -> impl Future<Output = Answer> + Send + 'static {
        let body: serde_json::Value = serde_json::from_slice(&message.body.bytes).expect("JSON");
        let text = |value: &serde_json::Value| value.as_str().unwrap_or_default().to_owned();
        self.messages.lock().push((text(&body["type"]), text(&body["data"]["resource"])));
        self.arrived.notify_one();
        std::future::ready(Answer::Status { code: self.status.load(Ordering::Relaxed), retry_after: None })
    }
}

type Tried = Webhooks<PausedClock, SystemEntropy, Sent>;

fn hook(name: &str, events: &[HookEvent], names: &[&str]) -> Arc<Hook> {
    Arc::new(Hook {
        name: name.to_owned(),
        target: Arc::new(target("here", "https://here/hooks")),
        events: events.iter().fold(HookEvents::default(), |all, event| all.with(*event)),
        names: names.iter().map(|text| Pattern::parse(text).expect("a pattern")).collect(),
        names_text: names.iter().map(ToString::to_string).collect(),
        waiting_longer: Duration::from_secs(60),
    })
}

fn webhooks(hooks: Vec<Arc<Hook>>) -> (Arc<Tried>, Sent) {
    let sent = Sent::default();
    sent.status.store(204, Ordering::Relaxed);
    let parts = (PausedClock::start(), SystemEntropy, sent.clone());
    let webhooks = Tried::without_file(parts, Arc::new(SystemLookup), Box::new(|_, _, _| {}));
    let targets = hooks.iter().map(|hook| Arc::clone(&hook.target)).collect();
    webhooks.put_in_force(WebhooksFile { targets, hooks, ..WebhooksFile::default() });
    (Arc::new(webhooks), sent)
}

fn event(resource: Option<&str>) -> Event {
    Event { resource: resource.map(str::to_owned), fence: Some(7), ..Event::default() }
}

fn wait(resource: &str, seconds: u64) -> LongWait {
    LongWait { resource: resource.to_owned(), owner: "ann".to_owned(), waiting_ms: seconds * 1_000, waiters: 2 }
}

/// Sends what waits, then stops.
async fn send_all(webhooks: &Arc<Tried>) {
    let stop = CancellationToken::new();
    stop.cancel();
    Arc::clone(webhooks).run(Vec::new, stop).await;
}

#[tokio::test(start_paused = true)]
async fn a_hook_gets_the_events_that_it_names_of_the_locks_that_it_names() {
    let hooks = vec![
        hook("deploys", &[HookEvent::LockForced, HookEvent::QuorumLost], &["deploy/**", "cron"]),
        hook("all", &[HookEvent::LockReleased], &[]),
    ];
    let (webhooks, sent) = webhooks(hooks);
    for (kind, resource) in [
        (EventKind::Forced, Some("deploy/prod")),
        (EventKind::Forced, Some("cron")),
        (EventKind::Forced, Some("other")),
        (EventKind::Released, Some("other")),
        (EventKind::Acquired, Some("deploy/prod")),
        (EventKind::QuorumLost, None),
        (EventKind::NodeDown, None),
        (EventKind::Forced, Some("not//a/name")),
        (EventKind::Extended, Some("deploy/prod")),
    ] {
        webhooks.receive(kind, &event(resource));
    }
    send_all(&webhooks).await;
    let mut seen = sent.messages.lock().clone();
    seen.sort();
    let pair = |kind: &str, resource: &str| (kind.to_owned(), resource.to_owned());
    let expected = [
        pair("lock.forced", "cron"),
        pair("lock.forced", "deploy/prod"),
        pair("lock.released", "other"),
        pair("quorum.lost", ""),
    ];
    assert_eq!(seen, expected);
    assert_eq!(webhooks.status().1.iter().map(|hook| hook.counts.accepted).sum::<u64>(), 4);
}

#[tokio::test(start_paused = true)]
async fn a_long_wait_is_reported_once_while_it_lasts() {
    let (webhooks, sent) = webhooks(vec![hook("waits", &[HookEvent::LockWaitingLong], &["a", "b"])]);
    assert!(webhooks.wants_waits());
    for waits in [
        vec![wait("a", 59), wait("c", 600)],
        vec![wait("a", 60)],
        vec![wait("a", 61), wait("b", 70)],
        vec![],
        vec![wait("a", 5)],
        vec![wait("a", 65)],
    ] {
        webhooks.receive_waits(&waits);
    }
    send_all(&webhooks).await;
    let resources: Vec<_> = sent.messages.lock().iter().map(|(_, resource)| resource.clone()).collect();
    assert_eq!(resources, ["a", "b", "a"]);
}

#[tokio::test(start_paused = true)]
async fn a_message_is_sent_at_once_tried_again_and_lost_by_a_stop_that_cannot_deliver_it() {
    let (webhooks, sent) = webhooks(vec![hook("all", &[HookEvent::LockLost], &[])]);
    sent.status.store(500, Ordering::Relaxed);
    let stop = CancellationToken::new();
    let operator = async {
        let clock = &webhooks.deliveries.clock;
        let begin = clock.now();
        webhooks.receive(EventKind::Lost, &event(Some("a")));
        sent.arrived.notified().await;
        assert!(clock.now().since(begin) < Duration::from_millis(1));
        sent.arrived.notified().await;
        let pause = clock.now().since(begin).as_secs_f64();
        assert!((4.0..=6.1).contains(&pause), "5 s, a fifth more or less: {pause}");
        let status = &webhooks.status().1[0];
        assert!(status.is_failing && status.off.is_none(), "{status:?}");
        stop.cancel();
    };
    tokio::join!(Arc::clone(&webhooks).run(Vec::new, stop.clone()), operator);
    assert_eq!((sent.messages.lock().len(), webhooks.totals().queued), (2, 0));
}

#[tokio::test(start_paused = true)]
async fn waits_are_compared_every_second_while_a_hook_wants_them() {
    let (webhooks, sent) = webhooks(vec![hook("waits", &[HookEvent::LockWaitingLong], &[])]);
    let stop = CancellationToken::new();
    let operator = async {
        sent.arrived.notified().await;
        stop.cancel();
    };
    tokio::join!(Arc::clone(&webhooks).run(|| vec![wait("a", 99)], stop.clone()), operator);
    assert_eq!(sent.messages.lock().len(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_test_that_is_accepted_switches_a_hook_on_and_says_what_came_of_it() {
    let (webhooks, sent) = webhooks(vec![hook("all", &[HookEvent::LockLost], &[])]);
    sent.status.store(410, Ordering::Relaxed);
    webhooks.receive(EventKind::Lost, &event(Some("a")));
    send_all(&webhooks).await;
    assert_eq!(webhooks.totals().off, 1);
    let refused = webhooks.test("all").await.expect("known");
    assert_eq!((refused.answer.text().as_str(), webhooks.totals().off), ("status 410", 1));
    sent.status.store(200, Ordering::Relaxed);
    assert!(webhooks.test("target:here").await.expect("known").answer.is_accepted());
    assert_eq!(webhooks.totals().off, 1, "that was a test of the target");
    assert!(webhooks.test("all").await.expect("known").answer.is_accepted());
    assert_eq!(webhooks.totals().off, 0);
    assert_eq!(webhooks.replay("all"), Ok(1));
    send_all(&webhooks).await;
    let last = sent.messages.lock().last().cloned();
    assert_eq!(last, Some(("lock.lost".to_owned(), "a".to_owned())));
    for unknown in ["here", "target:all", "", "target:"] {
        assert!(webhooks.test(unknown).await.is_err() && webhooks.replay(unknown).is_err(), "{unknown}");
    }
}

#[test]
fn a_bad_file_leaves_the_one_before_in_force_and_a_good_one_switches_hooks_on() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("webhooks.toml");
    let write = |hook: &str| {
        let target = "[[target]]\nname = \"here\"\nurl = \"http://127.0.0.1:1/\"\nform = \"github-dispatch\"\n";
        let hook = format!("[[hook]]\nname = \"{hook}\"\ntarget = \"here\"\nevents = [\"lock.lost\"]\n");
        fs::write(&path, format!("{target}{hook}")).expect("writable");
    };
    let _ = rustls::crypto::ring::default_provider().install_default();
    let runtime = tokio::runtime::Builder::new_current_thread().start_paused(true).enable_time().build();
    let _guard = runtime.as_ref().expect("a runtime").enter();
    let parts = (PausedClock::start(), SystemEntropy, Sent::default());
    write("one");
    let lookup: Arc<dyn Lookup> = Arc::new(SystemLookup);
    let observer: TryObserver = Box::new(|_, _, _| {});
    let webhooks = Tried::open(parts, Some(path.clone()), lookup, "i".to_owned(), observer).expect("good");
    let names = || webhooks.status().1.iter().map(|hook| hook.hook.name.clone()).collect::<Vec<_>>();
    webhooks.receive(EventKind::Lost, &event(Some("a")));
    assert_eq!((names(), webhooks.totals().queued), (vec!["one".to_owned()], 1));
    fs::write(&path, "[[hook]]\n").expect("writable");
    assert!(webhooks.reload().is_err());
    assert_eq!((names(), webhooks.totals().queued), (vec!["one".to_owned()], 1));
    if let Some(queue) = webhooks.queues.lock().get_mut("one") {
        queue.off = Some(super::super::hook_queue::SwitchedOff { at_ms: 0, why: "a test" });
    }
    write("one");
    assert_eq!(webhooks.reload().map(|files| files.len()), Ok(1));
    assert_eq!((webhooks.totals().off, webhooks.totals().queued), (0, 1));
    write("two");
    webhooks.reload().expect("good");
    assert_eq!((names(), webhooks.totals().queued), (vec!["two".to_owned()], 0));
}
