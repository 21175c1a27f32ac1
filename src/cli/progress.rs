//! The progress line while a command waits for a lock: updated every second, on a terminal only, by a separate request
//! for the lock's state.

use std::io::{self, IsTerminal};
use std::time::Duration;

use super::output::MessageWriter;
use crate::api;
use crate::client::error::one_line;
use crate::client::requests::LockRequest;
use crate::client::transport::Client;
use crate::redlock::clock::{BootTime, Clock, SystemClock};

/// Interval of updates.
const UPDATE_INTERVAL: Duration = Duration::from_secs(1);
/// Maximum length of the line in characters: a longer one wraps and cannot be overwritten.
const LINE_MAX_CHARS: usize = 100;
/// Returns to the start of the line and clears it.
const CLEAR_LINE: &str = "\r\x1b[K";

/// Polls `waiting` and shows its progress, if `shown` and standard error is a terminal.
/// Cancel: `waiting` is dropped; the line stays.
pub(super) async fn with_progress<T>(
    shown: bool,
    client: &Client,
    request: &LockRequest,
    until: BootTime,
    messages: &MessageWriter<'_>,
    waiting: impl Future<Output = T>,
) -> T {
    if !shown || !io::stderr().is_terminal() {
        return waiting.await;
    }
    let updates = async {
        loop {
            SystemClock.sleep(UPDATE_INTERVAL).await;
            if let Ok(Some(lock)) = client.inspect(&request.resource).await {
                let line = line(&lock, &request.owner, until.since(SystemClock.now()));
                messages.text(&format!("{CLEAR_LINE}{line}"));
            }
        }
    };
    tokio::select! {
        biased;
        done = waiting => {
            messages.text(CLEAR_LINE);
            done
        }
        () = updates => unreachable!("it never ends"),
    }
}

/// Position, holder, time left.
fn line(lock: &api::Lock, owner: &str, left: Duration) -> String {
    let mut parts = vec![format!("waiting for {}", lock.resource)];
    let here = || lock.waiters.iter().filter(|w| w.instance == lock.answered_by);
    if let Some(me) = here().find(|w| w.owner == owner) {
        parts.push(format!("position {} of {}", me.position, here().count()));
    }
    parts.push(match lock.holders.first() {
        Some(holder) => held_by(holder),
        None => "held by another Redlock client".to_owned(),
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
            owner: "ci\u{1b}[31m".into(),
            note: "n".into(),
            metadata: std::collections::BTreeMap::new(),
            fence: 1,
            acquired_at: String::new(),
            valid_for_ms: 1_001,
            renewals: 0,
        };
        let waiter = |position, owner: &str| api::Waiter {
            instance: "here".into(),
            position,
            owner: owner.into(),
            mode: "exclusive".into(),
            waiting_ms: 0,
        };
        let lock = api::Lock {
            resource: "a/b".into(),
            state: "held".into(),
            mode: "exclusive".into(),
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
        let text = line(&lock, "me", Duration::from_secs(9));
        assert_eq!(
            text,
            "waiting for a/b, position 2 of 2, held by ci\\u{1b}[31m (n) for 2 s unless renewed, 9 s left to wait"
        );
    }
}
