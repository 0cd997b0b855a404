//! One change of a request that may get it past a filter.

use std::collections::BTreeMap;

use crate::affinity::Rule;
use crate::explain::Fix;
use crate::model::{Amounts, InstanceRequest, NodeId, PlatformBounds, TraitValue};
use crate::node_selector::NodeSelector;

/// One change of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum RequestChange {
    /// Ask for less; only classes that change are named.
    Shrink { resources: Amounts, extra: BTreeMap<String, u32> },
    /// Send it as a new request, to nodes that denied this one too.
    SendAgain,
    /// Take nodes of any capacity type.
    DropCapacityType,
    /// Do without a part of the request's `where`.
    DropPlace(NodeSelector),
    /// Take any platform.
    DropPlatform,
    /// Do without a trait.
    DropTrait(String),
    /// Ask for a trait that the node is kept for.
    AskForTrait(String, TraitValue),
    /// Do without one of a set of networks.
    DropNetwork(Vec<String>),
    /// Take any ratios.
    DropRatios,
    /// Take virtual nodes.
    AcceptVirtual,
    /// Leave a group.
    LeaveGroup(String),
    /// Make a hard rule soft.
    Soften(Rule),
    /// Make strict hints soft.
    DropStrict,
    /// Do without these volumes.
    DropVolumes(Vec<String>),
    /// Cap the CPU, or do not.
    SwitchCap,
    /// Do without secrets.
    DropSecrets,
}

impl RequestChange {
    /// Makes the change.
    pub(crate) fn apply(&self, request: &mut InstanceRequest) {
        match self {
            Self::Shrink { resources, extra } => {
                request.resources = *resources;
                for (class, amount) in extra {
                    request.extra.insert(class.clone(), *amount);
                }
            }
            Self::SendAgain => request.excluded_nodes.clear(),
            Self::DropCapacityType => request.capacity_type = None,
            Self::DropPlace(part) => {
                let rest = request.required_place.as_ref().and_then(|all| all.without(part));
                request.required_place = rest;
            }
            Self::DropPlatform => request.platform = PlatformBounds::default(),
            Self::DropTrait(name) => drop(request.traits.remove(name)),
            Self::AskForTrait(name, value) => {
                request.traits.insert(name.clone(), value.clone());
            }
            Self::DropNetwork(tags) => request.networks.retain(|other| other != tags),
            Self::DropRatios => request.ratios = None,
            Self::AcceptVirtual => request.exclude_virtual = false,
            Self::LeaveGroup(group) => request.groups.retain(|other| other != group),
            Self::Soften(rule) => request.affinity.retain(|other| other != rule),
            Self::DropStrict => request.locality.strict = false,
            Self::DropVolumes(volumes) => request.volumes.retain(|id| !volumes.contains(id)),
            Self::SwitchCap => request.cpu_capped = !request.cpu_capped,
            Self::DropSecrets => request.needs_secrets = false,
        }
    }

    /// Whether it is made to every member of a batch that has the rule, and not to one class alone.
    pub(crate) const fn is_for_all(&self) -> bool {
        match self {
            Self::Shrink { .. }
            | Self::SendAgain
            | Self::AskForTrait(..)
            | Self::DropPlace(_)
            | Self::SwitchCap => false,
            Self::DropCapacityType
            | Self::DropPlatform
            | Self::DropTrait(_)
            | Self::DropNetwork(_)
            | Self::DropRatios
            | Self::AcceptVirtual
            | Self::LeaveGroup(_)
            | Self::Soften(_)
            | Self::DropStrict
            | Self::DropVolumes(_)
            | Self::DropSecrets => true,
        }
    }

    /// The change as a fix; `node` could take the instance then.
    pub(crate) fn fix(&self, request: &InstanceRequest, node: Option<NodeId>) -> Fix {
        let (filter, change) = match self {
            Self::Shrink { resources, extra } => {
                return Fix::Shrink { resources: *resources, extra: extra.clone(), node };
            }
            Self::SendAgain => ("not-excluded", "send it as a new request".to_owned()),
            Self::DropCapacityType => {
                let kind = request.capacity_type.map_or("", |kind| kind.name());
                ("capacity-type", format!("drop capacity_type {kind}"))
            }
            Self::DropPlace(part) => ("placement-constraint", format!("drop where {part}")),
            Self::DropPlatform => ("platform", "drop the platform bounds".to_owned()),
            Self::DropTrait(name) => ("traits", format!("drop trait {name}")),
            Self::AskForTrait(name, value) => ("traits", format!("ask for trait {name}={value}")),
            Self::DropNetwork(tags) => ("networks", format!("drop network {}", tags.join(" or "))),
            Self::DropRatios => ("overprovision-ratios", "drop the ratios".to_owned()),
            Self::AcceptVirtual => ("not-virtual", "accept virtual nodes".to_owned()),
            Self::LeaveGroup(group) => ("groups", format!("leave group {group}")),
            Self::Soften(rule) => ("affinity", format!("make {rule} soft with ~, or drop it")),
            Self::DropStrict => (
                "strict-locality",
                "drop strict, so that near and far are only preferred".to_owned(),
            ),
            Self::DropVolumes(volumes) => {
                ("volume-home", format!("do without volume {}", volumes.join(", ")))
            }
            Self::SwitchCap => {
                let change = if request.cpu_capped { "drop the CPU cap" } else { "cap the CPU" };
                ("cpu-cap-mixing", change.to_owned())
            }
            Self::DropSecrets => ("secrets-present", "drop needs_secrets".to_owned()),
        };
        Fix::Relax { filter: filter.into(), change, node }
    }
}

/// A copy of a request with some changes made.
pub(crate) fn changed(request: &InstanceRequest, changes: &[RequestChange]) -> InstanceRequest {
    let mut copy = request.clone();
    changes.iter().for_each(|change| change.apply(&mut copy));
    copy
}
