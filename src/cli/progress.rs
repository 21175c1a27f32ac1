//! What a person sees while they wait for a lock: one line, written over each second, on a terminal
//! only. Looks at the queue by a request of its own; a look that fails is no news.

use std::io::{self, IsTerminal};
use std::time::Duration;

use super::output::MessageWriter;
use crate::api;
use crate::client::error::one_line;
use crate::client::requests::LockRequest;
use crate::client::transport::Client;
use crate::redlock::clock::{BootTime, Clock, SystemClock};

/// Between two looks.
const EVERY: Duration = Duration::from_secs(1);
/// The longest line, in characters: a longer one wraps and cannot be written over.
const LINE_MAX_CHARS: usize = 100;
/// Back to the start of the line, and empty it.
const OVER: &str = "\r\x1b[K";

/// Runs `waiting` and shows how it stands meanwhile, if `shown` and standard error is a terminal.
/// Cancel: `waiting` is dropped; the line is left as it is.
pub(super) async fn with_progress<T>(
    shown: bool,
    client: &Client,
    want: &LockRequest,
    until: BootTime,
    messages: &MessageWriter<'_>,
    waiting: impl Future<Output = T>,
) -> T {
    if !shown || !io::stderr().is_terminal() {
        return waiting.await;
    }
    let shows = async {
        loop {
            SystemClock.sleep(EVERY).await;
            if let Ok(Some(lock)) = client.inspect(&want.resource).await {
                let line = line(&lock, &want.owner, until.since(SystemClock.now()));
                messages.text(&format!("{OVER}{line}"));
            }
        }
    };
    tokio::select! {
        biased;
        done = waiting => {
            messages.text(OVER);
            done
        }
        () = shows => unreachable!("it looks for ever"),
    }
}

/// Place, holder, time left.
fn line(lock: &api::Lock, owner: &str, left: Duration) -> String {
    let mut parts = vec![format!("waiting for {}", lock.resource)];
    if let Some(me) = lock.waiters.iter().find(|w| w.owner == owner) {
        parts.push(format!("place {} of {}", me.position, lock.waiters.len()));
    }
    parts.push(match lock.holders.first() {
        Some(holder) => held_by(holder),
        None => "held by another Redlock client".to_owned(),
    });
    parts.push(format!("{} s left to wait", left.as_secs()));
    parts.join(", ").chars().take(LINE_MAX_CHARS).collect()
}

/// Who has it, for how long, what for.
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
    fn the_line_has_place_holder_and_time_and_no_control_characters() {
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
            waiters: vec![waiter(1, "x"), waiter(2, "me")],
            nodes: Vec::new(),
            quorum: api::Quorum { granted: 1, needed: 1, nodes: 1 },
            observed_at: String::new(),
        };
        let text = line(&lock, "me", Duration::from_secs(9));
        assert_eq!(
            text,
            "waiting for a/b, place 2 of 2, held by ci\\u{1b}[31m (n) for 2 s unless renewed, 9 s left to wait"
        );
    }
}
