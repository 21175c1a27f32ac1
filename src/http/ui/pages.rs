//! The handlers of pages that only show: read the address, ask the manager, have a view written.
//! None asks a node, but that of one lock, which asks each of them once.

use std::sync::Arc;

use askama::Template;
use axum::extract::{Request, State};
use axum::http::{HeaderValue, StatusCode, Uri, header};
use axum::response::{Html, IntoResponse, Redirect, Response};

use super::queries;
use crate::api::Event;
use crate::auth::rule::Right;
use crate::http::api::problem::Problem;
use crate::http::api::problem_kind::ProblemKind;
use crate::http::middleware::auth::Access;
use crate::http::middleware::host;
use crate::http::state::AppState;
use crate::manager::overview::{ListedWaiter, Overview};
use crate::types::ResourceName;
use crate::views::assets;
use crate::views::events::EventsPage;
use crate::views::latency::LatencyPage;
use crate::views::layout::{Layout, Tab};
use crate::views::lock::{CompletedAction, LockPage};
use crate::views::locks::LocksPage;
use crate::views::nodes::NodesPage;
use crate::views::owners::OwnersPage;
use crate::views::waiters::WaitersPage;

/// Of what has its hash in its name: a year, the most that is honoured.
const FOR_EVER: &str = "public, max-age=31536000, immutable";

/// A page written out. Errors: `internal`, where a template fails.
pub(super) fn html(status: StatusCode, page: &impl Template) -> Result<Response, Problem> {
    match page.render() {
        Ok(text) => Ok((status, Html(text)).into_response()),
        Err(error) => {
            tracing::error!(%error, "a page could not be written");
            Err(Problem::new(ProblemKind::Internal, "the page could not be written"))
        }
    }
}

/// The frame of a page under this address.
pub(super) fn shell(state: &AppState, tab: Tab, title: &str, uri: &Uri) -> Layout {
    let here = uri.path_and_query().map_or("/ui/", |p| p.as_str());
    Layout::new(&state.manager.cluster_status(), tab, title, here).with_open_access(state.settings.is_open_to_others)
}

/// `GET /ui`.
pub async fn home() -> Redirect {
    Redirect::temporary("/ui/")
}

/// `GET /ui/`. Cancel: nothing is left behind.
pub async fn locks(State(state): State<AppState>, request: Request) -> Result<Response, Problem> {
    let query = queries::locks(request.uri())?;
    let frame = shell(&state, Tab::Locks, "Locks", request.uri());
    state.manager.events().follow_cluster();
    let access = Access::of(&request);
    drop(request);
    let (overview, _) = seen_by(&state, &access).await;
    html(StatusCode::OK, &LocksPage::new(frame, &overview, query, state.manager.wall_ms()))
}

/// `GET /ui/locks/{resource}`: 503 where nobody can say who holds it. Cancel: nothing is left behind.
pub async fn lock(State(state): State<AppState>, request: Request) -> Result<Response, Problem> {
    let resource = queries::resource(request.uri(), "/ui/locks/")?;
    let done = CompletedAction::parse(queries::word(request.uri(), "done", &CompletedAction::NAMES)?);
    let frame = shell(&state, Tab::Other, resource.as_str(), request.uri());
    let (base, access) = (base(&state, &request), Access::of(&request));
    drop(request);
    state.manager.events().follow_cluster();
    let seen = Box::pin(state.manager.inspect(&resource)).await;
    let status = if seen.is_ok() { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    let mut past = state.manager.events().recent();
    past.retain(|event| may_hear(&access, event));
    let page = LockPage::new(frame, &resource, seen.as_ref(), &past, done, &base, state.manager.wall_ms());
    html(status, &page)
}

/// The list and the queues, with what the caller may read.
async fn seen_by(state: &AppState, access: &Access) -> (Overview, Vec<ListedWaiter>) {
    let (overview, mut queued) = (Box::pin(state.manager.overview()).await, state.manager.waiters());
    if access.may_all() {
        return (overview, queued);
    }
    let seen = |name: &ResourceName| access.may(Right::Read, name);
    queued.retain(|waiter| seen(&waiter.resource));
    (overview.only(seen, &queued), queued)
}

/// Whether an event is the caller's to hear: as in `GET /events`.
fn may_hear(access: &Access, event: &Event) -> bool {
    match event.resource.as_deref() {
        Some(name) => access.may_text(Right::Events, name),
        None => access.may_somewhere(Right::Metrics),
    }
}

/// What stands before the path in a line to paste. The host was checked by [`super::guard::host`].
fn base(state: &AppState, request: &Request) -> String {
    let is_secure = state.ui.as_ref().is_some_and(|ui| ui.secure_cookies);
    let host = host::host_of(request.headers(), request.uri()).unwrap_or("127.0.0.1:5625");
    format!("{}://{host}", if is_secure { "https" } else { "http" })
}

/// `GET /ui/waiters`.
pub async fn waiters(State(state): State<AppState>, request: Request) -> Result<Response, Problem> {
    let page = queries::pages(request.uri())?;
    let frame = shell(&state, Tab::Waiters, "Waiters", request.uri());
    state.manager.events().follow_cluster();
    let access = Access::of(&request);
    drop(request);
    let (overview, queued) = seen_by(&state, &access).await;
    html(StatusCode::OK, &WaitersPage::new(frame, &overview, &queued, page))
}

/// `GET /ui/owners`.
pub async fn owners(State(state): State<AppState>, request: Request) -> Result<Response, Problem> {
    let page = queries::pages(request.uri())?;
    let frame = shell(&state, Tab::Owners, "Owners", request.uri());
    state.manager.events().follow_cluster();
    let access = Access::of(&request);
    drop(request);
    let (overview, queued) = seen_by(&state, &access).await;
    html(StatusCode::OK, &OwnersPage::new(frame, &overview, &queued, page, state.manager.wall_ms()))
}

/// `GET /ui/nodes`.
pub async fn nodes(State(state): State<AppState>, request: Request) -> Result<Response, Problem> {
    queries::nothing(request.uri())?;
    let frame = shell(&state, Tab::Nodes, "Nodes", request.uri());
    let now = state.manager.now();
    let window = |node: &_| {
        let history = state.ui.as_ref().map(|ui| &ui.node_latencies);
        history.and_then(|h| h.of(node)).map(|series| series.window(now)).unwrap_or_default()
    };
    let vote = state.manager.cluster_status();
    html(StatusCode::OK, &NodesPage::new(frame, &vote, window, state.manager.engine().settings.node_timeout))
}

/// `GET /ui/latency`.
pub async fn latency(State(state): State<AppState>, request: Request) -> Result<Response, Problem> {
    queries::nothing(request.uri())?;
    let frame = shell(&state, Tab::Latency, "Latency", request.uri());
    html(StatusCode::OK, &LatencyPage::new(frame, &state.manager.round_latency()))
}

/// `GET /ui/events`.
pub async fn events(State(state): State<AppState>, request: Request) -> Result<Response, Problem> {
    let query = queries::events(request.uri())?;
    let frame = shell(&state, Tab::Events, "Events", request.uri());
    let hub = Arc::clone(state.manager.events());
    hub.follow_cluster();
    let access = Access::of(&request);
    let mut past = hub.recent();
    past.retain(|event| may_hear(&access, event));
    html(StatusCode::OK, &EventsPage::new(frame, &past, query))
}

/// `GET /ui/static/{file}`. Errors: `not-found`.
pub async fn asset(request: Request) -> Result<Response, Problem> {
    let name = request.uri().path().rsplit('/').next().unwrap_or_default();
    let asset = assets::find(name).ok_or_else(|| Problem::new(ProblemKind::NotFound, "there is no such file"))?;
    let kind = HeaderValue::from_static(asset.media_type);
    let keep = HeaderValue::from_static(FOR_EVER);
    Ok(([(header::CONTENT_TYPE, kind), (header::CACHE_CONTROL, keep)], asset.bytes).into_response())
}
