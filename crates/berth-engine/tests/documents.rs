//! The documents are as the code has them: they cannot drift apart in silence.

use berth_engine::filter::FILTERS;
use berth_engine::score::SCORERS;
use berth_engine::{BUILTIN_POLICIES, policy_reference};

const POLICY: &str = include_str!("../../../docs/policy.md");
const REFERENCE: &str = include_str!("../../../docs/policy-reference.md");
const REFUSALS: &str = include_str!("../../../docs/refusals.md");

#[test]
fn the_policy_reference_is_what_the_code_writes() {
    let written = policy_reference();
    for (line, (found, expected)) in REFERENCE.lines().zip(written.lines()).enumerate() {
        assert_eq!(found, expected, "line {}; run `cargo xtask docs`", line + 1);
    }
    assert!(REFERENCE == written, "run `cargo xtask docs`");
}

#[test]
fn the_introduction_names_every_filter_scorer_and_built_in_policy() {
    let filters = FILTERS.iter().map(|filter| filter.name);
    let scorers = SCORERS.iter().map(|scorer| scorer.name);
    for name in filters.chain(scorers).chain(BUILTIN_POLICIES) {
        assert!(POLICY.contains(&format!("`{name}`")), "{name}");
    }
}

#[test]
fn the_list_of_reason_codes_is_complete() {
    for filter in FILTERS {
        let line = format!("| `{}` | {} | {} |", filter.code, filter.means, filter.remedy);
        assert!(REFUSALS.contains(&line), "{line}; run `cargo xtask docs`");
    }
}
