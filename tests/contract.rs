//! One contract for all nodes: cases written once and run on the machine, on the embedded node and on
//! a real redis-server, and a differential test that drives the machine and Redis side by side.

#[path = "contract/agree.rs"]
mod agree;
#[path = "contract/differential.rs"]
mod differential;
#[path = "contract/leases.rs"]
mod leases;
#[path = "contract/real.rs"]
mod real;
#[path = "contract/servers.rs"]
mod servers;
#[path = "contract/steps.rs"]
mod steps;
#[path = "contract/subject.rs"]
mod subject;
#[path = "contract/together.rs"]
mod together;
#[path = "contract/twins.rs"]
mod twins;

use real::RealServer;
use redlockd::protocol::Request;
use subject::Subject;
use twins::{Embedded, Machine};

/// A node that votes.
fn declared<S: Subject>(mut node: S) -> S {
    node.ask(&Request::Init);
    node
}

macro_rules! each {
    ($group:ident on $start:expr; $($case:ident)*) => {
        $(#[test]
        fn $case() {
            crate::$group::$case(&mut $start);
        })*
    };
}

macro_rules! lease_cases_on {
    ($start:expr) => {
        each! { leases on $start;
            one_holder_and_the_others_learn_how_long
            the_node_holds_it_for_the_lock_delay_beyond_the_ttl_and_no_longer
            fences_rise_over_releases_expiries_and_slow_clocks
            a_replay_joins_its_lease_and_never_shortens_it
            more_replays_than_any_client_makes_are_refused
            a_cancel_withdraws_one_claim_and_the_lease_goes_with_the_last
            a_cancelled_attempt_that_arrives_late_is_dead_and_others_are_not
            a_released_token_stays_dead_and_says_why
            a_token_that_was_released_for_one_resource_lives_on_for_another
            the_first_reason_stays_save_that_a_release_ends_a_revocation
            a_revoked_lease_keeps_its_end_and_no_more
            an_extend_lengthens_counts_and_never_shortens
            an_extend_never_creates_and_never_revives
            a_written_back_fence_lifts_the_lease_and_the_counter
            labels_change_without_a_renewal_and_keep_the_end
            a_plant_fills_only_what_is_empty_and_not_what_was_ended
            a_plant_with_a_small_fence_does_not_lower_the_counter
            late_requests_and_clocks_that_are_off_get_no_vote
            the_list_shows_what_is_held_page_by_page
            an_ordered_quarantine_takes_the_vote_but_not_the_leases
            a_node_is_declared_once
        }
    };
}

macro_rules! server_cases_on {
    ($start:expr) => {
        each! { servers on $start;
            a_foreigners_lock_is_held_whatever_it_looks_like
            a_foreigner_is_kept_out_by_our_lease
            an_operator_evicts_exactly_what_they_saw
            a_lease_whose_ttl_was_taken_away_ends_after_the_quarantine
            lost_memory_costs_the_vote
            an_eviction_that_a_probe_sees_costs_the_vote
            another_cluster_gets_no_vote_and_takes_no_node_over
            the_longest_quarantine_that_anybody_asked_for_counts
            a_served_quarantine_ends_with_a_seed_above_all_fences
            a_counter_that_expired_does_not_let_the_fence_fall
        }
    };
}

mod machine {
    lease_cases_on!(crate::declared(crate::Machine::start()));
    server_cases_on!(crate::declared(crate::Machine::start()));
}

mod embedded {
    lease_cases_on!(crate::Embedded::start());
}

mod redis {
    lease_cases_on!(crate::declared(crate::RealServer::start()));
    server_cases_on!(crate::declared(crate::RealServer::start()));
}
