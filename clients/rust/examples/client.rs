//! The client in a program: acquire a lock, renew it while the work runs, stop working if it is lost, release it.
//!
//!     redlockd serve &
//!     cargo run -p redlockd-client --example client [URL]
#![expect(clippy::print_stdout, reason = "an example shows what happens")]

use std::time::Duration;

use redlockd_client::{BaseUrl, Client, ClientSettings, LockOptions, LockRequest, Locks, ResourceName};

type Failure = Box<dyn std::error::Error + Send + Sync>;

/// How long to wait for the lock.
const WAIT: Duration = Duration::from_secs(10);
/// The work is stopped so long before the deadline of a lease that cannot be renewed.
const GRACE: Duration = Duration::from_millis(500);

#[tokio::main]
async fn main() -> Result<(), Failure> {
    let url = std::env::args().nth(1).unwrap_or_else(|| "http://127.0.0.1:5625".to_owned());
    run(&url).await
}

/// Runs the work once under the lock `example/client`.
pub async fn run(url: &str) -> Result<(), Failure> {
    // Further URLs would name further instances, which are tried in turn.
    let client = Client::new(ClientSettings { urls: vec![BaseUrl::parse(url)?], key: None, ca_pem: None })?;
    let locks = Locks::new(client);
    let want = LockRequest {
        ttl: Some(Duration::from_secs(3)),
        owner: "example".to_owned(),
        note: "shows the client".to_owned(),
        ..LockRequest::of(ResourceName::parse("example/client")?)
    };
    let lock = locks.acquire(&want, LockOptions { wait: WAIT, margin: GRACE }).await?;
    println!("acquired, fence {}, valid for {:?}", lock.fence(), lock.valid_for());

    tokio::select! {
        biased;
        () = work() => println!("the work is done"),
        // Dropping the future of the work is what stops it.
        why = lock.lost() => return Err(format!("the lock is lost: {why:?}").into()),
    }
    lock.release().await?;
    println!("released");
    Ok(())
}

/// Takes longer than a third of the TTL, so that the lease is renewed in between.
async fn work() {
    tokio::time::sleep(Duration::from_millis(1_500)).await;
}
