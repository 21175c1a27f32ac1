//! Callers' sockets: how many may wait to be accepted, and how long the kernel tries to reach a host that no longer answers. Apart from
//! [`crate::http::server`], since a handler may ask for a shorter time than its listener has. Knows no HTTP.

use std::io;
use std::net::SocketAddr;
use std::os::fd::AsFd;
use std::pin::Pin;
use std::sync::{Arc, Weak};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use rustix::net::sockopt;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpSocket, TcpStream};

/// How long a host may leave what it was sent, or a keep-alive probe, without an answer: a waiter
/// that was unplugged keeps its place no longer than this and [`KEEPALIVE_IDLE`].
pub const PEER_TIMEOUT: Duration = Duration::from_secs(15);
/// Silence before the first probe. A parked waiter costs its host this many seconds' worth of a packet.
pub const KEEPALIVE_IDLE: Duration = Duration::from_secs(15);
/// Between probes.
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(5);

/// The most connections that wait to be accepted; the kernel has a bound of its own
/// (`net.core.somaxconn`, 4,096). With the 128 that is usual, a crowd that comes at once has most of
/// its connections dropped by the kernel, and tried again a second later.
const LISTEN_BACKLOG: u32 = 4_096;

/// Listens. Port 0 takes a free one.
///
/// Errors: the operating system's.
pub fn listen(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = if address.is_ipv4() { TcpSocket::new_v4() } else { TcpSocket::new_v6() }?;
    // What a run before this one left behind must not keep the next one from starting.
    socket.set_reuseaddr(true)?;
    socket.bind(address)?;
    socket.listen(LISTEN_BACKLOG)
}

/// An accepted connection.
pub struct Socket(Arc<TcpStream>);

/// What a request's handler may do with the connection it came on.
#[derive(Clone)]
pub struct ConnectionHandle(Weak<TcpStream>);

impl Socket {
    /// Has the kernel look after the other end. Where an option cannot be set, the connection is
    /// used without it.
    pub fn new(stream: TcpStream) -> Self {
        let set = || -> io::Result<()> {
            stream.set_nodelay(true)?;
            sockopt::set_socket_keepalive(&stream, true)?;
            sockopt::set_tcp_keepidle(&stream, KEEPALIVE_IDLE)?;
            sockopt::set_tcp_keepintvl(&stream, KEEPALIVE_INTERVAL)?;
            set_user_timeout(&stream, PEER_TIMEOUT)
        };
        if let Err(error) = set() {
            tracing::debug!(%error, "a socket option could not be set");
        }
        Self(Arc::new(stream))
    }

    /// For the requests of this connection.
    pub fn handle(&self) -> ConnectionHandle {
        ConnectionHandle(Arc::downgrade(&self.0))
    }
}

impl ConnectionHandle {
    /// The other end's address; `None` once the connection is gone.
    pub fn peer(&self) -> Option<SocketAddr> {
        self.0.upgrade()?.peer_addr().ok()
    }

    /// From now on the connection ends when what was sent has not been answered for this long,
    /// at most [`PEER_TIMEOUT`].
    ///
    /// Source: Linux `TCP_USER_TIMEOUT`, tcp(7); RFC 5482.
    pub fn notice_loss_within(&self, limit: Duration) {
        let Some(stream) = self.0.upgrade() else { return };
        if let Err(error) = set_user_timeout(stream.as_ref(), limit.min(PEER_TIMEOUT)) {
            tracing::debug!(%error, "TCP_USER_TIMEOUT could not be set");
        }
    }
}

fn set_user_timeout(stream: impl AsFd, limit: Duration) -> io::Result<()> {
    let ms = u32::try_from(limit.as_millis()).unwrap_or(u32::MAX).max(1);
    Ok(sockopt::set_tcp_user_timeout(stream, ms)?)
}

impl AsyncRead for Socket {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, into: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        loop {
            ready!(self.0.poll_read_ready(cx))?;
            // Nothing is zeroed first: of a waiter's buffer only the part that was written needs memory.
            match self.0.try_read_buf(into) {
                Ok(_) => return Poll::Ready(Ok(())),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => return Poll::Ready(Err(error)),
            }
        }
    }
}

impl Socket {
    fn poll_send(
        &self,
        cx: &mut Context<'_>,
        send: impl Fn(&TcpStream) -> io::Result<usize>,
    ) -> Poll<io::Result<usize>> {
        loop {
            ready!(self.0.poll_write_ready(cx))?;
            match send(&self.0) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                sent => return Poll::Ready(sent),
            }
        }
    }
}

impl AsyncWrite for Socket {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.poll_send(cx, |stream| stream.try_write(bytes))
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        parts: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.poll_send(cx, |stream| stream.try_write_vectored(parts))
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(match rustix::net::shutdown(self.0.as_ref(), rustix::net::Shutdown::Write) {
            Err(rustix::io::Errno::NOTCONN) | Ok(()) => Ok(()),
            Err(error) => Err(error.into()),
        })
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpListener;

    use super::*;

    async fn pair() -> (Socket, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let client = TcpStream::connect(listener.local_addr().expect("bound")).await.expect("loopback");
        (Socket::new(listener.accept().await.expect("one").0), client)
    }

    #[tokio::test]
    async fn the_kernel_looks_after_the_other_end_and_a_handler_may_shorten_it() {
        let (socket, _client) = pair().await;
        let set = |socket: &Socket| sockopt::tcp_user_timeout(socket.0.as_ref()).expect("an option");
        assert!(sockopt::socket_keepalive(socket.0.as_ref()).expect("an option"));
        assert_eq!(set(&socket), 15_000);
        let handle = socket.handle();
        handle.notice_loss_within(Duration::from_millis(250));
        assert_eq!(set(&socket), 250);
        handle.notice_loss_within(Duration::from_hours(1));
        assert_eq!(set(&socket), 15_000, "never longer than for anybody else");
        drop(socket);
        handle.notice_loss_within(Duration::from_secs(1));
    }

    #[tokio::test]
    async fn bytes_pass_both_ways_and_the_end_is_told() {
        let (mut socket, mut client) = pair().await;
        client.write_all(b"question").await.expect("sent");
        let mut seen = [0; 8];
        socket.read_exact(&mut seen).await.expect("read");
        assert_eq!(&seen, b"question");
        socket.write_all(b"answer").await.expect("sent");
        socket.shutdown().await.expect("shut");
        let mut all = Vec::new();
        client.read_to_end(&mut all).await.expect("read");
        assert_eq!(all, b"answer");
    }
}
