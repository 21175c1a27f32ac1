//! Connections, and files that are read again while the service runs, as metrics see them. Knows no
//! socket and no file.

use prometheus::{IntGauge, Registry};

use super::register::{gauge, gauges};
use super::requests::InFlightGuard;

/// What is read again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReloadedFile {
    /// Who may do what.
    AccessFile,
    /// What callers are shown.
    Certificate,
}

impl ReloadedFile {
    /// All of them.
    const ALL: [Self; 2] = [Self::AccessFile, Self::Certificate];

    fn as_str(self) -> &'static str {
        match self {
            Self::AccessFile => "access_file",
            Self::Certificate => "certificate",
        }
    }
}

/// The door.
pub(super) struct ConnectionMetrics {
    connections: IntGauge,
    connections_limit: IntGauge,
    reloads: [IntGauge; 2],
}

impl ConnectionMetrics {
    pub(super) fn new(r: &Registry) -> Self {
        let help = "1 while what was read last is in force, 0 while it was of no use and what came before it is.";
        let reloads = gauges(r, "config_last_reload_successful", help, &["kind"]);
        let reloads = ReloadedFile::ALL.map(|kind| reloads.with_label_values(&[kind.as_str()]));
        reloads.iter().for_each(|gauge| gauge.set(1));
        Self {
            connections: gauge(r, "http_connections", "Connections of callers."),
            connections_limit: gauge(r, "http_connections_limit", "The bound of http_connections."),
            reloads,
        }
    }

    pub(super) fn connected(&self) -> InFlightGuard {
        InFlightGuard::begin(&self.connections)
    }

    pub(super) fn limit(&self, connections: usize) {
        self.connections_limit.set(i64::try_from(connections).unwrap_or(i64::MAX));
    }

    pub(super) fn reloaded(&self, what: ReloadedFile, is_in_force: bool) {
        self.reloads[what as usize].set(i64::from(is_in_force));
    }
}
