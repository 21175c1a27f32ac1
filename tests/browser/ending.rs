//! Ending somebody's lease with the mouse: revoke and release now, and what keeps an operator from
//! ending the wrong one.

use super::driver::{Browser, Look};
use super::scene;

#[tokio::test]
async fn a_lease_is_revoked() {
    let service = scene::service().await;
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
    assert_eq!(browser.here().await, "/ui/revoke/deploy/prod");
    browser.write("#reason", "pipeline hangs, OPS-12").await;
    browser.click(".confirm button").await;
    browser.until_text(".notice", "it was done", |t| t.contains("Revoked.")).await;
    assert_eq!(browser.here().await, "/ui/locks/deploy/prod?done=revoked");
    browser.until_text("#events", "it is remembered", |t| t.contains("revoked by an operator")).await;
    let refused = client.extend("deploy/prod", &lease.token(), &[]).await.expect_problem(410, "lease-expired");
    assert_eq!(refused.json()["reason"], "forced");
    client.acquire("deploy/prod", &[]).await.expect_problem(423, "locked");
    browser.close().await;
}

#[tokio::test]
async fn a_lock_is_released_now_once_its_name_is_typed() {
    let service = scene::service().await;
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
    browser.is_well("a refused form").await;
    client.inspect("deploy/prod").await.expect_status(200);
    assert_eq!(
        browser.ask("return document.querySelector('#reason').value").await,
        "host is gone",
        "it is not typed twice"
    );
    browser.write("#name", "deploy/prod").await;
    browser.click(".confirm button").await;
    browser
        .until_text(".notice", "it was done", |t| t.contains("Released.") && t.contains("may still be working"))
        .await;
    client.inspect("deploy/prod").await.expect_status(404);
    browser.picture("released").await;
    browser.close().await;
}

#[tokio::test]
async fn only_the_holder_that_was_seen_is_ended() {
    let service = scene::service().await;
    let client = service.client();
    let seen = client.acquired("x", &[("owner", "first")]).await;
    let Some(browser) = Browser::open(client.base(), Look::Light).await else { return };
    browser.go("/ui/revoke/x").await;
    client.release("x", &seen.token()).await.expect_status(204);
    let next = client.acquired("x", &[("owner", "second"), ("ttl", "1m")]).await;
    browser.write("#reason", "stuck").await;
    browser.click(".confirm button").await;
    browser.until_text(".notice.bad", "somebody else", |t| t.contains("Somebody else holds it by now")).await;
    assert!(browser.text("main").await.contains("second"), "the present holder is shown");
    assert_eq!(browser.ask("return document.querySelector('form.confirm')").await, serde_json::Value::Null);
    client.extend("x", &next.token(), &[]).await.expect_status(200);
    client.release("x", &next.token()).await.expect_status(204);
    browser.go("/ui/revoke/x").await;
    assert!(browser.text("main").await.contains("Nobody holds it: there is nothing to end."));
    browser.close().await;
}
