//! Metrics of connections, and of files and keys that are read again while the service runs.

use std::time::Duration;

use prometheus::{Gauge, GaugeVec, IntGauge, Registry};

use super::register::{gauge, gauges, quantities, quantity};
use super::requests::InFlightGuard;

/// A file that is read again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReloadedFile {
    /// The principals and their rules.
    AccessFile,
    /// The server's TLS certificate.
    Certificate,
    /// Targets of call-backs, and hooks.
    Webhooks,
}

impl ReloadedFile {
    const ALL: [Self; 3] = [Self::AccessFile, Self::Certificate, Self::Webhooks];

    /// The label's value.
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::AccessFile => "access_file",
            Self::Certificate => "certificate",
            Self::Webhooks => "webhooks_file",
        }
    }
}

/// The number of token issuers by the state of their keys.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct IssuerCounts {
    /// Issuers with the keys of the last reading.
    pub current: usize,
    /// Issuers with older keys, since the last reading failed or had no key that can verify.
    pub outdated: usize,
    /// Issuers without keys: their tokens are refused.
    pub without_keys: usize,
    /// The time since the oldest of these keys were read; zero without any.
    pub oldest: Duration,
}

pub(super) struct ConnectionMetrics {
    connections: IntGauge,
    connections_limit: IntGauge,
    reloads: [IntGauge; 3],
    issuers: [IntGauge; 3],
    issuer_keys_age: Gauge,
    certificate_expires: GaugeVec,
    last_key_expires: GaugeVec,
}

impl ConnectionMetrics {
    pub(super) fn new(r: &Registry) -> Self {
        let help = "0 if the last reload failed: what was before it is in force.";
        let reloads = gauges(r, "config_last_reload_successful", help, &["kind"]);
        let reloads = ReloadedFile::ALL.map(|kind| reloads.with_label_values(&[kind.as_str()]));
        reloads.iter().for_each(|gauge| gauge.set(1));
        let help = "Issuers of tokens by their keys in force: of the last reading, older, or none.";
        let issuers = gauges(r, "issuers", help, &["kind"]);
        let issuers = ["current", "outdated", "without-keys"].map(|kind| issuers.with_label_values(&[kind]));
        let help = "Age of the oldest keys of an issuer in force; 0 without any.";
        let certificate =
            "When the first certificate of the listener's chain expires, in seconds since 1970; not without TLS.";
        let key = "When the last key of the principal expires that is the first to have none, in seconds since 1970.";
        Self {
            certificate_expires: quantities(r, "certificate_expires_timestamp_seconds", certificate, &[]),
            last_key_expires: quantities(r, "last_key_expires_timestamp_seconds", key, &["principal"]),
            issuers,
            issuer_keys_age: quantity(r, "issuer_keys_age_seconds", help),
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

    /// Units: seconds since 1970.
    pub(super) fn certificate_expires(&self, at_s: i64) {
        #[expect(clippy::cast_precision_loss, reason = "exact for 200 million years")]
        self.certificate_expires.with_label_values::<&str>(&[]).set(at_s as f64);
    }

    /// A principal, and when its last key expires: milliseconds since 1970.
    pub(super) fn last_key_expires(&self, principal: Option<&(String, u64)>) {
        self.last_key_expires.reset();
        if let Some((name, at_ms)) = principal {
            let at = Duration::from_millis(*at_ms).as_secs_f64();
            self.last_key_expires.with_label_values(&[name.as_str()]).set(at);
        }
    }

    pub(super) fn issuers(&self, now: IssuerCounts) {
        let counts = [now.current, now.outdated, now.without_keys];
        self.issuers.iter().zip(counts).for_each(|(gauge, count)| gauge.set(i64::try_from(count).unwrap_or(i64::MAX)));
        self.issuer_keys_age.set(now.oldest.as_secs_f64());
    }
}
