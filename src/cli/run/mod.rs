//! `redlockd run`: acquires a lock, runs a command while the lease is renewed, and releases the lock; and `redlockd elect`, which
//! repeats this. This file checks the arguments; each step has its own file.

mod at_least;
mod elect;
mod leader_page;
mod lease_keeper;
mod locked_run;
mod positional_args;
mod process_group;
mod signals;
mod supervise;
mod terminal;
mod token_file;
pub(super) mod watchdog;

use std::ffi::OsString;
use std::io::Write;
use std::path::PathBuf;
use std::time::Duration;

use rustix::process::Signal;

use super::client_args::{ElectCommand, ModeArgs, OnLost, RunCommand, ServiceArgs};
use super::client_from_args;
use super::exit;
use super::output::{MessageWriter, print_line};
use crate::client::acquire::abandon;
use crate::client::names::LockNames;
use crate::client::requests::LockRequest;
use crate::config::Environment;
use crate::duration::format_duration;
use locked_run::{RunContext, RunToken, failed, get_lock, release, with_command};
use process_group::CommandEnd;
use signals::RunSignals;
use supervise::{LeaseEnd, LossPolicy};
pub(super) use token_file::write_new as write_token;

/// Default TTL without `--at-least`.
const TTL: Duration = Duration::from_secs(30);
/// Maximum default TTL with `--at-least`: the service's default maximum.
const TTL_MAX: Duration = Duration::from_mins(5);
/// Default time between SIGTERM and SIGKILL.
const GRACE: Duration = Duration::from_secs(5);
/// Maximum grace, as a part of the TTL: a lease is renewed at a third, and the second third is for failed renewals.
const GRACES_PER_TTL: u32 = 3;
/// SIGKILL is sent this long before the deadline, and at most this part of the TTL, because delivery takes time.
const MARGIN: Duration = Duration::from_millis(200);
const MARGINS_PER_TTL: u32 = 20;

/// Runs the command under the lock or locks; returns the exit code. `words`: all arguments of this process.
pub(super) fn run(args: RunCommand, words: &[OsString], env: &impl Environment, err: &mut dyn Write) -> u8 {
    let named =
        positional_args::split(args.resource.clone(), args.command.clone(), words).and_then(|(names, command)| {
            let names = LockNames::new(names).map_err(|why| why.0)?;
            Ok((names, RunCommand { command, ..args }))
        });
    let (names, args) = match named {
        Ok(named) => named,
        Err(why) => return wrong(&why, err),
    };
    match prepare(names, args, env, err) {
        Ok(run) => block_on(err, async |messages, signals| under_lock(&run, signals, messages).await),
        Err(code) => code,
    }
}

/// Campaigns until a signal or a refusal ends it; returns the exit code.
pub(super) fn elect(args: ElectCommand, env: &impl Environment, err: &mut dyn Write) -> u8 {
    let listen = args.listen;
    let run = RunCommand {
        ttl: Some(args.ttl),
        wait: Duration::ZERO,
        at_least: Duration::ZERO,
        skip_if_held: false,
        on_lost: OnLost::Stop,
        grace: args.grace,
        conflict_exit_code: exit::HELD,
        quiet: args.quiet,
        mode: ModeArgs::default(),
        labels: args.labels,
        service: args.service,
        resource: args.resource.clone(),
        command: args.command,
    };
    match prepare(args.resource.into(), run, env, err) {
        Ok(mut run) => {
            // It waits for ever, and holds nothing while it waits.
            run.request.refuses_deadlock = false;
            block_on(err, async |messages, signals| elect::campaign(&run, listen, signals, messages).await)
        }
        Err(code) => code,
    }
}

/// Runs the steps on their own runtime, and ends this process with their result.
fn block_on(err: &mut dyn Write, steps: impl AsyncFnOnce(&MessageWriter<'_>, &mut RunSignals) -> CommandEnd) -> u8 {
    let runtime = match tokio::runtime::Builder::new_current_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => {
            print_line(err, &format!("redlockd: the runtime cannot be created: {error}"));
            return exit::UNAVAILABLE;
        }
    };
    let messages = MessageWriter::new(err);
    let end = runtime.block_on(async {
        match RunSignals::listen() {
            Ok(mut signals) => steps(&messages, &mut signals).await,
            Err(error) => {
                messages.message(&format!("signals cannot be handled: {error}"));
                failed(exit::UNAVAILABLE)
            }
        }
    });
    // Tasks that still run do not matter any more.
    runtime.shutdown_background();
    end_as(end)
}

/// Ends this process by the signal that ended the command or the wait, if it is one of the usual ones: a shell then stops the
/// loop or script around it, as after Ctrl-C. Otherwise returns the exit code, which is the same for shells.
fn end_as(end: CommandEnd) -> u8 {
    if let Some(signal @ (Signal::INT | Signal::TERM | Signal::HUP)) = end.signal {
        // Returns only if it fails.
        let _ = signal_hook::low_level::emulate_default_handler(signal.as_raw());
    }
    end.code
}

/// Reports a usage error.
fn wrong(why: &str, err: &mut dyn Write) -> u8 {
    print_line(err, &format!("redlockd: {why}"));
    exit::USAGE
}

/// Checks the arguments.
fn prepare(names: LockNames, args: RunCommand, env: &impl Environment, err: &mut dyn Write) -> Result<RunContext, u8> {
    let mut usage = |why: String| wrong(&why, err);
    let ttl = args.ttl.unwrap_or_else(|| args.at_least.clamp(TTL, TTL_MAX));
    let max = ttl / GRACES_PER_TTL;
    let grace = match args.grace {
        Some(grace) if grace > max => {
            let (min_ttl, grace) = (grace.saturating_mul(GRACES_PER_TTL), format_duration(grace));
            return Err(usage(format!("--grace {grace} needs a --ttl of at least {}", format_duration(min_ttl))));
        }
        Some(grace) => grace,
        None => GRACE.min(max),
    };
    if ttl.is_zero() {
        return Err(usage("--ttl must be more than 0s".to_owned()));
    }
    let pid = std::process::id();
    let request = client_from_args::lock_request(names, Some(ttl), args.labels, pid, env).map_err(&mut usage)?;
    // The owner names this process alone, unless the caller chose another one.
    let request = LockRequest { mode: args.mode.wanted(), refuses_deadlock: true, ..request };
    let client = client_from_args::client(&args.service, env, err)?;
    let policy =
        LossPolicy { grace, margin: MARGIN.min(ttl / MARGINS_PER_TTL), warn_only: args.on_lost == OnLost::Warn };
    Ok(RunContext {
        client,
        request,
        wait: args.wait,
        skip_if_held: args.skip_if_held,
        held_exit_code: args.conflict_exit_code,
        quiet: args.quiet,
        policy,
        ttl,
        at_least: args.at_least,
        command: args.command,
        token_dir: runtime_dir(env),
        service: ServiceArgs::to_args(&args.service),
    })
}

/// The directory of the token file; in memory if there is one.
fn runtime_dir(env: &impl Environment) -> PathBuf {
    let dir = |name| client_from_args::set(env, name).map(PathBuf::from).filter(|dir| dir.is_dir());
    dir("XDG_RUNTIME_DIR").or_else(|| dir("TMPDIR")).unwrap_or_else(|| "/tmp".into())
}

async fn under_lock(run: &RunContext, signals: &mut RunSignals, messages: &MessageWriter<'_>) -> CommandEnd {
    let run_token = match RunToken::begin(run, messages) {
        Ok(run_token) => run_token,
        Err(end) => return end,
    };
    let lease = match get_lock(run, &run_token, signals, messages).await {
        Ok(lease) => lease,
        Err(end) => return end,
    };
    let outcome = with_command(run, &run_token, &lease, |_| {}, signals, messages).await;
    match outcome.lease {
        LeaseEnd::Held if !run.at_least.is_zero() => {
            at_least::keep(run, &run_token, &lease, outcome.is_interrupted, signals, messages).await;
        }
        LeaseEnd::Held => release(run, &run_token, messages).await,
        // This was reported already; one release may end the lease sooner.
        LeaseEnd::NotRenewed => abandon(&run.client, &run.request, &run_token.token).await,
        // The other locks of the set are still held.
        LeaseEnd::Ended if run.request.names.single().is_none() => {
            abandon(&run.client, &run.request, &run_token.token).await;
        }
        LeaseEnd::Ended => {}
    }
    outcome.end
}
