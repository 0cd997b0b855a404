//! What would change on the fleet as it is now if another policy were in force.
//!
//! It is found out on two copies of the fleet, one under each policy, on a thread that may take its
//! time: no decision waits for it, and nothing changes. The same fleet and the same policies give
//! the same answer.

mod classes;
mod decisions;
mod nodes;

use berth_api::{LiveCounts, LiveDiff};
use berth_engine::elastic::{Holding, Size};
use berth_engine::{InstanceId, NodeId, Policy};
use berth_ledger::Role;
use rustc_hash::{FxHashMap, FxHashSet};

use crate::control_plane::ControlPlane;
use crate::error::ControlResult;
use crate::moves::sandbox::FleetSnapshot;

/// Most instances that are placed again for one request.
pub(crate) const MAX_COMPARED: usize = 2000;

/// How much is asked for.
#[derive(Clone, Copy, Debug)]
pub struct ComparisonRange {
    /// The most of each kind that is listed.
    pub listed: usize,
    /// Instances after this one.
    pub after: Option<InstanceId>,
}

/// What each node holds, by instance.
type Holdings = FxHashMap<NodeId, Vec<Holding>>;

/// Finds out what would change.
///
/// # Errors
/// When the server is stopping.
pub async fn compare(
    control: &ControlPlane,
    from: Policy,
    to: Policy,
    extent: ComparisonRange,
) -> ControlResult<LiveDiff> {
    let snapshot = FleetSnapshot::take(control).await?;
    let at = control.now();
    let open = control.moves.migrations.all().into_iter().map(|(_, known)| known);
    let leaving: FxHashSet<(InstanceId, NodeId)> = open
        .filter(|known| known.value.is_open())
        .map(|known| (known.value.instance, known.value.source.clone()))
        .collect();
    snapshot
        .plan(move |snapshot| {
            let holdings = holdings(&snapshot, &leaving);
            let mut nodes = nodes::changed(&snapshot, &holdings, &from, &to);
            let nodes_changed = nodes.len();
            nodes.truncate(extent.listed);
            let mut classes = classes::changed(&snapshot, &from, &to);
            classes.truncate(extent.listed);
            let found = decisions::changed(&snapshot, from, to, extent);
            let summary = summary(&found.counts, nodes_changed);
            let decisions::DecisionChanges { counts, decisions, next } = found;
            LiveDiff { at, summary, counts, decisions, nodes, nodes_changed, classes, next }
        })
        .await
}

fn holdings(snapshot: &FleetSnapshot, leaving: &FxHashSet<(InstanceId, NodeId)>) -> Holdings {
    let mut holdings = Holdings::default();
    for claim in snapshot.claims() {
        let holding = Holding {
            charge: Size::of(&claim.amounts),
            permit: claim.permit,
            leaving: match claim.key.role {
                Role::Primary => leaving.contains(&(claim.key.instance, claim.node.clone())),
                Role::MigrationTarget => false,
                Role::MigrationSource => true,
            },
        };
        holdings.entry(claim.node.clone()).or_default().push(holding);
    }
    holdings
}

fn summary(counts: &LiveCounts, nodes: usize) -> String {
    let changed = counts.other_node + counts.only_from + counts.only_to;
    let mut text = format!("{changed} of {} decisions would change", counts.looked_at);
    if counts.not_looked_at > 0 {
        text.push_str(&format!(" ({} instances were not looked at)", counts.not_looked_at));
    }
    match nodes {
        0 => {}
        1 => text.push_str(", and what holds on 1 node"),
        many => text.push_str(&format!(", and what holds on {many} nodes")),
    }
    text
}
