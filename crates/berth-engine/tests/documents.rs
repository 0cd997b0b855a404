//! The documents name everything that the code has: they cannot drift apart in silence.

use berth_engine::filter::FILTERS;
use berth_engine::policy::BUILTIN_NAMES;
use berth_engine::score::SCORERS;

const POLICY: &str = include_str!("../../../docs/policy.md");
const EXPLANATIONS: &str = include_str!("../../../docs/explanations.md");

#[test]
fn the_policy_reference_has_every_filter_scorer_and_built_in_policy() {
    for filter in FILTERS {
        assert!(POLICY.contains(&format!("`{}`", filter.name)), "{}", filter.name);
        assert!(POLICY.contains(&format!("`{}`", filter.code)), "{}", filter.code);
        assert!(POLICY.contains(filter.remedy), "{}: {}", filter.name, filter.remedy);
    }
    for scorer in SCORERS {
        assert!(POLICY.contains(&format!("`{}`", scorer.name)), "{}", scorer.name);
        let formula = scorer.formula.replace('|', "\\|");
        assert!(POLICY.contains(&formula), "{}: {}", scorer.name, scorer.formula);
    }
    for name in BUILTIN_NAMES {
        assert!(POLICY.contains(&format!("`{name}`")), "{name}");
    }
}

#[test]
fn the_table_of_reason_codes_is_complete() {
    for filter in FILTERS {
        assert!(EXPLANATIONS.contains(&format!("`{}`", filter.code)), "{}", filter.code);
    }
}
