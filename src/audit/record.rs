//! One line of the audit log: the principal, the action, the lock and the outcome. It has no field for a token, only for the
//! token's id.

use serde::Serialize;

use crate::types::is_hidden;

/// The fields of a line, in this order; unknown ones are left out.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct AuditRecord {
    /// The request id, as in the response and in the program's log.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub request_id: Option<String>,
    /// The trace id that the caller sent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub trace_id: Option<String>,
    /// Address of the client, or of the proxy in front of it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub peer: Option<String>,
    /// The authenticated principal.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub principal: Option<String>,
    /// The owner label that the caller gave.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub owner: Option<String>,
    /// `acquire`, `hold`, `extend`, `release`, `revoke`, `force-now`, `forget-node`, `replace-node`; otherwise method and route.
    pub action: String,
    /// The resource, if its name is valid.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub resource: Option<String>,
    /// The node, if the action concerns one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub node: Option<String>,
    /// The lease: the first eight hex digits of the hash of its token.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub token_id: Option<String>,
    /// `shared` or `permit`, if the lease is not exclusive.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mode: Option<String>,
    /// The lease's fencing token.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fence: Option<u64>,
    /// How long the lease was held, as far as the instance that ended it knows. Milliseconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub held_ms: Option<u64>,
    /// How long an acquire waited. Milliseconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub waited_ms: Option<u64>,
    /// The owner label of the lease that was forced to end.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ended_owner: Option<String>,
    /// The outcome: a word for success, a problem kind, or `abandoned`.
    pub outcome: String,
    /// The status code of the response; later records of a stream have none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub status: Option<u16>,
    /// An operator's reason for a forced end; otherwise the reason of the outcome.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

/// A record with its time.
#[derive(Serialize)]
struct Line<'a> {
    time: String,
    #[serde(flatten)]
    record: &'a AuditRecord,
}

impl AuditRecord {
    /// The record as a line of JSON, including the line end. Characters that are invisible or change the direction of text are
    /// escaped, so that a terminal shows the line as it is. Units: milliseconds since 1970.
    pub fn line(&self, wall_ms: u64) -> String {
        let ms = i64::try_from(wall_ms).unwrap_or(i64::MAX);
        let time = jiff::Timestamp::from_millisecond(ms).map(|t| format!("{t:.3}")).unwrap_or_default();
        let json = serde_json::to_string(&Line { time, record: self }).expect("a record is plain data");
        let mut line = String::with_capacity(json.len() + 1);
        for c in json.chars() {
            match is_hidden(c) {
                // Such characters occur only within strings: JSON's own characters are all visible.
                true => c.encode_utf16(&mut [0; 2]).iter().for_each(|unit| line.push_str(&format!("\\u{unit:04x}"))),
                false => line.push(c),
            }
        }
        line.push('\n');
        line
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn l7_a_record_is_one_visible_line_without_its_unknown_fields() {
        let record = AuditRecord {
            owner: Some("a\nb\u{2028}\"c\u{202e}\u{e0041}".to_owned()),
            action: "acquire".to_owned(),
            outcome: "granted".to_owned(),
            fence: Some(7),
            ..AuditRecord::default()
        };
        let line = record.line(1_795_198_023_120);
        assert_eq!(line.matches('\n').count(), 1);
        assert!(
            line.starts_with(r#"{"time":"2026-11-20T18:07:03.120Z","owner":"a\nb\u2028\"c\u202e\udb40\udc41","#),
            "{line}"
        );
        let read: serde_json::Value = serde_json::from_str(&line).expect("JSON");
        assert_eq!((read["fence"].as_u64(), &read["reason"]), (Some(7), &serde_json::Value::Null));
        assert_eq!(read["owner"], "a\nb\u{2028}\"c\u{202e}\u{e0041}");
    }
}
