//! Negative controls: the naive claim must be caught by the same scenarios. Scenario 18.
//!
//! A control that finds nothing fails: then the harness does not overlap its processes, or its
//! judge is blind, and everything that passed above means nothing.

use berth_conformance::{Fixture, Violation, ViolationKind};
use berth_ledger::Isolation;

use crate::{capacity, groups};

/// Rounds after which a fault counts as not found.
const ROUNDS: u128 = 60;

fn assert_caught(
    isolation: Isolation,
    kinds: &[ViolationKind],
    scenario: impl Fn(&Fixture) -> Vec<Violation>,
) {
    let fixture = Fixture::naive(isolation).unwrap();
    let violations = scenario(&fixture);
    for kind in kinds {
        let caught = violations.iter().find(|fault| fault.kind == *kind);
        let caught =
            caught.unwrap_or_else(|| panic!("{fixture}: no {kind:?} was found: {violations:?}"));
        println!("{fixture}: caught {:.200}", caught.to_string());
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
        [ViolationKind::Winners, ViolationKind::Oversold], |fixture| capacity::batches(fixture, ROUNDS);
    naive_claims_oversell =>
        [ViolationKind::Granted, ViolationKind::Oversold], |fixture| capacity::hundred(fixture, 1);
    naive_members_share_a_node =>
        [ViolationKind::NotApart], |fixture| groups::apart(fixture, ROUNDS);
    naive_members_part =>
        [ViolationKind::NotTogether], |fixture| groups::together(fixture, ROUNDS);
}
