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

/// At the instance that serves a ticket its id is shown; what waits over a connection has no mark.
#[tokio::test]
async fn a_locks_page_says_which_of_its_waiters_are_tickets() {
    let service = fixture::service().await;
    let client = service.client();
    let held = client.acquired("deploy/prod", &[("owner", "ann"), ("ttl", "2m")]).await;
    let asks = |owner| [("async", "true"), ("keep", "1h"), ("wait", "1h"), ("owner", owner)];
    let ticket = client.acquire("deploy/prod", &asks("release-42")).await.expect_status(202).json();
    let id = ticket["ticket"].as_str().expect("an id").to_owned();
    fixture::wait_after(client, "deploy/prod", "ci-7", 2).await;
    let Some(browser) = Browser::open(client.base(), Look::Light).await else { return };
    browser.go("/ui/locks/deploy/prod").await;
    browser.until_text("#queue", "both wait", |t| t.contains("release-42") && t.contains("ci-7")).await;
    let marks = "return [...document.querySelectorAll('#queue tbody tr')].map(row => [row.querySelector('bdi').textContent, \
                 [...row.querySelectorAll('.note')].map(note => note.textContent).join()])";
    let mark = format!("ticket {id}");
    assert_eq!(browser.eval(marks).await, serde_json::json!([["release-42", mark], ["ci-7", ""]]));
    browser.check_page("a ticket among the waiters").await;
    client.release("deploy/prod", &held.token()).await.expect_status(204);
    browser.until_text("#holder", "the ticket is granted", |t| t.contains("release-42")).await;
    browser.until_text("#queue", "the other one waits", |t| !t.contains("ticket") && t.contains("ci-7")).await;
    browser.close().await;
}
