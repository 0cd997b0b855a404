//! The process itself: memory, CPU, open files. From /proc, where there is one.

use std::fmt::Write as _;

/// Clock ticks in a second, as /proc counts on every Linux there is.
const TICKS: u64 = 100;

/// A page of memory on the machines Berth runs on.
const PAGE: u64 = 4096;

/// The lines about this process; none where /proc is not there.
pub(super) fn text() -> String {
    let mut text = String::new();
    if let Some((cpu_ticks, pages)) = stat() {
        let (whole, hundredths) = (cpu_ticks / TICKS, cpu_ticks % TICKS);
        let _ = writeln!(
            text,
            "# HELP process_cpu_seconds CPU time used.\n# TYPE process_cpu_seconds counter\n\
             process_cpu_seconds_total {whole}.{hundredths:02}"
        );
        let _ = writeln!(
            text,
            "# HELP process_resident_memory_bytes Memory in use.\n\
             # TYPE process_resident_memory_bytes gauge\n\
             process_resident_memory_bytes {}",
            pages * PAGE
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

/// CPU time in ticks, and resident pages.
fn stat() -> Option<(u64, u64)> {
    let stat = std::fs::read_to_string("/proc/self/stat").ok()?;
    // The name in brackets may have spaces; what is counted follows it.
    let fields: Vec<&str> = stat.rsplit_once(')')?.1.split_whitespace().collect();
    let number = |place: usize| fields.get(place)?.parse::<u64>().ok();
    Some((number(11)? + number(12)?, number(21)?))
}
