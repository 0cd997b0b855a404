//! The limits of the fields of the engine's own types.

use super::table::{self, NAME};
use super::{Limit, LimitExceeded, check_length};
use crate::limit_fields;
use crate::model::{
    BootOutcome, Elastic, Group, InstanceRequest, Locality, Network, NodeFacts, Override,
    PlatformBounds, TraitValue, Volume,
};

limit_fields!(Elastic { class: NAME } fixed {
    min, max, compute_unit, stays, overcommit_permille, using,
});

limit_fields!(PlatformBounds { min: table::PLATFORMS, max: table::PLATFORMS } fixed {});

limit_fields!(Locality { near: table::HINTS, far: table::HINTS } fixed { strict });

limit_fields!(Network { tag: NAME } fixed { link });

limit_fields!(BootOutcome { tenant: NAME } fixed { at, failed });

limit_fields!(Group { id: NAME, tenant: NAME } fixed { kind, strength, topology, max_per_domain });

limit_fields!(Volume { id: NAME, tenant: NAME, home: NAME } fixed { attached_to });

limit_fields!(Override {} fixed { reported, policy, set });

limit_fields!(NodeFacts {
    id: NAME,
    extra: table::NODE_EXTRA,
    labels: table::NODE_LABELS,
    traits: table::NODE_TRAITS,
    zone: NAME,
    rack: NAME,
    networks: table::NODE_NETWORKS,
    cached_images: table::NODE_IMAGES,
    boots: table::NODE_BOOTS,
    state_reason: table::REASON,
    overridden: table::NODE_OVERRIDES,
} fixed {
    state, heartbeat_at, capacity, system_reserve, policy_reserve, ratios, vmm_overhead_mib,
    instance_limit, other, capacity_type, platform, last_boot, next_reboot, hardware_class, kvm,
    scratch_mib, overlay_loss_ppm, reserved, headnode, is_virtual, reservoir, cpu_cap_mode,
    watermarks,
    load,
} within table::NODE_BYTES);

// An instance as it is stored: what callers send has the limits of its own type in the API.
limit_fields!(InstanceRequest {
    name: NAME,
    tenant: NAME,
    env: NAME,
    workload: NAME,
    extra: table::EXTRA,
    elastic: Limit::Parts,
    tags: table::TAGS,
    traits: table::TRAITS,
    networks: table::NETWORKS,
    platform: Limit::Parts,
    required_place as "where": table::SELECTOR,
    preferred_places as "prefer": table::PREFERRED_PLACES,
    volumes: table::VOLUMES,
    image: table::IMAGE,
    groups: table::GROUPS,
    affinity: table::RULES,
    locality: Limit::Parts,
    excluded_nodes: table::NODES,
} fixed {
    id, resources, ratios, capacity_type, needs_secrets, cpu_capped, exclude_virtual, image_mib,
    priority,
} within table::STORED_INSTANCE_BYTES);

/// Checks how many there are of everything that an instance asks for, without a look at its texts:
/// the engine's cost depends on these numbers, no matter who calls it.
///
/// # Errors
/// Names the first list that is too long.
pub(crate) fn check_counts(request: &InstanceRequest) -> Result<(), LimitExceeded> {
    let counts = [
        ("extra", request.extra.len(), table::EXTRA),
        ("tags", request.tags.len(), table::TAGS),
        ("traits", request.traits.len(), table::TRAITS),
        ("networks", request.networks.len(), table::NETWORKS),
        ("platform.min", request.platform.min.len(), table::PLATFORMS),
        ("platform.max", request.platform.max.len(), table::PLATFORMS),
        ("volumes", request.volumes.len(), table::VOLUMES),
        ("groups", request.groups.len(), table::GROUPS),
        ("affinity", request.affinity.len(), table::RULES),
        ("prefer", request.preferred_places.len(), table::PREFERRED_PLACES),
        ("locality.near", request.locality.near.len(), table::HINTS),
        ("locality.far", request.locality.far.len(), table::HINTS),
    ];
    for (field, found, limit) in counts {
        check_length(found, limit.most()).map_err(|error| error.inside(field))?;
    }
    for (place, set) in request.networks.iter().enumerate() {
        let checked = check_length(set.len(), table::NETWORK_SET.most());
        checked.map_err(|error| error.at(place).inside("networks"))?;
    }
    for (name, value) in &request.traits {
        if let TraitValue::List(words) = value {
            let checked = check_length(words.len(), table::TRAIT_VALUE.most());
            checked.map_err(|error| error.under_key(name).inside("traits"))?;
        }
    }
    Ok(())
}
