//! Starting a migration (choosing and holding its target), and ending it early.

use std::sync::Arc;
use std::time::Duration;

use berth_api::{Migration, MigrationReason, MigrationState};
use berth_engine::elastic::{Size, watermark_free};
use berth_engine::{Engine, InstanceId, InstanceRequest, NodeId, PlaceError, Refusal, Timestamp};
use berth_ledger::{
    ClaimKey, ClaimState, DocumentWrite, Expect, Hold, Op, PlannedClaim, Release, Text,
};
use uuid::Uuid;

use super::MigrationRecord;
use super::record::{CommitOutcome, commit, commit_guarded, document, view};
use super::{GUARD, KIND, StoredMigration};
use crate::caller::Caller;
use crate::catalog::ClaimEntry;
use crate::control_plane::ControlPlane;
use crate::error::{ControlError, ControlResult};
use crate::fleet_replica::engine_id;
use crate::moves::records::Audit;
use crate::moves::sandbox::request_as_charged;

/// How often it is checked whether the catalogue shows a held target, and the time in between.
const VISIBLE_TRIES: u32 = 100;
const VISIBLE_PAUSE: Duration = Duration::from_millis(20);

/// A migration that is to be started.
#[derive(Clone, Debug)]
pub struct MigrationRequest {
    /// The instance.
    pub instance: InstanceId,
    /// The node that it goes to.
    pub to: NodeId,
    /// Why.
    pub reason: MigrationReason,
    /// MiB that are expected to be copied.
    pub cost: u64,
    /// The revision of the guard that the decision is based on: if there was a later decision, this
    /// one is refused. Absent if the decision does not depend on others.
    pub decided_after: Option<Option<i64>>,
}

/// Where an instance could be migrated to.
#[derive(Debug)]
pub enum Destination {
    /// To this node.
    Node(NodeId),
    /// No node can take it.
    NoRoom(Box<Refusal>),
}

fn record(
    control: &ControlPlane,
    claim: &ClaimEntry,
    target: NodeId,
    reason: MigrationReason,
    cost: u64,
) -> MigrationRecord {
    let now = control.now();
    MigrationRecord {
        instance: claim.key.instance,
        tenant: claim.request.tenant.clone(),
        source: claim.node.clone(),
        target,
        state: MigrationState::Planned,
        reason,
        cost,
        frees: Size::of(&claim.amounts),
        fence: claim.fence,
        copied_permille: None,
        why: None,
        since: now,
        changed_at: now,
    }
}

/// Starts a migration and holds its target, with the size that the instance has by then.
///
/// # Errors
/// When the instance cannot be migrated; the error says why.
pub async fn start(
    control: &Arc<ControlPlane>,
    caller: &Caller,
    request: &MigrationRequest,
) -> ControlResult<Migration> {
    let claim = check_movable(control, request.instance)?;
    let record = record(control, &claim, request.to.clone(), request.reason, request.cost);
    let id = Uuid::now_v7().to_string();
    let guard = DocumentWrite {
        kind: Text::from(KIND),
        id: Text::from(GUARD),
        body: format!("{{\"last\":\"{id}\"}}"),
        expect: match request.decided_after {
            Some(Some(seen)) => Expect::Revision(seen),
            Some(None) => Expect::Absent,
            None => Expect::Any,
        },
    };
    let subject = format!("{} from {} to {}", request.instance, record.source, record.target);
    let audit = Some((caller, "migration.begin", subject));
    let document = document(&id, &record, Expect::Absent)?;
    let tenant = Some(Text::from(record.tenant.as_str()));
    match commit_guarded(control, &id, None, document, vec![guard], audit, tenant).await? {
        CommitOutcome::Done => {}
        CommitOutcome::Stale => {
            let detail = "another server decided a migration meanwhile";
            return Err(ControlError::conflict("contention", detail).retry_after(1));
        }
        CommitOutcome::Rejected(error) => return Err(error),
    }
    if let Some(stored) = control.moves.migrations.get(&id) {
        hold_target(control, &id, &stored).await?;
    }
    let stored = read(control, &id)?;
    wait_until_visible(control, &stored.value).await;
    Ok(view(&id, &stored.value))
}

/// Waits until the catalogue shows the target that is held. If a driver was faster than the request,
/// the record may be read from the ledger before this server has taken in the claim, and a caller
/// who is answered then would not find it.
async fn wait_until_visible(control: &ControlPlane, record: &MigrationRecord) {
    if !record.is_in_transit() {
        return;
    }
    for _ in 0..VISIBLE_TRIES {
        control.wait_for_read_your_writes().await;
        let keys = [ClaimKey::target(record.instance), ClaimKey::primary(record.instance)];
        let is_visible = {
            let catalog = control.catalog.read();
            let mut claims = keys.iter().filter_map(|key| catalog.claims.get(key));
            claims.any(|claim| claim.node == record.target)
        };
        if is_visible || control.moves.migrations.target_of(record.instance).is_none() {
            return;
        }
        tokio::time::sleep(VISIBLE_PAUSE).await;
    }
}

fn read(control: &ControlPlane, id: &str) -> ControlResult<StoredMigration> {
    control.moves.migrations.get(id).ok_or_else(|| ControlError::not_found("migration", id))
}

/// The claim of an instance, if it may be migrated.
fn check_movable(control: &ControlPlane, instance: InstanceId) -> ControlResult<Arc<ClaimEntry>> {
    let claim = control.catalog.read().claims.get(&ClaimKey::primary(instance)).cloned();
    let claim = claim.ok_or_else(|| ControlError::not_found("instance", &instance.to_string()))?;
    if claim.state != ClaimState::Active {
        let detail = "only an instance that runs can be moved while it runs".to_owned();
        return Err(ControlError::conflict("wrong_state", detail));
    }
    if let Some((id, open)) = control.moves.migrations.open_of(instance) {
        let detail = format!("it is being moved to {} already: migration {id}", open.value.target);
        return Err(ControlError::conflict("migrating", detail)
            .remedy(format!("wait for it, or call it off: berth migrations cancel {id}")));
    }
    if let Some(node) = second_node(control, instance) {
        let detail = format!("an earlier move left a place on {node} that was not given back yet");
        return Err(ControlError::conflict("place_left", detail)
            .remedy("its agent says when it is gone, or its long silence does"));
    }
    if !claim.request.volumes.is_empty() {
        let detail = "it uses local volumes, which do not move with it".to_owned();
        return Err(ControlError::conflict("volume_needs_move", detail)
            .remedy("move its volumes: berth volumes move VOLUME --to NODE"));
    }
    Ok(claim)
}

/// A node on which an instance has a second claim.
fn second_node(control: &ControlPlane, instance: InstanceId) -> Option<NodeId> {
    let catalog = control.catalog.read();
    let keys = [ClaimKey::target(instance), ClaimKey::source(instance)];
    keys.iter().find_map(|key| catalog.claims.get(key)).map(|claim| claim.node.clone())
}

/// Holds the target of a migration that was decided, or fails the migration if that is impossible.
///
/// The request and the driver of every server may try at the same time. Whichever comes second finds
/// the target held; as its writes depend on the revision that it saw, it changes nothing.
pub(super) async fn hold_target(
    control: &Arc<ControlPlane>,
    id: &str,
    seen: &StoredMigration,
) -> ControlResult<()> {
    for tries_left in (0..HOLD_TRIES).rev() {
        let Some(error) = try_hold(control, id, seen).await? else { return Ok(()) };
        let Some(code) = CHANGED.iter().find(|code| tries_left > 0 && **code == error.code())
        else {
            return fail(control, id, seen, error.detail(), true).await.map(drop);
        };
        // Decided by an older view: what has changed is in the log.
        control.metrics.conflict(code);
        control.placer.catch_up().await;
    }
    Ok(())
}

/// How often a target is planned again because something it was checked by had changed.
const HOLD_TRIES: usize = 4;

/// Codes of guards that say so.
const CHANGED: [&str; 3] = ["node_changed", "policy_changed", "rules_changed"];

/// Holds the target, unless that was done or the migration is over. Returns why it cannot be held.
async fn try_hold(
    control: &Arc<ControlPlane>,
    id: &str,
    seen: &StoredMigration,
) -> ControlResult<Option<ControlError>> {
    let record = &seen.value;
    // Held already, or over.
    if record.state != MigrationState::Planned {
        return Ok(None);
    }
    let claim = control.catalog.read().claims.get(&ClaimKey::primary(record.instance)).cloned();
    let planned = match claim {
        Some(claim) => plan_target(control, &claim, &record.target).await,
        None => Err(ControlError::not_found("instance", &record.instance.to_string())),
    };
    let to = match planned {
        Ok(planned) => planned,
        Err(error) => return Ok(Some(error)),
    };
    let next = record.in_state(MigrationState::TargetHeld, control.now());
    let hold = Op::Hold(Box::new(Hold { fence: record.fence, to }));
    let document = document(id, &next, Expect::Revision(seen.revision))?;
    match commit(control, id, Some(hold), document).await? {
        CommitOutcome::Done | CommitOutcome::Stale => Ok(None),
        CommitOutcome::Rejected(error) => Ok(Some(error)),
    }
}

/// The claim of a migration's target, checked like any placement.
async fn plan_target(
    control: &ControlPlane,
    claim: &ClaimEntry,
    to: &NodeId,
) -> ControlResult<PlannedClaim> {
    let request = Arc::new(request_as_charged(claim));
    let (to, now) = (to.clone(), Timestamp(control.now().as_second()));
    let second = engine_id(ClaimKey::target(claim.key.instance));
    // Both claims count until the switch, so the second one has an id of its own.
    let asked = InstanceRequest { id: second, ..InstanceRequest::clone(&request) };
    let node = to.clone();
    // The version of the node first: what changes while it is checked, the ledger finds.
    let planned = control.placer.query_replica(move |replica| {
        let seen = replica.seen(&to);
        let neighbours = replica.neighbours(&request, &to);
        let policy = replica.engine().policy().clone();
        let in_force = Some(replica.policy_in_force());
        let claim = PlannedClaim::new(request, &policy, to, seen);
        PlannedClaim { neighbours, policy: in_force, ..claim }
    });
    let stopping = || ControlError::unavailable("stopping", "the server is stopping");
    let planned = planned.await.ok_or_else(stopping)?;
    let check = move |engine: &mut Engine| {
        engine.check(&asked, &node, now).map_err(|why| format!("node {node} cannot take it: {why}"))
    };
    let checked = control.placer.query_explainer(check).await.ok_or_else(stopping)?;
    checked.map_err(|why| ControlError::conflict("no_room", why))?;
    Ok(planned)
}

/// Ends a migration that cannot continue; its instance keeps running on the source. The target is
/// released at once if nothing can be there yet, otherwise when its agent confirms it. Returns false,
/// having changed nothing, if the migration is not what was seen any more.
pub(super) async fn fail(
    control: &Arc<ControlPlane>,
    id: &str,
    seen: &StoredMigration,
    why: &str,
    target_is_empty: bool,
) -> ControlResult<bool> {
    end(control, id, seen, MigrationState::Failed, why, target_is_empty, None).await
}

async fn end(
    control: &Arc<ControlPlane>,
    id: &str,
    seen: &StoredMigration,
    state: MigrationState,
    why: &str,
    target_is_empty: bool,
    audit: Option<Audit<'_>>,
) -> ControlResult<bool> {
    let record = &seen.value;
    // Over, or too late to be ended.
    if record.state == state || !record.state.may_become(state) {
        return Ok(true);
    }
    let why = Some(why.chars().take(500).collect());
    let next = MigrationRecord { why, ..record.in_state(state, control.now()) };
    let document = document(id, &next, Expect::Revision(seen.revision))?;
    let key = ClaimKey::target(record.instance);
    let held = control.read(move |ledger| ledger.claim(key)).await?;
    let held = held.filter(|held| record.is_in_transit() && held.node == record.target);
    let release = held.map(|held| {
        let confirmed = u8::from(target_is_empty);
        Op::Release(Release {
            request_id: Text::from(format!("migration-{id}-{}-{confirmed}", held.fence)),
            key,
            tenant: None,
            fence: Some(held.fence),
            confirmed: target_is_empty,
            reason: Text::from(state.name()),
        })
    });
    match commit_guarded(control, id, release, document, Vec::new(), audit, None).await? {
        CommitOutcome::Done => {
            control.metrics.migration(state.name());
            Ok(true)
        }
        CommitOutcome::Stale => Ok(false),
        CommitOutcome::Rejected(error) => Err(error),
    }
}

/// Cancels a migration, as long as its instance still runs on the source.
///
/// # Errors
/// When there is none, or it is too late.
pub async fn cancel(
    control: &Arc<ControlPlane>,
    caller: &Caller,
    id: &str,
) -> ControlResult<Migration> {
    let stored = read(control, id)?;
    let record = &stored.value;
    if matches!(record.state, MigrationState::Failed | MigrationState::Cancelled) {
        return Ok(view(id, record));
    }
    if !record.state.may_become(MigrationState::Cancelled) {
        let detail = format!("the instance runs on {} already", record.target);
        return Err(ControlError::conflict("too_late", detail).remedy(format!(
            "move it back: berth migrations start {} --to {}",
            record.instance, record.source
        )));
    }
    let why = format!("{} called it off", caller.name);
    let audit = Some((caller, "migration.cancel", format!("{id} of {}", record.instance)));
    // The target's agent may have started to receive it since its last report.
    end(control, id, &stored, MigrationState::Cancelled, &why, false, audit).await?;
    let stored = read(control, id)?;
    if stored.value.state != MigrationState::Cancelled {
        let detail = format!("it changed meanwhile: it is {}", stored.value.state.name());
        return Err(ControlError::conflict("contention", detail).retry_after(1));
    }
    Ok(view(id, &stored.value))
}

/// A migration as it would start, without storing anything.
#[must_use]
pub fn preview(control: &ControlPlane, claim: &ClaimEntry, to: NodeId, cost: u64) -> Migration {
    view("", &record(control, claim, to, MigrationReason::Asked, cost))
}

/// Checks the node that an instance is to be migrated to, or finds the best one that stays below its
/// watermark.
///
/// # Errors
/// When the instance cannot be migrated at all.
pub async fn find_destination(
    control: &Arc<ControlPlane>,
    instance: InstanceId,
    to: Option<NodeId>,
) -> ControlResult<Destination> {
    let claim = check_movable(control, instance)?;
    if let Some(to) = &to {
        if *to == claim.node {
            return Err(ControlError::conflict(
                "already_there",
                format!("it runs on {to} already"),
            ));
        }
        if !control.catalog.read().nodes.contains_key(to) {
            let value = Some(format!("{:?}", to.as_str()));
            return Err(ControlError::field("to", value, "a node that is registered"));
        }
        plan_target(control, &claim, to).await?;
        return Ok(Destination::Node(to.clone()));
    }
    let mut asked = request_as_charged(&claim);
    asked.excluded_nodes.push(claim.node.clone());
    asked.excluded_nodes.extend(nodes_above_watermark(control, Size::of(&claim.amounts)));
    let now = Timestamp(control.now().as_second());
    asked.id = engine_id(ClaimKey::target(claim.key.instance));
    let placed = control.placer.query_explainer(move |engine| engine.place(&asked, now)).await;
    match placed.ok_or_else(|| ControlError::unavailable("stopping", "the server is stopping"))? {
        Ok(placed) => Ok(Destination::Node(placed.node)),
        Err(PlaceError::Refused(refusal)) => Ok(Destination::NoRoom(refusal)),
        Err(PlaceError::Invalid(invalid)) => Err(ControlError::invalid(invalid.to_string())),
    }
}

/// Nodes that would be above their watermark with so much more.
fn nodes_above_watermark(control: &ControlPlane, more: Size) -> Vec<NodeId> {
    let policy = control.catalog.policy();
    let Some(policy) = policy else { return Vec::new() };
    let catalog = control.catalog.read();
    let full = catalog.nodes.values().filter(|node| {
        let mark = policy.elastic().on(&node.facts).watermark;
        let free = watermark_free(&node.facts, &node.room.used, mark);
        free.cpu < i64::from(more.cpu_milli) || free.memory < i64::from(more.memory_mib)
    });
    full.map(|node| node.facts.id.clone()).collect()
}

#[cfg(test)]
mod tests {
    use berth_engine::{Amounts, NodeFacts, Policy};
    use berth_ledger::{Advance, Backend, Step};
    use tokio::sync::oneshot;

    use super::*;
    use crate::documents::Versioned;
    use crate::placer::{PlaceAnswer, PlaceJob, PlaceRequest};
    use crate::start::ControlOptions;

    /// Two nodes, and an instance that runs on one of them.
    async fn running_instance(control: &ControlPlane) -> (InstanceId, NodeId) {
        for node in ["a", "b"] {
            let mut facts = NodeFacts::new(node, Amounts::new(8000, 8192).with_disk(65_536));
            facts.heartbeat_at = Timestamp(control.now().as_second());
            control.submit(Op::put_node(facts)).await.unwrap();
        }
        let id = InstanceId::from_u128(1);
        let instance = InstanceRequest::new(id, "acme", Amounts::new(1000, 1024));
        let request = PlaceRequest {
            request_id: Text::from("place"),
            tenant: Text::from("acme"),
            instances: vec![Arc::new(instance)],
            lease_s: 60,
            ..PlaceRequest::default()
        };
        let (sender, placed) = oneshot::channel();
        let reply = Box::new(move |answer| drop(sender.send(answer)));
        control.placer.submit(PlaceJob { request, reply });
        let placed = placed.await.unwrap();
        assert!(matches!(placed, PlaceAnswer::Granted(_)), "{placed:?}");
        let key = ClaimKey::primary(id);
        let claim = control.read(move |ledger| ledger.claim(key)).await.unwrap().unwrap();
        for step in [Step::Bind, Step::Activate] {
            let advance = Advance { key, tenant: None, fence: claim.fence, step };
            control.submit(Op::Advance(advance)).await.unwrap();
        }
        control.wait_for_read_your_writes().await;
        (id, claim.node)
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn a_driver_that_comes_late_does_not_end_a_migration_whose_target_is_held() {
        let folder = tempfile::tempdir().unwrap();
        let backend = Backend::Sqlite(folder.path().join("ledger.db"));
        let options = ControlOptions::new(backend, Policy::builtin("balanced").unwrap());
        let started = tokio::task::spawn_blocking(move || ControlPlane::start(options));
        let control = started.await.unwrap().unwrap();
        let (instance, node) = running_instance(&control).await;
        let to = NodeId::new(if node.as_str() == "a" { "b" } else { "a" });
        let reason = MigrationReason::Asked;
        let request = MigrationRequest { instance, to, reason, cost: 1, decided_after: None };
        let started = start(&control, &Caller::local("test"), &request).await.unwrap();
        assert_eq!(started.state, MigrationState::TargetHeld);

        // The driver read the migration before its target was held.
        let held = control.moves.migrations.get(&started.id).unwrap();
        let value = MigrationRecord { state: MigrationState::Planned, ..held.value.clone() };
        let seen = Arc::new(Versioned { value, revision: held.revision - 1 });
        hold_target(&control, &started.id, &seen).await.unwrap();
        let is_failed = fail(&control, &started.id, &seen, "too late", true).await.unwrap();
        assert!(!is_failed);
        assert_eq!(control.moves.migrations.get(&started.id), Some(held));
        control.lifecycle.stop();
    }
}
