//! Automatic refresh: rows appear and disappear, times count, and nothing changes while the table is used.

use rustix::process::{Signal, kill_process};

use super::driver::{Browser, Look};
use super::fixture;

#[tokio::test]
async fn rows_appear_and_disappear_without_a_reload() {
    let service = fixture::service().await;
    let client = service.client();
    let Some(browser) = Browser::open(client.base(), Look::Light).await else { return };
    browser.go("/ui/").await;
    browser.eval("window.sameDocument = true; document.querySelector('#prefix').focus()").await;
    browser.write("#prefix", "half a wor").await;
    assert!(browser.text("#list").await.contains("No locks are held"));
    let lease = client.acquired("deploy/prod", &[("owner", "ci-4711"), ("ttl", "1m")]).await;
    browser.until_text("#list", "the lock appears", |t| t.contains("deploy/prod") && t.contains("ci-4711")).await;
    browser.until_text("#figure-held", "it is counted", |t| t == "1").await;
    let said = browser.eval("return document.querySelector('#summary').textContent").await;
    assert!(said.as_str().is_some_and(|text| text.contains("1 lock is held")), "{said}");
    client.release("deploy/prod", &lease.token()).await.expect_status(204);
    browser.until_text("#list", "the lock is gone", |t| !t.contains("deploy/prod")).await;
    let kept =
        browser.eval("return [window.sameDocument, document.activeElement.id, document.activeElement.value]").await;
    assert_eq!(kept, serde_json::json!([true, "prefix", "half a wor"]), "the document, the focus, what was written");
    assert_eq!(browser.text("#live").await, "Live");
    browser.close().await;
}

#[tokio::test]
async fn countdowns_and_bars_continue_between_refreshes() {
    let service = fixture::service().await;
    let client = service.client();
    client.acquired("x", &[("ttl", "30s"), ("owner", "o")]).await;
    let Some(browser) = Browser::open(client.base(), Look::Light).await else { return };
    browser.go("/ui/").await;
    // The focus pauses the refresh, so that only the page itself can count.
    browser.eval("document.querySelector('.locks .name').focus()").await;
    let width = "return Number(document.querySelector('.locks .fill').getAttribute('width'))";
    let left = "return document.querySelector('.expires .count').textContent";
    let (first, full) = (browser.eval(left).await, browser.eval(width).await);
    let attribute = "return document.querySelector('.expires .count').dataset.left";
    let sent = browser.eval(attribute).await;
    browser.until_text(".expires .count", "it counts down", |t| t.ends_with(" s") && first != *t).await;
    assert!(browser.eval(width).await.as_f64() < full.as_f64());
    assert_eq!(browser.eval(attribute).await, sent, "the page was not refreshed");
    let seconds = |text: &str| text.trim_end_matches(" s").parse::<u64>().expect("seconds");
    let now = browser.eval(left).await;
    assert!(seconds(now.as_str().expect("text")) < seconds(first.as_str().expect("text")));
    browser.close().await;
}

#[tokio::test]
async fn times_are_those_of_the_readers_clock_at_the_pointer() {
    let service = fixture::service().await;
    let client = service.client();
    client.acquired("x", &[("ttl", "2m")]).await;
    let Some(browser) = Browser::open(client.base(), Look::Light).await else { return };
    browser.go("/ui/locks/x").await;
    let times = "return [...document.querySelectorAll('time[datetime]')].map((e) => [e.textContent, e.title])";
    let times = browser.eval(times).await;
    let times = times.as_array().expect("a list");
    assert!(!times.is_empty());
    for time in times {
        let title = time[1].as_str().expect("a text");
        assert!(title.contains(" on your clock, ") && title.ends_with(" ago"), "{time}");
    }
    browser.close().await;
}

#[tokio::test]
async fn the_refresh_is_paused_while_the_focus_is_in_the_table() {
    let service = fixture::service().await;
    let client = service.client();
    client.acquired("a", &[("ttl", "2m")]).await;
    let Some(browser) = Browser::open(client.base(), Look::Light).await else { return };
    browser.go("/ui/").await;
    browser.until_text("#list", "the first lock", |t| t.contains("held")).await;
    browser.eval("document.querySelector('.locks tbody .name').focus()").await;
    browser.until_text("#live", "the refresh is paused", |t| t.starts_with("Paused")).await;
    client.acquired("b", &[("ttl", "2m")]).await;
    // Longer than a refresh takes: the countdown changes twice more.
    let before = browser.text(".expires .count").await;
    browser.until_text(".expires .count", "time passes", |t| t != before).await;
    let before = browser.text(".expires .count").await;
    browser.until_text(".expires .count", "more time passes", |t| t != before).await;
    assert_eq!(browser.eval("return document.querySelectorAll('.locks tbody tr').length").await, 1);
    assert_eq!(browser.eval("return document.activeElement.textContent").await, "a", "the focus stays");
    browser.eval("document.activeElement.blur()").await;
    browser.until_text("#list", "what was missed", |t| t.contains("2 m") || t.contains("all 2")).await;
    assert_eq!(browser.eval("return document.querySelectorAll('.locks tbody tr').length").await, 2);
    browser.close().await;
}

#[tokio::test]
async fn the_focus_stays_when_something_before_it_is_removed() {
    let service = fixture::service().await;
    let client = service.client();
    client.acquired("deploy/prod", &[("ttl", "2m")]).await;
    let Some(browser) = Browser::open(client.base(), Look::Light).await else { return };
    browser.go("/ui/timeline?last=5m").await;
    browser.until_text("#list", "the lock", |t| t.contains("deploy/prod")).await;
    // An incident and a notice that the next refresh removes.
    let script = "const svg = document.querySelector('svg.lanes'); window.focused = svg.querySelector('a'); \
                  svg.prepend(document.createElementNS(svg.namespaceURI, 'g')); svg.prepend('\\n'); \
                  document.querySelector('#list').prepend(document.createElement('div')); window.focused.focus()";
    browser.eval(script).await;
    client.acquired("deploy/staging", &[("ttl", "2m")]).await;
    browser.until_text("#list", "the page is refreshed", |t| t.contains("deploy/staging")).await;
    let focus = "const e = document.activeElement; return [e === window.focused, e.getAttribute('href')]";
    assert_eq!(browser.eval(focus).await, serde_json::json!([false, "/ui/locks/deploy/prod"]));
    browser.close().await;
}

#[tokio::test]
async fn a_stopped_service_is_reported() {
    let mut service = fixture::service().await;
    let Some(browser) = Browser::open(service.client().base(), Look::Light).await else { return };
    browser.go("/ui/").await;
    browser.until_text("#live", "it is live", |t| t == "Live").await;
    service.kill();
    browser.until_text("#live", "no answer", |t| t.starts_with("No answer from the service")).await;
    browser.close().await;
}

#[tokio::test]
async fn a_service_that_stands_still_is_not_shown_as_live() {
    let service = fixture::service().await;
    let client = service.client();
    client.acquired("x", &[("ttl", "10s")]).await;
    let Some(browser) = Browser::open(client.base(), Look::Light).await else { return };
    browser.go("/ui/").await;
    browser.until_text("#live", "it is live", |t| t == "Live").await;
    kill_process(service.pid(), Signal::STOP).expect("own child");
    browser.until_text("#live", "no answer", |t| t.starts_with("No answer from the service")).await;
    let is_dimmed = "return getComputedStyle(document.querySelector('main')).opacity < 1";
    assert_eq!(browser.eval(is_dimmed).await, true);
    browser.until_text(".expires .count", "it runs out", |t| t == "run out").await;
    kill_process(service.pid(), Signal::CONT).expect("own child");
    browser.until_text("#live", "it answers again", |t| t == "Live").await;
    assert_eq!(browser.eval(is_dimmed).await, false);
    browser.close().await;
}
