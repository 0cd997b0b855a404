//! Deciding a migration: where to, that it may be, and holding the place. And calling it off.

use std::sync::Arc;

use berth_api::{Migration, MigrationReason, MigrationState};
use berth_engine::elastic::{Size, watermark_free};
use berth_engine::{InstanceId, InstanceRequest, NodeId, PlaceError, Refusal, Timestamp};
use berth_ledger::{
    ClaimKey, ClaimState, DocumentWrite, Expect, Hold, Op, PlannedClaim, Release, Text,
};
use uuid::Uuid;

use super::record::{MigrationRecord, Stepped, step, view, write};
use super::{GUARD, KIND};
use crate::caller::Caller;
use crate::catalog::ClaimEntry;
use crate::control_plane::ControlPlane;
use crate::documents::Versioned;
use crate::error::{ControlError, ControlResult};
use crate::fleet_replica::engine_id;

/// A migration that is to be decided.
#[derive(Clone, Debug)]
pub struct Begin {
    /// The instance.
    pub instance: InstanceId,
    /// Where to.
    pub to: NodeId,
    /// Why.
    pub reason: MigrationReason,
    /// What it costs.
    pub cost: u64,
    /// The decision must have seen all decisions up to this one; absent: it need not.
    pub guard: Option<Option<i64>>,
}

/// Where an instance could go.
#[derive(Debug)]
pub enum Destination {
    /// There.
    Node(NodeId),
    /// Nowhere.
    Nowhere(Box<Refusal>),
}

/// Decides a migration and holds its place. The place is held with what the instance has by then.
///
/// # Errors
/// When it cannot be moved; the problem says why.
pub async fn begin(
    control: &Arc<ControlPlane>,
    caller: &Caller,
    asked: &Begin,
) -> ControlResult<Migration> {
    let claim = movable(control, asked.instance)?;
    let now = control.now();
    let record = MigrationRecord {
        instance: asked.instance,
        owner: claim.request.owner.clone(),
        source: claim.node.clone(),
        target: asked.to.clone(),
        state: MigrationState::Planned,
        reason: asked.reason,
        cost: asked.cost,
        frees: Size::of(&claim.amounts),
        fence: claim.fence,
        copied_permille: None,
        why: None,
        since: now,
        changed_at: now,
    };
    let id = Uuid::now_v7().to_string();
    let subject = format!("{} from {} to {}", asked.instance, record.source, record.target);
    let expect = match asked.guard {
        Some(Some(seen)) => Expect::Revision(seen),
        Some(None) => Expect::Absent,
        None => Expect::Any,
    };
    let DocumentWrite { kind, id: name, body, .. } = write(&id, &record, Expect::Absent)?;
    let op = Op::PutDocument { kind, id: name, body, expect: Expect::Absent };
    let guard = DocumentWrite {
        kind: Text::from(KIND),
        id: Text::from(GUARD),
        body: format!("{{\"last\":\"{id}\"}}"),
        expect,
    };
    let by = Some((caller, "migration.begin", subject));
    match step(control, &id, op, vec![guard], by).await? {
        Stepped::Done => {}
        Stepped::Stale => {
            let detail = "another server decided a migration meanwhile";
            return Err(ControlError::conflict("contention", detail).retry_after(1));
        }
        Stepped::Rejected(error) => return Err(error),
    }
    hold(control, &id).await?;
    let known = control.migrations.get(&id);
    let known = known.ok_or_else(|| ControlError::not_found("migration", &id))?;
    Ok(view(&id, &known.value))
}

/// An instance that may be moved.
fn movable(control: &ControlPlane, instance: InstanceId) -> ControlResult<Arc<ClaimEntry>> {
    let claim = control.catalog.books().claims.get(&ClaimKey::primary(instance)).cloned();
    let claim = claim.ok_or_else(|| ControlError::not_found("instance", &instance.to_string()))?;
    if claim.state != ClaimState::Active {
        let detail = "only an instance that runs can be moved while it runs".to_owned();
        return Err(ControlError::conflict("wrong_state", detail));
    }
    if let Some((id, known)) = control.migrations.open_of(instance) {
        let detail = format!("it is being moved to {} already: migration {id}", known.value.target);
        return Err(ControlError::conflict("migrating", detail)
            .remedy(format!("wait for it, or call it off: berth migrations cancel {id}")));
    }
    if let Some(node) = left_over(control, instance) {
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
pub(crate) fn left_over(control: &ControlPlane, instance: InstanceId) -> Option<NodeId> {
    let books = control.catalog.books();
    let keys = [ClaimKey::target(instance), ClaimKey::source(instance)];
    keys.iter().find_map(|key| books.claims.get(key)).map(|claim| claim.node.clone())
}

/// Holds the place of a migration that was decided, or notes why it cannot be held.
pub(super) async fn hold(control: &Arc<ControlPlane>, id: &str) -> ControlResult<()> {
    let Some(known) = control.migrations.get(id) else { return Ok(()) };
    hold_place(control, id, &known).await
}

/// Holds the place of a migration as it was read. Several may try at once: the request that decided
/// it, and the loop of every server. One succeeds, and its place must not look to the others as if
/// it were taken by somebody else.
pub(super) async fn hold_place(
    control: &Arc<ControlPlane>,
    id: &str,
    known: &Versioned<MigrationRecord>,
) -> ControlResult<()> {
    let Versioned { value: record, revision } = known;
    if record.state != MigrationState::Planned {
        return Ok(());
    }
    let claim = control.catalog.books().claims.get(&ClaimKey::primary(record.instance)).cloned();
    let planned = match claim {
        Some(claim) => planned(control, &claim, &record.target).await,
        None => Err(ControlError::not_found("instance", &record.instance.to_string())),
    };
    let planned = match planned {
        Ok(planned) => planned,
        Err(error) => return fail(control, id, Some(*revision), error.detail(), true).await,
    };
    let mut next = record.clone();
    next.state = MigrationState::TargetHeld;
    next.changed_at = control.now();
    let hold = Hold { fence: record.fence, to: planned };
    let document = write(id, &next, Expect::Revision(*revision))?;
    match step(control, id, Op::Hold(Box::new(hold)), vec![document], None).await? {
        Stepped::Done | Stepped::Stale => Ok(()),
        Stepped::Rejected(error) => fail(control, id, Some(*revision), error.detail(), true).await,
    }
}

/// An instance as a request, of the size that it is charged. It moves as it is: that may be out of
/// bounds that were changed since, or less than it uses where its class may be oversold.
fn as_it_is(claim: &ClaimEntry) -> InstanceRequest {
    InstanceRequest {
        id: claim.key.instance,
        name: claim.name.as_deref().map(str::to_owned),
        resources: claim.amounts,
        elastic: None,
        ..InstanceRequest::clone(&claim.request)
    }
}

/// The claim of a place on a node, judged by the code that places.
async fn planned(
    control: &ControlPlane,
    claim: &ClaimEntry,
    to: &NodeId,
) -> ControlResult<PlannedClaim> {
    let request = Arc::new(as_it_is(claim));
    let (to, now) = (to.clone(), Timestamp(control.now().as_second()));
    let second = engine_id(ClaimKey::target(claim.key.instance));
    let looked = control.placer.look(move |replica| {
        // It is in both places for a while, as the ledger counts it, so the second goes by another id.
        let asked = InstanceRequest { id: second, ..InstanceRequest::clone(&request) };
        if let Err(why) = replica.engine().check(&asked, &to, now) {
            return Err(ControlError::conflict(
                "no_room",
                format!("node {to} cannot take it: {why}"),
            ));
        }
        let seen = replica.seen(&to);
        let neighbours = replica.neighbours(&request, &to);
        let policy = replica.engine().policy().clone();
        Ok(PlannedClaim { neighbours, ..PlannedClaim::new(request, &policy, to, seen) })
    });
    let stopping = || ControlError::unavailable("stopping", "the server is stopping");
    looked.await.ok_or_else(stopping)?
}

/// Ends a migration that cannot go on; its instance runs where it was. The place that was held is
/// freed: at once where nothing can be there yet, else when the target's agent says so.
///
/// With `judged`, the revision by which the caller found that it cannot go on: one that went on
/// since is left alone, for the reason may no longer hold.
pub(super) async fn fail(
    control: &Arc<ControlPlane>,
    id: &str,
    judged: Option<i64>,
    why: &str,
    nothing_there: bool,
) -> ControlResult<()> {
    end(control, id, judged, (MigrationState::Failed, why), nothing_there, None).await
}

async fn end(
    control: &Arc<ControlPlane>,
    id: &str,
    judged: Option<i64>,
    (state, why): (MigrationState, &str),
    nothing_there: bool,
    by: Option<(&Caller, &'static str, String)>,
) -> ControlResult<()> {
    let Some(known) = control.migrations.get(id) else { return Ok(()) };
    let Versioned { value: record, revision } = &*known;
    if judged.is_some_and(|judged| judged != *revision) {
        return Ok(());
    }
    if !matches!(record.state, MigrationState::Planned) && !record.is_on_its_way() {
        return Ok(());
    }
    let next = MigrationRecord {
        state,
        why: Some(why.chars().take(500).collect()),
        changed_at: control.now(),
        ..record.clone()
    };
    let document = write(id, &next, Expect::Revision(*revision))?;
    let key = ClaimKey::target(record.instance);
    let held = control.read(move |ledger| ledger.claim(key)).await?;
    let held = held.filter(|held| record.is_on_its_way() && held.node == record.target);
    let op = match held {
        Some(held) => Op::Release(Release {
            request_id: Text::from(format!(
                "migration-{id}-{}-{}",
                held.fence,
                u8::from(nothing_there)
            )),
            key,
            owner: None,
            fence: Some(held.fence),
            confirmed: nothing_there,
            reason: Text::from(state.name()),
        }),
        None => {
            let DocumentWrite { kind, id, body, expect } = document.clone();
            Op::PutDocument { kind, id, body, expect }
        }
    };
    let documents = if matches!(op, Op::PutDocument { .. }) { Vec::new() } else { vec![document] };
    match step(control, id, op, documents, by).await? {
        Stepped::Done => control.metrics.migration(state.name()),
        // Somebody else took it further; the next look tells.
        Stepped::Stale => {}
        Stepped::Rejected(error) => return Err(error),
    }
    Ok(())
}

/// Calls a migration off, while its instance still runs on the source.
///
/// # Errors
/// When there is none, or it is too late.
pub async fn cancel(
    control: &Arc<ControlPlane>,
    caller: &Caller,
    id: &str,
) -> ControlResult<Migration> {
    let known = control.migrations.get(id);
    let known = known.ok_or_else(|| ControlError::not_found("migration", id))?;
    let record = &known.value;
    match record.state {
        MigrationState::Switched | MigrationState::Done => {
            let detail = format!("the instance runs on {} already", record.target);
            return Err(ControlError::conflict("too_late", detail).remedy(format!(
                "move it back: berth migrations start {} --to {}",
                record.instance, record.source
            )));
        }
        MigrationState::Failed | MigrationState::Cancelled => return Ok(view(id, record)),
        MigrationState::Planned | MigrationState::TargetHeld | MigrationState::Copying => {}
    }
    let why = format!("{} called it off", caller.name);
    let by = Some((caller, "migration.cancel", format!("{id} of {}", record.instance)));
    // An agent may have begun to receive it since it was last heard.
    end(control, id, None, (MigrationState::Cancelled, &why), false, by).await?;
    let known = control.migrations.get(id);
    let known = known.ok_or_else(|| ControlError::not_found("migration", id))?;
    if known.value.state != MigrationState::Cancelled {
        let detail = format!("it went on meanwhile: it is {}", known.value.state.name());
        return Err(ControlError::conflict("contention", detail).retry_after(1));
    }
    Ok(view(id, &known.value))
}

/// What a migration would be, of which nothing is stored.
#[must_use]
pub fn preview(control: &ControlPlane, claim: &ClaimEntry, to: NodeId, cost: u64) -> Migration {
    let now = control.now();
    let record = MigrationRecord {
        instance: claim.key.instance,
        owner: claim.request.owner.clone(),
        source: claim.node.clone(),
        target: to,
        state: MigrationState::Planned,
        reason: MigrationReason::Asked,
        cost,
        frees: Size::of(&claim.amounts),
        fence: claim.fence,
        copied_permille: None,
        why: None,
        since: now,
        changed_at: now,
    };
    view("", &record)
}

/// Where an instance would best go, leaving every node below its watermark that is.
///
/// # Errors
/// When it cannot be moved at all.
pub async fn destination(
    control: &Arc<ControlPlane>,
    instance: InstanceId,
    to: Option<NodeId>,
) -> ControlResult<Destination> {
    let claim = movable(control, instance)?;
    if let Some(to) = &to {
        if *to == claim.node {
            return Err(ControlError::conflict(
                "already_there",
                format!("it runs on {to} already"),
            ));
        }
        if !control.catalog.books().nodes.contains_key(to) {
            let value = Some(format!("{:?}", to.as_str()));
            return Err(ControlError::field("to", value, "a node that is registered"));
        }
        planned(control, &claim, to).await?;
        return Ok(Destination::Node(to.clone()));
    }
    let mut asked = as_it_is(&claim);
    asked.excluded_nodes.push(claim.node.clone());
    asked.excluded_nodes.extend(too_full(control, Size::of(&claim.amounts)));
    let now = Timestamp(control.now().as_second());
    asked.id = engine_id(ClaimKey::target(claim.key.instance));
    let looked = control.placer.look(move |replica| replica.engine().place(&asked, now));
    let placed = looked.await;
    match placed.ok_or_else(|| ControlError::unavailable("stopping", "the server is stopping"))? {
        Ok(placed) => Ok(Destination::Node(placed.node)),
        Err(PlaceError::Refused(refusal)) => Ok(Destination::Nowhere(refusal)),
        Err(PlaceError::Invalid(invalid)) => Err(ControlError::invalid(invalid.to_string())),
    }
}

/// Nodes that would pass their watermark with so much more.
fn too_full(control: &ControlPlane, more: Size) -> Vec<NodeId> {
    let policy = control.catalog.policy();
    let Some(policy) = policy else { return Vec::new() };
    let books = control.catalog.books();
    let full = books.nodes.values().filter(|node| {
        let mark = policy.elastic().on(&node.facts).watermark;
        let free = watermark_free(&node.facts, &node.room.used, mark);
        free.cpu < i64::from(more.cpu_milli) || free.memory < i64::from(more.memory_mib)
    });
    full.map(|node| node.facts.id.clone()).collect()
}
