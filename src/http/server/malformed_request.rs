//! The HTTP library answers a request head that it cannot parse with only a status and a length. While the answer is written,
//! this module adds the parts that every other answer has: a problem document, a request id, and the headers against caching and
//! guessing of types.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use tokio::io::AsyncWrite;

use crate::http::middleware::request_id::{RequestId, X_REQUEST_ID};
use crate::http::problem::Problem;
use crate::http::problem_kind::ProblemKind;
use crate::redlock::random::SystemEntropy;

/// More bytes than the library writes: status, length, date and connection.
const LIBRARY_ANSWER_MAX: usize = 512;
/// Where the status begins.
const STATUS_AT: usize = "HTTP/1.1 ".len();
/// The end of a head.
const HEAD_END: &str = "\r\n\r\n";

/// A completed answer that is being written in place of the library's.
pub(super) struct RefusedHead {
    bytes: Vec<u8>,
    written: usize,
}

impl RefusedHead {
    /// Replaces the bytes that the library is about to write, if they are an answer of its own: a whole head without a body and
    /// without a request id, which every answer of a handler has. No text of a client can look like this, since no answer
    /// contains a line break from a client.
    pub(super) fn of(bytes: &[u8]) -> Option<Self> {
        // Most writes end here.
        let is_refusal = bytes.starts_with(b"HTTP/1.") && bytes.get(STATUS_AT) == Some(&b'4');
        if bytes.len() > LIBRARY_ANSWER_MAX || !is_refusal {
            return None;
        }
        let head = std::str::from_utf8(bytes).ok()?.strip_suffix(HEAD_END)?;
        // In the version of the previous request on the same connection.
        let status = head.strip_prefix("HTTP/1.1 ").or_else(|| head.strip_prefix("HTTP/1.0 "))?;
        let problem = match status.get(..3)? {
            "400" => Problem::invalid_field("head", "request line or headers are not valid HTTP/1.1"),
            "414" => Problem::new(ProblemKind::UriTooLong, "path and query are longer than any limit here"),
            "431" => Problem::new(ProblemKind::HeadTooLarge, "request line and headers exceed their limit"),
            _ => return None,
        };
        let mut lines = head.split("\r\n");
        let (status, headers) = (lines.next()?, lines.collect::<Vec<_>>());
        let has = |name: &str| headers.iter().any(|line| line.split(':').next().unwrap_or_default() == name);
        if head.contains(HEAD_END) || !has("content-length") || has(X_REQUEST_ID.as_str()) {
            return None;
        }
        let id = RequestId::generate(&SystemEntropy);
        tracing::debug!(request_id = id.as_str(), status, "a head that cannot be read was refused");
        let body = serde_json::to_string(&problem.body(id.as_str())).ok()? + "\n";
        let kept = headers.iter().filter(|line| !line.starts_with("content-length:"));
        let mut text: String = std::iter::once(&status).chain(kept).map(|line| format!("{line}\r\n")).collect();
        if !has("connection") {
            text.push_str("connection: close\r\n");
        }
        text.push_str(&format!(
            "content-type: application/problem+json\r\ncontent-length: {}\r\n{X_REQUEST_ID}: {}\r\n\
             cache-control: no-store\r\nx-content-type-options: nosniff\r\n\r\n{body}",
            body.len(),
            id.as_str()
        ));
        Some(Self { bytes: text.into_bytes(), written: 0 })
    }

    /// Writes the answer to its end.
    pub(super) fn poll_write(
        &mut self,
        mut into: Pin<&mut impl AsyncWrite>,
        cx: &mut Context<'_>,
    ) -> Poll<io::Result<()>> {
        while self.written < self.bytes.len() {
            let written = ready!(into.as_mut().poll_write(cx, &self.bytes[self.written..]))?;
            if written == 0 {
                return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
            }
            self.written += written;
        }
        Poll::Ready(Ok(()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn l2_only_answers_of_the_library_are_completed() {
        let own = "HTTP/1.1 431 Request Header Fields Too Large\r\ncontent-length: 0\r\ndate: today\r\n\r\n";
        assert!(RefusedHead::of(own.replace("/1.1", "/1.0").as_bytes()).is_some());
        let completed = RefusedHead::of(own.as_bytes()).expect("one of the library");
        let text = String::from_utf8(completed.bytes).expect("text");
        let (head, body) = text.split_once("\r\n\r\n").expect("a head");
        assert!(head.starts_with("HTTP/1.1 431 ") && head.contains("date: today\r\n"), "{head}");
        assert!(head.contains(&format!("content-length: {}\r\n", body.len())), "{head}");
        let body: serde_json::Value = serde_json::from_str(body).expect("JSON");
        assert_eq!((&body["type"], &body["status"]), (&"/problems/head-too-large".into(), &431.into()));
        assert!(head.contains(&format!("x-request-id: {}", body["instance"].as_str().expect("an id"))), "{head}");
        for other in [
            "HTTP/1.1 400 Bad Request\r\ncontent-length: 0\r\nx-request-id: a\r\n\r\n",
            "HTTP/1.1 400 Bad Request\r\nx-request-id: a\r\ncontent-length: 5\r\n\r\n{}\r\n\r\n",
            "HTTP/1.1 204 No Content\r\ncontent-length: 0\r\n\r\n",
            "HTTP/1.1 400 Bad Request\r\ncontent-length: 0\r\n",
            "a text with\r\n\r\n",
            "",
        ] {
            assert!(RefusedHead::of(other.as_bytes()).is_none(), "{other}");
        }
    }
}
