//! What nodes show of one lease, field by field. Their records differ if a node missed a change, or lies: a field
//! counts as a quorum shows it, and one node is not believed against the others.

use crate::protocol::LeaseRecord;
use crate::types::{Labels, Mode, Ttl};

/// One lease as several nodes show it.
#[derive(Debug, Clone)]
pub(crate) struct Agreement {
    /// Each field as a quorum shows it. If no quorum does, for display: the highest fence, and texts of the latest
    /// record, without its principal. Times are those that a quorum shows at least, or the shortest.
    pub(crate) record: LeaseRecord,
    /// Whether a quorum shows one mode. A lease that any node has as a shared one counts as shared.
    pub(crate) has_mode: bool,
    /// Whether a quorum shows one fence.
    pub(crate) has_fence: bool,
    /// Whether a quorum shows one TTL.
    pub(crate) has_ttl: bool,
    /// Whether a quorum shows one principal.
    pub(crate) has_principal: bool,
    /// Whether a quorum shows one value of each text label.
    pub(crate) has_labels: bool,
    /// Whether a quorum shows one time until which the lease is kept.
    pub(crate) has_end: bool,
}

impl Agreement {
    /// From the records of one token, one record from each node that shows the token; `None` if there are none.
    pub(crate) fn of(shown: &[&LeaseRecord], quorum: usize) -> Option<Self> {
        let latest = shown.iter().max_by_key(|record| record.recency())?;
        let (mode, has_mode) = mode_of(shown, quorum);
        let fence = agreed(shown.iter().map(|record| record.fence), quorum);
        let ttl = agreed(shown.iter().map(|record| record.ttl.as_ms()), quorum);
        let least_ttl = at_least(shown.iter().map(|record| record.ttl.as_ms()), quorum);
        let (mut has_principal, mut has_labels, mut has_end) = (true, true, true);
        let labels = match agreed(shown.iter().map(|record| &record.labels), quorum) {
            Some(labels) => labels.clone(),
            None => {
                let all: Vec<Labels> = shown.iter().map(|record| record.labels()).collect();
                let (labels, has) = labels_of(&all, latest.labels(), quorum);
                (has_principal, has_labels, has_end) = has;
                labels.encode()
            }
        };
        let record = LeaseRecord {
            mode,
            token: latest.token.clone(),
            renewals: at_least(shown.iter().map(|record| record.renewals), quorum),
            ttl: ttl.or(Some(least_ttl)).and_then(|ms| Ttl::from_ms(ms).ok()).unwrap_or(latest.ttl),
            fence: fence.unwrap_or(latest.fence),
            claims: latest.claims.clone(),
            labels,
        };
        let (has_fence, has_ttl) = (fence.is_some(), ttl.is_some());
        Some(Self { record, has_mode, has_fence, has_ttl, has_principal, has_labels, has_end })
    }

    /// Whether a quorum shows one principal and one value of each text: they may be written back.
    pub(crate) fn may_be_written(&self) -> bool {
        self.has_principal && self.has_labels
    }

    /// Whether a quorum shows one value of each field.
    pub(crate) fn is_complete(&self) -> bool {
        self.has_mode && self.has_fence && self.has_ttl && self.has_end && self.may_be_written()
    }
}

/// Whether a node's record agrees with a lease of this mode. The record of a node that did not receive a downgrade,
/// which blocks more callers, agrees as well.
pub(super) fn agrees(shown: Mode, of: Mode) -> bool {
    shown == of || of == Mode::Shared && shown == Mode::Exclusive
}

/// For members: the most common mode and slot, and how many nodes agree with it. `None`: the lease excludes all
/// others. No lease becomes a permit, so one node's permit does not count if a quorum has the lease in another mode.
pub(super) fn member_mode<'a>(shown: impl Iterator<Item = &'a LeaseRecord>, quorum: usize) -> Option<(Mode, usize)> {
    let modes: Vec<Mode> = shown.map(|record| record.mode).collect();
    let votes = |of: Mode| modes.iter().filter(|mode| agrees(**mode, of)).count();
    let members = modes.iter().copied().filter(|mode| *mode != Mode::Exclusive);
    let (mode, agreeing) = members.map(|mode| (mode, votes(mode))).max_by_key(|(_, n)| *n)?;
    let is_exclusive = votes(Mode::Exclusive) >= quorum && agreeing < quorum;
    (!is_exclusive).then_some((mode, agreeing))
}

fn mode_of(shown: &[&LeaseRecord], quorum: usize) -> (Mode, bool) {
    match member_mode(shown.iter().copied(), quorum) {
        Some((mode, agreeing)) => (mode, agreeing >= quorum),
        None => (Mode::Exclusive, shown.len() >= quorum),
    }
}

/// The labels, and whether a quorum shows the principal, all text labels, and the end.
fn labels_of(all: &[Labels], latest: Labels, quorum: usize) -> (Labels, (bool, bool, bool)) {
    let principal = agreed(all.iter().map(|labels| &labels.principal), quorum);
    let owner = agreed(all.iter().map(|labels| &labels.owner), quorum);
    let note = agreed(all.iter().map(|labels| &labels.note), quorum);
    let metadata = agreed(all.iter().map(|labels| &labels.metadata), quorum);
    let has_end = agreed(all.iter().map(|labels| labels.kept_until_ms), quorum).is_some();
    let has = (principal.is_some(), [owner, note].iter().all(Option::is_some) && metadata.is_some(), has_end);
    let time = |of: fn(&Labels) -> u64, nodes: usize| {
        agreed(all.iter().map(of), quorum).unwrap_or_else(|| at_least(all.iter().map(of), nodes))
    };
    let labels = Labels {
        principal: principal.cloned().unwrap_or_default(),
        owner: owner.cloned().unwrap_or(latest.owner),
        note: note.cloned().unwrap_or(latest.note),
        metadata: metadata.cloned().unwrap_or(latest.metadata),
        acquired_at_ms: time(|labels| labels.acquired_at_ms, quorum),
        // As for the renewal of the lease, see `KeptTimes`.
        kept_until_ms: time(|labels| labels.kept_until_ms, quorum.min(2)),
    };
    (labels, has)
}

/// The value that at least `quorum` nodes show.
fn agreed<T: PartialEq>(shown: impl Iterator<Item = T> + Clone, quorum: usize) -> Option<T> {
    let votes = |value: &T| shown.clone().filter(|other| other == value).count();
    shown.clone().find(|value| votes(value) >= quorum)
}

/// The largest value that `nodes` nodes show at least; the smallest if fewer nodes show any.
pub(super) fn at_least<T: Ord + Copy + Default>(shown: impl Iterator<Item = T>, nodes: usize) -> T {
    let mut shown: Vec<T> = shown.collect();
    shown.sort_unstable_by(|a, b| b.cmp(a));
    shown.get(nodes.saturating_sub(1)).or(shown.last()).copied().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::types::{Fence, PermitLimit, TokenHash};

    fn record(owner: &str) -> LeaseRecord {
        let labels = Labels { owner: owner.into(), principal: owner.into(), acquired_at_ms: 7, ..Labels::default() };
        LeaseRecord {
            mode: Mode::Exclusive,
            token: TokenHash::parse(&"0f".repeat(32)).expect("hex"),
            renewals: 3,
            ttl: Ttl::from_ms(60_000).expect("in range"),
            fence: Fence(5),
            claims: "p,".into(),
            labels: labels.encode(),
        }
    }

    /// That of a node that lies about each field, and claims to be the latest.
    fn lie() -> LeaseRecord {
        let limit = PermitLimit::new(9).expect("in range");
        LeaseRecord {
            mode: Mode::Permit { slot: 1, limit },
            renewals: 999_999,
            ttl: Ttl::from_ms(86_400_000).expect("in range"),
            fence: Fence(6),
            ..record("mal")
        }
    }

    #[test]
    fn one_nodes_record_does_not_count_against_a_quorum() {
        for shown in [[record("ann"), record("ann"), lie()], [lie(), record("ann"), record("ann")]] {
            let agreement = Agreement::of(&shown.each_ref(), 2).expect("shown");
            assert!(agreement.is_complete(), "{agreement:?}");
            assert_eq!(LeaseRecord { claims: "p,".into(), ..agreement.record }, record("ann"));
        }
    }

    #[test]
    fn where_no_quorum_agrees_that_is_said_and_times_are_short() {
        let agreement = Agreement::of(&[&record("ann"), &lie()], 2).expect("shown");
        let Agreement { record, has_mode, has_fence, has_ttl, has_principal, has_labels, has_end } = agreement;
        assert!(!has_mode && !has_fence && !has_ttl && !has_principal && !has_labels && has_end);
        assert_eq!((record.ttl.as_ms(), record.renewals, &*record.labels().principal), (60_000, 3, ""));
        assert_eq!(record.labels().owner, "mal", "for display");
    }

    #[test]
    fn a_field_that_one_node_missed_leaves_the_others_certain() {
        let edit = |note: &str, kept_until_ms| {
            let labels = Labels { note: note.into(), kept_until_ms, ..record("ann").labels() };
            LeaseRecord { labels: labels.encode(), ..record("ann") }
        };
        let shown = [edit("a", 0), edit("b", 900), lie()];
        let agreement = Agreement::of(&shown.each_ref(), 2).expect("shown");
        assert!(agreement.has_principal && !agreement.has_labels && agreement.has_end);
        let labels = agreement.record.labels();
        assert_eq!((&*labels.principal, &*labels.owner, labels.acquired_at_ms), ("ann", "ann", 7));
        assert_eq!(labels.kept_until_ms, 0, "one node alone shows an end");
        // Two answers of three: the third decides which of the ends counts, so it is awaited (`inspect`).
        let agreement = Agreement::of(&[&edit("a", 0), &edit("a", 900)], 2).expect("shown");
        assert!(agreement.may_be_written() && !agreement.has_end && !agreement.is_complete());
    }

    #[test]
    fn a_permit_of_one_node_makes_no_member_of_an_exclusive_or_shared_lease() {
        let shared = LeaseRecord { mode: Mode::Shared, ..record("ann") };
        let mode = |shown: &[&LeaseRecord], quorum| Agreement::of(shown, quorum).expect("shown").record.mode;
        assert_eq!(mode(&[&record("ann"), &record("ann"), &lie()], 2), Mode::Exclusive);
        assert_eq!(mode(&[&shared, &lie(), &shared], 2), Mode::Shared);
        assert_eq!(mode(&[&record("ann"), &record("ann"), &shared], 2), Mode::Shared, "a downgrade that one node got");
        assert_eq!(mode(&[&lie(), &lie(), &record("ann")], 2), lie().mode);
    }
}
