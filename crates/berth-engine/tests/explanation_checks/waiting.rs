//! Whether waiting may help, found out by emptying the world: nodes in their best state, no instance on
//! them but the members of the batch that are placed already, and those that a rule wants near come
//! wherever they are wanted.

use berth_engine::affinity::{Operator, Rule, Topology};
use berth_engine::node_selector::NodeSelector;
use berth_engine::policy::Policy;
use berth_engine::{
    Batch, BatchMode, Hint, InstanceRequest, LinkState, NodeId, NodeState, SearchEnd, Timestamp,
};

use crate::fleets::Scene;
use crate::is_legal_in;
use crate::oracle::decide::fits;
use crate::oracle::model::{World, selects};
use crate::oracle::twin::Twin;

/// Steps of a search on the emptied world.
const STEPS: u32 = 5_000;

/// What emptying shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    MayHelp,
    WillNot,
    /// The search ended before it was decided.
    Unknown,
}

/// What is asked of a batch, and which of its members stay where they are.
pub(crate) struct Wanted<'a> {
    pub(crate) members: &'a [InstanceRequest],
    pub(crate) quorum: usize,
    pub(crate) staying: &'a [(InstanceRequest, NodeId)],
}

/// Whether some emptied node takes one request.
pub(crate) fn one(scene: &Scene, request: &InstanceRequest) -> Verdict {
    let (policy, now) = (scene.twin.engine.policy(), scene.twin.now);
    let world = emptied(&scene.twin.world, policy, now);
    let eased = eased(request, std::slice::from_ref(request));
    let may = world.nodes.iter().any(|node| fits(&world, policy, &eased, node, now));
    if may { Verdict::MayHelp } else { Verdict::WillNot }
}

/// Whether the emptied nodes take all of a batch.
pub(crate) fn batch(scene: &Scene, member: &InstanceRequest, wanted: &Wanted<'_>) -> Verdict {
    // What no node ever takes does not fit with others either.
    if one(scene, member) == Verdict::WillNot {
        return Verdict::WillNot;
    }
    let (policy, now) = (scene.twin.engine.policy(), scene.twin.now);
    let empty = emptied(&scene.twin.world, policy, now);
    let staying = wanted.staying.iter().map(|(request, _)| request);
    let all: Vec<InstanceRequest> = wanted.members.iter().chain(staying).cloned().collect();
    let members: Vec<InstanceRequest> =
        wanted.members.iter().map(|request| eased(request, &all)).collect();
    if wanted.staying.is_empty() && is_plain(&members) {
        let count = count_of_equals(&empty, policy, &members, now);
        return if count >= wanted.quorum { Verdict::MayHelp } else { Verdict::WillNot };
    }
    let mut twin = twin_of(&empty, policy, now);
    for (request, node) in wanted.staying {
        twin.claim(request, node);
    }
    let mut batch = Batch::new(members).with_mode(BatchMode::AtLeast(wanted.quorum));
    batch.search_budget = STEPS;
    let outcome = twin.engine.place_batch(&batch, now).expect("a valid batch");
    if outcome.placements.len() >= wanted.quorum {
        let placed = outcome.placements.iter().map(|at| {
            let request = batch.requests.iter().find(|request| request.id == at.instance);
            (request.expect("a member").clone(), at.node.clone())
        });
        let placed: Vec<_> = placed.collect();
        assert!(placed.len() > 6 || is_legal_in(&twin.world, policy, now, &placed));
        return Verdict::MayHelp;
    }
    match outcome.end {
        SearchEnd::NotFoundWithinBudget => Verdict::Unknown,
        _ => Verdict::WillNot,
    }
}

/// Whether all are alike and no rule is about others.
fn is_plain(members: &[InstanceRequest]) -> bool {
    let free = |request: &InstanceRequest| {
        request.groups.is_empty()
            && request.affinity.is_empty()
            && request.locality.near.is_empty()
            && request.locality.far.is_empty()
            && request.volumes.is_empty()
    };
    members.iter().all(|request| free(request) && request.same_class(&members[0]))
}

/// How many equal requests fit, one after the other on every node.
fn count_of_equals(
    empty: &World,
    policy: &Policy,
    members: &[InstanceRequest],
    now: Timestamp,
) -> usize {
    let mut world = World { nodes: empty.nodes.clone(), ..empty.clone() };
    let mut left = members.iter();
    let mut next = left.next();
    let mut count = 0;
    for node in &empty.nodes {
        while let Some(request) = next.filter(|request| fits(&world, policy, request, node, now)) {
            world.claim(request, &node.id);
            count += 1;
            next = left.next();
        }
    }
    count
}

fn emptied(world: &World, policy: &Policy, now: Timestamp) -> World {
    let mut empty = world.clone();
    // Others give addresses back.
    empty.free_addresses = None;
    empty.placed.clear();
    empty.volumes.iter_mut().for_each(|volume| volume.attached_to = None);
    for node in &mut empty.nodes {
        (node.state, node.heartbeat_at, node.next_reboot) = (NodeState::Active, now, None);
        node.boots.clear();
        node.scratch_mib = node.scratch_mib.max(policy.filters().min_scratch_mib);
        // A loss that cannot be is a wrong fact, and stays one.
        if node.overlay_loss_ppm <= berth_engine::PPM {
            node.overlay_loss_ppm = 0;
        }
        node.networks.iter_mut().for_each(|network| network.link = LinkState::Up);
    }
    empty
}

fn twin_of(world: &World, policy: &Policy, now: Timestamp) -> Twin {
    let mut twin = Twin::new(policy.clone());
    twin.now = now;
    world.nodes.iter().for_each(|facts| twin.add_node(facts));
    world.groups.iter().for_each(|group| twin.put_group(group.clone()));
    world.volumes.iter().for_each(|volume| twin.put_volume(volume.clone()));
    world.secrets.iter().for_each(|(env, present)| twin.set_secrets(env, *present));
    twin
}

/// The request without exclusions and without hard rules that want others near which are not among
/// these.
fn eased(request: &InstanceRequest, members: &[InstanceRequest]) -> InstanceRequest {
    let mut eased = request.clone();
    eased.excluded_nodes.clear();
    let mut places: Vec<NodeSelector> = request.required_place.iter().cloned().collect();
    let mut own = members.iter().filter(|other| other.tenant == request.tenant);
    let others: Vec<&InstanceRequest> = own.by_ref().collect();
    let is_met = |rule: &Rule| others.iter().any(|other| selects(rule, other));
    eased.affinity.retain(|rule| {
        let comes = rule.is_hard() && rule.operator() == Operator::Same && !is_met(rule);
        match rule.scope() {
            Topology::Rack if comes => places.extend(NodeSelector::parse("rack ~ '*'")),
            Topology::Zone if comes => places.extend(NodeSelector::parse("zone ~ '*'")),
            _ => {}
        }
        !comes
    });
    if request.locality.strict {
        let means = |hint: &Hint, other: &InstanceRequest| {
            crate::oracle::filters::hinted(request, hint, other)
        };
        let leads = |hint: &Hint| {
            let mut leaders = others.iter();
            leaders.any(|other| means(hint, other) && !other.locality.near.contains(hint))
        };
        eased.locality.near.retain(leads);
    }
    eased.required_place = NodeSelector::all(places);
    eased
}
