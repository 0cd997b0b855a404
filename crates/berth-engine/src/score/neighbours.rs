//! Scores of who else is there: replicas, soft rules, hints, the owner's other instances, and the
//! image, which is a neighbour of a kind.

use super::scale::between;
use super::{Kind, Scorer, Sparse};
use crate::affinity::Topology;
use crate::fleet::{NO_DOMAIN, Slot};
use crate::model::PPM;
use crate::plan::Ask;

/// One, halved by the first other, a third by the second, and so on.
fn one_over(others: u32) -> u32 {
    PPM / others.saturating_add(1)
}

const fn full(_: &Ask<'_>) -> u32 {
    PPM
}

pub(super) static SPREAD_NODES: Scorer = Scorer {
    name: "spread-nodes",
    formula: "1 / (1 + replicas of this workload on the node)",
    kind: Kind::Sparse(Sparse {
        value: |ask, slot| one_over(ask.replicas.map_or(0, |here| here.nodes.count(slot.0))),
        rest: full,
        exceptions: |ask, list| {
            if let Some(replicas) = ask.replicas {
                replicas
                    .nodes
                    .for_each(|slot, count| list(Slot(slot), one_over(count)));
            }
        },
    }),
};

pub(super) static SPREAD_RACKS: Scorer = Scorer {
    name: "spread-racks",
    formula: "1 / (1 + replicas of this workload in the rack); no rack: 1",
    kind: Kind::Sparse(Sparse {
        value: |ask, slot| rack_value(ask, ask.fleet.domain(slot, Topology::Rack)),
        rest: full,
        exceptions: |ask, list| {
            let Some(replicas) = ask.replicas else { return };
            replicas.racks.for_each(|rack, _| {
                let value = rack_value(ask, rack);
                if value != PPM {
                    let nodes = ask.fleet.domains().rack_nodes(rack);
                    nodes.iter().for_each(|&slot| list(slot, value));
                }
            });
        },
    }),
};

/// The spread-racks value of a whole rack; rankings repair racks by it.
pub(crate) fn rack_value(ask: &Ask<'_>, rack: u32) -> u32 {
    match (ask.replicas, rack) {
        (None, _) | (_, NO_DOMAIN) => PPM,
        (Some(replicas), rack) => one_over(replicas.racks.count(rack)),
    }
}

pub(super) static SPREAD_ZONES: Scorer = Scorer {
    name: "spread-zones",
    formula: "(most - here) / (most - fewest) replicas of this workload per zone; no zone: 1",
    kind: Kind::Zone(spread_zones),
};

fn spread_zones(ask: &Ask<'_>, zone: u32) -> u32 {
    let Some(replicas) = ask.replicas else {
        return PPM;
    };
    if zone == NO_DOMAIN {
        return PPM;
    }
    // Zones are few and large, so they are compared with each other: one replica more decides
    // between zones of a hundred just as it does between zones of one.
    let here = replicas.zones.count(zone);
    let (fewest, most) = replicas.zones.range(ask.fleet.domains().populated_zones());
    PPM - between(i64::from(here), i64::from(fewest), i64::from(most)) * u32::from(most > fewest)
}

pub(super) static AFFINITY: Scorer = Scorer {
    name: "affinity",
    formula: "1/2 + sum / (2 + 2 |sum|), sum: +1 per member to be with, -1 per member to avoid, \
              over soft groups and soft rules",
    kind: Kind::Sparse(Sparse {
        value: affinity,
        rest: |_| PPM / 2,
        exceptions: affine_nodes,
    }),
};

fn affinity(ask: &Ask<'_>, slot: Slot) -> u32 {
    let each =
        |rule: &crate::plan::DomainRule<'_>| rule.sign() * i64::from(rule.members(ask.fleet, slot));
    let sum: i64 = ask.soft.iter().map(each).sum();
    let half = i64::from(PPM / 2);
    u32::try_from(half + half * sum / (sum.abs() + 1)).unwrap_or(0)
}

fn affine_nodes(ask: &Ask<'_>, list: &mut dyn FnMut(Slot, u32)) {
    for (place, rule) in ask.soft.iter().enumerate() {
        let earlier = &ask.soft[..place];
        let mut list_once = |slot: Slot| {
            if earlier
                .iter()
                .all(|rule| rule.members(ask.fleet, slot) == 0)
            {
                list(slot, affinity(ask, slot));
            }
        };
        rule.counts
            .for_each(|domain, _| match (rule.topology, domain) {
                (Topology::Node, _) => list_once(Slot(domain)),
                (Topology::Rack | Topology::Zone, NO_DOMAIN) => {}
                (Topology::Rack, _) => {
                    ask.fleet
                        .domains()
                        .rack_nodes(domain)
                        .iter()
                        .for_each(|&slot| list_once(slot));
                }
                (Topology::Zone, _) => {
                    ask.fleet
                        .domains()
                        .zone_nodes(domain)
                        .iter()
                        .for_each(|&slot| list_once(slot));
                }
            });
    }
}

pub(super) static LOCALITY: Scorer = Scorer {
    name: "locality",
    formula: "2/3 for being far from all `far` hints plus 1/3 for being near any `near` hint",
    kind: Kind::Sparse(Sparse {
        value: locality,
        rest: locality_of_others,
        exceptions: hinted,
    }),
};

fn locality(ask: &Ask<'_>, slot: Slot) -> u32 {
    let hints = &ask.hints;
    let is_far = hints.far.iter().all(|nodes| nodes.count(slot.0) == 0);
    let is_near = hints.near.is_empty() || hints.near.iter().any(|n| n.count(slot.0) > 0);
    locality_value(is_far, is_near)
}

fn locality_of_others(ask: &Ask<'_>) -> u32 {
    locality_value(true, ask.hints.near.is_empty())
}

fn locality_value(is_far: bool, is_near: bool) -> u32 {
    // Far outweighs near, as it was applied first and won in Triton.
    (PPM * 2 * u32::from(is_far) + PPM * u32::from(is_near)) / 3
}

fn hinted(ask: &Ask<'_>, list: &mut dyn FnMut(Slot, u32)) {
    let all: Vec<_> = ask.hints.far.iter().chain(&ask.hints.near).collect();
    for (place, nodes) in all.iter().enumerate() {
        nodes.for_each(|slot, _| {
            if all[..place].iter().all(|earlier| earlier.count(slot) == 0) {
                list(Slot(slot), locality(ask, Slot(slot)));
            }
        });
    }
}

pub(super) static FEWEST_OF_OWNER: Scorer = Scorer {
    name: "fewest-of-owner",
    formula: "1 / (1 + instances of this owner on the node)",
    kind: Kind::Sparse(Sparse {
        value: |ask, slot| one_over(owned(ask).map_or(0, |nodes| nodes.count(slot.0))),
        rest: full,
        exceptions: |ask, list| {
            if let Some(nodes) = owned(ask) {
                nodes.for_each(|slot, count| list(Slot(slot), one_over(count)));
            }
        },
    }),
};

fn owned<'a>(ask: &Ask<'a>) -> Option<&'a crate::fleet::Posting> {
    ask.owner.and_then(|owner| ask.fleet.index().owner(owner))
}

pub(super) static IMAGE_CACHED: Scorer = Scorer {
    name: "image-cached",
    formula: "1 on nodes that already have the image, else 0; no image asked for: 1",
    kind: Kind::Sparse(Sparse {
        value: |ask, slot| {
            let here = ask.cached.is_some_and(|nodes| nodes.count(slot.0) > 0);
            if here { PPM } else { no_image(ask) }
        },
        rest: no_image,
        exceptions: |ask, list| {
            if let Some(nodes) = ask.cached {
                nodes.for_each(|slot, _| list(Slot(slot), PPM));
            }
        },
    }),
};

fn no_image(ask: &Ask<'_>) -> u32 {
    if ask.request.image.is_none() { PPM } else { 0 }
}
