//! The test suite: seeds in the ordinary tests, a replay of one, and a command for a million.
#![expect(clippy::print_stdout, reason = "traces and progress are the output of runs by hand")]

use super::coverage;
use super::mutants;
use super::profile::Profile;
use super::run::{Summary, run, run_many};

/// Seeds of the ordinary suite.
const SEEDS: u64 = 2_000;
/// One in so many runs twice.
const TWICE_EVERY: u64 = 20;
/// Seeds that once failed, with the cause; "of the simulator" or "of the checker" where the core was right. They keep the faults
/// that they had: none of [`Profile::with_later_faults`].
pub(super) const REGRESSIONS: [u64; 72] = [
    25,        // a release was answered as lost by nodes that had forgotten the lease
    99_551,    // of the simulator: a TTL that the instance would have refused
    130_368,   // of the simulator: all clocks stepped while an instance was starting
    141_742,   // two nodes that had been an hour ahead granted fences that the others refused: nothing was granted
    152_793, // of the simulator: after all clocks went back twice, one more quarantine was required than it waited for
    320_497, // of the simulator: all clocks stepped before an instance had measured them
    324_241, // of the checker: a node that forgot was not seeded, as it was in another cluster
    441_810, // of the simulator: a new cluster was initialised once, while answers were slow, and not retried
    413_724, // a monitor of another cluster, which detected the step too, took nodes over
    416_920, // of the checker: a cancelled claim was prolonged by another request with its token
    543_915, // a quarantine ordered by a clock that was stepped back replaced one by the clock that returned
    737_891, // a node that forgot while its clock was back voted when it returned, in its quarantine
    749_303, // of the simulator: clocks drifted apart by more than the guard in the calm
    780_488, // of the simulator: all clocks stepped, and every instance that detected it died before it could act
    784_919, // of the simulator: as 749303
    638_293, // of the checker: an instance that was stopped into the calm cleaned up late
    858_345, // of the checker: a lease was kept at the instant at which its caller hung up
    87,      // an abandoned claim outlived its bound, because a waiter with the same token joined it
    1_424, // a process was admitted in a view when a higher one named it anew, and too few others were left to fill it
    10_537, // a late answer to a probe from before an operator's word that the node has ended took the word back
    14_529, // of the checker: a witness of another cluster than the node's
    22_028, // a holder that repeated its acquire without waiting got no answer before the end of its lease
    24_721, // the same
    9_264, // a release was answered as lost by a node that was filled after the release had ended the lease elsewhere
    20_179, // of the simulator: a request from before a failover took the vote of a process that had been healed since
    51_735, // of the simulator: the clocks of two nodes, one after the other, quarantined a majority
    60_637, // of the checker: a request joined the lease of a later one with its token
    22_220, // of the checker: a node was filled from one that had lost a cancel with the tail of its log
    31_115, // of the simulator: one node, whose quarantine outlasts the run
    62_094, // of the checker: what a cut held back arrived after the faults were over
    41_771, // a change installed its view two seconds after its promises, when others had gone on
    8_683, // a node of both lists of a change forgot between its reading and its fill, which counted on the keys that it had
    1_775, // a cold view over a list that was being changed was left half done: the name that had been added counted nowhere
    9_000_530, // an instance that may not take the nodes' view made a new one each second, in which nobody else could vote for long
    18_874,    // of the checker: as 416920, and the first request tried again last
    182_224,   // of the simulator: the clock of the only node returned before an instance had seen it depart
    122_786,   // an instance that did not know the nodes' time yet asked a node whose clock was off as much as its own
    142_650,   // of the simulator: others completed what an initialisation had begun, whose answers were late
    174_785,   // the same
    1_544,     // two clusters whose lists overlap: one was seeded by the clock without the node that both have
    2_030,     // a downgrade answered a fence that one node alone had given: a later lease got a lower one
    2_205,     // the same of an extend of a shared lease
    23_184,    // an extend answered the slot that a late attempt had left on one node
    24_956,    // the same, where another caller had that slot
    82_974,    // of the simulator: all nodes of an instance's list were removed while it was paused, and forgot
    40_838, // of the simulator: one of the instances still knew a change of a list of one, which its node had forgotten
    49_172, // of the checker: a node forgot a cancel, and was filled from nodes that had not had it yet
    109_589, // of the checker: the same, where the tombstone of the cancel had ended
    69_903, // of the checker: another request with the token moved the end of a kept lease, which one node missed
    50_160, // of the simulator: all clocks were stepped, and the operator ended every instance that had seen it
    177_055, // of the simulator: an instance was left with too few nodes of its list after the last fault
    117_639, // a block for a lease that was stored while a clock was an hour ahead stood for that hour
    139_959, // two nodes reported an end while their connections were away, one after the other: the waiter slept on
    1_240,  // two instances removed the other one of two names each: the list was empty
    991,    // an instance whose clock was off counted the clocks of removed nodes
    723,    // a majority forgot after a change of the list: a removed node was waited for
    290,    // an instance that knew one node did not learn the address of the second
    3_101, // a list was settled by a node that was left; who had left it showed the view before, and did not count as a witness
    3_113, // the only node that an instance knew was removed and forgot: it did not connect to the one that took its place
    4_884, // a node was added while a shared lease got its fence: the task panicked
    6_648, // a node that was added and admitted by a later view had no address in any: others did not find it
    65_841, // who was alone took the nodes' time for the right one just after all clocks were stepped: two holders
    86_620, // an intent that was left while the clock was ahead by an hour kept everybody out for an hour
    12_784, // an instance was cut off during three changes of the list, which left one of its nodes
    26_859, // the only node of a list forgot that a second one had been added
    55_781, // as the first of these two, where the instance was stopped
    34_936, // of the checker: of two instances that asked with one token, the one that was stopped midway counted as the first
    364_576, // of the checker: an answer that an instance sent later than the downgrade of its lease
    303_293, // of the checker: shared leases, whose ends are times of clocks that went back by 43 s
    305_003, // of the checker: a kept lease, whose end is a time of clocks that went back by 41 s
    7_005_238, // of the checker: a node that refused a set had one of its leases before, from other nodes
    7_001_306, // found by an earlier build, which this one's history has left
];

/// The same for seeds with these later faults, whose instances all ask all nodes at once.
pub(super) const LATER_REGRESSIONS: [u64; 26] = [
    279, // all nodes had restarted after a replacement: who had not followed it asked the former server, and nobody voted
    4_044, // the same, where an instance went on following the address of its own view, which was an earlier one
    54_621, // the same, where the own view was a later one, which all processes had lost with the ends of their logs
    115_096, // the same
    75_159, // of the checker: leases of an only node, granted while its clock was ahead, lasted until that clock was there again
    74_268, // an instance asked for keys by its own template in a view that did not accept it: two holders
    81_944, // a key that too few nodes showed voted for a lost lease again in a shorter list
    143_126, // of the simulated operator: nodes that were down, and about to forget, counted as showing the latest terms
    180_666, // the same: the last view removed the name that leads to two servers, one of which had a vote that was needed
    189_171, // the same: blank nodes had been given to instances with different terms, and those that fewer nodes accepted were chosen
    127_976, // of the simulated operator: it ended all instances while a change of the terms was on one node of three
    158_667, // the same: it judged by the configured list whether an instance could follow, not by the list that this instance had
    203_482, // the same: it counted a node whose address the instance did not follow
    227_642, // of the checker: of two nodes that had a fence, one ended for good and one forgot it, and all clocks had gone back
    4_006, // the nodes kept the end that a lease had, and the instance that had sent a later first end renewed it up to that
    289_718, // of the simulated operator: two removals and new terms were in force after it had corrected the instances
    2_357, // the same, corrected too late: it started the instances again just before they were asked
    84_577, // the same: where no view had a list, it did not count the second server of a configured name, which the view named
    431_322, // the same: it did not know a name that a node with a vote had in its list, and that instances said they lacked
    70_400, // a change of another cluster, paused after its promises, went on when two nodes had forgotten once more: two holders
    337_442, // an instance in an earlier view followed stepped clocks, and asked a server that it had not quarantined: two holders
    402_604, // an attempt was cancelled by a key template that a node had not followed yet, and which it could not map back
    2_407,   // of the simulated operator: it started instances with both lists of a change that was complete
    5_732, // the removal of a node was half done, and two of the four nodes forgot: no instance that started learned the cluster's name
    7_110, // the same after a change that was complete, where one of three nodes still knew it
    275_919, // a process that was removed, and still answered, said which list counts: it had a name that was removed later
];

/// The same for seeds with all faults.
const LAST_REGRESSIONS: [u64; 7] = [
    32_541,  // of the simulated operator: all nodes forgot, and it left the instances with different terms
    706_331, // a release was answered as lost by a process that was admitted after its answer
    708_466, // both nodes of a list had restarted: a removed process, whose list had a node that was gone, said which list counts
    771_185, // the same
    735_646, // the removal of a node gave a shared lease the fence that this node alone had given it, and others to another lease
    144_722, // of the simulator: a restarted instance knew the cluster's name, whose terms it was not configured with
    768_150, // of four nodes, half were off by more than the guard after a step of all clocks: no instance followed
];

fn number(name: &str, default: u64) -> u64 {
    std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(default)
}

fn assert_none_failed(summary: &Summary) {
    for (seed, text) in &summary.failed {
        println!("seed {seed}: {text}\n  {:?}", Profile::of(*seed));
        println!("  replay: SIM_SEED={seed} SIM_TRACE=1 cargo test --lib sim::suite::replay -- --nocapture");
    }
    assert!(summary.failed.is_empty(), "{} seeds failed, see above", summary.failed.len());
}

#[test]
fn no_seed_violates_an_invariant() {
    let summary = run_many(number("SIM_FROM", 0), number("SIM_SEEDS", SEEDS), TWICE_EVERY, 3, |_| {});
    assert_none_failed(&summary);
    let never: Vec<_> = coverage::ALL.iter().filter(|what| summary.coverage.of(**what) == 0).collect();
    assert!(summary.seeds < SEEDS || never.is_empty(), "never met in {} seeds: {never:?}", summary.seeds);
}

#[test]
fn regression_seeds_pass() {
    for seed in REGRESSIONS.into_iter().chain(LATER_REGRESSIONS).chain(LAST_REGRESSIONS) {
        let outcome = run(seed, None, false);
        assert_eq!(outcome.violation, None, "seed {seed}");
    }
}

/// Without `SIM_SEED`: that the first seeds run twice give one history.
#[test]
fn replay() {
    let bug = std::env::var("SIM_BUG").ok().and_then(|name| mutants::named(&name));
    let (one, tracing) = (std::env::var("SIM_SEED").is_ok(), std::env::var("SIM_TRACE").is_ok());
    let seeds = if one { number("SIM_SEED", 0)..number("SIM_SEED", 0) + 1 } else { 0..20 };
    for seed in seeds {
        if one {
            println!("{:?}", Profile::of(seed));
        }
        let first = run(seed, bug, tracing);
        assert_eq!(first.hash, run(seed, bug, false).hash, "seed {seed} gave two histories");
        assert_eq!(first.violation, None, "seed {seed}");
    }
}

/// By hand, see the head of `mod.rs`.
#[test]
#[ignore = "takes hours: run by hand"]
fn many() {
    let every = number("SIM_TWICE_EVERY", TWICE_EVERY);
    let summary = run_many(number("SIM_FROM", 0), number("SIM_SEEDS", 1_000_000), every, 20, |sum| {
        if sum.seeds.is_multiple_of(10_000) {
            println!("{} seeds, {} grants, {} failed", sum.seeds, sum.grants, sum.failed.len());
        }
    });
    for what in coverage::ALL {
        println!("{what:?}: {}", summary.coverage.of(what));
    }
    println!(
        "{} seeds, {} grants, {} extends, {} events, {} failed",
        summary.seeds,
        summary.grants,
        summary.extends,
        summary.events,
        summary.failed.len()
    );
    assert_none_failed(&summary);
}
