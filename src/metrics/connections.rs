//! Metrics of connections, and of files that are read again while the service runs.

use prometheus::{IntGauge, Registry};

use super::register::{gauge, gauges};
use super::requests::InFlightGuard;

/// A file that is read again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReloadedFile {
    /// The principals and their rules.
    AccessFile,
    /// The server's TLS certificate.
    Certificate,
}

impl ReloadedFile {
    /// All files.
    const ALL: [Self; 2] = [Self::AccessFile, Self::Certificate];

    /// The label's value.
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::AccessFile => "access_file",
            Self::Certificate => "certificate",
        }
    }
}

/// The handles.
pub(super) struct ConnectionMetrics {
    connections: IntGauge,
    connections_limit: IntGauge,
    reloads: [IntGauge; 2],
}

impl ConnectionMetrics {
    pub(super) fn new(r: &Registry) -> Self {
        let help = "1 if the last reload succeeded, 0 if it failed and the previous content is still in force.";
        let reloads = gauges(r, "config_last_reload_successful", help, &["kind"]);
        let reloads = ReloadedFile::ALL.map(|kind| reloads.with_label_values(&[kind.as_str()]));
        reloads.iter().for_each(|gauge| gauge.set(1));
        Self {
            connections: gauge(r, "http_connections", "Open client connections."),
            connections_limit: gauge(r, "http_connections_limit", "Maximum of http_connections."),
            reloads,
        }
    }

    pub(super) fn connected(&self) -> InFlightGuard {
        InFlightGuard::begin(&self.connections)
    }

    pub(super) fn limit(&self, connections: usize) {
        self.connections_limit.set(i64::try_from(connections).unwrap_or(i64::MAX));
    }

    pub(super) fn reloaded(&self, file: ReloadedFile, is_in_force: bool) {
        self.reloads[file as usize].set(i64::from(is_in_force));
    }
}
