//! Which members of a workload may be stopped to make room for another request: as many as its rule
//! lets be missing, and no more while fewer run than should.

use std::collections::BTreeSet;
use std::sync::Arc;

use berth_engine::InstanceId;
use berth_engine::workload::Member;
use berth_ledger::AvailabilityGuard;
use rustc_hash::FxHashSet;

use super::availability::{availability_guard, floor, is_available};
use super::members::{HostContext, Hosts, desired};
use crate::catalog::CatalogState;
use crate::workload::WorkloadKey;

/// Whether members may be stopped.
pub(crate) enum PreemptionLimit {
    /// They may, if this holds; absent: the workload is not stored, and has no rule.
    May(Option<Arc<AvailabilityGuard>>),
    /// Too few would run: so many of those that run may be stopped.
    AtMost(usize),
}

/// Whether these members of a workload may be stopped, so that others that run stand in for them.
pub(crate) fn preemption_limit(
    catalog: &CatalogState,
    hosts: HostContext<'_>,
    workload: &WorkloadKey,
    victims: &FxHashSet<InstanceId>,
) -> PreemptionLimit {
    let Some(definition) = catalog.workloads.get(workload) else {
        return PreemptionLimit::May(None);
    };
    let mut members = Vec::new();
    Hosts::new(catalog, hosts).collect(definition, &mut members);
    let desired = desired(definition);
    let floor = usize::try_from(floor(&desired, &members)).unwrap_or(usize::MAX);
    let slots = |stays: &dyn Fn(&Member) -> bool| {
        let running = members.iter().filter(|it| is_available(it) && stays(it));
        running.map(|it| (it.revision, it.slot)).collect::<BTreeSet<_>>().len()
    };
    let (before, after) = (slots(&|_| true), slots(&|it| !victims.contains(&it.id)));
    if after < before && after < floor {
        return PreemptionLimit::AtMost(before.saturating_sub(floor));
    }
    let mut guard = availability_guard(definition, &desired, &members, victims);
    // A member that does not run may be stopped however few do.
    Arc::make_mut(&mut guard).at_least = if after < before { floor } else { 0 };
    PreemptionLimit::May(Some(guard))
}
