//! Random requests. A shape is a seed: the same shape with another id is the same class.

use std::collections::BTreeMap;

use berth_engine::affinity::{Rule, lint};
use berth_engine::node_selector::NodeSelector;
use berth_engine::{
    Amounts, CapacityType, Elastic, Hint, InstanceId, InstanceRequest, Locality, PlatformBounds,
    PlatformVersion,
};

use super::random::{
    ENVS, GROUPS, IMAGES, NAMES, Rng, TAGS, TENANTS, TRAITS, VOLUMES, WORKLOADS, Wildness, node_id,
    ratios, trait_value,
};

/// The id of the `number`th instance; half of them start alike.
pub fn instance_id(number: u64) -> InstanceId {
    let start = if number.is_multiple_of(2) { 0xabcd_1234 } else { 0 };
    InstanceId::from_u128((start << 96) | u128::from(number + 100))
}

/// A request of a shape. Ids and names differ within a class.
pub fn request(shape: u64, number: u64, wild: Wildness) -> InstanceRequest {
    let mut rng = Rng::new(shape);
    let odds = wild.0;
    let resources = Amounts {
        cpu_milli: rng.pick(&[0, 250, 1000, 1500, 2000]),
        memory_mib: rng.pick(&[256, 512, 1000, 1024, 2048]),
        disk_mib: rng.pick(&[0, 4096, 10_000, 15_000]),
        bandwidth_mbps: rng.pick(&[0, 0, 100, 600]),
    };
    let mut request = InstanceRequest::new(instance_id(number), rng.pick(&TENANTS), resources);
    request.resources = resources;
    request.workload = rng.chance(75).then(|| rng.pick(&WORKLOADS).to_owned());
    request.image = rng.chance(50).then(|| rng.pick(&IMAGES).to_owned());
    request.cpu_capped = rng.chance(20);
    request.priority = i32::from(rng.chance(20));
    if rng.chance(60) {
        let role = rng.pick(&["web", "db", "cache"]).to_owned();
        request.tags.insert("role".to_owned(), role);
    }
    if rng.chance(30) {
        let tier = rng.pick(&["a", "b"]).to_owned();
        request.tags.insert("tier".to_owned(), tier);
    }
    others(&mut rng, &mut request);
    wishes(&mut rng, odds, &mut request);
    demands(&mut rng, odds, &mut request);
    let mut own = Rng::new(number ^ 0x6e61);
    request.name = own.chance(40).then(|| own.pick(&NAMES).to_owned());
    request
}

/// Groups, rules and hints.
fn others(rng: &mut Rng, request: &mut InstanceRequest) {
    if rng.chance(25) {
        let chosen = GROUPS.iter().filter(|_| rng.chance(40));
        request.groups = chosen.map(|id| (*id).to_owned()).collect();
    }
    if rng.chance(40) {
        let rules = rng.below(3) + 1;
        request.affinity = (0..rules).map(|_| rule(rng)).collect();
        if lint(&request.affinity).iter().any(|finding| finding.is_fatal()) {
            request.affinity.truncate(1);
        }
    }
    if rng.chance(15) {
        let hints = |rng: &mut Rng| {
            let count = rng.below(3);
            (0..count).map(|_| hint(rng)).collect()
        };
        request.locality = Locality { near: hints(rng), far: hints(rng), strict: rng.chance(40) };
    }
}

fn hint(rng: &mut Rng) -> Hint {
    match rng.below(3) {
        0 => Hint::Instance(instance_id(rng.below(12) as u64)),
        1 => Hint::Tag("tier".to_owned(), rng.pick(&["a", "b"]).to_owned()),
        _ => {
            let role = rng.pick(&["web", "db", "cache"]).to_owned();
            Hint::Tag("role".to_owned(), role)
        }
    }
}

fn rule(rng: &mut Rng) -> Rule {
    let (subject, values): (&str, &[&str]) = match rng.below(6) {
        0 | 5 => (
            "instance",
            &["web-1", "web-*", "/^db/", "abcd1234", "00000000", "/^abcd/", "abcd1234-0000"],
        ),
        1 => ("workload", &["web", "d*", "/^c/", "nothing"]),
        2 => ("image", &["img-a", "img-*", "/[bc]$/"]),
        3 => ("role", &["web", "db", "*b", "/a|e/", "absent"]),
        _ => ("tier", &["a", "*", "/^[ab]$/"]),
    };
    let operator = rng.pick(&["==", "!=", "!=", "==~", "==~", "!=~", "!=~"]);
    let scope = rng.pick(&["", "", "", "@rack", "@zone"]);
    let text = format!("{subject}{operator}{}{scope}", rng.pick(values));
    Rule::parse(&text).unwrap_or_else(|error| panic!("{error}"))
}

/// What may keep it off nodes now and then.
fn wishes(rng: &mut Rng, odds: u64, request: &mut InstanceRequest) {
    if rng.chance(20) {
        request.extra.insert("gpu".to_owned(), rng.number(0, 2));
    }
    if rng.chance(odds / 2) {
        request.extra.insert("tpu".to_owned(), 1);
    }
    if rng.chance(10) {
        let chosen = VOLUMES.iter().filter(|_| rng.chance(50));
        request.volumes = chosen.map(|id| (*id).to_owned()).collect();
    }
    if rng.chance(15) {
        request.env = rng.chance(80).then(|| rng.pick(&ENVS).to_owned());
        request.needs_secrets = rng.chance(60);
    }
    if rng.chance(30) {
        request.image_mib = rng.pick(&[100, 5000]);
    }
    if rng.chance(10) {
        let nodes = 1 + rng.below(60);
        request.excluded_nodes = (0..nodes).map(|_| node_id(rng.next()).as_str().into()).collect();
    }
    if rng.chance(20) {
        let (min, max) = (Amounts::new(0, 128), Amounts::new(8000, 8192));
        request.elastic = Some(Elastic::new(min, max));
    }
}

/// Places that are asked for or preferred.
const SELECTORS: [&str; 9] = [
    "zone = z1",
    "zone in (z0, z2)",
    "not rack = r1",
    "zone = z1 or rack = r2",
    "zone = z0 and rack = r0",
    "label:tier = gold",
    "not has label:tier and zone != z0",
    "id ~ n1*",
    "hardware_class > 0 or capacity_type = spot",
];

/// What is asked of facts.
fn demands(rng: &mut Rng, odds: u64, request: &mut InstanceRequest) {
    request.exclude_virtual = rng.chance(odds);
    if rng.chance(odds) {
        request.capacity_type = Some(rng.pick(&[CapacityType::OnDemand, CapacityType::Spot]));
    }
    if rng.chance(odds) {
        let name = rng.pick(&TRAITS).to_owned();
        request.traits.insert(name, trait_value(rng));
    }
    if rng.chance(odds) {
        let any_of = TAGS.iter().filter(|_| rng.chance(50));
        let mut any_of: Vec<String> = any_of.map(|tag| (*tag).to_owned()).collect();
        any_of.push("net-a".to_owned());
        request.networks = vec![any_of];
    }
    if rng.chance(odds) {
        request.ratios = Some(ratios(rng));
    }
    if rng.chance(odds) {
        let mut bounds = || {
            let versions = 0..rng.below(3);
            let each = versions.map(|_| {
                let minor = u16::try_from(rng.below(4)).expect("small");
                (PlatformVersion::new(7, minor), rng.moment(20, 0))
            });
            each.collect::<BTreeMap<_, _>>()
        };
        request.platform = PlatformBounds { min: bounds(), max: bounds() };
    }
    let selector = |rng: &mut Rng| NodeSelector::parse(rng.pick(&SELECTORS)).expect("a selector");
    if rng.chance(odds) {
        request.required_place = Some(selector(rng));
    }
    if rng.chance(2 * odds) {
        let count = 1 + rng.below(3);
        request.preferred_places = (0..count).map(|_| selector(rng)).collect();
    }
    // More than some hosts have, and more than all have.
    if rng.chance(odds) {
        request.resources.cpu_milli = rng.pick(&[4001, 6000, 9000]);
        request.elastic = None;
    }
}
