//! The schemas against what serde reads and writes, judged by a JSON Schema validator: what is
//! written fits its schema and reads back equal, and what one refuses the other refuses.

#![allow(clippy::unwrap_used, reason = "a helper of tests that panics has failed the test")]

mod common;

use berth_engine::BUILTIN_POLICIES;
use berth_engine::affinity::{Rule, Strength, Topology};
use berth_engine::node_selector::NodeSelector;
use berth_engine::{
    Amounts, Audience, Batch, BootOutcome, CapacityType, Elastic, Explanation, Group, GroupKind,
    Hint, InstanceId, InstanceRequest, LinkState, Locality, Network, NodeFacts, NodeId, NodeUsage,
    Placement, Platform, PlatformVersion, Policy, Ratios, RebalanceGoal, RebalanceInstance,
    RebalancePlan, RebalanceTerms, Refusal, Timestamp, TraitValue, Volume,
};
use common::{NOW, builtin, claim, engine, node_with, policy, refusal, request};
use jsonschema::Validator;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use utoipa::ToSchema;
use utoipa::openapi::{ComponentsBuilder, OpenApiBuilder};

/// A validator of one type, with every schema it refers to next to it, as in an OpenAPI document.
fn validator<T: ToSchema>() -> Validator {
    let mut referred = Vec::new();
    T::schemas(&mut referred);
    let all = referred.into_iter().chain([(T::name().into_owned(), T::schema())]);
    let components = ComponentsBuilder::new().schemas_from_iter(all).build();
    let document = OpenApiBuilder::new().components(Some(components)).build();
    let mut document = serde_json::to_value(&document).unwrap();
    document["$ref"] = json!(format!("#/components/schemas/{}", T::name()));
    jsonschema::draft202012::new(&document).unwrap()
}

/// What is written fits its schema and reads back equal.
fn fits<T: ToSchema + Serialize + DeserializeOwned + PartialEq + std::fmt::Debug>(samples: &[T]) {
    let validator = validator::<T>();
    for sample in samples {
        let written = serde_json::to_value(sample).unwrap();
        let faults: Vec<String> = validator.iter_errors(&written).map(|e| e.to_string()).collect();
        assert!(faults.is_empty(), "{}: {written}\n{faults:#?}", T::name());
        let text = serde_json::to_string(sample).unwrap();
        assert_eq!(serde_json::from_str::<T>(&text).unwrap(), *sample);
    }
}

/// Schema and reader say the same of each text.
fn agree<T: ToSchema>(reads: impl Fn(&str) -> bool, table: &[(Value, bool)]) {
    let validator = validator::<T>();
    for (value, accepted) in table {
        assert_eq!(validator.is_valid(value), *accepted, "schema of {}: {value}", T::name());
        assert_eq!(reads(&value.to_string()), *accepted, "reader of {}: {value}", T::name());
    }
}

fn full_node() -> NodeFacts {
    node_with("a", 64_000, 262_144, |facts| {
        facts.extra.insert("gpu".to_owned(), 8);
        facts.labels.insert("team".to_owned(), "blue".to_owned());
        facts.traits.insert("ssd".to_owned(), TraitValue::Bool(true));
        facts.traits.insert("cpu".to_owned(), TraitValue::Text("epyc".to_owned()));
        facts.traits.insert("nics".to_owned(), TraitValue::List(vec!["a".into(), "b".into()]));
        (facts.zone, facts.rack) = (Some("z1".to_owned()), Some("r1".to_owned()));
        facts.capacity_type = CapacityType::Spot;
        let version = PlatformVersion::new(7, 10);
        facts.platform = Some(Platform { version, built_at: Timestamp(1_767_225_600) });
        facts.last_boot = Some(Timestamp(-5));
        facts.next_reboot = Some(Timestamp(i64::MAX));
        facts.hardware_class = -3;
        facts.networks = vec![Network { tag: "admin".to_owned(), link: LinkState::Unknown }];
        facts.cached_images = vec!["alpine".to_owned()];
        facts.boots = vec![BootOutcome::failed_for(Timestamp(1), "acme")];
    })
}

fn full_request() -> InstanceRequest {
    let mut wanted = request(1, 2000, 4096);
    wanted.name = Some("web-1".to_owned());
    wanted.workload = Some("web".to_owned());
    wanted.extra.insert("gpu".to_owned(), 1);
    let (min, max) = (Amounts::new(1000, 1024), Amounts::new(4000, 8192).with_disk(99_999));
    wanted.elastic = Some(Elastic::new(min, max));
    wanted.tags.insert("role".to_owned(), "db".to_owned());
    wanted.traits.insert("ssd".to_owned(), TraitValue::Bool(true));
    wanted.networks = vec![vec!["admin".to_owned(), "spare".to_owned()]];
    wanted.platform.min.insert(PlatformVersion::new(7, 0), Timestamp(1));
    wanted.ratios = Some(Ratios::default());
    wanted.capacity_type = Some(CapacityType::OnDemand);
    wanted.required_place = Some(NodeSelector::parse("zone = z1 or not has label:tier").unwrap());
    wanted.preferred_places = vec![NodeSelector::parse("rack ~ r*").unwrap()];
    wanted.affinity = vec![Rule::parse("role!=~db@rack").unwrap()];
    let near = vec![Hint::Instance(InstanceId::from_u128(7))];
    let far = vec![Hint::Tag("role".to_owned(), "web".to_owned())];
    wanted.locality = Locality { near, far, strict: true };
    wanted.excluded_nodes = vec![NodeId::new("b")];
    wanted
}

#[test]
fn what_is_stated_fits_its_schema() {
    fits::<NodeFacts>(&[full_node(), NodeFacts::new("b", Amounts::default())]);
    fits::<InstanceRequest>(&[full_request(), request(2, 0, 1)]);
    let group = |tenant: Option<&str>, max_per_domain| Group {
        id: "g".to_owned(),
        tenant: tenant.map(str::to_owned),
        kind: GroupKind::Apart,
        strength: Strength::Hard,
        topology: Topology::Rack,
        max_per_domain,
    };
    fits::<Group>(&[group(None, None), group(Some("acme"), Some(2))]);
    let attached_to = Some(InstanceId::from_u128(3));
    let volume = Volume {
        id: "v".to_owned(),
        home: NodeId::new("a"),
        tenant: Some("acme".to_owned()),
        attached_to,
    };
    fits::<Volume>(&[Volume { attached_to: None, ..volume.clone() }, volume]);
    fits::<Policy>(&BUILTIN_POLICIES.map(builtin));
}

/// Refusals for every kind of evidence, fix and notice that a small fleet can bring about.
fn refusals() -> Vec<Refusal> {
    let stale = node_with("s", 1000, 9000, |facts| facts.heartbeat_at = Timestamp(-99_999));
    let cordoned = node_with("c", 1000, 9000, |facts| {
        facts.state = berth_engine::NodeState::Cordoned;
    });
    let sick = node_with("x", 1000, 9000, |facts| facts.kvm = false);
    let mut engine = engine(builtin("pack"), &[full_node(), stale, cordoned, sick]);
    engine.fleet_mut().put_group(Group {
        id: "g".to_owned(),
        tenant: None,
        kind: GroupKind::Apart,
        strength: Strength::Hard,
        topology: Topology::Node,
        max_per_domain: None,
    });
    let mut member = request(1, 100, 512);
    member.traits = full_node().traits;
    member.groups = vec!["g".to_owned()];
    claim(&mut engine, &member, "a");
    let second = InstanceRequest { id: InstanceId::from_u128(2), ..member.clone() };
    let large = InstanceRequest {
        resources: Amounts::new(100, 400_000),
        groups: Vec::new(),
        ..second.clone()
    };
    let tight = InstanceRequest { resources: Amounts::new(100, 261_900), ..large.clone() };
    let mut lonely = InstanceRequest { groups: Vec::new(), ..second.clone() };
    lonely.affinity = vec![Rule::parse("role==db").unwrap(), Rule::parse("role==*").unwrap()];
    lonely.locality.near = vec![Hint::Instance(InstanceId::from_u128(77))];
    let mut found: Vec<Refusal> = [second, large.clone(), tight, lonely, request(5, 100, 512)]
        .iter()
        .map(|wanted| refusal(&mut engine, wanted))
        .collect();
    let outcome = engine.place_batch(&Batch::new(vec![large]), NOW).unwrap();
    found.extend(outcome.refused.into_iter().map(|(_, refusal)| refusal));
    let hidden = policy("name = 'p'\n[explain]\ntenants_see_nodes = false");
    let seen: Vec<Refusal> = found
        .iter()
        .map(|refusal| refusal.redacted_for(Audience::Tenant("acme"), &hidden))
        .collect();
    found.extend(seen);
    found
}

/// What is not sent, whether evidence tells of others, is also not read back.
fn as_sent<T: Serialize + DeserializeOwned>(value: &T) -> T {
    serde_json::from_str(&serde_json::to_string(value).unwrap()).unwrap()
}

#[test]
fn what_is_answered_fits_its_schema_and_can_be_read_by_a_client() {
    let refusals: Vec<Refusal> = refusals().iter().map(as_sent).collect();
    let text = serde_json::to_string(&refusals).unwrap();
    for kind in ["short", "state", "time", "fact", "neighbours"] {
        assert!(text.contains(&format!("\"kind\":\"{kind}\"")), "no evidence {kind} in {text}");
    }
    for kind in ["shrink", "relax", "free", "mend", "add_node", "matches_nothing"] {
        assert!(text.contains(&format!("\"kind\":\"{kind}\"")), "no {kind} in {text}");
    }
    fits::<Refusal>(&refusals);
    let mut engine = engine(builtin("balanced"), &[full_node(), node_with("b", 900, 900, |_| {})]);
    let mut wanted = request(1, 100, 512);
    let explained = |engine: &mut berth_engine::Engine, wanted: &InstanceRequest| {
        as_sent(&engine.explain(wanted, NOW).unwrap())
    };
    let plain = explained(&mut engine, &wanted);
    fits::<Placement>(&[engine.place(&wanted, NOW).unwrap()]);
    wanted.traits = full_node().traits;
    let special = explained(&mut engine, &wanted);
    fits::<Explanation>(&[plain, special]);
    fits::<NodeUsage>(&[engine.fleet().usage(&NodeId::new("a")).unwrap()]);
}

#[test]
fn a_node_is_read_as_its_schema_says() {
    let reads = |text: &str| {
        serde_json::from_str::<NodeFacts>(text).is_ok_and(|facts| facts.validate().is_ok())
    };
    let max = u64::from(Amounts::MAX);
    agree::<NodeFacts>(
        reads,
        &[
            (json!({"id": "a"}), true),
            (json!({}), false),
            (json!({"id": ""}), false),
            (json!({"id": "a", "colour": "red"}), false),
            (json!({"id": "a", "state": "asleep"}), false),
            (json!({"id": "a", "zone": null, "rack": "r1", "platform": null}), true),
            (json!({"id": "a", "capacity": null}), true),
            (json!({"id": "a", "capacity": {}}), true),
            (json!({"id": "a", "capacity": {"cpu_milli": max}}), true),
            (json!({"id": "a", "capacity": {"cpu_milli": max + 1}}), false),
            (json!({"id": "a", "capacity": {"cpu_milli": -1}}), false),
            (json!({"id": "a", "capacity": {"cpu_milli": 1.5}}), false),
            (json!({"id": "a", "capacity": {"cores": 1}}), false),
            (json!({"id": "a", "extra": {"gpu": max}}), true),
            (json!({"id": "a", "extra": {"gpu": max + 1}}), false),
            (json!({"id": "a", "instance_limit": max + 1}), false),
            (json!({"id": "a", "other": {"memory_kib": (max << 10) + 1023}}), true),
            (json!({"id": "a", "other": {"memory_kib": (max + 1) << 10}}), false),
            (json!({"id": "a", "watermarks": {"cpu_permille": 65_536}}), false),
            (json!({"id": "a", "traits": {"a": true, "b": "x", "c": ["x"]}}), true),
            (json!({"id": "a", "traits": {"a": 1}}), false),
            (json!({"id": "a", "last_boot": "2026-01-01T00:00:00Z"}), false),
            (json!({"id": "a", "platform": {"version": "7.1", "built_at": 1}}), true),
            (json!({"id": "a", "platform": {"version": "7", "built_at": 1}}), false),
            (json!({"id": "a", "networks": [{"tag": "t", "link": "up"}]}), true),
            (json!({"id": "a", "networks": [{"tag": "t"}]}), false),
        ],
    );
}

#[test]
fn a_request_is_read_as_its_schema_says() {
    let id = "00000000-0000-0000-0000-000000000001";
    let with = |key: &str, value: Value| {
        // The stored format says `owner` for the tenant.
        let mut request = json!({"id": id, "owner": "o", "resources": {"memory_mib": 64}});
        request[key] = value;
        request
    };
    let reads = |text: &str| {
        serde_json::from_str::<InstanceRequest>(text).is_ok_and(|r| r.validate().is_ok())
    };
    agree::<InstanceRequest>(
        reads,
        &[
            (with("name", json!(null)), true),
            (with("owner", json!("")), false),
            (with("id", json!(7)), false),
            (with("resources", json!({})), false),
            (with("resources", json!({"memory_mib": 0})), false),
            (with("resources", json!({"memory_mib": 1, "disk_mib": null})), true),
            (with("resources", json!({"memory_mib": 1, "gpu": 1})), false),
            (with("image_mib", json!(-1)), false),
            (with("platform", json!({"min": {"7.1": 5}})), true),
            (with("platform", json!({"min": {"seven": 5}})), false),
            (with("locality", json!({"near": [{"instance": id}]})), true),
            (with("locality", json!({"near": [{"tag": ["role", "db"]}]})), true),
            (with("locality", json!({"near": [{"tag": ["role"]}]})), false),
            (with("locality", json!({"near": [{"instance": id, "tag": ["a", "b"]}]})), false),
            (with("locality", json!({"near": ["x"]})), false),
            (with("affinity", json!(["role==db"])), true),
            (with("affinity", json!([""])), false),
            (with("colour", json!("red")), false),
        ],
    );
}

#[test]
fn a_policy_is_read_as_its_schema_says() {
    let filters = |value: Value| json!({"name": "p", "filters": value});
    let options = |value: Value| json!({"name": "p", "options": value});
    let table = [
        (json!({"name": "p"}), true),
        (json!({}), false),
        (json!({"name": ""}), false),
        (json!({"name": "p", "scores": {"memory-pack": 2.5}}), true),
        (json!({"name": "p", "scores": {"memory-pack": -1}}), false),
        (json!({"name": "p", "scores": {"memory-pack": 1001}}), false),
        (json!({"name": "p", "scores": {"ram": 1}}), false),
        (json!({"name": "p", "combine": "product"}), true),
        (json!({"name": "p", "combine": "max"}), false),
        (filters(json!({"off": ["kvm"]})), true),
        (filters(json!({"off": ["memory"]})), false),
        (filters(json!({"heartbeat_grace_s": 0})), false),
        (filters(json!({"heartbeat_grace_s": 31_536_000})), true),
        (filters(json!({"heartbeat_grace_s": 31_536_001})), false),
        (filters(json!({"sick_window_s": 0})), false),
        (filters(json!({"max_overlay_loss_ppm": 1_000_001})), false),
        (filters(json!({"min_scratch_mib": u64::from(Amounts::MAX) + 1})), false),
        (filters(json!({"disk_headroom_mib": (1 << 30) + 1})), false),
        (filters(json!({"no_reboot_within_days": null})), true),
        (filters(json!({"no_reboot_within_days": 0})), false),
        (filters(json!({"no_reboot_within_days": 3651})), false),
        (options(json!({"failure_half_life_s": 59})), false),
        (options(json!({"failure_half_life_s": 31_536_001})), false),
        (options(json!({"tent": {"peak_ppm": 0}})), false),
        (options(json!({"tent": {"peak_ppm": 1_000_000}})), false),
        (options(json!({"tent": {"idle_ppm": 1_000_001}})), false),
        (options(json!({"tent": {"full_ppm": 1_000_001}})), false),
        (options(json!({"shapes": []})), false),
        (options(json!({"shapes": [{"cpu_milli": 1}]})), true),
        (options(json!({"prefer_capacity": "spot", "owner_spread": true})), true),
    ];
    agree::<Policy>(|text| Policy::from_json(text).is_ok(), &table);
    agree::<Policy>(|text| serde_json::from_str::<Policy>(text).is_ok(), &table);
}

#[test]
fn plans_to_rebalance_and_their_terms() {
    let mut engine = engine(builtin("balanced"), &[full_node(), node_with("b", 8, 8192, |_| {})]);
    let wanted = request(1, 1, 1024);
    claim(&mut engine, &wanted, "b");
    let guests = [RebalanceInstance {
        id: wanted.id,
        request: wanted.into(),
        copy_mib: 1024,
        load_milli: None,
        priority: 0,
        movable: true,
    }];
    let terms = [RebalanceGoal::Spread, RebalanceGoal::Consolidate]
        .map(|goal| RebalanceTerms { onto_empty: true, ..RebalanceTerms::new(goal, 9) });
    fits::<RebalanceTerms>(&terms);
    let free = |_: &NodeId| berth_engine::elastic::Free::UNLIMITED;
    fits::<RebalancePlan>(&terms.map(|of| engine.plan_rebalance(of, &guests, &free, NOW)));
    let reads = |text: &str| serde_json::from_str::<RebalanceTerms>(text).is_ok();
    agree::<RebalanceTerms>(
        reads,
        &[
            (json!({ "goal": "spread", "budget": 1 }), true),
            (json!({ "goal": "spread", "budget": -1 }), false),
            (json!({ "goal": "sideways", "budget": 1 }), false),
            (json!({ "goal": "consolidate", "budget": 1, "moves": 2 }), false),
        ],
    );
}
