//! Authentication, authorization, limits and TLS of the service, end to end with the binary. [`Access`] is an access
//! file with known keys.

mod alerts;
mod attack;
mod data_dir;
mod floods;
mod heads;
mod hidden;
mod hostile_redis;
mod hosts;
mod http2;
mod limits;
mod login;
mod lying_node;
mod matrix;
mod page_commands;
mod redis_side;
mod reload;
mod secrets;
mod streams;
pub mod tls;
mod tokens;
mod visibility;

use std::path::PathBuf;

use redlockd::auth::api_key::KeyHash;
use redlockd::http::routes::{Operation, ROUTES, UiRoute};
use reqwest::RequestBuilder;
use tempfile::TempDir;

use crate::support::client::{Answer, send};
use crate::support::service::{Service, path};

/// An access file. The key of the principal `ci` is `key-of-ci`.
pub struct Access {
    dir: TempDir,
}

/// The key of a principal.
pub fn key(name: &str) -> String {
    format!("key-of-{name}")
}

/// One principal's entry.
pub fn entry(name: &str, keys: &[&str], rules: &[&str], more: &str) -> String {
    let keys: Vec<String> =
        keys.iter().map(|key| format!("{{ sha256 = \"{}\" }}", KeyHash::of(key.as_bytes()).hex())).collect();
    let rules: Vec<String> = rules.iter().map(|rule| format!("\"{rule}\"")).collect();
    format!("[[principal]]\nname = \"{name}\"\nkeys = [{}]\nallow = [{}]\n{more}\n", keys.join(", "), rules.join(", "))
}

impl Access {
    /// With these principals and their rules.
    pub fn of(principals: &[(&str, &[&str])]) -> Self {
        Self::with(&Self::text(principals))
    }

    /// The text of such a file.
    pub fn text(principals: &[(&str, &[&str])]) -> String {
        principals.iter().map(|(name, rules)| entry(name, &[&key(name)], rules, "")).collect()
    }

    /// With this text.
    pub fn with(text: &str) -> Self {
        let access = Self { dir: tempfile::tempdir().expect("a directory") };
        access.write(text);
        access
    }

    pub fn path(&self) -> PathBuf {
        self.dir.path().join("access.toml")
    }

    /// Replaces the file by a rename, as configuration tools do.
    pub fn write(&self, text: &str) {
        let new = self.dir.path().join("new");
        std::fs::write(&new, text).expect("writable");
        std::fs::rename(new, self.path()).expect("renamed");
    }

    /// The setting with its path.
    pub fn setting(&self) -> String {
        format!("access_file={}", path(&self.path()))
    }

    /// A service with it, on embedded nodes.
    pub async fn service(&self, more: &[&str]) -> Service {
        let setting = self.setting();
        Service::embedded(&[&["--set", setting.as_str()], more].concat()).await
    }
}

/// Sends a request as this principal.
pub async fn as_principal(request: RequestBuilder, name: &str) -> Answer {
    send(request.bearer_auth(key(name))).await
}

/// Acquires a free lock as this principal; its token.
pub async fn acquired(service: &Service, name: &str, resource: &str) -> String {
    let request = service.client().request("POST", &format!("/locks/{resource}"));
    as_principal(request, name).await.expect_status(201).token()
}

/// The paths of all pages in the table of routes, and of some error pages.
pub fn pages() -> Vec<String> {
    let redirects = [UiRoute::Home, UiRoute::Login];
    let no_pages = [UiRoute::Asset, UiRoute::Stream];
    let is_page = |route| !redirects.contains(&route) && !no_pages.contains(&route);
    let found =
        ROUTES.iter().filter(|r| r.method == "GET" && matches!(r.operation, Operation::Ui(page) if is_page(page)));
    let paths = found.map(|route| route.path.replace("{resource}", "deploy/prod"));
    paths.chain(["/ui/none", "/ui/?sort=colour", "/ui/locks/deploy//prod"].map(str::to_owned)).collect()
}
