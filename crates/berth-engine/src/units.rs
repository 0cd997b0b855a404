//! Amounts, shares, durations and moments as people read them: `4 GiB`, `0.5 CPU`, `2h 5m`.
//!
//! Every sentence that Berth writes uses these. Fields of data keep their whole numbers and name
//! their unit. Reading what people type is the API's.

/// CPU for people: `2 CPU`, `1.25 CPU`, `0.5 CPU`.
#[must_use]
pub fn cpu(milli: i64) -> String {
    format!("{} CPU", decimal(milli, 1000))
}

const SIZES: [(u64, &str); 4] = [(1 << 30, "PiB"), (1 << 20, "TiB"), (1 << 10, "GiB"), (1, "MiB")];

/// Memory or disk for people, in the largest unit and with at most two decimals, cut off: `4 GiB`,
/// `1.5 TiB`.
#[must_use]
pub fn size(mib: i64) -> String {
    in_largest(mib, &SIZES, |hundredths, unit| hundredths / unit)
}

/// The same for the least that will do: rounded up, so that what is read is enough.
#[must_use]
pub fn size_at_least(mib: i64) -> String {
    in_largest(mib, &SIZES, u128::div_ceil)
}

/// Bandwidth for people, in the largest unit and with at most two decimals, cut off: `10 Gbit/s`.
#[must_use]
pub fn bandwidth(mbps: i64) -> String {
    let units = [(1_000_000, "Tbit/s"), (1000, "Gbit/s"), (1, "Mbit/s")];
    in_largest(mbps, &units, |hundredths, unit| hundredths / unit)
}

/// A duration for people, its two largest parts: `2h 5m`, `1d 3h`, `45s`.
#[must_use]
pub fn duration(seconds: i64) -> String {
    let sign = if seconds < 0 { "-" } else { "" };
    let parts: Vec<String> =
        parts_of(seconds).take(2).map(|(count, unit)| format!("{count}{unit}")).collect();
    if parts.is_empty() { "0s".to_owned() } else { format!("{sign}{}", parts.join(" ")) }
}

/// CPU as it is typed, exactly: `2`, `500m`.
#[must_use]
pub fn cpu_exact(milli: i64) -> String {
    if milli % 1000 == 0 { (milli / 1000).to_string() } else { format!("{milli}m") }
}

/// Memory or disk as it is typed, exactly: `4GiB`, `1537MiB`.
#[must_use]
pub fn size_exact(mib: i64) -> String {
    let units = [(1i64 << 30, "PiB"), (1 << 20, "TiB"), (1 << 10, "GiB")];
    let fits = units.into_iter().find(|(unit, _)| mib != 0 && mib % unit == 0);
    fits.map_or_else(|| format!("{mib}MiB"), |(unit, name)| format!("{}{name}", mib / unit))
}

/// Bandwidth as it is typed, exactly: `10Gbit`, `500Mbit`.
#[must_use]
pub fn bandwidth_exact(mbps: i64) -> String {
    let whole = mbps != 0 && mbps % 1000 == 0;
    if whole { format!("{}Gbit", mbps / 1000) } else { format!("{mbps}Mbit") }
}

/// A duration as it is typed, exactly: `1h30m`.
#[must_use]
pub fn duration_exact(seconds: i64) -> String {
    let sign = if seconds < 0 { "-" } else { "" };
    let text: String = parts_of(seconds).map(|(count, unit)| format!("{count}{unit}")).collect();
    if text.is_empty() { "0s".to_owned() } else { format!("{sign}{text}") }
}

/// Days, hours, minutes and seconds, without what is zero.
fn parts_of(seconds: i64) -> impl Iterator<Item = (u64, &'static str)> {
    let all = seconds.unsigned_abs();
    let parts =
        [(all / 86_400, "d"), (all / 3600 % 24, "h"), (all / 60 % 60, "m"), (all % 60, "s")];
    parts.into_iter().filter(|(count, _)| *count > 0)
}

fn in_largest(
    amount: i64,
    units: &[(u64, &str)],
    divide: impl FnOnce(u128, u128) -> u128,
) -> String {
    let all = amount.unsigned_abs();
    let fits = units.iter().find(|(unit, _)| all >= *unit).or(units.last());
    let (unit, name) = fits.copied().unwrap_or((1, ""));
    let sign = if amount < 0 { "-" } else { "" };
    let hundredths = divide(u128::from(all) * 100, u128::from(unit));
    let fraction = format!("{:02}", hundredths % 100);
    let fraction = fraction.trim_end_matches('0');
    let dot = if fraction.is_empty() { "" } else { "." };
    format!("{sign}{}{dot}{fraction} {name}", hundredths / 100)
}

/// A share of parts per million for people, exactly: `8 %`, `0.05 %`.
#[must_use]
pub fn share(ppm: i64) -> String {
    format!("{} %", decimal(ppm, 10_000))
}

/// An overcommit ratio in thousandths for people: `×4`, `×1.5`.
#[must_use]
pub fn ratio(permille: i64) -> String {
    format!("×{}", decimal(permille, 1000))
}

/// A moment in seconds since 1970 for people, in UTC: `2026-01-01`, or `2026-01-01 13:05:09` if it is
/// not midnight.
#[must_use]
pub fn moment(seconds: i64) -> String {
    let (days, rest) = (seconds.div_euclid(86_400), seconds.rem_euclid(86_400));
    // Beyond four digits of a year it is no date that somebody meant.
    if !(-719_528..2_932_897).contains(&days) {
        return format!("second {seconds}");
    }
    let (year, month, day) = civil_date(days);
    let date = format!("{year:04}-{month:02}-{day:02}");
    if rest == 0 {
        return date;
    }
    format!("{date} {:02}:{:02}:{:02}", rest / 3600, rest / 60 % 60, rest % 60)
}

/// The date of a day, counted from 1970-01-01, in the Gregorian calendar.
const fn civil_date(days: i64) -> (i64, i64, i64) {
    // Years begin in March here, so that the leap day is the last day of a year, and eras of 400
    // years are all alike.
    let shifted = days + 719_468;
    let era = shifted.div_euclid(146_097);
    let day_of_era = shifted.rem_euclid(146_097);
    let year_of_era =
        (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted_month = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * shifted_month + 2) / 5 + 1;
    let month = if shifted_month < 10 { shifted_month + 3 } else { shifted_month - 9 };
    let year = year_of_era + era * 400 + if month <= 2 { 1 } else { 0 };
    (year, month, day)
}

/// Promised CPU for people: `96 of 63 cores, ×4`, where `limit_milli` is what the ratio makes of the
/// cores.
#[must_use]
pub fn promised_cores(used_milli: i64, cores_milli: i64, limit_milli: i64) -> String {
    let mut text = format!("{} of {} cores", decimal(used_milli, 1000), decimal(cores_milli, 1000));
    let ratio = i128::from(limit_milli) * 1000 / i128::from(cores_milli.max(1));
    if ratio != 1000 && cores_milli > 0 {
        let ratio = i64::try_from(ratio).unwrap_or(i64::MAX);
        text.push_str(&format!(", ×{}", decimal(ratio, 1000)));
    }
    text
}

/// The cores behind a limit of CPU, from the ratio that made it.
#[must_use]
pub fn cores_of_limit(limit_milli: i64, ratio_permille: u32) -> i64 {
    // A deficit was not multiplied.
    if limit_milli < 0 {
        limit_milli
    } else {
        limit_milli * 1000 / i64::from(ratio_permille.max(1))
    }
}

/// A number of parts of one, with as many decimals as it takes; `parts` is a power of ten.
fn decimal(amount: i64, parts: u64) -> String {
    let (sign, all) = (if amount < 0 { "-" } else { "" }, amount.unsigned_abs());
    let digits = parts.ilog10() as usize;
    let fraction = format!("{:0digits$}", all % parts);
    let fraction = fraction.trim_end_matches('0');
    let dot = if fraction.is_empty() { "" } else { "." };
    format!("{sign}{}{dot}{fraction}", all / parts)
}

#[cfg(test)]
mod tests {
    use super::*;

    type Writer = fn(i64) -> String;

    #[test]
    fn people_read_short_texts() {
        let table: [(Writer, i64, &str); 51] = [
            (cpu, 2000, "2 CPU"),
            (cpu, 500, "0.5 CPU"),
            (cpu, 1250, "1.25 CPU"),
            (cpu, 1005, "1.005 CPU"),
            (cpu, 0, "0 CPU"),
            (cpu, -500, "-0.5 CPU"),
            (cpu, -1500, "-1.5 CPU"),
            (size, 4096, "4 GiB"),
            (size, 1_572_864, "1.5 TiB"),
            (size, 512, "512 MiB"),
            (size, 1025, "1 GiB"),
            (size, 1044, "1.01 GiB"),
            (size, 1_048_575, "1023.99 GiB"),
            (size, 0, "0 MiB"),
            (size, -2048, "-2 GiB"),
            (size, 1 << 30, "1 PiB"),
            (size, i64::MIN, "-8589934592 PiB"),
            (size_at_least, 8256, "8.07 GiB"),
            (size_at_least, 8192, "8 GiB"),
            (size_at_least, 8448, "8.25 GiB"),
            (size_at_least, 2_097_216, "2.01 TiB"),
            (size_at_least, 64, "64 MiB"),
            (bandwidth, 10_000, "10 Gbit/s"),
            (bandwidth, 2500, "2.5 Gbit/s"),
            (bandwidth, 500, "500 Mbit/s"),
            (duration, 7500, "2h 5m"),
            (duration, 97_200, "1d 3h"),
            (duration, 45, "45s"),
            (duration, 0, "0s"),
            (duration, 3601, "1h 1s"),
            (duration, -300, "-5m"),
            (cpu_exact, 2000, "2"),
            (cpu_exact, 1500, "1500m"),
            (size_exact, 1537, "1537MiB"),
            (size_exact, 1 << 20, "1TiB"),
            (bandwidth_exact, 10_000, "10Gbit"),
            (bandwidth_exact, 2500, "2500Mbit"),
            (duration_exact, 93_784, "1d2h3m4s"),
            (share, 80_000, "8 %"),
            (share, 500, "0.05 %"),
            (share, 1, "0.0001 %"),
            (ratio, 4000, "×4"),
            (ratio, 1500, "×1.5"),
            (moment, 0, "1970-01-01"),
            (moment, 1_767_225_600, "2026-01-01"),
            (moment, 1_709_164_800, "2024-02-29"),
            (moment, 1_767_272_709, "2026-01-01 13:05:09"),
            (moment, -1, "1969-12-31 23:59:59"),
            (moment, 253_402_300_799, "9999-12-31 23:59:59"),
            (moment, -62_167_219_200, "0000-01-01"),
            (moment, i64::MIN, "second -9223372036854775808"),
        ];
        for (write, amount, expected) in table {
            assert_eq!(write(amount), expected, "{amount}");
        }
    }
}
