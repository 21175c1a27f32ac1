//! The page of one lock: holder, state on each node, waiters, events, and commands to copy. Read from the nodes
//! for each request, since operators decide by it.

use std::sync::Arc;

use askama::Template;

use super::badges::{Badge, Severity, badge};
use super::events::{self, EventRow};
use super::format;
use super::history::LockHistory;
use super::kept::KeptDetails;
use super::layout::Layout;
use crate::api::Event;
use crate::manager::tenures::KnownTenures;
use crate::manager::tickets::listed::ListedTicket;
use crate::manager::types::{HolderInfo, Inspection, LockState, NoQuorum, ResourceOnNode, WaiterInfo, mode_of};
use crate::protocol::{InstanceName, NoVote};
use crate::redlock::quorum::{NodeOutcome, Verdict};
use crate::types::{PermitLimit, ResourceName, TokenId, WantedMode};

/// Maximum number of events shown.
const EVENTS_SHOWN: usize = 50;
/// Maximum number of holders shown.
const HOLDERS_SHOWN: usize = 100;
/// Maximum number of waiters shown.
const WAITERS_SHOWN: usize = 200;

/// What the operator has just done to the lock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum CompletedAction {
    /// The lease was revoked: renewals are refused.
    Revoked,
    /// The lock was released at once.
    Released,
    /// The reader has taken the lock for a time.
    Taken,
    /// The reader has given back a taken lock.
    GivenBack,
}

impl CompletedAction {
    /// The values of the query's field `done`.
    pub(crate) const NAMES: [&'static str; 4] = ["revoked", "released", "taken", "given-back"];

    /// The value in the query.
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::Revoked => Self::NAMES[0],
            Self::Released => Self::NAMES[1],
            Self::Taken => Self::NAMES[2],
            Self::GivenBack => Self::NAMES[3],
        }
    }

    /// Parses the value of the query.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        [Self::Revoked, Self::Released, Self::Taken, Self::GivenBack].into_iter().find(|action| action.as_str() == text)
    }
}

/// The holder as shown.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct HolderDetails {
    /// The number of the holder's permit; empty without permits.
    pub slot: String,
    /// Owner label; empty if the holder gave none.
    pub owner: String,
    /// The owner label, encoded for a query.
    pub owner_query: String,
    /// Note of the lease.
    pub note: String,
    /// Metadata of the lease.
    pub metadata: Vec<(String, String)>,
    /// Identifies the lease; not secret.
    pub token_id: String,
    pub fence: String,
    /// When it was granted, as RFC 3339.
    pub stamp: String,
    /// When it was granted, as shown.
    pub moment: String,
    /// How long it has been held.
    pub held: String,
    /// `held` in milliseconds.
    pub held_ms: u64,
    /// Remaining validity.
    pub left: String,
    /// Whether a quorum confirms the lease. Without confirmation nothing counts down.
    pub is_confirmed: bool,
    /// `left` in milliseconds.
    pub left_ms: u64,
    /// Number of renewals, as text.
    pub renewals: String,
    /// How long the service renews the lease, and until when; `None` if it does not.
    pub kept: Option<KeptDetails>,
}

/// Formats a holder. Units of `wall_ms`: milliseconds since 1970.
pub(crate) fn holder(view: &HolderInfo, wall_ms: u64) -> HolderDetails {
    let held = format::since(wall_ms, view.labels.acquired_at_ms);
    let pair = |(k, v): (&String, &String)| (format::visible(k), format::visible(v));
    HolderDetails {
        slot: view.mode.slot().map(|slot| slot.to_string()).unwrap_or_default(),
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
        left: if view.is_confirmed { format::clock(view.valid_for) } else { "not known".to_owned() },
        is_confirmed: view.is_confirmed,
        left_ms: format::ms(view.valid_for),
        renewals: format::count(usize::try_from(view.renewals).unwrap_or(usize::MAX), "renewal", "renewals"),
        kept: KeptDetails::of(view),
    }
}

/// The state of the lock on one node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct NodeAnswerRow {
    /// Name of the node.
    pub node: String,
    /// Whether the node answered and votes.
    pub state: Badge,
    /// What the node holds, as text.
    pub holds: String,
    /// Remaining TTL of the key on the node; empty if it has none.
    pub ttl: String,
    /// `ttl` in milliseconds.
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
            badge(&format!("in quarantine for another {left}"), Severity::Warn)
        }
        Verdict::NoVote(NoVote::Blocked { left_ms }) => {
            let left = format::time(std::time::Duration::from_millis(*left_ms));
            badge(&format!("does not know this resource for another {left}"), Severity::Neutral)
        }
        Verdict::NoVote(NoVote::Unseeded { .. }) => badge("waiting for fence seed", Severity::Warn),
        Verdict::NoVote(NoVote::ClockOff { .. }) => badge("clock off", Severity::Bad),
        Verdict::NoVote(NoVote::OtherCluster { .. }) => badge("other cluster", Severity::Bad),
        Verdict::NoVote(NoVote::OtherView { .. }) => badge("other view", Severity::Warn),
        Verdict::NoVote(NoVote::OtherProcess { .. }) => badge("another server", Severity::Bad),
        Verdict::NoVote(NoVote::NewerProtocol { .. }) => badge("newer protocol", Severity::Bad),
        Verdict::Unreachable(kind) => badge(&format!("no answer: {}", kind.as_str()), Severity::Bad),
        Verdict::NotAwaited => badge("not needed", Severity::Neutral),
    }
}

fn node_row(view: &ResourceOnNode, holders: &[HolderInfo]) -> NodeAnswerRow {
    let is_silent = matches!(view.verdict, Verdict::Unreachable(_) | Verdict::NotAwaited);
    let is_known = |id: &&TokenId| holders.iter().any(|holder| holder.token_id == **id);
    let known = view.holds.iter().filter(is_known).count();
    let holds = match (view.holds.as_slice(), view.foreign) {
        ([_], _) if known == 1 && holders.len() == 1 => "this lease".to_owned(),
        ([id], _) if known == 0 => format!("another lease: {id}"),
        ([], true) => "a lock of another Redlock client".to_owned(),
        ([], false) if is_silent => "-".to_owned(),
        ([], false) => "nothing".to_owned(),
        (all, _) if known == all.len() => format!("{known} of these leases"),
        (all, _) => format!("{known} of these leases, {} others", all.len() - known),
    };
    let ttl = view.ttl_ms.map(std::time::Duration::from_millis);
    NodeAnswerRow {
        node: view.node.to_string(),
        state: verdict(&view.verdict),
        holds,
        ttl: ttl.map(format::clock).unwrap_or_default(),
        ttl_ms: view.ttl_ms.unwrap_or(0),
    }
}

fn unreachable_row(outcome: &NodeOutcome) -> NodeAnswerRow {
    let holds = "-".to_owned();
    NodeAnswerRow {
        node: outcome.node.to_string(),
        state: verdict(&outcome.verdict),
        holds,
        ttl: String::new(),
        ttl_ms: 0,
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct LockWaiterRow {
    /// Name of the instance where the request waits.
    pub instance: String,
    /// Whether that instance shows the page.
    pub is_here: bool,
    /// Position in that instance's queue, from 1.
    pub position: usize,
    /// Owner label; empty if the waiter gave none.
    pub owner: String,
    /// How long it has been waiting.
    pub waiting: String,
    /// `waiting` in milliseconds.
    pub waiting_ms: u64,
    /// Maximum further wait; empty if it is not known.
    pub left: String,
    /// `left` in milliseconds.
    pub left_ms: u64,
    /// The waiter's note; for other instances, its beginning.
    pub note: String,
    /// Whether a ticket waits instead of a connection.
    pub is_ticket: bool,
    /// The ticket's id, on the instance that serves it.
    pub ticket: String,
}

fn waiter_row(view: &WaiterInfo, here: &InstanceName) -> LockWaiterRow {
    LockWaiterRow {
        instance: view.instance.to_string(),
        is_here: view.instance == *here,
        position: view.position,
        owner: format::visible(&view.owner),
        waiting: format::clock(view.waiting),
        waiting_ms: format::ms(view.waiting),
        left: view.left.map(format::clock).unwrap_or_default(),
        left_ms: view.left.map_or(0, format::ms),
        note: format::visible(&view.note),
        is_ticket: view.is_ticket,
        ticket: String::new(),
    }
}

#[derive(Debug, Template)]
#[template(path = "lock.html")]
pub(crate) struct LockPage {
    layout: Layout,
    resource: String,
    base: String,
    url: String,
    state: Badge,
    sentence: String,
    /// One holder, or several that share the lock.
    holders: Vec<HolderDetails>,
    /// The number of holders that are not shown.
    further: usize,
    /// For permits: whether each slot is taken.
    slots: Vec<bool>,
    is_foreign: bool,
    is_free: bool,
    can_end: bool,
    can_take: bool,
    can_give_back: bool,
    agreement: String,
    nodes: Vec<NodeAnswerRow>,
    waiters: Vec<LockWaiterRow>,
    waiting: usize,
    waiters_known: bool,
    history: LockHistory,
    events: Vec<EventRow>,
    completed: Option<CompletedAction>,
}

impl LockPage {
    /// `tenures`: those of this lock; `recent`: newest first. `base_url`: scheme and host, for the commands to copy.
    pub(crate) fn new(
        layout: Layout,
        resource: &ResourceName,
        inspection: Result<&Inspection, &NoQuorum>,
        (tenures, recent): (&KnownTenures, &[Arc<Event>]),
        completed: Option<CompletedAction>,
        base_url: &str,
        wall_ms: u64,
    ) -> Self {
        let of_this_lock = recent.iter().filter(|e| e.resource.as_deref() == Some(resource.as_str()));
        let mut page = Self {
            layout,
            resource: resource.to_string(),
            base: base_url.to_owned(),
            url: format!("{base_url}/locks/{resource}"),
            state: badge("unknown", Severity::Bad),
            sentence: "Fewer than a quorum of the nodes answered, so the holder cannot be determined.".to_owned(),
            holders: Vec::new(),
            further: 0,
            slots: Vec::new(),
            is_foreign: false,
            is_free: false,
            can_end: false,
            can_take: false,
            can_give_back: false,
            agreement: String::new(),
            nodes: Vec::new(),
            waiters: Vec::new(),
            waiting: 0,
            waiters_known: false,
            history: LockHistory::of_lock(resource, inspection.ok(), tenures, (recent, wall_ms)),
            events: of_this_lock.take(EVENTS_SHOWN).map(|event| events::row(event)).collect(),
            completed,
        };
        match inspection {
            Ok(inspection) => page.fill(inspection, wall_ms),
            Err(error) => page.nodes = error.nodes.iter().map(unreachable_row).collect(),
        }
        page
    }

    /// Adds the actions that the reader may take. `has_taken`: the reader acquired the lease, and the service keeps it.
    #[must_use]
    pub(crate) fn for_viewer(self, may_end: bool, may_acquire: bool, has_taken: bool) -> Self {
        let can_take = may_acquire && self.is_free;
        Self { can_end: self.can_end && may_end, can_take, can_give_back: may_acquire && has_taken, ..self }
    }

    /// Adds the names of the principals for which leases are kept.
    #[must_use]
    pub(crate) fn naming_principals(mut self, name_of: impl Fn(&str) -> Option<String>) -> Self {
        self.holders.iter_mut().filter_map(|holder| holder.kept.as_mut()).for_each(|kept| kept.name(&name_of));
        self
    }

    /// Names the tickets of this instance among the waiters: instances publish no ids.
    #[must_use]
    pub(crate) fn with_tickets(mut self, tickets: &[ListedTicket]) -> Self {
        for ticket in tickets.iter().filter(|ticket| ticket.resource.as_str() == self.resource) {
            let owner = format::visible(&ticket.owner);
            // The queue may have advanced since.
            let is_it = |row: &&mut LockWaiterRow| {
                row.is_here && row.is_ticket && Some(row.position) == ticket.position && row.owner == owner
            };
            self.waiters.iter_mut().find(is_it).into_iter().for_each(|row| row.ticket = ticket.id.to_string());
        }
        self
    }

    fn fill(&mut self, inspection: &Inspection, wall_ms: u64) {
        let holders = inspection.holders();
        (self.state, self.sentence) = match &inspection.state {
            LockState::Free => (badge("free", Severity::Neutral), "The lock is not held.".to_owned()),
            LockState::Held(_) | LockState::Foreign { .. } if !inspection.is_confirmed() => {
                let sentence = "Fewer than a quorum of the nodes confirm this lease, and the others do not answer or have no \
                                vote. Its holder may not rely on it, and nobody else can acquire the lock until enough nodes vote.";
                (badge("unknown", Severity::Bad), sentence.to_owned())
            }
            LockState::Held(holders) if holders.iter().all(|holder| holder.valid_for.is_zero()) => (
                badge("expired", Severity::Warn),
                "The last lease has expired; the lock is free after the safety margin.".to_owned(),
            ),
            LockState::Held(holders)
                if holders.len() == 1
                    && inspection.quorum.granted == inspection.quorum.needed
                    && inspection.quorum.nodes > 1 =>
            {
                let sentence = "Exactly a quorum of the nodes reports this lease. Its holder may rely on it; if one of them fails, it may \
                                not be renewed.";
                (badge("held by a bare quorum", Severity::Warn), sentence.to_owned())
            }
            LockState::Held(holders) => (badge("held", Severity::Good), together(holders)),
            LockState::Foreign { left, .. } => {
                let left =
                    left.map_or_else(|| "without expiry".to_owned(), |l| format!("for another {}", format::time(l)));
                let sentence =
                    format!("Another Redlock client holds the lock, {left}. Nothing else is known about the holder.");
                (badge("held by another client", Severity::Warn), sentence)
            }
        };
        self.is_foreign = matches!(inspection.state, LockState::Foreign { .. });
        self.is_free = inspection.state == LockState::Free;
        self.can_end = inspection.etag().is_some();
        self.holders = holders.iter().take(HOLDERS_SHOWN).map(|view| holder(view, wall_ms)).collect();
        self.further = holders.len() - self.holders.len();
        let taken = |slot: u8| holders.iter().any(|holder| holder.mode.slot() == Some(slot));
        self.slots = (0..inspection.mode().limit().map_or(0, PermitLimit::get)).map(taken).collect();
        let count = inspection.quorum;
        self.agreement = format!("{} of {} nodes report it, {} are needed", count.granted, count.nodes, count.needed);
        self.nodes = inspection.nodes.iter().map(|view| node_row(view, holders)).collect();
        (self.waiting, self.waiters_known) = (inspection.waiting, inspection.waiters_known);
        let shown = inspection.waiters.iter().take(WAITERS_SHOWN);
        self.waiters = shown.map(|waiter| waiter_row(waiter, &inspection.instance)).collect();
    }
}

/// How several leases share the lock, in one sentence; empty for an exclusive lease.
fn together(holders: &[HolderInfo]) -> String {
    let count = holders.len();
    match mode_of(holders) {
        WantedMode::Permit { limit } => format!("{count} of {limit} permits are held."),
        WantedMode::Shared if count == 1 => "One shared lease: others may be held beside it.".to_owned(),
        WantedMode::Shared => format!("{count} shared leases: others may be held beside them."),
        WantedMode::Exclusive => String::new(),
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::manager::types::QuorumCount;
    use crate::types::NodeId;

    #[test]
    fn the_state_on_a_node_is_described() {
        let view = |foreign, verdict| ResourceOnNode {
            node: NodeId::parse("n1").expect("valid"),
            holds: Vec::new(),
            foreign,
            ttl_ms: Some(4_200),
            verdict,
        };
        let quarantined = view(false, Verdict::NoVote(NoVote::Quarantined { left_ms: 61_000 }));
        let row = node_row(&quarantined, &[]);
        assert_eq!((row.state.text.as_str(), row.holds.as_str()), ("in quarantine for another 1 m 01 s", "nothing"));
        assert_eq!(node_row(&view(true, Verdict::Granted), &[]).holds, "a lock of another Redlock client");
        assert_eq!(node_row(&view(false, Verdict::NotAwaited), &[]).holds, "-");
        assert_eq!((row.ttl.as_str(), row.ttl_ms), ("4 s", 4_200));
    }

    #[test]
    fn a_completed_action_is_parsed_from_its_name() {
        for action in [CompletedAction::Revoked, CompletedAction::Released] {
            assert_eq!(CompletedAction::parse(action.as_str()), Some(action));
        }
        assert_eq!(CompletedAction::parse(""), None);
    }

    #[test]
    fn free_and_foreign_locks_are_described() {
        let resource = ResourceName::parse("a/b").expect("valid");
        let quorum = |granted| QuorumCount { granted, needed: 2, nodes: 3 };
        let page_of = |state, granted| {
            let quorum = quorum(granted);
            let inspection = Inspection {
                resource: resource.clone(),
                state,
                instance: InstanceName::from_random(1),
                waiters: vec![],
                waiting_here: 0,
                waiting: 0,
                waiters_known: true,
                nodes: vec![],
                quorum,
            };
            let vote = crate::manager::overview::ClusterStatus {
                nodes: vec![],
                quorum,
                draining: false,
                instance: InstanceName::from_random(1),
                situation: Default::default(),
                list: Default::default(),
            };
            let layout = Layout::new(&vote, super::super::layout::Tab::Other, "x", "/ui/locks/a/b");
            let page =
                LockPage::new(layout, &resource, Ok(&inspection), (&KnownTenures::default(), &[]), None, "http://h", 0);
            (page.can_end, page.render().expect("a page"))
        };
        let page = |state| page_of(state, 2);
        let (can_end, html) = page(LockState::Free);
        assert!(!can_end && html.contains("The lock is not held") && !html.contains("/ui/release/"));
        let foreign = LockState::Foreign { left: Some(Duration::from_secs(9)), fingerprint: "ff".into() };
        let (_, doubtful) = page_of(foreign.clone(), 1);
        assert!(doubtful.contains("unknown") && doubtful.contains("may not rely on it"), "{doubtful}");
        let (can_end, html) = page(foreign);
        assert!(can_end && html.contains("for another 9 s") && html.contains("/ui/release/a/b"));
        assert!(!html.contains("/ui/revoke/a/b"), "a lock of another client cannot be revoked");
    }
}
