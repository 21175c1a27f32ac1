//! The fuzz targets: one function for each kind of untrusted input. Each may refuse any input and must never panic; an
//! accepted input must satisfy the invariants of its type. `tests/it/fuzz_corpus.rs` calls them with `fuzz/corpus`.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::extract::Request as HttpRequest;
use axum::http::uri::Authority;
use axum::http::{HeaderMap, HeaderName, HeaderValue, Uri};
use deadpool_redis::redis::parse_redis_value;
use redlockd::auth::access_rule::{AccessRule, AccessRules, Pattern, Right};
use redlockd::auth::jwks::KeySet;
use redlockd::auth::jwt;
use redlockd::auth::session::Sessions;
use redlockd::client::events::EventParser;
use redlockd::config::Inputs;
use redlockd::duration::{format_duration, parse_duration};
use redlockd::http::allowed_hosts::AllowedHosts;
use redlockd::http::api::event_filter::EventFilter;
use redlockd::http::api::request_fields::Fields;
use redlockd::http::api::terraform_info::{NAMING, SentLock};
use redlockd::http::api::{fences, lock_requests, request_headers, set_requests};
use redlockd::http::middleware::{client_address, credentials, request_id};
use redlockd::http::state::HttpSettings;
use redlockd::http::{negotiation, path, request_head};
use redlockd::manager::events::EventHub;
use redlockd::manager::incident_file;
use redlockd::nodes::redis::reply_limit::Meter;
use redlockd::nodes::redis::{NodeUrl, read_server_info};
use redlockd::protocol::{
    AcquireArgs, AcquireSetArgs, AcquireSharedArgs, AdmitArgs, CancelArgs, DeleteForeignArgs, DowngradeArgs, FillArgs,
    IndexArgs, InstanceName, IntentArgs, KEPT_PAGE_MAX, KeptArgs, LeaseRecord, ListArgs, NodeInspection, ReadArgs,
    ReleaseArgs, RenameArgs, Reply, Request, RequestTime, RestoreArgs, RevokeArgs, SET_MAX, StoredLock, Ticket,
    TicketArgs, TicketHead, TicketId, TicketOrder, TicketsArgs, TokenUse, UpdateArgs, UpdateKind, View, ViewId,
    WaitersArgs, WaitersEntry,
};
use redlockd::protocol::{commands, keys};
use redlockd::redlock::notifications::Notice;
use redlockd::types::{AttemptId, Fence, Mode, PermitLimit, ResourceName, Token, Ttl, WaitId, WantedMode};
use redlockd::webhooks::resolver::{Lookup, SystemLookup};
use redlockd::webhooks::signing::{SignedContent, SigningSecret};
use redlockd::webhooks::{file as webhooks_file, target};

/// Some time in 2027. Milliseconds since 1970.
const NOW_MS: u64 = 1_800_000_000_000;

fn text(data: &[u8]) -> std::borrow::Cow<'_, str> {
    String::from_utf8_lossy(data)
}

/// Paths, names, and the rules that they are matched with: a line with a rule, then a path.
pub fn names(data: &[u8]) {
    let text = text(data);
    let (rule, path) = text.split_once('\n').unwrap_or(("acquire:a/**", &text));
    let Ok(uri) = format!("/locks/{path}").parse::<Uri>() else { return };
    let Ok(name) = path::resource(&uri) else { return };
    let shown = name.to_string();
    assert!(shown.len() <= 255 && !shown.starts_with("redlockd:"), "{shown}");
    assert!(shown.split('/').all(|part| !matches!(part, "" | "." | "..")), "{shown}");
    assert!(shown.bytes().all(|b| b.is_ascii_graphic() && b != b'%' && b != b'\\'), "{shown}");
    assert!(ResourceName::parse(&shown).is_ok_and(|again| again == name));
    // The name is its own pattern, and matches itself only.
    assert!(Pattern::parse(&shown).is_ok_and(|own| own.matches(&name)));
    let Ok(rule) = rule.parse::<AccessRule>() else { return };
    let one = AccessRules(vec![rule.clone()]);
    let two = AccessRules(vec!["metrics".parse().expect("a rule"), rule]);
    for right in [Right::Read, Right::Acquire, Right::Force, Right::Events, Right::Admin] {
        assert!(!one.allow(right, &name) || two.allow(right, &name));
    }
}

/// Durations: a parsed duration can be formatted and parsed again.
pub fn durations(data: &[u8]) {
    if let Ok(duration) = parse_duration(&text(data)) {
        assert_eq!(parse_duration(&format_duration(duration)).ok(), Some(duration));
    }
}

/// Bodies: a byte that selects JSON, form or query, then the body. Every field of an endpoint is read.
pub fn bodies(data: &[u8]) {
    let Some((kind, body)) = data.split_first() else { return };
    if let Ok(Some(lock)) = SentLock::parse(body) {
        let labels = lock.labels();
        labels.check().expect("within the bounds of labels");
        assert_eq!(labels.metadata.get(NAMING.member).map(String::as_str), Some(lock.id()));
    }
    let mut fields = Fields::default();
    let read = match kind % 3 {
        0 => fields.add_json(body),
        1 => fields.add_form(body),
        _ => fields.add_query(&text(body)),
    };
    if read.is_err() {
        return;
    }
    let ttl = fields.duration("ttl");
    assert!(ttl.is_none_or(|ttl| parse_duration(&format_duration(ttl)).is_ok()));
    let _ = (fields.duration("wait"), fields.text("owner"), fields.flag("hold"), fields.number("limit"));
    let _ = (fields.take_null("note"), fields.pairs("metadata"), fields.take("token"));
    if let Err(problem) = fields.finish(&["ttl"]) {
        let body = problem.body("id");
        assert_eq!(body.status, 400);
    }
}

/// What a query says beyond its fields: which events, which locks, a fence, a place in a queue, a node, the page after a log-in.
pub fn queries(data: &[u8]) {
    let text = text(data);
    let _ = (WaitId::parse(&text), path::is_page(&text));
    if let Ok(url) = NodeUrl::parse(&text) {
        assert!(
            NodeUrl::parse(&format!("redis://{}", url.address())).is_ok() || text.contains("unix"),
            "{}",
            url.address()
        );
    }
    if let Ok(uri) = format!("/nodes/{text}").parse::<Uri>() {
        let _ = path::node(&uri);
    }
    let Ok(uri) = format!("/fences/a?{text}").parse::<Uri>() else { return };
    let Ok(mut fields) = Fields::of_query(&uri) else { return };
    let filter = EventFilter::read(&mut fields, NOW_MS);
    assert!(filter.prefix.trim() == filter.prefix);
    let _ = fields.finish(&EventFilter::FIELDS);
    let request = HttpRequest::builder().uri(uri).body(Body::empty()).expect("a request");
    let _ = fences::parse(&request);
    if let Ok((query, _)) = lock_requests::list(&request) {
        assert!((1..=1_000).contains(&query.limit) && query.prefix.len() <= 255, "{query:?}");
        assert!(query.after.is_none_or(|name| ResourceName::parse(&name).is_ok()));
    }
}

/// Who sends a request: a line with its target, then `name: value` lines. Only the listed name, addresses and `localhost` are hosts
/// of this service, and only one cookie has a session.
pub fn callers(data: &[u8]) {
    const GOOD: &str = "NDEwMjQ0NDgwMDAwMCA2ZTE3ZGZmMWEyZWM4NjQ1MDMzOGZhOWFkMGZmY2M1OGVmOWJmYmMxOTNiNDYyZDZkMzQ1MTE4NjBmNjg2YTFjIG5vbmNlIGFubg.-hN3gKz48uOCMx6AGwisxtB6xR612ogzbkUKN_mM6O0";
    const ACCESS: &str = "[[principal]]\nname = \"ann\"\nkeys = [{ sha256 = \"8254c329a92850f6d539dd376f4816ee2764517da5e0235514af433164480d7a\" }]";
    const LISTED: &str = "locks.example.org";
    let mut parts = data.splitn(2, |byte| *byte == b'\n');
    let Ok(uri) = text(parts.next().unwrap_or_default()).parse::<Uri>() else { return };
    let mut request = HttpRequest::builder().uri(uri).body(Body::empty()).expect("a request");
    *request.headers_mut() = header_lines(parts.next().unwrap_or_default());
    let (headers, uri) = (request.headers(), request.uri());
    for token in credentials::session_tokens(headers) {
        let store = redlockd::auth::access_file::parse(ACCESS).expect("a principal");
        let is_found = Sessions::with_secret(b"secret").find(token, &store, NOW_MS).is_some();
        assert_eq!(is_found, token == GOOD);
    }
    let _ = credentials::presented_key(headers);
    let peer = [10, 0, 0, 1].into();
    assert_eq!(client_address::resolve(peer, headers, &[]), peer);
    let _ = client_address::resolve(peer, headers, &["10.0.0.0/8".parse().expect("a network")]);
    let hosts = AllowedHosts::of(vec![LISTED.to_owned()]);
    if request_head::check(&request).is_err() || !hosts.permit_request(headers, uri, false) {
        return;
    }
    let host = uri.authority().map(Authority::as_str).or_else(|| headers.get("host")?.to_str().ok());
    let authority: Authority = host.expect("not missing").parse().expect("checked");
    let name = authority.host().trim_end_matches('.').to_ascii_lowercase();
    let is_address = name.trim_matches(['[', ']']).parse::<std::net::IpAddr>().is_ok();
    assert!(is_address || name == LISTED || name == "localhost" || name.ends_with(".localhost"), "{name}");
}

/// What instances publish to each other through the nodes, where others can publish too: events, notices, names of keys; and what
/// a node says of its server.
pub fn published(data: &[u8]) {
    let text = text(data);
    let _ = (Notice::parse(data), keys::parse_tombstone(&text), keys::freed_resource(&text).map(ResourceName::parse));
    let server = read_server_info(&text, Some(&text), false);
    assert!(server.findings.len() <= 16);
    let hub = std::sync::Arc::new(EventHub::new(&InstanceName::from_random(7)));
    let mut lines = 0;
    for line in data.split(|byte| *byte == b'\n') {
        hub.receive(line);
        lines += 1;
    }
    let mut events = hub.subscribe(Some(&text)).expect("the first one");
    assert!(events.take_backlog().len() <= lines && hub.past().len() <= lines);
    for event in hub.past() {
        assert!(event.resource.as_deref().is_none_or(|name| ResourceName::parse(name).is_ok()), "{event:?}");
        assert!(event.name.is_none(), "{event:?}");
    }
}

/// Bytes that arrive in parts, of the length that the first byte says: an event stream of the service, and replies of a node. Where
/// they are divided makes no difference, and a reply ends where its parser says.
pub fn streams(data: &[u8]) {
    let Some((length, bytes)) = data.split_first() else { return };
    let parts = || bytes.chunks(usize::from(*length) + 1);
    let mut parser = EventParser::default();
    let events: Result<Vec<_>, _> = parts().map(|part| parser.read(part)).collect();
    assert_eq!(events.map(|events| events.concat()), EventParser::default().read(bytes));
    let whole = Meter::default().feed_value(bytes);
    let (mut meter, mut read) = (Meter::default(), 0);
    for part in parts() {
        match meter.feed_value(part) {
            Ok((count, true)) => {
                assert_eq!(whole, Ok((read + count, true)));
                break;
            }
            Ok((count, false)) => read += count,
            Err(_) => {
                assert!(whole.is_err());
                break;
            }
        }
    }
    match whole {
        Ok((end, true)) => {
            assert!(parse_redis_value(&bytes[..end - 1]).is_err(), "it ended before");
            assert_eq!(parse_redis_value(&bytes[..end]).is_ok(), parse_redis_value(bytes).is_ok());
        }
        Ok((_, false)) => assert!(parse_redis_value(bytes).is_err(), "it has ended"),
        Err(_) => {}
    }
}

fn header_lines(data: &[u8]) -> HeaderMap {
    let mut headers = HeaderMap::new();
    for line in data.split(|b| *b == b'\n').take(64) {
        let Some(colon) = line.iter().position(|b| *b == b':') else { continue };
        let name = HeaderName::from_bytes(&line[..colon]);
        let value = HeaderValue::from_bytes(line[colon + 1..].trim_ascii());
        if let (Ok(name), Ok(value)) = (name, value) {
            headers.append(name, value);
        }
    }
    headers
}

/// Headers: `name: value` lines.
pub fn headers(data: &[u8]) {
    let headers = header_lines(data);
    if let Ok(Some(token)) = request_headers::lock_token(&headers) {
        // A token does not print.
        assert!(!format!("{token:?}").contains(token.reveal()));
    }
    let _ = request_headers::if_none_match(&headers);
    let _ =
        (request_headers::if_match(&headers), request_headers::preferred_wait(&headers), negotiation::stream(&headers));
    let _ = negotiation::for_problem(&headers);
    if let Some(id) = request_id::RequestId::sent(&headers) {
        assert!(HeaderValue::from_str(id.as_str()).is_ok() && !id.as_str().contains(['\n', '"', ' ']));
    }
    let _ = request_id::TraceParent::sent(&headers);
}

/// Settings, as `key=value` lines, the way the environment and the command line give them.
pub fn settings(data: &[u8]) {
    let text = text(data);
    let flags = text.lines().filter_map(|line| line.split_once('='));
    let flags = flags.map(|(key, value)| (key.to_owned(), value.to_owned())).collect();
    let inputs = Inputs { flags, ..Inputs::default() };
    match inputs.load(&BTreeMap::<String, String>::new()) {
        Ok(loaded) => {
            let config = loaded.config;
            assert!(config.node_timeout * 2 <= config.min_ttl && config.min_ttl <= config.default_ttl);
            assert!(config.default_ttl <= config.max_ttl && config.guard * 2 <= config.lock_delay);
            let private = config.listen.ip().to_canonical().is_loopback();
            assert!(private || config.access_file.is_some() || config.insecure_no_auth);
        }
        Err(errors) => assert!(!errors.0.is_empty() && errors.to_string().lines().count() == errors.0.len()),
    }
}

/// Access files: a parsed file allows nothing without a rule.
pub fn access_file(data: &[u8]) {
    match redlockd::auth::access_file::parse(&text(data)) {
        Ok(book) => {
            for principal in book.principals() {
                assert!(principal.rules.0.len() <= 64 && principal.keys.len() <= 8);
                assert!(!principal.rules.0.is_empty() || !principal.rules.allow_somewhere(Right::Read));
            }
        }
        Err(wrong) => assert!(!wrong.is_empty() && wrong.iter().all(|why| !why.contains("rlk_"))),
    }
}

/// Tokens and key sets of an issuer. Only one token is signed by the key whose public half this is: no other may be accepted.
pub fn tokens(data: &[u8]) {
    const ISSUER: &str = "[[issuer]]\nname = \"i\"\nissuer = \"https://i.example\"\naudience = \"locks\"\njwks = \"/keys\"\n\
                          algorithms = [\"EdDSA\", \"ES256\", \"RS256\"]\n";
    const KEYS: &str =
        r#"{"keys":[{"kty":"OKP","crv":"Ed25519","kid":"a","x":"FEqOn3olRnGrTxap8LYKjhGZAK3-Os344cpLHcv2Gcc"}]}"#;
    const GOOD: &str = "eyJhbGciOiJFZERTQSIsImtpZCI6ImEifQ.eyJpc3MiOiJodHRwczovL2kuZXhhbXBsZSIsImF1ZCI6ImxvY2tzIiwic3ViIjoiYSIsImV4cCI6NDEwMjQ0NDgwMH0.7xNs8XxVP4HCJKS84J2p9pT884OYLeK01kBq37Msbo3ChrthGL554RnuxIQ2eoMk3ks_nYMssXEyZ3GoPwbrDQ";
    if let Ok(keys) = KeySet::parse(data) {
        assert!(!keys.is_empty() && keys.len() <= 32);
    }
    let store = redlockd::auth::access_file::parse(ISSUER).expect("an issuer");
    let keys = KeySet::parse(KEYS.as_bytes()).expect("a key");
    let is_accepted = jwt::verify(data, &store.issuers()[0], &keys, NOW_MS, std::time::Duration::ZERO).is_ok();
    assert_eq!(is_accepted, data == GOOD.as_bytes());
}

/// Replies of a node, parsed as the reply to every kind of request; and as what some of them have in them: the record of a view,
/// and what an instance publishes of its waiters.
pub fn replies(data: &[u8]) {
    if let Some(view) = View::parse(&text(data)) {
        assert_eq!(View::parse(&view.encode()), Some(view));
    }
    if let Some(entry) = WaitersEntry::parse(data) {
        assert!(entry.resources.iter().all(|r| ResourceName::parse(&r.resource).is_ok() && r.first.len() <= r.waiting));
    }
    let Ok(value) = parse_redis_value(data) else { return };
    for request in requests() {
        check_reply(commands::parse(&request, &value));
        for index in 0..2 {
            check_reply(commands::parse_in_batch(2, index, &request, &value));
        }
    }
}

/// What the reader of a reply promises.
fn check_reply<E>(reply: Result<Reply, E>) {
    match reply {
        Ok(Reply::Granted { fence, .. } | Reply::Admitted { fence, .. }) => assert!(fence.0 < 1 << 53),
        Ok(
            Reply::Updated { record, .. }
            | Reply::Downgraded { record, .. }
            | Reply::Inspected(NodeInspection { lock: StoredLock::Lease { record, .. }, .. }),
        ) => {
            let _ = (record.encode(), record.labels());
        }
        Ok(Reply::SetGranted { leases }) => assert_eq!(leases.len(), 2),
        Ok(Reply::SetRefused { refused }) => assert!(refused.iter().all(|(place, _)| *place < 2)),
        Ok(Reply::Status(status)) => assert!(status.high_water.0 < 1 << 53),
        Ok(Reply::Knowledge { high_water, .. }) => assert!(high_water.0 < 1 << 53),
        Ok(Reply::Waiters(page)) => assert!(page.entries.len() <= 8),
        Ok(Reply::Page { leases, .. }) => {
            for lease in leases {
                assert!(LeaseRecord::parse(lease.record.encode().as_bytes()).is_some());
            }
        }
        Ok(Reply::Kept(page)) => assert!(page.due.len() <= KEPT_PAGE_MAX),
        Ok(Reply::Ticket(Some(stored))) => {
            assert_eq!(TicketHead::parse(&stored.head.encode()), Some(stored.head));
            let _ = Ticket::parse(&stored.body);
        }
        Ok(Reply::Tickets(page)) => assert_eq!(page.named.len(), 2),
        _ => {}
    }
}

/// Tickets, sets and messages, by the first byte: a request about locks or a ticket (a line with method and target, then the body),
/// the head or the body of a stored ticket, the webhooks file, the URL of a call-back, a secret, signatures, and the file of incidents.
pub fn tickets(data: &[u8]) {
    let Some((kind, rest)) = data.split_first() else { return };
    let text = text(rest);
    match kind {
        b'r' => lock_request(rest),
        b'h' => {
            if let Some(head) = TicketHead::parse(&text) {
                assert_eq!(head.encode(), text);
            }
            assert!(TicketId::parse(&text).is_none_or(|id| id.as_str() == text));
        }
        b't' => {
            if let Some(ticket) = Ticket::parse(&text) {
                assert!(ticket.resources().count() <= SET_MAX);
                let stored = ticket.encode().expect("texts and numbers");
                assert_eq!(Ticket::parse(&stored), Some(ticket));
            }
        }
        b'w' => {
            let lookup: Arc<dyn Lookup> = Arc::new(SystemLookup);
            // Files that it names do not exist.
            match webhooks_file::parse(std::path::Path::new("/nowhere/webhooks.toml"), &text, &lookup) {
                Ok(file) => assert!(file.targets.iter().all(|target| !target.origin().contains('@'))),
                Err(error) => assert!(!error.mistakes.is_empty() && !format!("{error}").contains("whsec_")),
            }
        }
        b'u' => {
            if let Ok(url) = target::parse_url(&text) {
                assert!(
                    matches!(url.scheme(), "http" | "https") && url.username().is_empty() && url.fragment().is_none()
                );
                assert_eq!(target::parse_url(url.as_str()).ok().as_ref(), Some(&url));
                let _ = target::literal_address(&url);
            }
        }
        b's' => {
            let own = SigningSecret::parse("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw").expect("a secret");
            let content = SignedContent { id: "m", timestamp_s: NOW_MS / 1_000, body: b"{}" };
            let secrets = [own];
            let good = content.signature(&secrets);
            let is_verified = content.verify(&text, &secrets, NOW_MS / 1_000).is_ok();
            assert_eq!(is_verified, text.split_ascii_whitespace().any(|one| one == good));
            if let Ok(secret) = SigningSecret::parse(&text) {
                assert!(!format!("{secret:?}").contains(text.trim()));
            }
        }
        _ => {
            let lines = rest.split(|byte| *byte == b'\n').count();
            assert!(incident_file::read(rest).expect("bytes").iter().count() <= lines);
        }
    }
}

/// Method and target, then the body: JSON where it begins as an object, otherwise a form.
fn lock_request(data: &[u8]) {
    thread_local! {
        static RUNTIME: (tokio::runtime::Runtime, HttpSettings) = {
            let loaded = Inputs::default().load(&BTreeMap::<String, String>::new()).expect("the defaults");
            let settings = HttpSettings::from_config(&loaded.config).expect("valid");
            (tokio::runtime::Builder::new_current_thread().enable_time().build().expect("a runtime"), settings)
        };
    }
    let mut parts = data.splitn(2, |byte| *byte == b'\n');
    let line = text(parts.next().unwrap_or_default());
    let Some((method @ ("POST" | "PATCH" | "DELETE"), target)) = line.split_once(' ') else { return };
    let Ok(uri) = target.parse::<Uri>() else { return };
    let body = parts.next().unwrap_or_default().to_vec();
    let kind = if body.starts_with(b"{") { "application/json" } else { "application/x-www-form-urlencoded" };
    let request = HttpRequest::builder().method(method).uri(uri).header("content-type", kind);
    let request = request.header("lock-token", "a-token-0123456789-abcdef").body(Body::from(body)).expect("a request");
    let names = RUNTIME.with(|(runtime, settings)| runtime.block_on(set_requests::names_of(request, settings)));
    match names {
        Ok(names) => {
            let distinct: std::collections::BTreeSet<_> = names.iter().map(ToString::to_string).collect();
            assert!(distinct.len() == names.len() && names.len() <= SET_MAX);
        }
        Err(problem) => assert!((400..500).contains(&problem.body("id").status)),
    }
}

/// One request of each kind, and of `AcquireShared` and `AcquireSet` two.
pub fn requests() -> Vec<Request> {
    let resource = || ResourceName::parse("a/b").expect("valid");
    let token = Token::parse("a-token-0123456789-abcdef").expect("valid").hash();
    let (attempt, ttl) = (|| AttemptId::from_random(7), Ttl::from_ms(1_000).expect("valid"));
    let limit = PermitLimit::new(3).expect("valid");
    let second = Duration::from_secs(1);
    let (instance, view) = (|| InstanceName::from_random(7), Arc::<View>::default);
    let id = TicketId::of("c", &resource(), &token);
    let shared = |mode| {
        let (token, labels) = (token.clone(), "".into());
        Request::AcquireShared(AcquireSharedArgs {
            resource: resource(),
            token,
            mode,
            attempt: attempt(),
            ttl,
            labels,
            proposed: None,
        })
    };
    let set = |is_shared| {
        let resources = [resource(), ResourceName::parse("c").expect("valid")].into();
        let (token, labels) = (token.clone(), "".into());
        Request::AcquireSet(AcquireSetArgs { resources, token, attempt: attempt(), ttl, labels, is_shared })
    };
    let (fence, none) = (Fence(7), || "".into());
    let record = LeaseRecord {
        mode: Mode::Exclusive,
        token: token.clone(),
        renewals: 0,
        ttl,
        fence,
        claims: none(),
        labels: none(),
    };
    vec![
        Request::Acquire(AcquireArgs {
            resource: resource(),
            token: token.clone(),
            attempt: attempt(),
            ttl,
            labels: "".into(),
            token_use: TokenUse::First,
        }),
        shared(Mode::Shared),
        shared(Mode::Permit { slot: 0, limit }),
        set(false),
        set(true),
        Request::Downgrade(DowngradeArgs { resource: resource(), token: token.clone(), claims: "".into() }),
        Request::Intent(IntentArgs {
            resource: resource(),
            token: token.clone(),
            since: RequestTime(NOW_MS * 1_000),
            mode: WantedMode::Shared,
            is_withdrawn: false,
        }),
        Request::Update(UpdateArgs {
            resource: resource(),
            token: token.clone(),
            ttl: None,
            fence: None,
            kind: UpdateKind::Renewal,
            labels: None,
        }),
        Request::Restore(RestoreArgs { resource: resource(), record, left_ms: 1 }),
        Request::Cancel(CancelArgs { resource: resource(), token: token.clone(), attempt: attempt() }),
        Request::Release(ReleaseArgs {
            resource: resource(),
            token: token.clone(),
            reason: redlockd::protocol::EndReason::Released,
        }),
        Request::Revoke(RevokeArgs { resource: resource(), token: token.clone() }),
        Request::DeleteForeign(DeleteForeignArgs { resource: resource(), fingerprint: "".into() }),
        Request::Inspect { resource: resource() },
        Request::List(ListArgs { cursor: 0, count: 10 }),
        Request::Index(IndexArgs { leases: [(resource(), token)].into() }),
        Request::Kept(KeptArgs { add: vec![resource()] }),
        Request::Waiters(WaitersArgs { instance: instance(), entry: None, ttl: second, cursor: 0 }),
        Request::Ticket(TicketArgs {
            id: id.clone(),
            order: TicketOrder::Read,
            head: TicketHead::waiting(NOW_MS),
            body: "".into(),
            server: instance(),
            ttl: second,
            due: None,
        }),
        Request::Tickets(TicketsArgs {
            instance: instance(),
            serve: second,
            served: vec![(id.clone(), NOW_MS)],
            asked: vec![(id, NOW_MS)],
            takes_due: true,
        }),
        Request::Read(ReadArgs { cursor: 0, count: 10 }),
        Request::Rename(RenameArgs { receives: true, cursor: 3, count: 10 }),
        Request::Fill(FillArgs { view: view(), nonce: 7, page: 1, pages: 1, keeps: false, entries: Vec::new() }),
        Request::probe(),
        Request::init(),
        Request::Quarantine { by: "i".into() },
        Request::Promise { view: ViewId::default() },
        Request::Install { view: view() },
        Request::Admit(AdmitArgs { view: view(), nonce: 7, pages: 1, seed: Fence(7), by_clock: false }),
    ]
}
