//! Everything that is wrong with a policy file, with line numbers: for people who edit one.
//!
//! Reading a policy stops at the first error ([`Policy::from_toml`]). Here an entry that cannot be read
//! is recorded and removed, and the rest is read again, so that one look shows every error.

use std::ops::Range;

use serde::Deserialize as _;
use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::{Document, PolicyError, check_all_written};
use crate::policy::Policy;

/// One error in a policy file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PolicyProblem {
    /// The line, counted from 1; none if the error is about something that is missing.
    pub line: Option<usize>,
    /// What is wrong.
    pub error: PolicyError,
}

impl std::fmt::Display for PolicyProblem {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.line {
            Some(line) => write!(f, "line {line}: {}", self.error),
            None => self.error.fmt(f),
        }
    }
}

impl Policy {
    /// Every error in a policy file, by line; empty if the policy can be used.
    #[must_use]
    pub fn problems_in_toml(text: &str) -> Vec<PolicyProblem> {
        let (mut table, errors) = DeTable::parse_recoverable(text);
        if !errors.is_empty() {
            let mut problems: Vec<_> = errors.iter().map(|error| syntax(text, error)).collect();
            problems.sort_by_key(|problem| problem.line);
            return problems;
        }
        let whole = table.clone();
        let mut problems = Vec::new();
        // Each round removes one entry, so this ends.
        let document = loop {
            match Document::deserialize(toml::Deserializer::from(table.clone())) {
                Ok(document) => break Some(document),
                Err(error) => {
                    problems.push(syntax(text, &error));
                    let span = error.span().filter(|_| !is_about_absence(&error));
                    let removed = span.is_some_and(|span| remove_entry(table.get_mut(), &span));
                    if !removed {
                        break None;
                    }
                }
            }
        };
        if let Some(Err(errors)) = document.map(check_all_written) {
            problems.extend(errors.into_iter().map(|error| {
                let line = key_of(&error).and_then(|key| locate(text, whole.get_ref(), key));
                PolicyProblem { line, error }
            }));
        }
        problems.sort_by_key(|problem| problem.line);
        problems
    }
}

fn syntax(text: &str, error: &toml::de::Error) -> PolicyProblem {
    let span = error.span().filter(|_| !is_about_absence(error));
    PolicyProblem {
        line: span.map(|span| line_of(text, span.start)),
        error: PolicyError::Syntax { format: "TOML", message: error.message().to_owned() },
    }
}

/// Whether an error is about a key that is not there, and so has no line.
fn is_about_absence(error: &toml::de::Error) -> bool {
    error.message().starts_with("missing field")
}

fn key_of(error: &PolicyError) -> Option<&str> {
    match error {
        PolicyError::Syntax { .. } => None,
        PolicyError::OutOfRange { key, .. } | PolicyError::UnknownName { key, .. } => Some(key),
    }
}

fn line_of(text: &str, offset: usize) -> usize {
    let before = text.as_bytes().iter().take(offset);
    before.filter(|byte| **byte == b'\n').count() + 1
}

/// Removes the innermost entry that covers a span. Returns whether there was one.
fn remove_entry(table: &mut DeTable<'_>, span: &Range<usize>) -> bool {
    // The span of a table with a header is that of the header: what is in it lies outside.
    let inside = table.iter_mut().any(|(_, value)| match value.get_mut() {
        DeValue::Table(inner) => remove_entry(inner, span),
        _ => false,
    });
    if inside {
        return true;
    }
    let covers = |outer: Range<usize>| outer.start <= span.start && span.end <= outer.end;
    let mut entries = table.iter();
    let found = entries.find(|(key, value)| covers(key.span()) || covers(value.span()));
    let Some(key) = found.map(|(key, _)| key.clone()) else { return false };
    table.remove(&key).is_some()
}

/// The line of a key such as `options.shapes[2].memory_mib`, or of the closest part of it that is
/// written in the file.
fn locate(text: &str, table: &DeTable<'_>, key: &str) -> Option<usize> {
    let (mut table, mut found) = (Some(table), None);
    for part in key.split('.') {
        let (name, place) = part.split_once('[').map_or((part, None), |(name, place)| {
            (name, place.trim_end_matches(']').parse::<usize>().ok())
        });
        let Some((written, value)) =
            table.and_then(|table| table.iter().find(|(written, _)| written.get_ref() == name))
        else {
            break;
        };
        found = Some(written.span().start);
        let element = place.and_then(|place| value.get_ref().as_array()?.get(place));
        let value = element.unwrap_or(value);
        if element.is_some() {
            found = Some(value.span().start);
        }
        table = as_table(value);
    }
    found.map(|offset| line_of(text, offset))
}

fn as_table<'a, 'i>(value: &'a Spanned<DeValue<'i>>) -> Option<&'a DeTable<'i>> {
    value.get_ref().as_table()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn problems(text: &str) -> Vec<String> {
        Policy::problems_in_toml(text).iter().map(ToString::to_string).collect()
    }

    #[test]
    fn every_error_of_a_file_is_named_with_its_line() {
        let text = "name = 'p'\nweight = 3\n\n[filters]\ncpu = 'firm'\nheartbeat_grace_s = 0\n\
            \n[scores]\nram = 1\nmemory-pack = -1\n\n[[options.shapes]]\nmemory_mib = 1024\n\
            [[options.shapes]]\nmemory_mib = 4294967295\n";
        let found = problems(text);
        let expected = [
            "line 2: policy is not valid TOML: unknown field `weight`",
            "line 5: policy is not valid TOML: unknown variant `firm`",
            "line 6: filters.heartbeat_grace_s is 0",
            "line 9: scores.ram names \"ram\"",
            "line 10: scores.memory-pack is -1",
            "line 15: options.shapes[1].memory_mib is 4294967295",
        ];
        assert_eq!(found.len(), expected.len(), "{found:#?}");
        for (found, expected) in found.iter().zip(expected) {
            assert!(found.starts_with(expected), "{found}\n{expected}");
        }
    }

    #[test]
    fn a_file_that_is_not_toml_and_a_missing_name_are_told() {
        let found = problems("name = \n[scores\n");
        assert!(found.len() >= 2, "{found:#?}");
        assert!(found[0].starts_with("line 1: "), "{found:#?}");
        let found = problems("[scores]\nmemory-pack = 1\n");
        assert_eq!(found, ["policy is not valid TOML: missing field `name`"]);
    }

    #[test]
    fn a_valid_policy_has_no_problems() {
        let balanced = Policy::builtin("balanced").unwrap();
        assert_eq!(problems(&balanced.to_toml()), Vec::<String>::new());
    }
}
