//! Sends the intents of waiters to the nodes, and withdraws them, in the background. An intent that is lost or late
//! affects only the order of waiters.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use super::driver::Shared;
use super::event::{Intent, WaiterId};
use crate::redlock::clock::Clock;
use crate::redlock::node::Node;
use crate::redlock::random::Entropy;
use crate::types::TokenHash;

/// Of the waiters whose intents may stand: the token, and whether the intent was withdrawn since.
pub(super) type Standing = BTreeMap<WaiterId, (TokenHash, Arc<AtomicBool>)>;

impl<N: Node, C: Clock, E: Entropy> Shared<N, C, E> {
    /// Leaves the intent of a waiter with this token.
    pub(super) fn leave_intent(&self, standing: &mut Standing, waiter: WaiterId, token: TokenHash, intent: &Intent) {
        let (_, is_withdrawn) = standing.entry(waiter).or_insert_with(|| (token.clone(), Arc::default()));
        self.send_intent(&token, intent, Some(is_withdrawn));
    }

    /// Withdraws the intent of a waiter, if it has one.
    pub(super) fn withdraw_intent(&self, standing: &mut Standing, waiter: WaiterId, intent: &Intent) {
        let Some((token, is_withdrawn)) = standing.remove(&waiter) else { return };
        is_withdrawn.store(true, Ordering::Release);
        self.send_intent(&token, intent, None);
    }

    /// `left`: leaves it, unless it was withdrawn meanwhile. An intent that arrived after its withdrawal would have no waiter.
    fn send_intent(&self, token: &TokenHash, intent: &Intent, left: Option<&Arc<AtomicBool>>) {
        let Ok(runtime) = tokio::runtime::Handle::try_current() else { return };
        for resource in intent.resources.iter() {
            let (engine, token, since, left) = (self.engine.clone(), token.clone(), intent.since, left.cloned());
            let about = (resource.clone(), intent.mode);
            let sent = async move {
                if let Some(is_withdrawn) = left {
                    if is_withdrawn.load(Ordering::Acquire) {
                        return;
                    }
                    engine.intend(about.clone(), token.clone(), since, false).await;
                    if !is_withdrawn.load(Ordering::Acquire) {
                        return;
                    }
                }
                engine.intend(about, token, since, true).await;
            };
            self.engine.tasks.spawn_on(sent, &runtime);
        }
    }
}
