//! The handlers of `/openapi.yaml` and `/problems/{slug}`.

use axum::extract::Request;
use axum::http::{StatusCode, header};
use axum::response::{Html, IntoResponse, Response};

use super::lock_responses;
use crate::http::middleware::html_response::accepts_html;
use crate::http::problem::Problem;
use crate::http::problem_kind::ProblemKind;
use crate::pages::error_page;

/// The API contract, as it is served.
pub(crate) const OPENAPI: &str = include_str!("../../../openapi.yaml");

/// `GET /openapi.yaml`.
pub(crate) async fn openapi() -> Response {
    (StatusCode::OK, [(header::CONTENT_TYPE, "application/yaml")], OPENAPI).into_response()
}

/// `GET /problems/{slug}`. Errors: `not-found`.
pub(crate) async fn problem_page(request: Request) -> Result<Response, Problem> {
    let name = request.uri().path().rsplit('/').next().unwrap_or_default();
    let kind = ProblemKind::parse(name)
        .ok_or_else(|| Problem::new(ProblemKind::NotFound, "there is no problem with this name"))?;
    if !accepts_html(request.headers()) {
        return Ok(lock_responses::text(StatusCode::OK, kind.page()));
    }
    let text = kind.page();
    let meaning = text.splitn(3, "\n\n").nth(2).unwrap_or_default().trim_end();
    let page = error_page::meaning(kind.title(), kind.as_str(), kind.status().as_u16(), meaning);
    Ok(page.map_or_else(|_| lock_responses::text(StatusCode::OK, text.clone()), |html| Html(html).into_response()))
}

#[cfg(test)]
mod tests {
    use axum::body::Body;
    use http_body_util::BodyExt;

    use super::*;

    fn request(uri: &str) -> Request {
        Request::builder().uri(uri).body(Body::empty()).expect("a request")
    }

    #[tokio::test]
    async fn every_problem_has_a_page() {
        for kind in ProblemKind::all() {
            let page = problem_page(request(&format!("/problems/{}", kind.as_str()))).await.expect("found");
            let bytes = page.into_body().collect().await.expect("a body").to_bytes();
            let text = String::from_utf8(bytes.to_vec()).expect("UTF-8");
            assert!(text.contains(kind.as_str()) && text.contains(kind.status().as_str()), "{text}");
        }
        for path in ["/problems/none", "/problems/%FF", "/problems/"] {
            assert_eq!(problem_page(request(path)).await.expect_err(path).kind(), ProblemKind::NotFound);
        }
    }

    #[tokio::test]
    async fn a_browser_gets_a_page_with_a_title() {
        let mut asked = request("/problems/locked");
        asked.headers_mut().insert(header::ACCEPT, header::HeaderValue::from_static("text/html,*/*;q=0.8"));
        let page = problem_page(asked).await.expect("found");
        assert!(page.headers()[header::CONTENT_TYPE].to_str().is_ok_and(|kind| kind.starts_with("text/html")));
        let bytes = page.into_body().collect().await.expect("a body").to_bytes();
        let text = String::from_utf8(bytes.to_vec()).expect("UTF-8");
        assert!(text.contains("<title>Locked") && !text.contains('`'), "{text}");
    }

    #[tokio::test]
    async fn the_contract_is_served() {
        let response = openapi().await;
        assert_eq!(response.headers()[header::CONTENT_TYPE], "application/yaml");
        assert_eq!(response.into_body().collect().await.expect("a body").to_bytes(), OPENAPI.as_bytes());
    }
}
