//! Amounts and durations as people type and read them: `500m`, `1.5TiB`, `10Gbit`, `1h30m`.
//!
//! Flags, files, selectors and the server's settings all use this parser, so that a unit that is accepted
//! in one place is accepted in all. Kubernetes quantities are another language (a bare number is bytes,
//! `m` is a thousandth of anything), and have parsers of their own.
//!
//! Whole numbers only, as everywhere in Berth. What is asked for rounds up and what there is rounds
//! down, so that a rounded request never gets less and a rounded node never offers more.

use std::time::Duration;

use berth_engine::Amounts;
use thiserror::Error;

// How amounts are written is the engine's, whose explanations use it too.
pub use berth_engine::units::{
    bandwidth, bandwidth_exact, cores_of_limit, cpu, cpu_exact, duration, duration_exact,
    promised_cores, size, size_exact,
};

/// Which way a fraction of the smallest unit goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rounding {
    /// For what is asked for.
    Up,
    /// For what there is.
    Down,
}

/// The longest duration: a hundred years.
pub const MAX_DURATION_S: u64 = 36_500 * 86_400;

/// A text that is no amount.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum UnitError {
    /// It is not a number with a unit.
    #[error("{what} is {value:?}; accepted is {accepted}")]
    Malformed {
        /// Of what: CPU, size, bandwidth or duration.
        what: &'static str,
        /// What was given.
        value: String,
        /// What would be accepted.
        accepted: &'static str,
    },
    /// The number is fine and the unit is not.
    #[error("{what} is {value:?}, and {unit:?} is no unit of it; accepted is {accepted}")]
    Unit {
        /// Of what.
        what: &'static str,
        /// What was given.
        value: String,
        /// The unit that is not known.
        unit: String,
        /// What would be accepted.
        accepted: &'static str,
    },
    /// It is more than can be stored.
    #[error("{what} is {value:?}; accepted is at most {most}")]
    TooLarge {
        /// Of what.
        what: &'static str,
        /// What was given.
        value: String,
        /// The most that can be stored.
        most: String,
    },
}

/// One kind of amount: how its units are called, and what one of each is in the smallest.
struct Scale {
    what: &'static str,
    accepted: &'static str,
    /// The value of a unit, its name in lower case, as a fraction of what is counted in.
    unit: fn(&str) -> Option<(u128, u128)>,
    /// How the largest amount is written.
    written: fn(i64) -> String,
}

const CPU: Scale = Scale {
    what: "CPU",
    accepted: "cores, as in 2, 0.5 or 1.25, or thousandths of a core, as in 500m",
    unit: |name| match name {
        "" | "cpu" | "cpus" | "core" | "cores" => Some((1000, 1)),
        "m" | "mcpu" => Some((1, 1)),
        _ => None,
    },
    written: cpu_exact,
};

const SIZE: Scale = Scale {
    what: "size",
    accepted: "MiB, as in 4096, or a number with KiB, MiB, GiB, TiB, PiB (powers of 1024) or \
               K, M, G, T, P (powers of 1000), as in 4GiB or 1.5TiB",
    unit: |name| {
        let bytes: u128 = match name {
            "b" => 1,
            "k" | "kb" => 1000,
            "m" | "mb" => 1_000_000,
            "g" | "gb" => 1_000_000_000,
            "t" | "tb" => 1_000_000_000_000,
            "p" | "pb" => 1_000_000_000_000_000,
            "ki" | "kib" => 1 << 10,
            "" | "mi" | "mib" => 1 << 20,
            "gi" | "gib" => 1 << 30,
            "ti" | "tib" => 1 << 40,
            "pi" | "pib" => 1 << 50,
            _ => return None,
        };
        Some((bytes, 1 << 20))
    },
    written: size_exact,
};

const BANDWIDTH: Scale = Scale {
    what: "bandwidth",
    accepted: "Mbit/s, as in 500, or a number with kbit, Mbit, Gbit or Tbit, as in 10Gbit",
    unit: |name| match name.strip_suffix("/s").unwrap_or(name) {
        "kbit" | "kbps" => Some((1, 1000)),
        "" | "mbit" | "mbps" => Some((1, 1)),
        "gbit" | "gbps" => Some((1000, 1)),
        "tbit" | "tbps" => Some((1_000_000, 1)),
        _ => None,
    },
    written: bandwidth_exact,
};

const DURATION: &str = "seconds, as in 90, or numbers with w, d, h, m, s from long to short, as in \
                        90s, 5m or 1h30m";

/// CPU in thousandths of a core.
///
/// # Errors
/// Names the value and what would be accepted.
pub fn parse_cpu(text: &str, rounding: Rounding) -> Result<u32, UnitError> {
    CPU.parse(text, rounding)
}

/// Memory or disk in mebibytes.
///
/// # Errors
/// Names the value and what would be accepted.
pub fn parse_size(text: &str, rounding: Rounding) -> Result<u32, UnitError> {
    SIZE.parse(text, rounding)
}

/// Bandwidth in megabits per second.
///
/// # Errors
/// Names the value and what would be accepted.
pub fn parse_bandwidth(text: &str, rounding: Rounding) -> Result<u32, UnitError> {
    BANDWIDTH.parse(text, rounding)
}

/// A duration in seconds.
///
/// # Errors
/// Names the value and what would be accepted.
pub fn parse_duration(text: &str) -> Result<u64, UnitError> {
    let malformed =
        || UnitError::Malformed { what: "duration", value: text.to_owned(), accepted: DURATION };
    let mut rest = text.trim();
    if rest.is_empty() {
        return Err(malformed());
    }
    // A unit may not come again, nor after a shorter one: 30m1h is more likely a slip than meant.
    let (mut total, mut last) = (0u64, u64::MAX);
    while !rest.is_empty() {
        let digits = rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len());
        let (number, after) = rest.split_at(digits);
        let letters = after.find(|c: char| !c.is_ascii_alphabetic()).unwrap_or(after.len());
        let (unit, after) = after.split_at(letters);
        if number.is_empty() {
            return Err(malformed());
        }
        let seconds = match unit {
            "w" => 7 * 86_400,
            "d" => 86_400,
            "h" => 3600,
            "m" => 60,
            "s" => 1,
            "" if last == u64::MAX && after.is_empty() => 1,
            "" => return Err(malformed()),
            _ => {
                let (what, value, unit) = ("duration", text.to_owned(), unit.to_owned());
                return Err(UnitError::Unit { what, value, unit, accepted: DURATION });
            }
        };
        if seconds >= last {
            return Err(malformed());
        }
        let added = number.parse::<u64>().ok().and_then(|number| number.checked_mul(seconds));
        let sum = added.and_then(|added| total.checked_add(added));
        total = sum.filter(|sum| *sum <= MAX_DURATION_S).ok_or_else(|| UnitError::TooLarge {
            what: "duration",
            value: text.to_owned(),
            most: "36500d".to_owned(),
        })?;
        (last, rest) = (seconds, after.trim_start());
    }
    Ok(total)
}

/// A duration that may also be in milliseconds: `500ms`.
///
/// # Errors
/// Names the value and what would be accepted.
pub fn parse_precise_duration(text: &str) -> Result<Duration, UnitError> {
    match text.trim().strip_suffix("ms").map(|number| number.trim_end().parse()) {
        Some(Ok(milliseconds)) => Ok(Duration::from_millis(milliseconds)),
        Some(Err(_)) | None => parse_duration(text).map(Duration::from_secs),
    }
}

impl Scale {
    fn parse(&self, text: &str, rounding: Rounding) -> Result<u32, UnitError> {
        let malformed = || UnitError::Malformed {
            what: self.what,
            value: text.to_owned(),
            accepted: self.accepted,
        };
        let trimmed = text.trim();
        let end = trimmed.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(trimmed.len());
        let (number, unit) = trimmed.split_at(end);
        let (number, parts) = decimal(number).ok_or_else(malformed)?;
        let unit = unit.trim_start();
        let (times, over) = (self.unit)(&unit.to_ascii_lowercase()).ok_or_else(|| {
            let (value, unit) = (text.to_owned(), unit.to_owned());
            UnitError::Unit { what: self.what, value, unit, accepted: self.accepted }
        })?;
        let over = over * parts;
        // At most 24 digits times 2^50: within 128 bits.
        let scaled = number * times;
        let whole = match rounding {
            Rounding::Up => scaled.div_ceil(over),
            Rounding::Down => scaled / over,
        };
        let fits = u32::try_from(whole).ok().filter(|whole| *whole <= Amounts::MAX);
        fits.ok_or_else(|| UnitError::TooLarge {
            what: self.what,
            value: text.to_owned(),
            most: (self.written)(i64::from(Amounts::MAX)),
        })
    }
}

/// `12.50` as `(1250, 100)`: a whole number, and how many of it make one.
pub(crate) fn decimal(text: &str) -> Option<(u128, u128)> {
    // More than any amount has; with fewer the arithmetic cannot overflow.
    const DIGITS_MAX: usize = 12;
    let (whole, fraction) = text.split_once('.').unwrap_or((text, "0"));
    let digits = |part: &str| {
        (1..=DIGITS_MAX).contains(&part.len()) && part.bytes().all(|b| b.is_ascii_digit())
    };
    if !digits(whole) || !digits(fraction) {
        return None;
    }
    let parts = 10u128.checked_pow(u32::try_from(fraction.len()).ok()?)?;
    Some((whole.parse::<u128>().ok()? * parts + fraction.parse::<u128>().ok()?, parts))
}

#[cfg(test)]
mod tests {
    use super::*;
    use Rounding::{Down, Up};

    type Parser = fn(&str, Rounding) -> Result<u32, UnitError>;

    #[test]
    fn amounts_are_read_with_their_units_and_rounded_as_asked() {
        let table: [(Parser, &str, u32, u32); 43] = [
            (parse_cpu, "2", 2000, 2000),
            (parse_cpu, "0.5", 500, 500),
            (parse_cpu, "500m", 500, 500),
            (parse_cpu, "1.25", 1250, 1250),
            (parse_cpu, "0", 0, 0),
            (parse_cpu, "0.0001", 1, 0),
            (parse_cpu, "1.5m", 2, 1),
            (parse_cpu, " 2 CPU ", 2000, 2000),
            (parse_cpu, "2cores", 2000, 2000),
            (parse_cpu, "2147483.647", 2_147_483_647, 2_147_483_647),
            (parse_size, "4GiB", 4096, 4096),
            (parse_size, "4 GiB", 4096, 4096),
            (parse_size, "4gib", 4096, 4096),
            (parse_size, "4Gi", 4096, 4096),
            (parse_size, "4G", 3815, 3814),
            (parse_size, "4GB", 3815, 3814),
            (parse_size, "512MiB", 512, 512),
            (parse_size, "512M", 489, 488),
            (parse_size, "4096", 4096, 4096),
            (parse_size, "1.5TiB", 1_572_864, 1_572_864),
            (parse_size, "0.5", 1, 0),
            (parse_size, "1KiB", 1, 0),
            (parse_size, "1B", 1, 0),
            (parse_size, "0B", 0, 0),
            (parse_size, "1024KiB", 1, 1),
            (parse_size, "1PiB", 1 << 30, 1 << 30),
            (parse_size, "1T", 953_675, 953_674),
            (parse_size, "1P", 953_674_317, 953_674_316),
            (parse_size, "0004GiB", 4096, 4096),
            (parse_size, "1.9999PiB", 2_147_376_274, 2_147_376_273),
            (parse_bandwidth, "10Gbit", 10_000, 10_000),
            (parse_bandwidth, "500Mbit", 500, 500),
            (parse_bandwidth, "500", 500, 500),
            (parse_bandwidth, "2.5Gbit/s", 2500, 2500),
            (parse_bandwidth, "10 Gbps", 10_000, 10_000),
            (parse_bandwidth, "1kbit", 1, 0),
            (parse_bandwidth, "1500kbit", 2, 1),
            (parse_bandwidth, "1Tbit", 1_000_000, 1_000_000),
            (parse_bandwidth, "0.1", 1, 0),
            (parse_bandwidth, "0", 0, 0),
            (parse_bandwidth, "2147483647", 2_147_483_647, 2_147_483_647),
            (parse_bandwidth, "1.0000001Gbit", 1001, 1000),
            (parse_bandwidth, "1.50Gbit", 1500, 1500),
        ];
        for (parse, text, up, down) in table {
            assert_eq!(parse(text, Up), Ok(up), "{text}");
            assert_eq!(parse(text, Down), Ok(down), "{text}");
        }
    }

    #[test]
    fn a_bad_amount_is_told_what_is_accepted() {
        let table: [(Parser, &str, &str); 20] = [
            (parse_cpu, "", "CPU is \"\"; accepted is cores, as in 2, 0.5 or 1.25, or thousandths"),
            (parse_cpu, "two", "CPU is \"two\"; accepted is cores"),
            (parse_cpu, "-1", "CPU is \"-1\"; accepted is cores"),
            (parse_cpu, "1.", "CPU is \"1.\"; accepted is cores"),
            (parse_cpu, ".5", "CPU is \".5\"; accepted is cores"),
            (parse_cpu, "1.2.3", "CPU is \"1.2.3\"; accepted is cores"),
            (parse_cpu, "1e3", "and \"e3\" is no unit of it; accepted is cores"),
            (parse_cpu, "2GiB", "CPU is \"2GiB\", and \"GiB\" is no unit of it"),
            (parse_cpu, "2147484", "CPU is \"2147484\"; accepted is at most 2147483647m"),
            (parse_cpu, "99999999999999999999", "accepted is cores"),
            (parse_size, "4XB", "size is \"4XB\", and \"XB\" is no unit of it; accepted is MiB"),
            (parse_size, "2PiB", "size is \"2PiB\"; accepted is at most 2147483647MiB"),
            (parse_size, "999999999999P", "accepted is at most 2147483647MiB"),
            (parse_size, "GiB", "size is \"GiB\"; accepted is MiB, as in 4096, or a number with"),
            (parse_size, "4GiB5", "and \"GiB5\" is no unit of it"),
            (parse_size, "4,5GiB", "and \",5GiB\" is no unit of it"),
            (parse_size, "½GiB", "size is \"½GiB\"; accepted is MiB"),
            (parse_bandwidth, "fast", "bandwidth is \"fast\"; accepted is Mbit/s, as in 500"),
            (parse_bandwidth, "5MB", "and \"MB\" is no unit of it"),
            (parse_bandwidth, "9999Tbit", "accepted is at most 2147483647Mbit"),
        ];
        for (parse, text, expected) in table {
            let error = parse(text, Up).unwrap_err().to_string();
            assert!(error.contains(expected), "{text:?}: {error}");
        }
    }

    #[test]
    fn durations_are_read_from_long_to_short() {
        for (text, seconds) in [
            ("90s", 90),
            ("5m", 300),
            ("2h", 7200),
            ("1h30m", 5400),
            ("1h 30m", 5400),
            ("1d", 86_400),
            ("1w", 604_800),
            ("1w2d3h4m5s", 604_800 + 2 * 86_400 + 3 * 3600 + 4 * 60 + 5),
            ("90", 90),
            ("0", 0),
            ("0s", 0),
            ("120m", 7200),
            ("36500d", MAX_DURATION_S),
        ] {
            assert_eq!(parse_duration(text), Ok(seconds), "{text}");
        }
        for (text, expected) in [
            ("", "duration is \"\"; accepted is seconds, as in 90, or numbers with"),
            ("soon", "duration is \"soon\"; accepted is seconds"),
            ("-5m", "duration is \"-5m\"; accepted is seconds"),
            ("1.5h", "duration is \"1.5h\"; accepted is seconds"),
            ("30m1h", "accepted is seconds"),
            ("1h1h", "accepted is seconds"),
            ("1h30", "accepted is seconds"),
            ("5min", "duration is \"5min\", and \"min\" is no unit of it"),
            ("36501d", "duration is \"36501d\"; accepted is at most 36500d"),
            ("99999999999999999999s", "accepted is at most 36500d"),
            ("18446744073709551615w", "accepted is at most 36500d"),
        ] {
            let error = parse_duration(text).unwrap_err().to_string();
            assert!(error.contains(expected), "{text:?}: {error}");
        }
    }

    #[test]
    fn a_precise_duration_may_be_in_milliseconds() {
        for (text, milliseconds) in
            [("500ms", 500), ("0 ms", 0), ("2s", 2000), ("1h30m", 5_400_000)]
        {
            let parsed = parse_precise_duration(text);
            assert_eq!(parsed, Ok(Duration::from_millis(milliseconds)), "{text}");
        }
        for text in ["ms", "1.5ms", "-1ms", "1s500ms", "soon"] {
            let error = parse_precise_duration(text).unwrap_err().to_string();
            assert!(error.contains("accepted is seconds"), "{text:?}: {error}");
        }
    }

    #[test]
    fn what_is_written_exactly_reads_back() {
        for amount in (0..5000).chain([1 << 20, 1 << 30, 2_147_483_647]) {
            let back = u32::try_from(amount);
            assert_eq!(parse_cpu(&cpu_exact(amount), Down).ok(), back.ok());
            assert_eq!(parse_cpu(&cpu(amount), Up).ok(), back.ok());
            assert_eq!(parse_size(&size_exact(amount), Down).ok(), back.ok());
            assert_eq!(parse_bandwidth(&bandwidth_exact(amount), Up).ok(), back.ok());
            assert_eq!(parse_duration(&duration_exact(amount)).ok(), u64::try_from(amount).ok());
        }
    }
}
