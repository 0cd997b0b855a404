//! Builders and readers that the integration tests share. Public API only.

#![allow(dead_code, reason = "each test binary uses some of them")]
#![allow(clippy::unwrap_used, reason = "a helper of tests that panics has failed the test")]

use berth_engine::{
    Amounts, Engine, Explanation, InstanceId, InstanceRequest, NodeFacts, NodeId, NodeVerdict,
    PlaceError, Policy, Refusal, Term, Timestamp,
};

/// When the tests happen, unless they say otherwise.
pub(crate) const NOW: Timestamp = Timestamp(1_500_000_000);

/// Disk that is never in the way.
pub(crate) const PLENTY_OF_DISK_MIB: u32 = 1 << 24;

/// An active node heard of just now, with plenty of disk and no hypervisor overhead.
pub(crate) fn node(id: &str, cpu_milli: u32, memory_mib: u32) -> NodeFacts {
    let capacity = Amounts::new(cpu_milli, memory_mib).with_disk(PLENTY_OF_DISK_MIB);
    let mut facts = NodeFacts::new(id, capacity);
    facts.heartbeat_at = NOW;
    facts.vmm_overhead_mib = 0;
    facts
}

/// The same with a change.
pub(crate) fn node_with(
    id: &str,
    cpu_milli: u32,
    memory_mib: u32,
    change: impl FnOnce(&mut NodeFacts),
) -> NodeFacts {
    let mut facts = node(id, cpu_milli, memory_mib);
    change(&mut facts);
    facts
}

/// A request of `acme` with this much CPU and memory.
pub(crate) fn request(number: u128, cpu_milli: u32, memory_mib: u32) -> InstanceRequest {
    request_of("acme", number, cpu_milli, memory_mib)
}

/// A request of anybody.
pub(crate) fn request_of(
    tenant: &str,
    number: u128,
    cpu_milli: u32,
    memory_mib: u32,
) -> InstanceRequest {
    let wanted = Amounts::new(cpu_milli, memory_mib).with_disk(1);
    InstanceRequest::new(InstanceId::from_u128(number), tenant, wanted)
}

/// A policy from TOML.
pub(crate) fn policy(text: &str) -> Policy {
    Policy::from_toml(text).unwrap()
}

/// A policy with nothing but these scores.
pub(crate) fn scores(scores: &str) -> Policy {
    policy(&format!("name = 'test'\n[scores]\n{scores}"))
}

/// A built-in policy.
pub(crate) fn builtin(name: &str) -> Policy {
    Policy::builtin(name).unwrap()
}

/// An engine over these nodes.
pub(crate) fn engine(policy: Policy, nodes: &[NodeFacts]) -> Engine {
    let mut engine = Engine::new(policy);
    for facts in nodes {
        engine.fleet_mut().add_node(facts).unwrap();
    }
    engine
}

/// Records that an instance is on a node.
pub(crate) fn claim(engine: &mut Engine, request: &InstanceRequest, node: &str) {
    let claimed = engine.fleet_mut().claim(request, &NodeId::new(node));
    claimed.unwrap();
}

/// Where a request goes, now.
pub(crate) fn place(engine: &mut Engine, request: &InstanceRequest) -> String {
    place_at(engine, request, NOW)
}

/// Where a request goes.
pub(crate) fn place_at(engine: &mut Engine, request: &InstanceRequest, now: Timestamp) -> String {
    let placed = engine.place(request, now).unwrap();
    placed.node.as_str().to_owned()
}

/// Places a request and records it.
pub(crate) fn place_and_claim(engine: &mut Engine, request: &InstanceRequest) -> String {
    let node = place(engine, request);
    claim(engine, request, &node);
    node
}

/// The refusal of a request that must be refused, now.
pub(crate) fn refusal(engine: &mut Engine, request: &InstanceRequest) -> Refusal {
    match engine.place(request, NOW) {
        Err(PlaceError::Refused(refusal)) => *refusal,
        other => panic!("expected a refusal, got {other:?}"),
    }
}

/// Everything about a choice made now.
pub(crate) fn explain(engine: &mut Engine, request: &InstanceRequest) -> Explanation {
    engine.explain(request, NOW).unwrap()
}

/// Nodes that passed all filters, in order of id.
pub(crate) fn survivors(engine: &mut Engine, request: &InstanceRequest) -> Vec<String> {
    let table = explain(engine, request).table;
    let passed = table.iter().filter_map(|verdict| match verdict {
        NodeVerdict::Scored { node, .. } => Some(node.as_str().to_owned()),
        NodeVerdict::Removed { .. } => None,
    });
    passed.collect()
}

/// The filter that removed a node, and its evidence as text.
pub(crate) fn removal(
    engine: &mut Engine,
    request: &InstanceRequest,
    of: &str,
) -> (String, String) {
    let table = explain(engine, request).table;
    let found = table.iter().find(|verdict| verdict.node().as_str() == of);
    match found {
        Some(NodeVerdict::Removed { filter, evidence, .. }) => {
            (filter.to_string(), evidence.to_string())
        }
        other => panic!("expected {of} to be removed, got {other:?}"),
    }
}

/// Total and terms of every node that passed, in order of id.
pub(crate) fn scored(
    engine: &mut Engine,
    request: &InstanceRequest,
    now: Timestamp,
) -> Vec<(String, i64, Vec<Term>)> {
    let table = engine.explain(request, now).unwrap().table;
    let passed = table.into_iter().filter_map(|verdict| match verdict {
        NodeVerdict::Scored { node, total, terms } => {
            Some((node.as_str().to_owned(), total, terms))
        }
        NodeVerdict::Removed { .. } => None,
    });
    passed.collect()
}

/// Totals of the nodes that passed, in order of id.
pub(crate) fn totals(engine: &mut Engine, request: &InstanceRequest) -> Vec<i64> {
    let scored = scored(engine, request, NOW);
    scored.into_iter().map(|(_, total, _)| total).collect()
}

/// One scorer's value on every node that passed, in order of id.
pub(crate) fn values(engine: &mut Engine, request: &InstanceRequest, scorer: &str) -> Vec<u32> {
    values_at(engine, request, scorer, NOW)
}

/// The same at another time.
pub(crate) fn values_at(
    engine: &mut Engine,
    request: &InstanceRequest,
    scorer: &str,
    now: Timestamp,
) -> Vec<u32> {
    let scored = scored(engine, request, now);
    let of_scorer = |terms: Vec<Term>| terms.into_iter().find(|term| term.scorer == scorer);
    let values = scored.into_iter().map(|(_, _, terms)| of_scorer(terms));
    values.map(|term| term.unwrap().value).collect()
}
