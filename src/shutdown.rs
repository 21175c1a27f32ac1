//! Signals become a token that is passed down: the first SIGTERM or SIGINT asks for an orderly end,
//! a second one wants it at once. Knows nothing of what is shut down.

use std::io;

use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio_util::sync::CancellationToken;

/// What a process that a signal ended exits with: this plus the signal's number, as shells have it.
const EXIT_BY_SIGNAL: u8 = 128;
/// SIGINT's number.
const INTERRUPT: u8 = 2;
/// SIGTERM's number.
const TERMINATE: u8 = 15;

/// The signals that end the service.
#[derive(Debug)]
pub struct Signals {
    interrupt: Signal,
    terminate: Signal,
}

impl Signals {
    /// Takes both signals over from the operating system's default, which is to end at once.
    /// Must be called within a tokio runtime.
    ///
    /// Errors: where the operating system refuses.
    pub fn listen() -> io::Result<Self> {
        Ok(Self { interrupt: signal(SignalKind::interrupt())?, terminate: signal(SignalKind::terminate())? })
    }

    /// Cancels `token` at the first signal and resolves at the second one, to the exit code that
    /// says which it was.
    /// Cancel: signals go unheeded until it is called again.
    pub async fn supervise(&mut self, token: &CancellationToken) -> u8 {
        self.next().await;
        tracing::info!("asked to stop: finishing what is under way; a second signal stops at once");
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

    /// One test for both signals: they are the whole process'.
    #[tokio::test]
    async fn the_first_signal_cancels_the_token_and_the_second_ends() {
        let mut signals = Signals::listen().expect("signals can be listened for");
        let token = CancellationToken::new();
        let seen = token.clone();
        let second = async move {
            kill_process(getpid(), Signal::TERM).expect("own process");
            seen.cancelled().await;
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
