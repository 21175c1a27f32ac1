//! The handlers of pages that show state. Only the page of one lock queries nodes, each node once; the others show the manager's
//! data.

use std::sync::Arc;

use askama::Template;
use axum::extract::{Request, State};
use axum::http::{HeaderValue, StatusCode, Uri, header};
use axum::response::{Html, IntoResponse, Redirect, Response};

use super::queries;
use crate::api::Event;
use crate::auth::access_rule::Right;
use crate::http::access::Access;
use crate::http::allowed_hosts::host_of;
use crate::http::middleware::auth::Requirement;
use crate::http::middleware::client_address::is_https;
use crate::http::path;
use crate::http::problem::Problem;
use crate::http::problem_kind::ProblemKind;
use crate::http::request_context::RequestContext;
use crate::http::routes::{Operation, UiRoute};
use crate::http::state::AppState;
use crate::manager::overview::{ListedWaiter, Overview};
use crate::manager::types::{CycleEdge, Deadlock, Inspection};
use crate::pages::activity::HourSection;
use crate::pages::assets;
use crate::pages::events::EventsPage;
use crate::pages::history::HOUR_MS;
use crate::pages::latency::LatencyPage;
use crate::pages::layout::{Layout, Tab, Viewer};
use crate::pages::lock::{CompletedAction, LockPage};
use crate::pages::locks::LocksPage;
use crate::pages::nodes::NodesPage;
use crate::pages::owners::OwnersPage;
use crate::pages::runbooks::RunbooksPage;
use crate::pages::table_query::{OWNERS, WAITERS};
use crate::pages::timeline::TimelinePage;
use crate::pages::wait_graph::WaitGraph;
use crate::pages::waiters::{WaitersPage, deadlock_rows};
use crate::types::ResourceName;

/// `Cache-Control` of assets, whose names contain a hash. A year is the maximum that caches honour.
const IMMUTABLE: &str = "public, max-age=31536000, immutable";

/// Renders a page. Errors: `internal`, if its template fails.
pub(super) fn html(status: StatusCode, page: &impl Template) -> Result<Response, Problem> {
    match page.render() {
        Ok(text) => Ok((status, Html(text)).into_response()),
        Err(error) => {
            tracing::error!(%error, "a page could not be rendered");
            Err(Problem::new(ProblemKind::Internal, "the page could not be rendered"))
        }
    }
}

/// The navigation and status around a page, for this client.
pub(super) fn layout(state: &AppState, tab: Tab, title: &str, uri: &Uri, access: &Access) -> Layout {
    let address = uri.path_and_query().map_or("/ui/", |p| p.as_str());
    let layout = Layout::new(&state.manager.cluster_status(), tab, title, address);
    let pages = [
        (Tab::Locks, UiRoute::Locks),
        (Tab::Waiters, UiRoute::Waiters),
        (Tab::Owners, UiRoute::Owners),
        (Tab::Timeline, UiRoute::Timeline),
        (Tab::Nodes, UiRoute::Nodes),
        (Tab::Latency, UiRoute::Latency),
        (Tab::Events, UiRoute::Events),
        (Tab::Hooks, UiRoute::Hooks),
    ];
    let is_refused = |page| match Requirement::of(Operation::Ui(page)) {
        Requirement::Somewhere(right) => !access.may_somewhere(right),
        _ => false,
    };
    let refused = pages.into_iter().filter(|(_, page)| is_refused(*page)).map(|(tab, _)| tab).collect();
    let principal = access.principal().map(|principal| principal.name.to_string()).unwrap_or_default();
    let hooks_off = state.webhooks.totals().off;
    let is_shown = |deadlock: &Deadlock| deadlock.cycle.iter().any(|edge| access.may(Right::Read, &edge.waits_for));
    layout
        .with_deadlock(state.manager.deadlocks().iter().any(is_shown))
        .with_open_access(state.settings.is_open_to_others)
        .with_owner_url(&state.settings.owner_url)
        .with_rejected(&state.manager.rejected_files())
        .with_hooks_off(hooks_off)
        .for_viewer(Viewer { principal, refused, sees_part: !access.may_all() })
}

pub(super) async fn home() -> Redirect {
    Redirect::temporary("/ui/")
}

/// `GET /ui/`. Cancel: nothing is left behind.
pub(super) async fn locks(State(state): State<AppState>, request: Request) -> Result<Response, Problem> {
    let query = queries::locks(request.uri())?;
    let access = RequestContext::access(&request);
    let layout = layout(&state, Tab::Locks, "Locks", request.uri(), &access);
    state.manager.events().follow_cluster();
    drop(request);
    let (overview, waiters) = visible_to(&state, &access).await;
    let (is_home, wall_ms) = (LocksPage::is_home(&query), state.manager.wall_ms());
    let mut page = LocksPage::new(layout, &overview, query, wall_ms);
    if is_home {
        let _permit = state.history_limit.take(access.principal()).await;
        let (hour, may_read) = (state.manager.hour(), |name: &ResourceName| access.may(Right::Read, name));
        let hour = HourSection::new(&hour, &overview, may_read, access.may_all(), wall_ms);
        let hour = hour.with_incidents(&visible_events(&state, &access), &state.manager.standstills(), wall_ms);
        let may_read = |edge: &CycleEdge| access.may(Right::Read, &edge.waits_for);
        let deadlocks = deadlock_rows(&state.manager.deadlocks(), may_read, &waiters, wall_ms);
        page = page.with_hour(hour, WaitGraph::new(&overview, &waiters)).with_deadlocks(deadlocks);
    }
    html(StatusCode::OK, &page)
}

/// `GET /ui/timeline`.
pub(super) async fn timeline(State(state): State<AppState>, request: Request) -> Result<Response, Problem> {
    let query = queries::timeline(request.uri())?;
    let access = RequestContext::access(&request);
    let layout = layout(&state, Tab::Timeline, "Timeline", request.uri(), &access);
    state.manager.events().follow_cluster();
    drop(request);
    let (overview, waiters) = visible_to(&state, &access).await;
    let _permit = state.history_limit.take(access.principal()).await;
    let (events, wall_ms) = (visible_events(&state, &access), state.manager.wall_ms());
    let may_read = |name: &str| name.starts_with(&query.prefix) && access.may_text(Right::Events, name);
    let tenures = state.manager.tenures(query.period.begins_before(wall_ms), may_read);
    html(StatusCode::OK, &TimelinePage::new(layout, query, &overview, &waiters, (&tenures, &events), wall_ms))
}

/// `GET /ui/locks/{resource}`: 503 if too few nodes answer to determine the holder. Cancel: nothing is left behind.
pub(super) async fn lock(State(state): State<AppState>, request: Request) -> Result<Response, Problem> {
    let resource = path::resource_after(request.uri(), "/ui/locks/")?;
    let done = CompletedAction::parse(queries::word(request.uri(), "done", &CompletedAction::NAMES)?);
    let (base, access) = (base_url(&state, &request), RequestContext::access(&request));
    let layout = layout(&state, Tab::Other, resource.as_str(), request.uri(), &access);
    drop(request);
    state.manager.events().follow_cluster();
    let inspection = Box::pin(state.manager.inspect(&resource)).await;
    let status = if inspection.is_ok() { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    let _permit = state.history_limit.take(access.principal()).await;
    let past = visible_events(&state, &access);
    let wall_ms = state.manager.wall_ms();
    let may_see = |name: &str| name == resource.as_str() && access.may_text(Right::Events, name);
    let past = (&state.manager.tenures(wall_ms.saturating_sub(HOUR_MS), may_see), past.as_slice());
    let page = LockPage::new(layout, &resource, inspection.as_ref(), past, done, &base, wall_ms);
    let holders = inspection.as_ref().map(Inspection::holders).unwrap_or_default();
    let page = page.naming_principals(|principal| principal_name(&state, principal));
    let page = page.with_tickets(&state.manager.listed_tickets());
    let has_taken = holders.iter().any(|holder| state.manager.has_taken(&holder.labels, access.principal()));
    let (may_end, may_acquire) = (access.may(Right::Force, &resource), access.may(Right::Acquire, &resource));
    html(status, &page.for_viewer(may_end, may_acquire, has_taken))
}

/// The principal's name for a hash from the nodes, if the access file has it.
pub(super) fn principal_name(state: &AppState, hash: &str) -> Option<String> {
    let store = state.authenticator.store();
    let mut names = store.principals().iter().map(|known| &known.name);
    names.find(|name| state.manager.is_for(hash, name)).map(ToString::to_string)
}

/// The locks and the waiters that the client may read.
async fn visible_to(state: &AppState, access: &Access) -> (Overview, Vec<ListedWaiter>) {
    let (overview, mut waiters) = (Box::pin(state.manager.overview()).await, state.manager.waiters());
    if access.may_all() {
        return (overview, waiters);
    }
    let may_read = |name: &ResourceName| access.may(Right::Read, name);
    waiters.retain(|waiter| may_read(&waiter.resource));
    (overview.only(may_read, &waiters), waiters)
}

/// The kept events that the client may read. Pages made from them take long too, so one is made at a time, see
/// [`crate::http::history_limit`].
fn visible_events(state: &AppState, access: &Access) -> Vec<Arc<Event>> {
    state.manager.events().past().iter().filter_map(|event| access.visible(event)).collect()
}

/// Scheme and host for the curl commands of a page. The host was checked by the authentication layer.
fn base_url(state: &AppState, request: &Request) -> String {
    let is_secure = is_https(request, &state.settings.trusted_proxies);
    let host = host_of(request.headers(), request.uri()).unwrap_or("127.0.0.1:5625");
    format!("{}://{host}", if is_secure { "https" } else { "http" })
}

/// `GET /ui/waiters`.
pub(super) async fn waiters(State(state): State<AppState>, request: Request) -> Result<Response, Problem> {
    let query = queries::table(request.uri(), WAITERS)?;
    let access = RequestContext::access(&request);
    let layout = layout(&state, Tab::Waiters, "Waiters", request.uri(), &access);
    state.manager.events().follow_cluster();
    drop(request);
    let (overview, waiters) = visible_to(&state, &access).await;
    let may_read = |edge: &CycleEdge| access.may(Right::Read, &edge.waits_for);
    let (deadlocks, wall_ms) = (state.manager.deadlocks(), state.manager.wall_ms());
    let mut tickets = state.manager.listed_tickets();
    tickets.retain(|ticket| access.may(Right::Read, &ticket.resource));
    let page = WaitersPage::new(layout, &overview, &waiters, query, &deadlocks, may_read, wall_ms);
    html(StatusCode::OK, &page.with_tickets(&tickets))
}

/// `GET /ui/owners`.
pub(super) async fn owners(State(state): State<AppState>, request: Request) -> Result<Response, Problem> {
    let query = queries::table(request.uri(), OWNERS)?;
    let access = RequestContext::access(&request);
    let layout = layout(&state, Tab::Owners, "Owners", request.uri(), &access);
    state.manager.events().follow_cluster();
    drop(request);
    let (overview, waiters) = visible_to(&state, &access).await;
    html(StatusCode::OK, &OwnersPage::new(layout, &overview, &waiters, query, state.manager.wall_ms()))
}

pub(super) async fn nodes(State(state): State<AppState>, request: Request) -> Result<Response, Problem> {
    queries::nothing(request.uri())?;
    let layout = layout(&state, Tab::Nodes, "Nodes", request.uri(), &RequestContext::access(&request));
    let now = state.manager.now();
    let window = |node: &_| {
        let history = state.ui.as_ref().map(|ui| &ui.node_latencies);
        history.and_then(|h| h.of(node)).map(|series| series.window(now)).unwrap_or_default()
    };
    let vote = state.manager.cluster_status();
    let (node_timeout, wall_ms) = (state.manager.node_timeout(), state.manager.wall_ms());
    html(StatusCode::OK, &NodesPage::new(layout, &vote, window, node_timeout, wall_ms))
}

/// `GET /ui/runbooks`.
pub(super) async fn runbooks(State(state): State<AppState>, request: Request) -> Result<Response, Problem> {
    queries::nothing(request.uri())?;
    let layout = layout(&state, Tab::Other, "Runbooks", request.uri(), &RequestContext::access(&request));
    html(StatusCode::OK, &RunbooksPage::new(layout.without_refresh()))
}

/// `GET /ui/latency`.
pub(super) async fn latency(State(state): State<AppState>, request: Request) -> Result<Response, Problem> {
    queries::nothing(request.uri())?;
    let layout = layout(&state, Tab::Latency, "Latency", request.uri(), &RequestContext::access(&request));
    let now = state.manager.now();
    let nodes: Vec<_> = state.ui.iter().flat_map(|ui| ui.node_latencies.windows(now)).collect();
    let (all, each) = state.manager.round_latency();
    let node_timeout = state.manager.node_timeout();
    html(StatusCode::OK, &LatencyPage::new(layout, &all, &each, &nodes, node_timeout))
}

/// `GET /ui/events`.
pub(super) async fn events(State(state): State<AppState>, request: Request) -> Result<Response, Problem> {
    let (filter, query) = queries::events(request.uri(), state.manager.wall_ms())?;
    let access = RequestContext::access(&request);
    let layout = layout(&state, Tab::Events, "Events", request.uri(), &access);
    state.manager.events().follow_cluster();
    drop(request);
    let _permit = state.history_limit.take(access.principal()).await;
    let matching: Vec<_> = visible_events(&state, &access).into_iter().filter(|event| filter.matches(event)).collect();
    let mut gaps = state.manager.events().gaps(state.manager.wall_ms());
    gaps.retain(|gap| filter.reaches(gap));
    html(StatusCode::OK, &EventsPage::new(layout, &matching, &gaps, query))
}

/// `GET /ui/static/{file}`. Errors: `not-found`.
pub(super) async fn asset(request: Request) -> Result<Response, Problem> {
    let name = request.uri().path().rsplit('/').next().unwrap_or_default();
    let asset = assets::find(name).ok_or_else(|| Problem::new(ProblemKind::NotFound, "there is no such file"))?;
    let kind = HeaderValue::from_static(asset.media_type);
    let keep = HeaderValue::from_static(IMMUTABLE);
    Ok(([(header::CONTENT_TYPE, kind), (header::CACHE_CONTROL, keep)], asset.bytes).into_response())
}
