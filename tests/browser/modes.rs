//! The page of a lock that several hold: a strip of slots, a row for each holder, and an end for each of them alone.

use super::driver::{Browser, Look};
use super::fixture;

#[tokio::test]
async fn an_operator_ends_one_permit_of_several() {
    let service = fixture::service().await;
    let client = service.client();
    let mut held = Vec::new();
    for owner in ["train-1", "train-2"] {
        held.push(client.acquired("gpu", &[("limit", "3"), ("owner", owner), ("ttl", "2m")]).await);
    }
    let Some(browser) = Browser::open(client.base(), Look::Light).await else { return };
    browser.go("/ui/locks/gpu").await;
    browser.until_text("#holder", "both are shown", |t| t.contains("train-1") && t.contains("train-2")).await;
    assert!(browser.text("#holder").await.contains("2 of 3 permits are held"));
    let slots = browser.eval("return document.querySelectorAll('.slots .taken').length").await;
    assert_eq!(
        (slots, browser.eval("return document.querySelectorAll('.slots li').length").await),
        (2.into(), 3.into())
    );
    browser.check_page("several holders").await;
    browser.screenshot("permits").await;
    let id = held[1].json()["token_id"].as_str().expect("an id").to_owned();
    browser.click(&format!("a[href='/ui/revoke/gpu?lease={id}']")).await;
    browser.until_text("h1", "it asks", |t| t.contains("Revoke the lease on gpu?")).await;
    let asked = browser.text("main").await;
    assert!(asked.contains("train-2") && !asked.contains("train-1") && asked.contains("1 other lease"), "{asked}");
    browser.write("#reason", "the card is needed, OPS-7").await;
    browser.click(".confirm button").await;
    browser.until_text(".notice", "it was done", |t| t.contains("Revoked.")).await;
    client.extend("gpu", &held[1].token(), &[]).await.expect_problem(410, "lease-expired");
    client.extend("gpu", &held[0].token(), &[]).await.expect_status(200);
    browser.go("/ui/?find=gpu").await;
    browser.until_text(".locks", "the list counts them", |t| t.contains("2 of 3 permits")).await;
    browser.check_page("the list").await;
    browser.close().await;
}
