//! Scores by what else is on a node: replicas, soft rules, hints, the tenant's other instances, and
//! the cached image.

use super::scale::between;
use super::{Exceptions, Scorer, ScorerKind, Sparse};
use crate::affinity::{Rule, Topology};
use crate::fleet::{Lanes, NO_DOMAIN, NodeIndex};
use crate::model::{Hint, InstanceId, InstanceRequest, PPM};
use crate::prepared_request::PreparedRequest;

/// One, halved by the first other, a third by the second, and so on.
fn one_over(others: u32) -> u32 {
    PPM / others.saturating_add(1)
}

const fn full(_: &PreparedRequest<'_>) -> u32 {
    PPM
}

pub(super) static SPREAD_NODES: Scorer = Scorer {
    name: "spread-nodes",
    about: "keeps replicas of a workload on nodes of their own",
    notes: "1 without a workload or replicas",
    settings: &[],
    example: |setup| {
        setup.request.workload = Some("web".to_owned());
        for node in ["a", "a", "b"] {
            setup.place(node, |request| request.workload = Some("web".to_owned()));
        }
        setup.node("c", |_| {});
    },
    formula: "1 / (1 + replicas of this workload on the node)",
    kind: ScorerKind::Sparse(Sparse {
        value: |prepared, index| {
            one_over(prepared.replicas.map_or(0, |here| here.nodes.count(index.0)))
        },
        default: full,
        exceptions: |prepared, out| {
            if let Some(replicas) = prepared.replicas {
                let mut list =
                    |index, count| out.list(Lanes::one(NodeIndex(index)), PPM, one_over(count));
                replicas.nodes.for_each(&mut list);
            }
        },
    }),
};

pub(super) static SPREAD_RACKS: Scorer = Scorer {
    name: "spread-racks",
    about: "keeps replicas of a workload in racks of their own",
    notes: "1 without a workload or replicas",
    settings: &[],
    example: |setup| {
        setup.request.workload = Some("web".to_owned());
        for (node, rack) in [("a", "r1"), ("b", "r1"), ("c", "r2")] {
            setup.node(node, |facts| {
                facts.zone = Some("z1".to_owned());
                facts.rack = Some(rack.to_owned());
            });
        }
        setup.place("a", |request| request.workload = Some("web".to_owned()));
    },
    formula: "1 / (1 + replicas of this workload in the rack); no rack: 1",
    kind: ScorerKind::Sparse(Sparse {
        value: |prepared, index| rack_value(prepared, prepared.fleet.domain(index, Topology::Rack)),
        default: full,
        exceptions: |prepared, out| {
            let Some(replicas) = prepared.replicas else { return };
            replicas.racks.for_each(|rack, _| {
                let value = rack_value(prepared, rack);
                let nodes = prepared.fleet.domains().rack(rack);
                nodes.iter().for_each(|&lanes| out.list(lanes, PPM, value));
            });
        },
    }),
};

/// The spread-racks value of a whole rack; rankings repair racks by it.
pub(crate) fn rack_value(prepared: &PreparedRequest<'_>, rack: u32) -> u32 {
    match (prepared.replicas, rack) {
        (None, _) | (_, NO_DOMAIN) => PPM,
        (Some(replicas), rack) => one_over(replicas.racks.count(rack)),
    }
}

pub(super) static SPREAD_ZONES: Scorer = Scorer {
    name: "spread-zones",
    about: "evens out replicas of a workload over zones",
    notes: "1 without a workload or replicas",
    settings: &[],
    example: |setup| {
        setup.request.workload = Some("web".to_owned());
        for (node, zone) in [("a", "z1"), ("b", "z2"), ("c", "z3")] {
            setup.node(node, |facts| facts.zone = Some(zone.to_owned()));
        }
        for node in ["a", "a", "b"] {
            setup.place(node, |request| request.workload = Some("web".to_owned()));
        }
    },
    formula: "(most - here) / (most - fewest) replicas of this workload per zone; no zone: 1",
    kind: ScorerKind::Zone(spread_zones),
};

fn spread_zones(prepared: &PreparedRequest<'_>, zone: u32) -> u32 {
    let Some(replicas) = prepared.replicas else {
        return PPM;
    };
    if zone == NO_DOMAIN {
        return PPM;
    }
    // Zones are few and large, so they are compared with each other: one replica more decides
    // between zones of a hundred just as it does between zones of one.
    let here = replicas.zones.count(zone);
    let (fewest, most) = prepared.replicas_per_zone;
    PPM - between(i64::from(here), i64::from(fewest), i64::from(most)) * u32::from(most > fewest)
}

pub(super) static AFFINITY: Scorer = Scorer {
    name: "affinity",
    about: "follows soft groups and soft affinity rules",
    notes: "1/2 where no neighbour matters, 3/4 with one to be with, 1/4 with one to avoid",
    settings: &[],
    example: |setup| {
        let tagged = |request: &mut InstanceRequest, role: &str| {
            request.tags.insert("role".to_owned(), role.to_owned());
        };
        setup.place("a", |request| tagged(request, "db"));
        setup.place("b", |request| tagged(request, "web"));
        setup.node("c", |_| {});
        let rules = ["role==~db", "role!=~web"];
        setup.request.affinity = rules.iter().filter_map(|rule| Rule::parse(rule).ok()).collect();
    },
    formula: "1/2 + sum / (2 + 2 |sum|), sum: +1 per member to be with, -1 per member to avoid, \
              over soft groups and soft rules",
    kind: ScorerKind::Sparse(Sparse {
        value: affinity,
        default: |_| PPM / 2,
        exceptions: list_affinity_exceptions,
    }),
};

fn affinity(prepared: &PreparedRequest<'_>, index: NodeIndex) -> u32 {
    if prepared.soft_rules.is_empty() {
        return PPM / 2;
    }
    let each = prepared.soft_rules.iter();
    affinity_value(each.map(|r| r.sign() * i64::from(r.members(prepared.fleet, index))).sum())
}

fn affinity_value(sum: i64) -> u32 {
    let half = i64::from(PPM / 2);
    u32::try_from(half + half * sum / (sum.abs() + 1)).unwrap_or(0)
}

/// Lists zones first, then racks as they differ from their zone, then nodes as they differ from
/// their rack: a rule about racks costs a step per rack and not one per node.
fn list_affinity_exceptions(prepared: &PreparedRequest<'_>, out: &mut Exceptions<'_>) {
    for level in [Topology::Zone, Topology::Rack, Topology::Node] {
        let mut rules = prepared.soft_rules.iter().filter(|rule| rule.topology == level);
        let Some(first) = rules.next() else { continue };
        let Some(second) = rules.next() else {
            first.counts.for_each(|domain, _| list_domain(prepared, level, domain, out));
            continue;
        };
        // With several rules a domain may come up several times, but is listed once.
        let mut domains: Vec<u32> = Vec::new();
        for rule in [first, second].into_iter().chain(rules) {
            rule.counts.for_each(|domain, _| domains.push(domain));
        }
        domains.sort_unstable();
        domains.dedup();
        domains.into_iter().for_each(|domain| list_domain(prepared, level, domain, out));
    }
}

fn list_domain(
    prepared: &PreparedRequest<'_>,
    level: Topology,
    domain: u32,
    out: &mut Exceptions<'_>,
) {
    let one = [Lanes::one(NodeIndex(domain))];
    let nodes = match (level, domain) {
        (Topology::Node, _) => &one[..],
        (Topology::Rack | Topology::Zone, NO_DOMAIN) => return,
        (Topology::Rack, _) => prepared.fleet.domains().rack(domain),
        (Topology::Zone, _) => prepared.fleet.domains().zone(domain),
    };
    // All nodes of a rack are in one zone, so any of them can stand for the rack.
    let Some(first) = nodes.first() else { return };
    let index = NodeIndex::at(first.block as usize, first.mask.trailing_zeros() as usize);
    let (mut wider, mut here) = (0, 0);
    for rule in prepared.soft_rules.iter().filter(|rule| rule.topology >= level) {
        let sum = rule.sign() * i64::from(rule.members(prepared.fleet, index));
        here += sum;
        wider += if rule.topology > level { sum } else { 0 };
    }
    for &lanes in nodes {
        out.list(lanes, affinity_value(wider), affinity_value(here));
    }
}

pub(super) static LOCALITY: Scorer = Scorer {
    name: "locality",
    about: "follows locality hints that are not strict",
    notes: "1 without hints, unless `owner_spread` makes the tenant's instances count as `far` hints",
    settings: &["options.owner_spread"],
    example: |setup| {
        setup.place("a", |_| {});
        setup.place("b", |_| {});
        setup.node("c", |_| {});
        setup.request.locality.near = vec![Hint::Instance(InstanceId::from_u128(2))];
        setup.request.locality.far = vec![Hint::Instance(InstanceId::from_u128(3))];
    },
    formula: "2/3 for being far from all `far` hints plus 1/3 for being near any `near` hint",
    kind: ScorerKind::Sparse(Sparse {
        value: locality,
        default: default_locality,
        exceptions: list_locality_exceptions,
    }),
};

fn locality(prepared: &PreparedRequest<'_>, index: NodeIndex) -> u32 {
    let hints = &prepared.hints;
    if hints.is_empty() {
        return PPM;
    }
    let is_far = hints.far.iter().all(|nodes| nodes.count(index.0) == 0);
    let is_near = hints.near.is_empty() || hints.near.iter().any(|n| n.count(index.0) > 0);
    locality_value(is_far, is_near)
}

fn default_locality(prepared: &PreparedRequest<'_>) -> u32 {
    locality_value(true, prepared.hints.near.is_empty())
}

fn locality_value(is_far: bool, is_near: bool) -> u32 {
    // Far outweighs near, as it was applied first and won in Triton.
    (PPM * 2 * u32::from(is_far) + PPM * u32::from(is_near)) / 3
}

fn list_locality_exceptions(prepared: &PreparedRequest<'_>, out: &mut Exceptions<'_>) {
    let all: Vec<_> = prepared.hints.far.iter().chain(&prepared.hints.near).collect();
    let rest = default_locality(prepared);
    for (place, nodes) in all.iter().enumerate() {
        nodes.for_each(|index, _| {
            if all[..place].iter().all(|earlier| earlier.count(index) == 0) {
                out.list(Lanes::one(NodeIndex(index)), rest, locality(prepared, NodeIndex(index)));
            }
        });
    }
}

pub(super) static FEWEST_OF_OWNER: Scorer = Scorer {
    name: "fewest-of-owner",
    about: "spreads all instances of a tenant, whatever their workload",
    notes: "",
    settings: &[],
    example: |setup| {
        setup.place("a", |_| {});
        setup.place("a", |_| {});
        setup.place("b", |request| request.tenant = "other".to_owned());
    },
    formula: "1 / (1 + instances of this tenant on the node)",
    kind: ScorerKind::Sparse(Sparse {
        value: |prepared, index| one_over(owned(prepared).map_or(0, |nodes| nodes.count(index.0))),
        default: full,
        exceptions: |prepared, out| {
            if let Some(nodes) = owned(prepared) {
                let mut list =
                    |index, count| out.list(Lanes::one(NodeIndex(index)), PPM, one_over(count));
                nodes.for_each(&mut list);
            }
        },
    }),
};

fn owned<'a>(prepared: &PreparedRequest<'a>) -> Option<&'a crate::fleet::Posting> {
    prepared.tenant.and_then(|tenant| prepared.fleet.index().tenant(tenant))
}

pub(super) static IMAGE_CACHED: Scorer = Scorer {
    name: "image-cached",
    about: "starts where the image is already",
    notes: "",
    settings: &[],
    example: |setup| {
        setup.node("a", |facts| facts.cached_images = vec!["alpine".to_owned()]);
        setup.request.image = Some("alpine".to_owned());
    },
    formula: "1 on nodes that already have the image, else 0; no image asked for: 1",
    kind: ScorerKind::Sparse(Sparse {
        value: |prepared, index| {
            let here = prepared.cached_nodes.is_some_and(|nodes| nodes.count(index.0) > 0);
            if here { PPM } else { no_image(prepared) }
        },
        default: no_image,
        exceptions: |prepared, out| {
            if let Some(nodes) = prepared.cached_nodes {
                nodes.for_each(|index, _| {
                    out.list(Lanes::one(NodeIndex(index)), no_image(prepared), PPM)
                });
            }
        },
    }),
};

fn no_image(prepared: &PreparedRequest<'_>) -> u32 {
    if prepared.request.image.is_none() { PPM } else { 0 }
}
