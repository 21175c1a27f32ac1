//! `redlockd acquire --async` and `redlockd ticket`: a request that waits without a process, and its outcome.

use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::{Args, Subcommand};
use serde_json::json;

use super::client_args::{AcquireCommand, OutputArgs, ServiceArgs, duration};
use super::client_from_args;
use super::commands::{CommandIo, acquire, read_token};
use super::exit;
use super::format::{self, OutputFormat};
use super::output::{MessageWriter, print_line};
use super::run::write_token;
use crate::api;
use crate::client::error::ClientError;
use crate::client::requests::LockRequest;
use crate::client::tickets::{AskedTicket, CallbackAddress, TicketOptions, new_token};
use crate::config::Environment;
use crate::protocol::TicketId;
use crate::types::Token;

/// The prefix of a target's name; any other text may be a secret.
const TARGET: &str = "target:";
/// The maximum length of a call-back's URL, with a newline. Bytes.
const CALLBACK_FILE_MAX_BYTES: u64 = 4_096;
/// The timeout of `wait` if none is given: longer than any ticket waits.
const WAIT_MAX: Duration = Duration::from_hours(24 * 31);

const SHOW_EXAMPLES: &str = "\
Examples:
  redlockd ticket show tk_4f0c6b1d2e3a59687f8e9dacbb0a1c2d
  redlockd ticket show --json --token-file lease.token tk_4f0c6b1d2e3a59687f8e9dacbb0a1c2d

The ticket is its maker's: with another key its token is needed. A ticket without a call-back that
nobody asks for within a minute ends; to see it granted is to accept it.

Exit codes: 0 shown, 1 no such ticket, 64 wrong usage, 69 no instance or no quorum, 77 not allowed.";

const WAIT_EXAMPLES: &str = "\
Examples:
  redlockd ticket wait tk_4f0c6b1d2e3a59687f8e9dacbb0a1c2d
      until it is granted or over; the ticket keeps its place if this is interrupted
  redlockd ticket wait --timeout 10m tk_4f0c6b1d2e3a59687f8e9dacbb0a1c2d

Exit codes: 0 it has its lease, 1 no such ticket, 64 wrong usage, 69 no instance or no quorum,
75 it waits still after --timeout, its wait is over, or it would be a deadlock, 76 it is over, 77 not allowed.";

const CANCEL_EXAMPLES: &str = "\
Examples:
  redlockd ticket cancel tk_4f0c6b1d2e3a59687f8e9dacbb0a1c2d
      gives it up while it waits, and releases its lease afterwards

Exit codes: 0 it is over, 1 no such ticket, 64 wrong usage, 69 no instance or no quorum, 76 it was
over before, 77 not allowed.";

/// Arguments of `acquire`.
#[derive(Debug, Args)]
pub(super) struct AskCommand {
    /// Do not wait here: print a ticket if the lock is held, which waits for --wait (1h without it)
    #[arg(long = "async", requires = "kept_for")]
    is_async: bool,
    /// Have the service renew the lease for so long
    #[arg(long = "keep", value_name = "TIME", value_parser = duration)]
    kept_for: Option<Duration>,
    /// Report the grant to this target of the service's webhooks_file (implies --async)
    #[arg(long, value_name = "target:NAME", requires = "kept_for")]
    callback: Option<String>,
    /// Report the grant to the URL in this file, which is below that of a target; `-` is standard input (implies --async)
    #[arg(long, value_name = "FILE", requires = "kept_for", conflicts_with = "callback")]
    callback_file: Option<PathBuf>,
    /// For how long the grant is offered to the receiver of the call-back [default: 2m]
    #[arg(long, value_name = "TIME", value_parser = duration)]
    accept: Option<Duration>,
    #[command(flatten)]
    acquire: AcquireCommand,
}

/// The commands of `ticket`.
#[derive(Debug, Subcommand)]
pub(super) enum TicketCommand {
    /// Show a ticket: its state, its place in the queue, its lease
    #[command(after_help = SHOW_EXAMPLES)]
    Show(TicketCommandArgs),
    /// Wait until a ticket has its lease
    #[command(after_help = WAIT_EXAMPLES)]
    Wait(WaitArgs),
    /// Give a ticket up, or release its lease
    #[command(after_help = CANCEL_EXAMPLES)]
    Cancel(TicketCommandArgs),
}

#[derive(Debug, Args)]
pub(super) struct TicketCommandArgs {
    /// File with the token of the ticket, if another key made it; `-` is standard input
    #[arg(long, value_name = "FILE")]
    token_file: Option<PathBuf>,
    #[command(flatten)]
    service: ServiceArgs,
    #[command(flatten)]
    output: OutputArgs,
    /// The ticket, as `acquire --async` printed it
    #[arg(value_parser = ticket)]
    ticket: TicketId,
}

#[derive(Debug, Args)]
pub(super) struct WaitArgs {
    /// Maximum wait [default: until the ticket waits no more]
    #[arg(long, value_name = "TIME", value_parser = duration)]
    timeout: Option<Duration>,
    #[command(flatten)]
    args: TicketCommandArgs,
}

fn ticket(text: &str) -> Result<TicketId, String> {
    TicketId::parse(text).ok_or_else(|| "must be tk_ and 32 hexadecimal digits".to_owned())
}

/// Runs `redlockd acquire`; returns the exit code.
pub(super) fn ask<E: Environment>(args: AskCommand, io: &mut CommandIo<'_, E>) -> Result<u8, u8> {
    let AskCommand { is_async, kept_for, callback, callback_file, accept, acquire: rest } = args;
    let has_callback = callback.is_some() || callback_file.is_some();
    if accept.is_some() && !has_callback {
        return Err(io.fail(exit::USAGE, "--accept is for a request with --callback or --callback-file"));
    }
    // The message may be logged, so it does not repeat the text.
    if callback.as_ref().is_some_and(|text| !text.starts_with(TARGET)) {
        let why = "--callback must be target:NAME; other users could read a URL there: use --callback-file";
        return Err(io.fail(exit::USAGE, why));
    }
    if !is_async && !has_callback {
        return acquire(rest, kept_for, io);
    }
    io.is_json = rest.output.json;
    let callback = match callback_file {
        Some(path) => Some(read_address(&path).map_err(|why| io.fail(exit::USAGE, &why))?),
        None => callback,
    };
    let terms = TicketOptions {
        wait: (!rest.wait.is_zero()).then_some(rest.wait),
        callback: callback.map(CallbackAddress),
        accept,
    };
    acquire_async(rest, kept_for, &terms, io)
}

fn read_address(path: &Path) -> Result<String, String> {
    let mut text = String::new();
    let read = match path == Path::new("-") {
        true => io::stdin().lock().take(CALLBACK_FILE_MAX_BYTES).read_to_string(&mut text),
        false => {
            std::fs::File::open(path).and_then(|file| file.take(CALLBACK_FILE_MAX_BYTES).read_to_string(&mut text))
        }
    };
    read.map_err(|error| format!("the address in {} cannot be read: {error}", path.display()))?;
    Ok(text.trim().to_owned())
}

fn acquire_async<E: Environment>(
    mut args: AcquireCommand,
    kept_for: Option<Duration>,
    terms: &TicketOptions,
    io: &mut CommandIo<'_, E>,
) -> Result<u8, u8> {
    args.token_file.take_if(|path| *path == Path::new("-"));
    let names = io.names(args.names)?;
    let request = client_from_args::lock_request(names, args.ttl, args.labels, client_from_args::parent(), io.env);
    let mode = args.mode.wanted();
    let request = LockRequest { mode, kept_for, ..request.map_err(|why| io.fail(exit::USAGE, &why))? };
    let client = client_from_args::client(&args.service, io.env, io.err)?;
    let token = new_token();
    if let Some(path) = &args.token_file {
        write_token(path, &token).map_err(|error| {
            let why = format!("the token file {} cannot be written: {error}; nothing was asked for", path.display());
            io.fail(exit::CANNOT_CREATE, &why)
        })?;
    }
    let asked = io.attempt(client.ask_for_ticket(&request, &token, terms))?.map_err(|error| {
        // A ticket may exist nevertheless: its token is kept.
        if let (Some(path), false) = (&args.token_file, error.maybe_done()) {
            let _ = std::fs::remove_file(path);
        }
        io.fail_with(&error)
    })?;
    let shown = args.token_file.is_none().then(|| token.reveal());
    let format = OutputFormat::of(args.output, io.env);
    match (asked, format) {
        (AskedTicket::Granted(lease), OutputFormat::Json) => io.print_json(&lease.answer.with_token(shown)),
        (AskedTicket::Granted(lease), form) => print_line(io.out, &format::acquired(&lease.answer, shown, form)),
        (AskedTicket::Ticket(ticket), OutputFormat::Json) => {
            let token = shown.map(|token| api::TokenText(token.to_owned()));
            io.print_json(&api::TicketStatus { token, ..*ticket });
        }
        (AskedTicket::Ticket(ticket), form) => print_line(io.out, &format::ticket(&ticket, shown, form)),
    }
    Ok(exit::OK)
}

/// The commands of `ticket`, which send requests to a running service.
pub(super) fn remote<E: Environment>(command: TicketCommand, io: &mut CommandIo<'_, E>) -> Result<u8, u8> {
    match command {
        TicketCommand::Show(args) => show(&args, io),
        TicketCommand::Wait(args) => wait(&args, io),
        TicketCommand::Cancel(args) => cancel(&args, io),
    }
}

fn show<E: Environment>(args: &TicketCommandArgs, io: &mut CommandIo<'_, E>) -> Result<u8, u8> {
    let token = token(args, io)?;
    let client = client_from_args::client(&args.service, io.env, io.err)?;
    let shown = io.attempt(client.ticket(args.ticket.as_str(), token.as_ref(), Duration::ZERO))?;
    let shown = shown.map_err(|error| fail(&error, io))?;
    print(&shown, args.output, io);
    Ok(exit::OK)
}

fn wait<E: Environment>(args: &WaitArgs, io: &mut CommandIo<'_, E>) -> Result<u8, u8> {
    let WaitArgs { timeout, args } = args;
    let token = token(args, io)?;
    let client = client_from_args::client(&args.service, io.env, io.err)?;
    let most = timeout.unwrap_or(WAIT_MAX).min(WAIT_MAX);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|error| io.fail(exit::UNAVAILABLE, &format!("no runtime: {error}")))?;
    let messages = MessageWriter::new(io.err);
    let mut reported = false;
    let outcome = runtime.block_on(client.await_ticket(args.ticket.as_str(), token.as_ref(), most, |error| {
        if !std::mem::replace(&mut reported, true) {
            messages.message(&format!("{error}; trying again"));
        }
    }));
    runtime.shutdown_background();
    let shown = outcome.map_err(|error| fail(&error, io))?;
    print(&shown, args.output, io);
    match (shown.state.as_str(), shown.ended_by.as_deref()) {
        ("granted" | "accepted", _) => Ok(exit::OK),
        ("waiting", _) => Ok(io.fail(exit::HELD, "the ticket waits still")),
        (_, Some(end @ ("wait-timeout" | "deadlock"))) => {
            Ok(io.fail(exit::HELD, &format!("the ticket is over: {end}")))
        }
        (_, end) => Ok(io.fail(exit::LOST, &format!("the ticket is over: {}", end.unwrap_or("ended")))),
    }
}

fn cancel<E: Environment>(args: &TicketCommandArgs, io: &mut CommandIo<'_, E>) -> Result<u8, u8> {
    let token = token(args, io)?;
    let client = client_from_args::client(&args.service, io.env, io.err)?;
    io.attempt(client.end_ticket(args.ticket.as_str(), token.as_ref()))?.map_err(|error| fail(&error, io))?;
    if io.is_json {
        io.print_json(&json!({ "ticket": args.ticket.as_str(), "state": "ended" }));
    }
    Ok(exit::OK)
}

fn token<E: Environment>(args: &TicketCommandArgs, io: &mut CommandIo<'_, E>) -> Result<Option<Token>, u8> {
    io.is_json = args.output.json;
    let Some(path) = &args.token_file else { return Ok(None) };
    let read = read_token(path, io.err);
    read.map(Some).map_err(|why| io.fail(exit::USAGE, &format!("the token in {}: {why}", path.display())))
}

/// Prints why a ticket is not shown or changed; returns the exit code.
fn fail<E: Environment>(error: &ClientError, io: &mut CommandIo<'_, E>) -> u8 {
    let code = io.fail_with(error);
    match error.refusal().is_some_and(|refusal| refusal.slug == "not-found") {
        true => exit::NO,
        false => code,
    }
}

fn print<E: Environment>(ticket: &api::TicketStatus, output: OutputArgs, io: &mut CommandIo<'_, E>) {
    match OutputFormat::of(output, io.env) {
        OutputFormat::Json => io.print_json(ticket),
        form => print_line(io.out, &format::ticket(ticket, None, form)),
    }
}
