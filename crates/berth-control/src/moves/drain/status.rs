//! The progress of a drain: what is left, where it goes, and what blocks it.

use berth_api::{Drain, DrainMove, DrainState, MoveState, VolumeMove};
use berth_engine::{NodeId, NodeState};
use berth_ledger::{ClaimKey, ClaimState, Role};

use super::{DrainRecord, Drains};
use crate::catalog::{CatalogState, ClaimEntry, MemberEntry, NodeEntry};
use crate::control_plane::ControlPlane;
use crate::moves::executor::suggest_fixes;
use crate::moves::volume;

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
    let leaving = control.moves.volume_moves.leaving(node).into_iter();
    let volumes: Vec<VolumeMove> =
        leaving.map(|(name, stored)| volume::view(&name, &stored.value)).collect();
    let record = control.moves.drains.get(node).map(|stored| stored.value.clone());
    let left = u32::try_from(moves.len().saturating_add(volumes.len())).unwrap_or(u32::MAX);
    let total = record.as_ref().map_or(left, |record| record.total.max(left));
    let state = state_of(&moves, &volumes);
    let message = match state {
        DrainState::Done => format!("node {node} is empty"),
        DrainState::Running | DrainState::Planned | DrainState::Blocked => {
            describe_rest(&moves, &volumes, total)
        }
    };
    let (since, reason, deadline, reclaimed) = match record {
        Some(DrainRecord { since, reason, deadline, reclaimed, .. }) => {
            (Some(since), reason, deadline, reclaimed)
        }
        None => (None, None, None, false),
    };
    Drain {
        node: node.clone(),
        state,
        message,
        reason,
        since,
        deadline,
        reclaimed,
        total,
        left,
        moves,
        volumes,
    }
}

fn is_blocked(one: &DrainMove) -> bool {
    one.state == MoveState::Blocked
}

/// A node whose volumes are still copied is not empty: nothing else has their data yet.
fn state_of(moves: &[DrainMove], volumes: &[VolumeMove]) -> DrainState {
    match (moves, volumes) {
        ([], []) => DrainState::Done,
        (moves, []) if moves.iter().all(is_blocked) => DrainState::Blocked,
        _ => DrainState::Running,
    }
}

/// What is left of a drain that is not done, in one sentence.
fn describe_rest(moves: &[DrainMove], volumes: &[VolumeMove], total: u32) -> String {
    let (left, blocked) = (moves.len(), moves.iter().filter(|one| is_blocked(one)).count());
    let instances = format!("{left} of {total} instances are left");
    let names: Vec<&str> = volumes.iter().map(|one| one.volume.as_str()).collect();
    let moving = match names.as_slice() {
        [] if blocked == left => {
            let why = moves.first().map_or("", |one| one.message.as_str());
            return format!("{instances}, and none can move: {why}");
        }
        [] => String::new(),
        [name] => format!("volume {name} is being moved away"),
        names => format!("volumes {} are being moved away", names.join(", ")),
    };
    let instances = match blocked {
        0 => instances,
        some => format!("{instances}, {some} of them cannot move"),
    };
    match (left, moving.as_str()) {
        (_, "") => instances,
        (0, moving) => format!("no instance is left, and {moving}"),
        (_, moving) => format!("{instances}; {moving}"),
    }
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
        let mut message = "it is stopping; the node's agent confirms when it is gone".to_owned();
        let moved_to = catalog.claims.get(&ClaimKey::primary(claim.key.instance));
        let to = moved_to.filter(|it| it.key != claim.key).map(|it| it.node.clone());
        if to.is_some() {
            message.push_str(", and then it starts in its new place");
        }
        return DrainMove { to, state: MoveState::Leaving, message, ..leaving };
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
        None if claim.workload().is_some() => {
            let message = "it is moved when enough others of its workload run (max_unavailable)";
            DrainMove { message: message.to_owned(), ..leaving }
        }
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
