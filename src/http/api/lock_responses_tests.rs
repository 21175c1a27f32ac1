//! Answers from domain values: status, headers, members.

use std::collections::BTreeMap;

use http_body_util::BodyExt;
use serde_json::{Value, json};

use super::*;
use crate::manager::cluster_state::Situation;
use crate::manager::types::{HolderInfo, InstanceQueue, ListItem, NodeFinding, ResourceOnNode, WaiterInfo};
use crate::protocol::InstanceName;
use crate::redlock::clock::BootTime;
use crate::redlock::quorum::Verdict;
use crate::types::{Fence, Labels, Mode, NodeId, PermitLimit, Token, Ttl, WantedMode};

const TOKEN: &str = "abcdefghijklmnopqrstuv";
const TOKEN_ID: &str = "f69f9b70";
/// 2026-11-20T18:07:03.120Z
const WALL_MS: u64 = 1_795_198_023_120;

fn at(now_ms: u64) -> AnswerTime {
    AnswerTime { now: BootTime::from_nanos(now_ms * 1_000_000), wall_ms: WALL_MS }
}

fn labels() -> Labels {
    Labels {
        kept_until_ms: 0,
        owner: "ci-4711".to_owned(),
        note: "release\n1.9".to_owned(),
        metadata: BTreeMap::from([("build".to_owned(), "17".to_owned())]),
        acquired_at_ms: WALL_MS,
        principal: "5f70bf18a0860070".to_owned(),
    }
}

fn lease(replay: bool) -> GrantedLease {
    GrantedLease {
        kept_for: None,
        resource: ResourceName::parse("deploy/prod").expect("valid"),
        token: Token::parse(TOKEN).expect("valid"),
        fence: Fence(1_763_660_823_123_456),
        labels: labels(),
        mode: Mode::Exclusive,
        ttl: Ttl::from_ms(30_000).expect("valid"),
        deadline: BootTime::from_nanos(30_695_999_999),
        replay,
        waited: Duration::from_micros(1_204_900),
        quorum: QuorumCount { granted: 5, needed: 3, nodes: 5 },
    }
}

fn holder(valid_for: Duration) -> HolderInfo {
    let lease = lease(false);
    let token_id = lease.token.hash().id();
    HolderInfo {
        token_id,
        mode: lease.mode,
        fence: lease.fence,
        labels: lease.labels,
        valid_for,
        kept_for: None,
        is_confirmed: true,
        renewals: 3,
    }
}

fn here() -> InstanceName {
    InstanceName::from_random(0xabc)
}

fn inspection(state: LockState) -> Inspection {
    let node = NodeId::parse("n1").expect("valid");
    let holds = vec![lease(false).token.hash().id()];
    Inspection {
        resource: lease(false).resource,
        state,
        instance: here(),
        waiters: vec![WaiterInfo {
            instance: here(),
            position: 1,
            mode: WantedMode::Exclusive,
            owner: "bob".to_owned(),
            waiting: Duration::from_millis(1_500),
            left: Some(Duration::from_millis(58_500)),
            note: "release 2.0".to_owned(),
            is_ticket: false,
        }],
        waiting_here: 1,
        waiting: 3,
        waiters_known: true,
        nodes: vec![ResourceOnNode { node, holds, foreign: false, ttl_ms: Some(13_000), verdict: Verdict::Granted }],
        quorum: QuorumCount { granted: 3, needed: 2, nodes: 3 },
    }
}

async fn body(response: Response) -> String {
    let bytes = response.into_body().collect().await.expect("a body").to_bytes();
    String::from_utf8(bytes.to_vec()).expect("UTF-8")
}

async fn value(response: Response) -> Value {
    assert_eq!(response.headers()[header::CONTENT_TYPE], "application/json");
    serde_json::from_str(&body(response).await).expect("JSON")
}

#[tokio::test]
async fn an_acquired_lease_is_the_contracts_example() {
    let response = acquired(&lease(false), at(1_000), ResponseFormat::Json);
    assert_eq!(response.status(), StatusCode::CREATED);
    for (name, expected) in [
        (header::LOCATION, "/locks/deploy/prod"),
        (LOCK_TOKEN, TOKEN),
        (FENCING_TOKEN, "1763660823123456"),
        (header::ETAG, "\"1763660823123456\""),
    ] {
        assert_eq!(response.headers()[&name], expected, "{name}");
    }
    assert!(response.headers()[LOCK_TOKEN].is_sensitive());
    let expected = json!({
        "resource": "deploy/prod", "mode": "exclusive", "token": TOKEN, "token_id": TOKEN_ID,
        "fence": 1_763_660_823_123_456_u64, "owner": "ci-4711", "note": "release\n1.9", "metadata": {"build": "17"},
        "acquired_at": "2026-11-20T18:07:03.120Z", "expires_at": "2026-11-20T18:07:32.815Z",
        "ttl_ms": 30_000, "valid_for_ms": 29_695, "waited_ms": 1_204,
        "quorum": {"granted": 5, "needed": 3, "nodes": 5}
    });
    assert_eq!(value(response).await, expected);
}

#[tokio::test]
async fn what_is_promised_shrinks_until_the_answer_is_written() {
    for (now_ms, left) in [(1_000, 29_695), (30_695, 0), (30_696, 0), (99_999, 0)] {
        let body = value(acquired(&lease(false), at(now_ms), ResponseFormat::Json)).await;
        assert_eq!(body["valid_for_ms"], left, "at {now_ms}");
    }
}

#[tokio::test]
async fn a_replay_is_200_and_repeats_the_token() {
    let response = acquired(&lease(true), at(1_000), ResponseFormat::Json);
    assert_eq!(response.status(), StatusCode::OK);
    assert_eq!(value(response).await["token"], TOKEN);
}

#[tokio::test]
async fn as_text_an_acquire_is_the_bare_token() {
    let response = acquired(&lease(false), at(1_000), ResponseFormat::Text);
    assert_eq!(response.status(), StatusCode::CREATED);
    assert_eq!(response.headers()[header::CONTENT_TYPE], "text/plain; charset=utf-8");
    assert_eq!(response.headers()[LOCK_TOKEN], TOKEN);
    assert_eq!(body(response).await, format!("{TOKEN}\n"));
}

#[tokio::test]
async fn the_token_is_in_no_other_answer() {
    let renewed = ExtendedLease { lease: lease(false), renewals: 4 };
    for format in [ResponseFormat::Json, ResponseFormat::Text] {
        let held = LockState::Held(vec![holder(Duration::from_secs(12))]);
        for response in
            [extended(&renewed, at(1_000), format), inspected(&inspection(held), WALL_MS, format).expect("held")]
        {
            assert_eq!(response.status(), StatusCode::OK);
            assert_eq!(response.headers()[header::ETAG], "\"1763660823123456\"");
            assert!(!format!("{:?}", response.headers()).contains(TOKEN));
            let text = body(response).await;
            assert!(!text.contains(TOKEN) && text.contains(TOKEN_ID), "{text}");
        }
    }
}

#[tokio::test]
async fn an_extend_answers_the_lease_and_its_renewals() {
    let renewed = ExtendedLease { lease: lease(false), renewals: 4 };
    let json = value(extended(&renewed, at(1_000), ResponseFormat::Json)).await;
    assert_eq!((&json["renewals"], &json["valid_for_ms"]), (&json!(4), &json!(29_695)));
    assert!(json.get("token").is_none() && json.get("waited_ms").is_none());
    let text = body(extended(&renewed, at(1_000), ResponseFormat::Text)).await;
    assert!(text.lines().any(|l| l == "valid_for_ms=29695"), "{text}");
}

#[tokio::test]
async fn an_extend_that_did_not_read_the_labels_makes_none_up() {
    let blind = ExtendedLease { lease: GrantedLease { labels: Labels::default(), ..lease(false) }, renewals: 0 };
    let json = value(extended(&blind, at(1_000), ResponseFormat::Json)).await;
    for member in ["owner", "note", "metadata", "acquired_at", "renewals"] {
        assert!(json.get(member).is_none(), "{member}: {json}");
    }
    let text = body(extended(&blind, at(1_000), ResponseFormat::Text)).await;
    assert!(!text.contains("owner") && text.contains("valid_for_ms=29695"), "{text}");
}

#[test]
fn an_honoured_preference_is_said_in_any_answer() {
    let mut response = refusals::draining().into_response();
    put_preference(&mut response, None);
    assert!(!response.headers().contains_key(PREFERENCE_APPLIED));
    put_preference(&mut response, Some(10));
    assert_eq!(response.headers()[PREFERENCE_APPLIED], "wait=10");
}

#[tokio::test]
async fn releases_have_no_body_and_revocations_say_when() {
    assert_eq!(released().status(), StatusCode::NO_CONTENT);
    assert_eq!(body(released()).await, "");
    let name = lease(false).resource;
    let freed = forced(&name, &Forced::Freed, WALL_MS);
    assert_eq!(
        (freed.status(), &freed.headers()[header::WARNING]),
        (StatusCode::NO_CONTENT, &HeaderValue::from_static(FORCED_NOW_WARNING))
    );
    let revoked = forced(&name, &Forced::FreesIn(Duration::from_micros(1_000_001)), WALL_MS);
    assert_eq!(revoked.status(), StatusCode::ACCEPTED);
    let expected = json!({"resource": "deploy/prod", "frees_at": "2026-11-20T18:07:04.121Z", "frees_in_ms": 1_001});
    assert_eq!(value(revoked).await, expected);
}

#[tokio::test]
async fn a_held_lock_shows_holder_waiters_and_nodes() {
    let held = LockState::Held(vec![holder(Duration::from_millis(12_040))]);
    let json = value(inspected(&inspection(held), WALL_MS, ResponseFormat::Json).expect("held")).await;
    assert_eq!((&json["state"], &json["mode"], json.get("foreign")), (&json!("held"), &json!("exclusive"), None));
    assert_eq!(json["holders"][0]["token_id"], TOKEN_ID);
    assert_eq!(
        json["waiters"],
        json!([{
            "instance": here().as_str(), "position": 1, "owner": "bob", "mode": "exclusive", "waiting_ms": 1_500,
            "left_ms": 58_500, "note": "release 2.0"
        }])
    );
    assert_eq!((&json["waiting"], &json["waiting_here"], &json["waiters_known"]), (&json!(3), &json!(1), &json!(true)));
    assert_eq!(json["answered_by"], here().as_str());
    assert_eq!(json["nodes"], json!([{"node": "n1", "holds": TOKEN_ID, "ttl_ms": 13_000, "state": "granted"}]));
    assert_eq!(json["observed_at"], "2026-11-20T18:07:03.120Z");
    let delay = LockState::Held(vec![holder(Duration::ZERO)]);
    assert_eq!(
        value(inspected(&inspection(delay), WALL_MS, ResponseFormat::Json).expect("held")).await["state"],
        "lock-delay"
    );
}

fn permit(slot: u8, fence: u64) -> HolderInfo {
    let limit = PermitLimit::new(3).expect("in range");
    HolderInfo { mode: Mode::Permit { slot, limit }, fence: Fence(fence), ..holder(Duration::from_secs(9)) }
}

#[tokio::test]
async fn permits_show_their_slots_and_how_many_are_free() {
    let held = LockState::Held(vec![permit(0, 7), permit(2, 9)]);
    let response = inspected(&inspection(held.clone()), WALL_MS, ResponseFormat::Json).expect("held");
    assert!(!response.headers().contains_key(FENCING_TOKEN), "there is not one fence");
    let json = value(response).await;
    let shown = (&json["mode"], &json["limit"], &json["free"]);
    assert_eq!(shown, (&json!("permit"), &json!(3), &json!(1)));
    assert_eq!((&json["holders"][0]["slot"], &json["holders"][1]["slot"]), (&json!(0), &json!(2)));
    let text = body(inspected(&inspection(held), WALL_MS, ResponseFormat::Text).expect("held")).await;
    for line in ["mode=permit", "limit=3", "free=1", "holders=2"] {
        assert!(text.lines().any(|l| l == line), "{line} is missing in {text}");
    }
    let mut one = lease(false);
    one.mode = permit(2, 9).mode;
    let json = value(acquired(&one, at(1_000), ResponseFormat::Json)).await;
    assert_eq!((&json["mode"], &json["slot"], &json["limit"]), (&json!("permit"), &json!(2), &json!(3)));
}

#[test]
fn the_tag_of_several_changes_with_the_set_of_holders() {
    let tag = |holders| inspection(LockState::Held(holders)).etag();
    let (both, swapped) = (tag(vec![permit(0, 7), permit(2, 9)]), tag(vec![permit(2, 9), permit(0, 7)]));
    assert_eq!(both, swapped);
    assert_ne!(both, tag(vec![permit(0, 7), permit(2, 10)]));
    assert_eq!(tag(vec![permit(0, 7)]).as_deref(), Some("7"));
    let several = inspection(LockState::Held(vec![permit(0, 7), permit(2, 9)]));
    assert!(several.has_tag(&both.expect("held")) && several.has_tag("9") && !several.has_tag("8"));
}

#[tokio::test]
async fn as_text_a_lock_is_lines_that_a_label_cannot_break() {
    let held = LockState::Held(vec![holder(Duration::from_millis(12_040))]);
    let text = body(inspected(&inspection(held), WALL_MS, ResponseFormat::Text).expect("held")).await;
    assert!(text.lines().all(|line| line.contains('=')), "{text}");
    for line in
        ["resource=deploy/prod", "state=held", "owner=ci-4711", "note=release\\n1.9", "valid_for_ms=12040", "waiters=3"]
    {
        assert!(text.lines().any(|l| l == line), "{line} is missing in {text}");
    }
}

#[tokio::test]
async fn a_foreign_lock_is_held_without_details() {
    let foreign = LockState::Foreign { left: None, fingerprint: "type:list".to_owned() };
    let response = inspected(&inspection(foreign), WALL_MS, ResponseFormat::Json).expect("held");
    assert_eq!(response.headers()[header::ETAG], "\"type:list\"");
    assert!(!response.headers().contains_key(FENCING_TOKEN));
    let json = value(response).await;
    assert_eq!((&json["state"], &json["foreign"], &json["holders"]), (&json!("held"), &json!(true), &json!([])));
}

#[test]
fn a_free_lock_is_404() {
    let problem = inspected(&inspection(LockState::Free), WALL_MS, ResponseFormat::Json).expect_err("free");
    assert_eq!(problem.kind(), ProblemKind::NotHeld);
    let members = problem.body("r").members;
    assert_eq!((members.waiting, members.waiting_here), (Some(3), Some(1)));
}

#[tokio::test]
async fn a_page_of_leases_has_a_state_for_each() {
    let item = |name: &str, holders, waiting| ListItem {
        resource: ResourceName::parse(name).expect("valid"),
        holders,
        waiting,
    };
    let waiting_at = |instance, waiting| InstanceQueue {
        instance: InstanceName::from_random(instance),
        waiting,
        oldest: Duration::from_millis(1_500),
    };
    let page = ListPage {
        items: vec![
            item("a", vec![holder(Duration::from_secs(1))], vec![]),
            item("b", vec![holder(Duration::ZERO)], vec![]),
            item("c", vec![], vec![waiting_at(1, 2), waiting_at(2, 3)]),
        ],
        next: Some("c".to_owned()),
        incomplete: None,
        age: Duration::from_micros(340_001),
        total: 9,
        instance: here(),
        waiters_known: false,
    };
    let json = value(listed(&page, ResponseFormat::Json)).await;
    let states: Vec<_> = json["items"].as_array().expect("items").iter().map(|i| i["state"].clone()).collect();
    assert_eq!(states, ["held", "lock-delay", "waited"]);
    assert_eq!((&json["next_cursor"], &json["complete"], &json["total"]), (&json!("c"), &json!(true), &json!(9)));
    assert_eq!(json["age_ms"], 341, "never younger than it is");
    assert_eq!(json["items"][2]["holders"], json!([]));
    assert_eq!((&json["items"][0]["waiting"], &json["items"][0]["waiting_at"]), (&json!(0), &json!([])));
    assert_eq!(json["items"][2]["waiting"], 5);
    let first = json!({"instance": "0000000000000001", "waiting": 2, "oldest_ms": 1_500});
    assert_eq!(json["items"][2]["waiting_at"][0], first);
    assert_eq!((&json["waiters_known"], &json["answered_by"]), (&json!(false), &json!(here().as_str())));
    // C5: for shells, with what is missing.
    let text = body(listed(&page, ResponseFormat::Text)).await;
    let lines: Vec<Vec<&str>> = text.lines().map(|line| line.split('\t').collect()).collect();
    assert_eq!((lines.len(), lines[0].len(), &lines[0][..2], lines[2][5]), (5, 7, &["a", "held"][..], "5"), "{text}");
    assert_eq!(lines[3..], [["# there are more: cursor=c"], ["# read from the nodes 341 ms ago"]]);
    let partial = ListPage { items: Vec::new(), next: None, incomplete: Some("n3: down".into()), ..page.clone() };
    assert!(
        body(listed(&partial, ResponseFormat::Text)).await.starts_with("# incomplete: too few nodes vote: n3: down")
    );
    let json = value(listed(&partial, ResponseFormat::Json)).await;
    assert_eq!((&json["complete"], &json["incomplete"]), (&json!(false), &json!("n3: down")));
    let last = ListPage { items: Vec::new(), next: None, ..page };
    assert!(value(listed(&last, ResponseFormat::Json)).await["next_cursor"].is_null());
}

fn report(name: &str, votes: bool) -> NodeSummary {
    NodeSummary {
        state: if votes { "up" } else { "quarantined" }.to_owned(),
        votes,
        since: Duration::from_secs(2),
        votes_in: (!votes).then(|| Duration::from_millis(4_200)),
        latency: Some(Duration::from_micros(310)),
        clock_offset_ms: Some(-3),
        version: Some("7.0.15".to_owned()),
        restarts: 1,
        findings: vec![NodeFinding { code: "evicts".to_owned(), detail: "set noeviction".to_owned(), bars: true }],
        ..NodeSummary::new(NodeId::parse(name).expect("valid"))
    }
}

#[tokio::test]
async fn nodes_are_shown_with_the_vote_that_they_make() {
    let names = |names: &[&str]| names.iter().map(|name| NodeId::parse(name).expect("valid")).collect();
    let change = Some((names(&["n1", "n2"]), names(&["n1", "n2", "n3"])));
    let list = NodeListState { view: Some(8), change, ..NodeListState::default() };
    let json = value(nodes(
        &[report("n1", true), report("n2", false), report("n3", true)],
        &list,
        Duration::from_millis(60),
        ResponseFormat::Json,
    ))
    .await;
    assert_eq!(json["quorum"], json!({"granted": 2, "needed": 2, "nodes": 3}));
    let second = &json["nodes"][1];
    assert_eq!((&second["state"], &second["votes_in_ms"]), (&json!("quarantined"), &json!(4_200)));
    assert_eq!((&second["latency_us"], &second["clock_offset_ms"]), (&json!(310), &json!(-3)));
    assert_eq!(second["findings"][0]["bars"], true);
    assert_eq!((&json["view"], &json["change"]), (&json!(8), &json!({"from": ["n1", "n2"], "to": ["n1", "n2", "n3"]})));
}

#[tokio::test]
async fn readiness_is_200_or_says_what_is_missing() {
    let reports = [report("n1", true), report("n2", false), report("n3", false)];
    let state = "Node n2 has not answered since 10:41:03.".to_owned();
    let situation = Situation { state, advice: "Bring back n2.".into(), ..Situation::default() };
    let is_ready = |format, in_full| ready(Readiness::Ready, &reports, format, in_full).expect("ready");
    assert_eq!(body(is_ready(ResponseFormat::Text, None)).await, "ready\n");
    let healthy = Situation { state: "All 3 nodes vote.".into(), ..Situation::default() };
    assert_eq!(value(is_ready(ResponseFormat::Json, Some(&healthy))).await, json!({"status": "ready"}));
    assert_eq!(
        body(is_ready(ResponseFormat::Text, Some(&situation))).await,
        "ready\nNode n2 has not answered since 10:41:03. Bring back n2.\n"
    );
    let said = json!({"status": "ready", "situation": situation.state, "advice": "Bring back n2."});
    assert_eq!(value(is_ready(ResponseFormat::Json, Some(&situation))).await, said);
    let ready_in = Some(Duration::from_millis(4_200));
    let problem = ready(Readiness::NoQuorum { voting: 1, ready_in }, &reports, ResponseFormat::Json, Some(&situation))
        .expect_err("not ready");
    let seen = serde_json::to_value(problem.body("r")).expect("plain data");
    assert_eq!((&seen["status"], &seen["ready_in_seconds"]), (&json!(503), &json!(5)));
    let detail = seen["detail"].as_str().expect("a detail");
    assert!(detail.starts_with("Node n2 has not answered since 10:41:03. Bring back n2."), "{detail}");
    assert_eq!(
        seen["nodes"],
        json!([
            {"node": "n2", "outcome": "quarantined", "seconds_left": 5},
            {"node": "n3", "outcome": "quarantined", "seconds_left": 5}
        ])
    );
    let problem = ready(Readiness::Draining, &reports, ResponseFormat::Json, Some(&situation)).expect_err("draining");
    assert_eq!(problem.kind(), ProblemKind::Draining);
}
