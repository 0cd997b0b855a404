//! Quantities as Kubernetes writes them: `100m`, `1.5`, `2Gi`, `1e3`, `500M`.
//!
//! Integers only. Requests round up, to whole units or to thousandths, as the API server does; values
//! out of range saturate.
//!
//! Separate from `berth_api::units`: the rules are those of Kubernetes, where a bare number of memory is
//! bytes, units are case-sensitive, `m` is a thousandth of anything, and exponents are allowed.

use k8s_openapi::apimachinery::pkg::api::resource::Quantity;

/// A number with its powers of ten and two.
struct ParsedQuantity {
    digits: i128,
    tens: i32,
    twos: u32,
}

/// A quantity in whole units, rounded up; absent if it is invalid.
#[must_use]
pub fn to_units(quantity: &Quantity) -> Option<i64> {
    parse(&quantity.0).map(|parsed| scale_rounding_up(&parsed, 0))
}

/// A quantity in thousandths, rounded up; absent if it is invalid.
#[must_use]
pub fn to_milli(quantity: &Quantity) -> Option<i64> {
    parse(&quantity.0).map(|parsed| scale_rounding_up(&parsed, 3))
}

/// A quantity in billionths, rounded up; absent if it is invalid. Exact where the API server is.
pub(super) fn to_billionths(text: &str) -> Option<i128> {
    if text.trim() != text {
        return None;
    }
    parse(text).map(|parsed| scale_exactly(&parsed, 9))
}

fn parse(text: &str) -> Option<ParsedQuantity> {
    let text = text.trim();
    let end = text.find(|c: char| !(c.is_ascii_digit() || matches!(c, '.' | '+' | '-')));
    // The sign of an exponent comes after its letter.
    let (number, suffix) = text.split_at(end.unwrap_or(text.len()));
    let (digits, places) = decimal(number)?;
    let (tens, twos) = unit(suffix)?;
    Some(ParsedQuantity { digits, tens: tens - places, twos })
}

/// The digits of a decimal number, and how many of them are behind the point.
fn decimal(number: &str) -> Option<(i128, i32)> {
    let (sign, number) = match number.strip_prefix('-') {
        Some(rest) => (-1, rest),
        None => (1, number.strip_prefix('+').unwrap_or(number)),
    };
    let (before, after) = number.split_once('.').unwrap_or((number, ""));
    let is_digits = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
    if (before.is_empty() && after.is_empty()) || !is_digits(before) || !is_digits(after) {
        return None;
    }
    let digits = format!("{before}{after}");
    // More digits than any amount has: saturate.
    let value = digits.parse::<i128>().unwrap_or(i128::from(i64::MAX) * 1_000_000_000);
    Some((sign * value, i32::try_from(after.len()).ok()?))
}

/// A suffix as powers of ten and two.
fn unit(suffix: &str) -> Option<(i32, u32)> {
    Some(match suffix {
        "" => (0, 0),
        "n" => (-9, 0),
        "u" => (-6, 0),
        "m" => (-3, 0),
        "k" => (3, 0),
        "M" => (6, 0),
        "G" => (9, 0),
        "T" => (12, 0),
        "P" => (15, 0),
        "E" => (18, 0),
        "Ki" => (0, 10),
        "Mi" => (0, 20),
        "Gi" => (0, 30),
        "Ti" => (0, 40),
        "Pi" => (0, 50),
        "Ei" => (0, 60),
        _ => {
            let exponent = suffix.strip_prefix(['e', 'E'])?;
            (exponent.parse().ok().filter(|it| (-18..=18).contains(it))?, 0)
        }
    })
}

/// The value times ten to the power of `more`, rounded up.
fn scale_rounding_up(parsed: &ParsedQuantity, more: i32) -> i64 {
    let value = scale_exactly(parsed, more);
    i64::try_from(value).unwrap_or(if value < 0 { i64::MIN } else { i64::MAX })
}

fn scale_exactly(parsed: &ParsedQuantity, more: i32) -> i128 {
    let twice = parsed.digits.saturating_mul(1_i128 << parsed.twos);
    let tens = parsed.tens + more;
    let ten = |power: i32| 10_i128.saturating_pow(power.unsigned_abs());
    if tens >= 0 {
        twice.saturating_mul(ten(tens))
    } else {
        let by = ten(tens);
        let floor = twice.div_euclid(by);
        floor + i128::from(twice.rem_euclid(by) != 0)
    }
}

const UNITS: [(&str, u64); 4] =
    [("Ti", 1 << 40), ("Gi", 1 << 30), ("Mi", 1 << 20), ("Ki", 1 << 10)];

/// Bytes formatted for people, in the largest unit that gives at least 1.
#[must_use]
pub fn format_bytes(value: i64) -> String {
    let (sign, size) = (if value < 0 { "-" } else { "" }, value.unsigned_abs());
    let Some((name, unit)) = UNITS.into_iter().find(|(_, unit)| size >= *unit) else {
        return format!("{sign}{size}");
    };
    let (full, rest) = (size / unit, size % unit);
    match rest * 100 / unit {
        0 => format!("{sign}{full}{name}"),
        part => format!("{sign}{full}.{part:02}{name}"),
    }
}

/// Millicores formatted for people.
#[must_use]
pub fn format_cpus(milli: i64) -> String {
    if milli % 1000 == 0 { format!("{}", milli / 1000) } else { format!("{milli}m") }
}

/// An amount of CPU and a larger one, in one unit.
#[must_use]
pub fn format_cpus_alike(less: i64, more: i64) -> (String, String) {
    if less % 1000 == 0 && more % 1000 == 0 {
        (format_cpus(less), format_cpus(more))
    } else {
        let milli = |value: i64| if value == 0 { "0".to_owned() } else { format!("{value}m") };
        (milli(less), milli(more))
    }
}

/// An amount of bytes and a larger one, in one unit: the largest in which the difference shows.
#[must_use]
pub fn format_bytes_alike(less: i64, more: i64) -> (String, String) {
    let (less, more) = (less.unsigned_abs(), more.unsigned_abs());
    let shows = |unit: u64| more >= unit && more.abs_diff(less) >= unit.div_ceil(100);
    let unit = UNITS.into_iter().find(|(_, unit)| shows(*unit));
    let (name, unit) = unit.unwrap_or(("", 1));
    let format = |value: u64| match (value / unit, (value % unit) * 100 / unit) {
        (0, 0) => "0".to_owned(),
        (full, 0) => format!("{full}{name}"),
        (full, part) => format!("{full}.{part:02}{name}"),
    };
    (format(less), format(more))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn quantity(text: &str) -> Quantity {
        Quantity(text.to_owned())
    }

    #[test]
    fn quantities_are_read_as_the_api_server_reads_them() {
        let cases = [
            ("100m", 1, 100),
            ("1", 1, 1000),
            ("1.5", 2, 1500),
            ("0.1", 1, 100),
            ("1.0005", 2, 1001),
            ("2Gi", 2 << 30, (2 << 30) * 1000),
            ("500M", 500_000_000, 500_000_000_000),
            ("1e3", 1000, 1_000_000),
            ("1E3", 1000, 1_000_000),
            ("1.5Ki", 1536, 1_536_000),
            ("128974848000m", 128_974_848, 128_974_848_000),
            ("1n", 1, 1),
            ("5u", 1, 1),
            ("1E", 1_000_000_000_000_000_000, i64::MAX),
            (".5", 1, 500),
            ("-1", -1, -1000),
            ("0", 0, 0),
            ("12e-1", 2, 1200),
        ];
        for (text, units, thousandths) in cases {
            assert_eq!(to_units(&quantity(text)), Some(units), "{text}");
            assert_eq!(to_milli(&quantity(text)), Some(thousandths), "{text}");
        }
        for text in ["", "Gi", "1GiB", "1 Gi", "1.2.3", "abc", "1e", "1e99", "--1"] {
            assert_eq!(to_units(&quantity(text)), None, "{text}");
        }
    }

    #[test]
    fn amounts_are_written_for_people() {
        assert_eq!(format_bytes(512), "512");
        assert_eq!(format_bytes(1 << 30), "1Gi");
        assert_eq!(format_bytes((1 << 30) + (1 << 29)), "1.50Gi");
        assert_eq!(format_bytes(-(1 << 20)), "-1Mi");
        assert_eq!(format_cpus(1500), "1500m");
        assert_eq!(format_cpus(4000), "4");
    }

    #[test]
    fn two_amounts_have_one_unit_in_which_they_differ() {
        let bytes = |less, more| {
            let (less, more) = format_bytes_alike(less, more);
            format!("{less} {more}")
        };
        let gi = 1 << 30;
        assert_eq!(bytes(8 * gi, 9 * gi), "8Gi 9Gi");
        assert_eq!(bytes(gi / 2, gi), "0.50Gi 1Gi");
        assert_eq!(bytes(100 << 20, 2 * gi), "0.09Gi 2Gi");
        assert_eq!(bytes(8 * gi - (1 << 20), 8 * gi), "8191Mi 8192Mi");
        assert_eq!(bytes(8 * gi - 1, 8 * gi), "8589934591 8589934592");
        assert_eq!(bytes(0, 300 << 20), "0 300Mi");
        assert_eq!(bytes(0, 1), "0 1");
        assert_eq!(bytes(3 << 40, 4 << 40), "3Ti 4Ti");
        let cpus = |less, more| {
            let (less, more) = format_cpus_alike(less, more);
            format!("{less} {more}")
        };
        assert_eq!(cpus(500, 1000), "500m 1000m");
        assert_eq!(cpus(2000, 4000), "2 4");
        assert_eq!(cpus(0, 250), "0 250m");
    }
}
