//! Rules about where other instances are, and about nodes that the request is tied to.
//!
//! Which instances count was resolved when the request was prepared (see `prepared_request`); here
//! only the node's own domain is looked up.

use super::{Filter, FilterTest, Verdict};
use crate::affinity::{Rule, Strength, Topology};
use crate::fleet::NodeIndex;
use crate::model::{Evidence, Group, GroupKind, Hint, InstanceId, NodeId};
use crate::prepared_request::{Origin, PreparedRequest};

pub(super) static NOT_EXCLUDED: Filter = Filter {
    name: "not-excluded",
    rule: "the request does not list it in `excluded_nodes`",
    means: "the last nodes denied this request before",
    settings: &[],
    example: |setup| setup.request.excluded_nodes = vec![NodeId::new("a")],
    code: "excluded_no_node",
    remedy: "send it as a new request, or wait for other nodes",
    transient: true,
    test: FilterTest::Neighbour(not_excluded),
};

fn not_excluded(prepared: &PreparedRequest<'_>, index: NodeIndex) -> Verdict {
    if !prepared.excluded.contains(&index) {
        return Ok(());
    }
    Err(Evidence::fact("this request", "denied here before", "not denied"))
}

pub(super) static VOLUME_HOME: Filter = Filter {
    name: "volume-home",
    rule: "it is the home of every volume of the request",
    means: "the last nodes are not the home of the volumes, or the homes differ",
    settings: &[],
    example: |setup| {
        setup.volume("data", "b", None);
        setup.request.volumes = vec!["data".to_owned()];
    },
    code: "volume_locality_no_node",
    remedy: "make room on the home node of the volume, or move the volume",
    transient: true,
    test: FilterTest::Neighbour(volume_home),
};

fn volume_home(prepared: &PreparedRequest<'_>, index: NodeIndex) -> Verdict {
    for volume in prepared.request.volumes.iter().filter_map(|id| prepared.fleet.volume(id)) {
        if prepared.fleet.index_of(&volume.home) != Some(index) {
            let fact = format!("home of volume {}", volume.id);
            return Err(Evidence::about_others(&fact, &volume.home, "this node"));
        }
    }
    Ok(())
}

pub(super) static GROUPS: Filter = Filter {
    name: "groups",
    rule: "hard groups that the instance joins hold there: together, apart, `max_per_domain`",
    means: "a hard group has no place for it on the last nodes",
    settings: &[],
    example: |setup| {
        setup.group(Group {
            id: "db".to_owned(),
            tenant: None,
            kind: GroupKind::Apart,
            strength: Strength::Hard,
            topology: Topology::Node,
            max_per_domain: None,
        });
        setup.place("a", |request| request.groups = vec!["db".to_owned()]);
        setup.request.groups = vec!["db".to_owned()];
    },
    code: "group_no_node",
    remedy: "raise the group's max_per_domain, make the group soft, or add a node in another rack or zone",
    transient: true,
    test: FilterTest::Neighbour(|prepared, index| rules_of(prepared, index, Origin::Group)),
};

pub(super) static RESIDENT_RULES: Filter = Filter {
    name: "resident-rules",
    rule: "no hard `!=` rule of the tenant's instances that are placed there selects this one",
    means: "a hard `!=` rule of a placed instance keeps this one out",
    settings: &[],
    example: |setup| {
        setup.place("a", |request| request.affinity.extend(Rule::parse("role!=web").ok()));
        setup.request.tags.insert("role".to_owned(), "web".to_owned());
    },
    code: "resident_rule_no_node",
    remedy: "make the != rule of the placed instances soft, or change what it matches in this one",
    transient: true,
    test: FilterTest::Neighbour(|prepared, index| rules_of(prepared, index, Origin::Resident)),
};

pub(super) static AFFINITY: Filter = Filter {
    name: "affinity",
    rule: "the request's own hard affinity rules hold there",
    means: "a hard rule of the request does not hold on the last nodes",
    settings: &[],
    example: |setup| {
        setup.place("b", |request| {
            request.tags.insert("role".to_owned(), "db".to_owned());
        });
        setup.request.affinity.extend(Rule::parse("role==db").ok());
    },
    code: "affinity_no_node",
    remedy: "make the rule soft with ~, or correct what it matches",
    transient: true,
    test: FilterTest::Neighbour(|prepared, index| rules_of(prepared, index, Origin::Affinity)),
};

pub(super) static STRICT_LOCALITY: Filter = Filter {
    name: "strict-locality",
    rule: "near and far hints hold there, if they are `strict`",
    means: "strict hints do not hold on the last nodes",
    settings: &[],
    example: |setup| {
        setup.place("a", |_| {});
        setup.request.locality.far = vec![Hint::Instance(InstanceId::from_u128(2))];
        setup.request.locality.strict = true;
    },
    code: "locality_no_node",
    remedy: "drop strict, or name other instances to be near or far from",
    transient: true,
    test: FilterTest::Neighbour(|prepared, index| rules_of(prepared, index, Origin::Locality)),
};

/// All filters of this file at once, without the evidence.
pub(super) fn admits(prepared: &PreparedRequest<'_>, index: NodeIndex) -> bool {
    not_excluded(prepared, index).is_ok()
        && volume_home(prepared, index).is_ok()
        && prepared.hard_rules.iter().all(|rule| rule.admits(prepared.fleet, index))
}

fn rules_of(prepared: &PreparedRequest<'_>, index: NodeIndex, origin: Origin) -> Verdict {
    for rule in prepared.hard_rules.iter().filter(|rule| rule.origin == origin) {
        let members = rule.members(prepared.fleet, index);
        if !rule.admits(prepared.fleet, index) {
            return Err(Evidence::Neighbours {
                rule: rule.text.to_string(),
                topology: rule.topology,
                members,
                wanted: rule.wanted(prepared.fleet, index),
            });
        }
    }
    Ok(())
}
