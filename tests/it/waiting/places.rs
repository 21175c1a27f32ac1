//! Places that outlive their connections: taken again by the same request, passed while nobody is there.

use redlockd::client::acquire::acquire;
use redlockd::client::answers::LeaseAnswer;
use redlockd::client::requests::LockRequest;
use redlockd::redlock::random::{Entropy, SystemEntropy};
use redlockd::types::ResourceName;

use super::disconnects::caller;
use super::{Cluster, Instance};
use crate::support::chaos_proxy::ChaosProxy;
use crate::support::poll;

const FORM: &str = "wait=60s&ttl=60s&owner=cut&wait_id=0123456789abcdef";

/// The same as fields.
fn form(more: &[(&'static str, &'static str)]) -> Vec<(&'static str, &'static str)> {
    let own = [("wait", "60s"), ("ttl", "60s"), ("owner", "cut"), ("wait_id", "0123456789abcdef")];
    own.into_iter()
        .filter(|(name, _)| more.iter().all(|(other, _)| other != name))
        .chain(more.iter().copied())
        .collect()
}

/// So many connections wait, with or without a place of their own.
async fn until_connected(instance: &Instance, count: usize) {
    poll::until("so many connections wait", || async {
        let now = instance.metric("redlockd_http_requests_in_flight{kind=\"wait\"} ").await;
        (now == Some(count)).then_some(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_caller_whose_connection_was_cut_takes_the_same_place_again() {
    let cluster = Cluster::of(3).await;
    let here = cluster.instance(&[]).await;
    let held = here.acquire("x", &[("ttl", "60s")]).await;
    let cut = caller(&here, "x", FORM).await;
    here.until_waiting(1).await;
    let second = here.queue("x", &[("wait", "60s"), ("ttl", "60s")]);
    here.until_waiting(2).await;
    drop(cut);
    until_connected(&here, 1).await;
    assert_eq!(here.waiting().await, 2, "the place is kept");
    // While nobody is there, the others pass.
    assert_eq!(here.release("x", &held).await, 204);
    let second = second.await.expect("no panic");
    assert_eq!(second.status, 201, "{second:?}");
    let third = here.queue("x", &[("wait", "60s"), ("ttl", "60s")]);
    here.until_waiting(2).await;
    // For another lock the name is another place.
    assert_eq!(here.acquire("y", &form(&[])).await.status, 201);
    // Another connection waits at its place, before the third.
    let back = here.queue("x", &form(&[("wait", "50s")]));
    until_connected(&here, 2).await;
    assert_eq!(here.waiting().await, 2);
    assert_eq!(here.release("x", &second).await, 204);
    let back = back.await.expect("no panic");
    assert_eq!((back.status, back.body["owner"].as_str()), (201, Some("cut")), "{back:?}");
    assert_eq!(here.release("x", &back).await, 204);
    assert_eq!(third.await.expect("no panic").status, 201);
    assert_eq!(here.waiting().await, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_later_of_two_connections_has_the_place_and_a_different_request_is_refused() {
    let cluster = Cluster::of(3).await;
    let here = cluster.instance(&[]).await;
    let held = here.acquire("x", &[("ttl", "60s")]).await;
    let first = here.queue("x", &form(&[]));
    here.until_waiting(1).await;
    let behind = here.queue("x", &[("wait", "60s"), ("ttl", "60s")]);
    here.until_waiting(2).await;
    for (field, value) in
        [("ttl", "59s"), ("owner", "other"), ("note", "n"), ("metadata", "{\"k\":\"v\"}"), ("on_deadlock", "refuse")]
    {
        let refused = here.acquire("x", &form(&[(field, value)])).await;
        assert_eq!((refused.status, refused.body["errors"][0]["field"].as_str()), (400, Some(field)), "{refused:?}");
    }
    let second = here.queue("x", &form(&[]));
    let first = first.await.expect("no panic");
    assert_eq!((first.status, first.body["type"].as_str()), (409, Some("/problems/wait-replaced")), "{first:?}");
    assert_eq!(here.waiting().await, 2);
    assert_eq!(here.release("x", &held).await, 204);
    let second = second.await.expect("no panic");
    assert_eq!(second.status, 201, "{second:?}");
    assert!(!behind.is_finished());
    assert_eq!(here.release("x", &second).await, 204);
    assert_eq!(behind.await.expect("no panic").status, 201);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_client_takes_its_place_again_when_a_proxy_cuts_the_line() {
    let cluster = Cluster::of(3).await;
    let here = cluster.instance(&[]).await;
    let proxy = ChaosProxy::start(here.address.port()).await;
    let held = here.acquire("x", &[("ttl", "60s")]).await;
    let client = super::client_of(&format!("http://{}", proxy.address()));
    let request = LockRequest {
        kept_for: None,
        mode: redlockd::types::WantedMode::Exclusive,
        names: ResourceName::parse("x").expect("valid").into(),
        ttl: None,
        owner: "cut".into(),
        note: String::new(),
        metadata: [].into(),
        refuses_deadlock: true,
    };
    let token = SystemEntropy.token();
    let waiting = acquire(&client, &request, &token, std::time::Duration::from_secs(60), |_| {});
    let script = async {
        here.until_waiting(1).await;
        let behind = here.queue("x", &[("wait", "60s"), ("ttl", "60s")]);
        here.until_waiting(2).await;
        proxy.reset();
        let abandoned = "redlockd_lock_acquire_total{mode=\"exclusive\",outcome=\"abandoned\"} ";
        poll::until("the cut is seen", || async { (here.metric(abandoned).await == Some(1)).then_some(()) }).await;
        until_connected(&here, 2).await;
        assert_eq!(here.waiting().await, 2);
        assert_eq!(here.release("x", &held).await, 204);
        (behind,)
    };
    let (granted, (behind,)) = tokio::join!(waiting, script);
    let LeaseAnswer::One(lease) = granted.expect("granted").answer else { panic!("one lock") };
    assert_eq!(lease.owner.as_deref(), Some("cut"));
    assert!(!behind.is_finished());
    behind.abort();
}
