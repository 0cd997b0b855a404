//! Rules that compare a node's facts with what the request asks of facts.
//!
//! They change only when facts do, so the planner folds them into one bit per node.

use std::collections::BTreeMap;

use super::equipment::flag;
use super::{Filter, FilterTest, Verdict};
use crate::example::ExampleSetup;
use crate::fleet::NodePlace;
use crate::model::{
    CapacityType, Evidence, InstanceRequest, LinkState, Network, Platform, PlatformVersion, Ratios,
    Timestamp, TraitValue, exceeds_host,
};
use crate::node_selector::NodeSelector;
use crate::policy::{Policy, TraitRule};
use crate::units;

pub(super) static NOT_VIRTUAL: Filter = Filter {
    name: "not-virtual",
    rule: "it is no virtual machine itself, or the request does not mind (`exclude_virtual`)",
    means: "the last nodes are virtual machines, which the request refuses",
    settings: &[],
    example: |setup| {
        setup.node("a", |facts| facts.is_virtual = true);
        setup.request.exclude_virtual = true;
    },
    code: "no_nodes_physical",
    remedy: "add a physical node, or drop exclude_virtual",
    transient: false,
    test: FilterTest::Static(|place, request, _| {
        if request.exclude_virtual { flag("virtual", place.row.is_virtual, false) } else { Ok(()) }
    }),
};

pub(super) static CAPACITY_TYPE: Filter = Filter {
    name: "capacity-type",
    rule: "it is on-demand or spot, as the request says, if it says so",
    means: "the last nodes are of the other capacity type",
    settings: &[],
    example: |setup| {
        setup.node("a", |facts| facts.capacity_type = CapacityType::Spot);
        setup.request.capacity_type = Some(CapacityType::OnDemand);
    },
    code: "capacity_type_no_node",
    remedy: "add a node of that capacity type, or drop capacity_type from the request",
    transient: true,
    test: FilterTest::Static(capacity_type),
};

fn capacity_type(place: &NodePlace<'_>, request: &InstanceRequest, _: &Policy) -> Verdict {
    match request.capacity_type {
        Some(wanted) if wanted != place.row.capacity_type => {
            let found = place.row.capacity_type.name();
            Err(Evidence::fact("capacity type", found, wanted.name()))
        }
        Some(_) | None => Ok(()),
    }
}

pub(super) static PLATFORM: Filter = Filter {
    name: "platform",
    rule: "its platform's version and build lie within the request's bounds",
    means: "the last nodes run a platform outside the bounds",
    settings: &[],
    example: |setup| {
        let (version, built_at) = (PlatformVersion::new(7, 0), ExampleSetup::NOW);
        setup.node("a", |facts| facts.platform = Some(Platform { version, built_at }));
        setup.request.platform.min.insert(PlatformVersion::new(7, 1), ExampleSetup::NOW);
    },
    code: "platform_no_node",
    remedy: "update the platform of a node, or widen the request's platform bounds",
    transient: false,
    test: FilterTest::Static(platform),
};

/// Triton took a node without a version to be this old.
const UNSTATED_VERSION: PlatformVersion = PlatformVersion::new(6, 5);

fn platform(place: &NodePlace<'_>, request: &InstanceRequest, _: &Policy) -> Verdict {
    let bounds = &request.platform;
    if bounds.min.is_empty() && bounds.max.is_empty() {
        return Ok(());
    }
    let (version, built_at) = place
        .row
        .platform
        .map_or((UNSTATED_VERSION, Timestamp(i64::MIN)), |known| (known.version, known.built_at));
    let refuse = |bound: &str, side, bounds| {
        let found = match place.row.platform {
            Some(_) => format!("{version} built {}", units::moment(built_at.0)),
            None => format!("none, taken as {version}"),
        };
        Err(Evidence::fact("platform", found, format!("{bound} {}", list(bounds, side))))
    };
    if !at_least(&bounds.min, version, built_at) {
        return refuse("at least", "later", &bounds.min);
    }
    if !at_most(&bounds.max, version, built_at) {
        return refuse("at most", "earlier", &bounds.max);
    }
    Ok(())
}

/// Built late enough for its version, or of an unlisted version above the lowest listed one.
fn at_least(
    bounds: &BTreeMap<PlatformVersion, Timestamp>,
    version: PlatformVersion,
    built_at: Timestamp,
) -> bool {
    let Some((lowest, _)) = bounds.first_key_value() else {
        return true;
    };
    match bounds.get(&version) {
        Some(oldest) => built_at >= *oldest,
        None => version > *lowest,
    }
}

/// Built early enough for its version, or of an unlisted version below the highest listed one.
fn at_most(
    bounds: &BTreeMap<PlatformVersion, Timestamp>,
    version: PlatformVersion,
    built_at: Timestamp,
) -> bool {
    let Some((highest, _)) = bounds.last_key_value() else {
        return true;
    };
    match bounds.get(&version) {
        Some(newest) => built_at <= *newest,
        None => version < *highest,
    }
}

fn list(bounds: &BTreeMap<PlatformVersion, Timestamp>, side: &str) -> String {
    let each = bounds
        .iter()
        .map(|(version, at)| format!("{version} (built {} or {side})", units::moment(at.0)));
    each.collect::<Vec<_>>().join(" or ")
}

pub(super) static TRAITS: Filter = Filter {
    name: "traits",
    rule: "its traits agree with the request's, by the setting `traits`",
    means: "the last nodes lack a trait, have another value, or have one that was not asked for",
    settings: &["filters.traits"],
    example: |setup| {
        let ssd = ("ssd".to_owned(), TraitValue::Bool(true));
        setup.node("a", |facts| facts.traits.extend([ssd]));
    },
    code: "traits_no_node",
    remedy: "add a node with these traits, or change the request's traits",
    transient: false,
    test: FilterTest::Static(traits),
};

fn traits(place: &NodePlace<'_>, request: &InstanceRequest, policy: &Policy) -> Verdict {
    let (found, wanted) = (&place.row.profile.traits, &request.traits);
    for (name, value) in wanted {
        match found.get(name) {
            Some(has) if value.agrees_with(has) => {}
            Some(has) => return Err(Evidence::fact(&format!("trait {name}"), has, value)),
            None => return Err(Evidence::fact(&format!("trait {name}"), "absent", value)),
        }
    }
    if policy.filters.traits == TraitRule::Subset || found.len() == wanted.len() {
        return Ok(());
    }
    // A node with a trait is kept for requests that ask for it.
    Err(unasked_trait(found, wanted))
}

fn unasked_trait(
    found: &BTreeMap<String, TraitValue>,
    wanted: &BTreeMap<String, TraitValue>,
) -> Evidence {
    let unasked = found.iter().find(|(name, _)| !wanted.contains_key(*name));
    let (name, value) = unasked.map_or(("", String::new()), |(n, v)| (n.as_str(), v.to_string()));
    Evidence::fact(&format!("trait {name}"), value, "absent")
}

pub(super) static NETWORKS: Filter = Filter {
    name: "networks",
    rule: "of each set of networks that the request names, at least one is there with its link up",
    means: "the last nodes lack a network, or its link is not up",
    settings: &[],
    example: |setup| {
        let network = Network { tag: "storage".to_owned(), link: LinkState::Down };
        setup.node("a", |facts| facts.networks = vec![network]);
        setup.request.networks = vec![vec!["storage".to_owned()]];
    },
    code: "network_no_node",
    remedy: "connect the network or bring its link up, or drop it from the request",
    transient: true,
    test: FilterTest::Static(networks),
};

fn networks(place: &NodePlace<'_>, request: &InstanceRequest, _: &Policy) -> Verdict {
    let networks = &place.row.profile.networks;
    let present = |any_of: &Vec<String>| networks.iter().find(|net| any_of.contains(&net.tag));
    let is_up = |any_of: &&Vec<String>| {
        networks.iter().any(|net| net.link == LinkState::Up && any_of.contains(&net.tag))
    };
    let Some(down) = request.networks.iter().find(|any_of| !is_up(any_of)) else { return Ok(()) };
    // One that is absent is named first: a link that is down may come up again.
    let absent = request.networks.iter().find(|any_of| present(any_of).is_none());
    let lacking = absent.unwrap_or(down);
    let found = match present(lacking) {
        None => Evidence::ABSENT.to_owned(),
        Some(network) => {
            let down = network.link == LinkState::Down;
            format!("{} with its link {}", network.tag, if down { "down" } else { "unknown" })
        }
    };
    Err(Evidence::fact("network", found, format!("{} up", lacking.join(" or "))))
}

pub(super) static OVERPROVISION_RATIOS: Filter = Filter {
    name: "overprovision-ratios",
    rule: "its ratios are the request's, to two decimals, if it names any",
    means: "the last nodes have other overcommit ratios than the request names",
    settings: &[],
    example: |setup| {
        setup.request.ratios = Some(Ratios { cpu_permille: 2000, ..Ratios::default() });
    },
    code: "ratios_no_node",
    remedy: "add a node with these ratios, or drop them from the request",
    transient: false,
    test: FilterTest::Static(overprovision_ratios),
};

fn overprovision_ratios(place: &NodePlace<'_>, request: &InstanceRequest, _: &Policy) -> Verdict {
    let Some(wanted) = request.ratios else {
        return Ok(());
    };
    if wanted.same_to_two_decimals(&place.row.ratios) {
        return Ok(());
    }
    let text = |r: crate::model::Ratios| {
        format!("cpu {} memory {} disk {}", r.cpu_permille, r.memory_permille, r.disk_permille)
    };
    Err(Evidence::fact("overprovision ratios (per mille)", text(place.row.ratios), text(wanted)))
}

pub(super) static PLACEMENT_CONSTRAINT: Filter = Filter {
    name: "placement-constraint",
    rule: "the request's `where` selects it",
    means: "the last nodes are not where the request asks to be",
    settings: &[],
    example: |setup| {
        setup.node("b", |facts| facts.zone = Some("z1".to_owned()));
        setup.request.required_place = NodeSelector::parse("zone = z1").ok();
    },
    code: "placement_no_node",
    remedy: "widen the request's where, or add a node that it selects",
    transient: false,
    test: FilterTest::Static(placement_constraint),
};

fn placement_constraint(place: &NodePlace<'_>, request: &InstanceRequest, _: &Policy) -> Verdict {
    match &request.required_place {
        Some(selector) if !selector.matches(place) => {
            // Only the caller's own words: a tenant must not learn the names of racks and zones.
            let parts = selector.parts();
            let failed = parts.iter().find(|part| !part.matches(place)).unwrap_or(selector);
            Err(Evidence::fact("place", "elsewhere", failed))
        }
        Some(_) | None => Ok(()),
    }
}

pub(super) static CPU_WITHIN_HOST: Filter = Filter {
    name: "cpu-within-host",
    rule: "it has at least as many cores as the instance asks for, whatever its CPU ratio",
    means: "the last nodes have fewer cores than this one instance asks for",
    settings: &["filters.cpu_within_host"],
    example: |setup| setup.request.resources.cpu_milli = 16_500,
    code: "cpu_exceeds_host",
    remedy: "ask for less CPU, or add a node with more cores",
    transient: false,
    test: FilterTest::Static(cpu_within_host),
};

fn cpu_within_host(place: &NodePlace<'_>, request: &InstanceRequest, policy: &Policy) -> Verdict {
    let (wanted, row) = (request.visible_cpu_milli(), place.row);
    let most = row.capacity.cpu_milli;
    // A node without a known size is removed as such.
    let is_sized = row.capacity_known && most > 0;
    if wanted <= most || !is_sized || !policy.filters.cpu_within_host {
        return Ok(());
    }
    exceeds_host(wanted, most).map_or(Ok(()), |lack| Err(lack.evidence))
}
