//! Revoking and releasing in the browser, and the checks that keep an operator from ending the wrong lease.

use super::driver::{Browser, Look};
use super::fixture;

#[tokio::test]
async fn an_operator_revokes_a_lease() {
    let service = fixture::service().await;
    let client = service.client();
    let lease = client.acquired("deploy/prod", &[("owner", "ci-4711"), ("ttl", "2m")]).await;
    let Some(browser) = Browser::open(client.base(), Look::Light).await else { return };
    browser.go("/ui/locks/deploy/prod").await;
    browser.click("a[href^='/ui/revoke/']").await;
    browser.until_text("h1", "it asks", |t| t.contains("Revoke the lease on deploy/prod?")).await;
    let asked = browser.text("main").await;
    assert!(asked.contains("ci-4711") && asked.contains("this is safe"), "{asked}");
    // Without a reason the browser itself does not send it.
    browser.click(".confirm button").await;
    assert_eq!(browser.path().await, "/ui/revoke/deploy/prod");
    browser.write("#reason", "pipeline hangs, OPS-12").await;
    browser.click(".confirm button").await;
    browser.until_text(".notice", "it was done", |t| t.contains("Revoked.")).await;
    assert_eq!(browser.path().await, "/ui/locks/deploy/prod?done=revoked");
    browser.until_text("#events", "the event is listed", |t| t.contains("revoked by an operator")).await;
    let refused = client.extend("deploy/prod", &lease.token(), &[]).await.expect_problem(410, "lease-expired");
    assert_eq!(refused.json()["reason"], "forced");
    client.acquire("deploy/prod", &[]).await.expect_problem(423, "locked");
    browser.close().await;
}

#[tokio::test]
async fn an_operator_releases_a_lock_after_typing_its_name() {
    let service = fixture::service().await;
    let client = service.client();
    client.acquired("deploy/prod", &[("owner", "ci-4711"), ("ttl", "2m")]).await;
    let Some(browser) = Browser::open(client.base(), Look::Light).await else { return };
    browser.go("/ui/locks/deploy/prod").await;
    browser.click("a[href^='/ui/release/']").await;
    browser.until_text("h1", "it asks", |t| t.contains("Release deploy/prod now?")).await;
    assert!(browser.text("main").await.contains("The holder is not stopped."));
    browser.write("#reason", "host is gone").await;
    browser.write("#name", "deploy/test").await;
    browser.click(".confirm button").await;
    browser.until_text(".notice.bad", "another name", |t| t.contains("is not the name of this lock")).await;
    browser.check_page("a refused form").await;
    client.inspect("deploy/prod").await.expect_status(200);
    assert_eq!(
        browser.eval("return document.querySelector('#reason').value").await,
        "host is gone",
        "it is not typed twice"
    );
    browser.write("#name", "deploy/prod").await;
    browser.click(".confirm button").await;
    browser
        .until_text(".notice", "it was done", |t| t.contains("Released.") && t.contains("may still be working"))
        .await;
    client.inspect("deploy/prod").await.expect_status(404);
    browser.screenshot("released").await;
    browser.close().await;
}

#[tokio::test]
async fn only_the_lease_that_the_operator_saw_is_ended() {
    let service = fixture::service().await;
    let client = service.client();
    let seen = client.acquired("x", &[("owner", "first")]).await;
    let Some(browser) = Browser::open(client.base(), Look::Light).await else { return };
    browser.go("/ui/revoke/x").await;
    client.release("x", &seen.token()).await.expect_status(204);
    let next = client.acquired("x", &[("owner", "second"), ("ttl", "1m")]).await;
    browser.write("#reason", "stuck").await;
    browser.click(".confirm button").await;
    browser.until_text(".notice.bad", "another holder", |t| t.contains("The lock has another holder now")).await;
    assert!(browser.text("main").await.contains("second"), "the present holder is shown");
    assert_eq!(browser.eval("return document.querySelector('form.confirm')").await, serde_json::Value::Null);
    client.extend("x", &next.token(), &[]).await.expect_status(200);
    client.release("x", &next.token()).await.expect_status(204);
    browser.go("/ui/revoke/x").await;
    assert!(browser.text("main").await.contains("The lock is not held: there is nothing to end."));
    browser.close().await;
}
