//! The load of the fleet, its usual shapes, and what a placement costs in slots, from their definitions.

use std::collections::BTreeMap;

use berth_engine::{NodeFacts, NodeState, PPM};

use super::model::World;
use super::scores::Contest;

const UNITS: [i128; 2] = [250, 256];
const MOST_UNITS: i128 = (1 << 14) - 1;

/// The larger of CPU and memory in use on active nodes, in thousandths of what they may promise.
pub fn load_permille(world: &World) -> u32 {
    let active = |node: &&NodeFacts| node.state == NodeState::Active && node.capacity.is_some();
    let share = |room: fn(&World, &NodeFacts) -> super::model::Room| {
        let rooms = world.nodes.iter().filter(active).map(|node| room(world, node));
        let (used, limit) =
            rooms.fold((0, 0), |(used, limit), room| (used + room.used, limit + room.limit.max(0)));
        if limit <= 0 { 0 } else { used.max(0) * 1000 / limit }
    };
    let load = share(|world, node| world.cpu(node)).max(share(|world, node| world.memory(node)));
    u32::try_from(load).unwrap_or(u32::MAX)
}

/// Four leading binary digits, rounded up.
fn leading_up(number: i128) -> i128 {
    let mut step = 1;
    while number / step >= 16 {
        step *= 2;
    }
    ceil(number, step) * step
}

/// The largest power of two in a number.
fn power_in(number: i128) -> i128 {
    let mut power = 1;
    while power * 2 <= number {
        power *= 2;
    }
    power
}

fn ceil(number: i128, by: i128) -> i128 {
    (number + by - 1) / by
}

/// Usual shapes: CPU and memory as amounts, and the weight.
fn usual(c: &Contest<'_>) -> Vec<([i128; 2], i128)> {
    let pinned = c.policy.shapes().iter();
    let pinned: Vec<_> =
        pinned.map(|s| ([s.cpu_milli.into(), s.memory_mib.into()], i128::from(s.weight))).collect();
    if !pinned.is_empty() {
        return pinned;
    }
    let mut counts: BTreeMap<[i128; 2], i128> = BTreeMap::new();
    for (request, _) in &c.world.placed {
        let size = [request.resources.cpu_milli, request.resources.memory_mib];
        let units = [0, 1].map(|at| leading_up(ceil(size[at].into(), UNITS[at])));
        *counts.entry(units).or_default() += 1;
    }
    let mut held: Vec<_> = counts.into_iter().collect();
    // Stable: equals stay in the order of their sizes.
    held.sort_by_key(|(units, count)| -(power_in(*count) * (units[0] + units[1])));
    held.truncate(8);
    let shape = |(units, count): ([i128; 2], i128)| {
        ([units[0] * UNITS[0], units[1] * UNITS[1]], power_in(count))
    };
    held.into_iter().map(shape).collect()
}

/// The value of a node by the slots that the request would cost it.
pub fn slot_loss(c: &Contest<'_>, node: &NodeFacts) -> i128 {
    let full = i128::from(PPM);
    let largest =
        |of: fn(&NodeFacts) -> u32| i128::from(c.world.nodes.iter().map(of).max().unwrap_or(0));
    let largest = [
        largest(|node| node.capacity.unwrap_or_default().cpu_milli),
        largest(|node| node.capacity.unwrap_or_default().memory_mib),
    ];
    // Units are doubled until the largest node has at most so many.
    let unit = [0, 1].map(|at| {
        let mut unit = UNITS[at];
        while largest[at] / unit > MOST_UNITS {
            unit *= 2;
        }
        unit
    });
    let up = |amounts: [i128; 2]| [0, 1].map(|at| ceil(amounts[at], unit[at]).min(MOST_UNITS));
    let wanted = c.request.resources;
    let wanted = up([wanted.cpu_milli.into(), wanted.memory_mib.into()]);
    let overhead = i128::from(node.vmm_overhead_mib);
    let free = [c.world.cpu(node).free(), c.world.memory(node).free() - overhead];
    let room = [0, 1].map(|at| (free[at].max(0) / unit[at]).min(MOST_UNITS));
    let left = [0, 1].map(|at| (room[at] - wanted[at]).max(0));
    let shapes: Vec<([i128; 2], i128)> = usual(c)
        .into_iter()
        .map(|(amounts, weight)| {
            let share = |at: usize| amounts[at] * 1000 / largest[at].max(1);
            (
                up(amounts).map(|units| units.max(1)),
                weight * ((share(0) + share(1)) / 2).clamp(1, 1000),
            )
        })
        .collect();
    let slots = |room: [i128; 2], shape: [i128; 2]| (room[0] / shape[0]).min(room[1] / shape[1]);
    let most: i128 = shapes
        .iter()
        .map(|(shape, weight)| weight * ceil(wanted[0], shape[0]).max(ceil(wanted[1], shape[1])))
        .sum();
    let lost: i128 = shapes
        .iter()
        .map(|(shape, weight)| {
            let cost = weight * 50_000 / most.max(1);
            cost * (slots(room, *shape) - slots(left, *shape))
        })
        .sum();
    full - 20 * lost
}
