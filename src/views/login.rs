//! The page that asks for a key. Without a frame, which is for those who are in. Knows no request.

use askama::Template;

use super::assets::{self, Assets};

/// The page.
#[derive(Template)]
#[template(path = "login.html")]
pub struct LoginPage {
    /// Of the form.
    pub token: String,
    /// Who is logged in; empty: nobody.
    pub principal: String,
    /// The last key did not do.
    pub has_failed: bool,
}

impl LoginPage {
    fn assets(&self) -> &'static Assets {
        assets::all()
    }
}
