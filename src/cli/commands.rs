//! The thin commands: one request each, its answer printed, its failure one sentence and an exit
//! code. Tokens come from files or standard input and are printed by `acquire` alone.

use std::io::{self, Read, Write};
use std::path::Path;
use std::time::Duration;

use serde_json::{Map, Value, json};

use super::client_args::{
    AcquireArgs, ExtendArgs, ForceArgs, HealthArgs, ListArgs, NodesArgs, ReleaseArgs, StatusArgs, TokenArgs,
};
use super::exit;
use super::format::{self, Form};
use super::output::{Voice, say};
use super::progress::with_progress;
use super::remote;
use super::run::write_token;
use crate::api;
use crate::client::acquire::acquire as acquire_waiting;
use crate::client::error::ClientError;
use crate::client::requests::Force;
use crate::client::transport::ANSWER_TIMEOUT;
use crate::config::Environment;
use crate::duration::format_duration;
use crate::redlock::clock::{Clock, SystemClock};
use crate::redlock::entropy::{Entropy, SystemEntropy};
use crate::types::{TOKEN_MAX_CHARS, Token};

/// What a command is given, and where it speaks.
pub(super) struct Console<'a, E> {
    pub(super) env: &'a E,
    pub(super) out: &'a mut dyn Write,
    pub(super) err: &'a mut dyn Write,
}

impl<E: Environment> Console<'_, E> {
    fn fail(&mut self, code: u8, why: &str) -> u8 {
        say(self.err, &format!("redlockd: {why}"));
        code
    }

    fn failed(&mut self, error: &ClientError) -> u8 {
        self.fail(exit::of(error), &error.to_string())
    }

    /// Drives one request, on a runtime of its own.
    fn ask<T>(&mut self, request: impl Future<Output = Result<T, ClientError>>) -> Result<T, u8> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let runtime = runtime.map_err(|error| self.fail(exit::UNAVAILABLE, &format!("no runtime: {error}")))?;
        let outcome = runtime.block_on(request);
        runtime.shutdown_background();
        outcome.map_err(|error| self.failed(&error))
    }

    fn print_json(&mut self, answer: &impl serde::Serialize) {
        say(self.out, &serde_json::to_string(answer).expect("answers are plain data"));
    }

    /// From the file that is named, else from the variable that `run` sets.
    fn token(&mut self, args: &TokenArgs) -> Result<Token, u8> {
        let named = args.token_file.clone().map(std::path::PathBuf::into_os_string);
        let Some(path) = named.or_else(|| remote::set(self.env, "REDLOCKD_TOKEN_FILE")) else {
            return Err(self.fail(exit::USAGE, "--token-file FILE is needed (`-` is standard input)"));
        };
        let path = Path::new(&path);
        read_token(path).map_err(|why| self.fail(exit::USAGE, &format!("the token in {}: {why}", path.display())))
    }
}

fn read_token(path: &Path) -> Result<Token, String> {
    // A newline and WebDAV's brackets may stand around it.
    let most = u64::try_from(TOKEN_MAX_CHARS).unwrap_or(u64::MAX).saturating_add(8);
    let mut text = String::new();
    let read = match path == Path::new("-") {
        true => io::stdin().lock().take(most).read_to_string(&mut text),
        false => std::fs::File::open(path).and_then(|file| file.take(most).read_to_string(&mut text)),
    };
    read.map_err(|error| error.to_string())?;
    Token::parse(text.trim()).map_err(|invalid| invalid.0)
}

/// `acquire`.
pub(super) fn acquire<E: Environment>(args: AcquireArgs, io: &mut Console<'_, E>) -> Result<u8, u8> {
    let want = remote::want(args.resource, args.ttl, args.labels, io.env);
    let want = want.map_err(|why| io.fail(exit::USAGE, &why))?;
    let client = remote::client(&args.service, io.env, io.err)?;
    let token = SystemEntropy.token();
    // With no room for the token nothing is acquired.
    if let Some(path) = &args.token_file {
        write_token(path, &token).map_err(|error| {
            let why = format!("the token file {} cannot be written: {error}; nothing was acquired", path.display());
            io.fail(exit::CANNOT_CREATE, &why)
        })?;
    }
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|error| io.fail(exit::UNAVAILABLE, &format!("no runtime: {error}")))?;
    let voice = Voice::new(io.err);
    let until = SystemClock.now().plus(args.wait);
    let mut told = false;
    let waiting = acquire_waiting(&client, &want, &token, args.wait, |error| {
        if !std::mem::replace(&mut told, true) {
            voice.say(&format!("{error}; trying on"));
        }
    });
    let outcome = runtime.block_on(with_progress(!args.wait.is_zero(), &client, &want, until, &voice, waiting));
    runtime.shutdown_background();
    let answered = outcome.map_err(|error| {
        if let Some(path) = &args.token_file {
            // Written above; it proves nothing.
            let _ = std::fs::remove_file(path);
        }
        io.failed(&error)
    })?;
    let form = Form::of(args.output, io.env);
    let shown = args.token_file.is_none().then(|| token.reveal());
    match (form, shown) {
        (Form::Json, shown) => {
            let token = shown.map(|token| api::Secret(token.to_owned()));
            io.print_json(&api::Lease { token, ..answered.lease });
        }
        (Form::Plain, Some(token)) => say(io.out, token),
        (Form::Plain, None) => {}
        (Form::Human { .. }, shown) => say(io.out, &format::lease(&answered.lease, shown)),
    }
    Ok(exit::OK)
}

/// `extend`.
pub(super) fn extend<E: Environment>(args: &ExtendArgs, io: &mut Console<'_, E>) -> Result<u8, u8> {
    let token = io.token(&args.token)?;
    let client = remote::client(&args.service, io.env, io.err)?;
    let mut changes = Map::new();
    changes.extend(args.ttl.map(|ttl| ("ttl".to_owned(), Value::from(format_duration(ttl)))));
    changes.extend(args.note.clone().map(|note| ("note".to_owned(), Value::from(note))));
    if !args.meta.is_empty() {
        let pair =
            |(key, value): &(String, String)| (key.clone(), if value.is_empty() { Value::Null } else { json!(value) });
        changes.insert("metadata".to_owned(), args.meta.iter().map(pair).collect::<Map<_, _>>().into());
    }
    let answered = io.ask(client.extend(&args.resource, &token, changes, ANSWER_TIMEOUT))?;
    match Form::of(args.output, io.env) {
        Form::Json => io.print_json(&answered.lease),
        _ => say(io.out, &format::lease(&answered.lease, None)),
    }
    Ok(exit::OK)
}

/// `release`.
pub(super) fn release<E: Environment>(args: &ReleaseArgs, io: &mut Console<'_, E>) -> Result<u8, u8> {
    let token = io.token(&args.token)?;
    let client = remote::client(&args.service, io.env, io.err)?;
    io.ask(client.release(&args.resource, &token, ANSWER_TIMEOUT))?;
    Ok(exit::OK)
}

/// `status`.
pub(super) fn status<E: Environment>(args: &StatusArgs, io: &mut Console<'_, E>) -> Result<u8, u8> {
    let client = remote::client(&args.service, io.env, io.err)?;
    let Some(lock) = io.ask(client.inspect(&args.resource))? else {
        return Ok(io.fail(exit::NO, &format!("nobody holds {}", args.resource)));
    };
    match Form::of(args.output, io.env) {
        Form::Json => io.print_json(&lock),
        form => say(io.out, &format::lock(&lock, form)),
    }
    Ok(exit::OK)
}

/// `list`.
pub(super) fn list<E: Environment>(args: &ListArgs, io: &mut Console<'_, E>) -> Result<u8, u8> {
    let client = remote::client(&args.service, io.env, io.err)?;
    let fields = [("prefix", &args.prefix), ("owner", &args.owner), ("state", &args.state)];
    let filter: Vec<_> = fields.into_iter().filter_map(|(name, value)| Some((name, value.clone()?))).collect();
    let list = io.ask(client.list(&filter))?;
    match Form::of(args.output, io.env) {
        Form::Json => io.print_json(&list),
        Form::Plain if list.items.is_empty() => {}
        form => say(io.out, &format::list(&list, form)),
    }
    if list.complete {
        return Ok(exit::OK);
    }
    Ok(io.fail(exit::UNAVAILABLE, "the list may lack entries: fewer nodes than a quorum answered"))
}

/// `nodes`.
pub(super) fn nodes<E: Environment>(args: &NodesArgs, io: &mut Console<'_, E>) -> Result<u8, u8> {
    let client = remote::client(&args.service, io.env, io.err)?;
    let nodes = io.ask(client.nodes())?;
    match Form::of(args.output, io.env) {
        Form::Json => io.print_json(&nodes),
        form => say(io.out, &format::nodes(&nodes, form)),
    }
    let count = nodes.quorum;
    if count.granted >= count.needed {
        return Ok(exit::OK);
    }
    let why = format!("{} of {} nodes vote, {} are needed", count.granted, count.nodes, count.needed);
    Ok(io.fail(exit::UNAVAILABLE, &why))
}

/// `force`.
pub(super) fn force<E: Environment>(args: &ForceArgs, io: &mut Console<'_, E>) -> Result<u8, u8> {
    let client = remote::client(&args.service, io.env, io.err)?;
    let how = if args.now { Force::Now } else { Force::Revoke };
    let revoked = io.ask(client.force(&args.resource, how, &args.reason, args.if_fence))?;
    let what = match revoked {
        Some(revoked) => {
            let seconds = Duration::from_millis(revoked.frees_in_ms.saturating_add(999)).as_secs();
            format!("{} is renewed no more and free in {seconds} s at the latest", args.resource)
        }
        None => format!("{} is free; its holder was not told and may still be working", args.resource),
    };
    say(io.err, &format!("redlockd: {what}"));
    Ok(exit::OK)
}

/// `health`.
pub(super) fn health<E: Environment>(args: &HealthArgs, io: &mut Console<'_, E>) -> Result<u8, u8> {
    let client = remote::client(&args.service, io.env, io.err)?;
    match io.ask(client.health(!args.live, args.timeout)) {
        Ok(health) => {
            say(io.out, &health.status);
            Ok(exit::OK)
        }
        // Probes know yes and no.
        Err(_) => Ok(exit::NO),
    }
}
