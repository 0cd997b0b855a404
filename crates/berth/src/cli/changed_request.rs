//! A whole request with the changes that a fix names, for requests whose file states what is to be
//! changed: flags only add to a file. It decides nothing; the fix was tried by the server.

use berth_api::engine::Fix;
use berth_api::engine::affinity::Rule;
use berth_api::engine::node_selector::NodeSelector;
use berth_api::{InstanceSpec, Mode, PlaceRequest};

use super::fixes::softened;
use crate::cmdutil::args;

/// Makes the change of a fix; false when the request does not have what it names. `refused` is the
/// name of the instance that was refused.
pub(super) fn apply(request: &mut PlaceRequest, fix: &Fix, refused: Option<&str>) -> bool {
    match fix {
        Fix::Shrink { resources, extra, .. } => {
            let Some(spec) = refused_spec(request, refused) else { return false };
            let wanted = &mut spec.resources;
            (wanted.cpu_milli, wanted.memory_mib) = (resources.cpu_milli, resources.memory_mib);
            wanted.disk_mib = Some(resources.disk_mib);
            wanted.bandwidth_mbps = resources.bandwidth_mbps;
            for (class, amount) in extra {
                match amount {
                    0 => drop(spec.extra.remove(class)),
                    amount => drop(spec.extra.insert(class.clone(), *amount)),
                }
            }
            true
        }
        Fix::Relax { filter, change, .. } => {
            let before = request.clone();
            match filter.as_ref() {
                // Sent again, it is a new request.
                "not-excluded" => return true,
                // These are tried with the refused instances alone.
                "placement-constraint" | "cpu-cap-mixing" => {
                    let spec = refused_spec(request, refused);
                    spec.into_iter().for_each(|spec| relax(spec, filter, change));
                }
                "traits" if change.starts_with("ask for trait ") => {
                    let spec = refused_spec(request, refused);
                    spec.into_iter().for_each(|spec| relax(spec, filter, change));
                }
                _ => request.instances.iter_mut().for_each(|spec| relax(spec, filter, change)),
            }
            *request != before
        }
        Fix::ChangePool { pool, to } => {
            let named = request.pools.len();
            request.pools.retain(|other| other != pool);
            let is_named = request.pools.len() < named;
            request.pools.extend(to.iter().cloned());
            is_named
        }
        Fix::Count { count, .. } => keep_first(request, *count),
        Fix::Fewer { count, .. } => {
            (request.mode, request.at_least) = (Mode::AtLeast, Some(*count));
            true
        }
        _ => false,
    }
}

/// The request as text that can be sent again: without its id, and without waiting.
pub(super) fn text(request: &PlaceRequest) -> Option<String> {
    let mut request = request.clone();
    (request.request_id, request.wait_s) = (None, None);
    if request.mode == Mode::Wait {
        request.mode = Mode::default();
    }
    serde_json::to_string(&request).ok()
}

/// The instances that were refused: the only ones, or those with the name.
fn refused_spec<'a>(
    request: &'a mut PlaceRequest,
    refused: Option<&str>,
) -> Option<&'a mut InstanceSpec> {
    if let [_] = request.instances.as_slice() {
        return request.instances.first_mut();
    }
    let refused = refused?;
    let is_refused = |spec: &&mut InstanceSpec| {
        let rest = spec.name.as_deref().and_then(|name| refused.strip_prefix(name));
        let number = rest.and_then(|rest| rest.strip_prefix('-'));
        rest == Some("") || number.is_some_and(|number| number.parse::<u32>().is_ok())
    };
    request.instances.iter_mut().find(is_refused)
}

/// Keeps the first instances of a request.
fn keep_first(request: &mut PlaceRequest, count: u32) -> bool {
    let mut left = count;
    for spec in &mut request.instances {
        let kept = spec.count.unwrap_or(1).min(left);
        left -= kept;
        spec.count = Some(kept);
    }
    request.instances.retain(|spec| spec.count != Some(0));
    left == 0 && !request.instances.is_empty()
}

/// Drops or softens one rule of an instance.
fn relax(spec: &mut InstanceSpec, filter: &str, change: &str) {
    let after = |prefix: &str| change.strip_prefix(prefix).unwrap_or_default();
    match filter {
        "capacity-type" => spec.capacity_type = None,
        "platform" => spec.platform = None,
        "overprovision-ratios" => spec.ratios = None,
        "traits" => match change.strip_prefix("ask for trait ").map(args::trait_value) {
            Some(Ok((name, value))) => drop(spec.traits.insert(name, value)),
            Some(Err(_)) => {}
            None => drop(spec.traits.remove(after("drop trait "))),
        },
        "networks" => {
            spec.networks.retain(|networks| networks.join(" or ") != after("drop network "));
        }
        "placement-constraint" => {
            let part = NodeSelector::parse(after("drop where ")).ok();
            let place = spec.required_place.take();
            spec.required_place = match part {
                Some(part) => place.and_then(|place| place.without(&part)),
                None => place,
            };
        }
        "not-virtual" => spec.exclude_virtual = false,
        "groups" => spec.groups.retain(|group| group != after("leave group ")),
        "affinity" => {
            let soften = |rule: &mut Rule| *rule = softened(rule, change).unwrap_or(rule.clone());
            spec.affinity.iter_mut().for_each(soften);
        }
        "strict-locality" => {
            if let Some(locality) = &mut spec.locality {
                locality.strict = false;
            }
        }
        "volume-home" => {
            spec.volumes.clear();
            spec.attachments.clear();
        }
        "cpu-cap-mixing" => spec.cpu_capped = change == "cap the CPU",
        "secrets-present" => spec.needs_secrets = false,
        _ => {}
    }
}
