//! Derives the settings of the HTTP server, authentication and the audit log from the configuration.

use std::os::unix::fs::MetadataExt;
use std::sync::Arc;

use super::error::AppError;
use crate::audit::{self, Audit};
use crate::auth::access_file;
use crate::auth::authenticator::Authenticator;
use crate::auth::principal::PrincipalLimits;
use crate::bounded_file::replaceable;
use crate::config::Config;
use crate::http::server::tls::{Tls, TlsError, TlsFiles};
use crate::http::state::{HttpSettings, UiState};
use crate::manager::latency::NodeLatencies;

pub(super) fn http_settings(config: &Config) -> Result<HttpSettings, AppError> {
    HttpSettings::from_config(config).map_err(|(key, why)| AppError::Setting { key, why })
}

/// The server's certificate, if one is configured.
///
/// Errors: [`TlsError`] of its files.
pub(super) fn server_tls(config: &Config) -> Result<Option<Tls>, TlsError> {
    let Some((cert, key)) = config.listen_tls_cert.clone().zip(config.listen_tls_key.clone()) else { return Ok(None) };
    Tls::read(TlsFiles { cert, key, client_ca: config.listen_tls_client_ca.clone() }).map(Some)
}

/// Warns of a private key that every user of the machine can read. It is still used: if the service runs alone, as in a
/// container, there is no other user.
pub(super) fn warn_of_readable_keys(config: &Config) {
    const READABLE_BY_ALL: u32 = 0o004;
    for (setting, path) in [("listen_tls_key", &config.listen_tls_key), ("tls_key", &config.tls_key)] {
        let mode = path.as_ref().and_then(|path| std::fs::metadata(path).ok()).map_or(0, |file| file.mode());
        if let (Some(path), true) = (path, mode & READABLE_BY_ALL != 0) {
            let path = path.display();
            tracing::warn!("all users of this machine can read the private key {path} (`{setting}`): chmod 600 {path}");
        }
    }
}

/// Warns of the service's own files that another user can replace or has made: the record of the leases that may be held, and the
/// audit log. They are still used: in a container's volume the owner may be unknown, and everybody may write.
pub(super) fn warn_of_replaceable_files(config: &Config) {
    for (setting, path) in [("data_dir", Some(&config.data_dir)), ("audit_log", config.audit_log.as_ref())] {
        for found in path.iter().flat_map(|path| replaceable(path, rustix::process::geteuid().as_raw())) {
            tracing::warn!("another user of this machine can replace or read what `{setting}` names: {found}");
        }
    }
}

/// Authentication by the access file; none without a file.
///
/// Errors: [`AppError::Access`], [`AppError::SecretFile`].
pub(super) fn authenticator(config: &Config) -> Result<Authenticator, AppError> {
    let Some(path) = &config.access_file else { return Ok(Authenticator::open()) };
    let limits = PrincipalLimits {
        requests_per_second: Some(config.requests_per_second),
        leases: Some(config.leases_per_principal),
        waiters: Some(config.waiters_per_principal),
    };
    let authenticator = Authenticator::with_principals(access_file::read(path)?, limits);
    Ok(match config.session_secret()? {
        Some(secret) => authenticator.with_session_secret(secret.reveal().as_bytes()),
        None => authenticator,
    })
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
    config.ui.then_some(UiState { node_latencies })
}
