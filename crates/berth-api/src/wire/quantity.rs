//! Quantities as Kubernetes writes them, read exactly and in integers: `250m`, `1.5`, `4Gi`, `1e3`.
//!
//! Separate from [`crate::units`], which is another language, and from the Kubernetes scheduler's parser,
//! which rounds up and saturates as the API server does: agents of this protocol get exactly what they
//! asked for, so a quantity that is no whole number is refused.

/// What a quantity is counted in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Count {
    /// Thousandths.
    Thousandths,
    /// Ones.
    Ones,
}

/// Powers of ten and of 1024 that suffixes stand for.
const SUFFIXES: [(&str, i32, u32); 16] = [
    ("", 0, 0),
    ("n", -9, 0),
    ("u", -6, 0),
    ("m", -3, 0),
    ("k", 3, 0),
    ("M", 6, 0),
    ("G", 9, 0),
    ("T", 12, 0),
    ("P", 15, 0),
    ("E", 18, 0),
    ("Ki", 0, 1),
    ("Mi", 0, 2),
    ("Gi", 0, 3),
    ("Ti", 0, 4),
    ("Pi", 0, 5),
    ("Ei", 0, 6),
];

/// Reads a quantity; absent when it is none, is negative, is too large, or is no whole number of what
/// it is counted in: a part of that could not be granted.
pub(super) fn read(text: &str, count: Count) -> Option<u64> {
    let text = text.strip_prefix('+').unwrap_or(text);
    let end = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, suffix) = text.split_at_checked(end)?;
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    let digits = format!("{whole}{fraction}");
    // A second dot is no digit; more digits than these are never needed.
    if digits.is_empty() || digits.len() > 30 || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    let digits: u128 = digits.parse().ok()?;
    let (ten, kibi) = powers(suffix)?;
    let places = i32::try_from(fraction.len()).ok()?;
    let more = if count == Count::Thousandths { 3 } else { 0 };
    let ten = ten.checked_sub(places)?.checked_add(more)?;
    if digits == 0 {
        return Some(0);
    }
    let value = digits.checked_mul(1024_u128.checked_pow(kibi)?)?;
    let scale = 10_u128.checked_pow(ten.unsigned_abs())?;
    let value = if ten >= 0 {
        value.checked_mul(scale)?
    } else {
        (value.checked_rem(scale)? == 0).then(|| value.checked_div(scale))??
    };
    u64::try_from(value).ok()
}

fn powers(suffix: &str) -> Option<(i32, u32)> {
    if let Some((_, ten, kibi)) = SUFFIXES.iter().find(|(name, ..)| *name == suffix) {
        return Some((*ten, *kibi));
    }
    let exponent = suffix.strip_prefix(['e', 'E'])?;
    let ten: i32 = exponent.parse().ok()?;
    (-100..=100).contains(&ten).then_some((ten, 0))
}

/// Writes CPU: whole ones as a number, others in thousandths.
pub(super) fn write_cpu(milli: u32) -> serde_json::Value {
    if milli.is_multiple_of(1000) { (milli / 1000).into() } else { format!("{milli}m").into() }
}

/// Writes bytes: below 1024 as a number, others as a text with the largest suffix that is exact.
pub(super) fn write_bytes(bytes: u64) -> serde_json::Value {
    if bytes < 1024 {
        return bytes.into();
    }
    let (mut left, mut place) = (bytes, 0_usize);
    let suffixes = ["", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei"];
    while left.is_multiple_of(1024) && place < suffixes.len().saturating_sub(1) {
        (left, place) = (left / 1024, place.saturating_add(1));
    }
    let suffix = suffixes.get(place).copied().unwrap_or("");
    format!("{left}{suffix}").into()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn quantities_are_read_exactly() {
        for (text, milli) in [
            ("1", Some(1000)),
            ("250m", Some(250)),
            ("1.5", Some(1500)),
            (".25", Some(250)),
            ("2.", Some(2000)),
            ("+3", Some(3000)),
            ("2k", Some(2_000_000)),
            ("1e3", Some(1_000_000)),
            ("5E-1", Some(500)),
            ("1000u", Some(1)),
            ("0", Some(0)),
            ("0u", Some(0)),
            ("100u", None),
            ("0.0001", None),
            ("-1", None),
            ("", None),
            (".", None),
            ("1.2.3", None),
            ("1 m", None),
            ("m", None),
            ("1x", None),
            ("1e", None),
            ("1e999", None),
            ("1Ei1", None),
            ("½", None),
        ] {
            assert_eq!(read(text, Count::Thousandths), milli, "{text:?}");
        }
        for (text, bytes) in [
            ("1073741824", Some(1 << 30)),
            ("4Gi", Some(4 << 30)),
            ("512Mi", Some(512 << 20)),
            ("1.5Gi", Some(3 << 29)),
            ("2M", Some(2_000_000)),
            ("15Ei", Some(15 << 60)),
            ("16Ei", None),
            ("0.3Ki", None),
            ("1m", None),
            ("99999999999999999999999999999999999", None),
        ] {
            assert_eq!(read(text, Count::Ones), bytes, "{text:?}");
        }
    }

    #[test]
    fn they_are_written_as_existing_agents_read_them() {
        assert_eq!(
            [0, 250, 1000, 1500].map(write_cpu),
            [json!(0), json!("250m"), json!(1), json!("1500m")]
        );
        for (bytes, text) in [
            (1023, json!(1023)),
            (1024, json!("1Ki")),
            (1025, json!("1025")),
            (4 << 30, json!("4Gi")),
            (1536 << 20, json!("1536Mi")),
            (15 << 60, json!("15Ei")),
        ] {
            assert_eq!(write_bytes(bytes), text);
            let read_back = read(text.as_str().unwrap_or(&text.to_string()), Count::Ones);
            assert_eq!(read_back, Some(bytes));
        }
    }
}
