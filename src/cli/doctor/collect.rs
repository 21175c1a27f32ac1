//! What one Redis node shows to somebody who only reads: how fast it answers, its clock, its
//! `INFO`, our marker, and the keys in it. Judges nothing. Values of foreign keys are looked at only
//! to tell them from ours, and kept nowhere.

use std::time::Duration;

use deadpool_redis::redis::aio::MultiplexedConnection;
use deadpool_redis::redis::{Client, ClientTlsConfig, RedisError, TlsCertificates, Value, cmd, pipe};

use crate::config::Secret;
use crate::nodes::redis::{ServerInfo, read_server_info};
use crate::protocol::LeaseRecord;
use crate::protocol::keys::META_KEY;
use crate::redlock::clock::{Clock, SystemClock};
use crate::types::RESERVED_PREFIX;

/// How often the node is asked for its time.
const SAMPLES: usize = 5;
/// How long one answer may take: far above any setting, since how long it takes is what is measured.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);
/// Keys asked for at once, and in all: more are not looked at, and that is said.
const PAGE: usize = 500;
const KEYS_MAX: usize = 100_000;
/// The most bytes of a value that are read: ours are shorter.
const VALUE_MAX_BYTES: isize = 8 * 1024;

/// Which nodes, and how to reach them.
pub struct CheckSettings {
    pub nodes: Vec<(String, Secret)>,
    pub ca: Option<Vec<u8>>,
    pub client: Option<(Vec<u8>, Vec<u8>)>,
    pub connect_timeout: Duration,
    pub key_head: String,
    pub key_tail: String,
}

/// One node, or why there is nothing to say of it.
#[derive(Debug, Clone)]
pub struct NodeCheck {
    pub node: String,
    pub seen: Result<NodeObservation, String>,
}

/// What it showed.
#[derive(Debug, Clone, Default)]
pub struct NodeObservation {
    /// Median round trip of a command.
    pub latency: Duration,
    /// The node's clock minus this machine's. Microseconds.
    pub offset_us: i64,
    pub server: ServerInfo,
    pub marker: Option<ObservedMarker>,
    pub leases: Vec<ObservedLease>,
    pub foreign: Vec<ForeignKey>,
    /// There are more keys than were looked at.
    pub more_keys: bool,
}

/// Our marker, as far as it is of interest.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ObservedMarker {
    pub run: String,
    /// `a`: votes; anything else: does not.
    pub state: String,
    pub cluster: String,
    pub why: String,
    /// End of a quarantine on the node's clock. Microseconds since 1970.
    pub until_us: u64,
    /// The node's clock when this was read. Microseconds since 1970.
    pub now_us: u64,
}

/// A lease of ours.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ObservedLease {
    pub key: String,
    pub token_id: String,
    pub left_ms: i64,
}

/// A key that is not ours and stands where a resource's key would.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ForeignKey {
    pub key: String,
    /// It has no TTL: whoever wants this resource waits for ever.
    pub immortal: bool,
}

/// All nodes at once. Cancel: nothing is left behind.
pub async fn check_all(settings: &CheckSettings) -> Vec<NodeCheck> {
    let looks = settings.nodes.iter().map(|(node, url)| async move {
        let seen = at(url.reveal(), settings).await.map_err(|error| words(&error));
        NodeCheck { node: node.clone(), seen }
    });
    futures_util::future::join_all(looks).await
}

/// An error without addresses and what was sent.
fn words(error: &RedisError) -> String {
    if error.is_timeout() {
        return "it does not answer in time".to_owned();
    }
    match error.code() {
        Some("NOAUTH") => "it wants a password".to_owned(),
        Some("NOPERM") => {
            "the user may not do what is needed: INFO, TIME, SCAN, TYPE, PTTL, GETRANGE, HMGET".to_owned()
        }
        Some(code) => format!("it answers {code}"),
        None if error.is_connection_refusal() => "nobody listens there".to_owned(),
        None => error.category().to_owned(),
    }
}

async fn at(url: &str, settings: &CheckSettings) -> Result<NodeObservation, RedisError> {
    let client = if url.starts_with("rediss://") {
        let client_tls =
            settings.client.clone().map(|(client_cert, client_key)| ClientTlsConfig { client_cert, client_key });
        Client::build_with_tls(url, TlsCertificates { client_tls, root_cert: settings.ca.clone() })?
    } else {
        Client::open(url)?
    };
    let config = deadpool_redis::redis::AsyncConnectionConfig::new()
        .set_connection_timeout(Some(settings.connect_timeout))
        .set_response_timeout(Some(ANSWER_TIMEOUT));
    let mut node = client.get_multiplexed_async_connection_with_config(&config).await?;
    let mut seen = NodeObservation::default();
    let now_us = clock(&mut node, &mut seen).await?;
    let info: String = cmd("INFO").query_async(&mut node).await?;
    // CONFIG may be forbidden: then nothing is known of persistence.
    let saves: Result<Vec<String>, _> = cmd("CONFIG").arg("GET").arg("save").query_async(&mut node).await;
    let saves = saves.ok().and_then(|pair| pair.get(1).cloned());
    seen.server = read_server_info(&info, saves.as_deref());
    let fields = ["run", "st", "cfg", "why", "until"];
    let marker: Vec<Option<String>> = cmd("HMGET").arg(META_KEY).arg(&fields).query_async(&mut node).await?;
    if let [Some(run), state, cluster, why, until] = marker.as_slice() {
        let text = |field: &Option<String>| field.clone().unwrap_or_default();
        seen.marker = Some(ObservedMarker {
            run: run.clone(),
            state: text(state),
            cluster: text(cluster),
            why: text(why),
            until_us: text(until).parse().unwrap_or(0),
            now_us,
        });
    }
    keys(&mut node, settings, &mut seen).await?;
    Ok(seen)
}

/// Asks for the time, again and again; the last answer. The quickest answer says most of the clock.
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
    let (mut cursor, mut looked) = (0_u64, 0);
    loop {
        let scan = cmd("SCAN").arg(cursor).arg("COUNT").arg(PAGE).to_owned();
        let (next, page): (u64, Vec<Vec<u8>>) = scan.query_async(node).await?;
        for key in page.iter().filter_map(|key| std::str::from_utf8(key).ok()) {
            looked += 1;
            let is_resource = key.starts_with(&settings.key_head)
                && key.ends_with(&settings.key_tail)
                && key.len() > settings.key_head.len() + settings.key_tail.len();
            if is_resource && !key.starts_with(RESERVED_PREFIX) {
                note(node, key, seen).await?;
            }
        }
        cursor = next;
        if cursor == 0 {
            return Ok(());
        }
        if looked >= KEYS_MAX {
            seen.more_keys = true;
            return Ok(());
        }
    }
}

/// Whose key it is.
async fn note(node: &mut MultiplexedConnection, key: &str, seen: &mut NodeObservation) -> Result<(), RedisError> {
    let (kind, left_ms): (String, i64) = pipe().cmd("TYPE").arg(key).cmd("PTTL").arg(key).query_async(node).await?;
    if kind == "none" {
        return Ok(()); // it ended meanwhile
    }
    let value: Value = match kind.as_str() {
        "string" => cmd("GETRANGE").arg(key).arg(0).arg(VALUE_MAX_BYTES).query_async(node).await?,
        _ => Value::Nil,
    };
    let record = match &value {
        Value::BulkString(bytes) => LeaseRecord::parse(bytes),
        _ => None,
    };
    let key = key.to_owned();
    match record {
        Some(record) => seen.leases.push(ObservedLease { key, token_id: record.token.id().to_string(), left_ms }),
        None => seen.foreign.push(ForeignKey { key, immortal: left_ms == -1 }),
    }
    Ok(())
}
