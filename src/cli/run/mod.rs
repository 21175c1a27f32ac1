//! `redlockd run`: acquires a lock, runs a command while the lease is renewed, and releases the lock. This file has the
//! sequence of steps; each step has its own file.

mod job;
mod signals;
mod supervise;
mod terminal;
mod token_file;
pub(super) mod watchdog;

use std::ffi::OsString;
use std::io::{self, Write};
use std::path::PathBuf;
use std::time::Duration;

use rustix::process::Signal;

use super::client_args::{OnLost, RunCommand};
use super::commands::describe;
use super::exit;
use super::output::{MessageWriter, print_line};
use super::progress::{held_by, with_progress};
use super::remote;
use crate::client::acquire::{abandon, acquire};
use crate::client::error::{ClientError, ErrorClass};
use crate::client::renewal::LeaseRenewer;
use crate::client::requests::{LockRequest, TimedLease};
use crate::client::transport::Client;
use crate::config::Environment;
use crate::duration::format_duration;
use crate::redlock::clock::{BootTime, Clock, SystemClock};
use crate::redlock::entropy::{Entropy, SystemEntropy};
use crate::types::Token;
use job::{CommandEnd, Job};
use signals::{RunSignals, SignalEvent};
use supervise::{LeaseEnd, LossPolicy, RunOutcome};
use terminal::Terminal;
use token_file::TokenFile;
pub(super) use token_file::write_new as write_token;
use watchdog::Watchdog;

/// Default time between SIGTERM and SIGKILL.
const GRACE: Duration = Duration::from_secs(5);
/// Maximum grace, as a part of the TTL: a lease is renewed at a third, and the second third is for failed renewals.
const GRACES_PER_TTL: u32 = 3;
/// SIGKILL is sent this long before the deadline, and at most this part of the TTL, because delivery takes time.
const MARGIN: Duration = Duration::from_millis(200);
const MARGINS_PER_TTL: u32 = 20;
/// How long the release at the end is tried. Beyond it the TTL ends the lease.
const RELEASE_MAX: Duration = Duration::from_secs(5);
/// Timeout of one try.
const RELEASE_TIMEOUT: Duration = Duration::from_secs(2);
/// Pause between tries.
const RELEASE_PAUSE: Duration = Duration::from_millis(200);

/// The checked arguments.
struct RunContext {
    client: Client,
    request: LockRequest,
    token: Token,
    file: TokenFile,
    wait: Duration,
    skip_if_held: bool,
    held_exit_code: u8,
    quiet: bool,
    policy: LossPolicy,
    command: Vec<OsString>,
    /// The arguments with which the watchdog releases the lock if this process is killed.
    release: Vec<OsString>,
}

/// Runs the command under the lock; the exit code.
pub(super) fn run(args: RunCommand, env: &impl Environment, err: &mut dyn Write) -> u8 {
    let run = match prepare(args, env, err) {
        Ok(run) => run,
        Err(code) => return code,
    };
    let runtime = match tokio::runtime::Builder::new_current_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => {
            print_line(err, &format!("redlockd: the runtime cannot be created: {error}"));
            return exit::UNAVAILABLE;
        }
    };
    let end = runtime.block_on(under_lock(&run, &MessageWriter::new(err)));
    // What still runs does not matter any more.
    runtime.shutdown_background();
    // Removes the token file, which the end by a signal would leave.
    drop(run);
    end_as(end)
}

/// Ends this process by the signal that ended the command or the wait, if one of the usual ones did: a shell then stops
/// the loop or script around it, as after Ctrl-C. Otherwise returns the exit code, which is the same for shells.
fn end_as(end: CommandEnd) -> u8 {
    if let Some(signal @ (Signal::INT | Signal::TERM | Signal::HUP)) = end.signal {
        // Returns only where it fails.
        let _ = signal_hook::low_level::emulate_default_handler(signal.as_raw());
    }
    end.code
}

/// Checks the arguments and writes the token file; if it cannot be written, nothing is acquired.
fn prepare(args: RunCommand, env: &impl Environment, err: &mut dyn Write) -> Result<RunContext, u8> {
    let mut usage = |why: String| {
        print_line(err, &format!("redlockd: {why}"));
        exit::USAGE
    };
    let max = args.ttl / GRACES_PER_TTL;
    let grace = match args.grace {
        Some(grace) if grace > max => {
            let (min_ttl, grace) = (grace.saturating_mul(GRACES_PER_TTL), format_duration(grace));
            return Err(usage(format!("--grace {grace} needs a --ttl of at least {}", format_duration(min_ttl))));
        }
        Some(grace) => grace,
        None => GRACE.min(max),
    };
    if args.ttl.is_zero() {
        return Err(usage("--ttl must be more than 0s".to_owned()));
    }
    let (pid, service) = (std::process::id(), args.service);
    let request = remote::lock_request(args.resource, Some(args.ttl), args.labels, pid, env).map_err(&mut usage)?;
    // Its owner names this process alone, unless the caller chose another one.
    let request = LockRequest { refuses_deadlock: true, ..request };
    let client = remote::client(&service, env, err)?;
    let token = SystemEntropy.token();
    let file = TokenFile::create_in(&runtime_dir(env), &token).map_err(|error| {
        print_line(err, &format!("redlockd: {error}; nothing was acquired and nothing was run"));
        exit::CANNOT_CREATE
    })?;
    let policy =
        LossPolicy { grace, margin: MARGIN.min(args.ttl / MARGINS_PER_TTL), warn_only: args.on_lost == OnLost::Warn };
    let mut release: Vec<OsString> = vec!["release".into(), "--token-file".into(), file.path().into()];
    release.extend(service.to_args());
    release.push(request.resource.as_str().into());
    Ok(RunContext {
        release,
        client,
        request,
        token,
        file,
        wait: args.wait,
        skip_if_held: args.skip_if_held,
        held_exit_code: args.conflict_exit_code,
        quiet: args.quiet,
        policy,
        command: args.command,
    })
}

/// Directory of the token file; in memory if there is such a one.
fn runtime_dir(env: &impl Environment) -> PathBuf {
    let dir = |name| remote::set(env, name).map(PathBuf::from).filter(|dir| dir.is_dir());
    dir("XDG_RUNTIME_DIR").or_else(|| dir("TMPDIR")).unwrap_or_else(|| "/tmp".into())
}

async fn under_lock(run: &RunContext, messages: &MessageWriter<'_>) -> CommandEnd {
    let mut signals = match RunSignals::listen() {
        Ok(signals) => signals,
        Err(error) => {
            messages.message(&format!("signals cannot be handled: {error}"));
            return failed(exit::UNAVAILABLE);
        }
    };
    let lease = match get_lock(run, &mut signals, messages).await {
        Ok(lease) => lease,
        Err(end) => return end,
    };
    let outcome = with_command(run, &lease, &mut signals, messages).await;
    match outcome.lease {
        LeaseEnd::Held => release(run, messages).await,
        // Reported already; one try may end the lease sooner.
        LeaseEnd::NotRenewed => abandon(&run.client, &run.request, &run.token).await,
        LeaseEnd::Ended => {}
    }
    outcome.end
}

/// Nothing was run, or not by this exit code.
fn failed(code: u8) -> CommandEnd {
    CommandEnd { code, signal: None }
}

/// Acquires; a signal meanwhile gives up. Errors: how to end; the reason was printed.
async fn get_lock(
    run: &RunContext,
    signals: &mut RunSignals,
    messages: &MessageWriter<'_>,
) -> Result<TimedLease, CommandEnd> {
    let (client, request) = (&run.client, &run.request);
    let until = SystemClock.now().plus(run.wait);
    let mut reported = false;
    let acquire = acquire(client, request, &run.token, run.wait, |error| {
        if !std::mem::replace(&mut reported, true) && !run.quiet {
            messages.message(&format!("{error}; trying again"));
        }
    });
    let waits = !run.quiet && !run.wait.is_zero();
    let outcome = tokio::select! {
        biased;
        signal = interrupted(signals) => Err(signal),
        outcome = with_progress(waits, client, request, until, messages, acquire) => Ok(outcome),
    };
    match outcome {
        Ok(Ok(lease)) => Ok(lease),
        Ok(Err(error)) => Err(failed(refused(run, &error, messages))),
        Err(signal) => {
            abandon(client, request, &run.token).await;
            let number = u8::try_from(signal.as_raw()).unwrap_or_default();
            Err(CommandEnd { code: exit::BY_SIGNAL.saturating_add(number), signal: Some(signal) })
        }
    }
}

/// The first signal that would end the command.
async fn interrupted(signals: &mut RunSignals) -> Signal {
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
        let holder = error.refusal().and_then(|r| r.problem.members.holders.as_ref()?.first());
        let detail =
            holder.map_or_else(|| error.to_string(), |h| format!("{} is {}", run.request.resource, held_by(h)));
        let waited = if run.wait.is_zero() {
            String::new()
        } else {
            format!("not acquired within {}: ", format_duration(run.wait))
        };
        messages.message(&format!("{waited}{detail}; nothing was run"));
        return run.held_exit_code;
    }
    messages.message(&format!("{}; nothing was run", describe(error)));
    // A new token cannot have lost a lease earlier: an operator ended it before the answer.
    if matches!(error.class(), ErrorClass::Deadlock | ErrorClass::Lost) { run.held_exit_code } else { exit::of(error) }
}

async fn with_command(
    run: &RunContext,
    lease: &TimedLease,
    signals: &mut RunSignals,
    messages: &MessageWriter<'_>,
) -> RunOutcome {
    let failed = |code| RunOutcome { end: failed(code), lease: LeaseEnd::Held };
    // This process may have been stopped since it sent the request.
    if lease.deadline.minus(run.policy.grace).minus(run.policy.margin) <= SystemClock.now() {
        messages.message(&format!(
            "the lease on {} had nearly ended when it was granted; nothing was run",
            run.request.resource
        ));
        return failed(exit::LOST);
    }
    let mut watchdog = match run.policy.warn_only {
        true => None,
        false => match Watchdog::start(run.file.path(), &run.release) {
            Ok(watchdog) => Some(watchdog),
            Err(error) => {
                messages.message(&format!("the watchdog process cannot be started: {error}; nothing was run"));
                return failed(exit::UNAVAILABLE);
            }
        },
    };
    let mut job = match Job::start(&run.command, &variables(run, lease)) {
        Ok(job) => job,
        Err(error) => {
            let name = run.command.first().map(|c| c.to_string_lossy().into_owned()).unwrap_or_default();
            messages.message(&format!("{name} cannot be run: {error}"));
            watchdog.iter_mut().for_each(Watchdog::dismiss);
            return failed(if error.kind() == io::ErrorKind::NotFound {
                exit::NOT_FOUND
            } else {
                exit::CANNOT_EXECUTE
            });
        }
    };
    let terminal = Terminal::open();
    if let Some(terminal) = terminal.as_ref().filter(|terminal| terminal.is_for_command()) {
        terminal.hand_to(job.group());
        // It may have been stopped for reading from the terminal too early.
        job.signal_group(Signal::CONT);
    }
    let (mut renewer, deadline) =
        LeaseRenewer::new(run.client.clone(), run.request.resource.clone(), run.token.clone(), lease);
    let mut supervisor = supervise::Supervisor {
        job: &mut job,
        watchdog: watchdog.as_mut(),
        terminal: terminal.as_ref(),
        deadline,
        signals,
        policy: &run.policy,
        messages,
        name: run.request.resource.as_str(),
    };
    let outcome = supervisor.run(&mut renewer).await;
    if let Some(terminal) = &terminal {
        let had_keyboard = terminal.is_handed();
        terminal.take_back();
        if had_keyboard && outcome.end.signal == Some(Signal::INT) {
            // Ctrl-C went to the command's group alone: the script around this process gets it too.
            let _ = rustix::process::kill_current_process_group(Signal::INT);
        }
    }
    watchdog.iter_mut().for_each(Watchdog::dismiss);
    outcome
}

fn variables(run: &RunContext, lease: &TimedLease) -> [(&'static str, OsString); 4] {
    let left = lease.deadline.since(SystemClock.now());
    let deadline_ms = SystemClock.wall_ms().saturating_add(u64::try_from(left.as_millis()).unwrap_or(u64::MAX));
    [
        ("REDLOCKD_RESOURCE", run.request.resource.as_str().into()),
        ("REDLOCKD_FENCE", lease.lease.fence.to_string().into()),
        ("REDLOCKD_TOKEN_FILE", run.file.path().into()),
        ("REDLOCKD_DEADLINE_MS", deadline_ms.to_string().into()),
    ]
}

/// Releases the lock, trying for [`RELEASE_MAX`].
async fn release(run: &RunContext, messages: &MessageWriter<'_>) {
    let end: BootTime = SystemClock.now().plus(RELEASE_MAX);
    loop {
        match run.client.release(&run.request.resource, &run.token, RELEASE_TIMEOUT).await {
            Ok(()) => return,
            // The command may have released it itself.
            Err(error) if error.class() == ErrorClass::Lost => return,
            Err(error) if SystemClock.now() >= end => {
                messages.message(&format!("the lock could not be released ({error}); it is free when its lease ends"));
                return;
            }
            Err(_) => SystemClock.sleep(RELEASE_PAUSE).await,
        }
    }
}
