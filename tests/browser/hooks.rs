//! The page of targets and hooks: accessible in every display mode, and its forms work without script.

use super::driver::{Browser, Look};
use super::receiver::{HooksFile, Receiver, hook, target};
use crate::support::poll;
use crate::support::service::Service;

/// With two hooks and a target.
pub async fn service() -> (Receiver, HooksFile, Service) {
    let receiver = Receiver::start().await;
    let more = hook("deploys", &["lock.forced", "lock.waiting_long"], "names = [\"deploy/**\", \"cron\"]");
    let file = HooksFile::with(
        &(target("ops", &receiver, "principals = [\"ci\"]") + &hook("all", &["lock.acquired"], "") + &more),
    );
    let service = Service::embedded(&["--set", &file.setting()]).await;
    (receiver, file, service)
}

/// One hook on, one off and with something to replay, one target.
async fn check(look: Look) {
    let (receiver, _file, service) = service().await;
    receiver.answer([410]);
    service.client().acquired("deploy/prod", &[]).await;
    poll::until("the hook is off", || async {
        (service.client().get("/hooks").await.json()["hooks"][0]["state"] == "off").then_some(())
    })
    .await;
    let Some(browser) = Browser::open(service.client().base(), look).await else { return };
    browser.go("/ui/hooks").await;
    browser.check_page("/ui/hooks").await;
    browser.screenshot("hooks").await;
    browser.close().await;
}

#[tokio::test]
async fn the_page_of_hooks_passes_in_light_mode() {
    check(Look::Light).await;
}

#[tokio::test]
async fn the_page_of_hooks_passes_in_dark_mode() {
    check(Look::Dark).await;
}

#[tokio::test]
async fn the_page_of_hooks_passes_on_a_narrow_screen() {
    check(Look::Narrow).await;
}

#[tokio::test]
async fn tests_and_replays_work_without_script() {
    let (receiver, _file, service) = service().await;
    let Some(browser) = Browser::open(service.client().base(), Look::Plain).await else { return };
    browser.go("/ui/").await;
    browser.click("nav a[href='/ui/hooks']").await;
    browser.until_text("#targets", "the target is shown", |text| text.contains("ops")).await;
    receiver.answer([503]);
    browser.click("#targets button").await;
    browser.until_text(".notice", "the test failed", |text| text.contains("not accepted")).await;
    assert!(browser.text("#targets").await.contains("status 503"));
    browser.click("#targets button").await;
    browser.until_text(".notice", "the test passed", |text| text.contains("was accepted")).await;
    receiver.answer([410]);
    service.client().acquired("deploy/prod", &[]).await;
    poll::until("the hook is off", || async {
        (service.client().get("/hooks").await.json()["hooks"][0]["state"] == "off").then_some(())
    })
    .await;
    browser.go("/ui/").await;
    browser.until_text("#alarm", "every page says so", |text| text.contains("A hook is switched off")).await;
    browser.click("#alarm a[href='/ui/hooks']").await;
    browser.until_text("#hooks", "it is off", |text| text.contains("410")).await;
    browser.click("#hooks form[action='/ui/hooks/replay'] button").await;
    browser.until_text(".notice", "it is replayed", |text| text.contains("sent again")).await;
    receiver.until_kind("lock.acquired").await;
    poll::until("the hook is on", || async {
        (service.client().get("/hooks").await.json()["hooks"][0]["accepted"] == 1).then_some(())
    })
    .await;
    browser.go("/ui/hooks").await;
    assert!(!browser.text("main").await.contains("switched off"));
    browser.close().await;
}
