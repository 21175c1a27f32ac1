//! Drives the Rust client for `clients/conformance.py`: commands on standard input, events on standard output.
#![expect(clippy::print_stdout, reason = "events are its output")]

use std::time::Duration;

use redlockd::client::acquire::acquire;
use redlockd::client::base_url::BaseUrl;
use redlockd::client::error::{ClientError, ErrorClass};
use redlockd::client::renewal::LeaseRenewer;
use redlockd::client::requests::LockRequest;
use redlockd::client::transport::{Client, ClientSettings};
use redlockd::redlock::clock::{BootTime, Clock, SystemClock};
use redlockd::redlock::entropy::{Entropy, SystemEntropy};
use redlockd::types::{PermitLimit, ResourceName, Token, WantedMode};
use serde::Deserialize;
use serde_json::json;
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::sync::watch;
use tokio::task::{JoinHandle, LocalSet, spawn_local};

type Failure = Box<dyn std::error::Error + Send + Sync>;

const RELEASE_TIMEOUT: Duration = Duration::from_secs(2);

#[derive(Deserialize)]
#[serde(tag = "do", rename_all = "lowercase")]
enum Command {
    Acquire { name: String, ttl_ms: u64, wait_ms: u64, mode: Option<String>, limit: Option<u64> },
    Check,
    Release,
}

/// A held lock: the loss is reported `margin` before the deadline.
struct Held {
    resource: ResourceName,
    token: Token,
    margin: Duration,
    deadline: watch::Receiver<BootTime>,
    renewal: JoinHandle<()>,
}

impl Held {
    /// Zero where the lease may no longer be relied on.
    fn valid_for(&self) -> Duration {
        if self.renewal.is_finished() {
            return Duration::ZERO;
        }
        self.deadline.borrow().minus(self.margin).since(SystemClock.now())
    }
}

#[tokio::main(flavor = "current_thread")]
pub async fn main() -> Result<(), Failure> {
    LocalSet::new().run_until(drive()).await
}

/// Carries out one command after the other; the renewal runs beside them.
async fn drive() -> Result<(), Failure> {
    let _ = rustls::crypto::ring::default_provider().install_default();
    let urls = std::env::var("REDLOCKD_URL")?;
    let urls = urls.split(',').map(BaseUrl::parse).collect::<Result<Vec<_>, _>>()?;
    let client = Client::new(ClientSettings { urls, key: None, ca_pem: None })?;
    let (mut held, mut commands) = (None, BufReader::new(tokio::io::stdin()).lines());
    while let Some(line) = commands.next_line().await? {
        let event = match (serde_json::from_str(&line)?, &held) {
            (Command::Acquire { name, ttl_ms, wait_ms, mode, limit }, _) => {
                let mode = match (mode.as_deref(), limit.and_then(PermitLimit::new)) {
                    (_, Some(limit)) => WantedMode::Permit { limit },
                    (Some("shared"), None) => WantedMode::Shared,
                    _ => WantedMode::Exclusive,
                };
                let wanted = (ResourceName::parse(&name)?, mode, Duration::from_millis(ttl_ms));
                match begin(&client, wanted, Duration::from_millis(wait_ms)).await {
                    Ok((lock, event)) => {
                        held = Some(lock);
                        event
                    }
                    Err(error) => refused(&error),
                }
            }
            (Command::Check, Some(lock)) => match lock.valid_for() {
                Duration::ZERO => json!({ "event": "not-valid" }),
                valid => json!({ "event": "valid", "valid_for_ms": valid.as_millis() }),
            },
            (Command::Release, Some(lock)) => {
                lock.renewal.abort();
                match client.release(&lock.resource, &lock.token, RELEASE_TIMEOUT).await {
                    Ok(()) => json!({ "event": "released" }),
                    Err(error) if error.class() == ErrorClass::Lost => json!({ "event": "not-valid" }),
                    Err(error) => refused(&error),
                }
            }
            (_, None) => return Err("nothing was acquired".into()),
        };
        println!("{event}");
    }
    Ok(())
}

/// Acquires and renews.
async fn begin(
    client: &Client,
    (resource, mode, ttl): (ResourceName, WantedMode, Duration),
    wait: Duration,
) -> Result<(Held, serde_json::Value), ClientError> {
    let (owner, note, metadata) = (String::new(), String::new(), Default::default());
    let request = LockRequest {
        resource: resource.clone(),
        mode,
        ttl: Some(ttl),
        owner,
        note,
        metadata,
        kept_for: None,
        refuses_deadlock: false,
    };
    let (token, margin) = (SystemEntropy.token(), (ttl / 10).min(Duration::from_millis(500)));
    let lease = acquire(client, &request, &token, wait, |_| {}).await?;
    let (mut renewer, deadline) = LeaseRenewer::new(client.clone(), resource.clone(), token.clone(), &lease);
    let renewal = spawn_local(async move {
        let end = renewer.run(margin, |_| {}).await;
        println!("{}", json!({ "event": "lost", "why": format!("{end:?}") }));
    });
    let lock = Held { resource, token, margin, deadline, renewal };
    let event = json!({
        "event": "acquired", "fence": lease.lease.fence, "slot": lease.lease.slot, "valid_for_ms": lock.valid_for().as_millis(),
    });
    Ok((lock, event))
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
