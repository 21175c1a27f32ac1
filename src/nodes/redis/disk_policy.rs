//! Whether a server syncs each write before it replies, for durable nodes (`docs/views.md`, *By its disk*). A script cannot read
//! the configuration, so each instance reads it once a second.

use std::time::Duration;

use deadpool_redis::redis::{Cmd, RedisError, cmd, from_redis_value};

use super::connections::NodeConnections;
use crate::redlock::clock::{BootTime, Clock, SystemClock};

/// The interval of the readings.
const READ_INTERVAL: Duration = Duration::from_secs(1);
/// An older reading does not count.
const READING_LASTS: Duration = Duration::from_secs(2);
/// Timeout of a reading.
const READ_TIMEOUT: Duration = Duration::from_millis(500);

/// The settings that decide, with the values that a durable node has.
const NEEDED: [(&str, &str); 3] =
    [("appendonly", "yes"), ("appendfsync", "always"), ("no-appendfsync-on-rewrite", "no")];

/// A reading: `None`: each write is synced before its reply; else why not.
#[derive(Debug, Clone)]
pub(super) struct DiskPolicy {
    read_at: BootTime,
    /// Why the node is not durable.
    problem: Option<String>,
    /// The settings could be read.
    is_known: bool,
}

/// Why there is no reading.
const UNREAD: &str = "its settings were not read yet";

/// As it is reported in a probe: see [`crate::redlock::node::Node::syncs_each_write`].
pub(super) fn syncs(policy: Option<&DiskPolicy>, now: BootTime) -> Option<bool> {
    let known = policy.filter(|policy| policy.is_known && now.since(policy.read_at) <= READING_LASTS)?;
    Some(known.problem.is_none())
}

/// Why the node is not durable; `None`: it is.
pub(super) fn problem(policy: Option<&DiskPolicy>) -> Option<String> {
    policy.map_or_else(|| Some(UNREAD.to_owned()), |policy| policy.problem.clone())
}

/// Reads the settings once a second, for ever. Cancel: the last reading gets old.
pub(super) async fn watch(connections: &NodeConnections, clock: SystemClock) {
    loop {
        if let Some(active) = connections.slots().iter().find_map(|slot| slot.active()) {
            let read_at = clock.now();
            let (generation, read) = (
                active.pipeline.generation(),
                tokio::time::timeout(READ_TIMEOUT, active.ask(&settings_question())).await,
            );
            if let Ok(read) = read {
                let (problem, is_known) = check(read.and_then(|value| Ok(from_redis_value(value)?)));
                connections.record_policy(generation, DiskPolicy { read_at, problem, is_known });
            }
        }
        clock.sleep(READ_INTERVAL).await;
    }
}

/// The command that reads the settings.
pub fn settings_question() -> Cmd {
    // One pattern: servers before version 7 take no more.
    cmd("CONFIG").arg("GET").arg("*append*").to_owned()
}

/// Why a server with these settings, in pairs of name and value, is not durable.
pub fn not_durable(settings: &[String]) -> Option<String> {
    let value = |name: &str| settings.chunks_exact(2).find(|pair| pair[0] == name).map(|pair| pair[1].as_str());
    let differs = |(name, needed): &(&str, &str)| value(name) != Some(needed);
    let (name, needed) = NEEDED.into_iter().find(differs)?;
    Some(format!("{name} is {}, and must be {needed}", value(name).unwrap_or("not shown")))
}

fn check(settings: Result<Vec<String>, RedisError>) -> (Option<String>, bool) {
    match settings {
        Ok(settings) => (not_durable(&settings), true),
        Err(error) if error.code() == Some("NOPERM") => {
            (Some("this instance's user may not read its settings (+config|get)".to_owned()), false)
        }
        Err(_) => (Some("its settings could not be read".to_owned()), false),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings(appendonly: &str, appendfsync: &str, on_rewrite: &str) -> Vec<String> {
        let pairs = [
            ("appendfilename", "appendonly.aof"),
            ("appendfsync", appendfsync),
            ("appendonly", appendonly),
            ("no-appendfsync-on-rewrite", on_rewrite),
        ];
        pairs.iter().flat_map(|(name, value)| [(*name).to_owned(), (*value).to_owned()]).collect()
    }

    #[test]
    fn a_server_is_durable_only_with_all_three_settings() {
        assert_eq!(not_durable(&settings("yes", "always", "no")), None);
        for (read, why) in [
            (settings("no", "always", "no"), "appendonly is no, and must be yes"),
            (settings("yes", "everysec", "no"), "appendfsync is everysec, and must be always"),
            (settings("yes", "always", "yes"), "no-appendfsync-on-rewrite is yes, and must be no"),
            (Vec::new(), "appendonly is not shown, and must be yes"),
        ] {
            assert_eq!(not_durable(&read).as_deref(), Some(why));
        }
    }

    #[test]
    fn an_old_reading_says_nothing() {
        let at = |ms: u64| BootTime::from_nanos(ms * 1_000_000);
        let read = |problem, is_known| DiskPolicy { read_at: at(1_000), problem, is_known };
        assert_eq!(syncs(Some(&read(None, true)), at(3_000)), Some(true));
        assert_eq!(syncs(Some(&read(None, true)), at(3_001)), None);
        assert_eq!(syncs(Some(&read(Some("x".into()), true)), at(1_500)), Some(false));
        assert_eq!(syncs(Some(&read(Some("x".into()), false)), at(1_500)), None);
        assert_eq!(syncs(None, at(1_500)), None);
    }
}
