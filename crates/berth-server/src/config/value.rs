//! Values of settings: what kinds there are, how each is read from a file, a variable or a flag,
//! and how it is written.

use std::fmt;
use std::net::SocketAddr;
use std::time::Duration;

use berth_api::units::{self, Rounding};

/// What kind of value a setting has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Any text.
    Text,
    /// Yes or no.
    Flag,
    /// A whole number within limits.
    Count(u64, u64),
    /// A size in whole MiB, within limits.
    Size(u64, u64),
    /// A duration in milliseconds, within limits.
    Duration(u64, u64),
    /// How long something is kept: a duration of a second or more, or for ever.
    Age,
    /// One of a few words.
    OneOf(&'static [&'static str]),
    /// Addresses with ports.
    Addresses,
    /// The same, or none.
    NoneOrAddresses,
    /// A list of texts.
    List,
}

/// What was given, before it means anything.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum GivenValue {
    /// A text: a string of the file, a variable, a flag.
    Text(String),
    /// A number.
    Number(String),
    /// Yes or no.
    Flag(bool),
    /// A list of texts.
    List(Vec<String>),
    /// Something that no setting is.
    Other(&'static str),
}

/// A value that was read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Value {
    /// A text or a word.
    Text(String),
    /// Yes or no.
    Flag(bool),
    /// A number.
    Count(u64),
    /// A size in MiB.
    Size(u64),
    /// A duration.
    Duration(Duration),
    /// How long something is kept; absent: for ever.
    Age(Option<Duration>),
    /// A list.
    List(Vec<String>),
}

const FOR_EVER: &str = "forever";

impl Kind {
    /// What a value of this kind looks like, for people.
    #[must_use]
    pub fn accepted(self) -> String {
        match self {
            Self::Text => "a text in quotes".to_owned(),
            Self::Flag => "true or false".to_owned(),
            Self::Count(least, most) => format!("a whole number, {least} to {most}"),
            Self::Size(least, most) => format!(
                "a size in whole MiB, {} to {}, as in \"2MiB\"",
                size_text(least),
                size_text(most)
            ),
            Self::Duration(least, most) => format!(
                "a duration, {} to {}, as in \"500ms\", \"30s\" or \"1h30m\"",
                duration_text(Duration::from_millis(least)),
                duration_text(Duration::from_millis(most))
            ),
            Self::Age => {
                format!("a duration, at least 1s, as in \"30d\", or \"{FOR_EVER}\"")
            }
            Self::OneOf(words) => format!("one of {}", words.join(", ")),
            Self::Addresses => {
                "addresses with ports, as in [\"127.0.0.1:7070\", \"[::1]:7070\"]".to_owned()
            }
            Self::NoneOrAddresses => {
                "addresses with ports, as in [\"127.0.0.1:10299\"], or nothing".to_owned()
            }
            Self::List => "a list of texts, as in [\"a\", \"b\"]".to_owned(),
        }
    }

    /// In one word, for the reference.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Text => "text",
            Self::Flag => "true or false",
            Self::Count(..) => "number",
            Self::Size(..) => "size",
            Self::Duration(..) => "duration",
            Self::Age => "duration or forever",
            Self::OneOf(_) => "word",
            Self::Addresses | Self::NoneOrAddresses => "addresses",
            Self::List => "list",
        }
    }

    /// Reads what was given; absent when it cannot be a value of this kind.
    #[must_use]
    pub fn read(self, given: &GivenValue) -> Option<Value> {
        match (self, given) {
            (Self::Text, GivenValue::Text(text)) => Some(Value::Text(text.clone())),
            (Self::Flag, GivenValue::Flag(flag)) => Some(Value::Flag(*flag)),
            (Self::Flag, GivenValue::Text(text)) => match text.as_str() {
                "true" | "yes" | "1" => Some(Value::Flag(true)),
                "false" | "no" | "0" => Some(Value::Flag(false)),
                _ => None,
            },
            (Self::Count(least, most), GivenValue::Number(text) | GivenValue::Text(text)) => {
                let count = text.replace('_', "").parse().ok()?;
                (least..=most).contains(&count).then_some(Value::Count(count))
            }
            (Self::Size(least, most), GivenValue::Text(text)) => {
                // A size that is not a whole number of MiB would be rounded silently.
                let size = units::parse_size(text, Rounding::Up).ok()?;
                let exact = units::parse_size(text, Rounding::Down) == Ok(size);
                let size = u64::from(size);
                (exact && (least..=most).contains(&size)).then_some(Value::Size(size))
            }
            (Self::Duration(least, most), GivenValue::Text(text)) => {
                let duration = read_duration(text)?;
                let (from, to) = (Duration::from_millis(least), Duration::from_millis(most));
                (from..=to).contains(&duration).then_some(Value::Duration(duration))
            }
            (Self::Age, GivenValue::Text(text)) if text == FOR_EVER => Some(Value::Age(None)),
            (Self::Age, GivenValue::Text(text)) => {
                let seconds = units::parse_duration(text).ok().filter(|seconds| *seconds > 0)?;
                Some(Value::Age(Some(Duration::from_secs(seconds))))
            }
            (Self::OneOf(words), GivenValue::Text(text)) => {
                words.contains(&text.as_str()).then(|| Value::Text(text.clone()))
            }
            (Self::Addresses | Self::NoneOrAddresses | Self::List, GivenValue::Text(text)) => {
                let parts = text.split(',').map(str::trim).filter(|part| !part.is_empty());
                self.read(&GivenValue::List(parts.map(str::to_owned).collect()))
            }
            (Self::Addresses | Self::NoneOrAddresses, GivenValue::List(parts)) => {
                let good = parts.iter().all(|part| part.parse::<SocketAddr>().is_ok());
                let enough = !parts.is_empty() || self == Self::NoneOrAddresses;
                (good && enough).then(|| Value::List(parts.clone()))
            }
            (Self::List, GivenValue::List(parts)) => Some(Value::List(parts.clone())),
            _ => None,
        }
    }
}

fn read_duration(text: &str) -> Option<Duration> {
    match text.strip_suffix("ms") {
        Some(number) => number.trim_end().parse().ok().map(Duration::from_millis),
        None => units::parse_duration(text).ok().map(Duration::from_secs),
    }
}

fn duration_text(duration: Duration) -> String {
    if duration.subsec_millis() != 0 {
        return format!("{}ms", duration.as_millis());
    }
    units::duration_exact(i64::try_from(duration.as_secs()).unwrap_or(i64::MAX))
}

fn size_text(mib: u64) -> String {
    units::size_exact(i64::try_from(mib).unwrap_or(i64::MAX))
}

/// As written in a file.
impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let quoted = |text: &str| serde_json::Value::from(text).to_string();
        match self {
            Self::Text(text) => f.write_str(&quoted(text)),
            Self::Flag(flag) => write!(f, "{flag}"),
            Self::Count(count) => write!(f, "{count}"),
            Self::Size(mib) => f.write_str(&quoted(&size_text(*mib))),
            Self::Duration(duration) | Self::Age(Some(duration)) => {
                f.write_str(&quoted(&duration_text(*duration)))
            }
            Self::Age(None) => f.write_str(&quoted(FOR_EVER)),
            Self::List(parts) => {
                let parts: Vec<String> = parts.iter().map(|part| quoted(part)).collect();
                write!(f, "[{}]", parts.join(", "))
            }
        }
    }
}

/// As it was given.
impl fmt::Display for GivenValue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Text(text) => write!(f, "{text:?}"),
            Self::Number(text) => f.write_str(text),
            Self::Flag(flag) => write!(f, "{flag}"),
            Self::List(parts) => write!(f, "{parts:?}"),
            Self::Other(what) => f.write_str(what),
        }
    }
}

/// What a setting takes from a value of its kind. A value of another kind cannot be here: the table
/// of settings is checked by a test.
impl Value {
    pub(super) fn text(self) -> String {
        if let Self::Text(text) = self { text } else { String::new() }
    }

    pub(super) fn optional_text(self) -> Option<String> {
        Some(self.text()).filter(|text| !text.is_empty())
    }

    pub(super) const fn flag(&self) -> bool {
        matches!(self, Self::Flag(true))
    }

    pub(super) const fn count(&self) -> u64 {
        if let Self::Count(count) | Self::Size(count) = self { *count } else { 0 }
    }

    pub(super) fn size(&self) -> usize {
        usize::try_from(self.count())
            .ok()
            .and_then(|n| n.checked_mul(1 << 20))
            .unwrap_or(usize::MAX)
    }

    pub(super) fn number(&self) -> usize {
        usize::try_from(self.count()).unwrap_or(usize::MAX)
    }

    pub(super) const fn duration(&self) -> Duration {
        if let Self::Duration(duration) = self { *duration } else { Duration::ZERO }
    }

    pub(super) fn age_s(&self) -> Option<i64> {
        match self {
            Self::Age(Some(age)) => i64::try_from(age.as_secs()).ok(),
            _ => None,
        }
    }

    pub(super) fn list(self) -> Vec<String> {
        if let Self::List(parts) = self { parts } else { Vec::new() }
    }

    pub(super) fn addresses(self) -> Vec<SocketAddr> {
        self.list().iter().filter_map(|part| part.parse().ok()).collect()
    }
}
