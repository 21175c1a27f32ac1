//! etcd through its JSON gateway, one member with its default durability. Three calls per cycle as the service counts
//! them (lease, lock, unlock), and two with a lease that each connection was granted once.

use std::io::{self, Write};
use std::net::SocketAddr;
use std::process::{Command, Stdio};

use crate::Failure;
use crate::http::{self, Connection};
use crate::servers::{Directory, Server, free_port, until};

/// One member.
pub struct Etcd {
    /// Where its clients connect.
    pub address: SocketAddr,
    /// Its process.
    pub server: Server,
    _data: Directory,
}

impl Etcd {
    /// Starts it, and waits until it leads itself.
    ///
    /// Errors: where it does not start.
    pub async fn start() -> Result<Self, Failure> {
        let (data, port, peer_port) = (Directory::new()?, free_port()?, free_port()?);
        let (url, peer_url) = (format!("http://127.0.0.1:{port}"), format!("http://127.0.0.1:{peer_port}"));
        let mut command = Command::new("etcd");
        command.arg("--data-dir").arg(&data.0).args(["--listen-client-urls", &url, "--advertise-client-urls", &url]);
        command.args(["--listen-peer-urls", &peer_url, "--initial-advertise-peer-urls", &peer_url]);
        command.args(["--initial-cluster", &format!("default={peer_url}"), "--log-level", "error"]);
        command.env("ETCD_UNSUPPORTED_ARCH", std::env::consts::ARCH.replace("aarch64", "arm64"));
        let server = Server(command.stdout(Stdio::null()).stderr(Stdio::null()).spawn()?);
        let address = SocketAddr::from(([127, 0, 0, 1], port));
        let leads = || http::get(address, "/health").is_ok_and(|answer| answer.contains(r#""health":"true""#));
        until("etcd", || leads().then_some(())).await?;
        Ok(Self { address, server, _data: data })
    }
}

/// Lease, lock, unlock.
///
/// Errors: those of the connection.
pub async fn three_steps(connection: &mut Connection, number: u64) -> io::Result<bool> {
    match grant(connection).await? {
        Some(lease) => lock_and_unlock(connection, number, &lease).await,
        None => Ok(false),
    }
}

/// Lock and unlock, under the connection's own lease.
///
/// Errors: those of the connection.
pub async fn two_steps(connection: &mut Connection, number: u64) -> io::Result<bool> {
    let lease = match connection.notes.take() {
        Some(lease) => lease,
        None => match grant(connection).await? {
            Some(lease) => lease,
            None => return Ok(false),
        },
    };
    let done = lock_and_unlock(connection, number, &lease).await;
    connection.notes = Some(lease);
    done
}

async fn grant(connection: &mut Connection) -> io::Result<Option<String>> {
    post(connection, "/v3/lease/grant", r#"{"TTL":30}"#, "ID").await
}

async fn lock_and_unlock(connection: &mut Connection, number: u64, lease: &str) -> io::Result<bool> {
    let name = base64(format!("etcd-{number}").as_bytes());
    let lock = format!(r#"{{"name":"{name}","lease":"{lease}"}}"#);
    let Some(key) = post(connection, "/v3/lock/lock", &lock, "key").await? else { return Ok(false) };
    Ok(post(connection, "/v3/lock/unlock", &format!(r#"{{"key":"{key}"}}"#), "header").await?.is_some())
}

/// The text of a field of the answer, if it is one of success; of `header`, nothing.
async fn post(connection: &mut Connection, path: &str, body: &str, field: &str) -> io::Result<Option<String>> {
    connection.begin();
    write!(connection.out, "POST {path} HTTP/1.1\r\nhost: localhost\r\ncontent-length: {}\r\n\r\n{body}", body.len())?;
    let answer = connection.ask().await?;
    let text = String::from_utf8_lossy(connection.bytes(&answer.body));
    Ok(if answer.status == 200 { pick(&text, field) } else { None })
}

/// etcd writes neither spaces nor escapes into the fields that are read here.
fn pick(text: &str, field: &str) -> Option<String> {
    if field == "header" {
        return text.contains(r#""header""#).then(String::new);
    }
    let (_, rest) = text.split_once(&format!(r#""{field}":""#))?;
    Some(rest.split_once('"')?.0.to_owned())
}

fn base64(bytes: &[u8]) -> String {
    const LETTERS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut text = String::with_capacity(bytes.len().div_ceil(3) * 4);
    for three in bytes.chunks(3) {
        let bits = (0..3).fold(0_u32, |bits, at| bits << 8 | u32::from(*three.get(at).unwrap_or(&0)));
        for at in 0..4 {
            let letter = LETTERS[(bits >> (18 - 6 * at) & 63) as usize];
            text.push(if at > three.len() { '=' } else { char::from(letter) });
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::{base64, pick};

    #[test]
    fn answers_and_names() {
        for (plain, encoded) in [("", ""), ("f", "Zg=="), ("fo", "Zm8="), ("foo", "Zm9v"), ("etcd-1", "ZXRjZC0x")] {
            assert_eq!(base64(plain.as_bytes()), encoded);
        }
        assert_eq!(pick(r#"{"header":{"revision":"2"},"key":"YS9i"}"#, "key").as_deref(), Some("YS9i"));
        assert_eq!(pick(r#"{"error":"no"}"#, "key"), None);
    }
}
