//! Tests of the dashboard with a real browser: every page in light, dark and 320 pixels wide, checked by
//! axe-core and the browser's own reports; automatic refresh, countdowns and forms; and all of it without script.
//! Screenshots are written to `target/screenshots/`.
//!
//! Needs chromium and chromedriver, which `make test` installs. Without apt the tests that need them are skipped
//! with a message.

mod balanced;
mod driver;
mod fixture;
mod force;
mod forms;
mod hands;
mod hooks;
mod incident;
mod live;
mod modes;
mod no_script;
mod pages;
#[path = "../it/hooks/receiver.rs"]
#[allow(dead_code, reason = "shared with the integration tests, which use the rest")]
mod receiver;
#[path = "../it/support/mod.rs"]
#[allow(dead_code, reason = "shared with the integration tests, which use the rest")]
mod support;
mod take;
mod untrusted_text;
