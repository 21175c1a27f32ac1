//! A browser for one test: chromedriver on a free port with a headless chromium, and the operations that tests
//! use.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use fantoccini::{Client, ClientBuilder, Locator};
use hyper_util::client::legacy::connect::HttpConnector;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};

use crate::support::poll;

/// Finds violations of the Web Content Accessibility Guidelines. axe-core 4.14.1, unchanged, from npm;
/// its licence is MPL-2.0, and it is part of no build.
const AXE: &str = include_str!("axe.min.js");

/// How a page is displayed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Look {
    Light,
    Dark,
    /// 320 pixels wide, as on a small telephone.
    Narrow,
    /// 390 pixels wide.
    Phone,
    /// The same in dark mode.
    PhoneDark,
    /// Without script.
    Plain,
}

/// One browser.
pub struct Browser {
    driver: Child,
    pub client: Client,
    base: String,
    look: Look,
}

fn find(program: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path).map(|dir| dir.join(program)).find(|file| file.exists())
}

/// The path of chromedriver; `None`, with a message, if it is missing and `make deps` cannot install it.
///
/// Panics: if it is missing and `make deps` would install it.
#[expect(clippy::print_stderr, reason = "a test that is skipped says so")]
fn chromedriver() -> Option<PathBuf> {
    let found = find("chromedriver").filter(|_| find("chromium").is_some());
    if found.is_none() && find("apt-get").is_some() && !is_ubuntu() {
        panic!("chromium or chromedriver is not installed: `make deps` installs it");
    }
    if found.is_none() {
        eprintln!("SKIPPED: there is no chromium with chromedriver here");
    }
    found
}

/// Ubuntu's packages of Chromium install a snap, which `make deps` leaves alone.
fn is_ubuntu() -> bool {
    std::fs::read_to_string("/etc/os-release").is_ok_and(|text| text.lines().any(|line| line == "ID=ubuntu"))
}

impl Browser {
    /// Opens a browser for this service; `None` if there is no browser.
    pub async fn open(base: &str, look: Look) -> Option<Self> {
        let program = chromedriver()?;
        let mut command = Command::new(program);
        command.arg("--port=0").stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut driver = command.spawn().expect("chromedriver runs");
        let mut lines = BufReader::new(driver.stdout.take().expect("piped")).lines().map_while(Result::ok);
        let port = lines.find_map(|line| {
            let (_, port) = line.split_once("started successfully on port ")?;
            port.trim_end_matches('.').parse::<u16>().ok()
        });
        // Its later output must not fill the pipe.
        std::thread::spawn(move || lines.for_each(drop));
        let port = port.expect("chromedriver prints its port");
        let client = ClientBuilder::new(HttpConnector::new())
            .capabilities(capabilities(look))
            .connect(&format!("http://127.0.0.1:{port}"))
            .await
            .expect("a session");
        Some(Self { driver, client, base: base.to_owned(), look })
    }

    /// Opens a path of the service.
    pub async fn go(&self, path: &str) {
        self.client.goto(&format!("{}{path}", self.base)).await.unwrap_or_else(|e| panic!("{path}: {e}"));
    }

    /// Opens a path of another service.
    pub async fn go_to(&self, base: &str, path: &str) {
        self.client.goto(&format!("{base}{path}")).await.unwrap_or_else(|e| panic!("{path}: {e}"));
    }

    /// The present path with its query.
    pub async fn path(&self) -> String {
        let url = self.client.current_url().await.expect("an address");
        url.as_str().strip_prefix(&self.base).expect("a page of the service").to_owned()
    }

    /// Runs a script in the page; its result.
    pub async fn eval(&self, script: &str) -> Value {
        self.client.execute(script, vec![]).await.unwrap_or_else(|e| panic!("{script}: {e}"))
    }

    /// The text of the first matching element; empty if there is none.
    pub async fn text(&self, css: &str) -> String {
        match self.client.find(Locator::Css(css)).await {
            // It may be replaced while it is read.
            Ok(element) => element.text().await.unwrap_or_default(),
            Err(_) => String::new(),
        }
    }

    /// Waits until the text of an element matches.
    pub async fn until_text(&self, css: &str, expected: &str, matches: impl Fn(&str) -> bool) {
        let expected = format!("{css}: {expected}");
        poll::until(&expected, || async { matches(&self.text(css).await).then_some(()) }).await;
    }

    /// Writes into a field.
    pub async fn write(&self, css: &str, text: &str) {
        let field = self.client.find(Locator::Css(css)).await.unwrap_or_else(|e| panic!("{css}: {e}"));
        field.clear().await.expect("a field");
        field.send_keys(text).await.expect("a field");
    }

    /// Clicks an element.
    pub async fn click(&self, css: &str) {
        let element = self.client.find(Locator::Css(css)).await.unwrap_or_else(|e| panic!("{css}: {e}"));
        element.click().await.unwrap_or_else(|e| panic!("{css}: {e}"));
    }

    /// Writes a screenshot, for a person to check.
    pub async fn screenshot(&self, name: &str) {
        let look = match self.look {
            Look::Light => "light",
            Look::Dark => "dark",
            Look::Narrow => "narrow",
            Look::Phone => "phone",
            Look::PhoneDark => "phone-dark",
            Look::Plain => "plain",
        };
        let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("target/screenshots");
        std::fs::create_dir_all(&dir).expect("writable");
        let png = self.client.screenshot().await.expect("a screenshot");
        std::fs::write(dir.join(format!("{name}-{look}.png")), png).expect("writable");
    }

    /// Checks accessibility, the content security policy, browser reports, and that the page is not wider than
    /// the window.
    pub async fn check_page(&self, page: &str) {
        self.eval(AXE).await;
        let run = "const done = arguments[arguments.length - 1]; \
                   axe.run(document, { runOnly: ['wcag2a', 'wcag2aa', 'wcag21a', 'wcag21aa', 'wcag22aa', 'best-practice'] })\
                   .then((r) => done({ violations: r.violations, passes: r.passes.length }), (e) => done(String(e)));";
        let found = self.client.execute_async(run, vec![]).await.expect("axe runs");
        assert!(found["passes"].as_u64().is_some_and(|n| n > 10), "{page}: axe did not run: {found}");
        let violations = found["violations"].as_array().expect("a list");
        let shown: Vec<String> = violations.iter().map(violation).collect();
        assert!(shown.is_empty(), "{page} ({:?}):\n{}", self.look, shown.join("\n"));
        let reports = "const done = arguments[arguments.length - 1]; const all = []; \
                       const o = new ReportingObserver((list) => all.push(...list.map((r) => r.type + JSON.stringify(r.body))), \
                       { types: ['csp-violation', 'deprecation', 'intervention'], buffered: true }); \
                       o.observe(); setTimeout(() => done(all), 0);";
        let reports = self.client.execute_async(reports, vec![]).await.expect("a list");
        let broken = reports.as_array().expect("a list").iter().filter(|r| !r.to_string().contains("eval"));
        let broken: Vec<&Value> = broken.collect();
        assert!(broken.is_empty(), "{page}: {broken:?}");
        let wide = self.eval("return [document.documentElement.scrollWidth, window.innerWidth]").await;
        assert!(wide[0].as_u64() <= wide[1].as_u64(), "{page} ({:?}) is wider than its window: {wide}", self.look);
    }

    /// Closes the browser.
    pub async fn close(self) {
        self.client.clone().close().await.expect("closed");
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        // The browser would outlive its driver where a test fails. Fails if they have ended already.
        children(self.driver.id()).into_iter().for_each(|browser| _ = kill_process(browser, Signal::KILL));
        let _ = self.driver.kill();
        let _ = self.driver.wait();
    }
}

/// The processes that a process has started.
fn children(pid: u32) -> Vec<Pid> {
    let threads = std::fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    let lists = threads.filter_map(|thread| std::fs::read_to_string(thread.path().join("children")).ok());
    let ids: Vec<i32> =
        lists.flat_map(|list| list.split_whitespace().filter_map(|id| id.parse().ok()).collect::<Vec<_>>()).collect();
    ids.into_iter().filter_map(Pid::from_raw).collect()
}

fn violation(violation: &Value) -> String {
    let nodes = violation["nodes"].as_array().cloned().unwrap_or_default();
    let where_: Vec<String> = nodes.iter().take(3).map(|n| format!("{} {}", n["html"], n["failureSummary"])).collect();
    format!("{}: {} at {}", violation["id"], violation["help"], where_.join(" | "))
}

fn capabilities(look: Look) -> serde_json::Map<String, Value> {
    let mut args = vec![
        "--headless=new",
        "--no-sandbox",
        "--disable-dev-shm-usage",
        "--disable-gpu",
        "--hide-scrollbars",
        "--force-color-profile=srgb",
        "--window-size=1280,1000",
    ];
    if matches!(look, Look::Dark | Look::PhoneDark) {
        args.push("--blink-settings=preferredColorScheme=0");
    }
    let mut options = json!({ "args": args });
    let width = match look {
        Look::Narrow => Some(320),
        Look::Phone | Look::PhoneDark => Some(390),
        Look::Light | Look::Dark | Look::Plain => None,
    };
    if let Some(width) = width {
        options["mobileEmulation"] = json!({ "deviceMetrics": { "width": width, "height": 900, "pixelRatio": 2 } });
    }
    if look == Look::Plain {
        options["prefs"] = json!({ "profile.managed_default_content_settings.javascript": 2 });
    }
    let all = json!({ "browserName": "chrome", "goog:chromeOptions": options });
    all.as_object().expect("an object").clone()
}
