//! The event stream, followed across interruptions and instances: parses server-sent events, resumes after the last one, and
//! decides when to reconnect.

use std::time::Duration;

use reqwest::Method;

use super::error::{ClientError, ErrorClass};
use super::transport::{ANSWER_TIMEOUT, ApiRequest, Client, EVENTS};
use redlockd_common::backoff::uniform;
use redlockd_common::clock::{BootTime, Clock, SystemClock};
use redlockd_common::random::SystemEntropy;

/// A stream without data for this long is dead: the service sends something every 15 s.
const SILENCE: Duration = Duration::from_secs(45);
/// Maximum pause before reconnecting, unless the service names another.
const RETRY: Duration = Duration::from_secs(1);
/// Maximum pause that the service may name.
const RETRY_MAX: Duration = Duration::from_secs(30);
/// Maximum size of an event: the service's have some hundred bytes.
const EVENT_MAX_BYTES: usize = 64 * 1024;

/// One event of the stream.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct StreamEvent {
    /// The event's type, the field `event`.
    pub kind: String,
    /// The event's data, as JSON.
    pub data: String,
}

/// The result of [`EventFollower::next`].
#[derive(Debug)]
pub enum StreamUpdate {
    /// An event was received.
    Event(StreamEvent),
    /// The stream was interrupted, or reconnecting failed, for this reason; it is tried again.
    Interrupted(String),
}

/// Follows the event stream until it is dropped.
#[derive(Debug)]
pub struct EventFollower {
    client: Client,
    query: Vec<(&'static str, String)>,
    /// The time without an answer from any instance after which to give up.
    give_up_after: Duration,
    stream: Option<(String, reqwest::Response)>,
    parser: EventParser,
    pending: std::collections::VecDeque<StreamEvent>,
    /// The start of the interruption.
    interrupted_since: Option<BootTime>,
    /// Pause before the next connection.
    pause: bool,
}

impl EventFollower {
    /// Sends nothing yet. `prefix`: only events of resources with it; `renewals`: includes events of renewals.
    pub fn new(client: Client, prefix: Option<&str>, renewals: bool, give_up_after: Duration) -> Self {
        let prefix = prefix.map(|p| ("prefix", p.to_owned()));
        let query = prefix.into_iter().chain(renewals.then(|| ("renewals", "true".to_owned()))).collect();
        let (parser, pending) = (EventParser::default(), std::collections::VecDeque::new());
        Self { client, query, give_up_after, stream: None, parser, pending, interrupted_since: None, pause: false }
    }

    /// The next event or interruption.
    ///
    /// Errors: [`ClientError`]: no instance answered the first time or for too long since, or a refusal that would be repeated.
    /// Cancel: no event is lost; an attempt to connect is abandoned.
    pub async fn next(&mut self) -> Result<StreamUpdate, ClientError> {
        loop {
            if let Some(event) = self.pending.pop_front() {
                return Ok(StreamUpdate::Event(event));
            }
            if self.stream.is_none()
                && let Some(interruption) = self.connect().await?
            {
                return Ok(interruption);
            }
            let Some((url, response)) = &mut self.stream else { continue };
            let chunk = tokio::select! {
                biased;
                chunk = response.chunk() => chunk.map_err(|_| "the connection broke"),
                () = SystemClock.sleep(SILENCE) => Err("it sent nothing"),
            };
            let url = url.clone();
            match chunk {
                Ok(Some(bytes)) => match self.parser.read(&bytes) {
                    Ok(events) => self.pending.extend(events),
                    Err(EventTooLong) => {
                        return Err(ClientError::Unexpected {
                            url,
                            detail: "one of its events does not end".to_owned(),
                        });
                    }
                },
                Ok(None) => return Ok(self.interrupted(format!("{url}: the stream ended"))),
                Err(why) => return Ok(self.interrupted(format!("{url}: {why}"))),
            }
        }
    }

    fn interrupted(&mut self, why: String) -> StreamUpdate {
        self.stream = None;
        self.parser.restart();
        self.interrupted_since.get_or_insert_with(|| SystemClock.now());
        self.pause = true;
        StreamUpdate::Interrupted(why)
    }

    /// Connects; `None` means success.
    async fn connect(&mut self) -> Result<Option<StreamUpdate>, ClientError> {
        if self.pause {
            SystemClock.sleep(uniform(&SystemEntropy, self.parser.retry.unwrap_or(RETRY))).await;
        }
        let (query, last_event) = (self.query.clone(), self.parser.last_id.clone());
        let request = ApiRequest { query, last_event, timeout: ANSWER_TIMEOUT, ..ApiRequest::new(Method::GET, EVENTS) };
        match self.client.open(&request).await {
            Ok(stream) => {
                self.stream = Some(stream);
                (self.interrupted_since, self.pause) = (None, true);
                Ok(None)
            }
            Err(error) => {
                let Some(since) = self.interrupted_since else { return Err(error) };
                let is_over = SystemClock.now().since(since) >= self.give_up_after;
                if is_over || error.class() != ErrorClass::Unavailable {
                    return Err(error);
                }
                Ok(Some(StreamUpdate::Interrupted(error.to_string())))
            }
        }
    }
}

/// An event is longer than any of the service's.
#[derive(Debug, PartialEq, Eq)]
pub struct EventTooLong;

/// Parses server-sent events as bytes arrive.
///
/// Source: <https://html.spec.whatwg.org/multipage/server-sent-events.html#event-stream-interpretation>
#[derive(Debug, Default)]
pub struct EventParser {
    /// The incomplete line.
    line: Vec<u8>,
    /// The last line ended with a carriage return: a newline after it does not end another.
    after_return: bool,
    event: StreamEvent,
    has_data: bool,
    id: Option<String>,
    /// The id of the last complete event.
    last_id: Option<String>,
    retry: Option<Duration>,
}

impl EventParser {
    /// Starts a new stream; the last id is kept.
    fn restart(&mut self) {
        let (last_id, retry) = (self.last_id.take(), self.retry);
        *self = Self { id: last_id.clone(), last_id, retry, ..Self::default() };
    }

    /// The events that end within these bytes. Errors: [`EventTooLong`].
    pub fn read(&mut self, bytes: &[u8]) -> Result<Vec<StreamEvent>, EventTooLong> {
        let mut events = Vec::new();
        for byte in bytes {
            let is_second = std::mem::take(&mut self.after_return) && *byte == b'\n';
            match byte {
                b'\n' if is_second => {}
                b'\n' | b'\r' => {
                    self.after_return = *byte == b'\r';
                    let line = std::mem::take(&mut self.line);
                    events.extend(self.end_line(&String::from_utf8_lossy(&line)));
                }
                _ => self.line.push(*byte),
            }
            if self.line.len() + self.event.data.len() > EVENT_MAX_BYTES {
                return Err(EventTooLong);
            }
        }
        Ok(events)
    }

    fn end_line(&mut self, line: &str) -> Option<StreamEvent> {
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
                self.retry = retry.map(|r| r.min(RETRY_MAX)).or(self.retry);
            }
            // Comments, which have no name, and unknown fields.
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

    fn event(kind: &str, data: &str) -> StreamEvent {
        StreamEvent { kind: kind.into(), data: data.into() }
    }

    #[test]
    fn stream_is_parsed_as_the_standard_says() {
        let mut parser = EventParser::default();
        let all = parser.read(STREAM.as_bytes()).expect("short");
        assert_eq!(all, [event("acquired", "{\"a\":1}"), event("released", "x\n\ny")]);
        assert_eq!((parser.last_id.as_deref(), parser.retry), (Some("1.3"), Some(Duration::from_millis(200))));
        parser.restart();
        assert_eq!(parser.read(b"\ndata: n\n\n"), Ok(vec![event("", "n")]), "the event that was cut off is dropped");
        assert_eq!(parser.last_id.as_deref(), Some("1.3"));
    }

    #[test]
    fn endless_event_is_refused() {
        let mut parser = EventParser::default();
        let long = vec![b'x'; EVENT_MAX_BYTES];
        assert_eq!(parser.read(b"data: "), Ok(vec![]));
        assert_eq!(parser.read(&long), Err(EventTooLong));
    }

    proptest! {
        #[test]
        fn chunk_boundaries_make_no_difference(cuts in proptest::collection::vec(0..STREAM.len(), 0..8)) {
            let mut cuts = cuts;
            cuts.extend([0, STREAM.len()]);
            cuts.sort_unstable();
            let mut parser = EventParser::default();
            let mut all = Vec::new();
            for part in cuts.windows(2) {
                all.extend(parser.read(&STREAM.as_bytes()[part[0]..part[1]]).expect("short"));
            }
            prop_assert_eq!(all, EventParser::default().read(STREAM.as_bytes()).expect("short"));
            prop_assert_eq!(parser.last_id.as_deref(), Some("1.3"));
        }
    }
}
