//! Untrusted texts in a browser: owners, notes and metadata that contain markup, script, style or invisible
//! characters.

use super::driver::{Browser, Look};
use super::fixture;

const TEXTS: [&str; 8] = [
    "<script>window.pwned=1</script>",
    "\"><img src=x onerror=window.pwned=1>",
    "' onmouseover='window.pwned=1",
    "</td></tr></table></main><h1 id=broken>",
    "<style>body{display:none}</style>",
    "javascript:window.pwned=1",
    "{{7*7}}${7*7}&lt;b&gt;<!--",
    "safe\u{202e}evil\u{2066}\u{200b}\u{feff}",
];

#[tokio::test]
async fn untrusted_texts_are_shown_as_text() {
    let service = fixture::service().await;
    let client = service.client();
    let mut leases = Vec::new();
    for (i, text) in TEXTS.iter().enumerate() {
        let metadata = serde_json::json!({ *text: text }).to_string();
        let fields = [("owner", *text), ("note", *text), ("metadata", metadata.as_str()), ("ttl", "2m")];
        leases.push(client.acquired(&format!("x/{i}"), &fields).await);
    }
    let waiter = client.clone();
    tokio::spawn(async move {
        let request = waiter.request("POST", "/locks/x/0").form(&[("wait", "1m"), ("owner", TEXTS[1])]);
        // Ends with the service.
        let _ = request.send().await;
    });
    let Some(browser) = Browser::open(client.base(), Look::Light).await else { return };
    let mut paths = vec!["/ui/".to_owned(), "/ui/waiters".into(), "/ui/owners".into(), "/ui/events".into()];
    for i in 0..TEXTS.len() {
        paths.push(format!("/ui/locks/x/{i}"));
        paths.push(format!("/ui/release/x/{i}"));
    }
    paths.push("/ui/?prefix=%22%3E%3Cscript%3Ewindow.pwned%3D1%3C%2Fscript%3E&owner=%3Cimg%20src%3Dx%3E".into());
    paths.push("/ui/?%3Cscript%3Ewindow.pwned%3D1%3C%2Fscript%3E=1".into());
    for path in &paths {
        browser.go(path).await;
        browser.check_page(path).await;
        let traces = "return [window.pwned === undefined, document.querySelectorAll('main img, main script, main style, \
                      #broken, [onerror], [onmouseover], a[href^=\"javascript\"]').length, \
                      /[\\u202e\\u2066\\u200b\\ufeff]/.test(document.body.textContent)]";
        assert_eq!(browser.eval(traces).await, serde_json::json!([true, 0, false]), "{path}");
    }
    browser.go("/ui/").await;
    let list = browser.text("#list").await;
    for text in &TEXTS[..7] {
        assert!(list.contains(text), "{text} is shown as it is: {list}");
    }
    assert!(list.contains("safe\\u{202e}evil\\u{2066}\\u{200b}\\u{feff}"), "{list}");
    browser.screenshot("hostile").await;
    browser.close().await;
}
