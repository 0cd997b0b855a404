//! Why a document does not have the expected form, in words for the people who wrote it.
//!
//! The library that reads documents describes what it met in terms of Rust. Its messages have a few
//! fixed forms, which are rewritten here; a message of another form is passed on.

use serde::de::DeserializeOwned;
use serde_json::Value;

use super::suggest::closest;

/// Reads a document; an error names the field, what it is, and what is accepted.
pub(crate) fn from_value<T: DeserializeOwned>(value: Value) -> Result<T, String> {
    serde_path_to_error::deserialize(value).map_err(|error| {
        let path = error.path().to_string();
        describe(if path == "." { "" } else { &path }, &error.inner().to_string())
    })
}

/// A message of the library about a field.
pub(crate) fn describe(path: &str, message: &str) -> String {
    let message = without_position(message);
    let field = if path.is_empty() { "the document" } else { path };
    if let Some((name, names)) = unknown(message, "unknown field ") {
        // The path of an unknown field ends with the field itself.
        let within = path.strip_suffix(name).unwrap_or(path).trim_end_matches('.');
        let full = if within.is_empty() { name.to_owned() } else { format!("{within}.{name}") };
        return format!("{full} is unknown; {}", accepted(name, &names));
    }
    if let Some((name, names)) = unknown(message, "unknown variant ") {
        return format!("{field} is {name:?}; {}", accepted(name, &names));
    }
    if let Some(name) = message.strip_prefix("missing field ") {
        let name = name.trim_matches('`');
        let name = if path.is_empty() { name.to_owned() } else { format!("{path}.{name}") };
        return format!("{name} is missing");
    }
    for form in ["invalid type: ", "invalid value: ", "invalid length "] {
        let parts = message.strip_prefix(form).and_then(|rest| rest.split_once(", expected "));
        if let Some((found, expected)) = parts {
            return format!(
                "{field} is {}; accepted is {}",
                found_text(found),
                type_text(expected)
            );
        }
    }
    if message.starts_with("data did not match any variant") {
        return format!("{field} has none of the accepted forms");
    }
    if path.is_empty() { message.to_owned() } else { format!("{field}: {message}") }
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
    use serde::Deserialize;
    use serde_json::json;

    use super::*;

    #[derive(Debug, Deserialize)]
    #[serde(deny_unknown_fields)]
    #[allow(dead_code, reason = "only read")]
    struct Outer {
        name: String,
        #[serde(default)]
        inner: Vec<Inner>,
    }

    #[derive(Debug, Deserialize)]
    #[serde(deny_unknown_fields)]
    #[allow(dead_code, reason = "only read")]
    struct Inner {
        #[serde(default)]
        memory_mib: u32,
        #[serde(default)]
        kind: Option<Kind>,
    }

    #[derive(Debug, Deserialize)]
    #[serde(rename_all = "lowercase")]
    enum Kind {
        Small,
        Large,
    }

    #[test]
    fn every_form_of_message_names_field_value_and_what_is_accepted() {
        let cases = [
            (json!({"name": {"a": 1}}), "name is a map; accepted is a text"),
            (json!({"nam": "x"}), "nam is unknown; did you mean name? accepted are name, inner"),
            (json!({"inner": []}), "name is missing"),
            (
                json!({"name": "x", "inner": [{}, {"memory_mib": "64"}]}),
                "inner[1].memory_mib is \"64\"; accepted is a whole number from 0 to 4294967295",
            ),
            (
                json!({"name": "x", "inner": [{"memory_mib": -1}]}),
                "inner[0].memory_mib is -1; accepted is a whole number from 0 to 4294967295",
            ),
            (
                json!({"name": "x", "inner": [{"memory_mb": 1}]}),
                "inner[0].memory_mb is unknown; did you mean memory_mib? accepted are memory_mib, \
                 kind",
            ),
            (
                json!({"name": "x", "inner": [{"kind": "smal"}]}),
                "inner[0].kind is \"smal\"; did you mean small? accepted are small, large",
            ),
            (json!({"name": "x", "inner": 5}), "inner is 5; accepted is a list"),
            (json!("text"), "the document is \"text\"; accepted is a map of fields"),
        ];
        for (value, expected) in cases {
            assert_eq!(from_value::<Outer>(value).unwrap_err(), expected);
        }
    }

    #[test]
    fn a_position_in_a_text_that_nobody_wrote_is_left_out() {
        let message = "invalid type: map, expected a string at line 1 column 5";
        assert_eq!(describe("name", message), "name is a map; accepted is a text");
    }
}
