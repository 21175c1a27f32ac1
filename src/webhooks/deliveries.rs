//! Sends messages: the limits that all tries share, and all tries of one call-back. Until a call-back is accepted,
//! its lock is held and unused: so tries follow each other within seconds, and only 2xx and 410 end them early.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::BoxFuture;
use parking_lot::{Mutex, RwLock};
use reqwest::Url;
use ring::aead::NONCE_LEN;
use tokio_util::sync::CancellationToken;

use super::file::WebhooksFile;
use super::message::{Body, Content};
use super::target::{Target, parse_url};
use super::transport::{Answer, Outgoing, Transport};
use super::try_slots::{TrySlot, TrySlots};
use super::under_way::UnderWay;
use crate::auth::principal::PrincipalName;
use crate::manager::callbacks::{
    Callback, CallbackEvent, CallbackKind, CallbackRefused, CallbackSender, DeliveryOutcome,
};
use crate::redlock::clock::{BootTime, Clock};
use crate::redlock::random::Entropy;

/// Maximum duration of a try, from the look-up of the name to the status of the answer.
pub const DELIVERY_TIMEOUT: Duration = Duration::from_secs(10);
/// Pauses between the tries of a call-back; the last one repeats. Seconds.
const CALLBACK_PAUSES_S: [u64; 6] = [1, 2, 5, 10, 20, 30];
/// Each pause is up to this part longer or shorter, so that tries do not come in waves. Per mille.
const JITTER: u64 = 200;
/// The prefix of an address that names a target.
const TARGET_PREFIX: &str = "target:";

/// The purpose of a message: a metric label.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum DeliveryKind {
    /// A ticket's call-back.
    Callback,
    /// A message to a hook.
    Hook,
    /// A test that was requested.
    Test,
}

/// The outcome of a try, or of all tries of a message: a metric label.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum TryOutcome {
    /// The receiver answered 2xx.
    Accepted,
    /// Not accepted: it may be tried again.
    Again,
    /// The receiver answered 410.
    Gone,
    /// A rule forbids the connection.
    Blocked,
    /// The last try was not accepted either.
    GaveUp,
}

impl DeliveryKind {
    /// The label's value in metrics.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Callback => "callback",
            Self::Hook => "hook",
            Self::Test => "test",
        }
    }
}

impl TryOutcome {
    /// The label's value in metrics.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Accepted => "accepted",
            Self::Again => "again",
            Self::Gone => "gone",
            Self::Blocked => "blocked",
            Self::GaveUp => "gave-up",
        }
    }

    /// The outcome of a single try.
    pub fn of(answer: Answer) -> Self {
        match answer {
            answer if answer.is_accepted() => Self::Accepted,
            answer if answer.is_gone() => Self::Gone,
            Answer::Blocked(_) => Self::Blocked,
            _ => Self::Again,
        }
    }
}

/// Called after each try, with its duration, and when a message is given up (without).
pub type TryObserver = Box<dyn Fn(DeliveryKind, TryOutcome, Option<Duration>) + Send + Sync>;

/// The last try to a target.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LastTry {
    /// When it ended. Milliseconds since 1970.
    pub at_ms: u64,
    /// The receiver's answer, or why there was none.
    pub answer: Answer,
    /// How long it took.
    pub took: Duration,
}

/// What the tries of all messages share.
pub struct Deliveries<C, E, T> {
    pub(super) clock: C,
    pub(super) entropy: E,
    transport: T,
    file: RwLock<Arc<WebhooksFile>>,
    slots: TrySlots,
    /// The last tries by the target's name.
    last_tries: Mutex<HashMap<String, LastTry>>,
    pub(super) under_way: UnderWay,
    observer: TryObserver,
}

/// What one try needs.
pub(super) struct Try {
    pub(super) kind: DeliveryKind,
    pub(super) target: Arc<Target>,
    pub(super) url: Url,
    pub(super) id: String,
    pub(super) body: Body,
}

impl<C: Clock, E: Entropy, T: Transport> Deliveries<C, E, T> {
    /// Deliveries with this content of the file.
    pub fn new((clock, entropy, transport): (C, E, T), file: WebhooksFile, observer: TryObserver) -> Self {
        let (slots, last_tries, under_way) = (TrySlots::default(), Mutex::default(), UnderWay::default());
        Self { clock, entropy, transport, file: RwLock::new(Arc::new(file)), slots, last_tries, under_way, observer }
    }

    /// The content in force.
    pub fn file(&self) -> Arc<WebhooksFile> {
        Arc::clone(&self.file.read())
    }

    /// Puts a new content in force. Tries that are under way end with the former content.
    pub fn replace(&self, file: WebhooksFile) {
        self.last_tries.lock().retain(|name, _| file.target(name).is_some());
        *self.file.write() = Arc::new(file);
    }

    /// The last try to a target.
    pub fn last_try(&self, target: &str) -> Option<LastTry> {
        self.last_tries.lock().get(target).cloned()
    }

    pub(super) fn observe(&self, kind: DeliveryKind, outcome: TryOutcome, took: Option<Duration>) {
        (self.observer)(kind, outcome, took);
    }

    /// Makes one try, once fewer tries than the maximum are under way.
    ///
    /// Cancel: the message may have arrived.
    pub(super) async fn attempt(&self, try_: Try) -> Answer {
        let slot = self.slots.acquire(&try_.target.name, "").await;
        self.attempt_in(slot, try_).await
    }

    /// Makes one try for a principal, see [`TrySlots::acquire`]; `None` if no try could begin before `until`.
    ///
    /// Cancel: the message may have arrived.
    async fn attempt_until(&self, try_: Try, principal: &str, until: BootTime) -> Option<Answer> {
        let slot = tokio::select! {
            biased;
            slot = self.slots.acquire(&try_.target.name, principal) => slot,
            () = self.clock.sleep_until(until) => return None,
        };
        Some(self.attempt_in(slot, try_).await)
    }

    async fn attempt_in(&self, _slot: TrySlot, try_: Try) -> Answer {
        let (begin, kind, name) = (self.clock.now(), try_.kind, try_.target.name.clone());
        let outgoing = Outgoing { url: try_.url, id: try_.id, at_ms: self.clock.wall_ms(), body: try_.body };
        let answer = tokio::select! {
            biased;
            answer = self.transport.send(try_.target, outgoing) => answer,
            () = self.clock.sleep(DELIVERY_TIMEOUT) => Answer::Failed("no answer within 10 s"),
        };
        let took = self.clock.now().since(begin);
        let outcome = TryOutcome::of(answer);
        self.observe(kind, outcome, Some(took));
        if self.file().target(&name).is_some() {
            self.last_tries.lock().insert(name.clone(), LastTry { at_ms: self.clock.wall_ms(), answer, took });
        }
        match outcome {
            TryOutcome::Accepted => {
                tracing::debug!(receiver = %name, kind = kind.as_str(), ?took, "a message was accepted")
            }
            _ => {
                let answer = answer.text();
                tracing::info!(receiver = %name, kind = kind.as_str(), answer, ?took, "a message was not accepted");
            }
        }
        answer
    }

    /// The pause with its jitter.
    pub(super) fn jittered(&self, pause: Duration) -> Duration {
        let per_mille = 1_000 - JITTER + self.entropy.below(2 * JITTER + 1);
        pause.saturating_mul(u32::try_from(per_mille).unwrap_or(1_000)) / 1_000
    }

    /// The target and the URL of a call-back, by the present file. Errors: one sentence.
    fn current(&self, callback: &Callback) -> Result<(Arc<Target>, Url), &'static str> {
        let file = self.file();
        let target = file.target(callback.target()).ok_or("its target is no longer in the webhooks file")?;
        if callback.reveal().is_empty() {
            return Err("no secret of `sealing_secret_files` opens its address");
        }
        let url = match callback.reveal().strip_prefix(TARGET_PREFIX) {
            Some(_) => target.url.clone(),
            None => parse_url(callback.reveal()).map_err(|_| "its address is invalid")?,
        };
        match target.covers(&url) {
            true => Ok((Arc::clone(target), url)),
            false => Err("its address is no longer below its target's"),
        }
    }

    async fn deliver_callback(
        &self,
        callback: &Callback,
        event: &CallbackEvent,
        until: BootTime,
        cancel: &CancellationToken,
    ) -> DeliveryOutcome {
        let mut pauses = CALLBACK_PAUSES_S.iter();
        let mut pause_s = CALLBACK_PAUSES_S[0];
        let counted = self.under_way.begin(callback.target());
        while self.clock.now() < until {
            counted.next_try(None);
            let answer = match self.current(callback) {
                Ok((target, url)) => {
                    let content =
                        Content { id: &event.id, kind: event.kind.as_str(), at_ms: event.at_ms, data: &event.data };
                    let body = content.body(&target.form);
                    let try_ = Try { kind: DeliveryKind::Callback, target, url, id: event.id.clone(), body };
                    tokio::select! {
                        biased;
                        () = cancel.cancelled() => return DeliveryOutcome::Cancelled,
                        answer = self.attempt_until(try_, &event.principal, until) => match answer {
                            Some(answer) => answer,
                            None => break,
                        },
                    }
                }
                Err(why) => {
                    self.observe(DeliveryKind::Callback, TryOutcome::Blocked, None);
                    Answer::Blocked(why)
                }
            };
            match answer {
                answer if answer.is_accepted() => return DeliveryOutcome::Accepted,
                answer if answer.is_gone() => return DeliveryOutcome::Gone,
                _ => {}
            }
            pause_s = pauses.next().copied().unwrap_or(pause_s);
            let asked = match answer {
                Answer::Status { retry_after, .. } => retry_after.unwrap_or_default(),
                _ => Duration::ZERO,
            };
            let next = self.clock.now().plus(self.jittered(Duration::from_secs(pause_s)).max(asked));
            counted.next_try((next < until).then_some(next));
            tokio::select! {
                biased;
                () = cancel.cancelled() => return DeliveryOutcome::Cancelled,
                () = self.clock.sleep_until(next.min(until)) => {}
            }
        }
        // A receiver that can be called only once, such as a resume URL, gets no message about the end of the lease.
        if event.kind == CallbackKind::Granted {
            self.observe(DeliveryKind::Callback, TryOutcome::GaveUp, None);
        }
        tracing::warn!(
            receiver = callback.target(),
            kind = event.kind.as_str(),
            "a call-back was not accepted in time"
        );
        DeliveryOutcome::Undelivered
    }
}

/// The refusal of an address that cannot be sealed: an address is a secret, and the nodes store no secret in the clear.
fn unsealed() -> CallbackRefused {
    CallbackRefused::NotAllowed(
        "URLs are accepted only where the webhooks file has `sealing_secret_files`, by which they are stored; `target:NAME` \
         needs none"
            .to_owned(),
    )
}

/// A handle of [`Deliveries`], through which the manager sends call-backs.
pub struct CallbackDeliveries<C, E, T>(pub Arc<Deliveries<C, E, T>>);

impl<C: Clock, E: Entropy, T: Transport> CallbackSender for CallbackDeliveries<C, E, T> {
    fn resolve(&self, address: &str, principal: Option<&PrincipalName>) -> Result<Callback, CallbackRefused> {
        let file = self.0.file();
        if let Some(name) = address.strip_prefix(TARGET_PREFIX) {
            let target = file.target(name).filter(|target| target.is_open_to(principal));
            let refused =
                || CallbackRefused::NotAllowed("there is no target with this name for this principal".to_owned());
            return target.map(|target| Callback::new(&target.name, address)).ok_or_else(refused);
        }
        let url = parse_url(address).map_err(CallbackRefused::Invalid)?;
        if file.sealing.is_empty() {
            return Err(unsealed());
        }
        let mut below = file.targets.iter().filter(|target| target.covers(&url));
        match below.find(|target| target.is_open_to(principal)) {
            Some(target) => Ok(Callback::new(&target.name, address)),
            None => Err(CallbackRefused::NotAllowed(
                "the URL is below no target of the webhooks file that is open to this principal".to_owned(),
            )),
        }
    }

    fn seal(&self, callback: &Callback, context: &str) -> Result<Option<String>, CallbackRefused> {
        if callback.reveal().starts_with(TARGET_PREFIX) {
            return Ok(None);
        }
        let mut nonce = [0; NONCE_LEN];
        self.0.entropy.fill(&mut nonce);
        let file = self.0.file();
        let sealed = file.sealing.first().and_then(|key| key.seal(callback.reveal(), context, nonce));
        sealed.map(Some).ok_or_else(unsealed)
    }

    fn open(&self, target: &str, sealed: Option<&str>, context: &str) -> Callback {
        let Some(sealed) = sealed else { return Callback::new(target, &format!("{TARGET_PREFIX}{target}")) };
        let file = self.0.file();
        let opened = file.sealing.iter().find_map(|key| key.open(sealed, context));
        Callback::new(target, &opened.unwrap_or_default())
    }

    fn deliver(
        &self,
        callback: Callback,
        event: CallbackEvent,
        until: BootTime,
        cancel: CancellationToken,
    ) -> BoxFuture<'static, DeliveryOutcome> {
        let deliveries = Arc::clone(&self.0);
        Box::pin(async move { deliveries.deliver_callback(&callback, &event, until, &cancel).await })
    }
}

#[cfg(test)]
#[path = "deliveries_tests.rs"]
mod tests;
