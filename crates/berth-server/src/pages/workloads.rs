//! Workloads that are not as they should be, and how many there are.

use askama::Template;
use jiff::Timestamp;

use super::{ago, count};
use berth_control::ControlPlane;

/// Workloads shown.
const SHOWN: usize = 8;

/// One workload that cannot be as it should be.
#[derive(Debug)]
struct DegradedWorkload {
    name: String,
    code: String,
    message: String,
    since: String,
    at: String,
}

/// All workloads in a few lines.
#[derive(Debug, Template)]
#[template(path = "parts/workloads.html")]
pub(super) struct Workloads {
    total: String,
    members: String,
    degraded: String,
    more: Option<String>,
    first: Vec<DegradedWorkload>,
}

impl Workloads {
    /// What is wrong, those that wait longest first.
    pub(super) fn of(control: &ControlPlane, now: Timestamp) -> Self {
        let (total, members) = {
            let catalog = control.catalog.read();
            (catalog.workloads.len(), catalog.members.values().map(Vec::len).sum::<usize>())
        };
        let keys = control.degraded.keys();
        let found = keys.into_iter().filter_map(|key| Some((control.degraded.get(&key)?, key)));
        let mut found: Vec<_> = found.collect();
        found.sort_by(|a, b| (a.0.value.since, &a.1).cmp(&(b.0.value.since, &b.1)));
        let number = |it: usize| i64::try_from(it).unwrap_or(i64::MAX);
        let more = found.len().saturating_sub(SHOWN);
        let first = found.iter().take(SHOWN).map(|(degraded, (tenant, name))| DegradedWorkload {
            name: format!("{tenant}/{name}"),
            code: degraded.value.code.clone(),
            message: degraded.value.message.clone(),
            since: ago(degraded.value.since, now),
            at: degraded.value.since.to_string(),
        });
        Self {
            total: count(number(total)),
            members: count(number(members)),
            degraded: count(number(found.len())),
            more: (more > 0).then(|| count(number(more))),
            first: first.collect(),
        }
    }
}
