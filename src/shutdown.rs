//! Signals: the first SIGTERM or SIGINT starts an orderly stop, a second one stops at once.

use std::io;

use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio_util::sync::CancellationToken;

/// Exit code of a process that a signal ended: this plus the signal's number, as in shells.
const EXIT_BY_SIGNAL: u8 = 128;
const INTERRUPT: u8 = 2;
/// SIGTERM's number.
const TERMINATE: u8 = 15;

/// The signals that end the service.
#[derive(Debug)]
pub(crate) struct Signals {
    interrupt: Signal,
    terminate: Signal,
}

impl Signals {
    /// Replaces the default effect of both signals, which is to end at once. Must be called within a
    /// tokio runtime.
    ///
    /// Errors: those of the operating system.
    pub(crate) fn listen() -> io::Result<Self> {
        Ok(Self { interrupt: signal(SignalKind::interrupt())?, terminate: signal(SignalKind::terminate())? })
    }

    /// Cancels `token` at the first signal; resolves at the second one, to its exit code.
    ///
    /// Cancel: signals have no effect until it is called again.
    pub(crate) async fn supervise(&mut self, token: &CancellationToken) -> u8 {
        self.next().await;
        tracing::info!("stopping: finishing requests in progress; a second signal stops at once");
        token.cancel();
        EXIT_BY_SIGNAL + self.next().await
    }

    async fn next(&mut self) -> u8 {
        tokio::select! {
            biased;
            _ = self.interrupt.recv() => INTERRUPT,
            _ = self.terminate.recv() => TERMINATE,
        }
    }
}

#[cfg(test)]
mod tests {
    use rustix::process::{Signal, getpid, kill_process};

    use super::*;

    /// One test for both signals, which are global to the process.
    #[tokio::test]
    async fn the_first_signal_cancels_the_token_and_the_second_resolves() {
        let mut signals = Signals::listen().expect("signals can be handled");
        let token = CancellationToken::new();
        let observed = token.clone();
        let second = async move {
            kill_process(getpid(), Signal::TERM).expect("own process");
            observed.cancelled().await;
            kill_process(getpid(), Signal::INT).expect("own process");
            std::future::pending::<()>().await;
        };
        let code = tokio::select! {
            code = signals.supervise(&token) => code,
            () = second => unreachable!("it is pending for ever"),
        };
        assert_eq!(code, 130);
    }
}
