//! The socket to a node, with or without TLS. Opened here, so that [`super::reply_limit`] can bound the data that the node sends.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use deadpool_redis::redis::{ConnectionAddr, ConnectionInfo};
use rustls::client::Resumption;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpStream, UnixStream};
use tokio_rustls::TlsConnector;

use super::url::NodeTls;
use crate::types::Invalid;

/// Where Linux distributions keep the certificate authorities of the machine: Debian, Red Hat, SUSE, Alpine.
const SYSTEM_AUTHORITIES: [&str; 4] = [
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/ca-bundle.pem",
    "/etc/ssl/cert.pem",
];

/// A connected socket.
pub(super) trait Socket: AsyncRead + AsyncWrite + Unpin + Send {}

impl<S: AsyncRead + AsyncWrite + Unpin + Send> Socket for S {}

/// The address of a node, and the kind of connection.
#[derive(Clone)]
pub(super) enum NodeAddress {
    Tcp { host: String, port: u16, tls: Option<Arc<ClientConfig>> },
    Unix(PathBuf),
}

impl NodeAddress {
    /// Errors: [`Invalid`] for certificates that cannot be used.
    pub(super) fn new(info: &ConnectionInfo, tls: Option<&NodeTls>) -> Result<Self, Invalid> {
        Ok(match info.addr() {
            ConnectionAddr::Tcp(host, port) => Self::Tcp { host: host.clone(), port: *port, tls: None },
            ConnectionAddr::TcpTls { host, port, .. } => {
                let config = client_config(&tls.cloned().unwrap_or_default())
                    .ok_or_else(|| Invalid("the certificates for the node cannot be used".to_owned()))?;
                Self::Tcp { host: host.clone(), port: *port, tls: Some(Arc::new(config)) }
            }
            ConnectionAddr::Unix(path) => Self::Unix(path.clone()),
            _ => return Err(Invalid("the kind of address is not supported".to_owned())),
        })
    }

    /// The same kind of connection to another address: `host:port`, or the path of a socket. `None`: it is neither.
    pub(super) fn at(&self, address: &str) -> Option<Self> {
        if address.starts_with('/') {
            return Some(Self::Unix(address.into()));
        }
        let (host, port) = address.rsplit_once(':')?;
        let host = host.trim_start_matches('[').trim_end_matches(']');
        let tls = match self {
            Self::Tcp { tls, .. } => tls.clone(),
            Self::Unix(_) => None,
        };
        let port = port.parse().ok().filter(|port| *port > 0)?;
        (!host.is_empty()).then(|| Self::Tcp { host: host.to_owned(), port, tls })
    }

    /// Connects. Errors: those of the socket, and of the TLS hand-shake. Cancel: the socket is closed.
    pub(super) async fn connect(&self) -> io::Result<Box<dyn Socket>> {
        Ok(match self {
            Self::Unix(path) => Box::new(UnixStream::connect(path).await?),
            Self::Tcp { host, port, tls } => {
                let socket = TcpStream::connect((host.as_str(), *port)).await?;
                socket.set_nodelay(true)?;
                match tls {
                    None => Box::new(socket),
                    Some(config) => {
                        let name = ServerName::try_from(host.clone()).map_err(io::Error::other)?;
                        Box::new(TlsConnector::from(Arc::clone(config)).connect(name, socket).await?)
                    }
                }
            }
        })
    }
}

/// `None`: the PEM is not of the right kind. The cause is left out, because an error may quote it.
fn client_config(tls: &NodeTls) -> Option<ClientConfig> {
    let mut roots = RootCertStore::empty();
    match &tls.ca {
        Some(pem) => {
            for certificate in CertificateDer::pem_slice_iter(pem) {
                roots.add(certificate.ok()?).ok()?;
            }
        }
        None => {
            let file = SYSTEM_AUTHORITIES.iter().find_map(|path| CertificateDer::pem_file_iter(path).ok());
            // A machine's list may have certificates that rustls does not accept.
            roots.add_parsable_certificates(file.into_iter().flatten().filter_map(Result::ok));
        }
    }
    let config = ClientConfig::builder().with_root_certificates(roots);
    let mut config = match &tls.client {
        None => config.with_no_client_auth(),
        Some((chain, key)) => {
            let chain = CertificateDer::pem_slice_iter(chain).collect::<Result<Vec<_>, _>>().ok()?;
            config.with_client_auth_cert(chain, PrivateKeyDer::from_pem_slice(key).ok()?).ok()?
        }
    };
    // A resumed session would not check the node's certificate again, which may have expired.
    config.resumption = Resumption::disabled();
    Some(config)
}
