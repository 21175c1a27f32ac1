//! What happened: the remembered events, newest first, filtered; and their rows on other pages.
//! Knows no request.

use std::sync::Arc;

use askama::Template;

use super::badges::{Badge, Severity, badge};
use super::format;
use super::layout::Layout;
use super::paging::Paging;
use crate::api::Event;

/// What can be filtered by, with what it is called.
pub const KINDS: [(&str, &str); 8] = [
    ("acquired", "acquired"),
    ("released", "released"),
    ("expired", "ran out"),
    ("forced", "ended by an operator"),
    ("lost", "lost"),
    ("node_down", "node down"),
    ("node_up", "node up"),
    ("quarantined", "node without a vote"),
];

/// What is to be shown.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct EventsQuery {
    /// One of [`KINDS`], or empty for all.
    pub kind: &'static str,
    /// Of resources that begin so.
    pub prefix: String,
    /// From 1.
    pub page: usize,
}

impl EventsQuery {
    fn link(&self) -> String {
        let mut link = String::from("/ui/events?");
        if !self.kind.is_empty() {
            link.push_str(&format!("kind={}&", self.kind));
        }
        if !self.prefix.is_empty() {
            link.push_str(&format!("prefix={}&", format::query(&self.prefix)));
        }
        link.pop();
        link
    }

    /// Whether only this kind is shown.
    pub fn is_of(&self, kind: &str) -> bool {
        self.kind == kind
    }

    fn fits(&self, event: &Event) -> bool {
        let name = event.resource.as_deref().unwrap_or_default();
        (self.kind.is_empty() || self.kind == event.event) && name.starts_with(&self.prefix)
    }

    /// Whether anything is left out.
    pub fn is_filtered(&self) -> bool {
        *self != Self { page: self.page, ..Self::default() }
    }
}

/// One event.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EventRow {
    /// When, for `datetime`.
    pub stamp: String,
    /// When, for people.
    pub moment: String,
    /// What.
    pub kind: Badge,
    /// Of which resource; empty for nodes.
    pub resource: String,
    /// Of which node; empty for resources.
    pub node: String,
    /// Who the holder said it is, made visible; empty where the event does not say.
    pub owner: String,
    /// Fence, token id, reason: what else there is.
    pub details: String,
}

/// One event's row.
pub fn row(event: &Event) -> EventRow {
    let word = KINDS.iter().find(|(kind, _)| *kind == event.event).map_or(event.event.as_str(), |(_, word)| word);
    let (word, severity) = match (event.event.as_str(), event.reason.as_deref()) {
        ("forced", Some("now")) => ("released by an operator", Severity::Bad),
        ("forced", _) => ("revoked by an operator", Severity::Warn),
        ("lost" | "node_down", _) => (word, Severity::Bad),
        ("expired" | "quarantined", _) => (word, Severity::Warn),
        ("acquired" | "node_up", _) => (word, Severity::Good),
        _ => (word, Severity::Neutral),
    };
    let mut details = Vec::new();
    if let Some(fence) = event.fence {
        details.push(format!("fence {fence}"));
    }
    if let Some(id) = &event.token_id {
        details.push(format!("lease {}", format::visible(id)));
    }
    if let Some(reason) = event.reason.as_deref().filter(|_| event.event != "forced") {
        details.push(format::visible(reason));
    }
    EventRow {
        stamp: format::stamp(event.at_ms),
        moment: format::moment(event.at_ms),
        kind: badge(word, severity),
        resource: event.resource.clone().unwrap_or_default(),
        node: event.node.as_deref().map(format::visible).unwrap_or_default(),
        owner: event.owner.as_deref().map(format::visible).unwrap_or_default(),
        details: details.join(", "),
    }
}

/// The page.
#[derive(Debug, Template)]
#[template(path = "events.html")]
pub struct EventsPage {
    layout: Layout,
    query: EventsQuery,
    rows: Vec<EventRow>,
    paging: Paging,
}

impl EventsPage {
    /// The page of what is remembered, the newest first.
    pub fn new(layout: Layout, past: &[Arc<Event>], query: EventsQuery) -> Self {
        let fitting: Vec<&Arc<Event>> = past.iter().filter(|event| query.fits(event)).collect();
        let paging = Paging::new(fitting.len(), query.page, query.link());
        let rows = fitting[paging.from..paging.to].iter().map(|event| row(event)).collect();
        Self { layout, query, rows, paging }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::manager::events::EventKind;

    fn event(kind: &str, resource: Option<&str>, reason: Option<&str>) -> Event {
        Event {
            event: kind.into(),
            at_ms: 1_795_198_023_120,
            resource: resource.map(Into::into),
            reason: reason.map(Into::into),
            token_id: Some("9c1f02ab".into()),
            ..Event::default()
        }
    }

    #[test]
    fn every_kind_of_event_but_renewals_has_a_word() {
        for kind in EventKind::ALL.iter().filter(|k| **k != EventKind::Extended) {
            assert!(KINDS.iter().any(|(word, _)| *word == kind.as_str()), "{kind:?}");
        }
    }

    #[test]
    fn a_forced_end_says_how_and_a_loss_why() {
        let word = |kind, reason| row(&event(kind, Some("a"), Some(reason)));
        assert_eq!(word("forced", "now").kind, badge("released by an operator", Severity::Bad));
        assert_eq!(word("forced", "revoke").kind.text, "revoked by an operator");
        assert_eq!(word("lost", "quorum").details, "lease 9c1f02ab, quorum");
        assert_eq!(word("lost", "a\u{202e}b").details, "lease 9c1f02ab, a\\u{202e}b");
    }

    #[test]
    fn filters_are_by_kind_and_prefix() {
        let fits = |kind, prefix: &str, e: &Event| EventsQuery { kind, prefix: prefix.into(), page: 1 }.fits(e);
        let (lock, node) = (event("released", Some("a/b"), None), event("node_down", None, None));
        assert!(fits("", "", &lock) && fits("", "", &node) && fits("released", "a/", &lock));
        assert!(!fits("acquired", "", &lock) && !fits("", "b", &lock) && !fits("", "a", &node));
        let query = EventsQuery { kind: "lost", prefix: "a b".into(), page: 2 };
        assert_eq!(query.link(), "/ui/events?kind=lost&prefix=a%20b");
        assert!(query.is_filtered() && !EventsQuery { page: 7, ..EventsQuery::default() }.is_filtered());
        assert_eq!(EventsQuery::default().link(), "/ui/events");
    }
}
