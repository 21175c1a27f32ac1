//! The signals that `run` takes over while it holds a lock: those that people and supervisors send
//! are passed on to the command, and the child's own news wakes the loop. Knows no process.

use std::io;

use rustix::process::Signal;
use tokio::signal::unix::{self, SignalKind, signal};

/// Passed on to the whole process group, as a terminal would …
const TO_GROUP: [Signal; 4] = [Signal::INT, Signal::TERM, Signal::HUP, Signal::QUIT];
/// … or to the command alone, since its children may not expect them.
const TO_COMMAND: [Signal; 2] = [Signal::USR1, Signal::USR2];

/// What came.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SignalEvent {
    /// Pass this on to the command's process group.
    ToGroup(Signal),
    /// Pass this on to the command.
    ToCommand(Signal),
    /// A child of this process ended or stopped.
    Child,
}

/// The signals, taken over from the operating system's defaults for the rest of the process' life.
#[derive(Debug)]
pub struct RunSignals {
    forwarded: Vec<(Signal, unix::Signal)>,
    child: unix::Signal,
}

impl RunSignals {
    /// Takes them over, except those that this process was told to ignore (`nohup`, `&` in a script).
    /// Must be called within a tokio runtime.
    ///
    /// Errors: where the operating system refuses.
    pub fn listen() -> io::Result<Self> {
        let ignored = ignored();
        let mut forwarded = Vec::new();
        for which in TO_GROUP.into_iter().chain(TO_COMMAND) {
            if ignored & (1 << (which.as_raw() - 1)) == 0 {
                forwarded.push((which, signal(SignalKind::from_raw(which.as_raw()))?));
            }
        }
        Ok(Self { forwarded, child: signal(SignalKind::child())? })
    }

    /// The next one. Cancel: nothing is lost.
    pub async fn next(&mut self) -> SignalEvent {
        let Self { forwarded, child } = self;
        std::future::poll_fn(|cx| {
            for (which, stream) in forwarded.iter_mut() {
                if let std::task::Poll::Ready(Some(())) = stream.poll_recv(cx) {
                    let to_group = TO_GROUP.contains(which);
                    return std::task::Poll::Ready(if to_group {
                        SignalEvent::ToGroup(*which)
                    } else {
                        SignalEvent::ToCommand(*which)
                    });
                }
            }
            child.poll_recv(cx).map(|_| SignalEvent::Child)
        })
        .await
    }
}

/// The signals that this process ignores, one bit each from 1 on; none where that cannot be read.
fn ignored() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    mask.and_then(|hex| u64::from_str_radix(hex.trim(), 16).ok()).unwrap_or(0)
}
