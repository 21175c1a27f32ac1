//! The signals that `run` handles: those of users and supervisors are forwarded to the command, and SIGCHLD wakes the
//! supervising loop.

use std::io;

use rustix::process::Signal;
use tokio::signal::unix::{self, SignalKind, signal};

/// Forwarded to the process group, as a terminal does …
const TO_GROUP: [Signal; 4] = [Signal::INT, Signal::TERM, Signal::HUP, Signal::QUIT];
/// … or only to the command, because its children may not expect them.
const TO_COMMAND: [Signal; 2] = [Signal::USR1, Signal::USR2];

/// A signal that was received.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum SignalEvent {
    /// Forward this to the command's process group.
    ToGroup(Signal),
    /// Forward this to the command.
    ToCommand(Signal),
    /// A child of this process ended or stopped.
    Child,
}

/// The handled signals; the handlers stay for the rest of the process' life.
#[derive(Debug)]
pub(super) struct RunSignals {
    forwarded: Vec<(Signal, unix::Signal)>,
    child: unix::Signal,
    received: Option<Signal>,
}

impl RunSignals {
    /// Installs the handlers, except for signals that this process was started to ignore (`nohup`, `&` in a script). Must be
    /// called within a tokio runtime.
    ///
    /// Errors: the operating system's.
    pub(super) fn listen() -> io::Result<Self> {
        let ignored = ignored();
        let mut forwarded = Vec::new();
        for which in TO_GROUP.into_iter().chain(TO_COMMAND) {
            if ignored & (1 << (which.as_raw() - 1)) == 0 {
                forwarded.push((which, signal(SignalKind::from_raw(which.as_raw()))?));
            }
        }
        Ok(Self { forwarded, child: signal(SignalKind::child())?, received: None })
    }

    /// The next signal. Cancel: no signal is lost.
    pub(super) async fn next(&mut self) -> SignalEvent {
        let Self { forwarded, child, .. } = self;
        let event = std::future::poll_fn(|cx| {
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
        .await;
        if let SignalEvent::ToGroup(signal) = event {
            self.received = Some(signal);
        }
        event
    }

    /// The last signal that [`Self::next`] returned and that asks this process to end.
    pub(super) fn received(&self) -> Option<Signal> {
        self.received
    }
}

/// Bit mask of the signals that this process ignores; 0 if it cannot be read.
fn ignored() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    mask.and_then(|hex| u64::from_str_radix(hex.trim(), 16).ok()).unwrap_or(0)
}
