//! Shows the progress while a command waits for a lock, by separate requests for the lock's state.

use std::cell::Cell;
use std::io::{self, IsTerminal};
use std::time::Duration;

use super::output::MessageWriter;
use crate::api;
use crate::client::error::one_line;
use crate::client::requests::LockRequest;
use crate::client::transport::Client;
use crate::redlock::clock::{BootTime, Clock, SystemClock};

/// Interval of updates on a terminal, and the time before the first line elsewhere.
const UPDATE_INTERVAL: Duration = Duration::from_secs(1);
/// Interval of checks elsewhere whether the holder has changed.
const CHECK_INTERVAL: Duration = Duration::from_secs(5);
/// Maximum time between two lines there.
const REPEAT_INTERVAL: Duration = Duration::from_secs(60);
/// Maximum length of the line in characters: a longer one wraps and cannot be overwritten.
const LINE_MAX_CHARS: usize = 100;
/// Returns to the start of the line and clears it.
const CLEAR_LINE: &str = "\r\x1b[K";

/// Polls `waiting` and shows its progress, if `shown`: on a terminal a line that is overwritten, elsewhere a line at first,
/// one whenever the holder changes, and one a minute.
/// Cancel: `waiting` is dropped; the line stays.
pub(super) async fn with_progress<T>(
    shown: bool,
    client: &Client,
    request: &LockRequest,
    until: BootTime,
    messages: &MessageWriter<'_>,
    waiting: impl Future<Output = T>,
) -> T {
    if !shown {
        return waiting.await;
    }
    let is_terminal = io::stderr().is_terminal() && std::env::var_os("TERM").is_none_or(|term| term != "dumb");
    let is_line_shown = Cell::new(false);
    let updates = async {
        let mut printed: Option<(Option<u64>, BootTime)> = None;
        loop {
            SystemClock.sleep(if printed.is_some() { CHECK_INTERVAL } else { UPDATE_INTERVAL }).await;
            let Some(lock) = blocking(client, request).await else { continue };
            let now = SystemClock.now();
            let line = line(&lock, request, until.since(now));
            if is_terminal {
                is_line_shown.set(true);
                messages.text(&format!("{CLEAR_LINE}{line}"));
                continue;
            }
            let holder = lock.holders.first().map(|holder| holder.fence);
            if printed.is_none_or(|(before, at)| before != holder || now.since(at) >= REPEAT_INTERVAL) {
                printed = Some((holder, now));
                messages.message(&line);
            }
        }
    };
    tokio::select! {
        biased;
        done = waiting => {
            if is_line_shown.get() {
                messages.text(CLEAR_LINE);
            }
            done
        }
        () = updates => unreachable!("it never ends"),
    }
}

/// The lock that is waited for; of several the first that somebody holds.
async fn blocking(client: &Client, request: &LockRequest) -> Option<api::Lock> {
    let mut waited = None;
    for name in request.names.iter() {
        match client.inspect(name).await {
            Ok(Some(lock)) if lock.foreign || !lock.holders.is_empty() => return Some(lock),
            Ok(Some(lock)) => waited = Some(lock),
            _ => {}
        }
    }
    waited
}

/// Position, holder, time left.
fn line(lock: &api::Lock, request: &LockRequest, left: Duration) -> String {
    let mut parts = vec![format!("waiting for {}", request.names)];
    // Of several locks: the one that the rest is about.
    parts.extend(request.names.single().is_none().then(|| lock.resource.clone()));
    let here = || lock.waiters.iter().filter(|w| w.instance == lock.answered_by);
    if let Some(me) = here().find(|w| w.owner == request.owner) {
        parts.push(format!("position {} of {}", me.position, here().count()));
    }
    parts.push(match (lock.holders.as_slice(), lock.limit) {
        ([], _) => "held by another Redlock client".to_owned(),
        ([only], None) => held_by(only),
        (several, None) => format!("held by {} shared leases", several.len()),
        (several, Some(limit)) => format!("{} of {limit} permits held", several.len()),
    });
    parts.push(format!("{} s left to wait", left.as_secs()));
    parts.join(", ").chars().take(LINE_MAX_CHARS).collect()
}

/// A holder: owner, note, validity.
pub(super) fn held_by(holder: &api::Holder) -> String {
    let owner = if holder.owner.is_empty() { "a holder without a name" } else { &holder.owner };
    let note = if holder.note.is_empty() { String::new() } else { format!(" ({})", one_line(&holder.note)) };
    let seconds = holder.valid_for_ms.div_ceil(1_000);
    format!("held by {}{note} for {seconds} s unless renewed", one_line(owner))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn line_has_position_holder_and_time_without_control_characters() {
        let holder = api::Holder {
            token_id: "0".into(),
            slot: None,
            owner: "ci\u{1b}[31m".into(),
            note: "n".into(),
            metadata: std::collections::BTreeMap::new(),
            fence: 1,
            acquired_at: String::new(),
            valid_for_ms: 1_001,
            kept_until: None,
            kept_for_ms: None,
            renewals: 0,
        };
        let waiter = |position, owner: &str| api::Waiter {
            instance: "here".into(),
            position,
            owner: owner.into(),
            mode: "exclusive".into(),
            waiting_ms: 0,
            left_ms: None,
            note: String::new(),
        };
        let lock = api::Lock {
            resource: "a/b".into(),
            state: "held".into(),
            mode: "exclusive".into(),
            limit: None,
            free: None,
            foreign: false,
            holders: vec![holder],
            waiters: vec![waiter(1, "x"), waiter(2, "me"), api::Waiter { instance: "there".into(), ..waiter(1, "me") }],
            waiting: 3,
            waiting_here: 2,
            waiters_known: true,
            answered_by: "here".into(),
            nodes: Vec::new(),
            quorum: api::Quorum { granted: 1, needed: 1, nodes: 1 },
            observed_at: String::new(),
        };
        let name = |name: &str| crate::types::ResourceName::parse(name).expect("valid");
        let request = LockRequest { owner: "me".into(), ..LockRequest::of(name("a/b")) };
        let text = line(&lock, &request, Duration::from_secs(9));
        assert_eq!(
            text,
            "waiting for a/b, position 2 of 2, held by ci\\u{1b}[31m (n) for 2 s unless renewed, 9 s left to wait"
        );
        let names = crate::client::names::LockNames::new([name("x"), name("a/b")]).expect("two");
        let text = line(&lock, &LockRequest { names, ..request }, Duration::from_secs(9));
        assert!(text.starts_with("waiting for x, a/b, a/b, position 2 of 2, held by ci"), "{text}");
    }
}
