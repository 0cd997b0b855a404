//! Taking a dump from a running server, off the threads that decide and answer.
//!
//! The ledger is read as of one moment, the copies before and after it. A node of which neither copy
//! says anything else after than before was not changed meanwhile, so all three must agree on it;
//! the others are marked. Copies are looked at in parts, so nobody waits long for a lock.

use std::time::Duration;

use berth_engine::elastic::Account;
use berth_engine::{NodeId, Policy, Used};
use jiff::Timestamp;
use rustc_hash::FxHashMap;

use super::dump::{CatalogueNode, Copies, Cursors, Dump, InFlight, SCHEMA};
use super::rows::Rows;
use crate::control_plane::ControlPlane;
use crate::elastic::account;
use crate::error::{ControlError, ControlResult};

/// Nodes that are looked at under one lock, and between two plans.
const PART: usize = 256;

/// How often it is asked whether the planner has come as far as the rows.
const TRIES: u32 = 60;

/// How long it is waited each time.
const TICK: Duration = Duration::from_millis(50);

/// What copies say of one node.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
struct Seen {
    catalogue: Option<CatalogueNode>,
    account: Option<Account>,
    replica: Option<Used>,
    /// Whether plans in flight are on it.
    planned: bool,
}

/// Takes a dump.
///
/// # Errors
/// When the server is stopping or the ledger cannot be read.
pub async fn take(control: &ControlPlane) -> ControlResult<Dump> {
    let at = control.now();
    let before = look(control, at).await?;
    let rows = control.read(Rows::read).await?;
    let cursor = reach(control, rows.cursor).await?;
    let after = look(control, at).await?;
    let in_flight = in_flight(control).await?;
    let cursors = Cursors { ledger: rows.cursor, replica: cursor };
    let put = move || put_together(rows, &before, after, at, cursors, in_flight);
    tokio::task::spawn_blocking(put).await.map_err(|_| stopping())
}

fn stopping() -> ControlError {
    ControlError::unavailable("stopping", "the server is stopping")
}

/// Waits until the planner has taken in all that is in the rows, for a while. Returns how far it is.
async fn reach(control: &ControlPlane, cursor: i64) -> ControlResult<i64> {
    let mut reached = 0;
    for _ in 0..TRIES {
        reached = control.placer.look(|replica| replica.cursor).await.ok_or_else(stopping)?;
        if reached >= cursor {
            break;
        }
        tokio::time::sleep(TICK).await;
    }
    Ok(reached)
}

/// What the copies say of every node.
async fn look(control: &ControlPlane, at: Timestamp) -> ControlResult<FxHashMap<NodeId, Seen>> {
    control.wait_for_read_your_writes().await;
    let policy = control.catalog.policy();
    let settings = policy.as_ref().map(|policy| policy.elastic().clone()).unwrap_or_default();
    let nodes: Vec<NodeId> = control.catalog.read().nodes.keys().cloned().collect();
    let mut seen = FxHashMap::default();
    for part in nodes.chunks(PART) {
        let ids = part.to_vec();
        let looked = control.placer.look(move |replica| replica.use_of(&ids)).await;
        let mirrored = looked.ok_or_else(stopping)?;
        let catalog = control.catalog.read();
        for (node, (replica, planned)) in part.iter().zip(mirrored) {
            let entry = catalog.nodes.get(node);
            let catalogue = entry.map(|entry| {
                let mut claims = Used::default();
                for claim in entry.claims.iter().filter_map(|key| catalog.claims.get(key)) {
                    claims.charge(&claim.amounts, claim.request.cpu_capped, 1);
                }
                CatalogueNode { generation: entry.generation, used: entry.room.used, claims }
            });
            let now = at.as_second();
            let of = |entry| account(&catalog, &control.migrations, &settings, entry, now);
            let seen_here = Seen { catalogue, account: entry.map(of), replica, planned };
            seen.insert(node.clone(), seen_here);
        }
    }
    Ok(seen)
}

async fn in_flight(control: &ControlPlane) -> ControlResult<InFlight> {
    let looked = control.placer.look(|replica| (replica.in_flight(), replica.remembered())).await;
    let (planned, remembered) = looked.ok_or_else(stopping)?;
    let open = control.migrations.all().iter().filter(|(_, known)| known.value.is_open()).count();
    Ok(InFlight {
        planned,
        remembered,
        waiting: control.queue.waiting(),
        migrations: open,
        drains: control.drains.nodes().len(),
        degraded: control.degraded.count(),
    })
}

fn put_together(
    mut rows: Rows,
    before: &FxHashMap<NodeId, Seen>,
    mut after: FxHashMap<NodeId, Seen>,
    at: Timestamp,
    cursors: Cursors,
    in_flight: InFlight,
) -> Dump {
    let policy = rows.policy.as_ref().and_then(|policy| {
        // One that cannot be read is what a check will say.
        Policy::from_json(&policy.body.to_string()).ok()
    });
    let settings = policy.map(|policy| policy.elastic().clone()).unwrap_or_default();
    let reached = cursors.replica >= cursors.ledger;
    for (id, node) in &mut rows.nodes {
        let on = settings.on(&node.facts);
        (node.compute_unit, node.watermark) = (on.compute_unit, on.watermark);
        let Some(seen) = after.remove(id) else { continue };
        let same = before.get(id).is_some_and(|before| *before == seen);
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
        quotas: rows.quotas,
        environments: rows.environments,
    }
}
