//! The dashboard's handlers: pages, forms and sessions. [`crate::pages`] renders the pages.

mod forms;
mod hooks;
mod login;
mod pages;
mod queries;
mod take;

use axum::routing::{MethodRouter, get, post};

use super::api::events;
use super::routes::UiRoute;
use super::state::AppState;

/// The handler of a route.
pub(crate) fn handler(route: UiRoute) -> MethodRouter<AppState> {
    match route {
        UiRoute::Home => get(pages::home),
        UiRoute::Locks => get(pages::locks),
        UiRoute::Lock => get(pages::lock),
        UiRoute::AskRevoke => get(forms::confirm_revoke),
        UiRoute::Revoke => post(forms::revoke),
        UiRoute::AskRelease => get(forms::confirm_release),
        UiRoute::Release => post(forms::release),
        UiRoute::AskTake => get(take::ask),
        UiRoute::Take => post(take::take),
        UiRoute::GiveBack => post(take::give_back),
        UiRoute::Waiters => get(pages::waiters),
        UiRoute::Owners => get(pages::owners),
        UiRoute::Timeline => get(pages::timeline),
        UiRoute::Nodes => get(pages::nodes),
        UiRoute::Latency => get(pages::latency),
        UiRoute::Events => get(pages::events),
        UiRoute::Hooks => get(hooks::show),
        UiRoute::TestHook => post(hooks::test),
        UiRoute::ReplayHook => post(hooks::replay),
        UiRoute::Runbooks => get(pages::runbooks),
        UiRoute::Login => get(login::form),
        UiRoute::LogIn => post(login::log_in),
        UiRoute::LogOut => post(login::log_out),
        UiRoute::Stream => get(events::events),
        UiRoute::Asset => get(pages::asset),
    }
}

#[cfg(test)]
mod tests;
