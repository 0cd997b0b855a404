//! The least new node that could take a request: in each dimension as small, and in its facts as
//! complete, as the filters want it.

use super::change::{RequestChange, changed};
use crate::affinity::Topology;
use crate::filter::{FilterTest, first_failure, run_filter};
use crate::fleet::{Fleet, NO_DOMAIN, NodeRow};
use crate::model::{
    Amounts, InstanceId, InstanceRequest, LinkState, Network, NodeFacts, NodeId, Platform,
    PlatformVersion, Timestamp,
};
use crate::node_selector::WantedFact;
use crate::prepared_request::{DomainRule, Origin, PreparedRequest};

/// The name of a node that is proposed.
const NAME: &str = "new-node";

/// Racks that are looked at for one that every rule admits.
const RACKS_TRIED: usize = 512;

/// The least node for `members` such requests, if a node can be added that takes them.
pub(crate) fn smallest_node(prepared: &PreparedRequest<'_>, members: u32) -> Option<NodeFacts> {
    let request = prepared.request;
    if !request.volumes.is_empty() || fails_itself(prepared) {
        return None;
    }
    let (zone, rack) = open_domain(prepared)?;
    let mut facts = equipped(prepared)?;
    facts.zone = zone;
    facts.rack = rack;
    if !put_where_wanted(prepared, &mut facts) {
        return None;
    }
    facts.extra.values_mut().for_each(|amount| *amount = amount.saturating_mul(members));
    let size = |amounts: &Amounts| NodeFacts { capacity: Some(*amounts), ..facts.clone() };
    let mut shape = enough_for(prepared, members)?;
    if !takes(prepared, &size(&shape), members) {
        // Some filter wants more than the arithmetic knows of: what the instance itself has.
        shape.cpu_milli = shape.cpu_milli.max(request.visible_cpu_milli());
        if !takes(prepared, &size(&shape), members) {
            return None;
        }
    }
    shape = least_shape(shape, &mut |shape| takes(prepared, &size(shape), members));
    facts.capacity = Some(shape);
    Some(facts)
}

/// The least in each dimension that is still enough: what the policy does not insist on may be less
/// than the request has of it.
pub(crate) fn least_shape(found: Amounts, is_enough: &mut dyn FnMut(&Amounts) -> bool) -> Amounts {
    let mut shape = found;
    let dimensions: [fn(&mut Amounts) -> &mut u32; 4] = [
        |shape| &mut shape.cpu_milli,
        |shape| &mut shape.memory_mib,
        |shape| &mut shape.disk_mib,
        |shape| &mut shape.bandwidth_mbps,
    ];
    for amount in dimensions {
        let so_far = shape;
        let found = *amount(&mut shape);
        *amount(&mut shape) = least_amount(found, &mut |value| {
            let mut other = so_far;
            *amount(&mut other) = value;
            is_enough(&other)
        });
    }
    shape
}

/// The least amount that is still enough.
pub(crate) fn least_amount(found: u32, is_enough: &mut dyn FnMut(u32) -> bool) -> u32 {
    // Mostly one less is too little already.
    if found == 0 || !is_enough(found - 1) {
        return found;
    }
    let (mut least, mut enough) = (0, found - 1);
    while enough > least {
        let middle = u32::midpoint(least, enough - 1);
        if is_enough(middle) {
            enough = middle;
        } else {
            least = middle + 1;
        }
    }
    enough
}

/// The fewest changes of a request after which a new node could take it.
pub(crate) fn changes_for_new_node(prepared: &PreparedRequest<'_>) -> Vec<RequestChange> {
    let request = prepared.request;
    let mut changes = Vec::new();
    if !request.volumes.is_empty() {
        changes.push(RequestChange::DropVolumes(request.volumes.clone()));
    }
    if request.needs_secrets && !prepared.fleet.has_secrets(&request.tenant, request.env.as_deref())
    {
        changes.push(RequestChange::DropSecrets);
    }
    if request.ratios.is_some_and(|ratios| !is_possible(ratios.cpu_permille)) {
        changes.push(RequestChange::DropRatios);
    }
    if platform_for(prepared).is_none() {
        changes.push(RequestChange::DropPlatform);
    }
    // Racks and zones may clash among each other; rules about nodes are known to hold or not.
    let alone = |rule: &&DomainRule<'_>| !rule.admits_count(0, true);
    for change in
        prepared.hard_rules.iter().filter(alone).filter_map(|rule| relaxed(prepared, rule))
    {
        if !changes.contains(&change) {
            changes.push(change);
        }
    }
    if let Some(selector) = &request.required_place {
        let relaxed = changed(request, &changes);
        let again = PreparedRequest::new(&relaxed, prepared.policy, prepared.fleet, prepared.now);
        if smallest_node(&again, 1).is_none() {
            changes.extend(selector.parts().into_iter().map(RequestChange::DropPlace));
        }
    }
    changes
}

/// The change that makes a request do without one of its rules.
fn relaxed(prepared: &PreparedRequest<'_>, rule: &DomainRule<'_>) -> Option<RequestChange> {
    match rule.origin {
        Origin::Group => {
            let group = rule.text.strip_prefix("group ")?;
            Some(RequestChange::LeaveGroup(group.to_owned()))
        }
        Origin::Affinity => {
            let mut rules = prepared.request.affinity.iter();
            let named = rules.find(|other| other.is_hard() && other.as_str() == rule.text)?;
            Some(RequestChange::Soften(named.clone()))
        }
        Origin::Locality => Some(RequestChange::DropStrict),
        Origin::Resident => None,
    }
}

const fn is_possible(ratio_permille: u32) -> bool {
    1 <= ratio_permille && ratio_permille <= 1_000_000
}

/// Whether a filter that is the same for all nodes refuses the request.
fn fails_itself(prepared: &PreparedRequest<'_>) -> bool {
    !crate::filter::passes_request_tests(prepared)
}

/// A new node with what the request asks of one, and without a size.
fn equipped(prepared: &PreparedRequest<'_>) -> Option<NodeFacts> {
    let request = prepared.request;
    let mut facts = NodeFacts::new(NAME, Amounts::default());
    facts.id = new_name(prepared.fleet, 1, &[]);
    facts.heartbeat_at = prepared.now;
    facts.vmm_overhead_mib = prepared.fleet.largest_overhead();
    facts.extra = request.extra.iter().filter(|(_, n)| **n > 0).map(owned).collect();
    facts.traits.clone_from(&request.traits);
    facts.capacity_type = request.capacity_type.unwrap_or_default();
    facts.ratios = request.ratios.unwrap_or_default();
    for any_of in &request.networks {
        let has = |network: &Network| any_of.contains(&network.tag);
        if !facts.networks.iter().any(has) {
            let tag = any_of.first().cloned().unwrap_or_default();
            facts.networks.push(Network { tag, link: LinkState::Up });
        }
    }
    facts.platform = platform_for(prepared)?;
    Some(facts)
}

fn owned((name, amount): (&String, &u32)) -> (String, u32) {
    (name.clone(), *amount)
}

/// Gives a node the names that the request's `where` asks for; false where that cannot help.
fn put_where_wanted(prepared: &PreparedRequest<'_>, facts: &mut NodeFacts) -> bool {
    let Some(selector) = &prepared.request.required_place else { return true };
    for (fact, name) in selector.wanted_facts() {
        match fact {
            WantedFact::Id => facts.id = NodeId::new(name),
            WantedFact::Zone => facts.zone = Some(name.to_owned()),
            WantedFact::Rack => facts.rack = Some(name.to_owned()),
            WantedFact::Label(key) => {
                facts.labels.insert(key.to_owned(), name.to_owned());
            }
        }
    }
    // A new node in a zone or rack that others share may break rules about it; and a node that is
    // asked for by name may be there.
    let crowded = prepared.hard_rules.iter().any(|rule| rule.topology != Topology::Node);
    !crowded && prepared.fleet.index_of(&facts.id).is_none()
}

/// A name for so many new nodes, which no node has yet: the first has the name itself, further ones
/// a number after it.
pub(crate) fn new_name(fleet: &Fleet, count: u32, taken: &[NodeId]) -> NodeId {
    let base = |number: u32| match number {
        0 => NodeId::new(NAME),
        further => NodeId::new(&format!("{NAME}{further}")),
    };
    let is_free = |base: &NodeId| {
        !taken.contains(base)
            && (0..count).all(|place| fleet.index_of(&numbered(base, place)).is_none())
    };
    (0..).map(base).find(is_free).unwrap_or_else(|| NodeId::new(NAME))
}

/// The name of one of several new nodes.
pub(crate) fn numbered(base: &NodeId, place: u32) -> NodeId {
    match place {
        0 => base.clone(),
        further => NodeId::new(&format!("{base}-{}", further + 1)),
    }
}

/// A platform within the request's bounds; none is stated where none is needed.
fn platform_for(prepared: &PreparedRequest<'_>) -> Option<Option<Platform>> {
    let bounds = &prepared.request.platform;
    if bounds.min.is_empty() && bounds.max.is_empty() {
        return Some(None);
    }
    let stated = bounds.min.iter().rev().chain(bounds.max.iter());
    let stated = stated.map(|(&version, &built_at)| Platform { version, built_at });
    let near = |version: PlatformVersion, minor: Option<u16>| {
        minor.map(|minor| PlatformVersion { minor, ..version })
    };
    let above = bounds.min.keys().filter_map(|v| near(*v, v.minor.checked_add(1)));
    let below = bounds.max.keys().filter_map(|v| near(*v, v.minor.checked_sub(1)));
    let unbounded = above.chain(below).flat_map(|version| {
        [prepared.now, Timestamp(0)].map(|built_at| Platform { version, built_at })
    });
    let mut fleet = Fleet::new();
    let mut passes = |platform: &Platform| {
        let mut facts = NodeFacts::new(NAME, Amounts::new(1, 1));
        facts.platform = Some(*platform);
        let Ok(index) = fleet.put_node(&facts) else { return false };
        let id = crate::filter::FilterId::named("platform");
        let row = fleet.row(index);
        id.zip(row).is_some_and(|(id, row)| run_filter(id, prepared, index, row).is_ok())
    };
    stated.chain(unbounded).find(|platform| passes(platform)).map(Some)
}

/// Capacity for so many instances of this request, and no more.
fn enough_for(prepared: &PreparedRequest<'_>, members: u32) -> Option<Amounts> {
    let request = prepared.request;
    let ratios = request.ratios.unwrap_or_default();
    if ![ratios.cpu_permille, ratios.memory_permille, ratios.disk_permille]
        .into_iter()
        .all(is_possible)
    {
        return None;
    }
    let wanted = request.resources;
    let times = |each: u32| u64::from(each) * u64::from(members);
    let overhead = prepared.fleet.largest_overhead();
    let beside_disk =
        u64::from(request.image_mib) + u64::from(prepared.policy.filters.disk_headroom_mib);
    let disk = (times(wanted.disk_mib) + beside_disk).min(Amounts::MAX.into());
    // Of what may be promised more than once, the node needs less.
    let before = |promised: u64, permille: u32| {
        let needed = (promised * 1000).div_ceil(u64::from(permille));
        u32::try_from(needed).ok().filter(|needed| *needed <= Amounts::MAX)
    };
    Some(Amounts {
        cpu_milli: before(times(wanted.cpu_milli), ratios.cpu_permille)?.max(1),
        memory_mib: before(times(wanted.memory_mib) + times(overhead), ratios.memory_permille)?
            .max(1),
        disk_mib: before(disk, ratios.disk_permille)?,
        bandwidth_mbps: before(times(wanted.bandwidth_mbps), 1000)?,
    })
}

/// Whether an empty fleet of this one node takes so many of the request. Rules about other instances
/// were asked in the real fleet.
fn takes(prepared: &PreparedRequest<'_>, facts: &NodeFacts, members: u32) -> bool {
    let mut alone = Fleet::new();
    let Ok(index) = alone.put_node(facts) else { return false };
    if let Some(env) = &prepared.request.env {
        alone.set_secrets(env, true);
    }
    let mut by_itself = without_neighbours(prepared.request);
    for member in 0..members {
        let again = PreparedRequest::new(&by_itself, prepared.policy, &alone, prepared.now);
        let row: Option<&NodeRow> = alone.row(index);
        let takes = row.is_some_and(|row| {
            let failure = first_failure(&again, index, row);
            failure.is_none_or(|(id, _)| matches!(id.filter().test, FilterTest::Neighbour(_)))
        });
        if !takes {
            return false;
        }
        alone.claim_at(&by_itself, index);
        by_itself.id = InstanceId::from_u128(!u128::from(member));
    }
    true
}

/// The request without what concerns other instances.
fn without_neighbours(request: &InstanceRequest) -> InstanceRequest {
    let mut alone = request.clone();
    alone.groups.clear();
    alone.affinity.clear();
    alone.locality = crate::model::Locality::default();
    alone.excluded_nodes.clear();
    alone
}

type Place = (Option<String>, Option<String>);

/// A zone and rack in which every hard rule admits a new node: none at all if possible, else one
/// that exists, else a new one.
fn open_domain(prepared: &PreparedRequest<'_>) -> Option<Place> {
    let on_node = |rule: &&DomainRule<'_>| rule.topology == Topology::Node;
    if !prepared.hard_rules.iter().filter(on_node).all(|rule| rule.admits_count(0, true)) {
        return None;
    }
    let wider: Vec<&DomainRule<'_>> =
        prepared.hard_rules.iter().filter(|rule| !on_node(rule)).collect();
    if wider.iter().all(|rule| rule.admits_count(0, false)) {
        return Some((None, None));
    }
    let fleet = prepared.fleet;
    let mut racks: Vec<(u32, u32)> = Vec::new();
    for (_, index) in fleet.nodes_in_order() {
        let place = (fleet.domain(index, Topology::Zone), fleet.domain(index, Topology::Rack));
        if place != (NO_DOMAIN, NO_DOMAIN) && racks.last() != Some(&place) {
            racks.push(place);
        }
    }
    racks.sort_unstable();
    racks.dedup();
    racks.truncate(RACKS_TRIED);
    let names = |zone: u32, rack: u32| {
        let zone = fleet.domains().zone_name(zone).map(str::to_owned);
        (zone, fleet.domains().rack_name(rack).map(str::to_owned))
    };
    let admits = |zone: u32, rack: u32| {
        wider.iter().all(|rule| {
            let domain = if rule.topology == Topology::Zone { zone } else { rack };
            let members = if domain == NO_DOMAIN { 0 } else { rule.counts.count(domain) };
            rule.admits_count(members, domain != NO_DOMAIN)
        })
    };
    if let Some((zone, rack)) = racks.iter().find(|(zone, rack)| admits(*zone, *rack)) {
        return Some(names(*zone, *rack));
    }
    // A new rack in a zone that exists, or a new rack in a new zone.
    let new_rack = |zone: Option<u32>| {
        wider.iter().all(|rule| {
            let in_zone = rule.topology == Topology::Zone;
            let members = zone.filter(|_| in_zone).map_or(0, |zone| rule.counts.count(zone));
            rule.admits_count(members, true)
        })
    };
    let mut zones: Vec<u32> = racks.iter().map(|(zone, _)| *zone).collect();
    zones.retain(|zone| *zone != NO_DOMAIN);
    zones.dedup();
    if let Some(zone) = zones.into_iter().find(|zone| new_rack(Some(*zone))) {
        return Some((names(zone, NO_DOMAIN).0, Some("new-rack".to_owned())));
    }
    new_rack(None).then(|| (Some("new-zone".to_owned()), Some("new-rack".to_owned())))
}
