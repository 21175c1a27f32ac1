//! The fastest client of a majority of nodes: one connection per node, one queue and one write per node and turn of
//! the loop, one wake-up per operation. It is the yardstick for the cost of the service's own client. It parses only as
//! much of a reply as distinguishes yes from no.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::future::poll_fn;
use std::net::SocketAddr;
use std::rc::Rc;
use std::task::{Poll, Waker};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::Notify;

use crate::Failure;

/// Counts the nodes' answers to one request.
struct Operation {
    needed: usize,
    nodes: usize,
    yes: Cell<usize>,
    no: Cell<usize>,
    waker: RefCell<Option<Waker>>,
}

impl Operation {
    fn new(nodes: usize) -> Rc<Self> {
        let (yes, no, waker) = (Cell::new(0), Cell::new(0), RefCell::new(None));
        Rc::new(Self { needed: nodes / 2 + 1, nodes, yes, no, waker })
    }

    fn count(&self, is_yes: bool) {
        let counted = if is_yes { &self.yes } else { &self.no };
        counted.set(counted.get() + 1);
        if self.decision().is_some()
            && let Some(waker) = self.waker.take()
        {
            waker.wake();
        }
    }

    fn decision(&self) -> Option<bool> {
        let lost = self.nodes - self.needed + 1;
        (self.yes.get() >= self.needed).then_some(true).or((self.no.get() >= lost).then_some(false))
    }

    async fn decided(&self) -> bool {
        poll_fn(|context| match self.decision() {
            Some(decision) => Poll::Ready(decision),
            None => {
                *self.waker.borrow_mut() = Some(context.waker().clone());
                Poll::Pending
            }
        })
        .await
    }
}

struct Node {
    queue: RefCell<Vec<u8>>,
    waiting: RefCell<VecDeque<Rc<Operation>>>,
    filled: Notify,
}

/// One connection to each node.
pub struct PipelinedClient {
    nodes: Vec<Rc<Node>>,
}

impl PipelinedClient {
    /// Connects. Needs a `LocalSet`; the tasks end with it.
    pub async fn connect(addresses: &[SocketAddr]) -> Result<Self, Failure> {
        let mut nodes = Vec::new();
        for address in addresses {
            let stream = TcpStream::connect(address).await?;
            stream.set_nodelay(true)?;
            let (mut reader, mut writer) = stream.into_split();
            let node = Rc::new(Node { queue: RefCell::default(), waiting: RefCell::default(), filled: Notify::new() });
            let filled = Rc::clone(&node);
            tokio::task::spawn_local(async move {
                let mut bytes = Vec::new();
                loop {
                    filled.filled.notified().await;
                    std::mem::swap(&mut bytes, &mut *filled.queue.borrow_mut());
                    if !bytes.is_empty() && writer.write_all(&bytes).await.is_err() {
                        return;
                    }
                    bytes.clear();
                }
            });
            let asked = Rc::clone(&node);
            tokio::task::spawn_local(async move {
                let (mut buffer, mut begin) = (Vec::with_capacity(1 << 16), 0);
                while reader.read_buf(&mut buffer).await.is_ok_and(|n| n > 0) {
                    while let Some((length, is_yes)) = reply(&buffer[begin..]) {
                        begin += length;
                        if let Some(operation) = asked.waiting.borrow_mut().pop_front() {
                            operation.count(is_yes);
                        }
                    }
                    buffer.drain(..begin);
                    begin = 0;
                }
            });
            nodes.push(node);
        }
        Ok(Self { nodes })
    }

    /// Sends to each node what `of_node` packs for it; whether a majority said yes.
    pub async fn ask(&self, of_node: impl Fn(usize, &mut Vec<u8>)) -> bool {
        let operation = Operation::new(self.nodes.len());
        for (at, node) in self.nodes.iter().enumerate() {
            of_node(at, &mut node.queue.borrow_mut());
            node.waiting.borrow_mut().push_back(Rc::clone(&operation));
            node.filled.notify_one();
        }
        operation.decided().await
    }
}

/// A command as Redis reads it.
pub fn pack(into: &mut Vec<u8>, words: &[&[u8]]) {
    let number = |into: &mut Vec<u8>, kind: u8, n: usize| {
        into.push(kind);
        let mut digits = [0_u8; 20];
        let (mut at, mut left) = (digits.len(), n);
        loop {
            at -= 1;
            digits[at] = b'0' + (left % 10) as u8;
            left /= 10;
            if left == 0 {
                break;
            }
        }
        into.extend_from_slice(&digits[at..]);
        into.extend_from_slice(b"\r\n");
    };
    number(into, b'*', words.len());
    for word in words {
        number(into, b'$', word.len());
        into.extend_from_slice(word);
        into.extend_from_slice(b"\r\n");
    }
}

/// Length of the first reply, and whether it means yes: `OK`, a number above zero (also as text), or a list that begins
/// with one, or with `G` (granted) or `R` (released).
pub fn reply(bytes: &[u8]) -> Option<(usize, bool)> {
    let end = memchr::memchr(b'\r', bytes).filter(|end| bytes.len() > end + 1)?;
    let number = || std::str::from_utf8(&bytes[1..end]).ok().and_then(|n| n.parse::<i64>().ok()).unwrap_or(0);
    match bytes[0] {
        b'+' => Some((end + 2, true)),
        b':' => Some((end + 2, number() > 0)),
        b'$' => {
            let Ok(length) = usize::try_from(number()) else { return Some((end + 2, false)) };
            let body = bytes.get(end + 2..end + 4 + length)?;
            Some((end + 4 + length, matches!(body.first(), Some(b'G' | b'R' | b'1'..=b'9'))))
        }
        b'*' => {
            let (mut at, mut is_yes) = (end + 2, false);
            for i in 0..number().max(0) {
                let (length, yes) = reply(bytes.get(at..)?)?;
                (at, is_yes) = (at + length, if i == 0 { yes } else { is_yes });
            }
            Some((at, is_yes))
        }
        _ => Some((end + 2, false)),
    }
}

#[cfg(test)]
mod tests {
    use super::{pack, reply};

    #[test]
    fn replies_are_measured_and_distinguished() {
        assert_eq!(reply(b"+OK\r\n+"), Some((5, true)));
        assert_eq!(reply(b"$-1\r\n"), Some((5, false)));
        assert_eq!(reply(b":1\r\n"), Some((4, true)));
        assert_eq!(reply(b"$2\r\n17\r\n"), Some((8, true)));
        assert_eq!(reply(b"*3\r\n$1\r\nG\r\n:17\r\n:0\r\n"), Some((20, true)));
        assert_eq!(reply(b"*2\r\n$1\r\nB\r\n:17\r\n"), Some((16, false)));
        assert_eq!(reply(b"*2\r\n$1\r\nB\r\n:1"), None);
        assert_eq!(reply(b"*2\r\n$1\r\nB\r\n"), None);
        assert_eq!(reply(b"+OK\r"), None);
        assert_eq!(reply(b"-ERR no\r\n"), Some((9, false)));
    }

    #[test]
    fn commands_are_packed_as_the_driver_packs_them() {
        let mut packed = Vec::new();
        pack(&mut packed, &[b"SET", b"key", b"", b"0123456789"]);
        let expected = redis::cmd("SET").arg("key").arg("").arg("0123456789").get_packed_command();
        assert_eq!(packed, expected);
    }
}
