//! Members of workloads that are gone.
//!
//! A member without a slot does not keep its workload from being removed. Servers of earlier releases
//! do not check that the workload of a member is there. Such members are released.

use berth_engine::workload::Cause;
use rustc_hash::FxHashSet;

use super::plan::ReleaseAction;
use super::releasing::release_member;
use crate::control_plane::ControlPlane;
use crate::error::ControlResult;
use crate::workload::WorkloadKey;

/// Releases members whose workload is not stored. The ledger is checked first: a workload that only
/// cannot be decoded keeps its members.
///
/// # Errors
///
/// If the ledger cannot be read: nothing is released then.
pub(super) async fn release_orphans(control: &ControlPlane) -> ControlResult<()> {
    let suspects: Vec<(WorkloadKey, Vec<ReleaseAction>)> = {
        let catalog = control.catalog.read();
        let lost = catalog.members.iter().filter(|(key, _)| !catalog.workloads.contains_key(*key));
        lost.map(|(key, members)| {
            let live = members.iter().filter(|it| it.state != berth_ledger::ClaimState::Releasing);
            let releases = live.map(|it| ReleaseAction {
                key: it.key,
                fence: it.fence,
                cause: Cause::ScaleDown,
                guard: None,
            });
            (key.clone(), releases.collect())
        })
        .collect()
    };
    if suspects.iter().all(|(_, releases)| releases.is_empty()) {
        return Ok(());
    }
    let stored = control.read(berth_ledger::Ledger::workloads).await?;
    let stored: FxHashSet<(String, String)> =
        stored.into_iter().map(|workload| (workload.tenant, workload.name)).collect();
    for ((tenant, name), releases) in suspects {
        if stored.contains(&(tenant.to_string(), name.to_string())) {
            continue;
        }
        for release in &releases {
            tracing::warn!(%tenant, %name, instance = %release.key, "releasing orphaned instance");
            release_member(control, release).await;
        }
    }
    Ok(())
}
