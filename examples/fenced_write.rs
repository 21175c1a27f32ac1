//! Fencing: a holder that was paused beyond the end of its lease writes late, and the store refuses the write because it
//! has seen a larger fence. The lock alone cannot prevent such a write.
//!
//!     cargo run -- serve &
//!     cargo run --example fenced_write [URL]
#![expect(clippy::print_stdout, reason = "an example shows what happens")]

use std::collections::BTreeMap;
use std::time::Duration;

use redlockd::client::acquire::acquire;
use redlockd::client::base_url::BaseUrl;
use redlockd::client::requests::LockRequest;
use redlockd::client::transport::{Client, ClientSettings};
use redlockd::redlock::random::{Entropy, SystemEntropy};
use redlockd::types::{ResourceName, WantedMode};

type Failure = Box<dyn std::error::Error + Send + Sync>;

const RESOURCE: &str = "example/report";

/// What the lock protects. A database does the same with a column `fence` and
/// `update ... set fence = :fence where fence <= :fence` in the transaction of the write (`docs/safety.md`).
#[derive(Default)]
struct Store {
    rows: BTreeMap<String, Row>,
}

#[derive(Default)]
struct Row {
    /// The largest fence of all writes so far.
    fence: u64,
    value: String,
}

impl Store {
    /// Errors: a write with a larger fence was here before; its fence.
    fn write(&mut self, resource: &str, fence: u64, value: &str) -> Result<(), u64> {
        let row = self.rows.entry(resource.to_owned()).or_default();
        if fence < row.fence {
            return Err(row.fence);
        }
        *row = Row { fence, value: value.to_owned() };
        Ok(())
    }
}

#[tokio::main]
async fn main() -> Result<(), Failure> {
    let _ = rustls::crypto::ring::default_provider().install_default();
    let url = std::env::args().nth(1).unwrap_or_else(|| "http://127.0.0.1:5625".to_owned());
    run(&url).await
}

/// Two holders one after the other; the first writes after its lease has ended.
///
/// Errors: the service refuses a lease, or the store takes the late write.
pub async fn run(url: &str) -> Result<(), Failure> {
    let client = Client::new(ClientSettings { urls: vec![BaseUrl::parse(url)?], key: None, ca_pem: None })?;
    let mut store = Store::default();

    let first = fence_of_lease(&client, "first").await?;
    println!("the first holder has fence {first}, and is paused beyond the end of its lease");
    let second = fence_of_lease(&client, "second").await?;
    println!("the second holder has fence {second}");
    store.write(RESOURCE, second, "by the second holder").map_err(|seen| format!("refused: fence {seen} was here"))?;
    println!("the second holder writes");
    match store.write(RESOURCE, first, "by the first holder") {
        Ok(()) => return Err("the late write was taken".into()),
        Err(seen) => println!("the first holder writes late: refused, the store has seen fence {seen}"),
    }
    println!("the store has: {}", store.rows[RESOURCE].value);
    Ok(())
}

/// Acquires a lease of half a second and leaves it to its end.
async fn fence_of_lease(client: &Client, owner: &str) -> Result<u64, Failure> {
    let want = LockRequest {
        kept_for: None,
        mode: WantedMode::Exclusive,
        names: ResourceName::parse(RESOURCE)?.into(),
        ttl: Some(Duration::from_millis(500)),
        owner: owner.to_owned(),
        note: String::new(),
        metadata: BTreeMap::new(),
        refuses_deadlock: false,
    };
    let answer = acquire(client, &want, &SystemEntropy.token(), Duration::from_secs(10), |_| {}).await?;
    Ok(answer.fences()[0])
}
