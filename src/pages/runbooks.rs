//! The page of the runbooks: `docs/runbooks.md`, rendered once, so that an operator needs no other document during an incident.

use std::sync::OnceLock;

use askama::Template;
use pulldown_cmark::{Event, Options, Parser, Tag, TagEnd, html};

use super::layout::Layout;

const TEXT: &str = include_str!("../../docs/runbooks.md");

#[derive(Debug, Template)]
#[template(path = "runbooks.html")]
pub(crate) struct RunbooksPage {
    layout: Layout,
    /// Rendered from a text of the program itself, so it is not escaped.
    html: &'static str,
}

impl RunbooksPage {
    /// The page with all sections.
    pub(crate) fn new(layout: Layout) -> Self {
        static HTML: OnceLock<String> = OnceLock::new();
        Self { layout, html: HTML.get_or_init(|| rendered(TEXT)) }
    }
}

/// Headings get the anchors that links to the document use; links to other documents, which are not served, are left out.
fn rendered(text: &str) -> String {
    let mut events: Vec<Event<'_>> = Parser::new_ext(text, Options::ENABLE_TABLES).collect();
    let mut heading: Option<(usize, String)> = None;
    for i in 0..events.len() {
        match &events[i] {
            Event::Start(Tag::Heading { .. }) => heading = Some((i, String::new())),
            Event::Text(part) | Event::Code(part) => heading.iter_mut().for_each(|(_, text)| text.push_str(part)),
            Event::End(TagEnd::Heading(_)) => {
                if let Some((start, text)) = heading.take()
                    && let Event::Start(Tag::Heading { id, .. }) = &mut events[start]
                {
                    *id = Some(anchor(&text).into());
                }
            }
            _ => {}
        }
    }
    let mut leads_elsewhere = false;
    let kept = events.into_iter().filter(|event| match event {
        Event::Start(Tag::Link { dest_url, .. }) => {
            leads_elsewhere = !dest_url.starts_with('#');
            !leads_elsewhere
        }
        Event::End(TagEnd::Link) => !leads_elsewhere,
        _ => true,
    });
    let mut page = String::with_capacity(text.len() * 2);
    html::push_html(&mut page, kept);
    page
}

/// The anchor of a heading, as on the pages that show such documents.
fn anchor(heading: &str) -> String {
    let kept = heading.chars().filter(|c| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_'));
    kept.map(|c| if c == ' ' { '-' } else { c.to_ascii_lowercase() }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_section_has_its_anchor_and_no_link_leads_to_a_document_that_is_not_served() {
        let page = rendered(TEXT);
        let sections = TEXT.lines().filter_map(|line| line.strip_prefix("## "));
        let sections: Vec<String> = sections.map(anchor).collect();
        assert!(sections.len() > 30, "{sections:?}");
        for section in sections {
            assert!(page.contains(&format!("<h2 id=\"{section}\">")), "{section}");
        }
        assert!(!page.contains(".md\"") && page.contains("<table>"), "{page}");
        assert_eq!(anchor("Where to look, and `when`"), "where-to-look-and-when");
    }
}
