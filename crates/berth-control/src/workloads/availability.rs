//! How many members must keep running while others are stopped.
//!
//! Each server decides which members to stop on what it knows. So the decision is handed to the ledger
//! with what it counts on, and does not hold if that has changed: another server may have stopped a
//! member, or one may have ended.

use std::collections::BTreeSet;
use std::sync::Arc;

use berth_engine::InstanceId;
use berth_engine::workload::{DesiredState, HostState, Member, MemberState, Strategy};
use berth_ledger::{AvailabilityGuard, ClaimKey};
use rustc_hash::{FxHashMap, FxHashSet};

use super::members::{HostContext, Hosts};
use crate::catalog::{CatalogState, ClaimEntry};
use crate::workload::{Definition, WorkloadKey};

/// What the release of these members counts on.
pub(super) fn availability_guard(
    definition: &Definition,
    desired: &DesiredState<'_>,
    members: &[Member],
    released: &FxHashSet<InstanceId>,
) -> Arc<AvailabilityGuard> {
    let running: Vec<&Member> =
        members.iter().filter(|it| is_available(it) && !released.contains(&it.id)).collect();
    let slots: BTreeSet<(i64, u32)> = running.iter().map(|it| (it.revision, it.slot)).collect();
    let floor = usize::try_from(floor(desired, members)).unwrap_or(usize::MAX);
    let (tenant, workload) = definition.key.clone();
    Arc::new(AvailabilityGuard {
        tenant,
        workload,
        version: definition.version,
        running: running.iter().map(|it| ClaimKey::primary(it.id)).collect(),
        // Where fewer run than should, none of them may be missing as well.
        at_least: floor.min(slots.len()),
    })
}

/// Whether a member is released whatever else happens: its node is gone or must be empty by now.
pub(super) fn is_forced(member: &Member) -> bool {
    matches!(member.host, HostState::Lost | HostState::Overdue)
}

pub(super) fn is_available(member: &Member) -> bool {
    member.state == MemberState::Ready && !is_forced(member)
}

/// How many slots must have a member that runs.
pub(super) fn floor(desired: &DesiredState<'_>, members: &[Member]) -> u32 {
    let replicas = desired.replicas;
    let is_rolling_out = members.iter().any(|it| it.revision != desired.revision);
    match desired.rolling.strategy {
        // With a volume the old member goes first.
        _ if desired.single_writer => 0,
        Strategy::Recreate if is_rolling_out => 0,
        Strategy::Rolling => {
            replicas.saturating_sub(desired.rolling.surge_and_unavailable(replicas).1)
        }
        Strategy::Recreate | Strategy::BlueGreen => replicas,
    }
}

/// Whether a member may be stopped for a move.
#[derive(Clone, Debug)]
pub(crate) enum StopPermit {
    /// It may, whatever else runs: it belongs to no workload, or its workload's reconciler decides.
    Free,
    /// It may while this holds.
    Guarded(Arc<AvailabilityGuard>),
    /// Too few others run now.
    Wait,
}

/// Members that their tenant creates, as moves of them see them. Nobody replaces such a member before it
/// stops, so that at least one may be missing, or it could never be moved.
pub(crate) struct CallerMembers<'a> {
    catalog: &'a CatalogState,
    hosts: Hosts<'a>,
    workloads: FxHashMap<WorkloadKey, Disruption>,
}

/// How many members of a workload may be stopped.
struct Disruption {
    version: i64,
    /// Members that run, with their slots.
    running: Vec<(InstanceId, (i64, u32))>,
    /// How many slots must have a member that runs.
    floor: usize,
    /// How many more may be stopped.
    left: usize,
}

impl Disruption {
    fn of(definition: &Definition, members: &[Member]) -> Self {
        let slot = |member: &Member| (member.revision, member.slot);
        let slots = |members: &mut dyn Iterator<Item = &Member>| -> usize {
            members.map(slot).collect::<BTreeSet<_>>().len()
        };
        let wanted = slots(&mut members.iter().filter(|it| it.state != MemberState::Leaving));
        let replicas = u32::try_from(wanted).unwrap_or(u32::MAX);
        let rolling = &definition.body.rolling;
        let missing = match rolling.strategy {
            Strategy::Rolling => rolling.surge_and_unavailable(replicas).1.max(1),
            Strategy::Recreate | Strategy::BlueGreen => 1,
        };
        let floor = usize::try_from(replicas.saturating_sub(missing)).unwrap_or(usize::MAX);
        let available = || members.iter().filter(|it| is_available(it));
        let left = slots(&mut available()).saturating_sub(floor);
        let running = available().map(|it| (it.id, slot(it))).collect();
        Self { version: definition.version, running, floor, left }
    }
}

impl<'a> CallerMembers<'a> {
    pub(crate) fn new(catalog: &'a CatalogState, hosts: HostContext<'a>) -> Self {
        let (hosts, workloads) = (Hosts::new(catalog, hosts), FxHashMap::default());
        Self { catalog, hosts, workloads }
    }

    /// Whether an instance may be stopped now. One that may counts as stopped from then on.
    pub(crate) fn permit_stop(&mut self, claim: &ClaimEntry) -> StopPermit {
        let Some(key) = claim.workload() else { return StopPermit::Free };
        let Some(definition) = self.catalog.workloads.get(&key) else { return StopPermit::Free };
        if definition.replicas.is_some() || definition.body.deleting {
            return StopPermit::Free;
        }
        let hosts = &mut self.hosts;
        let workload = self.workloads.entry(key.clone()).or_insert_with(|| {
            let mut members = Vec::new();
            hosts.collect(definition, &mut members);
            Disruption::of(definition, &members)
        });
        let id = claim.key.instance;
        let is_running = workload.running.iter().any(|(running, _)| *running == id);
        if !is_running {
            return StopPermit::Free;
        }
        if workload.left == 0 {
            return StopPermit::Wait;
        }
        workload.left -= 1;
        let others = workload.running.iter().filter(|(other, _)| *other != id);
        let (tenant, name) = key;
        StopPermit::Guarded(Arc::new(AvailabilityGuard {
            tenant,
            workload: name,
            version: workload.version,
            running: others.map(|(other, _)| ClaimKey::primary(*other)).collect(),
            at_least: workload.floor,
        }))
    }
}

#[cfg(test)]
mod tests {
    use berth_engine::CapacityType;
    use berth_engine::workload::{Rolling, Share};

    use super::*;

    fn member(id: u128, slot: u32, state: MemberState, host: HostState) -> Member {
        let (class, fence) = (CapacityType::OnDemand, 1);
        Member { id: InstanceId::from_u128(id), revision: 1, slot, fence, class, state, host }
    }

    #[test]
    fn what_runs_and_stays_must_be_as_many_as_the_rule_says() {
        let ready = |id, slot| member(id, slot, MemberState::Ready, HostState::Fine);
        let members = [
            ready(1, 0),
            ready(2, 1),
            ready(3, 2),
            member(4, 2, MemberState::Ready, HostState::Draining),
            member(5, 3, MemberState::Starting, HostState::Fine),
            member(6, 4, MemberState::Ready, HostState::Lost),
        ];
        let row = berth_ledger::Workload {
            tenant: "acme".to_owned(),
            name: "web".to_owned(),
            revision: 7,
            replicas: 4,
            body: r#"{"revision":1,"template":{"resources":{"memory_mib":1}}}"#.to_owned(),
        };
        let definition = Definition::read(&row).unwrap();
        let guard = |rolling: &Rolling, replicas: u32, single_writer: bool| {
            let (revision, capacity, pinned, paused) = (1, None, None, false);
            let desired = DesiredState {
                replicas,
                revision,
                capacity,
                pinned,
                rolling,
                paused,
                single_writer,
                failing: false,
            };
            let released = [InstanceId::from_u128(1)].into_iter().collect();
            availability_guard(&definition, &desired, &members, &released)
        };
        let rolling = |strategy, missing| Rolling {
            strategy,
            max_surge: Share::Count(1),
            max_unavailable: Share::Count(missing),
        };
        let found = guard(&rolling(Strategy::Rolling, 0), 4, false);
        assert_eq!((found.version, found.running.len(), found.at_least), (7, 3, 2));
        for (strategy, missing, replicas, single_writer, expected) in [
            (Strategy::Rolling, 1, 2, false, 1),
            (Strategy::Rolling, 2, 2, false, 0),
            (Strategy::BlueGreen, 2, 2, false, 2),
            (Strategy::Recreate, 0, 2, false, 2),
            (Strategy::Rolling, 0, 2, true, 0),
            (Strategy::Rolling, 0, 0, false, 0),
        ] {
            let found = guard(&rolling(strategy, missing), replicas, single_writer);
            assert_eq!(found.at_least, expected, "{strategy:?} {missing} of {replicas}");
        }
    }
}
