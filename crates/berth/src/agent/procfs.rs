//! What the kernel says about processes.
//!
//! A process id alone identifies no process: ids are used again. An id together with the process's start
//! and the host's boot does.

use std::fs;
use std::io;
use std::path::Path;

use serde::{Deserialize, Serialize};

/// One process of one boot of this host, and the group that it leads.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Process {
    /// Its id, which is also its group's.
    pub(super) pid: i32,
    /// When it started, in the kernel's ticks since boot.
    pub(super) started: u64,
    /// Which boot.
    pub(super) boot: String,
}

/// What matters of `/proc/PID/stat`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Stat {
    zombie: bool,
    group: i32,
    started: u64,
}

impl Process {
    /// A living process by its id.
    pub(super) fn of(pid: i32) -> io::Result<Self> {
        let stat = stat(pid).ok_or_else(|| io::Error::other(format!("no process {pid}")))?;
        Ok(Self { pid, started: stat.started, boot: boot_id()? })
    }

    /// Whether it still runs: the same process, not another under its number.
    pub(super) fn is_alive(&self) -> bool {
        stat(self.pid).is_some_and(|stat| stat.started == self.started && !stat.zombie)
    }
}

/// Names one boot of this host.
pub(super) fn boot_id() -> io::Result<String> {
    Ok(fs::read_to_string("/proc/sys/kernel/random/boot_id")?.trim().to_owned())
}

/// Living processes of a group that have this entry, `NAME=value`, in their environment.
///
/// The entry keeps a group apart from a later one that was given the same number.
pub(super) fn members(group: i32, entry: &str) -> Vec<i32> {
    let of_group = |pid: &i32| stat(*pid).is_some_and(|stat| stat.group == group && !stat.zombie);
    pids().filter(of_group).filter(|pid| environment(*pid).any(|other| other == entry)).collect()
}

/// The eldest living leader of a group that has all these entries in its environment.
pub(super) fn leader(entries: &[String]) -> Option<i32> {
    let leads = |pid: &i32| stat(*pid).is_some_and(|stat| stat.group == *pid && !stat.zombie);
    let has_all = |pid: &i32| {
        let found: Vec<String> = environment(*pid).collect();
        entries.iter().all(|entry| found.contains(entry))
    };
    let leaders = pids().filter(leads).filter(has_all);
    leaders.min_by_key(|pid| stat(*pid).map_or(u64::MAX, |stat| stat.started))
}

fn pids() -> impl Iterator<Item = i32> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok())
}

/// A process's environment as it was when it started; empty where it may not be read.
fn environment(pid: i32) -> impl Iterator<Item = String> {
    let bytes = fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
    let entries: Vec<String> =
        bytes.split(|byte| *byte == 0).map(|entry| String::from_utf8_lossy(entry).into()).collect();
    entries.into_iter()
}

fn stat(pid: i32) -> Option<Stat> {
    parse(&fs::read_to_string(Path::new("/proc").join(pid.to_string()).join("stat")).ok()?)
}

/// The command's name may hold anything, brackets and blanks too, so fields are counted from the
/// last bracket: state is the 3rd field, group the 5th, start the 22nd.
fn parse(line: &str) -> Option<Stat> {
    let (_, after) = line.rsplit_once(") ")?;
    let mut fields = after.split(' ');
    let state = fields.next()?;
    let group = fields.nth(1)?.parse().ok()?;
    let started = fields.nth(16)?.trim().parse().ok()?;
    Some(Stat { zombie: matches!(state, "Z" | "X" | "x"), group, started })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_read_even_when_the_command_has_brackets_and_blanks() {
        let rest = "S 1 4242 7 0 -1 4194304 1 2 3 4 5 6 7 8 20 0 1 0 987654 1 2 3";
        let read = parse(&format!("4243 (a) S 9 (b) {rest}"));
        assert_eq!(read, Some(Stat { zombie: false, group: 4242, started: 987_654 }));
        assert_eq!(parse("4243 (a"), None);
    }

    #[test]
    fn the_own_process_lives_and_another_of_its_number_does_not() {
        let own = Process::of(i32::try_from(std::process::id()).unwrap()).unwrap();
        assert!(own.is_alive());
        assert!(!Process { started: own.started + 1, ..own }.is_alive());
    }
}
