//! TLS of the service: both versions, both protocols, client certificates as principals, and renewal of certificates
//! under load without a failed request.

use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair, SanType};
use reqwest::{Certificate, Identity, Version, tls};
use rustix::process::Pid;
use tempfile::TempDir;

use super::{Access, entry, key};
use crate::support::poll;
use crate::support::service::{SHORT_TIMES, path, redlockd};

/// A certificate authority.
pub struct Authority {
    issuer: Issuer<'static, KeyPair>,
    pub pem: String,
}

impl Authority {
    pub fn new(name: &str) -> Self {
        let mut params = CertificateParams::new(Vec::<String>::new()).expect("no names");
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.distinguished_name.push(DnType::CommonName, name);
        let key = KeyPair::generate().expect("a key");
        let pem = params.self_signed(&key).expect("signed").pem();
        Self { issuer: Issuer::new(params, key), pem }
    }

    /// A certificate and its key, PEM.
    fn sign(&self, names: Vec<SanType>) -> (String, String) {
        self.sign_until(names, (4_000, 1, 1))
    }

    /// The same, until this day.
    pub(super) fn sign_until(&self, names: Vec<SanType>, (year, month, day): (i32, u8, u8)) -> (String, String) {
        let mut params = CertificateParams::new(Vec::<String>::new()).expect("no names");
        params.subject_alt_names = names;
        params.not_after = rcgen::date_time_ymd(year, month, day);
        let key = KeyPair::generate().expect("a key");
        (params.signed_by(&key, &self.issuer).expect("signed").pem(), key.serialize_pem())
    }

    pub fn for_name(&self, name: &str) -> (String, String) {
        self.sign(vec![dns(name)])
    }

    pub fn for_loopback(&self) -> (String, String) {
        self.sign(vec![SanType::IpAddress([127, 0, 0, 1].into()), dns("localhost")])
    }
}

fn dns(name: &str) -> SanType {
    SanType::DnsName(name.try_into().expect("ASCII"))
}

/// A service that speaks TLS.
pub(super) struct Secure {
    service: std::process::Child,
    pub(super) url: String,
    dir: TempDir,
    pub(super) authority: Authority,
}

impl Drop for Secure {
    fn drop(&mut self) {
        // Fails where it has ended already.
        let _ = self.service.kill();
        let _ = self.service.wait();
    }
}

impl Secure {
    /// With an access file, and an authority for clients.
    pub(super) async fn start(access: &Access, client_ca: &str, more: &[&str]) -> Self {
        let (authority, dir) = (Authority::new("servers"), tempfile::tempdir().expect("a directory"));
        let file = |name: &str| path(&dir.path().join(name)).to_owned();
        let (cert, own_key) = authority.for_loopback();
        for (name, text) in [("cert", cert.as_str()), ("key", &own_key), ("clients", client_ca)] {
            std::fs::write(dir.path().join(name), text).expect("writable");
        }
        let settings = [
            access.setting(),
            format!("listen_tls_cert={}", file("cert")),
            format!("listen_tls_key={}", file("key")),
            format!("listen_tls_client_ca={}", file("clients")),
        ];
        let data = file("data");
        let mut args = vec!["serve", "--listen", "127.0.0.1:0", "--data-dir", &data];
        for setting in &settings {
            args.extend(["--set", setting]);
        }
        args.extend(SHORT_TIMES.iter().chain(more));
        let log = std::fs::File::create(dir.path().join("log")).expect("a file");
        let errors = std::fs::File::create(dir.path().join("errors")).expect("a file");
        let service = redlockd(&args).stdout(log).stderr(errors).spawn().expect("the binary runs");
        let log = dir.path().join("log");
        let url = poll::until("its address is logged", || {
            let text = std::fs::read_to_string(&log).unwrap_or_default();
            let found = text.split_once("listens on ").and_then(|(_, rest)| rest.split_once('\n'));
            let found = found.map(|(url, _)| url.to_owned()).filter(|_| text.contains("try:"));
            async move { found }
        })
        .await;
        assert!(url.starts_with("https://"), "{url}");
        Self { service, url, dir, authority }
    }

    pub(super) fn pid(&self) -> Pid {
        Pid::from_child(&self.service)
    }

    /// The memory of its process that is in use. Bytes.
    pub(super) fn memory(&self) -> usize {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.service.id())).expect("it runs");
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).expect("a line");
        line.trim().trim_end_matches(" kB").parse::<usize>().expect("a number") * 1024
    }

    pub(super) fn builder(&self) -> reqwest::ClientBuilder {
        // Fails if another test has installed the provider before.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let root = Certificate::from_pem(self.authority.pem.as_bytes()).expect("PEM");
        reqwest::Client::builder().tls_certs_only([root]).timeout(Duration::from_secs(60))
    }

    /// Replaces the certificate by a new one of the same authority.
    fn renew(&self) {
        self.replace(self.authority.for_loopback());
    }

    pub(super) fn replace(&self, (cert, own_key): (String, String)) {
        for (name, text) in [("cert", cert), ("key", own_key)] {
            std::fs::write(self.dir.path().join("new"), text).expect("writable");
            std::fs::rename(self.dir.path().join("new"), self.dir.path().join(name)).expect("renamed");
        }
    }

    fn errors(&self) -> String {
        std::fs::read_to_string(self.dir.path().join("errors")).unwrap_or_default()
    }
}

/// The certificate that a new connection gets, as openssl prints it.
fn presented(secure: &Secure) -> String {
    let address = secure.url.trim_start_matches("https://");
    let line = format!("openssl s_client -connect {address} </dev/null 2>/dev/null | openssl x509 -noout -fingerprint");
    let output = Command::new("sh").args(["-c", &line]).output().expect("openssl runs");
    String::from_utf8(output.stdout).expect("text")
}

#[tokio::test]
async fn both_versions_and_both_protocols_work_and_older_ones_do_not() {
    let access = Access::of(&[("ci", &["acquire:**"])]);
    let secure = Secure::start(&access, &Authority::new("clients").pem, &[]).await;
    for (version, least, most) in
        [("1.2", tls::Version::TLS_1_2, tls::Version::TLS_1_2), ("1.3", tls::Version::TLS_1_3, tls::Version::TLS_1_3)]
    {
        let builder = || secure.builder().tls_version_min(least).tls_version_max(most);
        for (client, protocol) in [(builder().http1_only(), Version::HTTP_11), (builder(), Version::HTTP_2)] {
            let client = client.build().expect("a client");
            let lock = format!("{}/locks/{version}/{protocol:?}", secure.url).replace("HTTP/", "http-");
            let answer = client.post(&lock).bearer_auth(key("ci")).send().await.expect("an answer");
            assert_eq!((answer.status().as_u16(), answer.version()), (201, protocol), "{version}");
            let token = answer.headers()["lock-token"].clone();
            // A waiter and its release on the same connection.
            let waiting = client.post(&lock).form(&[("wait", "30s")]).bearer_auth(key("ci")).send();
            let waiting = tokio::spawn(waiting);
            let seen = || async {
                let seen = client.get(&lock).bearer_auth(key("ci")).send().await.expect("an answer");
                let body: serde_json::Value = seen.json().await.expect("JSON");
                body["waiters"].as_array().is_some_and(|w| w.len() == 1).then_some(())
            };
            poll::until("it waits", seen).await;
            let released = client.delete(&lock).bearer_auth(key("ci")).header("Lock-Token", token).send().await;
            assert_eq!(released.expect("an answer").status(), 204);
            assert_eq!(waiting.await.expect("no panic").expect("an answer").status(), 201);
            assert_eq!(client.get(&lock).send().await.expect("an answer").status(), 401);
        }
    }
    let address = secure.url.trim_start_matches("https://");
    for old in ["-tls1", "-tls1_1"] {
        let line = format!("openssl s_client {old} -connect {address} </dev/null");
        let output = Command::new("sh").args(["-c", &line]).output().expect("openssl runs");
        assert!(!output.status.success(), "{old}");
    }
    // Plain HTTP is rejected.
    let plain = reqwest::get(secure.url.replace("https", "http")).await;
    assert!(plain.is_err() || plain.is_ok_and(|answer| !answer.status().is_success()));
}

#[tokio::test]
async fn a_client_certificate_identifies_a_principal() {
    let (clients, others) = (Authority::new("clients"), Authority::new("others"));
    let rules = &["acquire:deploy/*"];
    let text = entry("ci", &[], rules, "certificates = [\"dns:ci.example\", \"uri:spiffe://example/ci\"]")
        + &entry("ann", &[&key("ann")], &["read:**"], "");
    let access = Access::with(&text);
    let secure = Secure::start(&access, &clients.pem, &[]).await;
    let with = |identity: Option<(String, String)>| {
        let identity = identity.map(|(cert, own_key)| Identity::from_pem((cert + &own_key).as_bytes()).expect("PEM"));
        let builder = secure.builder();
        let builder = if let Some(identity) = identity { builder.identity(identity) } else { builder };
        builder.build().expect("a client")
    };
    let url = |name: &str| format!("{}/locks/{name}", secure.url);
    let uri = SanType::URI("spiffe://example/ci".try_into().expect("ASCII"));
    for (i, names) in [vec![dns("ci.example")], vec![dns("other"), uri]].into_iter().enumerate() {
        let client = with(Some(clients.sign(names)));
        let status = async |name: String| client.post(url(&name)).send().await.expect("an answer").status().as_u16();
        assert_eq!(status(format!("deploy/{i}")).await, 201);
        assert_eq!(status("other".into()).await, 403);
        // A presented key takes precedence, valid or not.
        let read = client.get(url("x")).bearer_auth(key("ann")).send().await.expect("an answer");
        assert_eq!(read.status(), 404);
        let wrong = client.post(url("deploy/x")).bearer_auth("wrong").send().await.expect("an answer");
        assert_eq!(wrong.status(), 401);
    }
    // A valid certificate without a principal, no certificate, and one of an unknown authority.
    let unknown = with(Some(clients.sign(vec![dns("unknown")])));
    assert_eq!(unknown.get(url("x")).send().await.expect("an answer").status(), 401);
    assert_eq!(with(None).get(url("x")).send().await.expect("an answer").status(), 401);
    assert_eq!(with(None).get(url("x")).bearer_auth(key("ann")).send().await.expect("an answer").status(), 404);
    let forged = with(Some(others.sign(vec![dns("ci.example")])));
    assert!(forged.get(url("x")).send().await.is_err());
}

#[tokio::test]
async fn certificates_are_renewed_under_load_without_a_failed_request() {
    let access = Access::with(&entry("ci", &[&key("ci")], &["acquire:**"], "requests_per_second = 1000000"));
    let secure = Arc::new(Secure::start(&access, &Authority::new("clients").pem, &[]).await);
    let (stop, count) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
    let mut workers = Vec::new();
    for worker in 0..3 {
        let (secure, stop, count) = (secure.clone(), stop.clone(), count.clone());
        workers.push(tokio::spawn(async move {
            while !stop.load(Ordering::Relaxed) {
                // A new connection for each request, so that each has a handshake.
                let client = secure.builder().build().expect("a client");
                let lock = format!("{}/locks/w/{worker}", secure.url);
                let answer = client.post(&lock).bearer_auth(key("ci")).send().await.expect("an answer");
                assert_eq!(answer.status(), 201);
                let token = answer.headers()["lock-token"].clone();
                let answer = client.delete(&lock).bearer_auth(key("ci")).header("Lock-Token", token).send().await;
                assert_eq!(answer.expect("an answer").status(), 204);
                count.fetch_add(1, Ordering::Relaxed);
            }
        }));
    }
    for _ in 0..2 {
        let (before, seen) = (presented(&secure), count.load(Ordering::Relaxed));
        assert!(before.to_lowercase().contains("fingerprint"), "{before}");
        secure.renew();
        poll::until("the new certificate is shown", || {
            let now = presented(&secure);
            let changed = now.to_lowercase().contains("fingerprint") && now != before;
            async move { changed.then_some(()) }
        })
        .await;
        poll::until_true("work goes on", || count.load(Ordering::Relaxed) > seen + 3).await;
    }
    // An invalid one is not used.
    let good = presented(&secure);
    std::fs::write(secure.dir.path().join("cert"), "no PEM").expect("writable");
    poll::until_true("the log says so", || secure.errors().contains("the one before it stays in force")).await;
    assert_eq!(presented(&secure), good);
    stop.store(true, Ordering::Relaxed);
    for worker in workers {
        worker.await.expect("no request failed");
    }
}

#[tokio::test]
async fn metrics_say_when_the_certificate_and_the_last_key_of_a_principal_expire() {
    let access = Access::with(&entry("ops", &[&key("ops")], &["metrics"], ""));
    let expires = |day: &str| {
        let text =
            entry("ci", &[&key("ci")], &["read:**"], "").replace(" }]", &format!(", expires = {day}T00:00:00Z }}]"));
        access.write(&format!("{}{text}", entry("ops", &[&key("ops")], &["metrics"], "")));
    };
    expires("2100-01-01");
    let secure = Secure::start(&access, &Authority::new("clients").pem, &[]).await;
    let client = secure.builder().build().expect("a client");
    let shows = async |what: &str, line: &str| {
        poll::until(what, || async {
            let answer = client.get(format!("{}/metrics", secure.url)).bearer_auth(key("ops")).send().await;
            let text = answer.expect("an answer").text().await.expect("text");
            text.contains(&format!("\n{line}\n")).then_some(())
        })
        .await;
    };
    shows("the certificate's end", "redlockd_certificate_expires_timestamp_seconds 64060588800").await;
    shows("the key's end", "redlockd_last_key_expires_timestamp_seconds{principal=\"ci\"} 4102444800").await;
    secure.replace(secure.authority.sign_until(vec![SanType::IpAddress([127, 0, 0, 1].into())], (2_050, 1, 1)));
    expires("2101-01-01");
    shows("the new certificate's end", "redlockd_certificate_expires_timestamp_seconds 2524608000").await;
    shows("the new key's end", "redlockd_last_key_expires_timestamp_seconds{principal=\"ci\"} 4133980800").await;
}

/// A connection without a handshake, or with an invalid one, is closed after the timeout of a request's head.
#[tokio::test]
async fn a_missing_handshake_ends_the_connection() {
    use tokio::io::AsyncReadExt;
    let access = Access::of(&[("ci", &["read:**"])]);
    let more = ["--set", "header_timeout=300ms"];
    let secure = Secure::start(&access, &Authority::new("clients").pem, &more).await;
    let address = secure.url.trim_start_matches("https://");
    let mut silent = tokio::net::TcpStream::connect(address).await.expect("it listens");
    let mut rest = Vec::new();
    let closed = tokio::time::timeout(Duration::from_secs(30), silent.read_to_end(&mut rest)).await;
    assert!(closed.expect("it is closed").is_ok() && rest.is_empty());
}

/// As secrets are mounted in containers: the files are links through a link to a directory, and only that link is
/// replaced, for certificate and key at once.
#[tokio::test]
async fn a_certificate_behind_links_is_renewed_when_the_link_is_replaced() {
    let secure = Secure::start(&Access::of(&[]), &Authority::new("clients").pem, &[]).await;
    let dir = secure.dir.path();
    let point = |name: &str, target: &str| {
        std::os::unix::fs::symlink(target, dir.join("link")).expect("writable");
        std::fs::rename(dir.join("link"), dir.join(name)).expect("renamed");
    };
    for i in 1..=3 {
        let (before, (cert, own_key)) = (presented(&secure), secure.authority.for_loopback());
        std::fs::create_dir(dir.join(format!("v{i}"))).expect("writable");
        std::fs::write(dir.join(format!("v{i}/cert")), cert).expect("writable");
        std::fs::write(dir.join(format!("v{i}/key")), own_key).expect("writable");
        point("..data", &format!("v{i}"));
        if i == 1 {
            point("cert", "..data/cert");
            point("key", "..data/key");
        }
        poll::until("the new certificate is shown", || {
            let now = presented(&secure);
            let changed = now.to_lowercase().contains("fingerprint") && now != before;
            async move { changed.then_some(()) }
        })
        .await;
    }
}

/// L4, L14, L15: the number of headers on HTTP/2, the headers for browsers under TLS, and a key that everybody can read.
#[tokio::test]
async fn l4_l14_l15_headers_are_counted_pages_ask_for_https_and_a_readable_key_is_reported() {
    let access = Access::of(&[("ci", &["admin"])]);
    let secure = Secure::start(&access, &Authority::new("clients").pem, &[]).await;
    let client = secure.builder().build().expect("a client");
    let with_headers = async |count: usize| {
        let mut request = client.get(format!("{}/locks", secure.url)).bearer_auth(key("ci"));
        for i in 0..count {
            request = request.header(format!("x-{i}"), "1");
        }
        let answer = request.send().await.expect("an answer");
        assert_eq!(answer.version(), Version::HTTP_2);
        (answer.status().as_u16(), answer.text().await.expect("a body"))
    };
    assert_eq!(with_headers(50).await.0, 200);
    let (status, text) = with_headers(71).await;
    assert!(status == 431 && text.contains("/problems/head-too-large"), "{status} {text}");
    let page = client.get(format!("{}/ui/login", secure.url)).send().await.expect("an answer");
    assert!(page.headers()["strict-transport-security"].to_str().expect("text").starts_with("max-age="));
    let form = client.post(format!("{}/ui/login", secure.url)).form(&[("key", key("ci"))]);
    let session = form.send().await.expect("an answer").url().path().to_owned();
    assert_eq!(session, "/ui/", "logged in and redirected");
    poll::until("the warning", || async { secure.errors().contains("`listen_tls_key`): chmod 600").then_some(()) })
        .await;
}

/// M5: the health check of a container, which has the service's settings in its environment.
#[tokio::test]
async fn m5_the_health_check_follows_the_settings_also_under_tls() {
    let access = Access::of(&[("ci", &["admin"])]);
    let secure = Secure::start(&access, &Authority::new("clients").pem, &[]).await;
    let plain = access.service(&[]).await;
    let health = |listen: &str, is_tls: bool| {
        let mut command = redlockd(&["health", "--live"]);
        command.env("REDLOCKD_LISTEN", listen);
        if is_tls {
            command.env("REDLOCKD_LISTEN_TLS_CERT", "/etc/tls.crt").env("REDLOCKD_LISTEN_TLS_KEY", "/etc/tls.key");
        }
        command.output().expect("it runs").status.code()
    };
    let (tls_address, address) = (secure.url.trim_start_matches("https://"), plain.address().to_string());
    assert_eq!((health(&address, false), health(tls_address, true)), (Some(0), Some(0)));
    assert_eq!((health(&address, true), health(tls_address, false)), (Some(1), Some(1)));
    // On all addresses of the container.
    let (_, port) = address.split_once(':').expect("a port");
    let mut anywhere = redlockd(&["health", "--live"]);
    anywhere.env("REDLOCKD_LISTEN", format!("0.0.0.0:{port}")).env("REDLOCKD_INSECURE_NO_AUTH", "true");
    assert_eq!(anywhere.output().expect("it runs").status.code(), Some(0));
}
