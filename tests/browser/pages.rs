//! Every page in every display mode: accessibility, browser reports, width and a screenshot.

use std::collections::BTreeSet;

use serde_json::json;

use super::driver::{Browser, Look};
use super::fixture;
use crate::support::cluster::{Cluster, SILENT};
use crate::support::poll;
use crate::support::redis_server::{Options, RedisServer};
use crate::support::service::SHORT_TIMES;

pub const PAGES: [(&str, &str); 15] = [
    ("locks", "/ui/"),
    ("locks-filtered", "/ui/?prefix=deploy/prod&sort=held&dir=desc"),
    ("lock", "/ui/locks/deploy/prod"),
    ("lock-free", "/ui/locks/nobody/has/it"),
    ("take", "/ui/take/deploy/prod"),
    ("revoke", "/ui/revoke/deploy/prod"),
    ("release", "/ui/release/deploy/prod"),
    ("waiters", "/ui/waiters"),
    ("owners", "/ui/owners"),
    ("timeline", "/ui/timeline?prefix=deploy/"),
    ("timeline-short", "/ui/timeline?last=5m"),
    ("nodes", "/ui/nodes"),
    ("latency", "/ui/latency"),
    ("runbooks", "/ui/runbooks"),
    ("events", "/ui/events"),
];

/// The problems that openapi.yaml names, which are all.
fn problems() -> BTreeSet<&'static str> {
    let parts = include_str!("../../openapi.yaml").split("/problems/").skip(1);
    let slugs = parts.filter_map(|part| part.split(|c: char| !c.is_ascii_lowercase() && c != '-').next());
    slugs.filter(|slug| !slug.is_empty()).collect()
}

async fn check_every_page(look: Look) {
    let service = fixture::service().await;
    let client = service.client();
    fixture::past(client).await;
    fixture::hold(client).await;
    fixture::wait_for(client, "deploy/prod", &["ci-4713", "ci-4714", ""]).await;
    fixture::wait_for(client, "db/migrate/orders", &["release-bot-2"]).await;
    let Some(browser) = Browser::open(client.base(), look).await else { return };
    for (name, path) in PAGES.into_iter().chain([
        ("error", "/ui/?sort=colour"),
        ("missing", "/ui/none"),
        ("problem", "/problems/wait-timeout"),
    ]) {
        browser.go(path).await;
        browser.check_page(path).await;
        browser.screenshot(name).await;
    }
    if look == Look::Light {
        let all = problems();
        assert!(all.len() >= 33, "{all:?}");
        for kind in all {
            browser.go(&format!("/problems/{kind}")).await;
            browser.check_page(kind).await;
            assert!(browser.text("main").await.contains(kind), "it is the page of {kind}");
        }
    }
    browser.close().await;
}

#[tokio::test]
async fn every_page_passes_in_light_mode() {
    check_every_page(Look::Light).await;
}

#[tokio::test]
async fn every_page_passes_in_dark_mode() {
    check_every_page(Look::Dark).await;
    // The dark mode was in effect.
    let service = fixture::service().await;
    let Some(browser) = Browser::open(service.client().base(), Look::Dark).await else { return };
    browser.go("/ui/").await;
    let background = browser.eval("return getComputedStyle(document.body).backgroundColor").await;
    assert_eq!(background, "rgb(16, 20, 21)");
    browser.close().await;
}

#[tokio::test]
async fn every_page_passes_on_a_narrow_screen() {
    check_every_page(Look::Narrow).await;
    // No cell of a table is beyond the edge, where it is found only by scrolling. The window grows with a page that is too wide.
    let service = fixture::service().await;
    fixture::past(service.client()).await;
    fixture::hold(service.client()).await;
    let Some(browser) = Browser::open(service.client().base(), Look::Narrow).await else { return };
    for path in ["/ui/", "/ui/latency", "/ui/nodes", "/ui/events"] {
        browser.go(path).await;
        let cells = "const all = [...document.querySelectorAll('tbody td')].filter((e) => e.checkVisibility()); \
                     return [all.length, all.filter((e) => e.getBoundingClientRect().right > screen.width).length]";
        let cells = browser.eval(cells).await;
        assert!(cells[0].as_u64() > Some(0) && cells[1] == 0, "{path}: cells, and those that are cut off: {cells}");
    }
    browser.close().await;
}

/// On a telephone, drawings of the past begin with the present, name their locks there, and say that there is more.
#[tokio::test]
async fn drawings_of_the_past_show_the_present_on_a_telephone() {
    let service = fixture::service().await;
    fixture::past(service.client()).await;
    fixture::hold(service.client()).await;
    let Some(browser) = Browser::open(service.client().base(), Look::Phone).await else { return };
    for path in ["/ui/locks/deploy/prod", "/ui/timeline?prefix=deploy/"] {
        browser.go(path).await;
        let shown = browser
            .eval(
                "const on = (e) => { const r = e.getBoundingClientRect(); return r.width > 0 && r.left >= 0 && r.right <= innerWidth; }; \
                 const box = document.querySelector('.scroll.past'); const ticks = [...box.querySelectorAll('.tick')]; \
                 return [innerWidth, box.scrollWidth > box.clientWidth, on(ticks.find((e) => e.textContent === 'now')), \
                         on(document.querySelector('.sideways')), [...box.querySelectorAll('.lane.late')].every(on)]",
            )
            .await;
        assert_eq!(shown, json!([390, true, true, true, true]), "{path}: width, wider, now, hint, names");
        browser.screenshot(if path.contains("timeline") { "timeline" } else { "lock" }).await;
    }
    browser.close().await;
}

/// Five Redis nodes, one frozen and one in quarantine: the pages show it and remain accessible. The service may not read the
/// others' keys, so the quarantine has to be waited for.
#[tokio::test]
async fn failed_nodes_are_shown_on_every_page_that_depends_on_them() {
    let unread = Options { users: vec!["default on nopass ~* &* +@all -scan"], ..Options::default() };
    let mut cluster = Cluster::blank_with(vec![unread; 5]).await;
    cluster.declare(&SHORT_TIMES);
    let over = cluster.service_with(&["--set", "list_refresh=100ms"]).await;
    let client = over.client();
    fixture::past(client).await;
    fixture::hold(client).await;
    fixture::wait_for(client, "deploy/prod", &["ci-4713", "ci-4714"]).await;
    cluster.servers[3].kill();
    cluster.servers[3].restart().await;
    over.proxies[4].set(SILENT);
    let state = async |node: usize, wanted: &str| {
        poll::until(&format!("n{} is {wanted}", node + 1), || async {
            let nodes = client.get("/nodes").await.json();
            (nodes["nodes"][node]["state"] == wanted).then_some(())
        })
        .await;
    };
    state(3, "quarantined").await;
    state(4, "down").await;
    let Some(browser) = Browser::open(client.base(), Look::Light).await else { return };
    browser.go("/ui/").await;
    browser.until_text("#figure-quorum", "the quorum has no margin", |t| t.contains("no margin")).await;
    let marks = browser.text(".marks").await;
    for expected in ["n4: in quarantine", "n5: down", "n1: votes"] {
        let hidden = browser.eval("return document.querySelector('.marks').textContent").await;
        assert!(hidden.as_str().is_some_and(|text| text.contains(expected)), "{expected} in {marks}");
    }
    browser.check_page("the list of locks").await;
    browser.screenshot("locks-nodes-failed").await;
    browser.go("/ui/nodes").await;
    let card = browser.text("#n4").await;
    assert!(card.contains("in quarantine: it carried no marker") && card.contains("It votes again in"), "{card}");
    let card = browser.text("#n5").await;
    assert!(card.contains("the last probe failed") && card.contains("timeout"), "{card}");
    browser.check_page("the nodes").await;
    browser.screenshot("nodes-failed").await;
    // A node without a vote is not waited for where the others have answered.
    let shows_all = async || {
        browser.go("/ui/locks/deploy/prod").await;
        let states = browser.text("#nodes").await;
        (states.contains("this lease") && states.contains("in quarantine for")).then_some(())
    };
    poll::until("the lease and the quarantine are shown", shows_all).await;
    browser.screenshot("lock-nodes-failed").await;
    // Two nodes answer, and one of them has no vote: the holder cannot be determined.
    over.proxies[0].set(SILENT);
    over.proxies[1].set(SILENT);
    state(0, "down").await;
    state(1, "down").await;
    browser.go("/ui/locks/deploy/prod").await;
    browser.until_text("#alarm", "no quorum", |t| t.contains("No lock can be granted")).await;
    assert!(browser.text("#holder").await.contains("the holder cannot be determined"));
    browser.go("/ui/").await;
    browser.until_text("#list", "the list may be incomplete", |t| t.contains("fewer than a quorum")).await;
    browser.check_page("without a quorum").await;
    browser.screenshot("locks-no-quorum").await;
    browser.close().await;
    drop::<Vec<RedisServer>>(cluster.servers);
}

/// Also checks that the warning is accessible in every display mode.
#[tokio::test]
async fn missing_authentication_is_shown_on_every_page() {
    let service = fixture::open_service().await;
    fixture::hold(service.client()).await;
    for look in [Look::Light, Look::Dark, Look::Narrow] {
        let Some(browser) = Browser::open(service.client().base(), look).await else { return };
        for (name, path) in [("locks", "/ui/"), ("lock", "/ui/locks/deploy/prod"), ("missing", "/ui/none")] {
            browser.go(path).await;
            assert!(browser.text(".no-auth").await.starts_with("No authentication."), "{path}");
            browser.check_page(path).await;
            browser.screenshot(&format!("open-{name}")).await;
        }
        browser.close().await;
    }
}
