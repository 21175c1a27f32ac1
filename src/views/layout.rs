//! What every page has around it: title, navigation, the vote, and what goes wrong for everybody.
//! Knows no page's content.

use super::assets::{self, Assets};
use super::badges::{self, Badge, Mark, Tone};
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
pub struct Link {
    /// Which.
    pub tab: Tab,
    /// Where to.
    pub href: &'static str,
    /// What it says.
    pub word: &'static str,
}

const LINKS: [Link; 6] = [
    Link { tab: Tab::Locks, href: "/ui/", word: "Locks" },
    Link { tab: Tab::Waiters, href: "/ui/waiters", word: "Waiters" },
    Link { tab: Tab::Owners, href: "/ui/owners", word: "Owners" },
    Link { tab: Tab::Nodes, href: "/ui/nodes", word: "Nodes" },
    Link { tab: Tab::Latency, href: "/ui/latency", word: "Latency" },
    Link { tab: Tab::Events, href: "/ui/events", word: "Events" },
];

/// The frame of a page.
#[derive(Debug, Clone)]
pub struct Shell {
    /// What the page is about, for the browser's tab.
    pub title: String,
    /// Where we are.
    pub tab: Tab,
    /// The vote in a word.
    pub quorum: Badge,
    /// The vote in a sentence.
    pub sentence: String,
    /// A mark per node.
    pub marks: Vec<Mark>,
    /// Others can reach the service and there are no keys: every page says so.
    pub is_open: bool,
    /// The instance is shutting down.
    pub draining: bool,
    /// The address of the page itself, for those without script.
    pub here: String,
    /// Script keeps it fresh.
    pub live: bool,
}

impl Shell {
    /// For a page with this title, under this address.
    pub fn new(vote: &ClusterStatus, tab: Tab, title: &str, here: &str) -> Self {
        let (quorum, sentence) = badges::quorum(vote.quorum.granted, vote.quorum.needed, vote.quorum.nodes);
        Self {
            title: title.to_owned(),
            tab,
            quorum,
            sentence,
            marks: vote.nodes.iter().map(badges::mark).collect(),
            is_open: false,
            draining: vote.draining,
            here: here.to_owned(),
            live: true,
        }
    }

    /// The same for a page that must not change under its reader's hands.
    #[must_use]
    pub fn still(self) -> Self {
        Self { live: false, ..self }
    }

    /// The same of a service that lets everybody in.
    #[must_use]
    pub fn open(self, is_open: bool) -> Self {
        Self { is_open, ..self }
    }

    /// The navigation.
    pub fn links(&self) -> &'static [Link] {
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
        self.quorum.tone == Tone::Bad
    }
}
