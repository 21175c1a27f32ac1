//! Derives the settings of the HTTP server, authentication and the audit log from the configuration.

use std::sync::Arc;

use super::error::AppError;
use crate::audit::{self, Audit};
use crate::auth::access_file::{self, AccessFileError};
use crate::auth::authenticator::Authenticator;
use crate::auth::principal::PrincipalLimits;
use crate::config::Config;
use crate::http::server::tls::{Tls, TlsError, TlsFiles};
use crate::http::state::{HttpSettings, UiState};
use crate::manager::latency::NodeLatencies;

pub(super) fn http_settings(config: &Config) -> Result<HttpSettings, AppError> {
    HttpSettings::from_config(config).map_err(|(key, why)| AppError::Setting { key, why })
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
