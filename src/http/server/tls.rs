//! TLS at the door: rustls with ring, TLS 1.2 and 1.3, certificates read from files and read again
//! when they change. Connections that are there keep what they have; the next one gets the new
//! certificate. Knows files and certificates, and no HTTP but the names that ALPN gives it.

use std::path::{Path, PathBuf};
use std::sync::{Arc, PoisonError, RwLock};

use rustls::RootCertStore;
use rustls::crypto::ring;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::{ServerConfig, ServerConnection, WebPkiClientVerifier};
use tokio_rustls::TlsAcceptor;
use webpki::EndEntityCert;

use crate::auth::key::KeyHash;
use crate::auth::principals::PeerCertificate;

/// HTTP/2, as ALPN calls it.
pub const ALPN_H2: &[u8] = b"h2";
/// HTTP/1.1, as ALPN calls it.
const ALPN_HTTP1: &[u8] = b"http/1.1";
/// The most names of a client's certificate that are looked at.
const NAMES_MAX: usize = 64;

/// The files that make the door speak TLS.
#[derive(Debug, Clone)]
pub struct TlsFiles {
    /// The certificate and what leads to its authority, PEM.
    pub cert: PathBuf,
    /// Its private key, PEM.
    pub key: PathBuf,
    /// The authorities that may vouch for clients, PEM; none: clients' certificates are not asked for.
    pub client_ca: Option<PathBuf>,
}

impl TlsFiles {
    /// All of them.
    pub fn paths(&self) -> Vec<PathBuf> {
        [Some(&self.cert), Some(&self.key), self.client_ca.as_ref()].into_iter().flatten().cloned().collect()
    }
}

/// Why there is no TLS. Never repeats what is in a file.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// A file cannot be read, or does not hold what it should.
    #[error("{path} {why}")]
    File {
        /// Which.
        path: PathBuf,
        /// In a few words.
        why: String,
    },
    /// What the files hold does not go together.
    #[error("certificate and key cannot be used: {0}")]
    Unusable(rustls::Error),
    /// No client could be checked.
    #[error("the authorities for clients cannot be used: {0}")]
    Clients(String),
}

/// The door's side of TLS. What is in force is replaced as a whole.
pub struct Tls {
    files: TlsFiles,
    current: RwLock<Arc<ServerConfig>>,
}

impl std::fmt::Debug for Tls {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Tls").field("files", &self.files).finish_non_exhaustive()
    }
}

impl Tls {
    /// From files. Errors: [`TlsError`].
    pub fn read(files: TlsFiles) -> Result<Self, TlsError> {
        let current = RwLock::new(Arc::new(config(&files)?));
        Ok(Self { files, current })
    }

    /// Reads the files again. Errors: [`TlsError`]; what was in force stays.
    pub fn reload(&self) -> Result<(), TlsError> {
        let new = Arc::new(config(&self.files)?);
        *self.current.write().unwrap_or_else(PoisonError::into_inner) = new;
        Ok(())
    }

    /// Its files.
    pub fn files(&self) -> &TlsFiles {
        &self.files
    }

    /// For the next connection.
    pub fn acceptor(&self) -> TlsAcceptor {
        TlsAcceptor::from(Arc::clone(&self.current.read().unwrap_or_else(PoisonError::into_inner)))
    }
}

fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let wrong = |why: String| TlsError::File { path: path.to_owned(), why };
    let read = CertificateDer::pem_file_iter(path).and_then(Iterator::collect::<Result<Vec<_>, _>>);
    let read = read.map_err(|error| wrong(format!("cannot be read as PEM certificates: {error}")))?;
    if read.is_empty() { Err(wrong("holds no certificate".to_owned())) } else { Ok(read) }
}

fn config(files: &TlsFiles) -> Result<ServerConfig, TlsError> {
    let chain = certificates(&files.cert)?;
    let key = PrivateKeyDer::from_pem_file(&files.key)
        .map_err(|_| TlsError::File { path: files.key.clone(), why: "holds no private key in PEM".to_owned() })?;
    let provider = Arc::new(ring::default_provider());
    let builder = ServerConfig::builder_with_provider(Arc::clone(&provider))
        .with_protocol_versions(rustls::DEFAULT_VERSIONS)
        .map_err(TlsError::Unusable)?;
    let builder = match &files.client_ca {
        None => builder.with_no_client_auth(),
        Some(path) => {
            let mut roots = RootCertStore::empty();
            for certificate in certificates(path)? {
                roots.add(certificate).map_err(|error| TlsError::Clients(error.to_string()))?;
            }
            // Optional: whoever shows none may still have a key.
            let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider)
                .allow_unauthenticated()
                .build()
                .map_err(|error| TlsError::Clients(error.to_string()))?;
            builder.with_client_cert_verifier(verifier)
        }
    };
    let mut config = builder.with_single_cert(chain, key).map_err(TlsError::Unusable)?;
    config.alpn_protocols = vec![ALPN_H2.to_vec(), ALPN_HTTP1.to_vec()];
    Ok(config)
}

/// What matters of the certificate that the client has shown and that was checked; `None` without one.
pub fn peer(connection: &ServerConnection) -> Option<Arc<PeerCertificate>> {
    let der = connection.peer_certificates()?.first()?;
    let certificate = EndEntityCert::try_from(der).ok()?;
    Some(Arc::new(PeerCertificate {
        dns: certificate.valid_dns_names().take(NAMES_MAX).map(str::to_ascii_lowercase).collect(),
        uris: certificate.valid_uri_names().take(NAMES_MAX).map(str::to_owned).collect(),
        fingerprint: KeyHash::of(der),
    }))
}

#[cfg(test)]
mod tests {
    use rcgen::{CertifiedKey, generate_simple_self_signed};

    use super::*;

    struct Files {
        dir: tempfile::TempDir,
    }

    impl Files {
        fn new() -> Self {
            let files = Self { dir: tempfile::tempdir().expect("a directory") };
            files.renew();
            files
        }

        /// Another certificate with its key.
        fn renew(&self) {
            let CertifiedKey { cert, signing_key } =
                generate_simple_self_signed(["localhost".to_owned()]).expect("made");
            self.write("cert", &cert.pem());
            self.write("key", &signing_key.serialize_pem());
        }

        fn write(&self, name: &str, text: &str) {
            std::fs::write(self.dir.path().join(name), text).expect("writable");
        }

        fn named(&self) -> TlsFiles {
            TlsFiles { cert: self.dir.path().join("cert"), key: self.dir.path().join("key"), client_ca: None }
        }
    }

    #[test]
    fn what_cannot_be_used_is_named_and_leaves_what_was_in_force() {
        let files = Files::new();
        let tls = Tls::read(files.named()).expect("good");
        let before = Arc::as_ptr(&tls.current.read().expect("not poisoned"));
        let old_key = std::fs::read_to_string(files.named().key).expect("readable");
        files.renew();
        for (name, text, word) in
            [("key", old_key.as_str(), "cannot be used"), ("key", "", "no private key"), ("cert", "", "no certificate")]
        {
            files.write(name, text);
            let error = tls.reload().expect_err(name).to_string();
            assert!(error.contains(word) && !error.contains("PRIVATE"), "{error}");
            assert_eq!(before, Arc::as_ptr(&tls.current.read().expect("not poisoned")));
        }
        files.renew();
        tls.reload().expect("good again");
        assert_ne!(before, Arc::as_ptr(&tls.current.read().expect("not poisoned")));
        let gone = TlsFiles { cert: "/nowhere/cert".into(), ..files.named() };
        assert!(Tls::read(gone).expect_err("not there").to_string().contains("/nowhere/cert"));
        let no_ca = TlsFiles { client_ca: Some(files.named().key), ..files.named() };
        assert!(Tls::read(no_ca).expect_err("a key is no authority").to_string().contains("no certificate"));
    }
}
