//! A connection's socket with its buffers: writes commands, and reads their replies one at a time. The [`Meter`] bounds each
//! reply before it is parsed.

use std::future::{Future, poll_fn};
use std::io;
use std::pin::{Pin, pin};
use std::task::{Context, Poll, ready};

use bytes::{Buf, BytesMut};
use deadpool_redis::redis::{Cmd, RedisError, Value, parse_redis_value};
use tokio::io::{AsyncReadExt, AsyncWrite};

use super::reply_limit::Meter;
use super::socket::Socket;
use crate::protocol::commands::BATCH_MAX;

/// Bytes that are read at a time.
const READ_BYTES: usize = 8 << 10;

/// A connected socket that is used only for commands and replies.
pub(super) struct Wire {
    socket: Box<dyn Socket>,
    /// Bytes to write, and how many have been written.
    out: Vec<u8>,
    written: usize,
    /// Bytes of replies that were not returned yet, and how many of them the meter has counted.
    read: BytesMut,
    metered: usize,
    meter: Meter,
}

impl Wire {
    pub(super) fn new(socket: Box<dyn Socket>) -> Self {
        Self { socket, out: Vec::new(), written: 0, read: BytesMut::new(), metered: 0, meter: Meter::default() }
    }

    /// The output buffer: [`Self::poll_flush`] writes the commands in it.
    pub(super) fn out(&mut self) -> &mut Vec<u8> {
        &mut self.out
    }

    /// Bytes that wait to be written.
    pub(super) fn unwritten(&self) -> usize {
        self.out.len() - self.written
    }

    /// Writes the waiting bytes. Errors: the socket's; the connection is then unusable.
    pub(super) fn poll_flush(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        while self.written < self.out.len() {
            match ready!(Pin::new(&mut self.socket).poll_write(cx, &self.out[self.written..]))? {
                0 => return Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
                written => self.written += written,
            }
        }
        self.out.clear();
        self.written = 0;
        Pin::new(&mut self.socket).poll_flush(cx)
    }

    /// The next reply. Errors: the socket's, its end, and a reply beyond the meter's limits; the connection is then unusable.
    pub(super) fn poll_reply(&mut self, cx: &mut Context<'_>) -> Poll<Result<Value, RedisError>> {
        loop {
            if self.metered == 0
                && let Some((value, length)) = short_reply(&self.read)
            {
                self.read.advance(length);
                return Poll::Ready(Ok(value));
            }
            let (taken, is_complete) = match self.meter.feed_value(&self.read[self.metered..]) {
                Ok(fed) => fed,
                Err(why) => return Poll::Ready(Err(io::Error::new(io::ErrorKind::InvalidData, why).into())),
            };
            self.metered += taken;
            if is_complete {
                let reply = &self.read[..self.metered];
                let value = parse_redis_value(reply);
                self.read.advance(std::mem::take(&mut self.metered));
                return Poll::Ready(value);
            }
            self.read.reserve(READ_BYTES);
            if ready!(pin!(self.socket.read_buf(&mut self.read)).poll(cx))? == 0 {
                return Poll::Ready(Err(io::Error::from(io::ErrorKind::UnexpectedEof).into()));
            }
        }
    }

    /// Sends commands together and returns their replies: for the hand-shake of a node that is far away.
    ///
    /// Errors: the connection's. Cancel: the connection is unusable.
    pub(super) async fn ask_all(
        &mut self,
        commands: impl IntoIterator<Item = Cmd>,
    ) -> Result<Vec<Result<Value, RedisError>>, RedisError> {
        let (mut count, mut replies) = (0, Vec::new());
        for command in commands {
            command.write_packed_command(&mut self.out);
            count += 1;
        }
        poll_fn(|cx| self.poll_flush(cx)).await?;
        for _ in 0..count {
            replies.push(poll_fn(|cx| self.poll_reply(cx)).await?.extract_error());
        }
        Ok(replies)
    }

    /// Sends a command and returns its reply: for the hand-shake, while nothing else is sent.
    ///
    /// Errors: the connection's and the server's. Cancel: the connection is unusable.
    pub(super) async fn ask(&mut self, command: &Cmd) -> Result<Value, RedisError> {
        command.write_packed_command(&mut self.out);
        poll_fn(|cx| self.poll_flush(cx)).await?;
        poll_fn(|cx| self.poll_reply(cx)).await?.extract_error()
    }
}

/// The longest text that is read without the meter.
const SHORT_TEXT_BYTES: usize = 32;

/// The first reply, with its length, if it is whole and a number, a short text, or a list of these that is no longer than that to a
/// batch: they need no meter. Nearly all replies are fences that were granted, or counts of what was released; for each, the
/// driver's parser takes ten thousand instructions.
fn short_reply(bytes: &[u8]) -> Option<(Value, usize)> {
    let Some((count, mut at)) = number(bytes, b'*') else { return short_item(bytes) };
    let count = usize::try_from(count).ok().filter(|count| *count <= BATCH_MAX)?;
    let mut items = Vec::with_capacity(count);
    for _ in 0..count {
        let (item, length) = short_item(&bytes[at..])?;
        items.push(item);
        at += length;
    }
    Some((Value::Array(items), at))
}

fn short_item(bytes: &[u8]) -> Option<(Value, usize)> {
    let Some((length, at)) = number(bytes, b'$') else {
        return number(bytes, b':').map(|(value, length)| (Value::Int(value), length));
    };
    let length = usize::try_from(length).ok().filter(|length| *length <= SHORT_TEXT_BYTES)?;
    let (text, rest) = bytes[at..].split_at_checked(length)?;
    rest.starts_with(b"\r\n").then(|| (Value::BulkString(text.to_vec()), at + length + 2))
}

/// A number of at most 18 digits on a line of this kind, and the length of the line. A length has no sign.
fn number(bytes: &[u8], kind: u8) -> Option<(i64, usize)> {
    let (first, rest) = bytes.split_first()?;
    let negated = rest.strip_prefix(b"-").filter(|_| kind == b':');
    let (is_negative, digits) = negated.map_or((false, rest), |digits| (true, digits));
    let (mut value, mut count) = (0, 0);
    while let Some(digit) = digits.get(count).filter(|byte| count < 18 && byte.is_ascii_digit()) {
        value = value * 10 + i64::from(digit - b'0');
        count += 1;
    }
    let is_whole = *first == kind && count > 0 && digits[count..].starts_with(b"\r\n");
    let value = if is_negative { -value } else { value };
    is_whole.then_some((value, 1 + usize::from(is_negative) + count + 2))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use tokio::io::{AsyncWriteExt, duplex};

    /// The replies that come of these bytes, and the error that ends them.
    async fn replies(bytes: &[u8], cut: usize) -> (Vec<Value>, String) {
        let (client, mut server) = duplex(1 << 20);
        let mut wire = Wire::new(Box::new(client));
        for chunk in bytes.chunks(cut) {
            server.write_all(chunk).await.expect("it fits");
        }
        drop(server);
        let mut values = Vec::new();
        loop {
            match poll_fn(|cx| wire.poll_reply(cx)).await {
                Ok(value) => values.push(value),
                Err(error) => return (values, error.to_string()),
            }
        }
    }

    #[tokio::test]
    async fn replies_are_read_one_at_a_time_and_the_end_is_an_error() {
        let (values, end) =
            replies(b"*2\r\n:1\r\n:-2\r\n+OK\r\n*2\r\n:1\r\n$1\r\na\r\n-NOSCRIPT no\r\n*1\r\n", 3).await;
        assert_eq!(values[0], Value::Array(vec![Value::Int(1), Value::Int(-2)]));
        assert_eq!(values[1], Value::Okay);
        assert_eq!(values[2], Value::Array(vec![Value::Int(1), Value::BulkString(b"a".to_vec())]));
        assert!(matches!(&values[3], Value::ServerError(error) if error.code() == "NOSCRIPT"));
        assert!(values.len() == 4 && end.contains("end of file"), "{values:?} {end}");
    }

    #[test]
    fn only_whole_texts_and_numbers_that_cannot_overflow_are_read_fast() {
        let of = |digits: &str| short_reply(format!("*1\r\n:{digits}\r\n").as_bytes()).map(|(value, _)| value);
        let text = |text: &str| short_reply(text.as_bytes());
        assert_eq!(
            text("$2\r\n42\r\n:8\r\n"),
            Some((Value::BulkString(b"42".to_vec()), 8)),
            "the reply to one request"
        );
        assert!(
            ["$2\r\n42", "$2\r\n42\r", "$2\r\n423\r\n", "$-1\r\n", "$-0\r\n\r\n", "*-0\r\n", "$33\r\n"]
                .iter()
                .all(|part| text(part).is_none())
        );
        let longest = "-999999999999999999";
        assert_eq!(of(longest), Some(Value::Array(vec![Value::Int(longest.parse().expect("a number"))])));
        for other in ["9999999999999999999", "1000000000000000000", "", "-", "+1", "1 "] {
            assert_eq!(of(other), None, "{other}");
        }
    }

    #[tokio::test]
    async fn a_reply_beyond_the_limits_ends_the_connection() {
        let (values, end) = replies(b"+OK\r\n*99999999\r\n:1\r\n", 64).await;
        assert!(values.len() == 1 && end.contains("too many elements"), "{end}");
    }

    proptest! {
        /// The fast parser returns what the driver's parser returns, or nothing.
        #[test]
        fn short_replies_are_read_as_the_driver_reads_them(bytes in r"(\*[0-9]{1,2}\r\n)?([:+$*][-+]?[0-9]{0,20}\r?\n){0,4}") {
            if let Some((value, length)) = short_reply(bytes.as_bytes()) {
                prop_assert_eq!(Meter::default().feed_value(bytes.as_bytes()), Ok((length, true)));
                prop_assert_eq!(parse_redis_value(&bytes.as_bytes()[..length]).expect("read"), value);
            }
        }
    }
}
