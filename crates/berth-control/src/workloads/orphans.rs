//! Members of workloads that are gone.
//!
//! A member may be placed in the same moment in which its workload is removed: the two do not look
//! at each other. It is nobody's, so it is let go.

use berth_engine::workload::Cause;
use rustc_hash::FxHashSet;

use super::plan::ReleaseAction;
use super::reconciler;
use crate::control_plane::ControlPlane;
use crate::workload::WorkloadKey;

/// Lets go of members whose workload is not stored. The ledger is asked first: a workload that only
/// cannot be read here keeps its members.
pub(super) async fn release_orphans(control: &ControlPlane) {
    let suspects: Vec<(WorkloadKey, Vec<ReleaseAction>)> = {
        let catalog = control.catalog.read();
        let lost = catalog.members.iter().filter(|(key, _)| !catalog.workloads.contains_key(*key));
        lost.map(|(key, members)| {
            let live = members.iter().filter(|it| it.state != berth_ledger::ClaimState::Releasing);
            let partings = live.map(|it| ReleaseAction {
                key: it.key,
                fence: it.fence,
                cause: Cause::ScaleDown,
            });
            (key.clone(), partings.collect())
        })
        .collect()
    };
    if suspects.iter().all(|(_, partings)| partings.is_empty()) {
        return;
    }
    let Ok(stored) = control.read(berth_ledger::Ledger::workloads).await else { return };
    let stored: FxHashSet<(String, String)> =
        stored.into_iter().map(|workload| (workload.tenant, workload.name)).collect();
    for ((tenant, name), partings) in suspects {
        if stored.contains(&(tenant.to_string(), name.to_string())) {
            continue;
        }
        for parting in &partings {
            tracing::warn!(%tenant, %name, instance = %parting.key, "a member of no workload goes");
            reconciler::release_member(control, parting).await;
        }
    }
}
