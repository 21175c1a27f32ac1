//! Reads the fields of one table of the webhooks file and the files that it names, and collects the mistakes. No message
//! repeats a value.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use reqwest::header::{HeaderMap, HeaderName, HeaderValue};

use super::allowed_addresses::AddressPolicy;
use super::connection::{Authorities, Connector};
use super::resolver::Lookup;
use super::signing::SigningSecret;
use crate::auth::principal::PrincipalName;
use crate::bounded_file;
use crate::types::Invalid;

/// Maximum size of the file, and of each file that it names. Bytes.
pub(super) const FILE_MAX_BYTES: u64 = 256 << 10;
/// Maximum number of headers of one target.
const HEADERS_MAX: usize = 16;
/// Maximum length of a field's text. Bytes.
const FIELD_MAX_BYTES: usize = 4_096;
/// Headers that the service sets itself, or that frame a message.
const OWN_HEADERS: [&str; 11] = [
    "host",
    "content-length",
    "content-type",
    "transfer-encoding",
    "connection",
    "te",
    "upgrade",
    "expect",
    "webhook-id",
    "webhook-timestamp",
    "webhook-signature",
];

/// The text of a file of bounded size. Errors: the reason, which continues "the file …".
pub(super) fn read_text(path: &Path) -> Result<String, String> {
    let unreadable = |error: std::io::Error| format!("cannot be read: {error}");
    match bounded_file::read(path, FILE_MAX_BYTES).map_err(unreadable)? {
        Some(text) => Ok(text),
        None => Err(format!("has more than {FILE_MAX_BYTES} bytes")),
    }
}

/// Reads one table. Each field is removed as it is read; the fields that are left are unknown.
pub(super) struct TableReader<'a> {
    /// The name of the table in messages.
    pub(super) place: String,
    fields: toml::Table,
    known: Vec<&'static str>,
    mistakes: &'a mut Vec<String>,
}

impl<'a> TableReader<'a> {
    pub(super) fn new(entry: &toml::Value, place: String, mistakes: &'a mut Vec<String>) -> Self {
        let fields = entry.as_table().cloned();
        if fields.is_none() {
            mistakes.push(format!("has a mistake in {place}: it must be a table"));
        }
        Self { place, fields: fields.unwrap_or_default(), known: Vec::new(), mistakes }
    }

    /// Adds a mistake at the present place.
    pub(super) fn report(&mut self, mistake: &str) {
        self.mistakes.push(format!("has a mistake in {}: {mistake}", self.place));
    }

    /// The value of a check whose error does not repeat the value.
    pub(super) fn check<T>(&mut self, field: &str, parsed: Result<T, Invalid>) -> Option<T> {
        parsed.map_err(|why| self.report(&format!("{field}: {why}"))).ok()
    }

    pub(super) fn has(&self, field: &str) -> bool {
        self.fields.contains_key(field)
    }

    pub(super) fn is_text(&self, field: &str) -> bool {
        self.fields.get(field).is_some_and(toml::Value::is_str)
    }

    fn take(&mut self, field: &'static str) -> Option<toml::Value> {
        self.known.push(field);
        self.fields.remove(field)
    }

    pub(super) fn text(&mut self, field: &'static str) -> Option<String> {
        match self.take(field)? {
            toml::Value::String(text) if text.len() <= FIELD_MAX_BYTES => Some(text),
            _ => {
                self.report(&format!("`{field}` must be a text of at most {FIELD_MAX_BYTES} bytes"));
                None
            }
        }
    }

    /// The name of a target or hook, by the rules for names of principals.
    pub(super) fn name(&mut self, field: &'static str) -> Option<String> {
        let Some(text) = self.text(field) else {
            self.report(&format!("it needs a `{field}`"));
            return None;
        };
        self.check(&format!("`{field}`"), PrincipalName::parse(&text)).map(|name| name.to_string())
    }

    pub(super) fn flag(&mut self, field: &'static str) -> bool {
        match self.take(field) {
            None => false,
            Some(toml::Value::Boolean(is_set)) => is_set,
            Some(_) => {
                self.report(&format!("`{field}` must be true or false"));
                false
            }
        }
    }

    /// A list of texts; empty if it is missing or wrong.
    pub(super) fn texts(&mut self, field: &'static str, maximum: usize) -> Vec<String> {
        let Some(value) = self.take(field) else { return Vec::new() };
        let texts: Option<Vec<String>> =
            value.as_array().and_then(|items| items.iter().map(|item| item.as_str().map(str::to_owned)).collect());
        match texts {
            Some(texts) if texts.len() <= maximum => texts,
            Some(_) => {
                self.report(&format!("`{field}` must have at most {maximum} entries"));
                Vec::new()
            }
            None => {
                self.report(&format!("`{field}` must be a list of texts"));
                Vec::new()
            }
        }
    }

    /// Reports the fields that are left.
    pub(super) fn finish(&mut self) {
        if !std::mem::take(&mut self.fields).is_empty() {
            let known = self.known.join(", ");
            self.report(&format!("it has an unknown field; the fields are {known}"));
        }
    }
}

/// The files that targets name, and the connectors that they share.
pub(super) struct TargetFiles {
    dir: PathBuf,
    lookup: Arc<dyn Lookup>,
    connectors: HashMap<(AddressPolicy, bool, Option<String>), Connector>,
    /// Every file that was to be read.
    pub(super) read: Vec<PathBuf>,
}

impl TargetFiles {
    pub(super) fn new(dir: &Path, lookup: Arc<dyn Lookup>) -> Self {
        Self { dir: dir.to_owned(), lookup, connectors: HashMap::new(), read: Vec::new() }
    }

    /// The text of a file. A mistake names the field, not the file, whose name may be a misplaced secret.
    fn text(&mut self, entry: &mut TableReader<'_>, field: &str, file: &str) -> Option<String> {
        let path = self.dir.join(file);
        let text = read_text(&path);
        self.read.push(path);
        text.map_err(|why| entry.report(&format!("a file of `{field}` {why}"))).ok()
    }

    /// The text of a file that has one line.
    pub(super) fn line(&mut self, entry: &mut TableReader<'_>, field: &str, file: &str) -> Option<String> {
        let text = self.text(entry, field, file)?;
        let line = text.strip_suffix('\n').unwrap_or(&text);
        let line = line.strip_suffix('\r').unwrap_or(line);
        if line.is_empty() || line.chars().any(char::is_control) {
            entry.report(&format!("a file of `{field}` must have one line"));
            return None;
        }
        Some(line.to_owned())
    }

    pub(super) fn secret(&mut self, entry: &mut TableReader<'_>, field: &str, file: &str) -> Option<SigningSecret> {
        let line = self.line(entry, field, file)?;
        entry.check(&format!("a file of `{field}`"), SigningSecret::parse(&line))
    }

    /// The headers in a file with lines of the form `Name: value`.
    pub(super) fn headers(&mut self, entry: &mut TableReader<'_>, file: &str) -> Option<HeaderMap> {
        let text = self.text(entry, "headers_file", file)?;
        let mut headers = HeaderMap::new();
        for line in text.lines().filter(|line| !line.trim().is_empty()) {
            let parsed = line.split_once(':').and_then(|(name, value)| {
                let name = HeaderName::from_bytes(name.trim().as_bytes()).ok()?;
                let mut value = HeaderValue::from_str(value.trim()).ok()?;
                value.set_sensitive(true);
                (!OWN_HEADERS.contains(&name.as_str())).then_some((name, value))
            });
            let Some((name, value)) = parsed else {
                entry.report("a line of `headers_file` is not `Name: value`, or names a header that the service sets");
                return None;
            };
            headers.append(name, value);
        }
        if headers.len() > HEADERS_MAX {
            entry.report(&format!("`headers_file` has more than {HEADERS_MAX} headers"));
            return None;
        }
        Some(headers)
    }

    /// The connector that all targets with the same rules share.
    pub(super) fn connector(
        &mut self,
        entry: &mut TableReader<'_>,
        policy: AddressPolicy,
        is_tls: bool,
        authorities: Option<String>,
    ) -> Option<Connector> {
        let key = (policy, is_tls, authorities.clone());
        if let Some(connector) = self.connectors.get(&key) {
            return Some(connector.clone());
        }
        let pem = match authorities {
            Some(file) => Some(self.text(entry, "ca_file", &file)?),
            None => None,
        };
        let authorities = match &pem {
            Some(pem) => Authorities::Pem(pem.as_bytes()),
            None if is_tls => Authorities::System,
            None => Authorities::None,
        };
        match Connector::new(policy, Arc::clone(&self.lookup), authorities) {
            Ok(connector) => {
                self.connectors.insert(key, connector.clone());
                Some(connector)
            }
            Err(why) => {
                entry.report(&format!("`ca_file`, or the authorities of this system: {why}"));
                None
            }
        }
    }
}
