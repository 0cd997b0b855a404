//! Why data does not have the expected form, in words for the people who wrote it.
//!
//! The library that reads data describes what it met in terms of Rust. Its messages have a few fixed
//! forms, which are rewritten here; a message of another form is passed on.

use std::fmt;

use berth_engine::suggest::closest;

/// A part of a document, of a body or of a query that does not have the expected form.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DataError {
    /// Where it is: `instances[0].resources.memory_mib`.
    pub field: String,
    /// What is there, if something is.
    pub value: Option<String>,
    /// What is wrong with it, after the name of the field.
    problem: String,
    /// What would be accepted, if that can be told.
    accepted: Option<String>,
}

impl fmt::Display for DataError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}", self.field, self.problem)?;
        self.accepted.iter().try_for_each(|accepted| write!(f, "; {accepted}"))
    }
}

impl DataError {
    /// What a message of the library says about a place, given as a path; `whole` names all of it.
    #[must_use]
    pub fn new(whole: &str, path: &str, message: &str) -> Self {
        let path = if path == "." { "" } else { path };
        let message = without_position(message);
        let field = if path.is_empty() { whole.to_owned() } else { path.to_owned() };
        if let Some((name, names)) = unknown(message, "unknown field ") {
            // The path of an unknown field ends with the field itself.
            let within = path.strip_suffix(name).unwrap_or(path).trim_end_matches('.');
            let (problem, accepted) = (" is unknown".to_owned(), Some(accepted(name, &names)));
            return Self { field: inside(within, name), value: None, problem, accepted };
        }
        if let Some((name, names)) = unknown(message, "unknown variant ") {
            let (problem, accepted) = (format!(" is {name:?}"), Some(accepted(name, &names)));
            return Self { field, value: Some(name.to_owned()), problem, accepted };
        }
        if let Some(name) = message.strip_prefix("missing field ") {
            let (field, problem) = (inside(path, name.trim_matches('`')), " is missing".to_owned());
            return Self { field, value: None, problem, accepted: None };
        }
        for form in ["invalid type: ", "invalid value: ", "invalid length "] {
            let parts = message.strip_prefix(form).and_then(|rest| rest.split_once(", expected "));
            if let Some((found, expected)) = parts {
                let (found, expected) = (found_text(found), type_text(expected));
                let (problem, accepted) =
                    (format!(" is {found}"), format!("accepted is {expected}"));
                return Self { field, value: Some(found), problem, accepted: Some(accepted) };
            }
        }
        if message.starts_with("data did not match any variant") {
            let problem = " has none of the accepted forms".to_owned();
            return Self { field, value: None, problem, accepted: None };
        }
        if let Some(problem) = number_problem(message) {
            let accepted = Some("accepted is 0 or more".to_owned());
            return Self { field, value: None, problem: format!(" {problem}"), accepted };
        }
        // It speaks of the value itself, and of what is accepted.
        if path.is_empty() {
            let (field, problem) = (String::new(), message.to_owned());
            return Self { field, value: None, problem, accepted: None };
        }
        Self { field, value: None, problem: format!(": {message}"), accepted: None }
    }

    /// What would be accepted, or what is wrong where that cannot be told.
    #[must_use]
    pub fn accepted(&self) -> &str {
        let problem = || self.problem.trim_start_matches([':', ' ']);
        self.accepted.as_deref().unwrap_or_else(problem)
    }
}

/// What is wrong with a number that was read from text.
fn number_problem(message: &str) -> Option<&'static str> {
    match message {
        "invalid digit found in string" => Some("is no whole number"),
        "cannot parse integer from empty string" => Some("is empty"),
        "number too large to fit in target type" => Some("is too large a number"),
        _ => None,
    }
}

/// The name of a field inside another.
fn inside(path: &str, name: &str) -> String {
    if path.is_empty() { name.to_owned() } else { format!("{path}.{name}") }
}

/// A message without the position in a text that nobody wrote.
fn without_position(message: &str) -> &str {
    match message.rfind(" at line ") {
        Some(at) if message[at..].contains(" column ") => &message[..at],
        _ => message,
    }
}

/// The name that is not known, and the known ones.
fn unknown<'a>(message: &'a str, form: &str) -> Option<(&'a str, Vec<&'a str>)> {
    let (name, rest) = message.strip_prefix(form)?.strip_prefix('`')?.split_once('`')?;
    // Every second part is between backticks.
    Some((name, rest.split('`').skip(1).step_by(2).collect()))
}

fn accepted(name: &str, names: &[&str]) -> String {
    let near = closest(name, names.iter().copied());
    let near = near.map(|near| format!("did you mean {near}? ")).unwrap_or_default();
    match names {
        [] => format!("{near}nothing is accepted here"),
        [one] => format!("{near}accepted is {one}"),
        names => format!("{near}accepted are {}", names.join(", ")),
    }
}

/// What was found, as its author wrote it.
fn found_text(found: &str) -> String {
    let of = |kind: &str| found.strip_prefix(kind).map(|value| value.trim_matches('`').to_owned());
    match found {
        "map" => "a map".to_owned(),
        "sequence" => "a list".to_owned(),
        "null" | "unit value" | "Option value" => "empty".to_owned(),
        _ => {
            let kinds = ["string ", "integer ", "floating point ", "boolean "];
            kinds.into_iter().find_map(of).unwrap_or_else(|| found.to_owned())
        }
    }
}

/// What was expected, without names of Rust.
fn type_text(expected: &str) -> String {
    let number = |most: &str| format!("a whole number from 0 to {most}");
    match expected {
        "u8" => number("255"),
        "u16" => number("65535"),
        "u32" => number(&u32::MAX.to_string()),
        "u64" | "usize" => "a whole number, 0 or more".to_owned(),
        "i8" | "i16" | "i32" | "i64" | "isize" => "a whole number".to_owned(),
        "f32" | "f64" => "a number".to_owned(),
        "a boolean" => "true or false".to_owned(),
        "a string" | "a borrowed string" | "str" => "a text".to_owned(),
        "a sequence" => "a list".to_owned(),
        "unit" => "nothing".to_owned(),
        _ if expected.starts_with("struct ") || expected == "a map" => "a map of fields".to_owned(),
        _ if expected.starts_with("enum ") || expected.starts_with("variant ") => {
            "one of the documented forms".to_owned()
        }
        _ => expected.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_becomes_field_value_and_what_is_accepted() {
        let message = "invalid type: map, expected a string at line 1 column 5";
        let error = DataError::new("the body", "name", message);
        assert_eq!(error.to_string(), "name is a map; accepted is a text");
        assert_eq!(
            (error.value.as_deref(), error.accepted()),
            (Some("a map"), "accepted is a text")
        );
        let error = DataError::new("the body", ".", "missing field `instances` at line 1 column 2");
        assert_eq!((error.field.as_str(), error.accepted()), ("instances", "is missing"));
        let error =
            DataError::new("the body", ".", "invalid type: sequence, expected struct Place");
        assert_eq!(error.to_string(), "the body is a list; accepted is a map of fields");
        let error = DataError::new("the body", "a.b", "has 3 characters; accepted is 2");
        assert_eq!(error.to_string(), "a.b: has 3 characters; accepted is 2");
        assert_eq!(error.accepted(), "has 3 characters; accepted is 2");
        let error = DataError::new("the query", ".", "limit is too large");
        assert_eq!(error.to_string(), "limit is too large");
    }

    #[test]
    fn an_unknown_name_is_given_with_those_that_are_known() {
        let message = "unknown field `memory_mb`, expected `memory_mib` or `disk_mib`";
        let error = DataError::new("the body", "instances[0].memory_mb", message);
        let expected = "instances[0].memory_mb is unknown; did you mean memory_mib? accepted are \
                        memory_mib, disk_mib";
        assert_eq!(error.to_string(), expected);
    }
}
