//! Plans what a drain does next: which instances are restarted elsewhere now, and which are stopped
//! because the deadline has passed.
//!
//! Members of workloads are not planned here: their workload's reconciler replaces them. Those that their
//! tenant creates are, as many at a time as may be missing. Instances with volumes wait until their volumes
//! were moved.

use std::sync::Arc;

use berth_engine::workload::HostState;
use berth_engine::{NodeId, NodeState};
use berth_ledger::{ClaimKey, ClaimState, Role};
use jiff::Timestamp;

use super::status::{is_draining, is_kept_by_workload};
use crate::catalog::{CatalogState, ClaimEntry, NodeEntry};
use crate::moves::evacuee::Evacuee;
use crate::moves::migration::Migrations;
use crate::moves::plan::{MovePlan, MoveStep};
use crate::state::drains::RefusedMove;
use crate::workloads::{CallerMembers, HostContext, StopPermit};

/// Most restarts in one plan: what is restarted is down for as long as it takes to start.
const MAX_RESTARTS: usize = 16;

/// What is to be done for all drains now.
#[derive(Debug, Default)]
pub(super) struct DrainPlan {
    /// Draining nodes without a drain document.
    pub(super) undocumented: Vec<NodeId>,
    /// Documents of drains that have ended, with their revisions.
    pub(super) ended: Vec<(NodeId, i64)>,
    /// Instances that are restarted elsewhere or stopped.
    pub(super) moves: MovePlan,
    /// Places on lost nodes that instances have left.
    pub(super) abandoned: Vec<Arc<ClaimEntry>>,
}

/// What becomes of an instance on a draining node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Decision {
    Restart,
    Stop,
    Wait,
}

/// An instance that was never tried is tried first, however late it is.
fn decide(refused: Option<&RefusedMove>, is_late: bool, room: u64, now: Timestamp) -> Decision {
    match refused {
        Some(_) if is_late => Decision::Stop,
        Some(refused) if !refused.is_due(room, now) => Decision::Wait,
        Some(_) | None => Decision::Restart,
    }
}

/// Plans the next steps of all drains. Also forgets refusals of instances that are not on a draining
/// node any more.
pub(super) fn plan(
    catalog: &CatalogState,
    hosts: HostContext<'_>,
    migrations: &Migrations,
    room: u64,
) -> DrainPlan {
    let (drains, now) = (hosts.drains, hosts.now);
    let abandoned = abandoned_places(catalog, hosts, migrations);
    let mut plan = DrainPlan { abandoned, ..DrainPlan::default() };
    for node in drains.nodes() {
        let has_ended = !catalog.nodes.get(&node).is_some_and(is_draining);
        if let Some(stored) = drains.get(&node).filter(|_| has_ended) {
            plan.ended.push((node, stored.revision));
        }
    }
    let (mut restarts, mut steps) = (Vec::new(), Vec::new());
    for (node, entry) in catalog.nodes.iter().filter(|(_, entry)| is_draining(entry)) {
        let Some(drain) = drains.get(node) else {
            plan.undocumented.push(node.clone());
            continue;
        };
        let is_late = drain.value.deadline.is_some_and(|deadline| deadline <= now);
        let claims = entry.claims.iter().filter_map(|key| catalog.claims.get(key));
        for claim in claims.filter(|claim| is_moved_by_drain(catalog, claim)) {
            let evacuee = Evacuee::new(migrations, claim);
            // Its agents are copying it: do not stop it under them.
            if evacuee.history.is_in_transit() {
                continue;
            }
            let refused = drains.refused.get(evacuee.id(), claim.fence);
            match decide(refused.as_deref(), is_late, room, now) {
                Decision::Restart => restarts.push((refused.map(|it| it.at), is_late, evacuee)),
                Decision::Stop => {
                    let code =
                        refused.map(|refused| refused.refusal.code.clone()).unwrap_or_default();
                    let reason = format!("the drain's deadline has passed, and {code}");
                    steps.push(MoveStep::stop(evacuee, reason));
                }
                Decision::Wait => {}
            }
        }
    }
    drains.refused.retain(|instance| {
        let claim = catalog.claims.get(&ClaimKey::primary(instance));
        claim.is_some_and(|claim| catalog.nodes.get(&claim.node).is_some_and(is_draining))
    });
    // Instances that were never tried come first, then those that have waited longest, so that one
    // that fits nowhere does not keep the others waiting.
    restarts.sort_by_key(|(refused_at, _, evacuee)| (*refused_at, evacuee.id()));
    let mut members = CallerMembers::new(catalog, hosts);
    let restarts = restarts.into_iter().filter_map(|(_, is_late, evacuee)| {
        let guard = match members.permit_stop(&evacuee.claim) {
            // By now it goes whatever else runs.
            _ if is_late => None,
            StopPermit::Free => None,
            StopPermit::Guarded(guard) => Some(guard),
            StopPermit::Wait => return None,
        };
        Some(MoveStep::restart(evacuee, guard, "its node is draining"))
    });
    steps.extend(restarts.take(MAX_RESTARTS));
    plan.moves = MovePlan::new(steps, None);
    plan
}

/// Places that instances have left for others on nodes that are lost for so long that nothing can run
/// there. Those of migrations are released with their migration.
fn abandoned_places(
    catalog: &CatalogState,
    hosts: HostContext<'_>,
    migrations: &Migrations,
) -> Vec<Arc<ClaimEntry>> {
    let may_be_lost = |entry: &&NodeEntry| {
        matches!(entry.facts.state, NodeState::Draining | NodeState::Lost)
            && hosts.host(entry) == HostState::Lost
    };
    let claims = catalog.nodes.values().filter(may_be_lost).flat_map(|entry| &entry.claims);
    let left = claims.filter(|key| key.role == Role::MigrationSource);
    let left = left.filter(|key| migrations.open_of(key.instance).is_none());
    left.filter_map(|key| catalog.claims.get(key).cloned()).collect()
}

/// Whether a claim is moved by the drain itself.
fn is_moved_by_drain(catalog: &CatalogState, claim: &ClaimEntry) -> bool {
    claim.key.role == Role::Primary
        && claim.state != ClaimState::Releasing
        && claim.request.volumes.is_empty()
        && !is_kept_by_workload(catalog, claim)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::state::drains::StepRefusal;

    #[test]
    fn an_instance_is_tried_before_it_is_stopped_and_not_too_often() {
        let at = |second| Timestamp::from_second(second).unwrap();
        let refusal =
            StepRefusal { code: "no_room".to_owned(), message: String::new(), unblock: Vec::new() };
        let refused = RefusedMove { fence: 1, refusal, at: at(1000), room: 7 };
        let cases = [
            (None, false, Decision::Restart),
            (None, true, Decision::Restart),
            (Some(&refused), false, Decision::Wait),
            (Some(&refused), true, Decision::Stop),
        ];
        for (refused, is_late, expected) in cases {
            assert_eq!(decide(refused, is_late, 7, at(1002)), expected, "{refused:?} {is_late}");
        }
        assert_eq!(decide(Some(&refused), false, 8, at(1002)), Decision::Restart);
    }
}
