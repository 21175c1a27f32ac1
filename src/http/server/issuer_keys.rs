//! Keeps the public keys of issuers: read at the start and again at intervals, from a URL or a file. While an issuer does not
//! answer, its last keys stay in force, up to a limit: a withdrawn key must not be accepted for ever.

use std::collections::{HashMap, HashSet};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use reqwest::{Certificate, redirect};
use tokio::sync::oneshot;

use crate::auth::authenticator::Authenticator;
use crate::auth::jwks::{KEY_SET_MAX_BYTES, KeySet};
use crate::auth::oidc_issuer::KeySource;
use crate::bounded_file;
use crate::metrics::Metrics;
use crate::metrics::connections::IssuerCounts;
use crate::redlock::clock::{BootTime, Clock, SystemClock};

/// The interval of checks whether a set is due to be read again.
const CHECK_INTERVAL: Duration = Duration::from_secs(1);
/// How long a set from a URL is used before it is fetched again.
const KEYS_REFRESH: Duration = Duration::from_mins(5);
/// How long a set from a file is used before it is read again.
const KEYS_FILE_REFRESH: Duration = Duration::from_secs(5);
/// The pause after a failed fetch, and the minimum time between two fetches: tokens with invented key ids cannot cause more.
const KEYS_RETRY: Duration = Duration::from_secs(15);
/// How long keys stay in force without having been read again.
const KEYS_LIFE: Duration = Duration::from_hours(24);
/// How long a fetch may take.
const FETCH_TIMEOUT: Duration = Duration::from_secs(5);
/// The maximum length of a `ca_file`. Bytes: some thousand certificates.
const CA_FILE_MAX_BYTES: u64 = 4 << 20;

/// The state of one source.
#[derive(Debug, Clone, Copy, Default)]
struct SourceState {
    tried: Option<BootTime>,
    read: Option<BootTime>,
    has_failed: bool,
}

impl SourceState {
    /// Whether the source is due to be read. `lacks_key`: a token named an unknown key.
    fn is_due(&self, source: &KeySource, lacks_key: bool, now: BootTime) -> bool {
        let Some(tried) = self.tried else { return true };
        let pause = match source {
            KeySource::File(_) => KEYS_FILE_REFRESH,
            KeySource::Url(..) if self.has_failed || lacks_key => KEYS_RETRY,
            KeySource::Url(..) => KEYS_REFRESH,
        };
        now.since(tried) >= pause
    }

    /// Whether the source's keys are too old to be used.
    fn is_over(&self, now: BootTime) -> bool {
        self.read.is_none_or(|read| now.since(read) >= KEYS_LIFE)
    }
}

/// Reads the keys of all issuers of the access file, for ever.
///
/// Cancel: nothing is left behind; keys that were read stay in force.
pub(crate) async fn keep(authenticator: Arc<Authenticator>, metrics: Arc<Metrics>) {
    let mut states: HashMap<KeySource, SourceState> = HashMap::new();
    let mut lacks_key = false;
    loop {
        let store = authenticator.store();
        // Issuers may share a source.
        let sources: HashSet<KeySource> = store.issuers().iter().map(|issuer| issuer.keys.clone()).collect();
        states.retain(|source, _| sources.contains(source));
        // Remembered until each source that it may concern has been read again.
        lacks_key |= authenticator.take_lacks_key();
        let now = SystemClock.now();
        let due: Vec<_> = sources
            .into_iter()
            .filter(|source| states.get(source).copied().unwrap_or_default().is_due(source, lacks_key, now))
            .collect();
        if !due.is_empty() {
            lacks_key = false;
        }
        let read = join_all(due.into_iter().map(|source| async move {
            let keys = read(&source).await;
            (source, keys)
        }));
        for (source, keys) in read.await {
            let state = states.entry(source.clone()).or_default();
            apply(&authenticator, &source, keys, state, SystemClock.now());
        }
        let of_issuers = store.issuers().iter().map(|issuer| states.get(&issuer.keys).copied().unwrap_or_default());
        metrics.issuers(counts(of_issuers, SystemClock.now()));
        SystemClock.sleep(CHECK_INTERVAL).await;
    }
}

fn counts(of_issuers: impl Iterator<Item = SourceState>, now: BootTime) -> IssuerCounts {
    let mut counts = IssuerCounts::default();
    for state in of_issuers {
        let count = match state {
            SourceState { read: None, .. } => &mut counts.without_keys,
            SourceState { has_failed: true, .. } => &mut counts.outdated,
            _ => &mut counts.current,
        };
        *count += 1;
        counts.oldest = counts.oldest.max(state.read.map_or(Duration::ZERO, |read| now.since(read)));
    }
    counts
}

/// Puts new keys in force; after an error, keeps the old ones. Logs each change once.
fn apply(
    authenticator: &Authenticator,
    source: &KeySource,
    keys: Result<KeySet, String>,
    state: &mut SourceState,
    now: BootTime,
) {
    state.tried = Some(now);
    match keys {
        Ok(keys) => {
            if state.has_failed || state.read.is_none() {
                tracing::info!(%source, keys = keys.len(), "the keys of an issuer were read and are in force");
            }
            (state.read, state.has_failed) = (Some(now), false);
            authenticator.replace_keys(source, Some(keys));
        }
        Err(why) => {
            let (first, had_keys) = (!state.has_failed, state.read.is_some());
            state.has_failed = true;
            if state.is_over(now) {
                state.read = None;
                authenticator.replace_keys(source, None);
            }
            if first || (had_keys && state.read.is_none()) {
                let rest = match state.read {
                    Some(_) => "the ones before stay in force for a day",
                    None => "tokens of this issuer are refused until they can be read",
                };
                tracing::error!(%source, "the keys of an issuer {why}: {rest}");
            }
        }
    }
}

/// Errors: the reason; continues "the keys of an issuer …".
async fn read(source: &KeySource) -> Result<KeySet, String> {
    match source {
        KeySource::File(path) => {
            let path = path.clone();
            // Disks may be slow.
            let json = tokio::task::spawn_blocking(move || read_file(&path, KEY_SET_MAX_BYTES as u64)).await;
            KeySet::parse(json.unwrap_or_else(|error| Err(io::Error::other(error))).map_err(unreadable)?.as_bytes())
        }
        KeySource::Url(url, ca_file) => fetch_apart(url.clone(), ca_file.clone(), FETCH_TIMEOUT).await,
    }
}

/// Runs in its own thread: an issuer that sends interim answers (1xx) without end keeps the reading thread busy until the
/// timeout.
///
/// Cancel: the thread ends with its timeout.
async fn fetch_apart(url: String, ca_file: Option<PathBuf>, timeout: Duration) -> Result<KeySet, String> {
    let (sender, fetched) = oneshot::channel();
    let failed = |error: io::Error| format!("cannot be fetched: {error}");
    let work = move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let keys = runtime.map_err(failed).and_then(|runtime| {
            let late = |_| format!("did not arrive within {} s", timeout.as_secs());
            let fetch = async { tokio::time::timeout(timeout, fetch(&url, ca_file.as_deref())).await };
            let keys = runtime.block_on(fetch).map_err(late).flatten();
            // A look-up of the issuer's name may take longer.
            runtime.shutdown_background();
            keys
        });
        // Fails when the service ends: the receiver is then gone.
        let _ = sender.send(keys);
    };
    std::thread::Builder::new().name("issuer-keys".to_owned()).spawn(work).map_err(failed)?;
    fetched.await.map_err(|_| "cannot be fetched: its thread ended".to_owned())?
}

fn unreadable(error: io::Error) -> String {
    format!("cannot be read: {error}")
}

/// The text of a regular file of at most `max` bytes.
fn read_file(path: &Path, max: u64) -> io::Result<String> {
    bounded_file::read(path, max)?.ok_or_else(|| io::Error::other(format!("it has more than {max} bytes")))
}

/// Follows no redirect: only the address in the access file is read.
async fn fetch(url: &str, ca_file: Option<&Path>) -> Result<KeySet, String> {
    let failed = |error: reqwest::Error| format!("cannot be fetched: {}", causes(&error));
    let pem = match ca_file {
        Some(path) => {
            read_file(path, CA_FILE_MAX_BYTES).map_err(|error| format!("cannot be fetched: `ca_file`: {error}"))?
        }
        None => String::new(),
    };
    let authorities = Certificate::from_pem_bundle(pem.as_bytes())
        .map_err(|_| "cannot be fetched: `ca_file` is not PEM".to_owned())?;
    let builder = reqwest::Client::builder()
        .user_agent(concat!("redlockd/", env!("CARGO_PKG_VERSION")))
        .redirect(redirect::Policy::none())
        .tls_certs_merge(authorities);
    // Plain HTTP is for this machine only, and a proxy is on another one.
    let builder = if url.starts_with("https:") { builder } else { builder.no_proxy() };
    let client = builder.build().map_err(failed)?;
    let mut response = client.get(url).header("Accept", "application/json").send().await.map_err(failed)?;
    if !response.status().is_success() {
        return Err(format!("cannot be fetched: status {}", response.status().as_u16()));
    }
    let mut json = Vec::new();
    while let Some(chunk) = response.chunk().await.map_err(failed)? {
        json.extend_from_slice(&chunk);
        if json.len() > KEY_SET_MAX_BYTES {
            break;
        }
    }
    KeySet::parse(&json)
}

/// The error with its causes.
fn causes(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(inner) = cause {
        text = format!("{text}: {inner}");
        cause = inner.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};

    use super::*;

    /// The thread of other tasks goes on meanwhile.
    #[tokio::test]
    async fn interim_answers_without_an_end_keep_no_other_task_waiting() {
        let _ = rustls::crypto::ring::default_provider().install_default();
        let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a free port");
        let url = format!("http://{}/keys", listener.local_addr().expect("bound"));
        let issuer = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().expect("a connection");
            let _ = stream.read(&mut [0; 4_096]).expect("a request");
            let interim = b"HTTP/1.1 103 Early Hints\r\nlink: </x>\r\n\r\n".repeat(1_000);
            let mut sent = 0;
            while stream.write_all(&interim).is_ok() {
                sent += interim.len();
            }
            sent
        });
        let mut ticks = tokio::time::interval(Duration::from_millis(10));
        let (mut last, mut longest) = (SystemClock.now(), Duration::ZERO);
        let fetch = fetch_apart(url, None, Duration::from_secs(2));
        tokio::pin!(fetch);
        let why = loop {
            tokio::select! {
                keys = &mut fetch => break keys.map(drop).expect_err("no keys"),
                _ = ticks.tick() => {}
            }
            longest = longest.max(SystemClock.now().since(last));
            last = SystemClock.now();
        };
        assert_eq!(why, "did not arrive within 2 s");
        assert!(issuer.join().expect("the connection is closed") > 1 << 20);
        assert!(longest < Duration::from_secs(1), "others waited for {longest:?}");
    }

    #[tokio::test]
    async fn devices_and_pipes_are_no_keys() {
        let endless = || PathBuf::from("/dev/zero");
        let why = read(&KeySource::File(endless())).await.map(drop).expect_err("no keys");
        assert_eq!(why, "cannot be read: it is not a regular file");
        let url = "https://localhost:1/keys".to_owned();
        let why = read(&KeySource::Url(url, Some(endless()))).await.map(drop).expect_err("no keys");
        assert_eq!(why, "cannot be fetched: `ca_file`: it is not a regular file");
    }

    const AT: fn(u64) -> BootTime = |s| BootTime::from_nanos(s * 1_000_000_000);

    #[test]
    fn an_unknown_key_and_a_failure_bring_the_next_fetch_forward_and_no_further() {
        let url = KeySource::Url("https://issuer.example/keys".to_owned(), None);
        let file = KeySource::File("/keys".into());
        assert!(SourceState::default().is_due(&url, false, AT(1)));
        let read = SourceState { tried: Some(AT(100)), read: Some(AT(100)), has_failed: false };
        let failed = SourceState { has_failed: true, ..read };
        for (state, source, lacks_key, due_after_s) in
            [(read, &url, false, 300), (read, &url, true, 15), (failed, &url, false, 15), (read, &file, false, 5)]
        {
            assert!(!state.is_due(source, lacks_key, AT(100 + due_after_s - 1)), "{state:?} {source}");
            assert!(state.is_due(source, lacks_key, AT(100 + due_after_s)), "{state:?} {source}");
        }
    }

    #[test]
    fn keys_outlive_an_issuer_that_is_down_by_a_day() {
        let text =
            r#"{"keys":[{"kty":"OKP","crv":"Ed25519","kid":"a","x":"11qYAYKxCrfVS_7TyWQHOg7hcvPapiMlrwIaaPcHURo"}]}"#;
        let keys = || KeySet::parse(text.as_bytes());
        let (authenticator, source) = (Authenticator::open(), KeySource::File("/keys".into()));
        let mut state = SourceState::default();
        let counted = |state: SourceState, at| {
            let counts = counts([state].into_iter(), AT(at));
            ([counts.current, counts.outdated, counts.without_keys], counts.oldest.as_secs())
        };
        assert_eq!(counted(state, 99), ([0, 0, 1], 0));
        apply(&authenticator, &source, keys(), &mut state, AT(100));
        let day = 24 * 3_600;
        assert_eq!(counted(state, 101), ([1, 0, 0], 1));
        for (at, is_known) in [(100 + day - 1, true), (100 + day, false), (100 + day + 1, false)] {
            apply(&authenticator, &source, Err("cannot be fetched".to_owned()), &mut state, AT(at));
            assert_eq!((authenticator.has_keys(&source), state.has_failed), (is_known, true), "{at}");
            let expected = if is_known { ([0, 1, 0], day - 1) } else { ([0, 0, 1], 0) };
            assert_eq!(counted(state, at), expected, "{at}");
        }
        apply(&authenticator, &source, keys(), &mut state, AT(100 + day + 2));
        assert!(authenticator.has_keys(&source) && !state.has_failed);
    }
}
