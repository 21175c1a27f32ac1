//! Hooks: events of this instance become messages, which one task sends. Also what operators use: the state of each
//! target and hook, tests, replays, and reloads of the file.

use std::collections::{HashMap, HashSet};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU16, AtomicU64, Ordering};
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use super::deliveries::{Deliveries, DeliveryKind, LastTry, Try, TryObserver, TryOutcome};
use super::event::{HookEvent, HookEvents, HookMessage, LongWait};
use super::file::{self, Hook, WebhooksFile, WebhooksFileError};
use super::hook_queue::{HookChange, HookQueue, Waiting};
use super::message::Content;
use super::resolver::Lookup;
use super::target::Target;
use super::transport::Transport;
use super::try_slots::TRIES_TOTAL;
use crate::api::Event;
use crate::manager::events::{EventKind, EventObserver};
use crate::redlock::clock::{BootTime, Clock};
use crate::redlock::random::Entropy;
use crate::types::ResourceName;

/// How often the waits are compared with the times after which hooks want a message.
pub const WAIT_SCAN: Duration = Duration::from_secs(1);
/// The prefix of a target's name where hooks have names too.
pub const TARGET_PREFIX: &str = "target:";

/// Call-backs and hooks of one instance.
pub struct Webhooks<C, E, T> {
    /// Sends the tries, also those of call-backs.
    pub deliveries: Arc<Deliveries<C, E, T>>,
    path: Option<PathBuf>,
    lookup: Arc<dyn Lookup>,
    instance: String,
    pub(super) queues: Mutex<HashMap<String, HookQueue>>,
    /// The events that any hook receives; each event of the instance is compared with them.
    wanted: AtomicU16,
    /// Dropped messages of hooks that are no longer in the file.
    pub(super) dropped_before: AtomicU64,
    changed: Notify,
    /// Hooks and resources whose long wait was reported and continues.
    reported_waits: Mutex<HashSet<(String, String)>>,
}

/// No target and no hook has this name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NoSuchName;

/// A message whose try begins.
struct Due {
    hook: Arc<Hook>,
    waiting: Waiting,
}

impl<C: Clock, E: Entropy, T: Transport> EventObserver for Webhooks<C, E, T> {
    fn wants(&self, kind: EventKind) -> bool {
        HookEvent::of(kind).is_some_and(|event| self.has_hooks_for(event))
    }

    fn receive(&self, kind: EventKind, event: &Event) {
        let Some(wanted) = HookEvent::of(kind).filter(|event| self.has_hooks_for(*event)) else { return };
        let resource = event.resource.as_deref().map(ResourceName::parse);
        if matches!(resource, Some(Err(_))) {
            return;
        }
        let resource = resource.and_then(Result::ok);
        let file = self.deliveries.file();
        let hooks = file.hooks.iter().filter(|hook| hook.events.has(wanted) && covers(hook, resource.as_ref()));
        let message = HookMessage::new(wanted, event, &self.instance);
        hooks.for_each(|hook| self.push(hook, message.clone()));
    }
}

impl<C: Clock, E: Entropy, T: Transport> Webhooks<C, E, T> {
    /// Reads the file, if there is one. Blocks on the disk.
    ///
    /// Errors: [`WebhooksFileError`].
    pub fn open(
        parts: (C, E, T),
        path: Option<PathBuf>,
        lookup: Arc<dyn Lookup>,
        instance: String,
        observer: TryObserver,
    ) -> Result<Self, WebhooksFileError> {
        let file = path.as_ref().map(|path| file::read(path, &lookup)).transpose()?.unwrap_or_default();
        let webhooks = Self { path, instance, ..Self::without_file(parts, lookup, observer) };
        webhooks.put_in_force(file);
        Ok(webhooks)
    }

    /// Hooks without a file: there are no targets and no hooks.
    pub(super) fn without_file(parts: (C, E, T), lookup: Arc<dyn Lookup>, observer: TryObserver) -> Self {
        Self {
            deliveries: Arc::new(Deliveries::new(parts, WebhooksFile::default(), observer)),
            path: None,
            lookup,
            instance: String::new(),
            queues: Mutex::default(),
            wanted: AtomicU16::new(0),
            dropped_before: AtomicU64::new(0),
            changed: Notify::new(),
            reported_waits: Mutex::default(),
        }
    }

    /// Reads the file again; an invalid file leaves the former in force. Blocks on the disk. Returns every file that was read.
    ///
    /// Errors: [`WebhooksFileError`].
    pub fn reload(&self) -> Result<Vec<PathBuf>, WebhooksFileError> {
        let Some(path) = &self.path else { return Ok(Vec::new()) };
        let file = file::read(path, &self.lookup)?;
        let files = file.files.clone();
        self.put_in_force(file);
        Ok(files)
    }

    /// Puts a file in force. Hooks that it no longer has lose their waiting messages; hooks that were off are on again.
    fn put_in_force(&self, file: WebhooksFile) {
        let mut queues = self.queues.lock();
        queues.retain(|name, queue| {
            let is_kept = file.hook(name).is_some();
            if !is_kept {
                self.dropped_before.fetch_add(queue.counts.dropped, Ordering::Relaxed);
            }
            if !is_kept && queue.waiting() > 0 {
                tracing::warn!(hook = %name, messages = queue.waiting(), "the hook is gone from the file, and its messages with it");
            }
            is_kept
        });
        for hook in &file.hooks {
            if queues.entry(hook.name.clone()).or_default().switch_on() {
                tracing::info!(hook = %hook.name, "the hook is on again: its file was read anew");
            }
        }
        let wanted = file.hooks.iter().fold(HookEvents::default(), |all, hook| all.or(hook.events));
        self.deliveries.replace(file);
        self.wanted.store(wanted.bits(), Ordering::Release);
        drop(queues);
        self.changed.notify_one();
    }

    /// The files whose change causes a reload.
    pub fn files(&self) -> Vec<PathBuf> {
        self.deliveries.file().files.clone()
    }

    fn has_hooks_for(&self, event: HookEvent) -> bool {
        HookEvents::from_bits(self.wanted.load(Ordering::Acquire)).has(event)
    }

    /// Whether any hook receives messages about long waits.
    pub fn wants_waits(&self) -> bool {
        self.has_hooks_for(HookEvent::LockWaitingLong)
    }

    /// Compares the longest wait of each queue with each hook's limit, and reports each long wait once while it lasts.
    pub fn receive_waits(&self, waits: &[LongWait]) {
        let (file, at_ms) = (self.deliveries.file(), self.deliveries.clock.wall_ms());
        let mut reported = self.reported_waits.lock();
        let mut still = HashSet::new();
        for hook in file.hooks.iter().filter(|hook| hook.events.has(HookEvent::LockWaitingLong)) {
            for wait in waits.iter().filter(|wait| Duration::from_millis(wait.waiting_ms) >= hook.waiting_longer) {
                let Ok(resource) = ResourceName::parse(&wait.resource) else { continue };
                if !covers(hook, Some(&resource)) {
                    continue;
                }
                let key = (hook.name.clone(), wait.resource.clone());
                if !reported.contains(&key) {
                    self.push(hook, HookMessage::waiting_long(wait, &self.instance, at_ms));
                }
                still.insert(key);
            }
        }
        *reported = still;
    }

    fn push(&self, hook: &Hook, message: HookMessage) {
        let now = self.deliveries.clock.now();
        let mut queues = self.queues.lock();
        let Some(queue) = queues.get_mut(&hook.name) else { return };
        let (dropped, is_queued) = (queue.counts.dropped, queue.push(message, now));
        drop(queues);
        match is_queued {
            true => self.changed.notify_one(),
            // Logged once per thousand: the metric counts all.
            false if dropped.is_multiple_of(1_000) => {
                tracing::warn!(hook = %hook.name, "messages of a hook are dropped: it is off, or too many wait");
            }
            false => {}
        }
    }

    /// Sends waiting messages until `stop` is cancelled; then the untried ones, once. `waits`: the longest wait of each queue.
    ///
    /// Cancel: waiting messages are lost.
    pub async fn run(self: Arc<Self>, waits: impl Fn() -> Vec<LongWait> + Send, stop: CancellationToken) {
        let clock = &self.deliveries.clock;
        let mut under_way = FuturesUnordered::new();
        let mut scan_at = clock.now();
        let mut stops = false;
        loop {
            let now = clock.now();
            if now >= scan_at && !stops {
                scan_at = now.plus(WAIT_SCAN);
                if self.wants_waits() {
                    self.receive_waits(&waits());
                }
            }
            while under_way.len() < TRIES_TOTAL
                && let Some(due) = self.take_due(now)
            {
                under_way.push(self.attempt(due));
            }
            if stops && under_way.is_empty() {
                return;
            }
            let next = self.next_due().filter(|_| under_way.len() < TRIES_TOTAL).unwrap_or(scan_at).min(scan_at);
            tokio::select! {
                biased;
                () = stop.cancelled(), if !stops => {
                    stops = true;
                    self.drop_retries();
                }
                Some((due, last)) = under_way.next(), if !under_way.is_empty() => self.finished(due, last, stops),
                () = self.changed.notified() => {}
                () = clock.sleep_until(next), if !stops => {}
            }
        }
    }

    fn take_due(&self, now: BootTime) -> Option<Due> {
        let file = self.deliveries.file();
        let mut queues = self.queues.lock();
        file.hooks.iter().find_map(|hook| {
            let waiting = queues.get_mut(&hook.name)?.take_due(now)?;
            Some(Due { hook: Arc::clone(hook), waiting })
        })
    }

    fn next_due(&self) -> Option<BootTime> {
        self.queues.lock().values().filter_map(HookQueue::next_due).min()
    }

    async fn attempt(&self, due: Due) -> (Due, LastTry) {
        let begin = self.deliveries.clock.now();
        let try_ = try_of(DeliveryKind::Hook, &due.hook.target, &due.waiting.message);
        let answer = self.deliveries.attempt(try_).await;
        let took = self.deliveries.clock.now().since(begin);
        (due, LastTry { at_ms: self.deliveries.clock.wall_ms(), answer, took })
    }

    fn finished(&self, due: Due, last: LastTry, stops: bool) {
        let Due { hook, waiting } = due;
        let (now, answer) = (self.deliveries.clock.now(), last.answer.text());
        let mut queues = self.queues.lock();
        // The hook may be gone from the file.
        let Some(queue) = queues.get_mut(&hook.name) else { return };
        let change = queue.finished(waiting, last, now, |pause| self.deliveries.jittered(pause));
        let queued = queue.waiting();
        if stops {
            queue.drop_retries();
        }
        drop(queues);
        let hook = &hook.name;
        match change {
            HookChange::Nothing => {}
            HookChange::Fails => tracing::warn!(%hook, answer, "a hook's message was not accepted; it is tried again"),
            HookChange::Works => tracing::info!(%hook, queued, "a hook's messages are accepted again"),
            HookChange::GaveUp => {
                self.deliveries.observe(DeliveryKind::Hook, TryOutcome::GaveUp, None);
                tracing::warn!(%hook, answer, "a hook's message was given up: no try within an hour was accepted");
            }
            HookChange::Off(why) => {
                tracing::error!(%hook, answer, "the hook is switched off: {why}. A test that is accepted switches it on");
            }
        }
    }

    fn drop_retries(&self) {
        let lost: usize = self.queues.lock().values_mut().map(HookQueue::drop_retries).sum();
        if lost > 0 {
            tracing::warn!(
                messages = lost,
                "messages of hooks are lost by the stop: their receivers did not accept them"
            );
        }
    }

    /// Sends one test at once to a hook's target, or to a target (`target:NAME`). If it is accepted, a hook that is
    /// off is switched on.
    ///
    /// Errors: [`NoSuchName`]. Cancel: the test may have arrived.
    pub async fn test(&self, name: &str) -> Result<LastTry, NoSuchName> {
        let file = self.deliveries.file();
        let hook = file.hook(name);
        let target = match name.strip_prefix(TARGET_PREFIX) {
            Some(target) => file.target(target),
            None => hook.map(|hook| &hook.target),
        };
        let target = target.ok_or(NoSuchName)?;
        let (clock, unique) = (&self.deliveries.clock, self.deliveries.entropy.bits());
        let message = HookMessage::test(name, &self.instance, clock.wall_ms(), unique);
        let begin = clock.now();
        let answer = self.deliveries.attempt(try_of(DeliveryKind::Test, target, &message)).await;
        let last = LastTry { at_ms: clock.wall_ms(), answer, took: clock.now().since(begin) };
        if let Some(hook) = hook
            && let Some(queue) = self.queues.lock().get_mut(&hook.name)
        {
            queue.last = Some(last.clone());
            if answer.is_accepted() && queue.switch_on() {
                tracing::warn!(hook = %hook.name, "the hook is on again: a test was accepted");
            }
        }
        self.changed.notify_one();
        Ok(last)
    }

    /// Sends again a hook's last messages that were given up or dropped, and switches the hook on. Returns how many.
    ///
    /// Errors: [`NoSuchName`].
    pub fn replay(&self, name: &str) -> Result<usize, NoSuchName> {
        let now = self.deliveries.clock.now();
        let count = self.queues.lock().get_mut(name).ok_or(NoSuchName)?.replay(now);
        tracing::info!(hook = %name, messages = count, "messages of a hook are sent again, as somebody asked for");
        self.changed.notify_one();
        Ok(count)
    }
}

/// Whether a hook receives events about this resource. Events without a resource match every hook.
fn covers(hook: &Hook, resource: Option<&ResourceName>) -> bool {
    resource.is_none_or(|name| hook.names.is_empty() || hook.names.iter().any(|pattern| pattern.matches(name)))
}

fn try_of(kind: DeliveryKind, target: &Arc<Target>, message: &HookMessage) -> Try {
    let HookMessage { id, event, at_ms, data } = message;
    let body = Content { id, kind: event.as_str(), at_ms: *at_ms, data }.body(&target.form);
    Try { kind, target: Arc::clone(target), url: target.url.clone(), id: id.clone(), body }
}

#[cfg(test)]
#[path = "hooks_tests.rs"]
mod tests;
