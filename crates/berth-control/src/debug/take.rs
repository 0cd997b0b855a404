//! Taking a dump from a running server, off the threads that decide and answer.
//!
//! The ledger is read as of one moment, the copies before and after it. A node that has the same
//! claims after as before, each of them untouched, was not changed meanwhile, so all three must agree
//! on it; the others are marked. Equal sums would not do: one instance may have gone and another of
//! the same size come. Copies are looked at in parts, so no reader waits long for a lock.

use std::sync::Arc;
use std::time::Duration;

use berth_engine::elastic::Account;
use berth_engine::{NodeId, NodeState, Policy, Used};
use jiff::Timestamp;
use rustc_hash::FxHashMap;

use super::dump::{CatalogueNode, Copies, Cursors, Dump, InFlight, SCHEMA};
use super::rows::Rows;
use crate::catalog::{ClaimEntry, NodeEntry};
use crate::control_plane::ControlPlane;
use crate::elastic::node_account;
use crate::error::{ControlError, ControlResult};

/// Nodes that are looked at under one lock, and between two plans.
const PART: usize = 256;

/// How often it is asked whether the copies have come as far as the rows.
const TRIES: u32 = 1000;

/// How long it is waited each time.
const TICK: Duration = Duration::from_millis(10);

/// What copies say of one node.
#[derive(Clone, Debug, Default)]
struct NodeObservation {
    catalogue: Option<CatalogueNode>,
    /// Its claims in the catalogue. While they are kept here, each change of one makes a new entry.
    claims: Vec<Arc<ClaimEntry>>,
    account: Option<Account>,
    replica: Option<Used>,
    /// Whether plans in flight are on it.
    planned: bool,
}

impl NodeObservation {
    /// Whether nothing of it changed since an earlier look.
    fn unchanged_since(&self, before: &Self) -> bool {
        let same_entries = self.claims.len() == before.claims.len()
            && self.claims.iter().zip(&before.claims).all(|(now, then)| Arc::ptr_eq(now, then));
        same_entries
            && self.catalogue == before.catalogue
            && self.account == before.account
            && self.replica == before.replica
            && self.planned == before.planned
    }
}

/// Takes a dump.
///
/// # Errors
/// When the server is stopping or the ledger cannot be read.
pub async fn take(control: &ControlPlane) -> ControlResult<Dump> {
    wait_until_settled(control).await;
    let at = control.now();
    let before = look(control, at).await?;
    let rows = control.read_at_length(Rows::read).await?;
    let is_observed = wait_until_observed(control).await;
    let cursor = reach(control, rows.cursor).await?;
    let after = look(control, at).await?;
    let in_flight = in_flight(control).await?;
    let cursors = Cursors { ledger: rows.cursor, replica: cursor };
    let reached = is_observed && cursor >= rows.cursor;
    let put = move || put_together(rows, &before, after, at, reached, cursors, in_flight);
    tokio::task::spawn_blocking(put).await.map_err(|_| stopping())
}

/// Waits until records of drains and of volume moves agree with nodes and volumes, for a while. They are
/// not written in one transaction; what a server left half done, the loops complete.
async fn wait_until_settled(control: &ControlPlane) {
    for _ in 0..TRIES {
        let is_settled = {
            let drains = control.moves.drains.nodes();
            let catalog = control.catalog.read();
            let is_draining = |entry: &NodeEntry| entry.facts.state == NodeState::Draining;
            let draining = catalog.nodes.values().filter(|entry| is_draining(entry)).count();
            let moves = control.moves.volume_moves.records.read();
            let mut open = moves.documents.iter().filter(|(_, stored)| stored.value.is_open());
            draining == drains.len()
                && drains.iter().all(|node| catalog.nodes.get(node).is_some_and(is_draining))
                && open.all(|(volume, _)| catalog.volumes.contains_key(volume))
        };
        if is_settled {
            return;
        }
        tokio::time::sleep(TICK).await;
    }
}

fn stopping() -> ControlError {
    ControlError::unavailable("stopping", "the server is stopping")
}

/// Waits until this server has been told of all its own commits that can be in the rows, for a while.
/// A commit is durable, and read by others, before the copies are told of it, and the cursor does not
/// show that: it passes over what this server wrote itself. Returns whether it has been told.
async fn wait_until_observed(control: &ControlPlane) -> bool {
    let position = control.ledger.writer_position();
    for _ in 0..TRIES {
        if control.ledger.is_observed(&position) {
            return true;
        }
        tokio::time::sleep(TICK).await;
    }
    false
}

/// Waits until the planner has taken in all that is in the rows, for a while. Returns how far it is.
async fn reach(control: &ControlPlane, cursor: i64) -> ControlResult<i64> {
    let mut reached = 0;
    for _ in 0..TRIES {
        reached =
            control.placer.query_replica(|replica| replica.cursor).await.ok_or_else(stopping)?;
        if reached >= cursor {
            break;
        }
        tokio::time::sleep(TICK).await;
    }
    Ok(reached)
}

/// What the copies say of every node.
async fn look(
    control: &ControlPlane,
    at: Timestamp,
) -> ControlResult<FxHashMap<NodeId, NodeObservation>> {
    control.wait_for_read_your_writes().await;
    let policy = control.catalog.policy();
    let settings = policy.as_ref().map(|policy| policy.elastic().clone()).unwrap_or_default();
    let nodes: Vec<NodeId> = control.catalog.read().nodes.keys().cloned().collect();
    let mut seen = FxHashMap::default();
    for part in nodes.chunks(PART) {
        let ids = part.to_vec();
        let looked = control.placer.query_replica(move |replica| replica.use_of(&ids)).await;
        let mirrored = looked.ok_or_else(stopping)?;
        let catalog = control.catalog.read();
        for (node, (replica, planned)) in part.iter().zip(mirrored) {
            let entry = catalog.nodes.get(node);
            let keys = entry.into_iter().flat_map(|entry| &entry.claims);
            let claims: Vec<_> = keys.filter_map(|key| catalog.claims.get(key).cloned()).collect();
            let catalogue = entry.map(|entry| {
                let mut sum = Used::default();
                for claim in &claims {
                    sum.charge(&claim.amounts, claim.request.cpu_capped, 1);
                }
                CatalogueNode { generation: entry.generation, used: entry.room.used, claims: sum }
            });
            let now = at.as_second();
            let of =
                |entry| node_account(&catalog, &control.moves.migrations, &settings, entry, now);
            let seen_here =
                NodeObservation { catalogue, claims, account: entry.map(of), replica, planned };
            seen.insert(node.clone(), seen_here);
        }
    }
    Ok(seen)
}

async fn in_flight(control: &ControlPlane) -> ControlResult<InFlight> {
    let looked =
        control.placer.query_replica(|replica| (replica.in_flight(), replica.remembered())).await;
    let (planned, remembered) = looked.ok_or_else(stopping)?;
    let open =
        control.moves.migrations.all().iter().filter(|(_, known)| known.value.is_open()).count();
    Ok(InFlight {
        planned,
        remembered,
        waiting: control.queue.waiting(),
        migrations: open,
        drains: control.moves.drains.nodes().len(),
        degraded: control.degraded.count(),
    })
}

fn put_together(
    mut rows: Rows,
    before: &FxHashMap<NodeId, NodeObservation>,
    mut after: FxHashMap<NodeId, NodeObservation>,
    at: Timestamp,
    reached: bool,
    cursors: Cursors,
    in_flight: InFlight,
) -> Dump {
    let policy = rows.policy.as_ref().and_then(|policy| {
        // One that cannot be read is what a check will say.
        Policy::from_stored(&policy.body.to_string()).ok()
    });
    let settings = policy.map(|policy| policy.elastic().clone()).unwrap_or_default();
    for (id, node) in &mut rows.nodes {
        let on = settings.on(&node.facts);
        (node.compute_unit, node.watermark) = (on.compute_unit, on.watermark);
        let Some(seen) = after.remove(id) else { continue };
        let same = before.get(id).is_some_and(|before| seen.unchanged_since(before));
        let as_stored = seen.catalogue.is_some_and(|copy| copy.generation == node.generation);
        let steady = reached && same && as_stored && !seen.planned;
        node.copies = Copies { steady, catalogue: seen.catalogue, replica: seen.replica };
        node.account = seen.account;
    }
    Dump {
        berth_dump: SCHEMA,
        berth_version: env!("CARGO_PKG_VERSION").to_owned(),
        at,
        cursors,
        in_flight,
        policy: rows.policy,
        nodes: rows.nodes.into_values().collect(),
        claims: rows.claims,
        migrations: rows.migrations,
        drains: rows.drains,
        volume_moves: rows.volume_moves,
        workloads: rows.workloads,
        groups: rows.groups.into_values().collect(),
        volumes: rows.volumes,
        volume_marks: rows.volume_marks,
        quotas: rows.quotas,
        slots: Some(rows.slots),
        pool_values: Some(rows.pool_values),
        tickets: Some(rows.tickets),
        environments: rows.environments,
        tenant_environments: rows.tenant_environments,
    }
}

#[cfg(test)]
mod tests {
    use berth_engine::{Amounts, InstanceId, InstanceRequest};
    use berth_ledger::{ClaimKey, ClaimState, Micros};

    use super::*;

    fn claim(number: u128) -> Arc<ClaimEntry> {
        let id = InstanceId::from_u128(number);
        Arc::new(ClaimEntry {
            key: ClaimKey::primary(id),
            node: NodeId::new("n1"),
            state: ClaimState::Held,
            fence: 1,
            lease_until: None,
            amounts: Amounts::default(),
            name: None,
            request: Arc::new(InstanceRequest::new(id, "acme", Amounts::default())),
            values: Vec::new(),
            created_at: Micros::default(),
            slot: None,
            permit: None,
        })
    }

    #[test]
    fn a_node_is_not_steady_when_one_instance_went_and_another_of_its_size_came() {
        let stayed = claim(1);
        let seen = |claims: &[&Arc<ClaimEntry>]| NodeObservation {
            claims: claims.iter().map(|claim| Arc::clone(claim)).collect(),
            ..NodeObservation::default()
        };
        assert!(seen(&[&stayed]).unchanged_since(&seen(&[&stayed])));
        assert!(!seen(&[&claim(2)]).unchanged_since(&seen(&[&stayed])));
    }

    #[test]
    fn a_node_is_not_steady_when_an_instance_was_resized_and_resized_back() {
        let mut entry = claim(1);
        let before =
            NodeObservation { claims: vec![Arc::clone(&entry)], ..NodeObservation::default() };
        let amounts = entry.amounts;
        for cpu_milli in [500, amounts.cpu_milli] {
            Arc::make_mut(&mut entry).amounts.cpu_milli = cpu_milli;
        }
        let after = NodeObservation { claims: vec![entry], ..NodeObservation::default() };
        assert!(!after.unchanged_since(&before));
    }
}
