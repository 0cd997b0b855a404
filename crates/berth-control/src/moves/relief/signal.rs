//! What all nodes lack together, for an autoscaler that adds nodes.

use berth_api::{NodePressure, Pressure};
use berth_engine::elastic::{Account, ResourceAccount};

use crate::control_plane::ControlPlane;
use crate::elastic::node_account;

/// How much is lacking now, and where.
#[must_use]
pub fn measure_pressure(control: &ControlPlane) -> Pressure {
    let policy = control.catalog.policy();
    let settings = policy.as_ref().map(|policy| policy.elastic().clone()).unwrap_or_default();
    let at = control.now();
    let catalog = control.catalog.read();
    let mut total = Pressure { at, ..Pressure::default() };
    for entry in catalog.nodes.values() {
        let found =
            node_account(&catalog, &control.moves.migrations, &settings, entry, at.as_second());
        if lacks(&found.cpu) || lacks(&found.memory) {
            add(&mut total, &found);
            let (node, must_shed) = (entry.facts.id.clone(), found.must_shed());
            total.nodes.push(NodePressure { node, must_shed, account: found });
        }
    }
    total
}

const fn lacks(account: &ResourceAccount) -> bool {
    account.capacity_pressure > 0 || account.reserved > account.watermark
}

fn add(total: &mut Pressure, found: &Account) {
    for (sum, one) in [(&mut total.cpu, &found.cpu), (&mut total.memory, &found.memory)] {
        sum.capacity_pressure = sum.capacity_pressure.saturating_add(one.capacity_pressure);
        sum.logical_pressure = sum.logical_pressure.saturating_add(one.logical_pressure());
        sum.accounted_for = sum.accounted_for.saturating_add(one.pressure_accounted_for);
        sum.excess = sum.excess.saturating_add(one.excess().max(0));
    }
}
