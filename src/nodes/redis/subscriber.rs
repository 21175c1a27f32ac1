//! One connection per node and instance that only listens: it subscribes to what the node's feed
//! wants and passes on what it hears. Apart from the lanes, so that no notice waits behind a command
//! and no command behind a subscription. Knows no queue; a notice that it loses costs time only.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use deadpool_redis::redis::aio::MultiplexedConnection;
use deadpool_redis::redis::{PushInfo, PushKind, RedisError, Value, cmd, pipe};
use tokio::sync::Notify;
use tokio::time::timeout;

use super::connect::Connector;
use super::errors;
use super::supervisor::{CHECK_EVERY, backoff};
use crate::protocol::keys;
use crate::redlock::clock::{Clock, SystemClock};
use crate::redlock::entropy::Entropy;
use crate::redlock::notifications::{Notice, Topic};
use crate::redlock::subscriptions::{PendingCommands, Subscriptions};
use crate::types::{NodeId, ResourceName};

/// Channels in one command: the node is held up for some 100 us by it.
const BATCH_MAX: usize = 256;

/// Keeps the connection until dropped. Cancel: it is closed, and the feed with it.
pub async fn listen(
    id: NodeId,
    connector: Connector,
    feed: Arc<Subscriptions>,
    limit: Duration,
    clock: SystemClock,
    entropy: impl Entropy,
) {
    let mut failures = 0_u32;
    loop {
        let mut opened = false;
        let error = match session(&connector, &feed, limit, clock, &mut opened).await {
            Ok(()) => "the connection was lost".to_owned(),
            Err(error) => errors::of_call(&error).to_string(),
        };
        failures = if opened { 1 } else { failures.saturating_add(1) };
        if failures == 1 {
            tracing::info!(node = %id, error, "the node is not listened to; waiters look for themselves until it is");
        }
        clock.sleep(backoff(failures, &entropy)).await;
    }
}

/// One connection, to its end.
async fn session(
    connector: &Connector,
    feed: &Arc<Subscriptions>,
    limit: Duration,
    clock: SystemClock,
    opened: &mut bool,
) -> Result<(), RedisError> {
    let lost = Arc::new(Notify::new());
    let (ear, end) = (Arc::clone(feed), Arc::clone(&lost));
    let hear = move |push: PushInfo| -> Result<(), std::convert::Infallible> {
        match push.kind {
            PushKind::Message => hear(&ear, &push.data),
            PushKind::Disconnection => end.notify_one(),
            _ => {}
        }
        Ok(())
    };
    let mut connection = within(limit, connector.listening(hear)).await?;
    let wanted = feed.reconnect();
    subscribe(&mut connection, feed, &wanted, limit).await?;
    let _line = Line::open(feed);
    *opened = true;
    let mut check_at = clock.now();
    loop {
        tokio::select! {
            biased;
            () = lost.notified() => return Ok(()),
            () = clock.sleep_until(check_at) => {
                check_at = clock.now().plus(CHECK_EVERY);
                // Also shows that the node still answers here.
                let listeners = within(limit, count(&mut connection, &Topic::Events)).await?;
                feed.set_event_subscribers(listeners);
                run(&mut connection, feed, feed.sweep(), limit).await?;
            }
            () = feed.changed() => run(&mut connection, feed, feed.take_commands(), limit).await?,
        }
    }
}

/// The feed is open for as long as this lives.
struct Line<'a>(&'a Subscriptions);

impl<'a> Line<'a> {
    fn open(feed: &'a Subscriptions) -> Self {
        feed.connected();
        Self(feed)
    }
}

impl Drop for Line<'_> {
    fn drop(&mut self) {
        self.0.disconnected();
    }
}

async fn run(
    connection: &mut MultiplexedConnection,
    feed: &Subscriptions,
    errands: PendingCommands,
    limit: Duration,
) -> Result<(), RedisError> {
    if !errands.publish.is_empty() {
        let mut batch = pipe();
        for text in &errands.publish {
            batch.cmd("PUBLISH").arg(keys::EVENTS_CHANNEL).arg(&**text).ignore();
        }
        within(limit, batch.query_async::<()>(connection)).await?;
    }
    subscribe(connection, feed, &errands.subscribe, limit).await?;
    for batch in errands.unsubscribe.chunks(BATCH_MAX) {
        let channels: Vec<String> = batch.iter().map(channel).collect();
        within(limit, connection.unsubscribe(channels)).await?;
    }
    for (topic, answer) in errands.count {
        let listeners = within(limit, count(connection, &topic)).await?;
        let _ = answer.send(listeners);
    }
    Ok(())
}

async fn subscribe(
    connection: &mut MultiplexedConnection,
    feed: &Subscriptions,
    topics: &[Topic],
    limit: Duration,
) -> Result<(), RedisError> {
    for batch in topics.chunks(BATCH_MAX) {
        let channels: Vec<String> = batch.iter().map(channel).collect();
        within(limit, connection.subscribe(channels)).await?;
        feed.confirm(batch);
    }
    Ok(())
}

async fn count(connection: &mut MultiplexedConnection, topic: &Topic) -> Result<usize, RedisError> {
    let (_, listeners): (String, usize) =
        cmd("PUBSUB").arg("NUMSUB").arg(channel(topic)).query_async(connection).await?;
    Ok(listeners)
}

fn channel(topic: &Topic) -> String {
    match topic {
        Topic::LeaseEnded(resource) => keys::freed_channel(resource),
        Topic::Events => keys::EVENTS_CHANNEL.to_owned(),
    }
}

/// A message: channel and text. What is none of ours is ignored.
fn hear(feed: &Subscriptions, data: &[Value]) {
    let [Value::BulkString(channel), Value::BulkString(text)] = data else { return };
    let Ok(channel) = std::str::from_utf8(channel) else { return };
    if channel == keys::EVENTS_CHANNEL {
        feed.event_received(text);
    } else if let Some(name) = keys::freed_resource(channel)
        && let Ok(resource) = ResourceName::parse(name)
        && let Some(notice) = Notice::parse(text)
    {
        feed.lease_ended(&resource, notice);
    }
}

async fn within<T>(limit: Duration, work: impl Future<Output = Result<T, RedisError>>) -> Result<T, RedisError> {
    timeout(limit, work).await.unwrap_or_else(|_| Err(errors::timed_out()))
}
