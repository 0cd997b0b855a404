//! A fleet that is never full, so that every refusal is a false one.

use std::sync::Arc;

use anyhow::{Context, bail};
use berth_engine::affinity::{Strength, Topology};
use berth_engine::{
    Amounts, Group, GroupKind, InstanceId, InstanceRequest, NodeFacts, NodeId, Policy, Timestamp,
};
use berth_ledger::{
    Ledger, LedgerError, NodeVersion, Op, Outcome, PlannedClaim, Pool, Quota, SnapshotItem, Text,
};

/// Nodes of the fleet. Few, so that writers contend for their rows.
pub const NODES: usize = 40;

/// Tenants, each with a quota, so that their use is counted.
const TENANTS: u128 = 3;

/// The group that every second instance is in, and the pool that every third takes a value from.
const GROUP: &str = "spread";
const POOL: &str = "overlay";

/// The number that an instance has within its thread: the low half of its id.
fn number(instance: InstanceId) -> u128 {
    instance.0.as_u128() & u128::from(u64::MAX)
}

/// Whether an instance is in the group.
pub(crate) fn in_group(instance: InstanceId) -> bool {
    number(instance).is_multiple_of(2)
}

/// Whether an instance takes a value from the pool.
pub(crate) fn takes_value(instance: InstanceId) -> bool {
    number(instance).is_multiple_of(3)
}

/// The tenant of an instance: by its thread, so that a plan has one.
pub(crate) fn tenant(instance: InstanceId) -> String {
    format!("tenant-{}", (instance.0.as_u128() >> 64) % TENANTS)
}

/// The name of a node.
pub(crate) fn node_name(number: usize) -> String {
    format!("node-{number:03}")
}

/// What an instance asks for.
pub(crate) fn request(instance: InstanceId, cpu_milli: u32, memory_mib: u32) -> InstanceRequest {
    let amounts = Amounts::new(cpu_milli, memory_mib).with_disk(64).with_bandwidth(5);
    let mut request = InstanceRequest::new(instance, &tenant(instance), amounts);
    if in_group(instance) {
        request.groups = vec![GROUP.to_owned()];
    }
    request
}

/// What a planner knows of the nodes.
#[derive(Clone, Debug)]
pub struct Nodes {
    versions: Vec<NodeVersion>,
    policy: Policy,
}

impl Nodes {
    /// A claim on one of the nodes.
    pub(crate) fn plan(&self, request: InstanceRequest, node: usize) -> PlannedClaim {
        let id = request.id;
        let name = NodeId::new(&node_name(node));
        let versions = self.versions.get(node).cloned().unwrap_or_default();
        let mut claim = PlannedClaim::new(Arc::new(request), &self.policy, name, versions);
        if takes_value(id) {
            claim.pools = vec![Text::from(POOL)];
        }
        claim
    }
}

fn node(number: usize) -> NodeFacts {
    let most = Amounts::MAX / 8;
    let capacity = Amounts::new(most, most).with_disk(most).with_bandwidth(most);
    let mut facts = NodeFacts::new(&node_name(number), capacity);
    facts.zone = Some(format!("zone-{}", number % 3));
    facts.rack = Some(format!("rack-{}", number % 9));
    facts.instance_limit = 10_000_000;
    facts.heartbeat_at = Timestamp(1);
    facts
}

fn definitions() -> anyhow::Result<Vec<Op>> {
    let mut ops: Vec<Op> = (0..NODES).map(|number| Op::put_node(node(number))).collect();
    ops.push(Op::PutGroup(Group {
        id: GROUP.to_owned(),
        tenant: None,
        kind: GroupKind::Apart,
        strength: Strength::Hard,
        topology: Topology::Node,
        max_per_domain: Some(1_000_000),
    }));
    ops.push(Op::PutPool(Pool::parse(POOL, "fd00:7::/64")?));
    let quota = Quota { instances: Some(1_000_000_000), ..Quota::default() };
    for tenant in 0..TENANTS {
        ops.push(Op::PutQuota { tenant: Text::from(format!("tenant-{tenant}")), quota });
    }
    Ok(ops)
}

/// Brings the fleet into a ledger, as far as it is not there yet.
///
/// # Errors
/// When the ledger cannot be written.
pub fn set_up(ledger: &Ledger) -> anyhow::Result<Nodes> {
    for op in definitions()? {
        match ledger.administer(op)? {
            Outcome::Done | Outcome::Unchanged => {}
            Outcome::Impossible(why) => bail!("the fleet cannot be stored: {why}"),
            Outcome::TenantRemoving(tenant) => bail!("tenant {tenant} is being removed"),
            Outcome::Stale { current } => bail!("the fleet was changed meanwhile: {current:?}"),
        }
    }
    let mut versions = vec![NodeVersion::default(); NODES];
    let mut take = |item: SnapshotItem| -> Result<(), LedgerError> {
        if let SnapshotItem::Node(facts, expected_claim) = item {
            let place = facts.id.as_str().strip_prefix("node-").and_then(|text| text.parse().ok());
            if let Some(slot) = place.and_then(|place: usize| versions.get_mut(place)) {
                *slot = expected_claim;
            }
        }
        Ok(())
    };
    ledger.snapshot(&mut take)?;
    Ok(Nodes { versions, policy: Policy::builtin("balanced").context("the built-in policy")? })
}
