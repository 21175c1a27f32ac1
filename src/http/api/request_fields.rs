//! The fields of a request: query string, form and JSON merged into one set. Every error names its field, and fields
//! that the endpoint does not take are refused. Independent of the endpoint.

use std::collections::BTreeMap;
use std::time::Duration;

use axum::http::Uri;
use percent_encoding::percent_decode_str;

pub use super::received_value::LIST_MAX;
use super::received_value::{Given, Members};
use crate::api::FieldError;
use crate::duration::parse_duration;
use crate::http::problem::Problem;
use crate::http::problem_kind::ProblemKind;
use crate::types::Invalid;

/// The maximum number of fields of one request, several times what any endpoint takes: the answer repeats each unknown field.
pub const FIELDS_MAX: usize = 32;
/// The maximum number of characters of a field's name that an answer repeats.
const NAME_SHOWN_MAX_CHARS: usize = 40;
/// Names under which a client might put a token into a URL.
const TOKEN_NAMES: [&str; 3] = ["token", "lock-token", "lock_token"];

/// A field as received.
#[derive(Debug)]
struct Field {
    name: String,
    value: Given,
    /// Whether it is a string in JSON, where numbers and booleans have types of their own.
    is_json_text: bool,
}

/// All fields of one request, and the errors found so far.
#[derive(Debug, Default)]
pub struct Fields {
    /// So few that each is found by a search.
    given: Vec<Field>,
    /// The field that may be given several times, and its values.
    repeatable: Option<&'static str>,
    repeated: Vec<String>,
    errors: Vec<FieldError>,
}

impl Fields {
    /// No fields yet; `field` may be given several times.
    pub fn with_repeatable(field: &'static str) -> Self {
        Self { repeatable: Some(field), ..Self::default() }
    }

    /// Takes the values of the field that may be given several times, at most [`LIST_MAX`].
    pub fn repeated(&mut self) -> Vec<String> {
        std::mem::take(&mut self.repeated)
    }

    /// Takes a JSON array of strings, of which at most [`LIST_MAX`] are read; `None` if it is absent or null.
    pub fn list(&mut self, field: &str) -> Option<Vec<String>> {
        let elements = match self.remove(field)?.value {
            Given::Null => return None,
            Given::List(elements) => elements,
            other => {
                self.wrong(field, format!("must be an array of strings, not {}", other.type_name()));
                return None;
            }
        };
        let mut texts = Vec::with_capacity(elements.len());
        for element in elements {
            match element {
                Given::Text(text) => texts.push(text),
                other => self.wrong(field, format!("must be an array of strings, and has {}", other.type_name())),
            }
        }
        Some(texts)
    }

    /// The fields of a request without a body. Errors: as [`Fields::add_query`].
    pub fn of_query(uri: &Uri) -> Result<Self, Problem> {
        let mut fields = Self::default();
        fields.add_query(uri.query().unwrap_or_default())?;
        Ok(fields)
    }

    /// Adds the query string.
    ///
    /// Errors: `token-in-url` for a token, however its name is encoded or capitalised; `invalid` for bytes that are
    /// not UTF-8 and for too many fields.
    pub fn add_query(&mut self, query: &str) -> Result<(), Problem> {
        if query.is_empty() {
            return Ok(());
        }
        let pairs = decode_pairs(query, "query")?;
        if pairs.iter().any(|(name, _)| TOKEN_NAMES.contains(&name.trim().to_ascii_lowercase().as_str())) {
            let detail = "a token was sent in the URL, where it gets logged: send it in the Lock-Token header \
                          (with POST: in the header or in the body)";
            return Err(Problem::new(ProblemKind::TokenInUrl, detail));
        }
        pairs.into_iter().try_for_each(|(name, value)| self.add(name, Given::Text(value), false))
    }

    /// Adds a form body. Errors: `invalid`.
    pub fn add_form(&mut self, body: &[u8]) -> Result<(), Problem> {
        let text = std::str::from_utf8(body).map_err(|_| Problem::invalid_field("body", "is not UTF-8"))?;
        decode_pairs(text, "body")?.into_iter().try_for_each(|(name, value)| self.add(name, Given::Text(value), false))
    }

    /// Adds a JSON body. Errors: `invalid`, which never quotes the body.
    pub fn add_json(&mut self, body: &[u8]) -> Result<(), Problem> {
        let Members(members) = serde_json::from_slice(body).map_err(|error| {
            let detail = match error.classify() {
                serde_json::error::Category::Data => "must be a JSON object".to_owned(),
                _ => format!("is not valid JSON at line {}, column {}", error.line(), error.column()),
            };
            Problem::invalid_field("body", detail)
        })?;
        members.into_iter().try_for_each(|(name, value)| {
            let is_json_text = matches!(value, Given::Text(_));
            self.add(name, value, is_json_text)
        })
    }

    fn add(&mut self, name: String, value: Given, is_json_text: bool) -> Result<(), Problem> {
        if self.repeatable == Some(name.as_str())
            && let Given::Text(text) = value
        {
            if self.repeated.len() < LIST_MAX {
                self.repeated.push(text);
            }
            return Ok(());
        }
        let count = self.given.len();
        match self.given.iter_mut().find(|field| field.name == name) {
            Some(earlier) if !earlier.value.is_same_as(&value) => {
                self.wrong(&shown(&name), "is given twice, with different values")
            }
            Some(earlier) => earlier.is_json_text |= is_json_text,
            None if count >= FIELDS_MAX => {
                return Err(Problem::invalid_field("body", format!("more than {FIELDS_MAX} fields")));
            }
            None => self.given.push(Field { name, value, is_json_text }),
        }
        Ok(())
    }

    /// Records an error, which [`Fields::finish`] reports. Only the first error of each field is kept, so that a body that
    /// repeats one name ten thousand times gets one line of answer.
    pub fn wrong(&mut self, field: &str, detail: impl Into<String>) {
        if self.errors.iter().all(|e| e.field != field) {
            self.errors.push(FieldError { field: field.to_owned(), detail: detail.into() });
        }
    }

    /// Returns the value of a check, or records its error.
    pub fn check<T>(&mut self, field: &str, checked: Result<T, Invalid>) -> Option<T> {
        checked.map_err(|invalid| self.wrong(field, invalid.0)).ok()
    }

    fn get(&self, field: &str) -> Option<&Given> {
        self.given.iter().find(|given| given.name == field).map(|given| &given.value)
    }

    fn remove(&mut self, field: &str) -> Option<Field> {
        let index = self.given.iter().position(|given| given.name == field)?;
        Some(self.given.swap_remove(index))
    }

    /// Removes the field. Returns whether it was present; null counts as present.
    pub fn take(&mut self, field: &str) -> bool {
        self.remove(field).is_some()
    }

    /// Removes the field if it is null. Returns whether it was.
    pub fn take_null(&mut self, field: &str) -> bool {
        let null = self.get(field) == Some(&Given::Null);
        null && self.take(field)
    }

    /// Takes a text field. Null counts as absent; another type is an error.
    pub fn text(&mut self, field: &str) -> Option<String> {
        match self.remove(field)?.value {
            Given::Text(text) => Some(text),
            Given::Null => None,
            other => {
                self.wrong(field, format!("must be a string, not {}", other.type_name()));
                None
            }
        }
    }

    /// Takes a boolean: `true` or `false` in a query or form, a boolean in JSON. Absent and null are false.
    pub fn flag(&mut self, field: &str) -> bool {
        let Some(Field { value, is_json_text, .. }) = self.remove(field) else { return false };
        let wrong = match value {
            Given::Null => return false,
            Given::Bool(flag) => return flag,
            Given::Text(text) if matches!(text.as_str(), "true" | "false") => {
                if !is_json_text {
                    return text == "true";
                }
                "must be true or false, without quotation marks".to_owned()
            }
            Given::Text(_) => "must be true or false".to_owned(),
            other => format!("must be true or false, not {}", other.type_name()),
        };
        self.wrong(field, wrong);
        false
    }

    /// Takes a duration. A number without a unit, quoted or not, is an error with a hint.
    pub fn duration(&mut self, field: &str) -> Option<Duration> {
        if let Some(Given::Number(number)) = self.get(field) {
            let hint = parse_duration(number).err().map_or_else(|| "has no unit".to_owned(), |i| i.0);
            self.take(field);
            self.wrong(field, hint);
            return None;
        }
        let text = self.text(field)?;
        self.check(field, parse_duration(&text))
    }

    /// Takes a whole number, as text or as a JSON number.
    pub fn number(&mut self, field: &str) -> Option<u64> {
        let text = match self.get(field) {
            Some(Given::Number(number)) => {
                let number = number.clone();
                self.take(field);
                number
            }
            _ => self.text(field)?,
        };
        self.check(field, text.parse().map_err(|_| Invalid("must be a whole number".to_owned())))
    }

    /// Takes pairs of strings: a JSON object, also as the text of a form field. A null value is `None`.
    pub fn pairs(&mut self, field: &str) -> Vec<(String, Option<String>)> {
        let Some(Field { value, is_json_text, .. }) = self.remove(field) else { return Vec::new() };
        let given = match value {
            Given::Null => return Vec::new(),
            Given::Text(text) if !is_json_text => match serde_json::from_str(&text) {
                Ok(given) => given,
                Err(_) => {
                    self.wrong(field, "is not valid JSON: must be an object of strings such as {\"build\":\"17\"}");
                    return Vec::new();
                }
            },
            other => other,
        };
        let Given::Pairs(pairs) = given else {
            let text = format!("must be an object of strings such as {{\"build\":\"17\"}}, not {}", given.type_name());
            self.wrong(field, text);
            return Vec::new();
        };
        let mut checked = BTreeMap::new();
        for (key, value) in pairs {
            let value = match value {
                Ok(value) => value,
                Err(type_name) => {
                    self.wrong(field, format!("the value of \"{}\" must be a string, not {type_name}", shown(&key)));
                    return Vec::new();
                }
            };
            if checked.get(&key).is_some_and(|earlier| *earlier != value) {
                self.wrong(field, format!("\"{}\" is given twice, with different values", shown(&key)));
                return Vec::new();
            }
            checked.insert(key, value);
        }
        checked.into_iter().collect()
    }

    /// Ends the parsing: the fields that were not taken are unknown.
    ///
    /// Errors: `invalid` with all recorded errors and each unknown field.
    pub fn finish(mut self, known: &[&str]) -> Result<(), Problem> {
        if self.given.is_empty() {
            return self.finish_with_others();
        }
        let mut left: Vec<String> = std::mem::take(&mut self.given).into_iter().map(|field| field.name).collect();
        left.sort_unstable();
        for name in left {
            // Such a text is a whole body, and may contain a key: it is not repeated.
            if name.trim_start().starts_with(['{', '[']) {
                let detail = "looks like JSON, and was sent as a form: add `Content-Type: \
                              application/json` (`curl --json`)";
                self.wrong("body", detail.to_owned());
                continue;
            }
            let detail = if known.is_empty() {
                "is unknown: no fields are accepted here".to_owned()
            } else {
                format!("is unknown: the fields here are {}", known.join(", "))
            };
            self.wrong(&shown(&name), detail);
        }
        self.finish_with_others()
    }

    /// Ends the parsing; fields that were not taken are ignored.
    ///
    /// Errors: `invalid` with all recorded errors.
    pub fn finish_with_others(self) -> Result<(), Problem> {
        if self.errors.is_empty() { Ok(()) } else { Err(Problem::invalid(self.errors)) }
    }
}

/// A field's name as an answer may repeat it: short, and on one line.
fn shown(name: &str) -> String {
    let mut text: String = name.chars().take(NAME_SHOWN_MAX_CHARS).flat_map(char::escape_debug).collect();
    if name.chars().nth(NAME_SHOWN_MAX_CHARS).is_some() {
        text.push('…');
    }
    text
}

/// Parses `a=b&c=d` with `+` for spaces and percent-encoding; strictly UTF-8.
fn decode_pairs(text: &str, place: &str) -> Result<Vec<(String, String)>, Problem> {
    let decode = |part: &str| {
        let spaced = part.replace('+', " ");
        let decoded = percent_decode_str(&spaced).decode_utf8().map(String::from);
        decoded.map_err(|_| Problem::invalid_field(place, "is not UTF-8 when percent-decoded"))
    };
    let parts = text.split('&').filter(|part| !part.is_empty());
    parts
        .map(|part| {
            let (name, value) = part.split_once('=').unwrap_or((part, ""));
            Ok((decode(name)?, decode(value)?))
        })
        .collect()
}

#[cfg(test)]
#[path = "request_fields_tests.rs"]
mod tests;
