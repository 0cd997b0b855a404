//! Why an affinity expression was refused, in words its author can act on.
//!
//! Every error names the expression, the part that is wrong, what was found there and what would
//! be accepted. It must never hold anything but the author's own text: it is shown to tenants.

use thiserror::Error;

use super::Topology;
use super::parse::{MAX_EXPRESSION_BYTES, VALUE_PUNCTUATION};
use super::pattern::MAX_REGEX_BYTES;

/// The part of an expression that an error is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Part {
    /// The expression as a whole.
    Expression,
    /// `==` or `!=`.
    Operator,
    /// The part before the operator.
    Key,
    /// The part after the operator.
    Value,
    /// The part after `@`.
    Scope,
    /// A value between slashes.
    Regex,
}

/// Why an expression was refused.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum AffinityError {
    /// The expression exceeds [`MAX_EXPRESSION_BYTES`].
    #[error(
        "affinity expression starting {start:?}: it has {length_bytes} bytes, \
         at most {MAX_EXPRESSION_BYTES} are accepted"
    )]
    TooLong {
        /// The first characters of the expression.
        start: String,
        /// Its length.
        length_bytes: usize,
    },

    /// There is neither `==` nor `!=`.
    #[error(
        "affinity expression {expression:?}: operator: found {found:?}, \
         accepted are \"==\" and \"!=\", each followed by \"~\" for a soft rule"
    )]
    Operator {
        /// The whole expression.
        expression: String,
        /// What looks like an attempt at an operator; empty if nothing does.
        found: String,
    },

    /// The part before the operator is not a key.
    #[error(
        "affinity expression {expression:?}: key: found {found:?}, accepted are \"instance\", \
         \"workload\", \"image\" or a tag key: a letter or \"_\", then any of letters, digits, \
         \"-\", \"_\" and \".\""
    )]
    Key {
        /// The whole expression.
        expression: String,
        /// The text before the operator.
        found: String,
    },

    /// Nothing follows the operator.
    #[error(
        "affinity expression {expression:?}: value: found nothing, \
         accepted is exact text, a glob such as web*, or a regular expression such as /^web-/"
    )]
    ValueMissing {
        /// The whole expression.
        expression: String,
    },

    /// The value holds a character it may not.
    #[error(
        "affinity expression {expression:?}: value: found {refused:?} in {found:?}, \
         accepted are letters, digits, space, tab and {}",
        spaced(VALUE_PUNCTUATION)
    )]
    ValueCharacter {
        /// The whole expression.
        expression: String,
        /// The value.
        found: String,
        /// The first character in it that is refused.
        refused: char,
    },

    /// The part after the last `@` is not a scope.
    #[error(
        "affinity expression {expression:?}: scope: found \"@{found}\", accepted are {}; \
         a value holds no \"@\" (the regular expression \\x40 matches one)",
        accepted_scopes()
    )]
    Scope {
        /// The whole expression.
        expression: String,
        /// The text after `@`.
        found: String,
    },

    /// The text between the slashes is not a regular expression.
    #[error(
        "affinity expression {expression:?}: regex: found {found}, which is refused: {reason}; \
         accepted is the syntax of the Rust regex crate, without Unicode classes"
    )]
    RegexSyntax {
        /// The whole expression.
        expression: String,
        /// The regular expression with its slashes.
        found: String,
        /// What is wrong with it, in one line.
        reason: String,
    },

    /// The regular expression compiles to more than [`MAX_REGEX_BYTES`].
    #[error(
        "affinity expression {expression:?}: regex: found {found}, which is too large, accepted \
         are {MAX_REGEX_BYTES} bytes when compiled; lower its repetition counts, as in {{1,50}}"
    )]
    RegexTooLarge {
        /// The whole expression.
        expression: String,
        /// The regular expression with its slashes.
        found: String,
    },
}

impl AffinityError {
    /// The part of the expression to correct.
    #[must_use]
    pub const fn part(&self) -> Part {
        match self {
            Self::TooLong { .. } => Part::Expression,
            Self::Operator { .. } => Part::Operator,
            Self::Key { .. } => Part::Key,
            Self::ValueMissing { .. } | Self::ValueCharacter { .. } => Part::Value,
            Self::Scope { .. } => Part::Scope,
            Self::RegexSyntax { .. } | Self::RegexTooLarge { .. } => Part::Regex,
        }
    }
}

/// `a b c` for `abc`, so that punctuation can be told apart in a message.
fn spaced(characters: &str) -> String {
    characters.chars().map(String::from).collect::<Vec<_>>().join(" ")
}

fn accepted_scopes() -> String {
    Topology::ALL.map(|scope| format!("@{scope}")).join(", ")
}

#[cfg(test)]
mod tests {
    use super::super::Rule;

    #[test]
    fn messages_say_what_was_found_and_what_is_accepted() {
        let table = [
            (
                "container=~foo",
                r#"affinity expression "container=~foo": operator: found "=~", accepted are "==" and "!=", each followed by "~" for a soft rule"#,
            ),
            (
                "==foo",
                r#"affinity expression "==foo": key: found "", accepted are "instance", "workload", "image" or a tag key: a letter or "_", then any of letters, digits, "-", "_" and ".""#,
            ),
            (
                "container==",
                r#"affinity expression "container==": value: found nothing, accepted is exact text, a glob such as web*, or a regular expression such as /^web-/"#,
            ),
            (
                "container==/a!/",
                r#"affinity expression "container==/a!/": value: found '!' in "/a!/", accepted are letters, digits, space, tab and - : _ . * / ( ) ? + [ ] \ ^ $ | , { }"#,
            ),
            (
                "role==db@row",
                r#"affinity expression "role==db@row": scope: found "@row", accepted are @node, @rack, @zone; a value holds no "@" (the regular expression \x40 matches one)"#,
            ),
            (
                "role==/a(/",
                r#"affinity expression "role==/a(/": regex: found /a(/, which is refused: unclosed group; accepted is the syntax of the Rust regex crate, without Unicode classes"#,
            ),
            (
                "role==/a{9999}/",
                r#"affinity expression "role==/a{9999}/": regex: found /a{9999}/, which is too large, accepted are 16384 bytes when compiled; lower its repetition counts, as in {1,50}"#,
            ),
        ];
        for (expression, expected) in table {
            assert_eq!(Rule::parse(expression).expect_err(expression).to_string(), expected);
        }
    }
}
