//! A problem as a page, for those who read with their eyes. Without a frame: whatever failed may
//! have been what the frame is made of. Knows no request.

use askama::Template;

use super::assets::{self, Assets};
use super::format;
use crate::api::Problem;

#[derive(Template)]
#[template(path = "error_page.html")]
struct ErrorPage<'a> {
    title: &'a str,
    status: u16,
    detail: String,
    kind: &'a str,
    instance: &'a str,
    nodes: Vec<(String, String)>,
    is_open: bool,
}

impl ErrorPage<'_> {
    fn assets(&self) -> &'static Assets {
        assets::all()
    }
}

/// The page; `is_open` as in [`super::layout::Layout::is_open`]. Errors: the template's own, which cannot be helped.
pub fn page(problem: &Problem, is_open: bool) -> Result<String, askama::Error> {
    let nodes = problem.members.nodes.as_deref().unwrap_or_default();
    let page = ErrorPage {
        title: &problem.title,
        status: problem.status,
        detail: format::visible(&problem.detail),
        kind: &problem.kind,
        instance: &problem.instance,
        nodes: nodes.iter().map(|n| (n.node.clone(), n.outcome.clone())).collect(),
        is_open,
    };
    page.render()
}
