//! What the largest legal request for one instance costs, of each kind: bytes that are allocated to read it, to place it and
//! to explain why it has no place. Counted, not timed, so that it is the same on every machine.
//!
//! A request of twice the size may cost little more than twice as much: copies of the request for each of its
//! parts, which once took minutes, would cost four times as much.

use allocation_counter::measure;
use berth_api::PlaceRequest;
use berth_api::limits::{Limited as _, table};
use berth_control::instance_spec::request_of;
use berth_engine::{
    Amounts, Engine, InstanceId, InstanceRequest, NodeFacts, NodeId, PlaceError, Policy, Timestamp,
};
use serde_json::{Map, Value, json};

/// Nodes, each a rack of its own.
const NODES: usize = 40;

/// What a request may hold at once on its way, whatever it asks for.
const PEAK_BYTES: u64 = 64 << 20;

/// What twice the size may cost, in hundredths of what the size costs.
const GROWTH_PERCENT: u64 = 260;

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
    engine
}

fn names(prefix: &str, count: usize) -> Vec<String> {
    (0..count).map(|number| format!("{prefix}{number:03}")).collect()
}

fn map(count: usize, value: &Value) -> Value {
    let entries = names("k", count).into_iter().map(|key| (key, value.clone()));
    Value::Object(entries.collect::<Map<_, _>>())
}

/// Kinds of requests by the number of their parts, with the most that they may have.
type Kind = (&'static str, usize, fn(usize) -> Value);

fn kinds() -> Vec<Kind> {
    fn one(parts: Value) -> Value {
        let mut instance = parts;
        instance["resources"] = json!({"memory_mib": 64});
        json!({"instances": [instance]})
    }
    vec![
        ("tags", table::TAGS.most(), |count| {
            // Refused for its size.
            let mut request = one(json!({"tags": map(count, &json!("v".repeat(200)))}));
            request["instances"][0]["resources"]["memory_mib"] = json!(1 << 30);
            request
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
            let mut request = one(json!({"prefer": names("rack = r", count)}));
            request["instances"][0]["resources"]["memory_mib"] = json!(1 << 30);
            request
        }),
    ]
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

fn cost(engine: &mut Engine, request: &Value) -> Cost {
    let text = request.to_string();
    let counted = measure(|| serve(engine, &text));
    Cost { bytes: counted.bytes_total, peak_bytes: counted.bytes_max }
}

/// Whether twice the size costs little more than twice as much.
fn is_about_linear(half: Cost, full: Cost) -> bool {
    full.bytes <= half.bytes * GROWTH_PERCENT / 100 + (64 << 10)
}

#[test]
fn the_largest_request_of_each_kind_costs_about_twice_as_much_as_half_of_it() {
    let mut engine = engine();
    let mut too_costly = Vec::new();
    for (name, most, request) in kinds() {
        // Caches are filled by the first.
        cost(&mut engine, &request(most));
        let (half, full) =
            (cost(&mut engine, &request(most / 2)), cost(&mut engine, &request(most)));
        println!("{name}: {} parts cost {half:?}, {most} cost {full:?}", most / 2);
        if !is_about_linear(half, full) || full.peak_bytes > PEAK_BYTES {
            too_costly.push((name, half, full));
        }
    }
    assert!(too_costly.is_empty(), "{too_costly:#?}");
}

/// The negative control of the test above: a copy of the whole for each of its parts is noticed.
#[test]
fn a_copy_of_a_request_for_each_of_its_parts_is_not_about_linear() {
    let copies = |count: usize| {
        let parts = names("part", count);
        let counted = measure(|| parts.iter().for_each(|_| drop(parts.clone())));
        Cost { bytes: counted.bytes_total, peak_bytes: counted.bytes_max }
    };
    assert!(!is_about_linear(copies(500), copies(1000)));
}
