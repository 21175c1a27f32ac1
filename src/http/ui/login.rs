//! Logging in to the pages with a key, and out again. The cookie is a word that only this instance
//! knows; the API never looks at it. Behind the same guards as every form.

use axum::extract::{Request, State};
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Redirect, Response};

use super::{form_token, pages, queries};
use crate::auth::key::KeyHash;
use crate::auth::principals::Credential;
use crate::auth::session::{SESSION_LIFE, SessionToken};
use crate::http::api::extract::{self, Patch};
use crate::http::api::problem::Problem;
use crate::http::api::problem_kind::ProblemKind;
use crate::http::middleware::audit::AuditScope;
use crate::http::middleware::auth::Access;
use crate::http::state::AppState;
use crate::redlock::entropy::SystemEntropy;
use crate::views::login::LoginPage;

/// The session's cookie.
pub const COOKIE: &str = "redlockd_session";
/// Where one logs in.
const HERE: &str = "/ui/login";
/// Where one goes from there.
const PAGES: &str = "/ui/";

/// The word that the browser brings.
pub fn session_word(headers: &HeaderMap) -> Option<&str> {
    let values = headers.get_all(header::COOKIE).iter().filter_map(|v| v.to_str().ok());
    let mut pairs = values.flat_map(|v| v.split(';')).filter_map(|pair| pair.trim().split_once('='));
    pairs.find(|(name, _)| *name == COOKIE).map(|(_, word)| word)
}

/// `GET /ui/login`.
pub async fn ask(State(state): State<AppState>, request: Request) -> Result<Response, Problem> {
    if state.gate.is_open() {
        return Ok(Redirect::to(PAGES).into_response());
    }
    queries::nothing(request.uri())?;
    let who = Access::of(&request).principal().map(str::to_owned);
    page(&state, request.headers(), who, false)
}

fn page(state: &AppState, headers: &HeaderMap, who: Option<String>, has_failed: bool) -> Result<Response, Problem> {
    let token = form_token::issue(headers, is_secure(state));
    let page = LoginPage { token: token.text, principal: who.unwrap_or_default(), has_failed };
    let mut response = pages::html(if has_failed { StatusCode::FORBIDDEN } else { StatusCode::OK }, &page)?;
    if let Some(cookie) = token.cookie {
        response.headers_mut().insert(header::SET_COOKIE, cookie);
    }
    Ok(response)
}

fn is_secure(state: &AppState) -> bool {
    state.ui.as_ref().is_some_and(|ui| ui.secure_cookies)
}

/// `POST /ui/login`. Errors: `forbidden` for a form that was not ours.
pub async fn log_in(State(state): State<AppState>, request: Request) -> Result<Response, Problem> {
    let audit_scope = AuditScope::of(&request);
    let (parts, mut fields) = extract::fields(request, &state.settings, Patch::No).await?;
    let mut field = |name: &str| fields.text(name).unwrap_or_default();
    let (token, key) = (field(form_token::NAME), field("key"));
    fields.finish(&[form_token::NAME, "key"])?;
    check_token(&parts.headers, &token)?;
    let key = key.trim().as_bytes();
    let Ok(principal) = state.gate.identify(&Credential::Key(key), state.manager.wall_ms()) else {
        return page(&state, &parts.headers, None, true);
    };
    audit_scope.name(principal.name.as_str());
    let word = state.gate.sessions().begin(&principal, KeyHash::of(key), state.manager.now(), &SystemEntropy);
    Ok(with_cookie(Redirect::to(PAGES), &word, SESSION_LIFE.as_secs(), is_secure(&state)))
}

/// `POST /ui/logout`. Errors: `forbidden` for a form that was not ours.
pub async fn log_out(State(state): State<AppState>, request: Request) -> Result<Response, Problem> {
    let (parts, mut fields) = extract::fields(request, &state.settings, Patch::No).await?;
    let token = fields.text(form_token::NAME).unwrap_or_default();
    fields.finish(&[form_token::NAME])?;
    check_token(&parts.headers, &token)?;
    if let Some(word) = session_word(&parts.headers) {
        state.gate.sessions().end(word);
    }
    Ok(with_cookie(Redirect::to(HERE), &SessionToken::default(), 0, is_secure(&state)))
}

fn check_token(headers: &HeaderMap, token: &str) -> Result<(), Problem> {
    if form_token::matches(headers, token) {
        return Ok(());
    }
    let detail = "this form is not one that this browser was given (are cookies off?); nothing was done";
    Err(Problem::new(ProblemKind::Forbidden, detail))
}

fn with_cookie(to: Redirect, word: &SessionToken, seconds: u64, is_secure: bool) -> Response {
    let secure = if is_secure { "; Secure" } else { "" };
    let word = word.reveal();
    let cookie = format!("{COOKIE}={word}; Path=/ui/; HttpOnly; SameSite=Strict; Max-Age={seconds}{secure}");
    let mut response = to.into_response();
    if let Ok(mut value) = HeaderValue::try_from(cookie) {
        value.set_sensitive(true);
        response.headers_mut().insert(header::SET_COOKIE, value);
    }
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_word_is_found_among_other_cookies() {
        let headers = |cookie: &str| {
            let mut headers = HeaderMap::new();
            headers.insert(header::COOKIE, cookie.parse().expect("a value"));
            headers
        };
        assert_eq!(session_word(&headers("a=b; redlockd_session=xyz; c=d")), Some("xyz"));
        assert_eq!(session_word(&headers("xredlockd_session=xyz")), None);
        assert_eq!(session_word(&HeaderMap::new()), None);
    }
}
