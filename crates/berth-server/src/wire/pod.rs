//! Which instance a pod is: its namespace is the tenant, its name the instance's name, or its id.

use berth_engine::InstanceId;
use berth_ledger::{ClaimKey, ClaimState};
use uuid::Uuid;

use berth_api::wire::WirePod as Pod;
use berth_control::ControlPlane;
use berth_control::caller::Caller;
use berth_control::catalog::{Books, ClaimEntry};

/// The instance behind a pod.
pub(super) enum Meant {
    /// This instance.
    One(InstanceId),
    /// Several that run, all of this name.
    Several(usize),
    /// None that this caller knows of.
    Nobody,
}

/// Looks for an instance by its pod. An agent knows only what is on its node.
pub(super) async fn find(control: &ControlPlane, caller: &Caller, pod: &Pod) -> Meant {
    let meant = look(&control.catalog.books(), caller, pod);
    if !matches!(meant, Meant::Nobody) {
        return meant;
    }
    // It may have been placed this moment.
    control.settled().await;
    look(&control.catalog.books(), caller, pod)
}

fn look(books: &Books, caller: &Caller, pod: &Pod) -> Meant {
    let here = |claim: &&ClaimEntry| {
        claim.request.owner == pod.namespace && caller.node().is_none_or(|node| *node == claim.node)
    };
    let named: Vec<&ClaimEntry> = books.named(&pod.namespace, &pod.name).filter(here).collect();
    // One that is about to stop may have a successor of the same name.
    let runs =
        |claim: &&&ClaimEntry| matches!(claim.state, ClaimState::Binding | ClaimState::Active);
    let running: Vec<&ClaimEntry> = named.iter().filter(runs).copied().collect();
    match (running.as_slice(), named.as_slice()) {
        ([one], _) | ([], [one, ..]) => return Meant::One(one.key.instance),
        ([], []) => {}
        (several, _) => return Meant::Several(several.len()),
    }
    let id = pod.name.parse::<Uuid>().ok().map(|id| ClaimKey::primary(InstanceId(id)));
    let claim = id.and_then(|key| books.claims.get(&key)).map(AsRef::as_ref).filter(here);
    claim.map_or(Meant::Nobody, |claim| Meant::One(claim.key.instance))
}
