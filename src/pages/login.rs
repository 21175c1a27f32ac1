//! The log-in page. Standalone, without navigation.

use askama::Template;

use super::assets::{self, Assets};

/// The data of the page.
#[derive(Default, Template)]
#[template(path = "login.html")]
pub(crate) struct LoginPage {
    /// The principal that is logged in; empty: none.
    pub principal: String,
    /// Whether the last key was rejected.
    pub has_failed: bool,
    /// The page to show after the log-in; empty for the first page.
    pub next: String,
}

impl LoginPage {
    fn assets(&self) -> &'static Assets {
        assets::all()
    }
}
