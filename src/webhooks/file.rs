//! Parser of the file of targets and hooks (TOML). The file names the files of secrets and contains no secret itself.
//! No message repeats a value, since a secret is easily misplaced.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use reqwest::Method;

use super::event::{HookEvent, HookEvents};
use super::file_fields::{TableReader, TargetFiles, read_text};
use super::resolver::Lookup;
use super::sealing::SealingKey;
use super::target::{Form, Target, literal_address, parse_url};
use crate::auth::access_rule::Pattern;
use crate::auth::principal::PrincipalName;
use crate::duration::parse_duration;

/// Maximum number of targets.
pub const TARGETS_MAX: usize = 100;
/// Maximum number of hooks.
pub const HOOKS_MAX: usize = 100;
/// Maximum number of secrets of one target: the present secret and its successor.
pub const SECRETS_MAX: usize = 2;
/// Maximum number of principals of one target.
const TARGET_PRINCIPALS_MAX: usize = 1_000;
/// Maximum number of name patterns of one hook.
const PATTERNS_MAX: usize = 64;
/// The field of the secrets that seal the addresses of call-backs.
const SEALING: &str = "sealing_secret_files";
/// How long a wait must last before `lock.waiting_long` is sent, unless the hook sets another time.
const WAITING_LONGER: Duration = Duration::from_mins(1);

/// A hook: the events that one target receives.
#[derive(Debug, Clone)]
pub struct Hook {
    /// Unique among the hooks.
    pub name: String,
    /// Its messages go to this target's URL.
    pub target: Arc<Target>,
    /// The events that the hook receives.
    pub events: HookEvents,
    /// Patterns of lock names; empty: all locks. Events of nodes and of the quorum have no name.
    pub names: Vec<Pattern>,
    /// The patterns as text.
    pub names_text: Vec<String>,
    /// How long a wait must last before `lock.waiting_long` is sent.
    pub waiting_longer: Duration,
}

/// The content of the file.
#[derive(Debug, Clone, Default)]
pub struct WebhooksFile {
    /// In the order of the file.
    pub targets: Vec<Arc<Target>>,
    /// In the order of the file.
    pub hooks: Vec<Arc<Hook>>,
    /// The keys that seal the addresses of call-backs; the first key is the newest.
    pub sealing: Vec<SealingKey>,
    /// Every file that was read: all are read again when one of them changes.
    pub files: Vec<PathBuf>,
}

impl WebhooksFile {
    /// The target with this name.
    pub fn target(&self, name: &str) -> Option<&Arc<Target>> {
        self.targets.iter().find(|target| target.name == name)
    }

    /// The hook with this name.
    pub fn hook(&self, name: &str) -> Option<&Arc<Hook>> {
        self.hooks.iter().find(|hook| hook.name == name)
    }
}

/// Why the file cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the webhooks file {path} {}", .mistakes.join("; "))]
pub struct WebhooksFileError {
    pub path: PathBuf,
    /// The mistakes; each continues the sentence "the webhooks file …".
    pub mistakes: Vec<String>,
    /// Every file that was to be read: a change of one of them may remove the mistake.
    pub files: Vec<PathBuf>,
}

/// Reads the file and the files that it names; their paths are relative to it. Blocks on the disk.
///
/// Errors: [`WebhooksFileError`], with all mistakes at once.
pub fn read(path: &Path, lookup: &Arc<dyn Lookup>) -> Result<WebhooksFile, WebhooksFileError> {
    let unreadable =
        |why| WebhooksFileError { path: path.to_owned(), mistakes: vec![why], files: vec![path.to_owned()] };
    parse(path, &read_text(path).map_err(unreadable)?, lookup)
}

/// As `read`, with the text of the file. Errors: as [`read`].
pub fn parse(path: &Path, text: &str, lookup: &Arc<dyn Lookup>) -> Result<WebhooksFile, WebhooksFileError> {
    let failed = |mistakes, files| WebhooksFileError { path: path.to_owned(), mistakes, files };
    let invalid = |mistakes| failed(mistakes, vec![path.to_owned()]);
    let table: toml::Table = toml::from_str(text).map_err(|e| {
        let line = e.span().map_or(1, |span| text.bytes().take(span.start).filter(|b| *b == b'\n').count() + 1);
        // The parser's own message may quote the line.
        invalid(vec![format!("is not TOML: see line {line}")])
    })?;
    let dir = path.parent().unwrap_or(Path::new(""));
    let mut files = TargetFiles::new(dir, Arc::clone(lookup));
    let mut mistakes = Vec::new();
    if table.keys().any(|key| !matches!(key.as_str(), "target" | "hook" | SEALING)) {
        mistakes.push(format!("has a key that is none of `{SEALING}`, [[target]] and [[hook]]"));
    }
    let sealing = sealing(&table, &mut files, &mut mistakes);
    let mut read = WebhooksFile { sealing, ..WebhooksFile::default() };
    for (i, entry) in tables(&table, "target", TARGETS_MAX, &mut mistakes).iter().enumerate() {
        let mut entry = TableReader::new(entry, format!("target {}", i + 1), &mut mistakes);
        let target = target(&mut entry, &mut files);
        entry.finish();
        if let Some(target) = target {
            if read.target(&target.name).is_some() {
                entry.report("another target has the same name");
            }
            read.targets.push(Arc::new(target));
        }
    }
    for (i, entry) in tables(&table, "hook", HOOKS_MAX, &mut mistakes).iter().enumerate() {
        let mut entry = TableReader::new(entry, format!("hook {}", i + 1), &mut mistakes);
        let hook = hook(&mut entry, &read);
        entry.finish();
        if let Some(hook) = hook {
            if read.hook(&hook.name).is_some() {
                entry.report("another hook has the same name");
            }
            read.hooks.push(Arc::new(hook));
        }
    }
    read.files = files.read;
    read.files.insert(0, path.to_owned());
    if mistakes.is_empty() { Ok(read) } else { Err(failed(mistakes, read.files)) }
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

/// The keys that seal addresses; reports all mistakes.
fn sealing(table: &toml::Table, files: &mut TargetFiles, mistakes: &mut Vec<String>) -> Vec<SealingKey> {
    let only = table.get(SEALING).map(|value| (SEALING.to_owned(), value.clone())).into_iter().collect();
    let top = toml::Value::Table(only);
    let mut entry = TableReader::new(&top, "its first lines".to_owned(), mistakes);
    let names = entry.texts(SEALING, SECRETS_MAX);
    let secrets = names.iter().filter_map(|file| files.secret(&mut entry, SEALING, file));
    let keys = secrets.filter_map(|secret| SealingKey::of(&secret)).collect();
    entry.finish();
    keys
}

/// Reports all mistakes of one target.
fn target(entry: &mut TableReader<'_>, files: &mut TargetFiles) -> Option<Target> {
    let name = entry.name("name");
    if let Some(name) = &name {
        entry.place = format!("target `{name}`");
    }
    let url = entry.text("url");
    if url.is_none() {
        entry.report("it needs a `url`");
    }
    let url = url.and_then(|text| entry.check("`url`", parse_url(&text)));
    let (private, insecure) = (entry.flag("private"), entry.flag("insecure"));
    if let Some(url) = url.as_ref().filter(|url| url.scheme() == "http" && !insecure) {
        let is_local = literal_address(url).map(|ip| ip.to_canonical().is_loopback());
        if !is_local.unwrap_or_else(|| url.host_str() == Some("localhost")) {
            entry.report("`url` is http to another machine: use https, or say `insecure = true`");
        }
    }
    let secrets = entry.texts("secret_files", SECRETS_MAX);
    let secrets: Vec<_> = secrets.iter().filter_map(|file| files.secret(entry, "secret_files", file)).collect();
    let headers = entry.text("headers_file").and_then(|file| files.headers(entry, &file)).unwrap_or_default();
    let principals = entry.has("principals").then(|| entry.texts("principals", TARGET_PRINCIPALS_MAX));
    let principals = principals
        .map(|names| names.iter().filter_map(|name| entry.check("`principals`", PrincipalName::parse(name))).collect());
    let form = form(entry, files);
    if form == Some(Form::Standard) && secrets.is_empty() {
        entry.report("it needs `secret_files`, or nobody could tell its messages from others: `redlockd hook secret`");
    }
    let method = method(entry);
    let authorities = entry.text("ca_file");
    let (url, policy) = (url?, super::allowed_addresses::AddressPolicy { private, loopback_only: false });
    let policy =
        super::allowed_addresses::AddressPolicy { loopback_only: url.scheme() == "http" && !insecure, ..policy };
    let connector = files.connector(entry, policy, url.scheme() == "https", authorities)?;
    Some(Target { name: name?, url, method: method?, form: form?, secrets, headers, principals, connector })
}

fn form(entry: &mut TableReader<'_>, files: &mut TargetFiles) -> Option<Form> {
    let word = entry.text("form").unwrap_or_else(|| "standard".to_owned());
    let (token, git_ref) = (entry.text("token_file"), entry.text("ref"));
    if word != "gitlab-trigger" && (token.is_some() || git_ref.is_some()) {
        entry.report("`token_file` and `ref` belong to `form = \"gitlab-trigger\"`");
    }
    match word.as_str() {
        "standard" => Some(Form::Standard),
        "github-dispatch" => Some(Form::GithubDispatch),
        "gitlab-trigger" => match (token, git_ref) {
            (Some(token), Some(git_ref)) if !git_ref.is_empty() => {
                Some(Form::GitlabTrigger { token: files.line(entry, "token_file", &token)?, git_ref })
            }
            _ => {
                entry.report("`form = \"gitlab-trigger\"` needs `token_file` and `ref`");
                None
            }
        },
        _ => {
            entry.report("`form` must be standard, github-dispatch or gitlab-trigger");
            None
        }
    }
}

fn method(entry: &mut TableReader<'_>) -> Option<Method> {
    match entry.text("method").as_deref() {
        None | Some("POST") => Some(Method::POST),
        Some("PUT") => Some(Method::PUT),
        Some("PATCH") => Some(Method::PATCH),
        Some(_) => {
            entry.report("`method` must be POST, PUT or PATCH");
            None
        }
    }
}

/// Reports all mistakes of one hook.
fn hook(entry: &mut TableReader<'_>, read: &WebhooksFile) -> Option<Hook> {
    let name = entry.name("name");
    if let Some(name) = &name {
        entry.place = format!("hook `{name}`");
    }
    let target = entry.text("target").and_then(|target| read.target(&target).cloned());
    if target.is_none() {
        entry.report("it needs a `target`: the name of one that stands in this file without a mistake");
    }
    let words = entry.texts("events", HookEvent::ALL.len());
    let mut events = HookEvents::default();
    for word in &words {
        match HookEvent::parse(word) {
            Some(event) => events = events.with(event),
            None => {
                let known = HookEvent::ALL.map(HookEvent::as_str).join(", ");
                entry.report(&format!("`events` has an unknown one; there are {known}"));
            }
        }
    }
    if words.is_empty() {
        entry.report("it needs `events`");
    }
    let names_text = match entry.is_text("names") {
        true => entry.text("names").into_iter().collect(),
        false => entry.texts("names", PATTERNS_MAX),
    };
    let patterns = names_text.iter().enumerate();
    let names: Vec<_> = patterns
        .filter_map(|(i, pattern)| entry.check(&format!("`names`, entry {}", i + 1), Pattern::parse(pattern)))
        .collect();
    let waiting = entry.text("waiting_longer").map(|text| parse_duration(&text).ok().filter(|wait| !wait.is_zero()));
    if waiting == Some(None) {
        entry.report("`waiting_longer` must be a duration such as \"30s\"");
    }
    let waiting_longer = waiting.unwrap_or(Some(WAITING_LONGER))?;
    (names.len() == names_text.len()).then_some(())?;
    Some(Hook { name: name?, target: target?, events, names, names_text, waiting_longer })
}

#[cfg(test)]
#[path = "file_tests.rs"]
mod tests;
