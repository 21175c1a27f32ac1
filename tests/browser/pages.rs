//! Every page, in each look: judged by axe-core, by the browser's own reports and by its width, and
//! pictured.

use super::driver::{Browser, Look};
use super::scene;
use crate::support::cluster::{Cluster, SILENT};
use crate::support::poll;
use crate::support::redis_server::RedisServer;

const PAGES: [(&str, &str); 11] = [
    ("locks", "/ui/"),
    ("locks-filtered", "/ui/?prefix=deploy/prod&sort=held&dir=desc"),
    ("lock", "/ui/locks/deploy/prod"),
    ("lock-free", "/ui/locks/nobody/has/it"),
    ("revoke", "/ui/revoke/deploy/prod"),
    ("release", "/ui/release/deploy/prod"),
    ("waiters", "/ui/waiters"),
    ("owners", "/ui/owners"),
    ("nodes", "/ui/nodes"),
    ("latency", "/ui/latency"),
    ("events", "/ui/events"),
];

async fn every_page_is_well(look: Look) {
    let service = scene::service().await;
    let client = service.client();
    scene::past(client).await;
    scene::hold(client).await;
    scene::wait_for(client, "deploy/prod", &["ci-4713", "ci-4714", ""]).await;
    scene::wait_for(client, "db/migrate/orders", &["release-bot-2"]).await;
    let Some(browser) = Browser::open(client.base(), look).await else { return };
    for (name, path) in PAGES.into_iter().chain([("trouble", "/ui/?sort=colour"), ("missing", "/ui/none")]) {
        browser.go(path).await;
        browser.is_well(path).await;
        browser.picture(name).await;
    }
    browser.close().await;
}

#[tokio::test]
async fn every_page_is_well_in_the_light() {
    every_page_is_well(Look::Light).await;
}

#[tokio::test]
async fn every_page_is_well_in_the_dark() {
    every_page_is_well(Look::Dark).await;
    // That it was dark at all.
    let service = scene::service().await;
    let Some(browser) = Browser::open(service.client().base(), Look::Dark).await else { return };
    browser.go("/ui/").await;
    let paper = browser.ask("return getComputedStyle(document.body).backgroundColor").await;
    assert_eq!(paper, "rgb(16, 20, 21)");
    browser.close().await;
}

#[tokio::test]
async fn every_page_is_well_on_a_telephone() {
    every_page_is_well(Look::Narrow).await;
}

/// Five Redis nodes, one of them frozen, one in quarantine: what is wrong stands on every page that
/// somebody would look at, and is well readable too.
#[tokio::test]
async fn nodes_that_are_not_well_are_seen_at_once() {
    let mut cluster = Cluster::start(5).await;
    let over = cluster.service_with(&["--set", "list_refresh=100ms"]).await;
    let client = over.client();
    scene::past(client).await;
    scene::hold(client).await;
    scene::wait_for(client, "deploy/prod", &["ci-4713", "ci-4714"]).await;
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
    browser.until_text("#figure-quorum", "the vote has no margin", |t| t.contains("no margin")).await;
    let marks = browser.text(".marks").await;
    for said in ["n4: in quarantine", "n5: down", "n1: votes"] {
        let hidden = browser.ask("return document.querySelector('.marks').textContent").await;
        assert!(hidden.as_str().is_some_and(|text| text.contains(said)), "{said} in {marks}");
    }
    browser.is_well("the list of locks").await;
    browser.picture("locks-nodes-ill").await;
    browser.go("/ui/nodes").await;
    let card = browser.text("#n4").await;
    assert!(card.contains("in quarantine: it carried no marker") && card.contains("It votes again in"), "{card}");
    let card = browser.text("#n5").await;
    assert!(card.contains("the last probe failed") && card.contains("timeout"), "{card}");
    browser.is_well("the nodes").await;
    browser.picture("nodes-ill").await;
    browser.go("/ui/locks/deploy/prod").await;
    let said = browser.text("#nodes").await;
    assert!(said.contains("holds this lease") && said.contains("in quarantine for"), "{said}");
    browser.picture("lock-nodes-ill").await;
    // Two answer, and one of these has forgotten: nobody can say who holds what.
    over.proxies[0].set(SILENT);
    over.proxies[1].set(SILENT);
    state(0, "down").await;
    state(1, "down").await;
    browser.go("/ui/locks/deploy/prod").await;
    browser.until_text("#alarm", "no quorum", |t| t.contains("No quorum")).await;
    assert!(browser.text("#holder").await.contains("nobody can say who holds it"));
    browser.go("/ui/").await;
    browser.until_text("#list", "the list may lack locks", |t| t.contains("fewer than a quorum")).await;
    browser.is_well("without a quorum").await;
    browser.picture("locks-no-quorum").await;
    browser.close().await;
    drop::<Vec<RedisServer>>(cluster.servers);
}

/// A service that lets everybody in says so on every page, and it can be read.
#[tokio::test]
async fn an_open_door_is_seen_on_every_page() {
    let service = scene::open_service().await;
    scene::hold(service.client()).await;
    for look in [Look::Light, Look::Dark, Look::Narrow] {
        let Some(browser) = Browser::open(service.client().base(), look).await else { return };
        for (name, path) in [("locks", "/ui/"), ("lock", "/ui/locks/deploy/prod"), ("missing", "/ui/none")] {
            browser.go(path).await;
            assert!(browser.text(".door").await.starts_with("No authentication."), "{path}");
            browser.is_well(path).await;
            browser.picture(&format!("open-{name}")).await;
        }
        browser.close().await;
    }
}
