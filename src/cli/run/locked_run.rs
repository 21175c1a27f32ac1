//! One run under a lock: acquires the lock, runs the command while the lease is renewed, and releases it.

use std::cell::Cell;
use std::ffi::OsString;
use std::io;
use std::path::PathBuf;
use std::time::Duration;

use rustix::process::Signal;
use tokio::sync::watch;

use super::process_group::{CommandEnd, Job};
use super::signals::{RunSignals, SignalEvent};
use super::supervise::{LeaseEnd, LossPolicy, RunOutcome, Supervisor};
use super::terminal::Terminal;
use super::token_file::TokenFile;
use super::watchdog::{Watchdog, WatchdogTask};
use crate::cli::commands::describe;
use crate::cli::exit;
use crate::cli::output::MessageWriter;
use crate::cli::progress::{Shown, held_by, with_progress};
use crate::client::acquire::{abandon, acquire};
use crate::client::answers::TimedLease;
use crate::client::error::{ClientError, ErrorClass};
use crate::client::renewal::LeaseRenewer;
use crate::client::requests::LockRequest;
use crate::client::transport::Client;
use crate::duration::format_duration;
use crate::redlock::clock::{BootTime, Clock, SystemClock};
use crate::redlock::random::{Entropy, SystemEntropy};
use crate::types::Token;

/// With `--skip-if-held`: how long a service without an answer or a quorum is tried …
const SKIP_RETRY_MAX: Duration = Duration::from_secs(10);
/// … and the pause between two tries.
const SKIP_RETRY_PAUSE: Duration = Duration::from_millis(500);
/// How long the release at the end is tried. Beyond it the TTL ends the lease.
const RELEASE_MAX: Duration = Duration::from_secs(5);
/// Timeout of one try to release.
const RELEASE_TIMEOUT: Duration = Duration::from_secs(2);
/// Pause between these tries.
const RELEASE_PAUSE: Duration = Duration::from_millis(200);

/// The checked arguments.
pub(super) struct RunContext {
    pub client: Client,
    pub request: LockRequest,
    pub wait: Duration,
    pub skip_if_held: bool,
    pub held_exit_code: u8,
    pub quiet: bool,
    pub policy: LossPolicy,
    pub ttl: Duration,
    /// Minimum time that the lock stays held, from its grant.
    pub at_least: Duration,
    pub command: Vec<OsString>,
    /// The directory of the token file.
    pub token_dir: PathBuf,
    /// The options of `redlockd extend` and `redlockd release` that name the service.
    pub service: Vec<OsString>,
}

/// One lease: its token, which is never used again, and the file that passes it to the command.
pub(super) struct RunToken {
    pub token: Token,
    file: TokenFile,
}

impl RunToken {
    /// Generates the token and writes the token file; if it cannot be written, nothing is acquired. Errors: how this process
    /// ends; the reason was printed.
    pub(super) fn begin(run: &RunContext, messages: &MessageWriter<'_>) -> Result<Self, CommandEnd> {
        let token = SystemEntropy.token();
        let file = TokenFile::create_in(&run.token_dir, &token).map_err(|error| {
            messages.message(&format!("{error}; nothing was acquired and nothing was run"));
            failed(exit::CANNOT_CREATE)
        })?;
        Ok(Self { token, file })
    }
}

/// The end of this process with this exit code, if no command ran or the code is not the command's.
pub(super) fn failed(code: u8) -> CommandEnd {
    CommandEnd { code, signal: None }
}

/// Acquires the lock; a signal ends the wait. Errors: how this process ends; the reason was printed.
pub(super) async fn get_lock(
    run: &RunContext,
    run_token: &RunToken,
    signals: &mut RunSignals,
    messages: &MessageWriter<'_>,
) -> Result<TimedLease, CommandEnd> {
    let (client, request) = (&run.client, &run.request);
    let until = SystemClock.now().plus(run.wait);
    let give_up = SystemClock.now().plus(SKIP_RETRY_MAX);
    let reported = Cell::new(false);
    let report = |error: &ClientError| {
        if !reported.replace(true) && !run.quiet {
            messages.message(&format!("{error}; trying again"));
        }
    };
    let acquire = async {
        loop {
            match acquire(client, request, &run_token.token, run.wait, report).await {
                // If every host skipped, no host would run the job.
                Err(error)
                    if run.skip_if_held && error.class() == ErrorClass::Unavailable && SystemClock.now() < give_up =>
                {
                    report(&error);
                    SystemClock.sleep(SKIP_RETRY_PAUSE).await;
                }
                outcome => return outcome,
            }
        }
    };
    let shown = if run.quiet || run.wait.is_zero() { Shown::Nothing } else { Shown::All };
    let outcome = tokio::select! {
        biased;
        signal = interrupted(signals) => Err(signal),
        outcome = with_progress(shown, client, request, until, messages, acquire) => Ok(outcome),
    };
    match outcome {
        Ok(Ok(lease)) => Ok(lease),
        Ok(Err(error)) => Err(failed(refused(run, &error, messages))),
        Err(signal) => {
            abandon(client, request, &run_token.token).await;
            Err(ended_by(signal))
        }
    }
}

/// The end of this process by a signal.
pub(super) fn ended_by(signal: Signal) -> CommandEnd {
    let number = u8::try_from(signal.as_raw()).unwrap_or_default();
    CommandEnd { code: exit::BY_SIGNAL.saturating_add(number), signal: Some(signal) }
}

/// The first signal that would end the command. Cancel: no signal is lost.
pub(super) async fn interrupted(signals: &mut RunSignals) -> Signal {
    loop {
        if let SignalEvent::ToGroup(signal) | SignalEvent::ToCommand(signal) = signals.next().await {
            return signal;
        }
    }
}

fn refused(run: &RunContext, error: &ClientError, messages: &MessageWriter<'_>) -> u8 {
    if error.class() == ErrorClass::Held {
        if run.skip_if_held {
            return exit::OK;
        }
        let holders = error.refusal().and_then(|r| r.problem.members.holders.as_deref()).unwrap_or_default();
        let detail = match (holders, run.request.names.single()) {
            ([only], Some(name)) => format!("{name} is {}", held_by(only)),
            _ => error.to_string(),
        };
        let waited = if run.wait.is_zero() {
            String::new()
        } else {
            format!("not acquired within {}: ", format_duration(run.wait))
        };
        messages.message(&format!("{waited}{detail}; nothing was run"));
        return run.held_exit_code;
    }
    messages.message(&format!("{}; nothing was run", describe(error)));
    refused_code(run, error)
}

/// The exit code for a permanent refusal.
pub(super) fn refused_code(run: &RunContext, error: &ClientError) -> u8 {
    // A new token cannot have lost a lease earlier: an operator ended the lease before the answer.
    if matches!(error.class(), ErrorClass::Deadlock | ErrorClass::Lost) { run.held_exit_code } else { exit::of(error) }
}

/// Runs the command while the lease is renewed; `begin` gets the lease's deadline when the command has started. Cancel: the
/// watchdog ends the command in time, or renews the lease.
pub(super) async fn with_command(
    run: &RunContext,
    run_token: &RunToken,
    lease: &TimedLease,
    begin: impl FnOnce(watch::Receiver<BootTime>),
    signals: &mut RunSignals,
    messages: &MessageWriter<'_>,
) -> RunOutcome {
    let failed = |code| RunOutcome { end: failed(code), lease: LeaseEnd::Held, is_interrupted: false };
    // This process may have been stopped since it sent the request.
    if lease.deadline.minus(run.policy.grace).minus(run.policy.margin) <= SystemClock.now() {
        messages.message(&format!(
            "the lease on {} had nearly ended when it was granted; nothing was run",
            run.request.names
        ));
        return failed(exit::LOST);
    }
    let task = WatchdogTask {
        renews: run.policy.warn_only.then_some(run.ttl),
        releases: run.at_least.is_zero(),
        service: run.service.clone(),
        names: run.request.names.clone(),
    };
    let mut watchdog = match Watchdog::start(run_token.file.path(), &task) {
        Ok(watchdog) => watchdog,
        Err(error) => {
            messages.message(&format!("the watchdog process cannot be started: {error}; nothing was run"));
            return failed(exit::UNAVAILABLE);
        }
    };
    let mut job = match Job::start(&run.command, &variables(run, run_token, lease)) {
        Ok(job) => job,
        Err(error) => {
            watchdog.dismiss();
            return failed(cannot_run(run, &error, messages));
        }
    };
    let terminal = Terminal::open();
    if let Some(terminal) = terminal.as_ref().filter(|terminal| terminal.is_for_command()) {
        terminal.hand_to(job.group());
        // The command may have been stopped for reading from the terminal too early.
        job.signal_group(Signal::CONT);
    }
    let (mut renewer, deadline) =
        LeaseRenewer::new(run.client.clone(), run.request.names.clone(), run_token.token.clone(), lease);
    begin(deadline.clone());
    let mut supervisor = Supervisor {
        job: &mut job,
        watchdog: Some(&mut watchdog),
        terminal: terminal.as_ref(),
        deadline,
        signals,
        policy: &run.policy,
        messages,
        name: &run.request.names,
    };
    let outcome = supervisor.run(&mut renewer).await;
    if let Some(terminal) = &terminal {
        let had_keyboard = terminal.is_handed();
        terminal.take_back();
        if had_keyboard && outcome.end.signal == Some(Signal::INT) {
            // Ctrl-C went only to the command's group: the script around this process gets it too.
            let _ = rustix::process::kill_current_process_group(Signal::INT);
        }
    }
    watchdog.dismiss();
    outcome
}

/// Reports why the command does not start; returns the exit code, as in shells.
fn cannot_run(run: &RunContext, error: &io::Error, messages: &MessageWriter<'_>) -> u8 {
    let name = run.command.first().map(|c| c.to_string_lossy().into_owned()).unwrap_or_default();
    let is_line = name.contains([' ', ';', '|', '&', '>', '<']);
    let hint = match (is_line, run.request.names.single()) {
        (true, _) => "; a line for the shell needs: sh -c '...'",
        (false, Some(_)) => "",
        (false, None) => {
            "; the words before the first -- are names of locks: a command with a -- of its own needs one more"
        }
    };
    messages.message(&format!("{name} cannot be run: {error}{hint}"));
    if error.kind() == io::ErrorKind::NotFound { exit::NOT_FOUND } else { exit::CANNOT_EXECUTE }
}

fn variables(run: &RunContext, run_token: &RunToken, lease: &TimedLease) -> Vec<(&'static str, OsString)> {
    let left = lease.deadline.since(SystemClock.now());
    let deadline_ms = SystemClock.wall_ms().saturating_add(u64::try_from(left.as_millis()).unwrap_or(u64::MAX));
    let mut variables = vec![
        ("REDLOCKD_RESOURCE", listed(run.request.names.iter()).into()),
        ("REDLOCKD_FENCE", listed(lease.fences().iter()).into()),
        ("REDLOCKD_TOKEN_FILE", run_token.file.path().into()),
        ("REDLOCKD_DEADLINE_MS", deadline_ms.to_string().into()),
    ];
    variables.extend(lease.slot().map(|slot| ("REDLOCKD_SLOT", slot.to_string().into())));
    variables
}

/// Several values separated by blanks, in the same order for all variables.
fn listed(each: impl Iterator<Item = impl ToString>) -> String {
    each.map(|one| one.to_string()).collect::<Vec<_>>().join(" ")
}

/// Releases the lock, trying for [`RELEASE_MAX`]. Cancel: the TTL ends the lease.
pub(super) async fn release(run: &RunContext, run_token: &RunToken, messages: &MessageWriter<'_>) {
    let end: BootTime = SystemClock.now().plus(RELEASE_MAX);
    loop {
        match run.client.release(&run.request.names, &run_token.token, RELEASE_TIMEOUT).await {
            Ok(()) => return,
            // The command may have released the lock itself.
            Err(error) if error.class() == ErrorClass::Lost => return,
            Err(error) if SystemClock.now() >= end => {
                messages.message(&format!("the lock could not be released ({error}); it is free when its lease ends"));
                return;
            }
            Err(_) => SystemClock.sleep(RELEASE_PAUSE).await,
        }
    }
}
