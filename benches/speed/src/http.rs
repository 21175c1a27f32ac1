//! The load: HTTP/1.1 with keep-alive, a cycle is a `POST` and a `DELETE` of a name of its own on one
//! connection. Reads as much of an answer as the cycle needs, so that the load is cheap.

use std::cell::RefCell;
use std::io::{Read, Write};
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::task::LocalSet;

use crate::Failure;
use crate::floor::repeat;
use crate::stats::Run;

const BODY: &str = r#"{"ttl":"30s"}"#;

/// Whether the service says so.
pub fn is_ready(address: SocketAddr) -> bool {
    let ask = || -> std::io::Result<bool> {
        let mut stream = std::net::TcpStream::connect(address)?;
        stream.set_read_timeout(Some(Duration::from_secs(1)))?;
        stream.write_all(b"GET /health/ready HTTP/1.1\r\nhost: bench\r\nconnection: close\r\n\r\n")?;
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer)?;
        Ok(answer.starts_with(b"HTTP/1.1 200"))
    };
    ask().unwrap_or(false)
}

/// So many connections, each with one cycle after the other.
pub async fn drive(address: SocketAddr, crowd: usize, length: Duration) -> Result<Run, Failure> {
    LocalSet::new()
        .run_until(async {
            let mut connections = Vec::new();
            for _ in 0..crowd {
                let stream = TcpStream::connect(address).await?;
                stream.set_nodelay(true)?;
                connections.push(Rc::new(RefCell::new(Some(Connection { stream, buffer: Vec::with_capacity(4_096) }))));
            }
            repeat(crowd, length, move |who, number| {
                let connection = Rc::clone(&connections[who]);
                async move {
                    let Some(mut taken) = connection.borrow_mut().take() else { return false };
                    let done = taken.cycle(who, number).await;
                    *connection.borrow_mut() = Some(taken);
                    done.unwrap_or(false)
                }
            })
            .await
        })
        .await
}

struct Connection {
    stream: TcpStream,
    buffer: Vec<u8>,
}

impl Connection {
    async fn cycle(&mut self, who: usize, number: u64) -> std::io::Result<bool> {
        let post = format!(
            "POST /locks/http-{who}-{number} HTTP/1.1\r\nhost: bench\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n{BODY}",
            BODY.len()
        );
        let (status, token) = self.ask(&post).await?;
        let Some(token) = token.filter(|_| status == 201) else { return Ok(false) };
        let delete =
            format!("DELETE /locks/http-{who}-{number} HTTP/1.1\r\nhost: bench\r\nlock-token: {token}\r\n\r\n");
        Ok(self.ask(&delete).await?.0 == 204)
    }

    /// The status, and the token where there is one.
    async fn ask(&mut self, request: &str) -> std::io::Result<(u16, Option<String>)> {
        self.stream.write_all(request.as_bytes()).await?;
        self.buffer.clear();
        let end = loop {
            if self.stream.read_buf(&mut self.buffer).await? == 0 {
                return Err(std::io::ErrorKind::UnexpectedEof.into());
            }
            if let Some(at) = self.buffer.windows(4).position(|w| w == b"\r\n\r\n") {
                break at + 4;
            }
        };
        let head = String::from_utf8_lossy(&self.buffer[..end]).into_owned();
        let field = |name: &str| {
            let of = |line: &str| {
                line.split_once(": ").filter(|(n, _)| n.eq_ignore_ascii_case(name)).map(|(_, v)| v.to_owned())
            };
            head.lines().find_map(of)
        };
        let length = field("content-length").and_then(|n| n.parse::<usize>().ok()).unwrap_or(0);
        while self.buffer.len() < end + length {
            if self.stream.read_buf(&mut self.buffer).await? == 0 {
                return Err(std::io::ErrorKind::UnexpectedEof.into());
            }
        }
        let status = head.get(9..12).and_then(|code| code.parse().ok()).unwrap_or(0);
        Ok((status, field("lock-token")))
    }
}
