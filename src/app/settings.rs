//! Derives the settings of the HTTP server, authentication and the audit log from the configuration.

use std::sync::Arc;
use std::time::Duration;

use super::error::AppError;
use crate::audit::{self, Audit};
use crate::auth::access_file::{self, AccessFileError};
use crate::auth::authenticator::Authenticator;
use crate::auth::principal::PrincipalLimits;
use crate::config::Config;
use crate::http::middleware::host::AllowedHosts;
use crate::http::server::ServeLimits;
use crate::http::server::tls::{Tls, TlsError, TlsFiles};
use crate::http::state::{HttpSettings, UiState};
use crate::manager::latency::NodeLatencies;
use crate::types::Ttl;

pub(super) fn http_settings(config: &Config) -> Result<HttpSettings, AppError> {
    let ttl = |key: &'static str, period: Duration| {
        let ms = u64::try_from(period.as_millis()).unwrap_or(u64::MAX);
        Ttl::from_ms(ms).map_err(|why| AppError::Setting { key, why: why.0 })
    };
    Ok(HttpSettings {
        default_ttl: ttl("default_ttl", config.default_ttl)?,
        min_ttl: ttl("min_ttl", config.min_ttl)?,
        max_ttl: ttl("max_ttl", config.max_ttl)?,
        max_wait: config.max_wait,
        max_hold: config.max_hold,
        body_limit: config.body_limit,
        body_timeout: config.body_timeout,
        uri_limit: config.uri_limit,
        trusted_proxies: config.trusted_proxies.clone(),
        hosts: allowed_hosts(config),
        is_open_to_others: config.is_open_to_others(),
    })
}

/// Host names that requests may use. Any name is allowed where the service is open to everybody by
/// explicit setting and no name is listed: in a container network the service is reached by the name
/// that it was given there.
fn allowed_hosts(config: &Config) -> AllowedHosts {
    match config.is_open_to_others() && config.allowed_hosts.is_empty() {
        true => AllowedHosts::any(),
        false => AllowedHosts::of(config.allowed_hosts.clone()),
    }
}

pub(super) fn serve_limits(config: &Config) -> ServeLimits {
    ServeLimits {
        max_connections: config.max_connections,
        header_timeout: config.header_timeout,
        idle_timeout: config.idle_timeout,
        head_limit: config.head_limit,
        drain_timeout: config.drain_timeout,
    }
}

/// The server's certificate, if one is configured.
///
/// Errors: [`TlsError`] for its files.
pub(super) fn server_tls(config: &Config) -> Result<Option<Tls>, TlsError> {
    let Some((cert, key)) = config.listen_tls_cert.clone().zip(config.listen_tls_key.clone()) else { return Ok(None) };
    Tls::read(TlsFiles { cert, key, client_ca: config.listen_tls_client_ca.clone() }).map(Some)
}

/// Authentication by the access file, or none where there is no file.
///
/// Errors: [`AccessFileError`].
pub(super) fn authenticator(config: &Config) -> Result<Authenticator, AccessFileError> {
    let Some(path) = &config.access_file else { return Ok(Authenticator::open()) };
    let limits = PrincipalLimits {
        requests_per_second: Some(config.requests_per_second),
        leases: Some(config.leases_per_principal),
        waiters: Some(config.waiters_per_principal),
    };
    Ok(Authenticator::with_principals(access_file::read(path)?, limits))
}

/// The audit log and its writer; off by default.
///
/// Errors: [`AppError::AuditLog`].
pub(super) fn open_audit(config: &Config) -> Result<(Audit, Option<audit::Writer>), AppError> {
    let Some(path) = &config.audit_log else { return Ok((Audit::default(), None)) };
    let not_opened = |source| AppError::AuditLog { path: path.clone(), source };
    let (audit, writer) = Audit::open(path).map_err(not_opened)?;
    Ok((audit, Some(writer)))
}

/// State of the pages, unless they are switched off.
pub(super) fn ui_state(config: &Config, node_latencies: Arc<NodeLatencies>) -> Option<UiState> {
    config.ui.then_some(UiState { node_latencies, secure_cookies: config.listen_tls_cert.is_some() })
}
