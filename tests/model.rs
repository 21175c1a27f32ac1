//! The protocol as small models that a checker explores exhaustively (crate `stateright`): every order
//! of messages, losses, restarts and clock steps within small bounds. Each model has broken variants,
//! and the test fails if the checker does not find each of them. The simulation runs the real code; a
//! model is a specification of what the code should do.
//!
//! `make model` explores larger bounds than the ordinary suite and prints the tables of `docs/verification.md` and of
//! `docs/views.md`.

#[path = "model/fence.rs"]
mod fence;
#[path = "model/healing.rs"]
mod healing;
#[path = "model/late.rs"]
mod late;
#[path = "model/lease.rs"]
mod lease;
#[path = "model/membership.rs"]
mod membership;
#[path = "model/modes.rs"]
mod modes;
#[path = "model/sets.rs"]
mod sets;
#[path = "model/shared_fence.rs"]
mod shared_fence;
#[path = "model/views.rs"]
mod views;
#[path = "model/wake.rs"]
mod wake;

use std::fmt::Debug;
use std::hash::Hash;

use stateright::{Checker, HasDiscoveries, Model};

/// What the checker must find.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Expect {
    /// Every reachable state is good.
    Holds,
    /// A broken variant: a bad state is reachable.
    Broken,
    /// A documented limit of any lease over quorums: a bad state is reachable.
    Limit,
    /// A good state is reachable: the property denies it.
    Reached,
}

/// More transitions than any model has, so that a mistake in one does not exhaust the memory.
const TRANSITIONS_MAX: usize = 100_000_000;
/// Environment variable that selects the larger bounds.
const IN_DEPTH: &str = "REDLOCKD_MODEL_IN_DEPTH";

/// A bound: the larger one is for `make model` and takes minutes in all, the smaller one seconds.
/// Every broken variant is found within the smaller one.
fn in_depth<T>(larger: T, smaller: T) -> T {
    if std::env::var_os(IN_DEPTH).is_some() { larger } else { smaller }
}

/// Explores breadth first, so that a counterexample is a shortest one. A broken variant ends at
/// its first bad state.
///
/// Panics: where the checker finds something else than `expect`.
fn check<M>(model: M, name: &str, expect: Expect)
where
    M: Model + Send + Sync + 'static,
    M::State: Clone + Debug + Hash + PartialEq + Send + Sync,
    M::Action: Clone + Debug + PartialEq + Send + Sync,
{
    let builder = model.checker().threads(2).target_state_count(TRANSITIONS_MAX);
    let checked = builder.finish_when(HasDiscoveries::AnyFailures).spawn_bfs().join();
    let states = checked.unique_state_count();
    let found = checked.discoveries();
    print_row(&format!("| {name} | {expect:?} | {states} |"));
    assert!(checked.state_count() < TRANSITIONS_MAX, "{name}: not exhausted within {TRANSITIONS_MAX} transitions");
    match expect {
        Expect::Holds => {
            if let Some((property, path)) = found.into_iter().next() {
                let steps: Vec<_> = path.into_vec().into_iter().filter_map(|(_, action)| action).collect();
                panic!("{name}: `{property}` is violated by {steps:#?}");
            }
        }
        Expect::Broken | Expect::Limit | Expect::Reached => {
            assert!(!found.is_empty(), "{name}: nothing found in {states} states")
        }
    }
}

#[expect(clippy::print_stdout, reason = "the table, where it is asked for with --nocapture")]
fn print_row(line: &str) {
    println!("{line}");
}
