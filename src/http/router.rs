//! The router: each route of the table with its handler and its layers, and the answers to requests without a handler (404, 405).

use std::sync::Arc;

use axum::Router;
use axum::extract::Request;
use axum::handler::Handler;
use axum::response::{IntoResponse, Redirect, Response};
use axum::routing::{MethodRouter, any, delete, get, patch, post};
use tower_http::compression::CompressionLayer;

use super::api::{documents, events, fences, health, hooks, list, locks, metrics, nodes, sets, terraform, tickets};
use super::middleware::auth::AuthLayer;
use super::middleware::stack::RequestLayer;
use super::path::LOCKS_PREFIX;
use super::problem::Problem;
use super::problem_kind::ProblemKind;
use super::routes::{MatchedRoute, Operation, ROUTES, Route};
use super::state::AppState;
use super::ui;
use super::webdav_methods::{self, ByMethod, Methods};

/// The maximum length of a method that an answer repeats.
const METHOD_SHOWN_MAX_BYTES: usize = 20;

/// Every route of the table with its handler and layers.
pub(crate) fn router(state: AppState) -> Router {
    let layer = RequestLayer::new(Arc::clone(&state.metrics), state.audit.clone(), Arc::clone(&state.settings));
    let (authenticator, settings) = (Arc::clone(&state.authenticator), Arc::clone(&state.settings));
    let routes = ROUTES.iter().filter(|route| state.ui.is_some() || !matches!(route.operation, Operation::Ui(_)));
    let handlers = routes.map(|route| {
        let auth = AuthLayer::new(Arc::clone(&authenticator), Arc::clone(&settings), route);
        (route, handler(route.operation).layer(auth))
    });
    assemble(handlers, &layer).with_state(state)
}

/// Routes with their handlers, each inside a request layer that knows its route, and the answers to requests without a handler.
/// The handlers of `GET` answer `HEAD`.
pub(super) fn assemble<S>(
    handlers: impl Iterator<Item = (&'static Route, MethodRouter<S>)>,
    layer: &RequestLayer,
) -> Router<S>
where
    S: Clone + Send + Sync + 'static,
{
    let mut router = Router::new().fallback(no_such_path.layer(layer.clone()));
    let mut paths: Vec<(&Route, Methods<S>)> = Vec::new();
    for (route, handler) in handlers.filter(|(route, _)| route.method != "HEAD") {
        let handler = (route, handler.layer(layer.clone().matched(route.into())));
        match paths.iter_mut().find(|(other, _)| other.pattern == route.pattern) {
            Some((_, methods)) => methods.push(handler),
            None => paths.push((route, vec![handler])),
        }
    }
    for (Route { path, pattern, .. }, methods) in paths {
        let otherwise = no_such_method.layer(layer.clone().matched(MatchedRoute { path, operation: None }));
        let handlers = match methods.iter().all(|(route, _)| webdav_methods::is_own(route.method)) {
            true => methods
                .into_iter()
                .map(|(_, handler)| handler)
                .reduce(MethodRouter::merge)
                .unwrap_or_default()
                .fallback(otherwise),
            false => any(ByMethod::new(methods, any(otherwise))),
        };
        router = router.route(pattern, handlers);
    }
    router
}

fn handler(operation: Operation) -> MethodRouter<AppState> {
    match operation {
        Operation::Acquire => post(locks::acquire),
        Operation::Extend => patch(locks::extend),
        Operation::Release => delete(locks::release),
        Operation::AcquireSet => post(sets::acquire),
        Operation::ExtendSet => patch(sets::extend),
        Operation::ReleaseSet => delete(sets::release),
        Operation::Inspect => get(locks::inspect),
        Operation::CheckFence => get(fences::check),
        Operation::ShowTicket => get(tickets::show),
        Operation::KeepTicket => patch(tickets::keep),
        Operation::EndTicket => delete(tickets::end),
        Operation::TerraformLock => any(terraform::lock),
        Operation::TerraformUnlock => any(terraform::unlock),
        Operation::List => get(list::list),
        Operation::Nodes => get(nodes::nodes),
        Operation::ChangeNode => post(nodes::change),
        Operation::ChangeTerms => post(nodes::change_terms),
        Operation::Events => get(events::events),
        Operation::Hooks => get(hooks::list),
        Operation::TestHook => post(hooks::test),
        Operation::ReplayHook => post(hooks::replay),
        Operation::Live => get(health::live),
        Operation::Ready => get(health::ready),
        Operation::Metrics => get(metrics::metrics).layer(CompressionLayer::new()),
        Operation::OpenApi => get(documents::openapi),
        Operation::ProblemPage => get(documents::problem_page),
        Operation::Root => get(root),
        Operation::Ui(route) => ui::handler(route),
    }
}

/// 404, or 400 for a lock without a name.
async fn no_such_path(request: Request) -> Response {
    let problem = if request.uri().path() == LOCKS_PREFIX {
        Problem::invalid_field("resource", "the resource name is empty; /locks (without the slash) lists")
    } else {
        Problem::new(ProblemKind::NotFound, "no such path; /openapi.yaml lists all paths")
    };
    problem.into_response()
}

/// 405; the router adds `Allow`.
async fn no_such_method(request: Request) -> Response {
    let method = request.method().as_str();
    // A client may send any word as method.
    let shown = if method.len() <= METHOD_SHOWN_MAX_BYTES { method } else { "this method" };
    let detail = format!("{shown} is not allowed here; see the Allow header");
    Problem::new(ProblemKind::MethodNotAllowed, detail).into_response()
}

async fn root() -> Redirect {
    Redirect::temporary("/ui/")
}

#[cfg(test)]
#[path = "router_tests.rs"]
mod tests;
