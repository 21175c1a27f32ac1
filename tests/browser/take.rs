//! Taking a lock until a time, by the form.

use redlockd::redlock::clock::{Clock, SystemClock};

use super::driver::{Browser, Look};
use super::fixture;

#[tokio::test]
async fn a_lock_is_taken_until_a_time_and_a_time_that_is_too_far_says_what_to_change() {
    let service = fixture::service().await;
    let client = service.client();
    let Some(browser) = Browser::open(client.base(), Look::Light).await else { return };
    let in_hours = |hours: i64| {
        let at_ms = i64::try_from(SystemClock.wall_ms()).expect("small") + hours * 3_600_000;
        let at = jiff::Timestamp::from_millisecond(at_ms).expect("a time");
        at.strftime("%Y-%m-%dT%H:%M").to_string()
    };
    // A browser's keys for a time depend on its language.
    let fill = async |until: &str| {
        browser.eval(&format!("document.querySelector('#until').value = '{until}'; return ''")).await;
        browser.click(".confirm button").await;
    };
    browser.go("/ui/take/deploy/prod").await;
    browser.write("#note", "freeze until Monday").await;
    let far = in_hours(72);
    fill(&far).await;
    browser
        .until_text(".notice", "it is refused", |t| {
            t.contains("keeps a lock for 24h at most") && t.contains("max_keep")
        })
        .await;
    let kept =
        browser.eval("return [document.querySelector('#until').value, document.querySelector('#note').value]").await;
    assert_eq!(kept, serde_json::json!([far, "freeze until Monday"]), "what was typed stays");
    let near = in_hours(2);
    fill(&near).await;
    browser.until_text(".notice", "it was done", |t| t.contains("Taken.")).await;
    let holder = client.inspect("deploy/prod").await.json()["holders"][0].clone();
    assert_eq!(holder["note"], "freeze until Monday");
    assert!(
        holder["kept_until"].as_str().is_some_and(|time| time.starts_with(&format!("{near}:0"))),
        "{holder}, {near}"
    );
    browser.close().await;
}
