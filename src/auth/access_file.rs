//! Parser of the access file (TOML): principals, the hashes of their keys, and their rules; issuers of tokens. Separate from the
//! settings, since the file changes while the service runs and others maintain it. No message repeats a value that may be a
//! misplaced secret.

use std::path::{Path, PathBuf};

use super::access_file_fields::{Reader, shown};
use super::access_rule::{AccessRule, AccessRules};
use super::api_key::KeyHash;
use super::oidc_issuer::{ISSUERS_MAX, Issuer};
use super::principal::{CertificateName, KeyEntry, Principal, PrincipalLimits, PrincipalName};
use super::principals::PrincipalStore;
use crate::bounded_file;
use crate::types::Invalid;

/// Maximum size of the file: enough for ten thousand keys.
const FILE_MAX_BYTES: u64 = 1 << 20;
/// Maximum number of principals: a presented key is compared with all their keys.
pub const PRINCIPALS_MAX: usize = 1_000;
/// Maximum number of keys of one principal: the present one, its successor, and some old ones.
pub const KEYS_MAX: usize = 8;
/// Maximum number of rules of one principal.
pub const RULES_MAX: usize = 64;

/// Why the file cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum AccessFileError {
    /// The file cannot be read.
    #[error("the access file {path} cannot be read: {reason}")]
    Unreadable {
        path: PathBuf,
        /// The error of the operating system.
        reason: String,
    },
    /// The content is invalid.
    #[error("the access file {path} {}", .mistakes.join("; "))]
    Invalid {
        path: PathBuf,
        /// Each continues the sentence "the access file …".
        mistakes: Vec<String>,
    },
}

/// Reads and parses a file.
///
/// Errors: [`AccessFileError`], with all mistakes at once.
pub fn read(path: &Path) -> Result<PrincipalStore, AccessFileError> {
    let unreadable =
        |error: std::io::Error| AccessFileError::Unreadable { path: path.to_owned(), reason: error.to_string() };
    let invalid = |mistakes| AccessFileError::Invalid { path: path.to_owned(), mistakes };
    match bounded_file::read(path, FILE_MAX_BYTES).map_err(unreadable)? {
        Some(text) => parse(&text).map_err(invalid),
        None => Err(invalid(vec![format!("must have at most {FILE_MAX_BYTES} bytes")])),
    }
}

/// Parses the content of a file.
///
/// Errors: all mistakes; each continues the sentence "the access file …".
pub fn parse(text: &str) -> Result<PrincipalStore, Vec<String>> {
    let table: toml::Table = toml::from_str(text).map_err(|e| {
        let line = e.span().map_or(1, |span| text.bytes().take(span.start).filter(|b| *b == b'\n').count() + 1);
        // The parser's own message may quote the line, which may contain a secret.
        vec![format!("is not TOML: see line {line}")]
    })?;
    let mut mistakes = Vec::new();
    for key in table.keys().filter(|key| !matches!(key.as_str(), "principal" | "issuer")) {
        let key = shown(key);
        mistakes.push(format!("has the key {key}, but only [[principal]] tables are allowed, and [[issuer]] tables"));
    }
    let mut issuers: Vec<Issuer> = Vec::new();
    for (i, entry) in tables(&table, "issuer", ISSUERS_MAX, &mut mistakes).iter().enumerate() {
        let mut reader = Reader { place: format!("issuer {}", i + 1), mistakes: &mut mistakes };
        let Some(issuer) = reader.issuer(entry) else { continue };
        if issuers.iter().any(|other| other.name == issuer.name || other.url == issuer.url) {
            reader.report("another issuer has the same `name` or the same `issuer`");
        }
        issuers.push(issuer);
    }
    let mut principals: Vec<Principal> = Vec::new();
    for (i, entry) in tables(&table, "principal", PRINCIPALS_MAX, &mut mistakes).iter().enumerate() {
        let mut reader = Reader { place: format!("principal {}", i + 1), mistakes: &mut mistakes };
        if let Some(principal) = reader.principal(entry, &issuers) {
            reader.check_unique(&principal, &principals);
            principals.push(principal);
        }
    }
    if mistakes.is_empty() { Ok(PrincipalStore::new(principals, issuers)) } else { Err(mistakes) }
}

/// The tables with this name, in double brackets.
fn tables<'t>(table: &'t toml::Table, name: &str, maximum: usize, mistakes: &mut Vec<String>) -> &'t [toml::Value] {
    let entries = match table.get(name) {
        None => &[][..],
        Some(toml::Value::Array(entries)) => entries,
        Some(_) => {
            mistakes.push(format!("must have [[{name}]] in double brackets"));
            &[]
        }
    };
    if entries.len() > maximum {
        mistakes.push(format!("has {} {name}s, but must have at most {maximum}", entries.len()));
    }
    &entries[..entries.len().min(maximum)]
}

impl Reader<'_> {
    fn principal(&mut self, entry: &toml::Value, issuers: &[Issuer]) -> Option<Principal> {
        const KNOWN: [&str; 8] =
            ["name", "keys", "certificates", "tokens", "allow", "requests_per_second", "leases", "waiters"];
        let Some(table) = entry.as_table() else {
            self.report("it must be a table that begins with [[principal]]");
            return None;
        };
        let name = match table.get("name").and_then(toml::Value::as_str) {
            Some(text) => self.check("`name`", PrincipalName::parse(text)),
            None => {
                self.report("it needs a `name`");
                None
            }
        };
        if let Some(name) = &name {
            self.place = format!("principal `{name}`");
        }
        self.check_fields(table, &KNOWN);
        let keys = self.keys(table.get("keys"));
        let certificates = self.texts("certificates", table.get("certificates"), KEYS_MAX);
        let certificates: Vec<_> =
            certificates.iter().filter_map(|text| self.check("`certificates`", CertificateName::parse(text))).collect();
        let tokens = self.token_rules(table.get("tokens"), issuers);
        if certificates.is_empty() && tokens.is_empty() && table.get("keys").is_none() {
            self.report("it needs `keys`, `certificates` or `tokens`, or nobody can log in as it");
        }
        let rules = self.texts("allow", table.get("allow"), RULES_MAX);
        let rules = rules.iter().filter_map(|text| self.check("`allow`", text.parse::<AccessRule>())).collect();
        let limits = PrincipalLimits {
            requests_per_second: self
                .number("requests_per_second", table, 1_000_000)
                .map(|n| u32::try_from(n).unwrap_or(u32::MAX)),
            leases: self.number("leases", table, 1_000_000),
            waiters: self.number("waiters", table, 1_000_000),
        };
        Some(Principal { name: name?, keys, certificates, tokens, rules: AccessRules(rules), limits })
    }

    fn keys(&mut self, value: Option<&toml::Value>) -> Vec<KeyEntry> {
        const FORM: &str = "`keys` must be a list such as [{ sha256 = \"…\", expires = 2027-01-31T00:00:00Z }]";
        let Some(value) = value else { return Vec::new() };
        let Some(items) = value.as_array() else {
            self.report(FORM);
            return Vec::new();
        };
        if items.len() > KEYS_MAX {
            self.report(format_args!("`keys` has {} entries, but must have at most {KEYS_MAX}", items.len()));
            return Vec::new();
        }
        let mut keys = Vec::new();
        for item in items {
            let table = item.as_table().filter(|t| t.keys().all(|k| matches!(k.as_str(), "sha256" | "expires")));
            let Some((table, text)) = table.and_then(|t| Some((t, t.get("sha256")?.as_str()?))) else {
                self.report(FORM);
                continue;
            };
            let hash = self.check("`sha256`", KeyHash::parse(text));
            let expires = match table.get("expires") {
                None => Some(None),
                Some(value) => self.check("`expires`", expiry(value)).map(Some),
            };
            if let (Some(hash), Some(expires_ms)) = (hash, expires) {
                keys.push(KeyEntry { hash, expires_ms });
            }
        }
        keys
    }

    /// A credential must identify one principal.
    fn check_unique(&mut self, new: &Principal, others: &[Principal]) {
        if others.iter().any(|other| other.name == new.name) {
            self.report("another principal has the same name");
        }
        let all = || others.iter().chain([new]);
        for key in &new.keys {
            if all().flat_map(|p| &p.keys).filter(|k| k.hash == key.hash).count() > 1 {
                self.report(format_args!("the key {:?} occurs twice", key.hash));
            }
        }
        for name in &new.certificates {
            if all().flat_map(|p| &p.certificates).filter(|n| *n == name).count() > 1 {
                self.report("one of its `certificates` occurs twice");
            }
        }
    }
}

/// A time with its zone, or a day, which means midnight UTC at its beginning. Units: milliseconds since 1970.
///
/// Errors: [`Invalid`].
fn expiry(value: &toml::Value) -> Result<u64, Invalid> {
    let text = match value {
        toml::Value::String(text) => text.clone(),
        toml::Value::Datetime(time) => time.to_string(),
        _ => String::new(),
    };
    parse_expiry(&text)
}

/// Reads the text form of such a time. Errors: [`Invalid`].
pub fn parse_expiry(text: &str) -> Result<u64, Invalid> {
    let day = text.len() == "2027-01-31".len();
    let full = if day { format!("{text}T00:00:00Z") } else { text.to_owned() };
    let read = full.parse::<jiff::Timestamp>().ok().and_then(|t| u64::try_from(t.as_millisecond()).ok());
    read.ok_or_else(|| Invalid("must be a time with its zone, such as 2027-01-31T12:00:00Z, or a day".to_owned()))
}

#[cfg(test)]
#[path = "access_file_tests.rs"]
mod tests;
