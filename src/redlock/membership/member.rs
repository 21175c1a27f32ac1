//! What a process says of itself, and who counts for a view.

use std::sync::Arc;

use crate::mutant::{self, Mutant};
use crate::protocol::{MemberStatus, NoVote, NodeStatus, View, ViewId, Vote};

/// By how much the number of a view may be above the highest that any other process knows: a cluster that changes its view each
/// second gets there in 136 years.
const NUMBERS_AHEAD_MAX: u64 = 1 << 32;

/// What a process says of itself.
#[derive(Debug, Clone)]
pub(crate) struct Member {
    /// It votes, in whatever view.
    pub(crate) is_sound: bool,
    /// It has served its quarantine, and waits for a vote.
    pub(crate) is_served: bool,
    /// It could be filled: it is not of another cluster, and its clock is right.
    pub(crate) is_fillable: bool,
    /// It is not of another cluster, as far as it says: where this instance's clock is off, it does not say.
    pub(crate) is_ours: bool,
    /// Which process it is.
    pub(crate) run: Arc<str>,
    /// The view that it has installed.
    pub(crate) view: Arc<View>,
    /// It installs no lower view.
    pub(crate) promised: ViewId,
    /// Its last admission.
    pub(crate) admitted: ViewId,
}

impl Member {
    fn new(vote: &Vote, run: &str, view: &Arc<View>, promised: ViewId, admitted: ViewId) -> Self {
        let is_sound = matches!(vote, Vote::Active | Vote::NoVote(NoVote::OtherView { .. }));
        let is_served = matches!(vote, Vote::NoVote(NoVote::Unseeded { .. }));
        let waits = matches!(vote, Vote::NoVote(NoVote::Quarantined { .. }));
        let is_fillable = is_sound || is_served || waits;
        let is_ours = !matches!(vote, Vote::NoVote(NoVote::OtherCluster { .. } | NoVote::NewerProtocol { .. }));
        Self { is_sound, is_served, is_fillable, is_ours, run: run.into(), view: Arc::clone(view), promised, admitted }
    }
}

impl From<&NodeStatus> for Member {
    fn from(status: &NodeStatus) -> Self {
        Self::new(&status.vote, &status.run, &status.view, status.promised, status.admitted)
    }
}

impl From<&MemberStatus> for Member {
    fn from(status: &MemberStatus) -> Self {
        Self::new(&status.vote, &status.run, &status.view, status.promised, status.admitted)
    }
}

/// Leaves out who shows a view, or a promise, whose number is further above all others than numbers ever are: taken as it is, it
/// would leave no number for the next view. `own`: the view of this instance.
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

/// Whether the process may count for what follows `base`: it has installed no higher view. Nothing is derived below a view that
/// may be chosen, also where this instance cannot believe that view (`docs/views.md`, *Changing the view*, step 2).
pub(crate) fn may_count(base: &View, member: &Member) -> bool {
    member.view.id <= base.id || mutant::is(Mutant::HigherViewCounts)
}
