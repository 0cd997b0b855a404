//! How busy this host is, by what the kernel counts.

use std::fs;

use berth_api::engine::MeasuredLoad;
use tokio::time::Instant;

/// Seconds over which the share of busy CPU is averaged.
const AVERAGED_S: f64 = 60.0;

/// Time of all CPUs since the host booted, in the kernel's ticks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct CpuTime {
    busy: u64,
    all: u64,
}

/// Measures between one heartbeat and the next.
#[derive(Default)]
pub(super) struct LoadMeter {
    last: Option<(CpuTime, Instant)>,
    /// The busy share so far, from 0 to 1.
    busy: Option<f64>,
}

impl LoadMeter {
    /// How busy the host was lately; absent where the kernel does not say, and the first time.
    pub(super) fn measure(&mut self) -> Option<MeasuredLoad> {
        let now = Instant::now();
        let time = cpu_time(&fs::read_to_string("/proc/stat").ok()?)?;
        let last = self.last.replace((time, now));
        if let Some((before, at)) = last {
            self.add(before, time, now.duration_since(at).as_secs_f64());
        }
        let memory = fs::read_to_string("/proc/meminfo").ok();
        let memory_permille = memory.and_then(|text| memory_permille(&text));
        Some(MeasuredLoad { cpu_permille: permille(self.busy?), memory_permille })
    }

    #[expect(
        clippy::cast_precision_loss,
        clippy::float_arithmetic,
        reason = "a measurement that is sent in steps; it decides nothing here"
    )]
    fn add(&mut self, before: CpuTime, after: CpuTime, seconds: f64) {
        let all = after.all.saturating_sub(before.all);
        if all == 0 {
            return;
        }
        let share = after.busy.saturating_sub(before.busy) as f64 / all as f64;
        let newer = 1.0 - (-seconds / AVERAGED_S).exp();
        self.busy = Some(self.busy.map_or(share, |busy| busy + (share - busy) * newer));
    }
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    clippy::float_arithmetic,
    reason = "between 0 and 1000 after the limits"
)]
fn permille(share: f64) -> u16 {
    (share.clamp(0.0, 1.0) * 1000.0).round() as u16
}

/// The first line of `/proc/stat`: user, nice, system, idle, iowait, irq, softirq, steal. Guests count
/// as user already.
fn cpu_time(stat: &str) -> Option<CpuTime> {
    let line = stat.lines().find_map(|line| line.strip_prefix("cpu "))?;
    let ticks: Option<Vec<u64>> =
        line.split_whitespace().take(8).map(|ticks| ticks.parse().ok()).collect();
    let ticks = ticks.filter(|ticks| ticks.len() >= 4)?;
    let all = ticks.iter().sum();
    let idle: u64 = ticks.iter().skip(3).take(2).sum();
    Some(CpuTime { busy: all - idle, all })
}

/// What is neither free nor easily freed.
fn memory_permille(meminfo: &str) -> Option<u16> {
    let amount = |name: &str| -> Option<u64> {
        let line = meminfo.lines().find_map(|line| line.strip_prefix(name))?;
        line.split_whitespace().next()?.parse().ok()
    };
    let (total, available) = (amount("MemTotal:")?, amount("MemAvailable:")?);
    let used = total.saturating_sub(available).saturating_mul(1000).checked_div(total)?;
    u16::try_from(used).ok()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test that panics has failed")]

    use super::*;

    #[test]
    fn busy_is_what_is_neither_idle_nor_waiting() {
        let stat = "cpu  100 10 40 700 50 0 20 5 60 0\ncpu0 1 2 3 4\n";
        assert_eq!(cpu_time(stat), Some(CpuTime { busy: 175, all: 925 }));
        assert_eq!(cpu_time("intr 5"), None);
        assert_eq!(cpu_time("cpu  1 2"), None);
    }

    #[test]
    fn memory_in_use_is_what_is_not_available() {
        let text = "MemTotal:       1000 kB\nMemFree:  10 kB\nMemAvailable:    250 kB\n";
        assert_eq!(memory_permille(text), Some(750));
        assert_eq!(memory_permille("MemTotal: 0 kB\nMemAvailable: 0 kB"), None);
    }

    #[test]
    fn a_share_follows_what_is_measured_within_minutes() {
        let mut meter = LoadMeter::default();
        let time = |busy, all| CpuTime { busy, all };
        meter.add(time(0, 0), time(90, 100), 10.0);
        assert_eq!(meter.busy.map(permille), Some(900), "the first is all there is");
        meter.add(time(90, 100), time(90, 200), 10.0);
        let after_10_s = meter.busy.map(permille).unwrap();
        assert!((700..900).contains(&after_10_s), "{after_10_s}");
        for step in 2_u64..40 {
            meter.add(time(90, step * 100), time(90, step * 100 + 100), 10.0);
        }
        assert!(meter.busy.map(permille).unwrap() < 10);
    }

    #[test]
    fn this_host_is_measured_from_the_second_time_on() {
        let mut meter = LoadMeter::default();
        assert_eq!(meter.measure(), None);
        let mut found = None;
        for _ in 0..1000 {
            std::thread::sleep(std::time::Duration::from_millis(10));
            found = meter.measure();
            if found.is_some() {
                break;
            }
        }
        let load = found.unwrap();
        assert!(load.cpu_permille <= 1000 && load.memory_permille.is_some_and(|it| it <= 1000));
    }
}
