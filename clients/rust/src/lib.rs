//! The client of the distributed-lock service redlockd.
//!
//! A [`Lock`] is a value: the lease is renewed as long as the value lives, [`Lock::lost`] resolves *before* a lease that cannot be
//! renewed is over, and dropping the value releases the lock.
//!
//! ```no_run
//! use std::time::Duration;
//!
//! use redlockd_client::{BaseUrl, Client, ClientSettings, LockOptions, LockRequest, Locks, ResourceName};
//!
//! # async fn work(fence: u64) {}
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! let urls = vec![BaseUrl::parse("http://10.0.0.1:5625")?, BaseUrl::parse("http://10.0.0.2:5625")?];
//! let locks = Locks::new(Client::new(ClientSettings { urls, ..ClientSettings::default() })?);
//!
//! let request = LockRequest { owner: "ci-4711".into(), ..LockRequest::of(ResourceName::parse("deploy/prod")?) };
//! let options = LockOptions { wait: Duration::from_secs(60), ..LockOptions::default() };
//! let lock = locks.acquire(&request, options).await?;
//! tokio::select! {
//!     () = work(lock.fence()) => lock.release().await?,
//!     // Dropping the future of the work is what stops it.
//!     why = lock.lost() => eprintln!("stopped: {why:?}"),
//! }
//! locks.close().await;
//! # Ok(())
//! # }
//! ```
//!
//! # What it promises
//!
//! - **The deadline is local**: it counts from before the request that was answered, on a clock that runs while the machine is
//!   suspended. [`Lock::valid_for`] reads that clock, so it is right also after the process was stopped.
//! - **An extend never moves the deadline back**, and a failed one leaves it as it is; it is tried again until
//!   [`LockOptions::margin`] before the deadline. Then the lock is lost, and [`Lock::lost`] resolves.
//! - **Nothing is left behind**: an acquire that is dropped while it waits gives up its place, and its lease is released if it
//!   was granted.
//! - **Several locks** ([`LockNames`]) are acquired all or none, with one token; the loss of one is the loss of all.
//! - **Several instances** are tried in turn, the one that answered last first. A hanging one is passed over after a second.
//! - Redirects and proxy variables are ignored: both would send key and token to other hosts.
//!
//! It cannot stop a program that is paused after it checked its lock. Only [`Lock::fence`] protects against that: send it with
//! each write, and let the store refuse a smaller one.
//!
//! # Modules
//!
//! [`lock`] is what programs use. Below it, [`acquire()`](acquire::acquire) waits longer than one request can, [`renewal`] keeps one
//! lease alive, [`tickets`] are requests that wait without a connection, [`requests`] has the endpoints as methods of [`Client`], [`transport`] sends them, and [`events`] follows the event
//! stream. [`api`] has the JSON types. It prints nothing and logs nothing, since tokens and keys pass through it.

#![warn(unreachable_pub)]

pub mod acquire;
pub mod answers;
pub mod base_url;
pub mod error;
pub mod events;
pub mod key;
pub mod lock;
pub mod names;
pub mod renewal;
pub mod requests;
pub mod tickets;
pub mod transport;

pub use answers::TimedLease;
pub use base_url::BaseUrl;
pub use error::{ApiRefusal, ClientError, ErrorClass};
pub use key::{ClientKey, ClientKeyError, KeyFile};
pub use lock::{Lock, LockOptions, Locks};
pub use names::LockNames;
pub use redlockd_common::api;
pub use redlockd_common::clock::BootTime;
pub use redlockd_common::types::{Invalid, NodeId, PermitLimit, ResourceName, Token, WantedMode};
pub use renewal::RenewalEnd;
pub use requests::LockRequest;
pub use tickets::{AskedTicket, CallbackAddress, TicketOptions, new_token};
pub use transport::{Client, ClientSettings};
