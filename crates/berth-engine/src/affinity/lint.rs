//! Finds affinity rules of one request that can never hold together, or that change nothing.
//!
//! It must never call something a contradiction that some fleet could satisfy: a contradiction
//! refuses the request. It considers the rules alone, so a rule that merely finds no room today is
//! not its business, and neither are two `==` rules: one node may hold both neighbours.

use std::collections::BTreeMap;

use serde::Serialize;
use thiserror::Error;

use super::{Operator, Rule, Strength};

/// Something to change in a set of rules. Its text says what.
///
/// It is an [`std::error::Error`] so that a fatal finding can be returned as one.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Error)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Finding {
    /// Two hard rules that exclude each other.
    #[error(
        "`{together}` and `{apart}` can never both hold: one shares the {} of a neighbour, the \
         other forbids to share its {}; remove one, make one soft with `~`, or give `!=` a \
         narrower scope than `==`",
        together.scope(),
        apart.scope()
    )]
    Contradiction {
        /// The hard `==` rule.
        together: Rule,
        /// The hard `!=` rule, of an equal or wider scope.
        apart: Rule,
    },

    /// The same rule, given more than once.
    #[error("`{rule}` is given {times} times; keep one")]
    Duplicate {
        /// The rule.
        rule: Rule,
        /// How often it is given.
        times: usize,
    },

    /// A soft rule for what a hard rule demands already.
    #[error(
        "`{soft}` adds nothing to `{hard}`; remove the soft one, or the hard one if a preference is meant"
    )]
    Shadowed {
        /// The hard rule.
        hard: Rule,
        /// The soft rule that is otherwise equal.
        soft: Rule,
    },
}

impl Finding {
    /// Whether the rules must be refused. Anything else is advice.
    #[must_use]
    pub const fn is_fatal(&self) -> bool {
        matches!(self, Self::Contradiction { .. })
    }
}

/// Examines the rules of one request. Fatal findings come first; the order in which the rules are
/// given does not matter.
#[must_use]
pub fn lint(rules: &[Rule]) -> Vec<Finding> {
    let mut same_rules: BTreeMap<&str, Vec<&Rule>> = BTreeMap::new();
    for rule in rules {
        same_rules.entry(rule.as_str()).or_default().push(rule);
    }
    let mut findings: Vec<Finding> =
        same_rules.values().filter_map(|same| duplicate(same)).collect();
    // Only rules about the same neighbours can collide, and no more than twelve distinct ones
    // exist (operator, strength, scope): grouping keeps a long list from costing its square.
    let mut groups: BTreeMap<(&str, &str), Vec<&Rule>> = BTreeMap::new();
    for rule in same_rules.values().filter_map(|same| same.first()) {
        let neighbours = (rule.subject().key(), rule.pattern().source());
        groups.entry(neighbours).or_default().push(rule);
    }
    for group in groups.values() {
        findings.extend(collisions(group));
    }
    findings.sort();
    findings
}

fn duplicate(same: &[&Rule]) -> Option<Finding> {
    let times = same.len();
    let rule = same.first().filter(|_| times > 1)?;
    Some(Finding::Duplicate { rule: (*rule).clone(), times })
}

/// Findings between any two of some distinct rules that select the same neighbours.
fn collisions(group: &[&Rule]) -> Vec<Finding> {
    let pairs = group.iter().flat_map(|first| group.iter().map(move |second| (*first, *second)));
    pairs
        .filter_map(|(first, second)| {
            contradiction(first, second).or_else(|| shadow(first, second))
        })
        .collect()
}

/// The same node implies the same rack implies the same zone, so sharing the narrow domain breaks
/// a ban on the wide one. The reverse (same zone, other node) is sound and common.
fn contradiction(together: &Rule, apart: &Rule) -> Option<Finding> {
    let collide = together.operator() == Operator::Same
        && apart.operator() == Operator::Different
        && together.is_hard()
        && apart.is_hard()
        && apart.scope() >= together.scope();
    collide.then(|| Finding::Contradiction { together: together.clone(), apart: apart.clone() })
}

fn shadow(hard: &Rule, soft: &Rule) -> Option<Finding> {
    let shadowed = hard.strength() == Strength::Hard
        && soft.strength() == Strength::Soft
        && hard.operator() == soft.operator()
        && hard.scope() == soft.scope();
    shadowed.then(|| Finding::Shadowed { hard: hard.clone(), soft: soft.clone() })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rule(expression: &str) -> Rule {
        Rule::parse(expression).unwrap_or_else(|error| panic!("{error}"))
    }

    fn findings(expressions: &[&str]) -> Vec<Finding> {
        let rules: Vec<Rule> = expressions.iter().map(|expression| rule(expression)).collect();
        lint(&rules)
    }

    #[test]
    fn together_and_apart_collide_unless_apart_is_narrower() {
        let scopes = ["@node", "@rack", "@zone"];
        for (narrow, together) in scopes.iter().enumerate() {
            for (wide, apart) in scopes.iter().enumerate() {
                let together = rule(&format!("a==x{together}"));
                let apart = rule(&format!("a!=x{apart}"));
                let found = lint(&[apart.clone(), together.clone()]);
                let expected = (wide >= narrow).then(|| Finding::Contradiction {
                    together: together.clone(),
                    apart: apart.clone(),
                });
                assert_eq!(found, Vec::from_iter(expected), "{together} {apart}");
            }
        }
    }

    #[test]
    fn rules_that_can_hold_together_are_left_alone() {
        let table: [&[&str]; 9] = [
            &[],
            &["a==x"],
            &["a==x", "a==y"],
            &["instance==x", "instance==y"],
            &["a==x", "b!=x"],
            &["a==x", "a!=y"],
            &["a==x", "a!=~x"],
            &["a==~x", "a!=x"],
            &["a==x", "a==~x@rack"],
        ];
        for expressions in table {
            assert_eq!(findings(expressions), [], "{expressions:?}");
        }
    }

    #[test]
    fn spelling_does_not_hide_a_finding() {
        let duplicate = Finding::Duplicate { rule: rule("instance==x*"), times: 3 };
        let found = findings(&["instance==x*", "container == x**", "instance==x* @node"]);
        assert_eq!(found, [duplicate]);
    }

    #[test]
    fn findings_are_sorted_and_only_a_contradiction_is_fatal() {
        let given = ["a==x", "a==~x", "a!=x@rack", "a==~x", "a==x"];
        let mut reversed = given;
        reversed.reverse();
        let found = findings(&given);
        assert_eq!(found, findings(&reversed));
        let texts: Vec<(bool, String)> =
            found.iter().map(|finding| (finding.is_fatal(), finding.to_string())).collect();
        let expected = [
            (
                true,
                "`a==x` and `a!=x@rack` can never both hold: one shares the node of a \
                 neighbour, the other forbids to share its rack; remove one, make one soft with \
                 `~`, or give `!=` a narrower scope than `==`",
            ),
            (false, "`a==x` is given 2 times; keep one"),
            (false, "`a==~x` is given 2 times; keep one"),
            (
                false,
                "`a==~x` adds nothing to `a==x`; remove the soft one, or the hard one if a preference is \
                 meant",
            ),
        ];
        assert_eq!(texts, expected.map(|(fatal, text)| (fatal, text.to_owned())));
    }

    #[test]
    fn a_finding_is_json_with_the_rules_as_text() {
        let found = findings(&["a==x", "a!=x"]);
        let json = serde_json::to_string(&found).expect("findings are plain data");
        assert_eq!(json, r#"[{"kind":"contradiction","together":"a==x","apart":"a!=x"}]"#);
    }
}
