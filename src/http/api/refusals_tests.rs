//! Every domain error with its status code, members and headers.

use std::sync::Arc;

use axum::http::HeaderMap;
use axum::response::IntoResponse;
use serde_json::{Value, json};

use super::*;
use crate::auth::access_file;
use crate::auth::api_key::KeyHash;
use crate::auth::authenticator::Authenticator;
use crate::auth::principal::{PrincipalLimits, PrincipalName};
use crate::manager::types::{BlockingResource, HeldResources, HolderInfo, QuorumCount};
use crate::protocol::{NoVote, UnreachableKind};
use crate::redlock::quorum::{NodeOutcome, Verdict};
use crate::types::{Fence, Labels, NodeId, Token, TokenHash, WaitId};

fn resource() -> ResourceName {
    ResourceName::parse("deploy/prod").expect("valid")
}

/// A principal with these rules.
fn access_to(rules: &str) -> Access {
    let hash = KeyHash::of(b"secret").hex();
    let file = format!("[[principal]]\nname = \"ci\"\nkeys = [{{ sha256 = \"{hash}\" }}]\nallow = [{rules}]");
    let principals = access_file::parse(&file).expect("good");
    let authenticator = Arc::new(Authenticator::with_principals(principals, PrincipalLimits::default()));
    let principal = authenticator.current(&PrincipalName::parse("ci").expect("valid")).expect("it is there");
    Access::of_principal(&authenticator, principal)
}

fn refused(error: AcquireError) -> Problem {
    acquire(&resource(), error, &Access::everything())
}

fn locked(reason: HeldReason, owner: &str, free_in: Option<Duration>) -> HeldRefusal {
    let token = Token::parse("abcdefghijklmnopqrstuv").expect("valid");
    let holder = HolderInfo {
        mode: Mode::Exclusive,
        kept_for: None,
        token_id: token.hash().id(),
        fence: Fence(4_711),
        labels: Labels { owner: owner.to_owned(), acquired_at_ms: 1_795_198_023_120, ..Labels::default() },
        valid_for: Duration::from_millis(12_040),
        is_confirmed: true,
        renewals: 3,
    };
    let holders = if reason == HeldReason::Foreign { vec![] } else { vec![holder] };
    let resource = ResourceName::parse("deploy/prod").expect("valid");
    let about = Box::new(HeldResources {
        resource,
        blocked_by: Vec::new(),
        all_named: true,
        ends_known: true,
        is_behind: false,
    });
    let (waiting, waiting_elsewhere, nodes) = (2, 3, outcomes());
    HeldRefusal { about, reason, holders, waiting, waiting_elsewhere, free_in, nodes }
}

fn outcomes() -> Vec<NodeOutcome> {
    let outcome = |name, verdict| NodeOutcome { node: NodeId::parse(name).expect("valid"), verdict };
    vec![
        outcome("n1", Verdict::Held { left_ms: Some(13_162), holder: None }),
        outcome("n2", Verdict::Unreachable(UnreachableKind::Timeout)),
        outcome("n3", Verdict::NoVote(NoVote::Quarantined { left_ms: 4_200 })),
    ]
}

fn few() -> NoQuorum {
    let quorum = QuorumCount { granted: 1, needed: 2, nodes: 3 };
    let reasons = "n2: no answer in time; n3: in quarantine; it votes in 5 s".to_owned();
    NoQuorum { quorum, nodes: outcomes(), reasons, retry_after: Duration::from_millis(4_200) }
}

/// Status, body and headers as a client sees them.
fn seen(problem: Problem) -> (u16, Value, HeaderMap) {
    let body = serde_json::to_value(problem.body("req_1")).expect("plain data");
    let response = problem.into_response();
    assert_eq!(body["status"], response.status().as_u16());
    (response.status().as_u16(), body, response.headers().clone())
}

fn retry_after(headers: &HeaderMap) -> Option<&str> {
    headers.get(header::RETRY_AFTER).and_then(|v| v.to_str().ok())
}

#[test]
fn locked_shows_holder_and_remaining_time() {
    let error = AcquireError::Held(locked(HeldReason::Lease, "ci-4711", Some(Duration::from_millis(12_001))));
    let (status, body, headers) = seen(refused(error));
    assert_eq!((status, retry_after(&headers)), (423, Some("13")));
    assert_eq!(body["type"], "/problems/locked");
    assert_eq!(body["instance"], "req_1");
    assert_eq!(body["detail"], "deploy/prod is held by ci-4711 for 13 s more");
    let waiting = (&body["waiting"], &body["waiting_here"]);
    assert_eq!((&body["reason"], waiting), (&json!("held"), (&json!(5), &json!(2))));
    let holder = json!({
        "token_id": "f69f9b70", "owner": "ci-4711", "note": "", "metadata": {}, "fence": 4711,
        "acquired_at": "2026-11-20T18:07:03.120Z", "valid_for_ms": 12_040, "renewals": 3
    });
    assert_eq!(body["holders"], json!([holder]));
    let nodes = json!([
        {"node": "n1", "outcome": "held", "left_ms": 13_162},
        {"node": "n2", "outcome": "timeout"},
        {"node": "n3", "outcome": "quarantined", "seconds_left": 5}
    ]);
    assert_eq!(body["nodes"], nodes);
}

#[test]
fn a_refused_set_names_each_lock_that_keeps_it_out() {
    let mut held = locked(HeldReason::Lease, "ci-4711", None);
    let name = |text: &str| ResourceName::parse(text).expect("valid");
    let blocked = |resource: &str, holder: Option<&HolderInfo>| BlockingResource {
        resource: name(resource),
        holder: holder.cloned(),
    };
    held.about.blocked_by = vec![blocked("deploy/prod", held.holders.first()), blocked("other", None)];
    let (status, body, _) = seen(refused(AcquireError::Held(held)));
    let expected = json!([
        {"resource": "deploy/prod", "owner": "ci-4711", "fence": 4711},
        {"resource": "other", "owner": null, "fence": null}
    ]);
    assert_eq!((status, &body["blocked_by"]), (423, &expected));
    let (_, body, _) = seen(refused(AcquireError::Held(locked(HeldReason::Lease, "", None))));
    assert_eq!(body.get("blocked_by"), None, "one lock is its `resource`");
}

#[test]
fn a_refusal_leaves_out_what_it_does_not_know() {
    let mut held = locked(HeldReason::Lease, "ci-4711", None);
    let reader = HolderInfo { mode: Mode::Shared, is_confirmed: false, ..held.holders.remove(0) };
    (held.holders, held.about.ends_known) = (vec![reader.clone(), reader.clone()], false);
    let (_, body, _) = seen(refused(AcquireError::Held(held.clone())));
    assert_eq!((body["holders"][1].get("valid_for_ms"), body.get("holders_complete")), (None, None), "{body}");
    assert_eq!(body["detail"], "deploy/prod is held by 2 shared leases");
    (held.about.all_named, held.about.is_behind) = (false, true);
    let (_, body, _) = seen(refused(AcquireError::Held(held.clone())));
    assert_eq!(body["holders_complete"], false);
    assert_eq!(
        body["detail"],
        "deploy/prod is held by at least 2 shared leases, and other requests wait and come first"
    );
    // Nobody holds it: it is for a request that waits, for one lock or for several.
    held.holders.clear();
    let (_, body, _) = seen(refused(AcquireError::Held(held)));
    assert_eq!(body["detail"], "other requests for deploy/prod wait and come first");
}

#[test]
fn locked_has_three_reasons() {
    for (reason, word, part) in [
        (HeldReason::Lease, "held", "a holder without an owner label"),
        (HeldReason::Foreign, "foreign", "another Redlock client"),
        (HeldReason::LockDelay, "lock-delay", "safety margin"),
    ] {
        let (status, body, headers) = seen(refused(AcquireError::Held(locked(reason, "", None))));
        assert_eq!((status, body["reason"].as_str()), (423, Some(word)));
        assert!(body["detail"].as_str().is_some_and(|d| d.contains(part)), "{body}");
        assert_eq!(retry_after(&headers), Some("30"), "the end is unknown");
    }
}

#[test]
fn retry_after_is_rounded_up_and_within_its_bounds() {
    for (ms, seconds) in [(0, "1"), (1, "1"), (1_000, "1"), (1_001, "2"), (30_000, "30"), (3_600_000, "30")] {
        let problem = Problem::new(ProblemKind::Locked, "").retry_after(Duration::from_millis(ms));
        assert_eq!(retry_after(&seen(problem).2), Some(seconds), "{ms}");
    }
    assert_eq!(retry_after(&seen(Problem::new(ProblemKind::Locked, "").retry_after(Duration::MAX)).2), Some("30"));
}

#[test]
fn a_wait_timeout_has_duration_and_position() {
    let locked = locked(HeldReason::Lease, "ci", Some(Duration::from_secs(3)));
    let error = AcquireError::WaitTimeout { held: locked, waited: Duration::from_millis(10_002), position: 3 };
    let (status, body, _) = seen(refused(error));
    assert_eq!((status, body["type"].as_str()), (423, Some("/problems/wait-timeout")));
    assert_eq!((&body["waited_ms"], &body["position"]), (&json!(10_002), &json!(3)));
    assert_eq!(body["holders"][0]["owner"], "ci");
}

#[test]
fn a_refusal_gives_the_remaining_validity_in_its_text_and_in_its_member() {
    let cases = [
        (Some(8_999_999), Some(8_999), "; its old deadline is valid for 8 s more"),
        (Some(999_999), Some(999), "; its old deadline is valid for 999 ms more"),
        (Some(999), Some(0), ", and its deadline has passed"),
        (Some(0), Some(0), ", and its deadline has passed"),
        (None, None, "; its old deadline is valid until it passes"),
    ];
    for (left_us, member, text) in cases {
        let valid_for = left_us.map(Duration::from_micros);
        let (_, body, _) = seen(extend(&resource(), ExtendError::NoQuorum { no_quorum: few(), valid_for }));
        assert_eq!(body["valid_for_ms"].as_u64(), member);
        assert!(body["detail"].as_str().is_some_and(|detail| detail.contains(text)), "{body}");
    }
}

#[test]
fn too_few_votes_are_503_with_the_vote_of_each_node() {
    let not_extended = ExtendError::NoQuorum { no_quorum: few(), valid_for: Some(Duration::from_micros(8_999_999)) };
    for (problem, left) in [
        (refused(AcquireError::NoQuorum(few())), None),
        (release(&resource(), ReleaseError::NoQuorum(few())), None),
        (force(&resource(), ForceError::NoQuorum(few())), None),
        (extend(&resource(), not_extended), Some(8_999)),
    ] {
        let (status, body, headers) = seen(problem);
        assert_eq!((status, body["type"].as_str()), (503, Some("/problems/quorum-unavailable")));
        assert_eq!(body["quorum"], json!({"granted": 1, "needed": 2, "nodes": 3}));
        assert_eq!(body["nodes"].as_array().map(Vec::len), Some(3));
        let detail = body["detail"].as_str().expect("text");
        let why = "1 of 3 nodes voted for it, 2 are needed; n2: no answer in time; n3: in quarantine; it votes in 5 s";
        assert!(detail.ends_with(why), "{detail}");
        assert_eq!(retry_after(&headers), Some("5"));
        assert_eq!(body["valid_for_ms"].as_u64(), left, "rounded down: never more than is left");
    }
}

/// A question is not a vote (A7).
#[test]
fn too_few_answers_are_no_votes() {
    let (status, body, _) = seen(unknown(HOLDER_UNKNOWN, &few()));
    let detail = body["detail"].as_str().expect("text");
    assert_eq!((status, detail.contains(" of 3 nodes can say, 2 are needed")), (503, true), "{detail}");
    assert!(!detail.contains("voted for it"), "{detail}");
}

#[test]
fn lost_leases_are_410_with_their_reason_and_others_409() {
    for (reason, word) in [
        (EndReason::Released, "released"),
        (EndReason::Forced, "forced"),
        (EndReason::Revoked, "forced"),
        (EndReason::Cancelled, "unknown"),
    ] {
        let (status, body, _) = seen(refused(AcquireError::Ended(reason)));
        assert_eq!((status, body["reason"].as_str()), (410, Some(word)));
    }
    for reason in [GoneReason::Expired, GoneReason::Released, GoneReason::Forced, GoneReason::Unknown] {
        for problem in
            [extend(&resource(), ExtendError::Gone(reason)), release(&resource(), ReleaseError::Gone(reason))]
        {
            let (status, body, headers) = seen(problem);
            assert_eq!((status, body["type"].as_str()), (410, Some("/problems/lease-expired")));
            assert_eq!((body["reason"].as_str(), retry_after(&headers)), (Some(reason.as_str()), None));
        }
    }
    for problem in [extend(&resource(), ExtendError::NotHolder), release(&resource(), ReleaseError::NotHolder)] {
        let (status, body, _) = seen(problem);
        assert_eq!((status, body["type"].as_str()), (409, Some("/problems/not-holder")));
    }
}

#[test]
fn a_changed_holder_is_412_with_the_present_etag() {
    for problem in [
        extend(&resource(), ExtendError::Changed { current: Fence(4_712) }),
        force(&resource(), ForceError::Changed { current: "4712".to_owned() }),
    ] {
        let (status, body, headers) = seen(problem);
        assert_eq!((status, body["type"].as_str()), (412, Some("/problems/changed")));
        assert_eq!(headers[header::ETAG], "\"4712\"");
    }
}

#[test]
fn limits_are_429_and_named() {
    let error = AcquireError::TooManyWaiters { limit: 1_000, per_resource: true };
    let (status, body, headers) = seen(refused(error));
    assert_eq!((status, body["type"].as_str()), (429, Some("/problems/too-many-waiters")));
    assert_eq!((&body["limit"], &body["scope"], retry_after(&headers)), (&json!(1_000), &json!("resource"), Some("1")));
    let (status, body, headers) = seen(refused(AcquireError::TooManyReplays));
    assert_eq!((status, body["type"].as_str()), (429, Some("/problems/quota-exceeded")));
    assert!(retry_after(&headers).is_some());
}

#[test]
fn draining_closes_the_connection() {
    let wait_id = WaitId::parse("0123456789abcdef").ok();
    let (status, body, headers) = seen(refused(AcquireError::Draining { wait_id }));
    assert_eq!(body["wait_id"], "0123456789abcdef");
    assert_eq!((status, body["type"].as_str()), (503, Some("/problems/draining")));
    assert_eq!((retry_after(&headers), headers[header::CONNECTION].as_bytes()), (Some("1"), &b"close"[..]));
}

#[test]
fn other_refusals_of_force_and_extend_are_400_and_404() {
    let (status, body, _) = seen(force(&resource(), ForceError::ForeignRevoke));
    assert_eq!((status, &body["errors"][0]["field"]), (400, &json!("force")));
    let (status, body, _) = seen(force(&resource(), ForceError::NotHeld));
    assert_eq!((status, body["type"].as_str()), (404, Some("/problems/not-held")));
    let invalid = ExtendError::Invalid("metadata", "17 pairs".to_owned());
    let (status, body, _) = seen(extend(&resource(), invalid));
    assert_eq!(
        (status, &body["errors"][0]["field"], &body["detail"]),
        (400, &json!("metadata"), &json!("metadata: 17 pairs"))
    );
}

#[test]
fn a_deadlock_shows_only_what_the_client_may_read() {
    let edge = |owner: &str, resource: &str, held_by: &str, token_id: char| CycleEdge {
        owner: owner.to_owned(),
        waits_for: ResourceName::parse(resource).expect("valid"),
        held_by: held_by.to_owned(),
        token_id: TokenHash::parse(&token_id.to_string().repeat(64)).expect("hex").id(),
    };
    let cycle = || vec![edge("a", "mine", "b", '1'), edge("b", "secret", "c", '2'), edge("c", "mine/too", "a", '3')];
    let error = || AcquireError::Deadlock { cycle: cycle(), waited: Duration::from_millis(2) };
    let (status, body, _) = seen(refused(error()));
    assert_eq!((status, body["cycle"].as_array().map(Vec::len)), (409, Some(3)));
    let chain = "a waits for mine, held by b; b waits for secret, held by c; c waits for mine/too, held by a";
    assert!(body["detail"].as_str().is_some_and(|detail| detail.ends_with(chain)), "{body}");
    let visible = seen(acquire(&resource(), error(), &access_to(r#""read:mine", "read:mine/*""#))).1;
    let shown = json!([
        {"owner": "a", "waits_for": "mine", "held_by": "b", "token_id": "11111111"},
        {"owner": "c", "waits_for": "mine/too", "held_by": "a", "token_id": "33333333"},
    ]);
    assert_eq!(visible["cycle"], shown);
    assert!(visible["detail"].as_str().is_some_and(|detail| detail.ends_with("and 1 more that you may not read")));
    assert!(!visible.to_string().contains("secret") && !visible.to_string().contains("22222222"), "{visible}");
    let nothing = seen(acquire(&resource(), error(), &Access::nothing())).1;
    assert_eq!(nothing["cycle"], json!([]));
}
