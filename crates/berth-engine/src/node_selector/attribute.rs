//! The facts that a node selector compares: their names and values. Only facts that seldom change.

use std::fmt;

use super::error::ExpectedInput;
use super::grammar::{Attribute, Operator, quote, read_switch};
use crate::suggest::closest;

/// A fact that a selector compares.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum PlaceAttribute {
    Id,
    Zone,
    Rack,
    CapacityType,
    PlatformVersion,
    HardwareClass,
    Virtual,
    Label(String),
    Trait(String),
}

/// What a fact is compared with.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum Value {
    Text(String),
    Number(i64),
    Version(u16, u16),
    Switch(bool),
}

const NAMES: [&str; 9] = [
    "id",
    "zone",
    "rack",
    "capacity_type",
    "platform_version",
    "hardware_class",
    "virtual",
    "label:KEY",
    "trait:KEY",
];

impl Attribute for PlaceAttribute {
    type Value = Value;

    const MAX_BYTES: usize = 1024;
    const MAX_TERMS: usize = 64;
    const MAX_DEPTH: usize = 16;

    fn by_name(name: &str) -> Result<Self, ExpectedInput> {
        Ok(match (name, name.split_once([':', '.'])) {
            ("id" | "node" | "name", _) => Self::Id,
            ("zone", _) => Self::Zone,
            ("rack", _) => Self::Rack,
            ("capacity_type" | "capacity", _) => Self::CapacityType,
            ("platform_version", _) => Self::PlatformVersion,
            ("hardware_class", _) => Self::HardwareClass,
            ("virtual" | "is_virtual", _) => Self::Virtual,
            (_, Some(("label", key))) if !key.is_empty() => Self::Label(key.to_owned()),
            (_, Some(("trait", key))) if !key.is_empty() => Self::Trait(key.to_owned()),
            _ => {
                let meant = closest(name, NAMES.into_iter()).map(str::to_owned);
                return Err(
                    ExpectedInput::from(format!("one of {}", Self::names())).or_rather(meant)
                );
            }
        })
    }

    fn names() -> String {
        NAMES.join(", ")
    }

    fn operators(&self) -> Vec<Operator> {
        let mut accepted = vec![Operator::Equal, Operator::NotEqual];
        match self {
            Self::PlatformVersion | Self::HardwareClass => accepted.extend(Operator::ORDER),
            Self::Virtual => {}
            Self::Id
            | Self::Zone
            | Self::Rack
            | Self::CapacityType
            | Self::Label(_)
            | Self::Trait(_) => accepted.push(Operator::Like),
        }
        accepted.push(Operator::In);
        accepted
    }

    fn read_value(&self, text: &str, operator: Operator) -> Result<Value, ExpectedInput> {
        let any_text = || Value::Text(text.to_owned());
        let value = match self {
            _ if operator == Operator::Like => Ok(any_text()),
            Self::Id | Self::Zone | Self::Rack | Self::Label(_) | Self::Trait(_) => Ok(any_text()),
            Self::CapacityType if ["on-demand", "spot"].contains(&text) => Ok(any_text()),
            Self::CapacityType => Err("on-demand or spot"),
            Self::HardwareClass => text.parse().map(Value::Number).map_err(|_| "a whole number"),
            Self::PlatformVersion => version(text).ok_or("a version, as in 7.1"),
            Self::Virtual => read_switch(text).map(Value::Switch).ok_or("true or false"),
        };
        value.map_err(ExpectedInput::from)
    }

    fn write_value(&self, value: &Value) -> String {
        match value {
            Value::Text(text) => quote(text),
            Value::Number(number) => number.to_string(),
            Value::Version(major, minor) => format!("{major}.{minor}"),
            Value::Switch(on) => on.to_string(),
        }
    }
}

impl fmt::Display for PlaceAttribute {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Id => f.write_str("id"),
            Self::Zone => f.write_str("zone"),
            Self::Rack => f.write_str("rack"),
            Self::CapacityType => f.write_str("capacity_type"),
            Self::PlatformVersion => f.write_str("platform_version"),
            Self::HardwareClass => f.write_str("hardware_class"),
            Self::Virtual => f.write_str("virtual"),
            Self::Label(key) => write!(f, "label:{}", quote(key)),
            Self::Trait(key) => write!(f, "trait:{}", quote(key)),
        }
    }
}

fn version(text: &str) -> Option<Value> {
    let (major, minor) = text.split_once('.')?;
    Some(Value::Version(major.parse().ok()?, minor.parse().ok()?))
}
