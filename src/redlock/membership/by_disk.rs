//! Processes that restarted with the data of a durable one, and count as that one (`docs/views.md`, *By its disk*): pure rules.

use std::time::Duration;

use super::next_view::{Member, NodeAnswers};
use crate::mutant::{self, Mutant};
use crate::redlock::node_health::Followed;

/// How much later than this instance's last answer of a durable process its last probe may have been: an instance that was cut
/// off from it for longer cannot tell whether its data is the latest.
const BEAT_AFTER_MAX: Duration = Duration::from_secs(3);

impl Member {
    /// Whether the process has the latest data of the durable one that this instance has followed, and may take its place now.
    fn may_resume(&self, followed: Option<&Followed>) -> bool {
        let Some(was) = self.inherited.as_ref().filter(|was| was.is_ready) else { return false };
        let is_latest = followed.is_some_and(|(run, at_us)| {
            was.run == *run
                && was.beat_us.checked_sub(*at_us).is_some_and(|us| Duration::from_micros(us) <= BEAT_AFTER_MAX)
        });
        is_latest || mutant::is(Mutant::OldCopyCounted)
    }

    /// Counts as sound by its disk.
    fn resumed(&self) -> Self {
        Self { is_sound: true, is_served: false, ..self.clone() }
    }
}

impl NodeAnswers<'_> {
    /// The members, of which those that have the latest data of a durable process count as sound by it: only where too few
    /// vote, and with them a quorum does in the view that counts then. `followed`: by node index.
    pub(crate) fn by_disk(&self, followed: &[Option<Followed>]) -> Vec<Option<Member>> {
        let (base, named) = self.base();
        if named.len() >= self.quorum(&base) || self.can_complete(&base, &named) {
            return self.members.to_vec();
        }
        let may = |i: usize| {
            let followed = followed.get(i).and_then(Option::as_ref);
            !self.rivals[i] && self.members[i].as_ref().is_some_and(|m| m.may_resume(followed))
        };
        let with = |counts: &dyn Fn(usize) -> bool| -> Vec<Option<Member>> {
            let of =
                |(i, m): (usize, &Option<Member>)| m.as_ref().map(|m| if counts(i) { m.resumed() } else { m.clone() });
            self.members.iter().enumerate().map(of).collect()
        };
        let all = with(&may);
        let named = NodeAnswers { members: &all, ..*self }.base().1;
        let members = with(&|i| may(i) && named.contains(&i));
        let (base, named) = NodeAnswers { members: &members, ..*self }.base();
        if named.len() >= self.quorum(&base) { members } else { self.members.to_vec() }
    }

    /// Whether a process counts by its disk, and needs a view that names it.
    pub(crate) fn has_resumed(&self) -> bool {
        self.sound().any(|(_, m)| m.inherited.is_some())
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::sync::Arc;

    use super::*;
    use crate::mutant::{plant, restore};
    use crate::protocol::{Inherited, RosterEntry, View, ViewId};
    use crate::redlock::membership::next_view::Change;
    use crate::types::NodeId;

    const BEAT_US: u64 = 1_000_000_000;
    const LATE_US: u64 = 3_000_000;

    fn names() -> [NodeId; 3] {
        ["a", "b", "c"].map(|name| NodeId::parse(name).expect("valid"))
    }

    fn since() -> ViewId {
        ViewId::NONE.above(7)
    }

    fn view(number: u64, runs: [&str; 3]) -> Arc<View> {
        let id = (1..number).fold(since(), |id, _| id.above(7));
        let entry =
            |(name, run): (NodeId, &str)| (name, RosterEntry { run: run.into(), since: since(), address: None });
        let roster: BTreeMap<_, _> = names().into_iter().zip(runs).map(entry).collect();
        Arc::new(View { id, list: None, roster })
    }

    /// A process that restarted with the data of `was`.
    fn restarted(run: &str, was: &str, view: &Arc<View>) -> Option<Member> {
        Some(Member {
            is_sound: false,
            is_served: false,
            is_fillable: true,
            is_ours: true,
            run: run.into(),
            inherited: Some(Inherited { run: was.into(), beat_us: BEAT_US, is_ready: true }),
            view: Arc::clone(view),
            promised: view.id,
            admitted: since(),
        })
    }

    fn votes(run: &str, view: &Arc<View>) -> Option<Member> {
        restarted(run, run, view).map(|m| Member { is_sound: true, inherited: None, ..m })
    }

    fn followed(run: &str, at_us: u64) -> Option<Followed> {
        Some((run.into(), at_us))
    }

    fn derive(members: &[Option<Member>], followed: &[Option<Followed>], rivals: [bool; 3]) -> Option<Change> {
        let (names, own) = (names(), Arc::default());
        let known = NodeAnswers {
            names: &names,
            members,
            rivals: &rivals,
            ended: &[false; 3],
            addresses: &[],
            configured: 3,
            own: &own,
        };
        let members = known.by_disk(followed);
        NodeAnswers { members: &members, ..known }.derive(ViewId::NONE.above(9).above(9).above(9).above(9), 0)
    }

    fn all_followed() -> [Option<Followed>; 3] {
        ["a1", "b1", "c1"].map(|run| followed(run, BEAT_US))
    }

    #[test]
    fn after_a_power_cut_a_view_names_the_new_processes_under_their_former_admissions() {
        let w = view(2, ["a1", "b1", "c1"]);
        let members = [restarted("a2", "a1", &w), restarted("b2", "b1", &w), restarted("c2", "c1", &w)];
        let change = derive(&members, &all_followed(), [false; 3]).expect("a view");
        assert_eq!((change.sound, change.targets, change.by_clock), (vec![0, 1, 2], vec![], false));
        assert_eq!(change.view.roster, view(2, ["a2", "b2", "c2"]).roster);
        // That view was installed by a part of them.
        let next = view(3, ["a2", "b2", "c2"]);
        let members = [votes("a2", &next), restarted("b2", "b1", &w), None];
        let change = derive(&members, &all_followed(), [false; 3]).expect("a view");
        assert_eq!((change.sound, change.view.roster.clone()), (vec![0, 1], next.roster.clone()));
    }

    #[test]
    fn a_process_counts_only_with_the_latest_data_alone_and_where_too_few_vote() {
        let w = view(2, ["a1", "b1", "c1"]);
        let restarted_two = || [restarted("a2", "a1", &w), restarted("b2", "b1", &w), None];
        let with =
            |of_b: Option<Followed>| derive(&restarted_two(), &[followed("a1", BEAT_US), of_b, None], [false; 3]);
        assert!(with(followed("b1", BEAT_US)).is_some() && with(followed("b1", BEAT_US - LATE_US)).is_some());
        for other in [None, followed("b0", BEAT_US), followed("b1", BEAT_US + 1), followed("b1", BEAT_US - LATE_US - 1)]
        {
            assert!(with(other.clone()).is_none(), "{other:?}");
        }
        assert!(derive(&restarted_two(), &all_followed(), [false, true, false]).is_none(), "another process is alive");
        let mut early = restarted_two();
        early[1].as_mut().and_then(|m| m.inherited.as_mut()).expect("it restarted").is_ready = false;
        assert!(derive(&early, &all_followed(), [false; 3]).is_none());
        // The others can fill it: so they do.
        let members = [restarted("a2", "a1", &w), votes("b1", &w), votes("c1", &w)];
        let change = derive(&members, &all_followed(), [false; 3]).expect("a view");
        assert_eq!((change.sound, change.targets), (vec![1, 2], vec![0]));
    }

    #[test]
    fn a_process_counts_for_no_view_with_another_admission() {
        let w = view(2, ["a1", "b1", "c1"]);
        let mut later = View::clone(&view(3, ["a1", "b1", "c1"]));
        later.roster.get_mut(&names()[1]).expect("an entry").since = later.id;
        let later = Arc::new(later);
        let members = [votes("a1", &later), restarted("b2", "b1", &w), None];
        assert!(derive(&members, &all_followed(), [false; 3]).is_none());
        let before = plant(Some(Mutant::SinceNotKept), false);
        let found = derive(&members, &all_followed(), [false; 3]).is_some();
        restore(before);
        assert!(found, "the mutant is not found");
    }
}
