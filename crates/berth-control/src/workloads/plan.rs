//! Plans for workloads: what is to be created and released, with all that is needed to do it.
//!
//! Made under the catalogue's lock, carried out without it.

use std::sync::Arc;

use berth_api::Degraded;
use berth_engine::workload::{Blocker, Cause, Member, Step, reconcile};
use berth_engine::{CapacityType, InstanceId};
use berth_ledger::{AvailabilityGuard, ClaimKey, Micros, Slot};
use rustc_hash::FxHashSet;

use super::availability::{availability_guard, is_forced};
use super::members::{HostContext, Hosts, desired};
use crate::catalog::CatalogState;
use crate::control_plane::ControlPlane;
use crate::documents::Versioned;
use crate::workload::{Definition, WorkloadKey};

/// A member to be placed.
#[derive(Clone, Debug)]
pub(super) struct CreateAction {
    pub(super) slot: Slot,
    /// The kind of capacity it must be on.
    pub(super) class: Option<CapacityType>,
    /// The claim that hands the slot over.
    pub(super) takes_over: Option<ClaimKey>,
    pub(super) cause: Cause,
}

/// A member to be released.
#[derive(Clone, Debug)]
pub(super) struct ReleaseAction {
    pub(super) key: ClaimKey,
    pub(super) fence: i64,
    pub(super) cause: Cause,
    /// What must hold; absent: it goes whatever happens.
    pub(super) guard: Option<Arc<AvailabilityGuard>>,
}

/// What is to be done for one workload.
#[derive(Clone, Debug)]
pub(super) struct ReconcilePlan {
    pub(super) definition: Arc<Definition>,
    pub(super) creates: Vec<CreateAction>,
    pub(super) releases: Vec<ReleaseAction>,
    /// A member with a volume on a node that is lost.
    pub(super) stranded: Option<InstanceId>,
    /// Until when some members are not created, since those of their revision keep ending.
    pub(super) backs_off_until: Option<Micros>,
    /// What was wrong before.
    pub(super) was: Option<Arc<Versioned<Degraded>>>,
    /// Whether it is being removed and nothing is left of it.
    pub(super) is_over: bool,
}

/// Workloads planned under one lock of the catalogue, so that updates are not delayed.
const MAX_PER_LOCK: usize = 512;

/// Plans all workloads as the loop does from time to time, and carries nothing out. Returns how
/// many have something to do.
#[must_use]
pub fn plan_all(control: &ControlPlane) -> usize {
    let keys: Vec<WorkloadKey> = control.catalog.read().workloads.keys().cloned().collect();
    plan_workloads(control, &keys).len()
}

/// Plans for these workloads; those with nothing to do have none.
pub(super) fn plan_workloads(control: &ControlPlane, keys: &[WorkloadKey]) -> Vec<ReconcilePlan> {
    let mut plans = Vec::new();
    let mut members = Vec::new();
    let wrong: FxHashSet<WorkloadKey> = control.degraded.keys().into_iter().collect();
    let now = Micros(control.now().as_microsecond());
    for chunk in keys.chunks(MAX_PER_LOCK) {
        let catalog = control.catalog.read();
        let mut hosts = Hosts::new(&catalog, HostContext::of(control));
        for key in chunk {
            let Some(definition) = catalog.workloads.get(key) else { continue };
            let was = wrong.contains(key).then(|| control.degraded.get(key)).flatten();
            if definition.quarantined.is_some() {
                plans.push(idle_plan(definition, was));
                continue;
            }
            // Whatever creates the members releases them, too.
            if definition.replicas.is_none() && !definition.body.deleting {
                plans.extend(was.map(|was| idle_plan(definition, Some(was))));
                continue;
            }
            hosts.collect(definition, &mut members);
            plans.extend(plan_workload((&catalog, now), definition, &members, was));
        }
    }
    plans
}

/// The plan for a workload of which only what is wrong is to be reported: it is quarantined, or
/// lacked something while Berth created its members.
fn idle_plan(definition: &Arc<Definition>, was: Option<Arc<Versioned<Degraded>>>) -> ReconcilePlan {
    ReconcilePlan {
        definition: Arc::clone(definition),
        creates: Vec::new(),
        releases: Vec::new(),
        stranded: None,
        backs_off_until: None,
        was,
        is_over: false,
    }
}

fn plan_workload(
    (catalog, now): (&CatalogState, Micros),
    definition: &Arc<Definition>,
    members: &[Member],
    was: Option<Arc<Versioned<Degraded>>>,
) -> Option<ReconcilePlan> {
    let crashes = catalog.crashes.get(&definition.key).and_then(|it| it.lately(now));
    let has_crashed = crashes.as_ref().is_some_and(|it| it.of(definition.body.revision).is_some());
    let mut desired = desired(definition);
    desired.failing = has_crashed || was.is_some();
    let outlook = reconcile(&desired, members);
    let is_over = definition.body.deleting && members.is_empty();
    if outlook.is_settled() && was.is_none() && !is_over {
        return None;
    }
    let entries = catalog.members.get(&definition.key).map_or(&[][..], Vec::as_slice);
    let entry = |id: InstanceId| entries.iter().find(|entry| entry.key.instance == id);
    let (mut creates, mut releases) = (Vec::new(), Vec::new());
    let wait_of = |revision: i64| {
        let until = crashes.as_ref().and_then(|crashes| crashes.of(revision)?.wait_until());
        until.filter(|until| *until > now)
    };
    let mut backs_off_until: Option<Micros> = None;
    let released: FxHashSet<InstanceId> = outlook.steps.iter().filter_map(released_by).collect();
    let guard = (!released.is_empty())
        .then(|| availability_guard(definition, &desired, members, &released));
    let forced: FxHashSet<InstanceId> =
        members.iter().filter(|member| is_forced(member)).map(|member| member.id).collect();
    for step in outlook.steps {
        match step {
            Step::Create { revision, slot, class, in_place_of, cause } => {
                if let Some(until) = wait_of(revision) {
                    let earliest = backs_off_until.map_or(until, |known| known.min(until));
                    backs_off_until = Some(earliest);
                    continue;
                }
                let takes_over = in_place_of.map(ClaimKey::primary);
                let slot = Slot { revision, slot: i64::from(slot) };
                creates.push(CreateAction { slot, class, takes_over, cause });
            }
            Step::Release { instance, cause } => {
                let release = entry(instance).map(|entry| ReleaseAction {
                    key: entry.key,
                    fence: entry.fence,
                    cause,
                    guard: guard.clone().filter(|_| !forced.contains(&instance)),
                });
                releases.extend(release);
            }
        }
    }
    let stranded = outlook
        .blocked
        .iter()
        .find(|blocked| blocked.blocker == Blocker::Volume && blocked.cause == Cause::NodeLost);
    let stranded = stranded.map(|it| it.instance);
    Some(ReconcilePlan {
        definition: Arc::clone(definition),
        creates,
        releases,
        stranded,
        backs_off_until,
        was,
        is_over,
    })
}

/// The member that a step releases.
const fn released_by(step: &Step) -> Option<InstanceId> {
    match step {
        Step::Release { instance, .. } => Some(*instance),
        Step::Create { .. } => None,
    }
}
