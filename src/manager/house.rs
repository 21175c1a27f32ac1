//! House-keeping, once a second: what has run out is forgotten, and what nobody asked for but some
//! want to hear of is told: leases that ran out, nodes that come and go. Never on the path of a request.

use std::collections::VecDeque;
use std::time::Duration;

use super::events::{EventKind, of_lease};
use super::service::LockManager;
use crate::redlock::clock::{BootTime, Clock};
use crate::redlock::entropy::Entropy;
use crate::redlock::extend::{ExtendRefusal, Extension};
use crate::redlock::inspect::ViewedLock;
use crate::redlock::node::Node;
use crate::redlock::types::{ResourceName, TokenHash};

/// Time between two rounds.
const HOUSEKEEPING: Duration = Duration::from_secs(1);
/// Ends that are looked into, at most: beyond it they go untold.
const ENDS_MAX: usize = 1_024;
/// Of these in one round: each costs two round trips.
const ENDS_PER_ROUND: usize = 64;

/// A lease that should have ended by now.
struct End {
    at: BootTime,
    resource: ResourceName,
    token: TokenHash,
}

impl<N: Node, C: Clock, E: Entropy> LockManager<N, C, E> {
    /// Drops what has run out, again and again. Never returns; dropping it stops it.
    pub async fn keep_house(self) {
        let (mut ends, mut states) = (VecDeque::new(), Vec::new());
        loop {
            self.clock().sleep(HOUSEKEEPING).await;
            let now = self.now();
            let lock_delay = self.engine().settings.terms.lock_delay;
            for (resource, token) in self.shared.own.sweep(now) {
                if ends.len() < ENDS_MAX {
                    ends.push_back(End { at: now.plus(lock_delay), resource, token });
                }
            }
            self.shared.snapshots.sweep(now);
            self.shared.events.sweep(now);
            self.tell_nodes(&mut states);
            self.tell_ends(&mut ends, now).await;
        }
    }

    /// Tells which nodes came or went since the last look.
    fn tell_nodes(&self, states: &mut Vec<String>) {
        let reports = self.nodes();
        for (report, before) in reports.iter().zip(states.iter()) {
            if report.state == *before {
                continue;
            }
            let kind = match report.state.as_str() {
                "up" => EventKind::NodeUp,
                "down" => EventKind::NodeDown,
                "unknown" => continue,
                _ => EventKind::Quarantined,
            };
            self.shared.events.tell_here(kind, self.wall_ms(), |event| {
                event.node = Some(report.node.to_string());
                event.reason = Some(report.state.clone());
            });
        }
        *states = reports.into_iter().map(|r| r.state).collect();
    }

    /// Looks into leases whose time has passed: extended elsewhere, released elsewhere, or run out.
    async fn tell_ends(&self, ends: &mut VecDeque<End>, now: BootTime) {
        if !self.shared.events.is_heard() {
            ends.clear();
            return;
        }
        for _ in 0..ends.len().min(ENDS_PER_ROUND) {
            let Some(end) = ends.pop_front() else { return };
            if end.at > now {
                ends.push_back(end);
                continue;
            }
            match self.engine().inspect(&end.resource).await.map(|view| view.lock) {
                Ok(ViewedLock::Lease { record, left }) if record.token == end.token => {
                    ends.push_back(End { at: now.plus(left), ..end });
                }
                Ok(_) => self.tell_end(&end).await,
                // Nobody can say: it goes untold.
                Err(_) => {}
            }
        }
    }

    /// It is gone. An extend never revives, so asking for one only says why.
    async fn tell_end(&self, end: &End) {
        let ask = Extension {
            resource: end.resource.clone(),
            token: end.token.clone(),
            ttl: None,
            fence: None,
            labels: None,
        };
        let why = self.engine().extend(&ask).await;
        if matches!(why, Err(ExtendRefusal::Gone(None) | ExtendRefusal::NotHolder)) {
            let events = &self.shared.events;
            events.tell(EventKind::Expired, self.wall_ms(), |event| of_lease(event, &end.resource, &end.token));
        }
    }
}
