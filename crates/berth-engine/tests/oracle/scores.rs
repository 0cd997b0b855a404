//! Every scorer's value, from its formula, for the nodes that passed the filters.

use std::collections::BTreeSet;

use berth_engine::affinity::{Operator, Strength, Topology};
use berth_engine::policy::{Combine, MissedReboot, Policy};
use berth_engine::{Amounts, GroupKind, InstanceRequest, NodeFacts, PPM, Timestamp};

use super::filters::{hinted, planned_reboot};
use super::model::{World, selects};

const FULL: i128 = PPM as i128;
const BUCKET_S: i64 = 7 * Timestamp::DAY;

/// What scores are asked about.
pub struct Contest<'a> {
    pub world: &'a World,
    pub policy: &'a Policy,
    pub request: &'a InstanceRequest,
    pub now: Timestamp,
    /// The nodes that passed every filter, in order of id.
    pub left: Vec<&'a NodeFacts>,
}

/// Every node's total, in the order of the nodes left.
pub fn totals(contest: &Contest<'_>) -> Vec<i64> {
    let weights: Vec<(&str, i128)> = contest
        .policy
        .weights_at_load(super::slots::load_permille(contest.world))
        .into_iter()
        .map(|(id, permille)| (id.scorer().name, i128::from(permille)))
        .collect();
    let values: Vec<Vec<i128>> = weights.iter().map(|(name, _)| values_of(name, contest)).collect();
    let total = |node: usize| {
        let weighted = weights.iter().zip(&values);
        let weighted = weighted.map(|((_, weight), values)| (*weight, values[node]));
        let total = match contest.policy.combine() {
            Combine::Sum => weighted.map(|(weight, value)| value * weight / 1000).sum(),
            Combine::Product => {
                let heaviest = weights.iter().map(|(_, w)| *w).max().unwrap_or(1);
                weighted.fold(FULL, |product, (weight, value)| {
                    product * (FULL - (FULL - value) * weight / heaviest) / FULL
                })
            }
        };
        i64::try_from(total).expect("totals are small")
    };
    (0..contest.left.len()).map(total).collect()
}

/// One scorer's values of all nodes left.
fn values_of(name: &str, contest: &Contest<'_>) -> Vec<i128> {
    let free_memory = |node: &&NodeFacts| contest.world.memory(node).free();
    match name {
        "memory-pack-rank" => ranks(contest.left.iter().map(free_memory).collect()),
        "disk-pack-rank" => {
            let free = |node: &&NodeFacts| contest.world.disk(node).free();
            ranks(contest.left.iter().map(free).collect())
        }
        "spare-largest" => spare_largest(contest),
        _ => {
            let each = contest.left.iter();
            each.map(|node| value(name, contest, node)).collect()
        }
    }
}

fn value(name: &str, c: &Contest<'_>, node: &NodeFacts) -> i128 {
    match name {
        "cpu-pressure" => FULL - cpu_share(c, node),
        "cpu-pack" => cpu_share(c, node),
        "memory-pack" => memory_share(c, node),
        "memory-spread" => FULL - memory_share(c, node),
        "disk-pack" => disk_share(c, node),
        "disk-spread" => FULL - disk_share(c, node),
        "tent" => tent(c, node),
        "fragmentation" => fragmentation(c, node),
        "slot-loss" => super::slots::slot_loss(c, node),
        "spread-nodes" => one_over(replicas(c, node, Topology::Node)),
        "spread-racks" => one_over(replicas(c, node, Topology::Rack)),
        "spread-zones" => spread_zones(c, node),
        "affinity" => affinity(c, node),
        "locality" => locality(c, node),
        "fewest-of-owner" => {
            let own = c.world.on(&node.id).filter(|o| o.tenant == c.request.tenant);
            one_over(own.map(|_| 1).sum())
        }
        "image-cached" => match &c.request.image {
            None => FULL,
            Some(image) if node.cached_images.contains(image) => FULL,
            Some(_) => 0,
        },
        "preferred-place" => preferred_place(c, node),
        "recent-failures" => recent_failures(c, node),
        "newest-platform" => newest_platform(c, node),
        "next-reboot" => next_reboot(c, node),
        "hardware-class" => {
            let classes = c.world.nodes.iter().map(|n| i64::from(n.hardware_class));
            let (low, high) = (classes.clone().min(), classes.max());
            between(node.hardware_class.into(), low.unwrap_or(0), high.unwrap_or(0))
        }
        "capacity-preference" => {
            FULL * i128::from(node.capacity_type == c.policy.options().prefer_capacity)
        }
        "reservoir" => FULL * i128::from(!node.reservoir),
        "measured-load" => measured_load(c, node),
        "random" => random(c.request, node),
        other => panic!("no scorer is called {other}"),
    }
}

/// What is idle, on average over what is measured; half of what is not known or too old.
fn measured_load(c: &Contest<'_>, node: &NodeFacts) -> i128 {
    let age = c.now.0.saturating_sub(node.heartbeat_at.0);
    let is_fresh = age <= i64::from(c.policy.options().load_max_age_s);
    let Some(load) = node.load.filter(|_| is_fresh) else { return FULL / 2 };
    let shares: Vec<i128> = [Some(load.cpu_permille), load.memory_permille]
        .into_iter()
        .flatten()
        .map(i128::from)
        .collect();
    FULL - shares.iter().sum::<i128>() * FULL / (1000 * i128::try_from(shares.len()).unwrap())
}

/// The share of preferences met; without any, what changes neither a sum nor a product.
fn preferred_place(c: &Contest<'_>, node: &NodeFacts) -> i128 {
    let preferred = &c.request.preferred_places;
    if preferred.is_empty() {
        return if c.policy.combine() == Combine::Product { FULL } else { 0 };
    }
    let met = preferred.iter().filter(|place| place.matches(node)).count();
    FULL * i128::try_from(met).unwrap() / i128::try_from(preferred.len()).unwrap()
}

/// A share of nothing counts as full.
fn share(part: i128, whole: i128) -> i128 {
    if whole <= 0 { FULL } else { part.clamp(0, whole) * FULL / whole }
}

fn between(value: i64, low: i64, high: i64) -> i128 {
    let (value, low, high) = (i128::from(value), i128::from(low), i128::from(high));
    if high <= low { FULL } else { (value.clamp(low, high) - low) * FULL / (high - low) }
}

/// The first place gets all, the last nothing, a single one all.
fn linear(place: usize, places: usize) -> i128 {
    if places <= 1 {
        return FULL;
    }
    FULL * (places - 1 - place) as i128 / (places - 1) as i128
}

fn one_over(others: i64) -> i128 {
    FULL / (i128::from(others) + 1)
}

fn cpu_share(c: &Contest<'_>, node: &NodeFacts) -> i128 {
    let cpu = c.world.cpu(node);
    share(cpu.used, cpu.limit)
}

fn memory_share(c: &Contest<'_>, node: &NodeFacts) -> i128 {
    let memory = c.world.memory(node);
    share(memory.used, memory.limit)
}

fn disk_share(c: &Contest<'_>, node: &NodeFacts) -> i128 {
    let disk = c.world.disk(node);
    share(disk.used, disk.limit)
}

fn tent(c: &Contest<'_>, node: &NodeFacts) -> i128 {
    let largest = |of: fn(&Amounts) -> u32| {
        let sizes = c.world.nodes.iter().map(|n| of(&n.capacity.unwrap_or_default()));
        i128::from(sizes.max().unwrap_or(0))
    };
    let tent = c.policy.options().tent;
    let (idle, end) = (i128::from(tent.idle_ppm), i128::from(tent.full_ppm));
    let peak = i128::from(tent.peak_ppm);
    let height = |used: i128| {
        if used <= peak {
            idle + (FULL - idle) * used / peak
        } else {
            end + (FULL - end) * (FULL - used) / (FULL - peak)
        }
    };
    let size = node.capacity.unwrap_or_default();
    let cpu_size = share(size.cpu_milli.into(), largest(|a| a.cpu_milli));
    let memory_size = share(size.memory_mib.into(), largest(|a| a.memory_mib));
    let cpu = height(cpu_share(c, node)) * cpu_size / FULL;
    let memory = height(memory_share(c, node)) * memory_size / FULL;
    cpu.min(memory)
}

fn fragmentation(c: &Contest<'_>, node: &NodeFacts) -> i128 {
    let (cpu, memory) = (c.world.cpu(node), c.world.memory(node));
    let overhead = i128::from(node.vmm_overhead_mib);
    let shapes = &c.policy.options().shapes;
    let stranded = |free_cpu: i128, room: i128| {
        let free = (share(free_cpu, cpu.limit) + share(room, memory.limit)) / 2;
        let misfits = shapes.iter().filter(|shape| {
            i128::from(shape.cpu_milli) > free_cpu || i128::from(shape.memory_mib) > room
        });
        free * misfits.count() as i128 / shapes.len() as i128
    };
    let wanted = c.request.resources;
    // Room for one more instance has that instance's overhead off already.
    let room = memory.free() - overhead;
    let before = stranded(cpu.free(), room);
    let after = stranded(
        cpu.free() - i128::from(wanted.cpu_milli),
        room - i128::from(wanted.memory_mib) - overhead,
    );
    (FULL + before - after) / 2
}

fn is_replica(c: &Contest<'_>, other: &InstanceRequest) -> bool {
    c.request.workload.is_some()
        && other.workload == c.request.workload
        && other.tenant == c.request.tenant
}

fn replicas(c: &Contest<'_>, node: &NodeFacts, topology: Topology) -> i64 {
    c.world.in_domain(node, topology, |other| is_replica(c, other))
}

/// Zones that have a node are compared with each other; a node in no zone takes no part.
fn spread_zones(c: &Contest<'_>, node: &NodeFacts) -> i128 {
    if node.zone.is_none() {
        return FULL;
    }
    let in_zones = c.world.nodes.iter().filter(|other| other.zone.is_some());
    let counts: Vec<i64> = in_zones.map(|other| replicas(c, other, Topology::Zone)).collect();
    let most = counts.iter().copied().max().unwrap_or(0);
    let fewest = counts.iter().copied().min().unwrap_or(0);
    if most == fewest {
        return FULL;
    }
    FULL - between(replicas(c, node, Topology::Zone), fewest, most)
}

fn affinity(c: &Contest<'_>, node: &NodeFacts) -> i128 {
    let mut sum = 0;
    for group in c.request.groups.iter().filter_map(|id| c.world.group(id)) {
        if group.strength == Strength::Soft {
            let member = |other: &InstanceRequest| other.groups.contains(&group.id);
            let members = c.world.in_domain(node, group.topology, member);
            sum += match group.kind {
                GroupKind::Together => members,
                GroupKind::Apart => -members,
            };
        }
    }
    for rule in c.request.affinity.iter().filter(|rule| !rule.is_hard()) {
        let matches =
            |other: &InstanceRequest| other.tenant == c.request.tenant && selects(rule, other);
        let members = c.world.in_domain(node, rule.scope(), matches);
        sum += match rule.operator() {
            Operator::Same => members,
            Operator::Different => -members,
        };
    }
    let (half, sum) = (FULL / 2, i128::from(sum));
    half + half * sum / (sum.abs() + 1)
}

fn locality(c: &Contest<'_>, node: &NodeFacts) -> i128 {
    let hints = &c.request.locality;
    let here: Vec<&InstanceRequest> = c.world.on(&node.id).collect();
    if hints.is_empty() {
        let own = here.iter().any(|other| other.tenant == c.request.tenant);
        let kept_apart = c.policy.options().owner_spread && own;
        return if kept_apart { FULL / 3 } else { FULL };
    }
    if hints.strict {
        return FULL;
    }
    let any_here = |hint| here.iter().any(|other| hinted(c.request, hint, other));
    let is_far = !hints.far.iter().any(any_here);
    let is_near = hints.near.is_empty() || hints.near.iter().any(any_here);
    (2 * FULL * i128::from(is_far) + FULL * i128::from(is_near)) / 3
}

fn recent_failures(c: &Contest<'_>, node: &NodeFacts) -> i128 {
    let half_life = i128::from(c.policy.options().failure_half_life_s);
    let minute = i128::from(c.now.0.div_euclid(60) * 60);
    let left = |at: Timestamp| {
        let age = (minute - i128::from(at.0)).max(0);
        let halvings = age / half_life;
        if halvings >= 10 {
            return 0;
        }
        let whole = 1000 / 2i128.pow(u32::try_from(halvings).expect("below ten"));
        whole - whole * (age % half_life) / (2 * half_life)
    };
    let failed = node.boots.iter().filter(|boot| boot.failed);
    FULL * 1000 / (1000 + failed.map(|boot| left(boot.at)).sum::<i128>())
}

fn newest_platform(c: &Contest<'_>, node: &NodeFacts) -> i128 {
    let builds = c.world.nodes.iter().filter_map(|node| node.platform);
    let builds: Vec<i64> = builds.map(|platform| platform.built_at.0).collect();
    let (Some(oldest), Some(newest)) = (builds.iter().min(), builds.iter().max()) else {
        return FULL;
    };
    match node.platform {
        None => 0,
        Some(platform) => between(platform.built_at.0, *oldest, *newest),
    }
}

fn next_reboot(c: &Contest<'_>, node: &NodeFacts) -> i128 {
    let counted = |node: &NodeFacts| {
        let soonest = c.policy.options().missed_reboot == MissedReboot::Soonest;
        planned_reboot(node).filter(|at| soonest || *at >= c.now)
    };
    let Some(planned) = counted(node) else {
        return FULL;
    };
    let mut dates: BTreeSet<i64> = BTreeSet::new();
    let mut nodes_without = false;
    for other in &c.world.nodes {
        match counted(other) {
            Some(at) => drop(dates.insert(at.0)),
            None => nodes_without = true,
        }
    }
    // Latest first, each bucket seven days long from its latest date.
    let mut buckets: Vec<i64> = Vec::new();
    for at in dates.into_iter().rev() {
        if buckets.last().is_none_or(|latest| at <= latest - BUCKET_S) {
            buckets.push(at);
        }
    }
    let mine = buckets
        .iter()
        .position(|latest| planned.0 > latest - BUCKET_S)
        .expect("every date has a bucket");
    let before = usize::from(nodes_without);
    linear(before + mine, before + buckets.len())
}

/// Least free first; equal numbers share a place.
fn ranks(free: Vec<i128>) -> Vec<i128> {
    let distinct: BTreeSet<i128> = free.iter().copied().collect();
    let place = |number: i128| distinct.iter().filter(|other| **other < number).count();
    free.iter().map(|number| linear(place(*number), distinct.len())).collect()
}

/// The 15 % with most free memory; of equals the larger id, so that the smaller wins.
fn spare_largest(c: &Contest<'_>) -> Vec<i128> {
    let spared = c.left.len() * 15 / 100;
    let free = |node: &NodeFacts| c.world.memory(node).free();
    let mut order: Vec<usize> = (0..c.left.len()).collect();
    order.sort_by_key(|&place| (free(c.left[place]), place));
    let largest: Vec<usize> = order.into_iter().rev().take(spared).collect();
    (0..c.left.len()).map(|place| FULL * i128::from(!largest.contains(&place))).collect()
}

fn random(request: &InstanceRequest, node: &NodeFacts) -> i128 {
    let mut text = request.id.0.as_bytes().to_vec();
    text.extend_from_slice(node.id.as_str().as_bytes());
    let hash = blake3::hash(&text);
    let head: [u8; 8] = hash.as_bytes()[..8].try_into().expect("eight bytes");
    i128::from(u64::from_le_bytes(head)) % (FULL + 1)
}
