//! Quantities such as `1500m` and `2Gi`: read exactly, and written in canonical form, as the real
//! server writes them (`1000m` comes back as `1`, `1024Mi` as `1Gi`).

use serde_json::{Value, json};

/// The smallest amount that is represented.
const NANO: i128 = 1_000_000_000;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Notation {
    Decimal,
    Binary,
    Exponent,
}

/// An exact amount in billionths, with the type of its suffix.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Quantity {
    pub(crate) nanos: i128,
    form: Notation,
}

const BINARY: [&str; 7] = ["", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei"];
const DECIMAL: [(&str, i32); 10] = [
    ("E", 18),
    ("P", 15),
    ("T", 12),
    ("G", 9),
    ("M", 6),
    ("k", 3),
    ("", 0),
    ("m", -3),
    ("u", -6),
    ("n", -9),
];

fn power(exponent: i32) -> Option<i128> {
    10_i128.checked_pow(u32::try_from(exponent + 9).ok()?)
}

impl Quantity {
    /// Parses one; `None` if it is malformed.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let (negative, rest) = match text.strip_prefix('-') {
            Some(rest) => (true, rest),
            None => (false, text.strip_prefix('+').unwrap_or(text)),
        };
        let end = rest.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(rest.len());
        let (number, suffix) = rest.split_at(end);
        let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
        if whole.is_empty() && fraction.is_empty() || fraction.contains('.') {
            return None;
        }
        let digits: i128 = format!("{whole}{fraction}").parse().ok()?;
        let (multiplier, form) = suffix_value(suffix)?;
        let scale = 10_i128.checked_pow(u32::try_from(fraction.len()).ok()?)?;
        let amount = digits.checked_mul(multiplier)?;
        // Finer amounts are rounded up.
        let nanos = amount / scale + i128::from(amount % scale != 0);
        Some(Self { nanos: if negative { -nanos } else { nanos }, form })
    }

    /// The canonical text.
    pub(crate) fn text(self) -> String {
        if self.nanos == 0 {
            return "0".into();
        }
        if self.form == Notation::Binary && self.nanos % NANO == 0 {
            let mut units = self.nanos / NANO;
            let mut at = 0;
            while units % 1024 == 0 && at + 1 < BINARY.len() {
                units /= 1024;
                at += 1;
            }
            return format!("{units}{}", BINARY[at]);
        }
        for (suffix, exponent) in DECIMAL {
            let Some(unit) = power(exponent) else { continue };
            if self.nanos % unit == 0 {
                let count = self.nanos / unit;
                return match (self.form, exponent) {
                    (Notation::Exponent, 0) => count.to_string(),
                    (Notation::Exponent, _) => format!("{count}e{exponent}"),
                    _ => format!("{count}{suffix}"),
                };
            }
        }
        format!("{}n", self.nanos)
    }
}

/// A unit in billionths, and how it is written.
fn suffix_value(suffix: &str) -> Option<(i128, Notation)> {
    if let Some((_, exponent)) = DECIMAL.iter().find(|(word, _)| *word == suffix) {
        return Some((power(*exponent)?, Notation::Decimal));
    }
    if let Some(at) = BINARY.iter().position(|word| *word == suffix) {
        let unit = 1024_i128.checked_pow(u32::try_from(at).ok()?)?;
        return Some((unit.checked_mul(NANO)?, Notation::Binary));
    }
    let exponent: i32 = suffix.strip_prefix(['e', 'E'])?.parse().ok()?;
    (-9..=18).contains(&exponent).then(|| power(exponent).map(|unit| (unit, Notation::Exponent)))?
}

/// The fields that hold quantities by name.
const MAPS: [&str; 7] =
    ["requests", "limits", "capacity", "allocatable", "overhead", "allocatedResources", "hard"];

/// The fields that are one quantity.
const SINGLE: [&str; 2] = ["sizeLimit", "maximumVolumeSize"];

/// Normalizes all quantities below a value. The error names a malformed one.
pub(crate) fn normalize_all(value: &mut Value) -> Result<(), String> {
    match value {
        Value::Array(list) => list.iter_mut().try_for_each(normalize_all),
        Value::Object(map) => {
            for (key, field) in map {
                match (key.as_str(), &mut *field) {
                    ("metadata" | "data" | "matchLabels" | "nodeSelector", _) => {}
                    (key, Value::Object(amounts)) if MAPS.contains(&key) => {
                        amounts.values_mut().try_for_each(normalize)?;
                    }
                    (key, Value::String(_) | Value::Number(_)) if SINGLE.contains(&key) => {
                        normalize(field)?;
                    }
                    _ => normalize_all(field)?,
                }
            }
            Ok(())
        }
        _ => Ok(()),
    }
}

/// Normalizes one quantity.
pub(crate) fn normalize(value: &mut Value) -> Result<(), String> {
    let text = match &*value {
        Value::String(text) => text.clone(),
        Value::Number(number) => number.to_string(),
        _ => return Ok(()),
    };
    let quantity = Quantity::parse(text.trim()).ok_or_else(|| {
        format!(
            "quantities must match the regular expression \
             '^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$': {text:?}"
        )
    })?;
    *value = json!(quantity.text());
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::Quantity;

    #[test]
    fn amounts_come_back_in_canonical_form() {
        let table = [
            ("1000m", "1"),
            ("1500m", "1500m"),
            ("0.5", "500m"),
            ("1.5Gi", "1536Mi"),
            ("1024Mi", "1Gi"),
            ("1000", "1k"),
            ("110", "110"),
            ("128974848", "128974848"),
            ("129e6", "129e6"),
            ("0", "0"),
            ("0.1m", "100u"),
            ("-5", "-5"),
        ];
        for (given, expected) in table {
            let quantity = Quantity::parse(given).map(Quantity::text);
            assert_eq!(quantity.as_deref(), Some(expected), "{given}");
        }
    }

    #[test]
    fn malformed_amounts_are_refused() {
        for text in ["", "x", "1.2.3", "1 Gi", "1Kb", "Gi", "1e", "--1"] {
            assert_eq!(Quantity::parse(text), None, "{text}");
        }
    }
}
