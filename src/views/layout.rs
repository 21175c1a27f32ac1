//! What every page has around it: title, navigation, the vote, and what goes wrong for everybody.
//! Knows no page's content.

use super::assets::{self, Assets};
use super::badges::{self, Badge, Severity};
use crate::manager::overview::ClusterStatus;

/// A page of the navigation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Tab {
    /// The held leases.
    Locks,
    /// Who queues.
    Waiters,
    /// Who holds.
    Owners,
    /// The nodes.
    Nodes,
    /// How long quorums take.
    Latency,
    /// What happened.
    Events,
    /// None of these.
    Other,
}

/// One entry of the navigation.
#[derive(Debug, Clone, Copy)]
pub struct NavLink {
    /// Which.
    pub tab: Tab,
    /// Where to.
    pub href: &'static str,
    /// What it says.
    pub text: &'static str,
}

const LINKS: [NavLink; 6] = [
    NavLink { tab: Tab::Locks, href: "/ui/", text: "Locks" },
    NavLink { tab: Tab::Waiters, href: "/ui/waiters", text: "Waiters" },
    NavLink { tab: Tab::Owners, href: "/ui/owners", text: "Owners" },
    NavLink { tab: Tab::Nodes, href: "/ui/nodes", text: "Nodes" },
    NavLink { tab: Tab::Latency, href: "/ui/latency", text: "Latency" },
    NavLink { tab: Tab::Events, href: "/ui/events", text: "Events" },
];

/// The frame of a page.
#[derive(Debug, Clone)]
pub struct Layout {
    /// What the page is about, for the browser's tab.
    pub title: String,
    /// Where we are.
    pub tab: Tab,
    /// The vote in a word.
    pub quorum: Badge,
    /// The vote in a quorum_text.
    pub quorum_text: String,
    /// Each node's name and state.
    pub nodes: Vec<(String, Badge)>,
    /// Others can reach the service and there are no keys: every page says so.
    pub is_open: bool,
    /// The instance is shutting down.
    pub draining: bool,
    /// The address of the page itself, for those without script.
    pub path: String,
    /// Script keeps it fresh.
    pub auto_refresh: bool,
}

impl Layout {
    /// For a page with this title, under this address.
    pub fn new(vote: &ClusterStatus, tab: Tab, title: &str, path: &str) -> Self {
        let (quorum, quorum_text) = badges::quorum(vote.quorum.granted, vote.quorum.needed, vote.quorum.nodes);
        Self {
            title: title.to_owned(),
            tab,
            quorum,
            quorum_text,
            nodes: vote.nodes.iter().map(|node| (node.node.to_string(), badges::node_badge(node))).collect(),
            is_open: false,
            draining: vote.draining,
            path: path.to_owned(),
            auto_refresh: true,
        }
    }

    /// The same for a page that must not change under its reader's hands.
    #[must_use]
    pub fn without_refresh(self) -> Self {
        Self { auto_refresh: false, ..self }
    }

    /// The same of a service that lets everybody in.
    #[must_use]
    pub fn with_open_access(self, is_open: bool) -> Self {
        Self { is_open, ..self }
    }

    /// The navigation.
    pub fn links(&self) -> &'static [NavLink] {
        &LINKS
    }

    /// Style, script and icon.
    pub fn assets(&self) -> &'static Assets {
        assets::all()
    }

    /// The program's version.
    pub fn version(&self) -> &'static str {
        env!("CARGO_PKG_VERSION")
    }

    /// Something that every page says at its top.
    pub fn is_alarming(&self) -> bool {
        self.quorum.severity == Severity::Bad
    }
}
