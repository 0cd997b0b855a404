//! What two policies make of the same trace, arrival by arrival.

use std::collections::BTreeMap;

use serde::Serialize;

use super::fleet::FleetNode;
use super::outcome::Outcome;
use super::trace::{Action, Trace};

/// An arrival that two policies treat differently.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ChangedPlacement {
    /// The instance, as the trace calls it.
    pub instance: String,
    /// Its tenant.
    pub tenant: String,
    /// When it arrived, in seconds.
    pub time: u64,
    /// CPU that it asked for.
    pub cpu_milli: u32,
    /// Memory that it asked for.
    pub memory_mib: u32,
    /// The node under the first policy; absent: rejected.
    pub first: Option<String>,
    /// The node under the second policy; absent: rejected.
    pub second: Option<String>,
}

/// The arrivals of one tenant.
#[derive(Clone, Debug, PartialEq, Eq, Default, Serialize)]
pub struct TenantDifference {
    /// The tenant.
    pub tenant: String,
    /// Its arrivals.
    pub arrived: u64,
    /// Those that two policies treat differently.
    pub changed: u64,
    /// Rejected under the first policy.
    pub rejected_first: u64,
    /// Rejected under the second policy.
    pub rejected_second: u64,
}

/// What differs between two policies on a trace.
#[derive(Clone, Debug, PartialEq, Eq, Default, Serialize)]
pub struct PlacementDifference {
    /// Arrivals that were compared.
    pub arrived: u64,
    /// Placed on the same node, or rejected by both.
    pub same: u64,
    /// Placed on different nodes.
    pub other_node: u64,
    /// Placed by the first policy only.
    pub only_first: u64,
    /// Placed by the second policy only.
    pub only_second: u64,
    /// Tenants with differences, the most rejected under the second policy first.
    pub tenants: Vec<TenantDifference>,
    /// Arrivals that are treated differently: refusals first, then in the order of arrival.
    pub placements: Vec<ChangedPlacement>,
}

/// Compares what two policies made of the arrivals from a time on; at most `listed` of those that differ
/// are listed.
#[must_use]
pub fn placement_difference(
    trace: &Trace,
    nodes: &[FleetNode],
    outcomes: [&Outcome; 2],
    since: u64,
    listed: usize,
) -> PlacementDifference {
    let mut difference = PlacementDifference::default();
    let mut tenants: BTreeMap<&str, TenantDifference> = BTreeMap::new();
    let mut refusals = Vec::new();
    let arrivals = trace.events.iter().filter_map(|event| match event.action {
        Action::Create(instance) if event.time >= since => Some((event.time, instance)),
        _ => None,
    });
    for (time, instance) in arrivals {
        let place = |outcome: &Outcome| outcome.placements.get(instance).copied().flatten();
        let [first, second] = outcomes.map(place);
        let tenant = tenants.entry(trace.tenant(instance)).or_default();
        tenant.arrived += 1;
        tenant.rejected_first += u64::from(first.is_none());
        tenant.rejected_second += u64::from(second.is_none());
        difference.arrived += 1;
        let count = match (first, second) {
            _ if first == second => &mut difference.same,
            (Some(_), Some(_)) => &mut difference.other_node,
            (Some(_), None) => &mut difference.only_first,
            (None, _) => &mut difference.only_second,
        };
        *count += 1;
        if first == second {
            continue;
        }
        tenant.changed += 1;
        let is_refusal = first.is_none() || second.is_none();
        let list = if is_refusal { &mut refusals } else { &mut difference.placements };
        if list.len() < listed {
            let name = |node: Option<u32>| {
                let node = usize::try_from(node?).ok()?;
                nodes.get(node).map(|node| node.name.clone())
            };
            let demand = trace.demands[instance];
            list.push(ChangedPlacement {
                instance: trace.name(instance),
                tenant: trace.tenant(instance).to_owned(),
                time,
                cpu_milli: demand.cpu_milli,
                memory_mib: demand.memory_mib,
                first: name(first),
                second: name(second),
            });
        }
    }
    refusals.append(&mut difference.placements);
    refusals.truncate(listed);
    difference.placements = refusals;
    let named = |(tenant, found): (&str, TenantDifference)| TenantDifference {
        tenant: tenant.to_owned(),
        ..found
    };
    difference.tenants = tenants.into_iter().filter(|(_, it)| it.changed > 0).map(named).collect();
    difference.tenants.sort_by_key(|it| (u64::MAX - it.rejected_second, u64::MAX - it.changed));
    difference
}
