//! Options of clients' sockets: how many connections may wait to be accepted, and how long the kernel tries to reach a host that
//! no longer answers.

use std::io;
use std::net::SocketAddr;
use std::os::fd::AsFd;
use std::time::Duration;

use rustix::net::sockopt;
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio_rustls::server::TlsStream;

/// How long a host may leave data or a keep-alive probe unacknowledged: an unplugged waiter keeps its queue position for at most
/// this plus [`KEEPALIVE_IDLE`].
pub(crate) const PEER_TIMEOUT: Duration = Duration::from_secs(15);
/// Silence before the first keep-alive probe.
pub(crate) const KEEPALIVE_IDLE: Duration = Duration::from_secs(15);
/// Time between two keep-alive probes.
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(5);

/// The maximum number of connections that wait to be accepted; the kernel has its own limit (`net.core.somaxconn`, 4,096). With
/// the usual 128 the kernel drops most connections of a burst, and clients retry only a second later.
const LISTEN_BACKLOG: u32 = 4_096;

/// Listens. Port 0 selects a free one.
///
/// Errors: the operating system's.
pub(crate) fn listen(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = if address.is_ipv4() { TcpSocket::new_v4() } else { TcpSocket::new_v6() }?;
    // Connections of a previous run in TIME_WAIT must not prevent a restart.
    socket.set_reuseaddr(true)?;
    socket.bind(address)?;
    socket.listen(LISTEN_BACKLOG)
}

/// Sets the options of an accepted connection. If one cannot be set, this is logged, and the connection is used without it.
pub(crate) fn configure(stream: &TcpStream) {
    let set = || -> io::Result<()> {
        stream.set_nodelay(true)?;
        sockopt::set_socket_keepalive(stream, true)?;
        sockopt::set_tcp_keepidle(stream, KEEPALIVE_IDLE)?;
        sockopt::set_tcp_keepintvl(stream, KEEPALIVE_INTERVAL)?;
        set_user_timeout(stream, PEER_TIMEOUT)
    };
    if let Err(error) = set() {
        tracing::debug!(%error, "a socket option could not be set");
    }
}

/// Source: Linux `TCP_USER_TIMEOUT`, tcp(7); RFC 5482.
fn set_user_timeout(stream: impl AsFd, limit: Duration) -> io::Result<()> {
    let ms = u32::try_from(limit.as_millis()).unwrap_or(u32::MAX).max(1);
    Ok(sockopt::set_tcp_user_timeout(stream, ms)?)
}

/// A stream over a socket, plain or TLS.
pub(crate) trait LossTimeout {
    /// From now on the connection ends when sent data stays unacknowledged for this long, at most [`PEER_TIMEOUT`].
    fn set_loss_timeout(&self, limit: Duration);
}

impl LossTimeout for TcpStream {
    fn set_loss_timeout(&self, limit: Duration) {
        if let Err(error) = set_user_timeout(self, limit.min(PEER_TIMEOUT)) {
            tracing::debug!(%error, "TCP_USER_TIMEOUT could not be set");
        }
    }
}

impl LossTimeout for TlsStream<TcpStream> {
    fn set_loss_timeout(&self, limit: Duration) {
        self.get_ref().0.set_loss_timeout(limit);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn accepted_sockets_have_keepalive_and_a_user_timeout_that_can_only_be_shortened() {
        let listener = listen("127.0.0.1:0".parse().expect("an address")).expect("a free port");
        let _client = TcpStream::connect(listener.local_addr().expect("bound")).await.expect("loopback");
        let (stream, _) = listener.accept().await.expect("one");
        configure(&stream);
        let user_timeout = || sockopt::tcp_user_timeout(&stream).expect("an option");
        assert!(sockopt::socket_keepalive(&stream).expect("an option") && stream.nodelay().expect("an option"));
        assert_eq!(user_timeout(), 15_000);
        stream.set_loss_timeout(Duration::from_millis(250));
        assert_eq!(user_timeout(), 250);
        stream.set_loss_timeout(Duration::from_hours(1));
        assert_eq!(user_timeout(), 15_000, "never longer than for other connections");
    }
}
