//! Logging in to the pages with a key, and out again. The API never reads the session cookie. The origin check refuses forms of other sites, as for every state-changing request.

use axum::extract::{Request, State};
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Redirect, Response};

use super::{pages, queries};
use crate::auth::api_key::KeyHash;
use crate::auth::principals::Credential;
use crate::auth::session::{SESSION_LIFE, SessionToken};
use crate::http::api::request_body::{self, MergePatch};
use crate::http::middleware::audit::AuditScope;
use crate::http::middleware::client_address::is_https;
use crate::http::middleware::credentials::{SESSION_COOKIE, session_tokens};
use crate::http::path::{HOME, LOGIN, is_page};
use crate::http::problem::Problem;
use crate::http::request_context::RequestContext;
use crate::http::state::AppState;
use crate::pages::login::LoginPage;
use crate::redlock::random::SystemEntropy;

pub(super) async fn form(State(state): State<AppState>, request: Request) -> Result<Response, Problem> {
    if state.authenticator.is_open() {
        return Ok(Redirect::to(HOME).into_response());
    }
    queries::nothing(request.uri())?;
    let principal = RequestContext::access(&request).principal().map(|p| p.name.to_string()).unwrap_or_default();
    pages::html(StatusCode::OK, &LoginPage { principal, ..LoginPage::default() })
}

/// `POST /ui/login`: 403 with the form for an unknown key.
pub(super) async fn log_in(State(state): State<AppState>, request: Request) -> Result<Response, Problem> {
    let (audit_scope, is_secure) = (AuditScope::of(&request), is_https(&request, &state.settings.trusted_proxies));
    // URLs are logged: no key in one is accepted.
    queries::nothing(request.uri())?;
    let (_, mut fields) = request_body::fields(request, &state.settings, MergePatch::Refused).await?;
    let (key, next) = (fields.text("key").unwrap_or_default(), fields.text("next").unwrap_or_default());
    fields.finish(&["key", "next"])?;
    let next = if is_page(&next) { next } else { HOME.to_owned() };
    let key = key.trim().as_bytes();
    // A session is bound to a key of the access file; a token has none.
    let Ok(principal) = state.authenticator.store().identify(&Credential::Key(key), state.manager.wall_ms()) else {
        return pages::html(StatusCode::FORBIDDEN, &LoginPage { has_failed: true, next, ..LoginPage::default() });
    };
    audit_scope.name(principal.name.as_str());
    let sessions = state.authenticator.sessions();
    let token = sessions.begin(&principal, &KeyHash::of(key), state.manager.wall_ms(), &SystemEntropy);
    Ok(redirect_with_cookie(&next, &token, SESSION_LIFE.as_secs(), is_secure))
}

/// `POST /ui/logout`.
pub(super) async fn log_out(State(state): State<AppState>, request: Request) -> Result<Response, Problem> {
    let is_secure = is_https(&request, &state.settings.trusted_proxies);
    let (parts, fields) = request_body::fields(request, &state.settings, MergePatch::Refused).await?;
    fields.finish(&[])?;
    for token in session_tokens(&parts.headers) {
        state.authenticator.sessions().end(token, state.manager.wall_ms());
    }
    Ok(redirect_with_cookie(LOGIN, &SessionToken::default(), 0, is_secure))
}

fn redirect_with_cookie(location: &str, token: &SessionToken, max_age_s: u64, is_secure: bool) -> Response {
    let secure = if is_secure { "; Secure" } else { "" };
    let token = token.reveal();
    let cookie = format!("{SESSION_COOKIE}={token}; Path=/ui/; HttpOnly; SameSite=Strict; Max-Age={max_age_s}{secure}");
    let mut response = Redirect::to(location).into_response();
    if let Ok(mut value) = HeaderValue::try_from(cookie) {
        value.set_sensitive(true);
        response.headers_mut().insert(header::SET_COOKIE, value);
    }
    response
}
