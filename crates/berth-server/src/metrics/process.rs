//! The process itself: memory, CPU, open files. From /proc, where there is one.

use std::fmt::Write as _;

/// Clock ticks in a second, as /proc counts on every Linux there is.
const TICKS: u64 = 100;

/// The lines about this process; none where /proc is not there.
pub(super) fn text() -> String {
    let mut text = String::new();
    if let Some(cpu_ticks) = cpu_ticks() {
        let (whole, hundredths) = (cpu_ticks / TICKS, cpu_ticks % TICKS);
        let _ = writeln!(
            text,
            "# HELP process_cpu_seconds CPU time used.\n# TYPE process_cpu_seconds counter\n\
             process_cpu_seconds_total {whole}.{hundredths:02}"
        );
    }
    let status = std::fs::read_to_string("/proc/self/status");
    if let Some(bytes) = status.ok().as_deref().and_then(resident_bytes) {
        let _ = writeln!(
            text,
            "# HELP process_resident_memory_bytes Memory in use.\n\
             # TYPE process_resident_memory_bytes gauge\n\
             process_resident_memory_bytes {bytes}"
        );
    }
    if let Ok(files) = std::fs::read_dir("/proc/self/fd") {
        let _ = writeln!(
            text,
            "# HELP process_open_fds Open files.\n# TYPE process_open_fds gauge\n\
             process_open_fds {}",
            files.count()
        );
    }
    text
}

/// CPU time in ticks.
fn cpu_ticks() -> Option<u64> {
    let stat = std::fs::read_to_string("/proc/self/stat").ok()?;
    // The name in brackets may have spaces; what is counted follows it.
    let fields: Vec<&str> = stat.rsplit_once(')')?.1.split_whitespace().collect();
    let number = |place: usize| fields.get(place)?.parse::<u64>().ok();
    Some(number(11)? + number(12)?)
}

/// Resident memory, from the status of a process. There it is in KiB, whatever the size of a page is.
fn resident_bytes(status: &str) -> Option<u64> {
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim_end().parse().ok()?;
    Some(kib * 1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn resident_memory_does_not_depend_on_the_size_of_a_page() {
        // As a machine with pages of 64 KiB says it: 3 of them.
        let status = "Name:\tberth\nVmHWM:\t     320 kB\nVmRSS:\t     192 kB\nThreads:\t1\n";
        assert_eq!(resident_bytes(status), Some(3 * 65_536));
        assert_eq!(resident_bytes("Name:\tVmRSS: 7 kB\n"), None);
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn this_process_has_memory_and_cpu_time() {
        let text = text();
        for name in ["process_cpu_seconds_total ", "process_resident_memory_bytes "] {
            assert!(text.contains(name), "{text}");
        }
        let status = std::fs::read_to_string("/proc/self/status").unwrap();
        assert!(resident_bytes(&status).is_some_and(|bytes| bytes > 1 << 20), "{status}");
    }
}
