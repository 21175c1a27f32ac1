//! The body of a message in the form that its receiver reads. It is made once for a message and a target: tries
//! differ only in their time and signature.

use bytes::Bytes;
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use serde_json::{Map, Value, json};

use super::target::Form;

/// Maximum length of a body: what Standard Webhooks recommends. Bytes.
pub const MESSAGE_MAX_BYTES: usize = 20_000;
/// The prefix of the names of a pipeline's variables.
const VARIABLE_PREFIX: &str = "REDLOCKD_";

/// The content of a message, in any form.
#[derive(Debug, Clone, Copy)]
pub struct Content<'a> {
    /// The header `webhook-id`.
    pub id: &'a str,
    /// The member `type`.
    pub kind: &'a str,
    /// When the event happened. Milliseconds since 1970.
    pub at_ms: u64,
    /// The member `data`.
    pub data: &'a Map<String, Value>,
}

/// A body and its media type.
#[derive(Clone, PartialEq, Eq)]
pub struct Body {
    /// The bytes that are signed and sent. They may contain the token of a pipeline trigger.
    pub bytes: Bytes,
    /// The header `Content-Type`.
    pub media_type: &'static str,
}

impl Content<'_> {
    /// The body in this form. If it would be too long, `data` is left out, so that the receiver still learns of the event.
    pub fn body(&self, form: &Form) -> Body {
        let body = self.encoded(form);
        if body.bytes.len() <= MESSAGE_MAX_BYTES {
            return body;
        }
        Content { data: &Map::new(), ..*self }.encoded(form)
    }

    fn encoded(&self, form: &Form) -> Body {
        const JSON: &str = "application/json";
        let json = |value: Value| Body { bytes: value.to_string().into(), media_type: JSON };
        let (id, data) = (self.id, self.data);
        match form {
            Form::Standard => json(json!({ "type": self.kind, "timestamp": self.timestamp(), "data": data })),
            // At most 10 members are allowed, so `data` stays one member.
            Form::GithubDispatch => json(json!({
                "event_type": self.kind,
                "client_payload": { "id": id, "timestamp": self.timestamp(), "data": data },
            })),
            Form::GitlabTrigger { token, git_ref } => self.pipeline(token, git_ref),
        }
    }

    fn timestamp(&self) -> String {
        let at = jiff::Timestamp::from_millisecond(i64::try_from(self.at_ms).unwrap_or(i64::MAX));
        at.map(|at| format!("{at:.3}")).unwrap_or_default()
    }

    /// Each member of `data` is a variable; a value that is not plain is JSON.
    fn pipeline(&self, token: &str, git_ref: &str) -> Body {
        let field = |name: &str, value: &str| {
            let encode = |text: &str| utf8_percent_encode(text, NON_ALPHANUMERIC).to_string();
            format!("{}={}", encode(name), encode(value))
        };
        let variable = |name: &str, value: &str| {
            let name: String =
                name.chars().map(|c| if c.is_ascii_alphanumeric() { c.to_ascii_uppercase() } else { '_' }).collect();
            field(&format!("variables[{VARIABLE_PREFIX}{name}]"), value)
        };
        let mut fields = vec![field("token", token), field("ref", git_ref)];
        fields.extend([("type", self.kind), ("id", self.id)].map(|(name, value)| variable(name, value)));
        fields.push(variable("timestamp", &self.timestamp()));
        for (name, value) in self.data {
            match value {
                Value::Null => {}
                Value::String(text) => fields.push(variable(name, text)),
                other => fields.push(variable(name, &other.to_string())),
            }
        }
        Body { bytes: fields.join("&").into(), media_type: "application/x-www-form-urlencoded" }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn data() -> Map<String, Value> {
        let data = json!({ "ticket": "tk_1", "fence": 7, "metadata": { "run": "17" }, "note": null });
        data.as_object().expect("an object").clone()
    }

    fn content(data: &Map<String, Value>) -> Content<'_> {
        Content { id: "tk_1_granted", kind: "lock.granted", at_ms: 1_700_000_000_123, data }
    }

    fn json_of(form: &Form) -> Value {
        serde_json::from_slice(&content(&data()).body(form).bytes).expect("JSON")
    }

    #[test]
    fn each_form_is_what_its_receiver_reads() {
        let standard = json_of(&Form::Standard);
        assert_eq!(standard["type"], "lock.granted");
        assert_eq!(standard["timestamp"], "2023-11-14T22:13:20.123Z");
        assert_eq!(standard["data"]["metadata"]["run"], "17");
        let github = json_of(&Form::GithubDispatch);
        assert_eq!(github["event_type"], "lock.granted");
        assert_eq!(github["client_payload"]["data"]["ticket"], "tk_1");
        assert!(github["client_payload"].as_object().is_some_and(|members| members.len() <= 10));
        let form = Form::GitlabTrigger { token: "glptt&x".to_owned(), git_ref: "main".to_owned() };
        let gitlab = content(&data()).body(&form);
        assert_eq!(gitlab.media_type, "application/x-www-form-urlencoded");
        let text = String::from_utf8(gitlab.bytes.to_vec()).expect("text");
        let fields: Vec<String> =
            text.split('&').map(|f| percent_encoding::percent_decode_str(f).decode_utf8_lossy().into_owned()).collect();
        for expected in [
            "token=glptt&x",
            "ref=main",
            "variables[REDLOCKD_TYPE]=lock.granted",
            "variables[REDLOCKD_TICKET]=tk_1",
            "variables[REDLOCKD_FENCE]=7",
            "variables[REDLOCKD_METADATA]={\"run\":\"17\"}",
        ] {
            assert!(fields.iter().any(|field| field == expected), "{expected}: {fields:?}");
        }
        assert_eq!(format!("{form:?}"), "gitlab-trigger", "its token is a secret");
    }

    #[test]
    fn a_body_is_never_longer_than_receivers_accept() {
        let mut long = data();
        long.insert("detail".to_owned(), Value::from("x".repeat(MESSAGE_MAX_BYTES)));
        let body = content(&long).body(&Form::Standard);
        assert!(body.bytes.len() < 200, "{}", body.bytes.len());
        assert!(content(&data()).body(&Form::Standard).bytes.len() < MESSAGE_MAX_BYTES);
    }
}
