//! One contract for all nodes: cases that run on the reference, on the embedded node and on a real redis-server, and a
//! differential test that compares the reference with Redis on random sequences.

#[path = "contract/batches.rs"]
mod batches;
#[path = "contract/comparison.rs"]
mod comparison;
#[path = "contract/differential.rs"]
mod differential;
#[path = "contract/durable.rs"]
mod durable;
#[path = "contract/filling.rs"]
mod filling;
#[path = "contract/in_process.rs"]
mod in_process;
#[path = "contract/kept.rs"]
mod kept;
#[path = "contract/keys_read.rs"]
mod keys_read;
#[path = "contract/largest.rs"]
mod largest;
#[path = "contract/leases.rs"]
mod leases;
#[path = "contract/redis_server.rs"]
mod redis_server;
#[path = "contract/renaming.rs"]
mod renaming;
#[path = "contract/servers.rs"]
mod servers;
#[path = "contract/sets.rs"]
mod sets;
#[path = "contract/steps.rs"]
mod steps;
#[path = "contract/subject.rs"]
mod subject;
#[path = "contract/tickets.rs"]
mod tickets;
#[path = "contract/tombstones.rs"]
mod tombstones;
#[path = "contract/versions.rs"]
mod versions;
#[path = "contract/waiters.rs"]
mod waiters;

use in_process::{Embedded, Reference};
use redis_server::RedisServer;
use redlockd::protocol::Request;
use subject::Subject;

/// A node that votes.
fn declared<S: Subject>(mut node: S) -> S {
    node.ask(&Request::init());
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
            one_token_holds_and_others_see_the_remaining_time
            a_key_expires_after_the_ttl_and_the_lock_delay
            fences_rise_across_releases_expiries_and_slow_clocks
            a_replay_joins_its_lease_and_never_shortens_it
            claims_beyond_the_maximum_are_refused
            a_cancel_withdraws_one_claim_and_the_lease_ends_with_the_last
            an_acquire_that_arrives_after_its_cancel_is_refused
            an_acquire_that_is_repeated_after_its_cancel_is_refused
            a_released_token_is_refused_with_the_reason
            releasing_one_resource_leaves_the_tokens_other_leases
            the_first_end_reason_stays_except_that_a_release_replaces_a_revocation
            a_revoked_lease_keeps_its_end_and_cannot_be_renewed
            an_extend_lengthens_the_lease_counts_and_never_shortens
            an_extend_never_creates_and_never_revives
            a_written_back_fence_raises_the_lease_and_the_counter
            an_edit_of_labels_is_no_renewal_and_keeps_the_end
            a_late_first_end_leaves_a_later_one
            a_restore_needs_a_free_key_and_no_tombstone
            a_restore_with_a_low_fence_does_not_lower_the_counter
            late_requests_and_requests_of_clocks_that_are_off_get_no_vote
            the_list_has_every_held_lease_over_its_pages
            an_ordered_quarantine_takes_the_vote_but_not_the_leases
            a_node_is_initialised_once
        }
        each! { tombstones on $start;
            a_first_acquire_that_arrives_after_its_release_is_refused
            a_first_acquire_that_arrives_twice_is_refused_after_its_release
            a_first_acquire_is_refused_after_the_release_of_another_acquires_lease
            a_first_acquire_is_refused_after_the_release_of_a_sets_lease
            a_first_acquire_is_refused_for_as_long_as_it_may_be_late
            a_first_acquire_is_refused_after_the_release_of_a_restored_lease
        }
    };
}

macro_rules! largest_cases_on {
    ($start:expr) => {
        each! { largest on $start;
            the_largest_replies_are_accepted
        }
    };
}

macro_rules! waiter_cases_on {
    ($start:expr) => {
        each! { waiters on $start;
            waiters_are_read_once_by_each_other_instance_until_they_change_or_run_out
            the_waiters_of_many_instances_come_in_pages
        }
    };
}

macro_rules! kept_cases_on {
    ($start:expr) => {
        each! { kept on $start;
            a_kept_lease_is_due_when_half_of_its_ttl_has_passed
            what_is_no_lease_leaves_the_index
        }
    };
}

macro_rules! ticket_cases_on {
    ($start:expr) => {
        each! { tickets on $start;
            a_tickets_state_only_rises
            a_ticket_is_no_vote_of_a_node_without_one
            a_ticket_is_due_when_nobody_serves_it
            tickets_end_with_their_keys
        }
    };
}

macro_rules! set_cases_on {
    ($start:expr) => {
        each! { sets on $start;
            a_set_is_ordinary_leases
            a_shared_set_is_members_beside_others
            who_has_waited_longest_is_next
            an_intent_is_not_filled
            a_set_that_is_refused_takes_nothing
            a_token_that_holds_some_of_a_set_acquires_the_rest
            a_set_that_arrives_after_the_cancel_of_one_of_it_is_refused
            a_set_is_claimed_once_by_each_attempt_and_not_too_often
            the_largest_set_is_taken_and_given_back
            a_late_set_gets_no_vote
        }
    };
}

macro_rules! server_cases_on {
    ($start:expr) => {
        each! { servers on $start;
            a_foreign_lock_is_held_regardless_of_its_value
            a_lease_excludes_foreign_clients
            a_foreign_lock_is_deleted_only_with_the_fingerprint_that_was_seen
            a_lease_whose_ttl_was_removed_ends_after_the_quarantine
            a_node_that_lost_its_memory_has_no_vote
            a_node_whose_probe_finds_an_eviction_has_no_vote
            another_cluster_gets_no_vote_and_does_not_change_the_nodes_cluster
            another_cluster_lengthens_no_quarantine
            a_longer_quarantine_is_forgotten_when_nobody_asks_for_it
            views_only_rise_and_name_the_process_that_takes_them
            a_process_that_a_higher_view_does_not_name_loses_its_vote
            a_blank_node_belongs_to_nobody_until_it_is_given_a_vote
            an_instance_that_is_alone_in_its_opinion_of_the_time_quarantines_nobody
            a_node_remembers_which_runs_other_instances_see_alive
            fewer_evictions_than_before_are_a_reset_of_the_statistics
            the_longest_quarantine_that_any_instance_asked_for_counts
            an_acquire_asks_for_a_quarantine_that_covers_its_lease
            an_acquire_with_a_fence_by_its_time_begins_the_generation_too
            a_served_quarantine_ends_with_a_seed_above_all_fences
            a_forgotten_fence_does_not_lower_the_next_one
        }
        each! { durable on $start;
            a_process_with_a_durable_ones_data_takes_its_place
            a_process_that_is_not_durable_leaves_nothing_to_inherit
            a_clock_ahead_at_the_start_is_waited_for
            only_a_view_with_the_last_admission_gives_the_place
        }
        each! { sets on $start;
            a_foreign_lock_of_any_type_keeps_a_set_out
            an_intent_from_before_the_clock_went_back_does_not_count
            a_refusal_names_no_members_of_a_lock_that_was_deleted
        }
    };
}

macro_rules! filling_cases_on {
    ($start:expr) => {
        each! { filling on $start;
            a_process_of_both_lists_that_forgot_is_not_filled_as_if_it_had_kept_its_keys
            a_process_of_both_lists_keeps_its_keys_and_votes_when_it_was_filled
            a_resource_with_a_block_gets_no_vote_until_the_block_ends
            an_update_of_a_resource_with_a_block_is_applied_and_is_no_vote
            an_edit_of_a_resource_with_a_block_is_no_vote
            a_key_behind_the_block_of_its_own_lease_is_not_extended_and_ends_with_the_block
            a_release_takes_its_token_out_and_the_last_one_ends_the_block
            a_cancel_takes_its_claim_out_of_a_block
            a_revocation_leaves_the_block
            a_repair_takes_the_place_of_a_block_and_ends_no_earlier
            a_copy_counts_like_a_vote_of_its_own
            a_first_acquire_is_refused_after_the_release_of_a_copy
            a_copy_neither_replaces_nor_shortens_what_the_node_has
            tombstones_leave_out_what_they_ended
            a_foreign_lock_is_planted_and_blocks
            pages_are_taken_in_order_and_once_and_only_without_a_vote
            a_read_shows_leases_foreign_locks_blocks_and_tombstones
            a_read_has_everything_that_is_there_throughout
            a_page_is_bounded_where_locks_have_many_members
            what_was_written_before_the_clock_went_back_lasts_no_longer_than_a_quarantine
            a_lease_that_was_filled_in_is_not_cut_to_the_quarantine_of_who_filled_it
            a_node_without_a_vote_is_not_read
        }
    };
}

macro_rules! renaming_cases_on {
    ($start:expr) => {
        each! { renaming on $start;
            leases_receive_the_names_of_the_view_before_they_are_read
            another_view_goes_on_with_a_change_of_names
            an_update_by_other_names_reaches_nothing
            a_process_whose_leases_change_names_votes_in_no_view_without_a_fill
        }
    };
}

mod reference {
    renaming_cases_on!(crate::declared(crate::Reference::start()));
    filling_cases_on!(crate::declared(crate::Reference::start()));
    lease_cases_on!(crate::declared(crate::Reference::start()));
    kept_cases_on!(crate::declared(crate::Reference::start()));
    ticket_cases_on!(crate::declared(crate::Reference::start()));
    set_cases_on!(crate::declared(crate::Reference::start()));
    server_cases_on!(crate::declared(crate::Reference::start()));
    largest_cases_on!(crate::declared(crate::Reference::start()));
    waiter_cases_on!(crate::Reference::start());
}

mod embedded {
    lease_cases_on!(crate::Embedded::start());
    kept_cases_on!(crate::Embedded::start());
    ticket_cases_on!(crate::Embedded::start());
    set_cases_on!(crate::Embedded::start());
    waiter_cases_on!(crate::Embedded::start());
}

mod redis {
    renaming_cases_on!(crate::declared(crate::RedisServer::start()));
    filling_cases_on!(crate::declared(crate::RedisServer::start()));
    lease_cases_on!(crate::declared(crate::RedisServer::start()));
    kept_cases_on!(crate::declared(crate::RedisServer::start()));
    ticket_cases_on!(crate::declared(crate::RedisServer::start()));
    set_cases_on!(crate::declared(crate::RedisServer::start()));
    server_cases_on!(crate::declared(crate::RedisServer::start()));
    largest_cases_on!(crate::declared(crate::RedisServer::start()));
    waiter_cases_on!(crate::RedisServer::start());
}
