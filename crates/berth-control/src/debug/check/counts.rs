//! Rules about counters of groups and tenants.

use std::collections::BTreeMap;

use berth_ledger::Role;

use super::{CheckContext, CheckReport, Invariant};
use crate::debug::dump::TenantUseDump;

pub(super) fn check(context: &CheckContext<'_>, report: &mut CheckReport) {
    groups(context, report);
    tenants(context, report);
}

fn groups(context: &CheckContext<'_>, report: &mut CheckReport) {
    let mut members: BTreeMap<(&str, &str), i64> = BTreeMap::new();
    for place in context.dump.claims.iter().flat_map(|claim| &claim.ties).flat_map(|it| &it.groups)
    {
        if let Some(domain) = &place.domain {
            *members.entry((&place.group, domain)).or_default() += 1;
        }
    }
    let mut counted: BTreeMap<(&str, &str), i64> = BTreeMap::new();
    for group in &context.dump.groups {
        for (domain, members) in &group.members {
            counted.insert((&group.group.id, domain), *members);
        }
    }
    let places: std::collections::BTreeSet<_> = members.keys().chain(counted.keys()).collect();
    for place in places {
        let (group, domain) = place;
        let found = counted.get(place).copied().unwrap_or(0);
        let expected = members.get(place).copied().unwrap_or(0);
        let (subject, what) = (format!("group {group}"), format!("its members in {domain}"));
        report.must(Invariant::GroupCounts, &subject, what, found, expected);
    }
}

fn tenants(context: &CheckContext<'_>, report: &mut CheckReport) {
    let mut sums: BTreeMap<&str, TenantUseDump> = BTreeMap::new();
    // An instance counts once, however many places it has while it moves.
    for claim in context.dump.claims.iter().filter(|claim| claim.role == Role::Primary) {
        let sum = sums.entry(&claim.tenant).or_default();
        sum.cpu_milli += i64::from(claim.charged.cpu_milli);
        sum.memory_mib += i64::from(claim.charged.memory_mib);
        sum.disk_mib += i64::from(claim.charged.disk_mib);
        sum.instances += 1;
    }
    // Only tenants with limits are counted.
    for quota in &context.dump.quotas {
        let subject = format!("tenant {}", quota.tenant);
        let sum = sums.get(quota.tenant.as_str()).copied().unwrap_or_default();
        for (name, found, expected) in [
            ("cpu", quota.used.cpu_milli, sum.cpu_milli),
            ("memory", quota.used.memory_mib, sum.memory_mib),
            ("disk", quota.used.disk_mib, sum.disk_mib),
            ("instances", quota.used.instances, sum.instances),
        ] {
            let what = format!("its used {name}");
            report.must(Invariant::QuotaUsed, &subject, what, found, expected);
        }
    }
}
