//! Ends of leases that another instance made: who granted a lease checks what became of it before the nodes forget how it ended, and
//! reports no second end. Without this the next look at a lease of some minutes finds nothing: it would be reported as expired, or lost.

use std::collections::{BTreeSet, VecDeque};
use std::time::Duration;

use futures_util::future::join_all;
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};

use super::kept_leases::ticket_end;
use super::lease_snapshot::LeaseChange;
use super::service::LockManager;
use crate::protocol::{InstanceName, TOKEN_TOMBSTONE};
use crate::redlock::clock::Clock;
use crate::redlock::extend::{ExtendParams, ExtendRefusal};
use crate::redlock::kept_lease::KeptEnd;
use crate::redlock::node::Node;
use crate::redlock::random::Entropy;
use crate::types::{ResourceName, TokenHash};

/// The name of its messages.
pub(super) const MESSAGE: &str = "lease_ended";
/// Maximum of ends to be checked; further ones are found when their leases are looked at next.
const PENDING_MAX: usize = 1_024;
/// Of these in one pass of [`super::maintenance`]: each costs two round trips.
const PER_PASS: usize = 64;
/// The end of a lease with no more time than this is found by whoever granted it while the nodes remember it.
pub(super) const SHORT: Duration = Duration::from_secs(30);
const _: () = assert!(SHORT.as_secs() * 2 <= TOKEN_TOMBSTONE.as_secs(), "and there is time to look");

/// An end is published again after so many passes: a granter that no node reaches in one moment may be reached in the next.
const REPEATED_AFTER: [u64; 3] = [3, 10, 30];
const _: () = assert!(REPEATED_AFTER[2] * 2 <= TOKEN_TOMBSTONE.as_secs(), "and there is time to look");
/// Maximum of ends that are to be published again; of further ones the oldest are not.
const REPEATS_MAX: usize = 1_024;

/// As one instance publishes it to the others. Not believed: only what the nodes show counts.
#[derive(Debug, Serialize, Deserialize)]
struct Message {
    event: String,
    instance: String,
    resource: String,
    /// Hash of its token.
    lease: String,
}

/// The message of this end.
pub(super) fn message(instance: &str, resource: &ResourceName, token: &TokenHash) -> Option<String> {
    let (event, instance) = (MESSAGE.to_owned(), instance.to_owned());
    let (resource, lease) = (resource.to_string(), token.as_str().to_owned());
    serde_json::to_string(&Message { event, instance, resource, lease }).ok()
}

/// What is to be checked, and what is to be published again, each with the passes since it was published.
#[derive(Default)]
pub(super) struct DistantEnds {
    pending: Mutex<BTreeSet<(ResourceName, TokenHash)>>,
    repeats: Mutex<VecDeque<(String, u64)>>,
}

impl DistantEnds {
    /// Receives a message; anything malformed is dropped. Each node passes it on.
    pub(super) fn receive(&self, text: &[u8], own: &str) {
        let Ok(Message { event, instance, resource, lease }) = serde_json::from_slice(text) else { return };
        if event != MESSAGE || InstanceName::parse(&instance).is_none() || instance == own {
            return;
        }
        let (Ok(resource), Some(token)) = (ResourceName::parse(&resource), TokenHash::parse(&lease)) else { return };
        let mut pending = self.pending.lock();
        if pending.len() < PENDING_MAX {
            pending.insert((resource, token));
        }
    }

    /// This message was published.
    pub(super) fn published(&self, text: String) {
        let mut repeats = self.repeats.lock();
        repeats.push_back((text, 0));
        if repeats.len() > REPEATS_MAX {
            repeats.pop_front();
        }
    }

    /// The messages to be published again now; to be called in each pass.
    pub(super) fn repeats(&self) -> Vec<String> {
        let (mut repeats, mut due) = (self.repeats.lock(), Vec::new());
        repeats.retain_mut(|(text, passes)| {
            *passes += 1;
            due.extend(REPEATED_AFTER.contains(passes).then(|| text.clone()));
            *passes < REPEATED_AFTER[2]
        });
        due
    }

    fn take(&self) -> Vec<(ResourceName, TokenHash)> {
        let mut pending = self.pending.lock();
        (0..PER_PASS).map_while(|_| pending.pop_first()).collect()
    }
}

impl<N: Node, C: Clock, E: Entropy> LockManager<N, C, E> {
    /// Checks leases of this instance of which another one says that it has ended them. Dropped, it leaves nothing on the nodes; what it
    /// had not checked is found when the lease is looked at next.
    pub(super) async fn check_distant_ends(&self) {
        let reported = self.shared.events.distant_ends.take().into_iter();
        let own = reported.filter(|(resource, token)| self.shared.own_leases.has(resource, token));
        join_all(own.map(|(resource, token)| Box::pin(self.check_distant_end(resource, token)))).await;
    }

    /// An extend never revives a lease, so its refusal says how it ended.
    async fn check_distant_end(&self, resource: ResourceName, token: TokenHash) {
        let found = self.engine().inspect(&resource).await;
        if found.map_or(true, |found| found.state.lease_of(&token).is_some()) {
            return;
        }
        let (name, lease) = (resource.clone(), token.clone());
        let params = ExtendParams { resource: name, token: lease, ttl: None, until_ms: 0, fence: None, labels: None };
        if let Err(ExtendRefusal::Gone(Some(reason))) = self.engine().extend(&params).await {
            // Whoever ended it has reported that.
            self.stop_keeping(&resource, &token, reason);
            self.ticket_lease_ended(&resource, &token, ticket_end(KeptEnd::Ended(reason)));
            self.record_change(&resource, |_| LeaseChange::Ended(token.clone()));
            self.shared.own_leases.remove(&resource, &token);
        }
    }
}
