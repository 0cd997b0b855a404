//! Negative controls: the naive claim must be caught by the same scenarios. Scenario 18.
//!
//! A control that finds nothing fails: then the harness does not overlap its processes, or its
//! judge is blind, and everything that passed above means nothing.

use berth_conformance::{Fault, Kind, Stage};
use berth_ledger::Isolation;

use crate::{capacity, groups};

/// Rounds after which a fault counts as not found.
const ROUNDS: u128 = 60;

fn assert_caught(isolation: Isolation, kinds: &[Kind], scenario: impl Fn(&Stage) -> Vec<Fault>) {
    let stage = Stage::naive(isolation).unwrap();
    let faults = scenario(&stage);
    for kind in kinds {
        let caught = faults.iter().find(|fault| fault.kind == *kind);
        let caught = caught.unwrap_or_else(|| panic!("{stage}: no {kind:?} was found: {faults:?}"));
        println!("{stage}: caught {:.200}", caught.to_string());
    }
}

macro_rules! controls {
    ($($name:ident => $kinds:expr, $scenario:expr;)*) => {$(
        mod $name {
            use super::*;

            #[test]
            fn postgres_read_committed() {
                assert_caught(Isolation::ReadCommitted, &$kinds, $scenario);
            }

            #[test]
            fn postgres_repeatable_read() {
                assert_caught(Isolation::RepeatableRead, &$kinds, $scenario);
            }
        }
    )*};
}

controls! {
    naive_batches_both_win =>
        [Kind::Winners, Kind::Oversold], |stage| capacity::batches(stage, ROUNDS);
    naive_claims_oversell =>
        [Kind::Granted, Kind::Oversold], |stage| capacity::hundred(stage, 1);
    naive_members_share_a_node =>
        [Kind::NotApart], |stage| groups::apart(stage, ROUNDS);
    naive_members_part =>
        [Kind::NotTogether], |stage| groups::together(stage, ROUNDS);
}
