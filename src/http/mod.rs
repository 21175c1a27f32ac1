//! The HTTP door: from requests to the manager's words and back. This file has the router and the
//! order of its layers, nothing else. `routes` lists what there is, `extract`, `fields` and `asks`
//! read requests, `answers` and `problem` write answers, `locks` and its neighbours stand between
//! them and the manager, and `serve` keeps connections. Knows no node and no algorithm.

pub mod api;
pub mod middleware;
pub mod routes;
pub mod server;
pub mod state;
pub mod ui;

use std::sync::Arc;

use axum::Router;
use axum::extract::Request;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Redirect, Response};
use axum::routing::{MethodRouter, delete, get, patch, post};

use crate::audit::Audit;
use crate::metrics::Metrics;
use api::problem::Problem;
use api::problem_kind::ProblemKind;
use api::{events, extract, health, list, locks, nodes, responses};
use middleware::request_layer::RequestLayer;
use middleware::{auth, metrics};
use routes::Operation;
use state::AppState;

/// The contract, as it is served.
pub const OPENAPI: &str = include_str!("../../openapi.yaml");

/// The whole door: every route of the table, behind its layers.
pub fn router(state: AppState) -> Router {
    let (metrics, audit) = (state.metrics.clone(), state.audit.clone());
    let (gate, settings) = (Arc::clone(&state.gate), Arc::clone(&state.settings));
    let mut router = Router::new();
    for route in routes::ROUTES.iter().filter(|r| r.method != "HEAD") {
        if let Some(handler) = handler(route.operation) {
            router = router.route(route.pattern, handler);
        }
    }
    if state.ui.is_some() {
        router = router.merge(ui::router(&settings));
    }
    let is_open = settings.is_open_to_others;
    // Inside of the frame: whatever is denied is counted, named and written out like any other problem.
    let router = router.with_state(state).route_layer(auth::guarded(auth::AuthLayer { gate, settings }));
    layered(router, metrics, &audit, is_open)
}

/// `None` for pages, which have layers of their own: see [`ui::router`].
fn handler(operation: Operation) -> Option<MethodRouter<AppState>> {
    Some(match operation {
        Operation::Acquire => post(locks::acquire),
        Operation::Extend => patch(locks::extend),
        Operation::Release => delete(locks::release),
        Operation::Inspect => get(locks::inspect),
        Operation::List => get(list::list),
        Operation::Nodes => get(nodes::nodes),
        Operation::Events => get(events::events),
        Operation::Live => get(health::live),
        Operation::Ready => get(health::ready),
        Operation::Metrics => get(metrics::metrics),
        Operation::OpenApi => get(openapi),
        Operation::ProblemPage => get(problem_page),
        Operation::Root => get(root),
        Operation::Ui(_) => return None,
    })
}

/// What is around whatever routes there are. The body's bound is kept where bodies are read
/// ([`extract::fields`]).
fn layered(router: Router, metrics: Arc<Metrics>, audit: &Audit, is_open: bool) -> Router {
    let router = router.fallback(no_such_path).method_not_allowed_fallback(no_such_method);
    router.layer(RequestLayer::new(metrics, audit.clone(), is_open))
}

/// 404, or 400 for a lock without a name.
async fn no_such_path(request: Request) -> Problem {
    let path = request.uri().path();
    if path == extract::LOCKS_PREFIX {
        return Problem::invalid_field("resource", "the resource name is empty; /locks (without the slash) lists");
    }
    Problem::new(ProblemKind::NotFound, "there is nothing under this path; /openapi.yaml lists what there is")
}

/// 405; the router adds `Allow`.
async fn no_such_method(request: Request) -> Problem {
    Problem::new(
        ProblemKind::MethodNotAllowed,
        format!("{} is not offered here; see the Allow header", request.method()),
    )
}

async fn openapi() -> Response {
    (StatusCode::OK, [(header::CONTENT_TYPE, "application/yaml")], OPENAPI).into_response()
}

async fn problem_page(request: Request) -> Result<Response, Problem> {
    let word = request.uri().path().rsplit('/').next().unwrap_or_default();
    let slug = ProblemKind::parse(word)
        .ok_or_else(|| Problem::new(ProblemKind::NotFound, "there is no problem of this name"))?;
    Ok(responses::text(StatusCode::OK, slug.page()))
}

async fn root() -> Redirect {
    Redirect::temporary("/ui/")
}

#[cfg(test)]
mod tests;
