//! One lock: holder, what each node says, who waits, what happened, and the lines to paste. Asked
//! fresh from the nodes, since decisions are made on it. Knows no request.

use std::sync::Arc;

use askama::Template;

use super::badges::{Badge, Severity, badge};
use super::events::{self, EventRow};
use super::format;
use super::layout::Layout;
use crate::api::Event;
use crate::manager::types::{HolderInfo, Inspection, LockState, NoQuorum, ResourceOnNode, WaiterInfo};
use crate::protocol::NoVote;
use crate::redlock::quorum::{NodeOutcome, Verdict};
use crate::types::ResourceName;

/// Events of the lock that are shown.
const EVENTS_SHOWN: usize = 50;
/// Waiters that are shown.
const WAITERS_SHOWN: usize = 200;

/// What was done just now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CompletedAction {
    /// Renewals are refused from now on.
    Revoked,
    /// It was freed at once.
    Released,
}

impl CompletedAction {
    /// The words in an address.
    pub const WORDS: [&'static str; 2] = ["revoked", "released"];

    /// Its word.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Revoked => Self::WORDS[0],
            Self::Released => Self::WORDS[1],
        }
    }

    /// From its word.
    pub fn parse(word: &str) -> Option<Self> {
        [Self::Revoked, Self::Released].into_iter().find(|done| done.as_str() == word)
    }
}

/// The holder.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HolderDetails {
    /// Who, made visible; empty where it gave no name.
    pub owner: String,
    /// The same for a query.
    pub owner_query: String,
    /// Why, made visible.
    pub note: String,
    /// More, made visible.
    pub metadata: Vec<(String, String)>,
    /// Names the lease.
    pub token_id: String,
    /// The fencing token.
    pub fence: String,
    /// When it was granted, for `datetime`.
    pub stamp: String,
    /// The same for people.
    pub moment: String,
    /// Since how long.
    pub held: String,
    /// The same. Milliseconds.
    pub held_ms: u64,
    /// What is left at most.
    pub left: String,
    /// The same. Milliseconds.
    pub left_ms: u64,
    /// How often it was extended, in words.
    pub renewals: String,
}

/// A holder as pages show it. Units of `wall_ms`: milliseconds since 1970.
pub fn holder(view: &HolderInfo, wall_ms: u64) -> HolderDetails {
    let held = format::since(wall_ms, view.labels.acquired_at_ms);
    let pair = |(k, v): (&String, &String)| (format::visible(k), format::visible(v));
    HolderDetails {
        owner: format::visible(&view.labels.owner),
        owner_query: format::query(&view.labels.owner),
        note: format::visible(&view.labels.note),
        metadata: view.labels.metadata.iter().map(pair).collect(),
        token_id: view.token_id.to_string(),
        fence: view.fence.to_string(),
        stamp: format::stamp(view.labels.acquired_at_ms),
        moment: format::moment(view.labels.acquired_at_ms),
        held: format::clock(held),
        held_ms: format::ms(held),
        left: format::clock(view.valid_for),
        left_ms: format::ms(view.valid_for),
        renewals: format::count(usize::try_from(view.renewals).unwrap_or(usize::MAX), "renewal", "renewals"),
    }
}

/// What one node says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeAnswerRow {
    /// Which.
    pub node: String,
    /// Whether its word counts.
    pub state: Badge,
    /// What it has, in words.
    pub says: String,
    /// The key's TTL there, in words; empty where it has none.
    pub ttl: String,
    /// The same. Milliseconds.
    pub ttl_ms: u64,
}

fn verdict(verdict: &Verdict) -> Badge {
    match verdict {
        Verdict::Granted | Verdict::Held { .. } | Verdict::Missing | Verdict::Other | Verdict::Ended(_) => {
            badge("answered", Severity::Good)
        }
        Verdict::Refused => badge("refused", Severity::Warn),
        Verdict::NoVote(NoVote::Quarantined { left_ms }) => {
            let left = format::time(std::time::Duration::from_millis(*left_ms));
            badge(&format!("in quarantine for {left} more"), Severity::Warn)
        }
        Verdict::NoVote(NoVote::Unseeded { .. }) => badge("waiting for fence seed", Severity::Warn),
        Verdict::NoVote(NoVote::ClockOff { .. }) => badge("clock off", Severity::Bad),
        Verdict::NoVote(NoVote::OtherCluster { .. }) => badge("other cluster", Severity::Bad),
        Verdict::Unreachable(kind) => badge(&format!("no answer: {}", kind.as_str()), Severity::Bad),
        Verdict::NotAwaited => badge("not awaited", Severity::Neutral),
    }
}

fn node_row(view: &ResourceOnNode, holder: Option<&HolderInfo>) -> NodeAnswerRow {
    let is_silent = matches!(view.verdict, Verdict::Unreachable(_) | Verdict::NotAwaited);
    let says = match (&view.holds, view.foreign) {
        (Some(id), _) if holder.is_some_and(|h| h.token_id == *id) => "holds this lease".to_owned(),
        (Some(id), _) => format!("holds another lease: {id}"),
        (None, true) => "holds a lock of another Redlock client".to_owned(),
        (None, false) if is_silent => "-".to_owned(),
        (None, false) => "holds nothing".to_owned(),
    };
    let ttl = view.ttl_ms.map(std::time::Duration::from_millis);
    NodeAnswerRow {
        node: view.node.to_string(),
        state: verdict(&view.verdict),
        says,
        ttl: ttl.map(format::clock).unwrap_or_default(),
        ttl_ms: view.ttl_ms.unwrap_or(0),
    }
}

fn silent_row(outcome: &NodeOutcome) -> NodeAnswerRow {
    let says = "-".to_owned();
    NodeAnswerRow {
        node: outcome.node.to_string(),
        state: verdict(&outcome.verdict),
        says,
        ttl: String::new(),
        ttl_ms: 0,
    }
}

/// Somebody who waits.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LockWaiterRow {
    /// 1 is next.
    pub position: usize,
    /// Who, made visible; empty where it gave no name.
    pub owner: String,
    /// Since how long.
    pub waiting: String,
    /// The same. Milliseconds.
    pub waiting_ms: u64,
}

fn waiter_row(view: &WaiterInfo) -> LockWaiterRow {
    LockWaiterRow {
        position: view.position,
        owner: format::visible(&view.owner),
        waiting: format::clock(view.waiting),
        waiting_ms: format::ms(view.waiting),
    }
}

/// The page.
#[derive(Debug, Template)]
#[template(path = "lock.html")]
pub struct LockPage {
    layout: Layout,
    resource: String,
    url: String,
    state: Badge,
    sentence: String,
    holder: Option<HolderDetails>,
    is_foreign: bool,
    can_end: bool,
    agreement: String,
    nodes: Vec<NodeAnswerRow>,
    waiters: Vec<LockWaiterRow>,
    waiting: usize,
    events: Vec<EventRow>,
    completed: Option<CompletedAction>,
}

impl LockPage {
    /// The page. `base`: what stands before a path in a line to paste. `past`: the newest first.
    pub fn new(
        layout: Layout,
        resource: &ResourceName,
        seen: Result<&Inspection, &NoQuorum>,
        past: &[Arc<Event>],
        completed: Option<CompletedAction>,
        base: &str,
        wall_ms: u64,
    ) -> Self {
        let of_it = past.iter().filter(|e| e.resource.as_deref() == Some(resource.as_str()));
        let mut page = Self {
            layout,
            resource: resource.to_string(),
            url: format!("{base}/locks/{resource}"),
            state: badge("not known", Severity::Bad),
            sentence: "Fewer than a quorum of the nodes answered: nobody can say who holds it.".to_owned(),
            holder: None,
            is_foreign: false,
            can_end: false,
            agreement: String::new(),
            nodes: Vec::new(),
            waiters: Vec::new(),
            waiting: 0,
            events: of_it.take(EVENTS_SHOWN).map(|event| events::row(event)).collect(),
            completed,
        };
        match seen {
            Ok(seen) => page.fill(seen, wall_ms),
            Err(error) => page.nodes = error.nodes.iter().map(silent_row).collect(),
        }
        page
    }

    fn fill(&mut self, seen: &Inspection, wall_ms: u64) {
        let held = match &seen.state {
            LockState::Held(holder) => Some(holder),
            _ => None,
        };
        (self.state, self.sentence) = match &seen.state {
            LockState::Free => (badge("free", Severity::Neutral), "Nobody holds it.".to_owned()),
            LockState::Held(holder) if holder.valid_for.is_zero() => (
                badge("run out", Severity::Warn),
                "The last lease has run out; its safety margin is passing.".to_owned(),
            ),
            LockState::Held(_) => (badge("held", Severity::Good), String::new()),
            LockState::Foreign { left, .. } => {
                let left =
                    left.map_or_else(|| "without an end".to_owned(), |l| format!("for {} more", format::time(l)));
                let sentence = format!("Another Redlock client holds it, {left}. Nothing else is known of its holder.");
                (badge("held by another client", Severity::Warn), sentence)
            }
        };
        self.is_foreign = matches!(seen.state, LockState::Foreign { .. });
        self.can_end = seen.etag().is_some();
        self.holder = held.map(|view| holder(view, wall_ms));
        let count = seen.quorum;
        self.agreement = format!("{} of {} nodes agree, {} are needed", count.granted, count.nodes, count.needed);
        self.nodes = seen.nodes.iter().map(|view| node_row(view, held)).collect();
        self.waiting = seen.waiters.len();
        self.waiters = seen.waiters.iter().take(WAITERS_SHOWN).map(waiter_row).collect();
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::manager::types::QuorumCount;
    use crate::types::NodeId;

    #[test]
    fn what_a_node_says_is_put_into_words() {
        let view = |foreign, verdict| ResourceOnNode {
            node: NodeId::parse("n1").expect("valid"),
            holds: None,
            foreign,
            ttl_ms: Some(4_200),
            verdict,
        };
        let quarantined = view(false, Verdict::NoVote(NoVote::Quarantined { left_ms: 61_000 }));
        let row = node_row(&quarantined, None);
        assert_eq!((row.state.text.as_str(), row.says.as_str()), ("in quarantine for 1 m 01 s more", "holds nothing"));
        assert_eq!(node_row(&view(true, Verdict::Granted), None).says, "holds a lock of another Redlock client");
        assert_eq!(node_row(&view(false, Verdict::NotAwaited), None).says, "-");
        assert_eq!((row.ttl.as_str(), row.ttl_ms), ("4 s", 4_200));
    }

    #[test]
    fn an_outcome_is_one_of_two_words() {
        for done in [CompletedAction::Revoked, CompletedAction::Released] {
            assert_eq!(CompletedAction::parse(done.as_str()), Some(done));
        }
        assert_eq!(CompletedAction::parse(""), None);
    }

    #[test]
    fn free_and_foreign_locks_say_so() {
        let resource = ResourceName::parse("a/b").expect("valid");
        let quorum = QuorumCount { granted: 0, needed: 2, nodes: 3 };
        let page = |state| {
            let seen = Inspection { resource: resource.clone(), state, waiters: vec![], nodes: vec![], quorum };
            let vote = crate::manager::overview::ClusterStatus { nodes: vec![], quorum, draining: false };
            let layout = Layout::new(&vote, super::super::layout::Tab::Other, "x", "/ui/locks/a/b");
            let page = LockPage::new(layout, &resource, Ok(&seen), &[], None, "http://h", 0);
            (page.can_end, page.render().expect("a page"))
        };
        let (can_end, html) = page(LockState::Free);
        assert!(!can_end && html.contains("Nobody holds it") && !html.contains("/ui/release/"));
        let foreign = LockState::Foreign { left: Some(Duration::from_secs(9)), fingerprint: "ff".into() };
        let (can_end, html) = page(foreign);
        assert!(can_end && html.contains("for 9 s more") && html.contains("/ui/release/a/b"));
        assert!(!html.contains("/ui/revoke/a/b"), "a foreigner's lock cannot be revoked");
    }
}
