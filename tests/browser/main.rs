//! The dashboard as people meet it: a real browser looks at pages of the real binary. Each page in
//! light, dark, and 320 pixels wide, judged by axe-core and by the browser's own reports; what is live,
//! what counts on, what forms do, and all of that without script. Pictures go to `target/screenshots/`,
//! where a person can look at them.
//!
//! Needs chromium and chromedriver; `make test` installs them. Where there is no apt, the tests of
//! this binary that need them are skipped, visibly.

mod driver;
mod ending;
mod forms;
mod hostile;
mod live;
mod pages;
mod plain;
mod scene;
#[path = "../it/support/mod.rs"]
#[allow(dead_code, reason = "shared with the integration tests, which use the rest")]
mod support;
