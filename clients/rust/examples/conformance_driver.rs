//! Drives the Rust client for `clients/conformance.py`: commands on standard input, events on standard output.
#![expect(clippy::print_stdout, reason = "events are its output")]

use std::time::Duration;

use redlockd_client::{
    AskedTicket, BaseUrl, Client, ClientError, ClientSettings, ErrorClass, Lock, LockNames, LockOptions, LockRequest,
    Locks, PermitLimit, ResourceName, TicketOptions, Token, WantedMode, api, new_token,
};
use serde::Deserialize;
use serde_json::json;
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::task::{LocalSet, spawn_local};

type Failure = Box<dyn std::error::Error + Send + Sync>;

#[derive(Deserialize)]
#[serde(tag = "do", rename_all = "lowercase")]
enum Command {
    Acquire(Wanted),
    Check,
    Release,
    Leave,
    Ask(Asked),
    Await { wait_ms: u64 },
    End,
}

#[derive(Deserialize)]
struct Asked {
    name: Option<String>,
    #[serde(default)]
    names: Vec<String>,
    keep_ms: u64,
    wait_ms: u64,
}

/// What became of a request for a ticket.
struct Ticket {
    names: LockNames,
    token: Token,
    answer: AskedTicket,
}

#[derive(Deserialize)]
struct Wanted {
    name: Option<String>,
    #[serde(default)]
    names: Vec<String>,
    ttl_ms: u64,
    wait_ms: u64,
    keep_ms: Option<u64>,
    mode: Option<String>,
    limit: Option<u64>,
}

#[tokio::main(flavor = "current_thread")]
pub async fn main() -> Result<(), Failure> {
    LocalSet::new().run_until(drive()).await
}

/// Carries out one command after the other; the renewal runs beside them.
async fn drive() -> Result<(), Failure> {
    let urls = std::env::var("REDLOCKD_URL")?;
    let urls = urls.split(',').map(BaseUrl::parse).collect::<Result<Vec<_>, _>>()?;
    let client = Client::new(ClientSettings { urls, key: None, ca_pem: None })?;
    let (locks, mut ticket) = (Locks::new(client.clone()), None::<Ticket>);
    let (mut held, mut commands) = (None::<Lock>, BufReader::new(tokio::io::stdin()).lines());
    while let Some(line) = commands.next_line().await? {
        let event = match (serde_json::from_str(&line)?, held.take()) {
            (Command::Acquire(wanted), _) => match begin(&locks, &wanted).await? {
                Ok((lock, event)) => {
                    held = Some(lock);
                    event
                }
                Err(error) => refused(&error),
            },
            (Command::Leave, Some(lock)) => {
                lock.leave();
                json!({ "event": "left" })
            }
            (Command::Check, Some(lock)) => {
                let valid = lock.valid_for();
                held = Some(lock);
                match valid {
                    Duration::ZERO => json!({ "event": "not-valid" }),
                    valid => json!({ "event": "valid", "valid_for_ms": valid.as_millis() }),
                }
            }
            (Command::Release, Some(lock)) => match lock.release().await {
                Ok(()) => json!({ "event": "released" }),
                Err(error) if error.class() == ErrorClass::Lost => json!({ "event": "not-valid" }),
                Err(error) => refused(&error),
            },
            (Command::Ask(asked), _) => match ask(&client, &asked).await? {
                Ok(asked) => {
                    let state = match &asked.answer {
                        AskedTicket::Granted(_) => json!({ "event": "asked", "state": "accepted", "ticket": null }),
                        AskedTicket::Ticket(shown) => {
                            json!({ "event": "asked", "state": shown.state, "ticket": shown.ticket })
                        }
                    };
                    ticket = Some(asked);
                    state
                }
                Err(error) => refused(&error),
            },
            (Command::Await { wait_ms }, _) => {
                let ticket = ticket.as_ref().ok_or("there is no ticket")?;
                await_ticket(&client, ticket, Duration::from_millis(wait_ms)).await.unwrap_or_else(|e| refused(&e))
            }
            (Command::End, _) => {
                let Ticket { names, token, answer } = ticket.as_ref().ok_or("there is no ticket")?;
                let ended = match answer {
                    AskedTicket::Granted(_) => client.release(names, token, Duration::from_secs(10)).await,
                    AskedTicket::Ticket(shown) => client.end_ticket(&shown.ticket, Some(token)).await,
                };
                ended.map_or_else(|error| refused(&error), |()| json!({ "event": "ended" }))
            }
            (_, None) => return Err("nothing was acquired".into()),
        };
        println!("{event}");
    }
    Ok(())
}

/// Errors: the command is invalid.
fn lock_names(name: Option<&String>, names: &[String]) -> Result<LockNames, Failure> {
    let names = name.into_iter().chain(names).map(|name| ResourceName::parse(name));
    Ok(LockNames::new(names.collect::<Result<Vec<_>, _>>()?)?)
}

/// Asks for a ticket. Errors: the command is invalid.
async fn ask(client: &Client, asked: &Asked) -> Result<Result<Ticket, ClientError>, Failure> {
    let names = lock_names(asked.name.as_ref(), &asked.names)?;
    let kept_for = Some(Duration::from_millis(asked.keep_ms));
    let request = LockRequest { kept_for, ..LockRequest::of(names.clone()) };
    let terms = TicketOptions { wait: Some(Duration::from_millis(asked.wait_ms)), ..TicketOptions::default() };
    let token = new_token();
    let answer = client.ask_for_ticket(&request, &token, &terms).await;
    Ok(answer.map(|answer| Ticket { names, token, answer }))
}

async fn await_ticket(client: &Client, ticket: &Ticket, wait: Duration) -> Result<serde_json::Value, ClientError> {
    let shown: api::TicketStatus = match &ticket.answer {
        AskedTicket::Granted(lease) => return Ok(json!({ "event": "granted", "fences": lease.fences() })),
        AskedTicket::Ticket(asked) => client.await_ticket(&asked.ticket, Some(&ticket.token), wait, |_| {}).await?,
    };
    Ok(match shown.state.as_str() {
        "waiting" => json!({ "event": "waiting" }),
        "ended" => json!({ "event": "over", "by": shown.ended_by }),
        _ => {
            let each = shown.leases.iter().flatten().map(|lease| lease.fence);
            json!({ "event": "granted", "fences": each.chain(shown.fence).collect::<Vec<_>>() })
        }
    })
}

/// Acquires, and says when that is lost. Errors: the command is invalid.
async fn begin(locks: &Locks, wanted: &Wanted) -> Result<Result<(Lock, serde_json::Value), ClientError>, Failure> {
    let names = lock_names(wanted.name.as_ref(), &wanted.names)?;
    let mode = match (wanted.mode.as_deref(), wanted.limit.and_then(PermitLimit::new)) {
        (_, Some(limit)) => WantedMode::Permit { limit },
        (Some("shared"), None) => WantedMode::Shared,
        _ => WantedMode::Exclusive,
    };
    let (ttl, wait) = (Duration::from_millis(wanted.ttl_ms), Duration::from_millis(wanted.wait_ms));
    let kept_for = wanted.keep_ms.map(Duration::from_millis);
    let request = LockRequest { mode, ttl: Some(ttl), kept_for, ..LockRequest::of(names) };
    let margin = (ttl / 10).min(Duration::from_millis(500));
    let lock = match locks.acquire(&request, LockOptions { wait, margin }).await {
        Ok(lock) => lock,
        Err(error) => return Ok(Err(error)),
    };
    let lost = lock.lost();
    spawn_local(async move {
        let end = lost.await;
        println!("{}", json!({ "event": "lost", "why": format!("{end:?}") }));
    });
    let event = json!({
        "event": "acquired", "fence": lock.fence(), "fences": lock.fences().map(|(_, fence)| fence).collect::<Vec<_>>(),
        "slot": lock.slot(), "valid_for_ms": lock.valid_for().as_millis(),
    });
    Ok(Ok((lock, event)))
}

fn refused(error: &ClientError) -> serde_json::Value {
    let kind = match error.class() {
        ErrorClass::Held => "held",
        ErrorClass::Unavailable => "unavailable",
        ErrorClass::Lost => "lost",
        _ => "refused",
    };
    json!({ "event": "refused", "kind": kind, "why": error.to_string() })
}
