//! Issuers of tokens (OIDC) and the claims by which a token identifies a principal, as the access file defines them.

use std::fmt;
use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;

use jsonwebtoken::Algorithm;

use super::access_file_fields::{Reader, shown};
use super::principal::PrincipalName;
use crate::duration::parse_duration;
use crate::types::Invalid;

/// Maximum number of issuers: the keys of each are fetched.
pub const ISSUERS_MAX: usize = 8;
/// Maximum number of audiences of one issuer.
pub const AUDIENCES_MAX: usize = 8;
/// Maximum number of token rules of one principal.
pub const TOKEN_RULES_MAX: usize = 16;
/// Maximum number of claims in one rule.
pub const CLAIMS_MAX: usize = 16;
/// Maximum length of a text in these rules.
const TEXT_MAX_BYTES: usize = 1_024;
/// How far the clocks of issuer and service may differ, unless the issuer has its own limit.
const CLOCK_SKEW: Duration = Duration::from_secs(30);
/// Maximum `clock_skew`.
const CLOCK_SKEW_MAX: Duration = Duration::from_mins(5);
/// The algorithms that an issuer may be configured with. Only signatures by a private key: everybody who knows a shared secret
/// could make tokens, and `none` has no signature.
const ALGORITHMS: [(&str, Algorithm); 9] = [
    ("RS256", Algorithm::RS256),
    ("RS384", Algorithm::RS384),
    ("RS512", Algorithm::RS512),
    ("PS256", Algorithm::PS256),
    ("PS384", Algorithm::PS384),
    ("PS512", Algorithm::PS512),
    ("ES256", Algorithm::ES256),
    ("ES384", Algorithm::ES384),
    ("EdDSA", Algorithm::EdDSA),
];

/// The source of an issuer's keys.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum KeySource {
    /// A JWK set to fetch, and a file with certificate authorities to trust besides the system's.
    Url(String, Option<PathBuf>),
    /// A JWK set in a file.
    File(PathBuf),
}

impl fmt::Display for KeySource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Url(url, _) => f.write_str(url),
            Self::File(path) => path.display().fmt(f),
        }
    }
}

/// An issuer of tokens.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Issuer {
    /// The issuer's name in principals' rules.
    pub name: PrincipalName,
    /// The claim `iss` of its tokens, exactly.
    pub url: String,
    /// The accepted audiences (`aud`): a token must be for one of these.
    pub audiences: Vec<String>,
    /// The source of the issuer's public keys.
    pub keys: KeySource,
    /// The issuer's signing algorithms.
    pub algorithms: Vec<Algorithm>,
    /// How far the issuer's clock may differ from this machine's.
    pub clock_skew: Duration,
}

/// A condition on one claim.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ClaimPattern {
    /// Exactly this text.
    Text(String),
    /// A text with this prefix.
    Prefix(String),
}

impl ClaimPattern {
    fn parse(text: &str) -> Result<Self, Invalid> {
        let (stem, is_prefix) = text.strip_suffix('*').map_or((text, false), |stem| (stem, true));
        if stem.is_empty() || stem.len() > TEXT_MAX_BYTES || stem.contains('*') {
            let why = "a value is a text, which may end in `*` for any end, but is not `*` alone";
            return Err(Invalid(why.to_owned()));
        }
        Ok(if is_prefix { Self::Prefix(stem.to_owned()) } else { Self::Text(stem.to_owned()) })
    }

    fn matches(&self, value: &str) -> bool {
        match self {
            Self::Text(text) => value == text,
            Self::Prefix(prefix) => value.starts_with(prefix.as_str()),
        }
    }
}

/// The tokens that identify a principal: those of an issuer with all of these claims.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TokenRule {
    /// The issuer's name.
    pub issuer: PrincipalName,
    /// Each claim with its allowed values.
    pub claims: Vec<(String, Vec<ClaimPattern>)>,
}

impl TokenRule {
    /// Whether these claims satisfy the rule. Numbers and booleans count as their text; lists and objects never match.
    pub fn matches(&self, issuer: &Issuer, claims: &serde_json::Map<String, serde_json::Value>) -> bool {
        let has = |(name, patterns): &(String, Vec<ClaimPattern>)| {
            let value = match claims.get(name) {
                Some(serde_json::Value::String(text)) => text.clone(),
                Some(value @ (serde_json::Value::Bool(_) | serde_json::Value::Number(_))) => value.to_string(),
                _ => return false,
            };
            patterns.iter().any(|pattern| pattern.matches(&value))
        };
        self.issuer == issuer.name && !self.claims.is_empty() && self.claims.iter().all(has)
    }
}

impl Reader<'_> {
    /// One `[[issuer]]`.
    pub(super) fn issuer(&mut self, entry: &toml::Value) -> Option<Issuer> {
        const KNOWN: [&str; 7] = ["name", "issuer", "audience", "jwks", "algorithms", "clock_skew", "ca_file"];
        let Some(table) = entry.as_table() else {
            self.report("it must be a table that begins with [[issuer]]");
            return None;
        };
        let name = self.required(table, "name").and_then(|text| self.check("`name`", PrincipalName::parse(&text)));
        if let Some(name) = &name {
            self.place = format!("issuer `{name}`");
        }
        self.check_fields(table, &KNOWN);
        let url = self.required(table, "issuer");
        let audiences = self.one_or_more("audience", table.get("audience"), AUDIENCES_MAX);
        if audiences.is_empty() {
            self.report("it needs an `audience`: tokens that were made for another service must not be accepted here");
        }
        let ca_file = table.get("ca_file").and_then(toml::Value::as_str).map(PathBuf::from);
        if table.contains_key("ca_file") && ca_file.is_none() {
            self.report("`ca_file` must be a path");
        }
        let keys = self.required(table, "jwks").and_then(|text| self.check("`jwks`", key_source(&text, ca_file)));
        let algorithms = match table.get("algorithms") {
            None => vec![Algorithm::RS256],
            given => self
                .texts("algorithms", given, ALGORITHMS.len())
                .iter()
                .filter_map(|word| self.algorithm(word))
                .collect(),
        };
        if algorithms.is_empty() {
            self.report("`algorithms` must name at least one");
        }
        let skew = table.get("clock_skew").map(|value| clock_skew(value.as_str().unwrap_or_default()));
        let clock_skew = skew.map_or(Some(CLOCK_SKEW), |skew| self.check("`clock_skew`", skew))?;
        Some(Issuer { name: name?, url: url?, audiences, keys: keys?, algorithms, clock_skew })
    }

    /// The token rules of a principal, each with a defined issuer.
    pub(super) fn token_rules(&mut self, value: Option<&toml::Value>, issuers: &[Issuer]) -> Vec<TokenRule> {
        const FORM: &str =
            "`tokens` must be a list such as [{ issuer = \"github\", claims = { repository = \"acme/shop\" } }]";
        let Some(value) = value else { return Vec::new() };
        let Some(items) = value.as_array().filter(|items| items.len() <= TOKEN_RULES_MAX) else {
            self.report(format_args!("{FORM}, with at most {TOKEN_RULES_MAX} entries"));
            return Vec::new();
        };
        let mut rules = Vec::new();
        for item in items {
            let table = item.as_table().filter(|t| t.keys().all(|key| matches!(key.as_str(), "issuer" | "claims")));
            let parts = table.and_then(|t| Some((t.get("issuer")?.as_str()?, t.get("claims")?.as_table()?)));
            let Some((issuer, claims)) = parts else {
                self.report(FORM);
                continue;
            };
            let Some(issuer) = issuers.iter().find(|known| known.name.as_str() == issuer) else {
                self.report(format_args!("`tokens`: there is no [[issuer]] with the name {}", shown(issuer)));
                continue;
            };
            if claims.is_empty() || claims.len() > CLAIMS_MAX {
                self.report(format_args!(
                    "`claims` must have from 1 to {CLAIMS_MAX} claims, or every token of the issuer would do"
                ));
                continue;
            }
            let claims = claims.iter().map(|(name, value)| (name.clone(), self.patterns(value))).collect();
            rules.push(TokenRule { issuer: issuer.name.clone(), claims });
        }
        rules
    }

    fn patterns(&mut self, value: &toml::Value) -> Vec<ClaimPattern> {
        let texts = self.one_or_more("claims", Some(value), CLAIMS_MAX);
        if texts.is_empty() {
            self.report("`claims` must be texts or lists of texts");
        }
        texts.iter().filter_map(|text| self.check("`claims`", ClaimPattern::parse(text))).collect()
    }

    fn algorithm(&mut self, word: &str) -> Option<Algorithm> {
        let found = ALGORITHMS.iter().find(|(known, _)| *known == word).map(|(_, algorithm)| *algorithm);
        if found.is_none() {
            let known = ALGORITHMS.map(|(word, _)| word).join(", ");
            self.report(format_args!("`algorithms`: {} is none of {known}", shown(word)));
        }
        found
    }

    /// A required text.
    fn required(&mut self, table: &toml::Table, field: &str) -> Option<String> {
        let text = table.get(field).and_then(toml::Value::as_str);
        let text = text.filter(|text| !text.is_empty() && text.len() <= TEXT_MAX_BYTES).map(str::to_owned);
        if text.is_none() {
            self.report(format_args!("it needs `{field}`, a text of at most {TEXT_MAX_BYTES} bytes"));
        }
        text
    }

    /// A text or a list of texts.
    fn one_or_more(&mut self, field: &str, value: Option<&toml::Value>, maximum: usize) -> Vec<String> {
        match value {
            Some(toml::Value::String(text)) => vec![text.clone()],
            other => self.texts(field, other, maximum),
        }
    }
}

/// A URL with https, or the path of a file. Everybody who can change the answer to a request can make tokens, so plain HTTP is
/// for this machine only.
fn key_source(text: &str, ca_file: Option<PathBuf>) -> Result<KeySource, Invalid> {
    if !text.contains("://") {
        return match (text.starts_with('/'), ca_file) {
            (true, None) => Ok(KeySource::File(PathBuf::from(text))),
            (true, Some(_)) => Err(Invalid("is a file, for which `ca_file` has no use".to_owned())),
            (false, _) => Err(Invalid("must be a URL (https://…) or an absolute path".to_owned())),
        };
    }
    let url = reqwest::Url::parse(text).map_err(|_| Invalid("is not a URL".to_owned()))?;
    let host = url.host_str().unwrap_or_default();
    let bare = host.trim_start_matches('[').trim_end_matches(']');
    let is_loopback = bare.parse::<IpAddr>().is_ok_and(|address| address.is_loopback());
    let is_safe = url.scheme() == "https" || (url.scheme() == "http" && is_loopback);
    if !is_safe || !url.username().is_empty() || url.password().is_some() {
        return Err(Invalid("must begin with https:// and have no credentials".to_owned()));
    }
    Ok(KeySource::Url(url.to_string(), ca_file))
}

fn clock_skew(text: &str) -> Result<Duration, Invalid> {
    let skew = parse_duration(text).ok().filter(|skew| *skew <= CLOCK_SKEW_MAX);
    skew.ok_or_else(|| Invalid("must be a duration with a unit, such as \"30s\", of at most 5m".to_owned()))
}
