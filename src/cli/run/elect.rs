//! `redlockd elect`: campaigns for ever. While this process leads it runs the command, or only holds the lock; when the lease is
//! lost or the command ends, it campaigns again with a new token.

use std::cell::Cell;
use std::net::SocketAddr;
use std::time::Duration;

use tokio::net::TcpListener;
use tokio::sync::watch;

use super::leader_page::{Leader, LeaderPage};
use super::locked_run::{RunContext, RunToken, ended_by, failed, interrupted, refused_code, release, with_command};
use super::process_group::CommandEnd;
use super::signals::RunSignals;
use super::supervise::LeaseEnd;
use crate::cli::commands::describe;
use crate::cli::exit;
use crate::cli::output::MessageWriter;
use crate::cli::progress::{Shown, with_progress};
use crate::client::acquire::{abandon, acquire};
use crate::client::answers::TimedLease;
use crate::client::error::{ClientError, ErrorClass};
use crate::client::renewal::{LeaseRenewer, RenewalEnd};
use crate::redlock::backoff::{Backoff, BackoffRange};
use crate::redlock::clock::{BootTime, Clock, SystemClock};
use crate::redlock::random::SystemEntropy;

/// Maximum wait of one acquire; then a new one begins.
const ROUND: Duration = Duration::from_hours(1);
/// Pause between two campaigns, so that a command that ends at once does not keep the nodes busy …
const PAUSE_MIN: Duration = Duration::from_secs(1);
/// … and a random part, which grows.
const PAUSES: BackoffRange = BackoffRange { first: Duration::from_secs(1), max: Duration::from_secs(29) };
/// Interval of the message why no process can be elected.
const REPEAT_INTERVAL: Duration = Duration::from_mins(1);
/// After a term of this length the pauses start from the shortest again.
const LONG_TERM: Duration = Duration::from_mins(1);

/// Campaigns until a signal, or a refusal that will not change. With `listen`, also answers which process leads. Cancel: the
/// watchdog ends the command; the TTL ends the lease.
pub(super) async fn campaign(
    run: &RunContext,
    listen: Option<SocketAddr>,
    signals: &mut RunSignals,
    messages: &MessageWriter<'_>,
) -> CommandEnd {
    let listener = match listen {
        None => None,
        Some(address) => match TcpListener::bind(address).await {
            Ok(listener) => Some(listener),
            Err(error) => {
                messages.message(&format!("cannot listen on {address}: {error}"));
                return failed(exit::UNAVAILABLE);
            }
        },
    };
    if let Some(Ok(address)) = listener.as_ref().map(TcpListener::local_addr) {
        messages.message(&format!("answers who leads on http://{address}"));
    }
    let (leader, request) = (Leader::default(), &run.request);
    let (client, owner) = (&run.client, request.owner.as_str());
    let page = LeaderPage { leader: &leader, client, resource: request.names.first(), owner, seen: Cell::default() };
    tokio::select! {
        biased;
        end = terms(run, &leader, signals, messages) => end,
        never = page.serve(listener) => match never {},
    }
}

async fn terms(
    run: &RunContext,
    leader: &Leader,
    signals: &mut RunSignals,
    messages: &MessageWriter<'_>,
) -> CommandEnd {
    let mut pauses = Backoff::new(PAUSES, SystemEntropy);
    loop {
        let run_token = match RunToken::begin(run, messages) {
            Ok(run_token) => run_token,
            Err(end) => return end,
        };
        let lease = tokio::select! {
            biased;
            signal = interrupted(signals) => {
                abandon(&run.client, &run.request, &run_token.token).await;
                return ended_by(signal);
            }
            lease = elected(run, &run_token, messages) => match lease {
                Ok(lease) => lease,
                Err(end) => return end,
            },
        };
        let began = SystemClock.now();
        let ended = term(run, leader, &run_token, lease, signals, messages).await;
        if let Some(end) = ended {
            return end;
        }
        if SystemClock.now().since(began) >= LONG_TERM {
            pauses.reset();
        }
        tokio::select! {
            biased;
            signal = interrupted(signals) => return ended_by(signal),
            () = SystemClock.sleep(PAUSE_MIN.saturating_add(pauses.next_delay())) => {}
        }
    }
}

/// Waits until this process is elected. Errors: a permanent refusal, already printed.
async fn elected(
    run: &RunContext,
    run_token: &RunToken,
    messages: &MessageWriter<'_>,
) -> Result<TimedLease, CommandEnd> {
    // It is expected that another process leads.
    let shown = if run.quiet { Shown::Nothing } else { Shown::Troubles };
    let mut last: Option<(String, BootTime)> = None;
    let mut report = |error: &ClientError| {
        let (kind, now) = (error.refusal().map(|refusal| refusal.slug.clone()).unwrap_or_default(), SystemClock.now());
        // Once for each reason and minute, not for each attempt.
        let is_known = last.as_ref().is_some_and(|(before, at)| *before == kind && now.since(*at) < REPEAT_INTERVAL);
        if !run.quiet && !is_known {
            messages.message(&format!("{}; trying on", describe(error)));
            last = Some((kind, now));
        }
    };
    loop {
        let waiting = acquire(&run.client, &run.request, &run_token.token, ROUND, &mut report);
        match with_progress(shown, &run.client, &run.request, SystemClock.now(), messages, waiting).await {
            Ok(lease) => return Ok(lease),
            Err(error) if matches!(error.class(), ErrorClass::Held | ErrorClass::Unavailable) => {}
            Err(error) => {
                messages.message(&describe(&error));
                return Err(failed(refused_code(run, &error)));
            }
        }
    }
}

/// One term: from the grant to the release. `Some`: how this process ends.
async fn term(
    run: &RunContext,
    leader: &Leader,
    run_token: &RunToken,
    lease: TimedLease,
    signals: &mut RunSignals,
    messages: &MessageWriter<'_>,
) -> Option<CommandEnd> {
    let name = &run.request.names;
    if !run.quiet {
        messages.message(&format!("leads {name}, with the fence {}", lease.fences()[0]));
    }
    let begin = |deadline| leader.begin(lease.fences()[0], deadline);
    let (end, state) = if run.command.is_empty() {
        hold(run, run_token, &lease, begin, signals, messages).await
    } else {
        let outcome = with_command(run, run_token, &lease, begin, signals, messages).await;
        // If the command cannot be executed now, it cannot be executed later.
        let is_last =
            signals.received().is_some() || matches!(outcome.end.code, exit::NOT_FOUND | exit::CANNOT_EXECUTE);
        (is_last.then_some(outcome.end), outcome.lease)
    };
    leader.end();
    match state {
        LeaseEnd::Held => release(run, run_token, messages).await,
        LeaseEnd::NotRenewed => abandon(&run.client, &run.request, &run_token.token).await,
        LeaseEnd::Ended => {}
    }
    if !run.quiet && end.is_none() {
        messages.message(&format!("leads {name} no more"));
    }
    end
}

/// A term without a command: renews until a signal, or until the lease can no longer be renewed.
async fn hold(
    run: &RunContext,
    run_token: &RunToken,
    lease: &TimedLease,
    begin: impl FnOnce(watch::Receiver<BootTime>),
    signals: &mut RunSignals,
    messages: &MessageWriter<'_>,
) -> (Option<CommandEnd>, LeaseEnd) {
    let (client, names) = (run.client.clone(), run.request.names.clone());
    let (mut renewer, deadline) = LeaseRenewer::new(client, names, run_token.token.clone(), lease);
    begin(deadline);
    tokio::select! {
        biased;
        signal = interrupted(signals) => (Some(ended_by(signal)), LeaseEnd::Held),
        end = renewer.run(run.policy.margin, |_| {}) => match end {
            RenewalEnd::Ended(error) => {
                messages.message(&describe(&error));
                (None, LeaseEnd::Ended)
            }
            RenewalEnd::NotRenewed => {
                messages.message(&format!("the lease on {} could not be renewed in time", run.request.names));
                (None, LeaseEnd::NotRenewed)
            }
        },
    }
}
