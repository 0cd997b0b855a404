//! A fix, done to the letter on a copy of everything: what its text says, and nothing else.

use berth_engine::{
    Amounts, Batch, BatchMode, Fix, InstanceRequest, NodeFacts, NodeId, NodeState, PlatformBounds,
    Refusal, Timestamp, TraitValue,
};

use crate::fleets::Scene;
use crate::is_legal;
use crate::oracle::twin::Twin;

/// What was asked, and how much of it must be placed.
#[derive(Clone, Debug)]
pub(crate) struct RequestUnderTest {
    pub(crate) requests: Vec<InstanceRequest>,
    mode: BatchMode,
    budget: Option<u32>,
}

impl RequestUnderTest {
    pub(crate) fn one(request: &InstanceRequest) -> Self {
        Self { requests: vec![request.clone()], mode: BatchMode::AllOrNothing, budget: None }
    }

    pub(crate) fn all(batch: &Batch) -> Self {
        // Of a batch that takes what it gets, and got nothing, at least one is wanted.
        let mode = match batch.mode {
            BatchMode::BestEffort => BatchMode::AtLeast(1),
            other => other,
        };
        Self { requests: batch.requests.clone(), mode, budget: Some(batch.search_budget) }
    }

    /// What was left out of a batch of which some were placed: all of one class.
    pub(crate) const fn rest(requests: Vec<InstanceRequest>) -> Self {
        Self { requests, mode: BatchMode::AllOrNothing, budget: Some(500) }
    }

    pub(crate) const fn is_batch(&self) -> bool {
        self.budget.is_some()
    }

    pub(crate) fn quorum(&self) -> usize {
        match self.mode {
            BatchMode::AllOrNothing => self.requests.len(),
            BatchMode::AtLeast(least) => least,
            BatchMode::BestEffort => 0,
        }
    }
}

/// Does what a fix says to copies of fleet and request, and asks again.
pub(crate) fn try_fix(
    scene: &Scene,
    asked: &RequestUnderTest,
    refusal: &Refusal,
    fix: &Fix,
) -> Result<(), String> {
    let now = scene.twin.now;
    let engine = scene.twin.engine.clone();
    let mut twin = Twin { engine, world: scene.twin.world.clone(), now };
    let mut asked = asked.clone();
    apply(&mut twin, &mut asked, refusal, fix)?;
    let mut batch = Batch::new(asked.requests.clone()).with_mode(asked.mode);
    batch.search_budget = asked.budget.unwrap_or(batch.search_budget);
    let placements = if asked.is_batch() {
        let outcome = twin.engine.place_batch(&batch, now).map_err(|error| error.to_string())?;
        outcome.placements
    } else {
        let placed = twin.engine.place(&asked.requests[0], now);
        vec![placed.map_err(|error| error.to_string())?]
    };
    if placements.len() < asked.quorum() {
        return Err(format!("{} of {} placed", placements.len(), asked.quorum()));
    }
    let placed = placements.iter().map(|at| {
        let request = asked.requests.iter().find(|request| request.id == at.instance);
        (request.expect("a member").clone(), at.node.clone())
    });
    let placed: Vec<(InstanceRequest, NodeId)> = placed.collect();
    if is_legal(&twin.world, scene, &placed) { Ok(()) } else { Err("not legal".to_owned()) }
}

fn apply(
    twin: &mut Twin,
    asked: &mut RequestUnderTest,
    refusal: &Refusal,
    fix: &Fix,
) -> Result<(), String> {
    let change_all = |asked: &mut RequestUnderTest,
                      change: &dyn Fn(&mut InstanceRequest) -> bool| {
        let named = asked.requests.iter().find(|request| request.id == refusal.instance);
        let class = named.expect("a member").clone();
        let same = asked.requests.iter_mut().filter(|request| request.same_class(&class));
        let changed: Vec<bool> = same.map(change).collect();
        let all = changed.into_iter().all(|changed| changed);
        if all { Ok(()) } else { Err(format!("{fix} changes nothing")) }
    };
    match fix {
        Fix::Shrink { resources, extra, .. } => change_all(asked, &|request| {
            let before = request.clone();
            request.resources = *resources;
            request.extra.extend(extra.iter().map(|(class, amount)| (class.clone(), *amount)));
            *request != before
        }),
        // A rule is dropped by every member that has it; a cap or a trait is one class's own.
        Fix::Relax { filter, change, .. }
            if filter != "cpu-cap-mixing"
                && filter != "placement-constraint"
                && !change.starts_with("ask for") =>
        {
            let changed = asked.requests.iter_mut().map(|request| relax(request, filter, change));
            let any = changed.filter(|changed| *changed).count() > 0;
            if any { Ok(()) } else { Err(format!("{fix} changes nothing")) }
        }
        Fix::Relax { filter, change, .. } => {
            change_all(asked, &|request| relax(request, filter, change))
        }
        Fix::Free { instances, .. } => {
            for id in instances {
                if twin.engine.fleet().node_of(*id).is_none() {
                    return Err(format!("{id} is not placed"));
                }
                twin.release(*id);
            }
            Ok(())
        }
        Fix::Mend { filter, node, state, .. } => {
            let id = node.as_ref().expect("operators see nodes");
            let found = twin.world.node(id).expect("a known node").state;
            assert_eq!(*state, (filter == "node-active").then_some(found), "{fix}");
            mend(twin, filter, id)
        }
        Fix::AddNode { facts, count, shape } => {
            assert_eq!(facts.capacity, Some(*shape));
            for number in 1..=*count {
                let id = match number {
                    1 => facts.id.clone(),
                    further => NodeId::new(&format!("{}-{further}", facts.id)),
                };
                twin.add_node(&NodeFacts { id, ..(**facts).clone() });
            }
            Ok(())
        }
        Fix::Fewer { count, of } => {
            assert_eq!(usize::try_from(*of), Ok(asked.requests.len()));
            asked.mode = BatchMode::AtLeast(usize::try_from(*count).expect("a count"));
            Ok(())
        }
        Fix::Count { .. }
        | Fix::ChangePool { .. }
        | Fix::RaiseQuota { .. }
        | Fix::SetPool { .. } => Err(format!("{fix} is about no node")),
        Fix::Combined { changes } => {
            assert!(changes.len() > 1, "one change is not combined");
            changes.iter().try_for_each(|one| apply(twin, asked, refusal, one))
        }
    }
}

/// Drops what the text names; says whether it named anything.
fn relax(request: &mut InstanceRequest, filter: &str, change: &str) -> bool {
    let before = request.clone();
    let after = |prefix: &str| change.strip_prefix(prefix).unwrap_or_default();
    match filter {
        "capacity-type" => request.capacity_type = None,
        "platform" => request.platform = PlatformBounds::default(),
        "traits" if change.starts_with("ask for trait ") => {
            let (name, value) = after("ask for trait ").split_once('=').expect("a value");
            request.traits.insert(name.to_owned(), trait_value(value));
        }
        "traits" => drop(request.traits.remove(after("drop trait "))),
        "not-excluded" => request.excluded_nodes.clear(),
        "networks" => request.networks.retain(|tags| tags.join(" or ") != after("drop network ")),
        "overprovision-ratios" => request.ratios = None,
        "placement-constraint" => {
            let selector = request.required_place.clone().expect("a where");
            let parts = selector.parts();
            let part = parts.iter().find(|part| format!("drop where {part}") == change);
            request.required_place = selector.without(part.expect("a part of it"));
        }
        "not-virtual" => request.exclude_virtual = false,
        "groups" => request.groups.retain(|group| group != after("leave group ")),
        "affinity" => request.affinity.retain(|rule| {
            let named = format!("make {} soft with ~, or drop it", rule.as_str());
            named != change
        }),
        "strict-locality" => request.locality.strict = false,
        "volume-home" => {
            let named: Vec<&str> = after("do without volume ").split(", ").collect();
            request.volumes.retain(|volume| !named.contains(&volume.as_str()));
        }
        "cpu-cap-mixing" => request.cpu_capped = change == "cap the CPU",
        "secrets-present" => request.needs_secrets = false,
        other => panic!("{other} is no rule of a request"),
    }
    *request != before
}

/// A value as the command line reads it.
fn trait_value(text: &str) -> TraitValue {
    match text {
        "true" => TraitValue::Bool(true),
        "false" => TraitValue::Bool(false),
        text if text.contains('|') => {
            TraitValue::List(text.split('|').map(str::to_owned).collect())
        }
        text => TraitValue::Text(text.to_owned()),
    }
}

/// States what the filter wants of the node.
fn mend(twin: &mut Twin, filter: &str, id: &NodeId) -> Result<(), String> {
    let now: Timestamp = twin.now;
    let mut facts: NodeFacts = twin.world.node(id).expect("a known node").clone();
    match filter {
        "node-active" => {
            if facts.state == NodeState::Lost {
                facts.heartbeat_at = now;
            }
            facts.state = NodeState::Active;
        }
        "heartbeat-fresh" => facts.heartbeat_at = now,
        "kvm" => facts.kvm = true,
        "scratch-disk" => facts.scratch_mib = 1 << 30,
        "overlay-healthy" => facts.overlay_loss_ppm = 0,
        "not-reserved" => facts.reserved = false,
        "not-headnode" => facts.headnode = false,
        "not-sick" => facts.boots.clear(),
        "no-reboot-soon" => facts.next_reboot = None,
        other => return Err(format!("{other} does not say what to state instead")),
    }
    twin.add_node(&facts);
    Ok(())
}

/// What would be enough if the fix asked for more than it must: one node less, one unit less of one
/// thing each; or one instance more of a batch, where less than what was asked is proposed.
pub(crate) fn closer_calls(fix: &Fix, asked: &RequestUnderTest) -> Vec<Fix> {
    let mut calls = smaller_nodes(fix);
    match fix {
        Fix::AddNode { shape, count, facts } if *count > 1 => {
            calls.push(Fix::AddNode { shape: *shape, count: count - 1, facts: facts.clone() });
        }
        Fix::Fewer { count, of } if (*count as usize) + 1 < asked.quorum() => {
            calls.push(Fix::Fewer { count: count + 1, of: *of });
        }
        _ => {}
    }
    calls
}

/// The same new node, with one unit less of one thing each.
fn smaller_nodes(fix: &Fix) -> Vec<Fix> {
    let Fix::AddNode { shape, count, facts } = fix else { return Vec::new() };
    let dimensions: [fn(&mut Amounts) -> &mut u32; 4] = [
        |shape| &mut shape.cpu_milli,
        |shape| &mut shape.memory_mib,
        |shape| &mut shape.disk_mib,
        |shape| &mut shape.bandwidth_mbps,
    ];
    let mut smaller = Vec::new();
    for amount in dimensions {
        let mut shape = *shape;
        if *amount(&mut shape) > 0 {
            *amount(&mut shape) -= 1;
            let facts = NodeFacts { capacity: Some(shape), ..(**facts).clone() };
            smaller.push(Fix::AddNode { shape, count: *count, facts: Box::new(facts) });
        }
    }
    for (class, &has) in facts.extra.iter().filter(|(_, has)| **has > 0) {
        let mut facts = (**facts).clone();
        facts.extra.insert(class.clone(), has - 1);
        smaller.push(Fix::AddNode { shape: *shape, count: *count, facts: Box::new(facts) });
    }
    smaller
}
