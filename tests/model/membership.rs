//! Membership: which process a name is, and which names there are. Rows for `views.rs`. Here processes that a view
//! displaced live on, so a change takes promises first.

use super::views::{Bug, Deny, PROTOCOL, Rules};
use super::{Expect, check, in_depth};

/// Nothing ends and nobody releases; each change takes promises.
fn base() -> Rules {
    Rules { promise: true, coarse: true, wipes: 0, releases: false, ..PROTOCOL.calm() }
}

fn by_effect(rules: Rules, bug: Bug) -> Rules {
    Rules { invariant: false, bug, ..rules }
}

/// The first name has a second process, which is blank; the first one lives.
fn zombie() -> Rules {
    Rules { processes: 4, name_of: [0, 1, 2, 0, 4], alike: &[&[1, 2]], blank: 0b1000, ..base() }
}

/// Each of the first two names has a second process, which a monitor puts in the place of the first.
fn two_live() -> Rules {
    let processes = Rules { processes: 5, name_of: [0, 1, 2, 0, 1], blank: 0b11000, replace: 0b11000, ..base() };
    Rules { alike: &[], changes: [2, 0], ..processes }
}

#[test]
fn a_second_process_under_a_name_has_no_vote_until_it_is_filled() {
    let zombie = zombie();
    let fine = Rules { promise: false, coarse: false, releases: true, gives_up: true, ends: true, ..zombie };
    check(in_depth(fine, zombie), "name: a second process is filled, the first lives", Expect::Holds);
    if in_depth(true, false) {
        check(fine.extends(), "name: the same, extends", Expect::Holds);
    }
    let any = by_effect(zombie, Bug::RosterNotCompared);
    check(any, "name: a view is installed whatever it names", Expect::Broken);
    let back = Rules { replace: 0b1001, changes: [2, 0], ..zombie };
    check(back, "name: there and back", Expect::Holds);
    let two = Rules { changes: [1, 1], ..back };
    if in_depth(true, false) {
        check(two, "name: there and back, two monitors", Expect::Holds);
    }
    let no_since = by_effect(Rules { promise: false, ..back }, Bug::NoSince);
    check(no_since, "name: there and back, a roster without `since`", Expect::Broken);
}

#[test]
fn living_processes_are_replaced_by_promise_and_install() {
    let live = two_live();
    if in_depth(true, false) {
        check(live, "replace: two names, one after the other", Expect::Holds);
        check(Rules { changes: [1, 1], ..live }, "replace: two names, two monitors", Expect::Holds);
    }
    let unpromised = Rules { promise: false, invariant: false, ..live };
    check(unpromised, "replace: two names without a promise", Expect::Broken);
    check(by_effect(live, Bug::BaseAsBelieved), "replace: made from a lower view than was reported", Expect::Broken);
    check(by_effect(live, Bug::PromiseOfMinority), "replace: promises of a minority", Expect::Broken);
}

#[test]
fn seeding_by_the_clock_needs_to_know_that_no_process_was_displaced() {
    let forgets = Rules { wipes: 1, changes: [2, 0], cold: true, ..base() };
    check(forgets, "clock: a process that forgot counts once its leases are over", Expect::Holds);
    let alone = Rules { names: 1, processes: 1, list: 0b1, alike: &[], changes: [1, 1], ..forgets };
    let flushed = Rules { wipes: 2, flushes: true, coarse: false, ..alone };
    check(flushed, "clock: a process is flushed twice, two monitors", Expect::Holds);
    check(by_effect(flushed, Bug::FillUnpromised), "clock: a fill for a view that it has not promised", Expect::Broken);
    let displaced = Rules { processes: 4, name_of: [0, 1, 2, 0, 4], alike: &[&[1, 2]], ..forgets };
    let displaced = Rules { blank: 0b1000, replace: 0b1000, invariant: false, ..displaced };
    check(displaced, "clock: the same beside a process that was displaced and lives", Expect::Limit);
}

#[test]
fn a_restarted_process_counts_by_the_disk_of_a_durable_one() {
    let all = Rules { restarts: 3, changes: [1, 0], ..base() };
    check(
        Rules { deny: Deny::ResumedVote, ..all },
        "disk: a process takes part in a grant by its disk",
        Expect::Reached,
    );
    check(all, "disk: three restarts", Expect::Holds);
    if in_depth(true, false) {
        let two = Rules { restarts: 1, changes: [1, 1], ..base() };
        check(two, "disk: one restart, two monitors", Expect::Holds);
    }
    check(by_effect(all, Bug::OldCopyCounted), "disk: an old copy counts", Expect::Broken);
    check(by_effect(all, Bug::ClockAtStartIgnored), "disk: keys ended early", Expect::Broken);
}

#[test]
fn the_list_changes_by_one_name_at_a_time() {
    let p = base();
    let grow = Rules { names: 4, processes: 4, blank: 0b1000, lists: &[0b1111], ..p };
    let shrink = Rules { names: 4, processes: 4, list: 0b1111, lists: &[0b0111], ..p };
    let down = Rules { alike: &[], lists: &[0b011, 0b001], changes: [2, 0], ..p };
    let up = Rules { list: 0b001, blank: 0b110, lists: &[0b011, 0b111], ..down };
    let beside = Rules { lists: &[0b011, 0b110], changes: [1, 1], ..down };
    check(Rules { deny: Deny::ListChanged, ..grow }, "list: 012 to 0123 is reached", Expect::Reached);
    check(grow, "list: 012 to 0123", Expect::Holds);
    check(shrink, "list: 0123 to 012", Expect::Holds);
    check(up, "list: 0 to 01 to 012", Expect::Holds);
    if in_depth(true, false) {
        check(down, "list: 012 to 01 to 0", Expect::Holds);
        check(Rules { lists: &[0b011, 0b111], ..down }, "list: 012 to 01 and back", Expect::Holds);
        check(beside, "list: 012 to 01 beside 012 to 12, two monitors", Expect::Holds);
        check(Rules { changes: [1, 1], ..up }, "list: 0 to 01 to 012, two monitors", Expect::Holds);
    }
    check(by_effect(up, Bug::NewNotFilled), "list: a new name is not filled", Expect::Broken);
    check(by_effect(down, Bug::CommonNotFilled), "list: names of both lists are not filled", Expect::Broken);
    let jump = Rules { names: 4, processes: 4, list: 0b0011, blank: 0b1100, lists: &[0b0100, 0b1000], ..p };
    let jump = Rules { alike: &[&[0, 1]], changes: [3, 0], ..jump };
    check(by_effect(jump, Bug::SeveralNames), "list: 01 to 2 to 3, several names at once", Expect::Broken);
}

#[test]
fn the_terms_change_as_the_list_does() {
    let terms = Rules { lists: &[0b111], ..base() };
    check(Rules { deny: Deny::ListChanged, ..terms }, "terms: all vote under other terms", Expect::Reached);
    check(in_depth(terms.extends(), terms), "terms: of 012", Expect::Holds);
    if in_depth(true, false) {
        let two = Rules { alike: &[], lists: &[0b111, 0b011], changes: [1, 1], ..terms };
        check(two, "terms: of 012 beside 012 to 01, two monitors", Expect::Holds);
    }
    let unread = by_effect(Rules { wipes: 1, changes: [2, 0], ..terms }, Bug::OneLessThanQuorum);
    check(unread, "terms: installed and read on one less than a quorum", Expect::Broken);
}

#[test]
fn a_lost_lease_is_not_revived_by_a_shorter_list() {
    let two = Rules { alike: &[], names: 2, processes: 2, list: 0b11, lists: &[0b01], changes: [1, 0], ..base() };
    let lost = two.after_the_other();
    check(lost, "list: 01 to 0, a lost lease", Expect::Holds);
    if in_depth(true, false) {
        let three = Rules { alike: &[], lists: &[0b011, 0b001], changes: [2, 0], ..base() };
        check(three.of_a_lost_lease(), "list: 012 to 01 to 0, a lost lease beside a new one", Expect::Holds);
    }
    let bug = |bug, name| check(by_effect(lost, bug), name, Expect::Broken);
    bug(Bug::KeptOfMinority, "list: a key that a minority shows is kept as a vote");
    bug(Bug::KeyOutlivesItsBlock, "list: a key outlasts the block of its own lease");
    bug(Bug::BlockedExtendApplied, "list: extends lengthen a key behind the block of its own lease");
}
