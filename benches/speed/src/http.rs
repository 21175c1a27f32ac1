//! The load: HTTP/1.1 with keep-alive, one connection per worker. A cycle is a `POST` and a `DELETE` of a name of its
//! own. It parses only as much of a response as the cycle needs, so that the load is cheap.

use std::cell::{Cell, RefCell};
use std::io::{self, Read, Write};
use std::net::SocketAddr;
use std::ops::Range;
use std::rc::Rc;
use std::time::{Duration, Instant};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::Failure;
use crate::stats::Run;
use crate::workers::{Until, repeat};

/// Whether the service says so.
pub fn is_ready(address: SocketAddr) -> bool {
    get(address, "/health/ready").is_ok_and(|answer| answer.starts_with("HTTP/1.1 200"))
}

/// The whole answer to one request on a connection of its own; waits for it.
///
/// Errors: what the connection says.
pub fn get(address: SocketAddr, path: &str) -> io::Result<String> {
    let mut stream = std::net::TcpStream::connect(address)?;
    stream.set_read_timeout(Some(Duration::from_secs(10)))?;
    write!(stream, "GET {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n")?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    Ok(answer)
}

/// So many connections, each with one `cycle` after the other.
pub async fn drive(
    address: SocketAddr,
    connections: usize,
    until: Until,
    cycle: impl AsyncFn(&mut Connection, u64) -> io::Result<bool> + 'static,
) -> Result<Run, Failure> {
    let received = Rc::new(Received::default());
    let mut opened = Vec::new();
    for _ in 0..connections {
        opened.push(Connection::open(address, Rc::clone(&received)).await?);
    }
    let last = Rc::clone(&received);
    let of_one = async move |connection: &mut Connection, number| {
        let done = cycle(connection, number).await;
        if !matches!(done, Ok(true)) && last.refusal.borrow().is_none() {
            let said = done.as_ref().map_or_else(|error| error.to_string(), |_| connection.said());
            *last.refusal.borrow_mut() = Some(said);
        }
        done.unwrap_or(false)
    };
    let mut run = repeat(opened, until, of_one).await?;
    run.longest = received.longest.get();
    if let Some(refusal) = received.refusal.take() {
        eprintln!("the first of {} cycles that failed received: {refusal}", run.errors);
    }
    Ok(run)
}

/// Acquires and releases a lock of its own.
pub async fn cycle(connection: &mut Connection, number: u64) -> io::Result<bool> {
    Ok(acquire(connection, number, "30s").await? && release(connection, number).await?)
}

/// Acquires a lock of that number.
pub async fn acquire(connection: &mut Connection, number: u64, ttl: &str) -> io::Result<bool> {
    connection.begin();
    write!(
        connection.out,
        "POST /locks/http-{number} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n{{\"ttl\":\"{ttl}\"}}",
        ttl.len() + 10
    )?;
    let answer = connection.ask().await?;
    connection.keep_token(&answer);
    Ok(answer.status == 201)
}

/// Releases it with the token of the last acquire.
pub async fn release(connection: &mut Connection, number: u64) -> io::Result<bool> {
    connection.begin();
    write!(connection.out, "DELETE /locks/http-{number} HTTP/1.1\r\nhost: localhost\r\nlock-token: ")?;
    connection.put_token();
    connection.out.extend_from_slice(b"\r\n\r\n");
    Ok(connection.ask().await?.status == 204)
}

/// What a cycle needs of an answer. The ranges are of the connection's buffer.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Answer {
    /// Of the status line.
    pub status: u16,
    /// Where the body is.
    pub body: Range<usize>,
    token: Range<usize>,
}

/// What the connections of one run have received.
#[derive(Debug, Default)]
pub struct Received {
    longest: Cell<Duration>,
    refusal: RefCell<Option<String>>,
}

/// One connection; its buffers are used again.
pub struct Connection {
    stream: TcpStream,
    /// The request in the making.
    pub out: Vec<u8>,
    buffer: Vec<u8>,
    token: Vec<u8>,
    received: Rc<Received>,
    /// What a cycle wants to find again in the next one.
    pub notes: Option<String>,
}

impl Connection {
    /// Opens one, which leaves what is said of all connections in `received`.
    ///
    /// Errors: what connecting says.
    pub async fn open(address: SocketAddr, received: Rc<Received>) -> io::Result<Self> {
        let stream = TcpStream::connect(address).await?;
        stream.set_nodelay(true)?;
        let (out, buffer, token) = (Vec::with_capacity(512), Vec::with_capacity(4_096), Vec::with_capacity(64));
        Ok(Self { stream, out, buffer, token, received, notes: None })
    }

    /// Forgets the last request.
    pub fn begin(&mut self) {
        self.out.clear();
    }

    /// The bytes of an answer's range.
    pub fn bytes(&self, range: &Range<usize>) -> &[u8] {
        &self.buffer[range.clone()]
    }

    /// Status line and body of the last answer.
    fn said(&self) -> String {
        let text = String::from_utf8_lossy(&self.buffer);
        let body = text.split_once("\r\n\r\n").map_or("", |(_, body)| body);
        format!("{} {body}", text.lines().next().unwrap_or_default())
    }

    /// Takes the token out of an answer.
    pub fn keep_token(&mut self, answer: &Answer) {
        self.token.clear();
        self.token.extend_from_slice(&self.buffer[answer.token.clone()]);
    }

    /// Puts the kept token into the request.
    pub fn put_token(&mut self) {
        self.out.extend_from_slice(&self.token);
    }

    /// Sends what is in `out`, and reads the answer.
    ///
    /// Errors: those of the connection, and where it ends.
    pub async fn ask(&mut self) -> io::Result<Answer> {
        let asked = Instant::now();
        self.stream.write_all(&self.out).await?;
        self.buffer.clear();
        loop {
            if self.stream.read_buf(&mut self.buffer).await? == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            if let Some(answer) = read(&self.buffer) {
                self.received.longest.set(self.received.longest.get().max(asked.elapsed()));
                return Ok(answer);
            }
        }
    }
}

/// Reads an answer, if it is all there. What is too strange to be one is an answer with status 0.
fn read(bytes: &[u8]) -> Option<Answer> {
    let mut answer = Answer::default();
    let (mut at, mut length) = (0, 0);
    for end in memchr::memchr_iter(b'\n', bytes) {
        let line = &bytes[at..end];
        if line == b"\r" || line.is_empty() {
            answer.body = end + 1..end + 1 + length;
            return (bytes.len() >= answer.body.end).then_some(answer);
        }
        if at == 0 {
            answer.status = number(line.get(9..12).unwrap_or_default()) as u16;
        } else if let Some(value) = value(line, b"lock-token:") {
            answer.token = at + value.start..at + value.end;
        } else if let Some(value) = value(line, b"content-length:") {
            length = number(&line[value]);
        }
        at = end + 1;
    }
    None
}

/// Where the value of a header of that name is in its line.
fn value(line: &[u8], name: &[u8]) -> Option<Range<usize>> {
    // The first letter distinguishes nearly all headers.
    if line.first()? | 0x20 != name[0] || !line.get(..name.len())?.eq_ignore_ascii_case(name) {
        return None;
    }
    let value = line[name.len()..].trim_ascii();
    let begin = line.len() - line[name.len()..].trim_ascii_start().len();
    Some(begin..begin + value.len())
}

fn number(digits: &[u8]) -> usize {
    digits.iter().filter(|d| d.is_ascii_digit()).fold(0, |sum, d| sum * 10 + usize::from(d - b'0'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_are_read_when_they_are_whole() {
        let text = b"HTTP/1.1 201 Created\r\nLock-Token: abc \r\ncontent-length: 4\r\nLocation: /x\r\n\r\nbody";
        for end in 0..text.len() {
            assert_eq!(read(&text[..end]), None, "{end}");
        }
        let answer = read(text).expect("whole");
        assert_eq!((answer.status, &text[answer.token], &text[answer.body]), (201, &b"abc"[..], &b"body"[..]));
        let empty = read(b"HTTP/1.1 204 No Content\r\nx: y\r\n\r\n").expect("whole");
        assert_eq!((empty.status, empty.token.len(), empty.body.len()), (204, 0, 0));
    }
}
