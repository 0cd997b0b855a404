//! Which instance a pod is: its namespace is the tenant, its name the instance's name, or its id.

use berth_engine::InstanceId;
use berth_ledger::{ClaimKey, ClaimState};
use uuid::Uuid;

use berth_api::wire::WirePod as Pod;
use berth_control::ControlPlane;
use berth_control::caller::Caller;
use berth_control::catalog::{CatalogState, ClaimEntry};

/// The instance behind a pod.
pub(super) enum PodTarget {
    /// This instance.
    Instance(InstanceId),
    /// Several that run, all of this name.
    Ambiguous(usize),
    /// No instance that this caller may see.
    NotFound,
}

/// Finds an instance by its pod. An agent sees only what is on its node.
pub(super) async fn find(control: &ControlPlane, caller: &Caller, pod: &Pod) -> PodTarget {
    let target = resolve(&control.catalog.read(), caller, pod);
    if !matches!(target, PodTarget::NotFound) {
        return target;
    }
    // It may have been placed just now.
    control.wait_for_read_your_writes().await;
    resolve(&control.catalog.read(), caller, pod)
}

fn resolve(catalog: &CatalogState, caller: &Caller, pod: &Pod) -> PodTarget {
    let here = |claim: &&ClaimEntry| {
        claim.request.tenant == pod.namespace
            && caller.node().is_none_or(|node| *node == claim.node)
    };
    let named: Vec<&ClaimEntry> = catalog.named(&pod.namespace, &pod.name).filter(here).collect();
    // One that is about to stop may have a successor of the same name.
    let runs =
        |claim: &&&ClaimEntry| matches!(claim.state, ClaimState::Binding | ClaimState::Active);
    let running: Vec<&ClaimEntry> = named.iter().filter(runs).copied().collect();
    match (running.as_slice(), named.as_slice()) {
        ([one], _) | ([], [one, ..]) => return PodTarget::Instance(one.key.instance),
        ([], []) => {}
        (several, _) => return PodTarget::Ambiguous(several.len()),
    }
    let id = pod.name.parse::<Uuid>().ok().map(|id| ClaimKey::primary(InstanceId(id)));
    let claim = id.and_then(|key| catalog.claims.get(&key)).map(AsRef::as_ref).filter(here);
    claim.map_or(PodTarget::NotFound, |claim| PodTarget::Instance(claim.key.instance))
}
