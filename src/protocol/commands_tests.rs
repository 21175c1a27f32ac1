//! The words of each command, which are a contract with running nodes, and replies that are malformed.

use std::sync::Arc;
use std::time::Duration;

use deadpool_redis::redis::Arg;
use proptest::prelude::*;

use super::*;
use crate::protocol::keys::KeyTemplate;
use crate::protocol::list::PAGE_MAX;
use crate::protocol::{
    AcquireArgs, AdmitArgs, CancelArgs, ClusterParams, DeleteForeignArgs, EndReason, FillArgs, FillEntry, Found,
    LeaseRecord, ListArgs, NoVote, ReadArgs, ReadEntry, ReleaseArgs, Released, RenameArgs, RestoreArgs, RevokeArgs,
    TokenUse, Tombstone, UpdateArgs, UpdateKind, ViewId,
};
use crate::types::{AttemptId, Fence, ResourceName, Token, TokenHash, Ttl};

fn words(command: &Command) -> Vec<String> {
    let text = |arg| match arg {
        Arg::Simple(bytes) => String::from_utf8_lossy(bytes).into_owned(),
        _ => "?".to_owned(),
    };
    command.to_cmd().args_iter().map(text).collect()
}

fn params() -> ClusterParams {
    ClusterParams {
        cluster: "c1".into(),
        guard: Duration::from_millis(500),
        lock_delay: Duration::from_secs(1),
        quarantine: Duration::from_secs(305),
        fence_ttl: Duration::from_hours(1),
        template: Default::default(),
    }
}

fn sent(request: &Request, script_ref: ScriptRef) -> Vec<String> {
    let (params, template) = (params(), KeyTemplate::parse("lock:{resource}").expect("valid"));
    let marker_fingerprint = marker_fingerprint(&params, "beef", ViewId::NONE);
    let context = ScriptContext { params: &params, template: &template, marker_fingerprint: &marker_fingerprint };
    words(&build(&context, RequestTime(77), request, script_ref))
}

fn resource() -> ResourceName {
    ResourceName::parse("a/b").expect("valid")
}

fn token() -> TokenHash {
    Token::parse("abcdefghijklmnopqrstuv").expect("valid").hash()
}

#[test]
fn an_acquire_names_its_keys_and_arguments_in_order() {
    let (hash, attempt) = (token(), AttemptId::from_random(5));
    let (resource, ttl) = (resource(), Ttl::from_ms(30_000).expect("valid"));
    let request = Request::Acquire(AcquireArgs {
        resource,
        token: hash.clone(),
        attempt: attempt.clone(),
        ttl,
        labels: Arc::from("{}"),
        token_use: TokenUse::Again,
    });
    let (hash, attempt) = (hash.as_str(), attempt.as_str());
    let expected = [
        "EVALSHA",
        acquire::SCRIPT.sha(),
        "1",
        "lock:a/b",
        "beef|c1|00000000000000000000000000000000",
        "500000",
        "3600000",
        "305000",
        "1 5 0",
        "77",
        "31000",
        &format!("{hash}|000000|30000|77|{attempt},|{{}}"),
    ];
    assert_eq!(sent(&request, ScriptRef::Hash), expected);
    let by_body = sent(&request, ScriptRef::Body);
    assert_eq!(by_body[0], "EVAL");
    assert!(by_body[1].contains("local function check_vote") && by_body[1].contains("redlockd:tombstones"));
    assert_eq!(by_body[2..], sent(&request, ScriptRef::Hash)[2..]);
}

#[test]
fn a_release_writes_a_tombstone_for_the_token_and_a_cancel_for_the_attempt() {
    let (hash, attempt) = (token(), AttemptId::from_random(5));
    let release =
        Request::Release(ReleaseArgs { resource: resource(), token: hash.clone(), reason: EndReason::Forced });
    let tombstone = format!("redlockd:gone:{}:a/b", hash.as_str());
    let release = sent(&release, ScriptRef::Hash);
    assert_eq!(release[2..5], ["2", "lock:a/b", &tombstone]);
    assert_eq!(release[5..], ["forced"]);
    let cancel = Request::Cancel(CancelArgs { resource: resource(), token: hash.clone(), attempt: attempt.clone() });
    let cancel = sent(&cancel, ScriptRef::Hash);
    assert_eq!(cancel[4], format!("{tombstone}#{}", attempt.as_str()));
    assert_eq!(cancel[5..], [attempt.as_str(), "2000"]);
}

#[test]
fn a_batch_has_the_keys_and_arguments_of_its_requests_in_order() {
    let (params, template) = (params(), KeyTemplate::parse("lock:{resource}").expect("valid"));
    let marker_fingerprint = marker_fingerprint(&params, "beef", ViewId::NONE);
    let context = ScriptContext { params: &params, template: &template, marker_fingerprint: &marker_fingerprint };
    let release = |name: &str, reason| {
        Request::Release(ReleaseArgs { resource: ResourceName::parse(name).expect("valid"), token: token(), reason })
    };
    let (a, b, forced) =
        (release("a", EndReason::Released), release("b", EndReason::Released), release("b", EndReason::Forced));
    let cancel =
        Request::Cancel(CancelArgs { resource: resource(), token: token(), attempt: AttemptId::from_random(5) });
    let both = |one: &Request, other: &Request| {
        let words = words(&build_batch(&context, &[(RequestTime(1), one), (RequestTime(2), other)], ScriptRef::Hash));
        assert_eq!(words[2], "4");
        assert_eq!(words[3..7], [&sent(one, ScriptRef::Hash)[3..5], &sent(other, ScriptRef::Hash)[3..5]].concat());
        words[7..].to_vec()
    };
    assert_eq!(both(&a, &b), ["released"], "one reason for all");
    assert_eq!(both(&a, &forced), ["", "released", "", "forced"]);
    assert_eq!(
        both(&cancel, &b),
        [&sent(&cancel, ScriptRef::Hash)[5..], &["".to_owned(), "released".to_owned()]].concat()
    );
}

/// The nodes of a round share what the first one encoded; a node with other parameters, and another request under the same stamp,
/// have their own.
#[test]
fn a_request_is_encoded_once_for_equal_nodes_and_anew_for_others() {
    let (plain, redis) = (KeyTemplate::default(), KeyTemplate::parse("lock:{resource}").expect("valid"));
    let (short, long) = (params(), ClusterParams { lock_delay: Duration::from_secs(9), ..params() });
    let patient = ClusterParams { guard: Duration::from_secs(2), ..params() };
    let of = |resource: &str, attempt| {
        let (resource, token) = (ResourceName::parse(resource).expect("valid"), token());
        let (attempt, ttl, labels) =
            (AttemptId::from_random(attempt), Ttl::from_ms(30_000).expect("valid"), "{}".into());
        Arc::new(Request::Acquire(AcquireArgs { resource, token, attempt, ttl, labels, token_use: TokenUse::Again }))
    };
    let cancel = |attempt| {
        let (resource, attempt) = (resource(), AttemptId::from_random(attempt));
        Arc::new(Request::Cancel(CancelArgs { resource, token: token(), attempt }))
    };
    for (kind, requests) in [
        (BatchKind::Acquire, [of("a", 1), of("b", 2), of("a", 3)]),
        (BatchKind::Release, [cancel(1), cancel(2), cancel(3)]),
    ] {
        let [first, second, other] = &requests;
        let stamps = [1, 2].map(|at| RequestStamp::new(RequestTime(at), Arc::default()));
        let mut later = stamps[0].clone();
        later.sent_at = RequestTime(9);
        for (params, template, run) in [
            (&short, &plain, "a"),
            (&short, &plain, "b"),
            (&long, &plain, "a"),
            (&patient, &plain, "a"),
            (&short, &redis, "a"),
        ] {
            let marker_fingerprint = marker_fingerprint(params, run, ViewId::NONE);
            let context = ScriptContext { params, template, marker_fingerprint: &marker_fingerprint };
            for batch in [
                vec![(&stamps[0], first), (&stamps[1], second)],
                vec![(&stamps[0], first)],
                vec![(&later, first)],
                vec![(&stamps[0], other), (&stamps[1], second)],
            ] {
                let alone: Vec<(RequestTime, &Request)> = batch.iter().map(|(s, r)| (s.sent_at, &***r)).collect();
                let (mut expected, mut written) = (b"before".to_vec(), b"before".to_vec());
                build_batch(&context, &alone, ScriptRef::Hash).write_to(&mut expected);
                write_batch(&mut written, &context, kind, batch.into_iter(), ScriptRef::Hash);
                assert_eq!(String::from_utf8_lossy(&written), String::from_utf8_lossy(&expected));
            }
        }
    }
}

#[test]
fn page_sizes_are_clamped() {
    let page = sent(&Request::List(ListArgs { cursor: u64::MAX, count: u32::MAX }), ScriptRef::Hash);
    assert_eq!(page[4..6], [u64::MAX.to_string(), PAGE_MAX.to_string()]);
    assert_eq!(sent(&Request::List(ListArgs { cursor: 0, count: 0 }), ScriptRef::Hash)[5], "1");
}

#[test]
fn every_script_has_its_own_hash() {
    let names: std::collections::HashSet<_> = all_scripts().iter().map(|s| s.sha().to_owned()).collect();
    assert_eq!(names.len(), all_scripts().len());
}

const LEASE: &str = "0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f|000001|30000|17|a0,|{}";

fn bulk(text: &str) -> Value {
    Value::BulkString(text.as_bytes().to_vec())
}

fn list(items: &[Value]) -> Value {
    Value::Array(items.to_vec())
}

/// One request for each kind of reply.
fn requests() -> Vec<Request> {
    let resource = ResourceName::parse("r").expect("valid");
    let token = Token::parse("abcdefghijklmnopqrstuv").expect("valid").hash();
    let (attempt, ttl) = (AttemptId::from_random(1), Ttl::from_ms(1).expect("valid"));
    let record = LeaseRecord::parse(LEASE.as_bytes()).expect("a lease");
    let labels: Arc<str> = "{}".into();
    vec![
        Request::Acquire(AcquireArgs {
            resource: resource.clone(),
            token: token.clone(),
            attempt,
            ttl,
            labels,
            token_use: TokenUse::First,
        }),
        Request::Update(UpdateArgs {
            resource: resource.clone(),
            token: token.clone(),
            ttl: None,
            fence: None,
            kind: UpdateKind::Renewal,
            labels: None,
        }),
        Request::Restore(RestoreArgs { resource: resource.clone(), record, left_ms: 1 }),
        Request::Release(ReleaseArgs { resource: resource.clone(), token: token.clone(), reason: EndReason::Released }),
        Request::Revoke(RevokeArgs { resource: resource.clone(), token }),
        Request::DeleteForeign(DeleteForeignArgs { resource: resource.clone(), fingerprint: "x".into() }),
        Request::Inspect { resource },
        Request::List(ListArgs { cursor: 0, count: 1 }),
        Request::Read(ReadArgs { cursor: 0, count: 1 }),
        Request::Fill(FillArgs { view: Arc::default(), nonce: 1, page: 1, pages: 1, keeps: false, entries: vec![] }),
        Request::Rename(RenameArgs::default()),
        Request::Promise { view: ViewId::NONE },
        Request::Admit(AdmitArgs { view: Arc::default(), nonce: 1, pages: 1, seed: Fence(1), by_clock: true }),
        Request::probe(),
    ]
}

fn is_protocol(answer: &Result<Reply, Unreachable>) -> bool {
    matches!(answer, Err(Unreachable { kind: UnreachableKind::Protocol, .. }))
}

#[test]
fn replies_of_another_shape_are_protocol_errors() {
    let nested = list(&[list(&[bulk("G")])]);
    let shapes =
        [Value::Nil, Value::Okay, Value::Int(1), bulk("G"), list(&[]), list(&[Value::Nil]), nested, list(&[bulk("?")])];
    for request in requests() {
        for shape in &shapes {
            let answer = parse(&request, shape);
            assert!(is_protocol(&answer), "{} {shape:?}: {answer:?}", request.operation());
        }
    }
}

#[test]
fn incomplete_replies_and_numbers_out_of_range_are_protocol_errors() {
    let [acquire, update, .., probe] = &requests()[..] else { panic!("requests") };
    let int = Value::Int;
    for items in [
        vec![bulk("G")],
        vec![bulk("G"), int(5)],
        vec![bulk("G"), int(-1), int(0)],
        vec![bulk("G"), int(1 << 53), int(0)],
        vec![bulk("G"), int(5), int(2)],
        vec![bulk("G"), bulk("5"), int(0)],
        vec![bulk("B"), int(5)],
        vec![bulk("B"), bulk("5"), bulk("")],
        vec![bulk("D"), bulk("unknown")],
        vec![bulk("Q"), int(-5)],
        vec![bulk("C"), int(5)],
    ] {
        let answer = parse(acquire, &list(&[list(&items)]));
        assert!(is_protocol(&answer), "{items:?}: {answer:?}");
    }
    for alone in [int(-1), int(1 << 53)] {
        assert!(is_protocol(&parse(acquire, &list(&[alone]))));
    }
    assert!(is_protocol(&parse(update, &list(&[bulk("G"), int(5), int(0), int(5)]))), "a number in place of the lease");
    assert!(is_protocol(&parse(probe, &list(&[bulk("A"), int(0), int(1), int(i64::MAX)]))));
}

#[test]
fn a_value_that_is_no_lease_is_held_by_a_foreign_client() {
    let request = &requests()[0];
    let held = |left, value| parse(request, &list(&[list(&[bulk("B"), Value::Int(left), value])]));
    let record = LeaseRecord::parse(LEASE.as_bytes());
    assert_eq!(held(9, bulk(LEASE)), Ok(Reply::Held { left_ms: Some(9), record }));
    assert_eq!(held(-1, bulk("")), Ok(Reply::Held { left_ms: None, record: None }));
    let raw = Value::BulkString(vec![0xff; 20]);
    assert_eq!(held(9, raw), Ok(Reply::Held { left_ms: Some(9), record: None }));
}

#[test]
fn each_request_of_a_batch_gets_its_own_reply_and_an_error_if_their_number_differs() {
    let [acquire, _, _, release, ..] = &requests()[..] else { panic!("requests") };
    let both = list(&[Value::Int(7), list(&[bulk("G"), Value::Int(5), Value::Int(1)])]);
    let granted = |fence, joined| Ok(Reply::Granted { fence: Fence(fence), joined });
    assert_eq!(parse_in_batch(2, 0, acquire, &both), granted(7, false));
    assert_eq!(parse_in_batch(2, 1, acquire, &both), granted(5, true));
    assert!(is_protocol(&parse_in_batch(3, 0, acquire, &both)));
    assert!(is_protocol(&parse_in_batch(2, 2, acquire, &both)));
    let released = Reply::Released(Released { found: Found::Match, earlier: None });
    assert_eq!(parse(release, &list(&[Value::Int(1)])), Ok(released));
    assert!(is_protocol(&parse(release, &list(&[Value::Int(2)]))));
}

#[test]
fn a_page_skips_entries_that_are_no_lease_and_ends_at_cursor_zero() {
    let request = &requests()[7];
    let entry = |name: &str, left, value: &str| [bulk(name), Value::Int(left), bulk(value)];
    let mut items = vec![bulk("12")];
    let last = [entry("e", 5, "foreign"), entry("many", 5, "S|s")];
    for part in [entry("a", 5, LEASE), entry("b", -2, LEASE), entry("c d", 5, LEASE)].into_iter().chain(last) {
        items.extend(part);
    }
    let Ok(Reply::Page { next: Some(12), leases, unread }) = parse(request, &list(&items)) else { panic!("no page") };
    assert_eq!(leases.iter().map(|l| l.resource.as_str()).collect::<Vec<_>>(), ["a"]);
    assert_eq!(unread.iter().map(|name| name.as_str()).collect::<Vec<_>>(), ["many"]);
    items.pop();
    assert!(is_protocol(&parse(request, &list(&items))), "an incomplete entry");
    assert_eq!(parse(request, &list(&[bulk("0")])), Ok(Reply::Page { next: None, leases: vec![], unread: vec![] }));
    assert!(is_protocol(&parse(request, &list(&[bulk("-1")]))));
}

#[test]
fn a_page_of_a_read_skips_names_that_no_resource_has() {
    let read = &requests()[8];
    let (hash, attempt) = (token(), AttemptId::from_random(5));
    let gone = format!("{}:a/b#{}", hash.as_str(), attempt.as_str());
    let block = format!("{}|a0,p,", hash.as_str());
    let mut items = vec![bulk("R"), bulk("12"), Value::Int(9), Value::Int(77)];
    for (kind, name, left, value) in [
        ("L", "a/b", 5, LEASE),
        ("L", "c d", 5, LEASE),
        ("L", "e", -1, "theirs"),
        ("F", "f", 5, ""),
        ("T", gone.as_str(), 5, "cancelled"),
        ("T", "short:a/b", 5, "released"),
        ("B", "a/b", 5, block.as_str()),
        ("B", "a/b", 5, "*|"),
    ] {
        items.extend([bulk(kind), bulk(name), Value::Int(left), bulk(value)]);
    }
    let named = |name| ResourceName::parse(name).expect("valid");
    let record = LeaseRecord::parse(LEASE.as_bytes()).expect("a lease");
    let entries = vec![
        ReadEntry::Lease { resource: resource(), record, left_ms: Some(5) },
        ReadEntry::Foreign { resource: named("e"), value: Some(b"theirs"[..].into()), left_ms: None },
        ReadEntry::Foreign { resource: named("f"), value: None, left_ms: Some(5) },
        ReadEntry::Tombstone(Tombstone {
            resource: resource(),
            token: hash.clone(),
            attempt: Some(attempt),
            reason: EndReason::Cancelled,
            left_ms: 5,
        }),
        ReadEntry::Block { resource: resource(), token: Some(hash), claims: "a0,p,".into(), left_ms: 5 },
        ReadEntry::Block { resource: resource(), token: None, claims: "".into(), left_ms: 5 },
    ];
    let expected = Reply::Knowledge { next: Some(12), high_water: Fence(9), now_us: 77, entries };
    assert_eq!(parse(read, &list(&items)), Ok(expected));
    items.pop();
    assert!(is_protocol(&parse(read, &list(&items))), "an incomplete entry");
    for bad in ["B", "T", "?"] {
        let items =
            [bulk("R"), bulk("0"), Value::Int(0), Value::Int(0), bulk(bad), bulk("a"), Value::Int(1), bulk("x")];
        assert!(is_protocol(&parse(read, &list(&items))), "{bad}");
    }
    let blocked = Ok(Reply::NoVote(NoVote::Blocked { left_ms: 5 }));
    assert_eq!(parse(&requests()[0], &list(&[list(&[bulk("W"), Value::Int(5)])])), blocked);
}

#[test]
fn a_fill_has_five_arguments_for_each_entry() {
    let (token, record) = (token(), LeaseRecord::parse(LEASE.as_bytes()).expect("a lease"));
    let tombstone = |attempt| {
        let (resource, token, reason) = (resource(), token.clone(), EndReason::Released);
        FillEntry::Tombstone(Tombstone { resource, token, attempt, reason, left_ms: 0 })
    };
    let entries = vec![
        tombstone(None),
        tombstone(Some(AttemptId::from_random(5))),
        FillEntry::Copy { resource: resource(), record: record.clone(), left_ms: 7 },
        FillEntry::Block { resource: resource(), token: token.clone(), claims: "p,".into(), left_ms: u64::MAX },
        FillEntry::Foreign { resource: resource(), value: Some(b"x"[..].into()), left_ms: 7 },
        FillEntry::Foreign { resource: resource(), value: None, left_ms: 7 },
    ];
    let sent = sent(
        &Request::Fill(FillArgs { view: Arc::default(), nonce: 3, page: 1, pages: 2, keeps: false, entries }),
        ScriptRef::Hash,
    );
    assert_eq!(sent[9..14], ["3", "1", "2", "lock:", ""]);
    assert_eq!(sent[14..16], [ViewId::NONE.to_string(), ViewId::NONE.to_string()]);
    let gone = format!("redlockd:gone:{}:a/b", token.as_str());
    let longest = (1_u64 << 40).to_string();
    let expected: [[&str; 5]; 6] = [
        ["t", &gone, "1", "", "released"],
        ["t", &format!("{gone}#{}", AttemptId::from_random(5).as_str()), "1", "", "released"],
        ["c", "a/b", "7", record.token.as_str(), LEASE],
        ["b", "a/b", &longest, token.as_str(), "p,"],
        ["f", "a/b", "7", "", "x"],
        ["f", "a/b", "7", "", ""],
    ];
    assert_eq!(sent[16], "0");
    assert_eq!(sent[17..], expected.concat());
}

fn any_value() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        any::<i64>().prop_map(Value::Int),
        any::<Vec<u8>>().prop_map(Value::BulkString),
        "[GBDXMOFPVIAQSKCNWRTL]".prop_map(|code| Value::BulkString(code.into_bytes())),
        Just(Value::Nil),
        any::<f64>().prop_map(Value::Double),
    ];
    leaf.prop_recursive(2, 20, 8, |inner| prop::collection::vec(inner, 0..9).prop_map(Value::Array))
}

proptest! {
    #[test]
    fn any_reply_is_parsed_or_refused(value in any_value()) {
        for request in requests() {
            let _ = parse(&request, &value);
        }
    }
}
