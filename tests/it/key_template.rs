//! The key template is changed while the service runs, on real servers.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::relist::{init, load, quorum_is, renew};
use crate::support::client::Client;
use crate::support::daemon::{ended, redlockd};
use crate::support::poll;
use crate::support::redis_server::RedisServer;
use crate::support::service::Service;
use crate::terms::{set, settings};

const TEMPLATE: &str = "lock:{resource}";

/// Keys of leases, on all servers.
async fn lease_keys(servers: &[RedisServer]) -> Vec<String> {
    let mut all = Vec::new();
    for server in servers {
        let keys: Vec<String> = server.ask(&["KEYS", "*"]).await;
        let is_lease = |key: &String| {
            !key.starts_with("redlockd:")
                || ["m", "moved"].iter().any(|kind| key.starts_with(&format!("redlockd:{kind}:")))
        };
        all.extend(keys.into_iter().filter(is_lease));
    }
    all.sort_unstable();
    all
}

/// The instance follows this template; `null`: it is configured with it.
async fn template_is(client: &Client, wanted: Option<&str>) {
    poll::until("the template is followed", || async {
        let seen = client.get("/nodes").await.json();
        (seen["terms"]["key_template"].as_str() == wanted && seen["terms_change"].is_null()).then_some(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_key_template_is_changed_under_load_and_no_lease_is_lost() {
    let servers = [RedisServer::start().await, RedisServer::start().await, RedisServer::start().await];
    let args = settings(&servers, &[]);
    init(&args);
    let (one, two) = (Service::start(&args).await, Service::start(&args).await);
    quorum_is(one.client(), 3, 2, 3).await;
    quorum_is(two.client(), 3, 2, 3).await;
    let held = one.client().acquired("held", &[("ttl", "2s")]).await;
    let long = one.client().acquired("long", &[("ttl", "1m")]).await;
    let read = one.client().acquired("read", &[("ttl", "1m"), ("mode", "shared")]).await;
    let stop = Arc::new(AtomicBool::new(false));
    let callers = [("x", &one), ("y", &two)].map(|(resource, service)| {
        tokio::spawn(load(Client::new(service.client().base()), resource.into(), Arc::clone(&stop)))
    });
    let renewal = tokio::spawn(renew(Client::new(two.client().base()), held.token(), Arc::clone(&stop)));

    for wrong in ["{resource}/{resource}", "lock", "redlockd:{resource}", "a b{resource}"] {
        let refused = set(one.client(), &[("key_template", wrong)]).await.expect_problem(400, "invalid");
        assert_eq!(refused.json()["errors"][0]["field"], "key_template", "{refused:?}");
    }

    let url = one.client().base().to_owned();
    let change = ["nodes", "settings", "--key-template", TEMPLATE, "--reason", "a prefix", "--url", &url];
    let done = ended(&mut redlockd(&change));
    assert!(done.code == Some(0) && done.err.contains("key_template is lock:{resource} now"), "{done:?}");
    for service in [&one, &two] {
        template_is(service.client(), Some(TEMPLATE)).await;
    }
    let keys = lease_keys(&servers).await;
    for resource in ["held", "long", "read"] {
        assert!(keys.iter().filter(|key| **key == format!("lock:{resource}")).count() >= 2, "{keys:?}");
    }
    assert!(keys.iter().all(|key| key.starts_with("lock:") || key == "redlockd:m:read"), "{keys:?}");

    // Instances with the first configuration, with the present one, and with one that never was.
    let today = settings(&servers, &["--set", "key_template=lock:{resource}"]);
    let other = settings(&servers, &["--set", "key_template=other:{resource}"]);
    let (yesterday, today) = (Service::start(&args).await, Service::start(&today).await);
    template_is(yesterday.client(), Some(TEMPLATE)).await;
    template_is(today.client(), None).await;
    for service in [&yesterday, &today] {
        quorum_is(service.client(), 3, 2, 3).await;
        for resource in ["held", "long", "read"] {
            service.client().acquire(resource, &[("ttl", "2s")]).await.expect_status(423);
        }
    }
    let unlike = Service::start(&other).await;
    quorum_is(unlike.client(), 0, 2, 3).await;
    drop(unlike);
    let words: Vec<&str> = std::iter::once("doctor").chain(args.iter().map(String::as_str)).collect();
    let doctor = ended(&mut redlockd(&words));
    assert!(doctor.code == Some(0) && doctor.out.contains("key_template lock:{resource}"), "{doctor:?}");
    assert!(one.client().get("/ui/nodes").await.text.contains("key template lock:{resource}"));

    // Back, and forth again.
    set(two.client(), &[("key_template", "{resource}")]).await.expect_status(200);
    template_is(yesterday.client(), None).await;
    template_is(today.client(), Some("{resource}")).await;
    set(today.client(), &[("key_template", TEMPLATE)]).await.expect_status(200);
    stop.store(true, Ordering::Relaxed);
    for caller in callers {
        let longest = caller.await.expect("no panic");
        assert!(longest < Duration::from_secs(5), "{longest:?}");
    }
    renewal.await.expect("the lease is never lost");
    for (resource, lease, at) in [("held", held, &today), ("long", long, &yesterday), ("read", read, &two)] {
        at.client().release(resource, &lease.token()).await.expect_status(204);
    }
    poll::until("no lease is left", || async { lease_keys(&servers).await.is_empty().then_some(()) }).await;
}
