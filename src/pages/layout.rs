//! The layout of every page: title, navigation, state of the quorum, and warnings.

use super::assets::{self, Assets};
use super::badges::{self, Badge, Severity};
use super::format;
use crate::manager::cluster_state::Situation;
use crate::manager::overview::ClusterStatus;
use crate::types::OWNER_PLACE;

/// The page that the navigation marks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Tab {
    Locks,
    Waiters,
    Owners,
    /// The holders of each name over time.
    Timeline,
    /// State of the nodes.
    Nodes,
    /// Latency of rounds.
    Latency,
    Events,
    /// Targets of call-backs, and hooks.
    Hooks,
    /// A page that is not in the navigation.
    Other,
}

/// One entry of the navigation.
#[derive(Debug, Clone, Copy)]
pub(crate) struct NavLink {
    pub tab: Tab,
    pub href: &'static str,
    pub text: &'static str,
}

const LINKS: [NavLink; 8] = [
    NavLink { tab: Tab::Locks, href: "/ui/", text: "Locks" },
    NavLink { tab: Tab::Waiters, href: "/ui/waiters", text: "Waiters" },
    NavLink { tab: Tab::Owners, href: "/ui/owners", text: "Owners" },
    NavLink { tab: Tab::Timeline, href: "/ui/timeline", text: "Timeline" },
    NavLink { tab: Tab::Nodes, href: "/ui/nodes", text: "Nodes" },
    NavLink { tab: Tab::Latency, href: "/ui/latency", text: "Latency" },
    NavLink { tab: Tab::Events, href: "/ui/events", text: "Events" },
    NavLink { tab: Tab::Hooks, href: "/ui/hooks", text: "Hooks" },
];

/// The reader of a page, and what the page offers to them.
#[derive(Debug, Clone, Default)]
pub(crate) struct Viewer {
    /// The principal; empty without authentication.
    pub principal: String,
    /// Pages that would be refused.
    pub refused: Vec<Tab>,
    /// The reader may not read every lock, so lists and figures cover only a part.
    pub sees_part: bool,
}

/// The data of the layout.
#[derive(Debug, Clone)]
pub(crate) struct Layout {
    /// Title of the browser's tab.
    pub title: String,
    /// The page in the navigation.
    pub tab: Tab,
    /// State of the quorum; if that is as usual, a warning where a node name has two servers.
    pub quorum: Badge,
    /// Whether there is a deadlock of which the reader may read a lock.
    pub has_deadlock: bool,
    /// The quorum's state as a sentence.
    pub quorum_text: String,
    /// What has failed, since when, until when, why, and what to do.
    pub situation: Situation,
    /// Each node's name and state.
    pub nodes: Vec<(String, Badge)>,
    /// Whether other machines can connect without authentication: every page warns about it.
    pub is_open: bool,
    /// Files that were rejected when they were read again: what each file is, what is in force instead, and since when.
    pub rejected: Vec<(&'static str, &'static str, String)>,
    /// Number of hooks that are switched off.
    pub hooks_off: usize,
    /// Whether the instance is shutting down.
    pub draining: bool,
    /// The reader of the page.
    pub viewer: Viewer,
    /// The instance that shows the page.
    pub instance: String,
    /// Path and query of the page, for reloading without script.
    pub path: String,
    /// Whether the script refreshes the page.
    pub auto_refresh: bool,
    /// Link target of owners: a URL with `{owner}` in it; empty for no links.
    pub owner_url: String,
}

impl Layout {
    /// The layout of a page with this title, path and query.
    pub(crate) fn new(status: &ClusterStatus, tab: Tab, title: &str, path: &str) -> Self {
        let (count, since) = (status.quorum, &status.situation.no_quorum_since);
        let (mut quorum, quorum_text) = badges::quorum(count.granted, count.needed, count.nodes, since);
        let is_usual = matches!(quorum.severity, Severity::Good | Severity::Neutral);
        if is_usual && status.nodes.iter().any(|node| node.has_two_servers) {
            quorum = badges::badge("two servers", Severity::Warn);
        }
        Self {
            title: title.to_owned(),
            tab,
            quorum,
            has_deadlock: false,
            quorum_text,
            situation: status.situation.clone(),
            nodes: status.nodes.iter().map(|node| (node.node.to_string(), badges::node_badge(node))).collect(),
            is_open: false,
            rejected: Vec::new(),
            hooks_off: 0,
            draining: status.draining,
            viewer: Viewer::default(),
            instance: status.instance.to_string(),
            path: path.to_owned(),
            auto_refresh: true,
            owner_url: String::new(),
        }
    }

    /// Turns refreshing off, for a page that must not change while an operator reads it.
    #[must_use]
    pub(crate) fn without_refresh(self) -> Self {
        Self { auto_refresh: false, ..self }
    }

    /// Sets [`Layout::is_open`].
    #[must_use]
    pub(crate) fn with_open_access(self, is_open: bool) -> Self {
        Self { is_open, ..self }
    }

    /// Sets [`Layout::rejected`]. `files`: their names in events, each with the time of rejection (milliseconds since 1970).
    #[must_use]
    pub(crate) fn with_rejected(self, files: &[(String, u64)]) -> Self {
        let rejected = files.iter().map(|(file, since_ms)| {
            let (name, instead) = match file.as_str() {
                "access_file" => {
                    ("access file", "the rules before it stay in force, and keys that were removed still work")
                }
                "certificate" => ("certificate", "the one before it stays in force until it expires"),
                _ => ("webhooks file", "the targets and hooks before it stay in force"),
            };
            (name, instead, format::time_of_day(*since_ms))
        });
        Self { rejected: rejected.collect(), ..self }
    }

    /// Sets [`Layout::hooks_off`].
    #[must_use]
    pub(crate) fn with_hooks_off(self, hooks_off: usize) -> Self {
        Self { hooks_off, ..self }
    }

    /// Sets [`Layout::has_deadlock`].
    #[must_use]
    pub(crate) fn with_deadlock(self, has_deadlock: bool) -> Self {
        Self { has_deadlock, ..self }
    }

    /// The state of the service in a word or two: that of the quorum, unless that would hide a deadlock.
    pub(crate) fn state(&self) -> Badge {
        match self.quorum.severity {
            Severity::Good | Severity::Neutral if self.has_deadlock => badges::badge("deadlock", Severity::Warn),
            _ => self.quorum.clone(),
        }
    }

    /// Sets [`Layout::owner_url`].
    #[must_use]
    pub(crate) fn with_owner_url(self, owner_url: &str) -> Self {
        Self { owner_url: owner_url.to_owned(), ..self }
    }

    /// The address behind an owner; empty without one. `owner_query`: encoded for a query. An owner cannot leave its place in the
    /// URL: slashes are encoded too, and names of dots, which a browser would resolve, are not linked.
    pub(crate) fn job_of(&self, owner_query: &str) -> String {
        let is_name = !owner_query.is_empty() && owner_query.bytes().any(|byte| byte != b'.');
        match is_name {
            true => self.owner_url.replace(OWNER_PLACE, &owner_query.replace('/', "%2F")),
            false => String::new(),
        }
    }

    /// The option that a curl command needs to be accepted: empty without authentication.
    pub(crate) fn key_option(&self) -> &'static str {
        if self.viewer.principal.is_empty() { "" } else { "-H \"Authorization: Bearer $KEY\" " }
    }

    /// Sets [`Layout::viewer`].
    #[must_use]
    pub(crate) fn for_viewer(self, viewer: Viewer) -> Self {
        Self { viewer, ..self }
    }

    /// The entries of the navigation.
    pub(crate) fn links(&self) -> impl Iterator<Item = &'static NavLink> {
        LINKS.iter().filter(|link| self.shows(link.tab))
    }

    /// The locks that a figure or a list covers.
    pub(crate) fn of_locks(&self) -> &'static str {
        if self.viewer.sees_part { "of the locks that you may read" } else { "in the whole cluster" }
    }

    /// The waiters that a figure or a list covers.
    pub(crate) fn of_waiters(&self) -> &'static str {
        if self.viewer.sees_part { "for locks that you may read" } else { "at all instances" }
    }

    /// Whether the reader may see this page.
    pub(crate) fn shows(&self, tab: Tab) -> bool {
        !self.viewer.refused.contains(&tab)
    }

    /// The title of the browser's tab: it begins with the failure, so that it is visible while the tab is in the background.
    pub(crate) fn tab_title(&self) -> String {
        match self.quorum.severity {
            Severity::Bad => format!("✖ {} · {}", self.quorum.text, self.title),
            _ => self.title.clone(),
        }
    }

    /// The section of the runbooks about the failure.
    pub(crate) fn runbook(&self) -> &'static str {
        let has = |text: &str| self.nodes.iter().any(|(_, badge)| badge.text == text);
        match self.quorum.text.as_str() {
            "no quorum" => "redlockdquorumlost",
            "no margin" => "redlockdquorumnomargin",
            _ if has("two servers") => "redlockdonenametwoservers",
            _ if has("down") => "redlockdnodedown",
            _ if has("slow") => "redlockdnodeslow",
            _ if has("in quarantine") => "redlockdnodequarantined",
            _ => "redlockdnodedoesnotvote",
        }
    }

    /// Style, script and icon.
    pub(crate) fn assets(&self) -> &'static Assets {
        assets::all()
    }

    /// The program's version.
    pub(crate) fn version(&self) -> &'static str {
        env!("CARGO_PKG_VERSION")
    }

    /// The class of the notice at the top of every page, if an operator must act.
    pub(crate) fn alarm(&self) -> Option<&'static str> {
        let is_bad = self.quorum.severity == Severity::Bad;
        (is_bad || !self.situation.advice.is_empty()).then_some(if is_bad { "bad" } else { "warn" })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::manager::types::{NodeSummary, QuorumCount};
    use crate::types::NodeId;

    #[test]
    fn the_state_in_the_header_is_not_healthy_with_two_servers_or_a_deadlock() {
        let layout = |granted, has_two_servers| {
            let node = NodeSummary {
                state: "up".to_owned(),
                votes: true,
                has_two_servers,
                ..NodeSummary::new(NodeId::parse("n1").expect("valid"))
            };
            let status = ClusterStatus {
                nodes: vec![node],
                quorum: QuorumCount { granted, needed: 2, nodes: 3 },
                draining: false,
                instance: crate::protocol::InstanceName::from_random(1),
                situation: Situation::default(),
                list: Default::default(),
            };
            Layout::new(&status, Tab::Locks, "Locks", "/ui/")
        };
        for (layout, text, severity) in [
            (layout(3, false), "healthy", Severity::Good),
            (layout(3, false).with_deadlock(true), "deadlock", Severity::Warn),
            (layout(3, true), "two servers", Severity::Warn),
            (layout(3, true).with_deadlock(true), "two servers", Severity::Warn),
            (layout(2, true), "no margin", Severity::Warn),
            (layout(1, true).with_deadlock(true), "no quorum", Severity::Bad),
        ] {
            assert_eq!(layout.state(), badges::badge(text, severity));
        }
        assert_eq!(layout(3, true).runbook(), "redlockdonenametwoservers");
    }
}
