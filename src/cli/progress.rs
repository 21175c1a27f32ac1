//! Shows progress while a command waits for a lock, by separate requests for the lock's state.

use std::cell::Cell;
use std::io::{self, IsTerminal};
use std::time::Duration;

use super::output::MessageWriter;
use crate::api;
use crate::client::error::{ErrorClass, one_line};
use crate::client::requests::LockRequest;
use crate::client::transport::Client;
use crate::redlock::clock::{BootTime, Clock, SystemClock};

/// Interval of updates on a terminal, and the time before the first line elsewhere.
const UPDATE_INTERVAL: Duration = Duration::from_secs(1);
/// Interval of checks elsewhere whether the holder has changed.
const CHECK_INTERVAL: Duration = Duration::from_secs(5);
/// Maximum time between two lines elsewhere.
const REPEAT_INTERVAL: Duration = Duration::from_secs(60);
/// Maximum length of the line in characters: a longer one wraps and cannot be overwritten.
const LINE_MAX_CHARS: usize = 100;
/// Returns to the start of the line and clears it.
const CLEAR_LINE: &str = "\r\x1b[K";

/// What is shown during a wait.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Shown {
    Nothing,
    /// Only why the wait cannot end: the nodes or the service do not answer, or do not vote.
    Troubles,
    /// Also position, holder and time left.
    All,
}

/// Polls `waiting` and shows its progress: on a terminal, a line that is overwritten; elsewhere a line at first, one at each
/// change of the holder, and one a minute. For [`Shown::Troubles`], troubles are always shown as elsewhere.
/// Cancel: `waiting` is dropped; the line stays.
pub(super) async fn with_progress<T>(
    shown: Shown,
    client: &Client,
    request: &LockRequest,
    until: BootTime,
    messages: &MessageWriter<'_>,
    waiting: impl Future<Output = T>,
) -> T {
    if shown == Shown::Nothing {
        return waiting.await;
    }
    let is_terminal = io::stderr().is_terminal() && std::env::var_os("TERM").is_none_or(|term| term != "dumb");
    let is_line_shown = Cell::new(false);
    let updates = async {
        let mut printed: Option<(Result<Option<u64>, ()>, BootTime)> = None;
        loop {
            SystemClock.sleep(if printed.is_some() { CHECK_INTERVAL } else { UPDATE_INTERVAL }).await;
            let now = SystemClock.now();
            let (kind, line) = match blocking(client, request).await {
                Ok(Some(lock)) if shown == Shown::All => {
                    (Ok(lock.holders.first().map(|holder| holder.fence)), line(&lock, request, until.since(now)))
                }
                Ok(_) => continue,
                Err(why) => (Err(()), format!("waiting for {}: {why}", request.names)),
            };
            if is_terminal && shown == Shown::All {
                is_line_shown.set(true);
                messages.text(&format!("{CLEAR_LINE}{}", line.chars().take(LINE_MAX_CHARS).collect::<String>()));
                continue;
            }
            if printed.is_none_or(|(before, at)| before != kind || now.since(at) >= REPEAT_INTERVAL) {
                printed = Some((kind, now));
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

/// The awaited lock; of several, the first held one. An error: why its state is unknown, in one line.
async fn blocking(client: &Client, request: &LockRequest) -> Result<Option<api::LockDetails>, String> {
    let mut waited = None;
    for name in request.names.iter() {
        match client.inspect(name).await {
            Ok(Some(lock)) if lock.foreign || !lock.holders.is_empty() => return Ok(Some(lock)),
            Ok(Some(lock)) => waited = Some(lock),
            Ok(None) => {}
            // Other refusals do not concern the wait: this caller may not read the state.
            Err(error) if error.class() == ErrorClass::Unavailable => return Err(one_line(&error.to_string())),
            Err(_) => {}
        }
    }
    Ok(waited)
}

/// Position, holder, time left.
fn line(lock: &api::LockDetails, request: &LockRequest, left: Duration) -> String {
    let mut parts = vec![format!("waiting for {}", request.names)];
    // For several locks: the name of the one that the line is about.
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
    parts.join(", ")
}

/// A holder: owner, note, validity.
pub(super) fn held_by(holder: &api::Holder) -> String {
    let owner = if holder.owner.is_empty() { "a holder without a name" } else { &holder.owner };
    let note = if holder.note.is_empty() { String::new() } else { format!(" ({})", one_line(&holder.note)) };
    match holder.valid_for_ms {
        None => format!("held by {}{note}", one_line(owner)),
        Some(0) => format!("last held by {}{note}, whose time is over", one_line(owner)),
        Some(left) => format!("held by {}{note} for {} s unless renewed", one_line(owner), left.div_ceil(1_000)),
    }
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
            valid_for_ms: Some(1_001),
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
            ticket: false,
        };
        let lock = api::LockDetails {
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
        let over = api::Holder { valid_for_ms: Some(0), ..lock.holders[0].clone() };
        assert_eq!(held_by(&over), "last held by ci\\u{1b}[31m (n), whose time is over");
        let unknown = api::Holder { valid_for_ms: None, ..over };
        assert_eq!(held_by(&unknown), "held by ci\\u{1b}[31m (n)");
    }
}
