//! Quantities, read from their grammar alone: a signed decimal and a suffix. Exact, in billionths.

use serde_json::Value;

/// Billionths in one.
pub(crate) const ONE: i128 = 1_000_000_000;

/// A quantity in billionths; what is finer rounds up, as the API server stores it.
pub(crate) fn billionths(value: &Value) -> Result<i128, String> {
    let text = match value {
        Value::String(text) => text.clone(),
        Value::Number(number) => number.to_string(),
        other => return Err(format!("{other} is no quantity")),
    };
    read(&text).ok_or(format!("{text:?} is no quantity"))
}

fn read(text: &str) -> Option<i128> {
    let (negative, rest) = match text.as_bytes().first()? {
        b'-' => (true, &text[1..]),
        b'+' => (false, &text[1..]),
        _ => (false, text),
    };
    let (mut digits, mut behind, mut point, mut used) = (0_i128, 0_i32, false, 0);
    let mut any = false;
    for byte in rest.bytes() {
        match byte {
            b'0'..=b'9' => {
                digits = digits.checked_mul(10)?.checked_add(i128::from(byte - b'0'))?;
                behind += i32::from(point);
                any = true;
            }
            b'.' if !point => point = true,
            _ => break,
        }
        used += 1;
    }
    if !any {
        return None;
    }
    let (numerator, denominator) = suffix(&rest[used..])?;
    let numerator = digits.checked_mul(numerator)?.checked_mul(ONE)?;
    let denominator = denominator.checked_mul(10_i128.checked_pow(behind.unsigned_abs())?)?;
    let numerator = if negative { -numerator } else { numerator };
    Some(ceil(numerator, denominator))
}

/// What a suffix multiplies with, as a fraction.
fn suffix(text: &str) -> Option<(i128, i128)> {
    let small = ["n", "u", "m"].iter().rev().position(|it| *it == text);
    if let Some(at) = small {
        return Some((1, [1_000, 1_000_000, 1_000_000_000][at]));
    }
    let decimal = ["", "k", "M", "G", "T", "P", "E"].iter().position(|it| *it == text);
    if let Some(at) = decimal {
        return Some((1000_i128.pow(u32::try_from(at).ok()?), 1));
    }
    let binary = ["Ki", "Mi", "Gi", "Ti", "Pi", "Ei"].iter().position(|it| *it == text);
    if let Some(at) = binary {
        return Some((1024_i128.pow(u32::try_from(at).ok()? + 1), 1));
    }
    let exponent: i32 = text.strip_prefix('e').or(text.strip_prefix('E'))?.parse().ok()?;
    let power = 10_i128.checked_pow(exponent.unsigned_abs())?;
    Some(if exponent < 0 { (1, power) } else { (power, 1) })
}

/// Division that rounds up.
pub(crate) fn ceil(value: i128, by: i128) -> i128 {
    value.div_euclid(by) + i128::from(value.rem_euclid(by) != 0)
}
