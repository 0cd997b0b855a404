//! Proposed fixes, tried again: what was promised to work must work.

use berth_engine::affinity::Strength;
use berth_engine::policy::Policy;
use berth_engine::{
    Engine, Fix, InstanceRequest, NodeFacts, NodeId, NodeState, PlatformBounds, Timestamp,
};

use super::decide::fitting;
use super::model::World;

/// Checks every fix that changes the request alone, and that none that works is missing.
pub fn check(
    world: &World,
    policy: &Policy,
    request: &InstanceRequest,
    fixes: &[Fix],
    now: Timestamp,
) -> Result<(), String> {
    let fitting_ids = |request: &InstanceRequest| -> Vec<NodeId> {
        fitting(world, policy, request, now).into_iter().map(|node| node.id.clone()).collect()
    };
    let mut relaxed: Vec<(&str, String, Option<NodeId>)> = Vec::new();
    for fix in fixes {
        match fix {
            Fix::Shrink { resources, extra, node } => {
                let mut smaller = request.clone();
                smaller.resources = *resources;
                smaller.extra.extend(extra.iter().map(|(class, n)| (class.clone(), *n)));
                let fits = fitting_ids(&smaller);
                if !node.as_ref().is_some_and(|node| fits.contains(node)) {
                    return Err(format!("{fix:?} leads to {fits:?}"));
                }
            }
            // A trait that a node is kept for: which ones there are is not the request's to say.
            Fix::Relax { change, .. } if change.starts_with("ask for trait ") => {}
            Fix::Relax { filter, change, node } => {
                relaxed.push((filter, change.clone(), node.clone()))
            }
            Fix::Free { .. }
            | Fix::Mend { .. }
            | Fix::AddNode { .. }
            | Fix::Fewer { .. }
            | Fix::Combined { .. } => {}
            Fix::Count { .. }
            | Fix::ChangePool { .. }
            | Fix::RaiseQuota { .. }
            | Fix::SetPool { .. } => return Err(format!("{fix:?} is about no node")),
        }
    }
    let mut expected: Vec<(&str, String, Vec<NodeId>)> = Vec::new();
    for (filter, change, changed) in relaxations(request) {
        let fits = fitting_ids(&changed);
        if !fits.is_empty() {
            expected.push((filter, change, fits));
        }
    }
    let named = |(filter, change, node): &(&str, String, Option<NodeId>),
                 (other, wanted, there): &(&str, String, Vec<NodeId>)| {
        let is_there = node.as_ref().is_some_and(|node| there.contains(node));
        filter == other && change.contains(wanted.as_str()) && is_there
    };
    let same = relaxed.len() == expected.len()
        && relaxed.iter().all(|fix| expected.iter().any(|e| named(fix, e)));
    if same { Ok(()) } else { Err(format!("proposed {relaxed:?}\nwould work {expected:?}")) }
}

/// Does to a copy of the fleet what each fix of the fleet says, and asks again.
pub fn try_out(
    engine: &Engine,
    request: &InstanceRequest,
    fixes: &[Fix],
    now: Timestamp,
) -> Result<(), String> {
    for fix in fixes {
        let mut mended = engine.clone();
        let node = match fix {
            Fix::Free { instances, node, .. } => {
                for id in instances {
                    mended.fleet_mut().release(*id);
                }
                let placed = || mended.clone().place(request, now).ok().map(|placed| placed.node);
                node.clone().filter(|node| mended.check(request, node, now).is_ok()).or_else(placed)
            }
            Fix::Mend { filter, node, .. } => {
                let node = node.clone().expect("operators see nodes");
                if !mend(&mut mended, filter, &node, now) {
                    continue;
                }
                Some(node)
            }
            Fix::AddNode { facts, .. } => {
                mended.fleet_mut().add_node(facts).map_err(|error| format!("{fix:?}: {error}"))?;
                Some(facts.id.clone())
            }
            _ => continue,
        };
        let node = node.expect("operators see nodes");
        if let Err(reason) = mended.check(request, &node, now) {
            return Err(format!("{fix:?} does not work: {reason}"));
        }
        if let Err(error) = mended.place(request, now) {
            return Err(format!("{fix:?} does not work: {error}"));
        }
    }
    Ok(())
}

/// Mends what a filter finds wrong with a node, if it can be mended by stating other facts.
fn mend(engine: &mut Engine, filter: &str, node: &NodeId, now: Timestamp) -> bool {
    let fleet = engine.fleet_mut();
    let mut restate = |change: fn(&mut NodeFacts)| {
        let mut facts = fleet.node(node).expect("a known node");
        change(&mut facts);
        fleet.add_node(&facts).expect("storable facts");
    };
    match filter {
        "node-active" => {
            // A lost node is heard again first.
            fleet.heartbeat(node, now);
            fleet.set_state(node, NodeState::Active);
        }
        "heartbeat-fresh" => {
            fleet.heartbeat(node, now);
        }
        "kvm" => restate(|facts| facts.kvm = true),
        "scratch-disk" => restate(|facts| facts.scratch_mib = u32::MAX),
        "overlay-healthy" => restate(|facts| facts.overlay_loss_ppm = 0),
        "not-reserved" => restate(|facts| facts.reserved = false),
        "not-headnode" => restate(|facts| facts.headnode = false),
        "not-sick" => restate(|facts| facts.boots.clear()),
        "no-reboot-soon" => restate(|facts| facts.next_reboot = None),
        // What the node should have had instead is not for us to say.
        "facts-valid" | "capacity-known" => return false,
        other => panic!("{other} is not about a node"),
    }
    true
}

/// The request without one of its own rules: the filter, a word of the change, the request.
fn relaxations(request: &InstanceRequest) -> Vec<(&'static str, String, InstanceRequest)> {
    let mut all: Vec<(&'static str, String, InstanceRequest)> = Vec::new();
    let mut add = |filter, word: &str, change: &dyn Fn(&mut InstanceRequest)| {
        let mut changed = request.clone();
        change(&mut changed);
        let is_listed = |(_, _, listed): &(_, _, InstanceRequest)| *listed == changed;
        if changed != *request && !all.iter().any(is_listed) {
            all.push((filter, word.to_owned(), changed));
        }
    };
    add("capacity-type", "capacity_type", &|r| r.capacity_type = None);
    add("platform", "platform", &|r| {
        r.platform = PlatformBounds::default();
    });
    add("overprovision-ratios", "ratios", &|r| r.ratios = None);
    add("not-virtual", "virtual", &|r| r.exclude_virtual = false);
    add("not-excluded", "new request", &|r| r.excluded_nodes.clear());
    add("strict-locality", "strict", &|r| r.locality.strict = false);
    add("volume-home", "volume", &|r| r.volumes.clear());
    add("cpu-cap-mixing", "CPU", &|r| r.cpu_capped = !r.cpu_capped);
    add("secrets-present", "secrets", &|r| r.needs_secrets = false);
    for name in request.traits.keys() {
        add("traits", name, &|r| drop(r.traits.remove(name)));
    }
    // What is named twice is dropped twice: one of them would keep the node out as both do.
    for set in &request.networks {
        add("networks", &set[0], &|r| r.networks.retain(|other| other != set));
    }
    if let Some(selector) = &request.required_place {
        for part in selector.parts() {
            add("placement-constraint", &part.to_string(), &|r| {
                r.required_place = selector.without(&part);
            });
        }
    }
    for group in &request.groups {
        add("groups", group, &|r| r.groups.retain(|other| other != group));
    }
    for rule in &request.affinity {
        if rule.strength() == Strength::Hard {
            add("affinity", rule.as_str(), &|r| r.affinity.retain(|other| other != rule));
        }
    }
    all
}
