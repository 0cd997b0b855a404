//! Proposed fixes, tried again: what was promised to work must work.

use berth_engine::affinity::Strength;
use berth_engine::policy::Policy;
use berth_engine::{Fix, InstanceRequest, NodeId, PlatformBounds, Timestamp};

use super::decide::{Answer, decide};
use super::model::World;

/// Checks every fix that changes the request alone, and that none that works is missing.
pub fn check(
    world: &World,
    policy: &Policy,
    request: &InstanceRequest,
    fixes: &[Fix],
    now: Timestamp,
) -> Result<(), String> {
    let winner = |request: &InstanceRequest| match decide(world, policy, request, now) {
        Answer::Placed { node, .. } => Some(node),
        Answer::Refused(_) => None,
    };
    let mut relaxed: Vec<(&str, String, Option<NodeId>)> = Vec::new();
    for fix in fixes {
        match fix {
            Fix::Shrink { resources, node } => {
                let mut smaller = request.clone();
                smaller.resources = *resources;
                let fits = winner(&smaller);
                if fits.is_none() || fits != *node {
                    return Err(format!("{fix:?} leads to {fits:?}"));
                }
            }
            Fix::Relax { filter, change, node } => {
                relaxed.push((filter, change.clone(), node.clone()))
            }
            Fix::Free { .. } | Fix::Mend { .. } | Fix::AddNode { .. } => {}
        }
    }
    let mut expected: Vec<(&str, String, Option<NodeId>)> = Vec::new();
    for (filter, change, changed) in relaxations(request) {
        if let Some(node) = winner(&changed) {
            expected.push((filter, change, Some(node)));
        }
    }
    let named = |(filter, change, node): &(&str, String, Option<NodeId>),
                 (other, wanted, there): &(&str, String, Option<NodeId>)| {
        filter == other && change.contains(wanted.as_str()) && node == there
    };
    let same = relaxed.len() == expected.len()
        && relaxed.iter().all(|fix| expected.iter().any(|e| named(fix, e)));
    if same { Ok(()) } else { Err(format!("proposed {relaxed:?}\nwould work {expected:?}")) }
}

/// The request without one of its own rules: the filter, a word of the change, the request.
fn relaxations(request: &InstanceRequest) -> Vec<(&'static str, String, InstanceRequest)> {
    let mut all = Vec::new();
    let mut add = |filter, word: &str, change: &dyn Fn(&mut InstanceRequest)| {
        let mut changed = request.clone();
        change(&mut changed);
        if changed != *request {
            all.push((filter, word.to_owned(), changed));
        }
    };
    add("capacity-type", "capacity_type", &|r| r.capacity_type = None);
    add("platform", "platform", &|r| {
        r.platform = PlatformBounds::default();
    });
    add("overprovision-ratios", "ratios", &|r| r.ratios = None);
    add("not-virtual", "virtual", &|r| r.exclude_virtual = false);
    add("strict-locality", "strict", &|r| r.locality.strict = false);
    add("volume-home", "volume", &|r| r.volumes.clear());
    add("cpu-cap-mixing", "CPU", &|r| r.cpu_capped = !r.cpu_capped);
    add("secrets-present", "secrets", &|r| r.needs_secrets = false);
    for name in request.traits.keys() {
        add("traits", name, &|r| drop(r.traits.remove(name)));
    }
    for place in 0..request.networks.len() {
        let word = &request.networks[place][0];
        add("networks", word, &|r| drop(r.networks.remove(place)));
    }
    for group in &request.groups {
        add("groups", group, &|r| r.groups.retain(|other| other != group));
    }
    for (place, rule) in request.affinity.iter().enumerate() {
        if rule.strength() == Strength::Hard {
            add("affinity", rule.as_str(), &|r| drop(r.affinity.remove(place)));
        }
    }
    all
}
