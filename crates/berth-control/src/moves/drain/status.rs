//! The progress of a drain: what is left, where it goes, and what blocks it.

use berth_api::{Drain, DrainMove, DrainState, MoveState};
use berth_engine::{NodeId, NodeState};
use berth_ledger::{ClaimState, Role};

use super::{DrainRecord, Drains};
use crate::catalog::{CatalogState, ClaimEntry, MemberEntry, NodeEntry};
use crate::control_plane::ControlPlane;
use crate::moves::executor::suggest_fixes;

/// The drain of a node; absent if it is not draining.
#[must_use]
pub fn status(control: &ControlPlane, node: &NodeId) -> Option<Drain> {
    let catalog = control.catalog.read();
    let entry = catalog.nodes.get(node).filter(|entry| is_draining(entry))?;
    Some(view(control, &catalog, entry))
}

/// All drains, in order of node id.
#[must_use]
pub fn all(control: &ControlPlane) -> Vec<Drain> {
    let catalog = control.catalog.read();
    let draining = catalog.nodes.values().filter(|entry| is_draining(entry));
    draining.map(|entry| view(control, &catalog, entry)).collect()
}

pub(super) fn is_draining(entry: &NodeEntry) -> bool {
    entry.facts.state == NodeState::Draining
}

/// Whether the workload reconciler replaces a claim. Members that their tenant creates are moved like
/// any other instance, and keep their slots.
pub(crate) fn is_kept_by_workload(catalog: &CatalogState, claim: &ClaimEntry) -> bool {
    let definition = claim.workload().and_then(|key| catalog.workloads.get(&key));
    definition.is_some_and(|it| it.replicas.is_some() || it.body.deleting)
}

fn view(control: &ControlPlane, catalog: &CatalogState, entry: &NodeEntry) -> Drain {
    let node = &entry.facts.id;
    let claims = entry.claims.iter().filter_map(|key| catalog.claims.get(key));
    let moves: Vec<DrainMove> = claims.map(|claim| move_status(control, catalog, claim)).collect();
    let record = control.moves.drains.get(node).map(|stored| stored.value.clone());
    let left = u32::try_from(moves.len()).unwrap_or(u32::MAX);
    let total = record.as_ref().map_or(left, |record| record.total.max(left));
    let is_blocked = |one: &DrainMove| one.state == MoveState::Blocked;
    let state = match moves.as_slice() {
        [] => DrainState::Done,
        moves if moves.iter().all(is_blocked) => DrainState::Blocked,
        _ => DrainState::Running,
    };
    let blocked = moves.iter().filter(|one| is_blocked(one)).count();
    let message = match state {
        DrainState::Done => format!("node {node} is empty"),
        DrainState::Blocked => {
            let why = moves.first().map_or("", |one| one.message.as_str());
            format!("{left} of {total} instances are left, and none can move: {why}")
        }
        DrainState::Running | DrainState::Planned if blocked > 0 => {
            format!("{left} of {total} instances are left, {blocked} of them cannot move")
        }
        DrainState::Running | DrainState::Planned => {
            format!("{left} of {total} instances are left")
        }
    };
    let (since, reason, deadline, reclaimed) = match record {
        Some(DrainRecord { since, reason, deadline, reclaimed, .. }) => {
            (Some(since), reason, deadline, reclaimed)
        }
        None => (None, None, None, false),
    };
    let node = node.clone();
    Drain { node, state, message, reason, since, deadline, reclaimed, total, left, moves }
}

/// The progress of one instance.
fn move_status(control: &ControlPlane, catalog: &CatalogState, claim: &ClaimEntry) -> DrainMove {
    let leaving = DrainMove {
        instance: claim.key.instance,
        tenant: claim.request.tenant.clone(),
        workload: claim.request.workload.clone(),
        from: claim.node.clone(),
        to: None,
        state: MoveState::Waiting,
        code: None,
        message: String::new(),
        unblock: Vec::new(),
    };
    if claim.state == ClaimState::Releasing {
        let message = "it is stopping; the node's agent confirms when it is gone".to_owned();
        return DrainMove { state: MoveState::Leaving, message, ..leaving };
    }
    if claim.key.role == Role::MigrationTarget {
        let message = "it is the migration target of an instance that runs elsewhere".to_owned();
        let unblock = vec![format!(
            "berth claims release {} --role migration_target --confirmed",
            claim.key.instance
        )];
        let code = Some("migration_target".to_owned());
        return DrainMove { state: MoveState::Blocked, code, message, unblock, ..leaving };
    }
    if is_kept_by_workload(catalog, claim) {
        return member(control, catalog, claim, leaving);
    }
    if !claim.request.volumes.is_empty() {
        return with_volumes(control, claim, leaving);
    }
    standalone(&control.moves.drains, claim, leaving)
}

fn standalone(drains: &Drains, claim: &ClaimEntry, leaving: DrainMove) -> DrainMove {
    match drains.refused.get(claim.key.instance, claim.fence) {
        Some(refused) => DrainMove {
            state: MoveState::Blocked,
            code: Some(refused.refusal.code.clone()),
            message: refused.refusal.message.clone(),
            unblock: refused.refusal.unblock.clone(),
            ..leaving
        },
        None => DrainMove { message: "it is moved next".to_owned(), ..leaving },
    }
}

fn with_volumes(control: &ControlPlane, claim: &ClaimEntry, leaving: DrainMove) -> DrainMove {
    let volumes = &claim.request.volumes;
    let moves = |volume: &String| {
        let stored = control.moves.volume_moves.get(volume)?;
        stored.value.is_open().then(|| (volume.clone(), stored.value.to.clone()))
    };
    let moving: Vec<(String, NodeId)> = volumes.iter().filter_map(moves).collect();
    if let (Some((volume, to)), true) = (moving.first(), moving.len() == volumes.len()) {
        let message = format!("its volume {volume} is being moved to {to}");
        let code = Some("volume_moving".to_owned());
        return DrainMove { to: Some(to.clone()), code, message, ..leaving };
    }
    let commands = volumes.iter().map(|volume| format!("berth volumes move {volume} --to NODE"));
    let (what, live) = if volumes.len() == 1 { ("volume", "lives") } else { ("volumes", "live") };
    DrainMove {
        state: MoveState::Blocked,
        code: Some("volume_needs_move".to_owned()),
        message: format!("its {what} {} {live} on this node", volumes.join(", ")),
        unblock: commands.collect(),
        ..leaving
    }
}

/// A member of a workload: its reconciler places a replacement in its slot first.
fn member(
    control: &ControlPlane,
    catalog: &CatalogState,
    claim: &ClaimEntry,
    leaving: DrainMove,
) -> DrainMove {
    let Some(key) = claim.workload() else { return leaving };
    let mut members = catalog.members.get(&key).into_iter().flatten();
    let replaces =
        |other: &&MemberEntry| Some(other.slot) == claim.slot && other.fence > claim.fence;
    if let Some(other) = members.find(replaces) {
        let to = Some(other.node.clone());
        let (state, message) = if other.state == ClaimState::Active {
            (MoveState::Leaving, "its replacement runs; it is stopped next")
        } else {
            (MoveState::Starting, "its replacement is placed and starts")
        };
        return DrainMove { to, state, message: message.to_owned(), ..leaving };
    }
    if !claim.request.volumes.is_empty() {
        return with_volumes(control, claim, leaving);
    }
    let Some(degraded) = control.degraded.get(&key) else {
        let message = "it waits for other members of its workload (max_surge, max_unavailable)";
        return DrainMove { message: message.to_owned(), ..leaving };
    };
    DrainMove {
        state: MoveState::Blocked,
        code: Some(degraded.value.code.clone()),
        message: degraded.value.message.clone(),
        unblock: degraded.value.refusal.as_deref().map(suggest_fixes).unwrap_or_default(),
        ..leaving
    }
}
