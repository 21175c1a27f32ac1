//! Ends of leases by another instance: the granter of a lease checks its end before the nodes forget it, and reports no
//! second end. Otherwise its next check of a lease of some minutes would find nothing, and report it as expired, or lost.

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

/// The name of the messages.
pub(super) const MESSAGE: &str = "lease_ended";
/// Maximum number of ends to be checked; further ends are found when their leases are next checked.
const PENDING_MAX: usize = 1_024;
/// Maximum number of these in one pass of [`super::maintenance`]: each costs two round trips.
const PER_PASS: usize = 64;
/// An instance that granted a lease with at most this time left finds the lease's end while the nodes remember it.
pub(super) const SHORT: Duration = Duration::from_secs(30);
const _: () = assert!(SHORT.as_secs() * 2 <= TOKEN_TOMBSTONE.as_secs(), "and there is time to look");

/// An end is published again after this many passes: a granter that no node can reach now may be reachable later.
const REPEATED_AFTER: [u64; 3] = [3, 10, 30];
const _: () = assert!(REPEATED_AFTER[2] * 2 <= TOKEN_TOMBSTONE.as_secs(), "and there is time to look");
/// Maximum number of ends that are to be published again; beyond it the oldest are not.
const REPEATS_MAX: usize = 1_024;

/// The message that one instance publishes to the others. It is not believed: only what the nodes show counts.
#[derive(Debug, Serialize, Deserialize)]
struct Message {
    event: String,
    instance: String,
    resource: String,
    /// Hash of the lease's token.
    lease: String,
}

/// The message about this end.
pub(super) fn message(instance: &str, resource: &ResourceName, token: &TokenHash) -> Option<String> {
    let (event, instance) = (MESSAGE.to_owned(), instance.to_owned());
    let (resource, lease) = (resource.to_string(), token.as_str().to_owned());
    serde_json::to_string(&Message { event, instance, resource, lease }).ok()
}

/// The ends to be checked, and those to be published again, each with the passes since it was published.
#[derive(Default)]
pub(super) struct DistantEnds {
    pending: Mutex<BTreeSet<(ResourceName, TokenHash)>>,
    repeats: Mutex<VecDeque<(String, u64)>>,
}

impl DistantEnds {
    /// Receives a message; malformed messages are dropped. Each node passes it on.
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

    /// Records that this message was published.
    pub(super) fn published(&self, text: String) {
        let mut repeats = self.repeats.lock();
        repeats.push_back((text, 0));
        if repeats.len() > REPEATS_MAX {
            repeats.pop_front();
        }
    }

    /// The messages to be published again now; must be called in each pass.
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
    /// Checks leases of this instance which another instance reports to have ended. Dropping it leaves nothing on the
    /// nodes; leases that were not checked are found when they are next checked.
    pub(super) async fn check_distant_ends(&self) {
        let reported = self.shared.events.distant_ends.take().into_iter();
        let own = reported.filter(|(resource, token)| self.shared.own_leases.has(resource, token));
        join_all(own.map(|(resource, token)| Box::pin(self.check_distant_end(resource, token)))).await;
    }

    /// An extend never revives a lease, so its refusal shows how the lease ended.
    async fn check_distant_end(&self, resource: ResourceName, token: TokenHash) {
        let found = self.engine().inspect(&resource).await;
        if found.map_or(true, |found| found.state.lease_of(&token).is_some()) {
            return;
        }
        let (name, lease) = (resource.clone(), token.clone());
        let params = ExtendParams { resource: name, token: lease, ttl: None, until_ms: 0, fence: None, labels: None };
        if let Err(ExtendRefusal::Gone(Some(reason))) = self.engine().extend(&params).await {
            // The instance that ended it has reported that.
            self.stop_keeping(&resource, &token, reason);
            self.ticket_lease_ended(&resource, &token, ticket_end(KeptEnd::Ended(reason)));
            self.record_change(self.now(), &resource, |_| LeaseChange::Ended(token.clone()));
            self.shared.own_leases.remove(&resource, &token);
        }
    }
}
