//! Words, tones and shapes of states: of leases, nodes and the vote. In one place, so that one thing
//! looks alike on every page, and never by its colour alone. Knows no page.

use crate::manager::types::NodeSummary;

/// How much something wants to be looked at. Its name is the class in the style sheet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Tone {
    /// All is well.
    Good,
    /// Nothing to see.
    Quiet,
    /// Somebody should look.
    Warn,
    /// Somebody must act.
    Bad,
}

impl Tone {
    /// The class.
    pub fn class(self) -> &'static str {
        match self {
            Self::Good => "good",
            Self::Quiet => "quiet",
            Self::Warn => "warn",
            Self::Bad => "bad",
        }
    }
}

/// A word with its tone.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Badge {
    /// What it says.
    pub word: String,
    /// How it looks.
    pub tone: Tone,
}

/// A badge.
pub fn badge(word: &str, tone: Tone) -> Badge {
    Badge { word: word.to_owned(), tone }
}

/// A node's mark: disc, triangle or cross, with its name and state in words.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mark {
    /// The node.
    pub node: String,
    /// Its state in words.
    pub words: String,
    /// How it looks; the shape follows.
    pub tone: Tone,
}

/// What an operator should make of a node.
pub fn node_badge(report: &NodeSummary) -> Badge {
    match report.state.as_str() {
        // Findings that cost no vote stand on the page of the nodes; here they would only tire.
        "up" if report.votes => badge("votes", Tone::Good),
        "up" => badge("unfit", Tone::Bad),
        "down" => badge("down", Tone::Bad),
        "unknown" => badge("not heard of yet", Tone::Quiet),
        "quarantined" => badge("in quarantine", Tone::Warn),
        "awaiting-seed" => badge("awaiting its seed", Tone::Warn),
        "clock-off" => badge("clock off", Tone::Bad),
        "other-cluster" => badge("of another cluster", Tone::Bad),
        other => badge(other, Tone::Warn),
    }
}

/// The mark of a node in the strip.
pub fn mark(report: &NodeSummary) -> Mark {
    let badge = node_badge(report);
    Mark { node: report.node.to_string(), words: badge.word, tone: badge.tone }
}

/// The quorum in a badge and a sentence. Units: nodes.
pub fn quorum(voting: usize, needed: usize, nodes: usize) -> (Badge, String) {
    let vote = format!("{voting} of {nodes} nodes vote, {needed} are needed");
    match (voting.checked_sub(needed), nodes - voting.min(nodes)) {
        (None, _) => (badge("no quorum", Tone::Bad), format!("No lock can be granted: {vote}.")),
        (Some(0), missing) if missing > 0 => {
            (badge("no margin", Tone::Warn), format!("{vote}: not one more may fail."))
        }
        (Some(0), _) => (badge("no margin", Tone::Quiet), format!("{vote}: none may fail.")),
        (Some(margin), 0) => (badge("healthy", Tone::Good), format!("{vote}: {margin} may fail.")),
        (Some(margin), _) => (badge("degraded", Tone::Warn), format!("{vote}: {margin} more may fail.")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_quorum_is_judged_by_its_margin() {
        for ((voting, needed, nodes), word, tone) in [
            ((5, 3, 5), "healthy", Tone::Good),
            ((4, 3, 5), "degraded", Tone::Warn),
            ((3, 3, 5), "no margin", Tone::Warn),
            ((2, 3, 5), "no quorum", Tone::Bad),
            ((1, 1, 1), "no margin", Tone::Quiet),
            ((0, 1, 1), "no quorum", Tone::Bad),
        ] {
            let (badge, sentence) = quorum(voting, needed, nodes);
            assert_eq!((badge.word.as_str(), badge.tone), (word, tone), "{voting} {needed} {nodes}");
            assert!(sentence.contains(&format!("{voting} of {nodes}")));
        }
    }
}
