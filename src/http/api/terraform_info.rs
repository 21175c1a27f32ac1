//! Converts the lock information of Terraform and OpenTofu (`LockInfo`) into the labels of a lease, and back. Pure.
//!
//! Source: `LockInfo` in Terraform's `internal/states/statemgr/locker.go`, its client in
//! `internal/backend/remote-state/http/client.go`.

use serde::Deserialize;

use crate::api::LockInfo;
use crate::http::format;
use crate::http::problem::Problem;
use crate::manager::derived_tokens::Naming;
use crate::manager::types::{HeldReason, HeldRefusal, HolderInfo};
use crate::types::{Labels, NOTE_MAX_BYTES, OWNER_MAX_BYTES, ResourceName, cut_to_stored};

/// The naming of Terraform's locks.
pub const NAMING: Naming = Naming { protocol: "terraform", member: "tf.ID" };
/// The maximum length of an `ID`; Terraform generates UUIDs.
pub const ID_MAX_BYTES: usize = 128;
/// The maximum lengths of `Path`, `Version` and `Created`: longer ones are cut. All together fit into a lease's metadata.
const MEMBERS: [(&str, usize); 3] = [("tf.Path", 256), ("tf.Version", 64), ("tf.Created", 64)];
/// Separates operation and info in a note.
const SEPARATOR: &str = ": ";

/// A lock as received. Other members are ignored: later versions may have more.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
pub struct SentLock {
    #[serde(rename = "ID")]
    id: Option<String>,
    operation: Option<String>,
    info: Option<String>,
    who: Option<String>,
    version: Option<String>,
    created: Option<String>,
    path: Option<String>,
}

impl SentLock {
    /// Reads a body; an empty one is `None`, which `force-unlock` sends.
    ///
    /// Errors: `invalid`, naming `body` or `ID`.
    pub fn parse(body: &[u8]) -> Result<Option<Self>, Problem> {
        if body.is_empty() {
            return Ok(None);
        }
        let invalid =
            |at: String| Problem::invalid_field("body", format!("must be a JSON object whose members are texts{at}"));
        // Without this check, a list of the members in order would be accepted too.
        if !body.trim_ascii_start().starts_with(b"{") {
            return Err(invalid(String::new()));
        }
        let lock: Self = serde_json::from_slice(body)
            .map_err(|error| invalid(format!("; line {}, column {} is not", error.line(), error.column())))?;
        let id = lock.id();
        if id.is_empty() || id.len() > ID_MAX_BYTES || !id.bytes().all(|b| b.is_ascii_graphic()) {
            let detail = format!("must have 1 to {ID_MAX_BYTES} characters of printable ASCII without spaces");
            return Err(Problem::invalid_field("ID", detail));
        }
        Ok(Some(lock))
    }

    /// The name that Terraform generated.
    pub fn id(&self) -> &str {
        self.id.as_deref().unwrap_or_default()
    }

    /// The labels of the lease. Texts that are too long are cut: a run must not fail for a long path.
    pub fn labels(&self) -> Labels {
        let text = |text: &Option<String>| text.clone().unwrap_or_default();
        let (operation, info) = (text(&self.operation), text(&self.info));
        let note = if info.is_empty() { operation } else { operation + SEPARATOR + &info };
        let mut labels = Labels {
            owner: cut_to_stored(&text(&self.who), OWNER_MAX_BYTES).to_owned(),
            note: cut_to_stored(&note, NOTE_MAX_BYTES).to_owned(),
            ..Labels::default()
        };
        labels.metadata.insert(NAMING.member.to_owned(), self.id().to_owned());
        for ((member, most), value) in MEMBERS.iter().zip([&self.path, &self.version, &self.created]) {
            let value = cut_to_stored(value.as_deref().unwrap_or_default(), *most);
            if !value.is_empty() {
                labels.metadata.insert((*member).to_owned(), value.to_owned());
            }
        }
        labels
    }
}

/// The holder of the resource. It always has an `ID`: without one, `-lock-timeout` gives up at once.
pub(crate) fn of_refusal(resource: &ResourceName, refusal: &HeldRefusal) -> LockInfo {
    match (refusal.reason, refusal.holders.first()) {
        (HeldReason::Lease, Some(holder)) => of_holder(resource, holder),
        (reason, _) => {
            let (id, info) = match reason {
                HeldReason::Foreign => ("foreign", "held by another Redlock client"),
                HeldReason::LockDelay => ("lock-delay", "the last lease has expired, its safety margin has not"),
                HeldReason::Lease => ("unknown", ""),
            };
            of_labels(resource, id.to_owned(), &Labels { note: info.to_owned(), ..Labels::default() })
        }
    }
}

fn of_holder(resource: &ResourceName, holder: &HolderInfo) -> LockInfo {
    let id = holder.labels.metadata.get(NAMING.member);
    of_labels(resource, id.cloned().unwrap_or_else(|| holder.token_id.to_string()), &holder.labels)
}

fn of_labels(resource: &ResourceName, id: String, labels: &Labels) -> LockInfo {
    let [path, version, created] = MEMBERS.map(|(member, _)| labels.metadata.get(member).cloned());
    let (operation, info) = match labels.metadata.contains_key(NAMING.member) {
        true => labels.note.split_once(SEPARATOR).unwrap_or((&labels.note, "")),
        false => ("", labels.note.as_str()),
    };
    LockInfo {
        id,
        operation: operation.to_owned(),
        info: info.to_owned(),
        who: labels.owner.clone(),
        version: version.unwrap_or_default(),
        // Terraform ignores the whole body if the time is invalid.
        created: created
            .filter(|time| time.parse::<jiff::Timestamp>().is_ok())
            .unwrap_or_else(|| format::time(labels.acquired_at_ms)),
        path: path.unwrap_or_else(|| resource.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::manager::types::HeldResources;
    use crate::types::{Fence, Mode, ResourceName, Token};

    const SENT: &str = r#"{"ID":"1f0c4b8e-6f6f-8a3c-3d8e-5a1f6f0b7c11","Operation":"OperationTypeApply","Info":"","Who":"ann@pc",
        "Version":"1.13.2","Created":"2026-11-23T15:46:03.123456789Z","Path":"net/terraform.tfstate","More":{"a":[1]}}"#;

    fn held(reason: HeldReason, labels: Option<Labels>) -> HeldRefusal {
        let holder = labels.map(|labels| HolderInfo {
            mode: Mode::Exclusive,
            token_id: Token::derived("terraform", "", "x").hash().id(),
            fence: Fence(7),
            labels,
            valid_for: std::time::Duration::from_secs(9),
            kept_for: None,
            is_confirmed: true,
            renewals: 0,
        });
        let holders = holder.into_iter().collect();
        let resource = ResourceName::parse("net").expect("valid");
        let about = Box::new(HeldResources {
            resource,
            blocked_by: Vec::new(),
            all_named: true,
            ends_known: true,
            is_behind: false,
        });
        HeldRefusal { about, reason, holders, waiting: 0, waiting_elsewhere: 0, free_in: None, nodes: Vec::new() }
    }

    #[test]
    fn what_one_run_sends_another_one_is_shown() {
        let name = ResourceName::parse("tf/net").expect("valid");
        for (info, note) in [("", "OperationTypeApply"), ("nightly: all", "OperationTypeApply: nightly: all")] {
            let sent = SENT.replace(r#""Info":"""#, &format!(r#""Info":"{info}""#));
            let labels = SentLock::parse(sent.as_bytes()).expect("valid").expect("a lock").labels();
            assert_eq!((labels.owner.as_str(), labels.note.as_str()), ("ann@pc", note));
            let shown = of_refusal(&name, &held(HeldReason::Lease, Some(labels)));
            let mut sent: serde_json::Value = serde_json::from_str(&sent).expect("JSON");
            sent.as_object_mut().expect("an object").remove("More");
            assert_eq!(serde_json::to_value(shown).expect("plain data"), sent);
        }
    }

    #[test]
    fn labels_are_within_their_bounds_however_much_is_sent() {
        let long = "\u{e4}".repeat(20_000);
        let id = "i".repeat(ID_MAX_BYTES);
        let sent = serde_json::json!({ "ID": id, "Operation": long, "Info": long, "Who": long, "Version": long,
            "Created": long, "Path": long });
        let labels = SentLock::parse(sent.to_string().as_bytes()).expect("valid").expect("a lock").labels();
        labels.check().expect("bounded");
        assert_eq!(labels.metadata[NAMING.member], id);
        assert!(labels.owner.len() > 120 && labels.note.len() > 500);
    }

    /// P6, found by fuzzing: such labels were stored, and made a node's answer larger than others can.
    #[test]
    fn p6_labels_are_within_their_bounds_as_json_too() {
        for (character, stored) in [("\u{1}", 6), ("\"", 2), ("\\", 2)] {
            let long = character.repeat(200);
            let sent = serde_json::json!({ "ID": "1f0c", "Operation": "", "Info": long, "Who": long, "Version": long,
                "Created": long, "Path": long });
            let labels = SentLock::parse(sent.to_string().as_bytes()).expect("valid").expect("a lock").labels();
            labels.check().expect("bounded");
            assert_eq!(labels.owner.len(), OWNER_MAX_BYTES / stored);
        }
    }

    #[test]
    fn every_refusal_has_an_id_and_a_time() {
        let name = ResourceName::parse("tf/net").expect("valid");
        let mut plain = Labels { owner: "ann".to_owned(), note: "by hand: all".to_owned(), ..Labels::default() };
        plain.acquired_at_ms = 1_000;
        let shown = of_refusal(&name, &held(HeldReason::Lease, Some(plain.clone())));
        assert_eq!((shown.info.as_str(), shown.who.as_str(), shown.path.as_str()), ("by hand: all", "ann", "tf/net"));
        assert_eq!(shown.created, "1970-01-01T00:00:01.000Z");
        plain.metadata.insert("tf.Created".to_owned(), "yesterday".to_owned());
        let refusals = [
            held(HeldReason::Lease, Some(plain)),
            held(HeldReason::Lease, None),
            held(HeldReason::Foreign, None),
            held(HeldReason::LockDelay, None),
        ];
        for refusal in refusals {
            let shown = of_refusal(&name, &refusal);
            assert!(!shown.id.is_empty(), "{shown:?}");
            shown.created.parse::<jiff::Timestamp>().expect("a time");
        }
    }

    #[test]
    fn what_is_no_lock_is_refused() {
        assert_eq!(SentLock::parse(b"").expect("force-unlock"), None);
        let refused = |body: &str| {
            let problem = SentLock::parse(body.as_bytes()).expect_err(body);
            problem.body("r").members.errors.expect("fields are named")[0].field.clone()
        };
        for body in
            ["x", "[1]", "[]", r#"["a"]"#, "{", r#"{"ID":7}"#, r#"{"ID":"a","ID":"b"}"#, r#"{"ID":"a","Who":[]}"#]
        {
            assert_eq!(refused(body), "body", "{body}");
        }
        let long = format!(r#"{{"ID":"{}"}}"#, "i".repeat(ID_MAX_BYTES + 1));
        for body in ["{}", r#"{"ID":""}"#, r#"{"ID":null}"#, r#"{"ID":"a\nb"}"#, r#"{"ID":"a\u202eb"}"#, &long] {
            assert_eq!(refused(body), "ID", "{body}");
        }
    }
}
