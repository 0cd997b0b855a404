//! Asking for less: what is left of a request when it is cut down to the room of a node.

use std::collections::BTreeMap;

use super::change::RequestChange;
use crate::fleet::{NodeIndex, NodeRow};
use crate::model::{Amounts, InstanceRequest};
use crate::policy::CpuRule;
use crate::prepared_request::PreparedRequest;

/// One million: the loss of all of one resource.
const ALL: u64 = 1_000_000;

/// The amounts that a node has room for, as far as the request wants them.
pub(super) fn fit_to_node(prepared: &PreparedRequest<'_>, row: &NodeRow) -> Amounts {
    let (request, policy) = (prepared.request, prepared.policy);
    let wanted = request.resources;
    let beside_disk = i64::from(request.image_mib) + i64::from(policy.filters.disk_headroom_mib);
    let cpu_room = cpu_room(prepared, row, row.used.cpu).min(cores(prepared, row));
    Amounts {
        cpu_milli: cut(wanted.cpu_milli, cpu_room),
        memory_mib: cut(wanted.memory_mib, row.memory_room()),
        disk_mib: cut(wanted.disk_mib, row.limits.disk - row.used.disk - beside_disk),
        bandwidth_mbps: cut(wanted.bandwidth_mbps, row.limits.bandwidth - row.used.bandwidth),
    }
}

/// CPU that may still be promised on a node: below the ceiling, and below the ratio where it is hard.
fn cpu_room(prepared: &PreparedRequest<'_>, row: &NodeRow, used: i64) -> i64 {
    let filters = &prepared.policy.filters;
    let below_ratio = match filters.cpu {
        CpuRule::Hard => row.limits.cpu - used,
        CpuRule::Soft => i64::MAX,
    };
    let below_ceiling = filters
        .cpu_ceiling_permille
        .map_or(i64::MAX, |ceiling| row.limits.cpu.saturating_mul(ceiling.into()) / 1000 - used);
    below_ratio.min(below_ceiling)
}

/// Cores that one instance may have on a node.
fn cores(prepared: &PreparedRequest<'_>, row: &NodeRow) -> i64 {
    match prepared.policy.filters.cpu_within_host {
        true => i64::from(row.capacity.cpu_milli),
        false => i64::MAX,
    }
}

/// Further classes of which a node has less than the request wants.
fn fit_classes(prepared: &PreparedRequest<'_>, row: &NodeRow) -> BTreeMap<String, u32> {
    let texts = prepared.fleet.texts();
    let fitted = prepared.request.extra.iter().map(|(name, &wanted)| {
        let class = row.extra.iter().find(|class| texts.text(class.name) == name);
        let room = class.map_or(0, |class| i64::from(class.limit) - class.used);
        (name.clone(), cut(wanted, room))
    });
    let extra: BTreeMap<String, u32> = fitted.collect();
    let wanted = &prepared.request.extra;
    extra.into_iter().filter(|(name, left)| wanted.get(name) != Some(left)).collect()
}

fn cut(wanted: u32, room: i64) -> u32 {
    wanted.min(u32::try_from(room.clamp(0, i64::from(Amounts::MAX))).unwrap_or(0))
}

/// The smaller request that a node has room for. Of bandwidth and further classes nothing may be
/// left; of CPU, memory and disk something must be.
pub(super) fn shrink_to(prepared: &PreparedRequest<'_>, row: &NodeRow) -> Option<RequestChange> {
    let wanted = prepared.request.resources;
    let resources = fit_to_node(prepared, row);
    let extra = fit_classes(prepared, row);
    let is_left = |asked: u32, left: u32| asked == 0 || left > 0;
    let usable = is_left(wanted.cpu_milli, resources.cpu_milli)
        && resources.memory_mib > 0
        && is_left(wanted.disk_mib, resources.disk_mib);
    let changes = resources != wanted || !extra.is_empty();
    (usable && changes).then_some(RequestChange::Shrink { resources, extra })
}

/// How much of a request is lost on a node, summed over resources in parts per million of each.
pub(super) fn lost_share(prepared: &PreparedRequest<'_>, row: &NodeRow) -> u64 {
    let lost = |asked: u32, left: u32| u64::from(asked - left) * ALL / u64::from(asked.max(1));
    let fitted = fit_to_node(prepared, row);
    let pairs = prepared.request.resources.named().into_iter().zip(fitted.named());
    let amounts: u64 = pairs.map(|((_, asked, _), (_, left, _))| lost(asked, left)).sum();
    if prepared.request.extra.is_empty() {
        return amounts;
    }
    let short = fit_classes(prepared, row);
    let asked = |name: &str| prepared.request.extra.get(name).copied().unwrap_or(0);
    amounts + short.iter().map(|(name, left)| lost(asked(name), *left)).sum::<u64>()
}

/// The nodes where least of the request would be lost; of equals, in the order given.
pub(super) fn closest(
    prepared: &PreparedRequest<'_>,
    nodes: &[NodeIndex],
    most: usize,
) -> Vec<NodeIndex> {
    let by_loss = nodes.iter().enumerate().filter_map(|(place, &index)| {
        Some((lost_share(prepared, prepared.fleet.row(index)?), place, index))
    });
    let mut by_loss: Vec<(u64, usize, NodeIndex)> = by_loss.collect();
    if by_loss.len() > most {
        by_loss.select_nth_unstable(most);
        by_loss.truncate(most);
    }
    by_loss.sort_unstable();
    by_loss.into_iter().map(|(_, _, index)| index).collect()
}

/// The largest size at which a whole batch of such requests has room, by arithmetic alone: the
/// amounts that are short are cut by the same share until enough of them fit on these nodes.
pub(crate) fn shrink_to_count(
    request: &InstanceRequest,
    rooms: &[Room],
    count: usize,
) -> Option<Amounts> {
    let fits = |amounts: Amounts| {
        let mut left = count;
        for room in rooms {
            left = left.saturating_sub(room.holds(amounts));
            if left == 0 {
                return true;
            }
        }
        false
    };
    let wanted = request.resources;
    let mut least = wanted;
    for cut in [
        |amounts: Amounts| Amounts { disk_mib: amounts.disk_mib.min(1), ..amounts },
        |amounts: Amounts| Amounts { bandwidth_mbps: 0, ..amounts },
        |amounts: Amounts| Amounts { cpu_milli: amounts.cpu_milli.min(1), ..amounts },
        |amounts: Amounts| Amounts { memory_mib: 1, ..amounts },
    ] {
        if fits(least) {
            break;
        }
        least = cut(least);
    }
    // What is not short is given back whole, and then as much of the rest as fits.
    for give_back in GIVE_BACK {
        let more = give_back(least, wanted);
        least = if fits(more) { more } else { least };
    }
    let mut fitted = cut_to_fit(wanted, least, &fits)?;
    for give_back in GIVE_BACK {
        fitted = cut_to_fit(give_back(fitted, wanted), fitted, &fits).unwrap_or(fitted);
    }
    Some(fitted)
}

/// Each amount of the first as it is in the second.
const GIVE_BACK: [fn(Amounts, Amounts) -> Amounts; 4] = [
    |least, wanted| Amounts { cpu_milli: wanted.cpu_milli, ..least },
    |least, wanted| Amounts { memory_mib: wanted.memory_mib, ..least },
    |least, wanted| Amounts { disk_mib: wanted.disk_mib, ..least },
    |least, wanted| Amounts { bandwidth_mbps: wanted.bandwidth_mbps, ..least },
];

/// The most between two sizes that fits, to a share of 1 in 1024 and then to whole units.
fn cut_to_fit(most: Amounts, least: Amounts, fits: &dyn Fn(Amounts) -> bool) -> Option<Amounts> {
    if !fits(least) {
        return None;
    }
    let between = |share: u64| {
        let part = |low: u32, high: u32| {
            let grown = u64::from(low) + u64::from(high - low) * share / 1024;
            u32::try_from(grown).unwrap_or(high)
        };
        Amounts {
            cpu_milli: part(least.cpu_milli, most.cpu_milli),
            memory_mib: part(least.memory_mib, most.memory_mib),
            disk_mib: part(least.disk_mib, most.disk_mib),
            bandwidth_mbps: part(least.bandwidth_mbps, most.bandwidth_mbps),
        }
    };
    let (mut low, mut high) = (0, 1024);
    while high - low > 1 {
        let middle = u64::midpoint(low, high);
        if fits(between(middle)) {
            low = middle;
        } else {
            high = middle;
        }
    }
    Some(between(low))
}

/// The room of one node, for one class of requests.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Room {
    memory: i64,
    overhead: i64,
    disk: i64,
    /// Disk that must stay free in addition to the instance's own.
    beside_disk: i64,
    cpu: i64,
    /// Most CPU of one instance.
    cores: i64,
    bandwidth: i64,
    slots: i64,
}

impl Room {
    /// What is left on a node; with nothing on it if `empty`.
    pub(crate) fn of(prepared: &PreparedRequest<'_>, row: &NodeRow, empty: bool) -> Self {
        let filters = &prepared.policy.filters;
        let used = if empty { crate::model::Used::default() } else { row.used };
        let overhead = i64::from(row.vmm_overhead_mib);
        let slots = i64::from(row.instance_limit) - i64::from(used.instances);
        let classes = prepared.request.extra.iter().filter(|(_, wanted)| **wanted > 0);
        let texts = prepared.fleet.texts();
        let of_classes = classes.map(|(name, &wanted)| {
            let class = row.extra.iter().find(|class| texts.text(class.name) == name);
            let left = class
                .map_or(0, |class| i64::from(class.limit) - if empty { 0 } else { class.used });
            left.max(0) / i64::from(wanted)
        });
        Self {
            memory: row.limits.memory - used.memory - i64::from(used.instances) * overhead,
            overhead,
            disk: row.limits.disk - used.disk,
            beside_disk: i64::from(prepared.request.image_mib)
                + i64::from(filters.disk_headroom_mib),
            cpu: cpu_room(prepared, row, used.cpu),
            cores: cores(prepared, row),
            bandwidth: row.limits.bandwidth - used.bandwidth,
            slots: of_classes.fold(slots, i64::min),
        }
    }

    /// How many instances of this size it holds.
    pub(crate) fn holds(&self, amounts: Amounts) -> usize {
        if i64::from(amounts.cpu_milli) > self.cores {
            return 0;
        }
        let of = |room: i64, each: i64| if each == 0 { i64::MAX } else { room.max(0) / each };
        let disk = match i64::from(amounts.disk_mib) + self.beside_disk {
            0 => i64::MAX,
            needed if self.disk < needed => 0,
            needed => 1 + of(self.disk - needed, amounts.disk_mib.into()).min(i64::MAX - 1),
        };
        let counts = [
            of(self.memory, i64::from(amounts.memory_mib) + self.overhead),
            disk,
            of(self.cpu, amounts.cpu_milli.into()),
            of(self.bandwidth, amounts.bandwidth_mbps.into()),
            self.slots,
        ];
        let least = counts.into_iter().min().unwrap_or(0);
        usize::try_from(least.max(0)).unwrap_or(usize::MAX)
    }
}
