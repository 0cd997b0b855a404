//! Nothing that a caller can say makes the engine panic: the largest and smallest numbers, times
//! at both ends of time, empty and foreign texts, expressions that mean nothing.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test that panics has failed")]

mod oracle;

use berth_engine::affinity::{Rule, Strength, Topology, lint};
use berth_engine::{
    Amounts, Audience, Batch, BatchMode, BootOutcome, CapacityType, CpuCapMode, Elastic, Engine,
    Group, GroupKind, Hint, InstanceId, InstanceRequest, LinkState, Network, NodeFacts, NodeId,
    OtherUsage, PlaceError, Platform, PlatformVersion, Ratios, Refusal, Reuse, Timestamp,
    TraitValue, Volume, Watermarks,
};
use berth_engine::{BUILTIN_POLICIES, Policy};
use oracle::config;
use oracle::random::{Rng, state};
use proptest::collection::vec;
use proptest::prelude::{Just, Strategy, any, prop_assert_eq, prop_oneof, proptest};
use proptest::sample::select;

/// All that a policy of products can be asked for, with its settings at their ends.
const PRODUCT: &str = "
name = 'product'
combine = 'product'
[filters]
admit_degraded = true
off = ['heartbeat-fresh', 'kvm', 'scratch-disk', 'overlay-healthy', 'not-sick', 'traits']
[options]
missed_reboot = 'soonest'
owner_spread = true
[scores]
spread-racks = 1000
locality = 500
next-reboot = 250
recent-failures = 250
";

fn policies() -> Vec<Policy> {
    let builtin = BUILTIN_POLICIES.map(|name| Policy::builtin(name).expect("a built-in policy"));
    let product = Policy::from_toml(PRODUCT).unwrap_or_else(|error| panic!("{error:?}"));
    builtin.into_iter().chain([product]).collect()
}

/// Any number at all, and mostly one at an edge.
fn number(rng: &mut Rng) -> u32 {
    rng.pick(&[0, 1, 999, 1000, 65_536, Amounts::MAX - 1, Amounts::MAX, Amounts::MAX + 1, u32::MAX])
}

/// A number that a node may have.
fn amount(rng: &mut Rng) -> u32 {
    rng.pick(&[0, 1, 1000, 65_536, Amounts::MAX - 1, Amounts::MAX])
}

fn amounts(rng: &mut Rng, of: fn(&mut Rng) -> u32) -> Amounts {
    Amounts { cpu_milli: of(rng), memory_mib: of(rng), disk_mib: of(rng), bandwidth_mbps: of(rng) }
}

fn ratios(rng: &mut Rng) -> Ratios {
    Ratios { cpu_permille: number(rng), memory_permille: number(rng), disk_permille: number(rng) }
}

fn moment(rng: &mut Rng) -> Timestamp {
    let day = Timestamp::DAY;
    let near = [-1_000_000, -1, 0, 1, 60, 91, day, 7 * day];
    let far = [i64::MIN, i64::MIN + 1, i64::MAX - 1, i64::MAX];
    Timestamp(if rng.chance(60) { rng.pick(&near) } else { rng.pick(&far) })
}

fn text(rng: &mut Rng) -> String {
    rng.pick(&["", "a", "b", "é漢字🎉", "\u{0}", "a b", "new-node"]).to_owned()
}

fn node_id(rng: &mut Rng) -> NodeId {
    NodeId::new(rng.pick(&["a", "b", "c", "d", "é漢字🎉"]))
}

fn instance_id(rng: &mut Rng) -> InstanceId {
    InstanceId::from_u128(rng.below(40) as u128)
}

fn boot(rng: &mut Rng) -> BootOutcome {
    BootOutcome::new(moment(rng), rng.chance(50))
}

/// Draws something now and then.
fn maybe<T>(rng: &mut Rng, percent: u64, of: impl FnOnce(&mut Rng) -> T) -> Option<T> {
    rng.chance(percent).then(|| of(rng))
}

/// Facts of which each is the usual or, now and then, an extreme. Most nodes pass most filters, so
/// that all filters and scores are reached.
fn facts(rng: &mut Rng) -> NodeFacts {
    let most = Amounts::new(Amounts::MAX, Amounts::MAX).with_disk(Amounts::MAX);
    let capacity = match rng.below(20) {
        0 => amounts(rng, number),
        1..6 => amounts(rng, amount),
        _ => most.with_bandwidth(Amounts::MAX),
    };
    let usual = NodeFacts::new("unnamed", capacity);
    let (id, nobody) = (node_id(rng), NodeId::new(""));
    NodeFacts {
        id: if rng.chance(98) { id } else { nobody },
        state: maybe(rng, 20, state).unwrap_or_default(),
        heartbeat_at: maybe(rng, 30, moment).unwrap_or(Timestamp(7 * Timestamp::DAY)),
        capacity: maybe(rng, 95, |_| capacity),
        extra: maybe(rng, 40, |rng| (text(rng), amount(rng))).into_iter().collect(),
        system_reserve: maybe(rng, 10, |rng| amounts(rng, amount)).unwrap_or_default(),
        ratios: maybe(rng, 20, ratios).unwrap_or_default(),
        vmm_overhead_mib: maybe(rng, 20, amount).unwrap_or(usual.vmm_overhead_mib),
        instance_limit: maybe(rng, 20, amount).unwrap_or(usual.instance_limit),
        other: maybe(rng, 20, other_usage).unwrap_or_default(),
        hardware_class: rng.pick(&[i32::MIN, -1, 0, 1, i32::MAX]),
        scratch_mib: maybe(rng, 10, number).unwrap_or(usual.scratch_mib),
        overlay_loss_ppm: maybe(rng, 10, number).unwrap_or(0),
        watermarks: maybe(rng, 10, watermarks).unwrap_or_default(),
        ..described(rng, usual)
    }
}

fn watermarks(rng: &mut Rng) -> Watermarks {
    Watermarks { cpu_permille: rng.pick(&[0, u16::MAX]), memory_permille: rng.pick(&[0, u16::MAX]) }
}

fn other_usage(rng: &mut Rng) -> OtherUsage {
    OtherUsage {
        cpu_milli: number(rng),
        memory_kib: rng.pick(&[0, 1, 1 << 31, (1 << 41) - 1, u64::MAX]),
        cpu_unit_milli: number(rng),
        memory_unit_mib: number(rng),
    }
}

/// The part of the facts that is texts and times.
fn described(rng: &mut Rng, usual: NodeFacts) -> NodeFacts {
    let network = |rng: &mut Rng| Network { tag: text(rng), link: LinkState::Up };
    let platform = |rng: &mut Rng| Platform {
        version: PlatformVersion::new(rng.pick(&[0, 7, u16::MAX]), 0),
        built_at: moment(rng),
    };
    NodeFacts {
        labels: maybe(rng, 50, |rng| (text(rng), text(rng))).into_iter().collect(),
        traits: maybe(rng, 30, |rng| (text(rng), TraitValue::Text(text(rng))))
            .into_iter()
            .collect(),
        zone: maybe(rng, 60, text),
        rack: maybe(rng, 60, text),
        platform: maybe(rng, 50, platform),
        last_boot: maybe(rng, 40, moment),
        next_reboot: maybe(rng, 50, moment),
        networks: maybe(rng, 30, network).into_iter().collect(),
        cached_images: (0..rng.below(3)).map(|_| text(rng)).collect(),
        boots: (0..rng.below(3)).map(|_| boot(rng)).collect(),
        cpu_cap_mode: rng.pick(&[CpuCapMode::Uniform, CpuCapMode::Mixed, CpuCapMode::Capped]),
        ..usual
    }
}

/// A request of which each part is left out or an extreme; often small, so that it fits somewhere.
fn request(rng: &mut Rng, id: InstanceId) -> InstanceRequest {
    let large = amounts(rng, number);
    let small = Amounts::new(rng.pick(&[0, 1, 1000]), rng.pick(&[1, 100]));
    let resources = if rng.chance(20) { large } else { small };
    let tenant = if rng.chance(3) { "" } else { rng.pick(&["a", "a", "b", "é漢字🎉"]) };
    let usual = InstanceRequest::new(id, tenant, resources);
    let elastic = |rng: &mut Rng| Elastic::new(amounts(rng, amount), amounts(rng, amount));
    InstanceRequest {
        resources,
        name: maybe(rng, 30, text),
        workload: maybe(rng, 50, text),
        env: maybe(rng, 20, text),
        needs_secrets: rng.chance(3),
        extra: maybe(rng, 10, |rng| (text(rng), number(rng))).into_iter().collect(),
        elastic: maybe(rng, 5, elastic),
        traits: maybe(rng, 5, |rng| (text(rng), TraitValue::List(vec![]))).into_iter().collect(),
        networks: maybe(rng, 5, |rng| vec![text(rng)]).into_iter().collect(),
        ratios: maybe(rng, 5, ratios),
        capacity_type: maybe(rng, 10, |_| CapacityType::Spot),
        volumes: maybe(rng, 8, |_| "volume".to_owned()).into_iter().collect(),
        cpu_capped: rng.chance(30),
        image: maybe(rng, 50, text),
        image_mib: maybe(rng, 15, number).unwrap_or(0),
        priority: rng.pick(&[i32::MIN, 0, i32::MAX]),
        excluded_nodes: maybe(rng, 20, node_id).into_iter().collect(),
        ..tied(rng, usual)
    }
}

/// The part of the request that is about other instances and about versions.
fn tied(rng: &mut Rng, mut request: InstanceRequest) -> InstanceRequest {
    let rules = [
        "role==a",
        "role!=a@rack",
        "role!=~*@zone",
        "instance!=00000000",
        "workload==/a/",
        "image!=a",
        "role==~b@rack",
    ];
    let hint = |rng: &mut Rng| match rng.chance(50) {
        true => Hint::Tag("role".to_owned(), text(rng)),
        false => Hint::Instance(instance_id(rng)),
    };
    request.tags.extend(maybe(rng, 60, |rng| ("role".to_owned(), text(rng))));
    request.groups.extend(maybe(rng, 30, |rng| rng.pick(&GROUPS).to_owned()));
    for _ in 0..rng.below(3) {
        request.affinity.extend(maybe(rng, 40, |rng| Rule::parse(rng.pick(&rules)).unwrap()));
        request.locality.near.extend(maybe(rng, 20, hint));
        request.locality.far.extend(maybe(rng, 30, hint));
    }
    request.locality.strict = rng.chance(30);
    let bound = |rng: &mut Rng| (PlatformVersion::new(7, 0), moment(rng));
    request.platform.min.extend(maybe(rng, 15, bound));
    request.platform.max.extend(maybe(rng, 15, bound));
    request
}

const GROUPS: [&str; 3] = ["apart", "together", "é漢字🎉"];

fn furnished(policy: Policy, rng: &mut Rng) -> Engine {
    let mut engine = Engine::new(policy);
    for id in GROUPS {
        engine.fleet_mut().put_group(Group {
            id: id.to_owned(),
            tenant: None,
            kind: if id == "together" { GroupKind::Together } else { GroupKind::Apart },
            strength: rng.pick(&[Strength::Hard, Strength::Soft]),
            topology: rng.pick(&Topology::ALL),
            max_per_domain: rng.pick(&[None, Some(0), Some(2), Some(u32::MAX)]),
        });
    }
    for _ in 0..4 {
        // Whether the facts could be stored or not.
        drop(engine.fleet_mut().add_node(&facts(rng)));
    }
    let (id, home) = ("volume".to_owned(), NodeId::new("a"));
    engine.fleet_mut().put_volume(Volume { tenant: None, id, home, attached_to: None });
    let free = rng.pick(&[None, None, Some(u64::MAX), Some(u64::MAX), Some(1)]);
    engine.fleet_mut().set_free_addresses(free);
    engine
}

/// A refusal in every form that anybody can read.
fn read(refusal: &Refusal, engine: &Engine) {
    for audience in [Audience::Operator, Audience::Tenant("a"), Audience::Tenant("")] {
        let seen = refusal.redacted_for(audience, engine.policy());
        let text = format!("{seen}{}{seen:?}", seen.headline());
        assert!(!text.is_empty());
        assert!(serde_json::to_string(&seen).is_ok());
    }
}

/// Places in every way, which must agree; claims what was placed.
fn place(engine: &mut Engine, request: &InstanceRequest, now: Timestamp) {
    let mut answer = |reuse| match engine.place_with(request, now, reuse) {
        Ok(placed) => Some(placed),
        Err(PlaceError::Refused(refusal)) => {
            read(&refusal, engine);
            None
        }
        Err(PlaceError::Invalid(invalid)) => {
            assert!(!invalid.to_string().is_empty());
            None
        }
    };
    let (ranked, scanned) = (answer(Reuse::Ranking), answer(Reuse::Nothing));
    assert_eq!(ranked, scanned);
    if let Some(placed) = ranked {
        assert_eq!(engine.check(request, &placed.node, now), Ok(()));
        engine.fleet_mut().claim(request, &placed.node).expect("a node that was just found");
    }
}

fn place_batch(engine: &mut Engine, rng: &mut Rng, class: &InstanceRequest, now: Timestamp) {
    let member = |rng: &mut Rng, number: u128| {
        let id = InstanceId::from_u128(number);
        let other = request(rng, id);
        if rng.chance(60) { InstanceRequest { id, ..class.clone() } } else { other }
    };
    let requests = (1000..1003).map(|number| member(rng, number)).collect();
    let modes = [BatchMode::AllOrNothing, BatchMode::AtLeast(2), BatchMode::AtLeast(usize::MAX)];
    let mode = rng.pick(&modes);
    let search_budget = rng.pick(&[0, 1, 50]);
    let batch = Batch { search_budget, ..Batch::new(requests) }.with_mode(mode);
    if let Ok(outcome) = engine.place_batch(&batch, now) {
        outcome.refused.iter().for_each(|(_, refusal)| read(refusal, engine));
    }
}

fn explain(engine: &mut Engine, request: &InstanceRequest, now: Timestamp) {
    if let Ok(explanation) = engine.explain(request, now) {
        for audience in [Audience::Operator, Audience::Tenant("a")] {
            let seen = explanation.redacted_for(audience, engine.policy());
            assert!(serde_json::to_string(&seen).is_ok());
        }
    }
}

fn step(engine: &mut Engine, classes: &[InstanceRequest], seed: u64) {
    let rng = &mut Rng::new(seed);
    let (node, id, now) = (node_id(rng), instance_id(rng), moment(rng));
    let own = request(rng, id);
    let class = if rng.chance(70) { rng.pick(classes) } else { own };
    let request = InstanceRequest { id, ..class };
    match rng.below(16) {
        0..4 => {
            let added = engine.fleet_mut().add_node(&facts(rng));
            assert!(added.is_ok() || !added.unwrap_err().to_string().is_empty());
        }
        4 => {
            engine.fleet_mut().heartbeat(&node, now);
        }
        5 => {
            engine.fleet_mut().record_boot(&node, boot(rng));
        }
        6 => drop(engine.fleet_mut().claim(&request, &node)),
        7 => drop(engine.fleet_mut().release(id)),
        8 => {
            assert!(!engine.fleet_mut().remove_node(&node) || engine.fleet().node(&node).is_none())
        }
        9 => explain(engine, &request, now),
        10 => drop(engine.propose_preemption(&request, now, &|_| true)),
        11 => place_batch(engine, rng, &request, now),
        _ => place(engine, &request, now),
    }
}

proptest! {
    #![proptest_config(config("proptest-regressions/extremes.txt", 150))]

    #[test]
    fn no_value_and_no_order_of_calls_makes_the_engine_panic(
        setting in any::<u64>().no_shrink(),
        steps in vec(any::<u64>().no_shrink(), 1..=60),
    ) {
        for policy in policies() {
            let rng = &mut Rng::new(setting);
            let mut engine = furnished(policy, rng);
            let nobody = InstanceId::from_u128(0);
            let classes: Vec<_> = (0..4).map(|_| request(rng, nobody)).collect();
            steps.iter().for_each(|seed| step(&mut engine, &classes, *seed));
        }
    }
}

/// Text that looks like an expression more or less: parts of the grammar in their order, or any
/// of its characters in none.
fn expressions() -> impl Strategy<Value = String> {
    let alphabet = r"[a-cA0-9_~@=!\-:. \t*/()?+\[\]\\^$|,{}<>é]{0,24}";
    let key =
        prop_oneof![Just("role".to_owned()), Just(" container ".to_owned()), "[a-c_.9-]{0,3}"];
    let operator = select(vec!["==", "!=", "==~", "!=~", "=", "=~", "!==", " == "]);
    let value = r"[ab0*? ]{1,8}|/[ab.*+?()|\[\]\\^${},0-9-]{0,12}/?";
    let scope = select(vec!["", "@node", "@rack", " @zone ", "@", "@row"]);
    let ordered = (key, operator, value, scope);
    let ordered = ordered.prop_map(|(key, op, value, scope)| format!("{key}{op}{value}{scope}"));
    prop_oneof![3 => ordered, 1 => alphabet]
}

proptest! {
    #![proptest_config(config("proptest-regressions/expressions.txt", 2000))]

    #[test]
    fn an_expression_is_refused_in_words_or_read_and_shown_as_an_equal_rule(text in expressions()) {
        match Rule::parse(&text) {
            Err(error) => assert!(!error.to_string().is_empty()),
            Ok(rule) => {
                let again = Rule::parse(&rule.to_string()).expect("canonical text");
                prop_assert_eq!(again.subject(), rule.subject());
                prop_assert_eq!(again.operator(), rule.operator());
                prop_assert_eq!(again.strength(), rule.strength());
                prop_assert_eq!(again.scope(), rule.scope());
                prop_assert_eq!(again.pattern().source(), rule.pattern().source());
                prop_assert_eq!(again, rule);
            }
        }
    }

    #[test]
    fn any_few_rules_together_can_be_checked(texts in vec(expressions(), 0..6)) {
        let rules: Vec<Rule> = texts.iter().filter_map(|text| Rule::parse(text).ok()).collect();
        for finding in lint(&rules) {
            assert!(!finding.to_string().is_empty());
        }
    }
}
