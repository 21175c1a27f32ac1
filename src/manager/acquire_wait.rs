//! The queue at work: who may ask the nodes, when the head asks again, and how a release hands over.
//! Apart from the manager's verbs, which know nothing of queues' timing. Knows no HTTP.

use std::time::Duration;

use tokio::sync::{Notify, SemaphorePermit};

use super::deadlock::Edge;
use super::events::{EventKind, set_lease};
use super::queue::{Call, HandOver, Ring, Ticket, Turn};
use super::service::LockManager;
use super::subscriptions::SubscriptionHealth;
use super::types::{AcquireError, CycleEdge, LeaseOutcome};
use crate::mutant::{self, Mutant};
use crate::protocol::EndReason;
use crate::redlock::acquire::{AcquireParams, Grant, Refusal, RefusalKind, RetryUntil};
use crate::redlock::backoff::{Backoff, uniform};
use crate::redlock::clock::{BootTime, Clock};
use crate::redlock::entropy::Entropy;
use crate::redlock::inspect::ResourceState;
use crate::redlock::node::Node;
use crate::redlock::notifications::LeaseTag;
use crate::redlock::release::ReleaseOutcome;
use crate::types::{ResourceName, TokenHash};

/// Spread of the tries at the instant at which a lease ends: instances are not to meet in step, and
/// a node's clock may be a millisecond behind.
const END_JITTER: Duration = Duration::from_millis(3);

/// Tries in a row, with growing pauses, against a lease that fewer than a quorum of nodes confirm; then
/// the bounded poll.
const UNSURE_TRIES: u32 = 10;

impl<N: Node, C: Clock, E: Entropy> LockManager<N, C, E> {
    /// Whoever finds a queue stands in it: none of this instance's callers overtakes another. Only
    /// a client that brings the token of the present lease passes, since it does not want more than
    /// it has; and one that waits while another request with its token is granted joins that one.
    pub(super) async fn acquire_in_turn(
        &self,
        want: &AcquireParams,
        owner: &str,
        brings_token: bool,
        started: BootTime,
        until: BootTime,
    ) -> Result<Grant<N, C, E>, AcquireError> {
        let room = &self.shared.room;
        let queued = room.waiting(&want.resource) > 0;
        let passes = queued && brings_token && self.holds(&want.resource, &want.token).await;
        if until <= started || passes {
            if queued && !passes {
                return Err(AcquireError::Held(self.locked_by_queue(&want.resource).await?));
            }
            let grant = self.ask_once(want, started).await?;
            room.taken(&want.resource, self.keys_gone(grant.deadline));
            room.held_by(&want.resource, owner, &want.token, true);
            return Ok(grant);
        }
        let own = brings_token.then(|| want.token.clone());
        let ticket = room.enter(&want.resource, owner, own, started);
        let mut ticket = ticket
            .map_err(|full| AcquireError::TooManyWaiters { limit: full.limit, per_resource: full.per_resource })?;
        loop {
            let clock = self.clock().clone();
            let doubt = ticket.doubted_at().filter(|at| *at < until);
            let turn = tokio::select! {
                biased;
                turn = ticket.turn() => Some(turn),
                () = clock.sleep_until(doubt.unwrap_or(until)) => doubt.map(|_| Turn::Suspect),
            };
            let grant = match turn {
                None => {
                    let position = ticket.position();
                    drop(ticket);
                    let Some(asking) = self.may_ask(until).await else { return Err(self.nobody_asked()) };
                    let locked = Box::pin(self.locked_by_queue(&want.resource)).await?;
                    drop(asking);
                    return Err(AcquireError::WaitTimeout {
                        held: locked,
                        waited: self.now().since(started),
                        position,
                    });
                }
                Some(Turn::Head) => Box::pin(self.contend(want, &mut ticket, started, until)).await?,
                Some(Turn::SameToken) => match Box::pin(self.join(want, started)).await? {
                    Some(grant) => grant,
                    None => continue,
                },
                Some(Turn::Suspect) => {
                    Box::pin(self.refuse_deadlock(&mut ticket, started)).await?;
                    continue;
                }
            };
            ticket.granted(self.keys_gone(grant.deadline));
            room.held_by(&want.resource, owner, &want.token, true);
            return Ok(grant);
        }
    }

    fn keys_gone(&self, deadline: BootTime) -> BootTime {
        deadline.plus(self.engine().settings.params.lock_delay)
    }

    /// For a caller that does not wait.
    async fn ask_once(&self, want: &AcquireParams, started: BootTime) -> Result<Grant<N, C, E>, AcquireError> {
        let nobody = Notify::new();
        let retry = RetryUntil { deadline: started, wake: &nobody };
        let begun = self.now();
        let outcome = self.engine().acquire(want, retry).await;
        self.note_round(begun, &outcome);
        outcome.map_err(|refusal| self.acquire_error(want, refusal, false, started))
    }

    /// Rounds without a decision are not noted: they took as long as the timeouts are.
    fn note_round(&self, begun: BootTime, outcome: &Result<Grant<N, C, E>, Refusal>) {
        if matches!(outcome, Ok(_) | Err(Refusal { kind: RefusalKind::Held, .. })) {
            self.round_took(begun);
        }
    }

    /// Joins the lease of its own token; `None` where that was not to be had.
    async fn join(&self, want: &AcquireParams, started: BootTime) -> Result<Option<Grant<N, C, E>>, AcquireError> {
        if !self.holds(&want.resource, &want.token).await {
            return Ok(None);
        }
        match self.engine().attempt(want).await {
            Ok(grant) => Ok(Some(grant)),
            Err(refusal) if refusal.kind.is_final() => Err(self.acquire_error(want, refusal, true, started)),
            Err(_) => Ok(None),
        }
    }

    /// The head asks the nodes: at once, unless a lease that was granted here is still running; then
    /// whenever the resource may have become free. Between two tries it sleeps until it is rung or
    /// until the earliest instant at which a quorum can be free; where that is not known, or ends
    /// would not be heard of, for at most the bounded poll.
    async fn contend(
        &self,
        want: &AcquireParams,
        ticket: &mut Ticket,
        started: BootTime,
        until: BootTime,
    ) -> Result<Grant<N, C, E>, AcquireError> {
        let settings = &self.engine().settings;
        let mut backoff = Backoff::new(settings.retry, self.entropy().clone());
        let mut subscription_health = self.shared.wakeups.subscription_health();
        let (mut tries, mut unsure, mut last) = (0_u32, 0_u32, None);
        let is_below_quorum = subscription_health.is_below_quorum();
        let mut sleep_until = ticket.taken_until().filter(|_| !is_below_quorum).map(|at| self.soon_after(at));
        loop {
            if let Some(at) = sleep_until.take() {
                let is_rung = self.rest(ticket, &mut subscription_health, at.min(until), started).await?;
                let extended = ticket.taken_until().filter(|at| !is_rung && *at > self.now());
                if let Some(at) = extended.filter(|_| self.now() < until) {
                    // Its holder renewed it here meanwhile: the nodes need not be asked for that.
                    sleep_until = Some(self.soon_after(at));
                    continue;
                }
            }
            let Some(asking) = self.may_ask(until).await else {
                let known = last.map(|refusal| self.acquire_error(want, refusal, true, started));
                return Err(known.unwrap_or_else(|| self.nobody_asked()));
            };
            let is_heard = self.shared.wakeups.is_heard(&want.resource);
            ticket.trying(true);
            let begun = self.now();
            let outcome = self.engine().attempt(want).await;
            ticket.trying(false);
            self.note_round(begun, &outcome);
            let mut refusal = match outcome {
                Ok(mut grant) => {
                    grant.joined &= tries == 0;
                    return Ok(grant);
                }
                Err(refusal) => refusal,
            };
            tries = tries.saturating_add(1);
            let now = self.now();
            if refusal.kind.is_final() || now >= until {
                return Err(self.acquire_error(want, refusal, true, started));
            }
            refusal.nodes.clear();
            sleep_until = match refusal.kind {
                RefusalKind::Held => {
                    let is_sure = refusal.holder_nodes >= self.engine().quorum();
                    if let Some(record) = &refusal.holder {
                        let owner = &record.labels().owner;
                        self.shared.room.held_by(&want.resource, owner, &record.token, is_sure);
                    }
                    let next = self.next_look(ticket, want, &refusal, is_heard).await;
                    if is_sure || mutant::is(Mutant::HolderUnconfirmed) {
                        backoff.reset();
                        unsure = 0;
                        next
                    } else {
                        // Others may have been met in the midst of a vote that nobody wins, of whose end
                        // the nodes that cannot be asked will not tell.
                        unsure += 1;
                        let poll = uniform(self.entropy(), settings.poll);
                        let pause = if unsure > UNSURE_TRIES { poll } else { backoff.next_delay() };
                        next.map(|at| at.min(self.now().plus(pause)))
                    }
                }
                _ => Some(now.plus(backoff.next_delay())),
            };
            drop(asking);
            last = Some(Refusal { free_in: None, ..refusal });
        }
    }

    /// Waits for the turn to ask the nodes; `None` where it has not come a poll after `until`: so many others
    /// are asking, and the nodes do not answer them.
    async fn may_ask(&self, until: BootTime) -> Option<SemaphorePermit<'_>> {
        let late = until.plus(self.engine().settings.poll);
        tokio::select! {
            biased;
            permit = self.shared.asking.acquire() => permit.ok(),
            () = self.clock().sleep_until(late) => None,
        }
    }

    fn nobody_asked(&self) -> AcquireError {
        AcquireError::NoQuorum(self.no_quorum(0, Vec::new()))
    }

    fn soon_after(&self, at: BootTime) -> BootTime {
        at.plus(uniform(self.entropy(), END_JITTER))
    }

    /// When to ask again for a resource that was found taken; `None`: at once. `is_heard`: its end
    /// would have been heard of since before it was asked for.
    async fn next_look(
        &self,
        ticket: &Ticket,
        want: &AcquireParams,
        refusal: &Refusal,
        is_heard: bool,
    ) -> Option<BootTime> {
        let (wakeups, settings) = (&self.shared.wakeups, &self.engine().settings);
        if !ticket.has_keepsake() {
            ticket.keep(wakeups.watch(&want.resource));
        }
        if !is_heard
            && wakeups.listen(&want.resource, settings.node_timeout, self.clock()).await
            && !mutant::is(Mutant::ListensTooLate)
        {
            // From now on. What ended since the try was not heard of.
            return None;
        }
        // Leases of ours end with a notice or at their time; foreigners' locks may end unheard.
        let free_in = match (refusal.free_in, &refusal.holder) {
            (Some(free_in), Some(_)) if is_heard || mutant::is(Mutant::ListensTooLate) => free_in,
            (free_in, _) => free_in.unwrap_or(settings.poll).min(settings.poll),
        };
        Some(self.soon_after(self.now().plus(free_in)))
    }

    /// Sleeps until rung, until `at`, or, where notices stopped being heard meanwhile, for a poll at most; looks
    /// into a deadlock meanwhile where there may be one. True: there were news of an end.
    ///
    /// Errors: [`AcquireError::Deadlock`]. Cancel: no call is lost.
    async fn rest(
        &self,
        ticket: &mut Ticket,
        subscription_health: &mut SubscriptionHealth,
        mut at: BootTime,
        started: BootTime,
    ) -> Result<bool, AcquireError> {
        let mut is_rung = false;
        loop {
            let doubt = ticket.doubted_at().filter(|doubt| *doubt < at);
            let is_suspect = tokio::select! {
                biased;
                call = ticket.called() => match call {
                    Call::Suspect => true,
                    Call::Ring(Ring(after)) if after.is_zero() => return Ok(true),
                    Call::Ring(Ring(after)) => {
                        is_rung = true;
                        at = at.min(self.now().plus(after));
                        false
                    }
                },
                () = subscription_health.changed(), if !mutant::is(Mutant::SubscriptionLossUnnoticed) => {
                    // Spread, since this happens to every waiter of the instance at once. It may be
                    // over already, and something missed all the same.
                    is_rung = true;
                    let poll = uniform(self.entropy(), self.engine().settings.poll);
                    at = at.min(self.now().plus(poll));
                    false
                }
                () = self.clock().sleep_until(doubt.unwrap_or(at)) => match doubt {
                    Some(_) => true,
                    None => return Ok(is_rung),
                },
            };
            if is_suspect {
                Box::pin(self.refuse_deadlock(ticket, started)).await?;
            }
        }
    }

    /// Refuses the waiter if it is the newest in a circle of owners who wait for each other, and the
    /// nodes say so now.
    ///
    /// Why nobody is refused by mistake: each lease in the circle was known before the first look and
    /// is still there after the last one, and each seat was taken before the first look and is still
    /// taken after the last one. So there was an instant at which all of them stood: that of the first
    /// look. What is not known (waiters of other instances, too few nodes) is no reason to refuse; it is looked
    /// into again within a poll, for as long as the circle is suspected: nothing else would call anybody in it.
    ///
    /// Errors: [`AcquireError::Deadlock`]. Cancel: nothing is left behind.
    async fn refuse_deadlock(&self, ticket: &mut Ticket, started: BootTime) -> Result<(), AcquireError> {
        ticket.doubt(None);
        let Some(circle) = ticket.circle() else { return Ok(()) };
        if !mutant::is(Mutant::DeadlockUnverified) && !self.is_standing(ticket, &circle).await {
            if !mutant::is(Mutant::DeadlockForgotten) {
                let poll = uniform(self.entropy(), self.engine().settings.poll);
                ticket.doubt(Some(self.now().plus(poll)));
            }
            return Ok(());
        }
        let told = |edge: Edge| CycleEdge {
            owner: edge.owner.to_string(),
            waits_for: edge.place.resource,
            held_by: edge.holder.owner.to_string(),
            token_id: edge.holder.token.id(),
        };
        let cycle = circle.into_iter().map(told).collect();
        Err(AcquireError::Deadlock { cycle, waited: self.now().since(started) })
    }

    /// Whether a quorum says so of each lease in the circle, while all its seats are taken. False also where the
    /// nodes do not say.
    async fn is_standing(&self, ticket: &Ticket, circle: &[Edge]) -> bool {
        let lock_delay = self.engine().settings.params.lock_delay;
        for edge in circle {
            let seen = self.engine().inspect(&edge.place.resource).await;
            let is_held = seen.is_ok_and(|view| match view.state {
                // A lease that has run out ends the circle by itself.
                ResourceState::Lease { record, left } => record.token == edge.holder.token && left > lock_delay,
                _ => false,
            });
            if !is_held {
                return false;
            }
        }
        ticket.all_seated(circle)
    }

    /// Ends a lease and hands over to the oldest waiter here: what that one sends follows the release
    /// on each node's connection, so that one round trip does both. Now and then waiters of other
    /// instances go first.
    pub(super) async fn release_in_turn(
        &self,
        resource: &ResourceName,
        hash: &TokenHash,
        how: LeaseOutcome,
    ) -> ReleaseOutcome {
        let (room, lease) = (&self.shared.room, LeaseTag::of(hash));
        // Only for a lease that this instance gave: a made-up token is not to wake anybody.
        let is_ours = self.shared.own.valid_for(hash, self.now()).is_some();
        let plan = if is_ours { room.hand_over(resource) } else { HandOver::Nobody };
        let others = match plan {
            HandOver::AskOthers => {
                let (limit, clock) = (self.engine().settings.node_timeout, self.clock());
                self.shared.wakeups.is_wanted_elsewhere(resource, limit, clock).await
            }
            _ => false,
        };
        let sent = {
            let (room, resource) = (room.clone(), resource.clone());
            move || match plan {
                HandOver::Nobody => {}
                _ if others => room.stand_back(&resource, lease),
                plan => room.handing_over(&resource, lease, plan == HandOver::AskOthers),
            }
        };
        let begun = self.now();
        let outcome = self.engine().release_then(resource, hash, EndReason::Released, sent).await;
        let since = self.shared.own.forget(hash);
        match outcome {
            ReleaseOutcome::Released => {
                self.round_took(begun);
                self.tell_end_of(since, how);
                room.freed(resource, Some(lease));
                self.shared.holds.stir(lease);
                let events = &self.shared.events;
                events.publish(EventKind::Released, self.wall_ms(), |event| set_lease(event, resource, hash));
            }
            ReleaseOutcome::Unknown { .. } => room.maybe_freed(resource),
            _ => {}
        }
        outcome
    }
}
