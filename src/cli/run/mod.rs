//! `redlockd run`: takes a lock, runs a command under it, keeps the lease, and gives the lock back
//! whatever happens. This file has the order of things; the parts stand beside it.

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

use super::client_args::{OnLost, RunArgs};
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
use job::Job;
use signals::{RunSignals, SignalEvent};
use supervise::{LeaseEnd, LossPolicy, RunOutcome};
use terminal::Terminal;
use token_file::TokenFile;
pub(super) use token_file::write_new as write_token;
use watchdog::Watchdog;

/// Time between SIGTERM and SIGKILL unless it is given.
const GRACE: Duration = Duration::from_secs(5);
/// The grace is a third of the TTL at most: a lease is renewed at a third, and the last third is
/// for renewals that fail.
const GRACES_PER_TTL: u32 = 3;
/// SIGKILL comes this long before the deadline, and at most this part of the TTL: the system needs
/// time to deliver it.
const MARGIN: Duration = Duration::from_millis(200);
const MARGINS_PER_TTL: u32 = 20;
/// How long the release at the end may be tried. Beyond it the TTL ends the lease.
const RELEASE_PATIENCE: Duration = Duration::from_secs(5);
/// One try of it.
const RELEASE_TIMEOUT: Duration = Duration::from_secs(2);
/// Pause between two tries.
const RELEASE_PAUSE: Duration = Duration::from_millis(200);

/// Everything that is known before anything is asked for.
struct Run {
    client: Client,
    want: LockRequest,
    token: Token,
    file: TokenFile,
    wait: Duration,
    skip_if_held: bool,
    conflict: u8,
    quiet: bool,
    plan: LossPolicy,
    command: Vec<OsString>,
}

/// Runs the command under the lock; the exit code.
pub(super) fn run(args: RunArgs, env: &impl Environment, err: &mut dyn Write) -> u8 {
    let run = match prepare(args, env, err) {
        Ok(run) => run,
        Err(code) => return code,
    };
    let runtime = match tokio::runtime::Builder::new_current_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => {
            print_line(err, &format!("redlockd: the runtime cannot be made: {error}"));
            return exit::UNAVAILABLE;
        }
    };
    let code = runtime.block_on(under_lock(&run, &MessageWriter::new(err)));
    // Nothing is left that is worth waiting for.
    runtime.shutdown_background();
    code
}

/// Checks, and writes the token file: with no room for it, nothing is acquired.
fn prepare(args: RunArgs, env: &impl Environment, err: &mut dyn Write) -> Result<Run, u8> {
    let mut usage = |why: String| {
        print_line(err, &format!("redlockd: {why}"));
        exit::USAGE
    };
    let most = args.ttl / GRACES_PER_TTL;
    let grace = match args.grace {
        Some(grace) if grace > most => {
            let (least, grace) = (grace.saturating_mul(GRACES_PER_TTL), format_duration(grace));
            return Err(usage(format!("--grace {grace} needs a --ttl of at least {}", format_duration(least))));
        }
        Some(grace) => grace,
        None => GRACE.min(most),
    };
    if args.ttl.is_zero() {
        return Err(usage("--ttl must be more than 0s".to_owned()));
    }
    let want = remote::lock_request(args.resource, Some(args.ttl), args.labels, env).map_err(&mut usage)?;
    let client = remote::client(&args.service, env, err)?;
    let token = SystemEntropy.token();
    let file = TokenFile::create_in(&runtime_dir(env), &token).map_err(|error| {
        print_line(err, &format!("redlockd: {error}; nothing was acquired and nothing was run"));
        exit::CANNOT_CREATE
    })?;
    let plan =
        LossPolicy { grace, margin: MARGIN.min(args.ttl / MARGINS_PER_TTL), warn_only: args.on_lost == OnLost::Warn };
    Ok(Run {
        client,
        want,
        token,
        file,
        wait: args.wait,
        skip_if_held: args.skip_if_held,
        conflict: args.conflict_exit_code,
        quiet: args.quiet,
        plan,
        command: args.command,
    })
}

/// Where small private files go: in memory where there is such a place.
fn runtime_dir(env: &impl Environment) -> PathBuf {
    let dir = |name| remote::set(env, name).map(PathBuf::from).filter(|dir| dir.is_dir());
    dir("XDG_RUNTIME_DIR").or_else(|| dir("TMPDIR")).unwrap_or_else(|| "/tmp".into())
}

async fn under_lock(run: &Run, messages: &MessageWriter<'_>) -> u8 {
    let mut signals = match RunSignals::listen() {
        Ok(signals) => signals,
        Err(error) => {
            messages.message(&format!("signals cannot be taken over: {error}"));
            return exit::UNAVAILABLE;
        }
    };
    let answered = match get_lock(run, &mut signals, messages).await {
        Ok(answered) => answered,
        Err(code) => return code,
    };
    let outcome = with_command(run, &answered, &mut signals, messages).await;
    match outcome.lease {
        LeaseEnd::Running => release(run, messages).await,
        // It was said that the lease runs out; one try may end it sooner.
        LeaseEnd::Unrenewed => abandon(&run.client, &run.want, &run.token).await,
        LeaseEnd::Over => {}
    }
    outcome.code
}

/// Acquires; a signal meanwhile gives up. Errors: the exit code; what there is to say was said.
async fn get_lock(run: &Run, signals: &mut RunSignals, messages: &MessageWriter<'_>) -> Result<TimedLease, u8> {
    let (client, want) = (&run.client, &run.want);
    let until = SystemClock.now().plus(run.wait);
    let mut told = false;
    let acquire = acquire(client, want, &run.token, run.wait, |error| {
        if !std::mem::replace(&mut told, true) && !run.quiet {
            messages.message(&format!("{error}; trying again"));
        }
    });
    let waits = !run.quiet && !run.wait.is_zero();
    let outcome = tokio::select! {
        biased;
        number = interrupted(signals) => Err(number),
        outcome = with_progress(waits, client, want, until, messages, acquire) => Ok(outcome),
    };
    match outcome {
        Ok(Ok(answered)) => Ok(answered),
        Ok(Err(error)) => Err(refused(run, &error, messages)),
        Err(number) => {
            abandon(client, want, &run.token).await;
            Err(exit::BY_SIGNAL.saturating_add(number))
        }
    }
}

/// The number of the first signal that would end the command.
async fn interrupted(signals: &mut RunSignals) -> u8 {
    loop {
        if let SignalEvent::ToGroup(signal) | SignalEvent::ToCommand(signal) = signals.next().await {
            return u8::try_from(signal.as_raw()).unwrap_or_default();
        }
    }
}

fn refused(run: &Run, error: &ClientError, messages: &MessageWriter<'_>) -> u8 {
    if error.class() == ErrorClass::Held {
        if run.skip_if_held {
            return exit::OK;
        }
        let holder = error.refusal().and_then(|r| r.problem.members.holders.as_ref()?.first());
        let detail = holder.map_or_else(|| error.to_string(), |h| format!("{} is {}", run.want.resource, held_by(h)));
        let waited =
            if run.wait.is_zero() { String::new() } else { format!("waited {} in vain: ", format_duration(run.wait)) };
        messages.message(&format!("{waited}{detail}; nothing was run"));
        return run.conflict;
    }
    messages.message(&format!("{error}; nothing was run"));
    // A token that is new cannot have lost a lease: an operator ended it before it was answered.
    if matches!(error.class(), ErrorClass::Deadlock | ErrorClass::Lost) { run.conflict } else { exit::of(error) }
}

async fn with_command(
    run: &Run,
    answered: &TimedLease,
    signals: &mut RunSignals,
    messages: &MessageWriter<'_>,
) -> RunOutcome {
    let failed = |code| RunOutcome { code, lease: LeaseEnd::Running };
    // This process may have been stopped since the lock was asked for.
    if answered.deadline.minus(run.plan.grace).minus(run.plan.margin) <= SystemClock.now() {
        messages.message(&format!(
            "the lease on {} was nearly over when it was answered; nothing was run",
            run.want.resource
        ));
        return failed(exit::LOST);
    }
    let mut watchdog = match run.plan.warn_only {
        true => None,
        false => match Watchdog::start(run.file.path()) {
            Ok(watchdog) => Some(watchdog),
            Err(error) => {
                messages.message(&format!("the watchdog process cannot be started: {error}; nothing was run"));
                return failed(exit::UNAVAILABLE);
            }
        },
    };
    let mut job = match Job::start(&run.command, &variables(run, answered)) {
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
    let terminal = Terminal::find();
    if let Some(terminal) = &terminal {
        terminal.hand_to(job.group());
        // It may have been stopped for reading before it was allowed to.
        job.signal_group(rustix::process::Signal::CONT);
    }
    let (mut keeper, deadline) =
        LeaseRenewer::new(run.client.clone(), run.want.resource.clone(), run.token.clone(), answered);
    let mut supervisor = supervise::Supervisor {
        job: &mut job,
        watchdog: watchdog.as_mut(),
        terminal: terminal.as_ref(),
        deadline,
        signals,
        plan: &run.plan,
        messages,
        name: run.want.resource.as_str(),
    };
    let outcome = supervisor.run(&mut keeper).await;
    if let Some(terminal) = &terminal {
        terminal.take_back();
    }
    watchdog.iter_mut().for_each(Watchdog::dismiss);
    outcome
}

fn variables(run: &Run, answered: &TimedLease) -> [(&'static str, OsString); 4] {
    let left = answered.deadline.since(SystemClock.now());
    let deadline_ms = SystemClock.wall_ms().saturating_add(u64::try_from(left.as_millis()).unwrap_or(u64::MAX));
    [
        ("REDLOCKD_RESOURCE", run.want.resource.as_str().into()),
        ("REDLOCKD_FENCE", answered.lease.fence.to_string().into()),
        ("REDLOCKD_TOKEN_FILE", run.file.path().into()),
        ("REDLOCKD_DEADLINE_MS", deadline_ms.to_string().into()),
    ]
}

/// Gives the lock back; the best that can be done, since the command has ended anyway.
async fn release(run: &Run, messages: &MessageWriter<'_>) {
    let end: BootTime = SystemClock.now().plus(RELEASE_PATIENCE);
    loop {
        match run.client.release(&run.want.resource, &run.token, RELEASE_TIMEOUT).await {
            Ok(()) => return,
            // The command may have released it itself.
            Err(error) if error.class() == ErrorClass::Lost => return,
            Err(error) if SystemClock.now() >= end => {
                messages.message(&format!(
                    "the lock could not be given back ({error}); it is free when its lease has run out"
                ));
                return;
            }
            Err(_) => SystemClock.sleep(RELEASE_PAUSE).await,
        }
    }
}
