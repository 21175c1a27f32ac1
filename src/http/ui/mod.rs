//! The dashboard's door: which handler serves which page, and what stands before all of them. Pages
//! are made by [`crate::views`]; here are requests, forms and guards. Knows the manager's words, and
//! no template.

pub mod form_token;
pub mod forms;
pub mod guard;
pub mod html_response;
pub mod login;
pub mod pages;
pub mod queries;

use std::sync::Arc;

use axum::Router;
use axum::middleware::{from_fn, from_fn_with_state};
use axum::routing::{MethodRouter, get, post};

use super::api::events;
use super::routes::{Operation, ROUTES, UiRoute};
use super::state::{AppState, HttpSettings};

/// All pages and what they are made of, behind their guards.
pub fn router(settings: &Arc<HttpSettings>) -> Router<AppState> {
    let (mut pages, mut assets) = (Router::new(), Router::new());
    for route in &ROUTES {
        match route.operation {
            Operation::Ui(UiRoute::Asset) => assets = assets.route(route.pattern, get(pages::asset)),
            Operation::Ui(part) => pages = pages.route(route.pattern, handler(part)),
            _ => {}
        }
    }
    let host = from_fn_with_state(Arc::clone(settings), guard::host);
    guarded(pages).merge(assets).layer(host)
}

/// What stands before every page and form, outermost first, behind the check of the host. Style and
/// script are no secret: a log-in page needs them too.
fn guarded<S: Clone + Send + Sync + 'static>(pages: Router<S>) -> Router<S> {
    pages.layer((
        // Who may see what was decided before, by `http::auth`, as for every other route.
        from_fn(guard::same_origin),
    ))
}

fn handler(part: UiRoute) -> MethodRouter<AppState> {
    match part {
        UiRoute::Home => get(pages::home),
        UiRoute::Locks => get(pages::locks),
        UiRoute::Lock => get(pages::lock),
        UiRoute::AskRevoke => get(forms::ask_revoke),
        UiRoute::Revoke => post(forms::revoke),
        UiRoute::AskRelease => get(forms::ask_release),
        UiRoute::Release => post(forms::release),
        UiRoute::Waiters => get(pages::waiters),
        UiRoute::Owners => get(pages::owners),
        UiRoute::Nodes => get(pages::nodes),
        UiRoute::Latency => get(pages::latency),
        UiRoute::Events => get(pages::events),
        UiRoute::Login => get(login::ask),
        UiRoute::LogIn => post(login::log_in),
        UiRoute::LogOut => post(login::log_out),
        UiRoute::Stream => get(events::events),
        UiRoute::Asset => get(pages::asset),
    }
}

#[cfg(test)]
mod tests;
