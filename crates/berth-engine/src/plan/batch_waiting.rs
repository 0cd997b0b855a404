//! Whether waiting may help a batch: whether the nodes could hold all of it once others have come and
//! gone and the nodes' states have changed.
//!
//! Arithmetic rules out what can never be. What is left is tried: the batch is placed on a copy of the
//! nodes with nothing on them but those of its own members that are placed already. The fleet itself
//! is never changed. Where the search is cut short, waiting may help.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use super::batch::{Batch, largest_first};
use super::search::{self, Budget};
use crate::affinity::{Operator, Rule, Strength, Subject, Topology};
use crate::engine::{Engine, Room};
use crate::explain::may_take_later;
use crate::fleet::{Fleet, NO_DOMAIN, NodeIndex};
use crate::model::{GroupKind, Hint, InstanceRequest, LinkState, NodeFacts, NodeState, Timestamp};
use crate::node_selector::NodeSelector;
use crate::policy::Policy;
use crate::prepared_request::{PreparedRequest, selects_request};

/// Most nodes of a copy: of more, the roomiest of each rack are taken.
const NODES_COPIED: usize = 1024;

/// Steps that the exact search on a copy may take.
const STEPS: u32 = 2_000;

/// A batch as it waits: what is still wanted, and which of its members are placed and stay.
pub(super) struct WaitingBatch<'a> {
    pub(super) wanted: &'a Batch,
    pub(super) staying: Vec<(&'a InstanceRequest, NodeIndex)>,
}

/// A node that may take a member of a class.
struct Host {
    index: NodeIndex,
    zone: u32,
    rack: u32,
    /// How many of the class it has room for when it is empty.
    holds: usize,
}

/// How many of a class one domain of each kind may have.
struct DomainLimits {
    node: usize,
    rack: usize,
    zone: usize,
    /// The narrowest domain in which all of them must be.
    together: Option<Topology>,
}

impl WaitingBatch<'_> {
    /// Classes of requests that are looked at, each on every node.
    pub(super) fn class_count(&self) -> usize {
        self.classes().len()
    }

    /// Whether the nodes could hold it, and the steps that it took to try. False means that they never
    /// could.
    pub(super) fn may_fit_later(&self, engine: &Engine, now: Timestamp) -> (bool, usize) {
        let mut possible = 0;
        let mut hosts: Vec<Vec<Host>> = Vec::new();
        for (class, count) in self.classes() {
            let of_class = hosts_of(engine, class, now);
            let stays = self.staying.iter().filter(|(other, _)| other.same_class(class)).count();
            let most = match class.volumes.is_empty() {
                true => self.limits(engine.fleet(), class).most(&of_class),
                // A volume has one user.
                false => usize::from(!of_class.is_empty()),
            };
            possible += count.min(most.saturating_sub(stays));
            hosts.push(of_class);
        }
        if possible < self.wanted.quorum() {
            return (false, 0);
        }
        let (nodes, is_complete) = nodes_to_copy(&hosts);
        self.fits_on_copy(engine, &nodes, is_complete, now)
    }

    /// One request of each class that is wanted, and how many there are.
    fn classes(&self) -> Vec<(&InstanceRequest, usize)> {
        let mut classes: Vec<(&InstanceRequest, usize)> = Vec::new();
        for request in &self.wanted.requests {
            match classes.iter_mut().find(|(class, _)| class.same_class(request)) {
                Some((_, count)) => *count += 1,
                None => classes.push((request, 1)),
            }
        }
        classes
    }

    fn members(&self) -> impl Iterator<Item = &InstanceRequest> {
        self.wanted.requests.iter().chain(self.staying.iter().map(|(request, _)| *request))
    }

    /// What rules about the class itself limit; rules that tell its members apart limit nothing here.
    fn limits(&self, fleet: &Fleet, class: &InstanceRequest) -> DomainLimits {
        let mut limits = DomainLimits::default();
        for group in class.groups.iter().filter_map(|id| fleet.group(id)) {
            if group.strength == Strength::Hard {
                let most = usize::try_from(group.limit()).unwrap_or(usize::MAX);
                limits.at_most(group.topology, most);
                if group.kind == GroupKind::Together {
                    limits.gather(group.topology);
                }
            }
        }
        let of_class = |rule: &&Rule| {
            rule.is_hard() && *rule.subject() != Subject::Instance && selects_request(rule, class)
        };
        for rule in class.affinity.iter().filter(of_class) {
            let mut others = self.members().filter(|other| !other.same_class(class));
            match rule.operator() {
                Operator::Different => limits.at_most(rule.scope(), 1),
                // Members of another class may be where this one wants company.
                Operator::Same if others.any(|other| selects_request(rule, other)) => {}
                Operator::Same => limits.gather(rule.scope()),
            }
        }
        limits
    }

    /// Places it on a copy of these nodes that is empty but for the members that stay.
    fn fits_on_copy(
        &self,
        engine: &Engine,
        nodes: &[NodeIndex],
        is_complete: bool,
        now: Timestamp,
    ) -> (bool, usize) {
        let requests = self.wanted.requests.iter().map(|request| self.as_others_come(request));
        let batch = Batch { requests: requests.collect(), ..self.wanted.clone() };
        let mut copy = self.copy_of(engine, nodes, now);
        let mut fits = copy.try_greedily(&batch, now).0 >= batch.quorum();
        if !fits {
            let order = largest_first(&batch.requests);
            let mut budget = Budget::new(STEPS);
            let quorum = batch.quorum();
            let found =
                search::search_exact(&mut copy, &batch.requests, &order, quorum, &mut budget, now);
            fits = found.is_some() || budget.is_spent() || !is_complete;
        }
        (fits, usize::try_from(copy.work_done()).unwrap_or(usize::MAX))
    }

    /// The nodes without instances, in the best state that they may come to.
    fn copy_of(&self, engine: &Engine, nodes: &[NodeIndex], now: Timestamp) -> Engine {
        let fleet = engine.fleet();
        let mut copy = Engine::new(engine.policy().clone());
        let stay = self.staying.iter().map(|(_, index)| *index);
        for index in nodes.iter().copied().chain(stay) {
            let facts = fleet.row(index).and_then(|row| fleet.node(&row.id));
            if let Some(facts) = facts.filter(|facts| copy.fleet().index_of(&facts.id).is_none()) {
                // Facts that could not be stored would be those of a node that holds nothing.
                drop(copy.fleet.put_node(&at_best(facts, engine.policy(), now)));
            }
        }
        for request in self.members() {
            for group in request.groups.iter().filter_map(|id| fleet.group(id)) {
                copy.fleet.put_group(group.clone());
            }
            for volume in request.volumes.iter().filter_map(|id| fleet.volume(id)) {
                let mut free = volume.clone();
                free.attached_to = None;
                copy.fleet.restore_volume(free);
            }
            if let Some(env) = request.env.as_deref() {
                let present = fleet.has_secrets(&request.tenant, Some(env));
                copy.fleet.set_tenant_secrets(&request.tenant, env, present);
            }
        }
        for (request, index) in &self.staying {
            let node = fleet.row(*index).and_then(|row| copy.fleet().index_of(&row.id));
            if let Some(node) = node {
                copy.fleet.claim_at(request, node);
            }
        }
        copy
    }

    /// The request without rules that want others near which are not of the batch: they may come.
    fn as_others_come(&self, request: &InstanceRequest) -> InstanceRequest {
        let mut alone = request.clone();
        alone.excluded_nodes.clear();
        let mut places: Vec<NodeSelector> = request.required_place.iter().cloned().collect();
        alone.affinity.retain(|rule| {
            let wants_others = rule.is_hard() && rule.operator() == Operator::Same;
            let mut own = self.members().filter(|other| other.tenant == request.tenant);
            let stays = !wants_others || own.any(|other| selects_request(rule, other));
            if !stays {
                // They cannot come to a domain that a node is not in.
                places.extend(has_domain(rule.scope()));
            }
            stays
        });
        if request.locality.strict {
            let names = |hint: &Hint, other: &InstanceRequest| match hint {
                Hint::Instance(id) => other.id == *id,
                Hint::Tag(key, value) => other.tags.get(key) == Some(value),
            };
            alone.locality.near.retain(|hint| {
                let mut own = self.members().filter(|other| other.tenant == request.tenant);
                own.any(|other| names(hint, other) && !other.locality.near.contains(hint))
            });
        }
        alone.required_place = NodeSelector::all(places);
        alone
    }
}

impl Default for DomainLimits {
    fn default() -> Self {
        Self { node: usize::MAX, rack: usize::MAX, zone: usize::MAX, together: None }
    }
}

impl DomainLimits {
    fn at_most(&mut self, topology: Topology, most: usize) {
        let limit = match topology {
            Topology::Node => &mut self.node,
            Topology::Rack => &mut self.rack,
            Topology::Zone => &mut self.zone,
        };
        *limit = most.min(*limit);
    }

    fn gather(&mut self, topology: Topology) {
        self.together = Some(self.together.map_or(topology, |narrowest| narrowest.min(topology)));
    }

    /// The most that these hosts may have when nothing else is on them.
    fn most(&self, hosts: &[Host]) -> usize {
        let together = self.together;
        let mut racks: BTreeMap<(u32, u32, u32), usize> = BTreeMap::new();
        for host in hosts {
            // A node without a rack shares none, and is with others only where it is alone.
            let alone = if host.rack == NO_DOMAIN { host.index.0 } else { u32::MAX };
            let mut holds = host.holds.min(self.node);
            if host.rack == NO_DOMAIN && together == Some(Topology::Rack) {
                holds = holds.min(1);
            }
            let rack = racks.entry((host.zone, host.rack, alone)).or_default();
            *rack = join(*rack, holds, together == Some(Topology::Node));
        }
        let mut zones: BTreeMap<u32, usize> = BTreeMap::new();
        let mut without_zone = 0;
        let in_one_rack = matches!(together, Some(Topology::Node | Topology::Rack));
        for ((zone, rack, _), holds) in racks {
            let holds = if rack == NO_DOMAIN { holds } else { holds.min(self.rack) };
            if zone == NO_DOMAIN {
                without_zone = join(without_zone, holds, in_one_rack);
                continue;
            }
            let zone = zones.entry(zone).or_default();
            *zone = join(*zone, holds, in_one_rack);
        }
        if together == Some(Topology::Zone) {
            without_zone = without_zone.min(1);
        }
        zones
            .into_values()
            .fold(without_zone, |all, holds| join(all, holds.min(self.zone), together.is_some()))
    }
}

/// What two domains hold: the larger one alone where all must be in one of them.
fn join(one: usize, other: usize, in_one: bool) -> usize {
    if in_one { one.max(other) } else { one.saturating_add(other) }
}

/// The nodes that may take a member of a class, with the room that they have when empty.
fn hosts_of(engine: &Engine, class: &InstanceRequest, now: Timestamp) -> Vec<Host> {
    let fleet = engine.fleet();
    let prepared = PreparedRequest::new(class, engine.policy(), fleet, now);
    let hosts = fleet.nodes_in_order().filter_map(|(_, index)| {
        let row = fleet.row(index)?;
        let holds = Room::of(&prepared, row, true).holds(class.resources);
        (holds > 0 && may_take_later(&prepared, index, row)).then(|| Host {
            index,
            zone: fleet.domain(index, Topology::Zone),
            rack: fleet.domain(index, Topology::Rack),
            holds,
        })
    });
    hosts.collect()
}

/// A node by how many it holds, the roomiest first.
type Roomiest = (Reverse<usize>, NodeIndex);

/// The nodes to copy, and whether these are all: of too many, the roomiest of each rack in turns.
fn nodes_to_copy(hosts: &[Vec<Host>]) -> (Vec<NodeIndex>, bool) {
    let mut found: BTreeMap<NodeIndex, (u32, u32, usize)> = BTreeMap::new();
    for host in hosts.iter().flatten() {
        let known = found.entry(host.index).or_insert((host.zone, host.rack, 0));
        known.2 = known.2.max(host.holds);
    }
    if found.len() <= NODES_COPIED {
        return (found.into_keys().collect(), true);
    }
    let mut racks: BTreeMap<(u32, u32), Vec<Roomiest>> = BTreeMap::new();
    for (index, (zone, rack, holds)) in found {
        racks.entry((zone, rack)).or_default().push((Reverse(holds), index));
    }
    let mut in_turns: Vec<(usize, NodeIndex)> = Vec::new();
    for nodes in racks.values_mut() {
        nodes.sort_unstable();
        in_turns.extend(nodes.iter().enumerate().map(|(turn, (_, index))| (turn, *index)));
    }
    in_turns.sort_unstable();
    in_turns.truncate(NODES_COPIED);
    (in_turns.into_iter().map(|(_, index)| index).collect(), false)
}

/// A node as it may be one day: what passes by itself has passed.
fn at_best(facts: NodeFacts, policy: &Policy, now: Timestamp) -> NodeFacts {
    let mut best = facts;
    best.state = NodeState::Active;
    best.heartbeat_at = now;
    best.boots.clear();
    best.next_reboot = None;
    best.overlay_loss_ppm = 0;
    best.scratch_mib = best.scratch_mib.max(policy.filters.min_scratch_mib);
    best.networks.iter_mut().for_each(|network| network.link = LinkState::Up);
    best
}

/// Nodes that are in a domain of this kind.
fn has_domain(topology: Topology) -> Option<NodeSelector> {
    let text = match topology {
        Topology::Node => return None,
        Topology::Rack => "rack ~ '*'",
        Topology::Zone => "zone ~ '*'",
    };
    NodeSelector::parse(text).ok()
}
