//! What a process reports of itself, and which processes count for a view.

use std::sync::Arc;

use crate::mutant::{self, Mutant};
use crate::protocol::{Inherited, MemberStatus, NoVote, NodeStatus, RosterEntry, View, ViewId, Vote};

/// By how much the number of a view may exceed the highest number that any other process knows: a cluster that
/// changes its view each second gets there in 136 years.
const NUMBERS_AHEAD_MAX: u64 = 1 << 32;

/// What a process reports of itself.
#[derive(Debug, Clone)]
pub(crate) struct Member {
    /// Whether the process votes, in any view.
    pub(crate) is_sound: bool,
    /// Whether the process has served its quarantine, and waits for a vote.
    pub(crate) is_served: bool,
    /// Whether the process could be filled: it is not of another cluster, and its clock is right.
    pub(crate) is_fillable: bool,
    /// Whether the process reports no other cluster. If this instance's clock is off, the process does not report its cluster.
    pub(crate) is_ours: bool,
    /// The identity of the process.
    pub(crate) run: Arc<str>,
    /// The process has the data of a durable one, and waits.
    pub(crate) inherited: Option<Inherited>,
    /// The view that the process has installed.
    pub(crate) view: Arc<View>,
    /// The process installs no view below this one.
    pub(crate) promised: ViewId,
    /// The last admission of the process.
    pub(crate) admitted: ViewId,
}

impl Member {
    /// Whether the view's entry is this process, or the one whose data it has and in whose place it counts.
    pub(crate) fn is_entry(&self, entry: &RosterEntry) -> bool {
        let inherits = self.is_sound && self.inherited.as_ref().is_some_and(|was| was.run == entry.run);
        let is_since = entry.since == self.admitted || inherits && mutant::is(Mutant::SinceNotKept);
        (entry.run == self.run || inherits) && is_since
    }

    fn new(vote: &Vote, run: &str, view: &Arc<View>, promised: ViewId, admitted: ViewId) -> Self {
        let is_sound = matches!(vote, Vote::Active | Vote::NoVote(NoVote::OtherView { .. }));
        let is_served = matches!(vote, Vote::NoVote(NoVote::Unseeded { .. }));
        let waits = matches!(vote, Vote::NoVote(NoVote::Quarantined { .. }));
        let is_fillable = is_sound || is_served || waits;
        let is_ours = !matches!(vote, Vote::NoVote(NoVote::OtherCluster { .. } | NoVote::NewerProtocol { .. }));
        let (run, view) = (run.into(), Arc::clone(view));
        Self { is_sound, is_served, is_fillable, is_ours, run, inherited: None, view, promised, admitted }
    }
}

impl From<&NodeStatus> for Member {
    fn from(status: &NodeStatus) -> Self {
        let member = Self::new(&status.vote, &status.run, &status.view, status.promised, status.admitted);
        Self { inherited: status.inherited.clone(), ..member }
    }
}

impl From<&MemberStatus> for Member {
    fn from(status: &MemberStatus) -> Self {
        let member = Self::new(&status.vote, &status.run, &status.view, status.promised, status.admitted);
        Self { inherited: status.inherited.clone(), ..member }
    }
}

/// Leaves out processes that show a view, or a promise, whose number exceeds all others by an impossible distance: if
/// it were accepted, no number would be left for the next view. `own`: the view of this instance.
pub(crate) fn plausible(members: Vec<Option<Member>>, own: ViewId) -> Vec<Option<Member>> {
    let number = |m: &Member| m.promised.max(m.view.id).number();
    let mut numbers: Vec<u64> = members.iter().flatten().map(number).collect();
    numbers.sort_unstable();
    let limit = |known: u64| known.saturating_add(NUMBERS_AHEAD_MAX);
    let highest = numbers
        .into_iter()
        .fold(own.number(), |known, number| if number <= limit(known) { known.max(number) } else { known });
    members.into_iter().map(|member| member.filter(|m| number(m) <= highest)).collect()
}

/// Whether the process may count for a view derived from `base`: it has installed no higher view. No view is derived below
/// one that may be chosen, even if this instance cannot believe that view (`docs/views.md`, *Changing the view*, step 2).
pub(crate) fn may_count(base: &View, member: &Member) -> bool {
    member.view.id <= base.id || mutant::is(Mutant::HigherViewCounts)
}
