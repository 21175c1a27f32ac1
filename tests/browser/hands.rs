//! What people do with their hands: every page by keyboard, the palette, text that is selected while the page refreshes, and a
//! list of ten thousand leases.

use fantoccini::key::Key;
use serde_json::json;

use super::driver::{Browser, Look};
use super::fixture;
use super::pages::PAGES;
use crate::support::cluster::Cluster;
use crate::support::poll;

/// More than any page of the test has.
const STOPS_MAX: usize = 150;

async fn press(browser: &Browser, key: char) {
    let focused = browser.client.active_element().await.expect("something has the focus");
    focused.send_keys(&key.to_string()).await.expect("a key");
}

#[tokio::test]
async fn every_page_can_be_used_by_keyboard() {
    let service = fixture::service().await;
    let client = service.client();
    fixture::past(client).await;
    fixture::hold(client).await;
    fixture::wait_for(client, "deploy/prod", &["ci-4713", "ci-4714"]).await;
    let Some(browser) = Browser::open(client.base(), Look::Light).await else { return };
    for (_, path) in PAGES {
        use_by_keyboard(&browser, path).await;
    }
    browser.close().await;
    let (_receiver, _file, service) = super::hooks::service().await;
    let Some(browser) = Browser::open(service.client().base(), Look::Light).await else { return };
    use_by_keyboard(&browser, "/ui/hooks").await;
    assert!(browser.eval("return window.stops.some((e) => e.closest('#targets'))").await == true, "with its forms");
    browser.close().await;
}

/// Goes through a page with the key of tabulation.
async fn use_by_keyboard(browser: &Browser, path: &str) {
    browser.go(path).await;
    // A closed `details` has no stops inside it.
    let stops = "[...document.querySelectorAll('a[href], button, input:not([type=hidden]), select, summary, [tabindex=\"0\"]')]\
                 .filter((e) => e.checkVisibility())";
    let number = async |script: String| {
        browser.eval(&script).await.as_u64().and_then(|n| usize::try_from(n).ok()).expect("a number")
    };
    let count = number(format!("window.stops = {stops}; return window.stops.length")).await;
    assert!((5..STOPS_MAX).contains(&count), "{path}: {count}");
    let mut missed: Vec<usize> = (0..count).collect();
    let (mut n, mut before, mut ends) = (0, json!(-1), 0);
    while n < count {
        press(browser, char::from(Key::Tab)).await;
        let at = browser
                .eval(
                    "const e = document.activeElement; const s = getComputedStyle(e); const r = e.getBoundingClientRect(); \
                     return [window.stops.indexOf(e), s.outlineStyle !== 'none' && r.width > 0, e.outerHTML.slice(0, 120)]",
                )
                .await;
        // A page may become shorter meanwhile, when a notice is over. Nothing has the focus after its end; then the skip link has it.
        if at[2].as_str().is_some_and(|html| html.starts_with("<body")) {
            let left = number(format!("return {stops}.length")).await;
            (n, ends, before) = (n + 1, ends + 1, json!(-1));
            assert!(
                ends == 1 && left < count,
                "{path}: the focus was lost: {n} of {count}, now {left}, missed {missed:?}"
            );
            continue;
        }
        assert_eq!(at[1], true, "{path}: the focus cannot be seen: {at}");
        assert!(n > 0 || at[2].as_str().is_some_and(|html| html.contains("skip")), "{path}: first the skip link: {at}");
        missed.retain(|index| at[0] != json!(index));
        // A field for a time has several parts, which are one stop.
        n += usize::from(at[0] == json!(-1) || at[0] != before);
        before = at[0].clone();
    }
    // What was refreshed meanwhile may be another element.
    assert!(missed.len() <= count / 10, "{path}: {missed:?} of {count} are not reached");
}

#[tokio::test]
async fn logging_in_needs_only_the_keyboard() {
    let (service, _dir) = fixture::closed_service().await;
    let Some(browser) = Browser::open(service.client().base(), Look::Light).await else { return };
    browser.go("/ui/waiters").await;
    assert_eq!(browser.eval("return document.activeElement.id").await, "key", "the field has the focus");
    for typed in fixture::KEY.chars() {
        press(&browser, typed).await;
    }
    press(&browser, char::from(Key::Tab)).await;
    let focused = "const e = document.activeElement; return [e.type, getComputedStyle(e).outlineStyle !== 'none']";
    assert_eq!(browser.eval(focused).await, json!(["submit", true]));
    press(&browser, char::from(Key::Enter)).await;
    browser.until_text(".viewer", "logged in", |text| text.contains("ops")).await;
    assert_eq!(browser.path().await, "/ui/waiters", "and where it was going");
    browser.close().await;
}

#[tokio::test]
async fn the_palette_goes_to_a_lock_an_owner_or_a_page_by_keyboard_alone() {
    let service = fixture::service().await;
    let client = service.client();
    fixture::hold(client).await;
    let Some(browser) = Browser::open(client.base(), Look::Light).await else { return };
    browser.go("/ui/events").await;
    press(&browser, '/').await;
    browser.until_text(".palette li", "it is open with the pages", |t| t.contains("Locks")).await;
    for typed in "deploy/pr".chars() {
        press(&browser, typed).await;
    }
    browser.until_text(".palette li", "the lock is found", |t| t.contains("deploy/prod")).await;
    browser.check_page("the palette").await;
    browser.screenshot("palette").await;
    let combobox = "const i = document.querySelector('.palette input'); const o = document.getElementById(i.getAttribute('aria-activedescendant')); \
                    return [document.activeElement === i, i.getAttribute('role'), o.getAttribute('role'), o.getAttribute('aria-selected')]";
    assert_eq!(browser.eval(combobox).await, json!([true, "combobox", "option", "true"]));
    press(&browser, char::from(Key::Enter)).await;
    poll::until("the lock's page", || async { (browser.path().await == "/ui/locks/deploy/prod").then_some(()) }).await;
    press(&browser, '/').await;
    for typed in "search-7".chars() {
        press(&browser, typed).await;
    }
    browser.until_text(".palette li:nth-child(2)", "the owner is found", |t| t.contains("search-7f9c")).await;
    press(&browser, char::from(Key::Down)).await;
    press(&browser, char::from(Key::Enter)).await;
    poll::until("the owner's locks", || async { (browser.path().await == "/ui/?owner=search-7f9c").then_some(()) })
        .await;
    // In a field the key is a character.
    browser.click("#find").await;
    press(&browser, '/').await;
    assert_eq!(browser.eval("return document.querySelector('#find').value").await, "/");
    browser.click(".find").await;
    browser.until_text(".palette li", "the button opens it", |t| t.contains("Locks")).await;
    press(&browser, char::from(Key::Escape)).await;
    assert_eq!(browser.eval("return document.querySelector('dialog[open]')").await, json!(null));
    // Also from within a field.
    browser.click("#find").await;
    let chord: String = [char::from(Key::Control), 'k', char::from(Key::Null)].iter().collect();
    let field = browser.client.active_element().await.expect("the field");
    field.send_keys(&chord).await.expect("keys");
    browser.until_text(".palette li", "Ctrl-K opens it", |t| t.contains("Locks")).await;
    browser.close().await;
}

#[tokio::test]
async fn what_is_selected_stays_selected_while_the_list_is_refreshed() {
    let service = fixture::service().await;
    let client = service.client();
    client.acquired("m", &[("owner", "to-be-copied"), ("ttl", "2m")]).await;
    let Some(browser) = Browser::open(client.base(), Look::Light).await else { return };
    browser.go("/ui/").await;
    browser.until_text("#list", "the lock", |t| t.contains("to-be-copied")).await;
    browser.eval("window.getSelection().selectAllChildren(document.querySelector('.owner'))").await;
    browser.eval("document.body.style.paddingBottom = '3000px'; window.scrollTo(0, 150)").await;
    for name in ["a", "z"] {
        client.acquired(name, &[("ttl", "2m")]).await;
        let row = format!("tr[data-key={name}]");
        browser.until_text(&row, "it appears before or behind it", |t| t.contains(name)).await;
        assert_eq!(browser.eval("return String(window.getSelection())").await, "to-be-copied");
        let scrolled = browser.eval("return window.scrollY").await;
        assert!(scrolled.as_f64() >= Some(150.0), "the page stays where it was scrolled to: {scrolled}");
    }
    let order = browser.eval("return [...document.querySelectorAll('tr[data-key]')].map((e) => e.dataset.key)").await;
    assert_eq!(order, json!(["a", "m", "z"]));
    browser.close().await;
}

#[tokio::test]
async fn ten_thousand_leases_are_listed_found_and_paged() {
    let cluster = Cluster::start(1).await;
    cluster.servers[0].hold("many/part/", 10_000).await;
    let over = cluster.service_with(&["--set", "list_refresh=500ms"]).await;
    let Some(browser) = Browser::open(over.client().base(), Look::Light).await else { return };
    browser.go("/ui/").await;
    browser.until_text("#figure-held", "all of them", |t| t.replace('\u{202f}', "") == "10000").await;
    assert_eq!(browser.eval("return document.querySelectorAll('tr[data-key]').length").await, 100);
    browser.check_page("ten thousand leases").await;
    browser.screenshot("locks-10000").await;
    browser.go("/ui/?find=part%2F777&sort=resource").await;
    browser.until_text("caption", "those with it in the middle", |t| t.contains("all 11, filtered")).await;
    // Twenty rows of a list fit into a window.
    let last = browser.eval("window.scrollTo(0, 0); const r = [...document.querySelectorAll('tr[data-key]')].map((e) => e.getBoundingClientRect().height); return Math.max(...r)").await;
    assert!(last.as_f64().is_some_and(|height| height * 20.0 <= 640.0), "a row has {last} pixels");
    browser.go("/ui/?page=100").await;
    browser.until_text(".pages", "the last page", |t| t.contains("Page 100 of 100")).await;
    browser.close().await;
}
