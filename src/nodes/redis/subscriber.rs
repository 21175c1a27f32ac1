//! The connection for a node's notices and events: one per node and instance, apart from those for commands, so that neither
//! delays the other. Executes the requests of [`Subscriptions`], and passes on the messages. Counts as connected only while this
//! instance may publish there too: releases publish with the same rights, and a waiter relies on them.

use std::sync::Arc;
use std::time::Duration;

use deadpool_redis::redis::aio::MultiplexedConnection;
use deadpool_redis::redis::{PushInfo, PushKind, RedisError, Value, cmd, pipe};
use tokio::sync::Notify;

use super::connect::{NodeConnector, OpenConnection, within};
use super::connections::NodeConnections;
use super::errors;
use super::retry::Retry;
use super::supervisor::CHECK_INTERVAL;
use crate::protocol::{Unreachable, UnreachableKind, keys};
use crate::redlock::clock::{Clock, SystemClock};
use crate::redlock::notifications::{Notice, Topic};
use crate::redlock::random::Entropy;
use crate::redlock::subscriptions::{PendingCommands, Subscriptions};
use crate::types::{NodeId, ResourceName};

/// Maximum number of channels in one command, which occupies the node for some 100 us.
const BATCH_MAX: usize = 256;
/// How long the node publishes the ends of leases after this instance's last report that it listens; each check makes such a
/// report. An instance that was paused for longer has missed some, and its subscriptions count as lost.
const LISTENING: Duration = Duration::from_secs(60);

/// Keeps the connection open until dropped. Cancel: it is closed, and all subscriptions with it.
pub(super) async fn run(
    id: NodeId,
    connector: NodeConnector,
    (subscriptions, connections): (Arc<Subscriptions>, Arc<NodeConnections>),
    limit: Duration,
    clock: SystemClock,
    entropy: impl Entropy,
) {
    let mut retry = Retry::new(entropy);
    loop {
        let mut on_connected = || {
            retry.succeeded();
            connections.record_notices_error(None);
        };
        let error = match session(&connector, &subscriptions, limit, clock, &mut on_connected).await {
            Ok(()) => Unreachable::new(UnreachableKind::Broken, "the connection was lost"),
            Err(error) => errors::of_call(&error),
        };
        if retry.is_to_be_reported(error.kind, clock.now()) && !connector.is_closed() {
            tracing::warn!(node = %id, %error, "no notices from the node: waiters poll it");
        }
        let delay = retry.next_delay(error.kind);
        // Other errors are those of the node, which its connections for commands report.
        let is_refused = matches!(error.kind, UnreachableKind::Auth | UnreachableKind::Protocol);
        connections.record_notices_error(is_refused.then_some(error));
        clock.sleep(delay).await;
    }
}

/// One connection, from hand-shake to its end.
async fn session(
    connector: &NodeConnector,
    subscriptions: &Arc<Subscriptions>,
    limit: Duration,
    clock: SystemClock,
    on_connected: &mut impl FnMut(),
) -> Result<(), RedisError> {
    let (lost, moves) = (Arc::new(Notify::new()), connector.moves());
    let (receiver, end) = (Arc::clone(subscriptions), Arc::clone(&lost));
    let on_push = move |push: PushInfo| -> Result<(), std::convert::Infallible> {
        match push.kind {
            PushKind::Message => on_message(&receiver, &push.data),
            PushKind::Disconnection => end.notify_one(),
            _ => {}
        }
        Ok(())
    };
    let OpenConnection { mut connection, driver: _driver } = within(limit, connector.subscriber(on_push)).await?;
    // Before any subscription is confirmed: from then on a waiter relies on it.
    let event_subscribers = within(limit, check(&mut connection)).await?;
    let topics = subscriptions.reconnect();
    subscribe(&mut connection, subscriptions, &topics, limit).await?;
    subscriptions.set_event_subscribers(event_subscribers);
    let _session = ConnectedGuard::new(subscriptions);
    on_connected();
    let mut check_at = clock.now().plus(CHECK_INTERVAL);
    loop {
        tokio::select! {
            biased;
            () = lost.notified() => return Ok(()),
            () = clock.sleep_until(check_at) => {
                if connector.moves() != moves {
                    return Ok(());
                }
                check_at = clock.now().plus(CHECK_INTERVAL);
                subscriptions.set_event_subscribers(within(limit, check(&mut connection)).await?);
                // Without the key nothing was published: the key expired, or the node lost its keys.
                if subscriptions.has_active_resource() && !within(limit, keep_listening(&mut connection)).await? {
                    return Ok(());
                }
                execute(&mut connection, subscriptions, subscriptions.sweep(), limit).await?;
            }
            () = subscriptions.changed() => {
                execute(&mut connection, subscriptions, subscriptions.take_commands(), limit).await?;
            }
        }
    }
}

/// While this lives, the subscriptions count as connected.
struct ConnectedGuard<'a>(&'a Subscriptions);

impl<'a> ConnectedGuard<'a> {
    fn new(subscriptions: &'a Subscriptions) -> Self {
        subscriptions.connected();
        Self(subscriptions)
    }
}

impl Drop for ConnectedGuard<'_> {
    fn drop(&mut self) {
        self.0.disconnected();
    }
}

async fn execute(
    connection: &mut MultiplexedConnection,
    subscriptions: &Subscriptions,
    commands: PendingCommands,
    limit: Duration,
) -> Result<(), RedisError> {
    if !commands.publish.is_empty() {
        let mut batch = pipe();
        for (topic, text) in &commands.publish {
            batch.cmd("PUBLISH").arg(channel(topic)).arg(&**text).ignore();
        }
        within(limit, batch.query_async::<()>(connection)).await?;
    }
    subscribe(connection, subscriptions, &commands.subscribe, limit).await?;
    for batch in commands.unsubscribe.chunks(BATCH_MAX) {
        let channels: Vec<String> = batch.iter().map(channel).collect();
        within(limit, connection.unsubscribe(channels)).await?;
    }
    for (topic, answer) in commands.count {
        let count = within(limit, subscriber_count(connection, &topic)).await?;
        let _ = answer.send(count);
    }
    Ok(())
}

async fn subscribe(
    connection: &mut MultiplexedConnection,
    subscriptions: &Subscriptions,
    topics: &[Topic],
    limit: Duration,
) -> Result<(), RedisError> {
    for batch in topics.chunks(BATCH_MAX) {
        let channels: Vec<String> = batch.iter().map(channel).collect();
        within(limit, connection.subscribe(channels)).await?;
        // Before the subscription is confirmed: a waiter then asks once more, and relies on notices afterwards.
        let is_resource = batch.iter().any(|topic| matches!(topic, Topic::LeaseEnded(_)));
        if is_resource && !within(limit, keep_listening(connection)).await? {
            within(limit, listen(connection)).await?;
        }
        subscriptions.confirm(batch);
    }
    Ok(())
}

/// The health check of this connection: the number of subscribers to [`Topic::Events`]. Publishes to a channel of no resource,
/// because the scripts of releases cannot report missing rights to publish.
async fn check(connection: &mut MultiplexedConnection) -> Result<usize, RedisError> {
    let () = cmd("PUBLISH").arg(keys::FREED_PREFIX).arg("").query_async(connection).await?;
    subscriber_count(connection, &Topic::Events).await
}

/// Reports again that this instance listens. `false`: the node did not know it. Works on a full node, which cannot set the key.
async fn keep_listening(connection: &mut MultiplexedConnection) -> Result<bool, RedisError> {
    cmd("PEXPIRE").arg(keys::NOTICES_KEY).arg(listening_ms()).query_async(connection).await
}

async fn listen(connection: &mut MultiplexedConnection) -> Result<(), RedisError> {
    cmd("SET").arg(keys::NOTICES_KEY).arg(1).arg("PX").arg(listening_ms()).query_async(connection).await
}

fn listening_ms() -> u64 {
    u64::try_from(LISTENING.as_millis()).unwrap_or(u64::MAX)
}

async fn subscriber_count(connection: &mut MultiplexedConnection, topic: &Topic) -> Result<usize, RedisError> {
    let (_, count): (String, usize) = cmd("PUBSUB").arg("NUMSUB").arg(channel(topic)).query_async(connection).await?;
    Ok(count)
}

fn channel(topic: &Topic) -> String {
    match topic {
        Topic::LeaseEnded(resource) => keys::freed_channel(resource),
        Topic::Events => keys::EVENTS_CHANNEL.to_owned(),
        Topic::Incidents => keys::INCIDENTS_CHANNEL.to_owned(),
    }
}

/// A message: channel and text. Messages on other channels, and malformed ones, are ignored.
fn on_message(subscriptions: &Subscriptions, data: &[Value]) {
    let [Value::BulkString(channel), Value::BulkString(text)] = data else { return };
    let Ok(channel) = std::str::from_utf8(channel) else { return };
    if [keys::EVENTS_CHANNEL, keys::INCIDENTS_CHANNEL].contains(&channel) {
        subscriptions.event_received(text);
    } else if let Some(name) = keys::freed_resource(channel)
        && let Ok(resource) = ResourceName::parse(name)
        && let Some(notice) = Notice::parse(text)
    {
        subscriptions.lease_ended(&resource, notice);
    }
}
