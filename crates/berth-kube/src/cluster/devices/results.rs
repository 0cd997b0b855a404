//! The result of an allocation, as it is written to a claim: devices, configuration, and nodes.

use std::collections::BTreeMap;
use std::sync::Arc;

use k8s_openapi::api::core::v1 as core;
use k8s_openapi::api::resource::v1 as resource;

use super::allocator::{Choice, ClaimChoice, chosen_alternative, request_name};
use super::filters::{PreparedAlternative, PreparedClaim};
use super::objects::Reach;
use crate::cluster::node::Node;

/// The result of a claim on a node.
pub(super) fn allocation_result(
    claim: &PreparedClaim,
    chosen: &ClaimChoice<'_>,
    node: &Node,
) -> resource::AllocationResult {
    let config = configuration(claim, chosen);
    let results = chosen.iter().map(|it| device_result(claim, it)).collect();
    resource::AllocationResult {
        allocation_timestamp: None,
        devices: Some(resource::DeviceAllocationResult {
            config: (!config.is_empty()).then_some(config),
            results: Some(results),
        }),
        node_selector: node_selector(chosen, node),
    }
}

fn device_result(
    claim: &PreparedClaim,
    choice: &Choice<'_>,
) -> resource::DeviceRequestAllocationResult {
    let alternative = &claim.requests[choice.request][choice.alternative].alternative;
    let id = &choice.device.id;
    resource::DeviceRequestAllocationResult {
        request: request_name(claim, choice).to_string(),
        driver: id.pool.driver.to_string(),
        pool: id.pool.pool.to_string(),
        device: id.device.to_string(),
        tolerations: Some(alternative.tolerations.clone()).filter(|it| !it.is_empty()),
        ..Default::default()
    }
}

/// The configuration of the classes, then that of the claim, each for the requests that it concerns.
fn configuration(
    claim: &PreparedClaim,
    chosen: &ClaimChoice<'_>,
) -> Vec<resource::DeviceAllocationConfiguration> {
    let chosen: Vec<&PreparedAlternative> = claim
        .requests
        .iter()
        .enumerate()
        .filter_map(|(at, it)| it.get(chosen_alternative(chosen, at)?))
        .collect();
    let names = |of: &dyn Fn(&PreparedAlternative) -> bool| -> Vec<String> {
        chosen.iter().filter(|it| of(it)).map(|it| it.alternative.name.to_string()).collect()
    };
    // Without names it concerns all.
    let unless_all = |names: Vec<String>| Some(names).filter(|it| it.len() < chosen.len());
    let mut all = Vec::new();
    let mut classes: BTreeMap<&Arc<str>, usize> = BTreeMap::new();
    for (at, it) in chosen.iter().enumerate() {
        if *classes.entry(&it.alternative.class).or_insert(at) != at {
            continue;
        }
        let requests = names(&|other| other.alternative.class == it.alternative.class);
        for config in &it.class.config {
            all.push(resource::DeviceAllocationConfiguration {
                source: "FromClass".to_owned(),
                requests: unless_all(requests.clone()),
                opaque: config.opaque.clone(),
            });
        }
    }
    for config in &claim.spec.config {
        let wanted = config.requests.clone().unwrap_or_default();
        let concerns = |it: &PreparedAlternative| {
            let base = it.alternative.name.split('/').next().unwrap_or_default();
            wanted.iter().any(|name| **name == *it.alternative.name || name == base)
        };
        let concerned = chosen.iter().filter(|it| concerns(it)).count();
        if wanted.is_empty() || concerned > 0 {
            all.push(resource::DeviceAllocationConfiguration {
                source: "FromClaim".to_owned(),
                requests: Some(wanted).filter(|it| !it.is_empty() && concerned < chosen.len()),
                opaque: config.opaque.clone(),
            });
        }
    }
    all
}

/// The nodes on which the devices can be used; absent: all.
fn node_selector(chosen: &ClaimChoice<'_>, node: &Node) -> Option<core::NodeSelector> {
    let mut term = core::NodeSelectorTerm::default();
    for choice in chosen {
        let reach = choice.device.reach.as_ref().unwrap_or(choice.reach);
        match reach {
            Reach::Node(_) => return Some(only_node(node)),
            _ if choice.device.device.binds_to_node == Some(true) => return Some(only_node(node)),
            Reach::Nodes(_, selector) => {
                let [one] = selector.node_selector_terms.as_slice() else {
                    // A selector with alternatives cannot be combined with others.
                    return Some(only_node(node));
                };
                add(&mut term.match_expressions, one.match_expressions.as_ref());
                add(&mut term.match_fields, one.match_fields.as_ref());
            }
            Reach::AllNodes | Reach::PerDevice | Reach::Nowhere => {}
        }
    }
    let is_empty = term.match_expressions.is_none() && term.match_fields.is_none();
    (!is_empty).then(|| core::NodeSelector { node_selector_terms: vec![term] })
}

fn only_node(node: &Node) -> core::NodeSelector {
    let requirement = core::NodeSelectorRequirement {
        key: "metadata.name".to_owned(),
        operator: "In".to_owned(),
        values: Some(vec![node.name.to_string()]),
    };
    let term =
        core::NodeSelectorTerm { match_fields: Some(vec![requirement]), ..Default::default() };
    core::NodeSelector { node_selector_terms: vec![term] }
}

fn add(
    to: &mut Option<Vec<core::NodeSelectorRequirement>>,
    from: Option<&Vec<core::NodeSelectorRequirement>>,
) {
    for requirement in from.into_iter().flatten() {
        let all = to.get_or_insert_default();
        if !all.contains(requirement) {
            all.push(requirement.clone());
        }
    }
}
