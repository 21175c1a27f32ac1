//! Text, colour and shape of the states of leases, nodes and the quorum. In one place, so that the same
//! state looks the same on every page, and never differs by colour alone.

use crate::manager::types::NodeSummary;

/// How much attention a state needs. Its class in the style sheet decides colour and shape.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Severity {
    /// Nothing needs attention.
    Good,
    /// Neither good nor bad, or not known yet.
    Neutral,
    /// An operator should check it.
    Warn,
    /// An operator must act.
    Bad,
}

impl Severity {
    /// The class in `static/style.css`.
    pub(crate) fn class(self) -> &'static str {
        match self {
            Self::Good => "good",
            Self::Neutral => "quiet",
            Self::Warn => "warn",
            Self::Bad => "bad",
        }
    }
}

/// A short text with its severity.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Badge {
    /// At most a few words.
    pub text: String,
    /// Decides colour and shape.
    pub severity: Severity,
}

/// Makes a [`Badge`].
pub(crate) fn badge(text: &str, severity: Severity) -> Badge {
    Badge { text: text.to_owned(), severity }
}

/// The state of a node, for operators.
pub(crate) fn node_badge(report: &NodeSummary) -> Badge {
    match report.state.as_str() {
        // Findings that do not cost the vote are shown only on the page of the nodes.
        "up" if report.votes && report.has_two_servers => badge("two servers", Severity::Warn),
        "up" if report.votes => badge("votes", Severity::Good),
        "up" => badge("unsuitable", Severity::Bad),
        "down" => badge("down", Severity::Bad),
        "unknown" => badge("not probed yet", Severity::Neutral),
        "not-asked" => badge("not asked yet", Severity::Warn),
        "slow" => badge("slow", Severity::Bad),
        "quarantined" => badge("in quarantine", Severity::Warn),
        "awaiting-seed" => badge("waiting for fence seed", Severity::Warn),
        "clock-off" => badge("clock off", Severity::Bad),
        "other-cluster" => badge("other cluster", Severity::Bad),
        "other-view" => badge("other view", Severity::Warn),
        "newer-protocol" => badge("newer protocol", Severity::Bad),
        other => badge(other, Severity::Warn),
    }
}

/// The quorum as a badge and a sentence. `since`: when the quorum was lost, after a space. Units: nodes.
pub(crate) fn quorum(voting: usize, needed: usize, nodes: usize, since: &str) -> (Badge, String) {
    let vote = format!("{voting} of {nodes} nodes vote, {needed} are needed");
    match (voting.checked_sub(needed), nodes - voting.min(nodes)) {
        (None, _) => (badge("no quorum", Severity::Bad), format!("No lock can be granted{since}: {vote}.")),
        (Some(0), missing) if missing > 0 => {
            (badge("no margin", Severity::Warn), format!("{vote}: not one more may fail."))
        }
        (Some(0), _) => (badge("no margin", Severity::Neutral), format!("{vote}: none may fail.")),
        (Some(margin), 0) => (badge("healthy", Severity::Good), format!("{vote}: {margin} may fail.")),
        (Some(margin), _) => (badge("degraded", Severity::Warn), format!("{vote}: {margin} more may fail.")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_badge_of_the_quorum_follows_from_its_margin() {
        for ((voting, needed, nodes), text, severity) in [
            ((5, 3, 5), "healthy", Severity::Good),
            ((4, 3, 5), "degraded", Severity::Warn),
            ((3, 3, 5), "no margin", Severity::Warn),
            ((2, 3, 5), "no quorum", Severity::Bad),
            ((1, 1, 1), "no margin", Severity::Neutral),
            ((0, 1, 1), "no quorum", Severity::Bad),
        ] {
            let (badge, sentence) = quorum(voting, needed, nodes, " since 10:46:03");
            assert_eq!((badge.text.as_str(), badge.severity), (text, severity), "{voting} {needed} {nodes}");
            assert!(sentence.contains(&format!("{voting} of {nodes}")));
            assert_eq!(sentence.contains("since 10:46:03"), text == "no quorum", "{sentence}");
        }
    }
}
