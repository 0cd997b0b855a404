//! One affinity rule, and which instances it selects.
//!
//! A rule must never exist that the parser would refuse: everything that keeps rules (requests,
//! stored workloads, the event log) keeps their text and has to be able to read it again.

use std::cmp::Ordering;
use std::fmt;
use std::hash::{Hash, Hasher};
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use super::error::AffinityError;
use super::parse;
use super::pattern::Pattern;
use super::{Operator, Strength, Subject, Topology};

/// The shortest id prefix that names an instance. Shorter ones would select by accident.
pub const MIN_ID_PREFIX_CHARS: usize = 8;

/// One affinity expression, parsed.
///
/// A rule exists only if its expression was valid, which is why its fields cannot be set. It is
/// compared, ordered, hashed, shown and serialised by its canonical text: the shortest spelling,
/// which parses back to an equal rule.
/// `container !=~ web** @node` becomes `instance!=~web*`.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Rule {
    text: String,
    subject: Subject,
    operator: Operator,
    strength: Strength,
    pattern: Pattern,
    scope: Topology,
}

impl Rule {
    /// Reads one expression.
    ///
    /// # Errors
    /// [`AffinityError`] names the part that is wrong and what would be accepted there.
    pub fn parse(expression: &str) -> Result<Self, AffinityError> {
        parse::parse(expression)
    }

    /// Only the parser calls this: it alone knows that the parts form a valid expression.
    pub(super) fn new(
        subject: Subject,
        operator: Operator,
        strength: Strength,
        pattern: Pattern,
        scope: Topology,
    ) -> Self {
        let soft = if strength == Strength::Soft { "~" } else { "" };
        let mut text = format!("{}{}{soft}{}", subject.key(), operator.symbol(), pattern.source());
        if scope != Topology::default() {
            text.push('@');
            text.push_str(scope.name());
        }
        Self { text, subject, operator, strength, pattern, scope }
    }

    /// The canonical expression.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.text
    }

    /// The attribute this rule matches.
    #[must_use]
    pub fn subject(&self) -> &Subject {
        &self.subject
    }

    /// Together or apart.
    #[must_use]
    pub fn operator(&self) -> Operator {
        self.operator
    }

    /// Hard or soft.
    #[must_use]
    pub fn strength(&self) -> Strength {
        self.strength
    }

    /// Whether the rule must hold.
    #[must_use]
    pub fn is_hard(&self) -> bool {
        self.strength == Strength::Hard
    }

    /// What the attribute is compared with.
    #[must_use]
    pub fn pattern(&self) -> &Pattern {
        &self.pattern
    }

    /// The domain to share or to avoid.
    #[must_use]
    pub fn scope(&self) -> Topology {
        self.scope
    }

    /// Whether this rule is about the given instance. An attribute it lacks never matches, not
    /// even `*`.
    #[must_use]
    pub fn selects(&self, candidate: &Candidate<'_>) -> bool {
        let matches = |text: &str| self.pattern.matches(text);
        match &self.subject {
            Subject::Instance => {
                matches(candidate.id)
                    || candidate.name.is_some_and(matches)
                    || self.names_by_prefix(candidate.id)
            }
            Subject::Workload => candidate.workload.is_some_and(matches),
            Subject::Image => candidate.image.is_some_and(matches),
            Subject::Tag(key) => {
                candidate.tags.iter().any(|(name, value)| name == key && matches(value))
            }
        }
    }

    /// Whether the rule gives the start of this id, as people do with long ids.
    fn names_by_prefix(&self, id: &str) -> bool {
        self.pattern.exact().is_some_and(|prefix| {
            prefix.chars().count() >= MIN_ID_PREFIX_CHARS && id.starts_with(prefix)
        })
    }
}

impl FromStr for Rule {
    type Err = AffinityError;

    fn from_str(expression: &str) -> Result<Self, AffinityError> {
        Self::parse(expression)
    }
}

impl TryFrom<String> for Rule {
    type Error = AffinityError;

    fn try_from(expression: String) -> Result<Self, AffinityError> {
        Self::parse(&expression)
    }
}

impl From<Rule> for String {
    fn from(rule: Rule) -> Self {
        rule.text
    }
}

impl fmt::Display for Rule {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.pad(&self.text)
    }
}

impl PartialEq for Rule {
    fn eq(&self, other: &Self) -> bool {
        self.text == other.text
    }
}

impl Eq for Rule {}

impl PartialOrd for Rule {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Rule {
    fn cmp(&self, other: &Self) -> Ordering {
        self.text.cmp(&other.text)
    }
}

impl Hash for Rule {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.text.hash(state);
    }
}

/// The attributes of an instance that a rule may match.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Candidate<'a> {
    /// Its id.
    pub id: &'a str,
    /// Its name, if it has one.
    pub name: Option<&'a str>,
    /// The workload it belongs to, if any.
    pub workload: Option<&'a str>,
    /// The image it runs, if known.
    pub image: Option<&'a str>,
    /// Its tags, as key and value.
    pub tags: &'a [(&'a str, &'a str)],
}

#[cfg(test)]
mod tests {
    use super::*;

    const DATABASE: Candidate<'_> = Candidate {
        id: "5f0c3d2a-77b1-4e0e",
        name: Some("db0"),
        workload: Some("orders"),
        image: Some("debian:12"),
        tags: &[("role", "db"), ("role", "primary"), ("tier", "")],
    };

    fn rule(expression: &str) -> Rule {
        Rule::parse(expression).unwrap_or_else(|error| panic!("{error}"))
    }

    #[test]
    fn canonical_text_parses_back_to_an_equal_rule() {
        let keys = [("container", "instance"), ("workload", "workload"), (" a ", "a")];
        let operators = ["==", "!=", "==~", "!=~"];
        let values = [("x", "x"), (" x y ", "x y"), ("w**", "w*"), ("/^a{1,2}$/", "/^a{1,2}$/")];
        let scopes = [("", ""), (" @node", ""), ("@rack", "@rack"), ("\t@zone ", "@zone")];
        for (key, canonical_key) in keys {
            for operator in operators {
                for (value, canonical_value) in values {
                    for (scope, canonical_scope) in scopes {
                        let parsed = rule(&format!("{key}{operator}{value}{scope}"));
                        let canonical =
                            format!("{canonical_key}{operator}{canonical_value}{canonical_scope}");
                        assert_eq!(parsed.to_string(), canonical);
                        assert_eq!(rule(&canonical), parsed);
                    }
                }
            }
        }
    }

    #[test]
    fn a_rule_selects_by_its_subject() {
        let table = [
            ("instance==db0", true),
            ("instance!=~db0@zone", true),
            ("instance==db*", true),
            ("instance==/^5f0c/", true),
            ("instance==5f0c3d2a-77b1-4e0e", true),
            ("instance==5f0c3d2a", true),
            ("instance==5f0c3d2", false),
            ("instance==77b1-4e0e", false),
            ("instance==DB0", false),
            ("workload==orders", true),
            ("workload==order", false),
            ("image==debian:*", true),
            ("image==/:13$/", false),
            ("role==db", true),
            ("role==primary", true),
            ("role==web", false),
            ("tier==*", true),
            ("missing==*", false),
        ];
        for (expression, expected) in table {
            assert_eq!(rule(expression).selects(&DATABASE), expected, "{expression}");
        }
    }

    #[test]
    fn a_missing_attribute_never_matches() {
        let bare = Candidate { id: "5f0c3d2a-77b1-4e0e", ..Candidate::default() };
        for expression in ["instance==db*", "workload==*", "image==/.*/", "role==*"] {
            assert!(!rule(expression).selects(&bare), "{expression}");
        }
    }

    #[test]
    fn json_carries_plain_expressions() {
        let rules: Vec<Rule> =
            serde_json::from_str(r#"["container==x", "role!=~y @rack"]"#).expect("valid rules");
        let json = serde_json::to_string(&rules).expect("rules are plain text");
        assert_eq!(json, r#"["instance==x","role!=~y@rack"]"#);
        let error = serde_json::from_str::<Rule>(r#""role=db""#).expect_err("no operator");
        assert!(error.to_string().contains("operator: found"), "{error}");
    }
}
