//! Call-backs with paused time: which tries are made when, and what ends them.

use std::sync::atomic::{AtomicU64, Ordering};

use serde_json::Map;

use super::super::sealing::SealingKey;
use super::super::signing::SigningSecret;
use super::super::target::tests::target;
use super::super::try_slots::{PRINCIPAL_PART, TRIES_PER_TARGET};
use super::*;
use crate::redlock::clock::PausedClock;

/// Draws the middle, so that pauses have no jitter, or what a test sets.
#[derive(Debug, Clone)]
struct Drawn(Arc<AtomicU64>);

impl Entropy for Drawn {
    fn fill(&self, into: &mut [u8]) {
        into.fill(0);
    }

    fn bits(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// Answers from a list, one after another, the last one for ever; each after a time.
#[derive(Clone)]
struct Script {
    clock: PausedClock,
    answers: Arc<Vec<(Duration, Answer)>>,
    /// When each try began, and its id.
    seen: Arc<Mutex<Vec<(Duration, String)>>>,
    most: Arc<Mutex<(usize, usize)>>,
    /// What tries are counted as.
    counted: Arc<Mutex<Vec<&'static str>>>,
}

const START: BootTime = BootTime::from_nanos(1_000_000_000_000);

impl Transport for Script {
    fn send(&self, _target: Arc<Target>, message: Outgoing) -> impl Future<Output = Answer> + Send + 'static {
        let script = self.clone();
        async move {
            let number = {
                let mut seen = script.seen.lock();
                seen.push((script.clock.now().since(START), message.id));
                seen.len() - 1
            };
            {
                let mut most = script.most.lock();
                most.0 += 1;
                most.1 = most.1.max(most.0);
            }
            let (after, answer) = script.answers[number.min(script.answers.len() - 1)];
            script.clock.sleep(after).await;
            script.most.lock().0 -= 1;
            answer
        }
    }
}

const fn status(code: u16) -> Answer {
    Answer::Status { code, retry_after: None }
}

type Tried = Deliveries<PausedClock, Drawn, Script>;

fn deliveries(answers: &[(Duration, Answer)]) -> (CallbackDeliveries<PausedClock, Drawn, Script>, Script) {
    let clock = PausedClock::start();
    let (seen, most, counted) = <(_, _, Arc<Mutex<Vec<&'static str>>>)>::default();
    let script = Script { clock, answers: Arc::new(answers.to_vec()), seen, most, counted: Arc::clone(&counted) };
    let secret = SigningSecret::parse(&SigningSecret::generate(|bytes| bytes.fill(1))).expect("a secret");
    let (targets, sealing) = (vec![Arc::new(target("n8n", "https://n8n/w/"))], SealingKey::of(&secret));
    let file = WebhooksFile { targets, sealing: sealing.into_iter().collect(), ..WebhooksFile::default() };
    let drawn = Drawn(Arc::new(AtomicU64::new(1 << 63)));
    let tried =
        Tried::new((clock, drawn, script.clone()), file, Box::new(move |_, of, _| counted.lock().push(of.as_str())));
    (CallbackDeliveries(Arc::new(tried)), script)
}

fn event() -> CallbackEvent {
    let (id, principal) = ("tk_1_granted".to_owned(), String::new());
    CallbackEvent { id, kind: CallbackKind::Granted, at_ms: 0, data: Map::new(), principal }
}

/// What came of it, and the seconds at which tries began; with `accept` seconds to be accepted.
async fn deliver(answers: &[(Duration, Answer)], accept_s: u64) -> (DeliveryOutcome, Vec<f64>, f64) {
    let (sender, script) = deliveries(answers);
    let callback = sender.resolve("https://n8n/w/17", None).expect("allowed");
    let until = START.plus(Duration::from_secs(accept_s));
    let outcome = sender.deliver(callback, event(), until, CancellationToken::new()).await;
    let seen = script.seen.lock();
    assert!(seen.iter().all(|(_, id)| id == "tk_1_granted"), "the id is the same over all tries: {seen:?}");
    let seconds = |at: Duration| (at.as_secs_f64() * 10.0).round() / 10.0;
    (outcome, seen.iter().map(|(at, _)| seconds(*at)).collect(), seconds(script.clock.now().since(START)))
}

const AT_ONCE: Duration = Duration::ZERO;

#[tokio::test(start_paused = true)]
async fn whatever_is_not_2xx_or_410_is_tried_again_after_the_pauses_of_the_contract() {
    for answer in [status(301), status(404), status(409), status(500), Answer::Failed("x"), Answer::Blocked("x")] {
        let (outcome, tries, end) = deliver(&[(AT_ONCE, answer)], 120).await;
        assert_eq!(outcome, DeliveryOutcome::Undelivered, "{answer:?}");
        assert_eq!(tries, [0.0, 1.0, 3.0, 8.0, 18.0, 38.0, 68.0, 98.0], "{answer:?}");
        assert_eq!(end, 120.0, "not before the time to accept is over: {answer:?}");
    }
}

/// n8n: 409 until its Wait node has stored its state, then 200 once.
#[tokio::test(start_paused = true)]
async fn a_receiver_that_does_not_wait_yet_is_tried_until_it_does() {
    for accepted in [200, 201, 204, 299] {
        let answers = [(AT_ONCE, status(409)), (AT_ONCE, status(409)), (AT_ONCE, status(accepted))];
        assert_eq!(deliver(&answers, 120).await, (DeliveryOutcome::Accepted, vec![0.0, 1.0, 3.0], 3.0));
    }
}

#[tokio::test(start_paused = true)]
async fn gone_ends_the_tries_at_once() {
    let answers = [(AT_ONCE, status(503)), (AT_ONCE, status(410))];
    assert_eq!(deliver(&answers, 120).await, (DeliveryOutcome::Gone, vec![0.0, 1.0], 1.0));
}

#[tokio::test(start_paused = true)]
async fn a_receiver_that_never_answers_costs_ten_seconds_a_try() {
    let (outcome, tries, end) = deliver(&[(Duration::MAX, status(200))], 40).await;
    assert_eq!((outcome, end), (DeliveryOutcome::Undelivered, 48.0), "the last try is awaited");
    assert_eq!(tries, [0.0, 11.0, 23.0, 38.0]);
}

#[tokio::test(start_paused = true)]
async fn a_try_that_is_under_way_at_the_end_is_awaited_and_counts() {
    let slow = [(AT_ONCE, status(500)), (Duration::from_secs(9), status(200))];
    assert_eq!(deliver(&slow, 5).await, (DeliveryOutcome::Accepted, vec![0.0, 1.0], 10.0));
    let refused = [(Duration::from_secs(9), status(500))];
    assert_eq!(deliver(&refused, 5).await, (DeliveryOutcome::Undelivered, vec![0.0], 9.0));
    let over = deliver(&refused, 0).await;
    assert_eq!(over, (DeliveryOutcome::Undelivered, vec![], 0.0), "no try begins after the end");
}

#[tokio::test(start_paused = true)]
async fn a_pause_that_the_receiver_asks_for_is_honoured_also_beyond_the_end() {
    let busy = |s| Answer::Status { code: 429, retry_after: Some(Duration::from_secs(s)) };
    let answers = [(AT_ONCE, busy(7)), (AT_ONCE, status(503)), (AT_ONCE, status(200))];
    assert_eq!(deliver(&answers, 120).await, (DeliveryOutcome::Accepted, vec![0.0, 7.0, 9.0], 9.0));
    assert_eq!(deliver(&[(AT_ONCE, busy(3_600))], 120).await, (DeliveryOutcome::Undelivered, vec![0.0], 120.0));
}

#[tokio::test(start_paused = true)]
async fn pauses_differ_by_a_fifth_at_most() {
    let (sender, _) = deliveries(&[(AT_ONCE, status(200))]);
    for (drawn, expected_ms) in [(0, 8_000), (1 << 63, 10_000), (u64::MAX, 12_000)] {
        sender.0.entropy.0.store(drawn, Ordering::Relaxed);
        assert_eq!(sender.0.jittered(Duration::from_secs(10)).as_millis(), expected_ms);
    }
}

#[tokio::test(start_paused = true)]
async fn a_cancelled_delivery_ends_at_once_in_a_try_and_between_tries() {
    for answers in [[(Duration::MAX, status(200))], [(AT_ONCE, status(500))]] {
        let (sender, script) = deliveries(&answers);
        let callback = sender.resolve("target:n8n", None).expect("allowed");
        let cancel = CancellationToken::new();
        let delivery = sender.deliver(callback, event(), START.plus(Duration::from_secs(60)), cancel.clone());
        let cancelled = async {
            script.clock.sleep(Duration::from_millis(500)).await;
            cancel.cancel();
        };
        let (outcome, ()) = tokio::join!(delivery, cancelled);
        assert_eq!(
            (outcome, script.clock.now().since(START)),
            (DeliveryOutcome::Cancelled, Duration::from_millis(500))
        );
    }
}

/// The file is read for each try: a target that was taken out gets nothing more, and one that came back does.
#[tokio::test(start_paused = true)]
async fn a_target_that_was_taken_out_gets_no_further_try() {
    let (sender, script) = deliveries(&[(AT_ONCE, status(500)), (AT_ONCE, status(200))]);
    let callback = sender.resolve("https://n8n/w/17", None).expect("allowed");
    let until = START.plus(Duration::from_secs(120));
    let delivery = sender.deliver(callback, event(), until, CancellationToken::new());
    let before = sender.0.file();
    let edited = async {
        script.clock.sleep(Duration::from_millis(500)).await;
        sender.0.replace(WebhooksFile::default());
        script.clock.sleep(Duration::from_secs(10)).await;
        sender.0.replace((*before).clone());
    };
    let (outcome, ()) = tokio::join!(delivery, edited);
    let tries: Vec<_> = script.seen.lock().iter().map(|(at, _)| at.as_secs()).collect();
    assert_eq!((outcome, tries), (DeliveryOutcome::Accepted, vec![0, 18]));
}

/// While a secret is replaced the one before opens the addresses of tickets that wait, and nothing does when it is taken out.
#[tokio::test(start_paused = true)]
async fn an_address_that_no_secret_opens_is_not_called() {
    let (sender, script) = deliveries(&[(AT_ONCE, status(200))]);
    let callback = sender.resolve("https://n8n/w/17", None).expect("allowed");
    let sealed = sender.seal(&callback, "tk_1").expect("there is a secret");
    let deliver = async || {
        let until = script.clock.now().plus(Duration::from_millis(500));
        let opened = sender.open("n8n", sealed.as_deref(), "tk_1");
        let outcome = sender.deliver(opened, event(), until, CancellationToken::new()).await;
        (outcome, std::mem::take(&mut *script.counted.lock()))
    };
    let secret = SigningSecret::parse(&SigningSecret::generate(|bytes| bytes.fill(2))).expect("a secret");
    let mut file = (*sender.0.file()).clone();
    file.sealing.insert(0, SealingKey::of(&secret).expect("a key"));
    sender.0.replace(file.clone());
    assert_eq!(deliver().await, (DeliveryOutcome::Accepted, vec!["accepted"]));
    file.sealing.truncate(1);
    sender.0.replace(file);
    assert_eq!(deliver().await, (DeliveryOutcome::Undelivered, vec!["blocked", "gave-up"]));
    assert_eq!(script.seen.lock().len(), 1, "it was not sent");
}

#[tokio::test(start_paused = true)]
async fn one_target_gets_a_bounded_number_of_tries_at_a_time() {
    let (sender, script) = deliveries(&[(Duration::from_secs(5), status(200))]);
    let until = START.plus(Duration::from_secs(600));
    let all = (0..100).map(|_| {
        let callback = sender.resolve("target:n8n", None).expect("allowed");
        sender.deliver(callback, event(), until, CancellationToken::new())
    });
    let outcomes = futures_util::future::join_all(all).await;
    assert!(outcomes.iter().all(|outcome| *outcome == DeliveryOutcome::Accepted));
    assert_eq!(script.most.lock().1, TRIES_PER_TARGET);
    assert_eq!(script.clock.now().since(START).as_secs(), 20, "four rounds of 5 s");
}

/// Many call-backs of one principal to a receiver that never answers do not delay those of another one to the same target.
#[tokio::test(start_paused = true)]
async fn one_principal_takes_only_a_part_of_a_targets_tries() {
    let answers = [(Duration::MAX, status(200)); TRIES_PER_TARGET / PRINCIPAL_PART];
    let (sender, script) = deliveries(&[answers.as_slice(), &[(AT_ONCE, status(200))]].concat());
    let (until, cancel) = (START.plus(Duration::from_secs(5)), CancellationToken::new());
    let of = |principal: &str| {
        let event = CallbackEvent { principal: principal.to_owned(), ..event() };
        sender.deliver(sender.resolve("target:n8n", None).expect("allowed"), event, until, cancel.clone())
    };
    let slow = futures_util::future::join_all((0..100).map(|_| of("slow")));
    let other = async {
        script.clock.sleep(Duration::from_secs(1)).await;
        assert_eq!(of("other").await, DeliveryOutcome::Accepted);
        script.clock.now().since(START)
    };
    let (outcomes, accepted_after) = tokio::join!(slow, other);
    assert_eq!(accepted_after, Duration::from_secs(1), "at once");
    assert!(outcomes.iter().all(|outcome| *outcome == DeliveryOutcome::Undelivered));
    assert_eq!(script.seen.lock().len(), answers.len() + 1, "no try begins after the end");
}

/// The end of the time to accept is kept also where no try could begin.
#[tokio::test(start_paused = true)]
async fn a_call_back_that_gets_no_slot_ends_when_the_time_to_accept_does() {
    let (sender, script) = deliveries(&[(Duration::from_secs(9), status(500))]);
    let deliver = |until_s| {
        let callback = sender.resolve("target:n8n", None).expect("allowed");
        sender.deliver(callback, event(), START.plus(Duration::from_secs(until_s)), CancellationToken::new())
    };
    let all = futures_util::future::join_all((0..TRIES_PER_TARGET).map(|_| deliver(60)));
    let late = async {
        script.clock.sleep(Duration::from_secs(1)).await;
        (deliver(5).await, script.clock.now().since(START).as_secs())
    };
    tokio::select! {
        _ = all => panic!("they last longer"),
        outcome = late => assert_eq!(outcome, (DeliveryOutcome::Undelivered, 5)),
    }
}

#[tokio::test(start_paused = true)]
async fn addresses_are_resolved_for_a_principal_and_refused_without_a_word_about_others() {
    let (sender, _) = deliveries(&[(AT_ONCE, status(200))]);
    let (ci, ann) = (PrincipalName::parse("ci").expect("good"), PrincipalName::parse("ann").expect("good"));
    let mut file = (*sender.0.file()).clone();
    file.targets.push(Arc::new(Target { principals: Some(vec![ci.clone()]), ..target("of-ci", "https://ci/SECRET/") }));
    sender.0.replace(file);
    let of = |address: &str, who: Option<&PrincipalName>| {
        sender.resolve(address, who).map(|found| found.target().to_owned())
    };
    assert_eq!(of("https://ci/SECRET/x", Some(&ci)), Ok("of-ci".to_owned()));
    assert_eq!(of("target:of-ci", Some(&ci)), Ok("of-ci".to_owned()));
    assert_eq!(of("target:n8n", Some(&ann)), Ok("n8n".to_owned()));
    for address in
        ["https://ci/SECRET/x", "target:of-ci", "target:", "target:nobody", "https://elsewhere/", "http://n8n/w/"]
    {
        match sender.resolve(address, Some(&ann)) {
            Err(CallbackRefused::NotAllowed(why)) => {
                assert!(!why.contains("of-ci") && !why.contains("SECRET"), "{why}")
            }
            other => panic!("{address}: {other:?}"),
        }
    }
    for address in
        ["https://u@n8n/w/", "https://n8n/w/#x", "ftp://n8n/w/", &format!("https://n8n/w/{}", "x".repeat(2_048))]
    {
        assert!(matches!(sender.resolve(address, None), Err(CallbackRefused::Invalid(_))), "{address}");
    }
}
