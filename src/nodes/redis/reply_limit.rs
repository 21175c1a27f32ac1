//! Bounds the data that a node may send. The driver buffers a reply until it is complete, however long it is; this reads the
//! framing of the same bytes before the driver does, and fails the connection if a reply is larger than any legitimate one, or
//! arrives while no command is unanswered.
//!
//! Source: the Redis serialization protocol, RESP2 and RESP3.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// Maximum size of a reply. The largest legitimate ones, with the longest names, labels and claims: a page of a node's data with
/// 500 keys and at most 1,000 members of locks (3.6 MiB), and a page of the list with 250 leases, the last one a lock with 1,000
/// members (3.0 MiB). The inspection of such a lock takes 2.2 MiB. `tests/contract/largest.rs` makes each.
const REPLY_MAX_BYTES: usize = 4 << 20;
/// Maximum number of elements in a reply, lists included. The largest page has some 6,000, a batch of 32 acquires below 400; each
/// element takes the driver some fifty bytes, however short it is.
const ELEMENTS_MAX: usize = 16 << 10;
/// Maximum length of a line: a status, an error, a number or a length. Longer texts have a length prefix.
const LINE_MAX_BYTES: usize = 16 << 10;
/// Maximum depth of lists in lists. Scripts answer with two.
const DEPTH_MAX: usize = 8;
/// Replies beyond the commands that were sent: a server that refuses a connection reports why unasked.
const UNASKED_MAX: u64 = 1;

/// Reads the framing of one direction of a connection.
#[derive(Debug, Default)]
pub struct Meter {
    /// Number of missing elements in each incomplete list, the outermost first.
    open: Vec<usize>,
    /// The present line so far.
    line: Vec<u8>,
    /// Bytes of a text, with its line end, that are still missing.
    text: usize,
    /// Size of the present value so far.
    bytes: usize,
    elements: usize,
    is_push: bool,
    /// Number of complete values, without pushed messages.
    complete: u64,
}

impl Meter {
    /// Reads the next bytes. Errors: what is too large, or malformed.
    fn feed(&mut self, mut rest: &[u8]) -> Result<(), &'static str> {
        while !rest.is_empty() {
            rest = &rest[self.feed_value(rest)?.0..];
        }
        Ok(())
    }

    /// Reads the next bytes, at most to the end of a value. Returns their number, and whether a value ends there.
    ///
    /// Errors: as [`Self::feed`].
    pub fn feed_value(&mut self, bytes: &[u8]) -> Result<(usize, bool), &'static str> {
        let mut at = 0;
        while at < bytes.len() {
            let rest = &bytes[at..];
            if self.text > 0 {
                let taken = self.text.min(rest.len());
                self.text -= taken;
                self.bytes += taken;
                at += taken;
                if self.text == 0 {
                    self.end_value();
                }
            } else {
                let end = rest.iter().position(|byte| *byte == b'\n').map(|end| end + 1);
                let taken = end.unwrap_or(rest.len());
                if self.line.len() + taken > LINE_MAX_BYTES {
                    return Err("a line of a reply is too long");
                }
                self.bytes += taken;
                at += taken;
                match end {
                    // No copy is needed if the whole line is here.
                    Some(end) if self.line.is_empty() => self.read_line(&rest[..end])?,
                    _ => self.line.extend_from_slice(&rest[..taken]),
                }
                if end.is_some() && !self.line.is_empty() {
                    let line = std::mem::take(&mut self.line);
                    self.read_line(&line)?;
                }
            }
            if self.bytes > REPLY_MAX_BYTES {
                return Err("a reply is too large");
            }
            if self.text == 0 && self.line.is_empty() && self.open.is_empty() {
                return Ok((at, true));
            }
        }
        Ok((at, false))
    }

    fn read_line(&mut self, line: &[u8]) -> Result<(), &'static str> {
        const MALFORMED: &str = "a reply is malformed";
        let (kind, rest) = line.strip_suffix(b"\r\n").and_then(<[u8]>::split_first).ok_or(MALFORMED)?;
        self.elements += 1;
        let length = || match rest {
            b"-1" => Ok(0),
            _ => std::str::from_utf8(rest).ok().and_then(|text| text.parse::<usize>().ok()).ok_or(MALFORMED),
        };
        let members = match kind {
            b'+' | b'-' | b':' | b'_' | b',' | b'#' | b'(' => 0,
            b'$' | b'!' | b'=' => {
                if length()? > REPLY_MAX_BYTES {
                    return Err("a text in a reply is too large");
                }
                if rest != b"-1" {
                    self.text = length()? + 2;
                    return Ok(());
                }
                0
            }
            b'*' | b'~' | b'>' => length()?,
            b'%' => length()?.saturating_mul(2),
            // The value to which the attributes belong follows them.
            b'|' => length()?.saturating_mul(2).saturating_add(1),
            _ => return Err(MALFORMED),
        };
        if members > ELEMENTS_MAX || self.elements > ELEMENTS_MAX {
            return Err("a reply has too many elements");
        }
        self.is_push |= *kind == b'>' && self.open.is_empty();
        if members == 0 {
            self.end_value();
            return Ok(());
        }
        if self.open.len() >= DEPTH_MAX {
            return Err("a reply has lists in too many lists");
        }
        self.open.push(members);
        Ok(())
    }

    /// Ends a value, and with it the lists whose last element it is.
    fn end_value(&mut self) {
        while let Some(missing) = self.open.last_mut() {
            *missing -= 1;
            if *missing > 0 {
                return;
            }
            self.open.pop();
        }
        self.complete += u64::from(!self.is_push);
        (self.bytes, self.elements, self.is_push) = (0, 0, false);
    }
}

/// A stream whose replies are bounded.
#[derive(Debug)]
pub(super) struct Metered<S> {
    stream: S,
    commands: Meter,
    replies: Meter,
}

impl<S> Metered<S> {
    pub(super) fn new(stream: S) -> Self {
        Self { stream, commands: Meter::default(), replies: Meter::default() }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Metered<S> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let before = buf.filled().len();
        ready!(Pin::new(&mut self.stream).poll_read(cx, buf))?;
        let fed = self.replies.feed(&buf.filled()[before..]);
        let fed = fed.and_then(|()| match self.replies.complete > self.commands.complete + UNASKED_MAX {
            true => Err("replies come that were not asked for"),
            false => Ok(()),
        });
        if let Err(why) = fed {
            // The driver must not see bytes that it would have to keep.
            buf.set_filled(before);
            return Poll::Ready(Err(io::Error::new(io::ErrorKind::InvalidData, why)));
        }
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Metered<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        let written = ready!(Pin::new(&mut self.stream).poll_write(cx, buf))?;
        // This program's commands are within the limits.
        let fed = self.commands.feed(&buf[..written]);
        Poll::Ready(fed.map(|()| written).map_err(|why| io::Error::new(io::ErrorKind::InvalidInput, why)))
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn fed(bytes: &[u8]) -> Result<u64, &'static str> {
        let mut meter = Meter::default();
        meter.feed(bytes).map(|()| meter.complete)
    }

    #[test]
    fn complete_replies_are_counted_and_pushed_messages_are_not() {
        assert_eq!(fed(b"+OK\r\n:7\r\n$-1\r\n*-1\r\n*0\r\n-ERR no\r\n"), Ok(6));
        assert_eq!(fed(b"*2\r\n*2\r\n$1\r\nZ\r\n:1\r\n$4\r\n\r\n\r\n\r\n"), Ok(1));
        assert_eq!(fed(b">3\r\n$7\r\nmessage\r\n$1\r\na\r\n$0\r\n\r\n_\r\n"), Ok(1));
        assert_eq!(fed(b"%1\r\n+a\r\n:1\r\n|1\r\n+b\r\n#t\r\n,1.5\r\n"), Ok(2));
        assert_eq!(fed(b"*2\r\n:1\r\n$9\r\nhalf"), Ok(0));
    }

    /// M1: what a reply may have, and what is too much of it.
    #[test]
    fn m1_replies_beyond_a_limit_are_refused_at_their_header() {
        let text = |bytes: usize| format!("${bytes}\r\n");
        assert_eq!(fed(text(REPLY_MAX_BYTES).as_bytes()), Ok(0));
        assert!(fed(text(REPLY_MAX_BYTES + 1).as_bytes()).is_err());
        assert!(fed(format!("*{}\r\n", ELEMENTS_MAX + 1).as_bytes()).is_err());
        assert!(fed(b"%9223372036854775807\r\n").is_err() && fed(b"*9223372036854775808000\r\n").is_err());
        assert!(fed(&b"*1\r\n".repeat(DEPTH_MAX)).is_ok() && fed(&b"*1\r\n".repeat(DEPTH_MAX + 1)).is_err());
        assert!(fed(&[b'y'; LINE_MAX_BYTES]).is_ok() && fed(&[b'y'; LINE_MAX_BYTES + 1]).is_err());
        let mut parts = b"*16000\r\n".to_vec();
        parts.extend(b"$1000\r\n".iter().chain(&[b'x'; 1_002]).copied().collect::<Vec<u8>>().repeat(4_300));
        assert_eq!(fed(&parts), Err("a reply is too large"));
        let lists =
            [b"*4\r\n".to_vec(), b"*16000\r\n".iter().chain(&b":1\r\n".repeat(16_000)).copied().collect()].concat();
        assert!(fed(&[&lists[..], &b"*16000\r\n"[..], &b":1\r\n".repeat(400)].concat()).is_err());
        for malformed in [&b"HTTP/1.1 200 OK\r\n"[..], b"\n", b"\r\n", b"$x\r\n", b"$-7\r\n", b"*1\n"] {
            assert!(fed(malformed).is_err(), "{malformed:?}");
        }
        // As large as the largest page of a list.
        let lease = [&b"$255\r\n"[..], &[b'n'; 255], b"\r\n:299000\r\n$8192\r\n", &[b'v'; 8_192], b"\r\n"].concat();
        assert_eq!(fed(&[&b"*751\r\n$1\r\n0\r\n"[..], &lease.repeat(250)].concat()), Ok(1));
    }

    proptest! {
        /// However the bytes are cut, the result is the same.
        #[test]
        fn cuts_do_not_matter(values in proptest::collection::vec(0_u8..5, 0..40), cut in 1_usize..30) {
            let parts: [&[u8]; 5] = [b"+OK\r\n", b"$5\r\na\r\nbc\r\n", b"*2\r\n:1\r\n$-1\r\n", b">1\r\n+x\r\n", b"%1\r\n+k\r\n*0\r\n"];
            let bytes = values.iter().map(|v| parts[usize::from(*v)]).collect::<Vec<_>>().concat();
            let mut meter = Meter::default();
            bytes.chunks(cut).for_each(|chunk| meter.feed(chunk).expect("within the limits"));
            let pushed = values.iter().filter(|v| **v == 3).count();
            prop_assert_eq!(meter.complete, u64::try_from(values.len() - pushed).expect("small"));
        }

        #[test]
        fn any_bytes_are_read_without_panic(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
            let _ = fed(&bytes);
        }
    }
}
