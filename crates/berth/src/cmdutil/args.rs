//! Values of flags: parsed from what a user types, and written as a user would type them.

use std::time::Duration;

use berth_api::engine::elastic::Size;
use berth_api::engine::{Hint, InstanceId, TraitValue};
use berth_api::units::{self, Rounding, UnitError};
use serde::de::DeserializeOwned;

fn with_text_error(result: Result<u32, UnitError>) -> Result<u32, String> {
    result.map_err(|error| error.to_string())
}

/// A CPU request, in thousandths of a core.
pub(crate) fn cpu(text: &str) -> Result<u32, String> {
    with_text_error(units::parse_cpu(text, Rounding::Up))
}

/// A memory or disk request, in MiB.
pub(crate) fn size(text: &str) -> Result<u32, String> {
    with_text_error(units::parse_size(text, Rounding::Up))
}

/// A bandwidth request, in Mbit/s.
pub(crate) fn bandwidth(text: &str) -> Result<u32, String> {
    with_text_error(units::parse_bandwidth(text, Rounding::Up))
}

/// CPU capacity, in thousandths of a core.
pub(crate) fn cpu_capacity(text: &str) -> Result<u32, String> {
    with_text_error(units::parse_cpu(text, Rounding::Down))
}

/// Memory or disk capacity, in MiB.
pub(crate) fn size_capacity(text: &str) -> Result<u32, String> {
    with_text_error(units::parse_size(text, Rounding::Down))
}

/// Bandwidth capacity, in Mbit/s.
pub(crate) fn bandwidth_capacity(text: &str) -> Result<u32, String> {
    with_text_error(units::parse_bandwidth(text, Rounding::Down))
}

/// A value of the API by its name there.
pub(crate) fn api_value<T: DeserializeOwned>(
    accepted: &'static str,
) -> impl Fn(&str) -> Result<T, String> + Clone {
    move |text| {
        let value = serde_json::from_value(text.into());
        value.map_err(|_| format!("accepted is {accepted}"))
    }
}

/// A request of CPU and memory: `2,4GiB`.
pub(crate) fn cpu_and_memory(text: &str) -> Result<Size, String> {
    let wrong = || "accepted is CPU and memory separated by a comma, such as 0.5,1GiB".to_owned();
    let (cores, memory) = text.split_once(',').ok_or_else(wrong)?;
    Ok(Size::new(cpu(cores.trim())?, size(memory.trim())?))
}

/// CPU and memory as a user types them.
pub(crate) fn cpu_and_memory_flag(size: Size) -> String {
    let cores = units::cpu_exact(i64::from(size.cpu_milli));
    format!("{cores},{}", units::size_exact(i64::from(size.memory_mib)))
}

/// A duration, in seconds.
pub(crate) fn duration(text: &str) -> Result<u32, String> {
    let seconds = units::parse_duration(text).map_err(|error| error.to_string())?;
    u32::try_from(seconds).map_err(|_| format!("duration is {text:?}; accepted is up to 100 years"))
}

/// A duration that may also be in milliseconds.
pub(crate) fn precise_duration(text: &str) -> Result<Duration, String> {
    units::parse_precise_duration(text).map_err(|error| error.to_string())
}

/// `key=value`.
pub(crate) fn pair(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((key, value)) if !key.is_empty() => Ok((key.to_owned(), value.to_owned())),
        _ => Err("accepted is key=value, such as role=web".to_owned()),
    }
}

/// `class=amount`.
pub(crate) fn class(text: &str) -> Result<(String, u32), String> {
    let wrong = || "accepted is class=amount, such as gpu=1".to_owned();
    let (class, amount) = pair(text).map_err(|_| wrong())?;
    Ok((class, amount.parse().map_err(|_| wrong())?))
}

/// `name` or `name=value`; values separated by `|` are a list.
pub(crate) fn trait_value(text: &str) -> Result<(String, TraitValue), String> {
    let (name, value) = text.split_once('=').unwrap_or((text, "true"));
    if name.is_empty() {
        return Err("accepted is name or name=value, such as ssd or cpu=amd".to_owned());
    }
    let value = match value {
        "true" => TraitValue::Bool(true),
        "false" => TraitValue::Bool(false),
        list if list.contains('|') => {
            TraitValue::List(list.split('|').map(str::to_owned).collect())
        }
        word => TraitValue::Text(word.to_owned()),
    };
    Ok((name.to_owned(), value))
}

/// Alternative networks: `a|b`.
pub(crate) fn networks(text: &str) -> Result<Vec<String>, String> {
    let names: Vec<String> = text.split('|').map(str::to_owned).collect();
    if names.iter().any(String::is_empty) {
        return Err("accepted is a network, or alternatives such as a|b".to_owned());
    }
    Ok(names)
}

/// An instance by id, or all instances with a tag.
pub(crate) fn hint(text: &str) -> Result<Hint, String> {
    if let Ok(id) = text.parse() {
        return Ok(Hint::Instance(InstanceId(id)));
    }
    let wrong = |_| "accepted is an instance id, or tag=value".to_owned();
    pair(text).map(|(tag, value)| Hint::Tag(tag, value)).map_err(wrong)
}

/// A hint as a user types it.
pub(crate) fn hint_flag(hint: &Hint) -> String {
    match hint {
        Hint::Instance(id) => id.to_string(),
        Hint::Tag(tag, value) => format!("{tag}={value}"),
    }
}

/// A word quoted for a shell.
pub(crate) fn shell_quote(word: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_./:=,+@%".contains(c);
    if !word.is_empty() && word.chars().all(plain) {
        return word.to_owned();
    }
    format!("'{}'", word.replace('\'', "'\\''"))
}

/// A text quoted for a selector.
pub(crate) fn selector_quote(text: &str) -> String {
    format!("\"{}\"", text.replace('\\', "\\\\").replace('"', "\\\""))
}

/// A command line quoted for a shell.
pub(crate) fn shell_line<'a>(words: impl IntoIterator<Item = &'a str>) -> String {
    words.into_iter().map(shell_quote).collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn traits_are_switches_words_or_lists() {
        let value = |text: &str| trait_value(text).unwrap().1;
        assert_eq!(value("ssd"), TraitValue::Bool(true));
        assert_eq!(value("ssd=false"), TraitValue::Bool(false));
        assert_eq!(value("cpu=amd"), TraitValue::Text("amd".to_owned()));
        assert_eq!(
            value("cpu=amd|arm"),
            TraitValue::List(vec!["amd".to_owned(), "arm".to_owned()])
        );
        assert!(trait_value("=x").is_err());
    }

    #[test]
    fn cpu_and_memory_are_separated_by_a_comma() {
        assert_eq!(cpu_and_memory("0.5,1GiB"), Ok(Size::new(500, 1024)));
        assert_eq!(cpu_and_memory("2, 512MiB"), Ok(Size::new(2000, 512)));
        for wrong in ["2", "2;1GiB", ",1GiB", "2,"] {
            assert!(
                cpu_and_memory(wrong).is_err_and(|error| error.contains("accepted")),
                "{wrong}"
            );
        }
        for size in [Size::new(500, 1024), Size::new(2000, 1000)] {
            assert_eq!(cpu_and_memory(&cpu_and_memory_flag(size)), Ok(size));
        }
    }

    #[test]
    fn an_error_says_what_would_be_accepted() {
        assert!(size("4 apples").unwrap_err().contains("accepted"));
        assert!(class("gpu").unwrap_err().contains("gpu=1"));
        assert!(hint("nobody").unwrap_err().contains("tag=value"));
        assert!(networks("a|").unwrap_err().contains("a|b"));
    }

    #[test]
    fn words_with_special_characters_are_quoted() {
        assert_eq!(shell_quote("4GiB"), "4GiB");
        assert_eq!(shell_quote("role!=db@rack"), "'role!=db@rack'");
        assert_eq!(shell_quote("a|b"), "'a|b'");
        assert_eq!(shell_quote(""), "''");
        assert_eq!(shell_quote("it's"), "'it'\\''s'");
        assert_eq!(shell_line(["berth", "a b"]), "berth 'a b'");
    }
}
