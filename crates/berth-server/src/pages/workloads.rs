//! Workloads that are not as they should be, and how many there are.

use askama::Template;
use jiff::Timestamp;

use super::{ago, count};
use crate::service::Service;

/// Workloads shown.
const SHOWN: usize = 8;

/// One workload that cannot be as it should be.
#[derive(Debug)]
struct Wrong {
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
    first: Vec<Wrong>,
}

impl Workloads {
    /// What is wrong, those that wait longest first.
    pub(super) fn of(service: &Service, now: Timestamp) -> Self {
        let (total, members) = {
            let books = service.catalog.books();
            (books.workloads.len(), books.members.values().map(Vec::len).sum::<usize>())
        };
        let keys = service.degraded.keys();
        let found = keys.into_iter().filter_map(|key| Some((service.degraded.get(&key)?, key)));
        let mut found: Vec<_> = found.collect();
        found.sort_by(|a, b| (a.0.since, &a.1).cmp(&(b.0.since, &b.1)));
        let number = |it: usize| i64::try_from(it).unwrap_or(i64::MAX);
        let more = found.len().saturating_sub(SHOWN);
        let first = found.iter().take(SHOWN).map(|(degraded, (owner, name))| Wrong {
            name: format!("{owner}/{name}"),
            code: degraded.code.clone(),
            message: degraded.message.clone(),
            since: ago(degraded.since, now),
            at: degraded.since.to_string(),
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
