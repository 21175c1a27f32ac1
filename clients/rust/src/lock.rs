//! A lock, or several, as a value: it is renewed as long as the value lives, reports its loss in time, and is released when it is
//! dropped.

use std::future::Future;
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::sync::{oneshot, watch};
use tokio_util::task::TaskTracker;

use super::acquire::{abandon, acquire};
use super::error::ClientError;
use super::names::LockNames;
use super::renewal::{LeaseRenewer, RenewalEnd};
use super::requests::LockRequest;
use super::transport::Client;
use redlockd_common::clock::{BootTime, Clock, SystemClock};
use redlockd_common::random::{Entropy, SystemEntropy};
use redlockd_common::types::{ResourceName, Token};

/// Maximum duration of a release. Beyond it the TTL ends the lease.
const RELEASE_TIMEOUT: Duration = Duration::from_secs(2);

/// How a lock is acquired and watched.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LockOptions {
    /// Maximum wait for the lock in all.
    pub wait: Duration,
    /// How long before its deadline the loss of a lease that cannot be renewed is reported: the time that the work needs to stop.
    pub margin: Duration,
}

impl Default for LockOptions {
    fn default() -> Self {
        Self { wait: Duration::ZERO, margin: Duration::from_millis(500) }
    }
}

/// Acquires locks, and waits for the releases of dropped ones. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Locks {
    client: Client,
    tasks: TaskTracker,
}

impl Locks {
    /// Acquires with this client.
    pub fn new(client: Client) -> Self {
        Self { client, tasks: TaskTracker::new() }
    }

    /// Acquires a lock, and renews it from then on. Must be called within a runtime of tokio.
    ///
    /// Errors: [`ClientError`] of the last try; nothing is held then, unless no instance could be reached.
    /// Cancel: a lease that may have been granted is released in the background.
    pub async fn acquire(&self, request: &LockRequest, options: LockOptions) -> Result<Lock, ClientError> {
        let mut attempt = Attempt { locks: self, request, token: SystemEntropy.token(), is_over: false };
        let granted = acquire(&self.client, request, &attempt.token, options.wait, |_| {}).await;
        attempt.is_over = true;
        let (granted, token) = (granted?, attempt.token.clone());
        let (client, names) = (self.client.clone(), request.names.clone());
        let (renewer, deadline) = LeaseRenewer::new(client.clone(), names.clone(), token.clone(), &granted);
        let ((ended, end), (release, released)) = (watch::channel(None), oneshot::channel());
        let held = Held { client, names, token };
        self.tasks.spawn(keep(renewer, held.clone(), options.margin, ended, released));
        let (fences, slot) = (granted.fences(), granted.slot());
        Ok(Lock { held, fences, slot, margin: options.margin, deadline, end, release: Some(release) })
    }

    /// Resolves when the dropped locks are released. Call it before the runtime ends, or the TTL ends them. Cancel: nothing is
    /// lost.
    pub async fn close(&self) {
        self.tasks.close();
        self.tasks.wait().await;
    }
}

/// An acquire that may be dropped before its answer.
struct Attempt<'a> {
    locks: &'a Locks,
    request: &'a LockRequest,
    token: Token,
    is_over: bool,
}

impl Drop for Attempt<'_> {
    fn drop(&mut self) {
        // Without a runtime nothing can be sent any more; the TTL ends the lease.
        if let Ok(runtime) = Handle::try_current()
            && !self.is_over
        {
            let (client, request, token) = (self.locks.client.clone(), self.request.clone(), self.token.clone());
            self.locks.tasks.spawn_on(async move { abandon(&client, &request, &token).await }, &runtime);
        }
    }
}

/// The data for a release.
#[derive(Debug, Clone)]
struct Held {
    client: Client,
    names: LockNames,
    token: Token,
}

impl Held {
    async fn release(&self) -> Result<(), ClientError> {
        self.client.release(&self.names, &self.token, RELEASE_TIMEOUT).await
    }
}

/// Renews until renewal is no longer possible, or until the lock is dropped; then releases it.
async fn keep(
    mut renewer: LeaseRenewer,
    held: Held,
    margin: Duration,
    ended: watch::Sender<Option<RenewalEnd>>,
    mut released: oneshot::Receiver<()>,
) {
    let is_released = tokio::select! {
        biased;
        is_released = &mut released => is_released,
        end = renewer.run(margin, |_| {}) => {
            ended.send_replace(Some(end));
            released.await
        }
    };
    if is_released.is_err() {
        // If no instance answers, the TTL ends the lease.
        let _ = held.release().await;
    }
}

/// A lock that is held, or several that are held together. Dropped, it is released in the background; [`Self::release`] says how that went.
#[derive(Debug)]
pub struct Lock {
    held: Held,
    fences: Vec<u64>,
    slot: Option<u8>,
    margin: Duration,
    deadline: watch::Receiver<BootTime>,
    end: watch::Receiver<Option<RenewalEnd>>,
    release: Option<oneshot::Sender<()>>,
}

impl Lock {
    /// The fencing token: send it with each write, so that the store can refuse a holder whose lease has ended. Of several locks,
    /// that of the first.
    pub fn fence(&self) -> u64 {
        self.fences.first().copied().unwrap_or_default()
    }

    /// The name and the fencing token of each lock, in the order of the request.
    pub fn fences(&self) -> impl Iterator<Item = (&ResourceName, u64)> {
        self.held.names.iter().zip(self.fences.iter().copied())
    }

    /// The number of a permit, from 0.
    pub fn slot(&self) -> Option<u8> {
        self.slot
    }

    /// The name, or names.
    pub fn names(&self) -> &LockNames {
        &self.held.names
    }

    /// How long the lock may be relied on without a further renewal, less the margin; zero once it is lost. Reads the clock: the
    /// program may have been stopped for longer than the lease.
    pub fn valid_for(&self) -> Duration {
        match *self.end.borrow() {
            Some(_) => Duration::ZERO,
            None => self.deadline.borrow().minus(self.margin).since(SystemClock.now()),
        }
    }

    /// Resolves when the lock is lost, at least the margin before its deadline unless the service ended it: stop the work then.
    /// It never resolves if the lock was released. Cancel: nothing is lost.
    pub fn lost(&self) -> impl Future<Output = RenewalEnd> + Send + use<> {
        let mut end = self.end.clone();
        async move {
            let end = match end.wait_for(Option::is_some).await {
                Ok(end) => end.clone(),
                Err(_) => None,
            };
            match end {
                Some(end) => end,
                None => std::future::pending().await,
            }
        }
    }

    /// Stops renewing the lock without a release: a lease with [`LockRequest::kept_for`] stays held by the service until its end,
    /// others until their TTL. The token extends and releases it.
    pub fn leave(mut self) -> Token {
        if let Some(release) = self.release.take() {
            // Fails if the renewal has panicked.
            let _ = release.send(());
        }
        self.held.token.clone()
    }

    /// Releases the lock.
    ///
    /// Errors: [`ClientError`]; of the class `Lost` if the lease had ended. Cancel: it may or may not have been released; the TTL
    /// ends it.
    pub async fn release(mut self) -> Result<(), ClientError> {
        if let Some(release) = self.release.take() {
            // Fails if the renewal has panicked.
            let _ = release.send(());
        }
        self.held.release().await
    }
}
