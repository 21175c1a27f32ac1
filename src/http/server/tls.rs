//! TLS of the listener: rustls with the `ring` provider, TLS 1.2 and 1.3, certificates from files that can be reloaded.
//! A new certificate is used for new connections.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use parking_lot::RwLock;
use rustls::RootCertStore;
use rustls::crypto::ring;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::{NoServerSessionStorage, ServerConfig, ServerConnection, WebPkiClientVerifier};
use tokio_rustls::TlsAcceptor;
use webpki::EndEntityCert;
use x509_parser::parse_x509_certificate;

use crate::auth::api_key::KeyHash;
use crate::auth::principals::PeerCertificate;

/// HTTP/2, in ALPN's notation.
pub(crate) const ALPN_H2: &[u8] = b"h2";
/// HTTP/1.1, in ALPN's notation.
const ALPN_HTTP1: &[u8] = b"http/1.1";
/// The maximum number of names that are read from a client's certificate.
const NAMES_MAX: usize = 64;

/// The files of the listener's TLS.
#[derive(Debug, Clone)]
pub(crate) struct TlsFiles {
    /// The certificate chain, PEM.
    pub cert: PathBuf,
    /// Its private key, PEM.
    pub key: PathBuf,
    /// The authorities of client certificates, PEM; `None`: no client certificates are requested.
    pub client_ca: Option<PathBuf>,
}

impl TlsFiles {
    /// All files, to be watched for changes.
    pub(crate) fn paths(&self) -> Vec<PathBuf> {
        [Some(&self.cert), Some(&self.key), self.client_ca.as_ref()].into_iter().flatten().cloned().collect()
    }
}

/// Why TLS cannot be used. Never quotes a file's content.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// A file cannot be read, or has unexpected content.
    #[error("{path} {why}")]
    File {
        path: PathBuf,
        /// Follows the path in the message.
        why: String,
    },
    /// Certificate and key do not match, or are not supported.
    #[error("certificate and key cannot be used: {0}")]
    Unusable(rustls::Error),
    /// The authorities of client certificates are invalid.
    #[error("the authorities for clients cannot be used: {0}")]
    Clients(String),
}

/// The TLS configuration in force, which is replaced as a whole.
pub(crate) struct Tls {
    files: TlsFiles,
    current: RwLock<(Arc<ServerConfig>, i64)>,
}

impl std::fmt::Debug for Tls {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Tls").field("files", &self.files).finish_non_exhaustive()
    }
}

impl Tls {
    /// From files. Errors: [`TlsError`].
    pub(crate) fn read(files: TlsFiles) -> Result<Self, TlsError> {
        let current = RwLock::new(config(&files)?);
        Ok(Self { files, current })
    }

    /// Reads the files again. Errors: [`TlsError`]; the previous configuration then stays in force.
    pub(crate) fn reload(&self) -> Result<(), TlsError> {
        let new = config(&self.files)?;
        *self.current.write() = new;
        Ok(())
    }

    /// When the first certificate of the chain in force expires. Units: seconds since 1970.
    pub(crate) fn expires_s(&self) -> i64 {
        self.current.read().1
    }

    /// The files to watch.
    pub(crate) fn files(&self) -> &TlsFiles {
        &self.files
    }

    /// The acceptor for the next connection.
    pub(crate) fn acceptor(&self) -> TlsAcceptor {
        TlsAcceptor::from(Arc::clone(&self.current.read().0))
    }
}

fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let wrong = |why: String| TlsError::File { path: path.to_owned(), why };
    let read = CertificateDer::pem_file_iter(path).and_then(Iterator::collect::<Result<Vec<_>, _>>);
    let read = read.map_err(|error| wrong(format!("cannot be read as PEM certificates: {error}")))?;
    if read.is_empty() { Err(wrong("holds no certificate".to_owned())) } else { Ok(read) }
}

/// When the first of these certificates expires. Units: seconds since 1970. Errors: why a certificate cannot be read.
fn first_expiry_s(chain: &[CertificateDer<'_>]) -> Result<i64, String> {
    let expiry = |der: &CertificateDer<'_>| {
        let (_, certificate) = parse_x509_certificate(der).map_err(|error| error.to_string())?;
        Ok(certificate.validity().not_after.timestamp())
    };
    chain.iter().map(expiry).try_fold(i64::MAX, |first, expiry| expiry.map(|expiry| first.min(expiry)))
}

/// The configuration from the files, and when the first certificate of the chain expires.
fn config(files: &TlsFiles) -> Result<(Arc<ServerConfig>, i64), TlsError> {
    let chain = certificates(&files.cert)?;
    let wrong = |why| TlsError::File { path: files.cert.clone(), why: format!("holds no certificate: {why}") };
    let expires_s = first_expiry_s(&chain).map_err(wrong)?;
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
            // Optional: a client without a certificate may have a key.
            let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider)
                .allow_unauthenticated()
                .build()
                .map_err(|error| TlsError::Clients(error.to_string()))?;
            builder.with_client_cert_verifier(verifier)
        }
    };
    let mut config = builder.with_single_cert(chain, key).map_err(TlsError::Unusable)?;
    if files.client_ca.is_some() {
        // A resumed session would reuse the client's certificate without a new check of its dates.
        config.session_storage = Arc::new(NoServerSessionStorage {});
        config.send_tls13_tickets = 0;
    }
    config.alpn_protocols = vec![ALPN_H2.to_vec(), ALPN_HTTP1.to_vec()];
    Ok((Arc::new(config), expires_s))
}

/// The names and the fingerprint of the client's verified certificate; `None` without one.
pub(crate) fn peer(connection: &ServerConnection) -> Option<Arc<PeerCertificate>> {
    let der = connection.peer_certificates()?.first()?;
    let certificate = EndEntityCert::try_from(der).ok()?;
    let not_after_s = first_expiry_s(std::slice::from_ref(der)).ok()?;
    Some(Arc::new(PeerCertificate {
        dns: certificate.valid_dns_names().take(NAMES_MAX).map(str::to_ascii_lowercase).collect(),
        uris: certificate.valid_uri_names().take(NAMES_MAX).map(str::to_owned).collect(),
        fingerprint: KeyHash::of(der),
        not_after_s,
    }))
}

#[cfg(test)]
mod tests {
    use rcgen::{CertifiedKey, generate_simple_self_signed};

    use super::*;

    /// When certificates of `rcgen` expire: 4096-01-01.
    const RCGEN_END_S: i64 = 67_090_118_400;

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

        fn paths(&self) -> TlsFiles {
            TlsFiles { cert: self.dir.path().join("cert"), key: self.dir.path().join("key"), client_ca: None }
        }
    }

    #[test]
    fn a_chain_expires_with_its_first_certificate() {
        let mut params = rcgen::CertificateParams::new(["localhost".to_owned()]).expect("valid");
        params.not_after = rcgen::date_time_ymd(2030, 1, 1);
        let key = rcgen::KeyPair::generate().expect("made");
        let soon = params.self_signed(&key).expect("signed");
        let CertifiedKey { cert: late, signing_key } =
            generate_simple_self_signed(["localhost".to_owned()]).expect("made");
        let files = Files::new();
        files.write("cert", &format!("{}{}", late.pem(), soon.pem()));
        files.write("key", &signing_key.serialize_pem());
        assert_eq!(Tls::read(files.paths()).expect("good").expires_s(), 1_893_456_000);
    }

    #[test]
    fn sessions_are_not_resumed_where_clients_have_certificates() {
        let files = Files::new();
        for (client_ca, is_resumed) in [(None, true), (Some(files.paths().cert), false)] {
            let (config, _) = config(&TlsFiles { client_ca, ..files.paths() }).expect("good");
            assert_eq!((config.session_storage.can_cache(), config.send_tls13_tickets > 0), (is_resumed, is_resumed));
        }
    }

    #[test]
    fn invalid_files_are_named_and_the_previous_configuration_stays() {
        let files = Files::new();
        let tls = Tls::read(files.paths()).expect("good");
        let before = Arc::as_ptr(&tls.current.read().0);
        let old_key = std::fs::read_to_string(files.paths().key).expect("readable");
        files.renew();
        for (name, text, word) in
            [("key", old_key.as_str(), "cannot be used"), ("key", "", "no private key"), ("cert", "", "no certificate")]
        {
            files.write(name, text);
            let error = tls.reload().expect_err(name).to_string();
            assert!(error.contains(word) && !error.contains("PRIVATE"), "{error}");
            assert_eq!(before, Arc::as_ptr(&tls.current.read().0));
        }
        files.renew();
        assert_eq!(tls.expires_s(), RCGEN_END_S);
        tls.reload().expect("good again");
        assert_ne!(before, Arc::as_ptr(&tls.current.read().0));
        let gone = TlsFiles { cert: "/nowhere/cert".into(), ..files.paths() };
        assert!(Tls::read(gone).expect_err("not there").to_string().contains("/nowhere/cert"));
        let no_ca = TlsFiles { client_ca: Some(files.paths().key), ..files.paths() };
        assert!(Tls::read(no_ca).expect_err("a key is no authority").to_string().contains("no certificate"));
    }
}
