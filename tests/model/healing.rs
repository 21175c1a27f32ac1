//! Healing: a process that forgot is filled by the others and votes again. Rows for `views.rs`: one name is one
//! process here, so a change needs no promise, and the rows allow more than the protocol does.

use super::views::{Bug, Deny, PROTOCOL, Rules};
use super::{Expect, check, in_depth};

/// Two processes forget, or one does so twice.
fn two_wipes(rules: Rules) -> Rules {
    Rules { wipes: 2, changes: [2, 0], ..rules }
}

/// The same, and each of two monitors heals one.
fn two_monitors(rules: Rules) -> Rules {
    Rules { changes: [1, 1], ..rules }
}

/// Exclusion alone is looked at, so that a mutant is found by what it does.
fn by_effect(rules: Rules, bug: Bug) -> Rules {
    Rules { invariant: false, bug, ..rules }
}

/// Nothing ends and nothing is released, in coarse steps.
fn small(rules: Rules) -> Rules {
    Rules { coarse: true, releases: false, ..rules.calm() }
}

/// Promises end, nobody gives up.
fn ends(rules: Rules) -> Rules {
    Rules { ends: true, gives_up: false, releases: false, ..rules }
}

/// Copies, repairs that lift blocks and arrive late, tombstones; the first client extends.
fn renewed() -> Rules {
    let repairs = Rules { repairs: true, late_repairs: true, repairs_lift: true, ..PROTOCOL };
    Rules { copy: true, tombstones: true, aged: true, ..repairs }.extends()
}

/// The same where tombstones are over or were forgotten.
fn without_tombstones(rules: Rules) -> Rules {
    Rules { tombstones: false, ..rules }
}

#[test]
fn a_process_that_forgot_votes_again_and_for_nothing_that_it_does_not_know() {
    let p = PROTOCOL;
    let reach = Rules { deny: Deny::HealedVote, ..small(p) };
    check(reach, "views: a healed process takes part in a grant", Expect::Reached);
    check(in_depth(p, p.calm()), "views: one wipe", Expect::Holds);
    let two = Rules { wipes: 2, ..two_monitors(p) };
    check(in_depth(two.calm(), small(two)), "views: two wipes, two monitors", Expect::Holds);
    let promised = Rules { promise: true, ..small(two) };
    check(promised, "views: the same, with promises", Expect::Holds);
    check(p.extends().calm(), "views: one wipe, extends", Expect::Holds);
    if in_depth(true, false) {
        check(two_wipes(p), "views: two wipes", Expect::Holds);
        check(two_wipes(p.extends().calm()), "views: two wipes, extends", Expect::Holds);
    }
    let (effect, small) = (by_effect, small(p));
    check(effect(small, Bug::ReadBeforeEnter), "views: read before the view is installed", Expect::Broken);
    check(effect(small, Bug::OneLessThanQuorum), "views: installed and read on one less than a quorum", Expect::Broken);
    check(effect(small, Bug::TargetCounts), "views: the process to be filled counts as read", Expect::Broken);
    check(effect(p.calm(), Bug::ViewsMixed), "views: votes of two views counted together", Expect::Broken);
    check(effect(p.calm(), Bug::PartOfPages), "views: admitted after a part of the pages", Expect::Broken);
    check(effect(two_wipes(small), Bug::BlocksNotListed), "views: blocks are not listed", Expect::Broken);
    check(effect(two_wipes(small), Bug::RunByHandshake), "views: the run by hand-shake, one wipe more", Expect::Broken);
    let (extends, asks_again) = (ends(p.extends()), small.asks_again());
    check(Rules { bug: Bug::BlockSmallestTtl, ..extends }, "views: a block by the smallest TTL", Expect::Broken);
    check(effect(extends, Bug::BlockedExtendCounts), "views: extends of a blocked resource count", Expect::Broken);
    check(effect(asks_again, Bug::CopiesOfAny), "views: copies in the place of blocks", Expect::Broken);
    check(p.calm().mutant(Bug::AnyFillAdmits), "views: admitted with another view's fill (harmless)", Expect::Holds);
}

#[test]
fn five_names_heal_as_three_do() {
    let p = PROTOCOL;
    let five = Rules { processes: 5, names: 5, list: 0b11111, alike: &[&[0, 1, 2, 3, 4]], releases: false, ..p };
    let calm = in_depth(five.calm(), small(five));
    check(calm, "views: five names, one wipe", Expect::Holds);
    check(Rules { promise: true, ..small(five) }, "views: five names, one wipe, with promises", Expect::Holds);
    if in_depth(true, false) {
        check(two_wipes(small(five)), "views: five names, two wipes", Expect::Holds);
    }
    let less = by_effect(small(five), Bug::OneLessThanQuorum);
    check(less, "views: five names, one less than a quorum", Expect::Broken);
}

#[test]
fn a_clock_that_ran_ahead_costs_a_fill() {
    let step = Rules { steps: 1, releases: false, ..PROTOCOL };
    check(step.calm(), "views: a clock ahead and back, one wipe", Expect::Holds);
    let again = by_effect(step.calm(), Bug::SameViewAgain);
    check(again, "views: admitted a second time by one view's fill", Expect::Broken);
    let unseen = by_effect(step.calm(), Bug::ClockAtAdmitIgnored);
    check(unseen, "views: a clock off during a fill, and admitted", Expect::Broken);
}

#[test]
fn fences_rise_through_a_change_of_view() {
    let fences = PROTOCOL.with_fences();
    let quiet = Rules { releases: false, gives_up: false, ..fences };
    let coarse = Rules { coarse: true, ..quiet };
    check(in_depth(quiet, coarse), "views: fences, one wipe", Expect::Holds);
    if in_depth(true, false) {
        check(two_wipes(coarse), "views: fences, two wipes", Expect::Holds);
    }
    let early = small(fences).mutant(Bug::FencesBeforeEnter);
    check(early, "views: fences read before the view is installed", Expect::Broken);
}

#[test]
fn a_lease_that_is_renewed_survives_rolling_restarts() {
    let p = PROTOCOL;
    let repaired = Rules { repairs: true, repairs_lift: true, ..p };
    let rolling = |rules: Rules, name, expect| check(rules.rolling_restart(), name, expect);
    rolling(Rules { copy: true, ..p }, "rolling: extended after the third restart, by copies", Expect::Reached);
    rolling(p, "rolling: extended after the third restart, by neither", Expect::Holds);
    if in_depth(true, false) {
        rolling(repaired, "rolling: extended after the third restart, by repairs", Expect::Reached);
        rolling(Rules { copy: true, ..repaired }, "rolling: the same, by both", Expect::Reached);
        let no_lift = Rules { repairs: true, ..p };
        rolling(no_lift, "rolling: by repairs that lift no blocks", Expect::Holds);
    }
}

#[test]
fn copies_and_repairs_are_votes_that_were_given() {
    let both = renewed();
    let (copies, repairs) = (Rules { repairs_lift: false, ..both }, Rules { copy: false, ..both });
    check(both.calm(), "copies and repairs: one wipe", Expect::Holds);
    if in_depth(true, false) {
        let two = two_wipes(without_tombstones(both).calm().in_coarse_steps());
        check(two, "copies and repairs: two wipes, no tombstones", Expect::Holds);
        check(both.calm().other_extends(), "copies and repairs: the other client extends", Expect::Holds);
        let former = copies.calm().mutant(Bug::CopyOfFormerKey);
        check(former, "copies: what the process showed before it forgot counts (harmless)", Expect::Holds);
    }
    let asks_again = small(copies).asks_again();
    check(by_effect(asks_again, Bug::CopiesOfMinority), "copies: of what a minority shows", Expect::Broken);
    let copies = without_tombstones(copies).calm().in_coarse_steps();
    let bug = |bug, name| check(copies.mutant(bug), name, Expect::Broken);
    bug(Bug::CopySmallestTtl, "copies: with the smallest TTL");
    bug(Bug::CopyOfPresentKey, "copies: what the process shows itself counts");
    bug(Bug::CopyOfBackup, "copies: what an old backup shows counts");
    let beside = two_wipes(copies).mutant(Bug::CopyBesideBlock);
    check(beside, "copies: a node that has a block counts", Expect::Broken);
    let repairs = without_tombstones(repairs).calm();
    let older = repairs.in_coarse_steps().mutant(Bug::RepairOfOlderView);
    check(older, "repairs: an extend confirmed in an older view", Expect::Broken);
    check(repairs.mutant(Bug::RepairShortensBlock), "repairs: the block is shortened", Expect::Broken);
}
