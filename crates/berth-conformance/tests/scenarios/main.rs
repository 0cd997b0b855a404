//! The eighteen acceptance scenarios of the ledger, each with processes of its own that start
//! together, on SQLite and on PostgreSQL at every level of isolation.
//!
//! A test is named after its scenario and then its backend. After every scenario the books must
//! balance; see `common::assert_clean`.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test that panics has failed")]

mod answers;
mod capacity;
mod common;
mod drift;
mod elastic;
mod groups;
mod leases;
mod moves;
mod naive;
mod scale;
mod soak;

/// One test per scenario and backend.
macro_rules! conformance {
    ($($(#[$note:meta])* $name:ident => $scenario:path;)*) => {$(
        $(#[$note])*
        mod $name {
            use berth_conformance::{Database, Fixture};
            use berth_ledger::Isolation;

            #[test]
            fn sqlite() {
                $scenario(&Fixture::new(Database::Sqlite).unwrap());
            }

            #[test]
            fn postgres_read_committed() {
                $scenario(&Fixture::new(Database::Postgres(Isolation::ReadCommitted)).unwrap());
            }

            #[test]
            fn postgres_repeatable_read() {
                $scenario(&Fixture::new(Database::Postgres(Isolation::RepeatableRead)).unwrap());
            }

            #[test]
            fn postgres_serializable() {
                $scenario(&Fixture::new(Database::Postgres(Isolation::Serializable)).unwrap());
            }
        }
    )*};
}

conformance! {
    /// Scenario 1.
    two_batches_with_room_for_one => crate::capacity::two_batches_with_room_for_one;
    /// Scenario 2.
    many_requests_onto_a_hundred_places => crate::capacity::many_requests_onto_a_hundred_places;
    /// Scenario 3.
    a_race_for_the_last_place => crate::capacity::a_race_for_the_last_place;
    /// Scenario 4.
    two_nodes_bound_by_different_things => crate::capacity::two_nodes_bound_by_different_things;
    /// Scenario 5.
    a_group_stays_apart => crate::groups::a_group_stays_apart;
    /// Scenario 5, across racks.
    at_most_two_in_a_rack => crate::groups::at_most_two_in_a_rack;
    /// Scenario 6.
    a_group_stays_together => crate::groups::a_group_stays_together;
    /// In addition to scenarios 5 and 6: rules about others' tags.
    rules_about_tags_hold => crate::groups::rules_about_tags_hold;
    /// Scenario 7.
    crossing_moves => crate::moves::crossing_moves;
    /// Scenario 7, with kill -9.
    a_killed_mover_leaves_source_or_target => crate::moves::a_killed_mover_leaves_source_or_target;
    /// Scenario 8.
    a_killed_scheduler_gives_its_room_back => crate::leases::a_killed_scheduler_gives_its_room_back;
    /// Scenario 9.
    wrong_clocks_move_no_lease => crate::leases::wrong_clocks_move_no_lease;
    /// Scenario 10.
    nothing_is_granted_after_a_cordon => crate::answers::nothing_is_granted_after_a_cordon;
    /// Scenario 11.
    one_request_from_everywhere => crate::answers::one_request_from_everywhere;
    /// Scenario 11, where the first grant takes all the room there is.
    one_request_for_the_last_place => crate::answers::one_request_for_the_last_place;
    /// Scenario 11, with dropped connections.
    one_request_over_broken_connections => crate::answers::one_request_over_broken_connections;
    /// Scenario 12.
    released_twice => crate::leases::released_twice;
    /// Scenario 12, against the reaper.
    released_while_reaped => crate::leases::released_while_reaped;
    /// Scenario 13.
    a_corrupted_counter_is_mended_once => crate::drift::a_corrupted_counter_is_mended_once;
    /// Scenario 14.
    a_node_without_facts_is_never_chosen => crate::capacity::a_node_without_facts_is_never_chosen;
    /// Scenario 15.
    a_random_life_agrees_with_its_model => crate::soak::a_random_life_agrees_with_its_model;
    /// Scenario 16; the speed itself is for `berth bench ledger`.
    a_thousand_nodes_end_consistent => crate::scale::a_thousand_nodes_end_consistent;
    /// Scenario 19: permits are claims.
    permits_never_oversell => crate::elastic::permits_never_oversell;
    /// Scenario 19, one request from everywhere.
    one_wish_from_everywhere => crate::elastic::one_wish_from_everywhere;
    /// Scenario 20: migrations, with kill -9.
    a_killed_migration_leaves_source_or_target =>
        crate::elastic::a_killed_migration_leaves_source_or_target;
    /// Scenario 17.
    a_refusal_explains_itself => crate::scale::a_refusal_explains_itself;
}
