//! The alerts about keys, certificates, files and whoever is refused, each fired by a real failure.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rcgen::SanType;
use redlockd::redlock::clock::{Clock, SystemClock};
use tokio::task::JoinSet;

use super::tls::{Authority, Secure};
use super::tokens::SigningKey;
use super::{Access, entry, key};
use crate::support::client::{send, try_send};
use crate::support::poll;
use crate::support::prometheus::{Prometheus, tool};
use crate::support::service::path;

fn config() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("config")
}

/// `2026-11-28`, so many days from now.
fn in_days(days: u64) -> (i32, u8, u8) {
    let ms = i64::try_from(SystemClock.wall_ms() + days * 86_400_000).expect("this millennium");
    let text = jiff::Timestamp::from_millisecond(ms).expect("a time").to_string();
    let mut parts = text[..10].split('-').map(|part| part.parse::<u16>().expect("digits"));
    let [year, month, day] = [(); 3].map(|()| parts.next().expect("three"));
    let small = |part| u8::try_from(part).expect("a month or a day");
    (i32::from(year), small(month), small(day))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_certificate_and_a_key_that_expire_soon_are_reported_before_they_do() {
    if tool("prometheus").is_none() {
        return;
    }
    let (year, month, day) = in_days(3);
    let expires = format!(", expires = {year}-{month:02}-{day:02}T00:00:00Z }}]");
    let ci = entry("ci", &[&key("ci")], &["read:**"], "").replace(" }]", &expires);
    let access = Access::with(&format!("{}{ci}", entry("ops", &[&key("ops")], &["metrics"], "")));
    let secure = Secure::start(&access, &Authority::new("clients").pem, &[]).await;
    let address: SocketAddr = secure.url.trim_start_matches("https://").parse().expect("an address");
    let prometheus = Prometheus::start_with(&config(), &[address], "https", &key("ops")).await;
    prometheus.until_fired(&["RedlockdKeyExpires"]).await;
    assert!(!prometheus.has_fired("RedlockdCertificateExpires").await, "it is valid for centuries");
    let loopback = || vec![SanType::IpAddress([127, 0, 0, 1].into())];
    secure.replace(secure.authority.sign_until(loopback(), in_days(5)));
    prometheus.until_fired(&["RedlockdCertificateExpires"]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn refused_callers_rejected_files_and_issuers_without_keys_are_reported() {
    if tool("prometheus").is_none() {
        return;
    }
    let dir = tempfile::tempdir().expect("a directory");
    let (good, missing) = (dir.path().join("good.json"), dir.path().join("missing.json"));
    std::fs::write(&good, SigningKey::new("a").jwks()).expect("writable");
    let issuer = |name: &str, file: &Path| {
        let file = path(file);
        format!(
            "[[issuer]]\nname = \"{name}\"\nissuer = \"https://{name}.example\"\naudience = \"locks\"\njwks = \"{file}\"\n"
        )
    };
    let ops = entry("ops", &[&key("ops")], &["metrics", "acquire:**"], "");
    let rules = |issuers: &str| format!("{issuers}{ops}");
    let access = Access::with(&rules(&issuer("forge", &good)));
    let service = access.service(&[]).await;
    let prometheus = Prometheus::start_with(&config(), &[service.address()], "http", &key("ops")).await;
    // Its keys become unreadable: those before stay in force.
    std::fs::write(&good, "{}").expect("writable");
    prometheus.until_fired(&["RedlockdIssuerKeysOutdated"]).await;
    assert!(!prometheus.has_fired("RedlockdIssuerKeysUseless").await);
    access.write(&rules(&(issuer("forge", &good) + &issuer("other", &missing))));
    prometheus.until_fired(&["RedlockdIssuerKeysUseless"]).await;
    assert!(!prometheus.has_fired("RedlockdReloadFailed").await);
    access.write("allow = 7\n");
    prometheus.until_fired(&["RedlockdReloadFailed"]).await;
    // A caller with a wrong key in a loop, as a script whose key was revoked.
    assert!(!prometheus.has_fired("RedlockdAuthFailures").await);
    let mut callers = JoinSet::new();
    for _ in 0..8 {
        let client = service.client().clone();
        callers.spawn(async move {
            loop {
                let _ = try_send(client.request("POST", "/locks/x").bearer_auth("revoked")).await;
                SystemClock.sleep(Duration::from_millis(5)).await;
            }
        });
    }
    prometheus.until_fired(&["RedlockdAuthFailures"]).await;
    drop(callers);
    // The rules from before are in force all the time.
    poll::until("a good key is served", || async {
        let answer = send(service.client().request("POST", "/locks/y").bearer_auth(key("ops"))).await;
        (answer.status == 201).then_some(())
    })
    .await;
}
