//! Reads the data that a check needs from one Redis node: latency, clock, `INFO`, the marker, and the keys. Values of foreign
//! keys are read only to distinguish them from leases, and are not kept.

use std::collections::{BTreeSet, HashMap};
use std::time::Duration;

use deadpool_redis::redis::aio::MultiplexedConnection;
use deadpool_redis::redis::{Client, RedisError, Value, cmd, pipe};

use crate::nodes::redis::{
    NodeTls, NodeUrl, ServerFinding, ServerInfo, not_durable, read_server_info, settings_question,
};
use crate::protocol::keys::{KeyTemplate, META_KEY, NAMES_KEY};
use crate::protocol::{LeaseRecord, View};
use crate::redlock::clock::{Clock, SystemClock};
use crate::types::{RESERVED_PREFIX, TokenHash};

/// The prefix of a key's value if several leases share the lock.
const MEMBERS_VALUE: &[u8] = b"S|";
/// Number of `TIME` commands.
const SAMPLES: usize = 5;
/// Timeout of an answer: far above node_timeout, because latency is measured.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);
/// Keys per SCAN, and in all; if there are more, the report says so.
const PAGE: usize = 500;
const KEYS_MAX: usize = 100_000;
/// How long a note that an instance reached a process counts, as on the nodes. Microseconds.
const ALIVE_US: u64 = 3_000_000;
/// Maximum number of bytes of a value that are read; a lease has fewer.
const VALUE_MAX_BYTES: isize = 8 * 1024;

/// The nodes, and the data for connecting to them.
pub(super) struct CheckSettings {
    pub nodes: Vec<(String, NodeUrl)>,
    pub tls: Option<NodeTls>,
    pub connect_timeout: Duration,
    pub allow_replicas: bool,
    pub durable: bool,
    pub template: KeyTemplate,
}

/// The result of checking one node.
#[derive(Debug, Clone)]
pub(super) struct NodeCheck {
    pub node: String,
    pub result: Result<NodeObservation, String>,
}

/// The data that was read from a node.
#[derive(Debug, Clone, Default)]
pub(super) struct NodeObservation {
    /// Median round trip of a command.
    pub latency: Duration,
    /// The node's clock minus this machine's. Microseconds.
    pub offset_us: i64,
    pub server: ServerInfo,
    pub marker: Option<ObservedMarker>,
    pub leases: Vec<ObservedLease>,
    pub foreign: Vec<ForeignKey>,
    /// There are more than [`KEYS_MAX`] keys.
    pub more_keys: bool,
}

/// The node's marker.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct ObservedMarker {
    pub run: String,
    /// `a`: the node votes; anything else: it does not.
    pub state: String,
    pub cluster: String,
    pub why: String,
    /// End of the quarantine by the node's clock. Microseconds since 1970.
    pub until_us: u64,
    /// The node's clock at the time of reading. Microseconds since 1970.
    pub now_us: u64,
    /// The view that the node has installed.
    pub view: Option<View>,
    /// The view changes the list, and the node was not filled for it yet: no vote.
    pub is_pending: bool,
    /// Names and runs that instances saw alive within the last seconds.
    pub alive: BTreeSet<(String, String)>,
}

/// A lease of the service.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ObservedLease {
    pub key: String,
    pub token_id: String,
    pub left_ms: i64,
}

/// A key that matches the key template but is not a lease of the service.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ForeignKey {
    pub key: String,
    /// The key has no TTL: this resource can never be acquired.
    pub without_ttl: bool,
}

/// Checks all nodes concurrently. Cancel: nothing is left behind.
pub(super) async fn check_all(settings: &CheckSettings) -> Vec<NodeCheck> {
    let checks = settings.nodes.iter().map(|(node, url)| async move {
        let result = observe(url, settings).await;
        NodeCheck { node: node.clone(), result }
    });
    futures_util::future::join_all(checks).await
}

/// The reason of an error, without addresses and commands.
fn reason(error: &RedisError) -> String {
    if error.is_timeout() {
        return "it does not answer in time".to_owned();
    }
    match error.code() {
        Some("NOAUTH") => "it requires a password".to_owned(),
        Some("NOPERM") => format!(
            "the user may not do what is needed (INFO, TIME, SCAN, TYPE, PTTL, GETRANGE, HMGET, HGETALL): {}",
            error.detail().unwrap_or_default()
        ),
        Some(code) => format!("it answers {code}"),
        None if error.is_connection_refusal() => "the connection is refused".to_owned(),
        // The system's message, for example for a name that does not resolve.
        None => std::error::Error::source(error)
            .filter(|_| error.is_io_error())
            .map_or_else(|| error.category().to_owned(), ToString::to_string),
    }
}

async fn observe(url: &NodeUrl, settings: &CheckSettings) -> Result<NodeObservation, String> {
    let client = url.client(settings.tls.as_ref().filter(|_| url.is_tls())).map_err(|why| why.0)?;
    read(&client, settings).await.map_err(|error| reason(&error))
}

async fn read(client: &Client, settings: &CheckSettings) -> Result<NodeObservation, RedisError> {
    let config = deadpool_redis::redis::AsyncConnectionConfig::new()
        .set_connection_timeout(Some(settings.connect_timeout))
        .set_response_timeout(Some(ANSWER_TIMEOUT));
    let mut node = client.get_multiplexed_async_connection_with_config(&config).await?;
    let mut seen = NodeObservation::default();
    let now_us = clock(&mut node, &mut seen).await?;
    let info: String = cmd("INFO").query_async(&mut node).await?;
    // CONFIG may be forbidden: persistence is then unknown.
    let saves: Result<Vec<String>, _> = cmd("CONFIG").arg("GET").arg("save").query_async(&mut node).await;
    let saves = saves.ok().and_then(|pair| pair.get(1).cloned());
    seen.server = read_server_info(&info, saves.as_deref(), settings.allow_replicas);
    if settings.durable {
        let read: Result<Vec<String>, _> = settings_question().query_async(&mut node).await;
        let why = read
            .map_or_else(|_| Some("the user may not read its settings (+config|get)".into()), |all| not_durable(&all));
        seen.server.findings.extend(why.map(|why| ServerFinding::NotDurable { why }));
    }
    // The scripts need this right too.
    let _: Vec<Option<String>> = cmd("HMGET").arg(META_KEY).arg("run").query_async(&mut node).await?;
    let marker: HashMap<String, String> = cmd("HGETALL").arg(META_KEY).query_async(&mut node).await?;
    seen.marker = observed(&marker, now_us);
    keys(&mut node, settings, &mut seen).await?;
    Ok(seen)
}

/// The marker from its fields; `None` without a marker.
fn observed(marker: &HashMap<String, String>, now_us: u64) -> Option<ObservedMarker> {
    let text = |field: &str| marker.get(field).cloned().unwrap_or_default();
    let notes = marker.iter().filter(|(field, _)| field.starts_with("sees:")).filter_map(|(_, note)| {
        let (at, seen) = note.split_once(' ')?;
        (at.parse::<u64>().ok()?.abs_diff(now_us) <= ALIVE_US).then_some(seen)
    });
    let pairs = notes.flat_map(|seen| {
        let words: Vec<&str> = seen.split(' ').collect();
        words.chunks_exact(2).map(|pair| (pair[0].to_owned(), pair[1].to_owned())).collect::<Vec<_>>()
    });
    Some(ObservedMarker {
        run: marker.get("run")?.clone(),
        state: text("st"),
        cluster: text("cfg"),
        why: text("why"),
        until_us: text("until").parse().unwrap_or(0),
        now_us,
        is_pending: marker.contains_key("pending"),
        view: marker.get("roster").and_then(|record| View::parse(record)),
        alive: pairs.collect(),
    })
}

/// Measures latency and clock offset; returns the node's last time. The offset comes from the fastest answer, which is the most
/// exact one.
async fn clock(node: &mut MultiplexedConnection, seen: &mut NodeObservation) -> Result<u64, RedisError> {
    let (mut trips, mut best, mut last) = (Vec::new(), Duration::MAX, 0);
    for _ in 0..SAMPLES {
        let sent = SystemClock.now();
        let (seconds, micros): (u64, u64) = cmd("TIME").query_async(node).await?;
        let trip = SystemClock.now().since(sent);
        let wall_us = SystemClock.wall_ms().saturating_mul(1_000);
        last = seconds.saturating_mul(1_000_000).saturating_add(micros);
        if trip < best {
            best = trip;
            let here_us = wall_us.saturating_sub(u64::try_from(trip.as_micros() / 2).unwrap_or(0));
            let signed = |us: u64| i64::try_from(us).unwrap_or(i64::MAX);
            seen.offset_us = signed(last).saturating_sub(signed(here_us));
        }
        trips.push(trip);
    }
    trips.sort_unstable();
    seen.latency = trips.get(SAMPLES / 2).copied().unwrap_or_default();
    Ok(last)
}

async fn keys(
    node: &mut MultiplexedConnection,
    settings: &CheckSettings,
    seen: &mut NodeObservation,
) -> Result<(), RedisError> {
    // As the node names locks, which an instance with this configuration follows.
    let names: Option<String> = cmd("GET").arg(NAMES_KEY).query_async(node).await?;
    let names = names.as_deref().and_then(|names| KeyTemplate::parse(names.split(' ').next()?).ok());
    let template = names.as_ref().unwrap_or(&settings.template);
    let (head, tail) = (template.head(), template.tail());
    let (mut cursor, mut scanned) = (0_u64, 0);
    loop {
        let scan = cmd("SCAN").arg(cursor).arg("COUNT").arg(PAGE).to_owned();
        let (next, page): (u64, Vec<Vec<u8>>) = scan.query_async(node).await?;
        for key in page.iter().filter_map(|key| std::str::from_utf8(key).ok()) {
            scanned += 1;
            let is_resource = key.starts_with(head) && key.ends_with(tail) && key.len() > head.len() + tail.len();
            if is_resource && !key.starts_with(RESERVED_PREFIX) {
                let resource = &key[head.len()..key.len() - tail.len()];
                record_key(node, (key, resource), seen).await?;
            }
        }
        cursor = next;
        if cursor == 0 {
            return Ok(());
        }
        if scanned >= KEYS_MAX {
            seen.more_keys = true;
            return Ok(());
        }
    }
}

/// Records a lease, leases that share a lock, or a foreign key.
async fn record_key(
    node: &mut MultiplexedConnection,
    (key, resource): (&str, &str),
    seen: &mut NodeObservation,
) -> Result<(), RedisError> {
    let (kind, left_ms): (String, i64) = pipe().cmd("TYPE").arg(key).cmd("PTTL").arg(key).query_async(node).await?;
    if kind == "none" {
        return Ok(()); // it ended meanwhile
    }
    let value: Value = match kind.as_str() {
        "string" => cmd("GETRANGE").arg(key).arg(0).arg(VALUE_MAX_BYTES).query_async(node).await?,
        _ => Value::Nil,
    };
    let record = match &value {
        Value::BulkString(bytes) if bytes.starts_with(MEMBERS_VALUE) => {
            return record_members(node, (key, resource), seen).await;
        }
        Value::BulkString(bytes) => LeaseRecord::parse(bytes),
        _ => None,
    };
    let key = key.to_owned();
    match record {
        Some(record) => seen.leases.push(ObservedLease { key, token_id: record.token.id().to_string(), left_ms }),
        None => seen.foreign.push(ForeignKey { key, without_ttl: left_ms == -1 }),
    }
    Ok(())
}

/// Records the active shared leases and permits of a resource.
async fn record_members(
    node: &mut MultiplexedConnection,
    (key, resource): (&str, &str),
    seen: &mut NodeObservation,
) -> Result<(), RedisError> {
    let members = format!("{RESERVED_PREFIX}m:{resource}");
    let ((seconds, micros), fields): ((i64, i64), Vec<(String, String)>) =
        pipe().cmd("TIME").cmd("HGETALL").arg(members).query_async(node).await?;
    let now_ms = seconds * 1_000 + micros / 1_000;
    for (token, value) in fields {
        let end_ms = value.split('|').next().and_then(|end| end.parse::<i64>().ok());
        if let (Some(token), Some(end_ms)) = (TokenHash::parse(&token), end_ms.filter(|end| *end > now_ms)) {
            let (key, token_id) = (key.to_owned(), token.id().to_string());
            seen.leases.push(ObservedLease { key, token_id, left_ms: end_ms - now_ms });
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn c3_a_name_that_does_not_resolve_is_said_in_the_systems_words() {
        let words = "failed to lookup address information: Name or service not known";
        assert_eq!(reason(&RedisError::from(std::io::Error::other(words))), words);
    }
}
