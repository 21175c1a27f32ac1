//! Without script: lists can be read, filtered and sorted, and leases can be ended.

use super::driver::{Browser, Look};
use super::fixture;

#[tokio::test]
async fn the_dashboard_works_without_script() {
    let service = fixture::service().await;
    let client = service.client();
    fixture::hold(client).await;
    let Some(browser) = Browser::open(client.base(), Look::Plain).await else { return };
    browser.go("/ui/").await;
    assert!(browser.text("#live").await.starts_with("Not refreshed automatically."), "script is off");
    browser.screenshot("locks").await;
    browser.write("#prefix", "deploy/").await;
    browser.click(".filters button").await;
    browser.until_text("caption", "it is filtered", |t| t.contains("all 2, filtered")).await;
    assert_eq!(browser.path().await, "/ui/?find=&prefix=deploy%2F&owner=&state=");
    browser.click("a[href='/ui/?prefix=deploy/&sort=held&dir=desc']").await;
    browser.until_text("thead [aria-sort=descending]", "it is sorted", |t| t.contains("Held for")).await;
    let lease = client.acquired("fresh", &[("ttl", "1m")]).await;
    browser.go("/ui/").await;
    browser.until_text("footer", "there is a link to reload", |t| t.contains("Reload")).await;
    browser.go("/ui/release/fresh").await;
    browser.write("#reason", "stuck").await;
    browser.write("#name", "fresh").await;
    browser.click(".confirm button").await;
    browser.until_text(".notice", "it was done", |t| t.contains("Released.")).await;
    client.extend("fresh", &lease.token(), &[]).await.expect_status(410);
    browser.go("/ui/").await;
    assert!(browser.text("#hour").await.contains("Most contended names"), "the last hour needs no script");
    browser.go("/ui/timeline?prefix=deploy/").await;
    browser.click("summary").await;
    assert!(browser.text("details table").await.contains("ci-4711"), "the timeline as a table");
    browser.go("/ui/locks/deploy/prod").await;
    assert!(browser.text("main").await.contains("ci-4711"), "who holds the lock");
    browser.click("a[href^='/ui/revoke/']").await;
    browser.write("#reason", "stuck").await;
    browser.click(".confirm button").await;
    browser.until_text(".notice", "it was done", |t| t.contains("Revoked.")).await;
    browser.go("/ui/take/nobody/has/it").await;
    browser.write("#for", "10m").await;
    browser.write("#note", "maintenance").await;
    browser.click(".confirm button").await;
    browser.until_text(".notice", "it was done", |t| t.contains("Taken.")).await;
    assert_eq!(client.inspect("nobody/has/it").await.expect_status(200).json()["holders"][0]["note"], "maintenance");
    browser.go("/ui/runbooks").await;
    assert!(browser.text("main").await.contains("RedlockdQuorumLost"), "the runbooks");
    for path in ["/ui/waiters", "/ui/owners", "/ui/timeline", "/ui/nodes", "/ui/latency", "/ui/events"] {
        browser.go(path).await;
        assert!(!browser.text("h1").await.is_empty(), "{path}");
    }
    browser.close().await;
}

#[tokio::test]
async fn logging_in_and_out_works_without_script() {
    let (service, _dir) = fixture::closed_service().await;
    let Some(browser) = Browser::open(service.client().base(), Look::Plain).await else { return };
    browser.go("/ui/owners").await;
    browser.write("#key", "wrong").await;
    browser.click("button[type=submit]").await;
    browser.until_text(".notice", "it is refused", |text| text.contains("unknown or has expired")).await;
    browser.write("#key", fixture::KEY).await;
    browser.click("button[type=submit]").await;
    browser.until_text(".viewer", "logged in", |text| text.contains("ops")).await;
    assert_eq!(browser.path().await, "/ui/owners");
    browser.click(".viewer button").await;
    browser.until_text(".lead", "logged out", |text| text.contains("Log in with an API key")).await;
    browser.close().await;
}
