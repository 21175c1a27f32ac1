//! One request on a connection of its own, by hand: for load that must cost little beside what it measures.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use serde_json::Value;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// Only a hang takes this long.
const PATIENCE: Duration = Duration::from_secs(30);

/// What came back.
#[derive(Debug)]
pub struct PlainAnswer {
    /// Status code.
    pub status: u16,
    /// The body; null where it is no JSON.
    pub body: Value,
}

/// Sends a form with further headers, and reads the answer to the end of the connection.
///
/// Errors: no connection, no whole answer, or none in time.
pub async fn exchange(
    at: SocketAddr,
    method: &str,
    path: &str,
    headers: &[(&str, &str)],
    form: &str,
) -> io::Result<PlainAnswer> {
    let more: String = headers.iter().map(|(name, value)| format!("{name}: {value}\r\n")).collect();
    let request = format!(
        "{method} {path} HTTP/1.1\r\nHost: {at}\r\nConnection: close\r\n{more}\
         Content-Type: application/x-www-form-urlencoded\r\nContent-Length: {}\r\n\r\n{form}",
        form.len()
    );
    let asked = async {
        let mut stream = TcpStream::connect(at).await?;
        stream.write_all(request.as_bytes()).await?;
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).await?;
        let text = String::from_utf8_lossy(&answer).into_owned();
        let cut = || io::Error::new(io::ErrorKind::UnexpectedEof, format!("no whole answer: {text:?}"));
        let (head, body) = text.split_once("\r\n\r\n").ok_or_else(cut)?;
        let status = head.get(9..12).and_then(|digits| digits.parse().ok()).ok_or_else(cut)?;
        Ok(PlainAnswer { status, body: serde_json::from_str(body).unwrap_or_default() })
    };
    tokio::time::timeout(PATIENCE, asked).await?
}
