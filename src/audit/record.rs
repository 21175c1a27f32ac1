//! One line of the audit log: who did what to which lock, and what came of it. Apart from the queue
//! and the file, which do not care what it says. There is no field for a token, only for its id.

use serde::Serialize;

/// What is written, in this order; what is not known is left out.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct AuditRecord {
    /// The request's id: also in its answer and in its log lines.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub request_id: Option<String>,
    /// The caller's trace.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub trace_id: Option<String>,
    /// The other end of the connection: the caller, or the proxy before it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub peer: Option<String>,
    /// Who the caller proved to be.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub principal: Option<String>,
    /// Who it says it is.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub owner: Option<String>,
    /// What was asked for: `acquire`, `hold`, `extend`, `release`, `revoke`, `force-now`; elsewhere
    /// method and route.
    pub action: String,
    /// Of what, where its name is one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub resource: Option<String>,
    /// Which lease: the first eight hex digits of the hash of its token.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub token_id: Option<String>,
    /// Its fencing token.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fence: Option<u64>,
    /// What came of it: a word for success, a problem's slug, or `abandoned`.
    pub outcome: String,
    /// The status code of the answer; a stream's later lines have none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub status: Option<u16>,
    /// An operator's reason for a forced end; else why it came out so.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

/// A record with its time, as a line.
#[derive(Serialize)]
struct Line<'a> {
    time: String,
    #[serde(flatten)]
    record: &'a AuditRecord,
}

impl AuditRecord {
    /// One line of JSON, with its end. Units: milliseconds since 1970.
    pub fn line(&self, wall_ms: u64) -> String {
        let ms = i64::try_from(wall_ms).unwrap_or(i64::MAX);
        let time = jiff::Timestamp::from_millisecond(ms).map(|t| format!("{t:.3}")).unwrap_or_default();
        let mut line = serde_json::to_string(&Line { time, record: self }).expect("a record is plain data");
        line.push('\n');
        line
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_one_line_and_leaves_out_what_is_not_known() {
        let record = AuditRecord {
            owner: Some("a\nb\u{2028}\"c".to_owned()),
            action: "acquire".to_owned(),
            outcome: "granted".to_owned(),
            fence: Some(7),
            ..AuditRecord::default()
        };
        let line = record.line(1_795_198_023_120);
        assert_eq!(line.matches('\n').count(), 1);
        let expected = r#"{"time":"2026-11-20T18:07:03.120Z","owner":"a\nb "#;
        assert!(line.starts_with(expected.trim_end()), "{line}");
        let read: serde_json::Value = serde_json::from_str(&line).expect("JSON");
        assert_eq!((read["fence"].as_u64(), &read["reason"]), (Some(7), &serde_json::Value::Null));
        assert_eq!(read["owner"], "a\nb\u{2028}\"c");
    }
}
