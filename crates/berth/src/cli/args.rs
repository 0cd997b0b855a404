//! Values of flags: amounts, durations, `key=value`.

use berth_api::engine::elastic::Size;
use berth_api::engine::{Hint, InstanceId, TraitValue};
use berth_api::units::{self, Rounding};

/// CPU that is asked for, in thousandths of a core.
pub(crate) fn cpu(text: &str) -> Result<u32, String> {
    units::parse_cpu(text, Rounding::Up).map_err(|error| error.to_string())
}

/// Memory or disk that is asked for, in MiB.
pub(crate) fn size(text: &str) -> Result<u32, String> {
    units::parse_size(text, Rounding::Up).map_err(|error| error.to_string())
}

/// Bandwidth that is asked for, in Mbit/s.
pub(crate) fn bandwidth(text: &str) -> Result<u32, String> {
    units::parse_bandwidth(text, Rounding::Up).map_err(|error| error.to_string())
}

/// CPU that there is, in thousandths of a core.
pub(crate) fn cpu_had(text: &str) -> Result<u32, String> {
    units::parse_cpu(text, Rounding::Down).map_err(|error| error.to_string())
}

/// Memory or disk that there is, in MiB.
pub(crate) fn size_had(text: &str) -> Result<u32, String> {
    units::parse_size(text, Rounding::Down).map_err(|error| error.to_string())
}

/// Bandwidth that there is, in Mbit/s.
pub(crate) fn bandwidth_had(text: &str) -> Result<u32, String> {
    units::parse_bandwidth(text, Rounding::Down).map_err(|error| error.to_string())
}

/// CPU and memory that are asked for: `2,4GiB`.
pub(crate) fn both(text: &str) -> Result<Size, String> {
    let wrong = || "accepted is CPU and memory with a comma between, such as 0.5,1GiB".to_owned();
    let (cores, memory) = text.split_once(',').ok_or_else(wrong)?;
    Ok(Size::new(cpu(cores.trim())?, size(memory.trim())?))
}

/// CPU and memory as they are typed.
pub(crate) fn both_typed(size: Size) -> String {
    let cores = units::cpu_exact(i64::from(size.cpu_milli));
    format!("{cores},{}", units::size_exact(i64::from(size.memory_mib)))
}

/// A duration, in seconds.
pub(crate) fn duration(text: &str) -> Result<u32, String> {
    let seconds = units::parse_duration(text).map_err(|error| error.to_string())?;
    u32::try_from(seconds).map_err(|_| format!("duration is {text:?}; accepted is up to 100 years"))
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

/// `name` or `name=value`; words apart by `|` are a list.
pub(crate) fn trait_wanted(text: &str) -> Result<(String, TraitValue), String> {
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

/// One of these networks.
pub(crate) fn networks(text: &str) -> Result<Vec<String>, String> {
    let names: Vec<String> = text.split('|').map(str::to_owned).collect();
    if names.iter().any(String::is_empty) {
        return Err("accepted is a network, or several of which one will do: a|b".to_owned());
    }
    Ok(names)
}

/// An instance by id, or all with a tag.
pub(crate) fn hint(text: &str) -> Result<Hint, String> {
    if let Ok(id) = text.parse() {
        return Ok(Hint::Instance(InstanceId(id)));
    }
    let wrong = |_| "accepted is an instance's id, or tag=value".to_owned();
    pair(text).map(|(tag, value)| Hint::Tag(tag, value)).map_err(wrong)
}

/// A hint as it is typed.
pub(crate) fn hint_typed(hint: &Hint) -> String {
    match hint {
        Hint::Instance(id) => id.to_string(),
        Hint::Tag(tag, value) => format!("{tag}={value}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn traits_are_switches_words_or_lists() {
        let is = |text: &str| trait_wanted(text).unwrap().1;
        assert_eq!(is("ssd"), TraitValue::Bool(true));
        assert_eq!(is("ssd=false"), TraitValue::Bool(false));
        assert_eq!(is("cpu=amd"), TraitValue::Text("amd".to_owned()));
        assert_eq!(is("cpu=amd|arm"), TraitValue::List(vec!["amd".to_owned(), "arm".to_owned()]));
        assert!(trait_wanted("=x").is_err());
    }

    #[test]
    fn cpu_and_memory_go_together() {
        assert_eq!(both("0.5,1GiB"), Ok(Size::new(500, 1024)));
        assert_eq!(both("2, 512MiB"), Ok(Size::new(2000, 512)));
        for wrong in ["2", "2;1GiB", ",1GiB", "2,"] {
            assert!(both(wrong).is_err_and(|error| error.contains("accepted")), "{wrong}");
        }
        for size in [Size::new(500, 1024), Size::new(2000, 1000)] {
            assert_eq!(both(&both_typed(size)), Ok(size));
        }
    }

    #[test]
    fn what_is_wrong_with_a_value_is_said_with_what_would_do() {
        assert!(memory_error("4 apples").contains("accepted"));
        assert!(class("gpu").unwrap_err().contains("gpu=1"));
        assert!(hint("nobody").unwrap_err().contains("tag=value"));
        assert!(networks("a|").unwrap_err().contains("a|b"));
    }

    fn memory_error(text: &str) -> String {
        size(text).unwrap_err()
    }
}
