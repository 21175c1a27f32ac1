//! A problem as an HTML page. Standalone, without navigation: reading the data for the layout may have failed.

use askama::Template;

use super::assets::{self, Assets};
use super::format;
use crate::api::ProblemDetails;

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

#[derive(Template)]
#[template(path = "problem_page.html")]
struct ProblemPage<'a> {
    title: &'a str,
    word: &'a str,
    status: u16,
    paragraphs: Vec<&'a str>,
}

impl ProblemPage<'_> {
    fn assets(&self) -> &'static Assets {
        assets::all()
    }
}

/// Renders the meaning of a kind of problem. `text`: without its heading. Errors: those of the template.
pub(crate) fn meaning(title: &str, word: &str, status: u16, text: &str) -> Result<String, askama::Error> {
    ProblemPage { title, word, status, paragraphs: text.split("\n\n").collect() }.render()
}

/// Renders the page. `is_open`: see [`super::layout::Layout::is_open`]. Errors: those of the template.
pub(crate) fn page(problem: &ProblemDetails, is_open: bool) -> Result<String, askama::Error> {
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
