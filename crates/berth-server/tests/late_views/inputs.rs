//! What decisions depend on, one function each.

use std::sync::Arc;

use berth_control::{PlaceAnswer, PlaceRequest, Placer};
use berth_engine::affinity::{Rule, Strength, Topology};
use berth_engine::{
    Amounts, BatchMode, CapacityType, Group, GroupKind, InstanceId, InstanceRequest, NodeFacts,
    NodeId, NodeState, Policy, Volume,
};
use berth_ledger::{Expect, Ledger, Op, Outcome, Pool, Quota, StartTenantRemoval, Text, Workload};

use crate::table::Input;

const TENANT: &str = "acme";

/// The instance that the late server is asked for.
const LATE: u128 = 2;

fn instance(id: u128) -> InstanceRequest {
    let amounts = Amounts::new(1000, 1024).with_disk(1);
    InstanceRequest::new(InstanceId::from_u128(id), TENANT, amounts)
}

fn place(instance: InstanceRequest) -> PlaceRequest {
    PlaceRequest {
        request_id: Text::from(instance.id.to_string()),
        tenant: Text::from(TENANT),
        instances: vec![Arc::new(instance)],
        mode: BatchMode::AllOrNothing,
        lease_s: 120,
        ..PlaceRequest::default()
    }
}

fn plain() -> PlaceRequest {
    place(instance(LATE))
}

fn administer(ledger: &Ledger, op: Op) {
    assert_eq!(ledger.administer(op).unwrap(), Outcome::Done);
}

fn facts(id: &str) -> NodeFacts {
    let mut facts = NodeFacts::new(id, Amounts::new(16_000, 16_384).with_disk(100_000));
    facts.vmm_overhead_mib = 0;
    (facts.zone, facts.rack) = (Some("z".to_owned()), Some("r".to_owned()));
    facts.extra.insert("gpu".to_owned(), 1);
    facts
}

fn two_nodes(ledger: &Ledger) {
    for id in ["n1", "n2"] {
        administer(ledger, Op::put_node(facts(id)));
    }
}

/// Has the first server place an instance.
fn grant(placer: &Placer, request: PlaceRequest) {
    let answer = placer.place(request);
    assert!(matches!(answer, PlaceAnswer::Granted(_)), "{answer:?}");
}

fn activate(ledger: &Ledger, policy: &str) {
    let policy = Policy::builtin(policy).unwrap();
    let (name, hash) = (policy.name().to_owned(), policy.hash().to_string());
    administer(ledger, Op::ActivatePolicy { name, hash, body: policy.to_json(), expect: None });
}

fn put_workload(ledger: &Ledger, version: i64, max_on_demand: u32) {
    let body = serde_json::json!({
        "revision": 1,
        "template": { "resources": { "cpu_milli": 1000, "memory_mib": 1024 } },
        "capacity": { "max_on_demand": max_on_demand },
    });
    let (tenant, name) = (TENANT.to_owned(), "web".to_owned());
    let body = body.to_string();
    let workload = Workload { tenant, name, revision: version, replicas: -1, body };
    administer(ledger, Op::PutWorkload { workload, expect: Expect::Any });
}

fn member(id: u128) -> PlaceRequest {
    let mut request = instance(id);
    request.workload = Some("web".to_owned());
    place(request)
}

/// A node of each kind.
fn capacity_nodes(ledger: &Ledger) {
    for (id, kind) in [("o1", CapacityType::OnDemand), ("s1", CapacityType::Spot)] {
        administer(ledger, Op::put_node(NodeFacts { capacity_type: kind, ..facts(id) }));
    }
}

/// The same, and a workload of which two members are on-demand.
fn workload(ledger: &Ledger) {
    capacity_nodes(ledger);
    put_workload(ledger, 1, 2);
}

fn put_secrets(ledger: &Ledger, version: Option<&str>) {
    let (tenant, env) = (Some(Text::from(TENANT)), Text::from("prod"));
    administer(ledger, Op::PutSecrets { tenant, env, version: version.map(Text::from) });
}

fn with_secrets() -> PlaceRequest {
    let mut request = instance(LATE);
    (request.env, request.needs_secrets) = (Some("prod".to_owned()), true);
    place(request)
}

fn put_volume(ledger: &Ledger, home: &str) {
    let (id, home) = ("disk".to_owned(), NodeId::new(home));
    administer(ledger, Op::PutVolume(Volume { id, tenant: None, home, attached_to: None }));
}

fn with_volume() -> PlaceRequest {
    place(InstanceRequest { volumes: vec!["disk".to_owned()], ..instance(LATE) })
}

fn with_group(id: u128) -> PlaceRequest {
    place(InstanceRequest { groups: vec!["apart".to_owned()], ..instance(id) })
}

fn put_group(ledger: &Ledger, max_per_domain: u32, topology: Topology) {
    let group = Group {
        id: "apart".to_owned(),
        tenant: None,
        kind: GroupKind::Apart,
        strength: Strength::Hard,
        topology,
        max_per_domain: Some(max_per_domain),
    };
    administer(ledger, Op::PutGroup(group));
}

fn remove_node(ledger: &Ledger, id: &str) {
    administer(ledger, Op::RemoveNode { node: NodeId::new(id), expect: None });
}

fn with_role(id: u128, role: &str, rule: Option<&str>) -> PlaceRequest {
    let mut request = instance(id);
    request.tags.insert("role".to_owned(), role.to_owned());
    request.affinity.extend(rule.map(|rule| Rule::parse(rule).unwrap()));
    place(request)
}

fn with_class(id: u128) -> PlaceRequest {
    let mut request = instance(id);
    request.extra.insert("gpu".to_owned(), 1);
    place(request)
}

fn with_pool(id: u128) -> PlaceRequest {
    PlaceRequest { pools: vec![Text::from("ports")], ..place(instance(id)) }
}

fn large(id: u128) -> PlaceRequest {
    place(InstanceRequest { resources: Amounts::new(1000, 10_000), ..instance(id) })
}

/// Rows of the table, in its order.
pub(crate) fn inputs() -> Vec<Input> {
    let all = [of_nodes(), of_neighbours(), of_volumes(), of_pools(), of_tenants(), of_rules()];
    all.into_iter().flatten().collect()
}

pub(crate) fn of_nodes() -> Vec<Input> {
    vec![
        Input {
            name: "facts of the node",
            before: two_nodes,
            change: |first| {
                let facts = NodeFacts { reserved: true, ..facts("n1") };
                administer(first.ledger(), Op::put_node(facts));
            },
            request: plain,
            expected: ("n1", "n2"),
        },
        Input {
            name: "state and health of the node",
            before: two_nodes,
            change: |first| {
                let (node, state) = (NodeId::new("n1"), NodeState::Cordoned);
                administer(first.ledger(), Op::SetNodeState { node, state, expect: None });
            },
            request: plain,
            expected: ("n1", "n2"),
        },
        Input {
            name: "reserve of the node",
            before: two_nodes,
            change: |first| {
                let (node, reserve) = (NodeId::new("n1"), Some(Amounts::new(0, 10_000)));
                administer(first.ledger(), Op::SetReserve { node, reserve });
            },
            request: || large(LATE),
            expected: ("n1", "n2"),
        },
        Input {
            name: "room on the node",
            before: two_nodes,
            change: |first| grant(first, large(1)),
            request: || large(LATE),
            expected: ("n1", "n2"),
        },
        Input {
            name: "further classes of the node",
            before: two_nodes,
            change: |first| grant(first, with_class(1)),
            request: || with_class(LATE),
            expected: ("n1", "n2"),
        },
        Input {
            name: "removal of the node",
            before: two_nodes,
            change: |first| remove_node(first.ledger(), "n1"),
            request: plain,
            expected: ("n1", "n2"),
        },
        Input {
            name: "node removed and added again",
            before: two_nodes,
            change: |first| {
                remove_node(first.ledger(), "n1");
                let facts = NodeFacts { reserved: true, ..facts("n1") };
                administer(first.ledger(), Op::put_node(facts));
            },
            request: plain,
            expected: ("n1", "n2"),
        },
    ]
}

pub(crate) fn of_neighbours() -> Vec<Input> {
    vec![
        Input {
            name: "hard rules about others",
            before: two_nodes,
            change: |first| grant(first, with_role(1, "db", None)),
            request: || with_role(LATE, "web", Some("role!=db")),
            expected: ("n1", "n2"),
        },
        Input {
            name: "groups",
            before: |ledger| {
                two_nodes(ledger);
                put_group(ledger, 1, Topology::Node);
            },
            change: |first| grant(first, with_group(1)),
            request: || with_group(LATE),
            expected: ("n1", "n2"),
        },
        Input {
            name: "rules of the group",
            before: |ledger| {
                two_nodes(ledger);
                put_group(ledger, 2, Topology::Node);
            },
            change: |first| {
                grant(first, with_group(1));
                put_group(first.ledger(), 1, Topology::Node);
            },
            request: || with_group(LATE),
            expected: ("n1", "n2"),
        },
        Input {
            name: "removal of the group",
            before: |ledger| {
                two_nodes(ledger);
                put_group(ledger, 1, Topology::Node);
            },
            change: |first| administer(first.ledger(), Op::RemoveGroup(Text::from("apart"))),
            request: || with_group(LATE),
            expected: ("n1", "unknown_group"),
        },
        Input {
            name: "group removed and defined again",
            before: |ledger| {
                two_nodes(ledger);
                put_group(ledger, 1, Topology::Node);
            },
            change: |first| {
                administer(first.ledger(), Op::RemoveGroup(Text::from("apart")));
                put_group(first.ledger(), 1, Topology::Rack);
                // Both nodes are in one rack.
                grant(first, with_group(1));
            },
            request: || with_group(LATE),
            expected: ("n1", "group_no_node"),
        },
    ]
}

pub(crate) fn of_volumes() -> Vec<Input> {
    vec![
        Input {
            name: "volumes",
            before: |ledger| {
                two_nodes(ledger);
                put_volume(ledger, "n1");
            },
            change: |first| put_volume(first.ledger(), "n2"),
            request: with_volume,
            expected: ("n1", "n2"),
        },
        Input {
            name: "last copy of a volume before it moves",
            before: |ledger| {
                two_nodes(ledger);
                put_volume(ledger, "n1");
            },
            change: |first| {
                let (volume, moving_to) = (Text::from("disk"), Some(NodeId::new("n2")));
                administer(first.ledger(), Op::MarkVolume { volume, moving_to });
            },
            request: with_volume,
            expected: ("n1", "volume_moving"),
        },
    ]
}

pub(crate) fn of_pools() -> Vec<Input> {
    vec![
        Input {
            name: "pools",
            before: |ledger| {
                two_nodes(ledger);
                let pool = Pool::parse("ports", "1000-1000").unwrap();
                administer(ledger, Op::PutPool(pool));
            },
            change: |first| grant(first, with_pool(1)),
            request: || with_pool(LATE),
            expected: ("n1", "pool_exhausted"),
        },
        Input {
            name: "range and owner of the pool",
            before: |ledger| {
                two_nodes(ledger);
                administer(ledger, Op::PutPool(Pool::parse("ports", "1000-1001").unwrap()));
            },
            change: |first| {
                let pool = Pool::parse("ports", "1000-1001").unwrap();
                let pool = Pool { tenant: Some(Text::from("other")), ..pool };
                administer(first.ledger(), Op::PutPool(pool));
            },
            request: || with_pool(LATE),
            expected: ("n1", "unknown_pool"),
        },
        Input {
            name: "removal of the pool",
            before: |ledger| {
                two_nodes(ledger);
                administer(ledger, Op::PutPool(Pool::parse("ports", "1000-1001").unwrap()));
            },
            change: |first| administer(first.ledger(), Op::RemovePool(Text::from("ports"))),
            request: || with_pool(LATE),
            expected: ("n1", "unknown_pool"),
        },
    ]
}

pub(crate) fn of_tenants() -> Vec<Input> {
    vec![
        Input {
            name: "quota of the tenant",
            before: two_nodes,
            change: |first| {
                let quota = Quota { instances: Some(0), ..Quota::default() };
                administer(first.ledger(), Op::PutQuota { tenant: Text::from(TENANT), quota });
            },
            request: plain,
            expected: ("n1", "quota_exceeded"),
        },
        Input {
            name: "changed quota of the tenant",
            before: |ledger| {
                two_nodes(ledger);
                let quota = Quota { instances: Some(5), ..Quota::default() };
                administer(ledger, Op::PutQuota { tenant: Text::from(TENANT), quota });
            },
            change: |first| {
                let quota = Quota { instances: Some(0), ..Quota::default() };
                administer(first.ledger(), Op::PutQuota { tenant: Text::from(TENANT), quota });
            },
            request: plain,
            expected: ("n1", "quota_exceeded"),
        },
        Input {
            name: "removal of the tenant",
            before: two_nodes,
            change: |first| {
                let (tenant, actor) = (Text::from(TENANT), Text::from("ann"));
                let origin = Text::default();
                let start = StartTenantRemoval { tenant, force: false, actor, origin };
                administer(first.ledger(), Op::StartTenantRemoval(Box::new(start)));
            },
            request: plain,
            expected: ("n1", "tenant_removing"),
        },
        Input {
            name: "secrets of the environment",
            before: |ledger| {
                two_nodes(ledger);
                put_secrets(ledger, Some("1"));
            },
            change: |first| put_secrets(first.ledger(), Some("2")),
            request: with_secrets,
            expected: ("n1", "n1 with secrets 2"),
        },
        Input {
            name: "removal of these secrets",
            before: |ledger| {
                two_nodes(ledger);
                put_secrets(ledger, Some("1"));
            },
            change: |first| put_secrets(first.ledger(), None),
            request: with_secrets,
            expected: ("n1", "secrets_missing"),
        },
    ]
}

pub(crate) fn of_rules() -> Vec<Input> {
    vec![
        Input {
            name: "policy in force",
            before: |ledger| {
                two_nodes(ledger);
                activate(ledger, "pack");
            },
            change: |first| {
                grant(first, place(instance(1)));
                activate(first.ledger(), "spread");
            },
            request: plain,
            expected: ("n1", "n2"),
        },
        Input {
            name: "workload: its rules, replicas and template",
            before: workload,
            change: |first| put_workload(first.ledger(), 2, 0),
            request: || member(LATE),
            expected: ("o1 in slot 0", "s1 in slot 0"),
        },
        Input {
            name: "workload removed and stored again",
            before: workload,
            change: |first| {
                let (tenant, name) = (Text::from(TENANT), Text::from("web"));
                let expect = Expect::Any;
                administer(first.ledger(), Op::RemoveWorkload { tenant, name, expect });
                put_workload(first.ledger(), 1, 0);
            },
            request: || member(LATE),
            expected: ("o1 in slot 0", "s1 in slot 0"),
        },
        Input {
            name: "workload stored for the first time",
            before: capacity_nodes,
            change: |first| put_workload(first.ledger(), 1, 0),
            request: || member(LATE),
            expected: ("o1", "s1 in slot 0"),
        },
        Input {
            name: "slots of the workload",
            before: workload,
            change: |first| grant(first, member(1)),
            request: || member(LATE),
            expected: ("o1 in slot 0", "o1 in slot 1"),
        },
    ]
}
