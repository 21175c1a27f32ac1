//! `watch`: prints the cluster's events, one per line, and decides when to end and with which exit code. The client
//! follows the stream across interruptions.

use std::io::Write;

use tokio::signal::unix::{SignalKind, signal};

use super::client_args::WatchCommand;
use super::client_from_args;
use super::commands::CommandIo;
use super::exit;
use super::format::{self, OutputFormat};
use super::output::print_line;
use crate::api;
use crate::client::error::ClientError;
use crate::client::events::{EventFollower, StreamEvent, StreamUpdate};
use crate::config::Environment;
use crate::redlock::clock::{Clock, SystemClock};

/// Why the stream ended.
enum End {
    /// `--count` or `--for` was reached, or the output was closed.
    Done,
    /// A signal, by its number.
    Signal(u8),
    Failed(ClientError),
}

/// Runs `redlockd watch`; returns the exit code.
pub(super) fn watch<E: Environment>(args: &WatchCommand, io: &mut CommandIo<'_, E>) -> Result<u8, u8> {
    io.is_json = args.output.json;
    let client = client_from_args::client(&args.service, io.env, io.err)?;
    let format = OutputFormat::of(args.output, io.env);
    let follower = EventFollower::new(client, args.prefix.as_deref(), args.renewals, args.give_up);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|error| {
        print_line(io.err, &format!("redlockd: no runtime: {error}"));
        exit::UNAVAILABLE
    })?;
    let end = runtime.block_on(follow(args, follower, format, io.out, io.err));
    runtime.shutdown_background();
    match end {
        End::Done => Ok(exit::OK),
        End::Signal(number) => Ok(exit::BY_SIGNAL.saturating_add(number)),
        End::Failed(error) => Err(io.fail_with(&error)),
    }
}

async fn follow(
    args: &WatchCommand,
    mut follower: EventFollower,
    format: OutputFormat,
    out: &mut dyn Write,
    err: &mut dyn Write,
) -> End {
    let until = args.lasts.map(|lasts| SystemClock.now().plus(lasts));
    let over = async {
        match until {
            Some(at) => SystemClock.sleep_until(at).await,
            None => std::future::pending().await,
        }
    };
    let (mut over, mut interrupted) = (std::pin::pin!(over), std::pin::pin!(interrupted()));
    let (mut left, mut is_broken) = (args.count, false);
    loop {
        let update = tokio::select! {
            biased;
            number = &mut interrupted => return End::Signal(number),
            () = &mut over => return End::Done,
            update = follower.next() => update,
        };
        match update {
            Err(error) => return End::Failed(error),
            Ok(StreamUpdate::Interrupted(why)) => {
                if !std::mem::replace(&mut is_broken, true) {
                    print_line(err, &format!("redlockd: {why}; trying again"));
                }
            }
            Ok(StreamUpdate::Event(event)) => {
                is_broken = false;
                let Some(line) = shown(&event, format) else {
                    print_line(err, &format!("redlockd: events may be missing: {}", detail(&event)));
                    continue;
                };
                if writeln!(out, "{line}").and_then(|()| out.flush()).is_err() {
                    return End::Done;
                }
                left = left.map(|left| left - 1);
                if left == Some(0) {
                    return End::Done;
                }
            }
        }
    }
}

/// The line of an event; `None` for reports about the stream itself.
fn shown(received: &StreamEvent, format: OutputFormat) -> Option<String> {
    if matches!(received.kind.as_str(), "gap" | "dropped") {
        return None;
    }
    let event: api::Event = serde_json::from_str(&received.data).ok()?;
    Some(if format == OutputFormat::Json { received.data.clone() } else { format::event(&event, format) })
}

fn detail(received: &StreamEvent) -> String {
    let members: serde_json::Value = serde_json::from_str(&received.data).unwrap_or_default();
    let detail = members["detail"].as_str().unwrap_or("the service gave no reason");
    crate::client::error::one_line(detail)
}

/// The number of the first SIGINT or SIGTERM; pending for ever if they cannot be handled.
async fn interrupted() -> u8 {
    let (int, term) = (SignalKind::interrupt(), SignalKind::terminate());
    let (Ok(mut on_int), Ok(mut on_term)) = (signal(int), signal(term)) else { return std::future::pending().await };
    let which = tokio::select! {
        biased;
        _ = on_int.recv() => int,
        _ = on_term.recv() => term,
    };
    u8::try_from(which.as_raw_value()).unwrap_or_default()
}
