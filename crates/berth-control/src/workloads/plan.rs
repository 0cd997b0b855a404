//! One workload's turn: what the rules say is to be done, with all that is needed to do it.
//!
//! Looked up under the catalogue's lock, done without it.

use std::sync::Arc;

use berth_api::Degraded;
use berth_engine::workload::{Blocker, Cause, Member, Step, reconcile};
use berth_engine::{CapacityType, InstanceId};
use berth_ledger::{ClaimKey, Micros, Slot};
use rustc_hash::FxHashSet;

use super::members::{HostContext, Hosts, desired};
use crate::catalog::CatalogState;
use crate::control_plane::ControlPlane;
use crate::documents::Versioned;
use crate::workload::{Definition, WorkloadKey};

/// A member to be placed.
#[derive(Clone, Debug)]
pub(super) struct CreateAction {
    pub(super) seat: Slot,
    /// The kind of capacity it must be on.
    pub(super) class: Option<CapacityType>,
    /// Who hands the seat over.
    pub(super) takes_over: Option<ClaimKey>,
    pub(super) cause: Cause,
}

/// A member to be let go.
#[derive(Clone, Debug)]
pub(super) struct ReleaseAction {
    pub(super) key: ClaimKey,
    pub(super) fence: i64,
    pub(super) cause: Cause,
}

/// What is to be done for one workload.
#[derive(Clone, Debug)]
pub(super) struct ReconcilePlan {
    pub(super) definition: Arc<Definition>,
    pub(super) creations: Vec<CreateAction>,
    pub(super) partings: Vec<ReleaseAction>,
    /// A member with a volume on a node that is lost.
    pub(super) stranded: Option<InstanceId>,
    /// Until when nothing new is tried, since members keep ending.
    pub(super) backs_off_until: Option<Micros>,
    /// What was wrong before.
    pub(super) was: Option<Arc<Versioned<Degraded>>>,
    /// Whether it is being removed and nothing is left of it.
    pub(super) is_over: bool,
}

/// Workloads looked at under one hold of the catalogue, so that its changes get their turn.
const AT_ONCE: usize = 512;

/// Looks at all workloads as the loop does from time to time, and does nothing. Returns how many
/// have something to do.
#[must_use]
pub fn plan_all(control: &ControlPlane) -> usize {
    let keys: Vec<WorkloadKey> = control.catalog.read().workloads.keys().cloned().collect();
    turns(control, &keys).len()
}

/// The turns of these workloads; those with nothing to do have none.
pub(super) fn turns(control: &ControlPlane, keys: &[WorkloadKey]) -> Vec<ReconcilePlan> {
    let mut turns = Vec::new();
    let mut members = Vec::new();
    let wrong: FxHashSet<WorkloadKey> = control.degraded.keys().into_iter().collect();
    for some in keys.chunks(AT_ONCE) {
        let catalog = control.catalog.read();
        let mut hosts = Hosts::new(&catalog, HostContext::of(control));
        for key in some {
            let Some(definition) = catalog.workloads.get(key) else { continue };
            let was = wrong.contains(key).then(|| control.degraded.get(key)).flatten();
            // Who creates the members lets them go, too.
            if definition.replicas.is_none() && !definition.body.deleting {
                turns.extend(was.map(|was| nothing_to_do(definition, was)));
                continue;
            }
            hosts.collect(definition, &mut members);
            turns.extend(turn(&catalog, definition, &members, was));
        }
    }
    turns
}

/// The turn of a workload that lacked something while Berth created its members.
fn nothing_to_do(definition: &Arc<Definition>, was: Arc<Versioned<Degraded>>) -> ReconcilePlan {
    ReconcilePlan {
        definition: Arc::clone(definition),
        creations: Vec::new(),
        partings: Vec::new(),
        stranded: None,
        backs_off_until: None,
        was: Some(was),
        is_over: false,
    }
}

fn turn(
    catalog: &CatalogState,
    definition: &Arc<Definition>,
    members: &[Member],
    was: Option<Arc<Versioned<Degraded>>>,
) -> Option<ReconcilePlan> {
    let outlook = reconcile(&desired(definition), members);
    let is_over = definition.body.deleting && members.is_empty();
    if outlook.is_settled() && was.is_none() && !is_over {
        return None;
    }
    let entries = catalog.members.get(&definition.key).map_or(&[][..], Vec::as_slice);
    let entry = |id: InstanceId| entries.iter().find(|entry| entry.key.instance == id);
    let (mut creations, mut partings) = (Vec::new(), Vec::new());
    for step in outlook.steps {
        match step {
            Step::Create { revision, slot, class, in_place_of, cause } => {
                let takes_over = in_place_of.map(ClaimKey::primary);
                let seat = Slot { revision, slot: i64::from(slot) };
                creations.push(CreateAction { seat, class, takes_over, cause });
            }
            Step::Release { instance, cause } => {
                let parting = entry(instance).map(|entry| ReleaseAction {
                    key: entry.key,
                    fence: entry.fence,
                    cause,
                });
                partings.extend(parting);
            }
        }
    }
    let stranded = outlook
        .blocked
        .iter()
        .find(|blocked| blocked.blocker == Blocker::Volume && blocked.cause == Cause::NodeLost);
    let stranded = stranded.map(|it| it.instance);
    let deaths = catalog.deaths.get(&definition.key);
    Some(ReconcilePlan {
        definition: Arc::clone(definition),
        creations,
        partings,
        stranded,
        backs_off_until: deaths.and_then(|deaths| deaths.wait_until()),
        was,
        is_over,
    })
}
