//! Data for the pages: leases with owners and notes, waiters, and past events.

use futures_util::future::join_all;
use redlockd::auth::api_key::KeyHash;

use crate::support::client::{Answer, Client};
use crate::support::poll;
use crate::support::service::{SHORT_TIMES, Service};
use crate::support::temp_dir;

/// A service with five embedded nodes that reads its list every 100 ms.
pub async fn service() -> Service {
    let service = Service::embedded(&["--set", "embedded_nodes=5", "--set", "list_refresh=100ms"]).await;
    service.until_ready().await;
    service
}

/// A service without authentication that listens on all addresses.
pub async fn open_service() -> Service {
    let data = std::sync::Arc::new(temp_dir::in_memory());
    let args = [&SHORT_TIMES[..], &["--insecure-no-auth", "--set", "list_refresh=100ms"]].concat();
    let service = Service::start_at("0.0.0.0:0", data, &args).await;
    service.until_ready().await;
    service
}

/// What logs in at [`closed_service`].
pub const KEY: &str = "key-of-ops";

/// A service that asks for a log-in, with the directory of its access file.
pub async fn closed_service() -> (Service, tempfile::TempDir) {
    let dir = tempfile::tempdir().expect("a directory");
    let (file, sha256) = (dir.path().join("access.toml"), KeyHash::of(KEY.as_bytes()).hex());
    let rules = format!("[[principal]]\nname = \"ops\"\nkeys = [{{ sha256 = \"{sha256}\" }}]\nallow = [\"admin\"]\n");
    std::fs::write(&file, rules).expect("writable");
    (Service::embedded(&["--set", &format!("access_file={}", file.display())]).await, dir)
}

const HELD: [(&str, &str, &str, &str); 9] = [
    ("billing/invoice-run/2026-11", "billing-worker-2", "monthly invoices, customers M to Z", "4m"),
    ("cache/warm-up", "", "", "50s"),
    ("db/migrate/orders", "release-bot", "add index orders_by_day, ticket OPS-2291", "5m"),
    ("deploy/prod", "ci-4711", "release 1.9.2", "5m"),
    ("deploy/staging", "ci-4712", "release 1.10.0-rc.1", "3m"),
    ("import/catalogue", "import-eu-west-1", "nightly catalogue import", "90s"),
    ("reports/nightly", "cron@reports-1", "", "2m"),
    ("search/reindex", "search-7f9c", "reindex after schema change", "4m"),
    ("tenants/blue/backup", "backup-agent", "full backup, weekly", "5m"),
];

/// Acquires some locks; the answers.
pub async fn hold(client: &Client) -> Vec<Answer> {
    let metadata = r#"{"pipeline":"4711","host":"build-12"}"#;
    let take = HELD.iter().map(|(name, owner, note, ttl)| async move {
        let fields = [("ttl", *ttl), ("owner", *owner), ("note", *note), ("metadata", metadata)];
        client.acquired(name, &fields).await
    });
    join_all(take).await
}

/// Starts waiters, in this order, that wait until the service ends.
pub async fn wait_for(client: &Client, resource: &'static str, owners: &[&'static str]) {
    for (i, owner) in owners.iter().enumerate() {
        wait_after(client, resource, owner, i + 1).await;
    }
}

/// Starts a waiter, which is then the last of so many.
pub async fn wait_after(client: &Client, resource: &'static str, owner: &'static str, count: usize) {
    let waiting = client.clone();
    tokio::spawn(async move {
        let request = waiting.request("POST", &format!("/locks/{resource}"));
        // Ends with the service.
        let _ = request.form(&[("wait", "5m"), ("owner", owner)]).send().await;
    });
    poll::until("it waits", || async { (client.waiting(resource).await == count).then_some(()) }).await;
}

/// Past events: some released leases, and one that an operator ended.
pub async fn past(client: &Client) {
    for name in ["deploy/prod", "deploy/staging", "import/catalogue"] {
        let lease = client.acquired(name, &[("owner", "ci-4700"), ("ttl", "20s")]).await;
        client.release(name, &lease.token()).await.expect_status(204);
    }
    client.acquired("deploy/prod", &[("owner", "ci-4701"), ("ttl", "20s")]).await;
    let ended = client.request("DELETE", "/locks/deploy/prod?force=now&reason=host+is+gone");
    crate::support::client::send(ended).await.expect_status(204);
}
