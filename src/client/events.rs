//! The stream of events, followed over breaks and instances: what server-sent events say, from where
//! to go on, and when to try again. Knows the wire's notation, and nothing of what events mean.

use std::time::Duration;

use reqwest::Method;

use super::acquire::jittered;
use super::error::{ClientError, ErrorClass};
use super::transport::{ANSWER_TIMEOUT, Ask, Client, EVENTS};
use crate::redlock::clock::{BootTime, Clock, SystemClock};

/// A stream that has been silent for so long is dead: the service says something each 15 s.
const SILENCE: Duration = Duration::from_secs(45);
/// Pause before the stream is taken up again, unless the service names another: random in its upper half.
const RETRY: Duration = Duration::from_secs(1);
/// The longest that the service may name.
const RETRY_MOST: Duration = Duration::from_secs(30);
/// The longest event that is read: what the service tells has some hundred bytes.
const EVENT_MAX_BYTES: usize = 64 * 1024;

/// Something that was said in a stream.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Said {
    /// What kind of event.
    pub kind: String,
    /// Its data.
    pub data: String,
}

/// What happens to one who follows.
#[derive(Debug)]
pub enum News {
    /// The service said something.
    Said(Said),
    /// The stream broke, or could not be taken up again; it is tried on. The reason.
    Broken(String),
}

/// Follows the events. Dropped, it listens no more.
#[derive(Debug)]
pub struct Follower {
    client: Client,
    query: Vec<(&'static str, String)>,
    /// How long no instance need answer before it is given up.
    patience: Duration,
    stream: Option<(String, reqwest::Response)>,
    reader: Reader,
    pending: std::collections::VecDeque<Said>,
    /// Since when there is no stream, once there was one.
    lost_since: Option<BootTime>,
    /// Not before a pause.
    pauses: bool,
}

impl Follower {
    /// Sends nothing yet. `prefix`: of resources; `renewals`: hear of them too.
    pub fn new(client: Client, prefix: Option<&str>, renewals: bool, patience: Duration) -> Self {
        let prefix = prefix.map(|p| ("prefix", p.to_owned()));
        let query = prefix.into_iter().chain(renewals.then(|| ("renewals", "true".to_owned()))).collect();
        let (reader, pending) = (Reader::default(), std::collections::VecDeque::new());
        Self { client, query, patience, stream: None, reader, pending, lost_since: None, pauses: false }
    }

    /// What comes next.
    ///
    /// Errors: [`ClientError`]: nobody answered the first time or for too long since, or a refusal that
    /// would be repeated.
    /// Cancel: nothing that was said is lost; an attempt to connect is given up.
    pub async fn next(&mut self) -> Result<News, ClientError> {
        loop {
            if let Some(said) = self.pending.pop_front() {
                return Ok(News::Said(said));
            }
            if self.stream.is_none()
                && let Some(broken) = self.connect().await?
            {
                return Ok(broken);
            }
            let Some((url, response)) = &mut self.stream else { continue };
            let chunk = tokio::select! {
                biased;
                chunk = response.chunk() => chunk.map_err(|_| "the connection broke"),
                () = SystemClock.sleep(SILENCE) => Err("it fell silent"),
            };
            let url = url.clone();
            match chunk {
                Ok(Some(bytes)) => match self.reader.read(&bytes) {
                    Ok(said) => self.pending.extend(said),
                    Err(TooLong) => {
                        return Err(ClientError::Strange { url, detail: "one of its events does not end".to_owned() });
                    }
                },
                Ok(None) => return Ok(self.lose(format!("{url}: the stream ended"))),
                Err(why) => return Ok(self.lose(format!("{url}: {why}"))),
            }
        }
    }

    fn lose(&mut self, why: String) -> News {
        self.stream = None;
        self.reader.begin_anew();
        self.lost_since.get_or_insert_with(|| SystemClock.now());
        self.pauses = true;
        News::Broken(why)
    }

    /// `None`: there is a stream now.
    async fn connect(&mut self) -> Result<Option<News>, ClientError> {
        if self.pauses {
            SystemClock.sleep(jittered(self.reader.retry.unwrap_or(RETRY))).await;
        }
        let (query, last_event) = (self.query.clone(), self.reader.last_id.clone());
        let ask = Ask { query, last_event, timeout: ANSWER_TIMEOUT, ..Ask::new(Method::GET, EVENTS) };
        match self.client.open(&ask).await {
            Ok(stream) => {
                self.stream = Some(stream);
                (self.lost_since, self.pauses) = (None, true);
                Ok(None)
            }
            Err(error) => {
                let Some(since) = self.lost_since else { return Err(error) };
                let is_over = SystemClock.now().since(since) >= self.patience;
                if is_over || error.class() != ErrorClass::Unavailable {
                    return Err(error);
                }
                Ok(Some(News::Broken(error.to_string())))
            }
        }
    }
}

#[derive(Debug, PartialEq, Eq)]
struct TooLong;

/// Reads server-sent events as they come.
///
/// Source: <https://html.spec.whatwg.org/multipage/server-sent-events.html#event-stream-interpretation>
#[derive(Debug, Default)]
struct Reader {
    /// The line that has not ended yet.
    line: Vec<u8>,
    /// A carriage return ended the last line: a newline after it is none.
    after_return: bool,
    event: Said,
    has_data: bool,
    id: Option<String>,
    /// Of the last event that was complete.
    last_id: Option<String>,
    retry: Option<Duration>,
}

impl Reader {
    /// Another stream begins; where the last one was, stays known.
    fn begin_anew(&mut self) {
        let (last_id, retry) = (self.last_id.take(), self.retry);
        *self = Self { id: last_id.clone(), last_id, retry, ..Self::default() };
    }

    fn read(&mut self, bytes: &[u8]) -> Result<Vec<Said>, TooLong> {
        let mut said = Vec::new();
        for byte in bytes {
            let is_second = std::mem::take(&mut self.after_return) && *byte == b'\n';
            match byte {
                b'\n' if is_second => {}
                b'\n' | b'\r' => {
                    self.after_return = *byte == b'\r';
                    let line = std::mem::take(&mut self.line);
                    said.extend(self.end_of(&String::from_utf8_lossy(&line)));
                }
                _ => self.line.push(*byte),
            }
            if self.line.len() + self.event.data.len() > EVENT_MAX_BYTES {
                return Err(TooLong);
            }
        }
        Ok(said)
    }

    fn end_of(&mut self, line: &str) -> Option<Said> {
        if line.is_empty() {
            self.last_id.clone_from(&self.id);
            let event = std::mem::take(&mut self.event);
            return std::mem::take(&mut self.has_data).then_some(event);
        }
        let (field, value) = line.split_once(':').unwrap_or((line, ""));
        let value = value.strip_prefix(' ').unwrap_or(value);
        match field {
            "event" => value.clone_into(&mut self.event.kind),
            "data" => {
                if std::mem::replace(&mut self.has_data, true) {
                    self.event.data.push('\n');
                }
                self.event.data.push_str(value);
            }
            "id" if !value.contains('\0') => self.id = Some(value.to_owned()),
            "retry" => {
                let retry = value.parse().ok().map(Duration::from_millis);
                self.retry = retry.map(|r| r.min(RETRY_MOST)).or(self.retry);
            }
            // Comments, which have no name, and what is not known.
            _ => {}
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const STREAM: &str = "retry: 200\n\n: a comment\n\nid: 1.2\nevent: acquired\ndata: {\"a\":1}\n\n\
                          :\r\n\r\nevent:released\r\ndata: x\r\ndata\r\ndata: y\r\nid: 1.3\r\n\r\nevent: cut\ndata: of";

    fn said(kind: &str, data: &str) -> Said {
        Said { kind: kind.into(), data: data.into() }
    }

    #[test]
    fn a_stream_is_read_by_the_standard() {
        let mut reader = Reader::default();
        let all = reader.read(STREAM.as_bytes()).expect("short");
        assert_eq!(all, [said("acquired", "{\"a\":1}"), said("released", "x\n\ny")]);
        assert_eq!((reader.last_id.as_deref(), reader.retry), (Some("1.3"), Some(Duration::from_millis(200))));
        reader.begin_anew();
        assert_eq!(reader.read(b"\ndata: n\n\n"), Ok(vec![said("", "n")]), "the event that was cut off is gone");
        assert_eq!(reader.last_id.as_deref(), Some("1.3"));
    }

    #[test]
    fn an_event_without_an_end_is_not_kept() {
        let mut reader = Reader::default();
        let long = vec![b'x'; EVENT_MAX_BYTES];
        assert_eq!(reader.read(b"data: "), Ok(vec![]));
        assert_eq!(reader.read(&long), Err(TooLong));
    }

    proptest! {
        #[test]
        fn where_it_is_cut_makes_no_difference(cuts in proptest::collection::vec(0..STREAM.len(), 0..8)) {
            let mut cuts = cuts;
            cuts.extend([0, STREAM.len()]);
            cuts.sort_unstable();
            let mut reader = Reader::default();
            let mut all = Vec::new();
            for part in cuts.windows(2) {
                all.extend(reader.read(&STREAM.as_bytes()[part[0]..part[1]]).expect("short"));
            }
            prop_assert_eq!(all, Reader::default().read(STREAM.as_bytes()).expect("short"));
            prop_assert_eq!(reader.last_id.as_deref(), Some("1.3"));
        }
    }
}
