//! Every rule that can remove a node, written from what the rules are said to do.

use std::collections::BTreeSet;

use berth_engine::affinity::{Operator, Strength};
use berth_engine::policy::{CpuRule, Policy, TraitRule};
use berth_engine::{
    Amounts, CpuCapMode, Group, GroupKind, Hint, InstanceRequest, LinkState, NodeFacts, NodeState,
    PPM, PlatformVersion, Timestamp,
};

use super::model::{World, selects};

/// The rules in the order in which they are asked.
pub const NAMES: [&str; 35] = [
    "secrets-present",
    "address-available",
    "volume-exclusive",
    "node-active",
    "heartbeat-fresh",
    "facts-valid",
    "capacity-known",
    "kvm",
    "scratch-disk",
    "overlay-healthy",
    "not-reserved",
    "not-headnode",
    "not-sick",
    "no-reboot-soon",
    "not-virtual",
    "capacity-type",
    "platform",
    "traits",
    "networks",
    "overprovision-ratios",
    "placement-constraint",
    "cpu-within-host",
    "not-excluded",
    "volume-home",
    "groups",
    "resident-rules",
    "affinity",
    "strict-locality",
    "instance-count",
    "cpu-cap-mixing",
    "memory",
    "cpu",
    "disk",
    "bandwidth",
    "extra-classes",
];

/// A question about one node.
pub struct Question<'a> {
    pub world: &'a World,
    pub policy: &'a Policy,
    pub request: &'a InstanceRequest,
    pub node: &'a NodeFacts,
    pub now: Timestamp,
}

/// Fine, or not, and by how much where that is a number.
pub type Verdict = Result<(), Option<i128>>;

/// Every rule that keeps the instance off the node, with its shortfall.
pub fn failures(question: &Question<'_>) -> Vec<(usize, Option<i128>)> {
    let on = |name: &str| !question.policy.filters().off.iter().any(|off| off == name);
    let numbered = NAMES.iter().enumerate().filter(|(_, name)| on(name));
    numbered
        .filter_map(|(place, name)| judge(name, question).err().map(|short| (place, short)))
        .collect()
}

fn unless(bad: bool) -> Verdict {
    if bad { Err(None) } else { Ok(()) }
}

fn judge(name: &str, q: &Question<'_>) -> Verdict {
    match name {
        "secrets-present" => unless(q.request.needs_secrets && !secrets(q)),
        "address-available" => unless(q.world.free_addresses == Some(0)),
        "volume-exclusive" => unless(volume_in_use(q)),
        "node-active" => unless(!active(q)),
        "heartbeat-fresh" => heartbeat(q),
        "facts-valid" => unless(!valid(q.node)),
        "capacity-known" => {
            unless(q.node.capacity.is_none_or(|have| have.cpu_milli == 0 || have.memory_mib == 0))
        }
        "kvm" => unless(!q.node.kvm),
        "scratch-disk" => {
            enough(q.policy.filters().min_scratch_mib.into(), q.node.scratch_mib.into())
        }
        "overlay-healthy" => {
            unless(q.node.overlay_loss_ppm > q.policy.filters().max_overlay_loss_ppm)
        }
        "not-reserved" => unless(q.node.reserved),
        "not-headnode" => unless(q.node.headnode),
        "not-sick" => sick(q),
        "no-reboot-soon" => reboot_soon(q),
        "not-virtual" => unless(q.request.exclude_virtual && q.node.is_virtual),
        "capacity-type" => {
            unless(q.request.capacity_type.is_some_and(|wanted| wanted != q.node.capacity_type))
        }
        "platform" => unless(!platform(q)),
        "traits" => unless(!traits(q)),
        "networks" => unless(!networks(q)),
        "overprovision-ratios" => unless(!ratios(q)),
        "placement-constraint" => {
            unless(q.request.required_place.as_ref().is_some_and(|place| !place.matches(q.node)))
        }
        "cpu-within-host" => within_host(q),
        "not-excluded" => unless(q.request.excluded_nodes.contains(&q.node.id)),
        "volume-home" => {
            unless(q.world.volumes_of(q.request).iter().any(|volume| volume.home != q.node.id))
        }
        "groups" => unless(!groups(q)),
        "resident-rules" => unless(!residents_agree(q)),
        "affinity" => unless(!affinity(q)),
        "strict-locality" => unless(!strict_locality(q)),
        "instance-count" => enough(1, i128::from(q.node.instance_limit) - q.world.count_on(q.node)),
        "cpu-cap-mixing" => unless(!may_mix(q)),
        "memory" => memory(q),
        "cpu" => match q.policy.filters().cpu {
            CpuRule::Soft => below_ceiling(q),
            CpuRule::Hard => {
                enough(q.request.resources.cpu_milli.into(), q.world.cpu(q.node).free())
            }
        },
        "disk" => disk(q),
        "bandwidth" => {
            enough(q.request.resources.bandwidth_mbps.into(), q.world.bandwidth(q.node).free())
        }
        "extra-classes" => extra_classes(q),
        other => panic!("no rule is called {other}"),
    }
}

/// A need of zero passes everywhere.
fn enough(wanted: i128, free: i128) -> Verdict {
    if wanted == 0 || free >= wanted { Ok(()) } else { Err(Some(wanted - free)) }
}

fn secrets(q: &Question<'_>) -> bool {
    let env = q.request.env.as_ref();
    env.is_some_and(|env| q.world.secrets.get(env) == Some(&true))
}

fn volume_in_use(q: &Question<'_>) -> bool {
    let volumes = q.world.volumes_of(q.request);
    let users = volumes.iter().filter_map(|volume| volume.attached_to);
    users.into_iter().any(|user| user != q.request.id)
}

fn active(q: &Question<'_>) -> bool {
    q.node.state == NodeState::Active
        || (q.node.state == NodeState::Degraded && q.policy.filters().admit_degraded)
}

fn heartbeat(q: &Question<'_>) -> Verdict {
    let age = i128::from(q.now.0) - i128::from(q.node.heartbeat_at.0);
    let grace = i128::from(q.policy.filters().heartbeat_grace_s);
    if age <= grace { Ok(()) } else { Err(Some(age - grace)) }
}

fn valid(node: &NodeFacts) -> bool {
    let ratios = [node.ratios.cpu_permille, node.ratios.memory_permille, node.ratios.disk_permille];
    let marks = [node.watermarks.cpu_permille, node.watermarks.memory_permille];
    let keep = node.system_reserve;
    let reserve_fits = |have: Amounts| {
        keep.cpu_milli <= have.cpu_milli
            && keep.memory_mib <= have.memory_mib
            && keep.disk_mib <= have.disk_mib
            && keep.bandwidth_mbps <= have.bandwidth_mbps
    };
    ratios.iter().all(|ratio| (1..=1_000_000).contains(ratio))
        && marks.iter().all(|mark| (1..=1000).contains(mark))
        && node.overlay_loss_ppm <= PPM
        && node.capacity.is_none_or(reserve_fits)
}

/// Of the boots since the last success, two failed by the node's fault, or three for different
/// reasons, where a tenant is one reason: the newest such failures are within the window.
fn sick(q: &Question<'_>) -> Verdict {
    let boots = &q.node.boots;
    let since = boots.iter().rposition(|boot| !boot.failed).map_or(0, |success| success + 1);
    let failures = &boots[since..];
    // Every failure with all that came after it: the newest that suffices decides.
    let suffices = |place: &usize| {
        let since = &failures[*place..];
        let by_node = since.iter().filter(|boot| boot.tenant.is_none()).count();
        let tenants: BTreeSet<_> = since.iter().filter_map(|boot| boot.tenant.as_ref()).collect();
        by_node >= 2 || by_node + tenants.len() >= 3
    };
    let Some(newest) = (0..failures.len()).rev().find(suffices) else { return Ok(()) };
    let until = failures[newest].at.0 + i64::from(q.policy.filters().sick_window_s);
    if q.now.0 < until { Err(Some(i128::from(until - q.now.0))) } else { Ok(()) }
}

/// A reboot planned before the last boot has happened.
pub fn planned_reboot(node: &NodeFacts) -> Option<Timestamp> {
    let planned = node.next_reboot?;
    match node.last_boot {
        Some(booted) if planned < booted => None,
        Some(_) | None => Some(planned),
    }
}

fn reboot_soon(q: &Question<'_>) -> Verdict {
    let (Some(days), Some(at)) = (q.policy.filters().no_reboot_within_days, planned_reboot(q.node))
    else {
        return Ok(());
    };
    let (until, span) = (at.0 - q.now.0, i64::from(days) * Timestamp::DAY);
    if until >= 0 && until < span { Err(Some(i128::from(span - until))) } else { Ok(()) }
}

fn platform(q: &Question<'_>) -> bool {
    let (min, max) = (&q.request.platform.min, &q.request.platform.max);
    // A node that states no version is taken to run an ancient build of 6.5.
    let (version, built) = match q.node.platform {
        Some(platform) => (platform.version, platform.built_at.0),
        None => (PlatformVersion::new(6, 5), i64::MIN),
    };
    let new_enough = match (min.get(&version), min.keys().min()) {
        (_, None) => true,
        (Some(oldest), _) => built >= oldest.0,
        (None, Some(lowest)) => version > *lowest,
    };
    let old_enough = match (max.get(&version), max.keys().max()) {
        (_, None) => true,
        (Some(newest), _) => built <= newest.0,
        (None, Some(highest)) => version < *highest,
    };
    new_enough && old_enough
}

fn traits(q: &Question<'_>) -> bool {
    let (has, wants) = (&q.node.traits, &q.request.traits);
    let agrees = wants
        .iter()
        .all(|(name, value)| has.get(name).is_some_and(|found| value.agrees_with(found)));
    let nothing_more = has.keys().all(|name| wants.contains_key(name));
    agrees && (q.policy.filters().traits == TraitRule::Subset || nothing_more)
}

fn networks(q: &Question<'_>) -> bool {
    let up = |tag: &String| {
        let mut here = q.node.networks.iter();
        here.any(|network| network.tag == *tag && network.link == LinkState::Up)
    };
    q.request.networks.iter().all(|any_of| any_of.iter().any(up))
}

/// Equal to two decimals.
fn ratios(q: &Question<'_>) -> bool {
    let Some(wanted) = q.request.ratios else {
        return true;
    };
    let hundredths = |permille: u32| (permille + 5) / 10;
    let has = q.node.ratios;
    hundredths(wanted.cpu_permille) == hundredths(has.cpu_permille)
        && hundredths(wanted.memory_permille) == hundredths(has.memory_permille)
        && hundredths(wanted.disk_permille) == hundredths(has.disk_permille)
}

fn groups(q: &Question<'_>) -> bool {
    let named = q.request.groups.iter().filter_map(|id| q.world.group(id));
    let mut hard = named.filter(|group| group.strength == Strength::Hard);
    hard.all(|group| group_admits(q, group))
}

fn group_admits(q: &Question<'_>, group: &Group) -> bool {
    let is_member = |other: &InstanceRequest| other.groups.contains(&group.id);
    let members = q.world.in_domain(q.node, group.topology, is_member);
    let below_limit = match (group.max_per_domain, group.kind) {
        (Some(most), _) => members < i64::from(most),
        (None, GroupKind::Apart) => members < 1,
        (None, GroupKind::Together) => true,
    };
    if group.kind == GroupKind::Apart {
        return below_limit;
    }
    let known = q.world.domain(&q.node.id, group.topology).is_some();
    let first = !q.world.placed.iter().any(|(other, _)| is_member(other));
    known && below_limit && (first || members > 0)
}

/// Hard `!=` rules of the same tenant's instances hold against newcomers, too.
fn residents_agree(q: &Question<'_>) -> bool {
    let mut residents = q.world.placed.iter();
    residents.all(|(resident, at)| {
        resident.tenant != q.request.tenant
            || resident.affinity.iter().all(|rule| {
                let here = q.world.domain(&q.node.id, rule.scope());
                let shares = here.is_some() && q.world.domain(at, rule.scope()) == here;
                let forbids = rule.is_hard() && rule.operator() == Operator::Different;
                !(forbids && shares && selects(rule, q.request))
            })
    })
}

fn affinity(q: &Question<'_>) -> bool {
    let mut hard = q.request.affinity.iter().filter(|rule| rule.is_hard());
    hard.all(|rule| {
        let matches =
            |other: &InstanceRequest| other.tenant == q.request.tenant && selects(rule, other);
        let here = q.world.in_domain(q.node, rule.scope(), matches);
        let anywhere = q.world.placed.iter().any(|(other, _)| matches(other));
        match rule.operator() {
            Operator::Different => here == 0,
            // The first of a set that wants to be together starts the set.
            Operator::Same => here > 0 || (!anywhere && selects(rule, q.request)),
        }
    })
}

/// Whether a hint means an instance.
pub fn hinted(request: &InstanceRequest, hint: &Hint, other: &InstanceRequest) -> bool {
    let meant = match hint {
        Hint::Instance(id) => other.id == *id,
        Hint::Tag(key, value) => other.tags.get(key) == Some(value),
    };
    meant && other.tenant == request.tenant
}

fn strict_locality(q: &Question<'_>) -> bool {
    let locality = &q.request.locality;
    if !locality.strict {
        return true;
    }
    let here = |hint: &Hint| {
        let mut here = q.world.on(&q.node.id);
        here.any(|other| hinted(q.request, hint, other))
    };
    locality.near.iter().all(here) && !locality.far.iter().any(here)
}

fn may_mix(q: &Question<'_>) -> bool {
    let wanted = q.request.cpu_capped;
    match q.node.cpu_cap_mode {
        CpuCapMode::Mixed => true,
        CpuCapMode::Capped => wanted,
        CpuCapMode::Uncapped => !wanted,
        CpuCapMode::Uniform => q.world.on(&q.node.id).all(|other| other.cpu_capped == wanted),
    }
}

/// One instance has no more cores than its host; a node of unknown size is judged elsewhere.
fn within_host(q: &Question<'_>) -> Verdict {
    let cores = q.node.capacity.map_or(0, |have| i128::from(have.cpu_milli));
    let using = q.request.elastic.as_ref().and_then(|elastic| elastic.using);
    let wanted = using.map_or(q.request.resources.cpu_milli, |using| using.cpu_milli);
    if cores == 0 { Ok(()) } else { enough(wanted.into(), cores) }
}

/// What the ratio allows times the ceiling, rounded down; a deficit stays as it is.
fn below_ceiling(q: &Question<'_>) -> Verdict {
    let Some(ceiling) = q.policy.filters().cpu_ceiling_permille else {
        return Ok(());
    };
    let room = q.world.cpu(q.node);
    let most = if room.limit < 0 { room.limit } else { room.limit * i128::from(ceiling) / 1000 };
    enough(q.request.resources.cpu_milli.into(), most - room.used)
}

fn memory(q: &Question<'_>) -> Verdict {
    let overhead = i128::from(q.node.vmm_overhead_mib);
    let wanted = i128::from(q.request.resources.memory_mib);
    enough(wanted + overhead, q.world.memory(q.node).free())
}

fn disk(q: &Question<'_>) -> Verdict {
    let own = i128::from(q.request.resources.disk_mib) + i128::from(q.request.image_mib);
    let wanted = own + i128::from(q.policy.filters().disk_headroom_mib);
    enough(wanted, q.world.disk(q.node).free())
}

fn extra_classes(q: &Question<'_>) -> Verdict {
    for (name, &wanted) in &q.request.extra {
        enough(wanted.into(), q.world.class(q.node, name).free())?;
    }
    Ok(())
}
