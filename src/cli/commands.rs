//! The commands that send one request and print its answer. Tokens are read from files or standard input; only `acquire` prints
//! them.

use std::io::{self, Read, Write};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::Duration;

use serde_json::{Map, Value, json};

use super::client_args::{
    AcquireCommand, EventsCommand, ExtendCommand, FenceCommand, ForceCommand, HealthCommand, ListCommand,
    ReleaseCommand, StatusCommand, TokenArgs,
};
use super::client_from_args;
use super::exit;
use super::format::{self, OutputFormat};
use super::local_service::own_service;
use super::output::{MessageWriter, print_line};
use super::progress::{Shown, with_progress};
use super::run::write_token;
use crate::client::acquire::acquire as acquire_waiting;
use crate::client::error::{ClientError, one_line};
use crate::client::names::LockNames;
use crate::client::requests::{ForcedRelease, LockRequest};
use crate::client::transport::ANSWER_TIMEOUT;
use crate::config::Environment;
use crate::duration::format_duration;
use crate::redlock::clock::{Clock, SystemClock};
use crate::redlock::random::{Entropy, SystemEntropy};
use crate::types::{ResourceName, TOKEN_MAX_CHARS, Token};

/// Permission bits with which users other than the owner can read a file.
const READABLE_BY_OTHERS: u32 = 0o044;

/// A command's environment and outputs.
pub(super) struct CommandIo<'a, E> {
    pub(super) env: &'a E,
    pub(super) out: &'a mut dyn Write,
    pub(super) err: &'a mut dyn Write,
    /// `--json`: refusals are printed as JSON too.
    pub(super) is_json: bool,
}

impl<E: Environment> CommandIo<'_, E> {
    pub(super) fn fail(&mut self, code: u8, why: &str) -> u8 {
        print_line(self.err, &format!("redlockd: {why}"));
        code
    }

    /// Prints why a request has no result; returns the exit code.
    pub(super) fn fail_with(&mut self, error: &ClientError) -> u8 {
        if self.is_json {
            self.print_json(&error.problem());
        }
        self.fail(exit::of(error), &describe(error))
    }

    /// Runs one request on its own runtime.
    pub(super) fn send<T>(&mut self, request: impl Future<Output = Result<T, ClientError>>) -> Result<T, u8> {
        self.attempt(request)?.map_err(|error| self.fail_with(&error))
    }

    /// As [`Self::send`], for a change that takes seconds: says so if it may have been made without an answer.
    pub(super) fn send_change<T>(&mut self, request: impl Future<Output = Result<T, ClientError>>) -> Result<T, u8> {
        self.attempt(request)?.map_err(|error| {
            let code = self.fail_with(&error);
            if error.maybe_done() {
                print_line(self.err, "redlockd: it may have been done all the same: see `redlockd nodes`");
            }
            code
        })
    }

    /// As [`Self::send`]; the caller interprets errors.
    pub(super) fn attempt<T>(&mut self, request: impl Future<Output = T>) -> Result<T, u8> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let runtime = runtime.map_err(|error| self.fail(exit::UNAVAILABLE, &format!("no runtime: {error}")))?;
        let outcome = runtime.block_on(request);
        runtime.shutdown_background();
        Ok(outcome)
    }

    pub(super) fn print_json(&mut self, answer: &impl serde::Serialize) {
        print_line(self.out, &serde_json::to_string(answer).expect("answers are plain data"));
    }

    /// The names of a request.
    pub(super) fn names(&mut self, names: Vec<ResourceName>) -> Result<LockNames, u8> {
        LockNames::new(names).map_err(|why| self.fail(exit::USAGE, &why.0))
    }

    /// Reads the token from `--token-file` or the file in the variable that `run` sets.
    fn token(&mut self, args: &TokenArgs) -> Result<Token, u8> {
        let named = args.token_file.clone().map(std::path::PathBuf::into_os_string);
        let Some(path) = named.or_else(|| client_from_args::set(self.env, "REDLOCKD_TOKEN_FILE")) else {
            return Err(self.fail(exit::USAGE, "--token-file FILE is needed (`-` is standard input)"));
        };
        let path = Path::new(&path);
        read_token(path, self.err)
            .map_err(|why| self.fail(exit::USAGE, &format!("the token in {}: {why}", path.display())))
    }
}

/// The service's hint on a TTL that is too long, in terms of HTTP.
const WITH_PATCH: &str = "longer work extends its lease with PATCH";

/// The error as one sentence, in terms of the command line.
pub(super) fn describe(error: &ClientError) -> String {
    match error.refusal().map(|refusal| refusal.slug.as_str()) {
        Some("unauthenticated") => {
            "the service requires an API key (--key-file FILE or REDLOCKD_KEY_FILE), and this one \
                                    is missing, unknown or expired"
                .to_owned()
        }
        _ => error.to_string().replace(WITH_PATCH, "`run` renews by itself, `extend` by hand"),
    }
}

pub(super) fn read_token(path: &Path, err: &mut dyn Write) -> Result<Token, String> {
    // A newline and WebDAV's brackets may surround the token.
    let max = u64::try_from(TOKEN_MAX_CHARS).unwrap_or(u64::MAX).saturating_add(8);
    let mut text = String::new();
    warn_of_readers(path, err);
    let read = match path == Path::new("-") {
        true => io::stdin().lock().take(max).read_to_string(&mut text),
        false => std::fs::File::open(path).and_then(|file| file.take(max).read_to_string(&mut text)),
    };
    read.map_err(|error| error.to_string())?;
    Token::parse(text.trim()).map_err(|invalid| invalid.0)
}

/// Warns if others can read the token: they could end the lease.
fn warn_of_readers(path: &Path, err: &mut dyn Write) {
    let mode = std::fs::metadata(path).map(|file| if file.is_file() { file.mode() } else { 0 });
    if mode.is_ok_and(|mode| mode & READABLE_BY_OTHERS != 0) {
        let shown = path.display();
        print_line(err, &format!("redlockd: warning: other users can read the token file {shown}: chmod 600 {shown}"));
    }
}

/// `acquire`, and `keep` with a time.
pub(super) fn acquire<E: Environment>(
    mut args: AcquireCommand,
    kept_for: Option<Duration>,
    io: &mut CommandIo<'_, E>,
) -> Result<u8, u8> {
    io.is_json = args.output.json;
    let is_token_wanted = args.token_file.take_if(|path| *path == Path::new("-")).is_some();
    let names = io.names(args.names)?;
    let request = client_from_args::lock_request(names, args.ttl, args.labels, client_from_args::parent(), io.env);
    let mode = args.mode.wanted();
    let request = LockRequest { mode, kept_for, ..request.map_err(|why| io.fail(exit::USAGE, &why))? };
    let client = client_from_args::client(&args.service, io.env, io.err)?;
    let token = SystemEntropy.token();
    // If the token cannot be stored, nothing is acquired.
    if let Some(path) = &args.token_file {
        write_token(path, &token).map_err(|error| {
            let why = format!("the token file {} cannot be written: {error}; nothing was acquired", path.display());
            io.fail(exit::CANNOT_CREATE, &why)
        })?;
    }
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|error| io.fail(exit::UNAVAILABLE, &format!("no runtime: {error}")))?;
    let messages = MessageWriter::new(io.err);
    let until = SystemClock.now().plus(args.wait);
    let mut reported = false;
    let waiting = acquire_waiting(&client, &request, &token, args.wait, |error| {
        if !std::mem::replace(&mut reported, true) {
            messages.message(&format!("{error}; trying again"));
        }
    });
    let shown = if args.wait.is_zero() { Shown::Nothing } else { Shown::All };
    let outcome = runtime.block_on(with_progress(shown, &client, &request, until, &messages, waiting));
    runtime.shutdown_background();
    let granted = outcome.map_err(|error| {
        if let Some(path) = &args.token_file {
            // Nothing was acquired with this token.
            let _ = std::fs::remove_file(path);
        }
        io.fail_with(&error)
    })?;
    let format = match is_token_wanted {
        true => OutputFormat::Plain,
        false => OutputFormat::of(args.output, io.env),
    };
    let shown = args.token_file.is_none().then(|| token.reveal());
    match (format, shown) {
        (OutputFormat::Json, shown) => io.print_json(&granted.answer.with_token(shown)),
        (OutputFormat::Plain, Some(token)) => print_line(io.out, token),
        (OutputFormat::Plain, None) => {}
        (form, shown) => print_line(io.out, &format::acquired(&granted.answer, shown, form)),
    }
    Ok(exit::OK)
}

/// Runs `redlockd extend`; returns the exit code.
pub(super) fn extend<E: Environment>(args: &ExtendCommand, io: &mut CommandIo<'_, E>) -> Result<u8, u8> {
    io.is_json = args.output.json;
    let names = io.names(args.names.clone())?;
    let token = io.token(&args.token)?;
    let client = client_from_args::client(&args.service, io.env, io.err)?;
    let mut changes = Map::new();
    changes.extend(args.ttl.map(|ttl| ("ttl".to_owned(), Value::from(format_duration(ttl)))));
    changes.extend(args.keep.map(|keep| ("keep".to_owned(), Value::from(format_duration(keep)))));
    changes.extend(args.shared.then(|| ("mode".to_owned(), Value::from("shared"))));
    changes.extend(args.note.clone().map(|note| ("note".to_owned(), Value::from(note))));
    if !args.meta.is_empty() {
        let pair =
            |(key, value): &(String, String)| (key.clone(), if value.is_empty() { Value::Null } else { json!(value) });
        changes.insert("metadata".to_owned(), args.meta.iter().map(pair).collect::<Map<_, _>>().into());
    }
    let extended = io.send(client.extend(&names, &token, changes, ANSWER_TIMEOUT))?;
    match OutputFormat::of(args.output, io.env) {
        OutputFormat::Json => io.print_json(&extended.answer),
        form => print_line(io.out, &format::extended(&extended.answer, form)),
    }
    Ok(exit::OK)
}

/// Runs `redlockd release`; returns the exit code.
pub(super) fn release<E: Environment>(args: &ReleaseCommand, io: &mut CommandIo<'_, E>) -> Result<u8, u8> {
    io.is_json = args.output.json;
    let names = io.names(args.names.clone())?;
    let token = io.token(&args.token)?;
    let client = client_from_args::client(&args.service, io.env, io.err)?;
    io.send(client.release(&names, &token, ANSWER_TIMEOUT))?;
    if io.is_json {
        let released = |name: &ResourceName| json!({ "resource": name.as_str(), "state": "released" });
        io.print_json(&match names.single() {
            Some(name) => released(name),
            None => json!({ "results": names.iter().map(released).collect::<Vec<_>>() }),
        });
    }
    Ok(exit::OK)
}

/// Runs `redlockd status`; returns the exit code.
pub(super) fn status<E: Environment>(args: &StatusCommand, io: &mut CommandIo<'_, E>) -> Result<u8, u8> {
    io.is_json = args.output.json;
    let client = client_from_args::client(&args.service, io.env, io.err)?;
    let Some(lock) = io.send(client.inspect(&args.resource))? else {
        if io.is_json {
            io.print_json(&json!({ "resource": args.resource.as_str(), "state": "free" }));
        }
        return Ok(io.fail(exit::NO, &format!("{} is free", args.resource)));
    };
    match OutputFormat::of(args.output, io.env) {
        OutputFormat::Json => io.print_json(&lock),
        form => print_line(io.out, &format::lock(&lock, form)),
    }
    Ok(exit::OK)
}

/// Runs `redlockd fence`; returns the exit code.
pub(super) fn fence<E: Environment>(args: &FenceCommand, io: &mut CommandIo<'_, E>) -> Result<u8, u8> {
    io.is_json = args.output.json;
    let client = client_from_args::client(&args.service, io.env, io.err)?;
    let checked = io.send(client.check_fence(&args.resource, args.fence))?;
    match OutputFormat::of(args.output, io.env) {
        OutputFormat::Json => io.print_json(&checked),
        OutputFormat::Plain => {}
        OutputFormat::Human { .. } => {
            let left = checked.valid_for_ms / 1_000;
            print_line(
                io.out,
                &format!("{} is the newest fence of {}; {left} s left", checked.fence, checked.resource),
            );
        }
    }
    Ok(exit::OK)
}

/// Runs `redlockd list`; returns the exit code.
pub(super) fn list<E: Environment>(args: &ListCommand, io: &mut CommandIo<'_, E>) -> Result<u8, u8> {
    io.is_json = args.output.json;
    let client = client_from_args::client(&args.service, io.env, io.err)?;
    let fields = [("prefix", &args.prefix), ("owner", &args.owner), ("state", &args.state)];
    let filter: Vec<_> = fields.into_iter().filter_map(|(name, value)| Some((name, value.clone()?))).collect();
    let list = io.send(client.list(&filter))?;
    match OutputFormat::of(args.output, io.env) {
        OutputFormat::Json => io.print_json(&list),
        OutputFormat::Plain if list.items.is_empty() => {}
        form => print_line(io.out, &format::list(&list, form)),
    }
    if list.complete {
        return Ok(exit::OK);
    }
    let why = list.incomplete.as_deref().map(|why| format!(": {}", one_line(why))).unwrap_or_default();
    Ok(io.fail(exit::UNAVAILABLE, &format!("the list may be incomplete: too few nodes vote{why}")))
}

/// `events`: the oldest first, so that the newest is next to the prompt.
pub(super) fn events<E: Environment>(args: &EventsCommand, io: &mut CommandIo<'_, E>) -> Result<u8, u8> {
    io.is_json = args.output.json;
    let client = client_from_args::client(&args.service, io.env, io.err)?;
    let limit = Some(args.limit.to_string());
    let fields = [
        ("since", &args.since),
        ("at", &args.at),
        ("to", &args.to),
        ("kind", &args.kind),
        ("prefix", &args.prefix),
        ("limit", &limit),
    ];
    let filter = fields.into_iter().filter_map(|(name, value)| Some((name, value.clone()?))).collect();
    let past = io.send(client.past_events(filter))?;
    match OutputFormat::of(args.output, io.env) {
        OutputFormat::Json => io.print_json(&past),
        form => past.events.iter().rev().for_each(|event| print_line(io.out, &format::event(event, form))),
    }
    for gap in past.gaps.iter().filter(|_| !io.is_json) {
        print_line(io.err, &format!("redlockd: events may be missing: {}", format::gap(gap)));
    }
    Ok(exit::OK)
}

/// Runs `redlockd force`; returns the exit code.
pub(super) fn force<E: Environment>(args: &ForceCommand, io: &mut CommandIo<'_, E>) -> Result<u8, u8> {
    io.is_json = args.output.json;
    let client = client_from_args::client(&args.service, io.env, io.err)?;
    let mode = if args.now { ForcedRelease::Now } else { ForcedRelease::Revoke };
    let revoked = io.send(client.force(&args.resource, mode, &args.reason, args.if_fence))?;
    if io.is_json {
        match &revoked {
            Some(revoked) => io.print_json(revoked),
            None => io.print_json(&json!({ "resource": args.resource.as_str(), "state": "free" })),
        }
        return Ok(exit::OK);
    }
    let result = match revoked {
        Some(revoked) => {
            let seconds = Duration::from_millis(revoked.frees_in_ms.saturating_add(999)).as_secs();
            format!("{} is not renewed any more, and free in at most {seconds} s", args.resource)
        }
        None => format!("{} is free; its holder was not notified and may still be working", args.resource),
    };
    print_line(io.err, &format!("redlockd: {result}"));
    Ok(exit::OK)
}

/// `health`. Without a URL it checks the service with the same environment, as in a container.
pub(super) fn health<E: Environment>(args: &HealthCommand, io: &mut CommandIo<'_, E>) -> Result<u8, u8> {
    let has_url = !args.service.urls.is_empty() || client_from_args::set(io.env, "REDLOCKD_URL").is_some();
    let client = match own_service(io.env) {
        Some(url) if !has_url && args.service.ca_file.is_none() => client_from_args::own_client(&url, io.err)?,
        _ => client_from_args::client(&args.service, io.env, io.err)?,
    };
    match io.send(client.health(!args.live, args.timeout)) {
        Ok(health) => {
            print_line(io.out, &health.status);
            Ok(exit::OK)
        }
        // A probe only distinguishes success and failure.
        Err(_) => Ok(exit::NO),
    }
}
