//! The value side of a comparison: read in the unit of its attribute, written back exactly.

use berth_engine::PlatformVersion;
use berth_engine::node_selector::grammar::{Operator, quote, read_switch};
use jiff::tz::TimeZone;

use super::attribute::{Attribute, Kind};
use crate::units::{self, Rounding};

/// What an attribute is compared with.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Value {
    /// A text, a word or a pattern.
    Text(String),
    /// On or off.
    Switch(bool),
    /// A number in the attribute's unit: thousandths of a core, MiB, Mbit/s, parts per million.
    Number(i64),
    /// A share of what can be allocated, in parts per million.
    Share(u64),
    /// A second or a day: from the first second to before the last, since the Unix epoch.
    Moment(i64, i64),
    /// How long ago, or how long until then, in seconds.
    Age(i64),
    /// A platform version.
    Version(PlatformVersion),
}

impl Value {
    /// Reads a value for an attribute.
    ///
    /// # Errors
    /// Says what would be accepted.
    pub(super) fn read(
        text: &str,
        attribute: &Attribute,
        operator: Operator,
    ) -> Result<Self, String> {
        if operator == Operator::Like {
            return Ok(Self::Text(collapse_stars(text)));
        }
        if attribute.has_share()
            && let Some(number) = text.strip_suffix('%')
        {
            let share = share(number).ok_or("a share of at most 1000%, as in 80% or 12.5%")?;
            return Ok(Self::Share(share));
        }
        // Capacity is a whole number, so a limit between two may be moved to the next that means
        // the same.
        let rounding = match operator {
            Operator::AtLeast | Operator::Below => Rounding::Up,
            _ => Rounding::Down,
        };
        let number = |read: Result<u32, units::UnitError>, accepted: &str| {
            let with_share = if attribute.has_share() { ", or a share, as in 80%" } else { "" };
            read.map(|n| Self::Number(n.into())).map_err(|error| match error {
                units::UnitError::TooLarge { most, .. } => format!("at most {most}"),
                _ => format!("{accepted}{with_share}"),
            })
        };
        match attribute.kind() {
            Kind::Text => Ok(Self::Text(text.to_owned())),
            Kind::Word(words) if words.contains(&text) => Ok(Self::Text(text.to_owned())),
            Kind::Word(words) => Err(words.join(", ")),
            Kind::Switch => {
                read_switch(text).map(Self::Switch).ok_or_else(|| "true or false".to_owned())
            }
            Kind::Count => {
                text.parse().map(Self::Number).map_err(|_| match attribute.has_share() {
                    true => "a whole number, or a share, as in 80%".to_owned(),
                    false => "a whole number".to_owned(),
                })
            }
            Kind::Cpu => number(units::parse_cpu(text, rounding), "cores, as in 64, 0.5 or 500m"),
            Kind::Size => number(
                units::parse_size(text, rounding),
                "MiB, or a number with a unit, as in 256GiB, 1.5TiB or 4G",
            ),
            Kind::Bandwidth => number(
                units::parse_bandwidth(text, rounding),
                "Mbit/s, or a number with a unit, as in 10Gbit",
            ),
            Kind::Loss => loss(text)
                .ok_or_else(|| "parts per million, as in 500, or a share, as in 0.5%".to_owned()),
            Kind::Date => date(text).or_else(|| age(text)).ok_or_else(|| {
                format!("{DATES}, or how long ago or until then, as in 5m or 1d12h")
            }),
            Kind::Version => version(text).ok_or_else(|| "a version, as in 7.1".to_owned()),
            Kind::Platform => version(text)
                .or_else(|| date(text))
                .ok_or_else(|| format!("a version, as in 7.1, or a build date: {DATES}")),
        }
    }

    /// The canonical text, which reads back to the same value.
    pub(super) fn to_text(&self, kind: Kind) -> String {
        match (self, kind) {
            (Self::Text(text), _) => quote(text),
            (Self::Switch(on), _) => on.to_string(),
            (Self::Number(milli), Kind::Cpu) => units::cpu_exact(*milli),
            (Self::Number(mib), Kind::Size) => units::size_exact(*mib),
            (Self::Number(mbps), Kind::Bandwidth) => units::bandwidth_exact(*mbps),
            (Self::Number(ppm), Kind::Loss) => percent(ppm.unsigned_abs()),
            (Self::Number(number), _) => number.to_string(),
            (Self::Share(ppm), _) => percent(*ppm),
            (Self::Moment(from, until), _) => moment_text(*from, *until),
            (Self::Age(seconds), _) => units::duration_exact(*seconds),
            (Self::Version(version), _) => version.to_string(),
        }
    }
}

const DATES: &str = "a date, as in 20260101, 2026-01-01 or 2026-01-01T12:00:00Z";

/// A percentage without its sign, in parts per million; at most 1000 %.
fn share(number: &str) -> Option<u64> {
    let (number, parts) = units::decimal(number)?;
    let ppm = number.checked_mul(10_000)? / parts;
    u64::try_from(ppm).ok().filter(|ppm| *ppm <= 10_000_000)
}

fn loss(text: &str) -> Option<Value> {
    let ppm = match text.strip_suffix('%') {
        Some(number) => i64::try_from(share(number)?).ok()?,
        None => i64::from(text.strip_suffix("ppm").unwrap_or(text).parse::<u32>().ok()?),
    };
    (ppm <= 10_000_000).then_some(Value::Number(ppm))
}

fn percent(ppm: u64) -> String {
    let fraction = format!("{:04}", ppm % 10_000);
    let fraction = fraction.trim_end_matches('0');
    let dot = if fraction.is_empty() { "" } else { "." };
    format!("{}{dot}{fraction}%", ppm / 10_000)
}

/// A day, or a second.
fn date(text: &str) -> Option<Value> {
    if !text.starts_with(|c: char| c.is_ascii_digit()) {
        return None;
    }
    if text.contains(['T', 't']) {
        let second = text.parse::<jiff::Timestamp>().ok()?.as_second();
        return Some(Value::Moment(second, second.checked_add(1)?));
    }
    let day: jiff::civil::Date = text.parse().ok()?;
    let from = day.to_zoned(TimeZone::UTC).ok()?.timestamp().as_second();
    Some(Value::Moment(from, from.checked_add(86_400)?))
}

fn moment_text(from: i64, until: i64) -> String {
    let Ok(at) = jiff::Timestamp::from_second(from) else {
        return String::new();
    };
    if until.saturating_sub(from) == 1 {
        return at.to_string();
    }
    at.to_zoned(TimeZone::UTC).date().to_string()
}

/// A duration with its unit: a bare number could be meant as a date.
fn age(text: &str) -> Option<Value> {
    let has_unit = text.ends_with(|c: char| c.is_ascii_alphabetic());
    let seconds = units::parse_duration(text).ok().filter(|_| has_unit)?;
    i64::try_from(seconds).ok().map(Value::Age)
}

fn version(text: &str) -> Option<Value> {
    let plain = text.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.');
    text.parse().ok().filter(|_| plain).map(Value::Version)
}

/// `a**b` means `a*b`; one spelling makes the two equal.
fn collapse_stars(glob: &str) -> String {
    let mut shorter = String::with_capacity(glob.len());
    for character in glob.chars() {
        if character != '*' || !shorter.ends_with('*') {
            shorter.push(character);
        }
    }
    shorter
}
