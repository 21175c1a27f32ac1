//! `redlockd hook`: creates secrets, verifies received messages in a shell script, and shows and tests the hooks of a running
//! service.

use std::fs::OpenOptions;
use std::io::{self, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Subcommand};

use super::client_args::{OutputArgs, ServiceArgs};
use super::client_from_args;
use super::commands::CommandIo;
use super::exit;
use super::format::{self, OutputFormat};
use super::output::print_line;
use crate::config::Environment;
use crate::redlock::clock::{Clock, SystemClock};
use crate::redlock::random::{Entropy, SystemEntropy};
use crate::webhooks::signing::{SignedContent, SigningSecret};

/// The maximum length of a message that is verified. Bytes.
const RECEIVED_MAX_BYTES: u64 = 1 << 20;
/// The maximum length of a secret's file. Bytes.
const SECRET_FILE_MAX_BYTES: u64 = 1_024;
/// Timeout of a test's answer: longer than that of a delivery.
const TEST_TIMEOUT: Duration = Duration::from_secs(20);

const SECRET_EXAMPLES: &str = "\
Examples:
  redlockd hook secret --to n8n.whsec
      a new secret in a file that only you can read; name it in `secret_files` of the target
  redlockd hook secret
      the same on standard output

Exit codes: 0 made, 64 wrong usage, 73 the file of --to cannot be created.";

const VERIFY_EXAMPLES: &str = "\
Examples:
  redlockd hook verify --secret-file n8n.whsec < body
      the headers are in the environment: WEBHOOK_ID, WEBHOOK_TIMESTAMP and WEBHOOK_SIGNATURE, or with
      HTTP_ before the names, as a web server passes them to CGI programs
  redlockd hook verify --secret-file new.whsec --secret-file old.whsec < body
      while the secret is replaced

The body must be the received bytes. A message of more than 5 minutes ago is refused; one that was
accepted before is not: remember WEBHOOK_ID.

Exit codes: 0 it comes from who has the secret, 1 it does not, 64 wrong usage.";

const LIST_EXAMPLES: &str = "\
Examples:
  redlockd hook list
  redlockd hook list --json | jq '.hooks[] | select(.state != \"on\")'

As the instance that answers sees them: each has its own queues. Needs the right admin.

Exit codes: 0 printed, 64 wrong usage, 69 no instance answers, 77 not allowed.";

const TEST_EXAMPLES: &str = "\
Examples:
  redlockd hook test ops
      sends webhook.test to the target of the hook `ops`, once; if it is accepted, a hook that is off is on
  redlockd hook test target:n8n
      the same to a target

Needs the right admin.

Exit codes: 0 accepted, 1 not accepted, or no such name, 64 wrong usage, 69 no instance answers,
77 not allowed.";

const REPLAY_EXAMPLES: &str = "\
Examples:
  redlockd hook replay ops
      sends the last messages of the hook `ops` again that were dropped or given up, and switches it on

Needs the right admin. Of the instance that answers: each has its own queues.

Exit codes: 0 queued, 1 no such hook, 64 wrong usage, 69 no instance answers, 77 not allowed.";

/// The commands of `hook`.
#[derive(Debug, Subcommand)]
pub(super) enum HookCommand {
    /// Make a secret that signs messages
    #[command(after_help = SECRET_EXAMPLES)]
    Secret(SecretArgs),
    /// Show targets and hooks: their state, the last try, what waits
    #[command(after_help = LIST_EXAMPLES)]
    List(HookListArgs),
    /// Send a test to a hook or a target
    #[command(after_help = TEST_EXAMPLES)]
    Test(NameArgs),
    /// Send messages again that a hook's receiver did not accept
    #[command(after_help = REPLAY_EXAMPLES)]
    Replay(NameArgs),
    /// Check the signature of a received message: body on standard input, headers in the environment
    #[command(after_help = VERIFY_EXAMPLES)]
    Verify(VerifyArgs),
}

#[derive(Debug, Args)]
pub(super) struct SecretArgs {
    /// Write the secret to this new file, readable by its owner only
    #[arg(long, value_name = "FILE")]
    to: Option<PathBuf>,
}

#[derive(Debug, Args)]
pub(super) struct HookListArgs {
    #[command(flatten)]
    service: ServiceArgs,
    #[command(flatten)]
    output: OutputArgs,
}

#[derive(Debug, Args)]
pub(super) struct NameArgs {
    #[command(flatten)]
    service: ServiceArgs,
    #[command(flatten)]
    output: OutputArgs,
    /// The name of a hook, or `target:` and that of a target
    name: String,
}

#[derive(Debug, Args)]
pub(super) struct VerifyArgs {
    /// File with the secret; may be repeated while it is replaced
    #[arg(long = "secret-file", value_name = "FILE", required = true)]
    secret_files: Vec<PathBuf>,
}

/// `hook secret`; returns the exit code.
pub(super) fn secret(args: &SecretArgs, out: &mut dyn Write, err: &mut dyn Write) -> u8 {
    let secret = SigningSecret::generate(|bytes| SystemEntropy.fill(bytes));
    let Some(path) = &args.to else {
        print_line(out, &secret);
        return exit::OK;
    };
    let made = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path);
    match made.and_then(|mut file| writeln!(file, "{secret}").and_then(|()| file.sync_all())) {
        Ok(()) => exit::OK,
        Err(error) => {
            print_line(err, &format!("redlockd: the secret file {} cannot be created: {error}", path.display()));
            exit::CANNOT_CREATE
        }
    }
}

/// `hook verify`; returns the exit code.
pub(super) fn verify(args: &VerifyArgs, env: &impl Environment, err: &mut dyn Write) -> u8 {
    let mut secrets = Vec::new();
    for path in &args.secret_files {
        match read_secret(path) {
            Ok(secret) => secrets.push(secret),
            Err(why) => {
                print_line(err, &format!("redlockd: the secret file {}: {why}", path.display()));
                return exit::USAGE;
            }
        }
    }
    let mut body = Vec::new();
    let read = io::stdin().lock().take(RECEIVED_MAX_BYTES + 1).read_to_end(&mut body);
    let verified = match read {
        Err(error) => Err(format!("the body cannot be read: {error}")),
        Ok(_) if body.len() as u64 > RECEIVED_MAX_BYTES => Err("the body has more than 1 MiB".to_owned()),
        Ok(_) => check(env, &body, &secrets),
    };
    match verified {
        Ok(()) => exit::OK,
        Err(why) => {
            print_line(err, &format!("redlockd: not verified: {why}"));
            exit::NO
        }
    }
}

/// Errors: why the message is not verified.
fn check(env: &impl Environment, body: &[u8], secrets: &[SigningSecret]) -> Result<(), String> {
    let header = |name: &str| {
        let value = [name.to_owned(), format!("HTTP_{name}")].iter().find_map(|name| client_from_args::set(env, name));
        value
            .and_then(|value| value.into_string().ok())
            .ok_or_else(|| format!("{name} is not set: the header of that name"))
    };
    let (id, signature) = (header("WEBHOOK_ID")?, header("WEBHOOK_SIGNATURE")?);
    let timestamp_s = header("WEBHOOK_TIMESTAMP")?;
    let timestamp_s = timestamp_s.parse().map_err(|_| "WEBHOOK_TIMESTAMP is no number of seconds".to_owned())?;
    let content = SignedContent { id: &id, timestamp_s, body };
    content.verify(&signature, secrets, SystemClock.wall_ms() / 1_000).map_err(str::to_owned)
}

fn read_secret(path: &std::path::Path) -> Result<SigningSecret, String> {
    let mut text = String::new();
    let file = std::fs::File::open(path).map_err(|error| error.to_string())?;
    file.take(SECRET_FILE_MAX_BYTES).read_to_string(&mut text).map_err(|error| error.to_string())?;
    SigningSecret::parse(text.trim_end_matches(['\r', '\n'])).map_err(|why| why.0)
}

/// The commands that send requests to a running service.
pub(super) fn remote<E: Environment>(command: HookCommand, io: &mut CommandIo<'_, E>) -> Result<u8, u8> {
    match command {
        HookCommand::List(args) => list(&args, io),
        HookCommand::Test(args) => test(&args, io),
        HookCommand::Replay(args) => replay(&args, io),
        HookCommand::Secret(_) | HookCommand::Verify(_) => unreachable!("they ask no service"),
    }
}

fn list<E: Environment>(args: &HookListArgs, io: &mut CommandIo<'_, E>) -> Result<u8, u8> {
    io.is_json = args.output.json;
    let client = client_from_args::client(&args.service, io.env, io.err)?;
    let hooks = io.send(client.hooks())?;
    match OutputFormat::of(args.output, io.env) {
        OutputFormat::Json => io.print_json(&hooks),
        form => print_line(io.out, &format::hooks(&hooks, form)),
    }
    Ok(exit::OK)
}

fn test<E: Environment>(args: &NameArgs, io: &mut CommandIo<'_, E>) -> Result<u8, u8> {
    io.is_json = args.output.json;
    let client = client_from_args::client(&args.service, io.env, io.err)?;
    let tried = io.send(client.test_hook(&args.name, TEST_TIMEOUT))?;
    let verdict = if tried.accepted { "accepted" } else { "not accepted" };
    match OutputFormat::of(args.output, io.env) {
        OutputFormat::Json => io.print_json(&tried),
        _ => print_line(io.out, &format!("{verdict}: {} after {} ms", tried.answer, tried.took_ms)),
    }
    Ok(if tried.accepted { exit::OK } else { exit::NO })
}

fn replay<E: Environment>(args: &NameArgs, io: &mut CommandIo<'_, E>) -> Result<u8, u8> {
    io.is_json = args.output.json;
    let client = client_from_args::client(&args.service, io.env, io.err)?;
    let replayed = io.send(client.replay_hook(&args.name))?;
    match OutputFormat::of(args.output, io.env) {
        OutputFormat::Json => io.print_json(&replayed),
        _ => print_line(io.out, &format!("queued={}", replayed.queued)),
    }
    Ok(exit::OK)
}
