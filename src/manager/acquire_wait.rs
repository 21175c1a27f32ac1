//! An acquire that may wait: it enters the queue, and as its head asks the nodes whenever the resource may
//! have become free.

use tokio::sync::{Notify, SemaphorePermit};

use super::queue::WakeAfter;
use super::service::LockManager;
use super::subscriptions::SubscriptionHealth;
use super::types::AcquireError;
use super::waiter::{HeadWake, NextStep, WaiterHandle};
use super::wake_timing::{UNCONFIRMED_TRIES, WAKE_JITTER};
use crate::mutant::{self, Mutant};
use crate::redlock::acquire::{AcquireParams, Grant, Refusal, RefusalKind, RetryUntil};
use crate::redlock::backoff::{Backoff, uniform};
use crate::redlock::clock::{BootTime, Clock};
use crate::redlock::entropy::Entropy;
use crate::redlock::node::Node;

/// What a head remembers from one attempt to the next.
struct HeadState<E> {
    backoff: Backoff<E>,
    health: SubscriptionHealth,
    tries: u32,
    /// Attempts in a row that met a lease which a quorum did not confirm.
    unconfirmed: u32,
    last: Option<Refusal>,
}

impl<N: Node, C: Clock, E: Entropy> LockManager<N, C, E> {
    /// Acquires, and waits until `until`. Where a queue exists the request enters it: no caller of this
    /// instance overtakes another. Only a client with the token of the present lease passes, since it wants
    /// no more than it has; and a waiter joins the lease that another request with its token was granted.
    pub(super) async fn acquire_or_wait(
        &self,
        params: &AcquireParams,
        owner: &str,
        has_own_token: bool,
        started: BootTime,
        until: BootTime,
    ) -> Result<Grant<N, C, E>, AcquireError> {
        let queues = &self.shared.queues;
        let is_queued = queues.waiter_count(&params.resource) > 0;
        let passes = is_queued && has_own_token && self.holds(&params.resource, &params.token).await;
        if until <= started || passes {
            if is_queued && !passes {
                return Err(AcquireError::Held(self.held_by_queue(&params.resource).await?));
            }
            let grant = self.acquire_without_waiting(params, started).await?;
            queues.set_held_until(&params.resource, self.keys_expire_at(grant.deadline));
            queues.set_holder(&params.resource, owner, &params.token, true);
            return Ok(grant);
        }
        let own = has_own_token.then(|| params.token.clone());
        let waiter = queues.enqueue(&params.resource, owner, own, started);
        let mut waiter = waiter
            .map_err(|full| AcquireError::TooManyWaiters { limit: full.limit, per_resource: full.per_resource })?;
        loop {
            let clock = self.clock().clone();
            let recheck = waiter.recheck_deadlock_at().filter(|at| *at < until);
            let step = tokio::select! {
                biased;
                step = waiter.next_step() => Some(step),
                () = clock.sleep_until(recheck.unwrap_or(until)) => recheck.map(|_| NextStep::CheckDeadlock),
            };
            let grant = match step {
                None => return Err(Box::pin(self.wait_timeout(params, waiter, started, until)).await),
                Some(NextStep::AttemptAsHead) => {
                    Box::pin(self.acquire_as_head(params, &mut waiter, started, until)).await?
                }
                Some(NextStep::JoinSameToken) => match Box::pin(self.join(params, started)).await? {
                    Some(grant) => grant,
                    None => continue,
                },
                Some(NextStep::CheckDeadlock) => {
                    Box::pin(self.refuse_if_deadlocked(&mut waiter, started)).await?;
                    continue;
                }
            };
            waiter.granted(self.keys_expire_at(grant.deadline));
            queues.set_holder(&params.resource, owner, &params.token, true);
            return Ok(grant);
        }
    }

    /// The error of a waiter whose time is over before it was the head.
    async fn wait_timeout(
        &self,
        params: &AcquireParams,
        waiter: WaiterHandle,
        started: BootTime,
        until: BootTime,
    ) -> AcquireError {
        let position = waiter.position();
        drop(waiter);
        let Some(permit) = self.attempt_permit(until).await else { return self.not_asked() };
        let held = self.held_by_queue(&params.resource).await;
        drop(permit);
        match held {
            Ok(held) => AcquireError::WaitTimeout { held, waited: self.now().since(started), position },
            Err(error) => error,
        }
    }

    /// When the keys of a lease with this deadline are gone from the nodes.
    fn keys_expire_at(&self, deadline: BootTime) -> BootTime {
        deadline.plus(self.engine().settings.params.lock_delay)
    }

    async fn acquire_without_waiting(
        &self,
        params: &AcquireParams,
        started: BootTime,
    ) -> Result<Grant<N, C, E>, AcquireError> {
        let never = Notify::new();
        let retry = RetryUntil { deadline: started, wake: &never };
        let begun = self.now();
        let outcome = self.engine().acquire(params, retry).await;
        self.record_round(begun, &outcome);
        outcome.map_err(|refusal| self.acquire_error(params, refusal, false, started))
    }

    /// Rounds without a decision are not recorded: they took as long as the timeouts are.
    fn record_round(&self, begun: BootTime, outcome: &Result<Grant<N, C, E>, Refusal>) {
        if matches!(outcome, Ok(_) | Err(Refusal { kind: RefusalKind::Held, .. })) {
            self.record_decided_round(begun);
        }
    }

    /// Joins the lease of its own token; `None` where it is not there any more.
    async fn join(&self, params: &AcquireParams, started: BootTime) -> Result<Option<Grant<N, C, E>>, AcquireError> {
        if !self.holds(&params.resource, &params.token).await {
            return Ok(None);
        }
        match self.engine().attempt(params).await {
            Ok(grant) => Ok(Some(grant)),
            Err(refusal) if refusal.kind.is_final() => Err(self.acquire_error(params, refusal, true, started)),
            Err(_) => Ok(None),
        }
    }

    /// The head asks the nodes: at once, unless a lease that was granted here is still running; then whenever
    /// the resource may have become free.
    async fn acquire_as_head(
        &self,
        params: &AcquireParams,
        waiter: &mut WaiterHandle,
        started: BootTime,
        until: BootTime,
    ) -> Result<Grant<N, C, E>, AcquireError> {
        let mut head = HeadState {
            backoff: Backoff::new(self.engine().settings.retry, self.entropy().clone()),
            health: self.shared.subscriptions.health(),
            tries: 0,
            unconfirmed: 0,
            last: None,
        };
        let is_below_quorum = head.health.is_below_quorum();
        let mut attempt_at = waiter.held_until().filter(|_| !is_below_quorum).map(|at| self.soon_after(at));
        loop {
            if let Some(at) = attempt_at.take() {
                let is_woken = self.sleep_until_woken(waiter, &mut head.health, at.min(until), started).await?;
                let extended = waiter.held_until().filter(|at| !is_woken && *at > self.now());
                if let Some(at) = extended.filter(|_| self.now() < until) {
                    // Its holder renewed it through this instance meanwhile: the nodes need not be asked.
                    attempt_at = Some(self.soon_after(at));
                    continue;
                }
            }
            let Some(permit) = self.attempt_permit(until).await else {
                let known = head.last.map(|refusal| self.acquire_error(params, refusal, true, started));
                return Err(known.unwrap_or_else(|| self.not_asked()));
            };
            let was_subscribed = self.shared.subscriptions.is_subscribed(&params.resource);
            waiter.set_attempting(true);
            let begun = self.now();
            let outcome = self.engine().attempt(params).await;
            waiter.set_attempting(false);
            self.record_round(begun, &outcome);
            let mut refusal = match outcome {
                Ok(mut grant) => {
                    grant.joined &= head.tries == 0;
                    return Ok(grant);
                }
                Err(refusal) => refusal,
            };
            head.tries = head.tries.saturating_add(1);
            if refusal.kind.is_final() || self.now() >= until {
                return Err(self.acquire_error(params, refusal, true, started));
            }
            refusal.nodes.clear();
            attempt_at = self.next_attempt_at(waiter, params, &refusal, &mut head, was_subscribed).await;
            drop(permit);
            head.last = Some(Refusal { free_in: None, ..refusal });
        }
    }

    /// Waits for a permit to ask the nodes. `None` where there is none for a poll after `until`: so many others
    /// are asking, and the nodes do not answer them.
    async fn attempt_permit(&self, until: BootTime) -> Option<SemaphorePermit<'_>> {
        let late = until.plus(self.engine().settings.poll);
        tokio::select! {
            biased;
            permit = self.shared.attempts.acquire() => permit.ok(),
            () = self.clock().sleep_until(late) => None,
        }
    }

    fn not_asked(&self) -> AcquireError {
        AcquireError::NoQuorum(self.no_quorum(0, Vec::new()))
    }

    fn soon_after(&self, at: BootTime) -> BootTime {
        at.plus(uniform(self.entropy(), WAKE_JITTER))
    }

    /// When the head asks again after a refusal; `None`: at once. `was_subscribed`: the end of the lease that
    /// it met would have been reported since before the attempt.
    async fn next_attempt_at(
        &self,
        waiter: &WaiterHandle,
        params: &AcquireParams,
        refusal: &Refusal,
        head: &mut HeadState<E>,
        was_subscribed: bool,
    ) -> Option<BootTime> {
        if refusal.kind != RefusalKind::Held {
            return Some(self.now().plus(head.backoff.next_delay()));
        }
        let is_confirmed = refusal.holder_nodes >= self.engine().quorum();
        if let Some(record) = &refusal.holder {
            let owner = &record.labels().owner;
            self.shared.queues.set_holder(&params.resource, owner, &record.token, is_confirmed);
        }
        let next = self.expected_end(waiter, params, refusal, was_subscribed).await;
        if is_confirmed || mutant::is(Mutant::HolderUnconfirmed) {
            head.backoff.reset();
            head.unconfirmed = 0;
            return next;
        }
        // It may have met others in a vote that nobody wins, the end of which the nodes that do not answer
        // will not report.
        head.unconfirmed += 1;
        let poll = uniform(self.entropy(), self.engine().settings.poll);
        let pause = if head.unconfirmed > UNCONFIRMED_TRIES { poll } else { head.backoff.next_delay() };
        next.map(|at| at.min(self.now().plus(pause)))
    }

    /// When the resource can be free at the earliest if nothing is reported before; `None`: now.
    async fn expected_end(
        &self,
        waiter: &WaiterHandle,
        params: &AcquireParams,
        refusal: &Refusal,
        was_subscribed: bool,
    ) -> Option<BootTime> {
        let (subscriptions, settings) = (&self.shared.subscriptions, &self.engine().settings);
        if !waiter.has_subscription() {
            waiter.set_subscription(subscriptions.subscribe(&params.resource));
        }
        if !was_subscribed
            && subscriptions.until_subscribed(&params.resource, settings.node_timeout, self.clock()).await
            && !mutant::is(Mutant::ListensTooLate)
        {
            // What ended between the attempt and the subscription was not reported.
            return None;
        }
        // A lease of this service ends with a notice or at its time; a lock of another client may end without.
        let free_in = match (refusal.free_in, &refusal.holder) {
            (Some(free_in), Some(_)) if was_subscribed || mutant::is(Mutant::ListensTooLate) => free_in,
            (free_in, _) => free_in.unwrap_or(settings.poll).min(settings.poll),
        };
        Some(self.soon_after(self.now().plus(free_in)))
    }

    /// Sleeps until woken, until `at`, or, where the subscriptions changed meanwhile, for a poll at most; checks
    /// for a deadlock meanwhile where one is suspected. True: the end of a lease may have been reported.
    ///
    /// Errors: [`AcquireError::Deadlock`]. Cancel: no wake-up is lost.
    async fn sleep_until_woken(
        &self,
        waiter: &mut WaiterHandle,
        health: &mut SubscriptionHealth,
        mut at: BootTime,
        started: BootTime,
    ) -> Result<bool, AcquireError> {
        let mut is_woken = false;
        loop {
            let recheck = waiter.recheck_deadlock_at().filter(|recheck| *recheck < at);
            let is_suspect = tokio::select! {
                biased;
                wake = waiter.woken() => match wake {
                    HeadWake::CheckDeadlock => true,
                    HeadWake::Attempt(WakeAfter::NOW) => return Ok(true),
                    HeadWake::Attempt(WakeAfter(after)) => {
                        is_woken = true;
                        at = at.min(self.now().plus(after));
                        false
                    }
                },
                () = health.changed(), if !mutant::is(Mutant::SubscriptionLossUnnoticed) => {
                    // Spread, since this happens to every waiter of the instance at once. The subscriptions may
                    // be complete again, and a notice missed all the same.
                    is_woken = true;
                    let poll = uniform(self.entropy(), self.engine().settings.poll);
                    at = at.min(self.now().plus(poll));
                    false
                }
                () = self.clock().sleep_until(recheck.unwrap_or(at)) => match recheck {
                    Some(_) => true,
                    None => return Ok(is_woken),
                },
            };
            if is_suspect {
                Box::pin(self.refuse_if_deadlocked(waiter, started)).await?;
            }
        }
    }
}
