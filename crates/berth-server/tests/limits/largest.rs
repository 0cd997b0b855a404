//! What the largest legal request costs, of each kind: to read it, to place it and to explain why it has no place; and
//! what the largest facts of a node cost.
//!
//! Bytes that are allocated are counted, so that they are the same on every machine: a request of twice the size may
//! cost little more than twice as much. Copies of the request for each of its parts, which once took minutes, would cost
//! four times as much. CPU time of the thread is compared, too, since a loop over all pairs need not allocate: four times
//! the size would take sixteen times as long.

use allocation_counter::measure;
use berth_api::PlaceRequest;
use berth_api::limits::{Limited as _, table};
use berth_control::instance_spec::request_of;
use berth_engine::affinity::{Strength, Topology};
use berth_engine::{
    Amounts, Batch, Engine, FactLayer, Group, GroupKind, InstanceId, InstanceRequest, NodeFacts,
    NodeId, PlaceError, Policy, Timestamp, Volume,
};
use serde_json::{Map, Value, json};

/// Nodes, each a rack of its own.
const NODES: usize = 40;

/// What a request may hold at once on its way, whatever it asks for.
const PEAK_BYTES: u64 = 64 << 20;

/// What twice the size may cost, in hundredths of what the size costs.
const GROWTH_PERCENT: u64 = 260;

/// How many times as long four times the size may take.
const GROWTH_OF_TIME: u64 = 8;

/// CPU time below which a measurement says nothing: for so long a request is repeated.
const MEASURED_NS: u64 = 4_000_000;

/// What one request cost.
#[derive(Clone, Copy, Debug)]
struct Cost {
    bytes: u64,
    peak_bytes: u64,
}

/// A fleet on which every hard rule, trait and network below is refused.
fn engine() -> Engine {
    let mut engine = Engine::new(Policy::builtin("balanced").unwrap());
    for number in 0..NODES {
        let capacity = Amounts::new(64_000, 1 << 20).with_disk(1 << 24);
        let mut facts = NodeFacts::new(&format!("n{number:02}"), capacity);
        (facts.zone, facts.rack) = (Some("z".to_owned()), Some(format!("r{number}")));
        facts.instance_limit = 10_000;
        engine.fleet_mut().add_node(&facts).unwrap();
        for resident in 0..64 {
            let id = InstanceId::from_u128((number * 1000 + resident + 1) as u128);
            let mut request = InstanceRequest::new(id, "acme", Amounts::new(1, 1));
            request.tags.insert("role".to_owned(), format!("r{resident:02}"));
            let node = NodeId::new(&format!("n{number:02}"));
            engine.fleet_mut().claim(&request, &node).unwrap();
        }
    }
    for number in 0..table::GROUPS.most() {
        engine.fleet_mut().put_group(Group {
            id: format!("g{number:03}"),
            tenant: None,
            kind: GroupKind::Apart,
            strength: Strength::Hard,
            topology: Topology::Node,
            max_per_domain: None,
        });
    }
    for number in 0..table::VOLUMES.most() {
        engine.fleet_mut().put_volume(Volume {
            id: format!("v{number:03}"),
            tenant: None,
            home: NodeId::new(&format!("n{:02}", number % NODES)),
            attached_to: None,
        });
    }
    engine
}

fn names(prefix: &str, count: usize) -> Vec<String> {
    (0..count).map(|number| format!("{prefix}{number:03}")).collect()
}

fn map(count: usize, value: &Value) -> Value {
    let entries = names("k", count).into_iter().map(|key| (key, value.clone()));
    Value::Object(entries.collect::<Map<_, _>>())
}

/// What a request or fact is of: how many parts it may have, and what is done with it.
struct Kind {
    name: &'static str,
    most: usize,
    body: fn(usize) -> Value,
    serve: fn(&mut Engine, &str),
}

/// One instance with these parts.
fn one(parts: Value) -> Value {
    let mut instance = parts;
    instance["resources"] = json!({"memory_mib": 64});
    json!({"instances": [instance]})
}

/// The same, which no node has room for.
fn too_large(parts: Value) -> Value {
    let mut request = one(parts);
    request["instances"][0]["resources"]["memory_mib"] = json!(1 << 30);
    request
}

fn kinds() -> Vec<Kind> {
    let requests = kinds_of_requests().into_iter();
    let requests = requests.map(|(name, most, body)| Kind { name, most, body, serve });
    requests.chain(kinds_of_batches()).chain(kinds_of_facts()).collect()
}

/// A name, how large, and what makes a request of a size.
type KindOfRequest = (&'static str, usize, fn(usize) -> Value);

fn kinds_of_requests() -> Vec<KindOfRequest> {
    vec![
        ("tags", table::TAGS.most(), |count| {
            too_large(json!({"tags": map(count, &json!("v".repeat(200)))}))
        }),
        ("groups", table::GROUPS.most(), |count| too_large(json!({"groups": names("g", count)}))),
        ("volumes", table::VOLUMES.most(), |count| one(json!({"volumes": names("v", count)}))),
        ("attachments", table::ATTACHMENTS.most(), |count| {
            too_large(json!({"attachments": names(&"a".repeat(180), count)}))
        }),
        ("terms of a selector", SELECTOR_TERMS, |count| {
            let terms: Vec<String> =
                names("x", count).iter().map(|x| format!("rack={x}")).collect();
            one(json!({"where": terms.join(" or ")}))
        }),
        ("traits", table::TRAITS.most(), |count| one(json!({"traits": map(count, &json!(true))}))),
        ("networks", table::NETWORKS.most(), |count| {
            let sets = names("s", count).into_iter().map(|set| names(&set[2..], 16));
            one(json!({"networks": sets.collect::<Vec<_>>()}))
        }),
        ("extra", table::EXTRA.most(), |count| one(json!({"extra": map(count, &json!(1))}))),
        ("rules", table::RULES.most(), |count| {
            let regexes = (0..count / 4).map(|n| format!("role!=/^r{n:02}$/"));
            let plain = (count / 4..count).map(|n| format!("role!=r{n:02}"));
            one(json!({"affinity": regexes.chain(plain).collect::<Vec<_>>()}))
        }),
        ("hints", table::HINTS.most(), |count| {
            let tag = |n: usize| json!({"tag": ["role", format!("r{n:02}")]});
            let far: Vec<Value> = (0..count).map(tag).collect();
            one(json!({"locality": {"far": far, "strict": true}}))
        }),
        ("preferred places", table::PREFERRED_PLACES.most(), |count| {
            too_large(json!({"prefer": names("rack = r", count)}))
        }),
    ]
}

/// Terms of the largest selector.
const SELECTOR_TERMS: usize = 60;

fn kinds_of_batches() -> Vec<Kind> {
    let several: fn(usize) -> Value = |count| {
        // No two are of one class, and none fits.
        let spec = |number: usize| json!({"resources": {"memory_mib": (1 << 30) + number}, "tags": {"role": format!("x{number}")}});
        json!({"instances": (0..count).map(spec).collect::<Vec<_>>()})
    };
    let copies: fn(usize) -> Value = |count| {
        let mut request = too_large(json!({"tags": map(10, &json!("v".repeat(200)))}));
        request["instances"][0]["count"] = json!(count);
        request
    };
    // As many as there may be of specifications this large.
    let (specs, copied) = (table::INSTANCES.most(), table::INSTANCES.most());
    vec![
        Kind { name: "specifications", most: specs, body: several, serve: serve_batch },
        Kind {
            name: "count of instances with tags",
            most: copied,
            body: copies,
            serve: serve_batch,
        },
    ]
}

fn kinds_of_facts() -> Vec<Kind> {
    vec![
        Kind {
            name: "labels of a node",
            most: table::NODE_LABELS.most(),
            body: |count| facts_with(json!({"labels": map(count, &json!("v".repeat(200)))})),
            serve: serve_facts,
        },
        Kind {
            name: "networks of a node",
            most: table::NODE_NETWORKS.most(),
            body: |count| {
                let network = |tag: String| json!({"tag": tag, "link": "up"});
                let networks = names("net", count).into_iter().map(network);
                facts_with(json!({"networks": networks.collect::<Vec<_>>()}))
            },
            serve: serve_facts,
        },
        Kind {
            name: "images of a node",
            most: table::NODE_IMAGES.most(),
            body: |count| facts_with(json!({"cached_images": names("image", count)})),
            serve: serve_facts,
        },
    ]
}

fn facts_with(parts: Value) -> Value {
    let mut facts = serde_json::to_value(NodeFacts::new("new", Amounts::new(1000, 1024))).unwrap();
    facts.as_object_mut().unwrap().extend(parts.as_object().unwrap().clone());
    facts
}

/// Reads facts as a server does, and takes the node in.
fn serve_facts(engine: &mut Engine, text: &str) {
    let facts: NodeFacts = serde_json::from_str(text).unwrap();
    facts.check_limits().unwrap();
    let facts = facts.restated(None, FactLayer::Reported).unwrap();
    engine.fleet_mut().add_node(&facts).unwrap();
    assert!(engine.fleet_mut().remove_node(&facts.id));
}

/// Reads a batch as a server does, and has it refused and explained.
fn serve_batch(engine: &mut Engine, text: &str) {
    let request: PlaceRequest = serde_json::from_str(text).unwrap();
    request.check_limits().unwrap();
    let mut instances = Vec::new();
    for spec in &request.instances {
        for _ in 0..spec.count.unwrap_or(1) {
            let mut instance = request_of("acme", spec);
            instance.id = InstanceId::from_u128((1 << 40) + instances.len() as u128);
            instances.push(instance);
        }
    }
    let asked = instances.len();
    let outcome = engine.place_batch(&Batch::new(instances), Timestamp(0)).unwrap();
    assert!(outcome.placements.is_empty() && asked > 0);
    drop(serde_json::to_string(&outcome.refused).unwrap());
}

/// Reads a request as a server does, and has it refused and explained.
fn serve(engine: &mut Engine, text: &str) {
    let request: PlaceRequest = serde_json::from_str(text).unwrap();
    request.check_limits().unwrap();
    let mut instance = request_of("acme", &request.instances[0]);
    instance.id = InstanceId::from_u128(1 << 40);
    match engine.place(&instance, Timestamp(0)) {
        Err(PlaceError::Refused(refusal)) => drop(serde_json::to_string(&refusal).unwrap()),
        other => panic!("it should be refused: {other:?}"),
    }
}

fn cost(engine: &mut Engine, kind: &Kind, parts: usize) -> Cost {
    let text = (kind.body)(parts).to_string();
    let counted = measure(|| (kind.serve)(engine, &text));
    Cost { bytes: counted.bytes_total, peak_bytes: counted.bytes_max }
}

/// CPU time that this thread has used, so that other processes count for little.
fn thread_ns() -> u64 {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap();
    text.split_whitespace().next().unwrap().parse().unwrap()
}

/// The least CPU time that something took, of several attempts that are long enough to be measured.
fn time_ns(mut act: impl FnMut()) -> u64 {
    let (mut least, mut times) = (u64::MAX, 1);
    for _ in 0..3 {
        let used = loop {
            let start = thread_ns();
            (0..times).for_each(|_| act());
            let used = thread_ns() - start;
            if used >= MEASURED_NS {
                break used;
            }
            times *= 2;
        };
        least = least.min(used / times);
    }
    least.max(1)
}

/// Whether four times the size takes no more than about four times as long.
fn takes_about_linear_time(quarter_ns: u64, full_ns: u64) -> bool {
    full_ns <= quarter_ns * GROWTH_OF_TIME
}

/// Whether twice the size costs little more than twice as much.
fn is_about_linear(half: Cost, full: Cost) -> bool {
    full.bytes <= half.bytes * GROWTH_PERCENT / 100 + (64 << 10)
}

#[test]
fn the_largest_of_each_kind_costs_about_twice_as_much_as_half_of_it() {
    let mut engine = engine();
    let mut too_costly = Vec::new();
    for kind in kinds() {
        let (name, most) = (kind.name, kind.most);
        // Caches are filled by the first.
        cost(&mut engine, &kind, most);
        let (half, full) = (cost(&mut engine, &kind, most / 2), cost(&mut engine, &kind, most));
        println!("{name}: {} parts cost {half:?}, {most} cost {full:?}", most / 2);
        if !is_about_linear(half, full) || full.peak_bytes > PEAK_BYTES {
            too_costly.push((name, half, full));
        }
    }
    assert!(too_costly.is_empty(), "{too_costly:#?}");
}

#[test]
fn the_largest_of_each_kind_takes_about_four_times_as_long_as_a_quarter_of_it() {
    let mut engine = engine();
    let mut too_slow = Vec::new();
    for kind in kinds() {
        let mut time = |parts: usize| {
            let text = (kind.body)(parts).to_string();
            time_ns(|| (kind.serve)(&mut engine, &text))
        };
        let (quarter_ns, full_ns) = (time(kind.most / 4), time(kind.most));
        println!("{}: {quarter_ns} ns, {full_ns} ns for {} parts", kind.name, kind.most);
        if !takes_about_linear_time(quarter_ns, full_ns) {
            too_slow.push((kind.name, quarter_ns, full_ns));
        }
    }
    assert!(too_slow.is_empty(), "{too_slow:#?}");
}

/// The negative control of the first test: a copy of the whole for each of its parts is noticed.
#[test]
fn a_copy_of_a_request_for_each_of_its_parts_is_not_about_linear() {
    let copies = |count: usize| {
        let parts = names("part", count);
        let counted = measure(|| parts.iter().for_each(|_| drop(parts.clone())));
        Cost { bytes: counted.bytes_total, peak_bytes: counted.bytes_max }
    };
    assert!(!is_about_linear(copies(500), copies(1000)));
}

/// The negative control of the second: so is a loop over all pairs of parts, which allocates nothing; and
/// one over all parts is not.
#[test]
fn a_loop_over_all_pairs_of_parts_takes_too_long_though_it_allocates_nothing() {
    let parts = names("part", 1000);
    let pairs = |count: usize| {
        let parts = &parts[..count];
        parts.iter().filter(|part| parts.iter().filter(|other| other == part).count() > 1).count()
    };
    assert_eq!(measure(|| assert_eq!(pairs(1000), 0)).bytes_total, 0);
    let time = |count| time_ns(|| assert_eq!(std::hint::black_box(pairs(count)), 0));
    assert!(!takes_about_linear_time(time(250), time(1000)));
    let each = |count: usize| parts[..count].iter().map(String::len).sum::<usize>();
    let time = |count| time_ns(|| assert!(std::hint::black_box(each(count)) > 0));
    assert!(takes_about_linear_time(time(250), time(1000)));
}
