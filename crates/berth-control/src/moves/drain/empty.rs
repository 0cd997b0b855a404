//! The loop that empties nodes: instances that no workload keeps and that have no volumes go to
//! other nodes, a few at a time; those that cannot go by the deadline are told to stop.
//!
//! Any server may run it, and several at once: a move names the fence of what it moves, so whoever
//! comes second is refused and has done nothing. No node that is being emptied takes instances, so
//! nothing is sent round in circles however many are.

use std::sync::Arc;
use std::time::Duration;

use berth_engine::{InstanceId, InstanceRequest, NodeId};
use berth_ledger::{ClaimKey, ClaimState, LedgerError, Op, Release, Role, Text};
use jiff::Timestamp;

use super::begin::{Wish, forget, write};
use super::progress::{is_draining, is_kept_by_workload};
use super::refused::{RefusedMove, ways_out};
use crate::caller::Caller;
use crate::catalog::{CatalogState, ClaimEntry};
use crate::control_plane::ControlPlane;
use crate::error::{ControlError, describe_guard};
use crate::placer::{Actor, MoveAnswer, MoveRequest};

/// How long nothing happens before nodes are looked at all the same.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// The least time between two passes.
const PAUSE: Duration = Duration::from_millis(100);

/// Moves that are made at once: what is moved is down for as long as it takes to start.
const AT_ONCE: usize = 16;

/// Who moves, in the audit log.
const ACTOR: &str = "drain";

/// Empties nodes until the server stops.
pub(crate) async fn keep_emptying(control: Arc<ControlPlane>) {
    let mut changes = control.drains.records.changes();
    let mut room = control.catalog.room();
    loop {
        tokio::select! {
            () = control.stopping.cancelled() => return,
            _ = changes.changed() => {}
            _ = room.changed() => {}
            () = tokio::time::sleep(LOOK_EVERY) => {}
        }
        let made = *room.borrow_and_update();
        control.settled().await;
        if let Err(error) = pass(&control, made).await {
            let why = error.detail();
            tracing::warn!(why, "nodes could not be emptied");
        }
        control.metrics.loop_ran("drains");
        tokio::time::sleep(PAUSE).await;
    }
}

/// An instance that is to leave.
#[derive(Debug)]
struct Leaver {
    request: Arc<InstanceRequest>,
    node: NodeId,
    fence: i64,
    /// When it was last refused; absent: never.
    refused_at: Option<Timestamp>,
}

impl Leaver {
    fn id(&self) -> InstanceId {
        self.request.id
    }
}

/// What is to be done in one pass.
#[derive(Debug, Default)]
struct Due {
    /// Nodes whose drain has no document.
    unwritten: Vec<NodeId>,
    /// Documents of drains that have ended.
    ended: Vec<(NodeId, i64)>,
    moves: Vec<Leaver>,
    stops: Vec<Leaver>,
}

async fn pass(control: &Arc<ControlPlane>, room: u64) -> Result<(), ControlError> {
    let due = due(control, room);
    for node in &due.unwritten {
        write(control, node, &Wish::default(), None).await?;
    }
    for (node, revision) in &due.ended {
        forget(control, node, *revision).await?;
    }
    for leaver in &due.stops {
        stop(control, leaver).await?;
    }
    let moves = due.moves.iter().map(|leaver| relocate(control, leaver, room));
    futures_util::future::join_all(moves).await;
    Ok(())
}

fn due(control: &ControlPlane, room: u64) -> Due {
    let (books, drains, now) = (control.catalog.books(), &control.drains, control.now());
    let mut due = Due::default();
    for node in drains.nodes() {
        let ended = !books.nodes.get(&node).is_some_and(is_draining);
        if let Some(known) = drains.get(&node).filter(|_| ended) {
            let revision = known.revision;
            due.ended.push((node, revision));
        }
    }
    for (node, entry) in books.nodes.iter().filter(|(_, entry)| is_draining(entry)) {
        let Some(known) = drains.get(node) else {
            due.unwritten.push(node.clone());
            continue;
        };
        let is_late = known.value.deadline.is_some_and(|end| end <= now);
        let claims = entry.claims.iter().filter_map(|key| books.claims.get(key));
        // What its agents carry over is not stopped under their hands.
        let carried =
            |claim: &ClaimEntry| control.migrations.target_of(claim.key.instance).is_some();
        for claim in claims.filter(|claim| may_move(&books, claim) && !carried(claim)) {
            let refused = drains.refused.get(claim.key.instance, claim.fence);
            match refused {
                // One that was never tried is tried first, however late it is.
                Some(refused) if is_late => due.stops.push(leaver(claim, Some(refused.at))),
                Some(refused) if !refused.is_due(room, now) => {}
                refused => due.moves.push(leaver(claim, refused.map(|refused| refused.at))),
            }
        }
    }
    let leaves = |instance| {
        let claim = books.claims.get(&ClaimKey::primary(instance));
        claim.is_some_and(|claim| books.nodes.get(&claim.node).is_some_and(is_draining))
    };
    drains.refused.keep(leaves);
    // Those never tried come first, then those that waited longest; an instance that fits nowhere
    // must not keep the others from their turn.
    due.moves.sort_by_key(|leaver| (leaver.refused_at, leaver.id()));
    due.moves.truncate(AT_ONCE);
    due
}

/// Whether a claim is moved here.
fn may_move(books: &CatalogState, claim: &ClaimEntry) -> bool {
    claim.key.role == Role::Primary
        && claim.state != ClaimState::Releasing
        && claim.request.volumes.is_empty()
        && !is_kept_by_workload(books, claim)
}

fn leaver(claim: &ClaimEntry, refused_at: Option<Timestamp>) -> Leaver {
    let mut request = InstanceRequest::clone(&claim.request);
    request.id = claim.key.instance;
    request.name = claim.name.as_deref().map(str::to_owned);
    request.resources = claim.amounts;
    // It moves as it is, also out of bounds that were changed since.
    request.elastic = None;
    let (node, fence) = (claim.node.clone(), claim.fence);
    Leaver { request: Arc::new(request), node, fence, refused_at }
}

/// Moves one, or remembers why not.
async fn relocate(control: &ControlPlane, leaver: &Leaver, room: u64) {
    let (instance, fence) = (leaver.id(), leaver.fence);
    let by = Actor { name: Text::from(ACTOR), origin: Text::from("this process") };
    let request = MoveRequest {
        request_id: Text::from(format!("move-{instance}-{fence}")),
        instance: Arc::clone(&leaver.request),
        fence,
        by,
    };
    let refused = |code: &str, message: String, unblock: Vec<String>| {
        let (code, at) = (code.to_owned(), control.now());
        control
            .drains
            .refused
            .put(instance, RefusedMove { fence, code, message, unblock, at, room });
    };
    match control.placer.relocate(request).await {
        MoveAnswer::Moved(standing) => {
            control.drains.refused.remove(instance);
            let (from, to) = (&leaver.node, &standing.node);
            tracing::debug!(%instance, %from, %to, "an instance was moved");
        }
        MoveAnswer::NoRoom(refusal) => {
            refused(&refusal.code, refusal.headline(), ways_out(&refusal));
        }
        MoveAnswer::Contended(guard) => {
            let again = "nothing: it is tried again".to_owned();
            refused(guard.code(), describe_guard(&guard), vec![again]);
        }
        MoveAnswer::Rejected(berth_ledger::ClaimRejection::Refused(by)) => {
            let problem = ControlError::from(&by).into_problem();
            refused(by.code(), problem.detail, problem.remedy.into_iter().collect());
        }
        MoveAnswer::Invalid(invalid) => {
            refused("invalid_request", invalid.to_string(), Vec::new());
        }
        // It is not what it was: the catalogue will say what it is.
        MoveAnswer::Rejected(_) => control.drains.refused.remove(instance),
        MoveAnswer::Unknown(LedgerError::Closed) => {}
        MoveAnswer::Unknown(error) => tracing::warn!(%error, %instance, "a move is not known"),
    }
}

/// The time is over: one that could not be moved is told to stop.
async fn stop(control: &ControlPlane, leaver: &Leaver) -> Result<(), ControlError> {
    let (instance, fence) = (leaver.id(), leaver.fence);
    let release = Release {
        request_id: Text::from(format!("drain-deadline-{instance}-{fence}")),
        key: ClaimKey::primary(instance),
        owner: None,
        fence: Some(fence),
        confirmed: false,
        reason: Text::from("drain_deadline"),
    };
    let subject = format!("{instance} on {}", leaver.node);
    let caller = Caller::local(ACTOR);
    // A claim that is not what it was is looked at in the next pass.
    let _ = control.step(&caller, "claim.release", subject, Op::Release(release)).await?;
    tracing::warn!(%instance, node = %leaver.node, "the drain's deadline has passed: it is stopped");
    Ok(())
}
