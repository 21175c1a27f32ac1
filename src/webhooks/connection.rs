//! One request over one connection: the address is checked when it is used, TLS is used if the URL demands it, and the
//! bytes that are read are bounded, since the receiver decides how much it sends before the head of its answer ends.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use axum::http::header::{ACCEPT, HOST, USER_AGENT};
use axum::http::{HeaderMap, HeaderValue, Method, Request, Response};
use bytes::Bytes;
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use reqwest::Url;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use rustls_platform_verifier::ConfigVerifierExt;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

use super::allowed_addresses::AddressPolicy;
use super::resolver::{self, AddressRefused, Lookup};
use super::target::literal_address;

/// Maximum that is read from one connection: certificates, interim answers (1xx), and the head of the answer. Bytes.
pub const TRY_READ_MAX_BYTES: usize = 256 << 10;
/// How long one address may take to accept a connection before the next address is tried.
const ADDRESS_TIMEOUT: Duration = Duration::from_secs(3);

/// The authorities that verify the certificates of receivers.
#[derive(Debug, Clone, Copy)]
pub enum Authorities<'a> {
    /// The authorities of the system.
    System,
    /// None: for plain HTTP.
    None,
    /// These authorities, and no others.
    Pem(&'a [u8]),
}

/// Why there was no answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum NoAnswer {
    /// A rule forbids every address.
    Blocked(&'static str),
    /// In a few words of ours: the text of an error may contain the URL, or what the receiver wrote.
    Failed(&'static str),
}

const UNKNOWN: NoAnswer = NoAnswer::Failed("no connection: its name is not known, or nobody answers there");
const NOT_TRUSTED: NoAnswer = NoAnswer::Failed("its certificate is not accepted, or TLS failed");
const NOT_HTTP: NoAnswer = NoAnswer::Failed("it closed the connection, or its answer is not HTTP");

/// Connects to targets that have the same rules.
#[derive(Clone)]
pub struct Connector {
    /// Which addresses are allowed.
    pub(super) policy: AddressPolicy,
    lookup: Arc<dyn Lookup>,
    /// `None`: plain HTTP only.
    tls: Option<Arc<ClientConfig>>,
}

impl Connector {
    /// A connector with this policy.
    ///
    /// Errors: one sentence.
    pub fn new(policy: AddressPolicy, lookup: Arc<dyn Lookup>, authorities: Authorities<'_>) -> Result<Self, String> {
        let unusable = |error: rustls::Error| format!("cannot be used: {error}");
        let tls = match authorities {
            Authorities::None => None,
            Authorities::System => Some(ClientConfig::with_platform_verifier().map_err(unusable)?),
            Authorities::Pem(pem) => {
                let mut roots = RootCertStore::empty();
                roots.add_parsable_certificates(CertificateDer::pem_slice_iter(pem).filter_map(Result::ok));
                if roots.is_empty() {
                    return Err("has no certificate in PEM".to_owned());
                }
                Some(ClientConfig::builder().with_root_certificates(roots).with_no_client_auth())
            }
        };
        Ok(Self { policy, lookup, tls: tls.map(Arc::new) })
    }

    /// Sends a request, and returns the head of its answer. The body is not read, and the connection ends.
    ///
    /// Cancel: the request may have arrived.
    pub(super) async fn exchange(
        &self,
        url: &Url,
        method: Method,
        mut headers: HeaderMap,
        body: Bytes,
    ) -> Result<Response<()>, NoAnswer> {
        let host = url.host_str().unwrap_or_default();
        let authority = url.port().map_or_else(|| host.to_owned(), |port| format!("{host}:{port}"));
        headers.insert(HOST, HeaderValue::from_str(&authority).map_err(|_| UNKNOWN)?);
        headers.insert(ACCEPT, HeaderValue::from_static("*/*"));
        headers.insert(USER_AGENT, HeaderValue::from_static(concat!("redlockd/", env!("CARGO_PKG_VERSION"))));
        let target = url.query().map_or_else(|| url.path().to_owned(), |query| format!("{}?{query}", url.path()));
        let mut request = Request::builder().method(method).uri(target).body(Full::new(body)).map_err(|_| NOT_HTTP)?;
        *request.headers_mut() = headers;
        let stream = Bounded { stream: self.connect(url).await?, left: TRY_READ_MAX_BYTES };
        let Some(config) = self.tls.as_ref().filter(|_| url.scheme() == "https") else {
            return head(stream, request).await;
        };
        let name = ServerName::try_from(host.trim_matches(['[', ']']).to_owned()).map_err(|_| NOT_TRUSTED)?;
        let connected = TlsConnector::from(Arc::clone(config)).connect(name, stream).await;
        head(connected.map_err(|error| closed(&error).unwrap_or(NOT_TRUSTED))?, request).await
    }

    /// Connects to the first address that accepts.
    async fn connect(&self, url: &Url) -> Result<TcpStream, NoAnswer> {
        let port = url.port_or_known_default().ok_or(UNKNOWN)?;
        let found: Vec<IpAddr> = match (literal_address(url), url.host_str()) {
            (Some(ip), _) => vec![ip],
            (None, Some(name)) => self.lookup.lookup(name.to_owned()).await.map_err(|_| UNKNOWN)?,
            (None, None) => return Err(UNKNOWN),
        };
        let allowed = resolver::allowed(&found, self.policy);
        let mut failed = UNKNOWN;
        for ip in allowed.map_err(|AddressRefused(rule)| NoAnswer::Blocked(rule.0))? {
            match tokio::time::timeout(ADDRESS_TIMEOUT, TcpStream::connect(SocketAddr::new(ip, port))).await {
                Ok(Ok(stream)) => return Ok(stream),
                Ok(Err(error)) => failed = closed(&error).unwrap_or(UNKNOWN),
                Err(_) => failed = UNKNOWN,
            }
        }
        Err(failed)
    }
}

fn closed(error: &io::Error) -> Option<NoAnswer> {
    match error.kind() {
        io::ErrorKind::ConnectionRefused => Some(NoAnswer::Failed("it refused the connection")),
        io::ErrorKind::ConnectionReset => Some(NoAnswer::Failed("it closed the connection")),
        _ => None,
    }
}

async fn head<S>(stream: S, request: Request<Full<Bytes>>) -> Result<Response<()>, NoAnswer>
where
    S: AsyncRead + AsyncWrite + Send + Unpin + 'static,
{
    let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await.map_err(|_| NOT_HTTP)?;
    let answer = sender.send_request(request);
    tokio::pin!(answer);
    let answer: hyper::Result<Response<Incoming>> = tokio::select! {
        biased;
        answer = &mut answer => answer,
        // The connection has ended, with the answer or without.
        _ = connection => answer.await,
    };
    answer.map(|answer| answer.map(drop)).map_err(|error| {
        let mut cause = std::error::Error::source(&error);
        while let Some(inner) = cause {
            if let Some(closed) = inner.downcast_ref().and_then(closed) {
                return closed;
            }
            cause = inner.source();
        }
        NOT_HTTP
    })
}

/// A connection from which at most `left` bytes and one buffer more are read; a further read is an error. Without the
/// bound, a receiver that sends interim answers without end would occupy the task's thread for ever.
struct Bounded {
    stream: TcpStream,
    left: usize,
}

impl AsyncRead for Bounded {
    fn poll_read(mut self: Pin<&mut Self>, context: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        if self.left == 0 {
            return Poll::Ready(Err(io::Error::other("the answer is too long")));
        }
        let before = buf.filled().len();
        ready!(Pin::new(&mut self.stream).poll_read(context, buf))?;
        self.left = self.left.saturating_sub(buf.filled().len() - before);
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Bounded {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(context, buf)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}
